"""Versions of the libraries that a record depends on."""

from __future__ import annotations

import platform
from importlib.metadata import version


def library_versions() -> dict[str, str]:
    """By distribution, and Python's own; "unknown" where a library is not installed as a distribution."""
    names = (
        "vectors-in-the-wild",
        "torch",
        "transformers",
        "huggingface_hub",
        "faiss-cpu",
        "duckdb",
        "numpy",
    )
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except Exception:
            found[name] = "unknown"
    return found
