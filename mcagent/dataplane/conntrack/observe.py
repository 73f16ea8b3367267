"""Reads the TCP connections that the kernel of this Node tracks (nfnetlink). Changes nothing.

Sources: linux/netfilter/nfnetlink.h, nfnetlink_conntrack.h, nf_conntrack_tcp.h.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from mcagent.dataplane.netlink.connection import NETLINK_NETFILTER, NetlinkSocket
from mcagent.dataplane.netlink.messages import AF_INET, attributes

_GET = 1 << 8 | 1  # subsystem CTNETLINK, message CT_GET
_NFGENMSG = struct.Struct("!BBH")  # family, version, resource
_TUPLE_REPLY, _PROTOINFO, _ZONE = 2, 4, 18
_IP, _PROTO = 1, 2  # of a tuple
_SOURCE, _DESTINATION = 1, 2  # of IP
_NUMBER, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3  # of PROTO
_INFO_TCP, _TCP_STATE = 1, 1
_TCP = b"\x06"
_OPEN = range(3, 7)  # ESTABLISHED, FIN_WAIT, CLOSE_WAIT, LAST_ACK


@dataclass(frozen=True, slots=True, order=True)
class Connection:
    """A TCP connection as it is on the wire behind this Node, in numbers; the client or the server is here."""

    client: int
    client_port: int
    server: int
    server_port: int


def open_connections(zones: Collection[int]) -> list[Connection]:
    """Return the IPv4 TCP connections of these zones on which something may still be sent.

    As they are behind this Node: a Service that this Node translates is its endpoint. Raises BackendError.
    """
    netlink = NetlinkSocket(NETLINK_NETFILTER)
    try:
        answers = netlink.dump(_GET, _NFGENMSG.pack(AF_INET, 0, 0))
    finally:
        netlink.close()
    wanted = {zone.to_bytes(2) for zone in zones}
    entries = (attributes(answer, _NFGENMSG.size) for answer in answers)
    found = (_connection(entry) for entry in entries if entry.get(_ZONE, b"\0\0") in wanted)
    return [one for one in found if one is not None]


def _connection(entry: Mapping[int, bytes]) -> Connection | None:
    # The answer's direction: where it comes from is the server after any translation here.
    reply = attributes(entry.get(_TUPLE_REPLY, b""))
    addresses, ports = attributes(reply.get(_IP, b"")), attributes(reply.get(_PROTO, b""))
    state = attributes(attributes(entry.get(_PROTOINFO, b"")).get(_INFO_TCP, b"")).get(_TCP_STATE, b"\0")
    if ports.get(_NUMBER) != _TCP or state[0] not in _OPEN or not {_SOURCE, _DESTINATION} <= addresses.keys():
        return None
    values = (addresses[_DESTINATION], ports[_DESTINATION_PORT], addresses[_SOURCE], ports[_SOURCE_PORT])
    return Connection(*map(int.from_bytes, values))
