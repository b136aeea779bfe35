"""What merges that drop entries (TIES, DARE) leave behind: entries of a parent, untouched, times one number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from query.lineage.evidence import SPACING

if TYPE_CHECKING:
    from indexer.records.parts import ModelParts


@dataclass(frozen=True)
class Atom:
    """A fixed multiple of a parent's entries that the asked model holds: ``share`` of those that could tell.

    ``contrast``: how much denser that multiple is than those around it. ``explained``: which entries hold it.
    """

    multiple: float
    share: float
    contrast: float
    explained: NDArray[np.bool_]


# Ratios so near to each other, relatively, count as one.
RATIO_WIDTH = 2e-3
LEAST_RATIOS = 200


class Entries:
    """The asked model entry by entry: what merges that drop entries (TIES, DARE) leave traces in.

    Such a merge holds many of a parent's entries times one number, untouched by the other parents; training leaves no
    two entries in the same ratio.
    """

    def __init__(self, m: ModelParts, base: Mapping[str, NDArray[np.float32]]) -> None:
        self._names, self._base, self._spacing = list(m.deltas), base, SPACING[m.precision]
        self._change = self._changes_of(m)
        self._size = np.concatenate([np.abs(m.weights[name]).ravel() for name in self._names])

    def _changes_of(self, parts: ModelParts) -> NDArray[np.float32]:
        return np.concatenate([(parts.weights[name] - self._base[name]).ravel() for name in self._names])

    def cut(self, deltas: Mapping[str, NDArray[np.float32]], kept: NDArray[np.bool_]) -> dict[str, NDArray[np.float32]]:
        """Deltas with only these entries left, zeros elsewhere."""
        found, start = {}, 0
        for name in self._names:
            size = deltas[name].size
            found[name] = deltas[name] * kept[start : start + size].reshape(deltas[name].shape)
            start += size
        return found

    @property
    def nothing(self) -> NDArray[np.bool_]:
        """Entries that the base has, too, or would have as they are stored."""
        found: NDArray[np.bool_] = np.abs(self._change) <= self._spacing * self._size * 0.51
        return found

    def atom(self, p: ModelParts, left: NDArray[np.bool_]) -> Atom:
        """The commonest ratio of m's entries to p's among those ``left``; only what rounding has left sharp counts."""
        theirs = self._changes_of(p)
        blur = self._spacing * self._size
        sharp = left & (np.abs(theirs) > blur / RATIO_WIDTH) & (np.abs(theirs) > 0.2 * np.median(np.abs(theirs)))
        nobody = Atom(0.0, 0.0, 0.0, np.zeros(len(left), dtype=bool))
        if sharp.sum() < LEAST_RATIOS:
            return nobody
        ratios = np.full(len(left), np.nan)
        np.divide(self._change, theirs, out=ratios, where=sharp)
        logs = np.sort(np.log(ratios[(ratios > 0.02) & (ratios < 8)]))
        if len(logs) < LEAST_RATIOS:
            return nobody
        inside = np.searchsorted(logs, logs + RATIO_WIDTH) - np.arange(len(logs))
        best = int(inside.argmax())
        middle = float(np.median(logs[best : best + inside[best]]))
        around = np.searchsorted(logs, middle + 10 * RATIO_WIDTH) - np.searchsorted(logs, middle - 10 * RATIO_WIDTH)
        background = max((around - inside[best]) / 19, 1.0)
        multiple = float(np.exp(middle))
        explained = left & (np.abs(self._change - multiple * theirs) <= 2 * blur + RATIO_WIDTH * np.abs(theirs))
        return Atom(multiple, float(inside[best] / sharp.sum()), float(inside[best] / background), explained)


def unchanged_share(parts: ModelParts, base: Mapping[str, NDArray[np.float32]]) -> float:
    """The share of entries that are still the base's."""
    return float(Entries(parts, base).nothing.mean())
