"""The command `mcagent deploy`: applies objects, and waits until their workloads are rolled out.

It uses server-side apply, so fields of other managers stay. CRDs and Namespaces of other installations stay
unchanged, and so do Tiers. Reads no files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence, Set

import yaml

from mcagent.controller.admin.cluster import AdminError, Cluster, Progress, shown
from mcagent.controller.admin.fields import text_at
from mcagent.controller.admin.manifests import (
    ANTREA_POLICIES,
    CONFIGURED,
    CRD,
    GIVEN_CONFIG,
    NAMESPACE,
    TIER,
    WORKLOADS,
    Part,
    Site,
)
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.source import RawObject
from mcagent.model.api.kubernetes import ConfigMap
from mcagent.model.objects import Kind

TIMEOUT = 300.0  # seconds
SERVED = 30.0  # seconds from a CRD to its kind
_RELEASE, _POLICY = "meta.helm.sh/release-name", "helm.sh/resource-policy"
_SHOWN = 5  # Pods whose state a message has


def release_of(obj: RawObject | None) -> str:
    """Return the Helm release of an object; "" if it has none, or Helm keeps the object."""
    annotations = (obj or {}).get("metadata", {}).get("annotations") or {}
    return "" if annotations.get(_POLICY) == "keep" else str(annotations.get(_RELEASE, ""))


def is_ours(obj: RawObject) -> bool:
    """Tell whether an object has the labels of mcagent's manifests."""
    labels = obj["metadata"].get("labels") or {}
    return "mcagent" in (labels.get("app.kubernetes.io/name"), labels.get("app.kubernetes.io/part-of"))


def deploy(
    cluster: Cluster,
    objects: Sequence[RawObject],
    withdrawn: Sequence[RawObject] = (),
    *,
    force: bool,
    dry_run: bool,
    timeout: float = TIMEOUT,
) -> None:
    """Apply objects in their order, and wait until workloads are rolled out (`timeout` 0: do not wait).

    `withdrawn`: objects that an earlier configuration needed; those of mcagent are deleted.

    Nothing is written if the API server is too old, a kind is missing, an object belongs to a Helm release, or,
    without `force`, a part runs in another namespace. Raises McagentError.
    """
    cluster.require_supported_version()
    kinds = {(obj["spec"]["group"], obj["spec"]["names"]["kind"]) for obj in objects if obj["kind"] == CRD}
    before = {shown(obj): _present(cluster, obj, kinds) for obj in (*objects, *withdrawn)}
    if not force:
        for obj in objects:
            _require_same_namespace(obj, before[shown(obj)])
    absent = {obj["metadata"]["name"] for obj in objects if obj["kind"] == NAMESPACE and not before[shown(obj)]}
    for obj in objects:
        name, present = shown(obj), before[shown(obj)]
        # Never a Namespace, which `mcagent uninstall` would delete, nor the policies of Antrea.
        taken_over = force and obj["kind"] == CRD and obj["spec"]["group"] != ANTREA_POLICIES
        if obj["kind"] in (CRD, NAMESPACE, TIER) and present and not is_ours(present) and not taken_over:
            cluster.report(f"{name} kept: it exists, and belongs to another installation")
        elif dry_run and obj["metadata"].get("namespace") in absent:
            cluster.report(f"{name} not checked: its Namespace is not there yet")
        elif dry_run and not cluster.path_of(obj):
            cluster.report(f"{name} not checked: its CustomResourceDefinition is not there yet")
        else:
            if not cluster.wait(lambda obj=obj: cluster.serves(obj), SERVED):  # type: ignore[misc]
                raise AdminError(f"{name}: after {SERVED:g} s the API server does not serve its kind")
            now = _apply(cluster, obj, force=force, dry_run=dry_run)
            cluster.report(f"{name} {_change(present, now)}{' (dry run)' if dry_run else ''}")
    for obj in withdrawn:
        present = before[shown(obj)]
        if present is not None and is_ours(present):
            if dry_run:
                cluster.report(f"{shown(obj)} would be deleted (dry run)")
            else:
                cluster.remove(obj)
    if timeout and not dry_run:
        _wait(cluster, [obj for obj in objects if obj["kind"] in WORKLOADS], timeout)


def given_config(cluster: Cluster, parts: Set[Part], site: Site) -> dict[Part, RawObject]:
    """Return the keys that the last `mcagent deploy` set, by part, from the annotations of ConfigMaps.

    For a ConfigMap of an earlier version, which has no annotation, that is its clusterID. Raises SourceError.
    """
    configs: dict[Part, RawObject] = {}
    for part in sorted(CONFIGURED.keys() & parts):
        config_map = cluster.read(ConfigMap, site.home(part), f"mcagent-{part}")
        if config_map is None:
            continue
        record = config_map.annotation(GIVEN_CONFIG)
        if record is not None:
            configs[part] = json.loads(record)
        elif cluster_id := text_at(yaml.safe_load(config_map.data.get(CONFIGURED[part], "")), "clusterID"):
            configs[part] = {"clusterID": cluster_id}
    return configs


