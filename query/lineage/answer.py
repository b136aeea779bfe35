"""Where one model comes from, as it is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from query.lineage.edges import Edge
from query.lineage.links import TUNED
from query.results import Drawn, Rows, ThemeName
from query.wording import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Of a table's columns, the one that a narrow terminal can do without first.
OPTIONAL_COLUMNS = ("left", "coefficient", "method", "direction", "because", "probability")


@dataclass(frozen=True)
class Row:
    """One parent of a model, or the base.

    ``card``: confirmed, contradicted, not declared, or "unsure" where ``probability`` is below SURE. ``probability``:
    how probable it is that this row is right. ``signals``: what the probability was made from, for who calibrates it.
    """

    parent: str | None
    kind: str
    coefficient: float
    left: float
    card: str
    method: str | None
    direction: str
    because: str
    same: tuple[str, ...] = ()
    parent_id: int | None = None
    probability: float | None = None
    signals: Mapping[str, float] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The step, with its parent."""
        if self.parent is None:
            return self.kind
        if self.kind == TUNED:
            return f"{self.kind}, {self.parent}"
        how, comma, otherwise = self.kind.partition(",")  # "continued, or a run with the same data and seed"
        return f"{how} from {self.parent}{comma}{otherwise}"

    def as_row(self) -> dict[str, Any]:
        """The keys of the command's JSON."""
        return {
            "parent": self.parent,
            "kind": self.kind,
            "coefficient": round(self.coefficient, 4),
            "left": round(self.left, 6),
            "card": self.card,
            "probability": None if self.probability is None else round(self.probability, 4),
            "method": self.method,
            "direction": self.direction,
            "because": self.because,
            "same": list(self.same),
        }


@dataclass(frozen=True, repr=False)
class Lineage(Drawn):
    """Where one model comes from.

    ``rows``: its parents, or one row for the base. ``bytes_read``: of weights, for this answer. ``models_read``: how
    many models' weights that was. ``notes``: what a person should know besides. ``told``: when it was found out (UTC),
    where the atlas keeps the answer; None where the weights were asked now. ``failure``: why they could not be asked;
    the rows are then those that the atlas keeps, or none.
    """

    OPTIONAL_COLUMNS = OPTIONAL_COLUMNS
    SHOW_HEADLINE = True

    model: str
    base: str
    model_id: int | None
    rows: tuple[Row, ...]
    bytes_read: int
    models_read: int
    notes: tuple[str, ...] = ()
    told: datetime | None = None
    failure: str = ""

    @property
    def headline(self) -> str:
        """Whom it was made from, and how."""
        if not self.rows:
            return f"The weights of {self.model} could not be read."
        steps = "; ".join(f"{row.words} (its card: {row.card})" for row in self.rows)
        return f"{self.model}, by its weights: {steps}."

    @property
    def edges(self) -> list[Edge]:
        """The steps to it."""
        return [
            Edge(
                parent=row.parent if row.parent_id is not None else None,
                child=self.model,
                kind=row.kind,
                coefficient=row.coefficient,
                left=row.left,
                card=row.card,
                direction=row.direction,
                probability=row.probability,
            )
            for row in self.rows
        ]

    def to_dict(self) -> dict[str, Any]:
        """The model, its base, the rows and what was read."""
        asked = {"model": self.model, "base": self.base, "parents": [row.as_row() for row in self.rows]}
        read = {"bytes_read": self.bytes_read, "models_read": self.models_read}
        return asked | read | {"told": self._told, "notes": list(self.notes)}

    def to_rows(self) -> list[dict[str, Any]]:
        """The command's JSON."""
        return [row.as_row() | {"bytes_read": self.bytes_read, "told": self._told} for row in self.rows]

    @property
    def _told(self) -> str | None:
        return None if self.told is None else self.told.isoformat(timespec="seconds")

    def to_json(self) -> list[dict[str, Any]]:
        """The rows: the answer is a list."""
        return self.to_rows()

    def table(self, *, details: bool = False) -> list[dict[str, Any]]:
        """The rows; what does not fit beside the rest only with ``details``."""
        return self.to_rows() if details else _short(self.to_rows())

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """The model and its parents as a tree."""
        from query.lineage.tree import tree_figure

        return tree_figure(self.edges, self.base, theme, self.model, ax)


@dataclass(frozen=True, repr=False, eq=False)
class Lineages(Rows[Lineage], Drawn):
    """The lineage of every indexed model of a base: a list of :class:`Lineage`."""

    OPTIONAL_COLUMNS = OPTIONAL_COLUMNS
    SHOW_HEADLINE = True

    base: str
    items: tuple[Lineage, ...]

    @property
    def headline(self) -> str:
        """How many were made from another fine-tune."""
        known = [any(row.parent_id is not None and row.direction == "known" for row in one.rows) for one in self.items]
        continued = sum(known)
        return f"Of {counted(len(self.items), 'model')} of {self.base}, {continued:,} were made from another of them."

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Notes on single models, and a sentence for each reason why some could not be asked."""
        failures = Counter(one.failure for one in self.items if one.failure)
        return (
            *(f"{one.model}: {note}" for one in self.items for note in one.notes),
            *(
                f"{counted(count, 'model')} of {len(self.items):,} could not be asked ({failure.rstrip('.')}); what "
                "the atlas keeps of them stays."
                for failure, count in failures.items()
            ),
        )

    @property
    def unanswered(self) -> tuple[str, ...]:
        """The models whose weights could not be asked."""
        return tuple(one.model for one in self.items if one.failure)

    def to_dict(self) -> dict[str, Any]:
        """The base and the rows."""
        return {"base": self.base, "models": [one.to_dict() for one in self.items]}

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each parent of each model."""
        return [{"model": one.model, **row} for one in self.items for row in one.to_rows()]

    def table(self, *, details: bool = False) -> list[dict[str, Any]]:
        """The rows; what does not fit beside the rest only with ``details``."""
        return self.to_rows() if details else _short(self.to_rows())

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """The family tree."""
        from query.lineage.tree import tree_figure

        return tree_figure([edge for one in self.items for edge in one.edges], self.base, theme, ax=ax)


def _short(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in ("same", "bytes_read", "told")} for row in rows]
