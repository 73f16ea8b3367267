"""The keys of the controller's configuration that reconcilers need, each declared at the field that it sets.

Reading them is `mcagent.controller.config`, which declares the keys of the process. Times are in seconds. Names in
YAML are those of Antrea's MultiClusterConfig where it has them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from mcagent.model.keys import values as kinds
from mcagent.model.keys.key import Key

MAX_EXPORTS = 1000  # Services of one member
MAX_GATEWAYS = 8  # of one member
MAX_EXPORT_BYTES = 256 * 1024  # of JSON, of one ResourceExport
MAX_ENDPOINTS = 1000  # of one exported Service: as many as Kubernetes puts into an Endpoints object
MAX_IMPORTED = 5000  # Services; a Service CIDR of /19 has 8190 ClusterIPs


class IpPrecedence(StrEnum):
    """The address of a gateway's Node that other clusters use. Antrea's aliases are read as these two."""

    INTERNAL = "internal"  # or "private": the Node's InternalIP
    EXTERNAL = "external"  # or "public": the Node's ExternalIP


class EndpointIpType(StrEnum):
    """The addresses that are exported as endpoints of a Service. Equal in all clusters of a ClusterSet."""

    CLUSTER_IP = "ClusterIP"
    POD_IP = "PodIP"


class WriteEndpoints(StrEnum):
    """Whether imported Services get Endpoints beside EndpointSlices."""

    AUTO = "auto"  # where the cluster needs them (no EndpointSlices of its own, or an old proxy)
    ALWAYS = "always"
    NEVER = "never"


class ReplicatedPolicies(StrEnum):
    """The policies of the leader, of some kinds, that a member's administrator accepts."""

    NONE = "none"  # none: they are neither read nor written, and the controller needs no rights on them
    REMOVE = "remove"  # none: those that were applied are deleted
    ISOLATE = "isolate"  # those that only deny
    ALLOW = "allow"  # all


