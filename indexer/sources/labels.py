"""What a person says of their own models: author, data sets, licence; for all of a command, or in a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.errors import AtlasError, BadArgument, system_errors
from indexer.regular_files import read_regular
from indexer.sources.source import Row

_MOST_BYTES = 64 << 20
_LONGEST = 96
_MOST_DATASETS = 100
_COLUMNS = ("model", "author", "dataset", "licence")
_SPELLINGS = {"datasets": "dataset", "license": "licence", "path": "model", "file": "model", "folder": "model"}
_KEY = "labels"


@dataclass(frozen=True)
class ModelLabels:
    """Labels of one model; None and () where nothing is said."""

    author: str | None = None
    datasets: tuple[str, ...] = ()
    licence: str | None = None

    @classmethod
    def checked(cls, author: str | None, datasets: Sequence[str], licence: str | None) -> ModelLabels:
        """The same, without blanks around. Raises BadArgument for what no column can hold."""
        names = [name for text in datasets for name in map(str.strip, str(text).split(";")) if name]
        texts = [(author, "author"), (licence, "licence"), *((name, "dataset") for name in names)]
        for text, what in texts:
            if text is not None and not (text.strip() and text.isprintable() and len(text) <= _LONGEST):
                raise BadArgument(f"`{what}` {str(text)[:_LONGEST]!r} is no name of up to {_LONGEST} characters.", "")
        if len(names) > _MOST_DATASETS:
            raise BadArgument(f"`dataset`: {len(names)} names; a model can have {_MOST_DATASETS}.", "")
        return cls(
            author.strip() if author else None, tuple(dict.fromkeys(names)), licence.strip() if licence else None
        )

    @property
    def is_given(self) -> bool:
        """Whether anything is said."""
        return self != ModelLabels()

    def updated(self, other: ModelLabels | None) -> ModelLabels:
        """With what ``other`` says in its place."""
        if other is None:
            return self
        return ModelLabels(other.author or self.author, other.datasets or self.datasets, other.licence or self.licence)


def read_labels(path: str | Path, models: Sequence[str]) -> dict[str, ModelLabels]:
    """The labels of ``models``, as they were typed, from a table with tabs or commas and a line of names.

    A row is of the model that is typed, that has this path, or that has this name at the end of its path if only one
    has. Raises AtlasError if the file cannot be read, and BadArgument if it is no such table or names no model.
    """
    with system_errors(lambda why: AtlasError(f"The labels {path} cannot be read: {why}.", "Check the path.")):
        content = read_regular(Path(path), most=_MOST_BYTES, through_links=True)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AtlasError(f"The labels {path} are not UTF-8.", "Save them as UTF-8.") from error
    first = text.partition("\n")[0]
    lines = csv.reader(io.StringIO(text), delimiter="\t" if "\t" in first else ",")
    names = [_SPELLINGS.get(name.strip().lower(), name.strip().lower()) for name in next(lines, [])]
    if "model" not in names or not set(names) <= set(_COLUMNS) or len(set(names)) < len(names):
        raise BadArgument(
            f"The first line of {path} is not a line of names: {', '.join(names)[:200] or 'it is empty'}.",
            f"Name the columns {', '.join(_COLUMNS)}, with tabs or commas; all but model can be left out.",
        )
    labels_of: dict[str, ModelLabels] = {}
    spellings = _places(models)
    for number, values in enumerate(lines, 2):
        if not any(value.strip() for value in values):
            continue
        if len(values) > len(names):
            raise BadArgument(f"Line {number} of {path} has {len(values)} columns, the first line {len(names)}.", "")
        row = {name: value.strip() for name, value in zip(names, values, strict=False)}
        try:
            labels = ModelLabels.checked(
                row.get("author") or None, [row.get("dataset", "")], row.get("licence") or None
            )
        except BadArgument as error:
            raise BadArgument(f"Line {number} of {path}: {error.message}", "") from error
        for typed in _named(row["model"], spellings, Path(path).parent):
            labels_of[typed] = labels_of.get(typed, ModelLabels()).updated(labels)
    if not labels_of:
        raise BadArgument(f"No line of {path} is of a model that is added.", "Write its path, or the end of it.")
    return labels_of


def _places(models: Sequence[str]) -> dict[str, set[str]]:
    """What may stand for a model: as typed, its whole path, its name."""
    spellings: dict[str, set[str]] = {}
    for typed in models:
        path = Path(typed).expanduser()
        for text in (typed, str(path.absolute()), str(path.resolve()), path.name, path.stem):
            spellings.setdefault(text, set()).add(typed)
    return spellings


def _named(text: str, spellings: Mapping[str, set[str]], folder: Path) -> set[str]:
    for spelling in (text, str((folder / text).absolute()), str((folder / text).resolve()), text.rstrip("/")):
        if spelling in spellings and (len(spellings[spelling]) == 1 or "/" in spelling):
            return spellings[spelling]
    return set()


def with_labels(row: Row, labels: ModelLabels) -> Row:
    """A listing row with the labels, as if its card said them; they are kept by themselves, too."""
    if not labels.is_given:
        return row
    card: dict[str, Any] = dict(row["cardData"]) if isinstance(row.get("cardData"), dict) else {}
    if labels.datasets:
        card["datasets"] = list(labels.datasets)
    if labels.licence:
        card["license"] = labels.licence
    fields = {"author": labels.author, "datasets": list(labels.datasets), "licence": labels.licence}
    return row | {"cardData": card, _KEY: {key: value for key, value in fields.items() if value}}


def labels_of_row(row: Mapping[str, Any]) -> ModelLabels:
    """The labels that a listing row keeps; none if they cannot be read."""
    fields = row.get(_KEY)
    if not isinstance(fields, Mapping):
        return ModelLabels()
    author, datasets, licence = (fields.get(name) for name in ("author", "datasets", "licence"))
    names = [dataset for dataset in datasets if isinstance(dataset, str)] if isinstance(datasets, list) else []
    try:
        return ModelLabels.checked(
            author if isinstance(author, str) else None, names, licence if isinstance(licence, str) else None
        )
    except BadArgument:
        return ModelLabels()
