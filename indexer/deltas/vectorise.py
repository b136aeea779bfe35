"""One unit of work: compute the record of one model at one commit against one base.

It is a pure function of (model@commit, base@commit, spec): it reads weights, uses no database, and can run in any
process on any machine that has the base's matrices.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.architectures.layout import Layout, Matrix
from indexer.cards.local import without_paths
from indexer.cards.modelcard import head_facts
from indexer.deltas.base import BaseMatrices
from indexer.deltas.delta import DenseDelta, LoraDelta, dense_deltas, layout_against, lora_deltas
from indexer.deltas.rounding import RoundingChoice
from indexer.deltas.spectra import Spectra
from indexer.deltas.stacked import ForeignParent, StackedAdapter, UnreadableParent, by_key, on_record
from indexer.deltas.svd import Factors, lora_svd, truncated_svd
from indexer.errors import Failed, Skipped
from indexer.listing.parents import Parents
from indexer.listing.untagged import YES, path_verdict
from indexer.names import DeltaKey
from indexer.network.hub import model_row
from indexer.records.identity import ROW_NAMES, AdapterBase, Parent, Traffic, Unit
from indexer.records.record import DeltaRecord, FusedMatrixRecord, Record, StoredFile
from indexer.records.representation import representation_named
from indexer.records.row_space import row_space, row_space_of
from indexer.untrusted import printable
from indexer.weights.adapter import factor_names
from indexer.weights.checkpoint import Checkpoint, open_checkpoint

_APPROXIMATE = "approximate, from the leading triplets in its record: {}"

# float32, in which norms and singular values are kept, ends at 2¹²⁸; sums over matrices have to fit, too.
LARGEST_NORM = 2.0**120


def vectorise(
    unit: Unit,
    base: BaseMatrices,
    conversion: Callable[[], str | None] | None = None,
    *,
    ahead_bytes: int = 0,
    traffic: Traffic | None = None,
    parent_record: Callable[[Parent], Record | None] | None = None,
) -> Record:
    """Do one unit of work.

    ``conversion`` returns a revision with a safetensors conversion; it is called only if the model has nothing but
    pickles. ``ahead_bytes`` may be fetched ahead of the SVD; this changes the time, not the record. ``traffic``
    receives what was read, also after an error. ``parent_record`` returns the record of an adapter's parent; it is
    called only if the parent's checkpoint can no longer be read. With one torch thread, which the caller sets, the
    same input gives the same record. Raises Skipped if this commit can never become a record, Failed if a retry may
    work.
    """
    started = time.perf_counter()
    identity = unit.identity
    stack: StackedAdapter | None = None
    checkpoint = open_checkpoint(
        unit.model,
        commit=unit.commit,
        filenames=unit.filenames,
        relation=unit.relation,
        conversion=conversion,
    )
    try:
        layout = None if checkpoint.kind == "adapter" else layout_against(checkpoint, base)
        roundings = RoundingChoice()
        sampled = Sampled()
        spaces: Spaces = {}
        adapter_base: AdapterBase | None = None
        if layout is None:
            planned, unit = unit, _by_its_file(unit, checkpoint)
            adapter_base = _adapter_base(unit, checkpoint, planned)
            stack = StackedAdapter(checkpoint, unit.parent, base) if unit.parent else None
        try:
            deltas, fused_matrices = _delta_records(
                unit, checkpoint, layout, base, ahead_bytes, roundings, sampled, spaces, stack
            )
        except (ForeignParent, UnreadableParent) as problem:
            summed, adapter_base = _without_parent(problem, unit, checkpoint, base, adapter_base, parent_record)
            if summed is not None:
                deltas, fused_matrices = summed, ()
                spaces.clear()
            else:
                spaces.clear()
                deltas, fused_matrices = _delta_records(
                    unit, checkpoint, layout, base, ahead_bytes, roundings, sampled, spaces
                )
        record = Record(
            identity=identity,
            deltas=deltas,
            fused_matrices=fused_matrices,
            sample=sampled.values_of(deltas),
            moved=sampled.moved,
            row_space=row_space(spaces, [delta.key for delta in deltas]) if spaces else None,
            precision=roundings.widest,
            files=tuple(StoredFile(facts.name, facts.size, facts.sha256, facts.format) for facts in checkpoint.files),
            head=asdict(head_facts(checkpoint.config)),
            card=dict(unit.card or {}),
            dtype=_dtype_of(checkpoint),
            device=unit.device,
            threads=torch.get_num_threads(),
            adapter_base=adapter_base,
            bytes_read=checkpoint.bytes_read + (stack.bytes_read if stack else 0),
            block_bytes=_block_bytes(checkpoint, layout),
            seconds=time.perf_counter() - started,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
    finally:
        if traffic is not None:
            traffic.read, traffic.total = checkpoint.bytes_read, sum(facts.size for facts in checkpoint.files)
            traffic.read += stack.bytes_read if stack else 0
        checkpoint.close()
    return _with_vectors(record, unit)


def _without_parent(
    problem: ForeignParent | UnreadableParent,
    unit: Unit,
    checkpoint: Checkpoint,
    base: BaseMatrices,
    said: AdapterBase | None,
    parent_record: Callable[[Parent], Record | None] | None,
) -> tuple[tuple[DeltaRecord, ...] | None, AdapterBase]:
    """The deltas of an adapter from its parent's record (None if there is none), and its updated base.

    For an adapter whose parent's checkpoint cannot be used.
    """
    below = None
    if isinstance(problem, UnreadableParent) and parent_record and unit.parent and not unit.spec.spectra:
        below = parent_record(unit.parent)
    said = said or AdapterBase("", "")
    if below is not None and all(delta.u is not None for delta in below.deltas):
        return _on_record(unit, checkpoint, base, below), replace(
            said, why=_APPROXIMATE.format(printable(str(problem), 300))
        )
    verdict = "foreign" if isinstance(problem, ForeignParent) else "unknown"
    why = f"{said.why}; {problem}" if said.why else str(problem)
    return None, replace(said, verdict=verdict, why=printable(why, 500))


# An orthonormal basis (in, k) of the space that the rows of each matrix's factor A span.
Spaces = dict[DeltaKey, NDArray[np.float64]]


@dataclass
class Sampled:
    """A sample of a full checkpoint's weights (``indexer.records.weight_sample``), collected matrix by matrix."""

    values: dict[DeltaKey, NDArray[np.float32]] = field(default_factory=dict)
    moved: int = 0

    def add(self, delta: DenseDelta) -> None:
        """Add one matrix."""
        self.values[delta.key] = delta.sample.numpy()
        self.moved += delta.moved

    def values_of(self, deltas: Sequence[DeltaRecord]) -> NDArray[np.float32] | None:
        """The sampled weights in the order of ``deltas``, (n,); None for an adapter."""
        return np.concatenate([self.values[delta.key] for delta in deltas]) if self.values else None


