"""What a component reaches is in its fingerprint: in a session, in modules of one's own, and over
processes."""

import copy
import os
import subprocess
import sys
import textwrap
import warnings

import numpy as np
import pytest

import ragbench as rb
from ragbench import Corpus, Document, RagbenchError, from_function
from ragbench.embed.vector_cache import EmbeddingCache, embed_cached
from ragbench.store.artifacts import Store
from ragbench.store.fingerprint import FingerprintWarning, canonical, fingerprint, own_fingerprint
from ragbench.store.source_code import code_facts

# Each case: (code, an edit of it, the expression whose fingerprint has to change).
EDITS = {
    "a function that it calls": (
        "def cut(t): return t.split()\ndef split(t): return cut(t)",
        ("t.split()", "t.split('.')"),
        "split",
    ),
    "a function two calls away": (
        "def a(t): return t[:3]\ndef b(t): return a(t)\ndef split(t): return b(t)",
        (":3", ":4"),
        "split",
    ),
    "a constant": ("SIZE = 3\ndef split(t): return t[:SIZE]", ("= 3", "= 4"), "split"),
    "a constant of a list": ("WORDS = ['a', 'b']\ndef split(t): return WORDS", ("'b'", "'c'"), "split"),
    "a constant that a method reads": (
        "SIZE = 3\nclass C:\n    def __call__(self, t): return t[:SIZE]",
        ("= 3", "= 4"),
        "C()",
    ),
    "a function that a method calls": (
        "def cut(t): return t[:3]\nclass C:\n    def __call__(self, t): return cut(t)",
        (":3", ":4"),
        "C()",
    ),
    "a constant that a dataclass reads": (
        (
            "from dataclasses import dataclass\nSIZE = 3\n@dataclass(frozen=True)\nclass C:\n    n: int = 1\n"
            "    def __call__(self, t): return t[:SIZE]"
        ),
        ("= 3", "= 4"),
        "C()",
    ),
    "a captured value": (
        "def make(n): return lambda t: t[:n]\nsplit = make(3)",
        ("make(3)", "make(4)"),
        "split",
    ),
    "a captured function": (
        (
            "def cut(t): return t[:3]\ndef make(f):\n    def inner(t): return f(t)\n    return inner\nsplit ="
            " make(cut)"
        ),
        (":3", ":4"),
        "split",
    ),
    "a default": ("def split(t, n=3): return t[:n]", ("n=3", "n=4"), "split"),
    "a default by keyword": ("def split(t, *, n=3): return t[:n]", ("n=3", "n=4"), "split"),
    "a default that is a function": (
        "def cut(t): return t[:3]\ndef split(t, f=cut): return f(t)",
        (":3", ":4"),
        "split",
    ),
    "a nested helper": (
        "def split(t):\n    def inner(x): return x[:3]\n    return inner(t)",
        (":3", ":4"),
        "split",
    ),
    "a constant of a nested helper": (
        "N = 3\ndef split(t):\n    def inner(x): return x[:N]\n    return inner(t)",
        ("N = 3", "N = 4"),
        "split",
    ),
    "a decorator": (
        (
            "import functools\ndef deco(f):\n    @functools.wraps(f)\n    def inner(t): return f(t)[:3]\n   "
            " return inner\n@deco\ndef split(t): return t"
        ),
        (":3", ":4"),
        "split",
    ),
    "a decorated function": (
        (
            "import functools\ndef deco(f):\n    @functools.wraps(f)\n    def inner(t): return f(t)\n   "
            " return inner\n@deco\ndef split(t): return t[:3]"
        ),
        (":3", ":4"),
        "split",
    ),
    "a cached function": (
        "import functools\n@functools.cache\ndef split(t): return t[:3]",
        (":3", ":4"),
        "split",
    ),
    "a partial": (
        "from functools import partial\ndef cut(t, n): return t[:n]\nsplit = partial(cut, n=3)",
        ("n=3", "n=4"),
        "split",
    ),
    "the function of a partial": (
        "from functools import partial\ndef cut(t, n): return t[:n + 3]\nsplit = partial(cut, n=3)",
        ("+ 3", "+ 4"),
        "split",
    ),
    "a lambda": ("split = lambda t: t[:3]", (":3", ":4"), "split"),
    "a function in a table": (
        "TABLE = {'a': lambda t: t[:3]}\ndef split(t): return TABLE['a'](t)",
        (":3", ":4"),
        "split",
    ),
    "a bound method": (
        "class C:\n    n = 3\n    def cut(self, t): return t[:self.n]\nsplit = C().cut",
        ("n = 3", "n = 4"),
        "split",
    ),
    "an instance's value": (
        (
            "class C:\n    def __init__(self, n): self.n = n\n    def cut(self, t): return t[:self.n]\nsplit"
            " = C(3).cut"
        ),
        ("C(3)", "C(4)"),
        "split",
    ),
    "a class method": (
        "class C:\n    @classmethod\n    def cut(cls, t): return t[:3]\ndef split(t): return C.cut(t)",
        (":3", ":4"),
        "split",
    ),
    "a static method": (
        "class C:\n    @staticmethod\n    def cut(t): return t[:3]\ndef split(t): return C.cut(t)",
        (":3", ":4"),
        "split",
    ),
    "a property": (
        "class C:\n    @property\n    def n(self): return 3\n    def __call__(self, t): return t[:self.n]",
        ("return 3", "return 4"),
        "C()",
    ),
    "a cached property": (
        "import functools\nclass C:\n    @functools.cached_property\n    def n(self): return 3",
        ("return 3", "return 4"),
        "C()",
    ),
    "a base class": (
        "class B:\n    def n(self): return 3\nclass C(B): pass",
        ("return 3", "return 4"),
        "C()",
    ),
    "a class that it makes": (
        "class B:\n    def n(self): return 3\ndef split(t): return B().n()",
        ("return 3", "return 4"),
        "split",
    ),
    "an enum": (
        "import enum\nclass K(enum.Enum):\n    A = 3\ndef split(t): return K.A.value",
        ("A = 3", "A = 4"),
        "split",
    ),
    "slots": (
        "class C:\n    __slots__ = ('n',)\n    def __init__(self, n): self.n = n",
        (None, None),
        "C(3)|C(4)",
    ),
    "a pattern": ("import re\nR = re.compile('a')\ndef split(t): return R.split(t)", ("'a'", "'b'"), "split"),
    "an array": (
        "import numpy as np\nA = np.arange(3)\ndef split(t): return A",
        ("arange(3)", "arange(4)"),
        "split",
    ),
    "a name that getattr looks up": (
        (
            "class Tools:\n    cut = staticmethod(lambda t: t[:3])\ndef split(t): return getattr(Tools,"
            " 'cut')(t)"
        ),
        (":3", ":4"),
        "split",
    ),
    "a set of constants": ("def split(t): return t in {'a', 'b'}", ("'b'", "'c'"), "split"),
    "an exception that is caught": (
        "def split(t):\n    try: return t[9]\n    except IndexError: return ''",
        ("IndexError", "KeyError"),
        "split",
    ),
    "recursion": ("def a(t): return b(t[1:]) if t else 3\ndef b(t): return a(t)", ("else 3", "else 4"), "b"),
    "a comprehension": ("def split(t): return [x for x in t if x != 'a']", ("'a'", "'b'"), "split"),
    "a field that is a function": (
        (
            "from dataclasses import dataclass\nfrom typing import Any\ndef cut(t): return"
            " t[:3]\n@dataclass(frozen=True)\nclass C:\n    f: Any"
        ),
        (":3", ":4"),
        "C(cut)",
    ),
    "a mutable registry": (
        (
            "import functools\n@functools.singledispatch\ndef cut(t): return t[:3]\n@cut.register\ndef _(t:"
            " int): return 1\ndef split(t): return cut(t)"
        ),
        (":3", ":4"),
        "split",
    ),
    "a named tuple": (
        "from typing import NamedTuple\nclass C(NamedTuple):\n    n: int\n    def cut(self, t): return t[:3]",
        (":3", ":4"),
        "C(1)",
    ),
    "a kind of list": ("class C(list):\n    def cut(self, t): return t[:3]", (":3", ":4"), "C([1])"),
}


