"""A built system in a folder: opened, it ranks as it did, bit for bit, and embeds no passage; killed while it
is written or damaged afterwards, it is the old one, the new one, or refused."""

import dataclasses
import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from dataclasses import dataclass
from datetime import date

import numpy as np
import pytest

import ragbench as rb
from ragbench import ConfigError, StoreError
from ragbench.store.artifacts import seal
from ragbench.system.saved_system import MANIFEST

WORDS = "pump tank valve level oil steam gauge filter seal motor".split()
QUESTIONS = ["the oil level of a pump", "steam", "which valve has a seal and a filter", "nothing of this"]
CHUNK = rb.RecursiveChunker(12)
LSA, FTS = rb.LSAEmbedder(5), rb.Lexical(rb.FTS5())


def corpus_of(n=40, seed=5):
    rng = np.random.default_rng(seed)
    texts = [". ".join(" ".join(rng.choice(WORDS, 5)) for _ in range(4)) for _ in range(n)]
    owners = ["north", "south", "east"]
    return rb.Corpus(
        [rb.Document(f"d{i}", t, metadata={"owner": owners[i % 3], "day": date(2020 + i % 5, 1, 1), "n": {i}})
         for i, t in enumerate(texts)],
        [rb.Refusal("broken.pdf", "it has no text")],
    )  # fmt: skip


CORPUS = corpus_of()

DESIGNS = {
    "dense": rb.System(CHUNK, rb.Dense(LSA)),
    "l2": rb.System(CHUNK, rb.Dense(LSA, rb.FaissFlat("l2"))),
    "hnsw": rb.System(CHUNK, rb.Dense(LSA, rb.FaissHNSW(8, ef_search=20))),
    "ivf": rb.System(CHUNK, rb.Dense(LSA, rb.FaissIVF(4, nprobe=2))),
    "fts5": rb.System(CHUNK, FTS),
    "only sections": rb.System(CHUNK, rb.Lexical(rb.FTS5("unicode61", weights=(1, 0)))),
    "bm25s": rb.System(CHUNK, rb.Lexical(rb.BM25S())),
    "hybrid": rb.System(rb.SentenceChunker(12, 0), rb.Hybrid(rb.Dense(LSA), FTS, fuse=rb.MinMax(dense=0.4))),
    "steps": rb.System(
        CHUNK, rb.Hybrid(rb.Dense(LSA, min_score=0.1), FTS), name="with steps", header="title",
        where={"owner": ["north", "east"]}, boosts=rb.Boosts([rb.Boost({"owner": "east"}, 0.2)]),
        per_document=2, mmr=rb.MMR(0.6), expand=rb.Neighbours(1),
    ),
    "filter": rb.System(CHUNK, rb.Dense(LSA), where={"day": {"$gte": "2022-01-01"}}, overfetch=3),
    "metadata": rb.System(CHUNK, rb.Dense(LSA, rb.WithMetadata(rb.FaissFlat()))),
}  # fmt: skip


def same(one, other, **more):
    "Whether two systems hand over the same passages with the same scores, for one question and for many."
    for queries in (QUESTIONS[0], QUESTIONS, QUESTIONS * 6):
        a, b = one.search(queries, 7, **more), other.search(queries, 7, **more)
        assert np.array_equal(a.rows, b.rows) and np.array_equal(a.scores, b.scores)
        assert [h.text for h in a] == [h.text for h in b] and len(a)
        assert (a.origin is None) == (b.origin is None) and np.array_equal(a.origin, b.origin)


