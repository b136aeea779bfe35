"""The process that runs a stranger's SELECT: request as JSON on stdin, rows as JSON on stdout."""

from __future__ import annotations

import json
import math
import sys
import threading
from pathlib import Path
from typing import Any

# DuckDB may use 1 GB, and maps about as much again without using it.
MOST_ADDRESS_SPACE = 6 << 30


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    _limit_process(request["seconds"])
    answer = _answer(request)
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()


def _limit_process(seconds: float) -> None:
    """No file may be written and memory is bounded, by the system itself where it can."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESS_SPACE, MOST_ADDRESS_SPACE))
    processor_seconds = math.ceil(seconds * 4) + 5
    resource.setrlimit(resource.RLIMIT_CPU, (processor_seconds, processor_seconds))


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    import duckdb

    from query.locked import connect_locked

    try:
        statements = duckdb.extract_statements(request["statement"])
    except duckdb.Error as error:
        return {"error": _sentence(error)}
    if len(statements) != 1:
        return {"error": f"{len(statements)} statements were given; one SELECT is allowed.", "hint": "Drop the rest."}
    if statements[0].type.name not in ("SELECT", "EXPLAIN"):
        return {
            "error": f"{statements[0].type.name} is not allowed: the atlas can only be read.",
            "hint": "Give a SELECT.",
        }
    connection = connect_locked(Path(request["database"]))
    late = threading.Event()

    def interrupt() -> None:
        late.set()
        connection.interrupt()

    timer = threading.Timer(request["seconds"], interrupt)
    timer.daemon = True
    timer.start()
    try:
        cursor = connection.execute(statements[0])
        columns = [column[0] for column in cursor.description or ()]
        rows = cursor.fetchmany(request["limit"] + 1)
    except (duckdb.Error, RuntimeError, MemoryError) as error:
        return {"late": True} if late.is_set() else {"error": _sentence(error)}
    finally:
        timer.cancel()
    kept = rows[: request["limit"]]
    return {
        "columns": columns,
        "rows": [[_plain(value) for value in row] for row in kept],
        "truncated": len(rows) > len(kept),
    }


def _sentence(error: BaseException) -> str:
    """DuckDB's message on one line: what is wrong, and what it suggests."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("LINE ", "^"))][:3]
    return " ".join(kept) or type(error).__name__


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return str(value)


if __name__ == "__main__":
    main()
