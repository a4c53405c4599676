"""What lies in a folder that strangers packed: each thing is a document, a row in errors, or left out by a
stated rule; nothing ends the load, nothing hangs it."""

import csv
import gc
import logging
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from test_ingest import make_docx, make_pdf

from ragbench import (
    FTS5,
    Corpus,
    KnowledgeBase,
    Lexical,
    Store,
    System,
    TokenChunker,
    bench,
    load_beir,
    load_chunking_eval,
    load_corpus,
    load_dataset,
    load_squad,
    load_trec,
    load_url,
)
from ragbench.base.errors import ConfigError, DataError, RagbenchError, StoreError
from ragbench.ingest import load_corpus as load
from ragbench.ingest.loader import Limits
from ragbench.ingest.mupdf import mupdf
from ragbench.ingest.sources import find_files

SHIPPED = Path(__file__).parents[1] / "datasets"


def plain(value):
    "A value as its test is called: without the address of an object, which differs between workers."
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder with one of everything."""
    top = tmp_path / "docs"
    (top / "sub").mkdir(parents=True)
    (top / "a.md").write_text("# Oil\n\nCheck the level.")
    (top / "sub" / "b.txt").write_text("Vent the tank.")
    (top / ".hidden.md").write_text("hidden")
    (top / ".git").mkdir()
    (top / ".git" / "c.md").write_text("hidden")
    os.mkfifo(top / "pipe.txt")
    (top / "device.csv").symlink_to("/dev/zero")
    (top / "file-link.md").symlink_to("a.md")
    (top / "nowhere.pdf").symlink_to("gone.pdf")
    (top / "itself").symlink_to("itself")
    (top / "sub" / "up").symlink_to("..")
    (top / "out").symlink_to(tmp_path)
    listening = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(top)  # a socket's path may not be long
    listening.bind("socket.json")
    os.chdir(here)
    yield top
    listening.close()


REASONS = {
    "device.csv": "it is a device, not a file", "itself": "it cannot be read: Too many levels of symbolic links", "nowhere.pdf": "it is a link that leads nowhere",  # noqa: E501
    "out": "it is a link to a folder, which is not followed", "pipe.txt": "it is a pipe, not a file", "socket.json": "it is a socket, not a file", "sub/up": "it is a link to a folder, which is not followed",  # noqa: E501
}  # fmt: skip


@pytest.mark.faults
@pytest.mark.timeout(60)
def test_everything_in_a_folder_is_a_document_a_row_or_left_out_by_rule(odd):
    corpus = load_corpus(odd)
    assert [d.id for d in corpus] == ["a.md", "file-link.md", "sub/b.txt"]
    assert dict(corpus.errors) == REASONS


@pytest.mark.faults
@pytest.mark.timeout(60)
def test_patterns_keep_to_the_same_rules(odd):
    corpus = load_corpus(f"{odd}/**/*")
    assert [d.id for d in corpus] == ["a.md", "file-link.md", "sub/b.txt"]
    assert dict(corpus.errors) == {name: why for name, why in REASONS.items() if "folder" not in why}
    assert [d.id for d in load_corpus(f"{odd}/**/*.md")] == ["a.md", "file-link.md"]
    assert [d.id for d in load_corpus(f"{odd}/.h*.md")] == [".hidden.md"]
    for n in range(3):  # links that lead back up: Python's glob walks 2 ** 40 folders
        (odd / "sub" / f"up{n}").symlink_to("..")
    assert [d.id for d in load_corpus(f"{odd}/**/*.txt")] == ["sub/b.txt"]


@pytest.mark.faults
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["pipe.txt", "device.csv", "nowhere.pdf", "itself", "socket.json"])
def test_what_is_no_file_is_a_row_by_name_too(odd, name):
    corpus = load_corpus(odd / name)
    assert (len(corpus), len(corpus.errors)) == (0, 1)
    for type in ("text", "csv", "json", "pdf", "html", "docx", "markdown", "transcript"):
        assert len(load_corpus(odd / name, type=type, workers=0).errors) == 1


@pytest.mark.faults
def test_a_folder_that_cannot_be_opened_is_a_row_and_the_source_itself_an_error(odd, monkeypatch):
    real = os.scandir

    def scandir(path):
        if Path(path).name == "sub":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    for source in (odd, f"{odd}/**/*.*"):
        corpus = load_corpus(source)
        assert [d.id for d in corpus] == ["a.md", "file-link.md"]
        assert ("sub", "the folder cannot be read: Permission denied") in corpus.errors
    with pytest.raises(DataError, match="the folder cannot be read: Permission denied"):
        load_corpus(odd / "sub")


@pytest.mark.faults
@pytest.mark.parametrize("workers", [0, None])
def test_names_that_are_not_utf_8(tmp_path, workers):
    raw = os.fsencode(tmp_path)
    for name in (b"caf\xe9.md", b"\xff\xfe.txt", b"a.pdf\xe9.pdf"):
        Path(os.fsdecode(raw + b"/" + name)).write_bytes(make_pdf(1) if name.endswith(b"pdf") else b"Oil.")
    (tmp_path / "caf\\xe9.md").write_text("The same id, spelt out.")
    corpus = load_corpus(tmp_path, workers=workers)
    assert sorted(d.id for d in corpus) == sorted(["\\xff\\xfe.txt", "a.pdf\\xe9.pdf", "caf\\xe9.md"])
    ((source, reason),) = corpus.errors
    assert source == "caf\\xe9.md"
    assert "its id was already used" in reason
    print(corpus, corpus.errors)
    corpus._repr_html_().encode("utf-8")
    assert corpus.fingerprint


@pytest.mark.faults
def test_two_things_with_one_id_cost_the_second(tmp_path):
    (tmp_path / "a.csv").write_text("text\nOil\nGas\n")
    (tmp_path / "a.csv#1").write_bytes(
        make_pdf(1)
    )  # without an ending that means anything: a PDF, by its first bytes
    corpus = load_corpus(tmp_path)
    assert [d.id for d in corpus] == ["a.csv#1", "a.csv#2"]
    assert [e.source for e in corpus.errors] == ["a.csv#1"]
    assert "its id was already used" in corpus.errors[0].reason


CHANGES = {
    "grow": lambda path: path.write_bytes(path.read_bytes() * 2),
    "replace": lambda path: (
        path.with_name("new").write_bytes(path.read_bytes()),
        os.replace(path.with_name("new"), path),
    ),
    "vanish": lambda path: path.unlink(),
}


@pytest.mark.faults
@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.md", "a.pdf", "a.docx"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_or_vanishes_while_it_is_read_is_a_row(tmp_path, monkeypatch, name, change):
    path = tmp_path / name
    content = {
        ".pdf": make_pdf(1),
        ".docx": make_docx(),
        ".csv": b"text\nOil\nGas\n",
        ".json": b'[{"text": "Oil"}]',
        ".md": b"# Oil\n",
    }[path.suffix]
    path.write_bytes(content)
    (tmp_path / "z.md").write_text("Oil.")
    loader = load.LOADERS[load.type_of(path)]

    def change_first(path, *, doc_id):
        if path.name == name:
            CHANGES[change](path)
        return loader(path, doc_id=doc_id)

    def change_last(path, *, doc_id):
        found = loader(path, doc_id=doc_id)
        found = found if hasattr(found, "text") else list(found)
        if path.name == name:
            CHANGES[change](path)
        return found

    for moment in (change_first, change_last):
        path.write_bytes(content)
        monkeypatch.setitem(load.LOADERS, load.type_of(path), moment)
        corpus = load_corpus(tmp_path, workers=0)
        monkeypatch.undo()
        reasons = dict(corpus.errors)
        assert "z.md" in corpus.rows
        assert reasons[name] == (
            "it vanished while it was read" if change == "vanish" else "it changed while it was read"
        )
        assert not [d for d in corpus if d.id.startswith(name)]


def test_a_file_that_vanishes_between_listing_and_reading(tmp_path, monkeypatch):
    (tmp_path / "a.md").write_text("Oil.")
    (tmp_path / "b.md").write_text("Gas.")
    real = load.find_files

    def find(source, *more):
        found = real(source, *more)
        (tmp_path / "a.md").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(load, "find_files", find)
    corpus = load_corpus(tmp_path)
    assert ([d.id for d in corpus], corpus.errors) == (["b.md"], (("a.md", "there is no such file"),))


def test_several_sources_make_one_corpus_with_distinct_ids(tmp_path):
    for name in (
        "north/docs/oil.md",
        "south/docs/oil.md",
        "south/docs/gas.txt",
        "south/more/gas.txt",
        "north/notes.md",
        "south/notes.md",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# Of {name}\n")
    (tmp_path / "south/docs/gone.md").symlink_to("nowhere")
    sources = [
        tmp_path / "south/docs",
        f"{tmp_path}/north/docs",
        f"{tmp_path}/north/notes.md",
        tmp_path / "south/notes.md",
        f"{tmp_path}/*/more/*.txt",
    ]
    corpus = load_corpus(sources)
    assert [d.id for d in corpus] == [
        "south/docs/gas.txt",
        "south/docs/oil.md",
        "north/docs/oil.md",
        "north/notes.md",
        "south/notes.md",
        f"{tmp_path.name}/south/more/gas.txt",
    ]
    assert corpus.errors == (("south/docs/gone.md", "it is a link that leads nowhere"),)
    assert [d.id for d in load_corpus((tmp_path / "south/docs",))] == [
        "gas.txt",
        "oil.md",
    ]  # one alone keeps its ids
    assert {d.text for d in load_corpus(sources[:2])} == {d.text for s in sources[:2] for d in load_corpus(s)}
    two = load_corpus([f"{tmp_path}/south/docs/*.md", f"{tmp_path}/south/docs/*"])
    assert [d.id for d in two] == ["docs/oil.md", "docs/gas.txt"]
    assert [e.source for e in two.errors] == ["docs/gone.md", "docs/gone.md", "docs/oil.md"]
    both = load_corpus([SHIPPED / "textbook", tmp_path / "north/docs"])
    assert {d.id.split("/")[0] for d in both} == {"textbook", "docs"}


def test_files_and_a_url_in_one_load(tmp_path):
    pytest.importorskip("trafilatura")
    from helper_site import Site, html

    site = Site()
    site.pages["/"] = html("Docs")
    (tmp_path / "a.md").write_text("Oil.")
    corpus = load_corpus([tmp_path, site.url + "/"], delay=0, allow_private=True)
    site.server.shutdown()
    site.server.server_close()
    assert [d.id for d in corpus] == [f"{tmp_path.name}/a.md", site.url + "/"]


def test_sources_that_are_not_there_or_empty_say_what_may_have_been_meant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / ".a.md").write_text("x")
    (tmp_path / "textbook").mkdir()
    for source, words in {
        "empty": "there are no files in it",
        "hidden": "1 hidden ones are left out",
        "gone": "Looked for in",
        "procedures": "load_dataset('procedures')",
        "*.md": "no file matches the pattern",
        # fmt: skip
        "~nobody-of-this-name/docs": "there is no such file",
        "x" * 5000: "If this is the text itself",
        "Check the oil.\nThen start.": "If this is the text itself",
    }.items():
        with pytest.raises(DataError, match=words.replace("(", r"\(").replace(")", r"\)")):
            load_corpus(source)
    with pytest.raises(DataError, match="a data set of this name ships"):
        load_dataset("textbook")  # a folder of this name stands in front of the data set
    assert len(load_dataset("procedures")[0]) > 0


WRONG = [None, 5, 2.5, True, b"docs", object(), {"a": 1}, [None], [5], [["docs"]], (), []]


def whole(loader, path) -> list:
    found = loader(path, doc_id="a")
    return [found] if hasattr(found, "text") else list(found)


@pytest.mark.parametrize("wrong", WRONG, ids=plain)
def test_wrong_types_are_our_errors_everywhere(wrong, tmp_path):
    for function in (
        load_corpus,
        load_url,
        load_dataset,
        load_beir,
        load_squad,
        load_chunking_eval,
        load_trec,
        find_files,
    ):
        with pytest.raises(RagbenchError):
            function(wrong)
    for loader in load.LOADERS.values():
        with pytest.raises(RagbenchError):
            whole(loader, wrong)
    for field in ("bytes", "pages", "seconds", "memory"):
        if wrong != 5:
            with pytest.raises(ConfigError, match=f"Limits: {field} is"):
                Limits(**{field: wrong})


MADE = {
    "a.md": b"# Oil\n",
    "a.txt": b"Oil.",
    "a.csv": b"id,text\n1,Oil\n",
    "a.json": b'[{"id": "a", "text": "Oil"}]',
    "a.vtt": b"WEBVTT\n\n00:01.000 --> 00:02.000\nOil.\n",
}
OPTIONS = {
    "a.md": ("encoding", "drop_fences", "limits"), "a.txt": ("encoding", "limits", "workers", "type"), "a.vtt": ("encoding", "pause", "limits"),  # noqa: E501
    "a.csv": ("text_columns", "id_column", "metadata_columns", "encoding", "delimiter", "quotechar", "limits"),  # noqa: E501
    "a.json": ("text_field", "id_field", "metadata_fields", "array_path", "encoding", "limits"), "a.pdf": ("password", "ocr", "limits"),  # noqa: E501
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name, options in OPTIONS.items() for option in options]
)
def test_options_of_wrong_types_are_our_errors_or_rows(tmp_path, name, option):
    path = tmp_path / name
    path.write_bytes(MADE.get(name) or make_pdf(1))
    for wrong in (
        5,
        2.5,
        b"x",
        object(),
        {"a": 1},
        [None],
        "",
        "\0",
        "\n",
        "undefined",
        "hex",
        ["a", 5],
        lambda: 0,
        float("nan"),
        -1,
    ):
        try:
            corpus = load_corpus(path, **{"workers": 0} | {option: wrong})
        except RagbenchError:
            continue
        assert not [e for e in corpus.errors if "mistake of its own" in e.reason], (wrong, corpus.errors)


def test_options_of_a_visit_of_wrong_types_are_our_errors():
    for option in ("max_depth", "delay", "max_redirects", "user_agent", "limits", "workers"):
        for wrong in ("x\r\nHost: inside", -1, object(), [1], b"x", "", float("nan")):
            with pytest.raises(RagbenchError):
                load_url("http://127.0.0.1:9/", **{option: wrong})


def process_settings() -> dict:
    import locale
    import warnings

    import pymupdf

    tools = (
        "mupdf_display_errors",
        "mupdf_display_warnings",
        "unset_quad_corrections",
        "set_small_glyph_heights",
        "set_subset_fontnames",
    )
    return {
        "csv": csv.field_size_limit(), "recursion": sys.getrecursionlimit(), "digits": sys.get_int_max_str_digits(), "gc": gc.isenabled(), "warnings": list(warnings.filters), "environment": dict(os.environ),  # noqa: E501
        "folder": os.getcwd(), "locale": locale.setlocale(locale.LC_ALL), "timeout": socket.getdefaulttimeout(), "root logger": (logging.root.level, list(logging.root.handlers)),  # noqa: E501
    } | {name: bool(getattr(pymupdf.TOOLS, name)()) for name in tools}  # fmt: skip


def test_no_load_changes_a_setting_of_the_process(tmp_path):
    """Not even where several threads load at once, and not by a file that fails."""
    import pymupdf  # noqa: F401  # its import sets what it sets

    for name, content in MADE.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "long.csv").write_text("id,text\n1," + "x" * 500_000 + "\n")
    (tmp_path / "a.pdf").write_bytes(make_pdf(2))
    (tmp_path / "b.pdf").write_bytes(make_pdf()[:400])
    (tmp_path / "a.docx").write_bytes(make_docx())
    (tmp_path / "a.html").write_text(
        "<html><body><main><p>Check the level before each start.</p></main></body></html>"
    )
    load_corpus(tmp_path, workers=0)  # imports may set something once
    before = process_settings()
    threads = [
        threading.Thread(target=load_corpus, args=(tmp_path,), kwargs={"workers": 0}) for _ in range(1)
    ]
    threads += [
        threading.Thread(target=load_corpus, args=(tmp_path / name,), kwargs={"workers": 0})
        for name in ("long.csv", "a.csv", "a.docx", "a.json")
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert process_settings() == before


@pytest.mark.parametrize("size", [131_071, 131_073, 900_000, 1_100_000])
def test_a_long_line_of_a_table_loads_whatever_was_read_before(tmp_path, size):
    """In a fresh process, after another table, and with a limit that somebody else has set."""
    path, other = tmp_path / "a.csv", tmp_path / "b.csv"
    path.write_text("id,text\n1," + "x" * size + "\n2,short\n")
    other.write_text("id,text\n1,Oil\n")
    code = (
        "import csv, sys\nfrom ragbench.ingest.load_corpus import load_corpus\nif sys.argv[2] == 'low':"
        " csv.field_size_limit(10)\nif sys.argv[2] == 'after': load_corpus(sys.argv[3], workers=0)\nc ="
        " load_corpus(sys.argv[1], workers=0)\nprint([len(d.text) for d in c], [e.reason for e in c.errors],"
        " csv.field_size_limit())"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code, str(path), when, str(other)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for when in ("fresh", "after", "low")
    ]
    assert said[0] == said[1]
    assert said[0][:-1] == said[2][:-1]
    assert [s[-1] for s in said] == ["131072", "131072", "10"]
    expected = f"[{size + 3}, 8]" if size < 1_000_000 else "[8]"
    assert " ".join(said[0]).startswith(expected)
    assert ("a cell has more than 1,000,000 characters" in " ".join(said[0])) == (size > 1_000_000)


def test_a_pdf_reads_the_same_whatever_was_imported(tmp_path):
    """pymupdf4llm, and the layout network that comes with PyMuPDF's wheel, turn off a correction of boxes for
    the whole process."""
    import pymupdf

    (tmp_path / "a.pdf").write_bytes(make_pdf(2))
    ids = []
    for on in (False, True):
        pymupdf.TOOLS.unset_quad_corrections(on)
        with mupdf():
            assert not pymupdf.TOOLS.unset_quad_corrections()
        ids.append(load_corpus(tmp_path, workers=0).fingerprint)
        assert bool(pymupdf.TOOLS.unset_quad_corrections()) == on
    assert ids[0] == ids[1]


def test_an_empty_corpus_is_a_corpus(tmp_path):
    os.mkfifo(tmp_path / "pipe.md")
    corpus = load_corpus(tmp_path)
    assert isinstance(corpus, Corpus)
    assert (len(corpus), len(corpus.errors)) == (0, 1)


def test_what_this_package_made_in_a_folder_is_no_document(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "pump.md").write_text("# Pump\n\nCheck the oil.")
    (docs / "system.json").write_text('{"what": "a system of valves"}')
    corpus = load_corpus(docs, progress=False)
    system = System(TokenChunker(50), Lexical(FTS5()))
    system.build(corpus, store=docs / "made" / "store").save(docs / "made" / "saved")
    Store(docs / "made" / "store").make("sums", {"of": 1}, lambda: {"sum": 1})
    KnowledgeBase.create(docs / "made" / "base", system).close()
    again = load_corpus(docs, progress=False)
    assert [d.id for d in again] == [d.id for d in corpus] == ["pump.md", "system.json"]
    reasons = {
        "made/base": "it is a knowledge base of ragbench, not documents",
        "made/saved": "it is a saved system of ragbench, not documents",
        "made/store": "it is a store of ragbench, not documents",
    }
    assert {e.source: e.reason for e in again.errors} == reasons
    for pattern in ("**/*", "made/*/*", "**"):
        found = find_files(f"{docs}/{pattern}")
        assert {e.reason for e in found.errors} == set(reasons.values())
        assert {f.name for f in found.files} <= {"pump.md", "system.json"}
    for name, reason in reasons.items():
        with pytest.raises(DataError, match=reason):
            load_corpus(docs / name, progress=False)


def test_no_store_among_other_things(tmp_path):
    (tmp_path / "pump.md").write_text("Check the oil.")
    corpus, gold = load_dataset("coaching", progress=False)
    system = System(TokenChunker(50), Lexical(FTS5()))
    attempts = [
        lambda: bench(corpus, gold, [system], store=tmp_path, progress=False),
        lambda: system.build(corpus, store=str(tmp_path)),
        lambda: Store(tmp_path).make("sums", {"of": 1}, lambda: {"sum": 1}),
        lambda: Store(tmp_path).in_use().__enter__(),
    ]
    for attempt in attempts:
        with pytest.raises(StoreError, match="holds other things and is no store: 'pump.md'"):
            attempt()
        assert [p.name for p in tmp_path.iterdir()] == ["pump.md"]
    (tmp_path / "pump.md").unlink()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("a")
    with pytest.raises(StoreError, match="'notes'"):
        attempts[2]()
    store = Store(tmp_path / "own")
    store.make("sums", {"of": 1}, lambda: {"sum": 1})
    (store.root / "ragbench-store.json").unlink()
    (store.root / "README.md").write_text("mine")
    assert store.make("sums", {"of": 2}, lambda: {"sum": 2}).value("sum") == 2


def test_a_file_of_two_sources_is_one_document(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("docs/pump.md", "docs/valve.md"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(f"About {name}.")
    for second in ("docs/pump.md", "./docs/pump.md", str(tmp_path / "docs" / "pump.md"), "docs/p*.md"):
        corpus = load_corpus(["docs", second], progress=False)
        assert [d.id for d in corpus] == ["docs/pump.md", "docs/valve.md"]
        (error,) = corpus.errors
        assert "it is the same file as 'docs/pump.md', which another source names" in error.reason
    assert len(load_corpus(["docs/valve.md", "docs/pump.md"], progress=False)) == 2


def test_an_empty_file_is_a_refused_document_and_an_empty_folder_an_error(tmp_path):
    (tmp_path / "a.txt").write_text("")
    corpus = load_corpus(tmp_path / "a.txt", progress=False)
    assert (len(corpus), len(corpus.errors)) == (0, 1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="there are no files in it"):
        load_corpus(tmp_path / "empty", progress=False)


def test_a_column_that_is_called_id_is_text_until_it_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("id,text\nP-1,Pump\n")
    assert [d.text for d in load_corpus(tmp_path / "a.csv", progress=False)] == ["P-1\n\nPump"]
    named = load_corpus(tmp_path / "a.csv", id_column="id", progress=False)
    assert [d.text for d in named] == ["Pump"]
