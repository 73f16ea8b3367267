"""Member tokens: on the leader a ServiceAccount that represents one cluster, its RoleBinding and its token.

Names, annotations and rules are those of `antctl mc ... membertoken`; tokens that expire are mcagent's
(`expiring_tokens`). The token is written to a file that only its owner can read, never to a message.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import yaml

from mcagent.controller.admin import allow_list, expiring_tokens, join_config
from mcagent.controller.admin.cluster import AdminError, Cluster, check_id, check_name, made_by_command
from mcagent.controller.admission.identity import ambiguous_with, bound_cluster
from mcagent.controller.contract import names
from mcagent.controller.leader.exports.bounds import annotation_errors
from mcagent.kube.source import RawObject
from mcagent.model.api.kubernetes import ServiceAccount
from mcagent.model.errors import InputError
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_as

MEMBER_ROLE = "antrea-mc-member-cluster-role"
TOKEN_TYPE = "kubernetes.io/service-account-token"  # noqa: S105 (a type of Secret)
ACCOUNT_ANNOTATION = "kubernetes.io/service-account.name"
TOKEN_TIMEOUT = 5.0  # seconds for kube-controller-manager to fill the Secret
LIFETIME = 365 * 24 * 3600  # seconds, of a token if no controller fills Secrets; the server may shorten it
_RBAC = "rbac.authorization.k8s.io"
# In the order of deletion: an API server accepts a token in use for ten more seconds, but without its RoleBinding
# the token has no rights.
_MADE = (Kind.ROLE_BINDING, Kind.SERVICE_ACCOUNT, Kind.SECRET)


def bounds(
    cidrs: Sequence[str] = (),
    namespaces: Sequence[str] = (),
    max_exports: int | None = None,
    gateways: Sequence[str] = (),
) -> dict[str, str]:
    """Return the annotations that limit a member; without a value there is no annotation. Raises InputError."""
    texts = {
        names.ALLOWED_CIDRS_ANNOTATION: ",".join(cidrs),
        names.ALLOWED_GATEWAYS_ANNOTATION: ",".join(gateways),
        names.ALLOWED_NAMESPACES_ANNOTATION: ",".join(namespaces),
        names.MAX_EXPORTS_ANNOTATION: "" if max_exports is None else str(max_exports),
    }
    annotations = {key: text for key, text in texts.items() if text}
    if errors := annotation_errors(annotations):
        raise InputError("--allow-cidr, --allow-gateway, --allow-namespace, --max-exports", "", errors)
    return annotations


def create(
    cluster: Cluster,
    namespace: str,
    name: str,
    cluster_id: str,
    file: Path | None = None,
    *,
    bounds: Mapping[str, str] = MappingProxyType({}),
    lifetime: int | None = None,
) -> None:
    """Create a token for a member cluster, all or nothing. Raises McagentError, OSError.

    `bounds`: the annotations of `bounds()`. `lifetime`: seconds; None: the token does not expire. A present
    ServiceAccount of that name is bound to the cluster. A cluster has one token: the ID of another account, or one
    that makes a dash-prefix pair with it, is refused.
    """
    check_name(name, "NAME")
    check_id(cluster_id, "--cluster-id")
    check_name(names.announce(cluster_id), "the name of the cluster's announcement")
    role = f"/apis/{_RBAC}/v1/namespaces/{namespace}/roles/{MEMBER_ROLE}"
    if cluster.find(role) is None:
        raise AdminError(
            f"there is no Role {namespace}/{MEMBER_ROLE}: is the leader's controller deployed in {namespace}?"
        )
    _check_unique(cluster, namespace, name, cluster_id)
    if lifetime is not None:
        expiring_tokens.check_enforced(cluster)
    with cluster.undoing():
        present = cluster.read(ServiceAccount, namespace, name)
        bounds = {**_default_cidrs(cluster, namespace, cluster_id, present, bounds), **bounds}
        annotations = {names.CLUSTER_ID_ANNOTATION: cluster_id, **bounds}
        if present is None:
            cluster.create(Kind.SERVICE_ACCOUNT, namespace, name, {"metadata": {"annotations": annotations}})
        else:
            cluster.annotate(Kind.SERVICE_ACCOUNT, namespace, name, annotations)
            cluster.report(f"ServiceAccount {namespace}/{name} stands for cluster {cluster_id} now")
        subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
        role_ref = {"apiGroup": _RBAC, "kind": "Role", "name": MEMBER_ROLE}
        cluster.create(Kind.ROLE_BINDING, namespace, name, {"roleRef": role_ref, "subjects": [subject]})
        _issue(cluster, namespace, name, lifetime, file)


def _issue(cluster: Cluster, namespace: str, name: str, lifetime: int | None, file: Path | None) -> None:
    """Create the Secret with the token, or the anchor of tokens that expire; write the file for the member."""
    if lifetime is None:
        secret = {"type": TOKEN_TYPE, "metadata": {"annotations": {ACCOUNT_ANNOTATION: name}}}
        cluster.create(Kind.SECRET, namespace, name, secret)
        filled = _filled(cluster, namespace, name) or _requested(cluster, namespace, name)
        if file is not None:
            _save(cluster, file, filled)
        return
    anchor = expiring_tokens.create_anchor(cluster, namespace, name, lifetime)
    if file is not None:
        _save(cluster, file, expiring_tokens.request(cluster, namespace, name, anchor))
    expiring_tokens.let_renew(cluster, namespace, name)


def rotate(cluster: Cluster, namespace: str, name: str, file: Path, *, lifetime: int | None) -> None:
    """Replace the token of a member: write a new one to a file, and revoke all earlier ones.

    The account keeps its limits. `lifetime` as in `create`. Raises McagentError, OSError.
    """
    account = cluster.read(ServiceAccount, namespace, name)
    if account is None or not bound_cluster(account):
        raise AdminError(_no_token(namespace, name))
    if lifetime is not None:
        expiring_tokens.check_enforced(cluster)
    earlier = expiring_tokens.anchors(cluster, namespace, name)
    secret = cluster.get(Kind.SECRET, namespace, name)
    if secret is not None and lifetime is None:
        cluster.delete(Kind.SECRET, namespace, name)  # the new one has its name
    with cluster.undoing():
        _issue(cluster, namespace, name, lifetime, file)
    if lifetime is None:
        _end_renewal(cluster, namespace, name)
    for anchor in earlier:
        cluster.delete(Kind.SECRET, namespace, anchor)
    if secret is not None and lifetime is not None:
        cluster.delete(Kind.SECRET, namespace, name)


def _end_renewal(cluster: Cluster, namespace: str, name: str) -> None:
    """Take the right to renew from an account."""
    role = expiring_tokens.renewal_role(name)
    for kind in (Kind.ROLE_BINDING, Kind.ROLE):
        obj = cluster.get(kind, namespace, role)
        if obj is not None and made_by_command(obj):
            cluster.delete(kind, namespace, role)


def _default_cidrs(
    cluster: Cluster, namespace: str, cluster_id: str, account: ServiceAccount | None, bounds: Mapping[str, str]
) -> dict[str, str]:
    """Return the ClusterSet's list of CIDRs as an annotation, for a member without one; report what applies."""
    own = names.ALLOWED_CIDRS_ANNOTATION
    if own in bounds or (account is not None and account.annotation(own) is not None):
        return {}
    text = allow_list.inherited(cluster, namespace)
    allowed = f"CIDRs in {text}, as the ClusterSet says" if text else "what members.allowedCIDRs allows"
    cluster.report(f"no --allow-cidr: cluster {cluster_id} may claim {allowed}")
    return {own: text} if text else {}


