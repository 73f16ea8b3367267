"""Single flows of the pipeline's steps whose loss a packet shows only in rare states of a connection."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network
from itertools import product

import pytest

from flows import Flow, FlowError, pipeline
from flows import actions as act
from flows.fields import ETH_DST, IP_ICMP, IP_TCP, IP_UDP
from flows.flow import Match
from flows.pipeline import declaration as d
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.groups import next_hop_groups
from flows.simulator import IpFragment, Packet, SimulatedSwitch
from flows.simulator.packet import SYN, UNREACHABLE
from mcagent.model.net import PodPrefix
from tests.worlds import small_topology as small
from tests.worlds.small_topology import ROLES, texts
from tests.worlds.topologies import HOST_MAC, PLAIN


def implies(flow: Flow, wider: Flow) -> bool:
    """Tell whether every packet that matches `flow` matches `wider`, too."""
    terms = {term.field: term for term in flow.match.terms}
    return all(
        (own := terms.get(term.field)) is not None
        and not term.mask & ~own.mask
        and own.value & term.mask == term.value
        for term in wider.match.terms
    )


@pytest.mark.parametrize(("gateway", "siblings"), ROLES)
def test_no_flow_is_hidden_by_one_with_a_higher_priority(gateway: bool, siblings: tuple[int, ...]) -> None:
    """Each flow gets packets, except the lowest of a table, which only counts what no other flow wants."""
    for snat in (False, True):
        flows = small.flows_of(small.parts(gateway=gateway, siblings=siblings, snat=snat))
        hidden = [
            (flow.table, flow.priority, flow.match_text, wider.match_text)
            for flow, wider in product(flows, flows)
            if wider.table == flow.table
            and flow.priority
            and wider.priority > flow.priority
            and implies(flow, wider)
        ]
        assert hidden == []


def test_every_flow_has_a_text_with_policies_and_virtual_pod_cidrs() -> None:
    """Each action can be written for Open vSwitch."""
    prefix = PodPrefix(real=ip_network("10.10.0.0/16"), virtual=ip_network("100.72.0.0/16"))
    for identities, prefixes in product((False, True), ((), (prefix,))):
        shared = replace(small.env(gateway=True, siblings=(3,)), identities=identities, prefixes=prefixes)
        assert all(flow.match_text + flow.actions_text for flow in small.base(shared).flows)


def test_a_longer_prefix_of_the_node_comes_first() -> None:
    """Networks of a Node may lie in each other."""
    node = pipeline.LocalNode(
        id=1, ofport=1, gateway=True, networks=(ip_network("10.10.0.0/16"), ip_network("10.10.1.0/24"))
    )
    part = pipeline.node(small.env(gateway=True, siblings=()), node)
    priorities = {flow.match_text: flow.priority for flow in part.flows if flow.table == t.SOURCE.number}
    assert priorities["ip,reg0=0x1/0xf,nw_src=10.10.1.0/24"] == d.PREFIX + 24
    assert priorities["ip,reg0=0x1/0xf,nw_src=10.10.0.0/16"] == d.PREFIX + 16


def test_packets_of_unknown_connections_are_asked_about_at_the_nodes_with_endpoints() -> None:
    """One Node first where there is a choice, else all; the answer must come by the endpoint's tunnel."""
    shared = small.env(gateway=True, siblings=())
    for endpoints, group in ((3, d.GROUP_ASK), (1, None)):
        part = pipeline.service(shared, small.service(5, "tcp", endpoints=endpoints))
        (full_text,) = [
            text
            for text in texts(part, t.SERVICE.number)
            if ",tp_dst=80,tcp_flags=-syn ->" in text and "nw_tos" not in text
        ]
        assert ("group:" in full_text) is (group is not None)
        assert group is None or full_text.endswith(f"group:{group.group_id(5)}")
    part = pipeline.service(shared, small.service(5, "tcp", endpoints=3))
    answers = [text for text in texts(part, t.LOOKUP_RESULT.number) if "nw_dst=" in text]
    assert {port for port in (2, 3) for text in answers if f"reg2={port:#x}/0xffff" in text} == {2, 3}
    assert len(answers) == 3


