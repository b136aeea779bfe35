"""The proxies that the environment names.

``NO_PROXY`` is read as curl, Go and most tools read it: names with their subdomains, addresses, networks
(``10.0.0.0/8``), wildcards (``*``, ``192.168.*``), each with or without a port.
"""

from __future__ import annotations

import contextlib
import fnmatch
import ipaddress
import os
from functools import lru_cache
from importlib.util import find_spec
from urllib.request import getproxies, proxy_bypass

import httpcore2
import httpx2

from indexer.errors import without_user
from indexer.network.addresses import written_address
from indexer.untrusted import printable

_PROXY_VARIABLES = tuple(
    spelled.encode()
    for name in ("http", "https", "all", "no")
    for spelled in (f"{name}_proxy", f"{name}_proxy".upper())
)


def proxy_of(url: httpx2.URL) -> str:
    """The address of the proxy that the environment names for requests to ``url``, as it is written; "" for none."""
    return _proxy_of(url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80), _environment())


@lru_cache(maxsize=64)
def _proxy_of(scheme: str, host: str, port: int, environment: tuple[bytes | None, ...]) -> str:
    """The address of the proxy for a host, "" for none. Looking it up takes longer than sending a request."""
    # As urllib does, the lower-case name first; with no proxy in the environment, the system's settings count.
    exceptions = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if proxy_bypass(host) or is_excepted(host, port, exceptions):
        return ""
    proxies = getproxies()
    return proxies.get(scheme) or proxies.get("all") or ""


def is_excepted(host: str, port: int, exceptions: str) -> bool:
    """Whether ``NO_PROXY`` (``exceptions``) names this host and port."""
    host = host.lower().strip("[]").rstrip(".")
    address = written_address(host) if host[:1].isdigit() or ":" in host else None
    mapped = getattr(address, "ipv4_mapped", None)
    for entry in exceptions.lower().replace(",", " ").split():
        name, wanted_port = _split_port(entry)
        if wanted_port and wanted_port != str(port):
            continue
        name = name.strip("[]").rstrip(".")
        if name == "*":
            return True
        if address is not None:
            with contextlib.suppress(ValueError):
                network = ipaddress.ip_network(name, strict=False)
                if any(one is not None and one in network for one in (address, mapped)):
                    return True
        bare = name.removeprefix("*").lstrip(".")
        if bare and (host == bare or host.endswith(f".{bare}")):
            return True
        if "*" in name and fnmatch.fnmatchcase(host, name):
            return True
    return False


def _split_port(entry: str) -> tuple[str, str]:
    """An entry of NO_PROXY without its port, and the port. An address of IPv6 has one only after brackets."""
    name, colon, port = entry.rpartition(":")
    is_port = bool(colon) and port.isascii() and port.isdigit() and (":" not in name or name.endswith("]"))
    return (name, port) if is_port else (entry, "")


def proxy_for(address: str) -> str:
    """The address of the proxy that requests to ``address`` take, without its password; "" for none."""
    try:
        url = httpx2.URL(address)
    except httpx2.InvalidURL:
        return ""
    return shown_proxy(proxy_of(url))


def shown_proxy(proxy: str) -> str:
    """The address of a proxy without its password, for a message."""
    try:
        return printable(without_user(proxy if not proxy or "://" in proxy else f"http://{proxy}"), 200)
    except ValueError:
        return "of the environment"


def _environment() -> tuple[bytes | None, ...]:
    return tuple(map(os.environb.get, _PROXY_VARIABLES))


class UnusableProxyError(httpx2.ProxyError):
    """The environment names a proxy that cannot be used; trying again does not help."""


class RefusedByProxyError(httpx2.ProxyError):
    """A proxy refuses a request, by a 4xx status of its own; trying again does not help."""


def usable_proxy(address: str, scheme: str) -> httpcore2.Proxy:
    """The proxy at an address of the environment, which may lack "http://". Raises UnusableProxyError."""
    variable = f"the proxy in {scheme.upper()}_PROXY or ALL_PROXY"
    try:
        through = httpx2.URL(address if "://" in address else f"http://{address}")
    except httpx2.InvalidURL as error:
        raise UnusableProxyError(f"{variable} is not an address") from error
    if through.scheme not in ("http", "https", "socks5", "socks5h") or not through.host:
        raise UnusableProxyError(f"{variable} is not an address of http, https or socks5")
    if through.scheme.startswith("socks5") and find_spec("socksio") is None:
        raise UnusableProxyError(f"{variable} speaks SOCKS, for which the package socksio is needed")
    auth = (through.username, through.password) if through.username or through.password else None
    return httpcore2.Proxy(str(through.copy_with(username=None, password=None)), auth=auth)
