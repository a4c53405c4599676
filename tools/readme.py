#!/usr/bin/env python3
"""README.md from nbs/index.ipynb, by nbconvert: one text for the repository's front page and for the site's.

python tools/readme.py            write README.md
python tools/readme.py --stdout   print it
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTE = "<!-- Made from nbs/index.ipynb by tools/readme.py: edit the notebook, not this file. -->"
DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*\|[ \t]*(?P<name>[\w-]+):?[ \t]*(?P<value>.*?)[ \t]*$", re.MULTILINE)
# ](target) of links and pictures, and src="target" / href="target" of inline HTML
MD_TARGET = re.compile(r"(?P<pre>\]\()(?P<target>[^)\s]+)")
HTML_TARGET = re.compile(r"(?P<pre>\b(?:src|srcset|href)=[\"'])(?P<target>[^\"']+)")


def directives(source: str) -> dict[str, str]:
    """The `#| name: value` lines of a cell."""
    return {m["name"]: m["value"].lower() for m in DIRECTIVE.finditer(source)}


def relocate(markdown: str, folder: str) -> str:
    """Make targets that are relative to `folder` relative to the repository's root."""

    def move(m: re.Match) -> str:
        target = m["target"]
        if re.match(r"[a-z][a-z0-9+.-]*:|[#/]", target, re.IGNORECASE):
            return m[0]
        while target.startswith("./"):
            target = target[2:]
        target = target[3:] if target.startswith("../") else f"{folder}/{target}"
        return m["pre"] + target

    return HTML_TARGET.sub(move, MD_TARGET.sub(move, markdown))


def output_text(output: dict) -> tuple[str, bool]:
    """What a reader sees of an output, and whether it is Markdown already. HTML and pictures have a text twin
    or none."""
    from nbconvert.filters import strip_ansi

    if output["output_type"] == "stream":
        return (strip_ansi(output["text"]) if output["name"] == "stdout" else ""), False
    if output["output_type"] == "error":
        return strip_ansi("\n".join(output["traceback"])), False
    data = output.get("data", {})
    if "text/markdown" in data:
        return data["text/markdown"], True
    return strip_ansi(data.get("text/plain", "")), False


def blocks(outputs: list) -> list[tuple[str, bool]]:
    """The outputs of a cell as blocks; plain texts that follow each other are one block."""
    found: list[tuple[str, bool]] = []
    for text, is_markdown in map(output_text, outputs):
        if not text.strip():
            continue
        if found and not is_markdown and not found[-1][1]:
            found[-1] = (found[-1][0].rstrip("\n") + "\n" + text, False)
        else:
            found.append((text, is_markdown))
    return found


def fence(text: str, language: str = "") -> str:
    """A fenced block whose fence is longer than any in the text."""
    ticks = "`" * max(3, 1 + max((len(t) for t in re.findall(r"`{3,}", text)), default=0))
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}"


def plain_cells(nb, folder: str):
    """The notebook with hidden parts and directives gone, and each output a Markdown cell of its own."""
    from nbformat.v4 import new_code_cell, new_markdown_cell

    cells = []
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            cells.append(new_markdown_cell(relocate(cell.source, folder)))
        if cell.cell_type != "code":
            continue
        said = directives(cell.source)
        if "hide" in said or said.get("include") == "false":
            continue
        source = DIRECTIVE.sub("", cell.source).strip()
        if source and "hide_input" not in said and said.get("echo") != "false":
            cells.append(new_code_cell(source))
        if "hide_output" in said or said.get("output") == "false":
            continue
        cells += [
            new_markdown_cell(relocate(text, folder) if is_markdown else fence(text, "text"))
            for text, is_markdown in blocks(cell.get("outputs", []))
        ]
    nb.cells = cells
    return nb


def tidy(markdown: str) -> str:
    """No trailing blanks, at most one empty line in a row outside fences, one newline at the end."""
    lines, fenced = [], ""
    for line in markdown.splitlines():
        line = line.rstrip()
        tick = re.match(r"\s*(`{3,})", line)
        if tick and (not fenced or line.strip() == fenced):
            fenced = "" if fenced else tick[1]
        if line or fenced or (lines and lines[-1]):
            lines.append(line)
    return "\n".join(lines).strip() + "\n"


def render(notebook: Path = ROOT / "nbs" / "index.ipynb", folder: str = "nbs") -> str:
    """The text of README.md."""
    import nbformat
    from nbconvert import MarkdownExporter

    nb = plain_cells(nbformat.read(notebook, as_version=4), folder)
    nb.metadata.setdefault("language_info", {"name": "python"})
    body, _ = MarkdownExporter().from_notebook_node(nb)
    return f"{NOTE}\n\n{tidy(body)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stdout", action="store_true", help="print instead of writing README.md")
    text = render()
    if parser.parse_args().stdout:
        print(text, end="")
    else:
        (ROOT / "README.md").write_text(text, encoding="utf-8")
        print("README.md written")


if __name__ == "__main__":
    main()
