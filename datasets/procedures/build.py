"""Build the documents in files/ from the Markdown in sources/.

    python datasets/procedures/build.py            write files/
    python datasets/procedures/build.py --check    build in memory, compare with files/, exit 1 on a
    difference

PDF is made with reportlab, DOCX with python-docx, Markdown is written out.
Two runs with the same library versions give the same bytes. (--check compares the parts
of a DOCX after unpacking, as another zlib may pack the same parts into other bytes.)
"""

from __future__ import annotations

import datetime as dt
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tools" / "datasets"))
from build_files import (  # noqa: E402
    Block,
    Docx,
    PdfLook,
    Run,
    blocks_of,
    build,
    front_matter,
    markdown_bytes,
    pdf_file,
    whole,
)

SITE = "Harrow Point Terminal"
UNCONTROLLED = "Uncontrolled when printed"
COMMENTS = ("pagebreak", "columns", "endcolumns")
EXTENSION = {"scan": "pdf"}  # a scanned page is a PDF without a text layer
BUILT_WITH = {"reportlab": "5.1.0", "python-docx": "1.2.0", "pymupdf": "2.0"}  # what files/ was made with


@dataclass
class Document:
    path: Path
    meta: dict[str, str]
    body: str

    @property
    def file(self) -> str:
        return f"{self.path.stem}.{EXTENSION.get(self.meta['format'], self.meta['format'])}"

    @property
    def blocks(self) -> list[Block]:
        return blocks_of(self.body, COMMENTS)

    @property
    def number(self) -> str:
        return f"{self.meta['doc']} Rev {self.meta['rev']}"


def load_all() -> list[Document]:
    return [Document(path, *front_matter(path)) for path in sorted((HERE / "sources").glob("*.md"))]


def control_rows(doc: Document) -> list[tuple[str, str]]:
    """The table under the title of a PDF or DOCX."""
    meta = doc.meta
    rows = [
        ("Document", doc.number),
        ("Status", meta["status"]),
        ("Effective date", meta["effective"]),
        ("Owner", meta["owner"]),
        ("Equipment", meta["equipment"]),
    ]
    if meta.get("supersedes"):
        rows.append(("Supersedes", meta["supersedes"]))
    if meta.get("superseded_by"):
        rows.append(("Superseded by", meta["superseded_by"]))
    return rows


def md_bytes(doc: Document) -> bytes:
    head = [f'{key}: "{value}"' for key, value in doc.meta.items() if key != "format"]
    return markdown_bytes(head, re.sub(r"<!--.*?-->\n*", "", doc.body))


# ---------------------------------------------------------------- pdf


def pdf_bytes(doc: Document) -> bytes:
    _, pages = _pdf_pass(doc, 0)
    return _pdf_pass(doc, pages)[0]


def _pdf_pass(doc: Document, pages: int) -> tuple[bytes, int]:
    from reportlab.lib.units import mm

    look = PdfLook(doc.meta, cell_step=1.2, title_space=8)
    return pdf_file(
        _story(doc, look),
        _furniture(doc, look, pages),
        20 * mm,
        bookmarks=doc.meta.get("bookmarks") != "no",
        title=f"{doc.number} {doc.meta['title']}",
        author=doc.meta["owner"],
        subject=doc.meta["equipment"],
        creator=SITE,
    )


def _furniture(doc: Document, look: PdfLook, pages: int):
    """Draws the header and the footer of a page."""
    from reportlab.lib import colors
    from reportlab.lib.pagesizes import A4
    from reportlab.lib.units import mm

    width, height = A4

    def furniture(canvas, template):
        canvas.saveState()
        canvas.setFont(look.regular, 8)
        canvas.setFillColor(colors.HexColor("#444444"))
        canvas.drawString(20 * mm, height - 14 * mm, f"{doc.number}  {doc.meta['title']}")
        canvas.drawRightString(width - 20 * mm, height - 14 * mm, SITE)
        canvas.drawString(20 * mm, 11 * mm, UNCONTROLLED)
        canvas.drawRightString(width - 20 * mm, 11 * mm, f"Page {template.page} of {pages}")
        canvas.setStrokeColor(colors.HexColor("#999999"))
        canvas.setLineWidth(0.4)
        canvas.line(20 * mm, height - 16 * mm, width - 20 * mm, height - 16 * mm)
        canvas.line(20 * mm, 15 * mm, width - 20 * mm, 15 * mm)
        canvas.restoreState()

    return furniture


