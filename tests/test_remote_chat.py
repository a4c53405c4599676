"""The chat client against a server that misbehaves: what is retried, what is not, what is counted, what is
never shown."""

import asyncio
import itertools
import pickle
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from helper_leaks import KEY, LEAKS
from hypothesis import given
from hypothesis import strategies as st

from ragbench.base.errors import ConfigError, DataError, RagbenchError
from ragbench.chunk.llm import LLMChunker, parse_cuts, windowed_cuts
from ragbench.core.documents import Corpus, Document
from ragbench.remote.calls import RemoteError, backoff
from ragbench.remote.chat import Chat
from ragbench.store.fingerprint import fingerprint
from ragbench.testing.loopback import Answer, Loopback


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("LOOPBACK_KEY", KEY)


def chat(server, **kw):
    return Chat("toy", server.url, key_env="LOOPBACK_KEY", **{"base_wait": 0.001, "timeout": 5, **kw})


MISDEEDS = {
    "429": Answer("slow down", status=429),
    "500": Answer("oops", status=500),
    "503": Answer("overloaded", status=503),
    "408": Answer("too slow", status=408),
    "half a body": Answer("half an answer", cut=True),
    "half of the JSON": Answer(body='{"choices": [{"message": {"content": "hal'),
    "no JSON": Answer(body="<html>gateway</html>"),
    "no choices": Answer(body='{"id": "x", "object": "chat.completion", "choices": []}'),
    "no text": Answer(
        body=(
            '{"id": "x", "object": "chat.completion", "choices": [{"index": 0, "finish_reason": "stop",'
            ' "message": {"role": "assistant", "content": null}}]}'
        )
    ),
}


@pytest.mark.parametrize("misdeed", MISDEEDS)
def test_what_another_attempt_may_mend_is_tried_again(misdeed):
    with Loopback([MISDEEDS[misdeed], MISDEEDS[misdeed], "done"]) as server:
        client = chat(server)
        reply = client("Hello")
    assert (reply.text, reply.attempts, len(server.asked)) == ("done", 3, 3)
    assert client.usage._asdict() == {
        "replies": 1,
        "attempts": 3,
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "uncounted": 0,
    }


@pytest.mark.parametrize("misdeed", MISDEEDS)
def test_and_not_for_ever(misdeed):
    with Loopback([MISDEEDS[misdeed]]) as server, pytest.raises(RemoteError, match="attempt 3 of 3") as e:
        chat(server, retries=2)("Hello")
    assert len(server.asked) == 3
    assert e.value.fix
    assert "toy at http://127.0.0.1" in e.value.where
    assert isinstance(pickle.loads(pickle.dumps(e.value)), RagbenchError)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_it_cannot_mend_is_not(status):
    with (
        Loopback([Answer("no", status=status)]) as server,
        pytest.raises(RemoteError, match=f"status {status}"),
    ):
        chat(server)("Hello")
    assert len(server.asked) == 1


def test_silence():
    with Loopback([Answer("late", delay=3), "in time"]) as server:
        assert chat(server, timeout=0.3)("Hello").attempts == 2
    with (
        Loopback([Answer("late", delay=3)]) as server,
        pytest.raises(RemoteError, match="silent for too long"),
    ):
        chat(server, timeout=0.2, retries=0)("Hello")


@pytest.mark.parametrize("header", [("Retry-After", "0.3"), ("retry-after-ms", "300")])
def test_the_server_says_how_long_to_wait(header):
    with Loopback([Answer("wait", status=429, headers=(header,)), "done"]) as server:
        chat(server)("Hello")
    assert (
        server.times[1] - server.times[0] >= 0.3
    )  # a lower bound; how much longer it took is the machine's affair


def test_waits_grow_and_differ():
    rng = np.random.default_rng(0)
    waits = [[backoff(n, None, 1, 60, rng.random) for n in range(8)] for _ in range(200)]
    assert all(0.5 * min(60, 2**n) <= w[n] <= min(60, 2**n) for w in waits for n in range(8))
    assert len({w[3] for w in waits}) == 200
    assert 5 <= backoff(0, 5, 1, 60, rng.random) <= 6


