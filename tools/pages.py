#!/usr/bin/env python3
"""The pages of the site before Quarto: what `nbdev_docs` makes of each notebook, and what is wrong with it.

python tools/pages.py            every problem of every page, a line each (`tools/check.py docs` calls it)

`PublicLinks` takes the place of nbdev's own links (settings.ini: `procs`, `skip_procs`). nbdev links whatever
stands in backticks and is the name of anything in the package: `overlap`, an argument, went to a private
helper. Here only public names link: a class by its name (`Corpus`), a function as it is called (`bench()`), a
method after its class (`System.build`). A word that is also the name of a room or of an argument never does.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import multiprocessing
import os
import re
import sys
import textwrap
import traceback
import warnings
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from nbdev.config import get_config
from nbdev.process import Processor

PACKAGE = "ragbench"
SECONDS = 300  # for one page
EXPORTED = re.compile(r"^#\s*\|\s*(export|exports|exporti)\b", re.MULTILINE)
HIDDEN = re.compile(r"^#\s*\|\s*(hide|default_exp)\b", re.MULTILINE)


# --- links to public names ----------------------------------------------------------------------------------


class Symbol(NamedTuple):
    page: PurePosixPath  # its notebook, below nbs/
    is_class: bool
    methods: frozenset[str]


@cache
def public_symbols(root: Path) -> dict[str, Symbol]:
    """The classes and functions that `ragbench/__init__.pyi` lists, and the notebook of each."""
    symbols = {}
    stub = ast.parse((root / PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    for node in stub.body:
        if not isinstance(node, ast.ImportFrom):
            continue
        module = root.joinpath(PACKAGE, *node.module.split(".")).with_suffix(".py")
        text = module.read_text(encoding="utf-8")
        source = re.search(r"File to edit: (\S+\.ipynb)", text)
        if not source:
            continue  # written by hand: it has no page
        page = (module.parent / source[1]).resolve().relative_to((root / "nbs").resolve())
        definitions = {n.name: n for n in ast.parse(text).body if hasattr(n, "name")}
        for alias in node.names:
            found = definitions.get(alias.name)
            if found is not None:
                is_class = isinstance(found, ast.ClassDef)
                names = {n.name for n in found.body if hasattr(n, "name")} if is_class else set()
                symbols[alias.name] = Symbol(PurePosixPath(page.as_posix()), is_class, frozenset(names))
    return symbols


def linked_symbol(code: str, symbols: dict[str, Symbol]) -> str | None:
    """The public name that this code, between backticks, speaks of; None where it must not become a link."""
    called = code.endswith("()")
    name, _, method = code.removesuffix("()").partition(".")
    symbol = symbols.get(name)
    if symbol is None:
        return None
    if method:
        return name if method in symbol.methods else None
    return name if called or symbol.is_class else None


def relative_link(page: PurePosixPath, target: PurePosixPath) -> str:
    return os.path.relpath(target, page.parent).replace(os.sep, "/")


CODE_OR_LINK = re.compile(r"!?\[[^\]]*\]\([^)]*\)|(?P<ticks>`+)(?P<code>[^`\n]+)(?P=ticks)")


def link_line(line: str, page: PurePosixPath, symbols: dict[str, Symbol]) -> str:
    """The line with its public names as links; what is a link already stays as it is."""

    def link(m: re.Match) -> str:
        name = linked_symbol(m["code"], symbols) if m["ticks"] == "`" else None
        if name is None:
            return m[0]
        target = symbols[name].page
        path = "" if target == page else relative_link(page, target)
        return f"[{m[0]}]({path}#{name.lower()})"

    return CODE_OR_LINK.sub(link, line)


def outside_fences(markdown: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it is text: not in a fence, not indented as code, not a heading."""
    fence = ""
    for line in markdown.splitlines():
        tick = re.match(r"\s*(`{3,}|~{3,})", line)
        if tick and (not fence or line.strip().startswith(fence)):
            fence = "" if fence else tick[1]
            yield line, False
        else:
            yield line, not fence and not line.startswith(("    ", "#"))


