"""Laws of the whole: names and order of documents do not matter, work is done once, damage is seen."""

import multiprocessing
from dataclasses import dataclass

import numpy as np
import pytest

import ragbench as rb
from ragbench.core.vectors import Space
from ragbench.store.fingerprint import text_hash

SYSTEMS = rb.grid(
    rb.System(
        [rb.TokenChunker(120, 20), rb.RecursiveChunker(150)],
        [
            rb.Dense(rb.LSAEmbedder(64)),
            rb.Lexical(rb.FTS5()),
            rb.Hybrid(rb.Dense(rb.LSAEmbedder(64)), rb.Lexical(), fuse=[rb.RRF(), rb.MinMax()]),
        ],
    )
)
OPTIONS = {
    "metrics": ["recall@5", "mrr", "ndcg@10", "doc:recall@3"],
    "budgets": [300, 1000],
    "rounds": 0,
    "progress": False,
}


@pytest.fixture(scope="module")
def data():
    return rb.load_dataset("procedures")


@pytest.fixture(scope="module")
def table(data, tmp_path_factory):
    return rb.bench(*data, SYSTEMS, store=tmp_path_factory.mktemp("first"), **OPTIONS).quality_csv()


@pytest.mark.parametrize("seed", [0, 1])
def test_permuting_and_renaming_documents_changes_no_byte(data, table, tmp_path, seed):
    corpus, gold = data
    order = np.random.default_rng(seed).permutation(len(corpus))
    name = {d.id: f"{text_hash(d.id + str(seed))[:6]}.txt" for d in corpus}
    moved = rb.Corpus(
        [
            rb.Document(name[d.id], d.text, d.pages, d.headings, metadata=d.metadata, format=d.format)
            for d in (corpus[int(i)] for i in order)
        ]
    )
    renamed = rb.Gold(gold.query_list, tuple(e._replace(doc_id=name[e.doc_id]) for e in gold.evidence_list))
    assert rb.bench(moved, renamed, SYSTEMS, store=tmp_path, **OPTIONS).quality_csv() == table


def test_it_does_not_matter_which_copy_the_gold_names(data, tmp_path):
    """Every document stands there twice: naming the first, the second or both changes no byte, since any copy
    is the same evidence."""
    corpus, gold = data
    doubled = rb.Corpus([*corpus, *(rb.Document("copy of " + d.id, d.text) for d in corpus)])
    copies = tuple(e._replace(doc_id="copy of " + e.doc_id) for e in gold.evidence_list)
    options = OPTIONS | {
        "metrics": ["recall@5", "mrr", "ndcg@10", "evidence_iou@5", "qrels:recall@5"],
        "store": tmp_path,
    }

    def tables(counted):
        named = (
            rb.Gold(gold.query_list, evidence, copies=counted)
            for evidence in (gold.evidence_list, copies, gold.evidence_list + copies)
        )
        return [rb.bench(doubled, g, SYSTEMS[:2], **options).quality_csv() for g in named]

    assert len(set(tables("all"))) == 1
    assert len(set(tables("first"))) == 3  # where only the named place counts, it does matter


@dataclass(frozen=True)
class CountingEmbedder:
    """Counts the texts it embeds in a file, so that other processes are counted too."""

    log: str
    max_tokens = None

    @property
    def space(self):
        return Space("counting", "1", 3)

    @property
    def fingerprint(self):
        return "counting-1"

    def embed_passages(self, texts):
        texts = texts.texts if isinstance(texts, rb.Chunks) else list(texts)
        with open(self.log, "a") as f:
            f.write("".join(f"{text_hash(t)}\n" for t in texts))
        x = np.array([[len(t), t.count("e"), 1.0] for t in texts])
        return rb.Vectors(x / np.linalg.norm(x, axis=1, keepdims=True), self.space)

    embed_queries = embed_passages


def test_a_grid_embeds_every_distinct_text_once(data, tmp_path):
    corpus, gold = data
    e = CountingEmbedder(str(tmp_path / "log"))
    chunkers = [
        rb.RecursiveChunker(100),
        rb.RecursiveChunker(120),
        rb.TokenChunker(100),
        rb.TokenChunker(200),
    ]
    systems = rb.grid(rb.System(chunkers, [rb.Dense(e), rb.Hybrid(rb.Dense(e), rb.Lexical())]))
    rb.bench(corpus, gold, systems, store=tmp_path / "store", **OPTIONS)
    embedded = (tmp_path / "log").read_text().split()
    distinct = {t for c in chunkers for t in c(corpus).texts}
    assert len(embedded) == len(set(embedded)) == len(distinct) + len({q.text for q in gold.query_list})
    rb.bench(corpus, gold, systems, store=tmp_path / "store", **OPTIONS)
    assert len((tmp_path / "log").read_text().split()) == len(embedded)  # the second run embeds nothing


def _run(folder: str, log: str, start, out) -> None:
    data = rb.load_dataset("procedures")
    systems = [
        *SYSTEMS,
        rb.System(rb.RecursiveChunker(100), rb.Dense(CountingEmbedder(log))),
    ]
    start.wait(200)
    out.put(rb.bench(*data, systems, store=folder, **OPTIONS).quality_csv())


def test_two_processes_share_a_store(data, table, tmp_path):
    """At the same time, they give the same table as one alone, and no text is embedded by both."""
    context = multiprocessing.get_context("spawn")
    out, start, log = context.Queue(), context.Barrier(2), tmp_path / "log"
    workers = [
        context.Process(target=_run, args=(str(tmp_path / "store"), str(log), start, out)) for _ in range(2)
    ]
    for w in workers:
        w.start()
    tables = [out.get(timeout=200) for _ in workers]
    for w in workers:
        w.join(30)
    lines = [t.splitlines() for t in tables]
    assert lines[0] == lines[1]
    assert lines[0][: len(SYSTEMS) + 1] == table.splitlines()
    embedded = log.read_text().split()
    corpus, gold = data
    assert sorted(embedded) == sorted(
        text_hash(t) for t in {*rb.RecursiveChunker(100)(corpus).texts} | {q.text for q in gold.query_list}
    )
