"""Purges of datapath flows: once after changes of policies, again after a failure, and not after other changes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from devtools.fake_backend import FakeBackend
from devtools.waiting import wait_until
from flows.pipeline.tables import INGRESS_TIERS, SERVICE
from mcagent.agent import flow_purge
from mcagent.agent.control_loop.reconciler import NodeReconciler
from mcagent.agent.flow_purge import FlowPurge, changes_policies
from mcagent.core.compile import Compiled
from mcagent.model.backoff import Backoff
from mcagent.model.config import Config
from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.facts import DatapathType, Facts
from mcagent.model.dataplane.resources import FlowEntry
from mcagent.model.errors import BackendError
from mcagent.model.objects import Snapshot
from mcagent.model.plan import ApplyResult, Desired, Fragment, Step


def step(table: int) -> Step:
    """Return the addition of a flow."""
    flow = FlowEntry(table=table, priority=1, match="ip", cookie=0, actions="drop")
    return Step(new=flow)


def test_only_flows_of_rules_are_policies() -> None:
    """A change of a Service or of nothing deletes no flows."""
    assert changes_policies([step(SERVICE.number), step(INGRESS_TIERS.number)])
    assert not changes_policies([step(SERVICE.number)])
    assert not changes_policies([])


class Flows(FakeBackend):
    """The flows of an ovs-vswitchd that carries out what it is sent, and may answer too late."""

    late = False

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Apply the steps."""
        result = super().apply(steps)
        if self.late:
            raise BackendError("openflow", "apply", "a bundle", "ovs-ofctl did not end in 10 s")
        return result


@pytest.mark.parametrize("datapath", DatapathType)
def test_changes_of_policies_that_are_answered_too_late_count(datapath: DatapathType) -> None:
    """A loaded ovs-vswitchd makes them all the same; the next observation has no difference."""
    flows, calls = Flows(Backend.OPENFLOW), list[bool]()
    fragment = Fragment(owner="policies", resources=(step(INGRESS_TIERS.number).resource,))
    reconciler = NodeReconciler(
        backends={name: FakeBackend(name) for name in Backend} | {Backend.OPENFLOW: flows},
        read_facts=lambda _: Facts(datapath=datapath),
        config=Config(node_name="n1"),
        compiler=lambda *_: Compiled(desired=Desired(fragments={"policies": fragment}), needs=frozenset()),
        policies_changed=lambda: calls.append(True),
    )
    for flows.late in (True, False):
        reconciler.reconcile(Snapshot(), observe=frozenset(Backend), blocked=frozenset())
    assert len(flows.world) == 1
    assert calls == [True] * (datapath is DatapathType.NETDEV)


def test_changes_in_quick_succession_are_one_purge_and_a_failed_one_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a change there is none."""
    monkeypatch.setattr(flow_purge, "RETRIES", Backoff(first=0.01, most=0.01, jitter=0.0))
    monkeypatch.setattr(flow_purge, "DELAY", 0.05)
    monkeypatch.setattr(flow_purge, "PAUSE", 0.0)
    calls: list[bool] = []

    def purge() -> None:
        calls.append(len(calls) != 0)
        if len(calls) == 1:
            raise BackendError("openflow", flow_purge.COMMAND, "socket", "Connection refused")

    flows = FlowPurge(purge)
    flows.start()
    try:
        for _ in range(5):
            flows.policies_changed()
        wait_until(lambda: len(calls) == 2, "a second attempt")
        flows.wake(at_once=True)  # without a change
    finally:
        flows.stop()
    assert calls == [False, True]
