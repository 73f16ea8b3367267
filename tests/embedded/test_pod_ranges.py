"""Virtual Pod CIDRs with real controllers on API servers: two members with one Pod CIDR, restarts, and leaving."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from devtools.waiting import wait_until
from mcagent.controller.contract.pod_ranges import POD_RANGE_ANNOTATION, POD_RANGES_ANNOTATION, parse_pod_ranges
from mcagent.model.objects import Kind
from mcagent.model.parsing.prefixes import PREFIXES_ANNOTATION
from tests.embedded.clusterset import Cluster, World
from tests.embedded.controlworld import COMMON_AREA, NAMESPACE
from tests.worlds.member_world import conditions_of

KUBEADM = "10.244.0.0/16"
TIMEOUT = 30.0


class PodRanges:
    """A leader and members that publish KUBEADM as Pod CIDR; gateways whose agents translate Pod CIDRs."""

    def __init__(self, directory: Path, stack: ExitStack, members: Iterable[str], *, pool: str) -> None:
        self.world = World(
            directory, stack, members, pod_pool=(pool,), pod_cidrs=(KUBEADM,), pod_export_cidr="auto"
        )
        self.north, self.members = self.world.north, self.world.members

    def join(self, name: str) -> None:
        """Let a member join, with a gateway."""
        self.world.join(name)
        member = self.members[name]
        wait_until(lambda: member.objects.names(Kind.GATEWAY), f"the Gateway of {name}", timeout=TIMEOUT)
        for gateway in member.objects.names(Kind.GATEWAY):
            member.objects.put_status(Kind.GATEWAY, gateway, {"podPrefixes": True})
        wait_until(lambda: self.granted(name), f"the Pod CIDR of {name} on the leader", timeout=TIMEOUT)

    def leave(self, name: str) -> None:
        """Let a member leave."""
        member, announce = self.members[name], f"member-announce-from-{name}"
        member.remove(Kind.CLUSTER_SET, "set", NAMESPACE)
        wait_until(
            lambda: (
                member.get(Kind.CLUSTER_SET, "set", NAMESPACE) is None
                and self.granted(name) == []
                and announce not in self.north.objects.names(Kind.MEMBER_CLUSTER_ANNOUNCE)
            ),
            f"{name} to have left",
            timeout=TIMEOUT,
        )

    def granted(self, name: str) -> list[str]:
        """Return the Pod CIDRs of a member that the leader passes on; [] if it passes on none."""
        raw = self.north.get(Kind.RESOURCE_IMPORT, f"{name}-clusterinfo", COMMON_AREA)
        return list(raw["spec"]["clusterinfo"].get("podCIDRs") or []) if raw else []

    def reported(self, name: str) -> list[str]:
        """Return the Pod CIDRs in the ClusterInfo that a member publishes."""
        raw = self.north.get(Kind.RESOURCE_EXPORT, f"{name}-clusterinfo", COMMON_AREA)
        return list(raw["spec"]["clusterInfo"].get("podCIDRs") or []) if raw else []

    def imported(self, at: str, name: str) -> list[str]:
        """Return the Pod CIDRs of a member in the ClusterInfoImport of another one."""
        raw = self.members[at].get(Kind.CLUSTER_INFO_IMPORT, f"{name}-clusterinfo", NAMESPACE)
        return list(raw["spec"].get("podCIDRs") or []) if raw else []

    def recorded(self, name: str) -> list[str]:
        """Return the virtual Pod CIDRs that the leader's ClusterSet records for a cluster ID."""
        raw = self.north.get(Kind.CLUSTER_SET, "set", COMMON_AREA)
        text = (raw["metadata"].get("annotations") or {}).get(POD_RANGES_ANNOTATION, "")
        decision = parse_pod_ranges(text).get(name)
        return [] if decision is None else [str(pair.virtual) for pair in decision.pairs]

    def agree(self, *names: str) -> bool:
        """Tell whether each of these members uses its one virtual Pod CIDR, and the others know it."""
        virtual = {name: self.recorded(name) for name in names}
        return all(
            len(virtual[name]) == 1
            and self.reported(name) == self.granted(name) == virtual[name]
            and all(self.imported(at, name) == virtual[name] for at in names if at != name)
            and condition(self.members[name]) == ("True", "Assigned")
            and prefixes(self.members[name]) == {f"{KUBEADM}={virtual[name][0]}"}
            for name in names
        )

    def wait_agreed(self, *names: str) -> None:
        """Wait until these members have virtual Pod CIDRs, and know those of each other."""
        wait_until(lambda: self.agree(*names), f"virtual Pod CIDRs of {', '.join(names)}", timeout=TIMEOUT)


def condition(member: Cluster) -> tuple[str, str] | None:
    """Return status and reason of condition PodExportRange; None without it."""
    conditions: dict[str, tuple[str, str]] = conditions_of(member.get(Kind.CLUSTER_SET, "set", NAMESPACE))
    return conditions.get("PodExportRange")


