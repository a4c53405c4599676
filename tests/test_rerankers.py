"""What happens after retrieval, against definitions written out: a cross-encoder, MMR, thresholds, best per
document, and expansion."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ragbench as rb
from ragbench.base.errors import ConfigError, DataError
from ragbench.core.chunks import Chunks
from ragbench.core.documents import Corpus, Document, Heading
from ragbench.core.spans import union
from ragbench.steps.cross_encoder import CrossEncoderReranker
from ragbench.steps.expansion import (
    Neighbours,
    ParentSection,
    SentenceWindow,
    grown,
    merged_passages,
    section_span,
)
from ragbench.steps.mmr import MMR, above, best_per_document
from ragbench.system.build_context import Context
from ragbench.testing.tiny_cross_encoder import tiny_cross_encoder

WORDS = "pump valve tank oil level start stop check open close the of and unit seal".split()
OFF = settings(max_examples=150, deadline=None, derandomize=True)


def some_texts(n: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 60))) for _ in range(n)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Larger weights than a fresh model's, so that its scores differ by more than rounding."""
    import torch
    from transformers import AutoModelForSequenceClassification

    folder = tiny_cross_encoder(str(tmp_path_factory.mktemp("model") / "tiny"), WORDS)
    m = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        for p in m.parameters():
            p.mul_(5)
    m.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def logits(model):
    """The model's own answer for one pair at a time, without sentence-transformers."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    m = AutoModelForSequenceClassification.from_pretrained(model).eval()

    def of(query: str, texts: list[str]) -> np.ndarray:
        with torch.no_grad():
            return np.array(
                [
                    m(**tokenizer(query, t, truncation=True, max_length=32, return_tensors="pt"))
                    .logits[0, 0]
                    .item()
                    for t in texts
                ]
            )

    return of


@pytest.mark.parametrize("query", ["pump", "open the valve", "", "nothing known", "pump " * 50])
def test_the_order_is_that_of_the_models_scores(model, logits, query):
    texts, reranker = some_texts(40), CrossEncoderReranker(model)
    want = logits(query, texts)
    assert np.ptp(want) > 0.01
    got = reranker.score(query, texts)
    assert np.allclose(got, want, atol=1e-5) or np.allclose(
        got, 1 / (1 + np.exp(-want)), atol=1e-5
    )  # as they are, or through the model's sigmoid
    scores, rows = reranker.rerank(query, np.arange(100, 140), texts)
    assert sorted(rows) == list(range(100, 140)) and (np.diff(scores) <= 0).all()
    assert (np.diff(want[rows - 100]) <= 2e-5).all()


def test_batches_do_not_change_scores(model):
    texts = some_texts(45, seed=1)
    alone = CrossEncoderReranker(model, batch_size=1).score("open the valve", texts)
    for batch in (2, 7, 32, 100):
        assert (
            np.abs(CrossEncoderReranker(model, batch_size=batch).score("open the valve", texts) - alone).max()
            < 1e-5
        )


def test_only_the_candidates_in_reach_are_read(model):
    texts, reranker = some_texts(30), CrossEncoderReranker(model, depth=7)
    scores, rows = reranker.rerank("pump", np.arange(30), texts)
    assert sorted(rows) == list(range(7)) and len(scores) == 7
    assert reranker.rerank("pump", np.empty(0, int), [])[1].tolist() == []
    assert reranker.cut("pump", ["pump", "pump " * 60]) == 1  # what does not fit the window is counted
    for bad in ({"depth": 0}, {"batch_size": 0}):
        with pytest.raises(ConfigError):
            CrossEncoderReranker(model, **bad)


def test_ties_keep_the_fair_order_and_so_the_corpus_may_be_shuffled(model):
    """Copies of a text get equal scores, and texts cut to the same window too; the order of the corpus must
    not show."""
    long = "pump valve tank oil level start stop check open close " * 4
    texts = [f"{long} {w}" for w in WORDS] + some_texts(10) + ["pump", "pump"]

    def ranking(order):
        corpus = Corpus([Document(f"d{n}", texts[i]) for n, i in enumerate(order)])
        system = rb.System(
            rb.CharacterChunker(10_000, 0),
            rb.Lexical(rb.FTS5()),
            rerank=CrossEncoderReranker(model, depth=200),
        )
        return [
            list(p)
            for p in zip(
                *(
                    system.build(corpus, Context()).search(["pump", "oil level"], 30).passages(i)
                    for i in (0, 1)
                )
            )
        ]

    first = ranking(range(len(texts)))
    scores = CrossEncoderReranker(model).score("pump", texts[: len(WORDS)])
    assert len(set(scores.round(6))) == 1  # these do tie
    for seed in range(3):
        assert ranking(np.random.default_rng(seed).permutation(len(texts))) == first


vectors = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, 10**6)))


@OFF
@given(vectors, st.sampled_from([0.0, 0.3, 0.5, 1.0]), st.integers(1, 12), st.booleans())
def test_mmr_is_its_definition(shape, lam, k, given_relevance):
    n, seed = shape
    rng = np.random.default_rng(seed)
    # with zeros, copies and opposites
    c = rng.integers(-2, 3, (n, 3)).astype(float)
    q = rng.integers(-2, 3, (1, 3)).astype(float)

    def cosine(a, b):
        return 0.0 if not a.any() or not b.any() else float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    relevance = rng.random(n) if given_relevance else np.array([cosine(q[0], x) for x in c])
    values, picked = MMR(lam).select(
        None if given_relevance else q, c, k, relevance=relevance if given_relevance else None
    )
    assert len(picked) == min(k, n) == len(set(picked.tolist()))
    chosen: list[int] = []
    for value, p in zip(values, picked.tolist()):
        worth = {
            i: lam * relevance[i] - (1 - lam) * max((cosine(c[i], c[j]) for j in chosen), default=0.0)
            for i in range(n)
            if i not in chosen
        }
        assert value == pytest.approx(worth[p], abs=1e-9) and worth[p] >= max(worth.values()) - 1e-9
        chosen.append(p)


def test_mmr_between_relevance_and_variety():
    relevance = np.array([0.9, 0.8, 0.7, 0.1])
    same = np.eye(2)[[0, 0, 0, 1]]
    assert MMR(1.0).select(None, same, 4, relevance)[1].tolist() == [0, 1, 2, 3]
    assert MMR(0.5).select(None, same, 2, relevance)[1].tolist() == [0, 3]
    for bad in (-0.1, 1.1, True, "0.5", float("nan")):
        with pytest.raises(ConfigError, match="lambda_ is"):
            MMR(bad)
    with pytest.raises(DataError, match="relevance has shape"):
        MMR().select(None, same, 2, relevance[:2])


@st.composite
def rankings(draw):
    """(scores, rows, doc_row): lines of different lengths, scores falling, with ties."""
    q, k, seed = draw(st.integers(1, 4)), draw(st.integers(1, 9)), draw(st.integers(0, 10**6))
    rng = np.random.default_rng(seed)
    scores, rows = np.full((q, k), -np.inf), np.full((q, k), -1)
    for i in range(q):
        n = rng.integers(0, k + 1)
        scores[i, :n], rows[i, :n] = -np.sort(-rng.integers(-4, 5, n) / 2), rng.permutation(20)[:n]
    return scores, rows, np.sort(rng.integers(0, 5, 20))


@OFF
@given(rankings(), st.sampled_from([-9.0, -0.5, 0.0, 1.0, 9.0]))
def test_above_keeps_what_reaches_the_threshold(ranking, least):
    scores, rows, _ = ranking
    s, r = above(scores, rows, least)
    assert s.shape == r.shape == rows.shape
    for i, line in enumerate(rows):
        keep = [(x, y) for x, y in zip(scores[i].tolist(), line.tolist()) if y >= 0 and x >= least]
        gaps = rows.shape[1] - len(keep)
        assert list(zip(s[i].tolist(), r[i].tolist())) == keep + [(-np.inf, -1)] * gaps


@OFF
@given(rankings(), st.integers(1, 3))
def test_best_per_document_keeps_the_first_of_each(ranking, most):
    scores, rows, doc_row = ranking
    s, r = best_per_document(scores, rows, doc_row, most)
    for i, line in enumerate(rows):
        keep = [
            j
            for j, row in enumerate(line)
            if row >= 0 and sum(doc_row[x] == doc_row[row] for x in line[:j] if x >= 0) < most
        ]
        gaps = rows.shape[1] - len(keep)
        assert r[i].tolist() == line[keep].tolist() + [-1] * gaps
        assert s[i].tolist() == scores[i, keep].tolist() + [-np.inf] * gaps
    again = best_per_document(s, r, doc_row, most)
    assert np.array_equal(again[1], r)  # doing it twice changes nothing
    with pytest.raises(ConfigError):
        best_per_document(scores, rows, doc_row, 0)


@st.composite
def cut_documents(draw):
    """Chunks of documents with nested headings; some documents without any; chunks may overlap, touch or
    leave gaps."""
    rng, docs, spans = np.random.default_rng(draw(st.integers(0, 10**6))), [], []
    for d in range(draw(st.integers(1, 3))):
        text, headings = "Before any heading. " * int(rng.integers(0, 2)), []
        for h in range(int(rng.integers(0, 5))):
            title = f"Part {d}.{h}"
            text += (
                ("", "", "## ", "2.1 ")[int(rng.integers(0, 4))] if text.endswith("\n") or not text else ""
            )
            headings.append(Heading(int(rng.integers(1, 4)), title, len(text), len(text) + len(title)))
            text += (
                title
                + "\n\n"
                + "".join(f"Sentence {i} of it, which says little. " for i in range(int(rng.integers(0, 6))))
                + "\n\n"
            )
        text += "The end."
        docs.append(Document(f"d{d}", text, headings=tuple(headings)))
        starts = np.sort(rng.integers(0, len(text), int(rng.integers(1, 9))))
        spans += [(d, int(s), int(min(len(text), s + rng.integers(1, 90)))) for s in np.unique(starts)]
    spans.sort()
    chunks = Chunks(Corpus(docs), *np.array(spans).T, "made up")
    rows = rng.permutation(len(chunks))[: int(rng.integers(1, len(chunks) + 1))]
    return chunks, np.concatenate([rows, np.full(int(rng.integers(0, 3)), -1)])


GROW = st.sampled_from(
    [
        Neighbours(0, 0),
        Neighbours(1, 1),
        Neighbours(0, 3),
        Neighbours(9, 0),
        SentenceWindow(0),
        SentenceWindow(1),
        SentenceWindow(50),
        ParentSection(1),
        ParentSection(2),
        ParentSection(9),
    ]
)


@OFF
@given(cut_documents(), GROW)
def test_what_grows_stays_in_its_document_and_holds_its_chunk(made, grow):
    chunks, rows = made
    for r in rows[rows >= 0]:
        start, end = grow.span(chunks, int(r))
        assert (
            0 <= start <= chunks.start[r] < chunks.end[r] <= end <= len(chunks.corpus[int(chunks.doc_row[r])])
        )


@OFF
@given(cut_documents(), GROW)
def test_no_character_is_handed_over_twice_and_none_is_lost(made, grow):
    chunks, rows = made
    passages = merged_passages(chunks, rows, grow)
    kept = [int(r) for r in rows if r >= 0]
    for d in range(len(chunks.corpus)):
        mine = sorted(p[1:3] for p in passages if p.doc_row == d)
        assert all(a[1] < b[0] for a, b in zip(mine, mine[1:]))  # apart: neither overlapping nor touching
        spans = [grow.span(chunks, r) for r in kept if chunks.doc_row[r] == d]
        assert mine == [tuple(x) for x in union(np.array(spans).reshape(-1, 2)).tolist()]  # exactly what grew
    assert [p.row for p in passages] == sorted(
        (p.row for p in passages), key=kept.index
    )  # each at the place of its best chunk
    assert all(p.text(chunks) == chunks.corpus[p.doc_row].text[p.start : p.end] for p in passages)


@OFF
@given(cut_documents(), GROW)
def test_a_list_of_grown_passages_repeats_nothing(made, grow):
    chunks, rows = made
    seen: dict[int, set[int]] = {}
    for p in grown(chunks, rows, grow):
        new = set(range(p.start, p.end)) - seen.setdefault(p.doc_row, set())
        assert new  # each brings something
        seen[p.doc_row] |= new
    for r in rows[rows >= 0]:
        assert set(range(int(chunks.start[r]), int(chunks.end[r]))) <= seen[int(chunks.doc_row[r])]


@OFF
@given(cut_documents(), st.integers(1, 4))
def test_a_parent_section_is_the_section_of_the_document(made, levels):
    chunks, rows = made
    for r in rows[rows >= 0]:
        doc, begins, ends = chunks.corpus[int(chunks.doc_row[r])], int(chunks.start[r]), int(chunks.end[r])
        at = next((i for i in range(begins, ends) if not doc.text[i].isspace()), begins)
        line = {
            h: re.search(r"(?:## |2\.1 )?\Z", doc.text[: h.start]).start() for h in doc.headings
        }  # where the heading's line begins
        above_it = []  # the headings that `at` stands under, innermost first
        for h in reversed([h for h in doc.headings if line[h] <= at]):
            if not above_it or h.level < above_it[-1].level:
                above_it.append(h)
        found = section_span(doc, begins, levels, ends)
        if not above_it:
            assert found is None and ParentSection(levels).span(chunks, int(r)) == (begins, ends)
            continue
        top = above_it[min(levels, len(above_it)) - 1]
        after = [line[h] for h in doc.headings if h.start > top.start and h.level <= top.level]
        assert found == (line[top], min(after, default=len(doc.text)))
        start, end = ParentSection(levels).span(chunks, int(r))
        assert start <= found[0] <= at and end >= max(found[1], ends)


@OFF
@given(cut_documents(), st.integers(0, 3), st.integers(0, 3))
def test_neighbours_are_chunks_of_the_same_document(made, before, after):
    chunks, rows = made
    for r in rows[rows >= 0]:
        mine = np.flatnonzero(chunks.doc_row == chunks.doc_row[r])
        near = mine[(mine >= r - before) & (mine <= r + after)]
        assert Neighbours(before, after).span(chunks, int(r)) == (
            chunks.start[near].min(),
            chunks.end[near].max(),
        )
