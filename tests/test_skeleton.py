"""The skeleton: packaging, pins, the order of rooms, and an import that costs nothing."""

import ast
import configparser
import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import check  # noqa: E402
import pages  # noqa: E402
import readme  # noqa: E402
import rooms  # noqa: E402


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def settings() -> configparser.SectionProxy:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "settings.ini")
    return parser["DEFAULT"]


# --- rooms --------------------------------------------------------------------------------------------------


def room_problems(tmp_path: Path, module: str, source: str) -> list[str]:
    """What the check says of a package with this one module."""
    path = tmp_path / "ragbench" / module
    path.parent.mkdir(parents=True)
    path.write_text(source)
    return list(check.module_problems(tmp_path / "ragbench"))


@pytest.mark.parametrize(
    "source",
    [
        "from ragbench.bench.runner import bench",
        "import ragbench.bench.runner as r",
        "from ..bench.runner import bench",
        "from .. import bench",
        "from ragbench import bench",
        "def f():\n    from ..bench import runner\n    return runner",
        "class C:\n    def m(self):\n        import ragbench.bench\n",
        "import ragbench as rb\nx = rb.bench.runner",
        "import importlib\nm = importlib.import_module('ragbench.bench.runner')",
        "import importlib\nm = importlib.import_module('..bench', __package__)",
        "try:\n    from ..bench import runner\nexcept ImportError:\n    runner = None",
    ],
)
def test_import_from_a_later_room_is_found(tmp_path, source):
    [problem] = room_problems(tmp_path, "chunk/tokens.py", source)
    assert "ragbench/chunk/tokens.py" in problem
    assert "later room" in problem


@pytest.mark.parametrize(
    "source",
    [
        "from ragbench.core.spans import union",
        "from ..core.spans import union",
        "from . import recursive",
        "from .recursive import RecursiveChunker",
        "import bench\nfrom bench import system",  # not ours
        "from ragbench import __version__",
        "import ragbench\nv = ragbench.__version__",
        "text = 'from ..bench import runner'",
    ],
)
def test_import_from_an_earlier_room_passes(tmp_path, source):
    assert room_problems(tmp_path, "chunk/tokens.py", source) == []


def test_import_from_the_package_root_is_found(tmp_path):
    [problem] = room_problems(tmp_path, "apps/cli.py", "from ragbench import Dense")
    assert "name the module" in problem


def test_knowledge_does_not_know_bench(tmp_path):
    [problem] = room_problems(
        tmp_path, "knowledge/store.py", "def f():\n    from ..bench.runner import bench\n"
    )
    assert "must not know 'bench'" in problem


def test_relative_import_in_a_room_init_counts_from_the_room(tmp_path):
    assert (
        room_problems(tmp_path / "a", "core/__init__.py", "from .bench import x") == []
    )  # ragbench.core.bench
    assert len(room_problems(tmp_path / "b", "core/__init__.py", "from ..bench import x")) == 1


def test_module_outside_every_room_is_found(tmp_path):
    [problem] = room_problems(tmp_path, "utils.py", "")
    assert "is in no room" in problem


def notebook(path: Path, *code: str, title: str = "# T\n\n> t.") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [{"cell_type": "markdown", "id": "a", "metadata": {}, "source": title}]
    cells += [
        {
            "cell_type": "code",
            "id": f"c{i}",
            "metadata": {},
            "source": s,
            "outputs": [],
            "execution_count": None,
        }
        for i, s in enumerate(code)
    ]
    path.write_text(
        json.dumps(
            {
                "cells": cells,
                "nbformat": 4,
                "nbformat_minor": 5,
                "metadata": {
                    "kernelspec": {"name": "python3", "display_name": "python3", "language": "python"}
                },
            }
        )
    )


def test_folders_follow_the_rooms(tmp_path):
    notebook(tmp_path / "nbs/00_core/00_spans.ipynb", "#| default_exp core.spans")
    notebook(tmp_path / "nbs/03_chunk/00_tokens.ipynb", "#| default_exp chunk.tokens")
    notebook(tmp_path / "nbs/tutorials/first.ipynb", "1 + 1")
    assert list(check.folder_problems(tmp_path)) == []
    notebook(tmp_path / "nbs/04_ingest/00_pdf.ipynb", "#| default_exp ingest.pdf")
    assert any("do not follow the rooms" in p for p in check.folder_problems(tmp_path))


