"""A Hub of thousands of fine-tunes that are on no disk: ``python -m scripts.scale.virtual_hub --models 10000``.

The weights are those of ``virtual_weights``, made when a range of them is asked for. Everything else is the loopback Hub.
``GET /stats`` counts requests and bytes by kind; ``/stats?phase=NAME`` begins a phase, ``/stats?reset=1`` forgets all.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from scripts.child import PROJECT, peak_bytes
from scripts.loopback_hub import LoopbackHub, RequestRecord, StoreError
from scripts.loopback_hub.__main__ import count_of, port_of, rate_of
from scripts.loopback_hub.access import Access
from scripts.loopback_hub.answers import Answer, Request, json_answer
from scripts.loopback_hub.api import Api, Rank
from scripts.loopback_hub.files import Files
from scripts.loopback_hub.ledger import Ledger
from scripts.loopback_hub.limits import DEFAULT_QUOTAS, DEFAULT_WINDOW, Quota
from scripts.loopback_hub.store import Repository
from scripts.scale.virtual_layout import SHAPES
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


@dataclass
class _Counted(RequestRecord):
    """A request that is only counted: among ``kind`` of ``phase``."""

    kind: str = ""
    phase: dict[str, Any] = field(default_factory=dict)


class Counters(Ledger):
    """Requests, statuses and body bytes by phase and kind, in place of a list of all requests."""

    def __init__(self) -> None:
        super().__init__()
        self.clear()

    def begin(self, phase: str) -> None:
        """Count what begins from now on in this phase."""
        with self._lock:
            self._phase = phase
            self._phases.setdefault(phase, {})

    def open(self, role: str, method: str, path: str, query: str, headers: Mapping[str, str]) -> RequestRecord:
        """A record that is not stored."""
        kind = _kind(role, method, path, "range" in headers)
        with self._lock:
            phase = self._phases[self._phase]
        # Without its headers: they are not looked at.
        return _Counted(next(self._numbers), role, method, path, query, {}, kind=kind, phase=phase)

    def set_status(self, record: RequestRecord, status: int) -> None:
        """Count the request."""
        with self._lock:
            record.status = status
            counts = self._counts(record)
            counts["requests"] += 1
            counts["statuses"][str(status)] = counts["statuses"].get(str(status), 0) + 1

    def add_body(self, record: RequestRecord, count: int) -> None:
        """Count body bytes."""
        with self._lock:
            record.body_bytes += count
            self._counts(record)["body_bytes"] += count

    def clear(self) -> None:
        """Forget every phase."""
        with self._lock:
            self._phase = "start"
            self._phases: dict[str, dict[str, Any]] = {"start": {}}

    def totals(self) -> dict[str, Any]:
        """Phase → kind → requests, body bytes and statuses."""
        with self._lock:
            return {"phase": self._phase, "phases": json.loads(json.dumps(self._phases))}

    @staticmethod
    def _counts(record: RequestRecord) -> dict[str, Any]:
        assert isinstance(record, _Counted)
        return record.phase.setdefault(record.kind, {"requests": 0, "body_bytes": 0, "statuses": {}})


def _kind(role: str, method: str, path: str, is_range: bool) -> str:
    if role == "cdn":
        return "range" if is_range else "head" if method == "HEAD" else "whole"
    if path.startswith("/api/models"):
        verb = re.search(r"/(tree|refs|paths-info|discussions|commits)(?:/|$)", path)
        return "listing" if path.rstrip("/") == "/api/models" else verb[1] if verb else "info"
    if "/resolve/" in path:
        weights = ".safetensors" in path and not path.endswith(".json")
        return f"resolve {'weights' if weights else 'small'} {method}"
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
        self._api = VirtualApi(self.store, access, self.endpoint, page_size, 1000)
        self._files = Files(self.store, access, self.cdn_endpoint, url_lifetime)

    @property
    def base(self) -> str:
        """The base's id."""
        return base_id(self.family.plan)

    def prepare(self) -> int:
        """How many repositories there are; nothing needs to be hashed."""
        return self.family.plan.models + 1

    def stats(self) -> dict[str, Any]:
        """What was asked and sent so far; CPU seconds and memory of this process."""
        status = Path("/proc/self/status")
        memory: dict[str, int] = {}
        if status.exists():
            resident = re.search(r"VmRSS:\s+(\d+)", status.read_text())
            memory = {"resident_bytes": 1024 * int(resident[1]) if resident else 0, "peak_bytes": peak_bytes()}
        return self.counters.totals() | {"cpu_seconds": time.process_time(), **memory}

    def _hub_route(self, request: Request) -> Answer:
        if request.path != "/stats":
            return super()._hub_route(request)
        answer = json_answer(self.stats())
        if request.is_set("reset"):
            self.counters.clear()
        if phase := request.one("phase"):
            self.counters.begin(phase[:100])
        return answer


