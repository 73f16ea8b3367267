"""What members offer of a Service: which of their exports take part in the merge, and with what. Pure.

The rules are admission's, applied once more: an export can be older than a rule, or than a change of one. An
export that does not take part makes no offer, so it changes nothing for anybody else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.services import ServiceSpec
from mcagent.controller.contract.shares import traffic_of
from mcagent.controller.leader.exports.announces import is_member, not_a_member
from mcagent.controller.leader.exports.bounds import bounds_of, defaults_of, named_for, refuse_namespace
from mcagent.controller.leader.exports.header import Header, read_header
from mcagent.controller.leader.exports.payloads import Backends, read_backends, read_definition
from mcagent.controller.leader.exports.quota import is_over, over_quota, too_large
from mcagent.controller.leader.exports.status import CONFLICT, reason_of
from mcagent.controller.leader.services.granted_networks import GrantedNetworks
from mcagent.controller.leader.services.merge import MergeResult, Offer
from mcagent.controller.machinery.reconciler import View
from mcagent.controller.settings import LeaderSettings
from mcagent.model.api.multicluster import ResourceExport
from mcagent.model.errors import InputError

NOT_ALLOWED = "NamespaceNotAllowed"
QUOTA = "TooManyExports"
TOO_LARGE = "TooLarge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """An export, read once. `refused`: why it cannot take part, None if it can. `header` is None if unreadable."""

    object: ResourceExport
    key: str
    header: Header | None
    refused: MergeResult | None
    reserved: bool = False  # its namespace is named for its cluster

    @property
    def counts(self) -> bool:
        """Tell whether it takes part."""
        return self.header is not None and self.refused is None and not self.header.deleting


class Offers:
    """Reads exports by the rules of a leader."""

    def __init__(self, settings: LeaderSettings) -> None:
        self._limits = settings.limits
        self._defaults = defaults_of(settings.limits)
        self._grants = GrantedNetworks(settings)

    def read(self, view: View, export: ResourceExport, key: str) -> Export:
        """Return an export, and whether it can take part."""
        try:
            header = read_header(export)
        except InputError as error:
            refused = MergeResult(taken=False, note=reason_of(error))
            return Export(object=export, key=key, header=None, refused=refused)
        reason, why = self._refusal(view, export, header)
        return Export(
            object=export,
            key=key,
            header=header,
            refused=MergeResult(taken=False, note=why, reason=reason) if why else None,
            reserved=bool(named_for(view, header.area, header.namespace)),
        )

    def _refusal(self, view: View, export: ResourceExport, header: Header) -> tuple[str, str]:
        area, cluster = header.area, header.cluster_id
        if not is_member(view, area, cluster):
            return CONFLICT, not_a_member(cluster)
        bounds = bounds_of(view, area, cluster, self._defaults)
        named = named_for(view, area, header.namespace)
        if why := refuse_namespace(cluster, header.namespace, bounds, named):
            return NOT_ALLOWED, why
        if header.kind is ExportKind.SERVICE and is_over(view, export, bounds.max_exports):
            return QUOTA, over_quota(cluster, bounds.max_exports)
        return TOO_LARGE, too_large((export.metadata, export.spec), header.kind, self._limits.max_export_bytes)

    def max_exports(self, view: View, area: str, cluster_id: str) -> int:
        """Return how many Services a member may export."""
        return bounds_of(view, area, cluster_id, self._defaults).max_exports

    def offers(self, view: View, area: str, exports: Iterable[Export]) -> list[Offer]:
        """Return what each member offers of one Service. An export that cannot take part makes none."""
        headers: dict[str, Header] = {}
        definitions: dict[str, ServiceSpec | str] = {}
        remarks: dict[str, str] = {}
        endpoints: dict[str, ResourceExport] = {}
        for export in exports:
            header, resource_export = export.header, export.object
            if header is None or header.deleting:
                continue
            cluster = header.cluster_id
            if export.refused is not None:
                if header.kind is ExportKind.SERVICE:
                    definitions[cluster] = export.refused.note  # for its endpoints, which go with it
                continue
            if header.kind is ExportKind.ENDPOINTS:
                endpoints[cluster] = resource_export
                headers.setdefault(cluster, header)
                continue
            headers[cluster] = header
            try:
                traffic, remarks[cluster] = traffic_of(resource_export, may_name=export.reserved)
                definitions[cluster] = read_definition(resource_export, traffic)
            except InputError as error:
                definitions[cluster] = reason_of(error)
        offers = []
        for cluster, header in headers.items():
            backends: Backends | str | None = None
            if cluster in endpoints:
                bounds = bounds_of(view, area, cluster, self._defaults)
                refuse = self._grants.judge(view, area, cluster, bounds)
                try:
                    backends = read_backends(endpoints[cluster], refuse, self._limits.max_endpoints)
                except InputError as error:
                    backends = reason_of(error)
            definition = definitions.get(cluster, f"cluster {cluster} does not export the Service itself")
            remark = remarks.get(cluster, "")
            offers.append(Offer(header=header, definition=definition, backends=backends, remark=remark))
        return offers
