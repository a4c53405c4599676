"""Laws of a store: what comes back is what was given, words are those of a fresh index after any changes, and
which revision is in force does not depend on the order of changes."""

import contextlib
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import regex
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ragbench.base.errors import DataError
from ragbench.chunk.character import CharacterChunker
from ragbench.core.chunks import Chunks, chunk_corpus
from ragbench.core.documents import Corpus, Document, Field, Heading, Page, Turn
from ragbench.knowledge.catalogue import Catalogue
from ragbench.knowledge.entities import EntityPattern, EntityRules, mentions
from ragbench.knowledge.ingest import Intake
from ragbench.knowledge.patterns import Names, matches
from ragbench.knowledge.relations import settle
from ragbench.lexical.fts5 import FTS5

slow = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
WORDS = st.sampled_from(["valve", "valves", "pump", "Oil", "naïve", "x-y", "die", "日本", "a\x00b", "42"])
TEXTS = st.lists(WORDS, min_size=1, max_size=30).map(" ".join)


def new_store(**options) -> Catalogue:
    return Catalogue.create(Path(tempfile.mkdtemp(), "kb"), **options)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@slow
@given(
    st.text(min_size=1),
    st.text(min_size=4),
    st.dictionaries(st.text(min_size=1), PLAIN, max_size=4),
    st.data(),
)
def test_a_document_comes_back_as_it_was(doc_id, text, metadata, data):
    def span():
        a = data.draw(st.integers(0, len(text)))
        return a, data.draw(st.integers(a, len(text)))

    doc = Document(
        doc_id,
        text,
        pages=[Page(1, *span())],
        headings=[Heading(2, "Title é", *span())],
        fields=[Field("f\"'", *span())],
        turns=[Turn("Ada", "0:01", *span())],
        metadata=metadata,
    )
    spans = sorted({(a, b) for a, b in (span() for _ in range(3)) if b > a})
    chunks = chunk_corpus(doc, lambda d: spans) if spans else None
    with new_store() as catalogue:
        with catalogue.writing() as w:
            doc_row, chunk_rows = w.put_document(doc, chunks=chunks)
        with catalogue.reading() as r:
            (back,) = r.documents([doc_row])
            table = r.chunk_table(["start_char", "end_char", "text_hash", "chunk_id", "section_path"])
        assert back == doc or json.dumps(back.metadata) == json.dumps(
            doc.metadata
        )  # keys of a dict are texts
        assert back.text == text and back.pages == doc.pages and back.turns == doc.turns
        if chunks is not None:
            again = Chunks(Corpus([back]), [0] * len(chunk_rows), table["start_char"], table["end_char"])
            assert again.texts == chunks.texts
            assert (again.text_hashes == table["text_hash"]).all()
            assert [chunks.id(i) for i in range(len(chunks))] == table["chunk_id"].tolist()


@slow
@given(st.lists(st.tuples(st.sampled_from("abcdef"), TEXTS | st.none()), min_size=1, max_size=12), st.data())
def test_words_after_any_changes_are_those_of_a_fresh_index(changes, data):
    tokenize, columns = data.draw(
        st.sampled_from(
            [("porter unicode61", ("text", "section")), ("unicode61", ("text",)), ("trigram", ("text",))]
        )
    )
    catalogue = new_store(tokenize=tokenize, columns=columns)
    here: dict[str, str] = {}
    for doc_id, text in changes:  # a text replaces what was there, None deletes it
        with catalogue.writing() as w:
            w.delete_documents(r for (r,) in w.rows("SELECT doc_row FROM documents WHERE doc_id = ?", doc_id))
            here.pop(doc_id, None)
            if text is not None:
                doc = Document(doc_id, text, headings=[Heading(1, "Oil", 0, 1)])
                w.put_document(doc, chunks=CharacterChunker(20, 5)(doc))
                here[doc_id] = text
    if here:
        engine = FTS5(tokenize, weights=(1.0, 1.0) if len(columns) == 2 else (1.0, 0.0))
        corpus = Corpus([Document(k, v, headings=[Heading(1, "Oil", 0, 1)]) for k, v in here.items()])
        chunks = CharacterChunker(20, 5)(corpus)
        questions = ["valve pump oil", "naïve 日本 x-y 42", "valves"]
        scores, rows = engine.build(chunks).search(questions, k=len(chunks))
        with catalogue.reading() as r:
            numbers = r.chunk_table(["chunk_row"])["chunk_row"]
            assert len(numbers) == len(chunks)
            there, found = engine.attach(r.con, "chunk_words").search(questions, k=len(chunks))
        np.testing.assert_allclose(there, scores, rtol=0, atol=1e-12)
        assert [set(x[x >= 0].tolist()) for x in rows] == [
            set(np.searchsorted(numbers, x[x >= 0]).tolist()) for x in found
        ]
    catalogue.close()


