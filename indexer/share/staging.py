"""Prepare one generation of an atlas for a push, while builds may continue.

The database is rewritten, so that no deleted or replaced rows are left in its file. The files that it names are linked
(they never change; a publish only removes them). Paths and addresses of this machine and its network, and names of
removed models, are left out.

The atlas is added as Parquet, for DuckDB, pandas, ``datasets`` and the Hub's viewer. Row groups have a fixed size and
rows are sorted, so that unchanged rows give the same bytes.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np

from indexer.atlas import DATABASE, SCHEMA_VERSION, AtlasFolder, file_name, take_lock
from indexer.database.catalog import empty_database
from indexer.database.connection import Connection, translated_errors
from indexer.database.gate import copy_table, tables_of
from indexer.database.reading import Reading
from indexer.database.secure_connection import attached_for_writing, quoted, use
from indexer.errors import AtlasError, system_errors
from indexer.listing.exchange import exported_lines
from indexer.listing.listed_models import Line
from indexer.listing.trees import QUESTION
from indexer.publish.previous_atlas import BY_RECORD
from indexer.publish.stored_answers import ANSWERS, exported_answers
from indexer.regular_files import descriptor_of, regular_status
from indexer.share.contents import known_digests, named_files
from indexer.share.manifest import ATLAS, DATA, RECORDS, FileEntry, Manifest
from indexer.shared_state import usable_umask
from indexer.sources.cards.paths import without_paths
from indexer.sources.claims import BY_FOLDER
from indexer.sources.runs import RUN, run_in
from indexer.storage.atomic_files import copy_file, link_or_copy
from indexer.storage.checksummed_jsonl import write_lines
from indexer.storage.checksums import file_sha256
from indexer.vectors.published import Published, read_published
from indexer.vectors.stored import OpenVectors
from indexer.version import __version__

_COPY = "published.duckdb"  # in the staging folder; removed before the manifest is made
# Attempts: a publish may remove files between copying the database and linking the files it names.
_TRIES = 5
ROWS = 10_000  # of a row group
_VECTOR_ROWS = 1_000
_IDS_OF_PART = 4_000  # in each Parquet file of vectors

# The SELECT of each table, by the name of its file and of the card's configuration.
EXPORTS = {
    "models": "SELECT * REPLACE (training::VARCHAR AS training) FROM models ORDER BY model_id",
    "datasets": "SELECT model_id, base, model, dataset, named.parent, raw, source FROM model_datasets AS named "
    "JOIN fine_tunes USING (model_id) ORDER BY model_id, dataset, raw, source",
    "neighbours": "SELECT near.representation, asked.base, near.model_id, asked.model, near.rank, near.neighbour_id, "
    "found.model AS neighbour, near.similarity FROM neighbours AS near "
    "JOIN fine_tunes AS asked ON asked.model_id = near.model_id "
    "JOIN fine_tunes AS found ON found.model_id = near.neighbour_id ORDER BY 1, 3, 5",
    "failures": "SELECT model_id, base, model, author, status, reason, detail, downloads, created FROM fine_tunes "
    "WHERE status <> 'indexed' ORDER BY model_id",
    "evaluations": "FROM evaluations ORDER BY ALL",
    "lineage": "SELECT base, child.model, parents.model AS parent, lineage.* EXCLUDE (record_key, answered_at) "
    "FROM lineage JOIN fine_tunes AS child USING (model_id) "
    "LEFT JOIN (SELECT model_id AS parent_id, model FROM fine_tunes) AS parents USING (parent_id) ORDER BY ALL",
    "depth": "FROM depth_of_models ORDER BY ALL",
    "bases": "SELECT * EXCLUDE (config), config::VARCHAR AS config FROM bases ORDER BY base",
}
# These are written even if they are empty.
_ALWAYS = ("models", "datasets", "neighbours", "bases")

# Conditions on fine_tunes. The names of gated models are public; only their weights are not.
_PRIVATE = f"private OR (gated IS NOT NULL AND status = 'indexed') OR claimed_by = '{BY_RECORD}'"
_LOCAL = f"author = 'local' OR claimed_by = '{BY_FOLDER}' OR starts_with(model, 'local:')"
# Models of other sources, whose names (of a bucket, say) may be private: their ids begin with a scheme.
_ELSEWHERE = f"contains(model, ':') AND NOT ({_LOCAL})"
# Texts from the files of local folders, by model.
_LOCAL_TEXTS = (
    f"SELECT model, named AS text FROM fine_tunes JOIN adapter_bases USING (model_id) WHERE {_LOCAL} "
    f"UNION SELECT model, raw FROM fine_tunes JOIN model_datasets USING (model_id) WHERE {_LOCAL} "
    f"UNION SELECT model, stated_base FROM fine_tunes JOIN records USING (model_id) WHERE {_LOCAL} "
    f"AND stated_base IS NOT NULL"
)
# How a bad row of a private model begins.
_PRIVATE_BAD_ROW = r'\{("id": "[^"]*", )?"private": true'
# Tables that are not copied completely. The crawled address may be that of a mirror, or hold a password.
_PARTS = {
    "builds": "SELECT * REPLACE (json_merge_patch(spec, '{\"endpoint\": null}') AS spec) FROM {}",
    # A hash of a path can be inverted by trying likely names of folders.
    "fine_tunes": f"SELECT * REPLACE (CASE WHEN run_key IS NULL OR NOT ({_LOCAL} OR contains(model, ':')) THEN run_key "
    "ELSE min(model) OVER (PARTITION BY base, run_key) END AS run_key) FROM {}",
    "rejected_listing_rows": f"FROM {{}} WHERE NOT regexp_matches(raw, {quoted('^' + _PRIVATE_BAD_ROW)})",
}


@dataclass
class Staged:
    """Files of one generation of ``atlas`` by path in the repository; ``manifest`` lists all but packs and the card."""

    atlas: AtlasFolder
    folder: Path
    manifest: Manifest
    sources: dict[str, Path] = field(default_factory=dict)
    private: tuple[str, ...] = ()  # models that are private or gated on the Hub, or in no listing
    local: tuple[str, ...] = ()  # models of local folders
    elsewhere: tuple[str, ...] = ()  # models of other sources than the Hub
    with_path: tuple[str, ...] = ()  # local models whose record holds a path of this machine
    digests: frozenset[str] = frozenset()  # of records and profiles that may be pushed
    skipped: int = 0

    def add(self, path: str, part: str, source: Path | None = None) -> FileEntry:
        """Add a file of the folder, or the file ``source`` under that path."""
        source = source or self.folder / path
        entry = FileEntry(path, source.stat().st_size, file_sha256(source), part)
        self.sources[path] = source
        self.manifest = replace(self.manifest, files=(*self.manifest.files, entry))
        return entry

    def add_table(self, connection: Connection, select: str, path: str, *, is_needed: bool) -> None:
        """Add the rows of ``select`` as Parquet; an empty table only if it ``is_needed``."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        batches = connection.batches(select, ROWS)
        first = next(batches)
        if not (first.num_rows or is_needed):
            return
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(self.folder / path, first.schema, compression="zstd") as writer:
            for batch in chain([first], batches):
                writer.write_table(pa.Table.from_batches([batch]), row_group_size=ROWS)
        self.add(path, DATA)

    def add_vectors(self, connection: Connection, published: Published) -> None:
        """Add the vectors of one (base, representation) as Parquet: model_id, model, vector of a fixed length.

        One file for each ``_IDS_OF_PART`` ids, so that the next push sends only those that changed. Raises AtlasError
        if the FAISS file is missing or damaged.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = connection.execute("SELECT model_id, model FROM fine_tunes WHERE base = ?", [published.base]).fetchall()
        names = dict(rows)
        schema = pa.schema(
            [("model_id", pa.int32()), ("model", pa.string()), ("vector", pa.list_(pa.float32(), published.length))]
        )
        opened = OpenVectors(self.folder, published.file)
        for number in np.unique(opened.ids // _IDS_OF_PART).tolist():
            vectors = opened.rows(opened.ids[opened.ids // _IDS_OF_PART == number])
            path = f"vectors/{file_name(published.base)}.{published.representation}/{number:05}.parquet"
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            # Unit vectors do not compress, and dictionaries of them only cost time.
            with pq.ParquetWriter(self.folder / path, schema, use_dictionary=["model"], compression="none") as writer:
                for start in range(0, len(vectors), _VECTOR_ROWS):
                    span = slice(start, start + _VECTOR_ROWS)
                    ids, flat = vectors.ids[span], pa.array(vectors.copied(span).reshape(-1), pa.float32())
                    columns = [
                        pa.array(ids, pa.int32()),
                        pa.array([names.get(int(model_id)) for model_id in ids], pa.string()),
                        pa.FixedSizeListArray.from_arrays(flat, published.length),
                    ]
                    writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=_VECTOR_ROWS)
            self.add(path, DATA)


@contextmanager
def staged(atlas: AtlasFolder, *, with_records: bool) -> Iterator[Staged]:
    """The published generation in a folder that is removed when the block ends.

    Raises AtlasError if there is no atlas, it comes with the program, another push of it is running, or a file is
    missing or damaged.
    """
    folder = atlas.require().require_writable().root / ".push"
    with usable_umask():
        is_new = not folder.exists()
        hint = "A push prepares its files there: copy the atlas to a writable folder."
        with system_errors(lambda why: AtlasError(f"{atlas.root} cannot be written to: {why}.", hint)):
            folder.mkdir(exist_ok=True)
            handle = descriptor_of(folder / "lock", os.O_RDWR | os.O_CREAT)
        try:
            try:
                take_lock(handle, atlas.root)
                if not os.fstat(handle).st_nlink:  # another push has just removed it
                    raise BlockingIOError
            except BlockingIOError as error:
                raise AtlasError(f"Another push of {atlas.root} is running.", "Wait for it to finish.") from error
            except AtlasError:
                if is_new:
                    shutil.rmtree(folder, ignore_errors=True)
                raise
            shutil.rmtree(folder / "files", ignore_errors=True)  # left by a killed push
            try:
                yield _stage(atlas, folder / "files", with_records)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(handle)


def _stage(atlas: AtlasFolder, folder: Path, with_records: bool) -> Staged:
    # Copy the database and link the files it names, which a newer generation may remove meanwhile.
    for tries_left in reversed(range(_TRIES)):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            copy_file(atlas.database, folder / _COPY, through_links=True)
            with Reading(folder / _COPY) as connection:
                checksum_of = named_files(connection)
            for path in checksum_of:
                link_or_copy(atlas.root / path, folder / path)
            break
        except FileNotFoundError as error:
            if not tries_left:
                name = Path(str(error.filename)).name
                raise AtlasError(f"The file {name} of the atlas is missing.", "Run: index verify") from error
    checksum = file_sha256(folder / _COPY)
    with translated_errors(folder / DATABASE):
        _rewrite(folder / _COPY, folder / DATABASE)
    (folder / _COPY).unlink()

    with Reading(folder / DATABASE) as connection:
        made = Staged(atlas, folder, replace(_manifest(connection), source=checksum))
        made.add(DATABASE, ATLAS)
        for path, sha256 in checksum_of.items():
            if made.add(path, ATLAS).sha256 != sha256:
                raise AtlasError(
                    f"The file {path} is damaged: its checksum does not match.",
                    "Run `index rebuild` before a push.",
                )
        for name, select in EXPORTS.items():
            made.add_table(connection, select, f"data/{name}.parquet", is_needed=name in _ALWAYS)
        for base in made.manifest.commits:
            select = (
                "SELECT model, deltas.* FROM deltas JOIN fine_tunes USING (model_id) "
                f"WHERE base = {quoted(base)} ORDER BY model_id, stack, layer, family"
            )
            made.add_table(connection, select, f"data/deltas/{file_name(base)}.parquet", is_needed=False)
        for row in made.manifest.representations:
            published = read_published(connection, row["base"], row["representation"])
            if published is not None:
                made.add_vectors(connection, published)
        models = "SELECT DISTINCT model FROM fine_tunes WHERE {} ORDER BY model"
        made.private = tuple(row["model"] for row in connection.rows(models.format(_PRIVATE)))
        made.local = tuple(row["model"] for row in connection.rows(models.format(_LOCAL)))
        made.elsewhere = tuple(row["model"] for row in connection.rows(models.format(_ELSEWHERE)))
        texts = connection.rows(_LOCAL_TEXTS)
        made.with_path = tuple(row["model"] for row in texts if without_paths(row["text"]) != row["text"])
        counted = "SELECT count(*) AS models FROM fine_tunes WHERE status IN ('skipped', 'failed')"
        made.skipped = connection.rows(counted)[0]["models"]
        if with_records:
            made.digests = known_digests(atlas, connection)
    exported = AtlasFolder(folder)
    for base in made.manifest.commits:
        for kind in ANSWERS:
            answers, _ = exported_answers(kind, atlas, base)
            if answers:
                target = exported.exported(kind.table, base)
                write_lines(target, answers)
                made.add(target.relative_to(folder).as_posix(), ATLAS)
    for base in made.manifest.commits if with_records else ():
        # The listing of a base and its block matrices, which a build needs.
        matrices = atlas.base(base, made.manifest.commits[base])
        if matrices.is_file():
            regular_status(matrices)
            made.add(matrices.relative_to(atlas.root).as_posix(), RECORDS, matrices)
        lines = list(exported_lines(atlas, base))
        if lines:
            target = exported.exported("listing", base)
            write_lines(target, _without_secrets(lines))
            made.add(target.relative_to(folder).as_posix(), RECORDS)
    return made


def _without_secrets(lines: Sequence[Line]) -> Iterator[Line]:
    """The models of a listing and their former names.

    Removed models are left out, and so are models that were examined and do not belong to this base: they may be
    private models of the person who crawled.
    """
    removed, listed = ({line["id"] for line in lines if line["kind"] == kind} for kind in ("removed", "model"))
    lines = _with_named_runs(lines)
    for line in lines:
        kind = line["kind"]
        is_named = kind == "renamed" and line["to"] in listed and line["id"] not in removed
        if kind == "model":
            yield _without_places(line)
        elif kind in ("base", "step") or is_named or (kind == "bad" and not re.match(_PRIVATE_BAD_ROW, line["raw"])):
            yield line


def _with_named_runs(lines: Sequence[Line]) -> list[Line]:
    """The lines with runs called after the first of their models, as in the database that is pushed."""
    runs = {
        line["id"]: run[0] for line in lines if line["kind"] == "model" and (run := run_in(line["row"])) is not None
    }
    first: dict[str, str] = {}
    for model in sorted(runs):
        first.setdefault(runs[model], model)
    return [
        {**line, "row": {**line["row"], RUN: {**line["row"][RUN], "key": first[runs[line["id"]]]}}}
        if line["kind"] == "model" and line["id"] in runs
        else line
        for line in lines
    ]


def _without_places(line: Line) -> Line:
    """A model of a listing without its path on this machine or its bucket, and without a hash of these.

    The hash could be inverted by trying likely names of folders.
    """
    row, claims = line["row"], line["claims"]
    if "folder" in row or line["was"]["claimed_by"] == BY_FOLDER:
        row = without_paths({name: value for name, value in row.items() if name != "folder"})
    questions = {name: "tree" if name.startswith(QUESTION) else name for name in claims}
    return {**line, "row": row, "claims": {questions[name]: claim for name, claim in claims.items()}}


def _rewrite(copy: Path, target: Path) -> None:
    """Write a new database with the rows of ``copy`` that readers may see.

    DuckDB leaves deleted and replaced rows in a file until it needs their space. Raises duckdb.Error.
    """
    target.write_bytes(empty_database())
    with attached_for_writing(target, others={"published": copy}) as connection:
        use(connection)
        connection.execute("BEGIN")
        for schema, table in tables_of(connection):
            copy_table(connection, "published", schema, table, _PARTS.get(table, "FROM {}"))
        connection.execute("COMMIT")
        connection.execute("CHECKPOINT")


def _manifest(connection: Connection) -> Manifest:
    info = connection.rows("SELECT generation, published, tool_version FROM atlas_info")[0]
    bases = connection.rows(
        'SELECT base, "commit", (SELECT count(*) FROM models WHERE models.base = bases.base) AS models '
        "FROM bases ORDER BY base"
    )
    representations = connection.rows(
        "SELECT base, representation, version, rank, length, vectors FROM representations ORDER BY ALL"
    )
    return Manifest(
        generation=int(info["generation"]),
        schema=SCHEMA_VERSION,
        tool=f"vectors-in-the-wild {info['tool_version'] or __version__}",
        published=f"{info['published'].isoformat(timespec='seconds')}Z" if info["published"] is not None else "",
        bases=tuple(bases),
        representations=tuple(representations),
        counts={
            "models": sum(row["models"] for row in bases),
            **connection.rows(
                "SELECT (SELECT count(*) FROM fine_tunes) AS listed, "
                "(SELECT count(DISTINCT dataset) FROM model_datasets) AS datasets"
            )[0],
        },
    )
