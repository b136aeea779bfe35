"""Crawl the fine-tunes of a base model and turn what fine-tuning did to their weights into vectors.

The data flows one way: hub → weights → delta → svd → record → representation → atlas.

>>> from indexer import build                                  # doctest: +SKIP
>>> build("roberta-base", "atlas", limit=50)                   # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from indexer.environment import tidy
from indexer.user_folders import find_caches
from indexer.version import __version__

if TYPE_CHECKING:
    from indexer.builds.add import add
    from indexer.builds.commands import build
    from indexer.builds.deepen import deepen
    from indexer.builds.doctor import doctor
    from indexer.builds.shards import publish_records, work
    from indexer.builds.starts import find_starts
    from indexer.library import listed_models, profile, prune, rebuild, represent, status, verify
    from indexer.scans.scan import scan
    from indexer.share.merge import merge
    from indexer.share.pull import pull
    from indexer.share.push import push
    from indexer.upkeep.removal import remove

__all__ = [
    "__version__", "add", "build", "deepen", "doctor", "find_starts", "listed_models", "merge", "profile", "prune",
    "publish_records", "pull", "push", "rebuild", "remove", "represent", "scan", "status", "verify", "work",
]  # fmt: skip

find_caches()  # before anything imports huggingface_hub

_HOMES = {
    "add": "builds.add",
    "build": "builds.commands",
    "deepen": "builds.deepen",
    "doctor": "builds.doctor",
    "find_starts": "builds.starts",
    "merge": "share.merge",
    "publish_records": "builds.shards",
    "pull": "share.pull",
    "push": "share.push",
    "remove": "upkeep.removal",
    "scan": "scans.scan",
    "work": "builds.shards",
}

tidy()  # before anything imports huggingface_hub


def __getattr__(name: str) -> object:
    # Imported on first use: everything here imports this module, and what a build needs must not come with it.
    if name not in __all__:
        raise AttributeError(f"module 'indexer' has no attribute {name!r}")
    return getattr(import_module(f"indexer.{_HOMES.get(name, 'library')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
