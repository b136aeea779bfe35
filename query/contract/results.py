"""The answer to a question: an object and rows for programs; a sentence, a table and a picture for people.

The annotation of a field describes it: ``similarity: Annotated[float, Doc("…")]``. Tables, JSON, CSV, data frames, the
columns in ``--help``, ``query help`` and the schema for agents are made from these annotations.
``query/contract/columns.py`` has the fields that several answers share.
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


# ---- markers: the description of a field in its annotation


@dataclass(frozen=True)
class Doc:
    """The meaning of a field, with its unit or range. A property whose type has one is a key of the answer, too."""

    text: str


@dataclass(frozen=True)
class Detail:
    """The field is in tables only with details."""


@dataclass(frozen=True)
class Data:
    """The field is in no table: it is for programs."""


@dataclass(frozen=True)
class Shown:
    """The field is in tables only.

    Attributes:
        heading: the name of the field in tables.
        most: the number of rows shown without details; the heading has the total. 0: all.
        in_details: whether the field is in tables with details, too.
    """

    heading: str = ""
    most: int = 0
    in_details: bool = True


@dataclass(frozen=True)
class Hidden:
    """The field is not a key of the answer: it is for Python."""


@dataclass(frozen=True)
class If:
    """The key is left out where the attribute ``name``, by default the field itself, is None, False or empty.

    ``in_tables``: only in tables.
    """

    name: str = ""
    in_tables: bool = False


@dataclass(frozen=True)
class OnRequest:
    """The key is present only if one of ``words``, by default the field's name, is requested (``Result.to_dict``)."""

    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Key:
    """The key has another name than the field."""

    name: str


@dataclass(frozen=True)
class Spread:
    """The value is a mapping whose items become keys, so the names of the keys depend on the results."""


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
    """How tables show the value.

    Args:
        write: gets the value, then those of ``other_fields`` of the same row; returns the text of the cell.
        other_fields: names of fields.
        in_details: whether tables with details use ``write``, too; if not, they have the value unchanged.
    """

    def __init__(self, write: Callable[..., Any], *other_fields: str, in_details: bool = True) -> None:
        self.write, self.other_fields, self.in_details = write, other_fields, in_details


