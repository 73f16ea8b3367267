"""The names that `mcagent trace` accepts, resolved by an API server: Pods, Services and their endpoints."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from devtools.apiserver import ApiServer, Fault, FaultKind
from mcagent.api.trace import EndpointShare, NodeTrace
from mcagent.kube.client import Client
from mcagent.model.errors import InputError, SourceError
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from mcagent.trace.targets import Choice, NamedObjects, TraceTarget, with_shares

CLUSTER_IP = "10.96.0.7"
HTTP, METRICS = {"name": "http", "port": 80}, {"name": "metrics", "port": 9090, "protocol": "UDP"}
ENDPOINTS = (
    ("10.2.1.3", True),
    ("10.2.1.2", True),
    ("10.2.1.4", False),
)


def pod(name: str, ip: str, node: str) -> dict[str, Any]:
    """Return a Pod with its status."""
    meta = {"name": name, "namespace": "shop"}
    status = {"podIP": ip, "podIPs": [{"ip": ip}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"nodeName": node}, "status": status}


def service(name: str, cluster_ip: str, *ports: dict[str, Any]) -> dict[str, Any]:
    """Return a Service of namespace shop."""
    spec = {"clusterIP": cluster_ip, "ports": [*ports]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop"}, "spec": spec}


def endpoint_slice(name: str, of: str, *ports: dict[str, Any], namespace: str = "shop") -> dict[str, Any]:
    """Return an EndpointSlice of a Service with `ENDPOINTS`."""
    meta = {"name": name, "namespace": namespace, "labels": {"kubernetes.io/service-name": of}}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": meta,
        "addressType": "IPv4",
        "endpoints": [{"addresses": [ip], "conditions": {"ready": ready}} for ip, ready in ENDPOINTS],
        "ports": [*ports],
    }


OBJECTS = (
    (Kind.POD, pod("client", "10.1.3.2", "w1")),
    (Kind.SERVICE, service("web", CLUSTER_IP, HTTP, METRICS)),
    (Kind.SERVICE, service("headless", "None", HTTP)),
    (Kind.SERVICE, service("empty", "10.96.0.8", HTTP)),
    (Kind.SERVICE, service("antrea-mc-web", "10.96.0.9", {"port": 80})),
    (
        Kind.ENDPOINT_SLICE,
        endpoint_slice("web-1", "web", {"name": "http", "port": 8080}, {"name": "metrics", "port": 9191}),
    ),
    (Kind.ENDPOINT_SLICE, endpoint_slice("web-2", "web", {"name": "http", "port": 8080})),
    (Kind.ENDPOINT_SLICE, endpoint_slice("web-1", "web", {"name": "http", "port": 7}, namespace="other")),
    (Kind.ENDPOINT_SLICE, endpoint_slice("headless-1", "headless", {"name": "http", "port": 8081})),
    (Kind.ENDPOINT_SLICE, endpoint_slice("antrea-mc-web-1", "antrea-mc-web", {"name": "", "port": 8082})),
)


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of an API server with `OBJECTS`."""
    file = tmp_path_factory.mktemp("names") / "kubeconfig"
    with ApiServer() as api:
        api.write_kubeconfig(file)
        client = Client(str(file))
        for name in ("shop", "other"):
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            client.request("POST", object_path(Kind.NAMESPACE, ""), body=namespace)
        for kind, raw in OBJECTS:
            path = object_path(kind, raw["metadata"]["namespace"])
            client.request("POST", path, body=raw)
            if raw.get("status"):
                where = f"{path}/{raw['metadata']['name']}/status"
                change = {"status": raw["status"]}
                client.request("PATCH", where, body=change, content_type="application/merge-patch+json")
        client.close()
        api.faults.add(Fault(kind=FaultKind.STATUS, code=403, path="/namespaces/closed/"))
        yield file


@pytest.fixture
def objects(kubeconfig: Path) -> NamedObjects:
    """The names of this API server."""
    return NamedObjects(str(kubeconfig), "")


def choices(port: int, *addresses: str) -> tuple[Choice, ...]:
    """Return endpoints with equal shares."""
    return tuple(Choice(address=IPv4Address(a), port=port, share=1 / len(addresses)) for a in addresses)


def test_a_pod_has_its_address_and_node(objects: NamedObjects) -> None:
    """By its name, or by its address; an address of no Pod is of an unknown Node."""
    assert objects.source("shop/client") == (IPv4Address("10.1.3.2"), "w1")
    assert objects.source("10.1.3.2") == (IPv4Address("10.1.3.2"), "w1")
    assert objects.source("10.1.3.9") == (IPv4Address("10.1.3.9"), "")


