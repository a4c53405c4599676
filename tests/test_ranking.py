"""A ranking is one value: its hits, its table, what it prints and its arrays say the same; places are those
of the file."""

from __future__ import annotations

import inspect
import pkgutil
import re
from importlib import import_module

import numpy as np
import pymupdf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ragbench as rb
from ragbench.core.documents import Turn
from ragbench.core.ranking import Hit, Ranking
from ragbench.core.runs import ABSENT, Run
from ragbench.evaluate.scores import score_run

WORDS = rb.Corpus([rb.Document(f"d{i}", " ".join(f"w{i}{j}" for j in range(9))) for i in range(4)])
CHUNKS = rb.from_function(lambda text: [m.group() for m in re.finditer(r"\S+ ?", text)])(WORDS)


@st.composite
def runs(draw):
    "Runs of any depth, with filling behind and places that nobody here has."
    ids = draw(st.lists(st.text("abc", min_size=1), max_size=4, unique=True))
    k = draw(st.integers(1, 6))
    lines = []
    for _ in ids:
        line = draw(st.lists(st.integers(0, len(CHUNKS) - 1), max_size=k, unique=True))
        for place in draw(st.sets(st.integers(0, max(len(line) - 1, 0)), max_size=2)) if line else ():
            line[place] = ABSENT
        lines.append(line + [-1] * (k - len(line)))
    scores = [[float(k - j) for j in range(k)] for _ in ids]
    return Run(ids, np.array(scores).reshape(len(ids), k), np.array(lines, np.int64).reshape(len(ids), k))


def by_hand(run: Run) -> list[tuple]:
    "What the arrays say, read cell by cell."
    found = []
    for i, query in enumerate(run.query_ids):
        for j, row in enumerate(run.rows[i].tolist()):
            if row >= 0:
                doc = WORDS[int(CHUNKS.doc_row[row])]
                start, end = int(CHUNKS.start[row]), int(CHUNKS.end[row])
                found.append((query, j + 1, run.scores[i, j], doc.id, start, end, doc.text[start:end]))
    return found


COLUMNS = ["query", "rank", "score", "doc_id", "start", "end", "text"]


@settings(max_examples=150, deadline=None)
@given(runs())
def test_hits_and_table_are_the_arrays_without_filling(run):
    ranking, expected = Ranking(CHUNKS, run), by_hand(run)
    hits = list(ranking)
    assert [tuple(getattr(hit, name) for name in COLUMNS) for hit in hits] == expected
    assert [tuple(row) for row in ranking.to_frame()[COLUMNS].itertuples(index=False)] == expected
    assert len(ranking) == len(expected) and ranking[:] == hits
    assert [ranking[i] for i in range(len(ranking))] == hits
    assert [ranking[-1 - i] for i in range(len(ranking))] == hits[::-1]
    with pytest.raises(IndexError):
        ranking[len(ranking)]


@settings(max_examples=60, deadline=None)
@given(runs())
def test_rankings_of_single_questions_are_the_ranking_of_all(run):
    ranking = Ranking(CHUNKS, run)
    assert [hit for one in ranking.by_query() for hit in one] == list(ranking)
    assert [list(ranking[query]) for query in run.query_ids] == [list(one) for one in ranking.by_query()]
    assert all((one.rows == run.rows[i]).all() for i, one in enumerate(ranking.by_query()))


@settings(max_examples=60, deadline=None)
@given(runs())
def test_what_is_printed_holds_the_first_passages_and_no_filling(run):
    ranking = Ranking(CHUNKS, run)
    most = 10 if len(run) == 1 else 3
    for said in (str(ranking), ranking._repr_html_()):
        assert "-1" not in said and "−1" not in said and "inf" not in said
        for i in range(min(len(run), 5)):
            for row in run.of(i)[:most]:
                assert CHUNKS.text(int(row)).strip() in said


def found_in(corpus: rb.Corpus, phrase: str, chunker=None) -> Hit:
    "The best passage for a phrase, by its words."
    built = rb.System(chunker or rb.SentenceChunker(8), rb.Lexical(rb.FTS5())).build(corpus, store=False)
    return built.search(phrase, 1)[0]


