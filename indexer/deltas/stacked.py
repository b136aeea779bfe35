"""Deltas of an adapter that was trained on another model than the base: δW = δW(parent) + δW(adapter).

They are computed exactly from the checkpoints. If the parent is a fine-tune, the adapter's change is added to its
dense difference from the base. If it is another adapter, the factors are joined, so that the sum is a product of
factors, too. A change that depends on the weights is computed from those of the parent. If the parent's checkpoint can
no longer be read, the factors of its record are used: they are exact in the leading triplets, and the other part of its
change counts only in the norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from indexer.checkpoints.checkpoint import Checkpoint, open_checkpoint
from indexer.deltas.adapter_deltas import WeightDelta, deltas_on, dense
from indexer.deltas.base import BaseMatrices
from indexer.deltas.delta import DenseDelta, LoraDelta, dense_deltas, layout_against, sampled_deltas
from indexer.errors import Failed, Skipped
from indexer.names import DeltaKey
from indexer.records.identity import ModelVersion
from indexer.records.record import Record
from indexer.records.row_plan import lines_of

# A model whose weights have a smaller cosine with the base's is not made from the base, as for full fine-tunes.
_UNRELATED_BELOW = 0.3
# Check the relation only after this many matrices: a single one may have been reinitialised.
_FEWEST_MATRICES = 4

# Reasons that show that a checkpoint does not belong to this base.
_OF_ANOTHER_SHAPE = frozenset({"shape_mismatch", "layer_mismatch", "missing_matrices", "unknown_architecture"})


class ForeignParent(Exception):
    """The adapter's parent is not made from the base."""


class UnreadableParent(Exception):
    """The adapter's parent can never be read at this commit, so it is unknown whether it is made from the base."""


@dataclass
class StackedAdapter:
    """An adapter's checkpoint and its parent. ``bytes_read``: of the parent, so far."""

    checkpoint: Checkpoint
    parent: ModelVersion
    base: BaseMatrices
    bytes_read: int = 0
    _norms: list[tuple[float, float, float]] = field(default_factory=list)

    def deltas(
        self, ahead_bytes: int, *, with_weights: bool, sample_connections: int = 0
    ) -> Iterator[DenseDelta | LoraDelta]:
        """Stream the sums. Unchanged matrices may be left out.

        ``sample_connections``: over how many connections a sample of a parent that is a fine-tune is read; 0 to read
        all of it.

        Raises ForeignParent and UnreadableParent, also after some deltas; Skipped for problems of the adapter itself;
        Failed if a retry may work.
        """
        # The changes of every adapter, the lowest last.
        changes = [by_key(deltas_on(self.checkpoint, self.base, on_base=False))]
        below: ModelVersion | None = self.parent
        while below is not None and below.relation == "adapter":
            checkpoint = _opened(below, self.base)
            try:
                is_lowest = below.parent is None
                changes.append(by_key(deltas_on(checkpoint, self.base, on_base=is_lowest)))
            except Skipped as reason:
                if reason.reason == "base_sampled":
                    raise
                raise _parent_error(reason, below) from reason
            finally:
                self.bytes_read += checkpoint.bytes_read
                checkpoint.close()
            below = below.parent
        if below is None:
            for key in dict.fromkeys(key for part in changes for key in part):
                parts = [part[key] for part in changes if key in part]
                factors = [part for part in parts if isinstance(part, LoraDelta)]
                if len(factors) == len(parts):
                    yield _joined(factors)
                else:
                    yield _summed(parts, self.base, with_weights=with_weights)
        else:
            if any(isinstance(change, WeightDelta) for part in changes for change in part.values()):
                sample_connections = 0  # such a change needs all rows of the parent
            yield from self._on(below, changes, ahead_bytes, with_weights, sample_connections)

    def _on(
        self,
        parent: ModelVersion,
        changes: list[dict[DeltaKey, LoraDelta | WeightDelta]],
        ahead_bytes: int,
        with_weights: bool,
        sample_connections: int,
    ) -> Iterator[DenseDelta]:
        checkpoint = _opened(parent, self.base)
        try:
            layout = layout_against(checkpoint, self.base)
            stream: Iterable[DenseDelta]
            if sample_connections:
                stream, _ = sampled_deltas(checkpoint, layout, self.base, sample_connections)
            else:
                stream = dense_deltas(checkpoint, layout, self.base, ahead_bytes, with_weights=with_weights)
            for delta in stream:
                self._check_relation(delta, parent, is_last=len(self._norms) + 1 == len(layout.matrices))
                parts = [part[delta.key] for part in changes if delta.key in part]
                yield _added(delta, parts, self.base) if parts else delta
        except Skipped as reason:
            if isinstance(reason, _AdapterOverflows) or reason.reason == "base_sampled":
                raise
            raise _parent_error(reason, parent) from reason
        finally:
            self.bytes_read += checkpoint.bytes_read
            checkpoint.close()

    def _check_relation(self, delta: DenseDelta, parent: ModelVersion, is_last: bool) -> None:
        """Raise ForeignParent as soon as the weights show that the parent is not made from the base."""
        lines = self.base.layout.by_key[delta.key].lines
        share = (delta.lines or lines) / lines
        self._norms.append((self.base.norms[delta.key] ** 2, delta.inner / share, delta.norm**2 / share))
        if len(self._norms) < _FEWEST_MATRICES and not is_last:
            return
        square, inner, change = (math.fsum(column) for column in zip(*self._norms, strict=True))
        length = math.sqrt(square * max(square + 2 * inner + change, 0.0))
        if not length or (square + inner) / length < _UNRELATED_BELOW:
            raise ForeignParent(f"the weights of {parent.model.id} are not made from the base's")


