"""The HTTP manners, over real HTTP through the real huggingface_hub client."""

from __future__ import annotations

import gzip
import threading
import time

import httpx2
import pytest
from huggingface_hub import HfApi, constants, get_session, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

from indexer.errors import AtlasError, Failed, Skipped
from indexer.network.hub_api import ask
from indexer.network.pace import Pace, quota_in, told_to_wait
from indexer.network.session import Manners, as_model_error, as_user_error, install_session
from tests.hub_ground import QUICK, RawServer, add_repo, asked, http, served, use_endpoint


@pytest.fixture
def store(tmp_path):
    root = tmp_path / "store"
    add_repo(root, "me/model", {"config.json": {"a": 1}, "model.safetensors": b"12345678" * 4})
    add_repo(root, "me/other")
    return root


@pytest.fixture
def hub(store, monkeypatch):
    with served(store, monkeypatch) as running:
        yield running


def info(identifier: str = "me/model"):
    return HfApi(endpoint=constants.ENDPOINT).model_info(identifier)


def failure(call) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one it is, is what the tests look at
        call()
    return caught.value


# Rate limits


def test_a_429_waits_as_the_ratelimit_header_says(store, monkeypatch):
    said = []
    with served(store, monkeypatch, say=said.append) as hub:
        hub.faults.add("me/model", first=1, status=429, retry_after=9, headers={"RateLimit": '"api";r=0;t=1'})
        start = time.monotonic()
        assert info().id == "me/model"
        assert 1.9 < time.monotonic() - start < 5  # t + 1, not Retry-After
        assert len(asked(hub)) == 2
    assert said == ["rate limited, waiting 2 s"]


def test_retry_after_is_the_fallback_where_the_quota_is_not_the_reason(hub):
    hub.faults.add("me/model", first=1, status=429, retry_after=1, headers={"RateLimit": '"api";r=400;t=99'})
    start = time.monotonic()
    assert info().id == "me/model"
    assert 0.9 < time.monotonic() - start < 3


def test_a_wait_beyond_the_budget_hands_the_429_on_at_once(hub):
    hub.faults.add("me/model", status=429, headers={"RateLimit": '"api";r=0;t=300'})
    start = time.monotonic()
    error = failure(info)
    assert time.monotonic() - start < 2
    assert isinstance(error, HfHubHTTPError)
    assert error.response.status_code == 429
    found = as_model_error(error)
    assert isinstance(found, Failed)
    assert found.reason == "rate_limited"


def test_requests_slow_down_before_the_quota_is_gone(store, monkeypatch):
    with served(store, monkeypatch, quotas={"api": (4, 2.0)}) as hub:
        for _ in range(7):
            assert info().id == "me/model"
        assert {one.status for one in hub.requests} == {200}  # never had to be told
        times = [one.at for one in hub.requests]
        assert times[-1] - times[0] > 1.5
        assert times[1] - times[0] < 0.5  # there was plenty at first


def test_threads_share_the_wait(hub):
    hub.faults.add("me/", first=1, status=429, headers={"RateLimit": '"api";r=0;t=1'})
    info_error = threading.Thread(target=info)
    info_error.start()
    time.sleep(0.4)
    start = time.monotonic()
    threads = [threading.Thread(target=info, args=("me/other",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in [*threads, info_error]:
        thread.join()
    later = [one.at for one in hub.requests if "other" in one.path]
    assert min(later) - start > 1.0  # they waited although none of them was refused


def test_a_file_is_not_held_up_by_the_api_quota():
    pace = Pace()
    pace.pause("host api", 60)
    assert pace.take_turn("host resolve", 1.0) == 0
    assert pace.take_turn("host api", 1.0) is None


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ('"api";r=0;t=55', (0, 55)),
        ('"resolvers";r=2999;t=172', (2999, 172)),
        ('"api"; r = 7 ; t = 3', (7, 3)),
        ("", None),
        ("garbage", None),
        ('"api";r=-1;t=5', None),
        ('"api";r=1;t=' + "9" * 5000, None),
        ('"api";r=' + " " * 50_000, None),
    ],
)
def test_quota_headers(header, expected):
    start = time.monotonic()
    assert quota_in({"ratelimit": header}) == expected
    assert time.monotonic() - start < 0.1


@pytest.mark.parametrize(
    ("headers", "low", "high"),
    [
        ({"retry-after": "7"}, 7, 7),
        ({"retry-after": "0"}, 1, 1),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 1, 1),
        ({"ratelimit": '"api";r=0;t=20', "retry-after": "7"}, 21, 21),
        ({"ratelimit": '"api";r=5;t=20', "retry-after": "7"}, 7, 7),
    ],
)
def test_what_a_429_asks_for(headers, low, high):
    seconds = told_to_wait(429, headers)
    assert seconds is not None
    assert low <= seconds <= high


