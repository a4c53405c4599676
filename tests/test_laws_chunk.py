"""Law 1 for every chunker that there is: exact offsets, order, nothing lost, sizes kept, whatever the
text."""

import helper_texts
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbench.chunk.by_type import ByType
from ragbench.chunk.character import CharacterChunker
from ragbench.chunk.field import FieldChunker
from ragbench.chunk.paragraph import ParagraphChunker
from ragbench.chunk.recursive import RecursiveChunker
from ragbench.chunk.section import SectionChunker
from ragbench.chunk.sentence import SentenceChunker
from ragbench.chunk.token import TokenChunker
from ragbench.core.documents import Corpus, Document, Field, Heading
from ragbench.text.token_table import pieces, token_table, token_tables
from ragbench.text.tokenizers import get_tokenizer

# text as it comes: words, emoji, combining marks, right-to-left, Thai, Chinese, CRLF, special tokens,
# repeats, structure
PIECES = [
    *helper_texts.PIECES,
    "。",
    "<|endoftext|>",
    "foo-bar ",
    "Stop. ",
    "\n\n2.3 Startup\n\n",
    "\n1.1 Scope\n",
    "\nStep 1. ",
    "\nStep 2. ",
    "\n```\n",
    "\n\n---\n\n",
    "\f",
    "👩‍🔧",
]
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=60).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
)
WINDOWS = st.integers(1, 40).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1)))


def chunkers(size: int, overlap: int):
    low = size // 2
    return [
        TokenChunker(size, overlap),
        TokenChunker(size, overlap, "all-MiniLM-L6-v2"),
        RecursiveChunker(size, overlap),
        RecursiveChunker(size, overlap, "characters"),
        *(TokenChunker(size, overlap, snap=kind) for kind in ("paragraph", "sentence", "word")),
        TokenChunker(size, overlap, "all-MiniLM-L6-v2", "sentence", size),
        RecursiveChunker(size, overlap, "all-MiniLM-L6-v2"),
        SentenceChunker(size, overlap, "all-MiniLM-L6-v2"),
        ParagraphChunker(size, overlap, low, "all-MiniLM-L6-v2"),
        SectionChunker(size, overlap, low, "all-MiniLM-L6-v2"),
        CharacterChunker(size, overlap),
        SentenceChunker(size, overlap),
        ParagraphChunker(size, overlap, low),
        ParagraphChunker(size, overlap, 0),
        SectionChunker(size, overlap, low),
        SectionChunker(size, min_size=0, fallback=TokenChunker(size, overlap)),
        ByType({"default": SectionChunker(size, min_size=0)}),
    ]


def covered(chunks) -> set[int]:
    return {i for s, e in chunks.spans.tolist() for i in range(s, e)}


@settings(max_examples=150, deadline=None)
@given(TEXTS, WINDOWS)
def test_offsets_are_exact_and_nothing_is_lost(text, window):
    doc = Document("d", text)
    for chunker in chunkers(*window):
        chunks = chunker(doc)
        assert chunks.section is None or len(chunks.section) == len(chunks)
        assert chunks.texts == [text[s:e] for s, e in chunks.spans.tolist()]
        assert (np.diff(chunks.start) >= 0).all() and (np.diff(chunks.end) >= 0).all(), chunker
        assert not any(t.isspace() or not t for t in chunks.texts)
        missing = {i for i, c in enumerate(text) if not c.isspace()} - covered(chunks)
        assert not missing, (chunker, [text[i] for i in sorted(missing)])


