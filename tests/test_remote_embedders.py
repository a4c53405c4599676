"""Embedders of remote models against servers that misbehave: what arrives there, what is retried, what is
counted, what is kept."""

import asyncio
import base64
import json
import logging
import pickle
import subprocess
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from helper_leaks import KEY, LEAKS
from hypothesis import given
from hypothesis import strategies as st

from ragbench.base.errors import ConfigError, DataError, RagbenchError, VectorSpaceError
from ragbench.core.chunks import chunk_corpus
from ragbench.core.documents import Corpus, Document
from ragbench.core.labels import label
from ragbench.core.protocols import Embedder
from ragbench.embed.gemini_embedder import GeminiEmbedder
from ragbench.embed.litellm_embedder import LiteLLMEmbedder
from ragbench.embed.openai_embedder import OpenAIEmbedder
from ragbench.embed.remote_batches import TokenCount, batches, checked, in_order, known_model
from ragbench.embed.vector_cache import EmbeddingCache, embed_cached
from ragbench.remote import calls
from ragbench.remote.calls import RemoteError
from ragbench.testing.loopback import Answer, Loopback
from ragbench.testing.toy_vectors import ToyVectors, asked_texts, toy_vector
from ragbench.text.tokenizers import get_tokenizer

DIM = 6


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in (
        "LOOPBACK_KEY",
        "OPENAI_API_KEY",
        "AZURE_OPENAI_API_KEY",
        "GEMINI_API_KEY",
        "COHERE_API_KEY",
        "VOYAGE_API_KEY",
    ):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIALOOPBACK")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws-0123456789-secret")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")


@pytest.fixture
def waits(monkeypatch):
    """Seconds that would have been waited; nobody waits."""
    seen = []
    monkeypatch.setattr(calls, "pause", seen.append)
    return seen


MAKERS = {
    "openai": lambda server, **kw: OpenAIEmbedder("toy", DIM, base_url=server.url, **kw),
    "azure": lambda server, **kw: OpenAIEmbedder(
        "toy", DIM, azure_endpoint=server.root, deployment="mine", **kw
    ),
    "gemini": lambda server, **kw: GeminiEmbedder("gemini-embedding-001", DIM, base_url=server.root, **kw),
    "litellm openai": lambda server, **kw: LiteLLMEmbedder(
        "openai/toy", DIM, server.url, key_env="LOOPBACK_KEY", **kw
    ),
    "litellm cohere": lambda server, **kw: LiteLLMEmbedder(
        "cohere/embed-v4.0", DIM, server.url + "/embed", **kw
    ),
    "litellm voyage": lambda server, **kw: LiteLLMEmbedder("voyage/voyage-3.5", DIM, server.url, **kw),
}


@pytest.fixture(params=MAKERS)
def make(request):
    def maker(server, **kw):
        return MAKERS[request.param](server, **{"timeout": 5, **kw})

    maker.name = request.param
    return maker


def toy(texts, dim=DIM):
    return np.array([toy_vector(t, dim) for t in texts]) / 2


TEXTS = ["one", "two words", "three of them", "four", "five", "six, to go on", "seven"]


# --- what arrives, and what comes back ----------------------------------------------------------------------


def test_a_good_day(make):
    with Loopback(ToyVectors(4)) as server:
        e = make(server, batch_size=3)
        vectors = e.embed_passages(TEXTS)
        alone = e.embed_queries(["two words"])
        raw = replace(e, normalize=False).embed_passages(TEXTS[:2])
    assert np.abs(vectors.array - toy(TEXTS)).max() < 1e-6
    assert vectors.array.dtype == np.float32
    assert np.abs(alone.array - toy(["two words"])).max() < 1e-6
    assert sorted(len(asked_texts(a)) for a in server.asked[:3]) == [1, 3, 3]
    assert [
        t
        for a in sorted(server.asked[:3], key=lambda a: TEXTS.index(asked_texts(a)[0]))
        for t in asked_texts(a)
    ] == TEXTS
    assert (e.space.dim, e.space.normalized) == (DIM, True)
    assert isinstance(e, Embedder)
    assert np.abs(raw.array - 2 * toy(TEXTS[:2])).max() < 1e-6
    with pytest.raises(VectorSpaceError, match="normalized"):
        raw.space.check(vectors.space)
    words = sum(len(t.split()) for t in [*TEXTS, "two words"])
    assert (e.usage.replies, e.usage.attempts, e.tokens) == (4, 4, words)


