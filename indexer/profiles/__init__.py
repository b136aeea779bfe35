"""Depth profiles: how much of its input each layer of a model keeps, and how many positions it depends on.

``Layers(stem, blocks)`` takes any torch module; ``measure`` profiles it with a probe.

>>> from indexer.profiles import Layers, measure, random_probe         # doctest: +SKIP
>>> layers = Layers(torch.nn.Embedding(4096, 128), blocks)              # doctest: +SKIP
>>> rows, states = measure(layers, random_probe(layers))                # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from indexer.profiles.layers import Layers
    from indexer.profiles.measurement import measure
    from indexer.profiles.probes import image_probe, random_probe

__all__ = ["Layers", "image_probe", "measure", "random_probe"]

_MODULES = {"Layers": "layers", "measure": "measurement", "random_probe": "probes", "image_probe": "probes"}


def __getattr__(name: str) -> Any:
    # Imported on first use, because torch is slow to load.
    if name not in _MODULES:
        raise AttributeError(f"module 'indexer.profiles' has no attribute {name!r}")
    return getattr(import_module(f"indexer.profiles.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
