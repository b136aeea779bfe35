"""The files that are read in ranges, and the Hub that serves them."""

from __future__ import annotations

import hashlib
import random

from indexer.network.hub_requests import RetryPolicy
from indexer.network.remote_file import RemoteFile
from indexer.network.session import HttpLimits
from scripts.loopback_hub import LoopbackHub

CONTENT = random.Random(7).randbytes(3_000_000)
OTHER = random.Random(8).randbytes(3_000_000)
SMALL = random.Random(9).randbytes(40_000)
SHA = hashlib.sha1(b"a commit").hexdigest()
SESSION_LIMITS = HttpLimits(read_seconds=2.0, first_wait=0.01, longest_wait=0.05, retries=3)
QUICK = RetryPolicy(retries=3, first_wait=0.01, longest_wait=0.02)


def remote(hub: LoopbackHub, name: str = "model.safetensors", retries: RetryPolicy = QUICK) -> RemoteFile:
    return RemoteFile("me/model", name, SHA, endpoint=hub.endpoint, retries=retries)


def cdn_requests(hub: LoopbackHub) -> list[str | None]:
    return [request.range for request in hub.requests if request.role == "cdn"]
