"""``index`` as ever, but that every process of it writes down whom its limits held up: run with the ledger's path first.

Each line of the ledger is one JSON object: ``process``, ``call`` (spend, sleep, take_turn, pause), ``name`` of the quota,
``seconds`` asked for, ``wait`` that was answered, and when the call began and ended by the clock that processes share.
A worker begins with ``initialise``, which it finds in this module, and so is watched too.
"""

from __future__ import annotations

import json
import os
import sys
import time

from indexer.builds import executor
from indexer.network.rate_limit import Bandwidth, RateLimiter

real_initialise = executor._initialise


def note(**facts: object) -> None:
    """One write to the end of the file: lines of several processes do not mix."""
    with open(os.environ["ATLAS_TESTS_LEDGER"], "ab", buffering=0) as ledger:
        ledger.write(json.dumps({"process": os.getpid(), **facts}).encode() + b"\n")


def watch(name: str) -> None:
    real = getattr(RateLimiter, name)

    def watched(limiter, quota, seconds):
        began = time.time()
        answer = real(limiter, quota, seconds)
        note(call=name, name=quota, seconds=seconds, wait=answer, began=began, ended=time.time())
        return answer

    setattr(RateLimiter, name, watched)


def slept(seconds: float) -> None:
    time.sleep(seconds)
    note(call="sleep", seconds=seconds)


def initialise(*arguments: object) -> None:
    """What a worker begins with; the import of this module has begun to watch it."""
    real_initialise(*arguments)


if __name__ == "__main__":
    from indexer.cli import main
    from tests import logged_build

    executor._initialise = logged_build.initialise
    os.environ["ATLAS_TESTS_LEDGER"] = sys.argv.pop(1)
    main()
else:
    for call in ("spend", "take_turn", "pause"):
        watch(call)
    Bandwidth.__init__.__defaults__ = (None, slept)
