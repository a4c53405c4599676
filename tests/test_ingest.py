"""What holds for every loader: one bad file costs one file, the same bytes give the same text, spans point
where they say."""

import io
import os
import random
import subprocess
import sys
from pathlib import Path

import docx
import pymupdf
import pytest

from ragbench.ingest.docx import load_docx
from ragbench.ingest.load_corpus import ENDINGS, LOADERS, load_corpus, type_of
from ragbench.ingest.loader import Limits, Refused
from ragbench.ingest.pdf import load_pdf
from ragbench.ingest.text import load_markdown, source_offset

SENTENCES = [
    "The lube oil pump is started before the machine turns.",
    "Liquid in the sight glass is a reason for an immediate stop.",
    "Spare elements of the filter are kept in the store, bin 14-C.",
    "A hook that does not release is reported to the harbour office.",
    "Die Prüfung der Kühlwasserpumpe dauert höchstens zwölf Minuten.",
]


def make_pdf(pages: int = 3) -> bytes:
    """Pages with a running header, a heading and a few paragraphs each, and bookmarks."""
    pdf = pymupdf.open()
    for n in range(pages):
        page = pdf.new_page()
        page.insert_text((72, 30), f"Harrow Point  page {n + 1} of {pages}", fontsize=8)
        page.insert_text((72, 90), f"{n + 1} Section number {n + 1}", fontsize=16, fontname="hebo")
        for i, s in enumerate(SENTENCES[:4]):
            page.insert_text((72, 130 + 40 * i), f"{s} ({n}.{i})", fontsize=10)
    pdf.set_toc([[1, f"Section number {n + 1}", n + 1] for n in range(pages)])
    return pdf.tobytes()


def make_docx() -> bytes:
    d = docx.Document()
    d.add_paragraph("Start-up", style="Title")
    for n, s in enumerate(SENTENCES):
        d.add_heading(f"Part {n}", 1 + n % 2)
        d.add_paragraph(s)
        d.add_paragraph(s[::-1], style="List Number")
    t = d.add_table(rows=2, cols=2)
    for c, s in zip([c for r in t.rows for c in r.cells], SENTENCES, strict=False):
        c.text = s
    out = io.BytesIO()
    d.save(out)
    return out.getvalue()


def make_markdown() -> bytes:
    parts = "\n\n".join(f"## Part {n}\n\n{s}\n\n```mermaid\ngraph {n}\n```" for n, s in enumerate(SENTENCES))
    return f"---\ntitle: Start-up\nrev: 3\n---\n# Start-up\r\n\r\n{parts}\n".encode()


MAKERS = {"pdf": make_pdf, "docx": make_docx, "md": make_markdown}


@pytest.fixture
def plant(tmp_path: Path) -> Path:
    """A folder with four files that cannot be read and five that can."""
    for name in ("a.pdf", "sub/b.docx", "c.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(MAKERS[name.rpartition(".")[2]]())
    (tmp_path / "d.txt").write_bytes("Prüfung\r\nbestanden".encode("cp1252"))
    (tmp_path / "e.MD").write_text("Only a line.")
    (tmp_path / "bad_corrupt.pdf").write_bytes(make_pdf()[:500])
    good = pymupdf.open(stream=make_pdf(), filetype="pdf")
    good.save(
        tmp_path / "bad_locked.pdf", encryption=pymupdf.PDF_ENCRYPT_AES_256, user_pw="oil", owner_pw="gas"
    )
    docx.Document().save(str(tmp_path / "bad_empty.docx"))
    pixmap = pymupdf.Pixmap(pymupdf.csRGB, pymupdf.IRect(0, 0, 8, 8), False)
    (tmp_path / "bad_png.pdf").write_bytes(pixmap.tobytes("png"))
    return tmp_path


@pytest.mark.faults
def test_four_bad_files_cost_four_files(plant):
    corpus = load_corpus(plant)
    assert [d.id for d in corpus] == ["a.pdf", "c.md", "d.txt", "e.MD", "sub/b.docx"]
    assert [
        (e.source, words in e.reason)
        for e, words in zip(
            corpus.errors, ("damaged", "no text", "encrypted", "not a PDF but a PNG image"), strict=True
        )
    ] == [
        ("bad_corrupt.pdf", True),
        ("bad_empty.docx", True),
        ("bad_locked.pdf", True),
        ("bad_png.pdf", True),
    ]
    assert len(load_corpus(plant, password="oil")) == 6
    assert "wrong" in load_corpus(plant / "bad_locked.pdf", password="gin").errors[0].reason


def test_the_same_bytes_give_the_same_corpus_here_in_workers_and_in_another_process(plant):
    corpus = load_corpus(plant)
    assert load_corpus(plant).fingerprint == corpus.fingerprint
    in_workers = load_corpus(plant, workers=2)
    assert (in_workers.fingerprint, in_workers.errors) == (corpus.fingerprint, corpus.errors)
    code = (
        f"from ragbench.ingest.load_corpus import load_corpus; print(load_corpus({str(plant)!r}).fingerprint)"
    )
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    assert (
        subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        ).stdout.strip()
        == corpus.fingerprint
    )


