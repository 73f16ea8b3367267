"""compile_desired: BFD, what is watched, what is on standby, drain, order, and gateways that come and go."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.flow import Bucket, GroupType
from flows.parse import parse_group
from mcagent.core.compile import Compiled, Compiler, compile_desired
from mcagent.core.failover.reachability import cluster_hash
from mcagent.core.local_cluster.gateways import Lingering
from mcagent.core.plan.diff import diff_desired
from mcagent.model.config import GatewayMode, GatewaySelection
from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.facts import DatapathType, Drain, Facts
from mcagent.model.dataplane.resources import Bfd, Bridge, GroupEntry, PeerKind, TunnelPort
from mcagent.model.objects import Snapshot
from mcagent.model.problem import Problem, Severity
from tests.properties import costly
from tests.worlds.compiled_gateways import EAST, THIRD, WEST, compiled, home, seen_by, tunnels
from tests.worlds.core_inputs import HOME, addresses, cluster, config, gateway, node, resources, snapshot

STANDBY: dict[str, Any] = {"gateways": GatewayMode.ACTIVE_STANDBY}
ANY, GATEWAYS, CLUSTER = 3, 4, 6  # kinds of groups


def bridge(compiled: Compiled) -> Bridge:
    """Return the bridge."""
    return next(r for r in compiled.desired.fragments["base"].resources if isinstance(r, Bridge))


def group(compiled: Compiled, kind: int, number: int) -> GroupEntry | None:
    """Return a group."""
    return next(
        (r for r in resources(compiled) if isinstance(r, GroupEntry) and r.group_id == kind << 24 | number), None
    )


def choice(compiled: Compiled, kind: int, cluster_id: str = "") -> list[list[str]]:
    """Return what a group chooses from: the far ends, best first, those that are chosen by hash together.

    An end that is used whether BFD knows it or not has a "!". What is used when nothing is live is left out.
    """
    number = compiled.state.cluster_ids[cluster_id] if cluster_id else 0
    entry = group(compiled, kind, number)
    assert entry is not None
    top = parse_group(f"group_id={entry.group_id},{entry.body}")
    ends = {port.ofport: end for end, port in tunnels(compiled).items()}

    def end(bucket: Bucket) -> str:
        port = int(str(bucket.actions[-1]).split("port=")[1].split(")")[0])
        return ends[port] + ("" if bucket.watch_port == port else "!")

    if top.type is GroupType.SELECT:
        return [sorted(map(end, top.buckets))]
    levels = []
    for bucket in top.buckets:
        if bucket.watch_group is None:
            if [end(bucket).removesuffix("!")] not in levels:
                levels.append([end(bucket)])
            continue
        if bucket.watch_group >> 24 == ANY:
            continue
        inner = group(compiled, bucket.watch_group >> 24, bucket.watch_group & 0xFFFFFF)
        assert inner is not None
        levels.append(sorted(map(end, parse_group(f"group_id={inner.group_id},{inner.body}").buckets)))
    return levels


def held(compiled: Compiled, *ends: str) -> Facts:
    """Return facts in which these tunnels are held, and all peers seen."""
    ports = tunnels(compiled)
    live_ports = frozenset(port.name for port in ports.values())
    return Facts(bfd_seen=live_ports, damped=frozenset(ports[end].name for end in ends))


G1, G2, G3 = "192.0.2.1", "192.0.2.2", "192.0.2.4"


def test_bfd_is_on_every_tunnel_with_the_interval_of_its_kind() -> None:
    """Inside a cluster and between clusters alike 100 ms by default; nothing when it is off."""
    default, far = Bfd(min_tx=100, min_rx=100), Bfd(min_tx=200, min_rx=200)
    for on in ("g1", "w1"):
        assert {port.bfd for port in tunnels(compiled(home(), on)).values()} == {default}
        for port in tunnels(compiled(home(), on, bfd_remote_interval=0.2)).values():
            assert port.bfd == (far if port.peer_kind is PeerKind.REMOTE else default)
        assert {port.bfd for port in tunnels(compiled(home(), on, bfd_enable=False)).values()} == {None}


def test_with_too_many_workers_bfd_is_between_gateways_only() -> None:
    """Gateway and worker agree on it, and the worker trusts what the API says."""
    many = home(node("w2", "192.0.2.5", "10.10.5.0/24"))
    for limit, far_end in ((2, True), (1, False)):
        on_gateway = tunnels(compiled(many, "g1", bfd_max_nodes=limit))
        assert {p.bfd is not None for p in on_gateway.values() if p.peer_kind is PeerKind.NODE} == {far_end}
        assert all(p.bfd is not None for p in on_gateway.values() if p.peer_kind is not PeerKind.NODE)
        on_worker = compiled(many, "w1", bfd_max_nodes=limit)
        assert {p.bfd is not None for p in tunnels(on_worker).values()} == {far_end}
        mark = "" if far_end else "!"
        assert choice(on_worker, GATEWAYS) == [[end + mark for end in (G1, G2, G3)]]


def test_a_gateway_that_reaches_nobody_asks_its_own_cluster_only() -> None:
    """Other clusters, one of which may be back at any time, are told nothing."""
    for port in tunnels(compiled(home(), "g1", Facts(isolated=True))).values():
        assert port.bfd is not None
        assert port.bfd.cpath_down is (port.peer_kind is not PeerKind.REMOTE)


def test_a_worker_and_a_gateway_without_other_clusters_are_not_isolated() -> None:
    """They reach no other cluster either, but no packets to one are sent to them."""
    facts = Facts(isolated=True)
    alone = snapshot(*HOME, *THIRD)
    for ports in (tunnels(compiled(home(), "w1", facts)), tunnels(compiled(alone, "g1", facts))):
        assert {port.bfd is not None and port.bfd.cpath_down for port in ports.values()} == {False}


def test_a_session_that_begins_gets_another_interval() -> None:
    """Which makes Open vSwitch send at once; only that tunnel, and also in a pass that reuses the one before."""
    again = Compiler()
    first = again.compile(home(), seen_by(home(), config("g1")), config("g1"))
    normal = {port.name: port.bfd for port in tunnels(first).values()}
    name = min(normal)
    for compiler in (Compiler(), again):
        facts = seen_by(home(), config("g1"), bfd_begins=frozenset({name}))
        begins = compiler.compile(home(), facts, config("g1"))
        ports = {port.name: port.bfd for port in tunnels(begins).values()}
        usual = normal[name]
        assert usual is not None
        assert ports == {**normal, name: replace(usual, min_tx=usual.min_tx + 1)}


def test_a_path_gets_its_own_multiplier() -> None:
    """Only that tunnel, and no other interval: a change of the multiplier needs no poll sequence."""
    again = Compiler()
    first = again.compile(home(), seen_by(home(), config("g1")), config("g1"))
    normal = {port.name: port.bfd for port in tunnels(first).values()}
    name = min(port.name for port in tunnels(first).values() if port.peer_kind is PeerKind.REMOTE)
    for compiler in (Compiler(), again):
        facts = seen_by(home(), config("g1"), bfd_factors={name: 4})
        ports = {port.name: port.bfd for port in tunnels(compiler.compile(home(), facts, config("g1"))).values()}
        usual = normal[name]
        assert usual is not None
        assert ports == {**normal, name: replace(usual, mult=4 * usual.mult)}


def test_without_a_live_gateway_all_are_used() -> None:
    """Where nobody looks elsewhere: a worker whose sessions begin anew does not wait for them."""
    worker = compiled(home(), "w1")
    facts = compiled(home(), "w1", held(worker))
    last = group(facts, ANY, 0)
    assert last is not None
    ends = parse_group(f"group_id={last.group_id},{last.body}").buckets
    first = group(facts, 1, 0)
    assert first is not None
    # the same numbers, so what goes to one of them goes on to the same one
    assert [(b.bucket_id, b.actions) for b in ends] == [
        (b.bucket_id, b.actions) for b in parse_group(f"group_id={first.group_id},{first.body}").buckets
    ]
    assert {bucket.watch_port for bucket in ends} == {None}
    assert group(compiled(home(), "w1", Facts()), ANY, 0) is None  # who never answered BFD is used anyhow


def test_a_peer_that_never_answered_is_used_without_bfd() -> None:
    """It is watched from the first answer on, and that is written down on the port."""
    source = home()
    compiler = Compiler()
    before = compiler.compile(source, Facts(), config("g1"))
    assert choice(before, CLUSTER, "east") == [["203.0.113.1!", "203.0.113.2!", "203.0.113.3!"]]
    assert not any(port.bfd_seen for port in tunnels(before).values())
    facts = Facts(bfd_seen=frozenset({tunnels(before)["203.0.113.2"].name}))
    after = compiler.compile(source, facts, config("g1"))
    assert choice(after, CLUSTER, "east") == [["203.0.113.1!", "203.0.113.2", "203.0.113.3!"]]
    assert [end for end, port in tunnels(after).items() if port.bfd_seen] == ["203.0.113.2"]
    changed = {n for n, fragment in after.desired.fragments.items() if before.desired.fragments[n] is not fragment}
    assert changed == {"cluster/east"}


def test_a_silent_peer_is_a_problem_of_the_object_that_names_it() -> None:
    """Another cluster's gateway of its import, a Node of itself; with the causes that come into question."""
    source = home()
    ports = tunnels(compiled(source, "g1"))
    silent = frozenset({ports["203.0.113.2"].name, ports["192.0.2.3"].name})
    facts = Facts(silent=silent, datapath=DatapathType.SYSTEM)
    problems = {p.subject: p for p in compiled(source, "g1", facts).desired.problems if p.reason == "PeerSilent"}
    assert sorted(problems) == ["ClusterInfoImport mc/east-clusterinfo", "Node w1"]
    east = problems["ClusterInfoImport mc/east-clusterinfo"]
    assert (east.path, east.severity) == ("spec.gatewayInfos", Severity.WARNING)
    assert "203.0.113.2" in east.message
    assert "UDP port 6081 is blocked" in east.message
    assert "uplink" not in east.message


