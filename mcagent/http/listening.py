"""Listening sockets, the source that a connection counts for, and which connection gives way. Keeps no state."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Protocol, TypeVar

BACKLOG = 128  # a connection for which there is no room in it comes a second late (SYN again)

Address = tuple[str, int] | Path


class Authentication(StrEnum):
    """What asking for pages from another machine or Pod takes."""

    TOKEN = "token"  # noqa: S105 (TLS, and a bearer token that the API server vouches for)
    NONE = "none"


def is_loopback(host: str) -> bool:
    """Tell whether an address to listen on is reached from this machine only."""
    return host == "localhost" or ip_address(host).is_loopback


class Waiting(Protocol):
    """A connection that may have to give way."""

    @property
    def source(self) -> str:
        """Return who made it."""
        ...

    @property
    def since(self) -> float:
        """Return since when it is as it is (monotonic)."""
        ...


_Waits = TypeVar("_Waits", bound=Waiting)


def oldest_of_most(waiting: Iterable[_Waits]) -> _Waits | None:
    """Return the oldest of those whose source has the most."""
    found = list(waiting)
    held = Counter(one.source for one in found)
    return min(found, key=lambda one: (-held[one.source], one.since), default=None)


def source_of(peer: object) -> str:
    """Return who a peer counts as: an IPv4 address, the /64 of an IPv6 one, "local" for a Unix socket."""
    if not isinstance(peer, tuple):
        return "local"
    address = ip_address(str(peer[0]).partition("%")[0])
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or IPv6Address(int(address) >> 64 << 64))
    return str(address)


def bound(address: Address) -> socket.socket:
    """Return a listening socket. Raises OSError. A path becomes a Unix socket of the owner's alone."""
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
    except OSError:
        listening.close()
        raise
    return listening
