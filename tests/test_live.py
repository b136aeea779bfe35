"""The live Hub: off unless asked for with ATLAS_LIVE=1 (reads about a gigabyte)."""

from __future__ import annotations

import os

import pytest

from tests.conftest import Shell

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(os.environ.get("ATLAS_LIVE") != "1", reason="talks to the live Hub: set ATLAS_LIVE=1"),
    pytest.mark.timeout(1800),
]


def test_a_few_fine_tunes_of_roberta_base(tmp_path):
    shell = Shell("https://huggingface.co", tmp_path, {"HF_HOME": str(tmp_path / "hf")})
    dry = shell("index", "build", "--base", "roberta-base", "--limit", "3", "--dry-run", "--json", timeout=900)
    assert dry.code == 0, dry.err
    assert dry.json["base"] == "FacebookAI/roberta-base"
    ran = shell("index", "build", "--base", "roberta-base", "--limit", "3", "--json", timeout=1500)
    assert ran.code == 0, ran.err
    assert ran.json["discovered"] == 3
    listed = shell("query", "sql", "SELECT model FROM models LIMIT 1", "--json")
    assert shell("query", "similar", listed.json[0]["model"], "--json").code == 0
    again = shell("index", "build", "--base", "roberta-base", "--limit", "3", "--json", timeout=900)
    assert again.json["indexed"] == 0
