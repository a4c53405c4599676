"""What cannot work is refused when it is made, and only by our own errors."""

import functools
import re
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ragbench as rb
from ragbench.base.choices import expanded
from ragbench.base.errors import ConfigError, DataError, RagbenchError
from ragbench.base.number_text import number
from ragbench.core.documents import Corpus, Document
from ragbench.fusion.fusion import RRF, MinMax, ZScore
from ragbench.fusion.ranx_fusion import CEILINGS, NEEDS, NORMS, ON_SCORES, Borda, CombMNZ, CombSUM, RanxFusion
from ragbench.lexical.bm25 import BM25
from ragbench.lexical.postgres import PgFullText
from ragbench.steps.boosts import Boost, Boosts
from ragbench.steps.cross_encoder import CrossEncoderReranker
from ragbench.steps.expansion import Neighbours, ParentSection, SeeAlso, SentenceWindow
from ragbench.steps.mmr import MMR
from ragbench.steps.rewriting import HyDE, MultiQuery
from ragbench.system.build_context import Context
from ragbench.system.score_bounds import ThresholdWarning

E = rb.LSAEmbedder(3)
CHUNK = rb.TokenChunker(16, 0)
BOTH = (rb.Dense(E), rb.Lexical())
OFF = settings(max_examples=60, deadline=None, derandomize=True)


@functools.cache
def corpus():
    return Corpus(
        [
            Document(
                f"d{i}",
                f"Pump {i} is started by hand.\n\nThe valve of tank {i} closes at noon.\n\nOil level {i} is"
                " read daily.",
                metadata={"status": ("active", "old")[i % 2]},
            )
            for i in range(6)
        ]
    )


# thresholds


def plain(value):
    "A value as its test is called: without the address of an object, which differs between workers."
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


@pytest.mark.parametrize(
    ("retrieve", "more", "most"),
    [
        (rb.Hybrid(*BOTH), {}, 2 / 61),
        (rb.Hybrid(*BOTH, rb.Lexical(rb.BM25S())), {}, 3 / 61),
        (rb.Hybrid(*BOTH, fuse=RRF(0, (3, 1))), {}, 4.0),
        (rb.Hybrid(*BOTH, fuse=MinMax(0.3)), {}, 1.0),
        (rb.Dense(E), {}, 1.0),
        (rb.Dense(E, rb.FaissHNSW(8)), {}, 1.0),
        (rb.Dense(E, rb.FaissFlat("l2")), {}, 0.0),
        (rb.Hybrid(*BOTH, fuse=CombMNZ()), {}, 4.0),
        (rb.Lexical(), {"boosts": Boosts([Boost({"status": "active"}, 0.25)])}, 1.25),
        (rb.Lexical(), {"query": MultiQuery(lambda m: None, n=2)}, 3 / 61),
    ],
    ids=plain,
)
def test_a_threshold_that_the_scale_cannot_reach_is_refused(retrieve, more, most):
    with pytest.raises(ConfigError) as e:
        rb.System(CHUNK, retrieve, min_score=most + 0.01, **more)
    assert number(most + 0.01, "g") in str(e.value) and number(most, ".4g") in str(e.value)  # both numbers
    rb.System(CHUNK, retrieve, min_score=most, **more)
    with pytest.raises(ConfigError):
        rb.grid(rb.System(CHUNK, [retrieve], min_score=[None, most + 0.01], **more))
    rb.System(
        CHUNK, retrieve, rerank=CrossEncoderReranker("x"), min_score=most + 100, **more
    )  # a scale of its own


