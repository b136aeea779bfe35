"""What is printed on stdout: an object or many, as table, JSON, JSON lines or CSV.

A table is cut to a terminal's width, ids excepted, and never when it is piped; a CSV cannot carry a formula.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime
import io
import json
import math
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from indexer.console.messages import clean, is_coloured, say
from indexer.names import is_hub_id

ROOM_FOR_TEXT = 24  # columns that a text should have before other columns are left out for it
NARROWEST_TEXT = 8  # columns of a terminal below which a text column says nothing


def emit(
    result: Any, output: str, *, columns: Sequence[str] | None = None, optional_columns: Sequence[str] = ()
) -> None:
    """Print an object (a mapping, a dataclass) or many as table, json, jsonl or csv.

    An iterator is printed as it goes where the format is jsonl. ``columns`` names them for a table and a CSV
    even where there is no row. ``optional_columns``: columns left out of a table on a narrow terminal, the first first.
    """
    is_one = isinstance(result, Mapping) or dataclasses.is_dataclass(result)
    rows = (as_plain(row) for row in ([result] if is_one else result))
    count = 0
    if output == "jsonl":
        for count, row in enumerate(rows, 1):  # noqa: B007 - the last one counts
            _write(_json(row) + "\n")
    else:
        plain = list(rows)
        count = len(plain)
        if output == "json":
            _write(_json(plain[0] if is_one else plain, indent=2) + "\n")
        elif output == "csv":
            _write(_csv(plain, columns))
        elif plain:
            left_out = _sheet(plain[0], optional_columns) if is_one else _table(plain, columns, optional_columns)
            if left_out:
                say(f"no room for {', '.join(dict.fromkeys(left_out))}: widen the terminal, or --format json")
    if not count:
        say("no rows")


def as_plain(value: Any) -> Any:
    """JSON's own types: dataclasses and numpy unpacked, times ISO, sets sorted, NaN and infinities null."""
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int):
        return int(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((as_plain(item) for item in value), key=lambda item: (type(item).__name__, str(item)))
    if isinstance(value, list | tuple | Iterator):
        return [as_plain(item) for item in value]
    if getattr(getattr(value, "dtype", None), "kind", "") in ("M", "m"):  # numpy's times, to the nanosecond
        if getattr(value, "shape", ()):
            return [as_plain(item) for item in value]
        return None if str(value) == "NaT" else str(value)
    if hasattr(value, "tolist"):
        return as_plain(value.tolist())
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat() if value == value else None  # pandas' NaT is a date that is not itself
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if hasattr(value, "as_integer_ratio"):  # a Decimal
        return as_plain(float(value)) if value != value or value % 1 else int(value)
    return str(value)


def _json(plain: Any, indent: int | None = None) -> str:
    # ASCII: whatever hides in a string is spelt out.
    return json.dumps(plain, ensure_ascii=True, indent=indent, allow_nan=False)


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:  # raised before anything is written
        encoding = sys.stdout.encoding
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


# A spreadsheet runs what begins like this (the wide forms in some locales).
_FORMULA = re.compile("[=+\\-@\t\r\n＝＋－＠]")
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def _csv(rows: Sequence[Any], columns: Sequence[str] | None) -> str:
    """RFC 4180: a header, commas, CRLF."""
    structs: set[str] = set()
    rows = [_flat(row, structs) for row in rows]
    # An object's own column is empty: its values are in columns of their own.
    names = [name for name in _names(rows, columns) if name not in structs or any(row.get(name) for row in rows)]
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\r\n")
    if names:
        writer.writerow([_csv_text(name) for name in names])
    for row in rows:
        writer.writerow([_csv_cell(row.get(name)) for name in names])
    return table.getvalue()


def _flat(row: Mapping[str, Any], structs: set[str], before: str = "") -> dict[str, Any]:
    """Objects in objects as ``outer.inner``; the names of objects are added to ``structs``."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            structs.add(f"{before}{name}")
            flat |= _flat(value, structs, f"{before}{name}.")
        else:
            flat[f"{before}{name}"] = value
    return flat


def _csv_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        if any(isinstance(item, dict | list) for item in value):
            return _json(value)
        # Some spreadsheets take the semicolon for the border of a cell: each item must be harmless alone.
        return ";".join(str(_csv_cell(item)) for item in value)
    return _csv_text(value) if isinstance(value, str) else value


def _csv_text(text: str) -> str:
    if sys.stdout.isatty():
        text = clean(text)
    text = _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)
    return "'" + text if _FORMULA.match(text) else text


def _names(rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None) -> list[str]:
    return list(dict.fromkeys([*(columns or ()), *(name for row in rows for name in row)]))


def _table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None, optional_columns: Sequence[str] = ()
) -> list[str]:
    """A line for each row; on a terminal too narrow for that, a line for each value. The columns left out.

    Numbers and ids are whole, and so is the first text, which names the row; other text may be cut. Before more than
    ROOM_FOR_TEXT is cut from, columns are left out; then the names of columns of numbers are cut in their middle.
    """
    names = _names(rows, columns)
    kept = _with_room(rows, names, optional_columns)
    cells = [[cell_text(row.get(name)) for name in kept] for row in rows]
    is_numeric = [all(_is_number(row.get(name)) for row in rows) for name in kept]
    heads = [clean(name) for name in kept]
    widths = [max(map(_width, column)) for column in zip(heads, *cells, strict=True)]
    is_whole = _whole(rows, kept, is_numeric)
    least = [
        max([NARROWEST_TEXT, *(_width(row[at]) for row in cells)]) if number else width if whole else NARROWEST_TEXT
        for at, (width, whole, number) in enumerate(zip(widths, is_whole, is_numeric, strict=True))
    ]
    fitted = _fitted(widths, least)
    if fitted is None:  # a line for each value has room for all columns
        for one in rows:
            told = ((clean(name), cell_text(one.get(name))) for name in names)
            _write("\n".join(f"{name}: {cell}" for name, cell in told if cell) + "\n\n")
        return []
    for line in ([_shortened(*head) for head in zip(heads, fitted, strict=True)], *cells):
        shown = "  ".join(map(_padded, line, fitted, is_numeric)).rstrip()
        _write((click.style(shown, bold=True) if line not in cells and is_coloured(sys.stdout) else shown) + "\n")
    return [clean(name) for name in names if name not in kept]


def _shortened(head: str, width: int) -> str:
    """The name of a column, cut in its middle where it is too long: what tells names apart is often their end."""
    if _width(head) <= width or not head.isascii():
        return head
    end = (width - 1) // 2
    return f"{head[: width - 1 - end]}…{head[len(head) - end :]}"


def _whole(rows: Sequence[Mapping[str, Any]], names: Sequence[str], is_numeric: Sequence[bool]) -> list[bool]:
    """Which columns are never cut."""
    first_text = is_numeric.index(False) if False in is_numeric else None
    return [
        number or column == first_text or _are_ids([row.get(name) for row in rows])
        for column, (name, number) in enumerate(zip(names, is_numeric, strict=True))
    ]


def _with_room(rows: Sequence[Mapping[str, Any]], names: list[str], optional_columns: Sequence[str]) -> list[str]:
    """The columns that a terminal has room for, those left out that tell least; all where that does not help."""
    if not sys.stdout.isatty():
        return names
    is_numeric = [all(_is_number(row.get(name)) for row in rows) for name in names]
    needed = {
        name: max(_width(text) if whole or at == 0 else min(_width(text), ROOM_FOR_TEXT)
                  for at, text in enumerate([clean(name), *(cell_text(row.get(name)) for row in rows)]))
        for name, whole in zip(names, _whole(rows, names, is_numeric), strict=True)
    }  # fmt: skip
    kept = list(names)
    for name in (name for name in optional_columns if name in needed):
        if sum(needed[one] + 2 for one in kept) - 2 <= shutil.get_terminal_size().columns:
            break
        kept.remove(name)
    return kept or names


def _sheet(row: Mapping[str, Any], optional_columns: Sequence[str], title: str = "") -> list[str]:
    """One object: a line for each value, then the objects and the tables in it, each under its name."""
    left_out: list[str] = []
    nested = {name: value for name, value in row.items() if isinstance(value, dict) or _is_table(value)}
    # A name with nothing beside it reads as if something were missing.
    values = {
        clean(name): cell_text(value) if value != [] else "none" for name, value in row.items() if name not in nested
    }
    width = max(map(_width, values), default=0)
    for name, text in values.items():
        _write(f"{_padded(name, width, False)}  {text}".rstrip() + "\n")
    for number, (name, value) in enumerate(nested.items()):
        heading = f"{title} {clean(name)}".strip()
        _write("\n" if number or values else "")
        _write(f"{click.style(heading, bold=True) if is_coloured(sys.stdout) else heading}\n")
        if isinstance(value, dict):
            left_out += _sheet(value, optional_columns, heading)
        else:
            left_out += _table(value, None, optional_columns)
    return left_out


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _are_ids(values: Sequence[Any]) -> bool:
    """Whether a column holds Hub ids, which are there to be copied; an owner in one tells them from plain words."""
    texts = [value for value in values if value is not None]
    return all(isinstance(text, str) and is_hub_id(text) for text in texts) and any("/" in text for text in texts)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?", re.ASCII)


def cell_text(value: Any) -> str:
    """A value as a person reads it in a table, without anything that could move a cursor."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        size = abs(value)
        if size >= 1e15 or 0 < size < 0.001:
            return f"{value:.2g}"
        return f"{value:.{4 if size < 10 else 2 if size < 100 else 1}f}"
    if isinstance(value, list):
        return ", ".join(map(cell_text, value))
    if isinstance(value, dict):
        return ", ".join(f"{clean(name)} {cell_text(item)}" for name, item in value.items())
    moment = _MOMENT.fullmatch(value) if isinstance(value, str) else None
    if moment:
        return moment[1] if moment[2] == "00:00" else f"{moment[1]} {moment[2]}"
    return clean(str(value))


def _fitted(widths: Sequence[int], least: Sequence[int]) -> Sequence[int] | None:
    """Widths that fit the terminal, none below its ``least``; None where that is not possible.

    Piped output is never cut.
    """
    if not sys.stdout.isatty():
        return widths
    room = shutil.get_terminal_size().columns - 2 * (len(widths) - 1)
    for most in range(max(widths), NARROWEST_TEXT - 1, -1):
        fitted = [min(width, max(most, narrowest)) for width, narrowest in zip(widths, least, strict=True)]
        if sum(fitted) <= room:
            return fitted
    return None if sum(widths) > room else widths


def _width(text: str) -> int:
    """Columns that ``text`` takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.category(character) in ("Mn", "Me")
        else 2
        if unicodedata.east_asian_width(character) in "WF"
        else 1
        for character in text
    )


def _padded(text: str, width: int, to_the_right: bool) -> str:
    """``text``, which is clean, in exactly ``width`` columns."""
    if _width(text) > width:
        while text and _width(text) > width - 1:
            text = text[:-1]
        text += "…"
    blanks = " " * (width - _width(text))
    return blanks + text if to_the_right else text + blanks
