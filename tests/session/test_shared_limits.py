"""Rate limits that processes share: one quota and one bandwidth for all of them."""

from __future__ import annotations

import errno
import fcntl
import heapq
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pytest

from indexer.network.rate_limit import RateLimiter, _digest, requested_wait
from tests.conftest import ROOT

NOW = 2e9  # seconds; where the clock stands


def now():
    return NOW


def standing(path):
    """A limiter whose clock stands still."""
    return RateLimiter(path, clock=now)


def count_up(path, times):
    shared = RateLimiter(path)
    for _ in range(times):
        with shared.changing("counter") as limit:
            limit.interval += 1


def test_no_update_is_lost(tmp_path):
    """Processes and threads add ones; not one is lost."""
    path = tmp_path / "clock"
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        for future in [pool.submit(count_up, path, 300) for _ in range(3)]:
            future.result()
    shared = RateLimiter(path)
    with ThreadPoolExecutor(4) as threads:
        for _ in range(4):
            threads.submit(lambda: [add_one(shared) for _ in range(100)])
    with shared.changing("counter") as limit:
        assert limit.interval == 1300


def add_one(shared):
    with shared.changing("counter") as limit:
        limit.interval += 1


@pytest.mark.parametrize("make", [lambda path: RateLimiter(), RateLimiter])
def test_limits_are_separate_and_stored(make, tmp_path):
    shared = make(tmp_path / "clock")
    for number in range(20):
        with shared.changing(f"turns {number}") as limit:
            limit.next_free, limit.interval, limit.interval_until = number, number + 0.5, number + 0.25
    for number in range(20):
        with shared.changing(f"turns {number}") as limit:
            assert (limit.next_free, limit.interval, limit.interval_until) == (number, number + 0.5, number + 0.25)


def test_a_full_file_drops_the_limit_that_was_free_first(tmp_path):
    shared = RateLimiter(tmp_path / "clock")
    for number in range(RateLimiter.MOST_LIMITS + 1):
        with shared.changing(f"turns {number}") as limit:
            limit.next_free = 100 + (number * 7) % 50 if number != 30 else 1
    with shared.changing(f"turns {RateLimiter.MOST_LIMITS}") as limit:
        assert limit.next_free > 1
    with shared.changing("turns 30") as limit:
        assert limit.next_free == 0


def test_garbage_and_a_clock_that_was_set_back_do_not_block(tmp_path):
    path = tmp_path / "clock"
    path.write_bytes(os.urandom(555))
    standing(path).pause("api", 5)
    assert standing(path).take_turn("api", 60) == 5
    with standing(path).changing("later") as limit:
        limit.next_free = NOW + 10 * RateLimiter.LONGEST
    assert standing(path).take_turn("later", 60) == 0


