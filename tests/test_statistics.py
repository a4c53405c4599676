"""What the statistics promise: calibration in small, invariance, clusters, corrections against reference
implementations."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import false_discovery_control, kendalltau, ttest_1samp

from ragbench.base.errors import ConfigError, DataError
from ragbench.core.gold import Gold
from ragbench.evaluate.tuning import METHODS, tune_fusion
from ragbench.stats.agreement import kendall_tau, order_agreement
from ragbench.stats.clusters import document_clusters, grouping
from ragbench.stats.corrections import (
    all_pairs_p,
    benjamini_hochberg,
    compare_family,
    compare_to,
    doubted,
    holm,
    max_t_p,
)
from ragbench.stats.intervals import bootstrap_interval, freedom
from ragbench.stats.paired_tests import EXACT, compare_pair, sign_flip_p, untailed
from ragbench.stats.power import minimal_detectable_difference, queries_needed
from ragbench.stats.selection import held_out_scores, selection_optimism
from ragbench.stats.slices import interaction_p
from ragbench.testing.calibration import WORLDS, coverage, false_claims
from ragbench.testing.toy_results import toy_results

NAMED = {w.name: w for w in WORLDS}


@pytest.mark.slow
@pytest.mark.parametrize("n", [50, 200])
@pytest.mark.parametrize("name", NAMED)
def test_intervals_cover(name, n):
    """93–97 % in every world, give or take two standard errors of 600 studies."""
    covered, below, above = coverage(NAMED[name], n, 600, seed=11)
    slack = 2 * np.sqrt(0.95 * 0.05 / 600)
    assert 0.93 - slack <= covered <= 0.97 + slack, (name, n, covered, below, above)


@pytest.mark.slow
@pytest.mark.parametrize("test", ["holm", "max-T"])
@pytest.mark.parametrize("n", [50, 200])
@pytest.mark.parametrize("name", NAMED)
def test_false_claims_stay_at_five_per_cent(name, n, test):
    """In every world; plain flips make 24 % in the most skewed at fifty questions, Hall's discount alone 8 %
    and 11 %."""
    studies = 400 if test == "holm" else 150
    assert false_claims(NAMED[name], n, test, studies=studies, seed=12) <= 0.05 + 3 * np.sqrt(
        0.05 * 0.95 / studies
    )


def test_skewed_families_are_held_by_the_bootstrap():
    """In small, the most skewed world: fails if a family's p goes back to discounted flips."""
    world, seen = NAMED["very skewed: log-normal 1"], {"flips": 0, "ours": 0, "max-T": 0}
    for study in range(100):
        d = world.fair(np.random.default_rng([31, study]), (50, 5))
        flips = holm(sign_flip_p(d, study))
        seen["flips"] += flips.min() <= 0.05
        seen["ours"] += doubted(flips, d, study).min() <= 0.05
        seen["max-T"] += max_t_p(d, study).min() <= 0.05
    assert seen["ours"] < seen["flips"], f"seeds [31, study]: {seen}"
    assert max(seen["ours"], seen["max-T"]) <= 100 * (0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)), (
        f"seeds [31, study]: {seen}"
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(20, 60), st.integers(1, 6))
def test_doubt_only_raises_and_knows_no_order(seed, n, systems):
    rng = np.random.default_rng(seed)
    d = np.exp(rng.normal(size=(n, systems))) - rng.uniform(0.5, 3, systems)
    d[:, rng.random(systems) < 0.3] *= -1
    d[rng.permutation(n)[: n // 2], 0] = 0.0
    p, order = rng.random(systems) * 0.1, rng.permutation(systems)
    out = doubted(p, d, seed)
    assert (out >= p).all() and (out <= 1).all()
    np.testing.assert_array_equal(doubted(p[order], 3 * d[:, order], seed), out[order])
    towards = np.sign(d.mean(axis=0)) == np.sign(((d - d.mean(axis=0)) ** 3).sum(axis=0))
    np.testing.assert_array_equal(out[towards], p[towards])
    exact = (d != 0).sum(axis=0) <= EXACT
    np.testing.assert_array_equal(out[exact], p[exact])
    if systems == 1:
        np.testing.assert_array_equal(out, p)


def test_a_family_keeps_its_power():
    """Real differences on skewed scores are found as often as by flips alone: they point towards their
    tail."""
    found = {"flips": 0, "ours": 0}
    for study in range(40):
        rng = np.random.default_rng([32, study])
        d = (rng.random((80, 5)) < 0.3) * rng.choice([1.0, 1.0, 1.0, -1.0], (80, 5))
        flips = holm(sign_flip_p(d, study))
        found["flips"] += (flips < 0.05).sum()
        found["ours"] += sum(c.p < 0.05 for c in compare_family(d, resamples=100, seed=study))
    assert found["flips"] > 60 and found["ours"] >= 0.95 * found["flips"], f"seeds [32, study]: {found}"


@pytest.mark.parametrize(("share", "expected"), [(1.0, 49), (0.5, 49), (0.2, 25), (0.1, 11.1)])
def test_degrees_of_freedom_count_what_is_not_zero(share, expected):
    """k differences of ±1 among n: 2 k / (1 - k / n), the binomial count's own relative variance, and never
    more than n - 1."""
    k = int(50 * share)
    u = np.zeros((50, 1))
    u[:k, 0] = np.where(np.arange(k) % 2, 1.0, -1.0)
    assert freedom(u - 0.0)[0] == pytest.approx(expected, abs=0.05)
    normal = np.random.default_rng(33).normal(size=(50, 1)) * (np.arange(50) < k)[:, None]
    assert freedom(normal)[0] <= expected + 1e-9


def test_a_mostly_zero_interval_is_longer_than_the_percentiles():
    """Ten differences among fifty questions: fails if the interval goes back to percentiles or to n - 1
    degrees of freedom."""
    world = NAMED["80 % zero, else normal"]
    d = world.draw(np.random.default_rng(3), (50, 200))
    ours = np.diff(bootstrap_interval(d - 0.001, resamples=500), axis=1).mean()
    se = d.std(axis=0, ddof=1).mean() / np.sqrt(50)
    assert ours > 2 * 2.03 * se


def test_discount_is_one_sided_and_never_raises_significance():
    for seed in range(30):
        d = np.random.default_rng([21, seed]).exponential(size=(60, 1)) - 0.8
        shrink = untailed(d)[0]
        assert 0 <= shrink <= 1
        assert shrink == 1 or d.mean() < 0, f"seed [21, {seed}]: discounted along its tail"
        assert untailed(-d)[0] == pytest.approx(shrink, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 8), st.integers(1, 4))
def test_clusters_of_one_are_no_clusters(seed, groups, each):
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 5, (groups * each, 3)) / 4, rng.integers(0, 5, groups * each) / 4
    one = rng.permutation(len(x))
    np.testing.assert_allclose(
        bootstrap_interval(x[np.argsort(one)], resamples=100, clusters=np.arange(len(x))),
        bootstrap_interval(x[np.argsort(one)], resamples=100),
        atol=1e-12,
    )
    np.testing.assert_array_equal(
        sign_flip_p(x - y[:, None], clusters=np.arange(len(x))), sign_flip_p(x - y[:, None])
    )
    # the names of clusters and the order within them do not matter
    clusters = np.repeat(np.arange(groups), each)
    within = np.concatenate([g * each + rng.permutation(each) for g in range(groups)])
    a = compare_pair(x[:, 0], y, resamples=100, clusters=clusters)
    b = compare_pair(x[within, 0], y[within], resamples=100, clusters=[f"doc {g}" for g in clusters])
    np.testing.assert_array_equal(
        (a.p, a.low, a.high, a.groups), (b.p, b.low, b.high, b.groups)
    )  # without an interval for fewer than five groups


