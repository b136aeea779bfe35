"""How a change is spread over the attention heads of a matrix, compared with random rotations of the matrix.

Each head has an equal share of the rows of the query, key and value matrices, and of the columns of the output matrix.
With δW = U diag(σ) Vᵀ, the rows of head h have the squared norm Σ_i σ_i² ‖U_h,i‖², and its columns Σ_i σ_i² ‖V_h,i‖².
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from indexer.records.row_plan import lines_of
from query.contract.columns import FAMILY, LAYER, STACK
from query.contract.results import Doc

if TYPE_CHECKING:
    from indexer.records.record import DeltaRecord, Record

_ROTATIONS = 200
_UNCOMMON = 0.05
_COUNTS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads")
_SIDES = {"query": "rows", "key": "rows", "value": "rows", "output": "columns"}


@dataclass(frozen=True)
class HeadChange:
    """The change of one attention matrix by head.

    Attributes:
        norms: the norm of each head's part of δW, within the kept singular values.
        effective: the effective number of changed heads, 1/Σ share² over the heads' shares of the squared norm; from 1
            to the number of heads, which it is if all heads changed alike.
        chance: the mean of ``effective`` over random rotations of the matrix, where heads have no meaning.
        p_value: the share of rotations, the matrix itself included, that are at least as uneven.
    """

    stack: Annotated[str, STACK]
    layer: Annotated[int, LAYER]
    family: Annotated[str, FAMILY]
    norms: Annotated[tuple[float, ...], Doc("Norm of each head's part of the change.")]
    effective: Annotated[
        float,
        Doc(
            "Effective number of changed heads, 1/Σ share²: 1 if one head has all of the change, the number of "
            "heads if all changed alike."
        ),
    ]
    chance: Annotated[
        float, Doc("Mean of effective if the matrix is rotated at random, so that heads have no meaning.")
    ]
    p_value: Annotated[
        float, Doc("Share of 200 random rotations, and of the matrix itself, that are at least as uneven.")
    ]


def changes_by_head(record: Record, config: Mapping[str, Any]) -> tuple[HeadChange, ...]:
    """The changed attention matrices of a record with rows of every head, in the order of the base.

    Empty if ``config``, config.json of the base, lacks the number of heads, or if factors are not kept. The null
    replaces U (or V) by a random rotation of it: r orthonormal columns, drawn uniformly.
    """
    inner = config.get("text_config")
    sources = [config, *([inner] if isinstance(inner, Mapping) else [])]
    counts = [source.get(name) for source in sources for name in _COUNTS]
    heads = next((count for count in counts if type(count) is int and 0 < count <= 4096), None)
    queries = {(delta.key.stack, delta.key.layer, _bare(delta)): delta.shape[0] for delta in record.deltas}
    changes = []
    for number, delta in enumerate(record.deltas):
        family = _bare(delta)
        all_heads_width = queries.get((delta.key.stack, delta.key.layer, "query"))
        if heads is None or family not in _SIDES or not all_heads_width or all_heads_width % heads or not delta.norm:
            continue
        side, lines = _side(delta, _SIDES[family])
        length = delta.shape[0 if _SIDES[family] == "rows" else 1]
        width = all_heads_width // heads  # of a head; keys and values may have fewer heads
        if side is None or length % width or length == width:
            continue
        owner = lines // width
        rows_read = np.bincount(owner, minlength=length // width)
        if not rows_read.all():  # a sample lacks some heads
            continue
        squares = np.square(delta.s, dtype=np.float64)
        rng = np.random.default_rng(number)
        rotations = [np.linalg.qr(rng.standard_normal(side.shape))[0] for _ in range(_ROTATIONS)]
        # (1 + rotations, heads): the mean over the rows that were read estimates that over all rows of a head.
        shares = np.array([np.bincount(owner, np.square(basis) @ squares) / rows_read for basis in (side, *rotations)])
        shares /= shares.sum(axis=1, keepdims=True)
        effective = 1 / np.square(shares).sum(axis=1)
        norm = min(delta.norm, float(np.sqrt(squares.sum())))
        changes.append(
            HeadChange(
                stack=delta.key.stack,
                layer=delta.key.layer,
                family=delta.key.family,
                norms=tuple((norm * np.sqrt(shares[0])).tolist()),
                effective=float(effective[0]),
                chance=float(effective[1:].mean()),
                p_value=float((1 + (effective[1:] <= effective[0]).sum()) / (1 + _ROTATIONS)),
            )
        )
    return tuple(changes)


def uneven_heads(heads: Sequence[HeadChange]) -> tuple[int, float]:
    """The number of matrices with p ≤ .05, and the number expected by chance."""
    most = math.floor(_UNCOMMON * (1 + _ROTATIONS))  # rotations, the matrix itself included
    return sum(change.p_value <= _UNCOMMON for change in heads), len(heads) * most / (1 + _ROTATIONS)


def _bare(delta: DeltaRecord) -> str:
    return delta.key.family.removeprefix("cross_")


def _side(delta: DeltaRecord, axis: str) -> tuple[NDArray[np.float64] | None, NDArray[np.int64]]:
    """The rows of U (or V) that were read (n, r), None if they are not kept; and their numbers (n,)."""
    if axis == "columns":
        factor, is_part = delta.v, delta.transposed
    else:
        factor, is_part = (delta.u_rows, not delta.transposed) if delta.u is None else (delta.u, False)
    length = delta.shape[0 if axis == "rows" else 1]
    if factor is None:
        return None, np.arange(0)
    lines = lines_of(length, delta.lines) if is_part and delta.lines is not None else np.arange(length)
    rows = factor[lines] if len(factor) == length else factor
    is_whole = rows.shape == (len(lines), len(delta.s)) and len(lines) >= len(delta.s)
    return (rows.astype(np.float64) if is_whole else None), lines
