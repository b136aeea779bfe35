"""What a build was told to keep to, as its Hub and the system see it: bytes a second, memory, the Hub's quota.

All workers together: they are processes of their own, so each figure is taken from outside.
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

from indexer.build.resources import PROCESS_BYTES
from scripts.loopback_hub import LoopbackHub
from scripts.loopback_hub.ledger import RequestRecord
from tests.conftest import ROOT
from tests.world import BASE, make_world

MODELS = 24
LIMIT = 500_000  # bytes a second: 3.6 MB of block matrices take about 7 s


@dataclass
class Watched:
    """A build as it looked from outside; ``peaks`` are the most that each of its processes ever held, in bytes."""

    report: dict
    said: str
    requests: list[RequestRecord]
    own_peak: int
    peaks: dict[int, int]

    def reading(self, is_base: bool) -> list[RequestRecord]:
        """What was asked of the CDN, in order: of the base, or of its fine-tunes."""
        return [one for one in self.requests if one.role == "cdn" and (one.repo_id == BASE) == is_base]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world") / "store", per_dataset=MODELS // 3)


@pytest.fixture(scope="module")
def limited(store, tmp_path_factory):
    """A build that may neither read fast nor hold much."""
    with LoopbackHub(store) as hub:
        hub.prepare()
        words = ("--workers", "3", "--memory", "1G", "--bandwidth", str(LIMIT))
        return watched(hub, tmp_path_factory.mktemp("limited"), words)


@pytest.fixture(scope="module")
def refused(store, tmp_path_factory):
    """A build without limits; somewhere in its middle one request meets a quota that is used up for 3 s."""
    with LoopbackHub(store) as hub:
        hub.prepare()
        hub.faults.add(
            "/resolve/.*safetensors", role="hub", nth=MODELS // 2, status=429,
            headers={"RateLimit": '"resolvers";r=0;t=3'},
        )  # fmt: skip
        return watched(hub, tmp_path_factory.mktemp("refused"), ("--workers", "2"))


def watched(hub, folder, options):
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(folder / "hf"), "XDG_CACHE_HOME": str(folder / "cache"),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "indexer", "build", "--base", BASE, "--json", *options],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    own, peaks = 0, {}
    while process.poll() is None:
        own = max(own, peak_of(process.pid))
        peaks |= {pid: max(peaks.get(pid, 0), peak_of(pid)) for pid in workers_of(process.pid)}
        time.sleep(0.02)
    out, said = process.communicate()
    assert process.returncode == 0, said
    return Watched(json.loads(out), said, hub.requests, own, peaks)


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


def rate(requests):
    """Bytes a second while there was something to ask for; the last request only marks the end."""
    *before, last = requests
    return sum(one.body_bytes for one in before) / (last.at - before[0].at)


def test_bandwidth_is_that_of_all_workers_together(limited):
    assert len(limited.peaks) > 1
    assert limited.report["indexed"] == MODELS
    assert 0.6 * LIMIT < rate(limited.reading(is_base=False)) <= 1.1 * LIMIT


def test_the_base_keeps_to_the_limit_too(limited):
    # There is little of it, and the first twentieth of a second is free.
    assert rate(limited.reading(is_base=True)) <= 1.3 * LIMIT


def test_without_a_limit_it_is_faster(refused):
    pause = next(one.at for one in refused.requests if one.status == 429)
    assert rate([one for one in refused.reading(is_base=False) if one.at < pause]) > 2 * LIMIT
    assert rate(refused.reading(is_base=True)) > 2 * LIMIT


def test_memory_decides_how_many_work_and_is_kept(limited):
    assert "memory for 2 of 3 workers" in limited.said
    assert len(limited.peaks) == 2
    assert all(peak <= PROCESS_BYTES for peak in limited.peaks.values()), limited.peaks
    assert limited.own_peak + sum(limited.peaks.values()) <= 10**9


def test_one_worker_refused_makes_all_wait(refused):
    asked = [one for one in refused.requests if one.role == "hub" and "/resolve/" in one.path]
    refusal = next(one.at for one in asked if one.status == 429)
    since = [one.at - refusal for one in asked]
    assert len(refused.peaks) == 2
    assert refused.report["indexed"] == MODELS
    assert [seconds for seconds in since if 0.3 < seconds < 3.9] == []
    assert sum(one.status == 429 for one in asked) == 1
    assert refused.said.count("rate limited, waiting 4 s") == 1
    assert sum(seconds >= 3.9 for seconds in since) > MODELS // 3  # there was more to ask for
