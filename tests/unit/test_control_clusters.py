"""Leader and members together, in memory: export to import, leaving, faults, and any interleaving of all of it."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import RuleBasedStateMachine, rule

from mcagent.controller.contract.cidr_claims import CidrClaim, cidr_claim, collide
from mcagent.controller.leader.claims import granted_in
from mcagent.controller.settings import EndpointIpType
from mcagent.model.api.multicluster import ResourceImport
from mcagent.model.objects import Kind
from mcagent.model.parsing.clusters import MTU_ANNOTATION
from tests.properties import COSTLY
from tests.worlds.control_clusters import CIDRS, STALE, Clusters
from tests.worlds.member_world import AREA, HOME, SET, cluster_set, conditions_of, service, settings, slice_of

GOOD = {"Valid": ("True", "Valid"), "Ready": ("True", "Exported"), "Conflict": ("False", "NoConflicts")}


def joined() -> Clusters:
    """Return three members that have joined, each with two candidate Nodes and two Services."""
    world = Clusters()
    for member in world.members.values():
        member.join()
        member.node("n1", 1)
        member.node("n2", 2)
        member.serve("web", 1)
        member.serve("db", 2)
    world.run()
    return world


def test_from_export_to_import() -> None:
    """A Service exported by two clusters is imported by all three, with both clusters' ClusterIPs."""
    world = joined()
    east, west, south = world.members.values()
    east.export("web")
    world.run()
    assert west.imported() == south.imported() == {"web": {"10.96.200.1"}}
    assert east.imported() == {"web": {"10.10.1.1"}}  # kube-proxy translates once: its own Pods
    west.export("web")
    world.run()
    assert south.imported() == {"web": {"10.96.200.1", "10.97.200.1"}}
    service_import = south.api.get(Kind.SERVICE_IMPORT, "shop", "web")
    assert service_import is not None
    assert service_import["status"]["clusters"] == [{"cluster": "east"}, {"cluster": "west"}]
    for member in (east, west):
        export = member.api.get(Kind.SERVICE_EXPORT, "shop", "web")
        assert conditions_of(export) == GOOD
    assert south.names(Kind.CLUSTER_INFO_IMPORT) == {"east-clusterinfo", "west-clusterinfo"}
    east.api.remove(Kind.SERVICE_EXPORT, "shop", "web")
    world.run()
    assert south.imported() == {"web": {"10.97.200.1"}}
    west.api.remove(Kind.ENDPOINT_SLICE, "shop", "web-slice")
    world.run()
    assert south.imported() == east.imported() == {"web": set()}  # exported, and nobody is behind it
    west.api.remove(Kind.SERVICE_EXPORT, "shop", "web")
    world.run()
    assert south.imported() == east.imported() == {}
    assert set(world.exports()) == {f"{name}-clusterinfo" for name in CIDRS}


def test_settings_reach_the_other_clusters() -> None:
    """A cluster with another endpointIPType is not Ready in the others, by what it publishes itself."""
    world = joined()
    east, west, _ = world.members.values()
    east.settings = settings(service_cidr=CIDRS["east"], endpoint_ip_type=EndpointIpType.POD_IP)
    east.restart()
    world.run()
    info = west.api.get(Kind.CLUSTER_INFO_IMPORT, HOME, "east-clusterinfo")
    assert conditions_of(info) == {"Ready": ("False", "SettingsMismatch")}
    info = west.api.get(Kind.CLUSTER_INFO_IMPORT, HOME, "south-clusterinfo")
    assert conditions_of(info) == {"Ready": ("True", "Imported")}


def test_a_conflict_is_told_on_the_service_exports() -> None:
    """Of two ports of one name the first is imported; both ServiceExports say so, until one is withdrawn."""
    world = joined()
    east, west, south = world.members.values()
    east.export("web")
    world.run()
    world.clock.forward(5)
    west.api.put(service("web", ("http", 81), cluster_ip="10.97.200.1"))
    west.export("web")
    world.run()
    for member in (east, west):
        conditions = conditions_of(member.api.get(Kind.SERVICE_EXPORT, "shop", "web"))
        assert conditions == GOOD | {"Conflict": ("True", "PortConflict")}
    assert south.imported() == {"web": {"10.96.200.1"}}
    assert west.imported() == {"web": {"10.96.200.1"}}  # not its own Pods either
    east.api.remove(Kind.SERVICE_EXPORT, "shop", "web")
    world.run()
    assert conditions_of(west.api.get(Kind.SERVICE_EXPORT, "shop", "web")) == GOOD
    assert south.imported() == {"web": {"10.97.200.1"}}


