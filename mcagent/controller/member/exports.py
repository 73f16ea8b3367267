"""What this cluster's ResourceExports have in common: their labels, finalizer and name. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mcagent.controller.contract import names
from mcagent.controller.contract.antrea_before_2_7 import held_finalizers
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.raw import texts_at, value_at
from mcagent.controller.machinery.reconciler import Index, Leader, Ref, Side, Wanted
from mcagent.controller.settings import MemberSettings
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind, WireGuardInfo


def export_ref(leader: Leader, name: str) -> Ref:
    """Return the name of a ResourceExport on the leader."""
    return Ref(side=Side.LEADER, kind=Kind.RESOURCE_EXPORT, namespace=leader.namespace, name=name)


def resource_export(
    ref: Ref, spec: RawObject, there: RawObject | None, annotations: Mapping[str, str | None] | None = None
) -> Wanted:
    """Return a ResourceExport as the leader's webhook wants it: with labels that repeat `spec`, and the finalizer.

    `there` is the object as it is; finalizers of others stay.
    """
    labels = {names.LABEL_SOURCE_KIND: spec["kind"], names.LABEL_SOURCE_CLUSTER_ID: spec["clusterID"]}
    if spec["kind"] != ExportKind.CLUSTER_INFO:
        labels |= {names.LABEL_SOURCE_NAMESPACE: spec["namespace"], names.LABEL_SOURCE_NAME: spec["name"]}
    held = texts_at(there, "metadata", "finalizers")
    meta: RawObject = {"labels": labels, "finalizers": held_finalizers(held)}
    if annotations:
        meta["annotations"] = dict(annotations)
    return Wanted(ref=ref, body={"metadata": meta, "spec": spec})


def wireguard_fields(info: WireGuardInfo | None) -> RawObject:
    """Return what is published of a gateway's WireGuard device; {} when that is nothing."""
    if info is None:
        return {}
    found: RawObject = {"publicKey": info.public_key}
    found |= {"nextPublicKey": info.next_public_key} if info.next_public_key else {}
    return found | ({"port": info.port} if info.port else {})


def published_settings(settings: MemberSettings) -> dict[str, str | None]:
    """Return the annotations for settings on which all clusters must agree; None: not published."""
    return {
        names.ENDPOINT_IP_TYPE_ANNOTATION: str(settings.endpoint_ip_type),
        names.TUNNEL_TYPE_ANNOTATION: settings.tunnel_type or None,
        names.TUNNEL_PORT_ANNOTATION: str(settings.tunnel_port) if settings.tunnel_port else None,
    }


def _by_cluster(obj: RawObject) -> Iterable[str]:
    found = value_at(obj, "spec", "clusterID")
    return [found] if isinstance(found, str) else []


BY_CLUSTER = Index(
    name="exports-by-cluster", kind=Kind.RESOURCE_EXPORT, side=Side.LEADER, values=_by_cluster
)  # under the cluster ID
