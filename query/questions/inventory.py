"""The models and the datasets of an atlas, as lists."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from indexer.console.messages import say
from indexer.console.option import Argument, Option
from query.contract.columns import DOWNLOADS, READ, BaseId, Dataset, DatasetList, ModelId, Notes, Relation
from query.contract.options import ROWS_ON_A_TERMINAL, Base, Limit
from query.contract.registry import Invocation, Tool, question
from query.contract.results import Doc, If, Rows
from query.shared.wording import counted

if TYPE_CHECKING:
    from query.models.reader import AtlasReader

_MODELS = """
SELECT base, model, relation, datasets, downloads, "read", format, copy_of FROM (
    SELECT base, model, relation, datasets, downloads, "read", NULL AS format, NULL AS copy_of FROM models
    UNION ALL
    SELECT base, model, relation, coalesce(named.datasets, []), downloads, NULL, format || ' (' || types || ')', source
    FROM conversions JOIN fine_tunes USING (model_id) LEFT JOIN (
        SELECT model_id, list_sort(list(DISTINCT dataset)) AS datasets
        FROM model_datasets WHERE dataset IS NOT NULL GROUP BY model_id
    ) AS named USING (model_id)
) WHERE contains(lower(model), lower($1)) AND coalesce(base = $2, true) AND coalesce(list_contains(datasets, $3), true)
ORDER BY downloads DESC NULLS LAST, model
"""
_DATASETS = (
    "SELECT base, dataset, models, authors FROM dataset_counts WHERE contains(lower(dataset), lower($1)) "
    "AND coalesce(base = $2, true) ORDER BY models DESC, dataset, base"
)


@dataclass(frozen=True)
class ListedModel:
    """An indexed model, or a conversion: a copy of one in another format, which has no vector."""

    base: BaseId
    model: ModelId
    relation: Relation
    datasets: DatasetList
    downloads: Annotated[int | None, DOWNLOADS]
    read: Annotated[str | None, READ]
    format: Annotated[str | None, Doc("Of a conversion: how it is stored, GGUF (Q4_K, Q6_K)."), If()] = None
    copy_of: Annotated[
        str | None, Doc("Of a conversion: the model that it is a copy of, as far as that is known."), If()
    ] = None


@dataclass(frozen=True)
class ListedDataset:
    """A dataset, with the number of indexed models that name it."""

    base: BaseId
    dataset: Dataset
    models: Annotated[int, Doc("Number of indexed models that name it.")]
    authors: Annotated[int, Doc("Number of their accounts.")]


@dataclass(frozen=True, eq=False, repr=False)
class ListedModels(Rows[ListedModel]):
    """The indexed models of an atlas, and the conversions."""

    ROWS = "models"
    OPTIONAL_COLUMNS = ("read", "relation", "downloads", "datasets")

    models: Annotated[tuple[ListedModel, ...], Doc("The models, most downloads first.")]
    notes: Notes = ()

    @property
    def headline(self) -> str:
        """The number of models."""
        return counted(len(self), "model")


@dataclass(frozen=True, eq=False, repr=False)
class ListedDatasets(Rows[ListedDataset]):
    """The datasets that the indexed models of an atlas name."""

    ROWS = "datasets"
    OPTIONAL_COLUMNS = ("authors",)

    datasets: Annotated[tuple[ListedDataset, ...], Doc("The datasets, the most frequent first.")]
    notes: Notes = ()

    @property
    def headline(self) -> str:
        """The number of datasets."""
        return counted(len(self), "dataset")


def _show(call: Invocation, limit: int | None, list_of: str, **options: Any) -> None:
    """Print the models or datasets; on a terminal, only the first ROWS_ON_A_TERMINAL."""
    if limit is None and call.output == "table" and sys.stdout.isatty():
        limit = ROWS_ON_A_TERMINAL
    with call.opened() as atlas:
        answer: ListedModels | ListedDatasets = getattr(atlas, list_of)(**options)
        has_base = call.output != "table" or len(atlas.bases()) > 1
        columns = [column for column in answer.COLUMNS if column != "base" or has_base]
        rows = [
            {name: value for name, value in row.items() if name != "base" or has_base}
            for row in answer.to_rows()[:limit]
        ]
        call.emit(rows, columns=columns, optional_columns=answer.OPTIONAL_COLUMNS)
        if len(rows) < len(answer):
            say(f"the first {len(rows)} of {len(answer):,} are shown; for all: --limit N, --format csv, or a pipe")


def _show_models(call: Invocation, search: str, dataset: str | None, base: str | None, limit: Limit = None) -> None:
    """For any other condition: query sql "SELECT … FROM models WHERE …"."""
    _show(call, limit, "models", search=search, dataset=dataset, base=base)


def _show_datasets(call: Invocation, search: str, base: str | None, limit: Limit = None) -> None:
    _show(call, limit, "datasets", search=search, base=base)


@question(example="models mnli --dataset glue/mnli", command=_show_models)
def models(
    atlas: AtlasReader,
    search: Annotated[str, Argument("Part of the id, in any case.")] = "",
    *,
    dataset: Annotated[str | None, Option("Only models tuned on this dataset.", metavar="NAME")] = None,
    base: Base = None,
) -> ListedModels:
    """List the indexed models, most downloads first: all, or those whose id contains ``search``.

    Conversions (GGUF, AWQ …) are among them, with the model that each is a copy of.

    Note:
        ``search``: part of the id, in any case.
        ``dataset``: only models tuned on this one, by its canonical name.

    Returns:
        A list of :class:`ListedModel`.

    Raises:
        AtlasError: the base is unknown.
    """
    canonical = None if base is None else atlas.base_named(base)
    return ListedModels(tuple(ListedModel(**row) for row in atlas.rows(_MODELS, [search, canonical, dataset])))


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
) -> ListedDatasets:
    """List the datasets that indexed models name, most models first: all, or those whose name contains ``search``.

    Returns:
        A list of :class:`ListedDataset`.

    Raises:
        AtlasError: the base is unknown.
    """
    canonical = None if base is None else atlas.base_named(base)
    return ListedDatasets(tuple(ListedDataset(**row) for row in atlas.rows(_DATASETS, [search, canonical])))
