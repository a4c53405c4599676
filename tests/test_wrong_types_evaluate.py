"""Wrong types and values to the public functions of evaluate find our errors, never Python's or NumPy's
own."""

import functools
import importlib
import inspect
import json
import warnings
from pathlib import Path

import numpy as np
import pytest

import ragbench as rb
from ragbench.base.errors import RagbenchError
from ragbench.core.ranking import Ranking
from ragbench.evaluate import chunker_comparison as chunkers
from ragbench.evaluate import evidence_metrics as evidence
from ragbench.evaluate import judged_units as units
from ragbench.evaluate import question_generation as generate
from ragbench.evaluate import rank_metrics as metrics
from ragbench.evaluate import waterfall
from ragbench.fusion.fusion import RRF
from ragbench.stats.corrections import max_t_p
from ragbench.stats.intervals import bootstrap_interval, mean_interval
from ragbench.stats.paired_tests import sign_flip_p
from ragbench.stats.slices import interaction_p
from ragbench.testing import calibration
from ragbench.text.tokenizers import get_tokenizer

MODULES = [
    f"ragbench.{room}.{p.stem}"
    for room in ("evaluate", "stats")
    for p in sorted((Path(rb.__file__).parent / room).glob("[a-z]*.py"))
] + ["ragbench.testing.calibration"]

# inner loops: called for each query or each resample with arrays that their callers made, where a check would
# cost a third of the call
KERNELS = {
    "class_positions",
    "class_places",
    "evidence_list",
    "document_list",
    "in_places",
    "reading",
    "stops",
    "query_evidence",
    "evidence_counts",
    "evidence_tokens",
    "touching",
    "token_starts",
    "check_judged",
    "best_partition",
    "pool_of",
    "evidence_handed",
    "best_choice",
    "best_first",
    "grouped",
    "groups_of",
    "seeded",
    "resampled_means",
    "freedom",
    "standard_error",
    "untailed",
    "kind_of",
    "likeness",
    "interval_kinds",
    "apart",
    "score_table",
    "on_grid",
    "resample_counts",
    "interval_level",
    "widened_deviate",
    "bca_ends",
    "exact_sum",
    "spread_interval",
}

CORPUS = rb.Corpus(
    [
        rb.Document(
            id=f"d{i}",
            text=(
                f"Start pump {i} with the green switch.\n\nStop pump {i} with the red one.\n\nOil it every"
                f" {i + 2} weeks."
            ),
        )
        for i in range(6)
    ]
)
GOLD = rb.Gold.from_spans(
    [
        {
            "query_id": f"q{i}",
            "query": f"How is pump {i} stopped?",
            "tags": ["stop"],
            "evidence": [{"doc_id": f"d{i}", "start": 41, "end": 60}],
        }
        for i in range(6)
    ]
)
CHUNKS = rb.TokenChunker(8)(CORPUS)
SCORES, ROWS = rb.FTS5().build(CHUNKS).search([q.text for q in GOLD.query_list], k=5)
RUN = Ranking(CHUNKS, rb.Run(tuple(f"q{i}" for i in range(6)), SCORES, ROWS))
OTHER = Ranking(CHUNKS, rb.Run(RUN.query_ids, RUN.scores, RUN.rows[:, ::-1].copy()))
D = np.random.default_rng(0).normal(0.1, 0.2, 24)
X = np.clip(np.random.default_rng(1).normal(0.5, 0.2, (24, 3)), 0, 1)
JUDGED = units.judge(GOLD, RUN)
BY_DOCUMENT = units.judge(GOLD, RUN, "document")
COUNTS = evidence.token_counts(CORPUS)


@functools.cache
def comparison():
    return chunkers.compare_chunkers(CORPUS, GOLD, [rb.TokenChunker(8)], [50], 5, 20)


@functools.cache
def fall():
    return waterfall.waterfall(GOLD, [waterfall.Stage("search", RUN)], 50)


class Reply:
    text = json.dumps(
        {"question": "What colour is the switch?", "answer": "green", "quotes": ["the green switch"]}
    )


def writer(messages):
    return Reply()


