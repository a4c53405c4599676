"""Labels: distinct systems have distinct labels, equal ones equal, and one label stands everywhere."""

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ragbench as rb
from ragbench import System, grid
from ragbench.core.labels import label, labels, shown
from ragbench.lexical.bm25s import Cutter
from ragbench.report.plots import looks, short_code
from ragbench.system.system import names_of

ANY = settings(deadline=None, max_examples=300, suppress_health_check=list(HealthCheck))
sizes = st.integers(1, 2000)
floats = st.floats(0, 5, allow_nan=False)
words = st.sampled_from(["cosine", "ip", "l2"])
texts = st.sampled_from(["cl100k_base", "o200k_base", "characters", "1", "None", "a, b", "a/b"]) | st.text(
    max_size=60
)


def made(cls, **fields):
    "Instances of a public component, each field left out or drawn; settings that it refuses are drawn again."
    required = {
        f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING
    }
    optional = st.fixed_dictionaries(
        {n: v for n, v in fields.items() if n in required},
        optional={n: v for n, v in fields.items() if n not in required},
    )

    def build(given):
        try:
            return cls(**given)
        except (rb.RagbenchError, ValueError):
            return None

    return optional.map(build).filter(lambda c: c is not None)


chunkers = st.one_of(
    st.builds(
        lambda s, o, t: rb.TokenChunker(s, min(o, s - 1), t), sizes, st.integers(0, 50), texts.filter(bool)
    ),
    st.builds(
        lambda s, o, snap, w: rb.TokenChunker(s, min(o, s - 1), snap=snap, snap_within=w),
        sizes,
        st.integers(0, 50),
        st.sampled_from([None, "sentence", "paragraph", "word"]),
        st.none() | st.integers(0, 40),
    ),
    st.builds(
        lambda s, o, seps: rb.RecursiveChunker(s, min(o, s - 1), separators=seps),
        sizes,
        st.integers(0, 50),
        st.lists(st.text(max_size=3), max_size=4).map(tuple),
    ),
    st.builds(lambda s, o: rb.CharacterChunker(s, min(o, s - 1)), sizes, st.integers(0, 50)),
    st.builds(
        lambda s, o, lang: rb.SentenceChunker(s, min(o, s - 1), language=lang),
        sizes,
        st.integers(0, 50),
        st.sampled_from(["en", "de"]),
    ),
    made(
        rb.SectionChunker,
        size=sizes,
        overlap=st.integers(0, 99),
        min_size=st.none() | sizes,
        fallback=st.just(rb.TokenChunker(9)) | st.just(rb.CharacterChunker(9)),
    ),
    made(rb.ParagraphChunker, size=sizes, overlap=st.none() | st.integers(0, 99), min_size=st.none() | sizes),
    made(
        rb.FieldChunker,
        fields=st.none() | st.lists(texts.filter(bool), min_size=1, max_size=3, unique=True).map(tuple),
        join=st.booleans(),
    ),
    made(
        rb.ClusterChunker,
        embedder=st.builds(rb.SentenceTransformerEmbedder, dim=st.none() | st.integers(1, 99)),
        size=sizes,
        piece_size=st.integers(1, 60),
    ),
    st.builds(lambda n: rb.LLMChunker(rb.Chat("toy"), size=n), st.integers(50, 999)),
    st.builds(
        lambda n, m: rb.ByType({"pdf": rb.SectionChunker(n), "default": rb.TokenChunker(m)}), sizes, sizes
    ),
)
fusions = st.one_of(
    made(rb.RRF, k=sizes, weights=st.none() | st.tuples(floats, floats)),
    made(rb.MinMax, dense=st.floats(0, 1)),
    made(rb.ZScore, dense=st.floats(0, 1)),
    made(rb.CombSUM, norm=st.sampled_from(["min-max", "zmuv", "rank", None])),
    made(rb.CombMNZ, norm=st.sampled_from(["min-max", "zmuv", None])),
    made(rb.Borda, weights=st.none() | st.tuples(floats, floats)),
    made(
        rb.RanxFusion,
        method=st.sampled_from(["min", "max", "med", "isr", "logn_isr", "rrf"]),
        norm=st.sampled_from(["min-max", None]),
        k=sizes,
        sigma=st.floats(0.001, 1),
    ),
)
indexes = st.one_of(
    made(rb.FaissFlat, metric=words),
    made(rb.FaissIVF, nlist=sizes, nprobe=sizes, metric=words),
    made(rb.FaissPQ, m=sizes, nbits=st.integers(4, 12)),
    made(rb.FaissIVFPQ, nlist=sizes, m=sizes, nprobe=sizes),
    made(rb.FaissHNSW, m=sizes, ef_construction=sizes, ef_search=sizes, metric=words, seed=sizes),
    made(rb.FaissSQ, kind=st.sampled_from(["8bit", "4bit", "fp16"])),
    made(rb.FaissRaBitQ, bits=st.integers(1, 8), nlist=st.none() | sizes),
    made(
        rb.FaissFactory,
        factory=st.sampled_from(["Flat", "IVF64,Flat", "PQ16x4fs,RFlat"]),
        nprobe=st.none() | sizes,
        ef_search=st.none() | sizes,
    ),
    made(rb.ChromaIndex, metric=words),
)
engines = st.one_of(
    made(
        rb.BM25S,
        method=st.sampled_from(["lucene", "robertson", "bm25+", "bm25l"]),
        k1=floats,
        b=st.floats(0, 1),
        delta=floats,
        stemmer=st.sampled_from([None, "english", "german"]),
        stopwords=st.sampled_from([None, "en", ("en",), ("en", "de"), "None", ()]),
    ),
    made(
        rb.FTS5,
        match=st.sampled_from(["or", "and", "phrase", "near", "prefix"]),
        near=sizes,
        weights=st.tuples(floats, floats),
        tokenize=st.sampled_from(["porter unicode61", "unicode61", "trigram"]),
    ),
)
embedders = st.one_of(
    made(rb.LSAEmbedder, dim=sizes, seed=sizes),
    made(
        rb.SentenceTransformerEmbedder,
        model=st.sampled_from(["all-MiniLM-L6-v2", "paraphrase-MiniLM-L6-v2", "BAAI/bge-small-en-v1.5"]),
        dim=st.none() | sizes,
        normalize=st.booleans(),
        prompts=st.tuples(texts, texts),
    ),
    made(
        rb.OpenAIEmbedder,
        model=st.sampled_from(["text-embedding-3-small", "text-embedding-3-large"]),
        dim=st.none() | sizes,
    ),
)
expansions = st.one_of(
    made(rb.Neighbours, before=st.integers(0, 5), after=st.integers(0, 5)),
    made(rb.SentenceWindow, sentences=st.integers(0, 9), language=st.sampled_from(["en", "de"])),
    made(rb.ParentSection, levels=st.integers(1, 4)),
)
boosts = st.builds(
    lambda n, v, by, how: rb.Boosts([rb.Boost({n: v}, by)], how),
    st.sampled_from(["asset", "status"]),
    st.sampled_from(["in query", "active", 1, "1"]),
    floats,
    st.sampled_from(["add", "multiply"]),
)
rewriters = st.one_of(
    st.builds(
        lambda m, n, keep, k: rb.MultiQuery(rb.Chat(m), n=n, keep=keep, rrf_k=k),
        st.sampled_from(["a", "b"]),
        st.integers(1, 5),
        st.booleans(),
        sizes,
    ),
    st.builds(
        lambda m, keep, p: rb.HyDE(rb.Chat(m), keep=keep, prompt=p),
        st.sampled_from(["a", "b"]),
        st.booleans(),
        texts,
    ),
)
rerankers = made(
    rb.CrossEncoderReranker,
    model=st.sampled_from(["cross-encoder/ms-marco-MiniLM-L6-v2", "other"]),
    depth=sizes,
    max_tokens=st.none() | sizes,
)
dense = st.builds(rb.Dense, embedders, indexes, st.sampled_from([None, "title", "section"]))
lexical = st.builds(rb.Lexical, engines)
retrievers = st.one_of(
    dense,
    lexical,
    st.builds(lambda a, b, f, d: rb.Hybrid(a, b, fuse=f, depth=d), dense, lexical, fusions, sizes),
)
FAMILIES = {
    "chunkers": chunkers,
    "fusions": fusions,
    "indexes": indexes,
    "engines": engines,
    "embedders": embedders,
    "expansions": expansions,
    "boosts": boosts,
    "rewriters": rewriters,
    "rerankers": rerankers,
    "dense": dense,
    "retrievers": retrievers,
    "cutters": made(
        Cutter, stemmer=st.sampled_from([None, "english"]), stopwords=st.sampled_from([None, "en"])
    ),
    "mmr": made(rb.MMR, lambda_=st.floats(0, 1)),
}