@dataclass(frozen=True)
class Running:
    """A virtual Hub in a process of its own."""

    endpoint: str
    pid: int

    def stats(self, **what: str) -> dict[str, Any]:
        """``/stats``; with ``phase="…"`` or ``reset="1"`` as it was before."""
        query = "&".join(f"{name}={value}" for name, value in what.items())
        with urllib.request.urlopen(f"{self.endpoint}/stats?{query}", timeout=60) as answer:
            result: dict[str, Any] = json.load(answer)
        return result


@contextmanager
def running(*arguments: str) -> Iterator[Running]:
    """A virtual Hub with these arguments of the command, until the block is left. RuntimeError if it does not start."""
    # One thread of computation: the CPU that it takes is then that of serving.
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "scripts.scale.virtual_hub", "--until-eof", *arguments]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        lines = (line.removeprefix("export HF_ENDPOINT=").strip() for line in process.stdout if "HF_ENDPOINT=" in line)
        endpoint = next(lines, None)
        if endpoint is None:
            raise RuntimeError(f"the virtual Hub ended with exit code {process.wait()}")
        yield Running(endpoint, process.pid)
    finally:
        process.stdin.close()  # it ends then, as it does when this process is killed
        try:
            process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _quota(text: str) -> tuple[str, Quota]:
    match = re.fullmatch(r"(\w+)=(\d{1,9})(?:/(\d{1,6}(?:\.\d+)?))?", text, re.ASCII)
    if match is None or match[1] not in DEFAULT_QUOTAS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no quota: give KIND=REQUESTS[/SECONDS], KIND one of {', '.join(DEFAULT_QUOTAS)}"
        )
    return match[1], (int(match[2]), float(match[3] or DEFAULT_WINDOW))


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.scale.virtual_hub",
        description="A Hub of fine-tunes whose weights are made when they are asked for.",
    )
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="roberta-base", help="the architecture (default: %(default)s)")
    add("--models", type=count_of, default=100, help="how many fine-tunes (default: %(default)s)")
    add("--seed", type=int, default=0, help="of everything that is drawn (default: %(default)s)")
    add("--datasets", type=count_of, help="that many data sets of equal size (default: sizes as on the Hub)")
    for name, text in (
        ("named", "share of models that name their data set (default: as on the Hub)"),
        ("half", "share of models in F16"),
        ("bfloat", "share of models in BF16"),
        ("copies", "share of copies of the base"),
        ("duplicates", "share of repeated uploads"),
        ("unrelated", "share of models with another base"),
    ):
        add(f"--{name}", type=float, default=getattr(Plan, name), metavar="SHARE", help=text)
    add("--latency", type=float, default=0.0, metavar="SECONDS", help="before every answer (default: none)")
    add("--bandwidth", type=rate_of, help="bytes per second in all, as 20M (default: no limit)")
    add("--quota", type=_quota, action="append", default=[], metavar="KIND=N[/S]",
        help="enforce a quota, as resolvers=3000 (in 300 s); may be repeated")  # fmt: skip
    add("--port", type=port_of, default=0, help="the Hub's port (default: any free one)")
    add("--cdn-port", type=port_of, default=0, help="the port of the files (default: any free one)")
    add("--page-size", type=count_of, default=100, help="rows on a page of a listing (default: %(default)s)")
    add("--until-eof", action="store_true", help="end when standard input is closed")
    options = parser.parse_args(arguments)
    drawn = ("shape", "models", "seed", "datasets", "named", "half", "bfloat", "copies", "duplicates", "unrelated")
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    if options.until_eof:

        def wait_for_the_end() -> None:
            sys.stdin.read()
            ended.set()

        threading.Thread(target=wait_for_the_end, daemon=True).start()
    try:
        hub = VirtualHub(
            Plan(**{name: getattr(options, name) for name in drawn}),
            page_size=options.page_size,
            bandwidth=options.bandwidth,
            latency=options.latency,
            quotas=dict(options.quota),
            port=options.port,
            cdn_port=options.cdn_port,
        )
        with hub:
            print(f"{hub.prepare()} repositories at {hub.endpoint}, of them the base {hub.base}")
            print(f"export HF_ENDPOINT={hub.endpoint}", flush=True)
            ended.wait()
    except KeyboardInterrupt:
        return 130
    except (StoreError, OSError, ValueError) as problem:
        print(f"virtual_hub: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
