"""What each object adds to a Node: resources for one more remote cluster, gateway, Node or Service, counted.

A Node has these for each of its objects, so they decide its memory, its start and what a packet's lookup costs. A
change of the pipeline that needs more changes the table below, and says there what the additional resources do.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from ipaddress import ip_address

import pytest

from flows.declare import PipelineTable
from flows.pipeline import tables
from mcagent.core.compile import Compiler
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import FlowEntry, GroupEntry, MeterEntry, TunnelPort
from mcagent.model.objects import ApiObject, ClusterInfoImport, IpProtocol, ServicePort
from tests.worlds.core_inputs import (
    HOME,
    cluster,
    config,
    endpoint,
    endpoint_slice,
    export,
    gateway,
    node,
    resources,
    service,
    snapshot,
)

NAMES = {table.number: table.name for table in vars(tables).values() if isinstance(table, PipelineTable)}


def remote(number: int, gateways: int = 1) -> ClusterInfoImport:
    """Return a cluster with a Service CIDR and two Pod CIDRs."""
    cidrs = (f"10.{kind + number}.0.0/16" for kind in (100, 120, 140))
    addresses = tuple(f"198.51.{number}.{1 + index}" for index in range(gateways))
    return cluster(f"remote-{number}", *cidrs, gateways=addresses)


def exported(number: int, endpoints: int = 1, protocol: IpProtocol = IpProtocol.TCP) -> tuple[ApiObject, ...]:
    """Return an exported Service with one port and endpoints on a worker."""
    name = f"web-{number}"
    pods = [endpoint(f"10.10.3.{10 * number + index}") for index in range(endpoints)]
    backends = endpoint_slice(f"{name}-1", name, pods, ("", 8080))
    return (
        service(name, f"10.96.0.{number}", ServicePort(name="", port=80, protocol=protocol)),
        export(name),
        replace(backends, ports=tuple(replace(port, protocol=protocol) for port in backends.ports)),
    )


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What an object adds on a gateway and on a worker, in flows, groups, meters and other resources."""

    before: tuple[ApiObject, ...] = ()
    after: tuple[ApiObject, ...]
    gateway: tuple[int, int, int, int]
    worker: tuple[int, int, int, int]
    why: str


COSTS = {
    "a remote cluster": Cost(
        before=(remote(1),),
        after=(remote(1), remote(2)),
        gateway=(23, 3, 4, 5),
        worker=(12, 0, 2, 4),
        why=(
            "its three CIDRs and gateway are looked up once for all origins of packets and for quoted addresses "
            "(table Owner), and once for routes and ended connections; meters of connections (one flow for all "
            "tables), probes, queries and fragments"
        ),
    ),
    "a second gateway of a remote cluster": Cost(
        before=(remote(1),),
        after=(remote(1, gateways=2),),
        gateway=(9, 1, 0, 2),
        worker=(3, 0, 0, 1),
        why=(
            "its tunnel has three flows of table Classify; its address is a source in its tunnel and of other "
            "origins, the destination of replies and mapped"
        ),
    ),
    "a third gateway of a remote cluster": Cost(
        before=(remote(1, gateways=2),),
        after=(remote(1, gateways=3),),
        gateway=(9, 1, 0, 2),
        worker=(3, 0, 0, 1),
        why="as the second one: the cost is linear",
    ),
    "a worker": Cost(
        before=(remote(1),),
        after=(remote(1), node("w2", "192.0.2.4", "10.10.4.0/24")),
        gateway=(11, 0, 0, 1),
        worker=(0, 0, 0, 0),
        why=(
            "its address and Pod CIDR are sources from its tunnel and from siblings; workers have no "
            "tunnels among them"
        ),
    ),
    "a gateway of the own cluster": Cost(
        before=(remote(1), node("g3", "192.0.2.4", "10.10.4.0/24")),
        after=(remote(1), node("g3", "192.0.2.4", "10.10.4.0/24"), gateway("g3", "192.0.2.4")),
        gateway=(2, 1, 0, 0),
        worker=(6, 1, 0, 1),
        why="a tunnel, and the connections that came through it return to it",
    ),
    "an exported Service": Cost(
        before=(remote(1), *exported(1)),
        after=(remote(1), *exported(1), *exported(2)),
        gateway=(9, 2, 0, 0),
        worker=(0, 0, 0, 0),
        why=(
            "new and open connections, their replies, replies of its endpoint to other gateways' connections, and "
            "queries of Nodes for an unknown connection"
        ),
    ),
    "an endpoint of an exported Service": Cost(
        before=(remote(1), *exported(1, 2)),
        after=(remote(1), *exported(1, 3)),
        gateway=(2, 0, 0, 0),
        worker=(0, 0, 0, 0),
        why="its replies are un-translated, and its Node answers queries",
    ),
    "an endpoint of an exported UDP port": Cost(
        before=(remote(1), *exported(1, 2, IpProtocol.UDP)),
        after=(remote(1), *exported(1, 3, IpProtocol.UDP)),
        gateway=(2, 0, 0, 0),
        worker=(0, 0, 0, 0),
        why="its replies are un-translated, and a flow lets its open connections through as long as it is listed",
    ),
}


def _resources(name: str, objects: tuple[ApiObject, ...]) -> Counter[str]:
    """Return the resources of a Node by type, flows by table."""
    settings = config(name, enable_pod_to_pod=True)
    source = snapshot(*HOME, *objects)
    facts = Facts(addresses=(ip_address({"g1": "192.0.2.1", "w1": "192.0.2.3"}[name]),))
    compiler = Compiler()
    ports = [r for r in resources(compiler.compile(source, facts, settings)) if isinstance(r, TunnelPort)]
    facts = Facts(addresses=facts.addresses, ofports={port.name: port.ofport for port in ports})
    return Counter(
        f"flow of table {NAMES[r.table]}" if isinstance(r, FlowEntry) else type(r).__name__
        for r in resources(compiler.compile(source, facts, settings))
    )


@pytest.mark.parametrize("role", ["gateway", "worker"])
@pytest.mark.parametrize("name", COSTS)
def test_what_an_object_adds(name: str, role: str) -> None:
    """The resources that one more object needs are those of the table, and their number is explained there."""
    cost = COSTS[name]
    node_name = {"gateway": "g1", "worker": "w1"}[role]
    added = _resources(node_name, cost.after)
    added.subtract(_resources(node_name, cost.before))
    flows = sum(count for kind, count in added.items() if kind.startswith("flow"))
    groups, meters = added[GroupEntry.__name__], added[MeterEntry.__name__]
    others = sum(added.values()) - flows - groups - meters
    expected = cost.gateway if role == "gateway" else cost.worker
    shown = ", ".join(f"{count} {kind}" for kind, count in sorted(added.items()) if count)
    assert (flows, groups, meters, others) == expected, f"{name} adds on a {role}: {shown}"
