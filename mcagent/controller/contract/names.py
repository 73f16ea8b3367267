"""Names, labels, annotations and finalizers of the wire contract with Antrea Multi-cluster.

Pure text. Knows no objects and no decisions. Source: Antrea v2.8 multicluster/apis/multicluster/constants and
multicluster/controllers/multicluster/common. Object names are concatenated, so they can be ambiguous (`a-b`/`c`
and `a`/`b-c`): code that gets an object by name also compares its spec.
"""

from __future__ import annotations

import re
from enum import StrEnum


class ExportKind(StrEnum):
    """`spec.kind` of the ResourceExports that leaders merge. ResourceImports have the same, but for Services."""

    SERVICE = "Service"
    ENDPOINTS = "Endpoints"
    CLUSTER_INFO = "ClusterInfo"
    LABEL_IDENTITY = "LabelIdentity"


SERVICE_KINDS = frozenset({ExportKind.SERVICE, ExportKind.ENDPOINTS})
POLICY = "AntreaClusterNetworkPolicy"  # `spec.kind` of exports that administrators write, and their imports
KUBERNETES_POLICY = "KubernetesPolicy"  # the same, of policies of Kubernetes: `raw` has them
SERVICE_IMPORT = "ServiceImport"  # `spec.kind` of the ResourceImport of a Service

GATEWAY_ANNOTATION = "multicluster.antrea.io/gateway"
GATEWAY_IP_ANNOTATION = "multicluster.antrea.io/gateway-ip"
CLUSTER_ID_ANNOTATION = "multicluster.antrea.io/cluster-id"
IMPORTED_SERVICE_ANNOTATION = "multicluster.antrea.io/imported-service"
IMPORTED_POLICY_ANNOTATION = "multicluster.antrea.io/imported-acnp"
REPLICATED_POLICY_ANNOTATION = "mcagent.io/replicated-policy"  # of a policy of Kubernetes: its ResourceImport
CREATED_BY_COMMAND_ANNOTATION = "multicluster.antrea.io/created-by-antctl"
HEARTBEAT_ANNOTATION = "touch-ts"

LABEL_SOURCE_NAME = "sourceName"
LABEL_SOURCE_NAMESPACE = "sourceNamespace"
LABEL_SOURCE_CLUSTER_ID = "sourceClusterID"
LABEL_SOURCE_KIND = "sourceKind"

EXPORT_FINALIZER = "resourceexport.antrea.io/finalizer"
LEGACY_EXPORT_FINALIZER = "resourceexport.finalizers.antrea.io"
IMPORTED_PREFIX = "antrea-mc-"

# Of Kubernetes and of mcagent: they identify the objects that mcagent manages.
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "mcagent"
SERVICE_NAME_LABEL = "kubernetes.io/service-name"
SLICE_MANAGED_BY_LABEL = "endpointslice.kubernetes.io/managed-by"
SLICE_MANAGED_BY = "controller.mcagent.io"
MCS_SERVICE_NAME_LABEL = "multicluster.kubernetes.io/service-name"  # of the slices of a ServiceImport (KEP-1645)
MCS_SOURCE_CLUSTER_LABEL = "multicluster.kubernetes.io/source-cluster"
# Of a ServiceImport: the name of its Service. Gateway API implementations read it (GEP-1748).
DERIVED_SERVICE_ANNOTATION = "multicluster.kubernetes.io/derived-service"
SLICE_MIRRORED_BY = "endpointslicemirroring-controller.k8s.io"  # made from Endpoints by Kubernetes itself
SKIP_MIRROR_LABEL = "endpointslice.kubernetes.io/skip-mirror"
MEMBER_FINALIZER = "mcagent.io/member"  # of a member's ClusterSet: until all it brought is cleaned up

# A member's settings, as annotations of its ClusterInfo ResourceExport, for other clusters to compare.
ENDPOINT_IP_TYPE_ANNOTATION = "mcagent.io/setting-endpoint-ip-type"
TUNNEL_TYPE_ANNOTATION = "mcagent.io/setting-tunnel-type"
TUNNEL_PORT_ANNOTATION = "mcagent.io/setting-tunnel-port"
SETTING_ANNOTATIONS = {  # with the key of the configuration
    ENDPOINT_IP_TYPE_ANNOTATION: "endpointIPType",
    TUNNEL_TYPE_ANNOTATION: "tunnelType",
    TUNNEL_PORT_ANNOTATION: "tunnelPort",
}

