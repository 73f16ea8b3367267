"""The controller's configuration: keys, and reading them into frozen values. One file can be used for both roles.

Keys marked as Antrea's are those of its MultiClusterConfig, whose file can be used unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import combinations
from typing import Annotated

from mcagent.config.reader import ConfigSource, read
from mcagent.config.schema import LogFormat, LogLevel, Schema
from mcagent.controller.admission.accounts import Accounts, accounts_of
from mcagent.controller.settings import LeaderSettings, MemberSettings, ReplicatedPolicies
from mcagent.controller.webhook.clients import unusable
from mcagent.http.listening import Authentication, exclude_each_other
from mcagent.model.keys import values as kinds
from mcagent.model.keys.key import Key, keys_of, make_settings

ALL_NAMESPACES = "*"
_JITTER = 1.2  # of the wait between two tries for the Lease


class ControllerRole(StrEnum):
    """The controller that runs."""

    MEMBER = "member"
    LEADER = "leader"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The configuration of the process. Times in seconds. `member`, `leader`: the reconcilers' settings."""

    member: MemberSettings = field(default_factory=MemberSettings)
    leader: LeaderSettings = field(default_factory=LeaderSettings)
    remarks: tuple[str, ...] = ()  # about accepted values, to be logged
    # fmt: off
    listen: Annotated[str, Key("health.healthProbeBindAddress", kinds.LISTEN,
        "Address and port of /healthz and /readyz, in clear text, for probes: a server that no client can occupy. "
        "On the loopback all pages are here, /status and /metrics, too.", antrea=True)] = ":8080"
    metrics_listen: Annotated[str, Key("metrics.bindAddress", kinds.LISTEN_OR_OFF,
        "Address and port of /metrics and /status: on the loopback plain HTTP, on any other address TLS, for "
        'clients with a token (`metrics.authentication`). "0": none.', antrea=True)] = "0"
    metrics_authentication: Annotated[Authentication, Key("metrics.authentication", kinds.choice(Authentication),
        "Access to `metrics.bindAddress` on an address that is not the loopback. token: a bearer token that may "
        "get the page (TokenReview, SubjectAccessReview of the API server). none: plain HTTP "
        "for all clients.")] = Authentication.TOKEN
    metrics_host_names: Annotated[tuple[str, ...], Key("metrics.hostNames", kinds.HOST_NAMES,
        "Further names of this server in the header Host of requests, where pages need no token "
        "(`metrics.bindAddress` on a loopback address, `metrics.authentication: none`). localhost, this Pod's "
        "name and its addresses are always accepted.")] = ()
    metrics_cert_dir: Annotated[str, Key("metrics.certDir", kinds.ABSOLUTE_PATH,
        'Directory of tls.crt and tls.key for `metrics.bindAddress`, read again when they change. "": a '
        "self-signed certificate, made at start.")] = ""
    webhook_host: Annotated[str, Key("webhook.host", kinds.IP_ADDRESS,
        'Address of the admission webhook. "": all addresses of the Pod.', antrea=True)] = ""
    webhook_port: Annotated[int, Key("webhook.port", kinds.integer(0, 65535),
        "Port of the admission webhook. 0: none is served.", antrea=True)] = 9443
    webhook_cert_dir: Annotated[str, Key("webhook.certDir", kinds.ABSOLUTE_PATH,
        "Directory of tls.crt and tls.key, if another program maintains them and the caBundle of the "
        'ValidatingWebhookConfiguration. "": the controller makes its own certificate, keeps it in a Secret, and '
        "renews it.", antrea=True)] = ""
    webhook_service: Annotated[str, Key("webhook.service", kinds.DNS_LABEL,
        'Name of the Service of the webhook, and of its ValidatingWebhookConfiguration and Secret. "": '
        "mcagent-leader or mcagent-member.")] = ""
    webhook_client_ca: Annotated[str, Key("webhook.clientCA", kinds.CERTIFICATES,
        "Certificates of the authorities that sign client certificates of API servers: clients without such a "
        'certificate cannot connect to the webhook. "": clients need no certificate '
        "([deploy.md](deploy.md#restrict-access-to-the-webhooks)).")] = ""
    webhook_client_names: Annotated[tuple[str, ...], Key("webhook.clientNames", kinds.COMMON_NAMES,
        "Common names of these client certificates. []: any that an authority of `webhook.clientCA` signed.")] = ()
    trusted_accounts: Annotated[tuple[str, ...], Key("admission.trustedServiceAccounts", kinds.ACCOUNTS,
        "Leader: ServiceAccounts that act for administrators (those of Argo CD, Flux, ...) and so may write "
        "ResourceExports of any cluster, as far as RBAC allows. Not those of members.")] = ()
    controller_accounts: Annotated[tuple[str, ...], Key("admission.controllerServiceAccounts", kinds.ACCOUNTS,
        "Leader: ServiceAccounts of the ClusterSet's controllers on the leader. []: mcagent-controller and "
        "antrea-mc-controller of the controller's own namespace.")] = ()
    pod_namespace: Annotated[str, Key("podNamespace", kinds.DNS_LABEL,
        'Namespace that the controller itself runs in: of its Lease and Secret. "": that of its Pod.')] = ""
    kubeconfig: Annotated[str, Key("kubeconfig", kinds.ABSOLUTE_PATH,
        "kubeconfig of this cluster's API server. \"\": the credentials of the Pod.")] = ""
    leader_elect: Annotated[bool, Key("leaderElection.leaderElect", kinds.boolean(),
        "Among several replicas one writes; a Lease says which. false: there is only one.", antrea=True)] = True
    lease_duration: Annotated[float, Key("leaderElection.leaseDuration", kinds.duration(1, 3600),
        "How long a Lease that is not renewed is respected.", antrea=True)] = 15.0
    renew_deadline: Annotated[float, Key("leaderElection.renewDeadline", kinds.duration(0.5, 3600),
        "A replica that could not renew its Lease for so long stops writing.", antrea=True)] = 10.0
    retry_period: Annotated[float, Key("leaderElection.retryPeriod", kinds.duration(0.1, 600),
        "How often the Lease is renewed, or tried to get.", antrea=True)] = 2.0
    workers: Annotated[int, Key("workers", kinds.integer(1, 256),
        "How many keys are worked on at the same time, of this cluster and of the leader each.")] = 8
    resync_period: Annotated[float, Key("resyncPeriod", kinds.duration(1, 86400),
        "How often everything is looked at anew, beside being notified of changes.")] = 300.0
    log_level: Annotated[LogLevel, Key("logLevel", kinds.choice(LogLevel),
        "Least severity that is logged.")] = LogLevel.INFO
    log_format: Annotated[LogFormat, Key("logFormat", kinds.choice(LogFormat),
        "Form of log lines.")] = LogFormat.TEXT
    # fmt: on

    def read_namespace(self, home: str) -> str:
        """Return the namespace that is read; "" for all. `home` is the controller's own."""
        return "" if self.member.namespace == ALL_NAMESPACES else self.member.namespace or home

    def resolved(self, home: str) -> ControllerSettings:
        """Return these settings with the namespace that is read. `home` is the controller's own."""
        namespace = self.read_namespace(home)
        return replace(
            self,
            member=replace(self.member, namespace=namespace, home=home),
            leader=replace(self.leader, namespace=namespace, home=home),
        )

    def accounts(self, home: str) -> Accounts:
        """Return the accounts with rights in admission."""
        return accounts_of(home, controllers=self.controller_accounts, trusted=self.trusted_accounts)