def _delta_records(
    unit: Unit,
    checkpoint: Checkpoint,
    layout: Layout | None,
    base: BaseMatrices,
    ahead_bytes: int,
    roundings: RoundingChoice,
    sampled: Sampled,
    spaces: Spaces,
    stack: StackedAdapter | None = None,
) -> tuple[tuple[DeltaRecord, ...], tuple[FusedMatrixRecord, ...]]:
    """All deltas in the order of the base's layout (zero where an adapter changes nothing), and the fused matrices."""
    spectra = Spectra(base, unit.device) if unit.spec.spectra else None
    found: dict[DeltaKey, DeltaRecord] = {}
    if layout is None:
        own = by_key(lora_deltas(checkpoint, base)).values() if stack is None else ()
        for delta in own if stack is None else stack.deltas(ahead_bytes, with_weights=spectra is not None):
            if isinstance(delta, LoraDelta):
                found[delta.key] = _from_lora(unit, delta, base, spectra, spaces)
            else:
                found[delta.key] = _from_dense(unit, delta, base, spectra)
        if not found:
            raise Skipped("missing_matrices", "the adapter changes no block matrix of the base")
    else:
        stream = dense_deltas(
            checkpoint, layout, base, ahead_bytes, with_weights=spectra is not None, roundings=roundings
        )
        for dense in stream:
            found[dense.key] = _from_dense(unit, dense, base, spectra)
            sampled.add(dense)
    deltas = tuple(found.get(matrix.key) or _untouched(unit, matrix, base, spectra) for matrix in base.layout.matrices)
    return deltas, spectra.fused_matrices() if spectra else ()


