"""Answers that take too long, never end, or come encoded."""

from __future__ import annotations

import gzip
import tracemalloc

import httpx2
import pytest
from huggingface_hub import HfApi, constants, get_session

from indexer.checkpoints.repository import open_repository
from indexer.errors import Failed, Skipped
from indexer.network.hub import fetch_json
from indexer.network.hub_errors import as_model_error
from indexer.network.hub_requests import get_json
from indexer.network.session import HttpLimits
from indexer.sources.registry import ModelRef
from tests.hubs import QUICK, RawServer, http, requested, served, use_endpoint
from tests.patience import wait_for
from tests.session.conftest import failure, info


def test_a_server_that_hangs_is_a_timeout(store, monkeypatch):
    limits = HttpLimits(read_seconds=0.3, first_wait=0.01, retries_after_timeout=1)
    with served(store, monkeypatch, limits) as hub:
        hub.faults.add("me/model", hang=600)
        error = failure(info)
        assert isinstance(error, httpx2.TimeoutException)
        assert isinstance(as_model_error(error), Failed)
        assert as_model_error(error).reason == "timeout"
        wait_for(lambda: len(requested(hub)) == 2)  # a server that is slow to note them has them all the same


def test_paging_has_a_time_limit_although_the_library_sets_none(store, monkeypatch):
    limits = HttpLimits(read_seconds=2.0, first_wait=0.01, retries_after_timeout=0)
    with served(store, monkeypatch, limits) as hub:
        hub.faults.add("/api/models", hang=600, first=1)
        assert list(HfApi(endpoint=constants.ENDPOINT).list_models(limit=1))
        assert len(requested(hub)) == 2


def test_a_body_that_drips_is_a_timeout(monkeypatch):
    whole = http({"id": "a/b"})
    drip = [(0, whole[:-12]), *((0.15, bytes([byte])) for byte in whole[-12:])]
    limits = HttpLimits(read_seconds=1, body_seconds=0.4, first_wait=0.01, retries_after_timeout=0)
    with RawServer(drip) as server:
        use_endpoint(monkeypatch, server.endpoint, limits)
        assert isinstance(failure(info), httpx2.TimeoutException)


@pytest.mark.parametrize("encoded", [False, True])
def test_an_endless_answer_is_refused(monkeypatch, encoded):
    body = b"[" + b" " * 3_000_000 + b"]"
    answer = http(gzip.compress(body), Content_Encoding="gzip") if encoded else http(body)
    with RawServer(answer) as server:
        use_endpoint(monkeypatch, server.endpoint, HttpLimits(body_bytes=1_000_000))
        error = failure(info)
        assert isinstance(error, httpx2.DecodingError)
        assert "larger than" in as_model_error(error).detail
        assert len(server.requests) == 1


@pytest.mark.parametrize("row", [b"{},", b"[],", b'"ab",', b'{"a":{}},', b"0,"])
@pytest.mark.parametrize("encoded", [False, True])
def test_an_answer_of_millions_of_values_is_refused_while_it_is_read(monkeypatch, row, encoded):
    """Parsed, 3 million empty objects take more than 200 MB."""
    body = b"[" + row * 3_000_000 + b"{}]"
    answer = http(gzip.compress(body, 1), Content_Encoding="gzip") if encoded else http(body)
    with RawServer(answer) as server:
        use_endpoint(monkeypatch, server.endpoint)
        tracemalloc.start()
        try:
            error = failure(lambda: get_json("/api/models"))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert isinstance(error, httpx2.DecodingError)
        assert "1,000,000 values" in as_model_error(error).detail
        assert peak < 40e6
        assert len(server.requests) == 1


def test_the_librarys_own_questions_are_bounded_too(monkeypatch):
    body = b'{"id": "me/model", "siblings": [' + b"{}," * 3_000_000 + b"{}]}"
    with RawServer(http(body)) as server:
        use_endpoint(monkeypatch, server.endpoint)
        assert isinstance(failure(info), httpx2.DecodingError)


def test_so_are_the_json_files_of_a_repository(store, monkeypatch):
    (store / "me/model/many.json").write_bytes(b"[" + b"{}," * 1_500_000 + b"{}]")
    with served(store, monkeypatch):
        assert "more than the 1,000,000" in str(failure(lambda: fetch_json("me/model", "many.json", "main")).__cause__)
        repository = open_repository(ModelRef("me/model"))
        with pytest.raises(Skipped, match="not JSON"):
            repository.read_json("many.json", 16 << 20)


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


@pytest.mark.parametrize(
    "interim", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n"]
)
def test_interim_responses_without_end_are_no_answer(monkeypatch, interim):
    with RawServer(interim * 40_000 + http({"id": "me/model"})) as server:
        use_endpoint(monkeypatch, server.endpoint)
        error = failure(lambda: get_json("/api/models/me/model"))
        assert isinstance(error, httpx2.RemoteProtocolError)
        assert len(server.requests) == 1 + QUICK.retries
    with RawServer(interim * 3 + http({"id": "me/model"})) as server:
        use_endpoint(monkeypatch, server.endpoint)
        assert get_json("/api/models/me/model").value == {"id": "me/model"}


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: -1",
        "Content-Length: 9\r\nContent-Length: 10",
        "Content-Length: " + "9" * 40,
        "Transfer-Encoding: chunked\r\nX-Padding: " + "x" * 300_000,
        "\r\n".join(f"X-{number}: {'y' * 1000}" for number in range(400)),
    ],
    ids=["negative", "two", "huge", "a long header", "many headers"],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_heads_that_are_none(monkeypatch, head, method):
    with RawServer(f"HTTP/1.1 200 OK\r\nConnection: close\r\n{head}\r\n\r\n".encode() + b"{}" * 10) as server:
        use_endpoint(monkeypatch, server.endpoint, HttpLimits(read_seconds=5, first_wait=0.01, retries=1))
        with pytest.raises((httpx2.RemoteProtocolError, httpx2.ReadError)):
            get_session().request(method, f"{server.endpoint}/api/x").read()


def test_redirects_without_end(hub):
    hub.faults.add("me/model", status=302, headers={"Location": "/api/models/me/model?again"})
    assert as_model_error(failure(info)).reason == "server_error"
    assert as_model_error(failure(lambda: get_json("/api/models/me/model"))).reason == "server_error"
    assert len(requested(hub)) < 40


def test_files_are_streamed_and_not_held(hub):
    with get_session().stream("GET", f"{hub.endpoint}/me/model/resolve/main/model.safetensors") as response:
        assert response.headers["content-length"] == "32"
        assert b"".join(response.iter_bytes()) == b"12345678" * 4
