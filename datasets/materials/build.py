"""Build the lessons in files/ from the Markdown in sources/.

    python datasets/materials/build.py            write files/
    python datasets/materials/build.py --check    build in memory, compare with files/, exit 1 on a difference

PDF is made with reportlab, DOCX with python-docx; Markdown and text are written out.
Two runs with the same library versions give the same bytes. (--check compares the parts
of a DOCX after unpacking, as another zlib may pack the same parts into other bytes.)
"""

from __future__ import annotations

import datetime as dt
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
    blocks_of,
    build,
    front_matter,
    markdown_bytes,
    pdf_file,
    plain,
    whole,
)

SERIES = {"pt": "Aulas abertas", "en": "Open lessons", "es": "Clases abiertas"}
PAGE = {"pt": "Página {} de {}", "en": "Page {} of {}", "es": "Página {} de {}"}
LOCALE = {"pt": "pt-BR", "en": "en-GB", "es": "es-ES"}
BUILT_WITH = {"reportlab": "5.1.0", "python-docx": "1.2.0"}  # what files/ was made with
# front matter that readers do not see
BUILD_ONLY = ("format", "font", "size", "justify", "bookmarks", "encoding")


@dataclass
class Lesson:
    path: Path
    meta: dict[str, str]
    body: str

    @property
    def file(self) -> str:
        return f"{self.path.stem}.{self.meta['format']}"

    @property
    def blocks(self) -> list[Block]:
        blocks = blocks_of(self.body)
        if any(block.kind in ("code", "quote") for block in blocks):
            raise ValueError(f"{self.path.name}: a lesson has neither code nor quotes")
        return blocks


def load_all() -> list[Lesson]:
    return [Lesson(path, *front_matter(path)) for path in sorted((HERE / "sources").glob("*.md"))]


def byline(lesson: Lesson) -> str:
    """The line under the title of a PDF, DOCX or text lesson."""
    meta = lesson.meta
    return f"{meta['subject'][:1].upper()}{meta['subject'][1:]} · {meta['level']} · {meta['author']}"


# ---------------------------------------------------------------- markdown and text


def md_bytes(lesson: Lesson) -> bytes:
    head = [f'{key}: "{value}"' for key, value in lesson.meta.items() if key not in BUILD_ONLY]
    return markdown_bytes(head, lesson.body)


def text_bytes(lesson: Lesson) -> bytes:
    blocks = lesson.blocks
    lines: list[str] = []
    for n, block in enumerate(blocks):
        if block.kind == "table":
            raise ValueError(f"{lesson.file}: no tables in a text file")
        text = plain(block.runs)
        if block.kind == "item":
            lines.append((f"{block.number}. " if block.ordered else "- ") + text)
            if n + 1 < len(blocks) and blocks[n + 1].list_id == block.list_id:
                continue
        else:
            lines.append(text)
            if block.level == 1:
                lines += ["=" * len(text), byline(lesson)]
        lines.append("")
    text = "\n".join(lines).rstrip("\n") + "\n"
    return text.encode(lesson.meta.get("encoding", "utf-8"))


# ---------------------------------------------------------------- pdf


def pdf_bytes(lesson: Lesson) -> bytes:
    _, pages = _pdf_pass(lesson, 0)
    return _pdf_pass(lesson, pages)[0]


def _pdf_pass(lesson: Lesson, pages: int) -> tuple[bytes, int]:
    from reportlab.lib import colors
    from reportlab.lib.pagesizes import A4
    from reportlab.lib.styles import ParagraphStyle
    from reportlab.lib.units import mm
    from reportlab.platypus import CondPageBreak, Paragraph, Spacer

    meta = lesson.meta
    look = PdfLook(meta, cell_step=1, title_space=6)
    under_title = ParagraphStyle("under", parent=look.left, fontName=look.italic, spaceAfter=10)

    def furniture(canvas, template):
        width, height = A4
        canvas.saveState()
        canvas.setFont(look.regular, 8)
        canvas.setFillColor(colors.HexColor("#444444"))
        canvas.drawString(22 * mm, height - 14 * mm, f"{SERIES[meta['lang']]}  {meta['title']}")
        canvas.drawRightString(width - 22 * mm, 11 * mm, PAGE[meta["lang"]].format(template.page, pages))
        canvas.restoreState()

    def table(rows: list[list[str]]):
        columns = zip(*rows, strict=True)
        widths = [max(look.text_width(text) + 12 for text in column) for column in columns]
        if sum(widths) > A4[0] - 44 * mm:
            raise ValueError(f"{lesson.file}: table too wide")
        return look.table(rows, widths)

    story: list = []
    blocks = lesson.blocks
    for n, block in enumerate(blocks):
        if block.kind == "heading":
            if block.level > 1:
                story.append(CondPageBreak(32 * mm))
            story.append(look.heading(block, n))
            if block.level == 1:
                story.append(Paragraph(escape(byline(lesson)), under_title))
        elif block.kind == "table":
            story += [table([[look.markup(cell) for cell in row] for row in block.rows]), Spacer(1, 9)]
        elif block.kind == "para":
            paragraph = whole(Paragraph(look.markup(block.runs), look.body))
            if n + 1 < len(blocks) and blocks[n + 1].kind == "item":
                paragraph.keepWithNext = 1
            story.append(paragraph)
        else:
            mark = f"{block.number}." if block.ordered else "\u2022"
            story.append(whole(Paragraph(look.markup(block.runs), look.item, bulletText=mark)))
    return pdf_file(
        story,
        furniture,
        22 * mm,
        bookmarks=meta.get("bookmarks") != "no",
        title=meta["title"],
        author=meta["author"],
        subject=meta["subject"],
        creator=SERIES[meta["lang"]],
        lang=LOCALE[meta["lang"]],
    )


# ---------------------------------------------------------------- docx


def docx_bytes(lesson: Lesson) -> bytes:
    meta = lesson.meta
    series, locale = SERIES[meta["lang"]], LOCALE[meta["lang"]]
    docx = Docx(margin=22, font="Calibri", size=11, header=f"{series}\t\t{meta['title']}")
    for block in lesson.blocks:
        if block.kind == "heading" and block.level == 1:
            docx.add(block.runs, "Title")
            docx.document.add_paragraph(byline(lesson), style="Subtitle")
        elif block.kind == "table":
            table = docx.add_table(block.rows)
            for i, row in enumerate(block.rows):
                for j, runs in enumerate(row):
                    docx.add_runs(table.cell(i, j).paragraphs[0], runs, bold=i == 0)
            docx.repeat_header(table)
        else:
            docx.add_block(block)
    date = dt.datetime.fromisoformat(meta["date"] + "T08:00:00")
    return docx.saved(
        title=meta["title"],
        author=meta["author"],
        last_modified_by=meta["author"],
        subject=meta["subject"],
        comments="",
        keywords=meta["level"],
        category=series,
        language=locale,
        created=date,
        modified=date,
        last_printed=date,
        revision=1,
    )


BUILDERS = {"pdf": pdf_bytes, "docx": docx_bytes, "md": md_bytes, "txt": text_bytes}

if __name__ == "__main__":
    sys.exit(build(__doc__, HERE, load_all(), BUILDERS, BUILT_WITH))
