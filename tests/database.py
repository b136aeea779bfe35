"""Reading and changing the database of an atlas by DuckDB alone, without any of the project's code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb


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
