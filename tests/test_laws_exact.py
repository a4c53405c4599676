"""What a number cannot be: a p below the possible, a corrected p below its own, an interval beyond its scale;
and a run that waits for itself."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbench.base.errors import StoreError
from ragbench.stats.clusters import grouping
from ragbench.stats.corrections import all_pairs_p, compare_to, max_t_p
from ragbench.stats.intervals import bootstrap_interval, mean_interval
from ragbench.stats.paired_tests import EXACT, compare_pair, sign_flip_p
from ragbench.stats.slices import slice_by_tag
from ragbench.store.artifacts import Store

DRAWS = st.integers(0, 10**6)


def scores_of(seed: int, n: int, s: int) -> np.ndarray:
    "Scores as recall and MRR have them, many of them 0 and 1."
    rng = np.random.default_rng(seed)
    return rng.choice([0, 1 / 3, 0.5, 1.0], size=(n, s), p=rng.dirichlet(np.ones(4)))


@settings(max_examples=60, deadline=None)
@given(DRAWS, st.integers(1, 30), st.integers(2, 4))
def test_a_corrected_p_is_never_below_its_own_nor_below_the_possible(seed, n, s):
    x = scores_of(seed, n, s)
    corrected = all_pairs_p(x)
    for a in range(s):
        for b in range(a):
            d = x[:, a] - x[:, b]
            assert corrected[a, b] >= compare_pair(x[:, a], x[:, b], resamples=100).p - 1e-12
            assert corrected[a, b] >= min(1, 2 / 2.0 ** np.count_nonzero(np.abs(d) > 1e-12)) - 1e-12
    d = x[:, 1:] - x[:, :1]
    assert (max_t_p(d) >= sign_flip_p(d) - 1e-12).all()


@pytest.mark.parametrize("n", range(1, EXACT + 1))
def test_few_questions_all_won_give_exactly_the_least_possible_p(n):
    x = np.c_[np.ones(n), np.zeros(n), np.zeros(n)]
    assert all_pairs_p(x)[0, 1] == 2 / 2**n == compare_pair(x[:, 0], x[:, 1], resamples=100).p
    many = np.r_[x, np.zeros((40, 3))]  # questions that tell nothing apart add nothing
    assert all_pairs_p(many)[0, 1] == 2 / 2**n


@given(DRAWS, st.integers(1, 8), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_few_groups_are_enumerated(seed, n, m):
    u = np.random.default_rng(seed).integers(-3, 4, size=(n, m)).astype(float)
    size = np.sqrt((u**2).sum(axis=0))
    scaled = u / np.where(size > 0, size, 1)
    signs = 1 - 2.0 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)
    largest = np.abs(signs @ scaled).max(axis=1)
    np.testing.assert_allclose(max_t_p(u), [(largest >= v - 1e-9).mean() for v in np.abs(scaled.sum(axis=0))])


def within(low, high, least, most):
    assert np.isnan(low) or least <= low <= high <= most, (low, high)


@settings(max_examples=60, deadline=None)
@given(DRAWS, st.integers(5, 12), st.booleans())
def test_no_interval_leaves_the_range_of_its_quantity(seed, n, grouped):
    x = scores_of(seed, n, 3)
    clusters = np.arange(n) // 2 if grouped else None
    for low, high in bootstrap_interval(x, resamples=200, clusters=clusters):
        within(low, high, 0, 1)
    for low, high in mean_interval(x, 0.95, 200, seed, clusters):
        within(low, high, 0, 1)
    pair = compare_pair(x[:, 0], x[:, 1], resamples=200, clusters=clusters)
    within(pair.low, pair.high, -1, 1)
    for c in compare_to(x, 0, resamples=200, clusters=clusters):
        within(c.low, c.high, -1, 1)
    tags = [("a",) if i % 2 else ("a", "b") for i in range(n)]
    for s in slice_by_tag(x[:, 0], x[:, 1], tags, clusters=clusters).slices:
        within(s.comparison.low, s.comparison.high, -1, 1)


def test_an_interval_beyond_the_range_is_cut_there():
    a, b = np.array([0, 0, 0, 0, 0, 0.5, 0]), np.array([1, 1, 1, 0.25, 1, 0, 0])
    assert compare_pair(a, b).low == -1


def test_a_metric_without_a_range_is_not_cut():
    tokens = np.array([10.0, 800, 20, 30, 10, 15, 12])
    assert bootstrap_interval(tokens)[0] < 0 or bootstrap_interval(tokens)[1] > 200
    close = compare_pair(
        5 + np.array([1.0, -1, -1, -1, -1, 1, 0.9]) / 2, 5 - np.array([1.0, -1, -1, -1, -1, 1, 0.9]) / 2
    )  # a scale of one's own, differences up to 1
    wide = compare_pair(np.array([8.0, 0, 0, 0, 0, 8, 7.2]), np.array([0.0, 8, 8, 8, 8, 0, 0]))
    assert close.low == pytest.approx(wide.low / 8) and close.low < -1


SELF = """
    from ragbench import *
    from ragbench import RagbenchError
    corpus = Corpus([Document("d", "one two three four five")])
    gold = Gold.from_spans([{"query_id": "q", "query": "two", "evidence": [{"doc_id": "d", "start": 4, "end": 7}]}])
    try: print(bench(corpus, gold, System(CharacterChunker(9, 0), Lexical(FTS5())), metrics=["recall@1"], progress=False, store=STORE).quality().iloc[0].to_dict())
    except RagbenchError as e:
        print("refused", e)
        raise
