"""The centre of every group: when it moves, and the vectors that are then written anew.

A centre belongs to the atlas: new models are centred with the one that is published, and it moves only once its group
has grown by half. Then every vector of the base is written again in the same publish, so that readers never see
vectors of two centres. No record is read for that: an uncentred vector follows from the published one and its centre.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from indexer.publish.tables import Tables
from indexer.publish.vectors import PublishedVectors, UncentredVectors, VectorWriter
from indexer.vectors.centre import (
    ADAPTER,
    FEW_MODELS,
    GROUPS,
    Centre,
    GroupCentre,
    Mean,
    data_vote,
    drift_slopes,
    fewest_votes,
    initialisation_group,
    joined_centres,
    vote_shares,
)
from indexer.vectors.published import read_centre
from indexer.vectors.segments import OpenSegment, blocks

Ids = NDArray[np.int64]

_TABLES = ("internal.centres", "internal.centre_members")
_PLURAL = {"adapter": "adapters", "full": "full fine-tunes"}


@dataclass(frozen=True)
class _Known:
    """What the database says of a model: its author, group, initialisation and record, and whether its vote counts.

    ``datasets``: those that it names. ``norm``: of its whole change.
    """

    author: str
    group: str
    initialisation: int | None
    record_key: str
    counts: bool
    datasets: Sequence[str]
    norm: float

    def vote(self, group: str) -> str:
        """Whose vote it has a share of: in GROUPS its author's; in an initialisation that of the data it names."""
        return self.author if group in GROUPS or not self.datasets else data_vote(self.datasets)


