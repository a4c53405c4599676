"""FAISS through ragbench is FAISS: same ids, same scores; and what FAISS lacks holds against brute force."""

import functools
import itertools
import subprocess
import sys

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbench.base.errors import ConfigError, RagbenchError, StoreError
from ragbench.core.vectors import Space, Vectors
from ragbench.index.advise import advise
from ragbench.index.faiss_base import Built, FaissSearcher, open_index, raw_search, unit
from ragbench.index.faiss_files import layers, read_header, verify_index
from ragbench.index.faiss_flat import FaissFlat
from ragbench.index.faiss_settings import query_defaults, search_params, takes_selector
from ragbench.index.faiss_shards import GPU_TOLERANCE, build_shards, gpu_count, lists_to_disk, to_gpu
from ragbench.index.faiss_variants import (
    FaissFactory,
    FaissHNSW,
    FaissIVF,
    FaissIVFPQ,
    FaissPQ,
    FaissRaBitQ,
    FaissSQ,
    FaissVariant,
    VariantConfig,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*FAISS advises")
D, N = 32, 1500
RNG = np.random.default_rng(7)
X = RNG.normal(size=(N, D)).astype(np.float32) * RNG.uniform(0.5, 2, size=(N, 1)).astype(np.float32)
Q = X[::50] + RNG.normal(size=(30, D)).astype(np.float32) * 0.2
METRICS = ("cosine", "ip", "l2")
# a configuration, the factory string, and what FAISS itself is told
VARIANTS = [
    (FaissFlat, {}, "Flat", {}),
    (FaissIVF, {"nlist": 20, "nprobe": 5}, "IVF20,Flat", {"nprobe": 5}),
    (FaissPQ, {"m": 8, "nbits": 5}, "PQ8x5", {}),
    (FaissIVFPQ, {"nlist": 20, "m": 8, "nbits": 5, "nprobe": 4}, "IVF20,PQ8x5", {"nprobe": 4}),
    (
        FaissHNSW,
        {"m": 8, "ef_construction": 50, "ef_search": 40},
        "HNSW8,Flat",
        {"efSearch": 40, "efConstruction": 50},
    ),
    (FaissSQ, {"kind": "8bit"}, "SQ8", {}),
    (FaissSQ, {"kind": "4bit"}, "SQ4", {}),
    (FaissSQ, {"kind": "fp16"}, "SQfp16", {}),
    (FaissRaBitQ, {}, "RaBitQ", {}),
    (FaissRaBitQ, {"bits": 4}, "RaBitQ4", {}),
    (FaissRaBitQ, {"nlist": 20, "nprobe": 6}, "IVF20,RaBitQ", {"nprobe": 6}),
    (FaissFactory, {"factory": "IVF20,PQ16x4fs", "nprobe": 8}, "IVF20,PQ16x4fs", {"nprobe": 8}),
    (FaissFactory, {"factory": "PQ16x4fs,RFlat", "k_factor": 4}, "PQ16x4fs,RFlat", {"k_factor_rf": 4}),
    (
        FaissFactory,
        {"factory": "OPQ4,IVF20,PQ16x4fs,RFlat", "nprobe": 8, "k_factor": 4},
        "OPQ4,IVF20,PQ16x4fs,RFlat",
        {"nprobe": 8, "k_factor_rf": 4},
    ),
    (FaissFactory, {"factory": "IVF20_HNSW8,SQ8", "nprobe": 4}, "IVF20_HNSW8,SQ8", {"nprobe": 4}),
    (FaissFactory, {"factory": "PQ16x4fs"}, "PQ16x4fs", {}),
    (FaissFactory, {"factory": "PCA16,Flat"}, "PCA16,Flat", {}),
]
NAMES = [f"{kind.__name__}-{spec}" for kind, _, spec, _ in VARIANTS]
EACH = pytest.mark.parametrize(("kind", "fields", "spec", "told"), VARIANTS, ids=NAMES)


@pytest.fixture(autouse=True)
def _one_thread():
    "FAISS's threads wait for each other in a loop: on a busy machine small trainings take minutes with two."
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(before)


@pytest.mark.parametrize("base", [VariantConfig, FaissVariant])
def test_a_variant_says_what_it_is(base):
    with pytest.raises(TypeError, match="abstract"):
        base()
    mine = type("Mine", (FaissVariant,), {"spec": property(lambda self: "SQ8")})
    assert isinstance(mine().build(X).index, faiss.IndexScalarQuantizer)


def raw(spec: str, metric: str, told: dict, x: np.ndarray = X):
    "The index as the FAISS documentation would have it made."
    index = faiss.index_factory(D, spec, faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT)
    if "efConstruction" in told:
        index.hnsw.efConstruction = told["efConstruction"]
    x = unit(x) if metric == "cosine" else x
    for part in layers(index):  # the annealing changes no distance (tested below) and takes most of the time
        if hasattr(part, "do_polysemous_training"):
            part.do_polysemous_training = False
    index.train(x)
    index.add(x)
    for name, value in told.items():
        if name != "efConstruction":
            faiss.ParameterSpace().set_index_parameter(index, name, value)
    return index


def build(kind, fields, metric):
    return kind(**fields, metric=metric).build(X)


@functools.cache
def _kept(which: int, metric: str):
    return build(VARIANTS[which][0], VARIANTS[which][1], metric)


def built(kind, fields, metric):
    "Built once for all tests that only ask it."
    return _kept(next(i for i, v in enumerate(VARIANTS) if v[0] is kind and v[1] == fields), metric)


@EACH
@pytest.mark.parametrize("metric", METRICS)
def test_same_ids_and_scores_as_raw_faiss(kind, fields, spec, told, metric):
    searcher, index = built(kind, fields, metric), raw(spec, metric, told)
    for queries in (Q, Q[:1]):  # FAISS takes another path for one query
        scores, rows = index.search(unit(queries) if metric == "cosine" else queries, 10)
        ours = searcher.search(queries, 10)
        np.testing.assert_array_equal(ours[1], rows)
        np.testing.assert_array_equal(ours[0], -scores if metric == "l2" else scores)


# one of each sort of index that FAISS's factory makes on a CPU
KINDS = [
    "Flat",
    "IVF20,Flat",
    "IVF20,FlatDedup",
    "PQ8x5",
    "IVF20,PQ8x5",
    "IVF20,PQ8+4",
    "HNSW8,Flat",
    "HNSW8_SQ8",
    "HNSW8_PQ8x4",
    "NSG8,Flat",
    "SQ8",
    "SQ6",
    "SQ4",
    "SQfp16",
    "SQbf16",
    "IVF20,SQ8",
    "RaBitQ",
    "RaBitQ4",
    "IVF20,RaBitQ",
    "IVF20,RaBitQ3",
    "PQ16x4fs",
    "IVF20,PQ16x4fs",
    "IVF20,PQ16x4fsr",
    "LSH",
    "RQ4x4",
    "PRQ2x2x4",
    "IVF20,RQ4x4",
    "RQ4x4fs_Nrq2x4",
    "IVF20,RQ4x4fs_Nrq2x4",
    "PQ16x4fs,RFlat",
    "SQ4,Refine(SQ8)",
    "PCA16,Flat",
    "L2norm,IVF20,Flat",
    "OPQ4,IVF20,PQ16x4fs,RFlat",
    "IVF20_HNSW8,SQ8",
    "IMI2x4,Flat",
]


@functools.cache
def by_hand(spec: str) -> Built:
    index = faiss.index_factory(D, spec)
    for part in layers(index):
        if hasattr(part, "do_polysemous_training"):
            part.do_polysemous_training = False
        if isinstance(part, faiss.IndexIVF):
            part.nprobe = 3
    index.train(X[:600])
    index.add(X[:600])
    return Built(index, Space(dim=D, normalized=False), "ip", spec, 600)


@pytest.mark.parametrize("spec", KINDS)
def test_the_function_under_faiss_own_wrapper_is_the_wrapper(spec):
    """A bit is a bit: for one query, many and none, with and without parameters and a selector, for more than
    the probed lists hold."""
    b = by_hand(spec)
    selector = faiss.IDSelectorBatch(np.arange(0, 600, 7))
    told = {n: 2 * v for n, v in query_defaults(b.index).items()}
    params = [
        None,
        *([search_params(b.index, told)] if told else []),
        *([search_params(b.index, told, selector)] if takes_selector(b.index) else []),
    ]
    for q, k, p in itertools.product((Q, Q[:1], Q[:0]), (1, 10, 600), params):
        want, ours = b.index.search(q, k, params=p), raw_search(b, q, k, p)
        for a, c in zip(want, ours):
            assert (a.dtype, a.shape) == (c.dtype, c.shape)
            np.testing.assert_array_equal(c, a)


@pytest.mark.parametrize("spec", [s for s in KINDS if not takes_selector(faiss.index_factory(D, s))])
def test_a_kind_that_takes_no_selector_is_filtered_all_the_same(spec):
    searcher, allowed = FaissSearcher(by_hand(spec)), np.arange(0, 600, 7)
    rows = searcher.search(Q, 5, where=allowed)[1]
    assert np.isin(rows, [*allowed, -1]).all()
    assert (rows[:, 0] >= 0).all()
    assert (rows >= 0).all() or "IVF20,RQ4x4fs" in spec  # which FAISS lets nobody ask to probe more lists


def test_searches_at_once_share_nothing():
    "Threads that ask in turn get what each would alone, in arrays of their own."
    from concurrent.futures import ThreadPoolExecutor

    for searcher in (FLAT["cosine"], ALL_LISTS["l2"]):
        alone = [searcher.search(q, 10) for q in Q]
        with ThreadPoolExecutor(8) as pool:
            got = list(pool.map(searcher.search, [*Q] * 20, itertools.repeat(10)))
        assert len({a.ctypes.data for pair in got for a in pair}) == 2 * len(got)
        for i, pair in enumerate(got):
            for a, b in zip(pair, alone[i % len(Q)]):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("most", [1, 2, 3, 50])
@pytest.mark.parametrize("fails", [False, True])
def test_threads_are_lowered_for_a_search_and_restored_after_it(most, fails):
    searcher, seen = FaissFlat().build(X), []

    class Watched(faiss.IndexFlatIP):
        def search_c(self, *given):
            seen.append(faiss.omp_get_max_threads())
            if fails:
                raise RuntimeError("as FAISS would")
            return faiss.IndexFlatIP.search_c(self, *given)

    searcher.built.index, searcher.built.most_threads = Watched(D), most
    searcher.built.index.add(unit(X))
    faiss.omp_set_num_threads(3)
    if fails:
        with pytest.raises(ConfigError, match="cannot search it .as FAISS would"):
            searcher.search(Q, 5)
    else:
        np.testing.assert_array_equal(searcher.search(Q, 5)[1], FLAT["cosine"].search(Q, 5)[1])
    assert seen == [min(most, 3)]
    assert faiss.omp_get_max_threads() == 3


@EACH
def test_queries_that_cannot_be_are_refused_with_the_reason(kind, fields, spec, told):
    searcher = built(kind, fields, "cosine")
    for bad, said in (
        (Q[:, :-1], "dim differ"),
        (np.zeros((2, 0), np.float32), r"shape \(2, 0\)"),
        (Q[None], r"shape \(1, 30, 32\)"),
        (Q * np.nan, "not finite"),
    ):
        with pytest.raises(RagbenchError, match=said):
            searcher.search(bad, 5)
    for k in (0, -1, True, 2.5, None):
        with pytest.raises(ConfigError, match="k is "):
            searcher.search(Q, k)
    with pytest.raises((ValueError, TypeError)):
        searcher.search([["a"] * D], 5)
    np.testing.assert_array_equal(
        searcher.search(Q.astype(">f8"), 5)[1], searcher.search(Q, 5)[1]
    )  # what can be converted is
    np.testing.assert_array_equal(searcher.search(np.asfortranarray(Q), 5)[1], searcher.search(Q, 5)[1])


@pytest.mark.parametrize("where", [None, [1, 2, 3]])
def test_no_queries_have_no_results(where):
    for searcher in (FLAT["l2"], ALL_LISTS["ip"], built(FaissFactory, VARIANTS[-2][1], "ip")):
        scores, rows = searcher.search(Q[:0], 4, where=where)
        assert (scores.shape, scores.dtype, rows.shape, rows.dtype) == ((0, 4), np.float32, (0, 4), np.int64)


@EACH
def test_more_results_than_vectors_are_filled_up(kind, fields, spec, told):
    searcher = build(kind, fields, "l2")
    most = searcher.search(Q, N + 5)
    assert most[1].shape == (30, N + 5)
    assert (most[1][:, N:] == -1).all()
    assert (np.isneginf(most[0]) == (most[1] < 0)).all()
    if "HNSW8," not in spec and "RFlat" not in spec:
        searcher.delete(np.arange(3, N))
        scores, rows = searcher.search(Q, 10)
        assert (np.sort(rows, axis=1)[:, -3:] <= 2).all()
        assert (rows[:, 3:] == -1).all()
        searcher.delete([0, 1, 2])
        assert (searcher.search(Q, 4)[1] == -1).all()
        assert (searcher.search(Q[:1], 4)[1] == -1).all()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 5),
    st.integers(1, 900),
    st.integers(-13, 18),
    st.booleans(),
    st.sampled_from(["f4", "f8"]),
)  # shorter rows lose digits in numpy's norm
def test_unit_rows_are_those_of_numpy_norm(seed, n, d, exponent, zero, dtype):
    a = (np.random.default_rng(seed).normal(size=(n, d)) * 10.0**exponent).astype(dtype)
    if zero:
        a[:1] = 0
    norms = np.linalg.norm(a, axis=1, keepdims=True)
    want = np.divide(a, norms, out=np.zeros_like(a), where=norms > 0)
    assert unit(a).dtype == want.dtype
    assert unit(a).tobytes() == want.tobytes()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 0.0])
