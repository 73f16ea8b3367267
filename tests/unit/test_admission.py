"""Admission rules: every case of the contract's webhooks (section 8.3), and more."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.config.reader import ConfigError
from mcagent.controller.admission import Decision, accounts_of, mutate, review
from mcagent.controller.admission.accounts import NODE_CLAIM, Accounts
from mcagent.controller.admission.identity import ambiguous_with
from mcagent.controller.config import Role, load
from mcagent.controller.contract import names
from mcagent.controller.contract.cidr_claims import GRANTED
from mcagent.controller.settings import MemberLimits
from mcagent.kube.source import RawObject
from tests.antrea_objects import VERSIONS, written_by
from tests.unit.leader_world import announce, cluster_info, cluster_set, endpoints, export, service

AREA = "mcs1"
SET = "clusterset1"
Change = Callable[[RawObject], None]


def account(name: str, cluster: str | None = None, namespace: str = AREA) -> RawObject:
    """Return a ServiceAccount, bound to a cluster if one is given."""
    annotations = {} if cluster is None else {names.CLUSTER_ID_ANNOTATION: cluster}
    return {"metadata": {"name": name, "namespace": namespace, "annotations": annotations}}


@dataclass(frozen=True, kw_only=True)
class World:
    """What a review may look up."""

    accounts: Sequence[RawObject] = field(default_factory=list)
    sets: Sequence[RawObject] = field(default_factory=list)
    members: Sequence[RawObject] = field(default_factory=list)
    limits: MemberLimits = field(default_factory=MemberLimits)
    exports: Mapping[tuple[str, str], int] = field(default_factory=dict)  # how many, by cluster and kind
    imports: Sequence[RawObject] = field(default_factory=list)

    def count_exports(self, namespace: str, cluster_id: str, kind: str) -> int:
        return self.exports.get((cluster_id, kind), 0) if namespace == AREA else 0

    def granted(self, namespace: str, values: Iterable[str]) -> Sequence[RawObject]:
        asked = set(values)
        return [
            raw
            for raw in self.imports
            if raw["metadata"]["namespace"] == namespace and not asked.isdisjoint(GRANTED.values(raw))
        ]

    def service_account(self, namespace: str, name: str) -> RawObject | None:
        for found in self.accounts:
            if (found["metadata"]["namespace"], found["metadata"]["name"]) == (namespace, name):
                return found
        return None

    def service_accounts(self, namespace: str) -> Sequence[RawObject]:
        return [a for a in self.accounts if a["metadata"]["namespace"] == namespace]

    def cluster_sets(self, namespace: str) -> Sequence[RawObject]:
        return [s for s in self.sets if s["metadata"]["namespace"] == namespace]

    def announces(self, namespace: str) -> Sequence[RawObject]:
        return [m for m in self.members if m["metadata"]["namespace"] == namespace]


ACCOUNTS = (
    account("east-sa", "east"),
    account("west-sa", "west"),
    account("north-sa", "north"),
    account("admin-sa"),
    account("empty-sa", ""),
    account("default", "east"),
    account("east-sa", "east", "elsewhere"),
    account("namespace-controller", None, "kube-system"),
)
OWN = accounts_of(AREA, trusted=["argocd/argocd-application-controller"])
WORLD = World(accounts=ACCOUNTS, sets=[cluster_set(AREA, SET, "leader1")])


def sa(name: str, namespace: str = AREA) -> str:
    """Return a ServiceAccount's user name."""
    return f"system:serviceaccount:{namespace}:{name}"


def ask(
    operation: str,
    new: RawObject | None,
    old: RawObject | None = None,
    user: str = "kubernetes-admin",
    *,
    world: World = WORLD,
    accounts: Accounts = OWN,
    node: str = "",
) -> Decision:
    """Return the decision on a request."""
    subject: RawObject = new or old or {}
    meta = subject.get("metadata")
    request = {
        "uid": "u",
        "operation": operation,
        "kind": {"group": "multicluster.crd.antrea.io", "version": "v1alpha1", "kind": subject.get("kind")},
        "namespace": meta.get("namespace", AREA) if isinstance(meta, dict) else AREA,
        "object": new,
        "oldObject": old,
        "userInfo": {
            "username": user,
            "groups": ["system:authenticated"],
            **({"extra": {NODE_CLAIM: [node]}} if node else {}),
        },
    }
    return review(request, world, accounts)


def check(decision: Decision, code: int, said: str = "") -> None:
    """Compare a decision with what the contract has: 200 is allowed."""
    assert (decision.allowed, decision.code) == (code == 200, code), decision
    assert said in decision.message
    assert decision.allowed or decision.message


