"""The oracle is the cheapest partition there is: against all partitions of small documents full of white
space."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ragbench.base.errors import ConfigError
from ragbench.core.chunks import chunk_corpus
from ragbench.core.documents import Corpus, Document
from ragbench.core.gold import Gold
from ragbench.core.gold_records import Evidence, Query
from ragbench.evaluate.chunker_comparison import oracle, reading_cost
from ragbench.evaluate.evidence_metrics import token_starts

PIECES = ["a", "b ", "\n\n", "   ", "\t", "c", "\n \n"]


def partitions(tokens, low, high, last_may_be_small):
    "All rising lists of edge numbers from the first to the last whose parts have `low` to `high` tokens."
    m = len(tokens) - 1

    def grow(path):
        if path[-1] == m:
            yield path
            return
        for e in range(path[-1] + 1, m + 1):
            size = tokens[e] - tokens[path[-1]]
            if low <= size <= high or (last_may_be_small and e == m and size <= high):
                yield from grow([*path, e])

    return list(grow([0]))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), min_size=2, max_size=7).map("".join),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(1, 8)), min_size=1, max_size=4),
    st.integers(1, 2),
    st.integers(0, 3),
)
def test_no_partition_costs_less_than_the_oracle(text, pieces, low, more):
    assume(text.strip())
    corpus = Corpus([Document("d", text)])
    evidence = [
        Evidence(f"q{q}", "d", s, min(s + n, len(text))) for q, s, n in pieces if text[s : s + n].strip()
    ]
    assume(evidence)
    gold = Gold(tuple(Query(f"q{q}", "?") for q in range(3)), tuple(evidence))
    starts = token_starts(corpus[0])
    edges = np.unique(np.r_[0, starts, len(text)])
    tokens = np.searchsorted(starts, edges).tolist()
    every = partitions(tokens, low, low + more, False) or partitions(tokens, low, low + more, True)
    if not every:
        with pytest.raises(ConfigError, match="no partition"):
            oracle(corpus, gold, low, low + more)
        return

    def cost(path):
        return int(
            reading_cost(gold, chunk_corpus(corpus, lambda d: np.c_[edges[path[:-1]], edges[path[1:]]])).sum()
        )

    assert int(reading_cost(gold, oracle(corpus, gold, low, low + more)).sum()) == min(map(cost, every))
