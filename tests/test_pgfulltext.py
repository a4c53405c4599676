"""PostgreSQL's full text through a real server: any text is a question, and the answer is that of a query
written by hand."""

import re

import numpy as np
import psycopg
import pytest
from psycopg import sql

from ragbench.base.errors import ConfigError, DataError
from ragbench.index.pgserver import private_database, stop_private
from ragbench.lexical.postgres import PgFullText
from ragbench.store.fingerprint import hash64
from ragbench.system.build_context import search_fair

TEXTS = [
    "Start the pump with the discharge valve closed.",
    "The pumps of unit 2 are inspected yearly.",
    "SOP-042 governs compressor starting.",
    "Tank roofs: see API 653.",
    "the of and",
    "",
    "pump \x00 pump \ud800 pump",
    "A valve, a pump and a tank; the tank has a valve.",
]


@pytest.fixture(scope="module")
def url():
    yield private_database()
    stop_private()


@pytest.fixture(scope="module", params=["and", "or"])
def built(request, url):
    return PgFullText(url, match=request.param).build(TEXTS)


def found(searcher, question: str, k: int = 50, **where) -> dict[int, float]:
    scores, rows = searcher.search([question], k, **where)
    assert scores.dtype == np.float64 and rows.dtype == np.int64 and rows.shape == scores.shape == (1, k)
    assert (np.diff(scores[0][rows[0] >= 0]) <= 0).all() and np.isneginf(scores[0][rows[0] < 0]).all()
    return dict(zip(rows[0][rows[0] >= 0].tolist(), scores[0].tolist()))


ODD = [
    "",
    " ",
    "*",
    '"',
    "''",
    "'; DROP TABLE x; --",
    "NEAR(",
    "\x00",
    "\x00 pump",
    "the of",
    "%s %(x)s %",
    "\ud800",
    "a:*&!|()<->",
    "!!",
    "& |",
    "x" * 20_000,
    "pump " * 4_000,
    "C++",
    "foo-bar",
    "it's",
    "http://a.b/c?d=e&f=g",
    "🙂",
    "\u200b",
    "pump" + "\u0301" * 3000,
    "\\",
    "\\' OR 1=1",
    "pump <-> valve",
    '"pump valve',
    "- - -pump",
]


@pytest.mark.parametrize("question", ODD, ids=lambda q: repr(q[:20]))
def test_no_text_is_an_error(built, question):
    answer = found(built, question)
    assert set(answer) <= set(range(len(TEXTS)))
    if not re.search(r"[a-z0-9]", question.lower()):
        assert not answer  # nothing to look for finds nothing


def test_the_table_is_still_there(built):
    assert set(found(built, "'; DROP TABLE x; --")) <= set(range(len(TEXTS))) and found(built, "tank")


@pytest.mark.parametrize(
    "question",
    ["starting pumps", "tank valve", '"discharge valve"', "pump -unit", "pump or tank", "SOP-042", "valve"],
)
def test_it_is_the_query_that_one_would_write(url, question):
    ours = PgFullText(url).build(TEXTS)
    with psycopg.connect(url) as con:
        query = sql.SQL(
            "SELECT id, ts_rank_cd(to_tsvector('english', text), q) FROM {}, websearch_to_tsquery('english',"
            " %s) q WHERE to_tsvector('english', text) @@ q"
        ).format(sql.Identifier(ours.table))
        want = dict(con.execute(query, (question,)).fetchall())
    assert found(ours, question) == pytest.approx(want) and want


@pytest.mark.parametrize(
    "question",
    [
        "compressor pumps",
        "pump -unit",
        "tank or roof",
        '"discharge valve" inspected',
        "what is the pump for?",
        "valve & !tank",
    ],
)
def test_or_means_any_of_the_words_and_nothing_else(url, question):
    """Operators are words for people who type; in a question of a benchmark they are punctuation."""
    loose = PgFullText(url, match="or").build(TEXTS)
    with psycopg.connect(url) as con:
        words = [w for w in re.findall(r"[a-z0-9]+", question.lower()) if w not in ("or",)]
        stems = [
            con.execute("SELECT plainto_tsquery('english', %s)::text", (w,)).fetchone()[0] for w in words
        ]
        query = sql.SQL(
            "SELECT id, ts_rank_cd(words, q) FROM {}, (SELECT %s::tsquery AS q) AS asked WHERE words @@ q"
        ).format(sql.Identifier(loose.table))
        want = dict(con.execute(query, (" | ".join(s for s in stems if s),)).fetchall())
    assert found(loose, question) == pytest.approx(want) and want
    assert min(want.values()) > 0


