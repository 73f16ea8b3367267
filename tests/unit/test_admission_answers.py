"""Answers of the webhook in full: code and message of each refusal, limits of members, requests, and patches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mcagent.controller.admission import AdmissionDecision, accounts_of, mutate, review
from mcagent.controller.admission.accounts import Caller, caller_of, is_administrator, is_kubernetes
from mcagent.controller.admission.decision import Operation, changed_parts, denied, read_request
from mcagent.controller.admission.identity import ambiguous_with, bound_clusters
from mcagent.controller.contract import names
from mcagent.controller.settings import MemberLimits
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_object
from tests.worlds.admission_cases import ADMIN, ANTREAS, ARGO, EAST, GC, MANAGER, MISSING, NAMESPACES, OURS
from tests.worlds.admission_objects import (
    ACCOUNTS,
    AREA,
    OWN,
    SET,
    WORLD,
    World,
    a_label,
    a_members_set,
    a_policy,
    a_service,
    a_set,
    account,
    an_announce,
    an_endpoints,
    an_info,
    ask,
    held_by,
    leaving,
    networks,
    put,
    sa,
)
from tests.worlds.leader_world import announce

TRUST = "; list one that acts for administrators in admission.trustedServiceAccounts of the leader's configuration"
NO_MEMBER = f"is not in namespace {AREA}, where the members' accounts are"
ID_KEY = "multicluster.antrea.io/cluster-id"


def members(*clusters: str) -> World:
    """Return a world with a ClusterSet and these members."""
    return World(sets=[a_set()], members=[announce(cluster, area=AREA) for cluster in clusters])


def user_message(user: str) -> str:
    """Return the message for a user that is no ServiceAccount."""
    return f'the user is "{user}", and must be a ServiceAccount: system:serviceaccount:<namespace>:<name>'


@pytest.mark.parametrize(
    ("operation", "new", "old", "user", "world", "code", "message"),
    [
        ("CREATE", a_set(), None, ADMIN, WORLD, 412, f"namespace {AREA} has a ClusterSet already: {SET}"),
        (
            "DELETE",
            None,
            a_set(),
            ADMIN,
            members("west", "east"),
            412,
            "2 clusters are still members and must leave first: east, west",
        ),
        (
            "DELETE",
            None,
            a_set(),
            ADMIN,
            members("e", "d", "c", "b", "a"),
            412,
            "5 clusters are still members and must leave first: a, b, c, d, e",
        ),
        (
            "DELETE",
            None,
            a_set(),
            ADMIN,
            members("f", "e", "d", "c", "b", "a"),
            412,
            "6 clusters are still members and must leave first: a, b, c, d, e, ...",
        ),
        ("CREATE", an_announce(), None, "alice", WORLD, 400, user_message("alice")),
        ("CREATE", an_announce(), None, "", WORLD, 400, user_message("")),
        (
            "CREATE",
            an_announce(),
            None,
            ARGO,
            WORLD,
            403,
            "ServiceAccount argocd/argocd-application-controller is no member, and announces no cluster",
        ),
        (
            "CREATE",
            an_announce(),
            None,
            sa("east-sa", "other"),
            WORLD,
            403,
            f"ServiceAccount other/east-sa {NO_MEMBER}",
        ),
        ("CREATE", an_announce(), None, MISSING, WORLD, 412, f"ServiceAccount {AREA}/missing is not found"),
        (
            "CREATE",
            an_announce(),
            None,
            sa("admin-sa"),
            WORLD,
            403,
            (
                f'cluster ID "east" is not permitted for ServiceAccount {AREA}/admin-sa, which stands for no '
                f"cluster: an administrator of the leader annotates it with {ID_KEY}, if it is that cluster's: "
                f"kubectl -n {AREA} annotate serviceaccount admin-sa {ID_KEY}=east"
            ),
        ),
        (
            "CREATE",
            an_announce("x;y\n"),
            None,
            sa("admin-sa"),
            WORLD,
            403,
            (
                f'cluster ID "x;y\\n" is not permitted for ServiceAccount {AREA}/admin-sa, which stands for no '
                f"cluster: an administrator of the leader annotates it with {ID_KEY}, if it is that cluster's"
            ),
        ),
        (
            "CREATE",
            an_announce("we\nst"),
            None,
            EAST,
            WORLD,
            403,
            f'cluster ID "we\\nst" is not permitted for ServiceAccount {AREA}/east-sa: see {ID_KEY}',
        ),
        (
            "UPDATE",
            an_announce("east"),
            an_announce("west"),
            EAST,
            WORLD,
            403,
            f'cluster ID "west" is not permitted for ServiceAccount {AREA}/east-sa: see {ID_KEY}',
        ),
        (
            "CREATE",
            an_announce(""),
            None,
            sa("empty-sa"),
            WORLD,
            403,
            f'cluster ID "" is not permitted for ServiceAccount {AREA}/empty-sa: see {ID_KEY}',
        ),
        (
            "CREATE",
            an_announce(),
            None,
            EAST,
            World(accounts=ACCOUNTS),
            412,
            f"there is no ClusterSet in namespace {AREA}",
        ),
        (
            "CREATE",
            an_announce(clusterSetID="oth\ner"),
            None,
            EAST,
            WORLD,
            412,
            f'unknown ClusterSet ID "oth\\ner": it is {SET} here',
        ),
        (
            "CREATE",
            an_announce(leaderClusterID="other"),
            None,
            EAST,
            WORLD,
            412,
            "leaderClusterID must be leader1, the ClusterSet's leader",
        ),
        (
            "CREATE",
            an_announce(),
            None,
            EAST,
            World(accounts=[*ACCOUNTS, account("x", "east-1")], sets=[a_set()]),
            403,
            "cluster ID east conflicts with that of member east-1: one is the other and a dash and more",
        ),
    ],
)
def test_refusals_of_cluster_sets_and_announcements(
    operation: str,
    new: RawObject | None,
    old: RawObject | None,
    user: str,
    *,
    world: World,
    code: int,
    message: str,
) -> None:
    """The message names the caller, the rule and what to do; the code is that of Antrea's webhook."""
    decision = ask(operation, new, old, user, world=world)
    assert decision == AdmissionDecision(allowed=False, code=code, message=message)


