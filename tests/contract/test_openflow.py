"""The OpenFlow backend against a real Open vSwitch in a namespace."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest

from devtools.nodes.ovs import OvsInstance
from devtools.waiting import wait_until
from mcagent.dataplane.openflow.backend import OpenFlowBackend
from mcagent.dataplane.openflow.ofctl import Ofctl
from mcagent.model.dataplane.resources import FlowEntry, GroupEntry, MeterEntry, Resource
from mcagent.model.errors import BackendError
from tests.contract.bridge_flows import COOKIE, flow, group, make_bridge
from tests.contract.inside import adds, as_mapping, make, steps_to
from tests.contract.suite import BackendContract, Case
from tests.waiting import allowed

pytestmark = [pytest.mark.contract, pytest.mark.datapath]


@pytest.fixture
def backend(ovs: OvsInstance) -> Iterator[OpenFlowBackend]:
    """Give a backend on a bridge of the module's Open vSwitch, without flows and groups."""
    if "ovs-vswitchd" not in ovs.pids:
        ovs.start_vswitchd()
    backend = OpenFlowBackend(make_bridge(ovs))
    ovs.ofctl("del-flows", backend.socket)
    ovs.ofctl("del-groups", backend.socket)
    ovs.ofctl("del-meters", backend.socket)
    yield backend
    backend.close()


# Each flow needs group 1, and group 3 needs group 2.
BASE = (group(1, 5),)
POOL = (
    FlowEntry(table=0, priority=0, match="", cookie=COOKIE, actions="drop"),
    FlowEntry(table=3, priority=32768, match="in_port=5", cookie=COOKIE | 5, actions="resubmit(,40)"),
    FlowEntry(
        table=52,
        priority=10,
        match="ct_state=+new+trk,ip,reg0=0x20/0x20",
        cookie=COOKIE | 6,
        actions="ct(commit,table=54,zone=28005,nat(src=192.0.2.1),exec(move:NXM_NX_REG2[0..15]->NXM_NX_CT_LABEL[0..15]))",
    ),
    flow(1),
    flow(2),
    flow(3, priority=7),
    group(2, 6, 7),
    replace(flow(1), actions="drop"),
    replace(flow(2), cookie=COOKIE | 77),
    group(2, 8),
)
FOREIGN = "cookie=0x99,table=40,priority=3,tcp,nw_dst=198.51.100.0/24 actions=output:9"


class TestOpenFlow(BackendContract):
    """The contract, with a flow of somebody else's cookie about."""

    @pytest.fixture
    def case(self, backend: OpenFlowBackend, ovs: OvsInstance) -> Case:
        def add_foreign() -> None:
            ovs.ofctl("add-flow", backend.socket, FOREIGN)

        return Case(
            backend=backend,
            base=BASE,
            pool=POOL,
            refused=flow(9, actions="group:4242"),
            add_foreign=add_foreign,
            foreign=lambda: ovs.ofctl("--no-stats", "dump-flows", backend.socket, "cookie=0x99/-1"),
            break_facility=ovs.kill_vswitchd,
        )


def test_groups_and_flows_in_any_order_are_one_valid_bundle(backend: OpenFlowBackend) -> None:
    """Flows before their groups, groups before the groups they point to: the backend puts them in order."""
    chained = GroupEntry(
        group_id=3,
        body="type=ff,bucket=bucket_id:1,watch_port:5,actions=group:9,bucket=bucket_id:2,watch_group:2,actions=group:2",
    )
    resources: list[Resource] = [flow(1, actions="group:3"), chained, group(2, 6), group(9, 5)]
    make(backend, resources)
    assert backend.observe() == as_mapping(resources)
    result = backend.apply(list(reversed(steps_to(backend.observe(), []))))
    assert not result.failed
    assert backend.observe() == {}


def test_a_changed_group_keeps_the_flows_that_point_to_it(backend: OpenFlowBackend, ovs: OvsInstance) -> None:
    """Groups are modified in place: a flow's counters go on."""
    make(backend, [group(1, 5), flow(1, table=0)])
    ovs.ofctl("packet-out", backend.socket, f"in_port=CONTROLLER,packet={PACKET},actions=resubmit(,0)")
    wait_until(lambda: backend.flow_stats()[COOKIE | 1] == 1, "the packet to be counted")
    make(backend, [group(1, 6, 7), flow(1, table=0)])
    assert backend.flow_stats()[COOKIE | 1] == 1