def put(raw: RawObject, path: str, value: Any) -> RawObject:
    """Return an export with one field changed; None takes it away."""
    found = copy.deepcopy(raw)
    *steps, last = path.split(".")
    inner = found
    for step in steps:
        inner = inner[step]
    if value is None:
        inner.pop(last, None)
    else:
        inner[last] = value
    return found


def leaving(raw: RawObject) -> RawObject:
    """Return an export that is being deleted."""
    return put(raw, "metadata.deletionTimestamp", "2026-01-01T00:00:00Z")


# --- ClusterSet ---------------------------------------------------------------------------------------------


def a_set(cluster: str = "leader1", leader: str = "leader1") -> RawObject:
    """Return a leader's ClusterSet."""
    found = cluster_set(AREA, SET, leader)
    found["spec"]["clusterID"] = cluster
    return found


MEMBER_SET = cluster_set(AREA, SET, "leader1")
MEMBER_SET["spec"] |= {
    "clusterID": "east",
    "leaders": [{"clusterID": "leader1", "server": "https://l:6443", "secret": "t"}],
}
MEMBERS = World(sets=[a_set()], members=[announce("east", area=AREA)])


@pytest.mark.parametrize(
    ("operation", "new", "old", "world", "code"),
    [
        pytest.param("CREATE", a_set(), None, World(), 200, id="the first of a namespace"),
        pytest.param("CREATE", a_set(), None, WORLD, 412, id="a second one"),
        pytest.param("CREATE", cluster_set("other"), None, WORLD, 200, id="one in another namespace"),
        pytest.param("UPDATE", a_set(), a_set(), WORLD, 200, id="nothing changes"),
        pytest.param("UPDATE", a_set("other"), a_set(), WORLD, 412, id="another cluster ID"),
        pytest.param("UPDATE", a_set(), a_set(""), WORLD, 200, id="a cluster ID where there was none"),
        pytest.param("UPDATE", a_set(leader="other"), a_set(), WORLD, 412, id="another leader"),
        pytest.param("DELETE", None, a_set(), MEMBERS, 412, id="the leader's, with members"),
        pytest.param("DELETE", None, a_set(), WORLD, 200, id="the leader's, without members"),
        pytest.param("DELETE", None, MEMBER_SET, MEMBERS, 200, id="a member's"),
    ],
)
def test_cluster_set(
    operation: str, new: RawObject | None, old: RawObject | None, world: World, code: int
) -> None:
    """One ClusterSet in a namespace, its identity fixed, and no leader's deleted under its members."""
    check(ask(operation, new, old, world=world), code)


def test_other_fields_of_a_member_cluster_set_may_change() -> None:
    """A leader that moves, or another Secret, is an update like any."""
    moved = copy.deepcopy(MEMBER_SET)
    moved["spec"]["leaders"][0] |= {"server": "https://m:6443", "secret": "t2"}
    check(ask("UPDATE", moved, MEMBER_SET), 200)


# --- Gateway ------------------------------------------------------------------------------------------------

GATEWAY: RawObject = {
    "kind": "Gateway",
    "metadata": {"name": "node-1", "namespace": "kube-system"},
    "gatewayIP": "10.0.0.1",
}


KEYED = GATEWAY | {"wireGuard": {"publicKey": "k"}}
LABELLED = put(GATEWAY, "metadata.labels", {"a": "b"})
MOVED = GATEWAY | {"gatewayIP": "10.0.0.9"}
KUBE = accounts_of("kube-system")


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
@pytest.mark.parametrize(
    ("user", "code"),
    [
        (sa("antrea-mc-controller", "kube-system"), 200),
        (sa("mcagent-controller", "kube-system"), 200),
        (sa("mcagent-controller", "elsewhere"), 412),
        (sa("antrea-mc-controller", "elsewhere"), 412),
        (sa("mcagent-agent", "elsewhere"), 412),
        (sa("antrea-agent", "elsewhere"), 412),
        (sa("somebody", "kube-system"), 412),
        (sa("antrea-agent-2", "kube-system"), 412),
        ("kubernetes-admin", 400),
        ("system:serviceaccount:kube-system", 400),
        ("system:serviceaccount:a:b:antrea-agent", 400),
        ("", 400),
    ],
)
def test_gateway(operation: str, user: str, code: int) -> None:
    """Only the controllers of the right namespace make Gateways and change their addresses."""
    check(ask(operation, MOVED, GATEWAY, user, accounts=KUBE, node="node-1"), code)


