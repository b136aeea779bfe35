"""What an error means: to a build of many models, and to a person."""

from __future__ import annotations

import pytest
from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import OfflineModeIsEnabled

from indexer.errors import AtlasError, Failed, Skipped
from indexer.network.hub_errors import as_model_error, as_user_error
from tests.hub_ground import RawServer, add_repo, given_clock, served, use_endpoint
from tests.session.asking import failure, info


def offline(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_offline_is_said_and_nothing_is_sent(hub, monkeypatch):
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
    clock = given_clock(monkeypatch)
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


def test_what_a_stranger_says_cannot_steer_a_terminal(hub):
    headers = {"X-Error-Message": "red \x1b[31m text " + "x" * 900}
    hub.faults.add("me/model", status=418, headers=headers)
    found = as_model_error(failure(info))
    assert found.detail.isprintable()
    assert len(found.detail) < 300
