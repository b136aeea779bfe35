"""A peer: WeightWatcher (Martin & Mahoney), which looks at the spectra of a model's weights."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import torch


def spectra_by_weightwatcher() -> Callable[[torch.Tensor], torch.Tensor] | None:
    """What gives all singular values of a matrix as WeightWatcher finds them; None where it is not installed.

    It is asked as its users ask it, for the "empirical spectral density" of a layer: the squares of the singular
    values. Only the matrix is a delta, not a weight.
    """
    if find_spec("weightwatcher") is None:
        return None
    watcher_of = import_module("weightwatcher").WeightWatcher
    logging.getLogger("weightwatcher").setLevel(logging.ERROR)

    def values(matrix: torch.Tensor) -> torch.Tensor:
        layer = torch.nn.Linear(matrix.shape[1], matrix.shape[0], bias=False)
        layer.weight.data = matrix
        watcher = watcher_of(model=torch.nn.Sequential(layer))
        squares = watcher.get_ESD(layer=int(watcher.describe().layer_id.iloc[0]))
        return torch.from_numpy(np.sqrt(np.sort(squares)[::-1]))

    return values
