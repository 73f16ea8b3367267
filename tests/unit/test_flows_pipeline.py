"""What the builders make of a topology. Whether packets get through is for the simulator's tests and the lab."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network
from itertools import product

import pytest

from flows import Flow, pipeline
from flows import actions as act
from flows.actions import Ct, ToController
from flows.flow import GroupType
from flows.pipeline import PIPELINE
from flows.pipeline import declaration as d
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.groups import bucket_ids
from mcagent.model.net import PodPrefix
from tests.worlds import small_topology as small
from tests.worlds.small_topology import ROLES, texts


@pytest.mark.parametrize(("gateway", "siblings"), ROLES)
@pytest.mark.parametrize("snat", [False, True])
def test_no_two_flows_of_a_node_have_one_identity(gateway: bool, siblings: tuple[int, ...], snat: bool) -> None:
    """Parts may be put together freely: table, priority and match, and group numbers, are unique."""
    parts = small.parts(gateway=gateway, siblings=siblings, snat=snat)
    keys = [(flow.table, flow.priority, flow.match_text) for flow in small.flows_of(parts)]
    assert len(set(keys)) == len(keys)
    groups = [group.group_id for group in small.groups_of(parts)]
    assert len(set(groups)) == len(groups)


@pytest.mark.parametrize(("gateway", "siblings"), ROLES)
def test_every_group_that_is_used_exists(gateway: bool, siblings: tuple[int, ...]) -> None:
    """Flows and buckets point to groups of the same Node only."""
    parts = small.parts(gateway=gateway, siblings=siblings)
    groups = {group.group_id: group for group in small.groups_of(parts)}
    lists = [flow.actions for flow in small.flows_of(parts)]
    for group in groups.values():
        for bucket in group.buckets:
            lists.append(bucket.actions)
            assert bucket.watch_group is None or bucket.watch_group in groups
            # Groups are added in the order of their numbers, and OVS wants the one that is pointed to first.
            first = [action.group_id for action in bucket.actions if isinstance(action, act.ToGroup)]
            assert all(number < group.group_id for number in first)
    group_ids = {action.group_id for actions in lists for action in actions if isinstance(action, act.ToGroup)}
    assert group_ids <= groups.keys()


@pytest.mark.parametrize(("gateway", "siblings"), ROLES)
def test_every_flow_says_whose_it_is_and_every_drop_why(gateway: bool, siblings: tuple[int, ...]) -> None:
    """Cookies carry the owner and a declared category; those that drop, and only those, one of drops."""
    categories = {category.number: category for category in PIPELINE.categories}
    for flow in small.flows_of(small.parts(gateway=gateway, siblings=siblings)):
        split = PIPELINE.cookies.split(flow.cookie)
        assert split is not None
        assert categories[split[0]].drops is (flow.actions == ()), (flow.match_text, flow.actions_text)


@pytest.mark.parametrize(("gateway", "siblings"), ROLES)
def test_every_table_ends_in_a_counted_drop(gateway: bool, siblings: tuple[int, ...]) -> None:
    """The flow that takes what no other wants is there, once a table; those of policies where these are on."""
    shared = small.env(gateway=gateway, siblings=siblings)
    prefix = PodPrefix(real=ip_network("10.10.0.0/16"), virtual=ip_network("100.72.0.0/16"))
    for identities, prefixes in product((False, True), ((), (prefix,))):
        absent = {*(() if identities else t.POLICY_TABLES), *(() if prefixes else t.PREFIX_TABLES)}
        present_tables = set(t.TABLES) - absent
        parts = small.base(replace(shared, identities=identities, prefixes=prefixes))
        lowest = [f for f in parts.flows if f.priority == 0]
        assert [flow.table for flow in lowest] == [
            table.number for table in PIPELINE.tables if table in present_tables
        ]
        assert all(flow.match_text == "" and flow.actions_text == "drop" for flow in lowest)


@pytest.mark.parametrize(("gateway", "siblings"), ROLES)
def test_no_mark_of_the_kernel_goes_into_a_tunnel(gateway: bool, siblings: tuple[int, ...]) -> None:
    """Whatever port a packet comes by, its kernel mark is cleared first: the reply rule would catch the tunnel."""
    parts = small.parts(gateway=gateway, siblings=siblings)
    entries = [flow for flow in small.flows_of(parts) if flow.table == t.CLASSIFY.number and flow.actions]
    # What the agent gets or restores goes no further.
    entries = [flow for flow in entries if not isinstance(flow.actions[0], ToController | Ct)]
    assert entries
    assert all(flow.actions_text.startswith("set_field:0->pkt_mark,") for flow in entries)


def test_unchanged_input_gives_equal_parts() -> None:
    """The builders are functions: equal input, equal output."""
    assert small.parts(gateway=True) == small.parts(gateway=True)


def test_a_remote_cluster_may_send_from_its_own_addresses_only() -> None:
    """Every source that passes is bound to the cluster, a gateway's to its tunnel, and the rest is counted."""
    shared = small.env(gateway=True, siblings=())
    remote = small.remote(1, gateway=True, snat=False)
    part = pipeline.cluster(shared, remote)
    owned = "set_field:0x65->reg4,goto_table:10"
    cidrs = [f"ip,nw_src={net} -> {owned}" for net in ("10.21.0.0/16", "10.121.0.0/16")]
    assert texts(part, t.OWNER.number) == [
        *cidrs,
        f"ip,nw_src=10.9.1.1 -> set_field:0x800/0x800->reg0,{owned}",
        f"ip,nw_src=10.9.1.2 -> set_field:0x800/0x800->reg0,{owned}",
        f"ip,reg2=0x3e9/0xffff,nw_src=10.9.1.1 -> {owned}",
        f"ip,reg2=0x3ea/0xffff,nw_src=10.9.1.2 -> {owned}",
    ]
    assert texts(part, t.SOURCE.number) == [
        "reg0=0/0x800,reg1=0x65,reg4=0x65 -> goto_table:11",
        "reg0=0x4/0xf,reg1=0x65 -> drop",
    ]
    in_cidr = replace(remote, cidrs=(*remote.cidrs, ip_network("10.9.1.0/24")))
    assert texts(pipeline.cluster(shared, in_cidr), t.OWNER.number) == [
        *cidrs,
        f"ip,nw_src=10.9.1.0/24 -> {owned}",
    ]


