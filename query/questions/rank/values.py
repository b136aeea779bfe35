"""The models that a study of ranks counts, and the rank of every matrix of each at one share of the energy.

If the database has a column for the share, the ranks are read from it. Otherwise they are computed from the singular
values in the records.
A candidate is a row with the ``model_id``, ``model``, ``author``, ``record_key`` and ``has_spectra`` of a model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from indexer.database.deepening import without_a_full_model
from indexer.errors import AtlasError, BadArgument, Call, Text
from indexer.names import FAMILIES, RELATIONS, STACKS, UNMEASURABLE, UNTRAINED, DeltaKey
from indexer.records.record import RANK_THRESHOLDS
from indexer.sources.registry import ModelRef
from query.models.population import LeftOut
from query.models.resolved import base_in_hint, unknown_model
from query.models.sampled import SAMPLE, copy_in_words, needs_all

if TYPE_CHECKING:
    from indexer.records.record import DeltaRecord, FusedMatrixRecord
    from query.models.reader import AtlasReader

Candidate = dict[str, Any]


def checked_relations(text: str | None) -> tuple[str, ...]:
    """Relations separated by commas; an empty tuple for None. Raises AtlasError on an unknown relation."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(","))) if text is not None else ()
    for name in names:
        if name not in RELATIONS:
            raise BadArgument(
                f"Unknown relation {name!r} (choose {', '.join(RELATIONS)}).",
                Text("Use ", Call(relation="finetune"), "."),
            )
    return names


def countable_models(atlas: AtlasReader, base: str, relations: tuple[str, ...]) -> tuple[list[Candidate], LeftOut]:
    """The models of a base that count, by id, and how many copies, unrelated models and duplicates are left out.

    Sampled models are left out, too, because some rows of a matrix do not give its rank. A duplicate replaces its first
    upload if only the duplicate has spectra, or was read in full. Raises AtlasError if no model is left.
    """
    rows = atlas.rows(
        'SELECT model_id, model, author, record_key, has_spectra, "read", is_copy, copy_evidence, is_unrelated, '
        "duplicate_group, is_earlier_checkpoint FROM models "
        "WHERE base = ? AND (len(?::VARCHAR[]) = 0 OR list_contains(?, relation)) "
        'ORDER BY has_spectra DESC, "read", duplicate_of IS NOT NULL, model_id',
        [base, list(relations), list(relations)],
    )
    if not rows:
        reason = (
            f"No {' or '.join(relations)} of {base} is indexed." if relations else f"No model of {base} is indexed."
        )
        raise AtlasError(reason, Text("Run: ", Call("build", base, spectra=True)))
    chosen: list[Candidate] = []
    groups: set[int] = set()
    counts: Counter[str] = Counter()
    for row in rows:
        if row["is_copy"]:
            counts["untrained" if row["copy_evidence"] in (UNTRAINED, UNMEASURABLE) else "copies"] += 1
        elif row["is_unrelated"]:
            counts["unrelated"] += 1
        elif row.pop("is_earlier_checkpoint"):
            counts["checkpoints"] += 1
        elif row["duplicate_group"] in groups:
            counts["duplicates"] += 1
        else:
            groups |= {row["duplicate_group"]} - {None}
            if row["read"] == SAMPLE:
                counts["sampled"] += 1
            else:
                chosen.append(row)
    left_out = LeftOut(**counts)
    if not chosen and left_out.sampled:
        raise without_a_full_model(atlas, base, left_out.sampled, "ranks", spectra=True)
    if not chosen:
        raise AtlasError(f"No model of {base} remains to study (left out: {', '.join(left_out.words())}).", "")
    return sorted(chosen, key=lambda row: int(row["model_id"])), left_out


def one_model(atlas: AtlasReader, name: str, base: str | None) -> tuple[Candidate, str, list[str]]:
    """One model, its base, and notes on its flags. Raises AtlasError if it is not indexed."""
    entry = atlas.find(ModelRef.parse(name), base)
    if entry is None:
        hint = Text("Only models of the atlas: ", Call("add", name, base_in_hint(atlas, base), spectra=True))
        raise unknown_model(atlas, name, hint)
    rows = atlas.rows(
        'SELECT model_id, model, author, record_key, has_spectra, "read", is_copy, copy_evidence, is_unrelated, '
        "duplicate_of IS NOT NULL AS is_duplicate FROM models WHERE model_id = ?",
        [entry.model_id],
    )
    if not rows:
        detail = f": {entry.detail}" if entry.detail else ""
        raise AtlasError(f"{entry.model} is not indexed but {entry.status}{detail}.", f"See: query show {entry.model}")
    if rows[0]["read"] == SAMPLE:
        raise needs_all(atlas, entry.base, [entry.model], "ranks", spectra=True)
    copied = copy_in_words(rows[0]["copy_evidence"])
    flags = {
        "is_copy": f"{'an' if copied[0] in 'au' else 'a'} {copied}",
        "is_unrelated": "unrelated to the base",
        "is_duplicate": "a duplicate",
    }
    return rows[0], entry.base, [f"it is {words}" for flag, words in flags.items() if rows[0][flag]]


