"""Adapters: whatever a splitter does to white space, its chunks get exact offsets, or an error that names the
chunk."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbench.chunk.adapters import (
    AlignmentError,
    align,
    from_chonkie,
    from_function,
    from_langchain,
    from_llama_index,
    from_semchunk,
    ink,
)
from ragbench.core.documents import Document
from ragbench.core.spans import length
from ragbench.store.fingerprint import fingerprint

# few different pieces, so that texts repeat themselves at every scale
REPEATS = st.lists(
    st.sampled_from(["a", "b", "ab", " ", "\n\n", "a b ", "pump ", "\r\n", "🙂", "e\u0301", "ปั๊ม"]),
    max_size=80,
).map("".join)
ANY = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), max_size=200)
TEXTS = st.one_of(REPEATS, ANY)


@st.composite
def sliced(draw, overlap: bool):
    """A text and windows of it in order; with `overlap`, none of them lies inside the one before."""
    text = draw(TEXTS)
    bounds = sorted(draw(st.sets(st.integers(0, len(text)), max_size=12)) | {0, len(text)})
    spans = []
    for s, e in zip(bounds, bounds[1:]):
        back = draw(st.integers(0, max(s - (spans[-1][0] + 1), 0))) if overlap and spans else 0
        spans.append((s - back, e))
    return text, spans


def squeezed(text: str) -> str:
    return "".join(text.split())


@settings(max_examples=300, deadline=None)
@given(sliced(overlap=False))
def test_slices_come_back_as_they_were_cut(case):
    """Without overlap nothing is ambiguous, however much the text repeats itself."""
    text, spans = case
    kept = [[s, e] for s, e in spans if text[s:e].strip()]
    assert from_function(lambda t: [t[s:e] for s, e in spans])(Document("d", text)).spans.tolist() == kept


@settings(max_examples=300, deadline=None)
@given(
    sliced(overlap=False),
    st.sampled_from([str.strip, lambda p: " ".join(p.split()), lambda p: squeezed(p), lambda p: f"\n{p} \t"]),
)
def test_changed_white_space_changes_no_offset(case, change):
    text, spans = case
    got = from_function(lambda t: [change(t[s:e]) for s, e in spans])(Document("d", text)).spans.tolist()
    at = ink(text)[1]
    want = [at[(at >= s) & (at < e)] for s, e in spans]
    assert [(w[0], w[-1]) for w in want if len(w)] == [(at[at >= s][0], at[at < e][-1]) for s, e in got]


@settings(max_examples=300, deadline=None)
@given(sliced(overlap=True))
def test_overlapping_windows_are_placed_in_order_and_cover_the_text(case):
    """Where the text repeats, overlapping strings do not say where they came from; what is promised is
    this."""
    text, spans = case
    kept = [text[s:e] for s, e in spans if text[s:e].strip()]
    got = align(text, [text[s:e] for s, e in spans])
    assert [squeezed(text[s:e]) for s, e in got] == [squeezed(k) for k in kept]
    assert (np.diff(got[:, 0]) >= 0).all()
    at = ink(text)[1]
    assert length(np.c_[np.searchsorted(at, got[:, 0]), np.searchsorted(at, got[:, 1])]) == len(at)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from("abcdefgh"), min_size=2, max_size=40), st.data())
def test_without_repeats_overlap_is_exact(words, data):
    text = " ".join(f"{w}{i}" for i, w in enumerate(words))
    starts = sorted(data.draw(st.sets(st.integers(0, len(text) - 1), min_size=1)))
    ends = [min(len(text), s + data.draw(st.integers(1, 30))) for s in starts]
    spans = [(s, e) for s, e in zip(starts, ends) if len(squeezed(text[s:e])) > 6]
    assert align(text, [text[s:e] for s, e in spans]).tolist() == [list(x) for x in spans]


@pytest.mark.parametrize("separator", [". ", ",", " | "])
def test_dropped_separators(separator):
    text = separator.join(["alpha", "beta", "alpha", "alpha", "beta", "alpha"])
    got = from_function(lambda t: t.split(separator))(Document("d", text))
    assert got.spans.tolist() == [list(m.span()) for m in re.finditer("alpha|beta", text)]


@settings(max_examples=100, deadline=None)
@given(sliced(overlap=False), st.data())
def test_invented_text_is_refused(case, data):
    text, spans = case
    pieces = [text[s:e] for s, e in spans]
    i = data.draw(st.integers(0, len(pieces))) if pieces else 0
    with pytest.raises(AlignmentError, match=f"chunk {i} is not in the text"):
        align(text, [*pieces[:i], "\u2603 snow", *pieces[i:]])


def test_order_is_asked_for():
    with pytest.raises(AlignmentError, match="chunk 1 lies before"):
        align("one two three", ["two", "one"])


def test_offsets_that_hold_are_used_and_others_are_not():
    """In a periodic text only the splitter knows where an overlapping chunk began; its word counts if it is
    consistent."""

    class Chunk:
        def __init__(self, s, e, text):
            self.start_index, self.end_index, self.text = s, e, text

    class Splitter:
        def __init__(self, shift):
            self.shift = shift

        def chunk(self, text):
            return [Chunk(s + self.shift, s + 4 + self.shift, text[s : s + 4]) for s in (0, 1, 4)]

    doc = Document("d", "aaaabaaaa"[:8] + "b")
    assert from_chonkie(Splitter(0))(doc).start.tolist() == [0, 1, 4]
    assert from_chonkie(Splitter(1))(doc).texts == [doc.text[s : s + 4] for s in (0, 1, 4)]
    semchunk = from_semchunk(lambda text, offsets: (["aaaa"], [(0, 4)]))
    assert semchunk(doc).spans.tolist() == [[0, 4]]


def test_half_characters():
    """Every cut of a text at token borders, decoded as the token splitters do it."""
    from ragbench.text.tiktoken_encoder import load_encoding

    encoding = load_encoding("cl100k_base")
    text = "go 🙂 离心泵 🙂🙂 and ปั๊มน้ำ"
    ids = encoding.encode_ordinary(text)
    for size in (3, 4, 5, 7):
        pieces = [encoding.decode(ids[i : i + size]) for i in range(0, len(ids), size)]
        got = align(text, pieces)
        assert any("\ufffd" in p for p in pieces)
        assert squeezed(text) == squeezed("".join(text[s:e] for s, e in got)) or length(got) >= len(
            squeezed(text)
        )
        for p, (s, e) in zip([p for p in pieces if p.strip()], got, strict=True):
            assert (
                squeezed(p.strip("\ufffd")) in squeezed(text[s:e])
                and len(squeezed(text[s:e])) <= len(squeezed(p.strip("\ufffd"))) + 2
            )


def test_a_fingerprint_follows_the_settings():
    class Splitter:
        def __init__(self, size, measure=len):
            self.size, self.measure = size, measure

        def split_text(self, text):
            return [text[i : i + self.size] for i in range(0, self.measure(text), self.size)]

    names = {
        fingerprint(from_langchain(s))
        for s in (
            Splitter(3),
            Splitter(3),
            Splitter(4),
            Splitter(3, lambda t: len(t)),
            Splitter(3, lambda t: len(t) + 1),
        )
    }
    assert len(names) == 4


def test_splitters_are_told_apart_by_what_is_shown():
    """A leaderboard and a store of results know a chunker by its repr: class and settings are in it, and what
    cannot be shown counts too."""

    class Splitter:
        def __init__(self, size, separators=(" ",), measure=len):
            self._chunk_size, self.separators, self._measure = size, list(separators), measure

        def split_text(self, text):
            return text.split()

    made = [
        from_langchain(Splitter(3)),
        from_langchain(Splitter(4)),
        from_langchain(Splitter(3, ("\n", " "))),
        from_langchain(Splitter(3, measure=lambda t: 2 * len(t))),
        from_function(str.split),
        from_function(str.splitlines),
        from_function(re.compile("a").split),
        from_function(re.compile("b").split),
        from_function(lambda t: [t]),
        from_function(str.split, identity="mine 1"),
        from_function(str.split, identity="mine 2"),
    ]
    assert len({repr(c) for c in made}) == len({fingerprint(c) for c in made}) == len(made)
    assert repr(from_langchain(Splitter(3))) == repr(made[0])
    assert "Splitter" in repr(made[0]) and "chunk_size=3" in repr(made[0])
    lc = pytest.importorskip("langchain_text_splitters")
    real = [
        from_langchain(lc.RecursiveCharacterTextSplitter(chunk_size=n, chunk_overlap=8)) for n in (60, 61)
    ]
    assert repr(real[0]) != repr(real[1]) and "RecursiveCharacterTextSplitter, chunk_size=60" in repr(real[0])
    assert real[0](Document("d", "a text")).made_by == repr(real[0])


def test_linear_in_the_worst_case():
    """A periodic megabyte: the number of characters compared must not explode, or this never ends."""
    text = "ab" * 500_000
    pieces = [text[i : i + 2000] for i in range(0, len(text), 1500)]
    got = align(text, pieces)
    assert got[-1, 1] == len(text) and len(got) == len(pieces)


def peers():
    """Real splitters, each with the adapter meant for it, made twice so that fingerprints can be compared."""
    from ragbench.text.tiktoken_encoder import load_encoding

    encoding = load_encoding("cl100k_base")

    def langchain(size):
        lc = pytest.importorskip("langchain_text_splitters")
        return from_langchain(lc.RecursiveCharacterTextSplitter(chunk_size=size, chunk_overlap=8))

    def llama_index(size):
        li = pytest.importorskip("llama_index.core.node_parser")
        return from_llama_index(li.SentenceSplitter(chunk_size=size, chunk_overlap=8))

    def chonkie(size):
        ch = pytest.importorskip("chonkie")
        return from_chonkie(ch.SentenceChunker(encoding, size, 8))

    def semchunk(size):
        return from_semchunk(pytest.importorskip("semchunk").chunkerify(encoding, size))

    return [langchain, llama_index, chonkie, semchunk]


@pytest.mark.parametrize("make", peers(), ids=lambda m: m.__name__)
def test_real_splitters(make):
    """Those that are installed: exact, ordered and complete on every kind of text, and a fingerprint that
    follows the settings and not the use."""
    from ragbench.chunk.certificate import Promise, examine, stress_corpus

    chunker = make(60)
    for doc in stress_corpus():
        if doc.metadata["kind"] != "special-token text":  # on which some of them raise
            assert examine(chunker, doc, Promise()) == {}, doc
    assert fingerprint(chunker) == fingerprint(make(60)) != fingerprint(make(61))
