"""How much of δW is noise where a fine-tune is stored in codes of 8 bits: ``python -m scripts.coverage.noise``.

A change of rank 2 is planted in a tiny model, which is then stored as fp8 and as MLX codes of 8 bits; the norm of δW and
that of its first two singular triplets are compared with what was planted, with and without rounding the base first.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import save_file

from indexer.deltas.base import BaseMatrices, store_base
from indexer.deltas.delta import dense_deltas, layout_against
from indexer.names import ModelRef
from indexer.weights.checkpoint import Checkpoint, open_checkpoint
from scripts.coverage import making
from scripts.coverage.making import fp8_blocks, mlx
from scripts.coverage.uploads import FP8, LLAMA, TEXT
from scripts.tables import markdown

MLX8 = {"quantization": {"bits": 8, "group_size": 32}}


def opened(folder: Path, settings: Mapping[str, Any]) -> Checkpoint:
    """The checkpoint in ``folder``, with a config.json of these settings."""
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"} | dict(settings)))
    return open_checkpoint(ModelRef(id=str(folder), folder=folder))


def norms(checkpoint: Checkpoint, base: BaseMatrices) -> tuple[float, float]:
    """Of δW, and of its first two singular triplets, over all matrices."""
    whole = leading = 0.0
    for delta in dense_deltas(checkpoint, layout_against(checkpoint, base), base):
        values = torch.linalg.svdvals(delta.matrix).double().square()
        whole, leading = whole + float(values.sum()), leading + float(values[:2].sum())
    return whole**0.5, leading**0.5


def main() -> None:
    """Print one row for each form and size of the change."""
    body = making.model_of("llama", TEXT, "CausalLM").state_dict()
    weights = {name: tensor.clone() for name, tensor in body.items()}
    rows = [
        ["stored as", "‖δW‖ planted, of ‖W‖", "‖δW‖ ÷ planted", "its first two triplets", "without rounding the base"]
    ]
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        (folder / "base").mkdir()
        save_file(weights, folder / "base" / "model.safetensors")
        base = store_base(opened(folder / "base", {}), "a/base", "0" * 40, folder / "base.safetensors")
        size = sum(float(base.matrix(matrix.key).float().square().sum()) for matrix in base.layout.matrices) ** 0.5
        for form, store, settings in (("fp8", fp8_blocks, FP8), ("MLX, 8 bits", mlx(8), MLX8)):
            for change in (0.02, 0.005, 0.001):
                with mock.patch.object(making, "SIZE", change):
                    tuned, changes = making.planted(weights, LLAMA)
                planted = making.norm_of(changes)
                tune = folder / f"{form}-{change}"
                tune.mkdir()
                store(tune, tuned)
                whole, leading = norms(opened(tune, settings), base)
                with mock.patch.object(Checkpoint, "rounded_like", lambda _self, _name, values, _rows=None: values):
                    plain, _ = norms(opened(tune, settings), base)
                shares = [f"{one / planted:.2f}" for one in (whole, leading, plain)]
                rows.append([form, f"{100 * planted / size:.2f} %", *shares])
    print(markdown(rows))


if __name__ == "__main__":
    main()
