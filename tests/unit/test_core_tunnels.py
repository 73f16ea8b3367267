"""Tunnels of a Node as values: their names, their ends on both sides, and peers that have none."""

from __future__ import annotations

from ipaddress import IPv4Address, ip_address

import pytest

from mcagent.core.ids import tunnel_port_name
from mcagent.core.local_cluster.nodes import CheckedNode
from mcagent.core.local_cluster.topology import LocalPeer
from mcagent.core.tunnels import OwnEnds, Tunnel, cluster_tunnels, names_of, node_tunnels, own_ends
from mcagent.model.config import Config
from mcagent.model.dataplane.resources import PeerKind
from mcagent.model.net import Address
from mcagent.model.node_state import AcceptedCluster, LocalGateway, RemoteEnd
from mcagent.model.objects import Kind, Meta

OWN4, OWN6, OUTER = ip_address("192.0.2.1"), ip_address("2001:db8::1"), ip_address("198.51.100.1")
PEER4, PEER6, BEHIND = ip_address("192.0.2.9"), ip_address("2001:db8::9"), ip_address("240.0.0.9")
SOURCE = ip_address("240.0.0.1")
CONFIG = Config(node_name="n1")
ENCRYPTED = RemoteEnd(gateway=PEER4, address=BEHIND, public_key="k", source=SOURCE)
CLEAR = RemoteEnd(gateway=PEER4, address=PEER4, source=SOURCE)


def tunnel(kind: PeerKind, address: Address = PEER4, end: RemoteEnd | None = None) -> Tunnel:
    """Return a tunnel."""
    return Tunnel(name="t", address=address, peer_kind=kind, peer="n2", end=end)


def node(*ends: Address) -> CheckedNode:
    """Return a Node with these addresses."""
    meta = Meta(kind=Kind.NODE, name="n1")
    return CheckedNode(
        meta=meta, ends=ends, mapped=None, addresses=ends, pod_cidrs=(), per_pod=False, standby="", ready=True
    )


def gateway(gateway_ip: Address, internal_ip: Address = OWN4) -> LocalGateway:
    """Return the gateway on the Node."""
    source = ip_address("192.0.2.1")
    return LocalGateway(
        node="n1", gateway_ip=gateway_ip, internal_ip=internal_ip, source=source, service_cidr=None
    )


def test_tunnels_to_a_node() -> None:
    """The name follows from kind of peer, peer, endpoint and encapsulation; a Node without an address has none."""
    peer = LocalPeer(name="n2", address=PEER4, gateway=False, networks=())
    name = tunnel_port_name("mcn-", "mcn-", "n2", PEER4, CONFIG.tunnel_type, CONFIG.tunnel_port)
    expected = Tunnel(name=name, address=PEER4, peer_kind=PeerKind.NODE, peer="n2")
    assert node_tunnels((peer, None), CONFIG) == (expected,)
    to_gateway = LocalPeer(name="n2", address=PEER4, gateway=True, networks=())
    (tunnel,) = node_tunnels((to_gateway, None), CONFIG)
    assert (tunnel.peer_kind, tunnel.name) == (PeerKind.GATEWAY, name)  # a worker may become a gateway
    (encrypted,) = node_tunnels((peer, ENCRYPTED), CONFIG)
    assert (encrypted.address, encrypted.end, encrypted.gateway) == (BEHIND, ENCRYPTED, PEER4)
    assert encrypted.name != name
    nowhere = LocalPeer(name="n2", address=None, gateway=False, networks=())
    assert node_tunnels((nowhere, None), CONFIG) == ()
    assert node_tunnels((nowhere, ENCRYPTED), CONFIG) == ()


def test_tunnels_to_a_cluster() -> None:
    """One to each gateway of the own IP version, or to each end of encrypted sessions."""
    cluster = AcceptedCluster(cluster_id="east", cidrs=(), gateways=(PEER6, PEER4), snat=False)
    (clear,) = cluster_tunnels((cluster, None), OWN4, CONFIG)
    name = tunnel_port_name("mcr-", "mcr-", "east", PEER4, CONFIG.tunnel_type, CONFIG.tunnel_port)
    assert clear == Tunnel(name=name, address=PEER4, peer_kind=PeerKind.REMOTE, peer="east")
    (other,) = cluster_tunnels((cluster, None), OWN6, CONFIG)
    assert other.address == PEER6
    ends = (ENCRYPTED, CLEAR)
    tunnels = cluster_tunnels((cluster, ends), OWN4, CONFIG)
    assert [(tunnel.address, tunnel.end) for tunnel in tunnels] == [(BEHIND, ENCRYPTED), (PEER4, CLEAR)]
    assert tunnels[1].name == name
    assert cluster_tunnels((cluster, ()), OWN4, CONFIG) == ()
    assert names_of({"east": tunnels, "west": ()}, {"n2": (clear,)}) == (tunnels[0].name, name, name)


