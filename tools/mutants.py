#!/usr/bin/env python3
"""Mutation testing of a module by its chapter and tests/test_edges_of_kernels.py: changes one operator or
number at a time, in memory, and says which changes nothing noticed.

    python tools/mutants.py ragbench.core.spans --most 60

Every mutant runs in a process of its own, forked, so that imports are paid once; no file is changed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import json
import os
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EDGES = ROOT / "tests" / "test_edges_of_kernels.py"
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


def sites(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that can be changed."""
    for node in ast.walk(tree):
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
    _, room, name = module.split(".")
    folder = next((ROOT / "nbs").glob(f"*_{room}"))
    path = next(p for p in folder.glob("*.ipynb") if re.fullmatch(rf"\d+[a-z]?_{name}", p.stem))
    cells = [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]
    sources = ["".join(c["source"]) for c in cells]
    return [s for s in sources if not re.match(r"# ?\| ?(export|default_exp|slow)", s)], folder


def install(module, source: str) -> None:
    """Put the changed code in the module's place, also where other modules have taken names from it."""
    before = dict(vars(module))
    exec(compile(source, module.__file__, "exec"), vars(module))
    plain = (int, float, str, tuple, type(None))
    for other in list(sys.modules.values()):
        if getattr(other, "__name__", "").startswith("ragbench.") and other is not module:
            for name, value in list(vars(other).items()):
                if name in before and value is before[name] and not isinstance(value, plain):
                    setattr(other, name, vars(module)[name])


def outcome(module, source: str, cells: list[str], folder: Path, seconds: int) -> str:
    """What became of a mutant: killed, survived or timeout."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(seconds)
            os.chdir(folder)
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            install(module, source)
            names = dict(vars(module)) | {"__name__": "chapter"}
            for cell in cells:
                exec(compile(cell, "cell", "exec"), names)
            tests: dict = {"__name__": "edges"}
            exec(compile(EDGES.read_text(encoding="utf-8"), str(EDGES), "exec"), tests)
            for name, test in list(tests.items()):
                if name.startswith("test_"):
                    test()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return "timeout" if os.WIFSIGNALED(status) else "killed" if os.WEXITSTATUS(status) else "survived"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("module", help="such as ragbench.core.spans")
    parser.add_argument("--most", type=int, default=10**6, help="a seeded sample of so many mutants")
    parser.add_argument("--seconds", type=int, default=30, help="for each")
    args = parser.parse_args()
    os.environ["IN_TEST"] = "1"
    module = importlib.import_module(args.module)
    source = Path(module.__file__).read_text(encoding="utf-8")
    cells, folder = chapter(args.module)
    if outcome(module, source, cells, folder, 300) != "survived":
        print("the chapter or the tests fail without any change")
        return 1
    tree = ast.parse(source)
    order = list(range(len(list(sites(tree)))))
    random.Random(0).shuffle(order)
    counts: Counter[str] = Counter()
    for i in order[: args.most]:
        mutant = copy.deepcopy(tree)
        node = list(sites(mutant))[i]
        before, line = ast.unparse(node), node.lineno
        change(node)
        fate = outcome(module, ast.unparse(mutant), cells, folder, args.seconds)
        counts[fate] += 1
        if fate == "survived":
            scopes = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
            within = [n.name for n in scopes if n.lineno <= line <= n.end_lineno]
            print(f"  {within[-1] if within else 'module'}: {before} -> {ast.unparse(node)}", flush=True)
    print(f"{args.module}: {sum(counts.values())} of {len(order)} tried, {dict(counts)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
