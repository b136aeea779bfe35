"""Crawl the fine-tunes of a base model and turn what fine-tuning did to their weights into vectors.

The data flows one way: hub → weights → delta → svd → record → representation → atlas.

>>> from indexer import build                                  # doctest: +SKIP
>>> build("roberta-base", "atlas", limit=50)                   # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from indexer.version import __version__

if TYPE_CHECKING:
    from indexer.library import (
        add,
        build,
        merge,
        profile,
        publish_records,
        pull,
        push,
        rebuild,
        remove,
        represent,
        status,
        verify,
        work,
    )  # fmt: skip

__all__ = [
    "__version__", "add", "build", "merge", "profile", "publish_records", "pull", "push", "rebuild", "remove",
    "represent", "status", "verify", "work",
]  # fmt: skip


def __getattr__(name: str) -> object:
    # Imported by everything here: what a build needs must not come with it.
    if name in __all__:
        from indexer import library

        return getattr(library, name)
    raise AttributeError(f"module 'indexer' has no attribute {name!r}")
