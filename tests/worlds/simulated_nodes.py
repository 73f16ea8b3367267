"""Simulated Nodes of two clusters, for tests of traces."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import Any
from urllib.parse import urlsplit

from msgspec import structs

from mcagent.api.codec import to_json
from mcagent.api.status import Status
from mcagent.model.objects import ApiObject
from mcagent.trace.path import Hop, HopTracer, PathTracer
from mcagent.trace.probe import Probe, read_query
from mcagent.trace.simulated_tracer import make_tracer
from tests.worlds.core_inputs import (
    HOME,
    cluster,
    config,
    endpoint,
    endpoint_slice,
    export,
    gateway,
    node,
    service,
    snapshot,
)

FAR: tuple[ApiObject, ...] = (
    *(node("r1", "203.0.113.1", "10.20.1.0/24"), node("r2", "203.0.113.2", "10.20.2.0/24")),
    gateway("r1", "203.0.113.1", cidr="10.97.0.0/16"),
    *(service("web", "10.97.0.10", 80), export("web")),
    endpoint_slice("web-1", "web", [endpoint("10.20.2.5")], ("", 8080)),
)


SNAPSHOTS = {
    "home": snapshot(*HOME, cluster("east", "10.97.0.0/16", gateways=("203.0.113.1",))),
    "east": snapshot(*FAR, cluster("home", "10.96.0.0/16", gateways=("192.0.2.1", "192.0.2.2"))),
}


PROBE = Probe(
    in_port=1,
    source=IPv4Address("10.10.3.5"),
    destination=IPv4Address("10.97.0.10"),
    protocol="tcp",
    source_port=40000,
    port=80,
)


WHO = {"203.0.113.1": "r1", "192.0.2.1": "g1", "192.0.2.2": "g2"}


EVERYWHERE: dict[str, object] = {}  # configured


Asked = Mapping[str, Status]


def stand_in(of: str, node_name: str, statuses: Asked, links: Mapping[str, str] | None = None) -> HopTracer:
    """Return a Node of a cluster; the first one is cluster "home"'s."""
    name = of or "home"
    settings = config(WHO.get(node_name, node_name), cluster_id=name, **EVERYWHERE)
    return make_tracer(SNAPSHOTS[name], settings, statuses, links or {}, "the configuration of a test")


def every() -> dict[str, HopTracer]:
    """Return all Nodes of both clusters."""
    names = {"home": ("w1", "g1", "g2"), "east": ("r1", "r2")}
    return {name: stand_in(of, name, {}) for of, obj in names.items() for name in obj}


def page_of(node: HopTracer, page: str) -> dict[str, Any]:
    """Return the page /trace that a Node's agent would answer."""
    return to_json(node.trace(read_query(urlsplit(page).query)))


def traced(silent: frozenset[str], simulate: Any = stand_in) -> tuple[list[Hop], list[Hop]]:
    """Return the way there and back where the agents of these Nodes are silent."""
    nodes = every()
    tracer = PathTracer(
        statuses={name: node.status for name, node in nodes.items() if name not in silent},
        ask=lambda name, page: page_of(nodes[name], page),
        errors=dict.fromkeys(silent, "it did not answer within 10 s"),
        simulate=simulate,
    )
    tracer.require("w1")
    hops = list(tracer.forward("w1", PROBE))
    return hops, list(tracer.reverse(hops))


def with_gateways(status: Status, why: str, live: bool | Mapping[str, bool]) -> Status:
    """Return /status of a Node whose gateways are live or not, all or by name."""
    groups = (
        structs.replace(
            group,
            gateways=tuple(
                structs.replace(gateway, live=live if isinstance(live, bool) else live[gateway.name], why=why)
                for gateway in group.gateways
            ),
        )
        for group in status.gateways
    )
    return structs.replace(status, gateways=tuple(groups))
