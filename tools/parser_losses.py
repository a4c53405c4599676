#!/usr/bin/env python3
"""What do our loaders lose of the data sets that ship? Compares their text with that of their sources.

An answer that the loader dropped cannot be found by any retriever, and a benchmark whose gold is in the
loader's own text will never notice. Our data sets have an independent truth: their PDF and DOCX files,
transcripts and texts were built from Markdown and plain text in `sources/`, which no parser of ours takes
part in.

Words of the source that are not in the document are *lost*; words of the document that the source does not
have are *extra* (a page number between two halves of a sentence, a word cut in two by a hyphen); words that
are there, but not in the order of the source, are *moved*. Lost and extra come from counting, moved from
aligning the two sequences (Ratcliff and Obershelp, 1988, in `difflib`). Words of the front matter are
neither required nor held against the loader. Markdown documents are copies of their sources; they show that
the ruler is straight.

    python tools/parser_losses.py                     every set that has sources
    python tools/parser_losses.py procedures FOLDER   these
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ragbench.apps.dataset_rules import words
from ragbench.base.arguments import typed
from ragbench.base.errors import DataError
from ragbench.base.html_table import html_table
from ragbench.base.number_text import percent, thousands
from ragbench.core.documents import Document
from ragbench.ingest.load_corpus import dataset_info, load_corpus
from ragbench.ingest.shipped import shipped, shipped_datasets


class Source(NamedTuple):
    "What a document was built from: its words in order, and those of its front matter."

    words: list[str]
    front: list[str]


def read_source(text: str) -> Source:
    "The words of a Markdown or text source."
    front, body = "", text
    if text.startswith("---\n") and "\n---\n" in text:
        front, body = text[4:].split("\n---\n", 1)
    return Source(words(re.sub(r"<!--[\s\S]*?-->|(?m:^```.*$)", " ", body)), words(front))


class Loss(NamedTuple):
    "What a loader lost of one document; shares from 0 to 1."

    document: str
    format: str
    words: int  # of the source
    lost: float  # share of the source's words that the document lacks
    extra: float  # share of the document's words that neither body nor front matter has
    moved: float  # share of the source's words that are there, out of order
    missing: tuple[str, ...]  # the lost words, with repetitions
    added: tuple[str, ...]  # the extra words, with repetitions


def loss(source: Source, doc: Document) -> Loss:
    "Compare a document with what it was built from."
    have = words(doc.text)
    wanted, found = Counter(source.words), Counter(have)
    missing, added = wanted - found, found - wanted - Counter(source.front)
    blocks = SequenceMatcher(None, source.words, have, autojunk=False).get_matching_blocks()
    moved = (wanted & found).total() - sum(b.size for b in blocks)
    n, m = max(1, len(source.words)), max(1, len(have))
    return Loss(
        doc.id,
        doc.format,
        len(source.words),
        missing.total() / n,
        added.total() / m,
        moved / n,
        tuple(missing.elements()),
        tuple(added.elements()),
    )


@dataclass(frozen=True, repr=False)
class Losses:
    "The losses of a data set, document by document."

    name: str
    rows: tuple[Loss, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Loss]:
        return iter(self.rows)

    def by_format(self) -> dict[str, tuple[float, float, float]]:
        "Lost, extra and moved of each format: the mean over its documents."
        formats = sorted({r.format for r in self.rows})

        def mean(rows):
            return tuple(sum(getattr(r, k) for r in rows) / len(rows) for k in ("lost", "extra", "moved"))

        return {f: mean([r for r in self.rows if r.format == f]) for f in formats}

    def __repr__(self) -> str:
        lines = [
            f"  {f}: {percent(lost)} lost, {percent(extra)} extra, {percent(moved)} moved"
            for f, (lost, extra, moved) in self.by_format().items()
        ]
        return "\n".join(
            [
                (
                    f"{self.name}: {len(self)} documents against their sources,"
                    f" {thousands(sum(r.words for r in self.rows))} words"
                ),
                *lines,
            ]
        )

    def _repr_html_(self) -> str:
        head = ("document", "format", "words", "lost", "extra", "moved", "missing")
        rows = []
        for r in self.rows:
            shares = percent(r.lost), percent(r.extra), percent(r.moved)
            rows.append((r.document, r.format, thousands(r.words), *shares, " ".join(r.missing[:8])))
        return f"<p><b>{escape(self.name)}</b></p>{html_table(head, rows)}"


def _pairs(root: Path, docs: Iterable[Document]) -> Iterator[tuple[Source, Document]]:
    files = {
        p.relative_to(root).with_suffix("").as_posix(): p for p in sorted(root.rglob("*")) if p.is_file()
    }
    for doc in docs:
        file = files.get(PurePosixPath(doc.id).with_suffix("").as_posix())
        if file:
            yield read_source(file.read_text(encoding="utf-8")), doc


@typed
def parser_losses(
    folder_or_name: (
        str | Path
    ),  # a folder with a dataset.toml that names its `sources`, or a data set that ships, by name
    **options: Any,  # for `load_corpus`
) -> Losses:
    """What our loaders lose of each document that has a source; raises `DataError` where no source can be
    found, as in an installed package."""
    folder = Path(folder_or_name) if Path(folder_or_name).exists() else shipped(str(folder_or_name))
    root = folder / str(dataset_info(folder).get("sources", "sources"))
    found = tuple(
        loss(source, doc) for source, doc in _pairs(root, load_corpus(folder, progress=False, **options))
    )
    if not found:
        raise DataError(
            "no document has a source here",
            str(root),
            "Sources are in the repository of ragbench, not in its package: clone it",
        )
    return Losses(folder.resolve().name, found)


def main(names: list[str]) -> int:
    "Print the losses of each data set; of all that ship and have sources, if none is named."
    shown = names or sorted(n for n, folder in shipped_datasets().items() if (folder / "sources").is_dir())
    for name in shown:
        print(parser_losses(name))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
