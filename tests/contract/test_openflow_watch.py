"""Changes of flows and groups that we did not make are heard; ours are not. Against a real Open vSwitch."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from devtools.nodes.ovs import OvsInstance
from devtools.waiting import wait_until
from flows.pipeline.registers import AGENTS_FRAME, ETHERTYPE_AGENTS
from mcagent.core.failover.reachability import MOST, decode_frame, encode_frame
from mcagent.dataplane.openflow.backend import OpenFlowBackend
from mcagent.dataplane.openflow.ofctl import PIPE_SIZE, Ofctl
from mcagent.dataplane.openflow.watch import QUIET
from mcagent.model.dataplane.resources import Resource
from tests.contract.bridge_flows import COOKIE, flow, group, make_bridge
from tests.contract.inside import adds, as_mapping, make, steps_to
from tests.contract.ovs_values import DATAPATH

pytestmark = pytest.mark.contract

FLOWS = tuple(flow(number) for number in range(20))
HELD: list[Resource] = [group(1, 5), *FLOWS]
IN_TIME = 2.0  # seconds to hear of a change, where less than 5 until it is put back are promised


@dataclass(kw_only=True)
class Watched:
    """A backend whose bridge is watched. `settled` grows when all changes of ours were accounted for."""

    backend: OpenFlowBackend
    ovs: OvsInstance
    heard: list[float] = field(default_factory=list)
    settled: list[float] = field(default_factory=list)

    def make(self, resources: list[Resource]) -> None:
        """Apply, and wait until the watch knows that it was us."""
        before = len(self.settled)
        make(self.backend, resources)
        wait_until(lambda: len(self.settled) > before, "the watch to have counted our changes")

    def by_hand(self, *args: str) -> None:
        """Do something to the bridge."""
        command, *other_arguments = args
        self.ovs.ofctl(command, self.backend.socket, *other_arguments)


@pytest.fixture
def watched(ovs: OvsInstance, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """Give a backend that has programmed HELD, and whose bridge is watched."""
    if "ovs-vswitchd" not in ovs.pids:
        ovs.start_vswitchd()
    backend = OpenFlowBackend(make_bridge(ovs))
    ovs.ofctl("del-flows", backend.socket)
    ovs.ofctl("del-groups", backend.socket)
    watched_bridge = Watched(backend=backend, ovs=ovs)
    prepare = Ofctl.prepare

    def settled(ofctl: Ofctl) -> None:
        prepare(ofctl)
        watched_bridge.settled.append(time.monotonic())

    monkeypatch.setattr(Ofctl, "prepare", settled)
    backend.watch(*[lambda: watched_bridge.heard.append(time.monotonic())] * 2)
    try:
        wait_until(lambda: watched_bridge.heard and watched_bridge.settled, "first word of the connection")
        watched_bridge.make(HELD)
        watched_bridge.heard.clear()
        yield watched_bridge
    finally:
        backend.close()


def test_first_fragments_have_ports(watched: Watched) -> None:
    """The bridge shows flows the ports of first fragments: policies decide a datagram by them."""
    assert watched.ovs.ofctl("get-frags", watched.backend.socket).strip() == "nx-match"


def test_our_own_changes_are_no_news(watched: Watched) -> None:
    """Flows and groups added, changed and deleted by us, one or many, are not heard as somebody else's."""
    changes: tuple[list[Resource], ...] = (
        [],
        HELD,
        [group(1, 5), *(replace(changed_flow, actions="drop") for changed_flow in FLOWS)],
        [group(1, 5, 6), group(2, 7), *(flow(number, priority=9) for number in range(3))],
        [group(2, 7), *(flow(number, actions="drop", cookie=COOKIE | 99) for number in range(2))],
        HELD,
    )
    for change_lists in changes:
        watched.make(change_lists)
    refused = flow(77, actions="group:4711")
    before = len(watched.settled)
    assert len(watched.backend.apply(adds(refused, flow(78, actions="drop"))).failed) == 1
    wait_until(lambda: len(watched.settled) > before, "the watch to have counted our changes")
    watched.make(HELD)
    assert watched.heard == []


@pytest.mark.parametrize(
    "change",
    [
        ("add-flow", f"cookie={COOKIE | 5:#x},table=40,priority=7,ip,nw_dst=192.0.2.1,actions=drop"),
        ("add-flow", "cookie=0x5,table=40,priority=100,ip,nw_dst=10.0.0.3,actions=drop"),
        ("mod-flows", "table=40,ip,nw_dst=10.0.0.3,actions=drop"),
        ("del-flows", "table=40,ip,nw_dst=10.0.0.3"),
        ("del-flows",),
        ("add-group", "group_id=9,type=indirect,bucket=drop"),
        ("mod-group", "group_id=1,type=select,bucket=output:9"),
        ("del-groups", "group_id=1"),
    ],
    ids=lambda change: " ".join(change)[:40],
)
def test_what_is_changed_by_hand_is_heard(watched: Watched, change: tuple[str, ...]) -> None:
    """Whatever is done to a flow or group of ours, or added as one, is heard, and can be put back."""
    watched.by_hand(*change)
    wait_until(lambda: watched.heard, "word of the change", timeout=IN_TIME)
    steps = steps_to(watched.backend.observe(), HELD)
    assert steps
    assert not watched.backend.apply(steps).failed
    assert watched.backend.observe() == as_mapping(HELD)


