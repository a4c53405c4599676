"""Latency: one system at a time, kept, at the machine's usual speed; and what a run says while it works."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import ragbench as rb
from ragbench.bench import latency, timing
from ragbench.bench.timing import BLOCK, TICKS, steadied, time_alone
from ragbench.store.artifacts import Store

OPTIONS = {"metrics": ["recall@5", "mrr"], "budgets": [200], "curve": [200, 400], "progress": False}
SYSTEMS = [rb.System(rb.TokenChunker(n), rb.Lexical(rb.FTS5())) for n in (60, 120)]


@pytest.fixture(scope="module")
def data():
    return rb.load_dataset("coaching")


def timings(folder) -> set[str]:
    return {p.parent.name for p in folder.glob("timing/*/manifest.json")}


def test_one_more_system_times_one_system(data, tmp_path, monkeypatch):
    measured = []
    own = latency.time_alone
    monkeypatch.setattr(latency, "time_alone", lambda *a, **k: measured.append(1) or own(*a, **k))
    first = rb.bench(*data, SYSTEMS[:1], store=tmp_path, **OPTIONS)
    both = rb.bench(*data, SYSTEMS, store=tmp_path, **OPTIONS)
    assert len(measured) == 2 and len(timings(tmp_path)) == 2
    [name] = first.names
    assert np.array_equal(first.latency_ms[name], both.latency_ms[name])  # what was measured stays as it was
    rb.bench(*data, SYSTEMS[::-1], store=tmp_path, **OPTIONS)
    assert len(measured) == 2


def test_an_interrupt_loses_only_the_system_in_hand(data, tmp_path, monkeypatch):
    own, measured = latency.time_alone, []

    def stops(*a, **k):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(1)
        return own(*a, **k)

    monkeypatch.setattr(latency, "time_alone", stops)
    three = [*SYSTEMS, rb.System(rb.TokenChunker(90), rb.Lexical(rb.FTS5()))]
    with pytest.raises(KeyboardInterrupt) as said:
        rb.bench(*data, three, store=tmp_path, **OPTIONS)
    assert said.value._render_traceback_() == ["stopped; run again to go on"]  # what a notebook shows
    kept = timings(tmp_path)
    assert len(kept) == 2
    monkeypatch.setattr(latency, "time_alone", own)
    rb.bench(*data, three, store=tmp_path, **OPTIONS)
    assert kept < timings(tmp_path) and len(timings(tmp_path)) == 3


def test_timing_is_never_part_of_the_quality_table(data, tmp_path):
    tables = {
        rb.bench(*data, SYSTEMS, store=tmp_path / str(rounds), **OPTIONS, rounds=rounds).quality_csv()
        for rounds in (0, 1, None)
    }
    assert len(tables) == 1


def test_percentiles_are_blank_where_calls_are_too_few(data, tmp_path):
    few = (
        rb.bench(*data, SYSTEMS[:1], store=tmp_path / "few", **OPTIONS, timed=16, rounds=1).latency().iloc[0]
    )
    enough = rb.bench(*data, SYSTEMS[:1], store=tmp_path / "enough", **OPTIONS, seconds=100).latency().iloc[0]
    assert few.calls == 16 and np.isnan(few.latency_p95) and few.latency_p50 > 0
    assert enough.calls == 72 and enough.latency_p95 > 0 and np.isnan(enough.latency_p99)


def test_a_slow_system_stops_and_leaves_the_rest_to_others(data, tmp_path):
    class Slow:
        fingerprint = "slow"

        def rerank(self, query, rows, texts):
            time.sleep(0.05)
            return np.zeros(len(rows)), rows

    slow = rb.System(rb.TokenChunker(60), rb.Lexical(rb.FTS5()), rerank=Slow(), name="slow", depth=5)
    results = rb.bench(
        *data, [SYSTEMS[0], slow], store=tmp_path, **OPTIONS | {"metrics": ["mrr"]}, seconds=0.8
    )
    assert results.latency_ms["slow"].size < 72 and results.latency_ms["slow"].size % BLOCK == 0
    assert (
        set(results.step_ms["slow"]) >= {"retrieve", "rerank"}
        and results.step_ms["slow"]["rerank"].shape == results.latency_ms["slow"].shape
    )
    assert np.median(results.latency_ms["slow"]) > 5 * np.median(results.latency_ms[results.names[0]])


def test_no_call_that_counts_imports_anything(tmp_path, monkeypatch):
    for name in ("late_a", "late_b"):
        (tmp_path / f"{name}.py").write_text("import time; time.sleep(.2)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    calls = []

    def ask(text):
        calls.append(text)
        if text in ("late_a", "late_b"):
            __import__(text)

    ms, _ = time_alone(ask, [*"xyzw", "late_a", "late_b"], warm_up=2)
    assert ms.max() < 100 and calls.count("late_a") == calls.count("late_b") == 2
    assert "late_a" in sys.modules


@pytest.mark.parametrize("seed", range(5))
def test_the_yardstick_takes_the_drift_out(seed):
    """Two equal systems, timed under a machine of two speeds, come out equal; the raw times do not."""
    rng, n = np.random.default_rng(seed), 72
    raw, steady = [], []
    for slow in (1.0, rng.uniform(1.4, 2.5)):
        ticks = 0.3 * slow * rng.lognormal(0, 0.05, (n // BLOCK + 1, TICKS))
        ms = 2.0 * slow * rng.lognormal(0, 0.1, n)
        raw.append(np.median(ms)), steady.append(np.median(steadied(ms, ticks, 0.3)))
    assert raw[1] / raw[0] > 1.3 and abs(steady[1] / steady[0] - 1) < 0.1


def test_a_block_that_was_disturbed_is_mended_where_it_was(monkeypatch):
    slow = np.repeat([1.0, 3.0, 1.0], BLOCK)
    ticks = np.array([1.0, 3.0, 3.0, 1.0])[:, None] * np.ones(TICKS)
    assert np.allclose(steadied(slow, ticks, 1.0)[BLOCK : 2 * BLOCK], 1.0)
    assert timing.local_ms(ticks, 20).shape == (20,)


# --- what a run says ----------------------------------------------------------------------------------------

SCRIPT = """
import sys, time
import numpy as np
import ragbench as rb
from ragbench.base import progress
progress.FIRST, progress.EVERY = 0.2, 0.2
class Slow:
    fingerprint = "slow"
    space = rb.Vectors(np.eye(4, dtype=np.float32)).space
    def embed_passages(self, texts):
        time.sleep(.3); return rb.Vectors(np.tile(np.eye(4, dtype=np.float32)[:1], (len(texts), 1)), self.space)
    embed_queries = embed_passages
