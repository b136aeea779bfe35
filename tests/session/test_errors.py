"""Requests to the Hub: errors, what is tried again, and where requests go."""

from __future__ import annotations

import pytest
from huggingface_hub import HfApi, constants, get_session, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

from indexer.errors import AtlasError, Failed, Skipped
from indexer.network.hub_errors import as_model_error, as_user_error
from indexer.network.hub_requests import fetch_small, get_json
from indexer.network.remote_file import RemoteFile
from indexer.network.session import HttpLimits, install_session
from tests.hubs import QUICK, RawServer, add_repo, requested, served, use_endpoint, use_fake_clock
from tests.session.conftest import failure, info


def offline(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_offline_mode_is_reported_and_sends_nothing(hub, monkeypatch):
    offline(monkeypatch)
    error = failure(info)
    assert isinstance(error, OfflineModeIsEnabled)
    assert as_model_error(error).reason == "network"
    shown = as_user_error(error, "the base model me/model")
    assert "HF_HUB_OFFLINE" in str(shown)
    assert hub.requests == []


def test_no_server_at_the_address(monkeypatch):
    with RawServer(b"") as server:
        endpoint = server.endpoint
    use_endpoint(monkeypatch, endpoint)
    clock = use_fake_clock(monkeypatch)
    error = failure(info)
    assert len(clock.slept) == 1
    assert clock.now - 1000.0 < 1
    assert as_model_error(error).reason == "network"
    shown = as_user_error(error, "the base model me/model")
    assert endpoint in shown.message
    assert "HF_ENDPOINT" in shown.hint
    assert "\n" not in str(shown)


def test_a_name_that_does_not_resolve(monkeypatch):
    use_endpoint(monkeypatch, "http://no-such-host.invalid")
    assert as_model_error(failure(info)).reason == "network"


def test_what_the_hub_refuses(store, monkeypatch, tmp_path):
    for name, settings in {
        "shut/gated": {"gated": "manual"},
        "shut/disabled": {"disabled": True},
        "shut/private": {"private": True},
    }.items():
        add_repo(store, name, {"config.json": {}}, **settings)
    with served(store, monkeypatch) as hub:

        def get(identifier: str, filename: str = "config.json", revision: str = "main"):
            return lambda: hf_hub_download(
                identifier,
                filename,
                revision=revision,
                endpoint=hub.endpoint,
                cache_dir=tmp_path,
                token=False,
            )

        cases = [
            (get("shut/gated"), Skipped, "gated"),
            (get("shut/disabled"), Skipped, "disabled"),
            (get("shut/private"), Failed, "not_found"),
            (get("no/body"), Failed, "not_found"),
            (get("me/model", "nothing.json"), Failed, "not_found"),
            (get("me/model", revision="nowhere"), Failed, "not_found"),
            (get("../etc/passwd/x"), Skipped, "malformed"),
        ]
        for call, kind, reason in cases:
            found = as_model_error(failure(call))
            assert (type(found), found.reason) == (kind, reason)
            assert found.detail.isprintable()
            assert isinstance(as_user_error(failure(call), "it"), AtlasError)


def test_an_invalid_token_is_not_reported_as_a_missing_model(hub):
    headers = {"X-Error-Message": "Invalid credentials in Authorization header"}
    hub.faults.add("me/model", status=401, headers=headers)
    error = failure(info)
    assert as_model_error(error).reason == "refused"
    shown = as_user_error(error, "the base model me/model")
    assert "token" in shown.message
    assert "hf auth login" in shown.hint


def test_a_refusal_without_a_code_is_not_a_missing_model(hub):
    hub.faults.add("me/model", status=403)
    assert as_model_error(failure(info)).reason == "refused"


def test_our_own_errors_pass_and_bugs_are_not_hidden():
    skipped = Skipped("gated", "no")
    assert as_model_error(skipped) is skipped
    error = AtlasError("a", "b")
    assert as_user_error(error, "x") is error
    for bug in (KeyError("x"), AssertionError("y"), PermissionError("disk")):
        with pytest.raises(type(bug)):
            as_model_error(bug)


def test_text_of_a_server_cannot_control_a_terminal(hub):
    headers = {"X-Error-Message": "red \x1b[31m text " + "x" * 900}
    hub.faults.add("me/model", status=418, headers=headers)
    found = as_model_error(failure(info))
    assert found.detail.isprintable()
    assert len(found.detail) < 300


# ---- where requests go: no token to another host, the proxy, connections that are kept


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


def test_a_token_that_may_read_less_than_nobody_is_left_out(store, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_narrow")
    said = []
    with served(store, monkeypatch, say=said.append, narrow_tokens=["hf_narrow"]) as hub:
        assert info().id == "me/model"
        assert get_json("/api/models/me/model").value["id"] == "me/model"
        assert fetch_small("me/model", "config.json", "main", 100) == b'{"a": 1}'
        assert RemoteFile("me/model", "model.safetensors", "main").read(0, 8) == b"12345678"
        api = [one.authorized for one in hub.requests if one.path == "/api/models/me/model"]
        assert api == [True, False] * 2
        assert hub.leaks == []
    (sentence,) = said
    assert "without it" in sentence
    assert "HF_TOKEN" in sentence


@pytest.mark.parametrize(
    ("headers", "requests"),
    [
        ({"X-Error-Message": "Invalid credentials in Authorization header"}, 1),
        ({"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model me/model is restricted"}, 1),
        ({}, 2),
    ],
)
def test_a_refusal_that_stays_is_the_one_that_is_reported(hub, monkeypatch, headers, requests):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.faults.add("me/model", status=403 if "X-Error-Code" in headers else 401, headers=headers)
    said = as_model_error(failure(info))
    assert said.reason in ("refused", "gated", "not_found")
    assert len(requested(hub, "me/model")) == requests


def test_the_api_is_not_followed_to_another_host(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.faults.add("^/api/models/me/model", status=302, headers={"Location": f"{hub.cdn_endpoint}/elsewhere"})
    with pytest.raises(Failed, match="another host"):
        get_json("/api/models/me/model")
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


# ---- what is tried again, and what is not


@pytest.mark.parametrize("status", [408, 500, 502, 503, 504])
def test_server_errors_are_tried_again(hub, status):
    hub.faults.add("me/model", first=2, status=status)
    assert info().id == "me/model"
    assert [one.status for one in hub.requests] == [status, status, 200]


def test_a_server_that_stays_down_is_an_error_and_not_an_empty_answer(hub):
    hub.faults.add("/api/models", status=503)
    error = failure(lambda: get_json("/api/models"))
    assert isinstance(error, HfHubHTTPError)
    assert as_model_error(error).reason == "server_error"
    assert len(requested(hub)) == QUICK.retries + 1


def test_patience_is_spent_once_although_the_library_retries_too(hub):
    hub.faults.add("me/model", status=500)
    failure(info)
    assert len(requested(hub)) == QUICK.retries + 1
    failure(info)
    assert len(requested(hub)) == QUICK.retries + 2
    hub.faults.clear()
    info()
    hub.faults.add("me/model", first=2, status=500)
    info()  # it has recovered, and is worth patience again


@pytest.mark.parametrize("fault", [{"no_answer": True}, {"drop_after": 20}, {"drop_after": 20, "reset": True}])
def test_dropped_connections_are_tried_again(hub, fault):
    hub.faults.add("me/model", first=2, **fault)
    assert info().id == "me/model"
    assert len(requested(hub)) == 3


def test_what_changes_something_is_not_sent_twice(hub):
    hub.faults.add(".*", status=503)
    with pytest.raises(HfHubHTTPError):
        HfApi(endpoint=constants.ENDPOINT, token="hf_x").create_repo("me/new")
    assert len(requested(hub)) == 1


def test_no_other_status_is_tried_again(hub):
    with pytest.raises(RepositoryNotFoundError):
        info("no/body")
    assert len(requested(hub)) == 1
