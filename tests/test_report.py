"""The report keeps to itself, survives hostile text, repeats its numbers, and calls nobody a winner without a
test."""

import html
import json
import random
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from ragbench.base.errors import ConfigError
from ragbench.bench.results import Results
from ragbench.core.chunks import Chunks
from ragbench.core.documents import Corpus, Document
from ragbench.core.gold_records import MISSING, Lost
from ragbench.core.ranking import Ranking
from ragbench.core.runs import Run
from ragbench.report.html import page_data
from ragbench.stats.corrections import all_pairs_p
from ragbench.testing.toy_results import toy_corpus, toy_results

EVIL = "</script><img src=x onerror=alert(1)><svg onload=alert(2)>\"'&amp;{{7*7}}\u2028$x^2$"


class Page(HTMLParser):
    """Tags with their attributes, the text of script elements by id, and the rows of tables."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.scripts: dict[str, str] = {}
        self.tables: list[list[list[str]]] = []
        self._script = self._cell = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self._script = dict(attrs).get("id", "")
        elif tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._cell = True

    def handle_endtag(self, tag):
        if tag == "script":
            self._script = None
        elif tag in ("td", "th"):
            self._cell = None

    def handle_data(self, data):
        if self._script is not None:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data
        elif self._cell:
            self.tables[-1][-1][-1] += data


@pytest.fixture(scope="module")
def results() -> Results:
    return toy_results()


@pytest.fixture(scope="module")
def page(results, tmp_path_factory) -> str:
    return results.report(tmp_path_factory.mktemp("report") / "report.html").read_text(encoding="utf-8")


def hostile(results: Results) -> Results:
    """The same results where every string that a stranger could choose is an attack."""
    documents = [
        Document(
            f"{d.id}{EVIL}",
            EVIL + d.text[len(EVIL) :],
            d.pages,
            tuple(h._replace(title=EVIL) for h in d.headings),
        )
        for d in results.corpus
    ]
    corpus = Corpus(documents, errors=[(EVIL, EVIL)])
    gold = replace(
        results.gold,
        query_list=tuple(
            q._replace(text=q.text + EVIL, tags=(EVIL,), answer=EVIL) for q in results.gold.query_list
        ),
        evidence_list=tuple(e._replace(doc_id=e.doc_id + EVIL) for e in results.gold.evidence_list),
    )
    systems = [
        replace(
            s,
            name=s.name + EVIL,
            config=EVIL,
            ranking=Ranking(Chunks(corpus, s.chunks.doc_row, s.chunks.start, s.chunks.end, EVIL), s.run),
        )
        for s in results.systems
    ]
    latency = {k + EVIL: v for k, v in results.latency_ms.items()}
    return replace(
        results, corpus=corpus, gold=gold, systems=systems, latency_ms=latency, manifest={EVIL: {EVIL: EVIL}}
    )


def test_hostile_text_stays_text(results, tmp_path):
    attacked = hostile(results)
    text = attacked.report(tmp_path / "evil.html", title=EVIL).read_text(encoding="utf-8")
    found, clean = Page(text), Page(results.report(tmp_path / "clean.html").read_text(encoding="utf-8"))
    assert "img" not in {tag for tag, _ in found.tags}
    assert [a for _, a in found.tags if any(name.startswith("on") for name in a)] == []
    assert sum(t == "script" for t, _ in found.tags) == sum(t == "script" for t, _ in clean.tags) == 3
    assert text.count("</script>") == 3
    assert "{{7*7}}" in text  # no template runs inside a template
    assert json.loads(found.scripts["manifest"])[EVIL] == {EVIL: EVIL}
    assert json.loads(found.scripts["data"])["questions"][0]["text"].endswith(EVIL)
    assert html.escape(EVIL.split("\u2028")[0], quote=False)[:30] in text  # it is shown, as what it is


def test_hostile_text_stays_text_in_notebooks(results):
    attacked = hostile(results)
    for shown in (
        attacked._repr_html_(),
        attacked.budget_curve()._repr_html_(),
        attacked.pareto()._repr_html_(),
    ):
        assert "<img" not in shown
        assert "<svg onload" not in shown


def test_nothing_is_fetched(page):
    found = Page(page)
    for tag, attributes in found.tags:
        for name in ("src", "href", "xlink:href", "data", "action", "poster", "srcset"):
            target = attributes.get(name) or "#"
            assert target.startswith("#") or target == "data:,", (tag, name, target)
    css = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    assert "@import" not in css
    assert re.findall(r"url\((?!#)", page) == []
    assert not re.search(r"fetch\(|XMLHttpRequest|WebSocket|import\(|sendBeacon", page)
    policy = next(a["content"] for t, a in found.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_the_policy_names_our_script(page):
    import base64
    import hashlib

    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(script) == 1
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert f"'sha256-{digest}'" in page


def test_manifest_repeats_the_table(results, page):
    found = Page(page)
    made = json.loads(found.scripts["manifest"])
    assert made["quality_csv"] == results.quality_csv()
    assert made["systems"] == {s.name: s.config for s in results.systems}
    assert made["corpus"]["fingerprint"] == results.corpus.fingerprint
    seed = made["settings"]["seed"]
    assert toy_results(seed=seed).quality_csv() == made["quality_csv"]  # what made them makes them again
    means = {line.split(",")[0]: float(line.split(",")[1]) for line in made["quality_csv"].splitlines()[1:]}
    board = next(t for t in found.tables if "recall@5 [95 %]" in t[0])
    assert {row[1]: float(row[2].split()[0]) for row in board[1:]} == {
        k: pytest.approx(v, abs=5e-4) for k, v in means.items()
    }


def test_every_question_is_in_the_static_table(results, page):
    grid = next(t for t in Page(page).tables if t[0][0] == "question")
    order = list(results.leaderboard().frame["system"])
    scores = results.per_query()[order].to_numpy()
    assert len(grid) == results.n + 2
    shown = np.array([[float(v) for v in row[1:]] for row in grid[1:-1]])
    np.testing.assert_allclose(shown, scores, atol=5.1e-4)
    np.testing.assert_allclose([float(v) for v in grid[-1][1:]], scores.mean(axis=0), atol=5.1e-4)


def test_passages_are_the_chunks(results):
    data = page_data(results, range(len(results)), top=5)
    segments = [{(at, at + n): text for at, text, n in doc} for doc in data["segments"]]
    for i, q in enumerate(data["questions"]):
        for s, hits in enumerate(q["hits"]):
            system = results.systems[s]
            for hit, row in zip(hits, system.run.of(i)[:5], strict=True):
                doc, start, end, *_ = data["chunks"][hit]
                (a, _b), text = next(
                    (k, v) for k, v in segments[doc].items() if k[0] <= start and end <= k[1]
                )
                assert text[start - a : end - a] == system.chunks.text(int(row))


def test_quality_csv_does_not_depend_on_order_of_keys(results):
    rng = random.Random(0)
    for _ in range(5):
        systems = [
            replace(
                s,
                scores=dict(rng.sample(list(s.scores.items()), len(s.scores))),
                facts=dict(reversed(s.facts.items())),
            )
            for s in results.systems
        ]
        latency = dict(rng.sample(list(results.latency_ms.items()), len(results)))
        again = replace(
            results, systems=systems, latency_ms=latency, manifest=dict(reversed(results.manifest.items()))
        )
        assert again.quality_csv().encode() == results.quality_csv().encode()
    assert "ms" not in results.quality_csv().splitlines()[0]


def test_report_and_charts_are_the_same_bytes_again(results, page, tmp_path):
    assert results.report(tmp_path / "again.html").read_text(encoding="utf-8") == page
    first, second = (results.budget_curve().save(tmp_path / f"{i}.svg").read_bytes() for i in (1, 2))
    assert first == second


def with_scores(results: Results, columns: dict[str, np.ndarray]) -> Results:
    """Results in which named systems have these scores on the first metric."""
    one = results.systems[0]
    systems = [replace(one, name=name, scores={"recall@5": x}) for name, x in columns.items()]
    return replace(results, systems=systems, metrics=("recall@5",), latency_ms={})


def test_a_winner_is_marked_only_if_the_test_says_so(results, tmp_path):
    rng = np.random.default_rng(11)
    base = rng.uniform(0.2, 0.7, results.n)
    clear = with_scores(
        results,
        {
            "low": base,
            "middle": base + rng.normal(0, 0.02, results.n),
            "high": base + 0.2 + rng.normal(0, 0.05, results.n),
        },
    )
    noisy = with_scores(
        results,
        {
            "low": base,
            "middle": base + rng.normal(0, 0.2, results.n),
            "high": base + 0.01 + rng.normal(0, 0.2, results.n),
        },
    )
    # the first beats the last by far, but not the runner-up
    close = with_scores(
        results,
        {
            "low": base - 0.2 + rng.normal(0, 0.05, results.n),
            "middle": base,
            "high": base + 0.001 * rng.choice([-1.0, 1.1], results.n),
        },
    )
    for r, winner in ((clear, "high"), (noisy, None), (close, None)):
        board = r.leaderboard()
        assert board.winner == winner
        assert (f"★ {winner} beats every other" in str(board)) == (winner is not None)
        assert ("font-weight:bold" in board._repr_html_()) == (winner is not None)
        text = r.report(tmp_path / "r.html").read_text(encoding="utf-8")
        assert ('<tr class="first' in text) == (winner is not None)
        tests = all_pairs_p(r.scores())
        top = r.names.index(board.frame["system"].iloc[0])
        assert (winner is not None) == bool((np.delete(tests[top], top) < 0.05).all())
    low = close.leaderboard().frame.set_index("system").loc["low"]
    assert not low["tied"]


def test_false_winners_are_rare():
    """Ten equal systems: the best of the day must not look better than anything in more than 5 % of days."""
    days, seen = 200, 0
    for day in range(days):
        x = np.random.default_rng([5, day]).normal(0.6, 0.25, (40, 10))
        top = int(x.mean(axis=0).argmax())
        seen += all_pairs_p(x, day)[top].min() < 0.05
    assert seen <= 0.05 * days + 3 * np.sqrt(0.05 * 0.95 * days), f"seeds [5, day]: {seen} of {days} days"


def test_correction_holds_when_some_systems_differ():
    """Strong control: a far worse system must not make the others look different from each other."""
    days, seen = 200, 0
    for day in range(days):
        rng = np.random.default_rng([6, day])
        x = rng.normal(0.6, 0.25, (40, 6))
        x[:, 5] -= 0.5
        seen += all_pairs_p(x, day)[:5, :5].min() < 0.05
    assert seen <= 0.05 * days + 3 * np.sqrt(0.05 * 0.95 * days), f"seeds [6, day]: {seen} of {days} days"


def test_leaderboard_fits_a_terminal(results):
    long = replace(
        results,
        systems=[
            replace(s, name=f"{s.name} with a name that nobody would ever want to type again")
            for s in results.systems
        ],
        latency_ms={},
    )
    for board in (
        results.leaderboard(),
        results.leaderboard("evidence_recall@200tok", baseline="char160 lsa"),
        long.leaderboard("mrr"),
    ):
        assert max(map(len, str(board).splitlines())) <= 110
        assert "Also in leaderboard().frame" in str(board)


def test_names_that_do_not_exist(results, tmp_path):
    for call in (
        lambda: results.leaderboard("recall@6"),
        lambda: results.pareto("recall@6"),
        lambda: results.compare("recall@6"),
        lambda: results.report(tmp_path / "x.html", metric="recall@6"),
        lambda: results.per_query("recall@6"),
    ):
        with pytest.raises(ConfigError, match="recall@5, mrr"):
            call()
    with pytest.raises(ConfigError, match="char160 bm25"):
        results.leaderboard(baseline="bm25")
    with pytest.raises(ConfigError, match="latency_p95"):
        results.pareto(cost="dollars")
    assert not (tmp_path / "x.html").exists()


def test_a_long_report_stays_small(tmp_path):
    results = toy_results(documents=12)
    assert (results.n, len(results)) == (84, 14)
    assert Path(results.report(tmp_path / "report.html")).stat().st_size < 3_000_000


def test_one_question_one_system(tmp_path):
    """The smallest run there is: no interval, no test, no curve, no latency."""
    corpus, gold = toy_corpus(1)
    whole = toy_results(1)
    gold = replace(gold, query_list=gold.query_list[:1], evidence_list=gold.evidence_list[:1])
    s = whole.systems[0]
    one = replace(
        s,
        scores={m: x[:1] for m, x in s.scores.items()},
        curve=np.empty((1, 0)),
        ranking=Ranking(s.chunks, Run(("q01",), s.run.scores[:1], s.run.rows[:1])),
    )
    results = replace(whole, gold=gold, systems=[one], curve_budgets=(), latency_ms={})
    assert results.leaderboard().winner is None
    text = results.report(tmp_path / "one.html").read_text(encoding="utf-8")
    assert "nan" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL).lower().replace(
        "unanswerable", ""
    )


def test_questions_without_their_documents_are_not_called_unanswerable(tmp_path):
    """One of the two questions without evidence has lost it: the page lists it under its own heading, and
    every system scores 0 on it."""
    results = toy_results(2)
    questions = results.gold.query_list
    lost = replace(
        results.gold,
        query_list=(*questions[:-1], questions[-1]._replace(tags=(MISSING,))),
        lost=(Lost(questions[-1].query_id, "gone.pdf"),),
    )
    systems = [
        replace(
            s,
            scores={m: np.append(x, 0.0) for m, x in s.scores.items()},
            curve=np.vstack([s.curve, np.zeros((1, s.curve.shape[1]))]),
        )
        for s in results.systems
    ]
    page = (
        replace(results, gold=lost, systems=systems).report(tmp_path / "r.html").read_text(encoding="utf-8")
    )
    nothing = page[page.index('id="unanswerable"') : page.index('id="lost"')]
    gone = page[page.index('id="lost"') : page.index('id="reproduce"')]
    assert questions[-2].text in nothing
    assert questions[-1].text in gone
    assert questions[-1].text not in nothing
    assert "1 relevant piece of evidence of 1 question is not in the corpus and counts as never found" in page
    assert 'id="lost"' not in results.report(tmp_path / "whole.html").read_text(encoding="utf-8")
