"""The centre of every group: when it moves, and the vectors that are rewritten then.

The centre is stored in the atlas. New models are centred with the published one, and it moves only once a group has
grown by half. Then every vector of the base is rewritten in the same publish, so that readers never see vectors of two
centres. No record is read for that, because an uncentred vector follows from the published one and its centre.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from indexer.errors import AtlasError
from indexer.publish.tables import Tables
from indexer.publish.vectors import PublishedVectors, UncentredVectors, VectorWriter
from indexer.vectors.centre import CENTRED, Centre, Mean
from indexer.vectors.files import HINT
from indexer.vectors.published import read_centre
from indexer.vectors.segments import OpenSegment, blocks

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
    """The centre of one (base, representation) within a publish."""

    def __init__(self, tables: Tables, vectors: PublishedVectors, say: Callable[[str], None]) -> None:
        self.tables, self.vectors, self.say = tables, vectors, say
        self.base, self.name = vectors.base, vectors.name
        stored = None if vectors.is_new else read_centre(tables.connection, self.base, self.name)
        self.stored = stored or Centre({})
        self.models = {
            row[0]: _Model(*row[1:])
            for row in tables.rows(
                "SELECT model_id, author, vector_group, record_key, "
                "NOT is_copy AND NOT is_unrelated AND duplicate_of IS NULL, datasets FROM models WHERE base = ?",
                [self.base],
            )
        }

    def centred(self, uncentred: UncentredVectors, stale: Ids) -> tuple[VectorWriter, bool]:
        """Write the new vectors; if the centre moves (True) all others too, except those of the ``stale`` ids."""
        replaced = np.union1d(stale, np.array(uncentred.ids, dtype=np.int64))
        kept = np.setdiff1d(self.vectors.ids(), replaced)
        # The models of each group that count, ascending.
        members: dict[str, list[int]] = {group: [] for group in CENTRED}
        for model_id in sorted([*kept.tolist(), *uncentred.ids]):
            model = self.models.get(model_id)
            if model is not None and model.counts and model.group in members:
                members[model.group].append(model_id)
        stored = self.stored.groups
        if not uncentred.length and not stored:
            return VectorWriter(self.vectors.root, self.base, self.vectors.representation), False
        if not stored and self.vectors.segments:
            raise AtlasError(f"The centre of {self.base}, {self.name}, is missing from the database.", HINT)
        shape = (uncentred.blocks, uncentred.length // uncentred.blocks)
        if stored:
            shape = next(iter(stored.values())).blocks.shape
        due = [name for name in CENTRED if name not in stored or stored[name].is_outgrown(len(members[name]))]
        centre = self._moved(members, due, uncentred, replaced, shape) if due else self.stored
        writer = VectorWriter(self.vectors.root, self.base, self.vectors.representation, centre.version, shape[0])
        writer.length = math.prod(shape)  # known although the vectors of copies are not written
        if due:
            for ids, before, vectors in self._published(replaced):
                for group, chosen in self._by_group(ids):
                    mine = vectors[chosen]
                    if group in due:
                        mine = centre.centred(self.stored.uncentred(mine, before), group)
                    writer.add_all(ids[chosen], mine)
        for ids, vectors in uncentred.chunks():
            for group, chosen in self._by_group(ids):
                writer.add_all(ids[chosen], centre.centred(vectors[chosen], group))
        if not due:
            return writer, False
        self._write(centre, members, due)
        if len(kept):
            self.say(
                f"{self.base}, {self.name}: the centre of the full fine-tunes moves, because they have grown by half: "
                f"all {len(kept) + len(uncentred.ids):,} vectors are rewritten"
            )
        return writer, True

    def _moved(
        self,
        members: dict[str, list[int]],
        due: Sequence[str],
        uncentred: UncentredVectors,
        replaced: Ids,
        shape: tuple[int, ...],
    ) -> Centre:
        """The centre with the groups that are ``due`` recomputed. ``shape``: blocks, and numbers of a block."""
        new_masks = dict(zip(uncentred.ids, uncentred.changed, strict=True))
        masks = self.vectors.masks
        means = {}
        for group in due:
            ids = np.array(members[group], dtype=np.int64)
            changed = masks.rows(ids) if masks.blocks else np.ones((len(ids), shape[0]), bool)
            for row, model_id in enumerate(members[group]):
                changed[row] = new_masks.get(model_id, changed[row])
            means[group] = Mean(ids, [self.models[one].author for one in members[group]], changed, shape[1])
        for mean in means.values():
            for take in (mean.compare, mean.add):
                for ids, before, vectors in self._published(replaced):
                    take(ids, self.stored.uncentred(vectors, before))
                for ids, vectors in uncentred.chunks():
                    take(ids, vectors)
        moved = {
            name: replace(mean.centre(), datasets=len({self.models[one].data for one in members[name]}))
            for name, mean in means.items()
        }
        return Centre({**self.stored.groups, **moved})

    def _published(self, replaced: Ids) -> Iterator[tuple[Ids, str, NDArray[np.float32]]]:
        """The published vectors except the ``replaced`` ones, in blocks of one group."""
        for segment in self.vectors.segments:
            opened = OpenSegment(self.vectors.root, segment, self.vectors.masks)
            for block in blocks([opened.vectors()]):
                stays = np.isin(block.ids, replaced, invert=True)
                for group, chosen in self._by_group(block.ids):
                    mine = chosen[stays[chosen]]
                    if len(mine):
                        yield block.ids[mine], group, block.matrix[mine]

    def _by_group(self, ids: Ids) -> Iterator[tuple[str, NDArray[np.intp]]]:
        """The positions in ``ids`` of the models of each group; without models that are not listed."""
        models = [self.models.get(one) for one in ids.tolist()]
        groups = [None if one is None else one.group for one in models]
        names = np.array(groups, dtype=object)
        for group in dict.fromkeys(groups):
            if group is not None:
                yield group, np.flatnonzero(names == group)

    def _write(self, centre: Centre, members: dict[str, list[int]], due: Sequence[str]) -> None:
        """Rewrite the rows of the groups that are ``due``, and delete those of groups without a centre."""
        for group in (*due, *(name for name in self.stored.groups if name not in centre.groups)):
            for table in ("internal.centres", "internal.centre_members"):
                self.tables.run(
                    f"DELETE FROM {table} WHERE base = ? AND representation = ? AND vector_group = ?",
                    [self.base, self.name, group],
                )
        for group in due:
            key = {"base": self.base, "representation": self.name, "vector_group": group}
            one = centre.groups[group]
            self.tables.insert(
                "internal.centres",
                [
                    {
                        **key,
                        "block": number,
                        "models": one.models,
                        "votes": float(votes),
                        "datasets": one.datasets,
                        "numbers": block.tolist(),
                    }
                    for number, (block, votes) in enumerate(zip(one.blocks, one.votes, strict=True))
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
                    for model_id in members[group]
                ],
            )
