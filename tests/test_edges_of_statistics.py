"""Edges of the statistics: when documents are drawn instead of questions, what a tail costs, where an
interval is of another kind, and the sentences that say so. What is expected is counted by hand or by another
formula."""

from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import kendalltau, norm, t

from ragbench.base.errors import ConfigError, DataError
from ragbench.core.gold import Gold
from ragbench.core.gold_records import Evidence, Lost, Query
from ragbench.stats.agreement import Agreement, kendall_tau, order_agreement
from ragbench.stats.clusters import document_clusters, grouping
from ragbench.stats.corrections import (
    all_pairs_p,
    benjamini_hochberg,
    compare_family,
    compare_to,
    correct,
    doubted,
    holm,
    max_t_p,
)
from ragbench.stats.intervals import (
    bca_ends,
    bootstrap_interval,
    exact_sum,
    freedom,
    grouped,
    groups_of,
    interval_kinds,
    interval_level,
    mean_interval,
    on_grid,
    resample_counts,
    resampled_means,
    score_table,
    spread_interval,
    standard_error,
)
from ragbench.stats.paired_tests import (
    EXACT,
    Comparison,
    Effect,
    all_ties,
    apart,
    compare_columns,
    compare_pair,
    effect_size,
    sign_flip_p,
    untailed,
)
from ragbench.stats.power import detectable_words, minimal_detectable_difference, queries_needed
from ragbench.stats.selection import Optimism, held_out_scores, selection_optimism
from ragbench.stats.slices import interaction_p, slice_by_tag


def gold_of(sizes: list[int], lost: int = 0, also: dict[int, str] | None = None) -> Gold:
    """So many questions about each document; `lost` more on documents that the corpus lacks; `also` names a
    second document of a question."""
    documents = [f"d{i}" for i, size in enumerate(sizes) for _ in range(size)]
    evidence = [Evidence(f"q{i}", d, 0, 3) for i, d in enumerate(documents)]
    evidence += [Evidence(f"q{i}", d, 0, 3) for i, d in (also or {}).items()]
    gone = [Lost(f"l{i}", f"gone{i}") for i in range(lost)]
    names = [f"q{i}" for i in range(len(documents))] + [f"l{i}" for i in range(lost)]
    return Gold([Query(name, name) for name in names], evidence, lost=gone)


def test_questions_are_drawn_where_each_has_a_document_of_its_own():
    drawn = grouping(gold_of([1] * 20))
    assert (drawn.labels, drawn.groups) == (None, 20)
    assert drawn.note == "over questions, each about a document of its own"


def test_twenty_documents_are_enough_and_nineteen_are_not():
    enough, few = grouping(gold_of([2] * 20)), grouping(gold_of([2] * 19))
    assert np.bincount(enough.labels).tolist() == [2] * 20
    assert (enough.groups, enough.note) == (20, "over 20 groups of questions that share a document")
    assert (few.labels, few.groups) == (None, 38)
    assert few.note == "over questions (19 documents with a question of their own are too few to draw from)"


def test_one_document_is_too_few_in_the_singular():
    assert grouping(gold_of([3])).note == (
        "over questions (1 document with a question of its own is too few to draw from)"
    )


def test_documents_of_very_unequal_size_are_not_drawn():
    """Twenty documents must be worth ten equal ones: (19 + m)² / (19 + m²) ≥ 10 holds up to m = 6."""
    assert grouping(gold_of([6, *[1] * 19])).groups == 20
    unequal = grouping(gold_of([7, *[1] * 19]))
    assert (unequal.labels, unequal.groups) == (None, 26)
    assert unequal.note == (
        "over questions (the questions are too unequally spread over 20 documents to draw from, 7 of 26 are"
        " about one)"
    )


def test_exactly_ten_equal_ones_are_enough():
    """(21 + 49)² = 10 · (21² + 49)."""
    assert grouping(gold_of([21, *[1] * 49])).groups == 50
    assert grouping(gold_of([22, *[1] * 49])).labels is None


def test_lost_documents_are_documents_and_linked_ones_are_said():
    assert grouping(gold_of([2] * 20, lost=2)).note == "over 22 groups of questions that share a document"
    linked = grouping(gold_of([2] * 21, also={0: "d1"}))
    assert linked.groups == 20
    assert linked.note == (
        "over 20 groups of questions that share a document"
        " (21 documents, joined where a question has evidence in several)"
    )


def test_where_one_question_joins_too_many_each_counts_for_its_first_document():
    gold = gold_of([2] * 20, also={0: "d1"})
    drawn = grouping(gold)
    assert drawn.groups == 20
    assert drawn.note.startswith("over 20 documents, each question with that of its first evidence")
    assert "would leave 19 groups" in drawn.note
    assert len(set(document_clusters(gold).tolist())) == 19


# Intervals


@pytest.mark.parametrize(
    ("scores", "says"),
    [
        ([], "n = 0 queries"),
        ("words", "no table of numbers"),
        (np.zeros((2, 2, 2)), r"shape \(2, 2, 2\)"),
        ([0.0, np.nan, np.inf], "2 scores are not finite, the first is nan at query 1"),
        ([[0.0, 1.0], [1.0, -np.inf]], "1 scores are not finite, the first is -inf at query 1, system 1"),
    ],
)
def test_what_is_no_table_of_scores_is_refused(scores, says):
    with pytest.raises(DataError, match=says):
        score_table(scores, "here")


