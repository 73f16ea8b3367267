"""What a member may claim: annotations of its ServiceAccount, else the leader's configuration. Pure.

An administrator writes the annotations (`mcagent membertoken create --allow-...`, or kubectl); members have no
right to. An invalid value allows nothing, so a typing error does not remove a limit. A namespace that an
annotation names is reserved: only members whose annotations name it may export Services of it. Of too many
exports, the oldest stay.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce

import msgspec

from mcagent.controller.contract import names
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.leader.exports.header import BY_KIND, by_kind
from mcagent.controller.machinery.reconciler import Index, ObjectChange, Side, View
from mcagent.controller.settings import MAX_EXPORTS, MAX_GATEWAYS, MemberLimits
from mcagent.model.api.base import ApiObject
from mcagent.model.api.kubernetes import ServiceAccount
from mcagent.model.api.multicluster import ResourceExport
from mcagent.model.net import Network, parse_network
from mcagent.model.parsing.field import printable

ANY = "*"
MAX_NAMED = 4096  # namespaces or CIDRs in one annotation
_KEYS = (
    names.ALLOWED_CIDRS_ANNOTATION,
    names.ALLOWED_GATEWAYS_ANNOTATION,
    names.ALLOWED_NAMESPACES_ANNOTATION,
    names.MAX_EXPORTS_ANNOTATION,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one member may claim. None: no limit."""

    cidrs: tuple[Network, ...] | None = None
    gateways: tuple[Network, ...] | None = None
    max_gateways: int = MAX_GATEWAYS
    namespaces: frozenset[str] | None = None
    max_exports: int = MAX_EXPORTS
    problem: str = ""  # the error in an annotation; then nothing is allowed

    def allows_network(self, network: Network) -> bool:
        """Tell whether a CIDR lies in one of `cidrs`."""
        return self.cidrs is None or any(_within(network, allowed) for allowed in self.cidrs)

    def allows_gateway(self, address: Network) -> bool:
        """Tell whether an address, given as a network of one, lies in one of `gateways`."""
        return self.gateways is None or any(_within(address, allowed) for allowed in self.gateways)


def defaults_of(limits: MemberLimits) -> Bounds:
    """Return the bounds of a member whose ServiceAccount has no annotations."""
    return Bounds(
        cidrs=tuple(parse_network(text)[0] for text in limits.allowed_cidrs) or None,
        gateways=tuple(parse_network(text)[0] for text in limits.allowed_gateways) or None,
        max_gateways=limits.max_gateways,
        namespaces=frozenset(limits.allowed_namespaces) or None,
        max_exports=limits.max_exports,
    )


def read_bounds(account: ServiceAccount, defaults: Bounds) -> Bounds:
    """Return the bounds of one ServiceAccount; `defaults` apply where it has no annotation. Never raises."""
    texts = {key: _text(account, key) for key in _KEYS}
    error = annotation_errors({key: text for key, text in texts.items() if text is not None})
    if not error and account.fault is not None:
        error = f"{account.fault.errors[0].path} {account.fault.errors[0].reason}"
    if error:
        problem = f"{account.subject}: {error}: nothing is allowed until it is fixed"
        return Bounds(cidrs=(), gateways=(), namespaces=frozenset(), max_exports=0, problem=problem)
    cidrs, gateways, namespaces, max_exports = texts.values()
    bounds = defaults
    if cidrs is not None:
        bounds = replace(bounds, cidrs=_networks(cidrs))
    if gateways is not None:
        bounds = replace(bounds, gateways=_networks(gateways))
    if namespaces is not None:
        bounds = replace(bounds, namespaces=None if namespaces == ANY else frozenset(_entries(namespaces)))
    return bounds if max_exports is None else replace(bounds, max_exports=int(max_exports))


def annotation_errors(annotations: Mapping[str, str]) -> str:
    """Return the errors in the values of annotations of this module, joined by "; "; "" if there are none."""
    errors = ((key, _error(key, text.strip())) for key, text in annotations.items())
    return "; ".join(f"annotation {key} {error}" for key, error in errors if error)


def bounds_of(view: View, area: str, cluster_id: str, defaults: Bounds) -> Bounds:
    """Return the bounds of a member: the intersection of those of all ServiceAccounts that represent it."""
    accounts = view.indexed(ACCOUNTS_BY_CLUSTER, f"{area}/{cluster_id}")
    return bounds_of_accounts(accounts, defaults)


