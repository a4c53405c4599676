"""A list among the arguments of a component is a choice: of every component that is public, in the order of
the fields, wherever a grid is taken."""

import copy
import dataclasses
import inspect
import pickle

import pytest

import ragbench as rb
from ragbench.base.choices import Choices, Component, has_choices
from ragbench.base.errors import ConfigError
from ragbench.bench.given_runs import from_runs
from ragbench.bench.plan import make_plan
from ragbench.evaluate.tuning import candidates
from ragbench.store.fingerprint import fingerprint
from ragbench.system.system import names_of

ROOMS = tuple(
    f"ragbench.{r}." for r in ("remote", "chunk", "embed", "index", "lexical", "fusion", "steps", "system")
)
NO_PARTS = {
    "Claims",
    "EmbeddingCache",
    "Param",
    "WholeDocument",
}  # values, a folder, and what has no arguments
COMPONENTS = [
    c
    for n in rb.__all__
    if isinstance(c := getattr(rb, n), type)
    and c.__module__.startswith(ROOMS)
    and dataclasses.is_dataclass(c)
    and n not in NO_PARTS
]
CORPUS = rb.Corpus([rb.Document(f"d{i}", f"Start pump {i}. Stop valve {i}.") for i in range(3)])
GOLD = rb.Gold.from_spans(
    [{"query_id": "q", "query": "pump", "evidence": [{"doc_id": "d1", "start": 0, "end": 5}]}]
)


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda c: c.__name__)
def test_every_argument_of_every_component_may_be_a_choice(component):
    signature = inspect.signature(component)
    required = [
        p.name
        for p in signature.parameters.values()
        if p.default is p.empty and p.kind is not p.VAR_POSITIONAL
    ]
    for name, parameter in signature.parameters.items():
        if name in component.sequences or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        several = component(**{r: "x" for r in required} | {name: ["a", ["b", None]]})
        assert isinstance(several, Choices) and len(several) == 3
        with pytest.raises(ConfigError, match=f"this is 3 choices and not one {component.__name__}"):
            several.build(CORPUS)
        with pytest.raises(ConfigError, match=f"{name}: a list of choices is empty"):
            component(**{r: "x" for r in required} | {name: []})


def test_a_rich_grid_has_the_order_of_the_fields():
    e = rb.LSAEmbedder
    systems = rb.grid(
        rb.System(
            retrieve=[
                rb.Lexical(rb.FTS5(weights=[(1, 1), (2, 1)])),
                rb.Hybrid(
                    rb.Dense(e([2, 3]), [rb.FaissFlat(), rb.FaissHNSW(8)]),
                    rb.Lexical(),
                    fuse=rb.RRF([30, 60]),
                ),
            ],
            chunk=[rb.TokenChunker(overlap=[0, 2], size=8), [rb.RecursiveChunker(9, separators=["\n", ""])]],
            header=None,
        )
    )
    retrievers = ["FTS5", "FTS5(weights=2/1)"]
    for dim in (2, 3):
        for index in ("", " HNSW(m=8)"):
            retrievers += [f"LSA(dim={dim}){index}+FTS5 RRF(k=30)", f"LSA(dim={dim}){index}+FTS5 RRF"]
    chunkers = ["Token(8)", "Token(8, 2)", r"Recursive(9, separators='\n'/'')"]
    assert names_of(systems) == [f"{c} · {r}" for c in chunkers for r in retrievers]
    assert [fingerprint(s) for s in systems] == [fingerprint(eval(repr(s), vars(rb).copy())) for s in systems]


def test_fields_that_a_base_defines_come_first_though_they_are_typed_last():
    several = rb.FaissHNSW([4, 8], metric=["cosine", "l2"])
    assert [(i.metric, i.m) for i in several] == [("cosine", 4), ("cosine", 8), ("l2", 4), ("l2", 8)]
    assert rb.grid(rb.System(rb.TokenChunker(4), rb.Dense(rb.LSAEmbedder(2), several))) == [
        rb.System(rb.TokenChunker(4), rb.Dense(rb.LSAEmbedder(2), index)) for index in several
    ]


def test_a_list_inside_a_tuple_is_a_choice_of_what_stands_there():
    assert [words.weights for words in rb.FTS5(weights=([1, 2], 3))] == [(1, 3), (2, 3)]
    assert has_choices((1, ("a", ["b"]))) and not has_choices((1, ("a", "b")))


@dataclasses.dataclass(frozen=True)
class Halves:
    "A chunker of one's own, no `Component`."

    size: int
    overlap: int = 0

    def __call__(self, documents):
        return rb.TokenChunker(self.size, self.overlap)(documents)


def test_a_dataclass_of_ones_own_may_hold_a_list():
    system = rb.System(Halves([4, 8], [0, 1]), rb.Lexical())
    assert isinstance(system, rb.System) and has_choices(system)
    assert [s.chunk for s in rb.grid(system)] == [Halves(4), Halves(4, 1), Halves(8), Halves(8, 1)]
    both = rb.grid(rb.System(Halves([4, 8]), [rb.Lexical(), rb.Dense(rb.LSAEmbedder(2))]))
    assert [s.chunk.size for s in both] == [4, 4, 8, 8]
    with pytest.raises(ConfigError, match="a field holds a list of choices"):
        system.build(CORPUS)


def test_choices_are_taken_wherever_a_grid_is():
    several = rb.System([rb.TokenChunker(4), rb.TokenChunker(8)], rb.Lexical())
    for systems in (several, [several], list(several), rb.grid(several)):
        assert make_plan(CORPUS, GOLD, systems).names == ("Token(4) · FTS5", "Token(8) · FTS5")
    assert make_plan(CORPUS, GOLD, {"mine": several}).names == ("mine", "mine #2")
    assert candidates(rb.MinMax([0.2, 0.5]))[2] == [rb.MinMax(0.2), rb.MinMax(0.5)]
    assert candidates([rb.MinMax([0.2, 0.5]), rb.RRF()])[2][-1] == rb.RRF()
    for chunkers in (rb.TokenChunker([4, 8]), [rb.TokenChunker([4, 8])]):
        compared = rb.compare_chunkers(CORPUS, GOLD, chunkers, [8], 2, 8)
        assert compared.names[:2] == ("Token(4)", "Token(8)")
    with pytest.raises(ConfigError, match="a system holds a list of choices"):
        from_runs(CORPUS, GOLD, [several])
    with pytest.raises(ConfigError, match="expected a System, got TokenChunker"):
        rb.grid(rb.TokenChunker([4, 8]))


def test_choices_are_values_and_tell_no_secret():
    several = rb.PgFullText("postgresql://me:secret@host/db", config=["english", "german"])
    assert repr(several) == "PgFullText(…, config=['english', 'german'])"
    assert "secret" not in repr(rb.PgFullText(url="postgresql://me:secret@host/db", match=["or", "and"]))
    for copied in (copy.deepcopy(several), pickle.loads(pickle.dumps(several))):
        assert copied == several and list(copied) == list(several)
    assert dataclasses.replace(rb.TokenChunker(8), size=[8, 9])  # a list there is a choice too
    assert not issubclass(Halves, Component)
