"""compile_desired: what a Node should have, and that work done before is reused without ever showing."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.pipeline.tables import FRAGMENTS
from mcagent.core.compile import Compiled, Compiler, compile_desired
from mcagent.core.ids import ENDED_METER, assign_ids, assign_ofports
from mcagent.core.plan.diff import diff, diff_desired
from mcagent.core.snapshot import Upsert, apply_changes
from mcagent.model.config import Config, EncryptionFallback, GatewayMode, PodRouting, TrafficEncryption
from mcagent.model.dataplane.facts import DatapathType, Drain, Facts
from mcagent.model.dataplane.resources import (
    Bridge,
    FlowEntry,
    GroupEntry,
    HostPort,
    Link,
    MeterEntry,
    NftChain,
    NftSet,
    PeerKind,
    Resource,
    Route,
    RouteType,
    Rule,
    TunnelPort,
)
from mcagent.model.dataplane.wireguard import WireGuardImplementation
from mcagent.model.objects import ApiObject, Kind, Snapshot, WireGuardInfo
from mcagent.model.parsing.labels import NAMESPACE_NAME, identity
from mcagent.model.traffic import read_traffic
from tests.properties import costly
from tests.worlds.core_inputs import (
    ATTRIBUTES,
    HOME,
    addresses,
    cluster,
    config,
    endpoint,
    endpoint_slice,
    export,
    gateway,
    imported_slice,
    label_identity,
    namespace,
    networks,
    node,
    pod,
    policy,
    resources,
    service,
    service_import,
    snapshot,
)

NO_FACTS = Facts()
EAST = cluster("east", "10.97.0.0/16", "10.20.0.0/16", gateways=("203.0.113.1", "10.20.0.9"))
WEST = cluster("west", "10.98.0.0/16", "10.30.0.0/16", gateways=("203.0.113.3",))


def compiled(*objects: ApiObject, on: str = "g1", facts: Facts = NO_FACTS, **values: Any) -> Compiled:
    """Return what Node `on` of cluster home should have."""
    return compile_desired(snapshot(*HOME, *objects), facts, config(on, **values))


def of(kind: type, resources: Iterable[Resource]) -> list[Any]:
    """Return those of one class."""
    return [r for r in resources if isinstance(r, kind)]


def test_without_a_role_the_bare_bridge_stands() -> None:
    """No gateway, no Node object, or switched off: bridge and host port, no routes, rules, flows or nft."""
    empty = compile_desired(Snapshot(), NO_FACTS, config("g1"))
    off = compiled(EAST, enable_gateway=False)
    for found in (empty, off):
        assert list(found.desired.fragments) == ["base"]
        assert {type(r) for r in resources(found)} & {Route, Rule, FlowEntry, NftChain, TunnelPort} == set()
        assert [r.name for r in of(Bridge, resources(found))] == ["br-mc"]
        assert [(r.name, r.ofport) for r in of(HostPort, resources(found))] == [("mc-gw0", 1)]
    assert empty.state.role == "none"


@pytest.mark.parametrize(
    ("routing", "of_others"), [(PodRouting.AUTO, " ip saddr != 10.10.9.0/24"), (PodRouting.PER_POD, "")]
)
def test_sources_of_other_nodes_pods_are_not_kept_at_a_node_port(routing: PodRouting, of_others: str) -> None:
    """At each IPv4 address of the Node. Where Pods' addresses do not tell their Node, it holds for Pods of all."""
    dual = node("w9", ("172.18.0.9", "fd00::9"), "10.10.9.0/24", "fd00:10::/64")
    result = compiled(EAST, dual, on="w9", pod_routing=routing)
    (chain,) = (one for one in of(NftChain, resources(result)) if one.name == "mct_post")
    assert chain.rules == (
        f'oifname "mc-gw0" ct original ip daddr 172.18.0.9{of_others} accept',
        'oifname "mc-gw0" ip saddr @mct_pods snat to ip saddr',
    )


LAST = networks("10.96.0.0/16")
WITHOUT_ROLE = {
    "no Gateway any more": ("w1", replace(snapshot(*HOME, EAST, WEST), gateways={}, service_cidrs=LAST)),
    "no Gateway since the start": ("w1", replace(snapshot(*HOME, EAST, WEST), gateways={})),
    "no Gateway on a gateway": ("g1", replace(snapshot(*HOME, EAST, WEST), gateways={}, service_cidrs=LAST)),
    "no usable address": ("new", snapshot(*HOME, EAST, WEST, node("new", "fe80::1", "10.10.4.0/24"))),
    "no Node": ("new", snapshot(*HOME, EAST, WEST)),
    "no Gateway that is reached": ("new", snapshot(*HOME, EAST, WEST, node("new", "fd00::1", "10.10.4.0/24"))),
}


