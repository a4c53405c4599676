"""What the build scripts of the data sets share: sources are read into blocks, blocks are written as PDF and
DOCX, and files are written or compared.

Each `datasets/*/build.py` has what is its own: front matter, page furniture and formats. Two runs with the
same library versions give the same bytes. A comparison looks at the parts of a DOCX after unpacking, as
another zlib may pack the same parts into other bytes.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol
from xml.sax.saxutils import escape

from markdown_it import MarkdownIt

Run = tuple[str, str]  # text, style: "", "b", "i", "code"

# ---------------------------------------------------------------- reading


@dataclass
class Block:
    kind: str  # heading para quote item table code, or the word of a comment such as pagebreak
    runs: list[Run] = field(default_factory=list)
    level: int = 0
    ordered: bool = False
    number: int = 0
    list_id: int = 0
    rows: list[list[list[Run]]] = field(default_factory=list)
    text: str = ""


def plain(runs: list[Run]) -> str:
    """The text of some runs, without soft hyphens and with single spaces."""
    return re.sub(r"\s+", " ", "".join(text for text, _ in runs).replace("\u00ad", "")).strip()


def front_matter(path: Path) -> tuple[dict[str, str], str]:
    """The front matter of a source by key, and its body."""
    text = path.read_text(encoding="utf-8")
    if not text.startswith("---\n"):
        raise ValueError(f"{path.name}: no front matter")
    head, body = text[4:].split("\n---\n", 1)
    pairs = (line.partition(":") for line in head.splitlines())
    return {key.strip(): value.strip().strip('"') for key, _, value in pairs}, body


STYLES = {"strong_open": "b", "em_open": "i", "strong_close": "", "em_close": ""}


def inline_runs(token) -> list[Run]:
    """The runs of a Markdown token."""
    runs: list[Run] = []
    style = ""
    for child in token.children or []:
        if child.type in STYLES:
            style = STYLES[child.type]
        elif child.type in ("softbreak", "hardbreak"):
            runs.append((" ", style))
        elif child.type in ("text", "code_inline"):
            runs.append((child.content, "code" if child.type == "code_inline" else style))
        else:
            raise ValueError(f"{child.type} is not foreseen in a source")
    return [run for run in runs if run[0]]


def blocks_of(body: str, comments: Collection[str] = ()) -> list[Block]:
    """The blocks of a Markdown body; a comment is one of `comments`, and a block of that kind."""
    blocks: list[Block] = []
    lists: list[dict] = []  # those that are open: ordered, number of the current item, id
    n_lists = 0
    is_quote = False
    table: list[list[list[Run]]] | None = None
    tokens = MarkdownIt("commonmark").enable("table").parse(body)
    for i, token in enumerate(tokens):
        if token.type in ("bullet_list_open", "ordered_list_open"):
            n_lists += 1
            first = int(token.attrGet("start") or 1)
            lists.append({"ordered": token.type[0] == "o", "number": first - 1, "id": n_lists})
        elif token.type in ("bullet_list_close", "ordered_list_close"):
            lists.pop()
        elif token.type == "list_item_open":
            lists[-1]["number"] += 1
        elif token.type in ("blockquote_open", "blockquote_close"):
            is_quote = token.type == "blockquote_open"
        elif token.type == "table_open":
            table = []
        elif token.type == "table_close":
            blocks.append(Block("table", rows=table or []))
            table = None
        elif token.type == "tr_open" and table is not None:
            table.append([])
        elif token.type == "fence":
            blocks.append(Block("code", text=token.content.rstrip("\n")))
        elif token.type == "html_block":
            word = token.content.strip().removeprefix("<!--").removesuffix("-->").strip()
            if word not in comments:
                raise ValueError(f"unknown comment {token.content!r}")
            blocks.append(Block(word))
        elif token.type == "inline":
            runs = inline_runs(token)
            if table is not None:
                table[-1].append(runs)
            elif tokens[i - 1].type == "heading_open":
                blocks.append(Block("heading", runs, level=int(tokens[i - 1].tag[1])))
            elif lists:
                top = lists[-1]
                blocks.append(Block("item", runs, len(lists), top["ordered"], top["number"], top["id"]))
            else:
                blocks.append(Block("quote" if is_quote else "para", runs))
    return blocks


def markdown_bytes(head: Iterable[str], body: str) -> bytes:
    """A Markdown file with lines of front matter."""
    return ("---\n" + "\n".join(head) + "\n---\n" + body.rstrip("\n") + "\n").encode("utf-8")


# ---------------------------------------------------------------- pdf

FONTS = {
    "helvetica": ("Helvetica", "Helvetica-Bold", "Helvetica-Oblique"),
    "times": ("Times-Roman", "Times-Bold", "Times-Italic"),
    "vera": ("Vera", "VeraBd", "VeraIt"),
}


@dataclass
class PdfLook:
    """Fonts and paragraph styles of a PDF, from the keys `font`, `size` and `justify` of front matter."""

    meta: Mapping[str, str]
    cell_step: float  # how much smaller than the text cells are
    title_space: float  # below the title

    def __post_init__(self):
        from reportlab import rl_config
        from reportlab.lib.enums import TA_JUSTIFY, TA_LEFT
        from reportlab.lib.styles import ParagraphStyle
        from reportlab.lib.units import mm
        from reportlab.pdfbase import pdfmetrics
        from reportlab.pdfbase.ttfonts import TTFont

        rl_config.invariant = 1
        family = self.meta.get("font", "helvetica")
        if family == "vera":  # the TrueType family that comes with reportlab; embedded as a subset
            for name in FONTS["vera"]:
                pdfmetrics.registerFont(TTFont(name, f"{name}.ttf"))
        self.regular, self.bold, self.italic = FONTS[family]
        size = float(self.meta.get("size", "9.5" if family == "vera" else "10.5"))
        self.cell_size = size - self.cell_step
        self.body = ParagraphStyle(
            "body",
            fontName=self.regular,
            fontSize=size,
            leading=size * 1.38,
            splitLongWords=0,
            spaceAfter=6,
            alignment=TA_JUSTIFY if self.meta.get("justify") == "yes" else TA_LEFT,
            allowWidows=0,
            allowOrphans=0,
        )
        self.left = ParagraphStyle("left", parent=self.body, alignment=TA_LEFT)
        indents = {"leftIndent": 8 * mm, "bulletIndent": 2.5 * mm}
        self.item = ParagraphStyle("item", parent=self.body, **indents, spaceAfter=3)
        cell = {"fontSize": self.cell_size, "leading": self.cell_size * 1.25, "splitLongWords": 0}
        self.cell = ParagraphStyle("cell", fontName=self.regular, **cell)
        self.bold_cell = ParagraphStyle("bold cell", fontName=self.bold, **cell)
        # level: font, points more than the text has, leading more, space before, space after
        heads = {
            1: (self.bold, 8, 12, 0, self.title_space),
            2: (self.bold, 3.5, 7, 10, 4),
            3: (self.bold, 1.5, 5, 7, 3),
            4: (self.italic, 0.7, 4, 5, 3),
        }
        self.heads = {}
        for level, (font, more, leading, before, after) in heads.items():
            spaces = {"leading": size + leading, "spaceBefore": before, "spaceAfter": after}
            head = ParagraphStyle(f"h{level}", fontName=font, fontSize=size + more, **spaces)
            head.keepWithNext = 1
            self.heads[level] = head

    def markup(self, runs: list[Run]) -> str:
        """Runs in reportlab's markup."""
        fonts = {"b": self.bold, "i": self.italic, "code": "Courier"}
        return "".join(
            f'<font name="{fonts[style]}">{escape(text)}</font>' if style else escape(text)
            for text, style in runs
        )

    def text_width(self, text: str) -> float:
        """The width of a text in the bold font of cells."""
        from reportlab.pdfbase import pdfmetrics

        return pdfmetrics.stringWidth(re.sub(r"<[^>]+>", "", text), self.bold, self.cell_size)

    def table(self, rows: list[list[str]], widths: list[float], header: bool = True) -> Any:
        """A grid; with a header the first row is bold, without one the first column."""
        from reportlab.lib import colors
        from reportlab.platypus import Paragraph, Table, TableStyle

        def cell(i: int, j: int) -> Paragraph:
            is_bold = i == 0 if header else j == 0
            return Paragraph(rows[i][j], self.bold_cell if is_bold else self.cell)

        cells = [[cell(i, j) for j in range(len(row))] for i, row in enumerate(rows)]
        table = Table(cells, colWidths=widths, repeatRows=int(header), hAlign="LEFT", splitInRow=0)
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
        table.setStyle(TableStyle(style))
        return table

    def heading(self, block: Block, key: int) -> Any:
        """A heading, which from the second level on is an entry of the outline."""
        from reportlab.platypus import Paragraph

        paragraph = Paragraph(self.markup(block.runs), self.heads[block.level])
        if block.level > 1:
            paragraph.outline, paragraph.key, paragraph.label = block.level - 2, key, plain(block.runs)
        return paragraph


