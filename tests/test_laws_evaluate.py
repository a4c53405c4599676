"""The laws of evaluation, tried on random corpora that are full of repeated text, accents and rare
characters."""

from __future__ import annotations

import numpy as np
import pytest
from helper_metrics import TREC_NAMES
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ragbench.core.chunks import Chunks
from ragbench.core.documents import Corpus, Document
from ragbench.core.evidence_classes import EvidenceClass, evidence_classes
from ragbench.core.gold import Gold
from ragbench.core.gold_records import Evidence, Query
from ragbench.core.ranking import Ranking
from ragbench.core.runs import Run
from ragbench.evaluate.evidence_metrics import (
    evidence_at_budgets,
    evidence_at_chunks,
    evidence_counts,
    evidence_of,
    query_evidence,
    reading,
    stops,
    token_counts,
    token_starts,
)
from ragbench.evaluate.judged_units import class_positions, document_list, judge
from ragbench.evaluate.metric_arrays import array_metrics
from ragbench.evaluate.rank_metrics import rank_metrics
from ragbench.evaluate.scores import score_run
from ragbench.evaluate.truncation import truncation
from ragbench.stats.corrections import compare_to, holm
from ragbench.stats.intervals import bootstrap_interval
from ragbench.stats.paired_tests import compare_pair
from ragbench.stats.selection import selection_optimism

BUDGETS = [1, 2, 3, 5, 8, 13, 21, 200]
RANKED = [
    "recall@1",
    "recall@3",
    "mrr",
    "ndcg@3",
    "ndcg",
    "map@3",
    "hit_rate@2",
    "precision@3",
    "recall@3-l2",
    "doc:recall@1",
    "doc:ndcg@2",
    "doc:map",
]
SENTENCES = ["Stop the pump. ", "Café valve 7. ", "Close it. ", "🜁 rises, 日本. ", "Wear gloves. "]


@st.composite
def worlds(draw):
    """A corpus with many copies, random chunks, gold with overlapping evidence, and a run that may be short
    or empty."""
    docs = draw(
        st.lists(
            st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=5).map("".join), min_size=1, max_size=4
        )
    )
    corpus = Corpus([Document(f"d{i}", t) for i, t in enumerate(docs)])
    span = st.integers(0, len(docs) - 1).flatmap(
        lambda r: st.tuples(st.just(r), st.integers(0, len(docs[r]) - 1), st.integers(1, 20)).map(
            lambda x: (x[0], x[1], min(x[1] + x[2], len(docs[x[0]])))
        )
    )
    table = sorted(draw(st.lists(span, min_size=1, max_size=12)))
    chunks = Chunks(corpus, *np.array(table).T)
    queries, evidence, rows = [], [], []
    for q in range(draw(st.integers(1, 4))):
        queries.append(Query(f"q{q}", "What?"))
        for r, s, e in draw(st.lists(span, min_size=1, max_size=3)):
            if not docs[r][s:e].isspace():
                evidence.append(Evidence(f"q{q}", f"d{r}", s, e, draw(st.integers(1, 3))))
        found = draw(st.permutations(range(len(table))))[: draw(st.integers(0, len(table)))]
        rows.append(found + [-1] * (len(table) - len(found)))
    assume(evidence)
    scores = np.tile(-np.arange(len(table), dtype=float), (len(rows), 1))
    return (
        corpus,
        chunks,
        Gold(tuple(queries), tuple(evidence)),
        Run(tuple(q.query_id for q in queries), scores, rows),
    )


def same(a: dict, b: dict) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


# ---------------------------------------------------------------- evidence at a budget


def read_by_character(corpus, chunks, rows, budget=None, n_chunks=None):
    "The set of (document, offset) that a reader has read, one character at a time."
    seen, tokens = {}, 0
    for r in rows[:n_chunks]:
        for c in range(chunks.start[r], chunks.end[r]):
            spot = (int(chunks.doc_row[r]), c)
            if spot in seen:
                continue
            tokens += int((token_starts(corpus[spot[0]]) == c).sum())
            if budget is not None and tokens > budget:
                return set(seen)
            seen[spot] = True
    return set(seen)


