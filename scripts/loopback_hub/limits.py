"""What a server may hold back: requests per window, and bytes per second."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping

# Requests per window of an anonymous caller on the real Hub.
DEFAULT_QUOTAS = {"api": 500, "resolvers": 3000, "pages": 100}
DEFAULT_WINDOW = 300.0

# Seconds for which a throttle may be ahead of its rate.
_CATCH_UP = 0.01

Quota = int | tuple[int, float]


class RateLimits:
    """Quotas per fixed window, per kind of route and caller. A kind without a set quota is never refused.

    ``quotas`` maps "api", "resolvers" or "pages" to a number of requests, or to (number, seconds a window).
    """

    def __init__(self, quotas: Mapping[str, Quota] | None = None) -> None:
        self._lock = threading.Lock()
        self._quotas: dict[str, tuple[int, float]] = {}
        self._windows: dict[tuple[str, str], tuple[float, int]] = {}
        for kind, quota in (quotas or {}).items():
            self.set(kind, quota)

    def set(self, kind: str, quota: Quota | None) -> None:
        """Enforce another quota from now on in a fresh window; None enforces none."""
        if kind not in DEFAULT_QUOTAS:
            raise ValueError(f"unknown kind of quota {kind!r}: one of {', '.join(DEFAULT_QUOTAS)}")
        with self._lock:
            self._windows = {key: window for key, window in self._windows.items() if key[0] != kind}
            self._quotas.pop(kind, None)
            if quota is not None:
                self._quotas[kind] = quota if isinstance(quota, tuple) else (quota, DEFAULT_WINDOW)

    def take(self, kind: str, caller: str) -> tuple[bool, dict[str, str]]:
        """Count one request: whether it is allowed, and the headers with the caller's quota."""
        now = time.monotonic()
        with self._lock:
            limit, window = self._quotas.get(kind, (DEFAULT_QUOTAS[kind], DEFAULT_WINDOW))
            start, used = self._windows.get((kind, caller), (now, 0))
            if now >= start + window:
                start, used = now, 0
            is_enforced = kind in self._quotas
            # If nothing is enforced the count stays the same, so that clients do not slow down.
            used = used + 1 if is_enforced else 1
            self._windows[kind, caller] = (start, used)
        remaining = max(0, limit - used)
        reset = max(1, math.ceil(window - (now - start)))
        headers = {
            "RateLimit": f'"{kind}";r={remaining};t={reset}',
            "RateLimit-Policy": f'"fixed window";"{kind}";q={limit};w={math.ceil(window)}',
        }
        if not is_enforced or used <= limit:
            return True, headers
        return False, headers | {"Retry-After": str(reset)}


class Throttle:
    """Bytes per second, shared by every connection that asks. ``rate`` may be changed at any time."""

    def __init__(self, rate: float | None, stopping: threading.Event) -> None:
        self.rate = rate
        self._stopping = stopping
        self._lock = threading.Lock()
        self._free_at = 0.0

    @property
    def chunk(self) -> int:
        """How many bytes to ask for at once, so that waits stay short."""
        rate = self.rate
        return 1 << 18 if not rate else max(256, min(1 << 18, int(rate / 200)))

    def wait(self, count: int) -> None:
        """Return when ``count`` more bytes may be sent, or the server stops."""
        rate = self.rate
        if not rate:
            return
        with self._lock:
            now = time.monotonic()
            # A wait that overslept may be caught up, so that the rate holds on average.
            self._free_at = max(now - _CATCH_UP, self._free_at) + count / rate
            delay = self._free_at - now
        if delay > 0:
            self._stopping.wait(delay)
