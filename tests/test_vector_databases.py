"""The same tests for every vector database: PostgreSQL, Chroma and Qdrant, started here, against FAISS Flat
and plain numpy"""

import functools
import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ragbench.base.errors import ConfigError, DataError, MissingExtra, StoreError, VectorSpaceError
from ragbench.core.protocols import VectorDatabase
from ragbench.core.vectors import Space, Vectors
from ragbench.embed.lsa import LSAEmbedder
from ragbench.index.ann_recall import ann_recall
from ragbench.index.chroma_index import ChromaIndex, chroma_client
from ragbench.index.conditions import check_metadata, matching
from ragbench.index.database_index import WithMetadata
from ragbench.index.faiss_flat import FaissFlat
from ragbench.index.pgserver import private_database, stop_private
from ragbench.index.pgvector_index import PgVectorIndex
from ragbench.index.qdrant_index import QdrantIndex
from ragbench.store.fingerprint import fingerprint, hash64, installed
from ragbench.system.build_context import search_fair
from ragbench.system.retrievers import Dense
from ragbench.testing.qdrant_loopback import QdrantLoopback

N, DIM, K = 300, 16, 7
RNG = np.random.default_rng(20)
X = RNG.normal(size=(N, DIM)).astype(np.float32)
Q = RNG.normal(size=(6, DIM)).astype(np.float32)
META = [
    (
        {
            "owner": ("ann", "bob", "o'\"; DROP TABLE x; --")[i % 3],
            "year": (2000 + i % 30, 2000.5, "2020", True)[i % 4],
            "final": bool(i % 5),
        }
        if i % 7
        else {}
    )
    for i in range(N)
]

MAKERS = {
    "faiss": lambda **s: WithMetadata(FaissFlat(s.pop("metric", "cosine")), **s),
    "pg-exact": lambda **s: PgVectorIndex(index=None, **s),
    "pg-hnsw": lambda **s: PgVectorIndex(**s),
    "pg-ivfflat": lambda **s: PgVectorIndex(index="ivfflat", nlist=6, nprobe=6, **s),
    "chroma": lambda **s: ChromaIndex(**s),
    "qdrant-memory": lambda **s: QdrantIndex(":memory:", **s),
    "qdrant-edge": lambda **s: QdrantIndex(**s),
    "qdrant-url": lambda **s: QdrantIndex(loopback().url, api_key="secret", **s),
}
EXACT = ("faiss", "pg-exact", "qdrant-memory")


@functools.cache
def loopback():
    return QdrantLoopback("secret").__enter__()


@pytest.fixture(scope="module", autouse=True)
def server():
    yield
    stop_private()
    if loopback.cache_info().currsize:
        loopback().__exit__()


@pytest.fixture(params=MAKERS)
def make(request):
    made = []

    def build(vectors=X, metadata=META, **settings):
        made.append(MAKERS[request.param](**settings).build(vectors, metadata))
        return made[-1]

    build.exact = request.param in EXACT
    yield build
    for m in made:
        m.close()


@pytest.fixture(scope="module", params=MAKERS)
def shared(request):
    "One built database for the tests that change nothing."
    with MAKERS[request.param]().build(X, META) as db:
        yield db


def scores_of(metric, queries=Q, x=X):
    def unit(a):
        return np.divide(
            a, (n := np.linalg.norm(a, axis=1, keepdims=True)), out=np.zeros_like(a), where=n > 0
        )

    if metric == "l2":
        return -((queries[:, None] - x[None]) ** 2).sum(axis=2)
    return unit(queries) @ unit(x).T if metric == "cosine" else queries @ x.T


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
def test_answers_like_flat(make, metric):
    db = make(metric=metric)
    assert isinstance(db, VectorDatabase) and len(db) == N and db.nbytes > N * DIM
    scores, rows = db.search(Q, K)
    assert (scores.dtype, rows.dtype, rows.shape) == (np.float32, np.int64, (len(Q), K))
    truth = scores_of(metric)
    np.testing.assert_allclose(scores, np.take_along_axis(truth, rows, 1), rtol=1e-4, atol=1e-4)
    assert (np.diff(scores, axis=1) <= 0).all()
    recall = ann_recall(db, FaissFlat(metric).build(X), Q, K)
    assert recall.mean == 1 if make.exact else recall.mean > 0.9
    scores, rows = db.search(Q, N + 5)
    assert (
        (np.sort(rows[:, :N], axis=1) == np.arange(N)).all()
        and (rows[:, N:] == -1).all()
        and np.isneginf(scores[:, N:]).all()
    )


