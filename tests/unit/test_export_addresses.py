"""Export ranges in agents: where exported Services are served, and which networks stay this cluster's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from mcagent.core.compile import compile_desired
from mcagent.core.engine import IncrementalEngine
from mcagent.core.forwarding import forwarding
from mcagent.kube.source import RawObject
from mcagent.model.dataplane.facts import Facts
from mcagent.model.node_state import ExportedPort
from mcagent.model.objects import ApiObject, Gateway, Kind, ServiceExport
from mcagent.model.parsing.clusters import ADDRESS_CONDITION, SERVICE_CIDR_ANNOTATION
from mcagent.model.parsing.parse import parse_object
from tests.worlds.core_inputs import (
    HOME,
    cluster,
    config,
    endpoint,
    endpoint_slice,
    export,
    gateway,
    networks,
    service,
    snapshot,
)

REAL, RANGE = "10.96.0.0/16", "100.64.16.0/20"


def moved(*objects: ApiObject) -> tuple[ApiObject, ...]:
    """Return cluster home with an export range, plus these objects."""
    home = [
        replace(obj, service_cidr=ip_network(RANGE), real_service_cidr=ip_network(REAL))
        if isinstance(obj, Gateway)
        else obj
        for obj in HOME
    ]
    return (*home, *objects)


def web(address: str | None, *, name: str = "web", cluster_ip: str = "10.96.0.7") -> tuple[ApiObject, ...]:
    """Return an exported Service with this export address, and one Pod."""
    exported = replace(export(name), address=None if address is None else ip_address(address))
    slices = endpoint_slice(f"{name}-1", name, [endpoint("10.10.1.9")], ("", 8080))
    return (service(name, cluster_ip, 80), exported, slices)


def served(*objects: ApiObject) -> tuple[Mapping[str, ExportedPort], list[str]]:
    """Return the exported ports of a gateway, and the reasons of its problems."""
    compiled = compile_desired(snapshot(*objects), Facts(), config("g1"))
    return compiled.state.services, [problem.reason for problem in compiled.desired.problems]


def test_a_service_is_served_at_its_export_address() -> None:
    """Not at its ClusterIP too; without a range the ClusterIP stays, whatever the condition is."""
    ports, problems = served(*moved(*web("100.64.16.9")))
    assert [str(port.address) for port in ports.values()] == ["100.64.16.9"]
    assert problems == []
    ports, problems = served(*HOME, *web("100.64.16.9"))
    assert [str(port.address) for port in ports.values()] == ["10.96.0.7"]
    assert problems == []


@pytest.mark.parametrize("address", [None, "100.64.32.9", "10.96.0.9", "192.168.7.7"])
def test_an_address_outside_the_published_range_is_not_used(address: str | None) -> None:
    """The ClusterIP is reported as unreachable: it lies in the real Service CIDR, which others do not route."""
    ports, problems = served(*moved(*web(address)))
    assert [str(port.address) for port in ports.values()] == ["10.96.0.7"]
    assert problems == ["OutsideServiceCIDR"]


def test_two_services_with_one_export_address() -> None:
    """The older export has it, as with ClusterIPs."""
    ports, problems = served(*moved(*web("100.64.16.9"), *web("100.64.16.9", name="xeb", cluster_ip="10.96.0.8")))
    assert sorted(ports) == ["default/web:80/tcp"]
    assert problems == ["DuplicateAddress"]


def test_the_real_service_cidr_stays_reserved() -> None:
    """No other cluster gets it, or a gateway in it; the flows know the published one alone."""
    objects = moved(
        cluster("west", REAL), cluster("south", "100.64.32.0/20"), cluster("north", None, gateways=("10.96.9.9",))
    )
    compiled = compile_desired(snapshot(*objects), Facts(), config("g1"))
    assert compiled.state.clusters["west"].cidrs == ()
    assert compiled.state.clusters["south"].cidrs == networks("100.64.32.0/20")
    reasons = {(p.subject.rsplit("/", 1)[-1], p.reason) for p in compiled.desired.problems}
    assert reasons >= {("west-clusterinfo", "OverlapsLocal"), ("north-clusterinfo", "OverlapsLocal")}
    local = forwarding(IncrementalEngine(), snapshot(*objects), Facts(), config("g1")).local
    assert local.service_cidrs == networks(RANGE)
    assert set(local.all_service_cidrs) == {*networks(RANGE), *networks(REAL)}


def test_both_cidrs_stay_reserved_without_a_gateway() -> None:
    """While the last Gateway is gone, other clusters get neither."""
    both_cidrs = tuple(sorted(networks(REAL, RANGE)))
    objects = [obj for obj in HOME if not isinstance(obj, Gateway)]
    source = replace(snapshot(*objects, cluster("west", REAL), cluster("south", RANGE)), service_cidrs=both_cidrs)
    clusters = forwarding(IncrementalEngine(), source, Facts(), config("w1")).local.reserved
    assert set(both_cidrs) <= {network for network, _ in clusters}


def test_the_objects_are_read() -> None:
    """The annotation of a Gateway, and the condition of a ServiceExport; invalid ones are reported, and none."""
    raw: RawObject = {"metadata": {"name": "g", "namespace": "n", "annotations": {SERVICE_CIDR_ANNOTATION: REAL}}}
    raw |= {"gatewayIP": "203.0.113.1", "internalIP": "203.0.113.1", "serviceCIDR": RANGE}
    value = parse_object(raw, Kind.GATEWAY).value
    assert isinstance(value, Gateway)
    assert (str(value.service_cidr), str(value.real_service_cidr)) == (RANGE, REAL)
    for status, message, expected in (
        ("True", "100.64.16.9", "100.64.16.9"),
        ("False", "100.64.16.9", "None"),
        ("True", "x", "None"),
        ("True", "", "None"),
    ):
        condition = {"type": ADDRESS_CONDITION, "status": status, "message": message}
        parsed = parse_object(
            {"metadata": {"name": "web", "namespace": "shop"}, "status": {"conditions": [condition]}},
            Kind.SERVICE_EXPORT,
        )
        assert isinstance(parsed.value, ServiceExport)
        assert str(parsed.value.address) == expected
        assert bool(parsed.problems) == (status == "True" and expected == "None")


def test_a_range_that_cannot_be_routed_is_reported() -> None:
    """As an invalid serviceCIDR is."""
    strange = replace(gateway("g1", "192.168.1.1"), real_service_cidr=ip_network("224.0.0.0/16"))
    objects = [obj for obj in HOME if not isinstance(obj, Gateway)]
    compiled = compile_desired(snapshot(*objects, strange), Facts(), config("g1"))
    paths = {problem.path for problem in compiled.desired.problems if problem.reason == "NotUnicast"}
    assert f"metadata.annotations[{SERVICE_CIDR_ANNOTATION}]" in paths
