"""What docs/guide/own-models.md and automation.md show: the service answers threads, and their commands exist."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from indexer.sources import registry
from tests import checkpoints
from tests.atlas_builder import BASE
from tests.identify.conftest import KIND, tuned

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
PAGE = GUIDE / "automation.md"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_commands_of_the_pages_have_these_options(run):
    known = {}
    for program, command in (("query", "identify"), ("index", "add"), ("index", "build"), ("index", "pull")):
        known[program, command] = run(program, command, "--help")[1]
    text = PAGE.read_text() + (GUIDE / "own-models.md").read_text()
    shown = re.findall(r"\b(query|index) (identify|add|build|pull)\b([^|`\n]*)", text)
    assert len(shown) > 8
    for program, command, words in shown:
        for option in re.findall(r"--[a-z-]+", words):
            assert option in known[program, command], (command, option)


@pytest.mark.slow
def test_the_service_is_safe_with_threads(atlas, weights, tmp_path, monkeypatch):
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx")
    from fastapi.testclient import TestClient

    monkeypatch.setattr(registry, "limits", None)
    monkeypatch.chdir(atlas.parent)
    (code,) = (block for block in blocks("python") if "FastAPI" in block)
    service = {}
    exec(compile(code, str(PAGE), "exec"), service)
    private = checkpoints.save(tmp_path / "private", KIND, tuned(KIND, weights[BASE]))
    with TestClient(service["app"]) as client, ThreadPoolExecutor(8) as threads:
        asked = [f"/similar?model={name}" for name in ("ann/one", "bob/two")] * 20 + ["/identify?model=bob/two"] * 10
        responses = list(threads.map(client.get, asked))
        assert {response.status_code for response in responses} == {200}
        for path, response in zip(asked, responses, strict=True):
            if path.startswith("/similar"):
                other = {"ann/one": "bob/two", "bob/two": "ann/one"}[path.partition("=")[2]]
                assert [near["model"] for near in response.json()["neighbours"]] == [other]
            else:
                assert response.json()["candidates"][0]["base"] == BASE
        refused = client.get("/identify", params={"model": str(private)})
        assert refused.status_code == 404
        assert client.post("/refresh").status_code == 200
