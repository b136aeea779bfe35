"""Vectors of several makes, computed from the records of one base: what is published, and what might have been."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from indexer.atlas import AtlasFolder
from indexer.records.record import Record
from indexer.records.representation import representation_named
from indexer.records.sketch import DRAW, block_length, sketched
from indexer.records.store import RecordStore
from indexer.vectors.centre import GROUPS, Centre, centre_of
from query import Atlas
from query.population import Population, distinct, read_population

Floats = NDArray[np.float32]
Make = Callable[[Record], Floats]


@dataclass(frozen=True)
class Family:
    """The distinct models of one base, with their records' groups; ``population`` has the published vectors."""

    population: Population
    groups: list[str]
    records: list[Record]

    @property
    def matrices(self) -> int:
        """Block matrices of the base."""
        return len(self.records[0].deltas)


def read_family(atlas: Atlas, base: str) -> Family:
    """Raises AtlasError where the base has no vectors, or a record is gone."""
    population = distinct(read_population(atlas, base))
    keys = {row["model_id"]: row["record_key"] for row in atlas.rows("SELECT model_id, record_key FROM records")}
    store = RecordStore(AtlasFolder(atlas.folder.root))
    records = [store.read(keys[identity]) for identity in population.ids.tolist()]
    return Family(population, [record.vector_group for record in records], records)


def makes(family: Family) -> Mapping[str, tuple[Make, bool]]:
    """By name how a vector is made, and whether it is centred by group."""
    found: dict[str, tuple[Make, bool]] = {
        "v, 57 numbers a matrix, cosine (version 1)": (representation_named("input_v1").of, False)
    }
    for budget in (4_104, 8_208, 16_416):
        made = representation_named("input", budget).of
        found[f"v, centred, {budget:,} numbers{' (version 2)' if budget == 8_208 else ''}"] = (made, True)
    found["v and uv, centred, 8,208 numbers"] = (_both, True)
    found["v, not centred, 8,208 numbers, mean over shared blocks"] = (representation_named("input", 8_208).of, False)
    return found


def _both(record: Record) -> Floats:
    """Half of the budget for each side."""
    length = block_length(record, 4_104)
    sides = [sketched(record, side, length, DRAW).reshape(len(record.deltas), length) for side in ("input", "delta")]
    return np.concatenate(sides, axis=1).ravel() / np.float32(np.sqrt(2))


def vectors_of(family: Family, name: str, but: Collection[int] = ()) -> tuple[Floats, int]:
    """(n, d) vectors and their blocks (0: cosine of the whole); the models ``but`` have no vote in the centre."""
    make, is_centred = makes(family)[name]
    raw = np.stack([make(record) for record in family.records]).astype(np.float32)
    if "cosine" in name:
        return raw / np.linalg.norm(raw, axis=1, keepdims=True), 0
    return (_centred(family, raw, but) if is_centred else raw), family.matrices


def _centred(family: Family, raw: Floats, but: Collection[int]) -> Floats:
    groups = np.array(family.groups)
    votes = np.array([row not in but for row in range(len(raw))])
    members = {group: np.flatnonzero((groups == group) & votes) for group in GROUPS}
    centre = Centre({group: _centre(family, raw, rows) for group, rows in members.items()})
    found = np.zeros_like(raw)
    for group in GROUPS:
        mine = groups == group
        if mine.any():
            found[mine] = centre.centred(raw[mine], group)
    return found


def _centre(family: Family, raw: Floats, rows: Sequence[int] | NDArray[np.intp]):  # noqa: ANN202 - a GroupCentre
    return centre_of(raw[rows], [family.population.authors[row] for row in rows], family.matrices)
