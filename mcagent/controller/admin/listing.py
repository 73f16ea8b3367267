"""The command `mcagent get`: for each kind, its objects, and columns and rows of the table. Rows are pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mcagent.controller.admin import token_life
from mcagent.controller.admin.cluster import AdminError, Cluster
from mcagent.controller.admin.tokens import tokens
from mcagent.controller.admission.identity import bound_cluster
from mcagent.controller.contract import area_holder, names
from mcagent.controller.contract.conditions import span_text, time_of
from mcagent.controller.contract.export_ranges import read_ranges
from mcagent.controller.contract.health import HEALTHY
from mcagent.controller.contract.pod_ranges import read_pod_ranges
from mcagent.controller.leader.cluster_set import UNIQUE
from mcagent.controller.machinery.reconciler import Object
from mcagent.controller.member.leader_token import LEADER_TOKEN
from mcagent.controller.member.published import EXPORT_RANGE, POD_RANGE
from mcagent.controller.member.services.export_conditions import NO_ENDPOINT
from mcagent.kube.source import RawObject
from mcagent.model.api.base import NO_CONDITION, ApiObject, Condition, condition_of
from mcagent.model.api.kubernetes import ServiceAccount
from mcagent.model.api.multicluster import (
    ApiClusterInfoImport,
    ApiGateway,
    ApiServiceExport,
    ApiServiceImport,
    ClusterSet,
    ResourceExport,
    ResourceImport,
)
from mcagent.model.keys.values import did_you_mean
from mcagent.model.objects import Kind
from mcagent.model.parsing import links
from mcagent.model.parsing.decode import read_as
from mcagent.model.parsing.field import printable

Rows = Sequence[Sequence[str]]
MEMBER_TOKEN = "membertoken"  # noqa: S105 (what it is called)
_BEGIN, _END = 60, 320  # characters of a longer message: the subject, and cause or remedy at the end
_CELL = 396  # characters of a cell: a name has up to 253
_WIDE = 32_768  # the same with `-o wide`; the API's conditions have fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The table of a kind. One object can have several rows."""

    kind: Kind
    head: Sequence[str]
    rows: Callable[[RawObject, float], Rows]  # of an object of the kind, and the time
    short: str = ""  # a short name beside name and plural, as kubectl has them


def _listing(
    cls: type[Object], head: Sequence[str], rows: Callable[[Object, float], Rows], short: str = ""
) -> Listing:
    """Return the table of a kind whose rows are read from its struct."""
    return Listing(kind=cls.KIND, head=head, rows=lambda raw, now: rows(read_as(cls, raw), now), short=short)


def age(obj: ApiObject, now: float) -> str:
    """Return the age of an object as kubectl shows it: 45s, 12m, 5h, 3d."""
    return since(obj.metadata.creation_timestamp, now)


def since(text: str, now: float) -> str:
    """Return the time since an RFC 3339 time: 45s, 12m, 5h, 3d; "-" if the text is none."""
    at = time_of(text)
    return "-" if at is None else span_text(max(0.0, now - at))


def _message(text: str) -> str:
    return text if len(text) <= _BEGIN + _END else f"{text[:_BEGIN]} ... {text[-_END:]}"


def _cluster_set(obj: ClusterSet, now: float) -> Rows:
    """Return a row for the ClusterSet as a whole, and one for each cluster."""
    role = "leader" if obj.is_leaders else "member"
    ready = condition_of(obj.status.conditions, "Ready")
    total = f"{obj.status.ready_clusters or 0}/{obj.status.total_clusters or 0}"
    own = (obj.namespace, obj.name, obj.spec.cluster_id, role, total)
    own_range = condition_of(obj.status.conditions, EXPORT_RANGE)
    pods = condition_of(obj.status.conditions, POD_RANGE)
    messages = [ready.message, *([f"export range {own_range.message}"] if own_range.type else [])]
    messages += [f"virtual Pod CIDR {pods.message}"] if pods.type else []
    token = condition_of(obj.status.conditions, LEADER_TOKEN)
    messages += [token.message] if token.is_false else []
    messages.append(area_holder.message(obj))
    healthy = condition_of(obj.status.conditions, HEALTHY)
    messages += _health_messages(ready, healthy)
    rows = [(*own, _state(ready, healthy), age(obj, now), "; ".join(filter(None, messages)))]
    ranges = read_ranges(obj) if role == "leader" else {}
    pod_ranges = read_pod_ranges(obj) if role == "leader" else {}
    for status in obj.status.cluster_statuses:
        cluster_ready = condition_of(status.conditions, "Ready")
        healthy = condition_of(status.conditions, HEALTHY)
        words = (_state(cluster_ready, healthy), since(cluster_ready.last_transition_time, now))
        unique = condition_of(status.conditions, UNIQUE)
        messages = [cluster_ready.message, *([unique.message] if unique.is_false else [])]
        messages += _health_messages(cluster_ready, healthy)
        if (assigned := ranges.get(status.cluster_id)) is not None and assigned.why:
            messages.append(f"export range {assigned.cidr or 'none is free'}: {assigned.why}")
        if (virtual := pod_ranges.get(status.cluster_id)) is not None and virtual.why:
            cidrs = [f"{pair.virtual} for {pair.real}" for pair in virtual.pairs]
            cidrs += [f"none is free for {virtual.missing}"] if virtual.missing else []
            messages.append(f"virtual Pod CIDR {', '.join(cidrs)}: {virtual.why}")
        rows.append(("", "", status.cluster_id, "", "", *words, "; ".join(filter(None, messages))))
    return rows


