"""The agent's configuration: every key with its kind, default and meaning, and the frozen value that they fill.

The only place where a key is declared: reading, flags and documentation follow from it. Owns the checks that
involve several keys; how sources are read is `mcagent.config.reader`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import combinations
from pathlib import Path
from typing import Any

from mcagent.config import reserved
from mcagent.config import values as kinds
from mcagent.config.keys import Key, LogFormat, LogLevel, Schema
from mcagent.config.reader import ConfigSource, read
from mcagent.config.values import Value, listen_problem
from mcagent.http.listening import Authentication, is_loopback
from mcagent.model.config import (
    Config,
    DatapathChoice,
    EncryptionFallback,
    GatewayMode,
    GatewaySelection,
    PodRouting,
    PolicyFailureMode,
    SourceNat,
    TrafficEncryption,
)
from mcagent.model.dataplane.resources import DEFAULT_PORTS, TunnelType
from mcagent.model.net import overlaps
from mcagent.model.traffic import OTHERS


class WireGuardChoice(StrEnum):
    """Which WireGuard is used."""

    AUTO = "auto"  # the kernel's where it exists, else wireguard-go
    KERNEL = "kernel"
    USERSPACE = "userspace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole configuration: what `compile` needs (`core`), and what the process needs. Times in seconds."""

    core: Config
    source: str = "kube"
    kubeconfig: str = ""
    context: str = ""  # of the kubeconfig; no key: commands set it
    ovsdb: str = "unix:/var/run/openvswitch/db.sock"
    listen: str = "127.0.0.1:10351"
    health_listen: str = "127.0.0.1:10361"
    metrics_authentication: Authentication = Authentication.TOKEN
    host_names: tuple[str, ...] = ()
    tls_cert_dir: str = ""
    resync_period: float = 60.0
    log_level: LogLevel = LogLevel.INFO
    log_format: LogFormat = LogFormat.TEXT
    run_dir: str = "/run/mcagent"
    wireguard_implementation: WireGuardChoice = WireGuardChoice.AUTO
    wireguard_key_dir: str = "/var/lib/mcagent/wireguard"
    resolv_conf: str = "/etc/resolv.conf"
    drain_on_stop: bool = False
    drain_timeout: float = 10.0
    damping_initial: float = 1.0
    damping_max: float = 60.0
    tunnel_probes: bool = True
    remarks: tuple[str, ...] = ()  # about accepted values, to be logged

    def value(self, key: Key) -> object:
        """Return the value of a key."""
        return getattr(self.core if key.holder is Config else self, key.attribute)

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


def _key(path: str, attribute: str, value: Value, *, meaning: str, antrea: bool = False) -> Key:
    """Return a key that fills the field of this name, of Config or of Settings."""
    holder = Config if attribute in {field.name for field in fields(Config)} else Settings
    return Key(path=path, attribute=attribute, value=value, meaning=meaning, holder=holder, antrea=antrea)


_TABLE = kinds.integer(1, 2**32 - 1, never=reserved.ROUTE_TABLES)
_BFD_INTERVAL = kinds.duration(0.01, 10)
_BFD_MULTIPLIER = kinds.integer(1, 255)
_PATH = r"/[^\0\n]*"

