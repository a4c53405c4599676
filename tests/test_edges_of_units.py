"""Edges of what turns a ranking into judged units and counted evidence: places, copies, budgets, ratios. Each
case is small enough to be counted by hand."""

import numpy as np
import pytest

from ragbench.base.errors import ConfigError, DataError
from ragbench.core.chunks import Chunks
from ragbench.core.documents import Corpus, Document
from ragbench.core.evidence_classes import EvidenceClass, check_gold
from ragbench.core.gold import Gold
from ragbench.core.gold_records import Evidence, Query
from ragbench.core.ranking import Ranking
from ragbench.core.runs import Run
from ragbench.evaluate.evidence_metrics import (
    TokenCounts,
    budget_area,
    evidence_at_budgets,
    evidence_at_chunks,
    evidence_counts,
    evidence_tokens,
    precision_omega,
    query_evidence,
    reading,
    stops,
    token_counts,
    token_starts,
    touching,
)
from ragbench.evaluate.judged_units import (
    answer_places,
    answer_rows,
    check_judged,
    class_places,
    class_positions,
    classes_of,
    document_list,
    evidence_list,
    in_places,
    judge,
)

TEXT = "abcdefghij" * 2


def corpus_of(*texts: str) -> Corpus:
    return Corpus([Document(f"d{i}", text) for i, text in enumerate(texts)])


def chunks_of(corpus: Corpus, *spans: tuple[int, int, int]) -> Chunks:
    row, start, end = np.array(spans, dtype=np.int64).reshape(-1, 3).T
    return Chunks(corpus, row, start, end)


def evidence_class(*places: tuple[int, int, int], grade: int = 1) -> EvidenceClass:
    return EvidenceClass(places, grade)


def positions(spans, *places, cover=0.5) -> list[int]:
    table = sorted(spans)
    chunks = chunks_of(corpus_of(TEXT, TEXT[::-1]), *table)
    rows = np.array([table.index(span) for span in spans])
    return class_positions(chunks, rows, [evidence_class(*places)], cover).tolist()


@pytest.mark.parametrize(
    ("spans", "cover", "position"),
    [
        ([(0, 0, 5)], 0.5, 1),  # five of ten characters are half
        ([(0, 0, 4)], 0.5, 0),
        ([(0, 0, 4), (0, 4, 5)], 0.5, 2),
        ([(0, 0, 4), (0, 0, 4), (0, 9, 10)], 0.5, 3),  # characters read twice count once
        ([(0, 0, 9)], 1.0, 0),
        ([(0, 0, 10)], 1.0, 1),
        ([(1, 0, 10), (0, 0, 10)], 0.5, 2),  # the same place of another document is another text
        ([(0, 10, 20), (0, 0, 10)], 0.5, 2),  # a chunk that only touches has nothing of it
        ([(0, 12, 20)], 0.5, 0),
    ],
)
def test_a_class_is_found_where_enough_of_one_copy_has_been_read(spans, cover, position):
    assert positions(spans, (0, 0, 10), cover=cover) == [position]


def test_the_copy_that_is_found_first_counts_and_half_of_two_copies_is_nothing():
    assert positions([(0, 10, 15), (0, 0, 5)], (0, 0, 5), (0, 10, 15)) == [1]
    assert positions([(0, 0, 4), (0, 10, 14)], (0, 0, 10), (0, 10, 20)) == [0]


def test_chunks_in_the_middle_of_a_place_are_cut_to_it():
    assert positions([(0, 0, 8), (0, 10, 20)], (0, 4, 12), cover=0.75) == [2]
    assert positions([(0, 0, 8), (0, 9, 20)], (0, 4, 12), cover=1.0) == [0]


@pytest.mark.parametrize("cover", [0, -0.5, 1.5])
def test_a_cover_that_is_no_share_is_refused(cover):
    with pytest.raises(ConfigError, match="cover is"):
        positions([(0, 0, 5)], (0, 0, 5), cover=cover)


def test_classes_that_one_chunk_completes_stand_one_behind_the_other_the_best_grade_first():
    assert class_places(np.array([2, 2, 3]), np.array([1, 3, 2])).tolist() == [4, 2, 3]
    assert class_places(np.array([1, 1, 5]), np.array([1, 1, 1])).tolist() == [1, 2, 5]
    assert class_places(np.empty(0, int), np.empty(0, int)).tolist() == []


def test_the_judged_list_has_distractors_between_and_is_longer_where_classes_wait():
    assert evidence_list(np.array([2, 0, 2]), np.array([1, 1, 2]), 2).tolist() == [-1, 2, 0]
    assert evidence_list(np.array([2, 3]), np.array([1, 1]), 2).tolist() == [-1, 0]
    assert evidence_list(np.array([0]), np.array([1]), 3).tolist() == [-1, -2, -3]


