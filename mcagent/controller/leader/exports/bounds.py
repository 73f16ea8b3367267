"""What a member may claim, by annotations of its ServiceAccount, else by the leader's configuration. Pure.

An administrator writes the annotations (`mcagent membertoken create --allow-...`, or kubectl); members' roles
cannot. A value that cannot be read allows nothing: a slip must not open what was meant to be bounded. A namespace
that is named for a member is reserved: only members for which it is named may export Services of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce

from mcagent.controller.contract import names
from mcagent.controller.machinery.reconciler import Index, Side, View
from mcagent.controller.settings import MAX_EXPORTS, MemberLimits
from mcagent.model.api.base import ApiObject
from mcagent.model.api.kubernetes import ServiceAccount
from mcagent.model.net import Network, parse_network
from mcagent.model.parsing.field import printable

ANY = "*"
MAX_NAMED = 4096  # namespaces or CIDRs in one annotation
_KEYS = (names.ALLOWED_CIDRS_ANNOTATION, names.ALLOWED_NAMESPACES_ANNOTATION, names.MAX_EXPORTS_ANNOTATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one member may claim. None: anything that no other rule forbids."""

    cidrs: tuple[Network, ...] | None = None
    namespaces: frozenset[str] | None = None
    max_exports: int = MAX_EXPORTS
    problem: str = ""  # what is wrong with an annotation; nothing is allowed then

    def allows_network(self, network: Network) -> bool:
        """Tell whether the member may claim a CIDR."""
        return self.cidrs is None or any(_within(network, allowed) for allowed in self.cidrs)


def defaults_of(limits: MemberLimits) -> Bounds:
    """Return the bounds of a member whose ServiceAccount says nothing."""
    return Bounds(
        cidrs=tuple(parse_network(text)[0] for text in limits.allowed_cidrs) or None,
        namespaces=frozenset(limits.allowed_namespaces) or None,
        max_exports=limits.max_exports,
    )


def read_bounds(account: ServiceAccount, defaults: Bounds) -> Bounds:
    """Return the bounds that one ServiceAccount says. Never raises."""
    given = {key: _said(account, key) for key in _KEYS}
    wrong = problem_of({key: text for key, text in given.items() if text is not None})
    if not wrong and account.fault is not None:
        wrong = f"{account.fault.errors[0].path} {account.fault.errors[0].reason}"
    if wrong:
        problem = f"{account.subject}: {wrong}: nothing is allowed until it is fixed"
        return Bounds(cidrs=(), namespaces=frozenset(), max_exports=0, problem=problem)
    cidrs, namespaces, most = given.values()
    found = defaults
    if cidrs is not None:
        allowed = None if cidrs == ANY else tuple(parse_network(text)[0] for text in _entries(cidrs))
        found = replace(found, cidrs=allowed)
    if namespaces is not None:
        found = replace(found, namespaces=None if namespaces == ANY else frozenset(_entries(namespaces)))
    return found if most is None else replace(found, max_exports=int(most))


def problem_of(annotations: Mapping[str, str]) -> str:
    """Return what is wrong with annotations that somebody is about to write; "" if nothing."""
    found = ((key, _wrong(key, text.strip())) for key, text in annotations.items())
    return "; ".join(f"annotation {key} {wrong}" for key, wrong in found if wrong)


def bounds_of(view: View, area: str, cluster_id: str, defaults: Bounds) -> Bounds:
    """Return the bounds of a member. Of several ServiceAccounts that stand for it all count."""
    accounts = view.indexed(ACCOUNTS_BY_CLUSTER, f"{area}/{cluster_id}")
    return bounds_of_accounts(accounts, defaults)


def bounds_of_accounts(accounts: Iterable[ServiceAccount], defaults: Bounds) -> Bounds:
    """Return the bounds that ServiceAccounts of one member say together."""
    each = [read_bounds(account, defaults) for account in accounts]
    return reduce(_both, each) if each else defaults


def named_for(view: View, area: str, namespace: str) -> frozenset[str]:
    """Return the members for which a namespace is named; none: it is shared."""
    accounts = view.indexed(ACCOUNTS_BY_NAMESPACE, f"{area}/{namespace}")
    return frozenset(filter(None, map(stands_for, accounts)))


