"""The cases of admission: one table for the webhook's rules and for `deploy/admission-policies.yaml`.

`tests/unit/test_admission.py` runs it against the webhook's rules, `tests/kube/suite/test_admission_policies.py`
against the policies on a real kube-apiserver. A case that only one of the two refuses has the reason. Cases that
need another configuration of the webhook than the default are in the webhook's suite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from mcagent.controller.admission.accounts import Accounts
from mcagent.controller.contract import names
from mcagent.kube.source import RawObject
from tests.admission_objects import (
    ACCOUNTS,
    AREA,
    KUBE,
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
from tests.antrea_objects import VERSIONS, written_by
from tests.unit.leader_world import announce, cluster_set

ADMIN, EAST, NORTH, MISSING = "kubernetes-admin", sa("east-sa"), sa("north-sa"), sa("missing")
OURS, ANTREAS = sa("mcagent-controller"), sa("antrea-mc-controller")
ARGO = sa("argocd-application-controller", "argocd")
GC = sa("generic-garbage-collector", "kube-system")
MANAGER = "system:kube-controller-manager"
NAMESPACES = sa("namespace-controller", "kube-system")


class Why(StrEnum):
    """Why only one of the two refuses, or is asked."""

    LOOKUP = "it depends on other objects: whom a ServiceAccount stands for, who holds an address, ..."
    HASH = "the name of a LabelIdentity export contains a SHA-1 hash, which CEL cannot compute"
    ADMINISTRATOR = "the webhook leaves administrators to RBAC; policies hold for every user"
    OLDER = "policies let go of an object that is older than they are, whoever updates it"
    STATUS = "the webhook is not asked about the status"
    API_SERVER = "the API server itself refuses the object, before any policy"
    IMPOSSIBLE = "no API server makes this request"


@dataclass(frozen=True)
class Case:
    """A request, and the answers of webhook and policies. About a DELETE only the webhook is asked."""

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
    def asks_policies(self) -> bool:
        """Tell whether policies are asked."""
        return self.operation != "DELETE" and self.why is not Why.IMPOSSIBLE


# --- ClusterSets --------------------------------------------------------------------------------------------

MEMBERS = World(sets=[a_set()], members=[announce("east", area=AREA)])
IDENTITY = "cannot be changed: it is leader1"
MEMBER_IDENTITY = "cannot be changed: it is east"
LEADER = "spec.leaders[0].clusterID cannot be changed"

CLUSTER_SETS = [
    Case("the first of a namespace", "CREATE", a_set(), user=ADMIN, world=World()),
    Case("a second one", "CREATE", a_set(), user=ADMIN, code=412, why=Why.LOOKUP),
    Case("one in another namespace", "CREATE", cluster_set("other"), user=ADMIN),
    Case("nothing changes", "UPDATE", a_set(), a_set(), ADMIN),
    Case("another cluster ID", "UPDATE", a_set("other"), a_set(), ADMIN, 412, IDENTITY, IDENTITY),
    Case("a cluster ID where there was none", "UPDATE", a_set(), a_set(""), ADMIN),
    Case("another leader", "UPDATE", a_set(leader="other"), a_set(), ADMIN, 412, LEADER, LEADER),
    Case(
        "another cluster ID of a member",
        "UPDATE",
        a_members_set("west"),
        a_members_set(),
        ADMIN,
        412,
        MEMBER_IDENTITY,
        MEMBER_IDENTITY,
    ),
    Case(
        "another leader of a member",
        "UPDATE",
        a_members_set(clusterID="x"),
        a_members_set(),
        ADMIN,
        412,
        LEADER,
        LEADER,
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
        yield Case(f"made by {name}", "CREATE", MOVED, None, sa(name, "kube-system"), accounts=KUBE)
        yield Case(f"moved by {name}", "UPDATE", MOVED, GATEWAY, sa(name, "kube-system"), accounts=KUBE)
    strangers = {
        **dict.fromkeys(
            (
                sa("mcagent-controller", "elsewhere"),
                sa("antrea-mc-controller", "elsewhere"),
                sa("mcagent-agent", "elsewhere"),
                sa("antrea-agent", "elsewhere"),
                sa("somebody", "kube-system"),
                sa("antrea-agent-2", "kube-system"),
            ),
            412,
        ),
        **dict.fromkeys(
            (ADMIN, "system:serviceaccount:kube-system", "system:serviceaccount:a:b:antrea-agent", ""), 400
        ),
    }
    for user, code in strangers.items():
        for operation, old in (("CREATE", None), ("UPDATE", GATEWAY)):
            why = None if user else Why.IMPOSSIBLE
            name = f"{operation} by {user or 'no user'}"
            yield Case(name, operation, MOVED, old, user, code, "", STRANGER, why, "node-1", accounts=KUBE)
    for name in ("mcagent-agent", "antrea-agent"):
        yield from _of_an_agent(name)
    for user, code in ((GC, 412), (MANAGER, 400)):
        yield Case(f"finalizer taken off by {user}", "UPDATE", GATEWAY, HELD_GATEWAY, user, accounts=KUBE)
        yield Case(f"finalizer added by {user}", "UPDATE", HELD_GATEWAY, GATEWAY, user, accounts=KUBE)
        for change, new in (("moved", MOVED), ("a key", KEYED)):
            name = f"{change}, by {user}"
            yield Case(name, "UPDATE", new, HELD_GATEWAY, user, code, "", COLLECTORS, accounts=KUBE)
    name = "finalizer taken off by the namespace controller, which deletes only"
    yield Case(name, "UPDATE", GATEWAY, HELD_GATEWAY, NAMESPACES, 412, "", STRANGER, accounts=KUBE)


def _of_an_agent(name: str) -> Iterator[Case]:
    user = sa(name, "kube-system")
    other, nameless = "the agent of Node node-2", "names no Node"
    other_node = f"{other} changes the Gateway of that Node only"
    for change, new, old, node, message, policy in (
        ("its key", KEYED, GATEWAY, "node-1", "", ""),
        ("its key, removed", GATEWAY, KEYED, "node-1", "", ""),
        ("the key of another Node", KEYED, GATEWAY, "node-2", other, other_node),
        ("a key, by a token without a Node", KEYED, GATEWAY, "", nameless, nameless),
        ("an address", MOVED, GATEWAY, "node-1", "not gatewayIP", AGENTS),
        ("key and address", KEYED | MOVED, GATEWAY, "node-1", "not gatewayIP", AGENTS),
        ("the Service CIDR", a_gateway(serviceCIDR="10.0.0.0/8"), GATEWAY, "node-1", "not serviceCIDR", AGENTS),
        (
            "key and Service CIDR",
            KEYED | {"serviceCIDR": "10.0.0.0/8"},
            GATEWAY,
            "node-1",
            "not serviceCIDR",
            AGENTS,
        ),
        ("labels", put(GATEWAY, "metadata.labels", {"a": "b"}), GATEWAY, "node-1", "not metadata.labels", AGENTS),
        (
            "key and labels",
            put(KEYED, "metadata.labels", {"a": "b"}),
            GATEWAY,
            "node-1",
            "not metadata.labels",
            AGENTS,
        ),
        (
            "annotations",
            put(GATEWAY, "metadata.annotations", {"a": "b"}),
            GATEWAY,
            "node-1",
            "not metadata.annotations",
            AGENTS,
        ),
        ("a finalizer", GATEWAY, HELD_GATEWAY, "node-1", "not metadata.finalizers", AGENTS),
        ("a new one", KEYED, None, "node-1", "only the controller creates Gateways", AGENTS),
    ):
        code, operation = 403 if message else 200, "UPDATE" if old else "CREATE"
        yield Case(
            f"{change}, by {name}", operation, new, old, user, code, message, policy, node=node, accounts=KUBE
        )
    yield Case(f"its status, by {name}", "UPDATE", LINKED, GATEWAY, user, why=Why.STATUS, node="node-1")
    yield Case(
        f"the status of another Node, by {name}",
        "UPDATE",
        LINKED,
        GATEWAY,
        user,
        policy=other_node,
        why=Why.STATUS,
        node="node-2",
    )


# --- MemberClusterAnnounces ---------------------------------------------------------------------------------

PAIR = World(accounts=[account("east-sa", "east"), account("east1-sa", "east-1")], sets=WORLD.sets)
NO_SET = World(accounts=ACCOUNTS)
WRONG_NAME = put(an_announce(), "metadata.name", "member-announce-from-wrong")
FIXED = "clusterID, clusterSetID and leaderClusterID cannot be changed"


def _beating(raw: RawObject) -> RawObject:
    return put(raw, "metadata.annotations", {names.HEARTBEAT_ANNOTATION: "2026-01-01T00:00:00Z"})


def _announces() -> Iterator[Case]:
    mine, peers, look = an_announce(), an_announce("west"), Why.LOOKUP
    of_set, of_leader = (an_announce("north", **{f: "other"}) for f in ("clusterSetID", "leaderClusterID"))
    yield Case("its own", "CREATE", mine)
    yield Case("to another ClusterSet", "CREATE", of_set, None, NORTH, 412, "unknown ClusterSet", why=look)
    yield Case("to another leader", "CREATE", of_leader, None, NORTH, 412, "leader", why=look)
    yield Case("unknown account", "CREATE", mine, None, sa("unknown"), 412, "not found", why=look)
    yield Case("for another cluster", "CREATE", peers, None, EAST, 403, "not permitted", why=look)
    yield Case("no set", "CREATE", mine, None, EAST, 412, "no ClusterSet", why=look, world=NO_SET)
    for field in ("clusterSetID", "leaderClusterID", "clusterID"):
        yield Case(f"{field} changes", "UPDATE", mine, mine | {field: "old"}, EAST, 412, field, FIXED)
    yield Case("heartbeat", "UPDATE", _beating(mine), mine)
    yield Case("heartbeat, nothing changes", "UPDATE", mine, mine)
    yield Case("no annotation", "CREATE", mine, None, sa("admin-sa"), 403, "not permitted", why=look)
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
    yield Case("wrong name", "CREATE", WRONG_NAME, None, EAST, 403, "must be", "must be member-announce-from-east")
    yield Case("wrong name, older than the rule", "UPDATE", _beating(WRONG_NAME), WRONG_NAME)
    yield Case("leaves", "DELETE", None, mine)
    yield Case("no account", "CREATE", mine, None, "system:user", 400, "ServiceAccount", why=look)
    yield Case("updates a peer's", "UPDATE", peers, peers, EAST, 403, why=look)
    yield Case("deletes a peer's", "DELETE", None, peers, EAST, 403)
    yield Case("our leader updates", "UPDATE", mine, mine, OURS)
    yield Case("Antrea's leader updates", "UPDATE", mine, mine, ANTREAS)
    yield Case("our leader deletes", "DELETE", None, mine, OURS)
    yield Case("a leader announces no cluster", "CREATE", mine, None, OURS, 412, "not found", why=look)
    yield Case(
        "a leader changes no ID either", "UPDATE", an_announce(clusterSetID="x"), mine, OURS, 412, "", FIXED
    )
    controller = sa("antrea-mc-controller", "kube-system")
    yield Case(
        "a controller of another namespace", "UPDATE", mine, mine, controller, 403, "not in namespace", why=look
    )
    namesake = sa("default", "kube-system")
    yield Case(
        "an account of the same name elsewhere", "CREATE", mine, None, namesake, 403, "not in namespace", why=look
    )
    yield Case("namespace goes", "DELETE", None, mine, NAMESPACES)
    yield Case("admin deletes", "DELETE", None, mine, ADMIN)
    yield Case("garbage collector deletes", "DELETE", None, mine, GC)
    yield Case("its account is gone already", "DELETE", None, mine, sa("unknown"), 412, "not found")
    yield Case("leaving, account gone", "DELETE", None, leaving(mine), sa("unknown"))
    yield Case("a stranger", "DELETE", None, mine, sa("thief", "elsewhere"), 403, "not in namespace")
    yield Case("a trusted account deletes", "DELETE", None, mine, ARGO)
    yield Case("a trusted account joins", "CREATE", mine, None, ARGO, 403, "no member", why=look)
    yield Case("admin takes a finalizer off", "UPDATE", mine, held_by(mine, "example.org/held"), "alice")
    yield Case("an admin is no member", "UPDATE", _beating(mine), mine, "alice", 400, why=look)
    yield Case("dash pair, shorter", "CREATE", mine, None, EAST, 403, "conflicts", why=look, world=PAIR)
    longer = an_announce("east-1")
    yield Case("dash pair, longer", "CREATE", longer, None, sa("east1-sa"), 403, "conflicts", why=look, world=PAIR)
    with_finalizer, changed = held_by(mine, "foregroundDeletion"), an_announce(clusterSetID="x")
    for user, code in ((GC, 403), (MANAGER, 400)):
        yield Case(f"finalizer taken off by {user}", "UPDATE", mine, with_finalizer, user)
        yield Case(f"ClusterSet ID, by {user}", "UPDATE", changed, with_finalizer, user, code, "", FIXED)
    yield Case("finalizer taken off by the namespace controller", "UPDATE", mine, with_finalizer, NAMESPACES)


# --- ResourceExports ----------------------------------------------------------------------------------------

NAME, LABELS = "the name must be <clusterID>", "the labels sourceClusterID, sourceKind"
TUPLE = "spec.namespace, spec.name and spec.kind of an export are immutable"
MARKS = "metadata.labels"
NO_ENDPOINTS = "spec.endpoints is missing"
NO_LABEL = "must be a valid DNS-1123 label"
INFO_ID, OTHER_INFO = "spec.clusterInfo.clusterID must be", "spec.clusterInfo.clusterID must be spec.clusterID"
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
            yield Case(foreign, "CREATE", new, None, sa("other"), 403, why=Why.LOOKUP, world=world)


def _legacy(raw: RawObject) -> RawObject:
    return held_by(raw, names.LEGACY_EXPORT_FINALIZER)


def _wrong_exports() -> Iterator[Case]:
    """Return what names, labels, payloads and DNS labels alone show."""
    service, info = a_service(), an_info()
    name = "metadata.name"
    for case_name, raw, path, value, message, policy in (
        ("wrong name", info, name, "x-clusterinfo", "name must be", NAME),
        ("a name of another member", service, name, "east-1-default-nginx-service", "name must be", NAME),
        ("a name without its cluster ID", service, name, "default-nginx-service", "name must be", NAME),
        ("a name of another Service", service, name, "east-default-other-service", "name must be", NAME),
        ("no cluster ID", service, "spec.clusterID", None, "spec.clusterID", NAME),
        ("ClusterInfo of a peer", info, "spec.clusterInfo.clusterID", "west", INFO_ID, OTHER_INFO),
        ("ClusterInfo without payload", info, "spec.clusterInfo", None, INFO_ID, OTHER_INFO),
        ("no Service payload", service, "spec.service", None, "spec.service", "spec.service is missing"),
        ("no Endpoints payload", an_endpoints(), "spec.endpoints", None, "spec.endpoints", NO_ENDPOINTS),
        ("namespace that is none", service, "spec.namespace", "default/ns", f"spec.namespace {NO_LABEL}", NAME),
        ("name that is none", service, "spec.name", "Nginx", f"spec.name {NO_LABEL}", NAME),
        ("label of another cluster", service, f"{MARKS}.sourceClusterID", "west", "sourceClusterID", LABELS),
        ("label of another kind", service, f"{MARKS}.sourceKind", "Endpoints", "sourceKind", LABELS),
        ("label of another name", service, f"{MARKS}.sourceName", "other", "sourceName", LABELS),
        ("label of another namespace", service, f"{MARKS}.sourceNamespace", "other", "sourceNamespace", LABELS),
        ("no labels", service, MARKS, None, "sourceClusterID", LABELS),
        ("ClusterInfo with half of its labels", info, MARKS, {"sourceClusterID": "east"}, "sourceKind", LABELS),
    ):
        yield Case(case_name, "CREATE", put(raw, path, value), None, EAST, 403, message, policy)
    dotted = a_service(target="a.b/nginx")
    yield Case(
        "namespace with a dot", "CREATE", dotted, None, EAST, 403, "DNS-1123 label", "must be DNS-1123 labels"
    )
    upper = put(a_service(target="De-fault/nginx"), "metadata.name", "east-de-fault-nginx-service")
    yield Case("upper case", "CREATE", upper, None, EAST, 403, "DNS-1123 label", NAME)
    renamed = put(service, "metadata.name", "by-hand")
    yield Case("wrong name, from an admin", "CREATE", renamed, None, "alice", 200, "", NAME, Why.ADMINISTRATOR)
    bare = put(service, "metadata.labels", None)
    yield Case("no labels, from an admin", "CREATE", bare, None, "alice", 200, "", LABELS, Why.ADMINISTRATOR)
    relabelled = put(service, "metadata.labels.sourceClusterID", "west")
    yield Case(
        "label changed to another cluster", "UPDATE", relabelled, service, EAST, 403, "sourceClusterID", LABELS
    )
    old, namesake = a_service(target="a/b-c"), a_service(target="a-b/c")
    yield Case("another Service under the same name", "UPDATE", namesake, old, EAST, 403, "immutable", TUPLE)
    identity = put(old, "spec.kind", "LabelIdentity")
    yield Case("becomes a LabelIdentity", "UPDATE", identity, old, EAST, 403, "immutable", NAME)
    becomes_service = put(info, "spec.kind", "Service")
    yield Case("becomes a Service", "UPDATE", becomes_service, info, EAST, 403, "immutable", NAME)
    yield Case(
        "older than the policies, by a member",
        "UPDATE",
        renamed,
        renamed,
        EAST,
        403,
        "name must be",
        why=Why.OLDER,
    )
    yield Case("older than the policies, by our leader", "UPDATE", held_by(renamed), renamed, OURS)
    label = put(a_label(), "metadata.name", "east-0000")
    yield Case("wrong hash", "CREATE", label, None, EAST, 403, "name must be", why=Why.HASH)
    odd = put(a_label(), "spec.labelIdentity.normalizedLabel", "pod:app=web")
    message = "spec.labelIdentity.normalizedLabel must be ns:<labels>&pod:<labels>"
    yield Case("a LabelIdentity without labels", "CREATE", odd, None, EAST, 403, message, why=Why.HASH)


def _exports_of_others() -> Iterator[Case]:
    """Return what depends on whom an account stands for."""
    info, peers, policy, look = an_info(), an_info("west"), a_policy(), Why.LOOKUP
    yield Case("updates a peer's", "UPDATE", peers, peers, EAST, 403, "another", why=look)
    claimed = put(peers, "spec.clusterID", "east")
    yield Case("takes a peer's over", "UPDATE", claimed, peers, EAST, 403, "another member", NAME)
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
    yield Case("for another cluster", "CREATE", peers, None, EAST, 403, "spec.clusterID", why=look)
    yield Case("a policy from a member", "CREATE", policy, None, EAST, 403, "not authorized", why=look)
    unbound = sa("admin-sa")
    yield Case(
        "a policy from an account of no cluster", "CREATE", policy, None, unbound, 403, "no cluster", why=look
    )
    yield Case("a policy from a trusted account", "CREATE", policy, None, ARGO)
    yield Case("a policy from an admin", "CREATE", policy, None, "alice")
    other_name = put(policy, "metadata.name", "any")
    yield Case("a policy of any name, from an admin", "CREATE", other_name, None, "alice")
    yield Case("a trusted account deletes", "DELETE", None, peers, ARGO)
    yield Case("an account of no cluster deletes", "DELETE", None, peers, unbound, 403, "no cluster")
    yield Case("namespace goes", "DELETE", None, peers, NAMESPACES)
    yield Case("garbage collector deletes", "DELETE", None, peers, GC)
    malformed = "system:serviceaccount:a:b:c"
    yield Case("neither an account nor a user", "CREATE", policy, None, malformed, 400, why=look)
    yield Case("no user", "CREATE", policy, None, "", 400, why=Why.IMPOSSIBLE)
    namesake = sa("east-sa", "elsewhere")
    name = "an account of the same name and ID elsewhere"
    yield Case(name, "CREATE", info, None, namesake, 403, "not in namespace", why=look)
    yield Case("no such account", "CREATE", info, None, MISSING, 412, "not found", why=look)
    released = held_by(peers)
    yield Case("our leader updates", "UPDATE", released, peers, OURS)
    yield Case("Antrea's leader updates", "UPDATE", released, peers, ANTREAS)
    yield Case("our leader deletes", "DELETE", None, peers, OURS)
    yield Case("a leader creates none", "CREATE", info, None, OURS, 412, "not found", why=look)
    yield Case("account gone, export leaving", "DELETE", None, leaving(an_info("south")), MISSING)
    yield Case("account gone, export staying", "DELETE", None, info, MISSING, 412, "not found")
    yield Case("empty annotation", "CREATE", info, None, sa("empty-sa"), 403, "empty", why=look)
    yield Case("takes the finalizer off", "UPDATE", NO_FINALIZER, info, EAST, 403, "finalizer", why=look)
    off = leaving(NO_FINALIZER)
    yield Case("takes it off, leaving", "UPDATE", off, leaving(info), EAST, 403, "finalizer", why=look)
    yield Case("without finalizer", "CREATE", NO_FINALIZER, None, EAST, 403, "finalizer", why=look)
    with_finalizer = held_by(info, names.EXPORT_FINALIZER, "foregroundDeletion")
    foreign = put(info, "spec.clusterID", "x")
    for user in (GC, MANAGER):
        yield Case(f"finalizer taken off by {user}", "UPDATE", info, with_finalizer, user)
        yield Case(f"cluster ID, by {user}", "UPDATE", foreign, with_finalizer, user, 403, "only finalizers", NAME)
    yield Case("finalizer taken off by the namespace controller", "UPDATE", info, with_finalizer, NAMESPACES)


# --- claims -------------------------------------------------------------------------------------------------

HELD = {
    "metadata": {"name": "west-clusterinfo", "namespace": AREA, "creationTimestamp": "2024-01-01T00:00:00Z"},
    "spec": {
        "kind": "ClusterInfo",
        "clusterinfo": {
            "clusterID": "west",
            "serviceCIDR": "10.2.0.0/16",
            "gatewayInfos": [{"gatewayIP": "1.2.3.4"}],
        },
    },
}
CLAIMED = World(accounts=ACCOUNTS, sets=[cluster_set(AREA, SET, "leader1")], imports=[HELD])


def _claims() -> Iterator[Case]:
    """Return claims that conflict: in vain they are refused, unless the request brings something else."""
    plain, conflict = networks(), networks("10.2.9.0/24")
    elsewhere = networks("10.2.9.0/24", gateway="192.168.9.2")
    nothing = networks(gateway="1.2.3.4", service_cidr="10.2.0.0/17")
    holder = "cluster west has had Service CIDR 10.2.0.0/16 since 2024"
    gateway = "gateway 1.2.3.4 is not granted: cluster west"
    for name, new, old, code, message in (
        ("a new claim", networks("10.3.0.0/16"), plain, 200, ""),
        ("a claim that another cluster has", conflict, plain, 409, holder),
        ("a claim that is not allowed", networks("1.2.3.0/24"), plain, 403, "allowedClusterCIDRs"),
        ("a failover with a conflict", elsewhere, plain, 200, ""),
        ("an old conflict, and a failover", elsewhere, conflict, 200, ""),
        ("an old conflict", conflict, conflict, 200, ""),
        ("a new cluster with a conflict: the rest of it is good", conflict, None, 200, ""),
        ("a new cluster that only claims what others have", nothing, None, 409, gateway),
    ):
        why = Why.LOOKUP if message else None
        yield Case(name, "UPDATE" if old else "CREATE", new, old, EAST, code, message, why=why, world=CLAIMED)


CASES = [
    *CLUSTER_SETS,
    *_gateways(),
    *_announces(),
    *_exports(),
    *_wrong_exports(),
    *_exports_of_others(),
    *_claims(),
]
