"""Precision Ω: what it is, counted character by character, and that no retriever moves it."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbench.core.chunks import Chunks
from ragbench.core.documents import Corpus, Document
from ragbench.core.gold import Gold
from ragbench.core.ranking import Ranking
from ragbench.core.runs import Run
from ragbench.evaluate.evidence_metrics import precision_omega, token_starts
from ragbench.evaluate.scores import score_run
from ragbench.text.word_boundaries import stands_alone

WORDS = ("ab ", "c ", "def ", "ab c ")
NAMES = ("evidence_precision_omega", "evidence_precision_omega_tokens")


@st.composite
def worlds(draw):
    """Two repetitive documents, chunks that may overlap and leave gaps, one question with one or two pieces
    of evidence."""
    texts = [draw(st.lists(st.sampled_from(WORDS), min_size=3, max_size=12).map("".join)) for _ in range(2)]
    corpus = Corpus([Document(str(i), t) for i, t in enumerate(texts)])

    def span(most=20):
        d = draw(st.integers(0, 1))
        start = draw(st.integers(0, len(texts[d]) - 2))
        return d, start, draw(st.integers(start + 1, min(len(texts[d]), start + most)))

    cut = [span() for _ in range(draw(st.integers(1, 8)))]
    named = [
        s for s in (span(8) for _ in range(draw(st.integers(1, 2)))) if texts[s[0]][s[1] : s[2]].strip()
    ] or [(0, 0, 1)]
    gold = Gold.from_spans(
        [
            {
                "query_id": "q",
                "query": "?",
                "evidence": [{"doc_id": str(d), "start": s, "end": e} for d, s, e in named],
            }
        ]
    )
    return corpus, Chunks(corpus, *np.array(sorted(set(cut))).T), gold, named


def by_hand(corpus, chunks, named):
    "Ω in characters and in tokens, from sets of characters."
    texts = [d.text for d in corpus]
    gold = set()
    for d, s, e in named:
        quote = texts[d][s:e]
        for row, text in enumerate(texts):
            gold |= {
                (row, c)
                for at in range(len(text))
                if text.startswith(quote, at)
                and ((row, at) == (d, s) or stands_alone(text, at, at + len(quote)))
                for c in range(at, at + len(quote))
            }
    handed = set()
    for d, s, e in zip(chunks.doc_row.tolist(), chunks.start.tolist(), chunks.end.tolist()):
        mine = {(d, c) for c in range(s, e)}
        if mine & gold:
            handed |= mine
    starts = [(d, int(c)) for d in range(len(corpus)) for c in token_starts(corpus[d])]
    tokens = sum(t in handed for t in starts)
    return len(handed & gold) / max(len(handed), 1), sum(t in handed & gold for t in starts) / max(tokens, 1)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(worlds())
def test_omega_is_the_precision_of_all_chunks_that_touch_evidence(world):
    corpus, chunks, gold, named = world
    characters, tokens = by_hand(corpus, chunks, named)
    assert precision_omega(gold, chunks).tolist() == [characters]
    assert precision_omega(gold, chunks, "cl100k_base").tolist() == [tokens]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(worlds(), st.randoms())
def test_omega_does_not_depend_on_the_retriever(world, random):
    corpus, chunks, gold, _ = world
    rows = list(range(len(chunks)))
    random.shuffle(rows)
    runs = (Run(("q",), [np.arange(len(rows))[::-1]], [rows]), Run(("q",), [[1.0]], [rows[:1]]))
    first, second = (score_run(gold, Ranking(chunks, r), NAMES)["metrics"] for r in runs)
    for name in NAMES:
        assert first[name].tolist() == second[name].tolist()