@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize("ending", ["", "\n", "\r\n "])
def test_the_key_is_never_shown(leak, ending, monkeypatch, caplog):
    monkeypatch.setenv("LOOPBACK_KEY", KEY + ending)
    caplog.set_level("DEBUG")
    with Loopback([LEAKS[leak]]) as server:
        client = chat(server, retries=1)
        try:
            client("Hello")
        except RemoteError as e:
            error, shown = e, "".join(traceback.format_exception(e))
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    for text in (
        shown,
        str(error),
        repr(error),
        repr(error.args),
        repr(client),
        str(client),
        pickle.dumps(client).decode("latin1"),
        pickle.dumps(error).decode("latin1"),
    ):
        assert KEY not in text
    ours = [r.getMessage() for r in caplog.records if r.name.startswith("ragbench")]
    assert not any(KEY in m for m in ours)
    assert error.__cause__ is None
    assert error.__context__ is None


def test_a_key_that_cannot_be_one(monkeypatch):
    for bad in ("", "  ", "sk-äöü", "sk-a\nb"):
        monkeypatch.setenv("LOOPBACK_KEY", bad)
        with Loopback() as server, pytest.raises(ConfigError) as e:
            chat(server)("Hello")
        assert "LOOPBACK_KEY" in str(e.value)
        assert not bad.strip() or bad not in str(e.value)
        assert not server.asked


@pytest.mark.parametrize("bound", [1, 3])
def test_calls_in_flight(bound):
    with Loopback([Answer("ok", delay=0.02)]) as server:
        client = chat(server, in_flight=bound)
        with ThreadPoolExecutor(12) as pool:
            assert len(list(pool.map(client, ["hi"] * 20))) == 20
        assert server.most_at_once == bound
        assert client.usage.replies == 20


def test_many_keeps_the_order_and_stops_at_a_failure():
    def echo(asked):
        text = asked["messages"][-1]["content"]
        return Answer(text, delay=0.05 * (text == "0")) if text != "bad" else Answer("no", status=400)

    with Loopback(echo) as server:
        client = chat(server, in_flight=4)
        assert [r.text for r in client.many([str(i) for i in range(12)])] == [str(i) for i in range(12)]
        with pytest.raises(RemoteError, match="status 400"):
            client.many(["1", "bad", *["2"] * 200])
        assert len(server.asked) < 12 + 150
        assert client("still alive").text == "still alive"


def test_a_failed_call_gives_its_place_back():
    with Loopback([Answer("no", status=400)]) as server:
        client = chat(server, in_flight=1)
        for _ in range(3):
            with pytest.raises(RemoteError):
                client("Hello")


def test_inside_a_running_event_loop():
    async def cell(client):
        return (
            client("Hello").text,
            [r.text for r in client.many(["a", "b"])],
            (await asyncio.to_thread(client, "c")).text,
        )

    with Loopback(lambda asked: asked["messages"][-1]["content"].upper()) as server:
        assert asyncio.run(cell(chat(server))) == ("HELLO", ["A", "B"], "C")


def test_uncounted_replies_are_not_zero():
    with Loopback([Answer("two words", usage=False), "one"]) as server:
        client = chat(server)
        assert client("Hello").prompt_tokens is None
        client("Hello")
    assert client.usage == (2, 2, 1, 1, 1)


def test_what_it_is_made_of():
    base = Chat("m", "http://host/v1")
    assert fingerprint(base) == fingerprint(replace(base, retries=0, timeout=1, in_flight=9, key_env=None))
    assert (
        len(
            {
                fingerprint(base),
                fingerprint(replace(base, model="n")),
                fingerprint(replace(base, temperature=1.0)),
                fingerprint(replace(base, options={"seed": 1})),
            }
        )
        == 4
    )
    assert eval(repr(base), {"Chat": Chat}) == base
    again = pickle.loads(pickle.dumps(base))
    assert again == base
    assert again.usage.replies == 0
    with Loopback() as server:
        replace(chat(server), temperature=None, options={"max_tokens": 7})("Hello")
    assert server.asked[0] == {
        "model": "toy",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 7,
    }


