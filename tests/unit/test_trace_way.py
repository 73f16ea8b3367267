"""From Node to Node: whom a trace asks, for which packet, there and back; and what it says of it."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from mcagent.api.codec import from_json
from mcagent.api.status import Status
from mcagent.api.trace import NodeTrace, TraceOutcome
from mcagent.model.errors import McagentError
from mcagent.trace.path import Hop, HopTracer, Origin, PathTracer, answered, delivered
from mcagent.trace.probe import Probe, read_query
from mcagent.trace.report import WIDTH, PathReport
from mcagent.trace.targets import Choice, TraceTarget
from tests.worlds.traced_packets import PROBE


def page(node: str, cluster: str, address: str, *tunnels: tuple[str, str, str, int]) -> dict[str, Any]:
    """Return as much of /status as the way needs. Tunnels: kind, peer, remote address, port."""
    gateways = [{"node": node, "gateway_ip": address, "source": address}]
    other_cluster = {"cidrs": ["10.102.0.0/16"], "gateways": ["192.168.2.11"]}
    return {
        "clusterID": cluster,
        "summary": {"role": "gateway", "gateways": gateways, "clusters": {"x": other_cluster}},
        "tunnels": [
            {"name": f"mc-{port}", "peerKind": kind, "peer": peer, "remoteIP": ip, "ofport": port}
            for kind, peer, ip, port in tunnels
        ],
        "gateways": [
            {
                "gateways": [
                    {
                        "tunnel": f"mc-{port}",
                        "name": ip,
                        "live": port < 90,
                        "why": "BFD is up" if port < 90 else "BFD is down",
                        "since": "12:04",
                        "encrypted": kind == "remote",
                        "probes": {"fullSizeBytes": 1400, "fullSizePasses": False} if kind == "remote" else None,
                    }
                    for kind, _, ip, port in tunnels
                ]
            }
        ],
    }


PAGES = {
    "w": page(
        *("w", "east", "192.168.1.13"),
        *(("gateway", "g", "192.168.1.11", 5), ("gateway", "h", "192.168.1.12", 99)),
    ),
    "g": page(
        *("g", "east", "192.168.1.11"),
        *(("node", "w", "192.168.1.13", 6), ("remote", "west", "192.168.2.11", 7)),
    ),
    "r": page("r", "west", "192.168.2.11", ("remote", "east", "192.168.1.11", 8)),
}


def statuses(*nodes: str, pages: Mapping[str, Any] = PAGES) -> dict[str, Status]:
    """Return what these Nodes' agents say of themselves."""
    return {node: from_json(Status, pages[node], node) for node in nodes}


def walk_of(outcome: TraceOutcome, out_port: int | None, **fields: object) -> dict[str, Any]:
    """Return a page /trace."""
    walk = {"outcome": outcome, "out_port": out_port, "tables": ["Classify"], "table": "Classify", "reason": ""}
    packet = {"source": "10.1.3.2", "destination": "10.102.0.80", "source_port": 1, "port": 80, "mac": "plain"}
    return {**walk, **packet, **fields}


def shown(hops: list[Hop], back: tuple[Hop, ...] = ()) -> str:
    """Return the trace for people; no line is too wide."""
    target = TraceTarget(address=PROBE.destination, port=80)
    text = PathReport(target=target, status=statuses("w")["w"], hops=hops, back=back).as_text()
    assert max(map(len, text.splitlines())) <= WIDTH
    return text


def test_a_packet_within_the_cluster_is_not_called_lost() -> None:
    """The share of a Service that this cluster serves itself; an address that nobody may have is not known."""
    probe = replace(PROBE, destination=IPv4Address("10.1.9.9"))
    hops = list(PathTracer(statuses=statuses("w"), ask=lambda _node, _page: {}).forward("w", probe))
    service = TraceTarget(
        address=IPv4Address("10.101.0.80"),
        port=80,
        name="shop/web",
        choices=(Choice(address=probe.destination, port=probe.port, share=1.0),),
        by="kube-proxy",
    )
    to_service = PathReport(target=service, status=statuses("w")["w"], hops=hops, back=[])
    assert "verdict: the endpoint is of this cluster: kube-proxy and the CNI deliver it" in to_service.as_text()
    assert to_service.local
    assert to_service.as_json()["local"]
    to_address = PathReport(
        target=TraceTarget(address=probe.destination, port=80), status=statuses("w")["w"], hops=hops, back=[]
    )
    assert "verdict: not known: no other cluster has this address" in to_address.as_text()
    assert not to_address.local
    assert "NOT delivered" not in to_service.as_text() + to_address.as_text()


