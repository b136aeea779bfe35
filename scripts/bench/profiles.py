"""Row ``profiles``: the default measures of a depth profile on a model of roberta-base's shape, one thread.

The limit is the time of the forward passes that they need. Measured in a process of its own, because of its peak memory.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

from scripts.bench.measure import Table, say
from scripts.child import call

MOST_SECONDS, MOST_BYTES, MOST_RATIO = 90, 1.5e9, 1.5
CONFIG = {
    "model_type": "roberta", "vocab_size": 50_265, "max_position_embeddings": 514, "type_vocab_size": 1,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip


def measure(work: Path) -> list[Table]:
    """Profile a model in a process of its own, and compare what it took with the forward passes alone."""
    say("profiles: the default measures at roberta-base's shape")
    os.environ["OMP_NUM_THREADS"] = "1"
    ran = call(profiled)
    found: dict[str, Any] = ran.output
    limit, total = sum(found["limits"].values()), sum(found["parts"].values())
    table = Table(
        "profiles: default measures, 12 layers of 768, 16 × 16 random tokens, CPU seconds of one thread, one run",
        ("part", "CPU s", "its forward passes alone", "ratio"),
    )
    for name, seconds in found["parts"].items():
        alone = found["limits"].get(name)
        table.add(name, seconds, *((alone, seconds / alone) if alone else ("", "")))
    table.add("all", total, limit, total / limit)
    table.promises[f"at most {MOST_SECONDS} CPU s"] = total <= MOST_SECONDS
    table.promises[f"at most {MOST_RATIO} × its forward passes"] = total / limit <= MOST_RATIO
    table.promises[f"at most {MOST_BYTES / 1e9:g} GB"] = ran.peak_bytes <= MOST_BYTES
    table.notes.append(
        f"Peak resident memory {ran.peak_bytes / 1e9:.2f} GB; a backward pass to the input counts as one forward pass of "
        "the layers below."
    )
    return [table]


def profiled() -> dict[str, Any]:
    """Seconds of the parts of one profile, and of the forward passes that they need."""
    import torch

    from indexer.profiles.loading import layers_of, load_untrained
    from indexer.profiles.measurement import RECEPTIVE_FIELD_SEQUENCES, ProfileRequest
    from indexer.profiles.measurement import measure as profile
    from indexer.profiles.probes import random_probe
    from indexer.profiles.recovery import FEWEST_FIT_TOKENS, FIT_TOKENS_AT_ONCE, TOKENS_PER_WIDTH
    from indexer.profiles.sensitivity import CANDIDATES, COLUMN_DRAWS, PLACES, QUARTERS

    torch.set_num_threads(1)
    model, stack = load_untrained(CONFIG, 0)
    layers = layers_of(model.eval().requires_grad_(False), CONFIG, stack)
    probe = random_probe(layers)
    inputs = probe.inputs(layers)
    width, depth = layers.tokens.shape[1], layers.depth

    def cost(sequences: int) -> float:
        """CPU seconds of one forward pass of this many sequences, the best of three."""
        batch = inputs[:1].repeat(sequences, 1, 1)
        taken = []
        for _ in range(3):
            started = time.process_time()
            with torch.no_grad():
                layers.state(batch, depth)
            taken.append(time.process_time() - started)
        return min(taken)

    tokens = inputs.shape[1]
    needed = max(FEWEST_FIT_TOKENS, TOKENS_PER_WIDTH * width)
    backward = (QUARTERS + COLUMN_DRAWS) * sum(range(1, depth + 1)) / depth
    limits = {
        "noise": len(inputs) * PLACES * cost(CANDIDATES),
        "linear map": needed / FIT_TOKENS_AT_ONCE * cost(FIT_TOKENS_AT_ONCE // tokens),
        "reach": (1 + backward) * cost(RECEPTIVE_FIELD_SEQUENCES),
    }
    marks: list[tuple[str, float]] = []
    started = time.process_time()
    profile(layers, probe, ProfileRequest(), progress=lambda what, layer: marks.append((what, time.process_time())))
    first_layer = min(when for what, when in marks if what == "layer")
    marks = [("probe", started), *(mark for mark in marks if mark[0] != "layer" or mark[1] == first_layer),
             ("end", time.process_time())]  # fmt: skip
    names = {"layer": "decoding, likeness"}
    parts = {names.get(what, what): after - before for (what, before), (_, after) in itertools.pairwise(marks)}
    return {"parts": parts, "limits": limits}