def test_wire_of_openai():
    with Loopback(ToyVectors(4)) as server:
        OpenAIEmbedder("toy", 3, server.url, options={"user": "me"}).embed_passages(["a", "b"])
        OpenAIEmbedder("toy", base_url=server.url, encoding_format="float", key_env=None).embed_queries(["a"])
    assert server.asked[0] == {
        "model": "toy",
        "input": ["a", "b"],
        "dimensions": 3,
        "encoding_format": "base64",
        "user": "me",
    }
    assert server.paths[0] == "/v1/embeddings"
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert {k: v for k, v in server.asked[-1].items() if k != "input"} == {
        "model": "toy",
        "encoding_format": "float",
    }


def test_base64_and_lists_give_the_same_bits():
    with Loopback(ToyVectors(64)) as server:
        coded, plain = (
            OpenAIEmbedder("toy", base_url=server.url, encoding_format=f).embed_passages(TEXTS).array
            for f in ("base64", "float")
        )
    assert coded.tobytes() == plain.tobytes()


def test_a_server_that_answers_base64_with_lists():
    def lists(asked):
        return ToyVectors(4)({**asked, "encoding_format": "float"})

    with Loopback(lists) as server:
        v = OpenAIEmbedder("toy", base_url=server.url).embed_passages(TEXTS)
    assert np.abs(v.array - toy(TEXTS, 4)).max() < 1e-6


def test_wire_of_azure(monkeypatch):
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "az-0123456789")
    with Loopback(ToyVectors(1536)) as server:
        e = OpenAIEmbedder(
            "text-embedding-3-small", azure_endpoint=server.root, deployment="mine", api_version="2024-10-21"
        )
        e.embed_queries(["a"])
        replace(e, deployment=None).embed_queries(["a"])
    assert server.paths == [
        "/openai/deployments/mine/embeddings?api-version=2024-10-21",
        "/openai/deployments/text-embedding-3-small/embeddings?api-version=2024-10-21",
    ]
    assert server.headers[0]["api-key"] == "az-0123456789"
    e.space.check(OpenAIEmbedder("text-embedding-3-small").space)
    assert e.fingerprint == OpenAIEmbedder("text-embedding-3-small").fingerprint
    assert e.max_tokens == 8191


def test_wire_of_gemini():
    with Loopback(ToyVectors(4)) as server:
        e = GeminiEmbedder(dim=4, base_url=server.root)
        e.embed_passages(["a", "b"])
        e.embed_queries(["c"])
    assert server.paths == ["/v1beta/models/gemini-embedding-001:batchEmbedContents"] * 2
    assert server.headers[0]["x-goog-api-key"] == KEY
    want = {
        "taskType": "RETRIEVAL_DOCUMENT",
        "outputDimensionality": 4,
        "model": "models/gemini-embedding-001",
    }
    assert [{k: r[k] for k in want} for r in server.asked[0]["requests"]] == [want, want]
    assert server.asked[1]["requests"][0]["taskType"] == "RETRIEVAL_QUERY"
    assert KEY not in "".join(server.paths)


def test_gemini_takes_a_hundred():
    texts = [f"text {i}" for i in range(230)]
    with Loopback(ToyVectors(4)) as server:
        v = GeminiEmbedder(dim=4, base_url=server.root).embed_passages(texts)
    assert sorted(len(a["requests"]) for a in server.asked) == [30, 100, 100]
    assert np.abs(v.array - toy(texts, 4)).max() < 1e-6
    with pytest.raises(ConfigError, match="at most 100"):
        GeminiEmbedder(batch_size=101)


def test_the_second_gemini_reads_its_task_from_the_text():
    with Loopback(ToyVectors(8)) as server:
        e = GeminiEmbedder("gemini-embedding-2", 8, base_url=server.root)
        assert len(e.embed_passages(["a", "b", "c"])) == 3
        e.embed_queries(["d"])
    assert [asked_texts(a) for a in server.asked] == [
        [f"title: none | text: {t}" for t in "abc"],
        ["task: search result | query: d"],
    ]
    assert "taskType" not in json.dumps(server.asked)


@pytest.mark.parametrize(
    ("model", "key", "sides"),
    [
        ("cohere/embed-v4.0", "truncate", [("search_document", "NONE"), ("search_query", "NONE")]),
        ("voyage/voyage-3.5", "truncation", [("document", False), ("query", False)]),
    ],
)
def test_wire_of_cohere_and_voyage(model, key, sides):
    with Loopback(ToyVectors(4)) as server:
        e = LiteLLMEmbedder(model, 4, server.url)
        e.embed_passages(["a", "b"])
        e.embed_queries(["c"])
    assert [(a["input_type"], a[key]) for a in server.asked] == sides
    assert [a["output_dimension"] for a in server.asked] == [4, 4]
    assert [len(asked_texts(a)) for a in server.asked] == [2, 1]
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("model", "path"),
    [("bedrock/amazon.titan-embed-text-v2:0", "titan"), ("bedrock/cohere.embed-english-v3", "cohere")],
)
def test_wire_of_bedrock(model, path):
    pytest.importorskip("boto3")
    texts = ["a", "b", "c"]
    with Loopback(ToyVectors(1024)) as server:
        e = LiteLLMEmbedder(model, options={"aws_bedrock_runtime_endpoint": server.root})
        v, _ = e.embed_passages(texts), e.embed_queries(["d"])
    assert np.abs(v.array - toy(texts, 1024)).max() < 1e-6
    assert path in server.paths[0]
    assert "aws-0123456789-secret" not in json.dumps(server.headers)
    if path == "titan":
        assert [a["inputText"] for a in server.asked] == ["a", "b", "c", "d"]
    else:
        assert [a["input_type"] for a in server.asked] == ["search_document", "search_query"]


