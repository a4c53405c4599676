"""One vocabulary of arguments: what CONTRIBUTING's table says holds in every public signature."""

import inspect
import re
from collections import defaultdict
from pathlib import Path

import pytest

import ragbench
from ragbench import RagbenchError

ROOT = Path(__file__).resolve().parents[1]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTION = GUIDE.split("## The words for arguments\n")[1].split("\n## ")[0]
WORDS, NOT_USED = SECTION.split("### Not used")
CALLS: list[tuple[str, object, list[inspect.Parameter]]] = []


def cells(text: str) -> list[list[str]]:
    "The cells of each row of the tables in a text, without heads."
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return [
        [c.strip() for c in re.split(r"\s*\|\s*", line.strip()[1:-1])]
        for line in text.splitlines()
        if line.startswith("| `")
    ] or rows


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


TABLE = {name: row for row in cells(WORDS) for name in words(row[0])}
SYNONYMS = {bad: words(row[1]) for row in cells(NOT_USED) for bad in words(row[0])}


def signatures():
    "(symbol, what is called, its parameters) of every public function, constructor and method."
    for name in ragbench.__all__:
        value = getattr(ragbench, name)
        if inspect.isfunction(value):
            yield name, name, value, list(inspect.signature(value).parameters.values())
        if not inspect.isclass(value) or issubclass(value, Warning) or getattr(value, "_is_protocol", False):
            continue
        if not issubclass(value, RagbenchError):
            yield name, name, value, list(inspect.signature(value).parameters.values())
        for method in dir(value):
            static = inspect.getattr_static(value, method)
            function = getattr(static, "__func__", static)
            if (method.startswith("_") and method != "__call__") or not inspect.isfunction(function):
                continue
            if (function.__module__ or "").startswith("ragbench"):
                given = list(inspect.signature(function).parameters.values())
                own = given if isinstance(static, staticmethod) else given[1:]
                yield name, f"{name}.{method}", function, own


SIGNATURES = list(signatures())
USED = defaultdict(dict)
for symbol, call, function, given in SIGNATURES:
    for parameter in given:
        USED[parameter.name].setdefault(symbol, []).append((call, function, parameter))


def test_an_argument_of_several_names_is_in_the_table():
    missing = {n: sorted(by) for n, by in USED.items() if len(by) > 1 and n not in TABLE}
    assert not missing


def test_the_table_has_no_argument_that_nobody_takes():
    assert [n for n in TABLE if n not in USED] == []


def documented(name: str, symbol: str, function: object) -> bool:
    "Whether a docstring names the argument, or a comment stands beside it."
    owner = getattr(ragbench, symbol)
    said = f"{inspect.getdoc(function) or ''}\n{inspect.getdoc(owner) or ''}"
    if re.search(rf"`[^`]*(?<!\w){name}(?!\w)[^`]*`", said):
        return True
    for source in map(inspect.getsource, (function, owner)):
        at = re.search(rf"^ *\*{{0,2}}{name}: [^#\n]*(\(\n(?:[^#\n)]*\n)*[^#\n]*)?#", source, re.MULTILINE)
        if at or re.search(rf"^ *# .*\n *\*{{0,2}}{name}: ", source, re.MULTILINE):
            return True
    return False


def test_an_argument_of_one_name_alone_is_documented():
    silent = [
        f"{call}({name})"
        for name, by in USED.items()
        if len(by) == 1 and name not in TABLE
        for symbol, calls in by.items()
        for call, function, _ in calls
        if not documented(name, symbol, function)
    ]
    assert not silent, "\n".join(silent)


def test_no_synonym_is_an_argument():
    assert {bad: (sorted(USED[bad]), SYNONYMS[bad]) for bad in SYNONYMS if bad in USED} == {}


@pytest.mark.parametrize("name", sorted(TABLE))
def test_an_argument_has_the_type_that_the_table_says(name: str):
    allowed = [*words(TABLE[name][3]), "Any", "_empty"]
    wrong = {
        call: str(parameter.annotation)
        for calls in USED[name].values()
        for call, _, parameter in calls
        if not any(a in str(parameter.annotation) for a in allowed)
    }
    assert not wrong


def positional(given: list[inspect.Parameter]) -> list[str]:
    return [p.name for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def test_a_corpus_stands_before_its_gold_and_a_gold_before_what_is_measured():
    wrong = []
    for _, call, _, given in SIGNATURES:
        names = positional(given)
        for first, then in (
            ("corpus", "gold"),
            ("gold", "ranking"),
            ("gold", "rankings"),
            ("gold", "runs"),
        ):
            if first in names and then in names and names.index(then) != names.index(first) + 1:
                wrong.append(f"{call}({', '.join(names)})")
        if {"scores", "rows"} <= set(names) and names.index("rows") != names.index("scores") + 1:
            wrong.append(f"{call}({', '.join(names)})")
    assert not wrong


def test_every_index_takes_the_same_metrics_and_thresholds():
    indexes = [getattr(ragbench, n) for n in ragbench.__all__ if n.startswith("Faiss") or n.endswith("Index")]
    assert len(indexes) == 11
    for index in indexes:
        metric = inspect.signature(index).parameters["metric"]
        assert metric.default == "cosine", index
        required = {"factory": "Flat"} if index is ragbench.FaissFactory else {}
        for value in ("cosine", "ip", "l2"):
            assert index(**required, metric=value).metric == value
        with pytest.raises(RagbenchError):
            index(**required, metric="euclidean")
        if not index.__name__.startswith("Faiss"):
            assert inspect.signature(index).parameters["min_score"].default is None


def test_the_package_knows_the_words_that_are_not_used():
    from ragbench.base.arguments import INSTEAD

    assert {bad: list(good) for bad, good in INSTEAD.items()} == SYNONYMS
