"""SQL from strangers: one SELECT, in a process of its own that can neither write, reach out nor run for ever.

Three walls, each enough for most of what a statement could try:

1. DuckDB's parser must find one SELECT (or WITH, FROM, VALUES, TABLE, DESCRIBE, SHOW, SUMMARIZE, EXPLAIN) in
   which nothing writes and nothing asks about this machine. This is for clear messages; it is no lock.
2. The connection is read-only, without file systems, extensions or changeable settings (``connect_locked``).
3. The process (this file, run as a script) opens the database and then gives up, by system limits that cannot be
   raised again, opening any file or socket, writing any file, more memory, and life beyond its time. DuckDB
   cannot promise the last two: ``len(range(100000000))``, ``levenshtein`` of long strings and ``sleep_ms`` hear
   neither an interrupt nor ``max_execution_time``, and ``repeat('x', 1000000000)`` takes twice its memory limit.
   It has none of our environment (tokens, home). Starting it costs about 0.15 s, nearly all of it importing duckdb.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexer.errors import AtlasError

if TYPE_CHECKING:
    import duckdb

MEMORY = "1GB"
THREADS = 2
MOST_ADDRESS_SPACE = 3 << 30  # MEMORY, as much again while rows are handed over, and what duckdb maps at rest
MOST_STATEMENT = 1_000_000  # characters
MOST_RESULT = 64_000_000  # bytes of JSON
CONDITION_SECONDS = 20.0
START_SECONDS = 10.0  # for the process to start on a busy machine, on top of the statement's own time

# In this order: each takes away what the one before could be undone with. Read-only and no external access alone
# leave the database's own files writable paths for COPY; without a local file system there are no paths at all.
_LOCKS = (
    f"SET memory_limit = '{MEMORY}'",
    f"SET threads = {THREADS}",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET python_enable_replacements = false",
    "SET temp_directory = ''",
    "SET secret_directory = ''",
    "SET allow_persistent_secrets = false",
    "SET TimeZone = 'UTC'",
    "SET enable_external_access = false",
    "SET disabled_filesystems = 'LocalFileSystem'",
    "SET lock_configuration = true",
)
_one_at_a_time = threading.Lock()


@dataclass(frozen=True)
class SqlResult:
    """Rows of JSON's own types (times as ISO text, NaN as None); ``truncated``: there were more than the limit.

    Columns of one name are told apart by a number: ``name``, ``name_2``.
    """

    columns: list[str]
    rows: list[list[Any]]
    truncated: bool

    def as_dicts(self) -> list[dict[str, Any]]:
        """One dict per row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def to_df(self) -> Any:
        """A pandas DataFrame. Raises AtlasError where pandas is not installed."""
        try:
            import pandas
        except ImportError as error:
            raise AtlasError("pandas is not installed.", "pip install pandas") from error
        return pandas.DataFrame(self.rows, columns=self.columns)


def run_sql(
    database: Path,
    statement: str,
    *,
    limit: int | None = 10_000,
    seconds: float = 30.0,
    parameters: Sequence[Any] | Mapping[str, Any] | None = None,
) -> SqlResult:
    """Run one SELECT on a database; at most ``limit`` rows, within ``seconds`` of wall time.

    ``parameters`` fill in ``?`` (a sequence) or ``$name`` (a mapping). Raises AtlasError where the statement is
    not one SELECT, is wrong (DuckDB's own message, with the place), takes too long, needs too much memory, or the
    database cannot be opened.
    """
    request = {"database": str(Path(database).absolute()), "statement": statement, "limit": limit}
    answer = _ask_process({**request, "seconds": seconds, "parameters": parameters})
    return SqlResult(_told_apart(answer["columns"]), answer["rows"], answer["truncated"])


def check_condition(database: Path, where: str, view: str = "models") -> list[int]:
    """The model_id, ascending, of every row of ``view`` for which the condition ``where`` holds.

    The condition gets no more power than a SELECT, and must be one expression: what would end the WHERE clause
    and go on is refused. Raises AtlasError as ``run_sql`` does.
    """
    shown = where if len(where) <= 80 else where[:77] + "…"
    if not where.strip():
        raise AtlasError("--where is empty.", "Give a condition, e.g. --where \"downloads > 100 AND author <> 'x'\".")
    request = {"database": str(Path(database).absolute()), "condition": where, "view": view, "limit": None}
    try:
        answer = _ask_process({**request, "seconds": CONDITION_SECONDS, "parameters": None})
    except AtlasError as error:
        message = f"--where {shown!r}: {error.message}"
        raise AtlasError(message, error.hint.replace("raise --timeout", "use `query sql`")) from error
    return [row[0] for row in answer["rows"]]


