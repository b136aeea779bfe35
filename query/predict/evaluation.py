"""How often ``predict`` is right: cross-validation over authors, with the commonest dataset and chance as baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.console.messages import say
from indexer.errors import AtlasError
from query.figures import THEMES, label, styled_grid
from query.predict.classifier import EVIDENCE, NONE_OF_THESE, OF_VOCABULARY, TOO_FEW, fit
from query.predict.scoring import (
    BINS,
    MEASURES,
    UNKNOWN_SHARES,
    Bin,
    Columns,
    Interval,
    PredictionScore,
    accuracy_at,
    auroc,
    chance_scores,
    intervals,
    mean_scores,
    reliability,
    score_models,
)
from query.predict.training_set import (
    DatasetRuns,
    Features,
    LabelledModelReader,
    LabelledModels,
    Reals,
    TrainingSet,
)
from query.results import Drawn, ThemeName
from query.statistics.authors import FEWEST_AUTHORS, too_few, units_of
from query.statistics.neighbours import Integers
from query.wording import counted, decimal, percent, span

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from query.reader import AtlasReader

# Groups of authors. More groups leave a little more to predict each from, but take longer.
FOLDS = 10

_MANY = 1000  # with more models, a message says what takes so long
_SMALLEST, _LARGEST = 6.0, 55.0  # area of a point of the picture, in square points
_TITLES = {"vectors": "vectors alone", "head": "head alone", "together": "together"}


@dataclass(frozen=True)
class NoneScore:
    """The scores of "none of these": ``share``, how often it is true, and ``probability``, its mean probability.

    ``hidden_probability`` and ``hidden_accuracy``: its mean probability, and how often it is the best answer, if models
    that share a dataset with the predicted one may not vote. ``auroc``: the probability that it is more probable for a
    model whose datasets are hidden in this way than for one whose dataset another author names; None without both.
    ``accuracy_0`` … ``accuracy_75``: how often the best answer is right if this percentage of the models are hidden
    ones, and the prior of "none of these" is that share.
    """

    evidence: str
    share: float
    probability: float
    hidden_probability: float
    hidden_accuracy: float
    auroc: float | None = None
    accuracy_0: float | None = None
    accuracy_25: float | None = None
    accuracy_50: float | None = None
    accuracy_75: float | None = None


@dataclass(frozen=True)
class PredictedModel:
    """One labelled model, predicted by all kinds of evidence together; ``weight``: how much it counts in the means.

    ``answer``: the most probable one, with its ``probability`` and its share of the truth, ``right``.
    """

    model: str
    author: str
    datasets: tuple[str, ...]
    weight: float
    answer: str
    probability: float
    right: float
    log_loss: float
    none: float


@dataclass(frozen=True, repr=False)
class Evaluation(Drawn):
    """Out-of-author predictions of all labelled models of a base, and their scores.

    ``sweeps``: sets of models by one author on the same datasets; each counts as one model in every mean.
    ``with_head``: models whose config.json describes a head; the others are predicted without one. ``with_vocabulary``:
    models with a vocabulary vector; if there are any, "together" uses it, and "without_vocabulary" does not.
    """

    ROWS = "outcomes"
    COLUMNS = tuple(PredictedModel.__dataclass_fields__)
    SHOW_HEADLINE = True
    OPTIONAL_COLUMNS = ("calibration_error", "log_loss", "hidden_probability", "probability", "brier", "top3")

    base: str
    representation: str
    k: int
    models: int
    sweeps: int
    authors: int
    datasets: int
    with_head: int
    with_vocabulary: int
    calibrated: bool
    scores: tuple[PredictionScore, ...]
    intervals: tuple[Interval, ...]
    none_of_these: tuple[NoneScore, ...]
    reliability: tuple[Bin, ...]
    notes: tuple[str, ...] = ()
    outcomes: tuple[PredictedModel, ...] = field(default=(), repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON object, without the single models."""
        return {name: value for name, value in super().to_dict().items() if name != "outcomes"}

    @property
    def headline(self) -> str:
        """How often the best answer is right, and how often the commonest dataset would be."""
        scores = {score.evidence: score for score in self.scores}
        together, majority = scores["together"], scores.get("majority")
        than = f", where naming the commonest dataset would be in {percent(majority.accuracy)}" if majority else ""
        between = next((one.accuracy for one in self.intervals if one.evidence == "together" and one.accuracy), None)
        interval = f" (95 % interval {percent(between[0])} to {percent(between[1])})" if between else ""
        return (
            f"Each of {counted(self.models, 'model')} predicted from models of other authors: the best answer is right "
            f"in {percent(together.accuracy)} of cases{interval}{than}. A sweep counts as one case."
        )

    def table(self, *, details: bool = False) -> dict[str, Any]:
        """The scores, shares with their 95 % intervals; ``details``: every interval, and the reliability."""
        whole = self.to_dict()
        of = {one.evidence: one for one in self.intervals}
        for row in whole["scores"]:
            for name in MEASURES if details else ("accuracy", "top3"):
                between = getattr(of.get(row["evidence"]), name, None)
                row[name] = decimal(row[name]) + (f" ({span(*between)})" if between else "")
        for row in [*whole["scores"], *whole["none_of_these"], *whole["reliability"]]:
            row |= {name: decimal(cell) for name, cell in row.items() if isinstance(cell, float)}
        if not details:
            for row in whole["none_of_these"]:
                for share in UNKNOWN_SHARES:
                    row.pop(f"accuracy_{100 * share:.0f}")
        left_out = ("intervals",) if details else ("intervals", "reliability")
        return {name: value for name, value in whole.items() if name not in left_out}

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """The reliability diagram: how often answers are right, by probability, for vectors, head and both together.

        A point is the models whose best answer is equally probable, to a tenth. A calibrated prediction has its points
        on the diagonal, within their 95 % intervals over authors, which need at least five authors. Bars show the share
        of the models; the area of a point grows with it.
        """
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        figure, panels = styled_grid(7.2, 3.55, 1, len(_TITLES), theme, ax)
        colours = THEMES[theme]
        ink = colours.ink
        diagonal: dict[str, Any] = {"color": colours.rest, "linestyle": (0, (4, 3))}
        by_evidence = {score.evidence: score for score in self.scores}
        for panel, (evidence, title), colour in zip(panels, _TITLES.items(), colours.palette, strict=False):
            for one in self.reliability:
                if one.evidence != evidence:
                    continue
                middle = (min(int(one.probability * BINS), BINS - 1) + 0.5) / BINS
                panel.bar(middle, one.share, 0.86 / BINS, color=colours.faint, zorder=1)
                if one.low is not None and one.high is not None:
                    panel.plot(
                        [one.probability] * 2, [one.low, one.high], color=colour, linewidth=1.2, alpha=0.6, zorder=3
                    )
                size = _SMALLEST + (_LARGEST - _SMALLEST) * one.share  # its area grows with the number of models
                panel.scatter(
                    [one.probability], [one.right], s=size, color=colour, zorder=4, clip_on=False, linewidths=0
                )
            panel.plot([0, 1], [0, 1], linewidth=1, zorder=2, **diagonal)
            panel.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
            for axis in (panel.xaxis, panel.yaxis):
                axis.set_ticks([0, 0.25, 0.5, 0.75, 1], ["0", ".25", ".5", ".75", "1"])
            panel.tick_params(labelleft=panel is panels[0])
            panel.set_title(title, fontsize=10, color=ink, pad=17)
            score = by_evidence[evidence]
            numbers = {"accuracy": score.accuracy, "Brier": score.brier, "ECE": score.calibration_error}
            text = "  ".join(f"{name} {value:.3f}".replace(" 0.", " .") for name, value in numbers.items())
            panel.text(0.5, 1.04, text, ha="center", va="bottom", fontsize=7.5, color=ink, transform=panel.transAxes)
        panels[0].set_ylabel("share that is right", fontsize=9)
        panels[1].set_xlabel("probability of the best answer", fontsize=9)
        what = "Are predictions right as often as their probability says?"
        who = (
            f"{self.models:,} labelled models of {label(self.base)}, each predicted from models by other authors"
            if self.base
            else ""
        )
        figure.suptitle(f"{what}\n{who}".strip(), x=0.01, horizontalalignment="left", fontsize=9, color=ink)
        handles: list[Any] = [
            Line2D([], [], color=ink, linestyle="", marker="o", markersize=4, label="models of similar probability"),
            Line2D([], [], color=ink, linewidth=1.2, alpha=0.6, label="95 % interval over authors"),
            Line2D([], [], label="perfectly calibrated", **diagonal),
            Patch(color=colours.faint, label="bar: share of all models"),
        ]
        style: dict[str, Any] = {"ncols": 4, "fontsize": 6.5, "frameon": False, "labelcolor": ink}
        figure.legend(handles=handles, loc="outside lower left", **style)
        return figure


