"""Applying: what may go on side by side does, and what stands on others waits for them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from ipaddress import ip_address, ip_network

import pytest

from devtools.fake_backend import FakeBackend
from mcagent.agent.control_loop.apply import Applier, Phases
from mcagent.agent.pass_outcome import Failure
from mcagent.core.plan.diff import diff, flows_first
from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.dataplane.resources import Bridge, FlowEntry, NftChain, PeerKind, Route
from mcagent.model.plan import ApplyResult, Desired, Fragment, Plan, Step
from tests.worlds.core_inputs import tunnel_port

BRIDGE = Bridge(name="br-mc", datapath=DatapathType.NETDEV)
TUNNEL = tunnel_port(2, "n2", PeerKind.GATEWAY)
FLOW = FlowEntry(table=0, priority=0, match="", cookie=1, actions="drop")
CHAIN = NftChain(table="t", name="c", type="nat", hook="postrouting", priority=99, rules=())
ROUTE = Route(table=1, destination=ip_network("10.1.0.0/16"), device="mc-gw0", via=ip_address("192.0.2.9"))


class Meeting(FakeBackend):
    """A facility whose `apply` ends when another one's has begun, too."""

    def __init__(self, name: Backend, barrier: threading.Barrier) -> None:
        super().__init__(name)
        self._barrier = barrier

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Wait for the other, then apply."""
        self._barrier.wait(10)
        return super().apply(steps)


def plan() -> Plan:
    """Return the plan of a Node with nothing on it."""
    desired = Desired(fragments={"u": Fragment(owner="u", resources=(BRIDGE, TUNNEL, FLOW, ROUTE, CHAIN))})
    return flows_first(diff({}, desired), (), blank=True)


def facilities() -> dict[Backend, FakeBackend]:
    """Return one of each kind."""
    return {backend: FakeBackend(backend) for backend in Backend}


def test_flows_and_nft_of_an_empty_bridge_go_side_by_side() -> None:
    """Neither waits for the other; the bridge is there before both, its tunnel after both and the routes."""
    barrier = threading.Barrier(2)
    backends = facilities()
    backends |= {name: Meeting(name, barrier) for name in (Backend.OPENFLOW, Backend.NFT)}
    failures: dict[Backend, Failure] = {}
    done = Applier(backends, frozenset(), failures, Phases()).plan(plan())
    assert not failures
    order = [step.new for step in done]
    assert order[0] == BRIDGE
    assert set(order[1:3]) == {FLOW, CHAIN}
    assert order[3:] == [ROUTE, TUNNEL]


@pytest.mark.parametrize("away", [True, False])
def test_without_its_flows_an_empty_bridge_gets_no_tunnel(away: bool) -> None:
    """The tunnel is held back, and said to be, when flows are refused or cannot be sent; routes are added."""
    backends = facilities()
    if away:
        backends[Backend.OPENFLOW].unreachable()
    else:
        backends[Backend.OPENFLOW].refuse_all()
    failures: dict[Backend, Failure] = {}
    done = Applier(backends, frozenset(), failures, Phases()).plan(plan())
    assert [step.new for step in done] == [BRIDGE, CHAIN, ROUTE]
    assert failures.keys() == {Backend.OPENFLOW, Backend.OVSDB}
    assert "held back until the flows" in str(failures[Backend.OVSDB].errors[0])
    assert failures[Backend.OVSDB].retryable
    assert not failures[Backend.OVSDB].unreachable


def test_a_bug_in_one_lane_comes_through() -> None:
    """What is no refusal of a facility is not swallowed, wherever it happens."""

    class Broken(FakeBackend):
        def apply(self, steps: Sequence[Step]) -> ApplyResult:
            raise RuntimeError("bug")

    backends = facilities() | {Backend.NFT: Broken(Backend.NFT)}
    with pytest.raises(RuntimeError, match="bug"):
        Applier(backends, frozenset(), {}, Phases()).plan(plan())
