"""Four bases whose fine-tunes have ranks that are known by hand, by theory or from NumPy; their atlas, built once."""

from __future__ import annotations

import math
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import duckdb
import numpy as np
import pytest

from indexer.atlas import AtlasFolder
from query import Atlas
from query.questions.rank.study import RankStudy
from tests import checkpoints
from tests.checkpoints import rank_of
from tests.once import made_once
from tests.tiny_hub import served_shell

FAMILIES = ("query", "key", "value", "output", "feedforward1", "feedforward2")
THRESHOLDS = (0.5, 0.8, 0.9, 0.95, 0.99)
DEPTH = 6
KINDS = {
    "org/known": checkpoints.roberta(DEPTH, 96, 192),
    "org/noisy": checkpoints.roberta(3, 192, 384),
    "org/gpt": checkpoints.gpt2(3, 32),
    "org/t5": checkpoints.t5(2, 3, 24, 64),
}
TUNED = {
    "org/known": ("ann/one", "bob/two", "cyd/three"),
    "org/noisy": ("ann/noise", "bob/noise"),
    "org/gpt": ("ann/gpt", "bob/gpt"),
    "org/t5": ("ann/t5", "bob/t5"),
}


HALF = {
    "query": lambda layer, member: 3 + 2 * layer,
    "key": lambda layer, member: 4 + member,  # 4, 5, 6: the mean is 5, the standard deviation 1
    "value": lambda layer, member: 2 + layer**2,
    "output": lambda layer, member: 2**layer,
    "feedforward1": lambda layer, member: (layer + 1) ** 2,
}


# σ² = 52 26 11 5 4 2 of 100: 52 | 78 89 | 94 | 98 100
BY_HAND = {0.5: 1, 0.51: 1, 0.53: 2, 0.8: 3, 0.9: 4, 0.95: 5, 0.99: 6}


def known_change(member: int):
    def delta(name, shape):
        _, layer, family = name
        rng = np.random.default_rng([member, layer, FAMILIES.index(family)])
        if family == "feedforward2":
            return 1e-2 * checkpoints.low_rank(rng, shape, np.sqrt([52, 26, 11, 5, 4, 2]))
        return 1e-2 * checkpoints.low_rank(rng, shape, np.ones(2 * HALF[family](layer, member) - 1))

    return delta


NOISE = 1e-3
SPIKES = {
    "query": (),
    "key": (6.0, 4.0, 3.0, 2.0, 1.5),
    "value": (20.0, 10.0, 5.0),
    "output": (3.0, 0.7),  # one above and one below the threshold of Baik, Ben Arous and Péché
    "feedforward1": (6.0, 4.0, 2.0, 0.6),
    "feedforward2": (),
}


def spiked(member: int):
    def delta(name, shape):
        rng = np.random.default_rng([50 + member, name[1], FAMILIES.index(name[2])])
        spikes = checkpoints.low_rank(rng, shape, SPIKES[name[2]]) if SPIKES[name[2]] else 0
        return NOISE * (rng.normal(size=shape) + math.sqrt(max(shape)) * spikes)

    return delta


def outliers(spikes: tuple[float, ...], c: float) -> list[float]:
    """Squared singular values that leave the bulk (Benaych-Georges & Nadakuditi, 2012), c = m/n."""
    return [(1 + spike**2) * (c + spike**2) / spike**2 for spike in spikes if spike > c**0.25]


