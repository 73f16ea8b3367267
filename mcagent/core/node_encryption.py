"""Encryption between the Nodes of one cluster: the key and the tunnel endpoint of each Node.

Owns which Nodes are encrypted to, the conflicts between their keys and endpoints, the Nodes with which no
unencrypted tunnel packet is exchanged, and what this Node publishes. Must not know ports and flows, or how a
device is configured.

A Node publishes its key in an annotation of its Node object (`mcagent.model.parsing.node_key`) as long as it
encrypts to the other Nodes. Gateways have the same key for other clusters, in their Gateway objects. The key of a
Node says that it accepts no unencrypted tunnel packets of Nodes with a key. So a Node without one is reached
unencrypted while a cluster is changed over (`preferred`), and afterwards not at all (`required`).

Endpoints are functions of the address that a tunnel without encryption would end at (`endpoint_of`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mcagent.core.addresses.rules import ReservedRanges
from mcagent.core.addresses.underlay import ENDPOINTS, endpoint_of, preferred_address
from mcagent.core.local_cluster.nodes import CheckedNode, ends_of, precedence
from mcagent.core.local_cluster.topology import LocalCluster, LocalPeer
from mcagent.core.wireguard import ClaimedValue, own_keys, why_not
from mcagent.model.config import Config, NodeTrafficEncryption
from mcagent.model.dataplane.facts import Facts
from mcagent.model.net import Address, host_network
from mcagent.model.node_state import Publication, RemoteEnd
from mcagent.model.objects import Node
from mcagent.model.parsing.node_key import NODE_KEY_PATH
from mcagent.model.problem import Problem, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEncryption:
    """The decision on the Nodes that this Node has tunnels to.

    `ends`: by Node name; a Node without an end is not reached. `addresses`: of this Node's WireGuard device for
    these tunnels. `closed`: addresses of Nodes with which no unencrypted tunnel packet is exchanged. `claims`:
    keys and endpoints of Nodes of this cluster, which no other cluster can have.
    """

    ends: Mapping[str, RemoteEnd] = field(default_factory=dict)
    addresses: tuple[Address, ...] = ()
    closed: tuple[Address, ...] = ()
    claims: tuple[ClaimedValue, ...] = ()
    problems: tuple[Problem, ...] = ()


def node_publication(node: Node | None, facts: Facts, config: Config) -> Publication | None:
    """Return the key that this Node is to publish to the other Nodes; None without a Node object.

    A key is removed if this Node does not encrypt to the others, since they would encrypt to it.
    """
    if node is None:
        return None
    desired = own_keys(facts, config) if config.encrypts_nodes and config.enable_gateway else None
    return Publication(meta=node.meta, published=node.wireguard, desired=desired)


def node_encryption(
    local: LocalCluster, nodes: Mapping[str, CheckedNode], facts: Facts, config: Config
) -> NodeEncryption:
    """Decide which Nodes are encrypted to. `local`: without individual Pods; this Node has a role."""
    required = config.node_encryption is NodeTrafficEncryption.REQUIRED
    peers = {peer.name: nodes[peer.name] for peer in local.peers}
    reached = {peer.name: peer for peer in local.peers if peer.address is not None}
    reason_against = why_not(facts)
    if reason_against:
        clear = {} if required else {name: _clear(peer) for name, peer in reached.items()}
        result = "no packets go to other Nodes" if required else "tunnels to other Nodes are NOT ENCRYPTED"
        message = f"{reason_against}; {result} (nodeTrafficEncryption)"
        unavailable = Problem("configuration", "nodeTrafficEncryption", "EncryptionUnavailable", message)
        closed = _addresses(local, peers) if required else ()
        return NodeEncryption(ends=clear, closed=closed, problems=(unavailable,))

    own_ends = ends_of(nodes[config.node_name], local.own_gateway)
    sources = {version: preferred_address(own_ends, version) for version in (4, 6)}
    gateway_ip = (local.own_gateway_ip,) if local.own_gateway_ip is not None else ()
    own_values = [facts.wireguard_public_key, facts.wireguard_next_key]
    own_endpoints = [endpoint_of(end) for end in (*filter(None, sources.values()), *gateway_ip)]
    holders: dict[ClaimedValue, str] = dict.fromkeys([*own_values, *own_endpoints], "this Node")
    reserved = ReservedRanges(local.reserved)
    ends: dict[str, RemoteEnd] = {}
    problems: list[Problem] = []
    for node in sorted((peers[name] for name in reached), key=lambda node: precedence(node, config.node_name)):
        name = node.meta.name
        end = _end(reached[name], node, sources, config)
        problem = _without_key(node, reached[name], required) if not end.public_key else None
        if problem is None:
            problem = _contested(node, end, holders, reserved)
        if problem is not None:
            problems.append(problem)
        if problem is None or problem.severity is Severity.WARNING:
            ends[name] = end
    tunnel_ends = [peer.address for peer in reached.values() if peer.address is not None]
    own_tunnel_ends = (sources[address.version] for address in tunnel_ends)
    keys = {key for node in nodes.values() for key in _keys(node)}
    keyed = {name: node for name, node in peers.items() if required or node.wireguard is not None}
    return NodeEncryption(
        ends={name: ends[name] for name in sorted(ends)},
        addresses=tuple(sorted({endpoint_of(end) for end in own_tunnel_ends if end is not None}, key=int)),
        closed=_addresses(local, keyed),
        claims=(*sorted(set(map(endpoint_of, tunnel_ends)), key=int), *sorted(keys)),
        problems=tuple(problems),
    )


def _clear(peer: LocalPeer) -> RemoteEnd:
    assert peer.address is not None
    return RemoteEnd(gateway=peer.address, address=peer.address)


def _end(peer: LocalPeer, node: CheckedNode, sources: Mapping[int, Address | None], config: Config) -> RemoteEnd:
    """Return the end of the tunnel to a Node. `sources`: this Node's own address by IP version."""
    assert peer.address is not None
    source = sources[peer.address.version]
    if node.wireguard is None or source is None:
        return _clear(peer)
    return RemoteEnd(
        gateway=peer.address,
        address=endpoint_of(peer.address),
        public_key=node.wireguard.public_key,
        next_public_key=node.wireguard.next_public_key,
        port=node.wireguard.port or config.wireguard_port,
        source=endpoint_of(source),
    )