def _check_unique(cluster: Cluster, namespace: str, name: str, cluster_id: str) -> None:
    for account in cluster.typed(ServiceAccount, namespace):
        other, bound = account.name, bound_cluster(account)
        if not bound or other == name:
            continue
        if bound == cluster_id:
            raise AdminError(f"ServiceAccount {namespace}/{other} stands for cluster {cluster_id} already")
        if ambiguous_with(cluster_id, [bound]):
            raise AdminError(
                f"cluster IDs {cluster_id} and {bound} (ServiceAccount {other}) cannot be distinguished in names: "
                "one is the other plus a dash and more"
            )


def _filled(cluster: Cluster, namespace: str, name: str) -> RawObject | None:
    """Return the token's Secret after the cluster has filled it; None after TOKEN_TIMEOUT."""
    filled: list[RawObject] = []

    def look() -> bool:
        secret = cluster.get(Kind.SECRET, namespace, name)
        if secret and {"token", "ca.crt"} <= (secret.get("data") or {}).keys():
            filled.append(secret)
        return bool(filled)

    return filled[0] if cluster.wait(look, TOKEN_TIMEOUT) else None


def _requested(cluster: Cluster, namespace: str, name: str) -> RawObject:
    """Return a Secret with a token of the TokenRequest API, for a cluster in which no controller fills Secrets."""
    ca = cluster.get(Kind.CONFIG_MAP, namespace, "kube-root-ca.crt")
    authority = ((ca or {}).get("data") or {}).get("ca.crt")
    if not authority:
        raise AdminError(
            f"Secret {namespace}/{name} got no token within {TOKEN_TIMEOUT:g} s, and there is no ConfigMap "
            "kube-root-ca.crt to ask for one: does kube-controller-manager run?"
        )
    path = object_path(Kind.SERVICE_ACCOUNT, namespace, name) + "/token"
    spec = {"expirationSeconds": LIFETIME}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    status = cluster.request("POST", path, body)["status"]
    cluster.delete(Kind.SECRET, namespace, name)
    encoded = {"token": status["token"], "ca.crt": authority, "namespace": namespace}
    data = {key: base64.b64encode(value.encode()).decode() for key, value in encoded.items()}
    created = cluster.create(Kind.SECRET, namespace, name, {"type": "Opaque", "data": data})
    cluster.report(f"nothing fills Secrets here, so the token EXPIRES at {status['expirationTimestamp']}")
    return created