@pytest.mark.parametrize("user", [sa("mcagent-agent", "kube-system"), sa("antrea-agent", "kube-system")])
@pytest.mark.parametrize(
    ("operation", "new", "node", "code", "said"),
    [
        ("UPDATE", KEYED, "node-1", 200, ""),
        ("UPDATE", KEYED, "node-2", 403, "the agent of Node node-2"),
        ("UPDATE", KEYED, "", 403, "names no Node"),
        ("UPDATE", MOVED, "node-1", 403, "not gatewayIP"),
        ("UPDATE", LABELLED, "node-1", 403, "not metadata.labels"),
        ("CREATE", KEYED, "node-1", 403, "only the controller creates Gateways"),
    ],
)
def test_an_agent_writes_the_key_of_its_own_node(
    *, user: str, operation: str, new: RawObject, node: str, code: int, said: str
) -> None:
    """One field of one Gateway, by the Node that the token names; Antrea's agents alike."""
    check(ask(operation, new, GATEWAY, user, accounts=KUBE, node=node), code, said)


def test_agents_without_a_node_can_be_let_in() -> None:
    """Then a token without a Node may write any key, and nothing else; one with a Node still only its own."""
    lax = accounts_of("kube-system", agents_without_node=True)
    user = sa("mcagent-agent", "kube-system")
    check(ask("UPDATE", KEYED, GATEWAY, user, accounts=lax), 200)
    check(ask("UPDATE", MOVED, GATEWAY, user, accounts=lax), 403)
    check(ask("UPDATE", KEYED, GATEWAY, user, accounts=lax, node="node-2"), 403)


def test_own_accounts_can_be_configured() -> None:
    """Whoever runs controllers and agents under other names, or elsewhere, says so."""
    accounts = accounts_of("kube-system", controllers=["mine/my-controller"], agents=["mine/my-agent"])
    check(ask("CREATE", GATEWAY, user=sa("my-controller", "mine")), 412)
    check(ask("CREATE", GATEWAY, user=sa("my-controller", "mine"), accounts=accounts), 200)
    check(ask("UPDATE", KEYED, GATEWAY, sa("my-agent", "mine"), accounts=accounts, node="node-1"), 200)
    for other in (sa("mcagent-agent", "kube-system"), sa("mcagent-controller", "kube-system")):
        check(ask("UPDATE", KEYED, GATEWAY, other, accounts=accounts, node="node-1"), 412)


def test_accounts_of_the_configuration(tmp_path: Path) -> None:
    """Lists of namespace/name are read, in the controller's own namespace by default; anything else is refused."""
    file = tmp_path / "controller.yaml"
    file.write_text("admission:\n  trustedServiceAccounts: [argocd/argocd-application-controller]\n")
    found = load(Role.LEADER, file, {}, {}).accounts("mcs")
    assert {str(caller) for caller in found.trusted} == {"ServiceAccount argocd/argocd-application-controller"}
    assert {caller.namespace for caller in found.controllers} == {"mcs"}
    assert {caller.namespace for caller in found.agents} == {"mcs", "kube-system"}
    for wrong in (
        "[argocd]",
        "[a/b/c]",
        "['*/x']",
        "[a/*]",
        "argocd/x",
        "[[a/b]]",
        "['system:serviceaccount:a:b']",
    ):
        file.write_text(f"admission:\n  trustedServiceAccounts: {wrong}\n")
        with pytest.raises(ConfigError, match="namespace/name"):
            load(Role.LEADER, file, {}, {})


@pytest.mark.parametrize(
    "user", [sa("generic-garbage-collector", "kube-system"), "system:kube-controller-manager"]
)
def test_the_garbage_collector_takes_finalizers_off_and_nothing_else(user: str) -> None:
    """What is deleted in the foreground bears its finalizer; no field passes in its name."""
    held = put(GATEWAY, "metadata.finalizers", ["foregroundDeletion"])
    check(ask("UPDATE", GATEWAY, held, user, accounts=KUBE), 200)
    assert not ask("UPDATE", MOVED, held, user, accounts=KUBE).allowed
    held = put(an_announce(), "metadata.finalizers", ["foregroundDeletion"])
    check(ask("UPDATE", an_announce(), held, user), 200)
    assert not ask("UPDATE", an_announce(clusterSetID="x"), held, user).allowed
    held = put(an_info(), "metadata.finalizers", [names.EXPORT_FINALIZER, "foregroundDeletion"])
    check(ask("UPDATE", an_info(), held, user), 200)
    assert not ask("UPDATE", put(an_info(), "spec.clusterID", "x"), held, user).allowed


# --- MemberClusterAnnounce ----------------------------------------------------------------------------------


def an_announce(cluster: str = "east", **fields: str) -> RawObject:
    """Return an announcement to the world's ClusterSet."""
    return announce(cluster, area=AREA) | {"clusterSetID": SET, "leaderClusterID": "leader1"} | fields


