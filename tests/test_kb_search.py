"""A knowledge base finds what a system finds that was built of its documents, and nobody else's text."""

import re
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from ragbench import (
    BM25,
    BM25S,
    FTS5,
    MMR,
    RRF,
    Boost,
    Boosts,
    ConfigError,
    Corpus,
    DataError,
    Dense,
    Document,
    FaissFlat,
    Heading,
    Hybrid,
    KnowledgeBase,
    Lexical,
    LSAEmbedder,
    MinMax,
    Neighbours,
    ParagraphChunker,
    ParentSection,
    RagbenchError,
    RecursiveChunker,
    SeeAlso,
    SentenceWindow,
    System,
)
from ragbench.knowledge import knowledge_base, store_view

WORDS = "pump valve tank water motor fan drain oil red lower night holds stop open".split()
# LSA learns from documents; in a law about what stays the same it has learned already
LEARNED = Corpus(
    [Document(f"l{i}", " ".join(WORDS[i : i + 4]) + "\n\n" + " ".join(WORDS[: i + 2])) for i in range(11)]
)
EMBEDDER = LSAEmbedder(5).fit(LEARNED)
CHUNKER = RecursiveChunker(6)
HYBRID = Hybrid(Dense(EMBEDDER), Lexical())
BOOSTS = Boosts([Boost({"status": "active"}, 0.3), Boost({"doc": "in query"}, 0.2)])


def longest_first(query, rows, texts):
    "A reranker: texts with more of the words of the question, then longer ones, come first."
    asked = set(query.split())
    scores = np.array([len(asked & set(t.split())) + len(t) / 1000 for t in texts])
    order = np.argsort(-scores, kind="stable")
    return scores[order], rows[order]


class Longest:
    def rerank(self, query, rows, texts):
        return longest_first(query, rows, texts)


SYSTEMS = {
    "dense": System(CHUNKER, Dense(EMBEDDER)),
    "dense l2": System(CHUNKER, Dense(EMBEDDER, FaissFlat("l2"))),
    "lexical": System(CHUNKER, Lexical()),
    "lexical, sections weigh": System(ParagraphChunker(8, 0, min_size=1), Lexical(FTS5(weights=(1.0, 2.5)))),
    "lexical without sections": System(CHUNKER, Lexical(FTS5("unicode61", weights=(1, 0)))),
    "lexical, every word": System(CHUNKER, Lexical(FTS5(match="and"))),
    "lexical, phrases": System(CHUNKER, Lexical(FTS5(match="phrase"))),
    "lexical, another formula": System(CHUNKER, Lexical(FTS5(bm25=BM25("lucene", k1=0.9, b=0.4)))),
    "hybrid": System(CHUNKER, HYBRID),
    "hybrid by scores": System(CHUNKER, Hybrid(Dense(EMBEDDER), Lexical(), fuse=MinMax(dense=0.6))),
    "hybrid, shallow": System(CHUNKER, Hybrid(Dense(EMBEDDER), Lexical(), fuse=RRF(10), depth=10)),
    "two spaces": System(CHUNKER, Hybrid(Dense(EMBEDDER), Dense(EMBEDDER, header="title"), Lexical())),
    "header": System(CHUNKER, HYBRID, header="section"),
    "boosts": System(CHUNKER, HYBRID, boosts=BOOSTS),
    "rerank": System(CHUNKER, HYBRID, rerank=Longest(), depth=20),
    "one a document": System(CHUNKER, HYBRID, per_document=1),
    "variety": System(CHUNKER, HYBRID, mmr=MMR(0.4)),
    "everything": System(
        CHUNKER,
        HYBRID,
        boosts=Boosts([Boost({"status": "active"}, 0.3)]),
        rerank=Longest(),
        per_document=2,
        mmr=MMR(0.6),
        expand=Neighbours(1, 1),
        depth=20,
    ),
    "neighbours": System(CHUNKER, HYBRID, expand=Neighbours(1, 0)),
    "sections": System(CHUNKER, HYBRID, expand=ParentSection()),
    "sentences": System(CHUNKER, Lexical(), expand=SentenceWindow(1)),
    "filter": System(CHUNKER, HYBRID, where={"status": "active"}, expand=Neighbours(0, 1)),
    "filter, by fetching more": System(CHUNKER, HYBRID, where={"status": "active"}, overfetch=2),
    "thresholds": System(
        CHUNKER, Hybrid(Dense(EMBEDDER, min_score=0.2), Lexical(min_score=0.01)), min_score=0.005
    ),
    "another engine": System(CHUNKER, Hybrid(Dense(EMBEDDER), Lexical(BM25S()))),
}  # fmt: skip


