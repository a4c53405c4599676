"""Qrels, quotes and runs, out and in again: nothing changes on the way, and other tools read the same."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ragbench.base.errors import DataError
from ragbench.core.chunks import Chunks
from ragbench.core.documents import Corpus, Document
from ragbench.core.gold import Gold
from ragbench.core.qrels import Judgement, Qrels, chunk_grades, read_qrels
from ragbench.core.quotes import find_quote
from ragbench.core.ranking import Ranking
from ragbench.core.runs import Run
from ragbench.evaluate.exchange import (
    ir_metadata,
    read_run,
    run_from_dict,
    run_to_dict,
    write_beir,
    write_run,
)
from ragbench.evaluate.rank_metrics import rank_metrics
from ragbench.ingest.collections import load_beir

WORDS = ["pump", "valve", "starts", "the", "lead", "water", "ü", "naïve", "鍵", "x" * 12]
texts = st.lists(st.sampled_from(WORDS), min_size=5, max_size=60).map(" ".join)


@given(text=texts, data=st.data())
def test_a_slice_of_a_text_is_found_in_it(text, data):
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    quote = text[start:end]
    found = find_quote(quote, text)
    if quote.strip():
        assert found.score == 100 and text[found.start : found.end] == quote.strip()
    else:
        assert found is None


@given(text=texts, data=st.data())
def test_white_space_in_a_quote_does_not_matter(text, data):
    quote = "\n \t".join(text.split()[1:4])
    found = find_quote(quote, text)
    assert text[found.start : found.end].split() == text.split()[1:4]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(text=texts, quote=texts, least=st.sampled_from([60.0, 80.0, 95.0]))
def test_a_likeness_is_what_it_says(text, quote, least):
    from rapidfuzz.fuzz import ratio

    found = find_quote(quote, text, least)
    if found is not None and found.how == "fuzzy":
        assert found.score >= least
        assert ratio(
            " ".join(quote.split()), " ".join(text[found.start : found.end].split())
        ) == pytest.approx(found.score)


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(5)
    corpus = Corpus([Document(f"d{i}", " ".join(rng.choice(WORDS[:6], 80))) for i in range(6)])
    spans = [(i, s, min(s + 60, len(d))) for i, d in enumerate(corpus) for s in range(0, len(d) - 1, 45)]
    chunks = Chunks(corpus, *zip(*spans), "windows")
    gold = Gold.from_spans(
        [
            {
                "query_id": f"q{i}",
                "query": f"question {i}",
                "evidence": [
                    {
                        "doc_id": f"d{rng.integers(6)}",
                        "start": int(s),
                        "end": int(s) + 40,
                        "grade": int(rng.integers(1, 3)),
                    }
                    for s in rng.integers(0, 200, rng.integers(1, 4))
                ],
            }
            for i in range(12)
        ]
    )
    rows = np.array([rng.permutation(len(chunks))[:8] for _ in range(12)])
    return (
        corpus,
        chunks,
        gold,
        Ranking(
            chunks,
            Run(tuple(q.query_id for q in gold.query_list), np.tile(np.arange(8, 0, -1.0), (12, 1)), rows),
        ),
    )


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        ("overlap", lambda s: s > 0),
        ("covers(0.5)", lambda s: s >= 0.5),
        ("covers(1)", lambda s: s >= 1),
        ("graded", lambda s: s > 0),
    ],
)
def test_rules_agree_with_their_definition(case, rule, holds):
    corpus, chunks, gold, _ = case
    for q, grades in zip(gold.answerable, chunk_grades(gold, chunks, rule)):
        for i in range(len(chunks)):
            shares = []
            for e in gold.by_query[q.query_id]:
                text, doc = corpus[e.doc_id].text[e.start : e.end], corpus[int(chunks.doc_row[i])]
                for at in (n for n in range(len(doc.text)) if doc.text.startswith(text, n)):
                    shares.append(
                        max(0, min(at + len(text), chunks.end[i]) - max(at, chunks.start[i])) / len(text)
                    )
            assert (i in grades) == any(map(holds, shares)), (q, i)
            assert all(isinstance(g, int) and g > 0 for g in grades.values())


@pytest.mark.parametrize("name", ["run.trec", "run.json", "run.lz4", "run.parquet"])
def test_a_run_comes_back_as_it_was(case, tmp_path, name):
    _, chunks, _, ranking = case
    table, about = read_run(write_run(ranking, tmp_path / name, metadata=ir_metadata("t", "x")))
    assert {q: list(d) for q, d in table.items()} == {q: list(d) for q, d in run_to_dict(ranking).items()}
    assert about.get("tag") == ("t" if name == "run.trec" else None)
    np.testing.assert_array_equal(run_from_dict(table, chunks).rows, ranking.rows)


@pytest.mark.slow  # ranx compiles its readers for a minute
def test_ranx_reads_what_we_write_and_scores_the_same(case, tmp_path):
    import pandas as pd
    import ranx

    def theirs_of(
        kind, path
    ):  # ranx 0.3.21 asks pandas for columns of type object, which pandas 3 no longer gives
        return (
            kind.from_df(pd.read_parquet(path).astype({"q_id": object, "doc_id": object}))
            if path.endswith("parquet")
            else kind.from_file(path)
        )

    corpus, chunks, gold, ranking = case
    qrels = gold.to_qrels(chunks, "graded")
    for name in ("q.json", "q.parquet", "q.trec"):
        path = str(qrels.save(tmp_path / name))
        theirs = theirs_of(ranx.Qrels, path)
        assert theirs.to_dict() == qrels.to_dict()
    for name in ("r.json", "r.lz4", "r.parquet", "r.trec"):
        path = str(write_run(ranking, tmp_path / name))
        theirs = theirs_of(ranx.Run, path)
        assert {q: dict(sorted(d.items())) for q, d in theirs.to_dict().items()} == {
            q: dict(sorted(d.items())) for q, d in run_to_dict(ranking).items()
        }


def test_document_metrics_survive_the_way_through_a_trec_run(case, tmp_path):
    corpus, chunks, gold, ranking = case
    before = rank_metrics(gold, ranking, ["doc:ndcg@5", "doc:mrr"])
    table, _ = read_run(write_run(ranking, tmp_path / "r.trec", unit="document"))
    after = rank_metrics(gold, run_from_dict(table, corpus), ["doc:ndcg@5", "doc:mrr"])
    for name in before:
        np.testing.assert_allclose(after[name], before[name], atol=1e-12)


def test_a_beir_folder_comes_back_with_the_same_spans(case, tmp_path):
    corpus, _, gold, _ = case
    again, spans = load_beir(write_beir(corpus, gold, tmp_path / "beir"), spans="evidence_spans.jsonl")
    assert [d.text for d in again] == [d.text for d in corpus]
    assert sorted(e[:4] for e in spans.evidence_list) == sorted({e[:4] for e in gold.evidence_list})
    _, by_document = load_beir(tmp_path / "beir")
    assert {(e.query_id, e.doc_id) for e in by_document.evidence_list} == {
        (e.query_id, e.doc_id) for e in gold.evidence_list
    }


def test_pytrec_eval_reads_the_dicts(case):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    _, chunks, gold, ranking = case
    scores = pytrec_eval.RelevanceEvaluator(gold.to_qrels(chunks).to_dict(), {"recip_rank"}).evaluate(
        run_to_dict(ranking)
    )
    assert set(scores) <= set(ranking.query_ids) and len(scores) > 3


@pytest.mark.parametrize(
    ("text", "where"),
    [("q1 0 d1\nq1 d2\n", "line 2"), ("q1 0 d1 0.5\n", "line 1"), ("a b c d e f g\n", "line 1")],
)
def test_a_bad_qrels_line_is_named(tmp_path, text, where):
    (tmp_path / "q.txt").write_text("q0 0 d0 1\n" + text)
    with pytest.raises(DataError, match="line"):
        read_qrels(tmp_path / "q.txt")


def test_qrels_keep_unicode_ids(tmp_path):
    q = Qrels((Judgement("frage-ü", "文書1", 2),))
    for name in ("a.txt", "a.tsv", "a.json"):
        assert tuple(read_qrels(q.save(tmp_path / name))) == q.judgements
    assert json.loads((tmp_path / "a.json").read_text())["frage-ü"] == {"文書1": 2}