EMPTY_LABEL = put(a_label(), "spec.labelIdentity", {"normalizedLabel": 7})
MANY_PORTS = [{"name": f"p{number}", "port": 1 + number, "protocol": "TCP"} for number in range(101)]


@pytest.mark.parametrize(
    ("operation", "new", "old", "user", "code", "message"),
    [
        (
            "UPDATE",
            put(an_info(), "spec.name", "x"),
            an_info(),
            GC,
            403,
            f"{GC} may change only finalizers and owners",
        ),
        ("CREATE", a_service(), None, sa("a", "b:c"), 400, user_message(sa("a", "b:c"))),
        ("CREATE", a_service(), None, "system:serviceaccount:a", 400, user_message("system:serviceaccount:a")),
        ("CREATE", a_service(), None, sa("a", "other"), 403, f"ServiceAccount other/a {NO_MEMBER}{TRUST}"),
        ("CREATE", a_service(), None, MISSING, 412, f"ServiceAccount {AREA}/missing is not found"),
        ("DELETE", None, a_service(), MISSING, 412, f"ServiceAccount {AREA}/missing is not found"),
        (
            "CREATE",
            a_service(),
            None,
            sa("admin-sa"),
            403,
            f"ServiceAccount {AREA}/admin-sa stands for no cluster (annotation {ID_KEY}){TRUST}",
        ),
        (
            "CREATE",
            a_service(),
            None,
            sa("empty-sa"),
            403,
            f"the annotation {ID_KEY} of ServiceAccount {AREA}/empty-sa is empty",
        ),
        (
            "DELETE",
            None,
            put(a_service("west"), "spec.clusterID", "we\nst"),
            EAST,
            403,
            f"ServiceAccount {AREA}/east-sa may not touch exports of another member, we\\nst",
        ),
        (
            "UPDATE",
            held_by(a_service()),
            a_service(),
            EAST,
            403,
            "only the leader removes the finalizer, when nothing is left",
        ),
        (
            "CREATE",
            put(a_service(), "spec.kind", "Ki\nnd"),
            None,
            EAST,
            403,
            'a member is not authorized to export the kind "Ki\\nnd"',
        ),
        ("CREATE", a_service("west"), None, EAST, 403, "spec.clusterID must be east, the caller's"),
        (
            "CREATE",
            EMPTY_LABEL,
            None,
            EAST,
            403,
            "spec.labelIdentity.normalizedLabel must be a string, is a number",
        ),
        (
            "CREATE",
            put(a_label(), "spec.labelIdentity.normalizedLabel", "x"),
            None,
            EAST,
            403,
            "spec.labelIdentity.normalizedLabel must be ns:<labels>&pod:<labels>",
        ),
        (
            "CREATE",
            put(a_label(), "metadata.name", "x\n"),
            None,
            EAST,
            403,
            f"metadata.name must be {a_label()['metadata']['name']}: it is x\\n",
        ),
        (
            "CREATE",
            put(a_service(), "spec.service.serviceSpec.ports", MANY_PORTS),
            None,
            EAST,
            403,
            "the export is refused: spec.service.serviceSpec.ports has more than 100 entries",
        ),
        (
            "CREATE",
            put(a_service(), "spec.other", "x" * 70_000),
            None,
            EAST,
            403,
            "the export is refused: it is larger than 65536 bytes of JSON, the limit for exports of its kind",
        ),
    ],
)
def test_refusals_of_exports(
    operation: str, new: RawObject | None, old: RawObject | None, user: str, *, code: int, message: str
) -> None:
    """The message names the caller, the field and the rule; text of the request is printable."""
    assert ask(operation, new, old, user) == AdmissionDecision(allowed=False, code=code, message=message)


