"""A site on this machine that is slow, endless, broken or hostile: each page loads or is a row in errors."""

import gzip
import io
import sys
import time

import docx
import lxml.html
import pytest
from helper_site import TEXT, Site, html

from ragbench.base.errors import ConfigError, MissingExtra
from ragbench.ingest.load_corpus import load_corpus
from ragbench.ingest.loader import Limits
from ragbench.ingest.web import load_html, load_url

pytest.importorskip("trafilatura")


def visit(site, path="/", **options):
    return load_url(site.url + path, **{"delay": 0, "allow_private": True} | options)


def ids(site, corpus):
    return [d.id.removeprefix(site.url) for d in corpus]


def test_a_page_becomes_markdown_with_headings_and_metadata(site):
    head = (
        '<meta name="author" content="Ana Ruiz"><meta property="article:published_time"'
        ' content="2024-03-12T08:00:00Z"><link rel="canonical" href="/pump">'
    )
    site.pages["/pump"] = html("Pump", head=head)
    corpus = load_corpus(f"{site.url}/pump?from=mail#top", delay=0, allow_private=True)
    (doc,) = corpus
    assert doc.metadata["published"] == "2024-03-12"
    assert (doc.metadata["title"], doc.metadata["author"], doc.metadata["canonical_url"]) == (
        "Pump",
        "Ana Ruiz",
        f"{site.url}/pump",
    )
    assert doc.text.startswith("# Pump\n")
    assert [(h.title, doc.text[h.start : h.end]) for h in doc.headings] == [("Pump", "Pump")]
    assert (
        load_corpus(f"{site.url}/pump?from=mail", delay=0, allow_private=True).fingerprint
        == corpus.fingerprint
    )


def test_depth_order_and_no_page_twice(site):
    site.pages |= {
        "/": html("Home", "/b", "a#one", "a#two", "./x/../a", "http://example.org/"),
        "/a": html("A", "/", "/c"),
        "/b": html("B", "/a"),
        "/c": html("C"),
    }
    assert ids(site, visit(site)) == ["/"]
    assert ids(site, visit(site, max_depth=1)) == ["/", "/b", "/a"]
    site.asked.clear()
    deep = visit(site, max_depth=9)
    assert ids(site, deep) == ["/", "/b", "/a", "/c"]
    assert site.paths() == ["/", "/b", "/a", "/c"]
    assert [d.metadata["depth"] for d in deep] == [0, 1, 1, 2]
    assert deep.errors == ()


def test_an_endless_site_ends(site):
    site.pages["/n"] = lambda handler: endless(handler)

    def endless(handler):
        n = int(handler.path.partition("?")[2] or 0)
        body = html(f"Page {n}", f"/n?{n + 1}", f"/n?{n + 2}")
        handler.send_response(200)
        handler.send_header("Content-Type", "text/html")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    corpus = visit(site, "/n", max_depth=1000, limits=Limits(pages=7))
    assert len(corpus) == 7
    assert "the limit is 7 pages" in corpus.errors[-1].reason


