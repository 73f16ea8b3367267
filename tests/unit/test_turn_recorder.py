"""What a turn of the loop publishes: links are read again only for what they show."""

from __future__ import annotations

import math
from ipaddress import ip_network
from types import SimpleNamespace
from typing import Any, cast

from mcagent.agent.object_reader import ApiWriters
from mcagent.agent.reports.reporter import TurnRecorder
from mcagent.core.compile import compile_desired
from mcagent.kube.client import Client
from mcagent.kube.publish import Publisher
from mcagent.model.dataplane.facts import Facts
from mcagent.model.errors import SourceError
from mcagent.model.node_state import AcceptedCluster, EncryptionState, NodeState, Publication
from mcagent.model.objects import Kind, Meta, WireGuardInfo
from mcagent.model.plan import Desired
from mcagent.observe.gateways import LiveReport
from mcagent.observe.report import Report
from tests.worlds.core_inputs import HOME, config, gateway, snapshot


class Links:
    """Counts the times that links are to be read again."""

    def __init__(self) -> None:
        self.requests = 0
        self.target: tuple[Any, ...] = ()

    def want(self, *target: Any) -> None:
        """Store the target."""
        self.target = target

    def wake(self) -> None:
        """Count."""
        self.requests += 1


def report(pod_cidr: str, *refused: str) -> Report:
    """Return a report with one remote cluster. `refused`: its Pod CIDRs that this gateway does not use."""
    east = AcceptedCluster(
        cluster_id="east",
        cidrs=(ip_network(pod_cidr),),
        gateways=(),
        snat=False,
        refused_pods=tuple(map(ip_network, refused)),
    )
    return Report(desired=Desired(fragments={}, state=NodeState(clusters={"east": east})), converged=True)


def test_links_are_read_again_only_if_refused_pod_cidrs_change() -> None:
    """With 1,000 clusters, reading all links costs a tenth of the processor time of a change."""
    links, publisher = Links(), SimpleNamespace(want_nothing=lambda: None)
    api = SimpleNamespace(
        events=SimpleNamespace(record=lambda *_: None),
        links=links,
        publisher=publisher,
        node_publisher=publisher,
    )
    recorder = TurnRecorder("gw1", cast("ApiWriters", api), lambda: (), lambda: "west")
    requests = []
    for item in (report("10.1.0.0/16"), report("10.2.0.0/16"), report("10.2.0.0/16", "10.3.0.0/16")):
        recorder.turned(item, LiveReport())
        requests.append(links.requests)
    recorder.turned(report("10.4.0.0/16", "10.3.0.0/16"), LiveReport())
    recorder.turned(report("10.4.0.0/16"), LiveReport())
    assert [*requests, links.requests] == [0, 0, 1, 2]


class Refusing:
    """An API server without the objects that are written."""

    def __init__(self) -> None:
        self.requests = 0

    def request(self, *_request: Any, **_options: Any) -> Any:
        """Refuse."""
        self.requests += 1
        raise SourceError("not found")


def test_a_node_that_is_no_gateway_any_more_publishes_no_key() -> None:
    """Its Gateway was deleted before the key was seen in it: each further write would be refused, without end."""
    server = Refusing()
    publisher, node_publisher = (Publisher(cast("Client", server)) for _ in range(2))
    events = SimpleNamespace(record=lambda *_: None, problems=lambda *_: None)
    api = SimpleNamespace(events=events, links=Links(), publisher=publisher, node_publisher=node_publisher)
    recorder = TurnRecorder("gw1", cast("ApiWriters", api), lambda: (), lambda: "west")
    key = WireGuardInfo(public_key="k")
    publications = [
        Publication(meta=Meta(kind=kind, name="gw1"), published=None, desired=key)
        for kind in (Kind.GATEWAY, Kind.NODE)
    ]
    for encryption in (
        EncryptionState(publication=publications[0], node_publication=publications[1]),
        EncryptionState(),
    ):
        state = NodeState(encryption=encryption)
        recorder.turned(Report(desired=Desired(fragments={}, state=state), converged=True), LiveReport())
        waits = [item._publish() for item in (publisher, node_publisher)]
    assert server.requests == 2
    assert waits == [math.inf, math.inf]


def test_the_gateway_of_a_node_that_is_none_has_no_links() -> None:
    """Its links and its reports of other gateways were of tunnels that do not exist any more."""
    links, publisher = Links(), SimpleNamespace(want_nothing=lambda: None, want=lambda *_: None)
    events = SimpleNamespace(record=lambda *_: None, problems=lambda *_: None)
    api = SimpleNamespace(events=events, links=links, publisher=publisher, node_publisher=publisher)
    recorder = TurnRecorder("g1", cast("ApiWriters", api), lambda: [cast("Any", "a link")], lambda: "west")
    off = compile_desired(snapshot(*HOME), Facts(), config("g1", enable_gateway=False))
    recorder.turned(Report(desired=off.desired, converged=True), LiveReport())
    meta, look, *_, gateway_report = links.target
    assert (meta.subject, look(), gateway_report) == (gateway("g1", "192.0.2.1").meta.subject, (), None)
