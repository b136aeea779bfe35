"""Rate limits: the Hub's quotas, and ``--bandwidth``.

The Hub counts requests in windows of five minutes, separately for its API and for files. Every response says how many
are left: ``RateLimit: "api";r=499;t=172`` (499 requests, 172 seconds until the window ends).

All processes on one machine that build one atlas share their limits (workers, shards, Dask workers): an answer to
one of them counts for all, and so does each byte under ``--bandwidth``. The limits are in a small file that is locked
while it changes. The system releases the lock of a process that dies. A pipe to the parent would not do: shards and
Dask workers have no parent in common.

Other processes keep their limits in memory, although the quota belongs to the account: their use of it shows in the
responses to the others. Two builds with a limiter each, simulated for an hour, get all of the 36,000 files that the
quota allows; 168 of their requests are refused and wait. A single build has 96 refused requests
(``test_two_builds_lose_nothing_of_a_quota``).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import multiprocessing
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path

import httpx2

from indexer.user_folders import check_owner, open_private_folder, private_folder

# Bandwidth is accounted for in steps of this length: often enough to be smooth, seldom enough to cost nothing.
STEP_SECONDS = 0.05

# Requests in five minutes without and with an access token, by kind: of the API, and of files (``/resolve``). From
# hub-docs, rate-limits.md; what the Hub's responses say counts instead (``RateLimit-Policy``).
WINDOW_SECONDS = 300
QUOTAS = {False: {"api": 500, "resolve": 3000}, True: {"api": 1000, "resolve": 5000}}

_POLICY = re.compile(r"\bq\s*=\s*(\d{1,9})(?!\d)\s*;\s*w\s*=\s*(\d{1,9})(?!\d)", re.ASCII)
_RATE_LIMIT = re.compile(r"\br\s*=\s*(\d{1,9})(?!\d)\s*;\s*t\s*=\s*(\d{1,9})(?!\d)", re.ASCII)
_MOST_BYTES = 1 << 20

Say = Callable[[str], None]
# The listener of this thread, and the last one named, for threads that have none of their own.
_listener: ContextVar[Say | None] = ContextVar("listener", default=None)
_last_listener: Say | None = None
_policies: dict[str, tuple[int, int]] = {}  # by kind of request, as ``note_response`` read them
_sent: Counter[str] = Counter()


@dataclass
class Limit:
    """The state of one limit; times in seconds of the limiter's clock."""

    next_free: float = 0.0
    interval: float = 0.0
    interval_until: float = 0.0


