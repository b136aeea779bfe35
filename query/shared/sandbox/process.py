"""The process that runs one untrusted SELECT after giving up every privilege but reading the atlas.

:mod:`query.questions.sql` runs it as a script and explains why. It reads the request as JSON from stdin, and writes the
answer as JSON to stdout: columns and rows, or an error with a hint, or ``late``, or ``large``, or ``replaced`` if the
file does not have the ``identity`` of the request.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexer.child_processes import end_with_parent, lower_limits
from indexer.database.secure_connection import identity_of
from query.shared.sandbox.locked import THREADS, connect_locked

if TYPE_CHECKING:
    import duckdb

MOST_ADDRESS_SPACE = 3 << 30  # DuckDB's limit, as much again while rows are handed over, and what it maps at rest
MOST_STATEMENT = 1_000_000  # characters
_MOST_RESULT = 64_000_000  # bytes of JSON

# A SELECT can contain statements of other kinds in a WITH.
_READING_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
# These reveal facts about the machine (paths, settings, secrets, logs), build statements from text, or waste time.
_OUTSIDE = re.compile(
    r"duckdb_(databases|settings|secrets|extensions|logs\w*|log_contexts|external_\w+|temporary_files)|pg_settings"
    r"|\w*database_list|current_setting|which_secret|getenv|\w*external_resource\w*|write_log|truncate_duckdb_logs"
    r"|query|query_table|json_execute_serialized_sql|sleep_ms|pg_sleep"
)
_EXPLAIN = re.compile(r"\s*EXPLAIN(\s+ANALYZE)?(\s*\([^()]*\))?\s+", re.IGNORECASE)
_MENDED_BY = "Make it again: index rebuild"
_NO_SELECT = "Only one SELECT (or WITH, FROM, VALUES, DESCRIBE, SHOW, SUMMARIZE, EXPLAIN) runs here"


class _Refused(Exception):
    """A refusal; ``hint``: texts, and calls (a function, then its arguments), rendered by ``questions.sql``."""

    def __init__(self, error: str, *hint: str | tuple[str, ...]) -> None:
        super().__init__(error)
        self.answer = {"error": error, "hint": [part for part in hint if part]}


def _serve() -> None:
    """Answer one request: JSON on stdin, JSON on stdout."""
    end_with_parent()
    import duckdb  # noqa: F401 - takes longest, and the request may still be on its way

    request = json.load(sys.stdin)
    try:
        text = _answer(request)
    except _Refused as refused:
        text = json.dumps(refused.answer)
    except (MemoryError, RecursionError):
        text = json.dumps({"large": True})
    sys.stdout.write(text)
    sys.stdout.flush()
    os._exit(0)  # nothing was written, so there is nothing to clean up


def _answer(request: dict[str, Any]) -> str:
    import duckdb

    _prepare_time_zones()
    seconds = request["seconds"]
    try:
        connection = connect_locked(
            Path(request["database"]), milliseconds=math.ceil(seconds * 1000), stand_ins=request["stand_ins"]
        )
    except duckdb.Error as error:
        raise _unopened(error, request["database"]) from error
    if request["identity"] not in (None, list(identity_of(Path(request["database"])) or ())):
        return json.dumps({"replaced": True})
    _drop_privileges(seconds)
    try:
        statement = _checked(connection, request)
        return _rows(connection, statement, request["parameters"], request["limit"])
    except duckdb.OutOfMemoryException as error:
        raise MemoryError from error
    except duckdb.InterruptException:
        return json.dumps({"late": True})
    except (duckdb.Error, RuntimeError, ValueError) as error:
        # DuckDB has no error class of its own for a block with a wrong checksum.
        if type(error) is duckdb.Error or isinstance(error, duckdb.SerializationException):
            text = str(error).splitlines()[0].rstrip(".")
            raise _Refused(f"{request['database']} is damaged ({text}).", _MENDED_BY) from error
        raise _wrong(error, lines_before=int("condition" in request)) from error


def _drop_privileges(seconds: float) -> None:
    """From here on, open no file or socket, write nothing, use bounded memory, and be killed at the time limit.

    The alarm kills the process whatever code is running.
    """
    signal.setitimer(signal.ITIMER_REAL, seconds + 0.5)
    lower_limits(AS=MOST_ADDRESS_SPACE, CPU=math.ceil(seconds * THREADS) + 5, FSIZE=0, CORE=0, NOFILE=0)


def _prepare_time_zones() -> None:
    """Make times with a zone readable once no file can be opened; the zone is always UTC here.

    DuckDB asks zoneinfo for it from version 2.0.1 on, and pytz, which need not be installed, before.
    """
    import contextlib
    import datetime
    import types
    import zoneinfo

    class Utc(datetime.tzinfo):
        def utcoffset(self, _: datetime.datetime | None) -> datetime.timedelta:
            return datetime.timedelta(0)

        dst = utcoffset

        def tzname(self, _: datetime.datetime | None) -> str:
            return "UTC"

        def localize(self, moment: datetime.datetime) -> datetime.datetime:
            return moment.replace(tzinfo=self)

    module = types.ModuleType("pytz")
    module.__dict__["timezone"] = lambda _: Utc()
    sys.modules["pytz"] = module
    for name in ("UTC", "Etc/UTC"):
        with contextlib.suppress(zoneinfo.ZoneInfoNotFoundError):
            zoneinfo.ZoneInfo(name)  # is kept from now on


def _checked(connection: duckdb.DuckDBPyConnection, request: dict[str, Any]) -> str:
    """The statement to run. Raises _Refused for anything but one SELECT that stays inside the atlas."""
    condition = request.get("condition")
    if condition is None:
        statement: str = request["statement"]
    else:
        statement = f"SELECT model_id FROM {_quoted(request['view'])} WHERE (\n{condition}\n) ORDER BY model_id"
    if len(statement) > MOST_STATEMENT:
        raise _Refused(f"The statement is longer than {MOST_STATEMENT:,} characters.", "Shorten it.")
    if condition is not None:
        # If text parses inside brackets of both kinds, it closes neither. So it is an expression (or a list, which
        # DuckDB refuses as a condition). Any other text is a syntax error inside one of the two.
        connection.extract_statements(f"SELECT [\n{condition}\n]")
    kinds = [_kind(parsed) for parsed in connection.extract_statements(statement)]
    if len(kinds) != 1:
        many = str(len(kinds)) if kinds else "none"
        raise _Refused(f"Expected one SELECT statement, got {many}.", "Give them one at a time." if kinds else "")
    if kinds[0] not in ("SELECT", "EXPLAIN"):
        raise _Refused(f"{_NO_SELECT}, not {kinds[0]}.", "The atlas can only be read.")
    explained = _EXPLAIN.sub("", statement, count=1) if kinds[0] == "EXPLAIN" else statement
    _refuse_outside_access(_tree(connection, explained))
    return statement


def _kind(statement: duckdb.Statement) -> str:
    try:
        name = str(statement.type.name)
    except ValueError:  # the client does not have a name for every kind that its parser accepts
        return "this"
    return "PIVOT" if name == "MULTI" else name.replace("_", " ")


def _tree(connection: duckdb.DuckDBPyConnection, statement: str) -> str:
    row = connection.execute("SELECT system.main.json_serialize_sql(?::VARCHAR)", [statement]).fetchone()
    tree = str(row[0]) if row else ""
    if not tree.startswith('{"error":false'):
        raise _Refused(f"{_NO_SELECT}.", "The atlas can only be read.")
    return tree


def _refuse_outside_access(tree: str) -> None:
    """Check the names in a parsed statement. Quotes inside its literals are escaped, so no name can be forged."""
    nodes = set(re.findall(r'"type":"([A-Z_]+_NODE)"', tree)) - _READING_NODES
    if nodes:
        raise _Refused(f"{_NO_SELECT}: a {sorted(nodes)[0].removesuffix('_NODE')} is hidden in it.", "")
    for name in re.findall(r'"(?:function_name|table_name)":"((?:[^"\\]|\\.)*)"', tree):
        if _OUTSIDE.fullmatch(name.lower()):
            raise _Refused(f"{name} is not available here: a statement can read only the atlas.", "")


def _rows(connection: duckdb.DuckDBPyConnection, statement: str, parameters: Any, limit: int | None) -> str:
    """The answer, as JSON; rows are fetched as they are needed, so a limit also bounds the work."""
    cursor = connection.execute(statement, parameters) if parameters else connection.execute(statement)
    columns = [column[0] for column in cursor.description or ()]
    types = [str(column[1]) for column in cursor.description or ()]
    rows: list[str] = []
    size = 0
    while limit is None or len(rows) <= limit:
        batch = cursor.fetchmany(100 if limit is None else min(100, limit + 1 - len(rows)))
        if not batch:
            break
        rows += (json.dumps([_plain(value) for value in row], allow_nan=False) for row in batch)
        size += sum(map(len, rows[-len(batch) :]))
        if size > _MOST_RESULT:
            raise _Refused(f"The result is larger than {_MOST_RESULT // 10**6} MB.", "Choose fewer columns or rows.")
    truncated = limit is not None and len(rows) > limit
    rows_text = ",".join(rows[:limit] if truncated else rows)
    answer = {"columns": columns, "types": types, "truncated": truncated}
    return f'{json.dumps(answer)[:-1]}, "rows": [{rows_text}]}}'


def _plain(value: Any) -> Any:
    """JSON's own types."""
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int):
        return value if value.bit_length() < 10_000 else hex(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "as_tuple"):  # a Decimal
        return _plain(int(value) if value == value.to_integral_value() else float(value))
    return str(value)