def test_a_node_may_send_from_its_own_addresses_only() -> None:
    """A Node's sources are bound to the port of its tunnel."""
    shared = small.env(gateway=True, siblings=())
    part = pipeline.node(shared, small.nodes(gateway=True, siblings=())[1])
    assert texts(part, t.SOURCE.number) == [
        "ip,reg0=0x2/0xf,reg2=0x2/0xffff,nw_src=10.10.2.0/24 -> goto_table:20",
        "ip,reg0=0x2/0xf,reg2=0x2/0xffff,nw_src=10.9.0.12 -> goto_table:20",
    ]


def test_a_worker_has_neither_services_nor_other_nodes() -> None:
    """On a worker only the base, remote clusters and its own Node have flows."""
    shared = small.env(gateway=False, siblings=(3,))
    assert pipeline.service(shared, small.service(5, "tcp", endpoints=3)) == pipeline.Entries(flows=())
    own, *other_nodes = small.nodes(gateway=False, siblings=(3,))
    assert pipeline.node(shared, own).flows
    assert all(pipeline.node(shared, other) == pipeline.Entries(flows=()) for other in other_nodes)


def test_traffic_of_other_clusters_is_handed_to_the_kernel_only() -> None:
    """The ways to the host port are tables Map and, for replies, ArriveState, with the MAC of the host port."""
    for gateway in (True, False):
        for flow in small.flows_of(small.parts(gateway=gateway)):
            if act.Output(r.HOST_OFPORT) in flow.actions:
                assert flow.table in {t.MAP.number, t.ARRIVE_STATE.number}
                assert "set_field:0a:6d:63:00:00:01->eth_dst,output:1" in flow.actions_text


def test_only_what_leaves_to_another_cluster_counts_the_ttl_down_and_has_the_plain_mac() -> None:
    """Whatever leaves by the tunnel to a remote gateway has MAC f0 and one less TTL."""
    shared = small.env(gateway=True, siblings=(3,))
    part = pipeline.cluster(shared, small.remote(1, gateway=True, snat=False))
    out = "set_field:aa:bb:cc:dd:ee:f0->eth_dst,dec_ttl"
    assert texts(part, t.EXIT.number) == [f"ip,reg1=0x65 -> {out},group:{d.GROUP_CLUSTER.group_id(101)}"]
    reply_groups = [group for group in part.groups if group.group_id >> 24 == d.GROUP_REPLY.number]
    assert len(reply_groups) == 2
    assert all(f"actions={out},group:" in group.body_text for group in reply_groups)