def whole(paragraph: Any) -> Any:
    """The paragraph, which goes whole to the next page: none is cut by a page break."""
    paragraph.split = lambda width, height: []
    return paragraph


def pdf_file(
    story: list,
    furniture: Callable,  # draws on the canvas of a page
    margin: float,  # left and right, in points
    bookmarks: bool,
    **properties: str,  # title, author, subject, creator, lang
) -> tuple[bytes, int]:
    """The bytes of a PDF and how many pages it has."""
    from reportlab.lib.pagesizes import A4
    from reportlab.lib.units import mm
    from reportlab.platypus import BaseDocTemplate, Frame, PageTemplate

    class Template(BaseDocTemplate):
        outline_level = -1

        def afterFlowable(self, flowable):
            level = getattr(flowable, "outline", None)
            if level is None or not bookmarks:
                return
            self.outline_level = min(level, self.outline_level + 1)
            key = f"h{flowable.key}"
            self.canv.bookmarkPage(key)
            self.canv.addOutlineEntry(flowable.label, key, self.outline_level, closed=False)

    buffer = io.BytesIO()
    # pages are not compressed: bytes do not depend on the zlib in use
    template = Template(buffer, pagesize=A4, invariant=1, pageCompression=0, **properties)
    frame = Frame(margin, 18 * mm, A4[0] - 2 * margin, A4[1] - 38 * mm, 0, 0, 0, 0, id="body")
    template.addPageTemplates([PageTemplate(id="page", frames=[frame], onPage=furniture)])
    template.build(story)
    return buffer.getvalue(), template.page