WRONG_NAME = an_announce()
WRONG_NAME["metadata"] = {"name": "member-announce-from-wrong", "namespace": AREA}
PAIR = World(accounts=[account("east-sa", "east"), account("east1-sa", "east-1")], sets=WORLD.sets)
NO_SET = World(accounts=ACCOUNTS)
EAST, WEST, NORTH = sa("east-sa"), sa("west-sa"), sa("north-sa")
OURS, ANTREAS = sa("mcagent-controller"), sa("antrea-mc-controller")
ARGO = sa("argocd-application-controller", "argocd")
HELD = an_announce()
HELD["metadata"] = {**HELD["metadata"], "finalizers": ["a/b"]}
BEATING = an_announce()
BEATING["metadata"] = {**BEATING["metadata"], "annotations": {names.HEARTBEAT_ANNOTATION: "2026-01-01T00:00:00Z"}}
GC = sa("generic-garbage-collector", "kube-system")
NAMESPACES = sa("namespace-controller", "kube-system")


@pytest.mark.parametrize(
    ("operation", "new", "old", "user", "world", "code", "said"),
    [
        pytest.param("CREATE", an_announce(), None, EAST, WORLD, 200, "", id="its own"),
        pytest.param(
            "CREATE",
            an_announce("north", clusterSetID="another"),
            None,
            NORTH,
            WORLD,
            412,
            "unknown ClusterSet",
            id="to another ClusterSet",
        ),
        pytest.param(
            "CREATE",
            an_announce("north", leaderClusterID="other"),
            None,
            NORTH,
            WORLD,
            412,
            "leader",
            id="to another leader",
        ),
        pytest.param("CREATE", an_announce(), None, sa("unknown"), WORLD, 412, "not found", id="unknown account"),
        pytest.param(
            "CREATE", an_announce("west"), None, EAST, WORLD, 403, "not permitted", id="for another cluster"
        ),
        pytest.param("CREATE", an_announce(), None, EAST, NO_SET, 412, "no ClusterSet", id="no set"),
        pytest.param(
            "UPDATE",
            an_announce(),
            an_announce(clusterSetID="old"),
            EAST,
            WORLD,
            412,
            "clusterSetID",
            id="ClusterSet ID changes",
        ),
        pytest.param(
            "UPDATE",
            an_announce(),
            an_announce(leaderClusterID="old"),
            EAST,
            WORLD,
            412,
            "leaderClusterID",
            id="leader changes",
        ),
        pytest.param(
            "UPDATE",
            an_announce(),
            an_announce(clusterID="old"),
            EAST,
            WORLD,
            412,
            "clusterID",
            id="cluster ID changes",
        ),
        pytest.param("UPDATE", an_announce(), an_announce(), EAST, WORLD, 200, "", id="heartbeat"),
        pytest.param(
            "CREATE", an_announce(), None, sa("admin-sa"), WORLD, 403, "not permitted", id="no annotation"
        ),
        pytest.param(
            "CREATE", an_announce(""), None, sa("empty-sa"), WORLD, 403, "not permitted", id="empty annotation"
        ),
        pytest.param("CREATE", WRONG_NAME, None, EAST, WORLD, 403, "must be", id="wrong name"),
        pytest.param("DELETE", None, an_announce(), EAST, WORLD, 200, "", id="leaves"),
        pytest.param("CREATE", an_announce(), None, "system:user", WORLD, 400, "ServiceAccount", id="no account"),
        pytest.param(
            "UPDATE", an_announce("west"), an_announce("west"), EAST, WORLD, 403, "", id="updates a peer's"
        ),
        pytest.param("DELETE", None, an_announce("west"), EAST, WORLD, 403, "", id="deletes a peer's"),
        pytest.param("UPDATE", an_announce(), an_announce(), OURS, WORLD, 200, "", id="our leader updates"),
        pytest.param(
            "UPDATE", an_announce(), an_announce(), ANTREAS, WORLD, 200, "", id="Antrea's leader updates"
        ),
        pytest.param("DELETE", None, an_announce(), OURS, WORLD, 200, "", id="our leader deletes"),
        pytest.param("CREATE", an_announce(), None, OURS, WORLD, 412, "not found", id="a leader announces nobody"),
        pytest.param(
            "UPDATE",
            an_announce(clusterSetID="x"),
            an_announce(),
            OURS,
            WORLD,
            412,
            "",
            id="a leader changes no ID either",
        ),
        pytest.param(
            "UPDATE",
            an_announce(),
            an_announce(),
            sa("antrea-mc-controller", "kube-system"),
            WORLD,
            403,
            "not in namespace",
            id="a controller of another namespace",
        ),
        pytest.param(
            "CREATE",
            an_announce(),
            None,
            sa("default", "kube-system"),
            WORLD,
            403,
            "not in namespace",
            id="an account of the same name elsewhere",
        ),
        pytest.param("DELETE", None, an_announce(), NAMESPACES, WORLD, 200, "", id="namespace goes"),
        pytest.param("DELETE", None, an_announce(), "kubernetes-admin", WORLD, 200, "", id="admin deletes"),
        pytest.param("DELETE", None, an_announce(), GC, WORLD, 200, "", id="garbage collector deletes"),
        pytest.param(
            "DELETE", None, an_announce(), sa("unknown"), WORLD, 412, "not found", id="its account is gone already"
        ),
        pytest.param(
            "DELETE", None, leaving(an_announce()), sa("unknown"), WORLD, 200, "", id="leaving, account gone"
        ),
        pytest.param(
            "DELETE",
            None,
            an_announce(),
            sa("thief", "elsewhere"),
            WORLD,
            403,
            "not in namespace",
            id="a stranger",
        ),
        pytest.param("DELETE", None, an_announce(), ARGO, WORLD, 200, "", id="a trusted account deletes"),
        pytest.param("CREATE", an_announce(), None, ARGO, WORLD, 403, "no member", id="a trusted account joins"),
        pytest.param("UPDATE", an_announce(), HELD, "alice", WORLD, 200, "", id="admin takes a finalizer off"),
        pytest.param("UPDATE", BEATING, an_announce(), "alice", WORLD, 400, "", id="an admin is no member"),
        pytest.param("CREATE", an_announce(), None, EAST, PAIR, 403, "conflicts", id="dash pair, shorter"),
        pytest.param(
            "CREATE",
            an_announce("east-1"),
            None,
            sa("east1-sa"),
            PAIR,
            403,
            "conflicts",
            id="dash pair, longer",
        ),
    ],
)
def test_announce(
    *,
    operation: str,
    new: RawObject | None,
    old: RawObject | None,
    user: str,
    world: World,
    code: int,
    said: str,
) -> None:
    """A member announces itself, to this ClusterSet, under its own name, and changes nothing of it later."""
    check(ask(operation, new, old, user, world=world), code, said)