@pytest.mark.parametrize("name", DESIGNS)
def test_an_opened_system_ranks_bit_for_bit_as_it_did(name, tmp_path, monkeypatch):
    built = DESIGNS[name].build(CORPUS, store=False)
    built.save(tmp_path / "it")

    def refuse(*args, **kwargs):
        raise AssertionError("a passage was embedded, a document cut, or an embedder fitted")

    monkeypatch.setattr(rb.LSAEmbedder, "fit", refuse)
    for chunker in (rb.RecursiveChunker, rb.SentenceChunker):
        monkeypatch.setattr(chunker, "__call__", refuse)
    monkeypatch.setattr("ragbench.system.build_context.Context.embed", lambda self, e, texts, role: (
        refuse() if role == "passage" else e.embed_queries(texts)))  # fmt: skip
    opened = rb.System.open(tmp_path / "it", store=False)
    assert opened.system == DESIGNS[name] and opened.system.name == DESIGNS[name].name
    assert (
        opened.chunks.corpus.fingerprint == CORPUS.fingerprint
        and opened.chunks.corpus.errors == CORPUS.errors
    )
    same(built, opened)
    row = int(built.search(QUESTIONS[0], 1).rows[0, 0])
    if built.search(QUESTIONS[0], 1).origin is None:
        assert str(built.explain(QUESTIONS[0], row)) == str(opened.explain(QUESTIONS[0], row))
    opened.save(tmp_path / "again")  # of a system whose indexes lie in files
    opened.save(tmp_path / "it")  # and over these files
    same(built, opened)
    same(built, rb.System.open(tmp_path / "again", store=False))
    same(built, rb.System.open(tmp_path / "it", store=False))


def test_the_folder_stands_by_itself(tmp_path):
    "It may be moved, and what it was built with may be gone."
    place = DESIGNS["hybrid"].build(CORPUS, store=tmp_path / "store").save(tmp_path / "one")
    shutil.rmtree(tmp_path / "store")
    moved = shutil.move(place, tmp_path / "elsewhere with spaces, äöü #?%")
    same(DESIGNS["hybrid"].build(CORPUS, store=False), rb.System.open(moved, store=False))
    assert not [p for p in os.listdir(tmp_path) if p.startswith(".")]


def test_what_questions_bring_is_kept_with_the_system(tmp_path):
    design = rb.System(CHUNK, rb.Dense(LSA), where={"owner": rb.Param("owner")})
    built = design.build(CORPUS, store=False)
    same(built, rb.System.open(built.save(tmp_path / "it"), store=False), params={"owner": "east"})


# --- databases ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["chroma", "qdrant", "pgvector"])
def test_a_database_is_kept_by_its_address(kind, tmp_path):
    if kind == "pgvector":
        from ragbench.index.pgserver import private_database, stop_private

        index = rb.PgVectorIndex(private_database(), index=None, table="kept_system")
    else:
        make = {"chroma": rb.ChromaIndex, "qdrant": rb.QdrantIndex}[kind]
        index = make(path=str(tmp_path / "db"), collection="kept")
    design = rb.System(CHUNK, rb.Dense(LSA, index))
    built = design.build(CORPUS, store=False)
    before = built.search(QUESTIONS, 5)
    built.save(tmp_path / "it")
    for searcher in built.ranker.built:
        searcher.close()
    if kind == "pgvector":  # its address may hold a password
        with pytest.raises(StoreError, match=r"url is shown nowhere.*System.open\(path, system=…\)"):
            rb.System.open(tmp_path / "it")
    assert "kept" in (tmp_path / "it" / MANIFEST).read_text()
    opened = rb.System.open(tmp_path / "it", design if kind == "pgvector" else None, store=False)
    after = opened.search(QUESTIONS, 5)
    assert np.array_equal(before.rows, after.rows) and np.array_equal(before.scores, after.scores)
    (searcher,) = opened.ranker.built
    searcher.delete([0])
    searcher.close()
    with pytest.raises(StoreError, match="the system has"):
        rb.System.open(tmp_path / "it", design, store=False)
    if kind == "pgvector":
        stop_private()


def test_a_database_without_a_name_is_refused_before_anything_is_written(tmp_path):
    built = rb.System(CHUNK, rb.Dense(LSA, rb.ChromaIndex())).build(CORPUS, store=False)
    with pytest.raises(ConfigError, match="collection="):
        built.save(tmp_path / "it")
    assert not list(tmp_path.iterdir())
    built.ranker.built[0].close()


