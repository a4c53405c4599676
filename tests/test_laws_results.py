"""Results as a value: saved and loaded they say the same, runs of others stand beside ours, and what is asked
wrongly is refused in our own words."""

import dataclasses
import inspect
import json
import re
import shutil
import subprocess
import sys
import warnings
import zipfile

import numpy as np
import pytest

from ragbench.base.errors import ConfigError, DataError, RagbenchError
from ragbench.bench.results import Results
from ragbench.bench.runner import bench
from ragbench.chunk.token import TokenChunker
from ragbench.core.evidence_classes import evidence_classes
from ragbench.embed.lsa import LSAEmbedder
from ragbench.evaluate.exchange import run_to_dict, write_run
from ragbench.fusion.fusion import RRF
from ragbench.index.faiss_flat import FaissFlat
from ragbench.lexical.fts5 import FTS5
from ragbench.plot.chart import Chart
from ragbench.report.failures import rank_of
from ragbench.report.html import snippet
from ragbench.report.leaderboard import Leaderboard
from ragbench.system.retrievers import Dense, Hybrid, Lexical
from ragbench.system.system import System
from ragbench.testing.toy_results import toy_results


@pytest.fixture(scope="module")
def toy():
    return toy_results(documents=3)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    toy = toy_results(documents=3)
    dense, words = Dense(LSAEmbedder(dim=16), FaissFlat()), Lexical(FTS5())
    systems = [
        System(TokenChunker(32, 0), words),
        System(TokenChunker(64, 0), dense),
        System(TokenChunker(32, 0), Hybrid(dense, words, fuse=RRF(60))),
    ]
    return bench(
        toy.corpus,
        toy.gold,
        systems,
        store=tmp_path_factory.mktemp("store"),
        metrics=["recall@5", "mrr"],
        budgets=[100, 200],
        rounds=1,
        progress=False,
    )


def same(a: Results, b: Results) -> None:
    """Everything that two results say is the same."""
    assert a.quality_csv() == b.quality_csv()
    for metric in a.metrics[:2]:
        assert str(a.leaderboard(metric)) == str(b.leaderboard(metric))
        assert a.compare(metric) == b.compare(metric)
    assert (
        a.gold == b.gold
        and a.gold.fingerprint == b.gold.fingerprint
        and a.corpus.fingerprint == b.corpus.fingerprint
    )
    for x, y in zip(a.systems, b.systems):
        assert (
            (x.name, x.config, x.facts) == (y.name, y.config, dict(y.facts))
            and np.array_equal(x.run.rows, y.run.rows)
            and np.array_equal(x.run.scores, y.run.scores)
        )
        assert [(s.name, s.ranking.rows.tolist()) for s in (*x.stages, *x.parts)] == [
            (s.name, s.ranking.rows.tolist()) for s in (*y.stages, *y.parts)
        ]


@pytest.mark.parametrize("which", ["toy", "measured"])
def test_saved_and_loaded_results_say_the_same(which, request, tmp_path):
    results = request.getfixturevalue(which)
    again = Results.load(results.save(tmp_path / "r.zip"))
    same(results, again)
    assert [d.text for d in again.corpus] == [d.text for d in results.corpus]
    pages = [r.report(tmp_path / f"{i}.html").read_text() for i, r in enumerate((results, again))]
    assert pages[0] == pages[1]
    same(results, Results.load(again.save(tmp_path / "again.zip")))
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "r.zip").read_bytes()


def test_a_file_without_texts_holds_none_and_says_the_same_numbers(measured, tmp_path):
    path = measured.save(tmp_path / "bare.zip", with_texts=False)
    with zipfile.ZipFile(path) as z:
        everything = b"".join(z.read(n) for n in z.namelist())
    assert measured.corpus[0].text[40:80].encode() not in everything and b".pkl" not in everything
    bare = Results.load(path)
    same(measured, bare)
    with pytest.raises(DataError, match="Load them with their corpus"):
        bare.waterfall()
    page = bare.report(tmp_path / "bare.html").read_text()
    assert "texts are not part of these results" in page
    full = Results.load(path, corpus=measured.corpus)
    same(measured, full)
    assert full.report(tmp_path / "full.html").read_text() == measured.report(tmp_path / "m.html").read_text()


@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_file_is_refused_whichever_byte_it_is(toy, tmp_path, seed):
    path = toy.save(tmp_path / "r.zip")
    data = bytearray(path.read_bytes())
    rng = np.random.default_rng(seed)
    if seed % 3 == 2:
        data = data[: int(rng.integers(len(data)))]
    else:
        for at in rng.integers(len(data), size=1 + 20 * (seed % 2)):
            data[at] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)
    try:
        assert (
            Results.load(path).quality_csv() == toy.quality_csv()
        )  # a bit of the ZIP's own dates and flags changes nothing that we read
    except DataError:
        pass