class RateLimiter:
    """When the next request of each kind may be sent.

    The state lies in the file ``path``, or in memory without one. If the file fails later, the limiter goes on in
    memory and calls ``warn`` once. ``clock`` returns seconds and must be the same for all processes that share the
    file. Raises OSError if the file cannot be created, trusted or locked.
    """

    MOST_LIMITS = 64
    # A limit that is busy for longer than this was written before the clock was set back.
    LONGEST = 3600.0
    # How long, and of how many requests, it is remembered that their tries are spent.
    SPENT_SECONDS, MOST_SPENT = 60.0, 1000

    def __init__(
        self,
        path: Path | None = None,
        *,
        warn: Say = lambda sentence: None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._warn = warn
        self._given_clock = clock
        self._clock = clock or time.monotonic
        self._sharing = threading.Lock()
        self._shared_name: str | None = None
        self._threads = threading.Lock()  # flock does not separate threads of one process
        self._limits: dict[str, Limit] = {}
        self._spent: dict[Hashable, float] = {}
        self._file: int | None = None
        self._stored = b""  # the content of the file that ``_limits`` was parsed from
        if path is not None:
            self._open(path)

    def share(self, name: str) -> None:
        """From now on, share the limits with the user's other processes on this machine that give the same ``name``.

        The file lies in the user's own folder in the machine's temporary folder, because several machines often share
        an atlas. Other users can create files there too, perhaps earlier: a link, another user's folder and a folder
        that others can write to are not used. Then ``warn`` is called, and the limits stay in memory.
        """
        with self._sharing:
            if name == self._shared_name:
                return
            self._shared_name = name
            try:
                folder = open_private_folder()
                try:
                    self._open(Path(f"limits-{_digest(name)}.json"), folder)
                finally:
                    os.close(folder)
            except OSError as error:
                self._give_up(error)

    def _open(self, path: Path, folder: int | None = None) -> None:
        """Share the file ``path``, relative to the open directory ``folder`` if given."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(path, flags, 0o600, dir_fd=folder)
        try:
            check_owner(file, path)
            with suppress(BlockingIOError):  # another process holds it, so locks work here
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(file, fcntl.LOCK_UN)
        except OSError:
            os.close(file)
            raise
        with self._threads:
            if self._file is not None:
                os.close(self._file)
            self._file, self._stored, self._limits = file, b"", {}
            # The same for all processes, and after a restart of the machine.
            self._clock = self._given_clock or (time.monotonic if _boot_id() else time.time)

    @property
    def is_shared(self) -> bool:
        """Whether other processes see the same limits."""
        return self._file is not None

    def take_turn(self, name: str, longest: float) -> float | None:
        """Reserve the next free moment: in how many seconds, or None if in more than ``longest``."""
        with self.changing(name) as limit:
            now = self._clock()
            start = max(now, limit.next_free)
            if start - now > longest:
                return None
            if start < limit.interval_until:
                limit.next_free = start + limit.interval
            return start - now

    def pause(self, name: str, seconds: float) -> bool:
        """Send nothing for ``seconds``. False if another thread or process has already begun this pause."""
        with self.changing(name) as limit:
            until = self._clock() + seconds
            is_new = until > limit.next_free + 0.5
            limit.next_free = max(limit.next_free, until)
            return is_new

    def note_quota(self, name: str, headers: Mapping[str, str], longest: float) -> None:
        """Read the quota from a response. Below one request in two seconds, spread the remaining ones evenly."""
        quota = quota_in(headers)
        if quota is None:
            return
        remaining, seconds = quota
        with self.changing(name) as limit:
            now = self._clock()
            if remaining >= seconds / 2:
                limit.interval_until = 0.0
                return
            limit.interval = min(seconds / (remaining + 1), longest)
            limit.interval_until = now + seconds
            limit.next_free = max(limit.next_free, now + limit.interval)

    def spend(self, name: str, seconds: float) -> float:
        """Reserve ``seconds`` of exclusive use and return how long to wait until they have passed."""
        with self.changing(name) as limit:
            now = self._clock()
            limit.next_free = max(now, limit.next_free) + seconds
            return limit.next_free - now

    def note_spent(self, request: Hashable) -> None:
        """Remember that the tries of a request are spent; in this process only."""
        with self._threads:
            if len(self._spent) >= self.MOST_SPENT:
                self._spent.clear()
            self._spent[request] = self._clock()

    def is_spent(self, request: Hashable) -> bool:
        """Whether the tries of a request were spent a moment ago; the answer is given once."""
        with self._threads:
            since = self._spent.pop(request, None)
            return since is not None and self._clock() - since < self.SPENT_SECONDS

    @contextmanager
    def changing(self, name: str) -> Iterator[Limit]:
        """One limit, locked against other threads and processes; changes are stored when the block ends.

        A file that fails raises nothing: a request must not fail because of it.
        """
        key = _digest(name)
        with self._threads:
            if self._file is not None:
                try:
                    fcntl.flock(self._file, fcntl.LOCK_EX)
                    stored = os.pread(self._file, _MOST_BYTES, 0)
                    if stored != self._stored:  # parsing takes longer than sending a request
                        self._limits = _parse(stored, self._clock() + self.LONGEST)
                        self._stored = stored
                except OSError as error:
                    self._give_up(error)
            limit = self._limits.get(key) or Limit()
            before = replace(limit)
            try:
                yield limit
                if limit == before:
                    return
                self._limits.pop(key, None)
                while len(self._limits) >= self.MOST_LIMITS:
                    del self._limits[min(self._limits, key=lambda key_of_limit: self._limits[key_of_limit].next_free)]
                self._limits[key] = limit
                if self._file is not None:
                    limits = {name: astuple(key_of_limit) for name, key_of_limit in self._limits.items()}
                    content = json.dumps({"boot": _boot_id(), "limits": limits}).encode()
                    try:
                        os.pwrite(self._file, content, 0)
                        os.ftruncate(self._file, len(content))
                        self._stored = content
                    except OSError as error:
                        self._give_up(error)
            finally:
                if self._file is not None:
                    with suppress(OSError):
                        fcntl.flock(self._file, fcntl.LOCK_UN)

    def _give_up(self, error: OSError) -> None:
        if self._file is not None:
            os.close(self._file)  # which releases the lock
            self._file = None
        self._warn(_not_shared(error))


def _parse(content: bytes, latest: float) -> dict[str, Limit]:
    """The limits in a file; none if the file is unreadable or older than the last boot."""
    try:
        content_values = json.loads(content)
        if content_values["boot"] != _boot_id():
            return {}
        limits = {str(key): Limit(*map(float, times)) for key, times in content_values["limits"].items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
    return {key: limit for key, limit in limits.items() if limit.next_free < latest and limit.interval_until < latest}


@cache
def _boot_id() -> str:
    """Identifies the start of the machine, and with it of ``time.monotonic``; empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def listen(say: Say) -> None:
    """From now on, call ``say`` with sentences about waits of this thread, and of threads without a listener."""
    global _last_listener
    _listener.set(say)
    _last_listener = say


@contextmanager
def listening(say: Say) -> Iterator[None]:
    """Call ``say`` with the sentences of this thread, until the block ends."""
    token = _listener.set(say)
    try:
        yield
    finally:
        _listener.reset(token)


def announce(sentence: str) -> None:
    """Pass a sentence to the listener, if there is one."""
    say = _listener.get() or _last_listener
    if say is not None:
        say(sentence)


@cache
def common_limiter() -> RateLimiter:
    """The limiter of this process."""
    is_worker = multiprocessing.parent_process() is not None  # the parent has the same problem and reports it
    return RateLimiter(warn=(lambda sentence: None) if is_worker else announce)


def share_limits(atlas: Path) -> None:
    """Let this process share its limits with all others on this machine that build the same atlas."""
    common_limiter().share(str(atlas))


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def _not_shared(error: OSError) -> str:
    return (
        f"{private_folder()} cannot be shared ({error.strerror or error}): each process keeps its own rate limits, "
        "and --bandwidth applies to each worker separately"
    )


def quota_in(headers: Mapping[str, str]) -> tuple[int, int] | None:
    """(requests left, seconds until the quota is full again) from the ``RateLimit`` header."""
    match = _RATE_LIMIT.search(headers.get("ratelimit", "")[:1000])
    return (int(match[1]), int(match[2])) if match else None


def policy_in(headers: Mapping[str, str]) -> tuple[int, int] | None:
    """(requests, seconds of a window) from the ``RateLimit-Policy`` header."""
    match = _POLICY.search(headers.get("ratelimit-policy", "")[:1000])
    return (int(match[1]), int(match[2])) if match and int(match[1]) and int(match[2]) else None


def request_kind(url: httpx2.URL) -> str:
    """Which quota a request counts against: "resolve" (files), "git", "api", or "other" (signed addresses)."""
    if is_file(url):
        return "resolve"
    return "git" if ".git/" in url.path else "api" if "/api/" in url.path else "other"


def is_file(url: httpx2.URL) -> bool:
    """Whether an address of the Hub is that of a file."""
    # The Hub redirects small files to /api/resolve-cache/…
    return "/resolve/" in url.path or "/resolve-cache/" in url.path


def limit_name(url: httpx2.URL) -> str:
    """The name of the limit that requests to this address share."""
    return f"{url.netloc.decode('ascii', 'replace')} {request_kind(url)}"


def note_response(kind: str, headers: Mapping[str, str]) -> None:
    """Count a request of this process, and remember the quota that its response names.

    ``kind``: "api", "resolve" (files), "git", or "other" (ranges from signed addresses).
    """
    _sent[kind] += 1
    if (policy := policy_in(headers)) is not None:
        _policies[kind] = policy


def sent_requests() -> int:
    """How many requests of this process were answered."""
    return _sent.total()


def quota_of(kind: str, has_token: bool) -> tuple[int, int]:
    """(requests, seconds of a window): as the Hub's responses said, else what is documented."""
    return _policies.get(kind) or (QUOTAS[has_token][kind], WINDOW_SECONDS)


def requested_wait(status: int, headers: Mapping[str, str]) -> float | None:
    """Seconds the server asks to wait, at least one; None if its headers say nothing readable."""
    quota = quota_in(headers)
    # The header is on every response. It is the reason for a 429 only if nothing is left.
    if status == 429 and quota is not None and quota[0] == 0:
        return quota[1] + 1.0
    text = headers.get("retry-after", "").strip()[:100]
    if re.fullmatch(r"[0-9]{1,9}", text):
        return max(1.0, float(text))
    until = _parsed_date(text)
    if until is None:
        return None
    # By the server's own clock if it sends one: the local clock may be wrong.
    now = date_in(headers) or datetime.now(UTC)
    return max(1.0, (until - now).total_seconds())


def date_in(headers: Mapping[str, str]) -> datetime | None:
    """The server's own time."""
    return _parsed_date(headers.get("date", "")[:100])


def _parsed_date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


class Bandwidth:
    """Limits downloads to ``bytes_per_second``, together with all others of the same ``name`` at one ``limiter``.

    Waits only when a step is full: a process is never ahead by more than ``STEP_SECONDS`` and one chunk.
    """

    def __init__(
        self,
        name: str,
        bytes_per_second: float,
        limiter: RateLimiter | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = name
        self.bytes_per_second = bytes_per_second
        self._limiter = limiter
        self._sleep = sleep
        self._uncharged = 0

    def received(self, count: int) -> None:
        """Count received bytes, and wait if they came too fast."""
        self._uncharged += count
        if self._uncharged < self.bytes_per_second * STEP_SECONDS:
            return
        seconds, self._uncharged = self._uncharged / self.bytes_per_second, 0
        self._sleep((self._limiter or common_limiter()).spend(f"bandwidth {self.name}", seconds))


_bandwidth: Bandwidth | None = None


def limit_bandwidth(name: str, bytes_per_second: float | None) -> None:
    """Limit downloads of weights in this process; None lifts the limit."""
    global _bandwidth
    if _bandwidth is not None and (_bandwidth.name, _bandwidth.bytes_per_second) == (name, bytes_per_second):
        return  # a new one for each model would forget bytes that were not waited for yet
    _bandwidth = Bandwidth(name, bytes_per_second) if bytes_per_second else None


def count_received(count: int) -> None:
    """Called for every chunk of a weight file that arrives."""
    if _bandwidth is not None:
        _bandwidth.received(count)
