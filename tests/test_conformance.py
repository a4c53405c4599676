"""Each conformance suite passes what is intact and catches each thing that can be wrong, by its sentence."""

import dataclasses
import functools
import itertools
import subprocess
import sys
import textwrap
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ragbench.base.errors import RagbenchError
from ragbench.core.chunks import Chunks, chunk_corpus
from ragbench.core.documents import Corpus, Document, Page, Refusal
from ragbench.core.runs import rank
from ragbench.core.vectors import Space, Vectors, as_vectors
from ragbench.ingest.loader import Refused
from ragbench.store.fingerprint import hash64
from ragbench.testing import (
    ConformanceError,
    check_chunker,
    check_embedder,
    check_engine,
    check_fusion,
    check_index,
    check_loader,
    check_metric,
    check_reranker,
    check_retriever,
)

COUNTER = itertools.count()


def caught(report, words):
    "The report has a fault with these words, says what to do, and raises it on demand."
    faults = [p for p in report.problems if words in p.what]
    assert faults, f"{words!r} is not among:\n{report}"
    assert not report.ok
    assert all(p.fix and p.what[0] != " " for p in report.problems)
    with pytest.raises(ConformanceError, match="run check_"):
        report.raise_if_wrong()
    assert faults[0].what[:30] in repr(report)
    assert "<table>" in report._repr_html_()


def variant(base, name, **members):
    "A frozen component like `base` with other members, under a name of its own."
    return dataclass(frozen=True)(type(name, (base,), {"__module__": __name__, **members}))


# --- chunkers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lines:
    "An intact chunker: a chunk a line."

    def spans(self, doc):
        end, out = 0, []
        for line in doc.text.splitlines(keepends=True):
            out.append((end, end + len(line)))
            end += len(line)
        return out

    def __call__(self, source):
        return chunk_corpus(source, self.spans, repr(self))


class OutOfText(Lines):
    def spans(self, doc):
        return [(s, e + 1) for s, e in super().spans(doc)]


class Unordered(Lines):
    def spans(self, doc):
        return super().spans(doc)[::-1]


class Empty(Lines):
    def spans(self, doc):
        return [*super().spans(doc), (len(doc.text), len(doc.text))]


class Losing(Lines):
    def spans(self, doc):
        return [s for s in super().spans(doc) if "valve" not in doc.text[slice(*s)]] or [(0, len(doc.text))]


class Texts(Lines):
    def __call__(self, source):
        return [d.text for d in ([source] if isinstance(source, Document) else source)]


class OfAnother(Lines):
    def __call__(self, source):
        return super().__call__(Corpus([Document("mine", "another text")]))


class ById(Lines):
    def spans(self, doc):
        half = len(doc.text) // 2
        return [(0, half), (half, len(doc.text))] if doc.id == "a" else super().spans(doc)


class ByCount(Lines):
    def spans(self, doc):
        at = next(COUNTER) % max(1, len(doc.text))
        return [(s, e) for s, e in ((0, at), (at, len(doc.text))) if s < e]


class Crashing(Lines):
    def spans(self, doc):
        doc.text.encode("ascii")
        return super().spans(doc)


@dataclass(frozen=True)
class TooLarge(Lines):
    size: int = 5
    tokenizer: str = "characters"


@dataclass(frozen=True)
class NoUnit(Lines):
    size: int = 5


@dataclass(frozen=True)
class Overlapping(Lines):
    overlap: int = 2
    tokenizer: str = "characters"

    def spans(self, doc):
        return [(max(0, s - 10), e) for s, e in super().spans(doc)]


CHUNKERS = {
    OutOfText: "a text of",
    Unordered: "chunks are not in corpus order",
    Empty: "A chunk is a non-empty span",
    Losing: "text is lost",
    Texts: "it gave a list of",
    OfAnother: "its chunks are of another corpus",
    ById: "its chunks change when documents are renamed",
    ByCount: "cut in another way",
    Crashing: "it raises on the text",
    TooLarge: "a chunk is larger than promised",
    NoUnit: "in a unit that it does not name",
    Overlapping: "chunks share more than promised",
}


def test_an_intact_chunker_passes():
    assert check_chunker(Lines(), large=50_000, strict=True).ok


@pytest.mark.parametrize("broken", CHUNKERS, ids=lambda c: c.__name__)
def test_a_broken_chunker_is_caught(broken):
    report = check_chunker(broken(), large=0, elsewhere=False)
    words = CHUNKERS[broken]
    if any(
        words in p.fix for p in report.problems
    ):  # what Chunks itself refuses says what to do in its own words
        words = next(p.what for p in report.problems if words in p.fix)
    caught(report, words)