KEPT = {node: [{"zone": 28003, "mark": number, "label": 7}] for number, node in enumerate("wgr", 1)}
FORTH = {
    "w": walk_of(TraceOutcome.TUNNEL, 5, committed=KEPT["w"], source_port=40000, mtu=1450),
    "g": walk_of(TraceOutcome.TUNNEL, 7, committed=KEPT["g"], source="192.168.1.11", source_port=40000, mtu=1400),
    "r": walk_of(
        *(TraceOutcome.HOST, 1),
        committed=KEPT["r"],
        source="192.168.1.11",
        source_port=40000,
        destination="10.2.1.2",
        port=8080,
        exports=["shop/web:80/tcp"],
    ),
}
ENDPOINT = {"source": "10.2.1.2", "source_port": 8080, "destination": "192.168.1.11", "port": 40000}
BACK = {
    "r": walk_of(TraceOutcome.TUNNEL, 8, **{**ENDPOINT, "tables": ["Classify", "UnDnat", "Route"]}),
    "g": walk_of(
        TraceOutcome.TUNNEL,
        6,
        **{**ENDPOINT, "source": "10.102.0.80", "source_port": 80, "tables": ["UnSnat", "Output"]},
    ),
    "w": walk_of(TraceOutcome.HOST, 1, source="10.102.0.80", source_port=80, destination="10.1.3.2", port=40000),
}


def test_the_way_goes_over_both_clusters_and_back() -> None:
    """Each Node is asked for the packet as it comes in there, and knows the answer by what it has kept."""
    requests: dict[tuple[str, bool], dict[str, list[str]]] = {}

    def ask(node: str, page: str) -> Mapping[str, Any]:
        probe = read_query(urlsplit(page).query)
        requests[node, probe.reply] = parse_qs(urlsplit(page).query)
        return (BACK if probe.reply else FORTH)[node]

    tracer = PathTracer(statuses=statuses(*"wgr"), ask=ask)
    hops = list(tracer.forward("w", PROBE))
    assert [hop.node for hop in hops] == ["w", "g", "r"]
    assert delivered(hops)
    assert [requests[node, False]["in_port"] for node in "wgr"] == [["1"], ["6"], ["8"]]
    assert requests["r", False]["source"] == ["192.168.1.11"]
    back = list(tracer.reverse(hops))
    assert [hop.node for hop in back] == ["r", "g", "w"]
    assert answered(hops, back)
    assert [(requests[node, True]["in_port"], requests[node, True]["mark"]) for node in "rgw"] == [
        (["1"], ["3"]),
        (["7"], ["2"]),
        (["5"], ["1"]),
    ]
    # What conntrack gives back is not in a trace: the next Node is asked with it all the same.
    assert (requests["g", True]["source"], requests["g", True]["source_port"]) == (["10.102.0.80"], ["80"])
    assert (requests["w", True]["destination"], requests["w", True]["port"]) == (["10.1.3.2"], ["40000"])
    way = shown(hops, tuple(back))
    for line in (
        "not by      192.168.1.12: BFD is down, since 12:04",
        "source 10.1.3.2:40000 to 192.168.1.11:40000",
        "destination 10.102.0.80:80 to 10.2.1.2:8080",
        "Service     shop/web:80/tcp, exported",
        "encrypted   by WireGuard",
        "encrypted   no: within the cluster",
        "mtu         1400 bytes; 1400 do NOT pass this tunnel: mcagent doctor",
        "source 10.2.1.2:8080 to 10.102.0.80:80 (as conntrack knows it)",
        "verdict: delivered to the kernel of the Node; 1400 bytes do NOT pass a tunnel of g: mcagent doctor",
    ):
        assert line in way
    assert way.endswith("answer:  comes back")


