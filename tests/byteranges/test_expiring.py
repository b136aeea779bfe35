"""Signed addresses that run out while several ranges are read from them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import httpx2
import pytest

from indexer.network.rate_limit import RateLimiter
from indexer.network.remote_file import RemoteFile
from indexer.network.session import HubTransport
from scripts.loopback_hub import LoopbackHub
from scripts.loopback_hub.answers import Answer, Request
from tests.byteranges.conftest import CONTENT, SHA, cdn_requests, failure_of, remote
from tests.byteranges.conftest import QUICK as RETRIES
from tests.hubs import QUICK, set_endpoint
from tests.patience import PATIENCE

THREADS = 6
OF_CLOUDFRONT = "<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access denied</Message></Error>"
OF_S3 = (
    "<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Request has expired</Message>"
    "<X-Amz-Expires>60</X-Amz-Expires><Expires>2026-01-01T00:00:00Z</Expires></Error>"
)
OF_A_TOKEN = "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
REFUSALS = {
    "CloudFront": (403, OF_CLOUDFRONT),
    "S3": (403, OF_S3),
    "a token of S3": (400, OF_A_TOKEN),
    "JSON": (401, '{"error": "Signature expired"}'),
    "nothing": (401, ""),
    "gone": (410, ""),
}


@pytest.fixture
def clock(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The clock of the server, whose addresses open for a minute."""
    found = SimpleNamespace(now=time.time())
    monkeypatch.setattr("scripts.loopback_hub.files.time", SimpleNamespace(time=lambda: found.now))
    hub.files.url_lifetime = 60.0
    before = hub.files.expired
    yield found
    hub.files.expired = before