@st.composite
def documents(draw, ids=("a", "b", "c", "d", "e", "f")):
    name = draw(st.sampled_from(ids))
    paragraphs = draw(
        st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=9), min_size=1, max_size=4)
    )
    text, headings = "", []
    for words in paragraphs:
        if draw(st.booleans()):
            title = draw(st.sampled_from(WORDS)).title()
            headings.append(Heading(1, title, len(text), len(text) + len(title)))
            text += title + "\n\n"
        text += " ".join(words) + ".\n\n"
    metadata = {"status": draw(st.sampled_from(["active", "draft"])), "title": draw(st.sampled_from(WORDS))}
    return Document(name, text.rstrip(), headings=headings, metadata=metadata)


FIELDS = st.fixed_dictionaries(
    {"status": st.sampled_from(["active", "draft"])}, optional={"title": st.sampled_from(WORDS)}
)
CHANGES = st.one_of(
    st.tuples(st.just("ingest"), st.lists(documents(), min_size=1, max_size=3, unique_by=lambda d: d.id)),
    st.tuples(st.just("delete"), st.integers(0, 9)),
    st.tuples(st.just("update"), st.tuples(st.integers(0, 9), FIELDS)),
    st.tuples(st.just("fold"), st.none()),
    st.tuples(st.just("open again"), st.none()),
)  # fmt: skip
QUESTIONS = st.lists(st.sampled_from([*WORDS, "nothing"]), min_size=1, max_size=4).map(" ".join)


def changed(kb: KnowledgeBase, change: str, what) -> KnowledgeBase:
    "The store after one change."
    there = [d.document_id for d in kb.documents()] if change in ("delete", "update") else []
    if change == "ingest":
        kb.ingest(Corpus(what))
    elif change == "delete" and there:
        kb.delete(there[what % len(there)])
    elif change == "update" and there:
        kb.update(there[what[0] % len(there)], what[1])
    elif change == "fold":
        store_view.fold(kb.catalogue, knowledge_base._parts(kb), knowledge_base._engines(kb))
    elif change == "open again":
        kb.close()
        return KnowledgeBase.open(kb.path, system=kb.system)
    return kb


def corpus_of(kb: KnowledgeBase) -> Corpus:
    return Corpus([kb.document(d.document_id) for d in kb.documents()])


def same(mine, theirs, exact: bool) -> None:
    "The same passages in the same order, with the same scores."
    got = [(r.document_id, r.start, r.end, r.text, r.section) for r in mine]
    want = [(h.doc_id, h.start, h.end, h.text, h.section) for h in theirs]
    assert got == want
    a, b = np.array([r.score for r in mine]), np.array([h.score for h in theirs])
    if exact:
        assert a.tolist() == b.tolist()
    else:
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def compare(kb: KnowledgeBase, question: str, k: int, **options) -> None:
    corpus = corpus_of(kb)
    if not len(corpus):
        assert len(kb.search(question, k, **options)) == 0
        return
    if kb.system.where and not any("status" in d.metadata for d in corpus):
        return
    fresh = kb.system.build(corpus, store=False)
    mine = kb.search(question, k, **options)
    lexical = any(
        hasattr(r, "engine") for r in getattr(kb.system.retrieve, "retrievers", [kb.system.retrieve])
    )
    same(mine, fresh.search(question, k, **options), exact=not lexical)


@pytest.mark.parametrize("name", SYSTEMS)
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    first=st.lists(documents(), min_size=1, max_size=4, unique_by=lambda d: d.id),
    changes=st.lists(CHANGES, max_size=5),
    question=QUESTIONS,
    k=st.integers(1, 8),
)
def test_a_store_finds_what_a_fresh_build_finds(name, first, changes, question, k):
    with tempfile.TemporaryDirectory() as folder:
        kb = KnowledgeBase.create(Path(folder, "kb"), system=SYSTEMS[name])
        try:
            kb.ingest(Corpus(first))
            compare(kb, question, k)  # a view is there from now on, and is carried along
            for change, what in changes:
                note(f"{change} {what}")
                kb = changed(kb, change, what)
            compare(kb, question, k)
            assert kb.verify() == []
        finally:
            kb.close()


