"""The questions of an atlas as tools for agents: functions of plain arguments with typed answers.

A tool has the arguments of its question, with the texts and bounds of their options. Here is only what is special for
agents: smaller bounds, arguments of the tool alone, and which parts of an answer an agent is given.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import Field

from indexer.console.advice import IN_BACKTICKS, for_command_line, parse_call
from indexer.console.option import Described, Option, described, types_in
from indexer.console.terminal import as_plain
from indexer.errors import AtlasError, ModelError
from indexer.sources.registry import is_listed_id
from query.ask.ask import MOST_TEXTS
from query.atlas import Atlas, contents, generations
from query.registry import Entry, Tool, help_of, questions, tools
from query.results import Result
from query.serve import answers

MOST_NEIGHBOURS = 200
MOST_ROWS = 1_000
MOST_COLUMNS = 60
MOST_SECONDS = 30.0
_OPTION = re.compile(r"(?<!\S)--?[a-z]")
_NOT_FOR_AGENTS = {"signature", "fingerprint"}  # codes for programs

A = TypeVar("A")
Arguments = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """How the tool of a question differs from it.

    Attributes:
        kind: the keys of its answer.
        parts: the parts that are not keys of the result's JSON, from the result and the arguments.
        most: upper bounds of arguments.
        own: arguments that only the tool has, or has otherwise, by name: type, bounds and text, and default.
        asked: the arguments of the question, from those of the tool.
        says: whether the answer has the headline and the notes of the result.
    """

    kind: type = answers.Other
    parts: Callable[[Any, Arguments], Arguments] = lambda _found, _arguments: {}
    most: Mapping[str, float] = field(default_factory=dict)
    own: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    asked: Callable[[Arguments], Arguments] = lambda arguments: arguments
    says: bool = True


def _without(name: str) -> Callable[[Arguments], Arguments]:
    return lambda arguments: {key: value for key, value in arguments.items() if key != name}


def _neighbours(found: Any, _: Arguments) -> Arguments:
    return {"neighbours": [{"because": None, **one.as_row()} for one in found]}


def _likely(found: Any, _: Arguments) -> Arguments:
    names = answers.LikelyDataset.__annotations__
    return {"answers": [{name: row[name] for name in names} for row in found.to_rows()]}


def _facts(found: Any, _: Arguments) -> Arguments:
    known = found.to_dict()
    kept = [name for name in known if name not in _NOT_FOR_AGENTS and known[name] not in (None, [], "")]
    return {"model": found["model"], "facts": {name: known[name] for name in kept}}


def _traced(found: Any, _: Arguments) -> Arguments:
    left_out = ("model", "base", "words", "notes")
    known = {name: value for name, value in found.to_dict().items() if name not in left_out}
    facts = {name: value for name, value in known.items() if value not in (None, [])}
    return {"facts": facts, "words": [one.word for one in found.words]}


def _across(found: Any, _: Arguments) -> Arguments:
    across = found.to_dict()["cross_author"]
    return {"cross_author": {name: across[name] for name in answers.CrossAuthor.__annotations__}}


def _members(found: Any, arguments: Arguments) -> Arguments:
    rows = [
        {name: value for name, value in row.items() if name not in ("members", "undocumented")}
        for row in found.to_dict()["clusters"]
    ]
    cluster = arguments["members_of"]
    return {"clusters": rows, "members": [] if cluster is None else found.names_in(cluster)}


def _first(found: Any, arguments: Arguments) -> Arguments:
    rows, limit = found.to_rows(), arguments["limit"]
    return {"datasets": rows[:limit], "truncated": len(rows) > limit}


def _rows(found: Any, _: Arguments) -> Arguments:
    is_wide = len(found.columns) > MOST_COLUMNS
    return {
        "shortened": [f"columns: {MOST_COLUMNS} of {len(found.columns)}"] if is_wide else [],
        "columns": [name[:80] for name in found.columns[:MOST_COLUMNS]],
        "rows": Exact(as_plain([row[:MOST_COLUMNS] for row in found.rows])),
        "truncated": found.truncated or is_wide,
    }


class Exact(list[Any]):
    """Rows whose numbers are not rounded."""


def _own(kind: Any, about: str, default: Any = inspect.Parameter.empty, **bounds: Any) -> tuple[Any, Any]:
    return Annotated[kind, Field(description=about, **bounds)], default


# In the order in which agents see them; the tools of plugins follow.
_SHAPES: dict[str, Shape] = {
    "similar": Shape(answers.Similar, _neighbours, most={"k": MOST_NEIGHBOURS}),
    "predict": Shape(answers.Predicted, _likely, most={"k": 100}),
    "show": Shape(answers.Shown, _facts),
    "trace": Shape(answers.Traced, _traced),
    "ask": Shape(
        answers.Asked,
        most={"k": MOST_NEIGHBOURS},
        own={
            "texts": _own(
                list[str],
                "A few dozen texts of one kind, to find models for; the first 64 tokens of each are used.",
                min_length=1,
                max_length=MOST_TEXTS,
            )
        },
        asked=lambda arguments: {"file": arguments["texts"], **_without("texts")(arguments)},
    ),
    "compare": Shape(answers.Compared, lambda found, _: {"facts": found.to_dict()}),
    "layers": Shape(answers.Changed),
    "lineage": Shape(answers.Ancestry),
    "purity": Shape(answers.Purity, _across),
    "clusters": Shape(
        answers.Clustered,
        _members,
        own={"members_of": _own(int | None, "Also list the models of this cluster.", None)},
        asked=_without("members_of"),
    ),
    "datasets": Shape(
        answers.Datasets,
        _first,
        own={"limit": _own(int, "Maximum number of datasets.", 100, ge=1, le=MOST_ROWS)},
        asked=_without("limit"),
        says=False,
    ),
    "sql": Shape(
        answers.Rows,
        _rows,
        own={
            "limit": _own(int, "Maximum number of rows.", 100, ge=1, le=MOST_ROWS),
            "seconds": _own(float, "Time limit in seconds.", 10.0, gt=0, le=MOST_SECONDS),
        },
    ),
}


class Tools:
    """The tools of an atlas, which is opened for the first question and reopened after each publish."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: Atlas | None = None

    @cached_property
    def all(self) -> dict[str, Callable[..., Any]]:
        """The tools by name. This imports every question."""
        found = {entry.name: (entry, tool) for entry, tool in tools()}
        names = [name for name in _SHAPES if name in found] + [name for name in found if name not in _SHAPES]
        return {"bases": self.bases} | {name: self._tool(*found[name]) for name in names}

    def _named(self, name: str) -> Callable[..., Any]:
        """One tool; no other question is imported."""
        if name == "bases" or name not in questions():
            return self.all[name]
        entry = questions()[name]
        tool = entry.record.agents
        return self.all[name] if tool is None else self._tool(entry, tool)

    def _tool(self, entry: Entry, tool: Tool) -> Callable[..., Any]:
        """A function that answers the question, with the signature and the description of the tool."""
        function, shape = entry.load(), _SHAPES.get(entry.name, Shape())

        def ask(**arguments: Any) -> Any:
            given = {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}
            arguments = given | arguments
            found = getattr(self._atlas, entry.name)(**shape.asked(arguments))
            parts = shape.parts(found, arguments)
            if shape.kind is answers.Other:
                parts = {"answer": found.to_dict() if isinstance(found, Result) else found}
            return self._answer(shape.kind, found if shape.says and isinstance(found, Result) else None, **parts)

        parameters = list(_parameters(described(function), tool, shape))
        ask.__signature__ = inspect.Signature(parameters, return_annotation=shape.kind)  # type: ignore[attr-defined]
        ask.__name__ = ask.__qualname__ = entry.name
        ask.__doc__ = tool.about or help_of(function.__doc__ or "").partition("\n\n")[0]
        return ask

    def answer(self, tool: str, arguments: Mapping[str, Any]) -> tuple[answers.Answer | None, str]:
        """The shortened answer of a tool, or None and an error in one line."""
        try:
            found = self._named(tool)(**arguments)
            return answers.bounded(found), ""
        except AtlasError as error:
            message = self._for_agents(error.message) or for_command_line(error.message)
            # An agent cannot follow advice about the command line.
            hint = "" if _OPTION.search(error.hint) else self._for_agents(error.hint)
            return None, f"{message} {hint}".strip()
        except ModelError as error:
            return None, f"{error.detail.rstrip('.')}."
        except OSError as error:
            return None, f"The atlas could not be read: {error.strerror or type(error).__name__}."

    def _for_agents(self, text: str) -> str:
        """``text`` with calls in backticks as tool calls; "" if it names a function that is not a tool."""
        calls = [call for code in IN_BACKTICKS.findall(text) if (call := parse_call(code)) is not None]
        named = {name.removeprefix("atlas.") for name, _, _ in calls if name}
        arguments = {name: list(inspect.signature(self.all[name]).parameters) for name in named if name in self.all}
        if named - set(arguments):
            return ""

        def as_tool(found: re.Match[str]) -> str:
            call = parse_call(found[1])
            if call is None:
                return found[1]
            name, places, given = call
            tool = name.removeprefix("atlas.")
            given = dict(zip(arguments[tool], places, strict=False)) | given if tool else given
            words = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in given.items())
            return f"{tool}({words})" if tool else words

        return IN_BACKTICKS.sub(as_tool, text)

    @property
    def _atlas(self) -> Atlas:
        if self._opened is None:
            self._opened = Atlas(self._folder)
        elif self._opened.is_outdated:
            self._opened.refresh()
        return self._opened

    def _answer(self, kind: type[A], found: Result | None, **parts: Any) -> A:
        """The keys of ``kind``: from ``parts``, or else from the result's JSON, rounded; ``summary`` is its headline.

        Advice in a note that does not call a tool is for the user of the agent: a command.
        """
        notes = [] if found is None else [self._for_agents(one) or for_command_line(one) for one in found.notes]
        common = {"summary": "" if found is None else found.headline, "notes": list(dict.fromkeys(notes))}
        known = {**({} if found is None else found.to_dict()), **common, "shortened": [], **parts}
        rounded = {
            name: list(value) if isinstance(value := known[name], Exact) else answers.rounded(as_plain(value))
            for name in kind.__annotations__
        }
        return cast(A, rounded)

    def bases(self) -> answers.Bases:
        """List the base models of the atlas, how many fine-tunes of each are indexed, and the published vectors."""
        return self._answer(
            answers.Bases,
            None,
            bases=[row for row in generations(self._atlas).asked(contents) if is_listed_id(row["base"])],
        )


