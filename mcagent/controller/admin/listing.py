"""The command `mcagent get`: for each kind, its objects, and columns and rows of the table. Rows are pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcagent.controller.admin.cluster import AdminError, Cluster
from mcagent.controller.admin.tokens import tokens
from mcagent.controller.admission.identity import bound_cluster
from mcagent.controller.contract import names
from mcagent.controller.contract.conditions import time_of
from mcagent.controller.leader.cluster_set import is_leader_set
from mcagent.kube.source import RawObject
from mcagent.model.api.base import NO_CONDITION, ApiObject, condition_of
from mcagent.model.api.kubernetes import ServiceAccount
from mcagent.model.api.multicluster import (
    ApiClusterInfoImport,
    ApiGateway,
    ApiServiceExport,
    ClusterSet,
    ResourceExport,
    ResourceImport,
)
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_as, read_object
from mcagent.model.parsing.field import printable

Rows = Callable[[Any, float], Sequence[Sequence[str]]]  # of an object of the kind, and the time
MEMBER_TOKEN = "membertoken"  # noqa: S105 (what it is called)
_BEGIN, _END = 60, 340  # characters of a longer message: the subject, and cause or remedy at the end
_CELL = 420  # characters of a cell: a name has up to 253


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The table of a kind. One object can have several rows."""

    kind: Kind
    head: Sequence[str]
    rows: Rows
    aliases: tuple[str, ...] = ()


def age(obj: ApiObject, now: float) -> str:
    """Return the age of an object as kubectl shows it: 45s, 12m, 5h, 3d."""
    return since(obj.metadata.creation_timestamp, now)


def since(text: str, now: float) -> str:
    """Return the time since an RFC 3339 time: 45s, 12m, 5h, 3d; "-" if the text is none."""
    at = time_of(text)
    if at is None:
        return "-"
    seconds = max(0, int(now - at))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def _message(text: str) -> str:
    return text if len(text) <= _BEGIN + _END else f"{text[:_BEGIN]} ... {text[-_END:]}"


def _cluster_set(obj: ClusterSet, now: float) -> Sequence[Sequence[str]]:
    """Return a row for the ClusterSet as a whole, and one for each cluster."""
    role = "leader" if is_leader_set(obj) else "member"
    ready = condition_of(obj.status.conditions, "Ready")
    total = f"{obj.status.ready_clusters or 0}/{obj.status.total_clusters or 0}"
    own = (obj.namespace, obj.name, obj.spec.cluster_id, role, total)
    rows = [(*own, ready.status or "-", age(obj, now), _message(ready.message))]
    for status in obj.status.cluster_statuses:
        cluster_ready = condition_of(status.conditions, "Ready")
        words = (cluster_ready.status or "-", since(cluster_ready.last_transition_time, now))
        rows.append(("", "", status.cluster_id, "", "", *words, _message(cluster_ready.message)))
    return rows


def _export(obj: ResourceExport, now: float) -> Sequence[Sequence[str]]:
    spec = (obj.spec.cluster_id, obj.spec.kind, obj.spec.namespace, obj.spec.name)
    conditions = (condition_of(obj.status.conditions, kind) for kind in ("Failure", "Conflict", "Succeeded"))
    shown = next((condition for condition in conditions if condition.type), NO_CONDITION)
    return [(obj.namespace, obj.name, *spec, shown.type or "-", age(obj, now), _message(shown.message))]


def _import(obj: ResourceImport, now: float) -> Sequence[Sequence[str]]:
    clusters = ",".join(status.cluster_id for status in obj.status.cluster_statuses)
    spec = (obj.spec.kind, obj.spec.namespace, obj.spec.name)
    return [(obj.namespace, obj.name, *spec, clusters or "-", age(obj, now))]


def _service_export(obj: ApiServiceExport, now: float) -> Sequence[Sequence[str]]:
    valid, conflict = (condition_of(obj.status.conditions, kind) for kind in ("Valid", "Conflict"))
    why = conflict if conflict.is_true else valid
    words = (valid.status or "-", conflict.status or "-", why.reason or "-")
    return [(obj.namespace, obj.name, *words, age(obj, now), _message(why.message))]


def _gateway(obj: ApiGateway, now: float) -> Sequence[Sequence[str]]:
    fields = (text or "-" for text in (obj.gateway_ip, obj.internal_ip, obj.service_cidr))
    return [(obj.namespace, obj.name, *fields, age(obj, now))]


