"""Laws of the pipeline: keys are known before anything runs, what two systems share is made once, memory and
store give the same, and what passed on the way adds up to what is handed over."""

import itertools
import multiprocessing
import os
import signal
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ragbench as rb
from ragbench.base.errors import ConfigError
from ragbench.bench.judging import final_ranking, gold_source, score_step
from ragbench.bench.plan import make_plan
from ragbench.steps.boosts import Boost, Boosts
from ragbench.steps.expansion import Neighbours, ParentSection
from ragbench.steps.mmr import MMR
from ragbench.steps.rewriting import Wording
from ragbench.store.artifacts import Store, verify
from ragbench.system.build_context import Context
from ragbench.system.pipeline import pipeline
from ragbench.system.step import Executor

WORDS = ["pump", "oil", "valve", "tank", "gauge", "level", "permit", "seal", "leak", "start"]
OPTIONS = {"metrics": ["recall@3", "mrr"], "budgets": [30], "rounds": 0, "progress": False, "depth": 8}

SETTINGS = {k: v for k, v in OPTIONS.items() if k != "progress"}


def corpus_of(texts):
    return rb.Corpus([rb.Document(f"d{i}", text) for i, text in enumerate(texts)])


def toy():
    "Six documents of twelve sentences, and five questions that each answer one."
    rng = np.random.default_rng(7)
    texts = [
        "\n\n".join(" ".join(rng.choice(WORDS, 5)).capitalize() + "." for _ in range(12)) for _ in range(6)
    ]
    corpus = corpus_of(texts)
    questions = [
        {
            "query_id": f"q{i}",
            "query": " ".join(rng.choice(WORDS, 3)) + "?",
            "evidence": [{"doc_id": f"d{i}", "start": 0, "end": texts[i].index(".") + 1}],
        }
        for i in range(5)
    ]
    return corpus, rb.Gold.from_spans(questions)


# --- keys ---------------------------------------------------------------------------------------------------


def refuse(self, *args, **kwargs):
    raise AssertionError("a component was asked to work")


@dataclass(frozen=True)
class Chunker:
    size: int = 1

    def __call__(self, corpus):
        refuse(self)


@dataclass(frozen=True)
class Embedder:
    name: str = "e"

    def embed_passages(self, texts):
        refuse(self)

    def embed_queries(self, texts):
        refuse(self)


@dataclass(frozen=True)
class Fitted:
    def fit(self, corpus):
        refuse(self)


@dataclass(frozen=True)
class Index:
    m: int = 1

    def build(self, vectors):
        refuse(self)


@dataclass(frozen=True)
class Fusion:
    def fuse(self, runs, kinds):
        refuse(self)


@dataclass(frozen=True)
class Retriever:
    kind = "lexical"

    def build(self, chunks, context):
        refuse(self)


@dataclass(frozen=True)
class Around:
    "Every step around retrieval at once."

    n: int = 1

    def rewrite(self, question):
        refuse(self)

    def apply(self, texts, scores, rows, chunks):
        refuse(self)

    def rerank(self, query, rows, texts):
        refuse(self)

    def select(self, query, candidates, k, relevance):
        refuse(self)

    def span(self, chunks, row):
        refuse(self)


def idle_grid():
    dense = [rb.Dense(Embedder("a"), Index()), rb.Dense(Fitted(), Index(2))]
    own = Retriever()
    return rb.grid(
        rb.System(
            [Chunker(1), Chunker(2)],
            [dense[0], own, rb.Hybrid(*dense, own, fuse=Fusion()), rb.Hybrid(dense[1], own)],
            query=[None, Around(1)],
            rerank=[None, Around(2)],
            boosts=Around(),
            min_score=[None, 0.01],
            per_document=2,
            expand=[None, Around()],
        )
    )


def test_every_key_is_known_before_anything_is_computed():
    corpus, gold = toy()
    systems = idle_grid()
    plan = make_plan(corpus, gold, systems, **SETTINGS)
    keys = [[s.key for s in p.steps] for p in plan.pipelines]
    scores = [score_step(p, gold_source(gold), plan.settings).key for p in plan.pipelines]
    assert len(set(scores)) == len(systems) == 2 * 4 * 2 * 2 * 2 * 2
    assert keys == [
        [s.key for s in p.steps] for p in make_plan(corpus, gold, idle_grid(), **SETTINGS).pipelines
    ]
    assert len(plan.steps) < sum(map(len, keys)) / 2  # most of a grid is shared
    with pytest.raises(AssertionError, match="asked to work"):
        Executor(Context()).value(plan.pipelines[0].last)


