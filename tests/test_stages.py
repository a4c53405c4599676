"""Laws of what happens around retrieval: each step does what it says and nothing else, and a run with steps
resumes like any other."""

import json
import multiprocessing
import os
import random
import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import ragbench as rb
from ragbench.base.errors import ConfigError, DataError
from ragbench.index.faiss_variants import FaissHNSW
from ragbench.remote.chat import Chat
from ragbench.steps.boosts import Boost, Boosts
from ragbench.steps.expansion import Neighbours, ParentSection, SeeAlso, SentenceWindow
from ragbench.steps.mmr import MMR
from ragbench.steps.rewriting import HyDE, MultiQuery
from ragbench.store.artifacts import Store, verify
from ragbench.store.fingerprint import text_hash
from ragbench.system.build_context import Context
from ragbench.system.system import names_of
from ragbench.testing.loopback import Loopback

OPTIONS = {
    "metrics": ["recall@5", "mrr", "evidence_recall@100"],
    "budgets": [300],
    "rounds": 0,
    "progress": False,
}
CHUNK = rb.RecursiveChunker(120)
DENSE, LEXICAL = rb.Dense(rb.LSAEmbedder(32)), rb.Lexical(rb.FTS5())
HYBRID = rb.Hybrid(DENSE, LEXICAL)


@dataclass(frozen=True)
class Backwards:
    """A reranker that reads `depth` candidates and prefers the last; stops the process where a test wants it
    to."""

    depth: int = 20

    def rerank(self, query, rows, texts):
        if log := os.environ.get("RAGBENCH_TEST_LOG"):
            with open(log, "a") as f:
                f.write(f"{text_hash(query)}\n")
            if len(Path(log).read_text().split()) == int(os.environ["RAGBENCH_TEST_STOP"]):
                os.kill(os.getpid(), signal.SIGKILL)
        rows = np.asarray(rows)[: self.depth][::-1]
        return np.arange(len(rows), 0, -1.0), rows


def small():
    """Six documents, two of them PDFs, and the first 24 questions that they answer or that nothing does."""
    corpus, gold = rb.load_dataset("procedures")
    corpus = rb.Corpus(list(corpus)[:6])
    asked = [q for q in gold.query_list if all(e.doc_id in corpus.rows for e in gold.by_query[q.query_id])][
        :24
    ]
    names = {q.query_id for q in asked}
    return corpus, rb.Gold(tuple(asked), tuple(e for e in gold.evidence_list if e.query_id in names))


@pytest.fixture(scope="module")
def data():
    return small()


@pytest.fixture(scope="module")
def questions(data):
    return [q.text for q in data[1].query_list]


@pytest.fixture(scope="module")
def context():
    return Context()


def rows(data, context, questions, k=50, **steps):
    return (
        rb.System(CHUNK, steps.pop("retrieve", HYBRID), **steps)
        .build(data[0], context)
        .search(questions, k)
        .rows
    )


def test_a_reranker_changes_the_order_of_what_it_read_and_nothing_else(data, context, questions):
    plain = rows(data, context, questions, 200)
    other = rows(data, context, questions, 200, rerank=Backwards(20))
    assert (np.sort(plain) == np.sort(other)).all()
    assert (plain[:, :20] == other[:, :20][:, ::-1]).all() and (plain[:, 20:] == other[:, 20:]).all()


def test_with_a_threshold_what_was_not_read_is_dropped(data, context, questions):
    other = rows(data, context, questions[:5], 200, rerank=Backwards(20), min_score=11)
    assert ((other >= 0).sum(axis=1) == 10).all()


