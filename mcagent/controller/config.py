"""The controller's configuration: keys, and reading them into frozen values. One file can be used for both roles.

Keys marked as Antrea's are those of its MultiClusterConfig, whose file can be used unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mcagent.config import values as kinds
from mcagent.config.keys import Key, LogFormat, LogLevel, Schema
from mcagent.config.reader import ConfigSource, ParsedConfig, read
from mcagent.config.values import Value
from mcagent.controller.admission.accounts import Accounts, accounts_of
from mcagent.controller.settings import (
    MAX_ENDPOINTS,
    MAX_EXPORT_BYTES,
    MAX_EXPORTS,
    MAX_IMPORTED,
    EndpointIpType,
    IpPrecedence,
    LeaderSettings,
    MemberLimits,
    MemberSettings,
    WriteEndpoints,
)
from mcagent.http.listening import Authentication

ALL_NAMESPACES = "*"
_JITTER = 1.2  # of the wait between two tries for the Lease


class ControllerRole(StrEnum):
    """The controller that runs."""

    MEMBER = "member"
    LEADER = "leader"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The configuration of the process. Times in seconds. `member`, `leader`: the reconcilers' settings."""

    namespace: str = ""
    pod_namespace: str = ""
    kubeconfig: str = ""
    service_cidr: str = ""
    pod_cidrs: tuple[Any, ...] = ()
    gateway_ip_precedence: IpPrecedence = IpPrecedence.INTERNAL
    endpoint_ip_type: EndpointIpType = EndpointIpType.CLUSTER_IP
    max_active_gateways: int = 1
    allowed_endpoint_cidrs: tuple[Any, ...] = ()
    tunnel_type: str = ""
    tunnel_port: int = 0
    write_endpoints: WriteEndpoints = WriteEndpoints.AUTO
    stretched_network_policy: bool = False
    heartbeat_period: float = 10.0
    heartbeat_timeout: float = 30.0
    stale_after: float = 86400.0
    member_max_exports: int = MAX_EXPORTS
    member_namespaces: tuple[str, ...] = ()
    member_cidrs: tuple[Any, ...] = ()
    allowed_cluster_cidrs: tuple[Any, ...] = ()
    member_max_export_bytes: int = MAX_EXPORT_BYTES
    member_max_endpoints: int = MAX_ENDPOINTS
    member_refuse_conflicts: bool = False
    max_imported_services: int = MAX_IMPORTED
    imported_traffic: str = ""
    listen: str = ":8080"
    metrics_listen: str = "0"
    metrics_authentication: Authentication = Authentication.TOKEN
    metrics_host_names: tuple[str, ...] = ()
    metrics_cert_dir: str = ""
    webhook_host: str = ""
    webhook_port: int = 9443
    webhook_cert_dir: str = ""
    webhook_service: str = ""
    trusted_accounts: tuple[str, ...] = ()
    controller_accounts: tuple[str, ...] = ()
    leader_elect: bool = True
    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0
    workers: int = 8
    resync_period: float = 300.0
    log_level: LogLevel = LogLevel.INFO
    log_format: LogFormat = LogFormat.TEXT
    remarks: tuple[str, ...] = ()  # about what was read, to be logged

    def read_namespace(self, home: str) -> str:
        """Return the namespace that is read; "" for all. `home`: the controller's own namespace."""
        return "" if self.namespace == ALL_NAMESPACES else self.namespace or home

    def member(self, home: str) -> MemberSettings:
        """Return the settings of a member's reconcilers."""
        return MemberSettings(
            namespace=self.read_namespace(home),
            service_cidr=self.service_cidr or None,
            pod_cidrs=tuple(str(cidr) for cidr in self.pod_cidrs),
            gateway_ip_precedence=self.gateway_ip_precedence,
            endpoint_ip_type=self.endpoint_ip_type,
            max_active_gateways=self.max_active_gateways,
            write_endpoints=self.write_endpoints,
            allowed_endpoint_cidrs=tuple(str(cidr) for cidr in self.allowed_endpoint_cidrs),
            tunnel_type=self.tunnel_type,
            tunnel_port=self.tunnel_port,
            heartbeat_period=self.heartbeat_period,
            max_imported_services=self.max_imported_services,
            stretched_network_policy=self.stretched_network_policy,
        )

    def accounts(self, home: str) -> Accounts:
        """Return the accounts with rights in admission."""
        return accounts_of(home, controllers=self.controller_accounts, trusted=self.trusted_accounts)

    def leader(self, home: str) -> LeaderSettings:
        """Return the settings of a leader's reconcilers."""
        return LeaderSettings(
            namespace=self.read_namespace(home),
            heartbeat_timeout=self.heartbeat_timeout,
            stale_after=self.stale_after,
            limits=self.limits,
            allowed_endpoint_cidrs=tuple(str(cidr) for cidr in self.allowed_endpoint_cidrs),
            imported_traffic=self.imported_traffic,
            stretched_network_policy=self.stretched_network_policy,
        )

    @property
    def limits(self) -> MemberLimits:
        """Return the limits of each member's claims."""
        return MemberLimits(
            max_exports=self.member_max_exports,
            allowed_namespaces=self.member_namespaces,
            allowed_cidrs=tuple(str(cidr) for cidr in self.member_cidrs),
            cluster_cidrs=tuple(str(cidr) for cidr in self.allowed_cluster_cidrs),
            max_export_bytes=self.member_max_export_bytes,
            max_endpoints=self.member_max_endpoints,
            refuse_conflicts=self.member_refuse_conflicts,
        )