def test_ids_stand_at_their_places_and_each_gap_has_an_id_of_its_own():
    assert in_places(np.array([7, 8]), np.array([1, 3]), 4).tolist() == [7, -2, 8, -4]


def test_documents_stand_where_their_best_chunk_stands():
    chunks = chunks_of(corpus_of("aa", "bb", "cc"), (0, 0, 1), (1, 0, 1), (1, 1, 2), (2, 0, 1))
    assert document_list(chunks, np.array([3, 1, 2, 0])).tolist() == [2, 1, 0]


def world(run_of: dict[str, list[int]], **options):
    corpus = corpus_of("the red fox", "a blue whale")
    gold = Gold(
        [Query("q1", "fox?"), Query("q2", "whale?"), Query("q3", "nothing?")],
        [Evidence("q1", "d0", 4, 11), Evidence("q2", "d1", 2, 12)],
        **options,
    )
    chunks = chunks_of(corpus, (0, 0, 7), (0, 7, 11), (1, 0, 12))
    depth = max(map(len, run_of.values()))
    rows = [[*r, *[-1] * (depth - len(r))] for r in run_of.values()]
    scores = [[(depth - i) * (row >= 0) for i, row in enumerate(r)] for r in rows]
    return gold, Ranking(chunks, Run(tuple(run_of), np.array(scores, float), np.array(rows)))


def test_questions_that_the_run_does_not_answer_have_no_rows_and_no_places():
    gold, ranking = world({"q2": [2, 0]})
    assert [r.tolist() for r in answer_rows(gold, ranking)] == [[], [2, 0]]
    assert [(p.tolist(), n) for p, n in answer_places(gold, ranking)] == [([], 0), ([1, 2], 2)]


def test_a_run_of_other_questions_is_refused():
    gold, ranking = world({"q9": [0], "q2": [1]})
    with pytest.raises(DataError, match="answers 1 queries that are not in the gold, first 'q9'"):
        answer_rows(gold, ranking)


def test_each_unit_judges_the_same_ranking_in_its_own_ids():
    gold, ranking = world({"q1": [2, 1, 0], "q2": [2]})
    evidence = judge(gold, ranking)
    assert [ids.tolist() for ids in evidence.lists()] == [[-1, 0, -3], [0]]
    assert [ids.tolist() for ids in evidence.lists(1)] == [[-1], [0]]
    assert (evidence.cut(3), len(evidence)) == (0, 2)
    assert [ids.tolist() for ids in judge(*world({"q1": [2, 1], "q2": [0]})).lists()] == [[-1, 0], [-1]]
    documents = judge(gold, ranking, "document")
    assert [ids.tolist() for ids in documents.lists()] == [[1, 0], [1]]
    assert [u.tolist() for u in documents.units] == [[[0, 1]], [[1, 1]]]
    assert documents.cut(3) == 3
    chunks = judge(gold, ranking, "chunk")
    assert [ids.tolist() for ids in chunks.lists()] == [[2, 1, 0], [2]]
    with pytest.raises(ConfigError, match="unit is 'page'"):
        judge(gold, ranking, "page")


@pytest.mark.parametrize(
    ("units", "lists"),
    [
        ([], []),
        ([np.array([[0, 1]])], []),
        ([np.array([0, 1])], [np.array([0])]),
        ([np.array([[0, 1, 2]])], [np.array([0])]),
        ([np.array([["0", "1"]])], [np.array([0])]),
        ([[[0, 1]]], [np.array([0])]),
        ([np.array([[0, 1]])], [np.array([[0]])]),
        ([np.array([[0, 1]])], [np.array([0.5])]),
        ([np.array([[0, 1]])], [[0]]),
    ],
)
def test_what_is_no_table_of_units_or_no_list_of_ids_is_refused(units, lists):
    with pytest.raises(DataError, match="are not what is judged"):
        check_judged(units, lists, "here")


def test_an_empty_list_of_ids_may_be_of_any_type():
    check_judged([np.array([[0, 1]])], [np.empty(0)], "here")
    check_judged([np.array([[0, 1.5]])], [np.array([3])], "here")


def test_classes_are_made_once():
    gold, ranking = world({"q1": [0]})
    assert classes_of(ranking.corpus, gold) is classes_of(ranking.corpus, gold)


# Evidence, counted by hand: tokens of a line of 40 characters start at every fourth.
COUNTS = TokenCounts(np.array([0, 20, 40]), np.arange(0, 40, 4))


def test_tokens_are_counted_where_they_start_and_documents_lie_end_to_end():
    assert COUNTS.line(np.array([1]), np.array([[2, 5]])).tolist() == [[22, 25]]
    assert COUNTS.count(np.array([[0, 4], [1, 4], [1, 5], [0, 40]])).tolist() == [1, 0, 1, 10]


