"""Colours of the points of a map: groups (dataset, author, cluster, text) or numbers on a scale."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from indexer.errors import AtlasError
from query.contract.columns import COLOUR_GROUP, Models
from query.models.population import Population, leading_datasets

if TYPE_CHECKING:
    from query.models.reader import AtlasReader
    from query.questions.clusters.result import Cluster

LEGEND = 10  # groups with a colour of their own; all others are grey
_DECADES = 2  # numbers that span this many powers of ten have a logarithmic scale

# Legend of models without a group or number.
_UNKNOWN = {"dataset": "no dataset named", "cluster": "in no cluster"}
_OUTLIER = -1
_MOSTLY = 0.5  # a cluster is named after the dataset of more than this share of its documented members

_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL", "UBIGINT", "UINTEGER")
_TIMES = ("TIMESTAMP", "DATE")
_TEXTS = ("VARCHAR", "BOOLEAN", "VARCHAR[]")


@dataclass(frozen=True)
class Group:
    """Points of one colour: ``models`` of them."""

    group: Annotated[str, COLOUR_GROUP]
    models: Models


@dataclass(frozen=True)
class ColorGroups:
    """The group of each point: ``codes`` are indices of ``groups`` (largest first), -1 for ``none``."""

    column: str
    groups: tuple[Group, ...]
    codes: tuple[int, ...]
    none: str

    @property
    def shown(self) -> tuple[Group, ...]:
        """The groups with a colour of their own."""
        return self.groups[:LEGEND]

    @property
    def rest(self) -> tuple[Group, ...]:
        """The groups drawn in grey."""
        return self.groups[LEGEND:]

    def name_of(self, point: int) -> str | None:
        """The name of a point's group; None if it has none."""
        return self.groups[self.codes[point]].group if self.codes[point] >= 0 else None


@dataclass(frozen=True)
class Scale:
    """A number for each point, or None. ``kind``: linear, log (zeros are at its lower end) or time (seconds, UTC).

    ``low`` and ``high`` bound the known numbers; on a log scale ``low`` is the smallest above zero.
    """

    column: str
    values: tuple[float | None, ...]
    low: float
    high: float
    kind: str
    none: str


Coloring = ColorGroups | Scale


def coloring(atlas: AtlasReader, population: Population, column: str, seed: int = 0) -> Coloring:
    """Colour the models of ``population`` by ``column``: dataset, author, cluster or a column of the view ``models``.

    A model has the colour of one dataset (``leading_datasets``). Numbers that span two powers of ten have a logarithmic
    scale; equal lists form a group. Raises AtlasError with the possible columns on an unknown one.
    """
    if column == "dataset":
        return grouped(column, leading_datasets(population.datasets))
    if column == "author":
        return grouped(column, population.authors)
    if column == "cluster":
        from query.questions.clusters.study import clusters

        clustering = clusters(population, seed=seed, draws=1)
        titles = {cluster.cluster: cluster_name(cluster) for cluster in clustering.clusters}
        labels = clustering.labels
        return grouped(column, [titles.get(labels.get(int(identity), _OUTLIER)) for identity in population.ids])
    kinds = {row["column_name"]: row["column_type"] for row in atlas.rows("DESCRIBE models")}
    usable = [name for name, kind in kinds.items() if kind in _TEXTS or kind.startswith(_NUMBERS + _TIMES)]
    if column not in usable:
        raise AtlasError(
            f"Cannot colour by {column!r}.", f"Choose one of dataset, author, cluster, {', '.join(usable)}."
        )
    is_time = kinds[column].startswith(_TIMES)
    value = f'epoch("{column}")' if is_time else f'"{column}"'
    rows = atlas.rows(
        f"SELECT model_id, {value} AS value FROM models WHERE model_id IN (SELECT unnest($1::INTEGER[]))",
        [population.ids.tolist()],
    )
    value_of = {row["model_id"]: row["value"] for row in rows}
    values = [value_of[int(identity)] for identity in population.ids]
    if kinds[column] not in _TEXTS:
        return scaled(column, values, is_time=is_time)
    if kinds[column] == "BOOLEAN":
        values = [None if value is None else "yes" if value else "no" for value in values]
    elif kinds[column].endswith("[]"):
        values = [", ".join(map(str, value or ())) for value in values]
    return grouped(column, [value or None for value in values])


def grouped(column: str, names: Sequence[str | None]) -> ColorGroups:
    """Groups of equal names, the largest first, ties by name."""
    counts = Counter(name for name in names if name is not None)
    groups = [Group(name, counts[name]) for name in sorted(counts, key=lambda name: (-counts[name], name))]
    code_of = {group.group: position for position, group in enumerate(groups)}
    codes = tuple(-1 if name is None else code_of[name] for name in names)
    return ColorGroups(column, tuple(groups), codes, _UNKNOWN.get(column, "not known"))


def scaled(column: str, values: Sequence[Any], *, is_time: bool = False) -> Scale:
    """Numbers on a suitable scale; values that are not finite count as not known."""
    numbers = [float(value) if value is not None and math.isfinite(value) else None for value in values]
    present = [number for number in numbers if number is not None] or [0.0]
    low, high = min(present), max(present)
    positive = min((number for number in present if number > 0), default=0.0)
    is_wide = low >= 0 and positive and high / positive >= 10**_DECADES
    kind = "time" if is_time else "log" if is_wide else "linear"
    return Scale(column, tuple(numbers), positive if kind == "log" else low, high, kind, "not known")


def cluster_name(cluster: Cluster) -> str:
    """A cluster's name: the dataset of most of its documented members, or the two most common datasets.

    Where no member names one, it is that of the central model.
    """
    if cluster.probably is None:
        content = f"around {cluster.central.rpartition('/')[2] or cluster.central}"
    elif (cluster.share or 0) > _MOSTLY:
        content = cluster.probably
    else:
        content = "mixed, " + " and ".join(list(cluster.datasets)[:2])
    return f"{cluster.cluster}: {content}"
