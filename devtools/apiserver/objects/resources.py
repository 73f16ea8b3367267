"""Which resources the server serves from the start: the built-in table. `registry` adds to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MULTICLUSTER = "multicluster.crd.antrea.io"
MCS = "multicluster.x-k8s.io"
RBAC = "rbac.authorization.k8s.io"
CRD_GROUP = "apiextensions.k8s.io"
ADMISSION = "admissionregistration.k8s.io"

ACCOUNT_TOKEN = "kubernetes.io/service-account-token"  # noqa: S105  (a type of Secret)
ACCOUNT_NAME = "kubernetes.io/service-account.name"

_MCS_VERSIONS = ("v1beta1", "v1alpha1")
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
    counted: bool = False  # metadata.generation counts changes of what is wanted (custom resources: always)

    @property
    def store_key(self) -> tuple[str, str]:
        """Return what the objects are stored under."""
        return (self.group, self.plural)

    @property
    def resource(self) -> str:
        """Return the resource as error messages have it: "gateways.multicluster.crd.antrea.io", "secrets"."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def group_kind(self) -> str:
        """Return the kind as error messages have it: "Gateway.multicluster.crd.antrea.io", "Secret"."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @property
    def generation(self) -> bool:
        """Tell whether objects have a metadata.generation."""
        return self.custom or self.counted

    def api_version(self, version: str) -> str:
        """Return the `apiVersion` of objects read through `version`."""
        return f"{self.group}/{version}" if self.group else version


def _core(plural: str, kind: str, *short: str, **more: Any) -> ResourceType:
    return ResourceType(group="", versions=("v1",), plural=plural, kind=kind, short_names=short, **more)


def _custom(group: str, plural: str, kind: str, *short: str, **more: Any) -> ResourceType:
    more.setdefault("versions", ("v1alpha1",))
    return ResourceType(group=group, plural=plural, kind=kind, short_names=short, custom=True, **more)


def _more(group: str, kind: str, plural: str, *short: str, **more: Any) -> ResourceType:
    return ResourceType(group=group, versions=("v1",), plural=plural, kind=kind, short_names=short, **more)


NAMESPACES = _core("namespaces", "Namespace", "ns", namespaced=False, status=True)
PODS = _core("pods", "Pod", "po", status=True, counted=True)
SECRETS = _core("secrets", "Secret")
SERVICES = _core("services", "Service", "svc", status=True)
SERVICE_ACCOUNTS = _core("serviceaccounts", "ServiceAccount", "sa")
SERVICE_CIDRS = _more("networking.k8s.io", "ServiceCIDR", "servicecidrs", namespaced=False, status=True)
WEBHOOKS = _more(
    *(ADMISSION, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
    namespaced=False,
    counted=True,
)
CRDS = _more(
    *(CRD_GROUP, "CustomResourceDefinition", "customresourcedefinitions", "crd", "crds"),
    namespaced=False,
    status=True,
    counted=True,
)
# Stored, but not enforced: their rules are CEL.
POLICIES = tuple(
    _more(ADMISSION, kind, plural, namespaced=False, status=not kind.endswith("Binding"), counted=True)
    for kind, plural in (
        ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
        ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
    )
)

BUILT_IN: tuple[ResourceType, ...] = (
    NAMESPACES,
    _core("nodes", "Node", "no", namespaced=False, status=True, keeps_status=True),
    PODS,
    SERVICES,
    _core("endpoints", "Endpoints", "ep"),
    SECRETS,
    _core("configmaps", "ConfigMap", "cm"),
    _core("events", "Event", "ev"),
    SERVICE_ACCOUNTS,
    SERVICE_CIDRS,
    WEBHOOKS,
    *POLICIES,
    *(
        _more(group, kind, plural, counted=True, namespaced=group != ADMISSION)
        for group, kind, plural in (  # stored, but not acted on
            (ADMISSION, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
            ("networking.k8s.io", "NetworkPolicy", "networkpolicies"),
            ("policy", "PodDisruptionBudget", "poddisruptionbudgets"),
        )
    ),
    _more("discovery.k8s.io", "EndpointSlice", "endpointslices", counted=True),
    _more("coordination.k8s.io", "Lease", "leases"),
    _more("apps", "DaemonSet", "daemonsets", "ds", status=True, counted=True),
    _more("apps", "Deployment", "deployments", "deploy", status=True, counted=True),
    *(
        _more(RBAC, kind, f"{kind.lower()}s", namespaced=kind.startswith("Role"))
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
    _custom(MULTICLUSTER, "clusterclaims", "ClusterClaim", versions=("v1alpha2", "v1alpha1")),
    _custom(MCS, "serviceexports", "ServiceExport", "svcex", "svcexport", versions=_MCS_VERSIONS, status=True),
    _custom(MCS, "serviceimports", "ServiceImport", "svcim", "svcimport", versions=_MCS_VERSIONS, status=True),
)