def test_filters_are_rows_or_masks(built):
    everything = found(built, "pump")
    mask = np.array([i % 2 == 1 for i in range(len(TEXTS))])
    for where in (mask, np.flatnonzero(mask), np.flatnonzero(mask).tolist(), mask.tolist()):
        assert found(built, "pump", where=where) == {r: s for r, s in everything.items() if mask[r]}
    assert (
        found(built, "pump", where=[])
        == found(built, "pump", where=np.zeros(len(TEXTS), bool))
        == {}
        == found(built, "pump", where=[999])
    )
    with pytest.raises(DataError, match="the mask has shape"):
        built.search(["pump"], 3, where=np.ones(3, bool))


def test_k_beyond_the_passages_is_filled_up(built):
    scores, rows = built.search(["pump", "nothing like it"], 1000)
    assert rows.shape == (2, 1000) and (rows[1] == -1).all() and 0 < (rows[0] >= 0).sum() < len(TEXTS)
    assert built.search([], 5)[1].shape == (0, 5)
    with pytest.raises(ConfigError, match="k is 0"):
        built.search(["pump"], 0)
    with pytest.raises(DataError, match="queries is one string"):
        built.search("pump", 1)


def test_the_first_k_are_the_first_of_more(built):
    hashes = hash64([t.replace("\ud800", "?") for t in TEXTS])
    few, many = (search_fair(built, ["pump"], ["pump"], hashes, k, slack=0.0)[1][0] for k in (2, 8))
    assert few.tolist() == many[:2].tolist()


def test_equal_scores_do_not_favour_the_first(url):
    """The same passages in another order give the same passages in the same order."""
    texts = [f"pump number{i}" for i in range(40)]
    answers = []
    for order in (range(40), np.random.default_rng(0).permutation(40)):
        shuffled = [texts[i] for i in order]
        rows = search_fair(
            PgFullText(url).build(shuffled), ["pump"], ["pump"], hash64(shuffled), 5, slack=0.0
        )[1][0]
        answers.append([shuffled[r] for r in rows])
    assert answers[0] == answers[1] and answers[0] != texts[:5]


def test_what_cannot_be_built_says_why(url):
    with pytest.raises(DataError, match="no passages"):
        PgFullText(url).build([])
    with pytest.raises(ConfigError, match="no text search configuration"):
        PgFullText(url, config="english'; DROP TABLE x; --").build(TEXTS)
    with pytest.raises(DataError, match="a text is a NoneType"):
        PgFullText(url).build(["pump", None])
    with pytest.raises(DataError, match="too large for PostgreSQL"):
        PgFullText(url).build(["pump", " ".join(f"w{i}" for i in range(200_000))])
    with psycopg.connect(url) as con:  # nothing half made stays behind
        assert not con.execute(
            "SELECT count(*) FROM pg_tables t WHERE tablename LIKE 'ragbench_%%' AND NOT EXISTS (SELECT 1"
            " FROM pg_indexes i WHERE i.tablename = t.tablename AND indexdef LIKE '%%gin%%')"
        ).fetchone()[0]


def test_a_table_can_be_dropped_and_systems_do_not_meet(url):
    one, other = PgFullText(url).build(["pump"]), PgFullText(url, "simple").build(["valve"])
    assert found(one, "pump") and not found(other, "pump") and one.nbytes > 0
    one.drop()
    assert found(other, "valve")
    assert "postgresql" not in repr(PgFullText("postgresql://u:secret@h/d")) and eval(
        repr(PgFullText(match="or"))
    ) == PgFullText(match="or")
