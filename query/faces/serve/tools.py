"""The questions of an atlas as tools for agents: functions of plain arguments with typed answers.

A tool has the arguments of its question, with the texts and bounds of their options. This module has the differences:
smaller bounds, arguments of the tool alone, and the parts of an answer that agents get.
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

from indexer.console.advice import for_command_line, written
from indexer.console.option import Described, Option, described, types_in
from indexer.console.terminal import as_plain
from indexer.errors import AtlasError, Call, ModelError, Text
from indexer.sources.registry import is_listed_id
from query.contract.registry import Entry, Tool, help_of, questions, tools
from query.contract.results import Result, answer_classes
from query.faces.atlas import Atlas, contents, generations
from query.faces.serve import answers
from query.questions.ask.ask import MOST_TEXTS

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
    """The differences between a question and its tool.

    Attributes:
        keys: the keys of the result's JSON in the tool's answer; None for all of them under ``answer``.
        rows: for some keys, the keys of their rows, or of their object, in the tool's answer; by default all.
        extra_keys: the types of keys that the result does not have, by name.
        parts: a function of the result and the arguments: the values of ``extra_keys``, and changed values of the JSON.
        most: upper bounds of arguments.
        own_arguments: arguments that the question lacks, or has with other bounds, by name: annotation and default.
        to_question: from the arguments of the tool to those of the question.
        has_summary: whether the tool's answer has the headline and the notes of the result.
    """

    keys: tuple[str, ...] | None = None
    rows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    extra_keys: Mapping[str, Any] = field(default_factory=dict)
    parts: Callable[[Any, Arguments], Arguments] = lambda _result, _arguments: {}
    most: Mapping[str, float] = field(default_factory=dict)
    own_arguments: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    to_question: Callable[[Arguments], Arguments] = lambda arguments: arguments
    has_summary: bool = True

    def type_of(self, result: type[Any]) -> Any:
        """The type of the tool's answer, for a question with answers of the class ``result``."""
        return answers.answer_type(result, self.keys or (), self.rows, self.extra_keys)

    def keys_of(self, answer: Any) -> Arguments:
        """The ``keys`` of a question's answer, with their values in its JSON."""
        if self.keys is None:
            return {"answer": answer.to_dict() if isinstance(answer, Result) else answer}
        values = answer.to_dict()
        return {name: _only(values[name], self.rows.get(name)) for name in self.keys}


def _only(value: Any, keys: tuple[str, ...] | None) -> Any:
    if keys is None:
        return value
    if isinstance(value, list):
        return [_only(item, keys) for item in value]
    return {name: value[name] for name in keys}


def _without(name: str) -> Callable[[Arguments], Arguments]:
    return lambda arguments: {key: value for key, value in arguments.items() if key != name}


def _likely(prediction: Any, _: Arguments) -> Arguments:
    return {"answers": [_only(row, _LIKELY) for row in prediction.to_rows()]}


def _facts(model: Any, _: Arguments) -> Arguments:
    facts = model.to_dict()
    names = [name for name in facts if name not in _NOT_FOR_AGENTS and facts[name] not in (None, [], "")]
    return {"model": model["model"], "facts": {name: facts[name] for name in names}}


def _traced(trace: Any, _: Arguments) -> Arguments:
    left_out = ("model", "base", "words", "notes")
    values = {name: value for name, value in trace.to_dict().items() if name not in left_out}
    facts = {name: value for name, value in values.items() if value not in (None, [])}
    return {"facts": facts, "words": [entry.word for entry in trace.words]}


def _members(clusters: Any, arguments: Arguments) -> Arguments:
    cluster = arguments["members_of"]
    return {"members": [] if cluster is None else clusters.names_in(cluster)}


def _first(result: Any, arguments: Arguments) -> Arguments:
    rows, limit = result.to_rows(), arguments["limit"]
    return {"datasets": rows[:limit], "truncated": len(rows) > limit}


def _rows(result: Any, _: Arguments) -> Arguments:
    is_wide = len(result.columns) > MOST_COLUMNS
    return {
        "shortened": [f"columns: {MOST_COLUMNS} of {len(result.columns)}"] if is_wide else [],
        "columns": [name[:80] for name in result.columns[:MOST_COLUMNS]],
        "rows": Exact(as_plain([row[:MOST_COLUMNS] for row in result.rows])),
        "truncated": result.truncated or is_wide,
    }


class Exact(list[Any]):
    """Rows whose numbers are not rounded."""


def _own(kind: Any, description: str, default: Any = inspect.Parameter.empty, **bounds: Any) -> tuple[Any, Any]:
    return Annotated[kind, Field(description=description, **bounds)], default


def _key(kind: Any, description: str) -> Any:
    return Annotated[kind, Field(description=description)]


_MODEL = _key(str, "Id of the model: owner/name on the Hub, or local:NAME for one that was added from a folder.")
_LIKELY = ("dataset", "probability", "votes")
_SCORE = (
    "models", "datasets", "purity", "chance", "ci_low", "ci_high", "p_value", "permutations", "reached", "is_exact",
    "effect",
)  # fmt: skip
_TRUNCATED = _key(bool, "Whether there is more than was returned.")

