"""Libraries that only some questions need: imported where they are used, asked for by name where they are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from indexer.errors import require

if TYPE_CHECKING:
    import pandas


def to_frame(
    rows: Sequence[Any], columns: Sequence[str] = (), kinds: Mapping[str, str] | None = None
) -> pandas.DataFrame:
    """A data frame with a row for each dataclass or dict.

    ``columns`` come first, also where there is no row. ``kinds``: pandas' dtype of some columns; of the others whole
    numbers and truth values keep their kind where some are missing, and tuples become lists.
    """
    require("A data frame", "pandas")
    import pandas as frames

    plain = [asdict(row) if is_dataclass(row) and not isinstance(row, type) else row for row in rows]
    names = list(dict.fromkeys([*columns, *(name for row in plain for name in row)]))
    kinds = kinds or {}
    frame: pandas.DataFrame = frames.DataFrame(
        {name: _series(frames, [row.get(name) for row in plain], kinds.get(name)) for name in names}, columns=names
    )
    return frame


def _series(frames: ModuleType, values: list[Any], kind: str | None) -> Any:
    if kind is not None and kind.startswith("datetime64"):
        return frames.to_datetime(frames.Series(values, dtype=object), utc="UTC" in kind, format="ISO8601").astype(kind)
    if kind is not None and kind.startswith("timedelta64"):
        return frames.to_timedelta(frames.Series(values, dtype=object)).astype(kind)
    if kind is not None:
        return frames.Series(values, dtype=kind)
    if any(isinstance(value, tuple | list | dict) for value in values):
        return frames.Series([list(one) if isinstance(one, tuple) else one for one in values], dtype=object)
    present = {type(value) for value in values if value is not None}
    is_missing = len(present) and any(value is None for value in values)
    whole = {int: "Int64", bool: "boolean"}.get(next(iter(present))) if is_missing and len(present) == 1 else None
    return frames.Series(values, dtype=whole) if whole else frames.Series(values)