def test_what_goes_wrong_is_a_row(site):
    def drip(handler):
        handler.send_response(200)
        handler.send_header("Content-Type", "text/html")
        handler.end_headers()
        try:
            for _ in range(100):
                handler.wfile.write(b"<p>a little more</p>")
                handler.wfile.flush()
                time.sleep(0.1)
        except OSError:
            pass  # the visitor has left

    def silent(handler):
        time.sleep(3)

    def slow_headers(handler):
        try:
            for byte in b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nX-Slow: " + b"z" * 100:
                handler.wfile.write(bytes([byte]))
                handler.wfile.flush()
                time.sleep(0.1)
        except OSError:
            pass  # the visitor has left

    bomb = gzip.compress(b"<p>" + b" " * 50_000_000)
    pages = {
        "/drip": (drip, "longer than 1 seconds"), "/silent": (silent, "longer than 1 seconds"), "/headers": (slow_headers, "longer than 1 seconds"),  # noqa: E501
        "/bomb": ((200, {"Content-Encoding": "gzip"}, bomb), "larger than 100,000 bytes"),
        "/big": ((200, {}, b"<p>" + b"x" * 200_000), "larger than 100,000 bytes"),
        "/notgzip": ((200, {"Content-Encoding": "gzip"}, b"plain"), "its compression is broken"),
        "/short": ((200, {"Content-Length": "500"}, b"<p>x"), "could not be fetched"),
        "/none": (None, "status 404"), "/down": ((503, {}, b""), "status 503"),
        "/pdf": ((200, {"Content-Type": "application/pdf"}, b"%PDF-"), "of type application/pdf"), "/exe": ((200, {"Content-Type": "application/x-msdownload"}, b"MZ"), "of type application/x-msdownload"),  # noqa: E501
        "/loop": ((302, {"Location": "/loop2"}, b""), "redirects in a circle"), "/loop2": ((302, {"Location": "/loop"}, b""), "redirects in a circle"),  # noqa: E501
        "/ftp": ((302, {"Location": "ftp://example.org/"}, b""), "only http and https"),
        "/away": ((302, {"Location": "http://127.0.0.2:9/"}, b""), "redirects to another host"),
        "/empty": (b"<html><body></body></html>", "no main content"), "/nul": (bytes(500), ""),
    }  # fmt: skip
    site.pages |= {path: page for path, (page, _) in pages.items() if page is not None}
    site.pages |= {"/": html("Home", *pages, "/good"), "/good": html("Good")}
    corpus = visit(site, max_depth=1, limits=Limits(bytes=100_000, seconds=1, pages=50))
    assert ids(site, corpus) == ["/", "/good"]
    reasons = {e.source.removeprefix(site.url): e.reason for e in corpus.errors}
    assert list(reasons) == list(pages)
    assert {path for path, (_, words) in pages.items() if words not in reasons[path]} == set()


def test_robots_are_asked_and_obeyed(site):
    site.pages |= {
        "/": html("Home", "/open", "/closed/a", "/to-closed"),
        "/open": html("Open"),
        "/closed/a": html("Closed"),
        "/to-closed": (302, {"Location": "/closed/a"}, b""),
    }
    site.pages["/robots.txt"] = (
        200,
        {"Content-Type": "text/plain"},
        (
            b"\xef\xbb\xbfUser-agent: other\nDisallow: /\n\nUser-agent: ragbench\nDisallow:"
            b" /closed\nCrawl-delay: 1\n"
        ),
    )
    corpus = visit(site, max_depth=1)
    assert ids(site, corpus) == ["/", "/open"]
    assert {e.reason for e in corpus.errors} == {"robots.txt does not allow it"}
    assert "/closed/a" not in site.paths()
    times = [at for path, at in site.asked if path != "/robots.txt"]
    assert (
        min(b - a for a, b in zip(times, times[1:], strict=False)) > 0.9
    )  # not a speed: the pause that was asked for
    assert visit(site, user_agent="other/2.0").errors[0].reason == "robots.txt does not allow it"
    site.pages["/robots.txt"] = (503, {}, b"")
    (error,) = visit(site).errors
    assert "status 503" in error.reason


def test_nothing_of_ones_own_network_is_fetched_by_default(site):
    site.pages["/"] = html("Home")
    for url in (
        site.url,
        "http://localhost:1/",
        "http://[::1]/",
        "http://169.254.169.254/latest/meta-data/",
        "http://2130706433/",
        "http://0/",
    ):
        corpus = load_url(url, delay=0)
        assert (len(corpus), len(corpus.errors)) == (0, 1)
        assert "not on the public internet" in corpus.errors[0].reason, url
    assert site.asked == []


def test_the_first_page_may_move_house(site):
    other = Site()
    other.pages |= {"/": html("New home", "/more"), "/more": html("More")}
    site.pages["/"] = (301, {"Location": other.url + "/"}, b"")
    corpus = visit(site, max_depth=1)
    other.server.shutdown()
    other.server.server_close()
    assert [d.id for d in corpus] == [other.url + "/", other.url + "/more"]


