"""Every public constructor and function, given wrong types and wild values for one argument at a time: it
works, or it says our own error."""

from __future__ import annotations

import datetime
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ragbench as rb
from ragbench import RagbenchError
from ragbench.base.choices import expanded

WILD = {
    "None": None,
    "True": True,
    "0": 0,
    "-1": -1,
    "3": 3,
    "10**30": 10**30,
    "1.5": 1.5,
    "-0.5": -0.5,
    "nan": float("nan"),
    "inf": float("inf"),
    "''": "",
    "'x'": "x",
    "bytes": b"x",
    "[]": [],
    "['x']": ["x"],
    "[None]": [None],
    "[[1]]": [[1]],
    "()": (),
    "{}": {},
    "{'a': 1}": {"a": 1},
    "{1: None}": {1: None},
    "set": {1},
    "object": object(),
    "int": int,
    "lambda": lambda *a, **k: 0,
    "array": np.zeros((2, 2)),
    "strings": np.array(["x"]),
    "path": Path("/proc/nowhere/at/all"),
    "date": datetime.date(2020, 1, 1),
    "chunker class": rb.TokenChunker,
    "chunker": rb.TokenChunker(8),
}

CORPUS = rb.Corpus(
    [
        rb.Document(
            id=f"d{i}",
            text=f"Start pump {i}.\n\nStop pump {i} when the pressure is {i} bar.",
            metadata={"rev": i},
        )
        for i in range(3)
    ]
)
GOLD = rb.Gold.from_spans(
    [
        {
            "query_id": f"q{i}",
            "query": f"When to stop pump {i}?",
            "evidence": [{"doc_id": f"d{i}", "start": 15, "end": 30}],
        }
        for i in range(3)
    ]
)
CHUNKS = rb.TokenChunker(8)(CORPUS)
VECTORS = np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32)
DENSE, LEXICAL = rb.Dense(rb.LSAEmbedder(2)), rb.Lexical(rb.FTS5())


def searched(index: Any) -> Any:
    return index.build(VECTORS).search(VECTORS[:2], 3)


def asked(system: rb.System) -> Any:
    return system.build(CORPUS).search("stop the pump", 2)


def stage(**steps: Any) -> Any:
    return asked(rb.System(rb.TokenChunker(8), rb.Hybrid(DENSE, LEXICAL), **steps))


def cut(chunker: Any) -> Any:
    return chunker(CORPUS)


def engine(lexical: Any) -> Any:
    return lexical.build(CHUNKS).search(["stop the pump"], 2)


def retrieved(retriever: Any) -> Any:
    return asked(rb.System(rb.TokenChunker(8), retriever))


def load_as(metadata: Any = None, loader: Any = None, gives: Any = None, told: Any = None) -> Any:
    "A file that a loader of one's own reads, or what is none, or one that gives odd things."

    def mine(path, *, doc_id):
        return gives if gives is not None else rb.Document(doc_id, "x", metadata={"told": told})

    Path("a.mine").write_text("x")

    def about(file):
        return {"a": told}

    loaders, facts = {".mine": mine if loader is None else loader}, about if metadata is None else metadata
    return rb.load_corpus("a.mine", loaders=loaders, metadata=facts, workers=0)


def find_where(value: Any = 1, unequal: Any = 2, limit: Any = 0) -> Any:
    "Conditions with one odd value, of a filter, a boost and a database."
    records = [{"rev": i} for i in range(len(VECTORS))]
    database = rb.WithMetadata(rb.FaissFlat()).build(VECTORS, records)
    for asked_for in (value, {"$ne": unequal}, {"$gte": limit}):
        database.search(VECTORS[:1], 2, where={"rev": asked_for})
        rb.Boost({"rev": asked_for}, 0.1).applies("pump 1", {"rev": [1]})
        BUILT.search("stop the pump", 2, where={"rev": asked_for})


BUILT = rb.System(rb.TokenChunker(8), LEXICAL).build(CORPUS)


def asked_of_all(corpus: rb.Corpus) -> Any:
    "A corpus that was loaded is searched by whatever its metadata say; a refused file is a row."
    if len(corpus):
        rb.System(rb.TokenChunker(8), LEXICAL).build(corpus).search("x", where={"doc": corpus[0].id})
    return repr(corpus), corpus.fingerprint, corpus._repr_html_()


