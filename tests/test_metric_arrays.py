"""Metrics on arrays against ranx and trec_eval: graded judgements with holes, equal scores, short runs and
empty ones."""

import numpy as np
import pytest
from helper_metrics import TREC_NAMES
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbench.core.chunks import Chunks
from ragbench.core.documents import Corpus, Document
from ragbench.core.gold import Gold
from ragbench.core.gold_records import Evidence, Query
from ragbench.core.ranking import Ranking
from ragbench.core.runs import Run, pad, rank
from ragbench.evaluate.judged_units import judge
from ragbench.evaluate.metric_arrays import array_metrics
from ragbench.evaluate.rank_metrics import HOLES, parse_metric, ranx_scores

CORPUS = Corpus([Document(f"d{i:02}", f"text number {i}") for i in range(14)])
CHUNKS = Chunks(CORPUS, np.arange(14), np.zeros(14), np.full(14, 4))
TREC = TREC_NAMES | {"bpref": "bpref"}
RANX = [
    "recall@3",
    "recall",
    "hit_rate@2",
    "hits@4",
    "precision",
    "precision@5",
    "f1",
    "f1@3",
    "r-precision",
    "mrr",
    "mrr@2",
    "map",
    "map@4",
    "dcg",
    "dcg@3",
    "dcg_burges@4",
    "ndcg",
    "ndcg@3",
    "ndcg_burges",
    "ndcg_burges@5",
    "rbp.80",
    "rbp.95",
    "recall@3-l2",
    "ndcg@5-l2",
    "r-precision-l2",
]


@st.composite
def pools(draw):
    "Gold over documents with holes, and a run whose raw scores have ties; some queries found nothing."
    n, evidence, wanting = draw(st.integers(1, 5)), [], []
    for q in range(n):
        grades = draw(st.dictionaries(st.integers(0, 13), st.integers(0, 3), min_size=1, max_size=9))
        if not any(grades.values()):
            grades[next(iter(grades))] = 1
        evidence += [Evidence(f"q{q}", f"d{d:02}", 0, 4, g) for d, g in grades.items() if g]
        wanting += [(f"q{q}", f"d{d:02}") for d, g in grades.items() if not g]
    gold = Gold(
        tuple(Query(f"q{q}", "?") for q in range(n)), tuple(evidence), "document", nonrelevant=tuple(wanting)
    )
    lists = []
    for q in range(n):
        scores = draw(st.dictionaries(st.integers(0, 13), st.integers(0, 3), max_size=14))
        lists.append(
            rank(
                np.array(list(scores.values()), float),
                np.array(list(scores), np.int64),
                np.uint64(q),
                CHUNKS.text_hashes,
                14,
            )
        )
    scores, rows = pad(lists, 14)
    return gold, Run(tuple(f"q{q}" for q in range(n)), scores, rows)


@settings(max_examples=80, deadline=None)
@given(pools())
def test_arrays_agree_with_trec_eval(pool):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    gold, run = pool
    ours = array_metrics(judge(gold, Ranking(CHUNKS, run)), list(TREC))
    qrels = gold.to_qrels(CHUNKS).to_dict()
    answers = {
        q: {CORPUS[int(r)].id: float(-i) for i, r in enumerate(run.of(n))}
        for n, q in enumerate(run.query_ids)
        if len(run.of(n))
    }  # an empty one crashes it
    theirs = (
        pytrec_eval.RelevanceEvaluator(
            qrels,
            {"recall", "P", "recip_rank", "map", "ndcg", "ndcg_cut", "success", "Rprec", "map_cut", "bpref"},
        ).evaluate(answers)
        if answers
        else {}
    )
    for name, trec in TREC.items():
        for i, q in enumerate(gold.answerable):
            wanted = theirs.get(q.query_id, {}).get(
                trec, 0.0
            )  # trec_eval leaves out a query that found nothing; here it scores 0
            assert ours[name][i] == pytest.approx(wanted, abs=1e-12), (name, q.query_id)


@settings(max_examples=40, deadline=None)
@given(pools())
def test_arrays_agree_with_ranx(pool):
    gold, run = pool
    judged = judge(gold, Ranking(CHUNKS, run))
    ours = array_metrics(judged, RANX)
    for name in RANX:
        m = parse_metric(name)
        assert m.name not in HOLES
        theirs = ranx_scores(judged.units, judged.lists(m.k), [m.ranx(judged.cut(m.k))])[
            m.ranx(judged.cut(m.k))
        ]
        np.testing.assert_allclose(ours[name], theirs, rtol=0, atol=1e-12, err_msg=name)


@settings(max_examples=60, deadline=None)
@given(pools(), st.integers(1, 14))
def test_judged_counts_what_somebody_looked_at(pool, k):
    gold, run = pool
    ours = array_metrics(judge(gold, Ranking(CHUNKS, run)), [f"judged@{k}"])[f"judged@{k}"]
    known = {(e.query_id, e.doc_id) for e in gold.evidence_list} | set(gold.nonrelevant)
    for i, q in enumerate(gold.answerable):
        shown = [CORPUS[int(r)].id for r in run.of(i)[:k]]
        assert ours[i] == sum((q.query_id, d) in known for d in shown) / k
