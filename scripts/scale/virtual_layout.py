"""Which tensors the files of a virtual model hold, and where: real names, real sizes, in the order of safetensors."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

# Of a number.
BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8}
# Roles of tensors; a transposed matrix is stored in × out.
MATRIX, TRANSPOSED, EMBEDDING, DENSE, NORM, HEAD, IDS, MASK = range(8)


@dataclass(frozen=True)
class Shape:
    """Sizes of an architecture. ``shard_bytes``: a file holds at most that many, None for one file."""

    family: str
    width: int
    layers: int
    inner: int
    vocabulary: int
    positions: int
    heads: int
    key_value: int = 0
    dtype: str = "F32"
    shard_bytes: int | None = None


SHAPES = {
    "roberta-base": Shape("roberta", 768, 12, 3072, 50_265, 514, 12),
    "gpt2": Shape("gpt2", 768, 12, 3072, 50_257, 1024, 12),
    "llama-3-8b": Shape("llama", 4096, 32, 14_336, 128_256, 8192, 32, 1024, "BF16", 5_000_000_000),
    "tiny": Shape("roberta", 48, 2, 96, 300, 18, 4),
    "tiny-gpt2": Shape("gpt2", 48, 2, 96, 300, 16, 4),
    "tiny-llama": Shape("llama", 64, 2, 96, 300, 64, 4, 32, "BF16", 100_000),
}


class Tensor(NamedTuple):
    """One tensor of a file; ``key`` is the same for the base's and for all fine-tunes' tensor."""

    name: str
    shape: tuple[int, ...]
    role: int
    key: int

    @property
    def numbers(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    def stored_as(self, dtype: str) -> str:
        """The dtype in a file of ``dtype``."""
        return "I64" if self.role == IDS else dtype


def _tensors(shape: Shape, labels: int | None) -> list[Tensor]:
    """In the order of the state dict; ``labels``: those of a classifier, None for the base itself."""
    result: list[Tensor] = []
    width, inner = shape.width, shape.inner
    prefix = "transformer." if shape.family == "gpt2" and labels else ""

    def add(name: str, *size: int, role: int = DENSE) -> None:
        result.append(Tensor(prefix + name, size, role, zlib.crc32(name.encode())))

    def linear(name: str, rows: int, columns: int, role: int = MATRIX) -> None:
        add(f"{name}.weight", rows, columns, role=role)
        add(f"{name}.bias", columns if role == TRANSPOSED else rows)

    def norm(name: str) -> None:
        add(f"{name}.weight", width, role=NORM)
        add(f"{name}.bias", width)

    if shape.family == "roberta":
        if labels is None:
            add("roberta.embeddings.position_ids", 1, shape.positions, role=IDS)
        add("roberta.embeddings.word_embeddings.weight", shape.vocabulary, width, role=EMBEDDING)
        add("roberta.embeddings.position_embeddings.weight", shape.positions, width)
        add("roberta.embeddings.token_type_embeddings.weight", 1, width)
        norm("roberta.embeddings.LayerNorm")
        for layer in range(shape.layers):
            stem = f"roberta.encoder.layer.{layer}"
            for part in ("query", "key", "value"):
                linear(f"{stem}.attention.self.{part}", width, width)
            linear(f"{stem}.attention.output.dense", width, width)
            norm(f"{stem}.attention.output.LayerNorm")
            linear(f"{stem}.intermediate.dense", inner, width)
            linear(f"{stem}.output.dense", width, inner)
            norm(f"{stem}.output.LayerNorm")
        if labels is None:
            add("lm_head.bias", shape.vocabulary)
            linear("lm_head.dense", width, width)
            norm("lm_head.layer_norm")
        else:
            linear("classifier.dense", width, width, HEAD)
            linear("classifier.out_proj", labels, width, HEAD)
    elif shape.family == "gpt2":
        add("wte.weight", shape.vocabulary, width, role=EMBEDDING)
        add("wpe.weight", shape.positions, width)
        for layer in range(shape.layers):
            norm(f"h.{layer}.ln_1")
            if labels is None:
                add(f"h.{layer}.attn.bias", 1, 1, shape.positions, shape.positions, role=MASK)
            linear(f"h.{layer}.attn.c_attn", width, 3 * width, TRANSPOSED)
            linear(f"h.{layer}.attn.c_proj", width, width, TRANSPOSED)
            norm(f"h.{layer}.ln_2")
            linear(f"h.{layer}.mlp.c_fc", width, inner, TRANSPOSED)
            linear(f"h.{layer}.mlp.c_proj", inner, width, TRANSPOSED)
        norm("ln_f")
        if labels is not None:
            prefix = ""
            add("score.weight", labels, width, role=HEAD)
    else:
        add("model.embed_tokens.weight", shape.vocabulary, width, role=EMBEDDING)
        for layer in range(shape.layers):
            stem = f"model.layers.{layer}"
            for part, rows in (("q", width), ("k", shape.key_value), ("v", shape.key_value), ("o", width)):
                add(f"{stem}.self_attn.{part}_proj.weight", rows, width, role=MATRIX)
            add(f"{stem}.mlp.gate_proj.weight", inner, width, role=MATRIX)
            add(f"{stem}.mlp.up_proj.weight", inner, width, role=MATRIX)
            add(f"{stem}.mlp.down_proj.weight", width, inner, role=MATRIX)
            add(f"{stem}.input_layernorm.weight", width, role=NORM)
            add(f"{stem}.post_attention_layernorm.weight", width, role=NORM)
        add("model.norm.weight", width, role=NORM)
        add("lm_head.weight", shape.vocabulary, width, role=MATRIX)
    return result


class Layout:
    """One safetensors file: its header, and where each tensor lies (``starts``, from the start of the file)."""

    def __init__(self, path: str, tensors: Sequence[Tensor], dtype: str) -> None:
        self.path = path
        # As the library writes them: by dtype, wider integers first, then by name.
        self.tensors = sorted(tensors, key=lambda each: (each.role != IDS, each.name))
        self.dtypes = [each.stored_as(dtype) for each in self.tensors]
        table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        at = 0
        self.starts: list[int] = []
        for tensor, stored in zip(self.tensors, self.dtypes, strict=True):
            end = at + tensor.numbers * BYTES[stored]
            table[tensor.name] = {"dtype": stored, "shape": list(tensor.shape), "data_offsets": [at, end]}
            self.starts.append(at)
            at = end
        text = json.dumps(table, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self.header = len(text).to_bytes(8, "little") + text
        self.starts = [len(self.header) + start for start in self.starts]
        self.size = len(self.header) + at


@lru_cache(maxsize=1024)
def layouts(shape: Shape, labels: int | None, dtype: str) -> tuple[Layout, ...]:
    """The files that hold the weights."""
    tensors = _tensors(shape, labels)
    if shape.shard_bytes is None:
        return (Layout("model.safetensors", tensors, dtype),)
    shards: list[list[Tensor]] = [[]]
    size = 0
    for tensor in tensors:
        length = tensor.numbers * BYTES[dtype]
        if shards[-1] and size + length > shape.shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += length
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    return tuple(Layout(name, shard, dtype) for name, shard in zip(names, shards, strict=True))