def portable(secret: RawObject) -> RawObject:
    """Return a token's Secret as a manifest for members: of type Opaque, without namespace."""
    data = secret.get("data") or {}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret["metadata"]["name"]},
        "type": "Opaque",
        "data": {key: data[key] for key in ("ca.crt", "namespace", "token") if key in data},
    }


def _save(cluster: Cluster, file: Path, secret: RawObject) -> None:
    join_config.write(file, yaml.safe_dump(portable(secret), sort_keys=False), secret=True)
    cluster.report(f"Secret with the token written to {file}: treat it like a password")


def save(cluster: Cluster, namespace: str, name: str, file: Path) -> None:
    """Write a member's token to a file that only its owner can read. Raises McagentError, OSError.

    A token that expires is in no object of the leader: the file has a new one, bound to the same anchor.
    """
    secret = cluster.get(Kind.SECRET, namespace, name)
    if secret is not None and "token" in (secret.get("data") or {}):
        _save(cluster, file, secret)
    elif anchors := expiring_tokens.anchors(cluster, namespace, name):
        _save(cluster, file, expiring_tokens.request(cluster, namespace, name, anchors[-1]))
    else:
        raise AdminError(f"there is no Secret {namespace}/{name} with a token")


def delete(cluster: Cluster, namespace: str, name: str) -> None:
    """Delete the objects of `create`; objects that no command created stay.

    Raises McagentError; AdminError also if the member keeps its access by an object that stays.
    """
    objects = {kind: cluster.get(kind, namespace, name) for kind in _MADE}
    anchors = expiring_tokens.anchors(cluster, namespace, name)
    if not anchors and not any(objects.values()):
        raise AdminError(_no_token(namespace, name))
    _end_renewal(cluster, namespace, name)  # first: afterwards no token has a successor
    for kind, obj in objects.items():
        if obj is not None and made_by_command(obj):
            cluster.delete(kind, namespace, name)
        elif obj is not None:
            cluster.report(f"{kind} {namespace}/{name} was not made by a command, and stays")
    for anchor in anchors:
        cluster.delete(Kind.SECRET, namespace, anchor)
    binding = objects[Kind.ROLE_BINDING]
    if binding is not None and not made_by_command(binding):
        raise AdminError(
            f"the token still has its rights: kubectl delete rolebinding {name} -n {namespace} revokes them"
        )


def _no_token(namespace: str, name: str) -> str:
    return f"there is no member token {namespace}/{name}: mcagent membertoken get -n {namespace} lists them"


def tokens(cluster: Cluster, namespace: str = "") -> list[RawObject]:
    """Return the ServiceAccounts that represent clusters."""
    accounts = cluster.objects(Kind.SERVICE_ACCOUNT, namespace)
    return [account for account in accounts if bound_cluster(read_as(ServiceAccount, account))]
