"""Answers that take too long, never end, or come encoded."""

from __future__ import annotations

import gzip

import httpx2
import pytest
from huggingface_hub import HfApi, constants, get_session

from indexer.errors import Failed
from indexer.network.session import Manners, as_model_error
from tests.hub_ground import RawServer, asked, http, served, use_endpoint
from tests.patience import wait_for
from tests.session.asking import failure, info


def test_a_server_that_hangs_is_a_timeout(store, monkeypatch):
    manners = Manners(read_seconds=0.3, first_wait=0.01, retries_after_timeout=1)
    with served(store, monkeypatch, manners) as hub:
        hub.faults.add("me/model", hang=600)
        error = failure(info)
        assert isinstance(error, httpx2.TimeoutException)
        assert isinstance(as_model_error(error), Failed)
        assert as_model_error(error).reason == "timeout"
        wait_for(lambda: len(asked(hub)) == 2)  # a server that is slow to note them has them all the same


def test_paging_has_a_time_limit_although_the_library_sets_none(store, monkeypatch):
    manners = Manners(read_seconds=2.0, first_wait=0.01, retries_after_timeout=0)
    with served(store, monkeypatch, manners) as hub:
        hub.faults.add("/api/models", hang=600, first=1)
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
