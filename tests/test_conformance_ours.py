"""Every component of ours, and every adapter, keeps the protocol that a component of one's own is held to."""

import functools
import importlib.util
import json
from pathlib import Path

import pytest

import ragbench as rb
from ragbench.index.database_index import WithMetadata
from ragbench.index.pgserver import private_database, stop_private
from ragbench.ingest.docx import load_docx
from ragbench.ingest.pdf import load_pdf
from ragbench.ingest.records import load_json
from ragbench.ingest.shipped import shipped
from ragbench.ingest.tables import load_table
from ragbench.ingest.text import load_markdown, load_text
from ragbench.ingest.transcripts import load_transcript
from ragbench.ingest.web import load_html
from ragbench.testing import (
    Loopback,
    QdrantLoopback,
    ToyVectors,
    check_chunker,
    check_embedder,
    check_engine,
    check_fusion,
    check_index,
    check_loader,
    check_metric,
    check_reranker,
    check_retriever,
    tiny_cross_encoder,
)
from ragbench.testing.embedder_suite import TEXTS

LSA = rb.LSAEmbedder(4).fit(rb.Corpus([rb.Document(str(i), t) for i, t in enumerate(TEXTS)]))


def has(*modules):
    return all(importlib.util.find_spec(m) for m in modules)


def needs(module):
    return pytest.mark.skipif(not has(module), reason=f"{module} is not installed")


# --- chunkers -----------------------------------------------------------------------------------------------


def sentences(text):
    "A splitter that gives strings."
    return [line for line in text.splitlines(keepends=True) if line.strip()] or [text]


def langchain():
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    return rb.from_langchain(RecursiveCharacterTextSplitter(chunk_size=200, chunk_overlap=0))


def llama_index():
    from llama_index.core.node_parser import SentenceSplitter

    return rb.from_llama_index(SentenceSplitter(chunk_size=64, chunk_overlap=0))


def semchunk():
    from semchunk import chunkerify

    return rb.from_semchunk(chunkerify(len, 200))


def chonkie():
    from chonkie import RecursiveChunker

    return rb.from_chonkie(RecursiveChunker(tokenizer="character", chunk_size=200))


CHUNKERS = {
    "token": lambda: rb.TokenChunker(64, 16),
    "token, at sentences": lambda: rb.TokenChunker(64, 16, snap="sentence"),
    "recursive": lambda: rb.RecursiveChunker(40, 10),
    "character": lambda: rb.CharacterChunker(50, 10),
    "sentence": lambda: rb.SentenceChunker(64, 16),
    "paragraph": lambda: rb.ParagraphChunker(100, 10, 50),
    "section": lambda: rb.SectionChunker(100, min_size=50),
    "field": lambda: rb.FieldChunker(),
    "document": lambda: rb.WholeDocument(),
    "type": lambda: rb.ByType({"csv": rb.FieldChunker(), "default": rb.TokenChunker(64, 16)}),
    "kamradt": lambda: rb.KamradtChunker(LSA),
    "cluster": lambda: rb.ClusterChunker(LSA),
    "a function": lambda: rb.from_function(sentences),
}
ADAPTERS = {
    "langchain_text_splitters": langchain,
    "llama_index.core": llama_index,
    "semchunk": semchunk,
    "chonkie": chonkie,
}


@pytest.mark.parametrize("name", CHUNKERS)
def test_chunkers(name):
    check_chunker(CHUNKERS[name](), large=50_000, strict=True)


@pytest.mark.parametrize("module", [pytest.param(m, marks=needs(m.partition(".")[0])) for m in ADAPTERS])
def test_adapted_chunkers(module):
    """What a splitter loses on the texts that break splitters is its own; how it is adapted is ours."""
    report = check_chunker(ADAPTERS[module](), large=0)
    allowed = {
        "no character that prints is lost",
        "no chunk is larger than its size",
        "a size names its unit",
    }
    assert {p.check for p in report.problems} <= allowed, report


# --- embedders ----------------------------------------------------------------------------------------------


@pytest.fixture
def keys(monkeypatch):
    for name in (
        "LOOPBACK_KEY",
        "OPENAI_API_KEY",
        "AZURE_OPENAI_API_KEY",
        "GEMINI_API_KEY",
        "VOYAGE_API_KEY",
    ):
        monkeypatch.setenv(name, "sk-0123456789")
    monkeypatch.setenv("COHERE_API_KEY", "sk-0123456789")


