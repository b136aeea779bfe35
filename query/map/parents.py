"""Which models those on a map were made from, as far as the atlas keeps lineage (``query lineage --all``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from indexer.console.messages import clean

if TYPE_CHECKING:
    from query.reader import AtlasReader


class Parent(NamedTuple):
    """One parent, as the table ``lineage`` has it; ``model_id`` and ``model`` are None for the base itself.

    ``card``: confirmed, contradicted, not declared or unsure; ``is_known``: whether it is known which of the two was
    first.
    """

    model_id: int | None
    model: str | None
    kind: str
    coefficient: float
    card: str
    is_known: bool = True

    @property
    def words(self) -> str:
        """How the model was made from it, and what the card says of that."""
        told = self.kind if self.coefficient == 1 else f"{self.kind}, weight {self.coefficient:.2f}"
        direction = "" if self.is_known else ", or the other way round"
        return clean(f"{told}{direction}; card: {self.card}")


def read_parents(atlas: AtlasReader, base: str) -> dict[int, tuple[Parent, ...]]:
    """The parents of every model of ``base`` whose lineage was told, by model id, the weightiest first."""
    rows = atlas.connection.execute(
        "SELECT lineage.model_id, parent_id, parent.model, kind, coefficient, card, direction = 'known' "
        "FROM lineage JOIN fine_tunes AS child ON child.model_id = lineage.model_id "
        "LEFT JOIN fine_tunes AS parent ON parent.model_id = parent_id "
        "WHERE child.base = ? ORDER BY lineage.model_id, coefficient DESC, parent_id",
        [base],
    ).fetchall()
    found: dict[int, list[Parent]] = {}
    for model_id, *parent in rows:
        found.setdefault(model_id, []).append(Parent(*parent))
    return {model_id: tuple(parents) for model_id, parents in found.items()}
