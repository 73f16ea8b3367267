"""What members offer of a Service: which of their exports take part in the merge, and with what. Pure.

The rules are admission's, applied once more: an export can be older than a rule, or than a change of one. An
export that does not take part makes no offer, so it changes nothing for anybody else.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from mcagent.controller.contract import names
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.raw import age, is_deleting
from mcagent.controller.contract.services import ServiceSpec
from mcagent.controller.contract.shares import traffic_of
from mcagent.controller.contract.size import object_size
from mcagent.controller.leader.announces import is_member, not_a_member
from mcagent.controller.leader.bounds import bounds_of, defaults_of, named_for, refuse_namespace
from mcagent.controller.leader.export_status import CONFLICT, reason_of
from mcagent.controller.leader.exports import BY_KIND, Header, by_kind, read_header
from mcagent.controller.leader.granted_networks import GrantedNetworks
from mcagent.controller.leader.merge import MergeResult, Offer
from mcagent.controller.leader.payloads import Backends, read_backends, read_definition
from mcagent.controller.machinery.reconciler import View
from mcagent.controller.settings import LeaderSettings
from mcagent.kube.source import RawObject
from mcagent.model.errors import InputError

NOT_ALLOWED = "NamespaceNotAllowed"
QUOTA = "TooManyExports"
TOO_LARGE = "TooLarge"
PLAIN_BYTES = 64 * 1024  # of an export that holds no endpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """An export, read once. `refused`: why it cannot take part, None if it can. `header` is None if unreadable."""

    raw: RawObject
    key: str
    header: Header | None
    refused: MergeResult | None
    reserved: bool = False  # its namespace is named for its cluster

    @property
    def counts(self) -> bool:
        """Tell whether it takes part."""
        return self.header is not None and self.refused is None and not self.header.deleting


def size_limit(kind: str, max_bytes: int) -> int:
    """Return how many bytes an export of a kind may have."""
    return max_bytes if kind == ExportKind.ENDPOINTS else min(max_bytes, PLAIN_BYTES)


def too_large(raw: RawObject, kind: str, max_bytes: int) -> str:
    """Return why an export is too large to be looked into, "" if it is not."""
    limit = size_limit(kind, max_bytes)
    if object_size(raw, limit) <= limit:
        return ""
    key = " (members.maxExportBytes of the leader)" if limit == max_bytes else ""
    return f"it is larger than {limit} bytes of JSON, the limit for exports of its kind{key}"


def over_quota(cluster_id: str, limit: int, what: str = "Services") -> str:
    """Return the message for exports that are more than a member may have."""
    return (
        f"cluster {cluster_id} may export {limit} {what}, and the oldest stay: members.maxExports of the leader, "
        f"or annotation {names.MAX_EXPORTS_ANNOTATION} of the cluster's ServiceAccount, can allow more"
    )


class Offers:
    """Reads exports by the rules of a leader."""

    def __init__(self, settings: LeaderSettings) -> None:
        self._limits = settings.limits
        self._defaults = defaults_of(settings.limits)
        self._grants = GrantedNetworks(settings)

    def read(self, view: View, raw: RawObject, key: str) -> Export:
        """Return an export, and whether it can take part."""
        try:
            header = read_header(raw)
        except InputError as error:
            return Export(raw=raw, key=key, header=None, refused=MergeResult(taken=False, note=reason_of(error)))
        reason, why = self._refusal(view, raw, header)
        return Export(
            raw=raw,
            key=key,
            header=header,
            refused=MergeResult(taken=False, note=why, reason=reason) if why else None,
            reserved=bool(named_for(view, header.area, header.namespace)),
        )

    def _refusal(self, view: View, raw: RawObject, header: Header) -> tuple[str, str]:
        area, cluster = header.area, header.cluster_id
        if not is_member(view, area, cluster):
            return CONFLICT, not_a_member(cluster)
        bounds = bounds_of(view, area, cluster, self._defaults)
        named = named_for(view, area, header.namespace)
        if why := refuse_namespace(cluster, header.namespace, bounds, named):
            return NOT_ALLOWED, why
        if header.kind is ExportKind.SERVICE and self._is_over(view, raw, header, bounds.max_exports):
            return QUOTA, over_quota(cluster, bounds.max_exports)
        return TOO_LARGE, too_large(raw, header.kind, self._limits.max_export_bytes)

    @staticmethod
    def _is_over(view: View, raw: RawObject, header: Header, limit: int) -> bool:
        value = by_kind(header.area, header.cluster_id, ExportKind.SERVICE)
        if header.deleting or view.count(BY_KIND, value) <= limit:
            return False
        return age(raw) not in oldest(view.indexed(BY_KIND, value), limit)

    def max_exports(self, view: View, area: str, cluster_id: str) -> int:
        """Return how many Services a member may export."""
        return bounds_of(view, area, cluster_id, self._defaults).max_exports

    def offers(self, view: View, area: str, exports: Iterable[Export]) -> list[Offer]:
        """Return what each member offers of one Service. An export that cannot take part makes none."""
        headers: dict[str, Header] = {}
        definitions: dict[str, ServiceSpec | str] = {}
        remarks: dict[str, str] = {}
        endpoints: dict[str, RawObject] = {}
        for export in exports:
            header, raw = export.header, export.raw
            if header is None or header.deleting:
                continue
            cluster = header.cluster_id
            if export.refused is not None:
                if header.kind is ExportKind.SERVICE:
                    definitions[cluster] = export.refused.note  # for its endpoints, which go with it
                continue
            if header.kind is ExportKind.ENDPOINTS:
                endpoints[cluster] = raw
                headers.setdefault(cluster, header)
                continue
            headers[cluster] = header
            try:
                traffic, remarks[cluster] = traffic_of(raw, may_name=export.reserved)
                definitions[cluster] = read_definition(raw, traffic)
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


def oldest(exports: Iterable[RawObject], limit: int) -> list[tuple[str, str, str]]:
    """Return the ages of the exports that stay when there may be so many: those that are not about to go."""
    return heapq.nsmallest(limit, (age(raw) for raw in exports if not is_deleting(raw)))
