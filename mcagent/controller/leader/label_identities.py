"""The reconciler of label identities: ResourceExports of that kind to one ResourceImport each, with a number.

A key is "area/hash" of the labels. It owns the ResourceImport of the hash's name, and the exports' status. The
number follows from the hash: the first that is free of those which the hash names, one after the other. So it is
the same after a restart, under another leader, and when labels come back, and one that was given back is not given
again soon. If one number was given to two labels (at the same moment, or by two leaders in turn), the younger
ResourceImport is made anew; members import only the older of two (`member.policies.label_identities`). Labels that
nobody exports any more keep their number for a while.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from mcagent.controller.contract import names
from mcagent.controller.contract.conditions import time_of, time_text
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.raw import (
    age,
    annotation,
    is_deleting,
    key_of,
    namespace_of,
    text_at,
    value_at,
)
from mcagent.controller.leader.announces import announces, is_member, not_a_member
from mcagent.controller.leader.bounds import (
    ACCOUNTS_BY_CLUSTER,
    ACCOUNTS_BY_NAMESPACE,
    bounds_of,
    defaults_of,
    named_for,
    refuse_namespace,
    said,
    stands_for,
)
from mcagent.controller.leader.export_status import failed, reason_of, released, succeeded
from mcagent.controller.leader.exports import (
    BY_KIND,
    BY_LABEL,
    by_kind,
    cluster_of,
    label_of,
    read_header,
    subject,
)
from mcagent.controller.leader.offers import oldest, over_quota
from mcagent.controller.machinery.reconciler import (
    Access,
    DesiredObjects,
    Index,
    ObjectChange,
    Ref,
    Side,
    View,
    Wanted,
)
from mcagent.controller.settings import LeaderSettings
from mcagent.kube.source import RawObject
from mcagent.model import labels
from mcagent.model.errors import InputError
from mcagent.model.objects import Kind

GRACE = 300.0  # seconds for which labels that nobody exports keep their number
OFF = "enableStretchedNetworkPolicy is false in this leader's configuration"
_TRIES = 64  # numbers that a hash names; after them the next free one counts
_WHAT = "label identities"


class LabelIdentities:
    """Numbers the label identities of a ClusterSet."""

    name = "label-identities"
    needs_leader = False
    reads = Access(
        local={Kind.RESOURCE_EXPORT, Kind.RESOURCE_IMPORT, Kind.MEMBER_CLUSTER_ANNOUNCE, Kind.SERVICE_ACCOUNT}
    )
    writes = Access(local={Kind.RESOURCE_EXPORT, Kind.RESOURCE_IMPORT})

    def __init__(self, settings: LeaderSettings) -> None:
        self._settings, self._defaults = settings, defaults_of(settings.limits)
        self.indexes = (BY_KIND, BY_LABEL, IMPORTS_BY_NUMBER, ACCOUNTS_BY_CLUSTER, ACCOUNTS_BY_NAMESPACE)

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the labels that a change touches: its own, and those of a member that comes, goes or may more."""
        raw = change.new or change.old or {}
        area = namespace_of(raw)
        if not self._settings.covers(area):
            return []
        match change.kind:
            case Kind.RESOURCE_IMPORT:
                found = [o for o in (change.old, change.new) if _is_ours(o)]
                numbers = dict.fromkeys(number for o in found for number in _by_number(o))
                rivals = (r for number in numbers for r in view.indexed(IMPORTS_BY_NUMBER, number))
                return dict.fromkeys(key_of(o) for o in (*found, *rivals))
            case Kind.MEMBER_CLUSTER_ANNOUNCE:
                changed = announces(change.old) != announces(change.new)
                clusters = {text_at(raw, "clusterID")} if changed else set()
            case Kind.SERVICE_ACCOUNT:
                if said(change.old) == said(change.new):
                    return []
                clusters = {stands_for(o) for o in (change.old, change.new) if o is not None} - {""}
            case _:
                exports = [o for o in (change.old, change.new) if o is not None and _is_ours(o)]
                return dict.fromkeys(map(_key, (*exports, *self._at_the_limit(view, area, change))))
        return dict.fromkeys(_key(o) for cluster in clusters for o in _of_cluster(view, area, cluster))

    def _at_the_limit(self, view: View, area: str, change: ObjectChange) -> Iterable[RawObject]:
        """Return the exports about which a coming or going decides: the last that stays, the first that goes."""
        raw = change.new or change.old or {}
        same = change.old is not None and change.new is not None and is_deleting(change.old) == is_deleting(raw)
        cluster = cluster_of(raw)
        if same or not _is_ours(raw):
            return ()
        limit = bounds_of(view, area, cluster, self._defaults).max_exports
        if view.count(BY_KIND, by_kind(area, cluster, ExportKind.LABEL_IDENTITY)) < limit:
            return ()
        there = sorted((o for o in _of_cluster(view, area, cluster) if not is_deleting(o)), key=age)
        return there[max(0, limit - 1) : limit + 1]

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all labels that are exported or have a number."""
        area = self._settings.namespace or None
        exports = view.list(Kind.RESOURCE_EXPORT, namespace=area)
        found = dict.fromkeys(_key(raw) for raw in exports if _is_ours(raw))
        imports = view.list(Kind.RESOURCE_IMPORT, namespace=area)
        return found | dict.fromkeys(key_of(raw) for raw in imports if _is_ours(raw))

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return the ResourceImport, and what is written about the exports."""
        area, name = key.split("/", 1)
        target = Ref(kind=Kind.RESOURCE_IMPORT, namespace=area, name=name)
        there = view.get(target)
        there = there if _is_ours(there) else None
        steps: list[Wanted | Ref] = []
        taken: list[RawObject] = []
        for raw in sorted(view.indexed(BY_LABEL, key), key=age):
            if is_deleting(raw):
                steps += filter(None, (released(raw),))
                continue
            label = label_of(taken[0]) if taken else _label_in(there, name)
            why = self._refusal(view, area, raw, label)
            steps.append(failed(raw, why, now) if why else succeeded(raw, now))
            taken += [] if why else [raw]
        if there is not None and (is_deleting(there) or self._is_younger(view, there)):
            return DesiredObjects(steps=[target, *steps])  # made anew once it is gone, with another number
        if taken:
            return DesiredObjects(steps=[_import(view, target, there, taken), *steps])
        since = time_of(annotation(there, names.UNUSED_SINCE_ANNOTATION))
        if there is None:
            return DesiredObjects(steps=steps)
        left = GRACE if since is None else min(GRACE, since + GRACE - now)
        if left <= 0 or not self._settings.stretched_network_policy:
            return DesiredObjects(steps=[target, *steps])
        unused = {names.UNUSED_SINCE_ANNOTATION: time_text(now), names.EXPORTERS_ANNOTATION: ""}
        begun: list[Wanted | Ref] = [Wanted(ref=target, body={"metadata": {"annotations": unused}}, create=False)]
        return DesiredObjects(steps=[*(begun if since is None else ()), *steps], again=left)

    def _refusal(self, view: View, area: str, raw: RawObject, label: str) -> str:
        """Return why an export does not count; "" if it does. `label` is what the hash stands for, if known."""
        if not self._settings.stretched_network_policy:
            return OFF
        try:
            cluster = read_header(raw).cluster_id
            read = labels.read_labels(subject(raw).get("spec").get("labelIdentity").get("normalizedLabel"))
        except InputError as error:
            return reason_of(error)
        if not is_member(view, area, cluster):
            return not_a_member(cluster)
        namespace = read.namespace[labels.NAMESPACE_NAME]
        bounds = bounds_of(view, area, cluster, self._defaults)
        if why := refuse_namespace(cluster, namespace, bounds, named_for(view, area, namespace), _WHAT):
            return why
        if label and label != label_of(raw):
            return "spec.labelIdentity.normalizedLabel has the same hash as older labels"
        value = by_kind(area, cluster, ExportKind.LABEL_IDENTITY)
        limit = bounds.max_exports
        if view.count(BY_KIND, value) > limit and age(raw) not in oldest(view.indexed(BY_KIND, value), limit):
            return over_quota(cluster, limit, _WHAT)
        return ""

    @staticmethod
    def _is_younger(view: View, there: RawObject) -> bool:
        """Tell whether a ResourceImport has no number, or one that an older one has, too."""
        found = list(_by_number(there))
        return not found or any(age(o) < age(there) for o in view.indexed(IMPORTS_BY_NUMBER, found[0]))


