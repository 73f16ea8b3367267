"""What runs on other clusters' gateways: the verdict, and that it changes nothing for clusters of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.core.compile import Compiled, compile_desired
from mcagent.core.failover.liveness import PATIENCE, Damping, Observation, advance
from mcagent.core.local_cluster.gateways import accept_gateways
from mcagent.core.local_cluster.nodes import check_node
from mcagent.core.remote_clusters.implementation import first_gateway, runs_antrea, unused_clusters
from mcagent.model.config import PodRouting
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import FlowEntry, GroupEntry, PeerKind, TunnelPort
from mcagent.model.objects import ApiObject, ClusterInfoImport, WireGuardInfo
from mcagent.model.plan import Fragment
from tests.worlds.core_inputs import HOME, addresses, cluster, config, gateway, node, resources, snapshot

ANTREA = cluster("east", "10.97.0.0/16", "10.20.0.0/16")
OURS = cluster("west", "10.98.0.0/16", "10.21.0.0/16", gateways=("203.0.113.8", "203.0.113.9"))
ADDRESSES = {"g1": "192.0.2.1", "g2": "192.0.2.2", "g3": "192.0.2.3"}
KEYED = replace(ANTREA, gateway_wireguard=((ANTREA.gateway_ips[0], WireGuardInfo(public_key="k" * 43 + "=")),))


def compiled(objects: tuple[ApiObject, ...], on: str, unanswered: frozenset[str] = frozenset()) -> Compiled:
    """Return what a Node should have, with Pod-to-Pod on."""
    return compile_desired(
        snapshot(*objects), Facts(bfd_unanswered=unanswered), config(on, enable_pod_to_pod=True)
    )


def tunnels(compiled: Compiled) -> list[TunnelPort]:
    """Return the tunnels to other clusters."""
    return [r for r in resources(compiled) if isinstance(r, TunnelPort) and r.peer_kind is PeerKind.REMOTE]


def judged(objects: tuple[ApiObject, ...], on: str) -> Compiled:
    """Return what a Node should have when no gateway of another cluster ever answered BFD."""
    return compiled(objects, on, frozenset(port.name for port in tunnels(compiled(objects, on))))


@pytest.mark.parametrize(
    ("info", "named", "unanswered", "antrea"),
    [
        (ANTREA, {"a"}, {"a", "b"}, True),
        (ANTREA, {"a"}, {"b"}, False),  # it answered, or had no time to
        (ANTREA, {"a", "b"}, {"a"}, False),  # one of its gateways did
        (ANTREA, set(), {"a"}, False),  # a worker has no tunnel to it
        (OURS, {"a"}, {"a"}, False),  # Antrea publishes one gateway
        (KEYED, {"a"}, {"a"}, False),  # and one key for the cluster
        (replace(ANTREA, our_agents=True), {"a"}, {"a"}, False),
        (replace(ANTREA, wireguard=WireGuardInfo(public_key="k" * 43 + "=")), {"a"}, {"a"}, True),
    ],
)
def test_the_verdict(info: ClusterInfoImport, named: set[str], unanswered: set[str], antrea: bool) -> None:
    """Only a cluster of which nothing says that it is ours, and whose gateways never answered, runs Antrea."""
    assert runs_antrea(info, named, frozenset(unanswered)) is antrea


def test_a_new_tunnel_is_treated_by_the_verdict_on_its_cluster() -> None:
    """Flows are those of a tunnel that was silent for long."""
    objects = (*HOME, ANTREA, OURS)
    facts = Facts(antrea=frozenset({"east", "west"}))
    new = compile_desired(snapshot(*objects), facts, config("g1", enable_pod_to_pod=True))
    assert text(new.desired.fragments) == text(judged(objects, "g1").desired.fragments)
    assert {name for name, cluster in new.state.clusters.items() if cluster.antrea} == {"east"}


def test_an_idle_gateway_of_antrea_is_not_a_last_resort() -> None:
    """It sends nothing by itself, and answers no BFD: that is as it should be."""
    silent = Observation(port="a", group="cluster/east", bfd=True, state="down", silent=True)
    (peer,) = advance({}, [replace(silent, antrea=True)], 0.0, Damping()).peers.values()
    assert (peer.live, peer.text) == (True, "used without BFD, which Antrea does not have")
    (peer,) = advance({}, [silent], 0.0, Damping()).peers.values()
    assert peer.text.startswith("used only as a last resort")


def test_to_antrea_everything_leaves_by_the_first_gateway_with_its_address() -> None:
    """The first gateway translates; the second hands over to it, and has nothing else to choose from."""
    objects = (*HOME, ANTREA, OURS)
    first, second = judged(objects, "g1"), judged(objects, "g2")
    for found in (first, second):
        assert found.state.clusters["east"].snat
        assert not found.state.clusters["west"].snat
    assert unused_clusters(first.state, "g1") == frozenset()
    assert unused_clusters(second.state, "g2") == {"east"}
    relay = 7 << 24 | second.state.cluster_ids["east"]
    (to_first,) = (r for r in second.desired.fragments["node/g1"].resources if isinstance(r, TunnelPort))
    groups = {
        r.group_id: r.body for r in second.desired.fragments["cluster/east"].resources if isinstance(r, GroupEntry)
    }
    assert groups[relay] == f"type=indirect,bucket=bucket_id:0,actions=output:{to_first.ofport}"
    bodies = {
        r.group_id: r.body for r in first.desired.fragments["cluster/east"].resources if isinstance(r, GroupEntry)
    }
    assert "resubmit" in bodies[relay]


def test_the_oldest_gateway_is_the_first() -> None:
    """As the controller publishes them; one that is going, or has only just come, is not."""
    late = (node("a0", "192.0.2.9"), gateway("a0", "192.0.2.9", created="2030-01-01T00:00:00Z"))
    objects = (*HOME, *late, ANTREA)
    unanswered = frozenset(port.name for port in tunnels(compiled(objects, "a0")))
    (to_first,) = (
        r
        for r in compiled(objects, "a0", unanswered).desired.fragments["node/g1"].resources
        if isinstance(r, TunnelPort)
    )
    result = compiled(objects, "a0", unanswered)
    bodies = [r.body for r in result.desired.fragments["cluster/east"].resources if isinstance(r, GroupEntry)]
    assert any(body.endswith(f"actions=output:{to_first.ofport}") for body in bodies)


def test_a_demoted_gateway_is_not_the_first() -> None:
    """The place is by demotions, then by age; the older Gateway keeps an address that a newer one has, too."""
    demoted = replace(gateway("g1", "192.0.2.1"), demotions=2)
    once = replace(gateway("g2", "192.0.2.2"), demotions=1)
    nodes = {name: check_node(node(name, address), PodRouting.AUTO) for name, address in ADDRESSES.items()}
    accepted, problems = accept_gateways((demoted, once), (), nodes)
    assert problems == ()
    assert first_gateway(accepted) == "g2"
    assert {g.node: g.place for g in accepted} == {"g2": 0, "g1": 1}
    younger = replace(gateway("g3", "192.0.2.1"), demotions=0)
    accepted, problems = accept_gateways((demoted, once, younger), (), nodes)
    assert [g.node for g in accepted] == ["g1", "g2"]
    assert [problem.reason for problem in problems] == ["DuplicateAddress"]


NAMES = st.sampled_from(("g1", "g2", "w1"))
PODS = st.lists(st.integers(20, 60), min_size=0, max_size=2, unique=True)


@st.composite
def clusters_of_ours(draw: st.DrawFn) -> tuple[ClusterInfoImport, ...]:
    """Return clusters of ours: what they publish, or that a gateway answered BFD, says so."""
    clusters = []
    for place in range(draw(st.integers(1, 4))):
        many = draw(st.integers(1, 3))
        ips = tuple(f"203.0.113.{10 * place + n}" for n in range(1, many + 1))
        pods = (f"10.{n}.0.0/16" for n in draw(PODS))
        member_cluster = cluster(f"c{place}", f"10.{100 + place}.0.0/16", *pods, gateways=ips)
        if many == 1 and draw(st.booleans()):
            key = WireGuardInfo(public_key="k" * 43 + "=")
            member_cluster = replace(member_cluster, gateway_wireguard=((addresses(*ips)[0], key),))
        clusters.append(member_cluster)
    return tuple(clusters)


@pytest.mark.costly
@given(clusters_of_ours(), NAMES, st.integers(0, 1 << 12))
def test_nothing_changes_for_clusters_of_ours(found: tuple[ClusterInfoImport, ...], on: str, bits: int) -> None:
    """Whoever never answered, flows are the same to the byte where what a cluster publishes says it is ours."""
    objects = (*HOME, *found)
    before = compiled(objects, on)
    cluster_ids = {
        cluster.cluster_id for cluster in found if len(cluster.gateway_ips) > 1 or cluster.gateway_wireguard
    }
    ports = [port for place, port in enumerate(tunnels(before)) if bits >> place & 1]
    after = compiled(objects, on, frozenset(port.name for port in ports if port.peer in cluster_ids))
    assert text(after.desired.fragments) == text(before.desired.fragments)
    assert after == before


def text(fragments: Mapping[str, Fragment]) -> list[str]:
    """Return all flows and groups as text."""
    resources = (r for fragment in fragments.values() for r in fragment.resources)
    return [repr(r) for r in resources if isinstance(r, FlowEntry | GroupEntry)]


def test_a_peer_is_given_time_to_answer() -> None:
    """A new one has ten seconds, also one that BFD is only now switched on for; what an agent finds had them."""
    observation, answered = Observation(port="a", group="cluster/east", bfd=True, state="down"), Damping()
    first = advance({}, [observation], 0.0, answered, first=True)
    assert first.unanswered == {"a"}
    new = replace(observation, port="b")
    peers = advance(first.peers, [observation, new], 5.0, answered)
    assert peers.unanswered == {"a"}
    assert peers.wake <= 5.0 + PATIENCE
    assert advance(peers.peers, [observation, new], 5.0 + PATIENCE, answered).unanswered == {"a", "b"}
    off = advance(peers.peers, [observation, replace(new, bfd=False)], 6.0, answered)
    assert off.unanswered == {"a"}
    on = advance(off.peers, [observation, new], 14.0, answered)
    assert on.unanswered == {"a"}
    assert on.wake == 14.0 + PATIENCE
    up = replace(new, state="up", forwarding=True)
    assert advance(on.peers, [observation, up], 30.0, answered).unanswered == {"a"}