def test_what_cannot_be_asked_is_said_and_never_counts_as_delivered() -> None:
    """A cluster without a context, agents that fail or do not answer, an address that no other cluster has."""
    agent_statuses = statuses(*"wg")

    def trace(known_statuses: Mapping[str, Status], ask: Any, **errors: str) -> list[Hop]:
        return list(PathTracer(statuses=known_statuses, ask=ask, errors=errors).forward("w", PROBE))

    hops = trace(agent_statuses, lambda node, _: FORTH[node])
    assert "--remote-context" in shown(hops)
    assert not delivered(hops)
    assert not list(PathTracer(statuses=agent_statuses, ask=lambda node, _: FORTH[node]).reverse(hops))
    hops = trace(statuses("w"), lambda node, _: FORTH[node], g="it did not answer within 10 s")
    assert "2. Node g (cluster east, gateway)" in shown(hops)
    assert "not asked: it did not answer within 10 s" in shown(hops)

    def fail(_node: str, _page: str) -> Mapping[str, Any]:
        raise McagentError("no such page")

    hops = trace(agent_statuses, fail)
    assert "not asked: no such page" in shown(hops)
    assert not delivered(hops)
    elsewhere = replace(PROBE, destination=IPv4Address("9.9.9.9"))
    assert "no other cluster has this address" in shown(
        list(PathTracer(statuses=agent_statuses, ask=fail).forward("w", elsewhere))
    )


def test_the_answer_is_asked_for_as_the_endpoint_sends_it() -> None:
    """From the endpoint's own port of the host, without what the tunnel told of the first packet."""
    requests: list[tuple[str, Probe]] = []

    def ask(node: str, page: str) -> Mapping[str, Any]:
        assert page.startswith("/trace?")
        requests.append((node, read_query(urlsplit(page).query)))
        return {**FORTH[node], "mac": "translated", "service": 5, "identity": 42}

    tracer = PathTracer(statuses=statuses(*"wgr"), ask=ask)
    hops = list(tracer.forward("w", PROBE))
    second = replace(PROBE, in_port=6, mac="translated", service=5, identity=42)
    third = replace(second, in_port=8, source=IPv4Address("192.168.1.11"))
    assert requests == [("w", PROBE), ("g", second), ("r", third)]
    assert [hop.probe for hop in hops] == [PROBE, second, third]
    requests.clear()
    next(tracer.reverse(hops))
    answer = Probe(
        in_port=1,
        source=IPv4Address("10.2.1.2"),
        destination=IPv4Address("192.168.1.11"),
        protocol="tcp",
        source_port=8080,
        port=40000,
        reply=True,
        mark=3,
        label=7,
    )
    assert requests == [("r", answer)]


def test_a_node_that_committed_no_connection_does_not_know_the_answer() -> None:
    """Then it is asked for a new packet, without mark and label; the last commit of several counts."""
    commits = {
        "w": KEPT["w"],
        "g": [],
        "r": [{"zone": 1, "mark": 8, "label": 9}, {"zone": 2, "mark": 5, "label": 6}],
    }
    requests: list[tuple[bool, int, int]] = []

    def ask(node: str, page: str) -> Mapping[str, Any]:
        probe = read_query(urlsplit(page).query)
        requests.append((probe.reply, probe.mark, probe.label))
        return {**(BACK if len(requests) > 3 else FORTH)[node], "committed": commits[node]}

    tracer = PathTracer(statuses=statuses(*"wgr"), ask=ask)
    back = list(tracer.reverse(list(tracer.forward("w", PROBE))))
    assert [hop.node for hop in back] == ["r", "g", "w"]
    assert requests[3:] == [(True, 5, 6), (False, 0, 0), (True, 1, 7)]


