"""A mirror that sends every request on to the Hub itself, by absolute redirects, as hf-mirror.com does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import _http

from indexer.errors import AtlasError
from indexer.network.remote_file import RemoteFile
from indexer.sources.crawl import crawl
from indexer.sources.hub_base import resolve_base
from indexer.sources.questions import CrawlRequest
from scripts.loopback_hub import LoopbackHub
from tests.crawl.conftest import claims
from tests.hubs import add_repo, reset_session, tags, use_endpoint

BODY = bytes(range(256)) * 400


class Mirror(BaseHTTPRequestHandler):
    target, protocol_version = "", "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(308)
        self.send_header("Location", f"{self.target}{self.path}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def store(tmp_path):
    root = tmp_path / "store"
    add_repo(root, "org/base", {"config.json": {"model_type": "bert"}, "model.safetensors": BODY})
    for number in range(5):
        add_repo(root, f"a/model{number}", tags=tags("org/base"), created_at=f"2024-01-0{number + 1}T00:00:00.000Z")
    return root


@pytest.fixture
def hub(store, monkeypatch) -> Iterator[LoopbackHub]:
    """The Hub itself, behind the mirror that the client is told of."""
    with LoopbackHub(store, page_size=2) as running:
        handler = type("To", (Mirror,), {"target": running.endpoint})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        use_endpoint(monkeypatch, f"http://127.0.0.1:{server.server_address[1]}")
        yield running
        server.shutdown()
        server.server_close()
        reset_session()


def known(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this were huggingface.co."""
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_HOME", f"{hub.endpoint}/")
    monkeypatch.setattr(_http, "_HUB_ORIGINS", frozenset({_http._url_origin(hub.endpoint)}))


def test_listing_and_reading_work_behind_such_a_mirror(hub, monkeypatch):
    known(hub, monkeypatch)
    assert resolve_base("org/base").config == {"model_type": "bert"}
    found = claims(crawl(CrawlRequest(("org/base",))))
    assert set(found) == {f"a/model{number}" for number in range(5)}
    commit = hub.store.repository("org/base").revision("main").sha
    assert RemoteFile("org/base", "model.safetensors", commit).read(1000, 90_000) == BODY[1000:90_000]
    assert hub.leaks == []
    assert not any(one.authorized for one in hub.requests if one.method == "GET")


def test_a_mirror_that_leads_elsewhere_is_refused(hub):
    with pytest.raises(AtlasError, match="points to another host") as problem:
        resolve_base("org/base")
    assert "HF_ENDPOINT" in str(problem.value)
    assert hub.requests == []
