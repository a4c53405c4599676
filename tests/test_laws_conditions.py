"""One condition, one meaning: for filters and boosts, and in every database and engine that runs here."""

import dataclasses
import datetime
import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ragbench as rb
from ragbench.base.choices import expanded
from ragbench.base.errors import ConfigError, DataError
from ragbench.core.chunks import Chunks
from ragbench.core.documents import Corpus, Document, Field, Heading, Page, Turn
from ragbench.index.chroma_index import ChromaIndex
from ragbench.index.conditions import (
    check_metadata,
    chunk_metadata,
    clauses,
    in_order,
    matching,
    matching_rows,
)
from ragbench.index.database_index import WithMetadata
from ragbench.index.faiss_flat import FaissFlat
from ragbench.index.pgserver import stop_private
from ragbench.index.pgvector_index import PgVectorIndex
from ragbench.index.qdrant_index import QdrantIndex
from ragbench.steps.boosts import Boost, Boosts
from ragbench.system.where import allowed_rows

OFF = settings(max_examples=150, deadline=None, derandomize=True)
RNG = np.random.default_rng(13)
TEXTS = [
    "active",
    "Active",
    "pump",
    "valve",
    "2020",
    "True",
    "a, b",
    "a",
    "b; c",
    "c",
    "pdf",
    "A4",
    "it's",
    "",
    "Ω, größer",
    "日本 🙂",
    "2020-01-02",
    "2020-01-02T10:00",
    "2020-01-02 23:30:00.25-02:00",
    "2020-01-03T00:15:00Z",
    "2020-02-30",
    "1999-12-31; 2020-01-04",
    "00:12",
    "01:00:00.5",
]
NUMBERS = [0, 1, -3, 2.5, 2020, 2020.0, 10**6]


def merged(parts):
    return parts[0] | parts[1]


def some_value():
    def one():
        return (
            TEXTS[RNG.integers(len(TEXTS))],
            NUMBERS[RNG.integers(len(NUMBERS))],
            bool(RNG.integers(2)),
        )[RNG.integers(3)]

    kind = RNG.integers(8)
    if kind == 0:
        return None
    if kind == 1:
        return datetime.date(2020, 1, 1 + int(RNG.integers(3)))
    if kind < 5:
        return [one() for _ in range(RNG.integers(0, 4))]
    return one()


FIELDS = ("status", "year", "tags", "doc", "format", "final", "page")


@functools.cache
def table():
    "Documents with hostile front matter, three chunks each."
    docs = []
    for i in range(40):
        text = f"Manual {i}\n\npump valve {i % 7} active\n\nSteps\n\nclose the {'pump' if i % 3 else 'valve'}"
        heads = tuple(Heading(1, t, text.index(t), text.index(t) + len(t)) for t in (f"Manual {i}", "Steps"))
        metadata = {f: some_value() for f in FIELDS if RNG.integers(5)}
        steps = text.index("Steps")
        docs.append(
            Document(
                f"d{i}.md" if i % 4 else f"t.csv#{i}",
                text,
                headings=heads,
                pages=(Page(1, 0, steps + 9), Page(2, steps + 9, len(text))) if i % 3 else (),
                turns=(Turn("Ana", "00:00:05", 0, 9), Turn("Bo, MD", "00:12:00.5", 9, steps + 9))
                if i % 5 == 0
                else (),
                fields=(Field("name", 0, 8),) if i % 2 else (),
                metadata=metadata,
                format=("pdf", "markdown")[i % 2],
            )
        )
    spans = [
        (i, *span)
        for i, d in enumerate(docs)
        for span in (
            (0, 8),
            (d.text.index("pump"), d.text.index("Steps") - 2),
            (d.text.index("Steps"), len(d.text)),
        )
    ]
    return Chunks(Corpus(docs), *np.array(spans).T)


X = np.random.default_rng(5).normal(size=(120, 8)).astype(np.float32)
MAKERS = {
    "faiss": lambda: WithMetadata(FaissFlat()),
    "pgvector": lambda: PgVectorIndex(index=None),
    "chroma": ChromaIndex,
    "qdrant": lambda: QdrantIndex(":memory:"),
    "qdrant-edge": QdrantIndex,
}