def _story(doc: Document, look: PdfLook) -> list:
    """What reportlab sets on pages."""
    from reportlab.lib.pagesizes import A4
    from reportlab.lib.styles import ParagraphStyle
    from reportlab.lib.units import mm
    from reportlab.platypus import BalancedColumns, CondPageBreak, PageBreak, Paragraph, Preformatted, Spacer

    width = A4[0] - 40 * mm
    indents = {"leftIndent": 8 * mm, "rightIndent": 8 * mm}
    quote = ParagraphStyle("quote", parent=look.body, **indents, spaceBefore=3)
    code = ParagraphStyle("code", fontName="Courier", fontSize=8.5)
    story: list = []
    columns: list | None = None  # what stands in columns, while it does
    blocks = doc.blocks
    for n, block in enumerate(blocks):
        target = story if columns is None else columns
        if block.kind == "heading":
            if block.level > 1 and columns is None:
                target.append(CondPageBreak(32 * mm))
            target.append(look.heading(block, n))
            if block.level == 1:
                rows = [[escape(key), escape(value)] for key, value in control_rows(doc)]
                table = look.table(rows, [36 * mm, width - 36 * mm], header=False)
                target += [table, Spacer(1, 10)]
        elif block.kind in ("para", "quote"):
            style = quote if block.kind == "quote" else look.body if columns is None else look.left
            paragraph = whole(Paragraph(look.markup(block.runs), style))
            if n + 1 < len(blocks) and blocks[n + 1].kind == "item":
                paragraph.keepWithNext = 1
            target.append(paragraph)
        elif block.kind == "item":
            mark = f"{block.number}." if block.ordered else "\u2022"
            target.append(whole(Paragraph(look.markup(block.runs), look.item, bulletText=mark)))
        elif block.kind == "table":
            rows = [[look.markup(cell) for cell in row] for row in block.rows]
            target += [look.table(rows, _widths(doc, look, rows, width)), Spacer(1, 9)]
        elif block.kind == "code":
            target.append(Preformatted(block.text, code))
        elif block.kind == "pagebreak":
            target.append(PageBreak())
        elif block.kind == "columns":
            columns = []
        elif block.kind == "endcolumns":
            story.append(BalancedColumns(columns, nCols=2, needed=40 * mm, innerPadding=7 * mm))
            columns = None
    return story


def _widths(doc: Document, look: PdfLook, rows: list[list[str]], width: float) -> list[float]:
    """Widths of columns: those of their cells where all fit, else at least those of their longest words."""
    columns = [[re.sub(r"<[^>]+>", "", text) for text in column] for column in zip(*rows, strict=True)]
    wanted = [max(map(look.text_width, column)) + 12 for column in columns]
    if sum(wanted) <= width:
        return [w * min(width / sum(wanted), 1.25) for w in wanted]
    least = [max(look.text_width(w) for text in c for w in text.split() or [""]) + 12 for c in columns]
    spare = width - sum(least)
    if spare < 0:
        raise ValueError(f"{doc.file}: table too wide")
    extra = [w - n for w, n in zip(wanted, least, strict=True)]
    return [n + spare * e / sum(extra) for n, e in zip(least, extra, strict=True)]


