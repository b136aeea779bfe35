"""When the next request may go out: what the Hub's headers tell of its quota, and who waits for how long.

The Hub counts requests in windows of five minutes, for its API and for files apart, and says on every answer
how many are left: ``RateLimit: "api";r=499;t=172`` (499 requests, 172 seconds until the window ends). The
quota is the user's, not a process's: all processes of a user on one machine keep one pace
(``indexer.network.shared_clock``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from indexer.network.shared_clock import MemoryClock, SharedClock

_RATE_LIMIT = re.compile(r"\br\s*=\s*(\d{1,9})(?!\d)\s*;\s*t\s*=\s*(\d{1,9})(?!\d)", re.ASCII)


class Pace:
    """When the next request may go out, by host and kind; and the same for all who share the clock."""

    def __init__(self, shared: SharedClock | None = None) -> None:
        self._shared = shared or MemoryClock()

    def take_turn(self, name: str, longest: float) -> float | None:
        """Reserve the next free moment: in how many seconds, or None if in more than ``longest``."""
        with self._shared.turns(name) as turns:
            now = self._shared.now()
            start = max(now, turns.next_free)
            if start - now > longest:
                return None
            if start < turns.interval_until:
                turns.next_free = start + turns.interval
            return start - now

    def pause(self, name: str, seconds: float) -> bool:
        """Let nothing out for ``seconds``. Whether that is news, not what another just said."""
        with self._shared.turns(name) as turns:
            until = self._shared.now() + seconds
            news = until > turns.next_free + 0.5
            turns.next_free = max(turns.next_free, until)
            return news

    def note(self, name: str, headers: Mapping[str, str], longest: float) -> None:
        """Learn from the quota that an answer tells: below one request in two seconds, spread them out."""
        quota = quota_in(headers)
        if quota is None:
            return
        remaining, seconds = quota
        with self._shared.turns(name) as turns:
            now = self._shared.now()
            if remaining >= seconds / 2:
                turns.interval_until = 0.0
                return
            turns.interval = min(seconds / (remaining + 1), longest)
            turns.interval_until = now + seconds
            turns.next_free = max(turns.next_free, now + turns.interval)

    def spend(self, name: str, seconds: float) -> float:
        """Take ``seconds`` of something that all share, one after another: how long to wait until they are over."""
        with self._shared.turns(name) as turns:
            now = self._shared.now()
            turns.next_free = max(now, turns.next_free) + seconds
            return turns.next_free - now


def quota_in(headers: Mapping[str, str]) -> tuple[int, int] | None:
    """(requests left, seconds until the quota is full again), as the ``RateLimit`` header tells."""
    found = _RATE_LIMIT.search(headers.get("ratelimit", "")[:1000])
    return (int(found[1]), int(found[2])) if found else None


def told_to_wait(status: int, headers: Mapping[str, str]) -> float | None:
    """What the server asks for, at least a second; None if it asks for nothing that can be read."""
    quota = quota_in(headers)
    # The header is on every answer: it is the reason for a 429 only where nothing is left.
    if status == 429 and quota is not None and quota[0] == 0:
        return quota[1] + 1.0
    text = headers.get("retry-after", "").strip()[:100]
    if re.fullmatch(r"[0-9]{1,9}", text):
        return max(1.0, float(text))
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    # By the server's own clock, where it tells that: ours may be set to anything.
    return max(1.0, (_aware(moment) - _now_there(headers)).total_seconds())


def _now_there(headers: Mapping[str, str]) -> datetime:
    try:
        return _aware(parsedate_to_datetime(headers.get("date", "")[:100]))
    except (ValueError, TypeError, OverflowError):
        return datetime.now(UTC)


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