def test_scores_lie_on_a_grid_of_which_the_whole_sum_is_exact():
    x = np.random.default_rng(0).random((7, 2))
    whole, quantum = on_grid(x)
    assert np.all(whole == np.rint(whole))
    assert np.all(np.abs(whole * quantum - x) <= quantum / 2)
    assert np.all(7 * np.abs(x).max(axis=0) / quantum >= 2**51)
    assert np.all(7 * np.abs(x).max(axis=0) / quantum < 2**52)
    assert exact_sum(x)[0] == exact_sum(x[::-1])[0]


def test_groups_have_their_sums_and_sizes_in_order_of_label():
    sample = grouped(np.array([[1.0], [2.0], [4.0]]), ["b", "a", "b"])
    assert (sample.sums[:, 0] * sample.quantum[0]).tolist() == [2, 5]
    assert (sample.sizes.tolist(), sample.n) == ([1, 2], 3)
    names, place = groups_of(["b", "a", "b"], 3)
    assert (names.tolist(), place.tolist()) == (["a", "b"], [1, 0, 1])


@pytest.mark.parametrize("clusters", [["a", "b"], [["a"], ["b", "c"], []], [1, "a", None]])
def test_what_is_not_one_label_a_query_is_refused(clusters):
    with pytest.raises(DataError, match="clusters"):
        groups_of(np.array(clusters, dtype=object) if None in clusters else clusters, 3)


def test_every_resample_draws_as_many_groups_as_there_are():
    blocks = list(resample_counts(7, 1000, seed=3))
    counts = np.concatenate(blocks)
    assert counts.shape == (1000, 7)
    assert set(counts.sum(axis=1)) == {7.0}
    assert abs(counts.mean() - 1) < 0.01
    assert counts.max() > 2
    assert len(np.unique(counts, axis=0)) > 300


def test_large_resamples_come_in_blocks_that_bound_the_memory():
    assert [len(block) for block in resample_counts(500_000, 9, seed=0)] == [4, 4, 1]


def test_means_of_resamples_weigh_groups_by_their_size():
    sample = grouped(np.array([[1.0], [1.0], [0.0]]), ["a", "a", "b"])
    means = resampled_means(sample, 400, seed=0)[:, 0] * sample.quantum[0]
    assert set(np.round(means, 6)) == {0.0, 0.666667, 1.0}


def test_a_level_is_a_share():
    assert interval_level(0.9) == 0.9
    for level in (0, 1, 1.5, -0.1, True, "0.9"):
        with pytest.raises(ConfigError, match="level is"):
            interval_level(level)


def test_bca_ends_are_those_of_efron():
    rng = np.random.default_rng(1)
    means = rng.normal(size=(999, 1))
    center, lean, z = np.array([0.3]), np.array([0.1]), 1.96
    bias = norm.ppf((means < center).mean())
    shares = [norm.cdf(bias + (bias + w) / (1 - 0.1 * (bias + w))) for w in (-z, z)]
    np.testing.assert_allclose(bca_ends(means, center, lean, z)[0], np.quantile(means[:, 0], shares))


def test_means_that_are_all_equal_or_all_beyond_the_center_have_ends():
    assert bca_ends(np.ones((100, 1)), np.ones(1), np.zeros(1), 1.96).tolist() == [[1, 1]]
    ends = bca_ends(np.arange(100.0)[:, None], np.array([-5.0]), np.zeros(1), 1.0)
    assert np.all(np.isfinite(ends)) and ends[0, 0] < ends[0, 1] < 20


def test_the_standard_error_and_lean_of_single_questions_are_the_textbooks():
    x = np.array([0.0, 0.0, 1.0, 3.0])
    mean, error, lean = standard_error(grouped(x[:, None]))
    u = x - x.mean()
    quantum = on_grid(x[:, None])[1][0]
    assert mean[0] * quantum == 1.0
    np.testing.assert_allclose(error[0] * quantum, x.std(ddof=1) / 2)
    np.testing.assert_allclose(lean, [(u**3).sum() / (6 * (u**2).sum() ** 1.5)])
    assert standard_error(grouped(np.ones((3, 1))))[2].tolist() == [0]


def test_an_interval_is_no_narrower_than_students():
    x = np.random.default_rng(2).normal(size=(30, 1))
    sample = grouped(x)
    low, high = spread_interval(sample, 0.95, 2000, 0)[0] * sample.quantum[0]
    u = x - x.mean()
    worth = 2 * 30 / (30 * (u**4).sum() / (u**2).sum() ** 2 - 1)
    half = t.ppf(0.975, min(worth, 29)) * x.std(ddof=1) / np.sqrt(30)
    assert low <= x.mean() - half + 1e-12
    assert high >= x.mean() + half - 1e-12
    assert high - low < 2.2 * half


def test_the_degrees_of_freedom_of_an_interval_are_those_of_what_is_left_without_the_mean():
    x = 5 + np.random.default_rng(3).exponential(size=(30, 1))
    sample, u = grouped(x), x - x.mean()
    worth = 2 * 30 / (30 * (u**4).sum() / (u**2).sum() ** 2 - 1)
    assert worth < 20
    low = spread_interval(sample, 0.95, 2000, 0)[0, 0] * sample.quantum[0]
    assert low <= x.mean() - t.ppf(0.975, worth) * x.std(ddof=1) / np.sqrt(30) + 1e-12
    assert freedom(np.array([[1.0], [-1.0]])).tolist() == [1]


def test_of_means_that_equal_the_center_half_lie_below_it():
    means, center = np.repeat(np.arange(10.0), 10)[:, None], np.array([4.0])
    bias = norm.ppf(0.45)
    shares = [norm.cdf(2 * bias + w) for w in (-1.0, 1.0)]
    np.testing.assert_allclose(bca_ends(means, center, np.zeros(1), 1.0)[0], np.quantile(means, shares))
    beyond = bca_ends(np.arange(100.0)[:, None], np.array([1000.0]), np.zeros(1), 1.0)
    assert np.isfinite(beyond).all()


