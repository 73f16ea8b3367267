"""How clusters reach each other: from a gateway's tunnels to what the page of the ClusterSet draws."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devtools.apiserver.storage.merge import merge_patch
from mcagent.agent.reports.link_reader import SPAN, LinkReader
from mcagent.controller.contract import names
from mcagent.controller.leader.topology import topologies
from mcagent.controller.member.announce import Announce
from mcagent.core.failover.liveness import Advance, Damping, Observation, Peers, advance
from mcagent.core.failover.observations import group_of
from mcagent.core.tunnel_probes import ProbeState
from mcagent.http.server import Public
from mcagent.kube import links as publishing
from mcagent.kube.links import LinkPublisher
from mcagent.kube.source import RawObject
from mcagent.model.backoff import Backoff
from mcagent.model.dataplane.resources import PeerKind, PortStatistics
from mcagent.model.dataplane.wireguard import WireGuardPeerStatus
from mcagent.model.errors import SourceError
from mcagent.model.net import PodPrefix, cluster_fingerprint
from mcagent.model.node_state import EncryptionState, NodeRole, NodeState, RemoteEnd
from mcagent.model.objects import Kind
from mcagent.model.parsing import links
from mcagent.model.parsing.links import ClusterLink, GatewayReport
from mcagent.model.problem import Problem
from mcagent.observe.browser import browser_pages
from mcagent.observe.cluster_links import answers_of
from mcagent.observe.gateways import LiveReport
from mcagent.observe.health import node_health
from mcagent.observe.topology import MAX_PROBLEMS, node_topology, page_of
from mcagent.observe.wireguard import WireGuardReport
from tests.waiting import until
from tests.worlds.control_view import Controller
from tests.worlds.core_inputs import meta, tunnel_port
from tests.worlds.leader_world import AREA, Leader, announce, cluster_info, service
from tests.worlds.member_world import AREA as NORTH
from tests.worlds.member_world import HOME, member, north_of, settings
from tests.worlds.memory_objects import START

PORTS = {
    port.name: port
    for port in (
        tunnel_port(2, "node-2", PeerKind.GATEWAY),
        tunnel_port(3, "west", PeerKind.REMOTE),
        tunnel_port(4, "west", PeerKind.REMOTE),
        tunnel_port(5, "south", PeerKind.REMOTE),
        tunnel_port(6, "worker", PeerKind.NODE),
    )
}
PROBED = {
    "mc-3": ProbeState(answers=True, recent=(0.03,)),
    "mc-4": ProbeState(answers=True, recent=(0.02, None)),
    "mc-5": ProbeState(answers=False),
}
SINCE = "1970-01-12T13:46:52Z"  # second 12 of the clock of `live`


def look(now: float, before: Peers, *down: str) -> Advance:
    """Return the next state of liveness with all tunnels up but some."""
    observations = [
        Observation(
            port=port.name,
            group=group_of(port),
            bfd=True,
            state="down" if port.name in down else "up",
            forwarding=port.name not in down,
        )
        for port in PORTS.values()
    ]
    return advance(before, observations, now, Damping())


def live(*down: str) -> LiveReport:
    """Return what is known after everything was up, and then some tunnels were lost."""
    peers = look(12.0, look(10.0, {}).peers, *down).peers
    return LiveReport(peers=peers, ports=PORTS, epoch=1_000_000.0)


def carried(count: int) -> dict[str, PortStatistics]:
    """Return counters with so many bytes each way on every tunnel."""
    counters = {"tx_bytes": count, "rx_bytes": count}
    return {name: PortStatistics(counters=counters, link_up=True) for name in PORTS}


# --- values ---------------------------------------------------------------------------------------------


def test_a_gateway_reports_a_link_for_each_cluster() -> None:
    """Tunnels are counted, the last change and its reason named; Nodes of its own cluster are none."""
    clock = [0.0]
    counted = [carried(0), carried(4_000_000)]
    report = [live("mc-4")]
    reader = LinkReader(lambda: report[0], lambda: counted[0], clock=lambda: clock[0])
    assert reader() == (
        ClusterLink(cluster="south", live=1, tunnels=1, since="1970-01-12T13:46:50Z"),
        ClusterLink(cluster="west", live=1, tunnels=2, since=SINCE, why="BFD is down"),
    )
    for _ in range(2):
        clock[0] += SPAN
        reader()
        counted.append(counted.pop(0))
    rates = {link.cluster: link.bytes_per_second for link in reader()}
    assert rates == {"south": 800_000, "west": 1_600_000}


def test_counters_that_could_not_be_read_change_no_rate() -> None:
    """As while ovsdb-server restarts: the bytes until then are no traffic of the seconds after."""
    clock, readings = [0.0], [carried(10**9), {}, carried(10**9 + 8_000_000)]
    reader = LinkReader(live, lambda: readings.pop(0), clock=lambda: clock[0])
    rates = []
    for _ in range(3):
        clock[0] += SPAN
        rates.append({link.cluster: link.bytes_per_second for link in reader()})
    assert rates == [{"south": 0, "west": 0}, {"south": 0, "west": 0}, {"south": 800_000, "west": 1_600_000}]


def test_a_gateway_reports_the_round_trip_and_rarely_another_one() -> None:
    """That of the slowest tunnel to a cluster; half as much again is no news, since each change is a write."""
    clock, trip = [0.0], [0.0040]

    def probed() -> dict[str, ProbeState]:
        answers = ProbeState(answers=True, sent=1, recent=(0.0028,))
        return {"mc-3": answers, "mc-4": replace(answers, recent=(trip[0],))}

    reader = LinkReader(live, lambda: carried(0), probed=probed, clock=lambda: clock[0])

    def round_trips() -> dict[str, int]:
        clock[0] += SPAN
        return {link.cluster: link.round_trip_micros for link in reader()}

    assert round_trips() == {"south": 0, "west": 4000}
    trip[0] = 0.0059
    assert round_trips() == {"south": 0, "west": 4000}
    trip[0] = 0.0123
    assert round_trips() == {"south": 0, "west": 12000}


def test_a_link_has_the_clusters_that_answer() -> None:
    """By probes, else by the WireGuard session of a gateway; what is no address or fingerprint is left out."""
    west = f"{cluster_fingerprint('west'):012x}"
    probed = {
        "mc-3": ProbeState(answers=True, answered_by=cluster_fingerprint("north")),
        "mc-4": ProbeState(answers=False, answered_by=cluster_fingerprint("west")),
    }
    answers = answers_of(live(), probed, None, WireGuardReport())
    assert answers == {PORTS["mc-3"].peer: {str(PORTS["mc-3"].remote_ip): f"{cluster_fingerprint('north'):012x}"}}
    end = RemoteEnd(gateway=ip_address("192.0.2.7"), address=PORTS["mc-4"].remote_ip, public_key="k", port=1)
    encryption = replace(EncryptionState(), ends={"west": (end,)})
    session = WireGuardPeerStatus(public_key="k", last_handshake=100.0)
    assert answers_of(live(), {}, encryption, WireGuardReport(peers=(session,), now=150.0)) == {
        "west": {"192.0.2.7": west}
    }
    link = ClusterLink(cluster="west", live=1, tunnels=1, answers=(("192.0.2.7", west),))
    assert links.read_text(links.as_text([link])) == (link,)
    for wrong in ({"x": west}, {"192.0.2.7": "west"}, {"192.0.2.7": 1}, [west], {"192.0.2.7": west + "0"}):
        raw = {"clusterID": "west", "live": 1, "tunnels": 1, "answers": wrong}
        assert links.read([raw]) == ()


def test_a_link_has_the_pod_cidrs_that_are_not_used() -> None:
    """They are in the report of each gateway, and merged; a link with something else is not read."""
    refused = {"west": (ip_network("10.20.0.0/16"), ip_network("10.3.0.0/16"))}
    reader = LinkReader(live, dict, refused=lambda: refused)
    by_cluster = {link.cluster: link for link in reader()}
    assert by_cluster["west"].refused == ("10.20.0.0/16", "10.3.0.0/16")
    assert by_cluster["south"].refused == ()
    link = ClusterLink(cluster="west", live=1, tunnels=1, refused=("10.20.0.0/16",))
    assert links.read_text(links.as_text([link])) == (link,)
    other = ClusterLink(cluster="west", live=1, tunnels=1, refused=("10.3.0.0/16",))
    assert links.merged([[link], [other]])[0].refused == ("10.20.0.0/16", "10.3.0.0/16")
    for wrong in ("10.20.0.0/16", ["x"], [7], ["10.20.0.0/16"] * 17):
        assert links.read([{"clusterID": "west", "live": 1, "tunnels": 1, "refused": wrong}]) == ()


@given(st.dictionaries(st.sampled_from("abc"), st.integers(0, 10**12)), st.integers(0, 10**12))
def test_rates_settle(before: dict[str, int], now: int) -> None:
    """A rate that is told is right within half of itself, and the same again changes nothing."""
    rates = links.settled(before, {"a": now})
    assert abs(now - rates["a"]) <= max(before.get("a", 0) / 2, now / 20, 1)
    assert links.settled(rates, {"a": now}) == rates


names_of_clusters = st.sampled_from(["a", "b", "c", "d"])
some_links = st.lists(
    st.builds(
        lambda cluster, live, more, rate: ClusterLink(
            cluster=cluster, live=live, tunnels=live + more, bytes_per_second=rate, why="no answer" * bool(more)
        ),
        names_of_clusters,
        st.integers(0, 5),
        st.integers(0, 5),
        st.integers(0, 10**9),
    ),
    max_size=6,
)


@given(st.lists(some_links, max_size=4))
def test_reports_of_gateways_add_up(reports: list[Sequence[ClusterLink]]) -> None:
    """Whatever the order: each cluster once, and every tunnel counted."""
    links_merged = links.merged(reports)
    assert [link.cluster for link in links_merged] == sorted(
        {link.cluster for report in reports for link in report}
    )
    assert sum(link.tunnels for link in links_merged) == sum(link.tunnels for report in reports for link in report)
    assert links.read_text(links.as_text(links_merged)) == links_merged
    numbers = [(one.cluster, one.live, one.tunnels, one.bytes_per_second) for one in links.merged(reports[::-1])]
    assert numbers == [(one.cluster, one.live, one.tunnels, one.bytes_per_second) for one in links_merged]


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5) | st.text())
def test_whatever_another_cluster_writes_is_read_without_an_error(value: Any) -> None:
    """Links that are none are left out, those beside them are not."""
    good = {"clusterID": "west", "live": 1, "tunnels": 2}
    assert links.read([value, {"clusterID": value, "live": value, "tunnels": value}, good])[-1:] == (
        ClusterLink(cluster="west", live=1, tunnels=2),
    )
    assert isinstance(links.read_text(str(value)), tuple)


@pytest.mark.parametrize(
    "wrong",
    [
        {"live": 3},
        {"live": -1},
        {"tunnels": 10**9},
        {"clusterID": "<b>"},
        {"since": "soon"},
        {"bytesPerSecond": -1},
    ],
)
def test_a_link_that_cannot_be_is_left_out(wrong: RawObject) -> None:
    """More live tunnels than there are, numbers out of range, names that are none."""
    assert links.read([{"clusterID": "west", "live": 1, "tunnels": 2} | wrong]) == ()


def test_what_tells_most_is_reported() -> None:
    """First what is not up, then by traffic: the rest does not fit."""
    live_links = [ClusterLink(cluster=f"c{n:03}", live=1, tunnels=1, bytes_per_second=n) for n in range(200)]
    link = ClusterLink(cluster="lost", live=0, tunnels=1)
    reported = links.most_telling([*live_links, link])
    assert len(reported) == links.MAX_REPORTED
    assert link in reported
    assert live_links[199] in reported
    assert live_links[0] not in reported


# --- from a gateway to the leader -----------------------------------------------------------------------


class Server:
    """An API server for one Gateway."""

    def __init__(self, *, prunes: bool = False, refusals: int = 0) -> None:
        self.status: RawObject = {}
        self.reads = 0
        self.writes: list[RawObject] = []
        self.without = ""  # a field of links that is dropped
        self._prunes, self._refusals = prunes, refusals

    def request(self, method: str, path: str, *, body: Any = None, content_type: str = "") -> RawObject:
        """Answer as an API server."""
        if method == "PATCH":
            assert path.endswith("/status")
            assert content_type == "application/merge-patch+json"
            if self._refusals:
                self._refusals -= 1
                raise SourceError("refused")
            self.writes.append(body["status"])
            self.status = {} if self._prunes else merge_patch(self.status, copy.deepcopy(body["status"]))
            for link in self.status.get("links", ()):
                link.pop(self.without, None)
        else:
            self.reads += 1
        return {"kind": "Gateway", "status": self.status}


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "SOON", 0.01)
    monkeypatch.setattr(publishing, "RETRY", Backoff(first=0.01, most=0.02, jitter=0.0))


GATEWAY = meta(Kind.GATEWAY, "g1")
UP, DOWN = (
    ClusterLink(cluster="west", live=1, tunnels=1),
    ClusterLink(cluster="west", live=0, tunnels=1, why="BFD is down"),
)


@pytest.mark.usefixtures("_soon")
def test_the_gateways_status_follows_the_links() -> None:
    """Each change is written once, after refusals again; a restart that finds it there writes nothing."""
    server, now = Server(refusals=2), [UP]
    publisher = LinkPublisher(server, traffic=0.05)  # type: ignore[arg-type]
    publisher.start()
    try:
        publisher.want(GATEWAY, lambda: tuple(now), object())
        until(lambda: server.writes == [{"links": [links.to_json(UP)]}])
        now[0] = DOWN
        publisher.want(GATEWAY, lambda: tuple(now), object())
        until(lambda: len(server.writes) == 2)
        assert links.read(server.status["links"]) == (DOWN,)
    finally:
        publisher.stop()
    looked: list[object] = []

    def look_again() -> tuple[ClusterLink, ...]:
        looked.append(1)
        return (DOWN,)

    again = LinkPublisher(server, traffic=0.01)  # type: ignore[arg-type]
    again.start()
    try:
        again.want(GATEWAY, look_again, object())
        until(lambda: len(looked) > 3)
    finally:
        again.stop()
    assert len(server.writes) == 2


def test_waits_after_refusals_begin_anew(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ever longer in a row, each row told once; a success ends it."""
    server, waits = Server(refusals=3), list[float]()
    publisher = LinkPublisher(server, traffic=30.0)  # type: ignore[arg-type]
    monkeypatch.setattr(publisher, "pause", waits.append)
    for number, wait in enumerate((0.0, 0.0, 0.0, 30.0)):
        publisher.want(GATEWAY, lambda: (UP,), object())
        assert publisher._publish() == wait, number
    server._refusals = 1
    publisher.want(GATEWAY, lambda: (DOWN,), object())
    publisher._publish()
    assert waits == [1.0, 2.0, 4.0, 1.0]
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert [record.getMessage() for record in warnings] == [
        "Gateway mc/g1: cannot publish how other clusters are reached: refused"
    ] * 2


