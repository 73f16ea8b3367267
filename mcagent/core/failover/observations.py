"""The input and the use of liveness: ports -> observations, and liveness -> active gateways, isolation.

Gateways that can replace each other, those of one cluster, are a liveness group. A worker is a group of its own.
Pure; must not know databases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mcagent.core.failover.liveness import Advance, Observation
from mcagent.model.dataplane.resources import PeerKind, TunnelPort
from mcagent.model.node_state import NodeState
from mcagent.model.objects import Node

OWN_CLUSTER = "gateways"  # the group of this cluster's gateways


def group_of(port: TunnelPort) -> str:
    """Return the name of a port's liveness group."""
    if port.peer_kind is PeerKind.REMOTE:
        return f"cluster/{port.peer}"
    return OWN_CLUSTER if port.peer_kind is PeerKind.GATEWAY else f"node/{port.peer}"


def gateway_name(port: TunnelPort) -> str:
    """Return the name of a gateway in `Facts.active_order`: in this cluster its Node, else its address."""
    return str(port.remote_ip) if port.peer_kind is PeerKind.REMOTE else port.peer


def observations(
    ports: Iterable[tuple[TunnelPort, Mapping[str, str]]],
    nodes: Mapping[str, Node],
    silent: frozenset[str] = frozenset(),
    antrea: frozenset[str] = frozenset(),
) -> list[Observation]:
    """Return one observation for each tunnel, from its column bfd_status (ovs-vswitchd.conf.db(5)).

    `silent`: the ports through which no packet came. `antrea`: the clusters that run Antrea.
    """
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
            antrea=port.peer_kind is PeerKind.REMOTE and port.peer in antrea,
            unready=_unready(port, nodes),
        )
        for port, status in ports
    ]


def announced(state: NodeState) -> dict[str, Sequence[str]]:
    """Return the names of the gateways of each group, in the API's order."""
    names_by_group: dict[str, Sequence[str]] = {OWN_CLUSTER: [gateway.node for gateway in state.gateways]}
    for name, cluster in state.clusters.items():
        # The names are the endpoints of tunnels, which differ from the gatewayIP behind WireGuard.
        ends = state.encryption.ends.get(name)
        addresses = cluster.gateways if ends is None else [end.address for end in ends]
        names_by_group[f"cluster/{name}"] = [str(address) for address in addresses]
    return names_by_group


def active_order(
    before: tuple[str, ...],
    announced: Mapping[str, Sequence[str]],
    ports: Iterable[TunnelPort],
    advance: Advance,
) -> tuple[str, ...]:
    """Return the active gateway of each group (active-standby without failback), sorted by group.

    `before`: the last result. `announced`: the names of each group in the API's order. An active gateway stays
    active until it is unusable and another one is usable, so a gateway that returns does not take traffic back.
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


def isolated(
    ports: Iterable[tuple[TunnelPort, Mapping[str, str]]], advance: Advance, antrea: frozenset[str]
) -> bool:
    """Tell whether this Node reaches no gateway of any remote cluster while another gateway is up.

    If it is a gateway, its cluster should then use the other one, since it could only relay packets. An isolated
    other gateway counts, too; otherwise two isolated gateways would alternate. A worker, which has no tunnels to
    remote clusters, is isolated: so it still is when it becomes a gateway, until a remote gateway has answered BFD
    (those of `antrea`, the clusters that run Antrea, need not).
    """
    has_sibling = False
    judged = advance.seen | advance.unanswered  # by BFD
    for port, status in ports:
        if port.peer_kind is PeerKind.GATEWAY:
            has_sibling = has_sibling or (port.bfd is not None and status.get("state") == "up")
        elif port.peer_kind is PeerKind.REMOTE:
            is_judged = port.bfd is None or port.name in judged or port.peer in antrea
            if is_judged and advance.peers[port.name].live:
                return False
    return has_sibling


def half_up_tunnels(ports: Iterable[tuple[TunnelPort, Mapping[str, str]]], advance: Advance) -> frozenset[str]:
    """Return the tunnels whose BFD session is half up while no port of their group is live."""
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