def _state(ready: Condition, healthy: Condition) -> str:
    """Return the status of a ClusterSet or cluster: True only if it is connected, and reaches what it should."""
    return healthy.status if healthy.is_false else ready.status or "-"


def _health_messages(ready: Condition, healthy: Condition) -> list[str]:
    return [f"{healthy.reason}: {healthy.message}"] if ready.is_true and healthy.reason and healthy.message else []


def _export(obj: ResourceExport, now: float) -> Rows:
    spec = (obj.spec.cluster_id, obj.spec.kind, obj.spec.namespace, obj.spec.name)
    conditions = (condition_of(obj.status.conditions, kind) for kind in ("Failure", "Conflict", "Succeeded"))
    shown = next((condition for condition in conditions if condition.type), NO_CONDITION)
    return [(obj.namespace, obj.name, *spec, shown.type or "-", age(obj, now), shown.message)]


def _import(obj: ResourceImport, now: float) -> Rows:
    clusters = ",".join(status.cluster_id for status in obj.status.cluster_statuses)
    spec = (obj.spec.kind, obj.spec.namespace, obj.spec.name)
    return [(obj.namespace, obj.name, *spec, clusters or "-", age(obj, now))]


def _service_export(obj: ApiServiceExport, now: float) -> Rows:
    valid, conflict, ready = (condition_of(obj.status.conditions, kind) for kind in ("Valid", "Conflict", "Ready"))
    reduced = ready.reason in ("Failed", NO_ENDPOINT) or (ready.is_true and ready.message)
    why = conflict if conflict.is_true else ready if reduced and valid.is_true else valid
    words = (valid.status or "-", conflict.status or "-", why.reason or "-")
    return [(obj.namespace, obj.name, *words, age(obj, now), why.message)]


def _service_import(obj: ApiServiceImport, now: float) -> Rows:
    clusters = ",".join(item.cluster for item in obj.status.clusters) or "-"
    spec = (obj.spec.type or "-", ",".join(obj.spec.ips) or "-")
    ports = ",".join(f"{port.port}/{port.protocol}" for port in obj.spec.ports) or "-"
    return [(obj.namespace, obj.name, *spec, ports, clusters, age(obj, now))]


def _gateway(obj: ApiGateway, now: float) -> Rows:
    fields = (text or "-" for text in (obj.gateway_ip, obj.internal_ip, obj.service_cidr))
    reported = links.read(obj.status.links)
    tunnels = f"{sum(link.live for link in reported)}/{sum(link.tunnels for link in reported)}"
    return [(obj.namespace, obj.name, *fields, tunnels if reported else "-", age(obj, now))]


def _cluster_info(obj: ApiClusterInfoImport, now: float) -> Rows:
    gateways = ",".join(gateway.gateway_ip for gateway in obj.spec.gateway_infos)
    words = (obj.spec.service_cidr or "-", ",".join(obj.spec.pod_cidrs) or "-", gateways or "-")
    return [(obj.namespace, obj.name, obj.spec.cluster_id, *words, age(obj, now))]


def _token(obj: ServiceAccount, now: float) -> Rows:
    keys = (
        names.ALLOWED_CIDRS_ANNOTATION,
        names.ALLOWED_GATEWAYS_ANNOTATION,
        names.ALLOWED_NAMESPACES_ANNOTATION,
        names.MAX_EXPORTS_ANNOTATION,
    )
    bounds = (obj.annotation(key) or "-" for key in keys)
    return [(obj.namespace, obj.name, bound_cluster(obj) or "-", *bounds, age(obj, now))]


