"""What a component of one's own hands back is looked at, by `search` and by `bench`, before it counts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import ragbench as rb
from ragbench.base.errors import RagbenchError
from ragbench.core.chunks import chunk_corpus
from ragbench.core.vectors import Space, Vectors
from ragbench.fusion.fusion import ArrayFusion
from ragbench.steps.rewriting import Wording

TEXTS = [
    "the pump stops when the valve is shut",
    "a permit is needed before work",
    "the valve leaks at the flange",
    "check the oil of the pump",
    "the alarm rings",
    "close the valve and call the shift",
]
CORPUS = rb.Corpus([rb.Document(f"d{i}", t) for i, t in enumerate(TEXTS)])
GOLD = rb.Gold.from_qrels(
    {"q1": "which valve leaks", "q2": "oil of the pump"}, {"q1": {"d2": 1}, "q2": {"d3": 1}}, CORPUS
)
CUT = rb.WholeDocument()
QUESTIONS = ["which valve leaks", "oil of the pump"]


@dataclass(frozen=True)
class Does:
    """Calls back into what a test wrote, as whatever component it is asked to be."""

    what: str
    f: Any = None

    def rerank(self, query, rows, texts):
        return self.f(rows)

    def fuse(self, runs, kinds):
        return self.f(runs)

    def apply(self, texts, scores, rows, chunks):
        return self.f(scores, rows)

    def select(self, query, candidates, k, relevance=None):
        return self.f(len(candidates))

    def span(self, chunks, row):
        return self.f(chunks, row)

    def rewrite(self, question):
        return self.f(question)


LEX = rb.Lexical(rb.FTS5(match="or"))
DENSE = rb.Dense(rb.LSAEmbedder(3))


def refused(system: rb.System, tmp_path, *said: str) -> None:
    """Refused by `search` and by `bench` alike, and by an error that says all of it."""
    for call in (
        lambda: system.build(CORPUS, store=False).search(QUESTIONS, 2),
        lambda: rb.bench(
            CORPUS, GOLD, system, metrics=["recall@2"], store=tmp_path / "s", rounds=1, progress=False
        ),
    ):
        with pytest.raises(RagbenchError) as e:
            call()
        for words in said:
            assert words in str(e.value), str(e.value)


def down(n: int) -> np.ndarray:
    return np.arange(n, 0, -1.0)


RERANKS: dict[str, tuple[Callable, str]] = {
    "rows never retrieved": (
        lambda r: (np.array([2.0, 1.0]), np.array([4, 1])),
        "row 4 was not handed to rerank",
    ),
    "positions": (lambda r: (down(len(r)), np.arange(len(r))), "was not handed to rerank"),
    "a list of scores": (lambda r: [0.5] * len(r), "it gave a list of"),
    "an array": (lambda r: down(len(r)), "it gave an array of shape"),
    "nothing": (lambda r: None, "it gave None"),
    "a row out of range": (lambda r: (np.array([1.0]), np.array([999])), "row 999 was not handed to rerank"),
    "a negative row": (lambda r: (np.array([1.0]), np.array([-3])), "row -3 is below 0"),
    "unsorted": (lambda r: (down(len(r))[::-1], r), "its scores rise"),
    "swapped": (lambda r: (r, 0.5 / down(len(r))), "is no whole number"),
    "no numbers": (lambda r: (np.full(len(r), np.nan), r), "is not a number"),
    "a row twice": (lambda r: (np.ones(2), np.array([r[0], r[0]])), "comes twice"),
    "other lengths": (lambda r: (np.ones(len(r) + 1), r), "scores of shape"),
    "texts": (lambda r: (["a"] * len(r), r), "its scores are"),
    "a column": (lambda r: (down(len(r))[:, None], np.asarray(r)[:, None]), "for one question"),
    "pairs": (lambda r: [(1.0, int(x)) for x in r] + [(0.0, 0)], "it gave a list of"),
}


@pytest.mark.parametrize("case", RERANKS)
def test_a_reranker(case, tmp_path):
    f, said = RERANKS[case]
    refused(
        rb.System(CUT, LEX, rerank=Does(case, f), depth=3),
        tmp_path,
        "the reranker Does(",
        said,
        "rerank(query, rows, texts) returns scores and rows, two arrays of one length, best first",
    )


def test_a_reranker_without_a_repr_is_named_by_its_class():
    class Mine:
        def rerank(self, query, rows, texts):
            return np.array([1.0]), np.array([99])

    with pytest.raises(
        RagbenchError,
        match=r"^the reranker Mine\(…\): row 99 was not handed to rerank\. Return rows that it was given",
    ):
        rb.System(CUT, LEX, rerank=Mine()).build(CORPUS, store=False).search(QUESTIONS)


def test_what_a_good_reranker_gives_is_taken():
    built = rb.System(CUT, LEX, depth=3).build(CORPUS, store=False)
    rows = built.search(QUESTIONS, 3).rows
    for f in (
        lambda r: (down(len(r)), r[::-1]),
        lambda r: (list(down(len(r))), [int(x) for x in r[::-1]]),
        lambda r: [np.ones(len(r)), r[::-1].astype(float)],
    ):
        again = (
            rb.System(CUT, LEX, rerank=Does("reversed", f), depth=3)
            .build(CORPUS, store=False)
            .search(QUESTIONS, 3)
            .rows
        )
        for i in range(2):
            assert again[i][again[i] >= 0].tolist() == rows[i][rows[i] >= 0].tolist()[::-1]
    assert (
        rb.System(CUT, LEX, rerank=Does("none", lambda r: ([], [])), depth=3)
        .build(CORPUS, store=False)
        .search(QUESTIONS, 3)
        .rows
        == rows
    ).all()


FUSES = {
    "rows of no run": (lambda runs: (np.ones(1), np.array([77])), "row 77 was not handed to fuse"),
    "a row twice": (lambda runs: (np.ones(2), np.repeat(runs[0][1][:1], 2)), "comes twice"),
    "other lengths": (lambda runs: (np.ones(3), runs[0][1][:1]), "scores of shape"),
    "no numbers": (lambda runs: (np.full(len(runs[0][1]), np.nan), runs[0][1]), "is not a number"),
    "nothing": (lambda runs: None, "it gave None"),
    "a dictionary": (lambda runs: {1: 0.5}, "it gave a dict"),
}


@pytest.mark.parametrize("case", FUSES)
def test_a_fusion(case, tmp_path):
    f, said = FUSES[case]
    refused(
        rb.System(CUT, rb.Hybrid(DENSE, LEX, fuse=Does(case, f), depth=3)),
        tmp_path,
        "the fusion Does(",
        said,
        "fuse(runs, kinds) returns scores and rows",
    )


@dataclass(frozen=True)
class Batch:
    rows: int = 0
    score: float = 1.0

    def fuse_batch(self, scores, rows, kinds):
        return np.full(rows[0].shape, self.score), rows[0] + self.rows


@dataclass(frozen=True)
class Table(ArrayFusion):
    wide: int = 0
    score: float = np.nan

    def fused(self, table, kinds):
        return np.full((len(table.rows), table.rows.shape[1] + self.wide), self.score)


@pytest.mark.parametrize(
    ("fuse", "said"),
    [
        (Batch(rows=100), "was not handed to fuse_batch"),
        (Batch(score=np.nan), "is not a number"),
        (Table(), "is not a number"),
        (Table(1, 1.0), "for candidates of shape"),
    ],
)
def test_a_fusion_of_a_batch(fuse, said, tmp_path):
    if isinstance(fuse, Batch):
        refused(rb.System(CUT, rb.Hybrid(DENSE, LEX, fuse=fuse, depth=3)), tmp_path, "the fusion", said)
    else:
        with pytest.raises(RagbenchError, match=said):
            rb.Hybrid(DENSE, LEX, fuse=fuse, depth=3)  # tried when it is put there


@dataclass(frozen=True)
class Index:
    what: str
    f: Any = None

    def build(self, vectors):
        return Searcher(self.what, self.f, len(vectors))


@dataclass(frozen=True)
class Searcher:
    what: str
    f: Any
    n: int
    nbytes = 0

    def search(self, queries, k):
        return self.f(len(queries), k, self.n)


def full(q: int, k: int, rows: Any) -> tuple[np.ndarray, np.ndarray]:
    return np.tile(down(k), (q, 1)), np.tile(np.resize(rows, k), (q, 1))


SEARCHES = {
    "a row out of range": (
        lambda q, k, n: full(q, k, np.arange(1, k + 1)),
        "row 6 is not among the 6 rows there are",
    ),
    "a row below": (lambda q, k, n: full(q, k, np.arange(k) - 2), "row -2 is below 0"),
    "a row twice": (lambda q, k, n: full(q, k, np.zeros(1, int)), "row 0 comes twice"),
    "one line": (lambda q, k, n: (down(k), np.arange(k)), "of shape (6,) for"),
    "too few": (lambda q, k, n: full(q, 2, np.arange(2)), "it gave 2 rows a question, and 6 were asked for"),
    "one question": (lambda q, k, n: full(q + 1, k, np.arange(k)), "question"),
    "scores rise": (
        lambda q, k, n: (full(q, k, np.arange(k))[0][:, ::-1], full(q, k, np.arange(k))[1]),
        "its scores rise",
    ),
    "no numbers": (lambda q, k, n: (np.full((q, k), np.nan), full(q, k, np.arange(k))[1]), "is not a number"),
    "fractions": (
        lambda q, k, n: (full(q, k, np.arange(k))[0], np.full((q, k), 0.5)),
        "row 0.5 is no whole number",
    ),
    "swapped": (lambda q, k, n: full(q, k, np.arange(k))[::-1], "row"),
    "nothing": (lambda q, k, n: None, "it gave None"),
    "three": (lambda q, k, n: (1, 2, 3), "it gave a tuple of 3"),
}


@pytest.mark.parametrize("case", SEARCHES)
def test_an_index(case, tmp_path):
    f, said = SEARCHES[case]
    refused(
        rb.System(CUT, rb.Dense(rb.LSAEmbedder(3), Index(case, f))),
        tmp_path,
        "the index Searcher(",
        said,
        "search(queries, k) returns scores and rows",
    )


def test_an_index_of_whole_numbers_is_taken():
    def good(q, k, n):
        return tuple(x.astype(int) for x in full(q, k, np.arange(k)))

    built = rb.System(CUT, rb.Dense(rb.LSAEmbedder(3), Index("good", good))).build(CORPUS, store=False)
    assert built.search(QUESTIONS, 3).rows.tolist() == [[0, 1, 2]] * 2


@dataclass(frozen=True)
class Retriever:
    what: str
    f: Any = None
    kind = "lexical"
    nbytes = 0
    chunks = None

    def build(self, chunks, context):
        return self

    def rank(self, texts, k, context=None):
        return self.f(len(texts), min(k, 6), 6)


@pytest.mark.parametrize(
    "case", [c for c in SEARCHES if c not in ("too few", "a row out of range", "one line")]
)
def test_a_retriever(case, tmp_path):
    f, said = SEARCHES[case]
    for system in (
        rb.System(CUT, Retriever(case, f)),
        rb.System(CUT, rb.Hybrid(DENSE, Retriever(case, f), depth=6)),
    ):
        refused(system, tmp_path, "the retriever Retriever(", said, "rank(texts, k) returns scores and rows")


def test_a_retriever_whose_rows_are_not_there(tmp_path):
    f, said = lambda q, k, n: full(q, k, np.arange(n, n + k)), "row 6 is not among the 6 rows there are"
    refused(rb.System(CUT, Retriever("out", f)), tmp_path, "the retriever Retriever(", said)
    refused(
        rb.System(CUT, rb.Hybrid(DENSE, Retriever("out", f), depth=6)),
        tmp_path,
        "the retriever Retriever(",
        said,
    )


BOOSTS = {
    "other rows": (lambda s, r: (s, np.where(r >= 0, r + 50, r)), "was not handed to apply"),
    "rising": (lambda s, r: (np.where(r >= 0, -s, s), r), "its scores rise"),
    "no numbers": (lambda s, r: (s * np.nan, r), "is not a number"),
    "scores alone": (lambda s, r: s, "it gave an array"),
    "too few": (lambda s, r: (s[:0], r[:0]), "it gave scores and rows of shape (0, "),
}


@pytest.mark.parametrize("case", BOOSTS)
def test_boosts(case, tmp_path):
    f, said = BOOSTS[case]
    refused(
        rb.System(CUT, DENSE, boosts=Does(case, f), depth=4),
        tmp_path,
        "the boosts Does(",
        said,
        "apply(texts, scores, rows, chunks) returns",
    )


SELECTS = {
    "beyond": (lambda n: (np.ones(1), np.array([n])), "row 4 was not handed to select"),
    "twice": (lambda n: (np.ones(2), np.array([0, 0])), "comes twice"),
    "below": (lambda n: (np.ones(1), np.array([-1])), "row -1 is below 0"),
    "nothing": (lambda n: None, "it gave None"),
    "no numbers": (lambda n: (np.full(n, np.nan), np.arange(n)), "is not a number"),
}


@pytest.mark.parametrize("case", SELECTS)
def test_a_selection(case, tmp_path):
    f, said = SELECTS[case]
    refused(
        rb.System(CUT, DENSE, mmr=Does(case, f), depth=4),
        tmp_path,
        "the selection Does(",
        said,
        "returns values and positions of candidates",
    )


SPANS = {
    "beyond the end": (lambda c, r: (0, 10_000), "span gave [0, 10000) of a text of"),
    "before the beginning": (lambda c, r: (-4, 5), "span gave [-4, 5)"),
    "empty": (lambda c, r: (3, 3), "span gave [3, 3)"),
    "a number": (lambda c, r: 3, "span gave an int"),
    "a text": (lambda c, r: c.text(r), "span gave a str"),
    "fractions": (lambda c, r: (0.5, 3.2), "span gave a tuple of 2: (0.5, 3.2)"),
}


@pytest.mark.parametrize("case", SPANS)
def test_an_expansion(case, tmp_path):
    f, said = SPANS[case]
    refused(
        rb.System(CUT, LEX, expand=Does(case, f)),
        tmp_path,
        "the expansion Does(",
        said,
        "span(chunks, row) returns (start, end)",
    )


@pytest.mark.parametrize(
    ("got", "said"),
    [
        ([(99, 0, 3)], "related gave document 99"),
        ([(0, 0, 9999)], "related gave [0, 9999)"),
        ("d1", "related gave a str"),
        ([(0, 1)], "related gave a list"),
    ],
)
def test_what_is_related(got, said, tmp_path):
    @dataclass(frozen=True)
    class Related:
        got: Any

        def span(self, chunks, row):
            return tuple(chunks.spans[row].tolist())

        def related(self, chunks, row):
            return self.got

    refused(
        rb.System(CUT, LEX, expand=Related(str(got)) if isinstance(got, str) else Related(tuple(got))),
        tmp_path,
        "the expansion",
        said.replace("a list", "a tuple"),
        "related(chunks, row) returns",
    )


REWRITES = {
    "a text": (lambda q: q, "it gave a str"),
    "a list of texts": (lambda q: [q, "ab"], "a query is a str"),
    "one query": (lambda q: Wording(q), "it gave a Wording of 2"),
    "nothing": (lambda q: None, "it gave None"),
    "none": (lambda q: [], "it made no query"),
    "empty": (lambda q: [Wording(" ")], "the text of a query is ' '"),
    "a role": (lambda q: [Wording(q, "question")], "the role of a query is 'question'"),
    "a number": (lambda q: [Wording(3)], "a query is a Wording"),
}


@pytest.mark.parametrize("case", REWRITES)
def test_a_rewriter(case, tmp_path):
    f, said = REWRITES[case]
    refused(rb.System(CUT, LEX, query=Does(case, f)), tmp_path, "the rewriter Does(", said)


UNEVEN = {
    "number": lambda q: [Wording(q)] * (1 + (q == QUESTIONS[0])),
    "role": lambda q: [Wording(q), Wording(q, "passage" if q == QUESTIONS[0] else "query")],
}


@pytest.mark.parametrize("case", UNEVEN)
def test_a_rewriter_that_does_not_treat_all_questions_alike(case, tmp_path):
    system = rb.System(CUT, LEX, query=Does(case, UNEVEN[case]))
    said = "another number of queries of some questions than of others"
    refused(system, tmp_path, "Does(", said)
    assert len(system.build(CORPUS, store=False).search(QUESTIONS[0], 2))


@dataclass(frozen=True)
class Own:
    got: Any
    name: str = "mine"

    def __call__(self, gold, ranking):
        return self.got


@pytest.mark.parametrize(
    ("got", "said"),
    [
        (None, "it gave None"),
        ("good", "it gave a str: 'good'"),
        (0.5, "it gave the number 0.5"),
        ([0.5], "it gave an array of shape (1,)"),
        ([0.5, float("nan")], "it gave nan"),
        ({"q1": 1.0}, "it gave a dict"),
        (["0.5", "0.7"], "it gave a list of 2"),
        ([1j, 2j], "it gave a list of 2"),
        ([[1.0], [1.0, 2.0]], "it gave a list of 2"),
    ],
)
def test_a_metric(got, said, tmp_path):
    with pytest.raises(RagbenchError) as e:
        rb.bench(
            CORPUS,
            GOLD,
            rb.System(CUT, LEX),
            metrics=["recall@2", _metric(got)],
            store=tmp_path / "s",
            rounds=1,
            progress=False,
        )
    assert (
        "the metric 'mine'" in str(e.value)
        and said in str(e.value)
        and "Return one finite number for each of the 2 answerable queries" in str(e.value)
    )


def _metric(got: Any) -> Any:
    def f(gold, ranking):
        return got

    f.name = "mine"
    return f


def test_a_metric_without_a_name_is_told_how_one_looks(tmp_path):
    def f(gold, ranking):
        return np.ones(2)

    with pytest.raises(
        RagbenchError,
        match=r"has no name\. It has a `name` and is called as metric\(gold, ranking\)",
    ):
        rb.bench(CORPUS, GOLD, rb.System(CUT, LEX), metrics=[f], store=tmp_path / "s")
    with pytest.raises(RagbenchError, match=r"class Own.*Own\(…\)"):
        rb.bench(CORPUS, GOLD, rb.System(CUT, LEX), metrics=[Own], store=tmp_path / "s")
    with pytest.raises(RagbenchError, match="or give one of your own"):
        rb.bench(CORPUS, GOLD, rb.System(CUT, LEX), metrics=[3], store=tmp_path / "s")


def words(text):
    return text.split()


CHUNKERS = {
    "a function of a text": (words, "it cannot cut a Corpus", "from_function(words)"),
    "a lambda of a text": (lambda text: text.split(" "), "it cannot cut a Corpus", "from_function(f)"),
    "strings": (lambda corpus: ["a", "b"], "the chunker gave a list of 2", "from_function(f)"),
    "nothing": (lambda corpus: None, "the chunker gave None", "A chunker gives Chunks"),
    "strings a document": (
        lambda corpus: chunk_corpus(corpus, lambda d: d.text.split()),
        "the spans of",
        "from_function",
    ),
    "outside": (
        lambda corpus: chunk_corpus(corpus, lambda d: [(0, 9999)]),
        "of a text of",
        "inside its document",
    ),
    "out of order": (
        lambda corpus: chunk_corpus(corpus, lambda d: [(5, 9), (0, 4)]),
        "not in corpus order",
        "first by document, then by start",
    ),
    "fractions": (
        lambda corpus: chunk_corpus(corpus, lambda d: [(0.0, 4.5)]),
        "the spans of",
        "whole numbers",
    ),
    "three columns": (
        lambda corpus: chunk_corpus(corpus, lambda d: [(0, 1, 2), (2, 3, 4)]),
        "the spans of",
        "(start, end)",
    ),
    "another corpus": (
        lambda corpus: CUT(rb.Corpus([rb.Document("x", "other")])),
        "its chunks are of another corpus",
        "of the corpus that it was given",
    ),
}


@pytest.mark.parametrize("case", CHUNKERS)
def test_a_chunker(case, tmp_path):
    f, *said = CHUNKERS[case]
    refused(rb.System(f, LEX), tmp_path, *said)


class Rnd:
    def encode(self, texts):
        return np.ones((len(texts), 3))


def test_what_lacks_is_named():
    with pytest.raises(RagbenchError, match=r"It lacks embed_passages\(texts\) and embed_queries\(texts\)"):
        rb.Dense(Rnd())
    with pytest.raises(RagbenchError, match="This is a function") as e:
        rb.Dense(lambda texts: np.ones((len(texts), 3)))
    assert "This is a chunker" not in str(e.value)

    class Half:
        def embed_passages(self, texts):
            return texts

        def embed_queries(self):
            return 1

    with pytest.raises(RagbenchError, match=r"It lacks embed_queries\(texts\)") as e:
        rb.Dense(Half())
    assert "embed_passages(texts)" not in str(e.value).split("It lacks")[1].split(".")[0]
    with pytest.raises(RagbenchError, match=r"It lacks build\(vectors\)"):
        rb.Dense(rb.LSAEmbedder(3), Rnd())
    with pytest.raises(RagbenchError, match=r"It lacks fuse\(runs, kinds\)"):
        rb.Hybrid(DENSE, LEX, fuse=Rnd())
    with pytest.raises(RagbenchError, match=r"It lacks rerank\(query, rows, texts\)"):
        rb.System(CUT, LEX, rerank=Rnd())


class Embeds:
    max_tokens = None
    space = Space("mine", "1", 3, normalized=False)

    def __init__(self, f):
        self.f = f

    def embed_passages(self, texts):
        return Vectors(np.ones((len(texts), 3)), self.space)

    def embed_queries(self, texts):
        return self.f(texts)


@pytest.mark.parametrize(
    ("f", "said"),
    [
        (lambda t: None, "None"),
        (lambda t: [["a"] * 3] * len(t), "texts"),
        (lambda t: np.ones((1 + len(t), 3)), "vectors"),
        (lambda t: np.full((len(t), 3), np.nan), "finite"),
        (lambda t: np.ones((len(t), 2)), "dimensions"),
    ],
)
def test_an_embedder(f, said, tmp_path):
    refused(rb.System(CUT, rb.Dense(Embeds(f))), tmp_path, "the embedder Embeds(…)")
