"""Simulated models with labels: a centre for each dataset, a shift for each author, heads with labels; and targets."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from indexer.vectors.table import VectorTable
from query.models.population import Head
from query.questions.predict.predict import Target
from query.questions.predict.training_set import LabelledModels


def target(vector, head=None, author="asker", **facts) -> Target:
    given = {"declared": (), "duplicates": (), "notes": (), "model_id": None}
    found = None if vector is None else np.asarray(vector, np.float32) / np.linalg.norm(vector)
    found = None if found is None else VectorTable(found[None, :])
    return Target("asker/model", "base", author, vector=found, head=head or Head(), **given | facts)


def answer(prediction, dataset):
    (found,) = [one for one in prediction.answers if one.dataset == dataset]
    return found


CLASSIFIER = "ForSequenceClassification"
# The ways of predicting models without a vocabulary, and the evidence each uses.
WAYS = {
    "together": frozenset({"vectors", "head"}),
    "vectors": frozenset({"vectors"}),
    "head": frozenset({"head"}),
}


@dataclass(frozen=True)
class Simulation:
    """How models come about. ``novel``: share of sweeps on a dataset of no other author; ``named``: of heads with names."""

    centres: np.ndarray
    noise: float = 1.0
    shift: float = 0.3
    novel: float = 0.15
    named: float = 0.4
    headless: float = 0.1
    longest_sweep: int = 5

    @classmethod
    def of(cls, datasets: int = 30, length: int = 24, seed: int = 5, **settings) -> Simulation:
        return cls(np.random.default_rng(seed).normal(size=(datasets, length)), **settings)

    def draw(self, authors: int, tag: str, seed: int) -> LabelledModels:
        """Every author tunes one to three sweeps; popular datasets are the first."""
        rng = np.random.default_rng(seed)
        popularity = 1 / np.arange(1, len(self.centres) + 1)
        popularity /= popularity.sum()
        parts = []
        for author in range(authors):
            shift = self.shift * rng.normal(size=self.centres.shape[1])
            for sweep in range(rng.integers(1, 4)):
                if rng.random() < self.novel:
                    dataset, centre, labels = (
                        f"{tag}{author}/own{sweep}",
                        rng.normal(size=len(shift)),
                        rng.integers(2, 7),
                    )
                else:
                    number = rng.choice(len(self.centres), p=popularity)
                    dataset, centre, labels = f"d{number}", self.centres[number], number % 5 + 2
                for member in range(rng.integers(1, self.longest_sweep + 1)):
                    vector = centre + shift + self.noise * rng.normal(size=len(shift))
                    parts.append(
                        (
                            vector,
                            f"{tag}{author}/m{sweep}-{member}",
                            f"{tag}{author}",
                            dataset,
                            self.head(dataset, labels, rng),
                        )
                    )
        vectors, models, names, datasets, heads = zip(*parts, strict=True)
        return labelled_models(vectors, names, datasets, heads, models)

    def head(self, dataset: str, labels: int, rng: np.random.Generator) -> Head:
        if rng.random() < self.headless:
            return Head()
        names = frozenset(f"{dataset}-{number}" for number in range(labels))
        return Head(CLASSIFIER, int(labels), names if rng.random() < self.named else None)


def labelled_models(vectors, authors, datasets, heads=None, models=None) -> LabelledModels:
    """Columns as a test writes them: one name for a set, no heads, any vectors."""
    vectors = np.asarray(vectors, dtype=np.float64)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    count = len(authors)
    return LabelledModels(
        table=VectorTable((vectors / np.where(norms > 0, norms, 1)).astype(np.float32)),
        models=list(models or [f"{author}/m{number}" for number, author in enumerate(authors)]),
        authors=list(authors),
        datasets=[frozenset({names}) if isinstance(names, str) else frozenset(names) for names in datasets],
        heads=list(heads or [Head()] * count),
    )


def joined(first: LabelledModels, second: LabelledModels) -> LabelledModels:
    return LabelledModels(
        table=first.table.with_last(second.table),
        models=first.models + second.models,
        authors=first.authors + second.authors,
        datasets=first.datasets + second.datasets,
        heads=first.heads + second.heads,
    )


def unlabelled(one: LabelledModels) -> LabelledModels:
    return replace(one, datasets=[frozenset()] * len(one.models))


# By how well their vectors distinguish datasets.
SIMULATIONS = {
    "clear": Simulation.of(noise=0.6),
    "blurred": Simulation.of(noise=1.0),
    "rarely new": Simulation.of(noise=1.0, novel=0.03),
}
