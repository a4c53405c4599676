#!/usr/bin/env python3
"""Mutation testing: changes one operator or number of a module at a time, in memory, runs the module's
chapter and its tests (`TESTS`), and says which changes nothing noticed.

    python tools/mutants.py core.spans                  every mutant of a module
    python tools/mutants.py store.artifacts --most 60   a seeded sample of so many
    python tools/mutants.py store.artifacts --only 3 8  the mutants of these numbers, which it prints

Every mutant runs in a process of its own, forked after the libraries are imported and before the package is.
No file is changed, what a mutant writes lies in a temporary folder, and what it starts is ended with it. The
first test that fails kills it; one that runs too long counts as killed too, and is counted apart. Processes
that a test starts by command line import the package as it is, so a test that does nothing else kills none.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import importlib.util
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The tests of a module, beside its chapter and the edges that import it: files of tests/, and which of their
# tests (as pytest's -k). What takes seconds and says nothing of its own is left out.
GOLD = (
    "test_laws_gold.py",
    "halves or weighs or refused or names or must_agree or named_place or moved_word",
)
ALONE = ("", "")
CODE = (
    "test_laws_fingerprint.py",
    "reaches or comments or docstring or constant or copied or ones_own or be_seen or keys or holds",
)
FUSED = "definition or missing or refused or one_by_one or as_each_query or does_not_matter"
TESTS: dict[str, tuple[str, str]] = {
    "core.spans": ALONE,
    "core.gold_records": GOLD,
    "core.evidence_classes": GOLD,
    "core.gold": GOLD,
    "evaluate.judged_units": ALONE,
    "evaluate.evidence_metrics": ALONE,
    "stats.intervals": ALONE,
    "stats.paired_tests": ALONE,
    "stats.corrections": ALONE,
    "stats.clusters": ALONE,
    "stats.power": ALONE,
    "stats.slices": ALONE,
    "stats.selection": ALONE,
    "stats.agreement": ALONE,
    "fusion.fusion": ("test_fusion.py", FUSED),
    "fusion.ranx_fusion": ("test_fusion.py", f"{FUSED} or duels or every_method"),
    "store.artifacts": ("test_store_damage.py", "kind or packed or swept or clear or listed or no_folder"),
    "store.fingerprint": CODE,
    "store.source_code": CODE,
    "store.session_code": CODE,
}
COMPARED = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
COMPUTED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


def without_effect(tree: ast.AST) -> set[int]:
    """Nodes whose change does nothing: types, which nobody evaluates, and the −1 of a shape, for which any
    number below zero will do."""
    outer = []
    for node in ast.walk(tree):
        outer += [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "reshape"
        ):
            outer += [size for size in node.args if isinstance(size, ast.UnaryOp)]
    return {id(inner) for node in outer if node is not None for inner in ast.walk(node)}


def sites(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that can be changed."""
    idle = without_effect(tree)
    for node in ast.walk(tree):
        if id(node) in idle:
            continue
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield node
        elif isinstance(node, ast.BinOp) and type(node.op) in COMPUTED:
            yield node
        elif isinstance(node, ast.BoolOp):
            yield node
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield node


def change(node: ast.AST) -> None:
    """The other operator, or one more."""
    if isinstance(node, ast.Compare):
        node.ops = [COMPARED[type(node.ops[0])]()]
    elif isinstance(node, ast.BinOp):
        node.op = COMPUTED[type(node.op)]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.Constant):
        node.value += 1


def chapter(module: str) -> tuple[list[str], Path]:
    """The examples and tests of a module's notebook, and the folder in which they run."""
    room, name = module.split(".")
    folder = next((ROOT / "nbs").glob(f"*_{room}"))
    path = next(p for p in folder.glob("*.ipynb") if re.fullmatch(rf"\d+[a-z]?_{name}", p.stem))
    cells = [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]
    sources = ["".join(c["source"]) for c in cells]
    return [s for s in sources if not re.match(r"# ?\| ?(export|default_exp|slow|eval: false)", s)], folder


class Changed(SourceFileLoader):
    """Loads one module of the package from a changed tree; lines keep their numbers."""

    def __init__(self, name: str, path: str, tree: ast.Module):
        super().__init__(name, path)
        self.tree = tree

    def get_code(self, fullname):
        return compile(self.tree, self.path, "exec")

    def find_spec(self, fullname, path=None, target=None):
        return importlib.util.spec_from_loader(fullname, self) if fullname == self.name else None


def edges_of(module: str) -> list[str]:
    """The tests of edges that name the module."""
    texts = {
        path.name: path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "tests").glob("test_edges_*.py"))
    }
    return [name for name, text in texts.items() if f"ragbench.{module} " in text]


def files_of(module: str) -> list[str]:
    return [*edges_of(module), *TESTS[module][0].split()]


def forget_the_package(module: str) -> None:
    """Take the package and its tests out of memory; the libraries that they import stay."""
    names = {name.removesuffix(".py") for name in files_of(module)}
    for name in list(sys.modules):
        if name.split(".")[0] in {"ragbench", *names} or name == "conftest":
            del sys.modules[name]


def run_chapter(module: str) -> None:
    """Run the examples of a module's chapter, without what they export, with the names of the module,
    as `__main__`, which a notebook is."""
    cells, folder = chapter(module)
    names = dict(vars(importlib.import_module(f"ragbench.{module}"))) | {"__name__": "__main__"}
    os.chdir(folder)
    for cell in cells:
        exec(compile(cell, "cell", "exec"), names)
    os.chdir(ROOT)


