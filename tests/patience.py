"""Waiting in tests: for something to become true, not for a time; and counting what code does, not how long it takes.

What a test waits for comes within moments on a quiet machine. How long it would wait is of no matter to a test that
passes: ``PATIENCE`` only ends one for which it never comes, and is below the 300 s that a test has at most.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

PATIENCE = 200.0  # seconds


def wait_for(condition: Callable[[], Any], what: str = "it never came to that") -> Any:
    """What ``condition`` gives, as soon as that is true."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
    return found


def lines_run(call: Callable[[], Any]) -> int:
    """How many lines of Python (of this thread) ``call`` runs: the same on every machine, however busy."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