_NAMESPACE = kinds.text(r"|\*|[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", 'a namespace, "" or "*"')


def _key(path: str, attribute: str, value: Value, meaning: str, *, antrea: bool = False) -> Key:
    return Key(
        path=path, attribute=attribute, value=value, meaning=meaning, holder=ControllerSettings, antrea=antrea
    )


KEYS = (
    _key("serviceCIDR", "service_cidr", kinds.cidr(), antrea=True,
         meaning='Member: Service CIDR of this cluster. "": it is discovered.'),
    _key("podCIDRs", "pod_cidrs", kinds.masked_networks(), antrea=True,
         meaning="Member: Pod CIDRs of this cluster, as other clusters may reach them. Host bits are masked, "
                 "with a warning."),
    _key("gatewayIPPrecedence", "gateway_ip_precedence", antrea=True,
         value=kinds.choice(IpPrecedence, aliases=(("private", "internal"), ("public", "external"))),
         meaning="Member: which address of a gateway's Node other clusters use, if the Node has no annotation "
                 "`multicluster.antrea.io/gateway-ip`: its InternalIP (internal, or private) or its ExternalIP "
                 "(external, or public)."),
    _key("endpointIPType", "endpoint_ip_type", kinds.choice(EndpointIpType), antrea=True,
         meaning="Member: what is exported as endpoints of a Service: its ClusterIP, or the addresses of its "
                 "Pods. The same in all clusters."),
    _key("enableStretchedNetworkPolicy", "stretched_network_policy", kinds.boolean(), antrea=True,
         meaning="Label identities: a member publishes which labels its Pods have, a leader numbers them. Each "
                 "set of labels counts as one export (`members.maxExports`). Agents with the same key, or "
                 "Antrea, enforce policies on them ([policies.md](policies.md))."),
    _key("health.healthProbeBindAddress", "listen", kinds.LISTEN, antrea=True,
         meaning="Address and port of /healthz and /readyz, in clear text, for probes: a server that no "
                 "client can occupy. On the loopback all pages are here, /status and /metrics, too."),
    _key("metrics.bindAddress", "metrics_listen", kinds.LISTEN_OR_OFF, antrea=True,
         meaning="Address and port of /metrics and /status: on the loopback plain HTTP, on any other address "
                 'TLS, for clients with a token (`metrics.authentication`). "0": none.'),
    _key("metrics.authentication", "metrics_authentication", kinds.choice(Authentication),
         meaning="Access to `metrics.bindAddress` on an address that is not the loopback. token: a bearer token "
                 "that may get the page (TokenReview, SubjectAccessReview of the API server). none: plain HTTP "
                 "for all clients."),
    _key("metrics.hostNames", "metrics_host_names", kinds.HOST_NAMES,
         meaning="Further names of this server in the header Host of requests, where pages need no token "
                 "(`metrics.bindAddress` on a loopback address, `metrics.authentication: none`). localhost, this "
                 "Pod's name and its addresses are always accepted."),
    _key("metrics.certDir", "metrics_cert_dir", kinds.ABSOLUTE_PATH,
         meaning='Directory of tls.crt and tls.key for `metrics.bindAddress`, read again when they change. "": a '
                 "self-signed certificate, made at start."),
    _key("webhook.host", "webhook_host", kinds.text(r"|[0-9a-fA-F:.]+", "an IP address"), antrea=True,
         meaning='Address of the admission webhook. "": all addresses of the Pod.'),
    _key("webhook.port", "webhook_port", kinds.integer(0, 65535), antrea=True,
         meaning="Port of the admission webhook. 0: none is served."),
    _key("webhook.certDir", "webhook_cert_dir", kinds.ABSOLUTE_PATH, antrea=True,
         meaning="Directory of tls.crt and tls.key, if another program maintains them and the caBundle of "
                 'the ValidatingWebhookConfiguration. "": the controller makes its own certificate, keeps it in a '
                 "Secret, and renews it."),
    _key("webhook.service", "webhook_service", kinds.DNS_LABEL,
         meaning='Name of the Service of the webhook, and of its ValidatingWebhookConfiguration and Secret. "": '
                 "mcagent-leader or mcagent-member."),
    _key("admission.trustedServiceAccounts", "trusted_accounts", kinds.ACCOUNTS,
         meaning="Leader: ServiceAccounts that act for administrators (those of Argo CD, Flux, ...) and so may "
                 "write ResourceExports of any cluster, as far as RBAC allows. Not those of members."),
    _key("admission.controllerServiceAccounts", "controller_accounts", kinds.ACCOUNTS,
         meaning="Leader: ServiceAccounts of the ClusterSet's controllers on the leader. []: mcagent-controller "
                 "and antrea-mc-controller of the controller's own namespace."),
    _key("maxActiveGateways", "max_active_gateways", kinds.integer(1, 64),
         meaning="Member: how many annotated Nodes are gateways at the same time. Antrea's agents use one."),
    _key("allowedEndpointCIDRs", "allowed_endpoint_cidrs", kinds.networks(),
         meaning="Endpoints of Services may lie in these, beside the CIDRs that clusters publish: for clusters "
                 "whose Pods reach each other without gateways. Leader: of members that publish no Pod CIDRs. "
                 "Member: of what it imports."),
    _key("maxImportedServices", "max_imported_services", kinds.integer(1, 100000),
         meaning="Member: how many Services it imports at most: each takes a ClusterIP. Those that are here stay; "
                 "of the others the oldest come first."),
    _key("importedTraffic", "imported_traffic", kinds.traffic(),
         meaning="Leader: which clusters get new connections to imported Services, in all members, where neither "
                 "their ServiceImport nor the oldest export says it "
                 '([multicluster.md](multicluster.md#traffic-distribution)). "": each cluster\'s agents say it.'),
    _key("tunnelType", "tunnel_type", kinds.text("|geneve|vxlan", 'geneve, vxlan or ""'),
         meaning="Member: tunnelType of this cluster's agents, announced to the other clusters, which report when "
                 'theirs is another one. "": not announced.'),
    _key("tunnelPort", "tunnel_port", kinds.integer(0, 65535),
         meaning="Member: likewise tunnelPort. 0: not announced."),
    _key("writeEndpoints", "write_endpoints", kinds.choice(WriteEndpoints),
         meaning="Member: whether imported Services get Endpoints beside EndpointSlices. auto: where the cluster "
                 "needs them."),
    _key("heartbeatPeriod", "heartbeat_period", kinds.duration(1, 3600),
         meaning="Member: how often it tells the leader that it is there."),
    _key("heartbeatTimeout", "heartbeat_timeout", kinds.duration(2, 86400),
         meaning="Leader: a member from which nothing is heard for so long is not Ready."),
    _key("staleAfter", "stale_after", kinds.duration(60, 31536000),
         meaning="Leader: what a member left behind is deleted when nothing was heard of it for so long."),
    _key("members.maxExports", "member_max_exports", kinds.integer(0, 100000),
         meaning="Leader: how many Services a member may export, unless its ServiceAccount says otherwise "
                 "(annotation `mcagent.io/max-exports`). The oldest stay, the newest are refused."),
    _key("members.maxEndpoints", "member_max_endpoints", kinds.integer(1, 65536),
         meaning="Leader: how many endpoints of one exported Service are taken; the others are left out."),
    _key("members.maxExportBytes", "member_max_export_bytes", kinds.integer(4096, 1000000),
         meaning="Leader: how large a ResourceExport may be, in bytes of JSON. A larger one is refused. Only "
                 "endpoints need more than 64 KiB, so nothing else may have more."),
    _key("members.allowedNamespaces", "member_namespaces", kinds.names(),
         meaning="Leader: Services of which namespaces members may export, unless a member's ServiceAccount says "
                 "otherwise (annotation `mcagent.io/allowed-namespaces`). []: all, but those that are reserved."),
    _key("members.allowedCIDRs", "member_cidrs", kinds.networks(),
         meaning="Leader: where CIDRs and endpoints of members may lie, unless a member's ServiceAccount says "
                 "otherwise (annotation `mcagent.io/allowed-cidrs`). []: anywhere that no other rule forbids."),
    _key("members.refuseConflicts", "member_refuse_conflicts", kinds.boolean(),
         meaning="Leader: an export whose type or ports differ from those of the oldest export of the Service is "
                 "refused, with its endpoints. false: ports are put together, as KEP-1645 has it."),
    _key("allowedClusterCIDRs", "allowed_cluster_cidrs", kinds.networks(),
         meaning="Leader: Service and Pod CIDRs of members must lie in these, whatever a member's ServiceAccount "
                 "says. []: the private ranges, 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 and 100.64.0.0/10; a "
                 "list means just that list."),
    _key("namespace", "namespace", _NAMESPACE,
         meaning='Namespace of the ClusterSet and all that belongs to it. "": that of the controller. "*": all, '
                 "on a leader with several ClusterSets."),
    _key("podNamespace", "pod_namespace", kinds.DNS_LABEL,
         meaning='Namespace that the controller itself runs in: of its Lease and Secret. "": that of its Pod.'),
    _key("kubeconfig", "kubeconfig", kinds.ABSOLUTE_PATH,
         meaning='kubeconfig of this cluster\'s API server. "": the credentials of the Pod.'),
    _key("leaderElection.leaderElect", "leader_elect", kinds.boolean(), antrea=True,
         meaning="Among several replicas one writes; a Lease says which. false: there is only one."),
    _key("leaderElection.leaseDuration", "lease_duration", kinds.duration(1, 3600), antrea=True,
         meaning="How long a Lease that is not renewed is respected."),
    _key("leaderElection.renewDeadline", "renew_deadline", kinds.duration(0.5, 3600), antrea=True,
         meaning="A replica that could not renew its Lease for so long stops writing."),
    _key("leaderElection.retryPeriod", "retry_period", kinds.duration(0.1, 600), antrea=True,
         meaning="How often the Lease is renewed, or tried to get."),
    _key("workers", "workers", kinds.integer(1, 256),
         meaning="How many keys are worked on at the same time, of this cluster and of the leader each."),
    _key("resyncPeriod", "resync_period", kinds.duration(1, 86400),
         meaning="How often everything is looked at anew, beside being notified of changes."),
    _key("logLevel", "log_level", kinds.choice(LogLevel), meaning="Least severity that is logged."),
    _key("logFormat", "log_format", kinds.choice(LogFormat), meaning="Form of log lines."),
)  # fmt: skip

