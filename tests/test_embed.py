"""Embedders on models made here: any folder, any pooling, two backends, worker processes, and spaces that
never mix."""

import json
import os
import shutil
import threading

import numpy as np
import pytest

from ragbench.base.errors import ConfigError, RagbenchError, VectorSpaceError
from ragbench.core.documents import Corpus, Document
from ragbench.core.protocols import Embedder
from ragbench.core.vectors import Space, Vectors
from ragbench.embed import onnx_encoder as onnx_module
from ragbench.embed.fastembed import FastEmbedEmbedder
from ragbench.embed.gemini_embedder import GeminiEmbedder
from ragbench.embed.litellm_embedder import LiteLLMEmbedder
from ragbench.embed.lsa import LSAEmbedder
from ragbench.embed.onnx_encoder import onnx_encoder
from ragbench.embed.openai_embedder import OpenAIEmbedder
from ragbench.embed.sentence_transformer import SentenceTransformerEmbedder
from ragbench.embed.vector_cache import EmbeddingCache, embed_cached
from ragbench.embed.workers import close_workers, in_workers
from ragbench.store.artifacts import DamagedArtifact
from ragbench.store.fingerprint import text_hash

WORDS = "vent the casing before you start a pump roof of tank is inspected every five years check oil level , . ?".split()  # noqa: E501
RNG = np.random.default_rng(5)
TEXTS = [" ".join(RNG.choice(WORDS, n)) for n in RNG.integers(1, 60, 150)] + [
    "",
    "Ünknown wörds 東京",
    "pump " * 200,
]


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A random BERT of two layers with a tokenizer, saved once for each way of ending: mean, cls, no
    normalisation, a dense layer."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    base = tmp_path_factory.mktemp("bert")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (base / "vocab.txt").write_text("\n".join(vocabulary))
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(base)
    tokens = {f"{n}_token": f"[{n.upper()}]" for n in ("pad", "unk", "cls", "sep", "mask")}
    BertTokenizerFast(
        vocab={w: i for i, w in enumerate(vocabulary)}, do_lower_case=True, model_max_length=64, **tokens
    ).save_pretrained(base)
    ends = {
        "mean": ("mean", [Normalize()]),
        "cls": ("cls", [Normalize()]),
        "raw": ("mean", []),
        "dense": ("max", [Dense(32, 12), Normalize()]),
    }
    folders = {}
    for name, (pooling, more) in ends.items():
        transformer = Transformer(str(base))
        transformer.max_seq_length = 64
        folders[name] = tmp_path_factory.mktemp(name)
        SentenceTransformer(
            modules=[transformer, Pooling(32, pooling_mode=pooling), *more], device="cpu"
        ).save(str(folders[name]))
    return folders


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    before = os.environ.get("RAGBENCH_CACHE")
    os.environ["RAGBENCH_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    close_workers()
    if before is None:
        del os.environ["RAGBENCH_CACHE"]
    else:
        os.environ["RAGBENCH_CACHE"] = before


@pytest.mark.parametrize("end", ["mean", "cls", "raw", "dense"])
@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_it_computes_what_sentence_transformers_computes(models, end, backend):
    e = SentenceTransformerEmbedder(str(models[end]), backend=backend)
    want = e.encoder.encode(TEXTS, normalize_embeddings=True, show_progress_bar=False)
    got = e.embed_passages(TEXTS)
    np.testing.assert_allclose(got.array, want, atol=2e-5)
    assert (got.space.dim, e.max_tokens) == (12 if end == "dense" else 32, 64)
    np.testing.assert_allclose(np.linalg.norm(got.array, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_bits_do_not_depend_on_company_or_order(models, backend):
    e = SentenceTransformerEmbedder(str(models["mean"]), backend=backend)
    together = e.embed_passages(TEXTS).array
    order = np.random.default_rng(1).permutation(len(TEXTS))
    np.testing.assert_array_equal(e.embed_passages([TEXTS[i] for i in order]).array, together[order])
    for i in range(0, len(TEXTS), 17):
        np.testing.assert_array_equal(e.embed_queries([TEXTS[i]]).array[0], together[i])


def test_vectors_are_of_length_one_unless_asked(models):
    plain = SentenceTransformerEmbedder(str(models["raw"]), normalize=False)
    unit = SentenceTransformerEmbedder(str(models["raw"]))
    a, b = plain.embed_passages(TEXTS[:9]), unit.embed_passages(TEXTS[:9])
    assert (abs(np.linalg.norm(a.array, axis=1) - 1) > 1e-2).all()
    np.testing.assert_allclose(a.array / np.linalg.norm(a.array, axis=1, keepdims=True), b.array, atol=1e-6)
    with pytest.raises(VectorSpaceError, match="normalized"):
        a.space.check(b.space)
    raw_onnx = SentenceTransformerEmbedder(
        str(models["raw"]), normalize=False, backend="onnx"
    ).embed_passages(TEXTS[:9])
    np.testing.assert_allclose(raw_onnx.array, a.array, atol=2e-5)


def test_cut_and_padded_vectors(models):
    folder = str(models["mean"])
    full = SentenceTransformerEmbedder(folder).embed_passages(TEXTS[:20]).array
    cut = SentenceTransformerEmbedder(folder, dim=8, pad_to=1536).embed_passages(TEXTS[:20])
    head = full[:, :8] / np.linalg.norm(full[:, :8], axis=1, keepdims=True)
    np.testing.assert_allclose(cut.array[:, :8], head, atol=1e-6)
    assert cut.array.shape == (20, 1536) and not cut.array[:, 8:].any()
    with pytest.raises(ConfigError, match="dim is 33"):
        SentenceTransformerEmbedder(folder, dim=33).embed_queries(["pump"])
    with pytest.raises(ConfigError, match="pad_to is 16"):
        SentenceTransformerEmbedder(folder, pad_to=16).embed_queries(["pump"])


def test_no_two_settings_share_a_space_or_a_fingerprint(models):
    folder = str(models["mean"])
    settings = [
        {},
        {"dim": 8},
        {"dim": 8, "pad_to": 32},
        {"pad_to": 64},
        {"dim": 8, "pad_to": 64},
        {"prompts": ("q: ", "")},
        {"prompts": ("", "p: ")},
        {"normalize": False},
    ]
    made = [SentenceTransformerEmbedder(folder, **s) for s in settings] + [
        SentenceTransformerEmbedder(str(models["cls"]))
    ]
    for i, a in enumerate(made):
        for b in made[i + 1 :]:
            assert a.fingerprint != b.fingerprint
            with pytest.raises(VectorSpaceError, match="differ") as e:
                a.space.check(b.space)
            assert str(a.space) in str(e.value) and str(b.space) in str(e.value)  # both sides are named
    torch_, onnx_ = (SentenceTransformerEmbedder(folder, backend=b) for b in ("torch", "onnx"))
    assert torch_.space == onnx_.space and torch_.fingerprint != onnx_.fingerprint
    assert all(eval(repr(m)) == m for m in made)


def lsa(**fields):
    return LSAEmbedder(**fields).fit(Corpus([Document(id=str(i), text=t) for i, t in enumerate(TEXTS[:40])]))


DESCRIBED = {  # an embedder, and the width of what it gives
    "lsa": (lambda m: lsa(dim=5), 5),
    "torch": (lambda m: SentenceTransformerEmbedder(str(m["mean"])), 32),
    "torch dense": (lambda m: SentenceTransformerEmbedder(str(m["dense"])), 12),
    "torch cut": (lambda m: SentenceTransformerEmbedder(str(m["mean"]), dim=8), 8),
    "torch padded": (lambda m: SentenceTransformerEmbedder(str(m["mean"]), dim=8, pad_to=48), 48),
    "onnx": (lambda m: SentenceTransformerEmbedder(str(m["mean"]), backend="onnx"), 32),
    "fastembed": (lambda m: FastEmbedEmbedder("tiny", path=fastembed_folder(m), pooling="disabled"), 32),
    "fastembed cut": (
        lambda m: FastEmbedEmbedder("tiny", path=fastembed_folder(m), pooling="disabled", dim=9),
        9,
    ),
    "openai": (lambda m: OpenAIEmbedder("text-embedding-3-small"), 1536),
    "openai cut": (lambda m: OpenAIEmbedder("text-embedding-3-small", dim=256), 256),
    "gemini": (lambda m: GeminiEmbedder(), 3072),
    "gemini cut": (lambda m: GeminiEmbedder(dim=768), 768),
    "litellm": (lambda m: LiteLLMEmbedder("voyage/voyage-3", native_dim=1024), 1024),
    "litellm cut": (lambda m: LiteLLMEmbedder("cohere/embed-v4.0", dim=512), 512),
}


def fastembed_folder(models):
    "The exported ONNX model with the tokenizer's files that fastembed reads."
    folder = models["mean"].with_name("fast")
    if not folder.exists():
        shutil.copytree(models["mean"], folder)
        shutil.copy(onnx_encoder(models["mean"]).folder / "model.onnx", folder)
        if not (folder / "special_tokens_map.json").exists():
            (folder / "special_tokens_map.json").write_text('{"pad_token": "[PAD]"}')
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "pad_token_id": 0}))
    return folder


