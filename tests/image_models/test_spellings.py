"""Names of modules in LoRAs of image models, and what they change."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from indexer.checkpoints.adapter import adapter_plan
from indexer.checkpoints.architectures.architecture import load_architecture
from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.checkpoints.checkpoint_files import choose
from indexer.deltas.adapter_deltas import deltas_on, dense
from indexer.deltas.base import BaseMatrices, store_base
from indexer.deltas.delta import LoraDelta
from indexer.errors import Skipped
from indexer.names import DeltaKey
from indexer.sources.registry import ModelRef
from tests.image_models.written import (
    OF_DIFFUSERS,
    factors,
    flux_shapes,
    random_tensors,
    save_by_diffusers,
    save_by_kohya,
    save_pipeline,
    unet_shapes,
)

# sd-scripts names FLUX's modules as the original code does; four of a single block are one (networks/lora_flux.py).
FUSED = {
    "double_blocks.{}.img_attn.qkv": [f"transformer_blocks.{{}}.attn.to_{one}" for one in "qkv"],
    "double_blocks.{}.img_attn.proj": ["transformer_blocks.{}.attn.to_out.0"],
    "double_blocks.{}.img_mlp.0": ["transformer_blocks.{}.ff.net.0.proj"],
    "double_blocks.{}.img_mlp.2": ["transformer_blocks.{}.ff.net.2"],
    "double_blocks.{}.txt_attn.qkv": [f"transformer_blocks.{{}}.attn.add_{one}_proj" for one in "qkv"],
    "double_blocks.{}.txt_attn.proj": ["transformer_blocks.{}.attn.to_add_out"],
    "double_blocks.{}.txt_mlp.0": ["transformer_blocks.{}.ff_context.net.0.proj"],
    "double_blocks.{}.txt_mlp.2": ["transformer_blocks.{}.ff_context.net.2"],
    "single_blocks.{}.linear1": [*(f"single_transformer_blocks.{{}}.attn.to_{one}" for one in "qkv"),
                                 "single_transformer_blocks.{}.proj_mlp"],
    "single_blocks.{}.linear2": ["single_transformer_blocks.{}.proj_out"],
}  # fmt: skip
SHAPES = {"FluxTransformer2DModel": flux_shapes(), "UNet2DConditionModel": unet_shapes()}


def stored(folder: Path, name: str, component: str, **options: bool) -> BaseMatrices:
    weights = random_tensors(SHAPES[name], 1)
    save_pipeline(folder / "base", weights, component, name)
    checkpoint = open_checkpoint(ModelRef("org/base", folder=folder / "base", subfolder=component))
    path = folder / "base.safetensors"
    return store_base(checkpoint, "org/base", "c" * 40, path, component=component, **options)


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> BaseMatrices:
    return stored(tmp_path_factory.mktemp("flux"), "FluxTransformer2DModel", "transformer", is_sampled=True)


@pytest.fixture(scope="module")
def unet(tmp_path_factory: pytest.TempPathFactory) -> BaseMatrices:
    return stored(tmp_path_factory.mktemp("unet"), "UNet2DConditionModel", "unet")


def changes(folder: Path, base: BaseMatrices) -> dict[str, torch.Tensor]:
    """δW by the tensor of the base's checkpoint, whole."""
    checkpoint = open_checkpoint(ModelRef("a/b", folder=folder), relation="adapter")
    found: dict[str, torch.Tensor] = {}
    for delta in deltas_on(checkpoint, base):
        matrix = base.layout.by_key[delta.key]
        whole = found.setdefault(matrix.tensor, torch.zeros(matrix.stored_rows, matrix.shape[1]))
        is_lora = isinstance(delta, LoraDelta)
        change = delta.scale * (delta.b @ delta.a) if is_lora else dense(delta, base.matrix(delta.key)).matrix
        rows = torch.arange(len(whole)) if matrix.rows is None else matrix.rows.take(torch.arange(len(whole)))
        whole[rows] = change
    return found


