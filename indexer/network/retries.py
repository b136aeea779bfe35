"""Which failures are retried, how often, and after how long. Code that sends requests only raises.

One try is a request of huggingface_hub (``session.HubTransport``), or a whole question of ours with its redirects and
its body (``hub_requests``, ``remote_file``), whose requests the transport then sends once.

- A 429 waits as its ``RateLimit`` header says (``"api";r=0;t=55``: nothing left, 55 seconds to go), otherwise as
  ``Retry-After`` says, and so do all that share the limiter.
- A 408, a 5xx, a lost connection, and an answer that is unusable (``TransientError``) wait twice as long each time.
- When the tries are spent, the last response or error is what the caller gets, so a 429 or a 5xx never looks like an
  empty response.

huggingface_hub's own ``http_backoff`` does not replace this: only some of its calls use it, it sleeps for as long as a
server tells it to, and processes do not share what they learn about a limit. Where it does repeat a request whose tries
are spent here, the limiter remembers that for a minute, and the request gets one try.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import httpx2
from huggingface_hub.errors import HfHubHTTPError

from indexer.errors import ModelError
from indexer.network.proxies import RefusedByProxyError, UnusableProxyError
from indexer.network.rate_limit import RateLimiter, Say, limit_name, requested_wait
from indexer.network.transport import certificate_problem

Result = TypeVar("Result")

_RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
_FINAL_ERRORS = (UnusableProxyError, RefusedByProxyError)


class TransientError(Exception):
    """An answer that cannot be used, and perhaps another can; ``failure`` is what to raise if none comes."""

    def __init__(self, failure: ModelError) -> None:
        super().__init__(str(failure))
        self.failure = failure


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often something is tried again, and how many seconds it waits.

    ``retries``: after a 429, a 5xx, a broken connection, or an answer that cannot be used; fewer if there is no answer
    in time or no connection. A download that made ``progress`` bytes since its last error starts counting again. No
    try begins later than ``total_seconds`` after the first. A small file must be received in ``small_file_seconds``,
    all tries together.
    """

    retries: int = 5
    retries_after_timeout: int = 2
    retries_without_connection: int = 3
    first_wait: float = 0.5
    longest_wait: float = 20.0
    longest_rate_limit_wait: float = 310.0
    total_seconds: float = 900.0
    progress: int = 256 << 10
    small_file_seconds: float = 180.0


class Retries:
    """The retries of a session: its policy, and the limiter that all its requests share."""

    def __init__(self, policy: RetryPolicy, limiter: RateLimiter, say: Say) -> None:
        self.policy, self.limiter, self.say = policy, limiter, say

    def following(self, policy: RetryPolicy | None) -> Retries:
        """The same by another policy; None for this one."""
        return self if policy is None else Retries(policy, self.limiter, self.say)

    def begin(self, most: int | None = None) -> Tries:
        """The tries of one request or question: at most ``most`` more than one, whatever the policy says."""
        return Tries(self, most)

    def call(self, action: Callable[[], Result]) -> Result:
        """The result of ``action``, tried again while that makes sense; then its error."""
        tries = self.begin()
        while True:
            try:
                return action()
            except Exception as problem:
                tries.wait_after(problem)


class Tries:
    """The tries of one request or question."""

    def __init__(self, retries: Retries, most: int | None = None) -> None:
        self._retries, self._most = retries, most
        self.progress()

    def progress(self) -> None:
        """Begin to count again."""
        self._failed = 0
        self.are_spent = False  # there was something to try again, and is nothing left to try it with
        self._deadline = time.monotonic() + self._retries.policy.total_seconds

    def wait_after(self, problem: Exception) -> None:
        """Sleep until the next try. Raises ``problem`` (a TransientError's failure) if there is to be none."""
        seconds = self.next_wait(problem.response if isinstance(problem, HfHubHTTPError) else problem)
        if seconds is None:
            if isinstance(problem, TransientError):
                raise problem.failure from problem
            raise problem
        time.sleep(seconds)

    def next_wait(self, problem: httpx2.Response | Exception) -> float | None:
        """Seconds until the next try, after a response or an error; None if there is to be none."""
        policy, failed = self._retries.policy, self._failed
        self._failed += 1
        most = _retries_after(problem, policy)
        if most is None:
            return None
        seconds = min(policy.longest_wait, policy.first_wait * 2**failed) * random.uniform(0.75, 1.25)
        response = problem if isinstance(problem, httpx2.Response) else None
        if response is not None and (requested := requested_wait(response.status_code, response.headers)) is not None:
            seconds = min(requested, policy.longest_rate_limit_wait)
        is_left = failed < (most if self._most is None else min(most, self._most))
        self.are_spent = not (is_left and seconds <= self._deadline - time.monotonic())
        # All who share the limiter wait, also if this one gives up.
        if response is not None and response.status_code == 429:
            is_new = self._retries.limiter.pause(limit_name(response.request.url), seconds)
            if is_new and not self.are_spent:
                self._retries.say(f"rate limited, waiting {math.ceil(seconds)} s")
        return None if self.are_spent else seconds


def _retries_after(problem: httpx2.Response | Exception, policy: RetryPolicy) -> int | None:
    """How many retries there may be after such a response or error; None if a retry cannot help."""
    if isinstance(problem, httpx2.Response):
        return policy.retries if problem.status_code in _RETRIED_STATUS else None
    if isinstance(problem, httpx2.TimeoutException):
        return policy.retries_after_timeout
    if isinstance(problem, httpx2.ConnectError | httpx2.ProxyError):
        is_final = certificate_problem(problem) or isinstance(problem, _FINAL_ERRORS)
        return None if is_final else policy.retries_without_connection
    if isinstance(problem, httpx2.NetworkError | httpx2.RemoteProtocolError | TransientError):
        return policy.retries
    return None
