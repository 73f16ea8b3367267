"""The commands `mcagent clusterset`: create, join, leave and destroy. All or nothing, like `antctl mc`.

Unlike there, the access to the leader is deleted only after the ClusterSet, because the member's controller
needs it to leave and clean up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mcagent.controller.admin import allow_list, join_config, token_replacement
from mcagent.controller.admin.cluster import AdminError, Cluster, Progress, check_id, check_name, made_by_command
from mcagent.controller.admin.join_config import JoinConfig
from mcagent.controller.contract import names
from mcagent.controller.contract.cluster_uid import DUPLICATE
from mcagent.controller.contract.commands import CONTROLLER, TOKEN_ROLE, TOKEN_VERBS
from mcagent.controller.contract.export_ranges import read_used
from mcagent.controller.contract.pod_ranges import read_used_pods
from mcagent.controller.member.published import AGENTS_TOO_OLD, ASSIGNED, CONFIGURED
from mcagent.kube.source import RawObject
from mcagent.model.api.base import NO_CONDITION, condition_of
from mcagent.model.api.kubernetes import ApiNode
from mcagent.model.api.multicluster import ClusterSet, MemberClusterAnnounce
from mcagent.model.errors import InputError
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_as

JOIN_TIMEOUT = 60.0  # seconds, as antctl waits
LEAVE_TIMEOUT = 60.0  # for so long the member's controller waits for a leader that is away
_SPARE = 15.0  # seconds
RANGE_TIMEOUT = 15.0  # seconds
MEMBER_NAMESPACE = "kube-system"
_RBAC = "rbac.authorization.k8s.io"
_TO_REPLACE = ". For a new token of it: mcagent clusterset join --token-secret-file FILE, without other IDs"
_NEXT = {  # the next step for a ClusterSet that is not Ready, by its reason
    "Disconnected": "check that this cluster's Pods reach the leader's API server, and that CA and token match it",
    "AnnounceFailed": "check that the leader's controller runs, its API server reaches the controller's webhook, "
    "and the token is this cluster's (on the leader: mcagent get membertoken)",
    DUPLICATE: "check --clusterid, and that the token is this cluster's (on the leader: mcagent get clusterset)",
}


def init(
    cluster: Cluster,
    namespace: str,
    cluster_set: str,
    cluster_id: str,
    file: Path | None = None,
    *,
    allowed_cidrs: Sequence[str] = (),
) -> None:
    """Create a leader's ClusterSet, and the join config for members in `file`. Raises McagentError, OSError.

    `allowed_cidrs`: that members may claim, by default those of this cluster.
    """
    check_name(cluster_set, "--clusterset")
    check_id(cluster_id, "--clusterid")
    _check_only_one(cluster, namespace)
    spec = {"clusterID": cluster_id, "leaders": [{"clusterID": cluster_id}]}
    with cluster.undoing():
        annotations = allow_list.annotations_for(cluster, allowed_cidrs)
        content = {"metadata": {"annotations": annotations}, "spec": spec}
        created = cluster.create(Kind.CLUSTER_SET, namespace, cluster_set, content)
        if file is not None:
            join_config.write(
                file, join_config.text(config_of(read_as(ClusterSet, created), cluster.server)), secret=False
            )
            cluster.report(f"join config for members written to {file}")
            if join_config.is_local(cluster.server):
                cluster.report(f"edit it: members do not reach the leader's API server at {cluster.server}")


def config_of(cluster_set: ClusterSet, server: str) -> JoinConfig:
    """Return the join config of a leader's ClusterSet. Raises AdminError for a member's ClusterSet."""
    if not cluster_set.is_leaders:
        raise AdminError(f"ClusterSet {cluster_set.key} is a member's, not the leader's")
    return JoinConfig(
        cluster_set=cluster_set.name,
        leader_id=cluster_set.leader_id,
        leader_namespace=cluster_set.namespace,
        leader_server=server,
    )


def join(
    cluster: Cluster, config: JoinConfig, secret: RawObject | None = None, *, timeout: float = JOIN_TIMEOUT
) -> None:
    """Join this cluster, and wait until it is a member (`timeout` 0: do not wait). Raises McagentError, OSError.

    `secret`: the manifest in the file of the join config. The join config's Secret name precedes its Secret
    file, and that precedes `secret`. If the cluster is in this ClusterSet already, the token is replaced.
    """
    namespace = config.namespace or MEMBER_NAMESPACE
    has_token = bool(config.secret_file or secret) and not config.secret_name
    present = token_replacement.membership_of(cluster, namespace) if has_token else None
    if present is not None and token_replacement.agrees(config, present):
        _replace_token(cluster, present, _manifest(config, secret) or {}, timeout)
        return
    missing = config.missing()
    if missing:
        raise InputError("join", ", ".join(missing), "is in neither the join config nor a flag")
    check_name(config.cluster_set, "clusterSetID")
    check_id(config.cluster_id, "clusterID")
    if not config.leader_server.startswith("https://"):
        raise InputError("join", "leaderAPIServer", f'must begin with https://: "{config.leader_server}"')
    manifest = None if config.secret_name else _manifest(config, secret)
    if config.secret_name and cluster.get(Kind.SECRET, namespace, config.secret_name) is None:
        raise AdminError(f"there is no Secret {namespace}/{config.secret_name} with the leader's token")
    _check_only_one(cluster, namespace, _TO_REPLACE)
    name = config.secret_name or str(manifest and manifest["metadata"]["name"])
    leader = {"clusterID": config.leader_id, "server": config.leader_server, "secret": name}
    spec = {
        "clusterID": config.cluster_id,
        "leaders": [leader],
        "namespace": config.leader_namespace,
    }
    with cluster.undoing():
        if manifest is not None:
            cluster.create(Kind.SECRET, namespace, name, {key: manifest[key] for key in ("type", "data")})
        _let_read(cluster, namespace, name)
        cluster.create(Kind.CLUSTER_SET, namespace, config.cluster_set, {"spec": spec})
        if timeout:
            _wait_ready(cluster, namespace, config.cluster_set, timeout)
    if timeout:
        _report_range(cluster, namespace, config.cluster_set)


def _replace_token(cluster: Cluster, present: JoinConfig, manifest: RawObject, timeout: float) -> None:
    cluster.report(f"this cluster is in ClusterSet {present.cluster_set} already: its token is replaced")
    with cluster.undoing():
        token_replacement.write_token(cluster, present, manifest["data"])
        if timeout:
            token_replacement.wait_in_use(cluster, present, manifest["data"], timeout)
            _wait_ready(cluster, present.namespace, present.cluster_set, timeout)


def _let_read(cluster: Cluster, namespace: str, secret: str) -> None:
    """Create the Role by which the member's controller reads and renews the leader's token, in one Secret."""
    rule = {
        "apiGroups": [""],
        "resources": ["secrets"],
        "resourceNames": [secret],
        "verbs": list(TOKEN_VERBS),
    }
    subject = {"kind": "ServiceAccount", "name": CONTROLLER, "namespace": namespace}
    role_ref = {"apiGroup": _RBAC, "kind": "Role", "name": TOKEN_ROLE}
    for kind, content in (
        (Kind.ROLE_BINDING, {"roleRef": role_ref, "subjects": [subject]}),
        (Kind.ROLE, {"rules": [rule]}),
    ):
        cluster.delete(kind, namespace, TOKEN_ROLE)  # of an earlier ClusterSet, or of a manifest
        cluster.create(kind, namespace, TOKEN_ROLE, content)


def _manifest(config: JoinConfig, secret: RawObject | None) -> RawObject:
    """Return the checked Secret to create. Raises InputError without its content."""
    manifest = join_config.read_secret(Path(config.secret_file)) if config.secret_file else secret
    if manifest is None:
        raise InputError("join", "tokenSecretName", "is missing: name a Secret, or a file with one")
    subject = config.secret_file or "Secret of the join config"
    meta, data = manifest.get("metadata"), manifest.get("data")
    if not isinstance(meta, Mapping) or not isinstance(meta.get("name"), str):
        raise InputError(subject, "metadata.name", "is missing")
    if not isinstance(data, Mapping) or not all(isinstance(data.get(key), str) for key in ("ca.crt", "token")):
        raise InputError(subject, "data", "must have ca.crt and token, in base64")
    return {"type": "Opaque", "data": dict(data), "metadata": {"name": check_name(meta["name"], subject)}}


def _check_only_one(cluster: Cluster, namespace: str, hint: str = "") -> None:
    """Wait for the end of a deletion, such as that of a failed join. Raises AdminError if a ClusterSet stays."""

    def names(*, deleted: bool) -> str:
        cluster_sets = cluster.typed(ClusterSet, namespace)
        return ", ".join(item.name for item in cluster_sets if item.is_deleting == deleted)

    if present := names(deleted=False):
        raise AdminError(f"namespace {namespace} has a ClusterSet already: {present}{hint}")
    if leaving := names(deleted=True):
        cluster.report(f"waiting up to {LEAVE_TIMEOUT + _SPARE:g} s for the deletion of ClusterSet {leaving}")
        if not cluster.wait(lambda: not names(deleted=True), LEAVE_TIMEOUT + _SPARE):
            raise AdminError(
                f"ClusterSet {leaving} in namespace {namespace} is still being deleted: does the controller run?"
            )


def _wait_ready(cluster: Cluster, namespace: str, name: str, timeout: float) -> None:
    """Wait until the leader has accepted this cluster's announcement. Raises AdminError with the reason."""
    last = NO_CONDITION
    progress = Progress(cluster)

    def ready() -> bool:
        nonlocal last
        cluster_set = cluster.read(ClusterSet, namespace, name) or ClusterSet()
        last = condition_of(cluster_set.status.conditions, "Ready")
        if last.is_true or last.reason == DUPLICATE:  # which does not end by itself
            return True
        state = last.message or "no controller has processed it yet"
        progress.report(last.message, f"waiting, {progress.seconds:.0f} s: {state}")
        return False

    cluster.report(f"waiting up to {timeout:g} s for the leader to accept this cluster")
    if cluster.wait(ready, timeout) and last.is_true:
        cluster.report(f"this cluster is a member of {name}")
        return
    subject = f"after {min(timeout, progress.seconds):.0f} s ClusterSet {namespace}/{name}"
    if not last.type:
        raise AdminError(f"{subject} has no status: does the member controller run in namespace {namespace}?")
    then, message = _NEXT.get(last.reason, ""), last.message or "no reason is given"
    raise AdminError(f"{subject} is not Ready: {message}" + (f". Next: {then}" if then else ""))


