"""What agents' pages /status tell of a path: whose an address is, where a tunnel ends, which ones are lost."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Any

import pytest

from mcagent.api.status import (
    ClusterStatus,
    GatewayGroup,
    GatewayStatus,
    LocalGatewayStatus,
    Status,
    Summary,
    TunnelStatus,
)
from mcagent.trace.topology import (
    address_of_peer,
    alternatives,
    cluster_of,
    is_remote,
    lost_tunnels,
    next_node,
    port_to,
    virtual_address,
)

WEST = ClusterStatus(cidrs=("10.97.0.0/16", "10.20.0.0/16"), gateways=("203.0.113.1",))
NORTH = ClusterStatus(cidrs=("10.98.0.0/16",), gateways=("203.0.113.9",))


def local(node: str, address: str, source: str = "") -> LocalGatewayStatus:
    """Return a gateway of a Node's own cluster."""
    return LocalGatewayStatus(node=node, gateway_ip=address, source=source or address)


def tunnel(name: str, peer: str, ip: str = "", kind: str = "remote", ofport: int = 0) -> TunnelStatus:
    """Return a tunnel to another cluster, or to a Node."""
    return TunnelStatus(name=name, peer=peer, remote_ip=ip, peer_kind=kind, ofport=ofport)


def status(cluster: str = "east", **values: Any) -> Status:
    """Return /status of a Node; `gateways`: by cluster, `local`: of its own."""
    groups = tuple(GatewayGroup(cluster=of, gateways=tuple(g)) for of, g in values.pop("gateways", {}).items())
    summary = Summary(gateways=tuple(values.pop("local", ())), **values.pop("summary", {}))
    return Status(cluster_id=cluster, summary=summary, gateways=groups, **values)


def view(name: str, tunnel_name: str, *, live: bool = True, address: str = "", why: str = "") -> GatewayStatus:
    """Return a gateway as a Node sees it."""
    return GatewayStatus(name=name, tunnel=tunnel_name, live=live, address=address, why=why)


@pytest.mark.parametrize(
    ("address", "cluster", "remote"),
    [
        ("10.97.255.255", "west", True),
        ("10.20.0.0", "west", True),
        ("10.98.0.1", "north", True),
        ("203.0.113.9", "", True),
        ("203.0.113.2", "", False),
        ("10.99.0.0", "", False),
    ],
)
def test_an_address_is_of_the_cluster_that_has_its_network(address: str, cluster: str, remote: bool) -> None:
    """The address of a gateway is routed to its cluster, too, and is in none of its networks."""
    own_status = status(summary={"clusters": {"west": WEST, "north": NORTH}})
    assert cluster_of(own_status, IPv4Address(address)) == cluster
    assert is_remote(own_status, IPv4Address(address)) is remote


def test_other_clusters_know_a_pod_by_its_virtual_address() -> None:
    """An address outside of the translated Pod CIDRs is the same everywhere."""
    own_status = status(summary={"virtual_pod_cidrs": {"10.10.0.0/16": "100.72.0.0/16"}})
    assert virtual_address(own_status, "10.10.3.5") == "100.72.3.5"
    assert virtual_address(own_status, "10.11.3.5") == "10.11.3.5"


def test_the_alternatives_to_a_gateway_are_those_of_its_cluster() -> None:
    """Not the Node itself, which has no tunnel."""
    west = [view("a", "mc-1"), view("b", "mc-2"), view("self", "")]
    own_status = status(gateways={"north": [view("c", "mc-3")], "west": west})
    assert alternatives(own_status, tunnel("mc-2", "west")) == tuple(west[:2])
    assert alternatives(own_status, tunnel("mc-9", "west")) == ()
    assert alternatives(own_status, None) == ()


def test_a_tunnel_within_the_cluster_ends_at_the_node_it_names() -> None:
    """If that Node's /status is known."""
    statuses = {"g": status()}
    assert next_node(status(), tunnel("mc-1", "g", kind="gateway"), statuses) == "g"
    assert next_node(status(), tunnel("mc-1", "h", kind="node"), statuses) is None


def test_a_tunnel_to_another_cluster_ends_at_the_node_with_this_address() -> None:
    """By the gatewayIP or the address for translation; an address of another cluster may be the same."""
    statuses = {
        "x": status("north", local=[local("x", "203.0.113.1")]),
        "worker": status("west", local=[local("r", "203.0.113.1", "203.0.113.2")]),
        "r": status("west", local=[local("s", "203.0.113.8"), local("r", "203.0.113.1", "203.0.113.2")]),
    }
    for address in ("203.0.113.1", "203.0.113.2"):
        assert next_node(status(), tunnel("mc-1", "west", address), statuses) == "r"
    assert next_node(status(), tunnel("mc-1", "west", "203.0.113.8"), statuses) is None


