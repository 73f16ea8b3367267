"""Exported Services whose endpoints are in the host network: which the agent needs Pods for, and which not."""

from __future__ import annotations

from dataclasses import replace

from mcagent.core.compile import compile_desired
from mcagent.model.dataplane.facts import Facts
from mcagent.model.objects import Kind, Pod
from mcagent.model.parsing.parse import parse_object
from mcagent.model.problem import Severity
from tests.worlds.core_inputs import HOME, addresses, config, endpoint, endpoint_slice, export, service, snapshot


def test_administrators_services_lead_to_nodes() -> None:
    """Services of kube-system, which users cannot write, may have Nodes' addresses as endpoints."""
    objects = [
        replace(item, meta=replace(item.meta, namespace="kube-system"))
        for item in (
            service("web", "10.96.0.7", 80),
            export("web"),
            endpoint_slice("s", "web", [endpoint("192.0.2.3")], ("", 9100)),
        )
    ]
    compiled = compile_desired(snapshot(*HOME, *objects), Facts(), config("g1"))
    assert compiled.state.services["kube-system/web:80/tcp"].endpoints
    assert Kind.POD not in compiled.needs


def test_a_pod_may_listen_on_a_port_of_kubernetes() -> None:
    """Only at a Node's address such a port is a component's."""
    slices = endpoint_slice("s", "web", [endpoint("10.10.1.5")], ("", 10250))
    objects = snapshot(*HOME, service("web", "10.96.0.7", 80), export("web"), slices)
    compiled = compile_desired(objects, Facts(), config("g1"))
    assert [str(address) for address, _ in compiled.state.services["default/web:80/tcp"].endpoints] == [
        "10.10.1.5"
    ]
    assert compiled.desired.problems == ()


def test_endpoints_outside_of_the_cluster_are_counted_in_one_warning() -> None:
    """Those that serve; the others of the Service are used."""
    away = [
        endpoint("198.51.100.1"),
        endpoint("198.51.100.2"),
        endpoint("198.51.100.3", ready=False, serving=False),
    ]
    slices = endpoint_slice("s", "web", [endpoint("10.10.1.5"), *away], ("", 80))
    objects = snapshot(*HOME, service("web", "10.96.0.7", 80), export("web"), slices)
    (problem,) = compile_desired(objects, Facts(), config("g1")).desired.problems
    assert (problem.reason, problem.severity) == ("EndpointElsewhere", Severity.WARNING)
    assert problem.message == "2 endpoints of port 80 match no Pod or Node of this cluster: not used"


def test_pods_are_read_where_endpoints_at_nodes_refer_to_them() -> None:
    """A gateway reads the Pods of all Nodes then, and otherwise none."""
    for behind, reads in ((endpoint("192.0.2.3"), False), (replace(endpoint("192.0.2.3"), pod="web-0"), True)):
        slices = endpoint_slice("s", "web", [behind], ("", 80))
        objects = snapshot(*HOME, service("web", "10.96.0.7", 80), export("web"), slices)
        compiled = compile_desired(objects, Facts(), config("g1"))
        assert (Kind.POD in compiled.needs, compiled.state.all_pods) == (reads, reads)


def test_a_pod_in_the_host_network_has_the_nodes_addresses_only() -> None:
    """It is no Pod to policies and routes: its labels and its addresses are not its own."""
    raw = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default", "labels": {"app": "web"}},
        "spec": {"nodeName": "w1", "hostNetwork": True},
        "status": {"phase": "Running", "podIPs": [{"ip": "192.0.2.3"}]},
    }
    value = parse_object(raw).value
    assert isinstance(value, Pod)
    assert (value.ips, value.host_ips, value.labels, value.ports) == ((), addresses("192.0.2.3"), "", ())