def _report_range(cluster: Cluster, namespace: str, name: str) -> None:
    """Wait until the export range is decided, and report it. The leader decides once it knows a gateway."""
    if not any(node.annotation(names.GATEWAY_ANNOTATION) == "true" for node in cluster.typed(ApiNode)):
        cluster.report("whether it needs an export range is decided when a Node is annotated as its gateway")
        return
    own_range, pods = None, None

    def decided() -> bool:
        nonlocal own_range, pods
        cluster_set = cluster.read(ClusterSet, namespace, name) or ClusterSet()
        own_range, pods = read_used(cluster_set), read_used_pods(cluster_set)
        return all(decision is not None and decision.reason != AGENTS_TOO_OLD for decision in (own_range, pods))

    cluster.wait(decided, RANGE_TIMEOUT)
    if own_range is None:
        cluster.report("whether it needs an export range is not decided yet (mcagent get clusterset)")
    elif own_range.cidr and own_range.reason in (ASSIGNED, CONFIGURED):
        cluster.report(
            f"its exported Services have addresses of {own_range.cidr} in other clusters: {own_range.why}"
        )
    elif own_range.reason:
        cluster.report(f"its exported Services have no export range: {own_range.why}")
    else:
        cluster.report("its exported Services have their ClusterIPs in other clusters: its Service CIDR is free")
    if pods is not None and pods.reason in (ASSIGNED, CONFIGURED):
        shown = ", ".join(f"{pair.virtual} (for {pair.real})" for pair in pods.pairs)
        cluster.report(f"its Pods have addresses of {shown} in other clusters: {pods.why}")
    elif pods is not None and pods.reason:
        cluster.report(f"its Pods have no virtual addresses: {pods.why}")