def test_dash_pairs() -> None:
    """Only whole dash-separated beginnings make a pair."""
    assert ambiguous_with("east", ["east", "west", "eastern", "east1"]) == ""
    assert ambiguous_with("east", ["east-1"]) == "east-1"
    assert ambiguous_with("east-1-a", ["east-1"]) == "east-1"


# --- ResourceExport -----------------------------------------------------------------------------------------

LABEL = "ns:kubernetes.io/metadata.name=shop&pod:app=web"


def labelled(raw: RawObject, *, finalizer: bool = True) -> RawObject:
    """Return an export with the labels that members give."""
    spec = raw["spec"]
    labels = {"sourceClusterID": spec["clusterID"], "sourceKind": spec["kind"]}
    if spec["kind"] in ("Service", "Endpoints"):
        labels |= {"sourceName": spec["name"], "sourceNamespace": spec["namespace"]}
    raw["metadata"] |= {"labels": labels, "namespace": AREA}
    if not finalizer:
        del raw["metadata"]["finalizers"]
    return raw


def an_info(cluster: str = "east") -> RawObject:
    """Return a ClusterInfo export."""
    return labelled(cluster_info(cluster, "10.1.0.0/16"))


def a_service(cluster: str = "east", target: str = "default/nginx") -> RawObject:
    """Return a Service export."""
    return labelled(service(cluster, target))


def an_endpoints(cluster: str = "east") -> RawObject:
    """Return an Endpoints export."""
    return labelled(endpoints(cluster, ["10.1.0.1"]))


def a_label(cluster: str = "east") -> RawObject:
    """Return a LabelIdentity export."""
    name = f"{cluster}-{hashlib.sha1(LABEL.encode()).hexdigest()[:16]}"
    payload = {"labelIdentity": {"normalizedLabel": LABEL}}
    return labelled(export(cluster, "LabelIdentity", name, payload), finalizer=False)


def a_policy() -> RawObject:
    """Return an export of a policy."""
    return labelled(export("east", "AntreaClusterNetworkPolicy", "east-acnp", {"name": "acnp"}))


def legacy(raw: RawObject) -> RawObject:
    """Return an export with the finalizer of old members."""
    return put(raw, "metadata.finalizers", [names.LEGACY_EXPORT_FINALIZER])


NO_FINALIZER = put(an_info(), "metadata.finalizers", None)
MISSING = sa("missing")
SAME = a_service(target="a/b-c")


