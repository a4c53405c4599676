"""The table of several metrics says what the leaderboard and the comparison of two systems say, and marks
a best mean only where the test does."""

from dataclasses import replace

import numpy as np
import pytest

from ragbench.base.errors import ConfigError
from ragbench.stats.corrections import all_pairs_p, compare_to
from ragbench.stats.paired_tests import compare_pair
from ragbench.testing.toy_results import toy_results

METRICS = ["recall@5", "mrr"]


@pytest.fixture(scope="module")
def results():
    return toy_results().select("char160*")


@pytest.fixture(scope="module")
def with_winner(results):
    "One system is better than every other by mrr, none is by recall@5."
    scores = {**results.systems[0].scores, "mrr": np.minimum(1, results.scores("mrr").max(axis=1) + 0.2)}
    ahead = replace(results.systems[0], name="far ahead", scores=scores)
    return replace(results, systems=[ahead, *results.systems[1:3]], latency_ms={}, step_ms={})


@pytest.mark.parametrize("correction", [None, "bh", "none"])
@pytest.mark.parametrize("baseline", [None, "char160 lsa"])
def test_numbers_are_those_of_the_leaderboard(results, baseline, correction):
    wide = results.table(METRICS, baseline, correction).to_frame()
    for metric in METRICS:
        board = results.leaderboard(metric, baseline, correction).frame.set_index("system").loc[results.names]
        np.testing.assert_array_equal(wide[metric, "mean"], board[metric])
        for quantity in ("low", "high", "difference", "difference_low", "difference_high", "p"):
            np.testing.assert_array_equal(wide[metric, quantity], board[quantity])


def test_p_against_a_baseline_is_holm_or_that_of_all_pairs(results):
    scores, row = results.scores("mrr"), results.names.index("char160 lsa")
    holm = [c.p for c in compare_to(scores, row)]
    for correction, p in ((None, holm), ("tukey", all_pairs_p(scores)[row])):
        shown = results.table("mrr", "char160 lsa", correction).to_frame()["mrr", "p"]
        assert np.isnan(shown.iloc[row])
        np.testing.assert_array_equal(np.delete(shown.to_numpy(), row), np.delete(p, row))


def test_systems_share_a_letter_exactly_where_no_test_separates_them(results):
    table, p = results.table("mrr"), all_pairs_p(results.scores("mrr"))
    for i, a in enumerate(table.letters["mrr"]):
        for j, b in enumerate(table.letters["mrr"]):
            assert bool(set(a) & set(b)) == (p[i, j] >= 0.05)


def test_a_best_mean_is_marked_only_where_it_is_the_leaderboards_winner(with_winner):
    table = with_winner.table(METRICS)
    assert with_winner.leaderboard("recall@5").winner is None
    assert with_winner.leaderboard("mrr").winner == "far ahead"
    assert table.best == {"recall@5": None, "mrr": 0}
    assert str(table).count("★") == 2  # at the mean, and in the note
    assert table._repr_html_().count("font-weight:bold") == 1
    assert table.to_markdown().count("**") == 2
    assert table.to_latex().count(r"\textbf") == 1
    assert "color" not in table._repr_html_()  # the page's own, light or dark


def test_rows_are_in_the_order_of_the_plan_and_metrics_that_do_not_fit_stand_below(results):
    table = results.table(METRICS, "char160 bm25")
    assert list(table.to_frame().index) == results.names
    assert max(map(len, str(table).splitlines())) <= 110
    assert str(table).count("to char160 bm25 [95 %]") == 2  # a header for each metric
    assert table.to_markdown().splitlines()[0].count("to char160 bm25") == 2


def test_a_table_of_one_system_tests_nothing(results):
    text = str(results.select("char160 lsa").table(METRICS))
    assert "group" not in text and "p <" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("recal@5",), "recall@5"),
        (([],), "metrics is empty"),
        (("mrr", "nobody"), "there is no system 'nobody'"),
        (("mrr", None, "bonferroni"), "holm, bh, none, tukey"),
    ],
)
def test_mistakes_are_told(results, arguments, message):
    with pytest.raises(ConfigError, match=message):
        results.table(*arguments)


def test_every_pair_is_compared_as_by_itself_and_corrected_for_all(results):
    pairs, scores = results.pairs("mrr"), results.scores("mrr")
    p = all_pairs_p(scores)
    for row in pairs.frame.itertuples(index=False):
        i, j = results.names.index(row.first), results.names.index(row.second)
        alone = compare_pair(scores[:, i], scores[:, j])
        assert (row.difference, row.low, row.high) == (alone.mean_difference, alone.low, alone.high)
        assert (row.wins, row.ties, row.losses) == (alone.wins, alone.ties, alone.losses)
        assert row.p == p[i, j]
    assert len(pairs.apart) == (p[np.triu_indices(len(p), 1)] < 0.05).sum()
    means = dict(zip(results.names, scores.mean(axis=0)))
    for better, worse in zip(pairs.apart["better"], pairs.apart["worse"]):
        assert means[better] > means[worse]