def test_a_file_of_the_future_and_a_file_of_something_else_are_refused(toy, tmp_path):
    path = toy.save(tmp_path / "r.zip")
    with zipfile.ZipFile(path) as z:
        parts = {n: z.read(n) for n in z.namelist()}
    for change, message in (
        ({"schema": 99}, "its layout has version 99"),
        ({"what": "photographs"}, "something else"),
    ):
        with zipfile.ZipFile(path, "w") as z:
            for n, d in parts.items():
                z.writestr(n, json.dumps({**json.loads(d), **change}) if n == "about.json" else d)
        with pytest.raises(DataError, match=message):
            Results.load(path)


def test_a_run_given_back_scores_what_the_system_scored(measured, tmp_path):
    ranx = pytest.importorskip("ranx")
    for s in measured.systems:
        table = run_to_dict(s.ranking)
        forms = {
            "dict": table,
            "trec": str(write_run(table, tmp_path / "x.run")),
            "json": write_run(table, tmp_path / "x.json"),
            "ranx": ranx.Run(table),
            "ranking": s.ranking,
            "shuffled": dict(sorted(table.items(), key=lambda t: hash((s.name, t[0])))),
        }
        for name, run in forms.items():
            added = measured.add_run(name, run)
            assert {m: added[name].scores[m].tolist() for m in measured.metrics} == {
                m: s.scores[m].tolist() for m in measured.metrics
            }, (s.name, name)
            assert np.array_equal(added[name].curve, s.curve)


def test_a_question_left_out_scores_zero_and_is_counted(measured):
    table = run_to_dict(measured.systems[0].ranking)
    lost = [q.query_id for q in measured.gold.answerable][:3]
    added = measured.add_run("part", {q: r for q, r in table.items() if q not in lost} | {"q999": {"x": 1.0}})
    assert (
        added.scores("recall@5")[:3, -1].tolist() == [0, 0, 0] and added["part"].facts["missing_queries"] == 3
    )
    assert any("part has no results for 3 of" in n for n in added.leaderboard().notes)


def test_systems_and_runs_in_one_list(measured, tmp_path):
    table = run_to_dict(measured.systems[0].ranking)
    mixed = Results.from_runs(
        measured.corpus,
        measured.gold,
        [measured.systems[0].system, {"theirs": table}, measured.systems[1]],
        metrics=["recall@5", "mrr"],
        budgets=[100, 200],
        rounds=0,
        store=tmp_path,
        progress=False,
    )
    assert len(mixed) == 3 and mixed.names[1] == "theirs"
    assert (
        mixed.scores("mrr")[:, 0].tolist()
        == mixed.scores("mrr")[:, 1].tolist()
        == measured.scores("mrr")[:, 0].tolist()
    )


def test_why_names_each_retriever_of_a_hybrid_and_the_step_that_lost_the_evidence(measured):
    hybrid = measured.systems[2]
    assert [p.name for p in hybrid.parts] == ["LSA(dim=16)", "FTS5"] or len(hybrid.parts) == 2
    lost = measured.failures(hybrid.name)
    assert len(lost) == int((hybrid.scores["recall@5"] < 1).sum()) and set(lost.frame["lost_by"]) - {""}
    for q in lost.frame["query_id"]:
        why = measured.why(q, hybrid.name)
        t = why.traces[0]
        assert dict(t.ranks) == {
            n: rank_of(
                g.ranking,
                [x.query_id for x in measured.gold.query_list].index(q),
                evidence_classes(measured.corpus, measured.gold)[q][0],
            )
            for n, g in zip(dict(t.ranks), hybrid.stages)
        }
        assert len(t.retrievers) == 2 and t.lost_by in why.verdict
        last = t.ranks[-1][1]
        assert not 0 < last <= why.counted  # it is among the passages that count for no failure
        if t.share >= 0.5 and any(0 < r <= why.counted for _, r in t.retrievers):
            assert t.lost_by == "fusion"
    found = next(q.query_id for q, v in zip(measured.gold.answerable, hybrid.scores["recall@5"]) if v == 1)
    assert all(not t.lost_by for t in measured.why(found, hybrid.name).traces)


