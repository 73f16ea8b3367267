"""What this cluster's ResourceExports have in common: their labels, finalizer and name. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mcagent.controller.contract import names
from mcagent.controller.contract.antrea_before_2_7 import held_finalizers
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.machinery.reconciler import Index, Json, Leader, Ref, Side, Wanted
from mcagent.controller.settings import MemberSettings
from mcagent.model import objects
from mcagent.model.api.multicluster import ApiGateway, ResourceExport, WireGuard
from mcagent.model.objects import Kind
from mcagent.model.parsing.parse import parse_object


def export_ref(leader: Leader, name: str) -> Ref:
    """Return the name of a ResourceExport on the leader."""
    return Ref(side=Side.LEADER, kind=Kind.RESOURCE_EXPORT, namespace=leader.namespace, name=name)


def resource_export(
    ref: Ref, spec: Json, present: ResourceExport | None, annotations: Mapping[str, str | None] | None = None
) -> Wanted:
    """Return a ResourceExport as the leader's webhook wants it: with labels that repeat `spec`, and the finalizer.

    `present` is the object as it is; finalizers of others stay.
    """
    labels = {names.LABEL_SOURCE_KIND: spec["kind"], names.LABEL_SOURCE_CLUSTER_ID: spec["clusterID"]}
    if spec["kind"] != ExportKind.CLUSTER_INFO:
        labels |= {names.LABEL_SOURCE_NAMESPACE: spec["namespace"], names.LABEL_SOURCE_NAME: spec["name"]}
    held = present.metadata.finalizers if present is not None else ()
    meta: Json = {"labels": labels, "finalizers": held_finalizers(held)}
    if annotations:
        meta["annotations"] = dict(annotations)
    return Wanted(ref=ref, body={"metadata": meta, "spec": spec})


def read_gateway(gateway: ApiGateway) -> objects.Gateway:
    """Return a Gateway with its addresses. Raises InputError."""
    value = parse_object(gateway).value
    assert isinstance(value, objects.Gateway)
    return value


def published(info: objects.WireGuardInfo | None) -> WireGuard | None:
    """Return what is published of a gateway's WireGuard device; None when that is nothing."""
    if info is None:
        return None
    return WireGuard(public_key=info.public_key, next_public_key=info.next_public_key, port=info.port or None)


def published_settings(settings: MemberSettings) -> dict[str, str | None]:
    """Return the annotations for settings on which all clusters must agree; None: not published."""
    return {
        names.ENDPOINT_IP_TYPE_ANNOTATION: str(settings.endpoint_ip_type),
        names.TUNNEL_TYPE_ANNOTATION: settings.tunnel_type or None,
        names.TUNNEL_PORT_ANNOTATION: str(settings.tunnel_port) if settings.tunnel_port else None,
    }


def _by_cluster(export: ResourceExport) -> Iterable[str]:
    return [export.spec.cluster_id]


BY_CLUSTER = Index("exports-by-cluster", ResourceExport, Side.LEADER, _by_cluster)  # under the cluster ID