@pytest.mark.parametrize("encryption", TrafficEncryption)
@pytest.mark.parametrize("case", WITHOUT_ROLE)
def test_without_a_role_packets_to_other_clusters_are_dropped(case: str, encryption: TrafficEncryption) -> None:
    """Routes, rules and nft lead them to the bridge as on a worker, and the bridge has no flow."""
    on, source = WITHOUT_ROLE[case]
    without_role = compile_desired(source, NO_FACTS, config(on, encryption=encryption))
    worker = compiled(EAST, WEST, on="w1", encryption=encryption)
    assert (without_role.state.role, worker.state.role) == ("none", "worker")
    assert without_role.state.clusters == worker.state.clusters
    assert {"cluster/east", "cluster/west"} <= without_role.desired.fragments.keys()  # as with a role
    routes, worker_routes = (of(Route, resources(every)) for every in (without_role, worker))
    assert {replace(r, source=None) for r in routes} == {replace(r, source=None) for r in worker_routes}
    assert of(Rule, resources(without_role)) == of(Rule, resources(worker))
    assert {r.key for r in of(NftChain, resources(without_role))} >= {
        r.key for r in of(NftChain, resources(worker)) if r.name in ("mct_post", "mct_mss")
    }
    assert {type(r) for r in resources(without_role)} & {FlowEntry, GroupEntry, TunnelPort} == set()
    problems = [p for p in without_role.desired.problems if p.reason == "NoRole"]
    assert [(p.subject, p.message) for p in problems] == [
        (f"Node {on}", f"{without_role.state.why}: packets to other clusters are dropped")
    ]


def test_what_is_dropped_without_a_role() -> None:
    """Nothing of this cluster, nothing without other clusters, and nothing with enableGateway off."""
    overlapping = cluster("west", "10.96.8.0/24")
    later = compile_desired(
        replace(snapshot(*HOME, EAST, overlapping), gateways={}, service_cidrs=LAST), NO_FACTS, config("w1")
    )
    routed = {str(r.destination) for r in of(Route, resources(later))}
    of_east = {"10.97.0.0/16", "254.20.12.8/32", "254.0.62.1/32"}  # its CIDR, and its gateways' mapped addresses
    assert routed == {*of_east, "254.0.149.117/32"}
    assert "OverlapsLocal" in {p.reason for p in later.desired.problems}
    first = replace(snapshot(*HOME, EAST, overlapping), gateways={})
    configured = compile_desired(first, NO_FACTS, config("w1", service_cidrs=LAST))
    assert {str(r.destination) for r in of(Route, resources(configured))} == routed
    restarted = compile_desired(first, NO_FACTS, config("w1"))
    assert {str(r.destination) for r in of(Route, resources(restarted))} == {*routed, "10.96.8.0/24"}
    bare = (
        compile_desired(first, NO_FACTS, config("w1", enable_gateway=False)),
        compile_desired(replace(first, service_cidrs=LAST), NO_FACTS, config("w1", enable_gateway=False)),
        compile_desired(replace(first, cluster_infos={}), NO_FACTS, config("w1")),
    )
    for resource in bare:
        assert list(resource.desired.fragments) == ["base"]
        assert {type(r) for r in resources(resource)} & {Route, Rule, NftChain} == set()
        assert "NoRole" not in {p.reason for p in resource.desired.problems}


def test_units_of_a_gateway() -> None:
    """A gateway has a fragment per Node, per cluster and per exported port."""
    result = compiled(
        EAST,
        WEST,
        service("web", "10.96.0.7", 80),
        export("web"),
        endpoint_slice("s", "web", [endpoint("10.10.3.9")], ("", 8080)),
    )
    assert sorted(result.desired.fragments) == [
        "base",
        "cluster/east",
        "cluster/west",
        "fragment-meters",
        "guard",
        "mapped",
        "node/g1",
        "node/g2",
        "node/w1",
        "service/default/web:80/tcp",
    ]
    assert [(t.peer_kind, t.peer, str(t.remote_ip)) for t in of(TunnelPort, resources(result))] == [
        (PeerKind.GATEWAY, "g2", "192.0.2.2"),
        (PeerKind.NODE, "w1", "192.0.2.3"),
        (PeerKind.REMOTE, "east", "203.0.113.1"),
        (PeerKind.REMOTE, "east", "10.20.0.9"),
        (PeerKind.REMOTE, "west", "203.0.113.3"),
    ]
    choosing, asking = of(GroupEntry, resources(result, "service/default/web:80/tcp"))
    assert "10.10.3.9:8080" in choosing.body
    assert "set_field:10.10.3.9->ip_dst" in asking.body


def test_units_of_a_worker() -> None:
    """A worker has tunnels to the gateways of its cluster and to nobody else, and no Services."""
    result = compiled(EAST, service("web", "10.96.0.7", 80), export("web"), on="w1")
    owners = ["base", "cluster/east", "fragment-meters", "guard", "mapped", "node/g1", "node/g2", "node/w1"]
    assert sorted(result.desired.fragments) == owners
    assert {(t.peer_kind, t.peer) for t in of(TunnelPort, resources(result))} == {
        (PeerKind.GATEWAY, "g1"),
        (PeerKind.GATEWAY, "g2"),
    }
    assert not result.state.all_services
    assert Kind.SERVICE_EXPORT not in result.needs
    assert {Kind.SERVICE, Kind.SERVICE_IMPORT} <= result.needs
    for off in (compiled(EAST, on="w1", imported_traffic=""), compiled(EAST, on="w1", cluster_id="")):
        assert not {Kind.SERVICE, Kind.SERVICE_IMPORT} & off.needs


def test_a_new_gateway_waits_for_all_services() -> None:
    """What a worker reads of them, those that are imported, is not enough for it."""
    selected = frozenset({Kind.SERVICE, Kind.ENDPOINT_SLICE})
    source = replace(snapshot(*HOME, EAST), selected=selected)
    assert compile_desired(source, NO_FACTS, config("w1")).missing(source) == frozenset()
    assert compile_desired(source, NO_FACTS, config("g1")).missing(source) == selected
    whole = replace(source, selected=frozenset())
    assert compile_desired(whole, NO_FACTS, config("g1")).missing(whole) == frozenset()


