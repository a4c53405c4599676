"""What a notebook shows of our values, also after JupyterLab has cleaned it: a notebook that its reader has
not trusted yet."""

import re

import pytest
from lxml import html

from ragbench.chunk.token import TokenChunker
from ragbench.core.documents import Corpus, Document
from ragbench.core.gold import Gold
from ragbench.lexical.fts5 import FTS5
from ragbench.plot.chart import Chart
from ragbench.system.retrievers import Lexical
from ragbench.system.system import System
from ragbench.testing.toy_results import toy_corpus, toy_results

# What the sanitizer of JupyterLab 4 lets through, as far as our pages use it
# (packages/apputils/src/sanitizer.ts).
TAGS = set(
    "a abbr b big blockquote br caption center code col colgroup dd del details div dl dt em figcaption"
    " figure font h1 h2 h3 h4 h5 h6 hr i kbd li mark meter ol p pre q s samp section small span strike strong"
    " sub summary sup table tbody td tfoot th thead time tr tt u ul var wbr".split()
)
ATTRIBUTES = {
    "class",
    "dir",
    "hidden",
    "lang",
    "style",
    "title",
    "colspan",
    "rowspan",
    "scope",
    "align",
    "valign",
    "width",
    "height",
    "open",
}
STYLES = set(
    "background background-color border border-bottom border-collapse border-left border-radius border-right"
    " border-top color display float font-family font-size font-style font-variant font-weight height"
    " letter-spacing line-height margin margin-bottom margin-left margin-right margin-top max-height"
    " max-width min-height min-width opacity overflow overflow-wrap overflow-x overflow-y padding"
    " padding-left padding-right position text-align text-decoration text-indent text-overflow text-transform"
    " top unicode-bidi vertical-align visibility white-space width word-break word-wrap".split()
)
VALUES = {
    "background-color": r"#[0-9a-f]+|rgba?\(.*\)|[a-z]+",
    "overflow-wrap": "normal|break-word",
    "font-weight": r"normal|bold|bolder|lighter|\d00",
    "margin": r"(-?[\d.]+(px|em|%)\s*|auto\s*){1,4}",
    "white-space": "normal|pre|nowrap|pre-wrap|pre-line",
    "width": r"[\d.]+(px|em|%)|auto",
    "height": r"[\d.]+(px|em|%)|auto",
    "text-align": "left|right|center|justify",
}


def cleaned(page: str):
    """The tree of a page as an untrusted notebook shows it."""
    tree = html.fragment_fromstring(page, create_parent="div")
    for e in list(tree.iter()):
        if not isinstance(e.tag, str) or e is tree:
            continue
        if e.tag in ("script", "style", "textarea", "option", "noscript"):
            e.drop_tree()
        elif e.tag not in TAGS:
            e.drop_tag()  # the text stays
        else:
            for name in set(e.attrib) - ATTRIBUTES:
                del e.attrib[name]
            pairs = [p.split(":", 1) for p in e.get("style", "").split(";") if p.strip()]
            kept = [
                f"{k.strip()}:{v.strip()}"
                for k, v in pairs
                if k.strip() in STYLES and re.fullmatch(VALUES.get(k.strip(), ".*"), v.strip())
            ]
            assert len(kept) == len(pairs), (
                e.tag,
                e.get("style"),
            )  # nothing that carries meaning may be lost
            e.set("style", ";".join(kept))
    return tree


def visible(tree) -> str:
    """The text that a reader sees."""
    for e in list(tree.iter()):
        if isinstance(e.tag, str) and "display:none" in e.get("style", "") and e.getparent() is not None:
            e.drop_tree()
    return tree.text_content()


SOP = Document(
    "SOP-42",
    "Startup\n\nStep 1. Open the valve. Step 2. Wait until the header shows 2.4 bar, then go on.",
    metadata={"revision": 3},
)
CHUNKS = TokenChunker(12, 4)(Corpus([SOP]))
GOLD = Gold.from_spans(
    [
        {
            "query_id": "q1",
            "query": "When do I go on?",
            "evidence": [{"doc_id": "SOP-42", "start": 33, "end": 80}],
        }
    ]
)


def test_chunks_keep_their_colours_numbers_and_marks_in_an_untrusted_notebook():
    tree = cleaned(CHUNKS.show("SOP-42", mark=GOLD)._repr_html_())
    colours = {
        re.search(r"background-color:(#\w+)", e.get("style")).group(1)
        for e in tree.iter("span")
        if "background-color" in e.get("style", "")
    }
    assert len(colours) >= 3
    assert [e.text for e in tree.iter("sup")] == [str(i) for i in range(len(CHUNKS))]
    marked = [e for e in tree.iter("b") if "underline" in e.get("style", "")]
    assert (
        "".join(e.text_content() for e in marked) == SOP.text[33:80]
        and marked[0].get("title") == "q1: When do I go on?"
    )
    assert any("border-bottom" in e.get("style", "") for e in tree.iter("span"))  # text that two chunks share
    for e in list(tree.iter("sup")):
        e.drop_tree()
    assert SOP.text in tree.text_content()


def test_the_description_of_chunks_has_its_histogram_in_an_untrusted_notebook():
    tree = cleaned(CHUNKS.describe()._repr_html_())
    bars = [e for e in tree.iter("span") if re.search(r"height:\d+px", e.get("style", ""))]
    assert max(int(re.search(r"height:(\d+)px", e.get("style")).group(1)) for e in bars) == 90
    assert sum(int(m.group(1)) for e in bars if (m := re.match(r"(\d+) chunk", e.get("title", "")))) == len(
        CHUNKS
    )
    assert "<" not in visible(tree)


def test_a_chart_is_a_picture_or_a_sentence():
    chart = toy_results().budget_curve()
    page = chart._repr_html_()
    assert "<svg" in page
    words = visible(cleaned(page))
    assert chart.alt in words and "0.2" not in words.replace(chart.alt, "")  # no heap of tick labels
    other = Chart(
        "another", "It says something else.", None, lambda figure: figure.subplots().plot([0, 1], [1, 0])
    )._repr_html_()
    assert not set(re.findall(r"class='([\w-]+)'", page)) & set(
        re.findall(r"class='([\w-]+)'", other)
    )  # a trusted cell does not open another one


@pytest.mark.parametrize(
    "value",
    [
        SOP,
        Corpus([SOP]),
        CHUNKS,
        GOLD,
        toy_corpus()[1],
        System(TokenChunker(64), Lexical(FTS5())),
        System(TokenChunker(64), Lexical(FTS5())).build(Corpus([SOP])),
        toy_results(),
    ],
    ids=lambda v: type(v).__name__,
)
def test_every_value_has_a_picture_that_survives_and_a_plain_repr(value):
    page = value._repr_html_()
    assert "<table" in page and visible(cleaned(page)).strip()
    assert "#fff" not in page and "color:black" not in page  # the colours are the page's
    assert len(repr(value)) < 4000 and " object at 0x" not in repr(value)