def apart(text, start, end):
    "Whether a piece of these sentences begins and ends with whole words; 日 and 本 are words of their own."

    def word(i):
        return 0 <= i < len(text) and text[i].isalnum() and text[i] not in "日本"

    return not (word(start) and word(start - 1)) and not (word(end - 1) and word(end))


def counts_by_character(corpus, gold, query, seen):
    """Recall, precision and IoU from sets of characters: best copy of each class, shared characters to the
    first."""
    taken, found, size, anywhere, done = set(), 0, 0, set(), set()
    for e in gold.by_query[query]:
        text, row = corpus[e.doc_id].text[e.start : e.end], corpus.row(e.doc_id)
        if text in done:
            continue
        done.add(text)
        own = [i for i in range(e.end - e.start) if (row, e.start + i) not in taken]
        taken |= {(row, c) for c in range(e.start, e.end)}
        named = {
            (corpus.row(x.doc_id), x.start)
            for x in gold.by_query[query]
            if corpus[x.doc_id].text[x.start : x.end] == text
        }
        places = [
            (r, at)
            for r, d in enumerate(corpus)
            for at in range(len(d))
            if d.text.startswith(text, at) and ((r, at) in named or apart(d.text, at, at + len(text)))
        ]
        found += max(sum((r, at + i) in seen for i in own) for r, at in places)
        anywhere |= {(r, at + i) for r, at in places for i in range(len(text))}
        size += len(own)
    relevant = len(seen & anywhere)
    return found / size, relevant / max(len(seen), 1), found / (size + len(seen) - relevant)


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_evidence_measures_agree_with_counting_characters(world):
    corpus, chunks, gold, run = world
    by_tokens = evidence_at_budgets(gold, Ranking(chunks, run), BUDGETS)
    by_chunks = evidence_at_chunks(gold, Ranking(chunks, run), [1, 2, 5])
    for i, q in enumerate(gold.answerable):
        rows = run.of(run.query_ids.index(q.query_id))
        for scores, limits, name in ((by_tokens, BUDGETS, "budget"), (by_chunks, [1, 2, 5], "n_chunks")):
            for j, limit in enumerate(limits):
                seen = read_by_character(corpus, chunks, rows, **{name: limit})
                assert scores["characters"][i, j] == len(seen)
                assert (
                    scores["recall"][i, j],
                    scores["precision"][i, j],
                    scores["iou"][i, j],
                ) == counts_by_character(corpus, gold, q.query_id, seen)


@settings(max_examples=60, deadline=None)
@given(worlds(), st.randoms(use_true_random=False))
def test_splitting_and_relabelling_leave_the_curve(world, random):
    corpus, chunks, gold, run = world
    pieces, owners = [], []
    for i, (r, s, e) in enumerate(zip(chunks.doc_row.tolist(), chunks.start.tolist(), chunks.end.tolist())):
        inner = (
            sorted(random.sample(range(s + 1, e), random.randint(0, min(3, e - s - 1)))) if e - s > 1 else []
        )
        bounds = [s, *inner, e]
        pieces += [(r, a, b) for a, b in zip(bounds, bounds[1:])]
        owners += [i] * (len(bounds) - 1)
    labels = sorted(
        range(len(pieces)), key=lambda p: (pieces[p], random.random())
    )  # corpus order, equal spans in any order
    new_row = {p: row for row, p in enumerate(labels)}
    split = Chunks(corpus, *np.array([pieces[p] for p in labels]).T)
    parts = {i: [new_row[p] for p in range(len(pieces)) if owners[p] == i] for i in range(len(chunks))}
    rows = [[x for r in run.of(i) for x in parts[int(r)]] for i in range(len(run))]
    table = np.array([r + [-1] * (len(pieces) - len(r)) for r in rows])
    finer = Run(run.query_ids, np.tile(-np.arange(len(pieces), dtype=float), (len(rows), 1)), table)
    same(
        evidence_at_budgets(gold, Ranking(chunks, run), BUDGETS),
        evidence_at_budgets(gold, Ranking(split, finer), BUDGETS),
    )


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_measures_stay_within_bounds_and_recall_rises_with_the_budget(world):
    corpus, chunks, gold, run = world
    at = evidence_at_budgets(gold, Ranking(chunks, run), BUDGETS)
    for name in ("recall", "precision", "iou"):
        assert ((at[name] >= 0) & (at[name] <= 1)).all(), name
    for name in ("recall", "tokens", "characters"):
        assert (np.diff(at[name], axis=1) >= 0).all(), name
    assert (at["tokens"] <= BUDGETS).all()
    scores = rank_metrics(gold, Ranking(chunks, run), RANKED)
    for name, values in scores.items():
        assert ((values >= 0) & (values <= 1 + 1e-12)).all(), name