@pytest.mark.parametrize(
    "condition",
    [
        {"owner": "bob"},
        {"owner": ["ann", "bob"]},
        {"owner": META[2]["owner"]},
        {"owner": []},
        {"owner": "nobody"},
        {"nothing": 1},
        {},
        {"final": True},
        {"final": [True, False]},
        {"final": 1},
        {"year": 2000.5},
        {"year": [2004, 2004.0, "2020"]},
        {"year": True},
        {"year": {"$gte": 2010}},
        {"year": {"$gt": 2004, "$lte": 2020}},
        {"year": {"$lt": 0}},
        {"owner": "ann", "year": {"$gte": 2000}, "final": True},
    ],
    ids=str,
)
def test_conditions_mean_the_same(shared, condition):
    allowed = matching(check_metadata(META, N), condition)
    for k in (3, N):
        scores, rows = shared.search(Q, k, where=condition)
        assert ((rows >= 0).sum(axis=1) == min(k, allowed.sum())).all()
        assert allowed[rows[rows >= 0]].all()
    assert all(len(set(r[r >= 0])) == allowed.sum() for r in rows)


def test_rows_and_masks(shared):
    mask = np.arange(N) % 11 == 0
    by_mask, by_rows = shared.search(Q, 9, where=mask), shared.search(Q, 9, where=np.flatnonzero(mask))
    best = np.argsort(-np.where(mask, scores_of("cosine"), -np.inf), axis=1)[:, :9]
    for _, rows in (by_mask, by_rows):
        assert np.mean([len(set(a) & set(b)) / 9 for a, b in zip(rows, best)]) > 0.9 and mask[rows].all()
    assert (shared.search(Q, 2, where=[])[1] == -1).all()
    for bad in ([N], [-1], mask[:-1], [0.5]):
        with pytest.raises(DataError):
            shared.search(Q, 2, where=bad)
    with pytest.raises(ConfigError, match="language of conditions"):
        shared.search(Q, 2, where={"owner": {"$in": "ann"}})


def test_spaces_never_mix(make):
    space = Space("a-model", "1", DIM, False)
    db = make(Vectors(X, space))
    for other in (Space("another", "1", DIM, False), Space("a-model", "2", DIM, False)):
        with pytest.raises(VectorSpaceError):
            db.search(Vectors(Q, other), 1)
        with pytest.raises(VectorSpaceError):
            db.add(Vectors(Q, other))
    with pytest.raises(VectorSpaceError):
        db.search(Q[:, :-1], 1)
    with pytest.raises(DataError):
        make(metadata=META[:-1])
    with pytest.raises(DataError):
        make(np.empty((0, DIM)), [])


def test_grows_shrinks_and_keeps_its_numbers(make):
    db = make(X[:100], META[:100])
    assert db.add(X[100:103], META[100:103]).tolist() == [100, 101, 102]
    assert db.search(X[101:102], 1)[1].item() == 101
    assert db.delete([5, 101, 102, 102]) == 3 and db.delete([5]) == 0 and len(db) == 100
    assert db.add(X[110:111]).tolist() == [103]  # numbers are not used twice
    assert not {5, 101, 102} & set(db.search(X[[5, 101]], 150)[1].ravel().tolist())
    assert set(db.search(X[:1], 150, where=np.arange(104) < 7)[1].ravel().tolist()) == {-1, 0, 1, 2, 3, 4, 6}
    for _ in range(2):
        assert db.add(-X[7:9], [{"owner": "eve"}, {}], rows=[7, 5]).tolist() == [
            7,
            5,
        ]  # once in place, once where one had gone
    assert len(db) == 102 and db.search(-X[[7, 8]], 1)[1].ravel().tolist() == [7, 5]
    assert db.search(Q[:1], 3, where={"owner": "eve"})[1].tolist() == [[7, -1, -1]]
    allowed = matching(check_metadata(META, N), {"owner": "bob"})[:100] & (np.arange(100) != 7)
    assert 7 not in db.search(Q[:1], 100, where={"owner": "bob"})[1] and allowed[1]
    for rows in ([104], [-1], [1, 1]):
        with pytest.raises(DataError):
            db.add(X[: len(rows)], rows=rows)
    with pytest.raises(DataError):
        db.delete([104])


