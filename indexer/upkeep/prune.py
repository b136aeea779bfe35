"""`index prune`: removes what an atlas does not need, or can make or fetch again; and what a base has to keep.

The change of a LoRA is the product of its factors, so an atlas of adapters needs no matrix of the base: rows enough to
compare a sample of a fine-tune are kept, and the norms. A whole base is fetched again as soon as a model needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from indexer.atlas import AtlasFolder
from indexer.database.reading import Reading
from indexer.deltas.stored_base import StoredBase, sampled_shape
from indexer.errors import WRONG_KINDS, AtlasError
from indexer.records.store import RecordHeader, RecordStore, current_record
from indexer.storage.arrays import read_texts
from indexer.storage.atomic_files import leftovers
from indexer.untrusted import load_json, printable

# A base is written again only if this saves more than this share of its file.
_WORTH_WRITING = 0.25


@dataclass(frozen=True)
class Unneeded:
    """Something that can go: its kind, its name, its bytes, why, and what removes it."""

    kind: str
    what: str
    bytes: int
    why: str
    remove: Callable[[], object]

    def as_row(self) -> dict[str, Any]:
        """As JSON."""
        return {"kind": self.kind, "what": self.what, "bytes": self.bytes, "why": self.why}


def prune(folder: AtlasFolder, *, dry_run: bool = False) -> dict[str, Any]:
    """Remove what nothing needs; returns what it was, and the bytes of each kind. ``dry_run``: remove nothing.

    The caller holds the lock of the writer. Raises AtlasError if the database cannot be read, because only that says
    what is needed.
    """
    folder.require()
    with Reading(folder.database) as connection:
        unneeded = list(_unneeded(folder, connection))
    for item in unneeded:
        if not dry_run:
            item.remove()
    freed, rows = sum(item.bytes for item in unneeded), [item.as_row() for item in unneeded]
    return {"atlas": str(folder.root), "dry_run": dry_run, "bytes": freed, "removed": rows}


def keep_sample_if_enough(folder: AtlasFolder, base: str) -> int:
    """Keep only some rows of the base's matrices if no model of the atlas needs all; returns the bytes that this frees.

    The caller holds the lock of the writer.
    """
    with Reading(folder.database) as connection:
        reducible = list(_bases(folder, connection, base))
    for item in reducible:
        item.remove()
    return sum(item.bytes for item in reducible)


def _unneeded(folder: AtlasFolder, connection: Reading) -> Iterator[Unneeded]:
    published = {row["base"]: row["commit"] for row in connection.rows('SELECT base, "commit" FROM bases')}
    store = RecordStore(folder)
    rows = connection.rows("SELECT record_key FROM fine_tunes WHERE record_key IS NOT NULL")
    published_keys = {row["record_key"] for row in rows}
    headers = list(store.headers())
    yield from _records(folder, store, headers, published_keys, published)
    yield from _bases(folder, connection)
    # Matrices of other commits, unless records wait to be published with them.
    identities = [header.identity for header in headers]
    waiting = {(key.base, key.base_commit) for key in identities if key.base not in published}
    for path in sorted(folder.bases.glob("[!.]*.safetensors")):
        if path.is_symlink() or not path.is_file():
            continue
        stored = StoredBase(path)
        with suppress(AtlasError):  # a damaged one is for `index verify`
            if stored.commit != published.get(stored.base) and (stored.base, stored.commit) not in waiting:
                yield _file("base", path, "matrices of a commit that the atlas does not use")
    of_database = {row["faiss_file"] for row in connection.rows("SELECT faiss_file FROM representations")}
    for path in sorted(folder.root.glob("*.faiss")):
        if path.name not in of_database and path.is_file() and not path.is_symlink():
            yield _file("vectors", path, "vectors of an earlier publish")
    for path in leftovers(folder):
        yield _file("temporary file", path, "left by a command that was killed")


def _records(
    folder: AtlasFolder,
    store: RecordStore,
    headers: list[RecordHeader],
    published_keys: set[str],
    published: dict[str, str],
) -> Iterator[Unneeded]:
    """Records that no publish can use: of another commit of the base, or behind the published record of the model."""
    published_headers = {
        (header.identity.base, header.identity.model): header for header in headers if header.digest in published_keys
    }
    parents = {name for header in headers for name in header.identity.parent.split(">") if name}
    for header in headers:
        identity = header.identity
        if header.digest in published_keys or f"{identity.model}@{identity.commit}" in parents:
            continue
        current = published_headers.get((identity.base, identity.model))
        why = ""
        if identity.base in published and identity.base_commit != published[identity.base]:
            why = "made with another commit of the base"
        elif current is not None and current.identity.spec.rank == identity.spec.rank:
            is_older = header.made <= current.made or identity.commit == current.identity.commit
            if is_older and current_record([header, current], current.identity.commit) is current:
                why = "a better or newer record of the model is published"
        if why:
            path = folder.record(header.digest)
            yield Unneeded(
                "record", f"{printable(identity.model, 100)} ({header.digest[:12]})", path.stat().st_size, why,
                partial(store.discard, header.digest),
            )  # fmt: skip


def _bases(folder: AtlasFolder, connection: Reading, base: str | None = None) -> Iterator[Unneeded]:
    """Published bases (all, or one) of which some rows are enough."""
    for row in connection.rows('SELECT base, "commit" FROM bases ORDER BY base'):
        path = folder.base(row["base"], row["commit"])
        if base not in (None, row["base"]) or not path.is_file() or path.is_symlink():
            continue
        stored = StoredBase(path)
        with suppress(AtlasError):  # a damaged one is for `index verify`
            if stored.is_sampled:
                continue
            saved = stored.block_bytes - _sampled_bytes(stored)
            if saved <= _WORTH_WRITING * path.stat().st_size or needs_matrices(folder, connection, row["base"]):
                continue
            yield Unneeded(
                "rows of a base", row["base"], saved, "all its models are adapters that need no matrix of the base",
                partial(_reduce, path),
            )  # fmt: skip


def _reduce(path: Path) -> None:
    from indexer.deltas.base import reduce_to_sample  # imports torch

    reduce_to_sample(path)


def _sampled_bytes(stored: StoredBase) -> int:
    sizes = stored.stored_item_bytes
    return sum(
        rows * columns * sizes[matrix.key]
        for matrix in stored.layout.matrices
        for rows, columns in [sampled_shape(matrix)]
    )


def needs_matrices(folder: AtlasFolder, connection: Reading, base: str) -> bool:
    """Whether a model of the base, read or waiting, needs whole matrices of it.

    So do full weights, spectra, and adapters whose change is a function of the weights (DoRA, IA3, OFT, saved modules):
    only of these ⟨W, δW⟩ was computed, as their records say.
    """
    (row,) = connection.rows(
        "SELECT count(*) FILTER (status = 'indexed' AND (base_cosine IS NOT NULL OR has_spectra)) + "
        "count(*) FILTER (status IN ('listed', 'failed') AND relation <> 'adapter') AS others, "
        "list(record_key) FILTER (status = 'indexed') AS keys, count(*) FILTER (status = 'indexed') AS indexed "
        "FROM fine_tunes LEFT JOIN records USING (model_id, record_key) WHERE base = ?",
        [base],
    )
    if row["others"] or not row["indexed"]:
        return True
    return any(_computed_with_weights(folder.record(key)) for key in row["keys"])


def _computed_with_weights(path: Path) -> bool:
    """Whether a record says so, or cannot be read."""
    try:
        header = load_json(read_texts(path)["record"])
        return any(delta["inner"] != 0 for delta in header["deltas"])
    except (OSError, AtlasError, *WRONG_KINDS):
        return True


def _file(kind: str, path: Path, why: str) -> Unneeded:
    size = path.lstat().st_size
    return Unneeded(kind, printable(path.name, 200), size, why, partial(path.unlink, missing_ok=True))
