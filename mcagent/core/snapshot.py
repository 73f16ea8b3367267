"""The next Snapshot from the last one and a burst of changes. Pure; knows nothing of where changes come from.

An object that turns bad keeps its last good version and adds a Problem; an object that goes takes its
problems with it. One that breaks the parser, which is a bug, costs only itself. Kinds that a burst does not
touch keep their very dicts, and an object that says the same as before keeps its very value, so that `compile`
can tell by identity what did not change.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from mcagent.model.errors import InputError
from mcagent.model.objects import ApiObject, Kind, Snapshot
from mcagent.model.parsing.fields import problem_of
from mcagent.model.parsing.parse import parse_object
from mcagent.model.problem import Problem
from mcagent.supervised import attempt

log = logging.getLogger(__name__)

# The attribute of Snapshot that holds a kind.
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
    """An object is gone (DELETED). `key` is "namespace/name", or the name of a cluster-scoped object."""

    kind: Kind
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Relist:
    """All objects of a kind: what is not in `items` is gone. The kind is synced from now on."""

    kind: Kind
    items: Sequence[object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """A kind is read no longer: its objects are unknown, and it is not synced."""

    kind: Kind


Change = Upsert | Delete | Relist | Forget


def apply_changes(snapshot: Snapshot, changes: Iterable[Change]) -> Snapshot:
    """Return the snapshot after the changes, in order; the very same one when they change nothing.

    Work is O(changes) plus one copy per kind touched (and one of the problems), whatever the burst's size.
    """
    draft = _Draft(snapshot)
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
    """The snapshot being changed: copies on the first write."""

    def __init__(self, before: Snapshot) -> None:
        self._before = before
        self._objects: dict[Kind, dict[str, ApiObject]] = {}
        self._problems: dict[str, list[Problem]] | None = None
        self._synced = before.synced

    def upsert(self, kind: Kind, raw: object) -> str | None:
        """Take one object in; return its key, None when not even its name can be reported."""
        parsed, error = attempt(lambda: parse_object(raw, kind))
        if isinstance(error, InputError):
            self._report(error.subject, (problem_of(error),))
            key = error.subject.removeprefix(f"{kind} ")
            return None if key == error.subject else key
        if parsed is None:
            log.error("a %s breaks the parser, which is a bug: it is passed over", kind, exc_info=error)
            return None
        key = parsed.meta.key
        self._report(parsed.meta.subject, parsed.problems)
        if parsed.value is None:
            self._remove(kind, key)
            return key
        old = self._current(kind).get(key)
        if old is None or not _says_the_same(old, parsed.value):
            self._writable(kind)[key] = parsed.value
        return key

    def delete(self, kind: Kind, key: str) -> None:
        """Let one object go, and its problems."""
        self._remove(kind, key)
        self._report(f"{kind} {key}", ())

    def relist(self, kind: Kind, items: Sequence[object]) -> None:
        """Make the kind hold these objects."""
        self._report_nothing(kind)
        listed = {self.upsert(kind, raw) for raw in items}
        for key in [key for key in self._current(kind) if key not in listed]:
            self._remove(kind, key)
        self._synced |= {kind}

    def forget(self, kind: Kind) -> None:
        """Know nothing of the kind."""
        self._report_nothing(kind)
        self._objects[kind] = {}
        self._synced -= {kind}

    def finish(self) -> Snapshot:
        """Return the next snapshot."""
        changed: dict[str, Any] = {ATTRIBUTE[kind]: objects for kind, objects in self._objects.items()}
        if self._problems is not None:
            problems = tuple(sorted({p for reported in self._problems.values() for p in reported}))
            if problems != self._before.problems:
                changed["problems"] = problems
        if self._synced != self._before.synced:
            changed["synced"] = self._synced
        return replace(self._before, **changed) if changed else self._before

    def _current(self, kind: Kind) -> Mapping[str, ApiObject]:
        found: Mapping[str, ApiObject] | None = self._objects.get(kind)
        return getattr(self._before, ATTRIBUTE[kind]) if found is None else found

    def _writable(self, kind: Kind) -> dict[str, ApiObject]:
        found = self._objects.get(kind)
        if found is None:
            found = self._objects[kind] = dict(self._current(kind))
        return found

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


def _says_the_same(old: ApiObject, new: ApiObject) -> bool:
    """Tell whether only the resourceVersion differs: heartbeats and status writes are no change for us."""
    if old.meta.created != new.meta.created:
        return False
    return all(getattr(old, f.name) == getattr(new, f.name) for f in fields(old) if f.name != "meta")