@pytest.mark.parametrize("shape", [(1, 1), (1, 384), (40, 33), (900, 400)])
def test_one_value_that_is_not_finite_is_seen_wherever_it_stands(value, shape):
    rng = np.random.default_rng(3)
    for row, column in [
        (0, 0),
        (shape[0] - 1, shape[1] - 1),
        *zip(rng.integers(0, shape[0], 5), rng.integers(0, shape[1], 5)),
    ]:
        a = rng.normal(size=shape).astype(np.float32)
        a[row, column] = value
        if np.isfinite(value):
            assert len(Vectors(a)) == len(a)
        else:
            with pytest.raises(RagbenchError, match=f"row {row} has a value that is not finite"):
                Vectors(a)


def test_polysemous_training_changes_no_answer():
    index = faiss.index_factory(D, "PQ4x4")
    index.train(X)
    index.add(X)
    assert index.do_polysemous_training
    ours = FaissPQ(4, 4, metric="l2").build(X).search(Q, N)
    scores, rows = index.search(Q, N)
    np.testing.assert_allclose(-ours[0], scores, rtol=1e-5)
    assert all(np.isin(a[:5], b[s <= s[4] * 1.00001]).all() for a, b, s in zip(ours[1], rows, scores))


@EACH
def test_saved_opened_and_mapped_answers_are_the_same(kind, fields, spec, told, tmp_path):
    searcher = built(kind, fields, "ip")
    path = searcher.save(tmp_path / "i.faiss")
    for mapped in (True, False):
        again = open_index(path, mapped)
        for a, b in zip(searcher.search(Q, 7), again.search(Q, 7)):
            np.testing.assert_array_equal(a, b)
        assert (again.space, again.metric, again.query, again.built.config) == (
            searcher.space,
            "ip",
            searcher.query,
            repr(kind(**fields, metric="ip")),
        )
    assert verify_index(path) == []
    with pytest.raises(ConfigError, match="mapped"):
        open_index(path).add(X[:1])


