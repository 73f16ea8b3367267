"""The agent's configuration: every key with its kind, default and meaning, and the frozen value that they fill.

The only place where a key is declared: reading, flags and documentation follow from it. Owns the checks that
involve several keys; how sources are read is `mcagent.config.reader`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from pathlib import Path
from typing import Annotated

from mcagent.config.reader import ConfigSource, read
from mcagent.config.schema import LogFormat, LogLevel, Schema
from mcagent.http.listening import Authentication, exclude_each_other, is_loopback
from mcagent.model.config import Config, DatapathChoice, NodeTrafficEncryption, TrafficEncryption
from mcagent.model.dataplane.resources import DEFAULT_PORTS
from mcagent.model.keys import values as kinds
from mcagent.model.keys.key import Key, keys_of, make_settings
from mcagent.model.net import overlaps
from mcagent.model.traffic import OTHERS

_PATH = r"/[^\0\n]*"


class WireGuardChoice(StrEnum):
    """Which WireGuard is used."""

    AUTO = "auto"  # the kernel's where it exists, else wireguard-go
    KERNEL = "kernel"
    USERSPACE = "userspace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole configuration: what `compile` needs (`core`), and what the process needs. Times in seconds."""

    core: Config
    context: str = ""  # of the kubeconfig; commands set it
    remarks: tuple[str, ...] = ()  # about accepted values, to be logged
    # fmt: off
    wireguard_implementation: Annotated[WireGuardChoice,
        Key("wireGuard.implementation", kinds.choice(WireGuardChoice),
        "auto: the kernel's WireGuard where it exists, else wireguard-go (userspace), "
        "which is slower.")] = WireGuardChoice.AUTO
    wireguard_key_dir: Annotated[str, Key("wireGuard.keyDirectory", kinds.text(_PATH, "an absolute path"),
        "Directory of this Node's private key. It must outlive the agent: other clusters know the gateway by its "
        "key.")] = "/var/lib/mcagent/wireguard"
    resolv_conf: Annotated[str, Key("resolvConf", kinds.text(f"|{_PATH}", "an absolute path"),
        "File with this Node's resolvers, whose addresses no other cluster may "
        'use. "": none.')] = "/etc/resolv.conf"
    drain_on_stop: Annotated[bool, Key("drainOnStop", kinds.boolean(),
        "On SIGTERM, tell the peers to use other gateways and wait until they do, then exit.")] = False
    drain_timeout: Annotated[float, Key("drainTimeout", kinds.duration(0, 3600),
        "Longest time that a gateway that drains, or has lost the role, waits for its peers to move.")] = 10.0
    damping_initial: Annotated[float, Key("damping.initial", kinds.duration(0, 3600),
        "Time for which a tunnel stays on standby after it recovers; each further loss doubles it.")] = 1.0
    damping_max: Annotated[float, Key("damping.max", kinds.duration(0, 3600),
        "Longest time on standby, and the period in which losses of a tunnel add up.")] = 60.0
    tunnel_probes: Annotated[bool, Key("tunnelProbes", kinds.boolean(),
        "Probe a gateway's tunnels to other clusters each second: round trip, loss, MTU.")] = True
    source: Annotated[str, Key("source", kinds.text(rf"kube|dir:{_PATH}", '"kube" or "dir:" and an absolute path'),
        "Source of objects: the API server (kube), or YAML manifests in a directory (dir:/path).")] = "kube"
    kubeconfig: Annotated[str, Key("kubeconfig", kinds.text(rf"|{_PATH}", "an absolute path"),
        'kubeconfig for `source: kube`. "": the credentials of the Pod.')] = ""
    ovsdb: Annotated[str, Key("ovsdb", kinds.text(rf"unix:{_PATH}", '"unix:" and the absolute path of a socket'),
        "Socket of the Node's Open vSwitch database.")] = "unix:/var/run/openvswitch/db.sock"
    listen: Annotated[str, Key("listen", kinds.LISTEN,
        "Address and port of /metrics, /status, /healthz and /readyz. In clear text on the loopback address; "
        "elsewhere over TLS, for clients with a token (`metricsAuthentication`).")] = "127.0.0.1:10351"
    health_listen: Annotated[str, Key("healthListen", kinds.LISTEN_OR_OFF,
        "Address and port of /healthz and /readyz alone, in clear text, for probes: a separate server, which "
        'other clients cannot exhaust. "0": none.')] = "127.0.0.1:10361"
    metrics_authentication: Annotated[Authentication, Key("metricsAuthentication", kinds.choice(Authentication),
        "Authentication on `listen` where that is not a loopback address. token: a bearer token whose user may "
        "get the page, by TokenReview and SubjectAccessReview of the API server; without an API server (`source: "
        "dir:`) every request is refused. none: clear text, without authentication.")] = Authentication.TOKEN
    host_names: Annotated[tuple[str, ...], Key("hostNames", kinds.HOST_NAMES,
        "Further names of this server in the header Host of requests, where pages need no token (`listen` on a "
        "loopback address, `metricsAuthentication: none`). localhost, this machine's name and its addresses are "
        "always accepted.")] = ()
    tls_cert_dir: Annotated[str, Key("tlsCertDirectory", kinds.ABSOLUTE_PATH,
        'Directory of tls.crt and tls.key for `listen`, read again when they change. "": a self-signed '
        "certificate, made at start.")] = ""
    resync_period: Annotated[float, Key("resyncPeriod", kinds.duration(1, 86400),
        "Interval of a full resync, which reads and compares the whole dataplane.")] = 60.0
    log_level: Annotated[LogLevel, Key("logLevel", kinds.choice(LogLevel),
        "Lowest severity that is logged.", reloadable=True)] = LogLevel.INFO
    log_format: Annotated[LogFormat, Key("logFormat", kinds.choice(LogFormat),
        "Format of log lines. json: the field `object` names the object "
        "(kind, namespace, name).")] = LogFormat.TEXT
    run_dir: Annotated[str, Key("runDirectory", kinds.text(_PATH, "an absolute path"),
        "Directory of the lock that prevents a second agent on the Node.")] = "/run/mcagent"
    # fmt: on

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port of the server for all pages."""
        return kinds.listen_address(self.listen)

    @property
    def status_socket(self) -> Path:
        """Unix socket, accessible to root only, by which this Node's commands read the pages."""
        return Path(self.run_dir) / "status.sock"

    @property
    def requires_token(self) -> bool:
        """Whether `listen` requires a bearer token. This Node's commands have none: they need the socket then."""
        open_to_all = self.metrics_authentication is Authentication.NONE
        return not (open_to_all or is_loopback(self.listen_address[0]))