def test_a_hundred_resamples_are_the_fewest():
    x = np.array([0.1, 0.5, 0.3, 0.9, 0.4])
    assert np.isfinite(bootstrap_interval(x, resamples=100)).all()
    for few in (99, 0):
        with pytest.raises(ConfigError):
            bootstrap_interval(x, resamples=few)


@pytest.mark.parametrize("bounds", [(1, 0), (0, 0), (0,), "ab"])
def test_what_bounds_nothing_is_said_before_any_score_is_looked_at(bounds):
    with pytest.raises(ConfigError, match="bounds is"):
        bootstrap_interval(np.array([0.1, 0.5, 0.3, 0.9, 0.4]), bounds=bounds)


def test_columns_that_share_a_scale_get_the_intervals_that_each_gets_alone():
    x = np.array([[1.0, 1, 0, -1], [1, 1, 0, 1], [1, 1, 0, -1], [1, 1, 0, 1], [1, 1, 0, -1], [1, 0, 0, 1]])
    bounds = np.array([[0.0, 1], [0, 1], [0, 2], [-1, 1]])
    together = mean_interval(x, 0.95, 500, 0, bounds=bounds)
    for j in range(4):
        alone = mean_interval(x[:, [j]], 0.95, 500, 0, bounds=bounds[[j]])
        np.testing.assert_allclose(together[[j]], alone, rtol=1e-12)
    assert interval_kinds(x, None, bounds) == ["edge", "edge", "edge", "bootstrap"]
    assert together[2, 1] > together[0, 0] * 0  # a wider scale allows more
    assert together[0, 1] == 1 and together[2, 0] == 0
    assert mean_interval(x[:, [2]], 0.95, 500, 0, bounds=np.array([[0.0, 1]]))[0, 1] < together[2, 1]


def test_no_scale_and_no_spread_say_nothing_and_limits_cut():
    x = np.full((6, 1), 7.0)
    assert np.isnan(mean_interval(x, 0.95, 500, 0)).all()
    assert interval_kinds(x, None, np.array([[np.nan, np.nan]])) == [""]
    wide = np.array([[-3.0], [4], [5], [-6], [7], [2]])
    cut = mean_interval(wide, 0.95, 500, 0, limits=np.array([[-1.0, 2.0]]))
    assert cut.tolist() == [[-1, 2]]
    half = mean_interval(wide, 0.95, 500, 0, limits=np.array([[np.nan, 2.0]]))
    assert half[0, 0] < -1 and half[0, 1] == 2


def test_five_questions_have_an_interval_and_four_have_none():
    x = np.array([0.1, 0.5, 0.3, 0.9, 0.4])
    assert np.isfinite(bootstrap_interval(x)).all()
    assert np.isnan(bootstrap_interval(x[:4])).all()
    assert interval_kinds(x[:4, None], None, np.array([[0.0, 1]])) == [""]
    assert np.isnan(bootstrap_interval(np.tile(x, 2), clusters=[0, 1, 2, 3, 3] * 2)).all()


@pytest.mark.parametrize("bounds", [(1, 0), (0, 0), (0,), "ab", (0, 0.5), (0.2, 1)])
def test_bounds_that_are_none_or_that_scores_leave_are_refused(bounds):
    with pytest.raises(ConfigError):
        bootstrap_interval(np.array([0.1, 0.5, 0.3, 0.9, 0.4]), bounds=bounds)


def test_the_score_beyond_its_bounds_is_named():
    with pytest.raises(ConfigError, match=r"a score is 0\.1, beyond the bounds 0\.2 to 1"):
        bootstrap_interval(np.array([0.1, 0.5, 0.3, 0.9, 0.4]), bounds=(0.2, 1))
    with pytest.raises(ConfigError, match=r"a score is 0\.9, beyond the bounds 0 to 0\.5"):
        bootstrap_interval(np.array([0.1, 0.5, 0.3, 0.9, 0.4]), bounds=(0, 0.5))


@pytest.mark.parametrize("bounds", [[[0, 1]], [0, 1], "ab", [[0, 1, 2], [0, 1, 2]]])
def test_scales_of_other_shapes_are_refused(bounds):
    with pytest.raises(DataError):
        mean_interval(np.ones((6, 2)), 0.95, 500, 0, bounds=np.array(bounds))


# Paired tests


def hall(u: np.ndarray) -> float:
    """By how much |t| shrinks: Hall's transformation, turned back into a ratio of sums."""
    g, mean, sd = len(u), u.mean(), u.std()
    value = np.sqrt(g - 1) * abs(mean) / sd
    skew = np.sign(mean) * ((u - mean) ** 3).mean() / sd**3 / np.sqrt(g)
    other = value + skew * value**2 / 3 + skew**2 * value**3 / 27 + skew / 6
    other = min(max(other, 0), value)
    return other / value * np.sqrt((g - 1 + value**2) / (g - 1 + other**2))


def test_a_mean_that_points_away_from_its_tail_shrinks_as_hall_says():
    rng = np.random.default_rng(5)
    away = 0.6 - rng.exponential(size=(40, 1)) * 0.4
    towards = rng.exponential(size=(40, 1))
    assert away.mean() > 0
    np.testing.assert_allclose(untailed(away), hall(away[:, 0]))
    assert 0.5 < untailed(away)[0] < 0.999
    assert untailed(towards).tolist() == [1]
    np.testing.assert_allclose(untailed(-away), untailed(away))