def read_ranks(
    atlas: AtlasReader, base: str, candidates: Sequence[Candidate], *, of: str, threshold: float, whole: bool
) -> tuple[list[DeltaKey], NDArray[np.float64]]:
    """The matrices of the base, and their ranks (models, matrices): 0 for a zero change, NaN where it is not known.

    ``of``: "delta" for δW, "weights" for W. ``whole``: do not split fused matrices; their names are then, for example,
    ``query_key_value``. Raises AtlasError if the base's matrices are not known, if none is fused or has spectra, or if
    a record is damaged.
    """
    matrices = _matrices(atlas, base, whole)
    percent = round(threshold * 100)
    if percent in RANK_THRESHOLDS and abs(threshold * 100 - percent) < 1e-9:
        column = f"weight_rank_{percent}" if of == "weights" else f"rank_{percent}"
        return matrices, _from_database(atlas, candidates, matrices, column)
    return matrices, _from_records(atlas, candidates, matrices, of, threshold)


def _matrices(atlas: AtlasReader, base: str, whole: bool) -> list[DeltaKey]:
    """In the order of STACKS, then of FAMILIES, by layer; a fused matrix comes where its first part would."""
    keys = atlas.delta_keys(base)
    keys.sort(key=lambda key: (STACKS.index(key.stack), FAMILIES.index(key.family), key.layer))
    if not whole:
        return keys
    rows = atlas.rows(
        "SELECT DISTINCT stack, layer, fused_matrices.family, families FROM fused_matrices "
        "JOIN fine_tunes USING (model_id) WHERE base = ?",
        [base],
    )
    if not rows:
        (counts,) = atlas.rows("SELECT count(*) AS models FROM models WHERE base = ? AND has_spectra", [base])
        if counts["models"]:
            raise AtlasError(f"{base} stores no fused matrices.", "Omit `whole`.")
        raise AtlasError(
            f"No model of {base} has spectra in this atlas, and only spectra give ranks of fused matrices.",
            Text("Read them: ", Call("build", base, spectra=True)),
        )
    fused = {DeltaKey(row["stack"], row["layer"], part): row["family"] for row in rows for part in row["families"]}
    named = (DeltaKey(key.stack, key.layer, fused.get(key, key.family)) for key in keys)
    return list(dict.fromkeys(named))


def _from_database(
    atlas: AtlasReader, candidates: Sequence[Candidate], matrices: Sequence[DeltaKey], column: str
) -> NDArray[np.float64]:
    columns = atlas.connection.execute(
        f"""
        SELECT model.place AS model, matrix.place AS matrix, {column}::DOUBLE AS rank
        FROM (FROM deltas UNION ALL BY NAME FROM fused_matrices) AS measured
        JOIN (SELECT unnest(?::INTEGER[]) AS model_id, unnest(?::INTEGER[]) AS place) AS model USING (model_id)
        JOIN (SELECT unnest(?::VARCHAR[]) AS stack, unnest(?::INTEGER[]) AS layer, unnest(?::VARCHAR[]) AS family,
                     unnest(?::INTEGER[]) AS place) AS matrix USING (stack, layer, family)
        WHERE {column} IS NOT NULL
        """,
        [
            [row["model_id"] for row in candidates],
            list(range(len(candidates))),
            *([getattr(key, name) for key in matrices] for name in ("stack", "layer", "family")),
            list(range(len(matrices))),
        ],
    ).fetchnumpy()
    values = np.full((len(candidates), len(matrices)), np.nan)
    values[columns["model"], columns["matrix"]] = columns["rank"]
    return values


def _from_records(
    atlas: AtlasReader, candidates: Sequence[Candidate], matrices: Sequence[DeltaKey], of: str, threshold: float
) -> NDArray[np.float64]:
    from indexer.console.messages import Progress
    from indexer.records.store import RecordStore

    store = RecordStore(atlas.folder)
    values = np.full((len(candidates), len(matrices)), np.nan)
    with Progress(len(candidates), "reading singular values") as progress:
        for row, candidate in enumerate(candidates):
            record = store.read(candidate["record_key"])
            measured: dict[DeltaKey, DeltaRecord | FusedMatrixRecord] = {delta.key: delta for delta in record.deltas}
            for fused in record.fused_matrices:
                measured[DeltaKey(fused.parts[0].stack, fused.parts[0].layer, fused.family)] = fused
            for column, key in enumerate(matrices):
                if (matrix := measured.get(key)) is not None:
                    ranks = matrix.weight_ranks if of == "weights" else matrix.change_ranks
                    rank = ranks([threshold])[0]
                    values[row, column] = np.nan if rank is None else rank
            progress.update()
    return values
