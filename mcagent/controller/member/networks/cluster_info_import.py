"""The reconciler of other clusters' networks: ResourceImports of kind ClusterInfo to ClusterInfoImports.

A key is the name that both have. It owns the ClusterInfoImport and its condition Ready, which names what keeps the
cluster from being reached: overlapping CIDRs, settings on which the clusters do not agree. The cluster is imported
all the same, with the time since when it has each claim; agents decide what they make of it. Left out is only what
holds this cluster's own API servers or Nodes, or the leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, product

from mcagent.controller.contract import names
from mcagent.controller.contract.cidr_claims import (
    IMPORTED,
    CidrClaim,
    cidr_claim,
    claims_in,
    claims_of,
    collide,
    colliding,
    complete,
    gateway_claim,
    pairs,
    without,
)
from mcagent.controller.contract.conditions import FALSE, TRUE, condition, others
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.machinery.reconciler import (
    Access,
    DesiredObjects,
    Leader,
    ObjectChange,
    Ref,
    View,
    Wanted,
)
from mcagent.controller.member.exports import published, published_settings
from mcagent.controller.member.indexes import CLUSTER_INFOS, SLICES_BY_SERVICE
from mcagent.controller.member.membership import (
    cluster_set_of,
    cluster_set_ref,
    concerns_membership,
    import_ref,
    is_for,
    joined_leader,
)
from mcagent.controller.member.networks.cidr_claims import (
    NODES_BY_PREFIX,
    addresses_of,
    granted_times,
    protected,
    refused_by_leader,
    since,
)
from mcagent.controller.settings import MemberSettings
from mcagent.model import objects
from mcagent.model.api.base import ApiObject, Metadata
from mcagent.model.api.kubernetes import ApiEndpointSlice, ApiNode
from mcagent.model.api.multicluster import (
    ApiClusterInfoImport,
    ApiGateway,
    ClusterInfo,
    GatewayInfo,
    ResourceImport,
)
from mcagent.model.errors import InputError
from mcagent.model.event import Event
from mcagent.model.objects import Kind
from mcagent.model.parsing.clusters import AGENTS_ANNOTATION, OUR_AGENTS
from mcagent.model.parsing.field import printable
from mcagent.model.parsing.granted import CLAIMS_ANNOTATION, granted_text
from mcagent.model.parsing.parse import parse_object


class ClusterInfoImports:
    """Imports what other clusters publish of their networks."""

    name = "cluster-info-import"
    needs_leader = True
    reads = Access(
        local={Kind.CLUSTER_INFO_IMPORT, Kind.GATEWAY, Kind.CLUSTER_SET, Kind.NODE, Kind.ENDPOINT_SLICE},
        leader={Kind.RESOURCE_IMPORT},
    )
    writes = Access(local={Kind.CLUSTER_INFO_IMPORT})
    indexes = (CLUSTER_INFOS, IMPORTED, NODES_BY_PREFIX, SLICES_BY_SERVICE)

    def __init__(self, settings: MemberSettings) -> None:
        self._settings = settings

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the clusters that a change touches: itself, and those in the way of its old or new claims."""
        match change.object:
            case ResourceImport(name=name):
                kinds = [o.spec.kind for o in change.of(ResourceImport) if o is not None]
                if ExportKind.CLUSTER_INFO not in kinds:
                    return []
                changed = set(claims_in(change.old)) ^ set(claims_in(change.new))
                return {name, *(o.name for o in _colliding(changed, view))}
            case ApiNode() | ApiEndpointSlice():
                addresses = addresses_of(change.old) ^ addresses_of(change.new)
                return {o.name for o in _colliding(filter(None, map(gateway_claim, addresses)), view)}
            case ApiClusterInfoImport(name=name) as info:
                if info.namespace != view.namespace:
                    return []
                old, new = (o and o.annotation(CLAIMS_ANNOTATION) for o in (change.old, change.new))
                touched = _colliding(claims_of(info.spec), view) if old != new else ()
                return {name, *(o.name for o in touched)}
            case ApiGateway():
                return self.all_keys(view) if _encrypts(change.old) != _encrypts(change.new) else []
            case _:
                return self.all_keys(view) if concerns_membership(change) else []

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all clusters that are or were imported."""
        imports = view.indexed(CLUSTER_INFOS, ExportKind.CLUSTER_INFO)
        present = view.list(ApiClusterInfoImport, namespace=view.namespace)
        return dict.fromkeys(obj.name for obj in (*imports, *present))

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return the ClusterInfoImport."""
        leader, cluster_set = joined_leader(view), cluster_set_of(view)
        if leader is None or cluster_set is None:
            return DesiredObjects()  # leaving cleans up
        ref = Ref(kind=Kind.CLUSTER_INFO_IMPORT, namespace=view.namespace, name=key)
        present = view.get(ref, ApiClusterInfoImport)
        resource_import = view.get(import_ref(leader, key), ResourceImport)
        if (
            resource_import is None
            or resource_import.spec.kind != ExportKind.CLUSTER_INFO
            or not is_for(resource_import, leader)
        ):
            ours = present is not None and present.labels.get(names.MANAGED_BY_LABEL) == names.MANAGED_BY
            return DesiredObjects(steps=[ref] if ours else [])
        cluster_id = resource_import.cluster_id
        if cluster_id == leader.cluster_id:
            events = _own_events(resource_import, cluster_set_ref(cluster_set, view))
            return DesiredObjects(steps=[ref] if present is not None else [], events=events)
        try:
            info = _checked(resource_import, key, view.namespace)
        except InputError as err:
            invalid = Event(
                subject=str(cluster_set_ref(cluster_set, view)),
                reason="InvalidClusterInfo",
                message=f"{printable(key)} is ignored while invalid: {err.path}: {err.reason}",
            )
            return DesiredObjects(events=[invalid])
        left_out = protected(view, leader, cluster_id, claims_of(info))
        info = without(info, left_out)
        times = granted_times(resource_import, present, claims_of(info), left_out, now)
        problems = [("ProtectedAddress", text) for text in left_out.values()][:_SHOWN]
        problems += islice(self._problems(resource_import, info, times, leader, view), _SHOWN)
        reason = problems[0][0] if problems else "Imported"
        message = "; ".join(text for _, text in problems)
        before = present.status.conditions if present is not None else ()
        ready = condition(before, "Ready", FALSE if problems else TRUE, reason=reason, message=message, now=now)
        meta = {
            "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY},
            "annotations": {
                CLAIMS_ANNOTATION: granted_text(times),
                AGENTS_ANNOTATION: OUR_AGENTS
                if resource_import.annotation(AGENTS_ANNOTATION) == OUR_AGENTS
                else None,
            },
        }
        spec = complete(info)
        spec["gatewayInfos"] = spec["gatewayInfos"] or []
        status = {"conditions": [ready, *others(before, "Ready")]}
        import_step = Wanted(ref=ref, body={"metadata": meta, "spec": spec}, status=status)
        return DesiredObjects(
            steps=[import_step],
            events=[Event(subject=str(ref), reason=word, message=text) for word, text in problems],
        )

    def _problems(
        self, source: ResourceImport, info: ClusterInfo, times: Mapping[str, str], leader: Leader, view: View
    ) -> Iterator[tuple[str, str]]:
        """Yield what keeps this cluster and that one apart: a word and a sentence."""
        cluster_id, theirs = info.cluster_id, claims_of(info)
        own = [
            c for t in (self._settings.service_cidr, *self._settings.pod_cidrs) if (c := cidr_claim(t or "", ""))
        ]
        for mine, other in product(own, theirs):
            if not other.gateway and collide(mine, other):
                yield (
                    "OverlappingCIDR",
                    f"{other.text} of cluster {cluster_id} overlaps {mine.text} of this cluster",
                )
        for colliding_import in _colliding(theirs, view):
            other_id = colliding_import.cluster_id
            if other_id in (cluster_id, leader.cluster_id):
                continue
            ref = Ref(kind=Kind.CLUSTER_INFO_IMPORT, namespace=view.namespace, name=colliding_import.name)
            other_import = view.get(ref, ApiClusterInfoImport)
            both = [(cluster_id, claim) for claim in theirs] + [
                (other_id, claim) for claim in claims_in(colliding_import)
            ]
            for one, a, _, b in pairs(both, _SHOWN):
                mine, other = (a, b) if one == cluster_id else (b, a)
                first = since(other_import, other)
                if first and (first, other_id) < (times[mine.text], cluster_id):
                    text = f"{mine.text} of cluster {cluster_id} overlaps {other.text} of cluster {other_id}"
                    yield "OverlappingCIDR", f"{text}, which was first"
        for key, ours in published_settings(self._settings).items():
            their_setting = source.annotation(key)
            if their_setting is not None and ours is not None and their_setting != ours:
                what = names.SETTING_ANNOTATIONS[key]
                text = f'{what} is "{printable(their_setting)}" in cluster {cluster_id} and "{ours}" here'
                yield "SettingsMismatch", text
        gateways = view.list(ApiGateway, namespace=view.namespace)
        encrypted = info.wireguard is not None
        if gateways and info.gateway_infos and encrypted != any(map(_encrypts, gateways)):
            elsewhere = f"in cluster {cluster_id}"
            where, nowhere = (elsewhere, "here") if encrypted else ("here", elsewhere)
            yield "EncryptionMismatch", f"traffic between gateways is encrypted {where} and not {nowhere}"