def test_few_summands_summands_of_no_spread_and_no_mean_do_not_shrink():
    rng = np.random.default_rng(5)
    away = 0.6 - rng.exponential(size=(EXACT, 1)) * 0.4
    assert untailed(away).tolist() == [1]
    assert untailed(np.ones((30, 1))).tolist() == [1]
    assert untailed(np.array([[1.0], [-1.0]] * 15)).tolist() == [1]
    assert untailed(0.6 - rng.exponential(size=(EXACT + 1, 1)) * 0.4)[0] < 1


def all_flips(d: np.ndarray) -> float:
    sums = [abs(np.dot(signs, d)) for signs in product([-1, 1], repeat=len(d))]
    return float(np.mean([s >= abs(d.sum()) - 1e-9 for s in sums]))


def test_sign_flips_of_few_are_enumerated_and_zeros_say_nothing():
    d = np.array([0.5, 0.25, -0.25, 0.5, 0.75, 0.0])
    assert sign_flip_p(d)[0] == all_flips(d[:5])
    assert sign_flip_p(np.zeros(6)).tolist() == [1]
    many = np.r_[d, np.zeros(100)]
    assert sign_flip_p(many)[0] == all_flips(d[:5])


def test_sixteen_differences_are_enumerated_and_seventeen_are_drawn():
    assert sign_flip_p(np.ones(16))[0] == 2 / 2**16
    assert sign_flip_p(np.ones(17))[0] == 1 / 10_001


def test_clusters_change_sign_together():
    d = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert sign_flip_p(d)[0] == 2 / 2**6
    assert sign_flip_p(d, clusters=[0, 0, 1, 1, 2, 2])[0] == 2 / 2**3


def test_effect_size_is_johnsons_and_welchs():
    effect = effect_size(1.0, 2.0, 0.5, 16)
    middle, half = 2 * (1 - 1 / 60), norm.ppf(0.975) * np.sqrt(1 + 4 / 30)
    np.testing.assert_allclose(effect, (0.5, (middle - half) / 4, (middle + half) / 4))


@pytest.mark.parametrize(("sd", "error", "groups"), [(0.0, 0.25, 16), (1.0, 0.0, 16), (1.0, 0.25, 4)])
def test_without_spread_or_with_few_there_is_no_effect_size(sd, error, groups):
    assert str(effect_size(0.5, sd, error, groups)) == "no effect size"
    assert np.isfinite(effect_size(0.5, 1.0, 0.25, 5)).all()


def test_what_all_ties_say_is_the_rule_of_three():
    assert all_ties(60).endswith("at most 4.9 % of such questions would tell them apart")
    assert all_ties(5).startswith(
        "they score the same on all 5 questions; with 95 % confidence at most 45.1 %"
    )
    assert all_ties(4) == "they score the same on all 4 questions; 4 questions are too few to say more"
    assert all_ties(1) == "they score the same on the one question; one is too few to say more"
    assert (
        all_ties(10, 2)
        == "they score the same on all 10 questions; 2 groups of questions are too few to say more"
    )


def test_a_comparison_counts_wins_ties_and_losses_and_its_spread():
    a, b = np.array([1.0, 0.5, 0.5, 0.0, 1.0, 0.25]), np.array([0.0, 0.5, 0.5 + 1e-13, 0.5, 0.5, 0.0])
    c = compare_pair(a, b)
    d = np.array([1.0, 0, 0, -0.5, 0.5, 0.25])
    assert (c.wins, c.ties, c.losses, c.n, c.groups) == (3, 2, 1, 6, 0)
    np.testing.assert_allclose(
        (c.mean_difference, c.sd, c.error), (d.mean(), d.std(ddof=1), d.std(ddof=1) / 6**0.5)
    )
    assert c.p == all_flips(d[d != 0])
    np.testing.assert_allclose(c.effect, effect_size(c.mean_difference, c.sd, c.error, 6))
    by_group = compare_pair(a, b, clusters=[0, 0, 1, 1, 2, 2])
    assert (by_group.groups, np.isnan(by_group.low)) == (3, True)
    assert "6" in str(c) and "3 wins, 2 ties, 1 losses of 6" in str(c)
    assert str(Comparison(0, 0, 0, 1.0, 0, 6, 0, 6)) == all_ties(6)
    assert isinstance(c.effect, Effect)


def test_differences_of_shares_stay_within_one_and_of_other_scores_do_not():
    shares, others = np.array([[0.0], [1.0]]), np.array([[0.0], [7.0]])
    assert apart(shares, shares).tolist() == [[-1, 1]]
    assert np.isnan(apart(shares, others)).all()
    d = np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0]])
    first, second = compare_columns(d, 0.95, 500, 0)
    assert first.high == 1 and first.low < 1
    assert np.isnan(second.low)


def test_scores_of_two_systems_have_one_shape():
    for a, b in (([1.0, 2], [1.0]), ([[1.0, 2]], [[1.0, 2]])):
        with pytest.raises(DataError, match="scores of shapes"):
            compare_pair(np.array(a), np.array(b))


# Corrections


def test_holm_and_benjamini_hochberg_by_hand():
    p = [0.04, 0.01, 0.03, 0.5]
    np.testing.assert_allclose(holm(p), [0.09, 0.04, 0.09, 0.5])
    np.testing.assert_allclose(benjamini_hochberg(p), [0.16 / 3, 0.04, 0.16 / 3, 0.5])
    assert holm([0.9, 0.8]).tolist() == [1, 1]
    assert correct(p, "none").tolist() == p
    assert (holm([]).tolist(), benjamini_hochberg([0.0, 1.0]).tolist()) == ([], [0, 1])


