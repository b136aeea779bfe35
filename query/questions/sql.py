"""Untrusted SQL: one SELECT, in a process of its own that can neither write, nor use the network, nor run for ever.

Three barriers, each sufficient against most attacks:

1. DuckDB's parser must find one SELECT (or WITH, FROM, VALUES, TABLE, DESCRIBE, SHOW, SUMMARIZE, EXPLAIN) in
   which nothing writes or reads facts about this machine. This gives clear messages; it is not a protection.
2. The connection is read-only, without file systems, extensions or changeable settings (``connect_locked``).
3. The process (``query/shared/sandbox/process.py``, run as a script) opens the database and then sets system limits
   that cannot be raised again: no files, no sockets, no writing, and bounded memory and time. DuckDB cannot guarantee
   the last two: ``len(range(100000000))``, ``levenshtein`` of long strings and ``sleep_ms`` ignore interrupts and
   ``max_execution_time``, and ``repeat('x', 1000000000)`` takes twice its memory limit.
   It has none of our environment (tokens, home). Starting it costs about 0.15 s, nearly all of it importing duckdb.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from indexer.child_processes import bare_environment, start_child
from indexer.console.messages import say
from indexer.console.option import Argument, Option
from indexer.console.stdin import read_stdin, text_of
from indexer.errors import AtlasError, BadArgument, Call, Text
from query.contract.columns import Notes
from query.contract.options import ROWS_ON_A_TERMINAL, Limit
from query.contract.registry import Invocation, Tool, question
from query.contract.results import Doc, Listed
from query.shared import sandbox
from query.shared.sandbox.locked import MEMORY

if TYPE_CHECKING:
    from indexer.database.reading import Reading
    from query.models.reader import AtlasReader

_PROCESS = Path(sandbox.__file__).resolve().with_name("process.py")
Started = Callable[[subprocess.Popen[bytes]], None]
_prepared: list[subprocess.Popen[bytes]] = []
_CONDITION_SECONDS = 20.0
_COLUMNS_NAMED = 6
START_SECONDS = 10.0  # for the process to start on a busy machine, on top of the statement's own time


@dataclass(frozen=True, repr=False)
class SqlResult(Listed[dict[str, Any]]):
    """Rows of JSON's own types (times as ISO text, NaN as None); ``truncated``: there were more than the limit.

    Columns of the same name are numbered: ``name``, ``name_2``. ``types``: DuckDB's name of each column's
    type.
    """

    ROWS = "records"

    columns: Annotated[list[str], Doc("Names of the columns.")]
    rows: Annotated[
        list[list[Any]],
        Doc(
            "Rows of values in the order of the columns. Times are ISO 8601 in UTC; numbers that are not finite are "
            "null."
        ),
    ]
    truncated: Annotated[bool, Doc("Whether there is more than was returned.")]
    types: Annotated[list[str], Doc("DuckDB's name of each column's type.")] = field(default_factory=list)
    notes: Notes = ()

    @property
    def headline(self) -> str:
        """The number of rows, and the first columns."""
        count = f"the first {len(self.rows):,} rows" if self.truncated else f"{len(self.rows):,} rows"
        ellipsis = " …" if len(self.columns) > _COLUMNS_NAMED else ""
        return f"{count} of {', '.join(self.columns[:_COLUMNS_NAMED])}{ellipsis}"

    @property
    def records(self) -> list[dict[str, Any]]:
        """One dict per row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def write(self, path: str | Path) -> None:
        """Write the rows as .parquet, .csv, .json or .jsonl. Raises AtlasError for another suffix, or if it fails."""
        from query.contract.tables import write_rows

        types = [*self.types, *[""] * (len(self.columns) - len(self.types))]
        write_rows(path, self.to_rows(), dict(zip(self.columns, types, strict=True)))

    def frame_types(self) -> dict[str, str | None]:
        """Those that the statement gave: times are times, lists are lists."""
        return {name: _kind(type_) for name, type_ in zip_longest(self.columns, self.types, fillvalue="")}


# The types that pandas cannot infer from JSON.
_KINDS = {
    "DATE": "datetime64[us]",
    "TIMESTAMP": "datetime64[us]",
    "TIMESTAMP_S": "datetime64[us]",
    "TIMESTAMP_MS": "datetime64[us]",
    "TIMESTAMP_NS": "datetime64[us]",
    "TIMESTAMP WITH TIME ZONE": "datetime64[us, UTC]",
    "INTERVAL": "timedelta64[us]",
    "DOUBLE": "float64",
    "FLOAT": "float64",
}


def _kind(type_: str) -> str | None:
    return "float64" if type_.startswith("DECIMAL(") and not type_.endswith("]") else _KINDS.get(type_)


