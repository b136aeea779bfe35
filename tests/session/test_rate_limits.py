"""Rate limits, over real HTTP through the real huggingface_hub client."""

from __future__ import annotations

import threading

import pytest
from huggingface_hub.errors import HfHubHTTPError

from indexer.errors import Failed
from indexer.network.hub_errors import as_model_error
from indexer.network.rate_limit import RateLimiter, quota_in, requested_wait
from tests.hubs import requested, served, use_fake_clock
from tests.session.conftest import failure, info


def test_a_429_waits_as_the_ratelimit_header_says(hub, monkeypatch):
    said = []
    clock = use_fake_clock(monkeypatch, say=said.append)
    hub.faults.add("me/model", first=1, status=429, retry_after=9, headers={"RateLimit": '"api";r=0;t=1'})
    assert info().id == "me/model"
    assert clock.slept == [2.0]  # t + 1, not Retry-After
    assert len(requested(hub)) == 2
    assert said == ["rate limited, waiting 2 s"]


def test_no_request_is_sent_in_the_middle_of_a_wait(hub, monkeypatch):
    """A request between the answer and the pause that follows is sent at once, as if already on the way."""
    turns = []
    pause = RateLimiter.pause

    def overtaken(limiter, quota, seconds):
        turns.append(limiter.take_turn(quota, 60.0))
        return pause(limiter, quota, seconds)

    monkeypatch.setattr(RateLimiter, "pause", overtaken)
    hub.faults.add("me/model", first=1, status=429, headers={"RateLimit": '"api";r=0;t=1'})
    assert info().id == "me/model"
    assert turns == [0.0]


def test_retry_after_is_the_fallback_where_the_quota_is_not_the_reason(hub, monkeypatch):
    clock = use_fake_clock(monkeypatch)
    hub.faults.add("me/model", first=1, status=429, retry_after=1, headers={"RateLimit": '"api";r=400;t=99'})
    assert info().id == "me/model"
    assert clock.slept == [1.0]


def test_a_wait_beyond_the_budget_hands_the_429_on_at_once(hub, monkeypatch):
    clock = use_fake_clock(monkeypatch)
    hub.faults.add("me/model", status=429, headers={"RateLimit": '"api";r=0;t=300'})
    error = failure(info)
    assert clock.slept == []
    assert isinstance(error, HfHubHTTPError)
    assert error.response.status_code == 429
    found = as_model_error(error)
    assert isinstance(found, Failed)
    assert found.reason == "rate_limited"


def test_requests_slow_down_before_the_quota_is_gone(store, monkeypatch):
    with served(store, monkeypatch, quotas={"api": (4, 2.0)}) as hub:
        clock = use_fake_clock(monkeypatch)
        monkeypatch.setattr("scripts.loopback_hub.limits.time", clock)
        times = []
        for _ in range(7):
            assert info().id == "me/model"
            times.append(clock.now)
        assert {one.status for one in hub.requests} == {200}  # was never refused
        assert times[-1] - times[0] > 1.5
        assert times[1] - times[0] < 0.5  # there was plenty at first


def test_threads_share_the_wait(hub, monkeypatch):
    """They ask while the one that was refused waits; none of them is refused."""
    clock = use_fake_clock(monkeypatch)

    def meanwhile(seconds):
        threads = [threading.Thread(target=info, args=("me/other",)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    clock.meanwhile = meanwhile
    hub.faults.add("me/model", first=1, status=429, headers={"RateLimit": '"api";r=0;t=1'})
    info()
    assert clock.slept[0] == 2.0
    assert len(requested(hub, "other")) == 4
    # The first of them that has waited has moved the clock for all: what they waited for was the same moment.
    assert clock.slept[1] == pytest.approx(2.0)
    assert all(one.status == 200 for one in hub.requests if "other" in one.path)


def test_a_file_is_not_held_up_by_the_api_quota():
    limiter = RateLimiter()
    limiter.pause("host api", 60)
    assert limiter.take_turn("host resolve", 1.0) == 0
    assert limiter.take_turn("host api", 1.0) is None


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ('"api";r=0;t=55', (0, 55)),
        ('"resolvers";r=2999;t=172', (2999, 172)),
        ('"api"; r = 7 ; t = 3', (7, 3)),
        ("", None),
        ("garbage", None),
        ('"api";r=-1;t=5', None),
        ('"api";r=1;t=' + "9" * 5_000_000, None),
        ('"api";r=' + " " * 5_000_000, None),
    ],
)
def test_quota_headers(header, expected):
    assert quota_in({"ratelimit": header}) == expected


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
    seconds = requested_wait(429, headers)
    assert seconds is not None
    assert low <= seconds <= high


@pytest.mark.parametrize("text", ["soon", "-5", "1e3", "٣", "9" * 40, ""])
def test_a_retry_after_that_cannot_be_read_asks_for_nothing(text):
    assert requested_wait(429, {"retry-after": text}) is None
