"""Ranges of local files and of a Hub that behaves; small files."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

import pytest

from indexer.errors import Failed, Skipped
from indexer.network.byterange import LocalFile
from indexer.network.hub_requests import fetch_small
from scripts.loopback_hub import LoopbackHub
from tests.byteranges.conftest import CONTENT, OTHER, QUICK, SHA, SMALL, cdn_requests, failure_of, remote


def test_local_file_gives_exactly_what_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(CONTENT)
    file = LocalFile(path)
    assert (file.size, file.name, file.sha256) == (len(CONTENT), "a.bin", None)
    assert bytes(file.read(5, 1000)) == CONTENT[5:1000]
    assert bytes(file.read(17, 2_999_999)) == CONTENT[17:2_999_999]
    run = file.run(100, 3000)
    assert bytes(run.read(10)) == CONTENT[100:110]
    run.skip_to(2000)
    buffer = bytearray(1000)
    run.read_into(memoryview(buffer))
    assert bytes(buffer) == CONTENT[2000:3000]
    assert file.bytes_read == 995 + 2_999_982 + 10 + 1000
    file.close()
    assert bytes(file.read(0, 3)) == CONTENT[:3]


@pytest.mark.parametrize("span", [(-1, 5), (5, 4), (0, 3_000_001)])
def test_ranges_outside_a_file_are_errors_of_the_caller(tmp_path: Path, span: tuple[int, int]) -> None:
    (tmp_path / "a.bin").write_bytes(CONTENT)
    file = LocalFile(tmp_path / "a.bin")
    with pytest.raises(ValueError, match="not a part"):
        file.read(*span)
    run = file.run(0, 10)
    with pytest.raises(ValueError, match="cannot go on"):
        run.read(11)


def test_a_local_file_that_shrinks_or_is_replaced_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(CONTENT)
    file = LocalFile(path)
    file.read(0, 10)
    os.truncate(path, 1000)
    assert failure_of(lambda: file.read(500, 2000)).reason == "file_changed"
    file.close()
    path.unlink()
    path.write_bytes(OTHER)
    with pytest.raises(Failed, match="replaced"):
        file.read(0, 10)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "pipe", "."):
        with pytest.raises(Failed) as failure:
            LocalFile(tmp_path / name)
        assert failure.value.reason == "not_found"


def test_a_link_into_the_cache_tells_its_sha256(tmp_path: Path) -> None:
    digest = hashlib.sha256(SMALL).hexdigest()
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / digest).write_bytes(SMALL)
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blobs" / digest)
    assert LocalFile(tmp_path / "model.safetensors").sha256 == digest


# A Hub that behaves.


def test_one_resolve_then_ranges_from_the_signed_address(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    file = remote(hub)
    assert file.size == len(CONTENT)
    assert file.sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert file.read(10, 50_000) == CONTENT[10:50_000]
    assert b"".join(file.stream(1_000_000, 2_500_000)) == CONTENT[1_000_000:2_500_000]
    resolves = [request for request in hub.requests if request.role == "hub"]
    assert [request.method for request in resolves] == ["HEAD"]
    assert resolves[0].authorized
    assert not hub.leaks
    assert cdn_requests(hub) == ["bytes=10-49999", "bytes=1000000-2499999"]
    assert file.bytes_read == hub.body_bytes("me/model") == 49_990 + 1_500_000
    assert all(request.headers["accept-encoding"] == "identity" for request in hub.requests)


def test_a_file_outside_lfs_is_read_from_resolve_with_the_token(
    hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    file = remote(hub, "plain.dat")
    assert (file.size, file.sha256) == (len(SMALL), None)
    assert file.read(100, 39_000) == SMALL[100:39_000]
    assert cdn_requests(hub) == []
    assert all(request.authorized for request in hub.requests)


def test_kept_bytes_are_not_fetched_twice(hub: LoopbackHub) -> None:
    file = remote(hub)
    file.read(0, 32_768, keep=True)
    assert file.read(100, 200) == CONTENT[100:200]
    run = file.run(30_000, 40_000)
    assert bytes(run.read(10_000)) == CONTENT[30_000:40_000]
    run.close()
    assert cdn_requests(hub) == ["bytes=0-32767", "bytes=32768-39999"]
    assert file.bytes_read == 40_000


def test_a_run_skips_what_it_received(hub: LoopbackHub) -> None:
    file = remote(hub)
    run = file.run(1000, 500_000)
    first = bytes(run.read(5000))
    run.skip_to(300_000)
    buffer = bytearray(200_000)
    run.read_into(memoryview(buffer))
    run.close()
    assert (first, bytes(buffer)) == (CONTENT[1000:6000], CONTENT[300_000:500_000])
    assert len(cdn_requests(hub)) == 1


def test_a_run_given_up_early_leaves_the_client_usable(hub: LoopbackHub) -> None:
    for _ in range(5):
        run = remote(hub).run(0, len(CONTENT))
        run.read(10)
        run.close()
    assert remote(hub).read(5, 9) == CONTENT[5:9]


def test_connections_are_used_again(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    file = remote(hub)
    opened = []
    connect = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda *words, **more: opened.append(1) or connect(*words, **more))
    for start in range(0, 200_000, 1000):
        run = file.run(start, start + 500)
        run.read(500)
        run.close()
    assert len(cdn_requests(hub)) == 200
    assert len(opened) <= 2


# Small files.


def test_small_files_are_one_plain_request_and_its_redirect(hub: LoopbackHub) -> None:
    assert fetch_small("me/model", "config.json", SHA, 1000) == b'{"model_type": "bert"}'
    assert [(request.method, request.range) for request in hub.requests] == [("GET", None)] * 2


def test_small_files_may_lie_in_lfs(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    found = fetch_small("me/model", "model.safetensors", SHA, 4_000_000)
    assert found == CONTENT
    assert not hub.leaks


def test_small_files_have_a_bound(hub: LoopbackHub) -> None:
    with pytest.raises(Skipped) as skip:
        fetch_small("me/model", "model.safetensors", SHA, 10_000)
    assert skip.value.reason == "malformed"


def test_small_files_survive_a_broken_body(hub: LoopbackHub) -> None:
    hub.faults.add("resolve-cache.*config.json", drop_after=5, first=2)
    found = fetch_small("me/model", "config.json", SHA, 1000, retries=QUICK)
    assert found == b'{"model_type": "bert"}'
    hub.faults.add("resolve-cache.*config.json", drop_after=5)
    assert failure_of(lambda: fetch_small("me/model", "config.json", SHA, 1000, retries=QUICK)).reason == "short_body"


def test_redirects_do_not_go_on_for_ever(hub: LoopbackHub) -> None:
    hub.faults.add("config.json", status=302, headers={"Location": "/me/model/resolve/main/config.json"})
    assert failure_of(lambda: fetch_small("me/model", "config.json", SHA, 1000, retries=QUICK)).reason == "server_error"
    assert len(hub.requests) <= 6


def test_a_file_that_is_forgotten_holds_no_descriptor(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"0123456789")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        assert LocalFile(path).read(2, 4) == b"23"
    assert len(os.listdir("/proc/self/fd")) <= before
