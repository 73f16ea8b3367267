"""Usable endpoints of an exported Service: the number that the controller tells, and the gateways' flows."""

from __future__ import annotations

from typing import Any

import pytest

from mcagent.controller.member.services import served
from mcagent.controller.member.services.service_export import ServiceExports
from mcagent.controller.settings import EndpointIpType
from mcagent.core.compile import compile_desired
from mcagent.core.local_cluster.nodes import CheckedNode, check_node
from mcagent.kube.source import RawObject
from mcagent.model.api.kubernetes import ApiEndpointSlice, ApiService
from mcagent.model.config import PodRouting
from mcagent.model.dataplane.facts import Facts
from mcagent.model.objects import Kind
from mcagent.model.parsing.parse import parse_object
from tests.worlds.control_view import Controller, MemoryView
from tests.worlds.core_inputs import config, gateway, snapshot
from tests.worlds.exporting_member import exports, run, subsets, told_of, valid, world
from tests.worlds.member_world import AREA, export_of, node, north_of, service, settings, slice_of


def ready_of(view: MemoryView) -> tuple[str, str, str]:
    """Return status, reason and message of the condition Ready."""
    raw = view.local.get(Kind.SERVICE_EXPORT, "shop", "web")
    assert raw is not None
    (ready,) = (condition for condition in raw["status"]["conditions"] if condition["type"] == "Ready")
    return ready["status"], ready["reason"], ready["message"]


def accepted(view: MemoryView) -> None:
    """Let the leader accept both exports."""
    status = {"conditions": [{"type": "Succeeded", "status": "True"}]}
    for name in exports(view):
        north_of(view).change(Kind.RESOURCE_EXPORT, AREA, name, {"status": status})


TWO = ("10.10.1.1", "10.10.1.2")


@pytest.mark.parametrize(
    ("unusable", "why"),
    [
        (
            slice_of("web", *TWO, ports=()),
            "2 endpoints of port 80 are in EndpointSlices without a port",
        ),
        (slice_of("web", *TWO, ports=(("other", 80),)), '"http" (TCP): not used'),
        (slice_of("web", "fd00::1", "fd00::2"), "2 endpoints of port 80 have IPv6 addresses"),
        (slice_of("web", "a.example", "b.example") | {"addressType": "FQDN"}, "has host names (addressType FQDN)"),
        (slice_of("web", "203.0.113.9"), "1 endpoints of port 80 match no Pod or Node of this cluster: not used"),
        (slice_of("web", *TWO, ready=False), "no endpoint is ready"),
        (slice_of("web"), "no endpoint is ready"),
    ],
)
def test_an_export_without_usable_endpoints_is_not_ready(unusable: RawObject, why: str) -> None:
    """Other clusters get no address of it; beside usable endpoints the others do not count."""
    view = world(node("n1", "192.0.2.7") | {"spec": {"podCIDRs": ["10.10.0.0/16"]}})
    for raw in (service("web"), unusable | {"metadata": unusable["metadata"] | {"name": "bad"}}, export_of("web")):
        view.local.put(raw)
    controller = run(view)
    accepted(view)
    controller.run()
    assert (told_of(view), subsets(view)) == (None, [])
    status, reason, message = ready_of(view)
    assert (status, reason) == ("False", "NoUsableEndpoint")
    assert message.startswith("no usable endpoint behind port 80: ")
    assert why in message
    assert valid(view) == ("True", "Valid")
    view.local.put(slice_of("web", "10.10.1.7", name="good"))
    controller.run()
    assert told_of(view) == "1"
    assert ready_of(view)[:2] == ("True", "Exported")


def test_the_least_of_all_ports_is_told() -> None:
    """A port without any usable endpoint is not exported, as connections to it would find none; the others are."""
    slices = [
        slice_of("web", *TWO, "10.10.1.3", name="a", ports=(("http", 8080), ("dns", 5353))),
        slice_of("web", "10.10.1.4", "10.10.1.5", name="b"),
    ]
    view = world(service("web", ("http", 80), ("dns", 53)), *slices, export_of("web"))
    controller = run(view)
    accepted(view)
    controller.run()
    assert told_of(view) == "3"
    assert ready_of(view)[:2] == ("True", "Exported")
    view.local.put(slice_of("web", *TWO, "10.10.1.3", name="a"))
    controller.run()
    assert told_of(view) == "5"
    assert [[port["name"] for port in subset["ports"]] for subset in subsets(view)] == [["http"]]
    status, reason, message = ready_of(view)
    assert (status, reason) == ("False", "NoUsableEndpoint")
    assert "port 53" in message


WORKER = node("n1", "192.0.2.7") | {"spec": {"podCIDRs": ["10.10.0.0/16"]}}


def pods(*addresses: str, **fields: object) -> RawObject:
    """Return a slice of Pods of Node n1."""
    pod = {"targetRef": {"kind": "Pod", "namespace": "shop", "name": "web-0"}, "nodeName": "n1"}
    raw = slice_of("web", *addresses)
    return raw | {"endpoints": [endpoint | pod | fields for endpoint in raw["endpoints"]]}


