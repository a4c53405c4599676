"""Ctrl-C in a load keeps what was read; what is wrong for all files is said before any is read, what meets
one file is a row."""

import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pymupdf
import pytest

from ragbench.base.errors import ConfigError, DataError
from ragbench.ingest import load_corpus as load
from ragbench.ingest.load_corpus import load_corpus
from ragbench.ingest.ocr import ENDPOINT, KEY, Tesseract


def html(title, *links):
    text = "The pump is started with the green switch and stopped with the red one. " * 3
    return f"<html><head><title>{title}</title></head><body><main><h1>{title}</h1><p>{text}{title}</p>{''.join(f'<a href={link!r}>{link}</a>' for link in links)}</main></body></html>".encode()  # noqa: E501


@pytest.fixture
def site():
    "A site of three pages and one that never comes; `asked` is set when somebody asks for that."
    asked, over = threading.Event(), threading.Event()
    pages = {
        "/": html("Home", "/one", "/two", "/never", "/last"),
        "/one": html("One"),
        "/two": html("Two"),
        "/last": html("Last"),
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/never":
                asked.set()
                over.wait(120)
            body = pages.get(self.path, b"")
            try:
                self.send_response(200 if body else 404)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                pass

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    over.set()
    server.shutdown()
    server.server_close()


def stopped(code, asked):
    "What a program says that gets Ctrl-C when the server was asked for the page that never comes."
    p = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert asked.wait(100), p.communicate(timeout=10)
    p.send_signal(signal.SIGINT)
    return *p.communicate(timeout=60), p.returncode


@pytest.mark.parametrize(
    "call",
    [
        "load_url('URL', max_depth=1, delay=0, allow_private=True)",
        "load_corpus('URL', max_depth=1, delay=0, allow_private=True)",
    ],
)
def test_a_crawl_that_is_stopped_keeps_its_pages(site, call):
    url, asked = site
    out, err, _ = stopped(
        f"""
        from ragbench.ingest.load_corpus import load_corpus
        from ragbench.ingest.web import load_url
        try: {call.replace("URL", url)}
        except KeyboardInterrupt as e: print([d.metadata["title"] for d in e.corpus], e._render_traceback_() == e.__notes__, e.__notes__[0], sep="\\n")
        """,  # noqa: E501
        asked,
    )
    titles, same, line = out.splitlines()
    assert titles == "['Home', 'One', 'Two']", err
    assert same == "True"
    assert line.startswith(
        "stopped: 3 of 5 pages known so far were asked for; 3 documents and 0 refusals are in"
        " sys.last_value.corpus"
    )


def test_a_script_that_is_stopped_says_it_in_its_last_line(site):
    url, asked = site
    out, err, code = stopped(
        f"from ragbench import load_corpus; load_corpus({url!r}, max_depth=1, delay=0, allow_private=True)",
        asked,
    )
    assert code != 0
    assert err.splitlines()[-1].startswith("stopped: 3 of 5 pages")


def test_files_that_were_read_beside_a_stopped_crawl_are_kept(site, tmp_path):
    url, asked = site
    (tmp_path / "a.md").write_text("# Oil\n\nCheck it.")
    for sources in ([str(tmp_path), url], [url, str(tmp_path)]):
        asked.clear()
        out, err, _ = stopped(
            f"""
            from ragbench import load_corpus
            try: load_corpus({sources!r}, max_depth=1, delay=0, allow_private=True)
            except KeyboardInterrupt as e: print(sorted(d.format for d in e.corpus))
            """,
            asked,
        )
        assert out.strip() == "['html', 'html', 'html', 'markdown']", err


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_that_is_stopped_keeps_its_files(tmp_path, monkeypatch, workers):
    for i in range(8):
        (tmp_path / f"{i}.md").write_text(f"# Pump {i}\n\nStart it.")
    (tmp_path / "3.docx").write_bytes(b"no ZIP")

    def stops(what, total, unit, enabled, over):
        for n, item in enumerate(over):
            if n == 5:
                raise KeyboardInterrupt
            yield item

    monkeypatch.setattr(load, "progress_bar", stops)
    with pytest.raises(KeyboardInterrupt) as e:
        load_corpus(tmp_path, progress=True, workers=workers)
    corpus, line = e.value.corpus, e.value.__notes__[0]
    ids = [d.id for d in corpus]
    assert ids == sorted(ids)
    assert {"0.md", "1.md", "2.md", "3.md"} <= set(ids)
    assert [x.source for x in corpus.errors] == ["3.docx"]
    assert line.startswith(
        f"stopped: {len(ids) + 1} of 9 files were read; {len(ids)} documents and 1 refusal are in"
    )
    if workers == 0:
        assert len(ids) == 4


@pytest.fixture
def folder(tmp_path):
    "A note, two scans and a table."
    image = pymupdf.Pixmap(pymupdf.csRGB, pymupdf.IRect(0, 0, 50, 50))
    image.clear_with(200)
    for name in ("1.pdf", "2.pdf"):
        pdf = pymupdf.open()
        pdf.new_page().insert_image(pymupdf.Rect(0, 0, 200, 200), stream=image.tobytes("png"))
        pdf.save(tmp_path / name)
    (tmp_path / "0.md").write_text("# Oil\n\nCheck it.")
    (tmp_path / "3.csv").write_text("id,text\n1,Oil\n")
    return tmp_path


@dataclass(frozen=True)
class Moody:
    "An engine that finds out in the middle that it cannot."

    def read(self, page):
        raise ConfigError("the service refused the key", "Moody", "Check it")


@dataclass(frozen=True)
class Lame:
    "An engine that knows that it cannot."

    def check(self):
        raise ConfigError("there is no key", "Lame", "Give one")

    def read(self, page):
        raise AssertionError("nobody asks an engine that cannot")


def test_what_meets_one_file_is_a_row(folder):
    corpus = load_corpus(folder, ocr=Moody(), workers=0)
    assert [d.id for d in corpus] == ["0.md", "3.csv#1"]
    assert [(e.source, e.reason) for e in corpus.errors] == [
        ("1.pdf", "the service refused the key. Check it"),
        ("2.pdf", "the service refused the key. Check it"),
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ocr": Lame()}, "Lame: there is no key"),
        ({"ocr": Tesseract(tessdata="/nowhere")}, "no data for the language 'eng'"),
        ({"ocr": "azure"}, ENDPOINT),
        ({"ocr": "abbyy"}, "ocr is 'abbyy'"),
        ({"password": 5}, "password is 5"),
        ({"encoding": "klingon"}, "klingon"),
        ({"drop_fences": "mermaid"}, "drop_fences"),
        ({"text_columns": "text"}, "text_columns"),
        ({"id_column": 3}, "id_column"),
        ({"metadata_columns": 3}, "metadata_columns"),
        ({"delimiter": ";;"}, "delimiter"),
        ({"quotechar": ""}, "quotechar"),
        ({"delimiter": '"'}, "both"),
        ({"pause": -1}, "pause is -1"),
        ({"text_field": 5}, "text_field"),
        ({"id_field": 5}, "id_field"),
        ({"metadata_fields": "x"}, "metadata_fields"),
        ({"array_path": "$["}, "JSONPath"),
        ({"limits": 5}, "limits is 5"),
    ],
    ids=str,
)
def test_what_is_wrong_for_all_files_is_said_before_any_is_read(folder, monkeypatch, options, says):
    for name in (ENDPOINT, KEY):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(load, "_read", lambda *args: pytest.fail("a file was read"))
    with pytest.raises(ConfigError) as e:
        load_corpus(folder, **options)
    assert says in str(e.value)


