"""The verdict that a cluster runs Antrea: kept when its gateway moves, shared by this cluster's gateways."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

from mcagent.core.failover.liveness import PATIENCE
from mcagent.core.remote_clusters.implementation import runs_antrea
from mcagent.core.remote_clusters.verdicts import MAX_ABSENT, Verdicts
from mcagent.model.dataplane.resources import PeerKind, TunnelPort
from mcagent.model.node_state import AcceptedCluster
from mcagent.model.objects import Gateway, Snapshot
from tests.worlds.core_inputs import cluster, gateway, tunnel_port
from tests.worlds.failover_steps import UP, Place, Tunnel

SILENT = {"state": "down", "forwarding": "false"}  # no answer to BFD yet


def published(name: str, *clusters: str) -> Gateway:
    """Return a Gateway whose agent calls clusters Antrea's."""
    return replace(gateway(name, "192.0.2.1"), antrea_clusters=clusters)


def to_west(number: int) -> TunnelPort:
    """Return a tunnel to a gateway of cluster west."""
    return tunnel_port(number, "west", PeerKind.REMOTE)


def silent(number: int) -> Tunnel:
    """Return a tunnel to a gateway of cluster west that has not answered BFD."""
    return to_west(number), SILENT


def update(verdicts: Verdicts, *ports: TunnelPort, seen: str = "", unanswered: str = "") -> Verdicts:
    """Return the next verdicts, without Gateways."""
    return verdicts.update(
        ports, (), seen=frozenset(filter(None, [seen])), unanswered=frozenset(filter(None, [unanswered]))
    )


def place_with_antrea() -> Place:
    """Return gateway g1 with a tunnel to west, which has not answered BFD for long."""
    place = Place()
    place.tunnels = {2: place.tunnels[2], 3: silent(3)}
    place.facts()
    return place


def test_a_new_tunnel_to_a_cluster_that_ran_antrea_needs_no_time() -> None:
    """Antrea's gateway moves: a new address, a new tunnel. Between the two there may be no tunnel at all."""
    place = place_with_antrea()
    assert place.facts().antrea == {"west"}
    place.tunnels = {2: place.tunnels[2]}
    assert place.facts(0.2).antrea == {"west"}
    place.tunnels[4] = silent(4)
    facts = place.facts(0.2)
    assert "mc-4" not in facts.bfd_unanswered
    assert facts.antrea == {"west"}
    info = cluster("west", "10.98.0.0/16")
    assert runs_antrea(info, ["mc-4"], facts.bfd_unanswered, before="west" in facts.antrea)
    assert not runs_antrea(info, ["mc-4"], facts.bfd_unanswered)
    assert place.live.report.antrea == {"west"}


def test_an_answer_to_bfd_withdraws_the_verdict_at_once() -> None:
    """The cluster changed to mcagent's agents; the next new tunnel is judged like that to any cluster."""
    place = place_with_antrea()
    place.tunnels = {2: place.tunnels[2], 4: (to_west(4), UP)}
    assert place.facts(0.5).antrea == frozenset()
    assert place.live.report.antrea == frozenset()
    place.tunnels = {2: place.tunnels[2], 5: silent(5)}
    assert place.facts(0.5).antrea == frozenset()
    assert place.facts(PATIENCE).antrea == {"west"}


def test_a_gateway_without_a_verdict_takes_that_of_a_sibling() -> None:
    """Also after the sibling is gone; its own measurement precedes."""
    place = Place()
    place.tunnels = {2: place.tunnels[2]}
    place.facts()
    place.tunnels[3] = silent(3)
    assert place.facts(0.1).antrea == frozenset()
    place.snapshot = Snapshot(gateways={"g1": published("g1"), "g2": published("g2", "west")})
    assert place.facts(0.1).antrea == {"west"}
    assert place.live.report.antrea == frozenset()  # not measured: two gateways would repeat each other
    place.snapshot = Snapshot(gateways={"g1": published("g1")})
    assert place.facts(0.1).antrea == {"west"}
    place.say(3, UP)
    assert place.facts(0.1).antrea == frozenset()


def test_a_sibling_that_withdraws_its_verdict_is_followed() -> None:
    """A gateway that is there and publishes nothing has no verdict."""
    verdicts = Verdicts().update((), [published("g2", "west")], seen=frozenset(), unanswered=frozenset())
    assert verdicts.antrea == {"west"}
    assert verdicts.update((), [published("g2")], seen=frozenset(), unanswered=frozenset()).antrea == frozenset()


def test_an_agent_that_starts_again_has_its_own_verdict() -> None:
    """It reads it from its Gateway, and goes on to publish it before it has measured anything."""
    place = Place()
    place.snapshot = Snapshot(gateways={"g1": published("g1", "west")})
    place.tunnels = {2: place.tunnels[2]}
    assert place.facts().antrea == {"west"}
    place.tunnels[3] = silent(3)
    assert place.facts(0.1).antrea == {"west"}
    assert place.live.report.antrea == {"west"}


def test_what_a_cluster_publishes_of_itself_precedes() -> None:
    """A cluster of mcagent whose gateways are silent is neither treated as Antrea's nor published as such."""
    info = cluster("west", "10.98.0.0/16", gateways=("203.0.113.8", "203.0.113.9"))
    assert not runs_antrea(info, ["mc-3"], frozenset(["mc-3"]), before=True)
    assert not runs_antrea(
        replace(cluster("west", "10.98.0.0/16"), our_agents=True), ["mc-3"], frozenset(), before=True
    )
    verdicts = update(Verdicts(), to_west(3), unanswered="mc-3")
    assert verdicts.to_publish("g1", {}) == {"west"}
    accepted = AcceptedCluster(cluster_id="west", cidrs=(), gateways=(ip_address("203.0.113.8"),), snat=False)
    assert verdicts.to_publish("g1", {"west": accepted}) == frozenset()
    assert verdicts.to_publish("g1", {"west": replace(accepted, antrea=True)}) == {"west"}


def test_the_memory_is_bounded() -> None:
    """Clusters that come and go, as another cluster may make the leader announce them."""
    verdicts = Verdicts()
    for number in range(MAX_ABSENT + 20):
        port = replace(to_west(3), peer=f"c{number:03}")
        verdicts = update(verdicts, port, unanswered=port.name)
    assert len(verdicts.measured) == MAX_ABSENT + 1
    assert f"c{MAX_ABSENT + 19:03}" in verdicts.antrea
