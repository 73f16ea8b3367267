"""Which API resource each Kind is: group, version, plural, scope. The only such table.

Knows the names on the wire and nothing of fields, clients or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    def name(self) -> str:
        """What stands in `kind`."""
        return _SHARED_NAMES.get(self.kind) or str(self.kind)

    @property
    def api_version(self) -> str:
        """What stands in `apiVersion`: "v1", "discovery.k8s.io/v1", ..."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def base_path(self) -> str:
        """The URL path of the group and version: "/api/v1", "/apis/discovery.k8s.io/v1", ..."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"


_ANTREA = "multicluster.crd.antrea.io"
_POLICIES = "crd.antrea.io"
_UPSTREAM = "policy.networking.k8s.io"
_SHARED_NAMES = {
    Kind.ANTREA_NETWORK_POLICY: "NetworkPolicy",
    Kind.UPSTREAM_CLUSTER_NETWORK_POLICY: "ClusterNetworkPolicy",
}
_MCS = "multicluster.x-k8s.io"
_RBAC = "rbac.authorization.k8s.io"
_WEBHOOKS = "admissionregistration.k8s.io"

_NAMES: Mapping[Kind, tuple[str, str, str]] = {  # group, version, plural
    Kind.GATEWAY: (_ANTREA, "v1alpha1", "gateways"),
    Kind.CLUSTER_INFO_IMPORT: (_ANTREA, "v1alpha1", "clusterinfoimports"),
    Kind.NODE: ("", "v1", "nodes"),
    Kind.POD: ("", "v1", "pods"),
    Kind.SERVICE: ("", "v1", "services"),
    Kind.ENDPOINT_SLICE: ("discovery.k8s.io", "v1", "endpointslices"),
    Kind.SERVICE_EXPORT: (_MCS, "v1alpha1", "serviceexports"),
    Kind.CLUSTER_SET: (_ANTREA, "v1alpha2", "clustersets"),
    Kind.CLUSTER_CLAIM: (_ANTREA, "v1alpha2", "clusterclaims"),
    Kind.MEMBER_CLUSTER_ANNOUNCE: (_ANTREA, "v1alpha1", "memberclusterannounces"),
    Kind.RESOURCE_EXPORT: (_ANTREA, "v1alpha1", "resourceexports"),
    Kind.RESOURCE_IMPORT: (_ANTREA, "v1alpha1", "resourceimports"),
    Kind.LABEL_IDENTITY: (_ANTREA, "v1alpha1", "labelidentities"),
    Kind.CLUSTER_NETWORK_POLICY: (_POLICIES, "v1beta1", "clusternetworkpolicies"),
    Kind.TIER: (_POLICIES, "v1beta1", "tiers"),
    Kind.SERVICE_IMPORT: (_MCS, "v1alpha1", "serviceimports"),
    Kind.ENDPOINTS: ("", "v1", "endpoints"),
    Kind.NETWORK_POLICY: ("networking.k8s.io", "v1", "networkpolicies"),
    Kind.ADMIN_NETWORK_POLICY: (_UPSTREAM, "v1alpha1", "adminnetworkpolicies"),
    Kind.BASELINE_ADMIN_NETWORK_POLICY: (_UPSTREAM, "v1alpha1", "baselineadminnetworkpolicies"),
    Kind.UPSTREAM_CLUSTER_NETWORK_POLICY: (_UPSTREAM, "v1alpha2", "clusternetworkpolicies"),
    Kind.ANTREA_NETWORK_POLICY: (_POLICIES, "v1beta1", "networkpolicies"),
    Kind.NAMESPACE: ("", "v1", "namespaces"),
    Kind.SECRET: ("", "v1", "secrets"),
    Kind.SERVICE_ACCOUNT: ("", "v1", "serviceaccounts"),
    Kind.ROLE: (_RBAC, "v1", "roles"),
    Kind.ROLE_BINDING: (_RBAC, "v1", "rolebindings"),
    Kind.CONFIG_MAP: ("", "v1", "configmaps"),
    Kind.LEASE: ("coordination.k8s.io", "v1", "leases"),
    Kind.EVENT: ("", "v1", "events"),
    Kind.SERVICE_CIDR: ("networking.k8s.io", "v1", "servicecidrs"),
    Kind.VALIDATING_WEBHOOK_CONFIGURATION: (_WEBHOOKS, "v1", "validatingwebhookconfigurations"),
    Kind.MUTATING_WEBHOOK_CONFIGURATION: (_WEBHOOKS, "v1", "mutatingwebhookconfigurations"),
    Kind.CUSTOM_RESOURCE_DEFINITION: ("apiextensions.k8s.io", "v1", "customresourcedefinitions"),
}
_CLUSTER_SCOPED = frozenset(
    {
        Kind.NODE,
        Kind.NAMESPACE,
        Kind.LABEL_IDENTITY,
        Kind.CLUSTER_NETWORK_POLICY,
        Kind.ADMIN_NETWORK_POLICY,
        Kind.BASELINE_ADMIN_NETWORK_POLICY,
        Kind.UPSTREAM_CLUSTER_NETWORK_POLICY,
        Kind.TIER,
        Kind.SERVICE_CIDR,
        Kind.VALIDATING_WEBHOOK_CONFIGURATION,
        Kind.MUTATING_WEBHOOK_CONFIGURATION,
        Kind.CUSTOM_RESOURCE_DEFINITION,
    }
)
KINDS: Mapping[Kind, KindInfo] = {
    kind: KindInfo(kind=kind, group=group, version=version, plural=plural, namespaced=kind not in _CLUSTER_SCOPED)
    for kind, (group, version, plural) in _NAMES.items()
}

AGENT_KINDS = frozenset(
    {
        Kind.GATEWAY,
        Kind.CLUSTER_INFO_IMPORT,
        Kind.NODE,
        Kind.POD,
        Kind.SERVICE,
        Kind.ENDPOINT_SLICE,
        Kind.SERVICE_EXPORT,
        Kind.SERVICE_IMPORT,
        Kind.NAMESPACE,
        Kind.LABEL_IDENTITY,
        Kind.NETWORK_POLICY,
        Kind.ANTREA_NETWORK_POLICY,
        Kind.CLUSTER_NETWORK_POLICY,
        Kind.TIER,
    }
)
"""The kinds that the agent reads; a directory of manifests is read for these."""

_BY_NAME = {(info.api_version, info.name): info.kind for info in KINDS.values() if info.kind in AGENT_KINDS}


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