@dataclass(frozen=True)
class Column:
    """A key of an answer or of one of its rows, and a column of tables.

    Attributes:
        name: the name of the field or property.
        type: its type, with Any in place of types that are imported only for type checkers.
        markers: the rest of its annotation: ``Doc``, ``Shown`` …
    """

    name: str
    type: Any
    markers: tuple[Any, ...] = ()

    @cached_property
    def key(self) -> str:
        """Its name in JSON, CSV and tables: without the underscore after a word that Python reserves."""
        marker: Key | None = self.marker(Key)
        return self.name.removesuffix("_") if marker is None else marker.name

    @property
    def doc(self) -> str:
        """The meaning; "" if the field has no ``Doc``."""
        doc: Doc | None = self.marker(Doc)
        return "" if doc is None else doc.text

    def marker(self, kind: type[Any]) -> Any:
        """The marker of this kind, or None. The last one counts, so that a shared field can be described anew."""
        return next((marker for marker in reversed(self.markers) if isinstance(marker, kind)), None)

    @property
    def is_heading(self) -> bool:
        """Whether it is the heading of a table, or stands for keys that depend on the results."""
        return self._is_spread or (self._shown is not None and bool(self._shown.heading))

    def is_in(self, row: Any, *, table: bool, details: bool = False, requested: frozenset[str] = frozenset()) -> bool:
        """Whether ``row`` has the key: in a table, or in an object. ``requested``: the keys requested by name."""
        if table:
            is_kept = self._in_tables and (details or not self._is_detail)
            is_kept = is_kept and not (details and self._shown is not None and not self._shown.in_details)
        else:
            is_kept = self._shown is None
        if self._requested is not None and requested.isdisjoint(self._requested.words or (self.name,)):
            return False
        if not is_kept or self._condition is None or (self._condition.in_tables and not table):
            return is_kept
        value = getattr(row, self._condition.name or self.name)
        return value is not None and value is not False and not (isinstance(value, Sized) and len(value) == 0)

    def value(self, row: Any, *, table: bool, details: bool = False, requested: frozenset[str] = frozenset()) -> Any:
        """The value in ``row``, without data classes and tuples; in a table, formatted for people."""
        value = getattr(row, self.name)
        form = self._form if table else None
        if form is not None and (form.in_details or not details):
            return form.write(value, *(getattr(row, field_name) for field_name in form.other_fields))
        if self._rounded is not None and value is not None:
            return round(value, self._rounded.digits)
        return plain(value, table=table, details=details, requested=requested)

    def items(
        self, row: Any, *, table: bool, details: bool = False, requested: frozenset[str] = frozenset()
    ) -> dict[str, Any]:
        """The key and its value in ``row``; the items of the value if it is spread; nothing if ``row`` lacks it."""
        if not self.is_in(row, table=table, details=details, requested=requested):
            return {}
        value = self.value(row, table=table, details=details, requested=requested)
        if self._is_spread:
            return dict(value)
        if not table or self._shown is None:
            return {self.key: value}
        heading, most = self._shown.heading or self.key, self._shown.most
        if details or not most or len(value) <= most:
            return {heading: value}
        return {f"{heading}, the first {most} of {len(value)}": value[:most]}

    # Cached, because every value of every row needs them.
    @cached_property
    def is_usual(self) -> bool:
        """Whether it is a single key that every object has."""
        return self._shown is None and self._requested is None and not self._is_spread

    @cached_property
    def _in_tables(self) -> bool:
        return self.marker(Data) is None

    @cached_property
    def _shown(self) -> Shown | None:
        shown_marker: Shown | None = self.marker(Shown)
        return shown_marker

    @cached_property
    def _is_spread(self) -> bool:
        return self.marker(Spread) is not None

    @cached_property
    def _requested(self) -> OnRequest | None:
        on_request: OnRequest | None = self.marker(OnRequest)
        return on_request

    @cached_property
    def _is_detail(self) -> bool:
        return self.marker(Detail) is not None

    @cached_property
    def _condition(self) -> If | None:
        condition: If | None = self.marker(If)
        return condition

    @cached_property
    def _form(self) -> Format | None:
        format_marker: Format | None = self.marker(Format)
        return format_marker

    @cached_property
    def _rounded(self) -> Rounded | None:
        rounded: Rounded | None = self.marker(Rounded)
        return rounded


def columns(class_: type[Any]) -> tuple[Column, ...]:
    """The keys of a data class: fields that are not hidden, and properties with ``Doc``, ``Shown`` or ``Spread``."""
    return _columns(cast(Hashable, class_))


@cache
def _columns(class_: Hashable) -> tuple[Column, ...]:
    assert isinstance(class_, type)
    order = [attribute.name for attribute in fields(class_)] if is_dataclass(class_) else []
    columns_by_name: dict[str, Column] = {}
    for base in reversed(class_.__mro__):
        for name, annotation in vars(base).get("__annotations__", {}).items():
            if name in order:
                columns_by_name[name] = _column(name, annotation, base.__module__)
        for name, attribute in vars(base).items():
            if isinstance(attribute, property):
                annotation = getattr(attribute.fget, "__annotations__", {}).get("return")
                column = _column(name, annotation, base.__module__)
                if column.doc or any(column.marker(kind) is not None for kind in (Shown, Spread)):
                    columns_by_name[name] = column
    # Fields in their order, then properties.
    ordered = sorted(
        columns_by_name.values(), key=lambda column: order.index(column.name) if column.name in order else len(order)
    )
    for column_to_move in [column for column in ordered if column.marker(After) is not None]:
        names = ["", *(column.name for column in ordered if column is not column_to_move)]
        if column_to_move.marker(After).name in names:  # else it stays where it is
            ordered.remove(column_to_move)
            ordered.insert(names.index(column_to_move.marker(After).name), column_to_move)
    return tuple(column for column in ordered if column.marker(Hidden) is None)


class _Names(dict[str, Any]):
    """The names of a module; Any for names that are imported only for type checkers."""

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
    """The data class in a type: the type itself, or that of its items or values; None if there is none."""
    if isinstance(type_, type) and is_dataclass(type_):
        return type_
    return next((row_class for part in get_args(type_) if (row_class := row_class_in(part)) is not None), None)


