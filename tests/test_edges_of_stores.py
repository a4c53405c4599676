"""Edges of the store: what is written comes back the same, what is damaged is said and made again, what is no
store is left alone, and what was paid for stays."""

import json
import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from ragbench.base.errors import ConfigError, StoreError
from ragbench.store.artifacts import (
    MARK,
    DamagedArtifact,
    Packed,
    Store,
    Usage,
    artifacts,
    as_store,
    clear,
    damage,
    in_use,
    libraries,
    pack,
    script_line,
    unpack,
    usage,
    verify,
    versions,
)

KEY, OTHER = "0" * 32, "a" * 32


@pytest.mark.parametrize(
    ("array", "small"),
    [
        (np.array([0, 255], np.int64), "|u1"),
        (np.array([-1, 3], np.int64), "<i2"),
        (np.array([[0, 70_000]], np.int64), "<u4"),
        (np.array([0.5, np.nan, -np.inf]), "<f4"),
        (np.array([0.1]), "<f8"),
        (np.array([0.5], np.float32), "<f4"),
        (np.empty((0, 3), np.int64), "<i8"),
        (np.empty(0, np.float64), "<f4"),
        (np.array([True, False]), "|b1"),
    ],
)
def test_a_packed_array_is_narrow_on_disk_and_the_same_when_read(array, small):
    parts = pack(array)
    assert parts["types"].tolist() == [array.dtype.str, small]
    assert parts["planes"].shape == (np.dtype(small).itemsize, array.size)
    read = unpack(parts)
    np.testing.assert_array_equal(read, array)
    assert (read.dtype, read.shape, read.flags.writeable) == (array.dtype, array.shape, False)


def test_an_artifact_gives_back_its_arrays_and_values(tmp_path):
    store = Store(tmp_path / "store")
    payload = {"a": np.arange(3), "small": Packed(np.arange(4)), "note": {"ä": [1, None]}}
    made = store.put("run", KEY, payload, {"seconds": 2})
    read = store.get("run", KEY)
    assert read.array("a").tolist() == [0, 1, 2]
    assert read.array("small").tolist() == [0, 1, 2, 3]
    assert read.value("note") == {"ä": [1, None]}
    assert not read.array("a").flags.writeable
    assert sorted(read.manifest["files"]) == ["a.npy", "note.json", "small.npz"]
    assert (read.manifest["kind"], read.manifest["key"], read.manifest["seconds"]) == ("run", KEY, 2)
    assert (made.path, (tmp_path / "store" / MARK).is_file()) == (read.path, True)
    for missing in ("b", "note"):
        with pytest.raises(StoreError, match=f"the array '{missing}' cannot be read"):
            read.array(missing)
    with pytest.raises(StoreError, match="the value 'a' cannot be read"):
        read.value("a")


def test_a_sound_artifact_is_left_as_it_is(tmp_path):
    store = Store(tmp_path)
    store.put("run", KEY, {"v": 1})
    assert store.put("run", KEY, {"v": 2}).value("v") == 1
    assert store.get("run", OTHER) is None


def test_a_recipe_is_built_once(tmp_path, caplog):
    store, built = Store(tmp_path), []
    caplog.set_level("INFO", "ragbench.store")
    for _ in range(2):
        made = store.make("sums", {"of": [1]}, lambda: built.append(1) or {"v": 7})
    assert (made.value("v"), len(built)) == (7, 1)
    assert re.fullmatch(r"made sums [0-9a-f]{8} in [0-9.,]+ s", caplog.messages[0])
    assert made.manifest["recipe"] == {"of": [1]}
    assert made.manifest["versions"]["numpy"] == np.__version__
    assert 0 <= made.manifest["seconds"] < 60
    store.make("sums", {"of": [2]}, lambda: built.append(1) or {"v": 8})
    assert len(built) == 2


def test_a_step_that_asks_for_itself_is_refused_and_its_lock_is_free_again(tmp_path):
    store = Store(tmp_path)
    with (
        store.locked("run", KEY),
        pytest.raises(StoreError, match="the step 'run' needs itself") as told,
        store.locked("run", KEY),
    ):
        pass
    assert ", line " in str(told.value)
    with store.locked("run", KEY), store.locked("run", OTHER):
        pass