def run_tests(module: str, temporary: Path) -> int:
    """The chapter, then pytest: 0 if all passed."""
    import pytest
    from hypothesis import settings

    settings.register_profile("mutants", derandomize=True, database=None, deadline=None)
    settings.load_profile("mutants")
    run_chapter(module)
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:timeout", "-p", "no:xdist", "-o", "addopts="]
    options += ["-m", "not system and not slow", f"--basetemp={temporary / 'pytest'}"]
    names, words = TESTS[module]
    chosen = [(edges_of(module), ""), (names.split(), words)]
    for files, choice in chosen:
        paths = [str(ROOT / "tests" / name) for name in files]
        if paths and (code := int(pytest.main([*options, *(["-k", choice] if choice else []), *paths]))):
            return code
    return 0


def outcome(tree: ast.Module, module: str, seconds: int, show: bool = False) -> str:
    """What became of a mutant: killed, survived or timeout."""
    temporary = Path(tempfile.mkdtemp(prefix="mutant-"))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
            if not show:
                silence = os.open(os.devnull, os.O_WRONLY)
                os.dup2(silence, 1)
                os.dup2(silence, 2)
            forget_the_package(module)
            path = str(ROOT / "ragbench" / f"{module.replace('.', '/')}.py")
            sys.meta_path.insert(0, Changed(f"ragbench.{module}", path, tree))
            code = run_tests(module, temporary)
        except BaseException:
            if show:
                import traceback

                traceback.print_exc()
        finally:
            os._exit(code)
    return end(child, seconds, temporary)


def end(child: int, seconds: int, temporary: Path) -> str:
    """Wait for a mutant, then end what it started and remove what it wrote."""
    deadline = time.monotonic() + seconds
    status, late = None, False
    while status is None:
        pid, code = os.waitpid(child, os.WNOHANG)
        if pid:
            status = code
        elif time.monotonic() > deadline and not late:
            late = True
            os.killpg(child, signal.SIGKILL)
        else:
            time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    shutil.rmtree(temporary, ignore_errors=True)
    return "timeout" if late else "killed" if status else "survived"


def preload(module: str) -> None:
    """Import what the package and the tests of a module import, once for all mutants."""
    sys.path.insert(0, str(ROOT / "tests"))
    sys.path.insert(0, str(ROOT))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run_chapter(module)  # what is compiled on first use is compiled once
    for name in files_of(module):
        importlib.import_module(name.removesuffix(".py"))


def where(tree: ast.Module, line: int) -> str:
    """The function or class around a line."""
    scopes = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    within = [n.name for n in scopes if n.lineno <= line <= n.end_lineno]
    return within[-1] if within else "module"


def try_mutants(
    module: str, most: int, seconds: int, tell: Callable[[str], None], only: list[int]
) -> Counter[str]:
    """Try the mutants of a module, `most` of them in a seeded order; tell of each that survives."""
    preload(module)
    path = ROOT / "ragbench" / f"{module.replace('.', '/')}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    began = time.monotonic()
    if outcome(tree, module, 600) != "survived":
        raise SystemExit(f"{module}: its chapter or tests fail without any change")
    whole = time.monotonic() - began
    tell(f"{module}: {whole:.0f} s unchanged")
    order = list(range(len(list(sites(tree)))))
    random.Random(0).shuffle(order)
    counts: Counter[str] = Counter()
    for i in only or order[:most]:
        mutant = copy.deepcopy(tree)
        node = list(sites(mutant))[i]
        before, line = ast.unparse(node), f"{node.lineno}:{node.col_offset}"
        change(node)
        fate = outcome(ast.fix_missing_locations(mutant), module, max(seconds, int(3 * whole)))
        counts[fate] += 1
        if fate != "killed":
            changed = f"{before} -> {ast.unparse(node)}"
            tell(f"  {fate} {i}: {where(tree, node.lineno)}, line {line}: {changed}")
    tried = f"{len(order)} mutants, {sum(counts.values())} tried"
    tell(f"{module}: {tried}, {dict(counts)}")
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "modules", nargs="+", choices=list(TESTS), help="such as core.spans", metavar="module"
    )
    parser.add_argument("--most", type=int, default=10**6, help="a seeded sample of so many mutants")
    parser.add_argument(
        "--seconds", type=int, default=20, help="for each; at least three times the tests' own time"
    )
    parser.add_argument(
        "--only", type=int, nargs="*", default=[], help="mutants by the numbers that were printed"
    )
    parser.add_argument(
        "--show", action="store_true", help="run the tests on the unchanged module and show them"
    )
    args = parser.parse_args()
    os.environ |= {"IN_TEST": "1", "MPLBACKEND": "agg", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    if args.show:
        for module in args.modules:
            preload(module)
            tree = ast.parse(
                (ROOT / "ragbench" / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
            )
            print(outcome(tree, module, 600, show=True))
        return 0
    survived = 0
    for module in args.modules:
        counts = try_mutants(module, args.most, args.seconds, lambda line: print(line, flush=True), args.only)
        survived += counts["survived"]
    return min(survived, 1)


if __name__ == "__main__":
    sys.exit(main())
