"""Makes clients send where only a packet of theirs helps: a gateway is lost, or all conntrack of this Node.

A connection that the lost gateway SNATed gets another address from another gateway, which the server answers with
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
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from flows.fields import PORT_CONTROLLER
from flows.pipeline.registers import HOST_MAC, MAC_PLAIN, MAC_REPLY, MAC_SERVICE, MAC_TRANSLATED, TOS_PROBE
from mcagent.core.addresses.underlay import source_of
from mcagent.dataplane.conntrack.observe import Connection
from mcagent.model.errors import BackendError
from mcagent.model.net import NetworkSet, host_network, internet_checksum
from mcagent.model.node_state import NodeState
from mcagent.model.plan import Desired
from mcagent.supervised import Supervised

log = logging.getLogger(__name__)

# Seconds after the loss. More than once, because others may find out later than this Node that a gateway is gone.
# The kernel answers such packets of a connection every 0.5 s at most (tcp_invalid_ratelimit).
ATTEMPTS = (0.0, 0.6, 2.0)

_IPV4 = struct.Struct("!BBHHHBBHII")  # RFC 791, section 3.1
_TCP = struct.Struct("!HHIIBBHHH")  # RFC 9293, section 3.1
_ETHERTYPE_IPV4, _TCP_NUMBER = b"\x08\x00", 6
_DONT_FRAGMENT, _TTL, _WINDOW, _SYN_ACK = 0x4000, 64, 1024, 0x12

Services = Mapping[tuple[int, int], Sequence[int]]  # by address and port of an endpoint: IDs of its Services


def may_be_translated(connections: Iterable[Connection], state: NodeState) -> list[Connection]:
    """Return those that go to another cluster and whose source address a gateway translates, in order."""
    remote = state.clusters.values()
    kept = NetworkSet(net for cluster in remote if not cluster.snat for net in cluster.cidrs)
    translated = NetworkSet(net for cluster in remote if cluster.snat for net in cluster.cidrs)
    seen = NetworkSet(state.published_pods)
    return sorted(
        {one for one in connections if one.server in translated or (one.server in kept and one.client not in seen)}
    )


def served(connections: Iterable[Connection], state: NodeState, services: Services) -> list[Connection]:
    """Return those that a client in another cluster, or behind its gateway, has with an endpoint, in order."""
    remote = state.clusters.values()
    cidrs = (net for cluster in remote for net in cluster.cidrs)
    there = NetworkSet((*cidrs, *(host_network(source_of(a)) for cluster in remote for a in cluster.gateways)))
    return sorted(
        {one for one in connections if (one.server, one.server_port) in services and one.client in there}
    )


def services_of(state: NodeState) -> Services:
    """Return the IDs of the exported Services that a TCP endpoint is of."""
    found: dict[tuple[int, int], list[int]] = {}
    for name, port in state.services.items():
        for address, number in port.endpoints if port.protocol == "tcp" else ():
            found.setdefault((int(address), number), []).append(state.service_ids[name])
    return found


def questions(connection: Connection, services: Services) -> list[bytes]:
    """Return the frames that ask the client of a lost connection, as a Node sends replies to a gateway."""
    ids = services[connection.server, connection.server_port]
    ways = [(MAC_REPLY, HOST_MAC), *((MAC_TRANSLATED, MAC_SERVICE | number) for number in ids)]
    return [probe(connection, to=to, source=source, tos=TOS_PROBE) for to, source in ways]


def probe(connection: Connection, *, to: int = MAC_PLAIN, source: int = HOST_MAC, tos: int = 0) -> bytes:
    """Return an Ethernet frame with a SYN+ACK from the server to the client; as a gateway would deliver it."""
    c = connection
    tcp = _TCP.pack(c.server_port, c.client_port, 0, 0, _TCP.size // 4 << 4, _SYN_ACK, _WINDOW, 0, 0)
    check = internet_checksum(struct.pack("!IIHH", c.server, c.client, _TCP_NUMBER, len(tcp)) + tcp)
    tcp = tcp[:16] + check.to_bytes(2) + tcp[18:]
    size = _IPV4.size + len(tcp)
    ip = _IPV4.pack(0x45, tos, size, 0, _DONT_FRAGMENT, _TTL, _TCP_NUMBER, 0, c.server, c.client)
    ip = ip[:10] + internet_checksum(ip).to_bytes(2) + ip[12:]
    return to.to_bytes(6) + source.to_bytes(6) + _ETHERTYPE_IPV4 + ip + tcp


class Prober:
    """Asks in a thread for each loss, since a Node may have very many connections. Any thread may call it."""

    def __init__(
        self,
        *,
        connections: Callable[[], Iterable[Connection]],  # of this Node
        send: Callable[[int, Sequence[bytes]], None],  # gives frames to the bridge, as if they came by that port
        attempts: Sequence[float] = ATTEMPTS,
    ) -> None:
        self._connections, self._send, self._attempts = connections, send, attempts
        self._latest: dict[str, object] = {}  # by what was lost: who asks; an earlier one asks no more
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Ask no more."""
        self._stopped.set()

    def gateway_lost(self, in_port: int, desired: Desired | None) -> None:
        """Ask the connections of this Node. `in_port`: a tunnel to any gateway of this cluster."""
        if desired is not None:
            state = desired.state
            self._start("a gateway", in_port, lambda: map(probe, may_be_translated(self._connections(), state)))

    def state_lost(self, state: NodeState) -> None:
        """Ask the clients of this Node's endpoints: its conntrack is gone, and its flows are there again."""
        services = services_of(state)

        def frames() -> Iterable[bytes]:
            return (
                frame for one in served(self._connections(), state, services) for frame in questions(one, services)
            )

        self._start("conntrack", PORT_CONTROLLER, frames)

    def _start(self, lost: str, in_port: int, frames: Callable[[], Iterable[bytes]]) -> None:
        self._latest[lost] = frames
        Supervised(self._ask, args=(lost, in_port, frames, time.monotonic()), name="probes").start()

    def _ask(self, lost: str, in_port: int, frames: Callable[[], Iterable[bytes]], began: float) -> None:
        for after in self._attempts:
            if self._stopped.wait(began + after - time.monotonic()) or self._latest[lost] is not frames:
                return
            try:
                if found := list(frames()):
                    self._send(in_port, found)
                    log.info("%s was lost: %d probes ask connections whether they go on", lost, len(found))
            except BackendError as error:
                log.warning("connections may hang, since %s was lost: %s", lost, error)