# --- embedders ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Letters:
    "An intact embedder: how often each letter stands in a text."

    letters: str = "abcdefghijklmnop"
    max_tokens = None

    @property
    def space(self):
        return Space("letters", self.letters, len(self.letters))

    def array(self, texts):
        counts = [[t.count(x) + 1e-6 * (i + 1) for i, x in enumerate(self.letters)] for t in texts]
        a = np.array(counts, dtype=np.float64).reshape(-1, len(self.letters))
        return a / np.linalg.norm(a, axis=1, keepdims=True)

    def embed_passages(self, texts):
        return Vectors(self.array(getattr(texts, "texts", texts)), self.space)

    def embed_queries(self, texts):
        return self.embed_passages(texts)


embedder = functools.partial(variant, Letters)


def of(f):
    "embed_passages from a function of (self, array of the intact one, texts)."

    def embed_passages(self, texts):
        texts = getattr(texts, "texts", texts)
        return Vectors(f(self, self.array(texts), texts), self.space)

    return {"embed_passages": embed_passages}


def centred(self, a, texts):
    a = a - a.mean(axis=0) / 2
    return a / np.linalg.norm(a, axis=1, keepdims=True)


def noisy(self, a, texts):
    a = a + np.random.default_rng(next(COUNTER)).normal(size=a.shape) / 100
    return a / np.linalg.norm(a, axis=1, keepdims=True)


def by_length(self, a, texts):
    return a[np.argsort([len(t) for t in texts], kind="stable")]


def deduplicated(self, a, texts):
    return a[[i for i, t in enumerate(texts) if t not in texts[:i]]]


def without_blank(self, a, texts):
    return a[[bool(t.strip()) for t in texts]]


def popping(self, texts):
    a = self.array(getattr(texts, "texts", list(texts)))
    if isinstance(texts, list):
        texts.clear()
    return Vectors(a, self.space)


def of_lists_alone(self, texts):
    return Vectors(self.array([t.lower() for t in texts]), self.space)


def in_ascii(self, a, texts):
    for t in texts:
        t.encode("ascii")
    return a


def cached(self, a, texts):
    object.__setattr__(self, "letters", self.letters)
    self.__dict__.setdefault("seen", {}).update(dict.fromkeys(texts))
    return a


class Remembering:
    "A plain class, so that what it keeps is part of what it is."

    max_tokens = None
    space = Space("letters", "abc", 3)

    def __init__(self):
        self.kept = {}

    def embed_passages(self, texts):
        for t in (texts := getattr(texts, "texts", texts)):
            self.kept[t] = Letters("abc").array([t])[0]
        return Vectors(np.array([self.kept[t] for t in texts]).reshape(-1, 3), self.space)

    embed_queries = embed_passages


class Renamed(Remembering):
    def __init__(self):
        super().__init__()
        self.fingerprint = uuid.uuid4().hex


class Method(Remembering):
    def fingerprint(self):
        return "letters"


def asymmetric(self, texts):
    return self.embed_passages([f"ppp {t}" for t in texts])


EMBEDDERS = {
    "no methods": (lambda: object(), "it lacks embed_passages, embed_queries, space, max_tokens"),
    "an array": (
        embedder("A", embed_passages=Letters.array),
        "gave an array of shape (12, 16) of float64",
    ),
    "a row too few": (embedder("B", **of(lambda s, a, t: a[1:])), "gave 11 vectors for 12 texts"),
    "another width": (
        embedder("C", **of(lambda s, a, t: a[:, :4])),
        "rows have 4 dimensions, the space has 16",
    ),
    "not normalised": (
        embedder("D", **of(lambda s, a, t: a * 3)),
        "has length 3, but the space is normalised",
    ),
    "all the same": (embedder("E", **of(lambda s, a, t: a[:1].repeat(len(a), 0))), "one and the same vector"),
    "zero": (embedder("F", **of(lambda s, a, t: a * 0)), "all its vectors are zero"),
    "no model": (embedder("G", space=Space("", "", 16)), "its space has no model"),
    "its batch": (
        embedder("H", **of(centred)),
        "alone, 'Open the valve.' has another vector than in a batch",
    ),
    "chance": (embedder("I", **of(noisy)), "have other vectors in a second call"),
    "order": (embedder("J", **of(by_length)), "in another order"),
    "roles": (embedder("K", embed_queries=asymmetric), "has another vector than as a passage"),
    "prompts": (
        embedder("L", space=Space("letters", "", 16, prompts=("query: ", ""))),
        "both roles have the same vectors",
    ),
    "copies": (embedder("M", **of(deduplicated)), "gave 2 vectors"),
    "an empty text": (embedder("N", **of(without_blank)), "with an empty text in the middle"),
    "its input": (embedder("O", embed_passages=popping), "changed the list that it was given"),
    "chunks": (embedder("P", embed_passages=of_lists_alone), "of Chunks it raised"),
    "ascii": (embedder("Q", **of(in_ascii)), "emoji raises UnicodeEncodeError"),
    "a window": (embedder("R", max_tokens=0), "max_tokens is 0"),
    "use": (Remembering, "its fingerprint changed when it was used"),
    "a new name": (Renamed, "two instances made in the same way have different fingerprints"),
    "a method": (Method, "the `fingerprint` of a Method is a method"),
}