def test_only_a_translation_that_the_node_undoes_is_undone() -> None:
    """By the tables of the trace, for the ends of the connection that it had translated."""
    changed = {
        "r": walk_of(TraceOutcome.TUNNEL, 8, **{**ENDPOINT, "source_port": 9, "tables": ["UnDnat"]}),
        "g": walk_of(TraceOutcome.TUNNEL, 6, **{**ENDPOINT, "tables": ["Output"]}),
        "w": BACK["w"],
    }

    def ask(node: str, page: str) -> Mapping[str, Any]:
        return (changed if read_query(urlsplit(page).query).reply else FORTH)[node]

    tracer = PathTracer(statuses=statuses(*"wgr"), ask=ask)
    back = list(tracer.reverse(list(tracer.forward("w", PROBE))))
    ends = [(hop.trace.source, hop.trace.source_port, hop.trace.destination) for hop in back[:2] if hop.trace]
    assert ends == [("10.2.1.2", 9, "192.168.1.11"), ("10.2.1.2", 8080, "192.168.1.11")]


@pytest.mark.parametrize("outcome", [TraceOutcome.TUNNEL, TraceOutcome.DROPPED, TraceOutcome.UNKNOWN])
def test_an_answer_needs_a_delivered_packet(outcome: TraceOutcome) -> None:
    """A packet that is sent on, dropped or not known has none."""
    tracer = PathTracer(statuses=statuses("w"), ask=lambda *_: walk_of(outcome, None))
    hops = list(tracer.forward("w", PROBE))
    assert [hop.node for hop in hops] == ["w"]
    assert list(tracer.reverse(hops)) == []
    assert not delivered([])


def test_a_packet_to_no_other_cluster_is_not_traced() -> None:
    """It is left to the cluster's own network, which delivers it or not."""
    elsewhere = replace(PROBE, destination=IPv4Address("9.9.9.9"))
    tracer = PathTracer(statuses=statuses("w"), ask=lambda *_: walk_of(TraceOutcome.HOST, 1))
    (local,) = tracer.forward("w", elsewhere)
    assert (local.local, local.probe, local.trace, local.asked) == (True, elsewhere, None, False)
    assert local.why == "no other cluster has this address: the packet is left to this cluster's own network"
    assert (local.node, local.cluster, local.role) == ("w", "east", "gateway")
    assert list(tracer.reverse([local])) == []


def test_an_endpoint_of_this_cluster_that_policies_close_is_not_called_delivered() -> None:
    """The Node of the client drops the packet; the command that names the rule is there."""
    probe = replace(PROBE, destination=IPv4Address("10.1.9.9"))
    page = {**walk_of(TraceOutcome.DROPPED, None), "ownEndpointClosed": True}
    hops = list(PathTracer(statuses=statuses("w"), ask=lambda *_: page).forward("w", probe))
    choices = (Choice(address=probe.destination, port=probe.port, share=1.0),)
    service = TraceTarget(address=IPv4Address("10.101.0.80"), port=80, name="shop/web", choices=choices, by="x")
    report = PathReport(target=service, status=statuses("w")["w"], hops=hops, back=[])
    assert (report.local, report.as_json()["local"]) == (False, False)
    text = " ".join(report.as_text().split())
    assert "verdict: NOT delivered: policies about Services drop it on w (nft chain mct_own_endpoints); " in text
    assert text.endswith("mcagent policy explain --from POD --to shop/web names the rule")
    simulated_node = replace(simulated("w"), trace=lambda _: NodeTrace(own_endpoint_closed=True))

    def fail(_node: str, _page: str) -> Mapping[str, Any]:
        raise McagentError("no answer")

    hops = list(
        PathTracer(statuses=statuses("w"), ask=fail, simulate=lambda *_: simulated_node).forward("w", probe)
    )
    text = " ".join(replace(report, hops=hops).as_text().split())
    assert text.endswith("names the rule, if chains are as simulated")
    assert "simulated: no answer" in text


def test_a_node_without_a_tunnel_to_the_sender_drops_the_packet() -> None:
    """It is named, without a packet."""
    pages = {**PAGES, "r": {**PAGES["r"], "tunnels": []}}
    hops = list(
        PathTracer(statuses=statuses(*"wgr", pages=pages), ask=lambda node, _: FORTH[node]).forward("w", PROBE)
    )
    last = hops[-1]
    assert (last.node, last.cluster, last.role) == ("r", "west", "gateway")
    assert (last.probe, last.trace) == (None, None)
    assert last.why == "it has no tunnel from g, and drops the packet: does it know this cluster's gateways?"


