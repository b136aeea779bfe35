"""Real text that every installation has: the sources of the standard library and of the installed dependencies.

Nothing is imported to be read and nothing is downloaded: packages are found on disk, parsed with ``ast`` in a
fixed order, and capped by a fixed number of files. Every excerpt carries the facts that the source itself
states about it (its package, the exception a message was raised with, the section it stood in …), and a data
set is a choice of one such fact as the label.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import keyword
import re
import tokenize
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from indexer.errors import AtlasError

SHORTEST, LONGEST = 24, 320  # characters of one excerpt
LARGEST_FILE = 400_000  # bytes; generated tables lie above it
NOT_READ = {"tests", "test", "testing", "_vendor", "externals", "idlelib", "__pycache__"}
NUMPYDOC_SECTION = re.compile(r"^(\w[\w ]+)\n-{3,}\n", re.MULTILINE)

BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")  # where statements hold statements

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Excerpt:
    """A short text and what is true of it; ``pieces`` is the text cut into labelled words, where it is."""

    text: str
    facts: Mapping[str, str]
    pieces: tuple[tuple[str, str], ...] = field(default=())


@dataclass(frozen=True)
class Module:
    """One source file, parsed."""

    package: str
    source: str
    tree: ast.Module


def collect(wanted: Collection[tuple[str, str]], files: int) -> dict[tuple[str, str], list[Excerpt]]:
    """The excerpts of every wanted (source, package), in a fixed order; each module is parsed once.

    Args:
        wanted: a source is a key of ``READERS`` with an importable package, or of ``TABLES`` with "".
        files: how many files of each package are read, spread evenly over its sorted list.

    Raises:
        AtlasError: a package is not installed.
    """
    found: dict[tuple[str, str], list[Excerpt]] = {pair: [] for pair in sorted(wanted)}
    for package in sorted({package for _, package in wanted}):
        sources = sorted(source for source, of in wanted if of == package)
        modules = read_modules(package, files) if package else ()
        for module in modules:
            for source in sources:
                found[source, package].extend(fitting(READERS[source](module)))
    for source, package in found:
        if not package:
            found[source, package].extend(fitting(TABLES[source]()))
    return found


def is_table(source: str) -> bool:
    """Whether a source is read from one place and not from packages."""
    return source in TABLES


def fitting(excerpts: Iterable[Excerpt]) -> Iterator[Excerpt]:
    """Excerpts that are neither too short nor too long."""
    return (excerpt for excerpt in excerpts if SHORTEST <= len(excerpt.text) <= LONGEST)


def read_modules(package: str, files: int) -> Iterator[Module]:
    """Parse ``files`` modules of an installed package; files that do not parse are skipped."""
    for path in module_paths(package, files):
        source = path.read_text(encoding="utf-8", errors="replace")
        try:
            yield Module(package, source, ast.parse(source))
        except (SyntaxError, ValueError, RecursionError):
            continue


def module_paths(package: str, files: int) -> list[Path]:
    """Paths of a package's sources, sorted, without tests, at most ``files``, spread evenly."""
    specification = importlib.util.find_spec(package)
    if specification is None:
        raise AtlasError(
            f"The text of {package!r} is needed to make the family and it is not installed.",
            "Install the project with its demo extra.",
        )
    if not specification.submodule_search_locations:
        return [Path(specification.origin)] if specification.origin else []
    root = Path(specification.submodule_search_locations[0])
    paths = sorted(path for path in root.rglob("*.py") if not NOT_READ & set(path.relative_to(root).parts))
    paths = [path for path in paths if 200 < path.stat().st_size < LARGEST_FILE]
    return [paths[index * len(paths) // files] for index in range(files)] if len(paths) > files else paths


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Every statement, at any depth; walking expressions too would take five times as long."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        inner = [entry for name in BLOCKS for entry in getattr(node, name, ())]
        waiting += reversed(inner)
        if isinstance(node, ast.stmt):
            yield node


def one_line(text: str) -> str:
    """Collapse white space and cut at the last word that fits."""
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[:LONGEST].rsplit(" ", 1)[0]


def definitions(module: Module) -> Iterator[tuple[Definition, str]]:
    """Every class, function and method with what it is; functions inside functions are left out."""
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef):
            yield node, "class"
            yield from ((inner, "method") for inner in node.body if isinstance(inner, ast.FunctionDef))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node, "function"


def read_docstrings(module: Module) -> Iterator[Excerpt]:
    """The beginning of each docstring: facts ``package`` and ``kind``."""
    for node, kind in definitions(module):
        documentation = ast.get_docstring(node)
        if documentation:
            yield Excerpt(one_line(documentation), {"package": module.package, "kind": kind})


def read_sections(module: Module) -> Iterator[Excerpt]:
    """Bodies of numpydoc sections, title removed: facts ``package`` and ``section``."""
    for node, _ in definitions(module):
        parts = NUMPYDOC_SECTION.split(ast.get_docstring(node) or "")
        for title, body in zip(parts[1::2], parts[2::2], strict=True):
            yield Excerpt(one_line(body), {"package": module.package, "section": title})


def read_messages(module: Module) -> Iterator[Excerpt]:
    """Messages of exceptions: facts ``package`` and ``exception`` (the class raised)."""
    for node in statements(module.tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            if isinstance(node.exc.func, ast.Name):
                facts = {"package": module.package, "exception": node.exc.func.id}
                yield Excerpt(one_line(literal_text(node.exc.args[0])), facts)


def literal_text(node: ast.expr) -> str:
    """The text of a string literal, ``{}`` for what an f-string fills in; "" for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(literal_text(part) or "{}" for part in node.values)
    return ""


def read_signatures(module: Module) -> Iterator[Excerpt]:
    """``name(arguments)`` as written: facts ``package`` and ``kind``."""
    for node, kind in definitions(module):
        if not isinstance(node, ast.ClassDef):
            written = f"{node.name}({ast.unparse(node.args)})"
            yield Excerpt(one_line(written), {"package": module.package, "kind": kind})


STATEMENTS: Mapping[type[ast.stmt], str] = {
    ast.Assign: "assignment",
    ast.Return: "return",
    ast.If: "condition",
    ast.For: "loop",
    ast.Assert: "assertion",
}
SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return, ast.Raise, ast.Assert)


def read_lines(module: Module) -> Iterator[Excerpt]:
    """Single lines of code, and comments without their ``#``: facts ``package`` and ``kind`` of line."""
    lines = module.source.splitlines()
    inside: set[int] = set()  # lines after the first of a statement, where a string may hold a "#"
    for node in statements(module.tree):
        is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        kind = "call" if is_call else STATEMENTS.get(type(node))
        if kind and node.lineno <= len(lines):
            written = lines[node.lineno - 1].strip()
            yield Excerpt(one_line(written), {"package": module.package, "kind": kind})
        if isinstance(node, SIMPLE):
            inside.update(range(node.lineno + 1, (node.end_lineno or node.lineno) + 1))
    for number, line in enumerate(lines, start=1):
        written = line.strip()
        if written.startswith("# ") and number not in inside:
            facts = {"package": module.package, "kind": "comment"}
            yield Excerpt(one_line(written.strip("# ")), facts)


def read_code_words(module: Module) -> Iterator[Excerpt]:
    """Statements cut into their Python tokens: ``pieces`` are (word, keyword|name|number|string|operator)."""
    lines = module.source.splitlines()
    for node in statements(module.tree):
        if not isinstance(node, ast.Assign | ast.Return | ast.Expr) or node.lineno != node.end_lineno:
            continue
        written = lines[node.lineno - 1].strip() if node.lineno <= len(lines) else ""
        if not SHORTEST <= len(written) <= LONGEST:
            continue
        try:
            tokens = list(tokenize.generate_tokens(io.StringIO(written).readline))
        except (tokenize.TokenError, SyntaxError):
            continue
        pieces = tuple((token.string, word_kind(token)) for token in tokens if token.string.strip())
        if len(pieces) >= 4:
            yield Excerpt(one_line(written), {"package": module.package}, pieces)


def word_kind(token: tokenize.TokenInfo) -> str:
    """The kind of a word by Python's own tokenizer; keywords are distinguished from names."""
    if token.type == tokenize.NAME:
        return "keyword" if keyword.iskeyword(token.string) else "name"
    if "STRING" in tokenize.tok_name[token.type]:  # since 3.12 an f-string is several tokens
        return "string"
    return {tokenize.NUMBER: "number", tokenize.COMMENT: "comment"}.get(token.type, "operator")


def language_topics() -> Iterator[Excerpt]:
    """Paragraphs of the language reference that ``help()`` prints: fact ``topic``."""
    origin = importlib.util.find_spec("pydoc_data.topics")
    if origin is None or origin.origin is None:
        raise AtlasError("This Python comes without pydoc_data.", "Use a complete Python to make the family.")
    tree = ast.parse(Path(origin.origin).read_text(encoding="utf-8"))
    topics = next(node.value for node in tree.body if isinstance(node, ast.Assign))
    for topic, text in sorted(ast.literal_eval(topics).items()):
        for paragraph in text.split("\n\n"):
            yield Excerpt(one_line(paragraph), {"topic": topic})


CATEGORIES = {"L": "letter", "M": "mark", "N": "number", "P": "punctuation", "S": "symbol"}


def character_names() -> Iterator[Excerpt]:
    """Names of the characters below U+3000, three neighbours of one kind at a time: fact ``category``."""
    run: list[str] = []
    category = ""
    for code in range(0x3000):
        character = chr(code)
        name, kind = unicodedata.name(character, ""), CATEGORIES.get(unicodedata.category(character)[0], "")
        if not name or not kind:
            continue
        if kind != category:
            run, category = [], kind
        run.append(name)
        if len(run) == 3:
            yield Excerpt(one_line(", ".join(run)), {"category": category})
            run = []


READERS: Mapping[str, Callable[[Module], Iterator[Excerpt]]] = {
    "docstrings": read_docstrings,
    "sections": read_sections,
    "messages": read_messages,
    "signatures": read_signatures,
    "lines": read_lines,
    "code words": read_code_words,
}
TABLES: Mapping[str, Callable[[], Iterator[Excerpt]]] = {
    "language topics": language_topics,
    "character names": character_names,
}