@pytest.mark.parametrize("p", [[-0.1], [1.1], [np.nan], [[0.5]]])
def test_what_is_no_list_of_p_values_is_refused(p):
    with pytest.raises(DataError, match="p-values"):
        holm(p)


def brute_max_t(u: np.ndarray) -> np.ndarray:
    """The share of all sign patterns whose largest scaled sum reaches each observed one."""
    scaled = u / np.sqrt((u**2).sum(axis=0))
    seen = [np.abs(np.array(s) @ scaled).max() for s in product([-1, 1], repeat=len(u))]
    return np.array([np.mean([x >= v - 1e-9 for x in seen]) for v in np.abs(scaled.sum(axis=0))])


@pytest.mark.parametrize("seed", range(3))
def test_the_largest_statistic_of_few_groups_is_enumerated(seed):
    u = np.random.default_rng(seed).normal(0.4, 1, size=(7, 3))
    np.testing.assert_allclose(max_t_p(u), brute_max_t(u))
    np.testing.assert_allclose(max_t_p(np.r_[u, np.zeros((30, 3))]), brute_max_t(u))


def test_the_size_of_scores_does_not_matter_and_equal_systems_are_not_apart():
    u = np.random.default_rng(8).normal(0.4, 1, size=(7, 3))
    np.testing.assert_allclose(max_t_p(u * 0.01), brute_max_t(u))
    x = np.random.default_rng(4).random((6, 2))[:, [0, 0, 1]]
    p = all_pairs_p(x)
    assert p[0, 1] == 1
    np.testing.assert_allclose(p[0, 2], all_pairs_p(x[:, 1:])[0, 1])


def test_of_sixteen_groups_every_sign_is_tried():
    assert max_t_p(np.ones((16, 1))).tolist() == [2 / 2**16]
    assert max_t_p(np.ones((17, 1))).tolist() == [1 / 10_001]

    many = np.zeros((16, 801))  # so many that the patterns come in blocks
    many[:, 0] = 1
    assert max_t_p(many)[0] == 2 / 2**16


def test_of_more_groups_p_is_a_share_of_the_flips_and_of_what_is_seen():
    u = np.random.default_rng(3).normal(0.2, 1, size=(30, 4))
    p = max_t_p(u)
    assert (p > sign_flip_p(u)).all()
    np.testing.assert_allclose(p * 10_001, np.round(p * 10_001), rtol=0, atol=1e-6)
    assert (p * 10_001 > 100).any()  # enough that another number of flips gives no whole number


def test_a_sum_of_zeros_has_no_evidence_against_it():
    assert max_t_p(np.zeros((6, 2))).tolist() == [1, 1]
    u = np.random.default_rng(0).normal(0.4, 1, size=(7, 2))
    u[:, 1] = 0
    assert max_t_p(u)[1] == 1


def test_all_pairs_of_few_questions_are_enumerated():
    x = np.random.default_rng(4).random((6, 3))
    p = all_pairs_p(x)
    pairs = list(combinations(range(3), 2))
    expected = brute_max_t(np.stack([x[:, i] - x[:, j] for i, j in pairs], axis=1))
    np.testing.assert_allclose([p[i, j] for i, j in pairs], expected)
    np.testing.assert_array_equal(p, p.T)
    assert np.diag(p).tolist() == [1, 1, 1]
    assert all_pairs_p(x[:, :1]).tolist() == [[1]]
    own = [sign_flip_p(x[:, i] - x[:, j])[0] for i, j in pairs]
    np.testing.assert_allclose([all_pairs_p(x, correction="holm")[i, j] for i, j in pairs], holm(own))


@pytest.mark.parametrize("correction", ["tukey", "holm"])
def test_pairs_that_differ_in_the_last_bits_are_not_apart(correction):
    x = np.tile([0.1 + 0.2, 0.3, 0.7], (6, 1))  # one number by hand, two in floating point
    p = all_pairs_p(x, correction=correction)
    assert p[0, 1] == 1
    assert p[0, 2] < 1


def test_many_questions_agree_with_their_enumeration_in_the_limit():
    x = np.random.default_rng(7).random((40, 3)) + np.array([0, 0.1, 0.3])
    d = np.stack([x[:, i] - x[:, j] for i, j in combinations(range(3), 2)], axis=1)
    p = all_pairs_p(x)
    for column, (i, j) in enumerate(combinations(range(3), 2)):
        own = sign_flip_p(d[:, column])[0]
        assert own <= p[i, j] <= min(1, 3 * own + 0.02)


def test_only_what_points_away_from_its_tail_is_doubted():
    rng = np.random.default_rng(11)
    away, towards = 0.55 - rng.exponential(size=60) * 0.4, rng.normal(0.1, 1, size=60)
    u = np.stack([away, towards], axis=1)
    p = np.array([0.0001, 0.02])
    raised = doubted(p, u)
    assert raised[1] == p[1]
    assert raised[0] > p[0]
    assert doubted(p[:1], u[:, :1]).tolist() == [p[0]]  # of a single comparison the tail is in its own test
    few = doubted(p, u[:EXACT])
    assert few.tolist() == p.tolist()
    with pytest.raises(DataError, match="3 p-values for 2 sums"):
        doubted([0.1, 0.2, 0.3], u)


