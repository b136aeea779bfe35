"""The ways in which the adapters of an atlas are compared: every representation of the product, and other methods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from indexer.atlas import AtlasFolder
from indexer.deltas.base import published_matrices
from indexer.records.record import Record
from indexer.records.representations.registry import REPRESENTATIONS
from indexer.records.representations.triplets import OfTriplets
from indexer.records.representations.vocabulary import VOCABULARY
from indexer.records.sketch import LEARNED_POWER
from indexer.records.store import RecordStore
from query.models.population import distinct, read_population
from query.models.reader import AtlasReader
from studies.arena.methods import OF_WEIGHTS, U_PLAIN, without_zeros
from studies.arena.rivals import cosine_of_gram, inner_products, mean_over_shared
from studies.arena.scores import Reals
from studies.arena.subjects import whole_records

# Of the product and of the arena: what is not measured, and why.
LEFT_OUT = {
    "`depth`": "it needs depth profiles, which need the base's own weights",
    f"`{VOCABULARY.name}`": "adapters have none",
    "Delta Activations": "they need the base's own weights",
    "cards, label names of the head": "only weights were collected",
}
MEASURED = [name for name, one in REPRESENTATIONS.items() if isinstance(one, OfTriplets)]
# Methods of the arena that are representations here.
_MEASURED_OF_ARENA = ("`input` version 1", "the original U_r", "the original U_r Σ_r")


@dataclass(frozen=True)
class Population:
    """The distinct adapters of an atlas; entry i of every column is the same one.

    ``has_start``: whether it is known where it began. ``records``: with every singular triplet; ``stored``: as in the
    atlas. ``tensors``: by matrix, the tensor of the base that holds it.
    """

    models: list[str]
    authors: list[str]
    labels: list[frozenset[str]]
    has_start: NDArray[np.bool_]
    stored: list[Record]
    records: list[Record]
    tensors: list[str]


def read(atlas: AtlasReader, base: str, repositories: Path) -> Population:
    """Raises AtlasError if the base has no vectors or a record is missing."""
    found = distinct(read_population(atlas, base))
    rows = atlas.rows("SELECT model, record_key, start.seed AS seed FROM models WHERE base = ?", [base])
    known = {row["model"]: row for row in rows}
    store = RecordStore(AtlasFolder(atlas.folder.root))
    stored = [store.read(known[model]["record_key"]) for model in found.models]
    with closing(published_matrices(atlas.published_base(base))) as matrices:
        tensors = [matrix.tensor for matrix in matrices.layout.matrices]
    return Population(
        models=found.models,
        authors=found.authors,
        labels=found.datasets,
        has_start=np.array([known[model]["seed"] is not None for model in found.models], bool),
        stored=stored,
        records=list(whole_records(repositories, base, stored)),
        tensors=tensors,
    )


def published(atlas: AtlasReader, base: str, representation: str, models: Sequence[str]) -> Reals:
    """(n, n) the similarities of ``models`` by a published representation; nan for a model without a vector."""
    found = read_population(atlas, base, representation)
    place = {model: row for row, model in enumerate(found.models)}
    rows = [place[model] for model in models if model in place]
    table = found.table.take(rows)
    known = np.flatnonzero([model in place for model in models])
    similarity = np.full((len(models),) * 2, np.nan)
    similarity[np.ix_(known, known)] = without_zeros(table.similarities(table, np.float64), table.inputs)
    return similarity


def of_weights(population: Population) -> Iterator[tuple[str, Reals]]:
    """Name and similarities of every method that is not a representation of the product."""
    records = population.records
    changed = np.array([[delta.norm > 0 for delta in record.deltas] for record in records])
    is_learned = np.array([[delta.learned_v is not None for delta in record.deltas] for record in population.stored])
    by_learned = mean_over_shared(learned(population.stored), changed & is_learned)
    yield "A − A₀, exact", by_learned
    for method in OF_WEIGHTS:
        if method.name in _MEASURED_OF_ARENA:
            continue
        similarity = method.compare(method.make(records))
        yield method.name, similarity
        if method.name == U_PLAIN:
            others = other_matrices(records, changed, population.tensors)
            yield "V of other matrices, at most one layer apart", others
            sides = [in_spreads(one, population.authors) for one in (similarity, others)]
            both = in_spreads(sides[0] + sides[1], population.authors)
            yield "U and other matrices", both
            # Each adapter ranks the others by itself: from a known start, those with a known start come first.
            first = np.where(population.has_start[:, None], by_learned, both)
            yield "A − A₀ if the start is known, else U and other matrices", first


def in_spreads(similarity: Reals, authors: Sequence[str]) -> Reals:
    """Similarities as they lie among those of adapters by different authors: from the median, in units of the spread.

    The spread is from the median to the .84 quantile. So two kinds of similarities can be added, or stand in one table.
    """
    owners = np.array(authors)
    known = similarity[(owners[:, None] != owners) & ~np.isnan(similarity)]
    if not len(known):
        return np.full_like(similarity, np.nan)
    middle, high = np.quantile(known, (0.5, 0.84))
    found: Reals = (similarity - middle) / (high - middle if high > middle else 1.0)
    return found


def learned(records: Sequence[Record]) -> Iterator[Reals]:
    """By matrix, the cosine of Σ √√σ v vᵀ of A − A₀; nan where the start of an adapter is not known."""
    for deltas in zip(*(record.deltas for record in records), strict=True):
        factors = []
        for delta in deltas:
            s, v = delta.learned_s, delta.learned_v
            if s is None or v is None:
                s, v = np.zeros(1), np.zeros((delta.shape[1], 1))
            factors.append((v.astype(np.float64) * s.astype(np.float64) ** LEARNED_POWER, v.astype(np.float64)))
        yield cosine_of_gram(inner_products(factors))


def other_matrices(records: Sequence[Record], changed: NDArray[np.bool_], tensors: Sequence[str]) -> Reals:
    """(n, n) the mean cosine of Σ σ v vᵀ of *different* matrices of one input width, at most one layer apart.

    A start is drawn anew for every module, so no shared seed makes these alike; those of neighbouring layers read nearly
    the same activations. Matrices of one tensor (GPT-2's query, key and value) are one module.
    """
    deltas = records[0].deltas
    near = [
        (one, other)
        for one, other in product(range(len(deltas)), repeat=2)
        if tensors[one] != tensors[other]
        and deltas[one].shape[1] == deltas[other].shape[1]
        and deltas[one].key.stack == deltas[other].key.stack
        and abs(deltas[one].key.layer - deltas[other].key.layer) <= 1
    ]
    total, pairs = np.zeros((len(records),) * 2), np.zeros((len(records),) * 2)
    sides = [_unit_sides(records, place) for place in range(len(deltas))]
    for one, other in near:
        both = np.outer(changed[:, one], changed[:, other])
        if not both.any():
            continue
        (left, starts), (right, others) = sides[one], sides[other]
        found = np.square((left.T @ right).astype(np.float64))
        total += np.where(both, np.add.reduceat(np.add.reduceat(found, starts, axis=0), others, axis=1), 0)
        pairs += both
    similarity: Reals = np.divide(total, pairs, out=np.full_like(total, np.nan), where=pairs > 0)
    return similarity


def _unit_sides(records: Sequence[Record], place: int) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """√σ v of one matrix of all models side by side (in, Σ r), scaled so that Σ σ v vᵀ has unit norm; where each begins."""
    parts = []
    for record in records:
        delta = record.deltas[place]
        assert delta.v is not None
        norm = float(np.linalg.norm(delta.s))
        parts.append(delta.v * np.sqrt(delta.s / norm if norm > 0 else np.zeros_like(delta.s)))
    starts = np.cumsum([0, *(part.shape[1] for part in parts[:-1])])
    return np.concatenate(parts, axis=1).astype(np.float32), starts