@pytest.mark.parametrize(
    ("source", "deep"),
    [
        ("from ragbench import bench, testing", False),
        ("from ragbench.bench.runner import bench", True),
        ("import ragbench.bench.runner as runner", True),
        ("def later():\n    from ragbench.testing import World", True),
    ],
)
def test_a_finding_imports_from_the_package_alone(tmp_path, source, deep):
    notebook(tmp_path / "nbs/findings/claim.ipynb", source)
    assert bool(list(check.finding_problems(tmp_path))) == deep


@pytest.mark.parametrize(
    ("path", "exports"),
    [
        ("00_core/00_spans.ipynb", "core.other"),
        ("00_core/00_spans.ipynb", "chunk.spans"),
        ("tutorials/spans.ipynb", "core.spans"),
    ],
)
def test_a_notebook_exports_the_module_of_its_own_name(tmp_path, path, exports):
    notebook(tmp_path / "nbs" / path, f"#| default_exp {exports}")
    assert any(f"exports {exports}" in p for p in check.folder_problems(tmp_path))


# --- notebooks and README -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"nbformat_minor": 4}, "not 4.5"),
        ({"metadata": {}}, "kernelspec"),
        ({"cells": [{"cell_type": "markdown", "source": ["# T\n", "\n", "> t."]}]}, "without an id"),
        ({"cells": [{"cell_type": "markdown", "id": "a", "source": "# T"}]}, "subtitle"),
        ({"cells": []}, "subtitle"),
    ],
)
def test_a_notebook_that_lacks_something_is_found(tmp_path, change, says):
    notebook(tmp_path / "n.ipynb", "1")
    nb = json.loads((tmp_path / "n.ipynb").read_text())
    assert list(check.notebook_problems(nb)) == []
    [problem] = check.notebook_problems(nb | change)
    assert says in problem


def copy_of_skeleton(tmp_path: Path) -> Path:
    """A repository with one notebook, exported."""
    (tmp_path / "settings.ini").write_text((ROOT / "settings.ini").read_text())
    notebook(
        tmp_path / "nbs/00_core/00_answer.ipynb",
        "#| default_exp core.answer",
        "#| export\ndef answer(): return 42",
    )
    assert check.nbdev("from nbdev.clean import nbdev_clean; nbdev_clean.__wrapped__()", tmp_path) == ""
    assert check.nbdev("from nbdev.doclinks import nbdev_export; nbdev_export.__wrapped__()", tmp_path) == ""
    assert "return 42" in (tmp_path / "ragbench/core/answer.py").read_text()
    return tmp_path


def test_modules_out_of_date_are_found(tmp_path):
    root = copy_of_skeleton(tmp_path)
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    assert list(check.check_export(root)) == []
    assert list(check.check_clean(root)) == []
    assert {p: p.read_bytes() for p in root.rglob("*") if p.is_file()} == before, "a check changed the tree"

    module = root / "ragbench/core/answer.py"
    module.write_text(module.read_text().replace("42", "43"))
    assert any("answer.py" in p and "differ" in p for p in check.check_export(root))
    (root / "ragbench/core/gone.py").write_text(f"{check.GENERATED} ../../nbs/00_core/00_gone.ipynb.\n")
    assert any("gone.py" in p and "delete" in p for p in check.check_export(root))


@pytest.mark.parametrize(
    "text",
    [
        "/home/ann/x.py",
        "/Users/ann/x.py",
        "/opt/env/lib/python3.11/site-packages/tqdm/auto.py:21: TqdmWarning",
    ],
)
def test_a_path_of_somebodys_machine_in_an_output_is_found(text):
    cell = {
        "cell_type": "code",
        "id": "b",
        "metadata": {},
        "source": "1",
        "execution_count": None,
        "outputs": [{"output_type": "stream", "name": "stderr", "text": [text]}],
    }
    nb = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"kernelspec": {"name": "python3"}},
        "cells": [{"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# T\n\n> t."}, cell],
    }
    [problem] = check.notebook_problems(nb)
    assert "path of somebody's machine" in problem
    assert list(check.notebook_problems(nb | {"cells": [nb["cells"][0], cell | {"outputs": []}]})) == []


def test_a_notebook_with_execution_counts_is_not_clean(tmp_path):
    root = copy_of_skeleton(tmp_path)
    path = root / "nbs/00_core/00_answer.ipynb"
    path.write_text(path.read_text().replace('"execution_count": null', '"execution_count": 7'))
    assert any("not clean" in p for p in check.check_clean(root))