@OFF
@given(
    st.integers(0, 10**6),
    st.integers(2, 4),
    st.sampled_from([*CEILINGS, "RRF", "ZScore", "CombSUM", "Borda"]),
    st.sampled_from([*NORMS]),
)
def test_no_fused_score_exceeds_what_its_fusion_says(seed, n, method, norm):
    rng = np.random.default_rng(seed)
    weights = tuple(rng.uniform(0, 3, n))
    needs = {"gamma": 1.5, "phi": 0.7, "weights": weights}
    own = {
        "RRF": RRF(int(rng.integers(0, 90)), weights),
        "ZScore": ZScore(0.7),
        "CombSUM": CombSUM(norm),
        "Borda": Borda(weights),
    }
    fuse = (
        own[method]
        if method in own
        else RanxFusion(method, norm, **{NEEDS[method]: needs[NEEDS[method]]} if method in NEEDS else {})
    )
    n = 2 if method == "ZScore" else n
    depth = int(rng.integers(1, 12))
    runs = []
    for _ in range(n):
        rows = rng.permutation(20)[:depth]
        scores = np.sort(rng.normal(size=len(rows)) ** (1, 3)[int(rng.integers(2))])[::-1]
        runs.append((np.r_[scores[:1] + rng.integers(0, 50), scores[1:]], rows))
    top = fuse.highest(n, depth)
    if top is None:
        assert norm is None and method in {*ON_SCORES, "CombSUM"}
    else:
        assert fuse.fuse(runs, ["dense", "lexical", "dense", "lexical"][:n])[0].max() <= top + 1e-9


def test_the_bounds_are_reached():
    same = [(np.array([3.0, 1.0, 0.0]), np.array([7, 8, 9]))] * 2
    for fuse in (
        RRF(60),
        RRF(3, (2, 5)),
        MinMax(0.4),
        CombSUM(),
        CombMNZ(),
        RanxFusion("rbc", phi=0.5),
        RanxFusion("isr"),
        RanxFusion("logn_isr"),
        RanxFusion("wsum", weights=(1, 2)),
    ):
        assert fuse.fuse(same, ["dense", "lexical"])[0].max() == pytest.approx(fuse.highest(2, 3)), fuse


@pytest.mark.parametrize("retrieve", [rb.Lexical(), rb.Dense(E), rb.Lexical(rb.BM25S())], ids=repr)
def test_an_answer_that_a_threshold_emptied_says_so(retrieve, tmp_path):
    high = 0.99999 if isinstance(retrieve, rb.Dense) else 1e6
    built = rb.System(CHUNK, retrieve, min_score=high).build(corpus())
    best = rb.System(CHUNK, retrieve).build(corpus()).search(["pump and valve", "oil"]).scores.max()
    with pytest.warns(
        ThresholdWarning,
        match=re.escape(
            f"min_score is {number(high, 'g')}, and nothing is left for any of the 2 questions: the highest"
            f" score was {number(best, '.4g')}"
        ),
    ):
        assert (built.search(["pump and valve", "oil"]).rows == -1).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (
            rb.System(CHUNK, retrieve, min_score=float(best))
            .build(corpus())
            .search(["pump and valve", "oil"])
            .rows
            >= 0
        ).any()
    gold = rb.Gold.from_spans(
        [
            {"query_id": q, "query": t, "evidence": [{"doc_id": "d1", "start": 0, "end": 10}]}
            for q, t in (("a", "pump and valve"), ("b", "oil"))
        ]
    )
    for _ in range(2):  # made, and found in the store
        with pytest.warns(ThresholdWarning, match="the highest score was"):
            rb.bench(corpus(), gold, built.system, store=tmp_path, rounds=0)


def test_a_threshold_of_an_index_that_its_metric_cannot_reach():
    for metric, top in (("cosine", 1), ("l2", 0)):
        assert rb.QdrantIndex(metric=metric, min_score=top).min_score == top
        with pytest.raises(
            ConfigError,
            match=(
                f"min_score is {number(top + 0.5, 'g')}, and no score of metric='{metric}' can exceed {top}"
            ),
        ):
            rb.QdrantIndex(metric=metric, min_score=top + 0.5)
    assert rb.QdrantIndex(metric="ip", min_score=7.0).min_score == 7.0


@pytest.mark.parametrize(
    "chunk", [None, 1.5, True, -1, 10**9, "nowhere", [1], object()], ids=lambda c: plain(c)[:12]
)
def test_explaining_a_chunk_that_is_not_there(chunk):
    built = rb.System(CHUNK, BOTH[1]).build(corpus())
    with pytest.raises(DataError, match="Give a row of the system's chunks"):
        built.explain("pump", chunk)