def test_roles_of_ones_own():
    with Loopback(ToyVectors(4)) as server:
        e = LiteLLMEmbedder(
            "openai/jina",
            base_url=server.url,
            roles=({"task": "retrieval.query"}, {"task": "retrieval.passage"}),
            key_env="LOOPBACK_KEY",
        )
        e.embed_passages(["a"])
        e.embed_queries(["b"])
    assert [a["task"] for a in server.asked] == ["retrieval.passage", "retrieval.query"]


def test_prompts_go_before_texts_and_into_the_space():
    with Loopback(ToyVectors(4)) as server:
        e = OpenAIEmbedder("toy", base_url=server.url, prompts=("query: ", "passage: "))
        e.embed_passages(["a"])
        e.embed_queries(["b"])
        with pytest.raises(VectorSpaceError, match="prompts"):
            e.space.check(replace(e, prompts=("", "")).space)
    assert [asked_texts(a) for a in server.asked[:2]] == [["passage: a"], ["query: b"]]


def test_chunks_are_taken_as_they_are(make):
    corpus = Corpus([Document("d", "one two three")])
    chunks = chunk_corpus(corpus, lambda d: np.array([[0, 3], [4, 7]]), "by hand")
    with Loopback(ToyVectors(4)) as server:
        assert np.abs(make(server).embed_passages(chunks).array - toy(["one", "two"])).max() < 1e-6


# --- what goes wrong ----------------------------------------------------------------------------------------


def spoil(row):
    return lambda rows: [(i, np.array(row(v), dtype=np.float32) if i == 0 else v) for i, v in rows]


MISDEEDS = {
    "429": Answer("slow down", status=429),
    "500": Answer("oops", status=500),
    "503": Answer("overloaded", status=503),
    "408": Answer("too slow", status=408),
    "half a body": Answer(body=json.dumps({"data": []}) * 9, cut=True),
    "half of the JSON": Answer(body='{"data": [{"index": 0, "embedding": [0.1, '),
    "no JSON": Answer(body="<html>gateway</html>"),
    "nothing in it": Answer(body="{}"),
    "a vector short": lambda rows: rows[1:],
    "a vector too many": lambda rows: [*rows, (len(rows), rows[0][1])],
    "wrong dimension": lambda rows: [(i, v[:-1]) for i, v in rows],
    "one of another dimension": spoil(lambda v: v[:-1]),
    "no vectors": lambda rows: [(i, v[:0]) for i, v in rows],
    "not a number": spoil(lambda v: v * np.nan),
    "infinite": spoil(lambda v: v * np.inf),
    "zero": spoil(lambda v: v * 0),
}


@pytest.mark.parametrize("misdeed", MISDEEDS)
def test_what_another_attempt_may_mend_is_tried_again(make, misdeed, waits):
    with Loopback(ToyVectors(4, first=[MISDEEDS[misdeed]] * 2)) as server:
        e = make(server)
        vectors = e.embed_passages(TEXTS[:3])
    assert np.abs(vectors.array - toy(TEXTS[:3])).max() < 1e-6
    assert (len(server.asked), e.usage.attempts, e.usage.replies, len(waits)) == (3, 3, 1, 2)
    assert 0.5 <= waits[0] <= 1
    assert 1 <= waits[1] <= 2


@pytest.mark.parametrize(
    "misdeed",
    ["429", "503", "half a body", "half of the JSON", "a vector short", "wrong dimension", "not a number"],
)
def test_and_not_for_ever(make, misdeed, waits):
    with (
        Loopback(ToyVectors(4, first=[MISDEEDS[misdeed]] * 9)) as server,
        pytest.raises(RemoteError, match="attempt 3 of 3") as e,
    ):
        make(server, retries=2).embed_passages(TEXTS[:3])
    assert len(server.asked) == 3
    assert e.value.fix
    assert isinstance(pickle.loads(pickle.dumps(e.value)), RagbenchError)
    said = {
        "a vector short": "2 vectors for 3 texts",
        "wrong dimension": f"{DIM - 1} dimensions instead of {DIM}",
        "not a number": "not finite",
    }
    assert said.get(misdeed, "") in str(e.value) or "litellm cohere" in make.name


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_it_cannot_mend_is_not(make, status, waits):
    with (
        Loopback([Answer("no", status=status)]) as server,
        pytest.raises(RemoteError, match=f"status {status}"),
    ):
        make(server).embed_queries(["a"])
    assert (len(server.asked), waits) == (1, [])


