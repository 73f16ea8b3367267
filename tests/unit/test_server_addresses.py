"""At which addresses an API server is reached."""

from __future__ import annotations

import socket

from mcagent.kube.addresses import KEPT, ServerAddresses
from tests.worlds.core_inputs import addresses


class Connected:
    """A socket that says where it went."""

    def __init__(self, *peer: object) -> None:
        self.peer = peer

    def getpeername(self) -> tuple[object, ...]:
        """Return the peer."""
        return self.peer


def test_the_url_and_where_connections_went() -> None:
    """An address in the URL counts, of a name only what connections say; equal as long as nothing new is seen."""
    found = ServerAddresses()
    assert found.of("https://api.example:6443") == ()
    assert found.of("https://10.0.0.1:6443") == addresses("10.0.0.1")
    assert found.of("https://[2001:db8::1]:6443") == addresses("2001:db8::1")
    found.note(Connected("10.0.0.7", 6443))
    found.note(Connected("2001:db8::7", 6443, 0, 0))
    assert found.of("https://api.example") == addresses("10.0.0.7", "2001:db8::7")
    assert found.of("https://10.0.0.1") == addresses("10.0.0.1", "10.0.0.7", "2001:db8::7")


def test_the_latest_are_kept() -> None:
    """Behind a name that changes every time there are never more than a few; one that is used again stays."""
    found = ServerAddresses()
    for number in range(100):
        found.note(Connected("10.0.0.1", 6443))
        found.note(Connected(f"10.0.1.{number}", 6443))
    latest = found.of("https://api.example")
    assert len(latest) == KEPT
    assert latest[0] == addresses("10.0.0.1")[0]
    assert latest[-1] == addresses("10.0.1.99")[0]


def test_what_is_no_connection_is_passed_over() -> None:
    """A closed socket, none at all, a socket of another kind, or a URL that is none are no addresses."""
    addresses = ServerAddresses()
    closed = socket.socket()
    closed.close()
    own_socket, peer_socket = socket.socketpair()
    for connection in (None, closed, own_socket, Connected(), Connected(None), Connected("")):
        addresses.note(connection)
    own_socket.close()
    peer_socket.close()
    assert addresses.of("http://[") == ()
