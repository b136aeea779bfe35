"""The answer to a question: an object and rows for programs; a sentence, a table and a picture for people.

A field of an answer, or of one of its rows, carries what is known of it: ``similarity: Annotated[float, Doc("…")]``.
Table, JSON, CSV, data frame, the columns in ``--help``, ``query help`` and the schema that agents read are made from
that. ``query/contract/columns.py`` has the fields that several answers share.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    TypeVar,
    cast,
    get_args,
    get_origin,
    overload,
)

from indexer.arguments import annotation_of
from indexer.console.notebook import shown
from indexer.errors import AtlasError, ModelError, missing_extra, naming_extras, require
from indexer.untrusted import tidy
from query.contract.figures import drawn_alone

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NOTEBOOK_DOTS_PER_INCH = 110

Row = TypeVar("Row")
ThemeName = Literal["light", "dark"]


# ---- what is known of a field


@dataclass(frozen=True)
class Doc:
    """What a field means, with its unit or range. A property whose type has one is a key of the answer, too."""

    text: str


@dataclass(frozen=True)
class Detail:
    """Tables have the field only with details."""


@dataclass(frozen=True)
class Data:
    """No table has the field: it is for programs."""


@dataclass(frozen=True)
class Shown:
    """Only tables have the field.

    ``heading``: its name there. ``most``: without details, rows that are shown; the heading says how many there are.
    ``in_details``: also with details.
    """

    heading: str = ""
    most: int = 0
    in_details: bool = True


@dataclass(frozen=True)
class Hidden:
    """The field is no key of the answer: it is for Python."""


@dataclass(frozen=True)
class If:
    """The key is left out where the attribute ``name``, by default the field itself, is None, False or empty.

    ``in_tables``: only in tables.
    """

    name: str = ""
    in_tables: bool = False


@dataclass(frozen=True)
class OnRequest:
    """Only who asks for one of these ``words``, by default the name of the field, gets it: see ``Result.to_dict``."""

    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Key:
    """The key has another name than the field."""

    name: str


@dataclass(frozen=True)
class Spread:
    """The value is a mapping whose items are keys: what it is called depends on what was found."""


@dataclass(frozen=True)
class After:
    """The key stands after that of the field ``name``, "" for the first one.

    By default, fields stand in order, and properties follow.
    """

    name: str


@dataclass(frozen=True)
class Rounded:
    """Rows and objects have the number with this many decimals."""

    digits: int


class Format:
    """How tables show the value: ``write`` gets it, and the values of the fields ``others`` of the same row.

    ``in_details``: also with details; without, these have the value as it is.
    """

    def __init__(self, write: Callable[..., Any], *others: str, in_details: bool = True) -> None:
        self.write, self.others, self.in_details = write, others, in_details


@dataclass(frozen=True)
class Column:
    """A key of an answer or of one of its rows, and a column of tables.

    ``name``: the attribute. ``type``: its type; Any in it where only type checkers know it. ``markers``: what the
    annotation says besides.
    """

    name: str
    type: Any
    markers: tuple[Any, ...] = ()

    @cached_property
    def key(self) -> str:
        """Its name in JSON, CSV and tables: without the underscore after a word that Python reserves."""
        named: Key | None = self.marker(Key)
        return self.name.removesuffix("_") if named is None else named.name

    @property
    def doc(self) -> str:
        """What it means; "" if its field does not say."""
        found: Doc | None = self.marker(Doc)
        return "" if found is None else found.text

    def marker(self, kind: type[Any]) -> Any:
        """The marker of this kind, or None. The last one counts, so that a shared field can be described anew."""
        return next((one for one in reversed(self.markers) if isinstance(one, kind)), None)

    @property
    def is_heading(self) -> bool:
        """Whether it is the heading of a table, or stands for keys that depend on what was found."""
        return self._is_spread or (self._shown is not None and bool(self._shown.heading))

    def is_in(self, row: Any, *, table: bool, details: bool = False, asked: frozenset[str] = frozenset()) -> bool:
        """Whether ``row`` has the key: in a table, or in an object. ``asked``: what was asked for by name."""
        if table:
            is_kept = self._in_tables and (details or not self._is_detail)
            is_kept = is_kept and not (details and self._shown is not None and not self._shown.in_details)
        else:
            is_kept = self._shown is None
        if self._requested is not None and asked.isdisjoint(self._requested.words or (self.name,)):
            return False
        if not is_kept or self._condition is None or (self._condition.in_tables and not table):
            return is_kept
        value = getattr(row, self._condition.name or self.name)
        return value is not None and value is not False and not (isinstance(value, Sized) and len(value) == 0)

    def value(self, row: Any, *, table: bool, details: bool = False, asked: frozenset[str] = frozenset()) -> Any:
        """The value in ``row``, without data classes and tuples; as a person reads it in a table."""
        value = getattr(row, self.name)
        form = self._form if table else None
        if form is not None and (form.in_details or not details):
            return form.write(value, *(getattr(row, other) for other in form.others))
        if self._rounded is not None and value is not None:
            return round(value, self._rounded.digits)
        return plain(value, table=table, details=details, asked=asked)

    def items(
        self, row: Any, *, table: bool, details: bool = False, asked: frozenset[str] = frozenset()
    ) -> dict[str, Any]:
        """The key and its value in ``row``; the items of the value if it is spread; nothing if ``row`` lacks it."""
        if not self.is_in(row, table=table, details=details, asked=asked):
            return {}
        value = self.value(row, table=table, details=details, asked=asked)
        if self._is_spread:
            return dict(value)
        if not table or self._shown is None:
            return {self.key: value}
        heading, most = self._shown.heading or self.key, self._shown.most
        if details or not most or len(value) <= most:
            return {heading: value}
        return {f"{heading}, the first {most} of {len(value)}": value[:most]}

    # Found once, as every value of every row needs them.
    @cached_property
    def is_usual(self) -> bool:
        """Whether it is one key, in an object too, of everyone."""
        return self._shown is None and self._requested is None and not self._is_spread

    @cached_property
    def _in_tables(self) -> bool:
        return self.marker(Data) is None

    @cached_property
    def _shown(self) -> Shown | None:
        found: Shown | None = self.marker(Shown)
        return found

    @cached_property
    def _is_spread(self) -> bool:
        return self.marker(Spread) is not None

    @cached_property
    def _requested(self) -> OnRequest | None:
        found: OnRequest | None = self.marker(OnRequest)
        return found

    @cached_property
    def _is_detail(self) -> bool:
        return self.marker(Detail) is not None

    @cached_property
    def _condition(self) -> If | None:
        found: If | None = self.marker(If)
        return found

    @cached_property
    def _form(self) -> Format | None:
        found: Format | None = self.marker(Format)
        return found

    @cached_property
    def _rounded(self) -> Rounded | None:
        found: Rounded | None = self.marker(Rounded)
        return found


def columns(of: type[Any]) -> tuple[Column, ...]:
    """The keys of a data class: fields that are not hidden, and properties with ``Doc``, ``Shown`` or ``Spread``."""
    return _columns(cast(Hashable, of))


@cache
def _columns(of: Hashable) -> tuple[Column, ...]:
    assert isinstance(of, type)
    order = [one.name for one in fields(of)] if is_dataclass(of) else []
    found: dict[str, Column] = {}
    for base in reversed(of.__mro__):
        for name, annotation in vars(base).get("__annotations__", {}).items():
            if name in order:
                found[name] = _column(name, annotation, base.__module__)
        for name, attribute in vars(base).items():
            if isinstance(attribute, property):
                annotation = getattr(attribute.fget, "__annotations__", {}).get("return")
                column = _column(name, annotation, base.__module__)
                if column.doc or any(column.marker(kind) is not None for kind in (Shown, Spread)):
                    found[name] = column
    kept = sorted(found.values(), key=lambda one: order.index(one.name) if one.name in order else len(order))
    for column in [one for one in kept if one.marker(After) is not None]:
        names = ["", *(one.name for one in kept if one is not column)]
        if column.marker(After).name in names:  # else it stays where it is
            kept.remove(column)
            kept.insert(names.index(column.marker(After).name), column)
    return tuple(one for one in kept if one.marker(Hidden) is None)


class _Names(dict[str, Any]):
    """The names of a module; Any for types that it imports only for type checkers."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, Any)


