"""Numbers for people are written by `ragbench.base.number_text` alone: what formats one elsewhere is found
here,
or is listed with its reason."""

import ast
import re
from pathlib import Path

import pytest

import ragbench

PACKAGE = Path(ragbench.__file__).parent
NUMERIC = re.compile(
    r"(?:[ +\-]?,?(?:\.\d+)?[eEfFgGn%]|[ +\-]?,d?|[<>=^]?\d*(?:,d?|,?(?:\.\d+)?[eEfFgGn%])|\+)$"
)  # in Python's format mini-language
FIELD = re.compile(r"\{[^{}:]*:([^{}]*)\}")  # of "…".format
PERCENT = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?[eEfFgG](?![a-z])")  # of "…" % …, and of logging

EXCEPTIONS = {  # (module, function, format): why it is not for people to read, or not typography
    ("base/number_text.py", "number", "form"): "the one place where a number becomes text",
    ("plot/chart.py", "_finish", ".0f"): "a width in CSS",
    ("system/explain.py", "row", ".2f"): "a width in CSS",
    ("report/html.py", "_template", ".3f"): "a share of a width in CSS",
    ("bench/result_tables.py", "quality_text", ".6f"): "CSV, which programs read",
    ("steps/boosts.py", "label", "+"): "part of a name: the fields as one types them",
}


def formats(tree):
    "`(function, format, line)` of every number that a module turns into text by itself."
    out = []

    def visit(node, name):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = node.name
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            spec = "".join(v.value for v in node.format_spec.values if isinstance(v, ast.Constant))
            if node.conversion == -1 and NUMERIC.fullmatch(spec):
                out.append((name, spec, node.lineno))
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id == "format" and len(node.args) == 2:
                spec = (
                    node.args[1].value
                    if isinstance(node.args[1], ast.Constant)
                    else ast.unparse(node.args[1])
                )
                if not isinstance(node.args[1], ast.Constant) or NUMERIC.fullmatch(spec):
                    out.append((name, spec, node.lineno))
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            out.extend(
                (name, spec, node.lineno) for spec in FIELD.findall(node.value) if NUMERIC.fullmatch(spec)
            )
            out.extend((name, spec, node.lineno) for spec in PERCENT.findall(node.value))
        for child in ast.iter_child_nodes(node):
            visit(child, name)

    visit(tree, "")
    return out


def modules():
    return [p for p in sorted(PACKAGE.rglob("*.py")) if p.name != "_modidx.py"]


@pytest.mark.parametrize("room", sorted({p.relative_to(PACKAGE).parts[0] for p in modules()}))
def test_no_module_writes_numbers_by_itself(room):
    """A format of numbers in an f-string, `format`, `str.format` or `%` outside `base.number_text` is
    a second typography."""
    strangers = []
    for path in modules():
        name = path.relative_to(PACKAGE).as_posix()
        if name.split("/")[0] != room:
            continue
        strangers += [
            f"{name}:{line} in {where or 'the module'}: {spec!r}"
            for where, spec, line in formats(ast.parse(path.read_text(encoding="utf-8")))
            if (name, where, spec) not in EXCEPTIONS
        ]
    assert not strangers, (
        "write these with ragbench.base.number_text, or list them in EXCEPTIONS with the reason:\n"
        + "\n".join(strangers)
    )


def test_every_exception_is_still_needed():
    there = {
        (p.relative_to(PACKAGE).as_posix(), where, spec)
        for p in modules()
        for where, spec, _ in formats(ast.parse(p.read_text(encoding="utf-8")))
    }
    assert set(EXCEPTIONS) <= there


@pytest.mark.parametrize(
    "code",
    [
        "f'{x:.3f}'",
        "f'{x:.2f} s'",
        "f'{n:,}'",
        "f'{x:.0%}'",
        "f'{p:.3g}'",
        "f'{x:g}'",
        "f'{x:+.1f}'",
        "f'{n:>7,}'",
        "f'{x:>10,.1f}'",
        "format(x, '.4f')",
        "'{:.1%}'.format(x)",
        "'%.2f' % x",
        "log.info('took %.1f s', x)",
        "f\"{', '.join(f'{x:.1f}' for x in xs)}\"",
        "frame.style.format({'a': '{:.3f}'})",
    ],
)
def test_each_way_of_writing_a_number_is_found(code):
    assert formats(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        "f'{x!r:.60}'",
        "f'{name:12}'",
        "f'{name:<22}'",
        "f'{n:04d}'",
        "f'{minutes:02}'",
        "f'{ord(c):04x}'",
        "f'{text:>{wide}}'",
        "number(x, '+.3f')",
        "'100 % done'",
        "'{name: found}'.format()",
        "'%d of %s'",
    ],
)
def test_names_cut_texts_and_columns_are_not_numbers(code):
    assert not formats(ast.parse(code))


def test_no_share_becomes_a_percentage_on_the_spot():
    """`100 * share` inside an f-string is `percent` written by hand, unless it stands for points, with their
    sign."""
    strangers = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr) and path.name != "numbers.py":
                strangers += [
                    f"{path.name}:{node.lineno}: {ast.unparse(v.value)}"
                    for v in node.values
                    if isinstance(v, ast.FormattedValue)
                    and re.search(r"\b100 \*", ast.unparse(v.value))
                    and "'+" not in ast.unparse(v.value)
                ]
    assert not strangers


def test_the_report_page_writes_numbers_in_one_place_too():
    "Its template has filters and its script one function; neither formats beside them."
    page, script = (
        (PACKAGE / "report" / name).read_text(encoding="utf-8") for name in ("report.html.j2", "report.js.j2")
    )
    assert not FIELD.search("".join(re.findall(r"['\"]\{:[^}]*\}['\"]", page)))
    others = [
        line
        for line in script.splitlines()
        if re.search(r"toFixed|toPrecision|toLocaleString", line) and not line.startswith("const three =")
    ]
    assert not others