def test_an_intact_embedder_passes():
    assert check_embedder(Letters(), strict=True).ok


@pytest.mark.parametrize("broken", EMBEDDERS)
def test_a_broken_embedder_is_caught(broken):
    make, words = EMBEDDERS[broken]
    caught(check_embedder(make(), again=make, elsewhere=False), words)


def test_a_fingerprint_that_another_process_does_not_find_is_caught(tmp_path):
    """hash() of a text is another number in every process."""
    (tmp_path / "mine.py").write_text(
        textwrap.dedent("""
        from ragbench.core.vectors import Space, Vectors
        import numpy as np

        class Mine:
            max_tokens = None
            space = Space("mine", "", 2)
            fingerprint = str(hash("mine"))

            def embed_passages(self, texts):
                texts = getattr(texts, "texts", texts)
                a = np.array([[len(t) + 1, t.count("e") + 1] for t in texts], float).reshape(-1, 2)
                return Vectors(a / np.linalg.norm(a, axis=1, keepdims=True), self.space)

            embed_queries = embed_passages
        """)
    )
    code = "import mine, ragbench.testing as t; print(t.check_embedder(mine.Mine()))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    assert "another process finds another fingerprint" in done.stdout, done.stdout
    assert done.stdout.startswith("Mine(…): 1 problem\n")


# --- indexes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Searched:
    vectors: Vectors
    owner: object
    takes = ("where",)

    @property
    def nbytes(self):
        return self.vectors.array.nbytes

    def search(self, queries, k, where=None):
        return self.owner.search(self, queries, k, where)


@dataclass(frozen=True)
class Exact:
    "An intact index."

    def build(self, vectors):
        return Searched(as_vectors(vectors), self)

    def check(self, built, queries):
        built.vectors.space.check(as_vectors(queries).space)

    def scored(self, built, queries):
        return as_vectors(queries).array @ built.vectors.array.T

    def allowed(self, scores, where):
        return (
            scores if where is None else np.where(np.isin(np.arange(scores.shape[1]), where), scores, -np.inf)
        )

    def search(self, built, queries, k, where):
        self.check(built, queries)
        scores = self.allowed(self.scored(built, queries), where)
        rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return self.filled(np.take_along_axis(scores, rows, 1), rows, k)

    def filled(self, scores, rows, k):
        pad = ((0, 0), (0, max(0, k - rows.shape[1])))
        rows = np.pad(np.where(np.isneginf(scores), -1, rows), pad, constant_values=-1)
        return np.pad(scores, pad, constant_values=-np.inf).astype(np.float32), rows.astype(np.int64)


index = functools.partial(variant, Exact)


def distances(self, built, queries):
    return -Exact.scored(self, built, queries)


def rising(self, built, queries, k, where):
    scores, rows = Exact.search(self, built, queries, k, where)
    return -scores, rows


def swapped(self, built, queries, k, where):
    return Exact.search(self, built, queries, k, where)[::-1]


def doubled(self, scores, rows, k):
    rows = np.pad(rows, ((0, 0), (0, max(0, k - rows.shape[1]))), mode="edge")
    return np.pad(scores, ((0, 0), (0, k - scores.shape[1])), mode="edge"), rows


def zeros(self, scores, rows, k):
    scores, rows = Exact.filled(self, scores, rows, k)
    return np.where(rows < 0, 0, scores).astype(np.float32), rows


def by_position(self, built, queries):
    scores = Exact.scored(self, built, queries)
    return scores - np.arange(scores.shape[1]) * 1e-3


