"""What a store promises when something breaks: kills at random points, a full disk, a folder that may only be
read, damaged files, locks, and readers while somebody writes."""

import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from ragbench.base.errors import StoreError
from ragbench.chunk.paragraph import ParagraphChunker
from ragbench.core.documents import Corpus, Document
from ragbench.core.vectors import Vectors
from ragbench.knowledge import schema
from ragbench.knowledge.catalogue import Catalogue
from ragbench.knowledge.ingest import Intake
from ragbench.knowledge.relations import settle
from ragbench.lexical.fts5 import FTS5
from ragbench.store.fingerprint import hash64, text_hash

KILLS = int(os.environ.get("RAGBENCH_KILLS", "20"))
SEED = int(os.environ.get("RAGBENCH_KILL_SEED", "20260101"))


class ToySpace:
    """Vectors of two numbers that the hash of a text decides."""

    facts = {"fingerprint": "toy", "model": "toy", "dim": 2}

    def texts(self, chunks):
        return chunks.texts

    def hashes(self, texts):
        return [text_hash(t) for t in texts]

    def embed(self, texts, cache=None):
        angle = hash64(list(texts)) / 2.0**64 * 6
        return Vectors(np.c_[np.cos(angle), np.sin(angle)])


def intake_of(catalogue: Catalogue, **options) -> Intake:
    return Intake(catalogue, ParagraphChunker(40, 5), [ToySpace()], **options)


def text_of(i: int, version: int = 0) -> str:
    words = " ".join(f"word{(i * 7 + n) % 31}" for n in range(20))
    return "\n\n".join(f"Paragraph {n} of EQP-P{i}, version {version}. {words}" for n in range(4))


def change(i: int) -> tuple[dict[str, str], list[str]]:
    """The i-th change of a store: documents that come or change, and ids that go."""
    if i % 5 == 3 and i > 5:
        return {}, [f"d{i - 3}"]
    if i % 5 == 4:
        return {
            f"d{i - 3}": text_of(i - 3, i),
            f"d{i - 2}": text_of(i - 2, i),
        }, []  # two that change together
    return {f"d{i}": text_of(i)}, []


def state_after(n: int) -> dict[str, str]:
    """What a store holds after n changes."""
    state: dict[str, str] = {}
    for i in range(n):
        new, gone = change(i)
        state |= new
        for doc_id in gone:
            state.pop(doc_id, None)
    return state


def apply(intake: Intake, i: int) -> None:
    new, gone = change(i)
    if new:
        intake.ingest(Corpus([Document(k, v) for k, v in new.items()]))
    if gone:
        with intake.catalogue.writing("delete") as w:
            rows = w.rows("SELECT doc_row FROM documents WHERE doc_id = ?", gone[0])
            w.delete_documents(r for (r,) in rows)
            settle(w)


def stored(catalogue: Catalogue) -> dict[str, str]:
    with catalogue.reading() as r:
        return dict(r.rows("SELECT doc_id, text FROM documents"))


def check_whole(catalogue: Catalogue) -> None:
    """Every part of the store fits every other."""
    with catalogue.reading() as r:
        assert r.rows("PRAGMA integrity_check") == [("ok",)]
        assert r.rows("PRAGMA foreign_key_check") == []
        docs = r.documents([row for (row,) in r.rows("SELECT doc_row FROM documents ORDER BY doc_row")])
        table = r.chunk_table(["chunk_row", "text_hash", "start_char", "end_char", "d.doc_id"])
        by_id = {d.id: d for d in docs}
        spans = zip(table["doc_id"], table["start_char"], table["end_char"])
        texts = [by_id[d].text[a:b] for d, a, b in spans]
        assert len({d for d in table["doc_id"]}) == len(docs)
        assert (hash64(texts) == table["text_hash"]).all() if texts else not docs
        assert not len(r.missing_vectors(1)) if r.spaces() else not docs
        if docs:
            array = r.vectors(1, table["chunk_row"])
            assert np.array_equal(array, ToySpace().embed(texts).array)
            scores, rows = FTS5().attach(r.con, "chunk_words").search(["word3 version paragraph"], k=50)
            built_scores, built_rows = FTS5().build(texts).search(["word3 version paragraph"], k=50)
            assert_allclose(scores, built_scores, rtol=0, atol=1e-12)
            assert np.array_equal(np.searchsorted(table["chunk_row"], rows[rows > 0]), built_rows[rows > 0])
        orphans = (
            "SELECT count(*) FROM vectors WHERE vector_row NOT IN (SELECT vector_row FROM chunk_embeddings)"
        )
        assert r.rows(orphans) == [(0,)]


