"""Libraries that only some questions need: imported where they are used, asked for by name where they are missing."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from indexer.errors import AtlasError

if TYPE_CHECKING:
    import pandas


def require(module: str, purpose: str) -> ModuleType:
    """Import ``module``, which the extra ``studies`` brings. Raises AtlasError saying how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = {"umap": "umap-learn"}.get(module.partition(".")[0], module.partition(".")[0])
        raise AtlasError(
            f"{purpose} needs {package}, which cannot be imported ({error}).",
            "Install the extra: pip install 'vectors-in-the-wild[studies]'",
        ) from error


def to_frame(rows: Sequence[Any], columns: Sequence[str] | None = None) -> pandas.DataFrame:
    """A data frame with a row for each dataclass or dict. ``columns`` names them even where there is no row."""
    frames = require("pandas", "A data frame")
    plain = [asdict(row) if is_dataclass(row) and not isinstance(row, type) else row for row in rows]
    frame: pandas.DataFrame = frames.DataFrame(plain, columns=list(columns) if columns else None)
    return frame