@settings(max_examples=60, deadline=None)
@given(worlds(), st.integers(0, 10_000))
def test_one_more_copy_never_lowers_a_score(world, number):
    corpus, chunks, gold, run = world
    counts = token_counts(corpus)
    for i, q in enumerate(gold.answerable):
        rows = run.of(run.query_ids.index(q.query_id))
        classes = list(evidence_classes(corpus, gold)[q.query_id])
        which = number % len(classes)
        row, start, end = classes[which].places[0]
        other = number % len(corpus)
        if len(corpus[other]) < end - start:
            continue
        at = number % (len(corpus[other]) - (end - start) + 1)
        more = [*classes]
        more[which] = EvidenceClass(
            (*classes[which].places, (other, at, at + end - start)), classes[which].grade
        )

        before, after = (class_positions(chunks, rows, c) for c in (classes, more))
        assert ((after == before) | (before == 0) | (after < before)).all()
        assert ((after > 0) | (before == 0)).all()

        segments, _ = reading(counts.line(chunks.doc_row[rows], chunks.spans[rows]))
        full, cut, _ = stops(segments, counts, np.array(BUDGETS))
        named = {}
        for e in gold.by_query[q.query_id]:
            base = counts.base[corpus.row(e.doc_id)]
            named.setdefault(corpus[e.doc_id].text[e.start : e.end], (int(base + e.start), int(base + e.end)))
        copies = [
            [np.array([counts.base[r] + s for r, s, _ in c.places]) for c in cs] for cs in (classes, more)
        ]
        a, b = (evidence_counts(query_evidence(list(named.values()), c), segments, full, cut) for c in copies)
        assert (b["found"] >= a["found"]).all()
        assert (b["relevant"] >= a["relevant"]).all()
        assert (b["gold"] == a["gold"]).all()
        assert a["gold"][0] == evidence_of(corpus, gold)[i].size


@pytest.mark.parametrize("k", [0, 2, 4])
def test_finding_a_class_earlier_never_lowers_a_rank_metric(k):
    """All positions of three classes up to 4 (0: not found), all grades up to 3, and each class found at
    every earlier place."""
    from itertools import product

    from ragbench.evaluate.judged_units import Judged

    before, after, units = [], [], []
    for positions, grades in product(product(range(5), repeat=3), product((1, 2, 3), repeat=3)):
        for which, earlier in product(range(3), range(1, 5)):
            if positions[which] and earlier >= positions[which]:
                continue
            better = list(positions)
            better[which] = earlier
            before.append(np.array(positions))
            after.append(np.array(better))
            units.append(np.c_[np.arange(3), grades])
    names = [f"{n}@{k}" if k else n for n in ("recall", "hit_rate", "mrr", "map", "ndcg", "precision")]
    a, b = (
        array_metrics(Judged("evidence", units, found, [6] * len(units)), names) for found in (before, after)
    )
    for name in a:
        assert (a[name] <= b[name] + 1e-12).all(), name
        assert (b[name] <= 1 + 1e-9).all(), name


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_naming_a_copy_that_is_there_changes_nothing(world):
    corpus, chunks, gold, run = world

    def others(e):
        text = corpus[e.doc_id].text[e.start : e.end]
        every = [
            (d.id, at, at + len(text))
            for d in corpus
            for at in range(len(d))
            if d.text.startswith(text, at) and apart(d.text, at, at + len(text))
        ]
        return [p for p in every if p != (e.doc_id, e.start, e.end)]

    copies = [Evidence(e.query_id, *p, e.grade) for e in gold.evidence_list for p in others(e)]
    assume(copies)
    more = Gold(gold.query_list, (*gold.evidence_list, *copies))
    names = [n for n in RANKED if not n.startswith("doc:")]
    same(rank_metrics(gold, Ranking(chunks, run), names), rank_metrics(more, Ranking(chunks, run), names))
    same(
        evidence_at_budgets(gold, Ranking(chunks, run), BUDGETS),
        evidence_at_budgets(more, Ranking(chunks, run), BUDGETS),
    )


