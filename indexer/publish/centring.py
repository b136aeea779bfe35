"""The centre of every group: when it moves, and the vectors that are rewritten then.

The centre is stored in the atlas. New models are centred with the published one, and it moves only once a group has
grown by half. Then every vector of the base is rewritten in the same publish, so that readers never see vectors of two
centres. No record is read for that, because an uncentred vector follows from the published one and its centre.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from indexer.errors import AtlasError
from indexer.publish.tables import Tables
from indexer.publish.vectors import PublishedVectors, UncentredVectors, VectorWriter
from indexer.vectors.centre import ADAPTER, GROUPS, Centre, Mean, data_vote, fewest_votes, initialisation_group
from indexer.vectors.files import HINT
from indexer.vectors.published import read_centre
from indexer.vectors.segments import OpenSegment, blocks

Ids = NDArray[np.int64]

_PLURAL = {"adapter": "adapters", "full": "full fine-tunes"}


@dataclass(frozen=True)
class _Model:
    """A model of the base; ``counts``: whether it has a vote; ``norm``: of its whole change."""

    author: str
    group: str
    initialisation: int | None
    record_key: str
    counts: bool
    datasets: Sequence[str]
    norm: float

    def voter(self, group: str) -> str:
        """Whose vote it shares: its author's; in an initialisation that of its datasets, if it names any."""
        return self.author if group in GROUPS or not self.datasets else data_vote(self.datasets)


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
                "SELECT model_id, author, vector_group, initialisation, record_key, "
                "NOT is_copy AND NOT is_unrelated AND duplicate_of IS NULL, datasets, coalesce(delta_norm, 0) "
                "FROM models WHERE base = ?",
                [self.base],
            )
        }

    def centred(self, uncentred: UncentredVectors, stale: Ids) -> tuple[VectorWriter, bool]:
        """Write the new vectors; if the centre moves (True) all others too, except those of the ``stale`` ids."""
        replaced = np.union1d(stale, np.array(uncentred.ids, dtype=np.int64))
        kept = np.setdiff1d(self.vectors.ids(), replaced)
        # The models of each group that count, ascending; an adapter may be in two groups.
        members: dict[str, list[int]] = {group: [] for group in GROUPS}
        for model_id in sorted([*kept.tolist(), *uncentred.ids]):
            model = self.models.get(model_id)
            if model is not None and model.counts:
                members[model.group].append(model_id)
                if model.initialisation is not None:
                    members.setdefault(initialisation_group(model.initialisation), []).append(model_id)
        stored = self.stored.groups
        if not uncentred.length and not stored:
            return VectorWriter(self.vectors.root, self.base, self.vectors.representation), False
        if not stored and self.vectors.segments:
            raise AtlasError(f"The centre of {self.base}, {self.name}, is missing from the database.", HINT)
        shape = (uncentred.blocks, uncentred.length // uncentred.blocks)
        if stored:
            shape = next(iter(stored.values())).blocks.shape
        # The groups whose centre is recomputed; if that of the adapters is, those of all initialisations are too.
        due = [name for name in GROUPS if name not in stored or stored[name].is_outgrown(len(members[name]))]
        for name, counted in members.items():
            is_moving = ADAPTER in due or name not in stored or stored[name].is_outgrown(len(counted))
            voters = {self.models[one].voter(name) for one in counted}
            if name not in GROUPS and is_moving and len(voters) >= fewest_votes(voters):
                due.append(name)
        centre = self._moved(members, due, uncentred, replaced, shape) if due else self.stored
        writer = VectorWriter(self.vectors.root, self.base, self.vectors.representation, centre.version, shape[0])
        writer.length = math.prod(shape)  # known although the vectors of copies are not written
        if due:
            for ids, before, vectors in self._published(replaced):
                for group, chosen in self._by_group(ids, centre):
                    mine = vectors[chosen]
                    if group in due or group != before:
                        mine = centre.centred(self.stored.uncentred(mine, before), group)
                    writer.add_all(ids[chosen], mine)
        for ids, vectors in uncentred.chunks():
            for group, chosen in self._by_group(ids, centre):
                writer.add_all(ids[chosen], centre.centred(vectors[chosen], group))
        if not due:
            return writer, False
        self._write(centre, members, due)
        if len(kept):
            named = [_PLURAL[name] for name in due if name in GROUPS]
            moved = " and of the ".join(named or [f"adapters of {len(due)} initialisations"])
            self.say(
                f"{self.base}, {self.name}: the centre of the {moved} moves, because the group has grown by half: "
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
            models = [self.models[one] for one in members[group]]
            norms = None if group in GROUPS else np.array([model.norm for model in models])
            means[group] = Mean(ids, [model.voter(group) for model in models], changed, shape[1], norms)
        for ids, before, vectors in self._published(replaced):
            restored = self.stored.uncentred(vectors, before)
            for mean in means.values():
                mean.add(ids, restored)
        for ids, vectors in uncentred.chunks():
            for mean in means.values():
                mean.add(ids, vectors)
        stored = self.stored.groups
        groups = {name: means[name].centre() if name in means else stored[name] for name in GROUPS}
        if ADAPTER not in due:
            groups |= {name: one for name, one in stored.items() if name not in GROUPS}
        groups |= {name: mean.centre(groups[ADAPTER]) for name, mean in means.items() if name not in GROUPS}
        return Centre(groups)

    def _published(self, replaced: Ids) -> Iterator[tuple[Ids, str, NDArray[np.float32]]]:
        """The published vectors except the ``replaced`` ones, in blocks of one group."""
        for segment in self.vectors.segments:
            opened = OpenSegment(self.vectors.root, segment, self.vectors.masks)
            for block in blocks([opened.vectors()]):
                stays = np.isin(block.ids, replaced, invert=True)
                for group, chosen in self._by_group(block.ids, self.stored):
                    mine = chosen[stays[chosen]]
                    if len(mine):
                        yield block.ids[mine], group, block.matrix[mine]

    def _by_group(self, ids: Ids, centre: Centre) -> Iterator[tuple[str, NDArray[np.intp]]]:
        """The positions in ``ids`` of the models of each group of ``centre``; without models that are not listed."""
        models = [self.models.get(one) for one in ids.tolist()]
        groups = [None if one is None else centre.group_of(one.group, one.initialisation) for one in models]
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
                        "votes": int(votes),
                        "numbers": block.tolist(),
                        "drift": None if one.drift is None else one.drift[number].tolist(),
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
                        "vote": self.models[model_id].voter(group),
                    }
                    for model_id in members[group]
                ],
            )
