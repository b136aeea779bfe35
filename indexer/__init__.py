"""Crawl the fine-tunes of a base model and turn what fine-tuning did to their weights into vectors.

The data flows one way: hub → weights → delta → svd → record → representation → atlas.

>>> from indexer import build                                  # doctest: +SKIP
>>> build("roberta-base", "atlas", limit=50)                   # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from indexer.version import __version__

if TYPE_CHECKING:
    from indexer.builds.commands import add, build, publish_records, work
    from indexer.builds.removal import remove
    from indexer.library import merge, profile, pull, push, rebuild, represent, status, verify

__all__ = [
    "__version__", "add", "build", "merge", "profile", "publish_records", "pull", "push", "rebuild", "remove",
    "represent", "status", "verify", "work",
]  # fmt: skip

_BUILDING = ("add", "build", "publish_records", "work")


def __getattr__(name: str) -> object:
    # Imported on first use: everything here imports this module, and what a build needs must not come with it.
    if name not in __all__:
        raise AttributeError(f"module 'indexer' has no attribute {name!r}")
    home = "builds.commands" if name in _BUILDING else "builds.removal" if name == "remove" else "library"
    return getattr(import_module(f"indexer.{home}"), name)
