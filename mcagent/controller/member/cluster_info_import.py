"""The reconciler of other clusters' networks: ResourceImports of kind ClusterInfo to ClusterInfoImports.

A key is the name that both have. It owns the ClusterInfoImport and its condition Ready, which tells what keeps the
cluster from being reached: overlapping CIDRs, settings on which the clusters do not agree. It is imported all the
same; what agents make of it they decide themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from mcagent.controller import names
from mcagent.controller.conditions import FALSE, TRUE, condition
from mcagent.controller.member.exports import WIREGUARD_FIELDS, published_settings, wireguard_fields
from mcagent.controller.member.import_content import CLUSTER_INFO
from mcagent.controller.member.indexes import CLUSTER_INFOS
from mcagent.controller.member.networks import cidrs_of, cluster_of
from mcagent.controller.member.state import (
    cluster_set_of,
    cluster_set_ref,
    concerns_membership,
    is_for,
    membership,
)
from mcagent.controller.ranges import range_of
from mcagent.controller.raw import annotation, items_at, name_of, namespace_of, text_at, value_at
from mcagent.controller.reconciler import Change, Index, Leader, Outcome, Ref, Side, Told, View, Wanted
from mcagent.controller.settings import MemberSettings
from mcagent.kube.source import RawObject
from mcagent.model.errors import InputError
from mcagent.model.field import printable
from mcagent.model.objects import ClusterInfoImport, Kind
from mcagent.model.parse import parse_object


class ClusterInfoImports:
    """Imports what other clusters publish of their networks."""

    name = "cluster-info-import"
    needs_leader = True
    kinds: Mapping[Side, frozenset[Kind]] = {
        Side.LOCAL: frozenset({Kind.CLUSTER_INFO_IMPORT, Kind.GATEWAY, Kind.CLUSTER_SET}),
        Side.LEADER: frozenset({Kind.RESOURCE_IMPORT}),
    }
    indexes: Sequence[Index] = (CLUSTER_INFOS,)

    def __init__(self, settings: MemberSettings) -> None:
        self._settings = settings

    def keys(self, change: Change, view: View) -> Iterable[str]:
        """Return the clusters that a change touches: itself, and those whose CIDRs overlap its old or new ones."""
        raw = change.new or change.old or {}
        match change.kind:
            case Kind.RESOURCE_IMPORT:
                if CLUSTER_INFO not in (text_at(o, "spec", "kind") for o in (change.old, change.new)):
                    return []
                changed = set(cidrs_of(change.old)) ^ set(cidrs_of(change.new))
                others = view.indexed(CLUSTER_INFOS.name, CLUSTER_INFO, Side.LEADER) if changed else ()
                return {name_of(raw), *(name_of(o) for o in others if any(_overlaps(changed, cidrs_of(o))))}
            case Kind.CLUSTER_INFO_IMPORT:
                return [name_of(raw)] if namespace_of(raw) == view.namespace else []
            case Kind.GATEWAY:
                return self.all_keys(view) if _encrypts(change.old) != _encrypts(change.new) else []
            case _:
                return self.all_keys(view) if concerns_membership(change) else []

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all clusters that are or were imported."""
        imports = view.indexed(CLUSTER_INFOS.name, CLUSTER_INFO, Side.LEADER)
        there = view.list(Kind.CLUSTER_INFO_IMPORT, namespace=view.namespace)
        return dict.fromkeys(name_of(raw) for raw in (*imports, *there))

    def desired(self, key: str, view: View, now: float) -> Outcome:
        """Return the ClusterInfoImport."""
        leader, cluster_set = membership(view), cluster_set_of(view)
        if leader is None or cluster_set is None:
            return Outcome()  # leaving cleans up
        ref = Ref(kind=Kind.CLUSTER_INFO_IMPORT, namespace=view.namespace, name=key)
        there = view.get(ref)
        raw = view.get(Ref(side=Side.LEADER, kind=Kind.RESOURCE_IMPORT, namespace=leader.namespace, name=key))
        if raw is None or text_at(raw, "spec", "kind") != CLUSTER_INFO or not is_for(raw, leader):
            ours = text_at(there, "metadata", "labels", names.MANAGED_BY_LABEL) == names.MANAGED_BY
            return Outcome(steps=[ref] if ours else [])
        cluster_id = cluster_of(raw)
        if cluster_id == leader.cluster_id:
            return Outcome(steps=[ref] if there is not None else [])
        try:
            spec = _spec(raw, key, view.namespace)
        except InputError as err:
            told = Told(
                ref=cluster_set_ref(cluster_set, view),
                reason="InvalidClusterInfo",
                message=f"{printable(key)} is not taken over as it is now: {err.path}: {err.reason}",
            )
            return Outcome(told=[told])
        problems = list(self._problems(raw, spec, leader, view))
        reason = problems[0][0] if problems else "Imported"
        message = "; ".join(text for _, text in problems)
        before = items_at(there, "status", "conditions")
        ready = condition(before, "Ready", FALSE if problems else TRUE, reason=reason, message=message, now=now)
        others = [item for item in before if text_at(item, "type") != "Ready"]
        labels = {"metadata": {"labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY}}}
        wanted = Wanted(ref=ref, body={**labels, "spec": spec}, status={"conditions": [ready, *others]})
        return Outcome(steps=[wanted], told=[Told(ref=ref, reason=word, message=text) for word, text in problems])

    def _problems(self, raw: RawObject, spec: RawObject, leader: Leader, view: View) -> Iterator[tuple[str, str]]:
        """Yield what keeps this cluster and that one apart: a word and a sentence."""
        cluster_id, theirs = cluster_of(raw), cidrs_of(raw)
        own = tuple(t for t in (self._settings.service_cidr, *self._settings.pod_cidrs) if t)
        for mine, other in _overlaps(own, theirs):
            yield "OverlappingCIDR", f"{other} of cluster {cluster_id} overlaps {mine} of this cluster"
        for found in view.indexed(CLUSTER_INFOS.name, CLUSTER_INFO, Side.LEADER):
            other_id = cluster_of(found)
            if other_id in (cluster_id, leader.cluster_id) or _seniority(found) > _seniority(raw):
                continue
            for mine, other in _overlaps(cidrs_of(found), theirs):
                text = f"{other} of cluster {cluster_id} overlaps {mine} of cluster {other_id}, which was first"
                yield "OverlappingCIDR", text
        for key, ours in published_settings(self._settings).items():
            said = annotation(raw, key)
            if said is not None and ours is not None and said != ours:
                what = names.SETTING_ANNOTATIONS[key]
                text = f'{what} is "{printable(said)}" in cluster {cluster_id} and "{ours}" here'
                yield "SettingsMismatch", text
        gateways = view.list(Kind.GATEWAY, namespace=view.namespace)
        encrypted = "wireGuard" in spec and bool(spec["wireGuard"])
        if gateways and spec["gatewayInfos"] and encrypted != any(map(_encrypts, gateways)):
            there = f"in cluster {cluster_id}"
            where, nowhere = (there, "here") if encrypted else ("here", there)
            yield "EncryptionMismatch", f"traffic between gateways is encrypted {where} and not {nowhere}"


def _spec(raw: RawObject, name: str, namespace: str) -> RawObject:
    """Return the ClusterInfo, known and valid fields only. Raises InputError."""
    info = value_at(raw, "spec", "clusterinfo")
    fake = {"metadata": {"name": name, "namespace": namespace}, "spec": info}
    value = parse_object(fake, Kind.CLUSTER_INFO_IMPORT).value
    assert isinstance(value, ClusterInfoImport)
    if names.cluster_info(value.cluster_id) != name:
        raise InputError(f"{Kind.RESOURCE_IMPORT} {name}", "spec.clusterinfo.clusterID", "is not that of its name")
    keys = dict(value.gateway_wireguard)
    gateways = []
    for address in value.gateway_ips:
        own = wireguard_fields(keys.get(address))
        gateways.append({"gatewayIP": str(address)} | ({"wireGuard": own} if own else {}))
    key = wireguard_fields(value.wireguard)
    return {
        "clusterID": value.cluster_id,
        "serviceCIDR": str(value.service_cidr) if value.service_cidr is not None else None,
        "podCIDRs": [str(network) for network in value.pod_cidrs] or None,
        "gatewayInfos": gateways,
        "wireGuard": dict.fromkeys(WIREGUARD_FIELDS) | key if key else None,
    }


def _encrypts(gateway: object) -> bool:
    return bool(text_at(gateway, "wireGuard", "publicKey"))


def _seniority(raw: RawObject) -> tuple[str, str]:
    return (text_at(raw, "metadata", "creationTimestamp"), cluster_of(raw))


def _overlaps(some: Iterable[str], others: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of CIDRs that share an address."""
    ranges = [(text, bounds) for text in others if (bounds := range_of(text)) is not None]
    for text in some:
        own = range_of(text)
        if own is not None:
            yield from ((text, other) for other, b in ranges if own[0] <= b[1] and b[0] <= own[1])
