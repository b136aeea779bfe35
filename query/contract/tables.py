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

    Args:
        path: the file to write.
        rows: one mapping for each row.
        columns: name → DuckDB's name of the type. Parquet keeps plain types, lists of them, dates and timestamps.

    Raises AtlasError for another suffix, a missing folder, or if the file cannot be written.
    """
    file = checked_output(path, FORMATS)
    kind = file.suffix.lower()
    if kind == ".parquet":
        payload = parquet(
            {name: _column([row.get(name) for row in rows], type_name) for name, type_name in columns.items()}
        )
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


def _column(values: list[Any], type_name: str) -> pyarrow.Array:
    """A column of the type with DuckDB's name ``type_name``, else of the type of its values, else JSON as text."""
    import pyarrow as pa

    plain_types = {
        "BOOLEAN": pa.bool_(), "TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INTEGER": pa.int32(),
        "BIGINT": pa.int64(), "UTINYINT": pa.uint8(), "USMALLINT": pa.uint16(), "UINTEGER": pa.uint32(),
        "UBIGINT": pa.uint64(), "FLOAT": pa.float32(), "DOUBLE": pa.float64(), "VARCHAR": pa.string(),
    }  # fmt: skip
    from_text = {"DATE": pa.date32(), "TIMESTAMP": pa.timestamp("us")}
    element = type_name.removesuffix("[]")
    try:
        if type_name in from_text:
            return pa.array(values, pa.string()).cast(from_text[type_name])
        if type_name in plain_types:
            return pa.array(values, plain_types[type_name])
        if type_name == f"{element}[]" and element in plain_types:
            return pa.array(values, pa.list_(plain_types[element]))
        array = pa.array(values)
        return array if not pa.types.is_null(array.type) else array.cast(pa.string())
    except (pa.ArrowException, OverflowError):
        texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
        return pa.array(texts, pa.string())
