"""Which API resource each Kind is: group, version, plural, scope. The one table that everybody uses.

Knows the names on the wire and nothing of fields, clients or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mcagent.model.objects import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class KindInfo:
    """One row: how the API server names a kind. `group` is "" for the core group."""

    kind: Kind
    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """Return what stands in `apiVersion`: "v1", "discovery.k8s.io/v1", ..."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def base_path(self) -> str:
        """Return the URL path of the group and version: "/api/v1", "/apis/discovery.k8s.io/v1", ..."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"


_ANTREA = "multicluster.crd.antrea.io"
_MCS = "multicluster.x-k8s.io"

KINDS: Mapping[Kind, KindInfo] = MappingProxyType(
    {
        info.kind: info
        for info in (
            KindInfo(kind=Kind.GATEWAY, group=_ANTREA, version="v1alpha1", plural="gateways"),
            KindInfo(
                kind=Kind.CLUSTER_INFO_IMPORT, group=_ANTREA, version="v1alpha1", plural="clusterinfoimports"
            ),
            KindInfo(kind=Kind.NODE, group="", version="v1", plural="nodes", namespaced=False),
            KindInfo(kind=Kind.POD, group="", version="v1", plural="pods"),
            KindInfo(kind=Kind.SERVICE, group="", version="v1", plural="services"),
            KindInfo(kind=Kind.ENDPOINT_SLICE, group="discovery.k8s.io", version="v1", plural="endpointslices"),
            KindInfo(kind=Kind.SERVICE_EXPORT, group=_MCS, version="v1alpha1", plural="serviceexports"),
            KindInfo(kind=Kind.CLUSTER_SET, group=_ANTREA, version="v1alpha2", plural="clustersets"),
            KindInfo(kind=Kind.CLUSTER_CLAIM, group=_ANTREA, version="v1alpha2", plural="clusterclaims"),
            KindInfo(
                kind=Kind.MEMBER_CLUSTER_ANNOUNCE,
                group=_ANTREA,
                version="v1alpha1",
                plural="memberclusterannounces",
            ),
            KindInfo(kind=Kind.RESOURCE_EXPORT, group=_ANTREA, version="v1alpha1", plural="resourceexports"),
            KindInfo(kind=Kind.RESOURCE_IMPORT, group=_ANTREA, version="v1alpha1", plural="resourceimports"),
            KindInfo(kind=Kind.SERVICE_IMPORT, group=_MCS, version="v1alpha1", plural="serviceimports"),
            KindInfo(kind=Kind.ENDPOINTS, group="", version="v1", plural="endpoints"),
            KindInfo(kind=Kind.NAMESPACE, group="", version="v1", plural="namespaces", namespaced=False),
            KindInfo(kind=Kind.SECRET, group="", version="v1", plural="secrets"),
            KindInfo(kind=Kind.SERVICE_ACCOUNT, group="", version="v1", plural="serviceaccounts"),
            KindInfo(kind=Kind.ROLE, group="rbac.authorization.k8s.io", version="v1", plural="roles"),
            KindInfo(
                kind=Kind.ROLE_BINDING, group="rbac.authorization.k8s.io", version="v1", plural="rolebindings"
            ),
            KindInfo(kind=Kind.CONFIG_MAP, group="", version="v1", plural="configmaps"),
            KindInfo(kind=Kind.LEASE, group="coordination.k8s.io", version="v1", plural="leases"),
            KindInfo(kind=Kind.EVENT, group="", version="v1", plural="events"),
            KindInfo(
                kind=Kind.SERVICE_CIDR,
                group="networking.k8s.io",
                version="v1",
                plural="servicecidrs",
                namespaced=False,
            ),
            KindInfo(
                kind=Kind.VALIDATING_WEBHOOK_CONFIGURATION,
                group="admissionregistration.k8s.io",
                version="v1",
                plural="validatingwebhookconfigurations",
                namespaced=False,
            ),
            KindInfo(
                kind=Kind.MUTATING_WEBHOOK_CONFIGURATION,
                group="admissionregistration.k8s.io",
                version="v1",
                plural="mutatingwebhookconfigurations",
                namespaced=False,
            ),
            KindInfo(
                kind=Kind.CUSTOM_RESOURCE_DEFINITION,
                group="apiextensions.k8s.io",
                version="v1",
                plural="customresourcedefinitions",
                namespaced=False,
            ),
        )
    }
)

AGENT_KINDS = frozenset(
    {
        Kind.GATEWAY,
        Kind.CLUSTER_INFO_IMPORT,
        Kind.NODE,
        Kind.POD,
        Kind.SERVICE,
        Kind.ENDPOINT_SLICE,
        Kind.SERVICE_EXPORT,
    }
)
"""The kinds that the agent reads; a directory of manifests is read for these."""

_BY_NAME = {(info.api_version, str(info.kind)): info.kind for info in KINDS.values() if info.kind in AGENT_KINDS}


def object_path(kind: Kind, namespace: str, name: str = "") -> str:
    """Return the URL path of an object, or of its collection when `name` is ""."""
    info = KINDS[kind]
    scope = f"/namespaces/{namespace}" if info.namespaced and namespace else ""
    return f"{info.base_path}{scope}/{info.plural}" + (f"/{name}" if name else "")


def kind_of(raw: object) -> Kind | None:
    """Return the Kind of an object by its `apiVersion` and `kind`; None when it is none that the agent reads."""
    if not isinstance(raw, Mapping):
        return None
    api_version, kind = raw.get("apiVersion"), raw.get("kind")
    if not isinstance(api_version, str) or not isinstance(kind, str):
        return None
    return _BY_NAME.get((api_version, kind))
