"""What a turn of the loop publishes: links are read again only for what they show."""

from __future__ import annotations

from ipaddress import ip_network
from types import SimpleNamespace
from typing import Any, cast

from mcagent.agent.object_reader import ApiWriters
from mcagent.agent.reports.reporter import TurnRecorder
from mcagent.model.node_state import AcceptedCluster, NodeState
from mcagent.model.plan import Desired
from mcagent.observe.gateways import LiveReport
from mcagent.observe.report import Report


class Links:
    """Counts the times that links are to be read again."""

    def __init__(self) -> None:
        self.requests = 0

    def want(self, *_target: Any) -> None:
        """Take the target, which these tests do not change."""

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
    links = Links()
    api = SimpleNamespace(events=SimpleNamespace(record=lambda *_: None), links=links)
    recorder = TurnRecorder("gw1", cast("ApiWriters", api), lambda: (), lambda: "west")
    requests = []
    for item in (report("10.1.0.0/16"), report("10.2.0.0/16"), report("10.2.0.0/16", "10.3.0.0/16")):
        recorder.turned(item, LiveReport())
        requests.append(links.requests)
    recorder.turned(report("10.4.0.0/16", "10.3.0.0/16"), LiveReport())
    recorder.turned(report("10.4.0.0/16"), LiveReport())
    assert [*requests, links.requests] == [0, 0, 1, 2]
