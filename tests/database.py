"""Reading and changing the database of an atlas by DuckDB alone, without any of the project's code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np


def read_rows(database: Path, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """All rows of a SELECT; the file stays as it is."""
    with duckdb.connect(str(database), read_only=True) as connection:
        return connection.execute(statement, list(parameters) or None).fetchall()


def execute(database: Path, statement: str, *parameters: Any) -> None:
    """Change the file, as somebody with other tools could."""
    with duckdb.connect(str(database)) as connection:
        connection.execute(statement, list(parameters) or None)


def leave_log(database: Path, statement: str) -> Path:
    """The write-ahead log next to the file of a program that was killed after a change."""
    code = "import duckdb, os, sys; open_ = duckdb.connect(sys.argv[1]); open_.execute(sys.argv[2]); os._exit(9)"
    subprocess.run([sys.executable, "-c", code, str(database), statement], check=False)
    log = database.with_name(f"{database.name}.wal")
    assert log.exists()
    return log


def replace_bytes(path: Path, before: bytes, after: bytes) -> int:
    """Replace bytes in a database and make the checksums of its blocks fit again; returns how often."""
    content, size = path.read_bytes(), 1 << 18
    changed = bytearray(content.replace(before, after.ljust(len(before), before[-1:])))
    for block in range(3 << 12, len(content) - size + 1, size):
        if changed[block : block + size] != content[block : block + size]:
            words = np.frombuffer(changed, np.uint64, (size >> 3) - 1, block + 8)
            checksum = np.bitwise_xor.reduce(words * np.uint64(0xBF58476D1CE4E5B9)) ^ np.uint64(5381)
            changed[block : block + 8] = int(checksum).to_bytes(8, "little")
    path.write_bytes(changed)
    return content.count(before)
