"""`index doctor`: a Hub that works, and one in which each thing that a build needs is broken in turn."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from huggingface_hub import constants

from indexer import doctor
from indexer.errors import AtlasError
from indexer.network.session import HttpLimits
from tests.hubs import RawServer, add_repo, http, served, tags, use_endpoint

BASE = "org/base"
WEIGHTS = (100).to_bytes(8, "little") + b"{}" + b"x" * 200_000
QUICK = HttpLimits(first_wait=0.01, longest_wait=0.02, read_seconds=5, retries=1, longest_rate_limit_wait=0.01)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    add_repo(root, BASE, {"config.json": {"model_type": "bert"}, "model.safetensors": WEIGHTS})
    for number in range(5):
        moment = f"2024-01-0{number + 1}T00:00:00.000Z"
        files = {"config.json": {"model_type": "bert"}, "model.safetensors": WEIGHTS}
        add_repo(root, f"a/m{number}", files, tags=tags(BASE), card_data={"base_model": BASE}, created_at=moment)
    return root


@pytest.fixture
def hub(root, monkeypatch):
    monkeypatch.setattr("indexer.builds.doctor.LIMITS", QUICK)
    with served(root, monkeypatch, page_size=3, tokens={"hf_good": []}, narrow_tokens=["hf_narrow"]) as running:
        yield running


def steps(found) -> dict[str, bool]:
    return {one.step: one.ok for one in found.steps}


def test_a_hub_that_works_takes_a_dozen_requests(hub):
    found = doctor(BASE, BASE)
    assert found.ok
    assert list(steps(found)) == ["endpoint", "token", "listing", "model", "weights", "throughput"]
    assert all(steps(found).values())
    assert found.requests == len(hub.requests) <= 12
    said = {one.step: one.found for one in found.steps}
    assert "the clock agrees" in said["endpoint"]
    assert "of 500 in 5 min" in said["endpoint"]
    assert "5 finetune" in said["listing"]
    assert "3 rows" in said["listing"]
    assert "2 further rows" in said["listing"]
    assert "config.json is served (model_type bert)" in said["model"]
    assert "for 60 min" in said["weights"]
    assert "1,024 bytes, exactly as requested" in said["weights"]
    assert json.loads(json.dumps(found.to_dict()))["ok"] is True


def ago(**time: float) -> str:
    return format_datetime(datetime.now(UTC) - timedelta(**time), usegmt=True)


FAULTS = [
    # (what is done to requests, the step that fails, a word of its finding, whether a build can work)
    ({"path": "^/api/models\\?limit=1&", "status": 503}, "endpoint", "503", False),
    ({"path": "^/api/models\\?limit=1&", "malformed_json": True}, "endpoint", "not like a Hub", False),
    ({"path": "^/api/models\\?limit=1&", "headers": {"Date": ago(hours=2)}}, "endpoint", " h ahead of", True),
    ({"path": "^/api/models\\?limit=1&", "headers": {"RateLimit": '"api";r=0;t=60'}}, "endpoint", "0 of", True),
    ({"path": "childrenModelCount", "status": 400}, "listing", "no count", True),
    ({"path": "filter=base_model", "status": 429, "retry_after": 0}, "listing", "rate limit", False),
    ({"path": "filter=base_model", "status": 504}, "listing", "504", False),
    ({"path": "filter=base_model", "malformed_json": True}, "listing", "not JSON", False),
    ({"path": "cursor=", "status": 400}, "listing", "400", False),
    ({"path": "filter=base_model", "headers": {"Link": '<http://evil.invalid/api/models>; rel="next"'}}, "listing",
     "elsewhere", False),
    ({"path": "^/api/models/org/base\\?blobs", "status": 404}, "model", "404", False),
    ({"path": "resolve-cache", "status": 500}, "model", "500", False),
    ({"path": "resolve/.*/config", "status": 403}, "model", "403", False),
    ({"path": "resolve/.*/model", "status": 403}, "weights", "403", False),
    ({"path": "resolve/.*/model", "headers": {"X-Linked-Size": None}}, "weights", "size", False),
    ({"path": "/repos/", "status": 403}, "weights", "Access denied", False),
    ({"path": "/repos/", "ignore_range": True}, "weights", "whole", False),
    ({"path": "/repos/", "gzip": True}, "weights", "encoded", False),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "step", "words", "ok"), FAULTS, ids=[f"{one[1]}-{one[2]}" for one in FAULTS])
def test_each_fault_is_found_where_it_is_with_what_to_do(hub, fault, step, words, ok):
    hub.faults.add(**fault)
    found = doctor(BASE, BASE)
    failed = [one for one in found.steps if not one.ok]
    assert failed[0].step == step
    assert words in failed[0].found
    assert failed[0].advice or step in ("listing", "model", "weights")
    assert found.ok == ok
    assert all(one.found.isprintable() and "\n" not in one.found for one in found.steps)


def test_a_mirror_that_refuses_canonical_bases_still_serves(hub):
    hub.faults.add("expand=baseModels", status=400, headers={"X-Error-Message": "Invalid expand parameter"})
    found = doctor(BASE, BASE)
    assert found.ok
    assert "baseModels is refused" in next(one.found for one in found.steps if one.step == "listing")


def test_tokens(hub, monkeypatch):
    def token_step(token):
        monkeypatch.setenv("HF_TOKEN", token)
        found = doctor(BASE, BASE)
        return next(one for one in found.steps if one.step == "token"), found

    hub.faults.add("whoami-v2", status=401)
    step, found = token_step("hf_wrong")
    assert (step.ok, found.ok) == (False, False)
    assert "hf auth login" in step.advice
    hub.faults.clear()
    step, found = token_step("hf_good")
    assert (step.ok, found.ok) == (True, True)
    assert step.found == "somebody, scope read"
    step, found = token_step("hf_narrow")
    assert not step.ok
    assert "scope fineGrained, but refused for public models" in step.found
    assert [one.step for one in found.steps if not one.ok] == ["token"]
    assert hub.leaks == []


def test_no_network_is_one_line(monkeypatch):
    monkeypatch.setattr("indexer.builds.doctor.LIMITS", QUICK)
    use_endpoint(monkeypatch, "http://no-such-host.invalid")
    (step,) = doctor().steps
    assert (step.step, step.ok) == ("endpoint", False)
    assert "no-such-host.invalid" in step.found
    assert "Check the network" in step.advice
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    (step,) = doctor().steps
    assert "HF_HUB_OFFLINE" in step.found


def test_a_login_page_before_the_hub_is_none(monkeypatch):
    with RawServer(http(b"<html>log in</html>")) as server:
        use_endpoint(monkeypatch, server.endpoint)
        monkeypatch.setattr("indexer.builds.doctor.LIMITS", QUICK)
        (step,) = doctor().steps
    assert "not like a Hub" in step.found


def test_a_name_that_is_none_is_an_error():
    with pytest.raises(AtlasError, match="not a Hub id"):
        doctor("../x")


def test_the_command_prints_and_exits(hub, run, monkeypatch):
    code, out, err = run("index", "doctor", "--base", BASE, "--model", BASE)
    assert code == 0
    assert "throughput" in out
    assert "requests in" in err
    hub.faults.add("/repos/", status=403)
    code, out, _ = run("index", "doctor", "--base", BASE, "--model", BASE, "--json")
    assert code == 1
    assert json.loads(out)["ok"] is False
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    code, out, err = run("index", "status", "--hub")
    assert code == 1
    assert "Unset it" in err