# They ask a server or a model when they are made or compared, or are drawn inside another.
ELSEWHERE = {
    "PgVectorIndex",
    "PgFullText",
    "QdrantIndex",
    "GeminiEmbedder",
    "LiteLLMEmbedder",
    "FastEmbedEmbedder",
    "WithMetadata",
    "KamradtChunker",
    "SeeAlso",
    "Claims",  # of a chunker, for its certificate
    "EmbeddingCache",  # a place, not a part of a system
}
NO_PARTS = {"Claims", "EmbeddingCache", "Param"}  # of these rooms, but no part of a system


@pytest.mark.parametrize("family", FAMILIES)
def test_labels_are_equal_where_components_are(family):
    @ANY
    @given(FAMILIES[family], FAMILIES[family])
    def law(a, b):
        assert (label(a) == label(b)) == (a == b), (label(a), a, b)

    law()


@pytest.mark.parametrize("family", FAMILIES)
def test_one_changed_field_changes_the_label(family):
    "Two settings drawn at random rarely come close: here one differs from the other in a single field."

    @ANY
    @given(FAMILIES[family], FAMILIES[family], st.data())
    def law(a, b, data):
        if type(a) is not type(b) or not type(a).__dataclass_params__.init:
            return
        name = data.draw(st.sampled_from([f.name for f in dataclasses.fields(a)]))
        try:
            c = dataclasses.replace(a, **{name: getattr(b, name)})
        except rb.RagbenchError:
            return
        assert (label(a) == label(c)) == (a == c), (label(a), label(c), a, c)

    law()