def link_names(markdown: str, page: PurePosixPath, symbols: dict[str, Symbol]) -> str:
    lines = outside_fences(markdown)
    return "\n".join(link_line(line, page, symbols) if is_text else line for line, is_text in lines)


LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)\s#]+)")


def link_repository(markdown: str, page: PurePosixPath, root: Path, url: str) -> str:
    """Targets that are files of the repository outside nbs/, such as LICENSE, lead to where it is kept."""

    def move(m: re.Match) -> str:
        target = os.path.normpath(root / "nbs" / page.parent / m["target"])
        inside = Path(target).is_relative_to(root / "nbs") or not Path(target).is_relative_to(root)
        if re.match(r"[a-z]+:|/", m["target"]) or inside or not Path(target).exists():
            return m[0]
        return f"{m['before']}{url}/{Path(target).relative_to(root).as_posix()}"

    return LINK.sub(move, markdown)


FIRST_LINE = re.compile(
    r"(\n```\n\n\s*)\*(.+)\*(?=\n|$)"
)  # fastcore sets the first line of a docstring in italics
OWN_CHAPTER = re.compile(r"\n\s*Chapter: https?://\S+")
DOCTEST = re.compile(r"(?:^[ \t]*>>> .*\n?(?:^[ \t]*\S.*\n?)*)+", re.MULTILINE)


def plain_docstring(markdown: str) -> str:
    """What `show_doc` made of a docstring, so that Markdown reads it as it is meant: sentences upright to
    their ends, examples as code, and no link to the page that it stands on."""
    markdown = OWN_CHAPTER.sub("", FIRST_LINE.sub(r"\1\2", markdown))
    return DOCTEST.sub(lambda m: f"\n```python\n{textwrap.dedent(m[0]).rstrip()}\n```\n", markdown)


class PublicLinks(Processor):
    """Links to public names and to files of the repository, in prose and in what `show_doc` shows."""

    def begin(self):
        config = get_config()
        self.root = Path(config.config_path).resolve()
        self.url = f"{config.git_url}/blob/{config.branch}"
        path = Path(self.nb.path_).resolve()
        self.page = PurePosixPath(path.relative_to(self.root / "nbs").as_posix())
        self.symbols = public_symbols(self.root)

    def linked(self, markdown: str) -> str:
        return link_repository(link_names(markdown, self.page, self.symbols), self.page, self.root, self.url)

    def cell(self, cell):
        if cell.cell_type == "markdown" and cell.get("source"):
            cell.source = self.linked(cell.source)
        for output in cell.get("outputs", []):
            if "text/markdown" in output.get("data", {}):
                markdown = "".join(output["data"]["text/markdown"])
                if "show_doc(" in (cell.get("source") or ""):
                    markdown = plain_docstring(markdown)
                output["data"]["text/markdown"] = self.linked(markdown)


# --- one page -----------------------------------------------------------------------------------------------


class Page(NamedTuple):
    path: str  # below nbs/
    cells: list[tuple[str, str]]  # kind ("text", "code", "shown") and source of what a reader sees
    problems: list[str]


