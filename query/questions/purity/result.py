"""The result of `query purity`, as objects, rows, a table and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from query.contract.columns import CHANCE, NO_INTERVAL, P_VALUE, BaseId, Dataset, ModelId, Models, Notes, Vectors
from query.contract.figures import THEMES, add_legend, drawn_alone, label, new_figure
from query.contract.results import After, Detail, Doc, Drawn, Hidden, If, OnRequest, Shown, ThemeName, plain
from query.shared.statistics.authors import TOO_FEW_AUTHORS, UNCONVINCING, too_few
from query.shared.wording import counted, decimal, percent, span

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What several fields mean.
_PURITY = Doc("Share of a model's nearest neighbours that share a dataset with it, averaged over models, from 0 to 1.")
_NEIGHBOURS = Doc("Number of nearest neighbours that were considered.")
_PERMUTATIONS = Doc("Shufflings of the labels that were compared: all that there are (is_exact), or random ones.")
_REACHED = Doc(
    "How many shuffled label sets score at least as high. If none of the random ones does, p_value is only a bound."
)
_IS_EXACT = Doc("Whether every possible shuffling of the labels was compared, so that p_value is exact.")
_EFFECT = Doc("How many standard deviations the number lies above its mean over randomly shuffled labels.")

_SHOWN = 15  # datasets, models or pairs on a terminal
_DRAWN = 40  # datasets in a picture
_WIDTH, _ROW, _FRAME = 7.2, 0.42, 1.05  # inches
_OFFSET = 0.16  # of the two forms from the middle of a row, as a share of its height
_CONFUSED = "taken for each other more often than by chance, in both directions"
_WIDE = ("datasets", "cross_author_models", "cross_author_neighbours", "cross_author_chance")


# What several fields mean.
_BY_DATASET = Doc("The same for each dataset.")
_CONFUSIONS = Doc("Datasets that are mistaken for one another.")
_WITHIN = Doc("Chance if only models with the same head (author, …) exchange labels.")


@dataclass(frozen=True)
class DatasetPurity:
    """Purity over the models of one dataset, where only that dataset counts as a match."""

    dataset: Dataset
    models: Annotated[int, Doc("Number of models that were scored.")]  # scored
    purity: Annotated[float, _PURITY]
    chance: Annotated[float, CHANCE]


@dataclass(frozen=True)
class Confusion:
    """Two datasets, and how often models of one have neighbours from the other instead of their own.

    Attributes:
        neighbours: the number of neighbours of models of ``dataset`` that share no dataset with the model and name
            ``taken_for``, among those that purity counts.
        share: their share among all neighbours that share no dataset.
        back_neighbours, back_share, back_chance: the same in the other direction, from ``taken_for`` to ``dataset``.
        is_notable: both shares are above chance, as for two datasets with the same text.
    """

    dataset: Dataset
    taken_for: Annotated[str, Doc("The dataset to which neighbours on other data belong.")]
    neighbours: Annotated[int, _NEIGHBOURS]
    share: Annotated[float, Doc("Share of the neighbours on other data that belong to that dataset, from 0 to 1.")]
    chance: Annotated[float, CHANCE]
    back_neighbours: Annotated[int, Doc("The number of neighbours in the other direction, from taken_for to dataset.")]
    back_share: Annotated[float, Doc("The share in the other direction, from 0 to 1 (back).")]
    back_chance: Annotated[float, Doc("The chance of that share (back chance).")]
    is_notable: Annotated[bool, Doc("Whether both shares are above chance, as for two datasets with the same text.")]


@dataclass(frozen=True)
class ModelPurity:
    """One scored model; ``neighbours`` is the number that counted (m_f, or k)."""

    model: ModelId
    datasets: Annotated[
        tuple[str, ...], Doc("Datasets that the model names; in a summary, the number of datasets that were scored.")
    ]
    neighbours: Annotated[int, _NEIGHBOURS]
    purity: Annotated[float, _PURITY]
    chance: Annotated[float, CHANCE]


@dataclass(frozen=True)
class WithinScore:
    """The chance level if sweeps exchange labels only with sweeps of equal ``within`` (head, author …).

    Whole sweeps exchange labels, so among all models this chance includes the matches within sweeps. If habits explain
    purity, as where each dataset has its own head, this chance is as high as purity.

    Attributes:
        strata: the number of different values.
        movable: the number of models whose label can change.
        chance: None if no label can change.

    The other fields are as in PurityScore.
    """

    within: Annotated[str, Doc("Labels were exchanged among models that are equal in this: head, language, author …")]
    strata: Annotated[int, Doc("Number of different values of it.")]
    movable: Annotated[int, Doc("Number of models whose label can become another.")]
    chance: Annotated[float | None, CHANCE] = None
    p_value: Annotated[float | None, P_VALUE] = None
    permutations: Annotated[int, _PERMUTATIONS] = 0
    reached: Annotated[int, _REACHED] = 0
    is_exact: Annotated[bool, _IS_EXACT] = False
    effect: Annotated[float | None, _EFFECT] = None


@dataclass(frozen=True)
class PurityScore:
    """Purity in one of its two forms. Undefined numbers are None, with the reason in ``note``.

    Attributes:
        models: the number of scored models, which have at least one match among their candidates.
        candidates: the number of possible neighbours.
        datasets: the number of datasets (rows of ``by_dataset``) with at least one scored model.
        ci_reason: ``too_few_authors`` if there is no interval for that reason, else None.
        p_value: the share of permutations of the sweeps' labels after which models match other authors' at least as
            often. If all arrangements were tried (``is_exact``), it is their share; else (1 + ``reached``)/(1 +
            ``permutations``), which is only a bound if ``reached`` is 0 (``query.questions.purity.study``).
        effect: how many standard deviations of the permutations the observed value is above their mean.
        authors: the number of authors of scored models.
        confusions: only on request.
    """

    models: Models
    candidates: Annotated[int, Doc("Number of possible neighbours.")]
    datasets: Annotated[int, Doc("Number of datasets that were scored.")]
    purity: Annotated[float | None, _PURITY] = None
    purity_by_dataset_mean: Annotated[
        float | None, Doc("Mean of the datasets' purities, from 0 to 1; each dataset counts once.")
    ] = None
    chance: Annotated[float | None, CHANCE] = None
    ci_low: Annotated[float | None, Doc("Lower end of the 95 % confidence interval over authors.")] = None
    ci_high: Annotated[float | None, Doc("Upper end of the 95 % confidence interval over authors.")] = None
    ci_reason: Annotated[str | None, NO_INTERVAL] = None
    p_value: Annotated[float | None, P_VALUE] = None
    permutations: Annotated[int, _PERMUTATIONS] = 0
    reached: Annotated[int, _REACHED] = 0
    is_exact: Annotated[bool, _IS_EXACT] = False
    effect: Annotated[float | None, _EFFECT] = None
    note: Annotated[str, Doc("Why numbers are missing; else empty.")] = ""
    authors: Annotated[int, Doc("Number of authors of the scored models.")] = 0
    by_dataset: Annotated[tuple[DatasetPurity, ...], _BY_DATASET] = ()
    within: Annotated[tuple[WithinScore, ...], _WITHIN, If()] = ()
    confusions: Annotated[tuple[Confusion, ...], _CONFUSIONS, OnRequest()] = field(default=(), repr=False)
    by_model: Annotated[tuple[ModelPurity, ...], Hidden()] = field(default=(), repr=False)

    @property
    def interval_note(self) -> str:
        """Why there is no interval, as a sentence; empty if there is one, or no purity either."""
        return too_few(self.authors) if self.ci_reason == TOO_FEW_AUTHORS else ""

    @property
    def is_more_than_chance(self) -> bool:
        """Whether purity exceeds chance significantly."""
        if self.purity is None or self.chance is None or self.p_value is None:
            return False
        return self.purity > self.chance and self.p_value <= UNCONVINCING


@dataclass(frozen=True, repr=False)
class PurityResult(Drawn, PurityScore):
    """Purity of one base in one representation; ``cross_author`` is the same among other authors' models.

    ``by``: ``dataset``, or ``task``, which then stands for the dataset in all names of keys, rows and sentences.
    """

    ROWS_BY: ClassVar[Mapping[str, str]] = {
        "dataset": "dataset_rows", "model": "model_rows", "confusion": "confusion_rows"
    }  # fmt: skip
    SHEET = (
        "base", "representation", "possible_neighbours", "forms", "datasets_in_short", "all_datasets",
        "models_in_short", "all_models", "notable_confusions", "all_confusions",
    )  # fmt: skip
    TABLE_COLUMNS: ClassVar[Mapping[str, str]] = {
        "95 %": "95 % confidence interval over authors: how far the number could move if other authors had uploaded.",
        "p": (
            "How often randomly shuffled labels score at least as high; all runs of one author on one dataset "
            "keep one label. Below 0.05 is usually taken as more than chance."
        ),
        "cross_author_models": "Models that could be scored among models of other authors.",
        "cross_author_purity": "Purity among models of other authors alone, from 0 to 1.",
        "cross_author_chance": "Chance among models of other authors alone, from 0 to 1.",
        "cross_author_neighbours": "Number of neighbours that were considered among models of other authors.",
        "cross_author_ci_low": "Lower end of the 95 % interval of purity among models of other authors, from 0 to 1.",
        "cross_author_ci_high": "Upper end of the 95 % interval of purity among models of other authors, from 0 to 1.",
        "cross_author_p_value": (
            "How often randomly shuffled authors score at least as high among models of other authors."
        ),
        "among": "Which models count as neighbours: all, or only those by other authors.",
        "part": "What the row is about: a layer, a family, a dataset or a model; all: the answer as a whole.",
        "task": "The task of the model: the kind of its head and its label names, or their number.",
        "tasks": "The tasks of the models; in a summary of purity, the number of tasks that were scored.",
        "by_task": "The same for each task, where only that task counts as a match.",
        "purity_by_task_mean": "Mean of the tasks' purities, from 0 to 1; each task counts once.",
    }
    SHOW_HEADLINE = True
    OPTIONAL_COLUMNS = ("cross_author_models", "datasets", "models", "neighbours", "cross_author_chance", "chance", "p")

    base: Annotated[BaseId, After("")] = ""
    representation: Annotated[Vectors, After("base")] = ""
    k: Annotated[
        int | None,
        Doc("Number of nearest neighbours that were considered; empty: as many as share a dataset."),
        After("representation"),
    ] = None
    by: Annotated[str, Doc("What is compared: dataset or task."), If("is_by_task"), After("")] = "dataset"
    cross_author: Annotated[PurityScore, Doc("The same numbers counted among models of other authors alone.")] = (
        PurityScore(0, 0, 0)
    )
    by_dataset: Annotated[tuple[DatasetPurity, ...], _BY_DATASET, After("cross_author")] = ()
    within: Annotated[tuple[WithinScore, ...], _WITHIN, If(), After("notes")] = ()
    confusions: Annotated[tuple[Confusion, ...], _CONFUSIONS, OnRequest(), After("within")] = field(
        default=(), repr=False
    )
    by_model: Annotated[tuple[ModelPurity, ...], Doc("The same for each model."), OnRequest(), After("confusions")] = (
        field(default=(), repr=False)
    )
    on_sampled: Annotated[
        tuple[str, ...], Hidden()
    ] = ()  # a note on models that were left out, as a sample gives no such vector
    on_habits: Annotated[tuple[str, ...], Hidden()] = ()  # notes on habits that are confounded with the labels

    @property
    def is_by_task(self) -> bool:
        """Whether tasks are compared, not datasets."""
        return self.by == "task"

    @property
    def headline(self) -> str:
        """The interpretation in a few sentences."""
        return " ".join(verdict(self))

    @property
    def notes(self) -> Annotated[Notes, After("by_dataset")]:  # type: ignore[override]
        """Why an interval is missing, which models are missing, and which habits are confounded with the labels."""
        interval_notes = filter(None, (self.interval_note, self.cross_author.interval_note))
        return (*dict.fromkeys(interval_notes), *self.on_habits, *self.on_sampled)

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """Dots for all models and for each dataset, with chance. Raises AtlasError if matplotlib is missing."""
        cross_author_rows = {row.dataset: row for row in self.cross_author.by_dataset}
        datasets = sorted(self.by_dataset, key=lambda row: (-row.purity, row.dataset))[:_DRAWN]
        rows = [(row.dataset, row, cross_author_rows.get(row.dataset)) for row in datasets]
        return purity_figure([("all models", self, self.cross_author), *rows], theme, ax, self.by)

    def named(self, key: str) -> str:
        """``by`` stands for the dataset."""
        return key.replace("dataset", self.by)

    @property
    def dataset_rows(self) -> list[dict[str, Any]]:
        """A row for each scored dataset; ``cross_author_…``: among other authors' models."""
        return self._rows_with_others("dataset", ("models", "purity", "chance"))

    @property
    def model_rows(self) -> list[dict[str, Any]]:
        """The same for each scored model."""
        return self._rows_with_others("model", ("neighbours", "purity", "chance"))

    def _rows_with_others(self, by: str, repeated: Sequence[str]) -> list[dict[str, Any]]:
        cross_author_rows = {getattr(row, by): row for row in getattr(self.cross_author, f"by_{by}")}
        return [
            plain(row)
            | {f"cross_author_{key}": getattr(cross_author_rows.get(getattr(row, by)), key, None) for key in repeated}
            for row in getattr(self, f"by_{by}")
        ]

    @property
    def confusion_rows(self) -> list[dict[str, Any]]:
        """A row for each pair of confused datasets, among all models and among other authors'."""
        forms = {"all": self.confusions, "by other authors": self.cross_author.confusions}
        return [{"among": among} | plain(pair) for among, pairs in forms.items() for pair in pairs]

    def lines(self, by: str = "dataset") -> list[dict[str, Any]]:
        """The rows of CSV and JSON lines: one for all models (``part`` is ``all``), then :meth:`to_rows`."""
        rows = self.to_rows(by)
        if by == "confusion":
            return rows
        numbers = ("ci_low", "ci_high", "p_value")
        names = ("models", "purity", "chance", *numbers)
        totals = {"part": "all", by: "", **{name: getattr(self, name) for name in names}}
        totals |= {f"cross_author_{name}": getattr(self.cross_author, name) for name in names}
        return [totals, *({"part": by, **row} for row in rows)]

    # The table: two rows of numbers, then the first datasets, models or pairs; with details all, with all columns.

    @property
    def has_no_score(self) -> bool:
        """Whether purity is not defined."""
        return self.purity is None

    @property
    def possible_neighbours(self) -> Annotated[int, Shown("candidates"), If("has_no_score")]:
        """The number of candidates, for an answer without a score."""
        return self.candidates

    @property
    def forms(self) -> Annotated[list[dict[str, Any]], Shown("neighbours"), If("purity")]:
        """Purity among all models and among other authors', then both chance levels within each stratum."""
        forms = (("all", self), ("by other authors", self.cross_author))
        neighbours = [_form(among, score, score, score.models) for among, score in forms]
        return neighbours + [
            _form(f"{among}, labels exchanged within {level.within}", score, level, level.movable)
            for among, score in forms
            for level in score.within
        ]

    def _in_short(self, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {
                name: decimal(cell) if isinstance(cell, float) else cell
                for name, cell in row.items()
                if self.named(name) not in _WIDE
            }
            for row in rows
        ]

    @property
    def datasets_in_short(
        self,
    ) -> Annotated[list[dict[str, Any]], Shown("by dataset", _SHOWN, in_details=False), OnRequest(("dataset",)), If()]:
        """The datasets with fewer columns."""
        return self._in_short(self.dataset_rows)

    @property
    def all_datasets(
        self,
    ) -> Annotated[list[dict[str, Any]], Shown("by dataset"), OnRequest(("dataset",)), Detail(), If()]:
        """All datasets."""
        return self.dataset_rows

    @property
    def models_in_short(
        self,
    ) -> Annotated[list[dict[str, Any]], Shown("by model", _SHOWN, in_details=False), OnRequest(("model",)), If()]:
        """The models with fewer columns."""
        return self._in_short(self.model_rows)

    @property
    def all_models(
        self,
    ) -> Annotated[list[dict[str, Any]], Shown("by model"), OnRequest(("model",)), Detail(), If()]:
        """All models."""
        return self.model_rows

    @property
    def notable_confusions(
        self,
    ) -> Annotated[list[dict[str, Any]], Shown(_CONFUSED, _SHOWN, in_details=False), OnRequest(("confusion",)), If()]:
        """The notable pairs, with the shares in both directions."""
        among = "by other authors" if self.cross_author.confusions else "all"
        return self._in_short(
            {
                "dataset": row["dataset"],
                "taken for": row["taken_for"],
                "share": row["share"],
                "chance": row["chance"],
                "back": row["back_share"],
                "back chance": row["back_chance"],
                "neighbours": row["neighbours"] + row["back_neighbours"],
            }
            for row in self.confusion_rows
            if row["among"] == among and row["is_notable"]
        )

    @property
    def all_confusions(
        self,
    ) -> Annotated[list[dict[str, Any]], Shown(_CONFUSED), OnRequest(("confusion",)), Detail(), If()]:
        """All pairs."""
        return self.confusion_rows


