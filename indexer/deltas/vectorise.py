"""One unit of work: compute the record of one model at one commit against one base.

It is a pure function of (model@commit, base@commit, spec): it reads weights, uses no database, and can run in any
process on any machine that has the base's matrices.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.checkpoints.adapter import adapter_plan, stated_base
from indexer.checkpoints.architectures.layout import Layout
from indexer.checkpoints.checkpoint import Checkpoint, open_checkpoint
from indexer.deltas.adapter_deltas import WeightDelta, deltas_on, dense
from indexer.deltas.adapter_starts import Learned, Search, adapter_start, in_usual_seeds
from indexer.deltas.base import BaseMatrices
from indexer.deltas.delta import DenseDelta, LoraDelta, dense_deltas, layout_against, sampled_deltas
from indexer.deltas.elsewhere import moved_layers, rearranged
from indexer.deltas.embeddings import EmbeddingReader
from indexer.deltas.rounding import RoundingChoice
from indexer.deltas.signs import MatrixSigns, with_agreement
from indexer.deltas.spectra import Spectra
from indexer.deltas.stacked import ForeignParent, StackedAdapter, UnreadableParent, on_record, once
from indexer.deltas.svd import Factors, lora_svd, sample_svd, truncated_svd
from indexer.errors import Failed, Skipped
from indexer.listing.parents import Parents, names_itself
from indexer.names import DeltaKey
from indexer.records.identity import NAMES_ITSELF, NAMES_REVISION, ROW_NAMES, AdapterBase, ModelVersion, Traffic, Unit
from indexer.records.record import DeltaRecord, Record, TokenChanges
from indexer.records.representations.registry import representation_named
from indexer.records.row_plan import lines_of
from indexer.records.row_space import row_space, row_space_of
from indexer.records.signs import NUMBERS, Signs
from indexer.sources.cards.modelcard import head_facts
from indexer.sources.claims import YES, classify_path
from indexer.sources.registry import ModelRef
from indexer.sources.rows import row_of
from indexer.untrusted import printable, shown

_APPROXIMATE = "approximate, from the leading triplets in its record: {}"

# The factor by which the variance of a sum over the rows of a sample exceeds that of rows drawn at random. Rows of one
# attention head change alike: the effect of a stripe of b rows is larger by ρ (b − 1) for an intraclass correlation ρ.
# Both were chosen so that 95 % of intervals hold the norm, on one family of models, and checked on three others
# (docs/evidence/reading.md).
_DESIGN_EFFECT = 1.5
_HEAD_CORRELATION = 0.3

# Samples of matrices of one shape are decomposed together, up to this many numbers at once.
_NUMBERS_AT_ONCE = 1 << 18

# Models whose matrices are less like the base's (median cosine) may have them in other places or with other scales.
_UNLIKE = 0.8

# float32, in which norms and singular values are kept, ends at 2¹²⁸; sums over matrices have to fit, too.
_REVISION = re.compile(r"\w[\w.\-/]{0,249}")
_LARGEST_NORM = 2.0**120


def vectorise(
    unit: Unit,
    base: BaseMatrices,
    conversion: Callable[[], str | None] | None = None,
    *,
    ahead_bytes: int = 0,
    connections: int = 1,
    traffic: Traffic | None = None,
    parent_record: Callable[[ModelVersion], Record | None] | None = None,
    search: Search = in_usual_seeds,
) -> Record:
    """Compute the record of one unit.

    With one torch thread, which the caller sets, the same input gives the same record.

    - ``conversion`` returns a revision with a safetensors conversion; it is called only if the model has only pickles.
    - ``ahead_bytes``: how many bytes may be fetched ahead of the SVD. It changes the time, not the record.
    - ``connections``: over how many connections a sample is read. It changes the time, not the record.
    - ``traffic`` receives the numbers of bytes, also after an error.
    - ``parent_record`` returns the record of an adapter's parent. It is called only if the parent's checkpoint can no
      longer be read, and may raise Failed.
    - ``search`` finds the start of an adapter.

    Raises Skipped if this commit can never become a record, Failed if a retry may work.
    """
    if unit.refused:
        raise Skipped("adapter_chain", unit.refused)
    started = time.perf_counter()
    identity = unit.identity
    stack: StackedAdapter | None = None
    checkpoint = open_checkpoint(
        base.reference(unit.model, unit.filenames),
        commit=unit.commit,
        filenames=unit.filenames,
        relation=unit.relation,
        conversion=conversion,
        needs_config=unit.model.folder is None,  # one's own file may lie alone: the base has its architecture
    )
    try:
        reader = _DeltaReader(unit, checkpoint, base)
        adapter_base: AdapterBase | None = None
        if checkpoint.kind != "adapter":
            try:
                layout = layout_against(checkpoint, base)
            except Skipped as problem:
                layers = moved_layers(checkpoint, base) if problem.reason == "layer_mismatch" else ()
                if not layers:
                    raise
                listed = ", ".join(map(str, layers))
                raise Skipped("layers_moved", f"{problem.detail}; its layers are the base's {listed}") from problem
            block_bytes = sum(
                math.prod(matrix.shape) * checkpoint.tensors[matrix.tensor].dtype.itemsize for matrix in layout.matrices
            )
            if unit.spec.sample:
                reader.read_sample(layout, connections)
            else:
                reader.read_full(layout, ahead_bytes)
        else:
            block_bytes = sum(checkpoint.tensors[name].nbytes for name in adapter_plan(checkpoint).tensors)
            planned, unit = unit, _with_stated_parent(unit, checkpoint, base)
            adapter_base = _adapter_base(unit, checkpoint, planned)
            stack = StackedAdapter(checkpoint, unit.parent, base) if unit.parent else None
            try:
                reader.read_adapter(stack, ahead_bytes, connections)
            except (ForeignParent, UnreadableParent) as problem:
                reader = _DeltaReader(unit, checkpoint, base)
                record_of_parent, adapter_base = _without_parent(problem, unit, adapter_base, parent_record)
                if record_of_parent is not None:
                    reader.read_on_record(record_of_parent)
                else:
                    reader.read_adapter(None)
        start, reader.learned = adapter_start(checkpoint, base, reader.factors_a, unit.spec.rank, search)
        deltas = reader.deltas()
        training = checkpoint.training().to_dict()  # after the weights: if these cannot be read, nothing more is asked
        record = Record(
            identity=identity,
            deltas=deltas,
            fused_matrices=reader.spectra.fused_matrices() if reader.spectra else (),
            sample=np.concatenate([reader.sample[delta.key] for delta in deltas]) if reader.sample else None,
            moved=reader.moved,
            tokens=reader.tokens,
            signs=reader.signs(deltas) if checkpoint.kind != "adapter" else None,
            row_space=row_space(reader.row_spaces, [delta.key for delta in deltas]) if reader.row_spaces else None,
            precision=reader.roundings.widest,
            base_grid=reader.roundings.grid,
            files=checkpoint.files,
            head=asdict(head_facts(checkpoint.config)),
            card=dict(unit.card or {}),
            training=training,
            dtype=checkpoint.dtype,
            device=unit.device,
            threads=torch.get_num_threads(),
            adapter_base=adapter_base,
            start=start,
            adapter_kind=adapter_plan(checkpoint).kind if checkpoint.kind == "adapter" else "",
            passed_over=adapter_plan(checkpoint).passed_over if checkpoint.kind == "adapter" else (),
            adapter_notes=adapter_plan(checkpoint).notes if checkpoint.kind == "adapter" else (),
            bytes_read=checkpoint.bytes_read + (stack.bytes_read if stack else 0),
            block_bytes=block_bytes,
            seconds=time.perf_counter() - started,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
    finally:
        if traffic is not None:
            traffic.read, traffic.total = checkpoint.bytes_read, sum(facts.size for facts in checkpoint.files)
            traffic.read += stack.bytes_read if stack else 0
        checkpoint.close()

    return _with_vectors(record, unit)


def with_start(
    record: Record, unit: Unit, base: BaseMatrices, search: Search, *, traffic: Traffic | None = None
) -> Record | None:
    """The record of an adapter of the base itself with its start, if ``search`` finds it; None otherwise.

    ``unit``: the unit of the record. ``traffic`` receives the numbers of bytes. Raises Skipped and Failed as
    ``vectorise``.
    """
    checkpoint = open_checkpoint(
        base.reference(unit.model, unit.filenames), commit=unit.commit, filenames=unit.filenames, relation=unit.relation
    )
    try:
        reader = _DeltaReader(replace(unit, spec=replace(unit.spec, spectra=False)), checkpoint, base)
        reader.read_adapter(None)
        start, reader.learned = adapter_start(checkpoint, base, reader.factors_a, unit.spec.rank, search)
    finally:
        if traffic is not None:
            traffic.read, traffic.total = checkpoint.bytes_read, sum(facts.size for facts in checkpoint.files)
        checkpoint.close()
    if start is None:
        return None
    keeps_factors = any(delta.v is not None for delta in record.deltas)
    # A record that keeps only vectors needs the factors again, to compute the vectors from them.
    deltas = tuple(
        replace(delta, u=read.u, v=read.v, learned_s=read.learned_s, learned_v=read.learned_v)
        for delta, read in zip(record.deltas, reader.deltas(), strict=True)
    )
    return _with_vectors(replace(record, start=start, deltas=deltas), replace(unit, keep_factors=keeps_factors))


def _with_vectors(record: Record, unit: Unit) -> Record:
    """The record with the requested vectors, and without factors unless they are to be kept."""
    requested = [representation_named(name, unit.vector_length) for name in unit.representations]
    vectors = {representation.tag: representation.of(record) for representation in requested}
    space, deltas = row_space_of(record), record.deltas
    if not unit.keep_factors:
        deltas = tuple(replace(delta, u=None, u_rows=None, v=None, learned_s=None, learned_v=None) for delta in deltas)
    return replace(record, vectors=vectors, deltas=deltas, row_space=space)


def _without_parent(
    problem: ForeignParent | UnreadableParent,
    unit: Unit,
    adapter_base: AdapterBase | None,
    parent_record: Callable[[ModelVersion], Record | None] | None,
) -> tuple[Record | None, AdapterBase]:
    """The record of a parent whose checkpoint cannot be used, None if it has no factors; and the updated base."""
    record = None
    if isinstance(problem, UnreadableParent) and parent_record and unit.parent and not unit.spec.spectra:
        record = parent_record(unit.parent)
    adapter_base = adapter_base or AdapterBase("", "")
    if record is not None and not record.is_sampled and all(delta.u is not None for delta in record.deltas):
        return record, replace(adapter_base, why=_APPROXIMATE.format(printable(str(problem), 300)))
    verdict = "foreign" if isinstance(problem, ForeignParent) else "unknown"
    why = f"{adapter_base.why}; {problem}" if adapter_base.why else str(problem)
    return None, replace(adapter_base, verdict=verdict, why=printable(why, 500))


class _DeltaReader:
    """Decomposes the deltas of one checkpoint, and collects the other contents of its record.

    ``sample``: entries of a full checkpoint's matrices (``indexer.records.weight_sample``); ``moved``: how many of them
    differ from the base's. ``row_spaces``: for each matrix an orthonormal basis (in, k) of the row space of A.
    ``factors_a``: A of every module of an adapter on the base itself, by path; ``learned``: A − A₀, where A₀ is known.
    """

    def __init__(self, unit: Unit, checkpoint: Checkpoint, base: BaseMatrices) -> None:
        self._unit = unit
        self._checkpoint = checkpoint
        self._base = base
        self._records: dict[DeltaKey, DeltaRecord] = {}
        self.spectra = Spectra(base, unit.device) if unit.spec.spectra else None
        self.roundings = RoundingChoice()
        self.sample: dict[DeltaKey, NDArray[np.float32]] = {}
        self.moved = 0
        self.row_spaces: dict[DeltaKey, NDArray[np.float64]] = {}
        self.factors_a: dict[str, torch.Tensor] = {}
        self.learned: dict[DeltaKey, Learned] = {}
        self._signs: dict[DeltaKey, MatrixSigns] = {}
        self._embeddings = EmbeddingReader(checkpoint, base.embeddings, base.vocabulary)
        self.tokens: TokenChanges | None = None

    def read_full(self, layout: Layout, ahead_bytes: int) -> None:
        """Read a full checkpoint."""
        with_weights = self.spectra is not None
        for delta in dense_deltas(
            self._checkpoint, layout, self._base, ahead_bytes,
            with_weights=with_weights, with_signs=True, roundings=self.roundings,
        ):  # fmt: skip
            self._add_dense(delta)
            self._note(delta)
        self.tokens = self._embeddings.changes(dict(self._checkpoint.stripes(self._embeddings.stripes)))

    def read_sample(self, layout: Layout, connections: int) -> None:
        """Read some rows of a full checkpoint."""
        deltas, embedding_rows = sampled_deltas(
            self._checkpoint, layout, self._base, connections, self.roundings, self._embeddings.stripes, with_signs=True
        )
        samples_by_shape: dict[tuple[tuple[int, ...], bool], list[DenseDelta]] = {}
        for delta in deltas:
            if delta.lines is None:
                self._add_dense(delta)
            else:
                shape_and_side = tuple(delta.matrix.shape), self._base.layout.by_key[delta.key].transposed
                samples_by_shape.setdefault(shape_and_side, []).append(delta)
            self._note(delta)
        for (shape, _), group in samples_by_shape.items():
            at_once = max(1, _NUMBERS_AT_ONCE // math.prod(shape))
            for start in range(0, len(group), at_once):
                self._add_samples(group[start : start + at_once])
        self.tokens = self._embeddings.changes(embedding_rows)

    def read_adapter(self, stack: StackedAdapter | None, ahead_bytes: int = 0, connections: int = 1) -> None:
        """Read an adapter, with its parent if that is not the base."""
        deltas: Iterable[DenseDelta | LoraDelta | WeightDelta]
        with_weights = self.spectra is not None
        if stack is None:
            deltas = once(deltas_on(self._checkpoint, self._base, factors_a=self.factors_a))
        else:
            sample_connections = connections if self._unit.spec.sample else 0
            deltas = stack.deltas(ahead_bytes, with_weights=with_weights, sample_connections=sample_connections)
        for delta in deltas:
            if isinstance(delta, LoraDelta):
                self._add_lora(delta)
            elif isinstance(delta, WeightDelta):
                if delta.rows is not None:
                    self.row_spaces[delta.key] = torch.linalg.qr(delta.rows.double().t()).Q.numpy()
                self._add_dense(dense(delta, self._base.matrix(delta.key), with_weights=with_weights))
            else:
                self._add_dense(delta)
        if not self._records:
            path = next(iter(adapter_plan(self._checkpoint).modules), None)
            like = f"; its modules are named like {shown(path)}" if path else ""
            raise Skipped("missing_matrices", f"the adapter changes no block matrix of the base{like}")

    def read_on_record(self, parent_record: Record) -> None:
        """Read an adapter on a model that is known only from its record."""
        for delta, residual in on_record(self._checkpoint, self._base, parent_record):
            self._add_lora(delta)
            record = self._records[delta.key]
            self._records[delta.key] = replace(record, norm=float(np.hypot(record.norm, residual)))
        self.row_spaces.clear()  # a truncated sum has other row spaces than the adapter

    def deltas(self) -> tuple[DeltaRecord, ...]:
        """All deltas in the order of the base's layout, zero where an adapter changes nothing."""
        rank, records = self._unit.spec.rank, []
        for matrix in self._base.layout.matrices:
            record = self._records.get(matrix.key)
            if record is None:
                rows, columns = matrix.shape
                zeros = Factors(torch.zeros(rows, rank), torch.zeros(rank), torch.zeros(columns, rank))
                record = self._record(matrix.key, zeros, 0.0)
                if self.spectra is not None:
                    record = replace(record, weights=self._base.spectrum((matrix.key,)))
            if (learned := self.learned.get(matrix.key)) is not None:
                record = replace(record, learned_s=learned.s, learned_v=learned.v.astype(np.float16))
            records.append(record)
        return tuple(records)

    def signs(self, deltas: Sequence[DeltaRecord]) -> Signs:
        """The signs of a full checkpoint that has been read."""
        matrices = with_agreement(self._signs, [delta.key for delta in deltas])
        is_unlike = np.median(matrices[:, NUMBERS["cosine"]]) < _UNLIKE
        how, effect = rearranged(self._checkpoint, self._base) if is_unlike else ("", 0.0)
        return Signs(matrices, self._embeddings.reset_tokens, how, effect)

    def _note(self, delta: DenseDelta) -> None:
        """Keep what belongs to a full checkpoint besides its deltas."""
        self.sample[delta.key] = delta.sample.numpy()
        self.moved += delta.moved
        if delta.signs is not None:
            self._signs[delta.key] = delta.signs

    def _add_dense(self, delta: DenseDelta) -> None:
        if delta.lines is not None:
            self._add_samples([delta])
            return
        unit = self._unit
        matrix = delta.matrix.to(unit.device)
        # A seed from the base and the matrix alone, so that equal changes have equal factors in every upload and form,
        # whatever the order of reading, the number of workers or the commit.
        text = f"{unit.base}@{unit.base_commit}|{delta.key}"
        seed = int(hashlib.sha256(text.encode()).hexdigest()[:15], 16)
        factors = replace(truncated_svd(matrix, unit.spec.rank, seed, delta.norm), norm=delta.norm)
        self._add(delta, factors, delta.inner)

    def _add_samples(self, deltas: Sequence[DenseDelta]) -> None:
        """Add sampled matrices of one shape and orientation.

        A sum over all rows is estimated by the mean over the rows that were read; its variance is that of simple random
        sampling times the design effect of rows that lie together (Kish, 1965, "Survey Sampling", chapter 5).
        """
        matrices = torch.stack([delta.matrix for delta in deltas]).to(self._unit.device)
        singular_values, vectors = sample_svd(matrices, self._unit.spec.rank)
        is_transposed = self._base.layout.by_key[deltas[0].key].transposed
        squares = matrices.square().sum(dim=1 if is_transposed else 2).double()
        variances = (squares.var(dim=1, correction=1) / squares.shape[1]).tolist()
        inverse = torch.where(singular_values > 0, 1 / singular_values, 0.0)
        left_vectors = (matrices @ vectors * inverse.unsqueeze(1)).cpu()
        for number, delta in enumerate(deltas):
            assert delta.lines is not None
            matrix = self._base.layout.by_key[delta.key]
            share = delta.lines / matrix.lines
            norm = delta.norm / math.sqrt(share)
            s, v = singular_values[number], vectors[number]
            if matrix.transposed:  # zero on the coordinates that were not read
                lines_read = torch.from_numpy(lines_of(matrix.lines, delta.lines))
                v = torch.zeros(matrix.shape[1], v.shape[1]).index_copy_(0, lines_read, v.cpu())
            factors = Factors(torch.empty(0), s / math.sqrt(share), v, norm)
            record = self._record(delta.key, factors, delta.inner / share)
            error = 0.0
            if norm:
                # Heads are rows of queries, keys and values, and columns of the matrix that joins them.
                family = delta.key.family.removeprefix("cross_")
                is_of_heads = family == "output" if matrix.transposed else family in ("query", "key", "value")
                effect = _DESIGN_EFFECT + (_HEAD_CORRELATION * (delta.lines / 2 - 1) if is_of_heads else 0.0)
                error = matrix.lines * math.sqrt(effect * (1 - share) * variances[number]) / (2 * norm)
            rows = (left_vectors[number] * math.sqrt(share)).numpy().astype(np.float16)
            self._records[delta.key] = replace(record, u=None, u_rows=rows, lines=delta.lines, norm_error=error)

    def _add_lora(self, delta: LoraDelta) -> None:
        a, b = (factor.to(self._unit.device) for factor in (delta.a, delta.b))
        factors = lora_svd(a, b, delta.scale, self._unit.spec.rank)
        if factors.rows is not None:
            self.row_spaces[delta.key] = factors.rows.cpu().numpy()
        self._add(delta, factors, 0.0)

    def _add(self, delta: DenseDelta | LoraDelta, factors: Factors, inner: float) -> None:
        record = self._record(delta.key, factors, inner)
        if self.spectra is not None:
            changes, weights = self.spectra.singular_values(delta)
            record = replace(record, spectrum=changes, weights=weights)
        self._records[delta.key] = record

    def _record(self, key: DeltaKey, factors: Factors, inner: float) -> DeltaRecord:
        """The record of one delta. Raises Skipped if its norm does not fit into float32."""
        matrix, norm, base_norm = self._base.layout.by_key[key], factors.norm, self._base.norms[key]
        relative = norm / base_norm if base_norm else 0.0
        if not (norm <= _LARGEST_NORM and relative <= _LARGEST_NORM):  # also refuses NaN
            raise Skipped("not_finite", f"the change of the matrix {key} is beyond float32 (its norm is {norm:.2g})")
        return DeltaRecord(
            key=key,
            shape=matrix.shape,
            norm=norm,
            base_norm=base_norm,
            inner=inner,
            s=factors.s.cpu().numpy().astype(np.float32),
            u=factors.u.cpu().numpy().astype(np.float16),
            v=factors.v.cpu().numpy().astype(np.float16),
            transposed=matrix.transposed,
        )


