"""FTS5 with any text at all: never an error, never another query than meant; and its postings against its own
ranking."""

import math
import os
import re
import sqlite3
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbench.base.errors import ConfigError, DataError
from ragbench.lexical.bm25 import METHODS, search_postings
from ragbench.lexical.bm25s import BM25S
from ragbench.lexical.fts5 import BATCH, FTS5
from ragbench.lexical.fts5_query import MATCHES, Words, unstemmed
from ragbench.store.fingerprint import hash64
from ragbench.system.build_context import search_fair

STOP = "the of and to a in is that it for"
hostile = st.one_of(
    st.text(max_size=40),
    st.text(alphabet=st.characters(), max_size=20),  # the second one includes half characters
    st.lists(
        st.sampled_from(
            [
                "pump",
                "pumps",
                "Valve",
                "tank",
                "the",
                "AND",
                "OR",
                "NOT",
                "NEAR(",
                "NEAR/2",
                "*",
                '"',
                "'",
                "(",
                ")",
                "^",
                "+",
                "-",
                ":",
                "text:",
                "{a b}",
                "C++?",
                "foo-bar",
                "it's",
                "\x00",
                "\ud800",
                "é",
                "e\u0301",
                "--",
                ";",
                "SELECT",
                "%",
                "_",
                "\u200b",
                "世界",
            ]
        ),
        max_size=12,
    ).map(" ".join),
)
words_of_few = st.lists(
    st.sampled_from("pump pumps pumping valve valves tank oil the a level".split()), max_size=9
).map(" ".join)


def plain_words(text: str) -> list[str]:
    """Words of ASCII text, by hand."""
    return re.findall(r"[a-z0-9]+", text.lower())


def brute_force(texts: list[str], query: str) -> np.ndarray:
    """FTS5's BM25, written out; −inf where no word occurs."""
    cut = [Counter(plain_words(t)) for t in texts]
    length = np.array([sum(c.values()) for c in cut], dtype=float)
    out, hit = np.zeros(len(texts)), np.zeros(len(texts), dtype=bool)
    for w in plain_words(query):
        tf = np.array([c[w] for c in cut], dtype=float)
        n = int((tf > 0).sum())
        idf = math.log((len(texts) - n + 0.5) / (n + 0.5))
        out += (
            (idf if idf > 0 else 1e-6)
            * tf
            * 2.2
            / (tf + 1.2 * (0.25 + 0.75 * length / max(length.mean(), 1e-300)))
        )
        hit |= tf > 0
    return np.where(hit, out, -np.inf)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(words_of_few, min_size=1, max_size=8),
    st.one_of(words_of_few, st.text(alphabet="pump AND OR()*\"':^+-{}.valve", max_size=30)),
)
def test_or_means_bm25_over_the_words_and_nothing_else(texts, query):
    want = brute_force(texts, query)
    index = FTS5("unicode61", weights=(1, 0)).build(texts)
    for n in (1, BATCH):
        scores, rows = index.search([query] * n, len(texts))
        found = rows[0] >= 0
        assert sorted(rows[0][found]) == np.flatnonzero(want > -np.inf).tolist()
        assert np.allclose(scores[0][found], want[rows[0][found]], rtol=0, atol=1e-9)
        assert (np.diff(scores[0][found]) <= 1e-12).all()


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(hostile, min_size=1, max_size=6),
    hostile,
    st.sampled_from(["porter unicode61", "unicode61 remove_diacritics 2", "ascii", "trigram"]),
    st.sampled_from(MATCHES),
)
def test_no_text_is_an_error_and_each_kind_of_match_means_what_it_says(texts, query, tokenize, match):
    _, rows = FTS5(tokenize, match, near=3, weights=(1, 0)).build(texts).search([query], len(texts))
    got = set(rows[0][rows[0] >= 0].tolist())
    cut = Words(tokenize)
    docs, words = cut(texts), cut([query])[0]
    if tokenize == "porter unicode61" and match == "prefix":
        return  # prefixes are stemmed: checked with the other tokenizers

    def means(doc: list[bytes]) -> bool:
        if not words:
            return False
        if match == "or":
            return any(w in doc for w in words)
        if match == "and":
            return all(w in doc for w in words)
        if match == "prefix":
            return any(d.startswith(w) for d in doc for w in words)
        if match == "phrase":
            return any(doc[i : i + len(words)] == words for i in range(len(doc)))
        return any(
            all(w in doc[i : i + 5] for w in words) for i in range(len(doc))
        )  # near=3: the first, three others, the last

    assert got == {i for i, d in enumerate(docs) if means(d)}


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(words_of_few, words_of_few), min_size=2, max_size=12),
    st.lists(words_of_few, min_size=1, max_size=4),
    st.sampled_from([(1.0, 1.0), (1.0, 0.3), (2.0, 0.7), (1.0, 0), (0, 1.0)]),
)
def test_the_postings_give_what_fts5_gives(pairs, queries, weights):
    from ragbench.core.chunks import Chunks
    from ragbench.core.documents import Corpus, Document

    docs = [Document(f"d{i}", t or "-") for i, (t, _) in enumerate(pairs)]
    n = len(docs)
    chunks = Chunks(
        Corpus(docs),
        np.arange(n),
        np.zeros(n, int),
        np.array([len(d) for d in docs]),
        section=[s for _, s in pairs],
    )
    same_order(FTS5(weights=weights).build(chunks), queries, n, hash64(chunks.texts), exact=True)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(words_of_few, min_size=2, max_size=12),
    st.lists(st.one_of(words_of_few, hostile), min_size=1, max_size=4),
)
def test_trigrams_go_to_fts5_itself_and_its_postings_rank_alike(texts, queries):
    """Batches of short questions never read the postings, which would find the same; a long question does."""
    index = FTS5("trigram", weights=(1, 0)).build(texts)
    alone = [index.search([q], len(texts)) for q in queries]
    index.search(queries * BATCH, len(texts))
    assert "postings" not in index.cache
    scores, rows = search_postings(index.postings, index.cache["words"](queries), len(texts))
    for i, (s, r) in enumerate(alone):
        assert sorted(r[0]) == sorted(rows[i])
        assert np.allclose(s[0][r[0] >= 0], scores[i][rows[i] >= 0], rtol=0, atol=1e-9)
    index.search(["pumps and valves " * 50], 1)
    assert "postings" in index.cache