class _RowColumns:
    """The names of the columns that all rows of an answer have, from the class of the rows."""

    def __get__(self, answer: Result | None, owner: type[Result]) -> tuple[str, ...]:
        row_columns = owner.row_columns()
        in_every_row = (column for column in row_columns if column.marker(Shown) is None)
        return tuple(
            column.key for column in in_every_row if (condition := column.marker(If)) is None or condition.in_tables
        )


class Result:
    """The answer to a question: a data class that defines ``headline``, whose fields are the keys of its object.

    The output follows from the fields of the class and of its rows, and from these attributes.

    Attributes:
        ROWS: name of the attribute whose items are the rows; if the items are answers, their rows are used.
        EACH_ROW: attributes that are repeated in every row.
        IN_A_BATCH: attributes that precede the rows where the answers about several models are listed together.
        ROWS_BY: the attributes with other kinds of rows, by the names of the kinds, the usual kind first.
        TABLE: the attribute with the rows of a table; if the answer has details, of the table without them.
        FRAME: the attribute with the rows of a data frame, if it is not ``ROWS``.
        COLUMNS: the columns of the rows, in order, for answers without rows, too; by default the fields of the data
            class of the rows.
        IS_LIST: JSON is the list of rows.
        IS_SHEET: a table shows the object, not the rows.
        SHEET: a table shows the object with these attributes, hidden ones included, in this order.
        OPTIONAL_COLUMNS: columns that a narrow terminal drops, in this order.
        SHOW_HEADLINE: print ``headline`` above the table.
        TABLE_COLUMNS: meanings of columns that are not fields, by name.
        HAS_DETAILS: the table has more with details, although no field has the marker ``Detail``.
        notes: sentences to read with the answer. Every command prints them on stderr, whatever the format. ``to_dict``
            has them under ``notes``, and so has JSON if the answer is an object; a JSON list of rows lacks them.
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
        """The columns of the rows; empty if the rows are not data classes."""
        attributes = _attributes(cls)
        rows = _row_columns(attributes, cls.ROWS)
        return (*rows, *(attributes[name] for name in cls.EACH_ROW)) if rows else ()

    @classmethod
    def has_details(cls) -> bool:
        """Whether its table has more with details."""
        all_columns: tuple[Column, ...] = (*columns(cls), *cls.row_columns()) if is_dataclass(cls) else ()
        return cls.HAS_DETAILS or any(column.marker(Detail) is not None for column in all_columns)

    @property
    def headline(self) -> str:
        """The answer in a sentence or two; may be empty."""
        return ""

    def _entries(self) -> Sequence[Any]:
        entries: Sequence[Any] = getattr(self, self.ROWS)
        return entries

    def named(self, key: str) -> str:
        """The name of a key in this answer, for keys whose name depends on the arguments of the question."""
        return key

    def to_dict(self, **keys: bool) -> dict[str, Any]:
        """The documented JSON object. ``keys``: which keys ``OnRequest`` to add; TypeError for any other name."""
        on_request = {column.name for column in columns(type(self)) if column.marker(OnRequest) is not None}
        if unknown := sorted(set(keys) - on_request):
            raise TypeError(f"to_dict() got an unexpected keyword argument {unknown[0]!r}")
        return self._renamed(
            _object(self, requested=frozenset(name for name, is_requested in keys.items() if is_requested))
        )

    def to_rows(self, by: str = "") -> list[dict[str, Any]]:
        """The rows of CSV and JSON lines: one for each model, dataset, cluster or layer.

        ``by``: the kind of rows, where there are several. Raises ValueError if there is no such kind.
        """
        kind = self._kind(by)
        return self._rows(getattr(self, self.ROWS_BY[kind]) if kind else self._entries(), table=False)

    def to_json(self) -> Any:
        """The output of ``--format json``: the object, or the rows if the answer is a list."""
        return self.to_rows() if self.IS_LIST else self.to_dict()

    def table(self, *, details: bool = False, by: str = "") -> Any:
        """The table on a terminal: rows, or an object of facts and tables. ``details``: everything.

        ``by``: as in ``to_rows``.
        """
        kind = self._kind(by)
        is_sheet = self.IS_SHEET or bool(self.SHEET)
        if not is_sheet and (self.ROWS or self.IS_LIST):
            is_shorter = self.TABLE and not (details and self.has_details())
            entries = getattr(self, self.TABLE) if is_shorter else self._entries()
            return self._rows(entries, table=True, details=details)
        attributes = _attributes(type(self))
        shown_columns = [attributes[name] for name in self.SHEET] or columns(type(self))
        sheet = _object(self, shown_columns, table=True, details=details, requested=frozenset([kind]))
        sheet.pop("notes", None)  # they are printed below it
        return self._renamed(sheet)

    def to_df(self, by: str = "") -> pandas.DataFrame:
        """The rows as a data frame, with nullable integers, times and lists. ``by``: as in ``to_rows``.

        Raises AtlasError if pandas is not installed.
        """
        name = self.ROWS_BY[self._kind(by)] if by else self.FRAME
        if not name:
            types = self.frame_types()
            return to_frame(self.to_rows(), list(types), {name: type_ for name, type_ in types.items() if type_})
        rows = self._rows(getattr(self, name), table=False, is_repeated=False)
        return to_frame(rows, [column.key for column in _row_columns(_attributes(type(self)), name)])

    def frame_types(self) -> Mapping[str, str | None]:
        """The columns of the data frame, which it has without rows, too, and their pandas types; None: inferred."""
        return dict.fromkeys(self.COLUMNS)

    def _kind(self, by: str) -> str:
        """The kind of rows that ``by`` names, by default the first; "" if there is only one."""
        kinds = {self.named(kind): kind for kind in self.ROWS_BY}
        if by and by not in kinds and by not in self.ROWS_BY:
            *choices, last = kinds or ["none"]
            choices_in_words = " or ".join(filter(None, [", ".join(choices), last]))
            raise ValueError(f"unknown rows {by!r} (choose {choices_in_words})")
        return kinds.get(by, by) or next(iter(self.ROWS_BY), "")

    def _rows(
        self, entries: Iterable[Any], *, table: bool, details: bool = False, is_repeated: bool = True
    ) -> list[dict[str, Any]]:
        attributes = _attributes(type(self))
        repeated: dict[str, Any] = {}
        for name in self.EACH_ROW if is_repeated else ():
            repeated |= attributes[name].items(self, table=table, details=details)
        rows: list[dict[str, Any]] = []
        for entry in entries:
            if isinstance(entry, Result):
                leading = {name: getattr(entry, name) for name in entry.IN_A_BATCH}
                rows += [leading | row for row in (entry.table(details=details) if table else entry.to_rows())]
            else:
                rows.append(plain(entry, table=table, details=details) | repeated)
        return self._renamed(rows)

    def _renamed(self, part: Any) -> Any:
        """``part`` of the answer with its keys renamed by ``named``."""
        if type(self).named is Result.named:
            return part
        if isinstance(part, Mapping):
            return {self.named(key): self._renamed(value) for key, value in part.items()}
        return [self._renamed(item) for item in part] if isinstance(part, list) else part

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline}>"

    def _repr_html_(self) -> str:
        return shown(self.headline, self.table(), self.notes)


def _attributes(class_: type[Any]) -> Mapping[str, Column]:
    """The fields of a data class, hidden ones too, and its properties, by name."""
    return _known_attributes(cast(Hashable, class_))


@cache
def _known_attributes(class_: Hashable) -> Mapping[str, Column]:
    assert isinstance(class_, type)
    attributes: dict[str, Column] = {}
    for base in reversed(class_.__mro__):
        for name, annotation in vars(base).get("__annotations__", {}).items():
            attributes[name] = _column(name, annotation, base.__module__)
        for name, attribute in vars(base).items():
            if isinstance(attribute, property):
                annotation = getattr(attribute.fget, "__annotations__", {}).get("return")
                attributes[name] = _column(name, annotation, base.__module__)
    return attributes


def _row_columns(attributes: Mapping[str, Column], name: str) -> tuple[Column, ...]:
    """The columns of the items of an attribute; empty if the items are answers, or not data classes."""
    rows = row_class_in(attributes[name].type) if name in attributes else None
    return () if rows is None or issubclass(rows, Result) else columns(rows)


def _object(
    value: Any,
    chosen_columns: Iterable[Column] | None = None,
    *,
    table: bool = False,
    details: bool = False,
    requested: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """The keys of a data class with their values, by default all."""
    row: dict[str, Any] = {}
    for column in columns(type(value)) if chosen_columns is None else chosen_columns:
        if column.is_usual:
            if column.is_in(value, table=table, details=details):
                row[column.key] = column.value(value, table=table, details=details, requested=requested)
        else:
            row |= column.items(value, table=table, details=details, requested=requested)
    return row


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

    For answers with the same facts about several things: models, datasets, parents, rows of SQL. Any other answer
    prints an object. In both cases ``to_dict`` gives an object and ``to_rows`` a list.
    """

    IS_LIST = True

    def __len__(self) -> int:
        return len(self._entries())

    def __bool__(self) -> bool:
        return True  # an answer without items is an answer, too

    def __iter__(self) -> Iterator[Row]:
        return iter(self._entries())

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        """One item, or a list of some."""
        entries = self._entries()
        return list(entries[index]) if isinstance(index, slice) else entries[index]


