"""The export addresses of this cluster's exported Services. Pure.

An annotation of a Service's ResourceExport records its address, so that it stays, and users of its namespace
cannot write it. Two workers can give two Services the same address: the older ResourceExport keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable

from mcagent.controller.contract.export_ranges import ADDRESS_ANNOTATION, export_address, is_export_address
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.machinery.reconciler import Index, Leader, Ref, Side, View
from mcagent.model.api.multicluster import ResourceExport


def _by_address(export: ResourceExport) -> Iterable[str]:
    text = export.annotation(ADDRESS_ANNOTATION) if export.spec.kind == ExportKind.SERVICE else None
    return [f"{export.spec.cluster_id}/{text}"] if text else []


# Service exports under "cluster ID/address".
OWN_BY_ADDRESS = Index("own-exports-by-export-address", ResourceExport, Side.LEADER, _by_address)


def same_address(view: View, leader: Leader | None, export: ResourceExport) -> list[ResourceExport]:
    """Return the ResourceExports of this cluster that record the same export address as one of them."""
    own = leader is not None and export.spec.cluster_id == leader.cluster_id
    return [other for value in _by_address(export) if own for other in view.indexed(OWN_BY_ADDRESS, value)]


def address_of_service(view: View, leader: Leader, ref: Ref, service: str, cidr: str) -> str:
    """Return the address of a Service ("namespace/name") in the export range `cidr`; "" if none is free.

    `ref`: its ResourceExport, which may not exist yet.
    """
    own = view.get(ref, ResourceExport)
    present = own.annotation(ADDRESS_ANNOTATION) or "" if own is not None else ""

    def others(text: str) -> list[ResourceExport]:
        holders = view.indexed(OWN_BY_ADDRESS, f"{leader.cluster_id}/{text}")
        return [holder for holder in holders if holder.name != ref.name]

    if (
        own is not None
        and is_export_address(present, cidr)
        and all(own.age < other.age for other in others(present))
    ):
        return present
    return export_address(cidr, service, lambda text: not others(text))
