"""The certificate: ours pass it, and for every property there is a chunker that fails it."""

import itertools
import re
from dataclasses import dataclass

import numpy as np
import pytest

from ragbench.chunk.adapters import from_function
from ragbench.chunk.by_type import ByType
from ragbench.chunk.certificate import KINDS, LAWS, Claims, Promise, certify, examine, smallest, stress_corpus
from ragbench.chunk.character import CharacterChunker
from ragbench.chunk.field import FieldChunker
from ragbench.chunk.paragraph import ParagraphChunker
from ragbench.chunk.recursive import RecursiveChunker
from ragbench.chunk.section import SectionChunker
from ragbench.chunk.sentence import SentenceChunker
from ragbench.chunk.token import TokenChunker
from ragbench.core.chunks import chunk_corpus
from ragbench.core.documents import Corpus, Document


@dataclass(frozen=True)
class Windows:
    """Windows of characters, with one thing wrong."""

    wrong: str = ""
    size: int = 50
    overlap: int = 10
    tokenizer: str = "characters"
    calls = itertools.count()

    def spans(self, doc):
        n, wrong = len(doc.text), self.wrong
        if wrong == "no exception" and "\r" in doc.text:
            raise ValueError("cannot read \\r")
        size = self.size + 1 if wrong == "size bound" else self.size
        step = (
            self.size
            - self.overlap
            + (wrong == "overlap bound") * -5
            + (wrong == "coverage") * (self.overlap + 1)
            + (wrong == "size bound")
        )
        shift = next(self.calls) % 3 if wrong == "deterministic" else 0
        starts = [0, *range(step + shift, max(n - self.overlap, 1), step + shift)]
        return np.array([(s, min(s + size, n)) for s in starts if s < n] or np.empty((0, 2)), dtype=np.int64)

    def __call__(self, source):
        return chunk_corpus(source, self.spans, repr(self))


def failed(certificate):
    return {r.property for r in certificate.failed}


def test_a_right_one_passes():
    certificate = certify(Windows(), large=100_000)
    assert certificate, certificate
    assert {r.property for r in certificate.rows if r.passed} == {*LAWS, *KINDS, "0.1 MB of one line"}


@pytest.mark.parametrize("law", ["no exception", "coverage", "size bound", "overlap bound", "deterministic"])
def test_every_law_can_be_broken(law):
    certificate = certify(Windows(law), large=0)
    assert not certificate
    assert failed(certificate) & set(LAWS) == {law}
    assert certificate[law].example


def claim(change):
    """Windows of ten characters that do not overlap, and what `change` makes of the claims."""
    return Claims(
        lambda t: change(
            t,
            [(i, min(i + 10, len(t)), t[i : i + 10]) for i in range(0, len(t), 10) if t[i : i + 10].strip()],
        ),
        change.__name__,
    )


def as_bytes(text, claims):
    return [(len(text[:s].encode()), None, t) for s, _, t in claims]


def first_match(text, claims):
    return [(text.find(t), None, t) for _, _, t in claims]


def none_at_all(text, claims):
    return [(None, None, t) for _, _, t in claims]


def not_found(text, claims):
    return [(-1, None, t) for _, _, t in claims]


def off_the_end(text, claims):
    return [(s, s + 10, t) for s, _, t in claims]


def backwards(text, claims):
    return claims[::-1]


def universal_newlines(text, claims):
    return [(s, e, t.replace("\r\n", "\n").replace("\r", "\n")) for s, e, t in claims]


def composed(text, claims):
    import unicodedata

    return [(s, e, unicodedata.normalize("NFC", t)) for s, e, t in claims]


def special(text, claims):
    if "<|endoftext|>" in text:
        raise ValueError("disallowed special token")
    return claims


def blanks_too(text, claims):
    return claims if text.strip() else [(0, len(text), text)]


def no_hebrew(text, claims):
    return [c for c in claims if not re.search("[\u0590-\u06ff]", c[2])]


def no_thai(text, claims):
    return [c for c in claims if not re.search("[\u0e00-\u0e7f]", c[2])]


def no_chinese(text, claims):
    return [c for c in claims if not re.search("[\u4e00-\u9fff]", c[2])]


