"""The loop against facilities that fail, are slow, or are changed by somebody else."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_network

import pytest

from mcagent.agent.control_loop.schedule import LoopTiming
from mcagent.core.addresses.underlay import MAPPED
from mcagent.core.plan.contention import AT_ONCE
from mcagent.model.config import Config
from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.facts import DatapathType, Facts
from mcagent.model.dataplane.resources import Bridge, FlowEntry, HostPort, Route, TunnelPort
from mcagent.model.errors import BackendError, InputError
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.plan import Desired, Op
from tests.worlds.agentworld import Facility, World, cluster, gateway, listed, node


@pytest.fixture
def world() -> Iterator[World]:
    """A Node with a loop that ends with the test."""
    world = World()
    yield world
    world.loop.stop()


IN_USE = [name for name in Backend if name is not Backend.WIREGUARD]  # encryption is off in this world


def start_settled(world: World, clusters: int = 3) -> None:
    """Start with complete input and wait until the dataplane is right."""
    world.list_all(clusters)
    world.start()
    world.wait(world.settled)


def tunnels(world: World) -> set[str]:
    """Return the peers that there are tunnels to."""
    return {r.peer for r in list(world.facilities[Backend.OVSDB].world.values()) if isinstance(r, TunnelPort)}


def test_input_becomes_dataplane(world: World) -> None:
    """Every backend ends up with what compile asks for."""
    start_settled(world)
    assert tunnels(world) == {"c0", "c1", "c2"}
    filled = {name for name, facility in world.facilities.items() if facility.world}
    assert filled == set(IN_USE)
    assert world.loop.report.last_change is not None


def routes(world: World) -> set[str]:
    """Return the CIDRs of remote clusters that there are routes to."""
    resources = list(world.facilities[Backend.NETLINK].world.values())
    held_routes = (r for r in resources if isinstance(r, Route) and r.table == 28003)
    return {str(r.destination) for r in held_routes if r.destination.network_address not in MAPPED}


def test_nothing_is_touched_before_all_needed_kinds_are_listed(world: World) -> None:
    """While input is incomplete nothing is removed, and nothing added but the bare bridge; then it happens."""
    stranger = FlowEntry(table=9, priority=1, match="ip", cookie=1, actions="drop")
    world.facilities[Backend.OPENFLOW].world[stranger.key] = stranger
    listed(world.store, Kind.NODE, [node()])
    listed(world.store, Kind.CLUSTER_INFO_IMPORT, [cluster(0)])
    world.start()
    world.wait(lambda: world.loop.report.waiting_for == ("Gateway",))
    world.wait(lambda: not world.loop.pending)
    assert world.applied == []
    assert world.loop.report.backends[0].synced is False
    listed(world.store, Kind.GATEWAY, [gateway()])
    world.wait(lambda: "Service" in world.loop.report.waiting_for)  # it is a gateway, and needs more
    assert {type(step.new) for step in world.applied} == {Bridge, HostPort}
    assert {step.op for step in world.applied} == {Op.ADD}
    assert Kind.SERVICE in world.kinds_read[-1]
    for kind in (Kind.SERVICE, Kind.SERVICE_EXPORT, Kind.ENDPOINT_SLICE):
        listed(world.store, kind, [])
    world.wait(world.settled)
    assert stranger.key not in world.facilities[Backend.OPENFLOW].world


def test_what_a_gateway_needs_is_asked_for_while_other_kinds_are_listed(world: World) -> None:
    """Its Gateway object says enough; nothing is applied before the rest is there."""
    listed(world.store, Kind.GATEWAY, [gateway()])
    world.start()
    world.wait(lambda: bool(world.kinds_read) and Kind.SERVICE in world.kinds_read[-1])
    world.wait(lambda: not world.loop.pending)
    assert "Node" in world.loop.report.waiting_for
    assert Kind.SERVICE in world.kinds_read[-1]
    assert world.applied == []


def test_a_restart_that_finds_the_world_right_changes_nothing(world: World) -> None:
    """A new loop over the same facilities does zero operations."""
    start_settled(world)
    world.stop()
    for facility in world.facilities.values():
        facility.applied.clear()
    again = World(world.facilities)
    start_settled(again)
    again.stop()
    assert again.applied == []
    assert again.loop.report.drift == 0


def test_stopping_leaves_the_dataplane_as_it_is(world: World) -> None:
    """The end of the agent is no event for the dataplane."""
    start_settled(world)
    before = world.held
    world.stop()
    assert world.held == before


def test_one_change_costs_one_change(world: World) -> None:
    """After a complete apply a new cluster is added without reading anything back."""
    start_settled(world, clusters=20)
    reads = {name: facility.observations for name, facility in world.facilities.items()}
    count = len(world.applied)
    world.tell(Kind.CLUSTER_INFO_IMPORT, "ADDED", cluster(99))
    world.wait(lambda: world.settled() and "c99" in tunnels(world))
    assert {name: facility.observations for name, facility in world.facilities.items()} == reads
    desired = world.loop.report.desired
    assert desired is not None
    # Five more: the tunnel is made, and taken into use when its flows are there; its end is one of those guarded;
    # two chains have rules for its gateway; the meter of its fragments, which further clusters may share.
    assert len(world.applied) - count == len(desired.fragments["cluster/c99"].resources) + 5


def test_a_burst_of_a_thousand_changes_settles_in_a_handful_of_passes(world: World) -> None:
    """One object changed 1,000 times leads to one settled state, and nothing is left over."""
    start_settled(world)
    passes, before = world.loop.report.passes, world.held
    for number in range(1000):
        world.tell(Kind.CLUSTER_INFO_IMPORT, "MODIFIED", cluster(99))
        world.tell(Kind.CLUSTER_INFO_IMPORT, "DELETED" if number % 2 else "ADDED", cluster(99))
    world.wait(world.settled)
    assert world.held == before
    assert world.loop.report.passes - passes < 20


def test_an_object_deleted_and_made_again_settles(world: World) -> None:
    """The end state is that of the object being there."""
    start_settled(world)
    before = world.held
    world.tell(Kind.CLUSTER_INFO_IMPORT, "DELETED", cluster(1))
    world.wait(lambda: "c1" not in tunnels(world))
    world.tell(Kind.CLUSTER_INFO_IMPORT, "ADDED", cluster(1))
    world.wait(lambda: world.settled() and "c1" in tunnels(world))
    assert {n: set(h) for n, h in world.held.items()} == {n: set(h) for n, h in before.items()}


@pytest.mark.parametrize("broken", IN_USE)
def test_an_unreachable_backend_does_not_hold_up_the_others(world: World, broken: Backend) -> None:
    """The others hold what they should; when it comes back it is brought up to date."""
    world.facilities[broken].unreachable()
    world.list_all()
    world.start()
    other_facilities = [world.facilities[name] for name in IN_USE if name is not broken]
    world.wait(lambda: all(facility.world for facility in other_facilities))
    world.wait(lambda: any(b.name == broken and b.errors for b in world.loop.report.backends))
    assert not world.loop.report.converged
    world.facilities[broken].heal()
    world.wait(world.settled)
    assert world.facilities[broken].world


def test_a_refused_object_is_named_and_the_rest_goes_on(world: World) -> None:
    """One bad route costs that route; the error says which it is."""
    bad = world.facilities[Backend.NETLINK]
    bad.refuse(Route(table=28003, destination=ip_network("100.64.1.0/24")).key)
    world.list_all()
    world.start()
    world.wait(lambda: routes(world) == {"100.64.0.0/24", "100.64.2.0/24"} and len(tunnels(world)) == 3)
    world.wait(lambda: any("100.64.1.0/24" in text for b in world.loop.report.backends for text in b.errors))
    assert world.loop.report.last_pass is not None
    bad.heal()
    world.wait(world.settled)
    assert len(routes(world)) == 3


@pytest.mark.timing
def test_a_refusal_is_not_retried_in_a_tight_loop() -> None:
    """With the shipped timing a refusing backend is tried a few times in a second."""
    world = World(timing=LoopTiming())
    world.facilities[Backend.NFT].refuse_all()
    world.list_all()
    world.start()
    end = time.monotonic() + 1.0
    world.wait(lambda: time.monotonic() > end)
    world.stop()
    assert 1 <= world.facilities[Backend.NFT].observations <= 5


def test_new_input_reaches_the_others_while_one_is_failing(world: World) -> None:
    """Changes are applied to what works."""
    start_settled(world)
    world.facilities[Backend.NFT].unreachable()
    world.loop.suspect(Backend.NFT)
    world.wait(lambda: not world.loop.report.converged)
    world.tell(Kind.CLUSTER_INFO_IMPORT, "ADDED", cluster(50))
    world.wait(lambda: "c50" in tunnels(world) and len(routes(world)) == 4)


def test_tunnels_are_not_removed_while_flows_may_use_them(world: World) -> None:
    """When the flows cannot be changed the tunnels that they point to stay."""
    start_settled(world)
    world.facilities[Backend.OPENFLOW].unreachable()
    world.tell(Kind.CLUSTER_INFO_IMPORT, "DELETED", cluster(1))
    world.wait(lambda: any(b.name == "openflow" and b.errors for b in world.loop.report.backends))
    world.wait(lambda: len(routes(world)) == 2)
    assert "c1" in tunnels(world)
    world.facilities[Backend.OPENFLOW].heal()
    world.wait(lambda: world.settled() and "c1" not in tunnels(world))


def bfd_down(world: World) -> set[bool]:
    """Return what the tunnels tell their peers: whether nothing is to be sent."""
    ports = [port for port in list(world.facilities[Backend.OVSDB].world.values()) if isinstance(port, TunnelPort)]
    return {port.bfd is not None and port.bfd.cpath_down for port in ports}


def test_a_switch_that_is_gone_is_announced_and_used_again_after_its_flows(world: World) -> None:
    """While ovs-vswitchd does not run OVSDB holds "path down" until the flows are back, which is no drift."""
    start_settled(world)
    assert bfd_down(world) == {False}
    flows = world.facilities[Backend.OPENFLOW]
    before = world.held
    flows.world.clear()
    flows.unreachable(gone=True)
    world.loop.restarted(Backend.OPENFLOW, Backend.OVSDB)
    world.wait(lambda: bfd_down(world) == {True})
    world.wait(lambda: not world.loop.report.converged)
    flows.heal()
    world.loop.restarted(Backend.OPENFLOW, Backend.OVSDB)
    world.wait(world.settled)
    assert world.held == before
    assert world.loop.report.last_change is not None
    assert "tunnel" not in world.loop.report.last_change.drift


@pytest.mark.parametrize("datapath", DatapathType)
def test_lost_conntrack_is_told_once_the_flows_are_there(world: World, datapath: DatapathType) -> None:
    """Where it is part of the process that was lost: on the userspace datapath. An agent's restart loses none."""
    world.facts = replace(world.facts, datapath=datapath)
    flows = world.facilities[Backend.OPENFLOW]
    start_settled(world)
    once = int(datapath is DatapathType.NETDEV)
    assert world.states_lost == once  # it found no flows
    flows.world.clear()
    flows.unreachable(gone=True)
    world.loop.restarted(Backend.OPENFLOW, Backend.OVSDB)
    world.wait(lambda: not world.loop.report.converged)
    assert world.states_lost == once
    flows.heal()
    world.loop.restarted(Backend.OPENFLOW, Backend.OVSDB)
    world.wait(world.settled)
    assert world.states_lost == 2 * once
    world.tell(Kind.CLUSTER_INFO_IMPORT, "ADDED", cluster(8))
    world.loop.restarted(Backend.OPENFLOW)
    world.wait(world.settled)
    assert world.states_lost == 2 * once


