"""Where a Hub may send requests: not into this machine or its network, unless it is there itself."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub import HfApi, constants, hf_hub_download

from indexer.errors import AtlasError, Failed
from indexer.network import addresses
from indexer.network.addresses import ForbiddenAddressError, check_written, kind_of, permitted
from indexer.network.hub_requests import fetch_small
from indexer.network.rate_limit import RateLimiter
from indexer.network.session import HubTransport
from indexer.sources.hub_base import resolve_base
from scripts.loopback_hub import LoopbackHub
from tests.byteranges.conftest import QUICK as RETRIES
from tests.certificates import NAMES, Authority
from tests.hubs import QUICK, RawServer, add_repo, http, reset_session, served, use_endpoint
from tests.session.conftest import failure

FORBIDDEN = (
    "169.254.169.254", "10.0.0.1", "192.168.1.1", "172.16.3.4", "100.64.0.1", "100.100.100.200", "0.0.0.1", "224.0.0.1",
    "255.255.255.255", "[fe80::1]", "[fd00:ec2::254]", "[fc00::1]", "[::ffff:169.254.169.254]", "[::ffff:a00:1]",
    "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]", "2852039166", "0xa9fea9fe", "168.63.129.16",
)  # fmt: skip
NAMES_OF = {"inside.example": "10.1.2.3", "meta.example": "169.254.169.254", "mapped.example": "::ffff:10.1.2.3"}


@pytest.fixture(autouse=True)
def no_connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names resolve as they are told to, and only loopback is connected to; the hosts of all other attempts."""
    tried: list[str] = []
    resolve, connect = socket.getaddrinfo, socket.create_connection

    def getaddrinfo(host: Any, *words: Any, **options: Any) -> Any:
        return resolve(NAMES_OF.get(host, host), *words, **options)

    def create_connection(address: Any, *words: Any, **options: Any) -> Any:
        if not address[0].startswith("127."):
            tried.append(address[0])
            raise OSError("not from a test")
        return connect(address, *words, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(socket, "create_connection", create_connection)
    monkeypatch.setenv("NO_PROXY", "*")
    yield tried
    reset_session()


@pytest.mark.parametrize("host", [*FORBIDDEN, *NAMES_OF])
def test_a_hub_does_not_lead_into_the_network(tmp_path: Path, monkeypatch, no_connections, host: str) -> None:
    """From its redirects, by ranges, by small files, and by the library's own requests."""
    add_repo(tmp_path, "me/model", {"config.json": {}, "model.safetensors": b"1234"})
    with served(tmp_path, monkeypatch) as hub:
        hub.faults.add("/resolve/", status=302, headers={"Location": f"http://{host}/latest/meta-data"})
        with pytest.raises(Failed, match="the Hub points to") as problem:
            fetch_small("me/model", "config.json", "main", 100, retries=RETRIES)
        assert problem.value.detail.isprintable()
        hub.faults.clear()
        location = {"Location": f"http://{host}/latest/meta-data", "X-Linked-Size": "4", "X-Linked-Etag": "abc"}
        hub.faults.add("/resolve/", method="HEAD", status=302, headers={**location, "X-Repo-Commit": "f" * 40})
        with pytest.raises(ForbiddenAddressError):
            hf_hub_download("me/model", "model.safetensors", endpoint=hub.endpoint, cache_dir=tmp_path / "cache")
        hub.faults.add("^/api/models/me/model", status=302, headers=location)
        assert isinstance(failure(lambda: HfApi(endpoint=hub.endpoint).model_info("me/model")), ForbiddenAddressError)
        assert len(hub.requests) < 10  # none is tried again
    assert no_connections == []


def test_a_public_hub_does_not_lead_to_this_machine(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(addresses, "_kinds_of_endpoint", lambda endpoint: {"public"})
    add_repo(tmp_path, "me/model", {"config.json": {}, "model.safetensors": b"1234"})
    with served(tmp_path, monkeypatch, cdn_host="localhost") as hub:
        with pytest.raises(ForbiddenAddressError):
            hf_hub_download("me/model", "model.safetensors", endpoint=hub.endpoint, cache_dir=tmp_path / "cache")
        assert not [one for one in hub.requests if one.role == "cdn"]
        assert fetch_small("me/model", "config.json", "main", 100) == b"{}"  # its own host may be anywhere


def test_a_hub_on_this_machine_may_keep_its_files_here(tmp_path, monkeypatch) -> None:
    add_repo(tmp_path, "me/model", {"model.safetensors": b"1234"})
    with served(tmp_path, monkeypatch, cdn_host="localhost") as hub:
        hf_hub_download("me/model", "model.safetensors", endpoint=hub.endpoint, cache_dir=tmp_path / "cache")
        assert [one for one in hub.requests if one.role == "cdn"]


@pytest.mark.parametrize(
    ("endpoint", "host", "is_allowed"),
    [
        ("https://93.184.216.34", "93.184.216.35", True),
        ("https://93.184.216.34", "10.0.0.1", False),
        ("https://93.184.216.34", "127.0.0.1", False),
        ("https://93.184.216.34", "::1", False),
        ("https://10.0.0.1", "10.9.9.9", True),
        ("https://10.0.0.1", "fd12::1", True),
        ("https://10.0.0.1", "93.184.216.34", True),
        ("https://10.0.0.1", "127.0.0.1", False),
        ("https://10.0.0.1", "169.254.169.254", False),
        ("https://169.254.1.1", "169.254.169.254", False),
        ("https://100.100.100.200", "100.64.0.1", False),
        ("http://127.0.0.1:8000", "127.9.9.9", True),
        ("http://127.0.0.1:8000", "0.0.0.0", True),
        ("http://127.0.0.1:8000", "10.0.0.1", False),
        ("http://[::1]:8000", "127.0.0.1", True),
        ("https://no-such-hub.invalid", "10.0.0.1", False),
    ],
)
def test_the_kind_of_the_endpoint_decides(endpoint: str, host: str, is_allowed: bool) -> None:
    for check in (lambda: permitted(host, 443, endpoint), lambda: check_written(host, endpoint)):
        if is_allowed:
            check()
        else:
            with pytest.raises(ForbiddenAddressError):
                check()


def test_of_several_addresses_the_permitted_ones_are_used(monkeypatch) -> None:
    found = ["10.0.0.1", "93.184.216.34", "::ffff:127.0.0.1"]
    monkeypatch.setattr(addresses, "addresses_of", lambda host, port: found if host == "mixed" else ["93.184.216.1"])
    assert permitted("mixed", 443, "https://hub.example") == ["93.184.216.34"]


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.", "a.localhost", "127.1", "2130706433", "0x7f000001", "[::1]"]
)
def test_forms_of_this_machine_are_seen_without_resolving_them(host: str) -> None:
    with pytest.raises(ForbiddenAddressError):
        check_written(host, "https://93.184.216.34")
    check_written("files.example", "https://93.184.216.34")


def test_kinds() -> None:
    kinds = {
        "8.8.8.8": "public", "2606:4700::1111": "public", "64:ff9b::808:808": "public", "2002:808:808::": "public",
        "198.18.0.1": "private", "240.0.0.1": "reserved", "ff02::1": "reserved", "::": "loopback", "::7f00:1": "loopback",
        "::ffff:0:7f00:1": "loopback", "169.254.0.9": "link-local", "192.0.0.192": "metadata",
    }  # fmt: skip
    assert {text: kind_of(ipaddress.ip_address(text)) for text in kinds} == kinds


def test_a_name_that_is_none_is_no_traceback(tmp_path, monkeypatch) -> None:
    with served(tmp_path, monkeypatch) as hub:
        hub.faults.add("/resolve/", status=302, headers={"Location": f"http://{'a' * 70}..example/x"})
        with pytest.raises(Failed):
            fetch_small("me/model", "config.json", "main", 100, retries=RETRIES)


def test_the_library_does_not_follow_https_to_plain_http(tmp_path, monkeypatch) -> None:
    authority = Authority.new(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    root = tmp_path / "store"
    add_repo(root, "me/model", {"config.json": {}, "model.safetensors": b"1234"})
    with LoopbackHub(root) as plain, served(root, monkeypatch, QUICK, tls=authority.server(*NAMES)) as hub:
        hub.faults.add(
            "/resolve/",
            status=302,
            headers={
                "Location": f"{plain.cdn_endpoint}/x",
                "X-Linked-Size": "4",
                "X-Linked-Etag": "abc",
                "X-Repo-Commit": "f" * 40,
            },
        )
        hub.faults.add("/api/models/me", status=302, headers={"Location": f"{plain.endpoint}/api/models/me/model"})
        with pytest.raises(ForbiddenAddressError, match="plain http"):
            HfApi(endpoint=hub.endpoint).model_info("me/model")
        with pytest.raises((ForbiddenAddressError, Failed)):
            hf_hub_download("me/model", "model.safetensors", endpoint=hub.endpoint, cache_dir=tmp_path / "cache")
        assert plain.requests == []
    monkeypatch.delenv("SSL_CERT_FILE")


@pytest.mark.parametrize(("endpoint", "is_sent"), [("http://127.0.0.1:9", False), ("https://huggingface.co", True)])
def test_a_token_is_not_sent_on_to_the_public_hub(monkeypatch, endpoint, is_sent) -> None:
    """The library sends it there from any endpoint."""
    use_endpoint(monkeypatch, endpoint)
    seen: list[httpx2.Request] = []
    inner = httpx2.MockTransport(lambda request: seen.append(request) or httpx2.Response(200))  # type: ignore[func-returns-value]
    transport = HubTransport(inner, QUICK, RateLimiter())
    url = "https://huggingface.co/me/model/resolve/main/config.json"
    transport.handle_request(httpx2.Request("HEAD", url, headers={"Authorization": "Bearer hf_secret"}))
    assert ("Authorization" in seen[0].headers) == is_sent


def test_an_error_says_where_it_led(monkeypatch) -> None:
    with RawServer(http(b"", "302 Found", Location="http://169.254.169.254/latest")) as server:
        use_endpoint(monkeypatch, server.endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_HOME", "http://169.254.169.254/")
        with pytest.raises(AtlasError, match=r"169\.254\.169\.254, which is a metadata address") as problem:
            resolve_base("me/model")
        assert "HF_ENDPOINT" in problem.value.hint
        assert "\n" not in str(problem.value)