@pytest.mark.parametrize("which", DESCRIBED)
def test_every_embedder_says_what_it_is_under_the_same_names(models, which):
    make, width = DESCRIBED[which]
    e = make(models)
    assert isinstance(e, Embedder)
    assert isinstance(e.name, str) and e.name and isinstance(e.revision, str) and e.revision
    assert type(e.space.dim) is int and e.space.dim == width
    assert e.max_tokens is None or (type(e.max_tokens) is int and e.max_tokens > 0)
    assert isinstance(e.prompts, tuple) and len(e.prompts) == 2 and all(isinstance(p, str) for p in e.prompts)
    assert (e.space.model, e.space.revision) == (e.name, e.revision)
    if which.split()[0] in ("lsa", "torch", "onnx", "fastembed"):
        got = e.embed_passages(["check the oil level", "pump"])
        assert got.array.shape == (2, width) and got.array.dtype == np.float32 and got.space == e.space


def test_prompts_reach_the_model(models):
    folder = str(models["mean"])
    e = SentenceTransformerEmbedder(folder, prompts=("check the ", "oil "))
    plain = SentenceTransformerEmbedder(folder)
    np.testing.assert_array_equal(
        e.embed_queries(["pump"]).array, plain.embed_queries(["check the pump"]).array
    )
    np.testing.assert_array_equal(e.embed_passages(["pump"]).array, plain.embed_passages(["oil pump"]).array)


