"""Rows and JSON items: what was written is what is read, and a bad record costs that record."""

import csv
import io
import json
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbench.core.documents import Document, Doubt, Refusal
from ragbench.ingest.load_corpus import load_corpus
from ragbench.ingest.loader import Limits, Refused, clean
from ragbench.ingest.records import load_json
from ragbench.ingest.tables import find_delimiter, load_table, open_table

CELL = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30)
# line ends, control characters and white space at the edges are what canonical text changes
SENTENCES = ["Start the pump.", "Öl prüfen; täglich", 'He said "stop"', "two\nlines", "a, b and c", "油位"]


def write_csv(rows, **dialect) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out, **dialect).writerows(rows)
    return out.getvalue().encode()


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.tuples(CELL, CELL), min_size=1, max_size=8),
    delimiter=st.sampled_from(",;\t|"),
    minimal=st.booleans(),
)
def test_what_was_written_is_what_is_read(tmp_path_factory, rows, delimiter, minimal):
    path = tmp_path_factory.getbasetemp() / "law.csv"
    path.write_bytes(
        write_csv(
            [("one", "two"), *rows],
            delimiter=delimiter,
            quoting=csv.QUOTE_MINIMAL if minimal else csv.QUOTE_ALL,
        )
    )
    out = list(load_table(path, doc_id="t", delimiter=delimiter, encoding="utf-8"))
    assert len(out) == len(rows)
    for n, (row, one) in enumerate(zip(rows, out, strict=True), 1):
        want = [clean(c).strip() for c in row if clean(c).strip()]
        if not want:
            assert isinstance(one, Refusal)
        else:
            assert one.id == f"t#{n}"
            assert [one.text[f.start : f.end] for f in one.fields] == want
            assert one.text == "\n\n".join(want)


@pytest.mark.parametrize("delimiter", list(",;\t|"))
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_delimiter_and_encoding_are_found(tmp_path, delimiter, encoding):
    rows = [
        ("name", "bio"),
        *[(f"n{i}", "Die Kühlung läuft, sagt er; höchstens | zwölf Minuten") for i in range(20)],
    ]
    path = tmp_path / "t.csv"
    path.write_bytes(write_csv(rows, delimiter=delimiter).decode().encode(encoding))
    table = open_table(path)
    assert (table.delimiter, table.encoding) == (delimiter, encoding)
    assert [d.text for d in load_table(path, doc_id="t", text_columns=["bio"])] == [rows[1][1]] * 20


def test_an_unclosed_quote_costs_its_row_wherever_it_stands(tmp_path):
    good = [f"{i},plain text {i}" if i % 3 else f'{i},"quoted, text {i}"' for i in range(1, 31)]
    path = tmp_path / "t.csv"
    for bad in range(30):
        lines = list(good)
        lines[bad] = f'{bad + 1},"never closed'
        path.write_text("id,text\n" + "\n".join(lines) + "\n")
        out = list(load_table(path, doc_id="t", id_column="id"))
        assert [r.source for r in out if isinstance(r, Refusal)] == [f"t, line {bad + 2}"]
        assert [r.id for r in out if isinstance(r, Document)] == [
            f"t#{i}" for i in range(1, 31) if i != bad + 1
        ]