class Rows(Listed[Row], Sequence[Row]):
    """A result that equals a list of the same items, and is false without items. ``ROWS``: by default ``items``."""

    ROWS = "items"

    def __bool__(self) -> bool:
        return len(self) > 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


def answer_classes(function: Callable[..., Any]) -> list[type[Result]]:
    """The classes of a question's possible answers, from its annotation."""

    def within(type_: Any) -> Iterator[type[Result]]:
        if isinstance(type_, type) and issubclass(type_, Result):
            yield type_
        for part in get_args(type_):
            yield from within(part)

    return list(dict.fromkeys(within(annotation_of(function, signature(function).return_annotation))))


@dataclass(frozen=True)
class Answered(Generic[Row]):
    """The outcome of a question about ``asked``, as it was typed: either an ``answer`` or an ``error``."""

    asked: str
    answer: Row | None = None
    error: str | None = None


def answered(subjects: Iterable[str], ask: Callable[[str], Row]) -> Iterator[Answered[Row]]:
    """Ask about one model (or text …) after the other; any error is the outcome of its question."""
    for subject in subjects:
        try:
            answer = ask(subject)
        except (AtlasError, ModelError) as error:
            text = error.text if isinstance(error, AtlasError) else f"{error.detail.rstrip('.')}."
            yield Answered(subject, error=text)
        except Exception as error:
            if (missing_package := missing_extra(error)) is not None:
                yield Answered(subject, error=str(missing_package))
                continue
            yield Answered(subject, error=f"It could not be asked: {type(error).__name__}: {tidy(str(error), 200)}.")
        else:
            yield Answered(subject, answer)


def plain(value: Any, *, table: bool = False, details: bool = False, requested: frozenset[str] = frozenset()) -> Any:
    """``value`` with data classes as dicts of their keys, tuples as lists, and answers within it as their objects."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list | tuple):
        return [plain(item, table=table, details=details, requested=requested) for item in value]
    if isinstance(value, Result):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return _object(value, table=table, details=details, requested=requested)
    if isinstance(value, Mapping):
        return {name: plain(item, table=table, details=details, requested=requested) for name, item in value.items()}
    return value


def to_frame(
    rows: Sequence[Any], columns: Sequence[str] = (), kinds: Mapping[str, str] | None = None
) -> pandas.DataFrame:
    """A data frame with a row for each dataclass or dict.

    Args:
        rows: data classes or dicts.
        columns: the first columns, which the frame has without rows, too.
        kinds: the pandas dtype of some columns. In the others, integers and booleans become nullable ones if values are
            missing, and tuples become lists.
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
    types = {type(value) for value in values if value is not None}
    is_missing = len(types) and any(value is None for value in values)
    nullable = {int: "Int64", bool: "boolean"}.get(next(iter(types))) if is_missing and len(types) == 1 else None
    return frames.Series(values, dtype=nullable) if nullable else frames.Series(values)