def scan_bytes(doc: Document) -> bytes:
    """The printed page put through a scanner: grey, a little askew, 150 dots an inch, and no text layer."""
    import pymupdf

    printed, scanned = pymupdf.open(stream=pdf_bytes(doc), filetype="pdf"), pymupdf.open()
    for page in printed:
        askew = pymupdf.Matrix(150 / 72, 150 / 72).prerotate(0.4)
        grey = page.get_pixmap(matrix=askew, colorspace=pymupdf.csGRAY)
        new = scanned.new_page(width=page.rect.width, height=page.rect.height)
        new.insert_image(page.rect, stream=grey.tobytes("png"), keep_proportion=False)
    return scanned.tobytes(deflate=True, garbage=3, no_new_id=True)


# ---------------------------------------------------------------- docx


def _add_field(paragraph, code: str) -> None:
    """A field of Word, such as PAGE."""
    from docx.oxml import OxmlElement
    from docx.oxml.ns import qn

    for kind, text in (("begin", None), (None, code), ("separate", None), ("text", "1"), ("end", None)):
        run = paragraph.add_run()._r
        if kind == "text":
            element = OxmlElement("w:t")
            element.text = text
        elif kind is None:
            element = OxmlElement("w:instrText")
            element.set(qn("xml:space"), "preserve")
            element.text = text
        else:
            element = OxmlElement("w:fldChar")
            element.set(qn("w:fldCharType"), kind)
        run.append(element)


def _add_table(docx: Docx, rows: list[list[list[Run]]], header: bool) -> None:
    """A table; with a header the first row is bold, without one the first column."""
    from docx.shared import Pt

    table = docx.add_table(rows)
    for i, row in enumerate(rows):
        for j, runs in enumerate(row):
            paragraph = table.cell(i, j).paragraphs[0]
            paragraph.paragraph_format.space_after = Pt(2)
            is_bold = i == 0 if header else j == 0
            docx.add_runs(paragraph, [(text, "b" if is_bold else style) for text, style in runs])
    if header:
        docx.repeat_header(table)


def docx_bytes(doc: Document) -> bytes:
    from docx.enum.text import WD_BREAK

    meta = doc.meta
    docx = Docx(margin=22, font="Calibri", size=10.5, header=f"{doc.number}\t{meta['title']}\t{SITE}")
    footer = docx.document.sections[0].footer.paragraphs[0]
    footer.add_run(f"{UNCONTROLLED}\t\tPage ")
    _add_field(footer, "PAGE")
    footer.add_run(" of ")
    _add_field(footer, "NUMPAGES")
    for block in doc.blocks:
        if block.kind == "heading" and block.level == 1:
            docx.add(block.runs, "Title")
            rows = [[[(key, "")], [(value, "")]] for key, value in control_rows(doc)]
            _add_table(docx, rows, header=False)
        elif block.kind == "quote":
            docx.add(block.runs, "Intense Quote")
        elif block.kind == "table":
            _add_table(docx, block.rows, header=True)
        elif block.kind == "pagebreak":
            docx.document.add_paragraph().add_run().add_break(WD_BREAK.PAGE)
        elif block.kind == "code":
            docx.document.add_paragraph(block.text)
        elif block.kind not in COMMENTS:
            docx.add_block(block)
    date = dt.datetime.fromisoformat(meta["effective"] + "T08:00:00")
    return docx.saved(
        title=f"{meta['doc']} {meta['title']}",
        author=meta["owner"],
        last_modified_by=meta["owner"],
        subject=meta["equipment"],
        comments="",
        keywords=f"{meta['doc']}, {SITE}",
        created=date,
        modified=date,
        last_printed=date,
        revision=1,
        version=f"Rev {meta['rev']}",
        category="Procedure",
        language="en-GB",
    )


BUILDERS = {"scan": scan_bytes, "pdf": pdf_bytes, "docx": docx_bytes, "md": md_bytes}

if __name__ == "__main__":
    sys.exit(build(__doc__, HERE, load_all(), BUILDERS, BUILT_WITH))