@pytest.mark.parametrize(
    "steps",
    [
        {"boosts": Boosts([Boost({"format": "pdf"}, 0.0), Boost({"title": "in query"}, 0)])},
        {"boosts": Boosts([Boost({"format": "pdf"}, 0.0)], how="multiply")},
        {"mmr": MMR(1.0)},
        {"min_score": -1e9},
        {"per_document": 10**6},
        {"expand": Neighbours(0, 0)},
    ],
    ids=repr,
)
@pytest.mark.parametrize("retrieve", [DENSE, HYBRID], ids=["dense", "hybrid"])
def test_a_step_without_effect_changes_nothing(data, context, questions, retrieve, steps):
    plain = rb.System(CHUNK, retrieve).build(data[0], context).search(questions, 200)
    other = rb.System(CHUNK, retrieve, **steps).build(data[0], context).search(questions, 200)
    assert [hit.text for hit in plain] == [hit.text for hit in other] and len(plain) >= 200


def test_boosts_bring_what_they_name_to_the_top(data, context, questions):
    by = rb.System(CHUNK, HYBRID, boosts=Boosts([Boost({"format": "pdf"}, 5.0)])).build(data[0], context)
    found = by.search(questions, 50)
    pdf = np.array([data[0][int(d)].format == "pdf" for d in by.chunks.doc_row])
    for line in found.rows:
        seen = pdf[line[line >= 0]]
        assert (np.diff(seen.astype(int)) <= 0).all()  # all PDFs, then the rest


def test_at_most_so_many_of_a_document(data, context, questions):
    built = rb.System(CHUNK, HYBRID, per_document=2).build(data[0], context)
    for line in built.search(questions, 50).rows:
        assert np.bincount(built.chunks.doc_row[line[line >= 0]]).max() <= 2


def test_a_header_changes_what_is_embedded_and_never_what_is_scored_by_words(data, context, questions):
    plain, titled = (rb.System(CHUNK, HYBRID, header=h).build(data[0], context) for h in (None, "section"))
    (d0, l0), (d1, l1) = ([p.rank(questions, 20) for p in b.ranker.parts] for b in (plain, titled))
    assert (l0[0] == l1[0]).all() and (l0[1] == l1[1]).all()
    assert not np.allclose(d0[0], d1[0])
    assert plain.chunks.fingerprint == titled.chunks.fingerprint and plain.chunks.texts == titled.chunks.texts
    with pytest.raises(ConfigError, match="nothing is embedded"):
        rb.System(CHUNK, LEXICAL, header="title").build(data[0], context)


GROW = [
    Neighbours(1, 1),
    SentenceWindow(1),
    ParentSection(1),
    ParentSection(9),
    SeeAlso(
        [("SOP-011-permit-to-work-and-hot-work.docx", "SOP-014-lockout-tagout.docx")], grow=Neighbours(0, 1)
    ),
]


def test_expansion_never_lowers_evidence_recall_without_a_budget(data, tmp_path):
    results = rb.bench(
        *data, rb.grid(rb.System(CHUNK, LEXICAL, expand=[None, *GROW])), store=tmp_path, **OPTIONS
    )
    recall = results.scores("evidence_recall@100")
    assert (recall[:, 1:] >= recall[:, :1] - 1e-12).all() and (
        recall[:, 1:].mean(axis=0) > recall[:, 0].mean()
    ).any()
    for system in results.systems[1:]:  # what is judged are the wider spans
        assert np.mean(system.chunks.end - system.chunks.start) > np.mean(
            results.systems[0].chunks.end - results.systems[0].chunks.start
        )


EVERYTHING = {
    "header": "title",
    "boosts": Boosts([Boost({"subject": "in query"}, 0.2)]),
    "rerank": Backwards(30),
    "per_document": 3,
    "mmr": MMR(0.6),
    "expand": ParentSection(),
}


def test_the_first_five_of_fifty_are_the_five(data, context, questions):
    built = rb.System(CHUNK, HYBRID, **EVERYTHING).build(data[0], context)
    few, many = built.search(questions[:20], 5), built.search(questions[:20], 50)
    assert [few.passages(i) for i in range(20)] == [many.passages(i)[:5] for i in range(20)]
    assert (
        list(few.ms) == ["retrieve", "boosts", "rerank", "per_document", "mmr", "expand"]
        and min(few.ms.values()) > 0
    )