_NAMESPACE = kinds.text(r"|\*|[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", 'a namespace, "" or "*"')
_NAMESPACES = replace(
    kinds.names(r"\*|[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", 'a namespace, or "*"', 'a list of namespaces, or ["*"]'),
    show=lambda names: json.dumps(list(names)),  # * without quotes is an alias in YAML
)
_POD_ROUTING = kinds.text("|auto|nodeCIDR|perPod", 'auto, nodeCIDR, perPod or ""')
_PRECEDENCE = kinds.choice(IpPrecedence, aliases=(("private", "internal"), ("public", "external")))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSetSettings:
    """The keys that reconcilers of members and leaders need.

    Reconcilers get `namespace` resolved (`ControllerSettings.resolved`): "" means all namespaces.
    """

    # fmt: off
    stretched_network_policy: Annotated[bool, Key("enableStretchedNetworkPolicy", kinds.boolean(),
        "Label identities: a member publishes which labels its Pods have, a leader numbers them. Each set of "
        "labels counts as one export (`members.maxExports`). Agents with the same key, or Antrea, enforce "
        "policies on them ([policies.md](policies.md)).", antrea=True)] = False
    allowed_endpoint_cidrs: Annotated[tuple[str, ...], Key("allowedEndpointCIDRs", kinds.as_text(kinds.networks()),
        "Endpoints of Services may lie in these, beside the CIDRs that clusters publish: for clusters whose Pods "
        "reach each other without gateways. Leader: of members that publish no Pod CIDRs. Member: of what it "
        "imports.")] = ()
    namespace: Annotated[str, Key("namespace", _NAMESPACE,
        'Namespace of the ClusterSet and all that belongs to it. "": that of the controller. "*": all, on a '
        "leader with several ClusterSets.")] = ""
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings(ClusterSetSettings):
    """The keys that the reconcilers of a member need, and what the controller discovers.

    `home`: the controller's own namespace. `cluster_uid`: of Namespace kube-system; "": not known. `instance`: a
    random ID of this process; "": none is announced.
    """

    home: str = ""
    cluster_uid: str = ""
    instance: str = ""
    # fmt: off
    service_cidr: Annotated[str | None, Key("serviceCIDR", kinds.cidr(),
        'Member: Service CIDR of this cluster. "": it is discovered.', antrea=True)] = None
    export_cidr: Annotated[str, Key("exportCIDR", kinds.cidr("auto", "always", "never"),
        "Member: its export range, the CIDR of exported Services in other clusters, instead of its Service CIDR. "
        "auto: one of the leader, if the Service CIDR overlaps a network of another cluster. always: one of the "
        "leader. never: none. A CIDR: this one; no other cluster and no Node may use it "
        "([identical-cidrs.md](identical-cidrs.md)).")] = "auto"
    pod_cidrs: Annotated[tuple[str, ...], Key("podCIDRs", kinds.as_text(kinds.networks()),
        "Member: Pod CIDRs of this cluster, as other clusters may reach them. Host bits are masked, with a "
        "warning.", antrea=True)] = ()
    pod_export_cidr: Annotated[str, Key("podExportCIDR", kinds.cidrs("auto", "always", "never"),
        "Member: virtual Pod CIDRs, which other clusters use in the place of `podCIDRs`; the Nodes translate. "
        "auto: those of the leader, for Pod CIDRs that overlap a network of another cluster. always: those of the "
        "leader, for all Pod CIDRs. never: none. CIDRs: these, for the Pod CIDRs in their order, each as long as "
        "the Pod CIDR; no other cluster and no Node may use them "
        "([identical-cidrs.md](identical-cidrs.md)).")] = "auto"
    gateway_ip_precedence: Annotated[IpPrecedence, Key("gatewayIPPrecedence", _PRECEDENCE,
        "Member: which address of a gateway's Node other clusters use, if the Node has no annotation "
        "`multicluster.antrea.io/gateway-ip`: its InternalIP (internal, or private) or its ExternalIP (external, "
        "or public).", antrea=True)] = IpPrecedence.INTERNAL
    endpoint_ip_type: Annotated[EndpointIpType, Key("endpointIPType", kinds.choice(EndpointIpType),
        "Member: what is exported as endpoints of a Service: its ClusterIP, or the addresses of its Pods. The "
        "same in all clusters.", antrea=True)] = EndpointIpType.CLUSTER_IP
    max_active_gateways: Annotated[int, Key("maxActiveGateways", kinds.integer(1, 64),
        "Member: how many annotated Nodes are gateways at the same time. Antrea's agents use one.")] = 1
    max_imported_services: Annotated[int, Key("maxImportedServices", kinds.integer(1, 100000),
        "Member: how many Services it imports at most: each takes a ClusterIP. Those that are here stay; of the "
        "others the oldest come first.")] = MAX_IMPORTED
    pod_routing: Annotated[str, Key("podRouting", _POD_ROUTING,
        "Member: podRouting of this cluster's agents. An endpoint whose Pod their gateways do not find so is not "
        'counted as ready. "": not known; an endpoint that refers to a Pod or Node counts.')] = ""
    tunnel_type: Annotated[str, Key("tunnelType", kinds.text("|geneve|vxlan", 'geneve, vxlan or ""'),
        "Member: tunnelType of this cluster's agents, announced to the other clusters, which report when theirs "
        'is another one. "": not announced.')] = ""
    tunnel_port: Annotated[int, Key("tunnelPort", kinds.integer(0, 65535),
        "Member: likewise tunnelPort. 0: not announced.")] = 0
    write_endpoints: Annotated[WriteEndpoints, Key("writeEndpoints", kinds.choice(WriteEndpoints),
        "Member: whether imported Services get Endpoints beside EndpointSlices. auto: where the cluster needs "
        "them.")] = WriteEndpoints.AUTO
    heartbeat_period: Annotated[float, Key("heartbeatPeriod", kinds.duration(1, 3600),
        "Member: how often it tells the leader that it is there.")] = 10.0
    replicated_network_policies: Annotated[ReplicatedPolicies,
        Key("replicatedPolicies.networkPolicies", kinds.choice(ReplicatedPolicies),
        "Member: which NetworkPolicies of the leader are applied, in `replicatedPolicies.namespaces`. none: none, "
        "and the controller needs no rights on them. remove: none; those that were applied are deleted. "
        "isolate: those without ingress and egress rules, which isolate Pods and open none. allow: all "
        "([policies.md](policies.md#consent-of-a-member)).")] = ReplicatedPolicies.NONE
    replicated_namespaces: Annotated[tuple[str, ...], Key("replicatedPolicies.namespaces", _NAMESPACES,
        'Member: the namespaces in which NetworkPolicies of the leader are applied. "*": all but those whose '
        "names begin with kube-, the controller's own and the ClusterSet's, which must be named.")] = ()
    replicated_cluster_policies: Annotated[ReplicatedPolicies,
        Key("replicatedPolicies.clusterPolicies", kinds.choice(ReplicatedPolicies),
        "Member: likewise the policies of the leader for the whole cluster: Antrea's ClusterNetworkPolicies, and "
        "those of policy.networking.k8s.io. isolate: those whose rules all have the action Drop, Reject or "
        "Deny.")] = ReplicatedPolicies.NONE
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLimits:
    """The keys that limit what each member may claim. Annotations of its ServiceAccount override some."""

    # fmt: off
    max_exports: Annotated[int, Key("members.maxExports", kinds.integer(0, 100000),
        "Leader: how many Services a member may export, unless its ServiceAccount says otherwise (annotation "
        "`mcagent.io/max-exports`). The oldest stay, the newest are refused.")] = MAX_EXPORTS
    allowed_namespaces: Annotated[tuple[str, ...], Key("members.allowedNamespaces", kinds.names(),
        "Leader: Services of which namespaces members may export, unless a member's ServiceAccount says otherwise "
        "(annotation `mcagent.io/allowed-namespaces`). []: all, but those that are reserved.")] = ()
    allowed_cidrs: Annotated[tuple[str, ...], Key("members.allowedCIDRs", kinds.as_text(kinds.networks()),
        "Leader: where CIDRs and endpoints of members may lie, unless a member's ServiceAccount says otherwise "
        "(annotation `mcagent.io/allowed-cidrs`). []: anywhere that no other rule forbids.")] = ()
    allowed_gateways: Annotated[tuple[str, ...], Key("members.allowedGateways", kinds.as_text(kinds.networks()),
        "Leader: where addresses of members' gateways may lie, unless a member's ServiceAccount says otherwise "
        "(annotation `mcagent.io/allowed-gateways`). []: anywhere that no other rule forbids.")] = ()
    max_gateways: Annotated[int, Key("members.maxGateways", kinds.integer(1, 64),
        "Leader: how many gateways a member may have. The first in its ClusterInfo count.")] = MAX_GATEWAYS
    max_endpoints: Annotated[int, Key("members.maxEndpoints", kinds.integer(1, 65536),
        "Leader: how many endpoints of one exported Service are taken; the others are left out.")] = MAX_ENDPOINTS
    max_export_bytes: Annotated[int, Key("members.maxExportBytes", kinds.integer(4096, 1000000),
        "Leader: how large a ResourceExport may be, in bytes of JSON. A larger one is refused. Only endpoints "
        "need more than 64 KiB, so nothing else may have more.")] = MAX_EXPORT_BYTES
    refuse_conflicts: Annotated[bool, Key("members.refuseConflicts", kinds.boolean(),
        "Leader: an export whose type or ports differ from those of the oldest export of the Service is refused, "
        "with its endpoints. false: ports are put together, as KEP-1645 has it.")] = False
    cluster_cidrs: Annotated[tuple[str, ...], Key("allowedClusterCIDRs", kinds.as_text(kinds.networks()),
        "Leader: Service and Pod CIDRs of members must lie in these, whatever a member's ServiceAccount says. []: "
        "the private ranges, 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 and 100.64.0.0/10; a list means just that "
        "list.")] = ()
    export_cidrs: Annotated[tuple[str, ...], Key("exportCIDRs", kinds.as_text(kinds.networks()),
        "Leader: it assigns export ranges of these, a /20 for each cluster that needs one (`exportCIDR`). No Node "
        "of a member may have a route into them. []: it assigns none.")] = ("100.64.0.0/10",)
    pod_export_cidrs: Annotated[tuple[str, ...], Key("podExportCIDRs", kinds.as_text(kinds.networks()),
        "Leader: it assigns virtual Pod CIDRs of these, as long as the Pod CIDRs of the clusters that need them "
        "(`podExportCIDR`). No Node of a member may have a route into them. []: it assigns none.")] = (
        "100.64.0.0/10",)
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderSettings(ClusterSetSettings):
    """The keys that the reconcilers of a leader need. `home`: the controller's own namespace; "": not known."""

    home: str = ""
    limits: MemberLimits = MemberLimits()
    # fmt: off
    imported_traffic: Annotated[str, Key("importedTraffic", kinds.traffic(),
        "Leader: which clusters get new connections to imported Services, in all members, where neither their "
        "ServiceImport nor the oldest export says it ([traffic.md](traffic.md)). "
        "\"\": each cluster's agents say it.")] = ""
    heartbeat_timeout: Annotated[float, Key("heartbeatTimeout", kinds.duration(2, 86400),
        "Leader: a member from which nothing is heard for so long is not Ready.")] = 30.0
    stale_after: Annotated[float, Key("staleAfter", kinds.duration(60, 31536000),
        "Leader: what a member left behind is deleted when nothing was heard of it for so long.")] = 86400.0
    # fmt: on
