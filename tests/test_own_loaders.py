"""Loaders of one's own, metadata from outside, the same names for every format, and the sum of corpora."""

import datetime
import email
import io
import json
import logging
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import helper_loaders
import pytest

import ragbench as rb
from ragbench import Corpus, Document
from ragbench.base.errors import ConfigError, DataError
from ragbench.ingest.metadata_names import STANDARD_NAMES, standard_name, with_standard_names


def load_email(path, *, doc_id):
    mail = email.message_from_bytes(Path(path).read_bytes())
    return Document(doc_id, mail.get_payload(), metadata={"title": mail["Subject"]}, format="email")


@dataclass(frozen=True)
class LoadParts:
    "A loader with a setting."

    sep: str = "|"

    def __call__(self, path, *, doc_id, encoding="utf-8"):
        parts = Path(path).read_text(encoding=encoding).split(self.sep)
        return [Document(f"{doc_id}#{n}", part) for n, part in enumerate(parts, 1)]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.eml").write_text("Subject: Pump\n\nIt leaks.")
    (tmp_path / "b.md").write_text("# Oil\n\nCheck it.")
    (tmp_path / "c.lines").write_text("one\ntwo!\nthree")
    return tmp_path


def test_a_loader_of_ones_own_reads_its_ending(folder):
    before = rb.load_corpus(folder)
    assert [d.id for d in before] == ["b.md"] and "loaders={'.xyz': …}" in before.errors[0].reason
    loaders = {".EML": load_email, ".lines": helper_loaders.load_lines}
    corpus = rb.load_corpus(folder, loaders=loaders)
    assert [d.id for d in corpus] == ["a.eml", "b.md", "c.lines#1", "c.lines#3"]
    assert corpus.errors == (("c.lines, line 2", "it shouts"),)
    mail = corpus["a.eml"]
    assert (mail.format, mail.metadata["title"], mail.source) == ("email", "Pump", str(folder / "a.eml"))
    assert corpus["c.lines#3"].metadata["revision"] == 3
    again = rb.load_corpus(folder, loaders=loaders, workers=0)
    assert [d.key for d in again] == [d.key for d in corpus]


def test_it_reads_in_a_worker_where_one_can_import_it(folder, caplog):
    def local(path, *, doc_id):
        return Document(doc_id, f"{os.getpid()}")

    with caplog.at_level(logging.WARNING, "ragbench"):
        corpus = rb.load_corpus(folder, loaders={".lines": helper_loaders.load_lines})
        assert corpus["c.lines#1"].metadata["process"] != os.getpid() and not caplog.messages
        corpus = rb.load_corpus(
            folder, loaders={".lines": helper_loaders.load_lines, ".eml": local}, workers=2
        )
    assert corpus["c.lines#1"].metadata["process"] != os.getpid()
    assert corpus["a.eml"].text == str(os.getpid())
    assert [m for m in caplog.messages if "local is defined in a notebook" in m] == caplog.messages[:1]


def test_limits_and_one_bad_file(tmp_path):
    words = ("hangs", "dies", "eats", "refuses", "fails", "bytes", "none", "good")
    for word in words:
        (tmp_path / f"{word}.hard").write_text(word)
    (tmp_path / "big.hard").write_text("good" * 1000)
    (tmp_path / "empty.hard").write_text("")
    limits = rb.Limits(seconds=2, memory=500_000_000, bytes=1000)
    corpus = rb.load_corpus(tmp_path, loaders={".hard": helper_loaders.load_hard}, limits=limits)
    assert [d.text for d in corpus] == ["good"]
    why = {Path(e.source).stem: e.reason for e in corpus.errors}
    assert "longer than 2 seconds" in why["hangs"] and "died (exit status 3)" in why["dies"]
    assert "more than 500,000,000 bytes of memory" in why["eats"]
    assert why["refuses"] == "nothing to read. Look elsewhere"
    assert "the loader failed" in why["fails"] and "KeyError" in why["fails"]
    assert why["bytes"].startswith("the text is a bytes") and why["none"].startswith("the text is a NoneType")
    assert "the limit is 1,000" in why["big"] and why["empty"] == "the file is empty"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (lambda doc_id: "text", "gave a str, not a Document"),
        (lambda doc_id: None, "gave a NoneType, not a Document"),
        (lambda doc_id: {"text": "a"}, "gave a str, not a Document"),
        (lambda doc_id: ["text"], "gave a str, not a Document"),
        (lambda doc_id: Document("mine", "text"), "gave a document with the id 'mine'"),
        (lambda doc_id: [Document("mine#1", "text")], "gave a document with the id 'mine#1'"),
        (lambda doc_id: [], "gave no document"),
        (lambda doc_id: Document(doc_id, "a", metadata={"a": [0] * 20_000}), "gave too much metadata"),
    ],
)
def test_what_it_gives_is_checked_by_name(tmp_path, given, why):
    def odd(path, *, doc_id):
        return given(doc_id)

    (tmp_path / "a.odd").write_text("a")
    (tmp_path / "b.md").write_text("b")
    corpus = rb.load_corpus(tmp_path, loaders={".odd": odd})
    assert [d.id for d in corpus] == ["b.md"]
    assert "odd " + why in corpus.errors[0].reason and corpus.errors[0].source == "a.odd"