@pytest.mark.parametrize("match", MATCHES)
@pytest.mark.parametrize("weights", [(1, 1), (2, 0.5), (1, 0), (0, 1)])
def test_an_attached_table_is_searched_by_the_weights_of_its_columns(weights, match):
    """The same table, built and attached; a column of weight 0 is not searched, though FTS5 would return what
    stands only in it."""
    from ragbench.core.chunks import Chunks
    from ragbench.core.documents import Corpus, Document

    rng = np.random.default_rng(4)

    def draw(n):
        return " ".join(rng.choice("pump valve tank oil level".split(), n))

    pairs = [(draw(rng.integers(1, 9)), draw(rng.integers(1, 3))) for _ in range(40)]
    con = sqlite3.connect(":memory:", isolation_level=None)
    con.execute("CREATE VIRTUAL TABLE mine USING fts5(body, path, tokenize='porter unicode61')")
    con.executemany(
        "INSERT INTO mine(rowid, body, path) VALUES (?, ?, ?)", [(i, *p) for i, p in enumerate(pairs)]
    )
    built = FTS5(match=match, near=1, weights=weights).build(
        Chunks(
            Corpus([Document(f"d{i}", t) for i, (t, _) in enumerate(pairs)]),
            np.arange(40),
            [0] * 40,
            [len(t) for t, _ in pairs],
            section=[s for _, s in pairs],
        )
    )
    attached = FTS5(match=match, near=1, weights=weights).attach(con, "mine")
    for n in (1, BATCH):
        for query in ("pump valve", "tank"):
            (s0, r0), (s1, r1) = built.search([query] * n, 40), attached.search([query] * n, 40)
            assert set(r0[0]) == set(r1[0])
            assert (s1[0][r1[0] >= 0] > 0).all()
            if all(weights):
                assert np.array_equal(s0, s1)
    mask = np.arange(40) < 9
    assert set(attached.search(["tank"], 40, where=mask)[1][0]) <= {-1, *range(9)}