def spoil(path, how: str) -> str:
    """Damage an artifact; what is said about it."""
    manifest = path / "manifest.json"
    if how == "longer":
        (path / "v.json").write_text("[1, 2, 3]")
        return "v.json has 9 bytes instead of 1"
    if how == "another value":
        (path / "v.json").write_text("2")
        return "the checksum of v.json differs"
    if how == "missing":
        (path / "v.json").unlink()
        return "v.json is missing"
    if how == "no manifest":
        manifest.unlink()
        return "there is no manifest"
    if how == "no JSON":
        manifest.write_text("{")
        return "the manifest is not JSON"
    if how == "a list":
        manifest.write_text("[]")
        return "the manifest's checksum differs"
    if how == "changed":
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"seconds": 9}))
        return "the manifest's checksum differs"
    path.rename(path.with_name(OTHER))
    return f"it is the manifest of run/{KEY}"


DAMAGES = ["longer", "another value", "missing", "no manifest", "no JSON", "a list", "changed", "moved"]


@pytest.mark.parametrize("how", DAMAGES)
def test_each_damage_is_said_in_its_words_and_made_again(tmp_path, how):
    store = Store(tmp_path)
    path = store.put("run", KEY, {"v": 1}, {"seconds": 1}).path
    assert store.verify() == []
    said, key = spoil(path, how), OTHER if how == "moved" else KEY
    assert verify(store) == [f"{path.with_name(key)}: {said}"]
    with pytest.warns(DamagedArtifact, match=said):
        assert store.get("run", key) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.get("run", key, warn=False) is None
        assert store.put("run", key, {"v": 5}).value("v") == 5
    assert store.verify() == []


def test_the_warning_points_at_the_line_that_asked(tmp_path):
    store = Store(tmp_path)
    spoil(store.make("sums", {"of": [1]}, lambda: {"v": 1}).path, "missing")
    with pytest.warns(DamagedArtifact) as told:
        store.make("sums", {"of": [1]}, lambda: {"v": 1})
    assert [Path(w.filename).name for w in told] == [Path(__file__).name]


def test_damage_names_every_file(tmp_path):
    made = Store(tmp_path).put("run", KEY, {"v": 1, "w": 2, "x": 3})
    (made.path / "v.json").unlink()
    (made.path / "w.json").write_text("[]")
    assert damage(made.path, made.manifest) == ["v.json is missing", "w.json has 2 bytes instead of 1"]


def filled(tmp_path) -> Store:
    store = Store(tmp_path / "store")
    store.put("run", KEY, {"v": "x" * 1000})
    store.put("run", OTHER, {"v": 1})
    store.put("reply", KEY, {"v": 1})
    (store.root / "notes").mkdir()
    (store.root / "notes" / "mine.txt").write_text("mine")
    return store


def test_usage_counts_artifacts_and_bytes_the_largest_kind_first(tmp_path):
    store = filled(tmp_path)
    sizes = {
        kind: sum(f.stat().st_size for f in (store.root / kind).rglob("*") if f.is_file())
        for kind in ("run", "reply")
    }
    counted = store.usage()
    assert list(counted.kinds.items()) == [("run", (2, sizes["run"])), ("reply", (1, sizes["reply"]))]
    assert counted.nbytes == sum(sizes.values())
    assert [p.name for p in artifacts(store)] == [KEY, KEY, OTHER]


def test_bytes_are_shown_in_megabytes(tmp_path):
    shown = repr(Usage(tmp_path, {"run": (1200, 2_500_000)}))
    assert shown.splitlines()[0] == f"{tmp_path}: 2.5 MB"
    assert shown.splitlines()[1].split() == ["run", "1,200", "2.5", "MB"]
    large = repr(Usage(tmp_path, {"run": (1, 2_500_000_000_000)}))
    assert large.count("2,500,000.0 MB") == 2