def test_an_exhausted_account_is_not_asked_again(waits):
    with (
        Loopback([Answer("You exceeded your current quota: insufficient_quota", status=429)]) as server,
        pytest.raises(RemoteError, match="no credit"),
    ):
        MAKERS["openai"](server).embed_queries(["a"])
    assert (len(server.asked), waits) == (1, [])


def test_silence(make, waits):
    with Loopback(ToyVectors(4, first=[Answer("late", delay=3)])) as server:
        e = make(server, timeout=0.4)
        assert np.abs(e.embed_queries(["a"]).array - toy(["a"])).max() < 1e-6
        assert e.usage.attempts >= 2  # more where the machine is slow
    with (
        Loopback([Answer("late", delay=3)]) as server,
        pytest.raises(RemoteError, match="silent for too long"),
    ):
        make(server, timeout=0.3, retries=0).embed_queries(["a"])


def test_nobody_there(make, waits):
    with Loopback() as server:
        e = make(server, retries=1)
    with pytest.raises(RemoteError, match="attempt 2 of 2"):
        e.embed_queries(["a"])


@pytest.mark.parametrize(("header", "seconds"), [(("Retry-After", "7"), 7), (("retry-after-ms", "300"), 0.3)])
def test_the_server_says_how_long_to_wait(make, header, seconds, waits):
    with Loopback(ToyVectors(4, first=[Answer("wait", status=429, headers=(header,))])) as server:
        make(server, base_wait=0.1).embed_queries(["a"])
    assert len(waits) == 1
    assert seconds <= waits[0] <= seconds + 0.1


def test_google_says_it_in_the_body(waits):
    body = json.dumps(
        {
            "error": {
                "code": 429,
                "message": "quota",
                "status": "RESOURCE_EXHAUSTED",
                "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "21s"}],
            }
        }
    )
    with Loopback(ToyVectors(4, first=[Answer(status=429, body=body)])) as server:
        MAKERS["gemini"](server, base_wait=0.1).embed_queries(["a"])
    assert 21 <= waits[0] <= 21.1


def test_too_long_a_wait_is_no_wait(make, waits):
    with (
        Loopback([Answer("wait", status=429, headers=(("Retry-After", "3600"),))]) as server,
        pytest.raises(RemoteError, match="asks to wait 3600 s"),
    ):
        make(server).embed_queries(["a"])
    assert (len(server.asked), waits) == (1, [])


def test_the_order_is_the_servers_numbers():
    rng = np.random.default_rng(0)

    def shuffled(rows):
        return [rows[i] for i in rng.permutation(len(rows))]

    with Loopback(ToyVectors(4, first=[shuffled] * 9)) as server:
        for name in ("openai", "azure", "litellm openai", "litellm voyage"):
            assert np.abs(MAKERS[name](server).embed_passages(TEXTS).array - toy(TEXTS)).max() < 1e-6


@pytest.mark.parametrize("numbers", [[0, 0, 1], [1, 2, 3], [0, None, 2], [-1, 0, 1]])
def test_numbers_that_make_no_sense(numbers, waits):
    def renumbered(rows):
        return [(n, v) for n, (_, v) in zip(numbers, rows)]

    with Loopback(ToyVectors(4, first=[renumbered])) as server:
        e = MAKERS["openai"](server)
        assert np.abs(e.embed_passages(TEXTS[:3]).array - toy(TEXTS[:3])).max() < 1e-6
    assert e.usage.attempts == 2


def test_base64_that_is_none(waits):
    bad = [
        Answer(body=json.dumps({"object": "list", "model": "m", "data": [{"index": 0, "embedding": x}]}))
        for x in ("%%%", base64.b64encode(b"12345").decode(), None, {})
    ]
    with Loopback(ToyVectors(DIM, first=bad)) as server:
        assert len(MAKERS["openai"](server).embed_queries(["a"])) == 1
    assert len(server.asked) == 5


# --- how many at once ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [1, 3])
def test_calls_in_flight(bound):
    texts = [f"text {i}" for i in range(24)]
    with Loopback(ToyVectors(4, delay=0.02)) as server:
        e = OpenAIEmbedder("toy", 4, server.url, in_flight=bound, batch_size=2)
        with ThreadPoolExecutor(3) as pool:
            got = list(pool.map(lambda _: e.embed_passages(texts).array, range(3)))
    assert server.most_at_once == bound
    assert all(np.array_equal(a, got[0]) for a in got)
    assert np.abs(got[0] - toy(texts, 4)).max() < 1e-6
    assert e.usage.replies == 36


