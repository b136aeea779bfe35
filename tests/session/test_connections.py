"""Where requests go: no token to another host, the proxy, connections that are kept."""

from __future__ import annotations

import pytest
from huggingface_hub import get_session, hf_hub_download

from indexer.errors import Failed
from indexer.network.hub_requests import ask
from indexer.network.session import HttpLimits, install_session
from tests.hub_ground import QUICK, use_endpoint
from tests.session.asking import failure, info


def test_no_token_to_another_host(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hf_hub_download("me/model", "model.safetensors", endpoint=hub.endpoint)
    hub.faults.add("^/api/models/me/model", status=302, headers={"Location": f"{hub.cdn_endpoint}/elsewhere"})
    failure(info)  # the library follows, and finds nothing there
    beyond = [one for one in hub.requests if one.role == "cdn"]
    assert {one.path for one in beyond} >= {"/elsewhere"}
    assert len(beyond) >= 2
    assert hub.leaks == []
    assert all(one.authorized for one in hub.requests if one.role == "hub")


def test_the_api_is_not_followed_to_another_host(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.faults.add("^/api/models/me/model", status=302, headers={"Location": f"{hub.cdn_endpoint}/elsewhere"})
    with pytest.raises(Failed, match="another host"):
        ask("/api/models/me/model")
    assert not [one for one in hub.requests if one.role == "cdn"]


def test_installing_twice_keeps_the_connections(hub):
    before = get_session()
    install_session(QUICK)
    assert get_session() is before
    install_session(HttpLimits(read_seconds=7))
    assert get_session() is not before


def test_the_proxy_of_the_environment_is_used(hub, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", hub.endpoint)
    monkeypatch.setenv("NO_PROXY", "")
    use_endpoint(monkeypatch, "http://hub.invalid", HttpLimits(read_seconds=3))
    assert info().id == "me/model"