def test_an_id_twice_and_an_option_that_only_it_knows(tmp_path):
    (tmp_path / "a.parts").write_bytes("Öl|Öl".encode("cp1252"))
    corpus = rb.load_corpus(tmp_path, loaders={".parts": LoadParts()}, encoding="cp1252")
    assert [d.text for d in corpus] == ["Öl", "Öl"]

    def twice(path, *, doc_id):
        return [Document(doc_id, "a"), Document(doc_id, "b")]

    corpus = rb.load_corpus(tmp_path, loaders={".parts": twice})
    assert (len(corpus), corpus.errors[0].reason) == (
        1,
        f"its id was already used, by {tmp_path / 'a.parts'}",
    )


def test_it_may_replace_one_of_ours_and_be_asked_for_by_type(folder):
    def shout(path, *, doc_id):
        return Document(doc_id, path.read_text().upper())

    assert rb.load_corpus(folder / "b.md", loaders={"markdown": shout})[0].text.startswith("# OIL")
    assert rb.load_corpus(folder / "b.md", loaders={".md": shout})[0].text.startswith("# OIL")
    assert (
        rb.load_corpus(folder / "a.eml", type=".shout", loaders={".shout": shout})[0].text[:8] == "SUBJECT:"
    )


@pytest.mark.parametrize(
    ("loaders", "why"),
    [
        ({"eml": load_email}, "neither an ending nor a type"),
        ({3: load_email}, "loaders is"),
        ({".": load_email}, "neither an ending nor a type"),
        ({".eml": "load_email"}, "is no loader"),
        ({".eml": LoadParts}, "is no loader"),
        ({".eml": lambda path: None}, "cannot be called: got an unexpected keyword argument 'doc_id'"),
        ([load_email], "loaders is"),
    ],
)
def test_what_is_no_loader_is_refused_before_any_file_is_read(folder, loaders, why):
    with pytest.raises(ConfigError, match=why):
        rb.load_corpus(folder, loaders=loaders)


# ---------------------------------------------------------------- metadata


def docx_file(path, core="", custom=""):
    import docx

    plain = io.BytesIO()
    document = docx.Document()
    document.add_paragraph("Open the valve.")
    document.core_properties.title = "Valves"
    document.core_properties.content_status = "active"
    document.core_properties.revision = 17
    document.save(plain)
    office = "application/vnd.openxmlformats-officedocument"
    types = f'<Override PartName="/docProps/custom.xml" ContentType="{office}.custom-properties+xml"/>'
    kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/custom-properties"
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            data = old.read(name).decode("utf-8", "surrogateescape")
            if name == "[Content_Types].xml":
                data = data.replace("</Types>", types + "</Types>")
            if name == "_rels/.rels":
                link = f'<Relationship Id="rIdC" Type="{kind}" Target="docProps/custom.xml"/>'
                data = data.replace("</Relationships>", link + "</Relationships>")
            new.writestr(name, data.encode("utf-8", "surrogateescape"))
        properties = "".join(
            f'<property fmtid="{{D5CDD505-2E9C-101B-9397-08002B2CF9AE}}" pid="{n}" name="{name}"><vt:lpwstr>{value}</vt:lpwstr></property>'  # noqa: E501
            for n, (name, value) in enumerate(
                [("Rev", "C"), ("Effective date", "2024-02-01"), ("Junk", "x")], 2
            )
        )
        new.writestr(
            "docProps/custom.xml",
            '<Properties xmlns="http://schemas.openxmlformats.org/officeDocument/2006/custom-properties"'
            ' xmlns:vt="http://schemas.openxmlformats.org/officeDocument/2006/docPropsVTypes">'
            f"{properties}</Properties>",
        )


def pdf_file(path):
    import pymupdf

    pdf = pymupdf.open()
    pdf.new_page().insert_text((72, 72), "Open the valve.")
    pdf.set_metadata({"title": "Valves", "creationDate": "D:20240131"})
    number = int(pdf.xref_get_key(-1, "Info")[1].split()[0])
    for name, value in (
        ("Rev", "(C)"),
        ("Status", "(active)"),
        ("EffectiveDate", "(D:20240201)"),
        ("Junk", "(x)"),
    ):
        pdf.xref_set_key(number, name, value)
    pdf.save(path)


