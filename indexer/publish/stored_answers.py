"""Stored answers: the lineage, the predictions and the sources of conversions that an atlas keeps.

Nothing in ``atlas.duckdb`` may be the only copy, so the database of each base keeps the answers beside its listing.
An answer is a JSON object with its models and the records it was computed from. The table is made from the answers
whose records are still current: a model that was read again has no stored answer until it is computed again. A pulled
atlas has the answers as files of JSON lines, as long as it is not adopted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from indexer.atlas import AtlasFolder
from indexer.database.reading import EarlierRows, Reading
from indexer.database.validation import valid_rows
from indexer.errors import WRONG_KINDS, AtlasError
from indexer.listing.base_database import base_database, plain
from indexer.publish.staging import staged_publish
from indexer.publish.tables import Row, Tables
from indexer.storage.checksummed_jsonl import LineReader
from indexer.storage.small_database import SmallTables
from indexer.untrusted import load_json

Line = dict[str, Any]

_MOST_BYTES = 256 << 20  # of a file of JSON lines


@dataclass(frozen=True)
class AnswerKind:
    """One kind of stored answer: its table, and the command that computes it.

    ``columns``: keys of a line that are columns of the table; the other keys name the models and their records.
    ``texts``: keys whose values are texts or null. ``numbers``: keys whose values are numbers. ``select``: a statement
    that makes the lines, with the base, from the tables of a published atlas. ``status``: that of models with such
    answers; ``key``: the column of ``fine_tunes`` by which an answer is current, ``names``: keys that are names of
    other models.
    """

    table: str
    command: str
    columns: tuple[str, ...]
    texts: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    select: str = ""
    status: str = "indexed"
    key: str = "record_key"
    names: tuple[str, ...] = ()


LINEAGE = AnswerKind(
    "lineage",
    "query lineage --all",
    columns=(
        "record_key", "kind", "method", "coefficient", "left", "card", "direction", "evidence", "same", "bytes_read",
        "answered_at", "probability",
    ),
    texts=("record_key", "parent", "parent_key", "kind", "method", "card", "direction", "evidence"),
    numbers=("coefficient", "left", "probability"),
    select="SELECT child.base, child.model, lineage.* EXCLUDE (model_id, parent_id), parent.model AS parent, "
    "parent.record_key AS parent_key FROM lineage JOIN fine_tunes AS child ON child.model_id = lineage.model_id "
    "LEFT JOIN fine_tunes AS parent ON parent.model_id = parent_id ORDER BY child.model_id, parent_id",
    names=("parent",),
)  # fmt: skip
PREDICTIONS = AnswerKind(
    "predictions",
    "query predict --undocumented --store",
    columns=(
        "record_key", "rank", "dataset", "probability", "votes", "agreement", "authors", "vectors", "head", "declared",
        "calibrated", "models", "representation", "k", "answered_at",
    ),
    select="SELECT base, model, predictions.* EXCLUDE (model_id) FROM predictions JOIN fine_tunes "
    "ON fine_tunes.model_id = predictions.model_id ORDER BY fine_tunes.model_id, rank",
)  # fmt: skip
CONVERSIONS = AnswerKind(
    "conversions",
    "index build",
    columns=(
        "commit", "format", "types", "source", "verdict", "rows_compared", "rows_equal", "codes_equal", "claimed",
        "differing", "residual", "error", "log_odds", "next", "also", "fingerprint", "file_bytes", "bytes_read",
        "notes", "answered_at",
    ),
    texts=("commit", "format", "types", "source", "verdict", "next", "fingerprint"),
    select="SELECT base, model, conversions.* EXCLUDE (model_id, source_id) FROM conversions JOIN fine_tunes "
    "ON fine_tunes.model_id = conversions.model_id ORDER BY fine_tunes.model_id",
    status="skipped",
    key="commit",
    names=("source", "next"),
)  # fmt: skip
ANSWERS = (LINEAGE, PREDICTIONS, CONVERSIONS)


def read_answers(kind: AnswerKind, folder: AtlasFolder, base: str) -> tuple[list[Line], list[str]]:
    """The stored answers of a base, and the problems of those that cannot be read.

    Each has the keys of the kind, and ``answered_at`` is returned as a naive UTC time. Whether values fit the columns
    of the table is checked when they are inserted.
    """
    reader = _Reader(kind, folder, base)
    return list(reader.checked()), reader.problems


def exported_answers(kind: AnswerKind, folder: AtlasFolder, base: str) -> tuple[list[Line], list[str]]:
    """The stored answers of a base as they are written, and the problems of those that cannot be read."""
    reader = _Reader(kind, folder, base)
    return [line for _, line in reader.lines()], reader.problems


def write_answers(kind: AnswerKind, folder: AtlasFolder, base: str, lines: Iterable[Mapping[str, Any]]) -> None:
    """Replace all answers of a base, in its database only."""
    base_database(folder.listing(base)).write(lambda tables: _replace(tables, kind, None, lines))


def store_answers(
    folder: AtlasFolder, kind: AnswerKind, base: str, models: Iterable[str], lines: Sequence[Mapping[str, Any]]
) -> None:
    """Replace the stored answers of ``models`` with ``lines``, in the database of the base and in the table.

    ``lines`` have the columns of the table, but ``model`` instead of ``model_id``; for lineage also ``parent`` and
    ``parent_key``, the record of the parent (both null for the base), instead of ``parent_id``. ``answered_at`` is in
    ISO 8601. Only the table is written: vectors and other tables are not touched. ``atlas.duckdb`` is still replaced by
    a changed copy, because DuckDB does not let one process write a file that another one reads.

    Raises AtlasError if another process holds the lock of the writer, or if the atlas cannot be written.
    """
    with folder.require().locked(kind.command):
        with Reading(folder.database) as connection:
            if not connection.rows("SELECT base FROM bases WHERE base = ?", (base,)):
                raise AtlasError(f"Nothing is published for {base}.", f"Run: index build --base {base}")
        base_database(folder.listing(base)).write(lambda tables: _replace(tables, kind, list(models), lines))
        with staged_publish(folder) as tables:
            renew_answers(kind, tables, folder, base)


def add_answers(
    folder: AtlasFolder, kind: AnswerKind, base: str, models: Iterable[str], lines: Sequence[Mapping[str, Any]]
) -> None:
    """Replace the stored answers of ``models`` in the database of the base only: the next publish shows them.

    The caller holds the lock of the writer.
    """
    base_database(folder.listing(base)).write(lambda tables: _replace(tables, kind, list(models), lines))


def forget_answers(folder: AtlasFolder, base: str, model: str) -> None:
    """Remove a model from the stored answers of a base: its own, and its name in those of others."""

    def forget(tables: SmallTables) -> None:
        for number, kind, child, text in list(tables.all("answers")):
            line = load_json(text)
            if model == child or model in [line.get(key) for kind_of in ANSWERS for key in kind_of.names]:
                tables.execute("DELETE FROM answers WHERE number = ?", (number,))
                continue
            lists = {name: line[name] for name in ("same", "models") if model in line.get(name, ())}
            if lists:
                shortened = line | {
                    name: [model_id for model_id in ids if model_id != model] for name, ids in lists.items()
                }
                tables.put("answers", number, kind, child, _text(shortened))

    database = base_database(folder.listing(base))
    if database.exists():
        database.write(forget)


def published_answers(earlier: EarlierRows, base: str) -> dict[str, list[Line]]:
    """The answers of a base that were published, by kind."""
    lines_by_table: dict[str, list[Line]] = {}
    for kind in ANSWERS:
        rows = earlier([kind.table, "fine_tunes"], [kind.select])
        lines_by_table[kind.table] = [
            {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}
            for row in (rows[0] if rows else [])
            if row.pop("base") == base
        ]
    return lines_by_table


def restore_answers(folder: AtlasFolder, base: str, published: Mapping[str, Sequence[Line]]) -> None:
    """Store ``published`` answers, by kind, of models without any in the database of the base."""
    for kind in ANSWERS:
        stored_models = {line["model"] for line in exported_answers(kind, folder, base)[0]}
        lines = [line for line in published.get(kind.table, ()) if line["model"] not in stored_models]
        if lines:
            add = partial(_replace, kind=kind, models={line["model"] for line in lines}, lines=lines)
            base_database(folder.listing(base)).write(add)


def _replace(
    tables: SmallTables, kind: AnswerKind, models: Iterable[str] | None, lines: Iterable[Mapping[str, Any]]
) -> None:
    """Replace the answers of ``models``, or all of the kind."""
    if models is None:
        tables.execute("DELETE FROM answers WHERE kind = ?", (kind.table,))
    for model in models or ():
        tables.execute("DELETE FROM answers WHERE kind = ? AND model = ?", (kind.table, plain(model)))
    (first,) = tables.execute("SELECT coalesce(max(number), 0) + 1 FROM answers")[0]
    rows = ((number, kind.table, plain(str(line["model"])), _text(line)) for number, line in enumerate(lines, first))
    tables.put_all("answers", rows)


def _text(line: Mapping[str, Any]) -> str:
    return json.dumps(dict(line), sort_keys=True, allow_nan=False)


class _Reader:
    """Reads the answers of one kind, from the database of a base or else from the file of a pulled atlas."""

    def __init__(self, kind: AnswerKind, folder: AtlasFolder, base: str) -> None:
        self.kind = kind
        self.database = base_database(folder.listing(base))
        self.file = LineReader(folder.exported(kind.table, base), _MOST_BYTES)
        self.problems = self.file.problems
        self.is_damaged = False  # whether the database is damaged

    def lines(self) -> Iterator[tuple[int, Line]]:
        """The answers that can be read, with their numbers."""
        if not self.database.exists():
            yield from self.file
            return
        try:
            rows, problems = self.database.read(self._rows)
            self.problems += problems
            self.is_damaged = bool(problems)
        except AtlasError as error:
            self.problems.append(error.message)
            self.is_damaged = True
            return
        for number, _, _, text in rows:
            try:
                line = load_json(text)
                if not isinstance(line, dict):
                    raise ValueError("not a JSON object")
            except WRONG_KINDS as error:
                self.note(number, error)
                continue
            yield number, line

    def checked(self) -> Iterator[Line]:
        """The answers that have all keys of the kind."""
        for number, line in self.lines():
            try:
                yield _checked(self.kind, line)
            except WRONG_KINDS as error:
                self.note(number, error)

    def _rows(self, tables: SmallTables) -> tuple[list[tuple[Any, ...]], list[str]]:
        return list(tables.all("answers", "WHERE kind = ?", (self.kind.table,))), tables.problems

    def note(self, number: int, why: object) -> None:
        """Add the problem of an answer."""
        self.file.note(number, why)


def _checked(kind: AnswerKind, line: Line) -> Line:
    """The line, if it has the keys of the kind. Raises one of WRONG_KINDS."""
    missing = {"model", *kind.columns, *kind.texts} - line.keys()
    if missing:
        raise ValueError(f"it has no {min(missing)}")
    texts = [line[name] for name in kind.texts if line[name] is not None]
    if not all(isinstance(text, str) for text in (line["model"], *texts)):
        raise ValueError("invalid name")
    answered = datetime.fromisoformat(line["answered_at"])
    if answered.tzinfo is not None:
        answered = answered.astimezone(UTC).replace(tzinfo=None)
    return line | {name: float(line[name]) for name in kind.numbers} | {"answered_at": answered}


def renew_answers(kind: AnswerKind, tables: Tables, folder: AtlasFolder, base: str) -> None:
    """Rewrite the rows of one base from its stored answers.

    A line is skipped if its model or parent has another record now. Lines that cannot be read or do not fit the table
    are skipped too, because the file may come from an untrusted source.
    """
    indexed = {
        model: (model_id, record_key)
        for model, model_id, record_key in tables.rows(
            f'SELECT model, model_id, "{kind.key}" FROM fine_tunes WHERE base = ? AND status = ?', [base, kind.status]
        )
    }
    sources = dict(
        tables.rows("SELECT model, model_id FROM fine_tunes WHERE base = ? AND status = 'indexed'", [base])
        if kind is CONVERSIONS
        else ()
    )
    reader = _Reader(kind, folder, base)
    lines = list(reader.checked())
    if reader.is_damaged:  # the published rows stay until `index rebuild` repairs the database
        tables.run(
            f"DELETE FROM {kind.table} WHERE NOT EXISTS (SELECT 1 FROM fine_tunes WHERE "
            f'fine_tunes.model_id = {kind.table}.model_id AND fine_tunes."{kind.key}" = {kind.table}."{kind.key}")'
        )
        return
    tables.run(
        f"DELETE FROM {kind.table} WHERE model_id IN (SELECT model_id FROM fine_tunes WHERE base = ?) "
        "OR model_id NOT IN (SELECT model_id FROM fine_tunes)",
        [base],
    )
    rows: list[Row] = []
    for line in lines:
        child, parent = indexed.get(line["model"]), indexed.get(line.get("parent") or "")
        parent_key = line.get("parent_key")
        if child is None or child[1] != line[kind.key]:
            continue
        if parent_key is not None and (parent is None or parent[1] != parent_key):
            continue
        row = {name: line[name] for name in kind.columns} | {"model_id": child[0]}
        if kind is LINEAGE:
            row["parent_id"] = parent[0] if parent and parent_key else None
        if kind is CONVERSIONS:
            row["source_id"] = sources.get(line["source"])
        rows.append(row)
    tables.insert(kind.table, valid_rows(kind.table, rows))
