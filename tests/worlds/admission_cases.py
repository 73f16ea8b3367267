"""The cases of admission: one table for the webhook's rules and for `deploy/admission-policies.yaml`.

`tests/unit/test_admission.py` runs it against the webhook's rules as functions, and
`tests/kube/suite/test_admission_policies.py` against policies and webhook on a real kube-apiserver. Each rule has
one place, so one of the two allows what the other refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from mcagent.controller.admission.accounts import Accounts
from mcagent.controller.contract import names
from mcagent.controller.contract.cluster_uid import CLUSTER_UID_ANNOTATION
from mcagent.kube.source import RawObject
from tests.worlds.admission_objects import (
    ACCOUNTS,
    AREA,
    OWN,
    SET,
    WORLD,
    World,
    a_gateway,
    a_label,
    a_members_set,
    a_policy,
    a_service,
    a_set,
    account,
    an_announce,
    an_endpoints,
    an_info,
    held_by,
    leaving,
    networks,
    put,
    sa,
)
from tests.worlds.antrea_objects import VERSIONS, written_by
from tests.worlds.leader_world import announce, cluster_set

ADMIN, EAST, NORTH, MISSING = "kubernetes-admin", sa("east-sa"), sa("north-sa"), sa("missing")
OURS, ANTREAS = sa("mcagent-controller"), sa("antrea-mc-controller")
ARGO = sa("argocd-application-controller", "argocd")
GC = sa("generic-garbage-collector", "kube-system")
MANAGER = "system:kube-controller-manager"
NAMESPACES = sa("namespace-controller", "kube-system")


class Why(StrEnum):
    """Why a case is an exception."""

    TWO_RULES = "it breaks a rule of the webhook and a rule of the policies"
    STATUS = "the webhook is not asked about the status"
    API_SERVER = "the API server itself refuses the object, before any policy"
    IMPOSSIBLE = "no API server makes this request"


@dataclass(frozen=True)
class Case:
    """A request, and the answers of webhook and policies. Policies are not asked about a DELETE."""

    name: str
    operation: str
    new: RawObject | None
    old: RawObject | None = None
    user: str = EAST
    code: int = 200  # the webhook's answer; 200: allowed
    message: str = ""  # a part of the webhook's message
    policy: str = ""  # a part of the message of the policy that refuses; "": allowed
    why: Why | None = None
    node: str = ""  # that the user's token names
    world: World = WORLD
    accounts: Accounts = OWN

    @property
    def subject(self) -> RawObject:
        """Return the object that the request is about."""
        return self.new or self.old or {}

    @property
    def title(self) -> str:
        """Return the kind of the object and the name."""
        return f"{self.subject['kind']}: {self.name}"

    @property
    def asks_webhook(self) -> bool:
        """Tell whether the webhook is asked."""
        return self.why is not Why.STATUS

    @property
    def is_possible(self) -> bool:
        """Tell whether an API server can be asked for it."""
        return self.why is not Why.IMPOSSIBLE


# --- ClusterSets --------------------------------------------------------------------------------------------

MEMBERS = World(sets=[a_set()], members=[announce("east", area=AREA)])
IDENTITY = "cannot be changed: it is leader1"
MEMBER_IDENTITY = "cannot be changed: it is east"
LEADER = "spec.leaders[0].clusterID cannot be changed"

CLUSTER_SETS = [
    Case("the first of a namespace", "CREATE", a_set(), user=ADMIN, world=World()),
    Case("a second one", "CREATE", a_set(), user=ADMIN, code=412),
    Case("one in another namespace", "CREATE", cluster_set("other"), user=ADMIN),
    Case("nothing changes", "UPDATE", a_set(), a_set(), ADMIN),
    Case("another cluster ID", "UPDATE", a_set("other"), a_set(), ADMIN, policy=IDENTITY),
    Case("a cluster ID where there was none", "UPDATE", a_set(), a_set(""), ADMIN),
    Case("another leader", "UPDATE", a_set(leader="other"), a_set(), ADMIN, policy=LEADER),
    Case(
        "another cluster ID of a member",
        "UPDATE",
        a_members_set("west"),
        a_members_set(),
        ADMIN,
        policy=MEMBER_IDENTITY,
    ),
    Case(
        "another leader of a member",
        "UPDATE",
        a_members_set(clusterID="x"),
        a_members_set(),
        ADMIN,
        policy=LEADER,
    ),
    Case(
        "a leader that moves",
        "UPDATE",
        a_members_set(server="https://m:6443", secret="t2"),
        a_members_set(),
        ADMIN,
    ),
    Case("the leader's, with members", "DELETE", None, a_set(), ADMIN, 412, "still members", world=MEMBERS),
    Case("the leader's, without members", "DELETE", None, a_set(), ADMIN),
    Case("a member's", "DELETE", None, a_members_set(), ADMIN, world=MEMBERS),
]

# --- Gateways -----------------------------------------------------------------------------------------------

GATEWAY = a_gateway()
KEYED = a_gateway(wireGuard={"publicKey": "k"})
MOVED = a_gateway(gatewayIP="10.0.0.9")
LINKED = a_gateway(status={"links": [{"clusterID": "west", "live": 1, "tunnels": 2}]})
HELD_GATEWAY = held_by(GATEWAY, "foregroundDeletion")
STRANGER = "only the controllers and agents"
AGENTS = "changes the field wireGuard of a Gateway, and nothing else"
COLLECTORS = "the garbage collector changes finalizers and owners"


def _gateways() -> Iterator[Case]:
    for name in ("antrea-mc-controller", "mcagent-controller"):
        yield Case(f"made by {name}", "CREATE", MOVED, user=sa(name, "kube-system"))
        yield Case(f"moved by {name}", "UPDATE", MOVED, GATEWAY, sa(name, "kube-system"))
    for user in (
        sa("mcagent-controller", "elsewhere"),
        sa("antrea-mc-controller", "elsewhere"),
        sa("mcagent-agent", "elsewhere"),
        sa("antrea-agent", "elsewhere"),
        sa("somebody", "kube-system"),
        sa("antrea-agent-2", "kube-system"),
        ADMIN,
        "system:serviceaccount:kube-system",
        "system:serviceaccount:a:b:antrea-agent",
    ):
        for operation, old in (("CREATE", None), ("UPDATE", GATEWAY)):
            yield Case(f"{operation} by {user}", operation, MOVED, old, user, policy=STRANGER, node="node-1")
    for name in ("mcagent-agent", "antrea-agent"):
        yield from _of_an_agent(name)
    for user in (GC, MANAGER):
        yield Case(f"finalizer taken off by {user}", "UPDATE", GATEWAY, HELD_GATEWAY, user)
        yield Case(f"finalizer added by {user}", "UPDATE", HELD_GATEWAY, GATEWAY, user)
        yield Case(f"moved, by {user}", "UPDATE", MOVED, HELD_GATEWAY, user, policy=COLLECTORS)
        yield Case(f"a key, by {user}", "UPDATE", KEYED, HELD_GATEWAY, user, policy=COLLECTORS)
    name = "finalizer taken off by the namespace controller, which deletes only"
    yield Case(name, "UPDATE", GATEWAY, HELD_GATEWAY, NAMESPACES, policy=STRANGER)


def _of_an_agent(name: str) -> Iterator[Case]:
    user = sa(name, "kube-system")
    other_node = "the agent of Node node-2 changes the Gateway of that Node only"
    for change, new, old, node, policy in (
        ("its key", KEYED, GATEWAY, "node-1", ""),
        ("its key, removed", GATEWAY, KEYED, "node-1", ""),
        ("the key of another Node", KEYED, GATEWAY, "node-2", other_node),
        ("a key, by a token without a Node", KEYED, GATEWAY, "", "names no Node"),
        ("an address", MOVED, GATEWAY, "node-1", AGENTS),
        ("key and address", KEYED | MOVED, GATEWAY, "node-1", AGENTS),
        ("the Service CIDR", a_gateway(serviceCIDR="10.0.0.0/8"), GATEWAY, "node-1", AGENTS),
        ("key and Service CIDR", KEYED | {"serviceCIDR": "10.0.0.0/8"}, GATEWAY, "node-1", AGENTS),
        ("labels", put(GATEWAY, "metadata.labels", {"a": "b"}), GATEWAY, "node-1", AGENTS),
        ("key and labels", put(KEYED, "metadata.labels", {"a": "b"}), GATEWAY, "node-1", AGENTS),
        ("annotations", put(GATEWAY, "metadata.annotations", {"a": "b"}), GATEWAY, "node-1", AGENTS),
        ("a finalizer", GATEWAY, HELD_GATEWAY, "node-1", AGENTS),
        ("a new one", KEYED, None, "node-1", AGENTS),
    ):
        operation = "UPDATE" if old else "CREATE"
        yield Case(f"{change}, by {name}", operation, new, old, user, policy=policy, node=node)
    yield Case(f"its status, by {name}", "UPDATE", LINKED, GATEWAY, user, why=Why.STATUS, node="node-1")
    title = f"the status of another Node, by {name}"
    yield Case(title, "UPDATE", LINKED, GATEWAY, user, policy=other_node, why=Why.STATUS, node="node-2")


# --- MemberClusterAnnounces ---------------------------------------------------------------------------------

PAIR = World(accounts=[account("east-sa", "east"), account("east1-sa", "east-1")], sets=WORLD.sets)
NO_SET = World(accounts=ACCOUNTS)
WRONG_NAME = put(an_announce(), "metadata.name", "member-announce-from-wrong")
FIXED = "clusterID, clusterSetID and leaderClusterID cannot be changed"


def _beating(raw: RawObject) -> RawObject:
    return put(raw, "metadata.annotations", {names.HEARTBEAT_ANNOTATION: "2026-01-01T00:00:00Z"})


def _announces() -> Iterator[Case]:
    mine, peers = an_announce(), an_announce("west")
    of_set, of_leader = (an_announce("north", **{f: "other"}) for f in ("clusterSetID", "leaderClusterID"))
    yield Case("its own", "CREATE", mine)
    yield Case("to another ClusterSet", "CREATE", of_set, None, NORTH, 412, "unknown ClusterSet")
    yield Case("to another leader", "CREATE", of_leader, None, NORTH, 412, "leader")
    yield Case("unknown account", "CREATE", mine, None, sa("unknown"), 412, "not found")
    yield Case("for another cluster", "CREATE", peers, None, EAST, 403, "not permitted")
    yield Case("no set", "CREATE", mine, None, EAST, 412, "no ClusterSet", world=NO_SET)
    for field in ("clusterSetID", "leaderClusterID", "clusterID"):
        yield Case(f"{field} changes", "UPDATE", mine | {field: "new"}, mine, policy=FIXED)
    claimed = peers | {"clusterID": "east"}
    yield Case("takes a peer's over", "UPDATE", claimed, peers, EAST, 403, "not permitted", FIXED, Why.TWO_RULES)
    yield Case("heartbeat", "UPDATE", _beating(mine), mine)
    yield Case("heartbeat, nothing changes", "UPDATE", mine, mine)
    first, second = (
        put(mine, "metadata.annotations", {CLUSTER_UID_ANNOTATION: uid}) for uid in ("uid-1", "uid-2")
    )
    yield Case("the UID of its cluster, for the first time", "UPDATE", first, mine)
    yield Case("the leader removes the UID", "UPDATE", mine, first, OURS)
    yield Case(
        "the UID of another cluster", "UPDATE", second, first, policy="is that of the cluster with UID uid-1"
    )
    yield Case("no annotation", "CREATE", mine, None, sa("admin-sa"), 403, "not permitted")
    yield Case(
        "empty annotation",
        "CREATE",
        an_announce(""),
        None,
        sa("empty-sa"),
        403,
        "not permitted",
        "metadata.name: Invalid value",
        Why.API_SERVER,
    )
    yield Case("wrong name", "CREATE", WRONG_NAME, policy="metadata.name must be member-announce-from-east")
    yield Case("wrong name, older than the rule", "UPDATE", _beating(WRONG_NAME), WRONG_NAME)
    yield Case("leaves", "DELETE", None, mine)
    yield Case("no account", "CREATE", mine, None, "system:user", 400, "ServiceAccount")
    yield Case("updates a peer's", "UPDATE", peers, peers, EAST, 403)
    yield Case("deletes a peer's", "DELETE", None, peers, EAST, 403)
    yield Case("our leader updates", "UPDATE", mine, mine, OURS)
    yield Case("Antrea's leader updates", "UPDATE", mine, mine, ANTREAS)
    yield Case("our leader deletes", "DELETE", None, mine, OURS)
    yield Case("a leader announces no cluster", "CREATE", mine, None, OURS, 412, "not found")
    yield Case("a leader changes no ID either", "UPDATE", an_announce(clusterSetID="x"), mine, OURS, policy=FIXED)
    controller = sa("antrea-mc-controller", "kube-system")
    yield Case("a controller of another namespace", "UPDATE", mine, mine, controller, 403, "not in namespace")
    namesake = sa("default", "kube-system")
    yield Case("an account of the same name elsewhere", "CREATE", mine, None, namesake, 403, "not in namespace")
    yield Case("namespace goes", "DELETE", None, mine, NAMESPACES)
    yield Case("admin deletes", "DELETE", None, mine, ADMIN)
    yield Case("garbage collector deletes", "DELETE", None, mine, GC)
    yield Case("its account is gone already", "DELETE", None, mine, sa("unknown"), 412, "not found")
    held_announcement = leaving(held_by(mine, "example.org/held"))
    yield Case("leaving, account gone", "DELETE", None, held_announcement, sa("unknown"))
    yield Case("a stranger", "DELETE", None, mine, sa("thief", "elsewhere"), 403, "not in namespace")
    yield Case("a trusted account deletes", "DELETE", None, mine, ARGO)
    yield Case("a trusted account joins", "CREATE", mine, None, ARGO, 403, "no member")
    yield Case("admin takes a finalizer off", "UPDATE", mine, held_by(mine, "example.org/held"), "alice")
    yield Case("an admin is no member", "UPDATE", _beating(mine), mine, "alice", 400)
    yield Case("dash pair, shorter", "CREATE", mine, None, EAST, 403, "conflicts", world=PAIR)
    longer = an_announce("east-1")
    yield Case("dash pair, longer", "CREATE", longer, None, sa("east1-sa"), 403, "conflicts", world=PAIR)
    with_finalizer, changed = held_by(mine, "foregroundDeletion"), an_announce(clusterSetID="x")
    for user, code in ((GC, 403), (MANAGER, 400)):
        yield Case(f"finalizer taken off by {user}", "UPDATE", mine, with_finalizer, user)
        title = f"ClusterSet ID, by {user}"
        yield Case(title, "UPDATE", changed, with_finalizer, user, code, "", FIXED, Why.TWO_RULES)
    yield Case("finalizer taken off by the namespace controller", "UPDATE", mine, with_finalizer, NAMESPACES)


# --- ResourceExports ----------------------------------------------------------------------------------------

TUPLE = "spec.namespace, spec.name and spec.kind of an export cannot be changed"
MARKS = "metadata.labels"
INFO_ID = "spec.clusterInfo.clusterID must be east, the spec.clusterID"


def name_of(name: str) -> str:
    """Return the policy's message about the name of an export."""
    return f"metadata.name must be {name}, as the spec says"