def test_an_established_connection_to_a_service_keeps_its_service() -> None:
    """The flows for translated packets mark them as translated, with the Service of the connection.

    Without such a flow they go to the agent, which deletes the connection. Of TCP it is enough that the Service is
    exported; of UDP the endpoint must be listed, ready or not. ICMP errors and later fragments have no port.
    """
    env = small.env(gateway=True, siblings=())
    *portless, ended = (text for text in texts(small.base(env), t.SERVICE.number) if "dnat" in text)
    of_service = {
        protocol: [
            text
            for text in texts(pipeline.service(env, small.service(5, protocol, endpoints=2)), t.SERVICE.number)
            if "dnat" in text
        ]
        for protocol in ("tcp", "udp")
    }
    flows = [*portless, *of_service["tcp"], *of_service["udp"]]
    assert (len(portless), len(of_service["tcp"]), len(of_service["udp"])) == (2, 1, 2)
    assert all(f"->{r.TRANSLATED.field.set_name}," in text and "move:" in text for text in flows)
    assert ended == f"ct_state=+trk+dnat,ip -> CONTROLLER:{r.ENDED_HEAD}"
    assert all("0x500000000/0xffffffff00000000" in text for text in (*of_service["tcp"], *of_service["udp"]))
    assert all("nw_dst=" in text and "tp_dst=" in text for text in of_service["udp"])


def test_replies_are_untranslated_while_their_service_is_exported() -> None:
    """Of TCP and UDP: else a server that goes on sending keeps a connection alive whose client is silent."""
    env = replace(small.env(gateway=True, siblings=()), userspace_conntrack=False)
    (ended,) = (text for text in texts(small.base(env), t.UN_DNAT.number) if "ct_state=+rpl" in text)
    assert ended == f"ct_state=+rpl-inv+trk,ip -> CONTROLLER:{r.ENDED_HEAD}"
    for protocol in ("tcp", "udp"):
        for endpoints in (0, 2):
            service = small.service(5, protocol, endpoints=endpoints)
            flows = texts(pipeline.service(env, service), t.UN_DNAT.number)
            (untranslated,) = (text for text in flows if "ct_state=+rpl" in text)
            assert "0x500000000/0xffffffff00000000" in untranslated
            assert "goto_table" in untranslated or "resubmit" in untranslated


def test_ended_connections_of_one_cluster_use_up_no_other_s_rate() -> None:
    """They go to the agent through their cluster's meter; those that no cluster pays for through the Node's."""
    env = replace(small.env(gateway=True, siblings=()), ended_meter=9)
    remotes = [replace(small.remote(number, gateway=True, snat=False), ask_meter=20 + number) for number in (1, 2)]
    (base,) = [text for text in texts(small.base(env), t.SERVICE.number) if "CONTROLLER" in text]
    assert base.endswith(f"meter:9,CONTROLLER:{r.ENDED_HEAD}")
    for remote in remotes:
        (own,) = [f for f in pipeline.cluster(env, remote).flows if f.table == t.SERVICE.number]
        assert d.COOKIES.split(own.cookie) == (d.FOR_CONNECTION.number, 0)
        assert own.actions == (act.Meter(remote.ask_meter or 0), act.ToController(r.ENDED_HEAD))
        assert f"{remote.id:#x}" in own.match_text
        passing = [
            f for f in pipeline.service(env, small.service(5, "udp", endpoints=2)).flows if "dnat" in f.match_text
        ]
        assert {own.priority < flow.priority for flow in passing if flow.table == t.SERVICE.number} == {True}


def test_rejected_requests_are_stored_and_connections_of_other_addresses_are_marked() -> None:
    """Conntrack has the request that is answered with a reset, and what a gateway translates anew is marked."""
    shared = replace(small.env(gateway=True, siblings=()), identities=True)
    rejected = [flow for flow in small.base(shared).flows if flow.table == t.REJECT_STATE.number and flow.actions]
    assert rejected
    for flow in rejected:
        assert any(isinstance(action, act.Ct) and action.commit for action in flow.actions), flow.match_text
    marked = [text for text in texts(small.base(shared), t.SNAT_STATE.number) if "tcp_flags=-syn" in text]
    assert marked
    assert all("nw_tos" in text and "ct(commit" in text and "nat(src=" in text for text in marked)


def test_the_reason_names_the_bounds_of_a_conjunction() -> None:
    """Clauses are few, and IDs have 32 bits."""
    for clause in (act.Conjunction(7, 3, 2), act.Conjunction(1 << 32, 1, 2), act.Conjunction(0, 1, 2)):
        with pytest.raises(FlowError, match="is no clause of 2 to 64, or no ID of 32 bits"):
            pipeline.PIPELINE.flow(t.OUTPUT, 1, (), (clause,))


