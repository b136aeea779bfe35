"""The gate for databases that somebody else made (`index pull`, `index merge`, hf://): only rows pass it.

The catalog of the file must match schema.sql (``catalog.examine``). The rows of its tables are copied into an empty
database of our own, so its views, macros, comments and free blocks are left behind. Each value is checked: its type and
whether it may be null by DuckDB, its bounds by ``validation``, ids by ``names``. The copy is as safe as a database that
this user published.

A process of its own makes the copy, with bounded memory, time and file size: a small file can hold values that become
large, and DuckDB can crash on a damaged file. That process runs this module as a script.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexer.atlas import schema_sql
from indexer.child_processes import bare_environment, end_with_parent, kill_after, lower_limits, start_child
from indexer.database.catalog import empty_database, examine, refuse
from indexer.database.connection import Connection, translated_errors
from indexer.database.secure_connection import NAME, attached, attached_for_writing, quoted, use
from indexer.database.validation import MOST_CHARACTERS, MOST_ITEMS, Kind, columns, problem_of
from indexer.errors import AtlasError
from indexer.sources.registry import is_model_id
from indexer.storage.checksums import file_sha256, user_cache
from indexer.storage.own_files import read_own, write_own
from indexer.untrusted import printable

if TYPE_CHECKING:
    import duckdb

# Limits of the process. A file that it writes is the new database, or what DuckDB spills.
_MEMORY, _THREADS = "1GB", 2
_MOST_ADDRESS_SPACE = 4 << 30
_LEAST_SECONDS, _BYTES_A_SECOND = 120.0, 1 << 20
_LEAST_BYTES, _GROWTH = 256 << 20, 3

# Increased when the gate refuses more than before: databases that passed before are then copied again.
_VERSION = 1
_MOST_MEMORY, _MOST_REMEMBERED = 1 << 20, 1_000

_FOREIGN = "published"  # the name of the attached file
_ASK = "Ask its publisher, or rebuild it from its records: index rebuild"
# People and agents read these ids, so a sentence instead of an id could mislead them.
_IDS = {("bases", "base"): "base", ("bases", "aliases"): "unnest(aliases)", ("fine_tunes", "base"): "base",
        ("fine_tunes", "model"): "model"}  # fmt: skip


def admit(source: Path, target: Path) -> None:
    """Copy the rows of ``source``, a database of somebody else, into the new file ``target`` of the same folder.

    Raises AtlasError, one line, and leaves no ``target``, if the file is damaged, is not what schema.sql makes, holds a
    value that its column cannot hold (the line names table and column), or needs too much memory, time or space.
    Raises OSError if the disk is full.
    """
    size = source.stat().st_size
    request = {
        "source": str(source.absolute()),
        "target": str(target.absolute()),
        "seconds": _LEAST_SECONDS + size / _BYTES_A_SECOND,
        "bytes": _LEAST_BYTES + _GROWTH * size,
    }
    is_complete = False
    _remove(target)  # left by a process that was killed
    try:
        target.write_bytes(empty_database())
        answer = _answer_to(request)
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]), str(target))
        if "error" in answer:
            raise AtlasError(answer["error"], answer["hint"])
        is_complete = True
    finally:
        if not is_complete:
            _remove(target)


def _remove(target: Path) -> None:
    for path in (target, target.with_name(f"{target.name}.wal")):
        path.unlink(missing_ok=True)
    shutil.rmtree(_spill(target), ignore_errors=True)


def _spill(target: Path) -> Path:
    return target.with_name(f"{target.name}.spill")


def check_tables(connection: Connection, tables: Collection[str]) -> None:
    """Check the values of some tables in place, in an open database of somebody else.

    Raises AtlasError that names table and column, as ``admit`` does.
    """
    cursor, give_back = connection.cursor()
    try:
        with translated_errors(connection.path):
            for table in tables:
                if problem := _odd_value(cursor, NAME, "main", table, MOST_ITEMS):
                    raise AtlasError(f"{connection.path} is refused: {problem}.", _ASK)
    finally:
        give_back(cursor)


def tables_of(connection: duckdb.DuckDBPyConnection) -> list[tuple[str, str]]:
    """Schema and name of every table of the database that is attached as NAME."""
    return connection.execute(
        f"SELECT schema_name, table_name FROM system.main.duckdb_tables() WHERE database_name = '{NAME}' ORDER BY ALL"
    ).fetchall()


def copy_table(
    connection: duckdb.DuckDBPyConnection, source: str, schema: str, table: str, rows: str = "FROM {}"
) -> None:
    """Copy a table of the attached database ``source`` into the database NAME; it looks up no other name of ``source``.

    ``rows``: the SELECT of the rows to copy, in which {} stands for the table in ``source``. Raises duckdb.Error.
    """
    name = f'"{schema}"."{table}"'
    connection.execute(f"INSERT INTO {NAME}.{name} BY NAME {rows.replace('{}', f'{source}.{name}')}")


def was_admitted(source_sha256: str, database: Path) -> bool:
    """Whether ``admit`` made ``database`` from a file with that sha256, by this user's cache."""
    with suppress(OSError):
        return _remembered().get(_key(source_sha256)) == file_sha256(database)
    return False


