"""How a publish changes the vectors of one base and representation: new segments, and the vectors they replace."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from indexer.atlas import file_name
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
    rows_of_block,
    to_merge,
    write_segment,
)

Ids = NDArray[np.int64]

# Bytes of vectors that are collected in memory before they are written as a segment.
MOST_HELD = 256 << 20


class VectorWriter:
    """Writes new vectors into segments; holds only ``MOST_HELD`` bytes at a time.

    ``centre``: version of the centre that was subtracted. ``blocks``: blocks of unit norm, or 0 if the whole vector has
    unit norm.
    """

    def __init__(
        self, root: Path, base: str, representation: Representation, centre: str | None = None, blocks: int = 0
    ) -> None:
        self.root, self.base, self.representation = root, base, representation
        self.centre, self.blocks = centre, blocks
        self.segments: list[Segment] = []
        self.ids: list[int] = []
        self.length: int | None = None
        self.kinds: dict[bytes, list[int]] = {}  # models that lack blocks, see Masks
        self._held: dict[int, NDArray[np.float32]] = {}

    def add(self, model_id: int, vector: NDArray[np.float32]) -> None:
        """Add the vector (d,) of a model; zero vectors are skipped. Without blocks it is scaled to unit norm."""
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

    def add_all(self, ids: Ids, vectors: NDArray[np.float32]) -> None:
        """Add several vectors (n, d)."""
        for model_id, vector in zip(ids.tolist(), vectors, strict=True):
            self.add(model_id, vector)

    def flush(self) -> None:
        """Write the vectors in memory as a segment."""
        if self._held:
            ids = sorted(self._held)
            vectors = Vectors(np.array(ids, dtype=np.int64), np.stack([self._held[model_id] for model_id in ids]))
            self.segments.append(write_segment(self.root, self.base, self.representation.name, vectors, self.centre))
            self._held.clear()


class UncentredVectors:
    """Vectors with unit blocks in a temporary file, until the centre that is subtracted from them is known.

    ``blocks``: blocks of a vector. If a publish is killed, the next one removes the file.
    """

    def __init__(self, root: Path, base: str, representation: str) -> None:
        self._path = root / f".{file_name(base)}.{representation}.{os.getpid()}.uncentred.tmp"
        self.ids: list[int] = []
        self.changed: list[NDArray[np.bool_]] = []  # the blocks that each model changed
        self.length = 0
        self.blocks = 0

    def __enter__(self) -> Self:
        self._file = self._path.open("w+b")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    def add(self, model_id: int, vector: NDArray[np.float32], blocks: int) -> None:
        """Add the vector (d,) of a model; zero vectors are skipped."""
        self.length, self.blocks = len(vector), blocks
        if vector.any():
            self._file.write(np.ascontiguousarray(vector, dtype="<f4").data)
            self.ids.append(model_id)
            self.changed.append(np.asarray(vector.reshape(blocks, -1).any(axis=1)))

    def chunks(self) -> Iterator[tuple[Ids, NDArray[np.float32]]]:
        """Ids and vectors, some at a time, in the order in which they were added."""
        self._file.flush()
        self._file.seek(0)
        step = rows_of_block(self.length)
        for start in range(0, len(self.ids), step):
            ids = np.array(self.ids[start : start + step], dtype=np.int64)
            read = self._file.read(4 * self.length * len(ids))
            vectors = np.frombuffer(read, dtype="<f4").reshape(len(ids), self.length)
            yield ids, with_unit_blocks(vectors, self.blocks)


def with_unit_blocks(vectors: NDArray[np.float32], blocks: int) -> NDArray[np.float32]:
    """(n, d) vectors with every block scaled to norm 1, or 0 if it is zero; a record may come from elsewhere."""
    shaped = vectors.astype(np.float64).reshape(len(vectors), blocks, -1)
    norms = np.linalg.norm(shaped, axis=2, keepdims=True)
    unit = np.divide(shaped, norms, out=np.zeros_like(shaped), where=norms > 0)
    return unit.reshape(len(vectors), -1).astype(np.float32)


@dataclass(frozen=True)
class Change:
    """What a publish changed: ids with a new vector, and ids whose former vector is no longer valid.

    ``index`` has no compressed index, because the lists of neighbours are exact.
    """

    index: VectorIndex
    added: Ids
    removed: Ids


class PublishedVectors:
    """The published vectors of one (base, representation), and how a publish changes them."""

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
        self.root, self.tables, self.base, self.rank, self.say = root, tables, base, rank, say
        found = read_published(tables.connection, base, representation.name)
        # A representation that is added later is searched like the default one.
        like = found or read_published(tables.connection, base, DEFAULT)
        self.choice_before = like.choice if like is not None else IndexChoice()
        self.choice = self.choice_before.changed(asked)
        self.representation = representation.of_length(self.choice.budget)
        # Vectors of different versions, ranks or lengths cannot be compared: recompute all of them from the records.
        kept = found
        if found is not None:
            before = (found.version, found.rank, representation.of_length(found.choice.budget))
            if before != (representation.version, rank, self.representation):
                kept = None
        self.is_new = kept is None
        self.length = kept.length if kept else None
        self.segments = list(kept.segments) if kept else []
        self.compressed = kept.compressed if kept else None
        self.masks = kept.masks if kept else Masks.none()
        self.centre = kept.centre if kept else None

    def ids(self) -> Ids:
        """Ids of all models that have a vector, ascending."""
        return np.unique(np.concatenate([_no_ids(), *(OpenSegment(self.root, one).ids for one in self.segments)]))

    def change(
        self, writer: VectorWriter, stale: Iterable[int], *, is_anew: bool = False, purged: bool = False
    ) -> Change | None:
        """Add the vectors of ``writer``. Former vectors of the ``stale`` ids are removed, or all with ``is_anew``.

        ``purged``: also rewrite the segments that contain removed vectors. None if nothing changes.
        """
        added = np.unique(np.array(writer.ids, dtype=np.int64))
        wanted = self.ids() if is_anew else np.unique(np.array(list(stale), dtype=np.int64))
        removed = [_no_ids()]
        for position, segment in enumerate(self.segments if len(wanted) else ()):
            there = np.intersect1d(OpenSegment(self.root, segment).ids, wanted)
            if len(there):
                self.segments[position] = replace(segment, removed=np.union1d(segment.removed, there))
                removed.append(there)
        former = np.unique(np.concatenate(removed))
        has_new_choice = self.choice != self.choice_before
        if not (self.is_new or has_new_choice or len(added) or len(former)):
            return None
        writer.flush()
        if is_anew:
            self.segments, self.compressed = [], None
        blocks = writer.blocks or self.masks.blocks
        changed = np.union1d(former, added)
        kinds = self.masks.members() if self.masks.blocks == blocks else {}
        kinds = {kind: np.setdiff1d(ids, changed) for kind, ids in kinds.items()}
        for kind, models in writer.kinds.items():
            kinds[kind] = np.union1d(kinds.get(kind, _no_ids()), np.array(models, dtype=np.int64))
        self.masks = Masks.of(blocks, kinds)
        self.centre = writer.centre or self.centre
        # As long as there are no vectors the length is not known.
        self.length = (self.length if self.segments else None) or writer.length or self.length or 1
        self.segments += writer.segments
        self._merge(purged)
        compression = Compression(self.root, self.tables, self.base, self.representation.name, self.say, self.masks)
        stored = None if has_new_choice else self.compressed
        self.segments = compression.renewed(self.segments, self.choice, stored)
        self._write()
        opened = [OpenSegment(self.root, one, self.masks) for one in self.segments]
        return Change(VectorIndex(opened, self.length, masks=self.masks), added, former)

    def _merge(self, purged: bool) -> None:
        """Merge segments of similar size; those in the compressed index are never merged with others."""
        for in_compressed in (True, False):
            while True:
                group = [one for one in self.segments if one.in_compressed == in_compressed]
                chosen = [group[position] for position in to_merge(group)]
                if not chosen:
                    break
                place = self.segments.index(chosen[0])
                self.segments = [one for one in self.segments if one not in chosen]
                self.segments[place:place] = self._rewritten(chosen)
        if purged:
            parts = [self._rewritten([one]) if len(one.removed) else [one] for one in self.segments]
            self.segments = [one for part in parts for one in part]

    def _rewritten(self, segments: Sequence[Segment]) -> list[Segment]:
        """One new segment with the valid vectors of several; none if there are none."""
        vectors = joined([OpenSegment(self.root, one).vectors() for one in segments], self.length or 1)
        if not len(vectors):
            return []
        first = segments[0]
        made = write_segment(self.root, self.base, self.representation.name, vectors, first.centre)
        return [replace(made, in_compressed=first.in_compressed)]

    def _write(self) -> None:
        key = {"base": self.base, "representation": self.representation.name}
        for table in ("representations", "internal.segments", "internal.removed_vectors", "internal.vector_masks"):
            self.tables.run(f"DELETE FROM {table} WHERE base = $base AND representation = $representation", key)
        row = {
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
        self.tables.insert("representations", [key | row])
        for number, one in enumerate(self.segments):
            row = {
                "segment": number,
                "vectors": one.file.count,
                "in_compressed": one.in_compressed,
                "centre": one.centre,
                "faiss_file": one.file.name,
                "faiss_sha256": one.file.sha256,
                "faiss_bytes": one.file.size,
            }
            self.tables.insert("internal.segments", [key | row])
            removed = [key | {"segment": number, "model_id": int(model_id)} for model_id in one.removed]
            self.tables.insert("internal.removed_vectors", removed)
        masks = [
            key | {"changed": "".join(map(str, kind)), "model_ids": ids.tolist()}
            for kind, ids in self.masks.members().items()
        ]
        self.tables.insert("internal.vector_masks", masks)


def _no_ids() -> Ids:
    return np.zeros(0, dtype=np.int64)