def connect_locked(path: Path, *, milliseconds: int = 0) -> duckdb.DuckDBPyConnection:
    """Open a database read-only and lock everything else away; ``milliseconds`` a statement may take, 0: any.

    Connections of one process to one file share their settings: the first locks them for all. Raises
    duckdb.IOException where another process has the file open for writing, duckdb.Error where it is no database.
    """
    import duckdb

    with _one_at_a_time:
        # Settings come after: a connection made with some would shut out the plain ones of this process.
        connection = duckdb.connect(str(path), read_only=True)
        try:
            locked = connection.execute("SELECT current_setting('lock_configuration')").fetchone()
            if locked != (True,):
                if milliseconds and _knows(connection, "max_execution_time"):
                    connection.execute(f"SET max_execution_time = {int(milliseconds)}")
                for lock in _LOCKS:
                    connection.execute(lock)
        except duckdb.Error:
            connection.close()
            raise
    return connection


def _knows(connection: duckdb.DuckDBPyConnection, setting: str) -> bool:
    found = connection.execute("SELECT 1 FROM duckdb_settings() WHERE name = ?", [setting])
    return found.fetchone() is not None


def _told_apart(names: Sequence[str]) -> list[str]:
    taken: dict[str, None] = {}
    for name in names:
        number = 1
        while (other := name if number == 1 else f"{name}_{number}") in taken:
            number += 1
        taken[other] = None
    return list(taken)


# ---- asking the process ----


def _ask_process(request: dict[str, Any]) -> dict[str, Any]:
    seconds = request["seconds"]
    if not (math.isfinite(seconds) and seconds > 0):
        raise AtlasError(f"A time limit of {seconds} s makes no sense.", "Give a number of seconds above 0.")
    try:
        question = json.dumps(request).encode()
    except (TypeError, ValueError) as error:
        raise AtlasError(
            f"A parameter cannot be handed over: {error}.", "Give text, numbers, booleans or None."
        ) from error
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(Path(__file__).resolve())],
            input=question,
            capture_output=True,
            timeout=seconds + START_SECONDS,
            check=False,
            cwd=Path(__file__).resolve().anchor,
            env=_bare_environment(),
        )
    except subprocess.TimeoutExpired as error:
        raise _too_long(seconds) from error
    answer = _answer_in(done.stdout)
    if answer is None:
        raise _death(done.returncode, done.stderr, seconds)
    if answer.get("late"):
        raise _too_long(seconds)
    if "error" in answer:
        raise AtlasError(answer["error"], answer.get("hint", ""))
    return answer


def _answer_in(output: bytes) -> dict[str, Any] | None:
    try:
        answer: dict[str, Any] = json.loads(output)
    except ValueError:
        return None
    return answer


def _death(code: int, complaint: bytes, seconds: float) -> AtlasError:
    """The process was ended by the system, or by itself before it could answer."""
    if -code in (getattr(signal, "SIGALRM", None), getattr(signal, "SIGXCPU", None)):
        return _too_long(seconds)
    if code < 0:
        return _too_much()
    last = complaint.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
    return AtlasError(f"The process for the statement did not start: {last[0]}.", "Run with --debug.")


def _too_long(seconds: float) -> AtlasError:
    return AtlasError(f"The statement took longer than {seconds:g} s.", "Narrow it, or raise --timeout.")


def _too_much() -> AtlasError:
    return AtlasError(f"The statement needs more than the {MEMORY} of memory it may have.", "Narrow it, or aggregate.")


def _bare_environment() -> dict[str, str]:
    """What a Python needs to start and to find the same packages; no tokens, no home."""
    kept = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "SYSTEMROOT", "PATH", "LANG")
    bare = {name: os.environ[name] for name in kept if name in os.environ}
    return bare | {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}


# ---- in the process ----