def test_a_table_streams(tmp_path):
    path = tmp_path / "big.csv"
    with open(path, "w", encoding="utf-8") as f:
        f.write("id,text\n")
        for i in range(40_000):
            f.write(f'{i},"{"one word after another " * 12}"\n')
    assert path.stat().st_size > 11_000_000
    tracemalloc.start()
    n = sum(1 for _ in load_table(path, doc_id="t", text_columns=["text"]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert n == 40_000
    assert peak < 6_000_000
    with pytest.raises(Refused, match="the limit is 1,000,000"):
        next(load_table(path, doc_id="t", limits=Limits(bytes=1_000_000)))


def test_json_lines_stream_past_bad_ones(tmp_path):
    path = tmp_path / "log.jsonl"
    lines = [json.dumps({"n": {"id": i}, "say": {"text": f"entry {i}"}}) for i in range(200)]
    lines[7], lines[90] = '{"n": ', "[1, 2"
    path.write_text("\n".join(lines))
    out = list(load_json(path, doc_id="log", text_field="say.text", id_field="n.id"))
    assert [r.source for r in out if isinstance(r, Refusal)] == ["log, line 8", "log, line 91"]
    assert [d.text for d in out if isinstance(d, Document)] == [
        f"entry {i}" for i in range(200) if i not in (7, 90)
    ]


TEXTS = st.dictionaries(
    st.sampled_from(["title", "body", "note"]), st.text(st.characters(codec="utf-8"), max_size=20), max_size=3
)


@settings(max_examples=60, deadline=None)
@given(items=st.lists(TEXTS, min_size=1, max_size=6), lines=st.booleans())
def test_an_array_and_lines_give_the_same_documents(tmp_path_factory, items, lines):
    folder = tmp_path_factory.getbasetemp()
    (folder / "a.json").write_text(json.dumps({"x": {"y": items}}), encoding="utf-8")
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, items)), encoding="utf-8")
    nested, flat = (
        list(load_json(folder / n, doc_id="a", array_path=p))
        for n, p in (("a.json", "$.x.y"), ("a.jsonl", None))
    )
    assert [getattr(d, "text", None) for d in nested] == [getattr(d, "text", None) for d in flat]
    assert [getattr(d, "fields", None) for d in nested] == [getattr(d, "fields", None) for d in flat]
    assert len(nested) == len(items)


def test_rows_of_several_files_in_worker_processes(tmp_path):
    for n in range(40):
        (tmp_path / f"{n:02}.csv").write_text(f"id,text\n1,file {n}\n2\n3,again {n}\n")
    corpus = load_corpus(tmp_path, id_column="id")
    assert [d.id for d in corpus] == [f"{n:02}.csv#{i}" for n in range(40) for i in (1, 3)]
    assert [e.source for e in corpus.errors] == [f"{n:02}.csv, line 3" for n in range(40)]
    in_process = load_corpus(tmp_path, id_column="id", workers=0)
    assert (in_process.fingerprint, in_process.errors) == (corpus.fingerprint, corpus.errors)


def mutations(data: bytes, seed: int, n: int):
    """Truncated, with flipped bits, with a hole of zeros, with a piece repeated."""
    rng = random.Random(seed)
    for _ in range(n):
        at, bad = rng.randrange(len(data)), bytearray(data)
        match rng.randrange(4):
            case 0:
                bad = bad[:at]
            case 1:
                for _ in range(1 + rng.randrange(8)):
                    bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
            case 2:
                bad[at : at + 1 + rng.randrange(40)] = bytes(10)
            case _:
                bad[at:at] = bad[: rng.randrange(len(bad))]
        yield bytes(bad)


GOOD = {
    "csv": write_csv([("id", "text", "n"), *[(i, s, "x") for i, s in enumerate(SENTENCES * 3)]]),
    "tsv": write_csv([("id", "text"), *[(i, s) for i, s in enumerate(SENTENCES * 3)]], delimiter="\t"),
    "json": json.dumps([{"id": i, "text": s, "deep": {"n": [i]}} for i, s in enumerate(SENTENCES)]).encode(),
    "jsonl": "\n".join(json.dumps({"id": i, "text": s}) for i, s in enumerate(SENTENCES)).encode(),
    "vtt": (
        b"WEBVTT\n\n"
        + "".join(f"00:0{i}.000 --> 00:0{i}.900\n<v Ana>{s}\n\n" for i, s in enumerate(SENTENCES)).encode()
    ),
    "srt": (
        "".join(
            f"{i}\n00:00:0{i},000 --> 00:00:0{i},900\nBo: {s}\n\n" for i, s in enumerate(SENTENCES)
        ).encode()
    ),
    "txt": "".join(f"Ana: {s}\nBo: {s}\n" for s in SENTENCES).encode(),
    "html": (
        (
            "<html><body><main><h1>T</h1>"
            + "".join(f"<p>{s}</p>" for s in SENTENCES)
            + "</main></body></html>"
        ).encode()
    ),
}


