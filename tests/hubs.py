"""Small stores for the tests that talk to a Hub, and a server that sends given bytes."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import constants, set_client_factory

from indexer.listing.listing import Listing
from indexer.network.rate_limit import RateLimiter
from indexer.network.session import HttpLimits, HubClient, install_session
from indexer.sources.crawl import crawl
from indexer.sources.questions import BadRow, CrawlRequest
from scripts.loopback_hub import LoopbackHub

BASE = "FacebookAI/roberta-base"
SHORT = "roberta-base"

# As the real ones, but that less is waited between tries. Answers have all the time that a busy machine needs.
QUICK = HttpLimits(
    connect_seconds=30,
    read_seconds=30,
    body_seconds=60,
    total_seconds=20,
    first_wait=0.02,
    longest_wait=0.1,
    retries=3,
    retries_after_timeout=1,
    retries_without_connection=1,
)


def add_repo(root: Path, identifier: str, files: dict[str, Any] | None = None, **settings: Any) -> None:
    """A repository: files by name (text, bytes, or what is to be JSON), and what the Hub says of it."""
    folder = root / identifier
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (files or {}).items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        data = content if isinstance(content, bytes | str) else json.dumps(content)
        target.write_bytes(data if isinstance(data, bytes) else data.encode())
    (root / f"{identifier}.repo.json").write_text(json.dumps(settings))


def tags(base: str, relation: str = "finetune") -> list[str]:
    """What the Hub puts on a model with a ``base_model`` in its card."""
    return [f"base_model:{base}", f"base_model:{relation}:{base}"]


def add_base(root: Path) -> None:
    """roberta-base, under its new id, with the old one leading to it."""
    add_repo(root, BASE, {"config.json": {"model_type": "roberta"}}, old_ids=[SHORT], downloads=1_000_000)


def set_endpoint(monkeypatch: Any, endpoint: str) -> None:
    """As if HF_ENDPOINT had been set before this process began."""
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)


def use_endpoint(monkeypatch: Any, endpoint: str, limits: HttpLimits = QUICK, say: Any = None) -> None:
    """The same, with a session of these limits."""
    set_endpoint(monkeypatch, endpoint)
    install_session(limits, say or (lambda sentence: None))


class FakeClock:
    """A clock that stands still unless a test sets ``now`` or something sleeps; ``slept`` is how long. Stands for `time`.

    ``meanwhile``: called once, with the seconds, in place of the first sleep; the clock does not move for that one.
    """

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.slept: list[float] = []
        self.meanwhile: Callable[[float], None] | None = None

    def monotonic(self) -> float:
        return self.now

    __call__ = monotonic

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.meanwhile is not None:
            once, self.meanwhile = self.meanwhile, None
            once(seconds)
        else:
            self.now += seconds


def use_fake_clock(monkeypatch: Any, limits: HttpLimits = QUICK, say: Any = None) -> FakeClock:
    """From now on the client of this process waits by a clock of the test's, and keeps rate limits of its own."""
    clock = FakeClock()
    for module in ("session", "retries"):
        monkeypatch.setattr(f"indexer.network.{module}.time", clock)
    limiter = RateLimiter(clock=clock.monotonic)
    set_client_factory(lambda: HubClient(limits, limiter, say or (lambda sentence: None)))
    return clock


def reset_session() -> None:
    """Give other tests in this process the limits that everybody gets."""
    install_session(HttpLimits(), lambda sentence: None)


@contextmanager
def served(root: Path, monkeypatch: Any, limits: HttpLimits = QUICK, say: Any = None, **settings: Any):
    """A loopback Hub over ``root`` that the library in this process talks to."""
    with LoopbackHub(root, **settings) as hub:
        use_endpoint(monkeypatch, hub.endpoint, limits, say)
        try:
            yield hub
        finally:
            reset_session()


@dataclass
class Report:
    """What one crawl brought."""

    resumed: bool
    new: int = 0
    bad: int = 0
    gone: int = 0


def update_listing(listing: Listing, request: CrawlRequest) -> Report:
    """Crawl into a listing as the commands do."""
    progress, resumed = listing.begin(request)
    report = Report(resumed)
    for page in crawl(request, progress):
        report.new += listing.append_page(page)
        report.bad += len(page.of(BadRow))
    report.gone = listing.finish(is_complete=not request.is_narrowed)
    return report


@contextmanager
def cleared(hub: LoopbackHub) -> Iterator[LoopbackHub]:
    """A Hub that many tests share, for one of them: its log empty, and none of its faults there before or after."""
    hub.faults.clear()
    hub.reset_log()
    try:
        yield hub
    finally:
        hub.faults.clear()


def requested(hub: LoopbackHub, part: str = "") -> list[str]:
    """The requests so far whose path and query hold ``part``, as they were sent."""
    paths = [f"{one.path}?{one.query}" if one.query else one.path for one in hub.requests]
    return [one for one in paths if part in one]


class RawServer:
    """Answers each connection with the next of ``answers``: bytes, or (pause, bytes) pieces."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.requests: list[str] = []
        self._open = True
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> RawServer:
        return self

    def __exit__(self, *problem: object) -> None:
        self._open = False
        self._socket.close()
        reset_session()

    def _run(self) -> None:
        while self._open:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            head = b""
            while b"\r\n\r\n" not in head:
                chunk = connection.recv(65536)
                if not chunk:
                    return
                head += chunk
            self.requests.append(head.decode("latin-1"))
            answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            try:
                for piece in answer if isinstance(answer, list) else [(0, answer)]:
                    time.sleep(piece[0])
                    connection.sendall(piece[1])
            except OSError:
                return


def http(body: bytes | Any, status: str = "200 OK", **headers: str) -> bytes:
    """One whole HTTP answer; anything but bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Content-Type": "application/json", "Content-Length": str(len(data)), "Connection": "close"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + data
