"""Purity of vectors of several kinds, computed from the records of an atlas: a table in Markdown for every base.

``docs/vectors.md`` has the tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError
from indexer.records.record import Record
from indexer.records.representation import representation_named
from indexer.records.sketch import DRAW, block_length, sketched
from indexer.records.store import RecordStore
from indexer.vectors.centre import ADAPTER, FULL, GROUPS, Centre, centre_of
from query import Atlas
from query.population import Population, distinct, read_population
from query.purity.result import PurityScore
from query.purity.study import purity
from query.statistics.likeness import similarities

Floats = NDArray[np.float32]
Make = Callable[[Record], Floats]

HEAD = "| vectors | all | across authors | adapter → full | full only |\n|---|---|---|---|---|"
PERMUTATIONS = 1  # every p-value is below .001; `query purity` prints them


@dataclass(frozen=True)
class Family:
    """The distinct models of one base, with the groups of their records; ``population`` has the published vectors."""

    population: Population
    groups: list[str]
    records: list[Record]

    @property
    def matrices(self) -> int:
        """Block matrices of the base."""
        return len(self.records[0].deltas)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.vectors", description=__doc__)
    parser.add_argument("--atlas", default="atlas", help="an atlas whose records hold factors (default: %(default)s)")
    parser.add_argument("--bases", nargs="+", metavar="ID", help="default: all")
    options = parser.parse_args(arguments)
    try:
        with Atlas(options.atlas) as atlas:
            for base in options.bases or atlas.bases():
                print_table(atlas, atlas.base_named(base))
    except AtlasError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


def print_table(atlas: Atlas, base: str) -> None:
    """Print the table of one base."""
    family = read_family(atlas, base)
    labelled = sum(map(bool, family.population.datasets))
    print(f"\n### {base}: {labelled} models with a data set, {family.matrices} matrices\n\n{HEAD}")
    chance = ""
    for name in kinds_of_vectors(family):
        vectors, blocks = vectors_of(family, name)
        population = replace(family.population, vectors=vectors, blocks=blocks)
        of_all = purity(population, draws=PERMUTATIONS)
        rows = np.flatnonzero(np.array(family.groups) == FULL)
        columns = ("models", "authors", "datasets", "relations", "group")
        only_full = replace(
            population,
            **{column: [getattr(population, column)[row] for row in rows] for column in columns},
            **{column: getattr(population, column)[rows] for column in ("vectors", "ids", "is_copy", "is_unrelated")},
            representative=population.representative[rows],
        )
        of_full = purity(only_full, draws=PERMUTATIONS)
        cells = [
            with_interval(of_all),
            with_interval(of_all.cross_author),
            decimal(adapter_to_full(family, vectors, blocks)),
            with_interval(of_full),
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
        if "version 2" in name:
            left_out = decimal(without_own_data(family, name))
            print(f"| the same, the model's own data sets left out of the centre | {left_out} | | | |")
            chances = [decimal(one.chance) for one in (of_all, of_all.cross_author)]
            chance = f"| chance | {' | '.join(chances)} | | {decimal(of_full.chance)} |"
    print(chance)


def read_family(atlas: Atlas, base: str) -> Family:
    """Raises AtlasError where the base has no vectors, or a record is missing."""
    population = distinct(read_population(atlas, base))
    keys = {row["model_id"]: row["record_key"] for row in atlas.rows("SELECT model_id, record_key FROM records")}
    store = RecordStore(AtlasFolder(atlas.folder.root))
    records = [store.read(keys[identity]) for identity in population.ids.tolist()]
    return Family(population, [record.vector_group for record in records], records)


def kinds_of_vectors(family: Family) -> Mapping[str, tuple[Make, bool]]:
    """How each kind of vector is computed from a record, and whether it is centred by group."""
    found: dict[str, tuple[Make, bool]] = {
        "v, 57 numbers a matrix, cosine (version 1)": (representation_named("input_v1").of, False)
    }
    for budget in (4_104, 8_208, 16_416):
        made = representation_named("input", budget).of
        found[f"v, centred, {budget:,} numbers{' (version 2)' if budget == 8_208 else ''}"] = (made, True)
    found["v and uv, centred, 8,208 numbers"] = (_both_sides, True)
    found["v, not centred, 8,208 numbers, mean over shared blocks"] = (representation_named("input", 8_208).of, False)
    return found


def _both_sides(record: Record) -> Floats:
    """Half of the numbers for v vᵀ, half for u vᵀ."""
    length = block_length(record, 4_104)
    sides = [sketched(record, side, length, DRAW).reshape(len(record.deltas), length) for side in ("input", "delta")]
    return np.concatenate(sides, axis=1).ravel() / np.float32(np.sqrt(2))


def vectors_of(family: Family, name: str, without: Collection[int] = ()) -> tuple[Floats, int]:
    """(n, d) vectors and the number of their blocks (0: cosine of the whole vector).

    ``without``: rows that have no vote in the centre.
    """
    make, is_centred = kinds_of_vectors(family)[name]
    raw = np.stack([make(record) for record in family.records]).astype(np.float32)
    if "cosine" in name:
        return raw / np.linalg.norm(raw, axis=1, keepdims=True), 0
    if not is_centred:
        return raw, family.matrices
    groups = np.array(family.groups)
    votes = np.array([row not in without for row in range(len(raw))])
    members = {group: np.flatnonzero((groups == group) & votes) for group in GROUPS}
    authors = family.population.authors
    centre = Centre(
        {
            group: centre_of(raw[rows], [authors[row] for row in rows], family.matrices)
            for group, rows in members.items()
        }
    )
    centred = np.zeros_like(raw)
    for group in GROUPS:
        if (groups == group).any():
            centred[groups == group] = centre.centred(raw[groups == group], group)
    return centred, family.matrices


def adapter_to_full(family: Family, vectors: Floats, blocks: int) -> float | None:
    """Mean over adapters of the share of matches among the m nearest full fine-tunes, where m match."""
    labels, groups = family.population.datasets, family.groups
    adapters, full = (
        [row for row, names in enumerate(labels) if names and groups[row] == group] for group in (ADAPTER, FULL)
    )
    shares = [share for share, _ in matches_of_nearest(vectors, blocks, labels, adapters, full)]
    return float(np.mean(shares)) if shares else None


def without_own_data(family: Family, name: str) -> float:
    """Purity of all models, where the models on a model's own data sets have no vote in its centre."""
    labels = family.population.datasets
    labelled = [row for row, found in enumerate(labels) if found]
    shares: list[float] = []
    for names in {frozenset(found) for found in labels if found}:
        rows = [row for row in labelled if labels[row] == names]
        vectors, blocks = vectors_of(family, name, [row for row in labelled if labels[row] & names])
        shares += [share for share, _ in matches_of_nearest(vectors, blocks, labels, rows, labelled)]
    return float(np.mean(shares))


def matches_of_nearest(
    vectors: Floats, blocks: int, labels: Sequence[Collection[str]], rows: Sequence[int], candidates: Sequence[int]
) -> list[tuple[float, float]]:
    """For each row of which m other candidates share a label: the share of matches among its m nearest, and among all."""
    table = similarities(vectors[rows].astype(np.float64), vectors[candidates].astype(np.float64), blocks)
    found = []
    for place, row in enumerate(rows):
        near = [candidates[column] for column in np.argsort(-table[place], kind="stable") if candidates[column] != row]
        matches = [not set(labels[row]).isdisjoint(labels[other]) for other in near]
        if any(matches):
            found.append((float(np.mean(matches[: sum(matches)])), float(np.mean(matches))))
    return found


def with_interval(score: PurityScore) -> str:
    """As ".92 (.87–.96)"."""
    interval = "" if score.ci_low is None else f" ({decimal(score.ci_low)}–{decimal(score.ci_high)})"
    return decimal(score.purity) + interval


def decimal(number: float | None) -> str:
    """Three digits, without the zero before the point."""
    return "–" if number is None else f"{number:.3f}".replace("0.", ".", 1)


if __name__ == "__main__":
    sys.exit(main())
