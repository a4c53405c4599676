"""What is loaded and may be wrong is told apart from what is refused, and nothing that is left out is left
out without a word."""

import subprocess
import sys
from dataclasses import replace
from datetime import date

import pytest

from ragbench.apps.dataset_rules import RULES, UncheckedDataset
from ragbench.base.errors import ConfigError, DataError
from ragbench.bench.results import Results
from ragbench.core.chunks import Chunks
from ragbench.core.documents import Corpus, Document, Doubt, Refusal, doubts, refusals
from ragbench.ingest.load_corpus import load_corpus
from ragbench.steps.boosts import Boost
from ragbench.system.where import allowed_rows
from ragbench.testing.toy_results import toy_results

REFUSED = Refusal("scan.pdf", "there is no text in it")
DOUBTED = Doubt("old.txt", "loaded as cp1252, which is a guess")


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
    loaded = Results.load(results_with(REFUSED, DOUBTED, REFUSED).save(tmp_path / "r.zip", with_texts=texts))
    assert [type(e) for e in loaded.corpus.errors] == [Refusal, Doubt, Refusal]
    assert doubts(loaded.corpus.errors) == [DOUBTED] and refusals(loaded.corpus.errors) == [REFUSED, REFUSED]


def test_a_data_set_with_a_doubt_is_not_called_refused():
    c = UncheckedDataset(
        "x", {"refused": ["old.txt"]}, Corpus([Document("old.txt", "some words")], [DOUBTED]), ()
    )
    found = {f.what for f in RULES["documents"](c)}
    assert any("may not be read right" in w for w in found) and not any(
        w.startswith("it was refused") for w in found
    )
    assert "it is listed under `refused`, and was not" in found


def test_a_report_without_tags_has_no_slices(tmp_path):
    tagged = toy_results()
    assert 'id="slices"' in tagged.report(tmp_path / "tags.html").read_text()
    untagged = tuple(q._replace(tags=()) for q in tagged.gold.query_list)
    bare = replace(tagged, gold=replace(tagged.gold, query_list=untagged))
    page = bare.report(tmp_path / "bare.html").read_text()
    assert "slices" not in page.split("<main>")[0].split("<nav")[1] and 'id="slices"' not in page


@pytest.mark.parametrize("module", ["ragbench", "ragbench.apps.cli"])
def test_the_command_runs_as_a_module(module):
    done = subprocess.run(
        [sys.executable, "-m", module, "datasets", "check", "/nowhere/at/all"], capture_output=True, text=True
    )
    assert done.returncode != 0 and done.stderr.startswith("ragbench: ")
    assert subprocess.run(
        [sys.executable, "-m", module, "--version"], capture_output=True, text=True
    ).stdout.strip()


DEEP = (
    "<html><body><p>Some words stand before it.</p>{}<p>Inside of all of them is a text.</p>{}<p>After"
    " it.</p></body></html>"
)


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


@pytest.mark.parametrize(
    "front", ["[" * 50_000 + "]" * 50_000, "[" * 25_000 + "]" * 25_000, "[" * 50_000, "x" * 70_000]
)
def test_front_matter_that_cannot_be_read_says_so(tmp_path, front):
    (tmp_path / "a.md").write_text(f"---\na: {front}\n---\n\nHello\n")
    assert load_corpus(tmp_path)[0].metadata["front_matter_error"]
    (tmp_path / "a.md").write_text(f"---\n\nA rule, and words.\n\n{'word ' * 20_000}\n---\n\nHello\n")
    assert "front_matter_error" not in load_corpus(tmp_path)[0].metadata


LETTERS = "Öl für die Wärmetauscher prüfen, größer, Ø, °C"


def rows(path, **options):
    corpus = load_corpus(path, **options)
    assert len(corpus) == 1
    assert all(isinstance(e, Doubt) for e in corpus.errors)
    return [e.reason for e in corpus.errors]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", LETTERS),
        ("a.md", f"# T\n\n{LETTERS}"),
        ("a.csv", f"text\n{LETTERS.replace(',', '')}\n"),
        ("a.json", f'{{"text": "{LETTERS}"}}'),
    ],
)
def test_replaced_letters_are_a_doubt_with_their_number_and_what_to_try(tmp_path, name, text):
    (tmp_path / name).write_bytes(text.encode("cp1252"))
    [reason] = rows(tmp_path / name, encoding="utf-8")
    assert f"{sum(c > chr(127) for c in text)} letters" in reason and "encoding='cp1252'" in reason


def test_letters_that_were_replaced_without_being_asked_are_a_doubt(tmp_path):
    (tmp_path / "cut.txt").write_bytes((LETTERS * 5).encode()[:-1] + b"\xc3 and on")
    [reason] = rows(tmp_path / "cut.txt")
    assert "letter" in reason and "U+FFFD" in reason


@pytest.mark.parametrize(
    "text", [LETTERS * 3, "Plain words without any letter beyond ASCII, and a line of them more."]
)
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "cp037"])
def test_an_encoding_that_makes_nonsense_of_a_file_is_a_doubt(tmp_path, encoding, text):
    (tmp_path / "a.txt").write_bytes(text.encode() + b" " * (len(text.encode()) % 2))
    [reason] = rows(tmp_path / "a.txt", encoding=encoding)
    assert "encoding='utf-8'" in reason