DOCS = {
    f"SOP-{n}-rev-{rev}.md": Document(
        f"SOP-{n}-rev-{rev}.md", f"Text {n} {rev}. " + ("See SOP-2." if n == 1 else ""), metadata=said
    )
    for n, rev, said in [
        (1, "a", {}),
        (1, "b", {"valid from": "2024-03-01"}),
        (1, "c", {}),
        (2, "a", {"valid to": "2023-01-01"}),
        (2, "b", {"supersedes": "SOP-1 Rev A"}),
        (3, "1", {"supersedes": "SOP-4"}),
        (4, "2", {"supersedes": "SOP-3"}),
    ]
}


def outcome(catalogue: Catalogue) -> tuple:
    with catalogue.reading() as r:
        docs = r.rows("SELECT doc_id, status, (valid_to IS NULL), supersedes FROM documents ORDER BY doc_id")
        edges = r.rows("SELECT src_id, rel_type, dst_id, dst_name FROM relations ORDER BY 1, 2, 3, 4")
    return docs, edges


@slow
@given(st.lists(st.tuples(st.sampled_from(sorted(DOCS)), st.booleans()), min_size=1, max_size=14))
def test_which_revision_is_in_force_does_not_depend_on_the_order(changes):
    catalogue, here = new_store(), set()
    intake = Intake(catalogue, CharacterChunker(50))
    for doc_id, comes in changes:
        if comes:
            intake.ingest(DOCS[doc_id])
            here.add(doc_id)
        else:
            with catalogue.writing() as w:
                w.delete_documents(
                    r for (r,) in w.rows("SELECT doc_row FROM documents WHERE doc_id = ?", doc_id)
                )
                settle(w)
            here.discard(doc_id)
    fresh = new_store()
    Intake(fresh, CharacterChunker(50)).ingest(Corpus([DOCS[d] for d in sorted(here)]))
    assert outcome(catalogue) == outcome(fresh)


@pytest.mark.parametrize("text", ["a" * 60 + "b", "aaaa" * 5000])
@pytest.mark.parametrize("pattern", ["(a|aa)+$", "^(([a-z])+.)+[A-Z]([a-z])+$", "(a+a+)+b", r"(\w+\s?)*!$"])
def test_no_pattern_hangs(pattern, text):
    began = time.monotonic()
    with contextlib.suppress(DataError):
        matches(pattern, text, seconds=0.1)
    assert time.monotonic() - began < 60


def test_a_pattern_that_would_hang_costs_its_document():
    rules = EntityRules([EntityPattern("loop", "(a|aa)+$")])
    intake = Intake(new_store(), CharacterChunker(50), entities=rules)
    result = intake.ingest([Document("bad", "a" * 60 + "b"), Document("good", "A valve.")])
    assert result.document_ids == ("good",)
    assert [e.source for e in result.errors] == ["bad"] and "took longer" in result.errors[0].reason


def test_what_cannot_be_stored_costs_its_document():
    bad = [
        Document("nan", "x", metadata={"score": float("nan")}),
        Document("half \ud800", "x"),
        Document("label", "x", metadata={"title": "half \ud800"}),
        Document("who", "x", turns=[Turn("half \ud800", "", 0, 1)]),
    ]
    result = Intake(new_store(), CharacterChunker(50)).ingest([*bad, Document("good", "A valve.")])
    assert result.document_ids == ("good",)
    assert [e.source for e in result.errors] == [d.id for d in bad]
    assert "cannot be stored" in result.errors[0].reason and "half a character" in result.errors[1].reason


@given(st.lists(st.text(), max_size=20), st.text())
def test_names_are_found_in_any_text(names, text):
    table = Names({n: n for n in names if regex.search(r"\w", n)})
    for m in table.find(text):
        assert 0 <= m.start < m.end <= len(text)


@slow
@given(TEXTS, st.integers(3, 30))
def test_mentions_lie_inside_their_chunks(text, size):
    doc = Document("d", f"{text} EQP-A1 {text} API 510")
    chunks = CharacterChunker(size, 2)(doc)
    of = mentions(chunks, EntityRules())
    for (start, end), positions in zip(chunks.spans.tolist(), of.of_chunk):
        here = {(f.start, f.end) for f in of.found if start <= f.start and f.end <= end}
        assert {(of.found[i].start, of.found[i].end) for i in positions} == here
