"""The questions that an atlas answers: the open list of them, and how one is described.

A question is a function of one generation of an atlas. The entry points of the group ``model_atlas.questions`` name it,
in this package as in any other that is installed beside it::

    [project.entry-points."model_atlas.questions"]
    similar = "query.questions.similar:similar"
    "predict.predict_many" = "query.questions.predict.predict:predict_many"

``similar`` is a command of `query`, a method of Atlas and, if its decorator has ``agents``, a tool of agents. A name
before a dot is a command that several functions share; the method has the name after the dot.

The decorator :func:`question` adds the rest of the description. Nothing here imports a question: names are known from
the entry points, and the sentence that `query --help` prints is read in the source.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

from indexer.console.messages import say
from indexer.entry_points import entry_points
from indexer.errors import AtlasError

GROUP = "model_atlas.questions"
OURS = "vectors-in-the-wild"
_NAME = re.compile(r"[a-z][a-z_]{0,39}")
_PLACE = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)")
_SECTION = re.compile(r"^(Args|Attributes|Examples?|Note|Raises|Returns|Yields):$", re.MULTILINE)
_RECORD = "__question__"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Tool:
    """How agents see a question.

    Attributes:
        about: what the tool does; by default the first paragraph of the function's docstring.
        arguments: those that the tool has; by default all that are described.
    """

    about: str = ""
    arguments: tuple[str, ...] = ()


class Invocation(Protocol):
    """One run of a command, as the function of a command gets it; see ``query.faces.cli.asking``.

    ``output``: table, json, jsonl or csv. ``file``: where a picture is written, checked before any work, or None.
    ``theme`` and ``details``: as typed.
    """

    output: str
    file: Path | None
    theme: Any
    details: bool

    def opened(self) -> AbstractContextManager[Any]:
        """The atlas, opened."""

    def opened_if_there(self) -> AbstractContextManager[Any]:
        """As ``opened``; None if no atlas was named and the default folder does not exist."""

    def ask(self, **arguments: Any) -> None:
        """Ask the question and print the answer."""

    def picture(self, out: str | None) -> Path | None:
        """The file of an ``--out`` that the command describes itself, checked before any work is done."""

    def show(self, result: Any, *, drawn: Path | None = None, file: Path | None = None, **shown: Any) -> None:
        """Draw the answer if that was asked for, and print it."""

    def emit(self, rows: Any, **columns: Any) -> None:
        """Print rows, or an object, in the format asked for."""

    def asked(self, atlas: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        """The answer of a function of one generation that is no method of ``atlas``."""

    def names_on_stdin(self) -> list[str]:
        """The models that were named on stdin."""

    def show_many(self, answers: Iterable[Any], count: int, rows_of: Callable[..., list[dict[str, Any]]]) -> None:
        """Print the rows of many answers, each at once."""

    def refuse(self, sentence: str) -> NoReturn:
        """End with a usage error."""

    def fail(self, status: int = 1) -> NoReturn:
        """End with this status, after everything has been printed."""


@dataclass(frozen=True)
class Question:
    """The description of a question beyond its signature and docstring.

    Attributes:
        example: a command line, without the name of the program.
        agents: how agents see it; None if they do not.
        documents: further formats (``--format``) in which the command writes its answer; the first is its default.
        command: the function of the command, if it does more than ask and print; see ``query.faces.cli.asking``. Its
            described arguments are options of the command alone, and its docstring follows that of the function in
            ``--help``.
    """

    example: str = ""
    agents: Tool | None = None
    command: Callable[..., None] | None = None
    documents: tuple[str, ...] = ()


def question(
    *,
    example: str = "",
    agents: Tool | bool = False,
    command: Callable[..., None] | None = None,
    documents: Sequence[str] = (),
) -> Callable[[F], F]:
    """Describe a function as a question; see :class:`Question`. ``agents``: True for a tool that has all arguments."""
    tool = (Tool() if agents else None) if isinstance(agents, bool) else agents

    def decorated(function: F) -> F:
        setattr(function, _RECORD, Question(example, tool, command, tuple(documents)))
        return function

    return decorated


@dataclass(frozen=True)
class Entry:
    """One question of the list. ``package``: the distribution that names it."""

    name: str
    command: str
    module: str
    function: str
    package: str

    def load(self) -> Callable[..., Any]:
        """The function, imported now. Raises AtlasError if a plugin's cannot be; any error if it is ours."""
        try:
            function: Callable[..., Any] = getattr(import_module(self.module), self.function)
            if not isinstance(getattr(function, _RECORD, None), Question):
                raise AttributeError(f"{self.module}:{self.function} is not decorated with {__name__}.question")
        except Exception as error:
            if self.package == OURS:
                raise
            raise AtlasError(f"{self.about} cannot be loaded: {type(error).__name__}: {error}.", "") from error
        return function

    @property
    def about(self) -> str:
        """Its name in error messages."""
        return f"The question {self.name!r} of the package {self.package}"

    @property
    def record(self) -> Question:
        """The description that its decorator made. Raises as ``load`` does."""
        record: Question = getattr(self.load(), _RECORD)
        return record

    def summary(self) -> str:
        """The first paragraph of its docstring, read in the source; "" and a line on stderr if there is no function."""
        try:
            text = _docstring_in_source(self.module, self.function)
            text = text if text is not None else self.load().__doc__ or ""
        except Exception as error:
            if self.package == OURS:
                raise
            _say_once(f"{self.about} is left out: {' '.join(str(error).split())}")
            return ""
        return help_of(text).partition("\n\n")[0]