def _on_record(unit: Unit, checkpoint: Checkpoint, base: BaseMatrices, below: Record) -> tuple[DeltaRecord, ...]:
    """All deltas of an adapter on a model that is known only from its record."""
    found = {}
    for delta, rest in on_record(checkpoint, base, below):
        made = _from_lora(unit, delta, base, None, {})
        found[delta.key] = replace(made, norm=float(np.hypot(made.norm, rest)))
    return tuple(found.get(matrix.key) or _untouched(unit, matrix, base, None) for matrix in base.layout.matrices)


def _from_dense(unit: Unit, delta: DenseDelta, base: BaseMatrices, spectra: Spectra | None) -> DeltaRecord:
    matrix = delta.matrix if unit.device == "cpu" else delta.matrix.to(unit.device)
    factors = truncated_svd(matrix, unit.spec.rank, _seed(unit, delta.key), delta.norm)
    shape = (matrix.shape[0], matrix.shape[1])
    found = _delta_record(delta.key, shape, factors, delta.norm, delta.inner, base, delta.transposed)
    return _with_spectra(found, delta, spectra)


def _from_lora(
    unit: Unit, delta: LoraDelta, base: BaseMatrices, spectra: Spectra | None, spaces: Spaces
) -> DeltaRecord:
    a, b = (factor.to(unit.device) for factor in (delta.a, delta.b))
    factors = lora_svd(a, b, delta.scale, unit.spec.rank)
    if factors.rows is not None:
        spaces[delta.key] = factors.rows.cpu().numpy()
    shape = (b.shape[0], a.shape[1])
    found = _delta_record(delta.key, shape, factors, factors.norm, 0.0, base, delta.transposed)
    return _with_spectra(found, delta, spectra)


def _untouched(unit: Unit, matrix: Matrix, base: BaseMatrices, spectra: Spectra | None) -> DeltaRecord:
    (rows, columns), rank = matrix.shape, unit.spec.rank
    zeros = Factors(torch.zeros(rows, rank), torch.zeros(rank), torch.zeros(columns, rank))
    found = _delta_record(matrix.key, matrix.shape, zeros, 0.0, 0.0, base, matrix.transposed)
    return replace(found, weights=spectra.of_untouched(matrix.key)) if spectra else found


def _with_spectra(found: DeltaRecord, delta: DenseDelta | LoraDelta, spectra: Spectra | None) -> DeltaRecord:
    if spectra is None:
        return found
    changes, weights = spectra.of(delta)
    return replace(found, spectrum=changes, weights=weights)


def _delta_record(
    key: DeltaKey,
    shape: tuple[int, int],
    factors: Factors,
    norm: float,
    inner: float,
    base: BaseMatrices,
    transposed: bool,
) -> DeltaRecord:
    relative = norm / base.norms[key] if base.norms[key] else 0.0
    if not (norm <= LARGEST_NORM and relative <= LARGEST_NORM):  # also refuses NaN
        raise Skipped("not_finite", f"the change of the matrix {key} is beyond float32 (its norm is {norm:.2g})")
    return DeltaRecord(
        key=key,
        shape=shape,
        norm=norm,
        base_norm=base.norms[key],
        inner=inner,
        s=factors.s.cpu().numpy().astype(np.float32),
        u=factors.u.cpu().numpy().astype(np.float16),
        v=factors.v.cpu().numpy().astype(np.float16),
        transposed=transposed,
    )