@pytest.mark.parametrize(
    ("charset", "header"),
    [
        ("utf-8", ""),
        ("cp1252", "; charset=windows-1252"),
        ("shift_jis", "; charset=Shift_JIS"),
        ("utf-8", "; charset=nonsense"),
    ],
)
def test_the_charset_of_the_header_is_believed_if_it_can_be(site, charset, header):
    said = {
        "cp1252": "Kühlwasser läuft höher als üblich",
        "shift_jis": "潤滑油ポンプは機械が回る前に始動する",
    }.get(charset, "Kühlwasser 潤滑油")
    site.pages["/"] = (
        200,
        {"Content-Type": f"text/html{header}"},
        f"<html><body><main><h1>T</h1><p>{said}. {TEXT}</p></main></body></html>".encode(charset),
    )
    assert said in visit(site)[0].text


def test_arguments_that_cannot_be_and_packages_that_are_not_there(monkeypatch):
    for url in ("ftp://example.org", "example.org", "http://ana:secret@example.org/"):
        with pytest.raises(ConfigError):
            load_url(url)
    with pytest.raises(ConfigError, match="max_depth is -1"):
        load_url("http://example.org", max_depth=-1)
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtra, match=r"ragbench\[web\]"):
        load_url("http://example.org")


def pdf_bytes(text: str, **options) -> bytes:
    pymupdf = pytest.importorskip("pymupdf")
    with pymupdf.open() as pdf:
        pdf.new_page().insert_text((72, 72), text)
        return pdf.tobytes(**options)


def docx_bytes(text: str) -> bytes:
    document = docx.Document()
    document.add_paragraph(text)
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def test_files_behind_links_go_to_the_loader_of_their_type(site):
    word = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
    files = {
        "/manual": (200, {"Content-Type": "application/pdf"}, pdf_bytes("Start the pump.")),
        "/note": (200, {"Content-Type": word}, docx_bytes("Stop the pump.")),
        "/people.csv": (200, {"Content-Type": "text/csv"}, b"name,bio\nAna,Pumps\nBo,Valves\n"),
        "/list": (200, {"Content-Type": "application/json; charset=utf-8"}, b'[{"text": "Oil"}]'),
        "/readme": (200, {"Content-Type": "text/markdown"}, b"# Oil\n\nCheck the level."),
        "/raw.md": (200, {"Content-Type": "text/plain"}, b"# Gas\n\nVent it."),
        "/download.pdf": (200, {"Content-Type": "application/octet-stream"}, pdf_bytes("Vent the tank.")),
    }
    bad = {
        "/broken": ((200, {"Content-Type": "application/pdf"}, b"%PDF-1.7 no more"), "damaged"),
        "/locked": (
            (
                200,
                {"Content-Type": "application/pdf"},
                pdf_bytes("Oil", encryption=5, user_pw="oil", owner_pw="gas"),
            ),
            "encrypted",
        ),
        "/picture": ((200, {"Content-Type": "image/png"}, b"\x89PNG"), "of type image/png"),
        "/large": (
            (200, {"Content-Type": "application/pdf"}, b"%PDF-" + b"x" * 2_100_000),
            "larger than 2,000,000 bytes",
        ),
    }
    site.pages |= files | {path: page for path, (page, _) in bad.items()} | {"/": html("Home", *files, *bad)}
    corpus = load_corpus(
        site.url, delay=0, allow_private=True, max_depth=1, limits=Limits(bytes=2_000_000, seconds=60)
    )
    loaded = "/ /manual /note /people.csv#1 /people.csv#2 /list#1 /readme /raw.md /download.pdf"
    assert ids(site, corpus) == loaded.split()
    formats = "html pdf docx csv csv json markdown markdown pdf"
    assert [d.format for d in corpus] == formats.split()
    assert corpus[1].text == "Start the pump."
    assert {d.source for d in corpus} == {d.metadata["url"] for d in corpus}
    assert [d.source.removeprefix(site.url) for d in corpus][1:4] == ["/manual", "/note", "/people.csv"]
    reasons = {e.source.removeprefix(site.url): e.reason for e in corpus.errors}
    assert list(reasons) == list(bad)
    assert {path for path, (_, words) in bad.items() if words not in reasons[path]} == set()
    assert ids(
        site, load_corpus(site.url + "/locked", delay=0, allow_private=True, password="oil", workers=0)
    ) == ["/locked"]