def test_a_key_is_never_written(tmp_path):
    from ragbench.testing import QdrantLoopback

    with QdrantLoopback("secret key") as server:
        design = rb.System(CHUNK, rb.Dense(LSA, rb.QdrantIndex(server.url, "kept", api_key="secret key")))
        built = design.build(CORPUS, store=False)
        built.save(tmp_path / "it")
        assert not any(b"secret key" in p.read_bytes() for p in (tmp_path / "it").iterdir())
        with pytest.raises(StoreError, match="api_key is shown nowhere"):
            rb.System.open(tmp_path / "it")
        same(built, rb.System.open(tmp_path / "it", design, store=False))


def test_a_folder_sends_no_key_where_it_says_unless_it_is_trusted(tmp_path, monkeypatch):
    from ragbench.testing import Loopback

    monkeypatch.setenv("MY_SECRET", "a word of this machine")
    with Loopback(['["the oil level"]']) as server:
        chat = rb.Chat("m", server.url, key_env="MY_SECRET")
        design = rb.System(CHUNK, FTS, query=rb.MultiQuery(chat, 1))
        design.build(CORPUS, store=False).save(tmp_path / "it")
        with pytest.raises(ConfigError, match=rf"{server.url}.*MY_SECRET.*trusted=True"):
            rb.System.open(tmp_path / "it", store=False)
        with pytest.raises(ConfigError, match="trusted is 'yes'"):
            rb.System.open(tmp_path / "it", store=False, trusted="yes")
        assert not server.asked
        for more in ({"trusted": True}, {"system": design}):
            rb.System.open(tmp_path / "it", store=False, **more).search("oil", 3)
        assert len(server.asked) == 2

        with rb.KnowledgeBase.create(tmp_path / "kb", system=design):
            pass
        with pytest.raises(ConfigError, match=rf"{server.url}.*MY_SECRET.*trusted=True"):
            rb.KnowledgeBase.open(tmp_path / "kb")
        for more in ({"trusted": True}, {"system": design}):
            with rb.KnowledgeBase.open(tmp_path / "kb", **more) as kb:
                assert kb.system == design


def test_whatever_names_an_address_or_a_variable_is_known_to_do_so():
    from ragbench.system.system_values import _NAMES, component_values, named_addresses

    names = {
        f.name
        for n in rb.__all__
        if dataclasses.is_dataclass(c := getattr(rb, n))
        for f in dataclasses.fields(c)
    }
    like = {n for n in names if any(w in n for w in ("url", "endpoint", "address", "host", "env", "proxy"))}
    assert like == set(_NAMES)
    usual = [rb.Chat("m"), rb.OpenAIEmbedder("m"), rb.GeminiEmbedder("m"), rb.LiteLLMEmbedder("m")]
    assert [named_addresses(component_values(c)) for c in usual] == [[]] * 4
    unusual = [
        rb.Chat("m", key_env="HOME"),
        rb.Dense(rb.OpenAIEmbedder("m", base_url="http://a.b")),
        rb.QdrantIndex("http://a.b", "c"),
        rb.LiteLLMEmbedder("m", options={"api_base": "a.b"}),
        rb.LiteLLMEmbedder("m", options={"x": {"y": "http://a.b"}}),
    ]
    for component in unusual:
        assert len(named_addresses(component_values((1, {"a": [component]})))) == 1


@pytest.mark.parametrize("name", ["extra.txt", "deep/er/extra.txt"])
def test_a_foreign_file_in_a_saved_folder_is_never_replaced(name, tmp_path):
    built = DESIGNS["hybrid"].build(CORPUS, store=False)
    path = built.save(tmp_path / "it")
    opened = rb.System.open(path, store=False)
    opened.search(QUESTIONS, 3)
    built.save(path)  # what an opened system leaves there is no foreign file
    (path / name).parent.mkdir(parents=True, exist_ok=True)
    (path / name).write_text("mine")
    with pytest.raises(StoreError, match=f"{name}.*Nothing was written"):
        built.save(path)
    assert (path / name).read_text() == "mine" and rb.System.open(path, store=False)


