"""A minimum transfer rate for every response, so that a server cannot hold a connection by sending byte after byte.

A read timeout alone lets a server that sends one byte a second hold a connection for as long as it likes, in the status
line and headers as well as in the body. So everything a connection receives for one request is counted against the time
spent waiting for it. What the reader does in between (a bandwidth limit, an SVD) does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class MinThroughput:
    """A response is too slow if it brings fewer than ``bytes_per_second`` over more than ``seconds`` of waiting."""

    bytes_per_second: float = 1024.0
    seconds: float = 60.0
    clock: Callable[[], float] = time.monotonic

    def is_missed(self, received: int, waited: float) -> bool:
        """Whether ``received`` bytes of a response in ``waited`` seconds are too few."""
        return waited > self.seconds and received < self.bytes_per_second * waited
