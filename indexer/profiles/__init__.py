"""Depth profiles: what each layer of a model keeps of its input, and how broadly it looks.

``Layers(stem, blocks)`` takes any torch module; ``measure`` profiles it against a probe. Nothing here asks the Hub,
but for ``loading``, which reads real checkpoints through the project's own readers.

>>> from indexer.profiles import Layers, measure, random_probe         # doctest: +SKIP
>>> layers = Layers(torch.nn.Embedding(4096, 128), blocks)              # doctest: +SKIP
>>> measure(layers, random_probe(layers)).rows                          # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from indexer.profiles.layers import Layers
    from indexer.profiles.measure import measure
    from indexer.profiles.probes import image_probe, random_probe

__all__ = ["Layers", "image_probe", "measure", "random_probe"]

_PLACES = {"Layers": "layers", "measure": "measure", "random_probe": "probes", "image_probe": "probes"}


def __getattr__(name: str) -> Any:
    # torch is slow to load: only who measures waits for it.
    if name in _PLACES:
        from importlib import import_module

        return getattr(import_module(f"indexer.profiles.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'indexer.profiles' has no attribute {name!r}")