def test_an_idle_gateway_of_antrea_is_no_problem() -> None:
    """It sends nothing by itself. Its silence is a problem once traffic to its cluster had no answer."""
    alone = cluster("north", "10.99.0.0/16", gateways=("203.0.113.20",))
    source = home(alone)
    name = tunnels(compiled(source, "g1"))["203.0.113.20"].name
    no_ports, tunnel = frozenset[str](), frozenset({name})

    def reasons(
        on: str = "g1", *, unanswered: frozenset[str] = no_ports, idle: frozenset[str] = no_ports
    ) -> list[str]:
        facts = Facts(silent=tunnel, bfd_unanswered=unanswered, idle=idle)
        problems = compiled(source, on, facts).desired.problems
        return [problem.reason for problem in problems if problem.reason == "PeerSilent"]

    assert reasons(unanswered=tunnel, idle=tunnel) == []
    assert reasons(unanswered=tunnel) == ["PeerSilent"]
    assert reasons(idle=tunnel) == ["PeerSilent"]  # an agent of mcagent sends BFD
    assert reasons("g2", unanswered=tunnel) == []  # Antrea's gateways answer the first gateway only


def test_an_unreachable_cluster_is_a_problem_on_each_node() -> None:
    """It is a problem of its import, so that status, Events and the page show it; all Nodes report the same."""
    source = home()
    facts = Facts(unreachable=frozenset({cluster_hash("east"), cluster_hash("elsewhere")}))

    def reported(node: str, facts: Facts) -> list[Problem]:
        problems = compiled(source, node, facts).desired.problems
        return [problem for problem in problems if problem.reason == "ClusterUnreachable"]

    assert [problem.subject for problem in reported("g1", facts)] == ["ClusterInfoImport mc/east-clusterinfo"]
    assert reported("w1", facts) == reported("g1", facts)
    assert reported("g1", Facts()) == []


