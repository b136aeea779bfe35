"""How similar two models are, block by block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from indexer.names import DeltaKey
from query.lookup import ResolvedModel, initialisation_of
from query.similar import group_of

if TYPE_CHECKING:
    from query.reader import AtlasReader

Vector = NDArray[np.float32]

# Strangers that the centre alone brings so low (five authors or fewer) are worth a word.
_FAR_BELOW = -0.2


@dataclass(frozen=True)
class Blocks:
    """The cosine of two models' blocks, by delta; NaN where one of the two did not change it."""

    keys: tuple[DeltaKey, ...]
    cosines: NDArray[np.float64]

    def mean_by(self, names: list[str]) -> dict[str, float | None]:
        """The mean over the deltas of one name (``names``: one for each delta); None where there is none to average."""
        found: dict[str, list[float]] = {name: [] for name in names}
        for name, cosine in zip(names, self.cosines.tolist(), strict=True):
            if np.isfinite(cosine):
                found[name].append(cosine)
        return {name: float(np.mean(cosines)) if cosines else None for name, cosines in found.items()}


def blocks(atlas: AtlasReader, base: str, first: Vector, second: Vector) -> Blocks:
    """Block by block, for representations that have one block for each delta."""
    names = atlas.rows("SELECT deltas FROM bases WHERE base = ?", [base])[0]["deltas"]
    keys = tuple(DeltaKey.parse(name) for name in names)
    one, other = (vector.astype(np.float64).reshape(len(keys), -1) for vector in (first, second))
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines = np.where(norms > 0, (one * other).sum(axis=1) / norms, np.nan)
    return Blocks(keys, cosines)


def small_centre(atlas: AtlasReader, one: ResolvedModel, other: ResolvedModel, representation: str) -> tuple[str, ...]:
    """A sentence where so few votes made the centre of two models that strangers come out far below zero."""
    from indexer.vectors.centre import ADAPTER, FEWEST_VOTES, GROUPS, INITIALISATION_SHRINK, SHRINK
    from indexer.vectors.centre import cosine_of_strangers as of_strangers
    from indexer.vectors.masks import changed_blocks

    centre, group = atlas.centre(one.base, representation), group_of(atlas, one)
    if centre is None or group != group_of(atlas, other) or one.author == other.author:
        return ()
    if one.model_id is None or other.model_id is None:  # read for this question, it had no vote
        return ()
    mine, theirs = (centre.group_of(group, initialisation_of(atlas, each)[0]) for each in (one, other))
    group = mine if mine == theirs else group
    votes = centre.groups[group].votes
    assert one.vector is not None
    assert other.vector is not None
    changed = changed_blocks(np.stack([one.vector, other.vector]), len(votes)).all(axis=0)
    is_group = group in GROUPS
    heard = votes[changed & (votes > (1 if is_group else FEWEST_VOTES - 1))]
    strangers = float(of_strangers(heard, SHRINK if is_group else INITIALISATION_SHRINK).mean()) if len(heard) else 0.0
    if strangers > _FAR_BELOW:
        return ()
    count = f"{heard.min()}" if heard.min() == heard.max() else f"{heard.min()} to {heard.max()}"
    kind = f"adapters of {count} authors" if group == ADAPTER else f"full fine-tunes of {count} authors"
    if not is_group:
        kind = f"adapters of their initialisation, on {count} data sets,"
    return (
        f"Only {kind} changed the matrices that both did. What these have in common is taken "
        f"away, and with so few that alone brings strangers to {strangers:.2f}, not to 0.",
    )


def same_initialisation(atlas: AtlasReader, one: ResolvedModel, other: ResolvedModel) -> tuple[str, ...]:
    """A sentence where the LoRA factors of both started from the same random numbers."""
    (mine, others), (theirs, _) = (initialisation_of(atlas, each) for each in (one, other))
    if mine is None or mine != theirs:
        return ()
    beside = others - (other.model_id is not None)
    return (
        f"Both were made with the same initialisation{f', as {beside} others' if beside > 0 else ''}: "
        "one tool, one seed. That says nothing of their data.",
    )
