"""Which clusters no gateway reaches: frames, the decision, and who is told when."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devtools.waiting import wait_until
from flows.actions import ToController
from flows.fields import ETH_TYPE
from flows.pipeline.registers import ETHERTYPE_AGENTS
from mcagent.agent.reachability import Reachability
from mcagent.core.failover.liveness import LivenessCause, PeerLiveness
from mcagent.core.failover.reachability import (
    LASTS,
    MOST,
    ReachabilityState,
    cluster_hash,
    clusters_by_hash,
    decode_frame,
    encode_frame,
    unreachable_clusters,
    unreachable_from_all,
)
from mcagent.model.dataplane.resources import PeerKind, TunnelPort
from tests.worlds import small_topology as small
from tests.worlds.core_inputs import tunnel_port

NUMBERS = st.frozensets(st.integers(0, (1 << 64) - 1), max_size=20)
EAST, WEST = cluster_hash("east"), cluster_hash("west")


def peer(port: TunnelPort, live: bool) -> PeerLiveness:
    """Return what is known of a tunnel's peer."""
    return PeerLiveness(port=port.name, group="", live=live, cause=LivenessCause.BFD, text="", since=0.0)


def world(*peers: tuple[int, str, PeerKind, bool]) -> tuple[tuple[TunnelPort, ...], dict[str, PeerLiveness]]:
    """Return tunnels and what is known of their peers."""
    ports = tuple(tunnel_port(number, name, kind) for number, name, kind, _ in peers)
    return ports, {port.name: peer(port, one[3]) for port, one in zip(ports, peers, strict=True)}


@given(NUMBERS, st.binary(max_size=30))
def test_what_is_told_is_read_whatever_follows(clusters: frozenset[int], padding: bytes) -> None:
    """Ethernet pads short frames."""
    assert decode_frame(encode_frame(clusters) + padding) == clusters


@given(st.binary(max_size=200), NUMBERS, st.integers(0, 200))
def test_nothing_else_is_read(noise: bytes, clusters: frozenset[int], length: int) -> None:
    """Whatever comes, no exception does; a frame that is cut, or of another version, says nothing."""
    assert decode_frame(noise) is None
    whole = encode_frame(clusters)
    if length < len(whole):
        assert decode_frame(whole[:length]) is None
    assert decode_frame(whole[:17] + b"\x02" + whole[18:]) is None
    assert decode_frame(whole[:18] + b"\xff\xff" + whole[20:] + bytes(8 * 0xFFFF)) is None


def test_a_frame_is_bounded() -> None:
    """Every tunnel carries it; clusters beyond are not told of, and so are taken for reached."""
    clusters = decode_frame(encode_frame(range(1000)))
    assert clusters == frozenset(range(MOST))
    assert len(encode_frame(range(1000))) < 1240


@given(
    st.none() | NUMBERS,
    st.dictionaries(st.integers(2, 6), st.booleans()),
    st.dictionaries(st.integers(2, 6), st.tuples(NUMBERS, st.floats(0, 20))),
)
def test_a_cluster_is_left_only_if_every_gateway_that_counts_says_so(
    own: frozenset[int] | None, gateways: Mapping[int, bool], said: Mapping[int, tuple[frozenset[int], float]]
) -> None:
    """Silence, and what has expired, takes no cluster away; a live gateway that reaches one keeps it."""
    states = {port: ReachabilityState(clusters, until) for port, (clusters, until) in said.items()}
    for number in unreachable_from_all(own, gateways, states, 10.0):
        assert own is None or number in own
        for port, live in gateways.items():
            if live:
                assert number in states[port].clusters
                assert states[port].until > 10.0
        assert own is not None or any(number in states[p].clusters for p in gateways if p in states)
    assert unreachable_from_all(None, gateways, {}, 10.0) == frozenset()


def test_gateways_that_ask_not_to_be_used_are_heard_where_no_other_is() -> None:
    """Those that reach no cluster at all are not live for a worker, and right all the same."""
    states = {2: ReachabilityState(frozenset({EAST}), 20.0), 3: ReachabilityState(frozenset({EAST, WEST}), 20.0)}
    assert unreachable_from_all(None, {2: False, 3: False}, states, 10.0) == {EAST}
    assert unreachable_from_all(None, {2: False, 3: True}, states, 10.0) == {EAST, WEST}
    assert unreachable_from_all(None, {2: False, 3: True}, {2: states[2]}, 10.0) == frozenset()
    assert clusters_by_hash(frozenset({EAST}), ["west", "east"]) == {"east"}


