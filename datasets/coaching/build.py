"""Build the chapters and transcripts in files/ from sources/.

    python datasets/coaching/build.py            write files/method and files/meetings
    python datasets/coaching/build.py --check    build in memory, compare with files/, exit 1 on a difference

Chapters become Markdown or DOCX (python-docx), meetings become WebVTT, SubRip or plain text. files/goals.csv
has no source
and is left alone. Two runs with the same library versions give the same bytes. (--check compares the parts of
a DOCX
after unpacking, as another zlib may pack the same parts into other bytes.)
"""

from __future__ import annotations

import argparse
import datetime as dt
import io
import re
import sys
import textwrap
import zipfile
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from markdown_it import MarkdownIt

HERE = Path(__file__).resolve().parent
AUTHOR = "The Heddle Method"
PUBLISHED = dt.datetime(2024, 9, 2, 8)  # date of all chapters
BUILT_WITH = {"python-docx": "1.2.0"}  # what files/ was made with
WORDS_A_SECOND = 2.6
Run = tuple[str, str]  # text, style: "", "b", "i"


@dataclass
class Block:
    kind: str  # heading para item table
    runs: list[Run] = field(default_factory=list)
    level: int = 0
    number: int = 0  # of an item in an ordered list, else 0
    list_id: int = 0
    rows: list[list[list[Run]]] = field(default_factory=list)


@dataclass
class Source:
    path: Path
    meta: dict[str, str]
    body: str

    @property
    def file(self) -> str:
        return f"{self.path.parent.name}/{self.path.stem}.{self.meta['format']}"


def plain(runs: list[Run]) -> str:
    return re.sub(r"\s+", " ", "".join(t for t, _ in runs)).strip()


# ---------------------------------------------------------------- reading