def _present(cluster: Cluster, obj: RawObject, kinds: Set[tuple[str, str]]) -> RawObject | None:
    """Return the object in the cluster. Raises AdminError if it must not be changed, or cannot be created.

    `kinds`: group and kind of the CRDs that are applied before.
    """
    if not cluster.path_of(obj):
        if (obj["apiVersion"].partition("/")[0], obj["kind"]) in kinds:
            return None
        raise AdminError(f"{shown(obj)}: this API server has no {obj['kind']} of {obj['apiVersion']}")
    present = cluster.present(obj)
    if release := release_of(present):
        raise AdminError(f'{shown(obj)} belongs to the Helm release "{release}": use helm upgrade')
    return present


def _require_same_namespace(obj: RawObject, present: RawObject | None) -> None:
    """Raise AdminError if the cluster-wide rights of a part belong to accounts of another namespace.

    That part runs there: two controllers or agents would work on the same objects, and the first lose its rights.
    """
    namespaces, bound = (_account_namespaces(binding) for binding in (obj, present or {}))
    if namespaces and bound and not namespaces & bound:
        raise AdminError(
            f"{shown(obj)} is that of namespace {', '.join(sorted(bound))}, where this part is installed: give "
            "that namespace, or run mcagent uninstall there first (--force moves the rights, and leaves the rest)"
        )


def _account_namespaces(binding: RawObject) -> set[str]:
    subjects = binding.get("subjects") if binding.get("kind") == "ClusterRoleBinding" else None
    return {subject["namespace"] for subject in subjects or () if subject.get("namespace")}


def _apply(cluster: Cluster, obj: RawObject, *, force: bool, dry_run: bool) -> RawObject:
    try:
        return cluster.apply(obj, force=force, dry_run=dry_run)
    except ApiRefusalError as error:
        if error.code == 409:
            raise AdminError(
                f"{shown(obj)} has fields set by other managers; --force takes them over: {error}"
            ) from error
        raise


def _change(before: RawObject | None, now: RawObject) -> str:
    if before is None:
        return "created"
    return "unchanged" if _content(before) == _content(now) else "changed"


def _content(obj: RawObject) -> RawObject:
    """Return an object without the fields that the server sets."""
    keys = ("labels", "annotations", "finalizers", "ownerReferences")
    meta = {key: obj["metadata"][key] for key in keys if key in obj["metadata"]}
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")} | {"metadata": meta}


def _wait(cluster: Cluster, workloads: Sequence[RawObject], timeout: float) -> None:
    """Wait until all are rolled out, and report the progress. Raises AdminError with the reasons."""
    waiting = list(workloads)
    progress = Progress(cluster)

    def done() -> bool:
        states = {shown(obj): (obj, _missing(cluster.present(obj))) for obj in waiting}
        for name, (obj, missing) in states.items():
            if not missing:
                cluster.report(f"{name} is rolled out")
                waiting.remove(obj)
        text = "; ".join(f"{name}: {missing}" for name, (_, missing) in states.items() if missing)
        if text:
            progress.report(text, f"waiting, {progress.seconds:.0f} s: {text}")
        return not waiting

    if not cluster.wait(done, timeout):
        reasons = [reason for obj in waiting for reason in _reasons(cluster, obj)][:_SHOWN]
        raise AdminError(f"after {timeout:g} s not rolled out: " + "; ".join([progress.text, *reasons]))


def _missing(obj: RawObject | None) -> str:
    """Return why a Deployment or DaemonSet is not rolled out; "" if it is."""
    if obj is None:
        return "it was deleted"
    status: RawObject = obj.get("status") or {}
    if status.get("observedGeneration", 0) < obj["metadata"].get("generation", 1):
        return "its controller has not processed it yet"
    if obj["kind"] == "DaemonSet":
        replicas, old = status.get("desiredNumberScheduled", 0), 0
        ready = min(status.get("updatedNumberScheduled", 0), status.get("numberAvailable", 0))
    else:
        replicas = obj["spec"].get("replicas", 1)
        updated = status.get("updatedReplicas", 0)
        ready, old = min(updated, status.get("availableReplicas", 0)), status.get("replicas", 0) - updated
    return f"{ready} of {replicas} Pods ready" if ready < replicas or old > 0 else ""


def _reasons(cluster: Cluster, workload: RawObject) -> list[str]:
    """Return Kubernetes' reasons why Pods of a workload are not ready."""
    labels = workload["spec"]["selector"]["matchLabels"].items()
    reasons = []
    for pod in cluster.objects(Kind.POD, workload["metadata"]["namespace"]):
        status, meta = pod.get("status") or {}, pod["metadata"]
        if not labels <= (meta.get("labels") or {}).items():
            continue
        states = [container.get("state", {}).get("waiting") for container in status.get("containerStatuses") or ()]
        states += [condition for condition in status.get("conditions") or () if condition.get("status") == "False"]
        cause = next((state for state in states if state and state.get("reason")), None)
        if cause:
            reasons.append(f"Pod {meta['name']}: {cause['reason']}: {cause.get('message', '')}".rstrip(": "))
    return reasons