def _column(name: str, annotation: Any, module: str) -> Column:
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, {}, _Names(vars(sys.modules[module])))  # the class's own source
        except (AttributeError, SyntaxError, TypeError):
            return Column(name, Any)
    if get_origin(annotation) is Annotated:
        return Column(name, annotation.__origin__, annotation.__metadata__)
    return Column(name, annotation)


def row_class_in(type_: Any) -> type[Any] | None:
    """The data class that a type names: itself, or that of its items or values; None if there is none."""
    if isinstance(type_, type) and is_dataclass(type_):
        return type_
    return next((found for part in get_args(type_) if (found := row_class_in(part)) is not None), None)


class _RowColumns:
    """The columns that every row has, of the class of an answer's rows."""

    def __get__(self, answer: Result | None, owner: type[Result]) -> tuple[str, ...]:
        known = owner.row_columns()
        always = (one for one in known if one.marker(Shown) is None)
        return tuple(one.key for one in always if (found := one.marker(If)) is None or found.in_tables)


class Result:
    """The answer to a question: a data class that defines ``headline``, whose fields are the keys of its object.

    What is printed follows from the fields of the class and of its rows, and from these names:

    ``ROWS``: the attribute whose items are the rows; if these are answers, the rows are theirs. ``EACH_ROW``:
    attributes that every row repeats. ``IN_A_BATCH``: attributes that its rows begin with among those of other answers.
    ``ROWS_BY``: the attributes with other kinds of rows, by the names of the kinds, the usual one first. ``TABLE``: the
    attribute with the rows of a table, without details if the answer has details. ``FRAME``: the attribute with the
    rows of a data frame, if these are others. ``COLUMNS``: the columns of the rows, in order, also without rows: by
    default the fields of the data class of the rows.

    ``IS_LIST``: JSON is the list of rows. ``IS_SHEET``: a table shows the object, not the rows. ``SHEET``: it shows
    these attributes, also hidden ones, in this order. ``OPTIONAL_COLUMNS``: columns that a narrow terminal drops, in
    this order. ``SHOW_HEADLINE``: print ``headline`` above the table. ``TABLE_COLUMNS``: what columns mean that are no
    fields, by name. ``HAS_DETAILS``: the table has more with details, though no field is marked so.

    ``notes``: sentences to read with the answer. Every command prints them on stderr, whatever the format; ``to_dict``
    has them under ``notes``, and so has JSON if the answer is an object. JSON that is a list of rows has no place for
    them.
    """

    ROWS: ClassVar[str] = ""
    EACH_ROW: ClassVar[tuple[str, ...]] = ()
    IN_A_BATCH: ClassVar[tuple[str, ...]] = ()
    ROWS_BY: ClassVar[Mapping[str, str]] = {}
    TABLE: ClassVar[str] = ""
    FRAME: ClassVar[str] = ""
    COLUMNS: ClassVar[Any] = _RowColumns()
    IS_LIST: ClassVar[bool] = False
    IS_SHEET: ClassVar[bool] = False
    SHEET: ClassVar[tuple[str, ...]] = ()
    OPTIONAL_COLUMNS: ClassVar[tuple[str, ...]] = ()
    SHOW_HEADLINE: ClassVar[bool] = False
    TABLE_COLUMNS: ClassVar[Mapping[str, str]] = {}
    HAS_DETAILS: ClassVar[bool] = False
    notes: tuple[str, ...] = ()

    @classmethod
    def row_columns(cls) -> tuple[Column, ...]:
        """What is known of the columns of the rows; empty if these are no data classes."""
        known = _attributes(cls)
        rows = _row_columns(known, cls.ROWS)
        return (*rows, *(known[name] for name in cls.EACH_ROW)) if rows else ()

    @classmethod
    def has_details(cls) -> bool:
        """Whether its table has more with details."""
        known: tuple[Column, ...] = (*columns(cls), *cls.row_columns()) if is_dataclass(cls) else ()
        return cls.HAS_DETAILS or any(one.marker(Detail) is not None for one in known)

    @property
    def headline(self) -> str:
        """The answer in a sentence or two; may be empty."""
        return ""

    def _entries(self) -> Sequence[Any]:
        entries: Sequence[Any] = getattr(self, self.ROWS)
        return entries

    def named(self, key: str) -> str:
        """The name of a key in this answer, if that depends on what was asked."""
        return key

    def to_dict(self, **asked: bool) -> dict[str, Any]:
        """The documented JSON object. ``asked``: which keys to add that only are there on request.

        Raises TypeError for any other name.
        """
        known = {one.name for one in columns(type(self)) if one.marker(OnRequest) is not None}
        if unknown := sorted(set(asked) - known):
            raise TypeError(f"to_dict() got an unexpected keyword argument {unknown[0]!r}")
        return self._renamed(_object(self, asked=frozenset(name for name, wanted in asked.items() if wanted)))

    def to_rows(self, by: str = "") -> list[dict[str, Any]]:
        """What CSV and JSON lines print: a row for each model, dataset, cluster or layer.

        ``by``: the kind of rows, where there are several. Raises ValueError if there is no such kind.
        """
        kind = self._kind(by)
        return self._rows(getattr(self, self.ROWS_BY[kind]) if kind else self._entries(), table=False)

    def to_json(self) -> Any:
        """What ``--format json`` prints: the object, or the rows if the answer is a list."""
        return self.to_rows() if self.IS_LIST else self.to_dict()

    def table(self, *, details: bool = False, by: str = "") -> Any:
        """What a terminal shows: rows, or an object of facts and tables. ``details``: everything.

        ``by``: as in ``to_rows``.
        """
        kind = self._kind(by)
        is_sheet = self.IS_SHEET or bool(self.SHEET)
        if not is_sheet and (self.ROWS or self.IS_LIST):
            is_shorter = self.TABLE and not (details and self.has_details())
            entries = getattr(self, self.TABLE) if is_shorter else self._entries()
            return self._rows(entries, table=True, details=details)
        known = _attributes(type(self))
        chosen = [known[name] for name in self.SHEET] or columns(type(self))
        whole = _object(self, chosen, table=True, details=details, asked=frozenset([kind]))
        whole.pop("notes", None)  # they are printed below it
        return self._renamed(whole)

    def to_df(self, by: str = "") -> pandas.DataFrame:
        """The rows as a data frame, with nullable integers, times and lists. ``by``: as in ``to_rows``.

        Raises AtlasError if pandas is not installed.
        """
        name = self.ROWS_BY[self._kind(by)] if by else self.FRAME
        if not name:
            types = self.frame_types()
            return to_frame(self.to_rows(), list(types), {one: type_ for one, type_ in types.items() if type_})
        rows = self._rows(getattr(self, name), table=False, is_repeated=False)
        return to_frame(rows, [one.key for one in _row_columns(_attributes(type(self)), name)])

    def frame_types(self) -> Mapping[str, str | None]:
        """The columns that the data frame has also without rows, and their pandas types; None: as the values are."""
        return dict.fromkeys(self.COLUMNS)

    def _kind(self, by: str) -> str:
        """The kind of rows that ``by`` names, by default the first; "" if there is only one."""
        kinds = {self.named(kind): kind for kind in self.ROWS_BY}
        if by and by not in kinds and by not in self.ROWS_BY:
            *most, last = kinds or ["none"]
            known = " or ".join(filter(None, [", ".join(most), last]))
            raise ValueError(f"unknown rows {by!r} (choose {known})")
        return kinds.get(by, by) or next(iter(self.ROWS_BY), "")

    def _rows(
        self, entries: Iterable[Any], *, table: bool, details: bool = False, is_repeated: bool = True
    ) -> list[dict[str, Any]]:
        known = _attributes(type(self))
        again: dict[str, Any] = {}
        for name in self.EACH_ROW if is_repeated else ():
            again |= known[name].items(self, table=table, details=details)
        rows: list[dict[str, Any]] = []
        for entry in entries:
            if isinstance(entry, Result):
                first = {name: getattr(entry, name) for name in entry.IN_A_BATCH}
                rows += [first | row for row in (entry.table(details=details) if table else entry.to_rows())]
            else:
                rows.append(plain(entry, table=table, details=details) | again)
        return self._renamed(rows)

    def _renamed(self, part: Any) -> Any:
        """``part`` of an answer with the names of keys that it has in this one."""
        if type(self).named is Result.named:
            return part
        if isinstance(part, Mapping):
            return {self.named(key): self._renamed(value) for key, value in part.items()}
        return [self._renamed(one) for one in part] if isinstance(part, list) else part

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline}>"

    def _repr_html_(self) -> str:
        return shown(self.headline, self.table(), self.notes)