def test_a_cluster_with_one_live_gateway_is_reached() -> None:
    """A Node without tunnels to other clusters has nothing to say of them."""
    east = (2, "east", PeerKind.REMOTE)
    assert unreachable_clusters(*world((*east, False), (3, "east", PeerKind.REMOTE, True))) == frozenset()
    assert unreachable_clusters(*world((*east, False), (3, "west", PeerKind.REMOTE, True))) == frozenset({EAST})
    assert unreachable_clusters(*world((2, "g1", PeerKind.GATEWAY, True))) is None


def test_a_worker_hears_its_gateways_and_forgets_what_expired() -> None:
    """The loop is woken by what is new, and when it is over."""
    now, woken = [100.0], []
    reachability = Reachability(send=lambda *_: None, changed=lambda: woken.append(now[0]), clock=lambda: now[0])
    ports, peers = world((2, "g1", PeerKind.GATEWAY, True))
    reachability.receive(2, encode_frame({EAST}))
    reachability.receive(2, encode_frame({EAST}))
    reachability.receive(2, b"noise")
    reachability.receive(3, encode_frame({WEST}))  # of no gateway that is known
    assert len(woken) == 2
    assert reachability.update(ports, peers) == {EAST}
    assert reachability.wake == 100.0 + LASTS
    now[0] = reachability.wake
    assert reachability.update(ports, peers) == frozenset()
    reachability.receive(2, encode_frame({EAST}))
    assert reachability.update(ports, peers) == {EAST}
    reachability.receive(2, encode_frame(()))
    assert reachability.update(ports, peers) == frozenset()
    assert len(woken) == 4


def test_a_gateway_tells_its_nodes_at_once_and_again() -> None:
    """All of this cluster's Nodes, and no other cluster; nothing while everything is reached from the start."""
    sent: list[tuple[Sequence[int], bytes]] = []
    event = threading.Event()

    def send(ports: Sequence[int], data: bytes) -> None:
        sent.append((ports, data))
        event.set()

    reachability = Reachability(send=send)
    reachability.start()
    try:
        node, sibling = (4, "w1", PeerKind.NODE, True), (5, "g2", PeerKind.GATEWAY, False)
        assert reachability.update(*world(node, sibling, (6, "east", PeerKind.REMOTE, True))) == frozenset()
        assert reachability.update(*world(node, sibling, (6, "east", PeerKind.REMOTE, False))) == {EAST}
        wait_until(lambda: len(sent) >= 3, "it to be told again", timeout=5)
        assert set(sent) == {((4, 5), encode_frame({EAST}))}
        reachability.update(*world(node, sibling, (6, "east", PeerKind.REMOTE, True)))
        wait_until(lambda: sent[-1][1] == encode_frame(()), "its return to be told", timeout=5)
    finally:
        reachability.stop()


@pytest.mark.parametrize("gateway", [True, False])
def test_only_the_tunnels_to_gateways_of_this_cluster_lead_to_the_agent(gateway: bool) -> None:
    """What others send with that Ethernet type meets the drop of all that is no IP."""
    flows = small.flows_of(small.parts(gateway=gateway, siblings=(3, 4)))
    handed = [flow for flow in flows if any(isinstance(action, ToController) for action in flow.actions)]
    handed = [flow for flow in handed if flow.table == 0]  # table Service hands over what is tracked, so IP
    assert {flow.match_text for flow in handed} == {"in_port=3,dl_type=0x88b5", "in_port=4,dl_type=0x88b5"}
    first = [flow for flow in flows if flow.table == 0 and flow.actions]
    kinds = {term.value for flow in first for term in flow.match.terms if term.field is ETH_TYPE}
    assert kinds == {0x0800, ETHERTYPE_AGENTS}
    assert all(any(term.field is ETH_TYPE for term in flow.match.terms) for flow in first)