KEYS = keys_of(ControllerSettings)
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
    reading.check()
    settings = make_settings(ControllerSettings, reading.values, remarks=tuple(reading.remarks))
    for path, reason in _conflicts(settings, role):
        reading.conflict(path, reason)
    reading.check()
    return settings


def _conflicts(settings: ControllerSettings, role: ControllerRole) -> Iterator[tuple[str, str]]:
    """Yield keys whose values are valid alone but contradict others, with the reason."""
    member = settings.member
    if role is ControllerRole.MEMBER and member.namespace == ALL_NAMESPACES:
        yield "namespace", 'a member has one ClusterSet: "*" is for leaders'
    listening = {"health.healthProbeBindAddress": kinds.listen_address(settings.listen)}
    if settings.metrics_listen != "0":
        listening["metrics.bindAddress"] = kinds.listen_address(settings.metrics_listen)
    listening["webhook.port"] = settings.webhook_host or "0.0.0.0", settings.webhook_port
    for first, second in combinations(listening, 2):
        if exclude_each_other(listening[first], listening[second]):
            yield second, f"must differ from {first}: both are port {listening[second][1]}"
    if settings.renew_deadline >= settings.lease_duration:
        yield "leaderElection.renewDeadline", "must be less than leaderElection.leaseDuration"
    if settings.retry_period * _JITTER >= settings.renew_deadline:
        yield "leaderElection.retryPeriod", f"{_JITTER:g} times it must be less than renewDeadline"
    if reason := unusable(settings.webhook_client_ca):
        yield "webhook.clientCA", f"cannot be used as certificates of authorities: {reason}"
    if settings.webhook_client_names and not settings.webhook_client_ca:
        yield "webhook.clientNames", "needs webhook.clientCA"
    if member.replicated_namespaces and member.replicated_network_policies is ReplicatedPolicies.NONE:
        yield "replicatedPolicies.namespaces", "needs replicatedPolicies.networkPolicies: isolate, or allow"
    if member.heartbeat_period >= settings.leader.heartbeat_timeout:
        yield "heartbeatPeriod", "must be less than heartbeatTimeout"
