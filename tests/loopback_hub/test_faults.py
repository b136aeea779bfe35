"""The loopback Hub's limits and injected faults."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import json
import threading
import time
import urllib.parse
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts.loopback_hub import LoopbackHub
from scripts.loopback_hub.limits import Throttle
from tests.loopback_hub.store import GOOD, SIZE, WEIGHTS, fetch, get_json, signed_url
from tests.patience import PATIENCE


def test_quotas(root: Path, monkeypatch):
    clock = SimpleNamespace(now=1000.3)
    monkeypatch.setattr("scripts.loopback_hub.limits.time", SimpleNamespace(monotonic=lambda: clock.now))
    with LoopbackHub(root, quotas={"api": (2, 60.0), "resolvers": 1}) as hub:
        api, file = f"{hub.endpoint}/api/models", f"{hub.endpoint}/me/base/resolve/main/config.json"
        answers = [fetch(api) for _ in range(3)]
        assert [status for status, _, _ in answers] == [200, 200, 429]
        answer = [headers["RateLimit"] for _, headers, _ in answers]
        assert answer == ['"api";r=1;t=60', '"api";r=0;t=60', '"api";r=0;t=60']
        assert answers[2][1]["RateLimit-Policy"] == '"fixed window";"api";q=2;w=60'
        assert answers[2][1]["Retry-After"] == "60"
        assert fetch(api, **GOOD)[0] == 200  # another caller, another window
        assert [fetch(file)[0], fetch(file, "HEAD")[0]] == [307, 429]
        clock.now += 59.5
        status, headers, _ = fetch(api)
        assert (status, headers["Retry-After"]) == (429, "1")
        clock.now += 0.5
        assert fetch(api)[0] == 200
        hub.limits.set("resolvers", None)
        assert {fetch(file)[1]["RateLimit"] for _ in range(5)} == {'"resolvers";r=2999;t=300'}
        with pytest.raises(ValueError, match="unknown kind"):
            hub.limits.set("resolver", 3)


def test_a_throttle_keeps_its_rate_for_every_client(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("scripts.loopback_hub.limits.time", SimpleNamespace(monotonic=lambda: clock.now))

    def wait(seconds):
        clock.now += seconds

    throttle = Throttle(1_000_000, SimpleNamespace(wait=wait))
    for sent in range(1, 101):
        throttle.wait(10_000)
        assert clock.now - 1000.0 == pytest.approx(sent / 100, abs=0.02)
    clock.now += 60.0  # nobody asked: nothing is saved up
    before = clock.now
    throttle.wait(1_000_000)
    assert clock.now - before == pytest.approx(1.0, abs=0.02)


def test_bandwidth_is_shared(root: Path):
    """A busy machine makes it longer, nothing makes it shorter."""
    with LoopbackHub(root, bandwidth=1_000_000) as hub:
        url = signed_url(hub)
        readers = [threading.Thread(target=fetch, args=(url,)) for _ in range(2)]
        started = time.monotonic()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        seconds = time.monotonic() - started
        assert seconds > 0.9 * 2 * SIZE / 1e6
        hub.bandwidth = None
        hub.latency = 0.3
        started = time.monotonic()
        assert fetch(url)[0] == 200
        assert time.monotonic() - started >= 0.3


def test_faults_strike_when_they_should(hub: LoopbackHub):
    api = f"{hub.endpoint}/api/models"

    def statuses(count=4):
        return [fetch(api)[0] for _ in range(count)]

    for when, expected in (
        ({"nth": 2}, [200, 503, 200, 200]),
        ({"first": 2}, [503, 503, 200, 200]),
        ({"since": 3}, [200, 200, 503, 503]),
        ({}, [503] * 4),
    ):
        fault = hub.faults.add(r"^/api/models$", status=503, **when)
        assert statuses() == expected
        assert (fault.matched, fault.struck) == (4, expected.count(503))
        hub.faults.remove(fault)
    hub.faults.add("api", status=500, method="POST")
    hub.faults.add("api", status=500, role="cdn")
    hub.faults.add(r"\?.*limit=9 x", status=502)
    assert statuses(1) == [200]
    assert fetch(f"{api}?limit=9%20x")[0] == 502
    hub.faults.add("api", status=429, retry_after=7)
    _, headers, _ = fetch(api)
    assert (headers["Retry-After"], headers["RateLimit"]) == ("7", '"api";r=0;t=7')
    hub.faults.clear()
    assert statuses(1) == [200]
    with pytest.raises(TypeError):
        hub.faults.add("x", statis=3)
    with pytest.raises(ValueError, match="role"):
        hub.faults.add("x", role="cnd")


def read_until_broken(url: str, **headers: str) -> tuple[int, bytes, str]:
    """What arrived before the connection ended, how much was promised, and how it ended."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=PATIENCE)
    connection.request("GET", url.partition(connection.host + f":{connection.port}")[2], headers=headers)
    response = connection.getresponse()
    got = b""
    try:
        while part := response.read1(1 << 16):
            got += part
        ended = "whole" if len(got) == int(response.headers["Content-Length"]) else "short"
    except (http.client.IncompleteRead, ConnectionError) as error:
        ended = type(error).__name__
    connection.close()
    return int(response.headers["Content-Length"]), got, ended