@pytest.mark.parametrize(
    "system",
    [
        rb.System(CHUNK, BOTH[1], min_score=0.5),
        rb.System(CHUNK, rb.Lexical(rb.FTS5(match="and"))),
        rb.System(CHUNK, BOTH[0], expand=ParentSection(), per_document=1),
        rb.System(
            CHUNK,
            rb.Hybrid(*BOTH),
            header="section",
            boosts=Boosts(
                [Boost({"status": "active", "format": "text"}, 0.2), Boost({"doc": ["d1", "d2"]}, -0.1)]
            ),
        ),
    ],
    ids=lambda s: f"{s!r:.60}",
)
def test_explain_agrees_with_what_is_found(system):
    built = system.build(corpus())
    for where in (None, {"status": "active"}, {"doc": ["d1", "d3"]}):
        found = built.search("the valve of tank 3", k=20, where=where)
        ranks = {int(r): i + 1 for i, r in enumerate(found.rows[0]) if r >= 0}
        for row in range(len(built.chunks)):
            e = built.explain("the valve of tank 3", row, where=where)
            if system.expand is None:
                assert e.rank == ranks.get(row, 0), (row, e)
            elif row in set(found.origin[0].tolist()):
                assert 0 < e.rank <= len(ranks)


# places


class Nothing:
    pass


class Odd:
    "Has the names, and not the arguments."

    kind = 3

    def build(self):
        return self

    def fuse(self):
        return 1

    def rerank(self, query):
        return query

    def span(self):
        return 0, 1

    def rewrite(self):
        return ()

    def __call__(self):
        return None


WRONG = [
    None,
    0,
    -1,
    3.5,
    float("nan"),
    float("inf"),
    True,
    "",
    "text",
    b"bytes",
    (),
    ("a", "b"),
    (1, 2, 3),
    [],
    [None],
    ["x"],
    {},
    {"a": 1},
    {1, 2},
    object(),
    Nothing,
    Nothing(),
    Odd(),
    Odd,
    np.zeros(2),
    np.float64(2),
    10**30,
    lambda: None,
    print,
    int,
]
PARTS = [
    CHUNK,
    E,
    rb.FaissFlat(),
    rb.FTS5(),
    rb.BM25S(),
    *BOTH,
    rb.Hybrid(*BOTH),
    RRF(60),
    MMR(0.5),
    Boost({"status": "active"}, 1),
    Neighbours(),
    rb.TokenChunker,
    rb.Dense,
    rb.LSAEmbedder,
    RRF,
]
MAKERS = {
    rb.System: dict(
        chunk=CHUNK,
        retrieve=BOTH[1],
        query=None,
        header=None,
        boosts=None,
        rerank=None,
        min_score=None,
        per_document=None,
        mmr=None,
        expand=None,
        depth=50,
        name=None,
    ),
    rb.Dense: dict(embedder=E, index=rb.FaissFlat(), header=None),
    rb.Lexical: dict(engine=rb.FTS5()),
    RRF: dict(k=60, weights=None),
    MinMax: dict(dense=0.5),
    ZScore: dict(dense=0.5),
    RanxFusion: dict(method="sum", norm="min-max", weights=None, k=60, gamma=1.0, phi=0.5, sigma=0.01),
    CombSUM: dict(norm="min-max"),
    CombMNZ: dict(norm="min-max"),
    Borda: dict(weights=None),
    MMR: dict(lambda_=0.5),
    Boosts: dict(rules=(Boost({"status": "active"}, 1),), how="add"),
    Boost: dict(when={"status": "active"}, by=0.1),
    Neighbours: dict(before=1, after=1),
    ParentSection: dict(levels=1),
    SentenceWindow: dict(sentences=1, language="en"),
    SeeAlso: dict(relations=(("d1", "d2"),), grow=None, hits=5, most=2, chunks_each=1),
    MultiQuery: dict(chat=lambda m: None, n=3, keep=True, rrf_k=60, prompt="{n}", tries=3),
    HyDE: dict(chat=lambda m: None, keep=False, rrf_k=60, prompt="p", tries=3),
    CrossEncoderReranker: dict(model="x", depth=5, max_tokens=None, batch_size=3),
    rb.FTS5: dict(tokenize="unicode61", match="or", weights=(1, 1), near=10, bm25=None),
    BM25: dict(method="fts5", k1=1.2, b=0.7, delta=None),
    rb.BM25S: dict(method="lucene", k1=1.5, b=0.75, stemmer=None, stopwords=None, delta=0.5),
    PgFullText: dict(config="simple", match="or", normalization=0),
}