def test_routes() -> None:
    """Remote CIDRs and mapped addresses go into the host port; a gateway inside a CIDR is thrown out again."""
    result = compiled(EAST, enable_pod_to_pod=True)
    routes = {r.destination: r for r in of(Route, resources(result, "cluster/east"))}
    to_host_port = networks("10.97.0.0/16", "10.20.0.0/16", "254.0.62.1/32", "254.20.12.8/32")
    assert set(routes) == {*to_host_port, *networks("10.20.0.9/32")}
    service_route = routes[ip_network("10.97.0.0/16")]
    assert (service_route.table, service_route.device) == (28003, "mc-gw0")
    assert (str(service_route.via), str(service_route.source)) == ("169.254.77.2", "192.0.2.1")
    assert routes[ip_network("10.20.0.9/32")].type is RouteType.THROW
    worker = of(Route, resources(compiled(EAST, on="w1", enable_pod_to_pod=True), "cluster/east"))
    assert {r.destination for r in worker} == set(to_host_port)
    rules = of(Rule, resources(result))
    assert [(r.priority, r.table, r.fwmark) for r in rules] == [(300, 28003, 0)]


@pytest.mark.parametrize("on", ["g1", "w1"])
@pytest.mark.parametrize(("announced", "mtu"), [(1300, 1300), (1449, 1449), (1450, 1450), (9000, 1450), (0, 1450)])
def test_routes_have_the_mtu_of_a_cluster_with_smaller_tunnels(on: str, announced: int, mtu: int) -> None:
    """Replies to mapped addresses, too; a larger MTU would have packets that this cluster's tunnels lose."""
    compilation = compiled(replace(EAST, mtu=announced), on=on, enable_pod_to_pod=True)
    routes = [r for r in of(Route, resources(compilation, "cluster/east")) if r.type is RouteType.UNICAST]
    assert {r.mtu for r in routes} == {mtu}
    assert ip_network("254.0.62.1/32") in {r.destination for r in routes}
    assert compilation.desired.state.mtu == 1450


def test_a_node_address_that_the_kernel_does_not_have() -> None:
    """The kernel would refuse such a source address: routes go without, and a problem says so."""
    result = compiled(EAST, facts=Facts(addresses=(ip_address("198.51.100.1"),)))
    assert {r.source for r in of(Route, resources(result, "cluster/east"))} == {None}
    assert [p.reason for p in result.desired.problems] == ["AddressNotHere"]
    there = compiled(EAST, facts=Facts(addresses=(ip_address("192.0.2.1"),)))
    assert {str(r.source) for r in of(Route, resources(there, "cluster/east"))} == {"192.0.2.1"}


def test_device_and_nft_follow_facts_and_configuration() -> None:
    """Packets are measured by what fits a tunnel, the device takes those of Pods; names are configured."""
    facts = Facts(datapath=DatapathType.NETDEV, uplink_mtu=9000)
    all_resources = resources(compiled(facts=facts, host_port="mc9", nft_table="t"))
    assert of(Bridge, all_resources)[0].datapath is DatapathType.NETDEV
    assert of(Link, all_resources)[0].mtu == of(HostPort, all_resources)[0].mtu == 9000
    assert any("check_pkt_larger(8964)->" in entry.actions for entry in of(FlowEntry, all_resources))
    assert of(NftSet, all_resources)[0].elements == networks("10.10.1.0/24", "10.10.2.0/23")
    text = "\n".join(rule for chain in of(NftChain, all_resources) for rule in chain.rules)
    assert 'oifname "mc9" ip saddr @mct_pods snat to ip saddr' in text
    assert {chain.table for chain in of(NftChain, all_resources)} == {"t"}
    assert compiled(mtu=1300).desired.state.mtu == 1300


def test_nodes_are_closed_unless_they_are_exposed() -> None:
    """What comes out of the host port for the Node itself meets a chain; `exposeNodes` opens it for requests.

    A reply or ICMP error about a connection that left by another device is dropped on exposed Nodes, too; on those
    without nft_fib only the latter.
    """
    closed, exposed, without_fib = (
        {chain.name: chain for chain in of(NftChain, resources(result))}
        for result in (
            compiled(EAST),
            compiled(EAST, expose_nodes=True),
            compiled(EAST, expose_nodes=True, tunnel_source_check=False),
        )
    )
    rules = closed["mct_nodes"].rules
    assert rules[-1].endswith("counter drop")
    assert exposed["mct_nodes"].rules == rules[:3]
    assert without_fib["mct_nodes"].rules == (rules[0], rules[2])
    assert "fib" in rules[1]
    assert all(exposed[name] == closed[name] for name in closed.keys() - {"mct_nodes"})


