"""The names of `mcagent trace`, in a cluster of two families: Antrea Multi-cluster forwards IPv4 alone."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import Any

import pytest

from mcagent.model.errors import InputError
from mcagent.trace.targets import NamedObjects

PORTS = {"ports": [{"name": "http", "port": 80}]}
POD = {"spec": {"nodeName": "node1"}, "status": {"podIP": "fd00::1", "podIPs": [{"ip": "fd00::1"}]}}
SLICES = [
    PORTS | {"endpoints": [{"addresses": [address]}]} for address in ("fd00::1", "10.1.0.1", "web.example")
]  # in the order of their names


def named(monkeypatch: pytest.MonkeyPatch, **objects: Mapping[str, Any]) -> NamedObjects:
    """Return the names in an API server with these objects, by the plural of their kind."""

    def get(_: NamedObjects, __: str, path: str, *___: Any) -> Mapping[str, Any]:
        return next(raw for plural, raw in objects.items() if f"/{plural}" in path)

    monkeypatch.setattr(NamedObjects, "_get", get)
    return NamedObjects("kubeconfig", "")


@pytest.mark.parametrize(
    ("ips", "address"),
    [
        ({"clusterIP": "fd00:1::1", "clusterIPs": ["fd00:1::1", "10.2.0.1"]}, "10.2.0.1"),
        ({"clusterIP": "10.2.0.1", "clusterIPs": ["10.2.0.1", "fd00:1::1"]}, "10.2.0.1"),
        ({"clusterIP": "10.2.0.1"}, "10.2.0.1"),
        ({"clusterIP": "None", "clusterIPs": ["None"]}, "10.1.0.1"),
    ],
)
def test_the_ipv4_addresses_of_a_service_are_the_destination(
    monkeypatch: pytest.MonkeyPatch, ips: dict[str, Any], address: str
) -> None:
    """Those of the other family are no endpoints of the trace."""
    target = named(monkeypatch, services={"spec": PORTS | ips}, endpointslices={"items": SLICES}).target(
        "shop/web", 80, "tcp"
    )
    assert target.address == IPv4Address(address)
    assert [(choice.address, choice.share) for choice in target.choices] == [(IPv4Address("10.1.0.1"), 1)]


def test_a_cluster_that_does_not_serve_a_port_gets_no_connections_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ports of an imported Service are those of all exporters: kube-proxy gives it to those with the port."""
    metrics = {"name": "metrics", "port": 9090}
    spec = {"clusterIP": "10.2.0.1", "ports": [*PORTS["ports"], metrics]}
    slices = [
        {"ports": ports, "endpoints": [{"addresses": [address]}]}
        for ports, address in ((PORTS["ports"], "10.1.0.1"), ([metrics], "10.3.0.1"))
    ]
    objects = named(monkeypatch, services={"spec": spec}, endpointslices={"items": slices})
    for port, address in ((80, "10.1.0.1"), (9090, "10.3.0.1")):
        choices = objects.target("shop/web", port, "tcp").choices
        assert [(str(choice.address), choice.port, choice.share) for choice in choices] == [(address, port, 1)]


@pytest.mark.parametrize(("protocol", "port"), [("tcp", 5432), ("udp", 53), ("sctp", 80), ("icmp", 80)])
def test_without_a_port_the_first_one_of_the_service_is_traced(
    monkeypatch: pytest.MonkeyPatch, protocol: str, port: int
) -> None:
    """A packet to a port that the Service does not have would not be delivered."""
    ports = [("dns", 53, "UDP"), ("sql", 5432, "TCP"), ("metrics", 9090, "TCP")]
    of_service = [{"name": name, "port": number, "protocol": kind} for name, number, kind in ports]
    slices = [{"ports": of_service, "endpoints": [{"addresses": ["10.1.0.1"]}]}]
    spec = {"clusterIP": "10.2.0.1", "ports": of_service}
    objects = named(monkeypatch, services={"spec": spec}, endpointslices={"items": slices})
    target = objects.target("data/db", 0, protocol)
    assert (target.port, [choice.port for choice in target.choices]) == (port, [port])
    assert objects.target("10.1.0.1", 0, protocol).port == 80
    assert objects.target("data/db", 9090, protocol).port == 9090


def test_a_service_without_an_ipv4_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message says so."""
    ips = {"clusterIP": "fd00:1::1", "clusterIPs": ["fd00:1::1"]}
    objects = named(monkeypatch, services={"spec": PORTS | ips}, endpointslices={"items": SLICES})
    with pytest.raises(InputError, match="Service shop/web has no IPv4 address"):
        objects.target("shop/web", 80, "tcp")


def test_the_ipv4_address_of_a_pod_is_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the second one where the cluster's first family is IPv6."""
    two = POD | {"status": {"podIP": "fd00::1", "podIPs": [{"ip": "fd00::1"}, {"ip": "10.1.0.1"}]}}
    assert named(monkeypatch, pods=two).source("shop/web-0") == (IPv4Address("10.1.0.1"), "node1")
    old = POD | {"status": {"podIP": "10.1.0.1"}}
    assert named(monkeypatch, pods=old).source("shop/web-0") == (IPv4Address("10.1.0.1"), "node1")
    with pytest.raises(InputError, match="Pod shop/web-0 has no IPv4 address"):
        named(monkeypatch, pods=POD).source("shop/web-0")


def test_a_pod_that_has_ended_is_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address that its status keeps may be another Pod's, on another Node."""
    ended = {"spec": {"nodeName": "node1"}, "status": {"phase": "Succeeded", "podIP": "10.1.0.1"}}
    running = {"spec": {"nodeName": "node2"}, "status": {"phase": "Running", "podIP": "10.1.0.1"}}
    address = IPv4Address("10.1.0.1")
    assert named(monkeypatch, pods={"items": [ended, running]}).source("10.1.0.1") == (address, "node2")
    assert named(monkeypatch, pods={"items": [ended]}).source("10.1.0.1") == (address, "")
    with pytest.raises(InputError, match="Pod shop/job has ended"):
        named(monkeypatch, pods=ended).source("shop/job")
