"""The data sets that ship pass every rule, and a set with any one fault is refused for it."""

import csv
import json
import math
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ragbench.apps.cli import app
from ragbench.apps.dataset_check import DatasetCheck, check_dataset
from ragbench.apps.dataset_rules import RULES
from ragbench.base.errors import ConfigError, DataError
from ragbench.core.documents import Corpus, Document
from ragbench.core.gold import Gold
from ragbench.core.gold_records import Lost, QuoteMatch
from ragbench.ingest.load_corpus import load_corpus, load_dataset
from ragbench.ingest.shipped import shipped_datasets

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tools" / "datasets")]
from check_shipped import check_set  # noqa: E402
from parser_losses import Source, loss, parser_losses, read_source  # noqa: E402
from shipped_rules import MAIN_TAGS, SHIPPED_RULES  # noqa: E402
from wording import content, copied, sentences, stemmed  # noqa: E402

SHIPPED = sorted(shipped_datasets())
BUILT = sorted(p.parent.name for p in (ROOT / "datasets").glob("*/build.py"))


@pytest.fixture(scope="module")
def checked() -> dict[str, DatasetCheck]:
    return {name: check_set(name) for name in SHIPPED}


# --- what ships ---------------------------------------------------------------------------------------------


def test_the_five_corpora_ship():
    assert {"procedures", "speakers", "textbook", "materials", "coaching"} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_set_that_ships_has_no_problem(name, checked):
    assert checked[name].problems == (), str(checked[name])
    assert checked[name].name == name  # the folder's name is how load_dataset finds it
    assert checked[name].license == "CC-BY-4.0"
    assert "Attribution 4.0" in (shipped_datasets()[name] / "LICENSE").read_text(encoding="utf-8")
    corpus, gold = load_dataset(name)
    assert (len(corpus), len(gold)) == (checked[name].counts["documents"], checked[name].counts["questions"])


def test_the_promises_of_each_set_are_what_it_has(checked):
    """A promise far below the facts would let questions vanish unseen."""
    for name, one in checked.items():
        promised = tomllib.loads((shipped_datasets()[name] / "dataset.toml").read_text(encoding="utf-8"))[
            "promises"
        ]
        for what in ("documents", "questions", "answers"):
            assert promised[what] == one.counts[what], (name, what)
        assert 0.9 * one.counts["words"] <= promised["words"] <= one.counts["words"], name
        assert set(MAIN_TAGS) <= set(promised["tags"]), name