def good(tmp_path):
    "Arguments that work, by name; and by function where a name means something else there."
    by_name = {
        "gold": GOLD,
        "corpus": CORPUS,
        "chunks": CHUNKS,
        "ranking": RUN,
        "rankings": [RUN, OTHER],
        "run": RUN,
        "metrics": ["recall@5", "mrr"],
        "metric": "recall@5",
        "budgets": [20, 50],
        "depths": [1, 2],
        "depth": 2,
        "budget": 50,
        "counts": COUNTS,
        "scores": X,
        "level": 0.95,
        "resamples": 200,
        "seed": 1,
        "clusters": np.repeat(np.arange(8), 3),
        "baseline_index": 0,
        "correction": "holm",
        "p_values": [0.01, 0.5],
        "bounds": None,
        "a": X[:, 0],
        "b": X[:, 1],
        "d": D,
        "u": X,
        "tokenizer": "cl100k_base",
        "unit": "",
        "cover": 0.5,
        "j": JUDGED,
        "judged": JUDGED,
        "units": JUDGED.units,
        "lists": JUDGED.found,
        "k": 5,
        "path": tmp_path / "x.run",
        "folder": tmp_path / "beir",
        "text": "recall@5",
        "name": "bm25",
        "names": ["a", "b"],
        "runs": {"a": RUN, "b": OTHER},
        "kinds": None,
        "store": None,
    }
    by_function = {
        "kendall_tau": {"a": X, "b": X[:, ::-1]},
        "order_agreement": {"a": X, "b": X, "paired": True, "clusters": (None, None)},
        "compare_columns": {"d": X},
        "compare_family": {"d": X},
        "sign_flip_p": {"d": X},
        "mean_interval": {"x": X},
        "effect_size": {"mean": 0.1, "sd": 0.2, "error": 0.02, "groups": 24},
        "all_ties": {"n": 8},
        "doubted": {"p": [0.1, 0.2, 0.3]},
        "interaction_p": {"tagged": X[:, :2] > 0.5},
        "slice_by_tag": {
            "tags": [["even"] if i % 2 else [] for i in range(24)],
            "names": ("a", "b"),
            "fewest": 3,
        },
        "held_out_scores": {"folds": 4, "repeats": 2},
        "selection_optimism": {"folds": 4, "repeats": 2},
        "world_of": {"scores": X[:, 0]},
        "coverage": {"world": calibration.world_of("ours", X[:, 0]), "n": 10, "studies": 3, "interval": None},
        "false_claims": {
            "world": calibration.world_of("ours", X[:, 0]),
            "n": 10,
            "test": "holm",
            "systems": 2,
            "studies": 3,
        },
        "window_ends": {"tokenizer": get_tokenizer("cl100k_base"), "max_tokens": 6},
        "truncation": {"window_ends": CHUNKS.end},
        "named_spans": {},
        "oracle": {"min_size": 5, "max_size": 20},
        "compare_chunkers": {
            "chunkers": [rb.TokenChunker(8)],
            "min_size": 5,
            "max_size": 20,
            "budgets": [50],
        },
        "chunkers_chart": {"c": comparison()},
        "evidence_at_budgets": {"unit": "characters"},
        "evidence_at_chunks": {"unit": "characters"},
        "budget_area": {"curve": np.random.default_rng(2).random((6, 2)), "budgets": [20, 50]},
        "run_to_dict": {"unit": "chunk", "scores": "rank"},
        "ir_metadata": {"tag": "x"},
        "write_run": {"unit": "chunk", "scores": "rank", "metadata": None},
        "run_from_dict": {"run": {"q0": {"d0": 1.0}}, "chunks": CORPUS},
        "run_table": {"run": {"q0": {"d0": 1.0}}},
        "as_run": {"run": {"q0": {"d0": 1.0}}},
        "write_beir": {"split": "test"},
        "question_messages": {"instruction": "Ask.", "passage": "Text.", "asked": ["What?"]},
        "read_question": {"reply": Reply.text, "passage": CORPUS["d0"].text},
        "knows": {"reply": "green", "answer": "green"},
        "repeats": {
            "doc_id": "d0",
            "found": generate.read_question(Reply.text, CORPUS["d0"].text),
            "others": [],
        },
        "generate_questions": {"n": 1, "chat": writer, "rounds": 1, "in_flight": 1, "progress": False},
        "ranx_scores": {"names": ["recall@5"]},
        "bpref_scores": {"j": BY_DOCUMENT, "level": 1},
        "judged_share": {"j": BY_DOCUMENT},
        "hole_scores": {"j": BY_DOCUMENT, "m": metrics.parse_metric("judged@5")},
        "name_of": {"metric": metrics.parse_metric("recall@5")},
        "check_metrics": {"names": ["recall@5"]},
        "tokens_handed": {"depth": 2},
        "score_run": {"curve_budgets": [20]},
        "judge_chunks": {"lists": [np.arange(3)] * 6},
        "waterfall": {"stages": [waterfall.Stage("search", RUN)]},
        "waterfall_chart": {"fall": fall(), "query_id": "q0"},
        "candidates": {"method": "rrf"},
        "fusion_scores": {"fusions": [RRF(60)], "kinds": ["", ""], "cut": 2},
        "tune_fusion": {"method": "rrf", "folds": 2, "repeats": 1, "cut": 2, "depth": 3, "kinds": None},
        "fusion_parts": {"depth": 3},
        "queries_needed": {"difference": 0.2, "power": 0.8, "alpha": 0.05},
        "minimal_detectable_difference": {"power": 0.8, "alpha": 0.05},
        "detectable_words": {"alpha": 0.05},
        "precision_omega": {"tokenizer": None},
        "token_counts": {},
        "whole_documents": {},
        "read_run": {},
        "parse_name": {},
    }
    return by_name, by_function


