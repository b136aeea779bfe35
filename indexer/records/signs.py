"""Signs: what the rows of a full checkpoint that are sampled show of how its weights were changed, besides δW itself.

A row of numbers for each matrix, and a few of the whole model. ``indexer.deltas.signs`` measures them while the rows
are in memory; ``indexer.records.kinds`` judges by them. Rows are those of the stored tensor, whole: rows of W, or, of
a matrix that is stored transposed, its columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The columns of ``Signs.matrices``. Shares lie between 0 and 1; W and W₀ are these rows of the model and of its base.
COLUMNS = (
    "cosine",  # of W with W₀
    "change",  # ‖δW‖ / ‖W₀‖
    "zeros",  # share of numbers that are 0 where the base's are clearly not
    "constant",  # share of rows whose numbers are all equal where the base's are not
    "grid",  # share of groups of 32 numbers, few of them 0, that lie on a grid of at most 256 steps, less the base's
    "distinct",  # share of numbers other than 0 that are distinct in their row, or column, by that of the base
    "rounding",  # energy of the rounding of W by that of δW
    "rank",  # rank of δW apart from rounding
    "full_rank",  # the largest rank that it could have
    "leading",  # share of the energy of δW in its first singular value
    "edge",  # largest eigenvalue of δW δWᵀ by that of a matrix of independent numbers of the same energy
    "tail",  # the same of the median eigenvalue
    "row_spread",  # variance of the energies of rows of δW by that of independent normal numbers
    "scalar",  # energy of what is left of δW without a multiple of W₀, by that of δW
    "columns",  # the same without a multiple of each column of these rows
    "rows",  # the same without a multiple of each row
    "sorted",  # energy of the difference of the sorted numbers of each row by that of δW
    "weight_edge",  # as edge, of W itself; 0 where W is like W₀
    "layer",  # the base's layer whose same rows are most like W
    "layer_cosine",  # their cosine; 0 where W is like W₀
    "matched",  # mean cosine of rows of W with the base's row that is most like each; 0 where W is like W₀
    "agreement",  # mean |cosine| of the first left singular vector with those of other writing matrices of δW
)
NUMBERS: Mapping[str, int] = {name: number for number, name in enumerate(COLUMNS)}


@dataclass(frozen=True)
class Signs:
    """The signs of one full checkpoint.

    Attributes:
        matrices: (K, len(COLUMNS)) float32, in the order of the record's deltas.
        reset_tokens: how many rows of its token embedding, among those that are sampled, have nothing in common with
            the base's; None where that cannot be compared.
        rearranged: the statistic of ``indexer.deltas.weight_match`` that recognises the base's weights, if other places
            or scales hide them; "" if that was not asked, or none does.
        rearranged_effect: its effect, from 0 (of unrelated weights) to 1 (of the base itself).
    """

    matrices: NDArray[np.float32]
    reset_tokens: int | None = None
    rearranged: str = ""
    rearranged_effect: float = 0.0

    def column(self, name: str) -> NDArray[np.float32]:
        """(K,) one of COLUMNS."""
        return self.matrices[:, NUMBERS[name]]

    def as_row(self) -> dict[str, Any]:
        """All but the matrices, as JSON."""
        return {name: getattr(self, name) for name in ("reset_tokens", "rearranged", "rearranged_effect")}
