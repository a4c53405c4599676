"""Filters and thresholds as parts of a system: exact or by fetching more, alike in search and benchmark."""

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ragbench import (
    BM25S,
    FTS5,
    Boost,
    Boosts,
    ConfigError,
    Corpus,
    DataError,
    Dense,
    Document,
    FaissFlat,
    FaissHNSW,
    Gold,
    Hybrid,
    Lexical,
    LSAEmbedder,
    MinMax,
    Neighbours,
    Param,
    Query,
    RecursiveChunker,
    Results,
    SeeAlso,
    System,
    bench,
    grid,
    load_dataset,
)
from ragbench.bench.plan import make_plan
from ragbench.steps.rewriting import Wording
from ragbench.system.pipeline import pipeline

WORDS = "pump tank valve level oil steam gauge filter seal motor".split()
ASK = "the oil level of a pump"


@pytest.fixture(scope="module")
def corpus():
    rng = np.random.default_rng(20261122)
    texts = [". ".join(" ".join(rng.choice(WORDS, 5)) for _ in range(4)) for _ in range(60)]
    return Corpus(
        [Document(f"d{i}", t, metadata={"status": ["old", "active"][i % 5 == 0], "year": 2000 + i % 7})
         for i, t in enumerate(texts)]
    )  # fmt: skip


RETRIEVERS = {
    "dense": Dense(LSAEmbedder(5)),
    "lexical": Lexical(FTS5()),
    "bm25s": Lexical(BM25S()),
    "hybrid": Hybrid(Dense(LSAEmbedder(5)), Lexical(FTS5()), fuse=MinMax(dense=0.5)),
    "hnsw": Dense(LSAEmbedder(5), FaissHNSW(8)),
}


def found(system, corpus, k=8, **more):
    return [
        (h.doc_id, h.start, round(h.score, 9))
        for h in system.build(corpus, store=False).search(ASK, k=k, **more)
    ]


@pytest.mark.parametrize("name", RETRIEVERS)
@pytest.mark.parametrize(
    ("where", "meets"),
    [
        ({"status": "active"}, lambda d: d.metadata["status"] == "active"),
        ({"year": {"$gte": 2004}}, lambda d: d.metadata["year"] >= 2004),
    ],
    ids=["status", "year"],
)
def test_a_filter_of_the_system_is_the_filter_of_its_search(corpus, name, where, meets):
    plain = System(RecursiveChunker(16), RETRIEVERS[name])
    filtered = System(RecursiveChunker(16), RETRIEVERS[name], where=where)
    hits = found(filtered, corpus)
    assert len(hits) == 8
    assert hits == found(plain, corpus, where=where)
    assert {d for d, *_ in hits} <= {d.id for d in corpus if meets(d)}
    assert not {d for d, *_ in found(plain, corpus)} <= {d.id for d in corpus if meets(d)}


@pytest.mark.parametrize("name", ["dense", "lexical", "bm25s"])
def test_fetching_everything_and_dropping_is_exact(corpus, name):
    parts = {"chunk": RecursiveChunker(16), "retrieve": RETRIEVERS[name], "where": {"status": "active"}}
    assert found(System(**parts, overfetch=1000), corpus) == found(System(**parts), corpus)


def test_fetching_a_few_more_finds_too_little_and_nothing_else(corpus):
    parts = {"chunk": RecursiveChunker(16), "retrieve": RETRIEVERS["dense"], "where": {"status": "active"}}
    exact, few = found(System(**parts), corpus, k=20), found(System(**parts, overfetch=2), corpus, k=20)
    assert 0 < len(few) < len(exact)
    assert few == exact[: len(few)]


def test_nothing_that_the_filter_forbids_comes_in_by_expansion(corpus):
    for overfetch in (None, 3):
        system = System(
            RecursiveChunker(8), RETRIEVERS["lexical"], where={"status": "active"}, overfetch=overfetch,
            expand=Neighbours(2), boosts=Boosts([Boost({"year": 2003}, 0.5)]),
        )  # fmt: skip
        ranking = system.build(corpus, store=False).search(ASK, k=5)
        assert {corpus[h.doc_id].metadata["status"] for h in ranking} == {"active"}


def test_the_filter_of_a_search_and_of_the_system_both_hold(corpus):
    system = System(RecursiveChunker(16), RETRIEVERS["hybrid"], where={"status": "active"})
    hits = found(system, corpus, where={"year": 2003})
    assert {d for d, *_ in hits} == {
        d.id for d in corpus if d.metadata["status"] == "active" and d.metadata["year"] == 2003
    }