def of_its_batch(self, built, queries):
    scores = Exact.scored(self, built, queries)
    return scores - scores.mean()


def scaling(self, built, queries):
    array = as_vectors(queries).array
    array *= 2
    return array @ built.vectors.array.T


class Silent(Searched):
    takes = ()


class Keeping(Exact):
    "Keeps what it built in itself."

    def build(self, vectors):
        object.__setattr__(self, "kept", vectors)
        return Searched(vectors, self)

    def scored(self, built, queries):
        return as_vectors(queries).array @ self.kept.array.T


INDEXES = {
    "no build": (lambda: object(), "it has no build(vectors)"),
    "nothing to search": (index("A", build=lambda self, vectors: None), "build gave None"),
    "rows and scores": (index("B", search=swapped), "it gave rows and scores"),
    "distances": (index("C", scored=distances), "the farthest vectors come first"),
    "lower is better": (index("D", search=rising), "its scores rise"),
    "the last row again": (index("E", filled=doubled), "a row comes twice"),
    "too narrow": (
        index("F", filled=lambda self, s, r, k: (s.astype(np.float32), r)),
        "scores of shape (6, 200)",
    ),
    "zero for nothing": (index("G", filled=zeros), "a −1 has the score 0"),
    "position": (index("H", scored=by_position), "are the same vector and score"),
    "its batch": (index("I", scored=of_its_batch), "a query alone has other scores"),
    "any space": (index("J", check=lambda *_: None), "it compares its vectors with those of 'another model'"),
    "no filter": (index("K", allowed=lambda self, s, where: s), "`where` does not allow it"),
    "a silent filter": (index("N", build=lambda self, v: Silent(v, self)), "does not say that it takes one"),
    "its queries": (index("L", scored=scaling), "it changed the arrays"),
    "one built": (Keeping, "building a second index changed the answers"),
    "few found": (
        index("M", scored=lambda self, b, q: np.random.default_rng(0).random((len(q), len(b.vectors)))),
        "of the ten nearest it finds",
    ),
}


# --- lexical engines ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counted:
    texts: tuple
    owner: object
    nbytes = 8
    takes = ("where",)

    def search(self, texts, k, where=None):
        return self.owner.search(self, texts, k, where)


@dataclass(frozen=True)
class SharedWords:
    "An intact engine: how many words of the question a passage has, rare ones counting more."

    def build(self, chunks):
        return Counted(tuple(chunks.texts), self)

    def words(self, text):
        return set(text.lower().replace(".", "").replace(";", "").split())

    def scored(self, built, texts):
        passages = [self.words(t) for t in built.texts]
        rarity = [
            [sum(1 / sum(x in p for p in passages) for x in self.words(q) & p) for p in passages]
            for q in texts
        ]
        return np.array(rarity, dtype=np.float64).reshape(len(texts), len(passages))

    def allowed(self, scores, where):
        return scores if where is None else np.where(np.isin(np.arange(scores.shape[1]), where), scores, 0)

    def search(self, built, texts, k, where):
        scores = self.allowed(self.scored(built, texts), where)
        scores = np.where(scores == 0, -np.inf, scores)
        rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return Exact().filled(np.take_along_axis(scores, rows, 1), rows, k)


engine = functools.partial(variant, SharedWords)


def with_regex(self, built, texts):
    import re

    for t in texts:
        re.compile(t)
    return SharedWords.scored(self, built, texts)


def first_wins(self, built, texts):
    scores = SharedWords.scored(self, built, texts)
    return np.where(scores > 0, scores + 1 / (1 + np.arange(scores.shape[1])), 0)


def upside_down(self, built, texts, k, where):
    scores, rows = SharedWords.search(self, built, texts, k, where)
    out = []
    for s, r in zip(scores, rows):
        n = (r >= 0).sum()
        out.append((np.r_[-s[:n][::-1], s[n:]] if n else s, np.r_[r[:n][::-1], r[n:]]))
    return np.array([s for s, _ in out], np.float32), np.array([r for _, r in out])


def sorting(self, built, texts, k, where):
    texts.sort()
    return SharedWords.search(self, built, texts, k, where)


def of_all_questions(self, built, texts):
    scores = SharedWords.scored(self, built, texts)
    return scores / max(1e-9, scores.max(initial=0))


class KeepingWords(SharedWords):
    def build(self, chunks):
        object.__setattr__(self, "kept", Counted(tuple(chunks.texts), self))
        return self.kept

    def scored(self, built, texts):
        n = len(built.texts)
        scores = SharedWords.scored(self, self.kept, texts)[:, :n]
        return np.pad(scores, ((0, 0), (0, n - scores.shape[1])))


