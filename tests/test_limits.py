"""Files made to take all the time or all the memory there is: each is refused for that, within its limits,
and costs no other file."""

import gzip
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import hostile_files as hostile
import pytest
from helper_site import html
from test_ingest import make_docx, make_pdf

from ragbench.base.memory_limits import address_space
from ragbench.ingest.load_corpus import SMALL, load_corpus
from ragbench.ingest.loader import LIMITS, Limits
from ragbench.ingest.web import load_url

needs_bound = pytest.mark.skipif(not address_space()[0], reason="the system bounds no address space")
MB = 1_000_000


TOO_LONG = {
    "attributes.html": hostile.html_of_attributes,
    "paragraphs.html": hostile.html_of_paragraphs,
    "forms.pdf": lambda: hostile.pdf_of_nested_forms(9),
    "rows.csv": lambda: b"a\n" + b"b\n" * 3_000_000,
}


@pytest.mark.faults
@pytest.mark.parametrize("name", TOO_LONG)
def test_a_single_file_that_takes_too_long_is_refused_for_that(tmp_path, name):
    (tmp_path / name).write_bytes(TOO_LONG[name]())
    corpus = load_corpus(tmp_path / name, limits=Limits(seconds=2))
    assert len(corpus) == 0
    assert corpus.errors == ((name, "it took longer than 2 seconds"),)


TOO_LARGE = {
    "forms.pdf": lambda: hostile.pdf_of_nested_forms(9),
    "paragraphs.docx": lambda: hostile.docx_of_paragraphs(3_000_000),
    "text.docx": lambda: hostile.docx_of(b"<w:p><w:r><w:t>oil</w:t></w:r></w:p>", 1_000_000),
    "paragraphs.html": hostile.html_of_paragraphs,
    "lists.json": lambda: b"[" + b"[]," * 3_000_000 + b"[]]",
    "items.jsonl": lambda: b'{"text": "a"}\n' * 600_000,
    "rows.csv": lambda: b"a\n" + b"b\n" * 1_000_000,
    "wide.txt": lambda: "\N{SMILING FACE WITH SUNGLASSES}".encode() * 8 * MB,
    "cues.vtt": lambda: b"WEBVTT\n\n" + b"00:01.000 --> 00:02.000\n<v A>x\n\n<v B>y\n\n" * 300_000,
}


@needs_bound
@pytest.mark.faults
@pytest.mark.parametrize("most", [20 * MB, 100 * MB])
@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_single_file_that_takes_too_much_memory_is_refused_for_that(tmp_path, name, most):
    """With a bound that is met early and one that is met late, wherever in the parser that is."""
    (tmp_path / name).write_bytes(TOO_LARGE[name]())
    corpus = load_corpus(tmp_path / name, limits=Limits(seconds=500, memory=most))
    assert len(corpus) == 0
    assert corpus.errors == ((name, f"it takes more than {most:,} bytes of memory. Raise Limits(memory=…)"),)


@needs_bound
@pytest.mark.faults
def test_what_meets_a_limit_costs_no_other_file_and_lasts_for_no_other_load(tmp_path):
    (tmp_path / "a.pdf").write_bytes(make_pdf(2))
    (tmp_path / "b.docx").write_bytes(hostile.docx_of_paragraphs(3_000_000))
    (tmp_path / "c.md").write_text("# Oil\n\nCheck the level.")
    (tmp_path / "d.docx").write_bytes(make_docx())
    corpus = load_corpus(tmp_path, limits=Limits(memory=100 * MB))
    assert [d.id for d in corpus] == ["a.pdf", "c.md", "d.docx"]
    assert [e.source for e in corpus.errors] == ["b.docx"]
    assert "bytes of memory" in corpus.errors[0].reason
    for most in (
        800 * MB,
        100 * MB,
        800 * MB,
    ):  # one worker after the other's limit: neither its bound nor its peak is inherited
        assert len(load_corpus(tmp_path / "a.pdf", limits=Limits(memory=most))) == 1


def test_the_bounds_are_far_from_ordinary_files(tmp_path):
    """What the limits allow a file in bytes, it may also take in memory, many times over."""
    assert LIMITS.memory >= 20 * LIMITS.bytes
    (tmp_path / "large.md").write_text("# Oil\n\n" + "Check the level before each start. " * 300_000)
    assert len(load_corpus(tmp_path / "large.md", limits=Limits(memory=500 * MB))) == 1


