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

import csv
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tools" / "datasets"))
from build_files import is_check, status  # noqa: E402

MODEL = "all-MiniLM-L6-v2"
# key in the JSON: column it is made of
VECTORS = {"abstract_embedding": "abstract", "bio_embedding": "biography"}
DIGITS = 6
TOLERANCE = 1.5e-5  # one unit in the fifth digit, and rounding


def rows() -> list[dict[str, str]]:
    with open(HERE / "files" / "speakers.csv", encoding="utf-8", newline="") as f:
        return list(csv.DictReader(f))


def build() -> list[dict]:
    from ragbench.embed.sentence_transformer import SentenceTransformerEmbedder

    records: list[dict] = [dict(row) for row in rows()]
    embedder = SentenceTransformerEmbedder(MODEL)
    for key, column in VECTORS.items():
        vectors = embedder.embed_passages([record[column] for record in records]).array
        for record, vector in zip(records, vectors, strict=True):
            record[key] = [round(float(x), DIGITS) for x in vector]
    return records


def as_text(records: list[dict]) -> str:
    """One record a line."""
    lines = [json.dumps(record, ensure_ascii=False, separators=(",", ":")) for record in records]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def differences(old: list[dict], new: list[dict]) -> list[str]:
    if len(old) != len(new):
        return [f"{len(old)} records instead of {len(new)}"]
    faults = []
    for a, b in zip(old, new, strict=True):
        if list(a) != list(b):
            faults.append(f"{b['id']}: keys {list(a)}")
            continue
        faults += [f"{b['id']}: {key} differs" for key in b if key not in VECTORS and a[key] != b[key]]
        for key in VECTORS:
            is_far = any(abs(x - y) > TOLERANCE for x, y in zip(a[key], b[key], strict=False))
            if len(a[key]) != len(b[key]) or is_far:
                faults.append(f"{b['id']}: {key} differs")
    return faults


def main() -> int:
    compare = is_check(__doc__, "legacy/speakers.json")
    path = HERE / "legacy" / "speakers.json"
    records, faults = build(), []
    if not compare:
        path.parent.mkdir(exist_ok=True)
        path.write_text(as_text(records), encoding="utf-8", newline="\n")
    elif path.exists():
        faults = differences(json.loads(path.read_text(encoding="utf-8")), records)
    else:
        faults = [f"{path.name}: missing"]
    count = f"{len(records)} speakers, {len(VECTORS)} vectors each"
    return status(faults, f"{count}: {'match' if compare else 'built'}")


if __name__ == "__main__":
    sys.exit(main())