KEYS: tuple[Key, ...] = (
    _key("enableGateway", "enable_gateway", kinds.boolean(), antrea=True,
        meaning="Take part in multi-cluster networking: a Node for which there is a Gateway object is a gateway, "
                "every other a worker. false: this Node has no tunnels and no routes. (Antrea's default is "
                "false.)"),
    _key("namespace", "namespace", kinds.DNS_LABEL, antrea=True,
        meaning='Namespace of the Gateway and ClusterInfoImport objects. "" means all namespaces.'),
    _key("enablePodToPodConnectivity", "enable_pod_to_pod", kinds.boolean(), antrea=True,
        meaning="Pods of remote clusters may reach Pods of this cluster directly, and see their addresses."),
    _key("enableStretchedNetworkPolicy", "stretched_network_policy", kinds.boolean(), antrea=True,
        meaning="Enforce policies between clusters. Tunnel packets then carry the label identity of the sending "
                "Pod ([policies.md](policies.md)). The same in all clusters."),
    _key("policyFailureMode", "policy_failure_mode", kinds.choice(PolicyFailureMode),
        meaning="Connections between clusters to which a policy rule applies that cannot be enforced. closed: "
                "drop them. open: ignore the rule; a rule of a NetworkPolicy counts as allowing everything."),
    _key("maxPolicyFlows", "max_policy_flows", kinds.integer(100, 1_000_000),
        meaning="Limit of the flows of one policy on this Node. A policy above it cannot be enforced "
                "(`policyFailureMode`)."),
    _key("maxNamespacePolicyFlows", "max_namespace_policy_flows", kinds.integer(100, 1_000_000),
        meaning="Limit of the flows of all policies of a Namespace on this Node, of which the oldest come first."),
    _key("trafficEncryptionMode", "encryption", kinds.choice(TrafficEncryption), antrea=True,
        meaning="Encryption between gateways of different clusters. The same in all clusters."),
    _key("wireGuard.port", "wireguard_port", kinds.integer(1, 65535), antrea=True,
        meaning="UDP port of WireGuard on this Node, and of gateways that publish none."),
    _key("wireGuard.mtu", "wireguard_mtu", kinds.integer(626, 65535, also=(0,)),
        meaning="MTU of the WireGuard device. 0: that of the uplink less 60 bytes, or 80 on an IPv6 underlay."),
    _key("wireGuard.deviceName", "wireguard_device", kinds.DEVICE_NAME,
        meaning="Name of the WireGuard device."),
    _key("wireGuard.keepalive", "wireguard_keepalive", kinds.integer(1, 3600),
        meaning="Interval of WireGuard's keepalives in seconds. They reach a gateway that returns, and keep the "
                "state of an address translation on the path."),
    _key("wireGuard.implementation", "wireguard_implementation", kinds.choice(WireGuardChoice),
        meaning="auto: the kernel's WireGuard where it exists, else wireguard-go (userspace), which is slower."),
    _key("wireGuard.keyDirectory", "wireguard_key_dir", kinds.text(_PATH, "an absolute path"),
        meaning="Directory of this Node's private key. It must outlive the agent: other clusters know the gateway "
                "by its key."),
    _key("encryptionFallback", "encryption_fallback", kinds.choice(EncryptionFallback),
        meaning="Traffic to another cluster that cannot be encrypted, because this Node has no WireGuard or the "
                "other cluster publishes no key. deny: drop it. allowClear: send it unencrypted."),
    _key("podCIDRs", "pod_cidrs", kinds.networks(),
        meaning="Pod CIDRs of this cluster, as in its ClusterInfo (Antrea has the key in the configuration of its "
                "multi-cluster controller). []: those of its Nodes (Node.spec.podCIDRs)."),
    _key("nodeName", "node_name", kinds.DNS_NAME,
        meaning="Name of this Node object. Required."),
    _key("clusterID", "cluster_id", kinds.DNS_NAME,
        meaning="ID of this cluster in the ClusterSet, so that its own ClusterInfoImport is ignored."),
    _key("sourceNAT", "source_nat", kinds.choice(SourceNat),
        meaning="When the gateway translates source addresses to its gatewayIP. auto: only where routing needs "
                "it. always: towards every remote cluster, as Antrea does."),
    _key("exposeNodes", "expose_nodes", kinds.boolean(),
        meaning="Let other clusters open connections to this Node's own addresses inside podCIDRs (or the Node's "
                "Pod CIDR): kubelet, NodePorts, Pods on the host's network. false: only by an exported Service."),
    _key("importedTraffic", "imported_traffic", kinds.traffic(),
        meaning="Clusters that get new connections to imported Services, where neither ServiceImport nor exporter "
                "chooses ([multicluster.md](multicluster.md#traffic-distribution)). `*`: all, by their ready "
                "endpoints. any: as kube-proxy chooses. Clusters that no gateway reaches get no new connections. "
                "\"\", or no clusterID: kube-proxy alone chooses, and the objects for this are not read."),
    _key("newConnections", "new_connections", kinds.integer(0, 1_000_000),
        meaning="Rate limit per remote cluster: new connections per second to this Node (burst: twice that). "
                "Excess is dropped. 0: no limit."),
    _key("fragments", "fragments", kinds.integer(0, 1_000_000),
        meaning="Rate limit per remote cluster: IP fragments per second to this Node (burst: ten times that). "
                "Excess is dropped. Raise it only with the limits for fragments of the Node "
                "([underlay.md](underlay.md#fragments)). 0: no limit."),
    _key("podRouting", "pod_routing", kinds.choice(PodRouting),
        meaning="How a gateway finds the Node of a Pod. nodeCIDR: by Node.spec.podCIDRs. perPod: by watching "
                "Pods. auto: by the Node's Pod CIDRs if it has any, else by Pods."),
    _key("allowedRemoteCIDRs", "allowed_remote_cidrs", kinds.networks(),
        meaning="Accept only CIDRs of remote clusters that are inside these. []: the private ones, 10.0.0.0/8, "
                "172.16.0.0/12, 192.168.0.0/16 and 100.64.0.0/10."),
    _key("protectedCIDRs", "protected_cidrs", kinds.networks(),
        meaning="Reject CIDRs and gateway addresses of other clusters that overlap these: the leader's API "
                "server, resolvers behind a name, … (API servers, resolvers, default gateways and Nodes that the "
                "agent observes are always protected)."),
    _key("resolvConf", "resolv_conf", kinds.text(f"|{_PATH}", "an absolute path"),
        meaning='File with this Node\'s resolvers, whose addresses no other cluster may use. "": none.'),
    _key("tunnelType", "tunnel_type", kinds.choice(TunnelType),
        meaning="Encapsulation of every tunnel. The same in all clusters."),
    _key("tunnelPort", "tunnel_port", kinds.integer(0, 65535),
        meaning="UDP port of the encapsulation. 0: its default (geneve 6081, vxlan 4789)."),
    _key("tunnelSourceCheck", "tunnel_source_check", kinds.boolean(),
        meaning="Drop a tunnel packet with a peer's source address that arrives on a device of a kind that Pods "
                "use (veth, netkit, bridge, openvswitch), unless the route to the peer leads there or the device "
                "has the destination address: a Pod forged the source. false: for Nodes with several bridges as "
                "uplinks and an address on another device, where packets of peers arrive by another device than "
                "replies leave. Also drop tunnel packets of Nodes of this cluster that do not come from the local "
                "link any more ([operations.md](operations.md#packets-that-nft-drops))."),
    _key("mtu", "mtu", kinds.integer(576, 65485, also=(0,)),
        meaning="MTU of `hostPort`. 0: that of the uplink less the overhead of the encapsulation."),
    _key("bridge", "bridge", kinds.DEVICE_NAME,
        meaning="Name of the agent's Open vSwitch bridge."),
    _key("hostPort", "host_port", kinds.DEVICE_NAME,
        meaning="Name of the device by which the Node's kernel and the bridge exchange packets."),
    _key("datapath", "datapath", kinds.choice(DatapathChoice),
        meaning="Open vSwitch datapath. auto: the kernel's where it exists, else userspace (netdev)."),
    _key("conntrackZoneBase", "ct_zone_base", kinds.integer(1, 65532),
        meaning="First of four connection tracking zones. Zone 0 is the kernel's."),
    _key("connectionMarkBit", "ct_mark_bit", kinds.integer(0, 31, never=reserved.MARK_BITS),
        meaning="Bit of connection mark and packet mark that routes replies back the way their requests came. "
                "Choose a bit that nothing else on the Node uses: Cilium uses 8 to 11 and 16 to 31, Calico 16 to "
                "31, portmap 13, AWS 7, OVN-Kubernetes 3 and 12 (choose another there)."),
    _key("routeTable", "route_table", _TABLE,
        meaning="Routing table of the routes to remote clusters."),
    _key("replyTable", "reply_table", _TABLE,
        meaning="Routing table for replies to connections that came from remote clusters."),
    _key("routeProtocol", "route_protocol", kinds.integer(5, 255, never=reserved.ROUTE_PROTOCOLS),
        meaning="Protocol number of the agent's routes and rules."),
    _key("rulePriority", "rule_priority", kinds.integer(1, 32764),
        meaning="Priority of the first of two routing rules (the second has the next number)."),
    _key("nftTable", "nft_table",
        kinds.text(r"[A-Za-z_][A-Za-z0-9_]{0,62}", "a name of letters, digits and _", never=reserved.NFT_TABLES),
        meaning="Name of the agent's nftables table (family ip)."),
    _key("gateways", "gateways", kinds.choice(GatewayMode),
        meaning="How several gateways of a cluster share its traffic. active-active: by a hash of each "
                "connection. active-standby: the first live one, in the order of the API, takes all."),
    _key("failback", "failback", kinds.boolean(),
        meaning="With active-standby: give traffic back to a preferred gateway when it returns."),
    _key("gatewaySelection", "gateway_selection", kinds.choice(GatewaySelection),
        meaning="Which Nodes of this cluster are gateways. api: those with a Gateway object. readiness: those "
                "with the annotation `multicluster.antrea.io/gateway`, without any controller (address: the "
                "annotation `multicluster.antrea.io/gateway-ip`, else the Node's InternalIP). A Node that is "
                "not Ready or is cordoned is used only while there is no other."),
    _key("serviceCIDRs", "service_cidrs", kinds.networks(),
        meaning="Service CIDR of this cluster, where no Gateway has it: for `gatewaySelection: readiness`, and to "
        "drop packets to other clusters before the first Gateway."),
    _key("bfd.enable", "bfd_enable", kinds.boolean(),
        meaning="Run bidirectional forwarding detection on every tunnel: Open vSwitch stops using a dead gateway "
                "without the agent. A peer that never answered (Antrea) is used without it."),
    _key("bfd.local.interval", "bfd_local_interval", _BFD_INTERVAL,
        meaning="Interval of BFD packets between Nodes of this cluster."),
    _key("bfd.local.multiplier", "bfd_local_multiplier", _BFD_MULTIPLIER,
        meaning="Between Nodes of this cluster: number of consecutive missed packets after which a peer is down."),
    _key("bfd.remote.interval", "bfd_remote_interval", _BFD_INTERVAL,
        meaning="Interval of BFD packets between gateways of different clusters."),
    _key("bfd.remote.multiplier", "bfd_remote_multiplier", _BFD_MULTIPLIER,
        meaning="Between gateways of different clusters: as `bfd.local.multiplier`."),
    _key("bfd.maxNodes", "bfd_max_nodes", kinds.integer(0, 65000),
        meaning="With more workers than this in the cluster, run BFD between gateways only; workers then rely on "
                "the Ready condition of the gateways' Nodes."),
    _key("drainOnStop", "drain_on_stop", kinds.boolean(),
        meaning="On SIGTERM, tell the peers to use other gateways and wait until they do, then exit."),
    _key("drainTimeout", "drain_timeout", kinds.duration(0, 3600),
        meaning="Longest time that a gateway that drains, or has lost the role, waits for its peers to move."),
    _key("damping.initial", "damping_initial", kinds.duration(0, 3600),
        meaning="Time for which a tunnel stays on standby after it recovers; each further loss doubles it."),
    _key("damping.max", "damping_max", kinds.duration(0, 3600),
        meaning="Longest time on standby, and the period in which losses of a tunnel add up."),
    _key("tunnelProbes", "tunnel_probes", kinds.boolean(),
        meaning="Probe a gateway's tunnels to other clusters each second: round trip, loss, MTU."),
    _key("source", "source", kinds.text(rf"kube|dir:{_PATH}", '"kube" or "dir:" and an absolute path'),
        meaning="Source of objects: the API server (kube), or YAML manifests in a directory (dir:/path)."),
    _key("kubeconfig", "kubeconfig", kinds.text(rf"|{_PATH}", "an absolute path"),
        meaning='kubeconfig for `source: kube`. "": the credentials of the Pod.'),
    _key("ovsdb", "ovsdb", kinds.text(rf"unix:{_PATH}", '"unix:" and the absolute path of a socket'),
        meaning="Socket of the Node's Open vSwitch database."),
    _key("listen", "listen", kinds.LISTEN,
        meaning="Address and port of /metrics, /status, /healthz and /readyz. In clear text on the loopback "
                "address; elsewhere over TLS, for clients with a token (`metricsAuthentication`)."),
    _key("healthListen", "health_listen", kinds.LISTEN_OR_OFF,
        meaning="Address and port of /healthz and /readyz alone, in clear text, for probes: a separate server, "
                'which other clients cannot exhaust. "0": none.'),
    _key("metricsAuthentication", "metrics_authentication", kinds.choice(Authentication),
        meaning="Authentication on `listen` where that is not a loopback address. token: a bearer token whose "
                "user may get the page, by TokenReview and SubjectAccessReview of the API server; without an API "
                "server (`source: dir:`) every request is refused. none: clear text, without authentication."),
    _key("hostNames", "host_names", kinds.HOST_NAMES,
        meaning="Further names of this server in the header Host of requests, where pages need no token (`listen` "
                "on a loopback address, `metricsAuthentication: none`). localhost, this machine's name and its "
                "addresses are always accepted."),
    _key("tlsCertDirectory", "tls_cert_dir", kinds.ABSOLUTE_PATH,
        meaning='Directory of tls.crt and tls.key for `listen`, read again when they change. "": a self-signed '
                "certificate, made at start."),
    _key("resyncPeriod", "resync_period", kinds.duration(1, 86400),
        meaning="Interval of a full resync, which reads and compares the whole dataplane."),
    _key("logLevel", "log_level", kinds.choice(LogLevel),
        meaning="Lowest severity that is logged."),
    _key("logFormat", "log_format", kinds.choice(LogFormat),
        meaning="Format of log lines. json: the field `object` names the object (kind, namespace, name)."),
    _key("runDirectory", "run_dir", kinds.text(_PATH, "an absolute path"),
        meaning="Directory of the lock that prevents a second agent on the Node."),
)  # fmt: skip

