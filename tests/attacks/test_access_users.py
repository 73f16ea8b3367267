"""What a namespace user can have opened to other clusters, or led elsewhere, by objects of its own namespace.

Decisions of agents and of the member's controller on objects that a user may write. That the dataplane has no way
but to chosen endpoints is shown with packets elsewhere.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from mcagent.model.objects import EndpointSlice, Kind, Pod
from mcagent.model.parsing.parse import parse_object
from tests.attacks.catalogue import Attacker, Group, attack
from tests.attacks.served_pods import POD, host_pod, served
from tests.worlds.core_inputs import addresses, endpoint, meta
from tests.worlds.leader_imports import endpoints, endpoints_import, service_import, world
from tests.worlds.member_world import slice_of

by_user = partial(attack, Group.ACCESS, Attacker.USER)


@by_user(
    wants="open a Node's kubelet, API server or etcd to other clusters, by an exported Service's EndpointSlice",
    stopped_by="the agent: a Node's address, or its bridge's, is no endpoint for the ports of Kubernetes",
)
@pytest.mark.parametrize("port", [10250, 6443, 2379])
@pytest.mark.parametrize("address", ["192.0.2.3", "192.0.2.1", "10.10.3.1", "10.10.3.0"])
def test_kubernetes_on_a_node(address: str, port: int) -> None:
    """Any Node, by any address, with a Pod in its network, too; a Pod's port of that number is its own."""
    behind = replace(endpoint(address), pod="web-0")
    pods = [host_pod("web-0", address)]
    assert served(port, behind, pods=pods) == ({f"{POD}:{port}"}, {"EndpointOfKubernetes"})
    assert served(8080, behind, pods=pods) == ({f"{POD}:8080", f"{address}:8080"}, set())


NODE_PORTS = [22, 6640, 9443, 10360, 30080]  # ssh, OVSDB, webhook, the agent's pages, a NodePort


@by_user(
    wants="open any port of a Node to other clusters, by an exported Service's EndpointSlice",
    stopped_by="the agent: a Node's address is an endpoint only of a Pod of the namespace in the host network",
)
@pytest.mark.parametrize("port", NODE_PORTS)
@pytest.mark.parametrize("address", ["192.0.2.3", "192.0.2.1", "10.10.3.1"])
def test_ports_of_a_node(address: str, port: int) -> None:
    """Without targetRef, to no Pod, another namespace's, one of another Node, an ordinary one: not used."""
    named = replace(endpoint(address), pod="web-0")
    refused = ({f"{POD}:{port}"}, {"EndpointOfNode"})
    assert served(port, endpoint(address)) == refused
    assert served(port, endpoint(address), pods=[host_pod("web-0", address)]) == refused
    assert served(port, named) == refused
    for pod in (
        host_pod("web-0", address, namespace="monitoring"),
        host_pod("web-0", "192.0.2.2"),
        host_pod("web-1", address),
        Pod(meta=meta(Kind.POD, "web-0", namespace="default"), node_name="w1", ips=addresses("10.10.3.7")),
    ):
        assert served(port, named, pods=[pod]) == refused, pod
    assert served(port, named, pods=[host_pod("web-0", address)]) == (
        {f"{POD}:{port}", f"{address}:{port}"},
        set(),
    )


@by_user(
    wants="have a Node's port opened by a targetRef that is read as one of its namespace",
    stopped_by="the agent: a targetRef counts if it is of a Pod of the EndpointSlice's own namespace",
)
@pytest.mark.parametrize(
    ("reference", "pod"),
    [
        ({"kind": "Pod", "namespace": "default", "name": "web-0"}, "web-0"),
        ({"kind": "Pod", "name": "web-0"}, "web-0"),
        ({"kind": "Pod", "namespace": "kube-system", "name": "web-0"}, ""),
        ({"kind": "Node", "name": "web-0"}, ""),
        ({"kind": "Pod", "name": "../kube-system/web-0"}, "../kube-system/web-0"),
        ({"kind": "Pod"}, ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_a_target_of_another_namespace(reference: object, pod: str) -> None:
    """Other kinds and namespaces, and no name, refer to nothing."""
    raw = slice_of("web", "192.0.2.3", namespace="default") | {"apiVersion": "discovery.k8s.io/v1"}
    raw["endpoints"][0]["targetRef"] = reference
    value = parse_object(raw).value
    assert isinstance(value, EndpointSlice)
    assert [item.pod for item in value.endpoints] == [pod]


@by_user(
    wants="reach what is outside of its cluster through the gateways, by an EndpointSlice of an exported Service",
    stopped_by="the agent: an endpoint is an address of this cluster's Pods or Nodes",
)
@pytest.mark.parametrize(
    "address", ["169.254.169.254", "8.8.8.8", "10.97.0.5", "10.96.0.1", "192.168.0.1", "127.0.0.1", "224.0.0.1"]
)
def test_outside_of_the_cluster(address: str) -> None:
    """Cloud metadata, the Internet, another cluster, a ClusterIP, the network around, loopback, multicast."""
    assert served(80, endpoint(address)) == ({f"{POD}:80"}, {"EndpointElsewhere"})


@by_user(
    wants="lead clients of an imported Service elsewhere, by an EndpointSlice that looks like the controller's",
    stopped_by="the member's controller: it deletes objects with its mark that differ from the desired state",
)
def test_a_slice_that_looks_like_ours() -> None:
    """Name, labels and owner of ours do not keep it; one that was changed is put right."""
    view, controller = world(service_import(), endpoints_import("10.97.0.5"))
    (own_slice,) = view.local.list(Kind.ENDPOINT_SLICE, "shop")
    forged = slice_of("antrea-mc-web", "169.254.169.254", name="antrea-mc-web-zzzzz")
    forged["metadata"]["labels"] = dict(own_slice["metadata"]["labels"])
    view.local.put(forged)
    bent = {**own_slice, "endpoints": [{"addresses": ["192.0.2.66"], "conditions": {"ready": True}}]}
    view.local.put(bent)
    controller.settle()
    assert endpoints(view) == {"10.97.0.5": [80]}
