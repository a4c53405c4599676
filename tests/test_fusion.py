"""Fusion against ranx, the reference implementation, and fair ties in what comes out of it."""

import numpy as np
import pytest

from ragbench.core.chunks import chunk_corpus
from ragbench.core.documents import Corpus, Document
from ragbench.search.fusion import RRF, MinMax
from ragbench.system.context import Context
from ragbench.system.retrieve import Dense, Hybrid, Lexical


def random_runs(seed: int, n: int = 30):
    rng = np.random.default_rng(seed)
    out = []
    for scale in (1.0, 20.0):
        k = int(rng.integers(2, n))
        out.append((np.sort(rng.random(k) * scale)[::-1], rng.permutation(n)[:k]))
    return out


def as_ranx(runs):
    from ranx import Run
    return [Run({"q": {str(r): float(s) for s, r in zip(*run)}}) for run in runs]


@pytest.mark.parametrize("seed", range(20))
def test_rrf_and_min_max_equal_ranx(seed):
    from ranx import fuse
    runs, theirs = random_runs(seed), as_ranx(random_runs(seed))
    cases = [(RRF(60), {"method": "rrf", "params": {"k": 60}, "norm": None}),
             (RRF(10), {"method": "rrf", "params": {"k": 10}, "norm": None}),
             (MinMax(dense=0.3), {"method": "wsum", "params": {"weights": (0.3, 0.7)}, "norm": "min-max"})]
    for ours, call in cases:
        scores, rows = ours.fuse(runs, ["dense", "lexical"])
        want = fuse(runs=theirs, **call).to_dict()["q"]
        got = dict(zip(map(str, rows.tolist()), scores.tolist()))
        assert got.keys() == want.keys()
        assert np.allclose([got[k] for k in want], list(want.values()), rtol=0, atol=1e-9)


def test_the_order_of_the_runs_does_not_matter_to_the_score():
    a, b = random_runs(3)
    one, other = RRF().fuse([a, b], ["dense", "lexical"]), RRF().fuse([b, a], ["lexical", "dense"])
    assert np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1])


class Toy:
    """An embedder of two dimensions in which many texts coincide, so that ties are everywhere."""
    max_tokens, fingerprint = None, "toy"
    from ragbench.core.vectors import Space
    space = Space("toy", "1", 2)

    def embed_passages(self, texts):
        from ragbench.core.vectors import Vectors
        angle = np.array([len(t) % 3 for t in texts], dtype=float)
        return Vectors(np.c_[np.cos(angle), np.sin(angle)], self.space)
    embed_queries = embed_passages


@pytest.mark.parametrize("fuse", [RRF(60), MinMax(dense=0.5)])
def test_shuffling_the_corpus_changes_no_ranking(fuse):
    texts = [f"pump {i} " + "x" * (i % 5) for i in range(60)]
    queries = ["pump 7", "pump x", "valve", "pump"]
    def ranked(order):
        corpus = Corpus([Document(f"d{i}", texts[i]) for i in order])
        chunks = chunk_corpus(corpus, lambda d: [(0, len(d))])
        out = []
        for r in (Dense(Toy()), Lexical(), Hybrid(Dense(Toy()), Lexical(), fuse=fuse, depth=7)):
            _, rows = r.build(chunks, Context()).rank(queries, 5)
            out.append([[chunks.text(i) for i in row if i >= 0] for row in rows])
        return out
    first = ranked(range(60))
    for seed in range(5):
        assert ranked(np.random.default_rng(seed).permutation(60)) == first