MINE = st.lists(documents(ids=("a", "b", "c", "d")), max_size=4, unique_by=lambda d: d.id)
OWNERS = ("ada", "ben")
# what each owner's documents are full of: a word that no text of the other has
MARKS = {"ada": "adamant", "ben": "benthic"}
WIDE = System(
    CHUNKER,
    Hybrid(Dense(EMBEDDER), Lexical()),
    expand=SeeAlso([(a, b) for a in "abc" for b in "abcdef" if a != b], grow=Neighbours(1, 1)),
    boosts=Boosts([Boost({"status": "active"}, 0.3)]),
)


@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # an example has dozens of searches
)
@given(
    each=st.tuples(MINE, MINE),
    system=st.sampled_from([WIDE, SYSTEMS["everything"], SYSTEMS["hybrid"], SYSTEMS["another engine"]]),
    question=QUESTIONS,
    changes=st.lists(st.sampled_from(["fold", "open again", "ingest"]), max_size=3),
)
def test_no_call_returns_the_text_of_another_owner(each, system, question, changes):
    with tempfile.TemporaryDirectory() as folder:
        kb = KnowledgeBase.create(Path(folder, "kb"), system=system, owner="teacher")
        marked = {
            owner: [marked_document(d, MARKS[owner]) for d in documents]
            for owner, documents in zip(OWNERS, each)
        }
        try:
            for owner, mine in marked.items():
                for i, document in enumerate(mine):
                    kb.ingest(document, collection=f"c{i % 2}", owner=owner)
            for change in changes:
                if change == "ingest":
                    kb.ingest(marked_document(Document("a", question), MARKS["ada"]), owner="ada")
                else:
                    kb = changed(kb, change, None)
            for owner, other in zip(OWNERS, reversed(OWNERS)):
                for text in everything_said(kb, question, owner):
                    assert MARKS[other] not in text
        finally:
            kb.close()


def marked_document(document: Document, mark: str) -> Document:
    "The document with a word in each paragraph, in its headings and in its metadata that tells its owner."
    paragraphs = [f"{p} {mark}" for p in document.text.split("\n\n")]
    text = "\n\n".join(paragraphs)
    headings = [Heading(1, paragraphs[0], 0, len(paragraphs[0]))]
    metadata = {**document.metadata, "title": mark, mark: mark}
    return Document(document.id, text, headings=headings, metadata=metadata)


def everything_said(kb: KnowledgeBase, question: str, owner: str):
    "Every text that any call gives for an owner, errors included."
    options = [
        {"mode": mode, "group_by": group, "context": 2}
        for mode in ("auto", "dense", "lexical", "hybrid")
        for group in (None, "document")
    ]
    conditions = (
        {"status": "active"},
        {"adamant": "x"},
        {"benthic": "x"},
        {"doc": ["a", "b"]},
        {"section": "x"},
    )
    options += [{"where": condition} for condition in conditions]
    options += [{"collections": names} for names in ("c0", "c1", ["c0", "c1"], "default")]
    options += [{"latest_only": False}, {"as_of": "2026-01-01"}, {"min_score": 0.0}]
    ids = set()
    for more in options:
        try:
            results = kb.search(question, 8, owner=owner, **more)
        except ConfigError as e:
            yield e.fix  # what happened repeats what was asked for
            continue
        yield repr(results)
        for r in results:
            ids.add(r.chunk_id)
            yield str([getattr(r, name) for name in r.__dataclass_fields__])
    yield str([kb.documents(owner=owner), kb.stats(owner=owner)])
    for document in kb.documents(owner=owner):
        yield kb.document(document.document_id, document.collection, owner=owner).text
    for chunk_id in sorted(ids | set(all_chunk_ids(kb))):
        for call in (kb.get_context, kb.similar):
            try:
                yield repr(call(chunk_id, 3, owner=owner))
            except RagbenchError as e:
                yield str(e).replace(chunk_id, "").replace(repr(chunk_id), "")


def all_chunk_ids(kb: KnowledgeBase) -> list[str]:
    "Ids of the chunks of all owners: somebody may have seen one."
    with kb.catalogue.reading() as r:
        return [i for (i,) in r.rows("SELECT chunk_id FROM chunks")]