def test_zeros_are_kept(make):
    x = X[:50].copy()
    x[9] = 0
    scores, rows = make(x, None).search(Q, 50)
    assert (np.sort(rows, axis=1) == np.arange(50)).all() and np.allclose(scores[rows == 9], 0, atol=1e-6)


def test_min_score(make):
    cut = float(np.sort(scores_of("cosine")[0])[-5]) - 1e-4
    rows = make(min_score=cut).search(Q[:1], 50)[1]
    assert (rows >= 0).sum() == 5


def test_ties_favour_nobody(make):
    if not make.exact:
        pytest.skip("law 4 is of exact search")
    x = np.repeat(X[:20], 6, axis=0)
    texts = [f"passage {i // 6}" if i % 6 < 4 else f"passage {i}" for i in range(120)]
    order = np.random.default_rng(3).permutation(120)
    asked = [f"question {i}" for i in range(len(Q))]
    a = search_fair(make(x, None), Vectors(Q, Space(normalized=False)), asked, hash64(texts), 8)
    b = search_fair(
        make(x[order], None), Vectors(Q, Space(normalized=False)), asked, hash64([texts[i] for i in order]), 8
    )
    f = search_fair(FaissFlat().build(x), Vectors(Q, Space(normalized=False)), asked, hash64(texts), 8)

    def said(rows, t):
        return [[t[i] for i in r] for r in rows]

    assert said(a[1], texts) == said(b[1], [texts[i] for i in order]) == said(f[1], texts)


def test_closed_and_untuned(make):
    db = make()
    with pytest.raises(ConfigError, match="no query argument"):
        db.tuned(nonsense=3)
    db.close()
    db.close()


VERSIONS = (X[:40], X[100:150])  # what a name means in turn: other vectors, and another number of them
SPACES = [Space(m, "1", DIM, False) for m in ("model-a", "model-b")]


@pytest.fixture(params=["pg", "chroma", "qdrant-url", "qdrant-edge"])
def named(request, tmp_path):
    "An index whose collection has a name, so that it can be opened again."
    if request.param == "pg":
        yield PgVectorIndex(private_database(), table='passages "of" 2024')
    elif request.param == "chroma":
        yield ChromaIndex(tmp_path, "passages")
    elif request.param == "qdrant-edge":
        yield QdrantIndex(path=tmp_path, collection="passages")
    else:
        with QdrantLoopback() as server:
            yield QdrantIndex(server.url, "passages")


def whole(scores, rows):
    "Which of `VERSIONS` an answer to (Q, k=60) is, all of it; raises for none, and for one made of two."
    n = int((rows[0] >= 0).sum())
    version = [len(v) for v in VERSIONS].index(n)
    for s, r, truth in zip(scores, rows, scores_of("cosine", x=VERSIONS[version])):
        assert sorted(r[:n].tolist()) == list(range(n)) and (r[n:] == -1).all()
        np.testing.assert_allclose(s[:n], truth[r[:n]], atol=1e-4)
    return version


