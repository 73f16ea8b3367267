"""A traced path as text and as JSON: each line of a hop, the endpoints of a Service, the verdict, real probes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any

import pytest
from msgspec import structs

from mcagent.api.status import GatewayStatus, Probes, Status, TunnelStatus
from mcagent.api.trace import NodeTrace, TracedRule, TraceOutcome
from mcagent.trace.path import Hop, Origin
from mcagent.trace.probing import ProbeReport, Sighting
from mcagent.trace.report import WIDTH, PathReport
from mcagent.trace.targets import Choice, TraceTarget
from tests.worlds.traced_packets import PROBE

ADDRESS = PROBE.destination
ENDS: dict[str, Any] = {"source": "10.1.3.2", "source_port": 40000, "destination": "10.102.0.80", "port": 80}
TABLES = ("Classify", "Output")
DELIVERED = NodeTrace(**ENDS, tables=TABLES, outcome=TraceOutcome.HOST, table="Output", mtu=1450)
SENT = NodeTrace(**ENDS, tables=TABLES, outcome=TraceOutcome.TUNNEL, table="Route", out_port=7)
TO_WEST = TunnelStatus(
    name="mc-7", type="geneve", remote_ip="192.168.2.11", peer_kind="remote", peer="west", ofport=7
)


def hop(node: str = "g", trace: NodeTrace | None = DELIVERED, **values: Any) -> Hop:
    """Return a hop of cluster east that its own switch has traced."""
    return Hop(**{"node": node, "cluster": "east", "role": "gateway", "probe": PROBE, "trace": trace, **values})


def gateway(name: str = "r", **values: Any) -> GatewayStatus:
    """Return a live gateway of the other cluster, behind the tunnel of `TO_WEST`."""
    return GatewayStatus(**{"name": name, "tunnel": "mc-7", "live": True, "why": "BFD is up", **values})


def path(*hops: Hop, back: Sequence[Hop] = (), live: ProbeReport | None = None, **target: Any) -> PathReport:
    """Return the report of a path to an address, or to the Service of `target`."""
    destination = TraceTarget(**{"address": ADDRESS, "port": 80, **target})
    return PathReport(target=destination, status=Status(cluster_id="east"), hops=hops, back=back, live=live)


def lines_of(single_hop: Hop) -> list[str]:
    """Return the lines of a hop without those of its packet and tables, which all hops have."""
    packet, tables, *following = path(single_hop).as_json()["hops"][0]["text"]
    assert tables == "tables: Classify > Output"
    assert packet.startswith("packet: ")
    return list(following)


def last_lines(report: PathReport, count: int) -> list[str]:
    """Return the last lines of the text."""
    return report.as_text().splitlines()[-count:]


# --- the lines of a hop


def test_a_delivered_packet_has_its_ends_and_the_mtu() -> None:
    """ICMP has no ports; a Node whose MTU is not known shows none."""
    assert path(hop()).as_json()["hops"][0]["text"] == [
        "packet: 10.1.3.2:40000 > 10.102.0.80:80",
        "tables: Classify > Output",
        "delivered: to the kernel of this Node, by mc-gw0",
        "mtu: 1450 bytes",
    ]
    icmp = hop(trace=structs.replace(DELIVERED, mtu=0), probe=replace(PROBE, protocol="icmp"))
    assert path(icmp).as_json()["hops"][0]["text"][0] == "packet: 10.1.3.2 > 10.102.0.80"
    assert lines_of(icmp) == ["delivered: to the kernel of this Node, by mc-gw0"]


def test_a_hop_without_a_trace_has_only_its_reason() -> None:
    """In text it is indented below the Node."""
    unknown = hop(trace=None, why="not asked: no agent of it is known")
    assert path(hop(), unknown).as_json()["hops"][1]["text"] == ["not asked: no agent of it is known"]
    text = path(hop(), unknown).as_text().splitlines()
    assert text[text.index("2. Node g (cluster east, gateway)") + 1] == "   not asked: no agent of it is known"


def test_rules_that_allow_are_listed_with_the_packet_and_rules_that_forbid_with_the_drop() -> None:
    """A rule without a name is shown as "-"."""
    rules = (
        TracedRule(policy="NetworkPolicy shop/web", rule="", direction="egress", verdict="allow"),
        TracedRule(policy="ClusterNetworkPolicy/no-web", rule="r1", direction="ingress", verdict="reject"),
        TracedRule(policy="ClusterNetworkPolicy/none", rule="", direction="ingress", verdict="drop"),
    )
    trace = structs.replace(
        DELIVERED, outcome=TraceOutcome.REJECTED, reason="policy", table="IngressTiers", policies=rules
    )
    assert lines_of(hop(trace=trace)) == [
        "policy: NetworkPolicy shop/web, rule - (egress): allow",
        "rejected: in table IngressTiers: policy",
        "policy: ClusterNetworkPolicy/no-web, rule r1 (ingress): reject",
        "policy: ClusterNetworkPolicy/none, rule - (ingress): drop",
        "because: a policy rule forbids it",
        "next: mcagent policy explain --from 10.1.3.2 --to 10.102.0.80 --port 80/TCP",
        'counter: mcagent_policy_rule_packets_total{policy="ClusterNetworkPolicy/none",rule=""}',
    ]


@pytest.mark.parametrize("reason", ["isolated", "unknown-identity", "policy"])
def test_a_drop_by_policies_leads_to_the_explanation_of_this_packet(reason: str) -> None:
    """Without a rule the counter is that of the reason; ICMP has no port."""
    trace = structs.replace(DELIVERED, outcome=TraceOutcome.DROPPED, reason=reason, table="IngressNetworkPolicy")
    lines = lines_of(hop(trace=trace, probe=replace(PROBE, protocol="icmp")))
    assert lines[0] == f"dropped: in table IngressNetworkPolicy: {reason}"
    assert lines[-2:] == [
        "next: mcagent policy explain --from 10.1.3.2 --to 10.102.0.80 --port ICMP",
        f'counter: mcagent_dropped_packets_total{{reason="{reason}"}}',
    ]


def test_policies_that_isolate_a_pod_are_named_together() -> None:
    """There is no rule to name: none of them allows the packet."""
    policies = ("NetworkPolicy shop/deny", "NetworkPolicy shop/all")
    trace = structs.replace(DELIVERED, outcome=TraceOutcome.DROPPED, reason="isolated", isolated_by=policies)
    line = "policy: isolated by NetworkPolicy shop/deny, NetworkPolicy shop/all, and no NetworkPolicy allows this"
    assert line in lines_of(hop(trace=trace))


def test_another_drop_has_cause_command_and_counter() -> None:
    """As `mcagent.trace.drops` has them; a reason that is not in it, of a newer agent, has its counter."""
    trace = structs.replace(DELIVERED, outcome=TraceOutcome.DROPPED, reason="no-route", table="Route")
    assert lines_of(hop(trace=trace)) == [
        "dropped: in table Route: no-route",
        "because: no other cluster has this address",
        "next: kubectl get clusterinfoimports -A -o yaml",
        'counter: mcagent_dropped_packets_total{reason="no-route"}',
    ]
    newer = structs.replace(trace, reason="newer")
    assert lines_of(hop(trace=newer)) == [
        "dropped: in table Route: newer",
        'counter: mcagent_dropped_packets_total{reason="newer"}',
    ]


def test_translation_is_shown_where_an_end_changes() -> None:
    """An answer's translation is conntrack's; a Service's connections have a counter, answers to them none."""
    trace = structs.replace(
        DELIVERED, source="192.168.1.11", destination="10.2.1.2", port=8080, exports=("shop/web:80/tcp",)
    )
    assert lines_of(hop(trace=trace))[:3] == [
        "translated: source 10.1.3.2:40000 to 192.168.1.11:40000",
        "translated: destination 10.102.0.80:80 to 10.2.1.2:8080",
        'Service: shop/web:80/tcp, exported; counter mcagent_exported_connections_total{export="shop/web"}',
    ]
    answer = replace(PROBE, reply=True)
    trace = structs.replace(DELIVERED, source_port=1024, exports=("shop/web:80/tcp",))
    assert lines_of(hop(trace=trace, probe=answer))[:2] == [
        "translated: source 10.1.3.2:40000 to 10.1.3.2:1024 (as conntrack knows it)",
        "Service: shop/web:80/tcp, exported",
    ]


