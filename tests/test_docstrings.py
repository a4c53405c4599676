"""Docstrings of public names: what it is, what it raises, an example that runs, and its chapter."""

import ast
import configparser
import doctest
import inspect
import re
import textwrap
from pathlib import Path

import pytest

import ragbench
from ragbench import (
    Corpus,
    Dense,
    Document,
    Gold,
    Hybrid,
    KnowledgeBase,
    Lexical,
    LSAEmbedder,
    RagbenchError,
    Run,
    SentenceChunker,
    System,
    WholeDocument,
    bench,
)

ROOT = Path(__file__).resolve().parents[1]
NAMES = [n for n in ragbench.__all__ if callable(getattr(ragbench, n))]
# What an example needs and a test has not: (a server, a key, a model, an extra or somebody's file).
NOT_RUN = {
    "AzureRead": "a service and its key",
    "from_chonkie": "the package of somebody else",
    "from_langchain": "the package of somebody else",
    "from_llama_index": "the package of somebody else",
    "from_semchunk": "the package of somebody else",
    "generate_questions": "a chat model",
    "load_chunking_eval": "a collection to download",
    "load_squad": "a collection to download",
    "load_trec": "a collection to download",
    "load_url": "the network",
    "memory_of": "a process of its own, which takes seconds to start",
}
# Functions that raise our errors for their caller.
CHECKS = {"at_least", "check_fields", "check_names", "check_url", "one_of_few", "typed", "whole_number"}


def namespace(folder: str) -> dict:
    """What an example may use: every public name; `corpus` and `gold` of two documents and two questions;
    `chunks`, `e` (an embedder), `vectors`, `run`, `results`, `kb`, and `folder`, an empty one."""
    corpus = Corpus(
        [
            Document("pump", "Close the valve. Stop the pump.\n\nOpen the drain."),
            Document("tank", "The tank holds water.\n\nCheck the valve of the tank."),
        ]
    )
    spans = {
        "q1": ("How is the pump stopped?", "pump", 17, 31),
        "q2": ("What is in the tank?", "tank", 0, 21),
    }
    gold = Gold.from_spans(
        {"query_id": q, "query": text, "evidence": [{"doc_id": doc, "start": start, "end": end}]}
        for q, (text, doc, start, end) in spans.items()
    )
    chunks = SentenceChunker(5, 0)(corpus)
    e = LSAEmbedder(2).fit(corpus)
    results = bench(
        corpus,
        gold,
        {"whole": System(WholeDocument(), Lexical()), "sentences": System(SentenceChunker(5, 0), Lexical())},
        metrics=["recall@1"],
        store=f"{folder}/.ragbench",
        timing=False,
        progress=False,
    )
    run = Run(("q1", "q2"), [[0.9, 0.4], [0.8, 0.1]], [[1, 0], [3, 4]])
    kb = KnowledgeBase.create(
        f"{folder}/shared-kb", System(SentenceChunker(5, 0), Hybrid(Dense(e), Lexical()))
    )
    kb.ingest(corpus)
    own = {"corpus": corpus, "gold": gold, "chunks": chunks, "e": e, "vectors": e.embed_passages(chunks)}
    return (
        {n: getattr(ragbench, n) for n in NAMES}
        | own
        | {"run": run, "results": results, "folder": folder, "kb": kb}
    )


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> dict:
    return namespace(str(tmp_path_factory.mktemp("examples")))


def docstring(name: str) -> str:
    return inspect.getdoc(inspect.unwrap(getattr(ragbench, name))) or ""


@pytest.mark.parametrize("name", NAMES)
def test_the_example_runs(name: str, shared: dict):
    examples = doctest.DocTestParser().get_doctest(docstring(name), dict(shared), name, None, 0)
    skipped = [x for x in examples.examples if x.options.get(doctest.SKIP)]
    assert examples.examples, "no example"
    assert bool(skipped) == (name in NOT_RUN)
    said = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(examples, out=said.append)
    assert not said, "".join(said)


def chapter(name: str) -> str:
    "The address of the page that a module's notebook becomes."
    settings = configparser.ConfigParser()
    settings.read(ROOT / "settings.ini")
    site = settings["DEFAULT"]["doc_host"] + settings["DEFAULT"]["doc_baseurl"]
    source = Path(inspect.getsourcefile(inspect.unwrap(getattr(ragbench, name)))).read_text(encoding="utf-8")
    room, notebook = re.search(r"File to edit: (?:\.\./)*nbs/(\w+)/(\w+)\.ipynb", source).groups()
    return f"{site}/{room}/{re.sub(r'^[0-9]+[a-z]?_', '', notebook)}.html"


@pytest.mark.parametrize("name", NAMES)
def test_its_chapter_is_named(name: str):
    assert chapter(name) in docstring(name)


def raises(name: str) -> bool:
    "Whether its code raises one of our errors, or has it raised by a check."
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(getattr(ragbench, name))))).body[0]
    made = {"__init__", "__post_init__"}
    parts = (
        [f for f in tree.body if getattr(f, "name", "") in made] if isinstance(tree, ast.ClassDef) else [tree]
    )
    for node in (n for part in parts for n in ast.walk(part)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            own = getattr(ragbench, getattr(node.exc.func, "id", ""), None)
            if isinstance(own, type) and issubclass(own, RagbenchError):
                return True
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in CHECKS:
            return True
    return False


@pytest.mark.parametrize("name", [n for n in NAMES if raises(n)])
def test_what_it_raises_is_said(name: str):
    assert re.search(r"[Rr]aises?\s+`\w+`|is\s+refused", docstring(name))


def test_the_first_sentence_is_no_example():
    assert [n for n in NAMES if not docstring(n) or docstring(n).lstrip().startswith(">>>")] == []


def test_few_examples_are_not_run():
    assert set(NOT_RUN) <= set(NAMES)
    assert len(NOT_RUN) <= 12
