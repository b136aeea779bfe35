"""The rows and vectors of one model, made so that they fit the database, or refused for that model alone.

A listing, a card and a record may be anybody's. What cannot be made of them, or does not fit the tables, is a
Misfit of one model and never the end of a publish.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from indexer.deltas.stored_base import StoredBase
from indexer.errors import WRONG_KINDS, AtlasError
from indexer.publish.fitting import Fitting, Misfit
from indexer.publish.rows import (
    Entry,
    ListingRows,
    Row,
    adapter_base_rows,
    delta_rows,
    fused_matrix_rows,
    listing_rows,
    record_row,
)
from indexer.records.record import Record
from indexer.records.representation import DEFAULT, Representation, Vector
from indexer.records.signature import signature_of
from indexer.records.store import RecordStore
from indexer.untrusted import printable
from indexer.vectors.form import MOST_NUMBERS


@dataclass(frozen=True)
class Measured:
    """What a record says: its rows by table, and its vectors by representation where it holds what they are made of.

    ``group``: whose centre is subtracted from its vectors; ``blocks``: of vectors that are compared block by block.
    """

    rows: dict[str, list[Row]]
    vectors: dict[str, Vector]
    group: str
    blocks: int


def fitting_listing_rows(model_id: int, entry: Entry, fitting: Fitting) -> ListingRows:
    """The rows of one listed model that fit; what does not is null or left out, and noted among the oddities.

    Raises Misfit where not even its name fits.
    """
    with _as_misfit("the listing's row"):
        rows = listing_rows(model_id, entry)
    fine_tune, odd = fitting.without_misfits("fine_tunes", rows.fine_tune)
    notes = [f"{column}: does not fit" for column in odd]
    kept = {
        "tags": fitting.those_that_fit("tags", rows.tags),
        "model_datasets": fitting.those_that_fit("model_datasets", rows.datasets),
        "evaluations": fitting.those_that_fit("evaluations", rows.evaluations),
    }
    made = {"tags": rows.tags, "model_datasets": rows.datasets, "evaluations": rows.evaluations}
    notes += [f"{table}: a row does not fit" for table in kept if len(kept[table]) < len(made[table])]
    if notes:
        fine_tune["oddities"] = [*(fine_tune["oddities"] or ()), *notes]
    return replace(
        rows,
        fine_tune=fine_tune,
        tags=kept["tags"],
        datasets=kept["model_datasets"],
        evaluations=kept["evaluations"],
    )


def measured(
    model_id: int,
    record_key: str,
    base: StoredBase,
    store: RecordStore,
    fitting: Fitting,
    representations: Sequence[Representation],
) -> Measured:
    """What one record has to say to the database; of ``representations`` those that it holds.

    Raises Misfit where the record cannot be read, is not one of this base's matrices, or does not fit.
    """
    try:
        record = store.read(record_key)
    except AtlasError as error:
        raise Misfit(str(error).rstrip(".")) from error
    with _as_misfit("the record"):
        _check_matrices(record, base)
        rows = {
            "records": [record_row(model_id, record, record_key)],
            "deltas": delta_rows(model_id, record),
            "fused_matrices": fused_matrix_rows(model_id, record),
            "adapter_bases": adapter_base_rows(model_id, record),
        }
        vectors = {one.name: _vector(one, record) for one in representations if one.is_held_by(record)}
        rows["records"][0]["signature"] = signature_of(vectors[DEFAULT]) if DEFAULT in vectors else None
        for table, found in rows.items():
            fitting.check(table, found)
    return Measured(rows, vectors, record.vector_group, len(record.deltas))


def _check_matrices(record: Record, base: StoredBase) -> None:
    """Records of one base have the same matrices in the same order: all that compares them goes by that."""
    expected = [(matrix.key, tuple(matrix.shape)) for matrix in base.layout.matrices]
    if [(delta.key, tuple(delta.shape)) for delta in record.deltas] != expected:
        raise Misfit(f"its matrices are not those of {base.base}")


def _vector(representation: Representation, record: Record) -> Vector:
    vector = np.asarray(representation.vector(record), dtype=np.float32)
    length = representation.expected_length(record) or vector.size
    if vector.shape != (length,) or not length or length > MOST_NUMBERS:
        raise Misfit(f"its vector {representation.tag} has the shape {vector.shape}, not {(length,)}")
    if not np.isfinite(vector).all():
        raise Misfit(f"its vector {representation.tag} is not finite")
    return vector


@contextmanager
def _as_misfit(what: str) -> Iterator[None]:
    try:
        yield
    except Misfit:
        raise
    except WRONG_KINDS as error:
        said = printable(str(error).partition("\n")[0], 200)
        raise Misfit(f"{what} is malformed ({type(error).__name__}: {said})") from error