def damages(data: bytes, rng) -> dict[str, bytes]:
    flipped = {
        f"flip {at}": data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :]
        for at in rng.integers(0, len(data), 25).tolist()
    }
    cuts = {f"cut {at}": data[:at] for at in (0, 1, 40, len(data) // 2, len(data) - 1)}
    zeros = {
        "zeros": bytes(len(data)),
        "half zeros": data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
        "more": data + b"x",
    }
    return flipped | cuts | zeros | {"noise": rng.bytes(len(data))}


@pytest.mark.faults
@EACH
def test_a_damaged_file_is_refused_and_harmless(kind, fields, spec, told, tmp_path):
    """Whatever is done to the file, `verify` and check='all' tell; what opening lets pass are stored numbers,
    which cannot hurt."""
    path = built(kind, fields, "l2").save(tmp_path / "i.faiss")
    good, codes, passed = path.read_bytes(), read_header(path)["codes"], []
    for name, bad in damages(good, np.random.default_rng(3)).items():
        path.write_bytes(bad)
        if bad == good:
            continue
        assert verify_index(path), name
        with pytest.raises(StoreError):
            open_index(path, check="all")
        try:
            opened = open_index(path)
        except StoreError:
            continue
        passed.append(name)
        changed = np.flatnonzero(np.frombuffer(bad, np.uint8) != np.frombuffer(good, np.uint8))
        assert all(any(a <= at < b for a, b in codes) for at in changed.tolist()), (
            f"{name}: a changed byte of the structure was let in"
        )
        rows = opened.search(Q, 10)[1]
        assert ((rows >= -1) & (rows < N)).all()
    assert not {n for n in passed if not n.startswith("flip")}, passed


@pytest.mark.faults
def test_a_damaged_header_is_refused(tmp_path):
    path = FaissFlat("l2").build(X).save(tmp_path / "i.faiss")
    good, begin = path.read_bytes(), read_header(path)["bytes"]
    for at in np.random.default_rng(5).integers(begin, len(good), 60).tolist():
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(StoreError):
            open_index(path)
    for end in (b"", b"[]", b"{}", b"null", good[begin:-5], b"\xff" * 50, bytes(200)):
        path.write_bytes(good[:begin] + end)
        with pytest.raises(StoreError):
            open_index(path)
        assert verify_index(path)


@pytest.mark.faults
def test_no_damage_ends_the_process(tmp_path):
    "The kinds whose files steer FAISS through memory, in a process of their own: it must end by itself."
    code = f"""
import sys, numpy as np
sys.path.insert(0, {str(tmp_path)!r})
from ragbench.base.errors import StoreError
from ragbench.index.faiss_base import open_index
from ragbench.index.faiss_variants import FaissFactory, FaissHNSW, FaissIVF
rng = np.random.default_rng(11); x = rng.normal(size=(1500, 32)).astype(np.float32); refused = 0
for i, config in enumerate([FaissHNSW(8), FaissIVF(20, 20), FaissFactory("IVF20,PQ16x4fs,RFlat", nprobe=20), FaissFactory("HNSW8_PQ8x4")]):
    path = config.build(x).save({str(tmp_path)!r} + f"/{{i}}.faiss"); good = path.read_bytes()
    for n in range(40):
        bad = bytearray(good); at = int(rng.integers(len(bad))); bad[at:at + 16] = rng.bytes(min(16, len(bad) - at)); path.write_bytes(bad)
        try: open_index(path).search(x[:5], 5)
        except StoreError: refused += 1
print("refused", refused)
"""  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > 40


def brute(x, queries, metric, k, allowed):
    a, b = (unit(x), unit(queries)) if metric == "cosine" else (x, queries)
    s = (
        -((b[:, None].astype(np.float64) - a[None]) ** 2).sum(-1)
        if metric == "l2"
        else b.astype(np.float64) @ a.T.astype(np.float64)
    )
    s[:, ~allowed] = -np.inf
    order = np.argsort(-s, axis=1, kind="stable")[:, :k]
    return np.where(np.take_along_axis(s, order, 1) > -np.inf, order, -1)


FLAT = {m: FaissFlat(m).build(X) for m in METRICS}
ALL_LISTS = {m: FaissIVF(10, 10, metric=m).build(X) for m in METRICS}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(METRICS),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 1, 3, 40, N]),
    st.integers(1, 60),
    st.booleans(),
)
def test_filters_are_brute_force_over_the_allowed(metric, seed, n, k, as_mask):
    rows = np.random.default_rng(seed).choice(N, n, replace=False)
    mask = np.isin(np.arange(N), rows)
    for searcher in (FLAT[metric], ALL_LISTS[metric]):
        np.testing.assert_array_equal(
            searcher.search(Q[:5], k, where=mask if as_mask else rows)[1], brute(X, Q[:5], metric, k, mask)
        )