# what is called, with what works, and what is then done with it
CASES: dict[str, tuple[Callable, dict[str, Any], Callable | None]] = {
    "Document": (rb.Document, {"id": "a", "text": "x"}, lambda d: rb.TokenChunker(8)(rb.Corpus([d]))),
    "Corpus": (rb.Corpus, {"documents": [rb.Document(id="a", text="x")]}, repr),
    "Chunks": (
        rb.Chunks,
        {"corpus": CORPUS, "doc_row": [0], "start": [0], "end": [5]},
        lambda c: c.to_frame(),
    ),
    "Vectors": (rb.Vectors, {"array": VECTORS}, repr),
    "Run": (rb.Run, {"query_ids": ["q0"], "rows": [[0, 1]], "scores": [[2.0, 1.0]]}, repr),
    "Qrels": (rb.Qrels, {"judgements": [("q", "d", 1)]}, repr),
    "Gold.from_spans": (
        rb.Gold.from_spans,
        {"rows": [{"query_id": "q", "query": "?", "evidence": []}]},
        repr,
    ),
    "Gold.from_qrels": (
        rb.Gold.from_qrels,
        {"queries": {"q": "x"}, "qrels": {"q": {"d0": 1}}, "corpus": CORPUS},
        repr,
    ),
    "Gold.from_quotes": (
        rb.Gold.from_quotes,
        {
            "rows": [
                {"query_id": "q", "query": "?", "evidence": [{"doc_id": "d0", "quote": "Start pump 0"}]}
            ],
            "corpus": CORPUS,
        },
        repr,
    ),
    "Gold.load": (rb.Gold.load, {"path": "/proc/nowhere/gold.jsonl"}, None),
    **{
        name: (getattr(rb, name), args, cut)
        for name, args in {
            "TokenChunker": {"size": 8},
            "RecursiveChunker": {"size": 8},
            "CharacterChunker": {"size": 20},
            "ParagraphChunker": {"size": 8},
            "SectionChunker": {"size": 8},
            "SentenceChunker": {"size": 8},
            "FieldChunker": {},
            "KamradtChunker": {"embedder": rb.LSAEmbedder(2)},
            "ClusterChunker": {"embedder": rb.LSAEmbedder(2)},
            "ByType": {"chunkers": {"text": rb.TokenChunker(8)}},
            "WholeDocument": {},
            "from_function": {"split": lambda text: [text]},
        }.items()
    },
    "certify": (rb.certify, {"chunker": rb.CharacterChunker(20), "corpus": CORPUS, "large": 0}, repr),
    "compare_chunkers": (
        rb.compare_chunkers,
        {"chunkers": [rb.TokenChunker(8), rb.RecursiveChunker(8)], "corpus": CORPUS, "gold": GOLD},
        repr,
    ),
    "oracle": (rb.oracle, {"corpus": CORPUS, "gold": GOLD, "min_size": 4, "max_size": 10}, repr),
    "LSAEmbedder": (rb.LSAEmbedder, {"dim": 2}, lambda e: e.fit(CORPUS).embed_queries(["x"])),
    **{
        name: (getattr(rb, name), args, searched)
        for name, args in {
            "FaissFlat": {},
            "FaissIVF": {"nlist": 2},
            "FaissPQ": {"m": 2, "nbits": 4},
            "FaissIVFPQ": {"nlist": 2, "m": 2, "nbits": 4},
            "FaissHNSW": {"m": 4},
            "FaissSQ": {},
            "FaissRaBitQ": {},
            "FaissFactory": {"factory": "Flat"},
        }.items()
    },
    "ann_recall": (
        rb.ann_recall,
        {
            "searcher": rb.FaissFlat().build(VECTORS),
            "exact": rb.FaissFlat().build(VECTORS),
            "queries": VECTORS[:2],
            "k": 2,
        },
        repr,
    ),
    "FTS5": (rb.FTS5, {}, engine),
    "BM25S": (rb.BM25S, {}, engine),
    "Dense": (rb.Dense, {"embedder": rb.LSAEmbedder(2)}, retrieved),
    "Lexical": (rb.Lexical, {"engine": rb.FTS5()}, retrieved),
    "Hybrid": (rb.Hybrid, {"fuse": rb.RRF(60), "depth": 5}, retrieved),
    **{
        name: (getattr(rb, name), {}, lambda f: retrieved(rb.Hybrid(DENSE, LEXICAL, fuse=f)))
        for name in ("RRF", "MinMax", "ZScore", "Borda", "CombMNZ", "CombSUM")
    },
    "RanxFusion": (rb.RanxFusion, {"method": "rrf"}, lambda f: retrieved(rb.Hybrid(DENSE, LEXICAL, fuse=f))),
    "MMR": (rb.MMR, {}, lambda m: stage(mmr=m)),
    "Boost": (rb.Boost, {"when": {"rev": 1}, "by": 2.0}, lambda b: stage(boosts=rb.Boosts([b]))),
    "Boosts": (rb.Boosts, {"rules": [rb.Boost({"rev": 1}, 2.0)]}, lambda b: stage(boosts=b)),
    "Neighbours": (rb.Neighbours, {}, lambda e: stage(expand=e)),
    "ParentSection": (rb.ParentSection, {}, lambda e: stage(expand=e)),
    "SeeAlso": (rb.SeeAlso, {"relations": (("a", "b"),)}, lambda e: stage(expand=e)),
    "SentenceWindow": (rb.SentenceWindow, {}, lambda e: stage(expand=e)),
    "System": (rb.System, {"chunk": rb.TokenChunker(8), "retrieve": LEXICAL}, asked),
    "System.build": (rb.System(rb.TokenChunker(8), LEXICAL).build, {"corpus": CORPUS}, None),
    "BuiltSystem.search": (
        rb.System(rb.TokenChunker(8), LEXICAL).build(CORPUS).search,
        {"queries": "stop", "k": 2},
        None,
    ),
    "grid": (rb.grid, {}, None),
    "explain": (
        rb.explain,
        {"built": rb.System(rb.TokenChunker(8), LEXICAL).build(CORPUS), "query": "stop", "chunk": 0},
        repr,
    ),
    "load_corpus": (rb.load_corpus, {"source": "/proc/nowhere/docs"}, None),
    "load_corpus by a loader": (load_as, {}, asked_of_all),
    "conditions": (find_where, {}, None),
    "Corpus +": (CORPUS.__add__, {"other": rb.Corpus([])}, repr),
    "load_dataset": (rb.load_dataset, {"path": "nowhere"}, None),
    "load_beir": (rb.load_beir, {"path": "/proc/nowhere"}, None),
    "load_trec": (rb.load_trec, {"path": "/proc/nowhere"}, None),
    "load_squad": (rb.load_squad, {"path": "/proc/nowhere.json"}, None),
    "load_chunking_eval": (rb.load_chunking_eval, {"path": "/proc/nowhere"}, None),
    "read_run": (rb.read_run, {"path": "/proc/nowhere.run"}, None),
    "run_from_dict": (rb.run_from_dict, {"run": {"q0": {"d0": 1.0}}, "chunks": CORPUS}, None),
    "write_run": (rb.write_run, {"run": {"q0": {"d0": 1.0}}, "path": "/proc/nowhere/x.run"}, None),
    "write_beir": (rb.write_beir, {"path": "/proc/nowhere", "corpus": CORPUS, "gold": GOLD}, None),
    "as_run": (rb.as_run, {"run": {"q0": {"d0": 1.0}}, "corpus": CORPUS, "gold": GOLD}, None),
    "order_agreement": (
        rb.order_agreement,
        {
            "a": np.random.default_rng(0).random((6, 3)),
            "b": np.random.default_rng(1).random((6, 3)),
            "resamples": 20,
        },
        None,
    ),
    "waterfall": (rb.waterfall, {"gold": GOLD, "stages": [], "budget": 100}, None),
    "WithMetadata": (rb.WithMetadata, {"index": rb.FaissFlat()}, repr),
    "CrossEncoderReranker": (rb.CrossEncoderReranker, {}, repr),
    "HyDE": (rb.HyDE, {"chat": lambda m: "x"}, lambda q: stage(query=q)),
    "MultiQuery": (rb.MultiQuery, {"chat": lambda m: '["x"]'}, lambda q: stage(query=q)),
    "generate_questions": (
        rb.generate_questions,
        {"corpus": CORPUS, "n": 1, "chat": lambda m: "{}", "store": None, "progress": False},
        None,
    ),
    "SentenceTransformerEmbedder": (rb.SentenceTransformerEmbedder, {}, repr),
    "FastEmbedEmbedder": (rb.FastEmbedEmbedder, {}, repr),
    "PgVectorIndex": (rb.PgVectorIndex, {}, repr),
    "ChromaIndex": (rb.ChromaIndex, {}, repr),
    "QdrantIndex": (rb.QdrantIndex, {}, repr),
    "PgFullText": (rb.PgFullText, {}, repr),
    "load_url": (rb.load_url, {"url": "http://127.0.0.1:9/x"}, None),
    "Chat": (rb.Chat, {"model": "m"}, repr),
    "OpenAIEmbedder": (rb.OpenAIEmbedder, {"model": "text-embedding-3-small"}, repr),
    "GeminiEmbedder": (rb.GeminiEmbedder, {"model": "m"}, repr),
    "LiteLLMEmbedder": (rb.LiteLLMEmbedder, {"model": "m"}, repr),
}


