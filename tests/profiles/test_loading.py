"""Loading real models with the library's own classes: what was saved is loaded, and everything else is refused."""

from __future__ import annotations

import json
import pickle
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.errors import AtlasError, Failed, ModelError
from indexer.profiles.measurement import ProfileRequest, measure
from indexer.profiles.probes import random_probe
from indexer.profiles.single import read_now
from indexer.profiles.subject import Subject, download_base, read_subject, read_weights
from indexer.profiles.tokenizer import tokenizer_of
from indexer.records.identity import ModelVersion
from indexer.sources.registry import ModelRef
from scripts.loopback_hub import LoopbackHub
from tests.hubs import use_endpoint

BERT = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 80}
GPT = {"n_embd": 32, "n_layer": 3, "n_head": 2, "vocab_size": 80, "n_positions": 32}


def saved(folder: Path, kind: str, **config) -> Path:
    import transformers

    torch.manual_seed(0)
    make = {
        "bert": ("BertForMaskedLM", "BertConfig", BERT),
        "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT),
        "llama": ("LlamaForCausalLM", "LlamaConfig", BERT | {"num_key_value_heads": 1}),
        "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", BERT),
        "t5": ("T5ForConditionalGeneration", "T5Config", {"d_model": 32, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 2, "d_ff": 64, "d_kv": 16, "vocab_size": 80}),
        "bart": ("BartModel", "BartConfig", {"d_model": 32, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 80, "max_position_embeddings": 32, "scale_embedding": True}),
        "vit": ("ViTForImageClassification", "ViTConfig", {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64, "image_size": 16, "patch_size": 4}),
    }  # fmt: skip
    model_name, config_name, values = make[kind]
    model = getattr(transformers, model_name)(getattr(transformers, config_name)(**values | config))
    model.save_pretrained(folder)
    return folder


def read(folder: Path, **options) -> Subject:
    return read_subject(ModelVersion(ModelRef.parse(str(folder))), **options)


def changed_config(folder: Path, **values) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return folder


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "gpt_neox", "t5", "bart"])
def test_states_are_those_of_the_library(tmp_path, kind):
    """Independently: `output_hidden_states` of the model as transformers itself loads it; its last entry is normed."""
    from transformers import AutoModel

    folder = saved(tmp_path / "model", kind)
    subject = read(folder)
    assert subject.layers.depth == 3
    assert subject.stack == ("encoder" if kind in ("t5", "bart") else "")
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    model = model.get_encoder() if kind in ("t5", "bart") else model
    ids = torch.arange(5, 17)[None]
    with torch.no_grad():
        expected = model(input_ids=ids, output_hidden_states=True).hidden_states
        states = subject.layers.states(subject.layers.embed(ids), [0, 1, 2, 3])
    for layer in (0, 1, 2):
        torch.testing.assert_close(states[layer], expected[layer], rtol=1e-4, atol=1e-5)
    if kind in ("bert", "bart"):
        torch.testing.assert_close(states[3], expected[3], rtol=1e-4, atol=1e-5)
    assert subject.layers.is_causal(8) == (kind in ("gpt2", "llama", "gpt_neox"))


def test_a_vision_transformer_takes_pixels(tmp_path):
    subject = read(saved(tmp_path / "vit", "vit"))
    pixels = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        expected = subject.model(pixel_values=2 * pixels - 1, output_hidden_states=True).hidden_states
    torch.testing.assert_close(subject.layers.state(pixels, 2), expected[2])
    assert subject.layers.patch == 4


def test_an_old_checkpoint_is_read_as_data(tmp_path):
    """The same numbers from pytorch_model.bin, and nothing of a malicious one is run."""
    folder = saved(tmp_path / "model", "bert")
    ids = torch.arange(5, 17)[None]
    before = read(folder)
    expected = before.layers.state(before.layers.embed(ids), 3)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    again = read(folder)
    assert torch.equal(again.layers.state(again.layers.embed(ids), 3), expected)

    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "owned",))

    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Evil()}))
    with pytest.raises(ModelError):
        read(folder)
    assert not (tmp_path / "owned").exists()