def test_a_visit_bounds_its_pages_and_not_those_of_a_file(site):
    pymupdf = pytest.importorskip("pymupdf")
    with pymupdf.open() as pdf:
        for n in range(3):
            pdf.new_page().insert_text((72, 72), f"Page {n}.")
        site.pages["/"] = (200, {"Content-Type": "application/pdf"}, pdf.tobytes())
    assert (
        len(load_corpus(site.url, delay=0, allow_private=True, workers=0, limits=Limits(pages=1))[0].pages)
        == 3
    )


def test_robots_as_the_standard_says(site):
    """RFC 9309: the longest match decides, * and $ are understood, 4xx lets in and 5xx, silence and endless
    headers keep out; asked once a host."""
    site.pages["/"] = html("Home", "/a?x=1", "/a", "/b/c", "/b/d", "/e.pdf", "/e.pdfx")
    site.pages |= {path: html(path) for path in ("/a", "/b/c", "/b/d", "/e.pdfx")} | {
        "/e.pdf": (200, {}, html("e"))
    }
    site.pages["/robots.txt"] = (
        200,
        {},
        b"User-agent: *\nDisallow: /*?x\nDisallow: /b\nDisallow: /*.pdf$\nAllow: /b/d\n",
    )
    corpus = visit(site, max_depth=1)
    assert ids(site, corpus) == ["/", "/a", "/b/d", "/e.pdfx"]
    assert [e.source.removeprefix(site.url) for e in corpus.errors] == ["/a?x=1", "/b/c", "/e.pdf"]
    assert [path for path, _ in site.asked].count("/robots.txt") == 1
    for status in (401, 403, 404, 410, 429):
        site.pages["/robots.txt"] = (status, {}, b"User-agent: *\nDisallow: /\n")
        assert ids(site, visit(site)) == ["/"], status
    for status in (500, 503):
        site.pages["/robots.txt"] = (status, {}, b"")
        assert len(visit(site)) == 0, status

    def endless(handler):
        try:
            while True:
                handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
                handler.wfile.flush()
                time.sleep(0.2)
        except OSError:
            pass  # the visitor has left

    site.pages["/robots.txt"] = endless
    (error,) = visit(site, limits=Limits(seconds=1)).errors
    assert "robots.txt could not be read, so nothing is fetched" in error.reason
    site.pages["/robots.txt"] = (301, {"Location": "/rules"}, b"")
    site.pages["/rules"] = (200, {}, b"User-agent: *\nDisallow: /\n")
    assert visit(site).errors[0].reason == "robots.txt does not allow it"


def test_pauses_do_not_count_against_the_time_of_a_page(site):
    site.pages |= {"/": html("Home", "/more"), "/more": html("More")}
    assert ids(site, visit(site, max_depth=1, delay=1.5, limits=Limits(seconds=1))) == ["/", "/more"]


def codec_names() -> list[str]:
    """Every name of a codec that Python knows, and some that it does not."""
    import encodings
    import pkgutil

    known = (
        {m.name for m in pkgutil.iter_modules(encodings.__path__)}
        | set(encodings.aliases.aliases)
        | set(encodings.aliases.aliases.values())
    )
    odd = [
        "",
        " ",
        "a" * 3000,
        "\x7f",
        "../../etc/passwd",
        "utf-8\t",
        "'utf-8'",
        "utf 8",
        "None",
        "os",
        "sys.path",
        "undefined ",
        "UNDEFINED",
        "Punycode",
        "unicode-escape",
        "x-user-defined",
        "utf\u00ad8",
        "\xff",
        "%00",
        "utf-8;q=1",
        "=",
        ";;",
    ]
    return sorted(known) + odd