@pytest.mark.parametrize(
    ("operation", "new", "old", "user", "code", "said"),
    [
        pytest.param("CREATE", an_info(), None, EAST, 200, "", id="ClusterInfo"),
        pytest.param("CREATE", a_service(), None, EAST, 200, "", id="Service"),
        pytest.param("CREATE", an_endpoints(), None, EAST, 200, "", id="Endpoints"),
        pytest.param("CREATE", a_label(), None, EAST, 200, "", id="LabelIdentity, without finalizer"),
        pytest.param("UPDATE", an_info(), an_info(), EAST, 200, "", id="updates its own"),
        pytest.param("UPDATE", an_info("west"), an_info("west"), EAST, 403, "another", id="updates a peer's"),
        pytest.param("UPDATE", an_info(), an_info("west"), EAST, 403, "another member", id="takes a peer's over"),
        pytest.param("DELETE", None, an_info(), EAST, 200, "", id="deletes its own"),
        pytest.param("DELETE", None, an_info("west"), EAST, 403, "another member", id="deletes a peer's"),
        pytest.param(
            "CREATE", put(an_info(), "metadata.name", "x-clusterinfo"), None, EAST, 403, "name", id="wrong name"
        ),
        pytest.param(
            "CREATE",
            put(a_service(), "metadata.name", "east-1-default-nginx-service"),
            None,
            EAST,
            403,
            "name must be",
            id="a name of another member",
        ),
        pytest.param(
            "CREATE",
            put(a_service(), "metadata.name", "default-nginx-service"),
            None,
            EAST,
            403,
            "name must be",
            id="a name without its cluster ID",
        ),
        pytest.param(
            "CREATE",
            put(a_label(), "metadata.name", "east-0000"),
            None,
            EAST,
            403,
            "name must be",
            id="wrong hash",
        ),
        pytest.param(
            "CREATE",
            put(a_label(), "spec.labelIdentity.normalizedLabel", "pod:app=web"),
            None,
            EAST,
            403,
            "spec.labelIdentity.normalizedLabel must be ns:<labels>&pod:<labels>",
            id="no labels",
        ),
        pytest.param(
            "CREATE",
            put(an_info(), "spec.clusterInfo.clusterID", "west"),
            None,
            EAST,
            403,
            "clusterInfo.clusterID",
            id="ClusterInfo of a peer",
        ),
        pytest.param(
            "CREATE",
            put(an_info(), "spec.clusterInfo", None),
            None,
            EAST,
            403,
            "clusterInfo.clusterID",
            id="ClusterInfo without payload",
        ),
        pytest.param("CREATE", an_info("west"), None, EAST, 403, "spec.clusterID", id="for another cluster"),
        pytest.param(
            "CREATE",
            put(a_service(), "metadata.labels.sourceClusterID", "west"),
            None,
            EAST,
            403,
            "sourceClusterID",
            id="label of another cluster",
        ),
        pytest.param(
            "UPDATE",
            put(a_service(), "metadata.labels.sourceClusterID", "west"),
            a_service(),
            EAST,
            403,
            "sourceClusterID",
            id="label changed to another cluster",
        ),
        pytest.param("CREATE", a_policy(), None, EAST, 403, "not authorized", id="a policy from a member"),
        pytest.param(
            "CREATE",
            a_policy(),
            None,
            sa("admin-sa"),
            403,
            "no cluster",
            id="a policy from an account of nobody's",
        ),
        pytest.param("CREATE", a_policy(), None, ARGO, 200, "", id="a policy from a trusted account"),
        pytest.param("DELETE", None, an_info("west"), ARGO, 200, "", id="a trusted account deletes"),
        pytest.param("DELETE", None, an_info("west"), sa("admin-sa"), 403, "no cluster", id="nobody's deletes"),
        pytest.param("DELETE", None, an_info("west"), NAMESPACES, 200, "", id="namespace goes"),
        pytest.param("DELETE", None, an_info("west"), GC, 200, "", id="garbage collector deletes"),
        pytest.param("CREATE", a_policy(), None, "system:serviceaccount:a:b:c", 400, "", id="no account, no user"),
        pytest.param("CREATE", a_policy(), None, "", 400, "", id="nobody"),
        pytest.param("CREATE", a_policy(), None, "alice", 200, "", id="a policy from an admin"),
        pytest.param(
            "CREATE",
            an_info(),
            None,
            sa("east-sa", "elsewhere"),
            403,
            "not in namespace",
            id="an account of the same name and ID elsewhere",
        ),
        pytest.param("CREATE", an_info(), None, MISSING, 412, "not found", id="no such account"),
        pytest.param("UPDATE", NO_FINALIZER, an_info("west"), OURS, 200, "", id="our leader updates"),
        pytest.param("UPDATE", NO_FINALIZER, an_info("west"), ANTREAS, 200, "", id="Antrea's leader updates"),
        pytest.param("DELETE", None, an_info("west"), OURS, 200, "", id="our leader deletes"),
        pytest.param("CREATE", an_info(), None, OURS, 412, "not found", id="a leader creates none"),
        pytest.param(
            "DELETE", None, leaving(an_info("south")), MISSING, 200, "", id="account gone, export leaving"
        ),
        pytest.param("DELETE", None, an_info(), MISSING, 412, "not found", id="account gone, export staying"),
        pytest.param("CREATE", an_info(), None, sa("empty-sa"), 403, "empty", id="empty annotation"),
        pytest.param(
            "CREATE",
            put(a_service(), "metadata.labels.sourceKind", "Endpoints"),
            None,
            EAST,
            403,
            "sourceKind",
            id="label of another kind",
        ),
        pytest.param(
            "CREATE",
            put(a_service(), "spec.service", None),
            None,
            EAST,
            403,
            "spec.service",
            id="no Service payload",
        ),
        pytest.param(
            "CREATE",
            put(an_endpoints(), "spec.endpoints", None),
            None,
            EAST,
            403,
            "spec.endpoints",
            id="no Endpoints payload",
        ),
        pytest.param(
            "CREATE",
            put(a_service(), "metadata.labels.sourceName", "other"),
            None,
            EAST,
            403,
            "sourceName",
            id="label of another name",
        ),
        pytest.param(
            "CREATE",
            put(a_service(), "metadata.labels.sourceNamespace", "other"),
            None,
            EAST,
            403,
            "sourceNamespace",
            id="label of another namespace",
        ),
        pytest.param(
            "CREATE",
            put(a_service(), "metadata.labels", None),
            None,
            EAST,
            403,
            "sourceClusterID",
            id="no labels",
        ),
        pytest.param(
            "CREATE",
            put(an_info(), "metadata.labels", None),
            None,
            EAST,
            200,
            "",
            id="ClusterInfo of Antrea before 2.7",
        ),
        pytest.param(
            "CREATE",
            put(an_info(), "metadata.labels", {"sourceClusterID": "east"}),
            None,
            EAST,
            403,
            "sourceKind",
            id="ClusterInfo with half of its labels",
        ),
        pytest.param("UPDATE", a_service(), a_service(), EAST, 200, "", id="finalizer stays"),
        pytest.param("UPDATE", legacy(a_service()), legacy(a_service()), EAST, 200, "", id="legacy stays"),
        pytest.param("CREATE", legacy(a_service()), None, EAST, 200, "", id="legacy finalizer"),
        pytest.param("UPDATE", NO_FINALIZER, an_info(), EAST, 403, "finalizer", id="takes the finalizer off"),
        pytest.param(
            "UPDATE", leaving(NO_FINALIZER), leaving(an_info()), EAST, 403, "finalizer", id="takes it off, leaving"
        ),
        pytest.param("CREATE", NO_FINALIZER, None, EAST, 403, "finalizer", id="without finalizer"),
        pytest.param(
            "UPDATE",
            a_service(target="a-b/c"),
            a_service(target="a/b-c"),
            EAST,
            403,
            "immutable",
            id="another Service under the same name",
        ),
        pytest.param(
            "UPDATE",
            put(an_info(), "spec.kind", "Service"),
            an_info(),
            EAST,
            403,
            "immutable",
            id="becomes a Service",
        ),
        pytest.param(
            "UPDATE", a_service(target="a/b-c"), a_service(target="a/b-c"), EAST, 200, "", id="same Service"
        ),
        pytest.param(
            "UPDATE",
            put(an_info(), "spec.namespace", "elsewhere"),
            an_info(),
            EAST,
            200,
            "",
            id="ClusterInfo from another namespace",
        ),
        pytest.param(
            "CREATE",
            put(a_service(), "spec.namespace", "default/ns"),
            None,
            EAST,
            403,
            "spec.namespace must be a valid DNS-1123 label",
            id="namespace that is none",
        ),
        pytest.param(
            "CREATE",
            put(a_service(), "spec.name", "Nginx"),
            None,
            EAST,
            403,
            "spec.name must be a valid DNS-1123 label",
            id="name that is none",
        ),
        pytest.param(
            "CREATE",
            a_service(target="1-default/nginx"),
            None,
            EAST,
            200,
            "",
            id="a name that east-1 could have: no pair can join",
        ),
    ],
)
def test_resource_export(
    *, operation: str, new: RawObject | None, old: RawObject | None, user: str, code: int, said: str
) -> None:
    """A member writes its own exports, whole, and under the names that follow from them."""
    check(ask(operation, new, old, user), code, said)