@pytest.fixture(scope="module")
def databases():
    built = {}
    for name, make in MAKERS.items():
        index = make()
        built[name] = index.build(X, chunk_metadata(table()))
    yield built
    for db in built.values():
        db.close()
    stop_private()


VALUES = st.sampled_from(
    [
        *TEXTS,
        *NUMBERS,
        True,
        False,
        "Manual 3",
        "Manual 3/Steps",
        "name",
        "d3.md",
        "markdown",
        "Ana",
        "00:00:05",
        4,
    ]
)
DATES = [
    "2020-01-02",
    datetime.date(2020, 1, 3),
    "2020-01-02T10:00:00Z",
    "2020-01-02T09:00+00:30",
    "2020-01-03T01:30:00.25",
    datetime.datetime(2020, 1, 3, 0, 15),
    "00:12",
    "00:12:00.5",
]
LIMITS = st.dictionaries(
    st.sampled_from(["$gt", "$gte", "$lt", "$lte"]),
    st.sampled_from([*NUMBERS, *DATES]),
    min_size=1,
    max_size=2,
)
UNEQUAL = st.one_of(VALUES, st.lists(VALUES, max_size=3)).map(lambda v: {"$ne": v})
CONDITIONS = st.dictionaries(
    st.sampled_from(
        [*FIELDS, "section", "field", "row", "speaker", "time", "meta_format", "meta_doc", "meta_page"]
    ),
    st.one_of(VALUES, st.lists(VALUES, max_size=3), LIMITS, UNEQUAL, st.tuples(LIMITS, UNEQUAL).map(merged)),
    max_size=2,
)


def plainly(doc, chunks, row, name):
    "The values of a field, written out once more."
    start, end = chunks.start[row], chunks.end[row]
    own = {
        "doc": [doc.id],
        "format": [doc.format],
        "section": ["Steps" if doc.text[start:].startswith("Steps") else doc.headings[0].title],
        "field": [f.name for f in doc.fields if f.start < end and start < f.end],
        "row": [int(doc.id.split("#")[1])] if "#" in doc.id and doc.fields else [],
        "page": [p.number for p in doc.pages if p.start < end and start < p.end],
        "speaker": [t.speaker for t in doc.turns if t.start < end and start < t.end],
        "time": [t.time for t in doc.turns if t.start < end and start < t.end],
    }
    if name in own:
        return own[name]
    held = doc.metadata.get(name.removeprefix("meta_"))
    if isinstance(held, list):
        return held
    if isinstance(held, datetime.date):
        return [str(held)]
    if isinstance(held, str):
        return [held, *(p.strip() for p in held.replace(";", ",").split(","))]
    return [] if held is None else [held]


def read_date(text):
    "A day, and a moment, by Python's own reader; two times None where it is neither."
    try:
        moment = datetime.datetime.fromisoformat(text)
    except (ValueError, TypeError):
        return None, None
    zone = moment.replace(tzinfo=moment.tzinfo or datetime.UTC)
    return moment.date(), zone


def read_time(text):
    if not isinstance(text, str) or text.count(":") not in (1, 2) or "-" in text:
        return None
    return datetime.timedelta(**dict(zip(("seconds", "minutes", "hours"), map(float, text.split(":")[::-1]))))


def passes(op, held, limit):
    ops = {"$gt": "__gt__", "$gte": "__ge__", "$lt": "__lt__", "$lte": "__le__"}
    if isinstance(limit, datetime.datetime):
        limit = limit.isoformat()
    if isinstance(limit, datetime.date) or (isinstance(limit, str) and len(limit) == 10):
        held, limit = read_date(held)[0], read_date(str(limit))[0]
    elif isinstance(limit, str) and "-" in limit:
        held, limit = read_date(held)[1], read_date(limit)[1]
    elif isinstance(limit, str):
        held, limit = read_time(held), read_time(limit)
    elif isinstance(held, (bool, str)):
        return False
    else:
        held, limit = float(held), float(limit)
    return held is not None and getattr(held, ops[op])(limit)


