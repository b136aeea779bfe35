"""The files that are read in ranges, and the Hub that serves them."""

from __future__ import annotations

import hashlib
import random

from indexer.network.hub_get import Patience
from indexer.network.remote_file import RemoteFile
from scripts.loopback_hub import LoopbackHub

CONTENT = random.Random(7).randbytes(3_000_000)
OTHER = random.Random(8).randbytes(3_000_000)
SMALL = random.Random(9).randbytes(40_000)
SHA = hashlib.sha1(b"a commit").hexdigest()
QUICK = Patience(setbacks=3, first_wait=0.01, longest_wait=0.02)


def remote(hub: LoopbackHub, name: str = "model.safetensors", patience: Patience = QUICK) -> RemoteFile:
    return RemoteFile("me/model", name, SHA, endpoint=hub.endpoint, patience=patience)


def cdn_requests(hub: LoopbackHub) -> list[str | None]:
    return [request.range for request in hub.requests if request.role == "cdn"]