def test_leaving_and_rejoining() -> None:
    """Who leaves has nothing left, others lose only what was its own; after re-joining all is as before."""
    world = joined()
    for member in world.members.values():
        member.export("web")
    world.run()
    east, west, _ = world.members.values()
    before = {name: member.imported() for name, member in world.members.items()}
    east.leave()
    world.run()
    world.wait(3, 1)
    assert east.names(Kind.CLUSTER_SET) == set()
    assert east.imported() == {}
    assert (east.names(Kind.GATEWAY), east.names(Kind.CLUSTER_INFO_IMPORT)) == (set(), set())
    assert west.imported() == {"web": {"10.10.1.1", "10.98.200.1"}}
    assert not [name for name in world.exports() if name.startswith("east-")]
    east.join()
    world.run()
    assert {name: member.imported() for name, member in world.members.items()} == before


def test_clusters_tell_that_their_gateways_run_mcagent() -> None:
    """What only our agents write into a Gateway is told to all clusters, as long as a Gateway has it."""
    world = joined()
    east, west, _ = world.members.values()

    def told() -> object:
        (info,) = (o for o in west.api.list(Kind.CLUSTER_INFO_IMPORT) if o["spec"]["clusterID"] == "east")
        return info["metadata"]["annotations"].get("mcagent.io/agents")

    assert told() is None
    for status, said in (
        ({"links": [{"clusterID": "west", "live": 1, "tunnels": 1}]}, "mcagent"),
        ({"links": None, "exportAddresses": True}, "mcagent"),  # its agent serves no gateway for now
        ({"exportAddresses": None}, None),
    ):
        east.api.change(Kind.GATEWAY, HOME, "n1", {"status": status})
        world.run()
        assert told() == said


def test_clusters_announce_the_smallest_mtu_of_their_gateways() -> None:
    """The agents' own, from their Gateways to the ClusterInfoImports; what is out of bounds goes no further."""
    world = joined()
    east, west, _ = world.members.values()

    def announced() -> object:
        (info,) = (o for o in west.api.list(Kind.CLUSTER_INFO_IMPORT) if o["spec"]["clusterID"] == "east")
        return info["metadata"]["annotations"].get(MTU_ANNOTATION)

    assert announced() is None
    (gateway, *_) = east.names(Kind.GATEWAY)
    for mtu, text in ((1300, "1300"), (575, None), (65536, None), (576, "576"), (None, None)):
        east.api.change(Kind.GATEWAY, HOME, gateway, {"status": {"tunnelMTU": mtu}})
        world.run()
        assert announced() == text


def test_a_leader_that_is_away_for_a_minute_costs_nothing() -> None:
    """Members keep all, follow local changes, and afterwards write only what changed."""
    world = joined()
    east, west, south = world.members.values()
    east.export("web")
    world.run()
    world.writes()
    for member in world.members.values():
        member.away = True
    east.node("n1", 1, ready=False)
    south.api.remove(Kind.SERVICE, "shop", "antrea-mc-web")
    world.wait(60)
    assert east.names(Kind.GATEWAY) == {"n2"}
    assert south.imported() == west.imported() == {"web": {"10.96.200.1"}}
    for member in world.members.values():
        member.away = False
    world.writes()
    world.run()
    changed = [write for write in world.writes() if "ClusterSet" not in write and "ServiceImport" not in write]
    assert sorted(changed) == [
        f"update ClusterInfoImport {HOME}/east-clusterinfo",
        f"update ClusterInfoImport {HOME}/east-clusterinfo",
        f"update ResourceExport {AREA}/east-clusterinfo",
        f"update ResourceImport {AREA}/east-clusterinfo",
    ]


def test_one_endpoint_change_writes_the_same_however_many_services_there_are() -> None:
    """From a ClusterIP that changes to all clusters: one object of each kind in each cluster."""
    counts = []
    for number in (2, 30):
        world = joined()
        east = world.members["east"]
        for host in range(number):
            east.serve(f"s{host}", 10 + host)
            east.export(f"s{host}")
        world.run()
        world.writes()
        east.api.put(service("s1", cluster_ip="10.96.200.250"))
        world.run()
        counts.append(sorted(write.rsplit("-", 1)[0] for write in world.writes()))
    assert counts[0] == counts[1]
    assert len(counts[0]) <= 2 + len(CIDRS)