def test_each_cluster_has_a_meter_of_its_new_connections() -> None:
    """On gateways and workers, in front of every new entry of conntrack; with newConnections: 0 there is none."""
    for on, tables in (("g1", {23, 68, 71}), ("w1", {68, 71})):
        result = compiled(EAST, WEST, on=on, new_connections=300, stretched_network_policy=True)
        every = {name: of(MeterEntry, resources(result, f"cluster/{name}")) for name in ("east", "west")}
        meters = {name: meter for name, each in every.items() for meter in each if meter.rate == 300}
        assert len({m.meter_id for each in every.values() for m in each}) == (6 if on == "g1" else 2)
        assert {m.burst for m in meters.values()} == {600}
        for name, meter in meters.items():
            flows = of(FlowEntry, resources(result, f"cluster/{name}"))
            (limited,) = (flow for flow in flows if flow.actions == f"meter:{meter.meter_id}")
            assert (limited.table, limited.match) == (73, f"reg1={limited.cookie & 0xFFFFFF:#x}")
        entering = [flow for flow in of(FlowEntry, resources(result, "base")) if "resubmit(,73)" in flow.actions]
        assert {flow.table for flow in entering} == tables
        assert {flow.actions.partition(",goto_table:")[0] for flow in entering} == {"resubmit(,73)"}
        assert {flow.match.partition(",")[0] for flow in entering} == {"ct_state=+new-rpl+trk"}
        none = resources(compiled(EAST, WEST, on=on, new_connections=0, fragments=0))
        assert not of(MeterEntry, none)
        assert not any("meter:" in flow.actions or ",73)" in flow.actions for flow in of(FlowEntry, none))


def test_fragments_of_each_cluster_pass_a_meter_before_conntrack() -> None:
    """On a gateway from its own tunnels, on all Nodes what other gateways forward: one flow for all of them."""
    for on in ("g1", "w1"):
        result = compiled(EAST, gateway("g2", "192.0.2.9"), on=on, fragments=70)
        cluster = resources(result, "cluster/east")
        (meter,) = of(MeterEntry, resources(result, "fragment-meters"))
        assert (meter.rate, meter.burst) == (70, 280)
        (flow,) = [flow for flow in of(FlowEntry, cluster) if f"meter:{meter.meter_id}," in flow.actions]
        assert flow.table == FRAGMENTS.number
        number = flow.match.partition("reg1=")[2].partition(",")[0]
        assert flow.match == f"ip,reg0=0/0x2000,reg1={number},nw_frag=yes"
        assert flow.cookie & 0xFFFFFFFF == int(number, 0)


def test_fragments_that_a_node_sends_pass_a_meter_of_their_sender() -> None:
    """Half of the rate that clusters accept, and a datagram of 64 KiB at once; neighbours have other meters."""
    for on in ("g1", "w1"):
        base = resources(compiled(EAST, on=on, fragments=90), "base")
        meters = [meter for meter in of(MeterEntry, base) if meter.meter_id != ENDED_METER]
        rates = {meter.meter_id: (meter.rate, meter.burst) for meter in meters}
        assert set(rates.values()) == {(45, 270)}
        assert 270 * 1400 > 65535
        flows = {flow.match: flow for flow in of(FlowEntry, base) if flow.table == 3 and "meter:" in flow.actions}
        assert {f"ip,nw_src=0.0.0.{number}/0.0.0.63" for number in range(64)} == flows.keys()
        assert {flow.actions for flow in flows.values()} == {f"meter:{meter},goto_table:5" for meter in rates}
        sent = [flow for flow in of(FlowEntry, base) if "goto_table:3" in flow.actions]
        assert sent
        assert all("in_port=1" in flow.match and "nw_frag=yes" in flow.match for flow in sent)
        clusters = resources(compiled(EAST, WEST, on=on, fragments=90))
        other_meters = [meter.meter_id for meter in of(MeterEntry, clusters) if meter.meter_id not in rates]
        assert len(other_meters) == len(set(other_meters)) == (9 if on == "g1" else 4)
        unlimited = of(MeterEntry, resources(compiled(EAST, on=on, fragments=0), "base"))
        assert {meter.meter_id for meter in unlimited} <= {ENDED_METER}


def test_no_cluster_fills_the_storage_of_unfinished_fragments() -> None:
    """The userspace datapath stores 1,000 fragments for 15 s (OVS lib/ipf.c), Linux 4 MiB of them for 30 s."""
    rate = Config(node_name="g1").fragments
    (meter,) = of(MeterEntry, resources(compiled(EAST), "fragment-meters"))
    assert meter.rate == rate
    assert meter.burst + 15 * rate < 1000
    assert (meter.burst + 30 * rate) * 2.5 * 1024 < 4 * 2**20


def test_more_than_256_clusters_share_the_meters_of_fragments() -> None:
    """Up to that number each has its own."""
    for count, most in ((256, 1), (400, 2)):
        clusters = [
            cluster(f"c{number}", f"10.{100 + number // 250}.{number % 250}.0/24") for number in range(count)
        ]
        result = compiled(*clusters)
        meters = {meter.meter_id for meter in of(MeterEntry, resources(result, "fragment-meters"))}
        counts = Counter(
            int(flow.actions.partition("meter:")[2].partition(",")[0])
            for number in range(count)
            for flow in of(FlowEntry, resources(result, f"cluster/c{number}"))
            if flow.table == FRAGMENTS.number
        )
        assert counts.keys() == meters
        assert len(meters) <= 256
        assert max(counts.values()) <= most


def test_other_clusters_do_not_decide_how_often_all_nodes_are_asked() -> None:
    """A packet of an unknown connection becomes a copy for each endpoint, within a meter of its cluster."""
    cluster_resources = resources(compiled(EAST, new_connections=400), "cluster/east")
    (meter,) = (entry for entry in of(MeterEntry, cluster_resources) if entry.rate == 40)
    flows = [flow.actions for flow in of(FlowEntry, cluster_resources) if flow.table == 76]
    assert flows
    assert all(actions.startswith(f"meter:{meter.meter_id},") for actions in flows)