@pytest.mark.parametrize(
    ("change", "laws", "kinds"),
    [
        (
            as_bytes,
            {"offsets exact"},
            {"emoji", "combining characters", "right-to-left", "Thai, no spaces", "Chinese, no spaces"},
        ),
        (first_match, {"order"}, {"repeated text"}),
        (none_at_all, {"offsets exact"}, {"plain prose"}),
        (not_found, {"offsets exact"}, {"plain prose"}),
        (off_the_end, {"offsets exact"}, set()),
        (backwards, {"order"}, {"plain prose"}),
        (universal_newlines, {"offsets exact"}, {"CRLF"}),
        (composed, {"offsets exact"}, {"combining characters"}),
        (special, {"no exception"}, {"special-token text"}),
        (blanks_too, set(), {"empty and blank"}),
        (no_hebrew, {"coverage"}, {"right-to-left"}),
        (no_thai, {"coverage"}, {"Thai, no spaces"}),
        (no_chinese, {"coverage"}, {"Chinese, no spaces"}),
    ],
)
def test_every_kind_of_text_can_fail(change, laws, kinds):
    found = failed(certify(claim(change), large=0))
    assert laws <= found
    assert kinds <= found
    if laws | kinds:
        assert found != {r.property for r in certify(claim(change), large=0).rows}, "not everything is wrong"


def test_a_failure_of_one_kind_stays_there():
    assert failed(certify(claim(special), large=0)) == {"no exception", "special-token text"}
    assert failed(certify(claim(universal_newlines), large=0)) == {"offsets exact", "CRLF"}
    assert failed(certify(claim(blanks_too), large=0)) == {"empty and blank"}


def test_one_long_line_can_fail():
    loses = from_function(lambda t: [t[:50_000]])
    assert failed(certify(loses, large=100_000)) == {"0.1 MB of one line"}
    calls = []

    class Slow(Windows):
        def __call__(self, source):
            calls.append(1)
            return super().__call__(source)

    slow = certify(Slow(size=1000, overlap=0), large=1_000_000, seconds=1e-9)
    assert failed(slow) == {"1 MB of one line"}
    assert "ten times as many would take" in slow["1 MB of one line"].example
    assert certify(Windows(), large=0)["one long line"].passed is None


def test_examples_are_small():
    assert certify(claim(universal_newlines), large=0)["offsets exact"].example.startswith(r"'.\r'")
    assert certify(claim(special), large=0)["no exception"].example.startswith("'<|endoftext|>'")
    assert smallest("x" * 1000 + "ab" + "y" * 1000, lambda t: "a" in t and "b" in t) == "ab"
    calls = []
    smallest("x" * 1000, lambda t: calls.append(t) or len(t) > 500, tries=25)
    assert len(calls) == 25


def test_a_panic_is_a_finding_and_an_interrupt_is_not():
    class PanicException(BaseException):
        "What a Rust library raises; no `Exception`."

    def panics(text):
        raise PanicException("byte index 1 is not a char boundary")

    def stops(text):
        raise KeyboardInterrupt

    doc = Document("d", "text")
    assert "char boundary" in examine(Claims(panics, "panics"), doc, Promise())["no exception"]
    with pytest.raises(KeyboardInterrupt):
        examine(Claims(stops, "stops"), doc, Promise())


def test_what_is_not_promised_is_not_judged():
    certificate = certify(from_function(lambda t: [t[i : i + 40] for i in range(0, len(t), 40)]), large=0)
    assert certificate
    assert [certificate[law].passed for law in ("size bound", "overlap bound")] == [None, None]
    assert failed(
        certify(
            from_function(lambda t: [t[i : i + 40] for i in range(0, len(t), 40)]),
            size=39,
            tokenizer="characters",
            large=0,
        )
    ) == {"size bound"}
    assert Promise.of(Windows(), overlap=3) == Promise(50, 3, "characters")


def test_your_own_documents():
    corpus = Corpus([Document("mine", "A text with § in it. " * 10)])
    assert certify(Windows(), corpus, large=0)["your corpus"].passed
    loses = from_function(lambda t: t.split("§"))
    certificate = certify(loses, corpus, large=0)
    assert failed(certificate) == {"coverage", "your corpus"}
    assert certificate["your corpus"].example == "'§': '§' at 0 is in no chunk (1 of 1 characters lost)"


