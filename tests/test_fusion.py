"""Fusion against ranx, the reference implementation, and fair ties in what comes out of it."""

import numpy as np
import pytest

from ragbench.base.errors import ConfigError, DataError
from ragbench.core.chunks import chunk_corpus
from ragbench.core.documents import Corpus, Document
from ragbench.core.runs import pad, rank
from ragbench.fusion import fusion
from ragbench.fusion.fusion import RRF, MinMax, ZScore, check_weights, rank_batch
from ragbench.fusion.ranx_fusion import NEEDS, NORMS, ON_RANKS, ON_SCORES, Borda, CombMNZ, CombSUM, RanxFusion
from ragbench.system.build_context import Context
from ragbench.system.retrievers import Dense, Hybrid, Lexical, fuse_runs


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
    cases = [
        (RRF(60), {"method": "rrf", "params": {"k": 60}, "norm": None}),
        (RRF(10), {"method": "rrf", "params": {"k": 10}, "norm": None}),
        (MinMax(dense=0.3), {"method": "wsum", "params": {"weights": (0.3, 0.7)}, "norm": "min-max"}),
    ]
    for ours, call in cases:
        scores, rows = ours.fuse(runs, ["dense", "lexical"])
        want = fuse(runs=theirs, **call).to_dict()["q"]
        got = dict(zip(map(str, rows.tolist()), scores.tolist()))
        assert got.keys() == want.keys()
        assert np.allclose([got[k] for k in want], list(want.values()), rtol=0, atol=1e-9)


def batch_of_runs(seed: int, q: int = 12, n: int = 30, runs: int = 3, odd: bool = True):
    """[(scores, rows)] padded to (q, depth) for each run; some lists are short; if odd, one is empty and some
    scores coincide."""
    rng, out = np.random.default_rng(seed), []
    for i in range(runs):
        depth, lists = int(rng.integers(3, n)), []
        for j in range(q):
            k = 0 if odd and (i, j) == (1, 0) else int(rng.integers(1, depth + 1))
            s = np.sort(rng.random(k) * 20**i)[::-1]
            if odd and j % 3 == 0:
                s = np.round(s, 1)
            lists.append((s, rng.permutation(n)[:k]))
        out.append(pad(lists, depth))
    return out


PARAMS = {"weights": (0.5, 0.2, 0.3), "gamma": 1.5, "phi": 0.7}
DUELS = ("condorcet", "w_condorcet")
CASES = [(m, n) for m in ON_SCORES for n in NORMS] + [(m, None) for m in ON_RANKS if m not in DUELS]