def test_a_switch_that_only_is_slow_is_not_announced(world: World) -> None:
    """What cannot be asked may forward all the same: peers go on sending."""
    start_settled(world)
    world.facilities[Backend.OPENFLOW].unreachable("ovs-ofctl did not end in 10 s")
    world.loop.suspect(Backend.OPENFLOW)
    world.wait(lambda: not world.loop.report.converged)
    world.tell(Kind.CLUSTER_INFO_IMPORT, "ADDED", cluster(50))
    world.wait(lambda: "c50" in tunnels(world))
    new = [p for p in list(world.facilities[Backend.OVSDB].world.values()) if getattr(p, "peer", "") == "c50"]
    assert [port.bfd.cpath_down for port in new if isinstance(port, TunnelPort) and port.bfd] == [True]
    assert bfd_down(world) == {False, True}


def test_an_agent_that_starts_without_the_api_announces_that_there_are_no_flows(world: World) -> None:
    """After a reboot the database holds the tunnels of before: peers are told before any object is known."""
    start_settled(world)
    world.stop()
    world.facilities[Backend.OPENFLOW].world.clear()
    again = World(world.facilities)
    again.start()
    again.wait(lambda: bfd_down(again) == {True})
    again.list_all()
    again.wait(again.settled)
    assert bfd_down(again) == {False}
    again.stop()