def help_of(docstring: str, typed: Mapping[str, str] | None = None) -> str:
    """A docstring as the help of a command: without its sections, and ``names`` as they are ``typed``.

    None, where that is not known: in capitals, as those of arguments are.
    """
    text = _SECTION.split(cleandoc(docstring), maxsplit=1)[0].strip()
    return re.sub(
        r"``([a-z_]+)``", lambda match: match[1].upper() if typed is None else typed.get(match[1], match[1]), text
    )


def _docstring_in_source(module: str, function: str) -> str | None:
    """The docstring of a function of a module that is not imported for it; None if its source does not show it."""
    spec = find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    try:
        source = Path(spec.origin).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):  # in an archive, or in another encoding
        return None
    # Parsing whole files would take a tenth of a second for all questions.
    match = re.search(rf"^def {function}\(.*?(?=^[^\s)#]|\Z)", source, re.MULTILINE | re.DOTALL)
    if match is None:
        return None
    try:
        return ast.get_docstring(ast.parse(match[0]).body[0])  # type: ignore[arg-type]
    except SyntaxError:
        return None


# ---- the list


@cache
def questions() -> Mapping[str, Entry]:
    """Every question by the name of its method; ours come first.

    A plugin's that has a name of ours, or of an earlier plugin, is left out with a line on stderr. Raises AtlasError if
    the installed metadata of this package lists none.
    """
    entries: dict[str, Entry] = {}
    entries_found = list(_entries())
    if not any(entry.package == OURS for entry in entries_found):
        raise AtlasError(
            "The installed metadata of vectors-in-the-wild is older than its code and lists no question.",
            "Install it again, in the folder of the project: pip install -e .",
        )
    owners = dict.fromkeys(RESERVED, OURS)
    for entry in sorted(entries_found, key=lambda entry: entry.package != OURS):
        names = {entry.name, entry.command}
        other_packages = {owners.get(name, entry.package) for name in names} - {entry.package}
        if other_packages or entry.name in entries:
            _say_once(
                f"{entry.about} is left out: {', '.join(other_packages or {entry.package})} has one of this name."
            )
            continue
        entries[entry.name] = entry
        owners |= dict.fromkeys(names, entry.package)
    return entries


# Names of commands and attributes of Atlas that are no questions, and attributes of ``AtlasReader`` for scripts.
RESERVED = frozenset({
    "background", "base_named", "base_row", "bases", "browse", "centre", "close", "connection", "crawl_of",
    "database", "delta_keys", "find", "folder", "from_folders", "generation", "help", "index", "is_demo",
    "is_outdated", "is_published", "latest", "model", "notes", "path", "published", "published_base", "refresh",
    "require_base_elsewhere", "require_writable", "rows", "schema", "serve", "similar_many", "similarity_error",
    "state",
})  # fmt: skip


def commands() -> dict[str, list[Entry]]:
    """The questions of each command; the first provides its help and its example."""
    by_command: dict[str, list[Entry]] = {}
    for entry in questions().values():
        by_command.setdefault(entry.command, []).append(entry)
    return {name: sorted(entries, key=lambda entry: entry.name != name) for name, entries in by_command.items()}


def tools() -> Iterator[tuple[Entry, Tool]]:
    """The questions that agents have. This imports every question; one that fails is a line on stderr."""
    for entry in questions().values():
        try:
            tool = entry.record.agents
        except AtlasError as error:
            _say_once(str(error))
            continue
        if tool is not None:
            yield entry, tool


def _entries() -> Iterator[Entry]:
    """The questions that installed packages name, as they name them."""
    for line in entry_points(GROUP):
        command, _, method = line.name.rpartition(".")
        match = _PLACE.fullmatch(line.place.partition("[")[0].strip())  # without the extras that it needs
        if match is None or not _NAME.fullmatch(method) or not _NAME.fullmatch(command or method):
            text = f"{line.name} = {line.place}"
            _say_once(f"The package {line.package} names a question in a way that cannot be read: {text[:200]}")
            continue
        yield Entry(method, command or method, match[1], match[2], line.package)


_said: set[str] = set()


def _say_once(sentence: str) -> None:
    if sentence not in _said:
        _said.add(sentence)
        say(sentence)