def leads_on(action: act.Action) -> bool:
    """Tell whether a packet goes on after an action, or a connection is stored."""
    on = act.Goto | act.Resubmit | act.Output | act.OutputBits | act.ToGroup | act.ToController | act.Conjunction
    return isinstance(action, on) or (isinstance(action, act.Ct) and (action.table is not None or action.commit))


@pytest.mark.parametrize(("gateway", "siblings"), ROLES)
def test_every_flow_that_does_not_drop_leads_on(gateway: bool, siblings: tuple[int, ...]) -> None:
    """A flow that only changes a packet would drop it, uncounted; a drop has the category of drops."""
    categories = {category.number: category for category in pipeline.PIPELINE.categories}
    for snat, identities in product((False, True), (False, True)):
        shared = replace(small.env(gateway=gateway, siblings=siblings), identities=identities)
        flows = small.flows_of([*small.parts(gateway=gateway, siblings=siblings, snat=snat), small.base(shared)])
        for flow in flows:
            split = pipeline.PIPELINE.cookies.split(flow.cookie)
            assert split is not None
            where = (flow.table, flow.priority, flow.match_text, flow.actions_text)
            assert any(map(leads_on, flow.actions)) is not categories[split[0]].drops, where


@pytest.mark.parametrize("gateway", [False, True])
def test_only_a_node_that_is_asked_alone_answers_no(gateway: bool) -> None:
    """Of all Nodes that are asked at once, those without the connection are silent."""
    mine = small.flows_of(small.parts(gateway=gateway))
    answer = act.set_whole(ETH_DST, r.MAC_NOT_HERE)
    no = [flow for flow in mine if answer in flow.actions and flow.table == t.LOOKUP_RESTORED.number]
    assert no
    alone = Match.of(r.LOOKUP.is_(1))
    assert all(implies(flow, replace(flow, match=alone)) for flow in no)


@pytest.mark.parametrize("userspace", [False, True])
def test_connections_that_this_node_opened_are_marked_on_the_userspace_datapath(userspace: bool) -> None:
    """The agent knows from the mark which of the kernel's connections were the Node's own."""
    shared = replace(small.env(gateway=True, siblings=()), userspace_conntrack=userspace)
    departing = [flow for flow in small.base(shared).flows if flow.table == t.DEPARTURE.number]
    commits = [a for flow in departing for a in flow.actions if isinstance(a, act.Ct) and a.commit]
    assert commits
    assert {act.set_bits(r.MARK_OPENED, 1) in commit.exec_ for commit in commits} == {userspace}


def test_the_last_resort_of_an_order_is_its_first_hop_dead_or_alive() -> None:
    """After all others, and without a look at its liveness: in a false alarm the packets still arrive."""
    hops = {number: pipeline.NextHop(ofport=number) for number in (7, 8)}
    shared = small.env(gateway=True, siblings=())
    for last_resort, ports in ((True, [(7, True), (8, True), (7, False)]), (False, [(7, True), (8, True)])):
        (group,) = next_hop_groups(shared, 1, hops, ordered=True, last_resort=last_resort)
        assert [bucket.actions for bucket in group.buckets] == [(act.Output(port),) for port, _ in ports]
        assert [bucket.watch_port == port for bucket, (port, _) in zip(group.buckets, ports, strict=True)] == [
            watched for _, watched in ports
        ]


def test_answers_of_nodes_have_their_origin() -> None:
    """The registers of a packet that came by a tunnel tell the origin to all tables that follow."""
    part = pipeline.node(small.env(gateway=True, siblings=()), small.nodes(gateway=True, siblings=())[1])
    answers = [text for text in texts(part, t.CLASSIFY.number) if "dl_dst=" in text]
    assert answers
    assert all("set_field:0x5/0xf->reg0" in text and "set_field:0x2/0xffff->reg2" in text for text in answers)


@pytest.mark.parametrize("snat", [False, True])
def test_only_routes_to_clusters_with_source_translation_mark_packets_for_it(snat: bool) -> None:
    """The bit is what table SnatTable matches."""
    part = pipeline.cluster(small.env(gateway=True, siblings=()), small.remote(1, gateway=True, snat=snat))
    routes = [text for text in texts(part, t.ROUTE.number) if "nw_dst=10.21.0.0/16" in text]
    assert routes
    marked = f"set_field:{r.SNAT.is_(1).value:#x}/{r.SNAT.is_(1).mask:#x}->{r.SNAT.field.set_name}"
    assert all((marked in text) is snat for text in routes)


