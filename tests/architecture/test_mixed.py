"""Models whose layers are not alike and models with experts, built and saved by transformers itself."""

from __future__ import annotations

import json
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from indexer.checkpoints.architectures.architecture import Layout, compare, load_architecture
from indexer.errors import Skipped
from indexer.names import DeltaKey
from tests.architecture.mixed import MIXED, TOWERS, build, build_towers, parts_of

# One of each way to store layers or experts; the others are slow.
USUAL = (
    "qwen3_5_text", "qwen3_next", "gemma4_text", "gemma4_text shared", "lfm2_moe", "nemotron_h", "granitemoehybrid",
    "falcon_h1", "mamba", "zamba2", "minimax", "deepseek_v3", "gpt_oss", "llama4_text", "qwen3_vl_moe_text",
)  # fmt: skip
State = dict[str, Tensor]


def saved(name: str, folder: Path, model: torch.nn.Module | None = None) -> tuple[State, dict]:
    (model or build(name)).save_pretrained(folder)
    return load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())


def located(tensors: State, config: dict) -> Layout:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return load_architecture(config["model_type"]).locate(shapes, config)


def matrices(tensors: State, layout: Layout) -> dict[DeltaKey, Tensor]:
    extracted = {}
    for matrix in layout.matrices:
        stored = tensors[matrix.tensor]
        extracted[matrix.key] = matrix.extract(stored.flatten(0, -2)[: matrix.leading] if matrix.leading else stored)
    return extracted


def refused(tensors: State, config: dict) -> Skipped:
    with pytest.raises(Skipped) as error:
        located(tensors, config)
    return error.value


@pytest.mark.parametrize(
    "name", [*USUAL, *(pytest.param(name, marks=pytest.mark.slow) for name in MIXED if name not in USUAL)]
)
def test_planted_deltas_are_read_back(name: str, tmp_path: Path) -> None:
    model = build(name)
    base, config = saved(name, tmp_path / "base", model)
    generator, planted = torch.Generator().manual_seed(1), {}
    with torch.no_grad():
        for layer, family, matrix in parts_of(model, name):
            delta = torch.randn(matrix.shape, generator=generator)
            matrix += delta
            planted[DeltaKey("", layer, family)] = delta.flatten(0, -2)
    tuned, tuned_config = saved(name, tmp_path / "tuned", model)
    before, after = located(base, config), located(tuned, tuned_config)
    compare(before, after)
    first, second = matrices(base, before), matrices(tuned, after)
    assert first.keys() == planted.keys()
    for key, delta in planted.items():
        torch.testing.assert_close(second[key] - first[key], delta, rtol=0, atol=1e-5, msg=str(key))
    # What a stored base keeps of the header is enough to find the matrices again.
    base_tensors = {name: base[name] for name in before.tensors}
    assert located(base_tensors, config) == before


@pytest.mark.parametrize("name", [name for name in TOWERS if name != "gemma3n"])  # its vision tower needs timm
def test_the_language_model_beside_a_tower_is_found(name: str, tmp_path: Path) -> None:
    tensors, config = saved("", tmp_path / name, build_towers(name))
    alone = located(*saved(TOWERS[name][0], tmp_path / "text"))
    layout = located(tensors, config)
    assert [(matrix.key, matrix.shape) for matrix in layout.matrices] == [
        (matrix.key, matrix.shape) for matrix in alone.matrices
    ]
    assert all("language_model" in matrix.tensor for matrix in layout.matrices)


def test_a_query_of_qwen_3_5_acts_on_no_single_token_and_its_gate_does(tmp_path: Path) -> None:
    """Over one token the softmax is 1, so queries change nothing: an experiment, not the code, tells the rows apart."""
    model = build("qwen3_5_text")
    (matrix,) = [matrix for matrix in located(*saved("", tmp_path, model)).matrices if str(matrix.key) == "3.query"]
    token = torch.tensor([[5]])
    weight = model.model.layers[3].self_attn.q_proj.weight
    chosen = matrix.rows.take(torch.arange(len(weight)))
    other_rows = torch.tensor(sorted(set(range(len(weight))) - set(chosen.tolist())))
    with torch.no_grad():
        before = model(token).logits
        weight[chosen] += 1.0
        assert torch.allclose(model(token).logits, before, atol=1e-5)
        weight[other_rows] += 1.0
        assert not torch.allclose(model(token).logits, before, atol=1e-3)