def test_only_gateways_answer_probes_and_within_a_meter() -> None:
    """A probe goes back by the tunnel that it came by; of an answer the head goes to the agent."""
    all_resources = resources(compiled(EAST), "cluster/east")
    (meter,) = (one for one in of(MeterEntry, all_resources) if one.rate == 100)
    flows = {(one.match, one.actions) for one in of(FlowEntry, all_resources) if "dl_type=0x88b6" in one.match}
    ports = [one.ofport for one in of(TunnelPort, all_resources)]
    assert len(flows) == 2 * len(ports) > 0
    for port in ports:
        actions = {text: done for text, done in flows if text.startswith(f"in_port={port},")}
        (action,) = (done for text, done in actions.items() if "ee:f3" in text)
        (answer,) = (done for text, done in actions.items() if "ee:f4" in text)
        assert action.startswith(f"meter:{meter.meter_id},")
        assert action.endswith(",IN_PORT")
        assert answer.startswith(f"meter:{meter.meter_id},")
        assert "controller" in answer.lower()
    for other in (compiled(EAST, on="w1"), compiled(EAST, new_connections=0)):
        assert not any("0x88b6" in one.match for one in of(FlowEntry, resources(other)))


def test_tunnel_settings() -> None:
    """Encapsulation and port come from the configuration; another address or type is another port."""
    tunnels = of(TunnelPort, resources(compiled(EAST, tunnel_port=7000)))
    assert {t.dst_port for t in tunnels} == {7000}
    plain = of(TunnelPort, resources(compiled(EAST)))
    assert {t.name for t in plain}.isdisjoint(t.name for t in tunnels)
    assert all(len(t.name) == 15 and t.name[:4] in ("mcn-", "mcr-") for t in plain)


def test_a_node_that_becomes_a_gateway_keeps_its_port() -> None:
    """Promotion is no new tunnel: its name and number stay, so no packet is lost for it."""
    before = {t.peer: t for t in of(TunnelPort, resources(compiled()))}
    after = {t.peer: t for t in of(TunnelPort, resources(compiled(gateway("w1", "192.0.2.3"))))}
    assert (before["w1"].peer_kind, after["w1"].peer_kind) == (PeerKind.NODE, PeerKind.GATEWAY)
    assert replace(before["w1"], peer_kind=PeerKind.GATEWAY) == after["w1"]


def test_port_numbers_in_use_stay() -> None:
    """A port keeps the number it has, and no new port takes a number that is in use."""
    first = compiled(EAST)
    by_name = {t.name: t.ofport for t in of(TunnelPort, resources(first))}
    name, number = next(iter(by_name.items()))
    facts = Facts(ofports={name: 4711, "other": number, "mc-gw0": 1})
    again = {t.name: t.ofport for t in of(TunnelPort, resources(compiled(EAST, facts=facts)))}
    assert again[name] == 4711
    assert number not in again.values()
    settled = compiled(EAST, facts=Facts(ofports=by_name))
    assert {t.name: t.ofport for t in of(TunnelPort, resources(settled))} == by_name


@given(
    st.sets(st.text("abc", min_size=1, max_size=3), max_size=12),
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 20), max_size=8),
)
def test_numbers_are_distinct_and_depend_on_the_set_only(names: set[str], in_use: dict[str, int]) -> None:
    """Ports and numbers: never twice, never 0 or the host port, the same in whatever order names come."""
    ports = assign_ofports(names, in_use)
    assert set(ports) == names
    assert len(set(ports.values())) == len(names)
    assert all(2 <= number <= 65000 for number in ports.values())
    assert assign_ofports(sorted(names, reverse=True), in_use) == ports
    foreign = {number for name, number in in_use.items() if name not in names}
    assert all(number not in foreign or in_use.get(name) == number for name, number in ports.items())
    numbers = assign_ids(names)
    assert len(set(numbers.values())) == len(names)
    assert all(0 < number < 1 << 24 for number in numbers.values())


def test_cluster_numbers_are_the_same_on_every_node() -> None:
    """Gateways and workers call a cluster by one number."""
    cluster_ids = [compiled(EAST, WEST, on=name).state.cluster_ids for name in ("g1", "g2", "w1")]
    assert cluster_ids[0] == cluster_ids[1] == cluster_ids[2]


def test_one_changed_cluster_changes_one_unit() -> None:
    """All other fragments are the very objects of before, but for what knows where all tunnels end."""
    compiler = Compiler()
    before = compiler.compile(snapshot(*HOME, EAST, WEST), NO_FACTS, config("g1"))
    changed = replace(WEST, gateway_ips=(ip_address("203.0.113.4"),))
    after = compiler.compile(snapshot(*HOME, EAST, changed), NO_FACTS, config("g1"))
    same = [n for n, fragment in after.desired.fragments.items() if before.desired.fragments.get(n) is fragment]
    assert sorted(set(after.desired.fragments) - set(same)) == ["cluster/west", "guard", "mapped"]
    plan = diff_desired(before.desired, after.desired)
    assert {step.owner for step in plan.steps} == {"cluster/west", "guard", "mapped", ""}