@settings(max_examples=150, deadline=None)
@given(TEXTS, WINDOWS)
def test_sizes_are_kept(text, window):
    size, overlap = window
    doc = Document("d", text)
    assert all(len(t) <= size for t in RecursiveChunker(size, overlap, "characters")(doc).texts)
    starts = get_tokenizer("cl100k_base").spans(text)[:, 0]
    for chunker in chunkers(size, overlap):
        if (
            chunker == ByType({"default": SectionChunker(size, min_size=0)})
            or getattr(chunker, "tokenizer", "characters") != "cl100k_base"
            or getattr(chunker, "fallback", None)
        ):
            continue
        for s, e in chunker(doc).spans.tolist():
            tokens = np.searchsorted(starts, e) - np.searchsorted(starts, s)
            # one character may be several tokens (an emoji): it is never cut, so the characters at the edges
            # may bring theirs
            assert tokens <= size + 3, (chunker, text[s:e])


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
    """Against the definition: windows without overlap tile the text, and each but the last holds exactly
    `size` tokens of the document."""
    text = "Valve V‑12 🙂 opens at 2.4 bar.\r\n" * 20
    chunks = TokenChunker(size)(Document("d", text))
    assert "".join(chunks.texts) == text or size == 1  # with one token a window, blank ones are left out
    plain = "Valve V-12 opens at 2.4 bar; wait.\n" * 20  # no character of several tokens
    spans = get_tokenizer("cl100k_base").spans(plain)
    whole = [plain[spans[i][0] : spans[min(i + size, len(spans)) - 1][1]] for i in range(0, len(spans), size)]
    assert TokenChunker(size)(Document("d", plain)).texts == [t for t in whole if not t.isspace()]
    shared = [
        plain[spans[i][0] : spans[min(i + size, len(spans)) - 1][1]]
        for i in range(0, max(len(spans) - size // 2, 1), size - size // 2)
    ]
    assert TokenChunker(size, size // 2)(Document("d", plain)).texts == [t for t in shared if not t.isspace()]


@pytest.mark.parametrize(
    "chunker", [c for c in chunkers(200, 20) if getattr(c, "tokenizer", "") != "all-MiniLM-L6-v2"], ids=repr
)
def test_ten_megabytes_on_one_line(chunker):
    text = ("pump valve motor " * 600_000)[:10_000_000]
    chunks = chunker(Document("d", text))
    assert chunks.start[0] == 0
    assert text[chunks.end[-1] :].strip() == ""


@settings(max_examples=100, deadline=None)
@given(TEXTS, st.integers(1, 50), st.sampled_from(["cl100k_base", "o200k_base", "all-MiniLM-L6-v2"]))
def test_pieces_and_threads_change_no_token(text, size, name):
    tokenizer = get_tokenizer(name)
    assert "".join(pieces(text, size)) == text
    whole = tokenizer.spans(text)
    parts, at = [], 0
    for piece in pieces(text, size):
        parts.append(at + tokenizer.spans(piece))
        at += len(piece)
    assert np.array_equal(np.concatenate([np.empty((0, 2), np.int64), *parts]), whole)
    table = token_table(tokenizer, text)
    if name != "all-MiniLM-L6-v2":
        assert np.array_equal(np.c_[table.starts, table.ends], whole)
    assert (
        (np.diff(table.starts) >= 0).all()
        and (table.ends[:-1] <= table.starts[1:]).all()
        and (table.starts <= table.ends).all()
    )


def test_threads_change_nothing():
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(PIECES, n)) for n in (0, 3, 50_000, 0, 7, 20_000, 0)]
    for name in ("cl100k_base", "o200k_base", "all-MiniLM-L6-v2"):
        for one, four in zip(
            token_tables(get_tokenizer(name), texts, 1),
            token_tables(get_tokenizer(name), texts, 4),
            strict=True,
        ):
            assert np.array_equal(one.starts, four.starts)
            assert np.array_equal(one.ends, four.ends)


UNSEEN = st.lists(
    st.sampled_from(
        [
            "pump",
            " ",
            "\u200b",
            "\u0301",
            "e\u0301",
            "\x00",
            "\x07",
            "\ufffd",
            "🙂",
            "👩‍🔧",
            "离",
            "ป",
            "\u202b",
            "\u00ad",
            "\ufe0f",
            "\n\n",
            "a ",
            "ab ab ab",
        ]
    ),
    max_size=40,
).map("".join)


@settings(max_examples=300, deadline=None)
@given(UNSEEN, st.integers(1, 20), st.integers(1, 6))
def test_what_word_pieces_do_not_see_has_an_owner(text, size, piece):
    """Characters that get no token belong to a neighbouring one, wherever the text was cut into pieces; no
    count changes."""
    from ragbench.text import token_table as starts

    tokenizer = get_tokenizer("all-MiniLM-L6-v2")
    table = token_table(tokenizer, text)
    owned = {i for s, e in zip(table.starts.tolist(), table.ends.tolist()) for i in range(s, e)}
    assert {i for i, c in enumerate(text) if not c.isspace()} <= owned
    assert len(table) == (tokenizer.count(text) or bool(text.strip()))
    assert (np.diff(table.starts) >= 0).all() and (table.ends[:-1] <= table.starts[1:]).all()
    before, starts.PIECE = starts.PIECE, piece
    try:
        small = starts._table([starts._model_piece(tokenizer)(p) for p in pieces(text, piece)], text, "small")
    finally:
        starts.PIECE = before
    assert np.array_equal(small.starts, table.starts) and np.array_equal(small.ends, table.ends)
    for snap in (None, "word"):
        missing = {i for i, c in enumerate(text) if not c.isspace()} - covered(
            TokenChunker(size, size // 3, "all-MiniLM-L6-v2", snap)(Document("d", text))
        )
        assert not missing, snap


@settings(max_examples=200, deadline=None)
@given(
    TEXTS,
    st.integers(2, 40),
    st.sampled_from(["word", "sentence", "paragraph"]),
    st.sampled_from(["cl100k_base", "all-MiniLM-L6-v2"]),
    st.data(),
)
def test_snapped_windows_keep_size_and_overlap(text, size, snap, tokenizer, data):
    """Both bounds, in tokens that reach into the window or the share; characters of several tokens at the
    edges are never cut."""
    overlap = data.draw(st.integers(0, size - 1))
    table = token_table(get_tokenizer(tokenizer), text)
    spans = TokenChunker(size, overlap, tokenizer, snap, data.draw(st.integers(0, size)))(
        Document("d", text)
    ).spans
    own = (
        table.ends > table.starts
    )  # tokens that own a character; a window may begin in white space, which belongs to none
    starts, ends = table.starts[own], table.ends[own]

    def tokens(s, e):
        return int(np.searchsorted(starts, e) - np.searchsorted(ends, s, side="right")) if e > s else 0

    assert all(tokens(s, e) <= size for s, e in spans.tolist())
    assert all(tokens(t, e) <= overlap for (_, e), (t, _) in zip(spans.tolist(), spans[1:].tolist()))


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.integers(4, 40), st.data())
def test_snapped_edges_never_move_beyond_the_bound(text, size, data):
    """Every end is where the count puts it, or at a gap at most `bound` tokens before."""
    overlap = data.draw(st.integers(0, size - 2))
    chunker = TokenChunker(size, overlap, snap="word", snap_within=data.draw(st.integers(0, size)))
    table = token_table(get_tokenizer("cl100k_base"), text)
    spans = chunker(Document("d", text)).spans
    for (s, e), (t, _) in zip(spans.tolist(), spans.tolist()[1:]):
        tokens = int(table.before(e) - table.before(s))
        assert size - chunker.bound - 3 <= tokens <= size + 3 or text[e:t].isspace() or not text[s:e].strip()
        if chunker.bound >= 1 and tokens < size - 3 and 0 < e < len(text):
            assert text[e].isspace() or text[e - 1].isspace()


PROSE = st.lists(
    st.sampled_from(
        [
            *PIECES,
            "Dr. Who came. ",
            "Is it? ",
            "(See A. B.) ",
            "\u00a0",
            "\u2028",
            "\u3000",
            "A",
            ".",
            "e.g. ",
            "\u201cStop!\u201d ",
        ]
    ),
    max_size=60,
).map("".join)


@settings(max_examples=100, deadline=None)
@given(PROSE, st.sampled_from(["en", "es", "zh"]))
def test_both_functions_of_sentencex_find_the_same_sentences(text, language):
    """`segment` is asked first because it is faster; its strings must lie where `get_sentence_boundaries`
    says."""
    from ragbench.text.sentences import ODD_SPACE, _starts, sentence_ends

    text = ODD_SPACE.sub(" ", text)
    assert sentence_ends(text, language).tolist() == (
        [*_starts(text, language)[1:], len(text)] if text else []
    )


def test_white_space_before_a_full_stop_does_not_panic():
    """sentencex panics at `A\u00a0.`, and a panic passes by every `except Exception`."""
    for space in (chr(c) for c in range(0x80, 0x3001) if chr(c).isspace()):
        text = f"By A{space}. And by B {space}{space}. Then C."
        assert SentenceChunker(50)(Document("d", text)).texts == [text]
        assert "".join(SentenceChunker(4)(Document("d", text)).texts).replace(" ", "").endswith("ThenC.")


@settings(max_examples=100, deadline=None)
@given(TEXTS, st.sampled_from(["cl100k_base", "all-MiniLM-L6-v2"]), st.data())
def test_one_number_and_many_are_the_same_question(text, name, data):
    """`first`, `within` and `into_one` are `before`, `count` and `into` of one offset."""
    table = token_table(get_tokenizer(name), text)
    edges = data.draw(st.lists(st.integers(0, len(text)), min_size=2, max_size=10).map(sorted))
    spans = np.array(list(zip(edges, edges[1:])))
    assert [table.first(e) for e in edges] == table.before(edges).tolist()
    assert [table.within(s, e) for s, e in spans.tolist()] == table.count(spans).tolist()
    assert [table.into_one(s, e) for s, e in spans.tolist()] == table.into(spans).tolist()


@settings(max_examples=100, deadline=None)
@given(TEXTS)
def test_lines_are_found_as_a_search_at_every_character_finds_them(text):
    from ragbench.chunk.structure import NUMBERED, STEP, at_lines

    for pattern in (NUMBERED, STEP):
        for t in (
            text,
            text.lstrip(),
            "1.1 Scope\n" + text,
            "Step 1. " + text,
        ):  # the first line has no break before it
            assert [(m.span(), m.groups()) for m in at_lines(pattern, t)] == [
                (m.span(), m.groups()) for m in pattern.finditer(t)
            ]


@settings(max_examples=100, deadline=None)
@given(TEXTS, WINDOWS)
def test_a_document_that_fits_is_cut_as_any_other(text, window):
    """The short way for documents within the size gives what the long way gives."""
    from ragbench.chunk.recursive import recursive_spans, trim

    size, overlap = window
    table = token_table(get_tokenizer("cl100k_base"), text)
    long = recursive_spans(text, 0, len(text), table.before, size, overlap) if text else []
    assert RecursiveChunker(size, overlap)(Document("d", text)).spans.tolist() == trim(text, long).tolist()


FENCED = st.lists(
    st.sampled_from(["pump ", "valve\n", "\n\n", "\n```\n", "open it. ", "1.2.3 "]), max_size=40
).map("".join)


@settings(max_examples=200, deadline=None)
@given(FENCED, st.integers(8, 60))
def test_fences_that_fit_are_whole(text, size):
    """A fence is what stands from one line of three backticks to the next, both lines included."""
    table = token_table(get_tokenizer("cl100k_base"), text)
    edges = ParagraphChunker(size, min_size=0)(Document("d", text)).spans.ravel().tolist()
    marks = [
        at for at in range(len(text)) if text.startswith("```", at) and (at == 0 or text[at - 1] == "\n")
    ]
    for s, e in zip(marks[::2], (m + 3 for m in marks[1::2])):
        if table.before(e) - table.before(s) < size - 3:
            assert not any(s < edge < e and text[s:edge].strip() and text[edge:e].strip() for edge in edges)


def test_fields_tile_what_was_chosen():
    doc = Document(
        "r",
        "Ada\nEngines\nUK",
        fields=(Field("name", 0, 3), Field("talk", 4, 11), Field("country", 12, 14)),
        format="csv",
    )
    assert FieldChunker()(doc).texts == ["Ada", "Engines", "UK"]
    assert FieldChunker(["name", "talk"], join=True)(doc).texts == ["Ada\nEngines"]


def test_section_paths_leave_ids_alone_and_are_part_of_the_table():
    text = "Intro.\n\n2.1 Limits\n\nLow.\n\n2.2 Startup\n\nStep 1. Open.\nStep 2. Wait."
    doc = Document("d", text, headings=(Heading(1, "Intro.", 0, 6),))
    labelled = SectionChunker(50, min_size=0)(doc)
    bare = type(labelled)(labelled.corpus, labelled.doc_row, labelled.start, labelled.end)
    assert labelled.section[-1] == "2.2/Startup/Steps 1–2"
    assert (
        labelled.id(0) == bare.id(0) and labelled.fingerprint != bare.fingerprint
    )  # headers and FTS5 read the paths


def test_the_embedders_own_tokenizer_counts():
    from ragbench.embed.sentence_transformer import SentenceTransformerEmbedder

    doc = Document("d", "Start the lube oil pump before the compressor. " * 40)
    chunker = TokenChunker(64, 8, tokenizer=SentenceTransformerEmbedder())
    assert chunker == TokenChunker(64, 8, "all-MiniLM-L6-v2")
    assert chunker(doc).tokens("all-MiniLM-L6-v2").max() == 64