def test_a_table_for_a_paper_has_its_structure(toy):
    odd = dataclasses.replace(
        toy,
        systems=[
            dataclasses.replace(s, name=f"{s.name} 50 % & a_b #1 {{x}} [y] ~^ \\ −") for s in toy.systems
        ],
        latency_ms={},
    )
    board = odd.leaderboard("mrr")
    tex = board.to_latex(["mrr", "recall@5", "difference", "p"], label="tab:x")
    rows = tex.split("\\midrule\n")[1].split("\\bottomrule")[0].strip().splitlines()
    assert len(rows) == 14 and all(
        len(re.findall(r"(?<!\\)&", r)) == 6 and r.endswith(r" \\") for r in rows
    )  # number, name, four columns, letters
    for line in rows:
        bare = re.sub(r"\\[\\&%$#_{}]", "", line)
        assert (
            bare.count("{") == bare.count("}") and bare.count("$") % 2 == 0 and not re.search(r"[#%_]", bare)
        )
    assert (
        tex.count(r"\begin{") == tex.count(r"\end{")
        and r"\label{tab:x}" in tex
        and "recall@5 {[}95" not in tex.split("mrr")[0]
    )
    md = board.to_markdown(["mrr"], intervals=False).splitlines()
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 5 for line in md[:16]) and "[" not in re.sub(
        r"\\\[", "", "".join(md[:16])
    )
    for i, a in enumerate(board.letters):
        assert [bool(set(a) & set(b)) for b in board.letters] == (board.pairs[i] >= 0.05).tolist()


