"""Answers for agents: a schema of the keys with their meanings, and a limit on the length."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from datetime import date
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, NotRequired, Union, get_args, get_origin

from pydantic import Field
from typing_extensions import TypedDict  # pydantic accepts that of typing only from Python 3.12 on

from query.contract.columns import Authors, BaseId
from query.contract.results import Column, Doc, If, Shown, columns

MOST_CHARACTERS = 12_000  # of an answer as compact JSON
_ROOM_FOR_REMARKS = 600  # of these, for the list of omissions
_LONGEST_NAME = 80  # characters of a key that is not ours: a column, a field of a struct
_ROWS_BEFORE_TEXT = 10  # so many rows have priority over the full length of texts
_SMALLEST = 20  # characters; no text is cut to less


class Answer(TypedDict):
    """The keys of every answer."""

    summary: Annotated[str, Field(description="The answer in a sentence or two.")]
    notes: Annotated[list[str], Field(description="Sentences to read with the numbers: reasons to trust them less.")]
    shortened: Annotated[
        list[str],
        Field(
            description="What was left out to keep the answer short, such as “rows: 20 of 100”; empty if nothing was."
        ),
    ]


@dataclass(frozen=True)
class BaseOfAtlas:
    """A base model."""

    base: BaseId
    indexed: Annotated[int, Doc("Number of fine-tunes whose weights were read.")]
    sampled: Annotated[int, Doc("Number of these for which only a sample of rows was read.")]
    authors: Authors
    representations: Annotated[list[str], Doc("Names of the published vectors, for the argument representation.")]


def answer_type(
    result: type[Any], keys: Iterable[str], rows: Mapping[str, Sequence[str]], own_fields: Mapping[str, Any]
) -> Any:
    """The type of a tool's answer; its JSON schema has the descriptions of the result's fields.

    Args:
        result: the class of the question's answer.
        keys: the keys of the result in the tool's answer.
        rows: for some keys, the keys of their rows in the tool's answer; by default all.
        own_fields: types of keys that the result does not have.
    """
    columns_by_key = {column.key: column for column in columns(result)} if is_dataclass(result) else {}
    types_by_key = {name: _described(columns_by_key[name], rows.get(name)) for name in keys}
    return TypedDict(f"{result.__name__}Answer", Answer.__annotations__ | types_by_key | dict(own_fields))  # type: ignore[operator]


def row_type(row: type[Any], keys: Sequence[str] | None = None) -> Any:
    """The type of a row; keys that some rows lack are not required."""
    types_by_key: dict[str, Any] = {}
    for column in columns(row):
        if column.marker(Shown) is not None or (keys is not None and column.key not in keys):
            continue
        described_type = _described(column, None)
        condition: If | None = column.marker(If)
        is_required = condition is None or condition.in_tables
        types_by_key[column.key] = described_type if is_required else NotRequired[described_type]
    return TypedDict(row.__name__, types_by_key)  # type: ignore[operator]


def _described(column: Column, keys: Sequence[str] | None) -> Any:
    kind = _json_type(column.type, keys)
    return Annotated[kind, Field(description=column.doc)] if column.doc else kind


def _json_type(type_: Any, keys: Sequence[str] | None = None) -> Any:
    """The type of a value in JSON: data classes are rows, tuples are lists, and times are texts."""
    type_arguments = get_args(type_)
    origin = get_origin(type_)
    if origin is Annotated:
        return _json_type(type_arguments[0], keys)
    if isinstance(type_, type) and is_dataclass(type_):
        return row_type(type_, keys)
    if origin in (Union, UnionType):
        return reduce(or_, [_json_type(type_argument, keys) for type_argument in type_arguments])
    if origin in (tuple, list, Sequence):
        inner = [type_argument for type_argument in type_arguments if type_argument is not ...]
        return list[reduce(or_, [_json_type(type_argument, keys) for type_argument in inner])]  # type: ignore[misc]
    if origin in (dict, Mapping):
        return dict[str, _json_type(type_arguments[1], keys)]  # type: ignore[misc]
    if isinstance(type_, type) and issubclass(type_, date):
        return str
    return type_ if type_ in (str, int, float, bool, NoneType) else Any


def as_text(answer: Any) -> str:
    """Compact JSON."""
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def rounded(value: Any) -> Any:
    """Plain JSON with five significant digits of every fraction below 10,000."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float) and abs(value) < 1e4 else value


def bounded(answer: Answer) -> Answer:
    """The answer in at most MOST_CHARACTERS of compact JSON; ``shortened`` lists the omissions.

    Lists keep their first items and texts their beginning; the largest parts are cut first.
    """
    room = MOST_CHARACTERS
    shortened = answer
    cuts: dict[str, str] = {}
    while len(as_text(shortened)) > MOST_CHARACTERS:
        cuts = {}
        room = room * 9 // 10
        shortened = _fitted(answer, room - _ROOM_FOR_REMARKS, "", cuts)
        remarks = [*answer["shortened"], *(f"{path}: {cut}" for path, cut in cuts.items())]
        shortened["shortened"] = _fitted(remarks, _ROOM_FOR_REMARKS, "shortened", {})
    if cuts and "truncated" in shortened:
        shortened["truncated"] = True  # type: ignore[typeddict-unknown-key]
    return shortened


def _fitted(value: Any, room: int, path: str, cuts: dict[str, str]) -> Any:
    """``value`` in about ``room`` characters. ``cuts`` receives, by path, a description of each cut."""
    size = len(as_text(value))
    if size <= room:
        return value
    if isinstance(value, str):
        cuts["long texts"] = "cut at …"
        # In proportion: escapes in JSON are longer than their characters.
        return value[: max(_SMALLEST, room * len(value) // size) - 1] + "…"
    if isinstance(value, dict):
        return _fitted_parts(value, room, path, cuts)
    if not isinstance(value, list):
        return value
    if path.endswith("[]"):  # a row, whose cells must stay in their columns
        return list(_fitted_parts({str(index): cell for index, cell in enumerate(value)}, room, path, cuts).values())
    most = max(_SMALLEST, room // min(len(value), _ROWS_BEFORE_TEXT) - 1)
    items: list[Any] = []
    room_left = room - 2
    for item in value:
        fitted = _fitted(item, most, f"{path}[]", cuts)
        room_left -= len(as_text(fitted)) + 1
        if room_left < 0:
            break
        items.append(fitted)
    if len(items) < len(value):
        cuts[path] = f"{len(items)} of {len(value)}"
    return items


def _fitted_parts(parts: dict[str, Any], room: int, path: str, cuts: dict[str, str]) -> dict[str, Any]:
    """``parts`` in about ``room`` characters. Small parts are not cut; the rest of the room goes to larger ones."""
    names = list(parts)
    if path and not path.endswith("[]"):  # an object of the data, which may have many keys
        names = names[: max(1, room // _SMALLEST)]
    if len(names) < len(parts):
        cuts[path] = f"{len(names)} of {len(parts)}"
    room_left = room - sum(min(len(name), _LONGEST_NAME) + 4 for name in names)
    fitted: dict[str, Any] = {}
    by_size = sorted(names, key=lambda name: len(as_text(parts[name])))
    for index, name in enumerate(by_size):
        inner = f"{path}.{name}" if path else name
        fitted[name] = _fitted(parts[name], max(_SMALLEST, room_left // (len(names) - index)), inner, cuts)
        room_left -= len(as_text(fitted[name]))
    return {name[:_LONGEST_NAME]: fitted[name] for name in names}
