"""TCP connections as the kernel lists them."""

from __future__ import annotations

import contextlib
import socket
from ipaddress import ip_address

import pytest

from devtools.nodes import netns
from devtools.waiting import wait_until
from mcagent.dataplane.conntrack import TrackedConnection, open_connections

pytestmark = [pytest.mark.contract, pytest.mark.datapath]

SERVICE, SERVER = "10.96.0.1", "127.0.0.9"
RULES = f"""
table ip t {{
  chain out {{
    type nat hook output priority -100
    ip daddr {SERVICE} tcp dport 80 dnat to {SERVER}:8080
  }}
}}
"""


def test_open_connections_are_listed_as_they_leave_the_node(fresh_namespace: str) -> None:
    """A Service that the Node translates is its endpoint; other zones, UDP and what has ended are not listed."""
    netns.ip(fresh_namespace, "link", "set", "lo", "up")
    netns.ip(fresh_namespace, "route", "add", f"{SERVICE}/32", "dev", "lo")
    netns.execute(fresh_namespace, ["nft", "-f", "-"], stdin=RULES)

    def listed(*zones: int) -> set[TrackedConnection]:
        return netns.call(fresh_namespace, lambda: open_connections(zones))

    assert listed(0) == set()

    def listen(port: int) -> socket.socket:
        return netns.call(fresh_namespace, lambda: socket.create_server((SERVER, port)))

    def connect(address: str, port: int) -> socket.socket:
        return netns.call(fresh_namespace, lambda: socket.create_connection((address, port), timeout=5))

    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(listen(port)) for port in (8080, 8081)]
        connections = [stack.enter_context(connect(*to)) for to in ((SERVICE, 80), (SERVER, 8081))]
        ends = [stack.enter_context(listener.accept()[0]) for listener in listeners]
        datagrams = stack.enter_context(
            netns.call(fresh_namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        )
        datagrams.sendto(b"x", (SERVER, 8080))

        def as_told(place: int, port: int) -> TrackedConnection:
            address, own_port = connections[place].getsockname()
            client = int(ip_address(address))
            return TrackedConnection(
                client=client, client_port=own_port, server=int(ip_address(SERVER)), server_port=port
            )

        assert listed(0, 77) == {as_told(0, 8080), as_told(1, 8081)}
        assert listed(77) == set()
        connections[1].shutdown(socket.SHUT_WR)  # it may still receive
        assert as_told(1, 8081) in listed(0)
        ends[1].close()
        connections[1].close()
        wait_until(lambda: listed(0) == {as_told(0, 8080)}, "the end of one", timeout=5)