@pytest.mark.parametrize(
    ("kind", "peer", "words"),
    [("remote", "west", "a gateway of cluster west"), ("gateway", "h", "gateway h"), ("node", "w", "Node w")],
)
def test_a_sent_packet_names_the_peer_and_the_tunnel(kind: str, peer: str, words: str) -> None:
    """A tunnel within the cluster is not said to be in clear: that is no fault."""
    tunnel = TunnelStatus(name="mc-7", remote_ip="192.168.2.11", peer_kind=kind, peer=peer, ofport=7)
    assert lines_of(hop(trace=SENT, tunnel=tunnel)) == [
        f"sent: to {words} at 192.168.2.11, tunnel mc-7",
        f"encrypted: {'no' if kind == 'remote' else 'no: within the cluster'}",
        'counter: mcagent_tunnel_transmit_packets_total{tunnel="mc-7"}',
    ]


def test_a_tunnel_within_the_cluster_may_be_encrypted_between_nodes() -> None:
    """Its end is an address of WireGuard's network between Nodes."""
    tunnel = TunnelStatus(name="mc-5", remote_ip="240.1.2.3", peer_kind="gateway", peer="h", ofport=7)
    assert "encrypted: by WireGuard" in lines_of(hop(trace=SENT, tunnel=tunnel))