def test_a_threshold_of_a_retriever_is_on_its_own_scores(corpus):
    dense, lexical = Dense(LSAEmbedder(5)), Lexical(FTS5())
    scores = [s for *_, s in found(System(RecursiveChunker(16), dense), corpus, k=30)]
    cut = scores[10]
    strict = Dense(LSAEmbedder(5), min_score=cut)
    assert found(System(RecursiveChunker(16), strict), corpus, k=30) == [
        h for h in found(System(RecursiveChunker(16), dense), corpus, k=30) if h[2] >= cut - 1e-9
    ]
    hybrid = System(RecursiveChunker(16), Hybrid(strict, lexical))
    words = {h[:2] for h in found(System(RecursiveChunker(16), lexical), corpus, k=200)}
    near = {h[:2] for h in found(System(RecursiveChunker(16), strict), corpus, k=200)}
    assert {h[:2] for h in found(hybrid, corpus, k=200)} == words | near


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: System(RecursiveChunker(9), Dense(LSAEmbedder(3), min_score=1.2)), "no score can exceed 1"),
        (lambda: System(RecursiveChunker(9), Hybrid(Dense(LSAEmbedder(3), FaissFlat("l2"), min_score=0.5),
                                                    Lexical())), "no score can exceed 0"),
        (lambda: Lexical(FTS5(), min_score="high"), "min_score is 'high'"),
        (lambda: Dense(LSAEmbedder(3), min_score=float("nan")), "min_score is nan"),
        (lambda: System(RecursiveChunker(9), Lexical(), overfetch=3), "there is no filter"),
        (lambda: System(RecursiveChunker(9), Lexical(), where={"a": 1}, overfetch=0), "overfetch is 0"),
        (lambda: grid(System(RecursiveChunker(9), Lexical(), where=[1, 2])), "where is 1"),
        (lambda: System(RecursiveChunker(9), Lexical(), where={"a": {"$near": 1}}), "near"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


def test_a_field_that_no_document_has_is_refused_before_anything_is_made(corpus):
    with pytest.raises(ConfigError, match="state"):
        System(RecursiveChunker(9), Lexical(), where={"state": 1}).build(corpus, store=False)


def test_filtered_designs_are_benchmarked(tmp_path):
    corpus, gold = load_dataset("procedures")
    kind = sorted({d.format for d in corpus})[0]
    parts = {"chunk": RecursiveChunker(200), "retrieve": Dense(LSAEmbedder(16))}
    systems = {
        "all": System(**parts),
        "exact": System(**parts, where={"format": kind}),
        "late": System(**parts, where={"format": kind}, overfetch=3),
        "strict": System(parts["chunk"], Dense(LSAEmbedder(16), min_score=0.5)),
    }
    results = bench(corpus, gold, systems, metrics=["recall@5"], budgets=[500], store=tmp_path, timing=False,
                    progress=False)  # fmt: skip
    for name in ("exact", "late"):
        run, chunks = results[name].run, results[name].chunks
        documents = {corpus[int(chunks.doc_row[r])].format for r in run.rows[run.rows >= 0]}
        assert documents == {kind}
        built = systems[name].build(corpus, store=False)
        texts = [q.text for q in gold.query_list]
        assert np.array_equal(built.search(texts, k=run.rows.shape[1]).rows, run.rows)
    assert results["strict"].run.scores[results["strict"].run.rows >= 0].min() >= 0.5
    recall = dict(zip(results.names, (results.scores("recall@5").mean(axis=-1)).tolist()))
    assert recall["late"] <= recall["exact"] < recall["all"]


def test_labels_say_what_differs():
    from ragbench.system.system import names_of

    parts = {"chunk": RecursiveChunker(9), "retrieve": Lexical()}
    systems = [System(**parts), System(**parts, where={"a": 1}), System(**parts, where={"a": 1}, overfetch=3),
               System(RecursiveChunker(9), Lexical(min_score=2)), System(**parts, min_score=2)]  # fmt: skip
    assert len(set(names_of(systems))) == 5
    for system in systems:
        assert eval(repr(system)) == system


# --- a value that each question brings ----------------------------------------------------------------------

OWNERS = ["north", "south", "east"]
OWN = {"owner": Param("owner")}


class Backwards:
    "A reranker that turns the candidates round."

    def rerank(self, query, rows, texts):
        return np.arange(len(rows), 0, -1.0), np.asarray(rows)[::-1]


class SameAgain:
    "A rewriter of two wordings."

    def rewrite(self, question):
        return Wording(question), Wording(" ".join(reversed(question.split())))


def owned(n=30, seed=3):
    "Documents of several owners with the same words, and links from each to its neighbours, of other owners."
    rng = np.random.default_rng(seed)
    texts = [". ".join(" ".join(rng.choice(WORDS, 5)) for _ in range(4)) for _ in range(n)]
    return Corpus([Document(f"d{i}", t, metadata={"owner": OWNERS[i % 3]}) for i, t in enumerate(texts)])


OWNED = owned()
LINKS = SeeAlso([(f"d{i}", f"d{i + 1}") for i in range(29)])
STEPS = {
    "none": {},
    "rerank": {"rerank": Backwards()},
    "neighbours": {"expand": Neighbours(2)},
    "see also": {"expand": LINKS},
    "wordings": {"query": SameAgain()},
    "all": {"query": SameAgain(), "rerank": Backwards(), "per_document": 2, "expand": LINKS},
}
BUILT = {}


def built(retriever, steps, overfetch, where=None):
    "A system with the filter that asks the question, built once."
    key = (retriever, steps, overfetch, repr(where))
    if key not in BUILT:
        system = System(
            RecursiveChunker(12),
            RETRIEVERS[retriever],
            where=where or OWN,
            overfetch=overfetch,
            **STEPS[steps],
        )
        BUILT[key] = system.build(OWNED, store=False)
    return BUILT[key]


def owners_of(ranking):
    return {ranking.corpus[hit.doc_id].metadata["owner"] for hit in ranking}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    retriever=st.sampled_from(sorted(RETRIEVERS)),
    steps=st.sampled_from(sorted(STEPS)),
    overfetch=st.sampled_from([None, 2, 100]),
    asked=st.lists(
        st.tuples(
            st.lists(st.sampled_from(WORDS), min_size=1, max_size=4), st.sampled_from([*OWNERS, "nobody"])
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_no_question_ever_gets_a_row_of_another_owner(retriever, steps, overfetch, asked):
    system = built(retriever, steps, overfetch)
    queries = [
        Query(f"q{i}", " ".join(words), params={"owner": owner}) for i, (words, owner) in enumerate(asked)
    ]
    rankings = system.search(queries, k=6).by_query()
    for ranking, (_, owner) in zip(rankings, asked):
        assert owners_of(ranking) <= {owner}
        if ranking.grown_from is not None:
            assert {OWNED[o[0]].metadata["owner"] for hit in ranking if (o := hit.origin)} <= {owner}
        if owner == "nobody":
            assert not len(ranking)


@pytest.mark.parametrize("overfetch", [None, 3])
@pytest.mark.parametrize("retriever", RETRIEVERS)
def test_a_parameter_is_the_condition_with_its_value(retriever, overfetch):
    "Each question finds what a system with its value written down finds, with the same scores."
    system = built(retriever, "neighbours", overfetch)
    for owner in OWNERS:
        plain = built(retriever, "neighbours", overfetch, {"owner": owner})
        one, other = system.search(ASK, 8, params={"owner": owner}), plain.search(ASK, 8)
        assert len(one) and np.array_equal(one.rows, other.rows) and np.array_equal(one.scores, other.scores)
        assert one.passages() == other.passages()


def test_many_questions_of_few_owners_are_few_searches():
    calls = []

    class Counting:
        kind = "lexical"

        def build(self, chunks, context):
            return Counted(Lexical(FTS5()).build(chunks, context))

    class Counted:
        takes = ("where",)

        def __init__(self, ranker):
            self.ranker = ranker

        def rank(self, texts, k, where=None):
            calls.append(len(texts))
            return self.ranker.rank(texts, k, where)

    system = System(RecursiveChunker(12), Counting(), where=OWN).build(OWNED, store=False)
    owners = [*OWNERS, "nobody", "east"]
    queries = [Query(f"q{i}", WORDS[i % 9], params={"owner": owners[i % 5]}) for i in range(1000)]
    rankings = system.search(queries, 3).by_query()
    assert sorted(calls) == [200, 200, 200, 400]
    assert [owners_of(r) for r in rankings[:5]] == [{"north"}, {"south"}, {"east"}, set(), {"east"}]
    assert [r.query_ids for r in rankings] == [(q.query_id,) for q in queries]


def test_the_filter_of_the_search_has_parameters_too_and_both_hold():
    plain = System(RecursiveChunker(12), RETRIEVERS["hybrid"]).build(OWNED, store=False)
    queries = [Query("a", ASK, params={"owner": "north"}), Query("b", ASK, params={"owner": "east"})]
    one = plain.search(queries, 5, where=OWN)
    assert [owners_of(r) for r in one.by_query()] == [{"north"}, {"east"}]
    own = built("hybrid", "none", None)
    assert np.array_equal(own.search(queries, 5).rows, one.rows)
    both = own.search(queries, 5, where={"doc": [Param("mine"), "d2"]}, params={"mine": "d0"})
    assert [{h.doc_id for h in r} for r in both.by_query()] == [{"d0"}, {"d2"}]
    several = plain.search(ASK, 50, where={"doc": [Param("mine"), "d2"]}, params={"mine": ["d0", "d4"]})
    assert {hit.doc_id for hit in several} == {"d0", "d2", "d4"}
    assert [{h.doc_id for h in r} for r in own.search(queries, 5, where=np.arange(2)).by_query()] == [
        {"d0"},
        set(),
    ]


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda s: s.search("oil"), "question 'oil' brings no value for the parameter 'owner'"),
        (lambda s: s.search([Query("q1", "a", params={"owner": "b"}), Query("q2", "oil")]), "question 'q2'"),
        (lambda s: s.search("oil", params={"owner": "east", "ownr": 1}), "the unknown parameter 'ownr'"),
        (lambda s: s.search("oil", params={"owner": {"$ne": "east"}}), "give a text, a number"),
        (lambda s: s.search("oil", params={"owner": None}), "give a text, a number"),
        (lambda s: s.search("oil", params="east"), "give a mapping"),
        (lambda s: s.search(["oil", "tank"], params=[{"owner": "east"}]), "params of 1 questions, and 2"),
        (lambda s: s.search("oil", params={"owner": "a\x00"}), "it asks for"),
        (lambda s: s.search(Query("q1", "oil", params={"owner": "east"}), params={"owner": "north"}),
         "question 'q1' has a value for 'owner', and the search gives one too"),
        (lambda s: s.explain("oil", 0), "question 'oil' brings no value for the parameter 'owner'"),
        (lambda s: System(RecursiveChunker(12), Lexical()).build(OWNED, store=False).search(
            "oil", params={"owner": "east"}), "No condition has a Param"),
    ],
)  # fmt: skip
def test_a_question_without_its_value_is_refused(ask, says):
    with pytest.raises(DataError, match=re.escape(says)):
        ask(built("lexical", "none", None))