def test_tokens_of_a_corpus_start_where_those_of_its_documents_do():
    corpus = corpus_of("red fox", "", "blue")
    counts = token_counts(corpus)
    assert counts.base.tolist() == [0, 7, 7, 11]
    assert counts.starts.tolist() == [0, 3, 7]


def test_a_token_that_is_part_of_a_character_starts_with_it():
    starts = token_starts(Document("d", "a\U0001f9ff"))
    assert starts.tolist() == [0, *[1] * (len(starts) - 1)]
    assert len(starts) > 2
    assert set(token_starts(Document("d", "\U0001f9ff")).tolist()) == {0}


def test_new_text_is_read_in_the_order_of_the_chunks():
    segments, chunk = reading(np.array([[10, 20], [0, 12], [15, 30]]))
    assert segments.tolist() == [[10, 12], [12, 15], [15, 20], [0, 10], [20, 30]]
    assert chunk.tolist() == [0, 0, 0, 1, 2]


def test_a_budget_ends_inside_a_stretch_at_the_start_of_a_token():
    segments = np.array([[8, 16], [20, 32]])  # 2 and 3 tokens
    full, cut, used = stops(segments, COUNTS, np.array([1, 2, 3, 5, 9]))
    assert full.tolist() == [0, 1, 1, 2, 2]
    assert cut[:3].tolist() == [12, 20, 24]
    assert used.tolist() == [1, 2, 3, 5, 5]


def test_overlapping_pieces_count_once_and_each_copy_is_a_copy_of_its_piece():
    e = query_evidence([(0, 8), (4, 12)], [np.array([0, 20]), np.array([4])])
    assert e.size == 12
    assert e.owner.tolist() == [0, 0, 1]
    assert e.parts.tolist() == [[0, 8], [20, 28], [8, 12]]
    assert e.copy.tolist() == [0, 1, 2]
    assert e.anywhere.tolist() == [[0, 12], [20, 28]]


def test_lost_pieces_weigh_their_characters_or_as_much_as_the_others_on_average():
    named, copies = [(0, 8), (10, 14)], [np.array([0]), np.array([10])]
    assert (query_evidence(named, copies, [5]).size, query_evidence(named, copies, [5]).lost) == (17, 5)
    assert (query_evidence(named, copies, [0]).size, query_evidence(named, copies, [0]).lost) == (18, 6)
    alone = query_evidence([], [], [0, 4])
    assert (alone.size, alone.lost, alone.parts.shape, alone.anywhere.shape) == (5, 5, (0, 2), (0, 2))


def at_stops(e, spans, full, cut):
    return evidence_counts(e, np.array(spans), np.array(full), np.array(cut))


def test_characters_at_a_stop_are_those_of_the_best_copy():
    e = query_evidence([(0, 8)], [np.array([0, 20])])
    counted = at_stops(e, [[2, 6], [18, 30]], [0, 1, 1, 2], [4, 18, 25, 0])
    assert counted["found"].tolist() == [2, 4, 5, 8]
    assert counted["relevant"].tolist() == [2, 4, 9, 12]
    assert counted["handed"].tolist() == [2, 4, 11, 16]
    assert counted["gold"].tolist() == [8, 8, 8, 8]


def test_tokens_at_a_stop_are_those_that_start_in_what_was_read():
    e = query_evidence([(0, 16)], [np.array([0])], [4])
    counted = evidence_tokens(
        e, np.array([[4, 12], [20, 28]]), np.array([0, 1, 2]), np.array([8, 24, 0]), COUNTS
    )
    assert counted["found"].tolist() == [1, 2, 2]
    assert counted["relevant"].tolist() == [1, 2, 2]
    assert counted["handed"].tolist() == [1, 3, 4]
    assert counted["gold"].tolist() == [5, 5, 5]  # four tokens and the lost one, at one in four characters


def test_evidence_that_the_corpus_lacks_altogether_is_never_found():
    e, spans = query_evidence([], [], [8]), np.array([[0, 8]])
    full, cut = np.array([0, 1]), np.array([4, 0])
    for counted in (evidence_counts(e, spans, full, cut), evidence_tokens(e, spans, full, cut, COUNTS)):
        assert counted["found"].tolist() == counted["relevant"].tolist() == [0, 0]
    assert evidence_counts(e, spans, full, cut)["gold"].tolist() == [8, 8]


def test_evidence_inside_one_token_is_one_token_once_a_character_of_it_is_read():
    e = query_evidence([(1, 3)], [np.array([1])])
    spans = np.array([[0, 8]])
    counted = evidence_tokens(e, spans, np.array([0, 0, 1]), np.array([1, 2, 0]), COUNTS)
    assert counted["found"].tolist() == [0, 1, 1]
    assert counted["gold"].tolist() == [1, 1, 1]