def test_a_doubted_p_is_that_of_the_largest_t_of_all_resamples():
    rng = np.random.default_rng(2)
    u = np.stack([0.75 - rng.exponential(size=40) * 0.6, rng.normal(0.1, 1, size=40)], axis=1)
    centred, largest = u - u.mean(axis=0), []
    for counts in resample_counts(40, 2_000, 5):
        for times in counts:
            drawn = np.repeat(centred, times.astype(int), axis=0)
            largest.append((np.abs(drawn.mean(axis=0)) / drawn.std(axis=0)).max())
    bar = abs(u[:, 0].mean()) / u[:, 0].std()
    p = np.mean(np.array(largest) >= bar)
    assert 0.01 < p < 0.99
    np.testing.assert_allclose(doubted([0.0001, 0.02], u, 5)[0], p)


def test_a_column_of_sixteen_differences_is_enumerated_and_not_doubted():
    other = np.random.default_rng(1).normal(0.1, 1, size=40)
    for nonzero, is_doubted in ((EXACT, False), (EXACT + 1, True)):
        away = np.r_[np.full(nonzero - 1, 0.5), -1.0, np.zeros(40 - nonzero)]
        u = np.stack([away, other], axis=1)
        assert untailed(u)[0] < 1
        assert (doubted([0.0001, 0.02], u)[0] > 0.0001) == is_doubted


def test_a_family_is_corrected_and_against_a_baseline_itself_stays_in_its_place():
    x = np.random.default_rng(3).random((12, 3))
    tests = compare_to(x, 1)
    assert [c.mean_difference == 0 for c in tests] == [False, True, False]
    own = [sign_flip_p(x[:, j] - x[:, 1])[0] for j in (0, 2)]
    np.testing.assert_allclose([tests[0].p, tests[2].p], holm(own))
    family = compare_family(x[:, [0, 2]] - x[:, [1]], correction="none")
    np.testing.assert_allclose([c.p for c in family], own)
    for bad in (-1, 3, 1.0, "a"):
        with pytest.raises((ConfigError, DataError)):
            compare_to(x, bad)
    with pytest.raises(ConfigError, match="Give a column from 0 to 2$"):
        compare_to(x, 3)
    assert len(compare_to(x[:, :1], 0)) == 1


# Power, slices, selection, agreement


def test_the_detectable_difference_is_the_formula_of_the_t_test():
    d = np.random.default_rng(0).normal(size=25)
    expected = (t.ppf(0.975, 24) + t.ppf(0.8, 24)) * d.std(ddof=1) / 5
    np.testing.assert_allclose(minimal_detectable_difference(d), expected)
    np.testing.assert_allclose(
        minimal_detectable_difference(d, power=0.9, alpha=0.01),
        (t.ppf(0.995, 24) + t.ppf(0.9, 24)) * d.std(ddof=1) / 5,
    )


def test_twenty_questions_that_differ_promise_something_and_nineteen_do_not():
    d = np.r_[np.random.default_rng(0).normal(size=20), np.zeros(20)]
    assert detectable_words(d).startswith("a true difference would have to be about 0.")
    d[0] = 0
    assert detectable_words(d).startswith("only 19 questions tell them apart")
    assert detectable_words(d, clusters=np.arange(40)).startswith("only 19 groups tell them apart")


def test_queries_needed_are_the_fewest_that_are_enough():
    d = np.random.default_rng(0).normal(0.3, 1, size=30)
    n = queries_needed(d, 0.3)
    sd = d.std(ddof=1)

    def found(count):
        return (t.ppf(0.975, count - 1) + t.ppf(0.8, count - 1)) * sd / np.sqrt(count)

    assert found(n) <= 0.3 < found(n - 1)
    assert queries_needed(d, -0.3) == n
    assert queries_needed(d, 100.0) == 2
    assert queries_needed(d, 0.0) is None
    assert queries_needed(d, 1e-5) is None
    by_twos = queries_needed(np.repeat(d[:15], 2), 0.3, clusters=np.repeat(np.arange(15), 2))
    assert by_twos % 2 == 0


def test_the_search_finds_the_first_number_that_is_enough():
    d = np.tile([1.0, -1.0, 0.5], 10)
    for target in np.linspace(0.3, 1, 30):
        expected = 2
        while (t.ppf(0.975, expected - 1) + t.ppf(0.8, expected - 1)) * d.std(
            ddof=1
        ) > target * expected**0.5:
            expected += 1
        assert queries_needed(d, target) == expected


def test_more_than_ten_million_queries_are_none():
    d = np.tile([1.0, -1.0], 15)  # of standard deviation 1.02: 2.80 × 1.02 / √n
    assert 9_000_000 < queries_needed(d, 0.00092) < 10_000_000
    assert queries_needed(d, 0.0009) is None


@pytest.mark.parametrize("share", [{"power": 0}, {"power": 1}, {"alpha": 0}, {"alpha": 1}])
def test_shares_that_are_none_and_one_difference_are_refused(share):
    with pytest.raises(ConfigError, match="Give a share"):
        minimal_detectable_difference(np.arange(5.0), **share)
    with pytest.raises(DataError, match="one difference has no spread"):
        minimal_detectable_difference(np.array([1.0]))
    with pytest.raises(DataError, match="one difference has no spread"):
        minimal_detectable_difference(np.array([1.0, 2.0]), clusters=[0, 0])
    assert minimal_detectable_difference(np.array([1.0, 2.0])) > 0


