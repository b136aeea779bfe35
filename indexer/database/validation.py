"""Checks that values fit the columns of schema.sql before they are inserted.

Rows contain untrusted data: cards, config.json, records made elsewhere. DuckDB would refuse a value that does not fit,
and the whole publish would fail, so the rows of each model are checked first. Arrow's own conversion is too lenient
for that: it converts 1.0 and bytes to other types, and accepts NaN, infinity, zero bytes and texts of any length.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.database.catalog import definitions
from indexer.untrusted import shown

if TYPE_CHECKING:
    from duckdb.typing import DuckDBPyType

MOST_CHARACTERS = 1 << 20
MOST_ITEMS = 1 << 16

_EXACT_INTEGER = 1 << 53  # Arrow refuses a larger integer in a column of floats
_BITS = {"tinyint": 8, "smallint": 16, "integer": 32, "bigint": 64}
_OF_FLOATS = {
    "float": (float(np.finfo(np.float32).max), "finite float32"),
    "double": (float(np.finfo(np.float64).max), "finite number"),
}


class InvalidValue(ValueError):
    """A value that its column cannot hold; the message names the column and the value."""


def check_rows(table: str, rows: Sequence[dict[str, Any]]) -> None:
    """Raises InvalidValue for the first value that does not fit its column. All ``rows`` have the same columns."""
    for column in rows[0] if rows else ():
        problem = _problem(table, column, [row[column] for row in rows])
        if problem is not None:
            raise InvalidValue(f"{table}.{column} cannot hold it: {problem}")


def with_nulls(table: str, row: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The row with null in place of each value that does not fit, and the names of those columns.

    Raises InvalidValue if such a column must not be null.
    """
    odd = [column for column, value in row.items() if _problem(table, column, [value]) is not None]
    cleaned = {**row, **dict.fromkeys(odd)}
    check_rows(table, [cleaned])
    return cleaned, odd


def valid_rows(table: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of which all values fit their columns."""
    try:
        check_rows(table, rows)
    except InvalidValue:
        return [row for row in rows if all(_problem(table, column, [value]) is None for column, value in row.items())]
    return list(rows)


def _problem(table: str, column: str, values: Sequence[Any]) -> str | None:
    """The problem of the first invalid value of a column, in words; None if all are valid."""
    kind, is_nullable = columns()[table][column]
    present = [value for value in values if value is not None]
    if len(present) < len(values) and not is_nullable:
        return "it is missing"
    return problem_of(kind, present)


@cache
def columns() -> dict[str, dict[str, tuple[Kind, bool]]]:
    """For every table and column, its type and whether it may be null.

    Taken from schema.sql, not from the database, which may come from an unknown source.
    """
    import duckdb

    columns_of: dict[str, dict[str, tuple[Kind, bool]]] = {}
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        for definition in definitions():
            if definition.kind in ("schema", "table"):
                connection.execute(definition.statement)
        rows = connection.execute(
            "SELECT table_name, column_name, data_type, is_nullable FROM duckdb_columns() WHERE NOT internal"
        ).fetchall()
    for table, column, kind, is_nullable in rows:
        columns_of.setdefault(table, {})[column] = Kind.of("json" if kind == "JSON" else duckdb.type(kind)), is_nullable
    return columns_of


@dataclass(frozen=True)
class Kind:
    """A type of DuckDB; ``inner``: the types in a list or struct, by the name of the field."""

    name: str
    inner: Mapping[str, Kind]

    @classmethod
    def of(cls, kind: DuckDBPyType | str) -> Kind:
        """From DuckDB's own object, or from the name of a type without inner types."""
        if isinstance(kind, str):
            return cls(kind, {})
        children = kind.children if kind.id in ("list", "struct") else ()
        return cls(kind.id, {field: cls.of(inner) for field, inner in children})


def problem_of(kind: Kind, values: Sequence[Any]) -> str | None:
    """The problem of invalid values of a column of this type, in words; None if all are valid. No value is null."""
    # Exactly these types: True is not an int.
    types: tuple[type, ...] = {
        "list": (list,), "struct": (dict,), "boolean": (bool,), "timestamp": (datetime,), "varchar": (str,),
        "json": (str,), "float": (float, int), "double": (float, int),
    }.get(kind.name, (int,))  # fmt: skip
    if not set(map(type, values)) <= set(types):
        unexpected = next(value for value in values if type(value) not in types)
        return f"a {type(unexpected).__name__} instead of {types[0].__name__}"
    if not values:
        return None
    if kind.name == "list":
        longest = max(map(len, values))
        if longest > MOST_ITEMS:
            return f"a list of {longest:,} items"
        (inner,) = kind.inner.values()
        return problem_of(inner, [item for item in chain.from_iterable(values) if item is not None])
    if kind.name == "struct":
        for field, inner in kind.inner.items():
            problem = problem_of(inner, [struct[field] for struct in values if struct.get(field) is not None])
            if problem is not None:
                return f"{field}: {problem}"
    elif kind.name in _BITS:
        bits = _BITS[kind.name]
        for extreme in (min(values), max(values)):
            if not -(1 << bits - 1) <= extreme < 1 << bits - 1:
                return f"{shown(extreme)} is not a {bits}-bit integer"
    elif kind.name in _OF_FLOATS:
        largest, name = _OF_FLOATS[kind.name]
        with np.errstate(over="ignore"):
            try:
                sizes = np.abs(np.array(values, dtype=np.float64))
            except OverflowError:
                return "a number of more than 308 digits"
        # Written so that NaN is refused too.
        if not bool((sizes <= largest).all()):
            return f"{shown(next(number for number in values if not abs(number) <= largest))} is not a {name}"
        if any(type(number) is int and abs(number) > _EXACT_INTEGER for number in values):
            return "an integer that is not exact as a float"
    elif kind.name in ("varchar", "json"):
        for text in values:
            if len(text) > MOST_CHARACTERS:
                return f"a text of {len(text):,} characters"
            if "\0" in text:
                return "a text with a zero byte"
            try:
                text.encode()
            except UnicodeEncodeError:
                return "a text with a lone surrogate"
            try:
                # plain_json replaces what is not JSON: NaN, infinities and lone surrogates.
                if kind.name == "json" and (value := json.loads(text)) != plain_json(value):
                    return "invalid JSON"
            except (ValueError, RecursionError):
                return "invalid JSON"
    return None


def plain_json(value: Any) -> Any:
    """Untrusted JSON made valid: NaN and infinities become null, lone surrogates U+FFFD."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {plain_json(str(key)): plain_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(inner) for inner in value]
    return value
