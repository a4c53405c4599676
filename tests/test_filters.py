"""Filters and thresholds as parts of a system: exact or by fetching more, alike in search and benchmark."""

import numpy as np
import pytest

from ragbench import (
    BM25S,
    FTS5,
    Boost,
    Boosts,
    ConfigError,
    Corpus,
    Dense,
    Document,
    FaissFlat,
    FaissHNSW,
    Hybrid,
    Lexical,
    LSAEmbedder,
    MinMax,
    Neighbours,
    RecursiveChunker,
    System,
    bench,
    load_dataset,
)

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
        (lambda: System(RecursiveChunker(9), Lexical(), where=[1, 2]), "where is 1"),
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