def _keys(node: CheckedNode) -> tuple[str, ...]:
    if node.wireguard is None:
        return ()
    return tuple(filter(None, (node.wireguard.public_key, node.wireguard.next_public_key)))


def _without_key(node: CheckedNode, peer: LocalPeer, required: bool) -> Problem:
    """Return the problem of a Node without a key: a warning if it is reached unencrypted."""
    name = node.meta.name
    if required:
        message = (
            f'no tunnel to Node "{name}": it has published no WireGuard key (nodeTrafficEncryption: required)'
        )
        return node.meta.problem(NODE_KEY_PATH, "NotEncrypted", message)
    message = (
        f'the tunnel to Node "{name}" ({peer.address}) is NOT ENCRYPTED: it has published no WireGuard key '
        "(nodeTrafficEncryption: preferred)"
    )
    return node.meta.problem(NODE_KEY_PATH, "NotEncrypted", message, Severity.WARNING)


def _contested(
    node: CheckedNode, end: RemoteEnd, holders: dict[ClaimedValue, str], reserved: ReservedRanges
) -> Problem | None:
    """Return the problem of a Node whose key or endpoint is another's; otherwise add them to `holders`."""
    name, keys = node.meta.name, _keys(node)
    for key in keys:
        if key in holders:
            message = f'no tunnel to Node "{name}": its WireGuard key is that of {holders[key]}'
            return node.meta.problem(NODE_KEY_PATH, "DuplicateKey", message)
    reserving = reserved.overlapping(host_network(end.address)) if end.address in ENDPOINTS else None
    holder = holders.get(end.address) or (f"{reserving[1]} ({reserving[0]})" if reserving is not None else "")
    if holder:
        message = f'no tunnel to Node "{name}": its tunnel endpoint {end.address} is that of {holder}'
        return node.meta.problem(NODE_KEY_PATH, "DuplicateAddress", message)
    holders |= dict.fromkeys((*keys, end.address), f'Node "{name}"')
    return None


def _addresses(local: LocalCluster, nodes: Mapping[str, CheckedNode]) -> tuple[Address, ...]:
    """Return all addresses of these Nodes and of their gateways at which tunnels can end, sorted."""
    gateways = (gateway for gateway in local.gateways if gateway.node in nodes)
    addresses = {address for node in nodes.values() for address in node.ends}
    addresses.update(address for gateway in gateways for address in (gateway.internal_ip, gateway.gateway_ip))
    return tuple(sorted(addresses, key=lambda address: (address.version, int(address))))