def read(path: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    if not text.startswith("---\n"):
        raise ValueError(f"{path.name}: no front matter")
    head, body = text[4:].split("\n---\n", 1)
    pairs = (line.partition(":") for line in head.splitlines())
    return Source(path, {k.strip(): v.strip().strip('"') for k, _, v in pairs}, body)


def load_all() -> list[Source]:
    return [
        read(p)
        for pattern in ("method/*.md", "meetings/*.txt")
        for p in sorted((HERE / "sources").glob(pattern))
    ]


def parse(body: str) -> list[Block]:
    """The blocks of a chapter: headings, paragraphs, list items and tables."""
    blocks: list[Block] = []
    lists: list[int] = []  # number of the current item; 0 throughout in a bullet list
    made, table = 0, None
    tokens = MarkdownIt("commonmark").enable("table").parse(body)
    for i, tok in enumerate(tokens):
        if tok.type in ("bullet_list_open", "ordered_list_open"):
            made += 1
            lists.append(0 if tok.type[0] == "o" else -1)
        elif tok.type in ("bullet_list_close", "ordered_list_close"):
            lists.pop()
        elif tok.type == "list_item_open" and lists[-1] >= 0:
            lists[-1] += 1
        elif tok.type == "table_open":
            table = []
        elif tok.type == "table_close":
            blocks.append(Block("table", rows=table))
            table = None
        elif tok.type == "tr_open":
            table.append([])
        elif tok.type == "inline":
            runs = inline(tok)
            if table is not None:
                table[-1].append(runs)
            elif tokens[i - 1].type == "heading_open":
                blocks.append(Block("heading", runs, level=int(tokens[i - 1].tag[1])))
            elif lists:
                blocks.append(Block("item", runs, number=max(lists[-1], 0), list_id=made))
            else:
                blocks.append(Block("para", runs))
    return blocks


def inline(token) -> list[Run]:
    out: list[Run] = []
    style = ""
    for child in token.children or []:
        if child.type in ("strong_open", "em_open"):
            style = "b" if child.type == "strong_open" else "i"
        elif child.type in ("strong_close", "em_close"):
            style = ""
        elif child.type in ("softbreak", "hardbreak"):
            out.append((" ", style))
        elif child.type == "text":
            out.append((child.content, style))
        else:
            raise ValueError(f"{child.type} is not foreseen in a chapter")
    return [r for r in out if r[0]]


def turns(source: Source) -> list[tuple[str, str]]:
    """(speaker, words) of a meeting, one pair a turn; consecutive lines of one speaker are one turn."""
    out: list[tuple[str, str]] = []
    for line in source.body.splitlines():
        if not line.strip():
            continue
        speaker, colon, words = line.partition(": ")
        if not colon:
            raise ValueError(f"{source.path.name}: no speaker in {line[:50]!r}")
        if out and out[-1][0] == speaker:
            out[-1] = (speaker, f"{out[-1][1]} {words.strip()}")
        else:
            out.append((speaker, words.strip()))
    return out


def canonical_lines(source: Source) -> list[str]:
    """What a careful loader should read from the built file, one line a paragraph, row or turn."""
    if source.path.suffix == ".txt":
        return [f"{speaker}: {words}" for speaker, words in turns(source)]
    if source.meta["format"] == "md":
        return [line for line in source.body.split("\n") if line.strip()]
    out = []
    for b in parse(source.body):
        if b.kind == "table":
            out += [" | ".join(plain(c) for c in row) for row in b.rows]
        else:
            mark = (f"{b.number}. " if b.number else "• ") if b.kind == "item" else ""
            out.append(mark + plain(b.runs))
    return out


# ---------------------------------------------------------------- chapters


def md_bytes(source: Source) -> bytes:
    head = [
        f'title: "{source.meta["title"]}"',
        f"chapter: {source.meta['chapter']}",
        f'author: "{AUTHOR}"',
        f"date: {PUBLISHED:%Y-%m-%d}",
    ]
    return ("---\n" + "\n".join(head) + "\n---\n" + source.body.rstrip("\n") + "\n").encode("utf-8")


def docx_bytes(source: Source) -> bytes:
    import docx
    from docx.shared import Mm, Pt

    d = docx.Document()
    section = d.sections[0]
    section.page_width, section.page_height = Mm(210), Mm(297)
    section.left_margin = section.right_margin = Mm(25)
    d.styles["Normal"].font.name, d.styles["Normal"].font.size = "Georgia", Pt(10.5)
    section.header.paragraphs[0].text = f"{AUTHOR}\t\tChapter {source.meta['chapter']}"
    numbering = d.part.numbering_part.numbering_definitions._numbering
    style_num = d.styles["List Number"].element.pPr.numPr.numId.val
    abstract = next(n.abstractNumId.val for n in numbering.num_lst if n.numId == style_num)
    nums: dict[int, int] = {}

    def add(p, runs: list[Run], bold: bool = False):
        for text, style in runs:
            r = p.add_run(text)
            r.bold = True if bold or style == "b" else None
            r.italic = True if style == "i" else None
        return p

    for b in parse(source.body):
        if b.kind == "heading":
            add(d.add_paragraph(style="Title" if b.level == 1 else f"Heading {b.level - 1}"), b.runs)
        elif b.kind == "para":
            add(d.add_paragraph(), b.runs)
        elif b.kind == "item" and not b.number:
            add(d.add_paragraph(style="List Bullet"), b.runs)
        elif b.kind == "item":
            if b.list_id not in nums:
                num = numbering.add_num(abstract)
                num.add_lvlOverride(ilvl=0).add_startOverride(1)
                nums[b.list_id] = num.numId
            p = add(d.add_paragraph(style="List Number"), b.runs)
            properties = p._p.get_or_add_pPr().get_or_add_numPr()
            properties.get_or_add_ilvl().val = 0
            properties.get_or_add_numId().val = nums[b.list_id]
        else:
            table = d.add_table(rows=len(b.rows), cols=len(b.rows[0]), style="Table Grid")
            for i, row in enumerate(b.rows):
                for j, runs in enumerate(row):
                    add(table.cell(i, j).paragraphs[0], runs, bold=i == 0)
            d.add_paragraph()

    p = d.core_properties
    p.title, p.author, p.last_modified_by, p.subject = (
        source.meta["title"],
        AUTHOR,
        AUTHOR,
        f"Chapter {source.meta['chapter']}",
    )
    p.comments, p.keywords, p.category, p.language = "", "", "Handbook", "en-GB"
    p.created = p.modified = p.last_printed = PUBLISHED
    p.revision, p.version = 1, ""
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


# ---------------------------------------------------------------- meetings


def cues(source: Source) -> list[tuple[float, float, str, str]]:
    """(start, end, speaker, text): whole sentences, a few of them if they are short, timed at an even
    pace."""
    h, m, s = map(int, source.meta["start"].split(":"))
    at = float(3600 * h + 60 * m + s)
    out = []
    for speaker, words in turns(source):
        parts: list[str] = []
        for sentence in re.split(r"(?<=[.!?])\s+(?=\S)", words):
            if parts and len(parts[-1]) + len(sentence) < 110:
                parts[-1] += " " + sentence
            else:
                parts.append(sentence)
        for text in parts:
            length = max(1.2, len(text.split()) / WORDS_A_SECOND)
            out.append((at, at + length, speaker, text))
            at += length + 0.1
        at += 0.6
    return out


def clock(seconds: float, mark: str) -> str:
    ms = round(seconds * 1000)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{mark}{ms % 1000:03}"


def vtt_bytes(source: Source) -> bytes:
    out = [f"WEBVTT - {source.meta['title']}", "", f"NOTE\nDate: {source.meta['date']}", ""]
    for start, end, speaker, text in cues(source):
        lines = textwrap.wrap(text.replace("&", "&amp;"), 64, break_on_hyphens=False)
        out += [
            f"{clock(start, '.')} --> {clock(end, '.')}",
            f"<v {speaker}>" + "\n".join(lines) + "</v>",
            "",
        ]
    return "\n".join(out).encode("utf-8")


def srt_bytes(source: Source) -> bytes:
    out = []
    for n, (start, end, speaker, text) in enumerate(cues(source), 1):
        lines = textwrap.wrap(f"{speaker}: {text}", 48, break_on_hyphens=False)
        out.append(f"{n}\n{clock(start, ',')} --> {clock(end, ',')}\n" + "\n".join(lines) + "\n")
    return "\n".join(out).encode("utf-8")


def txt_bytes(source: Source) -> bytes:
    out = [source.meta["title"], f"Date: {source.meta['date']}", ""]
    minutes = (
        sum(int(x) * f for x, f in zip(source.meta["start"].split(":"), (60, 1), strict=True))
        if "times" in source.meta
        else 0
    )
    seconds = 0.0
    for speaker, words in turns(source):
        now = minutes + int(seconds // 60)
        stamp = f"[{now // 60:02}:{now % 60:02}] " if "times" in source.meta else ""
        out += [f"{stamp}{speaker}: {words}", ""]
        seconds += len(words.split()) / WORDS_A_SECOND + 4
    return ("\n".join(out).rstrip("\n") + "\n").encode("utf-8")


# ---------------------------------------------------------------- main

BUILDERS = {"md": md_bytes, "docx": docx_bytes, "vtt": vtt_bytes, "srt": srt_bytes, "txt": txt_bytes}


def same(a: bytes, b: bytes) -> bool:
    """Equal bytes or, for two zip files, equal members with equal dates."""
    if a == b or not (a.startswith(b"PK") and b.startswith(b"PK")):
        return a == b
    with zipfile.ZipFile(io.BytesIO(a)) as x, zipfile.ZipFile(io.BytesIO(b)) as y:
        return [(i.filename, i.date_time, x.read(i)) for i in x.infolist()] == [
            (i.filename, i.date_time, y.read(i)) for i in y.infolist()
        ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with files/ and write nothing")
    args = parser.parse_args()
    files = HERE / "files"
    sources = load_all()
    wanted = {s.file for s in sources} | {"goals.csv"}
    there = {p.relative_to(files).as_posix() for p in files.rglob("*") if p.is_file()}
    bad = [f"{name}: no source" for name in sorted(there - wanted)]
    if "goals.csv" not in there:
        bad.append("goals.csv: missing")
    for source in sources:
        data = BUILDERS[source.meta["format"]](source)
        path = files / source.file
        if not args.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        elif not path.exists():
            bad.append(f"{source.file}: missing")
        elif not same(path.read_bytes(), data):
            bad.append(f"{source.file}: differs from what sources/ gives")
    for line in bad:
        print(line, file=sys.stderr)
    other = {k: version(k) for k, v in BUILT_WITH.items() if version(k) != v}
    if bad and other:
        print(f"files/ was made with {BUILT_WITH}; here: {other}", file=sys.stderr)
    if not bad:
        print(f"{len(sources)} documents {'match' if args.check else 'built'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
