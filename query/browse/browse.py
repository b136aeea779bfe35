"""`query browse`: serves the page of an atlas to this machine alone, until Ctrl-C."""

from __future__ import annotations

import errno
import secrets
import socket
import webbrowser
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import quote

from indexer.errors import AtlasError, require
from query.browse.held import HeldAtlas
from query.browse.site import HOSTS

if TYPE_CHECKING:
    from query.reader import AtlasReader

_WAITING = 64  # connections that the system keeps for the server to accept


def browse(
    atlas: AtlasReader,
    base: str | None = None,
    *,
    port: int = 0,
    opens: bool = True,
    method: str | None = None,
    told: Callable[[str], None] = print,
) -> None:
    """Serve until the process is told to stop, which raises KeyboardInterrupt.

    ``base``: whose models are shown first. ``port``: 0 for any that is free. ``told`` is given the address, which holds
    a token that nothing is served without. ``opens``: a browser is opened there. ``method``: umap, tsne or pca; None:
    tsne below 1,000 models, else umap, or pca without UMAP's library. Raises AtlasError where the port is taken, or the
    server is not installed.
    """
    require("Browsing", "starlette", "uvicorn")
    from query.browse.server import serve

    canonical = None if base is None else atlas.base_named(base)
    token, ticket = secrets.token_urlsafe(24), secrets.token_urlsafe(24) if opens else ""
    behind = "" if canonical is None else f"#base={quote(canonical, safe='')}"
    with _bound(port) as listening:
        held = HeldAtlas(atlas, method)
        root = f"http://{HOSTS[0]}:{listening.getsockname()[1]}/"
        told(f"{root}{token}/{behind}")
        try:
            if opens:
                webbrowser.open(root + ticket)
            serve(held, listening, token, ticket, behind)
        finally:
            held.stop()


def _bound(port: int) -> socket.socket:
    """A listening socket of this machine alone."""
    try:
        return socket.create_server((HOSTS[0], port), backlog=_WAITING)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        why = "is in use" if error.errno == errno.EADDRINUSE else "is not for everybody"
        raise AtlasError(f"Port {port} {why}.", "Leave `port` out, and a free one is found.") from error
