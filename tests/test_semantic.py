"""Semantic chunkers against brute force: the best partition is the best of all, and thresholds are those of
the published search."""

import itertools
import re
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbench.chunk.certificate import certify
from ragbench.chunk.cluster import ClusterChunker, band, best_partition, worth
from ragbench.chunk.kamradt import KamradtChunker, published_sentences, threshold_for, turns
from ragbench.chunk.recursive import RecursiveChunker
from ragbench.core.documents import Corpus, Document
from ragbench.core.vectors import Space, Vectors
from ragbench.store.fingerprint import fingerprint
from ragbench.text.tokenizers import get_tokenizer

TEXTS = st.lists(
    st.sampled_from(
        ["pump valve. ", "bread rises! ", "\n\n", "🙂 ", "離心泵。", "x? ", "Dr. Who ", "\r\n", "word " * 30]
    ),
    max_size=30,
).map("".join)


@dataclass(frozen=True)
class Words:
    """Counts of words, hashed into `dim` places."""

    dim: int = 64
    max_tokens = None

    @property
    def space(self):
        return Space("words", "1", self.dim)

    def embed_passages(self, texts):
        v = np.zeros((len(texts), self.dim))
        for row, t in zip(v, texts):
            for w in re.findall(r"\w+", t.lower()):
                row[crc32(w.encode()) % self.dim] += 1
        return Vectors(v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-9), self.space)

    embed_queries = embed_passages


def partitions(n):
    """Every partition of n pieces into runs, as [(first, past the last)]."""
    for k in range(n):
        for cuts in itertools.combinations(range(1, n), k):
            yield list(zip((0, *cuts), (*cuts, n)))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 6), st.integers(0, 10_000))
def test_the_partition_is_the_best_of_all(n, width, seed):
    v = np.random.default_rng(seed).normal(size=(n, 3)).astype(np.float32)
    s = v.astype(np.float64) @ v.astype(np.float64).T
    s -= s[np.triu_indices(n, 1)].mean() if n > 1 else 0
    np.fill_diagonal(s, 0)

    def value(runs):
        return sum(s[a:z, a:z].sum() for a, z in runs)

    runs = best_partition(worth(band(v, width)), np.full(n, width))
    assert runs[0, 0] == 0
    assert runs[-1, 1] == n - 1
    assert (runs[1:, 0] == runs[:-1, 1] + 1).all()
    assert (runs[:, 1] - runs[:, 0] < width).all()
    best = max(value(p) for p in partitions(n) if max(z - a for a, z in p) <= width)
    assert value([(a, z + 1) for a, z in runs]) == pytest.approx(best, abs=1e-9)


def published_partition(s, width):
    """Chroma's dynamic programme over the full matrix, as described in their report; the start of its table
    corrected (see the chapter)."""
    n, best, first = len(s), [0.0], []
    for i in range(n):
        options = [
            (s[i - m + 1 : i + 1, i - m + 1 : i + 1].sum() + best[i - m + 1], -m)
            for m in range(1, min(width, i + 1) + 1)
        ]
        value, m = max(options)
        best.append(value)
        first.append(i + m + 1)
    runs, i = [], n - 1
    while i >= 0:
        runs.append([first[i], i])
        i = first[i] - 1
    return runs[::-1]


@pytest.mark.parametrize("seed", range(5))
def test_the_band_gives_the_partition_of_the_full_matrix(seed):
    v = np.random.default_rng(seed).normal(size=(300, 24)).astype(np.float32) + 0.3
    s = v.astype(np.float64) @ v.astype(np.float64).T
    s -= s[np.triu_indices(300, 1)].mean()
    np.fill_diagonal(s, 0)
    assert best_partition(worth(band(v, 8)), np.full(300, 8)).tolist() == published_partition(s, 8)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 2), max_size=40), st.integers(0, 50))
