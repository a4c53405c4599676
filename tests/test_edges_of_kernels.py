"""Edges of the small kernels that everything counts with: spans, fusion, ties, intervals. A change in any of
them passes unnoticed through the larger laws."""

import numpy as np
import pytest
from scipy.stats import norm, t

from ragbench.base.errors import DataError
from ragbench.core.spans import as_spans, first_cover
from ragbench.fusion.fusion import RRF, MinMax, min_max, settled
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
