"""Whatever is handed to a chunker or an adapter, when it is made or called, an error is one of ours."""

import dataclasses
import itertools

import pytest

import ragbench as rb
from ragbench import Corpus, Document, LSAEmbedder, RagbenchError

CORPUS = Corpus(
    [Document("d", "2 Pumps\n\nStart the pump. Stop it.\n\nStep 1. Open.\nStep 2. Close.\n\n" * 3)]
)
LSA = LSAEmbedder(2).fit(CORPUS)
WRONG = [
    None,
    "x",
    "",
    b"x",
    -1,
    0,
    1,
    2.5,
    -0.5,
    float("nan"),
    float("inf"),
    True,
    False,
    [],
    ["x"],
    [1, 2],
    [None],
    (),
    ("x", 1),
    (1, None),
    {},
    {"a": 1},
    {"default": 1},
    {"default": None},
    set(),
    object(),
    object,
    len,
    lambda x: x,
    rb.TokenChunker,
    rb.TokenChunker(8),
    CORPUS,
    10**30,
]
GOOD = {
    rb.TokenChunker: {"size": 8},
    rb.RecursiveChunker: {"size": 8},
    rb.CharacterChunker: {"size": 8},
    rb.SentenceChunker: {"size": 8},
    rb.ParagraphChunker: {},
    rb.SectionChunker: {},
    rb.FieldChunker: {},
    rb.WholeDocument: {},
    rb.KamradtChunker: {"embedder": LSA},
    rb.ClusterChunker: {"embedder": LSA},
    rb.LLMChunker: {"chat": rb.Chat("toy")},
    rb.ByType: {"chunkers": {"default": rb.TokenChunker(8)}},
}
ADAPTERS = [rb.from_function, rb.from_langchain, rb.from_llama_index, rb.from_chonkie, rb.from_semchunk]


THEIRS = (object, len)  # they can be called, and raise errors of their own


def told(value):
    text = repr(value)
    return text if " at 0x" not in text and len(text) < 60 else type(value).__name__


def ours(action, about):
    "Do it; only errors of ours may come of it."
    try:
        return action()
    except RagbenchError:
        return None
    except Exception as e:
        pytest.fail(f"{about}: {type(e).__name__}: {e}")


def works(chunker, about):
    "A chunker that could be made says what is wrong when it is called, or works."
    if callable(chunker):
        ours(lambda: chunker(CORPUS), about)


@pytest.mark.parametrize("cls", GOOD, ids=lambda c: c.__name__)
def test_a_wrong_field_is_refused_by_an_error_of_ours(cls):
    for f in dataclasses.fields(cls):
        if f.name == "chat":
            continue  # anything that can be called
        for value in WRONG:
            about = f"{cls.__name__}({f.name}={told(value)})"
            chunker = ours(lambda n=f.name, v=value: cls(**GOOD[cls] | {n: v}), about)
            if chunker is not None and cls is not rb.LLMChunker:
                works(chunker, about)


@pytest.mark.parametrize("cls", [c for c in GOOD if len(dataclasses.fields(c)) > 1], ids=lambda c: c.__name__)
def test_two_wrong_fields_are_refused_by_an_error_of_ours(cls):
    few = [None, "x", -1, 2.5, True, [1, 2], [], {}, 10**30]
    for a, b in itertools.combinations([f.name for f in dataclasses.fields(cls) if f.name != "chat"], 2):
        for x, y in itertools.product(few, few):
            ours(
                lambda a=a, b=b, x=x, y=y: cls(**GOOD[cls] | {a: x, b: y}),
                f"{cls.__name__}({a}={told(x)}, {b}={told(y)})",
            )


@pytest.mark.parametrize("cls", GOOD, ids=lambda c: c.__name__)
def test_a_wrong_source_is_refused_by_an_error_of_ours(cls):
    for value in [v for v in WRONG if not isinstance(v, Corpus)]:
        try:
            cls(**GOOD[cls])(value)
        except RagbenchError:
            pass
        except Exception as e:
            pytest.fail(f"{cls.__name__}()({told(value)}): {type(e).__name__}: {e}")
        else:
            pytest.fail(f"{cls.__name__}()({told(value)}) was taken")


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda a: a.__name__)
def test_a_wrong_splitter_is_refused_by_an_error_of_ours(adapter):
    for value in WRONG:
        about = f"{adapter.__name__}({told(value)})"
        made = ours(lambda v=value: adapter(v), about)
        if not any(value is t for t in THEIRS):
            works(made, about)
    for value in WRONG:
        ours(
            lambda v=value: adapter(str.split, identity=v),
            f"{adapter.__name__}(str.split, identity={told(value)})",
        )


RETURNED = [
    None,
    1,
    2.5,
    "abc",
    "",
    [1],
    [None],
    [("a",)],
    [(1, 2)],
    [(0, 5, 1)],
    [("a", "b", "Start")],
    [(0.0, 5.0, "Start")],
    [(None, None, "Start")],
    [()],
    {},
    {"Start": 1},
    object(),
    [b"Start"],
    [["Start"]],
    [(0, 5, "Start"), "pump"],
    iter(["2"]),
    (x for x in "2P"),
]


def test_what_a_splitter_returns_is_checked():
    for value in RETURNED:
        works(rb.from_function(lambda t, v=value: v), f"a splitter that returns {told(value)}")

    class Bad:
        def __init__(self, value):
            self.value = value

        def split_text(self, text):
            return self.value

        def chunk(self, text):
            return self.value

        def __call__(self, text, offsets):
            return self.value

    for adapter, value in itertools.product(ADAPTERS[1:], RETURNED):
        works(adapter(Bad(value)), f"{adapter.__name__} of one that returns {told(value)}")


def test_an_error_of_the_splitter_is_its_own():
    "What somebody's function raises is theirs, and stays as it is."

    def broken(text):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        rb.from_function(broken)(CORPUS)


@pytest.mark.parametrize("e", [LSA, rb.GivenVectors({"a": [1.0]}, {"b": [1.0]})], ids=["LSA", "GivenVectors"])
def test_wrong_texts_are_refused_by_an_error_of_ours(e):
    for value in [v for v in WRONG if not isinstance(v, (list, tuple, set, dict)) or v]:
        for embed in (e.embed_passages, e.embed_queries):
            if value in (["x"], {"a": 1}, {"default": 1}, {"default": None}) and e is LSA:
                continue  # texts that it can read
            try:
                embed(value)
            except RagbenchError:
                pass
            except Exception as error:
                pytest.fail(f"{told(value)}: {type(error).__name__}: {error}")
            else:
                assert value == {"a": 1} and embed == e.embed_passages, told(value)


def test_wrong_settings_of_lsa_are_refused_by_an_error_of_ours():
    for name, value in itertools.product(("dim", "seed"), [v for v in WRONG if not isinstance(v, list)]):
        ours(
            lambda n=name, v=value: LSAEmbedder(**{"dim": 2} | {n: v}).fit(CORPUS),
            f"LSAEmbedder({name}={told(value)})",
        )
    for value in WRONG:
        ours(lambda v=value: LSAEmbedder(2).fit(v), f"fit({told(value)})")