def test_copies_of_a_document_add_no_certainty():
    """Every question asked four times about the same document must not shorten the interval."""
    d = np.random.default_rng(4).normal(0.05, 0.2, 40)
    once = compare_pair(d, np.zeros(40))
    four = compare_pair(np.repeat(d, 4), np.zeros(160), clusters=np.repeat(np.arange(40), 4))
    naive = compare_pair(np.repeat(d, 4), np.zeros(160))
    assert four.p == once.p and (four.low, four.high) == pytest.approx((once.low, once.high), abs=1e-9)
    assert naive.high - naive.low < 0.6 * (once.high - once.low)
    assert minimal_detectable_difference(
        np.repeat(d, 4), clusters=np.repeat(np.arange(40), 4)
    ) == pytest.approx(minimal_detectable_difference(d))
    assert max_t_p(np.c_[d]) == pytest.approx(
        all_pairs_p(np.c_[np.repeat(d, 4), np.zeros(160)], clusters=np.repeat(np.arange(40), 4))[0, 1]
    )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=15))
def test_document_clusters_are_connected_components(docs):
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    gold = Gold.from_spans(
        [
            {
                "query_id": f"q{i}",
                "query": "?",
                "evidence": [{"doc_id": f"d{d}", "start": 0, "end": 5} for d in ds],
            }
            for i, ds in enumerate(docs)
        ]
    )
    edges = [(i, len(docs) + d) for i, ds in enumerate(docs) for d in ds]
    size = len(docs) + 10
    theirs = connected_components(
        coo_array((np.ones(len(edges)), np.array(edges).T), (size, size)), directed=False
    )[1][: len(docs)]
    ours = document_clusters(gold)
    assert ((ours[:, None] == ours) == (theirs[:, None] == theirs)).all()
    assert grouping(gold).labels is None  # never with fewer than twenty


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_false_discovery_rate_is_scipys(p):
    np.testing.assert_allclose(benjamini_hochberg(p), false_discovery_control(p), atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12))