def replaced_while_read(index, rounds=10):
    """Which versions were seen by a searcher that is held open and by one that is opened each time, while the
    collection is rebuilt; and their errors."""
    index.build(VERSIONS[0]).close()
    seen, errors, stop, held = [], [], threading.Event(), index.open()

    def read(look):
        while not stop.is_set():
            try:
                seen.append(whole(*look()))
            except Exception as e:
                errors.append(e)

    def again():
        with index.open() as db:
            return db.search(Q, 60)

    readers = [threading.Thread(target=read, args=(look,)) for look in (lambda: held.search(Q, 60), again)]
    for r in readers:
        r.start()
    for i in range(rounds):
        index.build(VERSIONS[(i + 1) % 2]).close()
    stop.set()
    for r in readers:
        r.join()
    assert whole(*held.search(Q, 60)) == rounds % 2  # an open searcher follows at its next search
    held.close()
    return seen, errors


@pytest.mark.parametrize("kind", ["pg", "chroma"])
def test_replaced_without_absence_or_mixture(kind, tmp_path):
    seen, errors = replaced_while_read(
        PgVectorIndex(private_database(), table='passages "of" 2024')
        if kind == "pg"
        else ChromaIndex(tmp_path, "passages")
    )
    assert not errors and set(seen) == {0, 1}


READER = """if True:
    import sys, pathlib, collections, numpy as np
    from ragbench.index.chroma_index import ChromaIndex
    from ragbench.index.pgvector_index import PgVectorIndex
    kind, place, folder = sys.argv[1:]
    folder, seen = pathlib.Path(folder), collections.Counter()
    q = np.load(folder / "q.npy")
    with (ChromaIndex(place, "passages") if kind == "chroma" else PgVectorIndex(place, table="passages")).open() as db:
        while not (folder / "stop").exists():
            scores, rows = db.search(q, 60)
            seen[" ".join(map(str, sorted({(int((r >= 0).sum()), round(float(s[0]), 3)) for s, r in zip(scores, rows)})))] += 1
            (folder / "started").touch()
    print(*seen, sep="\\n")
"""  # noqa: E501


@pytest.mark.parametrize("kind", ["pg", "chroma"])
def test_a_reader_in_another_process_sees_one_or_the_other(kind, tmp_path):
    place = str(tmp_path / "data") if kind == "chroma" else private_database()
    index = ChromaIndex(place, "passages") if kind == "chroma" else PgVectorIndex(place, table="passages")
    index.build(VERSIONS[0]).close()
    np.save(tmp_path / "q.npy", Q[:2])
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, kind, place, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 60
    while not (tmp_path / "started").exists() and reader.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    for i in range(10):
        index.build(VERSIONS[(i + 1) % 2]).close()
    (tmp_path / "stop").touch()
    out, said = reader.communicate(timeout=60)
    assert reader.returncode == 0, said
    whole_ones = {
        " ".join(
            map(str, sorted((len(v), round(float(s), 3)) for s in scores_of("cosine", Q[:2], v).max(axis=1)))
        )
        for v in VERSIONS
    }
    assert set(out.split("\n")) - {""} <= whole_ones and len(out)


def test_a_name_rebuilt_by_another_model_is_noticed(named):
    "Law 6, for a searcher that was open before: the old model's queries never meet the new model's vectors."
    named.build(Vectors(X[:40], SPACES[0])).close()
    with named.open() as held:
        found = held.search(Vectors(Q, SPACES[0]), 3)[1]
        named.build(Vectors(-X[:40], SPACES[1])).close()
        for ask in (
            lambda: held.search(Vectors(Q, SPACES[0]), 3),
            lambda: held.search(Vectors(Q, SPACES[0]), 3, where=[1, 2]),
            lambda: held.add(Vectors(X[:1], SPACES[0])),
            lambda: held.delete([1]),
        ):
            with pytest.raises(VectorSpaceError, match="model differ.*model-b.*model-a"):
                ask()
        with named.open() as db:
            assert len(db) == 40 and db.space == SPACES[1]  # nothing was added, nothing deleted
        named.build(Vectors(X[:40], SPACES[0])).close()
        np.testing.assert_array_equal(held.search(Vectors(Q, SPACES[0]), 3)[1], found)  # its own again


def test_another_metric_is_noticed_too(named):
    named.build(X[:40]).close()
    with named.open() as held:
        replace(named, metric="l2").build(X[:40]).close()
        with pytest.raises(ConfigError, match="metric='l2'"):
            held.search(Q, 3)


