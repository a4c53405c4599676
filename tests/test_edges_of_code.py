"""Edges of the code that a report prints: what is imported, what brings its source, and what nobody knows."""

import math
import math as calculus
from dataclasses import dataclass
from types import SimpleNamespace

import ragbench as rb
from ragbench.store.session_code import called, own_code, preamble, things

LEAST = 2
TABLE = {"a": (1, 2.5)}
NOTHING_PRINTS_IT = object()


def halves(text):
    return text[: len(text) // LEAST], text[len(text) // LEAST :]


def typed_into_a_session():
    @dataclass(frozen=True)
    class Mine:
        least: int = LEAST

        def __call__(self, text):
            return halves(text), calculus.floor(self.least), TABLE, NOTHING_PRINTS_IT

    return Mine


def used_by(*systems, **manifest):
    return own_code(SimpleNamespace(systems=[SimpleNamespace(system=s) for s in systems], manifest=manifest))


def test_what_a_class_needs_stands_before_it_each_as_it_can_be_had():
    Mine = typed_into_a_session()
    own = used_by(rb.System(Mine(), rb.Lexical()), None, 3)
    assert {name: own[name] for name in own if name != "Mine"} == {
        "dataclass": {"module": "dataclasses", "source": ""},
        "LEAST": {"module": "", "source": "LEAST = 2"},
        "halves": {"module": __name__, "source": ""},
        "calculus": {"module": "", "source": "import math as calculus"},
        "TABLE": {"module": "", "source": "TABLE = {'a': (1, 2.5)}"},
    }
    assert list(own)[-1] == "Mine" and own["Mine"]["module"] == ""
    assert own["Mine"]["source"].startswith("@dataclass(frozen=True)\nclass Mine:\n    least: int = LEAST\n")
    lines = preamble(["System", "Mine", "len"], own)
    assert lines[:4] == [
        "from ragbench import System",
        "from dataclasses import dataclass",
        f"from {__name__} import halves",
        "import math as calculus",
    ]
    assert lines[4:] == [f"\n{own[name]['source']}" for name in own if own[name]["source"][:6] != "import"
                         and own[name]["source"]]  # fmt: skip


def test_the_printed_code_runs_where_nothing_is_defined():
    Mine = typed_into_a_session()
    names = {}
    exec("\n".join(preamble(["Mine", "Lexical"], used_by(Mine()))).replace("NOTHING_PRINTS_IT", "0"), names)
    assert names["Mine"](3)("oily") == (("oi", "ly"), 3, TABLE, 0)
    assert names["Lexical"] is rb.Lexical and "System" not in names


def test_a_name_under_which_something_is_imported_is_kept():
    names = {"plain": math, "kept": halves}
    exec("def asks(x):\n    return kept(plain.floor(x))", names)
    own = used_by(names["asks"])
    assert own == {"asks": {"module": "", "source": ""}}  # nobody kept what it says
    assert preamble(["asks"], own)[1:] == [
        "# Define first, it is not part of ragbench and its source is not known: asks"
    ]


def test_what_was_known_when_the_results_were_made_stays_known():
    before = {"Old": {"module": "elsewhere", "source": ""}}
    own = used_by(halves, own_code=before)
    assert own == before | {"halves": {"module": __name__, "source": ""}}
    assert preamble(["Old"], own) == ["from ragbench import ", "from elsewhere import Old"]
    assert before == {"Old": {"module": "elsewhere", "source": ""}}


def test_what_ragbench_defines_and_does_not_show_is_imported_from_where_it_stands():
    assert preamble(["RRF", "rank_batch"], {}) == [
        "from ragbench import RRF",
        "from ragbench.fusion.fusion import rank_batch",
    ]


def test_the_classes_and_functions_of_a_value_are_found_eight_steps_deep():
    Mine = typed_into_a_session()
    assert list(things({"a": [(halves,), {Mine}], "b": "text", "c": None})) == [halves, Mine]
    assert list(things(Mine(SimpleNamespace(inner=[halves])))) == [Mine, SimpleNamespace, halves]
    nested = halves
    for _ in range(8):
        nested = [nested]
    assert list(things(nested)) == [halves]
    assert list(things([nested])) == [list]


def test_names_that_code_uses():
    assert called("System(Mine(LEAST), f(System.x))") == ["System", "Mine", "LEAST", "f"]
    assert called("the run x.trec") == called("a\x00") == []