def test_five_unless_said_otherwise():
    gate = threading.Barrier(5)  # opens only when five calls are open at once
    inner = ToyVectors(4)

    def script(asked):
        gate.wait(timeout=20)
        return inner(asked)

    with Loopback(script) as server:
        OpenAIEmbedder("toy", 4, server.url, batch_size=1, timeout=30).embed_passages(
            [f"text {i}" for i in range(20)]
        )
    assert server.most_at_once == 5


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 7), st.integers(1, 120))
def test_batches_keep_both_limits(counts, size, tokens):
    runs = list(batches(np.array(counts, dtype=np.int64), size, tokens))
    assert [i for r in runs for i in r] == list(range(len(counts)))
    for r in runs:
        assert 0 < len(r) <= size
        assert sum(counts[i] for i in r) <= tokens or len(r) == 1
    for a, b in zip(runs, runs[1:]):
        assert len(a) == size or sum(counts[i] for i in a) + counts[b[0]] > tokens  # none is closed too early


def test_batches_by_tokens_at_the_server():
    texts = ["word " * 40] * 6
    with Loopback(ToyVectors(4)) as server:
        OpenAIEmbedder("text-embedding-3-small", 4, server.url, batch_tokens=100).embed_passages(texts)
    assert [len(asked_texts(a)) for a in server.asked] == [2, 2, 2]
    assert all(
        sum(get_tokenizer("cl100k_base").count(t) for t in asked_texts(a)) <= 100 for a in server.asked
    )


# --- the window ---------------------------------------------------------------------------------------------


def test_nothing_is_cut_in_silence(make):
    long = "word " * 400
    with Loopback(ToyVectors(4)) as server:
        e = make(server, window=256)
        with pytest.raises(
            DataError,
            match=r"1 of 3 texts are longer than the window of 256 tokens; text 1 has \d+ \(estimated",
        ) as error:
            e.embed_passages(["a", long, "b"])
        assert server.asked == []
        assert "overlong='truncate'" in error.value.fix
        cut = replace(e, overlong="truncate")
        cut.embed_passages(["a", long, "b"])
    sent = [t for a in server.asked for t in asked_texts(a)]
    assert sent[1] != long
    assert long.startswith(sent[1])
    assert TokenCount(factor=1.2)([sent[1]])[0] <= 256
    assert (cut.truncated, e.truncated) == (1, 0)
    assert "1 texts truncated" in cut.report()
    assert cut.fingerprint != e.fingerprint
    assert cut.chars_read(["a", long]).tolist() == [1, len(sent[1])]


def test_windows_that_are_known():
    assert [
        e.max_tokens
        for e in (
            OpenAIEmbedder("text-embedding-3-large"),
            GeminiEmbedder(),
            LiteLLMEmbedder("cohere/embed-english-v3.0"),
            LiteLLMEmbedder("voyage/voyage-3"),
            OpenAIEmbedder("nobody-knows", base_url="http://h/v1"),
            OpenAIEmbedder(window=100),
        )
    ] == [8191, 2048, 512, 32000, None, 100]
    exact = OpenAIEmbedder().counter
    assert (exact.factor, exact.tokenizer) == (1, "cl100k_base")
    assert GeminiEmbedder().counter.factor > 1


@pytest.mark.parametrize("empty", ["", " \n"])
def test_empty_texts_are_refused_before_anything_is_sent(make, empty):
    with Loopback(ToyVectors(4)) as server, pytest.raises(DataError, match="text 1 is empty"):
        make(server).embed_passages(["a", empty])
    assert not server.asked


def test_no_texts_no_call(make):
    with Loopback(ToyVectors(4)) as server:
        assert make(server).embed_passages([]).array.shape == (0, DIM)
    assert not server.asked


# --- dimensions, spaces, fingerprints -----------------------------------------------------------------------


def test_a_dimension_that_nobody_knows_is_asked_for_once():
    with Loopback(ToyVectors(5)) as server:
        e = OpenAIEmbedder("toy", base_url=server.url)
        assert (e.space.dim, e.space.dim, e.space.dim) == (5, 5, 5)
        assert len(server.asked) == 1
        e.embed_passages(TEXTS)
        other = OpenAIEmbedder("toy", base_url=server.url)
        assert other.embed_passages(TEXTS).space.dim == 5  # found from the answer itself
    assert len(server.asked) == 3