# Limits of a member's claims: annotations of its ServiceAccount, written by the leader's administrator.
ALLOWED_CIDRS_ANNOTATION = "mcagent.io/allowed-cidrs"
ALLOWED_GATEWAYS_ANNOTATION = "mcagent.io/allowed-gateways"
# Of a ResourceImport, by the leader: gateways that answer in the name of its cluster, or did until a time.
PROVED_ANNOTATION = "mcagent.io/proved-gateways"
# Likewise: gateways without a proof that other clusters challenge, with the time when that began.
CHALLENGED_ANNOTATION = "mcagent.io/challenged-gateways"
# Of a ResourceImport, by the leader: the clusters that lost a contest for a gateway's address (JSON, by address).
SETTLED_ANNOTATION = "mcagent.io/settled-gateways"
ALLOWED_NAMESPACES_ANNOTATION = "mcagent.io/allowed-namespaces"
MAX_EXPORTS_ANNOTATION = "mcagent.io/max-exports"
# The clusters whose endpoints are in a ResourceImport of kind Endpoints, or that have Pods of a LabelIdentity (a
# list with commas). Antrea's leader writes none.
EXPORTERS_ANNOTATION = "mcagent.io/exporters"
# Of a ResourceImport of kind Endpoints: the cluster of each subset, in their order (a list with commas).
SUBSET_CLUSTERS_ANNOTATION = "mcagent.io/subset-clusters"
# Of a Service's ResourceExport and ResourceImport: labels and annotations of its ServiceImports (JSON).
EXPORTED_LABELS_ANNOTATION = "mcagent.io/exported-labels"
EXPORTED_ANNOTATIONS_ANNOTATION = "mcagent.io/exported-annotations"
# Of a ServiceImport: the keys of its exported labels and annotations (JSON).
EXPORTED_KEYS_ANNOTATION = "mcagent.io/exported-keys"
# Of a label identity's ResourceImport: the time since which no cluster exports it.
UNUSED_SINCE_ANNOTATION = "mcagent.io/unused-since"
# Of a MemberClusterAnnounce: the reasons why the member does not have replicated policies (JSON, by name).
POLICY_PROBLEMS_ANNOTATION = "mcagent.io/policy-problems"
# Likewise: what it leaves out of imported Services (JSON, by "name.namespace").
IMPORT_PROBLEMS_ANNOTATION = "mcagent.io/import-problems"

MAX_NAME = 253  # DNS-1123 subdomain
MAX_LABEL = 63  # DNS-1123 label
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def is_label(text: str) -> bool:
    """Tell whether a text is a DNS-1123 label (RFC 1123, as Kubernetes has it)."""
    return len(text) <= MAX_LABEL and _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """Tell whether a text is a DNS-1123 subdomain: what most object names must be."""
    return len(text) <= MAX_NAME and _SUBDOMAIN.fullmatch(text) is not None


def is_cluster_id(text: str) -> bool:
    """Tell whether a text can be a cluster's ID: it is part of object names, and the value of a label."""
    return len(text) <= MAX_LABEL and is_subdomain(text)


def is_export_limit(text: str) -> bool:
    """Tell whether a text can be the value of MAX_EXPORTS_ANNOTATION."""
    return text.isascii() and text.isdecimal() and len(text) <= 6


def announce(cluster_id: str) -> str:
    """Return the name of a cluster's MemberClusterAnnounce."""
    return f"member-announce-from-{cluster_id}"


def announce_finalizer(cluster_id: str) -> str:
    """Return the finalizer of a cluster's MemberClusterAnnounce."""
    return f"memberclusterannounce.finalizer.antrea.io/{cluster_id}"


def is_finalizer(text: str) -> bool:
    """Tell whether a finalizer is one that controllers of a leader or a member remove."""
    fixed = (EXPORT_FINALIZER, LEGACY_EXPORT_FINALIZER, MEMBER_FINALIZER)
    return text in fixed or text.startswith(announce_finalizer(""))


def service_export(cluster_id: str, namespace: str, name: str) -> str:
    """Return the name of the ResourceExport of a Service."""
    return f"{cluster_id}-{namespace}-{name}-service"


def endpoints_export(cluster_id: str, namespace: str, name: str) -> str:
    """Return the name of the ResourceExport of a Service's endpoints."""
    return f"{cluster_id}-{namespace}-{name}-endpoints"


def cluster_info(cluster_id: str) -> str:
    """Return the name of a cluster's ClusterInfo ResourceExport, ResourceImport and ClusterInfoImport."""
    return f"{cluster_id}-clusterinfo"


def label_export(cluster_id: str, label_hash: str) -> str:
    """Return the name of the ResourceExport of a label identity; its ResourceImport's is the hash alone."""
    return f"{cluster_id}-{label_hash}"


def policy_import(name: str) -> str:
    """Return the name of the ResourceImport of a policy of Antrea's."""
    return f"{name}-antreaclusternetworkpolicy"


def kubernetes_policy_import(name: str) -> str:
    """Return the name of the ResourceImport of a policy of Kubernetes."""
    return f"{name}-kubernetespolicy"


def service_import(namespace: str, name: str) -> str:
    """Return the name of the ResourceImport of a Service (its spec.kind is "ServiceImport")."""
    return f"{namespace}-{name}-service"


def endpoints_import(namespace: str, name: str) -> str:
    """Return the name of the ResourceImport of a Service's endpoints."""
    return f"{namespace}-{name}-endpoints"


def imported(name: str) -> str:
    """Return the name of an imported Service, its EndpointSlices and Endpoints, or of an imported policy."""
    return f"{IMPORTED_PREFIX}{name}"
