"""The TCP connections that the kernel of this Node tracks (nfnetlink), and probes that make their clients send.

A connection that a lost gateway SNATed gets another address from another gateway, which the server answers with
a reset. A Node that lost its conntrack holds back what its servers send until it has seen how the client came: by
a Service, or by the endpoint's own address. In both cases a client that only receives would wait for ever.

A SYN+ACK as if from the server makes the client answer with an ACK (RFC 9293, section 3.10.7.4; RFC 5961, section
4); any other segment must have the right numbers to pass conntrack. After a loss of conntrack one is sent for each
way the client may have come. It answers the wrong ones with a reset, which repeats their type of service and is
dropped by that. IPv4 only.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from flows.fields import PORT_CONTROLLER
from flows.pipeline.registers import (
    HOST_MAC,
    MAC_PLAIN,
    MAC_REPLY,
    MAC_RESTORE,
    MAC_SERVICE,
    MAC_TRANSLATED,
    TOS_PROBE,
)
from mcagent.dataplane import packets
from mcagent.dataplane.netlink.connection import AF_INET, NETLINK_NETFILTER, NetlinkSocket, attributes
from mcagent.model.errors import BackendError
from mcagent.model.net import NetworkSet, host_network
from mcagent.model.node_state import NodeState
from mcagent.model.plan import Desired
from mcagent.supervised import Supervised

log = logging.getLogger(__name__)

# Seconds before each attempt: others may find out later than this Node that a gateway is gone.
# The kernel answers such packets of a connection every 0.5 s at most (tcp_invalid_ratelimit).
PAUSES = (0.0, 0.6, 1.4)

# linux/netfilter/nfnetlink.h, nfnetlink_conntrack.h, nf_conntrack_tcp.h
_GET = 1 << 8 | 1  # subsystem CTNETLINK, message CT_GET
_NFGENMSG = struct.Struct("!BBH")  # family, version, resource
_ZONE, _PROTOINFO, _INFO_TCP, _TCP_STATE = 18, 4, 1, 1
_TUPLE_REPLY, _IP, _PROTO = 2, 1, 2
_SOURCE, _DESTINATION, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 2, 3  # of IP, of PROTO
_OPEN = range(3, 7)  # ESTABLISHED, FIN_WAIT, CLOSE_WAIT, LAST_ACK


@dataclass(frozen=True, slots=True)
class Connection:
    """A TCP connection as it is on the wire behind this Node, in numbers; the client or the server is here."""

    client: int
    client_port: int
    server: int
    server_port: int


def open_connections(zones: Collection[int]) -> set[Connection]:
    """Return the IPv4 TCP connections of these zones on which something may still be sent.

    As they are behind this Node: a Service that this Node translates is its endpoint. Raises BackendError.
    """
    with closing(NetlinkSocket(NETLINK_NETFILTER)) as netlink:
        answers = netlink.dump(_GET, _NFGENMSG.pack(AF_INET, 0, 0))
    found = set()
    for answer in answers:
        entry = attributes(answer, _NFGENMSG.size)
        tcp = attributes(attributes(entry.get(_PROTOINFO, b"")).get(_INFO_TCP, b""))
        if int.from_bytes(entry.get(_ZONE, b"")) in zones and int.from_bytes(tcp.get(_TCP_STATE, b"")) in _OPEN:
            # The answer's direction: where it comes from is the server after any translation here.
            reply = attributes(entry[_TUPLE_REPLY])
            addresses, ports = attributes(reply[_IP]), attributes(reply[_PROTO])
            values = (addresses[_DESTINATION], ports[_DESTINATION_PORT], addresses[_SOURCE], ports[_SOURCE_PORT])
            found.add(Connection(*map(int.from_bytes, values)))
    return found


def may_be_translated(connections: Iterable[Connection], state: NodeState) -> list[Connection]:
    """Return those that go to another cluster and whose source address a gateway translates."""
    remote = NetworkSet(net for cluster in state.clusters.values() for net in cluster.cidrs)
    kept = NetworkSet(net for cluster in state.clusters.values() if not cluster.snat for net in cluster.cidrs)
    seen = NetworkSet(state.published_pods)
    return [one for one in connections if one.server in remote and not (one.server in kept and one.client in seen)]


def questions(connections: Iterable[Connection], state: NodeState) -> Iterator[bytes]:
    """Return the frames that ask clients in other clusters, or behind their gateways, of this Node's endpoints.

    They are sent as a Node sends replies to a gateway, once for every way the client may have come. The first
    frame tells the bridge that the connection is here: the answer may come by a gateway that has to ask
    (`flows.pipeline.lookup`).
    """
    clusters = state.clusters.values()
    there = NetworkSet(net for one in clusters for net in (*one.cidrs, *map(host_network, one.sources)))
    services: dict[tuple[int, int], list[int]] = {}  # IDs by endpoint
    for name, port in state.services.items():
        for address, number in (*port.endpoints, *port.old_endpoints) if port.protocol == "tcp" else ():
            services.setdefault((int(address), number), []).append(state.service_ids[name])
    for one in connections:
        if one.client in there and (ids := services.get((one.server, one.server_port))):
            yield restoration(one)
            yield probe(one, to=MAC_REPLY, tos=TOS_PROBE)
            for number in ids:
                yield probe(one, to=MAC_TRANSLATED, source=MAC_SERVICE | number, tos=TOS_PROBE)


def restoration(c: Connection) -> bytes:
    """Return an Ethernet frame with a SYN from the client to the server, of which the bridge keeps the connection.

    Only for 30 seconds (CT_DPIF_TP_ATTR_TCP_SYN_SENT in OVS' lib/conntrack-tp.c), while the client is asked.
    """
    ends = packets.Ends(c.client, c.server, (c.client_port, c.server_port))
    return packets.frame(MAC_RESTORE, HOST_MAC, packets.ipv4(ends, packets.TCP, packets.tcp(ends, packets.SYN), 0))


def probe(c: Connection, *, to: int = MAC_PLAIN, source: int = HOST_MAC, tos: int = 0) -> bytes:
    """Return an Ethernet frame with a SYN+ACK from the server to the client; as a gateway would deliver it."""
    ends = packets.Ends(c.server, c.client, (c.server_port, c.client_port))
    segment = packets.tcp(ends, packets.SYN | packets.ACK)
    return packets.frame(to, source, packets.ipv4(ends, packets.TCP, segment, tos))


@dataclass
class Prober:
    """Asks in a thread for each loss, since a Node may have very many connections. Any thread may call it."""

    connections: Callable[[], Iterable[Connection]]  # of this Node
    send: Callable[[int, Sequence[bytes]], None]  # gives frames to the bridge, as if they came by that port
    _latest: dict[str, object] = field(default_factory=dict)  # by what was lost; who asked before asks no more

    def gateway_lost(self, in_port: int, desired: Desired | None) -> None:
        """Ask the connections of this Node. `in_port`: a tunnel to any gateway of this cluster."""
        if desired is not None:
            state = desired.state
            self._start("a gateway", in_port, lambda: map(probe, may_be_translated(self.connections(), state)))

    def state_lost(self, state: NodeState) -> None:
        """Ask the clients of this Node's endpoints: its conntrack is gone, and its flows are there again."""
        self._start("conntrack", PORT_CONTROLLER, lambda: questions(self.connections(), state))

    def _start(self, lost: str, in_port: int, frames: Callable[[], Iterable[bytes]]) -> None:
        self._latest[lost] = frames
        Supervised(self._ask, args=(lost, in_port, frames), name="probes").start()

    def _ask(self, lost: str, in_port: int, frames: Callable[[], Iterable[bytes]]) -> None:
        for pause in PAUSES:
            time.sleep(pause)
            if self._latest[lost] is not frames:
                return
            try:
                if found := list(frames()):
                    self.send(in_port, found)
                    log.info("%s was lost: sent %d probes to check its connections", lost, len(found))
            except BackendError as error:
                log.warning("connections may hang, since %s was lost: %s", lost, error)
