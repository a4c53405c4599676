"""The types: a wrong call is found before it runs, and every public signature says what it takes."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import ragbench

ROOT = Path(__file__).resolve().parents[1]


def mypy_output(module: Path) -> str:
    """What mypy prints about a module of a user's, under our configuration."""
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(module)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout


def test_wrong_calls_are_refused_and_right_ones_are_not(tmp_path):
    """A user's module against the package: the types that ship have to know every public name."""
    module = tmp_path / "user.py"
    module.write_text(
        "from ragbench import Corpus, Document, Gold, TokenChunker, __version__\n"
        "corpus = Corpus([Document(id='a', text='The pump.')])\n"
        "gold = Gold.from_spans([])\n"
        "print(__version__, gold.save('gold.jsonl', corpus), Gold.load('gold.jsonl').to_qrels)\n"
        "TokenChunker(256, overlapp=0)\n"  # line 5: no such argument
        "gold.to_qrel(corpus)\n"  # line 6: no such method
        "Gold.load(3)\n"  # line 7: not a path
        "Document('a')\n"  # line 8: no text
    )
    lines = [line for line in mypy_output(module).splitlines() if "error:" in line]
    assert [line.split(":")[1] for line in lines] == ["5", "6", "7", "8"], lines
    assert [line.rpartition("[")[2] for line in lines] == [
        "call-arg]",
        "attr-defined]",
        "arg-type]",
        "call-arg]",
    ]


def own_functions(thing: object) -> dict[str, object]:
    """The functions of ours that a public name stands for: itself, or its public methods and `__init__`."""
    if not inspect.isclass(thing):
        return {thing.__name__: thing} if inspect.isfunction(thing) else {}
    functions = {}
    for name, member in inspect.getmembers(thing):
        function = inspect.unwrap(member.fget if isinstance(member, property) else member)
        function = getattr(function, "__func__", function)
        if inspect.isfunction(function) and function.__module__.startswith("ragbench") and name[0] != "_":
            functions[f"{thing.__name__}.{name}"] = function
    return functions


@pytest.mark.parametrize("name", sorted(ragbench.__all__))
def test_public_signatures_are_complete(name):
    missing = []
    for function_name, function in own_functions(getattr(ragbench, name)).items():
        signature = inspect.signature(function)
        missing += [
            f"{function_name}({p.name})"
            for p in signature.parameters.values()
            if p.annotation is p.empty and p.name not in ("self", "cls")
        ]
        if signature.return_annotation is signature.empty:
            missing.append(f"{function_name}() ->")
    assert not missing