def test_the_address_of_an_encrypted_tunnels_peer_is_its_gateways() -> None:
    """/status has it with the gateway; without it the tunnel's end is the address."""
    gateways = {"west": [view("r", "mc-1", address="203.0.113.1"), view("s", "mc-2")]}
    own_status = status(gateways=gateways)
    assert address_of_peer(own_status, tunnel("mc-1", "west", "240.0.0.1")) == "203.0.113.1"
    assert address_of_peer(own_status, tunnel("mc-2", "west", "203.0.113.2")) == "203.0.113.2"
    assert address_of_peer(own_status, tunnel("mc-3", "west", "203.0.113.3")) == "203.0.113.3"


def test_packets_of_a_node_come_in_by_the_tunnel_to_it() -> None:
    """To another cluster's gateway by address and cluster, to a Node of the own cluster by name."""
    sender = status("east", local=[local("g", "192.0.2.1", "192.0.2.9")])
    receiver = status(
        "west",
        tunnels=(
            tunnel("mc-1", "north", "192.0.2.1", ofport=1),
            tunnel("mc-2", "east", "192.0.2.2", ofport=2),
            tunnel("mc-3", "g", kind="node", ofport=3),
            tunnel("mc-4", "east", "192.0.2.9", ofport=4),
        ),
    )
    assert port_to(receiver, sender, "g") == 4
    assert port_to(receiver, sender, "h") is None
    same_cluster = status("west", local=sender.summary.gateways)
    assert port_to(receiver, same_cluster, "g") == 3
    assert port_to(receiver, same_cluster, "h") is None


# --- tunnels that are lost

G = status(
    local=[local("g", "192.0.2.1")],
    tunnels=(tunnel("mc-1", "west", "203.0.113.1"), tunnel("mc-2", "w", kind="node")),
)


def losses(statuses: dict[str, Status], links: dict[str, str] | None = None) -> dict[str, str]:
    """Return the lost tunnels of gateway g with the reasons."""
    return {name: gateway.why for name, gateway in lost_tunnels("g", G, statuses, links or {}).items()}


def test_a_tunnel_is_lost_if_its_own_node_says_so() -> None:
    """Also where other Nodes with a tunnel to the same gateway have another view."""
    own = status(local=G.summary.gateways, gateways={"west": [view("r", "mc-1", live=False, why="own")]})
    sibling = status(gateways={"west": [view("203.0.113.1", "mc-1", why="sibling")]})
    assert losses({"g": own, "h": sibling}) == {"mc-1": "own"}
    live = status(local=G.summary.gateways, gateways={"west": [view("r", "mc-1", why="own")]})
    dead = status(gateways={"west": [view("203.0.113.1", "mc-1", live=False, why="sibling")]})
    assert losses({"g": live, "h": dead}) == {}


def test_a_tunnel_is_lost_if_the_other_end_says_so() -> None:
    """The other end has the gateway by its address; a Node of this cluster by its name, in its own group."""
    far_end = status(
        "west",
        local=[local("r", "203.0.113.1")],
        gateways={
            "north": [view("192.0.2.1", "mc-7", live=False, why="other cluster")],
            "east": [view("192.0.2.1", "mc-8", live=False, why="far")],
        },
    )
    assert losses({"r": far_end}) == {"mc-1": "far"}
    worker = status(gateways={"": [view("h", "mc-8", why="h"), view("g", "mc-9", live=False, why="worker")]})
    assert losses({"w": worker}) == {"mc-2": "worker"}
    itself = status(gateways={"": [view("g", "", live=False, why="no tunnel")]})
    assert losses({"w": itself}) == {}


def test_without_both_ends_all_other_nodes_must_agree() -> None:
    """Of this cluster, about the same gateway; the first reason is shown."""
    dead = {"west": [view("203.0.113.1", "mc-1", live=False, why="first")]}
    also_dead = {"west": [view("r", "mc-1", live=False, why="second", address="203.0.113.1")]}
    live = {"west": [view("203.0.113.1", "mc-1")]}
    assert losses({"h": status(gateways=dead), "i": status(gateways=also_dead)}) == {"mc-1": "first"}
    assert losses({"h": status(gateways=dead), "i": status(gateways=live)}) == {}
    assert losses({"h": status("north", gateways=dead)}) == {}
    worker_view = {"": [view("w", "mc-5", live=False, why="to w")]}
    assert losses({"h": status(gateways=worker_view)}) == {"mc-2": "to w"}


def test_what_a_gateway_object_reports_counts_where_no_agent_was_asked() -> None:
    """Only for tunnels to other clusters, and without a time."""
    links = {"west": "its Gateway says: down", "w": "no cluster"}
    assert losses({}, links) == {"mc-1": "its Gateway says: down"}
    assert lost_tunnels("g", G, {}, links)["mc-1"].since == ""
    assert losses({"h": status(gateways={"west": [view("203.0.113.1", "mc-1")]})}, links) == {}
    assert losses({}, {"north": "its Gateway says: down"}) == {}