@pytest.mark.parametrize(
    ("operation", "new", "old", "user"),
    [
        ("CREATE", put(a_service(), "spec.service.serviceSpec.ports", MANY_PORTS[:100]), None, EAST),
        ("CREATE", put(a_service(), "status", "x" * 70_000), None, EAST),
        ("CREATE", put(a_service(), "metadata.managedFields", ["x" * 70_000]), None, EAST),
        (
            "UPDATE",
            put(an_info(), "metadata.ownerReferences", []),
            put(an_info(), "metadata.ownerReferences", [1]),
            GC,
        ),
        ("DELETE", None, a_service(), GC),
        ("DELETE", None, a_service(), MANAGER),
        ("DELETE", None, leaving(a_service()), MISSING),
        ("UPDATE", held_by(a_service()), a_service(), ANTREAS),
        ("UPDATE", a_service(), held_by(a_service(), names.EXPORT_FINALIZER, "x"), EAST),
        ("DELETE", None, an_announce(), MANAGER),
        ("DELETE", None, leaving(an_announce()), MISSING),
        ("UPDATE", an_announce(clusterSetID="other"), an_announce(), EAST),
        ("DELETE", None, an_announce(), ANTREAS),
        ("UPDATE", put(an_announce(), "status", {"a": 1}), an_announce(), "alice"),
        ("UPDATE", put(an_announce(), "metadata.resourceVersion", "9"), an_announce(), "alice"),
        ("UPDATE", a_set(), a_set(), ADMIN),
        ("CREATE", a_members_set(), None, ADMIN),
    ],
)
def test_allowed_requests(operation: str, new: RawObject | None, old: RawObject | None, user: str) -> None:
    """An allowed request has code 200, and neither message nor patch."""
    world = World(
        accounts=ACCOUNTS, sets=[] if operation == "CREATE" and new and new["kind"] == "ClusterSet" else [a_set()]
    )
    assert ask(operation, new, old, user, world=world) == AdmissionDecision(allowed=True)


