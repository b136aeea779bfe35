"""The web server of `query browse`: it stops at once, and does not wait for incomplete requests."""

from __future__ import annotations

import asyncio
import socket

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from query.browse.session import BrowseSession
from query.browse.site import site

REQUEST_SECONDS = 5.0  # limit for receiving a whole request
MOST_CONNECTIONS = 200
_GRACE = 1  # seconds for running answers at the end


def serve(session: BrowseSession, listening: socket.socket, token: str, ticket: str, behind: str) -> None:
    """Serve until a signal, which is then raised again; see ``site`` for the arguments."""
    ending = asyncio.Event()
    config = uvicorn.Config(
        site(session, token, ending, ticket, behind), log_config=None, access_log=False, server_header=False,
        lifespan="off", ws="none", loop="asyncio", http=_Protocol, limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=_GRACE,
    )  # fmt: skip
    _Server(config, ending).run(sockets=[listening])


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ending: asyncio.Event) -> None:
        super().__init__(config)
        self._ending = ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Cancel what clients wait for, then shut down as uvicorn does."""
        self._ending.set()
        await super().shutdown(sockets)


class _Protocol(H11Protocol):
    """Closes a connection if a request stays incomplete for ``REQUEST_SECONDS``."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._deadline = self.loop.call_later(REQUEST_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        """Receive a request, or a part of one."""
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._set_no_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._set_no_deadline()
        super().connection_lost(exc)

    def _set_no_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
