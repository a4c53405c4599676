"""What an error message or a docstring advises exists: names can be imported as written, extras be installed,
calls take the arguments that they are shown with."""

import ast
import builtins
import importlib
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import ragbench
import ragbench.testing

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ragbench"
# Words with two capitals that are names of other people's things.
FOREIGN = set(
    (
        "ActualText BCa DataFrame FastEmbed GPUs GitHub IPv4 IPv6 IVFFlat IndexShards JSONPath LaTeX "
        "LangChain LlamaIndex MuPDF NULs NumPy PQ64x4fs PostgreSQL PyMuPDF PyTerrier "
        "QRelsCorrectedforTRECeval RFlat RaBitQ SQLite SQuAD SciPy SentenceTransformer SimpleQueue URLs "
        "XQuAD "
    ).split()
)
# What a part of one's own is called with, and a rule written like a call.
PROTOCOLS = {"metric", "headers", "search", "covers"}
CAMEL = re.compile(r"(?<![\w./…-])[A-Z][a-z0-9]*[A-Z]\w*[a-z]\w*(?![\w…])")
CALL = re.compile(r"(?<![\w.…])([A-Za-z_]\w*)\(")


def text_of(node: ast.AST) -> str:
    "A string as it is written; what is put in when it is shown is '…'."
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(v) if isinstance(v, ast.Constant) else "…" for v in node.values)
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    if isinstance(node, ast.IfExp):
        return text_of(node.body) + " " + text_of(node.orelse)
    return ""


def errors_of(tree: ast.AST) -> Iterator[str]:
    "What happened and what to do, of each error of ours that a module makes."
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id.endswith(("Error", "Refused", "Refusal")):
                parts = [
                    *node.args[:1],
                    *node.args[2:],
                    *(k.value for k in node.keywords if k.arg != "where"),
                ]
                yield from filter(None, map(text_of, parts))


def docstrings_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
            said := ast.get_docstring(node)
        ):
            yield re.sub(r"(?m)^(>>>|\.\.\.) .*", "", said)  # examples are run by themselves


PATHS = [p for p in sorted(PACKAGE.rglob("*.py")) if p.name != "_modidx.py"]
MODULES = {p.relative_to(ROOT): ast.parse(p.read_text(encoding="utf-8")) for p in PATHS}
ERRORS = [(path, said) for path, tree in MODULES.items() for said in errors_of(tree)]
DOCSTRINGS = [(path, said) for path, tree in MODULES.items() for said in docstrings_of(tree)]
PUBLIC = {n: getattr(ragbench, n) for n in ragbench.__all__}
METHODS: dict[str, list] = {}
for owner in PUBLIC.values():
    for method in dir(owner) if isinstance(owner, type) else ():
        if not method.startswith("_") and inspect.isfunction(getattr(owner, method)):
            METHODS.setdefault(method, []).append(getattr(owner, method))


def calls_in(said: str) -> Iterator[tuple[str, str]]:
    "Name and arguments of each call that a sentence shows; '' where the brackets do not close."
    for match in CALL.finditer(said):
        depth, end = 1, match.end()
        while depth and end < len(said):
            depth += {"(": 1, ")": -1}.get(said[end], 0)
            end += 1
        yield match[1], said[match.end() : end - 1] if not depth else ""


def refused(call, inside: str) -> str:
    "Why these arguments cannot be given, or ''."
    try:
        node = ast.parse(f"f({re.sub('…', '...', inside)})", mode="eval").body
        given = [k.arg for k in node.keywords if k.arg]
    except SyntaxError:
        given = re.findall(r"(?:^|[,(\s])([a-z_]\w*)=", inside)
    known = inspect.signature(call).parameters
    if any(p.kind is p.VAR_KEYWORD for p in known.values()):
        return ""
    return ", ".join(g for g in given if g not in known)


def wrong_call(name: str, inside: str) -> str:
    if name in PUBLIC:
        why = refused(PUBLIC[name], inside)
        return f"{name} takes no {why}" if why else ""
    if name in METHODS:
        why = [refused(m, inside) for m in METHODS[name]]
        return f"{name} takes no {why[0]}" if all(why) else ""
    return "" if name in PROTOCOLS else f"{name} is not public"


def test_a_name_in_an_error_message_is_public():
    bad = [
        f"{path}: {name} in {said!r}"
        for path, said in ERRORS
        for name in CAMEL.findall(said)
        if name not in PUBLIC and name not in FOREIGN and not hasattr(builtins, name)
    ]
    assert not bad, "\n".join(bad)


def test_a_call_in_an_error_message_is_public_and_takes_its_arguments():
    bad = [
        f"{path}: {why}, in {said!r}"
        for path, said in ERRORS
        for name, inside in calls_in(said)
        if not re.search(rf"from ragbench[.\w]*\b{name}\b", said) and (why := wrong_call(name, inside))
    ]
    assert not bad, "\n".join(bad)


def test_a_name_in_a_docstring_is_public_or_of_its_module():
    bad = []
    for path, said in DOCSTRINGS:
        for name in CAMEL.findall(said):
            if (
                name in PUBLIC
                or name in ragbench.testing.__all__
                or name in FOREIGN
                or hasattr(builtins, name)
            ):
                continue
            if not hasattr(importlib.import_module(".".join(path.with_suffix("").parts)), name):
                bad.append(f"{path}: {name} in {said[:80]!r}")
    assert not bad, "\n".join(bad)


def test_a_public_call_in_a_docstring_takes_its_arguments():
    bad = [
        f"{path}: {why}, in {said[:80]!r}"
        for path, said in DOCSTRINGS
        for name, inside in calls_in(said)
        if name in PUBLIC and (why := wrong_call(name, inside))
    ]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("kind", ["error messages", "docstrings"])
def test_modules_and_imports_that_are_named_exist(kind: str):
    bad = []
    for path, said in ERRORS if kind == "error messages" else DOCSTRINGS:
        for dotted in re.findall(r"(?<![\w/\".])ragbench(?:\.\w+)+", said):
            parts = dotted.split(".")
            for cut in range(len(parts), 0, -1):
                try:
                    found = importlib.import_module(".".join(parts[:cut]))
                    break
                except ModuleNotFoundError:
                    continue
            for part in parts[cut:]:
                found = getattr(found, part, None)
            if found is None:
                bad.append(f"{path}: {dotted}")
        for module, names in re.findall(r"from (ragbench[\w.]*) import (\w+(?:, \w+)*)", said):
            for name in names.split(", "):
                if not hasattr(importlib.import_module(module), name):
                    bad.append(f"{path}: from {module} import {name}")
    assert not bad, "\n".join(bad)


def test_extras_that_are_named_can_be_installed():
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    named = {
        (str(path), extra)
        for path, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for extra in re.findall(r"ragbench\[([\w-]+)\]", node.value)
    } | {
        (str(path), text_of(node.args[1]))
        for path, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "MissingExtra"
        and len(node.args) > 1
        and "…" not in text_of(node.args[1])
    }
    assert len(named) > 10
    assert not {n for n in named if n[1] and n[1] not in extras}


def test_the_list_of_foreign_words_has_none_too_many():
    said = " ".join(s for _, s in [*ERRORS, *DOCSTRINGS])
    assert [w for w in FOREIGN if w not in said] == []
