"""In how many adapters the start is found, how often where there is none, and what that takes, by kind of adapter.

Three sources: the strangers' adapters; adapters that are drawn here from PyTorch's generator with usual seeds and moved
as training moves them, of which the start is known; and adapters of random numbers that another generator drew, where
whatever is found is a false alarm.
"""

from __future__ import annotations

import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from scripts.child import call
from scripts.tables import decimal, markdown

Json = dict[str, Any]

STRANGERS, PLANTED, OTHERWISE = "strangers", "drawn here", "of another generator"
DISTRIBUTIONS, RANKS, DTYPES = ("uniform", "normal"), (1, 4, 8, 16, 64), ("float32", "float16", "bfloat16", "float64")
_DRAWN = DTYPES[:3]
MODULES, INPUTS, OUTPUTS = 12, 768, 2304  # GPT-2's attention
MOVED = 0.4  # ‖A − A₀‖ / ‖A₀‖ of those that are drawn here; half of the strangers' are between .2 and .6
_EACH = 4  # adapters of every kind that are drawn here
_LATEST = 60_000  # numbers that come before the factors, at most: heads


def measure_starts(models: Path, base: str, adapters: Sequence[str], draws: int) -> Json:
    """By source and kind how many starts were found, and how many of these are wrong; seconds and memory of each source.

    ``models``: the repositories, of which ``adapters`` are measured. ``draws``: adapters of another generator. Every
    source has a process of its own; its ``bytes`` are what the table and the search added at most.
    """
    ran = {
        STRANGERS: call(of_strangers, models, base, list(adapters)),
        PLANTED: call(of_planted, _EACH),
        OTHERWISE: call(of_random, draws),
    }
    kinds: list[Json] = []
    sources: Json = {}
    for source, one in ran.items():
        rows = one.output["adapters"]
        seconds = [row["seconds"] for row in rows]
        sources[source] = {
            "adapters": len(rows),
            "found": sum(row["found"] for row in rows),
            "wrong": sum(row["wrong"] for row in rows),
            "table_seconds": one.output["table_seconds"],
            "seconds": float(np.mean(seconds)),
            "longest": max(seconds),
            "bytes": one.peak_bytes - one.output["bytes_before"],
        }
        by_kind: dict[tuple[str, int, int], list[Json]] = {}
        for row in rows:
            by_kind.setdefault((row["distribution"], row["rank"], DTYPES.index(row["dtype"])), []).append(row)
        for (distribution, rank, dtype), mine in sorted(by_kind.items()):
            kinds.append(
                {
                    "source": source,
                    "distribution": distribution,
                    "rank": rank,
                    "dtype": DTYPES[dtype],
                    "adapters": len(mine),
                    "found": sum(row["found"] for row in mine),
                    "wrong": sum(row["wrong"] for row in mine),
                    "seconds": float(np.mean([row["seconds"] for row in mine])),
                }
            )
    return {"base": base, "kinds": kinds, "sources": sources}


def starts_tables(found: Json) -> str:
    """Markdown: by kind how many were found of how many, and seconds an adapter; then what each source took."""
    rows: list[Sequence[str]] = [("source", "distribution", "rank", *DTYPES, "seconds an adapter")]
    by_row: dict[tuple[str, str, int], list[Json]] = {}
    for one in found["kinds"]:
        by_row.setdefault((one["source"], one["distribution"], one["rank"]), []).append(one)
    for (source, distribution, rank), kinds in by_row.items():
        by_dtype = {one["dtype"]: f"{one['found']} of {one['adapters']}" for one in kinds}
        counts = [one["adapters"] for one in kinds]
        seconds = float(np.average([one["seconds"] for one in kinds], weights=counts))
        rows.append(
            [source, distribution, f"{rank}", *(by_dtype.get(dtype, "–") for dtype in DTYPES), decimal(seconds, 2)]
        )
    costs: list[Sequence[str]] = [
        (
            "source",
            "adapters",
            "found",
            "of these wrong",
            "seconds an adapter",
            "the longest",
            "seconds for the table",
            "MB",
        )
    ]
    for source, one in found["sources"].items():
        wrong = "not known" if source == STRANGERS else f"{one['wrong']:,}"
        costs.append(
            [source, f"{one['adapters']:,}", f"{one['found']:,}", wrong, decimal(one["seconds"], 2),
             decimal(one["longest"], 2), decimal(one["table_seconds"], 1), f"{one['bytes'] / 1e6:.0f}"]
        )  # fmt: skip
    return f"{markdown(rows)}\n\n{markdown(costs)}"


# ---- each of these runs in a process of its own


def of_strangers(models: str, base: str, adapters: Sequence[str]) -> Json:
    """Adapters of a folder of repositories, as a build reads them; one that cannot be read is left out, with a message."""
    import torch

    from indexer.checkpoints.adapter import adapter_plan
    from indexer.checkpoints.checkpoint import open_checkpoint
    from indexer.deltas.adapter_deltas import deltas_on
    from indexer.deltas.base import store_base
    from indexer.errors import ModelError
    from indexer.sources.registry import ModelRef

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        with closing(open_checkpoint(ModelRef(base, folder=Path(models) / base))) as source:
            matrices = store_base(source, base, "0" * 40, Path(folder) / "base.safetensors")

        def each() -> Iterator[tuple[Json, Callable[[], Json]]]:
            for model in adapters:
                try:
                    with closing(
                        open_checkpoint(ModelRef(model, folder=Path(models) / model), relation="adapter")
                    ) as checkpoint:
                        factors: dict[str, torch.Tensor] = {}
                        for _ in deltas_on(checkpoint, matrices, factors_a=factors):
                            pass
                        if not factors:
                            continue
                        one = next(iter(factors.values()))
                        stated = adapter_plan(checkpoint).config.get("init_lora_weights")
                        kind = {
                            "distribution": "normal" if stated == "gaussian" else "uniform",
                            "rank": len(one),
                            "dtype": f"{one.dtype}".removeprefix("torch."),
                        }

                        yield kind, partial(_search_file, checkpoint, matrices, factors)
                except ModelError as error:
                    print(f"{model} is left out: {error}", file=sys.stderr)

        found = _timed(each())
        matrices.close()
    return found