CHILD = """
import sys
sys.path.insert(0, {tests!r})
from test_kb_faults import Catalogue, apply, intake_of
intake = intake_of(Catalogue.open({path!r}))
print("ready", flush=True)
for i in range({first}, {first} + 1000):
    apply(intake, i)
    print(i, flush=True)
"""


@pytest.mark.faults
@pytest.mark.timeout(120 + 20 * KILLS)
def test_killed_while_writing(tmp_path):
    Catalogue.create(tmp_path / "kb").close()
    rng, done, middle = random.Random(SEED), 0, 0
    print("seed", SEED)
    for _ in range(KILLS):
        code = CHILD.format(tests=str(Path(__file__).parent), path=str(tmp_path / "kb"), first=done)
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "ready\n"
        reported = done
        for _ in range(rng.randrange(4)):
            reported = int(child.stdout.readline()) + 1
        time.sleep(rng.uniform(0, 0.05))
        child.send_signal(signal.SIGKILL)
        rest = child.communicate()[0].split()
        reported = int(rest[-1]) + 1 if rest else reported
        with Catalogue.open(tmp_path / "kb") as catalogue:
            now = stored(catalogue)
            assert now in (state_after(reported), state_after(reported + 1)), f"after {reported} changes"
            done = reported if now == state_after(reported) else reported + 1
            middle += done > reported
            check_whole(catalogue)
    print(f"{done} changes, {middle} of them stored but not reported yet when the kill came")
    with Catalogue.open(tmp_path / "kb") as catalogue:
        apply(intake_of(catalogue), done)  # nobody is locked out
        assert stored(catalogue) == state_after(done + 1)


@pytest.mark.faults
def test_killed_while_a_large_table_comes_in(tmp_path):
    rows = tmp_path / "log.jsonl"
    rows.write_text("".join(json.dumps({"id": str(n), "text": text_of(n)}) + "\n" for n in range(300)))
    Catalogue.create(tmp_path / "kb").close()
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_kb_faults import Catalogue, intake_of\n"
        "say = lambda e: print(e['kind'], flush=True)\n"
        f"intake = intake_of(Catalogue.open({str(tmp_path / 'kb')!r}), on_event=say)\n"
        f"intake.ingest({str(rows)!r}, id_field='id', streamed=1, records=20)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    while child.stdout.readline().count("extracted") == 0:
        pass
    for _ in range(6):
        child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.communicate()
    with Catalogue.open(tmp_path / "kb") as catalogue:
        before = stored(catalogue)
        assert 0 < len(before) < 300 and len(before) % 20 == 0  # some parts, each whole
        check_whole(catalogue)
        result = intake_of(catalogue).ingest(rows, id_field="id", streamed=1, records=20)
        assert len(result.skipped) == len(before) and len(result.document_ids) == 300 - len(before)
        check_whole(catalogue)
        assert intake_of(catalogue).ingest(rows, id_field="id", streamed=1, records=20).skipped == (
            "log.jsonl",
        )


# --- the disk -----------------------------------------------------------------------------------------------


def fill(path: Path) -> None:
    """Take documents in until the disk refuses; prints what was reported."""
    intake = intake_of(Catalogue.open(path))
    for i in range(2000):
        intake.ingest(Document(f"d{i}", text_of(i) * 20))
        print(i, flush=True)