REMOTE = {
    "openai": lambda s: rb.OpenAIEmbedder("toy", 6, base_url=s.url),
    "azure": lambda s: rb.OpenAIEmbedder("toy", 6, azure_endpoint=s.root, deployment="mine"),
    "gemini": lambda s: rb.GeminiEmbedder("gemini-embedding-2", 6, base_url=s.root),
    "litellm": lambda s: rb.LiteLLMEmbedder("openai/toy", 6, s.url, key_env="LOOPBACK_KEY"),
    "litellm, voyage": lambda s: rb.LiteLLMEmbedder("voyage/voyage-3.5", 6, s.url),
    "litellm, cohere": lambda s: rb.LiteLLMEmbedder("cohere/embed-v4.0", 6, s.url + "/embed"),
}


def test_lsa():
    check_embedder(rb.LSAEmbedder(8), strict=True)
    check_embedder(LSA, strict=True)


@pytest.mark.parametrize("name", REMOTE)
def test_remote_embedders(name, keys):
    with Loopback(ToyVectors(6)) as server:
        report = check_embedder(REMOTE[name](server))
    # the server knows no roles; LiteLLM counts Cohere's tokens with tiktoken, which refuses special ones
    allowed = {"queries and passages differ if, and only if, its space has two prompts"}
    if "cohere" in name:
        allowed.add("texts that are empty, long or of other scripts have their row, or are refused by name")
    assert {p.check for p in report.problems} <= allowed, report


@pytest.mark.slow
@pytest.mark.parametrize(
    "embedder",
    [
        rb.SentenceTransformerEmbedder("all-MiniLM-L6-v2"),
        rb.SentenceTransformerEmbedder("all-MiniLM-L6-v2", dim=64),
        rb.SentenceTransformerEmbedder("all-MiniLM-L6-v2", prompts=("query: ", "passage: ")),
        pytest.param(
            rb.SentenceTransformerEmbedder("all-MiniLM-L6-v2", backend="onnx"), marks=needs("onnxruntime")
        ),
    ],
    ids=["torch", "cut", "prompts", "onnx"],
)
def test_local_encoders(embedder):
    check_embedder(embedder, strict=True)


# --- indexes ------------------------------------------------------------------------------------------------

EXACT = {
    "flat": lambda: rb.FaissFlat(),
    "flat, ip": lambda: rb.FaissFlat("ip"),
    "flat, l2": lambda: rb.FaissFlat("l2"),
    "metadata": lambda: WithMetadata(rb.FaissFlat()),
}
APPROXIMATE = {
    "hnsw": lambda: rb.FaissHNSW(16),
    "ivf": lambda: rb.FaissIVF(4, nprobe=4),
    "pq": lambda: rb.FaissPQ(8, nbits=4),
    "ivfpq": lambda: rb.FaissIVFPQ(4, 8, nbits=4, nprobe=4),
    "sq": lambda: rb.FaissSQ(),
    "rabitq": lambda: rb.FaissRaBitQ(),
    "factory": lambda: rb.FaissFactory("SQ8"),
}
DATABASES = {
    "pgvector": lambda: rb.PgVectorIndex(index=None),
    "pgvector, hnsw": lambda: rb.PgVectorIndex(),
    "chroma": lambda: rb.ChromaIndex(),
    "qdrant, memory": lambda: rb.QdrantIndex(":memory:"),
    "qdrant, edge": lambda: rb.QdrantIndex(),
    "qdrant, url": lambda: rb.QdrantIndex(qdrant().url),
}


@functools.cache
def qdrant():
    return QdrantLoopback().__enter__()


@pytest.fixture(scope="module", autouse=True)
def _servers():
    yield
    stop_private()
    if qdrant.cache_info().currsize:
        qdrant().__exit__()


@pytest.mark.parametrize("name", EXACT)
def test_exact_indexes(name):
    check_index(EXACT[name](), recall=1.0, strict=True)


@pytest.mark.parametrize("name", APPROXIMATE)
def test_approximate_indexes(name):
    check_index(APPROXIMATE[name](), strict=True)


@pytest.mark.parametrize("name", DATABASES)
def test_databases(name):
    check_index(DATABASES[name](), recall=0.9, strict=True)