LISTINGS: Mapping[str, Listing] = {
    "clusterset": _listing(
        ClusterSet,
        head=("NAMESPACE", "NAME", "CLUSTER", "ROLE", "READY", "STATUS", "AGE", "MESSAGE"),
        rows=_cluster_set,
    ),
    "serviceexport": _listing(
        ApiServiceExport,
        head=("NAMESPACE", "NAME", "VALID", "CONFLICT", "REASON", "AGE", "MESSAGE"),
        rows=_service_export,
        short="svcex",
    ),
    "serviceimport": _listing(
        ApiServiceImport,
        head=("NAMESPACE", "NAME", "TYPE", "IP", "PORTS", "CLUSTERS", "AGE"),
        rows=_service_import,
        short="svcim",
    ),
    "resourceexport": _listing(
        ResourceExport,
        head=("AREA", "EXPORT", "CLUSTER", "KIND", "NAMESPACE", "NAME", "STATUS", "AGE", "MESSAGE"),
        rows=_export,
        short="re",
    ),
    "resourceimport": _listing(
        ResourceImport,
        head=("AREA", "IMPORT", "KIND", "NAMESPACE", "NAME", "CLUSTERS", "AGE"),
        rows=_import,
        short="ri",
    ),
    "gateway": _listing(
        ApiGateway,
        head=("NAMESPACE", "NAME", "GATEWAY IP", "INTERNAL IP", "SERVICE CIDR", "LIVE TUNNELS", "AGE"),
        rows=_gateway,
    ),
    "clusterinfoimport": _listing(
        ApiClusterInfoImport,
        head=("NAMESPACE", "NAME", "CLUSTER", "SERVICE CIDR", "POD CIDRS", "GATEWAYS", "AGE"),
        rows=_cluster_info,
    ),
    MEMBER_TOKEN: _listing(
        ServiceAccount,
        head=(
            *("NAMESPACE", "NAME", "CLUSTER", "TOKEN", "TOKEN AGE", "RENEWAL", "EXPIRES"),
            *("CIDRS", "ALLOWED GATEWAYS", "NAMESPACES", "MAX EXPORTS", "AGE"),
        ),
        rows=_token,
    ),
}


def listing_named(text: str) -> str | None:
    """Return the key in LISTINGS of a kind as kubectl accepts it: name, plural or short name, in any case."""
    word = text.lower().partition(".")[0]
    return next((name for name, item in LISTINGS.items() if word and word in (name, f"{name}s", item.short)), None)


def objects(
    cluster: Cluster, what: str, *, namespace: str = "", object_names: Sequence[str] = (), cluster_id: str = ""
) -> list[RawObject]:
    """Return the objects to show, all if there are no names. Raises McagentError if a named one does not exist."""
    listing = LISTINGS[what]
    selected = cluster.objects(listing.kind, namespace) if what != MEMBER_TOKEN else _tokens(cluster, namespace)
    if object_names:
        present = sorted({obj["metadata"]["name"] for obj in selected})
        selected = [obj for obj in selected if obj["metadata"]["name"] in object_names]
        for name in object_names:
            if name not in present:
                hint = did_you_mean(name, present) or f"; there are {', '.join(present[:20]) or 'none'}"
                raise AdminError(f"there is no {what} {namespace + '/' if namespace else ''}{name}{hint}")
    if cluster_id:
        selected = [obj for obj in selected if read_as(ResourceExport, obj).spec.cluster_id == cluster_id]
    return selected


def rows(what: str, found: Sequence[RawObject], now: float, *, wide: bool = False) -> list[Sequence[str]]:
    """Return the table's rows; `wide`: with messages of any length. Control characters in cells are escaped."""
    listing = LISTINGS[what]
    limit = _WIDE if wide else _CELL
    cells = [row for obj in found for row in listing.rows(obj, now)]
    if what == MEMBER_TOKEN:
        pairs = zip(cells, found, strict=True)  # each account has one row
        cells = [(*row[:3], *token_life.cells(obj, now), *row[3:]) for row, obj in pairs]
    return [tuple(printable(cell if wide else _message(cell), limit) for cell in row) for row in cells]


def _tokens(cluster: Cluster, namespace: str) -> list[RawObject]:
    return token_life.with_life(cluster, tokens(cluster, namespace), time.time())