def run_sql(
    database: Path | Reading,
    statement: str,
    *,
    limit: int | None = 10_000,
    seconds: float = 30.0,
    parameters: Sequence[Any] | Mapping[str, Any] | None = None,
    started: Started | None = None,
) -> SqlResult:
    """Run one SELECT on a database; at most ``limit`` rows, within ``seconds`` of wall time.

    ``parameters`` fill in ``?`` (a sequence) or ``$name`` (a mapping). A file is not compared with schema.sql here:
    ``Reading`` does that. ``started`` is called with the statement's process, which another thread may kill. Raises
    AtlasError if the statement is not UTF-8, is not one SELECT, is wrong (DuckDB's own message, with the place), takes
    too long, needs too much memory, is killed, or the database cannot be opened.
    """
    statement = _as_utf8(statement, "The statement")
    request = {"statement": statement, "limit": limit, "seconds": seconds, "parameters": parameters}
    answer = _Question(database, request, started).answer()
    columns: dict[str, None] = {}
    for name in answer["columns"]:
        number = 1
        while (unique := name if number == 1 else f"{name}_{number}") in columns:
            number += 1
        columns[unique] = None
    return SqlResult(list(columns), answer["rows"], answer["truncated"], answer["types"])


def _command(
    call: Invocation,
    statement: str,
    limit: Limit = None,
    *,
    seconds: float,
    out: Annotated[
        str | None, Option("Write the rows to a file instead: .parquet, .csv, .json or .jsonl.", metavar="FILE")
    ] = None,
) -> None:
    if out is not None:
        from query.contract.figures import checked_output
        from query.contract.tables import FORMATS

        checked_output(out, FORMATS)
    elif limit is None and call.output == "table" and sys.stdout.isatty():
        limit = ROWS_ON_A_TERMINAL
    if statement == "-":
        from query.shared.sandbox.process import MOST_STATEMENT

        # UTF-8 in every locale. Other bytes stay as escapes, which are refused with a clear message.
        statement = text_of(read_stdin(4 * MOST_STATEMENT), "surrogateescape")
    with call.opened() as atlas:
        result = atlas.sql(statement, limit=limit, seconds=seconds)
        if out is not None:
            result.write(out)
            call.emit({"rows": len(result), "columns": result.columns, "file": out})
            return
        call.emit(result.to_rows(), columns=result.columns)
        if result.truncated:
            say(f"only the first {limit} rows are shown; for all: --limit N, --format csv, or a pipe")


@question(
    example='sql "SELECT model, downloads FROM models LIMIT 10"',
    agents=Tool(
        "Run one read-only SELECT (DuckDB) on the atlas, in a process that has access to nothing else.",
        ("statement", "limit", "seconds"),
    ),
    command=_command,
)
def sql(
    atlas: AtlasReader,
    statement: Annotated[str, Argument(agents="One SELECT (DuckDB). Start with SHOW TABLES, or DESCRIBE models.")],
    *,
    limit: Annotated[int | None, Option("Maximum number of rows.", least=1)] = 10_000,
    seconds: Annotated[float, Option("Time limit in seconds.", least=0.1, flag="--timeout")] = 30.0,
    parameters: Sequence[Any] | Mapping[str, Any] | None = None,
) -> SqlResult:
    """Run one SELECT statement; "-" reads it from stdin. For tables and columns: query schema.

    Note:
        ``limit``: the number of rows that are returned; None for all.
        ``seconds``: the time limit.
        ``parameters``: fill in ``?`` (a sequence) or ``$name`` (a mapping).

    Returns:
        See :func:`run_sql`, which runs it in a process of its own.

    Raises:
        AtlasError: the statement is not a SELECT, is wrong, takes too long, or needs too much memory.
    """
    return run_sql(atlas.connection, statement, limit=limit, seconds=seconds, parameters=parameters)


def asked_condition(
    database: Path | Reading, where: str, view: str = "models", *, started: Started | None = None
) -> Condition:
    """Ask for the model_id, ascending, of every row of ``view`` for which the condition ``where`` holds.

    The condition can do no more than a SELECT, and must be one expression: text that would end the WHERE clause is
    refused. The caller must take the answer or abandon it. Raises AtlasError if the condition is empty.
    """
    where = _as_utf8(where, "`where`")
    if not where.strip():
        raise BadArgument(
            "`where` is empty.", Text("Give a condition, e.g. ", Call(where="downloads > 100 AND author <> 'x'"), ".")
        )
    request = {"condition": where, "view": view, "limit": None, "seconds": _CONDITION_SECONDS, "parameters": None}
    return Condition(database, request, started)


def _as_utf8(text: str, subject: str) -> str:
    """``text`` as it was typed: in the C locale, Python decodes every byte above 127 as an escape (PEP 383).

    Raises AtlasError if the bytes are not UTF-8.
    """
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError as error:
        raise AtlasError(f"{subject} is not UTF-8.", "Save it as UTF-8, or type it in a terminal that is.") from error


