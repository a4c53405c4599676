"""Public collections: tiny ones made here, the real ones where RAGBENCH_DATA names them, the same through
ir_datasets."""

import json
import os
from pathlib import Path

import pytest

from ragbench.core.evidence_classes import check_gold
from ragbench.core.gold import gold_from_qrels
from ragbench.core.qrels import Judgement
from ragbench.ingest.collections import load_beir, load_chunking_eval, load_squad
from ragbench.ingest.hubs import load_ir_dataset
from ragbench.ingest.trec import load_trec

DATA = Path(os.environ.get("RAGBENCH_DATA", "."))
with_data = pytest.mark.skipif(
    "RAGBENCH_DATA" not in os.environ, reason="RAGBENCH_DATA does not name the folder of public test data"
)
DOCS = {"d1": "Start the pump.", "d2": "Öl prüfen.", "d3": "A valve 😀 shuts."}
QUERIES = {"7": "pump?", "8": "oil?", "9": "valve?"}
QRELS = [("7", "d1", 2), ("7", "d2", 0), ("8", "d2", 1), ("8", "gone", 1), ("9", "d3", 1), ("99", "d1", 1)]


def beir(folder: Path) -> Path:
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(
        "\n".join(json.dumps({"_id": i, "title": "", "text": t}) for i, t in DOCS.items())
    )
    (folder / "queries.jsonl").write_text(
        "\n".join(json.dumps({"_id": i, "text": t}) for i, t in QUERIES.items())
    )
    rows = "".join(f"{q}\t{d}\t{g}\n" for q, d, g in QRELS)
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    return folder


def trec(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "docs.sgml").write_text(
        "".join(f"<DOC>\n<DOCNO>{i}</DOCNO>\n<TEXT>\n{t}\n</TEXT>\n</DOC>\n" for i, t in DOCS.items()),
        encoding="utf-8",
    )
    (folder / "topics.txt").write_text(
        "".join(f"<top>\n<num> Number: {i}\n<title> {t}\n</top>\n" for i, t in QUERIES.items())
    )
    (folder / "qrels.txt").write_text("".join(f"{q} 0 {d} {g}\n" for q, d, g in QRELS))
    return folder


def summary(corpus, gold):
    """What must agree, whatever the layout."""
    check_gold(corpus, gold)
    evidence = {
        (e.query_id, e.doc_id, e.grade)
        for e in gold.evidence_list
        if corpus[e.doc_id].text[e.start : e.end] == corpus[e.doc_id].text
    }
    return (
        {d.id: d.text for d in corpus},
        evidence,
        {(q.query_id, q.text, q.tags) for q in gold.query_list},
        gold.unit,
    )


def test_one_collection_in_three_layouts(tmp_path):
    ir_datasets = pytest.importorskip("ir_datasets")
    a = load_beir(beir(tmp_path / "beir"))
    b = load_trec(trec(tmp_path / "trec"))
    (tmp_path / "docs.tsv").write_text("".join(f"{i}\t{t}\n" for i, t in DOCS.items()), encoding="utf-8")
    (tmp_path / "queries.tsv").write_text(
        "".join(f"{i}\t{t}\n" for i, t in QUERIES.items()), encoding="utf-8"
    )
    dataset = ir_datasets.create_dataset(
        docs_tsv=str(tmp_path / "docs.tsv"),
        queries_tsv=str(tmp_path / "queries.tsv"),
        qrels_trec=str(tmp_path / "trec" / "qrels.txt"),
    )
    c = load_ir_dataset(dataset)
    assert summary(*a) == summary(*b) == summary(*c)
    assert summary(*a)[1] == {("7", "d1", 2), ("8", "d2", 1), ("9", "d3", 1)}
    for corpus, _ in (a, b, c):
        reasons = [(e.source, e.reason) for e in corpus.errors]
        assert ("query 8", "its document 'gone' (grade 1) is not in the corpus") in reasons
        assert any(s == "query 99" and "no such query" in r for s, r in reasons)
        assert len(reasons) == 2


def test_every_judgement_is_evidence_or_is_reported():
    from ragbench.core.documents import Corpus, Document

    corpus = Corpus([Document(i, t) for i, t in DOCS.items()])
    judgements = [Judgement(*j) for j in QRELS]
    gold, reports = gold_from_qrels(QUERIES, judgements, corpus)
    assert len(gold.evidence_list) + len(gold.lost) + sum(
        "no such query" in r.reason for r in reports
    ) == sum(j.grade > 0 for j in judgements)
    assert [(x.query_id, x.doc_id, x.grade) for x in gold.lost] == [("8", "gone", 1)]
    assert {q.query_id: q.tags for q in gold.query_list}["8"] == ("evidence-missing",)


@with_data
def test_scifact():
    corpus, gold = load_beir(DATA / "scifact_beir")
    assert (len(corpus), len(gold), len(gold.evidence_list), corpus.errors) == (5183, 300, 339, ())
    corpus, gold = load_beir(DATA / "scifact_beir", spans="evidence_spans.jsonl")
    assert (len(gold), len(gold.evidence_list), corpus.errors) == (188, 366, ())
    rows = [
        json.loads(line)
        for line in (DATA / "scifact_beir" / "evidence_spans.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    want = {(str(r["query_id"]), str(r["doc_id"]), s["content"]) for r in rows for s in r["spans"]}
    assert {
        (e.query_id, e.doc_id, corpus[e.doc_id].text[e.start : e.end]) for e in gold.evidence_list
    } == want


@with_data
def test_cranfield():
    corpus, gold = load_trec(DATA / "cranfield")
    assert [e.source for e in corpus.errors] == ["471", "995", "query 125"]
    assert (len(corpus) + 2, len(gold), len(gold.evidence_list) + 1) == (1400, 225, 1837)
    # query 3 of the qrels is the third record, whose number in the file is 4
    assert gold.query_list[2].text.startswith("what problems of heat conduction in composite slabs")
    assert {e.grade for e in gold.evidence_list} == {1, 2, 3, 4, 5}
    assert corpus["1"].text.count("experimental investigation of the aerodynamics") == 1  # .W repeats .T


@with_data
@pytest.mark.parametrize("language", ["en", "es", "zh"])
def test_xquad(language):
    path = DATA / "xquad" / f"xquad.{language}.json"
    corpus, gold = load_squad(path)
    assert (len(corpus), len(gold), len(gold.evidence_list), corpus.errors) == (32, 838, 838, ())
    assert all(
        corpus[e.doc_id].text[e.start : e.end] == q.answer
        for q in gold.query_list
        for e in gold.by_query[q.query_id]
    )
    wide = load_squad(path, evidence="paragraph")[1]
    assert all(
        w.start <= e.start and e.end <= w.end
        for w, e in zip(wide.evidence_list, gold.evidence_list, strict=True)
    )


@with_data
def test_chunking_eval():
    corpus, gold = load_chunking_eval(DATA / "chunking_eval")
    assert (len(corpus), len(gold), len(gold.evidence_list), corpus.errors) == (5, 472, 790, ())
    assert len(corpus["pubmed"]) == 500_000