# --- the mutating review, and anything at all ---------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_what_members_of_antrea_write_is_allowed(version: str) -> None:
    """Of every version, by an account that stands for the member; by one of another member nothing is."""
    world = World(accounts=[account("mine", "south"), account("other", "west")], sets=[a_set()])
    for raw in written_by(version, AREA, SET).values():
        if "leaderClusterID" in raw:
            raw["leaderClusterID"] = "leader1"
        check(ask("CREATE", raw, user=sa("mine"), world=world), 200)
        assert not ask("CREATE", raw, user=sa("other"), world=world).allowed


def patched(raw: RawObject) -> RawObject:
    """Return an export as the mutating review leaves it."""
    decision = mutate({"operation": "CREATE", "object": raw, "userInfo": {"username": "alice"}})
    assert decision.allowed
    found = copy.deepcopy(raw)
    for step in decision.patch:
        assert step["op"] == "add"
        _, meta, name = step["path"].split("/")
        found[meta][name] = step["value"]
    return found


def test_a_policy_is_completed() -> None:
    """A person's export of a policy gets its labels and the finalizer, and keeps what it has."""
    raw = put(put(a_policy(), "metadata.labels", {"mine": "1"}), "metadata.finalizers", ["a/b"])
    found = patched(raw)
    assert found["metadata"]["finalizers"] == ["a/b", names.EXPORT_FINALIZER]
    assert found["metadata"]["labels"] == {
        "mine": "1",
        "sourceName": "acnp",
        "sourceNamespace": "",
        "sourceKind": "AntreaClusterNetworkPolicy",
    }
    assert patched(found) == found
    bare = put(put(a_policy(), "metadata.labels", None), "metadata.finalizers", None)
    assert patched(bare)["metadata"]["finalizers"] == [names.EXPORT_FINALIZER]