@pytest.mark.parametrize("text", ["soon", "-5", "1e3", "٣", "9" * 40, ""])
def test_a_retry_after_that_cannot_be_read_asks_for_nothing(text):
    assert told_to_wait(429, {"retry-after": text}) is None


# Trying again


@pytest.mark.parametrize("status", [408, 500, 502, 503, 504])
def test_server_errors_are_tried_again(hub, status):
    hub.faults.add("me/model", first=2, status=status)
    assert info().id == "me/model"
    assert [one.status for one in hub.requests] == [status, status, 200]


def test_a_server_that_stays_down_is_an_error_and_not_an_empty_answer(hub):
    hub.faults.add("/api/models", status=503)
    error = failure(lambda: ask("/api/models"))
    assert isinstance(error, HfHubHTTPError)
    assert as_model_error(error).reason == "server_error"
    assert len(asked(hub)) == QUICK.retries + 1


def test_patience_is_spent_once_although_the_library_retries_too(hub):
    hub.faults.add("me/model", status=500)
    failure(info)
    assert len(asked(hub)) == QUICK.retries + 1
    failure(info)
    assert len(asked(hub)) == QUICK.retries + 2
    hub.faults.clear()
    info()
    hub.faults.add("me/model", first=2, status=500)
    info()  # it has recovered, and is worth patience again


@pytest.mark.parametrize("fault", [{"no_answer": True}, {"drop_after": 20}, {"drop_after": 20, "reset": True}])
def test_dropped_connections_are_tried_again(hub, fault):
    hub.faults.add("me/model", first=2, **fault)
    assert info().id == "me/model"
    assert len(asked(hub)) == 3


def test_what_changes_something_is_not_sent_twice(hub):
    hub.faults.add(".*", status=503)
    with pytest.raises(HfHubHTTPError):
        HfApi(endpoint=constants.ENDPOINT, token="hf_x").create_repo("me/new")
    assert len(asked(hub)) == 1


def test_no_other_status_is_tried_again(hub):
    with pytest.raises(RepositoryNotFoundError):
        info("no/body")
    assert len(asked(hub)) == 1


# Time and size


def test_a_server_that_hangs_is_a_timeout(store, monkeypatch):
    manners = Manners(read_seconds=0.3, first_wait=0.01, retries_after_timeout=1)
    with served(store, monkeypatch, manners) as hub:
        hub.faults.add("me/model", hang=30)
        start = time.monotonic()
        error = failure(info)
        assert time.monotonic() - start < 3
        assert isinstance(error, httpx2.TimeoutException)
        assert isinstance(as_model_error(error), Failed)
        assert as_model_error(error).reason == "timeout"
        assert len(asked(hub)) == 2


def test_paging_has_a_time_limit_although_the_library_sets_none(store, monkeypatch):
    manners = Manners(read_seconds=0.2, first_wait=0.01, retries_after_timeout=0)
    with served(store, monkeypatch, manners) as hub:
        hub.faults.add("/api/models", hang=30, first=1)
        assert list(HfApi(endpoint=constants.ENDPOINT).list_models(limit=1))
        assert len(asked(hub)) == 2


