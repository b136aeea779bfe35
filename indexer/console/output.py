"""What is printed on stdout: an object or many, as table, JSON, JSON lines or CSV.

On a terminal a table is cut to the width, except for ids; piped output is never cut. A CSV cannot carry a formula.
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
from indexer.sources.registry import is_model_id

_ROOM_FOR_TEXT = 24  # characters; before a text is cut to less, optional columns are dropped
_NARROWEST_TEXT = 8  # characters; no text column is narrower


def emit(
    result: Any, output: str, *, columns: Sequence[str] | None = None, optional_columns: Sequence[str] = ()
) -> None:
    """Print an object (a mapping, a dataclass) or many as table, json, jsonl or csv.

    As jsonl, the items of an iterator are printed as they come. ``columns``: of a table and a CSV, also without rows.
    ``optional_columns``: those that a table drops on a narrow terminal, in this order.
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
            _write(as_csv(plain, columns, cleaned=sys.stdout.isatty()))
        elif plain:
            left_out = _sheet(plain[0], optional_columns) if is_one else _table(plain, columns, optional_columns)
            if left_out:
                say(f"no room for {', '.join(dict.fromkeys(left_out))}: widen the terminal, or use --format json")
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
    # ASCII: characters that hide are escaped.
    return json.dumps(plain, ensure_ascii=True, indent=indent, allow_nan=False)


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:  # raised before anything is written
        encoding = sys.stdout.encoding
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


# A spreadsheet runs a cell that begins like this (with the wide forms in some locales).
_FORMULA = re.compile("[=+\\-@\t\r\n＝＋－＠]")
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def as_csv(rows: Sequence[Any], columns: Sequence[str] | None, *, cleaned: bool = False) -> str:
    """RFC 4180 but for the ends of lines: a header, commas, LF, so that the last cell is whole in a shell's loop.

    Objects in objects have columns ``outer.inner``. ``cleaned``: with hidden characters escaped, for a terminal.
    """
    structs: set[str] = set()

    def flat(row: Mapping[str, Any], before: str = "") -> dict[str, Any]:
        cells: dict[str, Any] = {}
        for name, value in row.items():
            if isinstance(value, dict):
                structs.add(f"{before}{name}")
                cells |= flat(value, f"{before}{name}.")
            else:
                cells[f"{before}{name}"] = value
        return cells

    rows = [flat(row) for row in rows]
    # The column of an object is empty: its values have columns of their own.
    names = [name for name in _names(rows, columns) if name not in structs or any(row.get(name) for row in rows)]
    lines = [_csv_line([_csv_text(name, cleaned) for name in names])] if names else []
    lines += [_csv_line([_csv_cell(row.get(name), cleaned) for name in names]) for row in rows]
    return "".join(lines)


def _csv_line(cells: Sequence[Any]) -> str:
    # Only with CRLF as its end does the writer quote a cell that contains CR or LF.
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(cells)
    return line.getvalue().removesuffix("\r\n") + "\n"


def _csv_cell(value: Any, cleaned: bool) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        if any(isinstance(item, dict | list) for item in value):
            return _json(value)
        # Some spreadsheets split cells at semicolons, so each item must be harmless alone.
        return ";".join(str(_csv_cell(item, cleaned)) for item in value)
    return _csv_text(value, cleaned) if isinstance(value, str) else value


def _csv_text(text: str, cleaned: bool) -> str:
    if cleaned:
        text = clean(text)
    text = _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)
    return "'" + text if _FORMULA.match(text) else text


def _names(rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None) -> list[str]:
    return list(dict.fromkeys([*(columns or ()), *(name for row in rows for name in row)]))


