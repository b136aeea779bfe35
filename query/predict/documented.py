"""The models whose datasets are known, with their vectors and heads: what a prediction is made from."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from query.population import Population, distinct, read_population
from query.predict.head_evidence import Head, head_of
from query.predict.sweeps import Floats

if TYPE_CHECKING:
    from query.reader import AtlasReader


@dataclass(frozen=True)
class Documents:
    """Models and what is known of them; entry i of every column is the same model.

    ``vectors``: (n, d) float32 of unit norm (or of ``blocks`` of unit norm, see ``Population``), or zero where a model
    has none. ``datasets``: empty where a model
    names none.
    """

    vectors: Floats
    models: list[str]
    authors: list[str]
    datasets: list[frozenset[str]]
    heads: list[Head]
    blocks: int = 0

    def with_undocumented(self, vector: Floats, model: str, author: str, head: Head) -> Documents:
        """These and, last, one more model, whose datasets are to be found."""
        return Documents(
            vectors=np.concatenate([self.vectors.reshape(-1, len(vector)), vector[None, :]]),
            models=[*self.models, model],
            authors=[*self.authors, author],
            datasets=[*self.datasets, frozenset()],
            heads=[*self.heads, head],
            blocks=self.blocks,
        )


def read_documents(
    atlas: AtlasReader, base: str, representation: str = "input", without: Collection[int] = ()
) -> Documents:
    """The documented models of a base: no copies, no unrelated models, one for a group of duplicates.

    The models with the ids ``without`` are left out before duplicates are grouped, so that the datasets that they
    alone name are gone too. Raises AtlasError where the representation is not published.
    """
    return Documented(atlas, representation).of(base, without)


class Documented:
    """The documented models of every base that is asked about, each base read once."""

    def __init__(self, atlas: AtlasReader, representation: str = "input") -> None:
        self.representation = representation
        self._atlas = atlas
        self._read: dict[str, tuple[Population, dict[int, Head]]] = {}

    def of(self, base: str, without: Collection[int] = ()) -> Documents:
        """Those of one base; see :func:`read_documents`."""
        if base not in self._read:
            population = read_population(self._atlas, base, self.representation, documented=True)
            self._read[base] = population, self._heads(base)
        population, heads = self._read[base]
        is_out = np.isin(population.ids, list(without))
        chosen = distinct(replace(population, is_copy=population.is_copy | is_out))
        return documents_of(chosen, [heads[identity] for identity in chosen.ids.tolist()])

    def _heads(self, base: str) -> dict[int, Head]:
        rows = self._atlas.rows(
            "SELECT model_id, head_class, label_count, label_names, problem_type FROM models WHERE base = ?", [base]
        )
        return {
            row["model_id"]: head_of(row["head_class"], row["label_count"], row["label_names"], row["problem_type"])
            for row in rows
        }


def documents_of(population: Population, heads: Sequence[Head]) -> Documents:
    """Those models of a population that name a dataset; ``heads`` has an entry for each of the population."""
    rows = [row for row, names in enumerate(population.datasets) if names]
    return Documents(
        vectors=population.vectors[rows],
        models=[population.models[row] for row in rows],
        authors=[population.authors[row] for row in rows],
        datasets=[population.datasets[row] for row in rows],
        heads=[heads[row] for row in rows],
        blocks=population.blocks,
    )