def test_a_new_connection_to_a_service_does_not_begin_with_a_fragment() -> None:
    """Of its datagram only the first one has a port, so conntrack would wait for the others in vain."""
    parts = small.parts(gateway=True)
    switch = SimulatedSwitch.of(small.flows_of(parts), small.groups_of(parts))
    request = Packet(
        in_port=1001,
        eth_src=HOST_MAC,
        eth_dst=PLAIN,
        src=ip_address("10.21.0.5"),
        dst=ip_address("10.96.0.6"),
        proto=IP_UDP,
        src_port=4000,
        dst_port=80,
    )
    assert switch.walk(request).outputs
    for place in (IpFragment.FIRST, IpFragment.LATER):
        walk = switch.walk(replace(request, fragment=place))
        assert walk.steps[-1].flow is not None
        assert d.COOKIES.split(walk.steps[-1].flow.cookie) == (d.DROP_NOT_EXPORTED.number, 0)


def test_the_ports_of_first_fragments_do_not_part_them_from_the_others() -> None:
    """Conntrack keeps a fragment until all others have come the same way: they take the flows without ports."""
    env = small.env(gateway=True, siblings=())
    base, service = small.base(env), pipeline.service(env, small.service(5, "udp", endpoints=2))
    undone = {text for text in texts(service, t.UN_DNAT.number) if "nw_frag=yes" in text}
    of_service = "ct_label=0x500000000/0xffffffff00000000"
    assert {text.partition(" ->")[0] for text in undone} == {f"ct_state=+rpl-inv+trk,{of_service},ip,nw_frag=yes"}
    by_port = [flow for part in small.parts(gateway=True) for flow in part.flows if flow.table == t.UN_DNAT.number]
    first = next(flow.priority for flow in by_port if "nw_frag=yes" in flow.match_text)
    assert all(flow.priority < first for flow in by_port if "tp_src" in flow.match_text)
    committed = [text for text in texts(base, t.CLIENT.number) if "ct(commit" in text]
    assert committed
    assert all(",nw_frag=no" in text for text in committed)


def test_an_icmp_error_comes_from_the_cluster_of_the_connection_through_any_of_its_tunnels() -> None:
    """The address in the quote is one of that cluster, or of its gateways; of a removed cluster there is none."""
    base, first, second, *other_parts = small.parts(gateway=True, siblings=())
    switch, removed = (
        SimulatedSwitch.of(small.flows_of(parts), small.groups_of(parts))
        for parts in ([base, first, second, *other_parts], [base, second, *other_parts])
    )
    pod = ip_address("10.10.1.9")
    opened = Packet(
        in_port=1, eth_src=HOST_MAC, eth_dst=PLAIN, src=pod, dst=ip_address("10.21.0.5"), proto=IP_TCP,
        src_port=4000, dst_port=80, tcp_flags=SYN,
    )  # fmt: skip
    from_gateway = replace(opened, in_port=1001, src=ip_address("10.9.1.1"), dst=pod)
    for request in (opened, from_gateway):
        walk = switch.walk(request)
        ((port, sent),) = walk.outputs
        assert (port == 1) is (request is from_gateway)
        for tunnel, source in ((1001, "10.21.0.5"), (1002, "10.121.0.7"), (2001, "10.22.0.5")):
            error = Packet(
                in_port=tunnel, eth_dst=PLAIN, src=ip_address(source), dst=pod, proto=IP_ICMP,
                icmp_type=UNREACHABLE, quoted=sent if request is opened else request.reply(),
            )  # fmt: skip
            delivered = switch.walk(error, walk.connections)
            assert bool(delivered.outputs) is (tunnel < 2000), delivered
            assert all((port, copy.src) == (1, error.src) for port, copy in delivered.outputs)
            if tunnel > 2000:
                assert delivered.steps[-1].flow is not None
                cookie = d.COOKIES.split(delivered.steps[-1].flow.cookie)
                assert cookie == (d.DROP_NOT_RELATED.number, t.SOURCE.number)
            assert not removed.walk(error, walk.connections).outputs
