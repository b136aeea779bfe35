"""A Hub with two models, asked over real HTTP through the real huggingface_hub client."""

from __future__ import annotations

import pytest
from huggingface_hub import HfApi, constants

from tests.hubs import add_repo, served


def info(identifier: str = "me/model"):
    return HfApi(endpoint=constants.ENDPOINT).model_info(identifier)


def failure(call) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one it is, is what the tests look at
        call()
    return caught.value


@pytest.fixture
def store(tmp_path):
    root = tmp_path / "store"
    add_repo(root, "me/model", {"config.json": {"a": 1}, "model.safetensors": b"12345678" * 4})
    add_repo(root, "me/other")
    return root


@pytest.fixture
def hub(store, monkeypatch):
    with served(store, monkeypatch) as running:
        yield running