def test_a_port_that_is_no_tunnel_of_the_status_is_not_shown_as_a_drop() -> None:
    """The tunnel may be newer than the page /status."""
    report = path(hop(trace=SENT))
    assert report.as_json()["hops"][0]["text"][2:] == ["sent: to port 7, which is no tunnel of its /status"]
    assert last_lines(report, 1) == ["verdict: not known: g is the last Node that could be traced"]


def test_a_trace_without_an_end_is_unknown() -> None:
    """With the last table, if there was one."""
    trace = structs.replace(DELIVERED, outcome=TraceOutcome.UNKNOWN, table="Route")
    assert lines_of(hop(trace=trace)) == ["unknown: the trace of table Route ends without output or drop"]
    trace = structs.replace(trace, table="")
    assert lines_of(hop(trace=trace)) == ["unknown: the trace of table ? ends without output or drop"]


@pytest.mark.parametrize(
    ("passes", "text"),
    [
        (None, ""),
        (True, "; 1400 pass this tunnel"),
        (False, "; 1400 do NOT pass this tunnel: mcagent doctor"),
    ],
)
def test_the_mtu_is_shown_with_the_probes_of_full_size(passes: bool | None, text: str) -> None:
    """Without probes of this size nothing is said of the tunnel."""
    probes = Probes(full_size_passes=passes, full_size_bytes=1400)
    sent = structs.replace(SENT, mtu=1450)
    measured = hop(trace=sent, tunnel=TO_WEST, gateways=(gateway(probes=probes),))
    assert lines_of(measured)[-1] == f"mtu: 1450 bytes{text}"
    unmeasured = hop(trace=sent, tunnel=TO_WEST, gateways=(gateway(),))
    assert lines_of(unmeasured)[-1] == "mtu: 1450 bytes"


def test_gateways_that_are_not_live_are_listed_beside_the_chosen_one() -> None:
    """With the time since when, if it is known; a live one that was not chosen is no news."""
    gateways = (
        gateway("r", encrypted=True),
        gateway("s", tunnel="mc-8"),
        gateway("t", tunnel="mc-9", live=False, why="BFD is down", since="12:04"),
        gateway("u", tunnel="mc-10", live=False, why="its Gateway says: down", since=""),
    )
    assert lines_of(hop(trace=SENT, tunnel=TO_WEST, gateways=gateways))[1:-1] == [
        "gateway: r: BFD is up; chosen by a hash of the connection, of 2 that are live",
        "not by: t: BFD is down, since 12:04",
        "not by: u: its Gateway says: down",
        "encrypted: by WireGuard",
    ]


