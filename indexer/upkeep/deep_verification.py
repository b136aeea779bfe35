"""`index verify --strict`: the atlas is published again elsewhere and compared, for an atlas from an unknown source.

The real publisher makes database and vectors from the listings, bases, records and profiles of the atlas, in a
temporary folder, with the same ids. Then the tables are compared by SQL, the vectors by block, and the lists of
neighbours with those that the publisher makes of the vectors: these can be checked without records, too. The centres
are taken over, because they depend on when models were added; each is compared with the mean of its members. Null
distributions are not compared: they may be those of an earlier publish. The catalog of the database is compared with
schema.sql, and the folder must contain only files and folders.

The temporary folder takes twice the space of the database, and for a while three times that of the vectors. The time is
that of a publish from nothing.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.atlas import NEIGHBOURS, AtlasFolder
from indexer.database import catalog
from indexer.database.connection import Connection, translated_errors
from indexer.database.reading import Reading, earlier_database
from indexer.database.secure_connection import attached, attached_for_writing
from indexer.deltas.stored_base import StoredBase
from indexer.errors import WRONG_KINDS, AtlasError
from indexer.listing.listing import Listing
from indexer.publish.neighbours import ROWS, nearest
from indexer.publish.previous_atlas import known_models
from indexer.publish.publish import publish
from indexer.publish.rows import Entry, Publication
from indexer.records.representations.comparison import as_compared
from indexer.records.representations.registry import DEFAULT, REPRESENTATIONS, has_neighbours, representation_named
from indexer.records.store import FailureRecord, RecordStore
from indexer.sources.cards.modelcard import LICENCE_COLUMNS
from indexer.storage.atomic_files import copy_file
from indexer.untrusted import printable
from indexer.upkeep.verification import Disagreement, not_valid, verify
from indexer.vectors.centre import Centre, GroupCentre, centre_of
from indexer.vectors.published import Published, read_centre, read_published
from indexer.vectors.search import VectorIndex
from indexer.vectors.stored import blocks, rows_of_block

if TYPE_CHECKING:
    import duckdb

# Largest difference between two machines in a cosine, or in a number of a unit vector.
TOLERANCE = 1e-4

# The same for numbers stored in 16 bits, in blocks as short as one number, whose centre is computed again.
_TOLERANCE_OF_HALVES = 2e-3

# The same for a centre.
_TOLERANCE_OF_CENTRES = 1e-3

# Other numbers may differ by this, or by this share of them.
_ABSOLUTE, _RELATIVE = 1e-6, 1e-5

# Compared tables of models: what identifies a row of a model, columns that may differ, and what a row is made of. The
# last digits of a signature depend on the machine; a model keeps its initialisation until it is read again.
_OF_RECORDS = {
    "records": ((), ("signature", "initialisation")),
    "adapter_bases": ((), ()),
    "deltas": (("stack", "layer", "family"), ()),
    "fused_matrices": (("stack", "layer", "family"), ()),
}
_OF_LISTING = {
    "fine_tunes": ((), ("last_seen",)),
    "tags": (("tag",), ()),
    "model_datasets": (("dataset", "parent", "raw", "source"), ()),
    "evaluations": (("task", "dataset", "dataset_raw", "config", "split", "metric", "value"), ()),
}
# Columns of a base that a user or a listing gives, and of vectors whose file was written by another machine.
_OF_USERS = ("aliases", *LICENCE_COLUMNS)
_OF_FILES = ("faiss_file", "faiss_sha256", "faiss_bytes")


def verify_deeply(folder: AtlasFolder) -> list[Disagreement]:
    """All problems that ``verify`` finds, and everything that differs from schema.sql and a publish from the records.

    The tables of a database that a reader would refuse are not queried. Raises OSError if the temporary folder is full.
    """
    folder.require()
    problems = [*_check_files(folder), *_check_catalog(folder.database)]
    if any(problem.kind == "database" for problem in problems):
        return problems
    try:
        problems += verify(folder)
        reported = {(problem.kind, problem.what) for problem in problems}
        with tempfile.TemporaryDirectory(prefix="vectors-in-the-wild-verify-", ignore_cleanup_errors=True) as root:
            problems += [
                problem
                for problem in _Comparison(folder, Path(root)).run()
                if (problem.kind, problem.what) not in reported
            ]
    except AtlasError as error:
        problems.append(Disagreement("database", folder.database.name, error.message))
    except WRONG_KINDS as error:
        problems.append(Disagreement("database", folder.database.name, not_valid(error)))
    return problems


def _check_files(folder: AtlasFolder) -> Iterator[Disagreement]:
    """Report links that lead out of the folder, pipes, sockets and devices."""
    root = folder.root.resolve()
    for parent, folders, files in os.walk(folder.root):
        for name in sorted([*folders, *files]):
            path = Path(parent) / name
            mode = os.lstat(path).st_mode
            path_shown = printable(str(path.relative_to(folder.root)), 200)
            if stat.S_ISLNK(mode) and not path.resolve().is_relative_to(root):
                yield Disagreement("file", path_shown, "is a link that leads out of the atlas")
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                yield Disagreement("file", path_shown, "is neither a file nor a folder")


def _check_catalog(path: Path) -> Iterator[Disagreement]:
    log = path.with_name(path.name + ".wal")
    if os.path.lexists(log):
        yield Disagreement("file", log.name, "is a write-ahead log: the database was changed by another program")
        return
    try:
        with translated_errors(path), attached(path) as connection:
            report = catalog.examine(connection, path)
    except AtlasError as error:
        yield Disagreement("database", path.name, error.message)
        return
    for problem in report.problems:
        yield Disagreement("database", path.name, problem)
    for name in report.differing_views:
        yield Disagreement("definition", name, "differs from the view in schema.sql (it is never used)")


@dataclass
class _Comparison:
    """Publishes an atlas again in the folder ``root`` and compares.

    ``published``: the vectors that can be read. ``bases``: those that could be published again.
    """

    folder: AtlasFolder
    root: Path
    published: list[Published] = field(default_factory=list)
    bases: set[str] = field(default_factory=set)

    def run(self) -> Iterator[Disagreement]:
        """Yield every difference."""
        copy = self.root / "published.duckdb"
        copy_file(self.folder.database, copy, through_links=True)
        republished = self.folder.with_database_in(self.root)
        copy_file(copy, republished.database, through_links=True)  # the publisher keeps its ids
        with Reading(copy) as connection:
            yield from self._check_vectors(connection)
            yield from self._publish(connection, copy, republished)
            with (
                translated_errors(self.folder.database),
                attached_for_writing(
                    self.root / "compared.duckdb",
                    settings=[f"SET temp_directory = '{self.root}/spill'"],
                    others={"published": copy, "republished": republished.database},
                ) as connection_of_both,
            ):
                yield from _compare_tables(connection_of_both)
            with Reading(republished.database) as connection_of_republished:
                yield from self._compare_vectors(connection, connection_of_republished, republished)

    def _check_vectors(self, connection: Connection) -> Iterator[Disagreement]:
        """Check the names of representations and the centres, and open what can be read."""
        for row in connection.rows("SELECT base, representation FROM representations ORDER BY ALL"):
            if row["representation"] not in REPRESENTATIONS:
                name = printable(row["representation"], 60)
                yield Disagreement("vectors", name, "is not a representation of this version")
                continue
            try:
                published = read_published(connection, row["base"], row["representation"])
                if published is None:
                    continue
                self.published.append(published)
                centre = read_centre(connection, published.base, published.representation)
            except AtlasError:
                continue  # reported by `verify`
            if published.centre is not None and published.masks.blocks and centre is not None:
                yield from _check_centre(self.folder, connection, published, centre)

    def _publish(self, connection: Connection, copy: Path, republished: AtlasFolder) -> Iterator[Disagreement]:
        """Publish the records that the database names. Yields models whose record cannot be published."""
        publications, store = [], RecordStore(self.folder)
        failures: dict[tuple[str, str, str | None], FailureRecord] = {}
        for digest in store.failure_digests():
            if (outcome := store.failure(digest)) is not None:
                failures[outcome.identity.base, outcome.identity.model, outcome.identity.commit] = outcome
        for row in connection.rows('SELECT base, "commit" FROM bases ORDER BY base'):
            base = StoredBase(self.folder.base(row["base"], row["commit"]))
            try:
                base.check()
            except (AtlasError, OSError):
                continue  # reported by `verify`
            publications.append(self._publication(connection, copy, base, store, failures))
            self.bases.add(base.base)
        names = list(dict.fromkeys(vectors.representation for vectors in self.published))
        publish(republished, publications, names, from_scratch=True)
        with Reading(republished.database) as connection_of_republished:
            lost = connection_of_republished.rows(
                "SELECT model, detail FROM fine_tunes WHERE status = 'skipped' AND reason = 'does_not_fit' "
                "ORDER BY model"
            )
        for row in lost:
            yield Disagreement("record", printable(row["model"], 200), f"cannot be published: {row['detail']}")

    def _publication(
        self,
        connection: Connection,
        copy: Path,
        base: StoredBase,
        store: RecordStore,
        failures: dict[tuple[str, str, str | None], FailureRecord],
    ) -> Publication:
        """All models of one base with the records that the database names, at the rank of most of them."""
        path = self.folder.listing(base.base)
        listed = {vectors.id: vectors for vectors in Listing(path).models()} if path.is_file() else {}
        with earlier_database(copy) as earlier:
            listed |= {vectors.id: vectors for vectors in known_models(earlier, base.base, listed, ())}
        ranks = Counter[int]()
        entries = []
        for row in connection.rows(
            'SELECT model, "commit", record_key, status FROM fine_tunes WHERE base = ? ORDER BY model_id', (base.base,)
        ):
            if row["model"] not in listed:
                continue
            key, commit, outcome = row["record_key"], row["commit"], None
            if key is not None and (header := store.header(key)) is not None:
                ranks[header.identity.spec.rank] += 1
                commit = header.identity.commit
            elif key is None and row["status"] != "listed":
                outcome = failures.get((base.base, row["model"], commit))
            entries.append(Entry(listed[row["model"]], base.base, commit, record_key=key, outcome=outcome))
        vectors_of_base = [vectors for vectors in self.published if vectors.base == base.base]
        centres = {}
        for vectors in vectors_of_base:
            if vectors.centre is not None and vectors.masks.blocks:
                centre = read_centre(connection, vectors.base, vectors.representation)
                if centre is not None and all(
                    group.blocks.size == vectors.file.length for group in centre.groups.values()
                ):
                    centres[vectors.representation] = centre
        return Publication(
            base=base,
            aliases=(),
            entries=entries,
            rank=ranks.most_common(1)[0][0] if ranks else next((vectors.rank for vectors in vectors_of_base), 1),
            vector_length=next(
                (vectors.budget for vectors in vectors_of_base if vectors.representation == DEFAULT), None
            ),
            centres=centres,
            with_neighbours=False,  # their lists are made from the vectors of the atlas
        )

    def _compare_vectors(
        self, connection: Connection, connection_of_republished: Connection, republished: AtlasFolder
    ) -> Iterator[Disagreement]:
        for published in self.published:
            expected = read_published(connection_of_republished, published.base, published.representation)
            if published.base in self.bases and expected is None:
                yield Disagreement(
                    "vectors", f"{published.base}, {published.representation}", "is not what the records make"
                )
                continue
            try:
                # A wrong number of blocks, or wrong masks, are reported by themselves.
                index = _opened(
                    published if expected is None else replace(published, masks=expected.masks), connection, self.folder
                )
            except AtlasError:
                continue  # reported by `verify`
            if expected is not None and expected.file.length == published.file.length:
                tolerance = TOLERANCE if published.centre is None else _TOLERANCE_OF_HALVES
                for model in _names(
                    connection,
                    _differing_vectors(index, _opened(expected, connection_of_republished, republished), tolerance),
                ):
                    why = f"its vector ({published.representation}) differs from that of its record"
                    yield Disagreement("vectors", model, why)
            if has_neighbours(published.representation):
                yield from _compare_neighbours(connection, published, index)


def _opened(published: Published, connection: Connection, folder: AtlasFolder) -> VectorIndex:
    """The vectors, to be compared. Raises AtlasError if a file is damaged."""
    root = folder.root
    return as_compared(published.opened(root), connection, published.base, published.representation, root)


def _differing_vectors(index: VectorIndex, expected: VectorIndex, tolerance: float) -> list[int]:
    """Ids that both have, with vectors that are not close; missing and extra ones are reported by `verify`."""
    shared_ids, step = np.intersect1d(index.ids, expected.ids), rows_of_block(index.length)
    differing: list[int] = []
    for start in range(0, len(shared_ids), step):
        ids = shared_ids[start : start + step]
        is_close = np.isclose(index.rows(ids).matrix, expected.rows(ids).matrix, atol=tolerance).all(axis=1)
        differing += ids[~is_close].tolist()
    return differing


def _names(connection: Connection, ids: Sequence[int]) -> list[str]:
    rows = connection.rows(
        "SELECT model FROM fine_tunes WHERE list_contains(?, model_id) ORDER BY model_id", (list(ids),)
    )
    return [printable(row["model"], 200) for row in rows] if ids else []


def _compare_tables(connection: duckdb.DuckDBPyConnection) -> Iterator[Disagreement]:
    """Compare the tables of two databases, ``published`` and ``republished``."""
    connection.execute(
        "CREATE TABLE indexed AS SELECT model_id, published.model FROM published.main.fine_tunes AS published "
        "JOIN republished.main.fine_tunes AS republished USING (model_id) "
        "WHERE published.status = 'indexed' AND republished.status = 'indexed'"
    )
    # Models whose row was made from the line that the listing has now.
    connection.execute(
        "CREATE TABLE listed AS SELECT model_id, published.model FROM published.main.fine_tunes AS published "
        "JOIN republished.main.fine_tunes AS republished USING (model_id, fingerprint)"
    )
    for base, columns in _differing(connection, "bases", ("base",), _OF_USERS):
        yield Disagreement("row", base, f"bases differs from its matrices in {', '.join(columns)}")
    for base, name, columns in _differing(connection, "representations", ("base", "representation"), _OF_FILES):
        why = f"representations differs from its records in {', '.join(columns)}"
        yield Disagreement("vectors", f"{base}, {name}", why)
    for models, tables, source in (("indexed", _OF_RECORDS, "record"), ("listed", _OF_LISTING, "line in the listing")):
        for table, (keys, left_out) in tables.items():
            yield from _compare_models(connection, models, table, ("model_id", *keys), left_out, source)
    for table in ("profiles", "profile_layers"):
        columns = ", ".join(f'"{name}"' for name in _columns(connection, table))
        ((count,),) = connection.execute(
            f"SELECT (SELECT count(*) FROM (SELECT {columns} FROM published.main.{table} EXCEPT ALL "
            f"SELECT {columns} FROM republished.main.{table})) + (SELECT count(*) FROM (SELECT {columns} "
            f"FROM republished.main.{table} EXCEPT ALL SELECT {columns} FROM published.main.{table}))"
        ).fetchall()
        if count:
            yield Disagreement("profile", table, f"{count} rows differ from those that the profiles make")


def _compare_models(
    connection: duckdb.DuckDBPyConnection,
    models: str,
    table: str,
    keys: Sequence[str],
    left_out: Sequence[str],
    source: str,
) -> Iterator[Disagreement]:
    """Compare the rows of each model of the table ``models``, first their number and then their values."""
    counts = (
        f"(SELECT model_id, count(*) AS rows FROM {{}}.main.{table} WHERE model_id IN (SELECT model_id FROM {models}) "
        "GROUP BY ALL)"
    )
    odd = connection.execute(
        f"SELECT model_id, model, coalesce(published.rows, 0), coalesce(republished.rows, 0) FROM {models} "
        f"LEFT JOIN {counts.format('published')} AS published USING (model_id) "
        f"LEFT JOIN {counts.format('republished')} AS republished USING (model_id) "
        "WHERE published.rows IS DISTINCT FROM republished.rows ORDER BY model_id"
    ).fetchall()
    for _, model, rows, expected in odd:
        why = f"has {rows} rows in {table}; its {source} makes {expected}"
        yield Disagreement("row", printable(model, 200), why)
    names = dict(connection.execute(f"SELECT model_id, model FROM {models}").fetchall())
    columns_by_model = {model_id: set[str]() for model_id in names}
    for model_id, *_, columns in _differing(connection, table, keys, left_out, models):
        columns_by_model[model_id] |= set(columns)
    # A row with another key has no counterpart.
    on = " AND ".join(f'published."{key}" IS NOT DISTINCT FROM republished."{key}"' for key in keys)
    for (model_id,) in connection.execute(
        f"SELECT DISTINCT model_id FROM published.main.{table} AS published "
        f"ANTI JOIN republished.main.{table} AS republished ON {on} "
        f"WHERE model_id IN (SELECT model_id FROM {models})"
    ).fetchall():
        columns_by_model[model_id] |= set(keys[1:])
    reported = {row[0] for row in odd}
    for model_id, columns in columns_by_model.items():
        if columns and model_id not in reported:
            why = f"{table} differs from its {source} in {', '.join(sorted(columns))}"
            yield Disagreement("row", printable(names[model_id], 200), why)


def _differing(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    keys: Sequence[str],
    left_out: Sequence[str],
    models: str | None = None,
) -> list[tuple[Any, ...]]:
    """The rows with the same ``keys`` of which some columns differ: the keys, and the names of these columns."""
    on = " AND ".join(f'published."{key}" IS NOT DISTINCT FROM republished."{key}"' for key in keys)
    cases = [
        f"CASE WHEN NOT coalesce({_is_same(name, kind)}, false) THEN '{name}' END"
        for name, kind in sorted(_columns(connection, table).items())
        if name not in (*keys, *left_out)
    ]
    if not cases:
        return []
    where = "" if models is None else f" WHERE published.model_id IN (SELECT model_id FROM {models})"
    columns = ", ".join(f'published."{key}"' for key in keys)
    return connection.execute(
        f"SELECT * FROM (SELECT {columns}, list_filter([{', '.join(cases)}], lambda one: one IS NOT NULL) AS differing "
        f"FROM published.main.{table} AS published JOIN republished.main.{table} AS republished ON {on}{where}) "
        "WHERE len(differing) > 0 ORDER BY ALL"
    ).fetchall()


def _columns(connection: duckdb.DuckDBPyConnection, table: str) -> dict[str, str]:
    """Names and types of the columns of a table, as schema.sql has them."""
    return dict(
        connection.execute(
            "SELECT column_name, data_type FROM system.main.duckdb_columns() WHERE database_name = 'republished' "
            "AND schema_name = 'main' AND table_name = ? ORDER BY column_index",
            [table],
        ).fetchall()
    )


def _is_same(name: str, kind: str) -> str:
    """An SQL condition: whether a column has the same value in both, except for rounding."""
    published, republished = f'published."{name}"', f'republished."{name}"'
    equal = f"{published} IS NOT DISTINCT FROM {republished}"
    close = "abs({0} - {1}) <= greatest(" + f"{_ABSOLUTE}, {_RELATIVE}" + " * greatest(abs({0}), abs({1})))"
    if kind in ("FLOAT", "DOUBLE"):
        return f"({equal} OR {close.format(f'{published}::DOUBLE', f'{republished}::DOUBLE')})"
    if kind in ("FLOAT[]", "DOUBLE[]"):
        pair = close.format("pair[1]::DOUBLE", "pair[2]::DOUBLE")
        return (
            f"({equal} OR (len({published}) = len({republished}) AND "
            f"list_bool_and(list_transform(list_zip({published}, {republished}), lambda pair: {pair}))))"
        )
    return equal


def _compare_neighbours(connection: Connection, published: Published, index: VectorIndex) -> Iterator[Disagreement]:
    """Check every list against the one that a publish makes of the vectors in ``index``.

    Near ties may be in another order on another machine.
    """
    name, ids = published.representation, index.ids
    rows = connection.execute(
        "SELECT model_id::BIGINT AS owner, rank::BIGINT AS rank, neighbour_id::BIGINT AS near, similarity "
        "FROM neighbours WHERE representation = ? AND model_id IN (SELECT model_id FROM fine_tunes WHERE base = ?) "
        "ORDER BY model_id, rank, neighbour_id",
        [name, published.base],
    ).fetchnumpy()
    owners, near = np.asarray(rows["owner"]), np.asarray(rows["near"])
    if not (np.isin(owners, ids).all() and np.isin(near, ids).all()):
        yield Disagreement("neighbours", published.base, f"name models that have no vector ({name})")
        return
    wrong = set[int]()
    for block in blocks(index.opened.vectors, min(ROWS, rows_of_block(index.length))):
        expected, rank = nearest(index, [block], NEIGHBOURS)[0].ranked()
        first, last = np.searchsorted(owners, [block.ids[0], block.ids[-1] + 1])
        span = slice(first, last)
        sizes = [
            np.bincount(np.searchsorted(block.ids, column), minlength=len(block))
            for column in (owners[span], expected.owner)
        ]
        odd = block.ids[sizes[0] != sizes[1]]
        wrong |= set(odd.tolist())
        is_compared, is_expected = np.isin(owners[span], odd, invert=True), np.isin(expected.owner, odd, invert=True)
        owner, other, similarity = (
            column[span][is_compared] for column in (owners, near, np.asarray(rows["similarity"]))
        )
        is_right = np.asarray(rows["rank"])[span][is_compared] == rank[is_expected]
        is_right &= np.isclose(similarity, expected.similarity[is_expected], atol=TOLERANCE)
        # Neighbours at another place than in the list that was made must be as similar as they are said to be.
        moved = np.flatnonzero(other != expected.neighbour[is_expected])
        if len(moved):
            exact = index.exact(index.table(block.ids), np.searchsorted(block.ids, owner[moved]), other[moved])
            is_right[moved] &= np.isclose(exact, similarity[moved], atol=TOLERANCE)
        wrong |= set(owner[~is_right].tolist())
        pairs = np.sort(owner * (ids[-1] + 1) + other)
        wrong |= set((pairs[1:][pairs[1:] == pairs[:-1]] // (ids[-1] + 1)).tolist())  # named twice
        wrong |= set(owner[owner == other].tolist())
    if wrong:
        why = f"{len(wrong)} lists do not match the vectors ({name}; first id {min(wrong)})"
        yield Disagreement("neighbours", published.base, why)


def _check_centre(
    folder: AtlasFolder, connection: Connection, published: Published, centre: Centre
) -> Iterator[Disagreement]:
    """Check the centre of every group against the mean of its members, if their records are still present."""
    subject = f"{published.base}, {published.representation}"
    for group, stored in centre.groups.items():
        members = connection.rows(
            "SELECT record_key, vote FROM internal.centre_members WHERE base = ? AND representation = ? "
            "AND vector_group = ? ORDER BY model_id",
            (published.base, published.representation, group),
        )
        if len(members) != stored.models:
            why = f"the centre of group {group} was made from {stored.models} models, but {len(members)} are named"
            yield Disagreement("centre", subject, why)
            continue
        (base,) = connection.rows("SELECT words FROM bases WHERE base = ?", [published.base]) or ({"words": None},)
        expected = _centre_from(folder, published, members, base["words"] or ())
        if expected is None:
            continue
        is_right = expected.blocks.shape == stored.blocks.shape
        is_right = is_right and np.allclose(expected.blocks, stored.blocks, atol=_TOLERANCE_OF_CENTRES)
        is_right = is_right and np.allclose(expected.votes, stored.votes, rtol=_TOLERANCE_OF_CENTRES)
        if not is_right:
            why = f"the centre of group {group} is not the mean of the models it was made from"
            yield Disagreement("centre", subject, why)


def _centre_from(
    folder: AtlasFolder, published: Published, members: list[dict[str, Any]], words: Sequence[str]
) -> GroupCentre | None:
    """The centre of these models; None if a record is missing or holds no factors."""
    blocks, length = published.masks.blocks, published.file.length
    if not members:
        return GroupCentre.nothing(blocks, length // blocks)
    store = RecordStore(folder)
    representation = representation_named(published.representation, published.budget).with_words(words)
    vectors = []
    for member in members:
        try:
            record = store.read(member["record_key"])
            vectors.append(representation.vector(record).astype(np.float32))
        except (AtlasError, TypeError):
            return None
    if any(len(vector) != length for vector in vectors):
        return None
    return centre_of(np.stack(vectors), [row["vote"] for row in members], blocks)