rb.bench(*rb.load_dataset("coaching"), rb.System(rb.TokenChunker(60), rb.Dense(Slow())), store=sys.argv[1], metrics="mrr", budgets=[200], rounds=0)
print("done")
"""  # noqa: E501


def test_a_log_file_gets_a_line_now_and_then_with_counts_and_time_left(tmp_path):
    script = SCRIPT.replace(
        "progress.FIRST, progress.EVERY = 0.2, 0.2", "progress.Lines.__init__.__defaults__ = (None, 0.2, 0.2)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "s")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [x for x in done.stderr.splitlines() if x.startswith("embedding ")]
    import re

    assert any(
        re.match(r"embedding \d+ passages: \d+ of \d+ texts \(\d+ %, \d+:\d\d left\)", x) for x in lines
    ), done.stderr
    assert "\r" not in done.stderr and len(done.stderr.splitlines()) < 200


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_in_a_script_keeps_its_exit_status_and_ends_its_workers(tmp_path):
    code = """
import os, sys, time
from ragbench.base.progress import stoppable
from ragbench.embed.workers import in_workers
[pid] = [p for _, p in in_workers(eval, ["__import__('os').getpid()"], 1)]
print(pid, flush=True)
with stoppable():
    for _ in in_workers(eval, ["__import__('time').sleep(600)"], 1): pass
