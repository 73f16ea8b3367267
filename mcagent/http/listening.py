"""Opens listening sockets; classifies addresses and clients. Keeps no state."""

from __future__ import annotations

import socket
from enum import StrEnum
from ipaddress import IPv6Address, ip_address
from pathlib import Path

BACKLOG = 128  # a connection beyond it is delayed by a second (the client repeats its SYN)

Address = tuple[str, int] | Path


class Authentication(StrEnum):
    """Authentication of requests from other machines or Pods."""

    TOKEN = "token"  # noqa: S105 (TLS, and a bearer token that the API server confirms)
    NONE = "none"


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on can be reached from this machine only."""
    return host == "localhost" or ip_address(host).is_loopback


def exclude_each_other(first: tuple[str, int], second: tuple[str, int]) -> bool:
    """Return whether only one of two addresses can be listened on; port 0 is any free one."""
    hosts = {first[0], second[0]}
    everywhere = "::" in hosts or ("0.0.0.0" in hosts and not any(":" in host for host in hosts))
    return first[1] == second[1] != 0 and (len(hosts) == 1 or everywhere)


def client_source(peer: object) -> str:
    """Return the key of a client for limits: IPv4 address, /64 of an IPv6 address, "local" for a Unix socket."""
    if not isinstance(peer, tuple):
        return "local"
    address = ip_address(str(peer[0]).partition("%")[0])
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or IPv6Address(int(address) >> 64 << 64))
    return str(address)


def bound(address: Address) -> socket.socket:
    """Open a listening socket, for a path a Unix one of mode 0600. Raises OSError with the address."""
    if isinstance(address, Path):
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        listening = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if isinstance(address, Path):
            address.unlink(missing_ok=True)
            listening.bind(str(address))
            address.chmod(0o600)  # clients cannot connect before `listen`
        else:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        where = address if isinstance(address, Path) else host_port_text(*address)
        raise OSError(error.errno, f"cannot listen on {where}: {error.strerror}") from error
    return listening


def host_port_text(host: str, port: int) -> str:
    """Format host and port, an IPv6 address in brackets (RFC 3986 section 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