def _with_stated_parent(unit: Unit, checkpoint: Checkpoint, base: BaseMatrices) -> Unit:
    """The unit with the parent that the adapter's own file names, if the listing row named another base.

    Raises Failed if the Hub cannot be asked for that parent.
    """
    stated = stated_base(checkpoint.adapter_config)
    if unit.row_base is None or stated == unit.row_base or not isinstance(stated, str):
        return unit
    if not unit.model.is_name:  # its row was made of this file, without paths
        return unit

    def ask(name: str) -> Mapping[str, Any] | None:
        try:
            return row_of(ModelRef.of_atlas(name))
        except Skipped:
            return None
        except Failed as error:
            if error.reason == "not_found":
                return None
            raise

    parents = Parents((unit.base,), (), ask, hashes=base.file_hashes)
    parent = parents.of_row({"id": unit.model.id, "config": {"peft": {"base_model_name_or_path": stated}}})
    for why in parents.refused.values():
        raise Skipped("adapter_chain", why)
    circle = next(iter(parents.circles.values()), "")
    return replace(unit, parent=parent, is_on_base=parent is None and not parents.unknown, circle=circle)


def _revision_note(checkpoint: Checkpoint, unit: Unit) -> str:
    """A note if an adapter's file names another revision of its base than the one that is used; else "".

    The change is always computed against the base's commit in the atlas, or against the parent's commit.
    """
    revision = (checkpoint.adapter_config or {}).get("revision")
    commit = (unit.parent.commit or "") if unit.parent is not None else unit.base_commit
    if (
        not isinstance(revision, str)
        or revision.strip() in ("", "main")
        or (len(revision) >= 7 and commit.startswith(revision))
    ):
        return ""
    invalid = "" if _REVISION.fullmatch(revision) and ".." not in revision else ", which cannot be one"
    return printable(f"{NAMES_REVISION}{shown(revision, 60)} of its base{invalid}; {commit[:12]} is used", 200)


