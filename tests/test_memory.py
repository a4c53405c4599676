"""What caches may take: the words that an encoder remembers, and the documents that the measures do."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ragbench.base.errors import DataError, RagbenchError
from ragbench.base.memory import lru_bytes, resident
from ragbench.core.documents import Document
from ragbench.evaluate.evidence_metrics import token_starts
from ragbench.index import conditions
from ragbench.index.ann_recall import guard, memory_of
from ragbench.index.faiss_flat import FaissFlat
from ragbench.text import tiktoken_encoder as encoders
from ragbench.text.tiktoken_encoder import Encoder


def words(seed: int, n: int) -> str:
    """`n` words of eight random letters, none of which comes again."""
    letters = np.random.default_rng(seed).integers(97, 123, size=(n, 9), dtype=np.uint8)
    letters[:, 8] = 32
    return letters.tobytes().decode()


@pytest.fixture
def renewals(monkeypatch):
    """Encoders made, and a process that seems to grow by half a gigabyte whenever it is looked at."""
    made, load, bytes_now = [], encoders._load_fast, [0]

    def look():
        bytes_now[0] += 500_000_000
        return bytes_now[0]

    monkeypatch.setattr(encoders, "_load_fast", lambda name: made.append(name) or load(name))
    monkeypatch.setattr(encoders, "resident", look)
    return made


@pytest.mark.parametrize("name", ["cl100k_base", "o200k_base"])
def test_a_renewed_encoder_gives_the_same_ids(renewals, name):
    e = Encoder(name)
    texts = [words(i, 150_000) + "Überdruck 3,5 bar — 離心ポンプ\n" * 20_000 for i in range(6)]
    got = [e(t) for t in texts]
    assert len(renewals) >= 3  # the first, and fresh ones
    for t, ids in zip(texts, got, strict=True):
        np.testing.assert_array_equal(ids, e.encoding.encode_to_numpy(t, disallowed_special=()))


def test_one_long_text_is_cut_where_no_token_crosses(renewals, monkeypatch):
    monkeypatch.setattr(encoders, "_LOOK", 2000)
    rng = np.random.default_rng(5)
    bits = [
        "valve",
        " ",
        "  ",
        "\n",
        "\r\n",
        "'s",
        "don't",
        "12",
        "3.5",
        "漢字",
        " é",
        "ع",
        "!",
        "🙂",
        " a b c ",
        "x" * 30,
    ]
    for n in range(4):
        text = "".join(rng.choice(bits, 3000))
        e = Encoder("cl100k_base" if n % 2 else "o200k_base")
        np.testing.assert_array_equal(
            e(text), e.encoding.encode_to_numpy(text, disallowed_special=()), err_msg=f"seed 5, {n}"
        )
    assert len(renewals) > 8
    no_seam = "_" * 50_000
    np.testing.assert_array_equal(
        Encoder("cl100k_base")(no_seam),
        Encoder("cl100k_base").encoding.encode_to_numpy(no_seam, disallowed_special=()),
    )


def test_threads_may_share_an_encoder_that_is_renewed(renewals, monkeypatch):
    monkeypatch.setattr(encoders, "_LOOK", 20_000)
    e, texts = Encoder("cl100k_base"), [words(i, 3000) for i in range(12)]
    with ThreadPoolExecutor(6) as pool:
        got = list(pool.map(e, texts))
    assert len(renewals) > 3
    for t, ids in zip(texts, got, strict=True):
        np.testing.assert_array_equal(ids, e.encoding.encode_to_numpy(t, disallowed_special=()))


def test_where_nobody_tells_the_memory_text_is_counted(monkeypatch):
    made, load = [], encoders._load_fast
    monkeypatch.setattr(encoders, "_load_fast", lambda name: made.append(name) or load(name))
    monkeypatch.setattr(encoders, "resident", lambda: None)
    monkeypatch.setattr(encoders, "_LOOK", 100_000)
    monkeypatch.setattr(encoders, "REMEMBERED", 2_000_000)
    e = Encoder("cl100k_base")
    for i in range(10):
        e(words(i, 15_000))
    assert 4 <= len(made) <= 7  # the first, and one each 250,000 characters or at the next look


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of the process")
def test_random_words_do_not_fill_the_memory():
    """100 MB of words that never come again; without a bound they raise the process to more than 700 MB."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\nfrom test_memory import words\nfrom"
        " ragbench.text.tiktoken_encoder import encoder\nfrom ragbench.base.memory import resident\ne ="
        " encoder('cl100k_base'); e('warm'); before = resident(); most = 0\nfor i in range(25): e(words(i,"
        " 450_000)); most = max(most, resident() - before)\nprint(most)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, os.path.dirname(__file__)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < encoders.REMEMBERED + 200_000_000


def test_documents_are_remembered_within_bytes():
    """256 MB of them, and not 4,096: of large documents the oldest are forgotten."""
    token_starts.cache_clear()
    for i in range(20):
        token_starts(Document(f"d{i}", words(100 + i, 60_000)))
    assert 0 < token_starts.held() <= 256_000_000
    before, doc = token_starts.held(), Document("d19", words(119, 60_000))
    assert token_starts(doc) is token_starts(doc) and token_starts.held() == before
    token_starts.cache_clear()
    conditions._words("a b")
    assert conditions._words.held() <= 16_000_000


def test_a_cache_of_bytes_is_safe_among_threads():
    @lru_bytes(10_000)
    def twice(text):
        return text * 2

    texts = [str(i % 37) * 200 for i in range(2000)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(twice, texts)) == [t * 2 for t in texts]
    assert twice.held() <= 10_000
    with pytest.raises(RagbenchError):
        lru_bytes("much")
    assert resident() is None or resident() > 10_000_000


LINUX = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="this system does not tell what a process takes"
)


@LINUX
def test_what_an_index_takes_is_measured_in_a_process_of_its_own():
    x = np.random.default_rng(0).normal(size=(60_000, 64)).astype(np.float32)
    measured = guard(FaissFlat(), x, x[:3], memory=True)
    assert 12e6 < measured.memory_bytes < 40e6  # 15.4 MB of vectors
    assert measured.facts["memory_MB"] == measured.memory_bytes / 1e6
    assert repr(measured).endswith(" MB in memory") and measured.recall.mean == 1
    without = guard(FaissFlat(), x[:100], x[:3])
    assert without.facts["memory_MB"] is None and "in memory" not in repr(without)


class Here:
    "An index that only this process knows."


@LINUX
def test_an_index_that_another_process_cannot_make_is_refused_with_what_that_said():
    x = np.eye(4, dtype=np.float32)
    with pytest.raises(DataError, match=r"(?s)measures memory ended early \(.*Error"):
        memory_of(Here(), x, x)