def test_labels_of_a_crowded_chart_do_not_overlap():
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    crowd = toy_results(documents=2, sizes=(100, 140, 180, 220, 260, 300, 340), rounds=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for chart, most in (
            (crowd.budget_curve(), 8),
            (crowd.budget_curve(top=16), 16),
            (crowd.pareto(), 49),
        ):
            figure = chart.figure()
            FigureCanvasAgg(figure).draw()
            boxes = [Text.get_window_extent(t) for ax in figure.axes for t in ax.texts if t.get_text()]
            assert 0 < len(boxes) <= most
            assert not [
                (a, b)
                for i, a in enumerate(boxes)
                for b in boxes[:i]
                if a.x0 < b.x1 - 1 and b.x0 < a.x1 - 1 and a.y0 < b.y1 - 1 and b.y0 < a.y1 - 1
            ]
            assert all(b.x1 <= figure.bbox.x1 + 1 and b.x0 >= -1 for b in boxes)
            chart.svg()


WRONG = [
    5,
    -1,
    2.5,
    True,
    "nope",
    [],
    ["nope"],
    {},
    {"a": 1},
    object(),
    b"x",
    np.arange(3),
    (1, 2),
    float("nan"),
]


def refuses(call) -> None:
    """A call either works or raises an error of ours."""
    try:
        call()
    except RagbenchError:
        pass


@pytest.mark.parametrize(
    "method",
    [n for n in dir(Results) if not n.startswith("_") and inspect.isfunction(getattr(Results, n, None))],
)
def test_wrong_arguments_of_results_are_refused_in_our_own_words(toy, method, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = toy.select("char160 bm25", "char160 lsa", "char320 lsa")
    names = [
        n
        for n, p in inspect.signature(getattr(few, method)).parameters.items()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    for value in WRONG:
        if method == "select":
            refuses(lambda v=value: few.select(v))
        for name in names:
            if (method, name) in {("from_runs", "corpus"), ("from_runs", "gold"), ("from_runs", "runs")}:
                good = {"corpus": few.corpus, "gold": few.gold, "runs": {"a": {"q01": {"pump.pdf": 1.0}}}} | {
                    name: value
                }
            elif method == "load":
                good = {"path": few.save(tmp_path / "r.zip")} | {name: value}
            else:
                good = {
                    n: v
                    for n, v in {"query_id": "q01", "name": "theirs", "path": tmp_path / "out"}.items()
                    if n in names
                } | {name: value}
            refuses(lambda g=good: getattr(few, method)(**g))


@pytest.mark.parametrize("kind", [Leaderboard, Chart])
def test_wrong_arguments_of_tables_and_charts_are_refused(toy, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    thing = toy.leaderboard() if kind is Leaderboard else toy.budget_curve()
    for method in (
        n for n in dir(kind) if not n.startswith("_") and inspect.isfunction(getattr(kind, n, None))
    ):
        for name in inspect.signature(getattr(thing, method)).parameters:
            for value in WRONG:
                refuses(lambda m=method, n=name, v=value: getattr(thing, m)(**{n: v}))


def test_a_mistyped_name_is_answered_with_the_nearest(toy):
    for call, near in (
        (lambda: toy.leaderboard("recal@5"), "recall@5"),
        (lambda: toy.compare("mrr", "char160 bm52"), "char160 bm25"),
        (lambda: toy.select("char160 lsaa"), "char160 lsa"),
        (lambda: toy.select(component="FTS4"), "FTS5"),
        (lambda: toy.why("q1"), "q01"),
        (lambda: toy.failures("char160 lsaa"), "char160 lsa"),
        (lambda: toy["char160 lsaa"], "char160 lsa"),
        (lambda: toy.budget_curve("char160 lsaa"), "char160 lsa"),
        (lambda: toy.pareto(cost="latency_p59"), "latency_p95"),
        (lambda: toy.leaderboard().to_latex(["diference"]), "difference"),
    ):
        with pytest.raises(ConfigError, match=f"Did you mean '{near}'"):
            call()


def test_a_selection_remembers_from_how_many(toy):
    best = toy.select(top=3, metric="mrr")
    assert len(best) == 3 and best.manifest["selected_from"] == 14
    assert set(best.names) == set(toy.leaderboard("mrr").frame["system"][:3])
    assert any("selected from 14" in n for n in best.select(top=2).leaderboard().notes) and not any(
        "selected from" in n for n in toy.leaderboard().notes
    )
    assert [s.config for s in toy.select(component="FTS5()").systems] == [
        s.config for s in toy.systems if "FTS5()" in s.config
    ]
    assert toy.select(lambda s: s.facts["mean_tokens"] > 50).names == toy.select("char320*").names
    assert toy.select(component=["RRF", "LSAEmbedder"]).names == [
        "char160 lsa+bm25 rrf",
        "char320 lsa+bm25 rrf",
    ]


OWN = """
import re
from dataclasses import dataclass
import numpy as np
import parts_of_mine
from ragbench import Corpus, Dense, Document, FTS5, FaissFlat, Gold, Lexical, System, bench
from ragbench.testing.toy_results import toy_corpus
from ragbench.core.chunks import chunk_corpus

PATTERN = r"(?s).+?(?:\\n\\n|$)"

def paragraphs(text):
    return [m.span() for m in re.finditer(PATTERN, text)]

@dataclass(frozen=True)
class MyParagraphs:
    "Paragraphs, typed into a session."
    least: int = 1
    def __call__(self, source):
        return chunk_corpus(source, lambda d: np.array([s for s in paragraphs(d.text) if s[1] - s[0] >= self.least]), repr(self))

corpus, gold = toy_corpus(2)
systems = [System(MyParagraphs(3), Lexical(FTS5())), System(MyParagraphs(), Dense(parts_of_mine.Letters(), FaissFlat()))]
results = bench(corpus, gold, systems, metrics=["recall@5", "mrr"], budgets=[100], rounds=0, progress=False)
results.save("results.zip")
open("code.py", "w").write(__import__("html").unescape(re.search(r"<pre><code>(.*?)</code></pre>", results.report("r.html").read_text(), re.S)[1]))
print(results.quality_csv())
"""  # noqa: E501

MODULE = """
from dataclasses import dataclass
import numpy as np
from ragbench import Vectors
from ragbench.core.vectors import Space

@dataclass(frozen=True)
class Letters:
    "Counts of letters."
    max_tokens = None
    @property
    def space(self): return Space("letters", "1", 26)
    def _embed(self, texts):
        x = np.array([[t.lower().count(c) + .01 for c in "abcdefghijklmnopqrstuvwxyz"] for t in texts], np.float32)
        return Vectors(x / np.linalg.norm(x, axis=1, keepdims=True), self.space)
    def embed_passages(self, texts): return self._embed(getattr(texts, "texts", texts))
    def embed_queries(self, texts): return self._embed(texts)
"""  # noqa: E501


def python(folder, name: str) -> str:
    """What a fresh Python prints that runs a file of this folder."""
    done = subprocess.run([sys.executable, name], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_code_of_the_report_runs_as_printed_with_classes_of_ones_own(tmp_path):
    (tmp_path / "session.py").write_text(OWN)
    (tmp_path / "parts_of_mine.py").write_text(MODULE)
    table = python(tmp_path, "session.py")
    code = (tmp_path / "code.py").read_text()
    assert (
        "from parts_of_mine import Letters" in code
        and "class MyParagraphs" in code
        and "def paragraphs" in code
        and "Define first" not in code
    )
    shutil.rmtree(tmp_path / ".ragbench")
    assert python(tmp_path, "code.py").strip() == table.strip()
    again = Results.load(tmp_path / "results.zip")  # the file knows the classes too
    assert snippet(again) == code


def test_a_class_that_nobody_knows_is_named():
    toy = toy_results(documents=2)
    odd = dataclasses.replace(
        toy,
        systems=[
            dataclasses.replace(toy.systems[0], config="System(chunk=Unheard(3), retrieve=Lexical(FTS5()))"),
            dataclasses.replace(toy.systems[1], config="the run x.trec"),
        ],
        latency_ms={},
    )
    code = snippet(odd)
    compile(code, "snippet", "exec")
    assert (
        "# Define first, it is not part of ragbench and its source is not known: Unheard" in code
        and "# Made elsewhere, and not run here: char160 minilm (the run x.trec)" in code
    )