def test_a_filter_holds_through_every_step(data, context, questions):
    see = SeeAlso([(d.id, data[0][0].id) for d in data[0]], hits=50)
    built = rb.System(CHUNK, HYBRID, **{**EVERYTHING, "expand": see}).build(data[0], context)
    found = built.search(questions[:10], 50, where={"format": "docx"})
    shown = {data[0][int(d)].format for i in range(10) for d in found.chunks.doc_row[found.run.of(i)]}
    assert shown == {"docx"}
    free = built.search(questions[:10], 50)
    assert data[0][0].id in {
        data[0][int(d)].id for i in range(10) for d in free.chunks.doc_row[free.run.of(i)]
    }


def test_permuting_and_renaming_documents_changes_no_byte(data, tmp_path):
    corpus, gold = data
    systems = [
        rb.System(
            CHUNK,
            HYBRID,
            name="all",
            **{**EVERYTHING, "header": "section", "boosts": Boosts([Boost({"format": "docx"}, 0.1)])},
        )
    ]
    order = np.random.default_rng(3).permutation(len(corpus))
    name = {d.id: f"{text_hash(d.id)[:6]}.txt" for d in corpus}
    moved = rb.Corpus(
        [
            rb.Document(name[d.id], d.text, d.pages, d.headings, metadata=d.metadata, format=d.format)
            for d in (corpus[int(i)] for i in order)
        ]
    )
    renamed = rb.Gold(gold.query_list, tuple(e._replace(doc_id=name[e.doc_id]) for e in gold.evidence_list))
    table = rb.bench(corpus, gold, systems, store=tmp_path / "a", **OPTIONS).quality_csv()
    assert rb.bench(moved, renamed, systems, store=tmp_path / "b", **OPTIONS).quality_csv() == table


def test_bench_hands_over_what_search_hands_over(data, questions, tmp_path):
    system = rb.System(CHUNK, HYBRID, **EVERYTHING)
    result = rb.bench(*data, system, store=tmp_path, **OPTIONS).systems[0]
    found = system.build(data[0]).search(questions, 100)
    assert (result.run.rows == found.rows).all() and (result.chunks.spans == found.chunks.spans).all()


def test_a_grid_over_steps_shares_what_it_can(data, tmp_path):
    systems = rb.grid(
        rb.System(
            CHUNK,
            LEXICAL,
            rerank=Backwards(10),
            min_score=[None, 2.0, 5.0],
            per_document=[None, 1],
            expand=[None, Neighbours()],
        )
    )
    assert len(systems) == 12 and len(set(names_of(systems))) == 12
    results = rb.bench(*data, systems, store=tmp_path, **{**OPTIONS, "rounds": 1})

    def count(kind):
        return len(list(Path(tmp_path).glob(f"{kind}/*/manifest.json")))

    assert (count("search"), count("rerank"), count("min_score"), count("per_document"), count("expand")) == (
        1,
        2,
        2,
        3,
        6,
    )  # with a threshold, the unread are dropped
    steps = results.steps()
    assert (
        list(steps.columns) == ["retrieve", "rerank", "min_score", "per_document", "expand"]
        and len(steps) == 12
    )
    ms = results.step_ms[results.names[-1]]
    whole = results.latency_ms[results.names[-1]]
    assert (
        sum(ms.values()).shape == whole.shape and (sum(ms.values()) <= whole).all()
    )  # the steps are parts of the whole


def test_one_build_serves_a_sweep_over_query_arguments(data, tmp_path, monkeypatch):
    built = []
    original = FaissHNSW.build
    monkeypatch.setattr(FaissHNSW, "build", lambda self, v: built.append(self) or original(self, v))
    rb.bench(
        *data,
        rb.grid(rb.System(CHUNK, rb.Dense(rb.LSAEmbedder(32), FaissHNSW(8, 40, ef_search=[4, 16, 64])))),
        store=tmp_path,
        **OPTIONS,
    )
    assert len(built) == 1


