"""Small files that cost their readers far more than their size: made here, so that none has to be kept."""

import gzip
import io
import zipfile

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
RELATION = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"


def html_of_attributes(count: int = 40_000) -> bytes:
    """One paragraph with so many attributes: each is compared with all before it."""
    return (
        b"<html><body><main><p "
        + b" ".join(b"a%d=1" % n for n in range(count))
        + b">Oil.</p></main></body></html>"
    )


def html_of_paragraphs(count: int = 450_000) -> bytes:
    return b"<html><body><main>" + b"<p>a b</p>\n" * count + b"</main></body></html>"


def pdf_of_nested_forms(depth: int = 12, times: int = 10) -> bytes:
    """Forms that show the next form so many times each; the innermost shows a word: `times ** depth` words on
    one page."""

    def stream(content: bytes, about: bytes = b"") -> bytes:
        return b"<<%s/Length %d>>\nstream\n%s\nendstream" % (about, len(content), content)

    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents 4 0 R/Resources<</XObject<</N 6 0 R>>>>>>",
        stream(b"/N Do"),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    for level in range(depth):
        about = (
            b"/Type/XObject/Subtype/Form/BBox[0 0 600 800]/Resources<</Font<</F 5 0 R>>/XObject<</N %d 0"
            b" R>>>>" % (len(objects) + 2)
        )
        inner = b"BT /F 10 Tf 9 9 Td (oil) Tj ET" if level == depth - 1 else b"/N Do " * times
        objects.append(stream(inner, about))
    out, places = bytearray(b"%PDF-1.4\n"), []
    for number, content in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1) + b"".join(
        b"%010d 00000 n \n" % at for at in places
    )
    out += b"trailer\n<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table)
    return bytes(out)


def docx_of(body: bytes, times: int) -> bytes:
    """A Word file whose body is `body`, repeated."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
        z.writestr(
            "_rels/.rels",
            f'<Relationships><Relationship Type="{RELATION}" Target="word/document.xml"/></Relationships>',
        )
        with z.open("word/document.xml", "w") as part:
            part.write(f'<w:document xmlns:w="{WORD}"><w:body>'.encode())
            for _ in range(0, times, 1000):
                part.write(body * min(1000, times))
            part.write(b"</w:body></w:document>")
    return out.getvalue()


def docx_of_paragraphs(count: int = 30_000_000) -> bytes:
    """190 MB of empty paragraphs in some 200 kB."""
    return docx_of(b"<w:p/>", count)


def gzip_twice(size: int, level: int = 9) -> bytes:
    """So many spaces, compressed, and compressed again: 200 MB make 400 bytes."""
    return gzip.compress(gzip.compress(b" " * size, level), level)


def yaml_of_merges(depth: int = 8, times: int = 10) -> str:
    """Front matter in which each mapping takes the one before it so many times."""
    lines = ["a0: &a0 {k: v}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * times)}]}}" for n in range(1, depth)]
    return "---\n" + "\n".join(lines) + "\n---\n# Oil\n\nCheck the level.\n"