def make_page(path: Path, root: Path) -> Page:
    """What nbdev makes of a notebook; its mistakes are collected instead of ending the work."""
    from execnb.nbio import read_nb
    from nbdev import processors

    name = path.relative_to(root / "nbs").as_posix()
    problems = list(cell_problems(json.loads(path.read_text(encoding="utf-8"))))

    class Collecting(processors.exec_show_docs):
        def __call__(self, cell):
            try:
                super().__call__(cell)
            except Exception as e:  # it belongs to the page
                reason = e.__cause__ or e
                problems.append(f"{first_line(cell.source)}: {type(reason).__name__}: {reason}")
                self.k.exc = None

    class Procs(processors.FilterDefaults):
        def base_procs(self):
            procs = super().base_procs()
            return [Collecting if p is processors.exec_show_docs else p for p in procs]

    os.environ["IN_TEST"] = "1"  # as nbdev does it
    notebook = read_nb(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            Procs()(notebook)
        except Exception:
            return Page(name, [], [*problems, traceback.format_exc(limit=-1).strip()])
    problems += [str(w.message).strip() for w in caught if "YAML" in str(w.message)]
    if not problems:
        problems += signature_problems(json.loads(path.read_text(encoding="utf-8")))
    return Page(name, list(visible(notebook)), problems)


def first_line(source: str) -> str:
    lines = [line for line in source.strip().splitlines() if not re.match(r"#\s*\|", line)]
    return f"cell `{(lines or [''])[0][:80]}`"


def visible(notebook) -> Iterator[tuple[str, str]]:
    """What of a processed notebook reaches the reader."""
    for cell in notebook.cells:
        source = "".join(cell.get("source") or "")
        if cell.cell_type == "markdown" and source and not source.startswith("<!-- WARNING"):
            yield "text", source
        elif cell.cell_type == "code" and source:
            markdown = ["".join(o.get("data", {}).get("text/markdown", "")) for o in cell.get("outputs", [])]
            yield ("shown", "\n".join(markdown)) if "show_doc(" in source else ("code", "\n".join(markdown))


def cell_problems(notebook: dict) -> Iterator[str]:
    """Cells of a chapter that mix imports with other code. nbdev runs them without the cells before them."""
    sources = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    if not any(EXPORTED.search(s) for s in sources):
        return  # nothing of it is shown by show_doc, so nbdev runs nothing
    for source in sources:
        try:
            statements = ast.parse(source).body
        except SyntaxError:
            continue  # a magic
        code = [s for s in statements if not isinstance(s, ast.Import | ast.ImportFrom)]
        looked_at = statements if EXPORTED.search(source) else [n for s in statements for n in ast.walk(s)]
        if code and any(isinstance(n, ast.Import | ast.ImportFrom) for n in looked_at):
            yield f"{first_line(source)}: imports and other code: give the imports a cell of their own"


def signature_problems(notebook: dict) -> Iterator[str]:
    """Signatures of the module's public names that cannot be evaluated."""
    sources = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    named = [m[1] for s in sources if (m := re.search(r"^#\s*\|\s*default_exp\s+(\S+)", s, re.MULTILINE))]
    for name in named:
        module = importlib.import_module(f"{PACKAGE}.{name}")
        for symbol in getattr(module, "__all__", ()):
            value = getattr(module, symbol)
            inside = list(vars(value).items()) if inspect.isclass(value) else []
            functions = [(f"{symbol}.{k}", f) for k, f in inside if inspect.isfunction(f)]
            if inspect.isfunction(value) or (inspect.isclass(value) and value.__module__ == module.__name__):
                functions.insert(0, (symbol, value))
            for where, function in functions:
                try:
                    inspect.signature(function, eval_str=True)
                except NameError as e:
                    yield f"the signature of {where} cannot be evaluated: {e}"
                except (TypeError, ValueError):
                    pass  # it has none, such as a class made by the standard library


# --- all pages together -------------------------------------------------------------------------------------


def anchor(heading: str) -> str:
    """The id that Pandoc gives to a heading."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"[^\w\-. ]", "", re.sub(r"[`*]", "", text)).strip().lower()
    return re.sub(r"^[^a-z]+", "", re.sub(r"\s+", "-", text)) or "section"


def anchors(page: Page, public: Collection[str] = ()) -> tuple[set[str], list[str]]:
    """The ids on a page, and what stands in the way of a symbol's own."""
    headings: dict[str, list[str]] = {"text": [], "code": [], "shown": []}
    others: set[str] = set()
    for kind, source in page.cells:
        fence = False
        for line in source.splitlines():
            fence ^= line.lstrip().startswith("```")
            heading = None if fence else re.match(r"#{1,6}\s+(.*?)\s*(?:\{#([\w.-]+)[^}]*\})?$", line)
            if heading:
                headings[kind].append(heading[2] or anchor(heading[1]))
            others |= set(re.findall(r"\bid=[\"']([\w.-]+)", line))
    taken = sorted(set(headings["text"]) & set(headings["shown"]) & {name.lower() for name in public})
    problems = [
        f"the heading {name!r} has the anchor of a symbol of this page: word it otherwise" for name in taken
    ]
    return {*headings["text"], *headings["shown"], *others}, problems


TARGET = re.compile(r"(?P<picture>!)?\[(?P<label>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)")
HTML_TARGET = re.compile(r"<(?P<tag>img|a)\b[^>]*?\b(?:src|href)=[\"'](?P<target>[^\"']+)")


def targets(page: Page) -> Iterator[tuple[str, bool, str]]:
    """`(target, is a picture, its alternative text)` of every link of a page, outside code."""
    for _, source in page.cells:
        prose = "\n".join(line for line, is_text in outside_fences(source) if is_text or line.startswith("#"))
        prose = re.sub(r"(?<!\[)`[^`\n]+`(?!\])", "", prose)
        for m in TARGET.finditer(prose):
            yield m["target"], bool(m["picture"]), m["label"]
        for m in HTML_TARGET.finditer(prose):
            alt = re.search(r"\balt=[\"']([^\"']*)", prose[m.start() : m.start() + 1000])
            yield m["target"], m["tag"] == "img", alt[1] if alt else ""


def link_problems(page: Page, ids: dict[str, set[str]], root: Path) -> Iterator[str]:
    """Links and pictures of a page that lead nowhere."""
    for target, is_picture, label in targets(page):
        if is_picture and not label.strip():
            yield f"the picture {target} has no alternative text"
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue  # another site
        path, _, anchor_name = target.partition("#")
        file = Path(os.path.normpath(root / "nbs" / PurePosixPath(page.path).parent / path))
        name = page.path if not path else ""
        if path and file.is_relative_to(root / "nbs"):
            name = file.relative_to(root / "nbs").as_posix()
        if name.endswith(".ipynb"):
            if name not in ids:
                yield f"the link {target} leads to no page"
            elif anchor_name and anchor_name not in ids[name]:
                yield f"the link {target} leads to no heading of that page"
        elif not name or not file.is_file():
            yield f"{'the picture' if is_picture else 'the link'} {target} leads to no file of the site"


def has_introduction(page: Page) -> bool:
    """The first that a reader sees below the title is text, not code or a heading."""
    kind, source = page.cells[0] if page.cells else ("", "")
    return kind == "text" and not source.lstrip().startswith("#")


def pages(root: Path, workers: int | None = None) -> list[Page]:
    """Every page of the site, made by as many processes as there are cores."""
    paths = [p for p in sorted((root / "nbs").rglob("*.ipynb")) if not hidden(p.relative_to(root))]
    with multiprocessing.get_context("spawn").Pool(min(workers or os.cpu_count() or 1, 8)) as pool:
        answers = [pool.apply_async(make_page, (path, root)) for path in paths]
        return [answer.get(SECONDS) for answer in answers]


def hidden(path: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in path.parts)


def page_problems(root: Path) -> Iterator[str]:
    """`page: problem` of the whole site."""
    made = pages(root)
    public = public_symbols(root)
    headings = {page.path: anchors(page, public) for page in made}
    ids = {path: names for path, (names, _) in headings.items()}
    for page in made:
        problems = [*page.problems, *headings[page.path][1]]
        if page.cells:
            problems += link_problems(page, ids, root)
        if page.cells and not has_introduction(page):
            problems.append("the page begins without a sentence: say after the title what it is for")
        yield from (f"nbs/{page.path}: {problem}" for problem in problems)


if __name__ == "__main__":
    # as a module that worker processes can import: a notebook's shell takes the place of __main__
    sys.path.insert(0, str(Path(__file__).parent))
    import pages as this

    found = list(this.page_problems(Path.cwd().resolve()))
    print(*found, sep="\n", end="\n" if found else "")
    sys.stdout.flush()
    os._exit(bool(found))  # a page may have left threads behind
