"""Rules for the data sets that ship: what the package asks of any set does not say how their questions are
worded, tagged and split. `check_shipped.py` applies both."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from wording import STOP, content, copied, sentences

from ragbench.apps.dataset_check import is_text
from ragbench.apps.dataset_rules import Finding, Rule, UncheckedDataset, counts
from ragbench.base.number_text import percent, thousands

MAIN_TAGS = ("identifier", "paraphrase", "multi", "unanswerable", "plain")
BOUNDS = {
    "query": [8, 300],  # characters: least, most
    "quote": [20, 400],
    "answer": [1, 130],
    "copied": 0.25,  # share of a question's 4-grams that stand in its evidence
    "rare": 3,  # a word is rare that stands in at most so many documents
    "stem": 5,  # letters of a word that are compared
    "sentence": 8,  # words from which on a sentence must not repeat
}
SHIPPED_RULES: dict[str, Rule] = {}


def shipped_rule(function: Rule) -> Rule:
    """Enter a rule into `SHIPPED_RULES`; it sees only questions that have all fields."""

    @functools.wraps(function)
    def on_complete_questions(dataset: UncheckedDataset) -> Iterator[Finding]:
        lines = tuple((n, line) for n, line in dataset.lines if not missing_fields(line))
        return function(replace(dataset, lines=lines))

    SHIPPED_RULES[function.__name__.removeprefix("check_")] = on_complete_questions
    return function


def bound(dataset: UncheckedDataset, name: str) -> Any:
    """A bound from `[bounds]` of dataset.toml, or the usual one."""
    return dataset.info.get("bounds", {}).get(name, BOUNDS[name])


def languages(dataset: UncheckedDataset) -> Mapping[str, str]:
    """Language by pattern of document id."""
    return dataset.info.get("languages", {"*": "en"})


# ---------------------------------------------------------------- the description


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_bound(key: str, value: Any) -> bool:
    if isinstance(BOUNDS.get(key), list):
        is_pair = isinstance(value, list) and len(value) == 2 and all(map(is_count, value))
        return is_pair and value[0] <= value[1]
    if key == "copied":
        return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1
    return key in BOUNDS and is_count(value)


def is_promise(key: str, value: Any) -> bool:
    if key == "tags":
        return isinstance(value, dict) and all(map(is_count, value.values()))
    return key in ("documents", "words", "questions", "answers", "used") and is_count(value)


def is_language(key: str, value: Any) -> bool:
    return isinstance(value, str) and value in STOP


TABLES = {"bounds": is_bound, "promises": is_promise, "languages": is_language}


def description_faults(folder: Path, info: Mapping[str, Any]) -> Iterator[tuple[str, Finding]]:
    """What a description lacks or has wrong for a set that ships, each fault with the key that it concerns.

    A misspelt bound would otherwise be a bound that nobody applies.
    """
    for key in ("name", "title", "license"):
        if key not in info:
            yield key, Finding(f"{key!r} is None in dataset.toml", f'Write: {key} = "…"')
    if "id_prefix" in info and not is_text(info["id_prefix"]):
        yield "id_prefix", Finding(f"'id_prefix' is {info['id_prefix']!r}", "Give a text")
    tags = info.get("tags", [])
    if not (isinstance(tags, list) and all(map(is_text, tags))):
        yield "tags", Finding(f"'tags' is {tags!r}", "Give a list of texts")
    for key, is_good in TABLES.items():
        table = info.get(key, {})
        if isinstance(table, dict):
            wrong = [f"{name} = {value!r}" for name, value in table.items() if not is_good(name, value)]
        else:
            wrong = [f"{key} = {table!r}"]
        if wrong:
            fix = "Correct it; `TABLES` in tools/datasets/shipped_rules.py says what it may hold"
            yield key, Finding(f"[{key}] has {', '.join(wrong)}", fix)
    if not (folder / "README.md").is_file():
        fix = "Say in it what this is, how it was made, and the licence"
        yield "", Finding("there is no README.md", fix)


# ---------------------------------------------------------------- questions


def missing_fields(line: Any) -> list[str]:
    """Fields that every question of ours has; none are missing of what is no question at all."""
    return [key for key in ("answer", "tags", "split") if key not in line] if isinstance(line, dict) else []


def check_fields(dataset: UncheckedDataset) -> Iterator[Finding]:
    """Every question has an answer (or null), tags and a split."""
    for question in dataset.questions:
        for key in missing_fields(question):
            yield Finding(f"it lacks {key!r}", "Write it, empty if need be", question["query_id"])


SHIPPED_RULES["fields"] = check_fields


@shipped_rule
def check_prefix(dataset: UncheckedDataset) -> Iterator[Finding]:
    """Ids begin with `id_prefix` of dataset.toml, by default the name and a hyphen.

    So results of several sets can be put into one table.
    """
    prefix = dataset.info.get("id_prefix", f"{dataset.name}-")
    for query_id in dict.fromkeys(question["query_id"] for question in dataset.questions):
        if not query_id.startswith(prefix) or query_id == prefix:
            what = f"the id does not begin with {prefix!r} and go on"
            yield Finding(what, "Rename it, or set `id_prefix`", query_id)


@shipped_rule
def check_tags(dataset: UncheckedDataset) -> Iterator[Finding]:
    """Exactly one main tag, others only if `tags` of dataset.toml lists them; each listed one is used.

    One main tag a question, so that slices by tag add up: `identifier` (looked up by a name or number),
    `paraphrase` (in other words than its evidence), `multi` (needs several pieces), `unanswerable`, and
    `plain` for the rest. Other tags are declared, because an undeclared one is most often misspelt.
    """
    listed, used = list(dataset.info.get("tags", ())), set()
    for question in dataset.questions:
        query_id, tags = question["query_id"], question["tags"]
        main = [tag for tag in tags if tag in MAIN_TAGS]
        if len(main) != 1:
            fix = f"Give it exactly one of {', '.join(MAIN_TAGS)}"
            yield Finding(f"it has {len(main)} main tags, {tags!r}", fix, query_id)
        for tag in sorted(set(tags) - {*listed, *MAIN_TAGS}):
            yield Finding(f"nobody knows its tag {tag!r}", "Correct it, or list it under `tags`", query_id)
        used |= set(tags)
    for tag in listed:
        if tag not in used:
            yield Finding(f"no question has the tag {tag!r} of dataset.toml", "Take it off the list `tags`")


@shipped_rule
def check_splits(dataset: UncheckedDataset) -> Iterator[Finding]:
    """Every question is in `dev` or `test`, and both have some: a split is fixed once, in the data, or else
    everybody tunes on what somebody else tests on."""
    for question in dataset.questions:
        if question["split"] not in ("dev", "test"):
            what = f"its split is {question['split']!r}"
            yield Finding(what, "Put it into 'dev' or 'test'", question["query_id"])
    for split in ("dev", "test"):
        if not any(question["split"] == split for question in dataset.questions):
            fix = "Put about two in five into 'dev', the rest into 'test'"
            yield Finding(f"no question is in {split!r}", fix)


@shipped_rule
def check_answers(dataset: UncheckedDataset) -> Iterator[Finding]:
    """An answerable question has a short answer, an unanswerable one has none."""
    for question in dataset.questions:
        query_id, answer = question["query_id"], question["answer"]
        if "unanswerable" in question["tags"]:
            if answer is not None:
                what = f"it is unanswerable, yet its answer is {answer!r}"
                yield Finding(what, "Write null, or give it another tag", query_id)
        elif not (answer or "").strip():
            yield Finding(
                f"its answer is {answer!r}", "Write a short string, or tag it 'unanswerable'", query_id
            )


@shipped_rule
def check_pieces(dataset: UncheckedDataset) -> Iterator[Finding]:
    """No evidence for `unanswerable`, at least two pieces for `multi`, one for every other question."""
    for question in dataset.questions:
        n = len(question["evidence"])
        kind = next((tag for tag in MAIN_TAGS if tag in question["tags"]), "")
        if kind == "unanswerable":
            is_right, wanted = n == 0, "none"
        elif kind == "multi":
            is_right, wanted = n >= 2, "two or more"
        else:
            is_right, wanted = n == 1, "one"
        if not is_right:
            fix = f"As {kind or 'it is'!r} it has {wanted}: change the evidence or the tag"
            yield Finding(f"it has {n} pieces of evidence", fix, question["query_id"])


@shipped_rule
def check_lengths(dataset: UncheckedDataset) -> Iterator[Finding]:
    """Questions, answers and quotes have lengths within `[bounds]`, in characters."""
    texts = [("query", q["query"], q["query_id"], "") for q in dataset.questions]
    texts += [("answer", q["answer"], q["query_id"], "") for q in dataset.questions if q["answer"]]
    texts += [("quote", e["quote"], q["query_id"], e["doc_id"]) for q, e in dataset.quotes]
    for name, text, query_id, doc_id in texts:
        least, most = bound(dataset, name)
        if not least <= len(text) <= most:
            what = f"the {name} has {len(text)} characters, not {least} to {most}: {text[:60]!r}"
            yield Finding(what, f"Rewrite it, or set `{name}` under [bounds]", query_id, doc_id)


# ---------------------------------------------------------------- wording


@shipped_rule
def check_copied(dataset: UncheckedDataset) -> Iterator[Finding]:
    """At most the share `copied` of a question's 4-grams stands in its evidence.

    A question looked up by its number may repeat the number, and four words in a row now and then.
    """
    most = bound(dataset, "copied")
    for question in dataset.questions:
        evidence = question["evidence"]
        share = copied(question["query"], [piece["quote"] for piece in evidence])
        if share > most:
            what = (
                f"{percent(share, 0)} of its runs of four words stand in its evidence, more than"
                f" {percent(most, 0)}: {question['query']!r}"
            )
            doc_ids = ", ".join(dict.fromkeys(piece["doc_id"] for piece in evidence))
            yield Finding(what, "Ask in other words", question["query_id"], doc_ids)


@shipped_rule
def check_paraphrases(dataset: UncheckedDataset) -> Iterator[Finding]:
    """A `paraphrase` shares no content word with its evidence that is rare, which is: in at most `rare`
    documents.

    It may share words that the whole corpus uses. A word that stands in three documents or fewer leads
    straight to them, and then the question tests word matching after all.
    """
    paraphrases = [(q, e) for q, e in dataset.quotes if "paraphrase" in q["tags"]]
    if not paraphrases:
        return
    known = tuple(set(languages(dataset).values()))
    stems = functools.partial(content, languages=known, letters=bound(dataset, "stem"))
    frequency = Counter(stem for doc in dataset.corpus for stem in stems(doc.text))
    for question, piece in paraphrases:
        shared = stems(question["query"]) & stems(piece["quote"])
        rare = sorted(stem for stem in shared if frequency[stem] <= bound(dataset, "rare"))
        if rare:
            what = f"the paraphrase shares {', '.join(map(repr, rare))} with its quote {piece['quote']!r}"
            fix = "Ask in other words, or change the tag"
            yield Finding(what, fix, question["query_id"], piece["doc_id"])


@shipped_rule
def check_repeats(dataset: UncheckedDataset) -> Iterator[Finding]:
    """No sentence of `sentence` words or more stands in two documents but those under `repeats`; those do."""
    doc_ids_of: dict[str, dict[str, None]] = defaultdict(dict)
    for doc in dataset.corpus:
        for sentence in sentences(doc.text, bound(dataset, "sentence")):
            doc_ids_of[sentence][doc.id] = None
    for sentence, doc_ids in doc_ids_of.items():
        if len(doc_ids) > 1 and sentence not in dataset.repeats:
            what = f"a sentence stands in {len(doc_ids)} documents: {sentence!r}"
            yield Finding(what, "Rewrite it, or list it under `repeats`", document=", ".join(doc_ids))
    for sentence in sorted(dataset.repeats):
        if len(doc_ids_of.get(sentence, ())) < 2:
            what = f"a sentence under `repeats` is not in two documents: {sentence!r}"
            yield Finding(what, "Take it off the list, or correct it")


# ---------------------------------------------------------------- tables, languages, promises


@shipped_rule
def check_tables(dataset: UncheckedDataset) -> Iterator[Finding]:
    """A question tagged `table` quotes a row of one: cells joined by ` | `, as in our canonical text."""
    for question in dataset.questions:
        evidence = question["evidence"]
        if "table" in question["tags"] and not any("|" in piece["quote"] for piece in evidence):
            what = "it is tagged 'table', and no quote has cells joined by ' | '"
            doc_ids = ", ".join(piece["doc_id"] for piece in evidence)
            yield Finding(what, "Quote the row, or take the tag off", question["query_id"], doc_ids)


def language_of(dataset: UncheckedDataset, doc_id: str) -> str:
    """The language of a document by the first pattern that its id matches."""
    matching = (name for pattern, name in languages(dataset).items() if fnmatchcase(doc_id, pattern))
    return next(matching, "unknown")


@shipped_rule
def check_languages(dataset: UncheckedDataset) -> Iterator[Finding]:
    """Where questions are tagged with a language, `cross-language` stands where some evidence is in another
    one."""
    for question in dataset.questions:
        query_id, tags = question["query_id"], question["tags"]
        asked = [tag.removeprefix("lang:") for tag in tags if tag.startswith("lang:")]
        quoted = {language_of(dataset, piece["doc_id"]) for piece in question["evidence"]}
        if len(asked) > 1:
            yield Finding(f"it is tagged with {len(asked)} languages, {asked}", "Leave one", query_id)
        elif asked and quoted and bool(quoted - set(asked)) != ("cross-language" in tags):
            what = f"the question is in {asked[0]!r}, its evidence in {sorted(quoted)}"
            yield Finding(what, "Correct 'lang:…', 'cross-language' or `languages`", query_id)


@shipped_rule
def check_promises(dataset: UncheckedDataset) -> Iterator[Finding]:
    """Documents, words, questions, answers and tags are at least as many as `[promises]` says.

    Questions that are trimmed until all other rules pass would otherwise vanish unseen.
    """
    promises = dataset.info.get("promises", {})
    sizes = counts(dataset) | {"used": len({piece["doc_id"] for _, piece in dataset.evidence})}
    tag_counts = Counter(tag for question in dataset.questions for tag in question["tags"])
    promised = [(promises[name], n, name) for name, n in sizes.items() if name in promises and name != "used"]
    if "used" in promises:
        promised.append((promises["used"], sizes["used"], "documents used by a question"))
    for tag, least in promises.get("tags", {}).items():
        promised.append((least, tag_counts[tag], f"questions tagged {tag!r}"))
    for least, n, name in promised:
        if n < least:
            what = f"there are {thousands(n)} {name}, and dataset.toml promises {thousands(least)}"
            yield Finding(what, "Write more, or promise less")