@pytest.mark.faults
def test_seconds_that_were_asked_for_bind_in_a_small_folder_too(tmp_path):
    (tmp_path / "good.txt").write_text("Start the pump.")
    (tmp_path / "rows.csv").write_text(
        "id,name\n" + "".join(f"{i},n{i}\n" for i in range(900_000))
    )  # half a minute of rows
    corpus = load_corpus(tmp_path, limits=Limits(seconds=1))
    assert [d.id for d in corpus] == ["good.txt"]
    assert corpus.errors == (("rows.csv", "it took longer than 1 seconds"),)


ENGINES = """
import os, signal, time
class Crash:
    def read(self, page): os.kill(os.getpid(), signal.SIGSEGV)
class Hang:
    def read(self, page): time.sleep(600)
"""


@pytest.mark.faults
@pytest.mark.parametrize(
    ("engine", "limits", "reason"),
    [
        ("Crash", Limits(), "the process that read it died (SIGSEGV)"),
        ("Hang", Limits(seconds=3), "it took longer than 3 seconds"),
    ],
)
def test_a_reader_that_dies_or_hangs_costs_its_file_in_a_small_folder_too(
    tmp_path, monkeypatch, engine, limits, reason
):
    (tmp_path / "engines_that_fail.py").write_text(ENGINES)
    monkeypatch.syspath_prepend(str(tmp_path))
    import engines_that_fail

    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.pdf").write_bytes(make_pdf(1))
    (folder / "c.md").write_text("# Oil\n\nCheck the level.")
    scan = pymupdf.open()
    scan.new_page().insert_image((72, 72, 200, 200), pixmap=pymupdf.Pixmap(pymupdf.csGRAY, (0, 0, 20, 20)))
    scan.save(folder / "b.pdf")
    corpus = load_corpus(folder, ocr=getattr(engines_that_fail, engine)(), limits=limits)
    assert [d.id for d in corpus] == ["a.pdf", "c.md"]
    assert corpus.errors == (("b.pdf", reason),)


def test_a_pdf_is_parsed_in_another_process_alone_or_in_a_folder_and_here_only_when_told_so(tmp_path):
    (tmp_path / "a.pdf").write_bytes(make_pdf(1))
    code = (
        "import sys; from ragbench.ingest.load_corpus import load_corpus; load_corpus(sys.argv[1],"
        " workers=eval(sys.argv[2])); print('pymupdf' in sys.modules)"
    )
    parsed_here = [
        subprocess.run(
            [sys.executable, "-c", code, str(source), workers], capture_output=True, text=True, check=True
        ).stdout.strip()
        for source, workers in (
            (tmp_path / "*.pdf", "None"),
            (tmp_path / "a.pdf", "None"),
            (tmp_path / "a.pdf", "0"),
        )
    ]
    assert parsed_here == ["False", "False", "True"]


