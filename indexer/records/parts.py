"""Parts of one model's block matrices, read to find out where it comes from. Never stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Extent:
    """The leading ``rows`` × ``columns`` of one block matrix, (out, in); ``transposed`` if it is stored (in, out)."""

    rows: int
    columns: int
    transposed: bool = False


@dataclass(frozen=True, eq=False)
class LoraFactors:
    """The factors of a LoRA on one whole matrix, as stored: ``a`` (r, in), ``b`` (out, r); its change is scale · b a.

    ``precision``: the narrowest dtype that holds them.
    """

    a: Floats
    b: Floats
    scale: float
    precision: str


@dataclass(frozen=True)
class ModelParts:
    """Weights and deltas read of one model, by the names of its deltas ("3.query").

    ``weights`` and ``deltas``: float32, (rows, columns) of the part's extent; the delta is against the base rounded as
    in a record. ``precision``: the narrowest dtype that holds its values. ``bytes_read``: from the network or the disk.
    ``tokens``: (tokens, width) float32 rows of the token embeddings; None where there are none of its own.

    For an adapter, ``own`` is its own change, which differs from ``deltas`` if it was trained on another model than the
    base; ``factors`` are those of a LoRA that began with a random A and B = 0. Both are empty for other models.
    """

    weights: Mapping[str, Floats]
    deltas: Mapping[str, Floats]
    precision: str
    bytes_read: int
    is_adapter: bool
    tokens: Floats | None = None
    own: Mapping[str, Floats] = field(default_factory=dict)
    factors: Mapping[str, LoraFactors] = field(default_factory=dict)

    def on(self, below: ModelParts) -> ModelParts:
        """An adapter's parts on the model ``below`` instead of on the base: the sum of both changes."""
        weights = {name: below.weights[name] + change for name, change in self.own.items()}
        deltas = {name: below.deltas[name] + change for name, change in self.own.items()}
        return replace(self, weights=weights, deltas=deltas)