def session(code: str, expression: str) -> str:
    "The fingerprint of an expression after some cells, as in a notebook: functions of `__main__`."
    space = {"__name__": "__main__"}
    exec(textwrap.dedent(code), space)
    return fingerprint(eval(expression, space))


@pytest.mark.parametrize("what", EDITS)
def test_what_a_component_reaches_is_in_its_fingerprint(what):
    code, (old, new), expression = EDITS[what]
    with warnings.catch_warnings():
        warnings.simplefilter("error", FingerprintWarning)
        if old is None:
            first, second = (session(code, e) for e in expression.split("|"))
            assert first != second
            return
        assert code.count(old) >= 1
        changed = code.replace(old, new)
        assert session(code, expression) == session(code, expression)
        assert session(code, expression) != session(changed, expression)


@pytest.mark.parametrize("what", EDITS)
def test_comments_docstrings_and_place_are_not_in_it(what):
    code, _, expression = EDITS[what]
    expression = expression.split("|")[0]
    moved = "# a comment\n\n\n" + code.replace("):\n", "):  # here\n\n")
    assert session(code, expression) == session(moved, expression)


def test_a_docstring_is_no_code():
    first = session('def f(t):\n    "One."\n    return t + "x"', "f")
    assert (
        first
        == session('def f(t):\n    """Two,\n    longer."""\n\n    return t + "x"', "f")
        == session('def f(t): return t + "x"', "f")
    )
    assert first != session('def f(t): return t + "y"', "f")
    assert session('class C:\n    "One."\n    def f(self): return 1', "C()") == session(
        "class C:\n    def f(self): return 1", "C()"
    )