def test_kubernetes_is_no_member() -> None:
    """Its controllers delete announcements and remove finalizers; they neither announce nor create exports."""
    assert ask("CREATE", an_announce(), None, MANAGER).code == 400
    assert ask("CREATE", an_announce(), None, GC) == denied(
        "ServiceAccount kube-system/generic-garbage-collector is no member, and announces no cluster"
    )
    assert ask("CREATE", a_service(), None, GC).code == 403
    assert ask("CREATE", a_service(), None, NAMESPACES).code == 403
    assert ask("CREATE", an_announce(), None, OURS).code == 412


# --- limits of members ------------------------------------------------------------------------------------


def limited(exports: int = 0, *, kind: str = "Service", limits: MemberLimits | None = None, **notes: str) -> World:
    """Return a world in which east has so many exports of a kind, and its account these annotations."""
    annotations = {f"mcagent.io/{name.replace('_', '-')}": text for name, text in notes.items()}
    east = account("east-sa", "east")
    east["metadata"]["annotations"] |= annotations
    accounts = [a for a in ACCOUNTS if a["metadata"]["name"] not in ("east-sa", "default")]
    return World(
        accounts=[east, *accounts],
        sets=[a_set()],
        limits=limits or MemberLimits(),
        exports={("east", kind): exports},
    )


def quota(limit: int, kind: str = "Service") -> str:
    """Return the message of a member that has too many exports of a kind."""
    return (
        f'cluster east may export {limit} objects of kind "{kind}", and the oldest stay: members.maxExports of '
        f"the leader, or annotation {names.MAX_EXPORTS_ANNOTATION} of the cluster's ServiceAccount, can allow more"
    )


@pytest.mark.parametrize(
    ("operation", "export", "world", "message"),
    [
        ("CREATE", a_service(), limited(2, max_exports="3"), ""),
        ("CREATE", a_service(), limited(3, max_exports="3"), quota(3)),
        ("UPDATE", a_service(), limited(3, max_exports="3"), ""),
        ("CREATE", an_endpoints(), limited(3, max_exports="3"), ""),
        ("CREATE", an_endpoints(), limited(3, kind="Endpoints", max_exports="3"), quota(3, "Endpoints")),
        ("CREATE", an_info(), limited(9, kind="ClusterInfo", max_exports="3"), ""),
        ("CREATE", a_label(), limited(3, kind="LabelIdentity", max_exports="3"), quota(3, "LabelIdentity")),
        ("CREATE", a_service(), limited(5, limits=replace(MemberLimits(), max_exports=5)), quota(5)),
        ("CREATE", a_service(), limited(allowed_namespaces="default"), ""),
        (
            "CREATE",
            a_service(),
            limited(allowed_namespaces="other"),
            (
                "cluster east may not export Services of namespace default: neither annotation "
                "mcagent.io/allowed-namespaces of its ServiceAccount on the leader names it, nor "
                "members.allowedNamespaces"
            ),
        ),
        (
            "UPDATE",
            a_service(),
            limited(limits=replace(MemberLimits(), allowed_namespaces=("other",))),
            (
                "cluster east may not export Services of namespace default: neither annotation "
                "mcagent.io/allowed-namespaces of its ServiceAccount on the leader names it, nor "
                "members.allowedNamespaces"
            ),
        ),
        ("CREATE", a_label(), limited(allowed_namespaces="other"), ""),
        (
            "CREATE",
            a_service(),
            limited(max_exports="many"),
            (
                f"ServiceAccount {AREA}/east-sa: annotation mcagent.io/max-exports must be a whole number of "
                'at most 6 digits, not "many": nothing is allowed until it is fixed'
            ),
        ),
    ],
)
def test_limits_of_a_member(operation: str, export: RawObject, world: World, message: str) -> None:
    """Its ServiceAccount's annotations limit number and namespaces; without them, the leader's configuration."""
    decision = ask(operation, export, export if operation == "UPDATE" else None, EAST, world=world)
    assert decision == (denied(message) if message else AdmissionDecision(allowed=True))


