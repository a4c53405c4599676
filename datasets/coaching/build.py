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

import datetime as dt
import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tools" / "datasets"))
from build_files import Docx, blocks_of, build, front_matter, markdown_bytes  # noqa: E402

AUTHOR = "The Heddle Method"
PUBLISHED = dt.datetime(2024, 9, 2, 8)  # date of all chapters
BUILT_WITH = {"python-docx": "1.2.0"}  # what files/ was made with
WORDS_A_SECOND = 2.6


@dataclass
class Source:
    path: Path
    meta: dict[str, str]
    body: str

    @property
    def file(self) -> str:
        return f"{self.path.parent.name}/{self.path.stem}.{self.meta['format']}"


def load_all() -> list[Source]:
    return [
        Source(path, *front_matter(path))
        for pattern in ("method/*.md", "meetings/*.txt")
        for path in sorted((HERE / "sources").glob(pattern))
    ]


# ---------------------------------------------------------------- chapters


def md_bytes(source: Source) -> bytes:
    head = [
        f'title: "{source.meta["title"]}"',
        f"chapter: {source.meta['chapter']}",
        f'author: "{AUTHOR}"',
        f"date: {PUBLISHED:%Y-%m-%d}",
    ]
    return markdown_bytes(head, source.body)


def docx_bytes(source: Source) -> bytes:
    chapter = f"Chapter {source.meta['chapter']}"
    docx = Docx(margin=25, font="Georgia", size=10.5, header=f"{AUTHOR}\t\t{chapter}")
    for block in blocks_of(source.body):
        if block.kind == "heading" and block.level == 1:
            docx.add(block.runs, "Title")
        elif block.kind == "table":
            table = docx.add_table(block.rows)
            for i, row in enumerate(block.rows):
                for j, runs in enumerate(row):
                    docx.add_runs(table.cell(i, j).paragraphs[0], runs, bold=i == 0)
        else:
            docx.add_block(block)
    return docx.saved(
        title=source.meta["title"],
        author=AUTHOR,
        last_modified_by=AUTHOR,
        subject=chapter,
        comments="",
        keywords="",
        category="Handbook",
        language="en-GB",
        last_printed=PUBLISHED,
        modified=PUBLISHED,
        created=PUBLISHED,
        revision=1,
        version="",
    )


# ---------------------------------------------------------------- meetings


def turns(source: Source) -> list[tuple[str, str]]:
    """(speaker, words) of a meeting, one pair a turn; consecutive lines of one speaker are one turn."""
    pairs: list[tuple[str, str]] = []
    for line in source.body.splitlines():
        if not line.strip():
            continue
        speaker, colon, words = line.partition(": ")
        if not colon:
            raise ValueError(f"{source.path.name}: no speaker in {line[:50]!r}")
        if pairs and pairs[-1][0] == speaker:
            pairs[-1] = (speaker, f"{pairs[-1][1]} {words.strip()}")
        else:
            pairs.append((speaker, words.strip()))
    return pairs


def cues(source: Source) -> list[tuple[float, float, str, str]]:
    """(start, end, speaker, text): whole sentences, a few of them if they are short, timed at an even
    pace."""
    h, m, s = map(int, source.meta["start"].split(":"))
    start = float(3600 * h + 60 * m + s)
    timed = []
    for speaker, words in turns(source):
        parts: list[str] = []
        for sentence in re.split(r"(?<=[.!?])\s+(?=\S)", words):
            if parts and len(parts[-1]) + len(sentence) < 110:
                parts[-1] += " " + sentence
            else:
                parts.append(sentence)
        for text in parts:
            length = max(1.2, len(text.split()) / WORDS_A_SECOND)
            timed.append((start, start + length, speaker, text))
            start += length + 0.1
        start += 0.6
    return timed


def clock(seconds: float, mark: str) -> str:
    ms = round(seconds * 1000)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{mark}{ms % 1000:03}"


def vtt_bytes(source: Source) -> bytes:
    parts = [f"WEBVTT - {source.meta['title']}", "", f"NOTE\nDate: {source.meta['date']}", ""]
    for start, end, speaker, text in cues(source):
        lines = textwrap.wrap(text.replace("&", "&amp;"), 64, break_on_hyphens=False)
        times = f"{clock(start, '.')} --> {clock(end, '.')}"
        parts += [times, f"<v {speaker}>" + "\n".join(lines) + "</v>", ""]
    return "\n".join(parts).encode("utf-8")


def srt_bytes(source: Source) -> bytes:
    parts = []
    for n, (start, end, speaker, text) in enumerate(cues(source), 1):
        lines = textwrap.wrap(f"{speaker}: {text}", 48, break_on_hyphens=False)
        parts.append(f"{n}\n{clock(start, ',')} --> {clock(end, ',')}\n" + "\n".join(lines) + "\n")
    return "\n".join(parts).encode("utf-8")


def txt_bytes(source: Source) -> bytes:
    lines = [source.meta["title"], f"Date: {source.meta['date']}", ""]
    is_timed = "times" in source.meta
    hours, minutes = map(int, source.meta["start"].split(":")) if is_timed else (0, 0)
    seconds = 0.0
    for speaker, words in turns(source):
        now = 60 * hours + minutes + int(seconds // 60)
        stamp = f"[{now // 60:02}:{now % 60:02}] " if is_timed else ""
        lines += [f"{stamp}{speaker}: {words}", ""]
        seconds += len(words.split()) / WORDS_A_SECOND + 4
    return ("\n".join(lines).rstrip("\n") + "\n").encode("utf-8")


BUILDERS = {"md": md_bytes, "docx": docx_bytes, "vtt": vtt_bytes, "srt": srt_bytes, "txt": txt_bytes}

if __name__ == "__main__":
    sys.exit(build(__doc__, HERE, load_all(), BUILDERS, BUILT_WITH, others=["goals.csv"]))