def test_all_that_a_gateway_reports_is_in_its_status() -> None:
    """Under the names of the CustomResourceDefinition; what it reports no longer is removed."""
    server = Server()
    report = GatewayReport(
        cluster_id="west",
        antrea_clusters=("a",),
        unreachable_gateways=("g2",),
        encryption_error="no key",
        tunnel_mtu=1400,
        export_addresses=True,
        pod_prefixes=True,
    )
    publisher = LinkPublisher(server)  # type: ignore[arg-type]
    publisher.want(GATEWAY, tuple, object(), report)
    publisher._publish()
    assert server.status == {
        "clusterID": "west",
        "antreaClusters": ["a"],
        "unreachableGateways": ["g2"],
        "encryptionError": "no key",
        "tunnelMTU": 1400,
        "exportAddresses": True,
        "podPrefixes": True,
    }
    publisher.want(GATEWAY, tuple, object())
    publisher._publish()
    assert server.status == {}


def test_links_of_a_gateway_that_does_not_serve_are_removed() -> None:
    """They would count as those of a gateway; what holds without tunnels stays."""
    server = Server()
    server.status = {"clusterID": "west", "links": [links.to_json(UP)], "unreachableGateways": ["g2"]}
    publisher = LinkPublisher(server)  # type: ignore[arg-type]
    publisher.want(GATEWAY, tuple, None, None)
    publisher._publish()
    assert server.status == {"clusterID": "west"}


