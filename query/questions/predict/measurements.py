"""The design matrix of predictions: measurements of a model and a dataset, by kind of evidence.

To add a measurement, add a line to ``OF_ANSWERS`` (evidence for each dataset) or ``OF_MODELS`` (evidence that any of
the datasets is right). To add a kind of evidence, add a line to ``EVIDENCE`` too; fits, probabilities by this evidence
alone and scores follow from that. Measurements are made from ``query.questions.predict.training_set.Features``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from query.questions.predict.training_set import Features, Reals, Votes
from query.shared.statistics.neighbours import Booleans, Integers
from query.shared.wording import joined


@dataclass(frozen=True)
class Evidence:
    """One kind of evidence.

    Attributes:
        name: as in answers and scores.
        words: its name in sentences.
        reason: its relation to the training data, in words.
        frequency: the usual weight, beside this evidence, of how common a dataset is.
        is_known: a function that returns (rows,) which models have it; None if no labelled model has.
        is_optional: whether there are scores without it, too.
    """

    name: str
    words: str
    reason: str
    frequency: float
    is_known: Callable[[Features], Booleans | None]
    is_optional: bool = False


@dataclass(frozen=True)
class Measurement:
    """A column of the design matrix.

    Attributes:
        evidence: the name of its kind of evidence; None if it is known for every model.
        values: a function that returns (rows, answers), or for a measurement of models (rows,); NaN where it is not
            known. Its docstring describes the measurement.
        usual: the weight that fits are regularised towards; for ``frequency`` see ``Evidence``.
    """

    evidence: str | None
    values: Callable[[Features], Reals]
    usual: float = 0.0


def _vocabulary(features: Features) -> Votes:
    assert features.vocabulary is not None  # a measurement is only made where its evidence is known
    return features.vocabulary


def _has_vocabulary(features: Features) -> Booleans | None:
    return None if features.vocabulary is None else features.vocabulary.is_known


EVIDENCE = (
    Evidence("vectors", "its vector", "votes of similar models", 1.5, lambda features: features.vectors.is_known),
    Evidence(
        "vocabulary",
        "its vocabulary",
        "votes of models with similar words in their training text",
        1.5,
        _has_vocabulary,
        is_optional=True,
    ),
    Evidence("head", "its head", "number and names of labels in config.json", 1.0, lambda features: features.has_head),
)
TOGETHER, WITHOUT = "together", "without_"  # ways of predicting: with all evidence that a model has, or all but one


def ways(kinds: Collection[str]) -> dict[str, frozenset[str]]:
    """The ways of predicting from these kinds of evidence, and the evidence that each may use."""
    usual = [kind.name for kind in EVIDENCE if kind.name in kinds and not kind.is_optional]
    optional = [kind.name for kind in EVIDENCE if kind.name in kinds and kind.is_optional]
    single_kinds = {name: frozenset({name}) for name in (*usual, *optional)}
    return (
        {TOGETHER: frozenset(kinds)} | single_kinds | {WITHOUT + name: frozenset(kinds) - {name} for name in optional}
    )


def way_in_words(way: str) -> str:
    """The evidence that a way of predicting uses, in words."""
    for kind in EVIDENCE:
        if way == kind.name:
            return f"the {kind.name} alone: {kind.reason}"
    optional = [kind.name for kind in EVIDENCE if kind.is_optional]
    clauses = [
        f"without the {name}" if way == WITHOUT + name else f"with the {name} of models that have one"
        for name in optional
    ]
    return ", ".join([f"{joined(kind.name for kind in EVIDENCE if not kind.is_optional)} together", *clauses])


def evidence_of(features: Features, row: int) -> list[str]:
    """The kinds of evidence of a model."""
    is_known_by_kind = {kind.name: kind.is_known(features) for kind in EVIDENCE}
    return [name for name, is_known in is_known_by_kind.items() if is_known is not None and is_known[row]]


def in_words(kinds: Collection[str]) -> str:
    """For example "its vector, its vocabulary and its head"."""
    return joined(kind.words for kind in EVIDENCE if kind.name in kinds)


def lift(features: Features) -> Reals:
    """The logarithm of the dataset's share of the votes by vectors over its share of all sweeps."""
    return features.vectors.log_votes - features.log_common


def share(features: Features) -> Reals:
    """The dataset's share of the votes by vectors: next to the lift, so that a clear majority counts fully."""
    return features.vectors.share


def frequency(features: Features) -> Reals:
    """The logarithm of the dataset's share of all sweeps: common datasets get votes just by being common."""
    return features.log_common


def head_ratio(features: Features) -> Reals:
    """The logarithm of how much more frequent such a head is among models of the dataset than among all."""
    return features.head


def vocabulary_lift(features: Features) -> Reals:
    """The logarithm of the dataset's share of the votes by vocabulary vectors over its share of all sweeps."""
    return _vocabulary(features).log_votes - features.log_common