def test_tau_is_scipys(seed, systems):
    a, b = np.random.default_rng(seed).integers(0, 5, (2, systems)).astype(float)
    np.testing.assert_allclose(kendall_tau(a, b), kendalltau(a, b).statistic, atol=1e-12)


def test_corrections_are_ordered():
    rng = np.random.default_rng(5)
    x = rng.normal(0.5, 0.2, (60, 6)) + [0, 0.02, 0.05, 0.08, 0.1, 0.12]
    p = {
        c: np.array([k.p for k in compare_to(x, 0, resamples=100, correction=c)])[1:]
        for c in ("none", "bh", "holm")
    }
    assert (p["none"] <= p["bh"]).all() and (p["bh"] <= p["holm"]).all() and (p["none"] < p["holm"]).any()
    pairs = {c: all_pairs_p(x, correction=c) for c in ("none", "bh", "tukey")}
    assert (pairs["none"] <= pairs["tukey"] + 0.01).all() and (pairs["bh"] < pairs["tukey"]).any()


def test_queries_needed_is_the_inverse_of_the_detectable_difference():
    d = np.random.default_rng(6).normal(0.03, 0.2, 90)
    for target in (0.02, 0.05, 0.1):
        n = queries_needed(d, target)
        scaled = [np.resize(d - d.mean(), m) * d.std() / np.resize(d - d.mean(), m).std() for m in (n, n - 2)]
        assert minimal_detectable_difference(scaled[0]) <= target * 1.01
        assert minimal_detectable_difference(scaled[1]) >= target * 0.98