def test_a_namespace_that_is_reserved_for_another_member() -> None:
    """A namespace in an annotation of another member's account is that member's."""
    west = account("west-sa", "west")
    west["metadata"]["annotations"][names.ALLOWED_NAMESPACES_ANNOTATION] = "default"
    world = World(accounts=[account("east-sa", "east"), west], sets=[a_set()])
    assert ask("CREATE", a_service(), None, EAST, world=world) == denied(
        "cluster east may not export Services of namespace default: it is reserved for other clusters (annotation "
        "mcagent.io/allowed-namespaces of ServiceAccounts on the leader)"
    )
    assert ask("CREATE", a_service(target="other/nginx"), None, EAST, world=world).allowed


def test_the_size_of_exports_with_endpoints() -> None:
    """The configured limit holds for Endpoints, and is named; others have at most 65,536 bytes."""
    limits = replace(MemberLimits(), max_export_bytes=100_000)
    large = put(an_endpoints(), "spec.other", "x" * 90_000)
    assert ask("CREATE", large, None, EAST, world=limited(limits=limits)).allowed
    larger = put(an_endpoints(), "spec.other", "x" * 100_001)
    assert ask("CREATE", larger, None, EAST, world=limited(limits=limits)) == denied(
        "the export is refused: it is larger than 100000 bytes of JSON, the limit for exports of its kind "
        "(members.maxExportBytes of the leader)"
    )


# --- claims -----------------------------------------------------------------------------------------------


def granted(cluster: str, *cidrs: str, gateway: str = "1.2.3.4") -> RawObject:
    """Return the networks of a cluster that the leader has granted."""
    info = {"clusterID": cluster, "podCIDRs": list(cidrs), "gatewayInfos": [{"gatewayIP": gateway}]}
    metadata = {
        "name": f"{cluster}-clusterinfo",
        "namespace": AREA,
        "creationTimestamp": "2024-01-01T00:00:00Z",
        "annotations": {names.PROVED_ANNOTATION: gateway},
    }
    return {"metadata": metadata, "spec": {"kind": "ClusterInfo", "clusterinfo": info}}


def test_several_claims_that_are_refused() -> None:
    """All reasons are named, at most eight; a conflict has code 409, any other refusal 403."""
    world = replace(WORLD, imports=[granted("west", "10.2.0.0/16", "10.3.0.0/16")])
    old = networks()
    decision = ask("UPDATE", networks("10.2.9.0/24", "10.3.9.0/24"), old, EAST, world=world)
    assert (decision.allowed, decision.code) == (False, 409)
    since = "since 2024-01-01T00:00:00.000000Z"
    assert decision.message == (
        f"Pod CIDR 10.2.9.0/24 is not granted: cluster west has had Pod CIDR 10.2.0.0/16 {since}; "
        f"Pod CIDR 10.3.9.0/24 is not granted: cluster west has had Pod CIDR 10.3.0.0/16 {since}"
    )
    many = networks(*[f"1.2.{number}.0/24" for number in range(9)])
    decision = ask("UPDATE", many, old, EAST, world=world)
    assert (decision.allowed, decision.code) == (False, 403)
    assert decision.message.count("; ") == 7
    answer_to_update = ask("UPDATE", networks("1.2.3.0/24", "10.2.9.0/24"), old, EAST, world=world)
    assert (answer_to_update.code, answer_to_update.message.count("; ")) == (409, 1)
    assert ask(
        "UPDATE",
        networks("10.2.9.0/24"),
        old,
        EAST,
        world=replace(WORLD, imports=[granted("east", "10.2.0.0/16")]),
    ).allowed


def test_a_claim_beside_an_older_conflict() -> None:
    """Only new claims are refused; one that was there before is no reason to let another one pass."""
    world = replace(WORLD, imports=[granted("west", "10.2.0.0/16", "10.3.0.0/16")])
    old, new = networks("10.2.9.0/24"), networks("10.2.9.0/24", "10.3.9.0/24")
    decision = ask("UPDATE", new, old, EAST, world=world)
    assert (decision.allowed, decision.code) == (False, 409)
    assert decision.message.startswith("Pod CIDR 10.3.9.0/24 is not granted")
    assert ask("UPDATE", old, old, EAST, world=world).allowed