def test_nothing_changed_gives_the_same_units() -> None:
    """Equal input is no change, also when every object is another one of equal content."""
    compiler = Compiler()
    before = compiler.compile(snapshot(*HOME, EAST, WEST), NO_FACTS, config("g1"))
    after = compiler.compile(deepcopy(snapshot(*HOME, EAST, WEST)), Facts(), config("g1"))
    assert all(before.desired.fragments[name] is fragment for name, fragment in after.desired.fragments.items())
    assert list(before.desired.fragments) == list(after.desired.fragments)


def test_one_bad_object_changes_nothing_for_the_others() -> None:
    """An object that cannot be read, or asks for what others have, leaves every other fragment as it was."""
    start = snapshot(*HOME, EAST, WEST)
    compiler = Compiler()
    before = compiler.compile(start, NO_FACTS, config("g1"))
    greedy = {
        "metadata": {"name": "zz", "namespace": "mc", "creationTimestamp": "2026-11-20T00:00:00Z"},
        "spec": {
            "clusterID": "zz",
            "serviceCIDR": "10.0.0.0/8",
            "gatewayInfos": [{"gatewayIP": "203.0.113.3"}, {"gatewayIP": "192.0.2.1"}],
        },
    }
    broken = {"metadata": {"name": "west-clusterinfo", "namespace": "mc"}, "spec": ["?"]}
    kind = Kind.CLUSTER_INFO_IMPORT
    bad = apply_changes(start, [Upsert(kind=kind, raw=greedy), Upsert(kind=kind, raw=broken)])
    after = compiler.compile(bad, NO_FACTS, config("g1"))
    shared = "fragment-meters"  # with one of the new cluster
    other_fragments = {name: fragment for name, fragment in before.desired.fragments.items() if name != shared}
    assert all(after.desired.fragments[name] is fragment for name, fragment in other_fragments.items())
    assert {*resources(before, shared)} < {*resources(after, shared)}
    assert {problem.subject for problem in after.desired.problems} == {
        "ClusterInfoImport mc/zz",
        "ClusterInfoImport mc/west-clusterinfo",
    }


def test_every_flow_is_ours() -> None:
    """All flows carry the owner in the top 16 bits of the cookie."""
    flows = of(FlowEntry, resources(compiled(EAST, WEST, enable_pod_to_pod=True)))
    assert flows
    assert {flow.cookie >> 48 for flow in flows} == {0x6D63}


# --- any input ------------------------------------------------------------------------------------------

_IPS = st.sampled_from(["192.0.2.1", "192.0.2.2", "192.0.2.3", "203.0.113.1", "10.20.0.9", "fd00::1", "127.0.0.1"])
_CIDRS = st.sampled_from(
    ["10.10.1.0/24", "10.10.2.0/24", "10.10.0.0/16", "10.96.0.0/16", "10.97.0.0/16", "10.97.1.0/24",
     "10.20.0.0/16", "10.20.0.9/32", "203.0.113.1/32", "192.0.2.0/24", "10.0.0.0/8", "0.0.0.0/0", "fd00::/64"]
)  # fmt: skip
_CREATED = st.sampled_from(["", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"])
_NODES = st.sampled_from(["g1", "g2", "w1"])


def test_a_policy_about_services_makes_a_worker_read_them_all() -> None:
    """Whoever imported them: Antrea's slices have no label by which to select them."""
    rule = {"action": "Reject", "toServices": [{"name": "web", "scope": "ClusterSet"}]}
    about = policy(Kind.CLUSTER_NETWORK_POLICY, "p", {"priority": 5, "appliedTo": [_WEB], "egress": [rule]})
    assert compiled(EAST, about, on="w1", stretched_network_policy=True).state.all_services
    assert not compiled(EAST, about, on="w1").state.all_services


_WEB: dict[str, Any] = {"podSelector": {"matchLabels": {"app": "web"}}}
_EAST = {"namespaceSelector": {"matchLabels": {"multicluster.kubernetes.io/cluster": "east"}}}
_POLICIES = [
    policy(Kind.NETWORK_POLICY, "deny", {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}),
    policy(Kind.NETWORK_POLICY, "deny", {**_WEB, "ingress": [{"from": [_EAST], "ports": [{"port": 80}]}]}),
    policy(Kind.NETWORK_POLICY, "web", {"podSelector": {}, "ingress": [{"from": [_WEB]}]}, scope="ClusterSet"),
    *(
        policy(
            Kind.CLUSTER_NETWORK_POLICY,
            "tiers",
            {
                "tier": tier,
                "priority": 5,
                "appliedTo": [{"podSelector": {}}],
                "ingress": [
                    {"action": action, "from": [{**_WEB, "scope": "ClusterSet", "namespaces": {"match": "Self"}}]},
                    {"action": "Allow", "from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.20.0.0/16"]}}]},
                ],
                "egress": [{"action": action, "toServices": [{"name": "web", "scope": "ClusterSet"}]}],
            },
        )
        for tier, action in (("securityops", "Drop"), ("baseline", "Reject"), ("mine", "Pass"))
    ),
    policy(Kind.TIER, "mine", {"priority": 7}),
]
_TRAFFIC = [None, read_traffic("any"), read_traffic("east=3, local=1"), read_traffic("west > *")]
_NAMESPACE_LABELS = st.sampled_from([f"{NAMESPACE_NAME}=default", f"{NAMESPACE_NAME}=default,team=a"])
_OBJECTS: st.SearchStrategy[ApiObject] = st.one_of(
    st.builds(node, _NODES, _IPS, _CIDRS, created=_CREATED),
    st.builds(node, _NODES, _IPS, created=_CREATED),
    st.builds(gateway, _NODES, _IPS, _IPS, st.none() | _CIDRS, created=_CREATED),
    st.builds(
        cluster,
        st.sampled_from(["east", "west", "home"]),
        _CIDRS,
        _CIDRS,
        gateways=st.lists(_IPS, min_size=1, max_size=3).map(tuple),
        created=_CREATED,
        object_name=st.sampled_from(["a", "b", "c"]),
    ),
    st.builds(
        pod,
        st.sampled_from(["p", "q"]),
        _NODES,
        _IPS | st.just("10.10.1.5"),
        created=_CREATED,
        labels=st.sampled_from(["", "app=web"]),
    ),
    st.builds(service, st.sampled_from(["web", "dns"]), st.none() | st.sampled_from(["10.96.0.7"]), st.just(80)),
    st.builds(export, st.sampled_from(["web", "dns"])),
    st.builds(
        endpoint_slice,
        st.sampled_from(["s", "t"]),
        st.sampled_from(["web", "dns"]),
        st.lists(st.builds(endpoint, _IPS | st.just("10.10.1.5"), ready=st.booleans()), max_size=2),
        st.sampled_from([("", 80), ("", None), ("x", 80)]),
    ),
    st.builds(namespace, st.just("default"), st.sampled_from(["", "team=a"])),
    st.builds(
        label_identity,
        st.builds(identity, _NAMESPACE_LABELS, st.sampled_from(["", "app=web"])),
        st.integers(1, 3),
        st.sampled_from(["east", "west"]),
        believed=st.booleans(),
    ),
    st.sampled_from(_POLICIES),
    st.builds(service_import, st.just("web"), client_ip_affinity=st.booleans(), traffic=st.sampled_from(_TRAFFIC)),
    st.builds(
        imported_slice,
        st.sampled_from(["u", "v"]),
        st.just("web"),
        st.sampled_from(["home", "east", "west"]),
        st.lists(st.builds(endpoint, _IPS, ready=st.booleans()), max_size=2),
    ),
)
_CONFIGS = st.builds(
    config,
    st.just("g1"),
    enable_pod_to_pod=st.booleans(),
    pod_cidrs=st.sampled_from([(), networks("10.10.0.0/16"), networks("10.96.0.0/16")]),
    stretched_network_policy=st.booleans(),
    imported_traffic=st.sampled_from(["", "any", "local > *"]),
)


