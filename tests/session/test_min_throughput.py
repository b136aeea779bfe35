"""Servers that send byte after byte: every response has a minimum throughput, in its headers as in its body."""

from __future__ import annotations

import signal
import subprocess
import time
from types import SimpleNamespace

import httpcore2
import httpx2
import pytest
from huggingface_hub import constants, get_session

from indexer.errors import Failed
from indexer.network.hub_requests import fetch_small, get_json
from indexer.network.remote_file import RemoteFile
from indexer.network.retries import RetryPolicy
from indexer.network.session import HttpLimits
from indexer.network.transport import MinThroughput, WatchedStream, WatchedTransport
from scripts.loopback_hub import LoopbackHub
from tests.conftest import start_python
from tests.hubs import FakeClock, RawServer, http, served, use_endpoint
from tests.patience import PATIENCE
from tests.session.conftest import failure, info
from tests.tiny_hub import BASE

pytestmark = pytest.mark.slow


class Line(httpcore2.NetworkStream):
    """A connection that takes ``seconds`` for every read and brings ``count`` bytes."""

    def __init__(self, clock: FakeClock, count: int, seconds: float) -> None:
        self.clock, self.count, self.seconds = clock, count, seconds
        self.reads = 0

    def read(self, max_bytes, timeout=None):
        self.reads += 1
        self.clock.now += self.seconds
        return b"x" * self.count

    def write(self, buffer, timeout=None):
        self.clock.now += 1000  # time that is not spent on waiting for the answer

    def close(self):
        pass


def watched(count: int, seconds: float) -> tuple[FakeClock, Line, WatchedStream]:
    clock = FakeClock(0.0)
    line = Line(clock, count, seconds)
    stream = WatchedStream(line, MinThroughput(clock=clock))
    stream.write(b"GET /")
    return clock, line, stream


def test_a_byte_a_second_is_given_up_after_a_minute():
    _, line, stream = watched(1, 1.0)
    with pytest.raises(httpcore2.ReadTimeout):
        list(map(stream.read, [65536] * 10_000))
    assert line.reads == 61


def test_a_modem_is_slow_enough():
    """56 kbit/s shared by five workers, for an hour."""
    _, _, stream = watched(1400, 1.0)
    stream.read(65536)
    stream.end_head(1400 * 3600)
    for _ in range(3600):
        stream.read(65536)


def test_what_the_reader_does_meanwhile_does_not_count():
    """Own limits of bandwidth and matrices to decompose: the bytes lie ready when they are asked for."""
    clock, _, stream = watched(10, 0.0)
    for _ in range(1000):
        stream.read(65536)
        clock.now += 100.0


def test_each_answer_is_counted_by_itself():
    _, line, stream = watched(1, 1.0)
    for _ in range(10):
        for _ in range(50):
            stream.read(65536)
        stream.write(b"GET /")
    assert line.reads == 500