def holds(held, asked):
    def kind(v):
        return "bool" if isinstance(v, bool) else "text" if isinstance(v, str) else "number"

    def equal(choices):
        choices = choices if isinstance(choices, list) else [choices]
        return any(kind(h) == kind(a) and h == a for h in held for a in choices)

    if isinstance(asked, dict):
        return all(
            not equal(v) if op == "$ne" else any(passes(op, h, v) for h in held) for op, v in asked.items()
        )
    return equal(asked)


@functools.cache
def lexical():
    return rb.FTS5().build(table())


@OFF
@given(CONDITIONS)
def test_filters_boosts_and_databases_agree(databases, condition):
    chunks = table()
    docs = [chunks.corpus[int(r)] for r in chunks.doc_row]
    truth = np.array(
        [all(holds(plainly(d, chunks, i, f), v) for f, v in condition.items()) for i, d in enumerate(docs)],
        dtype=bool,
    )
    assert (matching_rows(chunks, condition) == truth).all()
    assert (matching(chunk_metadata(chunks), condition) == truth).all()
    assert allowed_rows(chunks, condition).tolist() == np.flatnonzero(truth).tolist()
    if condition:
        boosts = Boosts(Boost(condition, 1.0))
        assert [bool(boosts.applied("which?", chunks, i)) for i in range(len(chunks))] == truth.tolist()
    rows = lexical().search(["pump valve active close manual"], len(chunks), where=np.flatnonzero(truth))[1]
    assert sorted(rows[rows >= 0].tolist()) == np.flatnonzero(truth).tolist(), "FTS5"
    for name, db in databases.items():
        _, rows = db.search(X[:1], len(chunks), where=condition)
        assert sorted(rows[rows >= 0].tolist()) == np.flatnonzero(truth).tolist(), name


@pytest.mark.parametrize(
    "retrieve",
    [
        rb.Dense(rb.LSAEmbedder(8)),
        rb.Lexical(rb.FTS5()),
        rb.Lexical(rb.BM25S()),
        rb.Lexical(rb.FTS5("trigram")),
        rb.Hybrid(rb.Dense(rb.LSAEmbedder(8)), rb.Lexical()),
    ],
    ids=lambda r: r.label,
)
def test_every_retriever_obeys(retrieve):
    chunks = table()
    chunker = rb.from_function(
        lambda text: [
            text[:8],
            text[text.index("pump") : text.index("Steps") - 2],
            text[text.index("Steps") :],
        ],
        identity="three parts",
    )

    def plain(v):
        return str(v) if isinstance(v, datetime.date) else v

    corpus = Corpus(
        [dataclasses.replace(d, metadata={f: plain(v) for f, v in d.metadata.items()}) for d in chunks.corpus]
    )
    built = rb.System(chunker, retrieve).build(corpus)
    for condition in (
        {"tags": "a"},
        {"format": "pdf"},
        {"doc": ["d3.md", "d4.md"]},
        {"year": {"$gte": 1}},
        {"section": "Steps", "format": "markdown"},
    ):
        truth = matching_rows(chunks, condition)
        rows = built.search("close the pump or the valve, active manual", k=120, where=condition).rows
        assert sorted(rows[rows >= 0].tolist()) == np.flatnonzero(truth).tolist(), condition