@ANY
@given(
    st.lists(
        st.tuples(
            chunkers,
            retrievers,
            st.none() | expansions,
            st.none() | boosts,
            st.none() | rerankers,
            st.none() | floats,
            st.integers(100, 300),
        ),
        min_size=2,
        max_size=5,
    )
)
def test_systems_that_differ_have_distinct_names(drawn):
    systems = []
    for chunk, retrieve, expand, boost, rerank, low, candidates in drawn:
        try:
            systems.append(
                System(
                    chunk,
                    retrieve,
                    expand=expand,
                    boosts=boost,
                    rerank=rerank,
                    min_score=low,
                    depth=candidates,
                )
            )
        except rb.RagbenchError:
            pass
    if not systems:
        return
    systems = grid(*systems)
    names = names_of(systems)
    assert len(set(names)) == len(systems)
    # told apart by what they are, not by a number behind the name (a digest of long text stands inside it)
    assert not any(re.search(r" #\d$", n) for n in names), names
    assert names_of(systems[::-1]) == names[::-1]  # whatever their order


def test_the_cases_that_were_ambiguous():
    bm25 = [rb.BM25S(k1=0.9), rb.BM25S(b=0.9), rb.BM25S(delta=0.9)]
    assert labels(bm25) == ["BM25S(k1=0.9)", "BM25S(b=0.9)", "BM25S(delta=0.9)"]
    assert labels([rb.Neighbours(1, 0), rb.Neighbours(0, 1)]) == [
        "Neighbours(after=0)",
        "Neighbours(before=0)",
    ]
    assert labels([rb.SectionChunker(200), rb.SectionChunker(1200, min_size=200)]) == [
        "Section(100–200)",
        "Section(200–1200)",
    ]
    assert labels([rb.FaissHNSW(ef_search=16), rb.FaissHNSW(m=16)]) == ["HNSW(ef_search=16)", "HNSW(m=16)"]