@pytest.mark.parametrize(
    "body",
    [
        "type=ff,bucket=bucket_id:6,watch_port:6,actions=output:6",
        "type=indirect,bucket=bucket_id:6,actions=output:6",
    ],
)
def test_a_group_may_change_its_type(backend: OpenFlowBackend, body: str) -> None:
    """When only one bucket is left, or a second one comes, the group is still the same group."""
    single = GroupEntry(group_id=1, body=body)
    for wanted in (group(1, 5, 6), single, group(1, 6, 7)):
        make(backend, [wanted, flow(1, table=0)])
        assert backend.observe() == as_mapping([wanted, flow(1, table=0)])


# An IPv4 packet 10.0.0.9 -> 10.0.0.1, UDP, without payload.
PACKET = (
    "ffffffffffff0a0000000001080045000024000000004011"  # Ethernet, IPv4 up to its protocol
    "66b70a0000090a000001003500350010000000000000000000000000"
)


def test_counters_are_summed_by_cookie(backend: OpenFlowBackend, ovs: OvsInstance) -> None:
    """Flows that share a cookie are counted together; others' flows not at all."""
    flows = [flow(1, table=0), flow(2, table=0, cookie=COOKIE | 1), flow(3, table=0)]
    make(backend, [group(1, 5), *flows])
    ovs.ofctl("add-flow", backend.socket, FOREIGN)
    for _ in range(2):
        ovs.ofctl("packet-out", backend.socket, f"in_port=CONTROLLER,packet={PACKET},actions=resubmit(,0)")
    wait_until(lambda: backend.flow_stats()[COOKIE | 1] == 2, "the packets to be counted")
    stats = backend.flow_stats()
    assert set(stats) == {COOKIE | 1, COOKIE | 3}
    assert stats[COOKIE | 3] == 0


