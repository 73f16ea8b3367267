"""What a switch says of a packet, in our words: tables, verdict, reason; and the way from Node to Node."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.pipeline.declaration import COOKIES, MISS, PIPELINE
from mcagent.agent.trace import TracePage, read_query
from mcagent.cli.common.trace_way import delivered, follow, text
from mcagent.core.trace import CAUSES, Outcome, Probe, read
from mcagent.model.errors import McagentError

PROBE = Probe(
    in_port=1,
    source=IPv4Address("10.1.3.2"),
    destination=IPv4Address("10.102.0.80"),
    protocol="tcp",
    source_port=40000,
    port=80,
)
# As ovs-vswitchd 3.1 said it on a worker: through conntrack, to a gateway, by a bridge of the underlay.
TO_GATEWAY = """\
Flow: tcp,in_port=1,dl_src=0a:6d:63:00:00:01,dl_dst=aa:bb:cc:dd:ee:f0,nw_src=10.1.3.2,nw_dst=10.102.0.80,tp_src=40000,tp_dst=80

bridge("br-mc")
---------------
 0. ip,in_port=1,dl_dst=aa:bb:cc:dd:ee:f0, priority 100, cookie 0x6d63010000000000
    set_field:0->pkt_mark
    goto_table:10
10. ip,reg0=0x1/0xf,nw_src=10.1.3.0/24, priority 224, cookie 0x6d63030000113a0c
    ct(table=30,zone=28003)
    drop
     -> A clone of the packet is forked to recirculate. The forked pipeline will be resumed at table 30.

Final flow: tcp,reg0=0x1
Datapath actions: ct(zone=28003),recirc(0x2)

===============================================================================
recirc(0x2) - resume conntrack with default ct_state=trk|new (use --ct-next to customize)
===============================================================================

Flow: recirc_id=0x2,ct_state=new|trk,eth,tcp,in_port=1,nw_src=10.1.3.2,nw_dst=10.102.0.80,tp_src=40000,tp_dst=80

bridge("br-mc")
---------------
    thaw
        Resuming from table 30
30. ct_state=+new-rpl+trk,ip, priority 100, cookie 0x6d63010000000000
    goto_table:40
40. ip,reg0=0x1/0xf,nw_dst=10.102.0.0/16, priority 216, cookie 0x6d63020000080ed0
    group:67108864
     -> using bucket 43287
    bucket 43287
            output:43287
             -> output to native tunnel

        bridge("br-phy")
        ----------------
         0. priority 0
            output:7
