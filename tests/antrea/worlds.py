"""A ClusterSet: the leader and member "east" in one cluster, "west" and "south" in others. Who is who is said."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from types import MappingProxyType

from devtools.waiting import wait_until
from mcagent.controller.contract import names
from mcagent.model.objects import Kind
from tests.antrea.clusters import AREA, HOME, OURS, SET, Cluster
from tests.antrea.running import Controllers

READY = 75.0  # seconds; Antrea's leaders look every 30 s who is there, its members whether they have a ClusterSet
SOON = 30.0  # seconds, on a machine with other work


@dataclass
class Member:
    """A member and its cluster. `who`: OURS, or a version of Antrea's; `address` is of its first gateway."""

    name: str
    who: str
    cluster: Cluster
    controllers: Controllers

    @property
    def ours(self) -> bool:
        """Tell whether the controller is ours."""
        return self.who == OURS

    def gateway(self, number: int) -> str:
        """Return the address of a Node."""
        return f"192.168.{self.cluster.number}.{number}"

    def ready(self) -> bool:
        """Tell whether its ClusterSet says that it is ready."""
        conditions = self.cluster.get(Kind.CLUSTER_SET, SET, HOME).get("status", {}).get("conditions", [])
        return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)

    def end(self) -> None:
        """Stop the controller."""
        self.controllers.end("member")

    def run(self) -> None:
        """Start the controller."""
        self.controllers.run(self.who, "member")

    def touch(self) -> None:
        """Change the first Node, as a kubelet does now and then.

        Antrea's member may have forgotten its first Gateway, or taken it back: that mends it (docs/antrea.md).
        """
        self.cluster.patch(Kind.NODE, "node-1", "", _touched())

    def keeps_its_gateway(self) -> bool:
        """Tell whether there is a Gateway, and touch the Node."""
        self.touch()
        return bool(self.cluster.items(Kind.GATEWAY, HOME))

    def knows_its_exports(self, leader: Cluster, service: str, since: int) -> None:
        """Wait until a member of Antrea's that was started has sent an export once more.

        Until it has done so it does not pass on that it is deleted, and it only looks at what changes once it has
        reached its leader (docs/antrea.md).
        """
        name = names.service_export(self.name, "default", service)

        def sent() -> bool:
            self.cluster.patch(Kind.SERVICE_EXPORT, service, "default", _touched())
            return any(write.name == name for write in leader.audit.writes(since))

        wait_until(sent, f"{self.name} to know that it exports {service}", timeout=READY, interval=1.0)

    def leave(self) -> None:
        """Leave the ClusterSet, and wait until the ClusterSet is gone."""
        self.cluster.delete(Kind.CLUSTER_SET, SET, HOME)
        there = self.cluster.get
        wait_until(lambda: there(Kind.CLUSTER_SET, SET, HOME) is None, "the ClusterSet to be gone", timeout=SOON)


@dataclass
class World:
    """A ClusterSet, and all that belongs to it. `leader`: whose the leader's controller is."""

    leader: str
    members: list[Member]

    @property
    def area(self) -> Cluster:
        """Return the leader's cluster."""
        return self.members[0].cluster

    def pairs(self) -> Iterator[tuple[Member, Member]]:
        """Return each member with each other."""
        return permutations(self.members, 2)

    def ready(self) -> tuple[int, int]:
        """Return how many members the leader counts as ready, of how many."""
        conditions = (self.area.get(Kind.CLUSTER_SET, SET, AREA) or {}).get("status", {})
        return conditions.get("readyClusters", 0), conditions.get("totalClusters", 0)

    def lead(self) -> None:
        """Make the leader's ClusterSet."""
        self.area.put_set(AREA, {"clusterID": "north", "leaders": [{"clusterID": "north"}]})

    def join(self, members: Iterable[Member], accounts: Mapping[str, str] = MappingProxyType({})) -> None:
        """Let members join, and wait until all are there and know each other's gateways."""
        for member in members:
            account = accounts.get(member.name, f"member-{member.name}")
            # Before Antrea 2.7 accounts have no annotation, and its leader asks for none.
            member.cluster.join(self.area, member.name, account, annotated=self.leader == OURS)
            if member.ours:
                member.cluster.grant(account)
        everybody = (len(self.members),) * 2
        wait_until(
            lambda: self.ready() == everybody, f"all to be ready: {self.ready()}", timeout=READY, interval=0.2
        )
        antreas = [member for member in self.members if not member.ours]
        for member in antreas:
            wait_until(member.keeps_its_gateway, f"the gateway of {member.name}", timeout=READY, interval=1.0)
        for here, other in self.pairs():
            soon(lambda h=here, o=other: h.cluster.gateways_of(o.name), f"{here.name} to know {other.name}", READY)  # type: ignore[misc]
        for member in antreas:  # their caches have their Gateways by now
            member.touch()

    def on_leader(self, text: str) -> list[str]:
        """Return the names of exports and imports on the leader that contain a text."""
        kinds = (Kind.RESOURCE_EXPORT, Kind.RESOURCE_IMPORT)
        names = [item["metadata"]["name"] for kind in kinds for item in self.area.items(kind, AREA)]
        return [name for name in names if text in name]

    def heartbeats(self) -> dict[str, str]:
        """Return when each member was heard of last."""
        return {
            item["clusterID"]: item["metadata"].get("annotations", {}).get(names.HEARTBEAT_ANNOTATION, "")
            for item in self.area.items(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA)
        }


@contextmanager
def running(
    leader: str, whose: Iterable[str], directory: Path, program: Callable[[str], Path], **settings: object
) -> Iterator[World]:
    """Run a ClusterSet's clusters and controllers, all at once, with these settings; nobody has joined yet."""
    clusters = [Cluster(number, directory / name) for number, name in enumerate("abc")]
    members = [
        Member(name, who, cluster, Controllers(cluster, program, settings))
        for name, who, cluster in zip(("east", "west", "south"), whose, clusters, strict=False)
    ]
    world = World(leader, members)

    def start(member: Member) -> None:
        cluster, controllers = member.cluster, member.controllers
        cluster.start()
        roles = [("leader", leader), ("member", member.who)] if member is members[0] else [("member", member.who)]
        for role, who in roles:
            controllers.install(who, role)
        for role, who in roles:
            controllers.run(who, role)
        cluster.node("node-1", member.gateway(1), gateway=True)
        cluster.node("node-2", member.gateway(2), gateway=False)

    # What a thread has started ends with it: these stay until the end.
    with ThreadPoolExecutor(len(members)) as pool:
        try:
            list(pool.map(start, members))
            yield world
        finally:
            list(pool.map(_stop, members))


def _touched() -> dict[str, object]:
    return {"metadata": {"annotations": {"touched": str(time.time())}}}


def _stop(member: Member) -> None:
    member.controllers.end_all()
    member.cluster.stop()


def soon(condition: Callable[[], object], what: str, timeout: float = SOON) -> None:
    """Wait for something that takes seconds on a machine with other work."""
    wait_until(condition, what, timeout=timeout, interval=0.1)