@EACH
@pytest.mark.parametrize("n", [1, 12, 400])
def test_a_filter_is_kept_and_filled(kind, fields, spec, told, n):
    searcher, rows = built(kind, fields, "cosine"), np.random.default_rng(n).choice(N, n, replace=False)
    scores, got = searcher.search(Q, 20, where=rows)
    found = got >= 0
    assert np.isin(got[found], rows).all()
    assert (found.sum(axis=1) == min(20, n)).all()
    assert all(len(set(r[f])) == f.sum() for r, f in zip(got, found))
    assert (np.isneginf(scores) == ~found).all()


CAN_DELETE = [v for v in VARIANTS if v[0] is not FaissHNSW and "RFlat" not in v[2]]


@pytest.mark.parametrize(
    ("kind", "fields", "spec", "told"), CAN_DELETE, ids=[f"{k.__name__}-{s}" for k, _, s, _ in CAN_DELETE]
)
def test_deleting_and_adding_is_building_from_what_is_left(kind, fields, spec, told):
    rng, metric = np.random.default_rng(13), "l2"
    searcher = build(kind, fields, metric)
    gone = rng.choice(N, 200, replace=False)
    assert searcher.delete(gone[:120]) == 120
    assert searcher.delete(gone[60:]) == 80
    extra = rng.normal(size=(50, D)).astype(np.float32)
    if "fs" in spec:
        with pytest.raises(ConfigError, match="after a deletion"):
            searcher.add(extra)
        extra = extra[:0]
    else:
        assert searcher.add(extra).tolist() == list(range(N, N + 50))
        assert searcher.delete([N + 3]) == 1
    kept = np.setdiff1d(np.arange(N + len(extra)), [*gone, N + 3])
    index = raw(spec, "l2", told)  # trained on the same, filled with what is left
    index.reset()
    index.add(np.concatenate([X, extra])[kept])
    want, (scores, rows) = index.search(Q, 10), searcher.search(Q, 10)
    np.testing.assert_allclose(-scores, want[0], rtol=1e-5, atol=1e-4)
    if "PQ" not in spec:  # codes of few bits tie, and ties come in the order of storage
        np.testing.assert_array_equal(rows, kept[want[1]])
    assert not np.isin(rows, [*gone, N + 3]).any()
    assert np.isin(searcher.search(Q, 10, where=kept[:30])[1], [*kept[:30], -1]).all()


