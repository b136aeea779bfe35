"""What the environment may hold: proxies and their exceptions, addresses, tokens, numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from indexer import environment
from indexer.errors import AtlasError
from indexer.network.proxies import is_excepted
from indexer.network.session import HttpLimits, install_session
from indexer.sources.hub_base import resolve_base
from tests.hubs import QUICK, RawServer, reset_session, use_endpoint


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    yield
    environment._malformed.clear()
    reset_session()


@pytest.mark.parametrize(
    ("host", "port", "exceptions", "is_direct"),
    [
        ("10.1.2.3", 80, "10.0.0.0/8", True),
        ("11.1.2.3", 80, "10.0.0.0/8", False),
        ("::ffff:10.1.2.3", 80, "10.0.0.0/8", True),
        ("fd00::2", 443, "x, fd00::/8", True),
        ("::1", 80, "[::1]:80", True),
        ("::1", 81, "[::1]:80", False),
        ("a.example", 8080, "a.example:8080", True),
        ("a.example", 80, "a.example:8080", False),
        ("x.a.example", 80, "*.a.example", True),
        ("x.a.example", 80, ".a.example", True),
        ("xa.example", 80, "a.example", False),
        ("192.168.3.4", 80, "192.168.*", True),
        ("anything", 80, "*", True),
        ("anything", 80, "", False),
    ],
)
def test_exceptions_from_the_proxy(host: str, port: int, exceptions: str, is_direct: bool) -> None:
    assert is_excepted(host, port, exceptions) == is_direct


def test_a_proxy_that_cannot_be_reached_is_named(monkeypatch) -> None:
    with RawServer(b"") as proxy:
        address = proxy.endpoint
    monkeypatch.setenv("HTTP_PROXY", address.replace("//", "//me:secret@"))
    monkeypatch.setenv("NO_PROXY", "")
    use_endpoint(monkeypatch, "http://hub.invalid", QUICK)
    with pytest.raises(AtlasError, match=f"the proxy {address}: no connection") as problem:
        resolve_base("me/model")
    assert "secret" not in str(problem.value)
    assert "NO_PROXY" in problem.value.hint


@pytest.mark.parametrize("status", ["407 Proxy Authentication Required", "403 Forbidden"])
def test_a_proxy_that_refuses_is_named(monkeypatch, status: str) -> None:
    with RawServer(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode()) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.endpoint)
        monkeypatch.setenv("NO_PROXY", "")
        use_endpoint(monkeypatch, "https://hub.invalid", QUICK)
        with pytest.raises(AtlasError, match=f"proxy {proxy.endpoint}: {status}"):
            resolve_base("me/model")
        assert len(proxy.requests) == 1


@pytest.mark.parametrize("token", ["hf_é", "hf_a b", "hf_\x01", "hf_\udcff"])
def test_a_token_that_is_none_is_one_line(monkeypatch, token: str) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(AtlasError, match="access token in HF_TOKEN") as problem:
        install_session(HttpLimits(read_seconds=3))
    assert "hf_" not in str(problem.value)


@pytest.mark.parametrize(
    "address", ["huggingface.co", "ftp://hub.example", "https://hub example", "https://hub:x", '"https://hub"']
)
def test_an_address_that_is_none_is_one_line(monkeypatch, address: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    with pytest.raises(AtlasError, match="HF_ENDPOINT"):
        install_session(HttpLimits(read_seconds=3))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("HF_HUB_DOWNLOAD_TIMEOUT", "10s", "HF_HUB_DOWNLOAD_TIMEOUT is not"),
        ("HF_HUB_ETAG_TIMEOUT", "-3", "HF_HUB_ETAG_TIMEOUT is not"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", " ", "http://127.0.0.1:9"),
        ("HF_ENDPOINT", " http://127.0.0.1:9/\n", "http://127.0.0.1:9"),
    ],
)
def test_the_library_is_imported_whatever_the_environment_holds(name: str, value: str, says: str) -> None:
    code = (
        "import indexer\nfrom indexer.network import session\n"
        "try:\n    print(session.install_session().endpoint)\nexcept Exception as error:\n    print(error)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", name: value},
    )  # fmt: skip
    assert ran.stdout.startswith(says)
    assert ran.stderr == ""