def used(part):
    "Put a part where it belongs and ask a question; the system, or None for what asks a model."

    def fuse(f):
        return rb.System(CHUNK, rb.Hybrid(*BOTH, fuse=f))

    if isinstance(part, rb.System):
        return part
    if isinstance(part, (rb.Dense, rb.Lexical)):
        return rb.System(CHUNK, part)
    if isinstance(part, (rb.FTS5, rb.BM25S)):
        return rb.System(CHUNK, rb.Lexical(part))
    if isinstance(part, BM25):
        return rb.System(CHUNK, rb.Lexical(rb.FTS5(bm25=part)))
    if isinstance(part, (RRF, MinMax, ZScore, RanxFusion, CombSUM, CombMNZ, Borda)):
        return fuse(part)
    if isinstance(part, MMR):
        return rb.System(CHUNK, BOTH[0], mmr=part)
    if isinstance(part, (Boosts, Boost)):
        return rb.System(CHUNK, BOTH[1], boosts=part if isinstance(part, Boosts) else Boosts(part))
    if isinstance(part, (Neighbours, ParentSection, SentenceWindow, SeeAlso)):
        return rb.System(CHUNK, BOTH[1], expand=part)
    return None


@pytest.mark.parametrize("maker", MAKERS, ids=lambda m: m.__name__)
def test_wrong_values_meet_only_our_errors(maker):
    bad, context = [], Context()
    for name in MAKERS[maker]:
        for value in [*WRONG, *PARTS]:
            given = {**MAKERS[maker], name: value}
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    parts = expanded([maker(**given)])
                    if name in ("chat", "model", "prompt", "url", "config"):
                        continue
                    made = [m for m in map(used, parts) if m is not None]
                    for system in rb.grid(*made) if made else ():
                        if "PgFullText" in repr(system):
                            continue
                        system.build(corpus(), context).search(["pump of the tank", "oil"], k=3)
            except RagbenchError as e:
                if not str(e).strip():
                    bad.append((name, value, "no message"))
            except Exception as e:
                bad.append((name, value, f"{type(e).__name__}: {e}"))
    assert not bad, "\n".join(f"{maker.__name__}({n}={v!r:.60}) → {e:.160}" for n, v, e in bad)


def built_hybrids(*retrievers, **more):
    return [s.build(corpus()) for s in rb.grid(rb.System(CHUNK, rb.Hybrid(*retrievers, **more)))]


@pytest.mark.parametrize(
    "given",
    [
        (),
        (BOTH[1],),
        (*BOTH, 3),
        (CHUNK, E),
        ("a", "b"),
        ([], []),
        (rb.FTS5(), rb.FTS5()),
        (list(BOTH),),
        (rb.Dense, rb.Lexical),
        (Odd(), BOTH[0]),
        (None, None),
    ],
    ids=lambda g: plain(g)[:40],
)
def test_hybrids_of_what_does_not_fit(given):
    with pytest.raises(RagbenchError):
        built_hybrids(*given)


