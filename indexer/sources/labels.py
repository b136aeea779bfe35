"""What a person says of their own models: author, data sets, licence; for all of a command, or in a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.errors import AtlasError, BadArgument
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
        names = [name for one in datasets for name in map(str.strip, str(one).split(";")) if name]
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
    try:
        text = read_regular(Path(path), most=_MOST_BYTES, through_links=True).decode("utf-8-sig")
    except OSError as error:
        raise AtlasError(f"The labels {path} cannot be read: {error.strerror}.", "Check the path.") from error
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
    found: dict[str, ModelLabels] = {}
    places = _places(models)
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
        for typed in _named(row["model"], places, Path(path).parent):
            found[typed] = found.get(typed, ModelLabels()).updated(labels)
    if not found:
        raise BadArgument(f"No line of {path} is of a model that is added.", "Write its path, or the end of it.")
    return found


def _places(models: Sequence[str]) -> dict[str, set[str]]:
    """What may stand for a model: as typed, its whole path, its name."""
    places: dict[str, set[str]] = {}
    for typed in models:
        path = Path(typed).expanduser()
        for text in (typed, str(path.absolute()), str(path.resolve()), path.name, path.stem):
            places.setdefault(text, set()).add(typed)
    return places


def _named(text: str, places: Mapping[str, set[str]], folder: Path) -> set[str]:
    for one in (text, str((folder / text).absolute()), str((folder / text).resolve()), text.rstrip("/")):
        if one in places and (len(places[one]) == 1 or "/" in one):
            return places[one]
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
    kept = {"author": labels.author, "datasets": list(labels.datasets), "licence": labels.licence}
    return row | {"cardData": card, _KEY: {key: value for key, value in kept.items() if value}}


def labels_of_row(row: Mapping[str, Any]) -> ModelLabels:
    """The labels that a listing row keeps; none if they cannot be read."""
    kept = row.get(_KEY)
    if not isinstance(kept, Mapping):
        return ModelLabels()
    author, datasets, licence = (kept.get(name) for name in ("author", "datasets", "licence"))
    names = [one for one in datasets if isinstance(one, str)] if isinstance(datasets, list) else []
    try:
        return ModelLabels.checked(
            author if isinstance(author, str) else None, names, licence if isinstance(licence, str) else None
        )
    except BadArgument:
        return ModelLabels()