@pytest.mark.parametrize("kind", ["chroma", "qdrant-edge"])
def test_a_builder_killed_between_any_two_steps_leaves_the_old_or_the_new(kind, tmp_path, monkeypatch):
    from ragbench.index import chroma_index, qdrant_edge
    from ragbench.index.database_index import Pointer

    module = chroma_index if kind == "chroma" else qdrant_edge
    steps = (
        [("sweep", 1), ("new_collection", 1), ("chroma_fill", 1), ("sweep", 2), ("remove_collection", 1)]
        if kind == "chroma"
        else [("_sweep", 1), ("new_shard", 1), ("upsert", 1), ("_sweep", 2)]
    )
    steps = [(module, *s) for s in steps] + [(Pointer, "write", 1), (module.shutil, "rmtree", 1)]
    index = (ChromaIndex if kind == "chroma" else QdrantIndex)(path=tmp_path, collection="passages")
    index.build(VERSIONS[0]).close()

    class Killed(BaseException):
        pass

    now, left = 0, []
    for owner, name, nth in steps:
        for late in (False, True):
            calls, real = [], getattr(owner, name)

            def step(*args, real=real, calls=calls, nth=nth, late=late, **more):
                calls.append(args)
                if len(calls) != nth:
                    return real(*args, **more)
                if late:
                    real(*args, **more)
                raise Killed

            with monkeypatch.context() as m:
                m.setattr(owner, name, step)
                try:
                    index.build(VERSIONS[1 - now]).close()
                    killed = False
                except Killed:
                    killed = True
            gc.collect()  # the engine's lock goes with the process; here, with the object
            with index.open() as db:
                got = whole(*db.search(Q, 60))
            if killed:
                left.append(got != now)
            assert killed or got != now  # a step that there was not, as there was nothing to remove
            now = got
    assert len(left) >= 8 and {*left} == {False, True}, left  # some before the switch, some after it
    index.build(VERSIONS[0]).close()
    if kind == "chroma":
        client = chroma_client(tmp_path)
        assert len(client.list_collections()) == 1
        client.close()
    else:
        assert len(list((tmp_path / "passages").glob("shard-*"))) == 1
    assert not list(tmp_path.rglob("*.tmp"))


def test_chroma_leaves_no_graph_behind(tmp_path):
    index = ChromaIndex(tmp_path, "passages")
    x = (
        np.random.default_rng(5).normal(size=(1500, DIM)).astype(np.float32)
    )  # more than Chroma keeps in memory
    for _ in range(3):
        index.build(x).close()
    assert len([p for p in tmp_path.iterdir() if p.is_dir()]) == 1


def test_a_collection_of_the_former_layout_opens_and_is_replaced(tmp_path):
    "Before there was a pointer, a collection had the index's own name."
    index = ChromaIndex(tmp_path, "passages")
    index.build(X[:40], META[:40]).close()
    client = chroma_client(tmp_path)
    client.list_collections()[0].modify(name="passages")
    (tmp_path / "passages.ragbench.json").unlink()
    with index.open() as held:
        assert len(held) == 40
        index.build(X[:50]).close()
        assert len(held) == 50
    assert [c.name[:9] for c in client.list_collections()] == ["passages-"]
    client.create_collection("theirs", embedding_function=None)
    client.close()
    with pytest.raises(ConfigError, match="not made by ragbench"):
        ChromaIndex(tmp_path, "theirs").build(X)
    with pytest.raises(ConfigError, match="no name for a collection"):
        ChromaIndex(tmp_path, "../elsewhere")
    (tmp_path / "passages.ragbench.json").write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        index.open()


def test_what_is_added_is_not_lost_to_a_replacement(named):
    "Rows are numbered by the collection that is there now, not by the one that was opened."
    named.build(X[:40]).close()
    if isinstance(named, QdrantIndex) and not named.by_client:
        pytest.skip("a shard in a folder is open once: see the next test")
    with named.open() as held:
        named.build(X[:60]).close()
        assert held.add(X[200:201]).tolist() == [60] and len(held) == 61
        assert held.search(X[[40, 200]], 1)[1].ravel().tolist() == [40, 60]