ENGINES = {
    "no build": (lambda: object(), "it has no build(chunks)"),
    "an operator": (engine("A", scored=with_regex), "raises error"),
    "position": (engine("B", scored=first_wins), "two equal passages score"),
    "upside down": (engine("C", search=upside_down), "its scores are upside down"),
    "its questions": (engine("D", search=sorting), "it changed the list of questions"),
    "its batch": (engine("E", scored=of_all_questions), "a question alone has other scores"),
    "no filter": (engine("F", allowed=lambda self, s, where: s), "`where` does not allow it"),
    "one built": (KeepingWords, "building a second time changed"),
    "no words": (
        engine("G", words=lambda self, t: {str(len(t) % 3)}),
        "does not find the only passage with these words",
    ),
    "an empty question": (
        engine("H", words=lambda self, t: {t.lower().split()[0], *SharedWords().words(t)}),
        "the question '' raises IndexError",
    ),
}


# --- retrievers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ranker:
    chunks: Chunks
    owner: object
    nbytes = 8
    takes = ("where",)

    def rank(self, texts, k, where=None):
        return self.owner.rank(self, texts, k, where)


@dataclass(frozen=True)
class ByWords:
    "An intact retriever: shared words, ties by a hash of question and text."

    kind = "lexical"

    def build(self, chunks, context):
        return Ranker(chunks, self)

    def scored(self, built, texts):
        return SharedWords().scored(Counted(tuple(built.chunks.texts), None), texts)

    def ordered(self, scores, text, built, k):
        return rank(scores, np.arange(len(scores)), hash64([text])[0], built.chunks.text_hashes, k)

    def allowed(self, scores, where):
        return Exact().allowed(scores, where)

    def rank(self, built, texts, k, where):
        scores = self.allowed(self.scored(built, texts), where)
        found = [self.ordered(s, t, built, k) for s, t in zip(scores, texts)]
        n = min(k, len(built.chunks))
        scores, rows = np.array([s for s, _ in found]), np.array([r for _, r in found])
        return Exact().filled(scores.reshape(-1, n), rows.reshape(-1, n), k)


retriever = functools.partial(variant, ByWords)


def by_row(self, scores, text, built, k):
    rows = np.argsort(-scores, kind="stable")[:k]
    return scores[rows], rows


def by_id(self, built, texts):
    ids = [built.chunks.corpus[int(r)].id for r in built.chunks.doc_row]
    return ByWords.scored(self, built, texts) + 10 * np.array([i.startswith("d0") for i in ids])[None] * (
        np.arange(len(ids)) == 4
    )


def counting(self, built, texts):
    return ByWords.scored(self, built, texts) * (1 + np.arange(len(built.chunks)) * (next(COUNTER) % 2))


def narrow(self, built, texts, k, where):
    scores, rows = ByWords.rank(self, built, texts, k, where)
    return scores[:, : len(built.chunks)], rows[:, : len(built.chunks)]


def of_letters(self, built, texts):
    for t in texts:
        t.encode("latin-1")
    return ByWords.scored(self, built, texts)


RETRIEVERS = {
    "no build": (lambda: object(), "it has no build(chunks, context)"),
    "no kind": (retriever("A", kind=None), "its kind is None"),
    "ties by position": (retriever("B", ordered=by_row), "position decides ties"),
    "ids": (retriever("C", scored=by_id), "its ranking changes when documents are renamed"),
    "chance": (retriever("D", scored=counting), "a second search gives another answer"),
    "rows out of range": (
        retriever("E", rank=lambda self, b, t, k, w: (np.ones((len(t), k)), np.full((len(t), k), 99))),
        "row 99 is not among the",
    ),
    "too narrow": (retriever("F", rank=narrow), "it gave scores of shape"),
    "no filter": (retriever("I", allowed=lambda self, s, where: s), "`where` does not allow it"),
    "scripts": (retriever("G", scored=of_letters), "raises UnicodeEncodeError"),
    "upside down": (
        retriever("H", scored=lambda self, b, t: -ByWords.scored(self, b, t)),
        "does not find the only passage with these words",
    ),
}