def all_in_flight(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The first ``count`` ranges are answered when all of them have been asked for."""
    together, deliver, lock, seen = threading.Barrier(count), hub.files.deliver, threading.Lock(), []

    def held(request: Request) -> Answer:
        with lock:
            seen.append(request)
            is_first = len(seen) <= count
        if is_first:
            together.wait(PATIENCE)
        return deliver(request)

    monkeypatch.setattr(hub.files, "deliver", held)


def read_at_once(read: Callable[[int, int], bytes]) -> list[bytes]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(lambda number: read(1000 * number, 1000 * number + 1000), range(THREADS)))


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("signs_like", ["cloudfront", "s3"])
@pytest.mark.parametrize("skew", [0.0, -7200.0], ids=["true", "two hours behind"])
def test_one_new_address_serves_all_that_were_refused(hub, clock, monkeypatch, refusal, signs_like, skew) -> None:
    """Whatever the refusal says, and whatever the clock of the server that sends it."""
    monkeypatch.setattr(hub.files, "signs_like", signs_like)
    hub.files.expired = REFUSALS[refusal]
    file = remote(hub)
    assert file.read(0, 10) == CONTENT[:10]
    clock.now += 61.0
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(clock.now + skew))
    hub.faults.add("repos", role="cdn", headers={"Date": date})
    all_in_flight(hub, monkeypatch, THREADS)
    assert read_at_once(file.read) == [CONTENT[1000 * n : 1000 * n + 1000] for n in range(THREADS)]
    assert [one.method for one in hub.requests if one.role == "hub"] == ["HEAD", "HEAD"]


def test_an_address_that_runs_out_again_and_again(hub, clock, monkeypatch) -> None:
    file, deliver, lock, count = remote(hub), hub.files.deliver, threading.Lock(), [0]

    def ages(request: Request) -> Answer:
        answer = deliver(request)
        with lock:
            count[0] += 1
            clock.now += 61.0 * (count[0] % 8 == 0)
        return answer

    monkeypatch.setattr(hub.files, "deliver", ages)
    for _ in range(4):
        assert read_at_once(file.read) == [CONTENT[1000 * n : 1000 * n + 1000] for n in range(THREADS)]


def test_an_address_that_runs_out_in_the_middle_of_a_body(hub, clock, monkeypatch) -> None:
    deliver = hub.files.deliver

    def ages(request: Request) -> Answer:
        answer = deliver(request)
        clock.now += 61.0
        return answer

    file = remote(hub)
    monkeypatch.setattr(hub.files, "deliver", ages)
    hub.faults.add("safetensors", role="cdn", drop_after=700_000, nth=1)
    assert file.read(100, 2_000_000) == CONTENT[100:2_000_000]
    assert len(cdn_requests(hub)) == 3  # cut off, refused, the rest
    assert file.bytes_read == 1_999_900


def test_addresses_that_say_themselves_that_they_have_expired_are_not_refused_for_good(hub, clock) -> None:
    """Before they have served anything, and by a server whose clock says otherwise."""
    hub.files.expired = REFUSALS["S3"]
    hub.faults.add("resolve", method="HEAD", expired_url=True, first=3)
    hub.faults.add("repos", role="cdn", headers={"Date": "Tue, 14 Nov 2023 22:13:20 GMT"})
    assert remote(hub).read(0, 1000) == CONTENT[:1000]
    assert len(cdn_requests(hub)) == 4


def test_a_refusal_of_addresses_that_should_open_is_still_final(hub, clock, monkeypatch) -> None:
    file = remote(hub)
    hub.faults.add("repos", role="cdn", status=403)
    all_in_flight(hub, monkeypatch, THREADS)
    failures = read_at_once(lambda start, stop: failure_of(lambda: file.read(start, stop)))  # type: ignore[arg-type]
    assert {failure.reason for failure in failures} <= {"refused", "server_error"}
    assert "refused" in {failure.reason for failure in failures}


def test_an_etag_of_another_store_behind_a_new_address_is_no_change(hub, clock, monkeypatch) -> None:
    """One range is still on its way from the old address when the new one has served another."""
    file = remote(hub)
    assert file.read(0, 10) == CONTENT[:10]
    slow = file.stream(0, 600_000)
    first = next(slow)
    clock.now += 61.0
    hub.faults.add("repos", role="cdn", replace_etag="elsewhere")
    assert file.read(1000, 2000) == CONTENT[1000:2000]
    assert first + b"".join(slow) == CONTENT[:600_000]


class OneHost(BaseHTTPRequestHandler):
    """A Hub that keeps its files at its own host, behind addresses that open once."""

    protocol_version, resolved, seen = "HTTP/1.1", 0, 0

    def do_HEAD(self) -> None:
        type(self).resolved += 1
        self._answer(
            302, b"", Location=f"/lfs/file?Expires={int(time.time()) + 999}&Signature={self.resolved}",
            X_Linked_Size=str(len(CONTENT)), X_Linked_Etag=f'"{SHA}"', X_Repo_Commit=SHA,
        )  # fmt: skip

    def do_GET(self) -> None:
        type(self).seen += 1
        if self.seen == 2:
            self._answer(403, OF_S3.encode())
        else:
            self._answer(206, CONTENT[:10], Content_Range=f"bytes 0-9/{len(CONTENT)}")

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass


def test_an_address_at_the_hub_itself_expires_too(monkeypatch) -> None:
    handler = type("Handler", (OneHost,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    set_endpoint(monkeypatch, f"http://127.0.0.1:{server.server_address[1]}")
    try:
        file = RemoteFile("me/model", "model.safetensors", SHA, retries=RETRIES)
        assert [file.read(0, 10) for _ in range(3)] == [CONTENT[:10]] * 3
    finally:
        server.shutdown()
        server.server_close()
    assert handler.resolved == 2


def test_retries_of_one_range_are_not_spent_on_another() -> None:
    """A cache in front of the files may be broken for one range only."""
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.headers["Range"])
        is_bad = asked[-1] == "bytes=0-9" or asked.count(asked[-1]) < 3
        return httpx2.Response(503 if is_bad else 206)

    transport = HubTransport(httpx2.MockTransport(answer), QUICK, RateLimiter())

    def status(span: str) -> int:
        request = httpx2.Request("GET", "http://127.0.0.1/file", headers={"Range": span})
        return transport.handle_request(request).status_code

    assert status("bytes=0-9") == 503
    assert status("bytes=10-19") == 206