# ---------------------------------------------------------------- docx


class Docx:
    """A DOCX that is being written: A4, one font, lists that begin at 1."""

    def __init__(self, margin: int, font: str, size: float, header: str):
        import docx
        from docx.shared import Mm, Pt

        self.document = docx.Document()
        section = self.document.sections[0]
        section.page_width, section.page_height = Mm(210), Mm(297)
        section.left_margin = section.right_margin = Mm(margin)
        normal = self.document.styles["Normal"].font
        normal.name, normal.size = font, Pt(size)
        section.header.paragraphs[0].text = header
        self._numbering = self.document.part.numbering_part.numbering_definitions._numbering
        style_number = self.document.styles["List Number"].element.pPr.numPr.numId.val
        numbers = (n for n in self._numbering.num_lst if n.numId == style_number)
        self._abstract = next(numbers).abstractNumId.val
        self._numbers: dict[int, int] = {}  # by id of a list

    def add(self, runs: list[Run], style: str | None = None) -> Any:
        """A paragraph of runs."""
        return self.add_runs(self.document.add_paragraph(style=style), runs)

    def add_runs(self, paragraph: Any, runs: list[Run], bold: bool = False) -> Any:
        for text, style in runs:
            run = paragraph.add_run(text)
            run.bold = True if bold or style == "b" else None
            run.italic = True if style == "i" else None
            if style == "code":
                run.font.name = "Consolas"
        return paragraph

    def add_block(self, block: Block) -> None:
        """A heading below the title, a paragraph or an item of a list."""
        if block.kind == "heading":
            self.add(block.runs, f"Heading {block.level - 1}")
        elif block.kind == "para":
            self.add(block.runs)
        elif block.kind == "item" and block.ordered:
            properties = self.add(block.runs, "List Number")._p.get_or_add_pPr().get_or_add_numPr()
            properties.get_or_add_ilvl().val = 0
            properties.get_or_add_numId().val = self._number_of(block.list_id)
        elif block.kind == "item":
            self.add(block.runs, "List Bullet")
        else:
            raise ValueError(f"{block.kind} is not foreseen in a DOCX")

    def _number_of(self, list_id: int) -> int:
        if list_id not in self._numbers:
            number = self._numbering.add_num(self._abstract)
            number.add_lvlOverride(ilvl=0).add_startOverride(1)
            self._numbers[list_id] = number.numId
        return self._numbers[list_id]

    def add_table(self, rows: list[list[list[Run]]]) -> Any:
        """A grid with an empty paragraph below; its cells are empty yet."""
        table = self.document.add_table(rows=len(rows), cols=len(rows[0]), style="Table Grid")
        self.document.add_paragraph()
        return table

    def repeat_header(self, table: Any) -> None:
        """The first row stands again on each page."""
        from docx.oxml import OxmlElement
        from docx.oxml.ns import qn

        header = OxmlElement("w:tblHeader")
        header.set(qn("w:val"), "true")
        table.rows[0]._tr.get_or_add_trPr().append(header)

    def saved(self, **properties: Any) -> bytes:
        """The bytes, with core properties, each part with one date."""
        for name, value in properties.items():
            setattr(self.document.core_properties, name, value)
        raw, packed = io.BytesIO(), io.BytesIO()
        self.document.save(raw)
        with zipfile.ZipFile(raw) as parts, zipfile.ZipFile(packed, "w") as file:
            for name in parts.namelist():
                info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
                info.compress_type = zipfile.ZIP_DEFLATED
                info.external_attr = 0o644 << 16
                info.create_system = 3
                file.writestr(info, parts.read(name), compresslevel=9)
        return packed.getvalue()