def test_the_window_is_counted_with_the_prompt(models):
    e = SentenceTransformerEmbedder(str(models["mean"]), prompts=("", "check the oil "))
    long = "pump " * 100
    read = int(e.chars_read([long])[0])
    assert read == 5 * (64 - 2 - 3) - 1
    np.testing.assert_array_equal(e.embed_passages([long]).array, e.embed_passages([long[:read]]).array)


def test_an_export_that_disagrees_is_refused_and_not_kept(models, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_module, "least_cosine", lambda *a: 0.99)
    with pytest.raises(ConfigError, match="cosine 0.99"):
        onnx_encoder(models["mean"], tmp_path)
    assert not list((tmp_path / "onnx").rglob("model.onnx"))


def test_a_graph_of_other_numbers_fails_the_proof(models, tmp_path):
    import torch

    encoder = SentenceTransformerEmbedder(str(models["mean"])).encoder
    exported = onnx_encoder(models["mean"], tmp_path)
    assert onnx_module.least_cosine(encoder, exported) > 0.99999
    with torch.no_grad():
        saved = encoder[0].auto_model.encoder.layer[1].output.dense.weight.clone()
        encoder[0].auto_model.encoder.layer[1].output.dense.weight.mul_(50)
        assert onnx_module.least_cosine(encoder, exported) < onnx_module.LEAST_COSINE
        encoder[0].auto_model.encoder.layer[1].output.dense.weight.copy_(saved)


def test_a_damaged_export_is_made_again(models, tmp_path):
    folder = onnx_encoder(models["cls"], tmp_path).folder
    onnx_encoder.cache_clear()
    data = bytearray((folder / "model.onnx").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "model.onnx").write_bytes(data)
    with pytest.warns(DamagedArtifact, match="model.onnx of an ONNX export is missing or damaged"):
        onnx_encoder(models["cls"], tmp_path)
    assert (folder / "model.onnx").read_bytes() != data


