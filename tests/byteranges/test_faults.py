"""Ranges from a Hub that does not behave."""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from indexer.errors import Failed
from indexer.network.hub_requests import fetch_small, is_own
from indexer.network.remote_file import RemoteFile, has_expired
from indexer.network.retries import RetryPolicy
from indexer.network.session import HttpLimits, install_session
from indexer.network.transport import MinThroughput
from scripts.loopback_hub import LoopbackHub
from tests.byteranges.conftest import CONTENT, OTHER, QUICK, SESSION_LIMITS, SHA, cdn_requests, failure_of, remote
from tests.hubs import set_endpoint
from tests.patience import PATIENCE


@pytest.mark.parametrize("reset", [False, True])
def test_a_dropped_connection_is_resumed_where_it_broke(hub: LoopbackHub, reset: bool) -> None:
    hub.faults.add("safetensors", role="cdn", drop_after=700_000, reset=reset, first=2)
    file = remote(hub)
    assert file.read(1000, 2_900_000) == CONTENT[1000:2_900_000]
    ranges = cdn_requests(hub)
    assert len(ranges) == 3
    starts = [int(str(each).removeprefix("bytes=").partition("-")[0]) for each in ranges]
    assert starts[0] == 1000
    assert starts == sorted(starts)
    # What was received before the break was not asked for again.
    assert file.bytes_read == 2_899_000
    assert all(str(each).endswith("-2899999") for each in ranges)


def test_a_body_cut_short_with_a_fitting_length_is_resumed(hub: LoopbackHub) -> None:
    hub.faults.add("safetensors", role="cdn", cut_to=100_000, nth=1)
    assert remote(hub).read(0, 900_000) == CONTENT[:900_000]
    assert cdn_requests(hub) == ["bytes=0-899999", "bytes=100000-899999"]


def test_bodies_that_are_always_cut_short_end_in_a_failure(hub: LoopbackHub) -> None:
    hub.faults.add("safetensors", role="cdn", cut_to=1000)
    assert failure_of(lambda: remote(hub).read(0, 900_000)).reason == "short_body"
    assert len(cdn_requests(hub)) == QUICK.retries + 1


def test_steady_progress_through_many_breaks_succeeds(hub: LoopbackHub) -> None:
    hub.faults.add("safetensors", role="cdn", cut_to=300_000)
    assert remote(hub).read(0, len(CONTENT)) == CONTENT
    assert len(cdn_requests(hub)) == 10


@pytest.mark.parametrize("name", ["model.safetensors", "plain.dat"])
def test_a_range_that_is_ignored_is_a_failure_and_costs_little(hub: LoopbackHub, name: str) -> None:
    file = remote(hub, name)
    fault = hub.faults.add(name, method="GET", ignore_range=True)
    assert failure_of(lambda: file.read(0, 30_000)).reason == "range_ignored"
    assert file.bytes_read == 0
    assert fault.struck == QUICK.retries + 1


ODD_ANSWERS = {
    "whole": {"ignore_range": True},
    "encoded": {"gzip": True},
    "another range": {"content_range": f"bytes 0-99/{len(CONTENT)}"},
    "another size": {"content_range": "bytes 100-999/123"},
    "no range": {"headers": {"Content-Range": None}},
    "another file": {"replace_content": CONTENT + b"x"},
    "another etag": {"replace_etag": "another"},
    "too little of another": {"replace_content": CONTENT[:50]},
    "no content": {"status": 204},
}


@pytest.mark.parametrize("what", ODD_ANSWERS)
def test_one_answer_to_another_question_is_asked_for_again(hub: LoopbackHub, what: str) -> None:
    file = remote(hub)
    assert file.read(0, 100) == CONTENT[:100]
    hub.faults.add("safetensors", role="cdn", nth=1, **ODD_ANSWERS[what])
    assert file.read(100, 1000) == CONTENT[100:1000]
    assert cdn_requests(hub) == ["bytes=0-99", "bytes=100-999", "bytes=100-999"]


def test_one_answer_about_another_commit_or_without_a_size_is_asked_for_again(hub: LoopbackHub) -> None:
    hub.faults.add("resolve", method="HEAD", nth=1, headers={"X-Repo-Commit": "f" * 40})
    hub.faults.add("resolve", method="HEAD", nth=2, headers={"X-Linked-Size": None, "Content-Length": None})
    assert remote(hub).read(0, 100) == CONTENT[:100]