# ---------------------------------------------------------------- writing and comparing


class Built(Protocol):
    """A document that is built: its front matter with a format, and its file below `files/`."""

    meta: dict[str, str]

    @property
    def file(self) -> str: ...


def same(a: bytes, b: bytes) -> bool:
    """Equal bytes or, for two zip files, equal members with equal dates."""
    if a == b or not (a.startswith(b"PK") and b.startswith(b"PK")):
        return a == b
    with zipfile.ZipFile(io.BytesIO(a)) as x, zipfile.ZipFile(io.BytesIO(b)) as y:
        parts = [[(i.filename, i.date_time, file.read(i)) for i in file.infolist()] for file in (x, y)]
    return parts[0] == parts[1]


def is_check(description: str, path: str) -> bool:
    """Whether the command line says `--check`."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--check", action="store_true", help=f"compare with {path} and write nothing")
    return parser.parse_args().check


def status(faults: Sequence[str], summary: str, made_with: Mapping[str, str] | None = None) -> int:
    """Print faults or the summary; returns the exit status."""
    made_with = made_with or {}
    others = {name: version(name) for name, known in made_with.items() if version(name) != known}
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults and others:
        versions = ", ".join(f"{name} {known}" for name, known in made_with.items())
        print(f"files/ was made with {versions}; here: {others}", file=sys.stderr)
    if not faults:
        print(summary)
    return 1 if faults else 0


def build(
    description: str,
    folder: Path,  # of the data set
    documents: Sequence[Built],
    builders: Mapping[str, Callable[[Any], bytes]],  # by format
    made_with: Mapping[str, str],  # versions of libraries that made files/
    others: Collection[str] = (),  # files without a source
) -> int:
    """Write or compare all documents; returns the exit status."""
    compare = is_check(description, "files/")
    files = folder / "files"
    expected = {document.file for document in documents} | set(others)
    present = {path.relative_to(files).as_posix() for path in files.rglob("*") if path.is_file()}
    faults = [f"{name}: no source" for name in sorted(present - expected)]
    faults += [f"{name}: missing" for name in others if name not in present]
    for document in documents:
        content = builders[document.meta["format"]](document)
        path = files / document.file
        if not compare:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        elif not path.exists():
            faults.append(f"{document.file}: missing")
        elif not same(path.read_bytes(), content):
            faults.append(f"{document.file}: differs from what sources/ gives")
    return status(faults, f"{len(documents)} documents {'match' if compare else 'built'}", made_with)