def check(found: dict[str, torch.Tensor], made: dict[str, tuple[torch.Tensor, torch.Tensor]], scale: float) -> None:
    assert set(found) == {f"{name}.weight" for name in made}
    for name, (a, b) in made.items():
        torch.testing.assert_close(found[f"{name}.weight"], scale * (b @ a), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", OF_DIFFUSERS)
def test_a_tensor_of_every_class_is_known(name: str) -> None:
    """Of each stack one layer is made from the data file; the sample tensor is spelt out in ``OF_DIFFUSERS``."""
    architecture = load_architecture(name)
    shapes = {
        f"{pattern.name((0,) * 9)}.weight": (72, 72) for stack in architecture.stacks for pattern in stack.patterns
    }
    tensor, keys = OF_DIFFUSERS[name]
    assert f"{tensor}.weight" in shapes
    layout = architecture.locate(shapes, {"_class_name": name})
    assert [str(matrix.key) for matrix in layout.by_tensor[f"{tensor}.weight"]] == sorted(
        keys, key=lambda key: DeltaKey.parse(key).sort_key
    )


def test_layers_are_counted_by_stack(flux: BaseMatrices, unet: BaseMatrices) -> None:
    assert flux.layout.depth == {"image": 2, "text": 2, "single": 2}
    assert unet.layout.depth == {"down": 6, "mid": 2, "up": 9}
    keys = {matrix.key: matrix.tensor for matrix in unet.layout.matrices}
    assert keys[DeltaKey("down", 2, "query")] == "down_blocks.2.attentions.0.transformer_blocks.0.attn1.to_q.weight"
    assert keys[DeltaKey("up", 6, "cross_value")] == "up_blocks.1.attentions.0.transformer_blocks.0.attn2.to_v.weight"
    assert {str(key) for key, tensor in keys.items() if "mid_block.attentions.0.transformer_blocks.1.ff" in tensor} == {
        "mid.1.feedforward1", "mid.1.gate", "mid.1.feedforward2",
    }  # fmt: skip


@pytest.mark.parametrize(("alpha", "scale"), [(None, 1.0), (6.0, 1.5)])
def test_saved_by_diffusers(tmp_path: Path, flux: BaseMatrices, unet: BaseMatrices, alpha: float, scale: float) -> None:
    for name, base, component in (
        ("FluxTransformer2DModel", flux, "transformer"),
        ("UNet2DConditionModel", unet, "unet"),
    ):
        made = factors(SHAPES[name], 2)
        save_by_diffusers(tmp_path / name, made, component, alpha)
        check(changes(tmp_path / name, base), made, scale)


@pytest.mark.parametrize("alpha", [None, 2.0])
def test_kohyas_names_of_flux(tmp_path: Path, flux: BaseMatrices, alpha: float | None) -> None:
    shapes = flux_shapes()
    fused, parts = {}, {}
    for name, modules in FUSED.items():
        for layer in (0, 1):
            inner = [one.format(layer) for one in modules]
            parts[name.format(layer)] = inner
            fused[name.format(layer)] = (sum(shapes[one][0] for one in inner), shapes[inner[0]][1])
    made = factors(fused, 3)
    expected = {}
    for name, (a, b) in made.items():
        rows = b.split([shapes[one][0] for one in parts[name]])
        expected |= {one: (a, of_one) for one, of_one in zip(parts[name], rows, strict=True)}
    assert set(expected) == set(shapes)
    save_by_kohya(tmp_path / "kohya", made, alpha, ("my-style-000002.safetensors", "my-style.safetensors"))
    check(changes(tmp_path / "kohya", flux), expected, 1.0 if alpha is None else alpha / 4)
    plan = adapter_plan(open_checkpoint(ModelRef("a/b", folder=tmp_path / "kohya"), relation="adapter"))
    assert (plan.kind, plan.passed_over) == ("LoRA", ("factors of text encoders: 1",))
    # ComfyUI and the original code: dots, after a prefix of their own.
    tensors = {}
    for name, (a, b) in made.items():
        tensors |= {f"diffusion_model.{name}.lora_A.weight": a, f"diffusion_model.{name}.lora_B.weight": b}
    (tmp_path / "dots").mkdir()
    save_file(tensors, tmp_path / "dots" / "mine.safetensors")
    check(changes(tmp_path / "dots", flux), expected, 1.0)


def original_name(name: str) -> str:
    """A module of the U-Net by the original code's name: blocks of three modules, counted through from 1 or 0."""
    parts = name.split(".")
    if parts[0] == "mid_block":
        return ".".join(["middle_block", "1", *parts[3:]])
    block, attention = int(parts[1]), int(parts[3])
    place = ["input_blocks", str(1 + 3 * block + attention)] if parts[0] == "down_blocks" else [
        "output_blocks", str(3 * block + attention)]  # fmt: skip
    return ".".join([*place, "1", *parts[4:]])


def test_names_of_the_unet(tmp_path: Path, unet: BaseMatrices) -> None:
    made = factors(unet_shapes(), 4)
    save_by_kohya(tmp_path / "sd15", made, 2.0, ("a.safetensors",))
    check(changes(tmp_path / "sd15", unet), made, 0.5)
    save_by_kohya(
        tmp_path / "sdxl", {original_name(name): pair for name, pair in made.items()}, 2.0, ("a.safetensors",)
    )
    check(changes(tmp_path / "sdxl", unet), made, 0.5)
    older = {}
    for name, (a, b) in made.items():
        is_attention = ".attn" in name
        module = f"unet.{name}".replace(".attn1.", ".attn1.processor.").replace(".attn2.", ".attn2.processor.")
        module = f"{module.removesuffix('.0')}_lora" if is_attention else f"unet.{name}.lora"
        older |= {f"{module}.down.weight": a, f"{module}.up.weight": b}
    (tmp_path / "older").mkdir()
    save_file(older, tmp_path / "older" / "pytorch_lora_weights.safetensors")
    check(changes(tmp_path / "older", unet), made, 1.0)


def test_lokr_and_dora_of_lycoris(tmp_path: Path, unet: BaseMatrices) -> None:
    """LyCORIS, modules/lokr.py: kron(w1, w2a·w2b)·alpha/r; two whole matrices are not scaled. dora_scale is (out, 1)."""
    torch.manual_seed(0)
    name, whole = (f"down_blocks.1.attentions.{one}.transformer_blocks.0.attn1.to_q" for one in (0, 1))
    w1, a, b = torch.randn(4, 4), torch.randn(4, 2), torch.randn(2, 4)
    key, other = (f"lora_unet_{one.replace('.', '_')}" for one in (name, whole))
    tensors = {f"{key}.lokr_w1": w1, f"{key}.lokr_w2_a": a, f"{key}.lokr_w2_b": b, f"{key}.alpha": torch.tensor(1.0),
               f"{other}.lokr_w1": w1.clone(), f"{other}.lokr_w2": torch.eye(4), f"{other}.alpha": torch.tensor(1.0)}  # fmt: skip
    (tmp_path / "lokr").mkdir()
    save_file(tensors, tmp_path / "lokr" / "a.safetensors")
    found = changes(tmp_path / "lokr", unet)
    torch.testing.assert_close(found[f"{name}.weight"], torch.kron(w1, a @ b) * 0.5)
    torch.testing.assert_close(found[f"{whole}.weight"], torch.kron(w1, torch.eye(4)))
    weight = unet.matrix(DeltaKey("down", 0, "query"))
    down, up, lengths = torch.randn(2, 16), torch.randn(16, 2), torch.rand(16, 1) + 1
    (tmp_path / "dora").mkdir()
    save_file({f"{key}.lora_down.weight": down, f"{key}.lora_up.weight": up, f"{key}.dora_scale": lengths},
              tmp_path / "dora" / "a.safetensors")  # fmt: skip
    turned = weight + up @ down
    expected = lengths * turned / turned.norm(dim=1, keepdim=True) - weight
    torch.testing.assert_close(changes(tmp_path / "dora", unet)[f"{name}.weight"], expected, rtol=1e-4, atol=1e-5)
    # The lengths of rows count for every product: one of factors, and one of half of full rank or more.
    (tmp_path / "both").mkdir()
    for w2 in ({"lokr_w2_a": a[:, :1].clone(), "lokr_w2_b": b[:1].clone()}, {"lokr_w2": a @ b}):
        parts = {"lokr_w1": w1, **w2, "dora_scale": lengths}
        save_file({f"{key}.{part}": tensor for part, tensor in parts.items()}, tmp_path / "both" / "a.safetensors")
        turned = weight + torch.kron(w1, w2["lokr_w2"] if "lokr_w2" in w2 else w2["lokr_w2_a"] @ w2["lokr_w2_b"])
        expected = lengths * turned / turned.norm(dim=1, keepdim=True) - weight
        found = changes(tmp_path / "both", unet)[f"{name}.weight"]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("relation", "names", "winner"),
    [
        ("adapter", "pytorch_lora_weights.safetensors other.safetensors", "pytorch_lora_weights.safetensors"),
        ("finetune", "pytorch_lora_weights.safetensors", "pytorch_lora_weights.safetensors"),
        ("adapter", "style-000002.safetensors style-000010.safetensors style.safetensors", "style.safetensors"),
        ("adapter", "style_000000250.safetensors style_000001000.safetensors", "style_000001000.safetensors"),
        ("adapter", "anything v2.safetensors README.md", "anything v2.safetensors"),
        ("adapter", "one.safetensors two.safetensors", None),
        ("adapter", "adapter_model.safetensors two.safetensors", "adapter_model.safetensors"),
    ],
)
def test_which_file_is_the_lora(relation: str, names: str, winner: str | None) -> None:
    files = [
        name.strip() + ".safetensors" for name in names.split(".safetensors") if name.strip() and name != " README.md"
    ]
    if winner is None:
        with pytest.raises(Skipped, match="2 safetensors"):
            choose(files, relation)
    else:
        choice = choose(files, relation)
        assert (choice.kind, choice.name) == ("adapter", winner)