# --- parts of one's own -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Letters:
    "An embedder of one's own: how often each letter occurs."

    asked = []  # of all of them
    fingerprint = "letters"
    space = rb.Space("letters", "1", 26)
    max_tokens = None

    def embed_passages(self, texts):
        self.asked.append("passage")
        counts = np.array(
            [[t.lower().count(chr(97 + i)) + 1e-3 for i in range(26)] for t in texts], np.float32
        )
        return rb.Vectors(counts / np.linalg.norm(counts, axis=1, keepdims=True), self.space)

    def embed_queries(self, texts):
        vectors = self.embed_passages(texts)
        self.asked.pop()
        return vectors


@dataclass(frozen=True)
class Slow:
    "An index of one's own."

    def build(self, vectors):
        return SlowSearcher(vectors.array)


@dataclass(frozen=True, eq=False)
class SlowSearcher:
    array: np.ndarray
    nbytes = 1

    def search(self, queries, k):
        scores = (queries.array @ self.array.T).astype(np.float64)
        rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(scores, rows, 1), rows


def test_parts_of_ones_own_are_given_again_when_it_is_opened(tmp_path):
    embedder = Letters()
    design = rb.System(CHUNK, rb.Dense(embedder, Slow()))
    built = design.build(CORPUS, store=tmp_path / "store")
    built.save(tmp_path / "it")
    with pytest.raises(StoreError, match=r"Letters.*no component of ragbench.*System.open\(path, system=…\)"):
        rb.System.open(tmp_path / "it")
    embedder.asked.clear()
    opened = rb.System.open(tmp_path / "it", system=design, store=False)
    same(built, opened)
    assert not embedder.asked  # the index is built again, of the vectors that were kept
    for other in (DESIGNS["dense"], dataclasses.replace(design, chunk=rb.RecursiveChunker(13))):
        with pytest.raises(StoreError, match="the system given is another one"):
            rb.System.open(tmp_path / "it", system=other)
    with pytest.raises(ConfigError, match="system is a str"):
        rb.System.open(tmp_path / "it", system="dense")


# --- folders that are not what they should be ---------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return DESIGNS["steps"].build(CORPUS, store=False).save(tmp_path_factory.mktemp("saved") / "it")


def test_every_damaged_file_is_noticed(saved, tmp_path):
    "Each file in turn loses its end, loses everything, has one bit turned, is gone."
    rng = random.Random(11)
    names = sorted(p.relative_to(saved).as_posix() for p in saved.rglob("*") if p.is_file())
    assert {MANIFEST, "corpus.json"} < set(names) and len(names) > 8
    for name in names:
        data = (saved / name).read_bytes()
        at = rng.randrange(len(data))
        turned = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        for bad in (data[:-1], b"", turned, None):
            place = shutil.copytree(saved, tmp_path / "copy")
            (place / name).unlink() if bad is None else (place / name).write_bytes(bad)
            with pytest.raises(StoreError) as refusal:
                rb.System.open(place, store=False)
            assert str(place) in str(refusal.value), (name, at)
            shutil.rmtree(place)
    rb.System.open(saved, store=False)


def resealed(place, **changes):
    manifest = json.loads((place / MANIFEST).read_text()) | changes
    manifest.pop("checksum")
    (place / MANIFEST).write_text(json.dumps(manifest | {"checksum": seal(manifest)}))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"what": "ragbench results"}, "it is no saved system"),
        ({"schema": 2}, "its layout has version 2"),
        ({"system": {"class": "os:system", "fields": {}}}, "no component 'os:system'"),
        ({"system": {"class": "ragbench.base.errors:os", "fields": {}}}, "no component"),
        ({"fingerprint": "0" * 32}, "is another one than was saved"),
        ({"chunks": "0" * 32}, "its chunks are not those"),
        ({"steps": []}, "other steps"),
    ],
)
def test_a_foreign_manifest_is_refused(saved, tmp_path, changes, says):
    place = shutil.copytree(saved, tmp_path / "copy")
    resealed(place, **changes)
    with pytest.raises(StoreError, match=says):
        rb.System.open(place, store=False)


