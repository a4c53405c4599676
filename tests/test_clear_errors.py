"""Bad input gets an error that names the value: what, where, what to do."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest

import ragbench as rb
from ragbench import RagbenchError

CORPUS = rb.Corpus([rb.Document(id="a", text="Start the pump.\n\nStop the pump.")])
GOLD = rb.Gold.from_spans(
    [{"query_id": "q1", "query": "Start?", "evidence": [{"doc_id": "a", "start": 0, "end": 15}]}]
)
SYSTEM = rb.System(rb.TokenChunker(8), rb.Lexical(rb.FTS5()))


def run(tmp_path, corpus=CORPUS, gold=GOLD, systems=SYSTEM, **options):
    return rb.bench(corpus, gold, systems, store=tmp_path, rounds=0, **options)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda p: run(p, metrics=["recal@5"]), ["'recal@5'", "recall"]),
        (lambda p: run(p, metrics=["recall@0"]), ["recall@0", "'0'"]),
        (lambda p: run(p, metrics=["recall@-3"]), ["recall@-3"]),
        (lambda p: run(p, metrics=[], budgets=[0]), ["budgets is 0"]),
        (lambda p: run(p, corpus=rb.Corpus([])), ["0 documents"]),
        (lambda p: run(p, systems=[]), ["bench: there is no system to run", "Give a System"]),
        (lambda p: run(p, tokenizer="gpt"), ["there is no tokenizer 'gpt'", "cl100k_base", "o200k_base"]),
        (lambda p: run(p).compare(run(p).names[0]), ["is a system, not a metric", "a=…, b=…"]),
        (
            lambda p: run(
                p,
                gold=rb.Gold.from_spans(
                    [{"query_id": "q7", "query": "?", "evidence": [{"doc_id": "a", "start": 10, "end": 99}]}]
                ),
            ),
            ["q7", "[10, 99)", "'a'", "31 characters"],
        ),
        (
            lambda p: run(
                p,
                gold=rb.Gold.from_spans(
                    [{"query_id": "q7", "query": "?", "evidence": [{"doc_id": "zz", "start": 0, "end": 9}]}]
                ),
            ),
            ["q7", "'zz'", "no such document"],
        ),
        (lambda p: rb.TokenChunker(0), ["TokenChunker", "size is 0"]),
        (lambda p: rb.RecursiveChunker(-5), ["RecursiveChunker", "size is -5"]),
        (lambda p: rb.TokenChunker(64, 64), ["overlap is 64", "size is 64"]),
        (lambda p: rb.RecursiveChunker(64, 80), ["overlap is 80", "size is 64"]),
        (lambda p: rb.TokenChunker(64, tokenizer="cl99k")(CORPUS), ["cl99k"]),
        (lambda p: SYSTEM.build(CORPUS).search("x", k=0), ["k is 0"]),
        (lambda p: SYSTEM.build(rb.Corpus([])), ["0 documents"]),
        (lambda p: rb.LSAEmbedder(500).fit(CORPUS), ["dim is 500"]),
        (lambda p: rb.MinMax(dense=3), ["dense is 3"]),
        (lambda p: rb.load_corpus(p / "nowhere"), ["nowhere"]),
    ],
)
def test_the_error_names_the_value(tmp_path, monkeypatch, call, says):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(RagbenchError) as caught:
        call(tmp_path)
    for part in says:
        assert part in str(caught.value), str(caught.value)


def test_a_failed_plan_leaves_nothing_behind(tmp_path):
    with pytest.raises(RagbenchError):
        run(tmp_path / "store", metrics=["nonsense"])
    assert not (tmp_path / "store").exists()


BUILT = SYSTEM.build(CORPUS, store=False)
UNKNOWN = {
    "a method": (
        lambda: BUILT.search("x", top_k=3),
        "BuiltSystem.search: unknown argument 'top_k'. Did you mean 'k'?",
    ),
    "chunk_size": (
        lambda: rb.TokenChunker(chunk_size=50),
        "TokenChunker: unknown argument 'chunk_size'. Did you mean 'size'?",
    ),
    "overlap": (
        lambda: rb.RecursiveChunker(50, chunk_overlap=4),
        "Did you mean 'overlap'? There are: size, overlap, ",
    ),
    "a list too": (
        lambda: rb.CharacterChunker([5, 6], stride=2),
        "CharacterChunker: unknown argument 'stride'",
    ),
    "a misspelt one": (
        lambda: rb.System(chunker=None),
        "System: unknown argument 'chunker'. Did you mean 'chunk'?",
    ),
    "no near one": (
        lambda: rb.Hybrid(SYSTEM.retrieve, weights=1),
        "unknown argument 'weights'. There are: fuse, depth",
    ),
    "bench": (lambda: rb.bench(docs=CORPUS), "bench: unknown argument 'docs'. Did you mean 'corpus'?"),
    "typed": (
        lambda: SYSTEM.build(docs=CORPUS),
        "System.build: unknown argument 'docs'. Did you mean 'corpus'?",
    ),
    "a value": (lambda: rb.Corpus(docs=[]), "Corpus: unknown argument 'docs'. Did you mean 'documents'?"),
    "a class method": (
        lambda: rb.Gold.load(file="x"),
        "Gold.load: unknown argument 'file'. Did you mean 'path'?",
    ),
    "a store": (
        lambda: rb.KnowledgeBase.open(folder="x"),
        "KnowledgeBase.open: unknown argument 'folder'. Did you",
    ),
    "a missing one": (lambda: BUILT.search(), "It is called as BuiltSystem.search(queries, k=…"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_argument_that_there_is_not_is_answered_with_those_there_are(name):
    call, says = UNKNOWN[name]
    with pytest.raises(rb.ConfigError) as e:
        call()
    assert says in str(e.value)


def test_an_error_from_inside_a_call_stays_as_it_is():
    class Mine:
        def __call__(self, corpus):
            return len(None)

    with pytest.raises(TypeError, match="NoneType") as e:
        rb.System(Mine(), rb.Lexical()).build(CORPUS, store=False)
    assert not isinstance(e.value, RagbenchError)


def test_choices_are_neither_changed_nor_hashed_before_they_are_expanded():
    choices = rb.System([rb.TokenChunker(8), rb.TokenChunker(9)], rb.Lexical())
    for call in (lambda: dataclasses.replace(choices, depth=50), lambda: hash(choices)):
        with pytest.raises(rb.ConfigError, match="this is 2 choices and not one System"):
            call()
    assert pickle.loads(pickle.dumps(choices)) == copy.deepcopy(choices) == choices
    assert dataclasses.replace(choices, named={"depth": 7}).named == {"depth": 7}


@pytest.mark.parametrize("name", ["search", "save", "trail", "chunks"])
def test_a_system_that_is_not_built_says_so(name):
    with pytest.raises(
        rb.ConfigError, match=rf"System.{name}: .*not built yet.*system.build\(corpus\).{name}"
    ):
        getattr(SYSTEM, name)
    assert not hasattr(SYSTEM, name) and pickle.loads(pickle.dumps(SYSTEM)) == copy.copy(SYSTEM) == SYSTEM
    with pytest.raises(AttributeError, match="has no attribute 'serch'"):
        getattr(SYSTEM, "serch")  # noqa: B009


def test_a_formula_given_as_an_engine_is_told_its_place():
    with pytest.raises(rb.ConfigError, match=r"Lexical\(FTS5\(bm25=BM25\("):
        rb.Lexical(rb.BM25())


def test_a_list_of_systems_is_told_how_to_be_expanded():
    with pytest.raises(rb.ConfigError, match=r"Write grid\(\*systems\)"):
        rb.grid([SYSTEM])


def test_a_text_that_a_loader_must_find_may_be_given_alone(tmp_path):
    from ragbench.testing import check_loader

    (tmp_path / "a.pump").write_text("Start the mixer.")

    def load(path, *, doc_id):
        return rb.Document(doc_id, path.read_text())

    for given in ("mixer", "fan"):
        one, listed = (str(check_loader(load, tmp_path / "a.pump", contains=c)) for c in (given, [given]))
        assert one == listed and ("'fan'" in one) == (given == "fan")


def test_an_engine_that_finds_passages_without_a_word_of_the_question_is_told():
    from ragbench.testing import check_engine

    class Searched:
        def __init__(self, built, n):
            self.built, self.n, self.nbytes = built, n, 0

        def search(self, texts, k, **more):
            scores, rows = self.built.search(texts, k, **more)
            for s, r in zip(scores, rows):
                rest = [row for row in range(self.n) if row not in r.tolist()]
                for place, row in zip(np.flatnonzero(r < 0), rest):
                    s[place], r[place] = 0.0, row
            return scores, rows

    class Padded:
        def build(self, chunks):
            return Searched(rb.FTS5().build(chunks), len(chunks))

    assert "without any of its words" in str(check_engine(Padded()))
    assert "without any of its words" not in str(check_engine(rb.FTS5()))


def test_one_system_has_no_pairs_and_two_have_one(tmp_path):
    one = run(tmp_path, timing=False).pairs()
    assert one.verdict.endswith("there is one system, and no pair to compare.")
    assert "p:" not in repr(one)
    two = run(tmp_path, systems=[SYSTEM, rb.System(rb.TokenChunker(4), rb.Lexical(rb.FTS5()))], timing=False)
    assert "the one pair does not differ at p <" in two.pairs().verdict
    assert "all 1 pairs" not in repr(two.pairs())


def test_progress_names_the_step_and_not_its_settings(tmp_path, monkeypatch):
    from types import SimpleNamespace

    from ragbench.bench.plan import make_plan
    from ragbench.bench.plan_executor import PlanExecutor
    from ragbench.store.artifacts import Store
    from ragbench.system.build_context import Context

    labels = []
    bar = SimpleNamespace(set_postfix_str=labels.append)
    plan = make_plan(CORPUS, GOLD, SYSTEM)
    executor = PlanExecutor(plan, Context(store=Store(tmp_path)), bar)
    executor.value(plan.pipelines[0].last)
    assert "search" in labels
    assert not [label for label in labels if "{" in label or "[" in label]
