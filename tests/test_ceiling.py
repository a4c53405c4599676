"""The chunk ceiling is what an exhaustive search finds, wherever chunks begin and end."""

import itertools

import numpy as np
import pytest

from ragbench import Chunks, Corpus, Document, Gold
from ragbench.evaluate.evidence_metrics import evidence_of, token_counts
from ragbench.evaluate.waterfall import best_choice, evidence_handed, pool_of

WORDS = "Wait until the compressor's pressure holds, then isolate it; above twelve bar is danger".split()


def draw(rng: np.random.Generator):
    "A text, evidence, and chunks whose borders stand anywhere, inside tokens and over one another."
    text = " ".join(rng.choice(WORDS, 24))
    corpus = Corpus([Document("a", text)])
    borders = np.sort(rng.choice(len(text) + 1, (2, 2), replace=False), axis=None)
    evidence = [{"doc_id": "a", "start": int(s), "end": int(e)} for s, e in borders.reshape(2, 2)]
    gold = Gold.from_spans([{"query_id": "q", "query": "What?", "evidence": evidence}])
    starts = np.sort(rng.integers(0, len(text) - 3, 5))
    ends = np.minimum(starts + rng.integers(1, 40, 5), len(text))
    return corpus, gold, Chunks(corpus, np.zeros(5, int), starts, ends)


@pytest.mark.parametrize("seed", range(30))
def test_no_order_of_chunks_beats_the_ceiling(seed):
    corpus, gold, chunks = draw(np.random.default_rng(seed))
    counts = token_counts(corpus)
    pool = pool_of(evidence_of(corpus, gold)[0], counts.line(chunks.doc_row, chunks.spans), counts)
    orders = [
        o for n in range(1, len(pool.spans) + 1) for o in itertools.permutations(range(len(pool.spans)), n)
    ]
    for budget in (1, 2, 3, 5, 8, 13):
        handed = [evidence_handed(pool.evidence, pool.spans[[*o]], counts, budget)[0] for o in orders]
        assert best_choice(pool, counts, budget, most=10**9) == (max(handed, default=0), True), (seed, budget)
        assert best_choice(pool, counts, budget, most=1)[0] >= max(handed, default=0), (seed, budget)