"""  # noqa: E501 (recorded)


def dropped(cookie: int, table: int) -> str:
    """Return what a switch says of a packet that a flow drops."""
    return f'bridge("br-mc")\n---\n{table:2}. priority 0, cookie {cookie:#x}\n    drop\n'


def test_a_recorded_trace_is_read() -> None:
    """Tables in order over conntrack, and the tunnel; other bridges do not count."""
    walk = read(TO_GATEWAY, "br-mc", PROBE)
    assert walk.tables == ("Classify", "Source", "Departure", "Route")
    assert (walk.outcome, walk.out_port) == (Outcome.TUNNEL, 43287)
    assert (walk.source, walk.destination, walk.port) == ("10.1.3.2", "10.102.0.80", 80)


def test_a_port_from_a_register_is_an_output() -> None:
    """Table Output sends to the port that a register holds; the switch says which."""
    said = TO_GATEWAY.replace("output:43287", "output:NXM_NX_REG3[0..15]\n             -> output port is 33544")
    walk = read(said, "br-mc", PROBE)
    assert (walk.outcome, walk.out_port) == (Outcome.TUNNEL, 33544)


def test_translation_is_seen() -> None:
    """What conntrack will make of addresses and ports goes on to the next Node."""
    more = TO_GATEWAY.replace(
        "    thaw",
        "    Replacing src/dst IP/ports to simulate NAT:\n"
        "     Initial flow: nw_src=10.1.3.2,nw_dst=10.102.0.80,tp_src=40000,tp_dst=80\n"
        "     Modified flow: nw_src=10.1.3.2,nw_dst=10.2.3.2,tp_src=40000,tp_dst=8080\n    thaw",
    ).replace("    group:6", "    set_field:aa:bb:cc:dd:ee:f1->eth_dst\n    group:6")
    walk = read(more, "br-mc", PROBE)
    assert (walk.destination, walk.port, walk.mac) == ("10.2.3.2", 8080, "translated")


@pytest.mark.parametrize("category", [one for one in PIPELINE.categories if one.drops], ids=lambda one: one.name)
def test_every_drop_has_its_reason_a_cause_and_a_next_command(category: Any) -> None:
    """Whatever drops a packet is named, and says what to look at."""
    table = next((number for number, one in MISS.items() if one is category), 0)
    walk = read(dropped(COOKIES.cookie(category, 7), table), "br-mc", PROBE)
    assert (walk.outcome, walk.reason, walk.number) == (Outcome.DROPPED, category.name, 7)
    cause, command = CAUSES[category.name]
    assert cause
    assert command.startswith(("mcagent ", "kubectl "))


_PIECES = st.sampled_from(
    [*TO_GATEWAY.splitlines(), *(dropped(COOKIES.cookie(one), 40) for one in PIPELINE.categories), "output:9"]
)


@given(st.one_of(st.text(), st.lists(_PIECES).map("\n".join)))
def test_any_text_has_a_verdict(said: str) -> None:
    """Reading never fails, and a drop is never without a reason."""
    walk = read(said, "br-mc", PROBE)
    assert walk.outcome in Outcome
    assert bool(walk.reason) is (walk.outcome in (Outcome.DROPPED, Outcome.REJECTED))
    assert (walk.out_port is not None) or walk.outcome not in (Outcome.HOST, Outcome.TUNNEL)


GOOD = "in_port=1&source=10.1.3.2&destination=10.102.0.80&protocol=tcp&source_port=40000&port=80&mac=plain"


def test_a_query_is_read_strictly() -> None:
    """Each key once, numbers and addresses only: nothing else gets into the text that the switch reads."""
    assert read_query(GOOD) == PROBE
    for change in (
        ("source=10.1.3.2", "source=10.1.3.2,actions=drop"),
        ("tcp", "tcp,tcp_dst=1"),
        ("port=80", "port=80%0a"),
        ("port=80", "port=65536"),
        ("port=80", "port=\u0668"),
        ("mac=plain", "mac=aa:bb"),
        ("mac=plain", "mac=plain&mac=plain"),
        ("mac=plain", "mac=plain&x=1"),
        ("&mac=plain", ""),
        (GOOD, ""),
    ):
        with pytest.raises(ValueError, match=r"must|one of|Expected|permitted|not"):
            read_query(GOOD.replace(*change))


@given(st.text(max_size=300))
def test_no_query_breaks_the_page(query: str) -> None:
    """Whatever is asked is refused in words."""
    assert TracePage("n", "unix:/nowhere/db.sock", "br-mc")(query).status == 400


def test_traces_are_bounded_in_rate() -> None:
    """More than the burst is refused until time has passed."""
    now = [0.0]
    page = TracePage("n", "unix:/nowhere/db.sock", "br-mc", clock=lambda: now[0])
    found = [page(GOOD).status for _ in range(21)]
    assert found == [503] * 20 + [429]
    now[0] = 1.0
    assert page(GOOD).status == 503


# --- from Node to Node ------------------------------------------------------------------------------------


def status(node: str, cluster: str, address: str, *tunnels: tuple[str, str, str, int]) -> dict[str, Any]:
    """Return as much of /status as the way needs. Tunnels: kind, peer, remote address, port."""
    gateways = [{"node": node, "gateway_ip": address, "source": address}]
    others = {"cidrs": ["10.102.0.0/16"], "gateways": ["192.168.2.11"]}
    return {
        "clusterID": cluster,
        "summary": {"role": "gateway", "gateways": gateways, "clusters": {"x": others}},
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
                        "encrypted": False,
                    }
                    for _, _, ip, port in tunnels
                ]
            }
        ],
    }


STATUSES = {
    "w": status(
        *("w", "east", "192.168.1.13"),
        *(("gateway", "g", "192.168.1.11", 5), ("gateway", "h", "192.168.1.12", 99)),
    ),
    "g": status(
        *("g", "east", "192.168.1.11"),
        *(("node", "w", "192.168.1.13", 6), ("remote", "west", "192.168.2.11", 7)),
    ),
    "r": status("r", "west", "192.168.2.11", ("remote", "east", "192.168.1.11", 8)),
}


def walk_of(outcome: Outcome, port: int | None, **more: object) -> dict[str, Any]:
    """Return a page /trace."""
    found = {"outcome": outcome, "out_port": port, "tables": ["Classify"], "table": "Classify", "reason": ""}
    packet = {"source": "10.1.3.2", "destination": "10.102.0.80", "source_port": 1, "port": 80, "mac": "plain"}
    return {**found, **packet, **more}


def test_the_way_goes_over_both_clusters() -> None:
    """Worker, gateway, the other cluster's gateway: each is asked for the packet as it comes in there."""
    said = {
        "w": walk_of(Outcome.TUNNEL, 5),
        "g": walk_of(Outcome.TUNNEL, 7, source="192.168.1.11"),
        "r": walk_of(Outcome.HOST, 1, destination="10.2.1.2"),
    }
    asked: dict[str, dict[str, list[str]]] = {}

    def ask(node: str, page: str) -> Mapping[str, Any]:
        asked[node] = parse_qs(urlsplit(page).query)
        assert read_query(urlsplit(page).query)
        return said[node]

    hops = list(follow("w", PROBE, STATUSES, ask))
    assert [hop.node for hop in hops] == ["w", "g", "r"]
    assert delivered(hops)
    assert [asked[node]["in_port"] for node in "wgr"] == [["1"], ["6"], ["8"]]
    assert asked["r"]["source"] == ["192.168.1.11"]
    shown = text(hops)
    assert "not by      192.168.1.12: BFD is down, since 12:04" in shown
    assert "source 10.1.3.2 to 192.168.1.11" in shown
    assert "destination 10.102.0.80:80 to 10.2.1.2:80" in shown
    assert shown.endswith("verdict: delivered to the kernel of the Node")