def test_a_manifest_that_was_changed_by_hand_is_refused_whatever_was_changed(saved, tmp_path):
    place = shutil.copytree(saved, tmp_path / "copy")
    manifest = json.loads((place / MANIFEST).read_text())
    (place / MANIFEST).write_text(json.dumps(manifest))
    rb.System.open(place, store=False)  # written in another way it is the same
    (place / MANIFEST).write_text(json.dumps(manifest | {"reason": "none"}))
    with pytest.raises(StoreError, match="the checksum of its system.json differs"):
        rb.System.open(place, store=False)


def test_other_versions_are_said(saved, tmp_path, caplog):
    place = shutil.copytree(saved, tmp_path / "copy")
    versions = json.loads((place / MANIFEST).read_text())["versions"]
    resealed(place, versions=versions | {"numpy": "1.0"}, fingerprint="0" * 32)
    same(rb.System.open(place, store=False), rb.System.open(saved, store=False))
    assert "numpy 1.0" in caplog.text and "last digits" in caplog.text
    with pytest.raises(StoreError, match="another one"):
        rb.System.open(place, DESIGNS["dense"], store=False)


def test_what_is_no_saved_system_is_refused_and_never_replaced(tmp_path):
    built = DESIGNS["dense"].build(CORPUS, store=False)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("dear")
    for name in ("mine", "file"):
        with pytest.raises(StoreError, match="no saved system"):
            rb.System.open(tmp_path / name)
        with pytest.raises(StoreError, match="Nothing was written"):
            built.save(tmp_path / name)
    assert (tmp_path / "mine" / "letter.txt").read_text() == (tmp_path / "file").read_text() == "dear"
    with pytest.raises(StoreError, match="no saved system"):
        rb.System.open(tmp_path / "nowhere")
    for path in (None, "", 3):
        for call in (rb.System.open, built.save):
            with pytest.raises(ConfigError, match="path is"):
                call(path)
    (tmp_path / "empty").mkdir()
    same(built, rb.System.open(built.save(tmp_path / "empty"), store=False))


def test_a_full_disk_leaves_what_was_there(small_disk):
    built = DESIGNS["dense"].build(CORPUS, store=False)
    built.save(small_disk / "it")
    large = DESIGNS["dense"].build(corpus_of(6000), store=False)
    with pytest.raises(StoreError, match="the disk is full"):
        large.save(small_disk / "it")
    assert [p.name for p in small_disk.iterdir()] == ["it"]
    same(built, rb.System.open(small_disk / "it", store=False))


# --- killed -------------------------------------------------------------------------------------------------


def _save_for_ever(systems, path):
    while True:
        for built in systems:
            built.save(path)


@pytest.mark.faults
@pytest.mark.timeout(300)
def test_killed_at_any_instant_it_is_the_old_one_or_the_new_one(tmp_path):
    "Twenty processes that save one system over the other are killed; the seed of the instants is printed."
    seed = int(os.environ.get("SEED", 20261122))
    print("seed", seed)
    rng, kills = random.Random(seed), 20
    systems = [DESIGNS[name].build(corpus_of(200), store=False) for name in ("hybrid", "fts5")]
    place, seen = systems[0].save(tmp_path / "it"), set()
    for _ in range(kills):
        child = multiprocessing.get_context("fork").Process(target=_save_for_ever, args=(systems, place))
        child.start()
        time.sleep(rng.uniform(0.02, 0.4))
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        opened = rb.System.open(place, store=False)
        which = [b.system for b in systems].index(opened.system)
        same(systems[which], opened)
        seen.add(which)
    assert seen == {0, 1}
    systems[0].save(place)  # and sweeps what the dead left
    assert [p.name for p in tmp_path.iterdir()] == ["it"]