# --- fusions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SumOfRanks:
    "An intact fusion: reciprocal ranks, added up."

    def score(self, run, row, rank, score):
        return 1 / (60 + rank)

    def fuse(self, runs, kinds):
        total = {}
        for i, (scores, rows) in enumerate(runs):
            for n, (s, r) in enumerate(zip(scores, rows)):
                total[int(r)] = total.get(int(r), 0.0) + self.score(i, int(r), n + 1, float(s))
        return np.array(list(total.values())), np.array(list(total), dtype=np.int64)


fusion = functools.partial(variant, SumOfRanks)


def positions(self, runs, kinds):
    scores, rows = SumOfRanks.fuse(self, runs, kinds)
    return scores, np.argsort(-scores)


def twice(self, runs, kinds):
    return np.concatenate([s for s, _ in runs]), np.concatenate([r for _, r in runs])


def shared_alone(self, runs, kinds):
    scores, rows = SumOfRanks.fuse(self, runs, kinds)
    both = [r for r in rows if all(r in run for _, run in runs)]
    return np.ones(len(both)), np.array(both, dtype=np.int64)


def scaled(self, runs, kinds):
    for scores, _ in runs:
        scores /= scores.max(initial=1)
    return SumOfRanks.fuse(self, runs, kinds)


def divided(self, runs, kinds):
    runs = [((s - s.min()) / (s.max() - s.min()), r) for s, r in runs]
    return SumOfRanks.fuse(self, runs, kinds)


def nan(self, run, row, rank, score):
    return float("nan")


FUSIONS = {
    "no fuse": (lambda: object(), "it has no fuse(runs, kinds)"),
    "a list": (fusion("A", fuse=lambda self, runs, kinds: [1.0, 2.0, 3.0]), "fuse gave a list"),
    "positions": (fusion("B", fuse=positions), "these look like positions"),
    "a row twice": (fusion("C", fuse=twice), "a row comes twice"),
    "rows lost": (fusion("D", fuse=shared_alone), "of a run is lost"),
    "sum of ranks": (fusion("E", score=lambda s, run, row, rank, score: rank), "is not first"),
    "order of runs": (
        fusion("F", score=lambda s, run, row, rank, score: (2 - run) / (60 + rank)),
        "which run comes first",
    ),
    "numbers of rows": (
        fusion("G", score=lambda s, run, row, rank, score: 1 / (60 + rank) - row * 1e-9 - row * 1e-6),
        "the numbers of the rows",
    ),
    "its input": (fusion("H", fuse=scaled), "it changed the arrays of the runs"),
    "an empty run": (fusion("I", fuse=divided), "with one empty run it raises"),
    "no number": (fusion("J", score=nan), "a score is not a number"),
    "chance": (
        fusion("K", score=lambda s, run, row, rank, score: (1 + next(COUNTER)) / rank),
        "a second call with the same runs",
    ),
}


# --- rerankers ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Overlap:
    "An intact reranker."

    def scored(self, query, rows, texts):
        words = set(query.split())
        return np.array([len(words & set(t.split())) for t in texts], dtype=np.float64)

    def rerank(self, query, rows, texts):
        scores = self.scored(query, rows, texts)
        order = np.argsort(-scores, kind="stable")
        return scores[order], rows[order]


reranker = functools.partial(variant, Overlap)


def changing(self, query, rows, texts):
    scores, new = Overlap.rerank(self, query, rows, texts)
    rows.sort()
    return scores, new


RERANKERS = {
    "no rerank": (lambda: object(), "it has no rerank(query, rows, texts)"),
    "scores alone": (reranker("A", rerank=lambda s, q, r, t: [0.5] * len(r)), "rerank gave a list of 6"),
    "positions": (reranker("B", rerank=lambda s, q, r, t: (np.ones(len(r)), np.arange(len(r)))), "positions"),
    "rows first": (reranker("C", rerank=lambda s, q, r, t: (r, np.ones(len(r)))), "scores come first"),
    "unsorted": (
        reranker("D", rerank=lambda s, q, r, t: (s.scored(q, r, t), r)),
        "its scores rise",
    ),
    "where it stood": (
        reranker("E", scored=lambda s, q, r, t: Overlap.scored(s, q, r, t) - np.arange(len(t)) / 10),
        "depends on where it stood",
    ),
    "its row": (
        reranker("F", scored=lambda s, q, r, t: Overlap.scored(s, q, r, t) + np.asarray(r) / 1e3),
        "the same text have different scores",
    ),
    "chance": (
        reranker("G", scored=lambda s, q, r, t: Overlap.scored(s, q, r, t) * next(COUNTER)),
        "a second call gives other scores",
    ),
    "its input": (reranker("H", rerank=changing), "it changed the rows or texts"),
    "no question": (
        reranker("I", scored=lambda s, q, r, t: np.array([len(set(x.split())) for x in t], float)),
        "two different questions get the same scores",
    ),
    "an empty question": (
        reranker("J", scored=lambda s, q, r, t: Overlap.scored(s, q, r, t) * (1 / len(q.split()))),
        "and the question '' it raises ZeroDivisionError",
    ),
    "no candidate": (
        reranker("K", scored=lambda s, q, r, t: Overlap.scored(s, q, r, t) - min(map(len, t))),
        "with no candidate",
    ),
    "not a number": (
        reranker("L", scored=lambda s, q, r, t: np.full(len(t), np.nan)),
        "a score is not a number",
    ),
}