def prepare() -> None:
    """Start the process of the next statement now, while the caller opens the atlas.

    If it is never used, it ends with this process, which closes its input.
    """
    _prepared.append(_started())


def _started() -> subprocess.Popen[bytes]:
    return start_child(
        [sys.executable, "-P", str(_PROCESS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=_PROCESS.anchor,
        env=bare_environment(),
    )


class _Question:
    """A request to a process of its own about a database. Raises AtlasError if it cannot be sent."""

    def __init__(self, database: Path | Reading, request: dict[str, Any], started: Started | None = None) -> None:
        self._database, self._request, self._seconds = database, request, request["seconds"]
        self._on_start = started
        if not (math.isfinite(self._seconds) and self._seconds > 0):
            raise AtlasError(f"{self._seconds} s is not a valid time limit.", "Give a number of seconds above 0.")
        self._send(is_replaced=False)

    def _send(self, *, is_replaced: bool) -> None:
        """Start a process with the request. ``is_replaced``: another file has the name of this database now."""
        if isinstance(self._database, Path):
            opened: dict[str, Any] = {"database": str(self._database.absolute()), "stand_ins": [], "identity": None}
        else:
            file = self._database.file_for_others(is_replaced=is_replaced)
            identity = self._database.identity if file == self._database.path else None
            opened = {"database": str(file.absolute()), "stand_ins": self._database.stand_ins, "identity": identity}
        try:
            question = json.dumps({**self._request, **opened}).encode()
        except (TypeError, ValueError) as error:
            raise AtlasError(
                f"A parameter cannot be passed to the process: {error}.", "Give text, numbers, booleans or None."
            ) from error
        try:
            self._process = _prepared.pop()
        except IndexError:
            self._process = _started()
        if self._on_start is not None:
            self._on_start(self._process)
        assert self._process.stdin is not None
        try:
            with self._process.stdin as stdin:
                stdin.write(question)
        except BrokenPipeError:
            pass  # the process has ended; ``answer`` says why
        except BaseException:
            self.abandon()
            raise
        self._process.stdin = None  # as ``communicate`` expects it without input

    def answer(self) -> dict[str, Any]:
        """Wait for the answer. Raises AtlasError if it is an error or too late."""
        answer = self._received()
        if answer.get("replaced"):
            self._send(is_replaced=True)
            answer = self._received()
        if answer.get("late"):
            raise _too_long(self._seconds)
        if answer.get("large"):
            raise _too_much()
        if "error" in answer:
            hint_parts = answer.get("hint", [])  # texts, and calls as a function with its arguments
            hint = Text(*(part if isinstance(part, str) else Call(part[0], *part[1:]) for part in hint_parts))
            raise AtlasError(answer["error"], hint)
        return answer

    def _received(self) -> dict[str, Any]:
        try:
            output, complaint = self._process.communicate(timeout=self._seconds + START_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise _too_long(self._seconds) from error
        finally:
            self.abandon()
        try:
            answer: dict[str, Any] = json.loads(output)
        except ValueError as error:
            raise _ended_early(self._process.returncode, complaint, self._seconds) from error
        return answer

    def abandon(self) -> None:
        """Kill the process if it is still running: it took too long, or its answer is no longer needed (Ctrl-C)."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


class Condition(_Question):
    """A condition that a separate process evaluates while the caller does other things."""

    def model_ids(self) -> list[int]:
        """Wait for the ids. Raises AtlasError as ``run_sql`` does."""
        where = self._request["condition"]
        shown = where if len(where) <= 80 else where[:77] + "…"
        try:
            return [row[0] for row in self.answer()["rows"]]
        except AtlasError as error:
            message = f"`where` {shown!r}: {error.message}"
            is_late = isinstance(error, _TooLong)
            hint = Text("Narrow it, or use ", Call("sql", "SELECT …"), ".") if is_late else error.hint
            raise AtlasError(message, hint) from error


def _ended_early(code: int, complaint: bytes, seconds: float) -> AtlasError:
    """The error for a process that ended without an answer."""
    if -code in (getattr(signal, "SIGALRM", None), getattr(signal, "SIGXCPU", None)):
        return _too_long(seconds)
    if code < 0:
        return _too_much()
    last = complaint.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
    return AtlasError(f"The process for the statement did not start: {last[0]}.", "Run with --debug.")


class _TooLong(AtlasError):
    """A statement that was ended at its time limit."""


def _too_long(seconds: float) -> AtlasError:
    return _TooLong(f"The statement took longer than {seconds:g} s.", "Narrow it, or raise `seconds`.")


def _too_much() -> AtlasError:
    return AtlasError(f"The statement needs more than the {MEMORY} of memory it may have.", "Narrow it, or aggregate.")
