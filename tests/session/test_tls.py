"""A Hub over https: certificates are checked, ranges are read from another https host, proxies open tunnels."""

from __future__ import annotations

import base64
import contextlib
import random
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub import get_session

from indexer.errors import AtlasError, Failed
from indexer.network.hub_errors import as_user_error
from indexer.network.hub_requests import fetch_small
from indexer.network.remote_file import RemoteFile
from indexer.network.retries import RetryPolicy
from indexer.network.session import HubClient
from indexer.sources.hub_base import resolve_base
from scripts.loopback_hub import LoopbackHub
from tests.certificates import NAMES, Authority, Tunnels
from tests.conftest import Shell
from tests.hubs import QUICK, add_repo, http, reset_session, served, use_endpoint
from tests.tiny_hub import BASE, make_store

BODY = random.Random(0).randbytes(300_000)
RANGES = ((0, 10), (1000, 90_000), (299_990, 300_000))
RETRIES = RetryPolicy(retries=2, first_wait=0.01)


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority.new(tmp_path_factory.mktemp("trusted"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory) -> Authority:
    return Authority.new(tmp_path_factory.mktemp("unknown"), "somebody else")


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("store")
    add_repo(root, "me/model", {"config.json": {"model_type": "bert"}, "model.safetensors": BODY})
    return root


@pytest.fixture(autouse=True)
def trusted(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    yield
    monkeypatch.delenv("SSL_CERT_FILE")
    reset_session()


def handshakes(context: ssl.SSLContext) -> list[str | None]:
    """The names that clients ask for as they connect, None for an address."""
    names: list[str | None] = []
    context.sni_callback = lambda _connection, name, _context: names.append(name)  # type: ignore[assignment,return-value]
    return names


def read(hub: LoopbackHub) -> list[bytes]:
    commit = hub.store.repository("me/model").revision("main").sha  # type: ignore[union-attr]
    file = RemoteFile("me/model", "model.safetensors", commit, retries=RETRIES)
    return [file.read(start, stop) for start, stop in RANGES]


def settings(context: ssl.SSLContext) -> dict[str, Any]:
    return {"tls": context, "cdn_host": "localhost"}


def test_ranges_come_over_one_connection_to_another_https_host(root, monkeypatch, authority):
    context = authority.server(*NAMES)
    names = handshakes(context)
    with served(root, monkeypatch, tokens={"hf_secret": []}, **settings(context)) as hub:
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        assert hub.endpoint.startswith("https://127.0.0.1:")
        assert hub.cdn_endpoint.startswith("https://localhost:")
        assert read(hub) == [BODY[start:stop] for start, stop in RANGES]
        # A small file is redirected within the Hub, by a relative address.
        assert fetch_small("me/model", "config.json", "main", 1000) == b'{"model_type": "bert"}'
        assert any(record.authorized for record in hub.requests)
        assert hub.leaks == []
    assert names.count("localhost") == 1


def test_a_connection_that_was_closed_meanwhile_is_opened_again(root, monkeypatch, authority):
    context = authority.server(*NAMES)
    names = handshakes(context)
    with served(root, monkeypatch, **settings(context)) as hub:
        commit = hub.store.repository("me/model").revision("main").sha
        file = RemoteFile("me/model", "model.safetensors", commit, retries=RETRIES)
        assert file.read(0, 10) == BODY[:10]
        for connection in list(hub._cdn._open):
            connection.shutdown(2)
        assert file.read(10, 20) == BODY[10:20]
    assert names.count("localhost") == 2


@pytest.mark.parametrize("fault", [{"drop_after": 70_000}, {"drop_after": 70_000, "reset": True}, {"cut_to": 5_000}])
def test_a_body_that_breaks_off_is_resumed(root, monkeypatch, authority, fault):
    with served(root, monkeypatch, **settings(authority.server(*NAMES))) as hub:
        hub.faults.add(".", role="cdn", first=1, **fault)
        assert read(hub) == [BODY[start:stop] for start, stop in RANGES]


def test_a_plain_address_after_https_is_refused(root, monkeypatch, authority):
    with LoopbackHub(root) as plain, served(root, monkeypatch, **settings(authority.server(*NAMES))) as hub:
        hub.faults.add("/resolve/", status=302, headers={"Location": f"{plain.cdn_endpoint}/x"})
        with pytest.raises(Failed, match="neither https"):
            fetch_small("me/model", "config.json", "main", 1000)
        assert plain.requests == []


@pytest.mark.parametrize(
    ("who", "names", "ends", "says"),
    [
        ("stranger", NAMES, 1, "unable to get local issuer certificate|self-signed certificate"),
        ("authority", NAMES, -1, "certificate has expired"),
        ("authority", ("localhost",), 1, "not valid for '127.0.0.1'"),
    ],
    ids=["unknown authority", "expired", "another host"],
)
def test_a_wrong_certificate_is_refused_at_once_and_in_one_line(root, monkeypatch, request, who, names, ends, says):
    context = request.getfixturevalue(who).server(*names, ends=timedelta(hours=ends))
    tried = handshakes(context)
    with served(root, monkeypatch, **settings(context)) as hub:
        with pytest.raises(AtlasError, match=says) as problem:
            resolve_base("me/model")
        assert hub.requests == []
    assert len(tried) == 1  # trying again changes nothing
    assert "the certificate of 127.0.0.1 is not trusted" in problem.value.message
    assert "SSL_CERT_FILE" in problem.value.hint
    assert "\n" not in problem.value.message


def test_the_certificate_of_the_host_of_the_ranges_is_checked_too(root, monkeypatch, authority):
    context = authority.server("127.0.0.1")
    tried = handshakes(context)
    with served(root, monkeypatch, **settings(context)) as hub:
        with pytest.raises(Failed, match=r"the certificate of localhost is not trusted.*not valid for 'localhost'"):
            read(hub)
        assert [record.role for record in hub.requests] == ["hub"]
    assert tried.count("localhost") == 1


@pytest.mark.parametrize("content", [None, b"", b"no certificate"], ids=["missing", "empty", "text"])
def test_certificates_that_cannot_be_read_are_one_line(monkeypatch, tmp_path, content):
    file = tmp_path / "mine.pem"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with pytest.raises(AtlasError, match="SSL_CERT_FILE") as problem:
        use_endpoint(monkeypatch, "https://127.0.0.1:9")
    assert str(file) in problem.value.message


def test_a_connection_with_bytes_that_nobody_asked_for_is_not_used_again(monkeypatch, authority):
    """They lie decrypted in the connection, where the operating system does not see them."""
    context, answered = authority.server(*NAMES), []
    names = handshakes(context)
    surplus = http(b"of another request", "206 Partial Content", Content_Range="bytes 0-17/18") * 80
    answer = http(b"0123456789", "206 Partial Content", Content_Range="bytes 0-9/10", Connection="keep-alive")

    def serve(connection: ssl.SSLSocket) -> None:
        with connection:
            while connection.recv(65536):
                answered.append(connection)
                connection.sendall(answer + surplus)  # one record

    def run() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = context.wrap_socket(listening.accept()[0], server_side=True)
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=run, daemon=True).start()
        endpoint = f"https://127.0.0.1:{listening.getsockname()[1]}"
        use_endpoint(monkeypatch, endpoint)
        session = get_session()
        assert isinstance(session, HubClient)
        for _ in range(2):
            response = session.get_file(httpx2.URL(f"{endpoint}/file"), {"Range": "bytes=0-9"})
            assert response.read() == b"0123456789"
            response.close()
    assert len(names) == len(answered) == 2


# --- through proxies


def test_ranges_go_through_a_tunnel(root, monkeypatch, authority):
    context = authority.server(*NAMES)
    with Tunnels("Basic " + base64.b64encode(b"me:p@ss").decode()) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:p%40ss@127.0.0.1:{proxy.port}")
        with served(root, monkeypatch, **settings(context)) as hub:
            assert read(hub) == [BODY[start:stop] for start, stop in RANGES]
            ports = [one.rpartition(":")[2] for one in (hub.endpoint, hub.cdn_endpoint)]
        assert [request.split()[1] for request in proxy.asked] == [f"127.0.0.1:{ports[0]}", f"localhost:{ports[1]}"]
        assert not any("Range" in request for request in proxy.asked)


def test_a_host_that_needs_no_proxy_is_asked_directly(root, monkeypatch, authority):
    with Tunnels() as proxy:
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{proxy.port}")  # many are named so, without "http://"
        monkeypatch.setenv("NO_PROXY", "localhost")
        with served(root, monkeypatch, **settings(authority.server(*NAMES))) as hub:
            assert read(hub) == [BODY[start:stop] for start, stop in RANGES]
        assert [request.split()[1].partition(":")[0] for request in proxy.asked] == ["127.0.0.1"]


def test_the_certificate_behind_a_proxy_is_checked(root, monkeypatch, stranger):
    with Tunnels() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        hub = served(root, monkeypatch, **settings(stranger.server(*NAMES)))
        with hub, pytest.raises(AtlasError, match=r"the certificate of 127\.0\.0\.1 is not trusted"):
            resolve_base("me/model")
        assert len(proxy.asked) == 1


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("http://me:wrong@127.0.0.1:{port}", "407 Proxy Authentication Required"),
        ("socks5://127.0.0.1:{port}", "socksio"),
        ("ftp://127.0.0.1:{port}", "HTTPS_PROXY"),
        ("http://127.0.0.1:port", "HTTPS_PROXY"),
        ("http://", "HTTPS_PROXY"),
    ],
    ids=["password", "socks", "scheme", "port", "empty"],
)
def test_a_proxy_that_cannot_be_used_is_one_line(root, monkeypatch, authority, address, says):
    with Tunnels("the password") as proxy:
        monkeypatch.setenv("HTTPS_PROXY", address.format(port=proxy.port))
        with served(root, monkeypatch, **settings(authority.server(*NAMES))) as hub:
            with pytest.raises(AtlasError, match=says) as problem:
                resolve_base("me/model")
            assert hub.requests == []
    assert "wrong" not in problem.value.message
    assert "\n" not in problem.value.message