def test_readme_from_a_notebook(tmp_path):
    notebook(
        tmp_path / "nbs/index.ipynb",
        "#| hide\nsecret = 1",
        "#| eval: false\nprint('shown')",
        title=(
            "# T\n\n> t.\n\n![p](images/p.png) [n](tutorials/first.ipynb) [l](../LICENSE)"
            ' [w](https://example.org/x) [a](#top)\n\n<img src="images/q.png">'
        ),
    )
    nb = json.loads((tmp_path / "nbs/index.ipynb").read_text())
    nb["cells"][-1]["outputs"] = [
        {"output_type": "stream", "name": "stdout", "text": "a\n```\n"},
        {
            "output_type": "execute_result",
            "execution_count": None,
            "metadata": {},
            "data": {"text/plain": "b", "text/html": "<style>x</style>"},
        },
    ]
    (tmp_path / "nbs/index.ipynb").write_text(json.dumps(nb))
    text = readme.render(tmp_path / "nbs/index.ipynb")
    assert (
        "![p](nbs/images/p.png) [n](nbs/tutorials/first.ipynb) [l](LICENSE) [w](https://example.org/x)"
        " [a](#top)" in text
    )
    assert '<img src="nbs/images/q.png">' in text
    assert "secret" not in text
    assert "#|" not in text
    assert "<style>" not in text
    assert "```python\nprint('shown')\n```\n\n````text\na\n```\nb\n````\n" in text


def test_the_sidebar_lists_every_notebook_that_exists(tmp_path):
    notebook(tmp_path / "nbs/index.ipynb")
    notebook(tmp_path / "nbs/00_core/00_spans.ipynb")
    notebook(tmp_path / "nbs/tutorials/first.ipynb")
    notebook(tmp_path / "nbs/_draft/x.ipynb")
    assert re.findall(r"- (\S+\.ipynb)", check.sidebar(tmp_path)) == [
        "index.ipynb",
        "tutorials/first.ipynb",
        "00_core/00_spans.ipynb",
    ]


# --- the table of rooms and the picture ---------------------------------------------------------------------


def house(tmp_path: Path) -> Path:
    """A repository with two rooms, a table of them and a picture."""
    for module, source in {
        "core/documents.py": "class Corpus: ...",
        "chunk/token.py": "class TokenChunker: ...\n\ndef cut(): ...",
    }.items():
        path = tmp_path / "ragbench" / module
        path.parent.mkdir(parents=True)
        path.write_text(source)
    (tmp_path / "ragbench/__init__.pyi").write_text(
        "from .core.documents import Corpus as Corpus\n"
        "from .chunk.token import TokenChunker as TokenChunker, cut as cut\n"
    )
    (tmp_path / "CONTRIBUTING.md").write_text(
        "## Rooms\n\n| room | what |\n|---|---|\n| `core` | values |\n| `chunk` | chunkers |\n\n"
        "## Next\n\n| `k` | x |\n"
    )
    (tmp_path / rooms.PICTURE).parent.mkdir(parents=True)
    (tmp_path / rooms.PICTURE).write_text(rooms.draw(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("| `chunk` | chunkers |\n", ""),
        ("| `core` | values |\n| `chunk` | chunkers |\n", "| `chunk` | chunkers |\n| `core` | values |\n"),
        ("## Next", "| `search` | gone |\n\n## Next"),
        ("| `chunk` | chunkers |\n", "| `chunk` | chunkers |\n| `search` | gone |\n"),
    ],
)
def test_the_table_of_rooms_names_the_rooms_that_exist(tmp_path, old, new):
    root = house(tmp_path)
    assert list(check.table_problems(root)) == []
    contributing = root / "CONTRIBUTING.md"
    contributing.write_text(contributing.read_text().replace(old, new, 1))
    [problem] = check.table_problems(root)
    assert "table of rooms" in problem


def test_the_picture_shows_the_public_names_of_now(tmp_path):
    root = house(tmp_path)
    assert list(rooms.picture_problems(root)) == []
    picture = (root / rooms.PICTURE).read_text()
    assert all(f">{name}<" in picture for name in ("Corpus", "TokenChunker", "cut()"))
    stub = root / "ragbench/__init__.pyi"
    stub.write_text(stub.read_text().replace(", cut as cut", ""))
    [problem] = rooms.picture_problems(root)
    assert "python tools/rooms.py" in problem


def test_a_public_name_without_a_place_in_the_picture_is_found(tmp_path):
    root = house(tmp_path)
    stub = root / "ragbench/__init__.pyi"
    stub.write_text(stub.read_text() + "from .core.news import News as News\n")
    (root / "ragbench/core/news.py").write_text("class News: ...")
    [problem] = rooms.picture_problems(root)
    assert "ragbench.core.news" in problem


