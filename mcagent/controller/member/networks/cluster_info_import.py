"""The reconciler of other clusters' networks: ResourceImports of kind ClusterInfo to ClusterInfoImports.

A key is the name of both. It owns the ClusterInfoImport and its condition Ready, which names the reasons why the
cluster cannot be reached: overlapping CIDRs, different settings. The cluster is imported nevertheless, with the
time of each claim, and agents decide which claims they use. Pod CIDRs are imported without the addresses of API
servers in them, and those in use without the addresses of Nodes that appear. Other claims with such an address, or
with that of a Node of this cluster, are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, product

from msgspec.structs import replace

from mcagent.controller.contract import names
from mcagent.controller.contract.cidr_claims import (
    IMPORTED,
    CidrClaim,
    cidr_claim,
    claims_in,
    claims_of,
    collide,
    colliding,
    gateway_claim,
    pairs,
    without,
)
from mcagent.controller.contract.conditions import FALSE, TRUE, condition
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.machinery.reconciler import Access, DesiredObjects, Leader, ObjectChange, Ref, View, Wanted
from mcagent.controller.member.exports import published, published_settings
from mcagent.controller.member.indexes import CLUSTER_INFOS, SLICES_BY_SERVICE, addresses_of
from mcagent.controller.member.membership import (
    cluster_set_of,
    concerns_membership,
    import_ref,
    is_for,
    is_managed,
    joined_leader,
    managed_labels,
    own_cluster_info,
    refused_writes,
)
from mcagent.controller.member.networks.cidr_claims import (
    NODES_BY_PREFIX,
    divided,
    granted_times,
    protected,
    refused_by_leader,
    refused_pod_cidrs,
    since,
)
from mcagent.controller.member.published import export_cidr, published_pod_cidrs
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
from mcagent.model.api.patches import metadata_patch, patch, whole
from mcagent.model.errors import InputError
from mcagent.model.event import Event
from mcagent.model.objects import Kind
from mcagent.model.parsing.clusters import AGENTS_ANNOTATION, MTU_ANNOTATION, OUR_AGENTS, read_mtu
from mcagent.model.parsing.field import listed, printable
from mcagent.model.parsing.granted import (
    CLAIMS_ANNOTATION,
    PROTECTED_ANNOTATION,
    REFUSED_PODS_ANNOTATION,
    claims_text,
    granted_text,
)
from mcagent.model.parsing.parse import parse_object


class ClusterInfoImports:
    """Imports the ClusterInfos of other clusters."""

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
        """Return the clusters that a change touches: its own, and those with colliding old or new claims."""
        match change.object:
            case ResourceImport(name=name):
                kinds = [o.spec.kind for o in change.of(ResourceImport) if o is not None]
                if ExportKind.CLUSTER_INFO not in kinds:
                    return []
                if _refused_by_leader(change.old) != _refused_by_leader(change.new) and _is_own(name, view):
                    return self.all_keys(view)  # each ClusterInfoImport names the refused Pod CIDRs
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
        """Return the ClusterInfoImport with its condition; events alone while the ResourceImport is invalid."""
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
            return DesiredObjects(steps=[ref] if is_managed(present) else [])
        cluster_id = resource_import.cluster_id
        if cluster_id == leader.cluster_id:
            events = _own_events(resource_import, cluster_set.subject)
            return DesiredObjects(steps=[ref] if present is not None else [], events=events)
        try:
            info = _checked(resource_import, key, view.namespace)
        except InputError as err:
            invalid = Event(
                subject=cluster_set.subject,
                reason="InvalidClusterInfo",
                message=f"{printable(key)} is ignored while invalid: {err.path}: {err.reason}",
            )
            return DesiredObjects(events=[invalid])
        divisions = divided(view, leader, info, resource_import, present)
        parts = {cidr: texts for cidr, (texts, _) in divisions.items()}
        pod_cidrs = tuple(part for cidr in info.pod_cidrs for part in parts.get(cidr, (cidr,)))
        info = replace(info, pod_cidrs=pod_cidrs)
        left_out = protected(view, leader, cluster_id, claims_of(info))
        info = without(info, left_out)
        times = granted_times(resource_import, present, claims_of(info), left_out, now, parts=parts)
        problems = [("ProtectedAddress", text) for text in left_out.values()][:_SHOWN]
        problems += islice(self._problems(resource_import, info, times, leader, view), _SHOWN)
        reason = problems[0][0] if problems else "Imported"
        notes = [
            f"Pod CIDR {cidr} is imported without {listed(addresses, _SHOWN)}"
            for cidr, (_, addresses) in divisions.items()
        ]
        message = "; ".join([*(text for _, text in problems), *notes[:_SHOWN]])
        before = present.status.conditions if present is not None else ()
        ready = condition(before, "Ready", FALSE if problems else TRUE, reason=reason, message=message, now=now)
        metadata = metadata_patch(
            labels=managed_labels(),
            annotations={
                CLAIMS_ANNOTATION: granted_text(times),
                PROTECTED_ANNOTATION: claims_text(left_out),
                REFUSED_PODS_ANNOTATION: claims_text(self._refused_pods(resource_import, leader, view)),
                AGENTS_ANNOTATION: OUR_AGENTS
                if resource_import.annotation(AGENTS_ANNOTATION) == OUR_AGENTS
                else None,
                MTU_ANNOTATION: _mtu(resource_import),
            },
        )
        spec = replace(whole(info), gateway_infos=info.gateway_infos)  # the CRD requires it
        body = patch(ApiClusterInfoImport, metadata=metadata, spec=spec)
        import_step = Wanted(ref=ref, body=body, conditions={"Ready": ready})
        return DesiredObjects(
            steps=[import_step],
            events=[
                *(Event(subject=str(ref), reason=reason, message=text) for reason, text in problems),
                *refused_writes([import_step], view, cluster_set.subject),
            ],
        )

    def _refused_pods(self, source: ResourceImport, leader: Leader, view: View) -> list[str]:
        """Return this cluster's Pod CIDRs that the leader or the imported cluster does not use."""
        pod_cidrs = published_pod_cidrs(view, self._settings)
        return refused_pod_cidrs(own_cluster_info(view, leader), source, leader.cluster_id, pod_cidrs)

    def _problems(
        self, source: ResourceImport, info: ClusterInfo, times: Mapping[str, str], leader: Leader, view: View
    ) -> Iterator[tuple[str, str]]:
        """Yield reason and message of each problem between this cluster and the imported one."""
        cluster_id, claims = info.cluster_id, claims_of(info)
        texts = {self._settings.service_cidr: None, export_cidr(view, self._settings): None}
        texts |= dict.fromkeys((*self._settings.pod_cidrs, *published_pod_cidrs(view, self._settings)))
        own = [c for text in texts if (c := cidr_claim(text or "", ""))]
        for own_claim, claim in product(own, claims):
            if not claim.gateway and collide(own_claim, claim):
                yield (
                    "OverlappingCIDR",
                    f"{claim.text} of cluster {cluster_id} overlaps {own_claim.text} of this cluster",
                )
        for colliding_import in _colliding(claims, view):
            other_id = colliding_import.cluster_id
            if other_id in (cluster_id, leader.cluster_id):
                continue
            ref = Ref(kind=Kind.CLUSTER_INFO_IMPORT, namespace=view.namespace, name=colliding_import.name)
            other_import = view.get(ref, ApiClusterInfoImport)
            owned = [(cluster_id, claim) for claim in claims]
            owned += [(other_id, claim) for claim in claims_in(colliding_import)]
            for owner, a, _, b in pairs(owned, _SHOWN):
                claim, other = (a, b) if owner == cluster_id else (b, a)
                granted_at = since(other_import, other)
                if granted_at and (granted_at, other_id) < (times[claim.text], cluster_id):
                    text = f"{claim.text} of cluster {cluster_id} overlaps {other.text} of cluster {other_id}"
                    yield "OverlappingCIDR", f"{text}, which was first"
        for annotation, value in published_settings(self._settings).items():
            other_value = source.annotation(annotation)
            if other_value is not None and value is not None and other_value != value:
                key = names.SETTING_ANNOTATIONS[annotation]
                text = f'{key} is "{printable(other_value)}" in cluster {cluster_id} and "{value}" here'
                yield "SettingsMismatch", text
        gateways = view.list(ApiGateway, namespace=view.namespace)
        encrypted = info.wireguard is not None
        if gateways and info.gateway_infos and encrypted != any(map(_encrypts, gateways)):
            elsewhere = f"in cluster {cluster_id}"
            where, nowhere = (elsewhere, "here") if encrypted else ("here", elsewhere)
            yield "EncryptionMismatch", f"traffic between gateways is encrypted {where} and not {nowhere}"


