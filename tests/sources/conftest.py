"""A Hub beside the trees, and a server of S3."""

from __future__ import annotations

from collections import Counter

import pytest

from scripts.loopback_hub import LoopbackHub
from tests.hubs import reset_session, use_endpoint


@pytest.fixture
def hub(tiny_store, tmp_path, monkeypatch):
    """This process, talking to a Hub that has the base."""
    monkeypatch.chdir(tmp_path)
    with LoopbackHub(tiny_store(2)) as running:
        use_endpoint(monkeypatch, running.endpoint)
        yield running
        reset_session()


@pytest.fixture(scope="module")
def s3_server():
    pytest.importorskip("s3fs", reason="needs s3fs")
    server = pytest.importorskip("moto.server", reason="needs moto[server,s3]")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    running.start()
    yield "http://{}:{}".format(*running.get_host_and_port())
    running.stop()


@pytest.fixture
def bucket(s3_server, monkeypatch):
    """The bucket ``team-secret``, empty; credentials and the endpoint are given as boto reads them."""
    for name, value in {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1",
                        "AWS_ENDPOINT_URL": s3_server}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem()
    if files.exists("team-secret"):
        files.rm("team-secret", recursive=True)
    files.mkdir("team-secret")
    yield files
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def calls(monkeypatch):
    """The requests to S3, by operation."""
    client = pytest.importorskip("aiobotocore.client")
    counted: Counter[str] = Counter()
    real = client.AioBaseClient._make_api_call

    async def count(self, operation, parameters):
        counted[operation] += 1
        return await real(self, operation, parameters)

    monkeypatch.setattr(client.AioBaseClient, "_make_api_call", count)
    return counted
