"""Is a model's base recognised among others of its shapes? Planted changes of real bases, against unrelated models.

    python -m studies.identify ATLAS… [--unrelated FOLDER…] [--with FOLDER…] [--seeds 3] [--page docs/evidence/identify.md]

For every base in the atlases: fine-tuned and then noised, pruned, quantised and back, permuted, rescaled and rotated, with
layers moved or dropped. Each is also done to models of the same shapes that were not made from it: matrices drawn as
for a new model, matrices drawn with the base's scales of rows and columns and its mean rows, layer by layer, and the
other bases of the same shapes in the atlases. ``--unrelated``: models that were trained from scratch. ``--with``: folders of other trained models, each compared with
every base. ``--page``: write the table there.
The coefficients of ``probability_of`` are fitted to the first base and confirmed on the others.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from indexer.atlas import AtlasFolder
from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.deltas.base import BaseMatrices, locate_matrices
from indexer.deltas.identification.identify import probability_of
from indexer.deltas.identification.rows import SampledRows
from indexer.deltas.stored_base import stored_bases
from indexer.errors import ModelError
from indexer.names import DeltaKey
from indexer.sources.registry import ModelRef

Weights = dict[DeltaKey, np.ndarray]
# Families whose rows write into the residual stream; others read from it.
_WRITES = ("output", "feedforward2")


def weights_of(base: BaseMatrices) -> Weights:
    """All block matrices (out, in)."""
    return {matrix.key: base.matrix(matrix.key).float().numpy() for matrix in base.layout.matrices}


def drawn(weights: Weights, seed: int) -> Weights:
    """A new model of the same shapes."""
    rng = np.random.default_rng(seed)
    return {key: 0.02 * rng.standard_normal(weight.shape, np.float32) for key, weight in weights.items()}


def with_habits(weights: Weights, seed: int) -> Weights:
    """A model with the scales of rows and columns, and the mean row, of each matrix, and else random numbers."""
    rng = np.random.default_rng(seed)
    made = {}
    for key, weight in weights.items():
        mean = weight.mean(axis=0)
        rest = weight - mean
        scale = np.sqrt((rest**2).mean(axis=1, keepdims=True) * (rest**2).mean(axis=0) / (rest**2).mean())
        made[key] = (mean + scale * rng.standard_normal(weight.shape)).astype(np.float32)
    return made


def _width(weights: Weights) -> int:
    return next(weight.shape[1] for key, weight in weights.items() if key.family == "query")


def _turned(weights: Weights, turn: np.ndarray) -> Weights:
    """The residual stream in another basis."""
    return {
        key: (turn @ weight if key.family in _WRITES else weight @ turn.T).astype(np.float32)
        for key, weight in weights.items()
    }


def _with_neurons(weights: Weights, rng: np.random.Generator) -> Weights:
    """Neurons of each layer in another order, and their scales moved from one matrix to the next."""
    made = dict(weights)
    for key in weights:
        if key.family == "feedforward1":
            other = DeltaKey(key.stack, key.layer, "feedforward2")
            order = rng.permutation(len(weights[key]))
            made[key], made[other] = made[key][order], made[other][:, order]
            gate = DeltaKey(key.stack, key.layer, "gate")
            if gate in made:
                made[gate] = made[gate][order]
    return made


def _rescaled(weights: Weights, rng: np.random.Generator) -> Weights:
    """Scales of what a layer reads moved into its normalisation."""
    scales: dict[tuple[str, int], np.ndarray] = {}
    made = {}
    for key, weight in weights.items():
        if key.family not in _WRITES:
            scale = scales.setdefault((key.stack, key.layer), np.exp(rng.standard_normal(weight.shape[1])))
            weight = (weight * scale).astype(np.float32) if len(scale) == weight.shape[1] else weight
        made[key] = weight
    return made


def _each(change: Callable[[np.ndarray, np.random.Generator], np.ndarray]) -> Callable[..., Weights]:
    return lambda weights, rng: {key: change(weight, rng).astype(np.float32) for key, weight in weights.items()}


def _noised(share: float) -> Callable[..., Weights]:
    return _each(lambda weight, rng: weight + share * weight.std() * rng.standard_normal(weight.shape))


def _pruned(share: float) -> Callable[..., Weights]:
    return _each(lambda weight, rng: np.where(np.abs(weight) > np.quantile(np.abs(weight), share), weight, 0))


def _rounded(levels: int) -> Callable[..., Weights]:
    def rounded(weight: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        largest = np.abs(weight).max(axis=1, keepdims=True) + 1e-12
        return np.round(weight / largest * levels) / levels * largest

    return _each(rounded)


def _tuned(weight: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    change = rng.standard_normal((len(weight), 8)) @ rng.standard_normal((8, weight.shape[1]))
    return weight + 0.1 * np.linalg.norm(weight) / np.linalg.norm(change) * change


def _layers(order: Callable[[int], list[int]]) -> Callable[..., Weights]:
    def moved(weights: Weights, rng: np.random.Generator) -> Weights:
        depth = 1 + max(key.layer for key in weights)
        return {
            DeltaKey(key.stack, new, key.family): weight
            for key, weight in weights.items()
            for new, old in enumerate(order(depth))
            if old == key.layer
        }

    return moved


KINDS: Mapping[str, Callable[[Weights, np.random.Generator], Weights]] = {
    "fine-tuned": _each(_tuned),
    "noise of half its size": _noised(0.5),
    "noise of its size": _noised(1.0),
    "pruned by 50 %": _pruned(0.5),
    "pruned by 80 %": _pruned(0.8),
    "4 bits and back": _rounded(7),
    "3 bits and back": _rounded(3),
    "neurons permuted": _with_neurons,
    "residual stream permuted": lambda weights, rng: _turned(weights, np.eye(_width(weights))[rng.permutation(_width(weights))]),
    "neurons and residual stream permuted": lambda weights, rng: _with_neurons(
        _turned(weights, np.eye(_width(weights))[rng.permutation(_width(weights))]), rng
    ),
    "rescaled": _rescaled,
    "rotated": lambda weights, rng: _turned(weights, np.linalg.qr(rng.standard_normal((_width(weights),) * 2))[0]),
    "layers repeated": _layers(lambda depth: [*range(depth - 1), *range(1, depth)]),
    "every second layer": _layers(lambda depth: [*range(0, depth, 2)]),
}  # fmt: skip


def save(weights: Weights, base: BaseMatrices, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """A checkpoint with these block matrices; layers beyond the base's are named like them."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {matrix.key: matrix for matrix in base.layout.matrices}
    first = min(key.layer for key in names)
    fused: dict[str, list[tuple[int, torch.Tensor]]] = {}
    for key, weight in weights.items():
        matrix = names[DeltaKey(key.stack, min(key.layer, first), key.family)]
        name = matrix.tensor.replace(f".{first}.", f".{key.layer}.", 1)
        name = f"{key.layer}.{name.partition('.')[2]}" if name.startswith(f"{first}.") else name
        start = matrix.rows.start if matrix.rows else 0
        fused.setdefault(name, []).append((start, torch.from_numpy(np.ascontiguousarray(weight)).to(dtype)))
    tensors = {}
    for name, parts in fused.items():
        whole = torch.cat([part for _, part in sorted(parts, key=lambda item: item[0])])
        matrix = next(named for named in names.values() if named.tensor.split(".")[-3:] == name.split(".")[-3:])
        tensors[name] = (whole.mT if matrix.transposed else whole).contiguous()
    save_file(tensors, folder / "model.safetensors")
    config = {key: value for key, value in base.config.items() if key not in ("num_hidden_layers", "n_layer")}
    depth = 1 + max(key.layer for key in weights)
    config |= {name: depth for name in ("num_hidden_layers", "n_layer") if name in base.config}
    (folder / "config.json").write_text(json.dumps(config))