@pytest.mark.parametrize(
    ("end", "encrypted", "reached"),
    [(None, False, BEHIND), (CLEAR, False, PEER4), (ENCRYPTED, True, PEER4)],
)
def test_encryption_of_a_tunnel(end: RemoteEnd | None, encrypted: bool, reached: Address) -> None:
    """A tunnel ends behind the WireGuard device if its peer has a key; messages name the peer's own address."""
    encrypted_tunnel = tunnel(PeerKind.REMOTE, BEHIND, end)
    assert (encrypted_tunnel.encrypted, encrypted_tunnel.gateway) == (encrypted, reached)


@pytest.mark.parametrize(
    ("near_tunnel", "expected"),
    [
        (tunnel(PeerKind.NODE), OWN4),
        (tunnel(PeerKind.NODE, PEER6), OWN6),
        (tunnel(PeerKind.GATEWAY), OWN4),
        (tunnel(PeerKind.REMOTE), OUTER),
        (tunnel(PeerKind.REMOTE, BEHIND, ENCRYPTED), SOURCE),
        (tunnel(PeerKind.NODE, BEHIND, ENCRYPTED), SOURCE),
        (tunnel(PeerKind.REMOTE, PEER4, CLEAR), OUTER),
    ],
)
def test_the_own_end_of_a_tunnel(near_tunnel: Tunnel, expected: Address) -> None:
    """It depends on the kind of peer, on the IP version, and on encryption."""
    ends = OwnEnds(to_nodes=(OWN4, OWN6), to_clusters=OUTER)
    assert ends.of(near_tunnel) == expected
    assert ends.addresses == (OWN4, OWN6, OUTER)
    assert OwnEnds(to_nodes=(OWN4,)).addresses == (OWN4,)
    assert OwnEnds().of(tunnel(PeerKind.NODE)) is None
    assert OwnEnds().of(tunnel(PeerKind.REMOTE)) is None


@pytest.mark.parametrize(
    ("ends", "gateway_ip", "on_devices", "to_nodes", "to_clusters"),
    [
        ((OWN4, OWN6), None, (), (OWN4, OWN6), None),
        ((OWN6, OWN4), None, (OWN4,), (OWN4,), None),
        ((OWN4, PEER4), None, (), (OWN4,), None),
        ((OWN4,), None, (PEER4,), (), None),
        ((OWN4,), OWN4, (OWN4,), (OWN4,), OWN4),
        ((OWN4,), OUTER, (), (OWN4,), OUTER),
        ((OWN4,), OUTER, (OWN4, OUTER), (OWN4,), OUTER),
        ((OWN4,), OUTER, (OWN4,), (OWN4,), OWN4),  # the outer address of a translation
        ((OWN4,), PEER6, (OWN4,), (OWN4,), None),
        ((OWN4, OWN6), PEER6, (OWN4, OWN6), (OWN4, OWN6), OWN6),
    ],
)
def test_own_ends(
    ends: tuple[Address, ...],
    gateway_ip: Address | None,
    on_devices: tuple[Address, ...],
    *,
    to_nodes: tuple[Address, ...],
    to_clusters: Address | None,
) -> None:
    """The first address of each IP version that a device has; a gatewayIP on no device is translated outside."""
    own = None if gateway_ip is None else gateway(gateway_ip)
    assert own_ends(node(*ends), own, on_devices) == OwnEnds(to_nodes=to_nodes, to_clusters=to_clusters)


def test_own_ends_of_a_gateway() -> None:
    """Its internalIP comes first; a Node that is not known has no ends to Nodes."""
    internal = IPv4Address("192.0.2.77")
    own = gateway(OUTER, internal)
    assert own_ends(node(OWN4), own, ()) == OwnEnds(to_nodes=(internal,), to_clusters=OUTER)
    assert own_ends(None, own, ()) == OwnEnds(to_clusters=OUTER)
    assert own_ends(None, None, ()) == OwnEnds()
