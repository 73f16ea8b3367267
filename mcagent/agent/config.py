"""The agent's configuration: every key with its kind, default and meaning, and the frozen value that they fill.

The only place where a key is declared: reading, flags and documentation follow from it. Owns what is wrong only
together, too; how sources are read is `mcagent.config.reader`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import combinations
from pathlib import Path
from typing import Any

from mcagent.config import taken
from mcagent.config import values as kinds
from mcagent.config.keys import Key, LogFormat, LogLevel, Schema
from mcagent.config.reader import Source, read
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
from mcagent.model.net import overlaps
from mcagent.model.resources import DEFAULT_PORTS, TunnelType
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
    ovsdb: str = "unix:/var/run/openvswitch/db.sock"
    listen: str = "127.0.0.1:10351"
    health_listen: str = "127.0.0.1:10361"
    metrics_authentication: Authentication = Authentication.TOKEN
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

    def value(self, key: Key) -> object:
        """Return what this says for a key."""
        return getattr(self.core if key.holder is Config else self, key.attribute)

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port of the server for all pages."""
        return kinds.listen_address(self.listen)

    @property
    def status_socket(self) -> Path:
        """Unix socket, root's alone, by which this Node's commands ask for the pages."""
        return Path(self.run_dir) / "status.sock"

    @property
    def asks_by_socket(self) -> bool:
        """Whether this Node's commands need the socket: where `listen` asks for no token, that does for them."""
        open_to_all = self.metrics_authentication is Authentication.NONE
        return not (open_to_all or is_loopback(self.listen_address[0]))


def _key(path: str, attribute: str, value: Value, *, meaning: str, antrea: bool = False) -> Key:
    """Return a key that fills the field of this name, of Config or of Settings."""
    holder = Config if attribute in {field.name for field in fields(Config)} else Settings
    return Key(path=path, attribute=attribute, value=value, meaning=meaning, holder=holder, antrea=antrea)