def reply(asked):
    question = asked["messages"][-1]["content"].replace('"', "")
    return json.dumps([f"{question} in other words", f"put differently: {question}"])


def test_replies_are_kept_so_that_a_second_run_asks_nothing(data, tmp_path):
    corpus, gold = data
    with Loopback(reply) as server:
        chat = Chat("m", server.url, key_env=None)
        systems = rb.grid(
            rb.System(
                CHUNK,
                HYBRID,
                query=[None, MultiQuery(chat, 2), HyDE(chat, keep=True)],
                expand=[None, Neighbours()],
            )
        )
        first = rb.bench(corpus, gold, systems, store=tmp_path, **{**OPTIONS, "rounds": 1})
        asked = len(server.asked)
        assert asked == 2 * len(
            gold
        )  # once for each rewriter and question, whatever else differs; timing asks nothing either
        assert (
            rb.bench(corpus, gold, systems, store=tmp_path, **{**OPTIONS, "rounds": 1}).quality_csv()
            == first.quality_csv()
        )
        assert len(server.asked) == asked
    steps = first.steps()
    assert steps["query"].notna().sum() == 4 and (steps["query"].dropna() > 0).all()
    name = next(n for n in first.names if "MultiQuery" in n)
    assert (
        first.latency_ms[name] > first.step_ms[name]["query"]
    ).all()  # whoever asks a new question waits for the model too


def test_an_answer_that_cannot_be_used_is_retried_then_refused(data, tmp_path):
    with Loopback(["no"]) as server:
        system = rb.System(CHUNK, LEXICAL, query=MultiQuery(Chat("m", server.url, key_env=None), 2, tries=3))
        with pytest.raises(DataError, match="no usable answer in 3 tries"):
            rb.bench(*data, system, store=tmp_path, **OPTIONS)
        assert len(server.asked) == 3


def test_lexical_weights_of_an_explanation_add_up_to_the_score(data, questions):
    built = rb.System(CHUNK, rb.Hybrid(DENSE, rb.Lexical(rb.FTS5(weights=(1.0, 3.0))))).build(data[0])
    rng = random.Random(7)
    scores, found = built.ranker.parts[1].rank(questions, 50)
    for _ in range(25):
        i, j = rng.randrange(len(questions)), rng.randrange(50)
        if found[i, j] < 0:
            continue
        f = built.explain(questions[i], int(found[i, j])).frame
        words = f[(f.step == "lexical") & (f.what != "score")]
        assert abs(words.value.sum() - scores[i, j]) < 1e-9
        assert (
            abs(
                f[(f.step == "fusion") & (f.what != "score")].value.sum()
                - f[(f.step == "fusion") & (f.what == "score")].value.iloc[0]
            )
            < 1e-9
        )
        assert f[(f.step == "lexical") & (f.what == "score")]["rank"].iloc[0] == j + 1


def test_an_explanation_agrees_with_the_search(data, context, questions):
    built = rb.System(CHUNK, HYBRID, **{**EVERYTHING, "min_score": 5.0}).build(data[0], context)
    found = built.search(questions[:3], 200)
    for i in range(3):
        at = {int(o): n for n, o in reversed(list(enumerate(found.origin[i], 1))) if o >= 0}
        for row in range(0, len(built.chunks), 17):
            e = built.explain(questions[i], row)
            assert e.rank == at.get(row, e.rank) and (e.rank > 0) == (
                not e.verdict.startswith("It is not there")
            )


def staged() -> list[rb.System]:
    return [
        rb.System(
            CHUNK, LEXICAL, **{**EVERYTHING, "header": None, "mmr": None, "per_document": n, "min_score": 3}
        )
        for n in (1, 3)
    ]