def strength(folder: Path, base: BaseMatrices) -> dict[str, Any]:
    """How a checkpoint compares with a base."""
    began = time.perf_counter()
    with closing(open_checkpoint(ModelRef(str(folder), folder=folder))) as checkpoint:
        comparison = SampledRows(checkpoint).compare(base)
        return {
            "strength": comparison.match.strength,
            "statistic": comparison.match.statistic,
            "distance": comparison.distance,
            "bytes": checkpoint.bytes_read,
            "seconds": time.perf_counter() - began,
        }


def auroc(positive: np.ndarray, negative: np.ndarray) -> float:
    """The share of pairs in the right order; ties count half."""
    above = (positive[:, None] > negative).mean() + 0.5 * (positive[:, None] == negative).mean()
    return float(above)


def trained(folder: Path, base: BaseMatrices) -> Weights | None:
    """The block matrices of a checkpoint with the base's shapes; None for any other."""
    with closing(open_checkpoint(ModelRef(str(folder), folder=folder))) as checkpoint:
        try:
            layout = locate_matrices(checkpoint, checkpoint.config)
        except ModelError:
            return None
        if {matrix.key: matrix.shape for matrix in layout.matrices} != {
            matrix.key: matrix.shape for matrix in base.layout.matrices
        }:
            return None
        weights = {}
        for name, tensor in checkpoint.stream(layout.tensors):
            for matrix in layout.by_tensor[name]:
                weights[matrix.key] = matrix.extract(tensor).float().clone().numpy()
        return weights


