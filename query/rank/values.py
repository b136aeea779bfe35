"""The rank of every matrix of some models, at one share of the energy.

Shares that the database has columns for are answered from it; any other from the singular values in the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from indexer.errors import AtlasError
from indexer.names import FAMILIES, DeltaKey, family_key
from indexer.records.energy import RANK_THRESHOLDS
from query.rank.models import Candidate

if TYPE_CHECKING:
    from indexer.records.record import DeltaRecord, FusedMatrixRecord, Record
    from query.reader import AtlasReader


@dataclass(frozen=True)
class Cell:
    """One matrix of the base: that of a family in one layer, or a fused one taken whole (``query_key_value``)."""

    stack: str
    layer: int
    family: str

    @property
    def family_key(self) -> str:
        """See :func:`indexer.names.family_key`."""
        return family_key(self.stack, self.family)


@dataclass(frozen=True)
class Ranks:
    """``values`` (models, cells): the rank of each matrix; 0 where a change is zero, NaN where it is not known."""

    candidates: tuple[Candidate, ...]
    cells: tuple[Cell, ...]
    values: NDArray[np.float64]

    @property
    def known(self) -> NDArray[np.bool_]:
        """Models of which every rank is known."""
        return np.asarray(~np.isnan(self.values).any(axis=1))

    @property
    def comparable(self) -> NDArray[np.bool_]:
        """Models that a mean may be taken over: all where every rank is known, else those with spectra.

        The largest singular values alone know only small ranks: models chosen by that would make the mean too small.
        """
        known = self.known
        if not known.all():
            known &= np.array([one.has_spectra for one in self.candidates], dtype=bool)
        return known


def read_ranks(
    atlas: AtlasReader, base: str, candidates: Sequence[Candidate], *, of: str, threshold: float, whole: bool
) -> Ranks:
    """The ranks of δW (``of`` = "delta") or of W ("weights"); ``whole``: fused matrices whole instead of their parts.

    Raises AtlasError where nothing is known of the matrices, none is fused or has spectra, and where a record is
    damaged.
    """
    cells = _cells(atlas, base, whole)
    percent = round(threshold * 100)
    if percent in RANK_THRESHOLDS and abs(threshold * 100 - percent) < 1e-9:
        column = f"weight_rank_{percent}" if of == "weights" else f"rank_{percent}"
        values = _from_database(atlas, candidates, cells, column)
    else:
        values = _from_records(atlas, candidates, cells, of, threshold)
    return Ranks(tuple(candidates), cells, values)


def _cells(atlas: AtlasReader, base: str, whole: bool) -> tuple[Cell, ...]:
    """Encoder before decoder, in the order of FAMILIES, by layer; a fused matrix in the place of its first part."""
    (row,) = atlas.rows("SELECT deltas FROM bases WHERE base = ?", [base])
    if row["deltas"] is None:
        raise AtlasError(f"The atlas does not say which matrices {base} has.", "Run `index rebuild`.")
    keys = [DeltaKey.parse(name) for name in row["deltas"]]
    keys.sort(key=lambda key: (key.stack == "decoder", FAMILIES.index(key.family), key.layer))
    fused = _fused(atlas, base) if whole else {}
    cells = (Cell(key.stack, key.layer, fused.get((key.stack, key.family), key.family)) for key in keys)
    return tuple(dict.fromkeys(cells))


def _fused(atlas: AtlasReader, base: str) -> dict[tuple[str, str], str]:
    """For each (stack, family) that the base stores fused, the name of the whole."""
    rows = atlas.rows(
        "SELECT DISTINCT stack, fused_matrices.family, families FROM fused_matrices "
        "JOIN fine_tunes USING (model_id) WHERE base = ?",
        [base],
    )
    if not rows:
        (some,) = atlas.rows("SELECT count(*) AS models FROM models WHERE base = ? AND has_spectra", [base])
        if some["models"]:
            raise AtlasError(f"{base} stores no fused matrices.", "Leave `whole` out.")
        raise AtlasError(
            f"No model of {base} has spectra in this atlas, and fused matrices are known from them alone.",
            f"Read them: `build({base!r}, spectra=True)`",
        )
    return {(row["stack"], family): row["family"] for row in rows for family in row["families"]}


def _from_database(
    atlas: AtlasReader, candidates: Sequence[Candidate], cells: Sequence[Cell], column: str
) -> NDArray[np.float64]:
    models = [one.model_id for one in candidates]
    found = atlas.connection.execute(
        f"""
        SELECT model.place AS model, cell.place AS cell, {column}::DOUBLE AS rank
        FROM (FROM deltas UNION ALL BY NAME FROM fused_matrices) AS measured
        JOIN (SELECT unnest(?::INTEGER[]) AS model_id, unnest(?::INTEGER[]) AS place) AS model USING (model_id)
        JOIN (SELECT unnest(?::VARCHAR[]) AS stack, unnest(?::INTEGER[]) AS layer, unnest(?::VARCHAR[]) AS family,
                     unnest(?::INTEGER[]) AS place) AS cell USING (stack, layer, family)
        WHERE {column} IS NOT NULL
        """,
        [
            models,
            list(range(len(models))),
            *([getattr(cell, name) for cell in cells] for name in ("stack", "layer", "family")),
            list(range(len(cells))),
        ],
    ).fetchnumpy()
    values = np.full((len(candidates), len(cells)), np.nan)
    values[found["model"], found["cell"]] = found["rank"]
    return values


def _from_records(
    atlas: AtlasReader, candidates: Sequence[Candidate], cells: Sequence[Cell], of: str, threshold: float
) -> NDArray[np.float64]:
    from indexer.console.messages import Progress
    from indexer.records.store import RecordStore

    store = RecordStore(atlas.folder)
    values = np.full((len(candidates), len(cells)), np.nan)
    with Progress(len(candidates), "reading singular values") as progress:
        for place, one in enumerate(candidates):
            ranks = _ranks_in(store.read(one.record_key), of, threshold)
            values[place] = [ranks.get(cell, np.nan) for cell in cells]
            progress.update()
    return values


def _ranks_in(record: Record, of: str, threshold: float) -> dict[Cell, float]:
    """What one record knows."""
    measured: dict[Cell, DeltaRecord | FusedMatrixRecord] = {}
    for delta in record.deltas:
        measured[Cell(delta.key.stack, delta.key.layer, delta.key.family)] = delta
    for whole in record.fused_matrices:
        measured[Cell(whole.parts[0].stack, whole.parts[0].layer, whole.family)] = whole
    ranks = {
        cell: (one.weight_ranks if of == "weights" else one.change_ranks)([threshold])[0]
        for cell, one in measured.items()
    }
    return {cell: float(rank) for cell, rank in ranks.items() if rank is not None}