def test_a_silent_peer_is_on_standby_while_another_is_there() -> None:
    """What is known to work comes first; where nothing is known of any, all are used."""
    source = home()
    ports = tunnels(compiled(source, "g1"))
    silent = {number: ports[f"203.0.113.{number}"].name for number in (1, 2, 3)}
    facts = Facts(bfd_seen=frozenset({silent[1]}), silent=frozenset({silent[2], silent[3]}))
    assert choice(compiled(source, "g1", facts), CLUSTER, "east") == [
        ["203.0.113.1"],
        ["203.0.113.2!", "203.0.113.3!"],
    ]
    all_silent = compiled(source, "g1", Facts(silent=frozenset(silent.values())))
    assert choice(all_silent, CLUSTER, "east") == choice(compiled(source, "g1", Facts()), CLUSTER, "east")


def test_an_uplink_that_a_userspace_datapath_cannot_use_is_a_problem() -> None:
    """Nothing leaves then, whatever else is right."""
    facts = Facts(uplink_outside="eth0", datapath=DatapathType.NETDEV)
    problems = [p for p in compiled(home(), "w1", facts).desired.problems if p.reason == "UplinkOutside"]
    assert [(p.subject, "eth0" in p.message) for p in problems] == [("Node w1", True)]


def test_a_held_tunnel_is_in_reserve() -> None:
    """It comes after all others, as one that is watched; all held is the same as none held."""
    source = home()
    plain = compiled(source, "g1")
    result = compiled(source, "g1", held(plain, "203.0.113.2"))
    assert choice(result, CLUSTER, "east") == [["203.0.113.1", "203.0.113.3"], ["203.0.113.2"]]
    assert choice(result, CLUSTER, "west") == choice(plain, CLUSTER, "west")
    all_held = compiled(source, "g1", held(plain, *(f"203.0.113.{n}" for n in (1, 2, 3))))
    assert choice(all_held, CLUSTER, "east") == choice(plain, CLUSTER, "east")
    on_worker = compiled(source, "w1")
    assert choice(compiled(source, "w1", held(on_worker, G3)), GATEWAYS) == [[G1, G2], [G3]]


