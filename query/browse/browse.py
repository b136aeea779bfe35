"""`query browse`: serves a page over an atlas, to this machine only, until Ctrl-C."""

from __future__ import annotations

import errno
import secrets
import socket
import webbrowser
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import quote

from indexer.errors import AtlasError, require
from query.browse.session import BrowseSession

if TYPE_CHECKING:
    from query.reader import AtlasReader

_BACKLOG = 64  # connections that wait to be accepted


def browse(
    atlas: AtlasReader,
    base: str | None = None,
    *,
    port: int = 0,
    opens: bool = True,
    method: str | None = None,
    on_address: Callable[[str], None] = print,
) -> None:
    """Serve until the process is stopped, which raises KeyboardInterrupt.

    ``base``: the base to show first. ``port``: 0 for any free port. ``on_address`` is called with the address, which
    contains the token that every request needs. ``opens``: open a browser there. ``method``: umap, tsne or pca; None:
    tsne below 1,000 models, else umap, or pca if umap-learn is not installed. Raises AtlasError if the port is in use
    or needs privileges, or if the server is not installed.
    """
    require("Browsing", "starlette", "uvicorn")
    from query.browse.server import HOSTS, serve

    canonical = None if base is None else atlas.base_named(base)
    token, ticket = secrets.token_urlsafe(24), secrets.token_urlsafe(24) if opens else ""
    fragment = "" if canonical is None else f"#base={quote(canonical, safe='')}"
    try:
        listening = socket.create_server((HOSTS[0], port), backlog=_BACKLOG)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        in_use = error.errno == errno.EADDRINUSE
        what = f"Port {port} is in use." if in_use else f"Binding to port {port} requires elevated privileges."
        raise AtlasError(what, "Omit `port` to use any free port.") from error
    with listening:
        session = BrowseSession(atlas, method)
        root = f"http://{HOSTS[0]}:{listening.getsockname()[1]}/"
        on_address(f"{root}{token}/{fragment}")
        try:
            if opens:
                webbrowser.open(root + ticket)
            serve(session, listening, token, ticket, fragment)
        finally:
            session.stop()