def test_bounds_of_claims() -> None:
    """A claim outside the CIDRs of the account is refused, unless the request brings another one."""
    world = limited(allowed_cidrs="10.1.0.0/16")
    decision = ask("UPDATE", networks("10.5.0.0/16"), networks(), EAST, world=world)
    assert (decision.allowed, decision.code) == (False, 403)
    assert decision.message.startswith("Pod CIDR 10.5.0.0/16")
    assert "mcagent.io/allowed-cidrs" in decision.message
    assert ask("UPDATE", networks("10.5.0.0/16"), networks("10.5.0.0/16"), EAST, world=world).allowed
    assert ask("UPDATE", networks("10.5.0.0/16", gateway="192.168.9.2"), networks(), EAST, world=world).allowed


# --- accounts and requests --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "caller", "administrator", "kubernetes"),
    [
        ("alice", None, True, False),
        ("", None, False, False),
        ("system:kube-controller-manager", None, True, True),
        (sa("a", "b"), Caller(namespace="b", name="a"), False, False),
        (
            sa("generic-garbage-collector", "kube-system"),
            Caller(namespace="kube-system", name="generic-garbage-collector"),
            False,
            True,
        ),
        (
            sa("namespace-controller", "kube-system"),
            Caller(namespace="kube-system", name="namespace-controller"),
            False,
            True,
        ),
        (
            sa("namespace-controller", "other"),
            Caller(namespace="other", name="namespace-controller"),
            False,
            False,
        ),
        (ARGO, Caller(namespace="argocd", name="argocd-application-controller"), True, False),
        ("system:serviceaccount:", None, False, False),
        ("system:serviceaccount:a", None, False, False),
        ("system:serviceaccount::a", None, False, False),
        ("system:serviceaccount:a:", None, False, False),
        ("system:serviceaccount:a:b:c", None, False, False),
        ("x:system:serviceaccount:a:b", None, True, False),
    ],
)
def test_callers(user: str, caller: Caller | None, administrator: bool, kubernetes: bool) -> None:
    """A ServiceAccount is its namespace and its name; a malformed one is neither account nor administrator."""
    assert caller_of(user) == caller
    assert is_administrator(user, OWN) is administrator
    assert is_kubernetes(user) is kubernetes
    assert caller is None or f"ServiceAccount {caller.namespace}/{caller.name}" == str(caller)


def test_controllers_of_the_leader() -> None:
    """By default those of both implementations in the own namespace; configured ones replace them."""
    default = accounts_of("home")
    assert default.controllers == {
        Caller(namespace="home", name="mcagent-controller"),
        Caller(namespace="home", name="antrea-mc-controller"),
    }
    assert default.trusted == frozenset()
    configured = accounts_of("home", controllers=["a/b"], trusted=["c/d", "e/f"])
    assert configured.controllers == {Caller(namespace="a", name="b")}
    assert configured.trusted == {Caller(namespace="c", name="d"), Caller(namespace="e", name="f")}


