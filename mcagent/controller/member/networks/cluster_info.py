"""The reconciler of this cluster's ClusterInfo on the leader: its networks and gateways, for all other clusters.

It owns the ResourceExport `<clusterID>-clusterinfo`, and deletes it only if there is no Gateway. Settings that
must be equal in all clusters are annotations, for other clusters to compare; Antrea ignores them.
"""

from __future__ import annotations

from collections.abc import Iterable

from mcagent.controller.contract import names
from mcagent.controller.contract.cluster_uid import CLUSTER_UID_ANNOTATION
from mcagent.controller.contract.export_ranges import ALWAYS, AUTO, RANGE_ANNOTATION
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.pod_ranges import POD_CIDRS_ANNOTATION, POD_RANGE_ANNOTATION
from mcagent.controller.machinery.reconciler import Access, DesiredObjects, Leader, ObjectChange, Ref, View
from mcagent.controller.member.exports import (
    export_ref,
    published,
    published_settings,
    read_gateway,
    resource_export,
)
from mcagent.controller.member.membership import cluster_set_of, concerns_membership, exporting_leader
from mcagent.controller.member.networks.election import relevant
from mcagent.controller.member.networks.gateways import serving
from mcagent.controller.member.published import published_cidr, published_pod_cidrs
from mcagent.controller.settings import MemberSettings
from mcagent.core.addresses.underlay import refuse_underlay
from mcagent.model.api.multicluster import ApiGateway, ClusterInfo, GatewayInfo, ResourceExport, ResourceExportSpec
from mcagent.model.api.patches import patch, whole
from mcagent.model.errors import InputError
from mcagent.model.event import Event
from mcagent.model.objects import Kind
from mcagent.model.parsing import links
from mcagent.model.parsing.clusters import AGENTS_ANNOTATION, MTU_ANNOTATION, OUR_AGENTS, SERVICE_CIDR_ANNOTATION
from mcagent.model.parsing.granted import REFUSED_ANNOTATION, refused_text

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
        """Return KEY if a change touches published fields."""
        leader = view.leader
        match change.kind:
            case Kind.NODE:
                touched = relevant(change.old) != relevant(change.new)
            case Kind.GATEWAY:
                touched = change.object.namespace == view.namespace
            case Kind.RESOURCE_EXPORT:
                name = names.cluster_info(leader.cluster_id) if leader is not None else ""
                touched = change.object.name == name
            case _:
                touched = concerns_membership(change)
        return [KEY] if touched else []

    def all_keys(self, view: View) -> Iterable[str]:  # noqa: ARG002
        """Return KEY."""
        return [KEY]

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:  # noqa: ARG002
        """Return the ResourceExport, or its deletion if no Gateway has a usable address."""
        leader, cluster_set = exporting_leader(view), cluster_set_of(view)
        if leader is None or cluster_set is None:
            return DesiredObjects()
        ref = export_ref(leader, names.cluster_info(leader.cluster_id))
        present = view.get(ref, ResourceExport)
        if present is not None and present.is_deleting:
            return DesiredObjects()  # created again once it is gone
        serving_gateways = self._serving(view)
        infos = _gateway_infos(serving_gateways)
        if not infos:
            return DesiredObjects(steps=[ref] if present is not None else [])
        events = []
        if self._settings.service_cidr is None:
            message = "the Service CIDR of this cluster is unknown: other clusters cannot reach its ClusterIPs"
            events.append(Event(subject=cluster_set.subject, reason="NoServiceCIDR", message=message))
        if failure := view.failure(ref):
            message = f"this cluster's gateways are not published: {failure}"
            events.append(Event(subject=cluster_set.subject, reason="ExportFailed", message=message))
        spec = patch(
            ResourceExportSpec,
            cluster_id=leader.cluster_id,
            name=leader.cluster_id,
            namespace=view.namespace,
            kind=ExportKind.CLUSTER_INFO,
            cluster_info=self._info(view, leader, infos),
        )
        annotations = {
            **published_settings(self._settings),
            AGENTS_ANNOTATION: _agents(serving_gateways),
            MTU_ANNOTATION: _mtu(serving_gateways),
            REFUSED_ANNOTATION: _refused(view),
            SERVICE_CIDR_ANNOTATION: self._settings.service_cidr,
            RANGE_ANNOTATION: mode if (mode := self._settings.export_cidr) in (AUTO, ALWAYS) else None,
            POD_CIDRS_ANNOTATION: ",".join(self._settings.pod_cidrs) or None,
            POD_RANGE_ANNOTATION: mode if (mode := self._settings.pod_export_cidr) in (AUTO, ALWAYS) else None,
            CLUSTER_UID_ANNOTATION: self._settings.cluster_uid or None,
        }
        return DesiredObjects(steps=[resource_export(ref, spec, present, annotations)], events=events)

    def _serving(self, view: View) -> list[ApiGateway]:
        """Return the Gateway objects that other clusters should use, in their order."""
        refs = (
            Ref(kind=Kind.GATEWAY, namespace=view.namespace, name=name) for name in serving(view, self._settings)
        )
        return [gateway for ref in refs if (gateway := view.get(ref, ApiGateway)) is not None]

    def _info(self, view: View, leader: Leader, infos: list[GatewayInfo]) -> ClusterInfo:
        info = ClusterInfo(
            cluster_id=leader.cluster_id,
            service_cidr=published_cidr(view, self._settings),
            pod_cidrs=published_pod_cidrs(view, self._settings),
            gateway_infos=tuple(infos),
            wireguard=infos[0].wireguard,
        )
        return whole(info)


def _refused(view: View) -> str | None:
    """Return the Pod CIDRs of other clusters that this cluster's gateways do not use, as REFUSED_ANNOTATION."""
    gateways = view.list(ApiGateway, namespace=view.namespace)
    merged_links = links.merged(links.read(gateway.status.links) for gateway in gateways)
    return refused_text({link.cluster: link.refused for link in merged_links if link.refused})


def _agents(gateways: Iterable[ApiGateway]) -> str | None:
    """Return OUR_AGENTS if mcagent's agents run on the gateways, else None.

    They write their links, `exportAddresses`, and the port of their WireGuard device; Antrea's agents do not.
    """
    for gateway in gateways:
        status, wireguard = gateway.status, gateway.wireguard
        if status.links or status.export_addresses or (wireguard is not None and wireguard.port):
            return OUR_AGENTS
    return None


def _mtu(gateways: Iterable[ApiGateway]) -> str | None:
    """Return the smallest MTU that the agents of the gateways report, as MTU_ANNOTATION."""
    mtus = [gateway.status.tunnel_mtu for gateway in gateways if gateway.status.tunnel_mtu > 0]
    return str(min(mtus)) if mtus else None


def _gateway_infos(gateways: Iterable[ApiGateway]) -> list[GatewayInfo]:
    """Return the `gatewayInfos`: each address once, the longest-serving gateway first."""
    by_address: dict[str, GatewayInfo] = {}
    for obj in gateways:
        try:
            gateway = read_gateway(obj)
        except InputError:
            continue  # another client changed it; `gateways` writes it again
        if refuse_underlay(gateway.gateway_ip) is None:
            address = str(gateway.gateway_ip)
            by_address.setdefault(address, GatewayInfo(gateway_ip=address, wireguard=published(gateway.wireguard)))
    return list(by_address.values())