def named_namespaces(account: ServiceAccount) -> frozenset[str]:
    """Return the namespaces that an account reserves, also when something else in its annotations is wrong."""
    text = _said(account, names.ALLOWED_NAMESPACES_ANNOTATION)
    if text is None or not stands_for(account):
        return frozenset()
    return frozenset(entry for entry in _entries(text)[:MAX_NAMED] if names.is_label(entry))


def refuse_namespace(
    cluster_id: str, namespace: str, bounds: Bounds, named: frozenset[str], what: str = "Services"
) -> str:
    """Return why a member may not export Services (or `what`) of a namespace; "" if it may."""
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
            f"cluster {cluster_id} may not export {what} of namespace {namespace}: it is reserved for others "
            f"(annotation {names.ALLOWED_NAMESPACES_ANNOTATION} of ServiceAccounts on the leader)"
        )
    return ""


def said(account: ApiObject | None) -> object:
    """Return all of an account that decides what a member may: for comparing an old and a new one."""
    if not isinstance(account, ServiceAccount) or not stands_for(account):
        return None
    return (stands_for(account), *(_said(account, key) for key in _KEYS))


# --- reading ----------------------------------------------------------------------------------------------


def _said(account: ServiceAccount, key: str) -> str | None:
    value = account.annotation(key)
    return None if value is None else value.strip()


def stands_for(account: ServiceAccount) -> str:
    """Return the cluster ID of the member that an account stands for, "" if for none."""
    return account.annotation(names.CLUSTER_ID_ANNOTATION) or ""


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def _wrong(key: str, text: str) -> str:
    """Return what is wrong with the value of an annotation; "" if nothing. An empty list allows nothing."""
    if key == names.MAX_EXPORTS_ANNOTATION:
        return (
            ""
            if names.is_export_limit(text)
            else f'must be a whole number of at most 6 digits, not "{printable(text)}"'
        )
    entries = [] if text == ANY else _entries(text)
    if len(entries) > MAX_NAMED:
        return f"has {len(entries)} entries, at most {MAX_NAMED} allowed"
    check = _wrong_cidr if key == names.ALLOWED_CIDRS_ANNOTATION else _wrong_namespace
    return next(filter(None, map(check, entries)), "")


def _wrong_cidr(text: str) -> str:
    try:
        network, masked = parse_network(text)
    except ValueError:
        return f'has "{printable(text)}", which is no CIDR'
    return f"has {printable(text)} with host bits set: did you mean {network}?" if masked else ""


def _wrong_namespace(text: str) -> str:
    return "" if names.is_label(text) else f'has "{printable(text)}", which is no namespace'


def _within(network: Network, other: Network) -> bool:
    return network.version == other.version and network.subnet_of(other)  # type: ignore[arg-type]


def _both(a: Bounds, b: Bounds) -> Bounds:
    """Return what two accounts of one member both allow. CIDRs are nested or disjoint: the smaller ones count."""
    cidrs = b.cidrs if a.cidrs is None else a.cidrs
    if a.cidrs is not None and b.cidrs is not None:
        smaller = [n for n in a.cidrs if b.allows_network(n)] + [n for n in b.cidrs if a.allows_network(n)]
        cidrs = tuple(dict.fromkeys(smaller))
    namespaces = b.namespaces if a.namespaces is None else a.namespaces
    if a.namespaces is not None and b.namespaces is not None:
        namespaces = a.namespaces & b.namespaces
    return Bounds(
        cidrs=cidrs,
        namespaces=namespaces,
        max_exports=min(a.max_exports, b.max_exports),
        problem=a.problem or b.problem,
    )


# --- indexes ----------------------------------------------------------------------------------------------


def _by_cluster(obj: ServiceAccount) -> Iterable[str]:
    cluster = stands_for(obj)
    return [f"{obj.namespace}/{cluster}"] if cluster else []


def _by_namespace(obj: ServiceAccount) -> Iterable[str]:
    return [f"{obj.namespace}/{namespace}" for namespace in named_namespaces(obj)]


# Under "area/cluster ID" of the member that they stand for.
ACCOUNTS_BY_CLUSTER = Index("accounts-by-cluster", ServiceAccount, Side.LOCAL, _by_cluster)
# Under "area/namespace" of each namespace that is named for their member.
ACCOUNTS_BY_NAMESPACE = Index("accounts-by-namespace", ServiceAccount, Side.LOCAL, _by_namespace)
