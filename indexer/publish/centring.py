"""The centre of every group: when it moves, and how it is subtracted.

The centre is stored in the atlas. New models are centred with the published one, and it moves only once a group has
grown by half. Then the records of all models are read again, and every vector of the base is written in the same
publish, so that readers never see vectors of two centres.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from indexer.errors import AtlasError
from indexer.publish.tables import Tables
from indexer.publish.vectors import PublishedVectors
from indexer.vectors.centre import Centre, Mean
from indexer.vectors.files import HINT
from indexer.vectors.published import read_centre

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class _Model:
    """A model of the base; ``counts``: whether it has a vote."""

    author: str
    group: str
    record_key: str
    counts: bool
    datasets: list[str]

    @property
    def data(self) -> tuple[str, ...]:
        """The datasets that it names; its author if it names none."""
        return tuple(sorted(self.datasets)) or ("", self.author)


class Centring:
    """The centre of one (base, representation) within a publish of the vectors ``vectors.new``.

    ``stale``: models whose former vectors do not stay. ``fixed``: a centre to subtract instead of the stored one,
    which never moves. ``due``: the groups whose centre moves; then ``vectors.new`` must hold the vectors of all models.

    Raises AtlasError if the database lacks the centre of its vectors.
    """

    def __init__(
        self, tables: Tables, vectors: PublishedVectors, stale: Iterable[int], fixed: Centre | None = None
    ) -> None:
        self.tables, self.vectors = tables, vectors
        self.base, self.name = vectors.base, vectors.name
        stored_centre = None if vectors.is_new else read_centre(tables.connection, self.base, self.name)
        self.stored = fixed or stored_centre or Centre({})
        self.models = {
            row[0]: _Model(*row[1:])
            for row in tables.rows(
                "SELECT model_id, author, vector_group, record_key, "
                "NOT is_copy AND NOT is_unrelated AND duplicate_of IS NULL AND NOT is_earlier_checkpoint, datasets "
                "FROM models WHERE base = ?",
                [self.base],
            )
        }
        self.staying = vectors.staying(stale)
        if len(self.staying) and not self.stored.groups:
            raise AtlasError(f"The centre of {self.base}, {self.name}, is missing from the database.", HINT)
        # The models of each group that count, ascending.
        centred = vectors.representation.centred
        self.members: dict[str, list[int]] = {group: [] for group in centred}
        for model_id in sorted([*self.staying.tolist(), *vectors.new.ids]):
            model = self.models.get(model_id)
            if model is not None and model.counts and model.group in self.members:
                self.members[model.group].append(model_id)
        groups = self.stored.groups
        self.due = [
            group_name
            for group_name in centred
            if group_name not in groups or groups[group_name].is_outgrown(len(self.members[group_name]))
        ]
        if fixed is not None or not (groups or vectors.new.length):
            self.due = []

    def centre_all(self) -> None:
        """Subtract the centre from all new vectors; if it moves, compute it from them first, and write its rows."""
        new = self.vectors.new
        centre = self.stored
        if self.due:
            centre = self._moved()
            self._write(centre)
        if centre.groups:
            self.vectors.centre = centre.version
        for chunk, ids, vectors in new.chunks():
            centred = np.zeros_like(vectors)  # also of models that are no longer listed
            for group, rows in self._by_group(ids):
                centred[rows] = centre.centred(vectors[rows], group)
            new.replace(chunk, centred)

    def _moved(self) -> Centre:
        """The centre with the groups that are ``due`` recomputed."""
        new = self.vectors.new
        rows = {model_id: row for row, model_id in enumerate(new.ids)}
        means = {}
        for group in self.due:
            ids = np.array(self.members[group], dtype=np.int64)
            changed = np.array([new.changed[rows[member]] for member in self.members[group]], dtype=bool)
            authors = [self.models[member].author for member in self.members[group]]
            means[group] = Mean(ids, authors, changed.reshape(len(ids), new.blocks), new.length // new.blocks)
        for mean in means.values():
            for take in (mean.compare, mean.add):
                for _, ids, vectors in new.chunks():
                    take(ids, vectors)
        new_centres = {
            name: replace(mean.centre(), datasets=len({self.models[member].data for member in self.members[name]}))
            for name, mean in means.items()
        }
        return Centre({**self.stored.groups, **new_centres})

    def _by_group(self, ids: Ids) -> Iterator[tuple[str, NDArray[np.intp]]]:
        """The positions in ``ids`` of the models of each group; without models that are not listed."""
        models = [self.models.get(model) for model in ids.tolist()]
        groups = [None if model is None else model.group for model in models]
        names = np.array(groups, dtype=object)
        for group in dict.fromkeys(groups):
            if group is not None:
                yield group, np.flatnonzero(names == group)

    def _write(self, centre: Centre) -> None:
        """Rewrite the rows of the groups that are ``due``."""
        for group in self.due:
            for table in ("internal.centres", "internal.centre_members"):
                self.tables.run(
                    f"DELETE FROM {table} WHERE base = ? AND representation = ? AND vector_group = ?",
                    [self.base, self.name, group],
                )
            key = {"base": self.base, "representation": self.name, "vector_group": group}
            mean = centre.groups[group]
            self.tables.insert(
                "internal.centres",
                [
                    {
                        **key,
                        "block": number,
                        "models": mean.models,
                        "votes": float(votes),
                        "datasets": mean.datasets,
                        "numbers": block.tolist(),
                    }
                    for number, (block, votes) in enumerate(zip(mean.blocks, mean.votes, strict=True))
                ],
            )
            self.tables.insert(
                "internal.centre_members",
                [
                    {
                        **key,
                        "model_id": model_id,
                        "record_key": self.models[model_id].record_key,
                        "vote": self.models[model_id].author,
                    }
                    for model_id in self.members[group]
                ],
            )