def test_a_tag_is_tested_with_five_questions_with_it_and_five_without():
    rng = np.random.default_rng(0)
    a, b = rng.random(10), rng.random(10)
    five = slice_by_tag(a, b, [["x"]] * 5 + [[]] * 5)
    assert np.isfinite(five.slices[0].interaction)
    for n in (4, 6):
        few = slice_by_tag(a, b, [["x"]] * n + [[]] * (10 - n))
        assert np.isnan(few.slices[0].interaction)
        assert few.verdict.startswith("No tag has enough questions")
    assert np.isfinite(slice_by_tag(a, b, [["x"]] * 4 + [[]] * 6, fewest=4).slices[0].interaction)
    assert np.isfinite(slice_by_tag(a, b, [["x"]] + [[]] * 9, fewest=1).slices[0].interaction)
    with pytest.raises(ConfigError, match="fewest is 0"):
        slice_by_tag(a, b, [["x"]] * 10, fewest=0)


def test_a_slice_has_the_means_and_the_corrected_comparison_of_its_questions():
    rng = np.random.default_rng(1)
    a, b = rng.random(16), rng.random(16)
    tags = [["x", "y"][i % 2 : i % 2 + 1] for i in range(16)]
    result = slice_by_tag(a, b, tags, ("one", "two"))
    x, y = result.slices
    assert (x.tag, y.tag, len(result)) == ("x", "y", 2)
    assert (x.a, x.b) == (a[::2].mean(), b[::2].mean())
    own = [sign_flip_p((a - b)[::2])[0], sign_flip_p((a - b)[1::2])[0]]
    np.testing.assert_allclose([x.comparison.p, y.comparison.p], holm(own))
    assert result._repr_html_().endswith(f"<p>{result.verdict}</p>")
    assert "border=" not in result._repr_html_()  # the page that shows it draws its own lines
    frame = result.to_frame()
    assert frame.loc["x", "one"] == x.a and frame.loc["x", "n"] == 8
    few = slice_by_tag(a, b, [["x"]] * 4 + [["y"]] * 12)
    assert len(few.notes) == 1 and few.notes[0].startswith("x:")


def test_a_slice_of_questions_in_groups_draws_the_groups_that_have_the_tag():
    rng = np.random.default_rng(4)
    a, b, clusters = rng.random(24), rng.random(24), np.repeat(np.arange(12), 2)
    tagged = np.arange(24) < 14
    (x,) = slice_by_tag(a, b, [["x"] if t else [] for t in tagged], clusters=clusters).slices
    assert (x.comparison.n, x.comparison.groups) == (14, 7)
    np.testing.assert_allclose(x.comparison.p, sign_flip_p((a - b)[tagged], clusters=clusters[tagged])[0])
    own = interaction_p(a - b, tagged[:, None], clusters=clusters)
    np.testing.assert_allclose(x.interaction, own[0])
    assert not np.isclose(own[0], interaction_p(a - b, tagged[:, None])[0])


def test_the_verdict_names_what_depends_and_what_does_not():
    a = np.r_[np.ones(12), np.zeros(12)] + np.tile([0.0, 0.01], 12)
    b = np.full(24, 0.5)
    depends = slice_by_tag(a, b, [["x"]] * 12 + [[]] * 12)
    assert (
        "depends on the kind of question, corrected for 1 tag: x (+0.505 on 12 questions" in depends.verdict
    )
    flat = slice_by_tag(np.tile([0.4, 0.6], 12), b, [["x"]] * 12 + [[]] * 12)
    assert flat.verdict.startswith("Nothing shows that the difference")
    assert "(1 tag, least corrected p" in flat.verdict


def test_interaction_is_a_flip_test_of_the_centred_product():
    rng = np.random.default_rng(2)
    d, tag = rng.normal(size=8), np.array([1, 1, 1, 0, 0, 0, 0, 1.0])
    u = (tag - tag.mean()) * (d - d.mean())
    np.testing.assert_allclose(interaction_p(d, tag[:, None]), [all_flips(u)])
    at_the_mean = np.array([1.0, -1, 2, -2, 0, 0, 3, -3])  # where d is its mean, the question adds nothing
    u = (tag - tag.mean()) * at_the_mean
    np.testing.assert_allclose(interaction_p(at_the_mean, tag[:, None]), [all_flips(u)])
    assert interaction_p(d, np.ones((8, 1))).tolist() == [1]
    last_bit = np.where(tag, 0.1 + 0.2, 0.3)  # one number by hand, two in floating point
    assert interaction_p(last_bit, tag[:, None]).tolist() == [1]
    with pytest.raises(DataError, match="for tags of 7 queries"):
        interaction_p(d, tag[:7, None])


def test_held_out_scores_are_those_of_systems_that_other_folds_choose():
    x = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    unseen, chosen = held_out_scores(x, folds=4, repeats=1)
    # without question 0 or 1 both stand at one each: the mean; without 2 the first leads; without 3 the first
    assert unseen.tolist() == [0.5, 0.5, 0.0, 0.0]
    assert chosen.tolist() == [0.75, 0.25]
    clusters = [0, 0, 1, 1]
    unseen, chosen = held_out_scores(x, folds=2, repeats=3, clusters=clusters)
    np.testing.assert_allclose(unseen, [0, 0, 0, 0])
    np.testing.assert_allclose(chosen, [0.5, 0.5])


def test_folds_are_at_least_two_and_at_most_one_a_question():
    x = np.random.default_rng(0).random((4, 2))
    for folds in (1, 5):
        with pytest.raises(ConfigError):
            held_out_scores(x, folds=folds)
    with pytest.raises(ConfigError, match="folds is 3 for 2 clusters"):
        held_out_scores(x, folds=3, clusters=[0, 0, 1, 1])
    assert len(held_out_scores(x, folds=4)[0]) == 4