def test_every_public_name_is_in_the_picture_once():
    import ragbench

    shown = re.findall(r'class="name"[^>]*>([^<]*)<', (ROOT / rooms.PICTURE).read_text())
    words = [word.removesuffix("()") for line in shown for word in line.split()]
    assert sorted(w for w in words if w in ragbench.__all__) == sorted(ragbench.__all__)


# --- the pages of the site ----------------------------------------------------------------------------------


def site(tmp_path: Path, *cells: str | tuple[str, str]) -> Path:
    """A repository whose one chapter has these cells after its title: code, or ("markdown", text)."""
    (tmp_path / "settings.ini").write_text((ROOT / "settings.ini").read_text())
    notebook(tmp_path / "nbs/00_core/00_answer.ipynb", *["1"] * (3 + len(cells)))
    path = tmp_path / "nbs/00_core/00_answer.ipynb"
    nb = json.loads(path.read_text())
    first = "#| export\nfrom __future__ import annotations"
    written = ["#| default_exp core.answer", ("markdown", "What is asked."), first, *cells]
    for cell, new in zip(nb["cells"][1:], written, strict=True):
        kind, cell["source"] = new if isinstance(new, tuple) else ("code", new)
        if kind == "markdown":
            cell["cell_type"] = "markdown"
            del cell["outputs"], cell["execution_count"]
    path.write_text(json.dumps(nb))
    (tmp_path / "ragbench").mkdir()
    (tmp_path / "ragbench/__init__.pyi").write_text("")
    assert check.nbdev("from nbdev.doclinks import nbdev_export; nbdev_export.__wrapped__()", tmp_path) == ""
    (tmp_path / "ragbench/__init__.pyi").write_text("from .core.answer import Answer, answer\n")
    return tmp_path


ANSWER = """#| export
class Answer:
    "One."

    def value(self) -> int:
        return 42
"""
FUNCTION = "#| export\ndef answer(overlap: int = 0) -> Answer:\n    return Answer()"
HELPER = "#| export\ndef overlap(): ...\n\ndef _unit(): ..."


def test_a_chapter_that_the_site_can_show_has_no_problem(tmp_path):
    root = site(
        tmp_path,
        ANSWER,
        FUNCTION,
        ("markdown", "`Answer`, [back](../00_core/00_answer.ipynb#more).\n\n## More"),
        "import math",
        "math.pi",
    )
    assert list(check.check_docs(root)) == []