@pytest.mark.parametrize("bypassed", [False, True])
def test_a_proxy_of_the_environment_is_asked(monkeypatch, bypassed):
    """It gets the whole address; a host that NO_PROXY names is asked itself."""
    with RawServer([(0, http({"id": "by proxy"}))]) as proxy, RawServer([(0, http({"id": "itself"}))]) as server:
        monkeypatch.setenv("HTTP_PROXY", proxy.endpoint.replace("http://", "http://user:secret@"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1" if bypassed else "elsewhere")
        with httpx2.Client(transport=WatchedTransport(MinThroughput())) as client:
            answer = client.get(f"{server.endpoint}/api/models/a/b").json()
        assert answer["id"] == ("itself" if bypassed else "by proxy")


def test_a_proxy_that_drips_is_given_up(monkeypatch):
    with RawServer(dripping(http({"id": "a/b"}), 5)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.endpoint)
        monkeypatch.setenv("NO_PROXY", "")
        with httpx2.Client(transport=WatchedTransport(HASTY.throughput)) as client, pytest.raises(httpx2.ReadTimeout):
            client.get("http://example.invalid/")


# As the real one, but for people who cannot wait; real seconds, as it is the wiring that is tested.
HASTY = HttpLimits(
    read_seconds=5, first_wait=0.01, retries_after_timeout=0, throughput=MinThroughput(bytes_per_second=1e6, seconds=0.2), body_seconds=1000
)  # fmt: skip


def dripping(whole: bytes, at: int) -> list[tuple[float, bytes]]:
    return [(0, whole[:at]), *((0.05, whole[place : place + 1]) for place in range(at, len(whole)))]


@pytest.mark.parametrize("at", [0, 5, 40], ids=["status line", "status", "headers"])
def test_headers_that_drip(monkeypatch, at):
    with RawServer(dripping(http({"id": "a/b"}), at)) as server:
        use_endpoint(monkeypatch, server.endpoint, HASTY)
        assert isinstance(failure(info), httpx2.TimeoutException)


def test_answers_before_the_answer_without_end(monkeypatch):
    """HTTP 103 may be sent as often as a server likes."""
    with RawServer([(0.05, b"HTTP/1.1 103 Early Hints\r\n\r\n")] * 1000) as server:
        use_endpoint(monkeypatch, server.endpoint, HASTY)
        assert isinstance(failure(info), httpx2.TimeoutException)


def test_the_length_of_a_chunk_that_drips(monkeypatch):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    with RawServer([(0, head), (0, b"1;"), *[(0.05, b"x")] * 1000]) as server:
        use_endpoint(monkeypatch, server.endpoint, HASTY)
        assert isinstance(failure(info), httpx2.TimeoutException)


QUESTIONS = {
    "a listing": ("/api/models", lambda: get_json("/api/models")),
    "a model": ("/api/models/me/model$", lambda: get_json("/api/models/me/model")),
    "its tree": ("/tree/", lambda: get_json("/api/models/me/model/tree/main")),
    "its commits": ("/commits", lambda: get_json("/api/models/me/model/commits/main")),
    "config.json": ("config.json", lambda: fetch_small("me/model", "config.json", "main", 100, retries=QUICK)),
    "a range": ("safetensors", lambda: RemoteFile("me/model", "model.safetensors", "main", retries=QUICK).read(0, 32)),
}
QUICK = RetryPolicy(retries=1, first_wait=0.01)


@pytest.mark.parametrize("what", QUESTIONS)
def test_bodies_that_drip(store, monkeypatch, what):
    path, question = QUESTIONS[what]
    with served(store, monkeypatch, HASTY) as hub:
        hub.faults.add(path, method="GET", drip=0.1)
        error = failure(question)
        assert isinstance(error, httpx2.TimeoutException) or (isinstance(error, Failed) and error.reason == "timeout")


@pytest.fixture
def waiting(monkeypatch):
    """The clock that small files are read by."""
    clock = FakeClock(0.0)
    for module in ("hub_requests", "retries"):
        waits = SimpleNamespace(monotonic=clock, sleep=lambda seconds: None)
        monkeypatch.setattr(f"indexer.network.{module}.time", waits)
    return clock


def test_a_small_file_has_a_deadline_whatever_its_speed(hub, monkeypatch, waiting):
    """Above the minimum, 4 MiB at 1 kB a second would still take more than an hour."""
    clock = waiting
    chunks, redirected = iter([b"x" * 50_000] * 1000), httpx2.Response.iter_bytes

    def slowly(response):
        if not response.is_success:
            yield from redirected(response)
            return
        for chunk in chunks:
            clock.now += 20.0
            yield chunk

    monkeypatch.setattr(httpx2.Response, "iter_bytes", slowly)
    with pytest.raises(Failed) as caught:
        fetch_small("me/model", "config.json", "main", 1 << 30, retries=RetryPolicy())
    assert caught.value.reason == "timeout"
    assert clock.now == 200.0


def test_retries_share_the_deadline_of_a_small_file(hub, monkeypatch, waiting):
    clock, redirected = waiting, httpx2.Response.iter_bytes

    def stops(response):
        if not response.is_success:
            yield from redirected(response)
            return
        clock.now += 60.0
        raise httpx2.ReadTimeout("nothing more")
        yield b""

    monkeypatch.setattr(httpx2.Response, "iter_bytes", stops)
    with pytest.raises(Failed):
        fetch_small("me/model", "config.json", "main", 1 << 30, retries=RetryPolicy())
    assert clock.now == 240.0


def test_files_read_by_the_library_itself_are_watched_too(store, monkeypatch):
    with served(store, monkeypatch, HASTY) as hub:
        hub.faults.add("config.json", drip=0.1)
        address = f"{constants.ENDPOINT}/me/model/resolve/main/config.json"
        # The body of the redirect to the file may drip as well.
        with pytest.raises(httpx2.ReadTimeout), get_session().stream("GET", address) as response:
            response.read()


@pytest.mark.parametrize(("path", "workers", "sent"), [
    ("ann/glue-0/resolve/.*config.json", "1", signal.SIGINT), ("ann/glue-0/resolve/.*config.json", "2", signal.SIGINT),
    ("ann/glue-0/resolve/.*config.json", "2", signal.SIGTERM), ("/api/models.filter", "1", signal.SIGTERM),
    (f"{BASE}/resolve/.*config.json", "1", signal.SIGTERM), (f"repos/{BASE}", "1", signal.SIGINT),
])  # fmt: skip
def test_a_signal_ends_a_process_that_waits_for_a_drip(tiny_store, tmp_path, path, workers, sent):
    with LoopbackHub(tiny_store(1)) as hub:
        hub.prepare()
        hub.faults.add(path, method="GET", drip=3.0)
        process = start_python(
            "-m", "indexer", "build", "--base", BASE, "--workers", workers,
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "hf")},
        )  # fmt: skip
        try:
            while not any(fault.struck for fault in hub.faults._table):
                assert process.poll() is None, process.communicate()
                time.sleep(0.02)
            process.send_signal(sent)
            _, said = process.communicate(timeout=PATIENCE)  # a drip of its own would take hours
        finally:
            process.kill()
        assert process.returncode == 128 + sent
        assert said.strip().splitlines()[-1].startswith("Stopped")