@pytest.mark.parametrize("size", ["-5", "-0", "+5", "1_000", "0x10", "9" * 30, "12 12", "x", ""])
def test_a_size_that_is_none_is_asked_for_again_and_then_a_failure(hub: LoopbackHub, size: str) -> None:
    fault = hub.faults.add("resolve", method="HEAD", nth=1, headers={"X-Linked-Size": size})
    assert remote(hub).read(0, 100) == CONTENT[:100]
    assert fault.struck == 1
    hub.faults.add("resolve", method="HEAD", headers={"X-Linked-Size": size})
    failure = failure_of(lambda: remote(hub))
    assert failure.reason == "server_error"
    assert "without a size" in failure.detail


def test_one_odd_answer_for_a_small_file_is_asked_for_again(hub: LoopbackHub) -> None:
    fault = hub.faults.add("config.json", nth=1, status=206)
    assert fetch_small("me/model", "config.json", SHA, 1000, retries=QUICK)
    assert fault.struck == 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"gzip": True}, "range_ignored"),
        ({"content_range": f"bytes 0-999/{len(CONTENT)}"}, "range_ignored"),
        ({"content_range": f"bytes 5001-6000/{len(CONTENT)}"}, "range_ignored"),
        ({"content_range": f"bytes 5000-5998/{len(CONTENT)}"}, "range_ignored"),
        ({"content_range": "bytes 5000-5999/*"}, "range_ignored"),
        ({"content_range": "bytes */5"}, "range_ignored"),
        ({"content_range": "bytes 5000-5999/" + "9" * 500}, "range_ignored"),
        ({"content_range": "bytes 5000-5999/2999999"}, "file_changed"),
        ({"replace_etag": "another"}, "file_changed"),
        ({"replace_content": CONTENT + b"x"}, "file_changed"),
        ({"replace_content": CONTENT[:1000]}, "file_changed"),
    ],
)
def test_a_range_that_is_always_wrong_is_a_failure(hub: LoopbackHub, fault: dict, reason: str) -> None:
    file = remote(hub)
    file.read(0, 1000)
    hub.faults.add("safetensors", role="cdn", **fault)
    assert failure_of(lambda: file.read(5000, 6000)).reason == reason