def test_every_matrix_that_a_base_needs_is_missed(tmp_path: Path) -> None:
    """By the config's types where it has them, else by what the layer has of its part."""
    for name in ("qwen3_5_text", "gemma4_text", "lfm2", "nemotron_h", "bamba", "deepseek_v3", "qwen3_next"):
        tensors, config = saved(name, tmp_path / name)
        layout = located(tensors, config)
        for tensor in layout.tensors:
            error = refused({other: value for other, value in tensors.items() if other != tensor}, config)
            assert (error.reason, tensor in error.detail) == ("missing_matrices", True)
        last = max(matrix.key.layer for matrix in layout.matrices)
        cut = {other: value for other, value in tensors.items() if f".{last}." not in other}
        assert refused(cut, config).reason == "missing_matrices"


def test_a_layer_of_another_type_than_the_config_says_is_refused(tmp_path: Path) -> None:
    tensors, config = saved("qwen3_5_text", tmp_path)
    types = config["layer_types"]
    assert refused(tensors, config | {"layer_types": types[::-1]}).reason == "missing_matrices"
    older = {key: value for key, value in config.items() if key != "layer_types"}
    assert located(tensors, older) == located(tensors, config)
    for wrong in (3, [1, 2], {"a": 1}):
        assert refused(tensors, config | {"layer_types": wrong}).reason == "malformed"
    for wrong in ("many", -1, 10**9, 2.5):
        assert refused(tensors, config | {"num_hidden_layers": wrong}).reason == "malformed"


def test_layers_have_the_numbers_of_the_checkpoint(tmp_path: Path) -> None:
    layout = located(*saved("lfm2", tmp_path))
    assert {matrix.key.layer for matrix in layout.matrices if matrix.key.family == "query"} == {2}
    assert {matrix.key.layer for matrix in layout.matrices if matrix.key.family == "conv_b"} == {0, 1, 3}


def test_layers_that_predict_later_tokens_are_ignored(tmp_path: Path) -> None:
    """GLM-4-MoE and DeepSeek-V3 store them after the others (modeling_deepseek_v3.py ignores ``model.layers.61``)."""
    tensors, config = saved("deepseek_v3", tmp_path)
    more = {name.replace("layers.3.", "layers.4."): tensor for name, tensor in tensors.items() if "layers.3." in name}
    assert located(tensors | more, config) == located(tensors, config)


def test_keys_and_values_that_are_not_used_are_ignored(tmp_path: Path) -> None:
    """google/gemma-3n stores those of the layers that use earlier ones; transformers 5 saves none of them."""
    tensors, config = saved("gemma3n_text", tmp_path)
    layout = located(tensors, config)
    extra = {
        f"model.layers.{layer}.self_attn.{name}_proj.weight": torch.ones(16, 24) for layer in (4, 5) for name in "kv"
    }
    assert located(tensors | extra, config) == layout
    # They were modules before transformers 5, so adapters may have factors for them.
    architecture = load_architecture("gemma3n_text")
    assert architecture.locate_modules(["model.layers.5.self_attn.k_proj"], layout) == {}
    assert len(architecture.locate_modules(["model.layers.3.self_attn.k_proj"], layout)) == 1
    with pytest.raises(Skipped, match="no key"):
        load_architecture("qwen3_5").locate_modules(
            ["model.layers.0.self_attn.k_proj"],
            Layout("", "model.", tuple(matrix for matrix in layout.matrices if matrix.key.family != "key")),
        )


def test_experts_are_the_same_however_they_are_stored(tmp_path: Path) -> None:
    apart, config = saved("qwen3_5_moe_text", tmp_path)
    stacked = {name: tensor for name, tensor in apart.items() if ".experts." not in name}
    for layer in range(4):
        prefix = f"model.layers.{layer}.mlp.experts"
        gate, up, down = (
            torch.stack([apart[f"{prefix}.{expert}.{part}_proj.weight"] for expert in range(3)])
            for part in ("gate", "up", "down")
        )
        stacked[f"{prefix}.gate_up_proj"] = torch.cat([gate, up], dim=1)
        stacked[f"{prefix}.down_proj"] = down
    compare(located(apart, config), located(stacked, config))
    first, second = matrices(apart, located(apart, config)), matrices(stacked, located(stacked, config))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)

    other_way, config = saved("qwen3_vl_moe_text", tmp_path)
    transposed = {name: tensor.mT.contiguous() if ".experts." in name else tensor for name, tensor in other_way.items()}
    first, second = matrices(other_way, located(other_way, config)), matrices(transposed, located(transposed, config))
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_of_several_experts_the_first_is_read_and_all_are_checked_by_shape(tmp_path: Path) -> None:
    tensors, config = saved("gpt_oss", tmp_path)
    layout = located(tensors, config)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    for shape in ((24, 80), (3, 24, 80, 1), (3, 24, 0), (3, 24, 81)):
        assert refused(tensors | {name: torch.empty(shape)}, config).reason == "malformed"
    assert located(tensors | {name: torch.empty(500, 24, 80)}, config).by_key == layout.by_key