def test_a_shard_in_a_folder_is_open_once(tmp_path):
    index = QdrantIndex(path=tmp_path, collection="passages")
    with index.build(X[:40]) as held:
        with pytest.raises(StoreError, match="open already"):
            index.open()
        with index.build(X[:60]) as new:
            assert (len(held), len(new)) == (40, 60)
            for change in (lambda: held.add(X[:1]), lambda: held.delete([1])):
                with pytest.raises(StoreError, match="replaced since it was opened"):
                    change()
    with index.open() as db:
        assert len(db) == 60


@pytest.mark.parametrize(
    "index",
    [PgVectorIndex(), ChromaIndex(), QdrantIndex(), WithMetadata(FaissFlat())],
    ids=lambda i: type(i).__name__,
)
def test_results_of_another_release_are_not_taken_from_the_cache(index, monkeypatch):
    before = fingerprint({"retriever": Dense(LSAEmbedder(8), index)})
    assert index.libraries and fingerprint({"retriever": Dense(LSAEmbedder(8), replace(index))}) == before
    for name in index.libraries:
        with monkeypatch.context() as m:
            m.setattr(
                "ragbench.store.fingerprint.installed",
                lambda n, name=name: "9999" if n == name else installed(n),
            )
            assert fingerprint({"retriever": Dense(LSAEmbedder(8), index)}) != before


def test_postgres_settings_stay_local_and_limits_are_said():
    url = private_database()
    with PgVectorIndex(url, ef_search=77).build(X, META) as db:
        db.search(Q, K)
        con = db.backend.con
        assert con.execute(
            "SELECT current_setting('hnsw.ef_search'), current_setting('enable_seqscan')"
        ).fetchone() == ("40", "on")
        assert db.backend.index_bytes > 0
        table = db.backend.table
    import psycopg

    with psycopg.connect(url) as con:
        assert con.execute("SELECT to_regclass(%s)", (table,)).fetchone() == (None,)  # dropped at close
    wide = np.random.default_rng(0).normal(size=(20, 2001)).astype(np.float32)
    with pytest.raises(ConfigError, match="2,000 dimensions"):
        PgVectorIndex(url).build(wide)
    with PgVectorIndex(url, type="halfvec").build(wide) as half:
        assert half.search(wide, 1)[1].ravel().tolist() == list(range(20))
    with PgVectorIndex(url, index=None).build(wide) as exact:
        assert exact.search(wide, 1)[1].ravel().tolist() == list(range(20))
    with psycopg.connect(url) as con:
        con.execute("CREATE TABLE theirs (id int)")
    with pytest.raises(ConfigError, match="not made by ragbench"):
        PgVectorIndex(url, table="theirs").build(X)
    with pytest.raises(StoreError, match="no table of ours"):
        PgVectorIndex(url, table="none").open()


def test_filters_are_full_however_rare():
    "pgvector filters what its index returned; iterative scans, and in the end exact search, fill the answer."
    x = np.random.default_rng(5).normal(size=(3000, DIM)).astype(np.float32)
    meta = [{"rare": i % 500 == 0} for i in range(3000)]
    for index in (PgVectorIndex(ef_search=10), PgVectorIndex(index="ivfflat", nlist=50, nprobe=1)):
        with index.build(x, meta) as db:
            assert (np.sort(db.search(Q, 6, where={"rare": True})[1], axis=1) == np.arange(6) * 500).all()


def test_qdrant_graph_and_replacement(tmp_path):
    x = np.random.default_rng(5).normal(size=(2000, DIM)).astype(np.float32)
    with QdrantIndex(full_scan_threshold=0).build(x) as db:
        assert db.backend.indexed == 2000
        assert ann_recall(db, FaissFlat().build(x), Q, K).mean > 0.9
    index = QdrantIndex(path=tmp_path, collection="passages")
    with index.build(X[:40], META[:40]) as before, index.build(X[:50]):
        assert len(before) == 40 and (before.search(Q, 60)[1] >= 0).sum() == 40 * len(
            Q
        )  # an open reader goes on
    with index.open() as after:
        assert len(after) == 50