WORST = {
    "spaces.md": lambda n: "# " + " " * (n - 3) + "x",
    "hashes.md": lambda n: "# a" + " #" * ((n - 3) // 2),
    "rules.md": lambda n: "- " * (n // 2 - 1) + "x",
    "fences.md": lambda n: "`" * (n - 1) + "x",
    "brackets.md": lambda n: "---\n" + "[" * (n - 20) + "\n---\nx",
    "merges.md": lambda n: hostile.yaml_of_merges(40),
    "voices.vtt": lambda n: "00:01.000 --> 00:02.000\n<v" + "." * (n - 40) + "\n",
    "tags.vtt": lambda n: "00:01.000 --> 00:02.000\n" + "<v a" * ((n - 40) // 4) + "\n",
    "styles.srt": lambda n: "00:01,000 --> 00:02,000\n" + "{\\" * ((n - 40) // 2) + "\n",
    "talk.txt": lambda n: ("Ana B" + " c" * 900 + ":\n") * (n // 2000),
    "quotes.csv": lambda n: "a\n" + '"b\n' * (n // 3 - 2),
    "cells.csv": lambda n: "," * (n - 1),
    "deep.json": lambda n: "[" * (n // 2) + "]" * (n // 2),
    "digits.json": lambda n: "[" + "9" * (n - 2) + "]",
    "bytes.txt": lambda n: bytes(random.Random(2).choice(b"\xe4\xf6\xdf\x9f\xa5 ") for _ in range(n)),
}


@pytest.mark.faults
@pytest.mark.parametrize("name", WORST)
def test_what_is_read_without_a_worker_is_bounded_by_its_size(tmp_path, name):
    """The largest file that stays in the user's process, made as bad as it can be for its loader, in a
    process that dies after 30 s of processor time, or with 300 MB more."""
    made = WORST[name](SMALL)
    (tmp_path / name).write_bytes(made if isinstance(made, bytes) else made.encode())
    assert (tmp_path / name).stat().st_size <= SMALL
    code = (
        "import sys, resource\nimport yaml, charset_normalizer\nfrom ragbench.ingest.load_corpus import"
        " load_corpus\nfrom ragbench.base.memory_limits import"
        " address_space\nresource.setrlimit(resource.RLIMIT_CPU, (30, 30))\nsize = address_space()[0]\nif"
        " size: resource.setrlimit(resource.RLIMIT_AS, (size + 300_000_000,) * 2)\ncorpus ="
        " load_corpus(sys.argv[1])\nimport threading, ragbench.ingest.workers as w\nprint(len(corpus) +"
        " len(corpus.errors), len(w.RESERVE.idle), [e.reason for e in corpus.errors if 'mistake' in"
        " e.reason])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
    count, workers, mistakes = done.stdout.split(maxsplit=2)
    assert int(count) > 0
    assert (workers, mistakes.strip()) == ("0", "[]")


@pytest.mark.faults
def test_a_page_that_takes_its_reader_too_long_costs_that_page(site):
    site.pages |= {
        "/": html("Home", "/slow", "/good"),
        "/slow": hostile.html_of_attributes(80_000),
        "/good": html("Good"),
    }
    for load in (load_url, load_corpus):
        corpus = load(
            site.url, delay=0, allow_private=True, max_depth=1, limits=Limits(seconds=8, bytes=10 * MB)
        )
        assert [d.metadata["title"] for d in corpus] == ["Home", "Good"]
        assert [(e.source, e.reason) for e in corpus.errors] == [
            (site.url + "/slow", "it took longer than 8 seconds")
        ]


@needs_bound
@pytest.mark.faults
def test_pages_and_files_on_the_web_have_their_memory(site):
    docx = (
        200,
        {"Content-Type": "application/vnd.openxmlformats-officedocument.wordprocessingml.document"},
        hostile.docx_of_paragraphs(3_000_000),
    )
    site.pages |= {
        "/": html("Home", "/large", "/word", "/good"),
        "/large": hostile.html_of_paragraphs(),
        "/word": docx,
        "/good": html("Good"),
    }
    corpus = load_corpus(
        site.url,
        delay=0,
        allow_private=True,
        max_depth=1,
        limits=Limits(seconds=300, bytes=50 * MB, memory=100 * MB),
    )
    assert [d.metadata["title"] for d in corpus] == ["Home", "Good"]
    assert [e.source.removeprefix(site.url) for e in corpus.errors] == ["/large", "/word"]
    assert {e.reason for e in corpus.errors} == {
        "it takes more than 100,000,000 bytes of memory. Raise Limits(memory=…)"
    }


@needs_bound
@pytest.mark.faults
@pytest.mark.parametrize("header", ["gzip, gzip", "gzip, deflate", "gzip,gzip,gzip"])
def test_a_bomb_on_the_web_is_never_unpacked(site, header):
    """However often it is wrapped, it is refused in a process that may not take 60 MB more: the spaces would
    take 200, several times over."""
    import zlib

    body = hostile.gzip_twice(200 * MB)
    body = {
        "gzip, gzip": body,
        "gzip, deflate": zlib.compress(gzip.decompress(body)),
        "gzip,gzip,gzip": gzip.compress(body),
    }[header]
    assert len(body) < 2_000
    site.pages["/"] = (200, {"Content-Encoding": header}, body)
    code = (
        "import sys, resource, httpx, httpcore, trafilatura\n"
        "from ragbench.ingest.fetch import Web\n"
        "from ragbench.ingest.loader import Refused\n"
        "from ragbench.base.memory_limits import address_space\n"
        "web = Web(allow_private=True)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (address_space()[0] + 60_000_000,) * 2)\n"
        "try: web.get(sys.argv[1])\n"
        "except Refused as e: print(e.what)"
    )
    done = subprocess.run([sys.executable, "-c", code, site.url + "/"], capture_output=True, text=True)
    assert done.stdout.strip() == "it is larger than 5,000,000 bytes", done.stderr[-500:]


def test_codings_of_any_kind_give_the_page_or_a_reason(site):
    import zlib

    page = html("Docs")
    raw = zlib.compressobj(wbits=-15)
    good = {
        "/gzip": ("gzip", gzip.compress(page)),
        "/x": ("x-gzip", gzip.compress(page)),
        "/twice": ("gzip, gzip", gzip.compress(gzip.compress(page))),
        "/zlib": ("deflate", zlib.compress(page)),
        # fmt: skip
        "/raw": ("deflate", raw.compress(page) + raw.flush()),
        "/members": ("gzip", gzip.compress(page[:50]) + gzip.compress(page[50:])),
        "/charset": ("utf-8", page),
        "/identity": ("identity", page),
    }
    bad = {
        "/br": ("br", page),
        "/zstd": ("gzip, zstd", page),
        "/cut": ("gzip", gzip.compress(page)[:-30]),
        "/wrong": ("deflate", b"\xff" + page),
        "/often": (", ".join(["gzip"] * 9), page),
    }
    site.pages |= {
        path: (200, {"Content-Encoding": coding}, body) for path, (coding, body) in (good | bad).items()
    } | {"/": html("Home", *good, *bad)}
    corpus = load_url(site.url, delay=0, allow_private=True, max_depth=1)
    assert [d.id.removeprefix(site.url) for d in corpus] == ["/", *good]
    assert [e.source.removeprefix(site.url) for e in corpus.errors] == list(bad)
    assert all("compress" in e.reason for e in corpus.errors)


@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="reads processes from /proc")
@pytest.mark.parametrize("number", [9, 15])
def test_a_worker_ends_with_its_parent_even_inside_c(tmp_path, number):
    (tmp_path / "a.html").write_bytes(hostile.html_of_attributes())
    code = (
        "import sys; from ragbench.ingest.load_corpus import load_corpus; print('go', flush=True);"
        " load_corpus(sys.argv[1])"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "a.html")], stdout=subprocess.PIPE)
    parent.stdout.readline()

    def children():
        return [
            int(p) for p in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        ] or [
            # fmt: skip
            int(p)
            for t in Path(f"/proc/{parent.pid}/task").iterdir()
            for p in (t / "children").read_text().split()
        ]

    for _ in range(200):
        if found := children():
            break
        time.sleep(0.05)
    (worker,) = found
    for _ in range(400):  # until it is inside the parser
        if int(Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()[11]) > 150:
            break
        time.sleep(0.05)
    os.kill(parent.pid, number)
    parent.wait()
    parent.stdout.close()

    def alive():
        try:
            return Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
        except OSError:
            return False

    for _ in range(200):
        if not alive():
            break
        time.sleep(0.05)
    assert not alive()


@pytest.mark.faults
def test_what_a_killed_visit_left_is_swept_by_the_next(site, tmp_path):
    site.pages["/"] = (200, {"Content-Type": "text/plain"}, b"Wind stops work at 12 m/s.")
    code = (
        "import os, sys\n"
        "from ragbench.ingest import web\n"
        "def files(path, doc_id):\n"
        "    if sys.argv[2] == 'die': os.kill(os.getpid(), 9)\n"
        "    return []\n"
        "web.load_url(sys.argv[1], files=files, delay=0, allow_private=True)"
    )
    left = lambda: [p.name for p in tmp_path.iterdir() if p.name.startswith("ragbench-")]  # noqa: E731
    for way, remains in (("die", 1), ("go on", 0)):
        subprocess.run(
            [sys.executable, "-c", code, site.url, way],
            env=os.environ | {"TMPDIR": str(tmp_path)},
            capture_output=True,
        )
        assert len(left()) == remains, way


def test_an_engine_of_a_notebook_is_used_here_and_that_is_said(tmp_path, caplog):
    """A worker cannot import what is defined in a script: nothing is silent about it."""
    (tmp_path / "a.pdf").write_bytes(make_pdf(1))
    script = tmp_path / "script.py"
    script.write_text(
        "import logging, sys\nlogging.basicConfig(stream=sys.stdout, format='%(message)s')\n"
        "class Engine:\n    def read(self, page): return []\n"
        "from ragbench.ingest.load_corpus import load_corpus\n"
        "print(len(load_corpus(sys.argv[1], ocr=Engine())))"
    )
    said = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "a.pdf")], capture_output=True, text=True, check=True
    ).stdout
    assert "nothing bounds their seconds and memory" in said
    assert said.split()[-1] == "1"


def test_limits_travel_to_every_loader(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([{"text": "oil"}]))
    assert "the limit is 3" in load_corpus(tmp_path / "a.json", limits=Limits(bytes=3)).errors[0].reason