def test_faiss_still_misscores_what_is_added_to_fast_scan_codes_after_a_deletion():
    "The reason why `add` refuses it: when this fails, FAISS has been mended and the refusal can go."
    index = raw("IVF20,PQ16x4fs", "l2", {"nprobe": 20})
    clean = raw("IVF20,PQ16x4fs", "l2", {"nprobe": 20})
    clean.reset()
    index.remove_ids(np.arange(200))
    clean.add_with_ids(X[200:], np.arange(200, N))
    for i in (index, clean):
        i.add_with_ids(X[:200], np.arange(N, N + 200))
    assert not np.allclose(index.search(Q, 10)[0], clean.search(Q, 10)[0])


@pytest.mark.parametrize("spec", ["HNSW8,Flat", "PQ16x4fs,RFlat", "NSG8"])
def test_what_faiss_cannot_delete_is_said_and_nothing_changes(spec):
    searcher = FaissFactory(spec).build(X)
    before = searcher.search(Q, 5)
    with pytest.raises(ConfigError, match="cannot delete"):
        searcher.delete([1, 2])
    np.testing.assert_array_equal(searcher.search(Q, 5)[1], before[1])
    assert len(searcher) == N


def test_adding_keeps_the_answer_of_building_at_once():
    for metric in METRICS:
        parts = FaissFlat(metric).build(X[:900])
        parts.add(X[900:])
        for a, b in zip(parts.search(Q, 9), FLAT[metric].search(Q, 9)):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("n", [1, 3, 7])