def vocabulary_share(features: Features) -> Reals:
    """The dataset's share of the votes by vocabulary vectors."""
    return _vocabulary(features).share


OF_ANSWERS = (
    Measurement("vectors", lift, usual=1.5),
    Measurement("vectors", share),
    Measurement(None, frequency),
    Measurement("head", head_ratio, usual=1.0),
    Measurement("vocabulary", vocabulary_lift, usual=1.5),
    Measurement("vocabulary", vocabulary_share),
)


def vocabulary_similarity(features: Features) -> Reals:
    """How similar the nearest vocabulary is: centred vocabularies have the same scale for all models."""
    return _vocabulary(features).similarity


def nearness(features: Features) -> Reals:
    """How similar the two nearest sweeps of a dataset are, for the dataset where they are most similar."""
    return features.nearness


def prominence(features: Features) -> Reals:
    """How far the nearest sweep stands out from all sweeps."""
    return features.vectors.prominence


def head_fit(features: Features) -> Reals:
    """How well the head fits the dataset that it fits best."""
    fitting = np.where(features.present, features.head, -np.inf).max(axis=1, initial=-np.inf)
    return np.where(features.has_head & np.isfinite(fitting), fitting, np.nan)


def head_overlap(features: Features) -> Reals:
    """How much the label names resemble those of another model; not known of generic names like LABEL_0."""
    return features.recognised


OF_MODELS = (
    Measurement("vocabulary", vocabulary_similarity),
    Measurement("vectors", nearness),
    Measurement("vectors", prominence),
    Measurement("head", head_fit),
    Measurement("head", head_overlap),
)


@dataclass(frozen=True)
class Design:
    """The design matrix of models (rows): for each model and answer a row of ``of_answers``.

    Attributes:
        kinds: the kinds of evidence that any labelled model has.
        is_known: (rows, kinds of ``EVIDENCE``): which evidence a model has.
        of_answers: (columns, rows, answers), in the order of ``OF_ANSWERS``; 0 where the evidence is not known.
        of_models: (columns, rows), in the order of ``OF_MODELS``; NaN where they are not known.
        present: (rows, answers): which answers are named by a model of another author.
        truth: (rows, answers): see ``Features``.
    """

    kinds: tuple[str, ...]
    is_known: Booleans
    of_answers: Reals
    of_models: Reals
    present: Booleans
    truth: Reals

    def take(self, rows: Booleans) -> Design:
        """The design matrix of some of the models."""
        return Design(
            self.kinds, self.is_known[rows], self.of_answers[:, rows], self.of_models[:, rows], self.present[rows],
            self.truth[rows],
        )  # fmt: skip

    def has(self, kinds: Collection[str]) -> Booleans:
        """(rows,): whether a model has all of this evidence."""
        needed = np.array([kind.name in kinds for kind in EVIDENCE])
        return np.asarray((self.is_known | ~needed).all(axis=1))


def design_of(features: Features) -> Design:
    """All measurements of these models."""
    is_known_by_kind = {kind.name: kind.is_known(features) for kind in EVIDENCE}
    rows = len(features.indices)
    masks = {
        name: np.zeros(rows, dtype=bool) if is_known is None else is_known
        for name, is_known in is_known_by_kind.items()
    }

    def values(measurement: Measurement, shape: tuple[int, ...]) -> Reals:
        if measurement.evidence is None:
            return measurement.values(features)
        has_evidence = masks[measurement.evidence]
        if not has_evidence.any():
            return np.full(shape, np.nan)
        mask = has_evidence if len(shape) == 1 else has_evidence[:, None]
        return np.where(mask, measurement.values(features), np.nan)

    return Design(
        kinds=tuple(name for name, is_known in is_known_by_kind.items() if is_known is not None),
        is_known=np.stack(list(masks.values()), axis=1),
        of_answers=np.nan_to_num(np.stack([values(measurement, features.present.shape) for measurement in OF_ANSWERS])),
        of_models=np.stack([values(measurement, (rows,)) for measurement in OF_MODELS]),
        present=features.present,
        truth=features.truth,
    )


def columns_of(measurements: Collection[Measurement], evidence: Collection[str]) -> Integers:
    """The columns of the measurements that need no other evidence than this."""
    return np.flatnonzero(
        [measurement.evidence is None or measurement.evidence in evidence for measurement in measurements]
    )


def usual_weights(evidence: Collection[str]) -> Reals:
    """The weights of the columns of ``OF_ANSWERS`` for this evidence that fits are regularised towards."""
    of_frequency = max((kind.frequency for kind in EVIDENCE if kind.name in evidence), default=1.0)
    used = [OF_ANSWERS[column] for column in columns_of(OF_ANSWERS, evidence)]
    return np.array([of_frequency if measurement.evidence is None else measurement.usual for measurement in used])
