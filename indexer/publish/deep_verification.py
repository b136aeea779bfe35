"""`index verify --strict`: everything is recomputed, for an atlas from an unknown source.

Compared are the catalog of the database with schema.sql, the row of every base with its matrices, the rows and vectors
of every model with its record, the centres with their members, and the lists of neighbours with the vectors, by brute
force. The folder must contain only files and folders. One record is in memory at a time, and no files are written: that
is why the atlas is not rebuilt elsewhere and compared.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from indexer.atlas import NEIGHBOURS, AtlasFolder
from indexer.database import catalog
from indexer.database.connection import Connection, translated_errors
from indexer.database.reading import Reading
from indexer.database.secure_connection import attached
from indexer.deltas.stored_base import stored_bases
from indexer.errors import WRONG_KINDS, AtlasError
from indexer.publish.rows import row_of_base, rows_of_record
from indexer.publish.verification import Disagreement, not_valid, verify
from indexer.records.record import Record
from indexer.records.representation import ADAPTER_OUTPUT, DEFAULT, REPRESENTATIONS, representation_named
from indexer.records.store import RecordStore
from indexer.untrusted import printable
from indexer.vectors.centre import Centre, GroupCentre, centre_of
from indexer.vectors.published import Published, read_centre, read_published, with_output_sides
from indexer.vectors.search import VectorIndex
from indexer.vectors.stored import Vectors, normalised

# Largest difference between two machines in a cosine, or in a number of a unit vector.
TOLERANCE = 1e-4

# The same for numbers stored in 16 bits and centred again, in blocks as short as one number.
_TOLERANCE_OF_HALVES = 2e-3

# The same for a centre, which may be the mean of vectors stored in 16 bits.
_TOLERANCE_OF_CENTRES = 1e-3

# Columns that depend on other models and not only on the record; the last digits of a signature depend on the machine.
_FROM_OTHERS = {
    "verified",
    "is_unrelated",
    "duplicate_group",
    "duplicate_of",
    "signature",
    "initialisation",
    "copy_evidence",
}
_BLOCK = 1024


def verify_deeply(folder: AtlasFolder) -> list[Disagreement]:
    """All problems that ``verify`` finds, and everything that differs from schema.sql and the records.

    The tables of a database that a reader would refuse are not queried.
    """
    folder.require()
    found = [*_check_files(folder), *_check_catalog(folder.database)]
    if any(one.kind == "database" for one in found):
        return found
    try:
        found += verify(folder)
        with Reading(folder.database) as connection:
            found += _check_rows(folder, connection)
    except AtlasError as error:
        found.append(Disagreement("database", folder.database.name, error.message))
    except WRONG_KINDS as error:
        found.append(Disagreement("database", folder.database.name, not_valid(error)))
    return found


def _check_files(folder: AtlasFolder) -> Iterator[Disagreement]:
    """Report links that lead out of the folder, pipes, sockets and devices."""
    root = folder.root.resolve()
    for parent, folders, files in os.walk(folder.root):
        for name in sorted([*folders, *files]):
            path = Path(parent) / name
            mode = os.lstat(path).st_mode
            what = printable(str(path.relative_to(folder.root)), 200)
            if stat.S_ISLNK(mode) and not path.resolve().is_relative_to(root):
                yield Disagreement("file", what, "is a link that leads out of the atlas")
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                yield Disagreement("file", what, "is neither a file nor a folder")


def _check_catalog(path: Path) -> Iterator[Disagreement]:
    log = path.with_name(path.name + ".wal")
    if os.path.lexists(log):
        yield Disagreement("file", log.name, "is a write-ahead log: the database was changed by another program")
        return
    try:
        with translated_errors(path), attached(path) as connection:
            found = catalog.examine(connection, path)
    except AtlasError as error:
        yield Disagreement("database", path.name, error.message)
        return
    for problem in found.problems:
        yield Disagreement("database", path.name, problem)
    for name in found.other_views:
        yield Disagreement("definition", name, "differs from the view in schema.sql (it is never used)")


def _check_rows(folder: AtlasFolder, connection: Connection) -> Iterator[Disagreement]:
    deltas = dict[str, int]()  # how many a published base has
    for base in stored_bases(folder):
        for row in connection.rows('SELECT * FROM bases WHERE base = ? AND "commit" = ?', (base.base, base.commit)):
            with suppress(*WRONG_KINDS):  # JSON may be nested too deeply to be read; it differs then
                row["config"] = json.dumps(json.loads(row["config"] or "null"))
            made = row_of_base(base)
            deltas[base.base] = len(made["deltas"])
            if other := [name for name, value in made.items() if not _is_same(row[name], value)]:
                yield Disagreement("row", base.base, f"bases differs from its matrices in {', '.join(sorted(other))}")
    opened: list[tuple[Published, VectorIndex, Vectors, Centre | None]] = []
    for row in connection.rows("SELECT base, representation FROM representations ORDER BY ALL"):
        try:
            published = read_published(connection, row["base"], row["representation"])
        except AtlasError:
            continue  # reported by `verify`
        if published is None:
            continue
        if published.representation not in REPRESENTATIONS:
            what = printable(published.representation, 60)
            yield Disagreement("vectors", what, "is not a representation of this version")
            continue
        made_of = REPRESENTATIONS[published.representation]
        blocks = (made_of.blocks or deltas.get(published.base)) if made_of.centred else 0
        is_unknown = published.masks.blocks == 0 and published.count == 0  # no model has a record yet
        if blocks is not None and published.masks.blocks != blocks and not is_unknown:
            what = f"{published.base}, {published.representation}"
            yield Disagreement("vectors", what, f"has {published.masks.blocks} blocks; its vectors have {blocks}")
            continue
        try:
            centre = None
            if published.centre is not None:
                centre = read_centre(connection, published.base, published.representation)
            if centre is not None:
                yield from _check_centre(folder, connection, published, centre)
            index = published.opened(folder.root)
            if published.representation == DEFAULT:
                outputs = read_published(connection, published.base, ADAPTER_OUTPUT)
                index = with_output_sides(index, connection, outputs, folder.root)
            opened.append((published, index, index.vectors(), centre))
        except AtlasError:
            continue  # reported by `verify`
    store = RecordStore(folder)
    for row in connection.rows("SELECT model_id, model, base, record_key FROM fine_tunes WHERE status = 'indexed'"):
        model_id, what = row["model_id"], printable(str(row["model"]), 200)
        try:
            record = store.read(row["record_key"])
        except (AtlasError, TypeError):
            continue  # reported by `verify`
        if record.identity.digest != row["record_key"]:
            yield Disagreement("record", what, "its record does not belong to its file name")
        yield from _check_facts(connection, model_id, row["record_key"], what, record)
        for published, _, vectors, centre in opened:
            representation = representation_named(published.representation, published.budget)
            if published.base != row["base"] or not representation.is_held_by(record):
                continue
            uncentred = representation.vector(record)
            expected, held = normalised(uncentred), vectors.row(model_id)
            if expected is None or held is None:
                continue  # missing and extra vectors are reported by `verify`
            if held.shape == expected.shape and centre is not None:
                expected = centre.centred(uncentred[None, :], record.vector_group)[0]
            tolerance = TOLERANCE if centre is None else _TOLERANCE_OF_HALVES
            if held.shape != expected.shape or not np.allclose(held, expected, atol=tolerance):
                why = f"its vector ({published.representation}) differs from that of its record"
                yield Disagreement("vectors", what, why)
    for published, index, _, _ in opened:
        if published.representation != ADAPTER_OUTPUT:  # it has no lists of its own
            yield from _check_neighbours(connection, published.base, published.representation, index)


def _check_facts(connection: Connection, model_id: int, key: str, what: str, record: Record) -> Iterator[Disagreement]:
    """Check the rows of a model against its record."""
    for table, expected in rows_of_record(model_id, key, record).items():
        held = connection.rows(f"FROM {table} WHERE model_id = ?", (model_id,))
        if len(held) != len(expected):
            yield Disagreement("row", what, f"has {len(held)} rows in {table}; its record makes {len(expected)}")
            continue
        place = {(one.get("stack"), one.get("layer"), one.get("family")): one for one in held}
        for row in expected:
            mine = place.get((row.get("stack"), row.get("layer"), row.get("family")), {})
            other = [name for name in row if name not in _FROM_OTHERS and not _is_same(mine.get(name), row[name])]
            if other:
                yield Disagreement("row", what, f"{table} differs from its record in {', '.join(sorted(other))}")
                break


def _is_same(held: Any, made: Any) -> bool:
    if isinstance(made, float | np.floating) and isinstance(held, float | int):
        return math.isclose(held, float(made), rel_tol=1e-5, abs_tol=1e-6) or (math.isnan(held) and math.isnan(made))
    if isinstance(made, list | tuple | np.ndarray) and isinstance(held, list):
        return len(held) == len(made) and all(_is_same(one, other) for one, other in zip(held, made, strict=True))
    if isinstance(made, dict) and isinstance(held, dict):
        return {**made} == held
    if hasattr(held, "isoformat"):  # the columns are UTC without a time zone
        return str(made)[:19].replace("T", " ") == held.isoformat(sep=" ")[:19]
    return bool(held == made)


def _check_neighbours(connection: Connection, base: str, name: str, index: VectorIndex) -> Iterator[Disagreement]:
    """Check every list against all similarities: its length, ranks, members and cosines."""
    rows = connection.execute(
        "SELECT model_id::BIGINT AS model_id, rank::BIGINT AS rank, neighbour_id::BIGINT AS neighbour_id, similarity "
        "FROM neighbours WHERE representation = ? AND model_id IN (SELECT model_id FROM fine_tunes WHERE base = ?) "
        "ORDER BY model_id, rank",
        [name, base],
    ).fetchnumpy()
    owners, near = np.asarray(rows["model_id"]), np.asarray(rows["neighbour_id"])
    ids = index.ids
    table = index.table(ids)
    if not (np.isin(owners, ids).all() and np.isin(near, ids).all()):
        yield Disagreement("neighbours", base, f"name models that have no vector ({name})")
        return
    wanted = min(NEIGHBOURS, len(ids) - 1)
    wrong: list[int] = []
    for start in range(0, len(ids), _BLOCK):
        cosines = table.take(slice(start, start + _BLOCK)).similarities(table)
        for offset, model_id in enumerate(ids[start : start + _BLOCK].tolist()):
            first, last = np.searchsorted(owners, [model_id, model_id + 1])
            places = np.searchsorted(ids, near[first:last])
            stored = np.asarray(rows["similarity"])[first:last]
            row = cosines[offset]
            row[start + offset] = -2.0
            best = np.sort(row)[::-1][:wanted]
            is_right = (
                last - first == wanted
                and np.array_equal(rows["rank"][first:last], np.arange(1, wanted + 1))
                and len(np.unique(places)) == wanted
                and np.allclose(row[places], stored, atol=TOLERANCE)
                and np.allclose(stored, best, atol=TOLERANCE)
            )
            if not is_right:
                wrong.append(model_id)
    if wrong:
        yield Disagreement(
            "neighbours", base, f"{len(wrong)} lists do not match the vectors ({name}; first id {wrong[0]})"
        )


def _check_centre(
    folder: AtlasFolder, connection: Connection, published: Published, centre: Centre
) -> Iterator[Disagreement]:
    """Check the centre of every group against the mean of its members, if their records are still present."""
    what = f"{published.base}, {published.representation}"
    for group, stored in centre.groups.items():
        members = connection.rows(
            "SELECT record_key, vote FROM internal.centre_members WHERE base = ? AND representation = ? "
            "AND vector_group = ? ORDER BY model_id",
            (published.base, published.representation, group),
        )
        if len(members) != stored.models:
            why = f"the centre of group {group} was made from {stored.models} models, but {len(members)} are named"
            yield Disagreement("centre", what, why)
            continue
        made = _centre_from(folder, published, members)
        if made is None:
            continue
        is_right = made.blocks.shape == stored.blocks.shape
        is_right = is_right and np.allclose(made.blocks, stored.blocks, atol=_TOLERANCE_OF_CENTRES)
        is_right = is_right and np.allclose(made.votes, stored.votes, rtol=_TOLERANCE_OF_CENTRES)
        if not is_right:
            why = f"the centre of group {group} is not the mean of the models it was made from"
            yield Disagreement("centre", what, why)


def _centre_from(folder: AtlasFolder, published: Published, members: list[dict[str, Any]]) -> GroupCentre | None:
    """The centre of these models; None if a record is missing or holds no factors."""
    blocks = published.masks.blocks
    if not members:
        return GroupCentre.nothing(blocks, published.length // blocks)
    store = RecordStore(folder)
    representation = representation_named(published.representation, published.budget)
    vectors = []
    for member in members:
        try:
            record = store.read(member["record_key"])
            vectors.append(representation.vector(record).astype(np.float32))
        except (AtlasError, TypeError):
            return None
    if any(len(vector) != published.length for vector in vectors):
        return None
    return centre_of(np.stack(vectors), [one["vote"] for one in members], blocks)
