"""Edges of the small kernels that everything counts with: spans, fusion, ties, intervals. A change in any of
them passes unnoticed through the larger laws."""

import numpy as np
import pytest
from scipy.stats import norm, t

from ragbench.base.errors import ConfigError, DataError
from ragbench.core.spans import as_spans, first_cover
from ragbench.fusion import fusion
from ragbench.fusion.fusion import (
    RRF,
    ArrayFusion,
    MinMax,
    ZScore,
    align,
    blocks,
    check_weights,
    min_max,
    rank_batch,
    settled,
    shares,
    z_scores,
)
from ragbench.fusion.ranx_fusion import CEILINGS
from ragbench.stats.intervals import (
    bca_ends,
    bootstrap_interval,
    freedom,
    grouped,
    standard_error,
    widened_deviate,
)


def test_a_span_that_ends_before_it_starts_is_named():
    with pytest.raises(DataError, match=r"span 1 ends before it starts: \[5, 3\)"):
        as_spans([(0, 1), (5, 3)])


def test_first_cover_names_the_first_span_over_each_stretch():
    segments, first = first_cover([(0, 5), (3, 8), (10, 12)])
    assert segments.tolist() == [[0, 3], [3, 5], [5, 8], [10, 12]]
    assert first.tolist() == [0, 0, 1, 2]


def test_first_cover_of_one_span_is_that_span_and_of_none_is_empty():
    segments, first = first_cover([(2, 6)])
    assert (segments.tolist(), first.tolist()) == ([[2, 6]], [0])
    segments, first = first_cover([])
    assert (segments.shape, first.shape) == ((0, 2), (0,))


def test_scores_that_are_all_equal_are_rescaled_to_zero():
    assert min_max(np.array([[2.0, 2.0]])).tolist() == [[0.0, 0.0]]


def test_a_candidate_that_a_run_lacks_adds_zero_and_the_first_row_of_the_table_is_a_row():
    dense, words = (np.array([1.0, 0.5, 0.0]), np.array([0, 1, 2])), (np.array([4.0, 2.0]), np.array([0, 3]))
    scores, rows = MinMax(dense=0.5).fuse([dense, words], ["dense", "lexical"])
    assert dict(zip(rows.tolist(), scores.tolist())) == {0: 1.0, 1: 0.25, 2: 0.0, 3: 0.0}


def test_no_fused_score_exceeds_that_of_a_candidate_that_is_first_everywhere():
    assert RRF(60).highest(2, 10) == 2 / 61
    assert MinMax(0.5).highest(2, 10) == 1.0


def test_tie_keys_that_differ_in_their_last_bit_alone_still_decide():
    ties = np.array([[3, 2, 1]], dtype=np.uint64)
    rows = settled(np.zeros((1, 3)), np.array([[0, 1, 2]]), ties)
    assert rows.tolist() == [[2, 1, 0]]


def test_equal_scores_and_equal_tie_keys_stand_in_the_order_of_the_corpus():
    rows = settled(np.zeros((1, 3)), np.array([[2, 0, -1]]), np.zeros((1, 3), dtype=np.uint64))
    assert rows.tolist() == [[0, 2, -1]]


def test_the_standard_error_of_groups_of_unequal_size_is_that_of_their_residuals():
    sample = grouped(np.array([[1.0], [0.5], [0.0]]), ["a", "a", "b"])
    mean, error, _ = (float(value[0]) for value in standard_error(sample))
    assert (mean * sample.quantum[0], error * sample.quantum[0]) == pytest.approx((0.5, 1 / 3))


def test_few_questions_widen_the_normal_deviate_to_students():
    assert widened_deviate(10, 0.95) == pytest.approx(np.sqrt(10 / 9) * t.ppf(0.975, 9))


def test_bca_without_bias_and_acceleration_reads_off_percentiles():
    means = np.random.default_rng(0).normal(size=(1000, 1))
    ends = bca_ends(means, np.median(means, axis=0), np.zeros(1), 1.96)
    np.testing.assert_allclose(ends[0], np.quantile(means[:, 0], norm.cdf([-1.96, 1.96])))


def test_one_rare_difference_is_worth_hardly_more_than_two_degrees_of_freedom():
    rare = np.zeros((50, 1))
    rare[0] = 1
    assert freedom(rare)[0] == pytest.approx(100 / 49)


