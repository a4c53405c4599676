"""Resolve the quotes of a dataset's questions to offsets in its documents.

    python datasets/resolve.py                        all datasets beside this script
    python datasets/resolve.py datasets/procedures    one of them
    python datasets/resolve.py --check                write nothing; exit 1 where an offset is missing or
    wrong

A piece of evidence names its document and quotes it word for word; this script adds `start` and `end`,
code-point offsets
into the canonical text that `load_corpus` gives. It fails, and writes nothing, when a quote does not stand in
its document
or stands there more than once. Run it again whenever documents, questions or loaders have changed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ragbench.apps.dataset_rules import places
from ragbench.base.errors import RagbenchError
from ragbench.core.documents import Corpus
from ragbench.ingest.load_corpus import dataset_info, load_corpus


def resolve(question: dict, corpus: Corpus) -> list[str]:
    """Set `start` and `end` of each piece of evidence of `question`; returns what is wrong with it."""
    problems = []
    for evidence in question.get("evidence") or ():
        doc_id, quote = evidence.get("doc_id"), evidence.get("quote")
        where = f"question {question.get('query_id')!r}, document {doc_id!r}"
        if not isinstance(quote, str) or not quote.strip():
            problems.append(f"{where}: there is no quote")
        elif doc_id not in corpus.rows:
            problems.append(f"{where}: there is no such document; the quote is {quote!r}")
        else:
            offsets = places(corpus[doc_id].text, quote)
            if len(offsets) == 1:
                evidence["start"], evidence["end"] = offsets[0], offsets[0] + len(quote)
                continue
            fault = (
                f"stands there {len(offsets)} times, at {offsets[:5]}" if offsets else "does not stand there"
            )
            problems.append(f"{where}: the quote {fault}: {quote!r}")
    return problems


def run(folder: Path, check: bool) -> list[str]:
    """Resolve one dataset; returns what is wrong."""
    info = dataset_info(folder)
    file = folder / info.get("questions", "questions.jsonl")
    corpus = load_corpus(folder, progress=False)
    expected = info.get("refused", [])
    problems = [
        f"document {e.source!r} was refused: {e.reason}" for e in corpus.errors if e.source not in expected
    ]
    before = file.read_text(encoding="utf-8")
    lines = []
    for n, line in enumerate(before.splitlines(), 1):
        if not line.strip():
            continue
        try:
            question = json.loads(line)
        except json.JSONDecodeError as e:
            problems.append(f"{file.name}, line {n}: not JSON: {e.msg}")
            continue
        problems += resolve(question, corpus)
        lines.append(json.dumps(question, ensure_ascii=False) + "\n")
    after = "".join(lines)
    if problems or after == before:
        return problems
    if check:
        return [f"{file.name}: offsets are missing or out of date; run datasets/resolve.py {folder.name}"]
    file.write_text(after, encoding="utf-8", newline="\n")
    return []


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "folders",
        nargs="*",
        type=Path,
        help="folders with a dataset.toml; all beside this script if none is given",
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit 1 if something is missing or out of date"
    )
    args = parser.parse_args(argv)
    folders = args.folders or sorted(p.parent for p in Path(__file__).resolve().parent.glob("*/dataset.toml"))
    n_problems = 0
    for folder in folders:
        try:
            problems = run(folder, args.check)
        except RagbenchError as e:
            problems = [str(e)]
        for problem in problems:
            print(f"{folder.name}: {problem}", file=sys.stderr)
        n_problems += len(problems)
        if not problems:
            print(f"{folder.name}: every quote stands exactly once in its document")
    return 1 if n_problems else 0


if __name__ == "__main__":
    sys.exit(main())