def test_a_constant_set_to_another_value_is_seen_without_running_the_cell_again():
    space = {"__name__": "__main__"}
    exec("SIZE = 3\nclass C:\n    def __call__(self, t): return t[:SIZE]\nc = C()", space)
    first = fingerprint(space["c"])
    space["SIZE"] = 4
    assert fingerprint(space["c"]) != first
    space["SIZE"] = 3
    assert fingerprint(space["c"]) == first


SCRIPT = """
import warnings; warnings.simplefilter("ignore")
from dataclasses import dataclass, field
from typing import Any
import enum, functools, pathlib, re
import numpy as np
from ragbench.store.fingerprint import fingerprint
WORDS = {"a", "b", "c", "d", "e"}; TABLE = {w: (lambda t, w=w: t + w) for w in sorted(WORDS)}
ROOT = pathlib.PurePosixPath("a/b"); LOG = __import__("logging").getLogger("x"); MISSING = object(); R = re.compile("a|b", re.I)
class K(enum.Enum): A = frozenset("xyz")
def cut(t): return t in {"x", "y", "z", "w"} or TABLE["a"](t) or (ROOT, LOG, MISSING, K.A, R, np.random.default_rng)
class Plain:
    def __init__(self): self.words, self.arr, self.f = WORDS, np.arange(5), cut
    def __call__(self, t): return cut(t)
@dataclass(frozen=True)
class Data:
    f: Any = field(default=cut)
print(fingerprint(Plain(), Data(), cut, functools.partial(cut, "a"), K.A, K))
"""  # noqa: E501


def test_the_same_in_every_process():
    seeds = ("0", "1", "4711")
    runs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": s},
        ).stdout
        for s in seeds
    }
    assert len(runs) == 1 and len(runs.pop().strip()) == 32


def test_being_copied_or_pickled_changes_no_name():
    """Both note `__slotnames__` down on the class, as any worker process that is handed a component does."""

    class Mine:
        size = 3

    before = fingerprint(Mine())
    copy.copy(Mine())
    assert "__slotnames__" in vars(Mine)
    assert fingerprint(Mine()) == before


def test_modules_of_ones_own_are_followed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "rb_deep.py").write_text("LIMIT = 3\ndef cut(t): return t[:LIMIT]\n")
    (tmp_path / "rb_helper.py").write_text(
        "import rb_deep\nfrom rb_deep import cut\ndef chop(t): return rb_deep.cut(t) + cut(t)\n"
    )
    code = (
        "import rb_helper\ndef split(t): return rb_helper.chop(t)\ndef late(t):\n    from rb_helper import"
        " chop\n    return chop(t)"
    )
    names = ("split", "late")
    first = [session(code, n) for n in names]
    import rb_deep

    monkeypatch.setattr(rb_deep, "LIMIT", 4)  # set from the notebook
    assert all(a != b for a, b in zip(first, [session(code, n) for n in names]))
    monkeypatch.setattr(rb_deep, "LIMIT", 3)
    assert first == [session(code, n) for n in names]
    (tmp_path / "rb_deep.py").write_text(
        "LIMIT = 3\ndef cut(t): return t[:LIMIT] + ''\n"
    )  # edited, with or without a reload
    assert all(a != b for a, b in zip(first, [session(code, n) for n in names]))
    for name in ("rb_deep", "rb_helper"):
        sys.modules.pop(name)


SEEN = [
    (
        "connection",
        "import sqlite3\ndb = sqlite3.connect(':memory:')\ndef split(t): return db.execute(t)",
        "split: it reads a sqlite3.Connection",
    ),
    (
        "generator",
        "g = (x for x in 'ab')\ndef split(t): return next(g)",
        "split: it reads a builtins.generator",
    ),
    (
        "getattr",
        (
            "import sys\nme = sys\ndef cut_a(t): return t\ndef split(t, kind='a'): return getattr(me, 'cut_'"
            " + kind)(t)"
        ),
        "split: it looks names up by getattr",
    ),
    (
        "globals",
        "def cut_a(t): return t\ndef split(t): return globals()['cut_a'](t)",
        "split: it looks names up by globals",
    ),
    ("eval", "def split(t): return eval('t')", "split: it looks names up by eval"),
    (
        "in a method",
        "g = (x for x in 'ab')\nclass C:\n    def __call__(self, t): return next(g)\nsplit = C()",
        "C.__call__: it reads a builtins.generator",
    ),
]


