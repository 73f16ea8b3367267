"""Addresses to listen on, and who may ask there; the source that a connection counts for. Keeps no state."""

from __future__ import annotations

import socket
from enum import StrEnum
from ipaddress import IPv6Address, ip_address
from pathlib import Path

BACKLOG = 128  # a connection for which there is no room in it comes a second late (SYN again)

Address = tuple[str, int] | Path


class Authentication(StrEnum):
    """What asking for pages from another machine or Pod takes."""

    TOKEN = "token"  # noqa: S105 (TLS, and a bearer token that the API server vouches for)
    NONE = "none"


def is_loopback(host: str) -> bool:
    """Tell whether an address to listen on is reached from this machine only."""
    return host == "localhost" or ip_address(host).is_loopback


def client_source(peer: object) -> str:
    """Return what a connection counts for: an IPv4 address, the /64 of an IPv6 one, "local" for a Unix socket."""
    if not isinstance(peer, tuple):
        return "local"
    address = ip_address(str(peer[0]).partition("%")[0])
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or IPv6Address(int(address) >> 64 << 64))
    return str(address)


def bound(address: Address) -> socket.socket:
    """Return a listening socket. A path becomes a Unix socket of the owner's alone.

    Raises OSError, which names the address.
    """
    if isinstance(address, Path):
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        listening = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if isinstance(address, Path):
            address.unlink(missing_ok=True)
            listening.bind(str(address))
            address.chmod(0o600)  # nobody can connect before `listen`
        else:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        where = address if isinstance(address, Path) else shown(*address)
        raise OSError(error.errno, f"cannot listen on {where}: {error.strerror}") from error
    return listening


def shown(host: str, port: int) -> str:
    """Return host and port for people, an IPv6 address in brackets (RFC 3986 section 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