def test_a_value_is_only_ever_a_value():
    "No text that a question brings can widen what it finds."
    system = built("dense", "none", None)
    for value in ("in query", "$ne", "", "*", "north' OR '1'='1", [], "NORTH"):
        assert not len(system.search(ASK, 8, params={"owner": value}))


def test_indexes_and_boosts_refuse_what_only_a_question_can_say():
    with pytest.raises(ConfigError, match="not known here"):
        Boosts([Boost({"owner": Param("owner")}, 0.5)])
    with pytest.raises(ConfigError, match="the name is ''"):
        Param("")
    with pytest.raises(ConfigError, match="owns"):
        System(RecursiveChunker(12), Lexical(), where={"owns": Param("owner")}).build(OWNED, store=False)


def test_an_explanation_says_the_condition_with_the_value():
    system = built("hybrid", "none", None)
    row = int(system.search(ASK, 1, params={"owner": "east"}).rows[0, 0])
    said = system.explain(ASK, row, params={"owner": "east"})
    assert said.rank == 1 and "{'owner': 'east'}" in str(said)
    other = system.explain(Query("q", ASK, params={"owner": "north"}), row)
    assert other.verdict == "It is not there: it does not meet where={'owner': 'north'}."
    also = system.explain(ASK, row, where={"owner": Param("more")}, params={"owner": "east", "more": "south"})
    assert also.verdict == "It is not there: the filter does not let it through."