def test_experts_may_be_missing_only_where_they_are_quantised(tmp_path: Path) -> None:
    """openai/gpt-oss stores ``…_blocks`` and ``…_scales`` (mxfp4) instead."""
    tensors, config = saved("gpt_oss", tmp_path)
    attention = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    assert refused(attention, config).reason == "missing_matrices"
    layout = located(attention, config | {"quantised": True})
    assert {matrix.key.family for matrix in layout.matrices} == {"query", "key", "value", "output"}


# --- LoRA, by peft

LORA = {
    "qwen3_5_text": ["q_proj", "k_proj", "o_proj", "in_proj_qkv", "in_proj_z", "out_proj", "up_proj"],
    "qwen3_next": ["q_proj", "in_proj_qkvz", "out_proj"],
    "gemma4_text": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj"],
    "lfm2": ["in_proj", "out_proj", "q_proj", "w1", "w3"],
    "granitemoehybrid": ["in_proj", "q_proj", "input_linear"],
    "nemotron_h": ["in_proj", "q_proj", "up_proj"],
    "deepseek_v3": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"],
    "gpt_oss": ["q_proj", "o_proj"],
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", LORA)
def test_lora_factors_make_the_difference_of_the_merged_weights(name: str, tmp_path: Path) -> None:
    base, config = saved(name, tmp_path / "base")
    layout = located(base, config)
    settings = peft.LoraConfig(r=3, lora_alpha=6, target_modules=LORA[name], init_lora_weights=False)
    if name in ("gemma4_text", "granitemoehybrid"):
        settings.exclude_modules = r".*(experts|block_sparse_moe|per_layer).*"
    model = peft.get_peft_model(build(name), settings)
    model.save_pretrained(tmp_path / "adapter")
    stored = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    ending = ".lora_A.weight"
    paths = [key.removeprefix("base_model.model.").removesuffix(ending) for key in stored if key.endswith(ending)]
    merged, _ = saved(name, tmp_path / "merged", model.merge_and_unload())
    first, second = matrices(base, layout), matrices(merged, located(merged, config))
    deltas: dict[DeltaKey, Tensor] = {}
    for path, module_matrices in load_architecture(config["model_type"]).locate_modules(paths, layout).items():
        factors = [stored[f"base_model.model.{path}.lora_{part}.weight"] for part in "AB"]
        for matrix in module_matrices:
            a, b = matrix.extract_lora(*factors)
            assert matrix.key not in deltas
            deltas[matrix.key] = 2.0 * (b @ a)
    assert deltas
    for key in first:
        expected = deltas.get(key, torch.zeros_like(first[key]))
        torch.testing.assert_close(second[key] - first[key], expected, rtol=0, atol=1e-4, msg=str(key))


def test_adapters_on_other_experts_than_the_first_are_left_out(tmp_path: Path) -> None:
    layout = located(*saved("mixtral", tmp_path))
    modules = [f"model.layers.0.block_sparse_moe.experts.{expert}.w1" for expert in range(3)]
    (module_and_matrices,) = load_architecture("mixtral").locate_modules(modules, layout).items()
    assert module_and_matrices[0] == modules[0]
    assert [matrix.key for matrix in module_and_matrices[1]] == [DeltaKey("", 0, "expert_gate")]


def test_a_saved_stack_of_experts_is_not_read_as_one_matrix(tmp_path: Path) -> None:
    """granitemoe's tensors end in ".weight" and have three sizes; a matrix in their place is refused."""
    tensors, config = saved("granitemoe", tmp_path)
    name = "model.layers.0.block_sparse_moe.input_linear.weight"
    save_file(tensors | {name: tensors[name][0].contiguous()}, tmp_path / "flat.safetensors")
    assert refused(load_file(tmp_path / "flat.safetensors"), config).reason == "malformed"
