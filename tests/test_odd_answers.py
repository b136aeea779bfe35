"""One odd answer of a Hub does not end a build, not even where it hits the base."""

from __future__ import annotations

import pytest

from tests.tiny_hub import BASE, served_shell


@pytest.mark.parametrize("effect", [{"ignore_range": True}, {"content_range": "bytes 8-15/100"}], ids=["200", "range"])
def test_the_header_of_the_base(tiny_store, tmp_path, effect):
    with served_shell(tiny_store(1), tmp_path) as shell:
        fault = shell.hub.faults.add(f"repos/{BASE}/.*safetensors", role="cdn", nth=1, **effect)
        ran = shell("index", "build", "--base", BASE, "--workers", "1", "--json")
        assert ran.code == 0, ran.err
        assert ran.json["indexed"] == 3
        assert fault.struck == 1