def predicted_rank(spikes: tuple[float, ...], m: int, n: int, threshold: float) -> float:
    """The rank that theory expects: outliers first, then the top share of Marchenko and Pastur's bulk.

    Σ σ² is m + Σ θ² in the mean. What the outliers do not hold, m − k values of the bulk do, with the density
    √((b − x)(x − a)) / 2πcx between a, b = (1 ∓ √c)²; integrated here in the angle φ, x = (a + b)/2 + (b − a)/2 cos φ.
    """
    c = m / n
    out = sorted(outliers(spikes, c), reverse=True)
    total = m + sum(spike**2 for spike in spikes)
    for rank, energy in enumerate(np.cumsum(out), 1):
        if energy >= threshold * total:
            return rank
    a, b = (1 - math.sqrt(c)) ** 2, (1 + math.sqrt(c)) ** 2
    angle = (np.arange(200_000) + 0.5) * math.pi / 200_000
    x = (a + b) / 2 + (b - a) / 2 * np.cos(angle)
    density = (b - a) ** 2 / 4 * np.sin(angle) ** 2 / (2 * math.pi * c * x) * math.pi / 200_000
    counts, energies = np.cumsum(density), np.cumsum(density * x)
    assert counts[-1] == pytest.approx(1, abs=1e-6)  # it is a density
    assert energies[-1] == pytest.approx(1, abs=1e-6)  # of mean 1
    share = (threshold * total - sum(out)) / (total - sum(out))
    return len(out) + (m - len(out)) * float(np.interp(share, energies, counts))


def random_change(seed: int):
    def delta(name, shape):
        rng = np.random.default_rng([seed, name[1], len(name[2]), *shape])
        values = 0.02 * np.exp(-np.arange(10) / (2 + name[1]))
        return checkpoints.low_rank(rng, shape, values) + 1e-4 * rng.normal(size=shape)

    return delta


def make_store(root: Path) -> dict[str, dict]:
    """Write all checkpoints. What each model's tensors are in the end comes back, adapters merged in."""
    weights: dict[str, dict] = {}
    for base, kind in KINDS.items():
        weights[base] = kind.random(seed=len(base))
        checkpoints.save(root / base, kind, weights[base])
        checkpoints.describe(root, base, tags=["transformers"])
        change = {"org/known": known_change, "org/noisy": spiked}.get(base, random_change)
        for member, model in enumerate(TUNED[base]):
            weights[model] = kind.changed(weights[base], change(member))
            checkpoints.save(root / model, kind, weights[model])
            checkpoints.claim(root, model, base, month=member + 1)
    kind, base = KINDS["org/known"], "org/known"

    def frozen(name, shape):
        return known_change(1)(name, shape) if name[1] >= 2 else np.zeros(shape)

    odd = {
        "eve/copy": weights[base],
        "eve/repeat": weights["ann/one"],
        "eve/other": kind.random(seed=99),
        "eve/frozen": kind.changed(weights[base], frozen),
    }
    for model, tensors in odd.items():
        checkpoints.save(root / model, kind, tensors)
        checkpoints.claim(root, model, base, month=11)
    weights |= odd
    for model, base, modules in (
        ("dan/lora", "org/known", {f"roberta.encoder.layer.{i}.attention.self.{part}":
                                     f"encoder.layer.{i}.attention.self.{part}.weight"
                                     for i in range(DEPTH) for part in ("query", "value")}),
        ("dan/gpt-lora", "org/gpt", {f"transformer.h.{i}.attn.c_attn": f"h.{i}.attn.c_attn.weight" for i in range(3)}),
    ):  # fmt: skip
        factors, weights[model] = adapted(KINDS[base], weights[base], modules)
        more = {"fan_in_fan_out": True} if base == "org/gpt" else {}
        checkpoints.save_lora(root / model, base, factors, alpha=6, **more)
        checkpoints.claim(root, model, base, "adapter", month=5)
    return weights


def adapted(kind: checkpoints.Kind, weights: dict, modules: dict[str, str]) -> tuple[dict, dict]:
    rng = np.random.default_rng(5)
    factors, merged = {}, {name: tensor.astype(np.float64) for name, tensor in weights.items()}
    transposed = {matrix.tensor: matrix.transposed for matrix in kind.places.values()}
    for module, tensor in modules.items():
        rows, columns = merged[tensor].shape[:: -1 if transposed[tensor] else 1]
        a, b = rng.normal(size=(3, columns)).astype(np.float32), rng.normal(size=(rows, 3)).astype(np.float32)
        factors[module] = (0.05 * a, 0.05 * b)
        change = 2.0 * factors[module][1].astype(np.float64) @ factors[module][0]
        merged[tensor] += change.T if transposed[tensor] else change
    return factors, merged


