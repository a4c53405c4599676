"""Build legacy/speakers.json from files/speakers.csv.

    python datasets/speakers/build.py            write legacy/speakers.json
    python datasets/speakers/build.py --check    build in memory, compare with legacy/, exit 1 on a difference

The JSON has the shape of stores that keep vectors inline: a list with one object a row, the columns of the
CSV first, then
`abstract_embedding` and `bio_embedding`. Another processor or version of torch may change the last digit of a
number, so
--check allows 0.00001 on each; texts must be equal.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL = "all-MiniLM-L6-v2"
VECTORS = {
    "abstract_embedding": "abstract",
    "bio_embedding": "biography",
}  # key in the JSON: column it is made of
DIGITS = 6
TOLERANCE = 1.5e-5  # one unit in the fifth digit, and rounding


def rows() -> list[dict[str, str]]:
    with open(HERE / "files" / "speakers.csv", encoding="utf-8", newline="") as f:
        return list(csv.DictReader(f))


def build() -> list[dict]:
    from ragbench.embed.sentence_transformer import SentenceTransformerEmbedder

    out: list[dict] = [dict(r) for r in rows()]
    embedder = SentenceTransformerEmbedder(MODEL)
    for key, column in VECTORS.items():
        vectors = embedder.embed_passages([r[column] for r in out]).array
        for record, vector in zip(out, vectors, strict=True):
            record[key] = [round(float(x), DIGITS) for x in vector]
    return out


def as_text(records: list[dict]) -> str:
    """One record a line."""
    return (
        "[\n"
        + ",\n".join(json.dumps(r, ensure_ascii=False, separators=(",", ":")) for r in records)
        + "\n]\n"
    )


def differences(old: list[dict], new: list[dict]) -> list[str]:
    if len(old) != len(new):
        return [f"{len(old)} records instead of {len(new)}"]
    out = []
    for a, b in zip(old, new, strict=True):
        if list(a) != list(b):
            out.append(f"{b['id']}: keys {list(a)}")
            continue
        out += [f"{b['id']}: {k} differs" for k in b if k not in VECTORS and a[k] != b[k]]
        for k in VECTORS:
            if len(a[k]) != len(b[k]) or max(abs(x - y) for x, y in zip(a[k], b[k], strict=True)) > TOLERANCE:
                out.append(f"{b['id']}: {k} differs")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="compare with legacy/speakers.json and write nothing"
    )
    args = parser.parse_args()
    path = HERE / "legacy" / "speakers.json"
    records = build()
    if args.check:
        bad = (
            differences(json.loads(path.read_text(encoding="utf-8")), records)
            if path.exists()
            else [f"{path.name}: missing"]
        )
        for line in bad:
            print(line, file=sys.stderr)
        if bad:
            return 1
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_text(as_text(records), encoding="utf-8", newline="\n")
    print(f"{len(records)} speakers, {len(VECTORS)} vectors each: {'match' if args.check else 'built'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