@pytest.mark.parametrize(
    "wrong",
    [
        {"weights": (float("nan"), 1)},
        {"weights": (float("inf"), 1)},
        {"weights": None},
        {"weights": "ab"},
        {"weights": 1},
        {"weights": (1, 1, 1)},
        {"weights": (1, -1)},
        {"tokenize": 3},
        {"bm25": "lucene"},
        {"match": "AND"},
        {"near": 1.5},
    ],
    ids=repr,
)
def test_settings_that_make_no_sense_are_refused_at_once(wrong):
    with pytest.raises(ConfigError):
        FTS5(**wrong)


@pytest.mark.parametrize("engine", [FTS5(), BM25S()], ids=repr)
def test_both_engines_take_the_same_filters_and_refuse_the_same_mistakes(engine):
    if isinstance(engine, BM25S):
        pytest.importorskip("bm25s")
    texts = ["pump one", "valve two", "pump three", "a pump, a pump"]
    index = engine.build(texts)
    for where in ([0, 3], np.array([0, 3]), [True, False, False, True], np.array([True, False, False, True])):
        assert sorted(index.search(["pump"], 3, where=where)[1][0]) == [-1, 0, 3]
    assert index.search(["pump"], 2, where=[])[1].tolist() == [[-1, -1]]
    for where in (["a"], "pump", [0.5], [True]):
        with pytest.raises(DataError):
            index.search(["pump"], 2, where=where)
    for passages in ("pump", [], ["pump", None]):
        with pytest.raises(DataError):
            engine.build(passages)
    for queries in ("pump", [None]):
        with pytest.raises(DataError):
            index.search(queries, 1)


def test_a_path_is_not_a_connection():
    with pytest.raises(ConfigError, match="sqlite3.connect"):
        FTS5().attach("store.db", "passages")


def same_order(index, queries, k, text_hashes, exact=False):
    """FTS5's own answer (one question at a time) and that of the postings, after ties were decided."""
    native = [search_fair(index, [q], [q], text_hashes, k, slack=0.0) for q in queries]
    assert "postings" not in index.cache
    fast = search_fair(index, list(queries) * BATCH, list(queries) * BATCH, text_hashes, k, slack=0.0)
    assert "postings" in index.cache
    for i, (scores, rows) in enumerate(native):
        assert rows[0].tolist() == fast[1][i].tolist(), queries[i]
        assert np.allclose(
            scores[0][rows[0] >= 0], fast[0][i][rows[0] >= 0], rtol=0, atol=0 if exact else 1e-9
        ), queries[i]


@pytest.mark.parametrize(
    "tokenize", ["unicode61", "unicode61 remove_diacritics 2", "ascii", "porter unicode61"]
)
def test_cutting_a_word_again_changes_nothing(tokenize):
    """Questions are cut, quoted, and cut again by FTS5: for every character there is, the second time must
    change nothing."""
    chars = [chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    cut, block = Words(unstemmed(tokenize)), 4000
    for at in range(0, len(chars), block):
        once = cut([" ".join(f"x{c}y" for c in chars[at : at + block])])[0]
        assert cut([b" ".join(once).decode()])[0] == once


def test_a_hundred_kilobytes_of_anything():
    rng = np.random.default_rng(0)
    texts = ["pump " * 9, "valve", STOP]
    long = [
        "pump " * 20_000,
        "x" * 100_000,
        '"' * 100_000,
        "é" * 60_000,
        "\x00" * 100_000,
        " ".join(f"w{i}" for i in range(17_000)),
        "".join(map(chr, rng.integers(1, 0xD7FF, 30_000))),
    ]
    for match in MATCHES:
        scores, rows = FTS5(match=match).build([*texts, "é" * 60_000]).search(long, 2)
        assert rows[2].tolist() == rows[4].tolist() == [-1, -1]
        if match in ("or", "prefix"):
            assert rows[0, 0] == 0 and rows[3, 0] == 3
    assert FTS5().build(texts).search([STOP], 1)[1][0, 0] == 2


def test_filters_hold_in_both_ways():
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice("pump valve tank oil level the of".split(), 6)) for _ in range(200)]
    index, mask = FTS5().build(texts), rng.random(200) < 0.2
    want = index.search(["pump tank"], 200)
    for n in (1, BATCH):
        for where in (mask, np.flatnonzero(mask), np.flatnonzero(mask).tolist()):
            scores, rows = index.search(["pump tank"] * n, 200, where=where)
            assert set(rows[0][rows[0] >= 0]) == set(want[1][0][want[1][0] >= 0]) & set(np.flatnonzero(mask))
            assert (
                dict(zip(rows[0], scores[0])).items()
                <= (dict(zip(want[1][0], want[0][0])) | {-1: -np.inf}).items()
            )