def remember_admitted(source_sha256: str, database: Path) -> None:
    """Remember that ``admit`` made ``database`` from a file with that sha256. Without a cache it is made again."""
    with suppress(OSError, RuntimeError):
        memory = [*_remembered().items(), (_key(source_sha256), file_sha256(database))]
        write_own(_memory(), json.dumps(dict(memory[-_MOST_REMEMBERED:])).encode(), sync=False)


def _key(source_sha256: str) -> str:
    return hashlib.sha256(f"{_VERSION} {source_sha256} {schema_sql()}".encode()).hexdigest()


def _memory() -> Path:
    return user_cache() / "admitted.json"


def _remembered() -> dict[str, str]:
    try:
        memory = json.loads(read_own(_memory(), _MOST_MEMORY))
        return memory if isinstance(memory, dict) else {}
    except (OSError, ValueError, RuntimeError):
        return {}


def _answer_to(request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of the process: empty, an ``error`` with its ``hint``, or an ``errno``. Raises AtlasError."""
    process = start_child(
        [sys.executable, "-P", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).anchor,
        env=bare_environment(),
    )
    try:
        output, complaint = process.communicate(json.dumps(request).encode())
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    try:
        answer: dict[str, Any] = json.loads(output)
    except ValueError as error:
        source, code = request["source"], -process.returncode
        if code in (signal.SIGALRM, signal.SIGXCPU):
            raise AtlasError(f"{source} takes longer than {request['seconds']:.0f} s to read.", _ASK) from error
        if code > 0:
            raise AtlasError(f"{source} is damaged: reading it ends in {signal.Signals(code).name}.", _ASK) from error
        last = complaint.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
        raise AtlasError(f"The process to read {source} failed: {last[0]}.", "Run with --debug.") from error
    return answer


def _serve() -> None:
    """Answer one request: JSON on stdin, JSON on stdout."""
    end_with_parent()
    import duckdb

    request = json.load(sys.stdin)
    source = Path(request["source"])
    kill_after(request["seconds"])
    lower_limits(AS=_MOST_ADDRESS_SPACE, FSIZE=request["bytes"], CORE=0)
    answer: dict[str, Any] = {}
    try:
        with translated_errors(source):
            _copy(source, Path(request["target"]))
    except AtlasError as error:
        cause = error.__cause__
        answer = {"error": error.message, "hint": error.hint}
        if isinstance(cause, duckdb.OutOfMemoryException):
            answer = {"error": f"{source} needs more than {_MEMORY} of memory to read.", "hint": _ASK}
        elif "File too large" in str(cause):
            answer = {"error": f"{source} holds more than {request['bytes'] >> 20} MB.", "hint": _ASK}
    except MemoryError:
        answer = {"error": f"{source} needs more than {_MOST_ADDRESS_SPACE >> 30} GB of memory to read.", "hint": _ASK}
    except OSError as error:
        answer = {"errno": error.errno}
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # everything is on the disk


def _copy(source: Path, target: Path) -> None:
    import duckdb

    settings = [f"SET memory_limit = '{_MEMORY}'", f"SET threads = {_THREADS}"]
    with attached(source, settings=settings) as connection:
        refuse(source, examine(connection, source))
    most_items = max(MOST_ITEMS, source.stat().st_size)
    settings.append(f"SET temp_directory = {quoted(_spill(target))}")
    with attached_for_writing(target, settings=settings, others={_FOREIGN: source}) as connection:
        use(connection)
        connection.execute("BEGIN")
        for schema, table in tables_of(connection):
            try:
                copy_table(connection, _FOREIGN, schema, table)
                problem = _odd_value(connection, NAME, schema, table, most_items)
            except (duckdb.ConstraintException, duckdb.InvalidInputException) as error:
                # DuckDB does not say which column it is.
                connection.execute("ROLLBACK")
                problem = _odd_value(connection, _FOREIGN, schema, table, most_items) or f"{table}: {error}"
            if problem:
                raise AtlasError(f"{source} is refused: {printable(problem, 300)}.", _ASK)
        connection.execute("COMMIT")
        connection.execute("CHECKPOINT")


def _odd_value(
    connection: duckdb.DuckDBPyConnection, database: str, schema: str, table: str, most_items: int
) -> str | None:
    """A column of a table with a value that this program would not have stored, and that value; None if all are valid.

    Lists in the schema internal may be as long as ``most_items``; a difference that was not measured is infinite there.
    """
    is_internal = schema != "main"
    items = most_items if is_internal else MOST_ITEMS
    name = f'{database}."{schema}"."{table}"'
    kinds = {column: kind for column, (kind, _) in columns()[table].items()}
    checks = [
        (column, "null", f'"{column}" IS NULL')
        for column, (_, is_nullable) in columns()[table].items()
        if not is_nullable
    ]
    checks += [
        (column, words, condition)
        for column, kind in kinds.items()
        for words, condition in _conditions(kind, f'"{column}"', items, may_be_infinite=is_internal)
    ]
    if checks:
        counts = ", ".join(f"count(*) FILTER ({condition})" for _, _, condition in checks)
        fault_counts = connection.execute(f"SELECT {counts} FROM {name}").fetchall()[0]
        for (column, words, _), count in zip(checks, fault_counts, strict=True):
            if count:
                return f"{table}.{column} holds {words}"
    for column, kind in kinds.items():
        if kind.name == "json":
            rows = connection.execute(f'SELECT DISTINCT "{column}" FROM {name} WHERE "{column}" IS NOT NULL').fetchall()
            if problem := problem_of(kind, [str(value) for (value,) in rows]):
                return f"{table}.{column} holds {problem}"
        if (ids := _IDS.get((table, column))) is not None:
            for (value,) in connection.execute(f"SELECT DISTINCT {ids} FROM {name}").fetchall():
                if value is None or not is_model_id(value):
                    return f"{table}.{column} holds {printable(str(value), 60)!r}, which is not a valid id of a model"
    return None


def _conditions(
    kind: Kind, value: str, most_items: int, depth: int = 0, *, may_be_infinite: bool
) -> Iterator[tuple[str, str]]:
    """The faults that a value of this type may have, in words and as a condition on the SQL expression ``value``.

    These are the bounds of ``validation``, which would take too long for millions of values. ``depth``: the number of
    lists around the value.
    """
    if kind.name == "list":
        yield f"a list of more than {most_items:,} items", f"len({value}) > {most_items}"
        (inner,) = kind.inner.values()
        item = f"item_{depth}"
        for words, condition in _conditions(inner, item, most_items, depth + 1, may_be_infinite=may_be_infinite):
            yield words, f"len(list_filter({value}, lambda {item}: {condition})) > 0"
    elif kind.name == "struct":
        for field, inner in kind.inner.items():
            part = f'{value}."{field}"'
            yield from _conditions(inner, part, most_items, depth, may_be_infinite=may_be_infinite)
    elif kind.name in ("float", "double"):
        yield "a number that is not finite", f"isnan({value})" if may_be_infinite else f"NOT isfinite({value})"
    elif kind.name == "timestamp":
        yield "a time that is no date", f"NOT isfinite({value}) OR year({value}) NOT BETWEEN 1 AND 9999"
    elif kind.name == "varchar":
        yield f"a text of more than {MOST_CHARACTERS:,} characters", f"length({value}) > {MOST_CHARACTERS}"
        yield "a text with a zero byte", f"contains({value}, chr(0))"
        yield "a text that is not UTF-8", f"{value} IS NOT NULL AND try(decode(encode({value}))) IS NULL"


if __name__ == "__main__":
    _serve()
