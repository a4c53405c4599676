"""Build the lessons in files/ from the Markdown in sources/.

    python datasets/materials/build.py            write files/
    python datasets/materials/build.py --check    build in memory, compare with files/, exit 1 on a difference

PDF is made with reportlab, DOCX with python-docx; Markdown and text are written out.
Two runs with the same library versions give the same bytes. (--check compares the parts
of a DOCX after unpacking, as another zlib may pack the same parts into other bytes.)
"""

from __future__ import annotations

import argparse
import datetime as dt
import io
import re
import sys
import zipfile
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from xml.sax.saxutils import escape

from markdown_it import MarkdownIt

HERE = Path(__file__).resolve().parent
SERIES = {"pt": "Aulas abertas", "en": "Open lessons", "es": "Clases abiertas"}
PAGE = {"pt": "Página {} de {}", "en": "Page {} of {}", "es": "Página {} de {}"}
LOCALE = {"pt": "pt-BR", "en": "en-GB", "es": "es-ES"}
BUILT_WITH = {"reportlab": "5.1.0", "python-docx": "1.2.0"}  # what files/ was made with
BUILD_ONLY = (
    "format",
    "font",
    "size",
    "justify",
    "bookmarks",
    "encoding",
    "file",
)  # front matter that readers do not see
Run = tuple[str, str]  # text, style: "", "b", "i"


@dataclass
class Block:
    kind: str  # heading para item table
    runs: list[Run] = field(default_factory=list)
    level: int = 0
    ordered: bool = False
    number: int = 0
    list_id: int = 0
    rows: list[list[list[Run]]] = field(default_factory=list)


@dataclass
class Lesson:
    meta: dict[str, str]
    blocks: list[Block]
    body: str

    @property
    def file(self) -> str:
        return self.meta["file"]


def plain(runs: list[Run]) -> str:
    """The text of some runs with single spaces."""
    return re.sub(r"\s+", " ", "".join(t for t, _ in runs)).strip()


# ---------------------------------------------------------------- reading


def _runs(token) -> list[Run]:
    out: list[Run] = []
    style = ""
    for child in token.children or []:
        if child.type in ("strong_open", "em_open"):
            style = "b" if child.type == "strong_open" else "i"
        elif child.type in ("strong_close", "em_close"):
            style = ""
        elif child.type in ("softbreak", "hardbreak"):
            out.append((" ", style))
        else:
            out.append((child.content, style))
    return [r for r in out if r[0]]


def parse(text: str) -> Lesson:
    if not text.startswith("---\n"):
        raise ValueError("no front matter")
    head, body = text[4:].split("\n---\n", 1)
    meta = {}
    for line in head.splitlines():
        key, _, value = line.partition(":")
        meta[key.strip()] = value.strip().strip('"')
    blocks: list[Block] = []
    lists: list[dict] = []
    made = 0
    table: list[list[list[Run]]] | None = None
    tokens = MarkdownIt("commonmark").enable("table").parse(body)
    for i, tok in enumerate(tokens):
        if tok.type in ("bullet_list_open", "ordered_list_open"):
            made += 1
            lists.append({"ordered": tok.type[0] == "o", "n": int(tok.attrGet("start") or 1) - 1, "id": made})
        elif tok.type in ("bullet_list_close", "ordered_list_close"):
            lists.pop()
        elif tok.type == "list_item_open":
            lists[-1]["n"] += 1
        elif tok.type == "table_open":
            table = []
        elif tok.type == "table_close":
            blocks.append(Block("table", rows=table))
            table = None
        elif tok.type == "tr_open":
            table.append([])
        elif tok.type == "inline":
            runs = _runs(tok)
            if table is not None:
                table[-1].append(runs)
            elif tokens[i - 1].type == "heading_open":
                blocks.append(Block("heading", runs, level=int(tokens[i - 1].tag[1])))
            elif lists:
                top = lists[-1]
                blocks.append(Block("item", runs, len(lists), top["ordered"], top["n"], top["id"]))
            else:
                blocks.append(Block("para", runs))
        elif tok.type in ("fence", "html_block", "blockquote_open"):
            raise ValueError(f"a lesson has no {tok.type}")
    return Lesson(meta, blocks, body)


def load_all() -> list[Lesson]:
    lessons = []
    for path in sorted((HERE / "sources").glob("*.md")):
        lesson = parse(path.read_text(encoding="utf-8"))
        lesson.meta["file"] = f"{path.stem}.{lesson.meta['format']}"
        lessons.append(lesson)
    return lessons


def byline(lesson: Lesson) -> str:
    """The line under the title of a PDF, DOCX or text lesson."""
    m = lesson.meta
    return f"{m['subject'][:1].upper()}{m['subject'][1:]} · {m['level']} · {m['author']}"