def _adapter_base(unit: Unit, checkpoint: Checkpoint, planned: Unit) -> AdapterBase | None:
    """How the base that an adapter names was resolved; None if it names none.

    ``planned``: the unit before its file was read.
    """
    name = stated_base(checkpoint.adapter_config)
    if not isinstance(name, str) or not name.strip():
        return None
    name = unit.model.source.without_private(unit.model, name.strip())
    printed_name = printable(name.strip(), 200)
    row_name = printable(unit.row_base or "nothing", 200)
    why = f"{ROW_NAMES}{row_name}, and its adapter_config.json decides" if unit != planned else ""
    if (note := _revision_note(checkpoint, unit)) and note not in why:
        why = f"{why}; {note}" if why else note
    if unit.parent is not None:
        return AdapterBase(printed_name, "finetune", unit.parent.name, why)
    if names_itself(name, unit.model.id):
        itself = f"{NAMES_ITSELF}, so it is treated as an adapter of {unit.base}"
        return AdapterBase(printed_name, "base", why=f"{why}; {itself}" if why else itself)
    if unit.is_on_base or classify_path(name, unit.model.id, (unit.base,)) in (None, YES):
        return AdapterBase(printed_name, "base", why=why)
    if unit.circle:
        why = f"{why}; {unit.circle}" if why else unit.circle
    unknown = "this could not be resolved, so it is treated as the base"
    return AdapterBase(printed_name, "unknown", why=f"{why}; {unknown}" if why else unknown)
