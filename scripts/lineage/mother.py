"""The rival: MoTHer's published rule (Horwitz et al., ICLR 2025), for full fine-tunes.

Distance of two models: the largest entry of W_i − W_j, for each square attention matrix, scaled between the smallest and
the largest of all pairs, averaged over the matrices. If the kurtosis of the weights says that an edge points the wrong
way, λ = 0.3 of the mean distance is added to it. Then Edmonds' algorithm: the cheapest tree that reaches every model.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import networkx
import numpy as np
from numpy.typing import NDArray

from indexer.architectures.architecture import load_architecture
from indexer.names import ModelRef
from indexer.weights.checkpoint import open_checkpoint

PENALTY = 0.3
ATTENTION = ("query", "key", "value", "output")


def read_square(folder: Path) -> NDArray[np.float32]:
    """All square attention matrices of a checkpoint folder: (matrices, n, n)."""
    checkpoint = open_checkpoint(ModelRef.parse(str(folder)))
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    layout = load_architecture(str(checkpoint.config["model_type"])).locate(shapes, checkpoint.config)
    wanted = {one.tensor for one in layout.matrices if one.key.family in ATTENTION}
    found = {}
    for name, tensor in checkpoint.stream(wanted):
        for one in layout.by_tensor[name]:
            if one.key.family in ATTENTION and one.shape[0] == one.shape[1]:
                found[one.key.sort_key] = one.extract(tensor).float().numpy().copy()
    checkpoint.close()
    return np.stack([found[key] for key in sorted(found)])


def parents(
    weights: Mapping[str, NDArray[np.float32]],
    root: str,
    created: Mapping[str, datetime] | None = None,
    *,
    falling: bool = True,
) -> dict[str, str | None]:
    """Every model's parent by the rule.

    ``created``: given root and dates (no edge into ``root``, none from a later model); None: as published. ``falling``:
    whether kurtosis is taken to fall from parent to child, or to rise.
    """
    names = list(weights)
    stacked = np.stack([weights[name] for name in names])
    distance = np.zeros((len(names), len(names)))
    for matrix in range(stacked.shape[1]):
        one = stacked[:, matrix].reshape(len(names), -1)
        apart = np.stack([np.abs(one - row).max(axis=1) for row in one])
        off = apart[~np.eye(len(names), dtype=bool)]
        distance += (apart - off.min()) / max(float(np.ptp(off)), 1e-30) / stacked.shape[1]
    kurtosis = np.array([_kurtosis(weights[name]) for name in names]) * (1 if falling else -1)
    mean = float(distance[~np.eye(len(names), dtype=bool)].mean())
    graph = networkx.DiGraph()
    graph.add_nodes_from(names)
    for i, parent in enumerate(names):
        for j, child in enumerate(names):
            if i == j:
                continue
            if created is not None and (child == root or (parent != root and created[parent] >= created[child])):
                continue
            graph.add_edge(
                parent, child, weight=distance[i, j] + (PENALTY * mean if kurtosis[i] < kurtosis[j] else 0.0)
            )
    tree = networkx.minimum_spanning_arborescence(graph)
    found: dict[str, str | None] = dict.fromkeys(names)
    found.update({child: parent for parent, child in tree.edges})
    return found


def _kurtosis(matrices: NDArray[np.float32]) -> float:
    flat = matrices.reshape(len(matrices), -1).astype(np.float64)
    flat = flat - flat.mean(axis=1, keepdims=True)
    return float(((flat**4).mean(axis=1) / (flat**2).mean(axis=1) ** 2).mean())
