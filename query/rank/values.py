"""The models that a study of ranks counts, and the rank of every matrix of each at one share of the energy.

Shares that the database has columns for are read from it; others are computed from the singular values in the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from indexer.errors import AtlasError, BadArgument
from indexer.names import FAMILIES, RELATIONS, DeltaKey, ModelRef, family_key
from indexer.records.record import RANK_THRESHOLDS
from query.lookup import base_in_hint, unknown_model
from query.population import LeftOut

if TYPE_CHECKING:
    from indexer.records.record import DeltaRecord, FusedMatrixRecord
    from query.reader import AtlasReader


@dataclass(frozen=True)
class Candidate:
    """A model that a study is about."""

    model_id: int
    model: str
    record_key: str
    has_spectra: bool


def checked_relations(text: str | None) -> tuple[str, ...]:
    """Relations separated by commas; an empty tuple for None. Raises AtlasError on an unknown relation."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(","))) if text is not None else ()
    for name in names:
        if name not in RELATIONS:
            raise BadArgument(
                f"Unknown relation {name!r} (choose {', '.join(RELATIONS)}).", "Use `relation='finetune'`."
            )
    return names


def countable_models(atlas: AtlasReader, base: str, relations: tuple[str, ...]) -> tuple[list[Candidate], LeftOut]:
    """The models of a base that count, by id, and how many copies, unrelated models and duplicates do not.

    A duplicate replaces its first upload if only the duplicate has spectra. Raises AtlasError if no model is left.
    """
    rows = atlas.rows(
        "SELECT model_id, model, record_key, has_spectra, is_copy, is_unrelated, duplicate_group FROM models "
        "WHERE base = ? AND (len(?::VARCHAR[]) = 0 OR list_contains(?, relation)) "
        "ORDER BY has_spectra DESC, duplicate_of IS NOT NULL, model_id",
        [base, list(relations), list(relations)],
    )
    if not rows:
        what = f"No {' or '.join(relations)} of {base} is indexed." if relations else f"No model of {base} is indexed."
        raise AtlasError(what, f"Run: `build({base!r}, spectra=True)`")
    chosen: list[Candidate] = []
    groups: set[int] = set()
    counts = {"copies": 0, "unrelated": 0, "duplicates": 0}
    for row in rows:
        if row["is_copy"]:
            counts["copies"] += 1
        elif row["is_unrelated"]:
            counts["unrelated"] += 1
        elif row["duplicate_group"] in groups:
            counts["duplicates"] += 1
        else:
            groups |= {row["duplicate_group"]} - {None}
            chosen.append(Candidate(row["model_id"], row["model"], row["record_key"], row["has_spectra"]))
    left_out = LeftOut(**counts)
    if not chosen:
        raise AtlasError(f"No model of {base} remains to study (left out: {', '.join(left_out.words())}).", "")
    return sorted(chosen, key=lambda one: one.model_id), left_out


def one_model(atlas: AtlasReader, name: str, base: str | None) -> tuple[Candidate, str, list[str]]:
    """One model, its base, and notes on its flags. Raises AtlasError if it is not indexed."""
    found = atlas.find(ModelRef.parse(name), base)
    if found is None:
        hint = f"Only models of the atlas: `add({name!r}, {base_in_hint(atlas, base)!r}, spectra=True)`"
        raise unknown_model(atlas, name, hint)
    rows = atlas.rows(
        "SELECT record_key, has_spectra, is_copy, is_unrelated, duplicate_of IS NOT NULL AS is_duplicate "
        "FROM models WHERE model_id = ?",
        [found.model_id],
    )
    if not rows:
        why = f": {found.detail}" if found.detail else ""
        raise AtlasError(f"{found.model} is not indexed but {found.status}{why}.", f"See: query show {found.model}")
    row = rows[0]
    flags = {"is_copy": "a copy of the base", "is_unrelated": "unrelated to the base", "is_duplicate": "a duplicate"}
    notes = [f"it is {words}" for flag, words in flags.items() if row[flag]]
    return Candidate(found.model_id, found.model, row["record_key"], row["has_spectra"]), found.base, notes


@dataclass(frozen=True)
class Cell:
    """One matrix of the base: a family in one layer, or a fused matrix taken whole (``query_key_value``)."""

    stack: str
    layer: int
    family: str

    @property
    def family_key(self) -> str:
        """See :func:`indexer.names.family_key`."""
        return family_key(self.stack, self.family)


@dataclass(frozen=True)
class Ranks:
    """``values`` (models, cells): the rank of each matrix; 0 for a zero change, NaN where it is not known."""

    candidates: tuple[Candidate, ...]
    cells: tuple[Cell, ...]
    values: NDArray[np.float64]

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which models have every rank known."""
        return np.asarray(~np.isnan(self.values).any(axis=1))

    @property
    def comparable(self) -> NDArray[np.bool_]:
        """Which models the mean may include: all if every rank is known, else those with spectra.

        The largest singular values alone give only small ranks, so including those models would bias the mean down.
        """
        known = self.known
        if not known.all():
            known &= np.array([one.has_spectra for one in self.candidates], dtype=bool)
        return known


def read_ranks(
    atlas: AtlasReader, base: str, candidates: Sequence[Candidate], *, of: str, threshold: float, whole: bool
) -> Ranks:
    """The ranks of δW (``of`` = "delta") or of W ("weights"); ``whole``: of fused matrices instead of their parts.

    Raises AtlasError if the base's matrices are not known, if none is fused or has spectra, or if a record is damaged.
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
    """Encoder before decoder, in the order of FAMILIES, by layer; a fused matrix comes where its first part would."""
    (row,) = atlas.rows("SELECT deltas FROM bases WHERE base = ?", [base])
    if row["deltas"] is None:
        raise AtlasError(f"The atlas does not say which matrices {base} has.", "Run `index rebuild`.")
    keys = [DeltaKey.parse(name) for name in row["deltas"]]
    keys.sort(key=lambda key: (key.stack == "decoder", FAMILIES.index(key.family), key.layer))
    fused = _fused(atlas, base) if whole else {}
    cells = (Cell(key.stack, key.layer, fused.get((key.stack, key.family), key.family)) for key in keys)
    return tuple(dict.fromkeys(cells))


def _fused(atlas: AtlasReader, base: str) -> dict[tuple[str, str], str]:
    """The name of the fused matrix for each (stack, family) that the base stores fused."""
    rows = atlas.rows(
        "SELECT DISTINCT stack, fused_matrices.family, families FROM fused_matrices "
        "JOIN fine_tunes USING (model_id) WHERE base = ?",
        [base],
    )
    if not rows:
        (some,) = atlas.rows("SELECT count(*) AS models FROM models WHERE base = ? AND has_spectra", [base])
        if some["models"]:
            raise AtlasError(f"{base} stores no fused matrices.", "Omit `whole`.")
        raise AtlasError(
            f"No model of {base} has spectra in this atlas, and only spectra give ranks of fused matrices.",
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
            record = store.read(one.record_key)
            measured: dict[Cell, DeltaRecord | FusedMatrixRecord] = {}
            for delta in record.deltas:
                measured[Cell(delta.key.stack, delta.key.layer, delta.key.family)] = delta
            for fused in record.fused_matrices:
                measured[Cell(fused.parts[0].stack, fused.parts[0].layer, fused.family)] = fused
            for column, cell in enumerate(cells):
                if (matrix := measured.get(cell)) is not None:
                    ranks = matrix.weight_ranks if of == "weights" else matrix.change_ranks
                    rank = ranks([threshold])[0]
                    values[place, column] = np.nan if rank is None else rank
            progress.update()
    return values
