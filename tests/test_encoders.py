"""gigatoken against tiktoken: the same ids for every text that it is given, and the same chunks of every
corpus."""

import multiprocessing
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_laws_chunk import chunkers

from ragbench.core.documents import Corpus, Document
from ragbench.ingest.load_corpus import load_dataset
from ragbench.text.tiktoken_encoder import SCHEMES, Encoder, encoder, rank_file, settled
from ragbench.text.token_table import token_tables
from ragbench.text.tokenizers import get_tokenizer

BITS = [
    "'s",
    "'S",
    "'ſ",
    "'re",
    "'LL",
    "'d",
    "n't",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r",
    "\r\n",
    " \n",
    "\n ",
    "\t",
    "\x0b",
    "\x1c",
    "\u0085",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u200b",
    "\ufeff",
    "a",
    "Zz",
    "é",
    "e\u0301",
    "\u0301",
    "ǅ",
    "ʰ",
    "й",
    "ß",
    "İ",
    "ı",
    "漢字",
    "ポンプ",
    "한글",
    "ع",
    "שלום",
    "ไทย",
    "क्ष",
    "0",
    "12",
    "123",
    "1234",
    "٣",
    "½",
    "Ⅷ",
    "²",
    ".",
    "...",
    "!?",
    "/",
    "//",
    "_",
    "-",
    "“",
    "…",
    "🙂",
    "👩\u200d🔧",
    "🇩🇪",
    "<|endoftext|>",
    "<|endofprompt|>",
    "\U00032aef",
    "\U000e2aa4",
    "\U0001fbf0",
    "\u0378",
    "\ud463",
    "\x00",
    "\u0295",
]
SETTLED = [
    b for b in BITS if settled(b)
]  # what gigatoken gets to see: one other bit, and the whole text is tiktoken's
CHARACTERS = "".join(c for c in map(chr, range(0x1FB00)) if not 0xD800 <= ord(c) < 0xE000 and settled(c))
FAST = st.one_of(
    st.lists(st.sampled_from(SETTLED), max_size=60).map("".join),
    st.text(st.sampled_from(CHARACTERS), max_size=80),
    st.lists(st.one_of(st.sampled_from(SETTLED), st.sampled_from(CHARACTERS)), max_size=60).map("".join),
)
ANY = st.one_of(
    st.lists(st.sampled_from(BITS), max_size=60).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
)


def mixed(seed: int, n: int) -> str:
    """A random text that gigatoken encodes."""
    text = "".join(np.random.default_rng(seed).choice(SETTLED, n))
    assert settled(text)
    return text


def same(name: str, text: str) -> None:
    "Whether both libraries, each asked for itself, give the same ids."
    e = encoder(name)
    quick = e(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAGBENCH_ENCODER", "tiktoken")
        np.testing.assert_array_equal(quick, e(text))


@pytest.fixture(scope="module", params=sorted(SCHEMES))
def name(request):
    assert encoder(request.param).fast is not None
    return request.param


@settings(max_examples=1500, deadline=None)
@given(text=FAST)
def test_both_libraries_give_the_same_ids(name, text):
    assert settled(text)
    same(name, text)


@settings(max_examples=300, deadline=None)
@given(text=ANY)
def test_any_text_has_the_ids_of_tiktoken(name, text):
    same(name, text)


def test_gigatoken_is_asked_for_settled_text_alone(name, monkeypatch):
    class Refuses:
        def encode(self, text):
            raise AssertionError(text)

    made = Encoder(name)
    made.__dict__["fast"] = Refuses()
    assert made("\U00032aef\U000e2aa4\ud463").tolist() == made.encoding.encode_ordinary(
        "\U00032aef\U000e2aa4\ud463"
    )
    with pytest.raises(AssertionError, match="Open"):
        made("Open")
    monkeypatch.setenv("RAGBENCH_ENCODER", "tiktoken")
    assert made("Open").tolist() == made.encoding.encode_ordinary("Open")


def test_every_settled_character_between_others(name):
    "Each one between a letter, a digit, a space and itself, in lines of a thousand."
    assert len(CHARACTERS) > 50_000
    for at in range(0, len(CHARACTERS), 1000):
        for pattern in ("a{0}b {0}1{0}{0} ", "{0}\n{0}'s"):
            text = "".join(pattern.format(c) for c in CHARACTERS[at : at + 1000])
            assert settled(text)
            same(name, text)


@pytest.mark.parametrize(
    "text",
    [
        "a" * 20_000,
        " " * 20_000 + "b",
        "\n" * 20_000,
        "漢" * 20_000,
        "1" * 20_000,
        "ab1 " * 5_000,
        "\ud800 a",
        "\U00032aef\U000e2aa4\ud463",
        "",
    ],
    ids=ascii,
)
def test_long_runs_and_what_is_not_settled(name, text):
    same(name, text)


def test_many_threads_share_one_encoder(name):
    e = encoder(name)
    texts = [mixed(seed, 3_000) for seed in range(8)]
    expected = [e.encoding.encode_ordinary(t) for t in texts]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(e, texts * 4))
    for i, ids in enumerate(found):
        np.testing.assert_array_equal(ids, expected[i % 8])