@pytest.mark.parametrize(
    ("table", "reply", "live", "choice"),
    [
        ("Departure", False, 2, "; chosen by a hash of the connection, of 2 that are live"),
        ("Departure", True, 2, "; an answer takes its connection's gateway while that is live"),
        ("Route", True, 3, "; chosen by a hash of the connection, of 3 that are live"),
        ("Exit", False, 2, "; chosen by a hash of the connection, of 2 that are live"),
        ("Output", False, 2, ""),
        ("Departure", True, 1, ""),
        ("Route", False, 1, ""),
    ],
)
def test_how_a_gateway_was_chosen_depends_on_the_table(table: str, reply: bool, live: int, choice: str) -> None:
    """Without a second live gateway, or after the tables that choose, there was no choice."""
    gateways = tuple(gateway(f"r{number}", tunnel=f"mc-{7 + number}") for number in range(live))
    trace = structs.replace(SENT, table=table)
    lines = lines_of(hop(trace=trace, tunnel=TO_WEST, gateways=gateways, probe=replace(PROBE, reply=reply)))
    assert lines[1] == f"gateway: r0: BFD is up{choice}"


# --- the report


def test_json_has_each_hop_with_its_packet_and_tunnel() -> None:
    """What is not known is null."""
    sent = hop("g", SENT, tunnel=TO_WEST, probe=replace(PROBE, in_port=6, mac="translated", reply=True))
    unknown = Hop(node="192.168.2.11", cluster="west", role="", why="not asked: x")
    value = path(sent, unknown, back=[hop("r", role="")]).as_json()
    first, second = value["hops"]
    assert first["packet"] == {
        "source": "10.1.3.2",
        "destination": "10.102.0.80",
        "protocol": "tcp",
        "source_port": "40000",
        "port": "80",
        "in_port": "6",
        "mac": "translated",
        "reply": "true",
    }
    assert first["tunnel"] == {"name": "mc-7", "peer": "west", "remoteIP": "192.168.2.11"}
    assert (first["node"], first["cluster"], first["role"]) == ("g", "east", "gateway")
    assert (first["asked"], first["from"], first["encrypted"], first["why"]) == (True, "switch", False, "")
    assert (first["walk"]["outcome"], first["walk"]["out_port"]) == ("to a tunnel", 7)
    assert {name: second[name] for name in ("packet", "walk", "tunnel", "from", "encrypted")} == dict.fromkeys(
        ("packet", "walk", "tunnel", "from", "encrypted")
    )
    assert (second["asked"], second["why"]) == (False, "not asked: x")
    assert (value["delivered"], value["local"], value["answered"], value["live"]) == (False, False, False, None)
    assert value["service"] == {"name": "", "chosen_by": "", "endpoints": []}
    assert [answer["node"] for answer in value["answer"]] == ["r"]
    assert value["answer"][0]["packet"]["reply"] == "false"


def test_json_has_the_service_and_real_probes() -> None:
    """The last Node that has seen probes is the last one of the path, not of the list of all."""
    sights = (Sighting(node="w", seen=True), Sighting(node="g", seen=True), Sighting(node="r", seen=False))
    live = ProbeReport(sent=3, answered=False, sights=sights, verdict="lost", command="mcagent doctor --all")
    choices = (Choice(address=ADDRESS, port=80, share=0.5),)
    value = path(hop(), live=live, name="shop/web", choices=choices, by="kube-proxy").as_json()
    assert value["service"] == {
        "name": "shop/web",
        "chosen_by": "kube-proxy",
        "endpoints": [{"address": "10.102.0.80", "port": 80, "share": 0.5}],
    }
    assert (value["live"]["last_seen"], value["live"]["sent"], value["live"]["verdict"]) == ("g", 3, "lost")
    assert value["live"]["sights"][2]["node"] == "r"
    assert value["delivered"]


def test_the_head_names_the_packet_and_the_largest_shares_of_a_service() -> None:
    """Six endpoints are listed, the others counted; the traced one is marked, by address and port."""
    choices = tuple(
        Choice(address=IPv4Address(f"10.1.9.{number}"), port=80, share=number / 100) for number in range(1, 9)
    )
    probe = replace(PROBE, destination=IPv4Address("10.1.9.7"), port=80)
    report = path(hop(probe=probe), choices=choices, by="kube-proxy")
    head = report.as_text().split("\n\n")[0].splitlines()
    assert head[:2] == [
        "tcp from 10.1.3.2:40000 to 10.1.9.7:80",
        "of the Service 10.102.0.80:80, whose new connections kube-proxy gives",
    ]
    assert head[2:4] == [
        "     8%  10.1.9.8:80 (cluster east, this one)",
        "     7%  10.1.9.7:80 (cluster east, this one)  <- traced",
    ]
    assert len(head) == 9
    assert head[-1] == "   and 2 more"
    all_shown = path(hop(probe=replace(probe, port=81)), choices=choices[:6]).as_text()
    assert "more" not in all_shown
    assert "<- traced" not in all_shown


