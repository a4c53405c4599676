"""Questions that would keep FTS5 busy for minutes: answered exactly in another way, or refused; never merely
slow."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ragbench as rb
from ragbench.base.errors import DataError
from ragbench.lexical import fts5
from ragbench.lexical.fts5 import FTS5, native_search, terms_of
from ragbench.lexical.query_work import MOST, SHORT, WORTH, fts5_work

OFF = settings(max_examples=60, deadline=None, derandomize=True)
STEMS = "pump pumps pumped valve valves oil level the".split()


def some_passages(seed, n=30):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(STEMS, rng.integers(1, 30))) for _ in range(n)]


@OFF
@given(
    st.integers(0, 10**6),
    st.lists(st.sampled_from([*STEMS, "nowhere", "Pump!"]), min_size=1, max_size=8),
    st.sampled_from(["porter unicode61", "unicode61", "trigram"]),
    st.sampled_from(["or", "and"]),
)
def test_postings_answer_as_fts5_does(seed, words, tokenize, match):
    built = FTS5(tokenize, match=match).build(some_passages(seed))
    query = " ".join(words)
    native = native_search(built.con, "passages", built.cache["compile"](query), built.weights, 30)
    scores, rows = fts5.search_postings(built.postings, terms_of(built, [query]), 30, every=match == "and")
    np.testing.assert_allclose(scores[0][rows[0] >= 0], native[0], rtol=1e-12)
    assert sorted(rows[0][rows[0] >= 0]) == sorted(native[1])


@OFF
@given(
    st.integers(0, 10**6),
    st.lists(st.sampled_from(STEMS), min_size=1, max_size=8),
    st.integers(0, 6),
    st.sampled_from(["porter unicode61", "unicode61"]),
)
def test_words_that_cannot_stand_so_near_are_not_looked_for(seed, words, near, tokenize):
    built = FTS5(tokenize, match="near", near=near).build(some_passages(seed))
    native = native_search(built.con, "passages", built.cache["compile"](" ".join(words)), built.weights, 30)
    scores, rows = built.search([" ".join(words)], 30)
    assert rows[0][rows[0] >= 0].tolist() == native[1].tolist()


LONG = ["pump " * 400] * 20 + ["valve pump " * 200] * 20 + ["pump " * 30_000, "oil and water"]
QUESTIONS = {
    "one word": lambda n: "pump " * n,
    "two words": lambda n: "pump valve " * (n // 2),
    "syllables": lambda n: " ".join(f"{'pump'[: 1 + i % 4]}{'xyz'[i % 3] * (i // 4 % 20)}" for i in range(n)),
    "letters": lambda n: "pump" * n,
}


@pytest.mark.parametrize("tokenize", ["porter unicode61", "trigram"])
@pytest.mark.parametrize("match", ["or", "and", "phrase", "near", "prefix"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_no_question_is_given_to_fts5_that_is_too_much_work(monkeypatch, question, match, tokenize):
    built, given = FTS5(tokenize, match=match).build(LONG), []
    monkeypatch.setattr(
        fts5,
        "native_search",
        lambda con, table, compiled, *more: given.append(compiled) or (np.empty(0), np.empty(0, np.int64)),
    )
    for n in (40, 200, 4_000):
        given.clear()
        refused = False
        try:
            built.search([QUESTIONS[question](n)], 5)
        except DataError:
            refused = True
        assert not refused or match in ("phrase", "near", "prefix")
        words = terms_of(built, [QUESTIONS[question](n)])[0]
        assert (
            not any(given)
            or len(words) <= SHORT
            or fts5_work(built.con, "passages", words, match) <= {"or": WORTH, "and": WORTH}.get(match, MOST)
        ), n


def test_a_long_repetitive_question():
    corpus = rb.Corpus([rb.Document("log", "pump " * 60_000), rb.Document("other", "the valve of the pump")])
    for match, found in (("or", True), ("and", True), ("near", True), ("prefix", True)):
        built = rb.System(
            rb.from_function(lambda text: [text], identity="whole"), rb.Lexical(FTS5(match=match))
        ).build(corpus)
        assert (built.search("pump " * 20_000, k=2).rows >= 0).all() == found, match
        assert built.explain("pump " * 20_000, 0).rank > 0
    built = rb.System(
        rb.from_function(lambda text: [text], identity="whole"), rb.Lexical(FTS5(match="phrase"))
    ).build(corpus)
    with pytest.raises(
        DataError,
        match=(
            "a question of 20,000 words would take 2.4e.09 steps with match='phrase'. Ask it in fewer words"
        ),
    ):
        built.search("pump " * 20_000)
    with pytest.raises(DataError, match="Ask it in fewer words"):
        built.explain("pump " * 20_000, 0)
    assert built.search("the valve of").run.of(0).size == 1
