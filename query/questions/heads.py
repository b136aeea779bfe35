"""How a change is spread over the attention heads of a matrix, compared with a matrix without heads.

A head owns as many rows of the query, key and value matrices, and as many columns of the output matrix. Of
δW = U diag(σ) Vᵀ the rows of head h have the squared norm Σ_i σ_i² ‖U_h,i‖², and the columns Σ_i σ_i² ‖V_h,i‖².
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

    ``norms``: of each head's part of δW, as far as the kept singular values hold it. ``effective``: 1/Σ share², of
    the heads' shares of the squared norm: as many heads as this, all alike, have the same sum; from 1 to their number.
    ``chance``: its mean if the matrix is rotated at random, so that heads mean nothing; ``p_value``: the share of
    rotations, and of the matrix itself, that are at least as uneven.
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
    """The changed attention matrices of a record, if every head of them was read, in the order of the base.

    ``config``: config.json of the base. Empty if it does not say how many heads there are, or factors are not kept.
    Under the null, U (or V) times a random rotation from the left: r orthonormal columns, drawn uniformly.
    """
    inner = config.get("text_config")
    sources = [config, *([inner] if isinstance(inner, Mapping) else [])]
    counts = [source.get(name) for source in sources for name in _COUNTS]
    heads = next((count for count in counts if type(count) is int and 0 < count <= 4096), None)
    queries = {(one.key.stack, one.key.layer, _bare(one)): one.shape[0] for one in record.deltas}
    found = []
    for number, delta in enumerate(record.deltas):
        family = _bare(delta)
        wide = queries.get((delta.key.stack, delta.key.layer, "query"))
        if heads is None or family not in _SIDES or not wide or wide % heads or not delta.norm:
            continue
        side, lines = _side(delta, _SIDES[family])
        length = delta.shape[0 if _SIDES[family] == "rows" else 1]
        width = wide // heads  # of a head; there may be fewer of key and value
        if side is None or length % width or length == width:
            continue
        owner = lines // width
        read = np.bincount(owner, minlength=length // width)
        if not read.all():  # of a sample
            continue
        squares = np.square(delta.s, dtype=np.float64)
        rng = np.random.default_rng(number)
        drawn = [np.linalg.qr(rng.standard_normal(side.shape))[0] for _ in range(_ROTATIONS)]
        # (1 + rotations, heads): the mean of the rows that were read stands for all rows of a head.
        shares = np.array([np.bincount(owner, np.square(one) @ squares) / read for one in (side, *drawn)])
        shares /= shares.sum(axis=1, keepdims=True)
        effective = 1 / np.square(shares).sum(axis=1)
        kept = min(delta.norm, float(np.sqrt(squares.sum())))
        found.append(
            HeadChange(
                stack=delta.key.stack,
                layer=delta.key.layer,
                family=delta.key.family,
                norms=tuple((kept * np.sqrt(shares[0])).tolist()),
                effective=float(effective[0]),
                chance=float(effective[1:].mean()),
                p_value=float((1 + (effective[1:] <= effective[0]).sum()) / (1 + _ROTATIONS)),
            )
        )
    return tuple(found)


def uneven_heads(heads: Sequence[HeadChange]) -> tuple[int, float]:
    """How many matrices have a p of at most .05, and how many do on average by chance."""
    most = math.floor(_UNCOMMON * (1 + _ROTATIONS))  # rotations, the matrix itself included
    return sum(one.p_value <= _UNCOMMON for one in heads), len(heads) * most / (1 + _ROTATIONS)


def _bare(delta: DeltaRecord) -> str:
    return delta.key.family.removeprefix("cross_")


def _side(delta: DeltaRecord, which: str) -> tuple[NDArray[np.float64] | None, NDArray[np.int64]]:
    """(n, r) the rows of U (or V) that were read, and their numbers (n,); None if they are not kept."""
    if which == "columns":
        factor, is_part = delta.v, delta.transposed
    else:
        factor, is_part = (delta.u_rows, not delta.transposed) if delta.u is None else (delta.u, False)
    length = delta.shape[0 if which == "rows" else 1]
    if factor is None:
        return None, np.arange(0)
    lines = lines_of(length, delta.lines) if is_part and delta.lines is not None else np.arange(length)
    rows = factor[lines] if len(factor) == length else factor
    is_whole = rows.shape == (len(lines), len(delta.s)) and len(lines) >= len(delta.s)
    return (rows.astype(np.float64) if is_whole else None), lines