def test_a_limit_on_the_size_of_files(tmp_path):
    Catalogue.create(tmp_path / "kb").close()
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"from test_kb_faults import fill; fill({str(tmp_path / 'kb')!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 21, 1 << 21)),
    )
    assert "StoreError" in done.stderr and "larger than the system allows" in done.stderr, done.stderr[-800:]
    reported = [int(x) for x in done.stdout.split()]
    assert len(reported) > 3
    with Catalogue.open(tmp_path / "kb") as catalogue:
        assert set(stored(catalogue)) >= {f"d{i}" for i in reported}
        check_whole(catalogue)
        apply(intake_of(catalogue), 5000)  # with room, it goes on


def test_a_full_disk(small_disk):
    Catalogue.create(small_disk / "kb").close()
    intake, reported = intake_of(Catalogue.open(small_disk / "kb")), []

    def fill_up():
        for i in range(2000):
            intake.ingest(Document(f"d{i}", text_of(i)))
            reported.append(f"d{i}")

    with pytest.raises(StoreError, match="the disk is full"):
        fill_up()
    assert reported
    intake.catalogue.close()
    with Catalogue.open(small_disk / "kb", read_only=True) as catalogue:
        assert set(stored(catalogue)) == set(reported)


def test_a_file_system_that_can_only_be_read(small_disk):
    with Catalogue.create(small_disk / "kb") as catalogue:
        apply(intake_of(catalogue), 0)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with Catalogue.open(small_disk / "kb", read_only=True) as catalogue:
        assert stored(catalogue) == state_after(1)
    with pytest.raises(StoreError, match="writing is not allowed"):
        apply(intake_of(Catalogue.open(small_disk / "kb")), 1)