def test_flows_of_others_are_their_own_business(watched: Watched) -> None:
    """A flow with another cookie is looked at once, for it may have taken the place of ours; it goes unheard."""
    watched.by_hand("add-flow", "cookie=0x7,table=41,actions=drop")
    wait_until(lambda: watched.heard, "word of the new flow", timeout=IN_TIME)
    watched.heard.clear()
    watched.by_hand("del-flows", "cookie=0x7/-1")
    watched.make([*HELD, flow(500)])
    assert watched.heard == []


def test_a_change_by_hand_beside_ours_is_heard(watched: Watched) -> None:
    """One change more than ours while a bundle of ours is under way is news."""
    watch = watched.backend._watch
    assert watch is not None
    watch.begin()
    watched.by_hand("add-flow", f"cookie={COOKIE | 8:#x},table=40,priority=8,ip,nw_dst=192.0.2.8,actions=drop")
    watch.end(0)
    wait_until(lambda: watched.heard, "word of the change", timeout=IN_TIME)


@pytest.mark.timing
def test_who_changes_again_and_again_is_heard_now_and_then(watched: Watched) -> None:
    """However often flows are changed, two words are seconds apart: reading all flows is not for free."""
    until = time.monotonic() + QUIET * 1.5
    while time.monotonic() < until:
        watched.by_hand("add-flow", f"cookie={COOKIE | 8:#x},table=40,priority=8,ip,nw_dst=192.0.2.8,actions=drop")
        watched.by_hand("del-flows", f"cookie={COOKIE | 8:#x}/-1")
    assert 1 <= len(watched.heard) <= 2


@pytest.mark.timing
def test_many_flows_at_once_are_told_in_the_end(watched: Watched) -> None:
    """Where Open vSwitch pauses its word of changes because they are too many, one look at all flows follows."""
    watched.make([*HELD, *(flow(number) for number in range(100, 12_000))])
    wait_until(lambda: len(watched.heard) <= 2, "no flood of words")
    watched.by_hand("del-flows", "table=40,ip,nw_dst=10.0.0.0/16")
    wait_until(lambda: watched.heard and watched.heard[-1] > time.monotonic() - 1, "word", timeout=QUIET + IN_TIME)


def test_a_process_waits_for_the_next_bundle_and_its_death_does_no_harm(watched: Watched) -> None:
    """Small bundles go by it, large ones and those after its death by their own; none is left in the end."""
    ofctl = watched.backend._ofctl
    first = ofctl._prepared
    assert first is not None
    watched.make([*HELD, flow(300)])
    assert first.returncode == 0
    second = ofctl._prepared
    assert second is not None
    os.kill(second.pid, signal.SIGKILL)
    watched.make([*HELD, flow(301)])
    third = ofctl._prepared
    many = [flow(number) for number in range(1000, 3000)]
    assert sum(len(changed_flow.actions) for changed_flow in many) > PIPE_SIZE // 2
    watched.make([*HELD, *many])
    assert third is not None
    assert third.poll() is None
    watched.backend.close()
    assert third.returncode is not None
    assert ofctl._prepared is None


def test_a_process_whose_agent_dies_changes_nothing(watched: Watched) -> None:
    """The end of the input without a line is an empty bundle."""
    process = watched.backend._ofctl._prepared
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(5) == 0
    assert watched.backend.observe() == as_mapping(HELD)


def test_what_a_gateway_tells_is_heard_by_the_port_it_came_in_by_and_nothing_else(ovs: OvsInstance) -> None:
    """A frame that one bridge sends out by ports reaches the agent of another where a flow hands it over."""
    far, frame = "br-far", encode_frame(range(MOST))
    backend = OpenFlowBackend(make_bridge(ovs))
    ovs.vsctl("--may-exist", "add-br", far, "--", "set", "bridge", far, f"datapath_type={DATAPATH}")
    for number, other in ((21, 31), (22, 32)):
        for bridge, mine, theirs in (("br-mc", number, other), (far, other, number)):
            options = ("type=patch", f"ofport_request={mine}", f"options:peer=patch{theirs}")
            ovs.vsctl("add-port", bridge, f"patch{mine}", "--", "set", "interface", f"patch{mine}", *options)
    received: list[tuple[int, bytes]] = []
    answered: list[int] = []
    backend.watch(lambda: answered.append(1), lambda: None, on_packet=lambda *packet: received.append(packet))
    try:
        wait_until(lambda: answered, "first word of the connection")
        match = f"in_port=22,dl_type=0x{ETHERTYPE_AGENTS:04x}"
        make(backend, [flow(1, table=0, match=match, actions=f"CONTROLLER:{AGENTS_FRAME}")])
        sender = OpenFlowBackend(ovs.mgmt(far))
        sender.send_out([31, 32], frame)
        sender.send_out([32], frame.replace(b"\x88\xb5", b"\x88\xb6", 1))
        sender.send_out([31] * 150 + [32], encode_frame(()))  # in more than one message
        wait_until(lambda: len(received) == 2, "both that come by port 22")
        assert [port for port, _ in received] == [22, 22]
        assert [decode_frame(packet) for _, packet in received] == [frozenset(range(MOST)), frozenset()]
    finally:
        backend.close()
        ovs.vsctl("del-br", far)
        for number in (21, 22):
            ovs.vsctl("del-port", "br-mc", f"patch{number}")
