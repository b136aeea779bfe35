"""Stored answers: the lineage and the predictions that an atlas keeps.

Nothing in the database may be the only copy, so each base has a JSON lines file per kind of answer. A line names its
models and the records that the answer was computed from. The table is made from the lines whose records are still
current: a model that was read again has no stored answer until it is computed again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from indexer.atlas import AtlasFolder
from indexer.database.reading import Reading
from indexer.database.validation import valid_rows
from indexer.errors import WRONG_KINDS, AtlasError
from indexer.publish.staging import staged_publish
from indexer.publish.tables import Row, Tables
from indexer.regular_files import read_regular
from indexer.storage.atomic_files import write_atomically
from indexer.storage.checksummed_jsonl import add_checksum, parse_checksummed

Line = dict[str, Any]

_MOST_BYTES = 256 << 20
_MOST_PROBLEMS = 100


@dataclass(frozen=True)
class AnswerKind:
    """One kind of stored answer: its table, the command that computes it and the file that keeps it.

    ``columns``: keys of a line that are columns of the table; the other keys name the models and their records.
    ``texts``: keys whose values are texts or null. ``numbers``: keys whose values are numbers.
    """

    table: str
    command: str
    folder: Callable[[AtlasFolder], Path]
    path: Callable[[AtlasFolder, str], Path]
    columns: tuple[str, ...]
    texts: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()


LINEAGE = AnswerKind(
    "lineage",
    "query lineage --all",
    lambda folder: folder.lineages,
    AtlasFolder.lineage,
    columns=(
        "record_key", "kind", "method", "coefficient", "left", "card", "direction", "evidence", "same", "bytes_read",
        "answered_at", "probability",
    ),
    texts=("record_key", "parent", "parent_key", "kind", "method", "card", "direction", "evidence"),
    numbers=("coefficient", "left", "probability"),
)  # fmt: skip
PREDICTIONS = AnswerKind(
    "predictions",
    "query predict --undocumented --store",
    lambda folder: folder.predicted,
    AtlasFolder.predictions,
    columns=(
        "record_key", "rank", "dataset", "probability", "votes", "agreement", "authors", "vectors", "head", "declared",
        "calibrated", "models", "representation", "k", "answered_at",
    ),
)  # fmt: skip
ANSWERS = (LINEAGE, PREDICTIONS)


def read_answers(kind: AnswerKind | None, path: Path) -> tuple[list[Line], list[str]]:
    """The lines of a file, and the problems of lines that cannot be read; both are empty if there is no file.

    If the ``kind`` is given, each line is checked: it has the keys of the kind, and ``answered_at`` is returned as a
    naive UTC time. Whether values fit the columns of the table is checked when they are inserted.
    """
    try:
        content = read_regular(path, most=_MOST_BYTES)
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [f"cannot be read: {error.strerror}"]
    lines: list[Line] = []
    problems: list[str] = []
    for number, raw in enumerate(content.split(b"\n"), start=1):
        if not raw:
            continue
        try:
            line = parse_checksummed(raw)
            if kind is not None:
                missing = {"model", *kind.columns, *kind.texts} - line.keys()
                if missing:
                    raise ValueError(f"it has no {min(missing)}")
                texts = [line[name] for name in kind.texts if line[name] is not None]
                if not all(isinstance(text, str) for text in (line["model"], *texts)):
                    raise ValueError("invalid name")
                for name in kind.numbers:
                    line[name] = float(line[name])
                answered = datetime.fromisoformat(line["answered_at"])
                if answered.tzinfo is not None:
                    answered = answered.astimezone(UTC).replace(tzinfo=None)
                line["answered_at"] = answered
            lines.append(line)
        except WRONG_KINDS as error:
            if len(problems) < _MOST_PROBLEMS:
                problems.append(f"line {number} cannot be read: {error}"[:300])
    if content and not content.endswith(b"\n"):
        problems.append("its last line is cut short")
    return lines, problems


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write the file atomically, one checksummed JSON object per line. Raises OSError."""
    text = (json.dumps(dict(line), sort_keys=True, allow_nan=False) for line in lines)
    write_atomically(path, b"".join(add_checksum(one) + b"\n" for one in text))


def store_answers(
    folder: AtlasFolder, kind: AnswerKind, base: str, models: Iterable[str], lines: Sequence[Mapping[str, Any]]
) -> None:
    """Replace the stored answers of ``models`` with ``lines``, in the file and in the table.

    ``lines`` have the columns of the table, but ``model`` instead of ``model_id``; for lineage also ``parent`` and
    ``parent_key``, the record of the parent (both null for the base), instead of ``parent_id``. ``answered_at`` is in
    ISO 8601. Only the table is written: vectors and other tables are not touched. The database is still replaced by
    a changed copy, because DuckDB does not let one process write a file that another one reads.

    Raises AtlasError if another process holds the lock of the writer, or if the atlas cannot be written.
    """
    with folder.require().locked(kind.command):
        with Reading(folder.database) as connection:
            if not connection.rows("SELECT base FROM bases WHERE base = ?", (base,)):
                raise AtlasError(f"Nothing is published for {base}.", f"Run: index build --base {base}")
        path, asked = kind.path(folder, base), set(models)
        write_lines(path, [*(line for line in read_answers(None, path)[0] if line.get("model") not in asked), *lines])
        with staged_publish(folder) as tables:
            renew_answers(kind, tables, folder, base)


def forget_answers(folder: AtlasFolder, base: str, model: str) -> None:
    """Remove a model from the files of a base: its own lines, and its name in the lines of others."""
    for kind in ANSWERS:
        path = kind.path(folder, base)
        before, _ = read_answers(None, path)
        after = []
        for line in before:
            if model not in (line.get("model"), line.get("parent")):
                lists = {name: line[name] for name in ("same", "models") if name in line}
                after.append(line | {name: [one for one in ids if one != model] for name, ids in lists.items()})
        if after != before:
            write_lines(path, after)


def renew_answers(kind: AnswerKind, tables: Tables, folder: AtlasFolder, base: str) -> None:
    """Rewrite the rows of one base from its file.

    A line is skipped if its model or parent has another record now. Lines that cannot be read or do not fit the table
    are skipped too, because the file may come from an untrusted source.
    """
    indexed = {
        model: (model_id, record_key)
        for model, model_id, record_key in tables.rows(
            "SELECT model, model_id, record_key FROM fine_tunes WHERE base = ? AND status = 'indexed'", [base]
        )
    }
    tables.run(
        f"DELETE FROM {kind.table} WHERE model_id IN (SELECT model_id FROM fine_tunes WHERE base = ?) "
        "OR model_id NOT IN (SELECT model_id FROM fine_tunes)",
        [base],
    )
    rows: list[Row] = []
    for line in read_answers(kind, kind.path(folder, base))[0]:
        child, parent = indexed.get(line["model"]), indexed.get(line.get("parent") or "")
        parent_key = line.get("parent_key")
        if child is None or child[1] != line["record_key"]:
            continue
        if parent_key is not None and (parent is None or parent[1] != parent_key):
            continue
        row = {name: line[name] for name in kind.columns} | {"model_id": child[0]}
        if kind is LINEAGE:
            row["parent_id"] = parent[0] if parent and parent_key else None
        rows.append(row)
    tables.insert(kind.table, valid_rows(kind.table, rows))