def test_a_certificate_error_is_told_from_other_errors():
    assert "certificate" not in as_user_error(ConnectionError("refused"), "the model a/b").message
    assert QUICK.retries_without_connection > 0  # else no test above would see that it is not tried again


# --- a whole build


@pytest.mark.slow
def test_a_build_over_https_and_a_proxy(authority, stranger, tmp_path):
    """By two processes; then with a certificate that they do not trust, in one line that says so."""
    store = make_store(tmp_path / "store", per_dataset=2)
    build = ("index", "build", "--base", BASE, "--read", "full", "--workers", "2")
    trusted = {"SSL_CERT_FILE": str(authority.file), "HF_HOME": str(tmp_path / "hf"), "NO_PROXY": "localhost"}
    with (
        Tunnels() as proxy,
        LoopbackHub(store, tls=authority.server(*NAMES), cdn_host="localhost") as hub,
        LoopbackHub(store, tls=stranger.server(*NAMES)) as other,
    ):
        trusted["HTTPS_PROXY"] = f"http://127.0.0.1:{proxy.port}"
        shell = Shell(hub.endpoint, tmp_path, trusted, hub, store)
        ran = shell(*build, "--json")
        assert ran.code == 0, ran.err
        assert (ran.json["indexed"], ran.json["failed"]) == (6, 0)
        assert {request.split()[1].partition(":")[0] for request in proxy.asked} == {"127.0.0.1"}
        assert any(record.role == "cdn" for record in hub.requests)
        assert shell("index", "verify").code == 0
        refused = Shell(other.endpoint, tmp_path, trusted)(*build, "--json")
        assert refused.code == 1
        assert refused.err.splitlines()[-1].startswith(
            f"Error: Cannot get the base model {BASE} from https://127.0.0.1:"
        )
        assert "the certificate of 127.0.0.1 is not trusted" in refused.err
        assert "Traceback" not in refused.err
        assert other.requests == []