def test_recall_precision_and_iou_of_a_ranking_counted_by_hand():
    gold, ranking = world({"q1": [1, 0], "q2": [2]})
    measured = evidence_at_chunks(gold, ranking, [1, 2])
    np.testing.assert_allclose(measured["recall"], [[4 / 7, 1], [1, 1]])
    np.testing.assert_allclose(measured["precision"], [[1, 7 / 11], [10 / 12, 10 / 12]])
    np.testing.assert_allclose(measured["iou"], [[4 / 7, 7 / 11], [10 / 12, 10 / 12]])
    assert measured["characters"].tolist() == [[4, 11], [12, 12]]


def test_at_a_budget_of_tokens_the_text_is_read_to_the_token_that_would_not_fit():
    gold, ranking = world({"q1": [0, 1], "q2": []})
    measured = evidence_at_budgets(gold, ranking, [1, 2, 3, 100])
    assert measured["tokens"].tolist() == [[1, 2, 3, 3], [0, 0, 0, 0]]
    assert measured["characters"].tolist() == [[3, 7, 11, 11], [0, 0, 0, 0]]
    np.testing.assert_allclose(measured["recall"][0], [0, 3 / 7, 1, 1])
    assert measured["recall"][1].tolist() == measured["precision"][1].tolist() == [0, 0, 0, 0]
    tokens = evidence_at_budgets(gold, ranking, [1, 2, 3], unit="tokens")
    assert tokens["characters"][0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("budgets", [0, [10, -1], [1.5], [True]])
def test_budgets_that_are_no_numbers_of_tokens_are_refused(budgets):
    gold, ranking = world({"q1": [0]})
    with pytest.raises((ConfigError, DataError)):
        evidence_at_budgets(gold, ranking, budgets)


def test_a_unit_that_nobody_counts_is_refused():
    gold, ranking = world({"q1": [0]})
    with pytest.raises(ConfigError, match="unit is 'words'"):
        evidence_at_chunks(gold, ranking, 1, unit="words")


def test_chunks_that_share_a_character_with_a_part_touch_it():
    spans = np.array([[30, 40], [0, 10], [10, 20], [5, 35], [20, 30], [12, 12]])
    assert touching(spans, np.array([[10, 20]])).tolist() == [2, 3]
    assert touching(spans, np.array([[9, 10], [39, 50]])).tolist() == [0, 1, 3]
    assert touching(spans, np.empty((0, 2), int)).tolist() == []


def test_precision_of_all_chunks_that_touch_counts_text_once():
    gold, ranking = world({"q1": [0]})
    corpus = ranking.corpus
    whole = chunks_of(corpus, (0, 0, 7), (0, 4, 11), (1, 0, 12))
    np.testing.assert_allclose(precision_omega(gold, whole), [7 / 11, 10 / 12])
    np.testing.assert_allclose(precision_omega(gold, whole, "cl100k_base"), [1 / 3, 1 / 3])
    elsewhere = chunks_of(corpus, (1, 0, 2))
    assert precision_omega(gold, elsewhere).tolist() == [0, 0]
    assert precision_omega(gold, chunks_of(corpus)).tolist() == [0, 0]


def test_area_under_a_curve_starts_at_nothing_and_is_a_share_of_the_whole():
    assert budget_area(np.array([[1.0, 1.0]]), [10, 20]).tolist() == [0.75]
    assert budget_area(np.array([[1.0]]), [10]).tolist() == [0.5]


@pytest.mark.parametrize(
    ("curve", "budgets"), [([1.0], [10]), ([[1.0, 1.0]], [10]), ([[1.0, 1.0]], [10, 10])]
)
def test_a_curve_that_does_not_fit_its_budgets_is_refused(curve, budgets):
    with pytest.raises(DataError, match="a curve of shape"):
        budget_area(np.array(curve), budgets)


@pytest.mark.parametrize("n", [50, 51])
def test_fifty_problems_of_a_gold_are_all_said_and_of_more_that_there_are_more(n):
    corpus = Corpus([Document("a", "The mill grinds.")])
    gold = Gold([Query("q", "q")], [Evidence("q", "a", 0, 20 + i) for i in range(n)])
    with pytest.raises(DataError) as refusal:
        check_gold(corpus, gold)
    lines = refusal.value.what.split("\n")
    assert lines[0] == f"{n} pieces of evidence do not fit the corpus"
    assert len(lines) == 51 + (n > 50) and (lines[-1] == "…") == (n > 50)
    assert lines[50] == "query 'q', evidence [0, 69) of 'a': the document has 16 characters"
