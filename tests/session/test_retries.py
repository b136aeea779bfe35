"""One layer tries again: faults of different kinds share the tries of one question."""

from __future__ import annotations

import pytest
from huggingface_hub.errors import HfHubHTTPError

from indexer.errors import Failed
from indexer.network.hub_requests import fetch_small, get_json
from indexer.network.remote_file import RemoteFile
from indexer.network.session import HttpLimits
from tests.hubs import QUICK, requested, served, use_fake_clock


def test_a_refused_request_and_a_broken_body_share_the_tries_of_a_range(hub):
    file = RemoteFile("me/model", "model.safetensors", "main")
    for number in (2, 4, 6):
        hub.faults.add("repos", role="cdn", nth=number, status=503)
    hub.faults.add("repos", role="cdn", drop_after=5)
    with pytest.raises(Failed):
        file.read(0, 32)
    assert len([one for one in hub.requests if one.role == "cdn"]) == 1 + QUICK.retries


def test_so_do_a_server_error_and_an_answer_that_is_not_json(hub):
    for number in (2, 4, 6):
        hub.faults.add("/api/models", nth=number, status=503)
    hub.faults.add("/api/models", malformed_json=True)
    with pytest.raises((Failed, HfHubHTTPError)):
        get_json("/api/models/me/model")
    assert len(requested(hub)) == 1 + QUICK.retries


def test_an_address_that_cannot_be_renewed_shares_them_too(hub):
    file = RemoteFile("me/model", "model.safetensors", "main")
    hub.reset_log()
    hub.faults.add("repos", role="cdn", status=403)
    hub.faults.add("/resolve/", method="HEAD", status=503)
    with pytest.raises(Failed) as failure:
        file.read(0, 32)
    assert failure.value.reason == "server_error"
    assert [one.role for one in hub.requests] == ["cdn"] + ["hub"] * QUICK.retries


def test_a_wait_for_the_rate_limit_is_not_time_that_a_small_file_takes(store, monkeypatch):
    with served(store, monkeypatch, HttpLimits()) as hub:
        clock = use_fake_clock(monkeypatch, HttpLimits())
        monkeypatch.setattr("indexer.network.hub_requests.time", clock)
        hub.faults.add("config.json", first=1, status=429, headers={"RateLimit": '"resolvers";r=0;t=200'})
        assert fetch_small("me/model", "config.json", "main", 100) == b'{"a": 1}'
        assert clock.slept == [201.0]