def gold_of(owners, **more):
    texts = {d.id: d.text for d in OWNED}
    return Gold.from_spans(
        [{"query_id": f"q{i}", "query": texts[f"d{i}"].split(". ")[1], "params": {"owner": owner, **more},
          "evidence": [{"doc_id": f"d{i}", "start": 0, "end": texts[f"d{i}"].index(".")}]}
         for i, owner in enumerate(owners)]
    )  # fmt: skip


def test_gold_keeps_what_its_questions_bring(tmp_path):
    gold = gold_of(OWNERS * 2, years=[2020, 2021.5], open=True)
    again = Gold.load(gold.save(tmp_path / "gold.jsonl", OWNED), OWNED)
    assert again == gold and again.fingerprint == gold.fingerprint and hash(again) == hash(gold)
    assert again.query_list[1].params == {"owner": "south", "years": [2020, 2021.5], "open": True}
    assert list(again.queries["params"])[1]["owner"] == "south"
    assert gold.fingerprint != gold_of(OWNERS[::-1] * 2, years=[2020, 2021.5], open=True).fingerprint
    bare = [q._replace(params=None) for q in gold.query_list]
    assert dataclasses.replace(gold, query_list=bare).fingerprint != gold.fingerprint
    for params in ({"owner": {"a": 1}}, {"": 1}, "north", {"n": float("nan")}, {"n": ("a",)}):
        with pytest.raises(DataError, match="params"):
            dataclasses.replace(gold, query_list=[Query("q", "?", params=params)], evidence_list=())
        with pytest.raises(DataError, match="'params'"):
            Gold.from_spans([{"query_id": "q", "query": "?", "params": params}])