@pytest.mark.slow
def test_workers_give_the_same_bits(models):
    alone, two = (SentenceTransformerEmbedder(str(models["mean"]), workers=n) for n in (1, 2))
    assert alone.fingerprint == two.fingerprint
    np.testing.assert_array_equal(two.embed_passages(TEXTS).array, alone.embed_passages(TEXTS).array)
    close_workers()


class InWorkers:
    """Vectors of the lengths of texts, computed in two worker processes; one of them ends at a text that says
    so."""

    fingerprint, space = "in workers", Space("toy", "1", 2)

    def embed_parts(self, texts, role):
        code = (
            "(__import__('os').kill(__import__('os').getpid(), 9) if {die} else [len(t) for t in {part!r}])"
        )
        jobs = [
            code.format(die="die" in texts[i : i + 4], part=list(texts[i : i + 4]))
            for i in range(0, len(texts), 4)
        ]
        for i, lengths in in_workers(eval, jobs, 2):
            yield range(4 * i, 4 * i + len(lengths)), self.vectors(lengths)

    def vectors(self, lengths):
        x = np.array([[n, 1.0] for n in lengths])
        return Vectors(x / np.linalg.norm(x, axis=1, keepdims=True), self.space)


@pytest.mark.faults
def test_a_killed_worker_is_a_clear_error_and_costs_its_part(tmp_path):
    texts = [f"{i:0{3 + i % 7}}" for i in range(60)] + ["die"]
    cache, done = EmbeddingCache(tmp_path), []
    with pytest.raises(RagbenchError, match="a worker process was killed"):
        embed_cached(InWorkers(), texts, "passage", cache, progress=done.append)
    with cache.connect("in workers") as con:
        kept = con.execute("SELECT count(*) FROM embeddings").fetchone()[0]
    assert kept == sum(done) and len(texts) - kept >= 1
    ordered = sorted((-len(t), text_hash(t), t) for t in texts)  # as the cache hands them over
    last = next(i for i, t in enumerate(ordered) if t[2] == "die") // 4
    assert (
        kept >= 4 * last - 4
    )  # every part before the fatal one was finished by the other worker, or was in its hands
    calls, texts = [], texts[:-1]
    array = embed_cached(InWorkers(), texts, "passage", cache, progress=calls.append).array
    assert calls[0] >= kept - 1
    np.testing.assert_array_equal(array, InWorkers().vectors([len(t) for t in texts]).array)
    close_workers()


def test_threads_of_two_callers_share_workers():
    results = {}

    def run(name):
        results[name] = sorted(in_workers(len, ["x" * i for i in range(20)], 2))

    callers = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    [c.start() for c in callers]
    [c.join() for c in callers]
    assert results[0] == results[1] == [(i, i) for i in range(20)]


class Counting:
    fingerprint, space = "counting", Space("toy", "1", 2)

    def __init__(self):
        self.texts = []

    def embed_passages(self, texts):
        self.texts += texts
        x = np.array([[len(t) + 1, 1.0] for t in texts])
        return Vectors(x / np.linalg.norm(x, axis=1, keepdims=True), self.space)

    embed_queries = embed_passages


def test_a_grid_of_ten_chunkers_embeds_each_distinct_text_once(tmp_path):
    cache, e = EmbeddingCache(tmp_path), Counting()
    chunkings = [[f"passage {j}" for j in range(i, i + 30)] for i in range(10)]
    for texts in chunkings * 2:
        embed_cached(e, texts, "passage", cache)
    assert len(e.texts) == len(set(e.texts)) == 39


def test_a_damaged_vector_is_made_again(tmp_path):
    cache = EmbeddingCache(tmp_path)
    embed_cached(Counting(), ["a", "b"], "passage", cache)
    with cache.connect("counting") as con:
        con.execute("UPDATE embeddings SET vector = ?", (np.ones(2, np.float32).tobytes(),))
    e = Counting()
    with pytest.warns(DamagedArtifact, match="2 cached vectors are damaged"):
        assert np.array_equal(
            embed_cached(e, ["a", "b"], "passage", cache).array, Counting().embed_passages(["a", "b"]).array
        )
    embed_cached(e, ["a", "b"], "passage", cache)
    assert len(e.texts) == 2