@pytest.mark.parametrize("fuse", [*WRONG[1:], *PARTS, MinMax], ids=lambda f: plain(f)[:40])
def test_fusions_that_are_none(fuse):
    if isinstance(fuse, RRF) or isinstance(fuse, list) and fuse == [None]:  # None means RRF, as a choice too
        return
    with pytest.raises(RagbenchError):
        built_hybrids(*BOTH, fuse=fuse)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: rb.System(rb.TokenChunker, BOTH[1]), "Give an instance of it: TokenChunker"),
        (lambda: rb.System(CHUNK, rb.FTS5()), r"This is a lexical engine: Lexical\(FTS5"),
        (lambda: rb.System(CHUNK, E), r"This is an embedder: Dense\(LSAEmbedder"),
        (lambda: rb.System(CHUNK, rb.FaissFlat()), r"This is an index: Dense\(embedder, FaissFlat"),
        (lambda: rb.System(BOTH[1], CHUNK), "This is a retriever. Give a chunker"),
        (lambda: rb.Dense(rb.FaissFlat(), E), "Give an embedder and then an index"),
        (lambda: rb.Dense(E, rb.FTS5()), "lexical engine"),
        (lambda: rb.Lexical(rb.FaissFlat()), "This is an index"),
        (lambda: rb.Lexical(E), "This is an embedder"),
        (lambda: rb.Dense("all-MiniLM-L7"), "such as 'all-MiniLM-L6-v2', or one of 'fastembed:"),
        (lambda: rb.Dense("opnai:x"), "'openai:text-embedding-3-small'"),
        (
            lambda: rb.System(CHUNK, rb.Hybrid(BOTH[0], BOTH[0], fuse=MinMax())),
            "one dense run against one lexical",
        ),
        (lambda: rb.Hybrid(*BOTH, fuse=RRF(60, (1, 2, 3))), "3 weights for 2 runs"),
        (lambda: rb.System(CHUNK, BOTH[1], mmr=MMR()), "nothing is embedded"),
        (lambda: rb.System(CHUNK, BOTH[1], header="title"), "nothing is embedded"),
        (lambda: rb.System(CHUNK, BOTH[1], rerank="cross-encoder/x"), "rerank is 'cross-encoder/x'"),
        (lambda: rb.System(CHUNK, BOTH[1], boosts=Boost({"a": 1}, 1)), r"Give Boosts\("),
        (lambda: rb.System(CHUNK, tuple(BOTH)), "retrieve is"),
        (lambda: rb.System(CHUNK, BOTH[1], [CHUNK]), "name is"),
        (lambda: rb.System(CHUNK, BOTH[1], rerank=Odd()), "rerank is"),
        (lambda: rb.System(CHUNK, BOTH[1], expand=Odd()), "expand is"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_is_in_the_wrong_place_is_told_where_it_belongs(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


def test_encoders_by_name():
    assert rb.Dense("lsa:3") == rb.Dense(E) and rb.Dense("all-MiniLM-L6-v2") == rb.Dense(
        rb.SentenceTransformerEmbedder("all-MiniLM-L6-v2")
    )
    assert len(rb.grid(rb.System(CHUNK, rb.Dense(["lsa:3", "lsa:4"])))) == 2
    assert rb.System(CHUNK, rb.Dense("lsa:3")).build(corpus()).search("pump").run.of(0).size


@pytest.mark.parametrize(
    "retrieve",
    [
        *BOTH,
        rb.Hybrid(*BOTH),
        rb.Lexical(rb.FTS5("trigram")),
        rb.Lexical(rb.FTS5(match="phrase")),
        rb.Lexical(rb.BM25S()),
    ],
    ids=repr,
)
def test_a_question_without_a_text_is_refused_by_all_alike(retrieve):
    built = rb.System(CHUNK, retrieve).build(corpus())
    for q in ("", " \n\t", "\u3000", ["pump", ""], [""], None, 3, [3], [None], b"pump", {"q": ""}, {"q": 3}):
        with pytest.raises(DataError, match="question"):
            built.search(q)
        if isinstance(q, str):
            with pytest.raises(DataError, match="question"):
                built.explain(q, 0)
    assert built.search([]).rows.shape == (0, 10)
    assert built.search({"q": "pump"}).query_ids == ("q",)
    with pytest.raises(DataError, match="has no text"):
        rb.Gold.from_spans(
            [{"query_id": "a", "query": " ", "evidence": [{"doc_id": "d1", "start": 0, "end": 4}]}]
        )


def test_asking_deeper_than_a_system_looks():
    built = rb.System(CHUNK, rb.Hybrid(*BOTH, depth=5)).build(corpus())
    with pytest.raises(ConfigError, match="k is 6, and each part of the fusion brings 5"):
        built.search("pump", k=6)
    built = rb.System(CHUNK, BOTH[1], per_document=1, depth=7).build(corpus())
    with pytest.raises(ConfigError, match="k is 8, and the steps of this system look at 7"):
        built.search("pump", k=8)
    assert built.search("pump", k=7).rows.shape == (1, 7)
