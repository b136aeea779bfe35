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
from indexer.publish.uncentred import Uncentred
from indexer.publish.vectors import Incoming, PublishedVectors
from indexer.vectors.centre import GROUPS, Centre, GroupCentre, Mean, joined_centres, vote_shares
from indexer.vectors.published import read_centre
from indexer.vectors.segments import OpenSegment, blocks

Ids = NDArray[np.int64]

_TABLES = ("internal.centres", "internal.centre_members")
_PLURAL = {"adapter": "adapters", "full": "full fine-tunes"}


@dataclass(frozen=True)
class _Known:
    """What the database says of a model: its author, group and record, and whether its vote counts."""

    author: str
    group: str
    record_key: str
    counts: bool


@dataclass(frozen=True, eq=False)
class Arranged:
    """Centred vectors for a segment; ``is_anew``: they are all vectors of the base, in place of those before."""

    incoming: Incoming
    is_anew: bool


class Centring:
    """The centre of one (base, representation), as a publish finds and moves it."""

    def __init__(self, tables: Tables, vectors: PublishedVectors, say: Callable[[str], None]) -> None:
        self.tables, self.vectors, self.say = tables, vectors, say
        self.key = [vectors.base, vectors.representation.name]
        self.stored = None if vectors.is_new else read_centre(tables.connection, *self.key)

    def arrange(self, uncentred: Uncentred, stale: Ids) -> Arranged:
        """Centre what came in, and where the centre moves what was there before; ``stale`` ids count no more."""
        known = self._known()
        gone = np.union1d(stale, np.array(uncentred.ids, dtype=np.int64))
        held = np.setdiff1d(self.vectors.ids(), gone)
        members = self._members(known, held, uncentred)
        due = [name for name in GROUPS if self._is_due(name, len(members[name]))]
        if not uncentred.length and self.stored is None:
            return Arranged(self._incoming(None, 0), is_anew=False)
        if not due and self.stored is not None:
            incoming = self._incoming(self.stored.version, self._shape(uncentred)[0])
            self._add(incoming, self.stored, uncentred)
            return Arranged(incoming, is_anew=False)
        centre = self._moved(members, due, uncentred, known, gone)
        incoming = self._incoming(centre.version, self._shape(uncentred)[0])
        for ids, group, vectors in self._held(known, gone):
            if group in due:
                assert self.stored is not None
                vectors = centre.centred(self.stored.uncentred(vectors, group), group)
            incoming.take(ids, vectors)
        self._add(incoming, centre, uncentred)
        self._write(centre, members, due, known)
        if len(held):
            moved = " and of the ".join(_PLURAL[name] for name in due)
            self.say(
                f"{self.key[0]}, {self.key[1]}: the centre of the {moved} moves, as there are half as many more: "
                f"all {len(held) + len(uncentred.ids):,} vectors are written anew"
            )
        return Arranged(incoming, is_anew=True)

    def _incoming(self, version: str | None, blocks: int) -> Incoming:
        return Incoming(self.vectors.root, self.key[0], self.vectors.representation, version, blocks)

    def _shape(self, uncentred: Uncentred) -> tuple[int, int]:
        """Blocks of a vector, and numbers of a block."""
        if self.stored is not None:
            first = next(iter(self.stored.groups.values())).blocks
            return first.shape[0], first.shape[1]
        return uncentred.blocks, uncentred.length // uncentred.blocks

    def _is_due(self, group: str, models: int) -> bool:
        return self.stored is None or self.stored.groups[group].is_outgrown(models)

    def _known(self) -> dict[int, _Known]:
        return {
            model_id: _Known(author, group, key, counts)
            for model_id, author, group, key, counts in self.tables.rows(
                "SELECT model_id, author, vector_group, records.record_key, "
                "NOT is_copy AND NOT is_unrelated AND duplicate_of IS NULL "
                "FROM records JOIN fine_tunes USING (model_id) WHERE base = ?",
                [self.key[0]],
            )
        }

    @staticmethod
    def _members(known: dict[int, _Known], held: Ids, uncentred: Uncentred) -> dict[str, Ids]:
        """Ids (ascending) of the models of each group whose votes count."""
        present = sorted([*held.tolist(), *uncentred.ids])
        return {
            group: np.array(
                [one for one in present if one in known and known[one].counts and known[one].group == group],
                dtype=np.int64,
            )
            for group in GROUPS
        }

    def _moved(
        self, members: dict[str, Ids], due: Sequence[str], uncentred: Uncentred, known: dict[int, _Known], gone: Ids
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
            shares, votes = vote_shares([known[one].author for one in ids.tolist()], changed)
            means[group] = Mean(ids, shares, votes, length)
        for ids, group, vectors in self._held(known, gone):
            if group in means:
                assert self.stored is not None
                means[group].add(ids, self.stored.uncentred(vectors, group))
        for ids, groups, vectors in uncentred.stretches():
            for group, mean in means.items():
                chosen = np.array([one == group for one in groups])
                mean.add(ids[chosen], vectors[chosen])
        before = self.stored.groups if self.stored is not None else {}
        return joined_centres((group, means[group].centre() if group in means else before[group]) for group in GROUPS)

    def _held(self, known: dict[int, _Known], gone: Ids) -> Iterator[tuple[Ids, str, NDArray[np.float32]]]:
        """Published vectors that stay, group by group and block by block."""
        for segment in self.vectors.segments:
            opened = OpenSegment(self.vectors.root, segment, self.vectors.masks)
            for block in blocks([opened.vectors()]):
                groups = np.array([known[one].group if one in known else "" for one in block.ids.tolist()])
                for group in GROUPS:
                    chosen = (groups == group) & np.isin(block.ids, gone, invert=True)
                    if chosen.any():
                        yield block.ids[chosen], group, block.matrix[chosen]

    @staticmethod
    def _add(incoming: Incoming, centre: Centre, uncentred: Uncentred) -> None:
        for ids, groups, vectors in uncentred.stretches():
            for group in GROUPS:
                chosen = np.array([one == group for one in groups])
                if chosen.any():
                    incoming.take(ids[chosen], centre.centred(vectors[chosen], group))

    def _write(self, centre: Centre, members: dict[str, Ids], due: Sequence[str], known: dict[int, _Known]) -> None:
        base, name = self.key
        rows = {group: self._rows(group, centre.groups[group]) for group in due}
        for group in due:
            for table in _TABLES:
                self.tables.run(
                    f"DELETE FROM {table} WHERE base = ? AND representation = ? AND vector_group = ?",
                    [*self.key, group],
                )
            self.tables.insert("internal.centres", rows[group])
            self.tables.insert(
                "internal.centre_members",
                [
                    {
                        "base": base, "representation": name, "vector_group": group, "model_id": model_id,
                        "record_key": known[model_id].record_key,
                    }
                    for model_id in members[group].tolist()
                ],
            )  # fmt: skip

    def _rows(self, group: str, centre: GroupCentre) -> list[dict[str, object]]:
        return [
            {
                "base": self.key[0], "representation": self.key[1], "vector_group": group, "block": number,
                "models": centre.models, "votes": int(votes), "numbers": block.tolist(),
            }
            for number, (block, votes) in enumerate(zip(centre.blocks, centre.votes, strict=True))
        ]  # fmt: skip
