"""Checks that values fit the columns of schema.sql before they are inserted.

Rows contain untrusted data: cards, config.json, records made elsewhere. DuckDB would refuse a value that does not fit
and the whole publish would fail, so the rows of each model are checked first. Arrow's own conversion is too lenient
for that: it takes 1.0 and bytes for other types, NaN and infinity for numbers, zero bytes and texts of any length.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.database.catalog import definitions
from indexer.publish.tables import Row
from indexer.untrusted import shown

if TYPE_CHECKING:
    from duckdb.typing import DuckDBPyType

MOST_CHARACTERS = 1 << 20
MOST_ITEMS = 1 << 16

_EXACT_INTEGER = 1 << 53  # Arrow refuses a larger integer in a column of floats
_BITS = {"tinyint": 8, "smallint": 16, "integer": 32, "bigint": 64}

# What is wrong with the values of a column, None if nothing is. Nulls are checked elsewhere.
Check = Callable[[Sequence[Any]], str | None]


class InvalidValue(ValueError):
    """A value that its column cannot hold; the message names the column and the value."""


def check_rows(table: str, rows: Sequence[Row]) -> None:
    """Raises InvalidValue for the first value that does not fit its column. All ``rows`` have the same columns."""
    for column in rows[0] if rows else ():
        problem = _problem(table, column, [row[column] for row in rows])
        if problem is not None:
            raise InvalidValue(f"{table}.{column} cannot hold it: {problem}")


def with_nulls(table: str, row: Row) -> tuple[Row, list[str]]:
    """The row with null in place of each value that does not fit, and the names of those columns.

    Raises InvalidValue if such a column must not be null.
    """
    odd = [column for column, value in row.items() if _problem(table, column, [value]) is not None]
    cleaned = {**row, **dict.fromkeys(odd)}
    check_rows(table, [cleaned])
    return cleaned, odd


def valid_rows(table: str, rows: Sequence[Row]) -> list[Row]:
    """The rows that fit."""
    try:
        check_rows(table, rows)
    except InvalidValue:
        return [row for row in rows if all(_problem(table, column, [value]) is None for column, value in row.items())]
    return list(rows)


def _problem(table: str, column: str, values: Sequence[Any]) -> str | None:
    check, is_nullable = columns()[table][column]
    present = [value for value in values if value is not None]
    if len(present) < len(values) and not is_nullable:
        return "it is missing"
    return check(present)


@cache
def columns() -> dict[str, dict[str, tuple[Check, bool]]]:
    """For every table and column, its check and whether it may be null.

    Taken from schema.sql: the database may have been made by somebody else.
    """
    import duckdb

    found: dict[str, dict[str, tuple[Check, bool]]] = {}
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        for one in definitions():
            if one.kind in ("schema", "table"):
                connection.execute(one.statement)
        rows = connection.execute(
            "SELECT table_name, column_name, data_type, is_nullable FROM duckdb_columns() WHERE NOT internal"
        ).fetchall()
    for table, column, kind, is_nullable in rows:
        check = _json if kind == "JSON" else _check_of(duckdb.type(kind))
        found.setdefault(table, {})[column] = check, is_nullable
    return found


def _check_of(kind: DuckDBPyType) -> Check:
    name = kind.id
    if name in _BITS:
        return _whole(_BITS[name])
    if name == "list":
        return _listed(_check_of(kind.children[0][1]))
    if name == "struct":
        return _structured({field: _check_of(inner) for field, inner in kind.children})
    if name in ("boolean", "timestamp"):
        exact = bool if name == "boolean" else datetime
        return lambda values: _other_than(values, exact)
    if name in ("float", "double"):
        is_single = name == "float"
        kind_of_float = np.finfo(np.float32 if is_single else np.float64)
        return _floating(float(kind_of_float.max), "finite float32" if is_single else "finite number")
    return {"varchar": _text}[name]


def _whole(bits: int) -> Check:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1

    def check(values: Sequence[Any]) -> str | None:
        odd = _other_than(values, int)
        if odd is None and values and (min(values) < least or max(values) > most):
            odd = min(values) if min(values) < least else max(values)
            return f"{shown(odd)} is not a {bits}-bit integer"
        return odd

    return check


def _floating(largest: float, name: str) -> Check:
    def check(values: Sequence[Any]) -> str | None:
        odd = _other_than(values, float, int)
        if odd is not None or not values:
            return odd
        with np.errstate(over="ignore"):
            try:
                sizes = np.abs(np.array(values, dtype=np.float64))
            except OverflowError:
                return "a number of more than 308 digits"
        # Written so that NaN is refused too.
        if not bool((sizes <= largest).all()):
            return f"{shown(next(one for one in values if not abs(one) <= largest))} is not a {name}"
        if any(type(one) is int and abs(one) > _EXACT_INTEGER for one in values):
            return "an integer that is not exact as a float"
        return None

    return check


def _text(values: Sequence[Any]) -> str | None:
    odd = _other_than(values, str)
    if odd is not None:
        return odd
    for text in values:
        if len(text) > MOST_CHARACTERS:
            return f"a text of {len(text):,} characters"
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                return "a text with a lone surrogate"
        if "\0" in text:
            return "a text with a zero byte"
    return None


def _json(values: Sequence[Any]) -> str | None:
    def refuse(name: str) -> Any:
        raise ValueError(name)

    odd = _text(values)
    try:
        for text in values if odd is None else ():
            value = json.loads(text, parse_constant=refuse)
            json.dumps(value, ensure_ascii=False).encode()  # UnicodeEncodeError is a ValueError
    except (ValueError, RecursionError):
        return "invalid JSON"
    return odd


def _listed(inner: Check) -> Check:
    def check(values: Sequence[Any]) -> str | None:
        odd = _other_than(values, list)
        if odd is not None:
            return odd
        longest = max(map(len, values), default=0)
        if longest > MOST_ITEMS:
            return f"a list of {longest:,} items"
        return inner([one for one in chain.from_iterable(values) if one is not None])

    return check


def _structured(fields: dict[str, Check]) -> Check:
    def check(values: Sequence[Any]) -> str | None:
        odd = _other_than(values, dict)
        if odd is not None:
            return odd
        for name, inner in fields.items():
            problem = inner([one[name] for one in values if one.get(name) is not None])
            if problem is not None:
                return f"{name}: {problem}"
        return None

    return check


def _other_than(values: Iterable[Any], *kinds: type) -> str | None:
    """What is wrong with values that are not exactly of these ``kinds``: True is not an int."""
    if set(map(type, values)) <= set(kinds):
        return None
    odd = next(one for one in values if type(one) not in kinds)
    return f"a {type(odd).__name__} instead of {kinds[0].__name__}"


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
