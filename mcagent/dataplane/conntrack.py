"""The TCP connections that the kernel of this Node tracks (nfnetlink), and probes that make their clients send.

After a gateway is lost, another gateway translates the source of its connections to another address, and the
server answers with a reset. A Node that lost its conntrack state drops packets of its servers until it knows
whether the client connected to a Service or to the endpoint's own address. In both cases a client that only
receives would wait forever.

The agent therefore sends a SYN+ACK in the server's name, which the client answers with an ACK (RFC 9293, section
3.10.7.4; RFC 5961, section 4); any other segment needs valid sequence numbers to pass conntrack. After a loss of
conntrack it sends one for each address that the client may have connected to. The client resets the wrong ones;
such a reset repeats the probe's type of service, by which the pipeline drops it. IPv4 only.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, ip_address
from pathlib import Path

from flows.fields import IP_SCTP, IP_UDP, PORT_CONTROLLER
from flows.pipeline.prefixes import address_in_bridge
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
from mcagent.dataplane.netlink.connection import (
    AF_INET,
    NETLINK_NETFILTER,
    NetlinkRequest,
    NetlinkSocket,
    attribute,
    attributes,
)
from mcagent.model.errors import BackendError
from mcagent.model.net import Address, Network, NetworkSet, host_network
from mcagent.model.node_state import ImportedPort, NodeState
from mcagent.model.plan import Desired
from mcagent.supervised import Supervised

log = logging.getLogger(__name__)

# Seconds before each attempt: other Nodes may detect the loss of a gateway later than this one.
# The kernel answers such packets of a connection at most every 0.5 s (tcp_invalid_ratelimit).
PAUSES = (0.0, 0.6, 1.4)

# linux/netfilter/nfnetlink.h, nfnetlink_conntrack.h, nf_conntrack_tcp.h
_GET, _DELETE = 1 << 8 | 1, 1 << 8 | 2  # subsystem CTNETLINK, messages CT_GET and CT_DELETE
_NFGENMSG = struct.Struct("!BBH")  # family, version, resource
_ZONE, _PROTOINFO, _INFO_TCP, _TCP_STATE = 18, 4, 1, 1
_TUPLE_ORIGINAL, _TUPLE_REPLY, _IP, _PROTO = 1, 2, 1, 2
_DIRECTIONS = (_TUPLE_ORIGINAL, _TUPLE_REPLY)
_SOURCE, _DESTINATION, _PROTOCOL, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 1, 2, 3  # of IP, of PROTO
_NESTED = 1 << 15
_ENDLESS = {IP_UDP: "udp", IP_SCTP: "sctp"}  # protocols whose connections have no end that clients must notice
_COUNT = Path("/proc/sys/net/netfilter/nf_conntrack_count")
MOST_READ = 50_000  # more would exceed the memory of the agent's Pod
_OPEN = range(3, 7)  # ESTABLISHED, FIN_WAIT, CLOSE_WAIT, LAST_ACK


@dataclass(frozen=True, slots=True)
class TrackedConnection:
    """A TCP connection as on the wire behind this Node; client or server is on this Node. Addresses as numbers."""

    client: int
    client_port: int
    server: int
    server_port: int


Concerns = Callable[[TrackedConnection], bool]


def open_connections(zones: Collection[int], concerns: Concerns = lambda _: True) -> set[TrackedConnection]:
    """Return the open IPv4 TCP connections of these zones for which `concerns` is true.

    The others need no memory: a Node may track a million. Addresses are those after translation on this Node: of a
    Service, the endpoint's. Raises BackendError.
    """
    connections = set()

    def select(answer: bytes) -> bool:
        connection = _open_connection(attributes(answer, _NFGENMSG.size), zones)
        if connection is not None and concerns(connection):
            connections.add(connection)
        return False

    with closing(NetlinkSocket(NETLINK_NETFILTER)) as netlink:
        netlink.dump(_GET, _NFGENMSG.pack(AF_INET, 0, 0), select)
    return connections


def _open_connection(entry: dict[int, bytes], zones: Collection[int]) -> TrackedConnection | None:
    """Return the TCP connection of an entry; None if it is not open, or of another zone or protocol."""
    tcp = attributes(attributes(entry.get(_PROTOINFO, b"")).get(_INFO_TCP, b""))
    if int.from_bytes(entry.get(_ZONE, b"")) not in zones or int.from_bytes(tcp.get(_TCP_STATE, b"")) not in _OPEN:
        return None
    # The source of the reply direction is the server after translation on this Node.
    reply = attributes(entry[_TUPLE_REPLY])
    addresses, ports = attributes(reply[_IP]), attributes(reply[_PROTO])
    values = (addresses[_DESTINATION], ports[_DESTINATION_PORT], addresses[_SOURCE], ports[_SOURCE_PORT])
    return TrackedConnection(*map(int.from_bytes, values))


def _entries() -> Iterator[dict[int, bytes]]:
    """Yield the attributes of all IPv4 connections. Raises BackendError."""
    with closing(NetlinkSocket(NETLINK_NETFILTER)) as netlink:
        answers = netlink.dump(_GET, _NFGENMSG.pack(AF_INET, 0, 0))
    return (attributes(answer, _NFGENMSG.size) for answer in answers)


def _entries_of_bounded_table() -> Iterator[dict[int, bytes]]:
    """Yield the same. Raises BackendError also if there are more than MOST_READ."""
    try:
        count = int(_COUNT.read_text())
    except (OSError, ValueError):
        count = 0
    if count > MOST_READ:
        raise BackendError("conntrack", "list", "connections", f"{count}: more than {MOST_READ} are not read")
    return _entries()


Translated = tuple[Address, Address, Address]  # client, server, translated source


def connections_to(
    remote: Iterable[Network], clients: Iterable[Network], own: Collection[Address] = ()
) -> tuple[int, tuple[Translated, ...]]:
    """Return the number of connections from clients to other clusters, and the first 100 with a translated source.

    Not those to NodePorts (at one of the Node's `own` addresses): kube-proxy has to translate their sources. Only
    of the kernel's default zone (0): the bridge translates in zones of its own. Raises BackendError, also if there
    are more than MOST_READ connections.
    """
    servers, sources = NetworkSet(remote), NetworkSet(clients)
    node_ports = {address.packed for address in own}
    number, translated = 0, []
    for entry in _entries_of_bounded_table():
        if any(entry.get(_ZONE, b"")):
            continue
        original, reply = (attributes(attributes(entry.get(way, b"")).get(_IP, b"")) for way in _DIRECTIONS)
        client, server, replied = original.get(_SOURCE, b""), reply.get(_SOURCE, b""), reply.get(_DESTINATION, b"")
        called = original.get(_DESTINATION, b"")
        if called in node_ports or not len(client) == len(server) == len(replied) == 4:
            continue
        if int.from_bytes(client) in sources and int.from_bytes(server) in servers:
            number += 1
            if client != replied:
                translated.append((ip_address(client), ip_address(server), ip_address(replied)))
    return number, tuple(translated[:100])


def delete_translated(is_ended: Callable[[ImportedPort, tuple[Address, int]], bool]) -> int:
    """Delete the kernel's translated UDP and SCTP connections to an ended endpoint; return how many they were.

    `is_ended` gets what the client has called, and the endpoint. Walks the table once. Only of the kernel's
    default zone (0). Raises BackendError, also if there are more than MOST_READ connections.
    """
    requests = []
    for entry in _entries_of_bounded_table():
        original, reply = (attributes(entry.get(way, b"")) for way in _DIRECTIONS)
        called, answers = attributes(original.get(_IP, b"")), attributes(reply.get(_IP, b""))
        ports, reply_ports = attributes(original.get(_PROTO, b"")), attributes(reply.get(_PROTO, b""))
        protocol = _ENDLESS.get(int.from_bytes(ports.get(_PROTOCOL, b"")))
        service, endpoint = called.get(_DESTINATION, b""), answers.get(_SOURCE, b"")
        if protocol is None or any(entry.get(_ZONE, b"")) or service == endpoint or len(endpoint) != 4:
            continue
        port = (protocol, IPv4Address(service), int.from_bytes(ports[_DESTINATION_PORT]))
        if is_ended(port, (IPv4Address(endpoint), int.from_bytes(reply_ports[_SOURCE_PORT]))):
            payload = _NFGENMSG.pack(AF_INET, 0, 0) + attribute(_NESTED | _TUPLE_ORIGINAL, entry[_TUPLE_ORIGINAL])
            requests.append(NetlinkRequest(_DELETE, 0, payload))
    with closing(NetlinkSocket(NETLINK_NETFILTER)) as netlink:
        return netlink.request(requests).count(None) if requests else 0


def may_be_translated(connections: Iterable[TrackedConnection], state: NodeState) -> list[TrackedConnection]:
    """Return the connections to other clusters that a gateway translates. Clients have bridge addresses."""
    remote = _remote_networks(state)
    untranslated = NetworkSet(
        net for cluster in state.clusters.values() if not cluster.snat for net in cluster.cidrs
    )
    published = NetworkSet(state.published_pods)
    return [
        replace(connection, client=int(address_in_bridge(IPv4Address(connection.client), state.prefixes)))
        for connection in connections
        if connection.server in remote
        and not (connection.server in untranslated and connection.client in published)
    ]


def _remote_networks(state: NodeState) -> NetworkSet:
    return NetworkSet(network for cluster in state.clusters.values() for network in cluster.cidrs)


def _service_ids(state: NodeState) -> dict[tuple[int, int], list[int]]:
    """Return the IDs of exported TCP ports by endpoint: address and port as numbers."""
    ids: dict[tuple[int, int], list[int]] = {}
    for name, port in state.services.items():
        for address, number in (*port.endpoints, *port.old_endpoints) if port.protocol == "tcp" else ():
            ids.setdefault((int(address), number), []).append(state.service_ids[name])
    return ids


def client_probes(connections: Iterable[TrackedConnection], state: NodeState) -> Iterator[bytes]:
    """Yield the frames that probe clients, in other clusters or behind their gateways, of this Node's endpoints.

    They are sent like replies to a gateway, once for each address that the client may have connected to. The first
    frame lets the bridge track the connection: the answer may arrive by a gateway that queries this Node
    (`flows.pipeline.steps.lookup`). The frames have the addresses of the bridge, the kernel the mapped ones of
    clients and the real ones of endpoints.
    """
    clusters = state.clusters.values()
    in_bridge = {int(mapped): int(source) for cluster in clusters for source, mapped in cluster.mapped}
    remote = NetworkSet(
        net for cluster in clusters for net in (*cluster.cidrs, *map(host_network, cluster.sources))
    )
    services = _service_ids(state)
    for tracked in connections:
        connection = replace(tracked, client=in_bridge.get(tracked.client, tracked.client))
        if connection.client in remote and (ids := services.get((connection.server, connection.server_port))):
            server = address_in_bridge(IPv4Address(connection.server), state.prefixes)
            connection = replace(connection, server=int(server))
            yield restoration(connection)
            yield probe(connection, destination=MAC_REPLY, tos=TOS_PROBE)
            for number in ids:
                yield probe(connection, destination=MAC_TRANSLATED, source=MAC_SERVICE | number, tos=TOS_PROBE)


def restoration(c: TrackedConnection) -> bytes:
    """Make an Ethernet frame with a SYN from the client to the server, which adds the connection to conntrack.

    The entry lasts 30 seconds (CT_DPIF_TP_ATTR_TCP_SYN_SENT in OVS' lib/conntrack-tp.c), while the client is
    probed.
    """
    ends = packets.Ends(c.client, c.server, (c.client_port, c.server_port))
    return packets.frame(MAC_RESTORE, HOST_MAC, packets.ipv4(ends, packets.TCP, packets.tcp(ends, packets.SYN), 0))


def probe(c: TrackedConnection, *, destination: int = MAC_PLAIN, source: int = HOST_MAC, tos: int = 0) -> bytes:
    """Make an Ethernet frame with a SYN+ACK from server to client, as a gateway delivers it by default."""
    ends = packets.Ends(c.server, c.client, (c.server_port, c.client_port))
    segment = packets.tcp(ends, packets.SYN | packets.ACK)
    return packets.frame(destination, source, packets.ipv4(ends, packets.TCP, segment, tos))


Frames = Callable[[Iterable[TrackedConnection]], Iterable[bytes]]  # the probes of some connections


@dataclass
class Prober:
    """Sends probes in a thread for each loss, as a Node may have many connections. Thread-safe."""

    connections: Callable[[Concerns], Iterable[TrackedConnection]]  # of this Node, for which that is true
    send: Callable[[int, Sequence[bytes]], None]  # frames into the bridge, with that input port
    _latest: dict[str, Frames] = field(default_factory=dict)  # by what was lost; a newer loss ends earlier threads

    def gateway_lost(self, in_port: int, desired: Desired | None) -> None:
        """Probe the translated connections of this Node. `in_port`: a tunnel to any gateway of this cluster."""
        if desired is not None:
            state, remote = desired.state, _remote_networks(desired.state)
            self._start(
                "a gateway",
                in_port,
                lambda connection: connection.server in remote,
                lambda affected: map(probe, may_be_translated(affected, state)),
            )

    def state_lost(self, state: NodeState) -> None:
        """Probe the clients of this Node's endpoints: conntrack was lost, and flows exist again."""
        served = _service_ids(state).keys()
        self._start(
            "conntrack",
            PORT_CONTROLLER,
            lambda connection: (connection.server, connection.server_port) in served,
            lambda affected: client_probes(affected, state),
        )

    def _start(self, lost: str, in_port: int, concerns: Concerns, frames: Frames) -> None:
        self._latest[lost] = frames
        Supervised(self._send_probes, args=(lost, in_port, concerns, frames), name="probes").start()

    def _send_probes(self, lost: str, in_port: int, concerns: Concerns, frames: Frames) -> None:
        affected: set[TrackedConnection] | None = None
        for pause in PAUSES:
            time.sleep(pause)
            if self._latest[lost] is not frames:
                return
            try:
                current = set(self.connections(concerns))
                # Later attempts leave out connections that were opened since. They have lost nothing, and a client
                # that opens one by a port that its server still tracks would reset the probe; by that reset
                # nf_conntrack of the client's Node takes the new connection for closed.
                affected = current if affected is None else affected & current
                if batch := list(frames(affected)):
                    self.send(in_port, batch)
                    log.info("%s was lost: sent %d probes to check its connections", lost, len(batch))
            except BackendError as error:
                log.warning("connections may hang, since %s was lost: %s", lost, error)