def test_together_they_are_large_enough(checked):
    total = {
        what: sum(c.counts[what] for c in checked.values()) for what in ("words", "questions", "answers")
    }
    assert total["words"] >= 40_000
    assert total["questions"] >= 300
    assert total["answers"] >= 100


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "speakers" else n for n in BUILT]
)  # it encodes 126 texts
def test_files_are_what_their_sources_build(name):
    """Byte for byte, except that parts of a DOCX are compared unpacked and inline vectors to their last
    digit."""
    done = subprocess.run(
        [sys.executable, ROOT / "datasets" / name / "build.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_legacy_file_of_the_speakers_has_their_rows():
    """The quick half of what its build checks: texts word for word, vectors of the right length."""
    folder = ROOT / "datasets/speakers"
    about = tomllib.loads((folder / "dataset.toml").read_text(encoding="utf-8"))["legacy"]
    with (folder / "files/speakers.csv").open(encoding="utf-8", newline="") as f:
        rows = list(csv.DictReader(f))
    legacy = json.loads((folder / about["file"]).read_text(encoding="utf-8"))
    assert [{k: v for k, v in r.items() if k not in about["vectors"]} for r in legacy] == rows
    norms = [math.hypot(*r[k]) for r in legacy for k in about["vectors"] if len(r[k]) == about["dimensions"]]
    assert len(norms) == 2 * len(rows)
    assert all(abs(n - 1) < 1e-5 for n in norms)


def test_offsets_are_what_resolve_gives():
    done = subprocess.run(
        [sys.executable, ROOT / "datasets" / "resolve.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", [n for n in BUILT if (ROOT / "datasets" / n / "sources").is_dir()])
def test_loaders_lose_almost_nothing_of_a_source(name):
    sources = [p for p in (ROOT / "datasets" / name / "sources").rglob("*") if p.is_file()]
    refused = tomllib.loads((ROOT / "datasets" / name / "dataset.toml").read_text(encoding="utf-8")).get(
        "refused", []
    )
    losses = parser_losses(name)
    assert len(losses) == len(sources) - len(refused)  # a scan has a source, and no text to lose
    for row in losses:
        assert row.words > 200, row
        assert row.lost <= 0.005, row
        assert row.extra <= 0.01, row
        assert row.moved <= 0.005, row


def test_a_loss_is_seen(tmp_path):
    """The same comparison over a set whose built file lacks a sentence, has one too many, and has two
    swapped."""
    body = [
        f"Sentence {word} stands at its own place in this text."
        for word in ("alpha", "bravo", "charlie", "delta", "echo")
    ]
    for name, built in (
        ("cut", body[:-1]),
        ("more", [*body, "Page 3 of 9"]),
        ("swapped", [*body[3:], *body[:3]]),
    ):
        folder = tmp_path / name
        (folder / "files").mkdir(parents=True)
        (folder / "sources").mkdir()
        (folder / "dataset.toml").write_text('documents = "files"\nsources = "sources"\n')
        (folder / "sources/a.md").write_text("\n\n".join(body))
        (folder / "files/a.txt").write_text("\n\n".join(built))
    cut, more, swapped = ([*parser_losses(tmp_path / n)][0] for n in ("cut", "more", "swapped"))
    assert (cut.lost, cut.extra, cut.moved) == (0.2, 0, 0)
    assert sorted(cut.missing) == sorted("sentence echo stands at its own place in this text".split())
    assert (more.lost, more.moved, more.added) == (0, 0, ("page", "3", "of", "9"))
    assert (swapped.lost, swapped.extra, swapped.moved) == (0, 0, 0.4)


def test_what_a_source_is():
    """Front matter stands apart; comments, the language of a fence and the rule of a table are no words."""
    text = (
        "---\ntitle: Pump\n---\n# Pump\n\n<!-- pagebreak -->\nStart the **pump**.\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n```text\n06:14 trip\n```\n"
    )
    words = "pump start the pump a b 1 2 06 14 trip".split()
    assert read_source(text) == Source(words, ["title", "pump"])


def test_columns_read_across_are_moved():
    """They lose nothing and add nothing, and still no quote survives."""
    source = read_source("Close the valve before you open the drain\n\nWear gloves when you handle the acid")
    across = "Close the valve Wear gloves before you when you open the drain handle the acid"
    found = loss(source, Document("columns", across))
    assert (found.lost, found.extra) == (0, 0)
    assert found.moved > 0.2


def test_headers_and_footers_left_in_are_extra():
    plain, furnished = parser_losses("procedures"), parser_losses("procedures", strip_furniture=False)
    assert furnished.by_format()["pdf"][1] > 2 * plain.by_format()["pdf"][1]


def test_a_set_without_sources_has_no_losses():
    with pytest.raises(DataError, match="no document has a source here"):
        parser_losses("textbook")


# --- what is refused ----------------------------------------------------------------------------------------

TOML = """name = "sea"
title = "The sea"
license = "CC0-1.0"
documents = "files"
questions = "questions.jsonl"
tags = ["table"]
no_evidence = ["old*"]
"""
FILES = {
    "boat.md": (
        "A halyard lifts the sail up the mast.\n\nOn every passage the youngest hand keeps watch until the"
        " bell.\n\nLoosen the sheet first."
    ),
    "wind.md": (
        "Beaufort counted from zero to twelve.\n\n| force | name |\n|---|---|\n| 4 | moderate breeze |\n"
    ),
    "old.md": "Our grandfathers steered with an oar.",
}


def question(
    n: int,
    query: str,
    answer: str | None,
    tag: str,
    split: str,
    *quotes: tuple[str, str],
    more: tuple[str, ...] = (),
) -> dict:
    evidence = [
        {"doc_id": d, "quote": q, "start": (at := FILES[d].index(q)), "end": at + len(q)} for d, q in quotes
    ]
    return {
        "query_id": f"sea-{n}",
        "query": query,
        "answer": answer,
        "tags": [tag, *more],
        "split": split,
        "evidence": evidence,
    }


def questions() -> list[dict]:
    return [
        question(
            1,
            "Which rope hoists canvas?",
            "A halyard",
            "paraphrase",
            "dev",
            ("boat.md", "A halyard lifts the sail up the mast."),
        ),
        question(
            2,
            "What is force 4 called?",
            "Moderate breeze",
            "identifier",
            "test",
            ("wind.md", "| 4 | moderate breeze |"),
            more=("table",),
        ),
        question(3, "How salty is it?", None, "unanswerable", "test"),
        question(
            4,
            "Who stays awake, and how far does the scale go?",
            "The youngest; to twelve",
            "multi",
            "test",
            ("boat.md", "the youngest hand keeps watch"),
            ("wind.md", "Beaufort counted from zero to twelve."),
        ),
    ]


class Sea:
    """A small sound data set on disk that a test may break."""

    def __init__(self, folder: Path):
        self.folder, self.toml, self.files, self.asked = folder, TOML, dict(FILES), questions()
        self.lines: list[str] = []  # raw ones, after the questions
        self.head = ""  # the line before the questions, in a file that was saved by `Gold.save`
        self.readme = True

    def q(self, n: int, **changes) -> None:
        self.asked[n - 1] |= changes

    def e(self, n: int, **changes) -> None:
        self.asked[n - 1]["evidence"][0] |= changes

    def saved(self, **span) -> None:
        "The file has a head, and a piece of the last question only its place."
        self.head = '{"ragbench gold": 1, "unit": "evidence", "copies": "all"}\n'
        self.asked[3]["evidence"][0] = {"doc_id": "boat.md", "start": 56, "end": 85} | span

    def check(self) -> DatasetCheck:
        (self.folder / "files").mkdir(parents=True)
        for name, text in self.files.items():
            (self.folder / "files" / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        (self.folder / "dataset.toml").write_text(self.toml)
        (self.folder / "questions.jsonl").write_text(
            self.head + "".join(json.dumps(q) + "\n" for q in self.asked) + "".join(self.lines)
        )
        if self.readme:
            (self.folder / "README.md").write_text("Invented. CC0.")
        return check_set(self.folder)


@pytest.fixture
def sea(tmp_path) -> Sea:
    return Sea(tmp_path / "sea")


def test_the_sound_set_passes_and_loads(sea):
    found = sea.check()
    assert found, str(found)
    assert bool(found) is True
    assert str(found) == "sea: 3 documents, 40 words, 4 questions, 3 answers: no problems"
    corpus, gold = load_dataset(sea.folder)
    assert (len(corpus), len(gold)) == (3, 4)


HALYARD = "A halyard lifts the sail up the mast."
AGAIN = "On every passage the youngest hand keeps watch until the bell."

# (rule, how to break it, what the message must hold: the fault's value, question and document)
FAULTS = [
    ("description", lambda s: setattr(s, "toml", TOML.replace('title = "The sea"', "")), ["'title' is None"]),
    (
        "description",
        lambda s: setattr(s, "toml", TOML.replace('license = "CC0-1.0"', 'license = " "')),
        ["'license' is ' '"],
    ),
    ("description", lambda s: setattr(s, "toml", TOML.replace('name = "sea"', "name = 3")), ["'name' is 3"]),
    (
        "description",
        lambda s: setattr(s, "toml", TOML.replace('documents = "files"', "")),
        ["'documents' is None"],
    ),
    (
        "description",
        lambda s: setattr(s, "toml", TOML.replace('documents = "files"', 'documents = "fils"')),
        ["no such folder", "fils"],
    ),
    (
        "description",
        lambda s: setattr(s, "toml", TOML.replace('questions = "questions.jsonl"', "")),
        ["'questions' is None"],
    ),
    (
        "description",
        lambda s: setattr(s, "toml", TOML.replace("questions.jsonl", "asked.jsonl")),
        ["asked.jsonl"],
    ),
    ("description", lambda s: setattr(s, "toml", TOML + 'repeats = "one"\n'), ["'repeats' is 'one'"]),
    ("description", lambda s: setattr(s, "toml", TOML + "id_prefix = 7\n"), ["'id_prefix' is 7"]),
    (
        "description",
        lambda s: setattr(s, "toml", TOML + "[bounds]\ncopid = 0.5\n"),
        ["[bounds] has copid = 0.5"],
    ),
    (
        "description",
        lambda s: setattr(s, "toml", TOML + "[bounds]\nquote = [9, 3]\n"),
        ["[bounds] has quote = [9, 3]"],
    ),
    (
        "description",
        lambda s: setattr(s, "toml", TOML + "[promises]\nword = 9\n"),
        ["[promises] has word = 9"],
    ),
    (
        "description",
        lambda s: setattr(s, "toml", TOML + '[languages]\n"*" = "xx"\n'),
        ["[languages] has * = 'xx'"],
    ),
    ("description", lambda s: setattr(s, "toml", TOML + "name = 'twice'\n"), ["dataset.toml cannot be read"]),
    ("description", lambda s: setattr(s, "toml", TOML + "[csv]\ncolumns = 1\n"), ["'csv'", "'columns'"]),
    ("description", lambda s: setattr(s, "readme", False), ["no README.md"]),
    (
        "documents",
        lambda s: s.files.update({"scan.pdf": b"%PDF-1.4 nothing"}),
        ["document 'scan.pdf'", "it was refused"],
    ),
    (
        "documents",
        lambda s: setattr(s, "toml", TOML + 'refused = ["gone.pdf"]\n'),
        ["document 'gone.pdf'", "was not"],
    ),
    ("documents", lambda s: s.files.update({"void.md": "***\n"}), ["document 'void.md'"]),
    ("shape", lambda s: s.lines.append("{not json\n"), ["line 5 is not JSON"]),
    ("shape", lambda s: s.lines.append("[1]\n"), ["line 5 is not an object but [1]"]),
    ("shape", lambda s: s.asked[0].pop("evidence"), ["question 'sea-1'", "lacks 'evidence'"]),
    ("shape", lambda s: s.q(1, answer=7), ["question 'sea-1'", "has 7 as 'answer'"]),
    ("shape", lambda s: s.q(1, tags=["plain", 3]), ["has 3 as a tag"]),
    ("shape", lambda s: s.q(1, note="why"), ["unknown key 'note'"]),
    ("shape", lambda s: s.asked[0]["evidence"][0].pop("quote"), ["evidence that lacks 'quote'"]),
    ("shape", lambda s: s.e(1, start=True), ["has True as 'start'"]),
    ("shape", lambda s: s.e(1, grade=0), ["evidence of grade 0"]),
    ("shape", lambda s: s.asked.clear(), ["there is no question"]),
    ("shape", lambda s: s.saved(start="56"), ["evidence that has '56' as 'start'"]),
    ("shape", lambda s: setattr(s, "head", '{"ragbench gold": 2}\n'), ["first line", "version 2"]),
    (
        "shape",
        lambda s: setattr(s, "head", '{"ragbench gold": 1, "unit": "page"}\n'),
        ["first line", "'page' as 'unit'"],
    ),
    ("shape", lambda s: setattr(s, "head", '{"ragbench gold": 1, "n": 3}\n'), ["unknown key 'n'"]),
    ("shape", lambda s: s.q(1, params={"owner": [[1]]}), ["question 'sea-1'", "'owner' = [[1]]"]),
    ("shape", lambda s: s.q(1, lost=["ship.md"]), ["lost evidence that is not an object"]),
    ("shape", lambda s: s.q(1, lost=[{"doc_id": "ship.md", "page": 3}]), ["unknown key 'page'"]),
    ("shape", lambda s: s.q(1, lost=[{"doc_id": "ship.md", "grade": 0}]), ["evidence of grade 0"]),
    ("shape", lambda s: s.q(1, inexact=[{"quote": "rope"}]), ["an inexact quote that lacks 'doc_id'"]),
    ("shape", lambda s: s.q(1, nonrelevant=[7]), ["has 7 as the id"]),
    ("spans", lambda s: s.saved(end=9999), ["question 'sea-4'", "56, 9999", "characters"]),
    ("spans", lambda s: s.saved(doc_id="ship.md"), ["document 'ship.md'", "no such document"]),
    ("spans", lambda s: s.saved(hash="0123456789abcdef"), ["other words stand at 56, 85"]),
    ("ids", lambda s: s.q(2, query_id="sea-1"), ["question 'sea-1'", "2 questions"]),
    ("fields", lambda s: s.asked[0].pop("tags"), ["question 'sea-1'", "lacks 'tags'"]),
    ("fields", lambda s: s.asked[3].pop("answer"), ["question 'sea-4'", "lacks 'answer'"]),
    ("prefix", lambda s: s.q(2, query_id="lake-2"), ["question 'lake-2'", "'sea-'"]),
    (
        "prefix",
        lambda s: setattr(s, "toml", TOML + 'id_prefix = "ocean-"\n'),
        ["question 'sea-1'", "'ocean-'"],
    ),
    (
        "queries",
        lambda s: s.q(3, query="what is FORCE 4 called"),
        ["question 'sea-3'", "question 'sea-2' asks the same"],
    ),
    ("tags", lambda s: s.q(1, tags=["paraphrase", "plain"]), ["question 'sea-1'", "2 main tags"]),
    ("tags", lambda s: s.q(2, tags=["table"]), ["question 'sea-2'", "0 main tags"]),
    ("tags", lambda s: s.q(1, tags=["paraphrase", "tabel"]), ["question 'sea-1'", "'tabel'"]),
    (
        "tags",
        lambda s: setattr(s, "toml", TOML.replace('["table"]', '["table", "code"]')),
        ["no question has the tag 'code'"],
    ),
    ("splits", lambda s: s.q(2, split="train"), ["question 'sea-2'", "'train'"]),
    ("splits", lambda s: s.q(1, split="test"), ["no question is in 'dev'"]),
    ("answers", lambda s: s.q(1, answer=None), ["question 'sea-1'", "its answer is None"]),
    ("answers", lambda s: s.q(1, answer=" "), ["question 'sea-1'", "its answer is ' '"]),
    ("answers", lambda s: s.q(3, answer="Very"), ["question 'sea-3'", "'Very'"]),
    ("pieces", lambda s: s.q(1, evidence=[]), ["question 'sea-1'", "0 pieces"]),
    ("pieces", lambda s: s.asked[3]["evidence"].pop(), ["question 'sea-4'", "1 pieces"]),
    ("pieces", lambda s: s.q(3, evidence=s.asked[0]["evidence"]), ["question 'sea-3'", "1 pieces"]),
    ("pieces", lambda s: s.q(1, evidence=s.asked[3]["evidence"]), ["question 'sea-1'", "2 pieces"]),
    ("lengths", lambda s: s.q(1, query="Rope?"), ["question 'sea-1'", "5 characters", "'Rope?'"]),
    ("lengths", lambda s: s.q(1, answer="x" * 131), ["question 'sea-1'", "131 characters"]),
    ("lengths", lambda s: s.e(1, quote="A halyard", end=9), ["document 'boat.md'", "9 characters"]),
    (
        "lengths",
        lambda s: setattr(s, "toml", TOML + "[bounds]\nquote = [20, 30]\n"),
        ["document 'boat.md'", f"{len(HALYARD)} characters, not 20 to 30"],
    ),
    (
        "quotes",
        lambda s: s.e(1, quote="A halyard lifts a sail up the mast."),
        ["question 'sea-1', document 'boat.md'", "does not stand there", "lifts a sail"],
    ),
    (
        "quotes",
        lambda s: s.files.update({"boat.md": FILES["boat.md"] + "\n\n" + HALYARD}),
        ["question 'sea-1', document 'boat.md'", "2 times, at [0, 128]", HALYARD],
    ),
    (
        "quotes",
        lambda s: s.e(1, quote="\n\n", start=37, end=39),
        ["question 'sea-1'", "white space", r"'\n\n'"],
    ),
    (
        "quotes",
        lambda s: s.e(1, doc_id="ship.md"),
        ["question 'sea-1', document 'ship.md'", "no such document", HALYARD],
    ),
    (
        "offsets",
        lambda s: s.e(1, start=1),
        ["question 'sea-1', document 'boat.md'", "start and end are 1, 37", "stands at 0, 37"],
    ),
    ("offsets", lambda s: s.e(1, end=36), ["start and end are 0, 36"]),
    ("offsets", lambda s: s.e(1, start=None), ["start and end are None, 37"]),
    (
        "elsewhere",
        lambda s: s.files.update({"copy.md": f"So: {HALYARD}"}),
        ["question 'sea-1', document 'boat.md'", "'copy.md' as well", HALYARD],
    ),
    (
        "no_evidence",
        lambda s: s.q(1, evidence=question(1, "", "", "", "", ("old.md", FILES["old.md"]))["evidence"]),
        ["question 'sea-1', document 'old.md'", "'old*'"],
    ),
    ("no_evidence", lambda s: setattr(s, "toml", TOML.replace("old*", "ancient*")), ["'ancient*'"]),
    (
        "copied",
        lambda s: s.q(4, query="Is it the youngest hand keeps watch?"),
        ["question 'sea-4'", "50 %", "youngest hand keeps watch?"],
    ),
    (
        "paraphrases",
        lambda s: s.q(1, query="Which rope hoists sails?"),
        ["question 'sea-1', document 'boat.md'", "'sail'", HALYARD],
    ),
    (
        "repeats",
        lambda s: s.files.update({"deck.md": f"Hear me! {AGAIN}"}),
        ["document 'boat.md, deck.md'", "stands in 2 documents", "the youngest hand"],
    ),
    (
        "repeats",
        lambda s: setattr(s, "toml", TOML + f'repeats = ["{AGAIN}"]\n'),
        ["not in two documents", "the youngest hand"],
    ),
    (
        "tables",
        lambda s: s.q(1, tags=["paraphrase", "table"]),
        ["question 'sea-1', document 'boat.md'", "'table'"],
    ),
    (
        "languages",
        lambda s: (
            s.q(1, tags=["paraphrase", "lang:pt"]),
            setattr(s, "toml", TOML.replace('["table"]', '["table", "lang:pt"]')),
        ),
        ["question 'sea-1'", "'pt'", "['en']"],
    ),
    (
        "languages",
        lambda s: (
            s.q(1, tags=["paraphrase", "lang:en", "cross-language"]),
            setattr(s, "toml", TOML.replace('["table"]', '["table", "lang:en", "cross-language"]')),
        ),
        ["question 'sea-1'", "'en'"],
    ),
    (
        "promises",
        lambda s: setattr(s, "toml", TOML + "[promises]\nwords = 41\n"),
        ["40 words", "promises 41"],
    ),
    (
        "promises",
        lambda s: setattr(s, "toml", TOML + "[promises]\nquestions = 5\n"),
        ["4 questions", "promises 5"],
    ),
    (
        "promises",
        lambda s: setattr(s, "toml", TOML + "[promises]\ndocuments = 4\n"),
        ["3 documents", "promises 4"],
    ),
    (
        "promises",
        lambda s: setattr(s, "toml", TOML + "[promises]\nanswers = 4\n"),
        ["3 answers", "promises 4"],
    ),
    (
        "promises",
        lambda s: setattr(s, "toml", TOML + "[promises]\nused = 3\n"),
        ["2 documents used", "promises 3"],
    ),
    (
        "promises",
        lambda s: setattr(s, "toml", TOML + "[promises.tags]\nmulti = 2\n"),
        ["1 questions tagged 'multi'", "promises 2"],
    ),
]
BROKEN = [pytest.param(*f, id=f"{f[0]}-{i}") for i, f in enumerate(FAULTS)]


@pytest.mark.parametrize(("rule", "break_it", "said"), BROKEN)
def test_a_fault_is_refused_by_its_rule(sea, rule, break_it, said):
    break_it(sea)
    found = sea.check()
    assert not found
    mine = [p for p in found.problems if p.rule == rule]
    assert any(all(part in str(p) for part in said) for p in mine), str(found)
    assert all(str(p).startswith("sea") and p.fix for p in mine)


def test_a_quarter_may_be_copied(sea):
    """The bound itself passes: one of four runs of four words."""
    sea.q(4, query="Do we say the youngest hand keeps?")
    assert sea.check()


def test_every_rule_has_a_fault_that_only_it_finds(tmp_path):
    """So no rule can be taken away without a test that fails."""
    alone = set()
    for i, (rule, break_it, _) in enumerate(FAULTS):
        one = Sea(tmp_path / str(i) / "sea")
        break_it(one)
        if {p.rule for p in one.check().problems} == {rule}:
            alone.add(rule)
    assert alone >= {"description", *RULES, *SHIPPED_RULES}


def test_all_faults_are_told_at_once(sea):
    sea.toml = TOML.replace('title = "The sea"', "") + "[bounds]\nrare = -1\n"
    sea.files["bad.pdf"] = b"%PDF-1.4 nothing"
    sea.q(1, split="train", query_id="lake-1")
    sea.e(2, start=0)
    sea.lines.append("{\n")
    found = sea.check()
    assert [p.rule for p in found.problems] == [
        "description",
        "description",
        "documents",
        "shape",
        "offsets",
        "prefix",
        "splits",
        "splits",
    ]
    assert all(str(p) in str(found) for p in found.problems)
    assert "<table>" in found._repr_html_()
    assert "lake-1" in found._repr_html_()


def test_a_message_cannot_break_the_page(sea):
    sea.q(1, split="<script>")
    assert "<script>" not in sea.check()._repr_html_()


def test_bounds_of_the_description_are_applied(sea):
    sea.toml = TOML + "[bounds]\nrare = 0\ncopied = 1.0\n"
    sea.q(1, query="Which rope hoists sails?")  # rare = 0: no word is rare
    sea.q(4, query="Is it the youngest hand keeps watch?")  # copied = 1: everything may be
    assert sea.check()


def test_repeats_that_are_meant_pass(sea):
    sea.toml = TOML + f'repeats = ["{AGAIN}"]\nrefused = ["scan.pdf"]\n'
    sea.files |= {"deck.md": f"Hear me! {AGAIN}", "scan.pdf": b"%PDF-1.4 nothing"}
    sea.asked[3]["evidence"][0] |= {"quote": AGAIN, "start": 39, "end": 39 + len(AGAIN)}
    found = sea.check()
    assert found, str(found)


# --- a set of one's own ------------------------------------------------------------------------------------

PLAIN = {
    "query_id": "1",
    "query": "Who keeps watch?",
    "evidence": [{"doc_id": "boat.md", "quote": "the youngest hand keeps watch", "start": 56, "end": 85}],
}


def test_a_set_of_ones_own_need_not_be_like_ours(tmp_path):
    """No title, licence, README, tags, answers or splits, and a question in the words of its evidence."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files/boat.md").write_text(FILES["boat.md"])
    (tmp_path / "dataset.toml").write_text('documents = "files"\nquestions = "questions.jsonl"\n')
    (tmp_path / "questions.jsonl").write_text(json.dumps(PLAIN))
    check = check_dataset(tmp_path)
    assert check, str(check)
    assert check.counts == {"documents": 1, "words": 23, "questions": 1, "answers": 0}
    _, gold = load_dataset(tmp_path)
    assert len(gold) == 1
    ours = {problem.rule for problem in check_set(tmp_path).problems}
    assert ours == {"description", "fields", "splits"}


def own_set(folder: Path) -> Corpus:
    """A folder with the documents of the sea; its questions are to be saved."""
    (folder / "files").mkdir(parents=True)
    for name, text in FILES.items():
        (folder / "files" / name).write_text(text)
    (folder / "dataset.toml").write_text('documents = "files"\nquestions = "questions.jsonl"\n')
    return load_corpus(folder, progress=False)


def own_gold(corpus: Corpus) -> Gold:
    """Gold with all that a file of gold can hold."""
    asked = [row | {"params": {"owner": ["ana", "bo"], "year": 2024}} for row in questions()]
    for row in asked:
        row.pop("split")
    gold = Gold.from_quotes(asked, corpus)
    return replace(
        gold,
        lost=(Lost("sea-1", "ship.md", "A rope.", 2), Lost("sea-3", "salt.md")),
        nonrelevant=(("sea-2", "old.md"),),
        inexact=(QuoteMatch("sea-1", "a halliard lifts", "boat.md", 0, 16, 93.75, "fuzzy"),),
    )


@pytest.mark.parametrize("quoted", [True, False])
def test_saved_gold_passes_the_check_of_its_set(tmp_path, quoted):
    corpus = own_set(tmp_path / "sea")
    gold = own_gold(corpus)
    gold.save(tmp_path / "sea/questions.jsonl", corpus if quoted else None)
    check = check_dataset(tmp_path / "sea")
    assert check, str(check)
    assert check.counts["questions"] == 4
    assert load_dataset(tmp_path / "sea", progress=False)[1] == gold


def test_saved_gold_of_offsets_and_of_whole_documents_passes(tmp_path):
    corpus = own_set(tmp_path / "sea")
    path = tmp_path / "sea/questions.jsonl"
    spans = [{"query_id": "1", "query": "Who?", "evidence": [{"doc_id": "old.md", "start": 4, "end": 16}]}]
    Gold.from_spans(spans).save(path)
    assert '"quote"' not in path.read_text()
    assert check_dataset(tmp_path / "sea")
    Gold.from_qrels({"1": "Who?", "2": "Why?"}, {"1": {"old.md": 2, "wind.md": 0}}, corpus).save(path, corpus)
    assert '"hash"' in path.read_text()
    assert check_dataset(tmp_path / "sea")
    (tmp_path / "sea/files/old.md").write_text(FILES["old.md"].replace("oar", "axe"))
    assert [problem.rule for problem in check_dataset(tmp_path / "sea").problems] == ["spans"]


def test_saved_gold_with_a_line_separator_in_a_quote_passes(tmp_path):
    """U+2028 ends a line for `str.splitlines`, and none of a file of JSON lines."""
    corpus = own_set(tmp_path / "sea")
    row = {"query_id": "1", "query": "What\u2028now?", "evidence": [{"doc_id": "boat.md", "quote": HALYARD}]}
    Gold.from_quotes([row], corpus).save(tmp_path / "sea/questions.jsonl", corpus)
    assert check_dataset(tmp_path / "sea")


def test_a_file_nested_too_deeply_is_refused_and_not_a_crash(tmp_path):
    own_set(tmp_path / "sea")
    (tmp_path / "sea/questions.jsonl").write_text("[" * 100_000)
    assert "nested too deeply" in str(check_dataset(tmp_path / "sea"))


# --- wording ------------------------------------------------------------------------------------------------


def test_kin_have_one_stem():
    kin = ("pump pumps pumping pumped", "valve valves", "change changed", "novo nova novos", "class classes")
    for words in (*kin, "navegação navegación"):
        assert len({stemmed(word) for word in words.split()}) == 1, words
    assert [stemmed(word) for word in ("gas", "speed", "204a's")] == ["gas", "speed", "204a"]


def test_content_words_are_stems_without_stop_words():
    assert content("The pumps are pumping at P-204A's inlet.") == {"pump", "204a", "inlet"}
    assert content("a navegação", ["pt"]) == content("la navegación", ["es"])
    with pytest.raises(ConfigError, match="no stop words for language 'de'"):
        content("der Hund", ["de"])


def test_the_share_of_copied_runs():
    quote = "The first, H1, weighed 34 kg and used two swinging balances joined by springs"
    assert copied("What weighed 34 kg and used two swinging balances?", [quote]) == 5 / 6
    assert copied("How heavy was Harrison's first clock?", [quote]) == 0.0
    assert copied("And H1?", [quote]) == 0.0  # too short to copy four words


def test_sentences_end_at_lines_and_marks():
    text = "Stop. Never bar over the crankshaft\nby hand! Is it hot?"
    assert list(sentences(text, least=4)) == ["never bar over the crankshaft"]


# --- the command line ---------------------------------------------------------------------------------------


def test_check_on_the_command_line(sea):
    sea.e(1, start=1)
    sea.check()
    done = CliRunner().invoke(app, ["datasets", "check", "textbook", str(sea.folder), "no-such-set"])
    assert done.exit_code == 1
    assert "textbook: 11 documents" in done.stdout
    assert "[offsets] sea, question 'sea-1', document 'boat.md': start and end are 1, 37" in done.stdout
    assert "no data set 'no-such-set' ships with ragbench" in done.stderr
    assert "Traceback" not in done.output


def test_check_of_everything_passes_in_a_process_of_its_own(tmp_path):
    command = shutil.which("ragbench", path=Path(sys.executable).parent) or pytest.fail(
        "ragbench is not installed"
    )
    done = subprocess.run([command, "datasets", "check"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == SHIPPED


def test_the_check_of_ours_says_all_and_exits_with_1(sea):
    sea.q(1, split="train")
    sea.check()
    command = [
        sys.executable,
        ROOT / "tools/datasets/check_shipped.py",
        "textbook",
        sea.folder,
        "no-such-set",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "textbook: 11 documents" in done.stdout
    assert "[splits] sea, question 'sea-1': its split is 'train'" in done.stdout
    assert "no data set 'no-such-set' ships with ragbench" in done.stderr
    assert "Traceback" not in done.stderr


def test_list_on_the_command_line(checked):
    done = CliRunner().invoke(app, ["datasets", "list"])
    assert done.exit_code == 0
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert rows.pop("name") == ["documents", "words", "questions", "licence"]
    assert rows == {
        n: [*(f"{c.counts[k]:,}" for k in ("documents", "words", "questions")), "CC-BY-4.0"]
        for n, c in checked.items()
    }
