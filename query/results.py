"""The answer to a question: an object and rows for programs; a sentence, a table and a picture for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, overload

from indexer.console.notebook import shown
from indexer.errors import AtlasError, ModelError, missing_extra, naming_extras, require
from indexer.untrusted import tidy
from query.figures import drawn_alone

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NOTEBOOK_DOTS_PER_INCH = 110

Row = TypeVar("Row")
ThemeName = Literal["light", "dark"]


class Result:
    """The answer to a question: a data class that defines ``headline`` and says with these names what is printed.

    ``ROWS``: the attribute whose items are the rows (or define ``to_rows``). ``COLUMNS``: the columns of the rows, in
    order, also without rows. ``KEYS``: the attributes that the JSON object has, by default every field; "items as
    models" if the key is another word. ``IS_LIST``: JSON is the list of rows. ``DETAILS``: columns that the table has
    only with details. ``OPTIONAL_COLUMNS``: columns that a narrow terminal drops, in this order. ``SHOW_HEADLINE``:
    print ``headline`` above the table.

    ``notes``: sentences to read with the answer. Every command prints them on stderr, whatever the format; ``to_dict``
    has them under ``notes``, and so has JSON if the answer is an object. JSON that is a list of rows has no place for
    them.
    """

    ROWS: ClassVar[str] = ""
    COLUMNS: ClassVar[tuple[str, ...]] = ()
    KEYS: ClassVar[tuple[str, ...]] = ()
    IS_LIST: ClassVar[bool] = False
    DETAILS: ClassVar[tuple[str, ...]] = ()
    OPTIONAL_COLUMNS: ClassVar[tuple[str, ...]] = ()
    SHOW_HEADLINE: ClassVar[bool] = False
    notes: tuple[str, ...] = ()

    HAS_DETAILS: ClassVar[bool] = False  # a table of its own that has more with details

    @classmethod
    def has_details(cls) -> bool:
        """Whether its table has more with details."""
        return cls.HAS_DETAILS or bool(cls.DETAILS)

    @property
    def headline(self) -> str:
        """The answer in a sentence or two; may be empty."""
        return ""

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON object."""
        found = {}
        for entry in self.KEYS or [one.name for one in fields(self)]:  # type: ignore[arg-type]
            name, _, key = entry.partition(" as ")
            found[key or name] = plain(getattr(self, name))
        return found

    def to_rows(self) -> list[dict[str, Any]]:
        """What CSV and JSON lines print: a row for each model, dataset, cluster or layer."""
        return [plain(row) for row in getattr(self, self.ROWS)]

    def to_json(self) -> Any:
        """What ``--format json`` prints: the object, or the rows if the answer is a list."""
        return self.to_rows() if self.IS_LIST else self.to_dict()

    def table(self, *, details: bool = False) -> Any:
        """What a terminal shows: rows, or an object of facts and tables. ``details``: everything."""
        left_out = () if details else self.DETAILS
        return [{name: value for name, value in row.items() if name not in left_out} for row in self.to_rows()]

    def to_df(self) -> pandas.DataFrame:
        """The rows as a data frame, with nullable integers, times and lists.

        Raises AtlasError if pandas is not installed.
        """
        return to_frame(self.to_rows(), self.COLUMNS)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline}>"

    def _repr_html_(self) -> str:
        return shown(self.headline, self.table(), self.notes)