def canonical_lines(lesson: Lesson) -> list[str]:
    """What a careful loader should read from the built file, one line a paragraph."""
    if lesson.meta["format"] == "md":
        return [line for line in markdown_bytes(lesson).decode("utf-8").split("\n") if line.strip()]
    if lesson.meta["format"] == "txt":
        return [line for line in _txt(lesson).split("\n") if line.strip()]
    out = []
    for b in lesson.blocks:
        if b.kind == "item":
            out.append((f"{b.number}. " if b.ordered else "\u2022 ") + plain(b.runs))
        elif b.kind == "table":
            out += [" | ".join(plain(c) for c in row) for row in b.rows]
        else:
            out.append(plain(b.runs))
            if b.level == 1:
                out.append(byline(lesson))
    return out


# ---------------------------------------------------------------- markdown and text


def markdown_bytes(lesson: Lesson) -> bytes:
    keep = [f'{k}: "{v}"' for k, v in lesson.meta.items() if k not in BUILD_ONLY]
    return ("---\n" + "\n".join(keep) + "\n---\n" + lesson.body.rstrip("\n") + "\n").encode("utf-8")


def _txt(lesson: Lesson) -> str:
    out: list[str] = []
    for n, b in enumerate(lesson.blocks):
        if b.kind == "table":
            raise ValueError(f"{lesson.file}: no tables in a text file")
        text = plain(b.runs)
        if b.kind == "item":
            out.append((f"{b.number}. " if b.ordered else "- ") + text)
            if n + 1 < len(lesson.blocks) and lesson.blocks[n + 1].list_id == b.list_id:
                continue
        else:
            out.append(text)
            if b.level == 1:
                out += ["=" * len(text), byline(lesson)]
        out.append("")
    return "\n".join(out).rstrip("\n") + "\n"


def text_bytes(lesson: Lesson) -> bytes:
    return _txt(lesson).encode(lesson.meta.get("encoding", "utf-8"))


# ---------------------------------------------------------------- pdf

FONTS = {
    "helvetica": ("Helvetica", "Helvetica-Bold", "Helvetica-Oblique"),
    "times": ("Times-Roman", "Times-Bold", "Times-Italic"),
    "vera": ("Vera", "VeraBd", "VeraIt"),
}


def pdf_bytes(lesson: Lesson) -> bytes:
    total = _pdf_pass(lesson, 0)[1]
    return _pdf_pass(lesson, total)[0]