def test_optimism_is_the_best_mean_less_what_choosing_gives():
    x = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    measured = selection_optimism(x, folds=4, repeats=1)
    assert measured == Optimism(0.5, 0.25, 0.25, 0.75)
    assert str(measured) == "0.500 in sample, 0.250 held out: optimism +0.250, chosen in 75 % of folds"
    for seed in range(20):  # one system: whatever the last bits, there is nothing that choosing adds
        alone = selection_optimism(np.random.default_rng(seed).random((11, 1)))
        assert str(alone.optimism) == "0.0"
    tied = selection_optimism(np.array([[1.0, 0.0], [0.0, 1.0]]), folds=2, repeats=1)
    assert tied.stability == 1.0


@pytest.mark.parametrize("seed", range(4))
def test_tau_is_scipys_and_what_differs_in_the_last_bits_is_a_tie(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 4, 6).astype(float), rng.integers(0, 4, 6).astype(float)
    np.testing.assert_allclose(kendall_tau(a, b), kendalltau(a, b).statistic)
    np.testing.assert_allclose(kendall_tau(a + rng.random(6) * 1e-13, b), kendalltau(a, b).statistic)


def test_one_list_of_ties_has_no_order():
    assert np.isnan(kendall_tau([1.0, 1.0], [1.0, 2.0]))
    assert kendall_tau([1.0, 2.0], [2.0, 1.0]) == -1
    with pytest.raises(DataError, match="of one length"):
        kendall_tau([1, 2, 3], [1, 2])
    with pytest.raises(DataError, match="single numbers"):
        kendall_tau(np.array(1.0), np.array(2.0))


def test_agreement_of_orders_and_its_sentence():
    rng = np.random.default_rng(0)
    quality = np.array([0.1, 0.5, 0.9])
    a, b = (np.clip(rng.normal(quality, 0.2, (n, 3)), 0, 1) for n in (20, 30))
    same = order_agreement(a, b, resamples=200)
    assert (same.tau, same.systems, same.queries) == (1.0, 3, (20, 30))
    assert same.same_first > 0.95 and same.itself == (1.0, 1.0)
    assert "agree as well as each agrees with itself" in str(same)
    other = order_agreement(a, b[:, ::-1], resamples=200)
    assert other.tau == -1 and "agree less than each agrees with itself" in str(other)
    assert other.same_first < 0.05
    level = order_agreement(np.ones((20, 3)), b, resamples=200)
    assert str(level).startswith("One of the two puts all 3 systems level")
    few = order_agreement(a[:4], b, resamples=200)
    assert np.isnan(few.low) and np.isfinite(few.tau)
    assert np.isfinite(order_agreement(a[:5], b, resamples=200).low)
    assert isinstance(few, Agreement)
    assert np.isfinite(order_agreement(a, b, resamples=100).low)
    assert order_agreement(a[:, :2], b[:, :2], resamples=100).tau == 1.0  # two systems are enough
    with pytest.raises(ConfigError, match="resamples is 99"):
        order_agreement(a, b, resamples=99)


def test_the_interval_of_an_agreement_is_that_of_its_resamples_and_its_sentence_has_all_numbers():
    rng = np.random.default_rng(5)
    x, y = rng.random((12, 5)), rng.random((15, 5))
    first, second = (resampled_means(g := grouped(v), 400, seed) * g.quantum for v, seed in ((x, 3), (y, 4)))
    taus = kendall_tau(first, second)
    for level in (0.5, 0.9):
        got = order_agreement(x, y, level=level, resamples=400, seed=3)
        ends = np.quantile(taus, [(1 - level) / 2, (1 + level) / 2])
        np.testing.assert_allclose((got.low, got.high), ends)
        assert got.low < got.high
    own = Agreement(0.5, 0.25, 0.75, (0.875, float("nan")), 0.5, 5, (12, 15))
    assert "; with themselves 0.88 and not known: they agree less" in str(own)
    other = Agreement(0.5, 0.25, 0.75, (float("nan"), 0.75), 0.5, 5, (12, 15))
    assert "; with themselves not known and 0.75: they agree as well" in str(other)
    assert "in 50 % of resamples of 12 and 15 questions." in str(other)


def test_paired_metrics_are_drawn_together_and_two_golds_are_not():
    x = np.random.default_rng(0).random((12, 4))
    together = order_agreement(x, x, paired=True, resamples=200)
    assert (together.low, together.high, together.same_first) == (1.0, 1.0, 1.0)
    assert order_agreement(x, x, resamples=200).low < 1
    assert order_agreement(x, x, paired=True, resamples=200).itself[0] < 1


@pytest.mark.parametrize(
    ("a", "b", "options"),
    [
        (np.ones((5, 1)), np.ones((5, 1)), {}),
        (np.ones((5, 2)), np.ones((5, 3)), {}),
        (np.ones((5, 2)), np.ones((6, 2)), {"paired": True}),
        (np.ones((5, 2)), np.ones((6, 2)), {"clusters": (None, None, None)}),
    ],
)
def test_tables_of_other_systems_or_questions_are_refused(a, b, options):
    with pytest.raises((ConfigError, DataError)):
        order_agreement(a, b, **options)


def test_lost_evidence_counts_among_the_documents_of_a_question():
    gold = Gold(
        [Query("a", "a"), Query("b", "b"), Query("c", "c")],
        [Evidence("a", "d1", 0, 3), Evidence("b", "d2", 0, 3), Evidence("c", "d3", 0, 3)],
        lost=[Lost("b", "d1")],
    )
    assert Counter(document_clusters(gold).tolist()) == {0: 2, 1: 1}
    assert document_clusters(gold, linked=False).tolist() == [0, 1, 2]