def bounds_of_accounts(accounts: Iterable[ServiceAccount], defaults: Bounds) -> Bounds:
    """Return the intersection of the bounds of ServiceAccounts of one member; `defaults` if it has none."""
    bounds = [read_bounds(account, defaults) for account in accounts]
    return reduce(_intersection, bounds) if bounds else defaults


def named_for(view: View, area: str, namespace: str) -> frozenset[str]:
    """Return the cluster IDs of the members for which a namespace is reserved; empty: it is not reserved."""
    accounts = view.indexed(ACCOUNTS_BY_NAMESPACE, f"{area}/{namespace}")
    return frozenset(filter(None, map(cluster_id_of, accounts)))


def named_namespaces(account: ServiceAccount) -> frozenset[str]:
    """Return the namespaces that an account reserves, also if another annotation of it is invalid."""
    text = _text(account, names.ALLOWED_NAMESPACES_ANNOTATION)
    if text is None or not cluster_id_of(account):
        return frozenset()
    return frozenset(entry for entry in _entries(text)[:MAX_NAMED] if names.is_label(entry))


def refuse_namespace(
    cluster_id: str, namespace: str, bounds: Bounds, named: frozenset[str], what: str = "Services"
) -> str:
    """Return why a member may not export Services (or `what`) of a namespace; "" if it may.

    `named`: the members for which the namespace is reserved (`named_for`).
    """
    if bounds.problem:
        return bounds.problem
    if bounds.namespaces is not None and namespace not in bounds.namespaces:
        return (
            f"cluster {cluster_id} may not export {what} of namespace {namespace}: neither annotation "
            f"{names.ALLOWED_NAMESPACES_ANNOTATION} of its ServiceAccount on the leader names it, nor "
            "members.allowedNamespaces"
        )
    if named and cluster_id not in named:
        return (
            f"cluster {cluster_id} may not export {what} of namespace {namespace}: it is reserved for other "
            f"clusters (annotation {names.ALLOWED_NAMESPACES_ANNOTATION} of ServiceAccounts on the leader)"
        )
    return ""


def _allowances(account: ApiObject | None) -> object:
    """Return the fields of an account that decide what a member may claim, to compare two versions of it."""
    if not isinstance(account, ServiceAccount) or not cluster_id_of(account):
        return None
    return (cluster_id_of(account), *(_text(account, key) for key in _KEYS))


def changed_accounts(change: ObjectChange) -> list[ServiceAccount]:
    """Return the old and new ServiceAccount of a change that alters what a member may claim; else []."""
    if _allowances(change.old) == _allowances(change.new):
        return []
    return [account for account in change.of(ServiceAccount) if account is not None]


# --- reading ----------------------------------------------------------------------------------------------


def _text(account: ServiceAccount, key: str) -> str | None:
    value = account.annotation(key)
    return None if value is None else value.strip()


def cluster_id_of(account: ServiceAccount) -> str:
    """Return the cluster ID of the member that an account represents, from its annotation; "" if of none."""
    return account.annotation(names.CLUSTER_ID_ANNOTATION) or ""


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def _error(key: str, text: str) -> str:
    """Return the error in the value of an annotation; "" if it has none. An empty list allows nothing."""
    if key == names.MAX_EXPORTS_ANNOTATION:
        return (
            ""
            if names.is_export_limit(text)
            else f'must be a whole number of at most 6 digits, not "{printable(text)}"'
        )
    entries = [] if text == ANY else _entries(text)
    if len(entries) > MAX_NAMED:
        return f"has {len(entries)} entries, at most {MAX_NAMED} allowed"
    check = _namespace_error if key == names.ALLOWED_NAMESPACES_ANNOTATION else _cidr_error
    return next(filter(None, map(check, entries)), "")


def _networks(text: str) -> tuple[Network, ...] | None:
    return None if text == ANY else tuple(parse_network(entry)[0] for entry in _entries(text))


def _cidr_error(text: str) -> str:
    try:
        network, masked = parse_network(text)
    except ValueError:
        return f'has "{printable(text)}", which is no CIDR'
    return f"has {printable(text)} with host bits set: did you mean {network}?" if masked else ""


def _namespace_error(text: str) -> str:
    return "" if names.is_label(text) else f'has "{printable(text)}", which is no namespace'