def number_of(raw: RawObject | None) -> int | None:
    """Return the number in a ResourceImport of labels; None when it is none that is given."""
    found = value_at(raw, "spec", "labelIdentity", "id")
    good = type(found) is int and labels.FIRST <= found <= labels.LAST
    return found if good else None


def _label_in(there: RawObject | None, name: str) -> str:
    found = text_at(there, "spec", "labelIdentity", "label")
    return found if labels.label_hash(found) == name else ""


def numbers(name: str) -> Iterator[int]:
    """Yield the numbers that labels may have, in order of preference; all of them in the end."""
    number, many = labels.FIRST, labels.LAST - labels.FIRST + 1
    for turn in range(_TRIES):
        digest = hashlib.sha256(f"{name}/{turn}".encode()).digest()
        number = labels.FIRST + int.from_bytes(digest[:8], "big") % many
        yield number
    for step in range(1, many):
        yield labels.FIRST + (number - labels.FIRST + step) % many


def _import(view: View, target: Ref, there: RawObject | None, taken: list[RawObject]) -> Wanted:
    area = target.namespace
    number = number_of(there)
    if number is None:
        number = next(n for n in numbers(target.name) if not view.count(IMPORTS_BY_NUMBER, f"{area}/{n}"))
    notes = {
        names.EXPORTERS_ANNOTATION: ",".join(sorted(map(cluster_of, taken))),
        names.UNUSED_SINCE_ANNOTATION: None,
    }
    spec = {
        "kind": str(ExportKind.LABEL_IDENTITY),
        "name": target.name,
        "namespace": area,
        "labelIdentity": {"label": label_of(taken[0]), "id": number},
    }
    return Wanted(ref=target, body={"metadata": {"annotations": notes}, "spec": spec})


def _is_ours(raw: RawObject | None) -> bool:
    return text_at(raw, "spec", "kind") == ExportKind.LABEL_IDENTITY


def _key(export: RawObject) -> str:
    return f"{namespace_of(export)}/{labels.label_hash(label_of(export))}"


def _of_cluster(view: View, area: str, cluster: str) -> Iterable[RawObject]:
    return view.indexed(BY_KIND, by_kind(area, cluster, ExportKind.LABEL_IDENTITY))


def _by_number(obj: RawObject | None) -> Iterable[str]:
    number = number_of(obj) if _is_ours(obj) else None
    return [] if number is None else [f"{namespace_of(obj)}/{number}"]


IMPORTS_BY_NUMBER = Index(
    name="imports-by-number", kind=Kind.RESOURCE_IMPORT, side=Side.LOCAL, values=_by_number
)  # ResourceImports of labels, under "area/number"
