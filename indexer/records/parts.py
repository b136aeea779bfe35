"""Parts of one model's block matrices, read to find out where it comes from. Never stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Extent:
    """The leading ``rows`` × ``columns`` of one block matrix, (out, in); ``transposed`` if it is stored (in, out)."""

    rows: int
    columns: int
    transposed: bool = False


@dataclass(frozen=True)
class ModelParts:
    """What was read of one model, by the names of its deltas ("3.query").

    ``weights`` and ``deltas``: float32, (rows, columns) of the part's extent; the delta is against the base rounded as
    in a record. ``precision``: the narrowest dtype that holds its values. ``bytes_read``: from the network or the disk.
    ``tokens``: (tokens, width) float32 rows of the token embeddings; None where there are none of its own.
    """

    weights: Mapping[str, Floats]
    deltas: Mapping[str, Floats]
    precision: str
    bytes_read: int
    is_adapter: bool
    tokens: Floats | None = None