def _table(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str] | None = None, optional_columns: Sequence[str] = ()
) -> list[str]:
    """Print a line for each row, or a line for each value on a terminal too narrow for that.

    Numbers, ids and the first text column, which names the row, are never cut. On a terminal optional columns are
    dropped while text has less than _ROOM_FOR_TEXT; then text is cut, then the names of number columns, in the middle.
    Returns the dropped columns.
    """
    names = shown_names = _names(rows, names)
    # Every column as texts, its head first.
    columns = {name: [clean(name), *(cell_text(row.get(name)) for row in rows)] for name in names}
    widths = {name: max(map(_width, cells)) for name, cells in columns.items()}
    preferred, narrowest = dict(widths), dict(widths)
    numbers: set[str] = set()
    for position, name in enumerate(names):
        values = [row[name] for row in rows if row.get(name) is not None]
        of_head, of_cells = _width(columns[name][0]), max(map(_width, columns[name][1:]), default=0)
        # Ids are copied from the terminal. Unlike plain words, at least one of them has an owner before a slash.
        are_ids = all(isinstance(each, str) and is_model_id(each) for each in values) and any(
            "/" in each for each in values
        )
        if all(type(value) in (int, float) for value in values):
            numbers.add(name)
            narrowest[name] = max(_NARROWEST_TEXT, of_cells)
        elif position > len(numbers) and not are_ids:
            preferred[name], narrowest[name] = max(of_head, min(of_cells, _ROOM_FOR_TEXT)), _NARROWEST_TEXT
    if sys.stdout.isatty():
        terminal = shutil.get_terminal_size().columns
        for name in optional_columns:
            if sum(preferred[each] + 2 for each in shown_names) - 2 <= terminal:
                break
            shown_names = [each for each in shown_names if each != name] or shown_names
        room = terminal - 2 * (len(shown_names) - 1)
        # The widest text is cut first.
        most = max((widths[name] for name in shown_names), default=0)
        while (
            most > _NARROWEST_TEXT and sum(min(widths[name], max(most, narrowest[name])) for name in shown_names) > room
        ):
            most -= 1
        widths = {name: min(widths[name], max(most, narrowest[name])) for name in shown_names}
        if sum(widths.values()) > room:
            for at in range(1, len(rows) + 1):
                lines = [f"{cells[0]}: {cells[at]}" for cells in columns.values() if cells[at]]
                _write("\n".join(lines) + "\n\n")
            return []
    for at in range(len(rows) + 1):
        line = "  ".join(
            _fitted(columns[name][at], widths[name], is_number=name in numbers, is_head=at == 0) for name in shown_names
        ).rstrip()
        _write((_heading(line) if at == 0 else line) + "\n")
    return [columns[name][0] for name in names if name not in shown_names]


def _sheet(row: Mapping[str, Any], optional_columns: Sequence[str], title: str = "") -> list[str]:
    """Print one object: a line for each value, then the objects and the tables in it, each below its name."""
    left_out: list[str] = []
    values: dict[str, str] = {}
    nested: dict[str, Any] = {}
    for name, value in row.items():
        is_table = isinstance(value, list) and value and all(isinstance(item, dict) for item in value)
        if is_table or isinstance(value, dict):
            nested[name] = value
        else:  # a name without a value would look as if something were missing
            values[clean(name)] = cell_text(value) if value != [] else "none"
    width = max(map(_width, values), default=0)
    for name, text in values.items():
        _write(f"{_fitted(name, width)}  {text}".rstrip() + "\n")
    for number, (name, value) in enumerate(nested.items()):
        heading = f"{title} {clean(name)}".strip()
        _write(("\n" if number or values else "") + _heading(heading) + "\n")
        if isinstance(value, dict):
            left_out += _sheet(value, optional_columns, heading)
        else:
            left_out += _table(value, None, optional_columns)
    return left_out


_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?", re.ASCII)


def cell_text(value: Any) -> str:
    """A value as text in a table, without anything that could move a cursor."""
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


def _width(text: str) -> int:
    """The width of ``text`` on a terminal, in columns."""
    if text.isascii():
        return len(text)
    visible = [character for character in text if unicodedata.category(character) not in ("Mn", "Me")]
    return len(visible) + sum(unicodedata.east_asian_width(character) in "WF" for character in visible)


def _fitted(text: str, width: int, *, is_number: bool = False, is_head: bool = False) -> str:
    """``text``, which is clean, cut or padded to ``width`` columns; numbers are aligned to the right."""
    if _width(text) > width and is_head and text.isascii():
        # Cut in its middle, because similar names often differ at their end.
        end = (width - 1) // 2
        text = f"{text[: width - 1 - end]}…{text[len(text) - end :]}"
    elif _width(text) > width:
        while text and _width(text) > width - 1:
            text = text[:-1]
        text += "…"
    blanks = " " * (width - _width(text))
    return blanks + text if is_number else text + blanks


def _heading(text: str) -> str:
    return click.style(text, bold=True) if is_coloured(sys.stdout) else text
