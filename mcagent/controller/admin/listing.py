"""What `mcagent get` shows of each kind: which objects, and the columns of the table. Rows are pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mcagent.controller.admin.cluster import AdminError, Cluster
from mcagent.controller.admin.tokens import tokens
from mcagent.controller.admission.identity import bound_cluster
from mcagent.controller.contract import names
from mcagent.controller.contract.conditions import find, time_of
from mcagent.controller.contract.raw import annotation, name_of, namespace_of, text_at, value_at
from mcagent.controller.leader.cluster_set import conditions_by_cluster, is_leader_set
from mcagent.kube.source import RawObject
from mcagent.model.field import printable
from mcagent.model.objects import Kind

Rows = Callable[[RawObject, float], Sequence[Sequence[str]]]
MEMBER_TOKEN = "membertoken"  # noqa: S105 (what it is called)
_BEGIN, _END = 60, 180  # characters of a longer message: what it is about, and the cause, which comes last
_CELL = 260  # of anything: a name has up to 253


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A kind as it is shown. One object can be several rows."""

    kind: Kind
    head: Sequence[str]
    rows: Rows
    aliases: tuple[str, ...] = ()


def age(obj: RawObject, now: float) -> str:
    """Return how old an object is, as kubectl shows it: 45s, 12m, 5h, 3d."""
    return since(text_at(obj, "metadata", "creationTimestamp"), now)


def since(text: object, now: float) -> str:
    """Return how long ago a time was: 45s, 12m, 5h, 3d; "-" when it is none."""
    at = time_of(text)
    if at is None:
        return "-"
    seconds = max(0, int(now - at))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def _head(obj: RawObject) -> tuple[str, str]:
    return (namespace_of(obj), name_of(obj))


def _message(text: object) -> str:
    if not isinstance(text, str) or len(text) <= _BEGIN + _END:
        return text if isinstance(text, str) else ""
    return f"{text[:_BEGIN]} ... {text[-_END:]}"


def _cluster_set(obj: RawObject, now: float) -> Sequence[Sequence[str]]:
    """Return a row for the ClusterSet as a whole, and one for each cluster."""
    role = "leader" if is_leader_set(obj) else "member"
    status = obj.get("status")
    found = status if isinstance(status, Mapping) else {}
    ready = find(value_at(obj, "status", "conditions"), "Ready")
    total = f"{found.get('readyClusters', 0)}/{found.get('totalClusters', 0)}"
    own = (*_head(obj), text_at(obj, "spec", "clusterID"), role, total)
    rows = [(*own, str(ready.get("status", "-")), age(obj, now), _message(ready.get("message")))]
    for cluster, conditions in conditions_by_cluster(obj).items():
        one = find(conditions, "Ready")
        words = (str(one.get("status", "-")), since(one.get("lastTransitionTime"), now))
        rows.append(("", "", cluster, "", "", *words, _message(one.get("message"))))
    return rows


def _export(obj: RawObject, now: float) -> Sequence[Sequence[str]]:
    spec = tuple(printable(text_at(obj, "spec", field)) for field in ("clusterID", "kind", "namespace", "name"))
    bad = find(value_at(obj, "status", "conditions"), "Failure")
    good = find(value_at(obj, "status", "conditions"), "Succeeded")
    conflict = find(value_at(obj, "status", "conditions"), "Conflict")
    state = "Failure" if bad else "Conflict" if conflict else "Succeeded" if good else "-"
    return [(*_head(obj), *spec, state, age(obj, now), _message((bad or conflict or good).get("message")))]


def _import(obj: RawObject, now: float) -> Sequence[Sequence[str]]:
    spec = tuple(text_at(obj, "spec", field) for field in ("kind", "namespace", "name"))
    clusters = ",".join(conditions_by_cluster(obj))
    return [(*_head(obj), *spec, clusters or "-", age(obj, now))]


def _service_export(obj: RawObject, now: float) -> Sequence[Sequence[str]]:
    valid, conflict = (find(value_at(obj, "status", "conditions"), kind) for kind in ("Valid", "Conflict"))
    why = conflict if conflict.get("status") == "True" else valid
    words = (str(valid.get("status", "-")), str(conflict.get("status", "-")), str(why.get("reason", "-")))
    return [(*_head(obj), *words, age(obj, now), _message(why.get("message")))]


def _gateway(obj: RawObject, now: float) -> Sequence[Sequence[str]]:
    fields = tuple(text_at(obj, field) or "-" for field in ("gatewayIP", "internalIP", "serviceCIDR"))
    return [(*_head(obj), *fields, age(obj, now))]


def _cluster_info(obj: RawObject, now: float) -> Sequence[Sequence[str]]:
    spec = obj.get("spec")
    content = spec if isinstance(spec, Mapping) else {}
    gateways = content.get("gatewayInfos")
    pods = content.get("podCIDRs")
    words = (
        text_at(content, "clusterID"),
        text_at(content, "serviceCIDR") or "-",
        ",".join(str(cidr) for cidr in pods) if isinstance(pods, list) and pods else "-",
        ",".join(text_at(g, "gatewayIP") for g in gateways) if isinstance(gateways, list) and gateways else "-",
    )
    return [(*_head(obj), *words, age(obj, now))]


def _token(obj: RawObject, now: float) -> Sequence[Sequence[str]]:
    keys = (names.ALLOWED_CIDRS_ANNOTATION, names.ALLOWED_NAMESPACES_ANNOTATION, names.MAX_EXPORTS_ANNOTATION)
    bounds = (printable(annotation(obj, key) or "-") for key in keys)
    return [(*_head(obj), bound_cluster(obj) or "-", *bounds, age(obj, now))]


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
        head=("NAMESPACE", "NAME", "CLUSTER", "CIDRS", "NAMESPACES", "MAX EXPORTS", "AGE"),
        rows=_token,
        aliases=("membertokens",),
    ),
}


def objects(
    cluster: Cluster, what: str, *, namespace: str = "", name: str = "", cluster_id: str = ""
) -> list[RawObject]:
    """Return the objects to show. Raises McagentError, also when the one that is named is not there."""
    listing = LISTINGS[what]
    found = tokens(cluster, namespace) if what == MEMBER_TOKEN else cluster.objects(listing.kind, namespace)
    if name:
        found = [obj for obj in found if name_of(obj) == name]
        if not found:
            raise AdminError(f"there is no {what} {namespace + '/' if namespace else ''}{name}")
    if cluster_id:
        found = [obj for obj in found if text_at(obj, "spec", "clusterID") == cluster_id]
    return found


def rows(what: str, found: Sequence[RawObject], now: float) -> list[Sequence[str]]:
    """Return the table's rows. Others write these objects: no cell moves the cursor, or fills the screen."""
    return [
        tuple(printable(cell, _CELL) for cell in row) for obj in found for row in LISTINGS[what].rows(obj, now)
    ]