def test_a_held_or_seen_tunnel_costs_one_unit() -> None:
    """One remote tunnel: its cluster; one of this cluster: the base. Never all clusters."""
    source = home(*(cluster(f"c{n}", f"10.{n}.0.0/16", gateways=(f"198.51.100.{n}",)) for n in range(100, 120)))
    for on, end, owners in (("g1", "203.0.113.8", {"cluster/west"}), ("g1", G2, {"base"}), ("w1", G2, {"base"})):
        compiler = Compiler()
        before = compiler.compile(source, seen_by(source, config(on)), config(on))
        after = compiler.compile(source, held(before, end), config(on))
        assert {n for n, u in after.desired.fragments.items() if before.desired.fragments[n] is not u} == owners
        plan = diff_desired(before.desired, after.desired)
        assert {stage.backend for stage in plan.stages} == {Backend.OPENFLOW}


@pytest.mark.parametrize("change", [{"ready": False}, {"unschedulable": True}, {"drain": True}])
def test_a_gateway_whose_node_should_not_serve_is_in_reserve(change: dict[str, Any]) -> None:
    """Not Ready, cordoned or draining: its tunnel stays, new connections take the others."""
    source = home(g2=change)
    for on, other_gateways in (("w1", [G1, G3]), ("g1", [G3])):
        result = compiled(source, on)
        assert choice(result, GATEWAYS) == [other_gateways, [G2]]
        assert tunnels(result).keys() == tunnels(compiled(home(), on)).keys()
    snapshot = home(g1=change, g2=change, g3=change)
    assert choice(compiled(snapshot, "w1"), GATEWAYS) == [[G1, G2, G3]]
    compiler = Compiler()
    worker = compiler.compile(home(), seen_by(home(), config("g1")), config("g1"))
    cordoned = compiler.compile(home(w1=change), seen_by(home(), config("g1")), config("g1"))
    assert not diff_desired(worker.desired, cordoned.desired).stages


