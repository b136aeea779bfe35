"""How often ``predict`` is right: cross-validation over authors, with the commonest dataset and chance as baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np

from indexer.console.messages import say
from indexer.console.option import Option
from indexer.errors import AtlasError, Call, Text
from query.contract.options import Base, Representation
from query.contract.registry import question
from query.questions.predict.classifier import NONE_OF_THESE, TOO_FEW, fit
from query.questions.predict.measurements import TOGETHER
from query.questions.predict.result import Evaluation, NoneScore, PredictedModel
from query.questions.predict.scoring import (
    UNKNOWN_SHARES,
    Columns,
    accuracy_at,
    auroc,
    chance_scores,
    intervals,
    mean_scores,
    reliability,
    score_models,
)
from query.questions.predict.training_set import (
    DatasetRuns,
    Features,
    LabelledModelReader,
    LabelledModels,
    Reals,
    TrainingSet,
)
from query.shared.statistics.authors import FEWEST_AUTHORS, too_few, units_of
from query.shared.statistics.neighbours import Integers

if TYPE_CHECKING:
    from query.models.reader import AtlasReader

# Groups of authors. With more groups, each model is predicted from a few more models, but that takes longer.
_FOLDS = 10

_MANY = 1000  # with this many models, a message explains the wait


@question()
def evaluate(
    atlas: AtlasReader,
    base: Base = None,
    *,
    k: Annotated[int, Option("Number of nearest models used for the vote.", least=1)] = 10,
    representation: Representation = "input",
) -> Evaluation:
    """How often ``predict`` is right on this atlas, compared with a baseline; see ``evaluate_models``.

    Raises AtlasError if fewer than two authors name a dataset, ValueError on k < 1.
    """
    canonical = atlas.base_named(base)
    models = LabelledModelReader(atlas, representation).read(canonical)
    return evaluate_models(models, base=canonical, representation=representation, k=k)


def evaluate_models(
    models: LabelledModels, *, base: str = "", representation: str = "", k: int = 10, folds: int = _FOLDS
) -> Evaluation:
    """Predict every model from models of other authors; compare that with the commonest dataset and with chance.

    The models of each group of authors are predicted without that group, which neither votes nor is used for fitting.

    Args:
        models: the labelled models.
        base: the name of the base, for the answer.
        representation: the name of the representation, for the answer.
        k: the number of voting neighbours.
        folds: the number of groups; if there are fewer authors, each is a group.

    Raises:
        AtlasError: fewer than two authors name a dataset.
        ValueError: k < 1.
    """
    if k < 1:
        raise ValueError("k must be at least 1")
    authors = len(set(models.authors))
    if authors < 2:
        reason = (
            f"All models with a known dataset ({len(models.models)}) are by one author: there are none to compare with."
            if models.models
            else "No model of this base has both a vector and a known dataset: there is nothing to evaluate."
        )
        raise AtlasError(reason, Text("Index more models: ", Call("build", base)))
    if len(models.models) >= _MANY:
        say(f"Predicting {len(models.models):,} models, each from models of other authors …")
    training = TrainingSet(models, k)
    sweeps = training.sweeps
    trial = cross_validate(training, folds)
    importance = 1 / sweeps.sizes[sweeps.of_model[trial.rows]]
    of_author = sweeps.authors[trial.rows]
    notes = () if trial.is_calibrated else (TOO_FEW,)

    def mean(column: Reals) -> float:
        return float(np.average(column, weights=importance))

    def auroc_of_none(name: str) -> float | None:
        hidden, shown = (columns[name]["none"] for columns in (trial.hidden, trial.scores))
        return auroc(hidden, shown, (importance * (trial.covered > 0), importance * trial.covered))

    def accuracies_at(name: str) -> dict[str, float | None]:
        """The accuracy for mixtures of models whose dataset another author names, with and without it hidden."""
        weights = importance * (trial.covered > 0)
        if not weights.sum():
            return {}
        accuracies: dict[str, float | None] = {}
        for share in UNKNOWN_SHARES:
            column = f"accuracy at {share}"
            of_shown, of_hidden = (
                float(np.average(columns[name][column], weights=weights)) for columns in (trial.scores, trial.hidden)
            )
            accuracies[f"accuracy_{100 * share:.0f}"] = (1 - share) * of_shown + share * of_hidden
        return accuracies

    return Evaluation(
        base=base,
        representation=representation,
        k=k,
        models=len(models.models),
        sweeps=len(sweeps.labels),
        authors=authors,
        datasets=len(sweeps.answers),
        with_head=sum(head.kind is not None for head in models.heads),
        with_vocabulary=0 if models.vocabulary is None else int(models.vocabulary.any(axis=1).sum()),
        calibrated=trial.is_calibrated,
        scores=tuple(mean_scores(name, columns, importance) for name, columns in trial.scores.items()),
        intervals=intervals(trial.scores, importance, of_author),
        none_of_these=tuple(
            NoneScore(
                name,
                share=mean(1 - trial.covered),
                probability=mean(trial.scores[name]["none"]),
                hidden_probability=mean(trial.hidden[name]["none"]),
                hidden_accuracy=mean(trial.hidden[name]["accuracy"]),
                auroc=auroc_of_none(name),
                **accuracies_at(name),
            )
            for name in trial.hidden
        ),
        reliability=tuple(
            bin_ for name in trial.hidden for bin_ in reliability(name, trial.scores[name], importance, of_author)
        ),
        notes=notes if authors >= FEWEST_AUTHORS else (*notes, too_few(authors)),
        outcomes=_outcomes(training, trial, importance),
    )


@dataclass(frozen=True)
class CrossValidation:
    """Scores by model: entry i of every column belongs to the same model.

    Attributes:
        rows: the index of each model among the labelled models.
        scores: by way of predicting: together, vectors, head, majority, chance, and with vocabulary vectors
            vocabulary, without_vocabulary; see ``score_models``.
        hidden: the same without votes of models that share a dataset, so that "none of these" is true.
        covered: the share of the truth that the answers cover.
        is_calibrated: whether every fold had enough models to fit on.
    """

    rows: Integers
    scores: dict[str, Columns]
    hidden: dict[str, Columns]
    covered: Reals
    is_calibrated: bool


def cross_validate(training: TrainingSet, folds: int) -> CrossValidation:
    """Leave out one group of authors at a time, fit on the others, and score the predictions for that group."""

    def joined(folds_of_columns: Sequence[Columns]) -> Columns:
        return {
            name: np.concatenate([columns_of_fold[name] for columns_of_fold in folds_of_columns])
            for name in folds_of_columns[0]
        }

    def with_none(features: Features) -> Reals:
        """(rows, answers + 1): the truth with its share outside the answers."""
        return np.concatenate([features.truth, 1 - features.covered[:, None]], axis=1)

    def at_shares(guess: Reals, truth: Reals, none: float) -> Columns:
        return {f"accuracy at {share}": accuracy_at(guess, truth, none, share) for share in UNKNOWN_SHARES}

    authors = training.sweeps.authors
    group = units_of(authors, folds)
    groups = [np.flatnonzero(group == number) for number in range(int(group.max()) + 1)]
    scores: dict[str, list[Columns]] = {}
    hidden_scores: dict[str, list[Columns]] = {}
    covered, calibrated = [], []
    for rows in groups:
        fitted = fit(training, np.unique(authors[rows]).tolist())
        shown, hidden = training.features(rows), training.features(rows, is_hidden=True)
        truth, hidden_truth = with_none(shown), with_none(hidden)
        guesses = fitted.probabilities(shown) | {"majority": _majority(training.sweeps, shown, fitted.none)}
        for name, guess in guesses.items():
            scores.setdefault(name, []).append(score_models(guess, truth) | at_shares(guess, truth, fitted.none))
        scores.setdefault("chance", []).append(chance_scores(shown.present, truth))
        for name, guess in fitted.probabilities(hidden).items():
            columns = score_models(guess, hidden_truth) | at_shares(guess, hidden_truth, fitted.none)
            hidden_scores.setdefault(name, []).append(columns)
        covered.append(shown.covered)
        calibrated.append(fitted.is_calibrated)
    return CrossValidation(
        rows=np.concatenate(groups),
        scores={name: joined(folds_of_columns) for name, folds_of_columns in scores.items()},
        hidden={name: joined(folds_of_columns) for name, folds_of_columns in hidden_scores.items()},
        covered=np.concatenate(covered),
        is_calibrated=all(calibrated),
    )


def _majority(sweeps: DatasetRuns, shown: Features, none: float) -> Reals:
    """The share of each dataset among all sweeps, as a prediction for every model.

    The model's own sweep is counted, too. Without it, exactly the right dataset would be rarer than it is: if all were
    equally common, this baseline would never be right, and every method would look good in comparison.
    """
    share = np.where(shown.present, sweeps.shares.sum(axis=0), 0).astype(np.float64)
    share /= np.maximum(share.sum(axis=1, keepdims=True), 1e-12)
    none_probability = np.where(shown.present.any(axis=1), none, 1.0)[:, None]
    return np.concatenate([(1 - none_probability) * share, none_probability], axis=1)


def _outcomes(training: TrainingSet, trial: CrossValidation, importance: Reals) -> tuple[PredictedModel, ...]:
    names = [*training.sweeps.answers, NONE_OF_THESE]
    scores, models = trial.scores[TOGETHER], training.models
    return tuple(
        PredictedModel(
            model=models.models[row],
            author=models.authors[row],
            datasets=tuple(sorted(models.datasets[row])),
            weight=float(importance[index]),
            answer=names[scores["answer"][index]],
            probability=float(scores["confidence"][index]),
            right=float(scores["right"][index]),
            log_loss=float(scores["log_loss"][index]),
            none=float(scores["none"][index]),
        )
        for row, index in enumerate(np.argsort(trial.rows).tolist())
    )