"""
    p = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    pid = int(p.stdout.readline())
    time.sleep(0.5)
    os.killpg(p.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, said = p.communicate(timeout=60)
    assert p.returncode == -signal.SIGINT and "stopped; run again to go on" in said
    for _ in range(100):
        if not _runs(pid):
            break
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_notebook_shows_an_interrupt_as_one_line():
    code = "from ragbench.base.progress import stoppable\nwith stoppable(): raise KeyboardInterrupt"
    script = (
        "from IPython.core.interactiveshell import InteractiveShell as S\nr ="
        f" S.instance(colors='NoColor').run_cell({code!r})\nprint(type(r.error_in_exec).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert [x for x in done.stdout.splitlines() if x.strip()] == [
        "stopped; run again to go on",
        "KeyboardInterrupt",
    ], done.stdout + done.stderr


# --- what is asked for wrongly ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "settings", "words"),
    [
        (lambda c, g, s: ("docs", g, s), {}, "the corpus is 'docs'. Load it: load_corpus('docs')"),
        (lambda c, g, s: (None, g, s), {}, "the corpus is None"),
        (lambda c, g, s: ([1], g, s), {}, "the corpus is a list"),
        (lambda c, g, s: (g, c, s), {}, "The order is bench(corpus, gold, systems)"),
        (lambda c, g, s: (c, s, g), {}, "The order is bench(corpus, gold, systems)"),
        (lambda c, g, s: (s, c, g), {}, "The order is bench(corpus, gold, systems)"),
        (lambda c, g, s: (c, None, s), {}, "the gold is None. Give Gold."),
        (lambda c, g, s: (c, {"q": "a"}, s), {}, "the gold is a dict"),
        (lambda c, g, s: (c, "gold.jsonl", s), {}, "Gold.load('gold.jsonl', corpus)"),
        (lambda c, g, s: (c, g, None), {}, "expected a System, got None"),
        (lambda c, g, s: (c, g, rb.System), {}, "expected a System, got the class System"),
        (lambda c, g, s: (c, g, [rb.TokenChunker(9)]), {}, "expected a System, got a TokenChunker"),
        (lambda c, g, s: (c, g, {"a": rb.FTS5()}), {}, "expected a System, got a FTS5"),
        (lambda c, g, s: (c, g, "bm25"), {}, "expected a System, got 'bm25'"),
        (lambda c, g, s: (c, g, 5), {}, "expected a System, got a int"),
        (lambda c, g, s: (c, g, s), {"rounds": -1}, "rounds is -1"),
        (lambda c, g, s: (c, g, s), {"budget": 500}, "unknown setting 'budget'. Did you mean 'budgets'?"),
        (lambda c, g, s: (c, g, s), {"sore": "x"}, "Did you mean 'store'?"),
        (lambda c, g, s: (c, g, s), {"budgets": -5}, "budgets is -5"),
        (lambda c, g, s: (c, g, s), {"budgets": "many"}, "budgets is 'many'"),
        (lambda c, g, s: (c, g, s), {"metrics": None}, "metrics is None"),
        (lambda c, g, s: (c, g, s), {"metrics": 5}, "5"),
        (lambda c, g, s: (c, g, s), {"metrics": "recal@5"}, "recal@5"),
        (lambda c, g, s: (c, g, s), {"depth": 2.5}, "depth is 2.5"),
        (lambda c, g, s: (c, g, s), {"seed": "x"}, "seed is 'x'"),
        (lambda c, g, s: (c, g, s), {"timed": 0}, "timed is 0"),
        (lambda c, g, s: (c, g, s), {"seconds": "long"}, "seconds is 'long'"),
        (lambda c, g, s: (c, g, s), {"tokenizer": "no-such"}, "no-such"),
        (lambda c, g, s: (c, g, s), {"store": None}, "store is None"),
        (lambda c, g, s: (c, g, s), {"store": 5}, "store is 5"),
        (lambda c, g, s: (c, g, s), {"store": __file__}, "store is a file"),
    ],
)
def test_what_cannot_work_is_said(data, tmp_path, args, settings, words):
    with pytest.raises(rb.RagbenchError) as said:
        rb.bench(*args(*data, SYSTEMS[0]), **{"store": tmp_path, "rounds": 0} | settings)
    assert words in str(said.value)


def test_cheap_forms_simply_work(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    want = rb.bench(*data, SYSTEMS, store=Store("x"), metrics=["mrr"], budgets=[500], rounds=0).quality_csv()
    assert (
        rb.bench(*data, iter(SYSTEMS), store="x", metrics="mrr", budgets=500, rounds=0).quality_csv() == want
    )
    named = rb.bench(*data, dict(zip("ab", SYSTEMS)), store="x", metrics="mrr", budgets=(500,), rounds=0)
    assert named.names == ["a", "b"] or tuple(named.names) == ("a", "b")


# --- a system built where the bench has been ----------------------------------------------------------------


class Counting:
    fingerprint = "counting"

    def __init__(self):
        self.n, self.space = 0, rb.Vectors(np.eye(4, dtype=np.float32)).space

    def embed_passages(self, texts):
        self.n += len(texts)
        x = np.array([[len(t), t.count("e"), t.count("a"), 1] for t in texts], np.float32)
        return rb.Vectors(x / np.linalg.norm(x, axis=1, keepdims=True), self.space)

    embed_queries = embed_passages


def test_building_the_winner_embeds_nothing_again(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    e = Counting()
    system = rb.System(rb.TokenChunker(60), rb.Dense(e))
    fresh = system.build(data[0]).search("feedback", 5)  # no store here: in memory
    assert not (tmp_path / ".ragbench").exists()
    rb.bench(*data, system, metrics="mrr", budgets=200, rounds=0)
    e.n = 0
    built = system.build(data[0])
    assert e.n == 0
    found = built.search("feedback", 5)
    assert np.array_equal(found.rows, fresh.rows) and np.array_equal(found.scores, fresh.scores)
    built.explain("feedback", int(found.rows[0, 0]))
    assert e.n <= 3  # the question
    e.n = 0
    system.build(data[0], store=False)
    assert e.n > 0
    e.n = 0
    system.build(data[0], store=tmp_path / "elsewhere")
    system.build(data[0], store=str(tmp_path / "elsewhere"))
    assert 0 < e.n <= len(built.chunks)