SCHEMA = Schema(
    keys=KEYS,
    prefix="MCAGENT_CONTROLLER_",
    file_variable="MCAGENT_CONTROLLER_CONFIG",
    default_file="/etc/mcagent/controller.yaml",
    ignored={"featureGates": "are Antrea's: ignored, there are none here"},
    constants={"apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "MultiClusterConfig"},
    elsewhere={
        "leaderElection.resourceName": "is fixed: the Lease is mcagent-leader or mcagent-member",
        "leaderElection.resourceNamespace": 'is "podNamespace" here',
        "enableGateway": "belongs to the agent's configuration",
        "clusterID": "is set in the ClusterSet",
    },
)


def load(
    role: ControllerRole, file: ConfigSource | None, environ: Mapping[str, str], flags: Mapping[str, str]
) -> ControllerSettings:
    """Read the configuration: defaults, then `file`, then variables, then flags (by key path).

    Raises ConfigError with every finding; each names where the value came from and its path.
    """
    reading = read(SCHEMA, file, environ, flags)
    if not reading.errors:
        _conflicts(reading, role)
    reading.check()
    fields: dict[str, Any] = reading.fields(ControllerSettings)
    return ControllerSettings(**fields, remarks=tuple(reading.remarks))


def _conflicts(reading: ParsedConfig, role: ControllerRole) -> None:
    values: dict[str, Any] = reading.effective()
    for path in ("health.healthProbeBindAddress", "metrics.bindAddress"):
        if values[path] != "0" and (wrong := kinds.listen_problem(values[path])):
            reading.conflict(path, wrong)
    if role is ControllerRole.MEMBER and values["namespace"] == ALL_NAMESPACES:
        reading.conflict("namespace", 'a member has one ClusterSet: "*" is for leaders')
    lease = "leaderElection"
    if values[f"{lease}.renewDeadline"] >= values[f"{lease}.leaseDuration"]:
        reading.conflict(f"{lease}.renewDeadline", "must be less than leaderElection.leaseDuration")
    if values[f"{lease}.retryPeriod"] * _JITTER >= values[f"{lease}.renewDeadline"]:
        reading.conflict(f"{lease}.retryPeriod", f"{_JITTER:g} times it must be less than renewDeadline")
    if values["heartbeatPeriod"] >= values["heartbeatTimeout"]:
        reading.conflict("heartbeatPeriod", "must be less than heartbeatTimeout")