# --- engines, retrievers, fusions, rerankers ----------------------------------------------------------------

ENGINES = {
    "fts5": lambda: rb.FTS5(),
    "fts5, all words": lambda: rb.FTS5(match="and"),
    "bm25s": lambda: rb.BM25S(),
    "postgres": lambda: rb.PgFullText(private_database(), match="or"),
}
RETRIEVERS = {
    "dense": lambda: rb.Dense(rb.LSAEmbedder(8)),
    "dense, hnsw": lambda: rb.Dense(rb.LSAEmbedder(8), rb.FaissHNSW(16)),
    "lexical": lambda: rb.Lexical(),
    "lexical, bm25s": lambda: rb.Lexical(rb.BM25S()),
    "hybrid": lambda: rb.Hybrid(rb.Dense(rb.LSAEmbedder(8)), rb.Lexical()),
    "hybrid, min-max": lambda: rb.Hybrid(
        rb.Dense(rb.LSAEmbedder(8)), rb.Lexical(), fuse=rb.MinMax(dense=0.4)
    ),
}
FUSIONS = [
    rb.RRF(60),
    rb.RRF(60, weights=(2, 1)),
    rb.MinMax(dense=0.3),
    rb.ZScore(),
    rb.CombSUM(),
    rb.CombMNZ(),
    rb.Borda(),
    *(rb.RanxFusion(m) for m in ("anz", "max", "med", "min", "isr", "log_isr", "condorcet")),
]


@pytest.mark.parametrize("name", ENGINES)
def test_engines(name):
    check_engine(ENGINES[name](), strict=True)


@pytest.mark.parametrize("name", RETRIEVERS)
def test_retrievers(name):
    check_retriever(RETRIEVERS[name](), strict=True)


@pytest.mark.parametrize("fusion", FUSIONS, ids=repr)
def test_fusions(fusion):
    check_fusion(fusion, strict=True)


def test_a_cross_encoder(tmp_path):
    words = (
        "which pump leaks at the seal valve is shut oil a permit needed before work on boiler dry how renewed"
    )
    folder = tiny_cross_encoder(tmp_path / "tiny", words.split())
    check_reranker(rb.CrossEncoderReranker(folder), tolerance=1e-7, strict=True)


METRICS = [
    "recall@3",
    "mrr",
    "ndcg@5",
    "map",
    "hit_rate@1",
    "evidence_recall@2",
    "evidence_iou@3",
    "precision@5",
    "doc:recall@2",
]


@pytest.mark.parametrize("metric", METRICS)
def test_metrics(metric):
    check_metric(metric, strict=True)


# --- loaders ------------------------------------------------------------------------------------------------

HTML = "<html><body><article><h1>Pumps</h1><p>{}</p></article></body></html>".format(
    "The pump stops when the valve is shut. " * 20
)
VTT = (
    "WEBVTT\n\n00:00.000 --> 00:04.000\n<v Ann>The pump stops.\n\n00:05.000 --> 00:09.000\n<v Bob>Open the"
    " valve.\n"
)


def a_file(kind, folder):
    "A file of a kind, and a text that must be found in it."
    files = shipped("procedures") / "files"
    if kind in ("pdf", "docx"):
        return sorted(files.glob(f"*.{kind}"))[0], ()
    texts = {
        "md": "# Pumps\n\nThe pump stops.\n\n## Valves\n\nOpen the valve.\n",
        "txt": "The pump stops.\n\nOpen the valve.\n",
        "csv": "name,text\nann,The pump stops.\nbob,Open the valve.\n",
        "json": json.dumps(
            [{"name": "ann", "text": "The pump stops."}, {"name": "bob", "text": "Open the valve."}]
        ),
        "vtt": VTT,
        "html": HTML,
    }
    path = Path(folder, f"manual.{kind}")
    path.write_text(texts[kind], encoding="utf-8")
    return path, ("The pump stops",)


OURS = {
    "pdf": load_pdf,
    "docx": load_docx,
    "md": load_markdown,
    "txt": load_text,
    "csv": load_table,
    "json": load_json,
    "vtt": load_transcript,
    "html": load_html,
}


@pytest.mark.parametrize("kind", OURS)
def test_loaders(kind, tmp_path):
    path, contains = a_file(kind, tmp_path)
    check_loader(OURS[kind], path, contains=contains, strict=True)
