"""What has to work in a ClusterSet of controllers of both projects, whoever leads: on three members.

The modules beside say who runs what. The last test takes the ClusterSet apart; the others leave it as it was.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from mcagent.controller.contract import names
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from tests.antrea.clusters import AREA, HOME, OURS, SET, Cluster
from tests.antrea.running import account
from tests.antrea.worlds import Member, World, soon


class Suite:
    """The tests, in this order. LEADER: whose it is; MEMBERS: whose east, in its cluster, west and south are."""

    LEADER: str
    MEMBERS: Sequence[str]

    def test_cluster_information_goes_everywhere(self, world: World) -> None:
        """Each cluster knows the others' networks and gateways."""
        for member, other in world.pairs():
            spec = member.cluster.get(Kind.CLUSTER_INFO_IMPORT, names.cluster_info(other.name), HOME)["spec"]
            assert spec["serviceCIDR"] == other.cluster.service_cidr
            assert spec["podCIDRs"] == [other.cluster.pod_cidr]
            assert [item["gatewayIP"] for item in spec["gatewayInfos"]] == [other.gateway(1)]

    def test_services_go_everywhere(self, world: World) -> None:
        """An export, another port, no endpoint, one again, and no export any more: the other clusters follow."""

        def everywhere(condition: Callable[[Cluster, str, str], bool], title: str) -> None:
            for here, other in world.pairs():
                name = f"of-{other.name}"
                soon(partial(condition, here.cluster, name, address[name]), f"{name} {title} in {here.name}")

        address = {}
        for member in world.members:
            name = f"of-{member.name}"
            address[name] = member.cluster.service(name, ["10.200.1.5"])
            member.cluster.export(name)
        everywhere(partial(has, port=80), "to be imported")
        for member in world.members:
            member.cluster.service(f"of-{member.name}", ["10.200.1.5", "10.200.1.6"], port=81)
        everywhere(partial(has, port=81), "to have the other port")
        for member in world.members:
            member.cluster.service(f"of-{member.name}", [], port=81)
        everywhere(without_endpoints, "to have no endpoints")
        for member in world.members:
            member.cluster.service(f"of-{member.name}", ["10.200.1.7"], port=81)
        everywhere(partial(has, port=81), "to be back")
        for member in world.members:
            member.cluster.delete(Kind.SERVICE_EXPORT, f"of-{member.name}", "default")
        everywhere(gone, "to be gone")
        for name in address:
            soon(lambda name=name: not world.on_leader(name), f"{name} to be gone from the leader")  # type: ignore[misc]

    def test_a_service_of_all_clusters_is_one(self, world: World) -> None:
        """Exports of the same name are one Service, with the endpoints of all others, whoever wrote them."""
        address = {member.name: member.cluster.service("shared", ["10.200.1.5"]) for member in world.members}
        for member in world.members:
            member.cluster.export("shared")

        everybody = set(address.values())

        def has_others(member: Member, but: str = "") -> bool:
            imported = member.cluster.imported("shared")
            other_addresses = {ip for name, ip in address.items() if name not in (member.name, but)}
            # Its own endpoints a cluster of ours has by its own Pods.
            return (
                imported is not None
                and imported[0] == 80
                and imported[1] & everybody - {address[member.name]} == other_addresses
            )

        for member in world.members:
            soon(partial(has_others, member), f"{member.name} to have all endpoints of the others")
        world.members[-1].cluster.delete(Kind.SERVICE_EXPORT, "shared", "default")
        for member in world.members:
            soon(partial(has_others, member, "south"), f"{member.name} to have none of south")
        for member in world.members[:-1]:
            member.cluster.delete(Kind.SERVICE_EXPORT, "shared", "default")
        for member in world.members:
            soon(partial(gone, member.cluster, "shared"), f"{member.name} not to have it any more")

    def test_a_gateway_moves(self, world: World) -> None:
        """Another Node becomes the gateway of each cluster, and back: the others learn its address."""
        for active, other in ((2, 1), (1, 2)):
            for member in world.members:
                member.cluster.node(f"node-{active}", member.gateway(active), gateway=True)
                member.cluster.node(f"node-{other}", member.gateway(other), gateway=False)
            for importing, exporting in world.pairs():
                moved = exporting.gateway(active)
                soon(
                    lambda h=importing, t=exporting, m=moved: h.cluster.gateways_of(t.name) == [m],  # type: ignore[misc]
                    f"{importing.name} to know the gateway {moved} of {exporting.name}",
                )

    def test_wireguard_keys_go_everywhere_and_are_sent_once(self, world: World) -> None:
        """A gateway's key reaches all; what CRDs of others drop is written once, told, and not written again."""
        keys = {member.name: _key(number) for number, member in enumerate(world.members)}
        members_of_ours = {member.name: member for member in world.members if member.ours}
        marks = world.area.audit.mark()
        for member in world.members:
            more = {"nextPublicKey": _key(9), "port": 51899} if member.ours else {}
            path = object_path(Kind.GATEWAY, HOME, "node-1")
            with closing(member.cluster.as_account(account(member.who), HOME)) as client:  # as its agent does
                body = {"wireGuard": {"publicKey": keys[member.name], **more}}
                client.request("PATCH", path, body=body, content_type="application/merge-patch+json")
        for here, other in world.pairs():
            soon(
                lambda h=here, o=other: _key_of(h.cluster, o.name) == keys[o.name],  # type: ignore[misc]
                f"{here.name} to have the key of {other.name}",
            )
        for name, member in members_of_ours.items():
            reconciled = partial(_reconciled, member)
            before = reconciled()
            soon(lambda r=reconciled, b=before: r() >= b + 3, "it to be looked at again")  # type: ignore[misc]
            info = names.cluster_info(name)
            user = f"{AREA}/member-{name}"
            written = [
                write for write in world.area.audit.writes(marks) if (write.user, write.name) == (user, info)
            ]
            assert [write.verb for write in written] == ["patch"]
            ready = member.cluster.get(Kind.CLUSTER_SET, SET, HOME)["status"]["conditions"][0]
            assert ready["status"] == "True"
            assert ("wireGuard" in ready.get("message", "")) is (world.leader != OURS), ready

    def test_what_changed_while_a_controller_was_away(self, world: World) -> None:
        """An export that is deleted meanwhile goes; imports that stay are not made anew.

        Antrea's members miss two things after their start: what is deleted on the leader in the ten seconds until
        they watch, and exports that are deleted here before they have sent them once more.
        """
        address = {}
        for member in world.members:
            for name in (f"kept-{member.name}", f"gone-{member.name}"):
                address[name] = member.cluster.service(name, ["10.200.1.5"])
                member.cluster.export(name)
        for here, other in world.pairs():
            for name in (f"kept-{other.name}", f"gone-{other.name}"):
                soon(partial(has, here.cluster, name, address[name]), f"{name} to be imported in {here.name}")
        uids = [_uid(here.cluster, f"kept-{other.name}") for here, other in world.pairs()]
        for away in ([one for one in world.members if one.ours], [one for one in world.members if not one.ours]):
            for member in away:
                member.end()
            for member in away:
                member.cluster.delete(Kind.SERVICE_EXPORT, f"gone-{member.name}", "default")
            mark = world.area.audit.mark()
            for member in away:
                member.run()
            for member in away:
                if not member.ours:
                    member.knows_its_exports(world.area, f"kept-{member.name}", mark)
            for here, other in world.pairs():
                if here not in away and other in away:
                    name = f"gone-{other.name}"
                    soon(partial(gone, here.cluster, name), f"{name} to go in {here.name}")
        for member in world.members:  # once this is there, all watch again
            address[f"late-{member.name}"] = member.cluster.service(f"late-{member.name}", ["10.200.1.5"])
            member.cluster.export(f"late-{member.name}")
        for here, other in world.pairs():
            for name in (f"kept-{other.name}", f"late-{other.name}"):
                soon(partial(has, here.cluster, name, address[name]), f"{name} to be imported in {here.name}")
        assert [_uid(here.cluster, f"kept-{other.name}") for here, other in world.pairs()] == uids
        for member in world.members:
            for name in (f"kept-{member.name}", f"late-{member.name}"):
                member.cluster.delete(Kind.SERVICE_EXPORT, name, "default")
        for here, other in world.pairs():
            for name in (f"kept-{other.name}", f"late-{other.name}"):
                soon(partial(gone, here.cluster, name), f"{name} to go in {here.name}")

    def test_members_leave_and_join_again(self, world: World) -> None:
        """What a member exported is gone everywhere and comes back with it, and so does what it imports."""
        east, *other_members = world.members
        address = {}
        for member in other_members:
            address[member.name] = member.cluster.service(f"stays-{member.name}", ["10.201.1.5"])
            member.cluster.export(f"stays-{member.name}")
        for member in other_members:
            name = f"stays-{member.name}"
            soon(partial(has, east.cluster, name, address[member.name]), f"{name} to be imported")
        for member in other_members:
            member.leave()
        for member in other_members:
            soon(partial(_not, world.on_leader, f"{member.name}-"), f"all of {member.name} to leave the leader")
            soon(partial(gone, east.cluster, f"stays-{member.name}"), "the import to be gone")
            soon(partial(_not, east.cluster.gateways_of, member.name), f"{member.name}'s gateways to be forgotten")
            announced = partial(world.area.get, Kind.MEMBER_CLUSTER_ANNOUNCE, names.announce(member.name), AREA)
            soon(partial(_not, announced), f"the announcement of {member.name} to go")
            if member.who.startswith("v2"):  # docs/antrea.md: since it has joined once, it imports nothing else
                member.end()
                member.run()
        world.join(other_members)
        heard = world.heartbeats()
        for member in other_members:
            name = f"stays-{member.name}"
            soon(partial(has, east.cluster, name, address[member.name]), f"{name} to be imported again")
        late = east.cluster.service("late", ["10.200.1.5"])
        east.cluster.export("late")
        for member in other_members:
            soon(partial(has, member.cluster, "late", late), f"{member.name} to import what is new")
        soon(lambda: all(world.heartbeats()[who] != heard[who] for who in heard), "another heartbeat of each")

    def test_nothing_stays_when_all_have_left(self, world: World) -> None:
        """Neither exports and imports on the leader, nor imports in a member of ours, nor anything that hangs."""
        for member in reversed(world.members):
            member.leave()
        soon(lambda: not world.area.items(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA), "the announcements to be gone")
        soon(lambda: not world.on_leader(""), "exports and imports to be gone")
        for member in world.members:
            soon(
                partial(_not, member.cluster.items, Kind.SERVICE_IMPORT, "default"), "imported Services to be gone"
            )
        world.area.delete(Kind.CLUSTER_SET, SET, AREA)
        soon(lambda: world.area.get(Kind.CLUSTER_SET, SET, AREA) is None, "the leader's ClusterSet to go")


