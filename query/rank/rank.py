"""How the rank of δW, or of W, moves with depth: a mean over models by family and layer, and the law that fits best.

The rank at a threshold is the smallest r for which the r largest singular values hold that share of Σ σ²
(``indexer.records.energy``). One model counts once: copies of the base, unrelated models and repeats are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.errors import AtlasError
from query.population import LeftOut
from query.rank.families import FamilyRanks, RanksByFamily
from query.rank.fits import fit_forms
from query.rank.models import Candidate, checked_relations, countable_models, one_model
from query.rank.values import Ranks, read_ranks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from query.reader import AtlasReader
    from query.results import ThemeName

NAMES_TOLD = 3
# Singular values from a Gram matrix are good for shares of the energy up to this one (``indexer.deltas.svd.spectrum``).
FINEST_THRESHOLD = 0.9999


@dataclass(frozen=True, repr=False)
class RankStudy(RanksByFamily):
    """A study of ranks, drawn on request."""

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """A panel for each stack: a line by family with its spread, and the best fit dashed."""
        from query.rank.picture import rank_figure

        return rank_figure(self, theme, ax)


def rank_by_depth(
    atlas: AtlasReader,
    base: str | None = None,
    *,
    threshold: float = 0.5,
    of: str = "delta",
    model: str | None = None,
    relation: str | None = None,
    whole: bool = False,
) -> RankStudy:
    """Mean rank by family and layer over the models of ``base``, with its spread and the forms that fit it.

    Copies, unrelated models and repeats do not count, zero deltas (matrices that an adapter leaves alone, frozen
    layers) not either; W does where it is the base's own. Where the rank of some model is beyond the singular
    values that its record keeps, only models with spectra count (see ``Ranks.comparable``), the others are lacking.
    ``model``: of this one alone, whatever it is. ``relation``: only these, separated by commas. ``whole``: fused
    matrices (GPT-2's c_attn) whole instead of split.

    Raises AtlasError where no model is left, and ValueError on a threshold outside (0, 1] or another ``of``.
    """
    if not 0 < threshold <= 1 or of not in ("delta", "weights"):
        raise ValueError(f"no ranks of {of!r} at {threshold}")
    relations = checked_relations(relation)
    if model is None:
        canonical = atlas.base_named(base)
        candidates, left_out = countable_models(atlas, canonical, relations)
        notes = [f"left out: {', '.join(left_out.words())}"] if left_out.words() else []
    else:
        candidate, canonical, notes = one_model(atlas, model, base)
        candidates, left_out = [candidate], LeftOut()
    ranks = read_ranks(atlas, canonical, candidates, of=of, threshold=threshold, whole=whole)
    known, lacking = _known(ranks, canonical, model)
    if lacking:
        notes.append(_told_lacking(lacking, canonical))
    if threshold > FINEST_THRESHOLD:
        notes.append("so near to all of the energy, a rank counts rounding errors too, but for an adapter's δW")
    return RankStudy(
        base=canonical,
        of=of,
        threshold=threshold,
        models=len(known.values),
        families=_families(known),
        model=candidates[0].model if model is not None else None,
        relations=relations,
        whole=whole,
        left_out=left_out,
        lacking=lacking,
        notes=tuple(notes),
    )


def _known(ranks: Ranks, base: str, model: str | None) -> tuple[Ranks, tuple[str, ...]]:
    """The ranks that count, NaN where there is none, and the names of models that lack theirs.

    Raises AtlasError where no model is left, or nothing was changed.
    """
    counted = ranks.comparable if model is None else ranks.known
    if not counted.any():
        raise _nothing_known(base, ranks.candidates, model)
    values = np.where(ranks.values[counted] > 0, ranks.values[counted], np.nan)
    if np.isnan(values).all():
        raise AtlasError(f"{model or 'Every model'} changes no matrix of {base}: a zero δW has no rank.", "")
    kept = tuple(one for one, is_in in zip(ranks.candidates, counted, strict=True) if is_in)
    lacking = tuple(one.model for one, is_in in zip(ranks.candidates, counted, strict=True) if not is_in)
    return Ranks(kept, ranks.cells, values), lacking


def _families(ranks: Ranks) -> dict[str, FamilyRanks]:
    """By family and layer: mean and standard deviation of what is there, None where that is not enough."""
    columns: dict[str, dict[int, Any]] = {}
    for column, cell in zip(ranks.values.T, ranks.cells, strict=True):
        columns.setdefault(cell.family_key, {})[cell.layer] = column[~np.isnan(column)]
    families = {}
    for name, layers in columns.items():
        found = [layers.get(layer, np.empty(0)) for layer in range(max(layers) + 1)]
        means = tuple(float(one.mean()) if len(one) else None for one in found)
        families[name] = FamilyRanks(
            ranks=means,
            spread=tuple(float(one.std(ddof=1)) if len(one) > 1 else None for one in found),
            counts=tuple(len(one) for one in found),
            fits=fit_forms(means),
        )
    return families


def _told_lacking(lacking: tuple[str, ...], base: str) -> str:
    names = ", ".join(lacking[:NAMES_TOLD]) + (" …" if len(lacking) > NAMES_TOLD else "")
    return f"{len(lacking)} models lack spectra and do not count ({names}): `build({base!r}, spectra=True)`"


def _nothing_known(base: str, candidates: Sequence[Candidate], model: str | None) -> AtlasError:
    if model is not None:
        what = f"The record of {candidates[0].model} does not hold all singular values."
        return AtlasError(what, f"Read it again: `add({candidates[0].model!r}, {base!r}, spectra=True)`")
    return AtlasError(
        f"None of the {len(candidates)} models of {base} has all its singular values in this atlas.",
        f"Read them: `build({base!r}, spectra=True)`",
    )