def test_what_cannot_be_asked_is_said_and_never_counts_as_delivered() -> None:
    """A cluster without a context, an agent that fails, an address that no other cluster has."""
    some = {node: STATUSES[node] for node in "wg"}
    said = {"w": walk_of(Outcome.TUNNEL, 5), "g": walk_of(Outcome.TUNNEL, 7)}
    hops = list(follow("w", PROBE, some, lambda node, _: said[node]))
    assert "--remote-context" in text(hops)
    assert not delivered(hops)

    def fail(_node: str, _page: str) -> Mapping[str, Any]:
        raise McagentError("no such page")

    hops = list(follow("w", PROBE, some, fail))
    assert "not asked: no such page" in text(hops)
    assert not delivered(hops)
    elsewhere = Probe(
        **{name: getattr(PROBE, name) for name in PROBE.__slots__} | {"destination": IPv4Address("9.9.9.9")}
    )
    hops = list(follow("w", elsewhere, some, fail))
    assert "no other cluster has this address" in text(hops)


def test_a_loop_ends() -> None:
    """Nodes that hand a packet to each other end the trace, not the patience."""
    said = {"w": walk_of(Outcome.TUNNEL, 5), "g": walk_of(Outcome.TUNNEL, 6)}
    hops = list(follow("w", PROBE, STATUSES, lambda node, _: said[node]))
    assert len(hops) == 8
    assert not delivered(hops)