def build_once(folder: Path) -> None:
    """The store, its atlas and the weights it was made of."""
    weights = make_store(folder / "store")
    with served_shell(folder / "store") as shell:
        bases = [word for base in KINDS for word in ("--base", base)]
        result = shell("index", "build", *bases, "--spectra", "--workers", "1")
        assert result.code == 0, result.err
    (folder / "weights.pickle").write_bytes(pickle.dumps(weights))


def forget_spectra(folder: AtlasFolder, condition: str, ranks_above: int = 8) -> None:
    """As if these models had been indexed without --spectra: only ranks up to 8 are known."""
    with duckdb.connect(str(folder.database)) as connection:
        (models,) = connection.execute(f"SELECT list(model_id) FROM fine_tunes WHERE {condition}").fetchone()
        connection.execute("UPDATE records SET has_spectra = false WHERE list_contains(?, model_id)", [models])
        connection.execute("DELETE FROM fused_matrices WHERE list_contains(?, model_id)", [models])
        for percent in (50, 80, 90, 95, 99):
            connection.execute(
                f"UPDATE deltas SET rank_{percent} = CASE WHEN rank_{percent} <= {ranks_above} THEN rank_{percent} END, "
                f"weight_rank_{percent} = NULL WHERE list_contains(?, model_id)",
                [models],
            )


def by_numpy(planted, base: str, models: list[str], of: str, threshold: float, whole: bool = False) -> dict[str, list]:
    """family → for each layer the ranks of the models that have one."""
    kind, original = KINDS[base], planted.weights[base]
    expected: dict[str, dict[int, list[int]]] = {}
    for model in models:
        tuned = planted.weights[model]
        tensors = {name: tuned[name].astype(np.float64) - original[name] for name in tuned} if of == "delta" else tuned
        matrices = {name: matrix.get(tensors) for name, matrix in kind.places.items()}
        if whole:
            for name, parts in kind.fused_matrices.items():
                for stack, layer, family in list(matrices):
                    if family == parts[0]:
                        matrices[stack, layer, name] = kind.whole(tensors, stack, layer, name)
                matrices = {key: matrix for key, matrix in matrices.items() if key[2] not in parts}
        for (stack, layer, family), matrix in matrices.items():
            layers = expected.setdefault(f"{stack}.{family}" if stack else family, {})
            layers.setdefault(layer, []).extend([rank_of(matrix, threshold)] if np.any(matrix) else [])
    return {family: [layers[layer] for layer in sorted(layers)] for family, layers in expected.items()}


def check(study: RankStudy, expected: dict[str, list]) -> None:
    assert set(study.families) == set(expected)
    for name, layers in expected.items():
        family = study.families[name]
        assert family.counts == tuple(map(len, layers))
        assert family.ranks == tuple(pytest.approx(np.mean(ranks)) if ranks else None for ranks in layers)
        assert family.spread == tuple(
            pytest.approx(np.std(ranks, ddof=1)) if len(ranks) > 1 else None for ranks in layers
        )


@pytest.fixture(scope="session")
def planted(tmp_path_factory) -> Iterator[SimpleNamespace]:
    folder = made_once(tmp_path_factory, "ranks", build_once)
    weights = pickle.loads((folder / "weights.pickle").read_bytes())
    with served_shell(folder / "store") as shell:
        yield SimpleNamespace(folder=folder / "atlas", weights=weights, shell=shell)


@pytest.fixture(scope="session")
def atlas(planted) -> Iterator[Atlas]:
    with Atlas(planted.folder) as opened:
        yield opened


@pytest.fixture
def atlas_copy(planted, tmp_path) -> AtlasFolder:
    """A copy of the atlas that a test may spoil."""
    shutil.copytree(planted.folder, tmp_path / "atlas")
    return AtlasFolder(tmp_path / "atlas")