def members(cluster: Cluster, namespace: str, cluster_set: str) -> list[str]:
    """Return the cluster IDs of the members of a leader's ClusterSet, sorted. Raises SourceError."""
    announces = cluster.typed(MemberClusterAnnounce, namespace)
    return sorted(announce.cluster_id for announce in announces if announce.cluster_set_id == cluster_set)


def leave(cluster: Cluster, namespace: str, cluster_set: str, *, timeout: float = LEAVE_TIMEOUT) -> None:
    """Delete a member's or leader's ClusterSet, then all objects in its namespace that commands created.

    Missing objects are ignored, so it can be repeated. Raises McagentError.
    """
    present = [item.name for item in cluster.typed(ClusterSet, namespace)]
    if present and cluster_set not in present:
        raise AdminError(f"namespace {namespace} has no ClusterSet {cluster_set}; it has {', '.join(present)}")
    if not present:
        cluster.report(f"ClusterSet {namespace}/{cluster_set} is not there")
    else:
        cluster.delete(Kind.CLUSTER_SET, namespace, cluster_set)
        finalizers: Sequence[str] = ()

        def gone() -> bool:
            nonlocal finalizers
            obj = cluster.read(ClusterSet, namespace, cluster_set)
            finalizers = obj.metadata.finalizers if obj is not None else ()
            return obj is None

        if not cluster.wait(gone, timeout):
            raise AdminError(
                f"ClusterSet {namespace}/{cluster_set} is still held after {timeout:g} s, by "
                f"{', '.join(finalizers)}: does the member controller run, and reach the leader? Repeat "
                "the command when it does"
            )
    for kind in (Kind.SECRET, Kind.ROLE_BINDING, Kind.ROLE, Kind.SERVICE_ACCOUNT):
        for obj in cluster.objects(kind, namespace):
            if made_by_command(obj):
                cluster.delete(kind, namespace, obj["metadata"]["name"])