# ---------------------------------------------------------------- documents in another order, under other
# names


@settings(max_examples=60, deadline=None)
@given(worlds(), st.randoms(use_true_random=False))
def test_permuting_and_renaming_documents_changes_no_metric(world, random):
    corpus, chunks, gold, run = world
    order = random.sample(range(len(corpus)), len(corpus))
    names = {d.id: f"doc-{n}" for d, n in zip(corpus, random.sample(range(100), len(corpus)))}
    other = Corpus([Document(names[corpus[r].id], corpus[r].text) for r in order])
    spans = [
        (order.index(r), s, e, i)
        for i, (r, s, e) in enumerate(
            zip(chunks.doc_row.tolist(), chunks.start.tolist(), chunks.end.tolist())
        )
    ]
    spans.sort(key=lambda x: x[:3])
    new_row = {old: row for row, (*_, old) in enumerate(spans)} | {-1: -1}
    moved = Chunks(other, *np.array(spans)[:, :3].T)
    queries = random.sample(range(len(run)), len(run))  # the run's own order is nobody's business either
    rerun = Run(
        [run.query_ids[q] for q in queries], run.scores[queries], np.vectorize(new_row.get)(run.rows[queries])
    )
    regold = Gold(gold.query_list, tuple(e._replace(doc_id=names[e.doc_id]) for e in gold.evidence_list))
    wanted = [*RANKED, "evidence_recall@5tok", "evidence_precision@2", "evidence_iou@8tok"]
    before = score_run(gold, Ranking(chunks, run), wanted, (), BUDGETS)
    after = score_run(regold, Ranking(moved, rerun), wanted, (), BUDGETS)
    same(before["metrics"], after["metrics"])
    np.testing.assert_array_equal(before["curve"], after["curve"])


# ---------------------------------------------------------------- rank metrics against other implementations


def metric_by_hand(name: str, grades: list[int], relevant: list[int], k: int) -> float:
    """Straight from the textbook, for one query: the grades in ranked order, all relevant grades, a cut-off
    (0: none)."""
    shown = grades[:k] if k else grades
    hits = [g > 0 for g in shown]

    def discounted(gs):
        return sum(g / np.log2(i + 2) for i, g in enumerate(gs))

    ideal = sorted(relevant, reverse=True)
    match name:
        case "recall":
            return sum(hits) / len(relevant)
        case "hit_rate":
            return float(any(hits))
        case "precision":
            return sum(hits) / (k or len(shown)) if (k or shown) else 0.0
        case "mrr":
            return next((1 / (i + 1) for i, h in enumerate(hits) if h), 0.0)
        case "map":
            return sum(sum(hits[: i + 1]) / (i + 1) for i, h in enumerate(hits) if h) / len(relevant)
        case "ndcg":
            return discounted(shown) / discounted(ideal[:k] if k else ideal)
    raise AssertionError(name)