def test_drift_is_put_right_counted_and_named(world: World) -> None:
    """What somebody else took away or added comes back as it was, and the report says that it was drift."""
    start_settled(world)
    actual = world.facilities[Backend.NETLINK].world
    lost_key = next(route.key for route in actual.values() if isinstance(route, Route))
    extra = Route(table=28003, destination=ip_network("10.200.0.0/16"))
    before = dict(actual)
    del actual[lost_key]
    actual[extra.key] = extra
    world.loop.suspect(Backend.NETLINK)
    world.wait(lambda: world.loop.report.drift == 2)
    assert actual == before
    assert world.loop.report.last_change is not None
    assert {text.split()[0] for text in world.loop.report.last_change.steps} == {"add", "delete"}


def test_a_change_of_input_is_not_called_drift(world: World) -> None:
    """What is put back is counted, what is new is not."""
    start_settled(world)
    count = len(world.facilities[Backend.NETLINK].world)
    world.facilities[Backend.NETLINK].world.clear()
    world.loop.suspect(Backend.NETLINK)
    world.tell(Kind.CLUSTER_INFO_IMPORT, "ADDED", cluster(50))
    world.wait(lambda: len(routes(world)) == 4 and world.loop.report.drift > 0)
    world.wait(world.settled)
    assert world.loop.report.drift == count


