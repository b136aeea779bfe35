"""Weights of the base in other places of a checkpoint: layers moved, weights rearranged.

Only models that cannot be compared as they stand are looked at: of another depth, or unlike the base in most matrices.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from indexer.checkpoints.checkpoint import Checkpoint
from indexer.deltas.base import BaseMatrices
from indexer.deltas.identification.rows import SampledRows
from indexer.errors import Skipped

_MOST_LAYERS = 256
# Layers are recognised if the weights of the nearest ones are so much of the base's own, between 0 and 1.
_LEAST_STRENGTH = 0.4


def moved_layers(checkpoint: Checkpoint, base: BaseMatrices) -> tuple[int, ...]:
    """For each layer of a checkpoint of another depth the base's layer that it is; () if they are not the base's."""
    with suppress(Skipped):
        match = SampledRows(checkpoint, _MOST_LAYERS).compare(base).match
        nearest = [match.nearest_layers[layer] for layer in sorted(match.nearest_layers)]
        if match.statistic == "rows" and match.strength >= _LEAST_STRENGTH and nearest:
            return tuple(nearest)
    return ()


def rearranged(checkpoint: Checkpoint, base: BaseMatrices) -> tuple[str, float]:
    """What was done to the base's weights besides training, in words, and its effect between 0 and 1.

    ("", 0.0) if they are not the base's, or stand where the base has them.
    """
    with suppress(Skipped):
        match = SampledRows(checkpoint).compare(base).match
        if match.is_match and match.statistic != "rows":
            return match.meaning, float(np.clip(match.strength, 0.0, 1.0))
    return "", 0.0
