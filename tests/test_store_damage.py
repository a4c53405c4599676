"""A damaged store costs time, never a number: whatever happens to its files, the table is the same, byte for
byte."""

import contextlib
import json
import random
import shutil
import sqlite3
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import ragbench as rb
from ragbench.base.errors import RagbenchError, StoreError
from ragbench.embed.lsa import LSAEmbedder
from ragbench.embed.vector_cache import EmbeddingCache, embed_cached, verify_cache
from ragbench.store.artifacts import DamagedArtifact, Packed, Store, clear, in_use, usage, verify

SEED = 20260301
E = LSAEmbedder(16)
SYSTEMS = rb.grid(
    rb.System(
        rb.TokenChunker(120),
        [
            rb.Dense(E),
            rb.Lexical(rb.FTS5()),
            rb.Hybrid(rb.Dense(E), rb.Lexical(rb.FTS5()), fuse=[rb.RRF(60), rb.MinMax(dense=0.5)]),
        ],
    )
)
OPTIONS = {
    "metrics": ["recall@5", "mrr"],
    "budgets": [200],
    "curve": [200, 400],
    "rounds": 0,
    "progress": False,
}


@pytest.fixture(scope="module")
def data():
    return rb.load_dataset("coaching")


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    table = rb.bench(*data, SYSTEMS, store=folder, **OPTIONS).quality_csv()
    return folder, table


def everything(results) -> list:
    """All that a report shows: scores, curves, rankings, facts."""
    return [
        (
            s.name,
            {k: v.tolist() for k, v in s.scores.items()},
            s.curve.tolist(),
            s.run.rows.tolist(),
            s.run.scores.tolist(),
            s.chunks.start.tolist(),
            s.facts,
        )
        for s in results.systems
    ]


def hurt(path: Path, rng: random.Random) -> str:
    """Do something to a file or to the folder that it is in."""
    what = rng.choice(
        [
            "flip",
            "flip",
            "flip",
            "cut",
            "empty",
            "delete",
            "garbage",
            "folder gone",
            "file for folder",
            "leftover",
            "swap",
        ]
    )
    data = bytearray(path.read_bytes())
    if what == "flip" and data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    elif what == "cut":
        path.write_bytes(data[: rng.randrange(len(data) or 1)])
    elif what == "empty":
        path.write_bytes(b"")
    elif what == "delete":
        path.unlink()
    elif what == "garbage":
        path.write_bytes(rng.randbytes(len(data)))
    elif path.suffix == ".sqlite":
        path.write_bytes(data[:4096])
    elif what == "folder gone":
        shutil.rmtree(path.parent)
    elif what == "file for folder":
        shutil.rmtree(path.parent)
        path.parent.write_text("a file")
    elif what == "leftover":
        shutil.rmtree(path.parent)
        path.parent.mkdir()
        (path.parent / "something").write_text("left")
    elif what == "swap":  # the artifact of another key, whole
        other = rng.choice([p for p in path.parent.parent.iterdir() if p.is_dir()])
        if other != path.parent:
            shutil.rmtree(path.parent)
            shutil.copytree(other, path.parent)
    return what


def test_a_damaged_store_gives_the_same_table(data, finished, tmp_path):
    rng, (folder, table) = random.Random(SEED), finished
    want = everything(rb.bench(*data, SYSTEMS, store=folder, **OPTIONS))
    for attempt in range(60):
        here = tmp_path / f"{attempt}"
        shutil.copytree(folder, here)
        files = sorted(
            p for p in here.glob("*/*/*") if p.is_file() and p.parent.parent.name != "locks"
        ) + sorted(here.glob("embeddings/*.sqlite"))
        path = rng.choice(files)
        what = hurt(path, rng)
        where = f"seed {SEED}, attempt {attempt}: {what} {path.relative_to(here)}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DamagedArtifact)
            results = rb.bench(*data, SYSTEMS, store=here, **OPTIONS)
        assert results.quality_csv() == table, where
        assert everything(results) == want, where
        shutil.rmtree(here)