def _form(among: str, score: PurityScore, permuted: PurityScore | WithinScore, models: int) -> dict[str, Any]:
    has_interval = permuted is score and score.ci_low is not None
    return {
        "among": among,
        "purity": decimal(score.purity),
        "95 %": span(score.ci_low, score.ci_high) if has_interval else "",
        "chance": decimal(permuted.chance),
        "p": _p_in_words(permuted),
        "effect": "" if permuted.effect is None else f"{permuted.effect:.1f}",
        "models": models,
        "datasets": score.datasets,
    }


@drawn_alone
def purity_figure(
    rows: Sequence[tuple[str, Any, Any]], theme: str = "light", ax: Axes | None = None, by: str = "dataset"
) -> Figure:
    """Dots with intervals and chance: a row for each name, filled for all neighbours, hollow for other authors'.

    Args:
        rows: a name, its purity, and its purity among other authors' models (a PurityScore or a DatasetPurity).
        theme: light or dark.
        ax: an axes to replace, as in ``Drawn.figure``.
        by: dataset or task, for the label of the axis.
    """
    figure, axes = new_figure(_WIDTH, _FRAME + _ROW * len(rows), theme, ax)
    from matplotlib.lines import Line2D

    colours = THEMES[theme]
    colour = colours.palette[0]
    dot: dict[str, Any] = {"color": colour, "marker": "o", "markersize": 5.5}
    tick: dict[str, Any] = {"color": colours.rest, "marker": "|", "markersize": 9, "markeredgewidth": 1.6}
    for row, (_, *scores) in enumerate(rows):
        for score, offset, fill in zip(scores, (-_OFFSET, _OFFSET), (colour, colours.background), strict=True):
            if score is None or score.purity is None:
                continue
            y = row + offset
            low, high = getattr(score, "ci_low", None), getattr(score, "ci_high", None)
            if low is not None and high is not None:
                axes.plot([low, high], [y, y], color=colour, linewidth=1.4, zorder=2)
            axes.plot([score.chance], [y], zorder=3, **tick)
            axes.plot([score.purity], [y], markerfacecolor=fill, markeredgewidth=1.4, zorder=4, clip_on=False, **dot)
    axes.set_yticks(range(len(rows)), [label(name) for name, _, _ in rows], fontsize=9)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    same = "tuned on the same data" if by == "dataset" else f"of the same {by}"
    axes.set_xlabel(f"purity: share of nearest neighbours {same}", fontsize=9)
    axes.grid(axis="x", color=colours.faint, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    handles = [
        Line2D([], [], linestyle="", label="all neighbours", **dot),
        Line2D([], [], linestyle="", markerfacecolor=colours.background, label="other authors' models only", **dot),
        Line2D([], [], linestyle="", label="chance", **tick),
        Line2D([], [], color=colour, linewidth=1.4, label="95 % interval over authors"),
    ]
    add_legend(figure, handles, colours, 4, 7.5, "upper left")
    return figure


def _p_in_words(score: PurityScore | WithinScore) -> str:
    """The p-value with two digits; "< 1e-05" if none of the random permutations reached purity."""
    if score.p_value is None:
        return ""
    is_bound = not score.is_exact and not score.reached and score.permutations
    return f"< {1 / score.permutations:.1g}" if is_bound else f"{score.p_value:.2g}"


def verdict(result: PurityResult) -> list[str]:
    """The interpretation of the numbers, in sentences for readers without experience with them."""
    if result.purity is None:
        return [f"Purity cannot be computed. {result.note}"]
    cross_author = result.cross_author
    of_data = result.by == "dataset"
    neighbours = "share a training dataset with it" if of_data else f"have the {result.by} that it has"
    alike = "tuned on the same data" if of_data else f"of the same {result.by}"
    dependence = "depend on the data" if of_data else f"depend on the {result.by}"
    sentences = [
        f"With the representation “{result.representation}”, {percent(result.purity)} of a model's nearest neighbours "
        f"{neighbours}; for random neighbours it would be {percent(result.chance)}. "
        f"This is the mean over {counted(result.models, 'model')} that share a {result.by} with another."
    ]
    if cross_author.purity is None:
        sentences.append(f"It cannot be computed across authors. {cross_author.note}")
    else:
        sentences.append(
            f"Among models by other authors only, it is {percent(cross_author.purity)}; by chance it would be "
            f"{percent(cross_author.chance)}."
        )
    if cross_author.is_more_than_chance:
        judgement = f"So models {alike} do lie together, and not only because one person made them."
    elif cross_author.purity is None and result.chance is not None and result.purity > result.chance:
        judgement = f"So it remains open whether the vectors {dependence} or only on whose scripts were used."
    elif not result.is_more_than_chance:
        judgement = f"This may be chance: these numbers do not show that the vectors {dependence}."
    else:
        judgement = "Across authors this may be chance: the plain number may reflect the habits of single uploaders."
    if result.on_habits and result.is_more_than_chance:
        judgement += " But a habit is confounded with the labels, and may be the reason."
    sentences[-1] += " " + judgement
    for among, score in (("", result), (" among other authors' models", cross_author)):
        for level in score.within:
            if level.chance is None:
                sentences.append(f"Within {level.within}{among} no label can be exchanged: the two always go together.")
                continue
            movable = f"the label of {counted(level.movable, 'model')} can change"
            sentences.append(
                f"If only sweeps of the same {level.within} exchange labels, chance{among} is {percent(level.chance)} "
                f"(p {_p_in_words(level)}; {movable})."
            )
    return sentences
