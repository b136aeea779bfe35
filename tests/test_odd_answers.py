"""One odd answer of a Hub does not end a build, not even where it hits the base."""

from __future__ import annotations

import pytest

from scripts.loopback_hub import LoopbackHub
from tests.conftest import Shell
from tests.world import BASE, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world") / "store", per_dataset=1)


@pytest.mark.parametrize("effect", [{"ignore_range": True}, {"content_range": "bytes 8-15/100"}], ids=["200", "range"])
def test_the_header_of_the_base(world, tmp_path, effect):
    with LoopbackHub(world) as hub:
        shell = Shell(hub.endpoint, tmp_path, {"HF_HOME": str(tmp_path / "hf")})
        fault = hub.faults.add(f"repos/{BASE}/.*safetensors", role="cdn", nth=1, **effect)
        ran = shell("index", "build", "--base", BASE, "--workers", "1", "--json")
        assert ran.code == 0, ran.err
        assert ran.json["indexed"] == 3
        assert fault.struck == 1
