"""What is loaded and may be wrong is told apart from what is refused, and nothing that is left out is left out without a word."""

import subprocess
import sys
from dataclasses import replace

import pytest

from ragbench.apps.rules import Candidate, check_documents
from ragbench.bench.results import Results, toy_results
from ragbench.core.documents import Corpus, Document, Doubt, Refusal, doubts, refusals
from ragbench.ingest.load import load_corpus

REFUSED, DOUBTED = Refusal("scan.pdf", "there is no text in it"), Doubt("old.txt", "loaded as cp1252, which is a guess")


def results_with(*errors) -> Results:
    made = toy_results()
    return replace(made, corpus=Corpus(made.corpus.documents, errors))


def test_the_report_counts_what_is_refused_and_what_is_in_doubt_apart(tmp_path):
    page = results_with(REFUSED, DOUBTED).report(tmp_path / "both.html").read_text()
    assert "<b>1 file was refused</b> and is not part of the corpus" in page
    assert "<dt>refused files</dt><dd>1</dd>" in page and "<dt>files in doubt</dt><dd>1</dd>" in page
    assert "<b>1 file is in doubt</b>: part of the corpus" in page
    alone = results_with(DOUBTED).report(tmp_path / "alone.html").read_text()
    assert "<dt>refused files</dt><dd>0</dd>" in alone and "not part of the corpus</summary>" not in alone


@pytest.mark.parametrize("texts", [True, False])
def test_saved_results_remember_which_rows_are_doubts(tmp_path, texts):
    loaded = Results.load(results_with(REFUSED, DOUBTED, REFUSED).save(tmp_path / "r.zip", corpus=texts))
    assert [type(e) for e in loaded.corpus.errors] == [Refusal, Doubt, Refusal]
    assert doubts(loaded.corpus.errors) == [DOUBTED] and refusals(loaded.corpus.errors) == [REFUSED, REFUSED]


def test_a_data_set_with_a_doubt_is_not_called_refused():
    c = Candidate("x", {"refused": ["old.txt"]}, Corpus([Document("old.txt", "some words")], [DOUBTED]), ())
    found = {f.what for f in check_documents(c)}
    assert any("may not be read right" in w for w in found) and not any(w.startswith("it was refused") for w in found)
    assert "it is listed under `refused`, and was not" in found


def test_a_report_without_tags_has_no_slices(tmp_path):
    tagged = toy_results()
    assert 'id="slices"' in tagged.report(tmp_path / "tags.html").read_text()
    untagged = tagged.gold.queries.assign(tags=[()] * len(tagged.gold.queries))
    bare = replace(tagged, gold=replace(tagged.gold, queries=untagged))
    page = bare.report(tmp_path / "bare.html").read_text()
    assert "slices" not in page.split("<main>")[0].split("<nav")[1] and 'id="slices"' not in page


@pytest.mark.parametrize("module", ["ragbench", "ragbench.apps.cli"])
def test_the_command_runs_as_a_module(module):
    done = subprocess.run([sys.executable, "-m", module, "cache", "verify", "--store", "/nowhere/at/all"], capture_output=True, text=True)
    assert done.returncode != 0 and done.stderr.startswith("ragbench: ")
    assert subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True).stdout.strip()


DEEP = "<html><body><p>Some words stand before it.</p>{}<p>Inside of all of them is a text.</p>{}<p>After it.</p></body></html>"


@pytest.mark.parametrize("depth", [300, 200_000])
def test_a_page_that_nests_too_deep_is_refused_for_that(tmp_path, depth):
    pytest.importorskip("trafilatura")
    (tmp_path / "deep.html").write_text(DEEP.format("<div>" * depth, "</div>" * depth))
    [row] = load_corpus(tmp_path).errors
    assert "too deep" in row.reason and "script" not in row.reason


def test_a_page_that_nests_as_deep_as_pages_do_is_read(tmp_path):
    pytest.importorskip("trafilatura")
    (tmp_path / "page.html").write_text(DEEP.format("<div>" * 200, "</div>" * 200))
    corpus = load_corpus(tmp_path)
    assert not corpus.errors and "After it." in corpus[0].text


@pytest.mark.parametrize("front", ["[" * 50_000 + "]" * 50_000, "[" * 25_000 + "]" * 25_000, "[" * 50_000, "x" * 70_000])
def test_front_matter_that_cannot_be_read_says_so(tmp_path, front):
    (tmp_path / "a.md").write_text(f"---\na: {front}\n---\n\nHello\n")
    assert load_corpus(tmp_path)[0].metadata["front_matter_error"]
    (tmp_path / "a.md").write_text(f"---\n\nA rule, and words.\n\n{'word ' * 20_000}\n---\n\nHello\n")
    assert "front_matter_error" not in load_corpus(tmp_path)[0].metadata
