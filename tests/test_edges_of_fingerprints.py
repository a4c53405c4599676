"""Edges of fingerprints: what a class, its base, its reducer and its modules add to its name."""

import dataclasses
import enum
import warnings

import pytest

from ragbench.store.fingerprint import FingerprintWarning, _imported, canonical, fingerprint


class Kind(enum.Enum):
    ONE = 1


@dataclasses.dataclass
class Listed:
    libraries: tuple | None = ("numpy",)


class First:
    def step(self):
        return 1


class Second:
    def step(self):
        return 2


class Made:
    """Writes itself as a call; what it counts is not in it."""

    def __init__(self, maker, count=0):
        self.maker, self.count = maker, count

    def __reduce__(self):
        return self.maker, (1,)


class Stated:
    def __init__(self, size, count):
        self.size, self.count = size, count

    def __getstate__(self):
        return {"size": self.size}


class Holder:
    letters = (x for x in "ab")


def looks_up(name):
    return globals()[name]


def test_a_name_has_its_module_and_none_is_none():
    assert canonical(Kind.ONE)["enum"].startswith(__name__)
    assert canonical(Listed(None))["fields"] == {"libraries": None}


def test_libraries_of_an_instance_are_no_libraries_of_the_class():
    assert "libraries" not in canonical(Listed())


def test_the_base_of_a_class_counts():
    one, other = (type("Child", (base,), {}) for base in (First, Second))
    assert fingerprint(one) != fingerprint(other)


def test_what_an_object_writes_of_itself_is_what_it_holds():
    assert fingerprint(Made(int)) != fingerprint(Made(float))
    assert fingerprint(Made(int, 3)) == fingerprint(Made(int, 4))
    assert fingerprint(Stated(1, 3)) == fingerprint(Stated(1, 4)) != fingerprint(Stated(2, 3))


def test_what_a_class_holds_and_nobody_sees_is_said_with_its_name():
    with pytest.warns(FingerprintWarning, match="^Holder: "):
        fingerprint(Holder)


def test_a_function_in_a_file_may_look_names_up_in_it():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fingerprint(looks_up)


def test_a_dictionary_that_holds_itself_ends():
    endless: dict = {}
    endless["again"] = endless
    assert fingerprint(endless) == fingerprint(endless)


def test_modules_of_libraries_are_not_followed_and_those_beside_are(tmp_path, monkeypatch):
    assert _imported("json", 0, {}) is None
    (tmp_path / "package_of_ones_own").mkdir()
    for name in ("__init__", "part"):
        (tmp_path / "package_of_ones_own" / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    space = {"__package__": "package_of_ones_own"}
    assert _imported("part", 1, space).__name__ == "package_of_ones_own.part"
