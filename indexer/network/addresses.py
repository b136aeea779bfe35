"""Which addresses a server of the Hub may send requests to.

The addresses of files come from the Hub's answers: redirects, signed addresses, the next page of a list. A Hub, or
somebody who can answer in its place, could name a host that only this machine reaches: a service on loopback, a router,
the metadata service of a cloud. So only the endpoint that the user named may have any address. Every other host must
have a public one, or one of the same kind as the endpoint's: a Hub on loopback or in a private network may keep its
files there too. Names are resolved here once, and the connection goes to the address that was checked.
"""

from __future__ import annotations

import ipaddress
import socket

import httpx2

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

PUBLIC = "public"
_METADATA = frozenset(
    ipaddress.ip_address(address)
    # AWS and most others, its IPv6 form, Alibaba, Oracle, and Azure's, which is a public address.
    for address in ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16")
)
_LOCAL_NAMES = ("localhost", "ip6-localhost", "ip6-loopback", "localhost.localdomain")
# Networks of IPv6 that hold an address of IPv4, and the bits that follow it.
_EMBEDDING = (
    (ipaddress.IPv6Network("::/96"), 0),
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),
    (ipaddress.IPv6Network("::ffff:0:0:0/96"), 0),
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),
    (ipaddress.IPv6Network("2002::/16"), 80),
)
# Unspecified addresses connect to this machine.
_THIS_MACHINE = frozenset(map(ipaddress.ip_address, ("0.0.0.0", "::", "::1")))


class ForbiddenAddressError(httpx2.TransportError):  # not a NetworkError, which huggingface_hub tries again
    """A server named a host that it may not send requests to; trying again does not help."""


def kind_of(address: Address) -> str:
    """The kind of an address: "public", "private", "loopback", "link-local", "metadata" or "reserved"."""
    if address in _METADATA:
        return "metadata"
    if address in _THIS_MACHINE or address.is_loopback:
        return "loopback"
    if isinstance(address, ipaddress.IPv6Address):
        for network, bits_after in _EMBEDDING:
            if address in network:
                return kind_of(ipaddress.IPv4Address(int(address) >> bits_after & 0xFFFFFFFF))
        if address.teredo is not None or address.is_site_local:
            return "reserved"
    if address.is_link_local:
        return "link-local"
    if address.is_multicast or address.is_reserved:
        return "reserved"
    # Among the rest are the shared addresses of providers, and those that a VPN makes up for names.
    return PUBLIC if address.is_global else "private"


def addresses_of(host: str, port: int) -> list[str]:
    """The addresses of a host, as the system orders them. Raises OSError if it has none."""
    try:
        answers = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label that is empty or too long
        raise OSError(f"{host[:100]!r} is not a name of a host") from error
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))


def permitted(host: str, port: int, endpoint: str) -> list[str]:
    """The addresses of a host that a request may go to. ``endpoint``: the Hub that the user named.

    Raises OSError if the host has no address, ForbiddenAddressError if it has no permitted one.
    """
    addresses = addresses_of(host, port)
    endpoint_url = httpx2.URL(endpoint)
    if _bare(host) == _bare(endpoint_url.host):
        return addresses
    kinds = {address: kind_of(_parsed(address)) for address in addresses}
    kinds_allowed = {PUBLIC}
    if set(kinds.values()) != kinds_allowed:
        kinds_allowed |= _kinds_of_endpoint(endpoint_url)
    good = [address for address in addresses if kinds[address] in kinds_allowed]
    if not good:
        raise _forbidden(host, kinds[addresses[0]])
    return good


def check_written(host: str, endpoint: str) -> None:
    """Raise ForbiddenAddressError for a host that is written as a forbidden address, or is this machine by name.

    For requests through a proxy: it resolves names by itself, in its own network.
    """
    endpoint_url = httpx2.URL(endpoint)
    written = written_address(host)
    if written is None or _bare(host) == _bare(endpoint_url.host):
        return
    kind = kind_of(written)
    if kind != PUBLIC and kind not in _kinds_of_endpoint(endpoint_url):
        raise _forbidden(host, kind)


def written_address(host: str) -> Address | None:
    """The address that a host is written as, in whatever form; None for a name. "localhost" is 127.0.0.1."""
    bare = _bare(host)
    if bare in _LOCAL_NAMES or bare.endswith(".localhost"):
        return ipaddress.IPv4Address("127.0.0.1")
    try:
        return _parsed(bare)
    except ValueError:
        pass
    try:  # 127.1, 0x7f000001 and 2130706433 are forms of 127.0.0.1
        return ipaddress.IPv4Address(socket.inet_aton(bare)) if bare[:1].isdigit() else None
    except (OSError, ValueError):
        return None


def _kinds_of_endpoint(endpoint: httpx2.URL) -> set[str]:
    try:
        addresses = addresses_of(endpoint.host, endpoint.port or 443)
    except OSError:
        return {PUBLIC}
    return {kind_of(_parsed(address)) for address in addresses} - {"metadata"}


def _parsed(address: str) -> Address:
    return ipaddress.ip_address(address.partition("%")[0])  # a link-local one may name its interface


def _bare(host: str) -> str:
    return host.lower().strip("[]").rstrip(".")


def _forbidden(host: str, kind: str) -> ForbiddenAddressError:
    return ForbiddenAddressError(f"the Hub points to {host[:100]}, which is a {kind} address, and its own is not")