def test_a_qdrant_server_is_told_what_the_index_says():
    with QdrantLoopback("secret", busy=2) as server:
        index = QdrantIndex(
            server.url,
            "passages",
            m=24,
            ef_construction=77,
            ef_search=55,
            full_scan_threshold=0,
            api_key="secret",
        )
        assert "secret" not in repr(index)
        space = Space("a-model", "1", DIM, False)
        with index.build(Vectors(X, space), META) as db:
            (asked,) = server.made("PUT", "/collections/passages-[0-9a-f]+")
            assert (asked["hnsw_config"]["m"], asked["hnsw_config"]["ef_construct"], asked["vectors"]) == (
                24,
                77,
                {"size": DIM, "distance": "Dot"},
            )
            assert [*server.indexed.values()] == [
                {"owner": "keyword", "final": "bool"}
            ]  # a field of mixed kinds has no index
            first = next(i for i, c in enumerate(server.calls) if c[1].endswith("/points"))
            assert not [
                c for c in server.calls[first:] if c[1].endswith("/index")
            ]  # indexed before it is filled
            shown = next(i for i, c in enumerate(server.calls) if c[1] == "/collections/aliases")
            assert [c[0] for c in server.calls[first + 1 : shown]].count(
                "GET"
            ) >= 3  # yellow, yellow, green, and only then shown
            assert server.busy < 0
            db.search(Q, K, where={"owner": "bob"})
            assert all(
                s["params"] == {"hnsw_ef": 55, "exact": False}
                for s in server.made("POST", "/collections/passages-[0-9a-f]+/points/query/batch")[0][
                    "searches"
                ]
            )
            assert db.add(X[:1]).tolist() == [N]
        with index.open() as again:
            assert (len(again), again.space, again.backend.next_row) == (N + 1, space, N + 1)
        with pytest.raises(ConfigError, match="metric='cosine'"):
            QdrantIndex(server.url, "passages", metric="l2", api_key="secret").open()
        with pytest.raises(StoreError, match="no collection 'others'"):
            QdrantIndex(server.url, "others", api_key="secret").open()
        with pytest.raises(StoreError, match="API key") as e:
            QdrantIndex(server.url, api_key="wrong").build(X)
        assert "wrong" not in str(e.value)


def test_a_qdrant_server_replaces_without_absence():
    with QdrantLoopback() as server:
        index = QdrantIndex(server.url, "passages")
        seen, errors = replaced_while_read(index)
        assert not errors and set(seen) == {0, 1}
        assert len(server.local.get_collections().collections) == 1  # the ones before are gone
        steps = server.made("POST", "/collections/aliases")
        assert [len(s["actions"]) for s in steps] == [1] + [2] * 10  # delete and create in one call
        server.local.create_collection("theirs", vectors_config={})
        with pytest.raises(ConfigError, match="is a collection, not an alias"):
            QdrantIndex(server.url, "theirs").build(X)
        assert {c.name for c in server.local.get_collections().collections} - {"theirs"} == {
            server.local.get_aliases().aliases[0].collection_name
        }


def test_what_fails_on_a_qdrant_server_leaves_the_old_one():
    with QdrantLoopback() as server:
        index = QdrantIndex(server.url, "passages")
        index.build(X[:40]).close()
        server.broken = "/collections/[^/]+/points"
        with pytest.raises(StoreError, match="Service internal error"):
            index.build(X[:50])
        server.broken = None
        assert len(server.local.get_collections().collections) == 1
        with index.open() as db:
            assert len(db) == 40