def test_a_path_to_an_address_has_no_service_in_its_head() -> None:
    """Only the packet: ICMP without ports."""
    icmp = replace(PROBE, protocol="icmp")
    assert path(hop(probe=icmp)).as_text().split("\n\n")[0] == "icmp from 10.1.3.2 to 10.102.0.80"


def test_hops_are_numbered_through_to_the_answer() -> None:
    """A cluster that is not known is "?", and a role that is not known is left out."""
    hops = (hop("w"), hop("g", cluster="", role=""))
    blocks = path(*hops, back=[hop("g"), hop("w")]).as_text().split("\n\n")
    assert [block.splitlines()[0] for block in blocks[1:]] == [
        "1. Node w (cluster east, gateway)",
        "2. Node g (cluster ?)",
        "the answer:",
        "3. Node g (cluster east, gateway)",
        "4. Node w (cluster east, gateway)",
        "verdict: delivered to the kernel of the Node; packets up to 1450 bytes",
    ]
    assert blocks[1].splitlines()[1:] == [
        "   packet      10.1.3.2:40000 > 10.102.0.80:80",
        "   tables      Classify > Output",
        "   delivered   to the kernel of this Node, by mc-gw0",
        "   mtu         1450 bytes",
    ]
    assert blocks[-1].splitlines()[-1] == "answer:  comes back"


def test_long_lines_continue_below_their_text() -> None:
    """Names are not broken, not even at hyphens."""
    tables = tuple(f"Table-of-a-long-name-{number}" for number in range(8))
    lines = path(hop(trace=structs.replace(DELIVERED, tables=tables))).as_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("   tables      "))
    end = next(number for number, line in enumerate(lines) if line.startswith("   delivered"))
    assert all(line.startswith((" " * 15 + "Table", " " * 15 + "> Table")) for line in lines[start + 1 : end])
    assert " ".join(" ".join(lines[start:end]).split()) == f"tables {' > '.join(tables)}"
    assert max(map(len, lines)) <= WIDTH
    long_word = "x" * 120
    reason = path(hop(), hop(trace=None, why=f"not asked: {long_word} a-b")).as_text().splitlines()
    assert f"   {long_word}" in reason


@pytest.mark.parametrize(
    ("hops", "verdict"),
    [
        ([hop("w", None), hop("r", None)], "not known: w sends it to r, which was not asked"),
        ([hop("w", None)], "not known: w, which was not asked"),
        ([hop("w", structs.replace(DELIVERED, outcome=TraceOutcome.REJECTED))], "NOT delivered: it ends at w"),
        ([hop("w", structs.replace(DELIVERED, outcome=TraceOutcome.DROPPED))], "NOT delivered: it ends at w"),
        ([hop("w", SENT)], "not known: w is the last Node that could be traced"),
        (
            [hop("w", None, local=True)],
            "not known: no other cluster has this address; within this cluster the CNI delivers packets",
        ),
    ],
)
def test_the_verdict_names_the_last_node(hops: list[Hop], verdict: str) -> None:
    """Only a drop is a loss; a path with a Node that was not asked is not known."""
    assert last_lines(path(*hops), 1) == [f"verdict: {verdict}"]


def test_an_endpoint_of_this_cluster_is_delivered_by_others() -> None:
    """Only if it is an endpoint of a Service: an address alone may be of nothing."""
    choices = (Choice(address=ADDRESS, port=80, share=1.0),)
    report = path(hop(trace=None, local=True), choices=choices)
    verdict = "verdict: the endpoint is of this cluster: kube-proxy and the CNI deliver it, without mcagent"
    assert last_lines(report, 1) == [verdict]
    assert (report.local, path(hop(), choices=choices).local) == (True, False)


