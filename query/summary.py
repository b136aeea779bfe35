"""The models and datasets of an atlas, and the atlas itself in a line and as a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexer.console.notebook import shown
from indexer.errors import AtlasError
from query.results import Rows
from query.wording import counted

if TYPE_CHECKING:
    from query.reader import AtlasReader


_MODELS = (
    "SELECT base, model, relation, datasets, downloads FROM models WHERE contains(lower(model), lower($1)) "
    "AND coalesce(base = $2, true) AND coalesce(list_contains(datasets, $3), true) "
    "ORDER BY downloads DESC NULLS LAST, model"
)
_DATASETS = (
    "SELECT base, dataset, models, authors FROM dataset_counts WHERE contains(lower(dataset), lower($1)) "
    "AND coalesce(base = $2, true) ORDER BY models DESC, dataset, base"
)


@dataclass(frozen=True, eq=False, repr=False)
class Inventory(Rows[dict[str, Any]]):
    """The models, or datasets, of an atlas: a list of mappings with the ``columns``."""

    OPTIONAL_COLUMNS = ("authors", "relation", "downloads", "datasets")

    kind: str
    columns: tuple[str, ...]
    items: tuple[dict[str, Any], ...]
    notes: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """Their number."""
        return counted(len(self.items), self.kind)


def models(atlas: AtlasReader, search: str = "", *, dataset: str | None = None, base: str | None = None) -> Inventory:
    """The indexed models, most downloads first: a list of mappings with base, relation, datasets and downloads.

    ``search``: part of the id, in any case. ``dataset``: only models tuned on this one, by its canonical name.
    Raises AtlasError if the base is unknown.
    """
    canonical = None if base is None else atlas.base_named(base)
    rows = tuple(atlas.rows(_MODELS, [search, canonical, dataset]))
    return Inventory("model", ("base", "model", "relation", "datasets", "downloads"), rows)


def datasets(atlas: AtlasReader, search: str = "", *, base: str | None = None) -> Inventory:
    """The datasets that indexed models name, most models first, with the number of their models and authors.

    ``search``: part of the name, in any case. Raises AtlasError if the base is unknown.
    """
    canonical = None if base is None else atlas.base_named(base)
    rows = tuple(atlas.rows(_DATASETS, [search, canonical]))
    return Inventory("dataset", ("base", "dataset", "models", "authors"), rows)


def relative_folder(atlas: AtlasReader) -> str:
    """The folder of the atlas, relative to the working folder: notebooks are shared, and show no home folder."""
    root, here = atlas.folder.root, Path.cwd()
    return str(root.relative_to(here) if root.is_relative_to(here) else root)


def one_line(atlas: AtlasReader) -> str:
    """The number of models, their bases and the time of publication; or that the atlas is closed."""
    try:
        bases = contents(atlas)
        (published,) = (row["published"] for row in atlas.rows("SELECT published FROM atlas_info"))
    except AtlasError as error:
        return error.message
    count = counted(sum(row["indexed"] for row in bases), "model")
    when = f", published {published:%Y-%m-%d %H:%M} UTC" if published else ""
    return f"{count} of {', '.join(row['base'] for row in bases) or 'no base'}{when}"


def as_html(atlas: AtlasReader) -> str:
    """The same above a table of the bases, for notebooks."""
    try:
        rows = contents(atlas)
    except AtlasError:  # it is closed
        rows = []
    return shown(f"Atlas {relative_folder(atlas)}: {one_line(atlas)}", rows, atlas.notes)


def contents(atlas: AtlasReader) -> list[dict[str, Any]]:
    """A row for each base: the number of models and authors, and the published representations."""
    return atlas.rows(
        "SELECT bases.base, count(models.model_id) AS indexed, count(DISTINCT author) AS authors, "
        "(SELECT list(representation ORDER BY representation) FROM representations AS r WHERE r.base = bases.base) "
        "AS representations FROM bases LEFT JOIN models ON models.base = bases.base "
        "GROUP BY bases.base ORDER BY bases.base"
    )