def test_with_the_dimension_stated_a_full_cache_needs_no_server(tmp_path):
    cache = EmbeddingCache(tmp_path)
    with Loopback(ToyVectors(5)) as server:
        e = OpenAIEmbedder("toy", base_url=server.url, native_dim=5)
        first = embed_cached(e, TEXTS, "passage", cache)
        assert "dimensions" not in server.asked[0]
        with pytest.raises(RemoteError, match="5 dimensions instead of 6"):
            replace(e, native_dim=6, retries=0).embed_queries(["a"])
    assert np.array_equal(embed_cached(replace(e), TEXTS, "passage", cache).array, first.array)


def test_a_server_that_changes_its_mind(waits):
    with Loopback(ToyVectors(5, first=[None, *[lambda rows: [(i, v[:3]) for i, v in rows]] * 2])) as server:
        e = OpenAIEmbedder("toy", base_url=server.url, retries=1)
        e.embed_queries(["a"])
        with pytest.raises(RemoteError, match="3 dimensions instead of 5"):
            e.embed_queries(["b"])


def test_what_makes_other_vectors_has_another_fingerprint():
    base = OpenAIEmbedder("toy", 4, "http://h/v1")
    others = [
        replace(base, **kw)
        for kw in (
            {"model": "other"},
            {"dim": 5},
            {"base_url": "http://g/v1"},
            {"normalize": False},
            {"prompts": ("q: ", "")},
            {"snapshot": "2"},
            {"options": {"x": 1}},
            {"overlong": "truncate", "window": 9},
        )
    ]
    assert len({e.fingerprint for e in [base, *others]}) == len(others) + 1
    same = [
        replace(base, **kw)
        for kw in (
            {"retries": 0},
            {"timeout": 1},
            {"in_flight": 9},
            {"batch_size": 3},
            {"price": 1.0},
            {"key_env": None},
            {"base_wait": 9},
            {"encoding_format": "float"},
            {"native_dim": 9},
        )
    ]
    assert {e.fingerprint for e in same} == {base.fingerprint}
    assert all(e == base for e in same)
    assert (
        GeminiEmbedder().fingerprint
        != GeminiEmbedder(task_types=("RETRIEVAL_QUERY", "SEMANTIC_SIMILARITY")).fingerprint
    )


@pytest.mark.parametrize(
    "e",
    [
        OpenAIEmbedder(),
        OpenAIEmbedder(
            "m", 3, "http://h/v1", key_env=None, prompts=("a", "b"), options={"user": "x"}, price=0.1
        ),
        GeminiEmbedder(dim=768, in_flight=2),
        LiteLLMEmbedder("voyage/voyage-3", roles=({}, {"input_type": "document"})),
    ],
    ids=repr,
)
def test_repr_makes_it_again(e):
    again = eval(repr(e), {t.__name__: t for t in (OpenAIEmbedder, GeminiEmbedder, LiteLLMEmbedder)})
    assert again == e
    assert again.fingerprint == e.fingerprint
    back = pickle.loads(pickle.dumps(e))
    assert back == e
    assert back.usage.replies == 0
    assert (back.name, back.revision, label(back)) == (e.name, e.revision, label(e))


def test_labels_tell_widths_apart():
    assert [label(OpenAIEmbedder(dim=d)) for d in (None, 256)] == [
        "text-embedding-3-small",
        "text-embedding-3-small(dim=256)",
    ]
    assert label(LiteLLMEmbedder("voyage/voyage-3")) == "voyage-3"


def test_importing_them_imports_no_client():
    code = (
        "import sys, ragbench.embed.openai_embedder, ragbench.embed.gemini_embedder,"
        " ragbench.embed.litellm_embedder as m; m.LiteLLMEmbedder('voyage/voyage-3').max_tokens;"
        " print(sorted({'openai', 'litellm', 'google.genai', 'tiktoken', 'torch'} & set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (OpenAIEmbedder, "base_url"),
        (OpenAIEmbedder, "azure_endpoint"),
        (GeminiEmbedder, "base_url"),
        (LiteLLMEmbedder, "base_url"),
    ],
)
@pytest.mark.parametrize("url", ["host:8000", "ftp://host", "http://me:pw@host/v1", "http://host/v1?key=abc"])
def test_addresses_that_cannot_work(kind, field, url):
    with pytest.raises(ConfigError, match=field) as e:
        kind(**{field: url})
    assert "pw" not in str(e.value)
    assert "abc" not in str(e.value)


@pytest.mark.parametrize(
    "options",
    [
        {"api_key": KEY},
        {"extra_headers": {"Authorization": KEY}},
        {"aws_secret_access_key": KEY},
        {"token": KEY},
    ],
)
def test_keys_do_not_belong_among_options(options):
    with pytest.raises(ConfigError, match="options carry a key") as e:
        LiteLLMEmbedder("bedrock/x", options=options)
    assert KEY not in str(e.value)