def test_damage_is_said_with_its_place_and_mended(data, finished, tmp_path):
    folder, table = finished
    here = tmp_path / "store"
    shutil.copytree(folder, here)
    path = next(here.glob("search/*/scores.npz"))
    data_ = bytearray(path.read_bytes())
    data_[len(data_) // 2] ^= 1
    path.write_bytes(data_)
    assert [v.split(": ")[1] for v in verify(Store(here))] == ["the checksum of scores.npz differs"]
    with pytest.warns(
        DamagedArtifact, match=f"{path.parent}: the checksum of scores.npz differs; it is made again"
    ):
        assert rb.bench(*data, SYSTEMS, store=here, **OPTIONS).quality_csv() == table
    assert verify(Store(here)) == []


@pytest.mark.parametrize("kind", ["search", "chunk"])
def test_a_file_in_the_place_of_a_kind(data, finished, tmp_path, kind):
    folder, table = finished
    here = tmp_path / "store"
    shutil.copytree(folder, here)
    shutil.rmtree(here / kind)
    (here / kind).write_text("a file")
    assert rb.bench(*data, SYSTEMS, store=here, **OPTIONS).quality_csv() == table


def test_packed_arrays_are_small_and_the_same(finished):
    folder, _ = finished
    plain = packed = 0
    for path in folder.glob("search/*"):
        a = Store(folder).get("search", path.name)
        rows, scores = a.array("rows"), a.array("scores")
        assert rows.dtype == np.int64 and scores.dtype == np.float64
        plain += rows.nbytes + scores.nbytes
        packed += sum(f["bytes"] for n, f in a.manifest["files"].items() if n.endswith(".npz"))
    assert packed < plain / 2


# --- the cache of embeddings --------------------------------------------------------------------------------


class Counting:
    fingerprint = "toy"

    def __init__(self):
        self.n = 0
        self.space = rb.Vectors(np.eye(8, dtype=np.float32)).space

    def embed_passages(self, texts):
        self.n += len(texts)
        x = np.array(
            [np.random.default_rng(len(t) * 7 + ord(t[0])).normal(size=8) for t in texts], np.float32
        )
        return rb.Vectors(x / np.linalg.norm(x, axis=1, keepdims=True), self.space)


def test_a_damaged_cache_gives_the_same_vectors_and_keeps_the_others(tmp_path):
    rng = random.Random(SEED)
    texts = [chr(65 + i % 26) * (i + 1) for i in range(400)]
    base = EmbeddingCache(tmp_path / "base")
    want = embed_cached(Counting(), texts, "passage", base).array
    whole = base.path("toy").read_bytes()
    for attempt in range(60):
        cache, e, data = EmbeddingCache(tmp_path / f"{attempt}"), Counting(), bytearray(whole)
        cache.folder.mkdir()
        kind = rng.choice(["flip", "flip", "block", "cut", "empty"])
        at = rng.randrange(len(data))
        if kind == "flip":
            data[at] ^= 1 << rng.randrange(8)
        elif kind == "block":
            data[at : at + 512] = rng.randbytes(len(data[at : at + 512]))
        elif kind == "cut":
            del data[at:]
        else:
            data.clear()
        cache.path("toy").write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DamagedArtifact)
            try:
                got = embed_cached(e, texts, "passage", cache).array
            except StoreError:
                got = embed_cached(
                    e, texts, "passage", cache
                ).array  # what the first look did not see is mended before the second
        assert np.array_equal(got, want), f"seed {SEED}, attempt {attempt}: {kind} at {at}"
        assert e.n <= len(texts)


def test_vectors_of_an_older_file_are_kept(tmp_path):
    import sqlite3
    import zlib

    from ragbench.store.fingerprint import text_hash

    cache, e = EmbeddingCache(tmp_path), Counting()
    vector = np.arange(8, dtype=np.float32)
    con = sqlite3.connect(cache.path("toy"))
    con.execute(
        "CREATE TABLE embeddings (role TEXT, text_hash TEXT, vector BLOB NOT NULL, crc INTEGER NOT NULL,"
        " PRIMARY KEY (role, text_hash))"
    )
    con.execute(
        "INSERT INTO embeddings VALUES ('passage', ?, ?, ?)",
        (text_hash("old"), vector.tobytes(), zlib.crc32(vector.tobytes())),
    )
    con.commit(), con.close()
    assert np.array_equal(embed_cached(e, ["old"], "passage", cache).array[0], vector) and e.n == 0


# --- disks that refuse --------------------------------------------------------------------------------------


@pytest.mark.parametrize("free", [0, 4096, 40_000, 150_000, 300_000])
def test_a_full_disk_is_said_and_nothing_is_lost(data, small_disk, free):
    filler = small_disk / "filler"
    filler.write_bytes(bytes((1 << 20) - free))
    with pytest.raises(RagbenchError) as said:
        rb.bench(*data, SYSTEMS, store=small_disk / "store", **OPTIONS)
    assert (
        isinstance(said.value, StoreError)
        and "the disk is full" in str(said.value)
        and "elete" not in str(said.value)
    )
    assert verify(Store(small_disk / "store")) == []
    filler.unlink()
    assert rb.bench(*data, SYSTEMS, store=small_disk / "store", **OPTIONS).quality_csv()


def test_a_read_only_store_serves_what_it_has_and_refuses_the_rest(data, finished, small_disk):
    folder, table = finished
    shutil.copytree(folder, small_disk / "store")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert rb.bench(*data, SYSTEMS, store=small_disk / "store", **OPTIONS).quality_csv() == table
    built = SYSTEMS[0].build(data[0], store=small_disk / "store")  # vectors that are there are read
    assert np.array_equal(
        built.search("feedback", 3).rows, SYSTEMS[0].build(data[0], store=False).search("feedback", 3).rows
    )
    with pytest.raises(StoreError, match="can only be read"):
        rb.bench(
            *data,
            rb.System(rb.TokenChunker(60), rb.Lexical(rb.FTS5())),
            store=small_disk / "store",
            **OPTIONS,
        )


