"""What holds for every system: a span has one section, a condition one meaning, and what cannot work is
refused when it is made."""

import functools

import numpy as np
import pytest

import ragbench as rb
from ragbench.core.chunks import Chunks, chunk_corpus, chunk_sections, section_of
from ragbench.core.documents import Corpus, Document
from ragbench.ingest.shipped import shipped
from ragbench.steps.boosts import attributes
from ragbench.steps.expansion import Neighbours, ParentSection, SentenceWindow
from ragbench.steps.header import headed
from ragbench.system.stages import expanded


@functools.cache
def files_of(name):
    return rb.load_corpus(shipped(name) / "files")


# sections


def files_with_headings(folder):
    "The same three sections as Markdown (two ways to mark), HTML, DOCX and a transcript."
    import docx

    body = {
        "Startup": "Open the valve slowly and wait until the gauge has settled.",
        "Checks": "Read the level of the oil and write it down in the log.",
        "Shutdown": "Close the valve, then vent the line and sign the sheet.",
    }
    (folder / "atx.md").write_text("".join(f"## {t}\n\n{b}\n\n" for t, b in body.items()))
    (folder / "setext.md").write_text("".join(f"{t}\n---\n\n{b}\n\n" for t, b in body.items()))
    (folder / "quoted.md").write_text(
        "Intro, which belongs to nobody.\n\n" + "".join(f"   ### {t} ###\n\n{b}\n\n" for t, b in body.items())
    )
    (folder / "page.html").write_text(
        "<html><body><article><h1>Pump</h1>"
        + "".join(f"<h2>{t}</h2><p>{b} {b}</p>" for t, b in body.items())
        + "</article></body></html>"
    )
    (folder / "talk.transcript.md").write_text(
        "# Talk\n\n" + "".join(f"## {t}\n\nANN: {b}\n\nBOB: Right.\n\n" for t, b in body.items())
    )
    d = docx.Document()
    for t, b in body.items():
        d.add_heading(t, 2)
        d.add_paragraph(b)
    d.save(folder / "manual.docx")
    return rb.load_corpus(folder), body


def at_heading_lines(doc, before=0):
    "A chunk from the line of each heading (or the blank characters before it) to the next."
    begins = [doc.text.rfind("\n", 0, h.start) + 1 for h in doc.headings]
    begins = [
        b - len(head[-before:]) + len(head[-before:].rstrip()) if before and (head := doc.text[:b]) else b
        for b in begins
    ]
    return [(b, e) for b, e in zip(begins, [*begins[1:], len(doc.text)])]


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_chunk_that_begins_with_a_heading_stands_under_it_in_every_format(tmp_path, before):
    corpus, body = files_with_headings(tmp_path)
    assert len(corpus) == 6 and not corpus.errors, corpus.errors
    for doc in corpus:
        chunks = chunk_corpus(doc, lambda d: at_heading_lines(d, before))
        titles = [h.title for h in doc.headings]
        assert set(body) <= set(titles), doc.id
        assert [s.split("/")[-1] for s in chunk_sections(chunks)] == titles, (
            doc.id
        )  # the column of FTS5, the frame, the views
        assert [s.split("/")[-1] for s in chunks.to_frame().section] == titles
        assert [
            attributes(chunks, i)["section"][0].split("/")[-1] for i in range(len(chunks))
        ] == titles  # boosts
        assert all(
            text.startswith(section)
            for text, section in zip(headed(chunks, "section"), chunk_sections(chunks))
        )
        for i, title in enumerate(titles):  # wider spans
            start, end = ParentSection().span(chunks, i)
            assert (start, end) == (
                int(chunks.start[i]),
                (
                    doc.section_starts[i + 1]
                    if i + 1 < len(titles) and doc.headings[i + 1].level <= doc.headings[i].level
                    else end
                ),
            )
            assert not doc.text[start:end].rstrip().endswith("#") or title == "#"


@pytest.mark.parametrize("name", ["textbook", "procedures", "materials"])
@pytest.mark.parametrize(
    "chunker",
    [rb.RecursiveChunker(100), rb.ParagraphChunker(), rb.TokenChunker(64, 16), rb.CharacterChunker(300)],
    ids=lambda c: type(c).__name__,
)
def test_sections_of_what_ships(name, chunker):
    corpus = files_of(name)
    chunks = chunker(corpus)
    begun = 0
    for i, section in enumerate(chunk_sections(chunks)):
        doc, text = corpus[int(chunks.doc_row[i])], chunks.text(i).lstrip()
        heading = next(
            (
                h
                for h in doc.headings
                if text.lstrip("# ").startswith(h.title + "\n")
                and chunks.start[i] <= h.start < chunks.start[i] + 12
            ),
            None,
        )
        if heading is None:
            continue
        begun += 1
        assert section.endswith(heading.title), (doc.id, text[:60], section)
    assert begun or not any(d.headings for d in corpus)


def test_a_passage_that_grew_keeps_the_section_that_its_chunker_named():
    corpus = files_of("procedures")
    chunks = rb.SectionChunker(200)(corpus)
    rows = np.arange(len(chunks))[None]
    scores = np.arange(len(chunks), 0, -1.0)[None]
    for grow in (Neighbours(0, 0), Neighbours(0, 2), SentenceWindow(0), ParentSection()):
        e = expanded(grow, chunks, scores, rows, len(chunks))
        assert e.chunks.section is not None
        for r, origin in zip(e.rows[0], e.origin[0]):
            if r < 0:
                continue
            if e.chunks.start[r] == chunks.start[origin]:
                assert e.chunks.section[r] == chunks.section[origin]
            assert e.chunks.section[r] in set(
                chunks.section[i]
                for i in np.flatnonzero(
                    (chunks.doc_row == chunks.doc_row[origin])
                    & (chunks.end > e.chunks.start[r])
                    & (chunks.start < e.chunks.end[r])
                )
            )


def test_labels_are_part_of_what_a_table_of_chunks_is():
    corpus = Corpus([Document("a", "one two")])
    plain, named, other = (Chunks(corpus, [0], [0], [3], section=s) for s in (None, ["A"], ["B"]))
    assert (
        len({plain.fingerprint, named.fingerprint, other.fingerprint}) == 3
    )  # headers and the section column differ
    assert plain.id(0) == named.id(0) and section_of(named, 0, 0, 7) == "A"