def evaluate(atlas: AtlasReader, base: str | None = None, *, k: int = 10, representation: str = "input") -> Evaluation:
    """How often ``predict`` is right on this atlas, compared with a baseline; see ``evaluate_models``.

    Raises AtlasError if fewer than two authors name a dataset, ValueError on k < 1.
    """
    canonical = atlas.base_named(base)
    models = LabelledModelReader(atlas, representation).read(canonical)
    return evaluate_models(models, base=canonical, representation=representation, k=k)


def evaluate_models(
    models: LabelledModels, *, base: str = "", representation: str = "", k: int = 10, folds: int = FOLDS
) -> Evaluation:
    """Predict every model from models of other authors; compare that with the commonest dataset and with chance.

    Authors are dealt into ``folds`` groups (one group for each, if they are few). The models of a group are predicted
    without that group, neither in the parameters nor in the votes. Raises AtlasError if fewer than two authors name a
    dataset, ValueError on k < 1.
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
        raise AtlasError(reason, f"Index more models: `build({base!r})`")
    if len(models.models) >= _MANY:
        say(f"Predicting {len(models.models):,} models, each from models of other authors …")
    training = TrainingSet(models, k)
    sweeps = training.sweeps
    trial = cross_validate(training, folds)
    importance = 1 / sweeps.sizes[sweeps.of_model[trial.rows]]
    of_author = sweeps.authors[trial.rows]
    notes = () if trial.is_calibrated else (TOO_FEW,)

    evidence = EVIDENCE if models.vocabulary is None else (*EVIDENCE, *OF_VOCABULARY)

    def mean(column: Reals) -> float:
        return float(np.average(column, weights=importance))

    def ranked_apart(name: str) -> float | None:
        hidden, shown = (one[name]["none"] for one in (trial.hidden, trial.scores))
        return auroc(hidden, shown, (importance * (trial.known > 0), importance * trial.known))

    def right_at(name: str) -> dict[str, float | None]:
        """The accuracy of a mixture: the models whose dataset another author names, some of them with it hidden."""
        weights = importance * (trial.known > 0)
        if not weights.sum():
            return {}
        found: dict[str, float | None] = {}
        for share in UNKNOWN_SHARES:
            column = f"accuracy at {share}"
            of_shown, of_hidden = (
                float(np.average(one[name][column], weights=weights)) for one in (trial.scores, trial.hidden)
            )
            found[f"accuracy_{100 * share:.0f}"] = (1 - share) * of_shown + share * of_hidden
        return found

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
        scores=tuple(mean_scores(name, one, importance) for name, one in trial.scores.items()),
        intervals=intervals(trial.scores, importance, of_author),
        none_of_these=tuple(
            NoneScore(
                name,
                share=mean(1 - trial.known),
                probability=mean(trial.scores[name]["none"]),
                hidden_probability=mean(trial.hidden[name]["none"]),
                hidden_accuracy=mean(trial.hidden[name]["accuracy"]),
                auroc=ranked_apart(name),
                **right_at(name),
            )
            for name in evidence
        ),
        reliability=tuple(
            one for name in evidence for one in reliability(name, trial.scores[name], importance, of_author)
        ),
        notes=notes if authors >= FEWEST_AUTHORS else (*notes, too_few(authors)),
        outcomes=_outcomes(training, trial, importance),
    )


@dataclass(frozen=True)
class CrossValidation:
    """Scores by model: ``rows`` of the labelled models, entry i of every column the same model.

    Attributes:
        scores: by way of predicting: together, vectors, head, majority, chance, and with vocabulary vectors
            vocabulary, without_vocabulary; see ``score_models``.
        hidden: the same if models that share a dataset may not vote, so that "none of these" is true.
        known: the share of the truth that is among the answers.
        is_calibrated: whether every fold had enough models to fit on.
    """

    rows: Integers
    scores: dict[str, Columns]
    hidden: dict[str, Columns]
    known: Reals
    is_calibrated: bool


def cross_validate(training: TrainingSet, folds: int) -> CrossValidation:
    """Leave out one group of authors at a time, fit on the others, and score the predictions for that group."""

    def joined(parts: Sequence[Columns]) -> Columns:
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def at_shares(guess: Reals, truth: Reals, none: float) -> Columns:
        return {f"accuracy at {share}": accuracy_at(guess, truth, none, share) for share in UNKNOWN_SHARES}

    authors = training.sweeps.authors
    group = units_of(authors, folds)
    groups = [np.flatnonzero(group == number) for number in range(int(group.max()) + 1)]
    scores: dict[str, list[Columns]] = {}
    hidden_scores: dict[str, list[Columns]] = {}
    known, calibrated = [], []
    for rows in groups:
        fitted = fit(training, np.unique(authors[rows]).tolist())
        shown, hidden = training.features(rows), training.features(rows, is_hidden=True)
        truth, hidden_truth = (np.concatenate([one.truth, 1 - one.known[:, None]], axis=1) for one in (shown, hidden))
        guesses = fitted.probabilities(shown) | {"majority": _majority(training.sweeps, shown, fitted.none)}
        for name, guess in guesses.items():
            scores.setdefault(name, []).append(score_models(guess, truth) | at_shares(guess, truth, fitted.none))
        scores.setdefault("chance", []).append(chance_scores(shown.present, truth))
        for name, guess in fitted.probabilities(hidden).items():
            columns = score_models(guess, hidden_truth) | at_shares(guess, hidden_truth, fitted.none)
            hidden_scores.setdefault(name, []).append(columns)
        known.append(shown.known)
        calibrated.append(fitted.is_calibrated)
    return CrossValidation(
        rows=np.concatenate(groups),
        scores={name: joined(parts) for name, parts in scores.items()},
        hidden={name: joined(parts) for name, parts in hidden_scores.items()},
        known=np.concatenate(known),
        is_calibrated=all(calibrated),
    )


def _majority(sweeps: DatasetRuns, shown: Features, none: float) -> Reals:
    """Each dataset by its share of all sweeps, whatever the model looks like.

    The model's own sweep is counted too. Without it, exactly the right dataset would be rarer than it is. If all were
    equally common, this baseline would then never be right, and every method would look good in comparison.
    """
    share = np.where(shown.present, sweeps.shares.sum(axis=0), 0).astype(np.float64)
    share /= np.maximum(share.sum(axis=1, keepdims=True), 1e-12)
    nothing = np.where(shown.present.any(axis=1), none, 1.0)[:, None]
    return np.concatenate([(1 - nothing) * share, nothing], axis=1)


def _outcomes(training: TrainingSet, trial: CrossValidation, importance: Reals) -> tuple[PredictedModel, ...]:
    names = [*training.sweeps.answers, NONE_OF_THESE]
    scores, models = trial.scores["together"], training.models
    return tuple(
        PredictedModel(
            model=models.models[row],
            author=models.authors[row],
            datasets=tuple(sorted(models.datasets[row])),
            weight=float(importance[place]),
            answer=names[scores["answer"][place]],
            probability=float(scores["confidence"][place]),
            right=float(scores["right"][place]),
            log_loss=float(scores["log_loss"][place]),
            none=float(scores["none"][place]),
        )
        for row, place in enumerate(np.argsort(trial.rows).tolist())
    )