def test_a_service_has_its_address_and_ready_endpoints(objects: NamedObjects) -> None:
    """Each endpoint once, in order, with an equal share and the port of the Service's port by name."""
    web = TraceTarget(
        address=IPv4Address(CLUSTER_IP),
        port=80,
        name="shop/web",
        choices=choices(8080, "10.2.1.2", "10.2.1.3"),
        by="kube-proxy",
    )
    assert objects.target("shop/web", 80, "tcp") == web


def test_a_port_is_found_by_number_and_protocol(objects: NamedObjects) -> None:
    """Without such a port of the Service, the endpoint's is the same number."""
    metrics = objects.target("shop/web", 9090, "udp")
    assert {choice.port for choice in metrics.choices} == {9191}
    for port, protocol in ((9090, "tcp"), (80, "udp"), (81, "tcp")):
        target = objects.target("shop/web", port, protocol)
        assert (target.port, {choice.port for choice in target.choices}) == (port, {port})


def test_a_headless_service_has_the_address_of_an_endpoint(objects: NamedObjects) -> None:
    """The first one."""
    target = objects.target("shop/headless", 80, "tcp")
    assert (target.address, target.choices) == (
        IPv4Address("10.2.1.2"),
        choices(8081, "10.2.1.2", "10.2.1.3"),
    )


@pytest.mark.parametrize("end", ["", "."])
def test_an_imported_service_is_found_by_its_name_in_the_clusterset(objects: NamedObjects, end: str) -> None:
    """Its Service here has Antrea's prefix; its port may have no name."""
    target = objects.target(f"web.shop.svc.clusterset.local{end}", 80, "tcp")
    assert (target.name, target.address) == ("shop/antrea-mc-web", IPv4Address("10.96.0.9"))
    assert {choice.port for choice in target.choices} == {8082}


def test_an_address_needs_no_api_server() -> None:
    """Then its Node is not known."""
    objects = NamedObjects("", "")
    assert objects.source("10.1.3.2") == (IPv4Address("10.1.3.2"), "")
    assert objects.target("10.2.1.2", 80, "tcp") == TraceTarget(address=IPv4Address("10.2.1.2"), port=80)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("shop/none", "trace: --from: there is no Pod shop/none"),
        ("client", 'trace: --from: must be NAMESPACE/POD or an IPv4 address, is "client"'),
        ("2001:db8::1", 'trace: --from: must be NAMESPACE/POD or an IPv4 address, is "2001:db8::1"'),
    ],
)
def test_a_source_that_is_no_pod_is_refused(objects: NamedObjects, text: str, reason: str) -> None:
    """The text names the flag, and what is allowed."""
    with pytest.raises(InputError) as error:
        objects.source(text)
    assert str(error.value) == reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("shop/none", "trace: --to: there is no Service shop/none"),
        ("none.shop.svc.clusterset.local", "trace: --to: there is no Service shop/antrea-mc-none"),
        ("shop/empty", "trace: --to: Service shop/empty has no ready endpoint here"),
        ("web", 'trace: --to: must be NAMESPACE/SERVICE or an IPv4 address, is "web"'),
    ],
)
def test_a_destination_that_is_no_service_is_refused(objects: NamedObjects, text: str, reason: str) -> None:
    """The text names the flag, and what is allowed."""
    with pytest.raises(InputError) as error:
        objects.target(text, 80, "tcp")
    assert str(error.value) == reason


def test_a_name_needs_a_kubeconfig() -> None:
    """The text names the flag with the name."""
    with pytest.raises(InputError, match=r"^trace: --from: a name needs a kubeconfig; give an address$"):
        NamedObjects("", "").source("shop/client")
    with pytest.raises(InputError, match=r"^trace: --to: a name needs a kubeconfig; give an address$"):
        NamedObjects("", "").target("shop/web", 80, "tcp")


def test_a_refusal_of_the_api_server_is_its_own(objects: NamedObjects, kubeconfig: Path) -> None:
    """It is no wrong name; nor is a context that the kubeconfig does not have."""
    with pytest.raises(SourceError, match="not allowed"):
        objects.source("closed/client")
    with pytest.raises(SourceError, match="elsewhere"):
        NamedObjects(str(kubeconfig), "elsewhere").source("shop/client")


def test_the_shares_of_an_agent_replace_those_of_kube_proxy() -> None:
    """A trace without shares leaves the target as it is."""
    target = TraceTarget(address=IPv4Address(CLUSTER_IP), port=80, name="shop/web", by="kube-proxy")
    assert with_shares(target, NodeTrace(), "w1") is target
    trace = NodeTrace(shares=(EndpointShare(address="10.2.1.2", port=8080, share=0.25),))
    choice = Choice(address=IPv4Address("10.2.1.2"), port=8080, share=0.25)
    assert with_shares(target, trace, "w1") == TraceTarget(
        address=IPv4Address(CLUSTER_IP), port=80, name="shop/web", choices=(choice,), by="the agent of w1"
    )