def test_front_matter_hides_nothing(tmp_path):
    (tmp_path / "a.md").write_text(
        "---\ndoc: somebody else\nformat: A4\ntags: [pump, oil]\nassets: P-1, P-2\nbuilt: {by: me}\nnothing:"
        " []\n---\n# A\n\nOpen the valve."
    )
    (tmp_path / "b.md").write_text("# B\n\nOpen the valve, too.")
    built = rb.System(rb.TokenChunker(64, 0), rb.Lexical()).build(rb.load_corpus(tmp_path))

    def found(where):
        return [
            built.chunks.corpus[int(built.chunks.doc_row[r])].id
            for r in built.search("valve", where=where).run.of(0)
        ]

    assert sorted(found({"format": "markdown"})) == ["a.md", "b.md"] and found({"doc": "b.md"}) == ["b.md"]
    assert (
        found({"meta_format": "A4"})
        == found({"meta_doc": "somebody else"})
        == found({"tags": "oil"})
        == found({"assets": "P-2"})
        == found({"assets": "P-1, P-2"})
        == ["a.md"]
    )
    assert found({"format": "A4"}) == found({"tags": "Oil"}) == []
    for field, why in (
        ("built", "holds nothing that can be compared"),
        ("nothing", "holds nothing that can be compared"),
        ("id", "no document has the field 'id'. There is: assets, doc"),
    ):
        with pytest.raises(ConfigError, match=why):
            built.search("valve", where={field: "x"})
        with pytest.raises(ConfigError, match=why):
            rb.System(
                rb.TokenChunker(64, 0), rb.Lexical(), boosts=Boosts(Boost({field: "in query"}, 1))
            ).build(built.chunks.corpus)


@pytest.mark.parametrize(
    "bad",
    [
        {"a": {"$ne": None}},
        {"a": {"$ne": {"$gt": 1}}},
        {"a": {"$gt": "2020-02-30"}},
        {"a": {"$gt": "2020-01-02T25:00"}},
        {"a": {"$lt": [1]}},
        {"a": {"$nin": [1]}},
        {"a": {}},
        {"a": None},
        {"a": object()},
        {"a": [{}]},
        {"a": float("nan")},
        {1: 2},
        {"a": {"$gt": "x"}},
        {"a": {"$gt": True}},
        3.5,
        "active",
        [1.5],
        object(),
        [[0, 1]],
        {"doc": {"$in": ["a"]}},
    ],
)
def test_what_is_no_condition_is_refused_by_our_errors(bad, databases):
    chunks = table()
    with pytest.raises((ConfigError, DataError)):
        allowed_rows(chunks, bad)
    with pytest.raises((ConfigError, DataError)):
        expanded([Boost(bad, 1.0)])  # of a list, each
    for db in databases.values():
        with pytest.raises((ConfigError, DataError)):
            db.search(X[:1], 2, where=bad)


@pytest.mark.parametrize("text", ["a\x00", "\x00", "a\ud800", "\udfff b"])
def test_a_text_that_a_database_cannot_keep_is_neither_stored_nor_asked_for(text):
    with pytest.raises(DataError, match="NUL or half a character") as refusal:
        check_metadata([{"owner": "north"}, {"owner": ["south", text]}], 2)
    assert "row 1, field 'owner'" in str(refusal.value)
    for condition in ({"owner": text}, {"owner": ["north", text]}, {"owner": {"$ne": text}}):
        with pytest.raises(ConfigError, match="it asks for"):
            matching([{"owner": "north"}], condition)


def test_a_set_is_asked_for_in_one_order_whatever_process_asks():
    "Small numbers stand in a set by their rest after division, texts by a hash that differs by process."
    assert in_order({"n": {8, 1}, "of": {"$ne": frozenset("edcba")}}) == {
        "n": [1, 8],
        "of": {"$ne": list("abcde")},
    }
    assert clauses({"n": {8, 1, "8"}})[0].value == (1, 8, "8")
    assert in_order({"n": [8, 1]}) == {"n": [8, 1]}  # a list has its own


def test_a_filter_has_no_question(databases):
    "What only a boost can ask is refused, and not taken for a text that nobody holds."
    assert Boost({"doc": "in query"}, 1.0).applies("what does d3.md say?", {"doc": ["d3.md"]})
    with pytest.raises(ConfigError, match="does not look at the question"):
        allowed_rows(table(), {"doc": "in query"})
    for db in databases.values():
        with pytest.raises(ConfigError, match="does not look at the question"):
            db.search(X[:1], 2, where={"doc": "in query"})