def _pdf_pass(lesson: Lesson, total: int) -> tuple[bytes, int]:
    from reportlab import rl_config
    from reportlab.lib import colors
    from reportlab.lib.enums import TA_JUSTIFY, TA_LEFT
    from reportlab.lib.pagesizes import A4
    from reportlab.lib.styles import ParagraphStyle
    from reportlab.lib.units import mm
    from reportlab.pdfbase import pdfmetrics
    from reportlab.pdfbase.ttfonts import TTFont
    from reportlab.platypus import (
        BaseDocTemplate,
        CondPageBreak,
        Frame,
        PageTemplate,
        Paragraph,
        Spacer,
        Table,
        TableStyle,
    )

    rl_config.invariant = 1
    m = lesson.meta
    family = m.get("font", "helvetica")
    if family == "vera":  # the TrueType family that comes with reportlab; embedded as a subset
        for name in FONTS["vera"]:
            pdfmetrics.registerFont(TTFont(name, f"{name}.ttf"))
    regular, bold, italic = FONTS[family]
    size = float(m.get("size", "9.5" if family == "vera" else "10.5"))
    body = ParagraphStyle(
        "body",
        fontName=regular,
        fontSize=size,
        leading=size * 1.38,
        splitLongWords=0,
        spaceAfter=6,
        alignment=TA_JUSTIFY if m.get("justify") == "yes" else TA_LEFT,
        allowWidows=0,
        allowOrphans=0,
    )
    item = ParagraphStyle("item", parent=body, leftIndent=8 * mm, bulletIndent=2.5 * mm, spaceAfter=3)
    cell = ParagraphStyle(
        "cell", fontName=regular, fontSize=size - 1, leading=(size - 1) * 1.25, splitLongWords=0
    )
    cellb = ParagraphStyle("cellb", parent=cell, fontName=bold)
    under = ParagraphStyle("under", parent=body, fontName=italic, spaceAfter=10, alignment=TA_LEFT)
    heads = {
        1: ParagraphStyle("t", fontName=bold, fontSize=size + 8, leading=size + 12, spaceAfter=6),
        2: ParagraphStyle(
            "h1", fontName=bold, fontSize=size + 3.5, leading=size + 7, spaceBefore=10, spaceAfter=4
        ),
        3: ParagraphStyle(
            "h2", fontName=bold, fontSize=size + 1.5, leading=size + 5, spaceBefore=7, spaceAfter=3
        ),
    }
    for h in heads.values():
        h.keepWithNext = 1

    def markup(runs: list[Run]) -> str:
        names = {"b": bold, "i": italic}
        return "".join(f'<font name="{names[s]}">{escape(t)}</font>' if s else escape(t) for t, s in runs)

    class Template(BaseDocTemplate):
        outline_level = -1

        def afterFlowable(self, flowable):
            level = getattr(flowable, "outline", None)
            if level is None or m.get("bookmarks") == "no":
                return
            level = min(level, self.outline_level + 1)
            self.outline_level = level
            self.canv.bookmarkPage(f"h{flowable.key}")
            self.canv.addOutlineEntry(flowable.label, f"h{flowable.key}", level, closed=False)

    def furniture(canvas, template):
        w, h = A4
        canvas.saveState()
        canvas.setFont(regular, 8)
        canvas.setFillColor(colors.HexColor("#444444"))
        canvas.drawString(22 * mm, h - 14 * mm, f"{SERIES[m['lang']]}  {m['title']}")
        canvas.drawRightString(w - 22 * mm, 11 * mm, PAGE[m["lang"]].format(template.page, total))
        canvas.restoreState()

    width = A4[0] - 44 * mm
    frame = Frame(22 * mm, 18 * mm, width, A4[1] - 38 * mm, 0, 0, 0, 0, id="body")

    def make_table(rows: list[list[str]]) -> Table:
        def room(text: str) -> float:
            return pdfmetrics.stringWidth(re.sub(r"<[^>]+>", "", text), bold, size - 1) + 12

        widths = [max(room(r[col]) for r in rows) for col in range(len(rows[0]))]
        if sum(widths) > width:
            raise ValueError(f"{lesson.file}: table too wide")
        data = [[Paragraph(c, cell if i else cellb) for c in r] for i, r in enumerate(rows)]
        made = Table(data, colWidths=widths, repeatRows=1, hAlign="LEFT", splitInRow=0)
        made.setStyle(
            TableStyle(
                [
                    ("GRID", (0, 0), (-1, -1), 0.5, colors.HexColor("#777777")),
                    ("VALIGN", (0, 0), (-1, -1), "TOP"),
                    ("TOPPADDING", (0, 0), (-1, -1), 2.5),
                    ("BOTTOMPADDING", (0, 0), (-1, -1), 3.5),
                    ("LEFTPADDING", (0, 0), (-1, -1), 4),
                    ("RIGHTPADDING", (0, 0), (-1, -1), 4),
                    ("BACKGROUND", (0, 0), (-1, 0), colors.HexColor("#e4e8ec")),
                ]
            )
        )
        return made

    story: list = []
    for n, b in enumerate(lesson.blocks):
        if b.kind == "heading":
            p = Paragraph(markup(b.runs), heads[b.level])
            if b.level > 1:
                p.outline, p.key, p.label = b.level - 2, n, plain(b.runs)
                story.append(CondPageBreak(32 * mm))
            story.append(p)
            if b.level == 1:
                story.append(Paragraph(escape(byline(lesson)), under))
        elif b.kind == "table":
            story += [make_table([[markup(c) for c in r] for r in b.rows]), Spacer(1, 9)]
        else:
            mark = None if b.kind == "para" else f"{b.number}." if b.ordered else "\u2022"
            p = Paragraph(markup(b.runs), item if mark else body, bulletText=mark)
            if not mark and n + 1 < len(lesson.blocks) and lesson.blocks[n + 1].kind == "item":
                p.keepWithNext = 1
            p.split = (
                lambda width, height: []
            )  # goes whole to the next page: no paragraph is cut by a page break
            story.append(p)
    buffer = io.BytesIO()
    template = Template(
        buffer,
        pagesize=A4,
        title=m["title"],
        author=m["author"],
        subject=m["subject"],
        creator=SERIES[m["lang"]],
        lang=LOCALE[m["lang"]],
        invariant=1,
        pageCompression=0,  # bytes do not depend on the zlib in use
    )
    template.addPageTemplates([PageTemplate(id="page", frames=[frame], onPage=furniture)])
    template.build(story)
    return buffer.getvalue(), template.page


# ---------------------------------------------------------------- docx


