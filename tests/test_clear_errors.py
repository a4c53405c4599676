"""Bad input gets an error that names the value: what, where, what to do."""

import pytest

import ragbench as rb
from ragbench import RagbenchError

CORPUS = rb.Corpus([rb.Document(id="a", text="Start the pump.\n\nStop the pump.")])
GOLD = rb.Gold.from_spans(
    [{"query_id": "q1", "query": "Start?", "evidence": [{"doc_id": "a", "start": 0, "end": 15}]}]
)
SYSTEM = rb.System(rb.TokenChunker(8), rb.Lexical(rb.FTS5()))


def run(tmp_path, corpus=CORPUS, gold=GOLD, systems=SYSTEM, **options):
    return rb.bench(corpus, gold, systems, store=tmp_path, rounds=0, **options)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda p: run(p, metrics=["recal@5"]), ["'recal@5'", "recall"]),
        (lambda p: run(p, metrics=["recall@0"]), ["recall@0", "'0'"]),
        (lambda p: run(p, metrics=["recall@-3"]), ["recall@-3"]),
        (lambda p: run(p, metrics=[], budgets=[0]), ["budgets is 0"]),
        (lambda p: run(p, corpus=rb.Corpus([])), ["0 documents"]),
        (lambda p: run(p, systems=[]), ["nothing to expand"]),
        (
            lambda p: run(
                p,
                gold=rb.Gold.from_spans(
                    [{"query_id": "q7", "query": "?", "evidence": [{"doc_id": "a", "start": 10, "end": 99}]}]
                ),
            ),
            ["q7", "[10, 99)", "'a'", "31 characters"],
        ),
        (
            lambda p: run(
                p,
                gold=rb.Gold.from_spans(
                    [{"query_id": "q7", "query": "?", "evidence": [{"doc_id": "zz", "start": 0, "end": 9}]}]
                ),
            ),
            ["q7", "'zz'", "no such document"],
        ),
        (lambda p: rb.TokenChunker(0), ["TokenChunker", "size is 0"]),
        (lambda p: rb.RecursiveChunker(-5), ["RecursiveChunker", "size is -5"]),
        (lambda p: rb.TokenChunker(64, 64), ["overlap is 64", "size is 64"]),
        (lambda p: rb.RecursiveChunker(64, 80), ["overlap is 80", "size is 64"]),
        (lambda p: rb.TokenChunker(64, tokenizer="cl99k")(CORPUS), ["cl99k"]),
        (lambda p: SYSTEM.build(CORPUS).search("x", k=0), ["k is 0"]),
        (lambda p: SYSTEM.build(rb.Corpus([])), ["0 documents"]),
        (lambda p: rb.LSAEmbedder(500).fit(CORPUS), ["dim is 500"]),
        (lambda p: rb.MinMax(dense=3), ["dense is 3"]),
        (lambda p: rb.load_corpus(p / "nowhere"), ["nowhere"]),
    ],
)
def test_the_error_names_the_value(tmp_path, monkeypatch, call, says):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(RagbenchError) as caught:
        call(tmp_path)
    for part in says:
        assert part in str(caught.value), str(caught.value)


def test_a_failed_plan_leaves_nothing_behind(tmp_path):
    with pytest.raises(RagbenchError):
        run(tmp_path / "store", metrics=["nonsense"])
    assert not (tmp_path / "store").exists()
