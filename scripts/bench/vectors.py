"""The row ``vectors``: from a checkpoint on disk to the top 8 singular triplets of all its deltas."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
import transformers
from sklearn.utils.extmath import randomized_svd

from indexer.deltas.base import BaseMatrices
from indexer.deltas.delta import DenseDelta, dense_deltas, layout_against
from indexer.deltas.svd import truncated_svd
from indexer.names import DeltaKey, ModelRef
from indexer.weights.checkpoint import open_checkpoint
from scripts.bench.checkpoints import roberta_base
from scripts.bench.measure import NotMeasuredError, Repeats, Stopwatch, Table, interleaved, one_thread, say

RANK = 8
REPEATS = 5
TOLERANCE = 0.01
# What takes long is timed on some layers of twelve, and counted by proportion.
SUBSET_LAYERS = (0, 5, 11)
LAYERS = 12

# A fine-tune's deltas, one after the other, in the order they lie in the file.
Read = Callable[[], Iterator[DenseDelta]]
# A matrix, its norm, and the singular values found.
Decompose = Callable[[torch.Tensor, float], torch.Tensor]


@dataclass
class Method:
    """One way from checkpoint to factors, and what it took and gave; ``share`` of the deltas that it is run on."""

    title: str
    run: Callable[[Stopwatch], dict[DeltaKey, torch.Tensor]]
    share: float = 1.0
    svd: Repeats = field(default_factory=Repeats)
    values: dict[DeltaKey, torch.Tensor] = field(default_factory=dict)

    def __call__(self) -> float:
        """Do it once; the seconds it took, of which those within the SVD are noted, for all deltas."""
        svd, total = Stopwatch(), Stopwatch()
        with total.running():
            self.values = self.run(svd)
        self.svd.values.append(svd.seconds / self.share)
        return total.seconds

    def worst_errors(self, exact: dict[DeltaKey, torch.Tensor]) -> torch.Tensor:
        """Of each delta the largest relative error of its first RANK σ. Raises NotMeasuredError where some lack."""
        if len(self.values) != round(self.share * len(exact)):
            raise NotMeasuredError(f"{self.title} gave {len(self.values)} of {len(exact)} deltas")
        return torch.stack([(values / exact[key][:RANK] - 1).abs().max() for key, values in self.values.items()])


def read_deltas(fine_tune: Path, base: BaseMatrices) -> Iterator[DenseDelta]:
    """Stream the deltas as a unit of work does."""
    checkpoint = open_checkpoint(ModelRef.parse(str(fine_tune)))
    try:
        yield from dense_deltas(checkpoint, layout_against(checkpoint, base), base)
    finally:
        checkpoint.close()


def held_deltas(deltas: Iterator[DenseDelta], layers: Collection[int]) -> list[DenseDelta]:
    """Those of ``layers``, in memory of their own: a stream uses the same memory again and again."""
    return [replace(delta, matrix=delta.matrix.clone()) for delta in deltas if delta.key.layer in layers]


def measure(work: Path) -> list[Table]:
    """Time every method on every fine-tune, interleaved; compare all values with exact ones."""
    checkpoints = roberta_base(work)
    tables = []
    with one_thread(), torch.no_grad():
        base_model = transformers.AutoModel.from_pretrained(checkpoints.base, add_pooling_layer=False)
        for name, folder in checkpoints.fine_tunes.items():
            read = partial(read_deltas, folder, checkpoints.matrices)
            say(f"vectors: exact singular values of the {name} deltas")
            exact = {delta.key: exact_values(delta.matrix) for delta in read()}
            methods = _methods(read, folder, base_model)
            say(f"vectors: {REPEATS} repeats of {len(methods)} methods")
            totals = interleaved({method.title: method for method in methods}, REPEATS)
            for method in methods:
                del method.svd.values[0]  # the warm-up
            tables.append(_table(name, methods, totals, exact))
    return tables


def exact_values(matrix: torch.Tensor) -> torch.Tensor:
    """All singular values by LAPACK, tall side up (wide matrices take it four times as long)."""
    return torch.linalg.svdvals(matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T)


def _methods(read: Read, folder: Path, base_model: transformers.RobertaModel) -> list[Method]:
    subset = held_deltas(read(), SUBSET_LAYERS)
    share = len(SUBSET_LAYERS) / LAYERS
    return [
        Method("this project", partial(_stream, read, _ours)),
        Method("torch.svd_lowrank(q=24, niter=3)", partial(_stream, read, _lowrank_24)),
        Method("seed: transformers + svd_lowrank(q=8)", partial(_seed_recipe, folder, base_model)),
        Method("scikit-learn randomized_svd(8)", partial(_stream, lambda: iter(subset), _scikit), share),
    ]


def _stream(read: Read, decompose: Decompose, svd: Stopwatch) -> dict[DeltaKey, torch.Tensor]:
    values = {}
    for delta in read():
        with svd.running():
            values[delta.key] = decompose(delta.matrix, delta.norm)
    return values


def _ours(matrix: torch.Tensor, norm: float) -> torch.Tensor:
    return truncated_svd(matrix, RANK, 0, norm).s


def _lowrank_24(matrix: torch.Tensor, norm: float) -> torch.Tensor:
    return torch.svd_lowrank(matrix, q=24, niter=3)[1][:RANK]


def _scikit(matrix: torch.Tensor, norm: float) -> torch.Tensor:
    return torch.from_numpy(randomized_svd(matrix.numpy(), RANK, random_state=0)[1])


def _seed_recipe(folder: Path, base: transformers.RobertaModel, svd: Stopwatch) -> dict[DeltaKey, torch.Tensor]:
    """Load the fine-tune with transformers, subtract the base held in memory, decompose."""
    tuned = transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False)
    values = {}
    for number, (before, after) in enumerate(zip(base.encoder.layer, tuned.encoder.layer, strict=True)):
        pairs = {
            "query": (before.attention.self.query, after.attention.self.query),
            "key": (before.attention.self.key, after.attention.self.key),
            "value": (before.attention.self.value, after.attention.self.value),
            "output": (before.attention.output.dense, after.attention.output.dense),
            "feedforward1": (before.intermediate.dense, after.intermediate.dense),
            "feedforward2": (before.output.dense, after.output.dense),
        }
        for family, (old, new) in pairs.items():
            delta = new.weight - old.weight
            with svd.running():
                values[DeltaKey("", number, family)] = torch.svd_lowrank(delta, q=RANK)[1]
    return values


def _table(
    name: str, methods: list[Method], totals: Mapping[str, Repeats], exact: dict[DeltaKey, torch.Tensor]
) -> Table:
    table = Table(
        f"vectors: roberta-base-sized, {name} deltas, rank {RANK}, one thread, base resident; "
        f"{REPEATS} interleaved repeats, median (range)",
        ("method", "read + SVD, s", "SVD, s", "read + SVD ÷ ours", "SVD ÷ ours", "worst σ error", "mean"),
    )
    ours, lowrank, seed = methods[:3]
    for method in methods:
        errors = method.worst_errors(exact)
        whole = method.share == 1
        table.add(
            method.title if whole else f"{method.title}, {len(method.values)} of {len(exact)} deltas",
            totals[method.title] if whole else "",
            method.svd,
            totals[method.title].ratio_to(totals[ours.title]) if whole else "",
            method.svd.ratio_to(ours.svd),
            f"{float(errors.max()):.2%}",
            f"{float(errors.mean()):.2%}",
        )
        if method is ours:
            table.promises[f"every σ_1…σ_8 within {TOLERANCE:.0%} of exact"] = float(errors.max()) < TOLERANCE
    for rival, promise in (
        (lowrank, "no slower than torch.svd_lowrank(q=24, niter=3)"),
        (seed, "faster than the seed's recipe"),
    ):
        table.promises[promise] = totals[rival.title].ratio_to(totals[ours.title]).median >= 1
    table.notes.append(
        "Reading: this project's rooms (ranged reads, difference, norm, check), the seed's: from_pretrained. "
        "Of what was run on part of the deltas, the seconds are by proportion.\n"
        "Errors: worst of a delta's eight σ; worst and mean over deltas."
    )
    return table