def has(cluster: Cluster, name: str, address: str, port: int = 80) -> bool:
    """Tell whether a cluster has imported a Service with this one endpoint."""
    return cluster.imported(name) == (port, frozenset({address}))


def without_endpoints(cluster: Cluster, name: str, address: str = "") -> bool:
    """Tell whether nothing leads to a Service any more: Antrea's controllers delete it, ours keep it."""
    service = cluster.imported(name)
    return service is None or not service[1]


def gone(cluster: Cluster, name: str, address: str = "") -> bool:
    """Tell whether nothing of an import is left."""
    kinds = (Kind.SERVICE, names.imported(name)), (Kind.SERVICE_IMPORT, name)
    return all(cluster.get(kind, obj, "default") is None for kind, obj in kinds)


def _not(function: Callable[..., object], *arguments: object) -> bool:
    return not function(*arguments)


def _key(number: int) -> str:
    return base64.b64encode(bytes(range(number, number + 32))).decode()


def _key_of(cluster: Cluster, cluster_id: str) -> str | None:
    info = cluster.get(Kind.CLUSTER_INFO_IMPORT, names.cluster_info(cluster_id), HOME)
    key: str | None = info["spec"].get("wireGuard", {}).get("publicKey")
    return key


def _reconciled(member: Member) -> float:
    """Return how often a member of ours has looked at its ClusterInfo."""
    ours = member.controllers.ours["member"]
    return ours.metric("mcagent_controller_reconciles_total", 'reconciler="cluster-info-export"')


def _uid(cluster: Cluster, name: str) -> list[str]:
    made = (Kind.SERVICE, names.imported(name)), (Kind.SERVICE_IMPORT, name)
    return [cluster.get(kind, found, "default")["metadata"]["uid"] for kind, found in made]