_TABLE = kinds.integer(1, 2**32 - 1, never=taken.ROUTE_TABLES)
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
        meaning="Policies between clusters are enforced, and tunnels tell which labels the Pod has that a packet "
                "is from, by the number that the ClusterSet has given to these labels "
                "([policies.md](policies.md)). The same in all clusters."),
    _key("policyFailureMode", "policy_failure_mode", kinds.choice(PolicyFailureMode),
        meaning="What becomes of connections between clusters where a rule of a policy cannot be enforced. "
                "closed: they are dropped. open: the rule counts as if it were not there, a NetworkPolicy's as if "
                "it allowed everything."),
    _key("trafficEncryptionMode", "encryption", kinds.choice(TrafficEncryption), antrea=True,
        meaning="Encryption between gateways of different clusters. The same in all clusters."),
    _key("wireGuard.port", "wireguard_port", kinds.integer(1, 65535), antrea=True,
        meaning="UDP port of WireGuard on this Node, and of gateways that publish none."),
    _key("wireGuard.mtu", "wireguard_mtu", kinds.integer(626, 65535, also=(0,)),
        meaning="MTU of the WireGuard device. 0: that of the uplink less 60 bytes, or 80 on an IPv6 underlay."),
    _key("wireGuard.deviceName", "wireguard_device", kinds.DEVICE_NAME,
        meaning="Name of the WireGuard device."),
    _key("wireGuard.keepalive", "wireguard_keepalive", kinds.integer(1, 3600),
        meaning="Seconds without a packet after which an empty one is sent, so that a gateway that comes back, or "
                "whose address is translated on the way, is reached."),
    _key("wireGuard.implementation", "wireguard_implementation", kinds.choice(WireGuardChoice),
        meaning="auto: the kernel's WireGuard where it exists, else wireguard-go (userspace), which is slower."),
    _key("wireGuard.keyDirectory", "wireguard_key_dir", kinds.text(_PATH, "an absolute path"),
        meaning="Directory of this Node's private key. It must outlive the agent: other clusters know the gateway "
                "by its key."),
    _key("encryptionFallback", "encryption_fallback", kinds.choice(EncryptionFallback),
        meaning="What becomes of traffic to another cluster that cannot be encrypted: because this Node has no "
                "WireGuard, or the other cluster publishes no key. deny: it is dropped. allowClear: it is sent "
                "unencrypted."),
    _key("podCIDRs", "pod_cidrs", kinds.networks(),
        meaning="Pod CIDRs of this cluster, as in its ClusterInfo (Antrea has the key in the configuration of its "
                "multi-cluster controller). []: those of its Nodes (Node.spec.podCIDRs)."),
    _key("nodeName", "node_name", kinds.DNS_NAME,
        meaning="Name of this Node object. Required."),
    _key("clusterID", "cluster_id", kinds.DNS_NAME,
        meaning="ID of this cluster in the ClusterSet, so that its own ClusterInfoImport is passed over."),
    _key("sourceNAT", "source_nat", kinds.choice(SourceNat),
        meaning="When the gateway translates source addresses to its gatewayIP. auto: only where routing needs "
                "it. always: towards every remote cluster, as Antrea does."),
    _key("exposeNodes", "expose_nodes", kinds.boolean(),
        meaning="Other clusters may open connections to this Node's own addresses, as far as podCIDRs (or the "
                "Node's Pod CIDR) has them: kubelet, NodePorts, Pods on the host's network. false: only by an "
                "exported Service."),
    _key("importedTraffic", "imported_traffic", kinds.traffic(),
        meaning="Which clusters get new connections to imported Services, where neither ServiceImport nor "
                "exporter says ([multicluster.md](multicluster.md#traffic-distribution)). `*`: all, by their "
                "ready endpoints. any: as kube-proxy chooses. Clusters that no gateway reaches are left. \"\", or "
                "no clusterID: kube-proxy alone chooses, and nothing of this is read."),
    _key("newConnections", "new_connections", kinds.integer(0, 1_000_000),
        meaning="New connections that each other cluster may open to this Node in a second, or twice as many at "
                "once; what is over that is dropped. 0: any number."),
    _key("podRouting", "pod_routing", kinds.choice(PodRouting),
        meaning="How a gateway knows which Node has a Pod. nodeCIDR: by Node.spec.podCIDRs. perPod: by watching "
                "Pods. auto: each Node by its Pod CIDRs if it has any, else by Pods."),
    _key("allowedRemoteCIDRs", "allowed_remote_cidrs", kinds.networks(),
        meaning="Remote clusters may have only CIDRs inside these. [] means private ones: 10.0.0.0/8, "
                "172.16.0.0/12, 192.168.0.0/16 and 100.64.0.0/10."),
    _key("protectedCIDRs", "protected_cidrs", kinds.networks(),
        meaning="Networks that no other cluster may ever have, as a CIDR or as a gateway's address: the leader's "
                "API server, resolvers behind a name, … (API servers, resolvers, default gateways and Nodes that "
                "the agent knows of are protected anyway)."),
    _key("resolvConf", "resolv_conf", kinds.text(f"|{_PATH}", "an absolute path"),
        meaning='File with this Node\'s resolvers, which no other cluster may have. "": none.'),
    _key("tunnelType", "tunnel_type", kinds.choice(TunnelType),
        meaning="Encapsulation of every tunnel. The same in all clusters."),
    _key("tunnelPort", "tunnel_port", kinds.integer(0, 65535),
        meaning="UDP port of the encapsulation. 0: its default (geneve 6081, vxlan 4789)."),
    _key("tunnelSourceCheck", "tunnel_source_check", kinds.boolean(),
        meaning="Drop a tunnel packet in the name of a peer when it comes in by a device of a kind that Pods have "
                "(veth, netkit, bridge, openvswitch) that neither leads to that peer nor has the address that it "
                "is for: it is a Pod's, with a forged source. false: for Nodes with several bridges as uplinks "
                "and an address on another device, where peers come by one that is not the way back."),
    _key("mtu", "mtu", kinds.integer(576, 65485, also=(0,)),
        meaning="MTU of `hostPort`. 0: that of the uplink less what the encapsulation adds."),
    _key("bridge", "bridge", kinds.DEVICE_NAME,
        meaning="Name of our own Open vSwitch bridge."),
    _key("hostPort", "host_port", kinds.DEVICE_NAME,
        meaning="Name of the device by which the Node's kernel and the bridge exchange packets."),
    _key("datapath", "datapath", kinds.choice(DatapathChoice),
        meaning="Open vSwitch datapath. auto: the kernel's where it exists, else userspace (netdev)."),
    _key("conntrackZoneBase", "ct_zone_base", kinds.integer(1, 65532),
        meaning="First of four connection tracking zones. Zone 0 is the kernel's."),
    _key("connectionMarkBit", "ct_mark_bit", kinds.integer(0, 31, never=taken.MARK_BITS),
        meaning="The one bit of connection mark and packet mark by which replies find the way they came. Must be "
                "a bit that nothing else on the Node uses: Cilium uses 8 to 11 and 16 to 31, Calico 16 to 31, "
                "portmap 13, AWS 7, OVN-Kubernetes 3 and 12 (choose another there)."),
    _key("routeTable", "route_table", _TABLE,
        meaning="Routing table for the way to remote clusters."),
    _key("replyTable", "reply_table", _TABLE,
        meaning="Routing table for replies to connections that came from remote clusters."),
    _key("routeProtocol", "route_protocol", kinds.integer(5, 255, never=taken.ROUTE_PROTOCOLS),
        meaning="Protocol number that our routes and rules carry."),
    _key("rulePriority", "rule_priority", kinds.integer(1, 32764),
        meaning="Priority of the first of two routing rules (the second has the next number)."),
    _key("nftTable", "nft_table",
        kinds.text(r"[A-Za-z_][A-Za-z0-9_]{0,62}", "a name of letters, digits and _", never=taken.NFT_TABLES),
        meaning="Name of our own nftables table (family ip)."),
    _key("gateways", "gateways", kinds.choice(GatewayMode),
        meaning="How several gateways of a cluster share its traffic. active-active: each connection by a hash. "
                "active-standby: all by the first that is live, in the order of the API."),
    _key("failback", "failback", kinds.boolean(),
        meaning="With active-standby: a gateway that returns takes its traffic back."),
    _key("gatewaySelection", "gateway_selection", kinds.choice(GatewaySelection),
        meaning="Which Nodes of this cluster are gateways. api: those with a Gateway object. readiness: those "
                "with the annotation `multicluster.antrea.io/gateway`, without any controller (address: the "
                "annotation `multicluster.antrea.io/gateway-ip`, else the Node's InternalIP). Either way a Node "
                "that is not Ready, or cordoned, is used only while no other is there."),
    _key("serviceCIDRs", "service_cidrs", kinds.networks(),
        meaning="Service CIDR of this cluster, for `gatewaySelection: readiness` where no Gateway tells it."),
    _key("bfd.enable", "bfd_enable", kinds.boolean(),
        meaning="Bidirectional forwarding detection on every tunnel: a gateway that is dead is left without any "
                "agent. A peer that never answered it (Antrea) is used without it."),
    _key("bfd.local.interval", "bfd_local_interval", _BFD_INTERVAL,
        meaning="Between Nodes of this cluster: time from one BFD packet to the next."),
    _key("bfd.local.multiplier", "bfd_local_multiplier", _BFD_MULTIPLIER,
        meaning="Between Nodes of this cluster: so many packets missed in a row mean that the peer is gone."),
    _key("bfd.remote.interval", "bfd_remote_interval", _BFD_INTERVAL,
        meaning="Between gateways of different clusters."),
    _key("bfd.remote.multiplier", "bfd_remote_multiplier", _BFD_MULTIPLIER,
        meaning="Between gateways of different clusters."),
    _key("bfd.maxNodes", "bfd_max_nodes", kinds.integer(0, 65000),
        meaning="With more workers than this in the cluster, BFD is between gateways only, and workers rely on "
                "what the API says of the gateways' Nodes."),
    _key("drainOnStop", "drain_on_stop", kinds.boolean(),
        meaning="On SIGTERM, tell the peers to use other gateways and wait until they do, then exit."),
    _key("drainTimeout", "drain_timeout", kinds.duration(0, 3600),
        meaning="Longest time that a gateway that drains, or is none any more, waits for its peers to move."),
    _key("damping.initial", "damping_initial", kinds.duration(0, 3600),
        meaning="A tunnel that was lost is on standby this long after its return; each further loss doubles it."),
    _key("damping.max", "damping_max", kinds.duration(0, 3600),
        meaning="The longest time that a tunnel is kept on standby, and in which losses count together."),
    _key("tunnelProbes", "tunnel_probes", kinds.boolean(),
        meaning="A gateway probes its tunnels to other clusters each second: round trip, loss, MTU."),
    _key("source", "source", kinds.text(rf"kube|dir:{_PATH}", '"kube" or "dir:" and an absolute path'),
        meaning="Where objects come from: the API server (kube), or YAML manifests in a directory (dir:/path)."),
    _key("kubeconfig", "kubeconfig", kinds.text(rf"|{_PATH}", "an absolute path"),
        meaning='kubeconfig for `source: kube`. "": the credentials of the Pod.'),
    _key("ovsdb", "ovsdb", kinds.text(rf"unix:{_PATH}", '"unix:" and the absolute path of a socket'),
        meaning="Socket of the Node's Open vSwitch database."),
    _key("listen", "listen", kinds.LISTEN,
        meaning="Address and port of /metrics, /status, /healthz and /readyz: on the loopback plain HTTP, on any "
                "other address TLS, for clients with a token (`metricsAuthentication`)."),
    _key("healthListen", "health_listen", kinds.LISTEN_OR_OFF,
        meaning="Address and port of /healthz and /readyz alone, in clear text, for probes: a server that no "
                'client can occupy. "0": none.'),
    _key("metricsAuthentication", "metrics_authentication", kinds.choice(Authentication),
        meaning="Access to `listen` on an address that is not the loopback. token: a bearer token that may get "
                "the page (TokenReview, SubjectAccessReview of the API server); without an API server "
                "(`source: dir:`) all requests are refused. none: plain HTTP for all clients."),
    _key("tlsCertDirectory", "tls_cert_dir", kinds.ABSOLUTE_PATH,
        meaning='Directory of tls.crt and tls.key for `listen`, read again when they change. "": a self-signed '
                "certificate, made at start."),
    _key("resyncPeriod", "resync_period", kinds.duration(1, 86400),
        meaning="How often the whole dataplane is read and compared, beside being notified of changes."),
    _key("logLevel", "log_level", kinds.choice(LogLevel),
        meaning="Least severity that is logged."),
    _key("logFormat", "log_format", kinds.choice(LogFormat),
        meaning="Form of log lines. Of `json`, `object` has kind, namespace and name of what a line is about."),
    _key("runDirectory", "run_dir", kinds.text(_PATH, "an absolute path"),
        meaning="Directory of the lock that keeps a second agent off the Node."),
)  # fmt: skip

