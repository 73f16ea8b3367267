"""Snapshots: applies a burst of changes to the last Snapshot. Pure; must not know the source of changes.

An object that becomes invalid keeps its last good version and adds a Problem; a deleted object takes its problems
with it. A Node keeps its last addresses and podCIDRs while its object has none, and the agent's own Node stays
while its object is deleted: cloud controllers empty, delete and re-register the objects of Nodes that work. An
object that breaks the parser, which is a bug, is ignored. Kinds without changes keep the same dict, and an object
with unchanged content keeps the same value, so that `compile` detects by identity what did not change.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from mcagent.core.addresses.underlay import usable_tunnel_addresses
from mcagent.model.errors import InputError
from mcagent.model.net import network_key
from mcagent.model.objects import ApiObject, Gateway, Kind, Node, Snapshot
from mcagent.model.parsing.fields import problem_of
from mcagent.model.parsing.parse import parse_object
from mcagent.model.problem import Problem, Severity
from mcagent.supervised import attempt

log = logging.getLogger(__name__)

# The attribute of Snapshot for each kind.
ATTRIBUTE: Mapping[Kind, str] = {
    Kind.GATEWAY: "gateways",
    Kind.CLUSTER_INFO_IMPORT: "cluster_infos",
    Kind.NODE: "nodes",
    Kind.POD: "pods",
    Kind.SERVICE: "services",
    Kind.ENDPOINT_SLICE: "endpoint_slices",
    Kind.SERVICE_EXPORT: "service_exports",
    Kind.SERVICE_IMPORT: "service_imports",
    Kind.NAMESPACE: "namespaces",
    Kind.LABEL_IDENTITY: "label_identities",
    Kind.NETWORK_POLICY: "network_policies",
    Kind.ANTREA_NETWORK_POLICY: "antrea_network_policies",
    Kind.CLUSTER_NETWORK_POLICY: "cluster_network_policies",
    Kind.TIER: "tiers",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Upsert:
    """An object was added or changed (ADDED, MODIFIED)."""

    kind: Kind
    raw: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """An object was deleted (DELETED). `key`: "namespace/name", or the name of a cluster-scoped object."""

    kind: Kind
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Relist:
    """The complete list of a kind: objects that are not in `items` are deleted. The kind is synced."""

    kind: Kind
    items: Sequence[object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """A kind is no longer watched: its objects are unknown, and it is not synced."""

    kind: Kind


Change = Upsert | Delete | Relist | Forget


def apply_changes(snapshot: Snapshot, changes: Iterable[Change], own_node: str = "") -> Snapshot:
    """Apply the changes in order; return the same object if nothing changed.

    `own_node`: the Node that this process runs on; it stays when its object is deleted. Other Nodes go with their
    objects: Kubernetes may give their Pod CIDRs to other Nodes at once, and their agents usually go, too.

    The cost is O(changes), and one copy of each changed kind (and of the problems) per burst.
    """
    draft = _Draft(snapshot, own_node)
    for change in changes:
        match change:
            case Upsert(kind=kind, raw=raw):
                draft.upsert(kind, raw)
            case Delete(kind=kind, key=key):
                draft.delete(kind, key)
            case Relist(kind=kind, items=items):
                draft.relist(kind, items)
            case Forget(kind=kind):
                draft.forget(kind)
    return draft.finish()


class _Draft:
    """A snapshot under change: copies a kind on the first write to it."""

    def __init__(self, before: Snapshot, own_node: str) -> None:
        self._before = before
        self._own_node = own_node
        self._objects: dict[Kind, dict[str, ApiObject]] = {}
        self._problems: dict[str, list[Problem]] | None = None
        self._synced = before.synced

    def upsert(self, kind: Kind, raw: object) -> str | None:
        """Add or change one object; return its key, None if not even its name is readable."""
        parsed, error = attempt(lambda: parse_object(raw, kind))
        if isinstance(error, InputError):
            self._report(error.subject, (problem_of(error),))
            key = error.subject.removeprefix(f"{kind} ")
            return None if key == error.subject else key
        if parsed is None:
            log.error("a %s breaks the parser, which is a bug: it is passed over", kind, exc_info=error)
            return None
        key, value, problems = parsed.meta.key, parsed.value, tuple(parsed.problems)
        if value is None:
            self._report(parsed.meta.subject, problems)
            self._remove(kind, key)
            return key
        old = self._current(kind).get(key)
        if isinstance(value, Node) and isinstance(old, Node):
            value, warnings = _with_last_values(value, old)
            problems += warnings
        self._report(parsed.meta.subject, problems)
        if old is None or not _same_content(old, value):
            self._writable(kind)[key] = value
        return key

    def delete(self, kind: Kind, key: str) -> None:
        """Delete one object and its problems; report the own Node instead."""
        own = self._current(kind).get(key) if kind is Kind.NODE and key == self._own_node else None
        if own is not None:
            self._report(own.meta.subject, (_deleted_node(own),))
            return
        self._remove(kind, key)
        self._report(f"{kind} {key}", ())

    def relist(self, kind: Kind, items: Sequence[object]) -> None:
        """Replace all objects of a kind."""
        self._report_nothing(kind)
        listed = {self.upsert(kind, raw) for raw in items}
        for key in [key for key in self._current(kind) if key not in listed]:
            self.delete(kind, key)
        self._synced |= {kind}

    def forget(self, kind: Kind) -> None:
        """Delete all objects and problems of a kind, and mark it as not synced."""
        self._report_nothing(kind)
        self._objects[kind] = {}
        self._synced -= {kind}

    def finish(self) -> Snapshot:
        """Build the next snapshot."""
        changed: dict[str, Any] = {ATTRIBUTE[kind]: objects for kind, objects in self._objects.items()}
        if gateways := self._objects.get(Kind.GATEWAY):
            current = [g for g in gateways.values() if isinstance(g, Gateway)]
            cidrs = {cidr for g in current for cidr in (g.service_cidr, g.real_service_cidr)} - {None}
            changed["service_cidrs"] = tuple(sorted(cidrs, key=network_key))
        if self._problems is not None:
            problems = tuple(sorted({p for reported in self._problems.values() for p in reported}))
            if problems != self._before.problems:
                changed["problems"] = problems
        if self._synced != self._before.synced:
            changed["synced"] = self._synced
        return replace(self._before, **changed) if changed else self._before

    def _current(self, kind: Kind) -> Mapping[str, ApiObject]:
        objects: Mapping[str, ApiObject] | None = self._objects.get(kind)
        return getattr(self._before, ATTRIBUTE[kind]) if objects is None else objects

    def _writable(self, kind: Kind) -> dict[str, ApiObject]:
        objects = self._objects.get(kind)
        if objects is None:
            objects = self._objects[kind] = dict(self._current(kind))
        return objects

    def _remove(self, kind: Kind, key: str) -> None:
        if key in self._current(kind):
            del self._writable(kind)[key]

    def _problem_map(self) -> dict[str, list[Problem]]:
        if self._problems is None:
            self._problems = {}
            for problem in self._before.problems:
                self._problems.setdefault(problem.subject, []).append(problem)
        return self._problems

    def _report(self, subject: str, problems: Sequence[Problem]) -> None:
        """Replace the problems of a subject."""
        if self._problems is None and not problems and not self._before.problems:
            return
        reported = self._problem_map()
        if problems:
            reported[subject] = list(problems)
        else:
            reported.pop(subject, None)

    def _report_nothing(self, kind: Kind) -> None:
        """Remove the problems of a kind and its objects."""
        for subject in [s for s in self._problem_map() if s == kind or s.startswith(f"{kind} ")]:
            self._report(subject, ())


def _with_last_values(node: Node, last: Node) -> tuple[Node, tuple[Problem, ...]]:
    """Return the Node with the last InternalIPs and podCIDRs where it has none, and a problem for each."""
    problems: list[Problem] = []

    def report(path: str, lost: str, values: Iterable[object]) -> None:
        message = (
            f'Node "{node.meta.name}" has no {lost}: the last one stays in use ({", ".join(map(str, values))}); '
            "find out what removed it from the Node; restart the agents if that was intended"
        )
        problems.append(node.meta.problem(path, "LastValueUsed", message, Severity.WARNING))

    if not usable_tunnel_addresses(node.internal_ips) and usable_tunnel_addresses(last.internal_ips):
        report("status.addresses", "usable InternalIP", last.internal_ips)
        node = replace(node, internal_ips=last.internal_ips)
    if not node.pod_cidrs and last.pod_cidrs:
        report("spec.podCIDRs", "Pod CIDR", last.pod_cidrs)
        node = replace(node, pod_cidrs=last.pod_cidrs)
    return node, tuple(problems)


def _deleted_node(node: ApiObject) -> Problem:
    message = (
        f'the object of this Node, "{node.meta.name}", is deleted: its last version stays in use until the object '
        "is back or the agent ends; restart the kubelet to register the Node, or stop the agent and run "
        "`mcagent cleanup`"
    )
    return node.meta.problem("", "NodeDeleted", message, Severity.WARNING)


def _same_content(old: ApiObject, new: ApiObject) -> bool:
    """Tell whether two versions differ in the resourceVersion only: heartbeats and status writes do not count."""
    if old.meta.created != new.meta.created:
        return False
    return all(getattr(old, f.name) == getattr(new, f.name) for f in fields(old) if f.name != "meta")