def test_a_member_that_claims_anothers_identity_gets_nowhere() -> None:
    """The leader's admission refuses all that it writes; that is told here, and nothing changes for anybody."""
    world = joined()
    east, west, south = world.members.values()
    east.export("web")
    world.run()
    before = world.exports()
    west.leave()
    world.run()
    world.wait(3, 1)
    before = {name: raw for name, raw in before.items() if not name.startswith("west-")}
    west.api.put(cluster_set("east"))
    west.export("db")
    world.run()
    world.wait(15)
    assert world.exports() == before
    assert south.imported() == {"web": {"10.96.200.1"}}
    west.controller.settle()
    messages = {event.reason: event.message for event in west.controller.all_events()}
    assert "west" in messages["ExportFailed"]


CLAIMS = ["10.200.0.0/16", "10.200.1.0/24", "10.200.2.0/24", "192.168.2.0/24"]
HOSTS = {"web": 1, "db": 2}  # the last number of a Service's addresses


class Interleavings(RuleBasedStateMachine):
    """People, Kubernetes, faults and controllers, in any order. In the end all must be as it should be."""

    members = st.sampled_from(sorted(CIDRS))
    services = st.sampled_from(["web", "db"])
    nodes = st.sampled_from([("n1", 1), ("n2", 2)])

    def __init__(self) -> None:
        super().__init__()
        self.world = Clusters()
        for cluster, member in self.world.members.items():
            member.node("n1", 1)
            for name, host in HOSTS.items():
                member.serve(name, host)
                self._serving(cluster, name, ready=True)

    @rule(member=members)
    def join(self, member: str) -> None:
        self.world.members[member].join()

    @rule(member=members)
    def leave(self, member: str) -> None:
        self.world.members[member].leave()

    @rule(member=members, name=services)
    def export(self, member: str, name: str) -> None:
        self.world.members[member].export(name)

    @rule(member=members, name=services)
    def unexport(self, member: str, name: str) -> None:
        self.world.members[member].api.remove(Kind.SERVICE_EXPORT, "shop", name)

    @rule(member=members, name=services, ready=st.booleans())
    def endpoints(self, member: str, name: str, ready: bool) -> None:
        self._serving(member, name, ready=ready)

    def _serving(self, member: str, name: str, *, ready: bool) -> None:
        """Make the endpoint of a Service: a Pod of a Node, wherever the claimed Pod CIDRs are."""
        endpoint_slice = slice_of(name, f"10.10.1.{HOSTS[name]}", name=f"{name}-slice", ready=ready)
        endpoint_slice["endpoints"][0]["nodeName"] = "n1"
        self.world.members[member].api.put(endpoint_slice)

    @rule(member=members, node=nodes, ready=st.booleans(), annotated=st.booleans())
    def change_node(self, member: str, node: tuple[str, int], ready: bool, annotated: bool) -> None:
        self.world.members[member].node(*node, ready=ready, annotated=annotated)

    @rule(member=members, away=st.booleans())
    def cut(self, member: str, away: bool) -> None:
        self.world.members[member].away = away

    @rule(member=members, cidrs=st.lists(st.sampled_from(CLAIMS), max_size=2, unique=True))
    def claim(self, member: str, cidrs: list[str]) -> None:
        self.world.members[member].settings = settings(service_cidr=CIDRS[member], pod_cidrs=tuple(cidrs))
        self.world.members[member].restart()

    @rule(member=members)
    def restart(self, member: str) -> None:
        self.world.members[member].restart()

    @rule()
    def restart_leader(self) -> None:
        self.world.restart_leader()

    @rule(member=members, name=services, kind=st.sampled_from([Kind.SERVICE, Kind.SERVICE_IMPORT]))
    def meddle(self, member: str, name: str, kind: Kind) -> None:
        imported = name if kind is Kind.SERVICE_IMPORT else f"antrea-mc-{name}"
        self.world.members[member].api.remove(kind, "shop", imported)

    @rule(steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=30))
    def work(self, steps: list[tuple[int, int]]) -> None:
        for which, place in steps:
            self.world.step(which, place)

    @rule(seconds=st.sampled_from([1.0, 11.0, 70.0]))
    def wait(self, seconds: float) -> None:
        self.world.wait(seconds, seconds)

    def teardown(self) -> None:
        """Mend all connections and let it come to rest; then compare with what is asked for."""
        world = self.world
        for member in world.members.values():
            member.away = False
        world.run()
        world.wait(STALE + 100, 20)
        for _ in CIDRS:  # admission has refused what is free meanwhile: the engine tries again
            for controller in world.controllers:
                controller.enqueue_all()
            world.run()
            world.wait(2, 1)
        self._check()
        self._check_claims()
        granted = self._granted()
        world.writes()
        for member in world.members.values():
            member.restart()
        world.restart_leader()
        world.run()
        # What a fresh start computes is what is there. A member is Ready when its announcement is accepted again.
        assert [write for write in world.writes() if write != f"update ClusterSet {HOME}/{SET}"] == []
        self._check()
        assert self._granted() == granted

    def _granted(self) -> dict[str, dict[CidrClaim, str]]:
        """Return what the leader has granted, and since when, by cluster."""
        infos = self.world.view.list(ResourceImport)
        return {
            info.name.removesuffix("-clusterinfo"): granted_in(info)
            for info in infos
            if info.spec.kind == "ClusterInfo"
        }

    def _check_claims(self) -> None:
        """Nothing is granted twice, and what is asked for in vain is in the way of something that is granted."""
        granted = self._granted()
        for name, claims in granted.items():
            other_claims = [claim for other in granted.keys() - {name} for claim in granted[other]]
            assert not [claim for claim in claims if any(collide(claim, own_claim) for own_claim in other_claims)]
            export = self.world.exports()[f"{name}-clusterinfo"]
            for text in self.world.members[name].settings.pod_cidrs:
                asked = cidr_claim(text, "")
                assert asked is not None
                assert asked in claims or any(collide(asked, own_claim) for own_claim in other_claims), export

    def _check(self) -> None:
        world = self.world
        inside = {name: m for name, m in world.members.items() if m.api.get(Kind.CLUSTER_SET, HOME, SET)}
        exported: dict[str, set[str]] = {}
        ready: set[tuple[str, str]] = set()
        for name, member in inside.items():
            for raw in member.api.list(Kind.SERVICE_EXPORT):
                service_name = raw["metadata"]["name"]
                endpoint_slice = member.api.get(Kind.ENDPOINT_SLICE, "shop", f"{service_name}-slice")
                exported.setdefault(service_name, set()).add(name)
                if endpoint_slice is not None and endpoint_slice["endpoints"][0]["conditions"]["ready"]:
                    ready.add((name, service_name))
        for name, member in world.members.items():
            expected: dict[str, set[str]] = {}
            for service_name, clusters in exported.items() if name in inside else ():
                host = HOSTS[service_name]
                expected[service_name] = {
                    f"10.10.1.{host}" if cluster == name else f"{CIDRS[cluster].rsplit('.', 2)[0]}.200.{host}"
                    for cluster in clusters
                    if (cluster, service_name) in ready
                    if cluster == name or world.members[cluster].names(Kind.GATEWAY)
                }
            assert member.imported() == expected
            assert member.names(Kind.SERVICE_IMPORT) == set(expected)
            assert member.names(Kind.CLUSTER_INFO_IMPORT) == {
                f"{other}-clusterinfo"
                for other in inside
                if name in inside and other != name and world.members[other].names(Kind.GATEWAY)
            }
            assert name in inside or not member.names(Kind.GATEWAY)
        wanted = {f"{n}-clusterinfo" for n, m in inside.items() if m.names(Kind.GATEWAY)} | {
            f"{cluster}-shop-{service_name}-{kind}"
            for service_name, clusters in exported.items()
            for cluster in clusters
            for kind in ("service", "endpoints")
        }
        assert set(world.exports()) == wanted
        announces = {raw["clusterID"] for raw in world.north.list(Kind.MEMBER_CLUSTER_ANNOUNCE)}
        assert announces == set(inside)


TestInterleavings = pytest.mark.costly(Interleavings.TestCase)
TestInterleavings.settings = hypothesis_settings(COSTLY, stateful_step_count=25)