SCHEMA = Schema(
    keys=KEYS,
    prefix="MCAGENT_",
    file_variable="MCAGENT_CONFIG",
    default_file="/etc/mcagent/agent.yaml",
    # the controller's, the lab's and the tests' own; they may be set around an agent
    others=("MCAGENT_CONTROLLER_", "MCAGENT_LAB_", "MCAGENT_TEST_"),
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
    if not parsed.errors:
        for path, reason in _conflicts(parsed.effective()):
            parsed.conflict(path, reason)
    parsed.check()
    core: dict[str, Any] = parsed.fields(Config)
    own: dict[str, Any] = parsed.fields(Settings)
    return Settings(core=Config(**core), **own, remarks=tuple(parsed.remarks))


def _conflicts(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield keys whose values are valid alone but contradict others, with the reason."""
    cidrs = values["podCIDRs"]
    for index, cidr in enumerate(cidrs):
        for before, other in enumerate(cidrs[:index]):
            if overlaps(cidr, other):
                yield f"podCIDRs[{index}]", f"{cidr} overlaps {other} (podCIDRs[{before}])"
    if values["importedTraffic"] not in {"", OTHERS} and not values["clusterID"]:
        yield "importedTraffic", "needs clusterID: without it no cluster is this one"
    devices = ("bridge", "hostPort", "wireGuard.deviceName")
    for first, second in (("routeTable", "replyTable"), *combinations(devices, 2)):
        if values[first] == values[second]:
            yield second, f"must differ from {first}: both are {values[first]}"
    if values["trafficEncryptionMode"] is not TrafficEncryption.NONE:
        port = values["tunnelPort"] or DEFAULT_PORTS[values["tunnelType"]]
        if port == values["wireGuard.port"]:
            yield "wireGuard.port", f"must differ from the tunnels' port: both are {port}"
        if values["datapath"] is DatapathChoice.NETDEV:
            reason = "bypasses WireGuard: only the kernel's can be encrypted"
            yield "datapath", f"the userspace datapath (netdev) {reason}"
    for path in devices:
        if values[path].startswith(("mcn-", "mcg-", "mcr-")):
            yield path, f'"{values[path]}" has a prefix of our tunnel ports (mcn-, mcg-, mcr-): choose another'
    if not values["nodeName"]:
        yield "nodeName", "must not be empty: the name of this Node object"
    for path in ("listen", "healthListen"):
        if values[path] != "0" and (wrong := listen_problem(values[path])):
            yield path, wrong