def planted(bases: list[BaseMatrices], seeds: int, unrelated: Sequence[Path] = ()) -> Iterator[dict[str, Any]]:
    """A row for each planted model and each unrelated one."""
    for base in bases:
        weights = weights_of(base)
        shapes = {key: weight.shape for key, weight in weights.items()}
        others = [
            other
            for other in bases
            if other is not base and {matrix.key: matrix.shape for matrix in other.layout.matrices} == shapes
        ]
        for seed in range(seeds):
            origins = {"itself": weights, "drawn": drawn(weights, seed), "habits": with_habits(weights, seed)}
            origins |= {f"{other.base}@{other.commit[:7]}": weights_of(other) for other in others}
            origins |= {str(path): model for path in unrelated if (model := trained(path, base)) is not None}
            for origin, of in origins.items():
                tuned = KINDS["fine-tuned"](of, np.random.default_rng(seed))
                for kind, change in KINDS.items():
                    with tempfile.TemporaryDirectory() as folder:
                        changed = tuned if kind == "fine-tuned" else change(tuned, np.random.default_rng(seed))
                        save(changed, base, Path(folder))
                        yield {
                            "base": f"{base.base}@{base.commit[:7]}",
                            "origin": origin,
                            "kind": kind,
                            **strength(Path(folder), base),
                        }


def write_page(page: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the table between the marks of a page."""
    bases = list(dict.fromkeys(row["base"] for row in rows))
    null = {
        base: np.array([row["strength"] for row in rows if row["base"] == base and row["origin"] != "itself"])
        for base in bases
    }
    lines = [
        "| planted, after a fine-tuning | "
        + " | ".join(base.partition("@")[0].partition("/")[2] for base in bases)
        + " |"
    ]
    lines.append("|---" * (1 + len(bases)) + "|")
    for kind in KINDS:
        cells = []
        for base in bases:
            values = np.array(
                [row["strength"] for row in rows if (row["base"], row["origin"], row["kind"]) == (base, "itself", kind)]
            )
            cells.append(f"{auroc(values, null[base]):.3f} (from {values.min():.2f})")
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    lines.append(
        "| unrelated, at most | " + " | ".join(f"{null[base].max():.2f} of {len(null[base])}" for base in bases) + " |"
    )
    seconds, size = max(row["seconds"] for row in rows), max(row["bytes"] for row in rows)
    text = page.read_text(encoding="utf-8")
    before, after = text.partition("<!-- identify -->")[0], text.partition("<!-- /identify -->")[2]
    about = f"AUROC against the unrelated (and the smallest strength); at most {seconds:.1f} s and {size / 1e6:.1f} MB a model:"
    table = "\n".join(lines)
    page.write_text(f"{before}<!-- identify -->\n{about}\n\n{table}\n<!-- /identify -->{after}", encoding="utf-8")


def main() -> None:
    """Print a row for each base and kind, and the coefficients."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("atlases", nargs="+", type=Path)
    parser.add_argument("--with", dest="folders", nargs="*", type=Path, default=[])
    parser.add_argument("--unrelated", nargs="*", type=Path, default=[])
    parser.add_argument("--page", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    bases = [BaseMatrices(stored.path) for atlas in chosen.atlases for stored in stored_bases(AtlasFolder(atlas))]
    rows = list(planted(bases, chosen.seeds, chosen.unrelated))
    for base in dict.fromkeys(row["base"] for row in rows):
        of_base = [row for row in rows if row["base"] == base]
        null = np.array([row["strength"] for row in of_base if row["origin"] != "itself"])
        print(
            f"\n{base}: {len(null)} unrelated, strength up to {null.max():.3f}; "
            f"probability up to {max(map(probability_of, null)):.4f}; "
            f"{max(row['seconds'] for row in of_base):.2f} s, {max(row['bytes'] for row in of_base) / 1e6:.2f} MB at most"
        )
        for kind in KINDS:
            planted_rows = [row for row in of_base if row["origin"] == "itself" and row["kind"] == kind]
            values = np.array([row["strength"] for row in planted_rows])
            statistics = sorted({str(row["statistic"]) for row in planted_rows})
            print(
                f"  {kind:40} AUROC {auroc(values, null):.4f}  strength {values.min():.3f} to {values.max():.3f}  "
                f"probability {min(map(probability_of, values)):.4f}  {', '.join(statistics)}"
            )
    if chosen.page is not None:
        write_page(chosen.page, rows)
    for folder in chosen.folders:
        for base in bases:
            try:
                comparison = strength(folder, base)
            except ModelError as error:
                print(folder.name, base.base, error)
                continue
            print(folder.name, base.base, comparison)


if __name__ == "__main__":
    main()
