"""SQL from strangers: one SELECT, in a process of its own that can neither write nor reach anything.

DuckDB's own locks (see :mod:`query.locked`) come first. The process adds what they cannot promise: a statement
busy inside one function does not hear an interrupt, so the process is ended at the time limit; memory is bounded
by the system; and no file can be written, whatever a statement finds to try.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.errors import AtlasError
from query.locked import connect_locked

__all__ = ["SqlResult", "check_condition", "connect_locked", "run_sql"]

# Time for the process to start and to hand its rows over, on top of the statement's own.
START_SECONDS = 5.0
CONDITION_SECONDS = 20.0
MOST_CONDITION = 10_000


@dataclass(frozen=True)
class SqlResult:
    """Rows of JSON's own types (times as ISO text); ``truncated``: there were more than the limit."""

    columns: list[str]
    rows: list[list[Any]]
    truncated: bool

    def as_dicts(self) -> list[dict[str, Any]]:
        """One dict per row; of columns with the same name the last counts."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def to_df(self) -> Any:
        """A pandas DataFrame. Raises AtlasError where pandas is not installed."""
        try:
            import pandas
        except ImportError as error:
            raise AtlasError("pandas is not installed.", "pip install pandas") from error
        return pandas.DataFrame(self.rows, columns=self.columns)


def run_sql(database: Path, statement: str, *, limit: int = 10_000, seconds: float = 30.0) -> SqlResult:
    """Run one SELECT on a database and return at most ``limit`` rows, within ``seconds`` of wall time.

    Raises AtlasError where the statement is not one SELECT, is wrong (DuckDB's own message), takes too long or
    needs too much memory.
    """
    answer = _ask_worker({"database": str(database), "statement": statement, "limit": limit}, seconds)
    return SqlResult(answer["columns"], answer["rows"], answer["truncated"])


def check_condition(database: Path, where: str, view: str = "models") -> list[int]:
    """The model_id of every row of ``view`` for which the condition ``where`` holds.

    The condition gets no more power than a SELECT, and must be one expression: what would end the WHERE clause
    and go on is refused. Raises AtlasError as ``run_sql`` does.
    """
    if len(where) > MOST_CONDITION:
        raise AtlasError(f"--where is longer than {MOST_CONDITION} characters.", "Use `query sql` for long questions.")
    statement = f"SELECT model_id FROM {view} WHERE (\n{where}\n)"
    _refuse_more_than_a_condition(statement, where, view)
    found = run_sql(database, statement, limit=100_000_000, seconds=CONDITION_SECONDS)
    return [row[0] for row in found.rows]


def _refuse_more_than_a_condition(statement: str, where: str, view: str) -> None:
    """Let DuckDB's parser say what the whole statement is: a plain SELECT … FROM view WHERE …, and nothing else."""
    import duckdb

    with duckdb.connect() as connection:
        ((text,),) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [statement]).fetchall()
    parsed = json.loads(text)
    shown = where if len(where) <= 80 else where[:77] + "…"
    if parsed.get("error"):
        problem = str(parsed.get("error_message", "syntax error")).splitlines()[0]
        raise AtlasError(
            f"--where {shown!r} is not a condition: {problem}.", "Give one like: downloads > 100 AND author <> 'x'"
        )
    statements = parsed["statements"]
    node = statements[0]["node"] if len(statements) == 1 else {}
    is_plain = (
        node.get("type") == "SELECT_NODE"
        and node.get("from_table", {}).get("type") == "BASE_TABLE"
        and node.get("from_table", {}).get("table_name") == view
        and len(node.get("select_list", [])) == 1
        and not node.get("modifiers")
        and not node.get("group_expressions")
        and node.get("having") is None
        and node.get("qualify") is None
        and node.get("sample") is None
        and node.get("where_clause") is not None
    )
    if not is_plain:
        raise AtlasError(f"--where {shown!r} is more than one condition.", "Use `query sql` for whole statements.")


def _ask_worker(request: dict[str, Any], seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "query.sqlworker"]
    root = str(Path(__file__).resolve().parent.parent)
    try:
        done = subprocess.run(
            command,
            input=json.dumps(request | {"seconds": seconds}).encode(),
            capture_output=True,
            timeout=seconds + START_SECONDS,
            check=False,
            env=_bare_environment(root),
        )
    except subprocess.TimeoutExpired as error:
        raise _too_long(seconds) from error
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        # It could not even answer: ended by a limit of the system.
        raise AtlasError(
            "The statement needed more memory or time than it may have, and was ended.", "Narrow it, or aggregate."
        ) from error
    if answer.get("late"):
        raise _too_long(seconds)
    if "error" in answer:
        raise AtlasError(answer["error"], answer.get("hint", ""))
    return answer


def _too_long(seconds: float) -> AtlasError:
    return AtlasError(f"The statement took longer than {seconds:g} s.", "Narrow it, or raise --timeout.")


def _bare_environment(root: str) -> dict[str, str]:
    """What the worker needs of the environment, and no tokens."""
    import os

    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TZ", "SYSTEMROOT") if name in os.environ}
    path = os.environ.get("PYTHONPATH")
    return kept | {"PYTHONPATH": os.pathsep.join([root, path] if path else [root]), "OMP_NUM_THREADS": "1"}