def test_a_body_that_drips_is_a_timeout(monkeypatch):
    whole = http({"id": "a/b"})
    drip = [(0, whole[:-12]), *((0.15, bytes([byte])) for byte in whole[-12:])]
    manners = Manners(read_seconds=1, body_seconds=0.4, first_wait=0.01, retries_after_timeout=0)
    with RawServer(drip) as server:
        use_endpoint(monkeypatch, server.endpoint, manners)
        assert isinstance(failure(info), httpx2.TimeoutException)


@pytest.mark.parametrize("encoded", [False, True])
def test_an_endless_answer_is_refused(monkeypatch, encoded):
    body = b"[" + b" " * 3_000_000 + b"]"
    answer = http(gzip.compress(body), Content_Encoding="gzip") if encoded else http(body)
    with RawServer(answer) as server:
        use_endpoint(monkeypatch, server.endpoint, Manners(body_bytes=1_000_000))
        error = failure(info)
        assert isinstance(error, httpx2.DecodingError)
        assert "larger than" in as_model_error(error).detail
        assert len(server.requests) == 1


def test_compressed_answers_are_read_and_other_encodings_refused(hub, monkeypatch):
    hub.faults.add("me/model", gzip=True)
    assert info().id == "me/model"
    with RawServer(http(b"x", Content_Encoding="br")) as server:
        use_endpoint(monkeypatch, server.endpoint)
        assert isinstance(failure(info), httpx2.DecodingError)
        assert "accept-encoding: gzip, deflate" in server.requests[0].lower()
    with RawServer(http(b"x", "404 Not Found", Content_Encoding="br")) as server:
        use_endpoint(monkeypatch, server.endpoint)
        assert as_model_error(failure(info)).reason == "not_found"  # the status is what counts


def test_files_are_streamed_and_not_held(hub):
    with get_session().stream("GET", f"{hub.endpoint}/me/model/resolve/main/model.safetensors") as response:
        assert response.headers["content-length"] == "32"
        assert b"".join(response.iter_bytes()) == b"12345678" * 4


# Tokens


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


# Installing it


def test_installing_twice_keeps_the_connections(hub):
    before = get_session()
    install_session(QUICK)
    assert get_session() is before
    install_session(Manners(read_seconds=7))
    assert get_session() is not before


def test_the_proxy_of_the_environment_is_used(hub, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", hub.endpoint)
    monkeypatch.setenv("NO_PROXY", "")
    use_endpoint(monkeypatch, "http://hub.invalid", Manners(read_seconds=3))
    assert info().id == "me/model"


# What an error means


def offline(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_offline_is_said_and_nothing_is_sent(hub, monkeypatch):
    offline(monkeypatch)
    error = failure(info)
    assert isinstance(error, OfflineModeIsEnabled)
    assert as_model_error(error).reason == "network"
    told = as_user_error(error, "the base model me/model")
    assert "HF_HUB_OFFLINE" in str(told)
    assert hub.requests == []


def test_nobody_there(monkeypatch):
    with RawServer(b"") as server:
        endpoint = server.endpoint
    use_endpoint(monkeypatch, endpoint)
    start = time.monotonic()
    error = failure(info)
    assert time.monotonic() - start < 3
    assert as_model_error(error).reason == "network"
    told = as_user_error(error, "the base model me/model")
    assert endpoint in told.message
    assert "HF_ENDPOINT" in told.hint
    assert "\n" not in str(told)


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


def test_an_invalid_token_is_told_apart_from_a_missing_model(hub):
    headers = {"X-Error-Message": "Invalid credentials in Authorization header"}
    hub.faults.add("me/model", status=401, headers=headers)
    error = failure(info)
    assert as_model_error(error).reason == "refused"
    told = as_user_error(error, "the base model me/model")
    assert "token" in told.message
    assert "hf auth login" in told.hint


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
