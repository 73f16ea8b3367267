"""What has to work between our controllers and Antrea's, whoever leads. The modules beside say who does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from devtools.waiting import wait_until
from mcagent.controller.contract import names
from mcagent.model.objects import Kind
from tests.antrea.clusters import AREA, HOME, Cluster
from tests.antrea.conftest import World

SOON = 25.0  # seconds


def soon(condition: Callable[..., object], what: str) -> None:
    """Wait for something that takes seconds on a machine with other work."""
    wait_until(condition, what, timeout=SOON, interval=0.1)


def has(cluster: Cluster, name: str, port: int, *addresses: str) -> bool:
    """Tell whether a cluster has imported a Service so."""
    return cluster.imported(name) == (port, frozenset(addresses))


def test_cluster_information_goes_both_ways(world: World) -> None:
    """Each cluster knows the other's networks and gateway."""
    for cluster, other, who in ((world.a, world.b, "west"), (world.b, world.a, "east")):
        found = cluster.get(Kind.CLUSTER_INFO_IMPORT, names.cluster_info(who), HOME)["spec"]
        assert found["serviceCIDR"] == other.service_cidr
        assert found["podCIDRs"] == [other.pod_cidr]
        (gateway,) = found["gatewayInfos"]
        assert gateway["gatewayIP"] in [f"192.168.{other.number}.{node}" for node in (1, 2)]


def test_services_go_both_ways(world: World) -> None:
    """An export, another port, no endpoint, one again, and no export any more: the other cluster follows."""
    both = [(world.a, world.b, "of-a"), (world.b, world.a, "of-b")]
    address = {}
    for here, _, name in both:
        address[name] = here.service(name, ["10.200.1.5"])
        here.export(name)
    for _, there, name in both:
        soon(partial(has, there, name, 80, address[name]), f"{name} to be imported")
    for here, _, name in both:
        here.service(name, ["10.200.1.5", "10.200.1.6"], port=81)
    for _, there, name in both:
        soon(partial(has, there, name, 81, address[name]), f"the other port of {name}")
    for here, _, name in both:
        here.service(name, [], port=81)
    for _, there, name in both:
        soon(partial(_without_endpoints, there, name), f"{name} to have no endpoints")
    for here, _, name in both:
        here.service(name, ["10.200.1.7"], port=81)
    for _, there, name in both:
        soon(partial(has, there, name, 81, address[name]), f"{name} to be back")
    for here, _, name in both:
        here.delete(Kind.SERVICE_EXPORT, name, "default")
    for _, there, name in both:
        soon(partial(_gone, there, name), f"{name} not to be imported any more")
        soon(partial(_not, world.on_leader, name), f"{name} to be gone from the leader")


def test_a_gateway_moves(world: World) -> None:
    """Another Node becomes the gateway of each cluster, and the other cluster learns its address."""
    for cluster in (world.a, world.b):
        cluster.node("node-2", f"192.168.{cluster.number}.2", gateway=True)
        cluster.node("node-1", f"192.168.{cluster.number}.1", gateway=False)
    for cluster, other, who in ((world.a, world.b, "west"), (world.b, world.a, "east")):
        moved = f"192.168.{other.number}.2"
        soon(partial(_knows, cluster, who, moved), f"{who}'s gateway to be {moved}")


def test_a_member_leaves_and_joins_again(world: World) -> None:
    """What a member exported is gone everywhere, and comes back with it."""
    ip = world.b.service("stays", ["10.201.1.5"])
    world.b.export("stays")
    soon(partial(has, world.a, "stays", 80, ip), "the Service to be imported")
    world.b.leave()
    soon(partial(_not, world.on_leader, "west-"), "all of west to be gone from the leader")
    soon(partial(_gone, world.a, "stays"), "the import to be gone")
    soon(partial(_not, world.a.gateways_of, "west"), "the gateways of west to be forgotten")
    soon(
        partial(_not, world.a.get, Kind.MEMBER_CLUSTER_ANNOUNCE, names.announce("west"), AREA), "its announcement"
    )
    world.joined("west")
    soon(partial(has, world.a, "stays", 80, ip), "the Service to be imported again")
    world.b.delete(Kind.SERVICE_EXPORT, "stays", "default")
    soon(partial(_gone, world.a, "stays"), "the import to be gone")


def _not(function: Callable[..., object], *arguments: object) -> bool:
    return not function(*arguments)


def _without_endpoints(cluster: Cluster, name: str) -> bool:
    found = cluster.imported(name)
    return found is None or not found[1]


def _gone(cluster: Cluster, name: str) -> bool:
    made = (Kind.SERVICE, names.imported(name)), (Kind.SERVICE_IMPORT, name)
    return all(cluster.get(kind, found, "default") is None for kind, found in made)


def _knows(cluster: Cluster, who: str, address: str) -> bool:
    return cluster.gateways_of(who) == [address]
