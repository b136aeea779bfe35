"""Ask an atlas of fine-tuned models.

>>> from query import Atlas                                    # doctest: +SKIP
>>> with Atlas("atlas") as atlas:                              # doctest: +SKIP
...     atlas.similar("textattack/roberta-base-MNLI", k=5).to_df()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from indexer.errors import AtlasError
from indexer.version import __version__

if TYPE_CHECKING:
    from query.atlas import Atlas

__all__ = ["Atlas", "AtlasError", "__version__"]


def __getattr__(name: str) -> object:
    # `query --help` must not wait for duckdb and numpy.
    if name == "Atlas":
        from query.atlas import Atlas

        return Atlas
    raise AttributeError(f"module 'query' has no attribute {name!r}")