def test_without_an_owner_nothing_is_said(tmp_path):
    with KnowledgeBase.create(tmp_path / "kb", system=SYSTEMS["hybrid"], owner="teacher") as kb:
        kb.ingest(Document("a", "The pump."), owner="ada")
        chunk_id = kb.search("pump", owner="ada")[0].chunk_id
        calls = [
            lambda: kb.search("pump"),
            lambda: kb.search("pump", owner=""),
            lambda: kb.get_context(chunk_id),
            lambda: kb.similar(chunk_id),
            lambda: kb.documents(),
            lambda: kb.document("a"),
            lambda: kb.delete("a"),
            lambda: kb.delete(where={"status": "x"}),
            lambda: kb.update("a", {"x": 1}),
            lambda: kb.ingest(Document("b", "Nobody's.")),
        ]
        for call in calls:
            with pytest.raises(ConfigError, match="Give owner="):
                call()
        with pytest.raises(DataError, match="there is no document"):
            kb.delete("a", owner="ben")
        assert len(kb.documents(owner="ada")) == 1


CONDITIONS = st.sampled_from(
    [
        {"status": "active"},
        {"status": {"$ne": "active"}},
        {"title": ["pump", "valve", "tank", "oil"]},
        {"doc": ["a", "c"], "status": ["active", "draft"]},
        {"format": "text"},
        {"section": ["Pump", "Valve", "Fan", "Drain"]},
    ]
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    some=st.lists(documents(), min_size=2, max_size=6, unique_by=lambda d: d.id),
    changes=st.lists(CHANGES, max_size=2),
    name=st.sampled_from(["hybrid", "neighbours", "one a document", "filter", "another engine"]),
    question=QUESTIONS,
    where=CONDITIONS,
    k=st.integers(1, 8),
)
def test_a_filter_means_the_same_in_a_store(some, changes, name, question, where, k):
    with tempfile.TemporaryDirectory() as folder:
        kb = KnowledgeBase.create(Path(folder, "kb"), system=SYSTEMS[name])
        try:
            kb.ingest(Corpus(some))
            for change, what in changes:
                kb = changed(kb, change, what)
            compare(kb, question, k, where=where)
        finally:
            kb.close()


def filled(path: Path, name: str = "hybrid") -> KnowledgeBase:
    "A store of three documents, two of them in files."
    kb = KnowledgeBase.create(path, system=SYSTEMS[name])
    kb.ingest(LEARNED)
    changed(kb, "fold", None)
    kb.ingest(Document("late", "The late pump and the valve."))
    return kb


@pytest.mark.parametrize("harm", ["deleted", "cut short", "another byte"])
@pytest.mark.parametrize("file", ["chunks.npy", "space-1.faiss", "words-1/words-docs.npy"])
def test_a_lost_file_costs_time_and_no_answer(tmp_path, harm, file, caplog):
    kb = filled(tmp_path / "kb")
    before = [(r.chunk_id, r.score) for r in kb.search("the pump and the valve", 8)]
    (lost,) = (tmp_path / "kb" / "vectors").glob(f"*/{file}")
    kb.close()
    data = lost.read_bytes()
    if harm == "deleted":
        lost.unlink()
    else:
        lost.write_bytes(data[: len(data) // 2] if harm == "cut short" else data[:-1] + bytes([data[-1] ^ 1]))
    with KnowledgeBase.open(kb.path, system=kb.system) as kb:
        assert any(file in problem for problem in kb.verify())
        if harm != "another byte":
            assert [(r.chunk_id, r.score) for r in kb.search("the pump and the valve", 8)] == before
            assert "slower" in caplog.text
        kb.rebuild()
        assert kb.verify() == []
        assert [(r.chunk_id, r.score) for r in kb.search("the pump and the valve", 8)] == before


def test_a_reader_goes_on_while_documents_come_and_go(tmp_path):
    kb = filled(tmp_path / "kb")
    reader = KnowledgeBase.open(kb.path, read_only=True, system=kb.system)
    stop, seen, trouble = threading.Event(), [], []

    def search():
        while not stop.is_set():
            try:
                texts = {r.document_id: r.text for r in reader.search("late pump", 20)}
            except Exception as e:  # whatever it is, it is a failure
                trouble.append(e)
                return
            seen.append(texts.get("late", ""))

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for n in range(12):
        kb.ingest(Document("late", f"The late pump {n} and its valve {n}."))
        if n % 4 == 3:
            changed(kb, "fold", None)
    stop.set()
    for thread in threads:
        thread.join()
    kb.close()
    reader.close()
    assert not trouble and len(seen) > 2
    numbers = [set(re.findall(r"\d+", text)) for text in seen]
    assert all(len(of) <= 1 for of in numbers), numbers  # each search saw one version, never half of two