def prefixes(member: Cluster) -> set[str]:
    """Return the pairs of real and virtual Pod CIDR on the Gateways, which the agents read."""
    gateways = [member.get(Kind.GATEWAY, name, NAMESPACE) for name in member.objects.names(Kind.GATEWAY)]
    return {(raw["metadata"].get("annotations") or {}).get(PREFIXES_ANNOTATION, "") for raw in gateways if raw}


def is_connected(member: Cluster) -> bool:
    """Tell whether a member's controller has read the leader's objects."""
    engine = member.engine
    return engine is not None and engine.view.leader is not None and engine.view.leader.synced


def decisions(ranges: PodRanges) -> list[Any]:
    """Return all that is stored of the decisions: on the leader, and in each member."""
    raws = [ranges.north.get(Kind.CLUSTER_SET, "set", COMMON_AREA)]
    raws += [member.get(Kind.CLUSTER_SET, "set", NAMESPACE) for member in ranges.members.values()]
    keys = (POD_RANGE_ANNOTATION, POD_RANGES_ANNOTATION)
    return [[(raw["metadata"].get("annotations") or {}).get(key) for key in keys] for raw in raws]


def test_the_virtual_pod_cidrs_of_two_members_outlast_restarts_of_the_controllers(tmp_path: Path) -> None:
    """The first keeps its Pod CIDR until a second one has it; then both publish virtual ones, and keep them."""
    with ExitStack() as stack:
        ranges = PodRanges(tmp_path, stack, ("east", "west"), pool="100.64.0.0/10")
        east, west = ranges.members.values()
        ranges.join("east")
        assert ranges.granted("east") == ranges.reported("east") == [KUBEADM]
        assert (condition(east), ranges.recorded("east")) == (None, [])
        ranges.join("west")
        ranges.wait_agreed("east", "west")
        assert ranges.recorded("east") != ranges.recorded("west")
        wait_until(ranges.world.idle, "no work for the controllers", timeout=TIMEOUT)
        before = decisions(ranges)
        for cluster in (ranges.north, east, west):
            cluster.stop()
        for cluster in (ranges.north, east, west):
            cluster.api.requests.clear()
            cluster.start()
        wait_until(
            lambda: is_connected(east) and is_connected(west) and ranges.world.idle(),
            "the controllers to have started again",
            timeout=TIMEOUT,
        )
        assert decisions(ranges) == before
        assert ranges.agree("east", "west")
        written = [
            write for member_cluster in (ranges.north, east, west) for write in member_cluster.objects.writes()
        ]
        assert [w for w in written if "memberclusterannounce" not in w and "clustersets" not in w] == []


def east_and_west_joined(tmp_path: Path, stack: ExitStack, *, pool: str) -> PodRanges:
    """Return three members, of which east and west have joined and agree on their virtual Pod CIDRs."""
    ranges = PodRanges(tmp_path, stack, ("east", "west", "south"), pool=pool)
    ranges.join("east")
    ranges.join("west")
    ranges.wait_agreed("east", "west")
    return ranges


def test_the_virtual_pod_cidr_of_a_member_that_left_is_kept_while_the_pool_has_another(tmp_path: Path) -> None:
    """A third member gets another one; the first two keep theirs, and the one that left has it again on return."""
    with ExitStack() as stack:
        ranges = east_and_west_joined(tmp_path, stack, pool="100.64.0.0/14")
        of_east, of_west = ranges.recorded("east"), ranges.recorded("west")
        ranges.leave("west")
        wait_until(lambda: ranges.imported("east", "west") == [], "no ClusterInfoImport of west", timeout=TIMEOUT)
        assert (ranges.granted("east"), ranges.recorded("west")) == (of_east, of_west)
        ranges.join("south")
        ranges.wait_agreed("east", "south")
        assert ranges.recorded("west") == of_west != ranges.recorded("south")
        ranges.join("west")
        ranges.wait_agreed("east", "west", "south")
        assert (ranges.recorded("east"), ranges.recorded("west")) == (of_east, of_west)


def test_the_virtual_pod_cidr_of_a_member_that_left_is_reused_when_the_pool_has_no_other(tmp_path: Path) -> None:
    """A pool with room for two: the member that left finds it full on return, and publishes its own Pod CIDR."""
    with ExitStack() as stack:
        ranges = east_and_west_joined(tmp_path, stack, pool="100.64.0.0/15")
        of_east, of_west = ranges.recorded("east"), ranges.recorded("west")
        ranges.leave("west")
        ranges.join("south")
        ranges.wait_agreed("east", "south")
        assert (ranges.recorded("east"), ranges.recorded("south"), ranges.recorded("west")) == (
            of_east,
            of_west,
            [],
        )
        ranges.world.join("west")
        west = ranges.members["west"]
        wait_until(
            lambda: condition(west) == ("False", "RangeExhausted") and ranges.granted("west") == [KUBEADM],
            "west to publish its own Pod CIDR, with reason RangeExhausted",
            timeout=TIMEOUT,
        )
        assert (ranges.recorded("east"), ranges.recorded("south")) == (of_east, of_west)