def test_a_periodic_resync_finds_what_nobody_told() -> None:
    """Without any event the whole dataplane is read again."""
    world = World(timing=LoopTiming(resync=0.1))
    start_settled(world)
    flows = world.facilities[Backend.OPENFLOW].world
    count = len(flows)
    flows.clear()
    world.wait(lambda: len(flows) == count)
    world.stop()
    assert world.loop.report.drift == count


def test_a_slow_backend_does_not_lose_changes(world: World) -> None:
    """What comes in while a pass takes its time is in the next one."""
    world.facilities[Backend.OVSDB].slow = 0.05
    world.list_all()
    world.start()
    for number in range(10, 20):
        world.tell(Kind.CLUSTER_INFO_IMPORT, "ADDED", cluster(number))
    world.wait(world.settled)
    assert len(tunnels(world)) == 13


def test_input_that_breaks_compile_changes_nothing(world: World) -> None:
    """A bug or an unusable input leaves the dataplane as it is; the agent says so and recovers."""
    start_settled(world)
    before, works = world.held, world.compile

    def broken(*args: object) -> object:
        raise ZeroDivisionError("a bug")

    world.compile = broken  # type: ignore[assignment]
    world.tell(Kind.CLUSTER_INFO_IMPORT, "DELETED", cluster(1))
    world.wait(lambda: "a bug" in world.loop.report.error)
    assert world.held == before
    assert not world.loop.report.converged
    world.compile = works
    world.tell(Kind.CLUSTER_INFO_IMPORT, "DELETED", cluster(2))
    world.wait(lambda: world.settled() and tunnels(world) == {"c0"})


def test_facts_that_cannot_be_read_at_start_are_waited_for(world: World) -> None:
    """Without facts nothing is computed; when they can be read it goes on by itself."""
    world.facts_error = BackendError("ovsdb", "connect", "db.sock", "no such file")
    world.list_all()
    world.start()
    world.wait(lambda: any(b.errors for b in world.loop.report.backends))
    assert world.applied == []
    world.facts_error = None
    world.wait(world.settled)


def test_a_new_configuration_is_taken_in_whole(world: World) -> None:
    """Everything is computed and compared again; nothing that is right is changed."""
    start_settled(world)
    count, passes = len(world.applied), world.loop.report.passes
    protected = (ip_network("198.51.100.0/24"),)
    world.loop.reconfigure(replace(world.loop._reconciler.config, protected_cidrs=protected))
    world.wait(lambda: world.settled() and world.loop.report.passes > passes)
    assert len(world.applied) == count