KEYS = keys_of(Settings)
SCHEMA = Schema(
    keys=KEYS,
    prefix="MCAGENT_",
    file_variable="MCAGENT_CONFIG",
    default_file="/etc/mcagent/agent.yaml",
    # the controller's, the lab's and the tests' own; they may be set around an agent
    other_prefixes=("MCAGENT_CONTROLLER_", "MCAGENT_LAB_", "MCAGENT_TEST_"),
    nested="multicluster",
    ignored={"featureGates": "are Antrea's: ignored (enableGateway: false turns mcagent off on a Node)"},
    elsewhere={
        "enable": 'was renamed in Antrea 2.0: use "enableGateway"',
        "serviceCIDR": "belongs to the controller's configuration: Gateway objects publish it",
        "gatewayIPPrecedence": "belongs to the controller's configuration",
        "endpointIPType": "belongs to the controller's configuration",
    },
)


def load(file: ConfigSource | None, environ: Mapping[str, str], flags: Mapping[str, str]) -> Settings:
    """Read the configuration: defaults, then `file`, then MCAGENT_… variables, then flags (by key path).

    Raises ConfigError with all errors; each names the source of the value and its path.
    """
    parsed = read(SCHEMA, file, environ, flags)
    parsed.require("nodeName", "required: the name of this Node object (--node-name, MCAGENT_NODE_NAME)")
    parsed.check()
    settings = make_settings(Settings, parsed.values, remarks=tuple(parsed.remarks))
    for path, reason in _conflicts(settings.core):
        parsed.conflict(path, reason)
    if settings.health_listen != "0":
        health = kinds.listen_address(settings.health_listen)
        if exclude_each_other(settings.listen_address, health):
            parsed.conflict("healthListen", f"must differ from listen: both are port {health[1]}")
    parsed.check()
    return settings


def _conflicts(core: Config) -> Iterator[tuple[str, str]]:
    """Yield keys whose values are valid alone but contradict others, with the reason."""
    for index, cidr in enumerate(core.pod_cidrs):
        for before, other in enumerate(core.pod_cidrs[:index]):
            if overlaps(cidr, other):
                yield f"podCIDRs[{index}]", f"{cidr} overlaps {other} (podCIDRs[{before}])"
    if core.imported_traffic not in {"", OTHERS} and not core.cluster_id:
        yield "importedTraffic", "needs clusterID: without it no cluster is this one"
    devices = {"bridge": core.bridge, "hostPort": core.host_port, "wireGuard.deviceName": core.wireguard_device}
    for first, second in combinations(devices, 2):
        if devices[first] == devices[second]:
            yield second, f"must differ from {first}: both are {devices[first]}"
    if core.encryption is TrafficEncryption.NONE:
        if core.node_encryption is not NodeTrafficEncryption.NONE:
            yield "nodeTrafficEncryption", "needs trafficEncryptionMode: wireGuard"
    else:
        port = core.tunnel_port or DEFAULT_PORTS[core.tunnel_type]
        if port == core.wireguard_port:
            yield "wireGuard.port", f"must differ from the tunnels' port: both are {port}"
        if core.datapath is DatapathChoice.NETDEV:
            reason = "bypasses WireGuard: only the kernel's can be encrypted"
            yield "datapath", f"the userspace datapath (netdev) {reason}"
    for path, name in devices.items():
        if name.startswith(("mcn-", "mcg-", "mcr-")):
            yield path, f'"{name}" has a prefix of our tunnel ports (mcn-, mcg-, mcr-): choose another'
    if not core.node_name:
        yield "nodeName", "must not be empty: the name of this Node object"