def answering(answer: bytes) -> tuple[str, threading.Thread]:
    """A server that sends ``answer`` to the first client."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server, server.accept()[0] as connection:
            connection.recv(65536)
            connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return f"http://127.0.0.1:{server.getsockname()[1]}/x", thread


@pytest.mark.parametrize(
    ("head", "body", "reason"),
    [
        ("Transfer-Encoding: chunked", b"7d0\r\n" + CONTENT[:2000] + b"\r\n0\r\n\r\n", "range_ignored"),
        ("Content-Length: 2000", CONTENT[:2000], "range_ignored"),
        ("Content-Length: 50", CONTENT[:50], "network"),
        ("Content-Length: 5000", CONTENT[:50], "short_body"),
        ("Content-Length: x", CONTENT[:100], "network"),
    ],
    ids=["chunked", "long", "honest but short", "short", "no number"],
)
def test_bodies_of_a_wrong_length(hub: LoopbackHub, head: str, body: bytes, reason: str) -> None:
    """The header promises the 100 bytes that were asked for; the body is another matter."""
    span = f"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-99/{len(CONTENT)}\r\n{head}\r\n\r\n"
    address, thread = answering(span.encode() + body)
    file = remote(hub, retries=RetryPolicy(retries=1 if reason == "network" else 0, first_wait=0.01))
    file._location = dataclasses.replace(file._location, location=address)
    assert failure_of(lambda: file.read(0, 100)).reason == reason
    assert file.bytes_read <= len(body)
    thread.join(PATIENCE)


def test_an_expired_address_is_resolved_again(hub: LoopbackHub) -> None:
    hub.faults.add("resolve", method="HEAD", expired_url=True, nth=1)
    file = remote(hub)
    assert file.read(0, 1000) == CONTENT[:1000]
    assert [request.method for request in hub.requests if request.role == "hub"] == ["HEAD", "HEAD"]


def test_an_address_that_expires_half_way_is_resolved_again(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=time.time())
    monkeypatch.setattr("scripts.loopback_hub.files.time", SimpleNamespace(time=lambda: clock.now))
    hub.files.url_lifetime = 60.0
    file = remote(hub)
    assert file.read(0, 1000) == CONTENT[:1000]
    clock.now += 61.0
    assert file.read(1000, 2000) == CONTENT[1000:2000]
    assert [request.method for request in hub.requests if request.role == "hub"] == ["HEAD", "HEAD"]


def test_addresses_that_never_work_are_given_up(hub: LoopbackHub) -> None:
    hub.faults.add("resolve", method="HEAD", expired_url=True)
    assert failure_of(lambda: remote(hub).read(0, 1000)).reason == "server_error"
    assert len(cdn_requests(hub)) == QUICK.retries + 1


@pytest.mark.parametrize("signs_like", ["cloudfront", "s3"])
def test_a_refusal_that_is_no_expiry_is_not_resolved_again_and_again(hub: LoopbackHub, signs_like: str) -> None:
    hub.files.signs_like = signs_like
    try:
        file = remote(hub)
        hub.faults.add("repos", role="cdn", status=403)
        failure = failure_of(lambda: file.read(0, 1000))
        assert failure.reason == "refused"
        assert "HTTP 403: Access denied" in failure.detail
        assert "has not expired" in failure.detail
        assert [request.method for request in hub.requests if request.role == "hub"] == ["HEAD", "HEAD"]
        # One that opens again: a later refusal is worth another address.
        hub.faults.clear()
        hub.faults.add("repos", role="cdn", status=403, first=1)
        assert remote(hub).read(0, 1000) == CONTENT[:1000]
        hub.reset_log()
        hub.faults.add("resolve", method="HEAD", expired_url=True, first=2)
        assert remote(hub).read(0, 1000) == CONTENT[:1000]
        assert len([request for request in hub.requests if request.role == "hub"]) == 3
    finally:
        hub.files.signs_like = "cloudfront"


def test_the_reason_of_a_refusal_is_bounded_and_printable(hub: LoopbackHub) -> None:
    file = remote(hub)
    body = b"Auth failed: invalid range \x1b[31m" + b"x" * 100_000
    head = f"HTTP/1.1 403 Forbidden\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
    address, thread = answering(head + body)
    file._location = dataclasses.replace(file._location, location=f"{address}?Expires={time.time() + 99}")
    file._was_refused = True
    failure = failure_of(lambda: file.read(0, 1000))
    assert "Auth failed: invalid range" in failure.detail
    assert failure.detail.isprintable()
    assert len(failure.detail) < 400
    thread.join(PATIENCE)


@pytest.mark.parametrize(
    ("query", "date", "expected"),
    [
        ("Expires=1700000000&Signature=x", "Tue, 14 Nov 2023 22:13:19 GMT", False),
        ("Expires=1700000000&Signature=x", "Tue, 14 Nov 2023 22:13:20 GMT", True),
        ("X-Amz-Date=20231114T221320Z&X-Amz-Expires=3600", "Tue, 14 Nov 2023 23:13:19 GMT", False),
        ("X-Amz-Date=20231114T221320Z&X-Amz-Expires=3600", "Tue, 14 Nov 2023 23:13:20 GMT", True),
        ("Expires=1700000000", "nonsense", True),
        ("Expires=9e99", "", None),
        ("Expires=nan", "", None),
        ("Expires=x", "", None),
        ("X-Amz-Date=20231114T221320Z", "", None),
        ("X-Amz-Date=yesterday&X-Amz-Expires=3600", "", None),
        ("Signature=x", "", None),
    ],
)
def test_when_a_signed_address_expires(query: str, date: str, expected: bool | None) -> None:
    assert has_expired(f"https://cdn.invalid/file?{query}", {"date": date}) is expected


def test_ranges_are_read_from_an_address_got_without_a_range(hub: LoopbackHub) -> None:
    file = remote(hub)
    assert file.read(0, 1000) + file.read(5000, 6000) == CONTENT[:1000] + CONTENT[5000:6000]
    assert [(one.method, one.range) for one in hub.requests if one.role == "hub"] == [("HEAD", None)]


def test_another_file_behind_the_second_address_is_noticed(hub: LoopbackHub) -> None:
    file = remote(hub)
    hub.faults.add("repos", role="cdn", status=403, nth=1)
    hub.faults.add("resolve", method="HEAD", replace_content=OTHER, replace_etag="0" * 64)
    assert failure_of(lambda: file.read(0, 1000)).reason == "file_changed"


def test_another_commit_is_noticed(hub: LoopbackHub) -> None:
    hub.faults.add("resolve", headers={"X-Repo-Commit": "f" * 40})
    assert failure_of(lambda: remote(hub)).reason == "file_changed"


def test_rate_limits_and_server_errors_are_waited_for(hub: LoopbackHub) -> None:
    hub.faults.add("resolve", status=503, nth=1)
    hub.faults.add("repos", role="cdn", status=502, nth=1)
    hub.faults.add("repos", role="cdn", status=429, retry_after=1, nth=2)
    assert remote(hub).read(0, 1000) == CONTENT[:1000]
    assert len(cdn_requests(hub)) == 3


@pytest.mark.parametrize(("status", "reason"), [(500, "server_error"), (503, "server_error"), (408, "timeout")])
def test_errors_that_do_not_end_are_failures(hub: LoopbackHub, status: int, reason: str) -> None:
    file = remote(hub)
    hub.faults.add("repos", role="cdn", status=status)
    assert failure_of(lambda: file.read(0, 1000)).reason == reason
    hub.faults.clear()
    hub.faults.add("resolve", status=status)
    assert failure_of(lambda: remote(hub)).reason == reason


def test_a_hanging_body_is_resumed_and_a_dead_one_given_up(hub: LoopbackHub) -> None:
    fault = hub.faults.add("repos", role="cdn", hang=600, hang_after=200_000, nth=1)
    file = remote(hub)
    assert file.read(0, 900_000) == CONTENT[:900_000]
    assert len(cdn_requests(hub)) == 2
    hub.faults.remove(fault)
    hub.faults.add("repos", role="cdn", hang=600, hang_after=1000)
    assert (
        failure_of(lambda: remote(hub, retries=RetryPolicy(retries=1, first_wait=0.01)).read(0, 900_000)).reason
        == "timeout"
    )


def test_a_server_that_drips_is_given_up(hub: LoopbackHub) -> None:
    hub.bandwidth = 60_000
    install_session(HttpLimits(throughput=MinThroughput(bytes_per_second=1_000_000, seconds=0.2)))
    try:
        with pytest.raises(Failed) as failure:
            remote(hub, retries=RetryPolicy(retries=0)).read(0, 900_000)
        assert failure.value.reason == "timeout"
    finally:
        hub.bandwidth = None
        install_session(SESSION_LIMITS)


def test_missing_files_and_repositories_are_reported(hub: LoopbackHub) -> None:
    failure = failure_of(lambda: remote(hub, "nothing.safetensors"))
    assert failure.reason == "not_found"
    assert "nothing.safetensors" in failure.detail
    with pytest.raises(Failed):
        RemoteFile("me/nobody", "model.safetensors", SHA)


def test_no_server_at_all_is_a_network_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    set_endpoint(monkeypatch, "http://127.0.0.1:9")
    assert failure_of(lambda: RemoteFile("me/model", "model.safetensors", SHA)).reason == "network"


def test_an_invalid_location_is_refused(hub: LoopbackHub) -> None:
    for location in ("file:///etc/passwd", "http://[", "ftp://127.0.0.1/x", "http://127.0.0.1:99999999/"):
        hub.faults.clear()
        hub.faults.add("resolve", method="HEAD", headers={"Location": location})
        with pytest.raises(Failed):
            remote(hub).read(0, 10)


def test_origins() -> None:
    assert is_own("https://hub.example/a", "https://hub.example")
    assert is_own("https://HUB.example:443/a", "https://hub.example")
    for other in (
        "http://hub.example/a",
        "https://hub.example:444/",
        "https://hub.example.evil/",
        "https://a@evil/",
    ):
        assert not is_own(other, "https://hub.example")
