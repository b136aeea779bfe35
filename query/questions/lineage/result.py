"""The result of ``query lineage``: the edges that lead to a model, as text, rows, tables and a tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from indexer.errors import Text
from query.contract.columns import BaseId, ModelId, Notes
from query.contract.figures import THEMES, drawn_alone, label, new_figure
from query.contract.results import After, Detail, Doc, Drawn, Hidden, Listed, Rounded, Rows, ThemeName
from query.shared.wording import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Kinds of edges.
TUNED = "tuned from the base"
CONTINUED = "continued"
CONTINUED_OR_RUN = "continued, or a run with the same data and seed"
MERGE = "merge"
LORA = "LoRA merged"
COPY = "copy"
RECAST = "recast"
QUANTISED = "quantised copy"
UNRELATED = "unrelated"
CONVERSION = "conversion"  # in another format
UNTRAINED_ADAPTER = "untrained adapter"  # or one whose change cannot be measured

# The evidence for a copy, and the addition if neither of the two models is known to be the original.
SAME_WEIGHTS = "the same weights"
NO_ORDER = "which came first cannot be told"

# Verdicts. DERIVED: made from the base, perhaps by way of other models.
DERIVED = "derived"
UNKNOWN = "unknown"

# The methods of a merge that drops entries of its parents.
SPARSE_METHODS = "ties or dare"

# Whether a model's card agrees with an edge. UNSURE: the edge is not probable enough to contradict a card.
CONFIRMED = "confirmed"
CONTRADICTED = "contradicted"
NOT_DECLARED = "not declared"
UNSURE = "unsure"

# Keys of ``Edge.signals`` for the evidence of an edge: the factors of adapters, or the file of an adapter.
OF_ADAPTER = "adapter"
STATED = "stated"

# The tree.
COLUMN, ROW, MARGIN = 2.5, 0.19, 0.9  # inches
_MAX_HEIGHT = 180.0
KINDS = (TUNED, CONTINUED, MERGE, LORA, COPY, RECAST, QUANTISED, CONTINUED_OR_RUN, UNTRAINED_ADAPTER, CONVERSION)
_DASHED = (0, (3, 2))


# Meanings of the fields of a step, here and in a bill of materials.
STEP_KIND = Doc(
    "The kind of step: tuned from the base, continued (tuned further), merge, LoRA merged, copy, recast "
    "(saved in another precision), quantised copy, conversion (GGUF, AWQ …), untrained adapter, or unrelated."
)
RESIDUAL = Doc(
    "Share of the energy (squared norm) of the model's change that its parents do not explain, from 0 to 1. Small: "
    "they explain it."
)
STEP_EVIDENCE = Doc("The evidence, in a few words.")
CARD_AGREES = Doc(
    "Whether the model card agrees: confirmed, contradicted or not declared; unsure if the step itself is uncertain."
)
STEP_PROBABILITY = Doc(
    "Probability that this step is right, from 0 to 1; of a copy of unknown direction, that the two have the same "
    "weights."
)


@dataclass(frozen=True)
class Edge:
    """One step of a family tree: ``child`` was made from ``parent``.

    Attributes:
        child: name of the model. kind: one of the kinds above; ``card``: one of the constants above. probability: None
        before it is calculated. parent_id: the id of the parent, if it is a model of the atlas. is_proven: whether
        equal weights prove the edge, rather than sizes and angles. signals: the measurements behind the probability of
        a continued or tuned model.
    """

    child: Annotated[str, Hidden()]
    parent: Annotated[
        str | None, Doc("The model that it was made from; empty for the base, or if the source is not in the atlas.")
    ]
    kind: Annotated[str, STEP_KIND]
    coefficient: Annotated[float, Doc("Weight of the parent: 1, or another number in a merge."), Rounded(4)]
    residual: Annotated[float, RESIDUAL, Rounded(6)]
    evidence: Annotated[str, STEP_EVIDENCE, After("direction")] = ""
    method: Annotated[
        str | None, Doc("Recipe of a merge: linear, task arithmetic, slerp, layer by layer, or “ties or dare”.")
    ] = None
    direction: Annotated[
        str, Doc("known, or unknown if neither weights nor dates show which of the two came first.")
    ] = "known"
    card: Annotated[str, CARD_AGREES, After("residual")] = NOT_DECLARED
    probability: Annotated[float | None, STEP_PROBABILITY, Rounded(4), After("card")] = None
    same: Annotated[tuple[str, ...], Doc("Models that the weights cannot distinguish from the parent."), Detail()] = ()
    parent_id: Annotated[int | None, Hidden()] = None
    is_proven: Annotated[bool, Hidden()] = True
    signals: Annotated[Mapping[str, float], Hidden()] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """The step in words, with its parent."""
        if self.parent is None:
            return self.kind
        if self.kind == TUNED:
            return f"{self.kind}, {self.parent}"
        if self.kind == UNTRAINED_ADAPTER:
            return f"{self.kind} of {self.parent}: {self.evidence}"
        if self.kind == COPY and self.direction != "known":
            return f"{SAME_WEIGHTS} as {self.parent}; {NO_ORDER}"
        verb, comma, otherwise = self.kind.partition(",")  # "continued, or a run with the same data and seed"
        return f"{verb} from {self.parent}{comma}{otherwise}"


@dataclass(frozen=True)
class Decision:
    """The edges found, none if no rule applies. ``is_settled``: reading more models would not change them."""

    edges: tuple[Edge, ...] = ()
    is_settled: bool = False


@dataclass(frozen=True, repr=False)
class Lineage(Drawn, Listed[Edge]):
    """Where one model comes from.

    Attributes:
        edges: none where the weights could not be read.
        answered_at: None if the weights were read now.
        failure: why the weights could not be read; ``edges`` are then the stored ones.
        expected: the base or model that it should be made from, if one was given.
    """

    ROWS = "edges"
    EACH_ROW = ("bytes_read", "answered_at", "verdict")
    IN_A_BATCH = ("model",)
    SHOW_HEADLINE = True
    OPTIONAL_COLUMNS = ("residual", "coefficient", "method", "direction", "evidence", "probability")

    model: ModelId
    base: BaseId
    model_id: Annotated[int | None, Hidden()]
    edges: Annotated[tuple[Edge, ...], Doc("Its parents, or one row for the base.")]
    bytes_read: Annotated[int, Doc("Bytes of weights that were read for the answer."), Detail()]
    models_read: Annotated[int, Doc("Number of models whose weights were read for the answer.")]
    notes: Notes = ()
    answered_at: Annotated[
        datetime | None, Doc("When the answer was computed, in UTC; empty if the weights were read just now."), Detail()
    ] = None
    failure: Annotated[str, Hidden()] = ""
    expected: Annotated[str | None, Hidden()] = None

    @property
    def verdict(
        self,
    ) -> Annotated[
        str,
        Doc(
            "derived (made from the base, perhaps by way of other models), copy (of the base), unrelated (to the "
            "base), or unknown."
        ),
        Detail(),
        After("base"),
    ]:
        """One word: derived (from the base or from models of it), copy (of the base), unrelated, or unknown."""
        if not self.edges:
            return UNKNOWN
        if any(edge.kind == UNRELATED for edge in self.edges):
            return UNRELATED
        return COPY if any(edge.kind == COPY and edge.parent == self.base for edge in self.edges) else DERIVED

    @property
    def is_as_expected(self) -> bool:
        """Whether it is made from ``expected``: the base, or a direct parent. True if nothing was expected."""
        if self.expected is None:
            return True
        if self.verdict in (UNRELATED, UNKNOWN):
            return False
        parents = {name for edge in self.edges for name in (edge.parent, *edge.same)}
        return self.expected == self.base or self.expected in parents

    @property
    def headline(self) -> str:
        """The steps in a sentence."""
        if not self.edges:
            return f"The weights of {self.model} could not be read."
        if self.verdict == UNRELATED:
            (edge,) = self.edges
            return f"{self.model} is not made from {self.base}: {edge.evidence} (its card: {edge.card})."
        steps = "; ".join(f"{edge.description} (its card: {edge.card})" for edge in self.edges)
        return f"{self.model}, by its weights: {steps}."

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """The model and its parents as a tree."""
        return tree_figure(self.edges, self.base, theme, self.model, ax)


@dataclass(frozen=True, repr=False, eq=False)
class Lineages(Rows[Lineage], Drawn):
    """The lineage of every indexed model of a base: a list of :class:`Lineage`."""

    SHOW_HEADLINE = True
    ROWS = "models"
    HAS_DETAILS = True
    OPTIONAL_COLUMNS = Lineage.OPTIONAL_COLUMNS

    base: BaseId
    models: Annotated[tuple[Lineage, ...], Doc("The answer for each model.")]

    @property
    def headline(self) -> str:
        """How many were made from another fine-tune."""
        continued = sum(
            any(edge.parent_id is not None and edge.direction == "known" for edge in lineage.edges)
            for lineage in self.models
        )
        return f"{continued:,} of {counted(len(self.models), 'model')} of {self.base} were made from another of them."

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The notes on single models, and one sentence for each reason why some could not be read."""
        failures = Counter(lineage.failure for lineage in self.models if lineage.failure)
        return (
            *(Text(f"{lineage.model}: ", note) for lineage in self.models for note in lineage.notes),
            *(
                f"{counted(count, 'model')} of {len(self.models):,} could not be read ({failure.rstrip('.')}); their "
                "stored answers are kept."
                for failure, count in failures.items()
            ),
        )

    @property
    def unanswered(self) -> tuple[str, ...]:
        """The models whose weights could not be read."""
        return tuple(lineage.model for lineage in self.models if lineage.failure)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The edges of all models."""
        return tuple(edge for lineage in self.models for edge in lineage.edges)

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """The family tree."""
        return tree_figure(self.edges, self.base, theme, ax=ax)


# ---- the tree: the base on the left, a column for each generation, lines coloured by kind


def edges_around(edges: Sequence[Edge], model: str) -> list[Edge]:
    """The edges that lead from the base to ``model``, and from there to everything made from it."""

    def closure(steps: list[tuple[str | None, str | None]]) -> set[str | None]:
        reached: set[str | None] = {model}
        while further := {target for start, target in steps if start in reached and target is not None} - reached:
            reached |= further
        return reached

    ancestors = closure([(edge.child, edge.parent) for edge in edges])
    descendants = closure([(edge.parent, edge.child) for edge in edges])
    return [edge for edge in edges if edge.child in ancestors or edge.parent in descendants]


def positions(edges: Sequence[Edge], base: str) -> dict[str, tuple[int, float]]:
    """The (generation, row from the top) of the base and of every model: children next to their first parent.

    Edges may contradict each other, as an atlas may come from anyone: an edge that would close a circle is skipped.
    """
    parents: dict[str, list[str]] = {}
    for edge in edges:
        parents.setdefault(edge.child, []).append(edge.parent or base)
        if edge.parent not in (None, base):
            parents.setdefault(edge.parent, [])
    columns: dict[str, int] = {base: 0}

    def column(model: str, path: frozenset[str]) -> int:
        if model not in columns:
            parent_columns = [
                column(parent, path | {model}) for parent in parents.get(model, []) if parent not in path | {model}
            ]
            columns[model] = 1 + max(parent_columns, default=0)
        return columns[model]

    children: dict[str, list[str]] = {}
    for model, parents_of_model in parents.items():
        column(model, frozenset())
        first = next((parent for parent in parents_of_model if columns.get(parent, 0) < columns[model]), base)
        children.setdefault(first, []).append(model)
    positions_of: dict[str, tuple[int, float]] = {}
    row = 0.0
    stack: list[tuple[str, bool]] = [(base, False)]
    while stack:
        model, is_done = stack.pop()
        children_of_model = children.get(model, [])
        if is_done:
            positions_of[model] = (
                columns[model],
                sum(positions_of[child][1] for child in children_of_model) / len(children_of_model),
            )
        elif children_of_model:
            stack.append((model, True))
            stack.extend((child, False) for child in reversed(children_of_model))
        else:
            positions_of[model] = columns[model], row
            row += 1
    return positions_of


@drawn_alone
def tree_figure(
    edges: Sequence[Edge], base: str, theme: str = "light", marked: str | None = None, ax: Axes | None = None
) -> Figure:
    """The tree. A merge has lines from all its parents; dashed lines have no known direction."""
    from matplotlib.lines import Line2D

    positions_of = positions(edges, base)
    colours = THEMES[theme]
    colour = dict(zip(KINDS, colours.palette, strict=False))
    columns = 1 + max(column for column, _ in positions_of.values())
    rows = 1 + max(row for _, row in positions_of.values())
    figure, axes = new_figure(COLUMN * columns + MARGIN, min(ROW * rows + MARGIN, _MAX_HEIGHT), theme, ax)
    axes.set_axis_off()
    for edge in edges:
        (from_column, from_row), (column, row) = positions_of[edge.parent or base], positions_of[edge.child]
        axes.plot(
            [from_column, column - 0.35, column - 0.03],
            [-from_row, -row, -row],
            color=colour.get(edge.kind, colours.palette[-1]),
            linewidth=0.9,
            linestyle="-" if edge.direction == "known" else _DASHED,
            solid_joinstyle="round",
            zorder=1,
        )
    for model, (column, row) in positions_of.items():
        is_marked = model in (base, marked)
        axes.plot([column], [-row], ".", color=colours.ink, markersize=6 if is_marked else 3, zorder=3)
        axes.annotate(
            label(model, 40), (column, -row), xytext=(4, 0), textcoords="offset points", fontsize=6,
            verticalalignment="center", color=colours.ink, fontweight="bold" if is_marked else "normal", zorder=4,
            bbox={"facecolor": colours.background, "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
        )  # fmt: skip
    axes.set_xlim(-0.1, columns - 1 + 0.95)
    axes.set_ylim(-rows, 1)
    kinds_drawn = [kind for kind in KINDS if any(edge.kind == kind for edge in edges)]
    handles = [Line2D([], [], color=colour[kind], linewidth=1.2, label=kind) for kind in kinds_drawn]
    if any(edge.direction != "known" for edge in edges):
        handles.append(Line2D([], [], color=colours.ink, linestyle=_DASHED, linewidth=1.0, label="direction unknown"))
    style: dict[str, Any] = {"ncols": 4, "fontsize": 6, "frameon": False, "labelcolor": colours.ink}
    figure.legend(handles=handles, loc="outside lower left", **style)
    return figure
