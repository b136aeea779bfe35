"""Where this tool keeps what only saves time, outside every atlas."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """The user's own folder for it; it need not exist. Raises RuntimeError where the user has no home."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "vectors-in-the-wild"