def test_what_a_killed_builder_left_on_a_qdrant_server_goes(monkeypatch):
    from ragbench.index import qdrant_index

    with QdrantLoopback() as server:
        index = QdrantIndex(server.url, "passages")
        monkeypatch.setattr(qdrant_index, "switch_alias", lambda *_: None)  # a builder that gets no further
        index.build(X[:40]).close()
        monkeypatch.undo()

        def count():
            return len(server.local.get_collections().collections)

        index.build(X[:50]).close()
        assert count() == 2  # it may still be at work
        monkeypatch.setattr(qdrant_index, "KILLED_AFTER", -1)
        index.build(X[:50]).close()
        assert count() == 1


@pytest.mark.parametrize(
    ("module", "index", "extra"),
    [
        ("psycopg", PgVectorIndex(), "pgvector"),
        ("chromadb", ChromaIndex(), "chroma"),
        ("qdrant_client", QdrantIndex(":memory:"), "qdrant"),
        ("qdrant_edge", QdrantIndex(), "qdrant"),
    ],
)
def test_missing_extras_are_named(monkeypatch, module, index, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"ragbench\[{extra}\]"):
        index.build(X)


def test_nothing_is_left_behind(tmp_path):
    code = """if True:
        import numpy as np, tempfile
        from ragbench.index.pgvector_index import PgVectorIndex
        from ragbench.index.qdrant_index import QdrantIndex
        from ragbench.index.pgserver import private_server
        x = np.eye(8)
        kept = [i.build(x) for i in (PgVectorIndex(), QdrantIndex())]      # never closed
        assert all(k.search(x, 1)[1].ravel().tolist() == list(range(8)) for k in kept)
        print(private_server().get_pid())
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert not [p.name for p in tmp_path.iterdir() if p.name.startswith("ragbench")]
    server, end = Path(f"/proc/{done.stdout.split()[-1]}"), time.monotonic() + 20
    while server.exists() and time.monotonic() < end:
        time.sleep(0.05)  # its exit is not waited for by anyone but us
    assert not server.exists() or "(zombie)" in (server / "status").read_text()


def test_private_folders_go_at_close():
    before = set(Path(tempfile.gettempdir()).glob("ragbench-*"))
    for index in (ChromaIndex(), QdrantIndex()):
        db = index.build(X)
        mine = set(Path(tempfile.gettempdir()).glob("ragbench-*")) - before
        root = db.backend.root if isinstance(index, ChromaIndex) else db.backend.folder
        assert root in mine
        db.close()
        assert not root.exists()


@pytest.mark.parametrize("overfetch", [None, 4])
@pytest.mark.parametrize("kind", ["pg-exact", "pg-hnsw", "chroma", "qdrant-memory", "qdrant-edge", "faiss"])
def test_what_a_question_brings_means_the_same_in_every_database(kind, overfetch):
    from ragbench import Corpus, Dense, Document, FaissFlat, LSAEmbedder, Param, Query, System, WholeDocument

    words = "pump tank valve level oil steam gauge filter".split()
    texts = [" ".join(np.random.default_rng(i).choice(words, 6)) for i in range(24)]
    owners = ["north", "south", "east"]
    corpus = Corpus([Document(f"d{i}", t, metadata={"owner": owners[i % 3]}) for i, t in enumerate(texts)])
    queries = [Query(f"q{i}", words[i], params={"owner": owners[i % 3]}) for i in range(6)]
    parts = {"where": {"owner": Param("owner")}, "overfetch": overfetch}
    exact = System(WholeDocument(), Dense(LSAEmbedder(5)), **parts).build(corpus, store=False)
    index = FaissFlat() if kind == "faiss" else MAKERS[kind]()
    built = System(WholeDocument(), Dense(LSAEmbedder(5), index), **parts).build(corpus, store=False)
    try:
        for ranking, wanted, q in zip(
            built.search(queries, 4).by_query(), exact.search(queries, 4).by_query(), queries
        ):
            assert {corpus[hit.doc_id].metadata["owner"] for hit in ranking} == {q.params["owner"]}
            if overfetch is None:
                assert [hit.doc_id for hit in ranking] == [hit.doc_id for hit in wanted]
                assert np.allclose(ranking.scores, wanted.scores, atol=1e-5)
    finally:
        for searcher in built.ranker.built:
            getattr(searcher, "close", lambda: None)()
