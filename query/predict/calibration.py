"""How often `predict` is right: every documented model predicted from models of other authors, and judged."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.console.messages import say
from indexer.errors import AtlasError
from query.predict.answers import EVIDENCE, NONE_OF_THESE
from query.predict.documented import Documents, read_documents
from query.predict.evidence import Reals, Witnesses
from query.predict.learning import TOO_FEW
from query.predict.out_of_author import HeldOut, try_all
from query.predict.scoring import MEASURES, Bin, Interval, PredictionScore, intervals, reliability, score
from query.results import Drawn, ThemeName
from query.statistics.intervals import FEWEST_AUTHORS, too_few
from query.wording import counted, decimal, percent, span

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from query.reader import AtlasReader

# Groups of authors. With more, each would be judged by a little more, and all would take longer.
FOLDS = 10

_MANY = 1000  # models from which on a person is told what is being waited for


@dataclass(frozen=True)
class NoneScore:
    """How "none of these" does: ``share``, how often it is true, and ``probability``, the mean one it was given.

    ``hidden_probability`` and ``hidden_accuracy``: its mean probability, and how often it is the best answer, when
    whoever shares a dataset with the model is kept silent.
    """

    evidence: str
    share: float
    probability: float
    hidden_probability: float
    hidden_accuracy: float


@dataclass(frozen=True)
class JudgedModel:
    """One documented model, judged by both kinds of evidence together; ``weight``: how much it counts in the means.

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
    """Out-of-author predictions of all documented models of a base, judged.

    ``sweeps``: sets of models by one author on the same datasets; each counts as one model in every mean.
    ``with_head``: models whose config.json describes a head; the others are predicted from vectors alone.
    """

    COLUMNS = tuple(JudgedModel.__dataclass_fields__)
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
    calibrated: bool
    scores: tuple[PredictionScore, ...]
    intervals: tuple[Interval, ...]
    none_of_these: tuple[NoneScore, ...]
    reliability: tuple[Bin, ...]
    notes: tuple[str, ...] = ()
    outcomes: tuple[JudgedModel, ...] = field(default=(), repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON object, without the single models."""
        plain = asdict(self)
        del plain["outcomes"]
        return plain

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

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each documented model, in order of id."""
        return [asdict(outcome) for outcome in self.outcomes]

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
        left_out = ("intervals",) if details else ("intervals", "reliability")
        return {name: value for name, value in whole.items() if name not in left_out}

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """The reliability diagram: how often an answer of a given probability is right, by evidence."""
        from query.predict.reliability_picture import reliability_figure

        return reliability_figure(self.reliability, self.scores, theme, self.base, self.models, ax)


def evaluate(atlas: AtlasReader, base: str | None = None, *, k: int = 10, representation: str = "input") -> Evaluation:
    """How often ``predict`` is right on this atlas, compared with a baseline; see ``evaluate_documents``.

    Raises AtlasError if fewer than two authors name a dataset, ValueError on k < 1.
    """
    canonical = atlas.base_named(base)
    documents = read_documents(atlas, canonical, representation)
    return evaluate_documents(documents, base=canonical, representation=representation, k=k)


def evaluate_documents(
    documents: Documents, *, base: str = "", representation: str = "", k: int = 10, folds: int = FOLDS
) -> Evaluation:
    """Predict every model from models of other authors; judge that against majority and chance.

    Authors are dealt into ``folds`` groups (each its own, where they are few). What judges a group was learnt
    without it: neither the parameters nor the sweeps behind them are its own. Raises AtlasError where fewer than
    two authors name a dataset, ValueError on k < 1.
    """
    if k < 1:
        raise ValueError("k must be at least 1")
    if len(set(documents.authors)) < 2:
        raise AtlasError(_nobody_to_ask(documents), f"Index more models: `build({base!r})`")
    if len(documents.models) >= _MANY:
        say(f"Predicting {len(documents.models):,} models, each from models of other authors …")
    witnesses = Witnesses.of(documents, k)
    sweeps = witnesses.sweeps
    trial = try_all(witnesses, folds)
    importance = 1 / np.bincount(sweeps.of_model)[sweeps.of_model[trial.rows]]
    of_author = sweeps.authors[trial.rows]
    return Evaluation(
        base=base,
        representation=representation,
        k=k,
        models=len(documents.models),
        sweeps=len(sweeps.labels),
        authors=len(set(documents.authors)),
        datasets=len(sweeps.answers),
        with_head=sum(head.kind is not None for head in documents.heads),
        calibrated=trial.is_calibrated,
        scores=tuple(score(name, one, importance) for name, one in trial.judged.items()),
        intervals=intervals(trial.judged, importance, of_author),
        none_of_these=tuple(_none_score(name, trial, importance) for name in EVIDENCE),
        reliability=tuple(
            one for name in EVIDENCE for one in reliability(name, trial.judged[name], importance, of_author)
        ),
        notes=_notes(trial.is_calibrated, len(set(documents.authors))),
        outcomes=_outcomes(witnesses, trial, importance),
    )


def _notes(is_calibrated: bool, authors: int) -> tuple[str, ...]:
    few = (too_few(authors),) if authors < FEWEST_AUTHORS else ()
    return (*(() if is_calibrated else (TOO_FEW,)), *few)


def _nobody_to_ask(documents: Documents) -> str:
    if not documents.models:
        return "No model of this base has both a vector and a known dataset: there is nothing to judge."
    return f"All models with a known dataset ({len(documents.models)}) are by one author: nobody else can be asked."


def _none_score(name: str, trial: HeldOut, importance: Reals) -> NoneScore:
    shown, hidden = trial.judged[name], trial.hidden[name]
    means = {
        "share": 1 - trial.known,
        "probability": shown.none,
        "hidden_probability": hidden.none,
        "hidden_accuracy": hidden.accuracy,
    }
    return NoneScore(name, **{key: float(np.average(column, weights=importance)) for key, column in means.items()})


def _outcomes(witnesses: Witnesses, trial: HeldOut, importance: Reals) -> tuple[JudgedModel, ...]:
    names = [*witnesses.sweeps.answers, NONE_OF_THESE]
    judged, documents = trial.judged["together"], witnesses.documents
    return tuple(
        JudgedModel(
            model=documents.models[row],
            author=documents.authors[row],
            datasets=tuple(sorted(documents.datasets[row])),
            weight=float(importance[place]),
            answer=names[judged.answer[place]],
            probability=float(judged.confidence[place]),
            right=float(judged.right[place]),
            log_loss=float(judged.log_loss[place]),
            none=float(judged.none[place]),
        )
        for row, place in sorted((int(row), place) for place, row in enumerate(trial.rows))
    )
