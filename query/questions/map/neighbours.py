"""The stored neighbours of all models of a base, with their similarities, and the models' parents."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.console.messages import clean
from indexer.vectors.background import Background
from query.shared.wording import NONE

if TYPE_CHECKING:
    from query.models.reader import AtlasReader


_FARTHEST = 2.0  # 1 minus a cosine


class NearPoint(NamedTuple):
    """A neighbour of a point.

    Attributes:
        row: the index of the neighbour in the points.
        cosine: the similarity.
        background: the share of pairs of unrelated models that are at least as similar; None if not known.
        none_of: the number of pairs of unrelated models, if none of them is as similar.
    """

    row: int
    cosine: float
    background: float | None = None
    none_of: int | None = None


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Entry i of every column is one (model, neighbour) pair: by model, the nearest first.

    ``backgrounds``: the share of pairs of unrelated models that are at least as similar, NaN if too few pairs are
    known; ``pairs``: the number of those pairs, 0 if too few.
    """

    models: NDArray[np.int64]
    neighbours: NDArray[np.int64]
    similarities: NDArray[np.float32]
    backgrounds: NDArray[np.float64]
    pairs: NDArray[np.int64]

    def among(self, ids: NDArray[np.int64], count: int) -> tuple[NDArray[np.intp], ...]:
        """The pairs whose models are both among ``ids`` (ascending), up to ``count`` for each model, nearest first.

        Three columns: the indices in ``ids`` of the model and of its neighbour, and the index of the pair in the
        columns of this object.
        """
        rows, neighbour_rows = (
            np.minimum(np.searchsorted(ids, column), len(ids) - 1) for column in (self.models, self.neighbours)
        )
        pairs = np.flatnonzero((ids[rows] == self.models) & (ids[neighbour_rows] == self.neighbours))
        rows, neighbour_rows = rows[pairs], neighbour_rows[pairs]
        is_near = np.arange(len(rows)) - np.searchsorted(rows, rows, side="left") < count
        return rows[is_near], neighbour_rows[is_near], pairs[is_near]


def read_neighbours(atlas: AtlasReader, base: str, representation: str) -> Neighbours:
    """Every row of the table ``neighbours`` between indexed models of ``base``."""
    columns = atlas.connection.execute(
        "SELECT near.model_id, near.neighbour_id, near.similarity, "
        "least(model.vector_group, neighbour.vector_group) AS one_group, "
        "greatest(model.vector_group, neighbour.vector_group) AS other_group "
        "FROM neighbours AS near JOIN records AS model USING (model_id) "
        "JOIN records AS neighbour ON neighbour.model_id = near.neighbour_id "
        "JOIN fine_tunes ON fine_tunes.model_id = near.model_id "
        "WHERE base = ? AND representation = ? ORDER BY near.model_id, rank",
        [base, representation],
    ).fetchnumpy()
    similarities = np.asarray(columns["similarity"], dtype=np.float32)
    shares, pairs = np.full(len(similarities), np.nan), np.zeros(len(similarities), dtype=np.int64)
    unrelated = atlas.connection.execute(
        "SELECT one_group, other_group, any_value(pairs), list(similarity ORDER BY similarity DESC), "
        "list(share ORDER BY similarity DESC) FROM null_similarity WHERE base = ? AND representation = ? GROUP BY ALL",
        [base, representation],
    ).fetchall()
    for group, other_group, count, levels, share in unrelated:
        matching = np.flatnonzero((columns["one_group"] == group) & (columns["other_group"] == other_group))
        background = Background(count, np.array(levels, dtype=np.float32), np.array(share, dtype=np.float64))
        shares[matching], pairs[matching] = background.share(similarities[matching]), count
    return Neighbours(
        np.asarray(columns["model_id"], dtype=np.int64),
        np.asarray(columns["neighbour_id"], dtype=np.int64),
        similarities,
        shares,
        pairs,
    )


def known_near(near: Neighbours, ids: NDArray[np.int64], count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The ``count`` nearest of each of the models ``ids`` (ascending) among them, itself first; both (n, count).

    The indices in ``ids``, -1 if fewer are known; and 1 − similarity, the largest possible value if not known.
    """
    rows, neighbour_rows, pairs = near.among(ids, count - 1)
    rank = 1 + np.arange(len(rows)) - np.searchsorted(rows, rows, side="left")
    nearest = np.full((len(ids), count), -1, dtype=np.int64)
    distances = np.full((len(ids), count), _FARTHEST, dtype=np.float32)
    nearest[:, 0], distances[:, 0] = np.arange(len(ids)), 0.0
    nearest[rows, rank] = neighbour_rows
    distances[rows, rank] = np.maximum(1 - near.similarities[pairs], 0)
    return nearest, distances


def near_points(near: Neighbours, ids: NDArray[np.int64], count: int) -> tuple[tuple[NearPoint, ...], ...]:
    """The ``count`` nearest of each of the models ``ids`` (ascending) among them, without itself."""
    rows, neighbour_rows, pairs = near.among(ids, count)
    points: list[list[NearPoint]] = [[] for _ in ids]
    columns = (rows, neighbour_rows, near.similarities[pairs], near.backgrounds[pairs], near.pairs[pairs])
    for row, neighbour_row, cosine, background, unrelated in zip(*(column.tolist() for column in columns), strict=True):
        share = None if math.isnan(background) else background
        none_of = unrelated if share is not None and share * (1 + unrelated) < NONE else None
        points[row].append(NearPoint(neighbour_row, cosine, share, none_of))
    return tuple(map(tuple, points))


# ---- parents


class Parent(NamedTuple):
    """One parent, from the table ``lineage``; ``model_id`` and ``model`` are None for the base itself.

    ``card``: confirmed, contradicted, not declared or unsure; ``is_known``: whether the direction of the step is known.
    """

    model_id: int | None
    model: str | None
    kind: str
    coefficient: float
    card: str
    is_known: bool = True

    @property
    def words(self) -> str:
        """The kind of step, and whether the card agrees."""
        kind = self.kind if self.coefficient == 1 else f"{self.kind}, weight {self.coefficient:.2f}"
        direction = "" if self.is_known else ", or the other way round"
        return clean(f"{kind}{direction}; card: {self.card}")


def read_parents(atlas: AtlasReader, base: str) -> dict[int, tuple[Parent, ...]]:
    """The parents of every model of ``base`` with stored lineage, by model id, the largest coefficient first."""
    rows = atlas.connection.execute(
        "SELECT lineage.model_id, parent_id, parent.model, kind, coefficient, card, direction = 'known' "
        "FROM lineage JOIN fine_tunes AS child ON child.model_id = lineage.model_id "
        "LEFT JOIN fine_tunes AS parent ON parent.model_id = parent_id "
        "WHERE child.base = ? ORDER BY lineage.model_id, coefficient DESC, parent_id",
        [base],
    ).fetchall()
    parents_of: dict[int, list[Parent]] = {}
    for model_id, *parent in rows:
        parents_of.setdefault(model_id, []).append(Parent(*parent))
    return {model_id: tuple(parents) for model_id, parents in parents_of.items()}