BROKEN = {
    "imports": {
        "#| export\nimport math\nPI = math.pi": "`import math`: imports and other code",
        "import cmath\ncmath.pi": "`import cmath`: imports and other code",
        "def f():\n    import math\n    return math.pi": "`def f():`: imports and other code",
    },
    "annotations": {"#| export\ndef early(x: Late): ...": "show_doc(early)`: NameError: name 'Late'"},
    "signatures": {
        "#| export\nfrom typing import TYPE_CHECKING": "",
        "#| export\nif TYPE_CHECKING:\n    from decimal import Decimal": "",
        "#| export\nclass Sum:\n    def add(self, x: Decimal): ...": "the signature of Sum.add",
    },
    "errors": {"#| export\nraise ValueError('no')": "ValueError: no"},
    "links": {
        ("markdown", "[a](../00_core/01_gone.ipynb)"): "../00_core/01_gone.ipynb leads to no page",
        ("markdown", "[a](../00_core/00_answer.ipynb#gone)"): "00_answer.ipynb#gone leads to no heading",
        ("markdown", "[a](../core/answer.html)"): "../core/answer.html leads to no file",
        ("markdown", "[a](#lost)"): "the link #lost leads to no heading",
        ("markdown", "![a](../images/gone.svg)"): "the picture ../images/gone.svg leads to no file",
        ("markdown", '<img src="gone.png" alt="a">'): "the picture gone.png leads to no file",
        ("markdown", "![](https://example.org/x.png)"): "x.png has no alternative text",
        ("markdown", "## Answer\n\nAs it is."): "'answer' has the anchor of a symbol",
    },
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_the_site_could_not_show_is_found(tmp_path, kind):
    problems = list(check.check_docs(site(tmp_path, ANSWER, FUNCTION, *BROKEN[kind])))
    assert all(p.startswith("nbs/00_core/00_answer.ipynb: ") for p in problems), problems
    for says in filter(None, BROKEN[kind].values()):
        assert any(says in p for p in problems), (says, problems)


def test_a_page_without_an_introduction_is_found(tmp_path):
    root = site(tmp_path, ANSWER, FUNCTION)
    path = root / "nbs/00_core/00_answer.ipynb"
    path.write_text(path.read_text().replace("What is asked.", "## What"))
    [problem] = check.check_docs(root)
    assert "begins without a sentence" in problem


def test_only_public_names_become_links(tmp_path):
    symbols = pages.public_symbols(site(tmp_path, ANSWER, FUNCTION, HELPER))
    page = pages.PurePosixPath("13_system/00_x.ipynb")
    target = "../00_core/00_answer.ipynb"
    text = "`Answer` `Answer.value` `Answer.nothing` `answer` `answer()` `overlap` `overlap()` `_unit` `Answer(1)`"  # noqa: E501
    assert pages.link_names(text, page, symbols) == (
        f"[`Answer`]({target}#answer) [`Answer.value`]({target}#answer) `Answer.nothing` `answer`"
        f" [`answer()`]({target}#answer) `overlap` `overlap()` `_unit` `Answer(1)`"
    )
    for left in ("```\n`Answer`\n```", "    `Answer`", "# `Answer`", "[`Answer`](x.ipynb)", "``Answer``"):
        assert pages.link_names(left, page, symbols) == left


def test_a_docstring_reads_on_the_site_as_it_is_meant():
    shown = (
        "### System\n\n```python\ndef System()\n```\n\n*What is cut, and*\nwhat finds it.\n\n"
        ">>> System(1)\n'1'\n\nChapter: https://example.org/system.html\n\nMore."
    )
    assert pages.plain_docstring(shown) == (
        "### System\n\n```python\ndef System()\n```\n\nWhat is cut, and\nwhat finds it.\n\n"
        "\n```python\n>>> System(1)\n'1'\n```\n\nMore."
    )


def test_the_site_is_made_with_these_links():
    assert settings()["procs"] == "pages:PublicLinks"
    assert settings()["skip_procs"] == "add_links"
    assert "PYTHONPATH=tools nbdev_docs" in (ROOT / "Makefile").read_text()


# --- stored outputs -----------------------------------------------------------------------------------------


def run_outputs(root: Path, path: Path, **env: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "tools/outputs.py"), "--path", str(path)]
    env = {k: v for k, v in os.environ.items() if k != "IN_TEST"} | {"PYTHONPATH": str(root)} | env
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)


def test_an_output_older_than_its_code_is_found_and_can_be_stored_anew(tmp_path):
    root = copy_of_skeleton(tmp_path)
    path = root / "nbs/00_core/00_answer.ipynb"
    sources = [
        "#| default_exp core.answer",
        "#| export\ndef answer(): return 43",
        "print(answer())",
        "answer()",
        "#| varies\nprint(answer())",
        "print('took 1.25 s, at 0x7f00aa11')",
        "#| eval: false\nprint(answer())",
        "#| slow\nprint(answer())",
    ]
    notebook(path, *sources)
    nb = json.loads(path.read_text())
    printed = [{"output_type": "stream", "name": "stdout", "text": ["42\n"]}]
    shown = [
        {
            "output_type": "execute_result",
            "execution_count": None,
            "metadata": {},
            "data": {"text/plain": ["42"]},
        }
    ]
    timed = [{"output_type": "stream", "name": "stdout", "text": ["took 0.75 s, at 0x7f00bb22\n"]}]
    stored = [[], [], printed, shown, printed, timed, printed, printed]
    for cell, outputs in zip(nb["cells"][1:], stored, strict=True):
        cell["outputs"] = outputs
    path.write_text(json.dumps(nb))

    done = run_outputs(root, path)
    assert done.returncode == 1
    assert re.findall(r"cell (\w+): the stored output is not that of the code", done.stderr) == ["c2", "c3"]
    assert "-42\n+43" in done.stderr
    assert run_outputs(root, path, WRITE="1").returncode == 0
    after = [c["outputs"] for c in json.loads(path.read_text())["cells"][1:]]
    assert "43" in str(after[2]) and "43" in str(after[3])
    assert after[4:] == stored[4:]
    assert run_outputs(root, path).returncode == 0


def test_make_test_compares_stored_outputs():
    rules = (ROOT / "Makefile").read_text().split("\ntest-all:")[0]
    assert "tools/outputs.py" in rules
    assert "tools/check.py docs" in rules


# --- packaging ----------------------------------------------------------------------------------------------