def labels_of(cluster: str = "east", kind: str = "Service") -> str:
    """Return the policy's message about the labels of an export."""
    return f"metadata.labels must have sourceClusterID: {cluster} and sourceKind: {kind}, as the spec says"


NGINX, INFO = name_of("east-default-nginx-service"), name_of("east-clusterinfo")
SOURCE = "metadata.labels must have sourceNamespace: default and sourceName: nginx, as the spec says"
NO_FINALIZER = held_by(an_info())


def _exports() -> Iterator[Case]:
    yield Case("ClusterInfo", "CREATE", an_info())
    yield Case("Service", "CREATE", a_service())
    yield Case("Endpoints", "CREATE", an_endpoints())
    yield Case("LabelIdentity, without finalizer", "CREATE", a_label())
    yield Case("updates its own", "UPDATE", an_info(), an_info())
    yield Case("deletes its own", "DELETE", None, an_info())
    yield Case("ClusterInfo of Antrea before 2.7", "CREATE", put(an_info(), "metadata.labels", None))
    yield Case("legacy finalizer", "CREATE", _legacy(a_service()))
    yield Case("finalizer stays", "UPDATE", a_service(), a_service())
    yield Case("legacy stays", "UPDATE", _legacy(a_service()), _legacy(a_service()))
    yield Case("same Service", "UPDATE", a_service(target="a/b-c"), a_service(target="a/b-c"))
    ports = [{"name": "http", "port": 81, "protocol": "TCP"}]
    yield Case("new ports", "UPDATE", put(a_service(), "spec.service.serviceSpec.ports", ports), a_service())
    moved = put(an_info(), "spec.namespace", "elsewhere")
    yield Case("ClusterInfo from another namespace", "UPDATE", moved, an_info())
    pair = a_service(target="1-default/nginx")
    yield Case("a name that east-1 could have: no pair can join", "CREATE", pair)
    for version in VERSIONS:
        world = World(accounts=[account("mine", "south"), account("other", "west")], sets=[a_set()])
        for name, raw in written_by(version, AREA, SET).items():
            new = raw | {"leaderClusterID": "leader1"} if "leaderClusterID" in raw else raw
            yield Case(f"{name} of {version}", "CREATE", new, None, sa("mine"), world=world)
            foreign = f"{name} of {version}, by another member"
            yield Case(foreign, "CREATE", new, None, sa("other"), 403, world=world)


