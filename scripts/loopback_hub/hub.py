"""The loopback Hub put together."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType

from scripts.loopback_hub.answers import Answer, Request, text_answer
from scripts.loopback_hub.api import Access, Api
from scripts.loopback_hub.datasets import Datasets
from scripts.loopback_hub.faults import Faults
from scripts.loopback_hub.files import Files
from scripts.loopback_hub.ledger import Ledger, RequestRecord
from scripts.loopback_hub.limits import Quota, RateLimits, Throttle
from scripts.loopback_hub.server import Desk, Server
from scripts.loopback_hub.store import JoinedStore
from scripts.loopback_hub.writing import Writing


class LoopbackHub:
    """A Hub on 127.0.0.1 that serves the repository stores at ``roots`` as one; see ``store.py`` for their form.

    ``page_size``: rows a page at most. ``bandwidth``: bytes per second of the CDN, shared by its connections.
    ``latency``: seconds before every answer. ``quotas``: enforced limits, see ``RateLimits``. ``tokens``: which
    gated and private repositories a token opens. ``url_lifetime``: seconds until a signed URL answers 403.
    ``files`` has it, and how URLs are signed; both may be set while it runs. The ports are chosen by the
    system, unless the Hub's is given.

    ``datasets``: a folder for dataset repositories, which can be written to by those whose token is in ``writers``
    (token → owners it may write as). ``narrow_tokens``: those that are refused what anybody may read. ``tls``: with it
    both ports speak https; ``cdn_host``: another name for 127.0.0.1, so that the CDN is another host for the check of
    certificates.

    Use it as a context manager, or call ``start`` and ``stop``. Raises StoreError if a root is not a folder
    or an id stands in two of them, OSError where a port is taken.
    """

    def __init__(
        self,
        *roots: Path | str,
        page_size: int = 100,
        bandwidth: float | None = None,
        latency: float = 0.0,
        quotas: Mapping[str, Quota] | None = None,
        tokens: Mapping[str, Collection[str]] | None = None,
        narrow_tokens: Collection[str] = (),
        url_lifetime: float = 3600.0,
        port: int = 0,
        datasets: Path | str | None = None,
        writers: Mapping[str, Collection[str]] | None = None,
        tls: ssl.SSLContext | None = None,
        cdn_host: str = "127.0.0.1",
    ) -> None:
        self.faults = Faults()
        self.limits = RateLimits(quotas)
        self.latency = latency
        self._tls, self._cdn_host = tls, cdn_host
        self.store = JoinedStore([Path(root) for root in roots])
        self._ledger = Ledger()
        self._stopping = threading.Event()
        self._throttle = Throttle(bandwidth, self._stopping)
        self.datasets = Datasets(Path(datasets)) if datasets is not None else None
        access = Access(self.store, tokens or {}, narrow_tokens)
        self._cdn = self._server("cdn", 0)
        try:
            self._hub = self._server("hub", port)
        except OSError:
            self._cdn.server_close()
            raise
        self._api = Api(self.store, access, self.endpoint, page_size)
        self.files = Files(self.store, access, self.cdn_endpoint, url_lifetime)
        self._writing: Writing | None = None
        if self.datasets is not None:
            self._writing = Writing(self.datasets, writers or {}, self.endpoint, self.cdn_endpoint)

    def _server(self, role: str, port: int) -> Server:
        throttle = self._throttle if role == "cdn" else Throttle(None, self._stopping)
        route = self._files_route if role == "cdn" else self._hub_route
        desk = Desk(
            role,
            route,
            self.faults,
            self._ledger,
            self.limits,
            throttle,
            self._stopping,
            lambda: self.latency,
            self.datasets.objects if self.datasets is not None else None,
        )
        return Server(port, desk, self._cdn_host if role == "cdn" else "127.0.0.1", self._tls)

    def _hub_route(self, request: Request) -> Answer:
        if request.path == "/":
            return text_answer(f"A loopback Hub. export HF_ENDPOINT={self.endpoint}\n")
        if self._writing is not None and self._writing.takes(request.path):
            return self._writing.answer(request)
        if request.path.startswith("/api/resolve-cache/"):
            return self.files.deliver_small(request)
        return self._api.answer(request) if request.path.startswith("/api/") else self.files.resolve(request)

    def _files_route(self, request: Request) -> Answer:
        written = self._writing.deliver(request) if self._writing is not None else None
        return self.files.deliver(request) if written is None else written

    @property
    def endpoint(self) -> str:
        """The Hub's address, for HF_ENDPOINT or ``endpoint=``."""
        return self._hub.endpoint

    @property
    def cdn_endpoint(self) -> str:
        """The address that signed URLs point to."""
        return self._cdn.endpoint

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second of the CDN; None for as fast as it goes. May be set while it runs."""
        return self._throttle.rate

    @bandwidth.setter
    def bandwidth(self, rate: float | None) -> None:
        self._throttle.rate = rate

    @property
    def requests(self) -> list[RequestRecord]:
        """Every request so far, those not yet answered included, oldest first."""
        return self._ledger.records()

    @property
    def leaks(self) -> list[RequestRecord]:
        """Requests that carried an Authorization header to the CDN, which must not see one."""
        return [record for record in self.requests if record.role == "cdn" and record.authorized]

    def body_bytes(self, repo_id: str | None = None, filename: str | None = None) -> int:
        """Response-body bytes sent for a repository, a file of it, or in all; both ports together."""
        return self._ledger.body_bytes(repo_id, filename)

    def reset_log(self) -> None:
        """Forget every request so far. Faults and quotas keep their counts."""
        self._ledger.clear()

    def prepare(self) -> int:
        """Hash every file now rather than when it is first asked for; how many repositories there are."""
        count = 0
        for repository in self.store.repositories():
            for name in ("main", *repository.described):
                repository.revision(name)
            count += 1
        return count

    def start(self) -> LoopbackHub:
        """Begin to answer."""
        self._cdn.start()
        self._hub.start()
        return self

    def stop(self) -> None:
        """Close both ports and every connection; returns when no thread of the server is left."""
        self._stopping.set()
        self._hub.stop()
        self._cdn.stop()

    def __enter__(self) -> LoopbackHub:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
