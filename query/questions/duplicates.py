"""Models that occur twice: the same weights, rounded or nearly the same weights, and the bytes of their files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

from indexer.console.option import Option
from indexer.errors import AtlasError
from indexer.names import NEAR, DuplicateKind
from indexer.quantities import size_in_words
from query.contract.columns import WEIGHT_BYTES, Author, BaseId, ModelId, Notes
from query.contract.options import Base
from query.contract.registry import Tool, question
from query.contract.results import Detail, Doc, Format, Result
from query.shared.wording import counted, joined

if TYPE_CHECKING:
    from indexer.records.store import RecordStore
    from query.models.reader import AtlasReader

# Pairs of models that are compared by their records, the most similar first.
_MOST_PAIRS = 20_000
# Vectors of near-duplicates are more similar than this, whatever was subtracted from them.
_LEAST_SIMILAR = 0.5

_EXACT = """
SELECT copy.model_id, copy.base, copy.model, copy.author, first.model AS of, first.author AS of_author,
    copied.dtype, kept.dtype AS of_dtype, copied.weight_files, kept.weight_files AS of_files
FROM records AS copied JOIN fine_tunes AS copy USING (model_id)
JOIN fine_tunes AS first ON first.model_id = copied.duplicate_of JOIN records AS kept ON kept.model_id = first.model_id
WHERE copy.status = 'indexed' AND coalesce(copy.base = ?, true)
ORDER BY copy.base, first.model, copy.model
"""
_CONVERSIONS = """
SELECT base, model, author, file_bytes,
    first_value(model) OVER earlier AS of, first_value(author) OVER earlier AS of_author
FROM conversions JOIN fine_tunes USING (model_id) WHERE coalesce(base = ?, true)
WINDOW earlier AS (PARTITION BY base, conversions.fingerprint ORDER BY created NULLS LAST, model_id)
QUALIFY model <> of
ORDER BY base, of, model
"""
_PAIRS = """
SELECT near.model_id, near.neighbour_id, near.similarity
FROM neighbours AS near JOIN records AS one USING (model_id) JOIN records AS other ON other.model_id = near.neighbour_id
JOIN fine_tunes ON fine_tunes.model_id = near.model_id
WHERE representation = 'input' AND coalesce(base = $base, true) AND near.similarity >= $least
    AND one.duplicate_of IS NULL AND other.duplicate_of IS NULL AND NOT one.is_unrelated AND NOT other.is_unrelated
    AND abs(one.delta_norm - other.delta_norm)
        <= $within * greatest(one.delta_norm, other.delta_norm) + 4 * (one.delta_norm_error + other.delta_norm_error)
    AND (near.model_id < near.neighbour_id OR NOT EXISTS (
        SELECT 1 FROM neighbours AS back WHERE back.representation = 'input'
        AND back.model_id = near.neighbour_id AND back.neighbour_id = near.model_id))
