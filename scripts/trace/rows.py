"""The changes of all rows of an input embedding beside the truth, with NumPy alone: how far untouched and met rows lie apart.

A row whose token was never met is c·e up to the rounding of every step. Each step of decoupled decay rounds an entry in
a way that depends on its mantissa alone, so the entries of untouched rows lie on one curve over the mantissa; what is
left beside that curve is far less than what is left beside c. Where the optimiser treats every entry by its value alone
(Adam with an L2 penalty), they lie on one curve over the value. Everything is in units in the last place of the file's
dtype, at the base's entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from scipy.ndimage import maximum_filter1d, minimum_filter1d

from scripts.family.tasks import PADDING
from scripts.family.training import WEIGHTS
from scripts.trace.making import Maker, base_id, embedding_name
from scripts.trace.plan import VOCABULARY, Run
from scripts.trace.replay import NEVER, Replay

# Bits of the mantissa behind the point, and the smallest exponent of a normal number.
FORMATS: Mapping[torch.dtype, tuple[int, int]] = {
    torch.float32: (23, -126),
    torch.float16: (10, -14),
    torch.bfloat16: (7, -126),
}
NEIGHBOURS = 8
BAND = 1.5  # units in the last place


def embedding(folder: Path) -> torch.Tensor:
    """The input embedding in a checkpoint of one file."""
    state = load_file(folder / WEIGHTS)
    return state[embedding_name(state)]


def units(values: NDArray[np.float64], dtype: torch.dtype) -> NDArray[np.float64]:
    """The unit in the last place of ``dtype`` at each value; that of the subnormals below the normal numbers."""
    bits, smallest = FORMATS[dtype]
    exponents = np.frexp(values)[1] - 1
    return np.ldexp(1.0, np.maximum(np.where(values == 0, smallest, exponents), smallest) - bits)


def mantissas(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """In [1, 2), 0 for zeros: entries that decay rounds alike have the same."""
    return np.abs(np.frexp(values)[0]) * 2


def beyond_neighbours(
    offsets: NDArray[np.float64], keys: NDArray[np.float64], is_reference: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """(n, d) how far each offset lies outside those of the reference rows' entries with the nearest keys.

    ``NEIGHBOURS`` entries on either side. Where rounding jumps, both sides of the jump are within.
    """
    order = np.argsort(keys[is_reference], axis=None, kind="stable")
    near = keys[is_reference].ravel()[order]
    sorted_offsets = offsets[is_reference].ravel()[order]
    lowest = minimum_filter1d(sorted_offsets, 2 * NEIGHBOURS + 1, mode="nearest")
    highest = maximum_filter1d(sorted_offsets, 2 * NEIGHBOURS + 1, mode="nearest")
    place = np.searchsorted(near, keys).clip(0, len(near) - 1)
    return np.maximum(np.maximum(lowest[place] - offsets, offsets - highest[place]), 0.0)


def analyse(maker: Maker, run: Run) -> dict[str, Any] | None:
    """The gap between untouched and met rows of one run; None where rows and tokens do not correspond."""
    if run.make in ("prune", "permute"):
        return None
    replay = Replay.load(maker.replay_path(run))
    stored = embedding(maker.folder(run.name))
    start = embedding(maker.root / base_id(run.base))[:VOCABULARY]
    dtype = stored.dtype
    tuned = stored[: len(start)].double().numpy()
    met = replay.met[: len(start)]
    untouched = ~met & (np.arange(len(start)) != PADDING)
    met = met & (np.arange(len(start)) != PADDING)
    if not untouched.any():
        return {"run": run.name, "untouched": 0}
    # Every second untouched row shows how decay rounds, the others are tested.
    reference_rows = untouched & (np.cumsum(untouched) % 2 == 0)
    tested = untouched & ~reference_rows
    best: dict[str, Any] = {}
    for how, reference in (("base", start), ("base rounded", start.to(dtype))):
        base = reference.double().numpy()
        # The median over entries: rows that were met by mistake would not move it.
        is_large = untouched[:, None] & (np.abs(base) > np.abs(base).mean())
        scale = float(np.median(tuned[is_large] / base[is_large]))
        offsets = (tuned - scale * base) / units(base, dtype)
        plain = np.abs(offsets)
        curved = beyond_neighbours(offsets * np.sign(base), mantissas(base), reference_rows)
        by_value = beyond_neighbours(offsets, base, reference_rows)
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.where(base == 0, 0.0, np.abs(tuned / base - scale)).max(axis=1)
        found = {
            "reference": how,
            "c_estimated": scale,
            **spread("units", plain.max(axis=1), untouched, met, replay),
            **spread("curve", curved.max(axis=1), tested, met, replay),
            **spread("value", by_value.max(axis=1), tested, met, replay),
            **spread("relative", relative, untouched, met, replay),
            **spread("beyond", (curved > BAND).sum(axis=1).astype(float), tested, met, replay),
            **spread(
                "norm",
                np.linalg.norm(tuned - scale * base, axis=1) / np.linalg.norm(base, axis=1).clip(1e-30),
                untouched,
                met,
                replay,
            ),
        }
        if not best or found["curve_untouched_max"] < best["curve_untouched_max"]:
            best = found
    never = met & (replay.gradients[: len(start)] == 0)
    only_last = met & (replay.first[: len(start)] == replay.last.max())
    return {
        "run": run.name,
        "dtype": str(dtype).removeprefix("torch."),
        "optimizer": run.optimizer,
        "untouched": int(untouched.sum()),
        "met": int(met.sum()),
        "only_last": int(only_last.sum()),
        "without_gradient": int(never.sum()),
        "c": replay.scale,
        "last_rate": replay.last_rate,
        **best,
    }


def spread(
    name: str, sizes: NDArray[np.float64], untouched: NDArray[np.bool_], met: NDArray[np.bool_], replay: Replay
) -> dict[str, float | int | None]:
    """Where untouched rows end and met rows begin, by one measure of a row."""
    last = met & (replay.first[: len(met)] == replay.last.max()) & (replay.first[: len(met)] != NEVER)
    highest = float(sizes[untouched].max())
    return {
        f"{name}_untouched_median": float(np.median(sizes[untouched])),
        f"{name}_untouched_max": highest,
        f"{name}_met_min": float(sizes[met].min()) if met.any() else None,
        f"{name}_met_percentile1": float(np.percentile(sizes[met], 1)) if met.any() else None,
        f"{name}_last_min": float(sizes[last].min()) if last.any() else None,
        f"{name}_last_median": float(np.median(sizes[last])) if last.any() else None,
        f"{name}_overlap": int((sizes[met] <= highest).sum()),
        f"{name}_unmoved": int((sizes[met] == 0).sum()),
    }
