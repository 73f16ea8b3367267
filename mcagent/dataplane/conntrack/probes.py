"""Which connections may have lost a translation, and the packet that makes an end find out, or tell.

**The client's gateway is lost.** A connection that was SNATed ends with its gateway: another one gives it another
address, which the server does not know and answers with a reset. But only if the client sends something. One that
just waits for data would wait for ever, since what the server sends goes to the lost gateway's address. So it is
asked: a SYN+ACK as if from the server, in the middle of the connection, makes it answer with an ACK (RFC 9293,
section 3.10.7.4, and RFC 5961, section 4), which leaves by another gateway. Where the connection is well, the
server gets one ACK twice.

**The server's Node has lost its conntrack** (with the process of the userspace datapath). Whether a client came
to the server by a Service or by its own address is not known any more, so what the server sends is held back
(`pipeline.endpoints`) until the client has been heard. One that only receives would never be. So it is asked in
both ways: by the server's address, and by each Service of which that is an endpoint. It answers the one that it
knows with an ACK, which tells; the other one with a reset, which repeats the question's type of service and is
dropped by that (`TOS_PROBE`).

Why a SYN+ACK: any other segment must have the right numbers to pass the kernel's connection tracking.

Pure. IPv4, as all that is programmed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flows.pipeline.registers import HOST_MAC, MAC_PLAIN, MAC_REPLY, MAC_SERVICE, MAC_TRANSLATED, TOS_PROBE
from mcagent.core.addresses.underlay import source_of
from mcagent.model.net import Network, NetworkSet, host_network, internet_checksum
from mcagent.model.node_state import AcceptedCluster, ExportedPort

_ETHERNET = struct.Struct("!6s6sH")
_IPV4 = struct.Struct("!BBHHHBBHII")  # RFC 791, section 3.1
_TCP = struct.Struct("!HHIIBBHHH")  # RFC 9293, section 3.1
_PSEUDO = struct.Struct("!IIHH")
_ETHERTYPE_IPV4, _PROTOCOL_TCP = 0x0800, 6
_DONT_FRAGMENT, _TTL, _WINDOW = 0x4000, 64, 1024
_SYN_ACK = 0x12

Services = Mapping[tuple[int, int], Sequence[int]]  # by address and port of an endpoint: numbers of its Services


@dataclass(frozen=True, slots=True, order=True)
class Connection:
    """A TCP connection as it is on the wire behind this Node, in numbers; the client or the server is here."""

    client: int
    client_port: int
    server: int
    server_port: int


def may_be_translated(
    connections: Iterable[Connection], clusters: Iterable[AcceptedCluster], published: Sequence[Network]
) -> list[Connection]:
    """Return those that go to another cluster and whose source address a gateway translates, in order.

    `published` are this cluster's Pods that other clusters may see (`Local.published_pods`).
    """
    remote = list(clusters)
    kept = NetworkSet(net for cluster in remote if not cluster.snat for net in cluster.cidrs)
    translated = NetworkSet(net for cluster in remote if cluster.snat for net in cluster.cidrs)
    seen = NetworkSet(published)
    return sorted(
        {one for one in connections if one.server in translated or (one.server in kept and one.client not in seen)}
    )


def served(
    connections: Iterable[Connection], clusters: Iterable[AcceptedCluster], services: Services
) -> list[Connection]:
    """Return those that a client in another cluster has with an endpoint of an exported Service, in order.

    Clients that their own gateway SNATs come from its address.
    """
    remote = list(clusters)
    cidrs = (net for cluster in remote for net in cluster.cidrs)
    there = NetworkSet((*cidrs, *(host_network(source_of(a)) for cluster in remote for a in cluster.gateways)))
    return sorted(
        {one for one in connections if (one.server, one.server_port) in services and one.client in there}
    )


def services_of(ports: Mapping[str, ExportedPort], numbers: Mapping[str, int]) -> Services:
    """Return the numbers of the Services that a TCP endpoint is of. `numbers` by the name of the exported port."""
    found: dict[tuple[int, int], list[int]] = {}
    for name, port in ports.items():
        if port.protocol == "tcp":
            for address, number in port.endpoints:
                found.setdefault((int(address), number), []).append(numbers[name])
    return found


def questions(connection: Connection, services: Services) -> list[bytes]:
    """Return the frames that ask the client of a lost connection, as a Node sends replies to a gateway."""
    numbers = services[connection.server, connection.server_port]
    ways = [(MAC_REPLY, HOST_MAC), *((MAC_TRANSLATED, MAC_SERVICE | number) for number in numbers)]
    return [probe(connection, to=to, source=source, tos=TOS_PROBE) for to, source in ways]


def probe(connection: Connection, *, to: int = MAC_PLAIN, source: int = HOST_MAC, tos: int = 0) -> bytes:
    """Return an Ethernet frame with a SYN+ACK from the server to the client; as a gateway would deliver it."""
    c = connection
    tcp = _TCP.pack(c.server_port, c.client_port, 0, 0, _TCP.size // 4 << 4, _SYN_ACK, _WINDOW, 0, 0)
    check = internet_checksum(_PSEUDO.pack(c.server, c.client, _PROTOCOL_TCP, len(tcp)) + tcp)
    tcp = tcp[:16] + check.to_bytes(2) + tcp[18:]
    size = _IPV4.size + len(tcp)
    ip = _IPV4.pack(0x45, tos, size, 0, _DONT_FRAGMENT, _TTL, _PROTOCOL_TCP, 0, c.server, c.client)
    ip = ip[:10] + internet_checksum(ip).to_bytes(2) + ip[12:]
    return _ETHERNET.pack(to.to_bytes(6), source.to_bytes(6), _ETHERTYPE_IPV4) + ip + tcp