# Statements in the shape of a SELECT can hold others in a WITH.
_READING_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
# These tell of the machine (paths, settings, secrets, logs), build statements out of text, or only waste time.
_OUTSIDE = re.compile(
    r"duckdb_(databases|settings|secrets|extensions|logs\w*|log_contexts|external_\w+|temporary_files)|pg_settings"
    r"|\w*database_list|current_setting|which_secret|getenv|\w*external_resource\w*|write_log|truncate_duckdb_logs"
    r"|query|query_table|json_execute_serialized_sql|sleep_ms|pg_sleep"
)
_EXPLAIN = re.compile(r"\s*EXPLAIN(\s+ANALYZE)?(\s*\([^()]*\))?\s+", re.IGNORECASE)
_NO_SELECT = "Only one SELECT (or WITH, FROM, VALUES, DESCRIBE, SHOW, SUMMARIZE, EXPLAIN) runs here"


class _Refused(Exception):
    def __init__(self, error: str, hint: str = "") -> None:
        super().__init__(error)
        self.answer = {"error": error, "hint": hint}


def _serve() -> None:
    """Answer one request: JSON on stdin, JSON on stdout."""
    request = json.load(sys.stdin)
    try:
        text = _answer(request)
    except _Refused as refused:
        text = json.dumps(refused.answer)
    except (MemoryError, RecursionError):
        text = json.dumps({"error": _too_much().message, "hint": _too_much().hint})
    sys.stdout.write(text)
    sys.stdout.flush()
    os._exit(0)  # nothing to tidy up: nothing was written


def _answer(request: dict[str, Any]) -> str:
    import duckdb

    _stand_in_for_pytz()
    seconds = request["seconds"]
    try:
        connection = connect_locked(Path(request["database"]), milliseconds=math.ceil(seconds * 1000))
    except duckdb.Error as error:
        raise _unopened(error, request["database"]) from error
    _give_up_powers(seconds)
    try:
        statement = _checked(connection, request)
        return _rows(connection, statement, request["parameters"], request["limit"])
    except duckdb.OutOfMemoryException as error:
        raise MemoryError from error
    except duckdb.InterruptException:
        return json.dumps({"late": True})
    except (duckdb.Error, RuntimeError, ValueError) as error:
        raise _wrong(error, lines_before=int("condition" in request)) from error