@pytest.mark.usefixtures("_soon")
def test_the_gateways_status_has_the_cluster_id_of_its_agent() -> None:
    """It follows a reloaded configuration, also while no link changes, and is removed with the key."""
    server, links_source = Server(), object()
    publisher = LinkPublisher(server, traffic=30.0)  # type: ignore[arg-type]
    publisher.start()
    try:
        for cluster_id, written in (("west", "west"), ("east", "east"), ("", None)):
            publisher.want(GATEWAY, lambda: (), links_source, GatewayReport(cluster_id=cluster_id))
            until(lambda written=written: server.writes[-1:] == [{"clusterID": written}])  # type: ignore[misc]
    finally:
        publisher.stop()
    assert len(server.writes) == 3


def test_a_dead_gateway_of_the_cluster_is_published_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other changes wait for those that follow; the controller waits for this one."""
    monkeypatch.setattr(publishing, "SOON", 600.0)
    server, source = Server(), object()
    publisher = LinkPublisher(server, traffic=600.0)  # type: ignore[arg-type]
    publisher.start()
    try:
        publisher.want(GATEWAY, lambda: (), source, GatewayReport())
        publisher.want(GATEWAY, lambda: (), source, GatewayReport(antrea_clusters=("west",)))
        dead = GatewayReport(antrea_clusters=("west",), unreachable_gateways=("g2",))
        publisher.want(GATEWAY, lambda: (), source, dead)
        until(lambda: server.status.get("unreachableGateways") == ["g2"])
        publisher.want(GATEWAY, lambda: (), source, replace(dead, unreachable_gateways=("g3",)))
        until(lambda: server.status.get("unreachableGateways") == ["g3"])
    finally:
        publisher.stop()


@pytest.mark.usefixtures("_soon")
def test_a_gateway_that_was_created_again_gets_its_status_again() -> None:
    """The new object has the name of the old one, and no status."""
    server, source = Server(), object()
    report = GatewayReport(antrea_clusters=("west",))
    publisher = LinkPublisher(server, traffic=30.0)  # type: ignore[arg-type]
    publisher.start()
    try:
        publisher.want(GATEWAY, lambda: (), source, report)
        until(lambda: len(server.writes) == 1)
        server.status = {}
        publisher.want(replace(GATEWAY, created="2030-01-01T00:00:00Z"), lambda: (), source, report)
        until(lambda: server.writes == [{"antreaClusters": ["west"]}] * 2)
    finally:
        publisher.stop()


@pytest.mark.usefixtures("_soon")
def test_what_others_write_into_the_gateways_status_is_undone() -> None:
    """Although no link changes and the agent goes on; a foreign field stays."""
    server, source = Server(), object()
    report = GatewayReport(antrea_clusters=("west",), tunnel_mtu=1400)
    publisher = LinkPublisher(server, traffic=0.01)  # type: ignore[arg-type]
    publisher.start()
    try:
        publisher.want(GATEWAY, lambda: (UP,), source, report)
        until(lambda: len(server.writes) == 1)
        desired = dict(server.status)
        for changed in ({}, {**desired, "links": [links.to_json(DOWN)], "tunnelMTU": 9000}, {"other": 1}):
            server.status = changed
            until(lambda: {**server.status, **desired} == server.status)
            assert server.status == {**changed, **desired}
    finally:
        publisher.stop()


@pytest.mark.usefixtures("_soon")
def test_a_field_of_links_that_the_api_server_drops_is_sent_once() -> None:
    """Its definition of a Gateway is that of an earlier version; the rest goes on."""
    server, source = Server(), object()
    server.without = "roundTripMicros"
    publisher = LinkPublisher(server, traffic=0.01)  # type: ignore[arg-type]
    publisher.start()
    try:
        publisher.want(GATEWAY, lambda: (replace(UP, round_trip_micros=5),), source)
        until(lambda: server.reads > 3)
        assert len(server.writes) == 1
        publisher.want(GATEWAY, lambda: (DOWN,), object())
        until(lambda: links.read(server.status["links"]) == (DOWN,))
    finally:
        publisher.stop()


@pytest.mark.usefixtures("_soon")
def test_what_the_api_server_does_not_keep_is_sent_once() -> None:
    """Antrea's definition of a Gateway has no links."""
    server = Server(prunes=True)
    publisher = LinkPublisher(server, traffic=0.01)  # type: ignore[arg-type]
    publisher.start()
    try:
        for link in (UP, DOWN, UP):
            publisher.want(GATEWAY, lambda link=link: (link,), object())  # type: ignore[misc]
            until(lambda: publisher._dropped_until > 0)
    finally:
        publisher.stop()
    assert len(server.writes) == 1


