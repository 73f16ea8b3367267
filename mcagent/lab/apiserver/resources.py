"""Which resources the server serves: the built-in table and what CustomResourceDefinitions add to it.

Storage is by group and plural; the versions of one resource share their objects (conversion strategy None).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mcagent.lab.apiserver.errors import ApiError, Json, invalid

MULTICLUSTER = "multicluster.crd.antrea.io"
MCS = "multicluster.x-k8s.io"
RBAC = "rbac.authorization.k8s.io"
CRD_GROUP = "apiextensions.k8s.io"

VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceType:
    """One resource: its names, scope, served versions and whether `status` is a subresource."""

    group: str
    versions: tuple[str, ...]  # preferred first
    plural: str
    kind: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    status: bool = False
    keeps_status: bool = False  # a create may carry the status (Nodes are registered that way)
    custom: bool = False  # a custom resource: an update must name the version it is made from

    @property
    def store_key(self) -> tuple[str, str]:
        """Return what the objects are stored under."""
        return (self.group, self.plural)

    def api_version(self, version: str) -> str:
        """Return the `apiVersion` of objects read through `version`."""
        return f"{self.group}/{version}" if self.group else version


def _core(plural: str, kind: str, *short: str, **more: Any) -> ResourceType:
    return ResourceType(group="", versions=("v1",), plural=plural, kind=kind, short_names=short, **more)


def _custom(group: str, plural: str, kind: str, *short: str, **more: Any) -> ResourceType:
    more.setdefault("versions", ("v1alpha1",))
    return ResourceType(group=group, plural=plural, kind=kind, short_names=short, custom=True, **more)


NAMESPACES = _core("namespaces", "Namespace", "ns", namespaced=False, status=True)
CRDS = ResourceType(
    group=CRD_GROUP,
    versions=("v1",),
    plural="customresourcedefinitions",
    kind="CustomResourceDefinition",
    namespaced=False,
    short_names=("crd", "crds"),
    status=True,
)

BUILT_IN: tuple[ResourceType, ...] = (
    NAMESPACES,
    _core("nodes", "Node", "no", namespaced=False, status=True, keeps_status=True),
    _core("pods", "Pod", "po", status=True),
    _core("services", "Service", "svc", status=True),
    _core("endpoints", "Endpoints", "ep"),
    _core("secrets", "Secret"),
    _core("configmaps", "ConfigMap", "cm"),
    _core("events", "Event", "ev"),
    _core("serviceaccounts", "ServiceAccount", "sa"),
    ResourceType(group="discovery.k8s.io", versions=("v1",), plural="endpointslices", kind="EndpointSlice"),
    ResourceType(group="coordination.k8s.io", versions=("v1",), plural="leases", kind="Lease"),
    ResourceType(
        group="apps", versions=("v1",), plural="daemonsets", kind="DaemonSet", short_names=("ds",), status=True
    ),
    ResourceType(
        group="apps",
        versions=("v1",),
        plural="deployments",
        kind="Deployment",
        short_names=("deploy",),
        status=True,
    ),
    *(
        ResourceType(
            group=RBAC, versions=("v1",), plural=f"{kind.lower()}s", kind=kind, namespaced=kind.startswith("Role")
        )
        for kind in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    ),
    CRDS,
    _custom(MULTICLUSTER, "gateways", "Gateway", status=True),
    _custom(MULTICLUSTER, "clusterinfoimports", "ClusterInfoImport", status=True),
    _custom(MULTICLUSTER, "clustersets", "ClusterSet", versions=("v1alpha2", "v1alpha1"), status=True),
    _custom(MULTICLUSTER, "memberclusterannounces", "MemberClusterAnnounce"),
    _custom(MULTICLUSTER, "resourceexports", "ResourceExport", status=True),
    _custom(MULTICLUSTER, "resourceimports", "ResourceImport", status=True),
    _custom(MULTICLUSTER, "labelidentities", "LabelIdentity", namespaced=False),
    _custom(MULTICLUSTER, "clusterclaims", "ClusterClaim", versions=("v1alpha2",)),
    _custom(MCS, "serviceexports", "ServiceExport", "svcex", status=True),
    _custom(MCS, "serviceimports", "ServiceImport", "svcim", status=True),
)


class Registry:
    """The resources served now, by group and plural. Safe to use from many threads."""

    def __init__(self, types: Iterable[ResourceType] = BUILT_IN) -> None:
        self._lock = threading.Lock()
        self._built_in = {t.store_key: t for t in types}
        self._types = dict(self._built_in)

    def all(self) -> list[ResourceType]:
        """Return every resource, sorted by group and plural."""
        with self._lock:
            return sorted(self._types.values(), key=lambda t: t.store_key)

    def find(self, group: str, version: str, plural: str) -> ResourceType | None:
        """Return the resource of that path, or None."""
        with self._lock:
            found = self._types.get((group, plural))
        return found if found is not None and version in found.versions else None

    def get(self, key: tuple[str, str]) -> ResourceType | None:
        """Return the resource stored under `key`, or None."""
        with self._lock:
            return self._types.get(key)

    def by_kind(self, api_version: str, kind: str) -> tuple[ResourceType, str] | None:
        """Return the resource and version that an object with these two fields belongs to."""
        group, _, version = api_version.rpartition("/")
        for found in self.all():
            if found.group == group and found.kind == kind and version in found.versions:
                return found, version
        return None

    def define(self, crd: Json) -> None:
        """Serve what a CustomResourceDefinition says. Raises ApiError 422 when it cannot be read."""
        parsed = parse_crd(crd)
        with self._lock:
            self._types[parsed.store_key] = parsed

    def undefine(self, crd: Json) -> tuple[str, str]:
        """Serve it no longer, unless it is built in. Returns its store key."""
        key = parse_crd(crd).store_key
        with self._lock:
            if key in self._built_in:
                self._types[key] = self._built_in[key]
            else:
                self._types.pop(key, None)
        return key


def parse_crd(crd: Json) -> ResourceType:
    """Read a CustomResourceDefinition (apiextensions.k8s.io/v1). Raises ApiError 422 when it cannot be read."""
    name = str(crd.get("metadata", {}).get("name", ""))
    try:
        spec = crd["spec"]
        names = spec["names"]
        served = [v for v in spec["versions"] if v.get("served")]
        # The preferred version is the highest; here the storage version, which is good enough for one.
        served.sort(key=lambda v: not v.get("storage"))
        parsed = ResourceType(
            group=spec["group"],
            versions=tuple(v["name"] for v in served),
            plural=names["plural"],
            kind=names["kind"],
            namespaced=spec["scope"] == "Namespaced",
            short_names=tuple(names.get("shortNames", ())),
            status=any("status" in v.get("subresources", {}) for v in served),
            custom=True,
        )
    except (KeyError, TypeError, AttributeError) as err:
        raise invalid("CustomResourceDefinition", name, "spec", f"cannot be read: {err!r}") from None
    if name != f"{parsed.plural}.{parsed.group}":
        raise invalid(
            "CustomResourceDefinition", name, "metadata.name", "must be spec.names.plural+'.'+spec.group"
        )
    if not parsed.versions:
        raise ApiError(422, "Invalid", f'CustomResourceDefinition "{name}" is invalid: no version is served')
    return parsed