def test_a_cluster_without_a_gateway_drops_and_says_so() -> None:
    """No tunnel to it: its CIDRs are dropped with its number."""
    for gateway in (True, False):
        shared = small.env(gateway=gateway, siblings=(3,))
        part = pipeline.cluster(shared, replace(small.remote(1, gateway=gateway, snat=False), gateways=()))
        routes = [flow for flow in part.flows if flow.table == t.ROUTE.number]
        assert {flow.actions_text for flow in routes} == {"drop"}
        assert {flow.cookie for flow in routes} == {d.COOKIES.cookie(d.DROP_NO_GATEWAY, 101)}
        assert part.groups == ()


def test_a_service_chooses_the_same_endpoint_on_every_gateway() -> None:
    """Buckets follow from the endpoints alone: not from their order, nor from what else is there."""
    shared, service = small.env(gateway=True, siblings=()), small.service(5, "tcp", endpoints=3)
    other = small.env(gateway=True, siblings=(3, 4))
    part = pipeline.service(shared, service)
    shuffled = replace(service, endpoints=(*service.endpoints[::-1], service.endpoints[0]))
    assert pipeline.service(other, shuffled) == part
    fewer = pipeline.service(shared, replace(service, endpoints=service.endpoints[:2]))
    assert set(fewer.groups[0].buckets) < set(part.groups[0].buckets)


@pytest.mark.parametrize("old", [0, 1, 2])
@pytest.mark.parametrize("userspace", [True, False])
def test_replies_of_each_endpoint_get_the_address_of_the_service(old: int, userspace: bool) -> None:
    """Also of an endpoint that gets no new connections: those that it has go on after a gateway is lost."""
    shared = replace(small.env(gateway=True, siblings=()), userspace_conntrack=userspace)
    service = small.service(5, "tcp", endpoints=2)
    endpoints = service.endpoints
    service = replace(service, endpoints=endpoints[old:], old_endpoints=endpoints[:old])
    flows = texts(pipeline.service(shared, service), t.UN_DNAT.number)
    replies = [text for text in flows if not text.startswith("ct_state=")]  # conntrack knows the others
    for endpoint in endpoints:
        (reply,) = [text for text in replies if f"nw_src={endpoint.address},tp_src={endpoint.port} " in text]
        assert "set_field:10.96.0.5->ip_src,set_field:80->tcp_src" in reply
    assert len(replies) == 1 + len(endpoints)  # and those that the endpoint's Node has translated


@pytest.mark.parametrize("userspace", [True, False])
@pytest.mark.parametrize("standby", [set(), {2}, {2, 3}], ids=str)
def test_gateways_on_standby_do_not_change_what_flows_match(standby: set[int], userspace: bool) -> None:
    """On the userspace datapath, each connection has a flow of its own, also where only one gateway is left."""
    shared = replace(small.env(gateway=False, siblings=(2, 3, 4)), userspace_conntrack=userspace)
    hops = tuple(pipeline.NextHop(ofport=port, standby=port in standby) for port in shared.local_gateways)
    groups = pipeline.base(shared, pipeline.NextHopGroup(next_hops=hops)).groups
    levels = [g for g in groups if g.group_id >> 24 in (1, 2, 3) and not g.group_id & 0xFFFFFF]
    assert levels
    kinds = {g.type for g in levels}
    assert kinds == {GroupType.SELECT} or (not userspace and standby)


@pytest.mark.parametrize("gateway", [True, False])
def test_every_way_to_a_gateway_hashes_the_connection_on_the_userspace_datapath(gateway: bool) -> None:
    """Also a way that nothing is chosen for: no output to a tunnel stands in a group that does not hash."""
    parts = small.parts(gateway=gateway, siblings=(2, 3))
    gateways = [g for g in small.groups_of(parts) if g.group_id >> 24 in range(1, 9)]
    outputs = [g for g in gateways if any(isinstance(a, act.Output) for b in g.buckets for a in b.actions)]
    assert outputs
    assert {g.type for g in outputs} == {GroupType.SELECT}


