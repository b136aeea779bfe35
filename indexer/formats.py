"""Formats of weights, those that are read and others, by the names of their files."""

from __future__ import annotations

import re
from collections.abc import Iterable

# How the names of files of weights end that are read.
GGUF_FILE, ONNX_FILE = ".gguf", ".onnx"
CONVERTED = (GGUF_FILE, ONNX_FILE)  # those of conversions
WEIGHTS = (".safetensors", ".bin", *CONVERTED)
SAVE_AGAIN = "; save it with save_pretrained, which writes safetensors, or name the model it was made from"

_FORMATS = (
    (re.compile(r"(^|/)ggml[\w.\-]*\.bin$"), "GGML"),
    (re.compile(r"\.gguf$"), "GGUF"),
    (re.compile(r"\.onnx(_data)?$|\.onnx\.data$|\.ort$"), "ONNX"),
    (re.compile(r"\.msgpack$"), "flax"),
    (re.compile(r"\.h5$|\.keras$|\.ckpt\.index$|\.ckpt\.data-[\d\-of]+$|(^|/)saved_model\.pb$"), "TensorFlow"),
    (re.compile(r"\.tflite$"), "TensorFlow Lite"),
    (re.compile(r"\.mlmodel$|\.mlpackage/"), "Core ML"),
    (re.compile(r"(^|/)openvino_model[\w.\-]*\.(xml|bin)$"), "OpenVINO"),
    (re.compile(r"\.ot$"), "rust-bert"),
    (re.compile(r"(^|/)model\.bin$"), "CTranslate2"),
    (re.compile(r"\.nemo$"), "NeMo"),
    (re.compile(r"\.pdparams$"), "PaddlePaddle"),
    (re.compile(r"\.distcp$"), "PyTorch's distributed checkpoints"),
    (re.compile(r"\.(rknn|bmodel|axmodel|dlc|om|mnn|task|litertlm|engine|plan|pte)$"), "programs of one device"),
    (re.compile(r"\.np[zy]$"), "NumPy archives"),
    (re.compile(r"(^|/)consolidated[\w.\-]*\.(safetensors|pth)$"), "consolidated weights"),
    (re.compile(r"\.(pt|pth|ckpt)$"), "PyTorch files with names of their own"),
    (re.compile(r"\.(pkl|pickle|joblib)$"), "pickles"),
)
# Files of GGUF that are no model: projectors of images, importance matrices, draft heads, adapters.
NO_GGUF = re.compile(r"mmproj|imatrix|(^|[-_.])(lora|adapter)[-_.]", re.IGNORECASE)
GGUF_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.ASCII)
# The usual name of a whole model in ONNX comes first; parts of one and files with operators of few bits are not read.
ONNX_NAMES = ("model.onnx", "decoder_model.onnx", "model_fp16.onnx")
# What trainers leave beside the weights.
NOT_WEIGHTS = re.compile(r"(^|/)(optimizer|scheduler|training_args|rng_state|random_states|scaler)[\w.\-]*$")


def other_formats(names: Iterable[str]) -> str:
    """The formats of files that hold weights and are not read, in words; "" if there are none."""
    weights = [name for name in names if not NOT_WEIGHTS.search(name)]
    return ", ".join(form for pattern, form in _FORMATS if any(pattern.search(name) for name in weights))


def onnx_export(names: Iterable[str]) -> str | None:
    """The file of a folder that holds a whole model in ONNX; None if none clearly does."""
    graphs = [name for name in names if name.endswith(ONNX_FILE)]
    usual = next((name for name in ONNX_NAMES if name in graphs), None)
    return usual or (graphs[0] if len(graphs) == 1 else None)