class Centring:
    """The centre of one (base, representation), as a publish finds and moves it."""

    def __init__(self, tables: Tables, vectors: PublishedVectors, say: Callable[[str], None]) -> None:
        self.tables, self.vectors, self.say = tables, vectors, say
        self.key = [vectors.base, vectors.representation.name]
        self.stored = None if vectors.is_new else read_centre(tables.connection, *self.key)

    def centred(self, uncentred: UncentredVectors, stale: Ids) -> tuple[VectorWriter, bool]:
        """The centred new vectors; if the centre moves (True) all others too, but not those of the ``stale`` ids."""
        known = self._known()
        gone = np.union1d(stale, np.array(uncentred.ids, dtype=np.int64))
        held = np.setdiff1d(self.vectors.ids(), gone)
        members = self._members(known, held, uncentred)
        due = self._due(members, known)
        if not uncentred.length and self.stored is None:
            return self._writer(None, 0), False
        if not due and self.stored is not None:
            writer = self._writer(self.stored.version, self._shape(uncentred)[0])
            self._add(writer, self.stored, uncentred, known)
            return writer, False
        centre = self._moved(members, due, uncentred, known, gone)
        writer = self._writer(centre.version, self._shape(uncentred)[0])
        for ids, before, vectors in self._held(known, gone):
            assert self.stored is not None
            for group, chosen in _by_group(_groups_of(ids, known, centre)):
                mine = vectors[chosen]
                if group in due or group != before:
                    mine = centre.centred(self.stored.uncentred(mine, before), group)
                writer.add_all(ids[chosen], mine)
        self._add(writer, centre, uncentred, known)
        self._write(centre, members, due, known)
        if len(held):
            named = [_PLURAL[name] for name in due if name in GROUPS]
            moved = " and of the ".join(named or [f"adapters of {len(due)} initialisations"])
            self.say(
                f"{self.key[0]}, {self.key[1]}: the centre of the {moved} moves, as there are half as many more: "
                f"all {len(held) + len(uncentred.ids):,} vectors are written anew"
            )
        return writer, True

    def _writer(self, version: str | None, blocks: int) -> VectorWriter:
        return VectorWriter(self.vectors.root, self.key[0], self.vectors.representation, version, blocks)

    def _shape(self, uncentred: UncentredVectors) -> tuple[int, int]:
        """Blocks of a vector, and numbers of a block."""
        if self.stored is not None:
            first = next(iter(self.stored.groups.values())).blocks
            return first.shape[0], first.shape[1]
        return uncentred.blocks, uncentred.length // uncentred.blocks

    def _due(self, members: dict[str, Ids], known: dict[int, _Known]) -> list[str]:
        """The groups whose centre is made anew: those of all initialisations where that of the adapters is."""
        stored = self.stored.groups if self.stored is not None else {}
        due = [name for name in GROUPS if name not in stored or stored[name].is_outgrown(len(members[name]))]
        for name, ids in members.items():
            is_moving = ADAPTER in due or name not in stored or stored[name].is_outgrown(len(ids))
            votes = {known[one].vote(name) for one in ids.tolist()}
            if name not in GROUPS and is_moving and len(votes) >= fewest_votes(votes):
                due.append(name)
        return due

    def _known(self) -> dict[int, _Known]:
        return {
            row[0]: _Known(*row[1:])
            for row in self.tables.rows(
                "SELECT model_id, author, vector_group, initialisation, record_key, "
                "NOT is_copy AND NOT is_unrelated AND duplicate_of IS NULL, datasets, coalesce(delta_norm, 0) "
                "FROM models WHERE base = ?",
                [self.key[0]],
            )
        }

    @staticmethod
    def _members(known: dict[int, _Known], held: Ids, uncentred: UncentredVectors) -> dict[str, Ids]:
        """Ids (ascending) of the models of each group whose votes count; an adapter may be in two."""
        found: dict[str, list[int]] = {group: [] for group in GROUPS}
        for one in sorted([*held.tolist(), *uncentred.ids]):
            if one in known and known[one].counts:
                found[known[one].group].append(one)
                initialisation = known[one].initialisation
                if initialisation is not None:
                    found.setdefault(initialisation_group(initialisation), []).append(one)
        return {group: np.array(ids, dtype=np.int64) for group, ids in found.items()}

    def _moved(
        self,
        members: dict[str, Ids],
        due: Sequence[str],
        uncentred: UncentredVectors,
        known: dict[int, _Known],
        gone: Ids,
    ) -> Centre:
        """The centre with those of the groups that are ``due`` made anew."""
        count, length = self._shape(uncentred)
        coming = dict(zip(uncentred.ids, uncentred.changed, strict=True))
        means = {}
        for group in due:
            ids = members[group]
            changed = self.vectors.masks.rows(ids) if self.vectors.masks.blocks else np.ones((len(ids), count), bool)
            for row, model_id in enumerate(ids.tolist()):
                if model_id in coming:
                    changed[row] = coming[model_id]
            voters = [known[one].vote(group) for one in ids.tolist()]
            if group in GROUPS:
                means[group] = Mean(ids, *vote_shares(voters, changed), length)
            else:
                norms = np.array([known[one].norm for one in ids.tolist()])
                slopes = drift_slopes(voters, changed, norms)
                means[group] = Mean(
                    ids, *vote_shares(voters, changed, FEW_MODELS), length, slopes, fewest_votes(voters)
                )
        for ids, before, vectors in self._held(known, gone):
            assert self.stored is not None
            uncentred_ones = self.stored.uncentred(vectors, before)
            for mean in means.values():
                mean.add(ids, uncentred_ones)
        for ids, _, vectors in uncentred.chunks():
            for mean in means.values():
                mean.add(ids, vectors)
        stored = self.stored.groups if self.stored is not None else {}
        moved = {group: means[group].centre() if group in means else stored[group] for group in GROUPS}
        kept = {} if ADAPTER in due else {name: one for name, one in stored.items() if name not in GROUPS}
        own = {name: mean.centre(moved[ADAPTER]) for name, mean in means.items() if name not in GROUPS}
        return joined_centres((moved | kept | own).items())

    def _held(self, known: dict[int, _Known], gone: Ids) -> Iterator[tuple[Ids, str, NDArray[np.float32]]]:
        """Published vectors that stay, block by block and by the group whose centre was subtracted from them."""
        for segment in self.vectors.segments:
            assert self.stored is not None
            opened = OpenSegment(self.vectors.root, segment, self.vectors.masks)
            for block in blocks([opened.vectors()]):
                groups = _groups_of(block.ids, known, self.stored)
                stays = np.isin(block.ids, gone, invert=True)
                for group, chosen in _by_group(groups):
                    mine = chosen[stays[chosen]]
                    if group and len(mine):
                        yield block.ids[mine], group, block.matrix[mine]

    @staticmethod
    def _add(writer: VectorWriter, centre: Centre, uncentred: UncentredVectors, known: dict[int, _Known]) -> None:
        for ids, _, vectors in uncentred.chunks():
            for group, chosen in _by_group(_groups_of(ids, known, centre)):
                if group:
                    writer.add_all(ids[chosen], centre.centred(vectors[chosen], group))

    def _write(self, centre: Centre, members: dict[str, Ids], due: Sequence[str], known: dict[int, _Known]) -> None:
        base, name = self.key
        stored = self.stored.groups if self.stored is not None else {}
        for group in (*due, *(name for name in stored if name not in centre.groups)):
            for table in _TABLES:
                self.tables.run(
                    f"DELETE FROM {table} WHERE base = ? AND representation = ? AND vector_group = ?",
                    [*self.key, group],
                )
        for group in due:
            self.tables.insert("internal.centres", self._rows(group, centre.groups[group]))
            self.tables.insert(
                "internal.centre_members",
                [
                    {
                        "base": base, "representation": name, "vector_group": group, "model_id": model_id,
                        "record_key": known[model_id].record_key, "vote": known[model_id].vote(group),
                    }
                    for model_id in members[group].tolist()
                ],
            )  # fmt: skip

    def _rows(self, group: str, centre: GroupCentre) -> list[dict[str, object]]:
        return [
            {
                "base": self.key[0], "representation": self.key[1], "vector_group": group, "block": number,
                "models": centre.models, "votes": int(votes), "numbers": block.tolist(),
                "drift": None if centre.drift is None else centre.drift[number].tolist(),
            }
            for number, (block, votes) in enumerate(zip(centre.blocks, centre.votes, strict=True))
        ]  # fmt: skip


def _groups_of(ids: Ids, known: dict[int, _Known], centre: Centre) -> list[str]:
    """Whose centre is subtracted from each of these models; "" for one that the database does not know."""
    found = (known.get(one) for one in ids.tolist())
    return ["" if one is None else centre.group_of(one.group, one.initialisation) for one in found]


def _by_group(groups: Sequence[str]) -> Iterator[tuple[str, NDArray[np.intp]]]:
    """Each group with its places, ascending."""
    names = np.array(groups, dtype=object)
    for group in dict.fromkeys(groups):
        yield group, np.flatnonzero(names == group)
