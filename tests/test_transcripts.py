"""One conversation in three formats is one list of turns, and prose is not taken for a conversation."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbench.ingest.load_corpus import load_corpus, type_of
from ragbench.ingest.transcripts import date_in, is_transcript, load_transcript

ROOT = Path(__file__).parents[1]
NAMES = ["Ana Ruiz", "Bo Lind", "Chi-Wen Lo", "Dr. María José", "Speaker 4"]
WORDS = st.lists(
    st.sampled_from(["pump", "the", "valve", "is", "open", "Monday", "3 bar", "why", "não", "3 < 4"]),
    min_size=1,
    max_size=9,
).map(" ".join)
TALK = st.lists(st.tuples(st.sampled_from(NAMES), WORDS), min_size=2, max_size=12)


def clock(second: int, comma: str = ".") -> str:
    return f"00:{second // 60:02}:{second % 60:02}{comma}000"


def as_vtt(talk) -> str:
    cue = "{} --> {}\n<v {}>{}</v>\n".format
    return "WEBVTT\n\n" + "\n".join(
        cue(clock(3 * i), clock(3 * i + 2), who, said.replace("<", "&lt;"))
        for i, (who, said) in enumerate(talk)
    )


def as_srt(talk) -> str:
    cue = "{}\n{} --> {}\n{}: {}\n".format
    return "\n".join(
        cue(i + 1, clock(3 * i, ","), clock(3 * i + 2, ","), who, said) for i, (who, said) in enumerate(talk)
    )


def as_text(talk) -> str:
    return "\n".join(f"[{clock(3 * i)}] {who}: {said}" for i, (who, said) in enumerate(talk))


@settings(max_examples=100, deadline=None)
@given(TALK)
def test_three_formats_one_conversation(tmp_path_factory, talk):
    folder = tmp_path_factory.getbasetemp()
    merged: list[list] = []
    for i, (who, said) in enumerate(talk):
        if merged and merged[-1][0] == who:
            merged[-1][2] += f" {said}"
        else:
            merged.append([who, clock(3 * i), said])
    want = "\n\n".join(f"{who}: {said}" for who, _, said in merged)
    for name, text in (("a.vtt", as_vtt(talk)), ("a.srt", as_srt(talk)), ("a.txt", as_text(talk))):
        (folder / name).write_text(text, encoding="utf-8")
        doc = load_transcript(folder / name, doc_id="a")
        assert doc.text == want
        assert [(t.speaker, t.time.replace(",", ".")) for t in doc.turns] == [
            (who, at) for who, at, _ in merged
        ]
        assert [doc.text[t.start : t.end] for t in doc.turns] == want.split("\n\n")


@pytest.mark.parametrize(
    "path",
    sorted(
        p.relative_to(ROOT)
        for pattern in ("datasets/*/files/**/*.md", "*.md", "datasets/*/*.md")
        for p in ROOT.glob(pattern)
    ),
    ids=str,
)
def test_prose_is_no_conversation(path):
    assert not is_transcript((ROOT / path).read_text(encoding="utf-8"))


def test_a_folder_tells_talk_from_prose(tmp_path):
    (tmp_path / "talk.txt").write_text(
        "Date: 2024-03-12\n\n" + "Ana Ruiz: Is it open?\nBo Lind: It is open since Monday.\n" * 3
    )
    (tmp_path / "prose.txt").write_text("Note: open the valve.\nWarning: hot.\n" * 6)
    corpus = load_corpus(tmp_path)
    assert {d.id: d.format for d in corpus} == {"talk.txt": "transcript", "prose.txt": "text"}
    assert corpus["talk.txt"].metadata["date"] == "2024-03-12"
    assert len(corpus["talk.txt"].turns) == 6
    assert load_corpus(tmp_path / "talk.txt", type="text")[0].turns == ()


def test_lines_made_to_slow_a_parser_down_do_not(tmp_path):
    for n, line in enumerate(
        (
            "A" + " b" * 50_000,
            "A-" * 100_000 + ":",
            "<v " * 60_000,
            "[" + "1" * 100_000,
            "**A" * 50_000,
            "00:" * 60_000,
            "1 de " * 50_000,
        )
    ):
        path = tmp_path / f"{n}.txt"
        path.write_text((line + "\n") * 4)
        assert type_of(path) == "text"
        date_in(line)


@given(st.dates(min_value=__import__("datetime").date(1900, 1, 1)))
def test_a_date_is_found_in_every_unambiguous_form(day):
    forms = [
        "{d:%Y-%m-%d}",
        "{d:%Y/%m/%d}",
        "{d:%Y%m%d}",
        "{d.day} {m} {d.year}",
        "{m} {d.day}, {d.year}",
        "{d.day}.{d.month}.{d.year}",
    ]
    month = "January February March April May June July August September October November December".split()[
        day.month - 1
    ]
    for form in forms:
        assert date_in("held on " + form.format(d=day, m=month) + " at noon") == day.isoformat()