# what a user's own function raises is the user's to see
THEIRS = {("from_function", "split", "int")}


def arguments(call: Callable) -> list[str]:
    "The names that may be given by keyword."
    return [
        p.name
        for p in inspect.signature(call).parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]


def deepest_of_ours(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/ragbench/" in f.filename]
    return (
        f"{Path(frames[-1].filename).name}:{frames[-1].lineno} {frames[-1].name}"
        if frames
        else "the call itself"
    )


def faults(name: str) -> list[str]:
    call, works, then = CASES[name]
    known, out = set(arguments(call)), []
    fits = {k: v for k, v in works.items() if k in known}
    for argument in arguments(call):
        for said, value in WILD.items():
            try:
                result = call(**(fits | {argument: value}))
                for one in expanded([result]):
                    if then is not None:
                        then(one)
            except RagbenchError:
                continue
            except Exception as e:  # noqa: BLE001
                if (name, argument, said) in THEIRS:
                    continue
                out.append(
                    f"{name}({argument}={said}): {type(e).__name__}: {str(e)[:90]!r} in {deepest_of_ours(e)}"
                )
    return out


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_wrong_types_meet_our_errors_only(name: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert set(CASES[name][1]) <= set(arguments(CASES[name][0])), (
        "the case gives an argument that is not there"
    )
    out = faults(name)
    assert not out, f"{len(out)} of Python's own:\n" + "\n".join(out)