def test_pages_and_sections_of_a_pdf(tmp_path):
    with pymupdf.open() as pdf:
        for n, text in enumerate(
            ("The intake is in the north.", "The spindle needs oil.", "Nothing more."), 1
        ):
            page = pdf.new_page()
            page.insert_text((72, 90), f"{n} Chapter number {n}", fontsize=22)
            page.insert_text((72, 140), text, fontsize=11)
        pdf.set_metadata({"title": "The mill"})
        pdf.save(tmp_path / "mill.pdf")
    hit = found_in(rb.load_corpus(tmp_path), "spindle oil")
    assert hit.pages == (2,) and "spindle" in hit.text and hit.title == "The mill"
    assert "Chapter number 2" in hit.section and hit.source.endswith("mill.pdf")
    assert "p. 2" in hit.citation and "Chapter number 2" in hit.citation


def test_a_citation_says_pages_as_ranges_and_the_source_that_the_id_does_not_tell():
    hit = Ranking(CHUNKS, Run(("q",), [[1.0]], [[0]]))[0]
    places = {(3,): "p. 3", (3, 4, 5): "p. 3–5", (3, 7): "p. 3, 7", (): ""}
    assert {pages: hit._replace(pages=pages).place for pages in places} == places
    sources = {
        "": "d0",
        "/shelf/mill.pdf": "d0 · mill.pdf",
        "https://mill.example/a/b": "d0 · https://mill.example/a/b",
        "/shelf/d0": "d0",
    }
    assert {source: hit._replace(source=source).citation for source in sources} == sources


def test_speaker_and_time_of_a_transcript(tmp_path):
    (tmp_path / "talk.vtt").write_text(
        "WEBVTT\n\n00:00:01.000 --> 00:00:04.000\n<v Anna>Who oiled the spindle?\n\n"
        "00:01:05.000 --> 00:01:06.000\n<v Bob>The miller did it yesterday.\n"
    )
    corpus = rb.load_corpus(tmp_path)
    assert all(isinstance(turn, Turn) for turn in corpus[0].turns)
    hit = found_in(corpus, "miller yesterday")
    assert (hit.speaker, hit.time) == ("Bob", "00:01:05.000")
    whole = found_in(corpus, "spindle miller", rb.WholeDocument())
    assert (whole.speaker, whole.time) == ("Anna, Bob", "00:00:01.000")