def test_scores_may_lie_on_their_bounds():
    low, high = bootstrap_interval(np.array([0.0, 1, 0, 1, 1, 0, 1]), bounds=(0, 1))
    assert 0 <= low < high <= 1


def table_of(*runs: dict[int, float], depth: int = 3):
    """Runs of one query, best first, as rows and scores."""
    rows = [np.array([[*run, *[-1] * (depth - len(run))]]) for run in runs]
    scores = [np.array([[*run.values(), *[0.0] * (depth - len(run))]]) for run in runs]
    return align(scores, rows)


def test_candidates_of_runs_lie_side_by_side_in_order_of_row():
    table = table_of({4: 0.9, 1: 0.5}, {1: 7.0, 2: 6.0, 0: 5.0})
    assert table.rows.tolist() == [[0, 1, 2, 4]]
    assert table.ranks.tolist() == [[[0, 2, 0, 1]], [[3, 1, 2, 0]]]
    np.testing.assert_array_equal(table.scores, [[[np.nan, 0.5, np.nan, 0.9]], [[5.0, 7.0, 6.0, np.nan]]])
    np.testing.assert_array_equal(table.has, table.ranks > 0)


def test_runs_without_candidates_have_one_empty_column():
    table = align([np.empty((2, 0))], [np.empty((2, 0), np.int64)])
    assert table.rows.tolist() == [[-1], [-1]]


def test_blocks_hold_so_many_candidates_and_there_is_at_least_one():
    assert blocks(5, 10_000) == [slice(0, 2), slice(2, 4), slice(4, 6)]
    assert blocks(0, 10) == [slice(0, 2500)]
    assert blocks(2, 50_000) == [slice(0, 1), slice(1, 2)]
    assert blocks(1, 0) == [slice(0, 25_000)]


class Given(ArrayFusion):
    """A fusion that says what it was told to."""

    def __init__(self, fused):
        self.result = fused

    def fused(self, table, kinds):
        return self.result


@pytest.mark.parametrize(
    ("fused", "says"),
    [
        (np.zeros((1, 3)), r"for candidates of shape \(1, 2\)"),
        (np.array([["a", "b"]]), r"for candidates of shape \(1, 2\)"),
        (np.array([[1.0, np.nan]]), "the score of row 5 is not a number"),
    ],
)
def test_what_a_fusion_of_ones_own_gives_is_looked_at(fused, says):
    runs = [(np.array([2.0, 1.0]), np.array([5, 3]))]
    with pytest.raises(DataError, match=says):
        Given(fused).fuse(runs, ["dense"])
    assert Given(np.array([[True, False]])).fuse(runs, ["dense"])[1].tolist() == [3, 5]
    assert Given(np.zeros((1, 2))).highest(2, 10) is None


def test_runs_scores_and_kinds_are_as_many():
    with pytest.raises(DataError, match="1 scores, 1 rows, 2 kinds"):
        RRF().fuse([(np.array([1.0]), np.array([0]))], ["dense", "lexical"])


def test_rrf_by_hand_with_weights():
    runs = [(np.array([9.0, 8.0]), np.array([4, 2])), (np.array([5.0]), np.array([2]))]
    scores, rows = RRF(60).fuse(runs, ["dense", "lexical"])
    assert rows.tolist() == [2, 4]
    np.testing.assert_allclose(scores, [1 / 62 + 1 / 61, 1 / 61])
    np.testing.assert_allclose(RRF(0, (2, 1)).fuse(runs, ["dense", "lexical"])[0], [2 / 2 + 1, 2 / 1])
    assert RRF(9, (2, 1)).highest(2, 5) == 3 / 10
    assert RRF(0).k == 0
    for bad in (-1, 0.5, True):
        with pytest.raises(ConfigError):
            RRF(bad)


def test_shares_weigh_one_dense_run_against_one_lexical():
    assert shares(0.25, ["lexical", "dense"], "X") == [0.75, 0.25]
    for kinds in (["dense"], ["dense", "dense"], ["dense", "lexical", "lexical"]):
        with pytest.raises(ConfigError, match="one dense run against one lexical run"):
            shares(0.25, kinds, "X")
    for bad in (-0.1, 1.1, True, "1"):
        with pytest.raises(ConfigError, match="dense is"):
            MinMax(bad)
    assert (MinMax(0).dense, ZScore(1).dense) == (0.0, 1.0)