def test_shards_and_lists_on_disk_change_nothing(metric, n, tmp_path):
    config = FaissIVF(20, 5, metric=metric)
    whole = config.build(X)
    want = whole.search(Q, 10)
    for searcher in (build_shards(config, X, n), lists_to_disk(config.build(X), tmp_path / f"{n}.ivfdata")):
        scores, rows = searcher.search(Q, 10)
        np.testing.assert_array_equal(rows, want[1])
        np.testing.assert_allclose(scores, want[0], rtol=1e-6, atol=1e-5)


def test_a_view_never_changes_another():
    one = FaissIVF(20, 1).build(X)
    two = one.tuned(nprobe=20)
    first = one.search(Q, 5)
    two.search(Q, 5)
    np.testing.assert_array_equal(one.search(Q, 5)[1], first[1])
    np.testing.assert_array_equal(two.search(Q, 5)[1], FLAT["cosine"].search(Q, 5)[1])
    assert two.index is one.index


def test_one_build_gives_the_answers_of_many():
    base = FaissIVF(20, 1).build(X)
    for nprobe in (1, 3, 20):
        config = FaissIVF(20, nprobe)
        assert config.build_part == FaissIVF(20).build_part
        np.testing.assert_array_equal(
            base.tuned(nprobe=nprobe).search(Q, 5)[1], config.build(X).search(Q, 5)[1]
        )


