"""The result of ``query lineage``: the edges that lead to a model, as text, rows and tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from query.lineage.edges import Edge
from query.results import Drawn, Rows, ThemeName
from query.wording import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class _Drawn(Drawn):
    """One model or several: a table of edges, and a tree."""

    IS_LIST = True
    SHOW_HEADLINE = True
    DETAILS = ("same", "bytes_read", "told")
    OPTIONAL_COLUMNS = ("left", "coefficient", "method", "direction", "because", "probability")


@dataclass(frozen=True, repr=False)
class Lineage(_Drawn):
    """Where one model comes from.

    Attributes:
        edges: one for each parent, or one for the base; none where the weights could not be read.
        bytes_read: bytes of weights read for this answer.
        models_read: number of models they belong to.
        answered_at: when the stored answer was computed (UTC); None if the weights were read now.
        failure: why the weights could not be read; ``edges`` are then the stored ones.
    """

    model: str
    base: str
    model_id: int | None
    edges: tuple[Edge, ...]
    bytes_read: int
    models_read: int
    notes: tuple[str, ...] = ()
    answered_at: datetime | None = None
    failure: str = ""

    @property
    def headline(self) -> str:
        """The steps in a sentence."""
        if not self.edges:
            return f"The weights of {self.model} could not be read."
        steps = "; ".join(f"{edge.description} (its card: {edge.card})" for edge in self.edges)
        return f"{self.model}, by its weights: {steps}."

    def to_dict(self) -> dict[str, Any]:
        """The model, its base, its parents and the cost of the answer."""
        return {
            "model": self.model,
            "base": self.base,
            "parents": [edge.to_row() for edge in self.edges],
            "bytes_read": self.bytes_read,
            "models_read": self.models_read,
            "told": self._time,
            "notes": list(self.notes),
        }

    def to_rows(self) -> list[dict[str, Any]]:
        """The command's JSON: one row for each edge."""
        return [edge.to_row() | {"bytes_read": self.bytes_read, "told": self._time} for edge in self.edges]

    @property
    def _time(self) -> str | None:
        return None if self.answered_at is None else self.answered_at.isoformat(timespec="seconds")

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """The model and its parents as a tree."""
        from query.lineage.tree import tree_figure

        return tree_figure(self.edges, self.base, theme, self.model, ax)


@dataclass(frozen=True, repr=False, eq=False)
class Lineages(Rows[Lineage], _Drawn):
    """The lineage of every indexed model of a base: a list of :class:`Lineage`."""

    base: str
    items: tuple[Lineage, ...]

    @property
    def headline(self) -> str:
        """How many were made from another fine-tune."""
        continued = sum(
            any(edge.parent_id is not None and edge.direction == "known" for edge in one.edges) for one in self.items
        )
        return f"Of {counted(len(self.items), 'model')} of {self.base}, {continued:,} were made from another of them."

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The notes on single models, and one sentence for each reason why some could not be read."""
        failures = Counter(one.failure for one in self.items if one.failure)
        return (
            *(f"{one.model}: {note}" for one in self.items for note in one.notes),
            *(
                f"{counted(count, 'model')} of {len(self.items):,} could not be read ({failure.rstrip('.')}); their "
                "stored answers are kept."
                for failure, count in failures.items()
            ),
        )

    @property
    def unanswered(self) -> tuple[str, ...]:
        """The models whose weights could not be read."""
        return tuple(one.model for one in self.items if one.failure)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The edges of all models."""
        return tuple(edge for one in self.items for edge in one.edges)

    def to_dict(self) -> dict[str, Any]:
        """The base and the answer for each model."""
        return {"base": self.base, "models": [one.to_dict() for one in self.items]}

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each edge."""
        return [{"model": one.model, **row} for one in self.items for row in one.to_rows()]

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """The family tree."""
        from query.lineage.tree import tree_figure

        return tree_figure(self.edges, self.base, theme, ax=ax)