ORDER BY near.similarity DESC, near.model_id, near.neighbour_id
LIMIT $most
"""


@dataclass(frozen=True)
class Duplicate:
    """A model that repeats another, which is kept."""

    base: BaseId
    model: ModelId
    of: Annotated[str, Doc("The model that it repeats: the earliest upload, or the last checkpoint of a run.")]
    kind: Annotated[
        DuplicateKind,
        Doc(
            "same file (equal checksums), same weights (in other files), same conversion (equal codes in all rows that "
            "were read), rounded (the same weights in another dtype), or near."
        ),
    ]
    distance: Annotated[
        float,
        Doc("‖δW₁ − δW₂‖ over the larger norm; 0 for equal weights, 0.1 for changes that differ by a tenth."),
    ]
    bytes: Annotated[int, WEIGHT_BYTES, Format(size_in_words, in_details=False)]
    author: Annotated[Author, Detail()]
    of_author: Annotated[str, Doc("The account of the model that it repeats."), Detail()]


@dataclass(frozen=True, eq=False, repr=False)
class Duplicates(Result):
    """The models of an atlas that repeat others, with the bytes that they take."""

    SHOW_HEADLINE = True
    ROWS = "models"
    OPTIONAL_COLUMNS = ("base", "kind", "distance")

    models: Annotated[tuple[Duplicate, ...], Doc("A row for each model that repeats another, by that other.")]
    within: Annotated[float | None, Doc("The largest distance of near-duplicates; empty if they were not looked for.")]
    notes: Notes = ()

    @property
    def bytes(self) -> Annotated[int, Doc("Bytes of the weight files of exact duplicates.")]:
        """The total size of exact duplicates."""
        return sum(model.bytes for model in self.models if model.kind != "near")

    @property
    def near_bytes(self) -> Annotated[int, Doc("Bytes of the weight files of near-duplicates.")]:
        """The total size of near-duplicates."""
        return sum(model.bytes for model in self.models if model.kind == "near")

    @property
    def headline(self) -> str:
        """The number of repeats, and the bytes of their files."""
        near_count = sum(model.kind == "near" for model in self.models)
        exact_count = len(self.models) - near_count
        clauses = [f"{counted(exact_count, 'model')} with the weights of others ({size_in_words(self.bytes)})"]
        if self.within is not None:
            clauses.append(f"{counted(near_count, 'near-duplicate')} ({size_in_words(self.near_bytes)})")
        return f"{joined(clauses)}."


@question(
    example="duplicates --near",
    agents=Tool("List models that have the weights of others, or nearly so, with the bytes of their files."),
)
def duplicates(
    atlas: AtlasReader,
    *,
    base: Base = None,
    near: Annotated[bool, Option("Also models that differ little: rounded copies, neighbouring checkpoints.")] = False,
    within: Annotated[
        float | None,
        Option("Largest distance of near-duplicates, ‖δW₁ − δW₂‖ / ‖δW‖. Default: 0.1, with --near.", least=0, most=1),
    ] = None,
) -> Duplicates:
    """List models with the weights of others, and the bytes that they take; with ``near`` also near-duplicates.

    ``within`` alone finds near-duplicates, too.

    One model of each group is kept: the earliest upload, or the last checkpoint of a run.

    Raises:
        AtlasError: the base is unknown.
    """
    canonical = None if base is None else atlas.base_named(base)
    repeated = [_exact(row) for row in atlas.rows(_EXACT, [canonical])]
    repeated += [_conversion(row) for row in atlas.rows(_CONVERSIONS, [canonical])]
    notes: tuple[str, ...] = ()
    if near or within is not None:
        within = NEAR if within is None else within
        near_repeats, notes = _near(atlas, canonical, within)
        repeated = sorted(
            [*repeated, *near_repeats], key=lambda model: (model.base, model.of, model.distance, model.model)
        )
    return Duplicates(tuple(repeated), within, notes)


def _exact(row: Mapping[str, Any]) -> Duplicate:
    hashes, kept_hashes = (
        sorted(file["sha256"] or "" for file in row[name] or ()) for name in ("weight_files", "of_files")
    )
    kind: DuplicateKind = "same weights" if row["dtype"] == row["of_dtype"] else "rounded"
    if hashes == kept_hashes and hashes and all(hashes):
        kind = "same file"
    return _duplicate(row, row["of"], row["of_author"], kind, 0.0)


def _conversion(row: Mapping[str, Any]) -> Duplicate:
    size = row["file_bytes"]
    return Duplicate(
        row["base"], row["model"], row["of"], "same conversion", 0.0, size, row["author"], row["of_author"]
    )


def _duplicate(
    row: Mapping[str, Any], original: str, of_author: str, kind: DuplicateKind, distance: float
) -> Duplicate:
    size = sum(file["size"] or 0 for file in row["weight_files"] or ())
    return Duplicate(row["base"], row["model"], original, kind, distance, size, row["author"], of_author)


def _near(atlas: AtlasReader, base: str | None, within: float) -> tuple[list[Duplicate], tuple[str, ...]]:
    """Near-duplicates that are no exact ones, and notes on how they were compared.

    A kept model represents the models within the distance of it, but not the models that are near only these.
    """
    parameters = {"base": base, "least": _LEAST_SIMILAR, "within": within, "most": _MOST_PAIRS}
    pairs = atlas.connection.rows(_PAIRS, parameters)
    ids = sorted({row[name] for row in pairs for name in ("model_id", "neighbour_id")})
    models = {
        row["model_id"]: row
        for row in atlas.rows(
            "SELECT model_id, base, model, author, created, delta_norm, fine_tunes.record_key, weight_files, "
            "is_earlier_checkpoint, run_place "
            "FROM fine_tunes JOIN records USING (model_id) WHERE list_contains(?, model_id)",
            [ids],
        )
    }
    distances, unread_count = _distances(atlas, pairs, models)
    distances_by_id: dict[int, dict[int, float]] = {}
    for (first, second), distance in distances.items():
        if distance <= within:
            distances_by_id.setdefault(first, {})[second] = distances_by_id.setdefault(second, {})[first] = distance
    duplicates, visited = [], set[int]()
    for original in sorted(distances_by_id, key=lambda model_id: _order(models[model_id])):
        if original in visited:
            continue
        visited.add(original)
        original_name, of_author = models[original]["model"], models[original]["author"]
        for model_id, distance in sorted(distances_by_id[original].items()):
            if model_id not in visited:
                visited.add(model_id)
                duplicates.append(_duplicate(models[model_id], original_name, of_author, "near", distance))
    notes = []
    if unread_count:
        notes.append(
            f"The records of {counted(unread_count, 'model')} are not here: these were compared by their vectors."
        )
    if len(pairs) == _MOST_PAIRS:
        notes.append(f"The {_MOST_PAIRS:,} most similar pairs were compared.")
    return duplicates, tuple(notes)


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """A sort key by which models to keep come first: the last checkpoint of a run, and the earliest upload."""
    created = row["created"]
    return (
        row["is_earlier_checkpoint"],
        -(row["run_place"] or 0),
        created is None,
        created.timestamp() if created else 0.0,
        row["model_id"],
    )


def _distances(
    atlas: AtlasReader, pairs: Sequence[Mapping[str, Any]], models: Mapping[int, Mapping[str, Any]]
) -> tuple[dict[tuple[int, int], float], int]:
    """The distance of each pair, by their ids; and the number of models without a record."""
    from indexer.records.difference import distance_from, distance_of
    from indexer.records.store import RecordStore

    read_record = lru_cache(maxsize=128)(_reader(RecordStore(atlas.folder)))
    distances, unread = {}, set[int]()
    # In the order of models, so that a record is read few times.
    for row in sorted(pairs, key=lambda row: (row["model_id"], row["neighbour_id"])):
        ids = row["model_id"], row["neighbour_id"]
        records = [read_record(models[model_id]["record_key"]) for model_id in ids]
        unread |= {model_id for model_id, record in zip(ids, records, strict=True) if record is None}
        distance = math.inf
        if records[0] is not None and records[1] is not None:
            distance = distance_of(*records)
        if not math.isfinite(distance):
            norms = [models[model_id]["delta_norm"] for model_id in ids]
            distance = distance_from(norms[0], norms[1], row["similarity"])
        distances[ids] = distance
    return distances, len(unread)


def _reader(store: RecordStore) -> Any:
    def read(key: str) -> Any:
        try:
            return store.read(key)
        except AtlasError:  # `index verify` reports a damaged record
            return None

    return read
