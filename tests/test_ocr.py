"""A scanned page gives the lines that were printed on it, and an engine that is not there says so."""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pymupdf
import pytest

from ragbench.base.errors import ConfigError
from ragbench.ingest.layout import page_pieces
from ragbench.ingest.loader import Refused
from ragbench.ingest.ocr import ENDPOINT, KEY, AzureRead, Tesseract, azure_lines, ocr_engine, ocr_pdf_page

HEADING = "3 Start-up of the pump"
BODY = [
    "The lube oil pump is started before the machine turns.",
    "Liquid in the sight glass is a reason to stop at once.",
    "Spare elements of the filter are kept in the store.",
]


def scan(dpi: int = 200) -> pymupdf.Document:
    """A page of text, photographed."""
    printed = pymupdf.open().new_page()
    printed.insert_text((72, 80), HEADING, fontsize=18, fontname="hebo")
    for n, line in enumerate(BODY):
        printed.insert_text((72, 120 + 14 * n), line, fontsize=11)
    out = pymupdf.open()
    page = out.new_page()
    page.insert_image(page.rect, pixmap=printed.get_pixmap(dpi=dpi))
    return out


@pytest.mark.system
def test_tesseract_reads_a_scan():
    page = scan()[0]
    assert page.get_text() == ""
    lines = ocr_pdf_page(page, "tesseract")
    assert [line.text for line in lines] == [HEADING, *BODY]
    assert lines[0].size > 1.3 * lines[1].size
    assert {line.size for line in lines[1:]} == {lines[1].size}
    assert all(abs(line.x0 - 72) < 4 for line in lines)
    assert [abs(line.y1 - y) < 6 for line, y in zip(lines, (80, 120, 134, 148), strict=True)] == [True] * 4
    pieces = page_pieces(lines, [], 0)  # what the PDF loader makes of it
    assert len(pieces) == 2


@pytest.mark.system
def test_tesseract_names_a_language_that_is_not_there():
    with pytest.raises(ConfigError, match="tesseract-ocr-tlh"):
        ocr_pdf_page(scan()[0], Tesseract(language="eng+tlh"))


class Service:
    """Plays the service: answers in order, the last one for ever."""

    def __init__(self, *answers):
        self.answers, self.asked, outer = list(answers), [], self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.asked.append((self.command, self.path, dict(self.headers), body))
                status, headers, said = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                data = json.dumps(said).encode()
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(data))} | headers).items():
                    self.send_header(name, value.replace("{home}", outer.url))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def service(monkeypatch):
    started = []

    def start(*answers):
        started.append(Service(*answers))
        monkeypatch.setenv(ENDPOINT, started[-1].url + "/")
        monkeypatch.setenv(KEY, "a-secret")
        return started[-1]

    yield start
    for s in started:
        s.server.shutdown()
        s.server.server_close()


ACCEPTED = (
    202,
    {
        "Operation-Location": (
            "{home}/documentintelligence/documentModels/prebuilt-read/analyzeResults/7?api-version=2024-11-30"
        )
    },
    {},
)


def test_the_conversation_with_azure(service):
    lines = [
        {"content": text, "polygon": [1.0, y, 4.0, y, 4.0, y + 0.15, 1.0, y + 0.15]}
        for text, y in zip(BODY, (1.6, 1.8, 2.0), strict=True)
    ]
    result = {
        "pages": [{"pageNumber": 1, "unit": "inch", "width": 595 / 72, "height": 842 / 72, "lines": lines}]
    }
    azure = service(
        (503, {"Retry-After": "0"}, {}),
        ACCEPTED,
        (200, {}, {"status": "notStarted"}),
        (200, {}, {"status": "succeeded", "analyzeResult": result}),
    )
    found = ocr_pdf_page(scan()[0], "azure")
    assert [line.text for line in found] == BODY
    assert [round(v) for v in found[0][:4]] == [72, 115, 288, 126]
    first, second, poll, _ = azure.asked
    assert (
        first[1]
        == second[1]
        == "/documentintelligence/documentModels/prebuilt-read:analyze?api-version=2024-11-30"
    )
    assert poll[:2] == ("GET", ACCEPTED[1]["Operation-Location"].removeprefix("{home}"))
    assert {asked[2]["Ocp-Apim-Subscription-Key"] for asked in azure.asked} == {"a-secret"}
    assert list(json.loads(first[3])) == ["base64Source"]
    assert "a-secret" not in repr(ocr_engine("azure"))


def test_the_key_goes_to_its_own_host_only(service):
    thief = Service((200, {}, {"status": "succeeded"}))
    service((202, {"Operation-Location": f"{thief.url}/result"}, {}))
    with pytest.raises(Refused, match="points to another host"):
        ocr_pdf_page(scan()[0], "azure")
    thief.server.shutdown()
    thief.server.server_close()
    assert thief.asked == []


@pytest.mark.parametrize(("answers", "error", "words"), [
    ([(401, {}, {})], ConfigError, "refused the key"),
    ([(400, {}, {"error": {"code": "InvalidContent", "message": "corrupt"}})], Refused, "InvalidContent: corrupt"),  # noqa: E501
    ([(404, {}, {})], Refused, "status 404"),
    ([ACCEPTED, (200, {}, {"status": "running"})], Refused, "took too long"),
    ([ACCEPTED, (200, {}, {"status": "failed", "error": {"code": "Oops"}})], Refused, "Oops"),
    ([ACCEPTED, (200, {}, ["no object"])], Refused, "could not read the page"),
    ([(202, {}, {})], Refused, "points to another host"),
    ([(429, {"Retry-After": "1000"}, {})], Refused, "took too long"),
])  # fmt: skip
def test_what_the_service_may_say_instead(service, answers, error, words):
    service(*answers)
    with pytest.raises(error, match=words):
        ocr_pdf_page(scan(72)[0], AzureRead(seconds=1.5))


def test_engines_that_are_not_there(monkeypatch):
    monkeypatch.delenv(ENDPOINT, raising=False)
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(ConfigError, match=ENDPOINT):
        ocr_pdf_page(scan(72)[0], "azure")
    with pytest.raises(ConfigError, match="ocr is 'abbyy'"):
        ocr_engine("abbyy")
    with pytest.raises(ConfigError, match="no data for the language 'eng'"):
        Tesseract(tessdata=os.devnull).folder()
    assert azure_lines({"pages": []}, 1, 1) == []


@pytest.mark.system
def test_the_scanned_page_that_ships_is_refused_and_then_read():
    from ragbench.ingest.load_corpus import load_corpus
    from ragbench.ingest.shipped import shipped

    scan = "LOG-118-relief-valve-shop-record.pdf"
    path = shipped("procedures") / "files" / scan
    [refusal] = load_corpus(path).errors
    assert refusal.source == scan
    assert "ocr='tesseract'" in refusal.reason
    [doc] = load_corpus(path, ocr="tesseract")
    words = doc.text.split()
    for figure in ("PSV-2011", "17.6", "7731"):
        assert any(figure in w for w in words), figure
    assert len(words) > 150
