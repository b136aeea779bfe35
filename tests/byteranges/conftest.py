"""A Hub that serves files to be read in ranges, with retries that tests can wait for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from indexer.network.session import install_session
from scripts.loopback_hub import LoopbackHub
from tests.byteranges.served import CONTENT, OTHER, SESSION_LIMITS, SHA, SMALL
from tests.hub_ground import undisturbed


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    install_session(SESSION_LIMITS)
    yield
    install_session()


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackHub]:
    root = tmp_path_factory.mktemp("store")
    folder = root / "me" / "model"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(CONTENT)
    (folder / "other.safetensors").write_bytes(OTHER)
    (folder / "plain.dat").write_bytes(SMALL)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    (root / "me" / "model.repo.json").write_text(f'{{"sha": "{SHA}"}}')
    with LoopbackHub(root) as hub:
        yield hub


@pytest.fixture
def hub(serving: LoopbackHub) -> Iterator[LoopbackHub]:
    with undisturbed(serving):
        yield serving
    serving.url_lifetime = 3600.0
