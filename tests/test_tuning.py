"""A tuned fusion is worth what was tuned: kinds and depth come from the systems, never from the order of
arguments."""

import numpy as np
import pytest

from ragbench.base.errors import ConfigError, DataError, RagbenchError
from ragbench.bench.runner import bench
from ragbench.chunk.recursive import RecursiveChunker
from ragbench.core.chunks import Chunks
from ragbench.core.ranking import Ranking
from ragbench.core.runs import Run
from ragbench.embed.lsa import LSAEmbedder
from ragbench.evaluate.fusion_parts import fusion_parts, kind_of
from ragbench.evaluate.tuning import METHODS, tune_fusion
from ragbench.fusion.fusion import RRF, MinMax
from ragbench.fusion.ranx_fusion import Borda, CombMNZ, RanxFusion
from ragbench.ingest.load_corpus import load_dataset
from ragbench.lexical.fts5 import FTS5
from ragbench.system.retrievers import Dense, Hybrid, Lexical
from ragbench.system.system import System

PARTS = {"dense": Dense(LSAEmbedder(24)), "bm25": Lexical(FTS5())}
CUT = RecursiveChunker(48)
TRIED = {
    **{m: m for m in METHODS},
    "list": [RRF(5), MinMax(0.35), CombMNZ(), Borda(), RanxFusion("wsum", weights=(0.2, 0.8))],
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Results of both parts, kept 100 deep over more than 200 chunks, and the store they are in."""
    corpus, gold = load_dataset("textbook")
    store = tmp_path_factory.mktemp("tuning")
    results = bench(
        corpus,
        gold,
        [System(CUT, r, name=n) for n, r in PARTS.items()],
        metrics=["mrr", "recall@5"],
        budgets=[],
        rounds=0,
        store=store,
        progress=False,
    )
    assert len(results["bm25"].chunks) > 200 > results["bm25"].run.rows.shape[1]
    return results, store


def benched(world, retriever, metric="mrr"):
    results, store = world
    found = bench(
        results.corpus,
        results.gold,
        [System(CUT, retriever)],
        metrics=[metric],
        budgets=[],
        rounds=0,
        store=store,
        progress=False,
    )
    return found.scores(metric)[:, 0]


@pytest.mark.parametrize("method", TRIED)
def test_the_recommended_fusion_scores_what_was_tuned(world, method):
    """In either order of arguments, to the last bit, with the depth that a Hybrid has by itself."""
    results, store = world
    best = {}
    for order in (["dense", "bm25"], ["bm25", "dense"]):
        tuned = tune_fusion(results.gold, [results[n] for n in order], TRIED[method], "mrr", store=store)
        assert tuned.hybrid == Hybrid(*[PARTS[n] for n in order], fuse=tuned.best)
        np.testing.assert_array_equal(
            benched(world, tuned.hybrid), tuned.scores[:, tuned.row], err_msg=f"{order} {tuned.best!r}"
        )
        best[order[0]] = tuned
    if method in ("minmax", "zscore", "rrf"):
        assert best["dense"].best == best["bm25"].best
        np.testing.assert_array_equal(best["dense"].scores, best["bm25"].scores)


def test_every_candidate_scores_what_a_benchmark_says(world):
    """Not only the best one: every second weight, with another depth too."""
    results, store = world
    for depth in (200, 20):
        tuned = tune_fusion(results.gold, results, MinMax([0.2, 0.5, 0.8]), "mrr", depth=depth, store=store)
        for j, fusion in enumerate(tuned.fusions):
            np.testing.assert_array_equal(
                benched(world, Hybrid(PARTS["dense"], PARTS["bm25"], fuse=fusion, depth=depth)),
                tuned.scores[:, j],
            )


def test_a_metric_deeper_than_the_results_is_judged_as_deep_as_it_asks(world):
    results, store = world
    tuned = tune_fusion(results.gold, results, "minmax", "recall@150", store=store)
    np.testing.assert_array_equal(benched(world, tuned.hybrid, "recall@150"), tuned.scores[:, tuned.row])


def test_results_retrievers_and_runs_are_the_same_thing(world):
    results, store = world
    chunks = results["bm25"].chunks
    parts = fusion_parts(results.gold, results, store=store)
    by_result = tune_fusion(results.gold, results, "minmax", "mrr", store=store)
    by_retriever = tune_fusion(
        results.gold, [PARTS["bm25"], PARTS["dense"]], "minmax", "mrr", chunks=chunks, cut=100, store=store
    )
    by_run = tune_fusion(
        results.gold,
        [p.ranking for p in parts],
        "minmax",
        "mrr",
        kinds=["dense", "lexical"],
        cut=100,
    )
    np.testing.assert_array_equal(by_result.scores, by_retriever.scores)
    np.testing.assert_array_equal(by_result.scores, by_run.scores)
    with pytest.raises(ConfigError, match="is not known"):
        _ = by_run.hybrid


def test_results_from_elsewhere_say_their_kind_and_are_not_deepened(world):
    """Results without their systems: the kind is read in the code, the depth cannot be had."""
    from dataclasses import replace

    results, _ = world
    bare = [replace(s, system=None) for s in results.systems]
    assert [kind_of(s) for s in bare] == ["dense", "lexical"]
    with pytest.raises(ConfigError, match="100 deep, a Hybrid fuses 200"):
        tune_fusion(results.gold, bare, "minmax", "mrr")
    tuned = tune_fusion(results.gold, bare, "minmax", "mrr", depth=100)
    np.testing.assert_array_equal(
        benched(world, Hybrid(PARTS["dense"], PARTS["bm25"], fuse=tuned.best, depth=tuned.depth)),
        tuned.scores[:, tuned.row],
    )


def test_two_parts_of_one_name_stay_two(world):
    results, store = world
    from dataclasses import replace

    twins = [replace(s, name="same") for s in results.systems]
    assert tune_fusion(results.gold, twins, "rrf", "mrr", store=store).names == ("same", "same #2")


def test_what_is_no_ranking_of_a_retriever_is_refused(world):
    results, store = world
    staged = bench(
        results.corpus,
        results.gold,
        [System(CUT, PARTS["bm25"], per_document=1, name="once")],
        metrics=["mrr"],
        budgets=[],
        rounds=0,
        store=store,
        progress=False,
    )
    with pytest.raises(ConfigError, match="been through per_document"):
        tune_fusion(results.gold, [results["dense"], staged["once"]])
    hybrid = bench(
        results.corpus,
        results.gold,
        [System(CUT, Hybrid(*PARTS.values()), name="both")],
        metrics=["mrr"],
        budgets=[],
        rounds=0,
        store=store,
        progress=False,
    )
    with pytest.raises(ConfigError, match=r"both \(hybrid\)"):
        tune_fusion(results.gold, [hybrid["both"], results["bm25"]], "minmax", store=store)


@pytest.mark.parametrize(
    "given",
    [
        {"runs": None},
        {"runs": 5},
        {"runs": "minmax"},
        {"runs": []},
        {"runs": [None, None]},
        {"runs": {"a": 1, "b": 2}},
        {"runs": [System(CUT, PARTS["bm25"])] * 2},
        {"gold": None},
        {"gold": "questions.jsonl"},
        {"method": None},
        {"method": 5},
        {"method": []},
        {"method": [RRF, RRF]},
        {"metric": None},
        {"metric": 5},
        {"metric": "recal@5"},
        {"folds": 1},
        {"folds": "five"},
        {"folds": None},
        {"folds": 10**6},
        {"chunks": "docs"},
        {"kinds": "dense"},
        {"kinds": ["dense"]},
        {"kinds": ["a", "b"]},
        {"kinds": 5},
        {"kinds": ["lexical", "dense"]},
        {"depth": 0},
        {"depth": "deep"},
        {"cut": -1},
        {"repeats": 0},
        {"repeats": None},
        {"seed": "x"},
        {"seed": -1},
        {"store": 5},
    ],
)
def test_wrong_arguments_are_our_errors(world, given):
    results, store = world
    with pytest.raises(RagbenchError):
        tune_fusion(**{"runs": results, "gold": results.gold, "store": store, **given})


def test_runs_over_other_chunks_are_refused(world):
    results, _ = world
    other = RecursiveChunker(64)(results.corpus)
    assert isinstance(other, Chunks)
    run = Run(
        tuple(q.query_id for q in results.gold.query_list),
        np.zeros((len(results.gold), 1)),
        np.zeros((len(results.gold), 1), np.int64),
    )
    with pytest.raises(DataError, match="different chunks"):
        tune_fusion(results.gold, [results["bm25"], Ranking(other, run)], depth=1)
