"""The processors that this process may use."""

from __future__ import annotations

import os


def processors() -> int:
    """How many there are: those it is bound to, where the system can say so."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