@settings(max_examples=40, deadline=None)
@given(worlds(), st.integers(1, 5))
def test_rank_metrics_agree_with_the_textbook_and_with_arrays(world, k):
    corpus, chunks, gold, run = world
    names = [
        f"{n}{cut}"
        for n in ("recall", "hit_rate", "precision", "mrr", "map", "ndcg")
        for cut in ("", f"@{k}")
    ]
    for unit, prefix in (("evidence", ""), ("document", "doc:")):
        judged = judge(gold, Ranking(chunks, run), unit)
        theirs = rank_metrics(gold, Ranking(chunks, run), [prefix + n for n in names])
        ours = array_metrics(judged, names)
        for n in names:
            cut = k if "@" in n else 0
            for i in range(len(judged)):
                grade, ids = dict(judged.units[i].tolist()), judged.lists(cut)[i].tolist()
                hand = metric_by_hand(
                    n.split("@")[0], [grade.get(x, 0) for x in ids], list(grade.values()), judged.cut(cut)
                )
                assert theirs[prefix + n][i] == pytest.approx(hand, abs=1e-12), (n, i)
                assert ours[n][i] == pytest.approx(hand, abs=1e-12), (n, i)


@settings(max_examples=40, deadline=None)
@given(worlds())
def test_classes_within_k_chunks_are_what_recall_counts(world):
    corpus, chunks, gold, run = world
    scores = rank_metrics(gold, Ranking(chunks, run), ["recall@2", "mrr"])
    for i, (q, classes) in enumerate(evidence_classes(corpus, gold).items()):
        found = []
        for c in classes:
            at = [
                n
                for n in range(1, len(run.of(run.query_ids.index(q))) + 1)
                for r, s, e in c.places
                if 2
                * len(
                    {
                        x
                        for d, x in read_by_character(
                            corpus, chunks, run.of(run.query_ids.index(q)), n_chunks=n
                        )
                        if d == r and s <= x < e
                    }
                )
                >= e - s
            ]
            found.append(min(at, default=np.inf))
        assert scores["recall@2"][i] == sum(f <= 2 for f in found) / len(classes)
        assert scores["mrr"][i] == 1 / min(found)


def test_document_metrics_agree_with_trec_eval():
    pytrec_eval = pytest.importorskip("pytrec_eval")
    rng = np.random.default_rng(0)
    corpus = Corpus([Document(f"d{i:02}", f"text number {i} of a corpus") for i in range(30)])
    chunks = Chunks(corpus, np.arange(30), np.zeros(30), np.full(30, 5))
    evidence = [
        Evidence(f"q{q}", f"d{d:02}", 0, 5, int(rng.integers(1, 4)))
        for q in range(40)
        for d in rng.choice(30, rng.integers(1, 7), replace=False)
    ]
    gold = Gold(tuple(Query(f"q{q}", "?") for q in range(40)), tuple(evidence), unit="document")
    rows = np.array(
        [np.where(np.arange(20) < rng.integers(1, 21), rng.permutation(30)[:20], -1) for _ in range(40)]
    )
    run = Run([f"q{q}" for q in range(40)], np.tile(-np.arange(20.0), (40, 1)), rows)
    qrels = {f"q{q}": {e.doc_id: e.grade for e in evidence if e.query_id == f"q{q}"} for q in range(40)}
    answers = {
        q: {corpus[int(r)].id: float(-i) for i, r in enumerate(run.of(n))}
        for n, q in enumerate(run.query_ids)
    }
    theirs = pytrec_eval.RelevanceEvaluator(
        qrels, {"recall", "P", "recip_rank", "map", "ndcg", "ndcg_cut", "success", "Rprec", "map_cut"}
    ).evaluate(answers)
    ours = rank_metrics(gold, Ranking(chunks, run), list(TREC_NAMES))
    for name, trec in TREC_NAMES.items():
        np.testing.assert_allclose(
            ours[name], [theirs[f"q{q}"][trec] for q in range(40)], atol=1e-12, err_msg=name
        )
    assert document_list(chunks, np.array([3, 1, 2])).tolist() == [3, 1, 2]