def test_clear_leaves_what_was_paid_for_and_what_is_not_its_own(tmp_path):
    store = filled(tmp_path)
    before = store.usage()
    with store.locked("run", KEY):
        pass
    assert clear(store) == before.kinds["run"][1]
    assert list(store.usage().kinds) == ["reply"]
    assert not (store.root / "run").exists()
    assert list((store.root / "locks").iterdir()) == []
    assert (store.root / "notes" / "mine.txt").read_text() == "mine"
    assert store.clear("reply") == before.kinds["reply"][1]
    assert clear(store) == 0


def test_clear_of_one_kind_leaves_locks_and_strangers_in_its_folder(tmp_path):
    store = filled(tmp_path)
    (store.root / "run" / "mine.txt").write_text("mine")
    with store.locked("run", KEY):
        pass
    store.clear("run")
    assert [p.name for p in (store.root / "run").iterdir()] == ["mine.txt"]
    assert len(list((store.root / "locks").iterdir())) == 1
    with pytest.raises(StoreError, match="there is no kind 'run'"):
        store.clear("run", "reply")


def test_nothing_is_cleared_while_the_store_is_in_use(tmp_path):
    store = filled(tmp_path)
    with store.in_use(), pytest.raises(StoreError, match="another process is working with the store"):
        store.clear()
    assert store.clear() > 0


def test_a_folder_that_is_no_store_is_refused(tmp_path):
    with pytest.raises(StoreError, match="there is no store here"):
        usage(Store(tmp_path / "nowhere"))
    (tmp_path / "run" / KEY).mkdir(parents=True)
    with pytest.raises(StoreError, match="this folder is no store"):
        clear(Store(tmp_path))
    assert (tmp_path / "run" / KEY).is_dir()
    (tmp_path / MARK).write_text("{}")
    assert usage(Store(tmp_path)).kinds == {"run": (1, 0)}


def test_an_empty_folder_is_an_empty_store_and_one_that_nobody_marked_is_known_by_its_artifacts(tmp_path):
    assert usage(Store(tmp_path)).kinds == {}
    (tmp_path / ".hidden").write_text("")
    (tmp_path / "locks").mkdir()
    assert usage(Store(tmp_path)).kinds == {}
    store = Store(tmp_path / "old")
    store.put("run", KEY, {"v": 1})
    (store.root / MARK).unlink()
    assert list(usage(store).kinds) == ["run"]


@pytest.mark.parametrize(
    ("kind", "name", "is_store"),
    [("embeddings", "sqlite", True), ("run", "sqlite", False), ("embeddings", "txt", False)],
)
def test_vectors_alone_are_a_store_too(tmp_path, kind, name, is_store):
    (tmp_path / kind).mkdir()
    (tmp_path / kind / f"{KEY}.{name}").write_text("")
    if is_store:
        assert usage(Store(tmp_path)).kinds == {kind: (1, 0)}
    else:
        with pytest.raises(StoreError, match="this folder is no store"):
            usage(Store(tmp_path))


def test_what_dead_processes_left_is_swept_and_what_the_living_write_is_not(tmp_path):
    store = Store(tmp_path)
    store.put("run", KEY, {"v": 1})
    dead, living = store.root / "run" / f".{KEY}.x.tmp", store.root / "run" / f".{OTHER}.{os.getpid()}.tmp"
    living.mkdir()
    with in_use(store):
        assert living.exists()
    assert store.usage().kinds["run"][0] == 1
    assert not (store.root / "in-use.lock").stat().st_mode & 0o111
    assert not dead.exists()


def test_a_store_is_given_as_one_or_as_its_folder(tmp_path):
    store = Store(tmp_path)
    assert as_store(store, "bench") is store
    assert as_store(str(tmp_path), "bench") == store
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="store is a file"):
        as_store(tmp_path / "file", "bench")
    for bad in ("", 3, None):
        with pytest.raises(ConfigError, match="store is"):
            as_store(bad, "bench")


def test_versions_are_those_of_what_is_installed():
    assert libraries("numpy", "no-such-library") == {"numpy": np.__version__}
    assert {"python", "sqlite", "numpy"} <= set(versions())


def test_the_line_that_asked_for_the_work_is_a_file_and_its_line():
    path, _, line = script_line().rpartition(", line ")
    assert path and int(line) > 0