def test_utf_8_read_as_a_code_page_is_a_doubt(tmp_path):
    (tmp_path / "a.txt").write_text(LETTERS, encoding="utf-8")
    assert "valid UTF-8" in rows(tmp_path / "a.txt", encoding="cp1252")[0]


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (LETTERS, "utf-8"),
        (LETTERS, "utf-8-sig"),
        (LETTERS, "cp1252"),
        (LETTERS, "utf-16"),
        (LETTERS, "utf-16-le"),
        (LETTERS, "cp037"),
        ("Plain words", "cp1252"),
        ("Plain words", "ascii"),
        ("漢字とかな" * 20, "shift_jis"),
        ("漢字とかな" * 20, "iso2022_jp"),
        ("漢字とかな" * 20, "utf-16-be"),
        ("Проверить масло", "koi8-r"),
        ("Αντλία λαδιού", "cp1253"),
    ],
)
def test_the_right_encoding_is_beyond_doubt(tmp_path, text, encoding):
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    assert rows(tmp_path / "a.txt", encoding=encoding) == []


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "secret.txt").write_text("What nobody gave.")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "c.txt").write_text("Nor this.")
    given = tmp_path / "given"
    (given / "sub").mkdir(parents=True)
    (given / "a.txt").write_text("Check the oil.")
    (given / "b.txt").symlink_to("a.txt")
    (given / "sub" / "up.txt").symlink_to("../a.txt")
    (given / "out.txt").symlink_to("../secret.txt")
    (given / "far").symlink_to("../elsewhere")
    return given


@pytest.mark.parametrize("source", ["{}", "{}/**/*.txt", "{}/../given"])
def test_a_link_out_of_the_folder_is_a_row(folder, source):
    corpus = load_corpus(source.format(folder))
    assert sorted(d.id.removeprefix("given/") for d in corpus) == ["a.txt", "b.txt", "sub/up.txt"]
    assert [e.reason for e in corpus.errors if e.source.endswith("out.txt")] == [
        "it is a link to a file outside the folder; give that file by name, or follow_links=True"
    ]
    assert "What nobody gave." in [d.text for d in load_corpus(source.format(folder), follow_links=True)]


def test_a_pattern_does_not_reach_through_a_link_to_a_folder(folder):
    corpus = load_corpus(f"{folder}/*/*.txt")
    assert [d.id for d in corpus] == ["sub/up.txt"] and [e.source for e in corpus.errors] == ["far/c.txt"]
    assert len(load_corpus(f"{folder}/*/*.txt", follow_links=True)) == 2


def test_a_link_that_is_given_by_name_is_read_and_a_folder_behind_a_link_too(folder):
    assert load_corpus(folder / "out.txt")[0].text == "What nobody gave."
    assert len(load_corpus(folder / "far")) == 1


def test_a_data_set_cannot_name_a_folder_outside_of_it(folder):
    (folder / "dataset.toml").write_text('documents = "../elsewhere"')
    with pytest.raises(DataError, match="outside"):
        load_corpus(folder)
    assert len(load_corpus(folder, follow_links=True)) == 1


def dated() -> Chunks:
    corpus = Corpus(
        [
            Document(d, "Some words.", metadata={"date": d, "rev": 3, "draft": False})
            for d in ("2023-12-31", "2024-01-01", "2024-06-01T10:00")
        ]
        + [Document("x", "None.", metadata={"date": "soon"})]
    )
    return Chunks(corpus, [0, 1, 2, 3], [0, 0, 0, 0], [4, 4, 4, 4])


@pytest.mark.parametrize("limit", ["2024-01-01", date(2024, 1, 1)])
def test_dates_are_compared_as_dates(limit):
    assert allowed_rows(dated(), {"date": {"$gte": limit}}).tolist() == [1, 2]
    assert allowed_rows(dated(), {"date": {"$lt": limit}}).tolist() == [0]
    assert Boost({"date": {"$gt": limit}}, 1.0).applies("", {"date": ["2024-02-01"]})
    with pytest.raises(ConfigError, match="ISO dates"):
        allowed_rows(dated(), {"date": {"$gte": "soon"}})


@pytest.mark.parametrize("where", [{"rev": "3"}, {"draft": 0}, {"date": 2024}])
def test_a_value_of_another_kind_is_a_warning(where, caplog):
    assert allowed_rows(dated(), where).size == 0
    assert "never holds" in caplog.text


def test_a_title_in_place_of_a_section_path_is_a_warning(caplog):
    chunks = Chunks(Corpus([Document("a", "one two")]), [0, 0], [0, 4], [3, 7], section=["Pump", "Pump/Stop"])
    assert allowed_rows(chunks, {"section": "Stop"}).size == 0 and "'Pump/Stop'" in caplog.text
    assert allowed_rows(chunks, {"section": "Pump/Stop"}).tolist() == [1]
