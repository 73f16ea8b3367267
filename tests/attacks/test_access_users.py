"""What a namespace user can have opened to other clusters, or led elsewhere, by objects of its own namespace.

Decisions of agents and of the member's controller on objects that a user may write. That the dataplane has no way
but to chosen endpoints is shown with packets elsewhere.
"""

from __future__ import annotations

import pytest

from mcagent.core.compile import compile_desired
from mcagent.model.facts import Facts
from mcagent.model.objects import Endpoint, Kind
from tests.attacks.catalogue import Attacker, Group, attack
from tests.unit.core_inputs import HOME, config, endpoint, endpoint_slice, export, service, snapshot
from tests.unit.member_world import slice_of
from tests.unit.test_member_service_import import endpoints, endpoints_import, service_import, world

POD = "10.10.3.9"


def served(port: int, *others: Endpoint) -> tuple[set[str], set[str]]:
    """Return the endpoints that a gateway serves an exported Service from, and what it tells.

    The Service's EndpointSlice holds an ordinary Pod and others.
    """
    slices = endpoint_slice("s", "web", [endpoint(POD), *others], ("", port))
    found = compile_desired(
        snapshot(*HOME, service("web", "10.96.0.7", 80), export("web"), slices), Facts(), config("g1")
    )
    places = found.state.services["default/web:80/tcp"].endpoints
    return {f"{address}:{number}" for address, number in places}, {p.reason for p in found.desired.problems}


@attack(
    Group.ACCESS,
    Attacker.USER,
    wants="open a Node's kubelet, API server or etcd to other clusters, by an exported Service's EndpointSlice",
    stopped_by="the agent: a Node's address, or its bridge's, is no endpoint for the ports of Kubernetes",
)
@pytest.mark.parametrize("port", [10250, 6443, 2379])
@pytest.mark.parametrize("address", ["192.0.2.3", "192.0.2.1", "10.10.3.1", "10.10.3.0"])
def test_kubernetes_on_a_node(address: str, port: int) -> None:
    """Any Node, by any address; a Pod's port of that number is its own, and a Node's other ports are its Pods'."""
    assert served(port, endpoint(address)) == ({f"{POD}:{port}"}, {"EndpointOfKubernetes"})
    assert served(8080, endpoint("192.0.2.3")) == ({f"{POD}:8080", "192.0.2.3:8080"}, set())


@attack(
    Group.ACCESS,
    Attacker.USER,
    wants="reach what is outside of its cluster through the gateways, by an EndpointSlice of an exported Service",
    stopped_by="the agent: an endpoint is an address of this cluster's Pods or Nodes",
)
@pytest.mark.parametrize(
    "address", ["169.254.169.254", "8.8.8.8", "10.97.0.5", "10.96.0.1", "192.168.0.1", "127.0.0.1", "224.0.0.1"]
)
def test_outside_of_the_cluster(address: str) -> None:
    """Cloud metadata, the Internet, another cluster, a ClusterIP, the network around, loopback, multicast."""
    assert served(80, endpoint(address)) == ({f"{POD}:80"}, {"EndpointElsewhere"})


@attack(
    Group.ACCESS,
    Attacker.USER,
    wants="lead clients of an imported Service elsewhere, by an EndpointSlice that looks like the controller's",
    stopped_by="the member's controller: it deletes objects with its mark that differ from the desired state",
)
def test_a_slice_that_looks_like_ours() -> None:
    """Name, labels and owner of ours do not keep it; one that was changed is put right."""
    view, controller = world(service_import(), endpoints_import("10.97.0.5"))
    (ours,) = view.local.list(Kind.ENDPOINT_SLICE, "shop")
    forged = slice_of("antrea-mc-web", "169.254.169.254", name="antrea-mc-web-zzzzz")
    forged["metadata"]["labels"] = dict(ours["metadata"]["labels"])
    view.local.put(forged)
    bent = {**ours, "endpoints": [{"addresses": ["192.0.2.66"], "conditions": {"ready": True}}]}
    view.local.put(bent)
    controller.settle()
    assert endpoints(view) == {"10.97.0.5": [80]}