SAME = {"title": "Valves", "revision": "C", "status": "active", "valid_from": "2024-02-01"}
FILES = {
    "a.docx": docx_file,
    "a.pdf": pdf_file,
    "a.md": "---\nTitel: Valves\nRev: C\ndoc-status: active\nGültig ab: 2024-02-01\n---\nOpen the valve.",
    "a.html": """<html><head><title>Valves</title><meta name="DCTERMS.revision" content="C">
        <meta name="status" content="active"><meta name="effective-date" content="2024-02-01"></head>
        <body><article><p>Open the valve before the pump is started. Close it after it has stopped.</p>
        </article></body></html>""",
    "a.vtt": "---\ntitle: Valves\nrevision: C\nstatus: active\neffective: 2024-02-01\n---\n"
    "Ana: Open the valve, please.\nBo: It is open.\nAna: Thank you.\n",
    "a.csv": "text,Document Title,Revision No,Status,valid-from\nOpen it.,Valves,C,active,2024-02-01\n",
    "a.json": json.dumps(
        [{"text": "Open.", "docTitle": "Valves", "REV": "C", "status": "active", "validFrom": "2024-02-01"}]
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_the_same_names_in_every_format(tmp_path, name):
    if callable(FILES[name]):
        FILES[name](tmp_path / name)
    else:
        file = tmp_path / (name if name != "a.vtt" else "a.txt")
        file.write_text(FILES[name], encoding="utf-8")
    fields = ["docTitle", "REV", "status", "validFrom"]
    options = {
        "a.csv": {"text_columns": ["text"]},
        "a.json": {"text_field": "text", "metadata_fields": fields},
        "a.vtt": {"type": "transcript"},
    }.get(name, {})
    (doc,) = rb.load_corpus(tmp_path, **options)
    assert {k: doc.metadata.get(k) for k in SAME} == SAME
    assert "Junk" not in doc.metadata
    if name == "a.md":
        assert (
            doc.metadata["Rev"] == "C" and doc.metadata["Gültig ab"] == "2024-02-01"
        )  # what the file calls it


def test_the_table_of_names_names_nothing_twice():
    every = [(standard, name) for standard, names in STANDARD_NAMES.items() for name in (standard, *names)]
    assert all(standard_name(name) == standard for standard, name in every)
    assert with_standard_names({"rev": "B", "revision": "C"}) == {"rev": "B", "revision": "C"}
    assert with_standard_names({"rev": "", "Rev No": "C"})["revision"] == "C"


def test_metadata_from_outside_wins_and_a_function_knows_the_file(folder):
    (folder / "hr").mkdir()
    (folder / "hr" / "d.md").write_text("---\nstatus: draft\n---\nBe nice.")
    corpus = rb.load_corpus(folder, metadata={"status": "active", "since": datetime.date(2024, 1, 2)})
    assert {d.metadata["status"] for d in corpus} == {"active"} and corpus[0].metadata[
        "since"
    ] == "2024-01-02"

    def about(file):
        if file.name == "b.md":
            raise ValueError("who knows")
        return {"folder": file.parent.name}

    corpus = rb.load_corpus(folder, metadata=about, loaders={".lines": helper_loaders.load_lines})
    assert {d.id: d.metadata["folder"] for d in corpus} == {
        "c.lines#1": folder.name,
        "c.lines#3": folder.name,
        "hr/d.md": "hr",
    }
    assert corpus["hr/d.md"].metadata["status"] == "draft"
    assert [e.reason for e in corpus.errors if e.source == "b.md"] == [
        "metadata= failed: ValueError('who knows')"
    ]
    corpus = rb.load_corpus(folder / "b.md", metadata=lambda file: None)
    assert not len(corpus) and "metadata= gave None for it" in corpus.errors[0].reason
    for wrong in ({3: 4}, "active", 3):
        with pytest.raises(ConfigError, match="metadata is"):
            rb.load_corpus(folder, metadata=wrong)


# ---------------------------------------------------------------- sums


def test_corpora_add_up(folder, tmp_path):
    a, b = (Document(n, n, metadata={"n": n}, source=f"/{n}.md") for n in "ab")
    c = Document("c", "c")
    one, two, three = Corpus([a], [("x.pdf", "bad")]), Corpus([b]), Corpus([c], [("y.pdf", "worse")])
    whole = one + two + three
    assert whole == one + (two + three) == Corpus([a, b, c])
    assert whole.fingerprint == (one + (two + three)).fingerprint == Corpus([a, b, c]).fingerprint
    assert [e.source for e in whole.errors] == ["x.pdf", "y.pdf"]
    assert sum([one, two, three]) == whole
    with pytest.raises(
        DataError, match=r"1 ids? (is|are) in both corpora, first 'a', from /a.md and elsewhere"
    ):
        one + Corpus([Document("a", "other", source="elsewhere")])
    for wrong in ([a], None, 3):
        with pytest.raises(DataError, match="cannot be added to a corpus"):
            one + wrong


def test_a_data_set_is_told_from_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("procedures", "Procedures"):
        with pytest.raises(DataError, match=r"load_dataset\('procedures'\)"):
            rb.load_corpus(name)
    Path("procedures").mkdir()
    Path("procedures", "a.md").write_text("Mine.")
    assert [d.id for d in rb.load_corpus("procedures")] == ["a.md"]
    with pytest.raises(DataError, match="a data set of this name ships"):
        rb.load_dataset("procedures")
    with pytest.raises(ConfigError, match=r"no data set 'procedurs' ships.*procedures"):
        rb.load_dataset("procedurs")