def _legacy(raw: RawObject) -> RawObject:
    return held_by(raw, names.LEGACY_EXPORT_FINALIZER)


def _wrong_exports() -> Iterator[Case]:
    """Return what names, labels, payloads and DNS labels alone show."""
    service, info, label = a_service(), an_info(), a_label()
    no_namespace, no_name = "spec.namespace must be a DNS-1123 label", "spec.name must be a DNS-1123 label"
    other_service = name_of("east-default-other-service")
    for name, raw, path, value, policy in (
        ("wrong name", info, "metadata.name", "x-clusterinfo", INFO),
        ("a name of another member", service, "metadata.name", "east-1-default-nginx-service", NGINX),
        ("a name without its cluster ID", service, "metadata.name", "default-nginx-service", NGINX),
        ("a name of another Service", service, "spec.name", "other", other_service),
        ("ClusterInfo of a peer", info, "spec.clusterInfo.clusterID", "west", INFO_ID),
        ("ClusterInfo without payload", info, "spec.clusterInfo", None, INFO_ID),
        ("no Service payload", service, "spec.service", None, "spec.service must be set"),
        ("no Endpoints payload", an_endpoints(), "spec.endpoints", None, "spec.endpoints must be set"),
        ("namespace that is none", service, "spec.namespace", "default/ns", no_namespace),
        ("name that is none", service, "spec.name", "Nginx", no_name),
        ("label of another cluster", service, f"{MARKS}.sourceClusterID", "west", labels_of()),
        ("label of another kind", service, f"{MARKS}.sourceKind", "Endpoints", labels_of()),
        ("label of another name", service, f"{MARKS}.sourceName", "other", SOURCE),
        ("label of another namespace", service, f"{MARKS}.sourceNamespace", "other", SOURCE),
        ("no labels", service, MARKS, None, labels_of()),
        ("half of its labels", info, MARKS, {"sourceClusterID": "east"}, labels_of(kind="ClusterInfo")),
        ("an empty label", info, MARKS, {"sourceClusterID": ""}, labels_of(kind="ClusterInfo")),
        ("a LabelIdentity without labels of its source", label, MARKS, None, labels_of(kind="LabelIdentity")),
        ("without finalizer", info, "metadata.finalizers", None, "metadata.finalizers must have"),
        ("with other finalizers", service, "metadata.finalizers", ["a/b"], "metadata.finalizers must have"),
    ):
        yield Case(name, "CREATE", put(raw, path, value), policy=policy)
    no_cluster, unnamed = put(service, "spec.clusterID", None), name_of("-default-nginx-service")
    message = "spec.clusterID must be east"
    yield Case("no cluster ID", "CREATE", no_cluster, None, EAST, 403, message, unnamed, Why.TWO_RULES)
    yield Case("namespace with a dot", "CREATE", a_service(target="a.b/nginx"), policy=no_namespace)
    upper = put(a_service(target="De-fault/nginx"), "metadata.name", "east-de-fault-nginx-service")
    yield Case("upper case", "CREATE", upper, policy=no_namespace)
    renamed = put(service, "metadata.name", "by-hand")
    yield Case("wrong name, from an admin", "CREATE", renamed, user="alice", policy=NGINX)
    yield Case("no labels, from an admin", "CREATE", put(service, MARKS, None), user="alice", policy=labels_of())
    relabelled = put(service, f"{MARKS}.sourceClusterID", "west")
    yield Case("label changed to another cluster", "UPDATE", relabelled, service, policy=labels_of())
    old, namesake = a_service(target="a/b-c"), a_service(target="a-b/c")
    yield Case("another Service under the same name", "UPDATE", namesake, old, policy=TUPLE)
    identity, no_label = put(old, "spec.kind", "LabelIdentity"), "spec.labelIdentity"
    yield Case("becomes a LabelIdentity", "UPDATE", identity, old, EAST, 403, no_label, TUPLE, Why.TWO_RULES)
    yield Case("becomes a Service", "UPDATE", put(info, "spec.kind", "Service"), info, policy=TUPLE)
    yield Case("older than the policies, by a member", "UPDATE", renamed, renamed)
    yield Case("older than the policies, by our leader", "UPDATE", held_by(renamed), renamed, OURS)
    wrong_hash = put(label, "metadata.name", "east-0000")
    yield Case("wrong hash", "CREATE", wrong_hash, None, EAST, 403, "metadata.name must be east-")
    odd = put(label, "spec.labelIdentity.normalizedLabel", "pod:app=web")
    message = "spec.labelIdentity.normalizedLabel must be ns:<labels>&pod:<labels>"
    yield Case("a LabelIdentity without labels", "CREATE", odd, None, EAST, 403, message)


