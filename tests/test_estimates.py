"""Intervals where a sample says little: few questions, nearly all found, nearly all tied; and how they are
put into words."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from ragbench.base.errors import RagbenchError
from ragbench.base.number_text import number
from ragbench.bench.results import Results
from ragbench.core.estimates import FEWEST_SCORES, bounded_interval, estimate, interval_words
from ragbench.index.ann_recall import AnnRecall
from ragbench.stats.agreement import order_agreement
from ragbench.stats.corrections import compare_to, holm
from ragbench.stats.intervals import bootstrap_interval
from ragbench.stats.paired_tests import compare_pair
from ragbench.stats.selection import selection_optimism
from ragbench.stats.slices import slice_by_tag
from ragbench.testing.calibration import SHARES, WORLDS, coverage, world_of
from ragbench.testing.toy_results import toy_results


@settings(max_examples=200, deadline=None)
@given(st.floats(-1e6, 1e6), st.sampled_from([".3f", "+.3f", ".2f", ",.0f", "+.1f", ".4g"]))
def test_no_number_is_a_signed_zero(x, form):
    text = number(x, form)
    assert "-" not in text
    if text[0] in "+−":
        assert any(c in "123456789" for c in text)
    assert float(text.replace("−", "-").replace(",", "")) == float(format(x, form).replace(",", ""))


@settings(max_examples=60, deadline=None)
@given(st.integers(FEWEST_SCORES, 60), st.integers(0, 60))
def test_counts_have_clopper_and_pearsons_interval(n, hits):
    hits = min(hits, n)
    exact = [
        beta.ppf(0.025, hits, n - hits + 1) if hits else 0.0,
        beta.ppf(0.975, hits + 1, n - hits) if hits < n else 1.0,
    ]
    np.testing.assert_allclose(bounded_interval(np.r_[np.ones(hits), np.zeros(n - hits)]), exact, atol=0.012)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]))
def test_no_interval_has_width_zero(seed, n, share):
    """Of scores, of differences, of equal ones and of few; what has no interval says so with NaN, never with
    a point."""
    rng = np.random.default_rng(seed)
    x = np.c_[(rng.random(n) < share), np.full(n, share), rng.beta(9, 1, n) ** 0.1]
    for low, high in [
        *bootstrap_interval(x, resamples=200),
        *((c.low, c.high) for c in compare_to(x, 0, resamples=200)),
    ]:
        assert np.isnan([low, high]).all() if n < FEWEST_SCORES else low < high, f"seed {seed}"
    mean = x.mean(axis=0)
    if n >= FEWEST_SCORES:
        ends = bootstrap_interval(x, resamples=200)
        assert (
            (ends[:, 0] <= mean + 1e-12).all()
            and (ends[:, 1] >= mean - 1e-12).all()
            and ends.min() >= 0
            and ends.max() <= 1
        )


def test_an_equal_quantity_without_a_scale_has_no_interval():
    assert np.isnan(bootstrap_interval(np.full(40, 7.0))).all()
    assert np.isfinite(bootstrap_interval(np.full(40, 7.0), bounds=(0, 10))).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(8, 30))
def test_edge_intervals_do_not_depend_on_company_or_order(seed, n):
    rng = np.random.default_rng(seed)
    x = (rng.random((n, 4)) < [0.97, 0.5, 0.03, 1.0]).astype(float)
    together = bootstrap_interval(x, resamples=200)
    np.testing.assert_allclose(bootstrap_interval(x[:, ::-1], resamples=200)[::-1], together, atol=1e-9)
    np.testing.assert_allclose(bootstrap_interval(x[:, 0], resamples=200), together[0], atol=1e-9)
    np.testing.assert_allclose(
        bootstrap_interval(np.repeat(x, 3, axis=0), resamples=200, clusters=np.repeat(np.arange(n), 3)),
        together,
        atol=1e-9,
    )
    a, b = compare_pair(x[:, 0], x[:, 3]), compare_pair(x[:, 3], x[:, 0])
    np.testing.assert_allclose((a.low, a.high), (-b.high, -b.low), atol=1e-9)


@pytest.mark.parametrize("n", [5, 10, 20, 50])
@pytest.mark.parametrize("name", [w.name for w in SHARES])
def test_shares_near_the_edge_are_covered(name, n):
    """At 98 % found and 20 questions an interval from the spread alone covers in a third of studies."""
    world = {w.name: w for w in SHARES}[name]
    covered = coverage(world, n, 300, seed=5)[0]
    assert covered >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 300), (name, n, covered)


@pytest.mark.parametrize("n", [10, 20, 30])
@pytest.mark.parametrize("name", [w.name for w in WORLDS if "zero" in w.name])
def test_mostly_tied_differences_are_covered_at_any_n(name, n):
    """With 90 % ties and ten questions a point was the interval of every third study."""
    world = {w.name: w for w in WORLDS}[name]
    covered = coverage(world, n, 400, seed=6)[0]
    assert covered >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 400), (name, n, covered)


def test_a_world_of_real_scores_has_their_mean_for_its_truth():
    scores = toy_results().scores("mrr")[:, 0]
    assert coverage(world_of("toy", scores), 20, 300)[0] > 0.91


def _of_few(n: int) -> Results:
    """Toy results of the first `n` answerable questions, all of them found."""
    from dataclasses import replace

    from ragbench.core.gold import Gold
    from ragbench.core.ranking import Ranking
    from ragbench.core.runs import Run

    whole = toy_results(sizes=(160,))
    kept = [q.query_id for q in whole.gold.answerable[:n]]
    rows = [i for i, q in enumerate(whole.gold.query_list) if q.query_id in kept]
    gold = Gold(
        tuple(whole.gold.query_list[i] for i in rows),
        tuple(e for e in whole.gold.evidence_list if e.query_id in kept),
    )
    systems = [
        replace(
            s,
            scores={m: np.ones(n) for m in s.scores},
            curve=np.ones((n, s.curve.shape[1])),
            ranking=Ranking(s.chunks, Run(tuple(kept), s.run.scores[rows], s.run.rows[rows])),
        )
        for s in whole.systems
    ]
    return replace(whole, gold=gold, systems=systems, latency_ms={}, step_ms={})


@pytest.mark.parametrize("n", [2, 12])
def test_every_table_is_careful_with_few(n, tmp_path):
    """No interval of width zero, no signed zero, and for two questions a sentence, in all that results
    show."""
    results = _of_few(n)
    shown = [
        str(results.leaderboard()),
        results.leaderboard()._repr_html_(),
        results.compare(),
        str(results.slices()),
        results.budget_curve().alt,
        results.report(tmp_path / "r.html").read_text(encoding="utf-8").split("<script")[0],
    ]
    for text in shown:
        assert "[1.000, 1.000]" not in text and "1.000 to 1.000" not in text and "[0.000, 0.000]" not in text
        assert "−0.000" not in text and "-0.000" not in text and "[nan" not in text and "nan to" not in text
    if n == 2:
        assert (
            "2 questions are too few" in shown[0]
            and "2 questions are too few" in shown[2]
            and "1 question is too few" in shown[3]
        )
        assert "2 questions are too few" in shown[4]
    else:
        assert "[0.7" in shown[0] and "1.000]" in shown[0]
        assert "at most 22.1 % of such questions would tell them apart" in shown[2]


def test_words():
    c = compare_pair(np.ones(40), np.ones(40))
    assert "they score the same on all 40 questions" in str(c) and "7.2 %" in str(c)
    assert "too few" in str(compare_pair([1, 0, 1], [0, 0, 1]))
    assert str(compare_pair([1.0, 0, 1], [0, 0, 1]).effect) == "no effect size"
    assert "too few" in repr(AnnRecall(np.ones(3), 5)) and "[1.000, 1.000]" not in repr(
        AnnRecall(np.ones(100), 5)
    )
    assert "level" in str(order_agreement(np.ones((9, 3)), np.ones((9, 3)))) and "too few" in str(
        order_agreement(np.tri(3), np.tri(3))
    )
    assert selection_optimism(np.ones((12, 3)) * 0.1).optimism.__str__()[0] != "-"
    assert (
        estimate(0.5, float("nan"), float("nan"), n=3)
        == "0.500 (no interval: 3 questions are too few, 5 are needed)"
    )
    assert interval_words(0.1, 0.2, 9) == "95 % interval 0.100 to 0.200"
    few = slice_by_tag([1, 1, 0.5, 1, 0, 1, 1], np.zeros(7), [["rare"], ["rare"], *[["usual"]] * 5])
    assert (
        few.notes == ["rare: no interval: 2 questions are too few, 5 are needed."]
        and "nan" not in str(few) + few._repr_html_()
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda: bootstrap_interval(None),
        lambda: bootstrap_interval("abc"),
        lambda: bootstrap_interval([["a"]]),
        lambda: bootstrap_interval([1, 0], level="x"),
        lambda: bootstrap_interval([1, 0], level=None),
        lambda: bootstrap_interval([1, 0], bounds=3),
        lambda: bootstrap_interval([1, 0], bounds=(1, 0)),
        lambda: holm("abc"),
        lambda: holm(None),
        lambda: selection_optimism(None),
        lambda: selection_optimism([[1, 0]] * 9, folds="five"),
        lambda: compare_to("abc", 0),
        lambda: compare_to([[1, 0]] * 9, "first"),
        lambda: compare_pair(None, None),
        lambda: order_agreement("a", "b"),
        lambda: order_agreement([[1, 0]] * 9, [[1, 0]] * 9, level="x"),
        lambda: slice_by_tag(None, None, []),
        lambda: bootstrap_interval([1, 0], bounds=(0, 0.5)),
        lambda: bounded_interval("abc"),
        lambda: bounded_interval([1.0], level=95),
    ],
)
def test_wrong_types_are_our_errors(call):
    with pytest.raises(RagbenchError):
        call()