def test_drain_tells_other_clusters_first_and_then_all() -> None:
    """Concatenated path down on tunnels to remote gateways, then on every tunnel; nothing else changes."""
    source, settings_ = home(), config("g1")
    for drain, signalled in ((Drain.NONE, set()), (Drain.REMOTE, {PeerKind.REMOTE}), (Drain.ALL, set(PeerKind))):
        result = compile_desired(source, seen_by(source, settings_, drain=drain), settings_)
        for port in tunnels(result).values():
            assert port.bfd is not None
            assert port.bfd.cpath_down is (port.peer_kind in signalled)
        before = compiled(source, "g1")
        steps = diff_desired(before.desired, result.desired).steps
        assert {type(step.new) for step in steps} <= {TunnelPort}


def test_active_standby_has_an_order() -> None:
    """The API's; one that was put first stays first until failback is asked for, and that outlives the agent."""
    source = home()
    result = compiled(source, "w1", **STANDBY)
    assert choice(result, GATEWAYS) == [[G1], [G2], [G3]]
    order = ("g3", "203.0.113.9")
    facts = seen_by(source, config("w1"), active_order=order)
    assert choice(compiled(source, "w1", facts, **STANDBY), GATEWAYS) == [[G3], [G1], [G2]]
    assert bridge(compiled(source, "w1", facts, **STANDBY)).active_order == order
    back = compiled(source, "w1", facts, failback=True, **STANDBY)
    assert (choice(back, GATEWAYS), bridge(back).active_order) == ([[G1], [G2], [G3]], ())
    active = compiled(source, "w1", facts)
    assert (choice(active, GATEWAYS), bridge(active).active_order) == ([[G1, G2, G3]], ())
    facts = seen_by(source, config("g1"), active_order=order)
    remote = compiled(source, "g1", facts, **STANDBY)
    assert choice(remote, CLUSTER, "west") == [["203.0.113.9"], ["203.0.113.8"]]
    assert choice(remote, CLUSTER, "east") == [["203.0.113.1"], ["203.0.113.2"], ["203.0.113.3"]]


def test_active_standby_by_age() -> None:
    """Gateway objects come in the order of their creation; those on standby come last."""
    young = gateway("g1", G1, created="2026-11-20T10:00:00Z")
    assert choice(compiled(home(young), "w1", **STANDBY), GATEWAYS) == [[G2], [G3], [G1]]
    result = compiled(home(young, g2={"ready": False}), "w1", **STANDBY)
    assert choice(result, GATEWAYS) == [[G3], [G1], [G2]]


def test_annotated_nodes_are_gateways_without_a_controller() -> None:
    """`gatewaySelection: readiness`: the annotation decides, Gateway objects only tell addresses."""
    mode: dict[str, Any] = {"gateway_selection": GatewaySelection.READINESS}
    annotated: dict[str, Any] = {"gateway_annotation": True}
    source = home(
        node("w2", "192.0.2.5", "10.10.5.0/24"),
        g1=annotated,
        g2={**annotated, "ready": False},
        w1={**annotated, "gateway_ip": addresses("198.51.100.7")[0]},
    )
    source = replace(source, gateways={k: g for k, g in source.gateways.items() if g.meta.name != "g2"})
    result = compiled(source, "w2", **mode)
    assert choice(result, GATEWAYS) == [[G1, "192.0.2.3"], [G2]]
    assert [(g.node, str(g.gateway_ip)) for g in result.state.gateways] == [
        ("g1", G1),
        ("g2", G2),
        ("w1", "198.51.100.7"),
    ]
    assert compiled(source, "w1", **mode).state.role == "gateway"
    assert compiled(source, "g3", **mode).state.role == "worker"