def test_an_adapter_is_merged_as_peft_does(tmp_path):
    peft = pytest.importorskip("peft")
    from transformers import AutoModel

    base = saved(tmp_path / "base", "gpt2")
    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
    model = peft.get_peft_model(AutoModel.from_pretrained(base), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(tmp_path / "adapter")
    weights = read_weights(ModelVersion(ModelRef.parse(str(base))))
    merged = read(tmp_path / "adapter", base=lambda: weights)
    ids = torch.arange(5, 17)[None]
    with torch.no_grad():
        expected = model.merge_and_unload().eval()(input_ids=ids, output_hidden_states=True).hidden_states
    torch.testing.assert_close(merged.layers.state(merged.layers.embed(ids), 2), expected[2], rtol=1e-4, atol=1e-5)
    with pytest.raises(ModelError, match="base is not known"):
        read(tmp_path / "adapter")


def test_code_of_a_repository_is_never_run(tmp_path):
    folder = changed_config(saved(tmp_path / "model", "bert"), auto_map={"AutoModel": "modeling.Evil"})
    (folder / "modeling.py").write_text(f"open({str(tmp_path / 'owned')!r}, 'w')\nclass Evil: pass\n")
    subject = read(folder)
    assert "the library's own bert" in subject.notes[0]
    assert type(subject.model).__name__ == "BertModel"
    changed_config(folder, model_type="my_own")
    with pytest.raises(ModelError, match="never run"):
        read(folder)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"num_local_experts": 8}, "mixture_of_experts"),
        ({"num_hidden_layers": 10**9}, "layer_mismatch"),
        ({"num_hidden_layers": 2}, "layer_mismatch"),
        ({"vocab_size": 10**9}, "shape_mismatch"),
        ({"max_position_embeddings": 10**9}, "shape_mismatch"),
        ({"vocab_size": 81}, "shape_mismatch|malformed"),
        ({"hidden_size": "wide"}, "malformed"),
        ({"hidden_act": "no_such_function"}, "malformed"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized"),
        ({"model_type": "wav2vec2"}, "missing_matrices|malformed|unsupported"),
    ],
)
def test_a_config_that_contradicts_the_weights_is_refused(tmp_path, values, expected):
    folder = changed_config(saved(tmp_path / "model", "bert"), **values)
    with pytest.raises(ModelError, match=expected):
        read(folder)


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("bert", {"num_labels": 10**9}, None),
        ("bert", {"id2label": {str(number): "x" for number in range(50_000)}, "num_labels": 10**9}, None),
        ("bert", {"task_specific_params": {"a": 10**12}, "steps_trained": 10**15, "seed": 10**18}, None),
        ("bert", {"eos_token_id": 10**12, "pad_token_id": 0}, None),
        ("llama", {"rope_theta": 10**9, "max_position_embeddings": 10**7}, None),
        ("llama", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ("gpt2", {"n_layer": 10**9}, "n_layer is 1000000000"),
        ("llama", {"hidden_size": 10**12}, "hidden_size is 1000000000000"),
        ("bert", {"vocab_size": [10**9]}, "vocab_size is 1000000000"),
        ("t5", {"num_decoder_layers": 10**6}, "num_decoder_layers is 1000000|decoder has 2 layers"),
        ("t5", {"num_decoder_layers": 120_000}, "decoder has 2 layers"),
        ("t5 encoder", {"num_decoder_layers": 120_000}, "parts"),
        ("bart", {"decoder_layers": 10**9}, "decoder_layers is 1000000000"),
        ("albert", {"inner_group_num": 120_000}, "parts"),
        ("distilbert", {"sinusoidal_pos_embds": True, "max_position_embeddings": 10**6}, "table of positions"),
        ("marian", {"max_position_embeddings": 10**6}, "table of positions"),
        ("vit", {"image_size": 100_000, "patch_size": 4}, "MiB|mismatch"),
        ("vit", {"num_channels": 10**9}, "num_channels is 1000000000"),
        ("longformer", {"attention_window": [120_000] * 2}, "attention_window is 120000"),
    ],
)
def test_a_config_takes_no_memory_that_its_weights_do_not(tmp_path, kind, values, expected):
    """Numbers that become an allocation or a loop are refused before; all other numbers are ignored."""
    import transformers

    folder = tmp_path / "model"
    small = BERT | {"num_hidden_layers": 2, "max_position_embeddings": 40}
    two = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "d_model": 32}
    models = {
        "t5 encoder": lambda: transformers.T5EncoderModel(
            transformers.T5Config(d_model=32, num_layers=2, num_heads=2, d_ff=64, d_kv=16, vocab_size=80)
        ),
        "albert": lambda: transformers.AlbertModel(
            transformers.AlbertConfig(**small | {"num_hidden_layers": 1, "embedding_size": 16})
        ),
        "distilbert": lambda: transformers.DistilBertModel(
            transformers.DistilBertConfig(dim=32, n_layers=2, n_heads=2, hidden_dim=64, vocab_size=80)
        ),
        "marian": lambda: transformers.MarianModel(
            transformers.MarianConfig(**two, encoder_attention_heads=2, decoder_attention_heads=2, vocab_size=80, pad_token_id=0)
        ),
        "longformer": lambda: transformers.LongformerModel(
            transformers.LongformerConfig(**small, attention_window=[4, 4])
        ),
    }  # fmt: skip
    if kind in models:
        models[kind]().save_pretrained(folder)
    else:
        saved(folder, kind)
    changed_config(folder, **values)
    with deadline(20), at_most(3 << 30):
        if expected is None:
            assert read(folder).layers.depth in (2, 3)
        else:
            with pytest.raises(ModelError, match=expected):
                read(folder)


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def refused_kind(kind: str):
    import transformers

    words = SMALL | {"vocab_size": 80}
    if kind == "albert":
        config = transformers.AlbertConfig(**words | {"num_hidden_layers": 3, "embedding_size": 16})
        return transformers.AlbertModel(config)
    if kind == "clip":
        pixels = SMALL | {"image_size": 16, "patch_size": 4}
        return transformers.CLIPModel(
            transformers.CLIPConfig(text_config=words, vision_config=pixels, projection_dim=16)
        )
    if kind == "clip_text":
        return transformers.CLIPTextModel(transformers.CLIPTextConfig(**words))
    if kind == "wav2vec2":
        sound = {"conv_dim": (16,), "conv_stride": (5,), "conv_kernel": (10,), "num_conv_pos_embeddings": 16,
                 "num_conv_pos_embedding_groups": 2}  # fmt: skip
        return transformers.Wav2Vec2Model(transformers.Wav2Vec2Config(**SMALL | sound))
    experts = {"num_key_value_heads": 1, "num_local_experts": 2}
    return transformers.MixtralModel(transformers.MixtralConfig(**words | experts))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("albert", "its 3 layers share the weights of 1"),
        ("clip", "towers"),
        ("clip_text", "towers"),
        ("wav2vec2", "takes sound"),
        ("mixtral", "num_local_experts is 2"),
    ],
)
def test_kinds_of_models_that_are_not_profiled(tmp_path, kind, expected):
    """Saved by the library itself; each is refused with a one-line error."""
    refused_kind(kind).save_pretrained(tmp_path / "model")
    with pytest.raises(AtlasError, match=expected) as caught:
        read_now(ModelVersion(ModelRef.parse(str(tmp_path / "model"))))
    assert "\n" not in str(caught.value)


