"""Decides whether a request may come from a page of another site in a browser. Pure.

A browser sends requests for any page that its user has open, also to the loopback of the user's machine and to
addresses that only the user reaches. Three headers tell them apart, and a script cannot set them (Fetch Standard,
forbidden request headers): Host names the server as the page does, so a name that an attacker resolves to this
server's address (DNS rebinding) shows; Origin and Sec-Fetch-Site name the page that asks. Clients that are no
browsers send Host only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address

_SAME = ("same-origin", "none")  # Sec-Fetch-Site of the page itself, and of the address bar


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerNames:
    """Names by which clients may name a server in the header Host.

    `names` are in lower case. With `loopback`, the only addresses are those of the loopback; otherwise any address
    is accepted, because a page that a browser loads from an address is a page of that address' owner.
    """

    names: Collection[str] = ()
    loopback: bool = False
    any_name: bool = False  # for pages that contain nothing

    def accepts(self, host: str) -> bool:
        """Return whether a Host header, with or without a port, names the server."""
        name = _without_port(host.lower())
        if self.any_name or name == "localhost" or name in self.names:
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self.loopback


def host_refusal(headers: Mapping[str, str], names: ServerNames) -> str:
    """Return why a request's Host is refused; "" if it is not. A request without one is of no browser."""
    host = headers.get("host")
    if host is None or names.accepts(host):
        return ""
    return f"{HTTPStatus.MISDIRECTED_REQUEST.phrase}: Host is no name of this server\n"


def is_cross_site(headers: Mapping[str, str]) -> bool:
    """Return whether a page of another origin makes this request."""
    origin = headers.get("origin")
    if origin is not None:
        site = origin.lower().partition("://")[2]  # "" for the origin "null", of a document in a sandbox
        if not site or site != headers.get("host", "").lower():
            return True
    return headers.get("sec-fetch-site", "none") not in _SAME


def is_navigation(headers: Mapping[str, str]) -> bool:
    """Return whether a browser loads the answer as its page, because the user followed a link."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0].removeprefix("[")
    return host.partition(":")[0]