def test_token_tables_are_the_same_with_either():
    text = mixed(1, 100_000)
    tokenizer = get_tokenizer("cl100k_base")
    quick = next(token_tables(tokenizer, [text], 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAGBENCH_ENCODER", "tiktoken")
        slow = next(token_tables(tokenizer, [text], 2))
    np.testing.assert_array_equal(slow.starts, quick.starts)
    np.testing.assert_array_equal(slow.ends, quick.ends)


@pytest.mark.parametrize("dataset", ["procedures", "materials", "textbook", "coaching", "speakers"])
def test_every_chunker_cuts_a_corpus_alike_with_either(dataset, monkeypatch):
    corpus, _ = load_dataset(dataset)
    corpus = Corpus([*list(corpus)[:12], Document("odd", mixed(2, 2_000))])
    quick = [c(corpus) for c in chunkers(60, 12) if "MiniLM" not in repr(c)]
    monkeypatch.setenv("RAGBENCH_ENCODER", "tiktoken")
    for a, b in zip(quick, [c(corpus) for c in chunkers(60, 12) if "MiniLM" not in repr(c)], strict=True):
        np.testing.assert_array_equal(a.spans, b.spans), np.testing.assert_array_equal(a.doc_row, b.doc_row)


def test_without_a_file_of_ranks_tiktoken_does_it_all(monkeypatch, tmp_path):
    table = encoder("cl100k_base").characters
    assert encoder("cl100k_base").encoding  # tiktoken holds its ranks now
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))  # and looks into a folder that has none
    monkeypatch.setattr("ragbench.text.tiktoken_encoder._carried", lambda file: [])
    made = Encoder("cl100k_base")
    assert made.fast is None
    assert made("Open the valve.").tolist() == made.encoding.encode_ordinary("Open the valve.")
    np.testing.assert_array_equal(made.characters, table)


def test_a_damaged_file_of_ranks_is_not_used(monkeypatch, tmp_path):
    expected = encoder("cl100k_base").encoding.encode_ordinary(
        "Open the valve."
    )  # loaded, from wherever it lies
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    place = rank_file("cl100k_base")
    place.write_bytes(b"IQ== 0\nIg== 1\n")
    made = Encoder("cl100k_base")
    assert made.fast is None
    assert made("Open the valve.").tolist() == expected


def test_an_encoding_that_gigatoken_does_not_have(monkeypatch):
    class Known:
        "What a user's own tiktoken encoding offers."

        _mergeable_ranks = {b"a": 0, "é".encode(): 1, b"\xc3": 2}
        encode_to_numpy = staticmethod(lambda text, disallowed_special: np.zeros(len(text), np.uint32))

    monkeypatch.setattr("ragbench.text.tiktoken_encoder.load_encoding", lambda name: Known)
    made = Encoder("own")
    assert made.fast is None and made("aa").tolist() == [0, 0] and made.characters.tolist() == [1, 1, 1]


def _count(text, results):
    results.put(len(encoder("cl100k_base")(text)))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")
def test_a_forked_child_encodes():
    made, text = encoder("cl100k_base"), "Open the valve slowly. " * 10_000
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_count, args=(text, results))
    child.start()
    assert results.get(timeout=60) == len(made(text))
    child.join()
