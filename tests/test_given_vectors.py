"""Vectors of documents that were computed elsewhere, benched as BEIR and MTEB rank: whole documents, by
id."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbench import (
    BM25S,
    Corpus,
    Dense,
    Document,
    GivenVectors,
    Gold,
    Hybrid,
    Lexical,
    LSAEmbedder,
    RagbenchError,
    System,
    TokenChunker,
    WholeDocument,
    bench,
    load_beir,
)
from ragbench.base.errors import DataError
from ragbench.store.fingerprint import fingerprint

DOCS = {
    f"d{i}": (
        f"Title {i % 5}" if i % 2 else "",
        f"The {thing} of unit {i} is {state}. Check the {part} every {i} days.",
    )
    for i, (thing, state, part) in enumerate(
        [
            ("pump", "running", "oil"),
            ("valve", "open", "seat"),
            ("tank", "full", "gauge"),
            ("flare", "lit", "pilot"),
            ("motor", "hot", "bearing"),
            ("filter", "dirty", "mesh"),
            ("boiler", "cold", "burner"),
            ("drum", "empty", "drain"),
        ]
    )
}
QUERIES = {
    "q1": ("Which pump runs on oil?", "d0"),
    "q2": ("Is the valve open at its seat?", "d1"),
    "q3": ("Why is the motor hot at the bearing?", "d4"),
    "q4": ("Is the flare pilot lit?", "d3"),
}


@pytest.fixture
def beir(tmp_path):
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(
        "\n".join(json.dumps({"_id": i, "title": t, "text": x}) for i, (t, x) in DOCS.items())
    )
    (folder / "queries.jsonl").write_text(
        "\n".join(json.dumps({"_id": i, "text": t}) for i, (t, _) in QUERIES.items())
    )
    (folder / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "\n".join(f"{q}\t{d}\t1" for q, (_, d) in QUERIES.items())
    )
    return load_beir(folder)


def test_given_vectors_are_benched_like_the_embedder_that_made_them(beir, tmp_path):
    corpus, gold = beir
    lsa = LSAEmbedder(5).fit(corpus)
    order = np.random.default_rng(0).permutation(len(corpus))
    ids = [corpus[int(i)].id for i in order]  # rows in an order of their own, and lengths other than 1
    passages = lsa.embed_passages([corpus[int(i)].text for i in order]).array * 7
    queries = lsa.embed_queries([q.text for q in gold.query_list]).array * 3
    theirs = GivenVectors.by_id(
        corpus,
        gold,
        [*ids, "not in the corpus"],
        [*passages, passages[0]],
        [q.query_id for q in gold.query_list],
        queries,
        model="LSA, elsewhere",
    )
    systems = [System(WholeDocument(), Dense(e)) for e in (lsa, theirs)] + [
        System(WholeDocument(), Hybrid(Dense(theirs), Lexical(BM25S())))
    ]
    results = bench(corpus, gold, systems, metrics=["recall@1", "ndcg@10"], store=tmp_path / "store")
    table = results.quality()
    assert [s.name for s in results.systems][1:] == [
        "WholeDocument · LSA, elsewhere",
        "WholeDocument · LSA, elsewhere+BM25S RRF",
    ]
    np.testing.assert_allclose(results.systems[0].run.scores, results.systems[1].run.scores, atol=1e-5)
    assert (results.systems[0].run.rows == results.systems[1].run.rows).all() and len(table)
    assert results.systems[1].facts["chunks"] == len(corpus)


def test_a_chunker_that_cuts_or_a_header_is_told_apart_from_what_was_given(beir):
    corpus, gold = beir

    def ones(ids):
        return np.eye(len(ids), 9) + 0.1

    e = GivenVectors.by_id(corpus, gold, list(DOCS), ones(DOCS), list(QUERIES), ones(QUERIES))
    System(WholeDocument(), Dense(e)).build(corpus)
    with pytest.raises(DataError, match=r"no vector was given for .* WholeDocument\(\)"):
        System(TokenChunker(4), Dense(e)).build(corpus)
    with pytest.raises(DataError, match="without a header"):
        System(WholeDocument(), Dense(e, header="title")).build(corpus)
    with pytest.raises(DataError, match="no vector was given for 1 of 1 queries"):
        System(WholeDocument(), Dense(e)).build(corpus).search(["another question"])


def test_one_text_with_two_vectors_is_refused():
    corpus = Corpus([Document("a", "The same."), Document("b", "The same.")])
    gold = Gold.from_spans(
        [{"query_id": "q", "query": "which?", "evidence": [{"doc_id": "a", "start": 0, "end": 9}]}]
    )
    with pytest.raises(DataError, match="another vector"):
        GivenVectors.by_id(corpus, gold, ["a", "b"], [[1, 0], [0, 1]], ["q"], [[1, 0]])
    assert GivenVectors.by_id(corpus, gold, ["a", "b"], [[1, 0], [1, 1e-6]], ["q"], [[1, 0]]).embed_passages(
        ["The same."]
    ).array.tolist() == [[1, 0]]


@given(st.permutations(["a", "b", "c"]), st.floats(0.1, 9))
def test_order_and_length_do_not_matter_to_cosine(order, scale):
    vectors = {"a": [1.0, 2], "b": [0, 1], "c": [3, 3]}
    e, f = (
        GivenVectors({t: v[t] for t in o}, {"q": [1, 1]}) for o, v in ((vectors, vectors), (order, vectors))
    )
    assert e == f and fingerprint(e) == fingerprint(f)
    scaled = GivenVectors({t: np.array(v) * scale for t, v in vectors.items()}, {"q": [1, 1]})
    np.testing.assert_allclose(
        scaled.embed_passages(["a", "c"]).array, e.embed_passages(["a", "c"]).array, atol=1e-6
    )


WRONG = [
    None,
    "x",
    3,
    [],
    ["x"],
    {"a": None},
    {"a": "x"},
    {"a": [[1]]},
    {3: [1.0]},
    {"a": []},
    {"a": [1, 2], "b": [1]},
    {"a": [float("nan")]},
    object(),
]


@settings(deadline=None)
@given(st.sampled_from(WRONG), st.sampled_from([{"q": [1.0]}, *WRONG]))
def test_wrong_tables_are_refused_by_errors_of_ours(passages, queries):
    with pytest.raises(RagbenchError):
        GivenVectors(passages, queries)


@pytest.mark.parametrize("bad", [None, "x", 3, [None], [["a"]]], ids=repr)
def test_wrong_arrays_are_refused_by_errors_of_ours(beir, bad):
    corpus, gold = beir
    n, good = len(DOCS), (list(QUERIES), np.ones((len(QUERIES), 2)))
    with pytest.raises(RagbenchError):
        GivenVectors.by_id(corpus, gold, list(DOCS), bad, *good)
    with pytest.raises(RagbenchError):
        GivenVectors.by_id(corpus, gold, bad, np.ones((n, 2)), *good)
    with pytest.raises(RagbenchError):
        GivenVectors.by_id(bad, gold, list(DOCS), np.ones((n, 2)), *good)
    with pytest.raises(RagbenchError):
        GivenVectors({"a": [1.0]}, {"b": [1.0]}, model=bad if not isinstance(bad, str) else "")


def test_lsa_on_small_corpora_gives_advice_that_works():
    for n in range(1, 7):
        corpus = Corpus(
            [Document("d", "\n\n".join(f"paragraph number{i} about thing{i * 7} here" for i in range(n)))]
        )
        with pytest.raises(RagbenchError) as e:
            LSAEmbedder(50).fit(corpus)
        if n == 1:
            assert "at least two paragraphs" in str(e.value)
        else:
            assert (
                eval(str(e.value).rpartition("such as ")[2], {"LSAEmbedder": LSAEmbedder})
                .fit(corpus)
                .embed_passages(["thing7"])
                .array.shape[0]
                == 1
            )