def test_too_little_training_is_warned_of_and_noted():
    with pytest.warns(UserWarning, match="FAISS advises at least 3,900"):
        searcher = FaissIVF(100, train_size=500).build(X)
    assert "500 training vectors for 100 inverted lists" in searcher.notes[0]
    with pytest.raises(RagbenchError, match="20 training vectors for 32 quantiser codes"):
        FaissPQ(8, 5).build(X[:20])


def test_a_sample_and_its_seed_decide_the_training():
    a, b, c = (FaissIVF(10, 1, train_size=600, seed=s).build(X) for s in (1, 1, 2))
    centres = [s.index.quantizer.reconstruct_n(0, 10) for s in (a, b, c)]
    np.testing.assert_array_equal(centres[0], centres[1])
    assert not np.array_equal(centres[0], centres[2])


@pytest.mark.parametrize(
    "spec", ["IVF10,Flat", "OPQ4_8,IVF5,PQ4x4", "RR32,PQ8x4", "HNSW8,Flat", "HNSW8_PQ8x4"]
)
def test_another_seed_reaches_every_random_part(spec):
    pytest.importorskip(
        "pymupdf.mupdf"
    )  # both libraries wrap C++ vectors, and the one imported last wraps those of the other
    a, b, c = (faiss.serialize_index(FaissFactory(spec, seed=s).build(X[:300]).index) for s in (5, 5, 6))
    np.testing.assert_array_equal(a, b)
    assert len(a) != len(c) or not np.array_equal(a, c)