PER_POD = config("g1", pod_routing=PodRouting.PER_POD)
_KEYS = st.builds(WireGuardInfo, public_key=st.sampled_from(["a", "b", "c"]), port=st.sampled_from([0, 7]))
_KEYED: st.SearchStrategy[ApiObject] = st.builds(
    lambda found, keys: replace(found, gateway_wireguard=tuple(zip(found.gateway_ips, keys, strict=False))),
    st.builds(
        cluster,
        st.sampled_from(["east", "west", "north"]),
        st.sampled_from(["10.97.0.0/16", "10.98.0.0/16"]),
        gateways=st.lists(_IPS | st.just("203.0.113.2"), min_size=1, max_size=3).map(tuple),
        created=_CREATED,
    ),
    st.lists(_KEYS, max_size=3),
)
_ENCRYPTING = st.builds(
    config,
    st.just("g1"),
    encryption=st.just(TrafficEncryption.WIREGUARD),
    encryption_fallback=st.sampled_from(EncryptionFallback),
)
_FACTS = st.builds(
    Facts,
    wireguard=st.sampled_from([None, WireGuardImplementation.KERNEL]),
    wireguard_public_key=st.sampled_from(["", "own", "a"]),
    datapath=st.sampled_from(DatapathType),
    uplink_mtu=st.sampled_from([1500, 1400]),
    addresses=st.sampled_from([(), addresses("192.0.2.1"), addresses("192.0.2.9")]),
    connected=st.sampled_from([(), networks("10.97.0.0/16")]),
    isolated=st.booleans(),
    drain=st.sampled_from(Drain),
)


def edited(before: Snapshot, edit: tuple[ApiObject, bool]) -> Snapshot:
    """Return the snapshot with the object put in, or taken out."""
    item, put = edit
    name = ATTRIBUTES[item.meta.kind]
    objects = dict(getattr(before, name))
    objects.pop(item.meta.key, None)
    if put:
        objects[item.meta.key] = item
    values: dict[str, Any] = {name: objects}
    return replace(before, **values)


def reversed_snapshot(before: Snapshot) -> Snapshot:
    """Return the snapshot with all objects in another order."""
    values: dict[str, Any] = {name: dict(reversed(getattr(before, name).items())) for name in ATTRIBUTES.values()}
    return replace(before, **values)


def check(compiled: Compiled) -> None:
    """No key twice, and the plan from nothing holds everything."""
    all_resources = resources(compiled)
    assert len({(r.backend, r.key) for r in all_resources}) == len(all_resources)
    ends = [(t.type, t.remote_ip, t.dst_port) for t in of(TunnelPort, all_resources)]
    assert len(set(ends)) == len(ends)
    assert len(diff({}, compiled.desired)) == len(all_resources)