def test_no_name_of_a_charset_ends_a_visit(site):
    """None, known or not: codecs in which no text is written are not asked, and the page's own bytes
    decide."""
    names = codec_names()
    said = "Kühlwasser läuft höher als üblich"
    body = html(said)
    site.pages |= {
        f"/{n}": (200, {"Content-Type": f"text/html; charset={name}"}, body) for n, name in enumerate(names)
    }
    site.pages["/"] = html("Home", *(f"/{n}" for n in range(len(names))))
    corpus = visit(site, max_depth=1, limits=Limits(pages=1000, seconds=30))
    assert len(corpus) + len(corpus.errors) == len(names) + 1
    assert {e.reason.partition(".")[0] for e in corpus.errors} <= {
        "it is not HTML",
        "there is no main content in it",
    }  # a header that lies, such as cp037
    by_id = {d.id.removeprefix(site.url): d.text for d in corpus}
    for name in (
        "undefined",
        "punycode",
        "idna",
        "unicode_escape",
        "raw_unicode_escape",
        "hex_codec",
        "zlib_codec",
        "rot_13",
        "base64_codec",
        "utf_8",
        "ascii",
        "../../etc/passwd",
    ):
        assert said in by_id[f"/{names.index(name)}"], name


def test_quadratic_codecs_are_not_asked(site):
    """A megabyte in punycode would take hours."""
    body = html("Home") + b"<!-- " + b"a" * 1_000_000 + b"-9 -->"
    for name in ("punycode", "idna", "PUNYCODE", "puny_code"):
        site.pages["/"] = (200, {"Content-Type": f"text/html; charset={name}"}, body)
        assert ids(site, visit(site, limits=Limits(seconds=20))) == ["/"]


def test_no_exception_of_a_page_ends_a_visit(site, monkeypatch):
    """Whatever the reader of one page raises, what came before and after is there."""
    from ragbench.ingest import web

    kinds = [
        ValueError("x"),
        UnicodeError("x"),
        KeyError("x"),
        RecursionError(),
        MemoryError(),
        OSError(5, "x"),
        AssertionError(),
        TypeError("x"),
        StopIteration(),
        ConfigError("an argument is wrong"),
        MissingExtra("lxml", "web"),
    ]
    paths = [f"/{n}" for n in range(len(kinds))]
    site.pages |= {path: html(path) for path in paths} | {
        "/": html("Home", *paths, "/last"),
        "/last": html("Last"),
    }
    real = web.read_page

    def read_page(data, url, charset, follow):
        path = url.removeprefix(site.url)
        if path in paths:
            raise kinds[paths.index(path)]
        return real(data, url, charset, follow)

    monkeypatch.setattr(web, "read_page", read_page)
    corpus = visit(site, max_depth=1, workers=0)
    assert ids(site, corpus) == ["/", "/last"]
    assert [e.source.removeprefix(site.url) for e in corpus.errors] == paths
    assert all(e.reason for e in corpus.errors)


# what a server could send only by mistake or on purpose: lines of a head, whole answers, addresses to go to
HEADER_LINES = [
    b"Content-Type: ",
    b"Content-Type: text/html; charset=",
    b'Content-Type: text/html; charset="',
    b"Content-Type: text/html; charset=utf-8; charset=punycode",
    b"Content-Type: \xff\xfe/\x80",
    b"Content-Type: text/html; charset*=utf-8''x%ff",
    b"Content-Type: text/html; charset*0=ut; charset*1=f-8",
    b"Content-Type: =?utf-8?q?text/html?=",
    b"Content-Length: -5",
    b"Content-Length: 99999999999999999999",
    b"Content-Length: x",
    b"Transfer-Encoding: chunked, gzip",
    b"Transfer-Encoding: chunked",
    b"Content-Encoding: \xff",
    b"Location: http://[",
    b"Set-Cookie: \xff=\xff; Domain=.",
    b"Link: <" + b"x" * 70_000 + b">",
    b"Content-Type: " + b"a" * 50_000,
]
ANSWERS = [
    b"",
    b"\r\n\r\n",
    b"HTTP/9.9 200 OK\r\n\r\n",
    b"HTTP/1.1 999 \xff\r\n\r\n",
    b"HTTP/1.1 -1 OK\r\n\r\n",
    b"HTTP/1.1 200\r\n\r\n" + html("Page"),
    bytes(3000),
    b"SSH-2.0-x\r\n",
]
LOCATIONS = [
    "http://[",
    "http://[::1",
    "//",
    "http://\xff/",
    "http://a" + "b" * 300 + "/",
    "http://x:99999999/",
    "http://user:pw@x/",
    "javascript:x",
    "http://\u00ad/",
    "?" + "q" * 5000,
    "http:///",
    "\t",
    "http://xn--/",
    "http://a..b/",
]