def test_broken_bodies(hub: LoopbackHub):
    url = signed_url(hub)
    for settings, promised, arrives, ended in (
        ({"drop_after": 1000}, SIZE, 1000, "short"),
        ({"drop_after": 0}, SIZE, 0, "short"),
        ({"drop_after": 70_000, "hang": 0.1, "hang_after": 70_000}, SIZE, 70_000, "short"),
        ({"drop_after": SIZE}, SIZE, SIZE, "whole"),
        ({"cut_to": 1000}, 1000, 1000, "whole"),
        ({"cut_to": 1000, "content_length": SIZE}, SIZE, 1000, "short"),
        ({"content_length": SIZE + 9}, SIZE + 9, SIZE, "short"),
    ):
        hub.reset_log()
        fault = hub.faults.add("model", role="cdn", **settings)
        assert read_until_broken(url) == (promised, WEIGHTS[:arrives], ended), settings
        assert hub.body_bytes("me/base", "model.safetensors") == arrives
        hub.faults.remove(fault)
    hub.faults.add("model", role="cdn", drop_after=1000, reset=True)
    assert read_until_broken(url)[2] == "ConnectionResetError"
    hub.faults.add("model", role="cdn", no_answer=True)
    with pytest.raises(http.client.RemoteDisconnected):
        fetch(url)
    assert hub.requests[-1].status is None


def test_ranges_gone_wrong(hub: LoopbackHub):
    url = signed_url(hub)
    hub.faults.add("model", role="cdn", nth=1, ignore_range=True)
    hub.faults.add("model", role="cdn", nth=2, content_range="bytes 5-9/77")
    hub.faults.add("model", role="cdn", nth=3, gzip=True)
    hub.faults.add("model", role="cdn", nth=4, gzip=True, ignore_range=True)
    hub.faults.add("model", role="cdn", nth=5, cut_to=3)
    hub.faults.add("model", role="cdn", nth=6, headers={"etag": None, "X-More": "é\r\nX-Evil: 1"})
    answers = [fetch(url, Range="bytes=0-9", Accept_Encoding="identity") for _ in range(7)]
    assert [status for status, _, _ in answers] == [200, 206, 206, 200, 206, 206, 206]
    assert answers[0][2] == WEIGHTS
    assert (answers[1][1]["Content-Range"], answers[1][2]) == ("bytes 5-9/77", WEIGHTS[:10])
    assert gzip.decompress(answers[2][2]) == WEIGHTS[:10]
    assert gzip.decompress(answers[3][2]) == WEIGHTS
    assert answers[3][1]["Content-Encoding"] == "gzip"
    assert (answers[4][1]["Content-Range"], answers[4][2]) == (f"bytes 0-9/{SIZE}", WEIGHTS[:3])
    assert (answers[5][1]["ETag"], answers[5][1]["X-Evil"]) == (None, None)
    assert answers[6][2] == WEIGHTS[:10]


def test_a_file_that_changes_while_it_is_read(hub: LoopbackHub):
    other = b"other weights" * 1000
    hub.faults.add(r"model\.safetensors", since=3, replace_content=other)
    url = signed_url(hub)
    before = fetch(url, Range="bytes=0-9")
    after = fetch(url, Range="bytes=0-9")
    assert (before[2], after[2]) == (WEIGHTS[:10], other[:10])
    assert before[1]["ETag"] != after[1]["ETag"]
    assert fetch(url, Range="bytes=0-9", If_Range=before[1]["ETag"])[::2] == (200, other)
    _, headers, _ = fetch(f"{hub.endpoint}/me/base/resolve/main/model.safetensors", "HEAD")
    assert headers["X-Linked-Etag"] == f'"{hashlib.sha256(other).hexdigest()}"'
    assert headers["X-Linked-Size"] == str(len(other))
    hub.faults.add("config", replace_etag="e")
    assert fetch(f"{hub.endpoint}/me/base/resolve/main/config.json")[1]["X-Linked-ETag"] == '"e"'
    hub.faults.clear()
    hub.faults.add("/resolve/", expired_url=True, first=1)
    assert [fetch(signed_url(hub))[0] for _ in range(2)] == [403, 200]
    hub.faults.add("/repos/", status=403, first=1)
    assert [fetch(signed_url(hub))[0] for _ in range(2)] == [403, 200]


def test_listings_gone_wrong(hub: LoopbackHub):
    api = f"{hub.endpoint}/api/models"
    clean = get_json(api)
    hub.faults.add("^/api/models", nth=1, splice_row={"id": 3}, splice_at=1)
    hub.faults.add("^/api/models", nth=2, splice_row=None)
    hub.faults.add("^/api/models", nth=3, malformed_json=True)
    assert get_json(api) == [clean[0], {"id": 3}, *clean[1:]]
    assert get_json(api) == [None, *clean]
    status, _, body = fetch(api)
    assert status == 200
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        json.loads(body)
    assert get_json(api) == clean
