"""Law 1 for every chunker that there is: exact offsets, order, nothing lost, sizes kept, whatever the text."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbench.chunk.recursive import RecursiveChunker
from ragbench.chunk.token import TokenChunker
from ragbench.core.documents import Corpus, Document
from ragbench.core.tokenizers import get_tokenizer

# text as it comes: words, emoji, combining marks, right-to-left, Thai, Chinese, CRLF, special tokens, repeats
PIECES = ["pump ", "valve\n", "\n\n", "  ", "\r\n", "🙂", "e\u0301", "שלום ", "ปั๊มน้ำ", "离心泵", "<|endoftext|>", "foo-bar ", "a" * 50, "1.2.3 ", "\u200b", "\t", "x"]
TEXTS = st.one_of(st.lists(st.sampled_from(PIECES), max_size=60).map("".join), st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
WINDOWS = st.integers(1, 40).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1)))


def chunkers(size: int, overlap: int):
    return [TokenChunker(size, overlap), TokenChunker(size, overlap, "all-MiniLM-L6-v2"), RecursiveChunker(size, overlap), RecursiveChunker(size, overlap, "characters")]


def covered(chunks) -> set[int]:
    return {i for s, e in chunks.spans.tolist() for i in range(s, e)}


@settings(max_examples=150, deadline=None)
@given(TEXTS, WINDOWS)
def test_offsets_are_exact_and_nothing_is_lost(text, window):
    doc = Document("d", text)
    for chunker in chunkers(*window):
        chunks = chunker(doc)
        assert chunks.texts == [text[s:e] for s, e in chunks.spans.tolist()]
        assert (np.diff(chunks.start) >= 0).all() and (np.diff(chunks.end) >= 0).all(), chunker
        assert not any(t.isspace() or not t for t in chunks.texts)
        if getattr(chunker, "tokenizer", "") != "all-MiniLM-L6-v2":  # a word-piece tokenizer gives some characters no token
            missing = {i for i, c in enumerate(text) if not c.isspace()} - covered(chunks)
            assert not missing, (chunker, [text[i] for i in sorted(missing)])


@settings(max_examples=150, deadline=None)
@given(TEXTS, WINDOWS)
def test_sizes_are_kept(text, window):
    size, overlap = window
    doc = Document("d", text)
    assert all(len(t) <= size for t in RecursiveChunker(size, overlap, "characters")(doc).texts)
    starts = get_tokenizer("cl100k_base").spans(text)[:, 0]
    for chunker in (TokenChunker(size, overlap), RecursiveChunker(size, overlap)):
        for s, e in chunker(doc).spans.tolist():
            tokens = np.searchsorted(starts, e) - np.searchsorted(starts, s)
            # one character may be several tokens (an emoji): it is never cut, so a chunk of it alone may be larger
            assert tokens <= size or e - s == 1 or isinstance(chunker, TokenChunker) and tokens <= size + 3, (chunker, text[s:e])


@settings(max_examples=50, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=4), WINDOWS)
def test_a_document_is_cut_the_same_alone_or_in_a_corpus(texts, window):
    corpus = Corpus([Document(str(i), t) for i, t in enumerate(texts)])
    for chunker in chunkers(*window):
        together = chunker(corpus)
        alone = [s for d in corpus for s in chunker(d).spans.tolist()]
        assert together.spans.tolist() == alone
        assert together.fingerprint == chunker(corpus).fingerprint


@pytest.mark.parametrize("size", [1, 7, 64])
def test_token_windows_are_the_tokens(size):
    """Against the definition: windows without overlap tile the text, and each holds exactly `size` tokens of the document."""
    text = "Valve V‑12 🙂 opens at 2.4 bar.\r\n" * 20
    chunks = TokenChunker(size)(Document("d", text))
    ids = get_tokenizer("cl100k_base").ids(text)
    assert "".join(chunks.texts) == text or size == 1  # with one token a window, blank ones are left out
    assert len(chunks) <= -(-len(ids) // size)


@pytest.mark.parametrize("chunker", [TokenChunker(200, 20), RecursiveChunker(200, 20), RecursiveChunker(200, 20, "characters")])
def test_ten_megabytes_on_one_line(chunker):
    text = ("pump valve motor " * 600_000)[:10_000_000]
    chunks = chunker(Document("d", text))
    assert chunks.start[0] == 0
    assert text[chunks.end[-1]:].strip() == ""