def raw(answer: bytes):
    "A page that is these bytes, head and all."

    def send(handler):
        handler.wfile.write(answer)

    return send


def test_no_header_ends_a_visit(site):
    """Each answer loads or is a row."""
    head, moved_head, page = b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 302 Found\r\n", html("Page")
    close, end = b"Connection: close\r\n", b"\r\n\r\n"
    answers = {f"/h{n}": raw(head + close + line + end + page) for n, line in enumerate(HEADER_LINES)}
    answers |= {f"/s{n}": raw(answer) for n, answer in enumerate(ANSWERS)}
    answers |= {
        f"/l{n}": raw(moved_head + close + b"Location: " + address.encode("utf-8") + end)
        for n, address in enumerate(LOCATIONS)
    }
    site.pages |= answers | {"/": html("Home", *answers, "/last"), "/last": html("Last")}
    corpus = visit(site, max_depth=1, limits=Limits(seconds=5))
    seen = ids(site, corpus)
    assert (seen[0], seen[-1]) == ("/", "/last")
    assert {*seen[1:-1], *(e.source.removeprefix(site.url) for e in corpus.errors)} == set(answers)
    assert not [e for e in corpus.errors if "mistake of its own" in e.reason], corpus.errors


def test_robots_that_cannot_be_read_as_text_end_no_visit(site):
    site.pages |= {"/": html("Home")}
    for body in (
        bytes(range(256)) * 100,
        b"User-agent: *\nCrawl-delay: 1e999\nDisallow: \xff%zz*$*$\n",
        b"Disallow: /" + b"*" * 5000 + b"$",
        "User-agent: *\nCrawl-delay: \u0661\n".encode(),
    ):
        site.pages["/robots.txt"] = (200, {"Content-Type": "text/plain; charset=undefined"}, body)
        corpus = visit(site)
        assert len(corpus) + len(corpus.errors) == 1


def test_links_without_number_are_bounded(site):
    """A page of 30,000 links costs a list of them, not a request each, and the visit its pages."""
    links = b"".join(b"<a href='/%d'>x</a>" % n for n in range(30_000))
    site.pages["/"] = html("Home").replace(b"</main>", links + b"</main>")
    corpus = visit(site, max_depth=1, limits=Limits(pages=3, seconds=60))
    assert ids(site, corpus) == ["/"]
    assert "the limit is 3 pages" in corpus.errors[-1].reason
    assert len(site.paths()) == 3


def test_a_link_with_a_password_in_it_is_a_row_without_the_password(site):
    host = site.url.removeprefix("http://")
    site.pages |= {
        "/": html(
            "home",
            "/a",
            f"http://ana:secret@{host}/b?key=secret",
            "http://ana:secret@elsewhere.invalid/c",
            "mailto:ana@example.org",
        ),
        "/a": html("a", f"http://ana:secret@{host}/b"),
    }
    corpus = load_url(f"{site.url}/", max_depth=2, delay=0, allow_private=True, workers=0)
    assert len(corpus) == 2
    [row] = corpus.errors
    assert row.source == f"{site.url}/b" and "password" in row.reason and "secret" not in str(corpus.errors)