@costly
@given(st.lists(st.tuples(_OBJECTS, st.booleans()), max_size=6), _CONFIGS, st.booleans())
def test_incremental_equals_cold_in_any_order(
    edits: list[tuple[ApiObject, bool]], settings_: Config, bare: bool
) -> None:
    """After any edits the result is that of a fresh start, whatever the order, and no resource is there twice."""
    current = snapshot() if bare else snapshot(*HOME, EAST, WEST)
    compiler = Compiler()
    before: Compiled | None = None
    facts = NO_FACTS
    for edit in edits:
        current = edited(current, edit)
        after = compiler.compile(current, facts, settings_)
        cold = compile_desired(reversed_snapshot(current), facts, settings_)
        assert after.desired == cold.desired
        assert after.needs == cold.needs
        check(after)
        if before is not None:
            plan = diff_desired(before.desired, after.desired)
            assert bool(plan.stages) == (set(resources(before)) != set(resources(after)))
        before = after
        facts = replace(facts, ofports={t.name: t.ofport for t in of(TunnelPort, resources(after))})


@costly
@given(st.lists(st.tuples(_OBJECTS, st.booleans()), max_size=6), st.sampled_from(["g1", "w1", "new"]), _CONFIGS)
def test_networks_of_other_clusters_are_routed_to_the_bridge_whatever_the_role(
    edits: list[tuple[ApiObject, bool]], on: str, settings_: Config
) -> None:
    """No accepted network of another cluster is left to the default route, whatever was seen before."""
    current = snapshot(*HOME, EAST, WEST)
    for edit in edits:
        current = edited(current, edit)
    for gateways, last in itertools.product((current.gateways, {}), (None, (), LAST)):
        present = replace(current, gateways=gateways, service_cidrs=last)
        result = compile_desired(present, NO_FACTS, replace(settings_, node_name=on))
        routed = {r.destination for r in of(Route, resources(result)) if r.device == "mc-gw0"}
        assert {cidr for accepted in result.state.clusters.values() for cidr in accepted.cidrs} <= routed
        assert not result.state.clusters or of(Rule, resources(result))


@costly
@given(
    st.lists(
        st.one_of(st.tuples(_OBJECTS | _KEYED, st.booleans()), _CONFIGS | _ENCRYPTING, _FACTS, st.none()),
        max_size=8,
    )
)
def test_incremental_equals_cold_after_any_changes(
    changes: list[tuple[ApiObject, bool] | Config | Facts | None],
) -> None:
    """Objects, configuration and facts change in any order, and a pass in between (None) breaks off."""
    source, facts, settings = snapshot(*HOME, EAST, WEST), NO_FACTS, config("g1")
    compiler = Compiler()
    for change in changes:
        match change:
            case Config():
                settings = change
            case Facts():
                facts = change
            case None:
                broken = replace(source, cluster_infos={"x": None})  # type: ignore[dict-item]
                with pytest.raises(AttributeError):
                    compiler.compile(broken, facts, PER_POD)
            case _:
                source = edited(source, change)
        after, cold = compiler.compile(source, facts, settings), compile_desired(source, facts, settings)
        assert after == cold
        assert list(after.desired.fragments) == list(cold.desired.fragments)


@costly
@given(
    st.lists(st.tuples(st.integers(0, 255), st.integers(0, 255), st.sampled_from(Drain)), max_size=5),
    st.booleans(),
)
def test_incremental_equals_cold_whatever_is_said_of_tunnels(
    moments: list[tuple[int, int, Drain]], ordered: bool
) -> None:
    """BFD, damping and drain change; the result is that of a fresh start, and flows outlive a drain."""
    source = snapshot(*HOME, EAST, WEST)
    mode = GatewayMode.ACTIVE_STANDBY if ordered else GatewayMode.ACTIVE_ACTIVE
    settings = config("g1", enable_pod_to_pod=True, gateways=mode)
    compiler = Compiler()
    ports = {
        port.name: port.ofport for port in of(TunnelPort, resources(compiler.compile(source, NO_FACTS, settings)))
    }
    names = sorted(ports)
    facts = replace(NO_FACTS, ofports=ports)
    for cluster_seen, cluster_held, drain in moments:
        facts = replace(
            facts,
            bfd_seen=_chosen(names, cluster_seen),
            damped=_chosen(names, cluster_held),
            silent=_chosen(names, ~cluster_seen),
            drain=drain,
        )
        after = compiler.compile(source, facts, settings)
        assert after.desired == compile_desired(source, facts, settings).desired
        if drain is not Drain.NONE:
            again = compiler.compile(source, replace(facts, drain=Drain.NONE), settings)
            changed = diff_desired(after.desired, again.desired).steps
            assert changed
            assert all(isinstance(step.new, TunnelPort) for step in changed)
            flows = {id(r) for r in resources(after) if isinstance(r, FlowEntry)}
            assert {id(r) for r in resources(again) if isinstance(r, FlowEntry)} == flows


def _chosen(names: list[str], bits: int) -> frozenset[str]:
    return frozenset(name for place, name in enumerate(names) if bits >> place & 1)


@pytest.mark.parametrize("on", ["g1", "w1"])
def test_a_changed_configuration_is_no_reuse(on: str) -> None:
    """Another configuration gives what a fresh start with it gives."""
    compiler = Compiler()
    compiler.compile(snapshot(*HOME, EAST), NO_FACTS, config(on))
    other = config(on, enable_pod_to_pod=True, ct_zone_base=100)
    source = snapshot(*HOME, EAST)
    assert compiler.compile(source, NO_FACTS, other).desired == compile_desired(source, NO_FACTS, other).desired
