"""Questions from a model behind an endpoint that misbehaves: quotes are verified, nothing is asked twice, and
what was rejected is counted."""

import itertools
import json
import re
import threading

import pytest

from ragbench.chunk.character import CharacterChunker
from ragbench.core.documents import Corpus, Document
from ragbench.core.gold import Gold
from ragbench.evaluate.question_generation import CLOSED, QuestionWriter, generate_questions
from ragbench.remote.calls import RemoteError
from ragbench.remote.chat import Chat
from ragbench.store.artifacts import Store
from ragbench.testing.loopback import Answer, Loopback

THINGS = ["pump", "valve", "filter", "boiler", "gauge", "tank"]
CORPUS = Corpus(
    [
        Document(f"d{i}", f"Before the {t} is opened, wait {i + 3} minutes.\nThen sign sheet {i + 70}.")
        for i, t in enumerate(THINGS)
    ]
)


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("LOOPBACK_KEY", "sk-secret")


def chat(server, **kw):
    return Chat("toy", server.url, key_env="LOOPBACK_KEY", **{"base_wait": 0.001, "timeout": 5, **kw})


def answer_for(text: str, **changes) -> str:
    thing, minutes = re.search(r"Before the (\w+) is opened, wait (\d+)", text).groups()
    said = {
        "question": f"How long must one wait for the {thing}?",
        "answer": f"{minutes} minutes",
        "quotes": [f"Before the {thing} is opened, wait {minutes} minutes."],
    }
    return json.dumps(said | changes)


def honest(asked):
    system, user = asked["messages"][0]["content"], asked["messages"][1]["content"]
    return "UNKNOWN" if system == CLOSED else answer_for(user)


def make(server, n=6, **kw):
    return generate_questions(
        CORPUS, n, chat(server), passages=CharacterChunker(400), **{"store": None, "progress": False, **kw}
    )


def test_an_honest_endpoint_gives_what_was_asked_for():
    with Loopback(honest) as server:
        made = make(server)
    assert len(made.gold) == 6 and not made.rejected
    for q in made.gold.query_list:
        (e,) = made.gold.by_query[q.query_id]
        assert (
            CORPUS[e.doc_id].text[e.start : e.end].startswith("Before the ")
            and q.answer.split()[0] in CORPUS[e.doc_id].text[e.start : e.end]
        )
    assert server.most_at_once <= 4 and made.manifest["model"] == repr(chat(server))


def test_a_flaky_endpoint_changes_nothing():
    trouble = itertools.cycle(
        [Answer("slow", status=429), None, Answer(status=500), None, Answer("x", cut=True), None]
    )
    lock = threading.Lock()

    def flaky(asked):
        with lock:
            bad = next(trouble)
        return bad or honest(asked)

    with Loopback(flaky) as server, Loopback(honest) as calm:
        assert make(server).gold == make(calm).gold


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"quotes": ["The turbine is never opened at all by anyone."]}, "a quote is not in the passage"),
        ({"quotes": []}, "the answer has not the form"),
        ({"question": ""}, "the answer has not the form"),
        ({"answer": 4}, "the answer has not the form"),
    ],
)
def test_what_cannot_be_verified_is_rejected_after_another_try(changes, reason):
    with Loopback(lambda asked: answer_for(asked["messages"][1]["content"], **changes)) as server:
        made = make(server, rounds=1)
    assert made.reasons == {reason: 6} and len(made.gold) == 0 and made.share_rejected == 1
    assert len(server.asked) == 12  # two tries a passage, no closed-book question
    assert "This cannot be used" in server.asked[-1]["messages"][-1]["content"]


def test_prose_instead_of_json_is_mended_by_the_second_try():
    def script(asked):
        system, user, *more = asked["messages"]
        return (
            "UNKNOWN"
            if system["content"] == CLOSED
            else answer_for(user["content"])
            if more
            else "Sure! Here is a question for you."
        )

    with Loopback(script) as server:
        assert len(make(server).gold) == 6


def test_questions_that_need_no_document_are_rejected():
    def knows_pumps(asked):
        system, user = asked["messages"][0]["content"], asked["messages"][1]["content"]
        return ("3 minutes" if "pump" in user else "UNKNOWN") if system == CLOSED else answer_for(user)

    with Loopback(knows_pumps) as server:
        made = make(server, rounds=1)
    assert made.reasons == {"answered without the document": 1} and len(made.gold) == 5


def test_the_same_question_twice_is_kept_once():
    def monotonous(asked):
        system, user = asked["messages"][0]["content"], asked["messages"][1]["content"]
        return (
            "UNKNOWN"
            if system == CLOSED
            else answer_for(user, question="How long must one wait before opening it?")
        )

    with Loopback(monotonous) as server:
        made = make(server, rounds=2)
    assert len(made.gold) == 1 and made.reasons == {"like another question": 11}
    assert "Ask about something else" in server.asked[-1]["messages"][1]["content"] or any(
        "Ask about something else" in a["messages"][1]["content"] for a in server.asked
    )


def test_a_run_that_failed_goes_on_without_asking_again(tmp_path):
    store, left, lock = Store(tmp_path), itertools.count(), threading.Lock()

    def dies(asked):
        with lock:
            n = next(left)
        return honest(asked) if n < 7 else Answer("gone", status=401)

    with Loopback(dies) as server, pytest.raises(RemoteError):
        generate_questions(
            CORPUS,
            6,
            Chat("toy", server.url, key_env="LOOPBACK_KEY", base_wait=0.001),
            passages=CharacterChunker(400),
            store=store,
            in_flight=1,
            progress=False,
        )
    replies = len(list((tmp_path / "reply").iterdir()))
    assert replies == 7
    # another port is another endpoint, so the writer is given one chat that does not know of ports
    asked = []

    class Same:
        def __init__(self, chat):
            self.chat = chat

        def __call__(self, messages):
            asked.append(messages)
            return self.chat(messages)

        fingerprint = "one model"

    with Loopback(honest) as server:
        writer = QuestionWriter(Same(chat(server)), store=store)
        first = generate_questions(CORPUS, 6, writer, passages=CharacterChunker(400), progress=False)
        before = len(asked)
        again = generate_questions(CORPUS, 6, writer, passages=CharacterChunker(400), progress=False)
    assert before == 12 and len(asked) == 12 and first.gold == again.gold


def test_fewer_than_asked_for_is_said_aloud(caplog, tmp_path):
    with Loopback(honest) as server:
        made = make(server, n=50, rounds=1)
    assert len(made.gold) == 6 and "6 of 50 questions" in caplog.text
    assert Gold.load(made.save(tmp_path, CORPUS)).query_list == made.gold.query_list
    manifest = json.loads((tmp_path / "questions.manifest.json").read_text())
    assert manifest["prompts"]["closed"] == CLOSED and manifest["n"] == 50