@pytest.mark.parametrize(("code", "said"), [c[1:] for c in SEEN], ids=[c[0] for c in SEEN])
def test_what_cannot_be_seen_is_said(code, said):
    with pytest.warns(FingerprintWarning) as told:
        first = session(code, "split")
    assert said in str(told[0].message) and "identity=" in str(told[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert session(code, "split") == first


def test_the_advice_of_the_warning_works():
    code = (
        "g = (x for x in 'ab')\nclass C:\n    fingerprint = 'mine 1'\n    def __call__(self, t): return"
        " next(g)\ndef split(t): return next(g)"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert session(code, "C()") != session(code.replace("mine 1", "mine 2"), "C()")
        space = {"__name__": "__main__"}
        exec(code, space)
        assert fingerprint(from_function(space["split"], identity="1")) != fingerprint(
            from_function(space["split"], identity="2")
        )


def test_an_object_that_a_component_holds_must_have_content():
    class Held:
        def __init__(self, x):
            self.x = x

    with pytest.raises(RagbenchError, match="attribute `fingerprint`"):
        fingerprint(Held(x for x in "ab"))
    assert fingerprint(Held([1])) != fingerprint(Held([2])) and fingerprint(Held([1])) == fingerprint(
        Held([1])
    )

    class Stated(Held):
        def __getstate__(self):
            return {"x": str(type(self.x))}

    assert fingerprint(Stated(x for x in "ab")) == fingerprint(Stated(x for x in "cd"))


def test_secrets_of_a_plain_object_are_not_written_down():
    class Client:
        def __init__(self):
            self.key = "sk-very-secret"

    assert "sk-very" not in str(canonical({"client": Client(), "f": lambda t, key="sk-very-secret": t}))


def test_keys_of_other_kinds_are_told_apart():
    assert fingerprint({1: "a"}) != fingerprint({"1": "a"}) and fingerprint(
        {1: "a", "1": "b"}
    ) != fingerprint({1: "b", "1": "a"})
    assert fingerprint(float("nan")) != fingerprint("nan")


def test_what_holds_itself_ends():
    mine = [1]
    mine.append(mine)
    other = [1]
    other.append(other)
    assert fingerprint(mine) == fingerprint(other)


def test_the_stale_chunks_of_a_function(tmp_path):
    "A notebook, run again after an edit of a function that the splitter calls."
    corpus, counts = Corpus([Document("d", "One, two three. Four, five, six. " * 9)]), []
    for mark in (".", ","):
        space = {"__name__": "__main__"}
        exec(
            f"MARK = {mark!r}\ndef pieces(text): return text.split(MARK)\ndef split(text): return"
            " pieces(text)",
            space,
        )
        chunker = from_function(space["split"])
        counts.append(
            Store(tmp_path)
            .make("chunks", {"chunker": chunker}, lambda c=chunker: {"n": len(c(corpus))})
            .value("n")
        )
    assert counts == [18, 28]


class TenLines:
    "An embedder as the chapter shows it: no dataclass, no fingerprint."

    max_tokens = None

    def __init__(self, dim):
        self.dim = dim

    @property
    def space(self):
        from ragbench.core.vectors import Space

        return Space("ten lines", "1", self.dim)

    def embed_passages(self, texts):
        from ragbench import Vectors

        x = np.array([[len(t), *([1.0] * (self.dim - 1))] for t in texts])
        return Vectors(x / np.linalg.norm(x, axis=1, keepdims=True), self.space)

    embed_queries = embed_passages


def test_an_embedder_of_ten_lines_is_cached_without_a_fingerprint(tmp_path):
    cache = EmbeddingCache(tmp_path)
    first = embed_cached(TenLines(3), ["a", "bb"], "passage", cache)
    assert first.array.tolist() == embed_cached(TenLines(3), ["a", "bb"], "passage", cache).array.tolist()
    embed_cached(TenLines(4), ["a"], "passage", cache)
    assert len(list(tmp_path.glob("*.sqlite"))) == 2 and own_fingerprint(TenLines(3)) == own_fingerprint(
        TenLines(3)
    )


def test_the_code_of_a_library_counts_with_its_version():
    from ragbench.store.source_code import library, library_code

    assert library("numpy").startswith("numpy==") and library_code("ragbench.core.spans") != library_code(
        "ragbench.base.errors"
    )
    assert code_facts.cache_info().maxsize is not None


LOOKED = []


class Sentences:
    "A chunker of one's own that notes when somebody looks into it."

    def __init__(self, mark):
        self.mark = mark

    def __getstate__(self):
        LOOKED.append(self.mark)
        return {"mark": self.mark}

    def __call__(self, source):
        return from_function(lambda text: text.split(self.mark))(source)


def small():
    corpus = Corpus(
        [Document(f"d{i}", f"The pump {i} runs. The valve {i * 7} is shut. " * 3) for i in range(4)]
    )
    gold = rb.Gold.from_spans(
        [
            {
                "query_id": f"q{i}",
                "query": f"pump {i}",
                "evidence": [{"doc_id": f"d{i}", "start": 0, "end": 16}],
            }
            for i in range(4)
        ]
    )
    return corpus, gold


def test_a_run_looks_into_a_component_once(tmp_path):
    corpus, gold = small()
    LOOKED.clear()
    systems = [rb.System(Sentences("."), rb.Lexical(rb.FTS5(near=n))) for n in (5, 6, 7)]
    rb.bench(corpus, gold, systems, store=tmp_path, progress=False)
    assert 3 <= len(LOOKED) <= 9  # three components; names and the table of results look for themselves


def test_components_of_ten_lines_are_benched_without_a_fingerprint(tmp_path):
    """A chunker, an embedder and a metric that are plain classes, and a rewriter that is edited between two
    runs."""
    corpus, gold = small()
    code = """
class Metric:
    name = "first word"
    def __call__(self, gold, ranking): return np.array([float(len(ranking.run.of(i)) >= LEAST) for i in range(len(gold.answerable))])
"""  # noqa: E501
    seen = []
    for least in (1, 99):
        space = {"__name__": "__main__", "np": np, "LEAST": least}
        exec(code, space)
        system = rb.System(Sentences("."), rb.Dense(TenLines(3)))
        results = rb.bench(
            corpus, gold, system, metrics=["recall@5", space["Metric"]()], store=tmp_path, progress=False
        )
        seen.append(results.systems[0].scores["first word"].tolist())
    assert seen == [[1.0] * 4, [0.0] * 4]  # a constant that the metric reads was changed


class Tensor:
    "As much of a tensor of torch as is looked at; its address is in what pickle would write."

    def __init__(self, *values):
        self.values = np.array(values)

    def detach(self):
        return self

    def cpu(self):
        return self

    def numpy(self):
        return self.values

    def __reduce_ex__(self, protocol):
        return Tensor, (id(self),)


class Linear:
    "As much of a model of torch: weights, and a state that changes with use."

    def __init__(self, *weights):
        self._weights, self._calls = Tensor(*weights), 0

    def state_dict(self):
        return {"weight": self._weights}

    def named_parameters(self):
        return iter(self.state_dict().items())

    def __repr__(self):
        return f"Linear({len(self._weights.values)})"


def test_a_model_of_torch_is_its_weights():
    a, b = Linear(1.0, 2.0), Linear(1.0, 2.0)
    b._calls = 7
    assert fingerprint(a) == fingerprint(b) != fingerprint(Linear(1.0, 3.0))


def test_a_component_of_ours_is_known_by_all_that_its_module_imports(tmp_path):
    """In a copy of the package, an edit of a module that a component's module imports through others changes
    its fingerprint; an edit elsewhere does not."""
    import shutil
    import subprocess
    import sys
    from pathlib import Path

    import ragbench

    shutil.copytree(
        Path(ragbench.__file__).parent, tmp_path / "ragbench", ignore=shutil.ignore_patterns("__pycache__")
    )
    code = (
        "from ragbench import FTS5, TokenChunker; from ragbench.store.fingerprint import fingerprint;"
        " print(fingerprint(TokenChunker(8)), fingerprint(FTS5()))"
    )

    def marks():
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={"PYTHONPATH": str(tmp_path), "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()

    def edit(module):
        path = tmp_path / "ragbench" / module
        path.write_text(path.read_text(encoding="utf-8") + "\n# edited\n", encoding="utf-8")
        return marks()

    first = marks()
    assert marks() == first
    assert edit("report/html.py") == first
    shared = edit("core/documents.py")  # imported by chunks, which both import
    assert shared[0] != first[0] and shared[1] != first[1]
    words = edit("lexical/fts5_query.py")  # imported by FTS5 alone
    assert words[0] == shared[0] and words[1] != shared[1]