def test_the_stress_corpus_is_what_it_says():
    corpus = stress_corpus()
    text = {kind: "".join(d.text for d in corpus if d.metadata["kind"] == kind) for kind in KINDS}
    assert "\r\n" in text["CRLF"]
    assert "\u0301" in text["combining characters"]
    assert max(text["emoji"]) > "\uffff"
    assert " " not in text["Thai, no spaces"] + text["Chinese, no spaces"]
    assert "<|endoftext|>" in text["special-token text"]
    assert not text["empty and blank"].strip()
    assert any(d.text == "" for d in corpus)
    sentences = re.findall(r"[^.]+\.", text["repeated text"])
    assert len(set(sentences)) < len(sentences) / 10


OURS = [
    TokenChunker(512, 64),
    TokenChunker(64, 16, snap="sentence"),
    TokenChunker(64, 16, "all-MiniLM-L6-v2", "word"),
    ByType({"pdf": SectionChunker(100, min_size=50), "csv": FieldChunker(), "default": TokenChunker(64, 16)}),
    RecursiveChunker(40, 10),
    CharacterChunker(50, 10),
    SentenceChunker(64, 16),
    ParagraphChunker(100, 10, 50),
    SectionChunker(100, min_size=50),
    FieldChunker(),
]


@pytest.mark.parametrize(
    "chunker",
    [
        TokenChunker(1),
        TokenChunker(16, 15),
        RecursiveChunker(5),
        RecursiveChunker(40, 10, "characters"),
        *OURS,
    ],
    ids=repr,
)
def test_ours_are_certified(chunker):
    certificate = certify(chunker, large=100_000)
    assert certificate, certificate


def test_each_type_is_certified_for_itself():
    """A chunker by type is held to the promise of each of its chunkers, on documents of that type; a failure
    says of which."""
    good = Windows(size=50, overlap=10)
    for wrong in ("size bound", "overlap bound", "coverage"):
        certificate = certify(ByType({"pdf": good, "csv": Windows(wrong, 50, 10)}), large=0)
        assert wrong in failed(certificate)
        assert certificate[wrong].example.startswith("[csv] ")
    assert certify(ByType({"pdf": good, "csv": Windows(size=20, overlap=3)}), large=0)
    mine = Corpus([Document("p", "text § " * 9, format="pdf"), Document("c", "text § " * 9, format="csv")])
    certificate = certify(ByType({"pdf": good, "csv": from_function(lambda t: t.split("§"))}), mine, large=0)
    assert certificate["your corpus"].checked == 2
    assert certificate["your corpus"].example.startswith("[csv] ")


@pytest.mark.parametrize("chunker", [ParagraphChunker, SectionChunker])
def test_a_largest_size_is_a_promise(chunker):
    assert Promise.of(chunker(100, min_size=50)).size == 100
    assert Promise.of(SectionChunker(100, min_size=50, fallback=TokenChunker(999))).size is None


def test_snapped_windows_cannot_hide_what_they_share():
    """The start that moves back beyond the overlap, as it once did, fails."""

    class Back(TokenChunker):
        def _cut(self, doc, table):
            spans = super()._cut(doc, table)
            spans[1:, 0] = np.maximum(spans[1:, 0] - 40, spans[:-1, 0])
            return spans

    assert failed(certify(Back(64, 16, snap="sentence"), large=0)) >= {"size bound", "overlap bound"}


@pytest.mark.slow
@pytest.mark.parametrize("chunker", OURS, ids=repr)
def test_ours_are_certified_with_ten_megabytes_of_one_line(chunker):
    certificate = certify(chunker, seconds=300)
    assert certificate["10 MB of one line"].passed, certificate


def test_reading_it():
    certificate = certify(claim(universal_newlines), large=0, name="<b>")
    assert repr(certificate).startswith("<b>: 2 of 18 properties failed")
    assert "&lt;b&gt;" in certificate._repr_html_()
    assert "<b>:" not in certificate._repr_html_()
    assert certificate.to_frame().query("passed == False").property.tolist() == ["offsets exact", "CRLF"]