def test_designs_with_parameters_are_benchmarked_as_they_search(tmp_path):
    gold = gold_of([*OWNERS, *OWNERS[:2], "nobody"])
    parts = {"chunk": RecursiveChunker(12), "retrieve": RETRIEVERS["hybrid"]}
    systems = {
        "all": System(**parts),
        "own": System(**parts, where=OWN),
        "late": System(**parts, where=OWN, overfetch=4),
        "steps": System(**parts, where=OWN, rerank=Backwards(), expand=LINKS),
        "near": System(parts["chunk"], RETRIEVERS["hnsw"], where=OWN),
    }
    options = {"metrics": ["recall@5"], "budgets": [50], "depth": 8, "progress": False}
    results = bench(OWNED, gold, systems, store=tmp_path, rounds=1, timed=3, **options)
    for name in ("own", "late", "steps", "near"):
        ranking = systems[name].build(OWNED, store=False).search(list(gold.query_list), 8)
        assert np.array_equal(results[name].run.rows, ranking.rows)
        assert np.allclose(results[name].run.scores, ranking.scores)
        for one, q in zip(results[name].ranking.by_query(), gold.query_list):
            assert owners_of(one) <= {q.params["owner"]}
            for stage in (*results[name].stages, *results[name].parts):
                if name != "late":
                    of = stage.ranking.by_query()[gold.query_list.index(q)]
                    assert owners_of(of) <= {q.params["owner"]}
    assert set(results.latency_ms) == set(systems)
    again = Results.load(results.save(tmp_path / "results.zip"))
    assert again.gold == gold


def test_the_key_of_a_filtered_search_is_known_and_depends_on_the_values_it_asks_for():
    def keys(where, gold):
        plan = make_plan(OWNED, gold, System(RecursiveChunker(12), Lexical(), where=where), rounds=0)
        return {s.kind: s.key for s in plan.pipelines[0].steps}

    one = keys(OWN, gold_of(OWNERS))
    assert one == keys(OWN, gold_of(OWNERS))
    other = keys(OWN, gold_of(OWNERS[::-1]))
    assert {k for k in one if one[k] != other[k]} == {"params", "where", "filter", "search", "candidates"}
    renamed = keys({"owner": [Param("owner")]}, gold_of(OWNERS))
    assert {k for k in one if one[k] != renamed[k]} == {"where", "filter", "search", "candidates"}
    plain, free = (keys({"owner": "north"}, g) for g in (gold_of(OWNERS), gold_of(OWNERS[::-1])))
    assert plain == free and "params" not in plain
    with pytest.raises(DataError, match="question 'q0' brings the unknown parameter 'year'"):
        keys(OWN, gold_of(OWNERS, year=3))
    with pytest.raises(DataError, match="question 'q0' brings no value for the parameter 'mine'"):
        keys({"owner": Param("mine")}, gold_of(OWNERS))


def test_what_a_question_brings_for_other_systems_leaves_the_key_of_its_search():
    def keys(**more):
        asked = [{"owner": "north"} | more]
        steps = pipeline(
            System(RecursiveChunker(12), Lexical(), where=OWN), OWNED, ["pump"], params=asked
        ).steps
        return [step.key for step in steps]

    assert keys() == keys(year=3)
    assert keys() != keys(owner="south")
