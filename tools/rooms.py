#!/usr/bin/env python3
"""The picture of the rooms: how data flows, and every public name where it belongs. Drawn from the stubs, so
that it cannot grow old: `tools/check.py rooms` says when it has.

python tools/rooms.py            write nbs/images/rooms.svg
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "ragbench"
PICTURE = Path("nbs") / "images" / "rooms.svg"

WIDTH, MARGIN, GAP, ARROW = 960, 10, 12, 26  # of the whole; around it; between boxes; between rows
LETTER, LINE, PAD, HEAD = 6.65, 16, 9, 34  # a letter's width, a line's height; around names; above them
BLUE, ORANGE, GREEN, PINK, GREY = "#0072b2", "#d55e00", "#009e73", "#b0578d", "#7f7f7f"

# The values of `core`, by the modules that hold them: they lie between the rooms.
VALUES = {
    "documents": "Corpus",
    "chunks": "Chunks",
    "vectors": "Vectors",
    "runs": "Ranking",
    "ranking": "Ranking",
    "gold": "Gold",
    "gold_records": "Gold",
    "evidence_classes": "Gold",
    "qrels": "Gold",
    "protocols": "Ranking",
}


class Cell(NamedTuple):
    """A box of the picture."""

    key: str  # a room, or `core:` and one of its values
    title: str
    note: str  # what lives there
    color: str
    share: float  # of the width of its row


def value(name: str, note: str, share: float) -> Cell:
    return Cell(f"core:{name}", name, note, ORANGE, share)


def room(name: str, note: str, share: float, color: str = BLUE) -> Cell:
    return Cell(name, name, note, color, share)


# Rows from top to bottom; between two rows an arrow. The rows that make up a system have a frame around them.
BEFORE = [
    [room("ingest", "files, tables, web pages, collections", 1.6), value("Corpus", "documents", 1)],
]
FRAMED = [
    [room("chunk", "spans of the text, with exact offsets", 1.9), value("Chunks", "a table of spans", 0.7)],
    [
        room("embed", "texts to vectors", 1.2),
        value("Vectors", "of one space", 0.4),
        room("index", "nearest neighbours", 1.0),
        room("lexical", "words", 0.38),
    ],
    [
        room("fusion", "several rankings to one", 1),
        room("steps", "rewriting, boosts, reranking, MMR, expansion", 1.5),
        value("Ranking", "what is handed over", 0.75),
    ],
]
FRAME = room("system", "the parts put together: a graph of steps, each with a key", 1, GREEN)
AFTER = [
    [
        value("Gold", "questions and evidence", 1),
        room("evaluate", "gold and ranking to scores", 1.25),
        room("stats", "intervals, tests", 0.75),
    ],
    [room("bench", "a plan, its runs, Results", 1), room("report", "views of Results", 1)],
    [room("knowledge", "the winner at work: a folder of documents that answers questions", 1)],
]
BELOW = [
    [
        room("base", "errors", 0.85, GREY),
        room("store", "artifacts", 0.95, GREY),
        room("text", "tokens", 0.75, GREY),
        room("remote", "endpoints", 0.7, GREY),
        room("plot", "charts", 0.6, GREY),
        room("apps", "ragbench demo, …", 0.75, GREY),
    ],
    [room("testing", "from ragbench.testing: is a part of one's own sound? doubles for tests", 1, PINK)],
]


# --- the names ----------------------------------------------------------------------------------------------


def stub_names(stub: Path) -> Iterator[tuple[list[str], str]]:
    """(module below the stub's package, public name)."""
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module.split("."), alias.name) for alias in node.names)