def test_services_hash_what_they_should() -> None:
    """By client address where the Service asks for it, else by the connection."""
    shared = small.env(gateway=True, siblings=())
    by_client = pipeline.service(shared, small.service(6, "udp", endpoints=2, affinity=True)).groups[0].body_text
    assert by_client.startswith("type=select,selection_method=hash,fields=ip_src,bucket=")
    by_connection = pipeline.service(shared, small.service(6, "udp", endpoints=2)).groups[0].body_text
    assert "fields(ip_src,ip_dst,udp_src,udp_dst)" in by_connection


def test_userspace_translates_nothing_to_the_address_that_it_has() -> None:
    """A gateway's own connections are only remembered there; others get the ports that are for them."""
    shared = small.env(gateway=True, siblings=())
    base = pipeline.base(shared, pipeline.NextHopGroup(next_hops=()))
    commits = [f for f in base.flows if f.table == t.SNAT_STATE.number and "commit" in f.actions_text]
    own = [f for f in commits if f"nw_src={small.GATEWAY_IP}" in f.match_text]
    other_commits = [f for f in commits if f not in own]
    assert [commit.actions_text.count("nat(") for commit in own] == [0]
    assert {f"nat(src={small.GATEWAY_IP}:10000-32767)" in commit.actions_text for commit in other_commits} == {
        True
    }
    assert min(commit.priority for commit in own) > max(commit.priority for commit in other_commits)


def test_where_there_is_no_choice_nothing_is_hashed() -> None:
    """A hash costs an upcall per connection; one endpoint or one gateway needs none, and liveness stays."""
    lonely = pipeline.service(small.env(gateway=True, siblings=()), small.service(6, "udp", endpoints=1)).groups[0]
    assert lonely.body_text.startswith("type=indirect,bucket=")
    (gateways,) = (
        group
        for group in small.base(small.env(gateway=False, siblings=(3,))).groups
        if group.group_id == d.GROUP_GATEWAYS.group_id(0)
    )
    # Nor watched: there is nowhere else to go, and a false alarm would drop what arrives.
    assert gateways.body_text == "type=indirect,bucket=bucket_id:3,actions=output:3"


def test_no_builder_assumes_ipv4() -> None:
    """IPv6 networks give flows on IPv6 fields."""
    shared = replace(small.env(gateway=True, siblings=(3,)), service_cidrs=(ip_network("fd00:96::/108"),))
    v6 = ip_network("fd00:21::/64")
    gateway = pipeline.RemoteGateway(address=ip_address("fd00:9::1"), next_hop=pipeline.NextHop(ofport=1001))
    cluster = pipeline.RemoteCluster(id=1, cidrs=(v6,), gateways=(gateway,), snat=False)
    flows: list[Flow] = [*small.base(shared).flows, *pipeline.cluster(shared, cluster).flows]
    endpoint = pipeline.ServiceEndpoint(address=ip_address("fd00:10::2"), port=8080)
    service = replace(
        small.service(5, "tcp", endpoints=0), address=ip_address("fd00:96::5"), endpoints=(endpoint,)
    )
    part = pipeline.service(shared, service)
    assert "ipv6,ipv6_src=fd00:21::/64" in {flow.match_text for flow in flows if flow.table == t.OWNER.number}
    assert "ipv6,reg0=0x4/0xf,ipv6_dst=fd00:96::/108" in {flow.match_text for flow in flows}
    assert part.flows[0].match_text == "ct_state=+new-rpl+trk,tcp6,ipv6_dst=fd00:96::5,tp_dst=80"
    assert "nat(dst=[fd00:10::2]:8080)" in part.groups[0].body_text


def test_bucket_numbers_depend_on_the_name_alone() -> None:
    """A name keeps its number whatever others are there, and numbers fit OpenFlow's range."""
    names = [f"10.0.{n // 250}.{n % 250} 80" for n in range(2000)]
    numbers = bucket_ids(names)
    assert len(set(numbers.values())) == len(names)
    assert all(bucket_ids([name])[name] == numbers[name] for name in names[:50])
    assert max(numbers.values()) < 0xFFFFFF00