def test_a_process_that_is_killed_with_the_lock_does_not_block_others(tmp_path):
    path = tmp_path / "clock"
    code = (
        "import sys, time; from pathlib import Path; from indexer.network.rate_limit import RateLimiter\n"
        f"with RateLimiter(Path({str(path)!r})).changing('a'):\n    print('held', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert holder.stdout.readline() == "held\n"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with RateLimiter(path).changing("a") as limit:  # would wait for ever
        assert limit.next_free == 0


def shared_limiter(warn, name="an atlas"):
    limiter = RateLimiter(warn=warn)
    limiter.share(name)
    return limiter


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The machine's folder for temporary files, and what is said of it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path / f"vectors-in-the-wild-{os.getuid()}"


def test_the_file_lies_on_this_machine_and_belongs_to_the_user(temporary, monkeypatch):
    """Homes are shared by machines; folders for temporary files are not."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    said = []
    for shared in (shared_limiter(said.append), shared_limiter(said.append)):
        add_one(shared)
    with shared.changing("counter") as limit:
        assert limit.interval == 2
    other = shared_limiter(said.append, "another atlas")
    with other.changing("counter") as limit:
        assert limit.interval == 0
    other.share("an atlas")
    with other.changing("counter") as limit:
        assert limit.interval == 2
    assert stat.S_IMODE(temporary.stat().st_mode) == 0o700
    assert said == []


def left_by_another(folder, monkeypatch):
    folder.mkdir(0o700)
    another = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: another)
    folder.rename(folder.with_name(f"vectors-in-the-wild-{os.getuid()}"))


def a_link(folder, monkeypatch):
    (folder.parent / "theirs").mkdir(0o700)
    folder.symlink_to(folder.parent / "theirs")


def open_to_all(folder, monkeypatch):
    folder.mkdir()
    folder.chmod(0o777)


def a_file(folder, monkeypatch):
    folder.write_text("")


def a_link_within(folder, monkeypatch):
    folder.mkdir(0o700)
    (folder.parent / "precious").write_text("as it was")
    (folder / f"limits-{_digest('an atlas')}.json").symlink_to(folder.parent / "precious")


def no_locks(folder, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.mark.parametrize("spoil", [left_by_another, a_link, open_to_all, a_file, a_link_within, no_locks])
def test_a_folder_that_cannot_be_trusted_or_locked_is_not_used(temporary, monkeypatch, spoil):
    spoil(temporary, monkeypatch)
    said = []
    shared = shared_limiter(said.append)
    assert not shared.is_shared
    (sentence,) = said
    assert "each process keeps its own rate limits" in sentence
    assert all(path.read_text() in ("", "as it was") for path in temporary.parent.glob("*/limits-*.json"))


@pytest.mark.parametrize("call", ["flock", "pwrite"])
def test_a_file_that_fails_later_is_replaced_by_memory(temporary, monkeypatch, call):
    """A lock that is refused or a full disk costs the sharing, not the request."""
    said = []
    shared = shared_limiter(said.append)
    shared._clock = now

    def refuse(*arguments):
        raise OSError(errno.ENOSPC if call == "pwrite" else errno.ENOLCK, "broken")

    monkeypatch.setattr({"flock": fcntl, "pwrite": os}[call], call, refuse)
    assert [shared.spend("line", 2.0) for _ in range(3)] == [2, 4, 6]
    assert len(said) == 1
    with pytest.raises(OSError, match="not the clock's"), shared.changing("line"):
        raise OSError("not the clock's")


def test_an_interruption_loses_no_limit():
    limiter = standing(None)
    limiter.pause("api", 5)
    with pytest.raises(KeyboardInterrupt), limiter.changing("api"):
        raise KeyboardInterrupt
    assert limiter.take_turn("api", 60) == 5


def take_turns(path, count):
    limiter = standing(path)
    return [limiter.take_turn("api", 1e9) for _ in range(count)]


def test_processes_share_what_is_left_of_a_quota(tmp_path):
    """9 requests left in 60 seconds: whichever process takes them, they are six seconds apart."""
    path = tmp_path / "clock"
    standing(path).note_quota("api", {"ratelimit": '"api";r=9;t=60'}, 310)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(take_turns, path, 3) for _ in range(2)]
        turns = sorted(turn for future in futures for turn in future.result())
    assert turns == [6.0, 12.0, 18.0, 24.0, 30.0, 36.0]


def spend(path, seconds):
    return standing(path).spend("line", seconds)


def test_spent_bandwidth_is_shared(tmp_path):
    path = tmp_path / "clock"
    assert [spend(path, 2.0) for _ in range(3)] == [2, 4, 6]


class Window:
    """A Hub that allows ``quota`` requests in five minutes, and workers that ask it again half a second after an answer.

    Simulated for one window, by a clock of its own.
    """

    SECONDS = 300

    def __init__(self, quota, programs, workers):
        self.now, self.quota, self.served, self.refused = 0.0, quota, 0, 0
        limiters = [RateLimiter(clock=lambda: self.now) for _ in range(programs)]
        asks = [(0.0, number, limiter, False) for number, limiter in enumerate(limiters * workers)]
        heapq.heapify(asks)
        while asks and asks[0][0] < self.SECONDS:
            self.now, number, limiter, has_turn = heapq.heappop(asks)
            wait = self.answer(limiter) if has_turn else limiter.take_turn("hub resolve", 1e9)
            heapq.heappush(asks, (self.now + wait, number, limiter, not has_turn))

    def answer(self, limiter):
        """Seconds until the worker asks again."""
        is_refused = self.served == self.quota
        self.refused += is_refused
        self.served += not is_refused
        headers = {"ratelimit": f'"resolvers";r={self.quota - self.served};t={int(self.SECONDS - self.now)}'}
        if not is_refused:
            limiter.note_quota("hub resolve", headers, 310.0)
            return 0.5
        seconds = requested_wait(429, headers)
        limiter.pause("hub resolve", seconds)
        return seconds


@pytest.mark.parametrize("quota", [500, 3000])
def test_two_builds_lose_nothing_of_a_quota(quota):
    """Each has a limiter of its own, and learns from the responses what the other has used."""
    window = Window(quota, programs=2, workers=8)
    assert window.served == quota
    assert window.refused <= 16  # each worker once, at the end of the window