def written(module: Path, name: str) -> str:
    """A function as it is called, anything else by its name."""
    body = ast.parse(module.read_text(encoding="utf-8")).body
    functions = {n.name for n in body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    return f"{name}()" if name in functions else name


def public_names(root: Path) -> dict[str, list[str]]:
    """The public names of each box."""
    package = root / PACKAGE
    boxes: dict[str, list[str]] = {}
    for parts, name in stub_names(package / "__init__.pyi"):
        key = parts[0]
        if key == "core":
            if parts[1] not in VALUES:
                raise SystemExit(
                    f"tools/rooms.py: say in VALUES where ragbench.core.{parts[1]} belongs ({name})"
                )
            key = f"core:{VALUES[parts[1]]}"
        module = package.joinpath(*parts).with_suffix(".py")
        boxes.setdefault(key, []).append(written(module, name))
    stub = package / "testing" / "__init__.pyi"
    for parts, name in stub_names(stub) if stub.is_file() else ():
        module = stub.parent.joinpath(*parts).with_suffix(".py")
        boxes.setdefault("testing", []).append(written(module, name))
    drawn = {c.key for row in [*BEFORE, *FRAMED, [FRAME], *AFTER, *BELOW] for c in row}
    if homeless := sorted(set(boxes) - drawn):
        raise SystemExit(f"tools/rooms.py draws no box for {', '.join(homeless)}")
    return {key: sorted(names, key=lambda n: (n[0].islower(), n.lower())) for key, names in boxes.items()}


def columns(names: list[str], width: float) -> list[list[str]]:
    """The names in as many columns as fit."""
    for n in range(len(names), 1, -1):
        height = -(-len(names) // n)
        cut = [names[i : i + height] for i in range(0, len(names), height)]
        if sum(max(map(len, c)) * LETTER + 14 for c in cut) - 14 <= width:
            return cut
    return [names] if names else []


# --- the drawing --------------------------------------------------------------------------------------------


def text(x: float, y: float, content: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{escape(content)}</text>'


def box(cell: Cell, names: list[str], x: float, y: float, width: float, height: float) -> list[str]:
    """A box with its title, its note and its names."""
    lines = [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6" fill="{cell.color}"'
        f' fill-opacity="0.09" stroke="{cell.color}" stroke-opacity="0.75"/>',
        text(x + PAD, y + 16, cell.title, "room"),
        text(x + PAD, y + 29, cell.note, "note"),
    ]
    at = x + PAD
    for column in columns(names, width - 2 * PAD):
        for i, name in enumerate(column):
            lines.append(text(at, y + HEAD + LINE * (i + 0.75), name, "name"))
        at += max(map(len, column)) * LETTER + 14
    return lines


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f} L{x2:.1f} {y2:.1f}" class="arrow" marker-end="url(#tip)"/>'


def draw_row(
    row: list[Cell], names: dict[str, list[str]], left: float, top: float, width: float, flows: bool = True
) -> tuple[list[str], float]:
    """The boxes of a row side by side, an arrow from each to the next; and where the row ends."""
    gap = 22 if flows else GAP
    room_for = width - gap * (len(row) - 1)
    widths = [room_for * c.share / sum(c.share for c in row) for c in row]
    longest = max(
        max((len(c) for c in columns(names.get(cell.key, []), w - 2 * PAD)), default=0)
        for cell, w in zip(row, widths, strict=True)
    )
    height = HEAD + longest * LINE + 7
    lines, x = [], left
    for i, (cell, w) in enumerate(zip(row, widths, strict=True)):
        lines += box(cell, names.get(cell.key, []), x, top, w, height)
        if flows and i + 1 < len(row) and row[i + 1].key not in {"lexical"}:
            lines.append(arrow(x + w + 2, top + height / 2, x + w + gap - 3, top + height / 2))
        x += w + gap
    return lines, top + height


def draw(root: Path = ROOT) -> str:
    """The picture as SVG."""
    names = public_names(root)
    left, width = MARGIN, WIDTH - 2 * MARGIN
    lines: list[str] = []
    y = MARGIN

    def rows(of: list[list[Cell]], left: float, width: float, flows: bool = True) -> None:
        nonlocal y
        for i, row in enumerate(of):
            if i:
                if flows:
                    lines.append(arrow(WIDTH / 2, y + 3, WIDTH / 2, y + ARROW - 4))
                y += ARROW if flows else GAP
            drawn, y = draw_row(row, names, left, y, width, flows)
            lines.extend(drawn)

    rows(BEFORE, left, width)
    lines.append(arrow(WIDTH / 2, y + 3, WIDTH / 2, y + ARROW - 4))
    y += ARROW
    frame_top = y
    y += 36
    rows(FRAMED, left + 10, width - 20)
    y += 10
    frame = (
        f'<rect x="{left}" y="{frame_top}" width="{width}" height="{y - frame_top:.1f}" rx="9"'
        f' fill="{GREEN}" fill-opacity="0.05" stroke="{GREEN}" stroke-opacity="0.75" stroke-dasharray="5 4"/>'
    )
    lines += [
        frame,
        text(left + PAD + 8, frame_top + 15, FRAME.title, "room"),
        text(left + PAD + 8, frame_top + 28, FRAME.note, "note"),
    ]
    shown = "   ".join(names.get("system", []))
    lines.append(
        f'<text x="{left + width - PAD - 8:.1f}" y="{frame_top + 22}" class="name" text-anchor="end"'
        f' xml:space="preserve">{escape(shown)}</text>'
    )
    lines.append(arrow(WIDTH / 2, y + 3, WIDTH / 2, y + ARROW - 4))
    y += ARROW
    rows(AFTER, left, width)
    y += ARROW + 4
    lines.append(text(left + 2, y - 7, "used on the way, and from outside", "note"))
    rows(BELOW, left, width, flows=False)
    height = y + MARGIN
    listed = sum(map(len, names.values()))
    head = f"""<?xml version="1.0" encoding="utf-8"?>
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" role="img" \
aria-labelledby="t d">
<title id="t">The rooms of ragbench</title>
<desc id="d">How data flows: ingest makes a Corpus, chunk makes Chunks, embed, index and lexical find them, \
fusion and steps make a Ranking, evaluate compares it with Gold, bench and report show Results. \
{listed} public names, each in its room.</desc>
<style>
svg{{color:#1f2328}}@media (prefers-color-scheme:dark){{svg{{color:#e6edf3}}}}
text{{fill:currentColor}}
.room{{font:600 14px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif}}
.note{{font:11px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;opacity:.75}}
.name{{font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}}
.arrow{{stroke:currentColor;stroke-opacity:.6;stroke-width:1.5;fill:none}}
.tip{{fill:currentColor;fill-opacity:.6}}
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto">\
<path d="M0 0L8 4L0 8z" class="tip"/></marker></defs>
"""
    return head + "\n".join(lines) + "\n</svg>\n"


def picture_problems(root: Path) -> Iterator[str]:
    """The picture that is stored is the one that would be drawn."""
    stored = root / PICTURE
    if (root / PACKAGE / "__init__.pyi").is_file():
        try:
            drawn = draw(root)
        except SystemExit as e:
            yield str(e)
            return
        if not stored.is_file() or stored.read_text(encoding="utf-8") != drawn:
            yield f"{PICTURE.as_posix()} does not show the public names of now: run python tools/rooms.py"


if __name__ == "__main__":
    (ROOT / PICTURE).parent.mkdir(parents=True, exist_ok=True)
    (ROOT / PICTURE).write_text(draw(), encoding="utf-8")
    print(PICTURE.as_posix())
    sys.exit(0)
