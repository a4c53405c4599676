"""Build the documents in files/ from the Markdown in sources/.

    python datasets/procedures/build.py            write files/
    python datasets/procedures/build.py --check    build in memory, compare with files/, exit 1 on a
    difference

PDF is made with reportlab, DOCX with python-docx, Markdown is written out.
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
SITE = "Harrow Point Terminal"
UNCONTROLLED = "Uncontrolled when printed"
EXTENSION = {"scan": "pdf"}  # a scanned page is a PDF without a text layer
BUILT_WITH = {"reportlab": "5.1.0", "python-docx": "1.2.0", "pymupdf": "2.0"}  # what files/ was made with
Run = tuple[str, str]  # text, style: "", "b", "i", "code"


@dataclass
class Block:
    kind: str  # heading para quote item table code pagebreak columns endcolumns
    runs: list[Run] = field(default_factory=list)
    level: int = 0
    ordered: bool = False
    number: int = 0
    list_id: int = 0
    rows: list[list[list[Run]]] = field(default_factory=list)
    text: str = ""


@dataclass
class Document:
    meta: dict[str, str]
    blocks: list[Block]
    body: str

    @property
    def file(self) -> str:
        return self.meta["file"]


def plain(runs: list[Run]) -> str:
    """The text of some runs, without soft hyphens and with single spaces."""
    return re.sub(r"\s+", " ", "".join(t for t, _ in runs).replace("\u00ad", "")).strip()


# ---------------------------------------------------------------- reading


def _runs(token) -> list[Run]:
    out: list[Run] = []
    style = ""
    for child in token.children or []:
        if child.type in ("strong_open", "em_open"):
            style = "b" if child.type == "strong_open" else "i"
        elif child.type in ("strong_close", "em_close"):
            style = ""
        elif child.type == "code_inline":
            out.append((child.content, "code"))
        elif child.type in ("softbreak", "hardbreak"):
            out.append((" ", style))
        else:
            out.append((child.content, style))
    return [r for r in out if r[0]]


def parse(text: str) -> Document:
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
    in_quote = False
    table: list[list[list[Run]]] | None = None
    tokens = MarkdownIt("commonmark").enable("table").parse(body)
    for i, tok in enumerate(tokens):
        if tok.type in ("bullet_list_open", "ordered_list_open"):
            made += 1
            start = int(tok.attrGet("start") or 1)
            lists.append({"ordered": tok.type[0] == "o", "n": start - 1, "id": made})
        elif tok.type in ("bullet_list_close", "ordered_list_close"):
            lists.pop()
        elif tok.type == "list_item_open":
            lists[-1]["n"] += 1
        elif tok.type == "blockquote_open":
            in_quote = True
        elif tok.type == "blockquote_close":
            in_quote = False
        elif tok.type == "table_open":
            table = []
        elif tok.type == "table_close":
            blocks.append(Block("table", rows=table))
            table = None
        elif tok.type == "tr_open":
            table.append([])
        elif tok.type == "fence":
            blocks.append(Block("code", text=tok.content.rstrip("\n")))
        elif tok.type == "html_block":
            name = tok.content.strip().removeprefix("<!--").removesuffix("-->").strip()
            if name not in ("pagebreak", "columns", "endcolumns"):
                raise ValueError(f"unknown comment {tok.content!r}")
            blocks.append(Block(name))
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
                blocks.append(Block("quote" if in_quote else "para", runs))
    return Document(meta, blocks, body)


def load_all() -> list[Document]:
    docs = [parse(p.read_text(encoding="utf-8")) for p in sorted((HERE / "sources").glob("*.md"))]
    for path, doc in zip(sorted((HERE / "sources").glob("*.md")), docs, strict=True):
        doc.meta["file"] = f"{path.stem}.{EXTENSION.get(doc.meta['format'], doc.meta['format'])}"
    return docs


def control_rows(doc: Document) -> list[tuple[str, str]]:
    m = doc.meta
    rows = [
        ("Document", f"{m['doc']} Rev {m['rev']}"),
        ("Status", m["status"]),
        ("Effective date", m["effective"]),
        ("Owner", m["owner"]),
        ("Equipment", m["equipment"]),
    ]
    if m.get("supersedes"):
        rows.append(("Supersedes", m["supersedes"]))
    if m.get("superseded_by"):
        rows.append(("Superseded by", m["superseded_by"]))
    return rows


def canonical_lines(doc: Document) -> list[str]:
    """What a careful loader should read from the built file, one line a paragraph."""
    if doc.meta["format"] == "md":
        return [line for line in markdown_bytes(doc).decode("utf-8").split("\n") if line.strip()]
    out = []
    for b in doc.blocks:
        if b.kind in ("heading", "para", "quote"):
            out.append(plain(b.runs))
            if b.kind == "heading" and b.level == 1:
                out += [f"{k} | {v}" for k, v in control_rows(doc)]
        elif b.kind == "item":
            out.append((f"{b.number}. " if b.ordered else "\u2022 ") + plain(b.runs))
        elif b.kind == "table":
            out += [" | ".join(plain(c) for c in row) for row in b.rows]
        elif b.kind == "code":
            out += b.text.splitlines()
    return out


# ---------------------------------------------------------------- markdown


def markdown_bytes(doc: Document) -> bytes:
    keep = [f'{k}: "{v}"' for k, v in doc.meta.items() if k not in ("format", "file")]
    body = re.sub(r"<!--.*?-->\n*", "", doc.body)
    return ("---\n" + "\n".join(keep) + "\n---\n" + body.rstrip("\n") + "\n").encode("utf-8")


# ---------------------------------------------------------------- pdf

FONTS = {
    "helvetica": ("Helvetica", "Helvetica-Bold", "Helvetica-Oblique"),
    "times": ("Times-Roman", "Times-Bold", "Times-Italic"),
    "vera": ("Vera", "VeraBd", "VeraIt"),
}


def pdf_bytes(doc: Document) -> bytes:
    total = _pdf_pass(doc, 0)[1]
    return _pdf_pass(doc, total)[0]


def _pdf_pass(doc: Document, total: int) -> tuple[bytes, int]:
    from reportlab import rl_config
    from reportlab.lib import colors
    from reportlab.lib.enums import TA_JUSTIFY, TA_LEFT
    from reportlab.lib.pagesizes import A4
    from reportlab.lib.styles import ParagraphStyle
    from reportlab.lib.units import mm
    from reportlab.pdfbase import pdfmetrics
    from reportlab.pdfbase.ttfonts import TTFont
    from reportlab.platypus import (
        BalancedColumns,
        BaseDocTemplate,
        CondPageBreak,
        Frame,
        PageBreak,
        PageTemplate,
        Paragraph,
        Preformatted,
        Spacer,
        Table,
        TableStyle,
    )

    rl_config.invariant = 1
    m = doc.meta
    family = m.get("font", "helvetica")
    if family == "vera":  # the TrueType family that comes with reportlab; embedded as a subset
        for name in FONTS["vera"]:
            pdfmetrics.registerFont(TTFont(name, f"{name}.ttf"))
    regular, bold, italic = FONTS[family]
    size = float(m.get("size", "9.5" if family == "vera" else "10.5"))
    lead = size * 1.38
    align = TA_JUSTIFY if m.get("justify") == "yes" else TA_LEFT
    grey = colors.HexColor("#444444")
    common = dict(fontName=regular, fontSize=size, leading=lead, splitLongWords=0)
    body = ParagraphStyle("body", **common, spaceAfter=6, alignment=align, allowWidows=0, allowOrphans=0)
    narrow = ParagraphStyle("narrow", parent=body, alignment=TA_LEFT)
    quote = ParagraphStyle("quote", parent=body, leftIndent=8 * mm, rightIndent=8 * mm, spaceBefore=3)
    item = ParagraphStyle("item", parent=body, leftIndent=8 * mm, bulletIndent=2.5 * mm, spaceAfter=3)
    cell = ParagraphStyle(
        "cell", fontName=regular, fontSize=size - 1.2, leading=(size - 1.2) * 1.25, splitLongWords=0
    )
    cellb = ParagraphStyle("cellb", parent=cell, fontName=bold)
    heads = {
        1: ParagraphStyle("t", fontName=bold, fontSize=size + 8, leading=size + 12, spaceAfter=8),
        2: ParagraphStyle(
            "h1", fontName=bold, fontSize=size + 3.5, leading=size + 7, spaceBefore=10, spaceAfter=4
        ),
        3: ParagraphStyle(
            "h2", fontName=bold, fontSize=size + 1.5, leading=size + 5, spaceBefore=7, spaceAfter=3
        ),
        4: ParagraphStyle(
            "h3", fontName=italic, fontSize=size + 0.7, leading=size + 4, spaceBefore=5, spaceAfter=3
        ),
    }
    for h in heads.values():
        h.keepWithNext = 1

    def markup(runs: list[Run]) -> str:
        out = ""
        for text, style in runs:
            text = escape(text)
            out += {
                "b": f'<font name="{bold}">{text}</font>',
                "i": f'<font name="{italic}">{text}</font>',
                "code": f'<font name="Courier">{text}</font>',
            }.get(style, text)
        return out

    class Template(BaseDocTemplate):
        outline_level = -1

        def afterFlowable(self, flowable):
            level = getattr(flowable, "outline", None)
            if level is None or m.get("bookmarks") == "no":
                return
            level = min(level, self.outline_level + 1)
            self.outline_level = level
            key = f"h{flowable.key}"
            self.canv.bookmarkPage(key)
            self.canv.addOutlineEntry(flowable.label, key, level, closed=False)

    def furniture(canvas, template):
        w, h = A4
        canvas.saveState()
        canvas.setFont(regular, 8)
        canvas.setFillColor(grey)
        canvas.drawString(20 * mm, h - 14 * mm, f"{m['doc']} Rev {m['rev']}  {m['title']}")
        canvas.drawRightString(w - 20 * mm, h - 14 * mm, SITE)
        canvas.drawString(20 * mm, 11 * mm, UNCONTROLLED)
        canvas.drawRightString(w - 20 * mm, 11 * mm, f"Page {template.page} of {total}")
        canvas.setStrokeColor(colors.HexColor("#999999"))
        canvas.setLineWidth(0.4)
        canvas.line(20 * mm, h - 16 * mm, w - 20 * mm, h - 16 * mm)
        canvas.line(20 * mm, 15 * mm, w - 20 * mm, 15 * mm)
        canvas.restoreState()

    frame = Frame(20 * mm, 18 * mm, A4[0] - 40 * mm, A4[1] - 38 * mm, 0, 0, 0, 0, id="body")
    width = A4[0] - 40 * mm

    def make_table(rows: list[list[str]], header: bool, widths: list[float] | None = None) -> Table:
        if widths is None:
            need = []
            for col in range(len(rows[0])):
                texts = [re.sub(r"<[^>]+>", "", r[col]) for r in rows]
                longest = max(
                    pdfmetrics.stringWidth(w, bold, size - 1.2) for t in texts for w in (t.split() or [""])
                )
                mean = max(pdfmetrics.stringWidth(t, bold, size - 1.2) for t in texts)
                need.append((longest + 12, mean + 12))
            least, want = [n[0] for n in need], [n[1] for n in need]
            if sum(want) <= width:
                widths = [w * min(width / sum(want), 1.25) for w in want]
            else:
                spare = width - sum(least)
                if spare < 0:
                    raise ValueError(f"{doc.file}: table too wide")
                extra = [w - n for w, n in zip(want, least, strict=True)]
                widths = [n + spare * e / sum(extra) for n, e in zip(least, extra, strict=True)]
        data = [
            [
                Paragraph(c, cellb if header and i == 0 or not header and j == 0 else cell)
                for j, c in enumerate(r)
            ]
            for i, r in enumerate(rows)
        ]
        t = Table(data, colWidths=widths, repeatRows=1 if header else 0, hAlign="LEFT", splitInRow=0)
        style = [
            ("GRID", (0, 0), (-1, -1), 0.5, colors.HexColor("#777777")),
            ("VALIGN", (0, 0), (-1, -1), "TOP"),
            ("TOPPADDING", (0, 0), (-1, -1), 2.5),
            ("BOTTOMPADDING", (0, 0), (-1, -1), 3.5),
            ("LEFTPADDING", (0, 0), (-1, -1), 4),
            ("RIGHTPADDING", (0, 0), (-1, -1), 4),
        ]
        if header:
            style.append(("BACKGROUND", (0, 0), (-1, 0), colors.HexColor("#e4e8ec")))
        t.setStyle(TableStyle(style))
        return t

    story: list = []
    columns: list | None = None
    for n, b in enumerate(doc.blocks):
        target = story if columns is None else columns
        if b.kind == "heading":
            p = Paragraph(markup(b.runs), heads[b.level])
            if b.level > 1:
                p.outline, p.key, p.label = b.level - 2, n, plain(b.runs)
                if columns is None:
                    target.append(CondPageBreak(32 * mm))
            target.append(p)
            if b.level == 1:
                target.append(
                    make_table(
                        [[escape(k), escape(v)] for k, v in control_rows(doc)],
                        False,
                        [36 * mm, width - 36 * mm],
                    )
                )
                target.append(Spacer(1, 10))
        elif b.kind in ("para", "quote"):
            style = quote if b.kind == "quote" else body if columns is None else narrow
            p = Paragraph(markup(b.runs), style)
            if n + 1 < len(doc.blocks) and doc.blocks[n + 1].kind == "item":
                p.keepWithNext = 1
            p.split = _never_split(p)
            target.append(p)
        elif b.kind == "item":
            mark = f"{b.number}." if b.ordered else "\u2022"
            p = Paragraph(markup(b.runs), item, bulletText=mark)
            p.split = _never_split(p)
            target.append(p)
        elif b.kind == "table":
            target.append(make_table([[markup(c) for c in r] for r in b.rows], True))
            target.append(Spacer(1, 9))
        elif b.kind == "code":
            target.append(Preformatted(b.text, ParagraphStyle("code", fontName="Courier", fontSize=8.5)))
        elif b.kind == "pagebreak":
            target.append(PageBreak())
        elif b.kind == "columns":
            columns = []
        elif b.kind == "endcolumns":
            story.append(BalancedColumns(columns, nCols=2, needed=40 * mm, innerPadding=7 * mm))
            columns = None
    buffer = io.BytesIO()
    template = Template(
        buffer,
        pagesize=A4,
        title=f"{m['doc']} Rev {m['rev']} {m['title']}",
        author=m["owner"],
        subject=m["equipment"],
        creator=SITE,
        invariant=1,
        pageCompression=0,  # bytes do not depend on the zlib in use
    )
    template.addPageTemplates([PageTemplate(id="page", frames=[frame], onPage=furniture)])
    template.build(story)
    return buffer.getvalue(), template.page


def _never_split(paragraph):
    """A paragraph goes whole to the next page, so that no paragraph is cut by a page break."""

    def split(width, height):
        return []

    return split


# ---------------------------------------------------------------- docx


def docx_bytes(doc: Document) -> bytes:
    import docx
    from docx.enum.text import WD_BREAK
    from docx.oxml import OxmlElement
    from docx.oxml.ns import qn
    from docx.shared import Mm, Pt

    m = doc.meta
    d = docx.Document()
    section = d.sections[0]
    section.page_width, section.page_height = Mm(210), Mm(297)
    section.left_margin = section.right_margin = Mm(22)
    d.styles["Normal"].font.name = "Calibri"
    d.styles["Normal"].font.size = Pt(10.5)

    def add_runs(p, runs: list[Run]):
        for text, style in runs:
            r = p.add_run(text)
            r.bold = True if style == "b" else None
            r.italic = True if style == "i" else None
            if style == "code":
                r.font.name = "Consolas"
        return p

    def add_field(p, code: str):
        for kind, text in (("begin", None), (None, code), ("separate", None), ("text", "1"), ("end", None)):
            r = p.add_run()._r
            if kind == "text":
                t = OxmlElement("w:t")
                t.text = text
                r.append(t)
            elif kind is None:
                t = OxmlElement("w:instrText")
                t.set(qn("xml:space"), "preserve")
                t.text = text
                r.append(t)
            else:
                c = OxmlElement("w:fldChar")
                c.set(qn("w:fldCharType"), kind)
                r.append(c)

    section.header.paragraphs[0].text = f"{m['doc']} Rev {m['rev']}\t{m['title']}\t{SITE}"
    foot = section.footer.paragraphs[0]
    foot.add_run(f"{UNCONTROLLED}\t\tPage ")
    add_field(foot, "PAGE")
    foot.add_run(" of ")
    add_field(foot, "NUMPAGES")

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

    def add_table(rows: list[list[list[Run]]], header: bool):
        t = d.add_table(rows=len(rows), cols=len(rows[0]), style="Table Grid")
        for i, row in enumerate(rows):
            for j, runs in enumerate(row):
                p = t.cell(i, j).paragraphs[0]
                p.paragraph_format.space_after = Pt(2)
                add_runs(
                    p, [(x, "b") if header and i == 0 or not header and j == 0 else (x, s) for x, s in runs]
                )
        if header:
            pr = t.rows[0]._tr.get_or_add_trPr()
            h = OxmlElement("w:tblHeader")
            h.set(qn("w:val"), "true")
            pr.append(h)
        d.add_paragraph()

    for b in doc.blocks:
        if b.kind == "heading" and b.level == 1:
            add_runs(d.add_paragraph(style="Title"), b.runs)
            add_table([[[(k, "")], [(v, "")]] for k, v in control_rows(doc)], False)
        elif b.kind == "heading":
            add_runs(d.add_paragraph(style=f"Heading {b.level - 1}"), b.runs)
        elif b.kind == "para":
            add_runs(d.add_paragraph(), b.runs)
        elif b.kind == "quote":
            add_runs(d.add_paragraph(style="Intense Quote"), b.runs)
        elif b.kind == "item" and b.ordered:
            p = add_runs(d.add_paragraph(style="List Number"), b.runs)
            pr = p._p.get_or_add_pPr().get_or_add_numPr()
            pr.get_or_add_ilvl().val = 0
            pr.get_or_add_numId().val = number_of(b.list_id)
        elif b.kind == "item":
            add_runs(d.add_paragraph(style="List Bullet"), b.runs)
        elif b.kind == "table":
            add_table(b.rows, True)
        elif b.kind == "pagebreak":
            d.add_paragraph().add_run().add_break(WD_BREAK.PAGE)
        elif b.kind == "code":
            d.add_paragraph(b.text)

    when = dt.datetime.fromisoformat(m["effective"] + "T08:00:00")
    p = d.core_properties
    p.title, p.author, p.last_modified_by = f"{m['doc']} {m['title']}", m["owner"], m["owner"]
    p.subject, p.comments, p.keywords = m["equipment"], "", f"{m['doc']}, {SITE}"
    p.created = p.modified = when
    p.last_printed = when
    p.revision, p.version, p.category, p.language = 1, f"Rev {m['rev']}", "Procedure", "en-GB"
    raw = io.BytesIO()
    d.save(raw)
    out = io.BytesIO()
    with zipfile.ZipFile(raw) as src, zipfile.ZipFile(out, "w") as dst:
        for name in src.namelist():
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            info.create_system = 3
            dst.writestr(info, src.read(name), compresslevel=9)
    return out.getvalue()


# ---------------------------------------------------------------- main


def scan_bytes(doc: Document) -> bytes:
    """The printed page put through a scanner: grey, a little askew, 150 dots an inch, and no text layer."""
    import pymupdf

    printed, scanned = pymupdf.open(stream=pdf_bytes(doc), filetype="pdf"), pymupdf.open()
    for page in printed:
        grey = page.get_pixmap(
            matrix=pymupdf.Matrix(150 / 72, 150 / 72).prerotate(0.4), colorspace=pymupdf.csGRAY
        )
        new = scanned.new_page(width=page.rect.width, height=page.rect.height)
        new.insert_image(page.rect, stream=grey.tobytes("png"), keep_proportion=False)
    return scanned.tobytes(deflate=True, garbage=3, no_new_id=True)


BUILDERS = {"scan": scan_bytes, "pdf": pdf_bytes, "docx": docx_bytes, "md": markdown_bytes}


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
    docs = load_all()
    wanted = {d.file for d in docs}
    bad = [f"{p.name}: no source" for p in sorted(files.iterdir()) if p.name not in wanted]
    for doc in docs:
        data = BUILDERS[doc.meta["format"]](doc)
        path = files / doc.file
        if not args.check:
            path.write_bytes(data)
        elif not path.exists():
            bad.append(f"{doc.file}: missing")
        elif not same(path.read_bytes(), data):
            bad.append(f"{doc.file}: differs from what sources/ gives")
    for line in bad:
        print(line, file=sys.stderr)
    if bad and versions_note():
        print(versions_note(), file=sys.stderr)
    if not bad:
        print(f"{len(docs)} documents {'match' if args.check else 'built'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
