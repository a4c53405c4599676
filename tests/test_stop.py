"""Ctrl-C while a remote model is asked: at most the requests in flight were sent, none is tried again, and
the program ends."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from ragbench.testing.loopback import Answer, Loopback

PREPARE = {
    "openai": (
        "from ragbench.embed.openai_embedder import OpenAIEmbedder as E\nask = lambda: E('toy', base_url=URL"
        " + '/v1', key_env=None, native_dim=3, tokenizer='cl100k_base', batch_size=1,"
        " **WAITS).embed_passages(TEXTS)"
    ),
    "gemini": (
        "os.environ['K'] = 'k'\nfrom ragbench.embed.gemini_embedder import GeminiEmbedder as E\nask = lambda:"
        " E(base_url=URL, key_env='K', tokenizer='cl100k_base', batch_size=1, **WAITS).embed_passages(TEXTS)"
    ),
    "litellm": (
        "os.environ['K'] = 'k'\nfrom ragbench.embed.litellm_embedder import LiteLLMEmbedder as E\nask ="
        " lambda: E('openai/toy', base_url=URL + '/v1', key_env='K', native_dim=3, tokenizer='cl100k_base',"
        " batch_size=1, **WAITS).embed_passages(TEXTS)"
    ),
    "cache": (
        "from ragbench.embed.openai_embedder import OpenAIEmbedder as E\n"
        "from ragbench.embed.vector_cache import EmbeddingCache, embed_cached\n"
        "ask = lambda: embed_cached(E('toy', base_url=URL + '/v1',"
        " key_env=None, native_dim=3, tokenizer='cl100k_base', batch_size=1, **WAITS), TEXTS, 'passage',"
        " EmbeddingCache(FOLDER))"
    ),
    "chat": "ask = lambda: CHAT(**WAITS).many(TEXTS)",
    "generate": (
        "from ragbench.evaluate.question_generation import generate_questions\n"
        "ask = lambda: generate_questions(CORPUS, 40, CHAT(**WAITS), in_flight=3, store=None)"
    ),
    "llm chunker": (
        "from ragbench.chunk.llm import LLMChunker\nask = lambda: LLMChunker(CHAT(**WAITS))(CORPUS)"
    ),
    "hyde": (
        "from ragbench import System, Lexical, FTS5, RecursiveChunker, HyDE\nask = lambda:"
        " System(RecursiveChunker(64), Lexical(FTS5()),"
        " query=HyDE(CHAT(**WAITS))).build(CORPUS).search(TEXTS)"
    ),
}
RUN = {
    "main": "ask()",
    "thread": "t = threading.Thread(target=ask); t.start(); t.join()",
    "asyncio": "async def main(): ask()\nasyncio.run(main())",
    "to_thread": "async def main(): await asyncio.to_thread(ask)\nasyncio.run(main())",
    "notebook": (
        "async def cell(): ask()\nloop ="
        " asyncio.new_event_loop()\nasyncio.set_event_loop(loop)\nloop.run_until_complete(cell())"
    ),
}
CHILD = """
import asyncio, os, sys, threading
URL, FOLDER = sys.argv[1:3]
WAITS = dict(in_flight=3, retries=8, base_wait=0.2, timeout=500)
TEXTS = [f"text number {i}" for i in range(40)]
from ragbench.remote.chat import Chat
from ragbench.core.documents import Corpus, Document
def CHAT(**kw): return Chat("toy", URL + "/v1", key_env=None, **kw)
CORPUS = Corpus([Document(f"d{i}", f"Pump {i} is set to {i} bar. " * 60) for i in range(40)])
"""
FEW = [*(("openai", mode) for mode in RUN), ("chat", "main"), ("generate", "main")]
MORE = [
    ("gemini", "main"),
    ("litellm", "main"),
    ("litellm", "to_thread"),
    ("cache", "main"),
    ("chat", "to_thread"),
    ("llm chunker", "main"),
    ("hyde", "main"),
]
CASES = [*FEW, *(pytest.param(*c, marks=pytest.mark.slow, id=" ".join(c)) for c in MORE)]


def interrupted(tmp_path, what: str, mode: str, answer: Answer, enough: int) -> tuple[int, int, int, str]:
    """Exit code, requests when the signal was sent and at the end, and what was printed."""
    code = CHILD + PREPARE[what] + "\n" + RUN[mode]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENAI_API_KEY": "k",
    }
    with Loopback(lambda asked: answer) as server:
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), server.root, str(tmp_path)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            limit = time.monotonic() + 120
            while len(server.asked) < enough and child.poll() is None and time.monotonic() < limit:
                time.sleep(0.02)
            assert len(server.asked) >= enough, child.poll()
            time.sleep(0.5)  # the others that are sent at the same time
            before = len(server.asked)
            child.send_signal(signal.SIGINT)
            out, _ = child.communicate(timeout=60)  # far less than the server is silent for
            return child.returncode, before, len(server.asked), out
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()


ONE_AT_A_TIME = ("llm chunker", "hyde")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("what", "mode"), [c for c in CASES if c != ("openai", "asyncio")]
)  # a call that blocks inside a task is not interrupted by asyncio, only what comes after it
def test_a_silent_server_is_not_waited_for(tmp_path, what, mode):
    """The requests in flight are given up: the server would have answered after ten minutes."""
    flying = 1 if what in ONE_AT_A_TIME else 3
    code, before, after, out = interrupted(tmp_path, what, mode, Answer("late", delay=600), flying)
    assert (before, after) == (flying, flying), out
    assert code != 0 and "KeyboardInterrupt" in out


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(("what", "mode"), CASES)
def test_nothing_is_tried_again(tmp_path, what, mode):
    """A busy server that would be asked 40 × 9 times; a wait of up to 50 seconds lies before each next
    attempt."""
    flying = 1 if what in ONE_AT_A_TIME else 3
    code, before, after, out = interrupted(
        tmp_path, what, mode, Answer("busy", status=503, delay=0.3), flying
    )
    assert after - before <= flying, f"{after - before} requests after Ctrl-C\n{out}"
    assert code != 0 and "KeyboardInterrupt" in out


def test_a_thread_that_nobody_interrupts_goes_on(tmp_path):
    """The end of the main thread, or another exception in it, is no Ctrl-C."""
    code = (
        CHILD + PREPARE["chat"] + "\ngo = threading.Event()\ndef work(): CHAT()('first'); go.set();"
        " print(len(ask()))\nthreading.Thread(target=work).start()\ngo.wait(); import time;"
        " time.sleep(0.3)\nraise ValueError('main ends')"
    )
    with Loopback(lambda asked: Answer("fine", delay=0.05)) as server:
        done = subprocess.run(
            [sys.executable, "-c", code, server.root, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.stdout.strip() == "40" and len(server.asked) == 41, done.stderr