def _cluster_info(obj: ApiClusterInfoImport, now: float) -> Sequence[Sequence[str]]:
    gateways = ",".join(gateway.gateway_ip for gateway in obj.spec.gateway_infos)
    words = (obj.spec.service_cidr or "-", ",".join(obj.spec.pod_cidrs) or "-", gateways or "-")
    return [(obj.namespace, obj.name, obj.spec.cluster_id, *words, age(obj, now))]


def _token(obj: ServiceAccount, now: float) -> Sequence[Sequence[str]]:
    keys = (
        names.ALLOWED_CIDRS_ANNOTATION,
        names.ALLOWED_GATEWAYS_ANNOTATION,
        names.ALLOWED_NAMESPACES_ANNOTATION,
        names.MAX_EXPORTS_ANNOTATION,
    )
    bounds = (obj.annotation(key) or "-" for key in keys)
    return [(obj.namespace, obj.name, bound_cluster(obj) or "-", *bounds, age(obj, now))]


LISTINGS: Mapping[str, Listing] = {
    "clusterset": Listing(
        kind=Kind.CLUSTER_SET,
        head=("NAMESPACE", "NAME", "CLUSTER", "ROLE", "READY", "STATUS", "AGE", "MESSAGE"),
        rows=_cluster_set,
        aliases=("clustersets",),
    ),
    "serviceexport": Listing(
        kind=Kind.SERVICE_EXPORT,
        head=("NAMESPACE", "NAME", "VALID", "CONFLICT", "REASON", "AGE", "MESSAGE"),
        rows=_service_export,
        aliases=("serviceexports", "svcex"),
    ),
    "resourceexport": Listing(
        kind=Kind.RESOURCE_EXPORT,
        head=("AREA", "EXPORT", "CLUSTER", "KIND", "NAMESPACE", "NAME", "STATUS", "AGE", "MESSAGE"),
        rows=_export,
        aliases=("resourceexports", "re"),
    ),
    "resourceimport": Listing(
        kind=Kind.RESOURCE_IMPORT,
        head=("AREA", "IMPORT", "KIND", "NAMESPACE", "NAME", "CLUSTERS", "AGE"),
        rows=_import,
        aliases=("resourceimports", "ri"),
    ),
    "gateway": Listing(
        kind=Kind.GATEWAY,
        head=("NAMESPACE", "NAME", "GATEWAY IP", "INTERNAL IP", "SERVICE CIDR", "AGE"),
        rows=_gateway,
        aliases=("gateways",),
    ),
    "clusterinfoimport": Listing(
        kind=Kind.CLUSTER_INFO_IMPORT,
        head=("NAMESPACE", "NAME", "CLUSTER", "SERVICE CIDR", "POD CIDRS", "GATEWAYS", "AGE"),
        rows=_cluster_info,
        aliases=("clusterinfoimports",),
    ),
    MEMBER_TOKEN: Listing(
        kind=Kind.SERVICE_ACCOUNT,
        head=("NAMESPACE", "NAME", "CLUSTER", "CIDRS", "ALLOWED GATEWAYS", "NAMESPACES", "MAX EXPORTS", "AGE"),
        rows=_token,
        aliases=("membertokens",),
    ),
}


def objects(
    cluster: Cluster, what: str, *, namespace: str = "", name: str = "", cluster_id: str = ""
) -> list[RawObject]:
    """Return the objects to show. Raises McagentError, also if there is no object `name`."""
    listing = LISTINGS[what]
    selected = tokens(cluster, namespace) if what == MEMBER_TOKEN else cluster.objects(listing.kind, namespace)
    if name:
        selected = [obj for obj in selected if obj["metadata"]["name"] == name]
        if not selected:
            raise AdminError(f"there is no {what} {namespace + '/' if namespace else ''}{name}")
    if cluster_id:
        selected = [obj for obj in selected if read_as(ResourceExport, obj).spec.cluster_id == cluster_id]
    return selected


def rows(what: str, found: Sequence[RawObject], now: float) -> list[Sequence[str]]:
    """Return the table's rows. Others write these objects: no cell moves the cursor, or fills the screen."""
    listing = LISTINGS[what]
    objects = (read_object(listing.kind, obj) for obj in found)
    return [tuple(printable(cell, _CELL) for cell in row) for obj in objects for row in listing.rows(obj, now)]