def test_the_worker_that_stays_sees_what_changed_since(tmp_path, monkeypatch):
    for n, name in enumerate(("one", "two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.pdf").write_bytes(make_pdf(n + 1))
    pages = []
    for name in ("one", "two"):
        monkeypatch.chdir(tmp_path / name)
        pages.append(len(load_corpus("*.pdf")[0].pages))
    assert pages == [1, 2]


def test_many_files_keep_their_order(tmp_path):
    for n in range(40):
        (tmp_path / f"{n:02}.md").write_text(f"# Number {n}\n" + "word " * (40 - n))
    corpus = load_corpus(tmp_path)  # 40 files: in worker processes
    assert [d.headings[0].title for d in corpus] == [f"Number {n}" for n in range(40)]


def test_the_text_of_each_pdf_page_stands_in_its_span(tmp_path):
    path = tmp_path / "a.pdf"
    path.write_bytes(make_pdf(4))
    doc = load_pdf(path, doc_id="a", strip_furniture=False)
    with pymupdf.open(path) as pdf:
        for page, span in zip(pdf, doc.pages, strict=True):
            assert doc.text[span.start : span.end].split() == page.get_text("text").split()
    assert doc.pages[0].start == 0
    assert doc.pages[-1].end == len(doc.text)
    assert all(a.end == b.start for a, b in zip(doc.pages, doc.pages[1:], strict=False))
    stripped = load_pdf(path, doc_id="a")
    assert "Harrow Point" not in stripped.text
    assert all(s in stripped.text for s in SENTENCES[:4])


def test_a_header_is_found_on_turned_pages_too(tmp_path):
    pdf = pymupdf.open()
    for n in range(6):
        page = pdf.new_page()
        page.insert_text(
            (72, 80), f"Harrow Point  page {n + 1}", fontsize=8
        )  # in the outer ninth of the page's height, not of its width
        page.insert_text((72, 200), SENTENCES[n % 5])
        page.set_rotation(90 * (n % 3))
    pdf.save(tmp_path / "turned.pdf")
    assert "Harrow Point" not in load_pdf(tmp_path / "turned.pdf", doc_id="a").text


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads the peak of a process from Linux's /proc"
)
def test_memory_does_not_grow_with_what_a_page_weighs(tmp_path):
    """Three hundred pages take at most 60 MB more than thirty: pages are let go of one by one."""
    code = (
        "import sys\n"
        "from ragbench.ingest.pdf import load_pdf\n"
        "doc = load_pdf(sys.argv[1], doc_id='a')\n"
        # ru_maxrss would count the parent's memory too
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(len(doc.pages), int(peak.split()[1]) // 1024)"
    )
    peak = {}
    for pages in (30, 300):
        path = tmp_path / f"{pages}.pdf"
        pdf = pymupdf.open()
        for n in range(pages):
            page = pdf.new_page()
            for i in range(60):
                page.insert_text((72, 60 + 12 * i), f"{SENTENCES[i % 4]} {n}.{i}", fontsize=10)
        pdf.save(path)
        said = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
        ).stdout.split()
        assert int(said[0]) == pages
        peak[pages] = int(said[1])
    assert peak[300] - peak[30] < 60, peak


STRICT = {
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main": (
        "http://purl.oclc.org/ooxml/wordprocessingml/main"
    ),
    "http://schemas.openxmlformats.org/officeDocument/2006/relationships": (
        "http://purl.oclc.org/ooxml/officeDocument/relationships"
    ),
    "http://schemas.openxmlformats.org/drawingml/2006/main": "http://purl.oclc.org/ooxml/drawingml/main",
}


def test_strict_ooxml_reads_as_the_transitional_dialect_does(tmp_path):
    import zipfile

    loose, strict = tmp_path / "loose.docx", tmp_path / "strict.docx"
    loose.write_bytes(make_docx())
    with zipfile.ZipFile(loose) as a, zipfile.ZipFile(strict, "w", zipfile.ZIP_DEFLATED) as b:
        for name in a.namelist():
            data = a.read(name)
            for old, new in STRICT.items():
                data = data.replace(old.encode(), new.encode())
            assert b"openxmlformats.org/wordprocessingml" not in data
            b.writestr(name, data)
    one, other = (load_docx(path, doc_id="a") for path in (loose, strict))
    assert (other.text, other.headings, other.pages) == (one.text, one.headings, one.pages)
    assert len(other.headings) == 6
    assert "1. " in other.text