BASE = {
    "chunk": rb.TokenChunker(8),
    "retrieve": rb.Hybrid(rb.Dense(rb.LSAEmbedder(4)), rb.Lexical(rb.FTS5()), fuse=rb.RRF(60)),
}
CHANGES = {  # what is changed: the kinds of steps whose keys change with it, and all that come after
    "chunk": ({"chunk": rb.TokenChunker(9)}, "chunk"),
    "embedder": ({"retrieve": rb.Hybrid(rb.Dense(rb.LSAEmbedder(5)), rb.Lexical(), fuse=rb.RRF(60))}, "fit"),
    "fusion": ({"retrieve": rb.Hybrid(*BASE["retrieve"].retrievers, fuse=rb.RRF(10))}, "fuse"),
    "depth": ({"retrieve": rb.Hybrid(*BASE["retrieve"].retrievers, depth=50)}, "search"),
    "header": ({"header": "title"}, "embed"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_key_changes_with_what_decides_the_value_and_with_nothing_else(change):
    corpus, _ = toy()
    fields, first = CHANGES[change]
    one = pipeline(rb.System(**BASE), corpus, ["oil?"])
    other = pipeline(rb.System(**{**BASE, **fields}), corpus, ["oil?"])
    shared = {s.key for s in one.steps} & {s.key for s in other.steps}
    changed = {s for s in other.steps if s.key not in shared}
    assert first in {s.kind for s in changed}
    for step in other.steps:  # a step is another exactly where its configuration or an input is
        twin = next(t for t in one.steps if t.kind == step.kind and (t.key == step.key or t not in shared))
        if step in changed:
            assert step.config != twin.config or any(i in changed for i in step.inputs)
        else:
            assert not any(i in changed for i in step.inputs)


def test_other_questions_and_other_texts_are_other_keys_from_there_on():
    corpus, _ = toy()
    moved = rb.Corpus([*list(corpus)[:-1], rb.Document("d5", corpus[5].text + " More.")])
    one, two, three = (
        pipeline(rb.System(**BASE), c, [q]) for c, q in ((corpus, "oil?"), (corpus, "tank?"), (moved, "oil?"))
    )
    fixed = {s.kind for s in two.steps if s.key in {t.key for t in one.steps}}
    assert fixed == {"corpus", "chunk", "fit", "embed", "index", "allowed"}
    assert {s.kind for s in three.steps if s.key in {t.key for t in one.steps}} == {"questions", "allowed"}


# --- memory and store ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Backwards:
    "The last of those that it reads come first."

    depth: int = 5

    def rerank(self, query, rows, texts):
        if log := os.environ.get("RAGBENCH_TEST_LOG"):
            with open(log, "a") as f:
                f.write("x")
        rows = np.asarray(rows)[: self.depth][::-1]
        return np.arange(len(rows), 0, -1.0), rows


@dataclass(frozen=True)
class Twice:
    "The question, and its words in another order."

    def rewrite(self, question):
        return Wording(question), Wording(" ".join(reversed(question.split())))


@dataclass(frozen=True)
class TenLines:
    kind = "lexical"

    def build(self, chunks, context):
        return TenLinesRanker(chunks.texts)


class TenLinesRanker:
    def __init__(self, texts):
        self.texts, self.nbytes = texts, 0

    def rank(self, texts, k):
        hits = np.array([[sum(w in t.lower() for w in q.lower().split()) for t in self.texts] for q in texts])
        rows = np.argsort(-hits, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(hits, rows, axis=1).astype(float), rows


DENSE, LEXICAL = rb.Dense(rb.LSAEmbedder(4)), rb.Lexical(rb.FTS5())
RETRIEVERS = [
    DENSE,
    LEXICAL,
    TenLines(),
    rb.Hybrid(DENSE, LEXICAL, depth=20),
    rb.Hybrid(LEXICAL, TenLines(), fuse=rb.RRF(10), depth=20),
    rb.Hybrid(rb.Hybrid(DENSE, LEXICAL, depth=20), TenLines(), depth=20),
]


@st.composite
def systems(draw):
    retriever = draw(st.sampled_from(RETRIEVERS))
    steps = {
        "query": st.sampled_from([None, Twice()]),
        "boosts": st.sampled_from([None, Boosts([Boost({"doc": "d1"}, 0.3)])]),
        "rerank": st.sampled_from([None, Backwards()]),
        "min_score": st.sampled_from([None, 0.0]),
        "per_document": st.sampled_from([None, 1, 2]),
        "expand": st.sampled_from([None, Neighbours(), ParentSection()]),
    }
    chosen = {name: draw(values) for name, values in steps.items()}
    if "Dense" in repr(retriever):
        chosen["header"] = draw(st.sampled_from([None, "title"]))
        chosen["mmr"] = draw(st.sampled_from([None, MMR(0.5)]))
    size = draw(st.sampled_from([6, 12]))
    return rb.System(rb.TokenChunker(size), retriever, depth=20, **chosen)


@pytest.fixture(scope="module")
def data():
    return toy()


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(system=systems(), k=st.integers(1, 12))
def test_memory_and_store_hand_over_the_same(data, tmp_path_factory, system, k):
    corpus, gold = data
    texts = [q.text for q in gold.query_list]
    built = system.build(corpus, store=False)
    found = built.search(texts, k)
    store = tmp_path_factory.getbasetemp() / "shared"
    for _ in range(2):  # made, and found again
        kept = Executor(Context(store=Store(store)))
        steps = pipeline(system, corpus, texts, k)
        ranking = final_ranking(kept.value(steps.last), kept.value(steps.sources.chunks), gold, k)
        run = ranking.run
        assert np.array_equal(run.rows, found.run.rows) and np.array_equal(run.scores, found.run.scores)
        assert np.array_equal(ranking.chunks.spans, found.chunks.spans)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(system=systems(), i=st.integers(0, 4))
def test_the_trail_leads_to_what_is_handed_over(data, system, i):
    """Each step's value is its function of its inputs' values, and the last one is the answer."""
    corpus, gold = data
    built, text = system.build(corpus, store=False), gold.query_list[i].text
    steps, trail = built.pipeline(7), built.trail([text], 7)
    for step in steps.last.asked_order:
        if step.run is None or step.takes:
            continue
        inputs = [trail.values[s] if s.per_question else built.executor.value(s) for s in step.inputs]
        again = step.run(step.config, *inputs)
        assert str(again) == str(trail.values[step])
    answer, found = trail.values[steps.last], built.search(text, 7)
    rows = answer.rows if steps.expansion is not None else answer[1]
    assert rows[:, :7].tolist() == found.run.rows.tolist()
    assert set(trail.ms) == set(found.ms)
    if steps.expansion is None:
        for row in found.run.of(0)[:3]:
            rank = found.run.of(0).tolist().index(row) + 1
            assert built.explain(text, int(row)).rank == rank


# --- sharing, failures, kills -------------------------------------------------------------------------------


def test_what_systems_share_is_made_once(data, tmp_path, monkeypatch):
    """Eight systems: one chunking, one fit, one search with each retriever, one reranking of each list."""
    counts = Counter()
    original = Executor.computed

    def computed(self, step):
        counts[f"{step.kind} {step.key}"] += 1
        return original(self, step)

    monkeypatch.setattr(Executor, "computed", computed)
    log = tmp_path / "log"
    monkeypatch.setenv("RAGBENCH_TEST_LOG", str(log))
    found = rb.grid(
        rb.System(
            rb.TokenChunker(8),
            [rb.Hybrid(DENSE, LEXICAL), rb.Hybrid(DENSE, LEXICAL, fuse=rb.MinMax(dense=0.5))],
            rerank=Backwards(),
            min_score=[None, 0.0],
            expand=[None, Neighbours()],
            depth=20,
        )
    )
    assert len(found) == 8
    rb.bench(*data, found, store=tmp_path / "store", **OPTIONS)
    kept = ("chunk", "search", "fuse", "rerank", "min_score", "expand", "scores", "index", "fit")
    made = [name for name in counts.elements() if name.split()[0] in kept]
    assert len(made) == len(set(made))  # nothing twice
    by_kind = Counter(name.split()[0] for name in set(counts))
    assert [by_kind[k] for k in kept] == [1, 2, 2, 4, 2, 4, 8, 2, 1]
    assert log.stat().st_size == 4 * len(data[1])  # of each fusion, with and without what was not read
    counts.clear()
    rb.bench(*data, found, store=tmp_path / "store", **OPTIONS)
    assert not any(name.split()[0] in kept for name in counts)  # of a finished run, nothing is made


@dataclass(frozen=True)
class Broken:
    def rerank(self, query, rows, texts):
        raise ValueError("the reranker broke")


def kinds(folder):
    return sorted(p.parent.parent.name for p in folder.glob("*/*/manifest.json"))


def test_the_failure_of_a_step_leaves_what_was_made_before(data, tmp_path):
    system = rb.System(
        rb.TokenChunker(8), LEXICAL, boosts=Boosts([Boost({"doc": "d1"}, 0.3)]), rerank=Broken()
    )
    with pytest.raises(ValueError, match="the reranker broke"):
        rb.bench(*data, system, store=tmp_path, **OPTIONS)
    before = kinds(tmp_path)
    assert [k for k in before if k in ("chunk", "search", "boosts", "rerank", "scores")] == [
        "boosts",
        "chunk",
        "search",
    ]
    assert verify(Store(tmp_path)) == []
    mended = rb.System(system.chunk, LEXICAL, boosts=system.boosts, rerank=Backwards())
    rb.bench(*data, mended, store=tmp_path, **OPTIONS)
    assert kinds(tmp_path).count("search") == kinds(tmp_path).count("boosts") == 1


@dataclass(frozen=True)
class Deadly:
    "Kills the process at its n-th question."

    log: str
    n: int = field(compare=False)

    def rerank(self, query, rows, texts):
        with open(self.log, "a") as f:
            f.write("x")
        if os.path.getsize(self.log) == self.n:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.arange(len(rows), 0, -1.0), np.asarray(rows)[::-1]


def deadly(log, n):
    return rb.System(rb.TokenChunker(8), LEXICAL, rerank=Deadly(log, n), expand=[None, Neighbours()])


def _killed(folder, log, n):
    rb.bench(*toy(), deadly(log, n), store=folder, **OPTIONS)


@pytest.mark.faults
@pytest.mark.parametrize("n", [1, 3, 5])
def test_killed_and_started_again_it_makes_only_what_was_not_finished(data, tmp_path, n):
    log, spawn = tmp_path / "log", multiprocessing.get_context("spawn")
    whole = rb.bench(*data, deadly(str(log), -1), store=tmp_path / "whole", **OPTIONS).quality_csv()
    log.unlink()
    child = spawn.Process(target=_killed, args=(str(tmp_path / "killed"), str(log), n))
    child.start()
    child.join(120)
    assert child.exitcode == -signal.SIGKILL
    assert verify(Store(tmp_path / "killed")) == [] and kinds(tmp_path / "killed").count("search") == 1
    resumed = rb.bench(*data, deadly(str(log), -1), store=tmp_path / "killed", **OPTIONS).quality_csv()
    assert resumed == whole
    assert log.stat().st_size == n + len(
        data[1]
    )  # the step that it was in, once more, for both systems together
    assert kinds(tmp_path / "killed").count("search") == 1


# --- what is optional ---------------------------------------------------------------------------------------


class Filtering(TenLinesRanker):
    takes = ("where",)

    def rank(self, texts, k, where=None):
        scores, rows = super().rank(texts, len(self.texts))
        if where is not None:
            keep = np.isin(rows, where)
            scores = np.array([s[line] for s, line in zip(scores, keep)])
            rows = np.array([r[line] for r, line in zip(rows, keep)])
        return scores[:, :k], rows[:, :k]


@dataclass(frozen=True)
class WithFilter:
    kind = "lexical"

    def build(self, chunks, context):
        return Filtering(chunks.texts)


class Promising(TenLinesRanker):
    takes = ("where",)


@dataclass(frozen=True)
class Promise:
    kind = "lexical"

    def build(self, chunks, context):
        return Promising(chunks.texts)


def test_ten_lines_work_and_a_filter_is_refused_unless_it_is_taken(data):
    corpus, gold = data
    plain = rb.System(rb.TokenChunker(8), TenLines()).build(corpus, store=False)
    assert len(plain.search(["oil pump"], 3).run.of(0)) == 3
    with pytest.raises(ConfigError, match="it takes no where"):
        plain.search(["oil pump"], 3, where={"doc": "d1"})
    filtered = rb.System(rb.TokenChunker(8), WithFilter()).build(corpus, store=False)
    found = filtered.search(["oil pump"], 3, where={"doc": "d1"})
    assert {corpus[int(found.chunks.doc_row[r])].id for r in found.run.of(0)} == {"d1"}
    with pytest.raises(ConfigError, match="its rank has no such parameter"):
        rb.System(rb.TokenChunker(8), Promise()).build(corpus, store=False)


def test_nobody_looks_at_signatures_while_it_searches(data, monkeypatch):
    import inspect

    built = [rb.System(rb.TokenChunker(8), r).build(data[0], store=False) for r in RETRIEVERS]
    for b in built:
        b.search("oil pump", 3)  # imports are done
    monkeypatch.setattr(inspect, "signature", refuse)
    for b in built:
        b.search("oil pump", 3)
    for b in itertools.islice(built, 2):
        b.search("oil pump", 3, where={"doc": "d1"})
