"""What a model's card says of its parents, and whether the weights agree."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from query.reader import AtlasReader

CONFIRMED = "confirmed"
CONTRADICTED = "contradicted"
NOT_DECLARED = "not declared"
UNSURE = "unsure"


@dataclass(frozen=True)
class Declared:
    """Parents that a card names. ``models``: those that are not the base; ``held``: of these what the atlas has.

    ``names_base``: whether it names the base itself. A card that names a fine-tune and its base means the fine-tune.
    """

    models: frozenset[str]
    held: frozenset[str]
    names_base: bool

    def verdict(self, parent: str | None, same: Sequence[str]) -> str:
        """Of one parent that the weights tell (None: the base itself)."""
        if parent is None:
            if not self.models:
                return CONFIRMED if self.names_base else NOT_DECLARED
            return CONTRADICTED if self.held else NOT_DECLARED
        if {parent, *same} & self.models:
            return CONFIRMED
        return CONTRADICTED if self.held else NOT_DECLARED


def declared_by(atlas: AtlasReader, model_id: int, base: str) -> Declared:
    """What the card of an indexed model names, by the tags that the Hub makes of it."""
    rows = atlas.rows("SELECT DISTINCT parent FROM declared_lineage WHERE model_id = ?", [model_id])
    return _declared(atlas, [row["parent"] for row in rows], base)


def declared_in(atlas: AtlasReader, claims: Sequence[str], base: str) -> Declared:
    """The same of a model that was read for the question."""
    return _declared(atlas, claims, base)


def _declared(atlas: AtlasReader, names: Sequence[str], base: str) -> Declared:
    rows = atlas.rows("SELECT base, aliases FROM bases WHERE base = ?", [base])
    own = {name.lower() for row in rows for name in (row["base"], *row["aliases"])}
    models = frozenset(name for name in names if name.lower() not in own)
    held = frozenset(
        row["model"]
        for row in atlas.rows(
            "SELECT model FROM fine_tunes WHERE model IN (SELECT unnest(?::VARCHAR[]))", [list(models)]
        )
    )
    return Declared(models, held, names_base=any(name.lower() in own for name in names))


def against_card(atlas: AtlasReader, model: str, declared: Declared, found: Collection[str], base: str) -> list[str]:
    """What is to be said of parents that the card names and that are not among those ``found``."""
    notes = []
    for name in sorted(declared.models - set(found)):
        known = atlas.rows(
            "SELECT base, status, reason, detail FROM fine_tunes WHERE model = ? ORDER BY base = ? DESC", [name, base]
        )
        if not known:
            notes.append(f"its card names {name}, which this atlas does not hold")
        elif known[0]["status"] != "indexed":
            notes.append(f"its card names {name}, which has no record: {known[0]['reason']}: {known[0]['detail']}")
        elif known[0]["base"] != base:
            notes.append(f"its card names {name}, a fine-tune of {known[0]['base']}")
        else:
            notes.append(f"its card names {name}; its weights do not show that")
    back = atlas.rows(
        "SELECT DISTINCT model FROM declared_lineage WHERE lower(parent) = lower(?) "
        "AND model IN (SELECT unnest(?::VARCHAR[]))",
        [model, sorted(declared.models)],
    )
    notes.extend(f"its card and that of {row['model']} name each other as parents" for row in back)
    return notes