# --- metrics ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FirstRight:
    "An intact metric: one over the place of the first passage of a document that holds evidence."

    name: str = "first right"

    def right(self, gold):
        return {(e.query_id, e.doc_id) for e in gold.evidence_list}

    def of(self, gold, ranking, query):
        places = [h.rank for h in ranking[query.query_id] if (h.query, h.doc_id) in self.right(gold)]
        return 1 / min(places) if places else 0.0

    def __call__(self, gold, ranking):
        return np.array([self.of(gold, ranking, q) for q in gold.answerable])


def metric(class_name, /, **members):
    return dataclass(frozen=True)(
        type(
            class_name,
            (FirstRight,),
            {"__module__": __name__, "__annotations__": {"name": str}, "name": "mine", **members},
        )
    )


def changed(f):
    return {
        "__call__": lambda self, gold, ranking: f(FirstRight.__call__(self, gold, ranking), gold, ranking)
    }


def in_the_order_of_the_run(self, gold, ranking):
    by_id = {q.query_id: q for q in gold.answerable}
    return np.array([self.of(gold, ranking, by_id[q]) for q in ranking.query_ids if q in by_id])


def of_rows(self, gold, ranking, query):
    rows = [h.rank for h in ranking[query.query_id]]
    return float(len(rows) > 0 and ranking[query.query_id].rows[0, 0] in (2, 0, 7, 3))


def of_ids(self, gold, ranking, query):
    return float(any(h.doc_id == "d2" for h in list(ranking[query.query_id])[:3]))


def of_all_questions(self_scores, gold, ranking):
    return self_scores / max(1e-9, self_scores.sum())


METRICS = {
    "nothing to call": (lambda: 5, "cannot be called"),
    "no name": (metric("A", name=None), "has no name"),
    "a name that is taken": (metric("B", name="mrr"), "the name 'mrr' is taken"),
    "one number": (metric("C", **changed(lambda s, g, r: s.mean())), "it gave the number"),
    "all questions": (
        metric("D", **changed(lambda s, g, r: np.r_[s, 0.0])),
        "it gave an array of shape (5,)",
    ),
    "not finite": (metric("E", **changed(lambda s, g, r: np.where(s == 0, np.nan, s))), "not finite"),
    "percent": (metric("F", **changed(lambda s, g, r: 100 * s)), "and its range is 0 to 1"),
    "lower is better": (metric("G", **changed(lambda s, g, r: 1 - s)), "the best ranking scores 0"),
    "a constant": (metric("H", **changed(lambda s, g, r: s * 0 + 0.5)), "every ranking scores 0.5"),
    "ids": (metric("I", of=of_ids), "when documents are renamed"),
    "rows": (metric("J", of=of_rows), "when the corpus is put in another order"),
    "the run's order": (metric("K", __call__=in_the_order_of_the_run), "follow the order of the run"),
    "other questions": (metric("L", **changed(of_all_questions)), "alone, question"),
    "chance": (
        metric("M", **changed(lambda s, g, r: s / (1 + next(COUNTER) % 7))),
        "a second call gives other numbers",
    ),
}


# --- all families but chunkers, embedders and loaders ------------------------------------------------------