def test_every_direct_dependency_is_pinned(project):
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line := line.split("#")[0].strip():
            requirement = Requirement(line)
            pins[canonicalize_name(requirement.name)] = requirement.specifier
    direct = [Requirement(d) for d in project["dependencies"]]
    direct += [Requirement(d) for extra in project["optional-dependencies"].values() for d in extra]
    for requirement in direct:
        name = canonicalize_name(requirement.name)
        if name == "ragbench":  # an extra that takes in others
            continue
        assert name in pins, f"constraints.txt has no pin for {name}"
        [pin] = pins[name]
        assert pin.operator == "==", f"{name}{pin} is not an exact pin"
        assert requirement.specifier.contains(pin.version), (
            f"{name}{pin} contradicts pyproject.toml's {requirement}"
        )
    assert str(pins["torch"]) == "==2.13.0"


def test_the_version_has_one_home():
    import ragbench

    version = settings()["version"]
    assert ragbench.__version__ == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_entry_point_exists(project):
    module, attribute = project["scripts"]["ragbench"].split(":")
    assert callable(getattr(importlib.import_module(module), attribute))


def build_wheel(out: Path, *command: str) -> list[str]:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as z:
        z.extractall(out / "content")
        return z.namelist()


def assert_complete(names: list[str], out: Path) -> None:
    """What a user needs, no more, and it works from where it was unpacked."""
    modules = {
        str(p.relative_to(ROOT)) for p in (ROOT / "ragbench").rglob("*.py*") if p.suffix in {".py", ".pyi"}
    }
    assert modules <= set(names)
    assert {"ragbench/__init__.pyi", "ragbench/py.typed"} <= set(names)
    shipped = {n.split("/")[2] for n in names if n.startswith("ragbench/_datasets/")}
    assert shipped == {p.parent.name for p in (ROOT / "datasets").glob("*/dataset.toml")} != set()
    for dataset in shipped:
        assert f"ragbench/_datasets/{dataset}/dataset.toml" in names
        assert any(n.startswith(f"ragbench/_datasets/{dataset}/files/") for n in names)
    assert not [n for n in names if n.startswith(("datasets/", "tests/", "nbs/", "tools/"))]
    assert not [n for n in names if "/_datasets/" in n and n.endswith(".py")], (
        "build scripts stay in the repository"
    )
    code = "import ragbench, pathlib; print(pathlib.Path(ragbench.__file__).parent, len(ragbench.__all__))"
    env = os.environ | {"PYTHONPATH": str(out / "content")}
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=out, env=env, capture_output=True, text=True, check=True
    )
    assert said.stdout.split()[0] == str(out / "content" / "ragbench")


def test_the_wheel_is_complete(tmp_path):
    names = build_wheel(tmp_path, "hatchling", "build", "-t", "wheel", "-d", str(tmp_path))
    assert_complete(names, tmp_path)


@pytest.mark.slow
def test_the_wheel_of_the_sdist_is_complete(tmp_path):
    """As a release is made: in an environment of its own, the wheel from the source distribution."""
    names = build_wheel(tmp_path, "build", "--outdir", str(tmp_path), str(ROOT))
    assert_complete(names, tmp_path)


# --- import -------------------------------------------------------------------------------------------------

HEAVY = [
    "torch",
    "transformers",
    "sentence_transformers",
    "faiss",
    "ranx",
    "numba",
    "pandas",
    "pyarrow",
    "scipy",
    "sklearn",
    "matplotlib",
    "openai",
    "pymupdf",
    "docx",
    "tiktoken",
    "nbdev",
    "fastcore",
    "IPython",
]


def test_import_loads_nothing_heavy():
    code = f"import sys, ragbench; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_does_not_import_its_development_tools():
    for path in (ROOT / "ragbench").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else ([node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else [])
            )
            bad = [m for m in modules if m.split(".")[0] in {"fastcore", "nbdev", "execnb", "pytest"}]
            assert not bad, f"{path.relative_to(ROOT)} imports {bad}"


def test_every_public_name_resolves_and_is_in_the_stub():
    import ragbench

    stub = ast.parse((ROOT / "ragbench/__init__.pyi").read_text())
    imported = {
        a.asname or a.name for node in stub.body if isinstance(node, ast.ImportFrom) for a in node.names
    }
    assert ragbench.__all__
    assert set(ragbench.__all__) <= imported | {"__version__"}
    assert [n for n in ragbench.__all__ if getattr(ragbench, n, None) is None] == []
    assert set(ragbench.__all__) <= set(dir(ragbench))