def _parameters(options: Iterable[Described], tool: Tool, shape: Shape) -> Iterable[inspect.Parameter]:
    """The arguments of a tool: those of the question that agents have, then its own; required ones come first."""
    kind = inspect.Parameter.KEYWORD_ONLY
    chosen = [one for one in options if not tool.arguments or one.name in tool.arguments]
    found = [
        inspect.Parameter(one.name, kind, default=one.default, annotation=_annotation(one, shape.most.get(one.name)))
        for one in chosen
        if one.name not in shape.own
    ]
    own = [inspect.Parameter(name, kind, default=one[1], annotation=one[0]) for name, one in shape.own.items()]
    return sorted([*found, *own], key=lambda one: one.default is not inspect.Parameter.empty)


def _annotation(one: Described, most: float | None) -> Any:
    """The type of an argument with its text and bounds, as pydantic has them."""
    bounds: Arguments = {}
    if isinstance(one.option, Option):
        bounds = {"gt" if one.option.is_open else "ge": one.option.least, "le": most or one.option.most}
        bounds = {name: value for name, value in bounds.items() if value is not None}
    kind = str | None if type(None) in types_in(one.type) else str
    is_path = Path in types_in(one.type)
    return Annotated[kind if is_path else one.type, Field(description=one.option.agents or one.option.text, **bounds)]