def _common(a: tuple[Network, ...] | None, b: tuple[Network, ...] | None) -> tuple[Network, ...] | None:
    """Return the networks in both. They are nested or disjoint: the smaller ones count. None: all networks."""
    if a is None or b is None:
        return b if a is None else a
    smaller = [n for n in a if any(_within(n, other) for other in b)]
    smaller += [n for n in b if any(_within(n, other) for other in a)]
    return tuple(dict.fromkeys(smaller))


def _within(network: Network, other: Network) -> bool:
    return network.version == other.version and network.subnet_of(other)  # type: ignore[arg-type]


def _intersection(a: Bounds, b: Bounds) -> Bounds:
    """Return the bounds within those of both accounts."""
    namespaces = b.namespaces if a.namespaces is None else a.namespaces
    if a.namespaces is not None and b.namespaces is not None:
        namespaces = a.namespaces & b.namespaces
    return Bounds(
        cidrs=_common(a.cidrs, b.cidrs),
        gateways=_common(a.gateways, b.gateways),
        max_gateways=min(a.max_gateways, b.max_gateways),
        namespaces=namespaces,
        max_exports=min(a.max_exports, b.max_exports),
        problem=a.problem or b.problem,
    )


# --- indexes ----------------------------------------------------------------------------------------------


def _by_cluster(obj: ServiceAccount) -> Iterable[str]:
    cluster = cluster_id_of(obj)
    return [f"{obj.namespace}/{cluster}"] if cluster else []


def _by_namespace(obj: ServiceAccount) -> Iterable[str]:
    return [f"{obj.namespace}/{namespace}" for namespace in named_namespaces(obj)]


# Under "area/cluster ID" of the member that they represent.
ACCOUNTS_BY_CLUSTER = Index("accounts-by-cluster", ServiceAccount, Side.LOCAL, _by_cluster)
# Under "area/namespace" of each namespace that they reserve.
ACCOUNTS_BY_NAMESPACE = Index("accounts-by-namespace", ServiceAccount, Side.LOCAL, _by_namespace)


# --- number and size of exports -------------------------------------------------------------------------------


PLAIN_BYTES = 64 * 1024  # of an export that holds no endpoints


def size_limit(kind: str, max_bytes: int) -> int:
    """Return the limit of an export of a kind, in bytes of JSON."""
    return max_bytes if kind == ExportKind.ENDPOINTS else min(max_bytes, PLAIN_BYTES)


def too_large(content: object, kind: str, max_bytes: int) -> str:
    """Return why an export with this content is too large to be read, "" if it is not."""
    limit = size_limit(kind, max_bytes)
    with suppress(RecursionError):  # nested deeper than any valid object
        if len(msgspec.json.encode(content)) <= limit:
            return ""
    key = " (members.maxExportBytes of the leader)" if limit == max_bytes else ""
    return f"it is larger than {limit} bytes of JSON, the limit for exports of its kind{key}"


def over_quota(cluster_id: str, limit: int, what: str = "Services") -> str:
    """Return the message for an export above the `limit` of its cluster."""
    return (
        f"cluster {cluster_id} may export {limit} {what}, and the oldest stay: members.maxExports of the leader, "
        f"or annotation {names.MAX_EXPORTS_ANNOTATION} of the cluster's ServiceAccount, can allow more"
    )


def at_the_limit(
    view: View, change: ObjectChange, kind: ExportKind, limit_of: Callable[[str], int]
) -> Sequence[ResourceExport]:
    """Return the exports whose acceptance a created or deleted export changes: those at the limit, by age.

    `limit_of` returns how many exports of the kind a cluster may have.
    """
    old, new = change.of(ResourceExport)
    export = new or old
    same = old is not None and new is not None and old.is_deleting == new.is_deleting
    if export is None or same or export.spec.kind != kind:
        return ()
    value, limit = by_kind(export.namespace, export.spec.cluster_id, kind), limit_of(export.spec.cluster_id)
    if view.count(BY_KIND, value) < limit:
        return ()
    by_age = sorted((e for e in view.indexed(BY_KIND, value) if not e.is_deleting), key=lambda e: e.age)
    return by_age[max(0, limit - 1) : limit + 1]


def is_over(view: View, export: ResourceExport, limit: int) -> bool:
    """Tell whether its cluster has `limit` older exports of its kind; False if it is being deleted itself."""
    value = by_kind(export.namespace, export.spec.cluster_id, export.spec.kind)
    if export.is_deleting or view.count(BY_KIND, value) <= limit:
        return False
    ages = (other.age for other in view.indexed(BY_KIND, value) if not other.is_deleting)
    return export.age not in heapq.nsmallest(limit, ages)
