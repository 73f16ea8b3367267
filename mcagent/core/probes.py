"""Which connections may have lost their gateway's translation, and the packet that makes an end find out.

A connection that was SNATed ends with its gateway: another one gives it another address, which the server does not
know and answers with a reset. But only if the client sends something. One that just waits for data would wait for
ever, since what the server sends goes to the lost gateway's address. So it is asked: a SYN+ACK as if from the
server, in the middle of the connection, makes it answer with an ACK (RFC 9293, section 3.10.7.4, and RFC 5961,
section 4), which leaves by another gateway. Where the connection is well, the server gets one ACK twice.

Why a SYN+ACK: any other segment must have the right numbers to pass the kernel's connection tracking.

Pure. IPv4, as all that is programmed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

from flows.mc.declaration import HOST_MAC, MAC_PLAIN
from mcagent.core.candidate import Remote
from mcagent.model.net import Network, internet_checksum

_ETHERNET = struct.Struct("!6s6sH")
_IPV4 = struct.Struct("!BBHHHBBHII")  # RFC 791, section 3.1
_TCP = struct.Struct("!HHIIBBHHH")  # RFC 9293, section 3.1
_PSEUDO = struct.Struct("!IIHH")
_ETHERTYPE_IPV4, _PROTOCOL_TCP = 0x0800, 6
_DONT_FRAGMENT, _TTL, _WINDOW = 0x4000, 64, 1024
_SYN_ACK = 0x12


@dataclass(frozen=True, slots=True, order=True)
class Connection:
    """A TCP connection as it is on the wire behind this Node, in numbers; the client is here."""

    client: int
    client_port: int
    server: int
    server_port: int


def may_be_translated(
    connections: Iterable[Connection], clusters: Iterable[Remote], published: Sequence[Network]
) -> list[Connection]:
    """Return those that go to another cluster and whose source address a gateway translates, in order.

    `published` are this cluster's Pods that other clusters may see (`Local.published_pods`).
    """
    remote = list(clusters)
    kept = _Networks(net for cluster in remote if not cluster.snat for net in cluster.cidrs)
    translated = _Networks(net for cluster in remote if cluster.snat for net in cluster.cidrs)
    seen = _Networks(published)
    return sorted(
        {one for one in connections if one.server in translated or (one.server in kept and one.client not in seen)}
    )


def probe(connection: Connection) -> bytes:
    """Return the Ethernet frame that a gateway would deliver: a SYN+ACK from the server to the client."""
    c = connection
    tcp = _TCP.pack(c.server_port, c.client_port, 0, 0, _TCP.size // 4 << 4, _SYN_ACK, _WINDOW, 0, 0)
    check = internet_checksum(_PSEUDO.pack(c.server, c.client, _PROTOCOL_TCP, len(tcp)) + tcp)
    tcp = tcp[:16] + check.to_bytes(2) + tcp[18:]
    size = _IPV4.size + len(tcp)
    ip = _IPV4.pack(0x45, 0, size, 0, _DONT_FRAGMENT, _TTL, _PROTOCOL_TCP, 0, c.server, c.client)
    ip = ip[:10] + internet_checksum(ip).to_bytes(2) + ip[12:]
    return _ETHERNET.pack(MAC_PLAIN.to_bytes(6), HOST_MAC.to_bytes(6), _ETHERTYPE_IPV4) + ip + tcp


class _Networks:
    """A set of IPv4 networks that says of many addresses quickly whether one of them has it."""

    def __init__(self, networks: Iterable[Network]) -> None:
        self._by_mask: dict[int, set[int]] = {}
        for network in networks:
            if isinstance(network, IPv4Network):
                self._by_mask.setdefault(int(network.netmask), set()).add(int(network.network_address))

    def __contains__(self, address: int) -> bool:
        return any(address & mask in found for mask, found in self._by_mask.items())