def test_the_verdict_names_simulated_nodes_once() -> None:
    """Also those of the answer; a Node without a trace was not simulated."""
    simulated: dict[str, Any] = {"origin": Origin.SIMULATOR, "why": "simulated: no agent; Assumed: x"}
    report = path(hop("w"), hop("g", **simulated), back=[hop("g", **simulated), hop("h", **simulated), hop("w")])
    assert last_lines(report, 3)[1:] == ["         if flows are as simulated: g, h", "answer:  comes back"]
    text = report.as_text()
    assert "   simulated   no agent; Assumed: x\n" in text
    assert text.count("   simulated   as above\n") == 1
    last = path(hop("w"), hop("r", None))
    assert last_lines(last, 1)[0].startswith("verdict: not known: w sends it to r")


def test_an_answer_that_ends_elsewhere_does_not_come_back() -> None:
    """It must be delivered on the packet's first Node."""
    text = "answer:  does NOT come back, or is not known to"
    assert last_lines(path(hop("w"), hop("g"), back=[hop("g")]), 1) == [text]
    assert last_lines(path(hop("w"), hop("g"), back=[hop("g"), hop("w", SENT)]), 1) == [text]
    assert last_lines(path(hop("w"), hop("g")), 1)[0].startswith("verdict: ")


def sized(node: str, mtu: int, passes: bool | None = None, size: int = 1400) -> Hop:
    """Return a hop with an MTU, and the result of probes of its tunnel."""
    probes = Probes(full_size_passes=passes, full_size_bytes=size)
    return hop(node, structs.replace(SENT, mtu=mtu), tunnel=TO_WEST, gateways=(gateway(probes=probes),))


@pytest.mark.parametrize(
    ("hops", "size"),
    [
        ([sized("w", 0)], ""),
        ([sized("w", 1450)], "; packets up to 1450 bytes"),
        ([sized("w", 1450), sized("g", 0), sized("h", 1450)], "; packets up to 1450 bytes"),
        ([sized("w", 1450), sized("g", 1400), sized("h", 1400)], "; packets up to 1400 bytes (MTU of g, h)"),
        ([sized("w", 1400, passes=True)], "; packets up to 1400 bytes"),
        ([sized("w", 1400, passes=False)], "; 1400 bytes do NOT pass a tunnel of w: mcagent doctor"),
        ([sized("w", 1399, passes=False)], "; packets up to 1399 bytes"),
        (
            [sized("w", 1450, passes=False, size=1450), sized("g", 1450, passes=False)],
            "; 1400 bytes do NOT pass a tunnel of w, g: mcagent doctor",
        ),
    ],
)
def test_the_verdict_names_the_largest_packets_that_pass(hops: list[Hop], size: str) -> None:
    """By the smallest MTU of the path, with its Nodes, or by probes that fail at this size."""
    last = hop("r", structs.replace(DELIVERED, mtu=0))
    verdict = path(*hops, last).as_text().split("\n\n")[-1]
    assert " ".join(verdict.split()) == f"verdict: delivered to the kernel of the Node{size}"


def test_real_probes_are_listed_by_node() -> None:
    """With what became of them there, the conclusion, and the next command if there is one."""
    sights = (
        Sighting(node="w", seen=True, answered=True),
        Sighting(node="g", seen=True, dropped=True),
        Sighting(node="r", seen=False),
        Sighting(node="s", seen=None, why="it did not answer"),
    )
    live = ProbeReport(sent=3, answered=False, sights=sights, verdict="lost", command="mcagent doctor --all")
    assert last_lines(path(hop(), live=live), 7) == [
        "3 real probes:",
        "   w                        seen, answered",
        "   g                        seen, dropped",
        "   r                        not seen",
        "   s                        not asked (it did not answer)",
        "live:    lost",
        "next:    mcagent doctor --all",
    ]
    assert last_lines(path(hop(), live=replace(live, command="")), 1) == ["live:    lost"]
    wide = replace(live, sights=(Sighting(node="s", seen=None, why="it did not " * 12),), verdict="lost " * 30)
    lines = path(hop(), live=replace(wide, command="mcagent " * 20)).as_text().split("\n\n")[-1].splitlines()
    assert max(map(len, lines)) <= WIDTH
    for start, indent in (("   s", 28), ("live:", 9), ("next:", 9)):
        following = lines[next(number for number, line in enumerate(lines) if line.startswith(start)) + 1]
        assert len(following) - len(following.lstrip()) == indent