_SHOWN = 8  # of a kind of problem


def _checked(source: ResourceImport, name: str, namespace: str) -> ClusterInfo:
    """Return the ClusterInfo with only known fields, in canonical form. Raises InputError."""
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


def _is_own(name: str, view: View) -> bool:
    return view.leader is not None and name == names.cluster_info(view.leader.cluster_id)


def _refused_by_leader(obj: ApiObject | None) -> list[str]:
    return refused_by_leader(obj) if isinstance(obj, ResourceImport) else []


def _own_events(resource_import: ResourceImport, subject: str) -> list[Event]:
    """Return the Event about own claims that the leader refuses."""
    refused = refused_by_leader(resource_import)
    shown = listed(refused, _SHOWN)
    message = f"the leader does not grant this cluster {shown}; the status of its ResourceExport there says why"
    return [Event(subject=subject, reason="ClaimRefused", message=message)] if refused else []


def _colliding(claims: Iterable[CidrClaim], view: View) -> list[ResourceImport]:
    """Return the ResourceImports with a claim that collides with one of these."""
    leader = view.leader
    if leader is None:
        return []
    return colliding(claims, leader.namespace, lambda value: view.indexed(IMPORTED, value))


def _encrypts(gateway: ApiObject | None) -> bool:
    return isinstance(gateway, ApiGateway) and gateway.wireguard is not None and bool(gateway.wireguard.public_key)


def _mtu(source: ResourceImport) -> str | None:
    """Return the MTU that the other cluster announces; None if it announces none, or an invalid one."""
    try:
        return str(read_mtu(source.annotation(MTU_ANNOTATION) or "") or "") or None
    except ValueError:
        return None