def test_a_request() -> None:
    """All fields are read; kind and namespace are those of the object where the request has none."""
    new, old = a_service(), a_service("west")
    raw: dict[str, Any] = {
        "operation": "UPDATE",
        "kind": {"kind": "Other"},
        "namespace": "there",
        "object": new,
        "oldObject": old,
        "userInfo": {"username": EAST},
    }
    request = read_request(raw)
    assert request is not None
    assert (request.operation, request.kind, request.namespace) == (Operation.UPDATE, "Other", "there")
    assert (request.user, request.caller) == (EAST, Caller(namespace=AREA, name="east-sa"))
    assert (request.object, request.old, request.subject) == (new, old, new)
    for subject in ("object", "oldObject"):
        request = read_request({"operation": "DELETE", subject: new})
        assert request is not None
        assert (request.kind, request.namespace, request.user, request.caller) == (
            "ResourceExport",
            AREA,
            "",
            None,
        )
        assert request.subject == (new if subject == "oldObject" else {})
    for operation in ("CONNECT", "", "create", None):
        assert read_request(raw | {"operation": operation}) is None
        assert review(raw | {"operation": operation}, WORLD, OWN) == AdmissionDecision(allowed=True)
    assert review({"operation": "UPDATE"}, WORLD, OWN) == denied("the request has no object to UPDATE", code=400)
    assert review({"operation": "DELETE", "object": new, "oldObject": 7}, WORLD, OWN).code == 400
    assert review(raw | {"kind": {"kind": "Pod"}}, WORLD, OWN).allowed


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ({}, {}, set()),
        ({"spec": {"a": 1}}, {"spec": {"a": 2}}, {"spec"}),
        ({"spec": {"a": 1}, "status": 1}, {"spec": {"a": 1}, "status": 2}, set()),
        ({"data": {}}, {}, set()),
        (
            {"metadata": {"labels": {"a": "1"}, "finalizers": ["x"]}},
            {"metadata": {"labels": None}},
            {"metadata.labels", "metadata.finalizers"},
        ),
        ({"metadata": {"managedFields": 1, "generation": 1, "resourceVersion": "1"}}, {"metadata": {}}, set()),
        ({"metadata": 7}, {"metadata": {"name": "x"}}, {"metadata.name"}),
        ({}, {"other": 1}, {"other"}),
    ],
)
def test_parts_that_an_update_changes(old: RawObject, new: RawObject, changed: set[str]) -> None:
    """Fields of the metadata count one by one; what only the API server writes, and the status, do not count."""
    assert changed_parts(old, new) == changed
    assert changed_parts(new, old) == changed


def test_cluster_ids_of_accounts() -> None:
    """Only annotated accounts stand for a cluster; of several conflicting IDs the first in order is named."""
    accounts = [
        read_object(Kind.SERVICE_ACCOUNT, raw) for raw in (account("a", "east"), account("b"), account("c", ""))
    ]
    assert bound_clusters(accounts) == {"east"}  # type: ignore[arg-type]
    assert ambiguous_with("east", ["east-2", "east-1"]) == "east-1"
    assert ambiguous_with("east-1", ["east", "east-1-a"]) == "east"
    assert ambiguous_with("east", []) == ""


# --- the mutating review ----------------------------------------------------------------------------------


def mutated(raw: RawObject, operation: str = "CREATE") -> AdmissionDecision:
    """Return the decision of the mutating review."""
    return mutate({"operation": operation, "object": raw})


@pytest.mark.parametrize("kind", ["AntreaClusterNetworkPolicy", "KubernetesPolicy"])
def test_the_patch_of_a_policy(kind: str) -> None:
    """Labels and the finalizer are added as JSON Patch; a complete export has no patch."""
    raw = put(put(put(a_policy(), "spec.kind", kind), "metadata.labels", None), "metadata.finalizers", ["a/b"])
    labels = {"sourceName": "acnp", "sourceNamespace": "", "sourceKind": kind}
    finalizers = ["a/b", "resourceexport.antrea.io/finalizer"]
    patch = (
        {"op": "add", "path": "/metadata/labels", "value": labels},
        {"op": "add", "path": "/metadata/finalizers", "value": finalizers},
    )
    for operation in ("CREATE", "UPDATE"):
        assert mutated(raw, operation) == AdmissionDecision(allowed=True, patch=patch)
    assert mutated(put(raw, "metadata.labels", labels)).patch == patch[1:]
    assert mutated(put(raw, "metadata.finalizers", finalizers)).patch == patch[:1]
    assert mutated(put(raw, "metadata.finalizers", ["resourceexport.finalizers.antrea.io"])).patch == patch[:1]
    assert mutated(leaving(raw)).patch == patch[:1]
    assert mutated(put(put(raw, "metadata.labels", labels), "metadata.finalizers", finalizers)).patch == ()


def test_exports_without_a_patch() -> None:
    """Deletions, other kinds of exports and other objects are allowed unchanged."""
    bare = put(a_policy(), "metadata.labels", None)
    allowed = AdmissionDecision(allowed=True)
    assert mutated(bare, "DELETE") == mutate({"operation": "DELETE", "oldObject": bare}) == allowed
    assert mutated(put(a_service(), "metadata.labels", None)) == allowed
    assert mutated(put(bare, "kind", "ClusterSet")) == allowed
    assert mutated(bare, "CONNECT") == allowed
