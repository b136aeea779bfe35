"""Strings, numbers and times from untrusted sources: bounded and printable, or None.

Every name on the Hub is free text that ends up in a terminal, a table or an address. A value that cannot be read
becomes None, and a note names the field.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from indexer.errors import WRONG_KINDS

SHA256 = re.compile(r"[0-9a-f]{64}")
COMMIT = re.compile(r"[0-9a-f]{40}")  # of git

MAX_TEXT = 500
_MAX_ODDITIES = 50
DEEPEST = 100
MOST_VALUES = 1_000_000  # of one JSON text: parsed, each takes up to 130 bytes
# What to do about a Git LFS pointer.
LFS_PULL = ": run `git lfs pull` in its folder"
MAX_INTEGER = 2**63 - 1  # the largest BIGINT

# Control characters, line separators, marks that change the direction of writing, invisible characters,
# and lone surrogates, which JSON can contain but UTF-8 cannot.
_CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_BLANKS = re.compile(r"\s+")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d([.,]\d{1,9})?)?\s?(Z|[+-]\d\d:?\d\d)?", re.ASCII)


def printable(text: str, limit: int = MAX_TEXT) -> str:
    """``text`` cut to ``limit`` characters, with U+FFFD in place of anything that controls a terminal."""
    text = text[:limit]
    return text if text.isprintable() else _CONTROLS.sub("\ufffd", text)


def tidy(text: str, limit: int = MAX_TEXT) -> str:
    """``text`` cut to ``limit``, on one line, without control characters and surrounding blanks."""
    text = text[:limit]
    if not text.isprintable():
        text = _CONTROLS.sub("", _BLANKS.sub(" ", text))
    return text.strip()


def is_too_deep(value: Any) -> bool:
    """Whether JSON is nested deeper than DEEPEST, too deep for recursive code."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def values_in(text: bytes) -> int:
    """An upper bound, minus one, of the number of values in JSON text, by its brackets and commas."""
    return text.count(b"{") + text.count(b"[") + text.count(b",")


def is_lfs_pointer(content: bytes) -> bool:
    """Whether a file begins as a Git LFS pointer, which stands for another file."""
    return content.startswith(b"version https://git-lfs")


def load_json(
    text: str | bytes,
    pairs: Callable[[list[tuple[str, Any]]], Any] | None = None,
    whole_number: Callable[[str], Any] | None = None,
) -> Any:
    """Parse untrusted JSON; ``pairs`` makes an object of its items, ``whole_number`` an integer of its digits.

    Raises ValueError for anything wrong with it: more values than MOST_VALUES (which fit into a short text, but not
    into memory), too deep nesting, whole numbers of thousands of digits.
    """
    count = values_in(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    if count > MOST_VALUES:
        raise ValueError(f"up to {count:,} values, more than the {MOST_VALUES:,} that are read")
    try:
        return json.loads(text, parse_int=whole_number, object_pairs_hook=pairs)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


@contextmanager
def malformed(as_error: Callable[[str], Exception]) -> Iterator[None]:
    """Within the block, errors of values of the wrong kind become ``as_error(why)``; ``why`` is printable and short."""
    try:
        yield
    except WRONG_KINDS as error:
        said = tidy(str(error).partition("\n")[0], 200).rstrip(".")
        kind = type(error).__name__
        raise as_error(said if said and type(error) is ValueError else f"{kind}: {said}" if said else kind) from error


def lone_surrogate(text: str) -> str | None:
    """Half of a surrogate pair in a text, as JSON escapes it, or None. It is no character, and has no UTF-8."""
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"\\u{ord(text[error.start]):04x}"
    return None


def is_count(value: object) -> bool:
    """Whether ``value`` is an int (not a bool) that can be a size or an offset in a file."""
    return type(value) is int and 0 <= value < 1 << 63


def shown(value: object, limit: int = 120) -> str:
    """An untrusted value as it may appear in a message: text is quoted, escaped, and cut to ``limit``."""
    # Turning a huge int into digits is quadratic, and Python refuses more than 4,300 of them.
    if isinstance(value, int) and value.bit_length() > 128:
        return "a number with more than 38 digits"
    if value is None or isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | dict):  # which may be nested deeply
        return f"a {type(value).__name__}"
    text = str(value)
    return repr(text) if len(text) <= limit else repr(text[:limit] + "…")


class Reader:
    """Reads single fields of one untrusted object and collects notes on what was odd."""

    def __init__(self) -> None:
        self._oddities: dict[str, None] = {}

    @property
    def oddities(self) -> tuple[str, ...]:
        """What could not be read, without repetitions, at most ``_MAX_ODDITIES``."""
        return tuple(self._oddities)

    def note(self, field: str, what: str) -> None:
        """Note that ``field`` was odd. Neither string may come from the untrusted source."""
        if len(self._oddities) < _MAX_ODDITIES:
            self._oddities[f"{field}: {what}"] = None

    def text(self, value: Any, field: str, limit: int = MAX_TEXT) -> str | None:
        """A non-empty one-line string or None."""
        if value is None:
            return None
        if not isinstance(value, str):
            self.note(field, "not a string")
            return None
        if len(value) > limit:
            self.note(field, f"cut to {limit} characters")
        return tidy(value, limit) or None

    def texts(self, value: Any, field: str, count: int, limit: int = MAX_TEXT) -> tuple[str, ...]:
        """The distinct strings of a list (or of one string), in order, ``count`` at most."""
        read = (self.text(item, field, limit) for item in self.items(value, field, count))
        return tuple(dict.fromkeys(text for text in read if text))

    def items(self, value: Any, field: str, count: int) -> list[Any]:
        """A list's first ``count`` items; None is an empty list, anything else a list of itself."""
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            return [value]
        if len(value) > count:
            self.note(field, f"cut to {count} items")
        return list(value[:count])

    def mapping(self, value: Any, field: str) -> Mapping[str, Any]:
        """A mapping; an empty one in place of anything else."""
        if isinstance(value, Mapping):
            return value
        if value is not None:
            self.note(field, "not an object")
        return {}

    def count(self, value: Any, field: str) -> int | None:
        """A whole number from 0 to ``MAX_INTEGER``; neither a boolean nor a string is one."""
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INTEGER:
            return value
        self.note(field, "not a whole number from 0 up")
        return None

    def flag(self, value: Any, field: str) -> bool | None:
        """True, False, or None for anything else."""
        if value is None or isinstance(value, bool):
            return value
        self.note(field, "neither true nor false")
        return None

    def number(self, value: Any) -> float | None:
        """A finite number, spelled as one or as a string ("0.86", "86 %" → 86.0); None otherwise."""
        if isinstance(value, str) and len(value) <= 40:
            value = value.strip().removesuffix("%").strip()
        elif isinstance(value, bool) or not isinstance(value, int | float):
            return None
        try:
            number = float(value)
        except (ValueError, OverflowError):
            return None
        return number if math.isfinite(number) else None

    def moment(self, value: Any, field: str) -> datetime | None:
        """A date with a time, in UTC (the Hub's own zone, where none is written)."""
        if value is None:
            return None
        if isinstance(value, str) and len(value) <= 40 and _MOMENT.fullmatch(value.strip()):
            try:
                moment = datetime.fromisoformat(value.strip().replace(",", "."))
                return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
            except (ValueError, OverflowError):
                pass
        self.note(field, "not a date with a time")
        return None
