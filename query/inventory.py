"""The models and the datasets of an atlas, as lists."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from indexer.console.messages import say
from indexer.console.option import Argument, Option
from query.facts import Place, names_of
from query.options import ROWS_ON_A_TERMINAL, Base, Limit
from query.registry import Tool, question
from query.results import Rows
from query.wording import counted

if TYPE_CHECKING:
    from query.cli.asking import Call
    from query.reader import AtlasReader

_COLUMNS = names_of(Place.LIST)
_MODELS = (
    f"SELECT {', '.join(_COLUMNS)} FROM models WHERE contains(lower(model), lower($1)) "
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

    OPTIONAL_COLUMNS = ("read", "authors", "relation", "downloads", "datasets")

    kind: str
    columns: tuple[str, ...]
    items: tuple[dict[str, Any], ...]
    notes: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """Their number."""
        return counted(len(self.items), self.kind)


def _show(call: Call, limit: int | None, list_of: str, **options: Any) -> None:
    """Print the models or datasets; on a terminal, the first of them."""
    if limit is None and call.output == "table" and sys.stdout.isatty():
        limit = ROWS_ON_A_TERMINAL
    with call.opened() as atlas:
        found: Inventory = getattr(atlas, list_of)(**options)
        columns = [one for one in found.columns if one != "base" or call.output != "table" or len(atlas.bases()) > 1]
        shown = [{name: row[name] for name in columns} for row in found[:limit]]
        call.emit(shown, columns=columns, optional_columns=found.OPTIONAL_COLUMNS)
        if len(shown) < len(found):
            say(f"the first {len(shown)} of {len(found):,} are shown; for all: --limit N, --format csv, or a pipe")


def _show_models(call: Call, search: str, dataset: str | None, base: str | None, limit: Limit = None) -> None:
    """For any other condition: query sql "SELECT … FROM models WHERE …"."""
    _show(call, limit, "models", search=search, dataset=dataset, base=base)


def _show_datasets(call: Call, search: str, base: str | None, limit: Limit = None) -> None:
    _show(call, limit, "datasets", search=search, base=base)


@question(example="models mnli --dataset glue/mnli", command=_show_models)
def models(
    atlas: AtlasReader,
    search: Annotated[str, Argument("Part of the id, in any case.")] = "",
    *,
    dataset: Annotated[str | None, Option("Only models tuned on this dataset.", metavar="NAME")] = None,
    base: Base = None,
) -> Inventory:
    """List the indexed models, most downloads first: all, or those whose id contains ``search``.

    Note:
        ``search``: part of the id, in any case.
        ``dataset``: only models tuned on this one, by its canonical name.

    Returns:
        A list of mappings with base, relation, datasets, downloads, read (sample or full).

    Raises:
        AtlasError: the base is unknown.
    """
    canonical = None if base is None else atlas.base_named(base)
    rows = tuple(atlas.rows(_MODELS, [search, canonical, dataset]))
    return Inventory("model", _COLUMNS, rows)


@question(
    example="datasets glue",
    agents=Tool("List the datasets that indexed models name, most models first.", ("search", "base")),
    command=_show_datasets,
)
def datasets(
    atlas: AtlasReader,
    search: Annotated[
        str, Argument("Part of the name, in any case.", agents="Part of the dataset's name; empty: all.")
    ] = "",
    *,
    base: Base = None,
) -> Inventory:
    """List the datasets that indexed models name, most models first: all, or those whose name contains ``search``.

    Returns:
        A list of mappings, with the number of models and authors of each dataset.

    Raises:
        AtlasError: the base is unknown.
    """
    canonical = None if base is None else atlas.base_named(base)
    rows = tuple(atlas.rows(_DATASETS, [search, canonical]))
    return Inventory("dataset", ("base", "dataset", "models", "authors"), rows)