def test_reading_starts_two_processes(backend: OpenFlowBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """For flows and for groups; meters are read without one. Each resync of an idle agent reads everything."""
    meters = [MeterEntry(meter_id=number, rate=10, burst=20) for number in range(1, 4000)]
    entries_with_meters: list[Resource] = [*BASE, *meters]
    make(backend, entries_with_meters)
    started: list[str] = []
    start = Ofctl._start

    def counted(ofctl: Ofctl, args: Sequence[str], stdin: int) -> object:
        started.append(" ".join(args))
        return start(ofctl, args, stdin)

    monkeypatch.setattr(Ofctl, "_start", counted)
    assert backend.observe() == as_mapping(entries_with_meters)
    assert len(started) == 2, started


def test_packets_of_some_cookies_are_counted_without_a_process(
    backend: OpenFlowBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one table; a cookie without flows has no packets. The agent counts them again and again."""
    make(backend, [group(1, 5), flow(1, table=0, match="ip", actions="drop"), flow(2, table=0), flow(3, table=1)])
    backend.send(7, [bytes.fromhex(PACKET)] * 3)
    monkeypatch.setattr(Ofctl, "_start", lambda *_: pytest.fail("a process"))
    many = [COOKIE | number for number in range(1000, 1300)]

    def counts() -> Mapping[int, int]:
        return backend.packet_counts(0, [COOKIE | 1, COOKIE | 2, COOKIE | 3, *many])

    wait_until(lambda: counts()[COOKIE | 1] == 3, "the packets to be counted")
    assert sum(counts().values()) == 3
    assert len(counts()) == 303
    with pytest.raises(BackendError, match="read"):
        OpenFlowBackend(backend.socket.replace(".mgmt", "-not.mgmt")).packet_counts(0, [COOKIE])


def test_packets_go_through_the_flows_as_if_they_came_by_a_port(backend: OpenFlowBackend) -> None:
    """However many: all were taken in when the call returns; a bridge that is not there is an error."""
    flows = [flow(n, table=0, match=f"ip,in_port={port}", actions="drop") for n, port in ((1, 7), (2, 8))]
    make(backend, flows)
    backend.send(7, [bytes.fromhex(PACKET)] * 300)
    wait_until(lambda: backend.flow_stats()[COOKIE | 1] == 300, "the packets to be counted")
    assert backend.flow_stats()[COOKIE | 2] == 0
    nowhere = OpenFlowBackend(backend.socket.replace(".mgmt", "-not.mgmt"))
    with pytest.raises(BackendError, match="send packets"):
        nowhere.send(7, [bytes.fromhex(PACKET)])


@pytest.mark.parametrize(
    "bad",
    [
        flow(500, actions="nonsense"),
        flow(500, actions="group:4242"),
        flow(500, match="ip,nonsense=1"),
        flow(500, actions="ct(nat(src=192.0.2.1))"),
        GroupEntry(group_id=500, body="type=select,bucket=actions=output:1,bucket=nonsense"),
        GroupEntry(group_id=500, body="type=select,selection_method=nonsense,bucket=actions=output:1"),
    ],
    ids=["action unknown", "group unknown", "field unknown", "NAT without commit", "bucket bad", "method unknown"],
)
def test_the_one_bad_step_of_many_is_found(backend: OpenFlowBackend, bad: FlowEntry | GroupEntry) -> None:
    """Whether ovs-ofctl or ovs-vswitchd refuses it, the error names it, and the others take effect."""
    good: list[Resource] = [group(1, 5), *(flow(number) for number in range(300))]
    result = backend.apply(adds(*good[:200], bad, *good[200:]))
    assert [step.new for step, _ in result.failed] == [bad]
    error = result.failed[0][1]
    assert not error.retryable
    assert len(str(error)) < 600
    assert backend.observe() == as_mapping(good)


def test_what_needs_a_refused_group_is_told_so(backend: OpenFlowBackend) -> None:
    """The flows of a bad group fail with it, in one go, and the rest stands."""
    bad = GroupEntry(group_id=8, body="type=select,selection_method=nonsense,bucket=actions=output:1")
    users = [flow(number, actions="group:8") for number in range(100)]
    above = GroupEntry(group_id=9, body="type=all,bucket=bucket_id:0,actions=group:8")
    result = backend.apply(adds(bad, *users, above, flow(200, actions="group:9"), group(1, 5), flow(300)))
    assert len(result.failed) == 103
    assert "which it needs" in str(result.failed[-1][1])
    assert backend.observe() == as_mapping([group(1, 5), flow(300)])


@pytest.mark.timing
def test_a_stage_of_nothing_but_bad_steps_is_given_up(backend: OpenFlowBackend) -> None:
    """An OVS that refuses everything is not asked ten thousand times."""
    steps = adds(*(flow(number, actions="group:4242") for number in range(1000)))
    begin = time.monotonic()
    result = backend.apply(steps)
    assert len(result.failed) == 1000
    assert time.monotonic() - begin < allowed(20)
    assert backend.observe() == {}


def test_packets_meet_all_of_a_stage_or_nothing(backend: OpenFlowBackend) -> None:
    """Whoever looks while a stage is applied sees the flows before or the flows after, never a mixture."""
    before: list[Resource] = [group(1, 5), *(flow(number, actions="drop") for number in range(1000))]
    after: list[Resource] = [group(1, 5), *(flow(number) for number in range(1000))]
    make(backend, before)
    steps = steps_to(backend.observe(), after)
    arrivals: list[bool] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            observed = backend.observe()
            arrivals.append(observed in (as_mapping(before), as_mapping(after)))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        assert not backend.apply(steps).failed
    finally:
        ended.set()
        thread.join()
    assert arrivals
    assert all(arrivals)


def test_without_a_bridge_there_is_nothing_and_nothing_can_be_applied(ovs: OvsInstance) -> None:
    """Before the bridge is made the agent finds no flows; it is not an outage."""
    backend = OpenFlowBackend(ovs.mgmt("br-none"))
    assert backend.observe() == {}
    assert not backend.has_flows()
    assert backend.flow_stats() == {}
    with pytest.raises(BackendError, match=r"br-none\.mgmt"):
        backend.apply(adds(*BASE))


@pytest.mark.timing
def test_a_restart_of_vswitchd_is_heard_at_once(fresh_ovs: OvsInstance) -> None:
    """Its end and its return wake the loop; then the flows are gone and can be programmed again."""
    backend = OpenFlowBackend(make_bridge(fresh_ovs))
    heard: list[float] = []
    backend.watch(*[lambda: heard.append(time.monotonic())] * 2)
    try:
        wait_until(lambda: heard, "first word of the connection")
        make(backend, [*BASE, *POOL[:3]])
        assert len(heard) == 1
        fresh_ovs.kill_vswitchd()
        wait_until(lambda: len(heard) == 2, "word of the end", timeout=1)
        with pytest.raises(BackendError):
            backend.observe()
        fresh_ovs.start_vswitchd()
        wait_until(lambda: len(heard) >= 3, "word of the return", timeout=2)
        assert backend.observe() == {}
        assert not backend.has_flows()
        make(backend, [*BASE, *POOL[:3]])
        assert backend.has_flows()
    finally:
        backend.close()


def test_meters_come_before_the_flows_that_use_them_and_go_after_them(
    backend: OpenFlowBackend, ovs: OvsInstance
) -> None:
    """They are found again, changed under the flows that use them, and removed with these in one call."""
    meters = [MeterEntry(meter_id=number, rate=10, burst=20) for number in (1, 2, 65535)]
    metered = flow(1, actions="meter:65535,goto_table:50")
    resources: list[Resource] = [metered, *meters]
    assert not backend.apply(adds(*resources)).failed
    assert backend.observe() == as_mapping(resources)
    changed: list[Resource] = [metered, *meters[:2], replace(meters[2], rate=11)]
    assert not backend.apply(steps_to(backend.observe(), changed)).failed
    assert backend.observe() == as_mapping(changed)
    assert backend.over_limit() == 0
    ovs.ofctl("mod-meter", backend.socket, "meter=2 kbps bands=type=drop rate=5")
    observed = backend.observe()
    assert not backend.apply(steps_to(observed, changed)).failed
    assert backend.observe() == as_mapping(changed)
    assert not backend.apply(steps_to(backend.observe(), [])).failed
    assert backend.observe() == {}


def test_a_meter_that_was_just_made_or_changed_lets_new_connections_through(backend: OpenFlowBackend) -> None:
    """Its bucket is empty then, and fills within milliseconds at a usual rate: eight connections at once pass."""
    counted = flow(2, table=50, match="ip", actions="drop")
    metered = flow(1, table=0, match="ip", actions="meter:1,goto_table:50")
    for turn, rate in enumerate((10_000, 9_000), start=1):
        make(backend, [MeterEntry(meter_id=1, rate=rate, burst=2 * rate), metered, counted])
        backend.send(7, [bytes.fromhex(PACKET)] * 8)
        wait_until(lambda: backend.flow_stats()[COOKIE | 1] == 8 * turn, "the packets to be counted")  # noqa: B023
        assert backend.over_limit() == 0
        assert backend.flow_stats()[COOKIE | 2] == 8 * turn


def test_a_refused_meter_takes_only_its_flows_along(backend: OpenFlowBackend) -> None:
    """The others are programmed, and the error names the meter and what to set."""
    bad = MeterEntry(meter_id=0xFFFF_FFF0, rate=10, burst=20)  # above the highest number (OFPM_MAX)
    metered = flow(1, actions=f"meter:{bad.meter_id},goto_table:50")
    result = backend.apply(adds(bad, metered, *BASE, flow(2)))
    assert backend.observe() == as_mapping([*BASE, flow(2)])
    assert {step.new for step, _ in result.failed} == {bad, metered}
    assert "newConnections" in str(result.failed[0][1])


def test_a_datapath_without_meters_is_one_problem(
    backend: OpenFlowBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many meters and flows it costs: one error, which says what to set. The others are programmed."""
    dump = backend._dump
    features = "OFPST_METER_FEATURES reply (OF1.5) (xid=0x2):\nmax_meter:0 max_bands:0 max_color:0\n"

    def answer(command: str, *args: str, **options: Sequence[str]) -> str | None:
        return features if command == "meter-features" else dump(command, *args, **options)

    monkeypatch.setattr(backend, "_dump", answer)
    bad = [MeterEntry(meter_id=0xFFFF_FFF0 + number, rate=10, burst=20) for number in range(3)]
    metered = [flow(meter.meter_id & 0xF, actions=f"meter:{meter.meter_id},goto_table:50") for meter in bad]
    result = backend.apply(adds(*bad, *metered, *BASE, flow(9)))
    assert backend.observe() == as_mapping([*BASE, flow(9)])
    assert {step.new for step, _ in result.failed} == {*bad, *metered}
    (error,) = {error for _, error in result.failed}
    assert "set newConnections and fragments to 0" in str(error)
    assert not error.retryable


@pytest.mark.timing
def test_ten_thousand_flows_are_written_and_read_in_little_time(backend: OpenFlowBackend) -> None:
    """Generous bounds: what matters is that neither grows faster than the number of flows."""
    resources: list[Resource] = [group(1, 5), *(flow(number) for number in range(10_000))]
    steps = adds(*resources)
    begin = time.monotonic()
    assert not backend.apply(steps).failed
    applied = time.monotonic()
    assert len(backend.observe()) == len(resources)
    observed = time.monotonic()
    print(f"apply {applied - begin:.3f} s, observe {observed - applied:.3f} s")
    assert observed - begin < 10