def _unopened(error: Exception, path: str) -> _Refused:
    text = str(error)
    if "lock" in text.lower():
        process = re.search(r"PID (\d+)", text)
        holder = f" (process {process[1]})" if process else ""
        return _Refused(f"{path} is open for writing in another program{holder}.", "Close it there and try again.")
    if not Path(path).exists():
        return _Refused(f"There is no database at {path}.", "Check `atlas`, or make one: ", ("build", "ID"))
    return _Refused(f"{path} cannot be read: {text.splitlines()[0]}.", _MENDED_BY)


def _wrong(error: Exception, lines_before: int) -> _Refused:
    """DuckDB's message on one line: the error, the suggestion and the location."""
    message, _, location = str(error).partition("\n\nLINE ")
    kind, colon, detail = message.partition(" Error: ")
    sentence = " ".join((detail if colon else message).split()).rstrip(".")
    if lines_before and sentence == 'syntax error at or near "]"':  # our own bracket
        return _Refused("the condition ends too early.", "Look for a missing bracket or value.")
    if "disabled by configuration" in sentence or "disabled through configuration" in sentence:
        return _Refused("Files, networks and extensions are out of reach here.", "Only the atlas can be read.")
    tables = ("Tables: ", ("sql", "SHOW TABLES"), "; columns: ", ("sql", "DESCRIBE models"), ".")
    return _Refused(
        f"{sentence}{_marked(location, lines_before)}{'' if sentence.endswith(('!', '?')) and not location else '.'}",
        *(tables if kind in ("Catalog", "Binder") else ()),
    )


def _marked(location: str, lines_before: int) -> str:
    """DuckDB's two lines "1: SELECT * FORM models" and "     ^^^^", as " (line 1: SELECT * >>FORM<< models)"."""
    lines = location.splitlines()
    if len(lines) < 2 or "^" not in lines[1]:
        return ""
    number, _, text = lines[0].partition(": ")
    line = int(number) - lines_before
    if line < 1:
        return ""
    column = lines[1].index("^") - len("LINE ") - len(number) - 2
    width, start = 0, 0
    while start < len(text) and width < column:  # the mark counts columns of a terminal
        width += 2 if unicodedata.east_asian_width(text[start]) in "WF" else 1
        start += 1
    stop = start + max(1, lines[1].count("^"))
    text_before = ("…" if start > 30 else "") + text[max(0, start - 30) : start]
    text_after = text[stop : stop + 30] + ("…" if len(text) > stop + 30 else "")
    return f" (line {line}: {text_before}>>{text[start:stop]}<<{text_after})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


if __name__ == "__main__":
    _serve()