@pytest.mark.parametrize(("method", "norm"), CASES)
def test_every_method_equals_ranx(method, norm):
    from ranx import Run, fuse

    need = NEEDS.get(method)
    params = (
        {need: PARAMS[need]}
        if need
        else {"sigma": 0.2}
        if method == "logn_isr"
        else {"k": 7}
        if method == "rrf"
        else {}
    )
    # ranx sorts lists by score again, so equal scores change their ranks; and its zmuv, rank and borda divide
    # by the length of an empty list: the
    # thread ends, and the queries that it had yet to do come out empty
    plain = method in ON_SCORES and norm in (None, "min-max", "max", "sum")
    batch, kinds = batch_of_runs(len(method) * 7 + len(str(norm)), odd=plain), ["dense", "lexical", "lexical"]
    theirs = fuse(
        [
            Run(
                {
                    f"q{i}": {str(r): float(s) for s, r in zip(ss, rr) if r >= 0}
                    for i, (ss, rr) in enumerate(zip(*run))
                }
            )
            for run in batch
        ],
        norm=norm,
        method=method,
        params={k: list(v) if isinstance(v, tuple) else v for k, v in params.items()},
    )
    scores, rows = RanxFusion(method, norm=norm, **params).fuse_batch(
        [s for s, _ in batch], [r for _, r in batch], kinds
    )
    for i, (s, r) in enumerate(zip(scores, rows)):
        want = dict(theirs.run[f"q{i}"])
        assert {str(x) for x in r[r >= 0]} == set(want)
        assert np.allclose(s[r >= 0], [want[str(x)] for x in r[r >= 0]], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", DUELS)
def test_duels_equal_ranx_where_there_is_an_order(method):
    """Three lists of all candidates, near to one another, of which no duel is drawn: without a circle, ranx's
    order does not depend on its set."""
    from ranx import Run, fuse

    rng, checked = np.random.default_rng(5), 0
    params = {"weights": [0.4, 0.3, 0.35]} if method == "w_condorcet" else {}
    for _ in range(60):
        orders = [np.argsort(np.arange(7) + rng.normal(0, 1.2, 7)) for _ in range(3)]
        ours = RanxFusion(method, **{k: tuple(v) for k, v in params.items()})
        s, r = ours.fuse([(np.arange(7.0)[::-1], o) for o in orders], ["dense"] * 3)
        if len(set(s.tolist())) < 7:
            continue  # a circle
        theirs = fuse(
            [Run({"q": {str(x): 7.0 - i for i, x in enumerate(o)}}) for o in orders],
            norm=None,
            method=method,
            params=params,
        )
        assert dict(zip(map(str, r.tolist()), s.tolist())) == dict(theirs.run["q"])
        checked += 1
    assert checked > 10


@pytest.mark.parametrize("method", DUELS)
def test_a_duel_that_is_drawn_gives_half_a_point_to_each(method):
    """Two lists that contradict each other; a third candidate is last in both."""
    runs = [(np.array([3.0, 2.0, 1.0]), np.array(order)) for order in ([0, 1, 2], [1, 0, 2])]
    weights = (0.5, 0.5) if method == "w_condorcet" else None
    scores, rows = RanxFusion(method, weights=weights).fuse(runs, ["dense", "lexical"])
    assert dict(zip(rows.tolist(), scores.tolist())) == {0: 2.5, 1: 2.5, 2: 1.0}


@pytest.mark.parametrize("norm", [n for n in NORMS if n])
@pytest.mark.parametrize(
    "method", [m for m in (*ON_SCORES, *ON_RANKS) if "borda" not in m and m not in DUELS]
)
def test_every_method_reaches_its_highest_score_by_definition(method, norm):
    """Three lists of five of which one candidate leads each, as far above the others as can be."""
    params = {NEEDS[method]: PARAMS[NEEDS[method]]} if method in NEEDS else {}
    fuse = RanxFusion(method, norm, **({"weights": (0.5, 0.2, 1.3)} if "weights" in params else params))
    run = (np.array([1.0, 0.0, 0.0, 0.0, 0.0]), np.arange(5))
    scores, _ = fuse.fuse([run] * 3, ["dense"] * 3)
    assert scores.max() == pytest.approx(fuse.highest(3, 5))


def test_by_definition_an_election_has_as_many_points_as_lists_have_candidates():
    assert Borda().highest(3, 5) == RanxFusion("bordafuse").highest(3, 5) == 45
    assert Borda((0.5, 1.5)).highest(2, 5) == 20
    assert RanxFusion("condorcet").highest(3, 5) == 15


@pytest.mark.parametrize("weights", [(1, 1, 1), (0.5, 0.2, 0.3), (0, 1, 7)])
@pytest.mark.parametrize("k", [0, 60])
def test_weighted_rrf_is_its_definition(weights, k):
    batch = batch_of_runs(21)
    scores, rows = RRF(k, weights=weights).fuse_batch(
        [s for s, _ in batch], [r for _, r in batch], ["dense"] * 3
    )
    for i in range(len(rows)):
        want: dict[int, float] = {}
        for w, (_, run) in zip(weights, batch):
            for place, row in enumerate(run[i][run[i] >= 0].tolist(), 1):
                want[row] = want.get(row, 0.0) + w / (k + place)
        found = rows[i] >= 0
        assert rows[i][found].tolist() == sorted(want)
        assert np.allclose(scores[i][found], [want[r] for r in sorted(want)], rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    "bad", [(), (0, 0), (1, -1), (1, float("nan")), (1, float("inf")), (True, 1), "12", 3, ("1", 1)], ids=repr
)
def test_weights_that_make_no_sense_are_refused(bad):
    with pytest.raises(ConfigError, match="weights is"):
        RRF(weights=bad)
    with pytest.raises(ConfigError, match="weights is"):
        Borda(weights=bad)
    with pytest.raises(ConfigError, match="weights is"):
        check_weights(list(bad) if isinstance(bad, tuple) else bad, "RRF")


@pytest.mark.parametrize(
    "make",
    [
        lambda: RanxFusion("rbc", phi=2),
        lambda: RanxFusion("rbc", phi=float("nan")),
        lambda: RanxFusion("gmnz", gamma="a"),
        lambda: RanxFusion("rrf", k=-1),
        lambda: RanxFusion("logn_isr", sigma=-5),
        lambda: RanxFusion("sum", norm="minmax"),
        lambda: CombMNZ("minmax"),
        lambda: CombSUM("z"),
        lambda: RRF("60"),
        lambda: RRF(60.5),
        lambda: MinMax("a"),
        lambda: ZScore(True),
    ],
)
def test_parameters_that_make_no_sense_are_refused(make):
    with pytest.raises(ConfigError):
        make()


def test_weights_may_be_an_array_and_nothing_cannot_be_fused():
    assert RRF(weights=np.array([1, 2])) == RRF(weights=(1.0, 2.0))
    with pytest.raises(DataError, match="no runs"):
        RRF().fuse([], [])


def test_weights_are_numbers_one_a_run_and_a_list_of_them_is_a_choice():
    runs = random_runs(1)
    with pytest.raises(ConfigError, match="weights is"):
        RRF(weights=(1, -1))
    with pytest.raises(ConfigError, match="this is 2 choices and not one RRF"):
        RRF(weights=[(1, 2), (2, 1)]).fuse(runs, ["dense", "lexical"])
    with pytest.raises(ConfigError, match="3 weights for 2 runs"):
        RRF(weights=(1, 1, 1)).fuse(runs, ["dense", "lexical"])
    with pytest.raises(ConfigError, match="this is 2 choices and not one MinMax"):
        MinMax(dense=[0.3, 0.5]).fuse(runs, ["dense", "lexical"])


# what run b, which has candidates 0 and 1 with scores 8 and 4, adds for candidate 2, which it lacks
MISSING_RULE = {
    RRF(60): 0.0,
    MinMax(0.0): 0.0,
    ZScore(0.0): -1.0,
    CombSUM(None): 0.0,
    Borda((0, 1)): 1.0,
    RanxFusion("sum", None): 0.0,
    RanxFusion("rbc", phi=0.5): 0.0,
}


@pytest.mark.parametrize("fuse", MISSING_RULE, ids=repr)
def test_what_a_missing_candidate_gets(fuse):
    a, b = (np.array([1.0]), np.array([2])), (np.array([8.0, 4.0]), np.array([0, 1]))
    alone = (
        fuse.fuse([a, (np.empty(0), np.empty(0, np.int64))], ["dense", "lexical"])[0]
        if not isinstance(fuse, (Borda, ZScore))
        else np.zeros(1)
    )
    scores, rows = fuse.fuse([a, b], ["dense", "lexical"])
    assert scores[rows.tolist().index(2)] == pytest.approx(alone[0] + MISSING_RULE[fuse])


@pytest.mark.parametrize("copies", [1, 5, 10_000])
def test_a_batch_is_ordered_as_each_query_is(copies, monkeypatch):
    """Ties everywhere, and texts of which there are copies; lists with holes, one empty, one in which nothing
    counts."""
    monkeypatch.setattr(fusion, "CELLS", 700)
    rng = np.random.default_rng(9)
    scores, rows = rng.integers(0, 5, (90, 60)) / 4, np.argsort(rng.random((90, 200)), axis=1)[:, :60]
    rows[rng.random(rows.shape) < 0.2], rows[3] = -1, -1
    scores[4] = -np.inf
    queries = rng.integers(0, 2**63, 90).astype(np.uint64)
    texts = rng.integers(0, 2**63, 200).astype(np.uint64)
    texts = texts[np.arange(200) // copies]
    for k in (1, 3, 14, 15, 60, 80):
        got = rank_batch(scores, rows, queries, texts, k)
        want = pad([rank(s, r, h, texts, k) for s, r, h in zip(scores, rows, queries)], k)
        assert np.array_equal(got[1], want[1]) and np.array_equal(got[0], want[0])


ALL = [
    RRF(60),
    RRF(3, weights=(2, 1)),
    MinMax(0.3),
    ZScore(0.7),
    Borda(),
    Borda((1, 3)),
    CombMNZ(),
    CombSUM("zmuv"),
    RanxFusion("med", "borda"),
    RanxFusion("condorcet"),
]


@pytest.mark.parametrize("fuse", ALL, ids=repr)
def test_a_batch_is_its_queries_one_by_one(fuse, monkeypatch):
    monkeypatch.setattr(fusion, "CELLS", 200)  # several blocks
    batch, kinds = batch_of_runs(11, runs=2), ["dense", "lexical"]
    scores, rows = fuse.fuse_batch([s for s, _ in batch], [r for _, r in batch], kinds)
    for i in range(len(rows)):
        s, r = fuse.fuse([(s[i][r[i] >= 0], r[i][r[i] >= 0]) for s, r in batch], kinds)
        assert np.array_equal(r, rows[i][rows[i] >= 0])
        assert np.array_equal(s, scores[i][rows[i] >= 0])


@pytest.mark.parametrize("fuse", ALL, ids=repr)
def test_hybrids_rank_alike_with_and_without_batches(fuse):
    class OneByOne:
        def fuse(self, runs, kinds):
            return fuse.fuse(runs, kinds)

    batch, texts = batch_of_runs(12, runs=2), [f"question {i}" for i in range(12)]
    hashes = np.random.default_rng(0).integers(0, 2**63, 30).astype(np.uint64)
    for k in (1, 5, 40):
        (s, r), (s1, r1) = (
            fuse_runs(f, ["dense", "lexical"], batch, texts, hashes, k) for f in (fuse, OneByOne())
        )
        assert np.array_equal(r, r1)
        assert np.array_equal(s, s1)


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
