"""Every extra in an environment of its own: without it the error names it, with it and nothing else the
feature works. Needs the package registry."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

VECTORS = """
import numpy as np
from ragbench.core.vectors import Vectors
x = np.random.default_rng(0).normal(size=(200, 16)).astype(np.float32); v = Vectors(x / np.linalg.norm(x, axis=1, keepdims=True))
def nearest(index):
    with index.build(v) as s: assert s.search(Vectors(v.array[:5]), 3)[1][:, 0].tolist() == list(range(5))
"""  # noqa: E501
REMOTE = """
import os
from ragbench.testing.loopback import Loopback
from ragbench.testing.toy_vectors import ToyVectors
os.environ.update(GEMINI_API_KEY="k", LOOPBACK_KEY="k")
def two(make):
    with Loopback(ToyVectors(4)) as server: assert make(server).embed_passages(["a", "b"]).array.shape == (2, 4)
"""  # noqa: E501
# what someone does who installed the extra; sys.argv[1] is a folder with an ONNX model
PROBES = {
    "bm25s": (
        "from ragbench.lexical.bm25s import BM25S\nassert BM25S(stemmer='english').build(['pumps run',"
        " 'tanks leak']).search(['pump'], 1)[1].tolist() == [[0]]"
    ),
    "pgvector": VECTORS + "from ragbench.index.pgvector_index import PgVectorIndex\nnearest(PgVectorIndex())",
    "chroma": VECTORS + "from ragbench.index.chroma_index import ChromaIndex\nnearest(ChromaIndex())",
    "qdrant": (
        VECTORS + "from ragbench.index.qdrant_index import"
        " QdrantIndex\nnearest(QdrantIndex(':memory:'))\nnearest(QdrantIndex(path='qdrant-folder'))"
    ),
    "gemini": (
        REMOTE + "from ragbench.embed.gemini_embedder import GeminiEmbedder\ntwo(lambda s:"
        " GeminiEmbedder('gemini-embedding-001', 4, base_url=s.root))"
    ),
    "litellm": (
        REMOTE + "from ragbench.embed.litellm_embedder import LiteLLMEmbedder\ntwo(lambda s:"
        " LiteLLMEmbedder('openai/toy', 4, s.url, key_env='LOOPBACK_KEY'))"
    ),
    "onnx": (
        "import sys\nfrom ragbench.embed.sentence_transformer import SentenceTransformerEmbedder\nassert"
        " SentenceTransformerEmbedder(sys.argv[1] + '/torch',"
        " backend='onnx').embed_queries(['a']).array.shape == (1, 384)"
    ),
    "fastembed": (
        "import sys\nfrom ragbench.embed.fastembed import FastEmbedEmbedder\nassert FastEmbedEmbedder('mine',"
        " path=sys.argv[1] + '/fast', pooling='disabled').embed_queries(['a']).array.shape == (1, 384)"
    ),
    "web": (
        """
import http.server, threading
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        there = self.path == "/"
        self.send_response(200 if there else 404); self.send_header("Content-Type", "text/html"); self.end_headers()
        if there: self.wfile.write(b"<html><head><title>Pumps</title></head><body><article><h1>Pumps</h1><p>" + b"A pump lifts water from the well. " * 20 + b"</p></article></body></html>")
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page); threading.Thread(target=server.serve_forever, daemon=True).start()
from ragbench import load_corpus
corpus = load_corpus(f"http://127.0.0.1:{server.server_port}/", allow_private=True)
assert "lifts water" in corpus[0].text, corpus.errors
"""  # noqa: E501
    ),
    "ocr": (
        """
import os, pymupdf
from ragbench.ingest.ocr import AzureRead
from ragbench.testing.loopback import Loopback, Answer
os.environ.update(AZURE_DOCUMENT_INTELLIGENCE_API_KEY="k")
page = pymupdf.open().new_page()
with Loopback([Answer("{}", status=401)]) as server:
    os.environ["AZURE_DOCUMENT_INTELLIGENCE_ENDPOINT"] = server.root
    try: AzureRead().read(page)
    except Exception as e: assert "401" in str(e) or "key" in str(e).lower(), e
"""
    ),
    "collections": (
        "from ragbench.ingest.hubs import optional\noptional('ir_datasets', 'load'); optional('datasets',"
        " 'load_dataset')"
    ),
    "offline": (
        "from typer.testing import CliRunner\nfrom ragbench.apps.cli import app\nr = CliRunner().invoke(app,"
        " ['demo', '--store', 'store', '--out', 'report.html'])\nassert r.exit_code == 0, r.output\nassert"
        " 'ndcg' in r.output.lower()"
    ),
    "peers": (
        "import chonkie, haystack, langchain_text_splitters, markitdown, pdfplumber, pypdf,"
        " semantic_text_splitter, semchunk"
    ),
}
NAMES_ITSELF = set(PROBES) - {"peers", "ocr"}  # ocr's one package comes with openai


def run(python: Path, *args: str, cwd: Path) -> subprocess.CompletedProcess:
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TIKTOKEN_CACHE_DIR")} | {
        "HF_HUB_OFFLINE": "1",
        "MPLBACKEND": "agg",
        "RAGBENCH_CACHE": str(cwd / "cache"),
    }
    return subprocess.run([str(python), *args], cwd=cwd, env=env, capture_output=True, text=True, check=False)


def install(python: Path, what: str, cwd: Path) -> None:
    done = run(
        python,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--no-input",
        "-q",
        "install",
        "-c",
        str(ROOT / "constraints.txt"),
        what,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (check := run(python, "-m", "pip", "check", cwd=cwd)).returncode == 0, check.stdout


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    "An environment with ragbench, built and installed as a user gets it, and no extra."
    folder = tmp_path_factory.mktemp("core")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    install(folder / "venv/bin/python", str(ROOT), folder)
    return folder / "venv"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    "MiniLM as sentence-transformers and as fastembed read it."
    from ragbench.embed.onnx_encoder import onnx_encoder
    from ragbench.text.model_files import resolve_model

    folder = tmp_path_factory.mktemp("models")
    source = resolve_model("sentence-transformers/all-MiniLM-L6-v2")
    shutil.copytree(source, folder / "torch")
    shutil.copytree(source, folder / "fast")
    shutil.copy(onnx_encoder(source).folder / "model.onnx", folder / "fast")
    if not (folder / "fast/special_tokens_map.json").exists():
        (folder / "fast/special_tokens_map.json").write_text('{"pad_token": "[PAD]"}')
    config = json.loads((folder / "fast/config.json").read_text())
    (folder / "fast/config.json").write_text(json.dumps({**config, "pad_token_id": 0}))
    return folder


def test_every_extra_with_content_is_tried():
    assert {name for name, packages in EXTRAS.items() if packages} == set(PROBES) | {"dev"}


@pytest.mark.parametrize("extra", PROBES)
def test_an_extra_alone(extra, core, models, tmp_path):
    without = run(core / "bin/python", "-c", PROBES[extra], str(models), cwd=tmp_path)
    if extra in NAMES_ITSELF:
        assert without.returncode != 0
        assert f'pip install "ragbench[{extra}]"' in without.stderr, without.stderr[-2000:]
    mine = tmp_path / "venv"
    shutil.copytree(
        core, mine, symlinks=True, copy_function=os.link
    )  # pip replaces files and never writes into them
    install(mine / "bin/python", f"{ROOT}[{extra}]", tmp_path)
    done = run(mine / "bin/python", "-c", PROBES[extra], str(models), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    shutil.rmtree(mine)