# The order of the tools for agents; the tools of plugins follow.
_SHAPES: dict[str, Shape] = {
    "similar": Shape(("model", "base", "representation", "neighbours"), most={"k": MOST_NEIGHBOURS}),
    "predict": Shape(
        ("model", "base", "calibrated", "answers"), rows={"answers": _LIKELY}, parts=_likely, most={"k": 100}
    ),
    "show": Shape(
        (),
        extra_keys={
            "model": _MODEL,
            "facts": _key(
                dict[str, Any],
                "Known facts by name: columns of the tables fine_tunes and records (resource "
                "atlas://schema/fine_tunes), datasets, tags, families, neighbours. Unknown facts are left out.",
            ),
        },
        parts=_facts,
    ),
    "trace": Shape(
        ("model", "base"),
        extra_keys={
            "facts": _key(
                dict[str, Any],
                "Findings from the embedding: class (exact, statistical, frozen or none), tokens met of the rows "
                "that were "
                "read, the longest input, whether inputs were pairs or masked, scripts.",
            ),
            "words": _key(list[str], "Words that set the model apart from others of its base, whole words first."),
        },
        parts=_traced,
    ),
    "ask": Shape(
        ("base", "texts", "searched", "standing_out", "models"),
        most={"k": MOST_NEIGHBOURS},
        own_arguments={
            "texts": _own(
                list[str],
                "A few dozen texts of one kind, to find models for; the first 64 tokens of each are used.",
                min_length=1,
                max_length=MOST_TEXTS,
            )
        },
        to_question=lambda arguments: {"file": arguments["texts"], **_without("texts")(arguments)},
    ),
    "compare": Shape(
        ("a", "b"),
        extra_keys={
            "facts": _key(
                dict[str, Any],
                "similarity (from -1 to 1), background (share of unrelated pairs at least as similar), matrices, "
                "layers "
                "and families (similarity, norms), and facts of both models side by side.",
            )
        },
        parts=lambda comparison, _: {"facts": comparison.to_dict()},
    ),
    "layers": Shape(("model", "base", "read", "norm", "norm_error", "layers", "families")),
    "lineage": Shape(("model", "base", "verdict", "edges", "bytes_read")),
    "purity": Shape(
        (*_SCORE, "base", "representation", "purity_by_dataset_mean", "cross_author", "by_dataset"),
        rows={"cross_author": _SCORE},
    ),
    "clusters": Shape(
        (
            "base", "representation", "method", "models", "clustered", "outliers", "ari", "ami", "silhouette",
            "clusters",
        ),
        rows={
            "clusters": ("cluster", "size", "datasets", "authors", "central", "cohesion", "probably", "share"),
        },
        extra_keys={"members": _key(list[str], "Models of the cluster that was asked for.")},
        parts=_members,
        own_arguments={"members_of": _own(int | None, "Also list the models of this cluster.", None)},
        to_question=_without("members_of"),
    ),
    "datasets": Shape(
        ("datasets",),
        extra_keys={"truncated": _TRUNCATED},
        parts=_first,
        own_arguments={"limit": _own(int, "Maximum number of datasets.", 100, ge=1, le=MOST_ROWS)},
        to_question=_without("limit"),
        has_summary=False,
    ),
    "sql": Shape(
        (),
        extra_keys={
            "columns": _key(list[str], "Names of the columns."),
            "rows": _key(
                list[list[Any]],
                "Rows of values in the order of the columns. Times are ISO 8601 in UTC; numbers that are not "
                "finite are "
                "null.",
            ),
            "truncated": _TRUNCATED,
        },
        parts=_rows,
        own_arguments={
            "limit": _own(int, "Maximum number of rows.", 100, ge=1, le=MOST_ROWS),
            "seconds": _own(float, "Time limit in seconds.", 10.0, gt=0, le=MOST_SECONDS),
        },
    ),
}  # fmt: skip


def _shape_of(entry: Entry, result: type[Any] | None) -> Shape:
    """The shape of a question's tool; for plugins, one with the whole answer under one key."""
    kind = Any if result is None else answers.row_type(result)
    description = "The answer of the question, as the JSON object of its command."
    return _SHAPES.get(entry.name) or Shape(extra_keys={"answer": _key(kind, description)})


_Bases = answers.answer_type(
    Result,
    (),
    {},
    {"bases": _key(list[answers.row_type(answers.BaseOfAtlas)], "The base models of the atlas.")},  # type: ignore[misc]
)