def _give_up_powers(seconds: float) -> None:
    """From here on: no file or socket is opened, nothing written, memory bounded, and a death at the time limit.

    The alarm's death needs no co-operation of whatever is running.
    """
    try:
        import resource
    except ImportError:  # not on Windows: there the parent's clock remains
        return
    signal.setitimer(signal.ITIMER_REAL, seconds + 0.5)
    processor_seconds = math.ceil(seconds * THREADS) + 5
    for limit, most in (
        (resource.RLIMIT_AS, MOST_ADDRESS_SPACE),
        (resource.RLIMIT_CPU, processor_seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        resource.setrlimit(limit, (most, most))


def _stand_in_for_pytz() -> None:
    """Let times with a zone be fetched: duckdb asks pytz for the zone, which is always UTC here."""
    import datetime
    import types

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
        # What fits into brackets of both kinds closes neither: it is one expression (or a list, which is no
        # condition, as DuckDB will say). Anything else is a syntax error in one of them.
        connection.extract_statements(f"SELECT [\n{condition}\n]")
    kinds = [_kind(one) for one in connection.extract_statements(statement)]
    if len(kinds) != 1:
        many = f"{len(kinds)} statements were given" if kinds else "No statement was given"
        raise _Refused(f"{many}: one SELECT is asked for.", "Give them one at a time." if kinds else "")
    if kinds[0] not in ("SELECT", "EXPLAIN"):
        raise _Refused(f"{_NO_SELECT}, not {kinds[0]}.", "The atlas can only be read.")
    explained = _EXPLAIN.sub("", statement, count=1) if kinds[0] == "EXPLAIN" else statement
    _refuse_what_reaches_out(_tree(connection, explained))
    return statement


def _kind(statement: duckdb.Statement) -> str:
    try:
        name = str(statement.type.name)
    except ValueError:  # the client has no name for everything its parser knows
        return "this"
    return "PIVOT" if name == "MULTI" else name.replace("_", " ")


def _tree(connection: duckdb.DuckDBPyConnection, statement: str) -> str:
    found = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [statement]).fetchone()
    tree = str(found[0]) if found else ""
    if not tree.startswith('{"error":false'):
        raise _Refused(f"{_NO_SELECT}.", "The atlas can only be read.")
    return tree


def _refuse_what_reaches_out(tree: str) -> None:
    """Look at the names in a parsed statement; inside its literals quotes are escaped, so none can be forged."""
    nodes = set(re.findall(r'"type":"([A-Z_]+_NODE)"', tree)) - _READING_NODES
    if nodes:
        raise _Refused(f"{_NO_SELECT}: a {sorted(nodes)[0].removesuffix('_NODE')} is hidden in it.", "")
    for name in re.findall(r'"(?:function_name|table_name)":"((?:[^"\\]|\\.)*)"', tree):
        if _OUTSIDE.fullmatch(name.lower()):
            raise _Refused(f"{name} is not available here: a statement sees the atlas and nothing else.", "")


def _rows(connection: duckdb.DuckDBPyConnection, statement: str, parameters: Any, limit: int | None) -> str:
    """The answer, as JSON; rows are fetched as they are needed, so a limit also bounds the work."""
    cursor = connection.execute(statement, parameters) if parameters else connection.execute(statement)
    columns = [column[0] for column in cursor.description or ()]
    rows: list[str] = []
    size = 0
    while limit is None or len(rows) <= limit:
        batch = cursor.fetchmany(100 if limit is None else min(100, limit + 1 - len(rows)))
        if not batch:
            break
        rows += (json.dumps([_plain(value) for value in row], allow_nan=False) for row in batch)
        size += sum(map(len, rows[-len(batch) :]))
        if size > MOST_RESULT:
            raise _Refused(f"The result is larger than {MOST_RESULT // 10**6} MB.", "Choose fewer columns or rows.")
    truncated = limit is not None and len(rows) > limit
    kept = ",".join(rows[:limit] if truncated else rows)
    return f'{{"columns": {json.dumps(columns)}, "rows": [{kept}], "truncated": {json.dumps(truncated)}}}'


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
        return _Refused(f"There is no database at {path}.", "Check --atlas, or make one: index build")
    return _Refused(f"{path} cannot be read: {text.splitlines()[0]}.", "Make it again: index rebuild")


def _wrong(error: Exception, lines_before: int) -> _Refused:
    """DuckDB's message on one line: what is wrong, what it suggests, and where."""
    message, _, place = str(error).partition("\n\nLINE ")
    kind, colon, rest = message.partition(" Error: ")
    sentence = " ".join((rest if colon else message).split()).rstrip(".")
    if lines_before and sentence == 'syntax error at or near "]"':  # our own bracket
        return _Refused("the condition ends too early.", "Look for a missing bracket or value.")
    if "disabled by configuration" in sentence or "disabled through configuration" in sentence:
        return _Refused("Files, networks and extensions are out of reach here.", "Only the atlas can be read.")
    hint = (
        'Tables: query sql "SHOW TABLES"; columns: query sql "DESCRIBE models".'
        if kind in ("Catalog", "Binder")
        else ""
    )
    return _Refused(
        f"{sentence}{_marked(place, lines_before)}{'' if sentence.endswith(('!', '?')) and not place else '.'}", hint
    )


def _marked(place: str, lines_before: int) -> str:
    """DuckDB's two lines "1: SELECT * FORM models" and "     ^^^^", as " (line 1: SELECT * >>FORM<< models)"."""
    lines = place.splitlines()
    if len(lines) < 2 or "^" not in lines[1]:
        return ""
    number, _, text = lines[0].partition(": ")
    line = int(number) - lines_before
    if line < 1:
        return ""
    wanted = lines[1].index("^") - len("LINE ") - len(number) - 2
    width, start = 0, 0
    while start < len(text) and width < wanted:  # the mark counts columns of a terminal
        width += 2 if unicodedata.east_asian_width(text[start]) in "WF" else 1
        start += 1
    stop = start + max(1, lines[1].count("^"))
    before = ("…" if start > 30 else "") + text[max(0, start - 30) : start]
    after = text[stop : stop + 30] + ("…" if len(text) > stop + 30 else "")
    return f" (line {line}: {before}>>{text[start:stop]}<<{after})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


if __name__ == "__main__":
    _serve()
