"""A file that lacks a whole stack is refused, unless its class has only the other one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from indexer.checkpoints.architectures.architecture import load_architecture
from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.deltas.base import locate_matrices, store_base
from indexer.errors import AtlasError, Skipped
from indexer.sources.registry import ModelRef


def one_layer(model_type: str, stack_names: set[str]) -> dict[str, tuple[int, int]]:
    """The first layer of these stacks of an architecture, in the first variant of every part."""
    stacks = [stack for stack in load_architecture(model_type).stacks if stack.name in stack_names]
    variants = [variants[0] for stack in stacks for variants in stack.parts]
    return {pattern.tensor((0, 0)): (8, 8) for variant in variants for pattern in variant.patterns}


def checked(model_type: str, stack_names: set[str], **config: Any) -> dict[str, int]:
    """The depth of a checkpoint with these stacks."""
    architecture = load_architecture(model_type)
    layout = architecture.locate(one_layer(model_type, stack_names), config)
    architecture.refuse_absent(layout, {"model_type": model_type} | config)
    return layout.depth


@pytest.mark.parametrize(
    ("model_type", "stacks", "config"),
    [
        ("t5", "encoder", {"architectures": ["T5EncoderModel"], "is_encoder_decoder": True}),
        ("mt5", "encoder", {"architectures": ["MT5ForTokenClassification"]}),
        ("t5", "encoder", {"architectures": ["MyT5EncoderForRegression"]}),
        ("t5", "encoder", {"architectures": ["T5ForConditionalGeneration"], "num_decoder_layers": 0}),
        ("t5gemma", "encoder", {"architectures": ["T5GemmaForSequenceClassification"], "is_encoder_decoder": False}),
        ("bart", "decoder", {"architectures": ["BartForCausalLM"]}),
        ("mbart", "decoder", {"is_encoder_decoder": False}),
        ("whisper", "encoder", {"architectures": ["WhisperForAudioClassification"]}),
        ("trocr", "decoder", {}),
        ("musicgen_decoder", "decoder", {}),
        ("clip", "text", {"architectures": ["CLIPTextModelWithProjection"]}),
        ("siglip", "vision", {"architectures": ["SiglipForImageClassification"]}),
        ("t5", "encoder decoder", {}),
        ("bart", "encoder decoder", {"architectures": ["BartForCausalLM"]}),
    ],
)
def test_a_class_of_one_stack_is_complete(model_type: str, stacks: str, config: dict[str, Any]) -> None:
    assert checked(model_type, set(stacks.split()), **config) == dict.fromkeys(stacks.split(), 1)


@pytest.mark.parametrize(
    ("model_type", "stack", "config", "words"),
    [
        ("t5", "encoder", {"architectures": ["T5ForConditionalGeneration"]}, "no layer of the decoder"),
        ("t5", "encoder", {}, "which the whole model has"),
        ("t5", "decoder", {"architectures": ["T5EncoderModel"]}, "no layer of the encoder"),
        ("t5", "encoder", {"architectures": ["T5Model"], "num_decoder_layers": 2}, "decoder.block.0"),
        ("bart", "encoder", {"architectures": ["BartForCausalLM"]}, "BartForCausalLM' has"),
        ("bart", "decoder", {"architectures": ["BartModel"]}, "no layer of the encoder"),
        ("whisper", "encoder", {"architectures": ["WhisperForConditionalGeneration"]}, "decoder"),
        ("vision-encoder-decoder", "encoder", {"architectures": ["VisionEncoderDecoderModel"]}, "decoder"),
        ("clip", "text", {"architectures": ["CLIPModel"]}, "no layer of the vision"),
        ("clip", "vision", {"architectures": ["CLIPTextModel"]}, "no layer of the text"),
        ("t5", "encoder", {"architectures": "T5EncoderModel"}, "decoder"),
        ("t5", "encoder", {"architectures": [None, 3]}, "decoder"),
    ],
)
def test_a_missing_stack_is_said(model_type: str, stack: str, config: dict[str, Any], words: str) -> None:
    with pytest.raises(Skipped) as skip:
        checked(model_type, {stack}, **config)
    assert skip.value.reason == "missing_matrices"
    assert words in skip.value.detail
    assert f"{stack} alone" in skip.value.detail


def test_it_can_be_neither_a_base_nor_a_fine_tune(tmp_path: Path) -> None:
    shapes = one_layer("t5", {"encoder"})
    save_file({name: torch.ones(shape) for name, shape in shapes.items()}, tmp_path / "model.safetensors")
    for name, is_refused in (("T5ForConditionalGeneration", True), ("T5EncoderModel", False)):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", "architectures": [name]}))
        checkpoint = open_checkpoint(ModelRef("a/b", folder=tmp_path))
        if is_refused:
            with pytest.raises(Skipped, match="no layer of the decoder"):
                locate_matrices(checkpoint, checkpoint.config)
            with pytest.raises(AtlasError, match="no layer of the decoder"):
                store_base(checkpoint, "a/b", "c" * 40, tmp_path / "stored")
        else:
            assert store_base(checkpoint, "a/b", "c" * 40, tmp_path / "stored").layout.depth == {"encoder": 1}
