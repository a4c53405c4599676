"""Check the questions of the procedures dataset against the documents.

    python datasets/check_questions.py [FOLDER]

Reads the Markdown sources and the built files (PyMuPDF, python-docx), prints what is
wrong, one line a fault, each naming the question or document, and a summary. Exit 1
when anything is wrong.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
KEYS = ["query_id", "query", "answer", "tags", "split", "evidence"]
KINDS = ["identifier", "paraphrase", "multi", "unanswerable", "plain"]
EXTRA = ["table", "revision"]
LEAST = {"identifier": 18, "paraphrase": 22, "multi": 14, "unanswerable": 10, "revision": 4}
LEAST_QUESTIONS = 80
QUOTE_LENGTH = (40, 350)
RARE = 3  # a word is rare when at most so many documents have it
OVERLAP = 0.25
REPEAT_WORDS = 8
WORDS_TOTAL = (11_000, 13_000)
WORDS_EACH = (500, 1_300)

STOP = set(
    """a about above according after again against all almost also although always am an and any
    are as at away back be because been before being below between both but by can cannot could
    did do does doing done down during each either else enough even ever every few for from
    further get gets give go goes got had has have having he her here him his how i if in into is
    it its itself just keep kept kind let may me might more most much must my near neither never
    no nor not nothing now of off often on once one only or other our out over own per put rather
    same shall she should since so some still such take taken taking than that the their them then
    there these they this those through to together too two under until up upon us use used very
    was way we well were what when where whether which while who whom whose why will with within
    without would yet you your""".split()
)


# ------------------------------------------------------------------ words


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+(?:[.'][a-z0-9]+)*", text.lower().replace("\u2019", "'"))


def stem(word: str) -> str:
    """A light English stemmer: plural, -ing, -ed, -ly, -er, -ion and the like."""
    w = re.sub(r"'s?$", "", word)
    if re.search(r"\d", w) or len(w) < 4:
        return w
    if w.endswith("sses"):
        w = w[:-2]
    elif w.endswith("ies"):
        w = w[:-3] + "y"
    elif w.endswith("s") and not w.endswith(("ss", "us", "is")):
        w = w[:-1]
    suffixes = (
        "ations",
        "ation",
        "ements",
        "ement",
        "ments",
        "ment",
        "ings",
        "ing",
        "ions",
        "ion",
        "edly",
        "ed",
        "ers",
        "er",
        "ors",
        "or",
        "able",
        "ible",
        "ally",
        "al",
        "ly",
        "est",
        "ness",
        "ance",
        "ence",
        "ive",
        "y",
        "e",
    )
    for _ in range(2):
        for s in suffixes:
            if w.endswith(s) and len(w) - len(s) >= 3 and re.search(r"[aeiouy]", w[: -len(s)]):
                w = w[: -len(s)]
                break
        else:
            break
    if len(w) > 3 and w[-1] == w[-2] and w[-1] not in "lsz":
        w = w[:-1]
    return w


def content(text: str) -> set[str]:
    return {stem(w) for w in words(text) if w not in STOP and len(w) > 1}


def four_grams(text: str) -> set[tuple[str, ...]]:
    w = words(text)
    return {tuple(w[i : i + 4]) for i in range(len(w) - 3)}


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("\u00ad", "")).strip()


# ------------------------------------------------------------------ reading built files


def read_pdf(path: Path, furniture: re.Pattern) -> tuple[list[str], set[str]]:
    """The text of each page without header and footer, and all table rows."""
    import pymupdf

    pages, rows = [], set()
    with pymupdf.open(path) as pdf:
        for page in pdf:
            lines = [x for x in page.get_text().splitlines() if not furniture.match(x.strip())]
            pages.append(flat(" ".join(lines)))
            page_words = page.get_text("words", sort=False)
            for table in page.find_tables().tables:
                for row in table.rows:
                    rows.add(" | ".join(cell_text(page_words, c) for c in row.cells))
    return pages, rows


def cell_text(page_words: list[tuple], box: tuple | None) -> str:
    """The words whose middle is in a table cell.

    Table.extract() of PyMuPDF sets points and hyphens on a line of their own
    ("1320m\\n."), as it groups characters by the height of their ink.
    """
    if box is None:
        return ""
    x0, y0, x1, y1 = box
    inside = [w for w in page_words if x0 < (w[0] + w[2]) / 2 < x1 and y0 < (w[1] + w[3]) / 2 < y1]
    return flat(" ".join(w[4] for w in inside))


def read_docx(path: Path) -> tuple[list[str], set[str]]:
    import docx

    d = docx.Document(str(path))
    lines = [flat(p.text) for p in d.paragraphs]
    rows = {" | ".join(flat(c.text) for c in r.cells) for t in d.tables for r in t.rows}
    return lines, rows


def survives(quote: str, parts: list[str], rows: set[str]) -> bool:
    """Whether a quote is found whole in one page, paragraph or row of the built file."""
    if " | " in quote:
        return any(quote in r for r in rows)
    return any(flat(quote) in p for p in parts)


# ------------------------------------------------------------------ checks


def check(folder: Path) -> list[str]:
    faults: list[str] = []
    config = tomllib.loads((folder / "dataset.toml").read_text(encoding="utf-8"))
    spec = importlib.util.spec_from_file_location("procedures_build", folder / "build.py")
    build = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = build
    spec.loader.exec_module(build)

    docs = {d.file: d for d in build.load_all()}
    lines = {name: [flat(x) for x in build.canonical_lines(d)] for name, d in docs.items()}
    built: dict[str, tuple[list[str], set[str]]] = {}
    for name, d in docs.items():
        path = folder / config["documents"] / name
        if not path.exists():
            faults.append(f"{name}: not built")
            built[name] = ([], set())
        elif name.endswith(".pdf"):
            m = d.meta
            head = rf"{re.escape(m['doc'])} Rev {m['rev']}  "
            foot = rf"{build.SITE}$|{build.UNCONTROLLED}$|Page \d+ of \d+$"
            built[name] = read_pdf(path, re.compile(f"{head}|{foot}"))
        elif name.endswith(".docx"):
            built[name] = read_docx(path)
        else:
            text = path.read_text(encoding="utf-8").split("\n")
            built[name] = ([flat(x) for x in text], {flat(x) for x in text})

    # everything of the sources must be in the built file
    for name in docs:
        parts, rows = built[name]
        for line in lines[name]:
            text = re.sub(r"^(\d+\.|\u2022) ", "", line) if not name.endswith(".md") else line
            row = " | " in line and not name.endswith(".md")
            if not (
                text in rows
                if row
                else any(text in p for p in parts)
                or docs[name].meta.get("hyphenated")
                and "\u00ad" not in text
                and any(text in re.sub(r"(?<=[a-z])- (?=[a-z])", "", p) for p in parts)
            ):
                faults.append(f"{name}: lost in the build, or cut by a page break: {text[:70]!r}")

    # words
    counts = {}
    for name, d in docs.items():
        body = re.sub(r"<!--.*?-->|(?m:^\|[-| ]+\|$)", "", d.body)
        tokens = [w for w in re.split(r"[\s|]+", body) if re.search(r"\w", w)]
        counts[name] = len(tokens)
        if not WORDS_EACH[0] <= counts[name] <= WORDS_EACH[1]:
            faults.append(f"{name}: {counts[name]} words")
    if not WORDS_TOTAL[0] <= sum(counts.values()) <= WORDS_TOTAL[1]:
        faults.append(f"{sum(counts.values())} words in all")

    # repeats
    allowed = {" ".join(words(s)) for s in config.get("repeats", [])}
    seen: dict[str, set[str]] = defaultdict(set)
    for name in docs:
        for line in lines[name]:
            for sentence in re.split(r"(?<=[.!?])\s+", line):
                w = words(sentence)
                if len(w) >= REPEAT_WORDS:
                    seen[" ".join(w)].add(name)
    for sentence, where in seen.items():
        if len(where) > 1 and sentence not in allowed:
            faults.append(f"{', '.join(sorted(where))}: same sentence: {sentence!r}")
    for sentence in allowed:
        if len(seen.get(sentence, ())) < 2:
            faults.append(f"dataset.toml: listed repeat is in fewer than 2 documents: {sentence!r}")

    # document frequency
    frequency: Counter[str] = Counter()
    for name in docs:
        frequency.update(content(" ".join(lines[name])))

    # questions
    questions = []
    for n, line in enumerate((folder / config["questions"]).read_text(encoding="utf-8").splitlines(), 1):
        try:
            questions.append(json.loads(line))
        except json.JSONDecodeError as e:
            faults.append(f"{config['questions']} line {n}: {e}")
    kinds: Counter[str] = Counter()
    splits: Counter[str] = Counter()
    ids: Counter[str] = Counter(q.get("query_id", "?") for q in questions)
    texts: Counter[str] = Counter(q.get("query", "?") for q in questions)
    used: Counter[str] = Counter()
    for q in questions:
        i = q.get("query_id", "?")

        def fault(text: str, i: str = i) -> None:
            faults.append(f"{i}: {text}")

        if list(q) != KEYS:
            fault(f"keys are {list(q)}, not {KEYS}")
            continue
        if not re.fullmatch(r"procedures-\d{3}", i) or ids[i] > 1:
            fault("query_id malformed or used twice")
        if texts[q["query"]] > 1:
            fault("the same query is there twice")
        kind = [t for t in q["tags"] if t in KINDS]
        if len(kind) != 1 or set(q["tags"]) - set(KINDS) - set(EXTRA):
            fault(f"tags {q['tags']}")
            continue
        kind = kind[0]
        kinds.update(q["tags"])
        splits[q["split"]] += 1
        if q["split"] not in ("dev", "test"):
            fault(f"split {q['split']!r}")
        if kind == "unanswerable":
            if q["evidence"] or q["answer"] is not None:
                fault("unanswerable, yet with an answer or evidence")
            continue
        if not (isinstance(q["answer"], str) and q["answer"]):
            fault("no answer")
        n = len(q["evidence"])
        if not (2 <= n <= 3 if kind == "multi" else n == 1):
            fault(f"{n} pieces of evidence")
        if "table" in q["tags"] and not any(" | " in e["quote"] for e in q["evidence"]):
            fault("tagged table, but no quote is a table row")
        for e in q["evidence"]:
            extra = set(e) - {"doc_id", "quote", "start", "end"}
            if extra or "doc_id" not in e or "quote" not in e:
                fault(f"evidence keys {sorted(e)}")
                continue
            name, quote = e["doc_id"], e["quote"]
            if name not in docs:
                fault(f"no document {name}")
                continue
            used[name] += 1
            if "SUPERSEDED" in docs[name].meta["status"]:
                fault(f"evidence in a superseded document, {name}")
            if not QUOTE_LENGTH[0] <= len(quote) <= QUOTE_LENGTH[1]:
                fault(f"quote of {len(quote)} characters: {quote!r}")
            found = sum(x.count(quote) for x in lines[name])
            if found != 1:
                fault(f"quote found {found} times in {name}: {quote!r}")
            if not survives(quote, *built[name]):
                fault(f"quote is not in the text read from {name}: {quote!r}")
            for other in docs:
                if other != name and any(quote in x for x in lines[other]):
                    if " ".join(words(quote)) not in allowed:
                        fault(f"quote is also in {other}: {quote!r}")
            grams = four_grams(q["query"])
            shared = grams & four_grams(quote)
            if grams and len(shared) > OVERLAP * len(grams):
                fault(f"{len(shared)} of {len(grams)} four-grams are in the quote {quote!r}")
            if kind == "paraphrase":
                same = {w for w in content(q["query"]) & content(quote) if frequency[w] <= RARE}
                if same:
                    fault(f"paraphrase shares rare words {sorted(same)} with {quote!r}")
    for tag, least in LEAST.items():
        if kinds[tag] < least:
            faults.append(f"{kinds[tag]} questions tagged {tag}, {least} wanted")
    if len(questions) < LEAST_QUESTIONS:
        faults.append(f"{len(questions)} questions, {LEAST_QUESTIONS} wanted")
    for name in docs:
        if not used[name] and "SUPERSEDED" not in docs[name].meta["status"]:
            faults.append(f"{name}: no question uses it")

    print(f"{len(docs)} documents, {sum(counts.values())} words:")
    for name in docs:
        print(f"  {counts[name]:5d} words {used[name]:3d} quotes  {name}")
    print(f"{len(questions)} questions: " + ", ".join(f"{t} {kinds[t]}" for t in KINDS + EXTRA))
    print("splits: " + ", ".join(f"{s} {c}" for s, c in sorted(splits.items())))
    return faults


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "procedures"
    faults = check(folder)
    for f in faults:
        print(f"FAULT {f}", file=sys.stderr)
    print("ok" if not faults else f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
