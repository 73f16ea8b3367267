"""A whole ClusterSet in memory: a leader and members, each with its own API server and its own reconcilers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mcagent.controller.admission import accounts_of, review
from mcagent.controller.contract.cidr_claims import GRANTED
from mcagent.controller.contract.instances import is_waiting
from mcagent.controller.leader import leader_reconcilers
from mcagent.controller.machinery.connection.membership import membership
from mcagent.controller.machinery.reconciler import Leader
from mcagent.controller.member import member_reconcilers
from mcagent.controller.member.announce import announce_ref
from mcagent.controller.member.membership import NOT_ANNOUNCED, NOT_CONNECTED
from mcagent.controller.settings import LeaderSettings, MemberLimits, MemberSettings
from mcagent.kube.source import RawObject
from mcagent.model.api.base import Metadata
from mcagent.model.api.kubernetes import ServiceAccount
from mcagent.model.api.multicluster import ClusterClaim, ClusterSet, MemberClusterAnnounce, ResourceImport
from mcagent.model.errors import InputError
from mcagent.model.kinds import KINDS
from mcagent.model.objects import Kind
from tests.worlds.control_view import Controller, MemoryView
from tests.worlds.member_world import (
    AREA,
    HOME,
    SET,
    cluster_set,
    conditions_of,
    export_of,
    node,
    service,
    settings,
    slice_of,
)
from tests.worlds.memory_objects import Clock, MemoryObjects

STALE = 300.0  # seconds after which the leader gives a member up that stays away
ACCOUNTS = accounts_of(AREA)
LEADER = f"system:serviceaccount:{AREA}:antrea-mc-controller"
CIDRS = {"east": "10.96.0.0/16", "west": "10.97.0.0/16", "south": "10.98.0.0/16"}


class Member:
    """One member cluster. `away` cuts it from its leader. `service_cidr`: "": that of CIDRS."""

    def __init__(self, cluster_id: str, clock: Clock, north: MemoryObjects, service_cidr: str = "") -> None:
        self.cluster_id, self.service_cidr = cluster_id, service_cidr or CIDRS[cluster_id]
        self.api = MemoryObjects(clock, service_cidr=self.service_cidr, namespaces=["shop"])
        self.view = MemoryView(self.api, namespace=HOME, leader_api=north)
        self.settings: MemberSettings = settings(service_cidr=self.service_cidr)
        self.away = False
        self.user = f"system:serviceaccount:{AREA}:{cluster_id}"
        self.controller = Controller(self.view, [])
        self._linked: object = None  # what the last `link` depended on
        self._since = 0.0  # when the controller last connected
        self.restart()

    def restart(self) -> None:
        """End the controller and start another one, which knows nothing but what the API servers hold."""
        self.controller.closed = True
        self.view.failures.clear()
        self.view.successes.clear()
        self.controller = Controller(self.view, member_reconcilers(self.settings, self.api.clock), self.user)
        self._linked, self._since = None, self.api.clock()
        self.link()
        self.controller.enqueue_all()

    def link(self) -> None:
        """Follow the ClusterSet, as `mcagent.controller.machinery.connection.connection` does."""
        revisions = [self.api.revisions[kind] for kind in (Kind.CLUSTER_SET, Kind.CLUSTER_CLAIM)]
        if self._linked == (revisions, self.away, self.view.leader):
            return
        try:
            cluster_sets = self.view.list(ClusterSet, namespace=HOME)
            joined = membership(cluster_sets, self.view.list(ClusterClaim, namespace=HOME))
        except InputError:
            joined = None
        new = None
        if joined is not None:
            if self.view.leader is None or not self.view.leader.connected:
                self._since = self.api.clock()
            new = Leader(
                cluster_set=joined.cluster_set,
                cluster_id=joined.cluster_id,
                leader_cluster_id=joined.leader_cluster_id,
                namespace=joined.namespace,
                connected=not self.away,
                synced=not self.away or (self.view.leader is not None and self.view.leader.synced),
                since=self._since,
            )
        if new != self.view.leader:
            if new is None or not new.connected:
                self.view.successes.clear()
            self.view.leader = new
            self.controller.enqueue_all()
        self._linked = (revisions, self.away, self.view.leader)

    def look_again(self) -> bool:
        """Reconcile all again once the announcement is answered, as after LOOK_AGAIN; return whether it is."""
        cluster_set = self.api.get(Kind.CLUSTER_SET, HOME, SET)
        waits = conditions_of(cluster_set).get("Ready", ("", ""))[1] in (NOT_ANNOUNCED, NOT_CONNECTED)
        leader = self.view.leader
        if not waits or self.controller.closed or leader is None or not leader.connected:
            return False
        ref = announce_ref(leader)
        failure = self.view.failure(ref)
        if is_waiting(failure) or not (failure or self.view.accepted(ref)):
            return False
        self.controller.enqueue_all()
        return True

    # --- what people and Kubernetes do ----------------------------------------------------------------------

    def join(self) -> None:
        """Make the ClusterSet."""
        if self.api.get(Kind.CLUSTER_SET, HOME, SET) is None:
            raw = cluster_set(self.cluster_id)
            del raw["metadata"]["finalizers"]
            self.api.put(raw)

    def leave(self) -> None:
        """Delete the ClusterSet."""
        self.api.remove(Kind.CLUSTER_SET, HOME, SET)

    def serve(self, name: str, host: int) -> None:
        """Make a Service with a ready endpoint."""
        prefix = self.service_cidr.rsplit(".", 2)[0]
        self.api.put(service(name, cluster_ip=f"{prefix}.200.{host}"))
        self.api.put(slice_of(name, f"10.10.1.{host}", name=f"{name}-slice"))

    def export(self, name: str) -> None:
        """Make a ServiceExport."""
        self.api.put(export_of(name))

    def node(self, name: str, host: int, *, ready: bool = True, annotated: bool = True) -> None:
        """Make or change a Node."""
        number = list(CIDRS).index(self.cluster_id) + 1
        self.api.put(node(name, f"192.168.{number}.{host}", ready=ready, annotated=annotated))

    # --- what there is --------------------------------------------------------------------------------------

    def imported(self) -> dict[str, set[str]]:
        """Return the endpoints of each imported Service."""
        found: dict[str, set[str]] = {}
        for raw in self.api.list(Kind.SERVICE, "shop"):
            if raw["metadata"]["name"].startswith("antrea-mc-"):
                found[raw["metadata"]["name"].removeprefix("antrea-mc-")] = set()
        for raw in self.api.list(Kind.ENDPOINT_SLICE, "shop"):
            owner = raw["metadata"]["labels"]["kubernetes.io/service-name"]
            if owner.startswith("antrea-mc-"):
                addresses = {text for item in raw["endpoints"] for text in item["addresses"]}
                found.setdefault(owner.removeprefix("antrea-mc-"), set()).update(addresses)
        return found

    def names(self, kind: Kind) -> set[str]:
        """Return the names of all objects of a kind."""
        return {raw["metadata"]["name"] for raw in self.api.list(kind)}


class Clusters:
    """The leader and its members."""

    def __init__(self, members: Iterable[str] = CIDRS, service_cidr: str = "") -> None:
        self.clock = Clock()
        self.north = MemoryObjects(self.clock, namespaces=[AREA])
        self.north.put(
            {
                "kind": "ClusterSet",
                "metadata": {"name": SET, "namespace": AREA},
                "spec": {"clusterID": "north", "leaders": [{"clusterID": "north"}]},
            }
        )
        self.view = MemoryView(self.north, namespace=AREA)
        self.leader_settings = LeaderSettings(
            namespace=AREA, stale_after=STALE, allowed_endpoint_cidrs=tuple(CIDRS.values())
        )
        self.north.refuse = self._review
        self.controller = Controller(self.view, [])
        self.members: dict[str, Member] = {
            name: Member(name, self.clock, self.north, service_cidr) for name in members
        }
        self.restart_leader()

    def restart_leader(self) -> None:
        """End the leader's controller and start another one."""
        self.controller.closed = True
        self.view.failures.clear()
        self.controller = Controller(self.view, leader_reconcilers(self.leader_settings), LEADER)
        self.controller.enqueue_all()

    # --- the leader's admission, and what it looks up -------------------------------------------------------

    def _review(self, kind: Kind, old: RawObject | None, new: RawObject | None) -> str:
        group = KINDS[kind].group
        request = {
            "uid": "u",
            "operation": "DELETE" if new is None else "CREATE" if old is None else "UPDATE",
            "kind": {"group": group, "version": KINDS[kind].version, "kind": str(kind)},
            "namespace": AREA,
            "object": new and {"kind": str(kind), **new},
            "oldObject": old,
            "userInfo": {"username": self.north.caller},
        }
        return review(request, self, ACCOUNTS).message if group == "multicluster.crd.antrea.io" else ""

    def service_account(self, namespace: str, name: str) -> ServiceAccount | None:
        """Return a ServiceAccount: each member has one of its name."""
        if namespace != AREA or name not in self.members:
            return None
        annotations = {"multicluster.antrea.io/cluster-id": name}
        return ServiceAccount(metadata=Metadata(name=name, namespace=AREA, annotations=annotations))

    def service_accounts(self, namespace: str) -> Sequence[ServiceAccount]:
        """Return all ServiceAccounts."""
        return [account for name in self.members if (account := self.service_account(namespace, name))]

    @property
    def limits(self) -> MemberLimits:
        """Return what members may claim."""
        return self.leader_settings.limits

    def count_exports(self, namespace: str, cluster_id: str, kind: str) -> int:
        """Return how many exports of a kind a member has."""
        exports = self.north.list(Kind.RESOURCE_EXPORT, namespace)
        return sum((raw["spec"]["clusterID"], raw["spec"]["kind"]) == (cluster_id, kind) for raw in exports)

    def granted(self, namespace: str, values: Iterable[str]) -> Sequence[ResourceImport]:
        """Return the ResourceImports that are filed under any of these."""
        rows = [resource_import for value in values for resource_import in self.view.indexed(GRANTED, value)]
        return list({resource_import.name: resource_import for resource_import in rows}.values())

    def cluster_sets(self, namespace: str) -> Sequence[ClusterSet]:
        """Return the ClusterSets of a namespace of the leader."""
        return self.view.list(ClusterSet, namespace=namespace)

    def announces(self, namespace: str) -> Sequence[MemberClusterAnnounce]:
        """Return the announcements of members."""
        return self.view.list(MemberClusterAnnounce, namespace=namespace)

    @property
    def controllers(self) -> list[Controller]:
        """Return all controllers, the leader's first."""
        return [self.controller, *(member.controller for member in self.members.values())]

    def step(self, number: int, place: int) -> None:
        """Let one controller work on one key."""
        controllers = self.controllers
        controllers[number % len(controllers)].step(place)
        for member in self.members.values():
            member.link()

    def run(self, limit: int = 20_000) -> None:
        """Let all work until nobody has anything to do."""
        for _ in range(limit):
            for member in self.members.values():
                member.link()
            worked = [controller.step() for controller in self.controllers]  # each one a key
            if not any(worked) and not any(member.look_again() for member in self.members.values()):
                return
        raise AssertionError("the ClusterSet does not come to rest")

    def wait(self, seconds: float, step: float = 5.0) -> None:
        """Let time pass, and all do what is due."""
        end = self.clock() + seconds
        while self.clock() < end:
            self.clock.forward(min(step, end - self.clock()))
            for controller in self.controllers:
                controller.due()
            self.run()

    def writes(self) -> list[str]:
        """Return what controllers have written since last asked, but for heartbeats."""
        writes: list[str] = []
        for api in (self.north, *(member.api for member in self.members.values())):
            writes += [write for write in api.writes if "update MemberClusterAnnounce" not in write]
            api.writes.clear()
        return writes

    def exports(self) -> dict[str, RawObject]:
        """Return the ResourceExports on the leader by name."""
        return {raw["metadata"]["name"]: raw for raw in self.north.list(Kind.RESOURCE_EXPORT)}