# --- keys ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leak", LEAKS)
def test_the_key_is_never_shown(make, leak, caplog, capfd, waits):
    caplog.set_level("DEBUG", logger="ragbench")
    with Loopback([LEAKS[leak]]) as server:
        e = make(server, retries=1)
        try:
            e.embed_queries(["Hello"])
        except RemoteError as error:
            shown = "".join(traceback.format_exception(error))
            caught = error
    assert any(KEY in v for v in server.headers[0].values())
    for text in (
        shown,
        str(caught),
        repr(caught),
        repr(e),
        e.report(),
        repr(vars(e)),
        pickle.dumps(e).decode("latin1"),
        pickle.dumps(caught).decode("latin1"),
    ):
        assert KEY not in text
    assert not any(KEY in r.getMessage() for r in caplog.records)
    assert KEY not in "".join(capfd.readouterr())
    assert caught.__cause__ is None
    assert caught.__context__ is None


@pytest.mark.parametrize(
    "name", ["openai", "azure", "gemini", "litellm openai"]
)  # with the others LiteLLM looks for the key itself
@pytest.mark.parametrize("bad", ["", "  ", "sk-äöü-secret", "sk-a\nb-secret"])
def test_a_key_that_cannot_be_one(name, bad, monkeypatch):
    for variable in ("LOOPBACK_KEY", "OPENAI_API_KEY", "AZURE_OPENAI_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(variable, bad)
    with Loopback() as server, pytest.raises(ConfigError, match="_KEY") as e:
        MAKERS[name](server).embed_queries(["a"])
    assert not server.asked
    assert "secret" not in str(e.value)


# --- what it costs ------------------------------------------------------------------------------------------


def test_money(make):
    with Loopback(ToyVectors(4)) as server:
        e = make(server, price=2.0)
        e.embed_passages(TEXTS)
    words = sum(len(t.split()) for t in TEXTS)
    assert e.cost == pytest.approx(words * 2 / 1e6)
    assert f"{words} tokens" in e.report()
    assert "less than a cent at $2 per million tokens (as given)" in e.report()
    assert f"{len(TEXTS)} texts in 1 calls (1 attempts)" in e.report()


def test_a_price_is_never_invented():
    with Loopback(ToyVectors(4)) as server:
        e = OpenAIEmbedder("text-embedding-house", base_url=server.url)
        e.embed_passages(TEXTS)
    assert e.cost is None
    assert "price not known" in e.report()
    assert e.tokens > 0
    assert OpenAIEmbedder("text-embedding-3-small").cost == 0
    assert known_model("text-embedding-3-small").price == 0.02
    assert known_model("gpt-4o").price is None  # no embedding model


def test_uncounted_tokens_are_counted_here():
    with Loopback(ToyVectors(4, usage=False)) as server:
        e = OpenAIEmbedder("text-embedding-3-small", 4, server.url, price=1.0)
        e.embed_passages(TEXTS)
    ours = int(TokenCount()(TEXTS).sum())
    assert (e.usage.uncounted, e.tokens, e.cost) == (1, ours, pytest.approx(ours / 1e6))
    assert f"{ours} of the tokens by our own count (cl100k_base tokens)" in e.report()


def test_refused_answers_are_paid_for(waits):
    with Loopback(ToyVectors(4, first=[MISDEEDS["not a number"]])) as server:
        e = GeminiEmbedder(dim=4, base_url=server.root)
        e.embed_passages(["one two three"])
    assert (e.usage.attempts, e.tokens) == (2, 6)


# --- what was paid for is kept ------------------------------------------------------------------------------


def gather(parts, kept):
    for rows, vectors in parts:
        kept.update(zip(rows, vectors.array))


def poisonous(healed=()):
    """A script that refuses the text `poison` until `healed` is filled."""
    inner = ToyVectors(4)
    return lambda asked: (
        Answer("no", status=400) if "poison" in asked_texts(asked) and not healed else inner(asked)
    )


def test_finished_batches_are_given_before_the_error(make, waits):
    kept = {}
    with Loopback(poisonous()) as server:
        e = make(server, batch_size=1, in_flight=1)
        with pytest.raises(RemoteError, match="status 400"):
            gather(e.embed_parts(["a", "b", "poison", "c", "d"]), kept)
    assert sorted(kept) == [0, 1]
    assert np.abs(np.array([kept[0], kept[1]]) - toy("ab")).max() < 1e-6
    assert len(server.asked) == 3  # none was begun after the failure


def test_calls_under_way_are_waited_for():
    arrived, gate = threading.Semaphore(0), threading.Event()
    inner = ToyVectors(4)

    def script(asked):
        if "poison" in asked_texts(asked):
            for _ in range(2):
                arrived.acquire(timeout=20)  # fail only when the other two are open
            gate.set()
            return Answer("no", status=400)
        arrived.release()
        gate.wait(20)
        return inner(asked)

    kept = {}
    with Loopback(script) as server:
        e = OpenAIEmbedder("toy", 4, server.url, batch_size=1, in_flight=3)
        with pytest.raises(RemoteError, match="status 400"):
            gather(e.embed_parts(["a", "poison", "b", *"cdefghij"]), kept)
    assert {0, 2} <= set(kept)


def test_an_abandoned_iterator_asks_no_more():
    with Loopback(ToyVectors(4)) as server:
        e = OpenAIEmbedder("toy", 4, server.url, batch_size=1, in_flight=1)
        for _ in e.embed_parts([f"text {i}" for i in range(200)]):
            break
        asked = len(server.asked)
        e.embed_queries(["and on"])
    assert asked < 200
    assert asked + 1 <= len(server.asked) <= asked + 2  # at most the one in flight, for which nobody waits


def test_a_second_run_embeds_nothing(make, tmp_path):
    cache = EmbeddingCache(tmp_path)
    with Loopback(ToyVectors(4)) as server:
        e = make(server)
        first = embed_cached(e, TEXTS, "passage", cache)
        asked = len(server.asked)
        again = embed_cached(replace(e), [*TEXTS[::-1], *TEXTS], "passage", cache)
        assert len(server.asked) == asked
        embed_cached(e, TEXTS[:1], "query", cache)  # another role is another vector
        assert len(server.asked) == asked + 1
    assert np.array_equal(again.array, np.r_[first.array[::-1], first.array])


def test_what_was_paid_for_before_a_failure_is_not_paid_again(make, tmp_path, waits):
    cache, texts, healed = EmbeddingCache(tmp_path), ["a long text", "poison", *"abcdefgh"], []
    with Loopback(poisonous(healed)) as server:
        e = make(server, batch_size=1, in_flight=2)
        with pytest.raises(RemoteError, match="status 400"):
            embed_cached(e, texts, "passage", cache)
        healed.append(True)
        paid = [t for a in server.asked for t in asked_texts(a) if t != "poison"]
        assert 1 <= len(paid) < len(texts)
        server.asked.clear()
        vectors = embed_cached(e, texts, "passage", cache)
    assert sorted(t for a in server.asked for t in asked_texts(a)) == sorted(set(texts) - set(paid))
    assert np.abs(vectors.array - toy(texts)).max() < 1e-6


def test_one_pass_through_the_cache_uses_all_places(tmp_path):
    gate = threading.Barrier(5)
    inner = ToyVectors(4)

    def script(asked):
        gate.wait(timeout=20)
        return inner(asked)

    with Loopback(script) as server:
        embed_cached(
            OpenAIEmbedder("toy", 4, server.url, batch_size=2, timeout=30),
            [f"text {i}" for i in range(20)],
            "passage",
            EmbeddingCache(tmp_path),
        )
    assert server.most_at_once == 5


def test_inside_a_running_event_loop(make):
    async def cell(e):
        return e.embed_queries(["a"]).array, (await asyncio.to_thread(e.embed_passages, ["b"])).array

    with Loopback(ToyVectors(4)) as server:
        a, b = asyncio.run(cell(make(server)))
    assert np.abs(np.r_[a, b] - toy("ab")).max() < 1e-6


# --- small laws ---------------------------------------------------------------------------------------------


@given(st.permutations(range(6)))
def test_order_is_restored(order):
    assert in_order([(i, f"v{i}") for i in order], 6) == [f"v{i}" for i in range(6)]


@given(
    st.lists(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=3), max_size=4),
    st.integers(0, 4),
)
def test_an_answer_is_right_or_refused(vectors, n):
    try:
        array = checked(vectors, n, None)
    except ValueError:
        return
    assert array.shape[0] == n == len(vectors)
    assert np.isfinite(array).all()
    assert array.any(axis=1).all()


@given(st.text(max_size=60), st.integers(0, 20), st.sampled_from([1.0, 1.2]))
def test_what_is_cut_fits(text, limit, factor):
    counter = TokenCount(factor=factor)
    n = counter.chars_within(text, limit)
    assert 0 <= n <= len(text)
    if counter([text])[0] <= limit:
        assert n == len(text)


def test_logs_say_what_is_waited_for(caplog, waits):
    caplog.set_level(logging.INFO, logger="ragbench.remote")
    with Loopback(ToyVectors(4, first=[Answer("slow down", status=429)])) as server:
        MAKERS["openai"](server).embed_queries(["a"])
    assert any("status 429: slow down; attempt 2 of 6" in r.getMessage() for r in caplog.records)
