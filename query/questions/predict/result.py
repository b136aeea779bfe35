"""The results of predictions: for one model, and their scores for all labelled models of a base."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from query.contract.columns import (
    MADE_FROM,
    OF_A_BATCH,
    VOTING_MODELS,
    Author,
    BaseId,
    Dataset,
    Datasets,
    ModelId,
    Notes,
    Vectors,
)
from query.contract.figures import Panels, add_legend, add_title, label
from query.contract.results import (
    After,
    Data,
    Detail,
    Doc,
    Drawn,
    Format,
    Hidden,
    Listed,
    Shown,
    ThemeName,
    plain,
)
from query.questions.predict.classifier import NONE_OF_THESE
from query.questions.predict.measurements import EVIDENCE, in_words
from query.questions.predict.scoring import BINS, DECIMALS, MEASURES, Bin, Interval, PredictionScore, with_prior
from query.shared.wording import counted, percent, short, span

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Meanings that several fields share.
_AUTHORS = Doc("Number of authors whose models voted for it.")
_VOTING_NEIGHBOURS = Doc("Number of nearest models used for the vote.")
_CALIBRATED = Doc("Whether the probabilities were fitted to this atlas. They are not if too few models name a dataset.")

# Answers with at least this probability or vote are printed, and never fewer than this many.
_MIN_SHOWN = 0.01
_FEWEST = 3
_FEW_CASES = 30  # sweeps of an evaluation; with fewer, the interval of a share is at least 0.2 wide
_PROBABILITIES = ("probability", "vectors", "head", "vocabulary")
_SMALLEST, _LARGEST = 6.0, 55.0  # area of a point of the picture, in square points
_PANEL = 2.4, 3.55  # inches
_TITLES = {"vectors": "vectors alone", "head": "head alone", "together": "together"}


@dataclass(frozen=True)
class Duplicate:
    """A model of the atlas with the same weights, and the datasets it names."""

    model: Annotated[str, Doc("A model with the same weights.")]
    datasets: Datasets


@dataclass(frozen=True)
class NeighbourVote:
    """The vote of a sweep, cast by its nearest model."""

    model: ModelId
    author: Author
    datasets: Datasets
    similarity: Annotated[float, Doc("Similarity of the two models.")]
    vote: Annotated[float, Doc("Its vote; that of the nearest is 1.")]


@dataclass(frozen=True)
class Answer:
    """One dataset, or "none of these".

    Attributes:
        votes: the votes of the k nearest sweeps; the nearest sweep's vote is 1.
        authors: number of authors of these sweeps.
        vectors, head, vocabulary: the probability by this evidence alone; None if the model lacks it.
        declared: whether the model's card names the dataset, which is not used for the prediction.
        models: the models that voted for it, the largest vote first.
    """

    dataset: Dataset
    probability: Annotated[
        float,
        Doc("Probability that the model was tuned on this dataset, from 0 to 1; those of all answers sum to 1."),
        Format(short, in_details=False),
    ]
    votes: Annotated[
        float,
        Doc(
            "Votes for this dataset by the nearest models. The nearest one's vote is 1; the less similar the "
            "others are, the less they count."
        ),
        Format(short, in_details=False),
    ]
    authors: Annotated[int, _AUTHORS]
    vectors: Annotated[
        float | None, Doc("The probability by the weight changes alone, from 0 to 1."), Format(short, in_details=False)
    ]
    head: Annotated[
        float | None,
        Doc("The probability by the classifier in config.json (its label names) alone, from 0 to 1."),
        Format(short, in_details=False),
    ]
    declared: Annotated[
        bool, Doc("Whether the model names this dataset itself, which does not affect the probability."), Detail()
    ]
    models: Annotated[tuple[str, ...], VOTING_MODELS, Detail()]
    vocabulary: Annotated[
        float | None,
        Doc(
            "The probability by the tokens of the training text alone (the representation vocabulary), from 0 to "
            "1; adapters have none."
        ),
        Format(short, in_details=False),
    ] = None


def ranked(answers: Iterable[Answer]) -> tuple[Answer, ...]:
    """The answers, the most probable first."""
    return tuple(sorted(answers, key=lambda answer: (-answer.probability, -answer.votes, answer.dataset)))


@dataclass(frozen=True)
class BestAnswer:
    """The most probable answer for one of many models."""

    model: ModelId
    dataset: Annotated[str, Doc("The most probable dataset, or “none of these”.")]
    probability: Annotated[float, Doc("Its probability, from 0 to 1.")]
    agreement: Annotated[float, Doc("Share of all votes that name the dataset, from 0 to 1.")]
    authors: Annotated[int, _AUTHORS]


@dataclass(frozen=True, repr=False)
class Prediction(Listed[Answer]):
    """The answers for one model, the most probable first; their probabilities sum to 1.

    The probability of a dataset is its expected share among the datasets of the model. If the model has one dataset,
    that is the probability of this dataset. Only models by other authors vote and are used for fitting.

    Attributes:
        evidence: vectors or head, if the model has only that, else together.
        calibrated: whether the probabilities were fitted to this atlas.
        declared: the datasets that the model names itself.
        repeats: models with the same weights, and the datasets they name.
        voters: the votes, the largest first.
        unknown_share: the share of models assumed to be tuned on data that no other author names, the prior of "none of
            these"; by default that among the labelled models of the atlas.
        fitted: the answers and the share before ``with_unknown_share``; None if it was not used.
    """

    ROWS = "answers"
    FRAME = "answers"  # including answers that are too improbable for the table
    EACH_ROW = ("calibrated",)
    TABLE_COLUMNS: ClassVar[Mapping[str, str]] = {
        "agreement": "Share of all votes that name the dataset, from 0 to 1."
    } | OF_A_BATCH
    SHOW_HEADLINE = True
    OPTIONAL_COLUMNS = ("calibrated", "declared", "models", "authors", "votes", "vocabulary", "head", "vectors")

    model: ModelId
    base: BaseId
    representation: Vectors
    k: Annotated[int, _VOTING_NEIGHBOURS]
    evidence: Annotated[str, Doc("The evidence for the prediction: together, vectors, head or vocabulary.")]
    calibrated: Annotated[bool, _CALIBRATED, Detail()]
    declared: Annotated[tuple[str, ...], Doc("Datasets that the model names itself.")]
    repeats: Annotated[tuple[Duplicate, ...], Doc("Models with the same weights, and the datasets they name.")]
    answers: Annotated[tuple[Answer, ...], Doc("Datasets, the most probable first, and “none of these”.")]
    voters: Annotated[tuple[NeighbourVote, ...], Doc("The votes, the largest first.")]
    notes: Notes = ()
    unknown_share: Annotated[float, Doc("Share of models assumed to be tuned on data that no other author names.")] = (
        0.5
    )
    fitted: Annotated[tuple[tuple[Answer, ...], float] | None, Hidden()] = field(default=None, repr=False)

    def _entries(self) -> list[Answer]:
        return self.shown_answers()

    def shown_answers(self) -> list[Answer]:
        """The answers with a probability or vote of 0.01 or more, at least three, and "none of these"."""
        return [
            answer
            for rank, answer in enumerate(self.answers)
            if max(answer.votes, answer.probability) >= _MIN_SHOWN or rank < _FEWEST or answer.dataset == NONE_OF_THESE
        ]

    def with_unknown_share(self, share: float) -> Prediction:
        """The same if ``share`` of the models are tuned on data that no other author names.

        It is computed from the fitted probabilities, because probabilities at a share of 0 or 1 have lost the evidence.
        """
        fitted = self.fitted or (self.answers, self.unknown_share)
        ordered = sorted(fitted[0], key=lambda answer: answer.dataset == NONE_OF_THESE)
        columns = [name for name in _PROBABILITIES if getattr(ordered[0], name) is not None]
        table = np.array([[getattr(answer, name) for answer in ordered] for name in columns])
        new_probabilities = with_prior(table, fitted[1], share).T.tolist()
        answers = [
            replace(answer, **dict(zip(columns, row, strict=True)))
            for answer, row in zip(ordered, new_probabilities, strict=True)
        ]
        return replace(self, answers=ranked(answers), unknown_share=share, fitted=fitted)

    @property
    def best(self) -> BestAnswer:
        """The most probable answer as a row, for tables with several models."""
        best = self.answers[0]
        return BestAnswer(self.model, best.dataset, best.probability, self.agreement(best), best.authors)

    def agreement(self, answer: Answer) -> float:
        """The share of all votes that name a dataset, from 0 to 1; 0 without votes."""
        total = sum(voter.vote for voter in self.voters)
        agreeing = sum(voter.vote for voter in self.voters if answer.dataset in voter.datasets)
        return agreeing / total if total else 0.0

    @property
    def headline(self) -> str:
        """The most probable answer, the evidence, and the number of votes."""
        best = self.answers[0]
        authors = len({voter.author for voter in self.voters})
        by = in_words([kind.name for kind in EVIDENCE if getattr(best, kind.name, None) is not None])
        dataset = "none of the datasets that others name" if best.dataset == NONE_OF_THESE else best.dataset
        return (
            f"{self.model} was most probably tuned on {dataset} ({percent(best.probability)}), judged by {by}, with "
            f"{counted(len(self.voters), 'vote')} by {counted(authors, 'author')}."
        )


@dataclass(frozen=True)
class NoneScore:
    """The scores of "none of these".

    A model's dataset is hidden if models that share a dataset with it may not vote.

    Attributes:
        auroc: None if no model has a dataset that another author names.
        accuracy_0 … accuracy_75: with this share, in percent, as the prior of "none of these".
    """

    evidence: Annotated[str, MADE_FROM]
    share: Annotated[float, Doc("How often “none of these” is true, from 0 to 1."), DECIMALS]
    probability: Annotated[float, Doc("Mean probability of “none of these”, from 0 to 1."), DECIMALS]
    hidden_probability: Annotated[
        float,
        Doc("Mean probability of “none of these” where all models on the right dataset are hidden, from 0 to 1."),
        DECIMALS,
    ]
    hidden_accuracy: Annotated[float, Doc("How often “none of these” is then the best answer, from 0 to 1."), DECIMALS]
    auroc: Annotated[
        float | None,
        Doc(
            "How often “none of these” is more probable for a model whose dataset is hidden than for one whose "
            "dataset is not; 0.5: no better than chance."
        ),
        DECIMALS,
    ] = None
    accuracy_0: Annotated[
        float | None,
        Doc("Accuracy if no model has its dataset hidden, and “none of these” is expected for none."),
        DECIMALS,
        Detail(),
    ] = None
    accuracy_25: Annotated[
        float | None,
        Doc("Accuracy if 25 % of the models have their dataset hidden, and “none of these” is expected for 25 %."),
        DECIMALS,
        Detail(),
    ] = None
    accuracy_50: Annotated[
        float | None,
        Doc("Accuracy if 50 % of the models have their dataset hidden, and “none of these” is expected for 50 %."),
        DECIMALS,
        Detail(),
    ] = None
    accuracy_75: Annotated[
        float | None,
        Doc("Accuracy if 75 % of the models have their dataset hidden, and “none of these” is expected for 75 %."),
        DECIMALS,
        Detail(),
    ] = None


@dataclass(frozen=True)
class PredictedModel:
    """A labelled model, predicted by all kinds of evidence together; see the descriptions of its fields."""

    model: ModelId
    author: Author
    datasets: Datasets
    weight: Annotated[
        float,
        Doc("How much the model counts in the means: runs by one author on the same data count as one model together."),
    ]
    answer: Annotated[str, Doc("The most probable dataset.")]
    probability: Annotated[float, Doc("Probability of the answer, from 0 to 1.")]
    right: Annotated[
        float, Doc("The answer's share among the datasets of the model; 1 if it is its only dataset, 0 if it is wrong.")
    ]
    log_loss: Annotated[float, Doc("-ln(probability of the right answer), in nats; 0 is perfect.")]
    none: Annotated[float, Doc("Probability of “none of these”, from 0 to 1.")]


@dataclass(frozen=True, repr=False)
class Evaluation(Drawn):
    """Out-of-author predictions of all labelled models of a base, and their scores.

    Attributes:
        sweeps: sets of models by one author on the same datasets; each counts as one model in every mean.
        with_head: number of models whose config.json describes a head; the others are predicted without a head.
        with_vocabulary: number of models with a vocabulary vector. If there are any, "together" uses these vectors, and
            "without_vocabulary" does not.
    """

    ROWS = "outcomes"
    IS_SHEET = True
    SHOW_HEADLINE = True
    OPTIONAL_COLUMNS = ("calibration_error", "log_loss", "hidden_probability", "probability", "brier", "top3")

    base: BaseId
    representation: Vectors
    k: Annotated[int, _VOTING_NEIGHBOURS]
    models: Annotated[int, Doc("Number of models that were predicted.")]
    sweeps: Annotated[int, Doc("Sets of runs by one author on the same data; each counts as one model in the means.")]
    authors: Annotated[int, Doc("Number of their authors.")]
    datasets: Annotated[int, Doc("Number of datasets that they name.")]
    with_head: Annotated[int, Doc("Models whose config.json describes a classifier.")]
    with_vocabulary: Annotated[
        int, Doc("Models with a vocabulary vector, which describes the tokens of their training text.")
    ]
    calibrated: Annotated[bool, _CALIBRATED]
    scores: Annotated[tuple[PredictionScore, ...], Doc("The scores by evidence."), Data()]
    intervals: Annotated[tuple[Interval, ...], Doc("95 % intervals of the scores over authors, by evidence."), Data()]
    none_of_these: Annotated[tuple[NoneScore, ...], Doc("The scores of “none of these”, by evidence.")]
    reliability: Annotated[tuple[Bin, ...], Doc("How often answers are right, by their probability."), Detail()]
    notes: Notes = ()
    outcomes: Annotated[tuple[PredictedModel, ...], Hidden()] = field(default=(), repr=False)

    @property
    def headline(self) -> str:
        """The accuracy of the best answer, and that of the commonest dataset as an answer."""
        majority = self._score("majority")
        baseline = f", where naming the commonest dataset would be in {percent(majority.accuracy)}" if majority else ""
        case = "A sweep counts as one case."
        if self.is_small:
            case = f"These are too few for a percentage: {counted(self.sweeps, 'sweep')} by "
            case += f"{counted(self.authors, 'author')}."
        often = f"for {self.share_right}" if self.is_small else f"in {self.share_right} of cases"
        return (
            f"Each of {counted(self.models, 'model')} predicted from models of other authors: the best answer is right "
            f"{often} ({self._interval_in_words}){baseline}. {case}"
        )

    @property
    def is_small(self) -> bool:
        """Whether there are too few cases for a percentage."""
        return self.sweeps < _FEW_CASES or self._between is None

    @property
    def share_right(self) -> str:
        """How often the best answer is right: in percent, or for a small evaluation as "4 of 5"."""
        if not self.is_small:
            together = self._score("together")
            return percent(together.accuracy if together else None)
        return f"{sum(outcome.right > 0 for outcome in self.outcomes):,} of {self.models:,}"

    @property
    def key_number(self) -> tuple[str, str]:
        """``share_right`` with its meaning."""
        majority = self._score("majority")
        models = counted(self.models, "model") + f" by {counted(self.authors, 'author')}"
        baseline = f"; {percent(majority.accuracy)} by always naming the most common one" if majority else ""
        few = "few models: " if self.is_small else ""
        return (
            self.share_right,
            f"hidden datasets predicted correctly ({few}{models}, {self._interval_in_words}){baseline}",
        )

    def _score(self, evidence: str) -> PredictionScore | None:
        return next((score for score in self.scores if score.evidence == evidence), None)

    @property
    def _between(self) -> tuple[float, float] | None:
        return next((interval.accuracy for interval in self.intervals if interval.evidence == "together"), None)

    @property
    def _interval_in_words(self) -> str:
        if self._between is None:
            return f"too few authors for an interval: {self.authors}"
        return f"95 % interval {percent(self._between[0])} to {percent(self._between[1])}"

    @property
    def main_scores(self) -> Annotated[list[dict[str, Any]], Shown("scores", in_details=False), After("scores")]:
        """The scores, the first two with their 95 % intervals."""
        return self._with_intervals(("accuracy", "top3"))

    @property
    def all_scores(self) -> Annotated[list[dict[str, Any]], Shown("scores"), Detail(), After("scores")]:
        """The scores with their 95 % intervals."""
        return self._with_intervals(MEASURES)

    def _with_intervals(self, names: Sequence[str]) -> list[dict[str, Any]]:
        intervals = {interval.evidence: interval for interval in self.intervals}
        rows = [plain(score, table=True) for score in self.scores]
        for row in rows:
            for name in names:
                between = getattr(intervals.get(row["evidence"]), name, None)
                row[name] = str(row[name]) + (f" ({span(*between)})" if between else "")
        return rows

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """The reliability diagram: how often answers are right, by probability, for vectors, head and both together.

        A point is a bin of models, by the probability of their best answer in steps of a tenth. The points of a
        calibrated prediction lie on the diagonal, within their 95 % intervals over authors, which need at least five
        authors. Bars show the share of the models; the area of a point grows with it.
        """
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        panels = Panels([len(_TITLES)], _PANEL, theme, ax)
        figure, colours = panels.figure, panels.colours
        ink = colours.ink
        diagonal: dict[str, Any] = {"color": colours.rest, "linestyle": (0, (4, 3))}
        by_evidence = {score.evidence: score for score in self.scores}
        for panel, (evidence, title), colour in zip(panels, _TITLES.items(), colours.palette, strict=False):
            for bin_ in self.reliability:
                if bin_.evidence != evidence:
                    continue
                middle = (min(int(bin_.probability * BINS), BINS - 1) + 0.5) / BINS
                panel.bar(middle, bin_.share, 0.86 / BINS, color=colours.faint, zorder=1)
                if bin_.low is not None and bin_.high is not None:
                    panel.plot(
                        [bin_.probability] * 2, [bin_.low, bin_.high], color=colour, linewidth=1.2, alpha=0.6, zorder=3
                    )
                size = _SMALLEST + (_LARGEST - _SMALLEST) * bin_.share  # its area grows with the number of models
                panel.scatter(
                    [bin_.probability], [bin_.right], s=size, color=colour, zorder=4, clip_on=False, linewidths=0
                )
            panel.plot([0, 1], [0, 1], linewidth=1, zorder=2, **diagonal)
            panel.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
            for axis in (panel.xaxis, panel.yaxis):
                axis.set_ticks([0, 0.25, 0.5, 0.75, 1], ["0", ".25", ".5", ".75", "1"])
            panel.tick_params(labelleft=panel is panels.rows[0][0])
            panels.title(panel, title, 10, loc="center", pad=17)
            score = by_evidence[evidence]
            numbers = {"accuracy": score.accuracy, "Brier": score.brier, "ECE": score.calibration_error}
            text = "  ".join(f"{name} {value:.3f}".replace(" 0.", " .") for name, value in numbers.items())
            panel.text(0.5, 1.04, text, ha="center", va="bottom", fontsize=7.5, color=ink, transform=panel.transAxes)
        panels.rows[0][0].set_ylabel("share that is right", fontsize=9)
        panels.rows[0][1].set_xlabel("probability of the best answer", fontsize=9)
        what = "Are predictions right as often as their probability says?"
        who = (
            f"{self.models:,} labelled models of {label(self.base)}, each predicted from models by other authors"
            if self.base
            else ""
        )
        add_title(figure, f"{what}\n{who}".strip(), colours)
        handles: list[Any] = [
            Line2D([], [], color=ink, linestyle="", marker="o", markersize=4, label="models of similar probability"),
            Line2D([], [], color=ink, linewidth=1.2, alpha=0.6, label="95 % interval over authors"),
            Line2D([], [], label="perfectly calibrated", **diagonal),
            Patch(color=colours.faint, label="bar: share of all models"),
        ]
        add_legend(figure, handles, colours, 4, 6.5)
        return figure
