"""How a publish changes the vectors of one base and representation: a new file of those that stay and the new ones."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import IO, Self

import numpy as np
from numpy.typing import NDArray

from indexer.atlas import file_name
from indexer.publish.tables import Tables
from indexer.records.representations.registry import DEFAULT
from indexer.records.representations.representation import Representation
from indexer.vectors.files import HALF, SINGLE, VectorFile, stored_form, write_index
from indexer.vectors.masks import Masks, changed_blocks
from indexer.vectors.published import Published, read_published
from indexer.vectors.search import VectorIndex
from indexer.vectors.stored import OpenVectors, normalised, read_rows, rows_of_block, with_unit_blocks

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]


class NewVectors:
    """Vectors that a publish has computed, in a temporary file until they are published, so that memory stays bounded.

    ``blocks``: blocks of a vector, each scaled to unit norm; 0 if the whole vector is. ``ids``: models in the order in
    which they were added. ``changed``: the blocks that each changed. If a publish is killed, the next one removes the
    file.
    """

    def __init__(self, root: Path, base: str, representation: str, blocks: int = 0) -> None:
        self._path = root / f".{file_name(base)}.{representation}.{os.getpid()}.new.tmp"
        self._file: IO[bytes] | None = None
        self.blocks = blocks
        self.length = 0
        self.ids: list[int] = []
        self.changed: list[NDArray[np.bool_]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)

    def add(self, model_id: int, vector: Floats) -> None:
        """Add the vector (d,) of a model; one that is zero or not finite is left out."""
        self.length = len(vector)
        unit = normalised(vector)
        if unit is None:
            return
        if self.blocks:
            unit = with_unit_blocks(vector[None, :], self.blocks)[0]
        if self._file is None:
            self._file = self._path.open("w+b")
        self._file.write(np.ascontiguousarray(unit, dtype="<f4").data)
        self.ids.append(model_id)
        self.changed.append(changed_blocks(unit[None, :], max(self.blocks, 1))[0])

    def rows(self, indices: Iterable[int]) -> Floats:
        """The vectors at these indices (n, d)."""
        assert self._file is not None
        self._file.flush()
        return read_rows(self._file, 0, indices, self.length, "<f4")

    def chunks(self) -> Iterator[tuple[slice, Ids, Floats]]:
        """Indices, ids and vectors, a block at a time."""
        for start in range(0, len(self.ids), rows_of_block(self.length)):
            span = slice(start, min(start + rows_of_block(self.length), len(self.ids)))
            yield span, np.array(self.ids[span], np.int64), self.rows(range(span.start, span.stop))

    def replace(self, span: slice, vectors: Floats) -> None:
        """Replace the vectors at these indices; zero vectors are not published."""
        assert self._file is not None
        self._file.flush()
        self._file.seek(4 * self.length * span.start)
        self._file.write(np.ascontiguousarray(vectors, dtype="<f4").data)
        self._file.seek(0, os.SEEK_END)
        self.changed[span] = list(changed_blocks(vectors, max(self.blocks, 1)))


# Bytes that are copied at a time: few enough to stay in the processor's cache until they are hashed and written.
_BYTES_AT_ONCE = 2 << 20

# The tables that describe the vectors.
_TABLES = ("representations", "internal.vector_masks")


class PublishedVectors:
    """The published vectors of one (base, representation), and how a publish changes them.

    ``new``: collects the new vectors, whose ``blocks`` have unit norm (0: the whole vector has); ``read``: the models
    whose record was read for them, also those that have no vector. ``centre``: version of the centre that was
    subtracted. ``vector_length``: the length asked for, approximately; None leaves it unchanged. ``is_new``: there are
    no former vectors that could stay.
    """

    def __init__(
        self,
        root: Path,
        tables: Tables,
        base: str,
        representation: Representation,
        rank: int,
        vector_length: int | None = None,
        blocks: int = 0,
    ) -> None:
        self.root, self.tables, self.base, self.rank = root, tables, base, rank
        self.name = representation.name
        published = read_published(tables.connection, base, self.name)
        # A representation that is added later has vectors of the length asked for before.
        published_before = published or read_published(tables.connection, base, DEFAULT)
        self.budget_before = published_before.budget if published_before is not None else None
        self.budget = vector_length or self.budget_before
        self.representation = representation.of_length(self.budget)
        # Vectors of different versions, ranks or lengths cannot be compared: recompute all of them from the records.
        former_vectors = published
        if published is not None:
            former_form = (published.version, published.rank, representation.of_length(published.budget))
            if former_form != (representation.version, rank, self.representation):
                former_vectors = None
            elif published.count and published.length != (representation.length or published.length):
                former_vectors = None  # the base has other words: its tokenizer can be read now
        self.before: Published | None = former_vectors
        self.is_new = former_vectors is None
        self.centre = former_vectors.centre if former_vectors else None
        self.new = NewVectors(root, base, self.name, blocks)
        self.read: set[int] = set()

    @cached_property
    def former(self) -> OpenVectors | None:
        """The former vectors. Raises AtlasError if their file is missing or damaged."""
        return OpenVectors(self.root, self.before.file, self.before.masks) if self.before else None

    def staying(self, stale: Iterable[int]) -> Ids:
        """Ids of the former vectors that stay: not those of ``stale`` ids, nor those that new vectors replace."""
        if self.former is None:
            return np.zeros(0, np.int64)
        return np.setdiff1d(self.former.ids, _ids([*stale, *self.new.ids]))

    def publish(self, stale: Iterable[int]) -> tuple[VectorIndex, Ids, Ids] | None:
        """Write a file of the new vectors and of those that stay (see ``staying``), and its rows.

        Returns all vectors, the ids with a new vector, and the ids whose former vector is no longer valid; None if
        nothing changes.
        """
        row_of = {model_id: row for row, model_id in enumerate(self.new.ids) if self.new.changed[row].any()}
        added = _ids(row_of)
        staying = self.staying(stale)
        removed = np.setdiff1d(self.former.ids, staying) if self.former is not None else staying
        if not (self.is_new or self.budget != self.budget_before or len(added) or len(removed)):
            return None
        # The length is known only once there are vectors.
        length = self.new.length or (self.before.file.length if self.before else 1)
        if len(staying) and self.before is not None:
            length = self.before.file.length
        factory = SINGLE if self.centre is None else HALF
        ids = np.union1d(staying, added)
        rows = self._rows(ids, row_of, length, factory)
        file = write_index(self.root, self.base, self.name, ids, length, rows, factory)
        masks = self._masks(staying, row_of)
        self._write(file, masks)
        return VectorIndex(OpenVectors(self.root, file, masks)), added, removed

    def _rows(self, ids: Ids, row_of: dict[int, int], length: int, factory: str) -> Iterator[NDArray[np.floating]]:
        """The vectors of ``ids``, a block at a time: row ``row_of[id]`` of the new vectors, else the former one."""
        step = max(1, _BYTES_AT_ONCE // (4 * length))
        for start in range(0, len(ids), step):
            block_ids = ids[start : start + step]
            positions = np.array([row_of.get(model_id, -1) for model_id in block_ids.tolist()])
            is_new = positions >= 0
            rows_in_parts = []
            if is_new.any():
                rows_in_parts.append(stored_form(self.new.rows(positions[is_new].tolist()), factory))
            if not is_new.all():
                assert self.former is not None
                rows_in_parts.append(self.former.read(block_ids[~is_new]))
            # Nearly all blocks are of one kind.
            order = np.argsort(np.concatenate([np.flatnonzero(is_new), np.flatnonzero(~is_new)]))
            yield rows_in_parts[0] if len(rows_in_parts) == 1 else np.concatenate(rows_in_parts)[order]

    def _masks(self, staying: Ids, rows: dict[int, int]) -> Masks:
        """The changed blocks of the vectors that stay and of the new ones; none while no centre is known."""
        is_uncentred = bool(self.representation.centred) and self.centre is None
        blocks = 0 if is_uncentred else self.new.blocks
        if not blocks:
            return Masks.none()
        kinds: dict[bytes, list[int]] = {}
        if self.before is not None and self.before.masks.blocks == blocks:
            former = self.before.masks.members()
            kinds = {kind: np.intersect1d(ids, staying).tolist() for kind, ids in former.items()}
        for model_id, row in rows.items():
            kinds.setdefault(self.new.changed[row].astype(np.uint8).tobytes(), []).append(model_id)
        return Masks.of(blocks, {kind: sorted(ids) for kind, ids in kinds.items()})

    def _write(self, file: VectorFile, masks: Masks) -> None:
        key = {"base": self.base, "representation": self.name}
        for table in _TABLES:
            self.tables.run(f"DELETE FROM {table} WHERE base = $base AND representation = $representation", key)
        row = {
            "version": self.representation.version,
            "rank": self.rank,
            "length": file.length,
            "vectors": file.count,
            "per_delta": self.representation.per_delta,
            "blocks": masks.blocks,
            "budget": self.budget,
            "centre": self.centre,
            "faiss_file": file.name,
            "faiss_sha256": file.sha256,
            "faiss_bytes": file.size,
        }
        self.tables.insert("representations", [key | row])
        rows = [
            key | {"changed": "".join(map(str, kind)), "model_ids": ids.tolist()}
            for kind, ids in masks.members().items()
        ]
        self.tables.insert("internal.vector_masks", rows)


def _ids(ids: Iterable[int]) -> Ids:
    return np.array(sorted(set(ids)), dtype=np.int64)