def _exports_of_others() -> Iterator[Case]:
    """Return what depends on whom an account stands for."""
    info, peers, policy = an_info(), an_info("west"), a_policy()
    yield Case("updates a peer's", "UPDATE", peers, peers, EAST, 403, "another")
    claimed = put(peers, "spec.clusterID", "east")
    yield Case("takes a peer's over", "UPDATE", claimed, peers, EAST, 403, "another member", INFO, Why.TWO_RULES)
    yield Case(
        "takes a peer's over, with the name",
        "UPDATE",
        info,
        peers,
        EAST,
        403,
        "another member",
        why=Why.IMPOSSIBLE,
    )
    yield Case("deletes a peer's", "DELETE", None, peers, EAST, 403, "another member")
    yield Case("for another cluster", "CREATE", peers, None, EAST, 403, "spec.clusterID")
    yield Case("a policy from a member", "CREATE", policy, None, EAST, 403, "not authorized")
    unbound = sa("admin-sa")
    yield Case("a policy from an account of no cluster", "CREATE", policy, None, unbound, 403, "no cluster")
    yield Case("a policy from a trusted account", "CREATE", policy, None, ARGO)
    yield Case("a policy from an admin", "CREATE", policy, None, "alice")
    other_name = put(policy, "metadata.name", "any")
    yield Case("a policy of any name, from an admin", "CREATE", other_name, None, "alice")
    yield Case("a trusted account deletes", "DELETE", None, peers, ARGO)
    yield Case("an account of no cluster deletes", "DELETE", None, peers, unbound, 403, "no cluster")
    yield Case("namespace goes", "DELETE", None, peers, NAMESPACES)
    yield Case("garbage collector deletes", "DELETE", None, peers, GC)
    malformed = "system:serviceaccount:a:b:c"
    yield Case("neither an account nor a user", "CREATE", policy, None, malformed, 400)
    yield Case("no user", "CREATE", policy, None, "", 400, why=Why.IMPOSSIBLE)
    namesake = sa("east-sa", "elsewhere")
    name = "an account of the same name and ID elsewhere"
    yield Case(name, "CREATE", info, None, namesake, 403, "not in namespace")
    yield Case("no such account", "CREATE", info, None, MISSING, 412, "not found")
    released = held_by(peers)
    yield Case("our leader updates", "UPDATE", released, peers, OURS)
    yield Case("Antrea's leader updates", "UPDATE", released, peers, ANTREAS)
    yield Case("our leader deletes", "DELETE", None, peers, OURS)
    yield Case("a leader creates none", "CREATE", info, None, OURS, 412, "not found")
    yield Case("account gone, export leaving", "DELETE", None, leaving(an_info("south")), MISSING)
    yield Case("account gone, export staying", "DELETE", None, info, MISSING, 412, "not found")
    yield Case("empty annotation", "CREATE", info, None, sa("empty-sa"), 403, "empty")
    yield Case("takes the finalizer off", "UPDATE", NO_FINALIZER, info, EAST, 403, "finalizer")
    off = leaving(NO_FINALIZER)
    yield Case("takes it off, leaving", "UPDATE", off, leaving(info), EAST, 403, "finalizer")
    with_finalizer = held_by(info, names.EXPORT_FINALIZER, "foregroundDeletion")
    foreign = put(info, "spec.clusterID", "x")
    for user in (GC, MANAGER):
        yield Case(f"finalizer taken off by {user}", "UPDATE", info, with_finalizer, user)
        title, unnamed = f"cluster ID, by {user}", name_of("x-clusterinfo")
        yield Case(title, "UPDATE", foreign, with_finalizer, user, 403, "only finalizers", unnamed, Why.TWO_RULES)
    yield Case("finalizer taken off by the namespace controller", "UPDATE", info, with_finalizer, NAMESPACES)


