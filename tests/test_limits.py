"""The limits of a build: bytes per second, memory, the Hub's quota.

All workers together: they are processes of their own. How much came is the Hub's count; who was held up, and for how
long, is written down where it is decided (tests/logged_build.py). No figure is divided by the time that something took.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from indexer.builds.resources import PROCESS_BYTES
from indexer.network.rate_limit import STEP_SECONDS, Bandwidth, RateLimiter, count_received, limit_bandwidth
from scripts.loopback_hub import LoopbackHub
from scripts.loopback_hub.ledger import RequestRecord
from tests.conftest import ROOT, start_python
from tests.tiny_hub import BASE

pytestmark = pytest.mark.slow

MODELS = 24
LIMIT = 500_000  # bytes a second: 3.6 MB of block matrices take about 7 s
STEP = int(LIMIT * STEP_SECONDS)


@dataclass
class Watched:
    """A build as it looked from outside; ``peaks`` are the most that each of its workers ever held, in bytes.

    ``own_peak``: the most that the process which started them held until the last of them ended. It publishes after
    that, and may then use what they have given back (``publishing_peak``).

    ``ledger``: whom its limits held up, in the order of the file; ``ended``: when it was over (``time.monotonic``).
    """

    report: dict
    said: str
    requests: list[RequestRecord]
    own_peak: int
    publishing_peak: int
    peaks: dict[int, int]
    ledger: list[dict]
    pid: int
    ended: float

    def reading(self, is_base: bool) -> list[RequestRecord]:
        """What was asked of the CDN, in order: of the base, or of its fine-tunes."""
        return [one for one in self.requests if one.role == "cdn" and (one.repo_id == BASE) == is_base]

    def granted(self, call: str = "spend", what: str = "seconds") -> dict[int, float]:
        """By process the sum of what it was given of the bandwidth (``spend``), or what it slept for it (``sleep``)."""
        found: dict[int, float] = {}
        for one in self.ledger:
            if one["call"] == call:
                found[one["process"]] = found.get(one["process"], 0.0) + one[what]
        return found


@pytest.fixture(scope="module")
def store(tiny_store):
    return tiny_store(MODELS // 3)


@pytest.fixture(scope="module")
def limited(store, tmp_path_factory):
    """A build that may neither read fast nor hold much."""
    with LoopbackHub(store) as hub:
        hub.prepare()
        words = ("--workers", "3", "--memory", "1G", "--bandwidth", str(LIMIT))
        return watched(hub, tmp_path_factory.mktemp("limited"), words, start_afresh)


@pytest.fixture(scope="module")
def refused(store, tmp_path_factory):
    """A build without limits; somewhere in its middle one request meets a quota that is used up for 3 s."""
    with LoopbackHub(store) as hub:
        hub.prepare()
        hub.faults.add(
            "/resolve/.*safetensors", role="hub", nth=MODELS // 2, status=429,
            headers={"RateLimit": '"resolvers";r=0;t=3'},
        )  # fmt: skip
        return watched(hub, tmp_path_factory.mktemp("refused"), ("--workers", "2"), start_python)


def watched(hub, folder, options, start):
    """``start`` makes a process of words. What a fork holds is not what a build holds: for peaks it has to be a new one."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(folder / "hf"), "XDG_CACHE_HOME": str(folder / "cache"),
    }  # fmt: skip
    ledger = folder / "ledger.jsonl"
    words = (ROOT / "tests" / "logged_build.py", ledger, "build", "--base", BASE, "--json", *options)
    process = start(*words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    own, own_with_workers, peaks = 0, 0, {}
    while process.poll() is None:
        own = max(own, peak_of(process.pid))
        if workers := workers_of(process.pid):
            own_with_workers = own
        peaks |= {pid: max(peaks.get(pid, 0), peak_of(pid)) for pid in workers}
        time.sleep(0.05)
    ended = time.monotonic()
    out, said = process.communicate()
    assert process.returncode == 0, said
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    return Watched(json.loads(out), said, hub.requests, own_with_workers, own, peaks, lines, process.pid, ended)


def start_afresh(*words, **where):
    """``python words…``, which loads its libraries itself."""
    return subprocess.Popen([sys.executable, *words], text=True, **where)


def workers_of(pid):
    """Processes of a pool that ``pid`` started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    except OSError:
        return []


def peak_of(pid):
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")), 0)


def size(requests):
    return sum(one.body_bytes for one in requests)


class Line:
    """A line and its reader by a clock that only sleep moves: what has come, when."""

    def __init__(self, rate):
        self.now, self.slept, self.came = 1000.0, [], 0
        self.limiter = RateLimiter(clock=lambda: self.now)
        self.rate = rate

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds

    def reader(self):
        return Bandwidth("atlas", self.rate, self.limiter, self.sleep)

    def read(self, reader, piece):
        self.came += piece
        reader.received(piece)


@pytest.mark.parametrize("piece", [1, 999, 4096, STEP - 1, STEP, 65_536, 3_000_000])
@pytest.mark.parametrize("readers", [1, 3])
def test_what_comes_is_never_ahead_of_the_limit_by_more_than_a_step_each(piece, readers):
    line = Line(LIMIT)
    all_readers = [line.reader() for _ in range(readers)]
    for number in range(max(3 * readers, 1_000_000 // piece)):
        line.read(all_readers[number % readers], piece)
        assert line.came - LIMIT * (line.now - 1000.0) < readers * STEP + 1e-3
    # And not behind either: waiting ends only after the bytes were read.
    assert LIMIT * (line.now - 1000.0) <= line.came + 1e-3


def test_time_that_passed_without_reading_is_not_saved_up():
    line = Line(LIMIT)
    reader = line.reader()
    for _ in range(5):
        line.now += 60.0
        before = line.now
        line.read(reader, 2 * LIMIT)
        assert line.now - before == pytest.approx(2.0)


def test_two_concurrent_readers_wait_for_each_other():
    line = Line(LIMIT)
    waits = []
    for _ in range(3):
        Bandwidth("atlas", LIMIT, line.limiter, waits.append).received(LIMIT)
    Bandwidth("another", LIMIT, line.limiter, waits.append).received(LIMIT)
    assert waits == pytest.approx([1.0, 2.0, 3.0, 1.0])


def test_small_models_are_not_free(monkeypatch):
    """Every model sets the limit again, and each of these is less than a step."""
    line = Line(LIMIT)
    monkeypatch.setattr("indexer.network.rate_limit.common_limiter", lambda: line.limiter)
    monkeypatch.setattr(Bandwidth.__init__, "__defaults__", (None, line.sleep))
    try:
        for _ in range(100):
            limit_bandwidth("atlas of small models", LIMIT)
            count_received(STEP // 2)
    finally:
        limit_bandwidth("", None)
    assert sum(line.slept) == pytest.approx(50 * STEP_SECONDS)
    count_received(10 * LIMIT)
    assert sum(line.slept) == pytest.approx(50 * STEP_SECONDS)  # lifted


def test_bandwidth_is_that_of_all_workers_together(limited):
    granted = limited.granted()
    workers = {pid: seconds for pid, seconds in granted.items() if pid != limited.pid}
    assert limited.report["indexed"] == MODELS
    assert len(workers) == 2
    assert min(workers.values()) > 0
    assert len({one["name"] for one in limited.ledger if one["call"] == "spend"}) == 1
    # What is not yet paid for when a process ends is less than a step.
    assert 0 <= round(size(limited.reading(is_base=False)) - LIMIT * sum(workers.values())) < 2 * STEP


def test_the_base_keeps_to_the_limit_too(limited):
    assert size(limited.reading(is_base=True)) > 5 * STEP
    # In whole bytes: seconds are added up in floating point.
    assert 0 <= round(size(limited.reading(is_base=True)) - LIMIT * limited.granted()[limited.pid]) < STEP


def test_what_is_to_be_waited_is_waited(limited):
    """A busy machine makes it longer, nothing makes it shorter."""
    assert limited.granted("sleep") == pytest.approx(limited.granted("spend", "wait"))
    took = limited.ended - limited.reading(is_base=True)[0].at
    assert took >= sum(limited.granted().values())


def test_without_a_limit_nothing_waits(refused):
    assert min(size(refused.reading(is_base=False)), size(refused.reading(is_base=True))) > 5 * STEP
    assert refused.granted() == refused.granted("sleep") == {}


def test_memory_decides_how_many_work_and_is_kept(limited):
    assert "memory for 2 of 3 workers" in limited.said
    assert len(limited.peaks) == 2
    assert all(peak <= PROCESS_BYTES for peak in limited.peaks.values()), limited.peaks
    assert limited.own_peak <= PROCESS_BYTES
    assert limited.own_peak + sum(limited.peaks.values()) <= 10**9
    assert limited.publishing_peak <= 10**9


def test_one_worker_refused_makes_all_wait(refused):
    asked = [one for one in refused.requests if one.role == "hub" and "/resolve/" in one.path]
    (pause,) = [one for one in refused.ledger if one["call"] == "pause"]
    turns = [one for one in refused.ledger if one["call"] == "take_turn" and one["name"] == pause["name"]]
    later = [one for one in turns if one["began"] > pause["ended"]]
    until = pause["began"] + 4.0
    workers = {one["process"] for one in refused.ledger} - {refused.pid}
    assert len(workers) == 2
    assert refused.report["indexed"] == MODELS
    assert (pause["seconds"], pause["wait"]) == (4.0, True)
    # After the refusal every process had to wait until the quota was full again.
    assert min(one["ended"] + one["wait"] for one in later) >= until
    assert {one["process"] for one in later} >= workers
    assert len(later) > MODELS // 3  # there was more to ask for
    assert sum(one.status == 429 for one in asked) == 1
    assert refused.said.count("rate limited, waiting 4 s") == 1
