"""How many processors a process may use, by the quotas of its control groups."""

from __future__ import annotations

import os

import pytest

from indexer import machine


@pytest.fixture
def groups(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "GROUPS", tmp_path)
    monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)

    def write(own: str, **files: str) -> int:
        (tmp_path / "own").write_text(own)
        for name, content in files.items():
            path = tmp_path / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return machine.processors()

    return write


def test_quotas(groups):
    assert groups("0::/a/b\n") == 16
    assert groups("0::/a/b\n", a__b__cpu_dot_max="max 100000\n") == 16
    assert groups("0::/a/b\n", a__b__cpu_dot_max="350000 100000\n") == 4
    assert groups("0::/a/b\n", a__cpu_dot_max="200000 100000\n") == 2  # of a group above
    assert groups("0::/a/b\n", a__b__cpu_dot_max="50000 100000\n") == 1
    assert groups("0::/a/b\n", a__b__cpu_dot_max="x y\n", a__cpu_dot_max="5 0\n") == 16
    assert groups("0::/../../x\n", cpu_dot_max="100000 100000\n") == 16


def test_quotas_of_version_1(groups):
    own = "4:cpu,cpuacct:/docker/abc\n1:memory:/docker/abc\n"
    quota, period = "cpu__cpu_dot_cfs_quota_us", "cpu__cpu_dot_cfs_period_us"
    assert groups(own, **{quota: "-1", period: "100000"}) == 16
    assert groups(own, **{quota: "300000", period: "100000"}) == 3
