"""Content words, runs of words and sentences, to measure how much a question copies its evidence.

A question that was written by looking at its evidence tends to copy it, and then word matching wins every
benchmark. Thakur et al. (BEIR, 2021) saw it in whole collections: where annotators wrote questions with the
passage before their eyes, BM25 is hard to beat. So the sets that ship measure how much wording their
questions and their evidence have in common, in English, Portuguese and Spanish.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

from ragbench.apps.dataset_rules import words
from ragbench.base.errors import ConfigError

# The lists are short on purpose: what is left off them only makes the comparison stricter.
_EN = """a about above according after again against all almost also although always am an and any are as at away back be because been before being below between both but by can cannot
could did do does doing done down during each either else enough even ever every few for from further get gets give go goes got had has have having he her here him his how i if in into is it
its itself just keep kept kind let may me might more most much must my near neither never no nor not nothing now of off often on once one only or other our out over own per put rather same shall
she should since so some still such take taken taking than that the their them then there these they this those through to together too two under until up upon us use used very was way we well
were what when where whether which while who whom whose why will with within without would yet you your"""  # noqa: E501
_PT = """a o os as um uma uns umas de do da dos das em no na nos nas por pelo pela pelos pelas para com sem sob sobre entre até que e ou mas se como quando onde quem qual quais quanto quanta quantos
quantas porque porquê não nem já mais menos muito pouco também só ainda mesmo cada todo toda todos todas este esta isto esse essa isso aquele aquela ao aos à às é são foi foram era eram ser estar está
há tem têm ter seu sua seus suas lhe lhes ele ela eles elas"""  # noqa: E501
_ES = """el la los las un una unos unas de del al a y e o u en lo por para con sin so entre hasta que pero si como cuando donde quien cual cuales cuanto cuánta cuántos cuántas qué cuál cuáles no ni ya más
menos muy también sólo aún mismo cada todo toda todos todas este esta esto ese esa eso aquel es son se fue fueron era eran ser estar está hay tiene tienen su sus le les él ella ellos ellas"""  # noqa: E501


def folded(word: str) -> str:
    """A word without its accents."""
    return "".join(c for c in unicodedata.normalize("NFD", word) if not unicodedata.combining(c))


STOP = {
    language: frozenset(folded(word) for word in text.split())
    for language, text in (("en", _EN), ("pt", _PT), ("es", _ES))
}


def stemmed(word: str, letters: int = 5) -> str:
    """A word without accents, plural, verb ending and last vowel, cut to its first `letters`; whole if it has
    a digit.

    A stemmer for each language would be exact. Taking off what three languages inflect with, and cutting to
    five letters, is nearly as good and brings cognates together: `navegação` and `navegación` are one. It
    also brings strangers together (`interest` and `interval`). That errs on the strict side, since a shared
    stem is what a paraphrase must not have.
    """
    stem = folded(re.sub(r"'s?$", "", word))
    if re.search(r"\d", stem):
        return stem
    for ending in (r"(?<=[^\Ws]{3})s$", r"(?<=\w{4})(ing|ed)$", r"(?<=\w{3})[aeo]$"):
        stem = re.sub(ending, "", stem)
    return stem[:letters]


def content(
    text: str,
    languages: Iterable[str] = ("en",),  # whose stop words to leave out
    letters: int = 5,  # of a stem
) -> set[str]:
    """The stems of the content words of a text; raises `ConfigError` for a language without stop words."""
    unknown = [language for language in languages if language not in STOP]
    if unknown:
        raise ConfigError(
            f"there are no stop words for language {unknown[0]!r}", "content", f"Known are {', '.join(STOP)}"
        )
    stop = frozenset().union(*(STOP[language] for language in languages))
    return {stemmed(word, letters) for word in words(text) if len(word) > 1 and folded(word) not in stop}


def _ngrams(text: str, n: int = 4) -> set[tuple[str, ...]]:
    """All runs of `n` words of a text; empty if it is shorter."""
    sequence = words(text)
    return {tuple(sequence[i : i + n]) for i in range(len(sequence) - n + 1)}


def copied(question: str, quotes: Iterable[str], n: int = 4) -> float:
    """The share of a question's runs of `n` words that stand in one of its quotes; 0 if it has none."""
    runs = _ngrams(question, n)
    shared = runs & set().union(*(_ngrams(quote, n) for quote in quotes))
    return len(shared) / len(runs) if runs else 0.0


def sentences(text: str, least: int = 8) -> Iterator[str]:
    """The sentences of at least `least` words, each as its words with single spaces.

    A rough splitter will do, as long as it cuts two documents in the same places: at line ends, and after a
    full stop, question or exclamation mark.
    """
    for line in text.split("\n"):
        for sentence in re.split(r"(?<=[.!?])\s+", line):
            sequence = words(sentence)
            if len(sequence) >= least:
                yield " ".join(sequence)