@pytest.mark.usefixtures("_soon")
def test_what_the_api_server_does_not_keep_is_sent_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator applied the definition of mcagent after its agents had started."""
    monkeypatch.setattr(publishing, "DROPPED_FOR", 0.05)
    server = Server(prunes=True)
    publisher = LinkPublisher(server, traffic=0.01)  # type: ignore[arg-type]
    publisher.start()
    try:
        publisher.want(GATEWAY, lambda: (UP,), object())
        until(lambda: len(server.writes) == 1)
        server._prunes = False
        until(lambda: links.read(server.status.get("links", ())) == (UP,))
    finally:
        publisher.stop()


def gateway(name: str, *reported: ClusterLink) -> RawObject:
    """Return a Gateway with links in its status."""
    status = {"links": [links.to_json(link) for link in reported]}
    return {"kind": "Gateway", "metadata": {"name": name, "namespace": HOME}, "status": status}


def test_a_member_announces_its_links() -> None:
    """Those of its gateways together: at once when one goes down, with the next heartbeat when traffic changes."""
    view = member()
    controller = Controller(view, [Announce(settings())])
    controller.settle()

    def announced() -> tuple[ClusterLink, ...]:
        announcement = north_of(view).get(Kind.MEMBER_CLUSTER_ANNOUNCE, NORTH, names.announce("east"))
        assert announcement is not None
        return links.read_text(announcement["metadata"]["annotations"].get(links.ANNOTATION, ""))

    assert announced() == ()
    view.local.put(gateway("n1", UP))
    view.local.put(gateway("n2", DOWN))
    controller.run()
    assert announced() == (ClusterLink(cluster="west", live=1, tunnels=2, why="BFD is down"),)
    view.local.put(gateway("n2", ClusterLink(cluster="west", live=0, tunnels=1, bytes_per_second=7)))
    controller.run()
    assert announced()[0].bytes_per_second == 0
    controller.settle()
    assert announced()[0].bytes_per_second == 7


def announced(cluster: str, text: str) -> RawObject:
    """Return an announcement with what a member says of its links."""
    announcement = announce(cluster, START)
    announcement["metadata"]["annotations"][links.ANNOTATION] = text
    return announcement


def test_the_leader_shows_clusters_links_and_problems() -> None:
    """Members with what they export, links between members alone, refused exports, and whoever is away."""
    world = Leader("east", "west", "south")
    world.put(cluster_info("east", "10.96.0.0/16"), service("east"), service("west", ports=81))
    stranger, itself = (ClusterLink(cluster=name, live=1, tunnels=1) for name in ("elsewhere", "east"))
    lost = ClusterLink(cluster="west", live=0, tunnels=2, since=SINCE, why="BFD is down", round_trip_micros=2800)
    world.forward(60, "east", "west")
    world.put(announced("east", links.as_text([lost, stranger, itself])), announced("west", "{"))
    (topology,) = topologies(world.view, AREA)
    assert (topology.name, [cluster.id for cluster in topology.clusters]) == (
        "clusterset1",
        ["east", "south", "west"],
    )
    east, south, _ = topology.clusters
    assert (east.ready, east.services, east.networks) == (True, 1, ("10.96.0.0/16",))
    assert south.ready is False
    assert [(link.source, link.target, link.live, link.why) for link in topology.links] == [
        ("east", "west", 0, "BFD is down")
    ]
    assert topology.links[0].round_trip_seconds == 0.0028
    assert (topology.changes[0].at, topology.changes[0].good) == (SINCE, False)
    messages = {problem.reason: problem.message for problem in topology.problems}
    assert messages.keys() >= {"Disconnected", "ClusterUnreachable"}
    assert messages["ClusterUnreachable"] == "east has no live tunnel to west: BFD is down"
    assert topology.problem_count == len(topology.problems)
    assert json.dumps(page_of("clusterset", "mcagent-0", "1", 0.0, (topology,)))


def test_a_node_shows_what_it_sees() -> None:
    """Its links with counters and probes, what its tunnels went through, its problems up to a bound."""
    problems = tuple(Problem(subject="Service a/b", path="", reason="Bad", message=str(n)) for n in range(150))
    report = live("mc-3", "mc-4")
    ways = node_health("g1", NodeState(role=NodeRole.GATEWAY), report, (), report.epoch + 100)
    topology = node_topology("east", NodeState(), report, carried(100), problems, probed=PROBED, findings=ways)
    assert [(link.target, link.live, link.tunnels, link.bytes) for link in topology.links] == [
        ("south", 1, 1, 200),
        ("west", 0, 2, 400),
    ]
    probed = [(link.round_trip_seconds, link.loss_ratio) for link in topology.links]
    assert probed == [(None, None), (0.03, 0.5)]  # of the slowest and of the worst tunnel
    assert {change.target for change in topology.changes if not change.good} == {"west"}
    assert (len(topology.problems), topology.problem_count) == (MAX_PROBLEMS, 151)  # the link is one, too
    assert topology.problems[0].message == "Node g1 has no live tunnel to west: BFD is down"


def test_a_node_shows_real_and_virtual_pod_cidrs_of_its_cluster() -> None:
    """As `mcagent status` does."""
    real, virtual, other = map(ip_network, ("10.244.0.0/16", "100.72.0.0/16", "10.5.0.0/16"))
    state = NodeState(published_pods=(real, other), prefixes=(PodPrefix(real=real, virtual=virtual),))
    own, *_ = node_topology("east", state, live(), carried(0), (), probed={}).clusters
    assert sorted(own.networks) == ["10.5.0.0/16", "100.72.0.0/16 (10.244.0.0/16 in the cluster)"]


def test_files_of_the_page_are_public_and_news_are_not() -> None:
    """The files ask nobody for a token, run nothing inline, load nothing from elsewhere; /topology is guarded."""
    pages = browser_pages(dict)
    assert {path for path, page in pages.items() if isinstance(page, Public)} == set(pages) - {"/topology"}
    for page in pages.values():
        if isinstance(page, Public):
            answer = page.answer()
            policy = dict(answer.headers)["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            for word in ("innerHTML", "insertAdjacentHTML", "eval(", "http://", "https://", "style=", "onclick"):
                assert word not in answer.body.replace("http://www.w3.org/2000/svg", "")