def test_a_gateway_that_the_api_has_no_more_lingers() -> None:
    """Peers keep its tunnel on standby and it stays a gateway, until its time is over."""
    before, settings_ = home(), config("w1")
    after = replace(before, gateways={k: g for k, g in before.gateways.items() if g.meta.name != "g2"})
    state = Lingering().at(before, settings_, 100.0, 10.0)
    assert (state.leaving, state.wakes) == ((), math.inf)
    assert state.put_into(before) is before
    state = state.at(after, settings_, 101.0, 10.0)
    assert state.wakes == 111.0
    state = state.at(after, settings_, 105.0, 10.0)
    shown = state.put_into(after)
    assert state.put_into(shown) is shown
    assert choice(compiled(shown, "w1"), GATEWAYS) == [[G1, G3], [G2]]
    assert compiled(shown, "g2").state.role == "gateway"
    assert compiled(after, "g2").state.role == "worker"
    assert state.without("g2").put_into(after) is after
    assert state.at(before, settings_, 106.0, 10.0).leaving == ()
    over = state.at(after, settings_, 111.0, 10.0)
    assert (over.leaving, over.wakes) == ((), math.inf)
    assert choice(compiled(over.put_into(shown), "w1"), GATEWAYS) == [[G1, G3]]
    assert over.at(after, settings_, 200.0, 10.0).leaving == ()


_NODES = st.dictionaries(
    st.sampled_from(["g1", "g2", "g3", "w1"]),
    st.fixed_dictionaries({"ready": st.booleans(), "unschedulable": st.booleans()}),
)


@st.composite
def _worlds(draw: st.DrawFn) -> tuple[Snapshot, Facts]:
    source = home(**draw(_NODES))
    if draw(st.booleans()):
        gone = next(g for g in source.gateways.values() if g.meta.name == "g3")
        source = replace(
            source, gateways={k: g for k, g in source.gateways.items() if g is not gone}, leaving=(gone,)
        )
    names = sorted(port.name for port in tunnels(compile_desired(source, Facts(), config("g1"))).values())
    some_names = st.frozensets(st.sampled_from(names))
    order = st.lists(st.sampled_from(["g1", "g2", "g3", "gone", "203.0.113.2", "203.0.113.9"]), unique=True)
    facts = Facts(
        bfd_seen=draw(some_names),
        damped=draw(some_names),
        silent=draw(some_names),
        drain=draw(st.sampled_from(Drain)),
        active_order=tuple(draw(order)),
    )
    return source, facts


@costly
@given(st.lists(_worlds(), min_size=1, max_size=4), st.sampled_from(["g1", "w1"]), st.sampled_from(GatewayMode))
def test_whatever_is_held_every_candidate_is_there_once(
    worlds: list[tuple[Snapshot, Facts]], on: str, mode: GatewayMode
) -> None:
    """After any changes the result is that of a fresh start; each way is in its group once, held ones last."""
    settings_ = config(on, gateways=mode)
    compiler = Compiler()
    for source, facts in worlds:
        after = compiler.compile(source, facts, settings_)
        assert after.desired == compile_desired(source, facts, settings_).desired
        ports = tunnels(after)
        ends = {end for end, port in ports.items() if port.peer_kind is PeerKind.GATEWAY}
        levels, held_ = choice(after, GATEWAYS), facts.damped | facts.silent
        assert sorted(end.rstrip("!") for level in levels for end in level) == sorted(ends)
        if on == "g1":
            for remote in (EAST, WEST):
                levels = choice(after, CLUSTER, remote.cluster_id)
                flat = [end.rstrip("!") for level in levels for end in level]
                assert sorted(flat) == sorted(map(str, remote.gateway_ips))
                marks = [ports[end].name in held_ for end in flat]
                assert all(marks) or mode is GatewayMode.ACTIVE_ACTIVE or marks == sorted(marks)
                for level in levels if not all(marks) else []:
                    assert len({ports[end.rstrip("!")].name in held_ for end in level}) == 1
                for level in levels:
                    for end in level:
                        assert end.endswith("!") is (ports[end.rstrip("!")].name not in facts.bfd_seen)