@pytest.mark.parametrize(
    "url", ["host:8000", "ftp://host", "http://", "http://me:pw@host/v1", "http://host/v1?key=abc"]
)
def test_addresses_that_cannot_work(url):
    with pytest.raises(ConfigError) as e:
        Chat("m", url)
    assert "pw" not in str(e.value)
    assert "abc" not in str(e.value)


# --- a chunker that lets the model cut ----------------------------------------------------------------------

DOC = Document(
    "manual",
    "\n\n".join(
        f"Part {i}. " + " ".join(f"Sentence {j} of part {i} is here." for j in range(5)) for i in range(12)
    ),
)


def lost(chunks, text):
    return {i for i, c in enumerate(text) if not c.isspace()} - {
        i for s, e in chunks.spans.tolist() for i in range(s, e)
    }


def test_a_model_that_errs_at_first_gives_the_cuts_of_one_that_does_not():
    bad = itertools.cycle(
        [
            "no idea",
            "[4, 2]",
            "[99]",
            "[1]",
            Answer("[2, 4]", finish="length"),
            Answer("x", status=500),
            Answer("[2, 4]", cut=True),
        ]
    )

    def steady(asked):
        return "[2, 4]"

    turn = itertools.count()

    def erring(asked):
        return next(bad) if next(turn) % 2 == 0 else steady(asked)

    with Loopback(steady) as server:
        want = LLMChunker(chat(server), size=150, piece_size=20)(DOC)
        questions = len(server.asked)
    with Loopback(erring) as server:
        got = LLMChunker(chat(server), size=150, piece_size=20)(DOC)
        assert len(server.asked) == 2 * questions
    assert questions >= 7, "every bad answer is to be met once"
    assert got.spans.tolist() == want.spans.tolist()
    assert not lost(got, DOC.text)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "no list",
        "[0]",
        "[1]",
        "[3, 3]",
        "[5, 2]",
        "[2, 1000]",
        "[2.5]",
        '["2"]',
        "[2, 3",
        "[[2]] and then [a]",
        "{}",
        "[-1]",
        "[null]",
    ],
)
def test_bad_answers_are_refused_by_name(answer):
    with Loopback([answer]) as server:
        with pytest.raises(DataError, match="no usable answer in 2 tries") as e:
            LLMChunker(chat(server), tries=2, size=150, piece_size=20)(Corpus([DOC]))
        assert "manual, characters 0 to" in e.value.where
        assert len(server.asked) == 2
        assert server.asked[1]["messages"][2] == {"role": "assistant", "content": answer}


@given(st.text("[]0123456789, abc", max_size=30), st.integers(1, 30))
def test_an_answer_is_right_or_refused(answer, n):
    try:
        cuts = parse_cuts(answer, n)
    except ValueError:
        return
    assert cuts == sorted(set(cuts))
    assert all(2 <= c <= n for c in cuts)


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=60),
    st.integers(10, 200),
    st.randoms(use_true_random=False),
)
def test_windows_make_progress_and_bound_chunks(sizes, window, random):
    asked = []

    def cuts_of(lo, hi):
        asked.append((lo, hi))
        return sorted(random.sample(range(2, hi - lo + 1), random.randint(0, min(3, hi - lo - 1))))

    cuts = windowed_cuts(np.array(sizes), window, cuts_of)
    assert cuts == sorted(set(cuts))
    assert all(0 < c < len(sizes) for c in cuts)
    assert len(asked) <= len(sizes)
    for a, b in zip([0, *cuts], [*cuts, len(sizes)]):
        assert sum(sizes[a:b]) <= window or b - a == 1


def test_cached_answers_need_no_server(tmp_path):
    with Loopback(["[2, 4]"]) as server:
        client = chat(server, retries=0)
        first = LLMChunker(client, size=150, piece_size=20, store=str(tmp_path))(DOC)
        asked = len(server.asked)
    again = LLMChunker(client, size=150, piece_size=20, store=str(tmp_path))(DOC)  # the server is gone
    assert again.spans.tolist() == first.spans.tolist()
    assert asked > 1
    with pytest.raises(RemoteError):
        LLMChunker(client, size=150, piece_size=20, prompt="Other words", store=str(tmp_path))(DOC)
    assert KEY not in "".join(p.read_text() for p in tmp_path.rglob("*.json"))