def forth(node: str, _page: str) -> Mapping[str, Any]:
    """Return the page of a Node for the first packet."""
    return FORTH[node]


def last_hop(tracer: PathTracer) -> Hop:
    """Return the last hop of a path from w."""
    return list(tracer.forward("w", PROBE))[-1]


def test_the_end_of_the_path_names_the_next_gateway_and_why_it_is_not_asked() -> None:
    """A gateway of this cluster by its Node, of another one by its address."""
    error = "it did not answer within 10 s"
    unknown = last_hop(PathTracer(statuses=statuses(*"wg"), ask=forth))
    assert (unknown.node, unknown.cluster, unknown.role) == ("192.168.2.11", "west", "gateway")
    assert unknown.why == "not asked: give --remote-context NAME, or list its agent in --agents FILE"
    own_gateway = last_hop(PathTracer(statuses=statuses("w"), ask=forth, errors={"g": error}))
    assert (own_gateway.node, own_gateway.cluster, own_gateway.role, own_gateway.why) == (
        "g",
        "east",
        "gateway",
        f"not asked: {error}",
    )
    not_listed = last_hop(PathTracer(statuses=statuses("w"), ask=forth, errors={"h": error}))
    assert not_listed.why == "not asked: give --remote-context NAME, or list its agent in --agents FILE"
    pages = {**PAGES, "s": page("s", "west", "192.168.2.12")}
    errors = {"r": error, "a": "no such host"}
    siblings = last_hop(PathTracer(statuses=statuses(*"wgs", pages=pages), ask=forth, errors=errors))
    assert siblings.why == f"not asked: no agent that answers has this address (a: no such host; r: {error})"
    other_cluster = last_hop(PathTracer(statuses=statuses(*"wg"), ask=forth, errors=errors))
    assert other_cluster.why == "not asked: give --remote-context NAME, or list its agent in --agents FILE"
    silent = last_hop(PathTracer(statuses=statuses(*"wgs", pages=pages), ask=forth))
    assert silent.why == "not asked: give --remote-context NAME, or list its agent in --agents FILE"
    worker_pages = {
        "w": page("w", "east", "192.168.1.13", ("node", "v", "192.168.1.14", 5)),
    }
    worker = last_hop(PathTracer(statuses=statuses("w", pages=worker_pages), ask=forth))
    assert (worker.node, worker.role) == ("v", "")


def test_the_first_node_must_be_known_or_simulated() -> None:
    """The error says why it is not asked."""
    tracer = PathTracer(statuses=statuses("w"), ask=lambda *_: {}, errors={"g": "it did not answer"})
    tracer.require("w")
    with pytest.raises(McagentError, match=r"^it did not answer$"):
        tracer.require("g")
    with pytest.raises(McagentError, match=r"^no agent of it is known$"):
        tracer.require("x")


def simulated(node: str, **values: Any) -> HopTracer:
    """Return a simulated Node with the page of its name, whose packets go the way of `FORTH`."""
    own_status = from_json(Status, {**PAGES.get(node, PAGES["r"]), **values}, node)
    trace = from_json(NodeTrace, FORTH.get(node, FORTH["r"]), node)
    return HopTracer(node=node, status=own_status, trace=lambda _: trace, assumed=("a", "b"))