def functions():
    "Every public function of the room, but inner loops, as `(module, name)`."
    out = []
    for path in MODULES:
        module = importlib.import_module(path)
        out += [
            (path, n)
            for n in module.__all__
            if n not in KERNELS
            and callable(f := getattr(module, n))
            and not inspect.isclass(f)
            and getattr(f, "__module__", "") == module.__name__
            and hasattr(f, "__wrapped__") | inspect.isfunction(f)
        ]
    return out


WRONG = [
    None,
    "x",
    "",
    5,
    -1,
    0,
    2.5,
    float("nan"),
    True,
    [],
    ["a"],
    [[1, 2], [3]],
    {},
    {"a": 1},
    object(),
    (1, 2, 3),
    np.array(["a", "b"]),
    np.zeros((2, 2, 2)),
    b"x",
    rb.Corpus,
]


@pytest.mark.parametrize(("path", "name"), functions(), ids=str)
def test_wrong_types_are_refused_by_errors_of_ours(path, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where "x" may be a path
    call = getattr(importlib.import_module(path), name)
    by_name, by_function = good(tmp_path)
    mine = {**by_name, **by_function.get(name, {})}
    arguments = {
        p: mine[p] for p, q in inspect.signature(call).parameters.items() if p in mine or q.default is q.empty
    }
    if name == "read_run":
        (tmp_path / "x.run").write_text("q0 Q0 d0 1 1.0 x\n", encoding="utf-8")
    strangers = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call(**arguments)  # so that what is refused below is the one wrong value
        for argument in arguments:
            for value in WRONG:
                try:
                    call(**{**arguments, argument: value})
                except RagbenchError:
                    pass
                except Exception as e:
                    strangers.append(f"{name}({argument}={value!r:.60}): {type(e).__name__}: {e!s:.80}")
        with pytest.raises(RagbenchError):
            call(**arguments, nonsense=1)
    assert not strangers, "\n".join(strangers)


@pytest.mark.parametrize("seed", [-1, 1.5, "x", None, [1], True])
@pytest.mark.parametrize(
    "call",
    [
        lambda s: bootstrap_interval(D, seed=s),
        lambda s: sign_flip_p(X, s),
        lambda s: max_t_p(X, s),
        lambda s: mean_interval(X[:3], 0.95, 200, s),
        lambda s: interaction_p(D, X > 0.5, s),
    ],
    ids=["interval", "sign flip", "max T", "few scores", "interaction"],
)
def test_what_is_no_seed_is_refused(call, seed):
    with pytest.raises(RagbenchError, match="seed"):
        call(seed)


def test_every_inner_loop_is_still_there():
    names = {n for path in MODULES for n in importlib.import_module(path).__all__}
    assert names >= KERNELS
