"""The vectors of one base and representation, as a publish changes them: a segment more, and what it replaces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.publish.compression import Compression
from indexer.publish.tables import Tables
from indexer.records.representation import DEFAULT, Representation
from indexer.vectors.choice import IndexChange, IndexChoice
from indexer.vectors.masks import Masks
from indexer.vectors.published import read_published
from indexer.vectors.search import VectorIndex
from indexer.vectors.segments import (
    OpenSegment,
    Segment,
    Vectors,
    joined,
    normalised,
    to_merge,
    write_segment,
)

Ids = NDArray[np.int64]

# Vectors on their way into a segment are held until they are this many bytes.
MOST_HELD = 256 << 20


class Incoming:
    """New vectors on their way into segments; few enough are held at a time.

    ``centre``: the version of what was subtracted from them; ``blocks`` of them have unit norm (0: the whole has).
    """

    def __init__(
        self, root: Path, base: str, representation: Representation, centre: str | None = None, blocks: int = 0
    ) -> None:
        self.root, self.base, self.representation = root, base, representation
        self.centre, self.blocks = centre, blocks
        self.segments: list[Segment] = []
        self.ids: list[int] = []
        self.length: int | None = None
        self.kinds: dict[bytes, list[int]] = {}  # of models that lack blocks, see Masks
        self._held: dict[int, NDArray[np.float32]] = {}

    def add(self, model_id: int, vector: NDArray[np.float32]) -> None:
        """Take a model's vector (d,); one without direction is none. As a whole it is scaled to unit norm."""
        self.length = len(vector)
        unit = normalised(vector)
        if unit is None:
            return
        if self.blocks:
            unit = np.asarray(vector, dtype=np.float32)
            changed = unit.reshape(self.blocks, -1).any(axis=1)
            if not changed.all():
                self.kinds.setdefault(changed.astype(np.uint8).tobytes(), []).append(model_id)
        self._held[model_id] = unit
        self.ids.append(model_id)
        if len(self._held) * unit.nbytes >= MOST_HELD:
            self.flush()

    def take(self, ids: Ids, vectors: NDArray[np.float32]) -> None:
        """Take several."""
        for model_id, vector in zip(ids.tolist(), vectors, strict=True):
            self.add(model_id, vector)

    def flush(self) -> None:
        """Write what is held as a segment."""
        if self._held:
            ids = sorted(self._held)
            vectors = Vectors(np.array(ids, dtype=np.int64), np.stack([self._held[model_id] for model_id in ids]))
            self.segments.append(write_segment(self.root, self.base, self.representation.name, vectors, self.centre))
            self._held.clear()


@dataclass(frozen=True)
class Change:
    """What a publish did to the vectors: ids whose vector is new or another, and ids whose former one is gone.

    ``index`` knows no compressed one: lists of neighbours are exact.
    """

    index: VectorIndex
    added: Ids
    removed: Ids