def test_a_node_is_simulated_by_the_name_or_address_that_is_known_of_it() -> None:
    """With all known pages /status; the hop says why, and what is assumed."""
    requests: list[tuple[str, str, Mapping[str, Status]]] = []

    def simulate(cluster: str, peer: str, known_statuses: Mapping[str, Status]) -> HopTracer:
        requests.append((cluster, peer, known_statuses))
        return simulated({"192.168.2.11": "r"}.get(peer, peer))

    known_statuses = statuses("w")
    errors = {"g": "it did not answer"}
    tracer = PathTracer(statuses=known_statuses, ask=lambda node, _: FORTH[node], errors=errors, simulate=simulate)
    hops = list(tracer.forward("w", PROBE))
    assert requests == [("east", "g", known_statuses), ("west", "192.168.2.11", known_statuses)]
    assert [(hop.node, hop.origin, hop.unasked) for hop in hops] == [
        ("w", Origin.SWITCH, ""),
        ("g", Origin.SIMULATOR, "it did not answer"),
        ("r", Origin.SIMULATOR, "no agent of it is known"),
    ]
    why = "simulated: it did not answer; what its flows should be, not what they are. Assumed: a; b"
    assert (hops[1].why, hops[1].asked, hops[0].asked) == (why, False, True)
    assert delivered(hops)
    requests.clear()
    tracer = PathTracer(statuses={}, ask=lambda *_: {}, errors={"w": "it is gone"}, simulate=simulate)
    tracer.require("w")
    tracer.require("x")
    assert [request[:2] for request in requests] == [("", "w"), ("", "x")]
    assert tracer.status("w").cluster_id == "east"
    first = next(tracer.forward("w", PROBE))
    assert (first.unasked, first.cluster) == ("it is gone", "east")
    assert tracer.trace_at("x", PROBE)[2] == "no agent of it is known"


def test_an_agent_that_fails_is_simulated_with_its_error() -> None:
    """Its cluster is known by its /status."""
    requests: list[tuple[str, str]] = []

    def simulate(cluster: str, peer: str, _: Mapping[str, Status]) -> HopTracer:
        requests.append((cluster, peer))
        return simulated(peer)

    tracer = PathTracer(statuses=statuses(*"wgr"), ask=lambda *_: {"tables": 1}, simulate=simulate)
    hops = list(tracer.forward("w", PROBE))
    assert requests == [("east", "w"), ("east", "g"), ("west", "r")]
    assert all(hop.unasked.startswith(f"the agent of {hop.node}: ") for hop in hops)


def test_a_gateway_whose_node_answers_is_asked_all_the_same() -> None:
    """The API may know an address of it that its /status does not have."""
    pages = {**PAGES, "r": page("r", "west", "192.168.2.99", ("remote", "east", "192.168.1.11", 8))}
    tracer = PathTracer(
        statuses=statuses(*"wgr", pages=pages),
        ask=lambda node, _: FORTH[node],
        simulate=lambda *_: simulated("r"),
    )
    hops = list(tracer.forward("w", PROBE))
    assert [(hop.node, hop.origin) for hop in hops] == [(node, Origin.SWITCH) for node in "wgr"]


def test_a_simulated_node_of_another_cluster_is_not_taken_for_one_that_answers() -> None:
    """The error has the reason why the gateway is not asked, too."""
    tracer = PathTracer(
        statuses=statuses(*"wg"),
        ask=lambda node, _: FORTH[node],
        simulate=lambda *_: simulated("w", clusterID="west"),
    )
    assert last_hop(tracer).why == (
        "not asked: give --remote-context NAME, or list its agent in --agents FILE;"
        " nor can it be simulated: cluster east has a Node w, too"
    )


def test_a_cluster_that_runs_antrea_is_not_simulated() -> None:
    """Any Node may know that it does."""
    pages = deepcopy(PAGES)
    pages["w"]["summary"]["clusters"]["west"] = {"antrea": True}
    tracer = PathTracer(
        statuses=statuses(*"wg", pages=pages), ask=lambda node, _: FORTH[node], simulate=lambda *_: simulated("r")
    )
    assert last_hop(tracer).why == "not asked: cluster west runs Antrea, whose flows are not known"


def test_encrypted_tunnels_lead_to_the_gateway_behind_them() -> None:
    """They end at addresses of their own; /status says which gateway that is, on both sides."""
    pages = {node: deepcopy(PAGES[node]) for node in "wgr"}
    for node, port, address in (("g", "mc-7", "192.168.2.11"), ("r", "mc-8", "192.168.1.11")):
        for entry in pages[node]["tunnels"]:
            entry["remoteIP"] = "240.1.2.3" if entry["name"] == port else entry["remoteIP"]
        for entry in pages[node]["gateways"][0]["gateways"]:
            entry["address"] = address if entry["tunnel"] == port else ""
    known_statuses = statuses(*"wgr", pages=pages)
    hops = list(PathTracer(statuses=known_statuses, ask=lambda node, _: FORTH[node]).forward("w", PROBE))
    assert [hop.node for hop in hops] == ["w", "g", "r"]