@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("fts5", "bm25l", "bm25+")])
def test_variants_equal_bm25s(method):
    """The other formulas against another implementation; that one adds a constant to bm25l and bm25+, so
    those are left out."""
    bm25s = pytest.importorskip("bm25s")
    from ragbench.lexical.bm25 import BM25

    rng = np.random.default_rng(2)
    texts = [" ".join(rng.choice([f"w{i}" for i in range(30)], rng.integers(3, 12))) for _ in range(60)]
    theirs = bm25s.BM25(method=method, k1=1.4, b=0.6, dtype="float64")
    theirs.index([t.split() for t in texts], show_progress=False)
    ours = FTS5("unicode61", bm25=BM25(method, k1=1.4, b=0.6)).build(texts)
    queries = ["w1 w2", "w7", "w3 w4 w5 w29"]
    scores, rows = ours.search(queries, 60)
    for q, s, r in zip(queries, scores, rows):
        want = theirs.get_scores(q.split())
        assert np.allclose(s[r >= 0], want[r[r >= 0]], rtol=0, atol=1e-6)
        assert set(np.flatnonzero(want > 1e-9)) == set(r[r >= 0])


@pytest.mark.skipif(
    "RAGBENCH_DATA" not in os.environ, reason="RAGBENCH_DATA does not name the folder of public test data"
)
@pytest.mark.parametrize("name", ["scifact_beir", "cranfield"])
def test_real_questions_get_fts5s_own_ranking(name):
    texts, queries = read_collection(Path(os.environ["RAGBENCH_DATA"], name))
    index, hashes = FTS5().build(texts), hash64(texts)
    native = [search_fair(index, [q], [q], hashes, 10, slack=0.0) for q in queries]
    assert "postings" not in index.cache
    scores, rows = search_fair(index, queries, queries, hashes, 10, slack=0.0)
    assert "postings" in index.cache
    assert np.array_equal(rows, np.concatenate([r for _, r in native]))
    assert np.allclose(
        np.where(rows < 0, 0, scores),
        np.concatenate([np.where(r < 0, 0, s) for s, r in native]),
        rtol=0,
        atol=1e-9,
    )
    kept = search_postings(index.postings, index.cache["words"](queries), 100)[0]
    assert (np.diff(np.where(np.isinf(kept), -1, kept), axis=1) <= 0).all()


def read_collection(folder: Path) -> tuple[list[str], list[str]]:
    """(passages, questions) of SciFact or Cranfield."""
    if (folder / "corpus.jsonl").exists():
        from ragbench.ingest.collections import load_beir

        corpus, gold = load_beir(folder)
        return [d.text for d in corpus], [q.text for q in gold.query_list]
    parts = [
        re.split(r"^\.I \d+\s*$", (folder / f).read_text(encoding="utf-8", errors="replace"), flags=re.M)[1:]
        for f in ("cran.all.1400", "cran.qry")
    ]
    return [p.split(".W\n", 1)[1].strip() for p in parts[0]], [
        p.split(".W\n", 1)[1].strip() for p in parts[1]
    ]