@pytest.fixture
def nobody():
    """A folder of somebody who may read it and not write; root gives up its rights for a while."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    if os.getuid() == 0:
        os.seteuid(0)
    subprocess.run(["chmod", "-R", "u+w", str(folder)], check=True)
    subprocess.run(["rm", "-r", str(folder)], check=True)


def give_up_rights(path: Path) -> None:
    for p in path.iterdir():
        p.chmod(0o444)
    path.chmod(0o555)
    if os.getuid() == 0:
        os.seteuid(65534)


def test_a_folder_that_may_only_be_read(nobody):
    with Catalogue.create(nobody / "kb") as catalogue:
        apply(intake_of(catalogue), 0)
    give_up_rights(nobody / "kb")
    with Catalogue.open(nobody / "kb", read_only=True) as catalogue:
        assert stored(catalogue) == state_after(1)
        check_whole(catalogue)
    with pytest.raises(StoreError, match="not allowed|can only be read"):
        apply(intake_of(Catalogue.open(nobody / "kb")), 1)


def test_a_log_that_nobody_may_finish(nobody):
    catalogue = Catalogue.create(nobody / "kb")
    apply(intake_of(catalogue), 0)
    held = sqlite3.connect(nobody / "kb" / "catalogue.db")  # keeps the log when the others close
    held.execute("SELECT count(*) FROM documents").fetchone()
    apply(intake_of(catalogue), 1)
    (nobody / "copy").mkdir()
    for name in ("catalogue.db", "catalogue.db-wal"):  # what a kill leaves, and not the index of the log
        shutil.copy(nobody / "kb" / name, nobody / "copy")
    held.close()
    give_up_rights(nobody / "copy")
    with pytest.raises(StoreError, match="Open it once where you may write"):
        Catalogue.open(nobody / "copy", read_only=True)


# --- damage -------------------------------------------------------------------------------------------------


def filled(path: Path, n: int = 12) -> Path:
    with Catalogue.create(path) as catalogue:
        for i in range(n):
            apply(intake_of(catalogue), i)
    return path / "catalogue.db"


def test_a_damaged_database(tmp_path):
    file = filled(tmp_path / "kb")
    whole = file.read_bytes()
    errors = []
    for start in range(8192, len(whole), 16384):
        file.write_bytes(whole[:start] + b"\xa5" * 8192 + whole[start + 8192 :])
        try:
            with Catalogue.open(tmp_path / "kb") as catalogue, catalogue.reading() as r:
                for table in schema.TABLES:
                    r.rows(f"SELECT * FROM {table.name}")
        except StoreError as e:
            errors.append(str(e))
    assert len(errors) > 3
    assert all("damaged" in e and "Restore a copy" in e for e in errors), errors


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is no knowledge base"),
        (b"SQLite format 3\x00" + bytes(80), "damaged|no knowledge base"),
        (b"a letter to my aunt" * 900, "the database is damaged"),
    ],
)
def test_what_is_no_catalogue(tmp_path, content, said):
    (tmp_path / "catalogue.db").write_bytes(content)
    with pytest.raises(StoreError, match=said):
        Catalogue.open(tmp_path)


def test_a_damaged_vector(tmp_path):
    file = filled(tmp_path / "kb")
    con = sqlite3.connect(file)
    con.execute("UPDATE vectors SET vector = zeroblob(8) WHERE vector_row = 1")
    con.commit(), con.close()
    with Catalogue.open(tmp_path / "kb") as catalogue, catalogue.reading() as r:
        (chunk,) = r.rows("SELECT chunk_row FROM chunk_embeddings WHERE vector_row = 1")[0]
        with pytest.raises(StoreError, match=f"the vector of chunk {chunk} is damaged"):
            r.vectors(1, [chunk])


def test_a_catalogue_that_goes_away(tmp_path):
    file = filled(tmp_path / "kb", 1)
    catalogue = Catalogue.open(tmp_path / "kb")
    file.unlink()
    with pytest.raises(StoreError, match="the catalogue is gone"), catalogue.reading():
        pass


# --- versions -----------------------------------------------------------------------------------------------


def test_versions(tmp_path, monkeypatch):
    file = filled(tmp_path / "kb")
    before = stored(Catalogue.open(tmp_path / "kb"))
    con = sqlite3.connect(file)
    con.execute("DROP TABLE queries")
    con.execute("UPDATE meta SET value = '0' WHERE key = 'schema_version'")
    con.commit()
    with pytest.raises(StoreError, match="older than this ragbench"):
        Catalogue.open(tmp_path / "kb", read_only=True)
    with pytest.raises(StoreError, match="there is no step from version 0"):
        Catalogue.open(tmp_path / "kb")
    monkeypatch.setattr(schema, "MIGRATIONS", {0: list(schema.QUERIES.sql())})
    with Catalogue.open(tmp_path / "kb") as catalogue:
        assert catalogue.meta("schema_version") == str(schema.SCHEMA_VERSION)
        assert stored(catalogue) == before
        check_whole(catalogue)
    con.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    con.commit()
    with pytest.raises(StoreError, match="its schema has version 99.*Install a newer ragbench"):
        Catalogue.open(tmp_path / "kb")


# --- locks, readers, processes ------------------------------------------------------------------------------

HOLDER = """
import sys, time
from ragbench.knowledge.catalogue import Catalogue
with Catalogue.open({path!r}).writing("a long ingest"):
    print("holding", flush=True)
    time.sleep({seconds})
