"""The gateways that a Node has tunnels to, as liveness sees them: ports -> observations, and which one is active.

Pure; knows no database. A group of liveness is a set of gateways that can stand in for each other: those of one
cluster. A Node that is no gateway stands for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mcagent.core.failover.liveness import Advance, Observation
from mcagent.model.node_state import NodeState
from mcagent.model.objects import Node
from mcagent.model.resources import PeerKind, TunnelPort

OWN_CLUSTER = "gateways"  # the group of this cluster's gateways


def group_of(port: TunnelPort) -> str:
    """Return the name of the group that a port belongs to."""
    if port.peer_kind is PeerKind.REMOTE:
        return f"cluster/{port.peer}"
    return OWN_CLUSTER if port.peer_kind is PeerKind.GATEWAY else f"node/{port.peer}"


def gateway_name(port: TunnelPort) -> str:
    """Return how `Facts.active_order` names the gateway: its Node in this cluster, else its address."""
    return str(port.remote_ip) if port.peer_kind is PeerKind.REMOTE else port.peer


def observations(
    ports: Iterable[tuple[TunnelPort, Mapping[str, str]]],
    nodes: Mapping[str, Node],
    silent: frozenset[str] = frozenset(),
) -> list[Observation]:
    """Return one observation for each tunnel, from its column bfd_status (ovs-vswitchd.conf.db(5))."""
    return [
        Observation(
            port=port.name,
            group=group_of(port),
            bfd=port.bfd is not None,
            state=status.get("state", ""),
            forwarding=status.get("forwarding") == "true",
            remote_diagnostic=status.get("remote_diagnostic", ""),
            flap_count=_number(status.get("flap_count", "")),
            seen=port.bfd_seen,
            silent=port.name in silent,
            unready=_unready(port, nodes),
        )
        for port, status in ports
    ]


def announced(state: NodeState) -> dict[str, Sequence[str]]:
    """Return the names of each group's gateways in the API's order."""
    found: dict[str, Sequence[str]] = {OWN_CLUSTER: [gateway.node for gateway in state.gateways]}
    for name, cluster in state.clusters.items():
        # As tunnels have them: behind WireGuard they end elsewhere than at the gatewayIP.
        ends = state.encryption.ends.get(name)
        addresses = cluster.gateways if ends is None else [end.address for end in ends]
        found[f"cluster/{name}"] = [str(address) for address in addresses]
    return found


def active_order(
    before: tuple[str, ...],
    announced: Mapping[str, Sequence[str]],
    ports: Iterable[TunnelPort],
    advance: Advance,
) -> tuple[str, ...]:
    """Return the order in which gateways are tried (active-standby without failback).

    `announced` are the names of each group in the API's order. One name of each group is returned: the one that is
    active. It stays so until it cannot be used and another one can; so one that returns takes nothing back.
    """
    usable: dict[str, set[str]] = {}
    for port in ports:
        if advance.peers[port.name].live and port.name not in advance.damped:
            usable.setdefault(group_of(port), set()).add(gateway_name(port))
    order: list[str] = []
    for group, names in sorted(announced.items()):
        tried = [*(name for name in before if name in names), *names]
        fit = usable.get(group, set())
        active = next((name for name in tried if name in fit), tried[0] if tried else None)
        if active is not None:
            order.append(active)
    return tuple(order)


def isolated(ports: Iterable[tuple[TunnelPort, Mapping[str, str]]], advance: Advance) -> bool:
    """Tell whether this gateway reaches no gateway of any other cluster while another gateway is there.

    Its own cluster is better off without it then: it could only pass packets on, and to one that may be no better.
    Another one that says so itself counts, or two would call each other in turns.
    """
    siblings, remotes = False, []
    for port, status in ports:
        if port.peer_kind is PeerKind.GATEWAY:
            siblings = siblings or (port.bfd is not None and status.get("state") == "up")
        elif port.peer_kind is PeerKind.REMOTE:
            remotes.append(advance.peers[port.name].live)
    return siblings and bool(remotes) and not any(remotes)


def beginning(ports: Iterable[tuple[TunnelPort, Mapping[str, str]]], advance: Advance) -> frozenset[str]:
    """Return the tunnels whose BFD session is half up while nothing else of their group is live."""
    live = {peer.group for peer in advance.peers.values() if peer.live}
    return frozenset(
        port.name for port, status in ports if status.get("state") == "init" and group_of(port) not in live
    )


def _unready(port: TunnelPort, nodes: Mapping[str, Node]) -> str:
    if port.peer_kind is not PeerKind.GATEWAY:
        return ""
    node = nodes.get(port.peer)
    if node is None:
        return ""
    if not node.ready:
        return f"Node {port.peer} is not Ready"
    return f"Node {port.peer} is cordoned" if node.unschedulable else ""


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