def _with_vectors(record: Record, unit: Unit) -> Record:
    """Compute the requested vectors, then drop the factors unless they are to be kept."""
    wanted = [representation_named(name, unit.vector_length) for name in unit.representations]
    vectors = {representation.tag: representation.of(record) for representation in wanted}
    space = row_space_of(record)
    deltas = record.deltas
    if not unit.keep_factors:
        deltas = tuple(replace(delta, u=None, v=None) for delta in deltas)
    return replace(record, vectors=vectors, deltas=deltas, row_space=space)


def _by_its_file(unit: Unit, checkpoint: Checkpoint) -> Unit:
    """The unit with the parent that the adapter's own file names, if the listing row named something else.

    Raises Failed if the Hub cannot be asked what that is.
    """
    said = (checkpoint.adapter_config or {}).get("base_model_name_or_path")
    if unit.row_base is None or unit.model.folder is not None or said == unit.row_base or not isinstance(said, str):
        return unit

    def ask(name: str) -> Mapping[str, Any] | None:
        try:
            return model_row(name)
        except Skipped:
            return None
        except Failed as error:
            if error.reason == "not_found":
                return None
            raise

    parents = Parents((unit.base,), (), ask)
    parent = parents.of_row({"id": unit.model.id, "config": {"peft": {"base_model_name_or_path": said}}})
    return replace(unit, parent=parent, is_on_base=parent is None and not parents.unknown)


def _adapter_base(unit: Unit, checkpoint: Checkpoint, planned: Unit) -> AdapterBase | None:
    """What an adapter says of its base, and what its name shows; None if it says nothing.

    ``planned``: the unit before its file was read.
    """
    named = (checkpoint.adapter_config or {}).get("base_model_name_or_path")
    if not isinstance(named, str) or not named.strip():
        return None
    if unit.model.folder is not None:
        named = without_paths(named.strip())
    shown = printable(named.strip(), 200)
    row = printable(unit.row_base or "nothing", 200)
    why = f"{ROW_NAMES}{row}, and its adapter_config.json decides" if unit != planned else ""
    if unit.parent is not None:
        return AdapterBase(shown, "finetune", unit.parent.name, why)
    if unit.is_on_base or path_verdict(named, unit.model.id, (unit.base,)) in (None, YES):
        return AdapterBase(shown, "base", why=why)
    unknown = "this could not be resolved, so it is treated as the base"
    return AdapterBase(shown, "unknown", why=f"{why}; {unknown}" if why else unknown)


def _seed(unit: Unit, key: DeltaKey) -> int:
    """A seed from the base and the matrix alone, so that equal changes have equal factors in every upload and form.

    It does not depend on the order of reading, the number of workers, or the commit.
    """
    named = f"{unit.base}@{unit.base_commit}|{key}"
    return int(hashlib.sha256(named.encode()).hexdigest()[:15], 16)


def _dtype_of(checkpoint: Checkpoint) -> str:
    """The dtype of most bytes of the file."""
    sizes: dict[str, int] = {}
    for info in checkpoint.tensors.values():
        name = str(info.dtype).removeprefix("torch.")
        sizes[name] = sizes.get(name, 0) + info.nbytes
    return max(sizes, key=lambda name: (sizes[name], name), default="")


def _block_bytes(checkpoint: Checkpoint, layout: Layout | None) -> int:
    """Bytes that had to be read: the block matrices as stored, or an adapter's factors."""
    names = factor_names(checkpoint) if layout is None else layout.tensors
    return sum(checkpoint.tensors[name].nbytes for name in names)
