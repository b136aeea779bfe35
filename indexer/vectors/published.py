"""The row of the database about the vectors of one (base, representation), and those vectors opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.atlas import AtlasFolder
from indexer.errors import WRONG_KINDS, AtlasError
from indexer.vectors.centre import CENTRED, Centre, GroupCentre
from indexer.vectors.files import HALF, HINT, SINGLE, VectorFile
from indexer.vectors.masks import Masks
from indexer.vectors.search import VectorIndex
from indexer.vectors.stored import OpenVectors
from indexer.vectors.table import AdapterIds

if TYPE_CHECKING:
    import duckdb

    from indexer.database.connection import Connection


@dataclass(frozen=True)
class PublishedBase:
    """A base of an atlas: the file of its matrices, and the rank of its published vectors."""

    base: str
    commit: str
    file: Path
    rank: int

    @classmethod
    def of(cls, folder: AtlasFolder, row: Mapping[str, Any]) -> PublishedBase:
        """From a row of ``indexer.database.connection.published_bases``."""
        return cls(row["base"], row["commit"], folder.base(row["base"], row["commit"]), row["rank"])


@dataclass(frozen=True)
class Published:
    """The vectors of one (base, representation): ``count`` vectors of ``length`` numbers, in ``file``.

    ``per_delta``: a vector is a concatenation of equally long blocks in the order of the base's deltas. ``masks``: the
    blocks each model changed, if blocks are compared separately. ``centre``: the version of the centre that was
    subtracted. ``budget``: the length asked for, approximately; None for the usual one.
    """

    base: str
    representation: str
    version: int
    rank: int
    length: int
    count: int
    per_delta: bool
    budget: int | None
    file: VectorFile
    masks: Masks
    centre: str | None = None

    def opened(self, root: Path) -> VectorIndex:
        """Open the file for search. Raises AtlasError if it is missing, damaged, or not what the database says."""
        try:
            return VectorIndex(OpenVectors(root, self.file, self.masks))
        except (RuntimeError, AttributeError) as error:  # FAISS found an index of another kind
            raise AtlasError(f"The vectors of {self.base}, {self.representation}, cannot be opened.", HINT) from error


def with_output_sides(
    index: VectorIndex, connection: duckdb.DuckDBPyConnection | Connection, outputs: Published | None, root: Path
) -> VectorIndex:
    """The same index, with the output sides of adapters if the start of one is not known.

    Adapters without such a vector are compared by their input sides. Raises AtlasError if their file is damaged.
    """
    if outputs is None or outputs.masks.blocks != index.masks.blocks:
        return index
    groups_of_ids = connection.execute(
        "SELECT model_id, vector_group FROM records JOIN fine_tunes USING (model_id) WHERE base = ? "
        "AND vector_group <> 'full'",
        [outputs.base],
    ).fetchall()
    opened = outputs.opened(root)
    ids_with_inputs = set(opened.ids.tolist())
    adapters_with_inputs = [pair for pair in groups_of_ids if pair[0] in ids_with_inputs]
    adapters = AdapterIds.of(
        [model_id for model_id, _ in adapters_with_inputs], [group for _, group in adapters_with_inputs]
    )
    if len(adapters.unknown):
        index.outputs, index.adapters = opened, adapters
    return index


@contextmanager
def _refused(base: str, representation: str) -> Iterator[None]:
    """Within the block, values that no publish writes are an AtlasError; an atlas may be from somebody else."""
    try:
        yield
    except WRONG_KINDS as error:
        why = " ".join(str(error).split())[:120]
        raise AtlasError(
            f"The rows about the vectors of {base}, {representation}, are not valid: {why}.", HINT
        ) from error


def read_published(
    connection: duckdb.DuckDBPyConnection | Connection, base: str, representation: str
) -> Published | None:
    """The published vectors of a base; None if this representation is not published.

    Raises AtlasError if a mask does not have the number of blocks that the representation has, if a vector cannot be
    divided into them, and for values that no publish writes.
    """
    with _refused(base, representation):
        return _read_published(connection, base, representation)


def _read_published(
    connection: duckdb.DuckDBPyConnection | Connection, base: str, representation: str
) -> Published | None:
    key = [base, representation]

    def rows(statement: str) -> list[tuple[Any, ...]]:
        return connection.execute(statement, key).fetchall()

    published_rows = rows(
        "SELECT version, rank, length, vectors, per_delta, blocks, centre, budget, faiss_file, faiss_sha256, "
        "faiss_bytes FROM representations WHERE base = ? AND representation = ?"
    )
    if not published_rows:
        return None
    version, rank, length, count, per_delta, blocks, centre, budget, name, sha256, size = published_rows[0]
    masks = Masks.none()
    if blocks:
        if count and length % blocks:  # without vectors the length says nothing
            why = f"have {length} numbers, which {blocks} blocks do not divide"
            raise AtlasError(f"The vectors of {base}, {representation}, {why}.", HINT)
        members = rows("SELECT changed, model_ids FROM internal.vector_masks WHERE base = ? AND representation = ?")
        if any(len(changed) != blocks or set(changed) - {"0", "1"} for changed, _ in members):
            raise AtlasError(f"The masks of {base}, {representation}, do not have {blocks} blocks.", HINT)
        masks = Masks.of(blocks, {bytes(map(int, changed)): ids for changed, ids in members})
    return Published(
        base=base,
        representation=representation,
        version=version,
        rank=rank,
        length=length,
        count=count,
        per_delta=per_delta,
        budget=budget,
        file=VectorFile(name, sha256, size, count, length, SINGLE if centre is None else HALF),
        masks=masks,
        centre=centre,
    )


def read_centre(connection: duckdb.DuckDBPyConnection | Connection, base: str, representation: str) -> Centre | None:
    """The published centre; None if there is none. Raises AtlasError if its rows are not a centre."""
    with _refused(base, representation):
        return _read_centre(connection, base, representation)


def _read_centre(connection: duckdb.DuckDBPyConnection | Connection, base: str, representation: str) -> Centre | None:
    rows = connection.execute(
        "SELECT vector_group, models, votes, numbers, datasets FROM internal.centres "
        "WHERE base = ? AND representation = ? ORDER BY vector_group, block",
        [base, representation],
    ).fetchall()
    if not rows:
        return None
    groups = {}
    rows_of: dict[str, list[Any]] = {}
    for row in rows:
        rows_of.setdefault(row[0], []).append(row)
    if unknown := sorted(set(rows_of) - set(CENTRED)):
        raise AtlasError(f"{base}, {representation}, has a centre of a group {unknown[0][:40]!r}.", HINT)
    for name, rows_of_group in rows_of.items():
        if len({len(row[3]) for row in rows_of_group}) != 1:
            raise AtlasError(f"The centre of {base}, {representation}, has blocks of different lengths.", HINT)
        numbers = np.array([row[3] for row in rows_of_group], dtype=np.float32)
        votes = np.array([row[2] for row in rows_of_group], dtype=np.float64)
        groups[name] = GroupCentre(numbers, votes, rows_of_group[0][1], rows_of_group[0][4])
    if len({group.blocks.shape for group in groups.values()}) != 1:
        raise AtlasError(f"The centres of {base}, {representation}, have different lengths.", HINT)
    if any(not (np.isfinite(group.blocks).all() and np.isfinite(group.votes).all()) for group in groups.values()):
        raise AtlasError(f"The centre of {base}, {representation}, is not finite.", HINT)
    return Centre(groups)