def test_failover_goes_on_from_the_last_desired_state_after_a_new_configuration(world: World) -> None:
    """Without it, for a pass, clusters of Antrea would count as silent, and tunnels would have no MTU."""
    before: list[Desired | None] = []

    class Recorder:
        wake = math.inf

        def linger(self, snapshot: Snapshot, config: Config) -> Snapshot:
            assert config
            return snapshot

        def facts(self, facts: Facts, snapshot: Snapshot, config: Config, desired: Desired | None) -> Facts:
            assert snapshot is not None
            assert config
            before.append(desired)
            return facts

    reconciler = world.loop._reconciler
    reconciler._failover = Recorder()  # type: ignore[assignment]
    start_settled(world)
    passes = len(before)
    world.loop.reconfigure(replace(reconciler.config, mtu=1300))
    world.wait(lambda: world.settled() and len(before) > passes)
    assert None not in before[passes:]


def test_bad_objects_cost_only_themselves(world: World) -> None:
    """An object that cannot be parsed keeps its last good version; others change."""
    start_settled(world)
    bad = cluster(1)
    bad["spec"]["serviceCIDR"] = "10.1"
    world.tell(Kind.CLUSTER_INFO_IMPORT, "MODIFIED", bad)
    world.tell(Kind.CLUSTER_INFO_IMPORT, "ADDED", cluster(9))
    world.wait(lambda: world.settled() and "c9" in tunnels(world))
    assert "c1" in tunnels(world)


def test_steps_are_adds_before_deletes_of_tunnels(world: World) -> None:
    """A tunnel that goes leaves after the flows that used it."""
    order: list[tuple[Backend, Op]] = []

    class Recorder(Facility):
        def apply(self, steps):  # type: ignore[no-untyped-def]
            order.extend((self.name, step.op) for step in steps)
            return super().apply(steps)

    recorded = World({name: Recorder(name) for name in Backend})
    start_settled(recorded)
    order.clear()
    recorded.tell(Kind.CLUSTER_INFO_IMPORT, "DELETED", cluster(1))
    recorded.wait(lambda: recorded.settled() and "c1" not in tunnels(recorded))
    recorded.stop()
    assert order[-1] == (Backend.OVSDB, Op.DELETE)


def test_input_errors_are_told_without_a_traceback(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """An error with a name is a line, not a stack."""
    start_settled(world)

    def refused(*args: object) -> object:
        raise InputError("configuration", "podCIDRs", "no")

    world.compile = refused  # type: ignore[assignment]
    world.loop.changed()
    world.wait(lambda: "podCIDRs" in world.loop.report.error)
    world.wait(lambda: any("nothing is changed: configuration: podCIDRs: no" in r.message for r in caplog.records))
    assert not any(record.exc_info for record in caplog.records)


def test_contention_with_another_writer_backs_off_and_is_reported(world: World) -> None:
    """What is taken away again and again is put back a few times, then left alone; the rest goes on."""
    start_settled(world)
    netlink = world.facilities[Backend.NETLINK]
    netlink.watch(lambda: world.loop.suspect(Backend.NETLINK))
    victim = next(r for r in list(netlink.world.values()) if isinstance(r, Route))
    other = next(r for r in list(netlink.world.values()) if isinstance(r, Route) and r != victim)
    for count in range(AT_ONCE):
        netlink.disturb(victim.key, None)
        world.wait(lambda: world.loop.report.drift == count + 1)  # noqa: B023 - called in this turn only
        assert victim.key in netlink.world
    netlink.disturb(victim.key, None)
    world.wait(lambda: any("again and again" in e for b in world.loop.report.backends for e in b.errors))
    assert not world.loop.report.converged
    netlink.disturb(other.key, None)
    world.wait(lambda: other.key in netlink.world)
    assert victim.key not in netlink.world
    world.wait(lambda: victim.key in netlink.world)  # the pause is over
    world.wait(world.settled)


def test_a_facility_that_restarts_again_and_again_is_no_contention(world: World) -> None:
    """ovs-vswitchd that crashes loses all flows each time: they are put back at once, every time."""
    start_settled(world)
    openflow = world.facilities[Backend.OPENFLOW]
    before = dict(openflow.world)
    for count in range(2 * AT_ONCE):
        openflow.world.clear()
        world.loop.suspect(Backend.OPENFLOW)
        world.wait(lambda: world.loop.report.drift == (count + 1) * len(before))  # noqa: B023 - in this turn only
        assert openflow.world == before
