"""Two models side by side: how similar their changes are, and what their cards and weights say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexer.errors import AtlasError
from query.compare.facts import Fact, facts_of
from query.compare.similarity import blocks, same_initialisation, small_centre
from query.layers.layers import layers_of
from query.layers.parts import Part
from query.lookup import ResolvedModel, resolve_model, unrelated_notes, with_vector
from query.results import Result
from query.similar import similarity_of
from query.wording import rarity

if TYPE_CHECKING:
    from query.reader import AtlasReader


@dataclass(frozen=True)
class PartPair:
    """One layer, or one family: the mean cosine of the blocks that both changed (None: there is none), the norms."""

    name: str
    similarity: float | None
    a_norm: float
    b_norm: float


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Result):
    """Two models of one base.

    ``similarity`` is None where one is a copy of the base; ``background``: the share of pairs of unrelated models
    that are at least as similar, from ``background_pairs`` of them, None where the atlas does not say; it is never
    below ``background_floor``, which stands for "none of them". ``matrices``: how many both changed. ``layers`` and
    ``families`` have no similarities where the representation has no blocks.
    """

    COLUMNS = ("part", "name", "similarity", "background", "background_pairs", "a_norm", "b_norm")
    SHOW_HEADLINE = True

    a: str
    b: str
    base: str
    representation: str
    similarity: float | None
    background: float | None
    background_pairs: int | None
    background_floor: float | None
    matrices: int | None
    layers: tuple[PartPair, ...]
    families: tuple[PartPair, ...]
    facts: tuple[Fact, ...]
    notes: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """How similar the two are, and how unusual that is."""
        if self.similarity is None:
            return "One of the two is a copy of its base: their changes cannot be compared."
        told = f"The similarity of {self.a} and {self.b} is {self.similarity:.2f}"
        if self.background is None:
            return f"{told}."
        rare = rarity(self.background, self.background_pairs).removesuffix(" pairs")
        return f"{told}; {rare} pairs of unrelated models are at least as similar."

    def table(self, *, details: bool = False) -> dict[str, Any]:
        """Layers, families and facts; ``details``: everything."""
        told = self.to_dict()
        return told if details else {name: told[name] for name in ("layers", "families", "facts")}

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for all (``part`` is ``all``), then one for each layer and family, which have no background."""
        norms = (math.hypot(*(getattr(one, name) for one in self.layers)) for name in ("a_norm", "b_norm"))
        parts = [("all", PartPair("", self.similarity, *norms))]
        parts += [("layer", one) for one in self.layers] + [("family", one) for one in self.families]
        background = {"background": self.background, "background_pairs": self.background_pairs}
        return [
            {"part": kind, **asdict(one)} | (background if kind == "all" else dict.fromkeys(background))
            for kind, one in parts
        ]


def compare(
    atlas: AtlasReader, a: str | Path, b: str | Path, *, base: str | None = None, representation: str = "input"
) -> Comparison:
    """Two models side by side: their similarity by family and layer, and what cards and weights say of each.

    ``a`` and ``b`` are indexed ids, other Hub ids, or local folders. Raises AtlasError if one is unknown or cannot be
    read, or if their bases differ.
    """
    first, second = (resolve_model(atlas, str(name), base, representation) for name in (a, b))
    if first.base != second.base:
        raise AtlasError(
            f"{first.name} is a fine-tune of {first.base}, {second.name} of {second.base}: models of different bases "
            "cannot be compared.",
            "",
        )
    alike = background = pairs = shared = of_layers = of_families = None
    notes: tuple[str, ...] = ()
    if not (first.is_copy or second.is_copy):
        first, second = (with_vector(atlas, one, representation) for one in (first, second))
        alike, background, pairs, shared = similarity_of(atlas, first, second, representation)
        of_layers, of_families = _by_part(atlas, first, second, representation)
        notes = small_centre(atlas, first, second, representation) + same_initialisation(atlas, first, second)
    changed = (layers_of(atlas, first), layers_of(atlas, second))
    return Comparison(
        a=first.name,
        b=second.name,
        base=first.base,
        representation=representation,
        similarity=alike,
        background=background,
        background_pairs=pairs,
        background_floor=None if pairs is None else 1 / (1 + pairs),
        matrices=shared,
        layers=_pairs(of_layers, changed[0].layers, changed[1].layers),
        families=_pairs(of_families, changed[0].families, changed[1].families),
        facts=facts_of(atlas, first, second),
        notes=(*notes, *unrelated_notes(atlas, first, second)),
    )


Means = dict[str, float | None]


def _by_part(
    atlas: AtlasReader, first: ResolvedModel, second: ResolvedModel, representation: str
) -> tuple[Means, Means] | tuple[None, None]:
    """The similarity by layer and by family."""
    assert first.vector is not None
    assert second.vector is not None
    if not atlas.published(first.base, representation).per_delta:
        return None, None
    found = blocks(atlas, first.base, first.vector, second.vector)
    by_layer = found.mean_by([f"{key.stack}.{key.layer}" if key.stack else str(key.layer) for key in found.keys])
    return by_layer, found.mean_by([key.family_key for key in found.keys])


def _pairs(means: Means | None, first: Sequence[Part], second: Sequence[Part]) -> tuple[PartPair, ...]:
    norms = {part.name: part.norm for part in second}
    return tuple(
        PartPair(part.name, (means or {}).get(part.name), part.norm, norms.get(part.name, 0.0)) for part in first
    )