class Tools:
    """The tools of an atlas, which is opened for the first call and reopened after each publish."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: Atlas | None = None

    @cached_property
    def all(self) -> dict[str, Callable[..., Any]]:
        """The tools by name. This imports every question."""
        entries = {entry.name: (entry, tool) for entry, tool in tools()}
        names = [name for name in _SHAPES if name in entries] + [name for name in entries if name not in _SHAPES]
        return {"bases": self.bases} | {name: self._tool(*entries[name]) for name in names}

    def _named(self, name: str) -> Callable[..., Any]:
        """The tool with this name; no other question is imported."""
        if name == "bases" or name not in questions():
            return self.all[name]
        entry = questions()[name]
        tool = entry.record.agents
        return self.all[name] if tool is None else self._tool(entry, tool)

    def _tool(self, entry: Entry, tool: Tool) -> Callable[..., Any]:
        """A function that runs the question, with the signature and the description of the tool."""
        function = entry.load()
        result = next(iter(answer_classes(function)), None)
        shape = _shape_of(entry, result)
        kind = shape.type_of(result or Result)

        def ask(**arguments: Any) -> Any:
            defaults = {parameter.name: parameter.default for parameter in parameters if not _is_required(parameter)}
            arguments = defaults | arguments
            answer = getattr(self._atlas, entry.name)(**shape.to_question(arguments))
            parts = shape.keys_of(answer) | shape.parts(answer, arguments)
            return self._answer(kind, answer if shape.has_summary and isinstance(answer, Result) else None, **parts)

        parameters = list(_parameters(described(function), tool, shape))
        ask.__signature__ = inspect.Signature(parameters, return_annotation=kind)  # type: ignore[attr-defined]
        ask.__name__ = ask.__qualname__ = entry.name
        ask.__doc__ = tool.about or help_of(function.__doc__ or "").partition("\n\n")[0]
        return ask

    def answer(self, tool: str, arguments: Mapping[str, Any]) -> tuple[answers.Answer | None, str]:
        """The shortened answer of a tool, or None and an error in one line."""
        try:
            answer = self._named(tool)(**arguments)
            return answers.bounded(answer), ""
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
        """``text`` with its calls as tool calls; "" if one is of a function that is not a tool."""
        calls = [part for part in text.parts if isinstance(part, Call)] if isinstance(text, Text) else []
        if any(call.function and call.function not in self.all for call in calls):
            return ""

        def as_tool(call: Call) -> str:
            arguments = call.named
            if call.function:
                arguments = (
                    dict(zip(inspect.signature(self.all[call.function]).parameters, call.places, strict=False))
                    | arguments
                )
            words = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
            return f"{call.function}({words})" if call.function else words

        return written(text, as_tool, str).replace("`", "")  # around commands

    @property
    def _atlas(self) -> Atlas:
        if self._opened is None:
            self._opened = Atlas(self._folder)
        elif self._opened.is_outdated:
            self._opened.refresh()
        return self._opened

    def _answer(self, kind: type[A], result: Result | None, **keys: Any) -> A:
        """An answer with ``keys``, rounded, and the keys of every answer; ``summary`` is the headline of the result.

        Notes contain calls of tools; a note whose call is not a tool has a command, for the user of the agent.
        """
        notes = [] if result is None else [self._for_agents(note) or for_command_line(note) for note in result.notes]
        usual_keys = {"summary": "" if result is None else result.headline, "notes": list(dict.fromkeys(notes))}
        answer = {**usual_keys, "shortened": [], **keys}
        rounded = {
            name: list(value) if isinstance(value := answer[name], Exact) else answers.rounded(as_plain(value))
            for name in kind.__annotations__
        }
        return cast(A, rounded)

    def bases(self) -> _Bases:  # type: ignore[valid-type]
        """List the base models of the atlas, how many fine-tunes of each are indexed, and the published vectors."""
        return self._answer(
            _Bases,
            None,
            bases=[row for row in generations(self._atlas).asked(contents) if is_listed_id(row["base"])],
        )


def _parameters(options: Iterable[Described], tool: Tool, shape: Shape) -> Iterable[inspect.Parameter]:
    """The arguments of a tool: the question's arguments for agents, then the tool's own; required ones come first."""
    kind = inspect.Parameter.KEYWORD_ONLY
    arguments = [argument for argument in options if not tool.arguments or argument.name in tool.arguments]
    parameters = []
    for argument in arguments:
        if argument.name not in shape.own_arguments:
            annotation = _annotation(argument, shape.most.get(argument.name))
            parameters.append(inspect.Parameter(argument.name, kind, default=argument.default, annotation=annotation))
    for name, (annotation, default) in shape.own_arguments.items():
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))
    return sorted(parameters, key=lambda parameter: not _is_required(parameter))


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is inspect.Parameter.empty


def _annotation(argument: Described, most: float | None) -> Any:
    """The type of an argument with its text and bounds, for pydantic."""
    bounds: Arguments = {}
    if isinstance(argument.option, Option):
        bounds = {"gt" if argument.option.is_open else "ge": argument.option.least, "le": most or argument.option.most}
        bounds = {name: value for name, value in bounds.items() if value is not None}
    kind = str | None if type(None) in types_in(argument.type) else str
    is_path = Path in types_in(argument.type)
    text = argument.option.agents or argument.option.text
    return Annotated[kind if is_path else argument.type, Field(description=text, **bounds)]
