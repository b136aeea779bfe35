"""Matrices of codes and scales, written to their definitions: their values by an independent computation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from indexer.checkpoints.checkpoint import Checkpoint, open_checkpoint
from indexer.errors import Skipped
from tests.weights.folders import folder_reference

OUT, IN = 200, 256  # neither a multiple of a block of 128 rows
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
NAME = "layer.0.weight"


def written(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Checkpoint:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"} | config))
    save_file({"norm.weight": torch.ones(3)} | tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return open_checkpoint(folder_reference(folder))


def e4m3(code: int) -> float:
    """The value of a code by the definition (OCP 8-bit floating point, E4M3): sign, four bits, three bits."""
    sign, exponent, mantissa = -1.0 if code & 128 else 1.0, (code >> 3) & 15, code & 7
    return sign * (2.0**-6 * mantissa / 8 if exponent == 0 else 2.0 ** (exponent - 7) * (1 + mantissa / 8))


def fp8(shape: tuple[int, ...], block: tuple[int, int], suffix: str) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 256, (OUT, IN)).astype(np.uint8)
    codes[(codes & 127) == 127] = 0  # no NaN
    scale = rng.uniform(0.5, 2, shape).astype(np.float32)
    values = np.empty((OUT, IN))
    flat = scale.reshape(-1, scale.shape[-1]) if scale.ndim else scale.reshape(1, 1)
    table = np.array([e4m3(code) if code & 127 != 127 else 0.0 for code in range(256)])
    for row in range(OUT):
        for column in range(IN):
            values[row, column] = table[codes[row, column]] * flat[row // block[0], column // block[1]]
    stored = torch.from_numpy(codes).view(torch.float8_e4m3fn)
    return {NAME: stored, f"layer.0.{suffix}": torch.from_numpy(scale)}, values


def packed_fp4(codes: np.ndarray) -> torch.Tensor:
    return torch.from_numpy((codes[:, ::2] | (codes[:, 1::2] << 4)).astype(np.uint8))


def fp4(form: str) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 16, (OUT, IN))
    group = 32 if form == "mxfp4" else 16
    numbers = np.array(E2M1)[codes].reshape(OUT, -1, group)
    if form == "mxfp4":
        scale = rng.integers(120, 134, (OUT, IN // group)).astype(np.uint8)
        values = numbers * 2.0 ** (scale.astype(float) - 127)[:, :, None]
        return {
            "layer.0.weight_packed": packed_fp4(codes), "layer.0.weight_scale": torch.from_numpy(scale),
        }, values.reshape(OUT, IN)  # fmt: skip
    scale = torch.from_numpy(rng.uniform(1, 400, (OUT, IN // group)).astype(np.float32)).to(torch.float8_e4m3fn)
    values = (numbers * scale.double().numpy()[:, :, None]).reshape(OUT, IN)
    name = "weight" if form == "modelopt" else "weight_packed"
    tensors = {f"layer.0.{name}": packed_fp4(codes), "layer.0.weight_scale": scale}
    if form == "modelopt":
        return tensors | {"layer.0.weight_scale_2": torch.tensor(0.003)}, values * np.float32(0.003)
    return tensors | {"layer.0.weight_global_scale": torch.tensor([700.0])}, values / 700.0


def mlx(bits: int, group: int = 64) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 2**bits, (OUT, IN))
    scale, bias = (rng.normal(size=(OUT, IN // group)).astype(np.float16) for _ in range(2))
    values = codes.reshape(OUT, -1, group) * scale.astype(float)[:, :, None] + bias.astype(float)[:, :, None]
    rows = [sum(int(code) << (bits * index) for index, code in enumerate(row)) for row in codes]
    octets = b"".join(row.to_bytes(IN * bits // 8, "little") for row in rows)
    stored = torch.from_numpy(np.frombuffer(octets, np.uint32).reshape(OUT, -1).copy())
    return {
        NAME: stored, "layer.0.scales": torch.from_numpy(scale), "layer.0.biases": torch.from_numpy(bias),
    }, values.reshape(OUT, IN)  # fmt: skip


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "fp8, one scale": (lambda: fp8((), (OUT, IN), "weight_scale"), {}),
    "fp8, a scale a row": (lambda: fp8((OUT, 1), (1, IN), "weight_scale"), {"quant_method": "compressed-tensors"}),
    "fp8, blocks of 128": (lambda: fp8((2, 2), (128, 128), "weight_scale_inv"), {"quant_method": "fp8"}),
    "fp8, blocks of 64": (
        lambda: fp8((4, 4), (64, 64), "weight_scale_inv"),
        {"quant_method": "fp8", "weight_block_size": [64, 64]},
    ),
    "nvfp4": (lambda: fp4("nvfp4"), {"quant_method": "compressed-tensors"}),
    "nvfp4 of modelopt": (lambda: fp4("modelopt"), {"quant_method": "modelopt"}),
    "mxfp4": (lambda: fp4("mxfp4"), {"quant_method": "compressed-tensors"}),
    **{
        f"mlx, {bits} bits": (lambda bits=bits: mlx(bits), {"bits": bits, "group_size": 64}) for bits in (2, 3, 4, 6, 8)
    },
}


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_the_definition(tmp_path: Path, case: str) -> None:
    make, settings = CASES[case]
    tensors, values = make()
    checkpoint = written(tmp_path, tensors, quantization_config=settings)
    expected = torch.from_numpy(values).to(torch.bfloat16)
    assert set(checkpoint.tensors) == {"norm.weight", NAME}
    assert checkpoint.tensors[NAME].shape == (OUT, IN)
    assert "quantization_config" not in checkpoint.config
    decoded = dict(checkpoint.stream([NAME, "norm.weight"]))
    # Twice rounded values may differ by one unit in the last place.
    torch.testing.assert_close(decoded[NAME], expected, rtol=2**-7, atol=1e-6)
    assert torch.equal(decoded["norm.weight"], torch.ones(3))
    stripes = [range(0, 3), range(130, 133)]
    rows_read = dict(checkpoint.stripes({NAME: stripes}))[NAME]
    assert torch.equal(rows_read, torch.cat([decoded[NAME][stripe.start : stripe.stop] for stripe in stripes]))
    assert torch.equal(dict(checkpoint.rows({NAME: range(5, 9)}))[NAME], decoded[NAME][5:9])


@pytest.mark.parametrize("case", ["fp8, a scale a row", "fp8, blocks of 128", "mlx, 8 bits"])
def test_a_base_is_rounded_to_the_nearest_value(tmp_path: Path, case: str) -> None:
    make, settings = CASES[case]
    tensors, exact = make()
    checkpoint = written(tmp_path, tensors, quantization_config=settings)
    ((name, values),) = checkpoint.stream([NAME])
    original = torch.from_numpy(exact).float()
    assert torch.equal(checkpoint.rounded_like(name, original), values)  # what did not change is equal
    # Less than half a step away, the nearest code is the same.
    step = tensors["layer.0.scales"].float().repeat_interleave(64, dim=1) if "mlx" in case else original * 2.0**-4
    nudged = original + 0.3 * step
    assert torch.equal(checkpoint.rounded_like(name, nudged), values)
    rows = torch.tensor([7, 150])
    assert torch.equal(checkpoint.rounded_like(name, nudged[rows], rows), values[rows])


@pytest.mark.parametrize(
    ("tensors", "settings"),
    [
        ({NAME: torch.zeros(8, 8, dtype=torch.uint8)}, {"quant_method": "hqq"}),
        ({"layer.0.weight_packed": torch.zeros(8, 8, dtype=torch.int32)}, {"quant_method": "compressed-tensors"}),
        ({"layer.0.qweight": torch.zeros(8, 8, dtype=torch.int32)}, {"quant_method": "gptq"}),
        (mlx(4)[0], {"bits": 7, "group_size": 64}),
        (
            mlx(4)[0] | {"layer.0.scales": torch.zeros(OUT, 7), "layer.0.biases": torch.zeros(OUT, 7)},
            {"bits": 4, "group_size": 64},
        ),
    ],
)
def test_other_forms_are_refused_in_one_sentence(tmp_path: Path, tensors: Any, settings: Any) -> None:
    with pytest.raises(Skipped, match="quantised by") as skip:
        written(tmp_path, tensors, quantization_config=settings)
    assert skip.value.reason == "quantized"


@pytest.mark.parametrize("shape", [(3, 2), (OUT, 2), (2,), (0,)])
def test_scales_that_do_not_fit_are_not_guessed(tmp_path: Path, shape: tuple[int, ...]) -> None:
    tensors, _ = fp8((2, 2), (128, 128), "weight_scale_inv")
    tensors["layer.0.weight_scale_inv"] = torch.ones(shape)
    checkpoint = written(tmp_path, tensors, quantization_config={"quant_method": "fp8"})
    with pytest.raises(Skipped) as skip:
        list(checkpoint.stream([NAME]))
    assert skip.value.reason == "unreadable_dtype"


def test_a_model_whose_other_parts_are_quantised_is_read(tmp_path: Path) -> None:
    experts = {"layer.0.experts.gate_up_proj_blocks": torch.zeros(2, 4, 2, 16, dtype=torch.uint8)}
    checkpoint = written(tmp_path, experts | {NAME: torch.ones(4, 4)}, quantization_config={"quant_method": "mxfp4"})
    assert torch.equal(dict(checkpoint.stream([NAME]))[NAME], torch.ones(4, 4))