SCHEMA = Schema(
    keys=KEYS,
    prefix="MCAGENT_",
    file_variable="MCAGENT_CONFIG",
    default_file="/etc/mcagent/agent.yaml",
    # the controller's, the lab's and the tests' own; they may be set around an agent
    others=("MCAGENT_CONTROLLER_", "MCAGENT_LAB_", "MCAGENT_TEST_"),
    nested="multicluster",
    elsewhere={
        "enable": 'was renamed in Antrea 2.0: use "enableGateway"',
        "featureGates": "is not used: remove it",
        "serviceCIDR": "belongs to the controller's configuration: Gateway objects publish it",
        "gatewayIPPrecedence": "belongs to the controller's configuration",
        "endpointIPType": "belongs to the controller's configuration",
    },
)


def load(file: Source | None, environ: Mapping[str, str], flags: Mapping[str, str]) -> Settings:
    """Read the configuration: defaults, then `file`, then MCAGENT_… variables, then flags (by key path).

    Raises ConfigError with every finding; each names where the value came from and its path.
    """
    reading = read(SCHEMA, file, environ, flags)
    reading.require("nodeName", "required: the name of this Node object (--node-name, MCAGENT_NODE_NAME)")
    if not reading.errors:
        for path, reason in _conflicts(reading.said()):
            reading.conflict(path, reason)
    reading.check()
    core: dict[str, Any] = reading.fields(Config)
    own: dict[str, Any] = reading.fields(Settings)
    return Settings(core=Config(**core), **own)


