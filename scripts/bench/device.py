"""Row ``device``: a CUDA device compared with all cores of the processor, on what ``--device`` moves there.

SVD and spectra of the matrices of Llama-3-8B, a sample of their rows, and a forward pass with second moments of the
inputs, as in ``query ask``, at the shape of roberta-base.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from indexer.deltas.svd import sample_svd, spectrum, truncated_svd
from scripts.bench.measure import NotMeasuredError, Table, interleaved, say

# One matrix of each shape in a layer of Llama-3-8B, and how many matrices of a layer have it.
SHAPES = {(4096, 4096): 2, (1024, 4096): 2, (14336, 4096): 2, (4096, 14336): 1}
LAYERS, RANK, ROWS, REPEATS = 32, 8, 32, 3
TOLERANCE = 0.01
TEXTS, WORDS_EACH, WORDS = 200, 40, 5000
CONFIG = {
    "vocab_size": 50_265, "max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0,
    "eos_token_id": 2,
}  # fmt: skip


def measure(work: Path) -> list[Table]:
    """Raises NotMeasuredError where there is no CUDA device."""
    if not torch.cuda.is_available():
        raise NotMeasuredError("there is no CUDA device")
    name = torch.cuda.get_device_name()
    return [_decompositions(name), _texts(name)]


def _seconds(do: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    do()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def _decompositions(name: str) -> Table:
    table = Table(
        f"device: Llama-3-8B's matrices, a layer's seconds × {LAYERS}, {name} compared with {torch.get_num_threads()} threads",
        ("what", "processor, s", "device, s", "processor ÷ device", "worst σ error"),
    )
    ways: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        f"truncated SVD, rank {RANK}": lambda matrix: truncated_svd(matrix, RANK, 0).s,
        "spectrum": lambda matrix: spectrum(matrix)[:RANK],
        f"SVD of {ROWS} rows": lambda matrix: sample_svd(matrix[:ROWS], RANK)[0],
    }
    for what, way in ways.items():
        say(f"device: {what}")
        totals, worst = {"cpu": 0.0, "cuda": 0.0}, 0.0
        for (rows, columns), count in SHAPES.items():
            generator = torch.Generator().manual_seed(rows)
            left, right = (torch.randn(size, 16, generator=generator) for size in (rows, columns))
            matrix = (left * torch.linspace(2, 0.5, 16)) @ right.T + torch.randn(rows, columns, generator=generator)
            places = {device: (matrix * 1e-4).to(device) for device in totals}
            repeats = 1 if what == "spectrum" else REPEATS
            turns = {device: lambda held=held, way=way: _seconds(lambda: way(held)) for device, held in places.items()}
            for device, found in interleaved(turns, repeats).items():
                totals[device] += found.median * count * LAYERS
            here, there = (way(held).cpu().double() for held in places.values())
            worst = max(worst, float((there / here - 1).abs().max()))
        table.add(what, totals["cpu"], totals["cuda"], totals["cpu"] / totals["cuda"], f"{worst:.1e}")
        table.promises[f"{what}: the device's σ within {TOLERANCE:.0%} of the processor's"] = worst < TOLERANCE
    return table


def _texts(name: str) -> Table:
    import numpy as np
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import RobertaConfig, RobertaModel

    from indexer.profiles.inputs import ASKED, read_base

    random = np.random.default_rng(0)
    families = ("query", "key", "value", "output", "feedforward1", "feedforward2")
    keys = [f"{layer}.{family}" for layer in range(12) for family in families]
    table = Table(
        f"device: {TEXTS} texts of {WORDS_EACH} tokens through roberta-base's shape, moments and vectors, {name}",
        ("what", "processor, s", "device, s", "processor ÷ device", "least cosine of a block"),
    )
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        RobertaModel(RobertaConfig(**CONFIG)).save_pretrained(folder)
        vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3} | {f"w{n}": 4 + n for n in range(WORDS)}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
        tokenizer.save(f"{folder}/tokenizer.json")
        reference, asked = (
            [" ".join(f"w{one}" for one in random.integers(*span, WORDS_EACH)) for _ in range(TEXTS)]
            for span in ((0, WORDS), (1000, 2000))
        )
        seconds, vectors = {}, {}
        for device in ("cpu", "cuda"):
            base = read_base(folder, None, keys, 512, device)
            held = base.reference([base.encode(reference)], 1, budget=ASKED)[0]
            base.blocks([base.encode(asked[:20])], held)
            seconds[device] = _seconds(partial(base.blocks, [base.encode(asked)], held))
            vectors[device] = base.blocks([base.encode(asked)], held)[0]
    least = float((vectors["cpu"] * vectors["cuda"]).sum(1).min())
    table.add("query ask", seconds["cpu"], seconds["cuda"], seconds["cpu"] / seconds["cuda"], least)
    table.promises["the device's blocks have a cosine of .99 or more with the processor's"] = least >= 0.99
    return table
