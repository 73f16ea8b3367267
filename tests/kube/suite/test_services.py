"""Services and what hangs on them: ClusterIPs, ServiceCIDR objects, EndpointSlices."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Any

import pytest

from mcagent.kube.errors import ApiRefusalError
from tests.worlds.apiservers import SERVICE_CIDR, Cluster

pytestmark = pytest.mark.apiserver


def service(cluster: Cluster, name: str, **spec: Any) -> Any:
    """Create a Service with one port and return it."""
    return cluster.create(cluster.path("services"), name, spec={"ports": [{"port": 80}], **spec})


def test_a_service_gets_an_address(cluster: Cluster) -> None:
    """Each Service gets a ClusterIP of its own from the range, and the defaults that clients read."""
    specs = [service(cluster, f"s{number}")["spec"] for number in range(5)]
    addresses = {IPv4Address(spec["clusterIP"]) for spec in specs}
    assert len(addresses) == 5
    assert all(address in SERVICE_CIDR for address in addresses)
    assert specs[0]["clusterIPs"] == [specs[0]["clusterIP"]]
    assert (specs[0]["type"], specs[0]["sessionAffinity"]) == ("ClusterIP", "None")
    assert specs[0]["ipFamilies"] == ["IPv4"]
    if cluster.server.kind != "embedded":
        assert specs[0]["ports"] == [{"protocol": "TCP", "port": 80, "targetPort": 80}]


def test_an_address_may_be_asked_for_once(cluster: Cluster) -> None:
    """A free address of the range is given, one that is taken refused, and given again after a delete."""
    cluster_ip = service(cluster, "first")["spec"]["clusterIP"]
    with pytest.raises(ApiRefusalError, match="provided IP is already allocated"):
        service(cluster, "second", clusterIP=cluster_ip)
    cluster.client.request("DELETE", cluster.path("services", "first"))
    assert service(cluster, "second", clusterIP=cluster_ip)["spec"]["clusterIP"] == cluster_ip


@pytest.mark.real_only
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("192.0.2.1", "failed to allocate IP 192.0.2.1: the provided network does not match the current range"),
        ("0.0.0.0", "failed to allocate IP 0.0.0.0: the provided network does not match the current range"),
        ("nonsense", 'spec.clusterIPs.0.: Invalid value: "nonsense": must be a valid IP address'),
    ],
)
def test_an_address_outside_the_range_is_refused(cluster: Cluster, address: str, message: str) -> None:
    """The refusal of a server that has ServiceCIDR objects (1.33 and later) does not tell the range."""
    with pytest.raises(ApiRefusalError, match=message) as caught:
        service(cluster, "a", clusterIP=address)
    assert caught.value.code == 422


@pytest.mark.real_only
def test_the_range_is_an_object(cluster: Cluster) -> None:
    """ServiceCIDR `kubernetes` tells the Service CIDR and is Ready."""
    address_range = cluster.client.request("GET", "/apis/networking.k8s.io/v1/servicecidrs")
    assert address_range["kind"] == "ServiceCIDRList"
    (item,) = [item for item in address_range["items"] if item["metadata"]["name"] == "kubernetes"]
    assert item["spec"]["cidrs"] == [str(SERVICE_CIDR)]
    assert [(c["type"], c["status"]) for c in item["status"]["conditions"]] == [("Ready", "True")]


@pytest.mark.real_only
def test_an_address_stays(cluster: Cluster) -> None:
    """An update may leave the ClusterIP out, and may not change it."""
    created = service(cluster, "a")
    path = cluster.path("services", "a")
    version = {"name": "a", "resourceVersion": created["metadata"]["resourceVersion"]}
    bare = {"apiVersion": "v1", "kind": "Service", "metadata": version, "spec": {"ports": [{"port": 81}]}}
    new = cluster.client.request("PUT", path, body=bare)
    assert new["spec"]["clusterIP"] == created["spec"]["clusterIP"]
    old = IPv4Address(created["spec"]["clusterIP"])
    other = str(old + 1 if old + 2 in SERVICE_CIDR else old - 1)
    error = cluster.refused("PUT", path, new | {"spec": new["spec"] | {"clusterIP": other, "clusterIPs": [other]}})
    assert "may not change once set" in str(error)


def test_services_without_an_address(cluster: Cluster) -> None:
    """A headless Service has None, an ExternalName no ClusterIP at all."""
    assert service(cluster, "headless", clusterIP="None")["spec"]["clusterIP"] == "None"
    external = service(cluster, "external", type="ExternalName", externalName="www.example.org")
    assert "clusterIP" not in external["spec"]


@pytest.mark.real_only
@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"ports": []}, "spec.ports: Required value"),
        ({"ports": [{"port": 80}, {"port": 81}]}, r"spec.ports\[0\].name: Required value"),
        (
            {"ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "a"}]},
            r"spec.ports\[1\].name: Duplicate value",
        ),
        ({"ports": [{"port": 70000}]}, r"spec.ports\[0\].port: Invalid value: 70000"),
        ({"ports": [{"port": 80, "name": "Upper"}]}, r"spec.ports\[0\].name"),
        ({"ports": [{"port": 80, "protocol": "ICMP"}]}, r"spec.ports\[0\].protocol: Unsupported value"),
        ({"type": "ExternalName"}, "spec.externalName: Required value"),
    ],
)
def test_services_that_cannot_be(cluster: Cluster, spec: dict[str, Any], field: str) -> None:
    """Ports need a number, a known protocol and, where there are several, different names."""
    with pytest.raises(ApiRefusalError, match=field) as caught:
        service(cluster, "a", **spec)
    assert caught.value.code == 422


@pytest.mark.real_only
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "addressType: Required value"),
        ({"addressType": "IPv4", "endpoints": [{"addresses": ["x"]}]}, r"endpoints\[0\].addresses\[0\]"),
        ({"addressType": "IPv4", "endpoints": [{"addresses": []}]}, r"endpoints\[0\].addresses: Required value"),
        (
            {"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}] * 1001},
            "endpoints: Too many: 1001: must have at most 1000 items",
        ),
    ],
)
def test_endpoint_slices_that_cannot_be(cluster: Cluster, fields: dict[str, Any], field: str) -> None:
    """A slice has an address family, addresses that are some, and at most 1000 endpoints."""
    path = cluster.path("endpointslices", group="discovery.k8s.io")
    body = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "a"}, **fields}
    with pytest.raises(ApiRefusalError, match=field):
        cluster.client.request("POST", path, body={"endpoints": [], **body})


@pytest.mark.real_only
def test_an_endpoint_slice_gets_defaults(cluster: Cluster) -> None:
    """Ports get a protocol and an empty name, endpoints conditions; the slice counts generations."""
    path = cluster.path("endpointslices", group="discovery.k8s.io")
    body: dict[str, Any] = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice"}
    body |= {"metadata": {"name": "a"}}
    body |= {"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 80}]}
    created = cluster.client.request("POST", path, body=body)
    assert created["ports"] == [{"name": "", "protocol": "TCP", "port": 80}]
    assert created["endpoints"] == [{"addresses": ["10.0.0.1"], "conditions": {}}]
    assert created["metadata"]["generation"] == 1
    changed = cluster.patch(f"{path}/a", {"endpoints": []})
    assert changed["metadata"]["generation"] == 2