def test_missing_tensors_are_named(tmp_path):
    folder = saved(tmp_path / "model", "bert")
    tensors = load_file(folder / "model.safetensors")
    remaining = {name: tensor for name, tensor in tensors.items() if "LayerNorm.bias" not in name}
    save_file(remaining, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"missing_tensors.*LayerNorm\.bias"):
        read(folder)


def test_activations_that_overflow_say_where(tmp_path):
    folder = saved(tmp_path / "model", "bert")
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.encoder.layer.1.output.LayerNorm.weight"][:] = float("inf")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    subject = read(folder)
    with pytest.raises(Failed, match="layer 2"):
        measure(subject.layers, random_probe(subject.layers), ProfileRequest())


def test_a_model_larger_than_memory_is_not_loaded(tmp_path):
    with pytest.raises(Failed, match="MiB are free"):
        read(saved(tmp_path / "model", "bert"), memory=1 << 20)


def test_an_untrained_twin_is_drawn_from_its_seed(tmp_path):
    subject = read(saved(tmp_path / "model", "bert"))
    first, second, other = subject.twin(0, "cpu"), subject.twin(0, "cpu"), subject.twin(1, "cpu")
    ids = torch.arange(5, 17)[None]
    states = [twin.layers.state(twin.layers.embed(ids), 3) for twin in (first, second, other)]
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_a_base_is_downloaded_once(tmp_path, monkeypatch):
    """Later reads, by other processes as well, find its weights in the Hugging Face cache."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    saved(tmp_path / "store" / "me" / "base", "bert")
    (tmp_path / "store" / "me" / "base.repo.json").write_text(json.dumps({"sha": "a" * 40}))
    source = ModelVersion(ModelRef("me/base"), "a" * 40)

    def weight_requests(hub: LoopbackHub) -> int:
        return sum("safetensors" in str(request) for request in hub.requests)

    with LoopbackHub(tmp_path / "store") as hub:
        use_endpoint(monkeypatch, hub.endpoint)
        download_base(source)
        assert weight_requests(hub) > 0
        hub.reset_log()
        download_base(source)
        weights = read_weights(source)
        assert weight_requests(hub) == 0
    expected = load_file(tmp_path / "store" / "me" / "base" / "model.safetensors")
    assert all(torch.equal(weights.tensors[name], tensor) for name, tensor in expected.items())


def test_an_invalid_tokenizer_is_refused(tmp_path):
    folder = saved(tmp_path / "model", "bert")
    (folder / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "Evil"}}')
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        read(folder)
    (folder / "tokenizer.json").unlink()
    assert tokenizer_of(open_checkpoint(ModelRef.parse(str(folder)))) is None


def test_warnings_of_the_library_are_not_shown(tmp_path, capfd):
    folder = changed_config(saved(tmp_path / "model", "gpt2"), bos_token_id=50256, eos_token_id=50256)
    read(folder)
    assert capfd.readouterr() == ("", "")


@contextmanager
def deadline(seconds: int) -> Iterator[None]:
    """Fail if the block takes longer."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Limit the memory that the block may take in addition to what the process already uses."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