def of_planted(each: int) -> Json:
    """Adapters that are drawn as PEFT and diffusers draw them, with usual seeds, moved and rounded."""
    import torch

    listed = tomllib.loads(files("indexer.deltas.starts").joinpath("usual_seeds.toml").read_text(encoding="utf-8"))[
        "seeds"
    ]
    seeds = [seed for group in listed for seed in group["seeds"]]

    def made() -> Iterator[tuple[Json, Callable[[], Json]]]:
        for distribution, rank, dtype in product(DISTRIBUTIONS, RANKS, _DRAWN):
            for number in range(each):
                draw = np.random.default_rng([number, rank, DTYPES.index(dtype), DISTRIBUTIONS.index(distribution)])
                seed = int(draw.choice(seeds))
                before = int(draw.integers(_LATEST))
                torch.manual_seed(seed)
                torch.rand(before)
                modules, factors = _modules(rank), {}
                for module in modules:
                    torch.rand(rank * INPUTS + OUTPUTS * rank)  # A and B as ordinary layers
                    a = torch.empty(rank, INPUTS)
                    if distribution == "normal":
                        torch.nn.init.normal_(a, std=1 / rank)
                    else:
                        torch.nn.init.kaiming_uniform_(a, a=5**0.5)
                    step = draw.normal(size=(rank, 2)) @ (draw.normal(size=(2, INPUTS)) * draw.gamma(0.5, size=INPUTS))
                    moved = a + torch.from_numpy(step).float() * (MOVED * float(a.norm()) / np.linalg.norm(step))
                    factors[module.path] = moved.to(getattr(torch, dtype)).float().numpy()
                offset = before + rank * INPUTS + OUTPUTS * rank

                kind = {"distribution": distribution, "rank": rank, "dtype": dtype}
                yield kind, partial(_search, modules, factors, distribution, (seed, offset))

    return _timed(made())


def of_random(count: int) -> Json:
    """Adapters of random numbers of another generator, half of them with a few large directions, as training leaves."""
    import torch

    kinds = list(product(DISTRIBUTIONS, RANKS, _DRAWN))

    def made() -> Iterator[tuple[Json, Callable[[], Json]]]:
        for number in range(count):
            distribution, rank, dtype = kinds[number % len(kinds)]
            draw, factors = np.random.default_rng(number), {}
            modules = _modules(rank)
            for module in modules:
                if distribution == "normal":
                    a = draw.normal(size=(rank, INPUTS)) / rank
                else:
                    a = draw.uniform(-1, 1, (rank, INPUTS)) / np.sqrt(INPUTS)
                if number // len(kinds) % 2:
                    step = draw.normal(size=(rank, 1)) @ draw.normal(size=(1, INPUTS)) * draw.gamma(0.3, size=INPUTS)
                    a = a + 2 * step * np.linalg.norm(a) / np.linalg.norm(step)
                factors[module.path] = torch.from_numpy(a).to(getattr(torch, dtype)).float().numpy()

            kind = {"distribution": distribution, "rank": rank, "dtype": dtype}
            yield kind, partial(_search, modules, factors, distribution, None)

    return _timed(made())


def _search_file(checkpoint: Any, base: Any, factors: Any) -> Json:
    from indexer.deltas.adapter_starts import adapter_start
    from studies.arena.subjects import RANK

    start, _ = adapter_start(checkpoint, base, factors, RANK)
    return {"found": start is not None and start.seed is not None, "wrong": False}


def _search(modules: Any, factors: Any, distribution: Any, truth: tuple[int, int] | None) -> Json:
    """``truth``: the seed and the offset, None if there is none."""
    from indexer.deltas.starts.seed_table import usual_seeds
    from indexer.deltas.starts.start import find_start

    start = find_start(modules, factors.__getitem__, usual_seeds(), distribution)
    return {"found": start is not None, "wrong": start is not None and (start.seed, start.offset) != truth}


def _modules(rank: int) -> list[Any]:
    from indexer.deltas.starts.start import LoraModule

    return [LoraModule(f"h.{number}.attn.c_attn", rank, INPUTS, OUTPUTS) for number in range(MODULES)]


def _timed(adapters: Iterable[tuple[Json, Callable[[], Json]]]) -> Json:
    """The kind of each adapter, what its search returned, and the processor seconds that it took."""
    import indexer.deltas.adapter_starts  # noqa: F401  (what it loads is not counted)
    from indexer.deltas.starts.seed_table import usual_seeds

    before = _resident_bytes()
    started = time.process_time()
    usual_seeds()
    table_seconds = time.process_time() - started
    rows = []
    for kind, search in adapters:
        started = time.process_time()
        found = search()
        rows.append(kind | found | {"seconds": time.process_time() - started})
    return {"adapters": rows, "table_seconds": table_seconds, "bytes_before": before}


def _resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
