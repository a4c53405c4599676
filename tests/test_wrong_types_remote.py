"""Wrong types to clients of remote models are refused when the client is made, by errors of ours."""

import pytest

from ragbench.base.errors import RagbenchError
from ragbench.embed.gemini_embedder import GeminiEmbedder
from ragbench.embed.litellm_embedder import LiteLLMEmbedder
from ragbench.embed.openai_embedder import OpenAIEmbedder
from ragbench.remote.chat import Chat

WRONG = [
    {"model": None},
    {"model": 5},
    {"model": ""},
    {"timeout": -1},
    {"timeout": 0},
    {"timeout": "long"},
    {"timeout": None},
    {"timeout": True},
    {"retries": -1},
    {"retries": "x"},
    {"in_flight": 0},
    {"in_flight": 1.5},
    {"base_wait": -1},
    {"longest_wait": "x"},
    {"key_env": 5},
    {"options": 5},
    {"options": None},
]


@pytest.mark.parametrize("kind", [Chat, OpenAIEmbedder, GeminiEmbedder, LiteLLMEmbedder])
@pytest.mark.parametrize("given", WRONG, ids=str)
def test_wrong_fields_are_refused(kind, given):
    with pytest.raises(RagbenchError):
        kind(**{"model": "toy", **given})


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (Chat, "base_url"),
        (OpenAIEmbedder, "base_url"),
        (GeminiEmbedder, "base_url"),
        (LiteLLMEmbedder, "base_url"),
    ],
)
@pytest.mark.parametrize("url", [5, "localhost:8000", "", b"http://h", "http://[::1", "ftp://h"])
def test_wrong_addresses_are_refused(kind, field, url):
    with pytest.raises(RagbenchError):
        kind("toy", **{field: url})