def test_without_tesseract_no_file_is_read(folder, monkeypatch):
    def absent():
        raise RuntimeError("No tessdata specified and Tesseract is not installed")

    monkeypatch.delenv("TESSDATA_PREFIX", raising=False)
    monkeypatch.setattr(pymupdf, "get_tessdata", absent)
    monkeypatch.setattr(load, "_read", lambda *args: pytest.fail("a file was read"))
    with pytest.raises(ConfigError, match="apt-get install tesseract-ocr-eng; found are none"):
        load_corpus(folder, ocr="tesseract")


@pytest.mark.parametrize(
    "options",
    [{"max_depth": -1}, {"delay": "x"}, {"user_agent": "two\nlines"}, {"max_redirects": 1.5}],
    ids=str,
)
def test_what_is_wrong_with_a_visit_is_said_before_a_file_is_read(folder, monkeypatch, options):
    monkeypatch.setattr(load, "_read", lambda *args: pytest.fail("a file was read"))
    with pytest.raises(ConfigError):
        load_corpus([folder, "http://127.0.0.1:9/"], **options)


def test_a_data_set_with_a_wrong_value_is_told_apart_from_its_files(folder):
    (folder / "dataset.toml").write_text('documents = "."\n[pdf]\nocr = "abbyy"\n')
    with pytest.raises(DataError, match=r"dataset.toml: ocr is 'abbyy'"):
        load_corpus(folder)