def test_other_exports_are_not_completed() -> None:
    """What controllers write is theirs to write right."""
    assert patched(put(a_service(), "metadata.labels", None)) == put(a_service(), "metadata.labels", None)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


# --- claims ------------------------------------------------------------------------------------------------


def networks(*pod_cidrs: str, gateway: str = "192.168.9.1") -> RawObject:
    """Return a ClusterInfo export of east."""
    raw = cluster_info("east", "10.1.0.0/16", pod_cidrs)
    raw["spec"]["clusterInfo"]["gatewayInfos"] = [{"gatewayIP": gateway}]
    raw["metadata"] = {
        "name": "east-clusterinfo",
        "namespace": AREA,
        "labels": {"sourceClusterID": "east", "sourceKind": "ClusterInfo"},
        "finalizers": [names.EXPORT_FINALIZER],
    }
    return raw


HOLDS = [{"gatewayIP": "1.2.3.4"}]
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


@pytest.mark.parametrize(
    ("old", "new", "code", "said"),
    [
        (networks(), networks("10.3.0.0/16"), 200, ""),
        (
            networks(),
            networks("10.2.9.0/24"),
            409,
            "cluster west has had Service CIDR 10.2.0.0/16 since 2024",
        ),
        (networks(), networks("1.2.3.0/24"), 403, "allowedClusterCIDRs"),
        (networks(), networks("10.2.9.0/24", gateway="192.168.9.2"), 200, ""),  # a failover with a conflict
        (networks("10.2.9.0/24"), networks("10.2.9.0/24", gateway="192.168.9.2"), 200, ""),  # an old conflict
        (networks("10.2.9.0/24"), networks("10.2.9.0/24"), 200, ""),
        (None, networks("10.2.9.0/24"), 200, ""),  # the rest of it is good
    ],
)
def test_claims_in_vain_are_refused_at_once(old: RawObject | None, new: RawObject, code: int, said: str) -> None:
    """Unless the request brings something else: nothing keeps a new gateway from being told."""
    operation = "CREATE" if old is None else "UPDATE"
    check(ask(operation, new, old, EAST, world=CLAIMED), code, said)


def test_a_new_cluster_that_only_claims_what_others_have() -> None:
    """Nothing of it would be granted."""
    raw = networks(gateway="1.2.3.4")
    raw["spec"]["clusterInfo"] |= {"serviceCIDR": "10.2.0.0/17"}
    check(ask("CREATE", raw, None, EAST, world=CLAIMED), 409, "gateway 1.2.3.4 is not granted: cluster west")


@given(
    operation=st.sampled_from(["CREATE", "UPDATE", "DELETE", "CONNECT", None, 3]),
    kind=st.sampled_from(["ClusterSet", "Gateway", "MemberClusterAnnounce", "ResourceExport", "Pod"]),
    new=JSON,
    old=JSON,
    user=st.sampled_from([EAST, "alice", "system:serviceaccount::", OURS]),
)
def test_anything_gets_an_answer(operation: Any, kind: str, new: Any, old: Any, user: str) -> None:
    """No request makes a review raise."""
    request: Mapping[str, Any] = {
        "operation": operation,
        "kind": {"kind": kind},
        "namespace": AREA,
        "object": new,
        "oldObject": old,
        "userInfo": {"username": user},
    }
    assert review(request, WORLD, OWN).code in (200, 400, 403, 412)
    assert mutate(request).allowed


@given(field=st.sampled_from(["spec", "metadata"]), value=JSON, operation=st.sampled_from(["CREATE", "UPDATE"]))
def test_no_member_gets_through_with_junk(field: str, value: Any, operation: str) -> None:
    """An export whose spec or metadata is anything but its own is refused."""
    raw = put(a_service(), field, value)
    assert not ask(operation, raw, a_service(), EAST).allowed