class Drawn(Result):
    """A result with a picture; subclasses define ``figure``, which then runs in one thread at a time."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "figure" in vars(cls):
            cls.figure = naming_extras(drawn_alone(cls.figure), "A picture")  # type: ignore[method-assign]

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """The picture; ``theme`` is light or dark.

        ``ax``: replace this matplotlib axes instead of making a new figure. Raises AtlasError if matplotlib is not
        installed, or ``ax`` is not a cell of a grid.
        """
        raise NotImplementedError

    def write(self, path: str | Path, theme: ThemeName = "light") -> None:
        """Write the picture as .png, .svg or .pdf. Raises AtlasError for another suffix, or if it fails."""
        from query.figures import checked_output, draw, write_output

        file = checked_output(path)
        require("A picture", "matplotlib")
        write_output(file, draw(self.figure(theme), file.suffix.lower()))

    def _repr_html_(self) -> str:
        picture = None
        if find_spec("matplotlib") is not None:
            from query.figures import draw

            figure = self.figure()
            figure.set_dpi(_NOTEBOOK_DOTS_PER_INCH)
            picture = draw(figure, ".png")
        return shown(self.headline, self.table(), self.notes, picture)


class Listed(Result, Generic[Row]):
    """A result whose JSON is a list: it has a length, is indexed and iterated over. ``ROWS`` names its items.

    An answer is one, and prints a list, if it says the same of several things: models, datasets, parents, rows of SQL.
    Any other answer prints an object. In both cases ``to_dict`` gives an object and ``to_rows`` a list.
    """

    IS_LIST = True

    def _entries(self) -> Sequence[Row]:
        entries: Sequence[Row] = getattr(self, self.ROWS)
        return entries

    def __len__(self) -> int:
        return len(self._entries())

    def __bool__(self) -> bool:
        return True  # it is an answer, if one without items

    def __iter__(self) -> Iterator[Row]:
        return iter(self._entries())

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> list[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | list[Row]:
        """One item, or a list of some."""
        entries = self._entries()
        return list(entries[place]) if isinstance(place, slice) else entries[place]


class Rows(Result, Sequence[Row], Generic[Row]):
    """A result that is a list: it has a length, is indexed and iterated over, and equals a list of the same items."""

    ROWS = "items"
    IS_LIST = True
    items: tuple[Row, ...]

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> list[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | list[Row]:
        """One item, or a list of some."""
        return list(self.items[place]) if isinstance(place, slice) else self.items[place]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(self.items)


@dataclass(frozen=True)
class Answered(Generic[Row]):
    """The outcome of one question about ``asked``, as it was typed: either an ``answer`` or an ``error``."""

    asked: str
    answer: Row | None = None
    error: str | None = None


def answered(asked: Iterable[str], ask: Callable[[str], Row]) -> Iterator[Answered[Row]]:
    """Ask one after another; any error is the outcome of its question."""
    for one in asked:
        try:
            answer = ask(one)
        except (AtlasError, ModelError) as error:
            text = str(error) if isinstance(error, AtlasError) else f"{error.detail.rstrip('.')}."
            yield Answered(one, error=text)
        except Exception as error:
            if (missing := missing_extra(error)) is not None:
                yield Answered(one, error=str(missing))
                continue
            yield Answered(one, error=f"It could not be asked: {type(error).__name__}: {tidy(str(error), 200)}.")
        else:
            yield Answered(one, answer)


def plain(value: Any) -> Any:
    """Without data classes and tuples: an item becomes its ``as_row()``, or else a dict of its fields."""
    if hasattr(value, "as_row"):
        return value.as_row()
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def to_frame(
    rows: Sequence[Any], columns: Sequence[str] = (), kinds: Mapping[str, str] | None = None
) -> pandas.DataFrame:
    """A data frame with a row for each dataclass or dict.

    ``columns`` come first, also without rows. ``kinds``: the pandas dtype of some columns. In the others, integers and
    booleans stay nullable integers and booleans if values are missing, and tuples become lists.
    """
    require("A data frame", "pandas")
    import pandas as frames

    dicts = [plain(row) for row in rows]
    names = list(dict.fromkeys([*columns, *(name for row in dicts for name in row)]))
    kinds = kinds or {}
    return frames.DataFrame(
        {name: _series(frames, [row.get(name) for row in dicts], kinds.get(name)) for name in names}, columns=names
    )


def _series(frames: ModuleType, values: list[Any], kind: str | None) -> Any:
    if kind is not None and kind.startswith("datetime64"):
        return frames.to_datetime(frames.Series(values, dtype=object), utc="UTC" in kind, format="ISO8601").astype(kind)
    if kind is not None and kind.startswith("timedelta64"):
        return frames.to_timedelta(frames.Series(values, dtype=object)).astype(kind)
    if kind is not None:
        return frames.Series(values, dtype=kind)
    if any(isinstance(value, list | dict) for value in values):
        return frames.Series(values, dtype=object)
    present = {type(value) for value in values if value is not None}
    is_missing = len(present) and any(value is None for value in values)
    whole = {int: "Int64", bool: "boolean"}.get(next(iter(present))) if is_missing and len(present) == 1 else None
    return frames.Series(values, dtype=whole) if whole else frames.Series(values)
