"""How similar two models are, block by block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from indexer.names import DeltaKey

if TYPE_CHECKING:
    from query.reader import AtlasReader

Vector = NDArray[np.float32]


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
