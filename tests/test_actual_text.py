"""ActualText of PDF files: what is drawn is never hidden by a shorter text, wherever that stands, and a
fuller one is kept."""

from __future__ import annotations

import time

import pymupdf
import pytest

from ragbench import load_corpus
from ragbench.ingest.actual_text import says_less
from ragbench.ingest.pdf import load_pdf

DRAWN = "The pump must be checked every week by the shift leader."
BODY = b"BT /F1 12 Tf 72 700 Td (" + DRAWN.encode() + b") Tj ET"


def pdf(
    content: bytes,
    more: tuple[bytes, ...] = (),
    resources: bytes = b"",
    catalog: bytes = b"",
    page: bytes = b"",
) -> bytes:
    "A file of one page, written by hand."
    objects = [
        b"<</Type/Catalog/Pages 2 0 R" + catalog + b">>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R"
        + page
        + b"/Resources<</Font<</F1 5 0 R>>"
        + resources
        + b">>>>",
        b"<</Length %d>>stream\n" % len(content) + content + b"\nendstream",
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
        *more,
    ]
    out, places = b"%PDF-1.7\n", []
    for i, o in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n" % i + o + b"\nendobj\n"
    table = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1) + b"".join(
        b"%010d 00000 n \n" % p for p in places
    )
    return (
        out + table + b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, len(out))
    )


def form(text: bytes) -> bytes:
    "A form that draws the body under an ActualText of its own."
    content = b"/Span <</ActualText (" + text + b")>> BDC " + BODY + b" EMC"
    return (
        b"<</Type/XObject/Subtype/Form/BBox[0 0 612 792]/Resources<</Font<</F1 5 0 R>>>>/Length %d>>stream\n"
        % len(content)
        + content
        + b"\nendstream"
    )


def places(text: bytes) -> dict[str, bytes]:
    "One page whose ActualText stands in each place that the standard knows."
    tree = (
        b"<</Type/StructTreeRoot/K 7 0 R/ParentTree 8 0 R>>",
        b"<</Type/StructElem/S/P/P 6 0 R/Pg 3 0 R/K 0/ActualText (" + text + b")>>",
        b"<</Nums[0 [7 0 R]]>>",
    )
    return {
        "instructions": pdf(b"/Span <</ActualText (" + text + b")>> BDC " + BODY + b" EMC"),
        "property list": pdf(
            b"/Span /MC0 BDC " + BODY + b" EMC",
            resources=b"/Properties<</MC0 <</ActualText (" + text + b")>>>>",
        ),
        "structure tree": pdf(
            b"/P <</MCID 0>> BDC " + BODY + b" EMC",
            tree,
            catalog=b"/StructTreeRoot 6 0 R/MarkInfo<</Marked true>>",
            page=b"/StructParents 0",
        ),
        "form": pdf(b"/X0 Do", (form(text),), resources=b"/XObject<</X0 6 0 R>>"),
    }


def letters(text: str) -> list[str]:
    "The letters in any order: MuPDF squeezes a longer text into the width of the drawn one, and breaks it."
    return sorted("".join(text.split()))


def packed(data: bytes) -> bytes:
    "The same file with compressed objects and streams."
    return pymupdf.open(stream=data).tobytes(garbage=1, deflate=True, use_objstms=1)


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("place", ["instructions", "property list", "structure tree", "form"])
def test_the_fuller_text_is_kept_wherever_it_is_replaced(tmp_path, place: str, pack: bool) -> None:
    longer = DRAWN.replace("shift leader", "leader of the shift, who signs the record")
    for text, kept in (("Pump", DRAWN), (longer, longer)):
        data = places(text.encode())[place]
        path = tmp_path / "a.pdf"
        path.write_bytes(packed(data) if pack else data)
        assert letters(pymupdf.open(path)[0].get_text()) == letters(
            text
        )  # what is read without a second look
        doc = load_pdf(path, doc_id="a")
        assert letters(doc.text) == letters(kept)
        assert doc.metadata.get("pages_without_actual_text") == ([1] if text == "Pump" else None)


def test_a_mark_a_character_is_not_read_twice(monkeypatch, tmp_path) -> None:
    readings = []
    original = pymupdf.Page.get_textpage
    monkeypatch.setattr(
        pymupdf.Page, "get_textpage", lambda self, **k: readings.append(k) or original(self, **k)
    )
    (tmp_path / "a.pdf").write_bytes(
        packed(
            pdf(
                b"BT /F1 12 Tf 72 700 Td (4.2) Tj /Span <</ActualText <FEFF00A0>>> BDC (_) Tj EMC (bar) Tj ET"
            )
        )
    )
    assert load_pdf(tmp_path / "a.pdf", doc_id="a").text == "4.2 bar"
    assert len(readings) == 1


def test_hostile_marks_are_looked_at_in_linear_time() -> None:
    for piece in (
        b"/ActualText (x) ",
        b"/ActualText <41>>> BDC ",
        b"/ActualText (",
        b"((((\\",
        b"/ActualText <4",
    ):
        small, large = piece * 2_000, piece * 32_000
        seconds = []
        for contents in (small, large):
            began = time.perf_counter()
            says_less(contents)
            seconds.append(time.perf_counter() - began)
        assert seconds[1] < 20  # quadratic: minutes


def test_a_folder_names_the_page(tmp_path) -> None:
    (tmp_path / "a.pdf").write_bytes(places(b"Pump")["instructions"])
    assert load_corpus(tmp_path)["a.pdf"].metadata["pages_without_actual_text"] == [1]
