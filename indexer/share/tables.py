"""The atlas as Parquet, for DuckDB, pandas, ``datasets`` and the Hub's viewer.

Row groups have a fixed size and rows are sorted, so that unchanged rows give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from indexer.atlas import file_name
from indexer.database.secure_connection import quoted
from indexer.vectors.segments import OpenSegment

if TYPE_CHECKING:
    from indexer.database.connection import Connection
    from indexer.vectors.published import Published

ROWS = 10_000  # of a row group
VECTOR_ROWS = 1_000


# The SELECT of each table, by the name of its file and of the card's configuration.
EXPORTS = {
    "models": "FROM models ORDER BY model_id",
    "datasets": "SELECT model_id, base, model, dataset, named.parent, raw, source FROM model_datasets AS named "
    "JOIN fine_tunes USING (model_id) ORDER BY model_id, dataset, raw, source",
    "neighbours": "SELECT near.representation, asked.base, near.model_id, asked.model, near.rank, near.neighbour_id, "
    "found.model AS neighbour, near.similarity FROM neighbours AS near "
    "JOIN fine_tunes AS asked ON asked.model_id = near.model_id "
    "JOIN fine_tunes AS found ON found.model_id = near.neighbour_id ORDER BY 1, 3, 5",
    "failures": "SELECT model_id, base, model, author, status, reason, detail, downloads, created FROM fine_tunes "
    "WHERE status <> 'indexed' ORDER BY model_id",
    "evaluations": "FROM evaluations ORDER BY ALL",
    "lineage": "SELECT base, child.model, parents.model AS parent, lineage.* EXCLUDE (record_key, answered_at) "
    "FROM lineage JOIN fine_tunes AS child USING (model_id) "
    "LEFT JOIN (SELECT model_id AS parent_id, model FROM fine_tunes) AS parents USING (parent_id) ORDER BY ALL",
    "depth": "FROM depth_of_models ORDER BY ALL",
    "bases": "SELECT * EXCLUDE (config), config::VARCHAR AS config FROM bases ORDER BY base",
}
# These are written even if they are empty.
_ALWAYS = ("models", "datasets", "neighbours", "bases")


def write_tables(connection: Connection, folder: Path) -> Iterator[tuple[str, Path]]:
    """Write every table that is not empty below ``folder``; yields paths in the repository and files."""
    for name, select in EXPORTS.items():
        path = f"data/{name}.parquet"
        if _write(connection, select, folder / path, is_needed=name in _ALWAYS):
            yield path, folder / path
    for row in connection.rows("SELECT base FROM bases ORDER BY base"):
        path = f"data/deltas/{file_name(row['base'])}.parquet"
        select = (
            f"SELECT model, deltas.* FROM deltas JOIN fine_tunes USING (model_id) WHERE base = {quoted(row['base'])} "
            "ORDER BY model_id, stack, layer, family"
        )
        if _write(connection, select, folder / path, is_needed=False):
            yield path, folder / path


def write_vectors(connection: Connection, published: Published, root: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Write the vectors of one (base, representation): model_id, model, vector of a fixed length.

    One file per segment, named after it, so that the next push sends only new ones. Raises AtlasError if a file of the
    atlas in ``root`` is missing or damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = connection.execute("SELECT model_id, model FROM fine_tunes WHERE base = ?", [published.base]).fetchall()
    names = dict(rows)
    schema = pa.schema(
        [("model_id", pa.int32()), ("model", pa.string()), ("vector", pa.list_(pa.float32(), published.length))]
    )
    for segment in published.segments:
        vectors = OpenSegment(root, segment).vectors()
        digest = segment.file.name.removesuffix(".faiss").rpartition(".")[2]
        path = vectors_folder(published.base, published.representation) + f"{digest}.parquet"
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        # Unit vectors do not compress, and dictionaries of them only cost time.
        with pq.ParquetWriter(folder / path, schema, use_dictionary=["model"], compression="none") as writer:
            for start in range(0, len(vectors), VECTOR_ROWS):
                chosen = slice(start, start + VECTOR_ROWS)
                ids, flat = vectors.ids[chosen], pa.array(vectors.copied(chosen).reshape(-1), pa.float32())
                columns = [
                    pa.array(ids, pa.int32()),
                    pa.array([names.get(int(one)) for one in ids], pa.string()),
                    pa.FixedSizeListArray.from_arrays(flat, published.length),
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=VECTOR_ROWS)
        yield path, folder / path


def vectors_folder(base: str, representation: str) -> str:
    """The folder in the repository for the Parquet files of a representation's vectors."""
    return f"vectors/{file_name(base)}.{representation}/"


def _write(connection: Connection, select: str, path: Path, *, is_needed: bool) -> bool:
    """Write a table, an empty one only if it ``is_needed``; returns whether it was written."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    batches = connection.batches(select, ROWS)
    first = next(batches)
    if not (first.num_rows or is_needed):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, first.schema, compression="zstd") as writer:
        for batch in chain([first], batches):
            writer.write_table(pa.Table.from_batches([batch]), row_group_size=ROWS)
    return True