"""


def holder(path: Path, seconds: float) -> subprocess.Popen:
    code = HOLDER.format(path=str(path), seconds=seconds)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "holding\n"
    return child


def test_a_second_writer_waits_then_says_who_writes(tmp_path):
    filled(tmp_path / "kb", 1)
    child = holder(tmp_path / "kb", 60)
    try:
        with pytest.raises(StoreError) as said:
            apply(intake_of(Catalogue.open(tmp_path / "kb", timeout=0.2)), 1)
        assert f"process {child.pid}" in str(said.value) and "(a long ingest)" in str(said.value)
        assert stored(Catalogue.open(tmp_path / "kb")) == state_after(1)  # readers are not kept waiting
    finally:
        child.kill()
        child.communicate()
    apply(intake_of(Catalogue.open(tmp_path / "kb", timeout=5)), 1)  # the lock went with its process
    child = holder(tmp_path / "kb", 1)
    apply(intake_of(Catalogue.open(tmp_path / "kb", timeout=30)), 2)  # it waited
    assert child.wait() == 0
    child.stdout.close()
    assert stored(Catalogue.open(tmp_path / "kb")) == state_after(3)


def test_a_program_from_outside_locks_the_database(tmp_path):
    file = filled(tmp_path / "kb", 1)
    con = sqlite3.connect(file, isolation_level=None)
    con.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="another program has locked the database"):
        apply(intake_of(Catalogue.open(tmp_path / "kb", timeout=0.2)), 1)
    con.execute("ROLLBACK")
    apply(intake_of(Catalogue.open(tmp_path / "kb", timeout=0.2)), 1)


def test_readers_see_one_generation(tmp_path):
    """Every change stores two documents and deletes two: whoever sees an odd number saw half a change."""
    catalogue = Catalogue.create(tmp_path / "kb")
    wrong, seen, stop = [], set(), threading.Event()

    def read():
        own = Catalogue.open(tmp_path / "kb", read_only=True)
        while not stop.is_set():
            with own.reading() as r:
                n = r.rows("SELECT count(*) FROM documents")[0][0]
                time.sleep(0.002)
                words = len(FTS5().attach(r.con, "chunk_words"))
                chunks, again = r.rows("SELECT count(*), count(DISTINCT doc_row) FROM chunks")[0]
                seen.add(r.generation)
                if n % 2 or n != again or words != chunks:
                    wrong.append((r.generation, n, again, words, chunks))

    threads = [threading.Thread(target=read) for _ in range(3)]
    for t in threads:
        t.start()
    intake = intake_of(catalogue)
    for i in range(40):
        intake.ingest(Corpus([Document(f"a{i}", text_of(i)), Document(f"b{i}", text_of(i, 1))]))
        if i % 3 == 2:
            with catalogue.writing() as w:
                w.delete_documents(r for (r,) in w.rows("SELECT doc_row FROM documents LIMIT 2"))
    stop.set()
    for t in threads:
        t.join()
    assert not wrong, wrong[:5]
    assert len(seen) > 5
    check_whole(catalogue)


def test_writers_in_threads_take_turns(tmp_path):
    catalogue = Catalogue.create(tmp_path / "kb")

    def write(name):
        for i in range(5):
            intake_of(catalogue).ingest(Document(f"{name}{i}", text_of(i)))

    threads = [threading.Thread(target=write, args=(name,)) for name in "xyz"]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(stored(catalogue)) == 15
    check_whole(catalogue)


def test_a_forked_child_reads_for_itself(tmp_path):
    filled(tmp_path / "kb", 3)
    catalogue = Catalogue.open(tmp_path / "kb")
    assert len(stored(catalogue)) == 3
    pid = os.fork()
    if not pid:
        os._exit(0 if stored(catalogue) == state_after(3) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    apply(intake_of(catalogue), 3)
    assert stored(catalogue) == state_after(4)


def test_names_are_values_never_sql(tmp_path):
    with Catalogue.create(tmp_path / "kb", owner="teacher") as catalogue:
        bad = "x'); DROP TABLE documents; --\"%_"
        intake = intake_of(catalogue, owner=bad, collection=bad)
        assert intake.ingest(Document(bad, f"# {bad}\n\n{text_of(1)}", metadata={bad: bad})).document_ids == (
            bad,
        )
        assert intake.ingest(Document(bad, f"# {bad}\n\n{text_of(1)}", metadata={bad: bad})).skipped == (bad,)
        with catalogue.reading() as r:
            assert r.documents([1])[0].metadata == {bad: bad}
            assert r.rows("SELECT owner, collection FROM documents") == [(bad, bad)]
