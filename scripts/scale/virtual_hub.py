"""A Hub of thousands of fine-tunes that are on no disk: in this process (``VirtualHub``), or in one of its own (``running``).

The weights are those of ``virtual_weights``, made when a range of them is asked for. Everything else is the loopback Hub.
``GET /stats`` counts requests and bytes by kind; ``/stats?reset=1`` forgets them afterwards.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from scripts.child import PROJECT
from scripts.loopback_hub import LoopbackHub, RequestRecord
from scripts.loopback_hub.answers import Answer, Request, json_answer
from scripts.loopback_hub.api import Access, Api, Rank
from scripts.loopback_hub.files import Files
from scripts.loopback_hub.ledger import Ledger
from scripts.loopback_hub.store import Repository
from scripts.scale.virtual_store import VirtualStore, base_id
from scripts.scale.virtual_weights import Family, Plan

_LISTINGS_KEPT = 32
_SECONDS_TO_END = 20


@dataclass
class VirtualApi(Api):
    """Remembers the order of a listing, so that its next page costs no more than the rows on it."""

    _orders: OrderedDict[Any, list[tuple[Rank, Repository]]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ordered(self, request: Request, sort: Callable[[Repository], Any]) -> list[tuple[Rank, Repository]]:
        """As ``Api.ordered``, from memory where the same was asked before."""
        about = parse_qsl(request.query, keep_blank_values=True)
        shown = ("cursor", "limit", "expand", "expand[]", "full", "config", "cardData")
        key = tuple(sorted(pair for pair in about if pair[0] not in shown))
        with self._lock:  # held while it is made: other threads would only make it again
            if key not in self._orders:
                self._orders[key] = super().ordered(request, sort)
                while len(self._orders) > _LISTINGS_KEPT:
                    self._orders.popitem(last=False)
            return self._orders[key]


class Counters(Ledger):
    """Requests, body bytes and statuses by kind, in place of a list of all requests."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, dict[str, Any]] = {}

    def open(self, role: str, method: str, path: str, query: str, headers: Mapping[str, str]) -> RequestRecord:
        """A record that is not stored, without its headers."""
        kept = {"range": ""} if "range" in headers else {}
        return RequestRecord(next(self._numbers), role, method, path, query, kept)

    def set_status(self, record: RequestRecord, status: int) -> None:
        """Count the request."""
        super().set_status(record, status)
        with self._lock:
            counts = self._counts(record)
            counts["requests"] += 1
            counts["statuses"][str(status)] = counts["statuses"].get(str(status), 0) + 1

    def add_body(self, record: RequestRecord, count: int) -> None:
        """Count body bytes."""
        super().add_body(record, count)
        with self._lock:
            self._counts(record)["body_bytes"] += count

    def clear(self) -> None:
        """Forget every request."""
        with self._lock:
            self._kinds = {}

    def totals(self) -> dict[str, Any]:
        """Kind → requests, body bytes and statuses."""
        with self._lock:
            found: dict[str, Any] = json.loads(json.dumps(self._kinds))
        return found

    def _counts(self, record: RequestRecord) -> dict[str, Any]:
        return self._kinds.setdefault(_kind(record), {"requests": 0, "body_bytes": 0, "statuses": {}})


def _kind(record: RequestRecord) -> str:
    path = record.path
    if record.role == "cdn":
        return "range" if record.range is not None else "head" if record.method == "HEAD" else "whole"
    if path.startswith("/api/models"):
        verb = re.search(r"/(tree|refs|discussions|commits)(?:/|$)", path)
        return "listing" if path.rstrip("/") == "/api/models" else verb[1] if verb else "info"
    if "/resolve/" in path:
        is_of_weights = ".safetensors" in path and not path.endswith(".json")
        return f"resolve {'weights' if is_of_weights else 'small'} {record.method}"
    return "stats" if path == "/stats" else "other"


class VirtualHub(LoopbackHub):
    """The family of a plan on 127.0.0.1, in this process; ``settings`` as of ``LoopbackHub``, without datasets."""

    def __init__(self, plan: Plan, *, page_size: int = 100, url_lifetime: float = 3600.0, **settings: Any) -> None:
        self.family = Family(plan)
        layout = self.family.files(0)[-1]
        self.family.read(0, layout, layout.size - 4, layout.size)  # makes the tables
        super().__init__(page_size=page_size, url_lifetime=url_lifetime, **settings)
        self.counters = Counters()
        self.store = VirtualStore(self.family)
        self._ledger = self._hub.desk.ledger = self._cdn.desk.ledger = self.counters
        access = Access(self.store, {})
        self._api = VirtualApi(self.store, access, self.endpoint, page_size)
        self._files = Files(self.store, access, self.cdn_endpoint, url_lifetime)

    @property
    def base(self) -> str:
        """The base's id."""
        return base_id(self.family.plan)

    def _hub_route(self, request: Request) -> Answer:
        if request.path != "/stats":
            return super()._hub_route(request)
        answer = json_answer(self.counters.totals())
        if request.is_set("reset"):
            self.counters.clear()
        return answer


@dataclass(frozen=True)
class Running:
    """A virtual Hub in a process of its own."""

    endpoint: str

    def stats(self, *, reset: bool = False) -> dict[str, Any]:
        """``/stats``, as it was before it is forgotten with ``reset``."""
        with urllib.request.urlopen(f"{self.endpoint}/stats{'?reset=1' if reset else ''}", timeout=60) as answer:
            result: dict[str, Any] = json.load(answer)
        return result


@contextmanager
def running(plan: Plan, **settings: Any) -> Iterator[Running]:
    """A virtual Hub with these settings, until the block is left. RuntimeError if it does not start."""
    # One thread of computation: the CPU that it takes is then that of serving.
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    given = json.dumps({"plan": asdict(plan), "settings": settings})
    command = [sys.executable, "-m", "scripts.scale.virtual_hub", given]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        endpoint = process.stdout.readline().strip()
        if not endpoint:
            raise RuntimeError(f"the virtual Hub ended with exit code {process.wait()}")
        yield Running(endpoint)
    finally:
        process.stdin.close()  # it ends then, as it does when this process is killed
        try:
            process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def main(given: str) -> None:
    """Serve a plan with settings, both in JSON, until standard input ends."""
    asked = json.loads(given)
    with VirtualHub(Plan(**asked["plan"]), **asked["settings"]) as hub:
        print(hub.endpoint, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