# --- claims -------------------------------------------------------------------------------------------------

HELD = {
    "metadata": {
        "name": "west-clusterinfo",
        "namespace": AREA,
        "creationTimestamp": "2024-01-01T00:00:00Z",
        "annotations": {names.PROVED_ANNOTATION: "1.2.3.4"},
    },
    "spec": {
        "kind": "ClusterInfo",
        "clusterinfo": {
            "clusterID": "west",
            "serviceCIDR": "10.2.0.0/16",
            "gatewayInfos": [{"gatewayIP": "1.2.3.4"}, {"gatewayIP": "1.2.3.5"}],
        },
    },
}
CLAIMED = World(accounts=ACCOUNTS, sets=[cluster_set(AREA, SET, "leader1")], imports=[HELD])


def _claims() -> Iterator[Case]:
    """Return claims that conflict: in vain they are refused, unless the request brings something else."""
    plain, conflict = networks(), networks("10.2.9.0/24")
    elsewhere = networks("10.2.9.0/24", gateway="192.168.9.2")
    nothing = networks(gateway="10.2.200.4", service_cidr="10.2.0.0/17")
    disputed = networks(gateway="1.2.3.4", service_cidr="10.2.0.0/17")
    holder = "cluster west has had Service CIDR 10.2.0.0/16 since 2024"
    gateway = "gateway 10.2.200.4 is not granted: cluster west"
    for name, new, old, code, message in (
        ("a new claim", networks("10.3.0.0/16"), plain, 200, ""),
        ("a claim that another cluster has", conflict, plain, 409, holder),
        ("a claim that is not allowed", networks("1.2.3.0/24"), plain, 403, "allowedClusterCIDRs"),
        ("a failover with a conflict", elsewhere, plain, 200, ""),
        ("an old conflict, and a failover", elsewhere, conflict, 200, ""),
        ("an old conflict", conflict, conflict, 200, ""),
        ("a new cluster with a conflict: the rest of it is good", conflict, None, 200, ""),
        ("a new cluster that only claims what others have", nothing, None, 409, gateway),
        ("a gateway that another cluster has: the ledger decides who answers", disputed, None, 200, ""),
    ):
        yield Case(name, "UPDATE" if old else "CREATE", new, old, EAST, code, message, world=CLAIMED)


CASES = [
    *CLUSTER_SETS,
    *_gateways(),
    *_announces(),
    *_exports(),
    *_wrong_exports(),
    *_exports_of_others(),
    *_claims(),
]
