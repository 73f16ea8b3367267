"""Applies the objects of an installation to a cluster, and waits until what they run is ready.

Server-side apply: fields of others stay theirs. CRDs and Namespaces that somebody else installed stay as they are.
Knows no files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from time import monotonic
from typing import Any

import yaml

from mcagent.controller.admin.cluster import AdminError, Cluster, shown
from mcagent.controller.admin.fields import text_at
from mcagent.controller.admin.manifests import CONFIGURED, CRD, GIVEN_CONFIG, NAMESPACE, WORKLOADS, Part, Site
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.source import RawObject
from mcagent.model.api.kubernetes import ConfigMap
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_as

TIMEOUT = 300.0  # seconds
_PROGRESS = 5.0  # seconds without a line, at most
_RELEASE, _POLICY = "meta.helm.sh/release-name", "helm.sh/resource-policy"
_SHOWN = 5  # Pods whose state is told


def release_of(obj: RawObject | None) -> str:
    """Return the Helm release that an object goes with, "" if with none: Helm leaves some behind."""
    annotations = (obj or {}).get("metadata", {}).get("annotations") or {}
    return "" if annotations.get(_POLICY) == "keep" else str(annotations.get(_RELEASE, ""))


def is_ours(obj: RawObject) -> bool:
    """Tell whether an object carries the labels of our manifests."""
    labels = obj["metadata"].get("labels") or {}
    return "mcagent" in (labels.get("app.kubernetes.io/name"), labels.get("app.kubernetes.io/part-of"))


def deploy(
    cluster: Cluster, objects: Sequence[RawObject], *, force: bool, dry_run: bool, timeout: float = TIMEOUT
) -> None:
    """Apply objects in their order, and wait until workloads are rolled out (`timeout` 0: do not).

    Nothing is written when a kind is missing, or an object is a Helm release's. Raises McagentError.
    """
    before = {shown(obj): _look(cluster, obj) for obj in objects}
    absent = {obj["metadata"]["name"] for obj in objects if obj["kind"] == NAMESPACE and not before[shown(obj)]}
    for obj in objects:
        name, there = shown(obj), before[shown(obj)]
        taken = force and obj["kind"] == CRD  # a Namespace with our label would be deleted in the end
        if obj["kind"] in (CRD, NAMESPACE) and there and not is_ours(there) and not taken:
            cluster.report(f"{name} kept: it is there, and somebody else's")
        elif dry_run and obj["metadata"].get("namespace") in absent:
            cluster.report(f"{name} not checked: its Namespace is not there yet")
        else:
            now = _apply(cluster, obj, force=force, dry_run=dry_run)
            cluster.report(f"{name} {_change(there, now)}{' (dry run)' if dry_run else ''}")
    if timeout and not dry_run:
        _wait(cluster, [obj for obj in objects if obj["kind"] in WORKLOADS], timeout)


def given_config(cluster: Cluster, parts: Set[Part], site: Site) -> dict[Part, dict[str, Any]]:
    """Return the keys that were given when the ConfigMap of each part was applied last.

    A ConfigMap without that record, of an earlier version, gives its clusterID. Raises SourceError.
    """
    configs: dict[Part, dict[str, Any]] = {}
    for part in sorted(CONFIGURED.keys() & parts):
        raw = cluster.get(Kind.CONFIG_MAP, site.home(part), f"mcagent-{part}")
        if raw is None:
            continue
        config_map = read_as(ConfigMap, raw)
        record = config_map.annotation(GIVEN_CONFIG)
        if record is not None:
            configs[part] = json.loads(record)
        elif cluster_id := text_at(yaml.safe_load(config_map.data.get(CONFIGURED[part], "")), "clusterID"):
            configs[part] = {"clusterID": cluster_id}
    return configs


def _look(cluster: Cluster, obj: RawObject) -> RawObject | None:
    """Return what is there of an object. Raises AdminError when it must not be touched."""
    if not cluster.path_of(obj):
        raise AdminError(
            f"{shown(obj)}: this API server has no {obj['kind']} of {obj['apiVersion']}: is it too old?"
        )
    there = cluster.there(obj)
    if release := release_of(there):
        raise AdminError(f'{shown(obj)} belongs to the Helm release "{release}": use helm upgrade')
    return there


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
    """Return an object less what the server keeps about it."""
    kept = ("labels", "annotations", "finalizers", "ownerReferences")
    meta = {key: obj["metadata"][key] for key in kept if key in obj["metadata"]}
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")} | {"metadata": meta}


def _wait(cluster: Cluster, workloads: Sequence[RawObject], timeout: float) -> None:
    """Wait until all are rolled out, and say how it goes. Raises AdminError that says why they are not."""
    left, told, began = list(workloads), "", monotonic()
    said = began

    def done() -> bool:
        nonlocal told, said
        states = {shown(obj): (obj, _missing(cluster.there(obj))) for obj in left}
        for name, (obj, missing) in states.items():
            if not missing:
                cluster.report(f"{name} is rolled out")
                left.remove(obj)
        text = "; ".join(f"{name}: {missing}" for name, (_, missing) in states.items() if missing)
        if text and (text != told or monotonic() - said >= _PROGRESS):
            told, said = text, monotonic()
            cluster.report(f"waiting, {said - began:.0f} s: {text}")
        return not left

    if not cluster.wait(done, timeout):
        reasons = [reason for obj in left for reason in _reasons(cluster, obj)][:_SHOWN]
        raise AdminError(f"after {timeout:g} s not rolled out: " + "; ".join([told, *reasons]))


def _missing(obj: RawObject | None) -> str:
    """Return what a Deployment or DaemonSet still waits for, "" if for nothing."""
    if obj is None:
        return "it was deleted"
    status: Mapping[str, Any] = obj.get("status") or {}
    if status.get("observedGeneration", 0) < obj["metadata"].get("generation", 1):
        return "its controller has not processed it yet"
    if obj["kind"] == "DaemonSet":
        wanted, old = status.get("desiredNumberScheduled", 0), 0
        ready = min(status.get("updatedNumberScheduled", 0), status.get("numberAvailable", 0))
    else:
        wanted = obj["spec"].get("replicas", 1)
        updated = status.get("updatedReplicas", 0)
        ready, old = min(updated, status.get("availableReplicas", 0)), status.get("replicas", 0) - updated
    return f"{ready} of {wanted} Pods ready" if ready < wanted or old > 0 else ""


def _reasons(cluster: Cluster, workload: RawObject) -> list[str]:
    """Return why Pods of a workload are not ready, as Kubernetes says."""
    labels = workload["spec"]["selector"]["matchLabels"].items()
    found = []
    for pod in cluster.objects(Kind.POD, workload["metadata"]["namespace"]):
        status, meta = pod.get("status") or {}, pod["metadata"]
        if not labels <= (meta.get("labels") or {}).items():
            continue
        states = [one.get("state", {}).get("waiting") for one in status.get("containerStatuses") or ()]
        states += [one for one in status.get("conditions") or () if one.get("status") == "False"]
        told = next((one for one in states if one and one.get("reason")), None)
        if told:
            found.append(f"Pod {meta['name']}: {told['reason']}: {told.get('message', '')}".rstrip(": "))
    return found