# ---------------------------------------------------------------- truncation


@settings(max_examples=60, deadline=None)
@given(worlds(), st.randoms(use_true_random=False))
def test_unread_gold_agrees_with_counting_characters(world, random):
    corpus, chunks, gold, _ = world
    ends = np.array([random.randint(s, e) for s, e in chunks.spans.tolist()])
    found = truncation(gold, chunks, ends)
    inside = [
        {(int(r), c) for r, s, e in zip(chunks.doc_row, chunks.start, stop) for c in range(s, e)}
        for stop in (chunks.end, ends)
    ]
    whole, read = (
        sum(
            counts_by_character(corpus, gold, q.query_id, seen)[0] * evidence_of(corpus, gold)[i].size
            for i, q in enumerate(gold.answerable)
        )
        for seen in inside
    )
    assert found.unread == pytest.approx(whole - read, abs=1e-9)
    assert 0 <= found.share <= 1
    assert truncation(gold, chunks, chunks.end).unread == 0


# ---------------------------------------------------------------- statistics

tables = (
    st.integers(2, 30)
    .flatmap(
        lambda n: st.integers(2, 5).flatmap(
            lambda s: st.lists(
                st.lists(st.sampled_from([0, 1 / 3, 0.5, 0.63, 1.0]), min_size=s, max_size=s),
                min_size=n,
                max_size=n,
            )
        )
    )
    .map(np.array)
)


@settings(max_examples=40, deadline=None)
@given(tables, st.randoms(use_true_random=False))
def test_the_order_of_systems_changes_no_bit(scores, random):
    order = random.sample(range(scores.shape[1]), scores.shape[1])
    np.testing.assert_array_equal(
        bootstrap_interval(scores, resamples=200)[order], bootstrap_interval(scores[:, order], resamples=200)
    )
    a, b = compare_to(scores, 0, resamples=200), compare_to(scores[:, order], order.index(0), resamples=200)
    assert [repr(a[i]) for i in order] == [
        repr(c) for c in b
    ]  # to the last digit; an interval that is not known equals itself
    folds = min(5, len(scores))
    assert selection_optimism(scores, folds) == selection_optimism(scores[:, order], folds)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from([-42, -30, -20, 0, 0, 15, 30, 36]), min_size=1, max_size=10)
)  # sixtieths; whole, so that scipy sees every tie
def test_exact_p_agrees_with_scipy(d):
    from scipy.stats import permutation_test

    d = np.array(d, np.float64)
    ours = compare_pair(d / 60, np.zeros(len(d)), resamples=100).p
    if len(d) == 1:
        theirs = 1.0
    else:
        theirs = permutation_test((d,), np.mean, permutation_type="samples", n_resamples=np.inf).pvalue
    assert ours == pytest.approx(min(theirs, 1), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_its_definition_rejects(p):
    adjusted = holm(p)
    for level in (0.01, 0.05, 0.2):
        rejected = set()
        for i, j in enumerate(sorted(range(len(p)), key=lambda j: p[j])):
            if p[j] * (len(p) - i) > level:
                break
            rejected.add(j)
        assert set(np.flatnonzero(adjusted <= level).tolist()) == rejected


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_measures_in_tokens_keep_the_laws(world):
    corpus, chunks, gold, run = world
    chars = evidence_at_budgets(gold, Ranking(chunks, run), BUDGETS)
    tokens = evidence_at_budgets(gold, Ranking(chunks, run), BUDGETS, unit="tokens")
    for name in ("recall", "precision", "iou"):
        assert ((tokens[name] >= 0) & (tokens[name] <= 1 + 1e-12)).all(), name
    assert (np.diff(tokens["recall"], axis=1) >= -1e-12).all()
    assert (
        tokens["characters"] <= tokens["tokens"]
    ).all()  # a budget may end inside a character that is several tokens
    assert ((chars["recall"] == 1) <= (tokens["recall"] > 1 - 1e-12)).all()  # all characters are all tokens