def test_a_loop_ends() -> None:
    """Nodes that hand a packet to each other end the trace, not the patience."""
    page_by_node = {"w": walk_of(TraceOutcome.TUNNEL, 5), "g": walk_of(TraceOutcome.TUNNEL, 6)}
    hops = list(PathTracer(statuses=statuses(*"wgr"), ask=lambda node, _: page_by_node[node]).forward("w", PROBE))
    assert len(hops) == 8
    assert not delivered(hops)


def test_a_policy_that_drops_is_named() -> None:
    """With the rule, the command that explains it for these very ends, and the counter of that rule."""
    rule = {"policy": "ClusterNetworkPolicy/no-web", "rule": "r1", "direction": "egress", "verdict": "drop"}
    page = walk_of(TraceOutcome.DROPPED, None, reason="policy", table="EgressTiers", policies=[rule])
    text = shown(list(PathTracer(statuses=statuses(*"wgr"), ask=lambda *_: page).forward("w", PROBE)))
    assert "policy      ClusterNetworkPolicy/no-web, rule r1 (egress): drop" in text
    assert "next        mcagent policy explain --from 10.1.3.2 --to 10.102.0.80 --port 80/TCP" in text
    assert 'mcagent_policy_rule_packets_total{policy="ClusterNetworkPolicy/no-web",rule="r1"}' in text
    page = walk_of(
        *(TraceOutcome.DROPPED, None),
        reason="isolated",
        table="EgressNetworkPolicy",
        isolatedBy=["NetworkPolicy shop/deny"],
    )
    text = shown(list(PathTracer(statuses=statuses(*"wgr"), ask=lambda *_: page).forward("w", PROBE)))
    assert "policy      isolated by NetworkPolicy shop/deny, and no NetworkPolicy allows this" in text


def test_a_path_that_is_not_known_is_not_called_lost() -> None:
    """Without agents of the other cluster the verdict names the Node that was not asked."""
    hops = [
        Hop(node="g", cluster="east", role="gateway", probe=PROBE),
        Hop(node="192.168.2.11", cluster="west", role="gateway", why="not asked"),
    ]
    assert "verdict: not known: g sends it to 192.168.2.11, which was not asked" in shown(hops)
    dropped = walk_of(TraceOutcome.DROPPED, None, reason="Spoofed")
    dropped_hops = list(PathTracer(statuses=statuses(*"wgr"), ask=lambda *_: dropped).forward("w", PROBE))
    assert "verdict: NOT delivered: it ends at w" in shown(dropped_hops)
    unknown_hops = list(
        PathTracer(statuses=statuses(*"wgr"), ask=lambda *_: walk_of(TraceOutcome.UNKNOWN, None)).forward(
            "w", PROBE
        )
    )
    assert "verdict: not known: w is the last Node that could be traced" in shown(unknown_hops)


def test_who_gets_connections_to_a_service_is_told() -> None:
    """Each endpoint with its cluster and share, most first, and which one is traced."""
    choices = tuple(
        Choice(address=IPv4Address(address), port=80, share=share)
        for address, share in (("10.1.9.9", 0.25), ("10.102.0.80", 0.75))
    )
    target = TraceTarget(
        address=IPv4Address("10.96.0.7"), port=80, name="shop/antrea-mc-web", choices=choices, by="the agent of w"
    )
    hops = [Hop(node="w", cluster="east", role="", probe=PROBE, why="not asked")]
    lines = PathReport(target=target, status=statuses("w")["w"], hops=hops, back=()).as_text().splitlines()
    assert (
        lines[1] == "of the Service shop/antrea-mc-web, 10.96.0.7:80, whose new connections the agent of w gives"
    )
    assert lines[2:4] == [
        "    75%  10.102.0.80:80 (cluster x)  <- traced",
        "    25%  10.1.9.9:80 (cluster east, this one)",
    ]
