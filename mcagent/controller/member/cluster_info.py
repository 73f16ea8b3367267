"""The reconciler of this cluster's ClusterInfo on the leader: its networks and gateways, for all other clusters.

It owns the ResourceExport `<clusterID>-clusterinfo`, which it changes in place, and deletes only when no
Gateway is left. Settings on which all clusters must agree are annotations, so that others can compare; Antrea
ignores them.
"""

from __future__ import annotations

from collections.abc import Iterable

from mcagent.controller.contract import names
from mcagent.controller.contract.cidr_claims import complete
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.raw import is_deleting, items_at, name_of, namespace_of, value_at
from mcagent.controller.machinery.reconciler import (
    Access,
    DesiredObjects,
    Leader,
    ObjectChange,
    Ref,
    View,
)
from mcagent.controller.member.election import relevant
from mcagent.controller.member.exports import (
    export_ref,
    published_settings,
    resource_export,
    wireguard_fields,
)
from mcagent.controller.member.gateways import serving
from mcagent.controller.member.membership import (
    cluster_set_of,
    cluster_set_ref,
    concerns_membership,
    joined_leader,
)
from mcagent.controller.settings import MemberSettings
from mcagent.core.addresses.underlay import refuse_underlay
from mcagent.kube.source import RawObject
from mcagent.model.errors import InputError
from mcagent.model.event import Event
from mcagent.model.objects import Gateway, Kind
from mcagent.model.parsing.clusters import AGENTS_ANNOTATION, OUR_AGENTS
from mcagent.model.parsing.parse import parse_object

KEY = "cluster-info"


class ClusterInfoExport:
    """Publishes the networks and gateways of this cluster."""

    name = "cluster-info-export"
    needs_leader = True
    reads = Access(local={Kind.NODE, Kind.GATEWAY, Kind.CLUSTER_SET}, leader={Kind.RESOURCE_EXPORT})
    writes = Access(leader={Kind.RESOURCE_EXPORT})
    indexes = ()

    def __init__(self, settings: MemberSettings) -> None:
        self._settings = settings

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the one key, unless the change touches nothing that is published."""
        leader = view.leader
        match change.kind:
            case Kind.NODE:
                touched = relevant(change.old) != relevant(change.new)
            case Kind.GATEWAY:
                touched = namespace_of(change.new or change.old) == view.namespace
            case Kind.RESOURCE_EXPORT:
                name = names.cluster_info(leader.cluster_id) if leader is not None else ""
                touched = name_of(change.new or change.old) == name
            case _:
                touched = concerns_membership(change)
        return [KEY] if touched else []

    def all_keys(self, view: View) -> Iterable[str]:  # noqa: ARG002
        """Return the one key."""
        return [KEY]

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:  # noqa: ARG002
        """Return the ResourceExport."""
        leader, cluster_set = joined_leader(view), cluster_set_of(view)
        if leader is None or cluster_set is None:
            return DesiredObjects()
        ref = export_ref(leader, names.cluster_info(leader.cluster_id))
        there = view.get(ref)
        if is_deleting(there):
            return DesiredObjects()  # made anew once it is gone
        gateways = self._gateways(view)
        if not gateways:
            return DesiredObjects(steps=[ref] if there is not None else [])
        events = []
        about = cluster_set_ref(cluster_set, view)
        if self._settings.service_cidr is None:
            message = "the Service CIDR of this cluster is unknown: other clusters cannot reach its ClusterIPs"
            events.append(Event(subject=str(about), reason="NoServiceCIDR", message=message))
        if failure := view.failure(ref):
            message = f"this cluster's gateways are not published: {failure}"
            events.append(Event(subject=str(about), reason="ExportFailed", message=message))
        spec = {
            "clusterID": leader.cluster_id,
            "name": leader.cluster_id,
            "namespace": view.namespace,
            "kind": ExportKind.CLUSTER_INFO,
            "clusterInfo": self._info(leader, gateways),
        }
        annotations = {**published_settings(self._settings), AGENTS_ANNOTATION: self._agents(view)}
        return DesiredObjects(steps=[resource_export(ref, spec, there, annotations)], events=events)

    def _agents(self, view: View) -> str | None:
        """Return whose agents run on the gateways, None where nothing says that they are ours.

        Agents write how they reach other clusters, and the port of their WireGuard device: Antrea's neither.
        """
        for name in serving(view, self._settings):
            raw = view.get(Ref(kind=Kind.GATEWAY, namespace=view.namespace, name=name))
            if items_at(raw, "status", "links") or value_at(raw, "wireGuard", "port"):
                return OUR_AGENTS
        return None

    def _gateways(self, view: View) -> list[RawObject]:
        """Return what `gatewayInfos` holds: no address twice, the longest-serving gateway first."""
        found: dict[str, RawObject] = {}
        for name in serving(view, self._settings):
            raw = view.get(Ref(kind=Kind.GATEWAY, namespace=view.namespace, name=name))
            try:
                gateway = parse_object(raw, Kind.GATEWAY).value
            except InputError:
                continue  # somebody wrote into it; the election mends it
            assert isinstance(gateway, Gateway)
            if refuse_underlay(gateway.gateway_ip) is None:
                address = str(gateway.gateway_ip)
                key = wireguard_fields(gateway.wireguard)
                found.setdefault(address, {"gatewayIP": address} | ({"wireGuard": key} if key else {}))
        return list(found.values())

    def _info(self, leader: Leader, gateways: list[RawObject]) -> RawObject:
        """Return the payload."""
        info = {
            "clusterID": leader.cluster_id,
            "serviceCIDR": self._settings.service_cidr,
            "podCIDRs": list(self._settings.pod_cidrs) or None,
            "gatewayInfos": gateways,
            "wireGuard": gateways[0].get("wireGuard"),
        }
        return complete(info)
