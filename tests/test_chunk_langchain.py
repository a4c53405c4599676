"""Our recursive splitting against LangChain's: the same splits where both mean the same, and right offsets
where LangChain's are wrong."""

import numpy as np
import pytest
from helper_texts import PIECES
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbench.chunk.recursive import RecursiveChunker, character_spans, recursive_spans, trim
from ragbench.chunk.token import TokenChunker
from ragbench.core.documents import Document

splitters = pytest.importorskip("langchain_text_splitters")

TEXTS = st.lists(st.sampled_from([*PIECES, "\n"]), max_size=80).map("".join)
WINDOWS = st.integers(2, 80).flatmap(
    lambda size: st.tuples(st.just(size), st.integers(0, size - 1))
)  # of size 1 LangChain leaves white space on
SEPARATORS = st.sampled_from(
    [
        ("\n\n", "\n", " ", ""),
        ("\n", " ", ""),
        ("\n\n", ". ", " ", ""),
        ("\n\n", "\n"),
        (" ",),
        ("",),
        ("\r\n", "\n", "x", ""),
    ]
)


def distinct(n: int) -> str:
    """`n` words in lines and paragraphs, no word twice: a text without repeats."""
    return "".join(
        f"w{i:05d}" + ("\n\n" if i % 37 == 36 else "\n" if i % 11 == 10 else " ") for i in range(n)
    )


@settings(max_examples=400, deadline=None)
@given(TEXTS, WINDOWS, SEPARATORS)
def test_characters_are_split_as_langchain_splits_them(text, window, separators):
    size, overlap = window
    theirs = splitters.RecursiveCharacterTextSplitter(
        chunk_size=size, chunk_overlap=overlap, separators=list(separators)
    ).split_text(text)
    ours = RecursiveChunker(size, overlap, "characters", separators)(Document("d", text))
    assert ours.texts == [t.strip() for t in theirs if t.strip()]


RUNS = st.lists(st.sampled_from([*PIECES, "\n\n\n", "aba", "a", "b"]), max_size=60).map("".join)


@settings(max_examples=500, deadline=None)
@given(
    RUNS,
    WINDOWS,
    st.one_of(SEPARATORS, st.sampled_from([("aba", "a", ""), ("\n\n\n", "\n\n", "\n"), ("  ", " ", "")])),
)
def test_searching_gives_what_the_definition_gives(text, window, separators):
    """In characters chunks are found by `str.find`; the definition cuts at every separator and merges."""
    size, overlap = window
    want = [
        s
        for s in recursive_spans(text, 0, len(text), lambda bounds: bounds, size, overlap, separators)
        if s[0] < s[1]
    ]
    assert (
        trim(text, character_spans(text, 0, len(text), size, overlap, separators)).tolist()
        == trim(text, want).tolist()
    )


@pytest.mark.parametrize(("size", "overlap"), [(40, 0), (200, 50), (1000, 200)])
def test_offsets_agree_where_nothing_repeats(size, overlap):
    text = distinct(2000)
    theirs = splitters.RecursiveCharacterTextSplitter(
        chunk_size=size, chunk_overlap=overlap, add_start_index=True
    ).create_documents([text])
    ours = RecursiveChunker(size, overlap, "characters")(Document("d", text))
    assert ours.start.tolist() == [d.metadata["start_index"] for d in theirs]
    assert ours.texts == [d.page_content for d in theirs]


def test_offsets_are_ours_to_trust_where_text_repeats():
    """LangChain searches for its chunks from about where it thinks it is; in a text that repeats itself it
    finds an earlier copy."""
    text = "\n\n".join(["Keep it open for a whole minute. Wait.", "Wait."] * 6)
    theirs = splitters.RecursiveCharacterTextSplitter(
        chunk_size=40, chunk_overlap=20, add_start_index=True
    ).create_documents([text])
    ours = RecursiveChunker(40, 20, "characters")(Document("d", text))
    assert [d.page_content for d in theirs] == ours.texts
    wrong = [i for i, d in enumerate(theirs) if d.metadata["start_index"] != ours.start[i]]
    assert wrong, "LangChain's offsets are right by now: say so in the chapter on recursive splitting"
    assert (np.diff(ours.start) > 0).all()  # ours are the definition: rising, and every word covered
    covered = {i for s, e in ours.spans.tolist() for i in range(s, e)}
    assert all(c.isspace() for i, c in enumerate(text) if i not in covered)


def test_token_windows_are_langchains_where_no_character_is_split():
    text = distinct(3000)
    theirs = splitters.TokenTextSplitter(
        encoding_name="cl100k_base", chunk_size=100, chunk_overlap=20
    ).split_text(text)
    assert TokenChunker(100, 20)(Document("d", text)).texts == theirs


def test_token_windows_give_back_what_langchain_breaks():
    """Windows of LangChain's decode half characters as U+FFFD; ours are slices of the text."""
    text = "👩‍🔧🪠🧯," * 50
    theirs = splitters.TokenTextSplitter(
        encoding_name="cl100k_base", chunk_size=7, chunk_overlap=0
    ).split_text(text)
    assert any("\ufffd" in t for t in theirs)
    assert "".join(TokenChunker(7)(Document("d", text)).texts) == text


def test_tokens_stay_within_the_size_that_langchain_promises():
    """In tokens the two measure differently (once a document, once a piece), so what must agree is the
    promise."""
    from ragbench.text.tokenizers import get_tokenizer

    text = distinct(3000)
    count = get_tokenizer("cl100k_base").count
    assert all(count(t) <= 64 for t in RecursiveChunker(64, 16)(Document("d", text)).texts)