def on_record(checkpoint: Checkpoint, base: BaseMatrices, parent_record: Record) -> Iterator[tuple[LoraDelta, float]]:
    """The sums with the deltas of the parent's record: products of factors, and the norm of the rest of each delta.

    Raises UnreadableParent if the record holds no factors; Skipped for problems of the adapter itself.
    """
    loras: dict[DeltaKey, LoraDelta] = {}
    for key, delta in by_key(deltas_on(checkpoint, base, on_base=False)).items():
        if isinstance(delta, WeightDelta):
            raise UnreadableParent(f"the change of {key} depends on the weights of {parent_record.identity.model}")
        loras[key] = delta
    for stored in parent_record.deltas:
        if stored.u is None or stored.v is None:
            raise UnreadableParent(f"the record of {parent_record.identity.model} holds no factors")
        left = torch.from_numpy(stored.u.astype(np.float32) * stored.s)
        right = torch.from_numpy(stored.v.astype(np.float32).T.copy())
        part = LoraDelta(stored.key, right, left, 1.0)
        residual = max(stored.norm**2 - float(np.square(stored.s, dtype=np.float64).sum()), 0.0)
        yield _joined([loras[stored.key], part]) if stored.key in loras else part, math.sqrt(residual)


class _AdapterOverflows(Skipped):
    """The adapter's own factors are the problem, not its parent."""


def _opened(parent: ModelVersion, base: BaseMatrices) -> Checkpoint:
    reference = base.reference(parent.model, parent.filenames)
    try:
        checkpoint = open_checkpoint(
            reference, commit=parent.commit, filenames=parent.filenames, relation=parent.relation
        )
    except Skipped as reason:
        raise _parent_error(reason, parent) from reason
    except Failed as problem:
        if problem.reason != "not_found":
            raise
        raise UnreadableParent(f"{parent.model.id}: {problem.detail}") from problem
    if checkpoint.kind != ("adapter" if parent.relation == "adapter" else "full"):
        checkpoint.close()
        raise UnreadableParent(f"{parent.model.id} holds other weights than its listing says")
    return checkpoint


def _parent_error(reason: Skipped, parent: ModelVersion) -> ForeignParent | UnreadableParent:
    kind = ForeignParent if reason.reason in _OF_ANOTHER_SHAPE else UnreadableParent
    return kind(f"{parent.model.id}: {reason.detail}")


def by_key(deltas: Iterator[LoraDelta | WeightDelta]) -> dict[DeltaKey, LoraDelta | WeightDelta]:
    """The changes of one adapter by matrix. Raises Skipped("malformed") if one is changed twice."""
    return {delta.key: delta for delta in once(deltas)}


def once(deltas: Iterator[LoraDelta | WeightDelta]) -> Iterator[LoraDelta | WeightDelta]:
    """The same stream. Raises Skipped("malformed") if a matrix is changed twice."""
    seen: set[DeltaKey] = set()
    for delta in deltas:
        if delta.key in seen:
            raise Skipped("malformed", f"the adapter changes the matrix {delta.key} twice")
        seen.add(delta.key)
        yield delta


def _joined(parts: list[LoraDelta]) -> LoraDelta:
    """The sum of products as one product, with concatenated factors."""
    if len(parts) == 1:
        return parts[0]
    a = torch.cat([part.a for part in parts])
    b = torch.cat([part.b * part.scale for part in parts], dim=1)
    return replace(parts[0], a=a, b=b, scale=1.0)


def _summed(parts: Sequence[LoraDelta | WeightDelta], base: BaseMatrices, *, with_weights: bool) -> DenseDelta:
    """The sum of the changes of adapters on adapters, the lowest last, if some depend on the weights."""
    weight, below = base.matrix(parts[0].key), None
    for part in reversed(parts):
        if isinstance(part, LoraDelta):
            part = WeightDelta(part.key, _product(part))
        total = dense(part, weight, below, with_weights=with_weights)
        below = total.matrix
    return total


def _product(delta: LoraDelta) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda weight: delta.scale * (delta.b @ delta.a)


def _added(delta: DenseDelta, parts: Sequence[LoraDelta | WeightDelta], base: BaseMatrices) -> DenseDelta:
    """Add the adapters' changes to the fine-tune's, in place; the lowest adapter is the last."""
    matrix = base.layout.by_key[delta.key]
    lines_read = None if delta.lines is None else lines_of(matrix.lines, delta.lines)
    for part in reversed(parts):
        if isinstance(part, WeightDelta):
            change = part.change(delta.matrix + base.matrix(delta.key).to(torch.float32))
            delta.matrix.add_(change)
            if delta.weight is not None:
                delta.weight.add_(change)
            continue
        a = part.a[:, lines_read] if lines_read is not None and matrix.transposed else part.a
        b = part.b[lines_read] if lines_read is not None and not matrix.transposed else part.b
        delta.matrix.addmm_(b, a, alpha=part.scale)
        if delta.weight is not None:
            delta.weight.addmm_(b, a, alpha=part.scale)
    reference = base.matrix(delta.key) if lines_read is None else base.lines(delta.key, lines_read)
    norm = float(torch.linalg.vector_norm(delta.matrix))
    inner = float(torch.dot(delta.matrix.flatten(), reference.to(torch.float32).flatten()))
    if not (math.isfinite(norm) and math.isfinite(inner)):
        raise _AdapterOverflows("not_finite", f"the adapter's delta of {delta.key} overflows")
    return replace(delta, norm=norm, inner=inner)