# family: its suite, what is intact, what is broken and the words that say so, options for what is intact
FAMILIES = {
    "index": (check_index, Exact, INDEXES, {"recall": 1.0}),
    "engine": (check_engine, SharedWords, ENGINES, {}),
    "retriever": (check_retriever, ByWords, RETRIEVERS, {}),
    "fusion": (check_fusion, SumOfRanks, FUSIONS, {}),
    "reranker": (check_reranker, Overlap, RERANKERS, {}),
    "metric": (check_metric, FirstRight, METRICS, {}),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_an_intact_component_passes(family):
    check, intact, _, options = FAMILIES[family]
    assert check(intact(), **options, strict=True).ok


@pytest.mark.parametrize(
    ("family", "broken"), [(family, broken) for family in FAMILIES for broken in FAMILIES[family][2]]
)
def test_a_broken_component_is_caught_by_its_sentence(family, broken):
    check, _, faults, _ = FAMILIES[family]
    make, words = faults[broken]
    caught(check(make(), elsewhere=False), words)


# --- loaders ------------------------------------------------------------------------------------------------


def load_pages(path, *, doc_id):
    "An intact loader: pages end with a form feed; the first line says what it is."
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise Refused("it cannot be read", Path(path).name) from e
    if not text.startswith("PAGES\n") or not text[6:].strip():
        raise Refused("there is no text", Path(path).name)
    parts, start, pages = text[6:].split("\f"), 0, []
    for i, part in enumerate(parts):
        pages.append(Page(i + 1, start, start + len(part) + 1))
        start += len(part) + 1
    body = "\n".join(parts) + "\n"
    return Document(doc_id, body, tuple(pages))


def altered(change):
    @functools.wraps(load_pages)
    def load(path, *, doc_id):
        return change(load_pages(path, doc_id=doc_id), path)

    return load


def with_raw_errors(path, *, doc_id):
    return Document(doc_id, Path(path).read_text(encoding="utf-8").split("PAGES\n")[1])


def with_whatever(path, *, doc_id):
    return Document(doc_id, Path(path).read_bytes().decode("latin-1") if Path(path).exists() else "")


def leaving(doc, path):
    Path(path).with_suffix(".tmp").write_text("left")
    return doc


LOADERS = {
    "a text": (altered(lambda d, p: d.text), "it gave a str"),
    "a list of texts": (altered(lambda d, p: [d.text]), "it gave a str"),
    "refusals alone": (altered(lambda d, p: [Refusal(d.id, "no")]), "it gave no document: no"),
    "another id": (altered(lambda d, p: dataclasses.replace(d, id=Path(p).name)), "it was given the id"),
    "the same id": (altered(lambda d, p: [d, d]), "have the same id"),
    "lost text": (altered(lambda d, p: Document(d.id, d.text[: len(d.text) // 2])), "is not in the text"),
    "lost pages": (
        altered(lambda d, p: Document(d.id, d.text, d.pages[:-1])),
        "it gave 2 pages, and the file has 3",
    ),
    "no pages": (altered(lambda d, p: Document(d.id, d.text)), "it gave 0 pages"),
    "raw errors": (with_raw_errors, "an empty file raises IndexError"),
    "no refusal": (with_whatever, "an empty file gives a document without text"),
    "the name": (
        altered(lambda d, p: dataclasses.replace(d, text=Path(p).name + "\n" + d.text)),
        "under another name the file reads otherwise",
    ),
    "something left": (altered(leaving), "it left"),
    "chance": (
        altered(lambda d, p: dataclasses.replace(d, text=f"{d.text}{next(COUNTER)}")),
        "a second reading gives something else",
    ),
}


@pytest.fixture
def pages(tmp_path):
    path = tmp_path / "three.pages"
    path.write_text("PAGES\nThe pump.\fThe valve.\fThe end of it.", encoding="utf-8")
    return path


def test_an_intact_loader_passes(pages):
    assert check_loader(load_pages, pages, contains=["The end of it."], pages=3, strict=True).ok


@pytest.mark.parametrize("broken", LOADERS)
def test_a_broken_loader_is_caught(broken, pages):
    load, words = LOADERS[broken]
    caught(check_loader(load, pages, contains=["The end of it."], pages=3), words)


def test_pages_that_skip_a_number_or_leave_text_out_are_caught(pages):
    gap = altered(
        lambda d, p: Document(d.id, d.text, [p if p.number < 3 else p._replace(number=4) for p in d.pages])
    )
    caught(check_loader(gap, pages), "one is missing or out of order")
    short = altered(lambda d, p: Document(d.id, d.text, [p._replace(end=p.end - 4) for p in d.pages]))
    caught(check_loader(short, pages), "characters are on no page")


# --- reports ------------------------------------------------------------------------------------------------


def test_strict_raises_with_every_fault():
    with pytest.raises(RagbenchError) as e:
        check_fusion(fusion("Both", fuse=scaled, score=nan)(), elsewhere=False, strict=True)
    assert "a score is not a number" in str(e.value)
    assert isinstance(e.value, AssertionError)