def _attributes(of: type[Any]) -> Mapping[str, Column]:
    """The fields of a data class, hidden ones too, and its properties, by name."""
    return _known_attributes(cast(Hashable, of))


@cache
def _known_attributes(of: Hashable) -> Mapping[str, Column]:
    assert isinstance(of, type)
    found: dict[str, Column] = {}
    for base in reversed(of.__mro__):
        for name, annotation in vars(base).get("__annotations__", {}).items():
            found[name] = _column(name, annotation, base.__module__)
        for name, attribute in vars(base).items():
            if isinstance(attribute, property):
                annotation = getattr(attribute.fget, "__annotations__", {}).get("return")
                found[name] = _column(name, annotation, base.__module__)
    return found


def _row_columns(known: Mapping[str, Column], name: str) -> tuple[Column, ...]:
    """The columns of the items of an attribute; empty if these are no data classes, or answers."""
    rows = row_class_in(known[name].type) if name in known else None
    return () if rows is None or issubclass(rows, Result) else columns(rows)


def _object(
    value: Any,
    chosen: Iterable[Column] | None = None,
    *,
    table: bool = False,
    details: bool = False,
    asked: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """The keys of a data class with their values, by default all."""
    found: dict[str, Any] = {}
    for one in columns(type(value)) if chosen is None else chosen:
        if one.is_usual:
            if one.is_in(value, table=table, details=details):
                found[one.key] = one.value(value, table=table, details=details, asked=asked)
        else:
            found |= one.items(value, table=table, details=details, asked=asked)
    return found


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
        from query.contract.figures import checked_output, draw, write_output

        file = checked_output(path)
        require("A picture", "matplotlib")
        write_output(file, draw(self.figure(theme), file.suffix.lower()))

    def _repr_html_(self) -> str:
        picture = None
        if find_spec("matplotlib") is not None:
            from query.contract.figures import draw

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


class Rows(Listed[Row], Sequence[Row]):
    """A result that equals a list of the same items and, without any, is false. ``ROWS``: by default ``items``."""

    ROWS = "items"

    def __bool__(self) -> bool:
        return len(self) > 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


def answer_classes(function: Callable[..., Any]) -> list[type[Result]]:
    """The classes of the answers that a question may have, from its annotation."""

    def within(type_: Any) -> Iterator[type[Result]]:
        if isinstance(type_, type) and issubclass(type_, Result):
            yield type_
        for part in get_args(type_):
            yield from within(part)

    return list(dict.fromkeys(within(annotation_of(function, signature(function).return_annotation))))


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
            text = error.text if isinstance(error, AtlasError) else f"{error.detail.rstrip('.')}."
            yield Answered(one, error=text)
        except Exception as error:
            if (missing := missing_extra(error)) is not None:
                yield Answered(one, error=str(missing))
                continue
            yield Answered(one, error=f"It could not be asked: {type(error).__name__}: {tidy(str(error), 200)}.")
        else:
            yield Answered(one, answer)


def plain(value: Any, *, table: bool = False, details: bool = False, asked: frozenset[str] = frozenset()) -> Any:
    """Without data classes and tuples: one becomes a dict of its keys, an answer within an answer its object."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list | tuple):
        return [plain(item, table=table, details=details, asked=asked) for item in value]
    if isinstance(value, Result):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return _object(value, table=table, details=details, asked=asked)
    if isinstance(value, Mapping):
        return {name: plain(item, table=table, details=details, asked=asked) for name, item in value.items()}
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