def test_z_scores_have_mean_zero_and_deviation_one_of_what_is_there():
    z = z_scores(np.array([[1.0, np.nan, 3.0], [2.0, 2.0, np.nan], [np.nan, np.nan, np.nan]]))
    np.testing.assert_allclose(z[0], [-1, np.nan, 1])
    np.testing.assert_allclose(z[1], [0, 0, np.nan])
    assert np.isnan(z[2]).all()
    assert ZScore(0.5).highest(2, 10) == 3.0
    assert ZScore(0.5).highest(2, 0) == 0.0
    high = np.r_[1.0, np.zeros(9)][None]
    np.testing.assert_allclose(z_scores(high)[0, 0], 3.0)


def test_a_run_that_lacks_a_candidate_adds_its_lowest_z_score():
    runs = [(np.array([3.0, 1.0]), np.array([0, 1])), (np.array([4.0]), np.array([2]))]
    scores, rows = ZScore(0.5).fuse(runs, ["dense", "lexical"])
    assert dict(zip(rows.tolist(), scores.tolist())) == {0: 0.5, 1: -0.5, 2: -0.5}


@pytest.mark.parametrize("weights", [(), (0, 0), (1, -1), (1, float("inf")), (True, 1), "12", (1, "a")])
def test_weights_that_weigh_nothing_are_refused(weights):
    with pytest.raises(ConfigError, match="weights is"):
        check_weights(weights, "X")
    assert check_weights(np.array([0, 2]), "X") == (0.0, 2.0)


@pytest.mark.parametrize("k", [1, 2, 3, 8, 12])
def test_the_best_k_are_those_of_a_full_sort(k):
    rng = np.random.default_rng(k)
    scores = rng.permutation(20)[None, :].astype(float)
    rows = rng.permutation(50)[None, :20]
    rows[0, 3] = -1
    hashes = np.arange(50, dtype=np.uint64)
    best_scores, best = rank_batch(scores, rows, np.array([1], np.uint64), hashes, k)
    order = [i for i in np.argsort(-scores[0]) if rows[0, i] >= 0][:k]
    assert best[0].tolist() == rows[0, order].tolist()
    assert best_scores[0].tolist() == scores[0, order].tolist()


def test_the_first_row_of_the_corpus_comes_before_nothing_even_if_it_scores_nothing():
    hashes = np.arange(3, dtype=np.uint64)
    _, rows = rank_batch(np.array([[5.0, -np.inf]]), np.array([[-1, 0]]), np.array([1], np.uint64), hashes, 2)
    assert rows.tolist() == [[0, -1]]


def test_blocks_of_several_widths_are_filled_with_nothing(monkeypatch):
    monkeypatch.setattr(fusion, "CELLS", 1)
    rows, scores = np.array([[3, 1], [2, -1]]), np.array([[2.0, 1.0], [1.0, 0.0]])
    fused, together = RRF().fuse_batch([scores], [rows], ["dense"])
    assert together.tolist() == [[1, 3], [2, -1]]
    assert fused[1, 1] == -np.inf


def test_fewer_candidates_than_k_end_in_nothing():
    scores, rows = rank_batch(
        np.array([[1.0, 2.0]]),
        np.array([[7, -1]]),
        np.array([1], np.uint64),
        np.arange(9, dtype=np.uint64),
        3,
    )
    assert rows.tolist() == [[7, -1, -1]]
    assert scores.tolist() == [[1.0, -np.inf, -np.inf]]


def test_spans_in_one_line_are_read_as_pairs():
    assert as_spans([0, 2, 5, 9]).tolist() == [[0, 2], [5, 9]]


@pytest.mark.parametrize(
    ("method", "highest"), [("sum", 1.0), ("wsum", 1.5), ("max", 0.5), ("mnz", 2.0), ("wmnz", 3.0)]
)
def test_ceilings_of_two_runs_that_score_half_and_weigh_three(method, highest):
    assert CEILINGS[method](2, 10, 0.5, 3.0, None) == highest