"""  # noqa: E501


@pytest.mark.parametrize("inner", ["'one'", "'other'"])
def test_a_file_that_shadows_a_library_and_calls_bench_is_named_and_nothing_waits(tmp_path, inner):
    "`import ranx` imports six: a script of that name in the same folder runs a bench inside the bench."
    (tmp_path / "six.py").write_text(f"STORE = {inner}\n" + textwrap.dedent(SELF))
    (tmp_path / "main.py").write_text("STORE = 'one'\n" + textwrap.dedent(SELF))
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240
    )
    assert "refused" in done.stdout and "six.py" in done.stdout and "ename" in done.stdout, (
        done.stdout + done.stderr
    )


def test_a_step_that_needs_itself_is_refused(tmp_path):
    store = Store(tmp_path)
    with pytest.raises(StoreError, match="itself"):
        store.make("scores", {"a": 1}, lambda: store.make("scores", {"a": 1}, dict).value("x"))
    assert store.make("scores", {"a": 1}, lambda: {"x": 1}).value("x") == 1  # and the lock is free again

    def inner():
        return {"x": store.make("scores", {"a": 3}, lambda: {"y": 2}).value("y")}

    assert store.make("scores", {"a": 2}, inner).value("x") == 2


def _results(budgets, n=1):
    from ragbench import FTS5, CharacterChunker, Corpus, Document, Gold, Lexical, System, bench

    corpus = Corpus([Document("d", "one two three four five six seven eight nine ten " * 9)])
    gold = Gold.from_spans(
        [
            {"query_id": f"q{i}", "query": "two", "evidence": [{"doc_id": "d", "start": 4 + i, "end": 7 + i}]}
            for i in range(n)
        ]
    )
    systems = {
        "small": System(CharacterChunker(20, 0), Lexical(FTS5())),
        "large": System(CharacterChunker(90, 0), Lexical(FTS5())),
    }
    return bench(corpus, gold, systems, metrics=["recall@1"], budgets=budgets, progress=False)


@pytest.mark.parametrize(
    ("budgets", "named"), [([50], "evidence_recall@50tok"), ([20, 30, 70], "evidence_recall@30tok"), ([], "")]
)
def test_the_advice_names_a_metric_that_is_there(tmp_path, monkeypatch, budgets, named):
    monkeypatch.chdir(tmp_path)
    said = str(_results(budgets).leaderboard())
    assert "@1000tok" not in said and ("compares at equal tokens" in " ".join(said.split())) is bool(named)
    assert named in said


def test_one_question_on_one_document_is_said_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = _results([50])
    note = results.leaderboard().notes[0]
    assert (
        note.startswith("Means over 1 question on 1 document,")
        and "(1 document " in note
        and "is too few" in note
    )
    assert "bootstrap" not in note and "no interval" in " ".join(results.leaderboard().notes)
    assert "on this document" in results.compare() or "these 1" not in results.compare()
    assert "1 documents" not in grouping(results.gold).note