_SHOWN = 8  # of a kind of problem


def _checked(source: ResourceImport, name: str, namespace: str) -> ClusterInfo:
    """Return the ClusterInfo, known and valid fields only. Raises InputError."""
    source.check("spec.clusterinfo")
    info = source.spec.cluster_info or ClusterInfo()
    value = parse_object(ApiClusterInfoImport(metadata=Metadata(name=name, namespace=namespace), spec=info)).value
    assert isinstance(value, objects.ClusterInfoImport)
    if names.cluster_info(value.cluster_id) != name:
        raise InputError(f"{Kind.RESOURCE_IMPORT} {name}", "spec.clusterinfo.clusterID", "does not match its name")
    keys = dict(value.gateway_wireguard)
    return ClusterInfo(
        cluster_id=value.cluster_id,
        service_cidr=str(value.service_cidr) if value.service_cidr is not None else "",
        pod_cidrs=tuple(map(str, value.pod_cidrs)),
        gateway_infos=tuple(
            GatewayInfo(gateway_ip=str(address), wireguard=published(keys.get(address)))
            for address in value.gateway_ips
        ),
        wireguard=published(value.wireguard),
    )


def _own_events(resource_import: ResourceImport, ref: Ref) -> list[Event]:
    """Return what this cluster's administrator should know of its own claims."""
    refused = refused_by_leader(resource_import)
    shown = ", ".join(refused[:_SHOWN]) + (f" and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else "")
    message = f"the leader does not grant this cluster {shown}; the status of its ResourceExport there says why"
    return [Event(subject=str(ref), reason="ClaimRefused", message=message)] if refused else []


def _colliding(claims: Iterable[CidrClaim], view: View) -> list[ResourceImport]:
    """Return the ResourceImports that hold a claim in the way of one of these."""
    leader = view.leader
    if leader is None:
        return []
    return colliding(claims, leader.namespace, lambda value: view.indexed(IMPORTED, value))


def _encrypts(gateway: ApiObject | None) -> bool:
    return isinstance(gateway, ApiGateway) and gateway.wireguard is not None and bool(gateway.wireguard.public_key)