def _conflicts(said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return the values that are right alone and wrong together, with the reason."""
    cidrs = said["podCIDRs"]
    for index, cidr in enumerate(cidrs):
        for before, other in enumerate(cidrs[:index]):
            if overlaps(cidr, other):
                yield f"podCIDRs[{index}]", f"{cidr} overlaps {other} (podCIDRs[{before}])"
    if said["importedTraffic"] not in {"", OTHERS} and not said["clusterID"]:
        yield "importedTraffic", "needs clusterID: without it no cluster is this one"
    devices = ("bridge", "hostPort", "wireGuard.deviceName")
    for first, second in (("routeTable", "replyTable"), *combinations(devices, 2)):
        if said[first] == said[second]:
            yield second, f"must differ from {first}: both are {said[first]}"
    if said["trafficEncryptionMode"] is not TrafficEncryption.NONE:
        port = said["tunnelPort"] or DEFAULT_PORTS[said["tunnelType"]]
        if port == said["wireGuard.port"]:
            yield "wireGuard.port", f"must differ from the tunnels' port: both are {port}"
        if said["datapath"] is DatapathChoice.NETDEV:
            why = "bypasses WireGuard: only the kernel's can be encrypted"
            yield "datapath", f"the userspace datapath (netdev) {why}"
    for path in devices:
        if said[path].startswith(("mcn-", "mcg-", "mcr-")):
            yield path, f'"{said[path]}" has a prefix of our tunnel ports (mcn-, mcg-, mcr-): choose another'
    if not said["nodeName"]:
        yield "nodeName", "must not be empty: the name of this Node object"
    for path in ("listen", "healthListen"):
        if said[path] != "0" and (wrong := listen_problem(said[path])):
            yield path, wrong
