"""The objects that stand for an imported Service: their names, whose they are, and what is in them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mcagent.controller.contract import names
from mcagent.controller.contract.raw import annotation, is_deleting, name_of, namespace_of, text_at, texts_at
from mcagent.controller.contract.services import ServiceSpec
from mcagent.controller.machinery.reconciler import Ref, View, Wanted
from mcagent.controller.member.indexes import SLICES_BY_SERVICE
from mcagent.controller.member.services.import_content import Subsets
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedService:
    """An imported Service and the objects that stand for it here."""

    namespace: str
    name: str

    @property
    def service(self) -> Ref:
        """Return the Service."""
        return Ref(kind=Kind.SERVICE, namespace=self.namespace, name=names.imported(self.name))

    @property
    def endpoints(self) -> Ref:
        """Return the Endpoints."""
        return Ref(kind=Kind.ENDPOINTS, namespace=self.namespace, name=names.imported(self.name))

    @property
    def service_import(self) -> Ref:
        """Return the ServiceImport."""
        return Ref(kind=Kind.SERVICE_IMPORT, namespace=self.namespace, name=self.name)

    def slice(self, name: str) -> Ref:
        """Return one of its EndpointSlices."""
        return Ref(kind=Kind.ENDPOINT_SLICE, namespace=self.namespace, name=name)


def owner_of(kind: Kind, raw: RawObject | None) -> str:
    """Return the key of what may be an object that stands for an imported Service; "" for any other."""
    name, namespace = name_of(raw), namespace_of(raw)
    match kind:
        case Kind.SERVICE | Kind.ENDPOINTS:
            imported = name.startswith(names.IMPORTED_PREFIX)
            return f"{namespace}/{name.removeprefix(names.IMPORTED_PREFIX)}" if imported else ""
        case Kind.SERVICE_IMPORT:
            return f"{namespace}/{name}" if raw is not None else ""
        case Kind.ENDPOINT_SLICE:
            service = text_at(raw, "metadata", "labels", names.SERVICE_NAME_LABEL)
            imported = service.startswith(names.IMPORTED_PREFIX)
            return f"{namespace}/{service.removeprefix(names.IMPORTED_PREFIX)}" if imported else ""
        case _:
            return ""


def removals(target: ImportedService, view: View) -> list[Wanted | Ref]:
    """Return what goes with an imported Service: only what was made for it."""
    steps: list[Wanted | Ref] = []
    service = view.get(target.service)
    present = view.get(target.service_import)
    if present is not None and is_our_import(present, service):
        steps.append(target.service_import)
    if is_imported(service) and not is_deleting(service):
        steps += [target.endpoints, target.service]
    steps += [target.slice(name_of(raw)) for raw in our_slices(target, view)]
    return steps


def is_imported(raw: RawObject | None) -> bool:
    """Tell whether a Service or Endpoints object was made for an import, by us or by Antrea."""
    return annotation(raw, names.IMPORTED_SERVICE_ANNOTATION) == "true"


def is_our_import(raw: RawObject, service: RawObject | None) -> bool:
    """Tell whether a ServiceImport is ours, or was Antrea's, which does not mark them: it has its Service's IP."""
    if text_at(raw, "metadata", "labels", names.MANAGED_BY_LABEL) == names.MANAGED_BY:
        return True
    address = text_at(service, "spec", "clusterIP")
    return is_imported(service) and bool(address) and texts_at(raw, "spec", "ips") == [address]


def our_slices(target: ImportedService, view: View) -> list[RawObject]:
    """Return the EndpointSlices that we made."""
    found = view.indexed(SLICES_BY_SERVICE, f"{target.namespace}/{target.service.name}")
    label = names.SLICE_MANAGED_BY_LABEL
    return [r for r in found if text_at(r, "metadata", "labels", label) == names.SLICE_MANAGED_BY]


def is_mirrored(target: ImportedService, view: View) -> bool:
    """Tell whether Kubernetes mirrors Endpoints into slices, which somebody else must have made."""
    found = view.indexed(SLICES_BY_SERVICE, f"{target.namespace}/{target.service.name}")
    label = names.SLICE_MANAGED_BY_LABEL
    return any(text_at(raw, "metadata", "labels", label) == names.SLICE_MIRRORED_BY for raw in found)


def _marks() -> RawObject:
    return {
        "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY},
        "annotations": {names.IMPORTED_SERVICE_ANNOTATION: "true"},
    }


def service_of(target: ImportedService, wanted: ServiceSpec) -> Wanted:
    """Return the Service."""
    ports = [
        ({"name": p.name} if p.name else {})
        | {"port": p.port, "protocol": str(p.protocol), "targetPort": p.port}
        | ({"appProtocol": p.app_protocol} if p.app_protocol else {})
        for p in wanted.ports
    ]
    spec = {"type": "ClusterIP", "selector": None, "ports": ports, **_affinity(wanted)}
    return Wanted(ref=target.service, body={"metadata": _marks(), "spec": spec})


def _affinity(wanted: ServiceSpec) -> RawObject:
    if wanted.affinity_seconds is None:
        return {"sessionAffinity": "None", "sessionAffinityConfig": None}
    config = {"clientIP": {"timeoutSeconds": wanted.affinity_seconds}}
    return {"sessionAffinity": "ClientIP", "sessionAffinityConfig": config}


def endpoints_of(target: ImportedService, found: Subsets) -> Wanted:
    """Return the Endpoints, which Kubernetes is told not to mirror: the slices are there already."""
    meta = _marks()
    meta["labels"] |= {names.SKIP_MIRROR_LABEL: "true"}
    subsets = [
        {
            "addresses": [{"ip": text} for text in addresses],
            "ports": [
                ({"name": name} if name else {}) | {"port": port, "protocol": protocol}
                for name, protocol, port in ports
            ],
        }
        for ports, addresses in sorted(found.items())
    ]
    return Wanted(ref=target.endpoints, body={"metadata": meta, "subsets": subsets})


def service_import_of(
    target: ImportedService, wanted: ServiceSpec, address: str, clusters: Iterable[str]
) -> Wanted:
    """Return the ServiceImport, with the address of the Service once there is one."""
    ports = [
        ({"name": p.name} if p.name else {})
        | {"port": p.port, "protocol": str(p.protocol)}
        | ({"appProtocol": p.app_protocol} if p.app_protocol else {})
        for p in wanted.ports
    ]
    spec = {"type": "ClusterSetIP", "ips": [address] if address else [], "ports": ports, **_affinity(wanted)}
    return Wanted(
        ref=target.service_import,
        body={"metadata": {"labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY}}, "spec": spec},
        status={"clusters": [{"cluster": cluster} for cluster in clusters]},
    )