def test_held_out_never_sees_its_document():
    """A system that is perfect on one document only is chosen there only if that document chose."""
    document = np.repeat(np.arange(10), 4)
    x = np.full((40, 11), 0.5)
    x[np.arange(40), document] = 1.0  # system j is perfect on document j
    held, chosen = held_out_scores(x[:, :10], folds=10, clusters=document)
    np.testing.assert_allclose(held, 0.5)
    assert held_out_scores(x[:, :10], folds=10)[0].mean() > 0.5
    o = selection_optimism(x, clusters=document)
    assert o.in_sample == pytest.approx(0.55) and o.optimism > 0


def test_interaction_sees_what_two_tests_do_not():
    """Significant here and not there is no interaction; the same size in both slices must not be one."""
    rng = np.random.default_rng(7)
    tags = np.zeros((100, 1), bool)
    tags[:80] = True

    def shaped(z):
        return 0.05 + 0.12 * (z - z.mean()) / z.std(ddof=1)

    d = np.r_[shaped(rng.normal(size=80)), shaped(rng.normal(size=20))]
    assert ttest_1samp(d[:80], 0).pvalue < 0.05 < ttest_1samp(d[80:], 0).pvalue
    assert interaction_p(d, tags)[0] > 0.05
    assert interaction_p(d + np.where(tags[:, 0], 0.1, -0.1), tags)[0] < 0.01


def test_agreement_of_a_gold_with_its_own_halves():
    rng = np.random.default_rng(8)
    x = np.linspace(0.2, 0.8, 8) + rng.normal(0, 0.2, (200, 8))
    halves = order_agreement(x[:100], x[100:], resamples=500)
    backwards = order_agreement(x[:100], 1 - x[100:], resamples=500)
    assert halves.low > 0.7 and backwards.high < -0.7 and halves.same_first > 0.5 > backwards.same_first


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_fusion_of_benchmark_results_is_tuned(method):
    """Results go in as they are, with their chunks and names; held-out scores are scores of candidates."""
    results = toy_results(sizes=(160,), rounds=1)
    pair = [results["char160 minilm"], results["char160 bm25"]]
    t = tune_fusion(results.gold, pair, method, "mrr", 5, depth=10)
    assert set(t.against) == {"plain RRF(60)", "char160 minilm alone", "char160 bm25 alone"}
    np.testing.assert_allclose(
        t.plain["char160 bm25 alone"].mean(),
        results.scores("mrr")[:, results.names.index("char160 bm25")].mean(),
        atol=0.05,
    )
    assert t.scores.shape == (results.n, len(METHODS[method][1])) and t.held.shape == (results.n,)
    assert (
        t.optimism.in_sample == t.scores.mean(axis=0).max()
        and t.held_out[1] <= t.held_out[0] <= t.held_out[2]
    )
    assert repr(t.best) in t.verdict and "<table" in t._repr_html_() and len(t.to_frame()) == len(t.values)
    assert (t.held >= t.scores.min(axis=1) - 1e-12).all() and (t.held <= t.scores.max(axis=1) + 1e-12).all()


def test_fusions_that_cannot_be_tuned():
    results = toy_results(rounds=1)
    with pytest.raises(ConfigError, match="10 deep, a Hybrid fuses 200"):
        tune_fusion(results.gold, [results["char160 minilm"], results["char160 bm25"]])
    with pytest.raises(ConfigError, match="MinMax weighs one dense run against one lexical run"):
        tune_fusion(results.gold, [results["char160 minilm"], results["char160 lsa"]], "minmax", depth=10)
    with pytest.raises(ConfigError, match="hybrid"):
        tune_fusion(
            results.gold, [results["char160 minilm+bm25 rrf"], results["char160 bm25"]], "zscore", depth=10
        )
    with pytest.raises(DataError, match="different chunks"):
        tune_fusion(results.gold, [results["char160 minilm"], results["char320 bm25"]])
    with pytest.raises(ConfigError, match=r"Give Ranking\(chunks, run\)"):
        tune_fusion(results.gold, [results["char160 minilm"].run, results["char160 bm25"].run])
