"""Which of a repository's files are read, and what is said of those that cannot be."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.checkpoints.checkpoint_files import choose
from indexer.errors import Skipped


@pytest.mark.parametrize(
    ("relation", "names", "winner"),
    [
        # One row of the table against the next.
        (
            "adapter",
            "adapter_model.safetensors adapter_model.bin model.safetensors",
            "adapter_model.safetensors",
        ),
        ("adapter", "adapter_model.bin model.safetensors", "adapter_model.bin"),
        ("adapter", "model.safetensors", "model.safetensors"),
        ("finetune", "model.safetensors model.safetensors.index.json pytorch_model.bin", "model.safetensors"),
        ("finetune", "model.safetensors.index.json pytorch_model.bin", "model.safetensors.index.json"),
        ("finetune", "pytorch_model.bin pytorch_model.bin.index.json", "pytorch_model.bin"),
        ("finetune", "pytorch_model.bin.index.json other.safetensors", "pytorch_model.bin.index.json"),
        ("finetune", "pytorch_model.bin model.fp16.safetensors", "pytorch_model.bin"),
        ("finetune", "my-model.safetensors model.fp16.safetensors", "my-model.safetensors"),
        ("finetune", "model.fp16.safetensors", "model.fp16.safetensors"),
        ("finetune", "adapter_model.safetensors model.safetensors", "model.safetensors"),
        ("merge", "adapter_model.bin", "adapter_model.bin"),
        ("finetune", "consolidated.safetensors mine.safetensors", "mine.safetensors"),
        ("finetune", "training_args.bin optimizer.bin scheduler.bin pytorch_model.bin", "pytorch_model.bin"),
        (
            "finetune",
            "0_Transformer/pytorch_model.bin 1_Pooling/pytorch_model.bin",
            "0_Transformer/pytorch_model.bin",
        ),
        (
            "finetune",
            "checkpoint-900/model.safetensors checkpoint-1000/model.safetensors checkpoint-1100/trainer_state.json",
            "checkpoint-1000/model.safetensors",
        ),
        ("finetune", "checkpoint-5/pytorch_model.bin pytorch_model.bin", "pytorch_model.bin"),
        ("adapter", "checkpoint-5/adapter_model.bin README.md", "checkpoint-5/adapter_model.bin"),
        ("finetune", "weights/model.safetensors onnx/model.onnx", "weights/model.safetensors"),
        ("finetune", "a/b/model.safetensors pytorch_model.bin", "pytorch_model.bin"),
        ("finetune", "step-9/model.safetensors step-10/model.safetensors", "step-10/model.safetensors"),
        (
            "finetune",
            "global_step_80/model.safetensors global_step120/pytorch_model.bin",
            "global_step120/pytorch_model.bin",
        ),
        ("adapter", "epoch_1/adapter_model.bin epoch_2/adapter_model.bin", "epoch_2/adapter_model.bin"),
        ("finetune", "checkpoint-5/model.safetensors epoch_9/model.safetensors", "checkpoint-5/model.safetensors"),
        ("finetune", "checkpoint-5/model.safetensors final/model.safetensors", "final/model.safetensors"),
        (
            "finetune",
            "run/checkpoint-5/model.safetensors run/checkpoint-50/model.safetensors",
            "run/checkpoint-50/model.safetensors",
        ),
        ("finetune", "step_5/hf/model.safetensors step_15/hf/model.safetensors", "step_15/hf/model.safetensors"),
        (
            "finetune",
            "epoch_2/step_5/model.safetensors epoch_1/step_9/model.safetensors",
            "epoch_2/step_5/model.safetensors",
        ),
        ("adapter", "adapter/adapter_model.bin all/checkpoint-3/adapter_model.bin", "adapter/adapter_model.bin"),
        ("finetune", "export/hf/model.safetensors onnx/model.onnx", "export/hf/model.safetensors"),
        ("quantized", "m-Q4_K_M.gguf m-Q8_0.gguf m-IQ3_XS.gguf mmproj-m-f16.gguf", "m-Q8_0.gguf"),
        ("finetune", "m.Q8_0.gguf m.bf16.gguf m.onnx", "m.bf16.gguf"),
        ("finetune", "m-Q8_0-00002-of-00002.gguf m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00001-of-00002.gguf"),
        ("finetune", "m.gguf pytorch_model.bin", "pytorch_model.bin"),
        ("finetune", "onnx/model.onnx onnx/model_quantized.onnx README.md", "onnx/model.onnx"),
    ],
)
def test_the_table(relation: str, names: str, winner: str) -> None:
    for order in itertools.islice(itertools.permutations(names.split()), 6):
        choice = choose(order, relation)
        assert choice.folder + choice.name == winner
        assert choice.kind == ("adapter" if "adapter_model" in winner else "full")


@pytest.mark.parametrize(
    ("names", "reason", "words"),
    [
        ("", "no_weights", []),
        ("README.md config.json", "no_weights", []),
        ("training_args.bin optimizer.pt scheduler.pt rng_state.pth optimizer.safetensors", "no_weights", []),
        ("mmproj-model-f16.gguf README.md", "unreadable_format", ["GGUF"]),
        ("ggml-model-q4_0.bin", "unreadable_format", ["GGML"]),
        (
            "onnx/model.ort tf_model.h5 flax_model.msgpack",
            "unreadable_format",
            ["ONNX", "TensorFlow", "flax"],
        ),
        ("consolidated.safetensors", "unreadable_format", ["consolidated"]),
        ("consolidated.00.pth", "unreadable_format", ["consolidated"]),
        ("model.ckpt", "unreadable_format", ["PyTorch"]),
        ("model.bin config.json vocabulary.json", "unreadable_format", ["CTranslate2"]),
        ("model.rknn", "unreadable_format", ["device"]),
        ("weights.npz", "unreadable_format", ["NumPy", "not read", "save_pretrained"]),
        ("lora/adapters.npz config.json", "unreadable_format", ["NumPy"]),
        ("any-name.npz tokenizer.json", "unreadable_format", ["NumPy"]),
        ("a.onnx b.onnx decoder_model.onnx_data x.onnx.data", "unreadable_format", ["ONNX", "not read"]),
        ("checkpoint-5/pytorch_model_fsdp_0/__0_0.distcp", "unreadable_format", ["distributed"]),
        ("model_state.pdparams", "unreadable_format", ["PaddlePaddle"]),
        ("model.pkl", "unreadable_format", ["pickles"]),
        ("openvino_model.bin openvino_model.xml", "unreadable_format", ["OpenVINO"]),
        ("model-00001-of-00002.safetensors model-00002-of-00002.safetensors", "no_weights", ["index"]),
        ("a.safetensors b.safetensors", "no_weights", ["2 safetensors"]),
        ("unet/model.safetensors vae/model.safetensors", "no_weights", ["'unet/'", "'vae/'"]),
        ("a/step-1/model.safetensors b/step-2/model.safetensors", "no_weights", ["'a/step-1/'", "'b/step-2/'"]),
        ("step-1/actor/model.safetensors step-1/critic/model.safetensors", "no_weights", ["critic"]),
        ("a/b/c/model.safetensors", "no_weights", []),
        ("a/../model.safetensors", "no_weights", []),
        ("../model.safetensors", "no_weights", []),
        ("/model.safetensors", "no_weights", []),
        ("./model.safetensors", "no_weights", []),
    ],
)
def test_what_cannot_be_read_is_named(names: str, reason: str, words: list[str]) -> None:
    with pytest.raises(Skipped) as skip:
        choose(names.split(), "finetune")
    assert skip.value.reason == reason
    for word in words:
        assert word in skip.value.detail


@given(st.lists(st.text(max_size=30), max_size=20), st.sampled_from(["finetune", "adapter", "", "x"]))
@settings(max_examples=200, deadline=None)
def test_any_names_are_chosen_from_or_skipped(names: list[str], relation: str) -> None:
    try:
        choice = choose(names, relation)
    except Skipped as skip:
        detail = skip.detail
    else:
        detail = ""
        assert choice.folder + choice.name in names
    assert not detail or detail.isprintable()