def docx_bytes(lesson: Lesson) -> bytes:
    import docx
    from docx.oxml import OxmlElement
    from docx.oxml.ns import qn
    from docx.shared import Mm, Pt

    m = lesson.meta
    d = docx.Document()
    section = d.sections[0]
    section.page_width, section.page_height = Mm(210), Mm(297)
    section.left_margin = section.right_margin = Mm(22)
    d.styles["Normal"].font.name = "Calibri"
    d.styles["Normal"].font.size = Pt(11)
    section.header.paragraphs[0].text = f"{SERIES[m['lang']]}\t\t{m['title']}"

    def add_runs(p, runs: list[Run], all_bold: bool = False):
        for text, style in runs:
            r = p.add_run(text)
            r.bold = True if all_bold or style == "b" else None
            r.italic = True if style == "i" else None
        return p

    numbering = d.part.numbering_part.numbering_definitions._numbering
    style_num = d.styles["List Number"].element.pPr.numPr.numId.val
    abstract = next(n.abstractNumId.val for n in numbering.num_lst if n.numId == style_num)
    nums: dict[int, int] = {}

    def number_of(list_id: int) -> int:
        if list_id not in nums:
            num = numbering.add_num(abstract)
            num.add_lvlOverride(ilvl=0).add_startOverride(1)
            nums[list_id] = num.numId
        return nums[list_id]

    for b in lesson.blocks:
        if b.kind == "heading" and b.level == 1:
            add_runs(d.add_paragraph(style="Title"), b.runs)
            d.add_paragraph(byline(lesson), style="Subtitle")
        elif b.kind == "heading":
            add_runs(d.add_paragraph(style=f"Heading {b.level - 1}"), b.runs)
        elif b.kind == "para":
            add_runs(d.add_paragraph(), b.runs)
        elif b.kind == "item" and b.ordered:
            p = add_runs(d.add_paragraph(style="List Number"), b.runs)
            pr = p._p.get_or_add_pPr().get_or_add_numPr()
            pr.get_or_add_ilvl().val = 0
            pr.get_or_add_numId().val = number_of(b.list_id)
        elif b.kind == "item":
            add_runs(d.add_paragraph(style="List Bullet"), b.runs)
        elif b.kind == "table":
            t = d.add_table(rows=len(b.rows), cols=len(b.rows[0]), style="Table Grid")
            for i, row in enumerate(b.rows):
                for j, runs in enumerate(row):
                    add_runs(t.cell(i, j).paragraphs[0], runs, all_bold=i == 0)
            h = OxmlElement("w:tblHeader")
            h.set(qn("w:val"), "true")
            t.rows[0]._tr.get_or_add_trPr().append(h)
            d.add_paragraph()

    p = d.core_properties
    p.title, p.author, p.last_modified_by, p.subject = m["title"], m["author"], m["author"], m["subject"]
    p.comments, p.keywords, p.category, p.language = "", m["level"], SERIES[m["lang"]], LOCALE[m["lang"]]
    p.created = p.modified = p.last_printed = dt.datetime.fromisoformat(m["date"] + "T08:00:00")
    p.revision = 1
    raw, out = io.BytesIO(), io.BytesIO()
    d.save(raw)
    with zipfile.ZipFile(raw) as src, zipfile.ZipFile(out, "w") as dst:
        for name in src.namelist():
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            info.create_system = 3
            dst.writestr(info, src.read(name), compresslevel=9)
    return out.getvalue()


# ---------------------------------------------------------------- main

BUILDERS = {"pdf": pdf_bytes, "docx": docx_bytes, "md": markdown_bytes, "txt": text_bytes}


def same(a: bytes, b: bytes) -> bool:
    """Equal bytes or, for two zip files, equal members with equal dates."""
    if a == b or not (a.startswith(b"PK") and b.startswith(b"PK")):
        return a == b
    with zipfile.ZipFile(io.BytesIO(a)) as x, zipfile.ZipFile(io.BytesIO(b)) as y:
        return [(i.filename, i.date_time, x.read(i)) for i in x.infolist()] == [
            (i.filename, i.date_time, y.read(i)) for i in y.infolist()
        ]


def versions_note() -> str:
    other = {k: version(k) for k, v in BUILT_WITH.items() if version(k) != v}
    made = ", ".join(f"{k} {v}" for k, v in BUILT_WITH.items())
    return f"files/ was made with {made}; here: {other}" if other else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with files/ and write nothing")
    args = parser.parse_args()
    files = HERE / "files"
    files.mkdir(exist_ok=True)
    lessons = load_all()
    wanted = {x.file for x in lessons}
    bad = [f"{p.name}: no source" for p in sorted(files.iterdir()) if p.name not in wanted]
    for lesson in lessons:
        data = BUILDERS[lesson.meta["format"]](lesson)
        path = files / lesson.file
        if not args.check:
            path.write_bytes(data)
        elif not path.exists():
            bad.append(f"{lesson.file}: missing")
        elif not same(path.read_bytes(), data):
            bad.append(f"{lesson.file}: differs from what sources/ gives")
    for line in bad:
        print(line, file=sys.stderr)
    if bad and versions_note():
        print(versions_note(), file=sys.stderr)
    if not bad:
        print(f"{len(lessons)} lessons {'match' if args.check else 'built'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