@pytest.mark.parametrize("spec", ["NSG8", "LSH", "RQ4x4", "PCAR16,Flat"])
def test_a_seed_that_faiss_would_ignore_is_refused(spec):
    with pytest.raises(ConfigError, match="FAISS fixes that of"):
        FaissFactory(spec, seed=5, metric="l2").build(X)


def test_the_advice_reports_recall_on_queries_that_did_not_choose():
    """Half of the queries would be served well by anything, half by nothing: what chose and what reports must
    be told apart."""
    advice = advise(
        X,
        recall=0.9,
        k=5,
        metric="l2",
        queries=Q,
        sample=1000,
        configs=[FaissFactory("IVF20,Flat", metric="l2")],
    )
    assert advice.n_queries == len(Q) // 2
    order = np.random.default_rng(0).permutation(len(Q))
    truth, row = FaissFlat("l2").build(X), advice.table.iloc[1]
    view = advice.configs[1].build(X)
    for name, which in (("recall_chosen", order[::2]), ("recall", order[1::2])):
        want, got = truth.search(Q[which], 5)[1], view.search(Q[which], 5)[1]
        assert row[name] == pytest.approx(np.mean([len(set(a) & set(b)) / 5 for a, b in zip(want, got)]))


@EACH
@pytest.mark.skipif(gpu_count() == 0, reason="this FAISS sees no GPU")
def test_a_gpu_agrees_within_tolerance(kind, fields, spec, told, tmp_path):
    searcher = built(kind, fields, "l2")
    try:
        on_gpu = to_gpu(searcher)
    except ConfigError as e:
        pytest.skip(str(e))  # FAISS has no GPU version of this index
    scores, rows = searcher.search(Q, 10)
    ours = on_gpu.search(Q, 10)
    np.testing.assert_allclose(ours[0], scores, rtol=GPU_TOLERANCE, atol=GPU_TOLERANCE)
    assert (ours[1] == rows).mean() > 0.95
    assert on_gpu.nbytes == pytest.approx(searcher.nbytes, rel=0.1)
    if "nprobe" in searcher.query:
        np.testing.assert_allclose(
            on_gpu.tuned(nprobe=20).search(Q, 10)[0],
            searcher.tuned(nprobe=20).search(Q, 10)[0],
            rtol=GPU_TOLERANCE,
            atol=GPU_TOLERANCE,
        )
    assert np.isin(on_gpu.search(Q, 10, where=np.arange(500))[1], np.arange(-1, 500)).all()
    np.testing.assert_array_equal(open_index(on_gpu.save(tmp_path / "i.faiss")).search(Q, 10)[1], rows)


@pytest.mark.parametrize("config", [FaissFlat(), FaissIVF(10), FaissHNSW(8), FaissSQ()], ids=repr)
def test_spaces_never_mix(config):
    searcher = config.build(Vectors(unit(X), Space("minilm", "a")))
    for other in (Space("bge", "a"), Space("minilm", "b"), Space("minilm", "a", prompts=("query: ", ""))):
        with pytest.raises(RagbenchError, match="another space"):
            searcher.search(Vectors(unit(Q), other), 3)
    if not isinstance(config, FaissHNSW):
        with pytest.raises(RagbenchError, match="another space"):
            searcher.add(Vectors(unit(Q), Space("bge", "a")))


def test_configurations_make_themselves_again():
    for kind, fields, _, _ in VARIANTS:
        assert eval(repr(kind(**fields))) == kind(**fields)  # the point of a repr that is code