@given(
    st.lists(
        texts
        | floats
        | st.none()
        | st.booleans()
        | st.integers()
        | st.tuples(texts, texts)
        | st.tuples(texts),
        min_size=2,
        max_size=2,
    )
)
def test_values_that_differ_look_different(pair):
    a, b = pair
    if type(a) is not type(b) and isinstance(a, bool) | isinstance(b, bool):
        return  # True is 1
    assert (shown(a) == shown(b)) == (a == b)


def test_two_functions_of_one_name_are_told_apart():
    space = [{"__name__": "__main__"}, {"__name__": "__main__"}]
    for i, s in enumerate(space):
        exec(f"def split(text): return [text[:{i + 3}], text[{i + 3}:]]", s)
    chunkers = [rb.from_function(s["split"]) for s in space]
    names = names_of([System(c, rb.Lexical()) for c in chunkers])
    assert len(set(names)) == 2 and all("split" in n for n in names)


def test_a_class_of_ones_own_shows_its_settings():
    class Mine:
        def __init__(self, size, mode="a"):
            self.size, self.mode, self._cache = size, mode, {}

    assert label(Mine(5)) == "Mine(size=5, mode=a)" and label(Mine(5)) != label(Mine(6))


def test_one_label_everywhere(tmp_path):
    corpus = rb.Corpus([rb.Document("d", "Close the valve.\n\nOpen the drain. " * 20)])
    gold = rb.Gold.from_spans(
        [{"query_id": "q", "query": "drain", "evidence": [{"doc_id": "d", "start": 18, "end": 33}]}]
    )
    chunkers = [rb.TokenChunker(16, 4), rb.SectionChunker(20)]
    compared = rb.compare_chunkers(corpus, gold, chunkers, budgets=(50,), min_size=5, max_size=40)
    names = names_of([System(c, rb.Lexical()) for c in chunkers])
    assert [n.split(" · ")[0] for n in names] == list(compared.names[:2]) == labels(chunkers)
    results = rb.bench(
        corpus,
        gold,
        [System(c, rb.Dense(rb.LSAEmbedder(2))) for c in chunkers],
        store=tmp_path,
        progress=False,
    )
    assert [look.chunk for look in looks(results).values()] == labels(chunkers) and results.names == [
        f"{n} · LSA(dim=2)" for n in labels(chunkers)
    ]
    assert {look.embedder for look in looks(results).values()} == {"LSA(dim=2)"}
    assert [
        short_code(repr(c)) for c in [*chunkers, rb.WholeDocument(), rb.ByType({"pdf": rb.SectionChunker(9)})]
    ] == labels([*chunkers, rb.WholeDocument(), rb.ByType({"pdf": rb.SectionChunker(9)})])
    twice = rb.compare_chunkers(
        corpus,
        gold,
        [rb.from_function(str.splitlines), rb.from_function(lambda t: t.splitlines())],
        budgets=(50,),
        min_size=5,
        max_size=40,
    )
    assert len(set(twice.names)) == 3


def test_every_public_component_is_in_the_law():
    rooms = tuple(f"ragbench.{r}." for r in ("chunk", "embed", "index", "lexical", "fusion", "steps"))
    public = {
        n
        for n in rb.__all__
        if isinstance(c := getattr(rb, n), type)
        and c.__module__.startswith(rooms)
        and dataclasses.is_dataclass(c)
    }
    drawn = Path(__file__).read_text(encoding="utf-8")
    assert not {n for n in public - ELSEWHERE - NO_PARTS if f"rb.{n}" not in drawn}