@pytest.mark.parametrize(
    "error",
    [
        OSError(37, "No locks available"),
        OSError(95, "Operation not supported"),
        NotImplementedError("FileSystem does not appear to support flock; use SoftFileLock instead"),
    ],
)
def test_a_file_system_without_locks(data, tmp_path, monkeypatch, error):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr("filelock._unix.fcntl.flock", fails)
    with pytest.raises(StoreError, match="has no locks"):
        rb.bench(*data, SYSTEMS[0], store=tmp_path, **OPTIONS)


# --- to see it and to empty it ------------------------------------------------------------------------------


def test_clear_leaves_what_was_paid_for_and_what_is_in_use(tmp_path):
    store = Store(tmp_path)
    for kind in ("run", "reply"):
        store.put(kind, "0" * 32, {"x": Packed(np.arange(9))})
    (tmp_path / "embeddings").mkdir()
    (tmp_path / "embeddings" / f"{'e' * 32}.sqlite").write_bytes(bytes(100))
    code = (
        f"import time; from ragbench.store.artifacts import Store, in_use\n"
        f"with in_use(Store({str(tmp_path)!r})): print('in', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    process.stdout.readline()
    with pytest.raises(StoreError, match="another process is working"):
        clear(store)
    process.kill(), process.wait(), process.stdout.close()
    assert clear(store) > 0
    assert set(usage(store).kinds) == {"reply", "embeddings"}
    clear(store, "reply", "embeddings")
    assert usage(store).kinds == {}


def test_what_a_killed_writer_left_is_swept(tmp_path):
    code = f"""
import os
from ragbench.store import artifacts as s
write = s.write_files
def killed(folder, payload): write(folder, payload); os.kill(os.getpid(), 9)
s.write_files = killed
s.Store({str(tmp_path)!r}).make("run", {{"k": 1}}, lambda: {{"x": 1}})
"""
    subprocess.run([sys.executable, "-c", code])
    assert [p.name for p in (tmp_path / "run").iterdir() if p.name.startswith(".")]
    with in_use(Store(tmp_path)):
        pass
    assert list((tmp_path / "run").iterdir()) == []
    assert json.dumps(Store(tmp_path).make("run", {"k": 1}, lambda: {"x": 1}).value("x")) == "1"


def test_no_folder_but_a_store_is_listed_checked_or_cleared(tmp_path):
    "What ragbench has not written stays, whatever folder is named, and beside the artifacts of a store."
    mine = tmp_path / "home"
    for name in (
        "ssh/key",
        "run/notes.txt",
        "chunks/0123456789abcdef0123456789abcdef/manifest.json",
        "embeddings/list.sqlite",
        "photos/2024/a.jpg",
    ):
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).write_text("{}" if name.endswith("json") else "dear to somebody")
    before = sorted(p.relative_to(mine).as_posix() for p in mine.rglob("*"))
    for call in (lambda s: s.clear(), lambda s: s.clear("ssh"), lambda s: s.usage(), verify):
        with pytest.raises(StoreError, match="no store"):
            call(Store(mine))
        with pytest.raises(StoreError, match="no store"):
            call(Store(tmp_path / "mistyped"))
    assert sorted(p.relative_to(mine).as_posix() for p in mine.rglob("*")) == before
    assert not (tmp_path / "mistyped").exists()

    store = Store(mine)  # somebody's home as a store: an accident
    store.put("run", "f" * 32, {"rows": np.arange(4)})
    (mine / "run" / ("e" * 32)).mkdir()  # a damaged one
    assert set(store.usage().kinds) == {"run", "chunks"}
    store.clear()
    assert not (mine / "run" / ("f" * 32)).exists() and not (mine / "run" / ("e" * 32)).exists()
    assert (
        (mine / "run" / "notes.txt").is_file()
        and (mine / "ssh" / "key").is_file()
        and (mine / "embeddings" / "list.sqlite").is_file()
    )


def test_a_vector_that_became_text_is_embedded_again(tmp_path):
    "One flipped bit in SQLite's type of a value makes a blob a text that is no UTF-8."
    embedder = rb.LSAEmbedder(2).fit(
        rb.Corpus(
            [
                rb.Document(
                    id="a", text="Start the pump.\n\nStop the fan when the pump is hot.\n\nThe valve is shut."
                )
            ]
        )
    )
    cache, texts = EmbeddingCache(tmp_path), ["start the pump", "stop the fan", "the valve"]
    first = embed_cached(embedder, texts, "passage", cache)
    file = next(tmp_path.glob("*.sqlite"))
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as con:
        con.execute("UPDATE embeddings SET vector = CAST(vector AS TEXT) WHERE rowid = 2")
        con.execute("UPDATE embeddings SET vector = CAST(x'ff00ff01aabbccdd' AS TEXT) WHERE rowid = 1")
    assert [v.split(": ")[1] for v in verify_cache(cache)] == ["2 vectors are damaged"]
    with pytest.warns(UserWarning, match="damaged"):
        again = embed_cached(embedder, texts, "passage", cache)
    assert np.array_equal(first.array, again.array)
    assert verify_cache(cache) == []