@pytest.mark.parametrize("routing", ["", *PodRouting])
@pytest.mark.parametrize(("inside", "outside"), [(201, 99), (255, 45), (0, 3), (2, 0)])
def test_the_number_told_is_that_of_the_gateways(routing: str, inside: int, outside: int) -> None:
    """Pods outside of their Nodes' Pod CIDRs count where agents find them, or where that is not known.

    Gateways use 256 endpoints of a port. A gateway with podRouting: perPod needs the Pods, too.
    """
    addresses = [f"10.10.1.{number}" for number in range(1, inside + 1)]
    raw = pods(*addresses, *(f"203.0.113.{number}" for number in range(1, outside + 1)))
    objects = [WORKER, service("web"), raw, export_of("web")]
    view = world(*objects)
    controller = Controller(view, [ServiceExports(settings(pod_routing=routing))])
    controller.settle()
    published = int(told_of(view) or 0)
    if routing in ("", "perPod"):
        assert published == min(inside + outside, 256)
        return
    values = [value for item in objects if (value := parse_object(item, Kind(item["kind"])).value) is not None]
    compiled_node = compile_desired(
        snapshot(*values, gateway("n1", "192.0.2.7")), Facts(), config("n1", pod_routing=PodRouting(routing))
    )
    assert published == len(compiled_node.state.services["shop/web:80/tcp"].endpoints) == inside
    messages = [p.message for p in compiled_node.desired.problems if p.subject == "ServiceExport shop/web"]
    assert "; ".join(messages) in condition_message(view, "Valid")


def condition_message(view: MemoryView, kind: str) -> str:
    """Return the message of a condition of the ServiceExport."""
    raw = view.local.get(Kind.SERVICE_EXPORT, "shop", "web")
    assert raw is not None
    return next(
        str(condition["message"]) for condition in raw["status"]["conditions"] if condition["type"] == kind
    )


def test_a_node_without_pod_cidrs_has_pods_at_any_address() -> None:
    """With podRouting auto these are watched one by one; endpoints of a Node with Pod CIDRs are not."""
    far = pods("203.0.113.9", nodeName="n2")
    other = node("n2", "192.0.2.8")
    view = world(WORKER, other, service("web"), far, export_of("web"))
    controller = Controller(view, [ServiceExports(settings(pod_routing="auto"))])
    controller.settle()
    assert told_of(view) == "1"
    view.local.put(pods("203.0.113.9"))
    controller.run()
    assert told_of(view) is None
    view.local.put(WORKER | {"spec": {}})  # a Node changes: it has no Pod CIDRs any more
    controller.run()
    assert told_of(view) == "1"


def test_workers_at_the_same_time_count_by_the_same_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one worker still reads a new Node, another one counts its endpoints, too: no later pass does."""
    view = world(WORKER, service("web"), pods("10.20.1.1", nodeName="n2"), export_of("web"))
    endpoints, counts = served.ServedEndpoints(settings(pod_routing="auto")), list[int]()

    def count() -> None:
        (exported,) = view.list(ApiService)
        counts.append(endpoints.ports(view, exported, view.list(ApiEndpointSlice)).ready)

    def check_late(*of_node: Any) -> CheckedNode:
        monkeypatch.setattr(served, "check_node", check_node)
        count()
        return check_node(*of_node)

    count()
    view.local.put(node("n2", "192.0.2.8") | {"spec": {"podCIDRs": ["10.20.0.0/16"]}})
    monkeypatch.setattr(served, "check_node", check_late)
    count()
    assert counts == [0, 1, 1]


def test_gateways_report_endpoints_without_a_port_and_without_ipv4() -> None:
    """With the words of the ServiceExport. A Service of both families has its IPv4 addresses in other slices."""

    def problems(*slices: RawObject) -> dict[str, str]:
        objects = [WORKER, service("web"), *slices, export_of("web")]
        values = [value for item in objects if (value := parse_object(item, Kind(item["kind"])).value) is not None]
        compiled_node = compile_desired(snapshot(*values, gateway("n1", "192.0.2.7")), Facts(), config("n1"))
        return {
            p.reason: p.message for p in compiled_node.desired.problems if p.subject == "ServiceExport shop/web"
        }

    good, six = slice_of("web", *TWO, name="good"), slice_of("web", "fd00::1", name="six")
    assert problems(good) == problems(good, six) == {}
    assert set(problems(six)) == {"EndpointIPv6"}
    assert set(problems(slice_of("web", *TWO, ports=()), good)) == set()  # the other slice has the port
    assert problems(slice_of("web", *TWO, "10.10.1.9", ports=()), good) == {
        "EndpointWithoutPort": '1 endpoints of port 80 are in EndpointSlices without a port "http" (TCP): not used'
    }


def test_an_export_of_pods_without_endpoints_is_not_ready() -> None:
    """endpointIPType PodIP: likewise."""
    view = world(service("web"), slice_of("web", *TWO, ports=()), export_of("web"))
    controller = Controller(view, [ServiceExports(settings(endpoint_ip_type=EndpointIpType.POD_IP))])
    controller.settle()
    accepted(view)
    controller.run()
    assert ready_of(view)[:2] == ("False", "NoUsableEndpoint")
    view.local.put(slice_of("web", *TWO))
    controller.run()
    assert ready_of(view)[:2] == ("True", "Exported")
