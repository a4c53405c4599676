"""The laws of gold: lost evidence is never found, copies are words, grades mean what trec_eval says, and a
gold comes back as it was."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ragbench as rb
from ragbench.base.errors import DataError, RagbenchError
from ragbench.core.chunks import Chunks
from ragbench.core.documents import Corpus, Document, Heading, Page
from ragbench.core.evidence_classes import check_gold, evidence_classes
from ragbench.core.gold import Gold, gold_from_qrels
from ragbench.core.gold_records import MISSING, Evidence, Lost, Query, lost_note
from ragbench.core.qrels import Judgement, Qrels, as_judgements, read_qrels
from ragbench.core.ranking import Ranking
from ragbench.core.runs import ABSENT, Run
from ragbench.evaluate.evidence_metrics import evidence_at_budgets, evidence_of
from ragbench.evaluate.exchange import as_run, whole_documents
from ragbench.evaluate.judged_units import judge
from ragbench.evaluate.metric_arrays import array_metrics
from ragbench.evaluate.rank_metrics import rank_metrics
from ragbench.evaluate.scores import score_run
from ragbench.ingest.collections import load_beir, load_chunking_eval, load_squad
from ragbench.ingest.trec import load_trec
from ragbench.text.word_boundaries import stands_alone

CORPUS = Corpus([Document(f"d{i}", f"text number {i} of the corpus") for i in range(8)])
HERE, GONE = [d.id for d in CORPUS], [f"z{i}" for i in range(5)]
TREC = {
    "recall@3": "recall_3",
    "recall": "recall_1000",
    "precision@5": "P_5",
    "mrr": "recip_rank",
    "map": "map",
    "map@3": "map_cut_3",
    "ndcg": "ndcg",
    "ndcg@3": "ndcg_cut_3",
    "hit_rate@3": "success_3",
    "r-precision": "Rprec",
    "bpref": "bpref",
}
MEASURES = {
    "recall.3,1000",
    "P.5",
    "recip_rank",
    "map",
    "map_cut.3",
    "ndcg",
    "ndcg_cut.3",
    "success.3",
    "Rprec",
    "bpref",
}


@st.composite
def judged_pools(draw):
    """Qrels with documents in and outside the corpus and grades from -2 to 3, and runs that may name what the
    corpus lacks."""
    qrels, runs = {}, {}
    for q in range(draw(st.integers(1, 4))):
        qrels[f"q{q}"] = draw(
            st.dictionaries(st.sampled_from(HERE + GONE), st.integers(-2, 3), min_size=1, max_size=9)
        )
        found = draw(st.permutations(HERE + GONE))[: draw(st.integers(0, 10))]
        runs[f"q{q}"] = {d: float(20 - n) for n, d in enumerate(found)}
    return qrels, runs


def trec_eval(qrels, runs, names):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    qrels = {
        q: judged for q, judged in qrels.items() if max(judged.values()) > 0
    }  # without one relevant document it crashes,
    asked = {q: r for q, r in runs.items() if r and q in qrels}  # and with an empty ranking
    got = pytrec_eval.RelevanceEvaluator(qrels, MEASURES).evaluate(asked) if asked else {}
    return {n: {q: got.get(q, {}).get(TREC[n], 0.0) for q in qrels} for n in names}


@settings(max_examples=150, deadline=None)
@given(judged_pools())
def test_documents_that_the_corpus_lacks_count_as_trec_eval_counts_them(pool):
    """The run holds what can be retrieved here; the judgements name more."""
    qrels, runs = pool
    runs = {q: {d: s for d, s in r.items() if d in HERE} for q, r in runs.items()}
    gold, _ = gold_from_qrels({q: "?" for q in qrels}, as_judgements(qrels), CORPUS)
    judged = [q.query_id for q in gold.answerable]
    assert judged == [
        q for q, g in qrels.items() if max(g.values()) > 0
    ]  # those whose documents are all gone are judged too
    if not judged:
        return
    chunks = whole_documents(CORPUS)
    rows = [
        [HERE.index(d) for d in runs[q.query_id]] + [-1] * (10 - len(runs[q.query_id]))
        for q in gold.query_list
    ]
    run = Run([q.query_id for q in gold.query_list], np.tile(-np.arange(10.0), (len(rows), 1)), rows)
    theirs = trec_eval(qrels, runs, TREC)
    ours = rank_metrics(gold, Ranking(chunks, run), TREC)
    kernels = array_metrics(judge(gold, Ranking(chunks, run)), TREC)
    for name in TREC:
        np.testing.assert_allclose(ours[name], [theirs[name][q] for q in judged], atol=1e-12, err_msg=name)
        np.testing.assert_allclose(kernels[name], ours[name], atol=1e-12, err_msg=name)


@settings(max_examples=100, deadline=None)
@given(judged_pools())
def test_a_given_run_keeps_the_places_of_what_the_corpus_lacks(pool):
    """Judgements of documents that are here, a run of anybody's: the numbers are trec_eval's on the whole
    run."""
    qrels, runs = pool
    qrels = {q: {d: g for d, g in judged.items() if d in HERE} or {"d0": 1} for q, judged in qrels.items()}
    gold = Gold.from_qrels({q: "?" for q in qrels}, qrels, CORPUS)
    judged = [q.query_id for q in gold.answerable]
    if not judged or not any(d in HERE for q in qrels for d in runs[q]):
        return
    given_run = as_run(dict(reversed(runs.items())) | {"stranger": {"d1": 1.0}}, CORPUS, gold)
    assert given_run.unknown_queries == ("stranger",)
    assert set(given_run.missing) == {q for q in judged if not runs[q]}
    assert set(given_run.unknown_documents) == {
        (q.query_id, d) for q in gold.query_list for d in runs[q.query_id] if d in GONE
    }
    ours = rank_metrics(gold, given_run.ranking, TREC)
    theirs = trec_eval(qrels, runs, TREC)
    for name in TREC:
        np.testing.assert_allclose(ours[name], [theirs[name][q] for q in judged], atol=1e-12, err_msg=name)


def test_a_lost_document_halves_recall():
    corpus = Corpus([Document("a", "Start the pump."), Document("b", "Stop.")])
    gold = Gold.from_qrels({"q": "x"}, {"q": {"a": 1, "z": 1}}, corpus)
    scores = rank_metrics(
        gold,
        Ranking(whole_documents(corpus), Run(("q",), [[1.0]], [[0]])),
        ["recall@5", "map", "r-precision", "ndcg"],
    )
    assert [round(float(x[0]), 4) for x in scores.values()] == [0.5, 0.5, 0.5, 0.6131]
    assert "1 relevant document of 1 question is not in the corpus and counts as never found" in lost_note(
        gold
    )


def test_bpref_counts_no_grade_below_zero():
    corpus = Corpus([Document(i, f"text {i}") for i in "abc"])
    gold = Gold.from_qrels({"q": "x"}, {"q": {"a": 1, "b": -1, "c": 0}}, corpus)
    run = Run(("q",), [[3.0, 2.0, 1.0]], [[1, 0, 2]])
    assert rank_metrics(gold, Ranking(whole_documents(corpus), run), ["bpref", "judged@3"])[
        "bpref"
    ].tolist() == [1.0]
    assert rank_metrics(gold, Ranking(whole_documents(corpus), run), ["judged@3"])["judged@3"].tolist() == [
        2 / 3
    ]


# R-precision reads as deep as there are relevant units, so that it may rise; against trec_eval it is tried
# above
METRICS = [
    "recall@2",
    "mrr",
    "ndcg@3",
    "map",
    "precision@2",
    "doc:recall@2",
    "doc:map",
    "doc:ndcg",
    "qrels:recall@2",
    "qrels:map",
    "evidence_recall@2",
    "evidence_recall@6tok",
    "evidence_iou@2",
    "evidence_recall_tokens@2",
    "evidence_recall_tokens@6tok",
]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 8), st.integers(1, 9), st.integers(1, 3)), max_size=3
    ),
    st.lists(
        st.tuples(st.sampled_from(GONE), st.text("abc ", max_size=9).map(str.strip), st.integers(1, 3)),
        min_size=1,
        max_size=3,
    ),
    st.permutations(range(16)),
)
def test_losing_evidence_raises_no_score_and_costs_what_it_weighs(pieces, gone, order):
    chunks = Chunks(CORPUS, np.repeat(np.arange(8), 2), np.tile([0, 12], 8), np.tile([12, 20], 8))
    queries = (Query("q", "?"),)
    kept = tuple(
        Evidence("q", f"d{d}", s, s + n, g)
        for d, s, n, g in pieces
        if not CORPUS[d].text[s : s + n].isspace()
    )
    lost = tuple(Lost("q", d, text, g) for d, text, g in gone)
    short, run = Gold(queries, kept, lost=lost), Run(("q",), [list(range(16, 0, -1))], [list(order)])
    after = score_run(short, Ranking(chunks, run), METRICS)["metrics"]
    assert len(short.answerable) == 1
    if not kept:
        assert short.unreachable == queries
        assert all(x.tolist() == [0.0] for x in after.values())
        return
    before = score_run(Gold(queries, kept), Ranking(chunks, run), METRICS)["metrics"]
    for name in METRICS:
        assert (after[name] <= before[name] + 1e-12).all(), name
    classes, all_classes = (len(evidence_classes(CORPUS, g)["q"]) for g in (Gold(queries, kept), short))
    there = {CORPUS[e.doc_id].text[e.start : e.end] for e in kept}
    assert all_classes - classes == len({x.quote or f"of {x.doc_id}" for x in lost if x.quote not in there})
    assert after["recall@2"][0] == pytest.approx(before["recall@2"][0] * classes / all_classes)
    sizes = evidence_of(CORPUS, Gold(queries, kept))[0].size, evidence_of(CORPUS, short)[0].size
    assert after["evidence_recall@2"][0] == pytest.approx(
        before["evidence_recall@2"][0] * sizes[0] / sizes[1]
    )


# Two questions in the form of each collection: some evidence of the first is there, none of the second.


def beir_folder(folder: Path) -> Path:
    (folder / "qrels").mkdir(parents=True)

    def lines(name, rows):
        (folder / name).write_text("\n".join(map(json.dumps, rows)))

    lines("corpus.jsonl", [{"_id": "a", "text": "Check the oil."}, {"_id": "b", "text": " "}])
    lines("queries.jsonl", [{"_id": "1", "text": "What?"}, {"_id": "2", "text": "Which?"}])
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\ta\t1\n1\tz\t2\n2\tb\t1\n")
    first = [{"start": 0, "end": 5, "content": "Check"}, {"start": 6, "end": 9, "content": "her"}]
    second = [{"start": 0, "end": 2, "content": "Oh"}]
    lines(
        "spans.jsonl",
        [
            {"query_id": "1", "doc_id": "a", "spans": first},
            {"query_id": "2", "doc_id": "z", "spans": second},
        ],
    )
    return folder


def trec_folder(folder: Path) -> Path:
    folder.mkdir()
    (folder / "docs.sgml").write_text(
        "<DOC><DOCNO>a</DOCNO><TEXT>Check the oil.</TEXT></DOC><DOC><DOCNO>b</DOCNO><TEXT> </TEXT></DOC>"
    )
    (folder / "topics.txt").write_text("1\tWhat?\n2\tWhich?\n")
    (folder / "qrels.txt").write_text("1 0 a 1\n1 0 z 2\n2 0 b 1\n")
    return folder


def squad_file(path: Path) -> Path:
    questions = [
        {"id": "1", "question": "What?", "answers": [{"text": "oil", "answer_start": 10}]},
        {"id": "2", "question": "Which?", "answers": [{"text": "gas", "answer_start": 3}]},
    ]
    paragraph = {"context": "Check the oil.", "qas": questions}
    path.write_text(json.dumps({"data": [{"title": "a", "paragraphs": [paragraph]}]}))
    return path


def chunking_eval_folder(folder: Path) -> Path:
    (folder / "corpora").mkdir(parents=True)
    (folder / "corpora" / "a.md").write_text("Check the oil.")

    def references(*places):
        rows = [{"content": c, "start_index": s, "end_index": s + len(c)} for c, s in places]
        return json.dumps(rows).replace('"', '""')

    first, second = references(("Check", 0), ("gas", 6)), references(("steam", 0))
    rows = ["question,references,corpus_id", f'What?,"{first}",a', f'Which?,"{second}",b']
    (folder / "questions_df.csv").write_text("\n".join(rows) + "\n")
    return folder


COLLECTIONS = {
    "beir": lambda tmp: load_beir(beir_folder(tmp / "beir")),
    "spans": lambda tmp: load_beir(beir_folder(tmp / "beir"), spans="spans.jsonl"),
    "trec": lambda tmp: load_trec(trec_folder(tmp / "trec")),
    "squad": lambda tmp: load_squad(squad_file(tmp / "squad.json")),
    "chroma": lambda tmp: load_chunking_eval(chunking_eval_folder(tmp / "chroma")),
}


@pytest.mark.parametrize("name", COLLECTIONS)
def test_every_loader_keeps_what_is_lost(tmp_path, name):
    """A question whose evidence is gone scores 0 and counts."""
    corpus, gold = COLLECTIONS[name](tmp_path)
    assert len(gold.answerable) == 2
    assert [q.text for q in gold.unreachable] == ["Which?"]
    assert len(gold.lost) == (1 if name == "squad" else 2)
    assert MISSING in gold.unreachable[0].tags
    run = Run([q.query_id for q in gold.query_list], [[1.0]] * 2, [[0]] * 2)
    recall = rank_metrics(gold, Ranking(whole_documents(corpus), run), ["recall@1"])["recall@1"]
    assert recall.tolist() == ([1.0, 0.0] if name == "squad" else [0.5, 0.0])


def test_the_leaderboard_says_how_much_is_lost(tmp_path):
    corpus, gold = rb.load_dataset("procedures")
    gold = Gold(
        gold.query_list[:8],
        tuple(e for e in gold.evidence_list if e.query_id in {q.query_id for q in gold.query_list[:8]}),
    )
    short = replace(gold, lost=(Lost(gold.query_list[0].query_id, "gone.pdf", "No such words."),))
    systems = [rb.System(rb.TokenChunker(120), rb.Lexical())]
    options = {"metrics": ["recall@5"], "store": tmp_path, "rounds": 0, "progress": False}
    notes = " ".join(rb.bench(corpus, short, systems, **options).leaderboard().notes)
    assert (
        "1 relevant piece of evidence of 1 question is not in the corpus and counts as never found" in notes
    )
    assert "not in the corpus" not in " ".join(rb.bench(corpus, gold, systems, **options).leaderboard().notes)


def test_a_gold_of_a_smaller_corpus_is_refused_by_the_whole_one():
    gold = Gold.from_qrels({"q": "x"}, {"q": {"d0": 1, "d7": 1}}, Corpus(CORPUS.documents[:3]))
    with pytest.raises(
        DataError, match="document 'd7' was missing when this gold was made, and now is there"
    ):
        check_gold(CORPUS, gold)


# ---------------------------------------------------------------- copies


@settings(max_examples=200, deadline=None)
@given(st.text("ab1.,' -é", min_size=1, max_size=14), st.data())
def test_a_copy_in_latin_script_is_a_whole_word_by_a_plain_reading(text, data):
    """Against a reading of words and numbers by one regular expression: letters and digits, joined over what
    joins them."""
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    word = r"(?:(?<![^\W_])[-.,](?=[0-9]))?[^\W_]+(?:(?:(?<=[0-9])[.,'](?=[0-9])|(?<=[^\W\d_])[.'](?=[^\W\d_]))[^\W_]+)*"  # noqa: E501
    inside = {i for m in re.finditer(word, text) for i in range(m.start() + 1, m.end())}
    vowel = {
        i for i in range(1, len(text)) if text[i - 1] == "'" and text[i] in "aé"
    }  # an elided article ends at its apostrophe
    expected = not any(
        text[at].isalnum() and edge in inside - vowel for at, edge in ((start, start), (end - 1, end))
    )
    assert stands_alone(text, start, end) == expected, (text, text[start:end])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.sampled_from(["5", "15", "5.2", "a", "ab", "b5", " ", ".", "北", "京"]), min_size=1, max_size=12
    ).map("".join),
    st.data(),
)
def test_the_named_place_always_counts_and_other_copies_stand_alone(text, data):
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, min(len(text), start + 3)))
    if text[start:end].isspace():
        return
    corpus = Corpus([Document("d", text), Document("e", f"x {text} y")])
    [found] = evidence_classes(corpus, Gold((Query("q", "?"),), (Evidence("q", "d", start, end),)))["q"]
    assert (0, start, end) in found.places
    assert list(found.places) == sorted(set(found.places))
    for row, s, e in found.places:
        assert corpus[row].text[s:e] == text[start:end]
        assert (row, s, e) == (0, start, end) or stands_alone(corpus[row].text, s, e)
    every = {
        (row, s, s + end - start)
        for row, d in enumerate(corpus)
        for s in range(len(d))
        if d.text.startswith(text[start:end], s)
    }
    assert {p for p in every if stands_alone(corpus[p[0]].text, *p[1:])} <= set(found.places)


# ---------------------------------------------------------------- files

words = st.text('aä日\u2028 "\\{\n', min_size=1, max_size=6).filter(str.strip)


@settings(max_examples=80, deadline=None, suppress_health_check=[])
@given(
    st.lists(st.tuples(words, st.lists(words, max_size=2), st.none() | words), min_size=1, max_size=4),
    st.sampled_from(["evidence", "document"]),
    st.sampled_from(["all", "first"]),
    st.data(),
)
def test_a_gold_comes_back_as_it_was(tmp_path_factory, rows, unit, copies, data):
    queries = tuple(Query(f"q{n}", text, tuple(tags), answer) for n, (text, tags, answer) in enumerate(rows))
    which = st.sampled_from([q.query_id for q in queries])
    evidence = data.draw(
        st.lists(
            st.builds(
                lambda q, d, s, g: Evidence(q, d, s, s + 4, g),
                which,
                st.sampled_from(HERE),
                st.integers(0, 9),
                st.integers(1, 3),
            ),
            max_size=4,
        )
    )
    lost = data.draw(
        st.lists(
            st.builds(Lost, which, st.sampled_from(GONE), st.text(max_size=4), st.integers(1, 3), words),
            max_size=3,
        )
    )
    wanting = data.draw(st.lists(st.tuples(which, st.sampled_from(HERE + GONE)), max_size=3, unique=True))
    order = {q.query_id: n for n, q in enumerate(queries)}

    def by_query(xs):
        return tuple(sorted(xs, key=lambda x: order[x[0]]))

    gold = Gold(queries, by_query(evidence), unit, copies, by_query(wanting), by_query(lost))
    path = tmp_path_factory.mktemp("gold") / "g.jsonl"
    for given_corpus in (None, CORPUS):
        again = Gold.load(gold.save(path, given_corpus), given_corpus)
        assert again == gold
        assert again.fingerprint == gold.fingerprint
    first = path.read_bytes()
    assert again.save(path, CORPUS).read_bytes() == first
    assert len(first.decode().split("\n")) == len(queries) + 2  # a line a question, one before, none after


def test_a_changed_document_is_noticed_and_a_moved_word_named(tmp_path):
    corpus, gold = rb.load_dataset("procedures")
    path = gold.save(tmp_path / "gold.jsonl", corpus)
    e = gold.evidence_list[0]
    text = corpus[e.doc_id].text
    edited = Corpus(
        [
            Document(d.id, text[: e.start] + "X" + text[e.start + 1 :]) if d.id == e.doc_id else d
            for d in corpus
        ]
    )
    assert Gold.load(path, corpus) == gold
    with pytest.raises(DataError, match=rf"query '{e.query_id}'.*there stands 'X"):
        Gold.load(path, edited)
    with pytest.raises(DataError, match="there stands 'X"):
        rb.bench(
            edited,
            Gold.load(path),
            rb.System(rb.TokenChunker(50), rb.Lexical()),
            store=tmp_path / "s",
            rounds=0,
        )


def test_inexact_quotes_are_kept_in_the_file(tmp_path):
    corpus = Corpus([Document("b", "The drain stays shut until the pump has stopped.")])
    gold = Gold.from_quotes(
        [
            {
                "query_id": "q",
                "query": "?",
                "evidence": [{"quote": "drain stays shut until the pump is stopped"}],
            }
        ],
        corpus,
    )
    assert Gold.load(gold.save(tmp_path / "g.jsonl")).inexact == gold.inexact != ()
    assert Gold.load(tmp_path / "g.jsonl").anchors == gold.anchors


# ---------------------------------------------------------------- readers


def test_runs_in_every_form_are_one_run(tmp_path):
    import pandas as pd

    ranx = pytest.importorskip("ranx")
    gold = Gold.from_qrels(
        {"q1": "one?", "q2": "two?", "q3": "three?"},
        {"q1": {"d1": 1}, "q2": {"d2": 1}, "q3": {"d3": 2}},
        CORPUS,
    )
    table = {"q2": {"d2": 1.5, "d5": 2.5}, "q1": {"d1": 3.0, "d0": 2.0, "z9": 4.0}}
    rows = [(q, d, s) for q, found in table.items() for d, s in found.items()]
    (tmp_path / "bm25.run").write_text("".join(f"{q} Q0 {d} 1 {s} tag\n" for q, d, s in rows))
    (tmp_path / "bm25.json").write_text(json.dumps(table))
    forms = [
        table,
        tmp_path / "bm25.run",
        str(tmp_path / "bm25.json"),
        ranx.Run(table, name="bm25"),
        pd.DataFrame(rows, columns=["qid", "docno", "score"]),
        pd.DataFrame(rows, columns=["q_id", "doc_id", "score"]),
    ]
    for form in forms:
        found = as_run(form, CORPUS, gold)
        assert found.ranking.query_ids == ("q1", "q2", "q3")
        assert found.ranking.rows.tolist() == [[ABSENT, 1, 0], [5, 2, -1], [-1, -1, -1]]
        assert (found.missing, found.unknown_documents) == (("q3",), (("q1", "z9"),))
        assert any(
            "no results for 1 answerable question, such as 'q3'; each scores 0" in n for n in found.notes
        )
    assert as_run(ranx.Run(table, name="theirs"), CORPUS, gold).name == "theirs"
    judged = {"q1": {"d1": 2, "d0": 0}}
    assert (
        as_judgements(ranx.Qrels(judged))
        == as_judgements(judged)
        == as_judgements(
            pd.DataFrame([("q1", "d1", 2), ("q1", "d0", 0)], columns=["query_id", "doc_id", "relevance"])
        )
    )


def test_equal_scores_of_a_given_run_favour_nobody():
    gold = Gold.from_qrels({"q": "?"}, {"q": {"d1": 1}}, CORPUS)
    orders = {
        tuple(as_run({"q": dict.fromkeys(names, 1.0)}, CORPUS, gold).ranking.rows[0].tolist())
        for names in (HERE, HERE[::-1], sorted(HERE, key=lambda d: d[::-1]))
    }
    assert len(orders) == 1
    found = as_run({"q": dict.fromkeys(HERE, 1.0)}, CORPUS, gold)
    assert found.ties == 7
    assert list(found.ranking.rows[0]) != sorted(found.ranking.rows[0])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("q Q0 d1 1 nan t\n", "nan"),
        ("q Q0 d1 1 inf t\n", "inf"),
        ("q Q0 d1 1 2 t\nq Q0 d1 2 1 t\n", "line 2.*'d1' occurs twice"),
        ("q Q0 d1 1 x t\n", "line 1"),
        ("q d1 2\n", "line 1"),
    ],
)
def test_a_run_that_cannot_be_read_is_refused_with_its_line(tmp_path, text, says):
    (tmp_path / "r.run").write_text(text)
    with pytest.raises(DataError, match=says):
        as_run(tmp_path / "r.run", CORPUS, Gold.from_qrels({"q": "?"}, {"q": {"d1": 1}}, CORPUS))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("q.txt", "q1 0 d1 0.5\n"),
        ("q.txt", "q1 0 d1 nan\n"),
        ("q.txt", "q1 0 d1 1\nq1 0 d1 2\n"),
        ("q.json", '{"q1": {"d1": 0.5}}'),
        ("q.json", '{"q1": {"d1": "x"}}'),
        ("q.json", "[1"),
        ("q.parquet", "x"),
    ],
)
def test_grades_that_are_no_whole_numbers_and_second_grades_are_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=r"q\.(txt|json|parquet)"):
        read_qrels(tmp_path / name)


# ---------------------------------------------------------------- wrong types

WRONG = [
    None,
    3,
    -1,
    0.5,
    float("nan"),
    True,
    "text",
    b"bytes",
    [],
    {},
    (),
    [None],
    [3],
    ["x"],
    [[]],
    [()],
    {"a": 1},
    {"a": {"b": "c"}},
    {1: 2},
    object(),
    [{"query_id": 1}],
    [{"query_id": "q", "query": 5}],
    [{"query_id": "q", "query": "?", "evidence": {"doc_id": "a"}}],
    [{"query_id": "q", "query": "?", "evidence": ["x"]}],
    [
        {
            "query_id": "q",
            "query": "?",
            "evidence": [{"doc_id": [], "start": "0", "end": None, "quote": 3, "grade": "x"}],
        }
    ],
    [{"query_id": "q", "query": "?", "tags": 5, "answer": 5}],
    np.arange(3),
    np.array("x"),
]
CALLS = {
    "Gold.from_spans": lambda x: Gold.from_spans(x),
    "Gold.from_quotes": lambda x: Gold.from_quotes(x, CORPUS),
    "Gold.from_quotes, corpus": lambda x: Gold.from_quotes(
        [{"query_id": "q", "query": "?", "evidence": [{"quote": "text"}]}], x
    ),
    "Gold.from_quotes, min_score": lambda x: Gold.from_quotes(
        [{"query_id": "q", "query": "?", "evidence": [{"quote": "text"}]}], CORPUS, x
    ),
    "Gold.from_qrels, queries": lambda x: Gold.from_qrels(x, {"q": {"d1": 1}}, CORPUS),
    "Gold.from_qrels, qrels": lambda x: Gold.from_qrels({"q": "?"}, x, CORPUS),
    "Gold.from_qrels, corpus": lambda x: Gold.from_qrels({"q": "?"}, {"q": {"d1": 1}}, x),
    "Gold, queries": lambda x: Gold(x, ()),
    "Gold, evidence": lambda x: Gold((Query("q", "?"),), x),
    "Gold, unit": lambda x: Gold((Query("q", "?"),), (), x),
    "Gold, copies": lambda x: Gold((Query("q", "?"),), (), copies=x),
    "Gold, nonrelevant": lambda x: Gold((Query("q", "?"),), (), nonrelevant=x),
    "Gold, lost": lambda x: Gold((Query("q", "?"),), (), lost=x),
    "Query id": lambda x: Gold((Query(x, "?"),), ()),
    "Query text": lambda x: Gold((Query("q", x),), ()),
    "Query tags": lambda x: Gold((Query("q", "?", x),), ()),
    "Query answer": lambda x: Gold((Query("q", "?", (), x),), ()),
    "Evidence query": lambda x: Gold((Query("q", "?"),), (Evidence(x, "a", 0, 1),)),
    "Evidence document": lambda x: Gold((Query("q", "?"),), (Evidence("q", x, 0, 1),)),
    "Evidence start": lambda x: Gold((Query("q", "?"),), (Evidence("q", "a", x, 1),)),
    "Evidence grade": lambda x: Gold((Query("q", "?"),), (Evidence("q", "a", 0, 1, x),)),
    "Lost": lambda x: Gold((Query("q", "?"),), (), lost=(Lost("q", x, x, 1),)),
    "Gold.load": lambda x: Gold.load(x),
    "Gold.save": lambda x: Gold((Query("q", "?"),), ()).save(x) if not isinstance(x, str) else None,
    "Qrels": lambda x: Qrels(x),
    "Judgement": lambda x: Qrels((Judgement(x, x, x),)),
    "grade": lambda x: Qrels((Judgement("q", "d", x),)),
    "as_judgements": as_judgements,
    "Run ids": lambda x: Run(x, [[1.0]], [[0]]),
    "Run rows": lambda x: Run(("q",), [[1.0]], x),
    "Run scores": lambda x: Run(("q",), x, [[0]]),
    "as_run": lambda x: as_run(x, CORPUS, Gold.from_qrels({"q": "?"}, {"q": {"d1": 1}}, CORPUS)),
    "as_run, corpus": lambda x: as_run(
        {"q": {"d1": 1.0}}, x, Gold.from_qrels({"q": "?"}, {"q": {"d1": 1}}, CORPUS)
    ),
    "as_run, gold": lambda x: as_run({"q": {"d1": 1.0}}, CORPUS, x),
    "Document id": lambda x: Document(x, "text"),
    "Document text": lambda x: Document("d", x),
    "Document pages": lambda x: Document("d", "text", x),
    "Document headings": lambda x: Document("d", "text", headings=x),
    "Document fields": lambda x: Document("d", "text", fields=x),
    "Document turns": lambda x: Document("d", "text", turns=x),
    "Document metadata": lambda x: Document("d", "text", metadata=x),
    "Document format": lambda x: Document("d", "text", format=x),
    "Page": lambda x: Document("d", "text", (Page(x, x, x),)),
    "Page number": lambda x: Document("d", "text", (Page(x, 0, 1),)),
    "Page start": lambda x: Document("d", "text", (Page(1, x, 1),)),
    "Heading": lambda x: Document("d", "text", headings=(Heading(x, x, x, x),)),
    "Heading level": lambda x: Document("d", "text", headings=(Heading(x, "t", 0, 1),)),
    "Heading title": lambda x: Document("d", "text", headings=(Heading(1, x, 0, 1),)),
    "Corpus": lambda x: Corpus(x),
    "Corpus errors": lambda x: Corpus([Document("d", "t")], x),
    "load_beir": load_beir,
    "load_squad": load_squad,
    "load_trec": load_trec,
    "load_chunking_eval": load_chunking_eval,
    "load_trec, grades": lambda x: load_trec("/nowhere", grades=x),
    "load_trec, documents": lambda x: load_trec(documents=x, topics=x, qrels=x),
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_types_meet_only_our_errors(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for value in WRONG:
        try:
            CALLS[name](value)
        except RagbenchError:
            pass
        except Exception as e:
            raise AssertionError(f"{name} of {value!r:.80}: {type(e).__name__}: {e}") from e


def test_the_error_of_a_quote_says_what_is_nearest_and_which_document_is_unknown():
    def ask(**e):
        return Gold.from_quotes(
            [{"query_id": "q7", "query": "?", "evidence": [e]}],
            Corpus([Document("pump.md", "Start the pump before noon.")]),
        )

    with pytest.raises(
        DataError,
        match=(
            r"1 of 1 quotes name a document that is not in the corpus\nquery 'q7': 'Start': there is no"
            r" document 'pumps.md'; the nearest name is 'pump.md'"
        ),
    ):
        ask(doc_id="pumps.md", quote="Start")
    with pytest.raises(
        DataError, match=r"the nearest is 8\d % alike: 'the pump before noon\.', at 6 of 'pump\.md'"
    ):
        ask(quote="the pump after noon.")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda d: d.update(
                data=[
                    {
                        "title": "t",
                        "paragraphs": [
                            {
                                "context": "x",
                                "qas": [{"id": "1", "question": "?", "answers": [{"text": "x"}]}],
                            }
                        ],
                    }
                ]
            ),
            r"data\[0\]\.paragraphs\[0\]\.qas\[0\]\.answers\[0\]: there is no 'answer_start'",
        ),
        (lambda d: d.update(data={"a": 1}), "'data' is a dict"),
        (lambda d: d.update(data=[5]), r"data\[0\]: it is 5"),
        (lambda d: d.pop("data"), "KeyError"),
    ],
)
def test_squad_names_the_place_and_the_field(tmp_path, change, says):
    data = {"data": []}
    change(data)
    (tmp_path / "s.json").write_text(json.dumps(data))
    with pytest.raises(DataError, match=says):
        load_squad(tmp_path / "s.json")


def test_a_gold_file_names_line_and_field(tmp_path):
    (tmp_path / "g.jsonl").write_text(
        '{"ragbench gold": 1, "unit": "evidence"}\n{"query_id": "q1", "query": "?", "evidence": []}\n'
        '{"query_id": "q2", "query": "?", "evidence": [{"doc_id": "a", "start": 0, "end": "9"}]}\n'
    )
    with pytest.raises(
        DataError,
        match=r"g\.jsonl: line 3: question 1 \(q2\): 'end' of evidence 0 is '9', not a whole number",
    ):
        Gold.load(tmp_path / "g.jsonl")


PIECES = {
    "Gold.from_spans": {"doc_id": "d1", "start": 0, "end": 4},
    "Gold.from_quotes": {"doc_id": "d1", "quote": "text"},
    "Gold.load": {"doc_id": "d1", "start": 0, "end": 4, "quote": "text"},
}


def gold_by(way, rows, folder):
    "Gold from these rows, by one of the ways that take mappings."
    if way == "Gold.from_spans":
        return Gold.from_spans(rows)
    if way == "Gold.from_quotes":
        return Gold.from_quotes(rows, Corpus([Document("d1", "text of a pump")]))
    path = folder / "gold.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Gold.load(path)


@pytest.mark.parametrize("way", PIECES)
@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("quotes", "evidence"),
        ("spans", "evidence"),
        ("evidnce", "evidence"),
        ("question", "query"),
        ("tag", "tags"),
    ],
)
def test_an_unknown_key_of_a_question_is_refused(way, key, nearest, tmp_path):
    row = {"query_id": "q1", "query": "Q?", "evidence": [PIECES[way]], key: [PIECES[way]]}
    with pytest.raises(DataError, match=rf"there is no key '{key}'; the nearest is '{nearest}'"):
        gold_by(way, [row], tmp_path)


@pytest.mark.parametrize("way", PIECES)
@pytest.mark.parametrize(
    ("key", "nearest"), [("document", "doc_id"), ("garde", "grade"), ("text", "quote"), ("strat", "start")]
)
def test_an_unknown_key_of_a_piece_of_evidence_is_refused(way, key, nearest, tmp_path):
    row = {"query_id": "q1", "query": "Q?", "evidence": [{**PIECES[way], key: 3}]}
    with pytest.raises(DataError, match=rf"evidence 0: there is no key '{key}'; the nearest is '{nearest}'"):
        gold_by(way, [row], tmp_path)


@pytest.mark.parametrize("way", PIECES)
def test_a_question_is_unanswerable_only_where_it_says_so(way, tmp_path):
    for row in ({"query_id": "q1", "query": "Q?"}, {"query_id": "q1", "query": "Q?", "evidence": None}):
        with pytest.raises(DataError, match=r"there is no 'evidence'; of a question without an answer it is"):
            gold_by(way, [row], tmp_path)
    row = {"query_id": "q1", "query": "Q?", "evidence": [], "metadata": {"by": "Eva"}, "split": "test"}
    assert [q.query_id for q in gold_by(way, [row], tmp_path).unanswerable] == ["q1"]


@pytest.mark.parametrize("span", [(-5, 3), (4, 4), (9, 2)])
def test_a_span_that_holds_no_text_is_refused_at_once(span):
    start, end = span
    piece = {"doc_id": "d1", "start": start, "end": end}
    with pytest.raises(DataError, match=rf"evidence 0: from {start} to {end} is no span"):
        Gold.from_spans([{"query_id": "q1", "query": "Q?", "evidence": [piece]}])
    with pytest.raises(DataError, match=rf"'q1' has evidence in 'd1': from {start} to {end} is no span"):
        Gold((Query("q1", "Q?"),), (Evidence("q1", "d1", start, end),))


def test_the_first_line_of_a_gold_file_has_no_other_keys(tmp_path):
    head = {"ragbench gold": 1, "units": "document"}
    with pytest.raises(DataError, match=r"line 1: there is no key 'units'; the nearest is 'unit'"):
        gold_by("Gold.load", [head, {"query_id": "q1", "query": "Q?", "evidence": []}], tmp_path)


def test_quotes_are_saved_with_their_words_without_the_corpus(tmp_path):
    row = {"query_id": "q1", "query": "Q?", "evidence": [{"quote": "of a pump"}]}
    saved = gold_by("Gold.from_quotes", [row], tmp_path).save(tmp_path / "quoted.jsonl")
    assert json.loads(saved.read_text().splitlines()[1])["evidence"][0]["quote"] == "of a pump"


def test_a_span_and_its_quote_must_agree():
    with pytest.raises(DataError, match=r"\[0, 9\) has 9 characters, its quote 5"):
        Gold.from_spans(
            [
                {
                    "query_id": "q",
                    "query": "?",
                    "evidence": [{"doc_id": "a", "start": 0, "end": 9, "quote": "Start"}],
                }
            ]
        )


def test_lost_text_is_not_read_by_a_larger_budget():
    gold = Gold((Query("q", "?"),), (Evidence("q", "d1", 0, 10),), lost=(Lost("q", "z", "ten letter"),))
    run = Run(("q",), [[1.0]], [[1]])
    assert evidence_at_budgets(gold, Ranking(whole_documents(CORPUS), run), [10_000])["recall"].tolist() == [
        [0.5]
    ]