@pytest.mark.parametrize(
    ("tensors", "reason", "word"),
    [
        ({"weight": (2, 2)}, "malformed", "named like those of a LoRA"),
        ({"lora_te_x.lora_down.weight": (2, 4), "lora_te_x.lora_up.weight": (4, 2)}, "adapter_unsupported", "text"),
        ({"lora_unet_x.lora_down.weight": (2, 4)}, "malformed", "named like"),
        ({"a.lora_down.weight": (2, 4), "a.lora_up.weight": (4, 3)}, "malformed", "not a pair"),
        ({"a.lora_down.weight": (2, 4), "a.lora_up.weight": (4, 2), "a.alpha": (2,)}, "malformed", "alpha"),
        (
            {"a.lora_down.weight": (2, 4, 3, 3), "a.lora_up.weight": (4, 2, 1, 1)},
            "adapter_unsupported",
            "only factors of convolutions",
        ),
        (
            {"a.lora_down.weight": (2, 4), "a.lora_up.weight": (4, 2), "a.dora_scale": (1, 4)},
            "adapter_unsupported",
            "columns",
        ),
        ({"a.lora_A.weight": (2, 4), "a.lora_down.weight": (2, 4), "a.lora_B.weight": (4, 2)}, "malformed", "twice"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, tensors: dict[str, tuple[int, ...]], reason: str, word: str) -> None:
    save_file({name: torch.ones(shape) for name, shape in tensors.items()}, tmp_path / "a.safetensors")
    with pytest.raises(Skipped, match=word) as skip:
        adapter_plan(open_checkpoint(ModelRef("a/b", folder=tmp_path), relation="adapter"))
    assert skip.value.reason == reason


def test_of_a_sampled_base_rows_and_norms_are_kept_but_no_whole_matrices(tmp_path: Path, flux: BaseMatrices) -> None:
    whole = stored(tmp_path, "FluxTransformer2DModel", "transformer")
    assert flux.path.stat().st_size < 0.6 * whole.path.stat().st_size
    assert flux.block_bytes == whole.block_bytes
    for key, norm in whole.norms.items():
        assert flux.norms[key] == pytest.approx(norm, rel=0.05)
        assert torch.equal(flux.leading(key, 32, 100), whole.matrix(key)[:32, :100])
        lines = torch.tensor([0, 5, len(whole.matrix(key)) - 1]).numpy()
        assert torch.equal(flux.lines(key, lines), whole.lines(key, lines))
    with pytest.raises(Skipped) as skip:
        flux.matrix(DeltaKey("image", 0, "query"))
    assert skip.value.reason == "base_sampled"