@pytest.mark.faults
@pytest.mark.parametrize("ending", list(GOOD))
def test_a_damaged_file_loads_or_is_refused(tmp_path, ending):
    seed = 11
    path = tmp_path / f"a.{ending}"
    path.write_bytes(GOOD[ending])
    assert len(load_corpus(path)) >= 1
    for n, bad in enumerate(mutations(GOOD[ending], seed, 60)):
        path.write_bytes(bad)
        corpus = load_corpus(path)
        assert len(corpus) + len(corpus.errors) >= 1, (seed, n)
        assert not [e for e in corpus.errors if "mistake" in e.reason], (seed, n, corpus.errors)


@given(st.lists(st.lists(st.text("abc ,;\t|\"'", max_size=6), min_size=1, max_size=4), max_size=6))
def test_a_delimiter_is_always_one_of_four(rows):
    assert find_delimiter([",".join(r) for r in rows]) in ",;\t|"


def test_json_says_which_encoding_it_found(tmp_path):
    said = {"utf-8": "Öl prüfen", "utf-8-sig": "Öl prüfen", "utf-16": "Öl prüfen", "cp1252": "Öl prüfen"}
    for name, text in said.items():
        (tmp_path / "a.json").write_bytes(json.dumps([{"text": text}], ensure_ascii=False).encode(name))
        (tmp_path / "a.jsonl").write_bytes(
            (json.dumps({"text": text}, ensure_ascii=False) + "\n").encode(name)
        )
        for file in ("a.json", "a.jsonl"):
            (doc,) = load_corpus(tmp_path / file)
            assert (doc.text, doc.metadata["encoding"]) == (text, name), file
    (tmp_path / "a.jsonl").write_bytes(
        b'{"text": "\xc3\x96l, K\xc3\xbchlung \xc3\xa4\xc3\xb6\xc3\xbc \xff"}\n'
    )
    (doc,) = load_corpus(tmp_path / "a.jsonl")
    assert (doc.metadata["encoding"], doc.metadata["encoding_errors"]) == ("utf-8", 1)


def test_a_text_field_that_no_item_has_is_named(tmp_path):
    (tmp_path / "a.json").write_text('[{"title": "Oil"}]')
    (error,) = load_corpus(tmp_path / "a.json", text_field="titel").errors
    assert error.reason == "there is no text in 'titel'. It has title"


def test_text_in_a_code_page_of_the_east_is_no_windows_1252(tmp_path):
    said = "潤滑油ポンプは機械が回る前に始動する。"
    (tmp_path / "a.txt").write_bytes(said.encode("shift_jis"))
    (tmp_path / "b.txt").write_bytes("¿Por qué? Mañana, a 45 °C.".encode("cp1252"))
    first, second = load_corpus(tmp_path)
    assert (first.text, first.metadata["encoding"]) == (said, "cp932")
    assert (second.text, second.metadata["encoding"]) == ("¿Por qué? Mañana, a 45 °C.", "cp1252")


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1251", "Насос включён для запуска, для всех линий давление измеряется во время работы."),
        ("cp1253", "Η αντλία ξεκινά πριν από τη μηχανή."),
        (
            "cp1250",
            (
                "Błąd zapisu: sprawdź, czy dysk jest włączony. Następnie zamknij zawór, żeby ciśnienie nie"
                " wzrosło, i powiadom kierownika zmiany."
            ),
        ),
        (
            "cp1252",
            (
                "¿Por qué? «Mañana», dijo el señor, según cada matriz m×n del corazón. Así será, mañana más,"
                " qué más, está allí, él también sí."
            ),
        ),
        ("cp1252", "La col·lecció és aquí."),
    ],
)
def test_one_rule_for_old_code_pages_whatever_the_format(tmp_path, encoding, text):
    files = {
        "a.txt": text,
        "b.md": text,
        "c.csv": f"n;text\n1;{text}\n",
        "d.jsonl": json.dumps({"text": text}, ensure_ascii=False) + "\n",
        "e.vtt": f"WEBVTT\n\n00:00:01.000 --> 00:00:04.000\n<v Ana>{text}\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content.encode(encoding))
    corpus = load_corpus(tmp_path)
    assert all(isinstance(e, Doubt) for e in corpus.errors)
    assert len(corpus.errors) in (0, 5)
    assert len(corpus) == 5
    for doc in corpus:
        assert text in doc.text, doc.id
        assert doc.metadata["encoding"] == encoding, doc.id