@pytest.mark.parametrize("kind", MAKERS)
def test_headings_point_at_their_titles(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    path.write_bytes(MAKERS[kind]())
    doc = LOADERS[type_of(path)](path, doc_id="a")
    assert len(doc.headings) == {"pdf": 3, "docx": 6, "md": 6}[kind]
    assert all(doc.text[h.start : h.end] == h.title for h in doc.headings)
    assert [h.start for h in doc.headings] == sorted(h.start for h in doc.headings)


def test_the_source_map_leads_back_to_the_file(tmp_path):
    path = tmp_path / "a.md"
    path.write_bytes(make_markdown())
    doc = load_markdown(path, doc_id="a")
    source = path.read_text(encoding="utf-8")  # with line ends as Python reads them
    assert "mermaid" not in doc.text
    for at in range(len(doc.text)):
        assert source[source_offset(doc, at)] == doc.text[at]


def mutations(data: bytes, rng: random.Random):
    """One damaged copy: cut off, bytes flipped, a stretch set to zero, or a stretch repeated."""
    out = bytearray(data)
    how = rng.choice(("cut", "flip", "zero", "repeat"))
    at = rng.randrange(len(out))
    n = rng.choice((1, 8, 64, 512))
    if how == "cut":
        del out[at:]
    elif how == "flip":
        for _ in range(n):
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    elif how == "zero":
        out[at : at + n] = bytes(len(out[at : at + n]))
    else:
        out[at:at] = out[at : at + n]
    return how, bytes(out)


@pytest.mark.faults
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_file_loads_or_is_refused(tmp_path, kind, seed):
    rng = random.Random(f"{kind}-{seed}")
    path = tmp_path / f"a.{kind}"
    for _ in range(3):
        how, data = mutations(MAKERS[kind](), rng)
        path.write_bytes(data)
        try:
            outcome = LOADERS[type_of(path)](path, doc_id="a", limits=Limits(bytes=10_000_000)).text
        except Refused as e:
            outcome = e.what
        assert outcome.strip(), (kind, seed, how)


@pytest.mark.faults
def test_a_zip_that_unpacks_without_end_is_refused(tmp_path):
    import zipfile

    path = tmp_path / "bomb.docx"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr(
            "_rels/.rels",
            '<Relationships><Relationship Type="x/officeDocument"'
            ' Target="word/document.xml"/></Relationships>',
        )
        z.writestr("word/document.xml", b"<a>" + b" " * 30_000_000 + b"</a>")
    with pytest.raises(Refused, match="unpacks to more than"):
        load_docx(path, doc_id="bomb", limits=Limits(bytes=1_000_000))


@pytest.mark.faults
@pytest.mark.skipif(
    "RAGBENCH_DATA" not in os.environ, reason="RAGBENCH_DATA does not name the folder of public test data"
)
def test_odd_files_of_other_projects_load_or_are_refused():
    folder = Path(os.environ["RAGBENCH_DATA"], "ingest")
    found = [p.relative_to(folder) for p in folder.rglob("*") if p.is_file() and p.suffix.lower() in ENDINGS]
    ours = {p.as_posix() for p in found if not any(part.startswith(".") for part in p.parts)}
    assert len(ours) > 50
    corpus = load_corpus(folder, workers=2, limits=Limits(seconds=60))
    assert ours <= {d.id.partition("#")[0] for d in corpus} | {
        e.source.partition(", ")[0] for e in corpus.errors
    }
    assert not [e for e in corpus.errors if "died" in e.reason or "longer than" in e.reason]
    assert all(e.reason for e in corpus.errors)


def test_quotes_are_resolved_or_named(tmp_path, capsys):
    import importlib.util
    import json

    script = Path(__file__).parents[1] / "datasets" / "resolve.py"
    spec = importlib.util.spec_from_file_location("resolve", script)
    resolve = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(resolve)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "oil.md").write_text("# Oil\n\nCheck the level. Then start. Check the level.")
    (tmp_path / "dataset.toml").write_text('documents = "files"\n')
    file = tmp_path / "questions.jsonl"

    def ask(*quotes: str) -> None:
        rows = [
            {
                "query_id": f"q{n}",
                "query": "What?",
                "evidence": [{"doc_id": "oil.md", "quote": q, "grade": 1}],
            }
            for n, q in enumerate(quotes)
        ]
        file.write_text("".join(json.dumps(r) + "\n" for r in rows))

    ask("Then start.", "Check the level.", "Stop.")
    before = file.read_text()
    assert resolve.main([str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert (
        "question 'q1', document 'oil.md': the quote stands there 2 times, at [7, 36]: 'Check the level.'"
        in said
    )
    assert "question 'q2', document 'oil.md': the quote does not stand there: 'Stop.'" in said
    assert file.read_text() == before
    ask("Then start.")
    assert resolve.main([str(tmp_path), "--check"]) == 1
    assert resolve.main([str(tmp_path)]) == 0
    assert resolve.main([str(tmp_path), "--check"]) == 0
    row = json.loads(file.read_text())
    assert list(row) == ["query_id", "query", "evidence"]
    assert row["evidence"] == [
        {"doc_id": "oil.md", "quote": "Then start.", "grade": 1, "start": 24, "end": 35}
    ]