def _bench(folder: str, log: str, stop: int) -> None:
    os.environ.update(RAGBENCH_TEST_LOG=log, RAGBENCH_TEST_STOP=str(stop))
    rb.bench(*small(), staged(), store=folder, **OPTIONS)


@pytest.mark.faults
def test_a_killed_run_with_steps_ends_with_the_same_table(data, tmp_path, monkeypatch):
    """Killed while reranking, it keeps the retrieval and the boosts, and goes on from there."""
    spawn, killed, n = multiprocessing.get_context("spawn"), tmp_path / "killed", len(data[1])
    whole = rb.bench(*data, staged(), store=tmp_path / "whole", **OPTIONS).quality_csv()
    for stop in (1, n):
        p = spawn.Process(target=_bench, args=(str(killed), str(tmp_path / f"{stop}.log"), stop))
        p.start(), p.join(120)
        assert p.exitcode == -signal.SIGKILL
        assert [
            len(list(killed.glob(f"{kind}/*/manifest.json"))) for kind in ("search", "boosts", "rerank")
        ] == [1, 1, 0]
        assert verify(Store(killed)) == []
    (
        monkeypatch.setenv("RAGBENCH_TEST_LOG", str(tmp_path / "last.log")),
        monkeypatch.setenv("RAGBENCH_TEST_STOP", "-1"),
    )
    assert rb.bench(*data, staged(), store=killed, **OPTIONS).quality_csv() == whole
    assert rb.bench(*data, staged(), store=killed, **OPTIONS).quality_csv() == whole  # everything is found
    assert (
        len((tmp_path / "last.log").read_text().split()) == n
    )  # the reranking, once: nothing of it had been finished, and two systems share it


@pytest.mark.slow
def test_a_cross_encoder_is_a_step(data, tmp_path):
    from ragbench.steps.cross_encoder import CrossEncoderReranker
    from ragbench.testing.tiny_cross_encoder import tiny_cross_encoder

    model = tiny_cross_encoder(str(tmp_path / "model"), ["pump", "valve", "permit", "the", "what", "is"])
    system = rb.System(CHUNK, LEXICAL, rerank=CrossEncoderReranker(model, depth=5))
    results = rb.bench(*data, system, store=tmp_path / "store", **{**OPTIONS, "rounds": 1})
    assert list(results.steps().columns) == ["retrieve", "rerank"]
    plain = rb.bench(*data, rb.System(CHUNK, LEXICAL), store=tmp_path / "store", **OPTIONS).systems[0].run
    reranked = results.systems[0].run
    assert (np.sort(plain.rows[:, :5]) == np.sort(reranked.rows[:, :5])).all() and (
        plain.rows[:, 5:] == reranked.rows[:, 5:]
    ).all()
    question = data[1].query_list[0].text
    e = system.build(data[0]).explain(question, int(reranked.rows[0, 0]))
    line = next(x for x in e.lines if x.step == "rerank")
    assert line.rank == 1 and abs(line.value - reranked.scores[0, 0]) < 1e-6


@pytest.mark.filterwarnings("ignore:FaissIVF")
def test_an_approximate_index_is_reported_with_its_recall(data, tmp_path):
    systems = rb.grid(
        rb.System(
            CHUNK,
            [
                rb.Dense(rb.LSAEmbedder(32), rb.FaissIVF(8, nprobe=[1, 8])),
                rb.Hybrid(rb.Dense(rb.LSAEmbedder(32), rb.FaissIVF(8, nprobe=1)), LEXICAL),
                DENSE,
            ],
        )
    )
    one, all_, hybrid, exact = (
        s.facts
        for s in rb.bench(
            *data, systems, store=tmp_path, **{**OPTIONS, "metrics": ["recall@5", "ndcg@10"]}
        ).systems
    )
    assert (
        one["ann_recall"] < all_["ann_recall"] == 1
        and hybrid["ann_recall"] == one["ann_recall"]
        and "ann_recall" not in exact
    )
    assert one["ann_k"] == 10  # the deepest cut-off of the metrics