def test_section_of_markdown_and_record_of_tables(tmp_path):
    (tmp_path / "guide.md").write_text(
        "# Mill\n\n## Grinding\n\nThe spindle needs oil.\n\n## Sifting\n\nThe sieve shakes.\n"
    )
    lines = ["part,use", "valve,steam", "spindle,turns the stone"]
    (tmp_path / "parts.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "notes.json").write_text('[{"body": "a plain note"}, {"body": "about the hopper"}]')
    corpus = rb.load_corpus(tmp_path)
    assert found_in(corpus, "sieve shakes").section == "Mill/Sifting"
    hit = found_in(
        corpus, "turns stone", rb.ByType({"csv": rb.FieldChunker(), "default": rb.WholeDocument()})
    )
    assert hit.fields == ("use",) and hit.record == "line 3" and lines[2].endswith(hit.text)
    note = found_in(corpus, "hopper", rb.WholeDocument())
    assert note.record == "$[1]" and note.fields == ("body",)
    assert "line 3" in hit.citation and "$[1]" in note.citation


@pytest.mark.parametrize("dataset", ["procedures", "coaching"])
def test_every_hit_of_a_shipped_corpus_can_be_cited(dataset):
    corpus, gold = rb.load_dataset(dataset)
    built = rb.System(rb.RecursiveChunker(120), rb.Lexical(rb.FTS5())).build(corpus, store=False)
    hits = list(built.search([q.text for q in gold.answerable], 10))
    assert len(hits) > 100
    for hit in hits:
        doc = corpus[hit.doc_id]
        assert doc.text[hit.start : hit.end] == hit.text and hit.source == (doc.source or "")
        assert hit.pages == tuple(p.number for p in doc.pages if p.start < hit.end and hit.start < p.end)
        assert hit.pages or doc.format != "pdf"
        assert bool(hit.speaker) == any(
            t.speaker and t.start < hit.end and hit.start < t.end for t in doc.turns
        )
        assert hit.doc_id in hit.citation and hit.place in hit.citation


HOSTILE = "a\x1b[31mb\u202ec\u2066d\ne\x00f\u2028g"


def test_control_and_bidirectional_characters_do_not_reach_a_screen():
    doc = rb.Document(HOSTILE, HOSTILE, metadata={"title": HOSTILE}, source=f"https://{HOSTILE}")
    chunks = rb.WholeDocument()(rb.Corpus([doc]))
    ranking = Ranking(chunks, Run([HOSTILE], [[1.0]], [[0]]))
    for said in (str(ranking), ranking[0].citation, ranking._repr_html_()):
        assert not set(said) & set("\x1b\u202e\u2066\x00\u2028")
    assert ranking[0].doc_id == ranking[0].text == HOSTILE  # the value itself is what it is
    assert "<script" not in Ranking(chunks, Run(["<script>"], [[1.0]], [[0]]))._repr_html_()


def test_long_texts_and_many_questions_are_shortened():
    corpus = rb.Corpus([rb.Document("long", "word " * 5000)])
    ranking = Ranking(
        rb.WholeDocument()(corpus), Run([f"q{i}" for i in range(500)], [[1.0]] * 500, [[0]] * 500)
    )
    assert len(str(ranking)) < 4000 and len(ranking._repr_html_()) < 9000
    assert "495 more questions" in str(ranking) and len(ranking) == 500


def test_a_search_prints_passages_with_citations_and_keeps_the_milliseconds():
    corpus, _ = rb.load_dataset("procedures")
    built = rb.System(rb.RecursiveChunker(120), rb.Lexical(rb.FTS5()), expand=rb.Neighbours(1, 1)).build(
        corpus, store=False
    )
    ranking = built.search("Who signs the permit?", 3)
    assert isinstance(ranking, rb.Ranking) and ranking.ms and min(ranking.ms.values()) > 0
    said = str(ranking)
    assert said.startswith("Who signs the permit?") and all(hit.citation in said for hit in ranking)
    assert all(step in said for step in ranking.ms)
    for hit, row in zip(ranking, ranking.origin[0].tolist()):
        doc_id, start, end = hit.origin
        assert doc_id == hit.doc_id and hit.start <= start < end <= hit.end
        assert built.chunks.text(row) == corpus[doc_id].text[start:end]
    assert any(hit.origin[1:] != (hit.start, hit.end) for hit in ranking)
    assert list(ranking.to_frame()["origin"]) == [hit.origin for hit in ranking]


def test_a_passage_of_another_document_says_what_it_came_from():
    corpus = rb.Corpus([rb.Document("a", "The pump leaks."), rb.Document("b", "Call the shift.")])
    see = rb.SeeAlso([("a", "b")])
    ranking = (
        rb.System(rb.WholeDocument(), rb.Lexical(rb.FTS5()), expand=see)
        .build(corpus, store=False)
        .search("leaks")
    )
    assert [(hit.doc_id, hit.origin[0]) for hit in ranking] == [("a", "a"), ("b", "a")]
    assert "grown from a" in ranking[1].citation and "grown from" not in ranking[0].citation


def test_the_ranking_of_one_question_keeps_origins_and_leaves_milliseconds_to_all():
    both = Run(("p", "q"), [[2.0, 1.0], [3.0, 0.0]], [[0, 1], [2, -1]])
    ranking = Ranking(CHUNKS, both, {"search": 5.0}, np.array([[3, 4], [5, -1]]), CHUNKS)
    for alone in (ranking["q"], ranking.by_query()[1]):
        assert (alone.query_ids, alone.origin.tolist(), dict(alone.ms)) == (("q",), [[5, -1]], {})
        assert alone[0].origin == ("d0", int(CHUNKS.start[5]), int(CHUNKS.end[5]))
    assert dict(Ranking(CHUNKS, ONE, {"search": 5.0})["q"].ms) == {"search": 5.0}


ONE = Run(("q",), [[1.0]], [[0]])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Ranking(CHUNKS, "run"), "run is a str"),
        (lambda: Ranking(None, Run(["q"], [[1.0]], [[0]])), "chunks is None"),
        (
            lambda: Ranking(CHUNKS, Run(["q"], [[1.0]], [[len(CHUNKS)]])),
            f"row {len(CHUNKS)} of {len(CHUNKS)} chunks",
        ),
        (lambda: Ranking(CHUNKS, Run(["q"], [[1.0]], [[0]]))["other"], "there is no question 'other'"),
        (lambda: Ranking(CHUNKS, Run(["q"], [[1.0]], [[0]]))[None], "the place of a hit is None"),
        (lambda: Run(["q"], [[0]], [[0.5]]), "rows holds float64 values"),  # rows where scores belong
        (
            lambda: Ranking(CHUNKS, ONE, origin=np.array([[0, 1]]), grown_from=CHUNKS),
            "origin has shape (1, 2) and rows (1, 1)",
        ),
        (lambda: Ranking(CHUNKS, ONE, origin=np.array([[0]])), "origin has rows of no table"),
    ],
)
def test_mistakes_are_our_errors(make, said):
    with pytest.raises(rb.RagbenchError, match=re.escape(said)):
        make()


