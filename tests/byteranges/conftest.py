"""A Hub that serves files to be read in ranges, with retries that tests can wait for."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator

import pytest

from indexer.errors import Failed
from indexer.network.remote_file import RemoteFile
from indexer.network.retries import RetryPolicy
from indexer.network.session import HttpLimits, install_session
from scripts.loopback_hub import LoopbackHub
from tests.hubs import cleared, set_endpoint

CONTENT = random.Random(7).randbytes(3_000_000)
OTHER = random.Random(8).randbytes(3_000_000)
SMALL = random.Random(9).randbytes(40_000)
SHA = hashlib.sha1(b"a commit").hexdigest()
SESSION_LIMITS = HttpLimits(read_seconds=2.0, first_wait=0.01, longest_wait=0.05, retries=3)
QUICK = RetryPolicy(retries=3, first_wait=0.01, longest_wait=0.02)


def remote(hub: LoopbackHub, name: str = "model.safetensors", retries: RetryPolicy = QUICK) -> RemoteFile:
    return RemoteFile("me/model", name, SHA, retries=retries)


def failure_of(call: Callable[[], object]) -> Failed:
    with pytest.raises(Failed) as failure:
        call()
    return failure.value


def cdn_requests(hub: LoopbackHub) -> list[str | None]:
    return [request.range for request in hub.requests if request.role == "cdn"]


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
def hub(serving: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    set_endpoint(monkeypatch, serving.endpoint)
    with cleared(serving):
        yield serving
    serving.files.url_lifetime = 3600.0
