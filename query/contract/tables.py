"""Rows as a file: Parquet, CSV or JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexer.console.output import as_csv
from query.contract.figures import checked_output, write_output

if TYPE_CHECKING:
    import pyarrow

FORMATS = (".parquet", ".csv", ".json", ".jsonl")


def write_rows(path: str | Path, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
    """Write rows of JSON's own types as .parquet, .csv, .json or .jsonl, by the suffix.

    ``columns``: name → DuckDB's name of the type, which Parquet keeps where it is a plain one. Raises AtlasError for
    another suffix, no folder, or if the file cannot be written.
    """
    file = checked_output(path, FORMATS)
    kind = file.suffix.lower()
    if kind == ".parquet":
        payload = parquet({name: _column([row.get(name) for row in rows], of) for name, of in columns.items()})
    elif kind == ".csv":
        payload = as_csv(rows, list(columns)).encode("utf-8", "replace")
    elif kind == ".json":
        payload = (json.dumps(list(rows), indent=2) + "\n").encode()
    else:
        payload = "".join(json.dumps(row) + "\n" for row in rows).encode()
    write_output(file, payload)


def parquet(columns: Mapping[str, pyarrow.Array]) -> bytes:
    """The bytes of a Parquet file with these columns."""
    import pyarrow as pa

    return parquet_of(pa.table(dict(columns)))


def parquet_of(table: pyarrow.Table) -> bytes:
    """The bytes of a Parquet file with this table."""
    import pyarrow.parquet as pq

    target = io.BytesIO()
    pq.write_table(table, target, compression="zstd")
    return target.getvalue()


def _column(values: list[Any], of: str) -> pyarrow.Array:
    """A column of the type that DuckDB names, else of the type of its values, else JSON as text."""
    import pyarrow as pa

    plain = {
        "BOOLEAN": pa.bool_(), "TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INTEGER": pa.int32(),
        "BIGINT": pa.int64(), "UTINYINT": pa.uint8(), "USMALLINT": pa.uint16(), "UINTEGER": pa.uint32(),
        "UBIGINT": pa.uint64(), "FLOAT": pa.float32(), "DOUBLE": pa.float64(), "VARCHAR": pa.string(),
    }  # fmt: skip
    from_text = {"DATE": pa.date32(), "TIMESTAMP": pa.timestamp("us")}
    element = of.removesuffix("[]")
    try:
        if of in from_text:
            return pa.array(values, pa.string()).cast(from_text[of])
        if of in plain:
            return pa.array(values, plain[of])
        if of == f"{element}[]" and element in plain:
            return pa.array(values, pa.list_(plain[element]))
        found = pa.array(values)
        return found if not pa.types.is_null(found.type) else found.cast(pa.string())
    except (pa.ArrowException, OverflowError):
        texts = [one if one is None or isinstance(one, str) else json.dumps(one) for one in values]
        return pa.array(texts, pa.string())