AROUND = (
    '<div id="top-nav"><ul><li><a href="/">Home</a></li><li><a href="/oil">All about oil</a></li></ul></div>'
    '<div class="wrap">{}</div><div class="right-sidebar"><h3>News</h3><p>A new site is open.</p></div>'
    '<div><a href="/1">Other pages</a> <a href="/2">Printed matter</a></div>'
    "<nav>Skip to it</nav><aside><h4>See too</h4></aside><footer><p>Cookies and rights</p></footer>"
)
STANDING_AROUND = ("Home", "oil", "News", "new site", "Other", "Printed", "Skip", "See too", "Cookies")
BODIES = {
    "headings": "<h2>Leak</h2><p>Call Eva at once.</p><h2>Fire</h2><p>Leave it.</p><h2>Flood</h2><p>Dry.</p>",
    "steps": "<h1>SOP 12</h1>" + "".join(f"<h2>{n} Step</h2><p>Turn valve {n}.</p>" for n in range(1, 8)),
    "long": f"<h1>Start</h1><p>{TEXT} {TEXT} {TEXT}</p><h2>After it</h2><p>Note the time.</p>",
    "table": "<h1>Only</h1><table><tr><td>Pump</td><td>P-1</td></tr><tr><td>a|b</td><td></td></tr></table>",
    "lists": f"<h1>L</h1><ul><li>One<ul><li>Inner</li></ul></li></ul><ol start=3><li>Uno</li></ol>{TEXT}",
    "terms": f"<h1>G</h1><dl><dt>Bilge</dt><dd>The lowest part.</dd></dl><p>{TEXT}</p>",
    "code": f"<h1>C</h1><pre># no heading\n  two</pre><p>{TEXT}</p>",
    "captions": f"<p>{TEXT}</p><table><caption>Limits</caption><tr><td>bar</td><td>4</td></tr></table>"
    "<figure><img src=a.png><figcaption>The pump seen from above</figcaption></figure>",
    "folded": f"<p>{TEXT}</p><details><summary>More</summary><p>The valve is red.</p></details>",
    "empty end": f"<h1>T</h1><p>{TEXT}</p><h2>Annex</h2>",
    "apart": f"<header><h1>Head</h1></header><div><p>{TEXT}</p></div><div><h2>Tail</h2><p>The end.</p></div>",
}
PAGES = {
    "bare": "{}", "div": "<div>{}</div>", "article": "<article>{}</article>",
    "main": "<main>{}</main>", "around": AROUND,
}  # fmt: skip


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_main_content_is_in_the_text(tmp_path, body, page):
    file = tmp_path / "a.html"
    file.write_text(f"<html><body>{PAGES[page].format(BODIES[body])}</body></html>")
    doc = load_html(file, doc_id="a")
    tree = lxml.html.fromstring(BODIES[body].join(("<div>", "</div>")))
    titles = [h.text for h in tree.iter("h1", "h2")]
    summaries = {s.text for s in tree.iter("summary")}  # in an article, they are headings
    assert [h.title for h in doc.headings if h.title not in summaries] == titles
    pieces = [p.strip() for e in tree.iter() for p in (e.text, e.tail) if p and p.strip()]
    places = [doc.text.find(p.replace("|", "\\|")) for p in pieces]
    assert [p for p, at in zip(pieces, places) if at < 0] == []
    rows = [line for line in doc.text.split("\n") if line.startswith("|") and "---" not in line]
    assert len(rows) == len(list(tree.iter("tr")))
    if page == "around":
        assert [w for w in STANDING_AROUND if w in doc.text.replace("lube oil", "")] == []


def test_blocks_of_a_long_page_are_compared_in_good_time(tmp_path):
    steps = "".join(f"<h2>Step {n}</h2><p>{TEXT} {n}.</p><ol><li>Item {n}</li></ol>" for n in range(3000))
    (tmp_path / "a.html").write_text(f"<html><body>{steps}</body></html>")
    begin = time.monotonic()
    assert len(load_html(tmp_path / "a.html", doc_id="a").headings) == 3000
    assert time.monotonic() - begin < 60
