"""The loopback Hub's books, how it starts and stops, and its command line."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
import threading
import urllib.parse
from pathlib import Path

import pytest

from scripts.loopback_hub import LoopbackHub
from tests.conftest import ROOT
from tests.loopback_hub.store import SIZE, WEIGHTS, fetch, get_json, signed_url, write
from tests.patience import PATIENCE, wait_for


def test_bytes_are_counted_exactly_with_many_readers(hub: LoopbackHub):
    url = signed_url(hub)
    hub.reset_log()
    assert (hub.requests, hub.body_bytes()) == ([], 0)
    parts = [(start, min(SIZE, start + 6007)) for start in range(0, SIZE, 6007)]
    got: dict[int, bytes] = {}

    def read(number):
        for start, stop in parts[number::4]:
            got[start] = fetch(url, Range=f"bytes={start}-{stop - 1}")[2]

    readers = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert b"".join(got[start] for start, _ in parts) == WEIGHTS
    assert hub.body_bytes("me/base", "model.safetensors") == hub.body_bytes() == SIZE
    assert hub.body_bytes("me/base", "config.json") == hub.body_bytes("gated/ok") == 0
    assert len(hub.requests) == len(parts)
    assert {(r.role, r.method, r.status, r.repo_id, r.filename) for r in hub.requests} == {
        ("cdn", "GET", 206, "me/base", "model.safetensors")
    }
    assert sorted(r.range for r in hub.requests) == sorted(f"bytes={start}-{stop - 1}" for start, stop in parts)
    fetch(url, "HEAD")
    assert hub.body_bytes() == SIZE
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(hub.endpoint).netloc, timeout=PATIENCE)
    for _ in range(3):  # one connection, request after request
        connection.request("GET", "/base/resolve/main/config.json")
        connection.getresponse().read()
        assert connection.sock is not None
    connection.close()
    assert hub.requests[-1].repo_id == "me/base"


def test_a_closed_connection_counts_the_bytes_that_were_sent(root: Path):
    write(root / "big/file/model.bin", bytes(50_000_000))
    with LoopbackHub(root) as hub:
        url = signed_url(hub, "big/file/resolve/main/model.bin")
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=PATIENCE)
        connection.request("GET", url.removeprefix(hub.cdn_endpoint))
        connection.getresponse().read(1000)
        connection.close()
    assert 1000 <= hub.body_bytes("big/file", "model.bin") < 20_000_000


def test_stop_ends_everything(root: Path):
    before = set(threading.enumerate())
    hub = LoopbackHub(root, bandwidth=1000).start()
    url = signed_url(hub)
    hub.faults.add("config", hang=600)
    hub.faults.add("README", hang=600, hang_after=5)
    idle = socket.create_connection(("127.0.0.1", int(hub.endpoint.rpartition(":")[2])))

    ends: list[str] = []

    def ask(target):
        try:
            fetch(target)
        except (http.client.HTTPException, OSError) as error:
            ends.append(type(error).__name__)

    targets = [url, *(f"{hub.endpoint}/me/base/resolve/main/{name}" for name in ("config.json", "README.md"))]
    readers = [threading.Thread(target=ask, args=(target,)) for target in targets]
    for reader in readers:
        reader.start()
    wait_for(lambda: len(hub.requests) == 4)
    hub.stop()
    for reader in readers:
        reader.join(timeout=PATIENCE)
    assert len(ends) == 3, ends
    assert set(threading.enumerate()) <= before
    assert idle.recv(1) == b""
    idle.close()
    with pytest.raises(OSError):  # noqa: PT011 (refused, or reset: the port is closed)
        fetch(hub.endpoint)
    hub.stop()
    LoopbackHub(root).stop()


def test_ports_are_on_loopback_and_can_be_chosen(root: Path):
    with LoopbackHub(root) as hub:
        assert hub.endpoint.startswith("http://127.0.0.1:")
        port = int(hub.endpoint.rpartition(":")[2])
        with pytest.raises(OSError, match="in use"):
            LoopbackHub(root, port=port)
    with LoopbackHub(root, port=port) as again:
        assert again.endpoint == hub.endpoint


def test_command_line(root: Path):
    command = [sys.executable, "-m", "scripts.loopback_hub"]
    process = subprocess.Popen(
        [*command, str(root)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        endpoint = process.stdout.readline().split()[-1]
        assert process.stdout.readline() == f"export HF_ENDPOINT={endpoint}\n"
        assert len(get_json(f"{endpoint}/api/models")) == 4
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE) == 130
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()
    for arguments, code in (
        ([str(root / "none")], 1),
        ([str(root), "--port", "any"], 2),
        ([str(root), "--port", "99999"], 1),
    ):
        done = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == code
        assert "Traceback" not in done.stderr
        assert done.stderr.strip()