class Reciprocal:
    "A metric of one's own that reads hits."

    name = "first right document"

    def __call__(self, gold, ranking):
        right = {(e.query_id, e.doc_id) for e in gold.evidence_list}
        best = {}
        for hit in ranking:
            if (hit.query, hit.doc_id) in right:
                best.setdefault(hit.query, 1 / hit.rank)
        return np.array([best.get(q.query_id, 0.0) for q in gold.answerable])


def test_a_metric_of_gold_and_ranking_agrees_with_the_named_one(tmp_path):
    corpus, gold = rb.load_dataset("procedures")
    system = rb.System(rb.TokenChunker(120), rb.Lexical(rb.FTS5()))
    results = rb.bench(
        corpus, gold, system, metrics=["doc:mrr", Reciprocal()], store=tmp_path, rounds=0, progress=False
    )
    by_chunk = results.scores("first right document")[:, 0]
    by_document = results.scores("doc:mrr")[:, 0]  # its ranks count documents, never more than chunks do
    assert ((by_chunk > 0) == (by_document > 0)).all() and (by_chunk <= by_document + 1e-12).all()
    ranking = results.systems[0].ranking
    again = score_run(gold, ranking, [Reciprocal()])["metrics"]["first right document"]
    np.testing.assert_array_equal(again, by_chunk)


def test_a_metric_of_four_arguments_is_told_what_it_is_given(tmp_path):
    def old(gold, corpus, chunks, run):
        return np.zeros(len(gold.answerable))

    old.name = "old"
    corpus, gold = rb.load_dataset("procedures")
    with pytest.raises(
        rb.RagbenchError, match=r"'old' cannot be called with two arguments.*metric\(gold, ranking\)"
    ):
        rb.bench(corpus, gold, rb.System(rb.TokenChunker(120), rb.Lexical()), metrics=[old], store=tmp_path)


def test_results_saved_without_texts_say_so_and_print(tmp_path):
    corpus, gold = rb.load_dataset("procedures")
    system = rb.System(rb.TokenChunker(120), rb.Lexical(rb.FTS5()))
    results = rb.bench(corpus, gold, system, store=tmp_path / "s", rounds=0, progress=False)
    results.save(tmp_path / "r.ragbench", with_texts=False)
    ranking = rb.Results.load(tmp_path / "r.ragbench").systems[0].ranking
    for said in (str(ranking), ranking._repr_html_()):
        assert "the text was not saved" in said and len(said) < 200
    with pytest.raises(rb.RagbenchError, match="the text was not saved"):
        list(ranking)


def signatures():
    "Every public function of the package, with the names of its arguments."
    for module in pkgutil.walk_packages(rb.__path__, "ragbench."):
        if module.name.endswith("__main__"):
            continue
        loaded = import_module(module.name)
        for name in getattr(loaded, "__all__", ()):
            value = getattr(loaded, name)
            if getattr(value, "__module__", "") != module.name or not callable(value):
                continue
            members = {name: value}
            if inspect.isclass(value):
                members |= {
                    f"{name}.{n}": f for n, f in vars(value).items() if inspect.isfunction(f) and n[0] != "_"
                }
            for path, call in members.items():
                try:
                    yield f"{module.name}.{path}", list(inspect.signature(call).parameters)
                except (TypeError, ValueError):
                    continue


def test_arguments_stand_in_one_order():
    "(gold, ranking), (corpus, gold) and (scores, rows) everywhere; a ranking brings its corpus and chunks."
    wrong, seen = [], 0
    for path, names in signatures():
        at = {name: i for i, name in enumerate(names)}
        seen += {"gold", "ranking"} <= set(at)
        if {"gold", "ranking"} <= set(at) and at["ranking"] != at["gold"] + 1:
            wrong.append(path)
        if {"gold", "corpus"} <= set(at) and at["gold"] != at["corpus"] + 1 and "save_gold" not in path:
            wrong.append(path)  # `save_gold(gold, path, corpus)` is the method `gold.save(path, corpus)`
        if {"scores", "rows"} <= set(at) and at["rows"] < at["scores"]:
            wrong.append(path)
        if "ranking" in at and {"corpus", "chunks", "run"} & set(at):
            wrong.append(path)
    assert not wrong and seen >= 8