def test_the_threshold_is_the_one_that_halving_finds(distances, cuts):
    d, low, high = np.array(distances), 0.0, 1.0
    while high - low > 1e-8:
        middle = (low + high) / 2
        low, high = (middle, high) if (d > middle).sum() > cuts else (low, middle)
    assert threshold_for(d, cuts) == pytest.approx(high, abs=2e-6)


def test_the_percentile_variant_by_hand():
    """Kamradt's recipe, step by step, on strings."""
    text = " ".join(
        f"{w} {w} says {i}."
        for i, w in enumerate("pump pump pump bread bread bread rose rose rose rose".split())
    )
    sentences = re.split(r"(?<=[.?!])\s+", text)
    joined = [" ".join(sentences[max(0, i - 1) : i + 2]) for i in range(len(sentences))]
    v = Words().embed_passages(joined).array.astype(np.float64)
    distances = [1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(v, v[1:])]
    limit, want, start = np.percentile(distances, 80), [], 0
    for i, d in enumerate(distances):
        if d > limit:
            want.append(" ".join(sentences[start : i + 1]))
            start = i + 1
    want.append(" ".join(sentences[start:]))
    assert KamradtChunker(Words(), percentile=80)(Document("d", text)).texts == want
    assert len(want) > 1


@settings(max_examples=100, deadline=None)
@given(TEXTS, st.integers(10, 80))
def test_nothing_is_lost_and_the_size_is_kept(text, size):
    doc = Document("d", text)
    for chunker in (
        KamradtChunker(Words(), 50),
        KamradtChunker(Words(), mean_size=size, buffer=3),
        ClusterChunker(Words(), size, 10),
    ):
        chunks = chunker(doc)
        held = {i for s, e in chunks.spans.tolist() for i in range(s, e)}
        assert not {i for i, c in enumerate(text) if not c.isspace()} - held, chunker
        assert (chunks.start[1:] >= chunks.end[:-1]).all()
    starts = get_tokenizer("cl100k_base").spans(text)[:, 0]
    assert all(
        np.searchsorted(starts, e) - np.searchsorted(starts, s) <= size or e - s == 1
        for s, e in chunks.spans.tolist()
    )


@pytest.mark.parametrize(
    "chunker",
    [
        KamradtChunker(Words()),
        KamradtChunker(Words(), mean_size=60, buffer=3),
        ClusterChunker(Words(), 100, 25),
        ClusterChunker(Words(), 64, 64),
        KamradtChunker(Words(), 50, pieces=RecursiveChunker(20)),
    ],
    ids=lambda c: repr(c)[:60],
)
def test_they_are_certified(chunker):
    certificate = certify(chunker, large=100_000)
    assert certificate, certificate


def test_the_embedder_decides():
    """Not the position: with a topic that changes in the middle of windows, the cuts follow the topic."""
    doc = Document(
        "d",
        "\n".join(
            ["Pumps move oil and oil cools pumps."] * 5 + ["Yeast lifts bread when bread is warm."] * 3
        ),
    )
    assert ClusterChunker(Words(), 60, 10)(doc).spans.tolist() == [[0, 179], [180, 293]]
    first, second = fingerprint(ClusterChunker(Words(64))), fingerprint(ClusterChunker(Words(32)))
    assert first != second


def test_a_document_is_cut_the_same_alone_or_in_a_corpus():
    docs = [Document(str(i), f"Part {i}. " * 20 + "Other words here. " * 10) for i in range(3)]
    for chunker in (KamradtChunker(Words()), ClusterChunker(Words(), 40, 10)):
        assert chunker(Corpus(docs)).spans.tolist() == [s for d in docs for s in chunker(d).spans.tolist()]


def test_sentences_and_turns():
    assert published_sentences("").tolist() == []
    assert published_sentences("no end").tolist() == [[0, 6]]
    v = np.array([[1, 0], [0, 0], [1, 1]])
    assert turns(v).tolist() == [1, 1]