class PublishedVectors:
    """What the database says of the vectors of one (base, representation), and how it is changed."""

    def __init__(
        self,
        root: Path,
        tables: Tables,
        base: str,
        representation: Representation,
        rank: int,
        say: Callable[[str], None],
        asked: IndexChange | None = None,
    ) -> None:
        self.root = root
        self.tables = tables
        self.base = base
        self.rank = rank
        self.say = say
        self.asked = asked
        found = read_published(tables.connection, base, representation.name)
        # What is added later is searched as what was there before it.
        like = found or read_published(tables.connection, base, DEFAULT)
        self.choice = like.choice if like is not None else IndexChoice()
        self.representation = representation.of_length(self.choice.changed(asked).budget)
        # Vectors of another version, rank or length never meet: all are computed again from the records.
        self.is_new = found is None or (found.version, found.rank, representation.of_length(found.choice.budget)) != (
            representation.version, rank, self.representation,
        )  # fmt: skip
        self.before = found
        kept = None if self.is_new else found
        self.length = kept.length if kept else None
        self.segments = list(kept.segments) if kept else []
        self.compressed = kept.compressed if kept else None
        self.masks = kept.masks if kept else Masks.none()
        self.centre = kept.centre if kept else None

    def ids(self) -> Ids:
        """Ids of all models that have a vector now, ascending."""
        return _ids(model_id for one in self.segments for model_id in OpenSegment(self.root, one).ids.tolist())

    def change(
        self, incoming: Incoming, stale: Iterable[int], *, is_anew: bool = False, purged: bool = False
    ) -> Change | None:
        """Add what came in; former vectors of the ``stale`` ids count no more, or with ``is_anew`` none of them.

        ``purged``: segments that hold such a vector are written anew without it. None where nothing changes.
        """
        added = _ids(incoming.ids)
        removed = self._withdraw(self.ids() if is_anew else _ids(stale))
        choice = self.choice.changed(self.asked)
        is_other = choice != self.choice
        if not (self.is_new or is_other or len(added) or len(removed)):
            return None
        incoming.flush()
        if is_anew:
            self.segments, self.compressed = [], None
        blocks = incoming.blocks or self.masks.blocks
        self.masks = _with(self.masks, blocks, np.union1d(removed, added), incoming.kinds)
        self.centre = incoming.centre or self.centre
        # Without a vector there is no length yet: that of the first one that comes counts.
        self.length = (self.length if self.segments else None) or incoming.length or self.length or 1
        self.choice = choice
        self.segments += incoming.segments
        self._merge()
        if purged:
            self._purge()
        compression = Compression(self.root, self.tables, self.base, self.representation.name, self.say, self.masks)
        stored = None if is_other else self.compressed
        self.segments = compression.renewed(self.segments, self.choice, stored)
        self._write()
        opened = [OpenSegment(self.root, one, self.masks) for one in self.segments]
        return Change(VectorIndex(opened, self.length, masks=self.masks), added, removed)

    def _withdraw(self, stale: Ids) -> Ids:
        """Name the stale ids as removed in the segments that hold them; those that any held."""
        found = [np.zeros(0, dtype=np.int64)]
        if not len(stale):
            return found[0]
        for position, segment in enumerate(self.segments):
            there = np.intersect1d(OpenSegment(self.root, segment).ids, stale)
            if len(there):
                self.segments[position] = replace(segment, removed=np.union1d(segment.removed, there))
                found.append(there)
        return np.unique(np.concatenate(found))

    def _merge(self) -> None:
        """Segments of like size become one, those in the compressed index and those beside it apart."""
        for in_compressed in (True, False):
            while True:
                group = [one for one in self.segments if one.in_compressed == in_compressed]
                chosen = [group[position] for position in to_merge(group)]
                if not chosen:
                    break
                merged = self._joined(chosen)
                place = self.segments.index(chosen[0])
                kept = [one for one in self.segments if one not in chosen]
                if merged is not None:
                    kept.insert(place, replace(merged, in_compressed=in_compressed))
                self.segments = kept

    def _purge(self) -> None:
        kept = []
        for one in self.segments:
            fresh = self._joined([one]) if len(one.removed) else one
            if fresh is not None:
                kept.append(replace(fresh, in_compressed=one.in_compressed))
        self.segments = kept

    def _joined(self, segments: Sequence[Segment]) -> Segment | None:
        """One new segment with what counts of several; None where nothing does."""
        vectors = joined([OpenSegment(self.root, one).vectors() for one in segments], self.length or 1)
        if not len(vectors):
            return None
        return write_segment(self.root, self.base, self.representation.name, vectors, segments[0].centre)

    def _write(self) -> None:
        for table in ("representations", "internal.segments", "internal.removed_vectors", "internal.vector_masks"):
            self.tables.run(
                f"DELETE FROM {table} WHERE base = ? AND representation = ?", [self.base, self.representation.name]
            )
        base, name = self.base, self.representation.name
        self.tables.insert("representations", [self._row()])
        self.tables.insert(
            "internal.segments",
            [
                {
                    "base": base,
                    "representation": name,
                    "segment": number,
                    "vectors": one.file.count,
                    "in_compressed": one.in_compressed,
                    "centre": one.centre,
                    "faiss_file": one.file.name,
                    "faiss_sha256": one.file.sha256,
                    "faiss_bytes": one.file.size,
                }
                for number, one in enumerate(self.segments)
            ],
        )
        self.tables.insert(
            "internal.removed_vectors",
            [
                {"base": base, "representation": name, "segment": number, "model_id": int(model_id)}
                for number, one in enumerate(self.segments)
                for model_id in one.removed
            ],
        )
        self.tables.insert(
            "internal.vector_masks",
            [
                {
                    "base": base,
                    "representation": name,
                    "changed": "".join(map(str, kind)),
                    "model_ids": ids.tolist(),
                }
                for kind, ids in self.masks.members().items()
            ],
        )

    def _row(self) -> dict[str, Any]:
        return {
            "base": self.base,
            "representation": self.representation.name,
            "version": self.representation.version,
            "rank": self.rank,
            "length": self.length,
            "vectors": sum(one.count for one in self.segments),
            "per_delta": self.representation.per_delta,
            "blocks": self.masks.blocks,
            "budget": self.choice.budget,
            "centre": self.centre,
            "index_choice": self.choice.index,
            "index_memory": self.choice.memory,
            "promised_recall": self.choice.promised,
        }


def _with(masks: Masks, blocks: int, gone: Ids, coming: Mapping[bytes, Sequence[int]]) -> Masks:
    """Masks without some models and with others."""
    members = {kind: np.setdiff1d(ids, gone) for kind, ids in masks.members().items()} if masks.blocks == blocks else {}
    for kind, ids in coming.items():
        members[kind] = np.union1d(members.get(kind, np.zeros(0, np.int64)), np.array(ids, dtype=np.int64))
    return Masks.of(blocks, members)


def _ids(ids: Iterable[int]) -> Ids:
    return np.unique(np.fromiter(ids, dtype=np.int64))
