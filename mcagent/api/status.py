"""The page /status of an agent, which `mcagent status`, `gateways`, `wireguard`, `top`, `trace` and `doctor` read.

Addresses and networks are text. Times are RFC 3339 text in UTC, unless a comment names seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import field

from mcagent.api.codec import VERSION, CamelRecord, Record


class ReadinessCheck(Record, frozen=True):
    """A condition of readiness."""

    name: str = ""
    good: bool = False
    text: str = ""


class LocalGatewayStatus(Record, frozen=True):
    """A gateway of this cluster. `source`: the source address of connections that it translates."""

    node: str = ""
    gateway_ip: str = ""
    internal_ip: str = ""
    source: str = ""
    service_cidr: str | None = None
    place: int = 0
    standby: str = ""


class ClusterStatus(Record, frozen=True):
    """The accepted values of another cluster. `gateways`: their gatewayIPs.

    `mapped`: the source of connections that one of them translates, and the address that servers here see instead.
    """

    cluster_id: str = ""
    cidrs: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()
    snat: bool = False
    sources: tuple[str, ...] = ()
    direct: tuple[str, ...] = ()
    antrea: bool = False
    mapped: tuple[tuple[str, str], ...] = ()


class HealthProblem(Record, frozen=True):
    """What is wrong with the ways from this Node to other clusters."""

    reason: str = ""
    message: str = ""
    error: bool = True


class Summary(CamelRecord, frozen=True):
    """The Node's state. `role` "": before the first pass. `virtual_pod_cidrs`: in other clusters, by Pod CIDR."""

    role: str = ""
    why: str = ""
    gateways: tuple[LocalGatewayStatus, ...] = ()
    tunnels: int = 0
    clusters: dict[str, ClusterStatus] = {}
    cluster_ids: dict[str, int] = field(name="clusterIDs", default={})
    services: int = 0
    published_pod_cidrs: tuple[str, ...] = field(name="publishedPodCIDRs", default=())
    virtual_pod_cidrs: dict[str, str] = field(name="virtualPodCIDRs", default={})
    unreachable: tuple[str, ...] = ()

    @property
    def antrea_clusters(self) -> list[str]:
        """The IDs of the clusters whose gateways run Antrea, sorted."""
        return sorted(name for name, cluster in self.clusters.items() if cluster.antrea)


class TunnelStatus(CamelRecord, frozen=True):
    """A desired tunnel. `peer_kind`: remote, gateway or node.

    `up` is None if it does not exist, or if tunnels could not be read; these count as existing.
    """

    name: str = ""
    type: str = ""
    remote_ip: str = field(name="remoteIP", default="")
    peer_kind: str = ""
    peer: str = ""  # a cluster ID if `peer_kind` is remote, else a Node
    ofport: int = 0
    exists: bool = False
    up: bool | None = None
    statistics: dict[str, int] = {}

    @property
    def remote(self) -> bool:
        """Whether it leads to another cluster."""
        return self.peer_kind == "remote"


class ExportStatus(Record, frozen=True):
    """An exported Service. `hash` (CRC-32) is equal on gateways with the same endpoints."""

    endpoints: int = 0
    hash: int = 0
    connections: int = 0


class EncryptedPeer(CamelRecord, frozen=True):
    """The encryption to a peer. `state`: established, never, stale, missing, unknown, clear, unneeded.

    A peer is a gateway of another cluster, or a Node of this one (`node`; `cluster` is then "").
    """

    cluster: str = ""
    node: str = ""
    gateway: str = ""  # the peer's address
    tunnel_endpoint: str = ""
    public_key: str = ""
    next_public_key: str = ""
    port: int = 0  # UDP
    state: str = ""
    text: str = ""
    causes: tuple[str, ...] = ()  # likely ones, the most certain first
    handshake_age: float | None = None  # seconds; of several sessions the oldest one's
    devices: int = 1  # WireGuard devices that both Nodes have
    sessions: int = 0  # those on which the peer has a session
    endpoint: str = ""
    received: int = 0  # bytes
    sent: int = 0

    @property
    def lacks_sessions(self) -> bool:
        """Whether the peer is reached, but by fewer devices than both Nodes have."""
        return self.state == "established" and self.devices > max(1, self.sessions)


class EncryptionRefusal(Record, frozen=True):
    """An object or value that encryption excludes."""

    subject: str = ""
    path: str = ""
    reason: str = ""
    message: str = ""


class EncryptionStatus(CamelRecord, frozen=True):
    """Encryption between clusters. `mode`: none, wireGuard, or unknown before the first pass.

    `node_mode`, between the Nodes of this cluster: none, preferred, required. On a worker, `published` and
    `published_next_key` are those of the Node object.
    """

    mode: str = "unknown"
    node_mode: str = "none"
    fallback: str = ""
    implementation: str = ""
    device: str = ""  # the first one
    devices: tuple[str, ...] = ()
    public_key: str = ""
    next_public_key: str = ""
    key_age: float | None = None  # seconds
    published: bool = False
    published_next_key: str = ""
    restarts: int = 0  # of wireguard-go
    peers: tuple[EncryptedPeer, ...] = ()
    not_used: tuple[EncryptionRefusal, ...] = ()


class DrainStatus(CamelRecord, frozen=True):
    """The Node's drain. `phase` is "" if unknown."""

    phase: str = ""
    tells: str = ""
    why: str = ""
    refused: str = ""
    clean: bool = True
    since: str | None = None


class TranslatedConnections(CamelRecord, frozen=True):
    """The page /connections. `translated`: open TCP connections whose source this gateway translates."""

    api_version: str = field(name="apiVersion", default=VERSION)
    translated: int = 0


class DrainReport(CamelRecord, frozen=True):
    """The output of `mcagent drain -o json`.

    `translated`: open TCP connections that the gateway translated at the start; `ended`: those still open when the
    drain began, which end with it; None: not counted. `clean`: no packet arrived at the end; None: not waited for.
    `error`: why connections were not counted, or why the Node is not drained.
    """

    api_version: str = field(name="apiVersion", default=VERSION)
    node: str = ""
    translated: int | None = None
    ended: int | None = None
    error: str = ""
    drained: bool = False
    clean: bool | None = None


class GatewayTransition(CamelRecord, frozen=True):
    """A change of a gateway's liveness."""

    at: str = ""
    live: bool = False
    decided_by: str = ""
    why: str = ""


class Probes(CamelRecord, frozen=True):
    """The results of a tunnel's probes. None: not measured."""

    answers: bool = False
    round_trip_seconds: float | None = None
    loss_ratio: float | None = None
    of: int = 0
    full_size_passes: bool | None = None
    full_size_bytes: int = 0


class GatewayStatus(CamelRecord, frozen=True):
    """A gateway from this Node. `tunnel` is "" for the Node itself.

    `share`: of the packets that were sent to the gateways of its cluster in the last 10 to 20 seconds, 0 to 1.
    `detection_seconds`: BFD's detection time by this Node's settings; None: without BFD.
    """

    name: str = ""
    address: str = ""
    encrypted: bool = False
    tunnel: str = ""
    live: bool = False
    active: bool = False
    decided_by: str = ""
    why: str = ""
    since: str | None = None
    bfd: str = ""
    detection_seconds: float | None = None
    damped: bool = False
    gone: bool = False
    flaps: int = 0
    packets_sent: int = 0
    packets_received: int = 0
    share: float | None = None
    transitions: tuple[GatewayTransition, ...] = ()
    probes: Probes | None = None


class GatewayGroup(CamelRecord, frozen=True):
    """The gateways of a cluster; `cluster` is "" for this one (`own`)."""

    cluster: str = ""
    own: bool = False
    gateways: tuple[GatewayStatus, ...] = ()


class ProblemStatus(Record, frozen=True):
    """A problem of the input: a value that is not used, or not as written. `severity`: error or warning."""

    subject: str = ""
    path: str = ""
    reason: str = ""
    message: str = ""
    severity: str = "error"


class InformerStatus(Record, frozen=True):
    """The source of one kind of objects. `last_event`: seconds since the epoch."""

    kind: str = ""
    synced: bool = False
    connected: bool = False
    objects: int = 0
    lists: int = 0
    events: int = 0
    restarts: dict[str, int] = {}
    last_event: float = 0.0
    error: str = ""


class BackendStatus(Record, frozen=True):
    """A backend. `synced`: it is known to equal the desired state; `failures`: in a row."""

    name: str = ""
    synced: bool = False
    failures: int = 0
    retry_at: str | None = None
    errors: tuple[str, ...] = ()


class PassStatus(Record, frozen=True):
    """A pass of the loop. `changes` counts by "backend kind op"; `steps` is a truncated list of texts."""

    at: str = ""
    trigger: str = ""
    result: str = ""  # unchanged, changed, failed, waiting
    phases: dict[str, float] = {}  # seconds
    changes: dict[str, int] = {}
    steps: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    drift: str = ""  # changes made outside of the agent that the pass reverted
    contended: tuple[str, ...] = ()  # resources left alone, because another program keeps changing them


class Status(CamelRecord, frozen=True):
    """The whole page. `encryption` is None for agents that do not report it."""

    api_version: str = VERSION
    version: str = ""
    node: str = ""
    cluster_id: str = field(name="clusterID", default="")
    source: str = ""
    started_at: str = ""
    ready: bool = False
    alive: bool = False
    checks: tuple[ReadinessCheck, ...] = ()
    summary: Summary = Summary()
    health: tuple[HealthProblem, ...] = ()  # the most serious first
    tunnels: tuple[TunnelStatus, ...] = ()
    exports: dict[str, ExportStatus] = {}
    nft_drops: dict[str, int] = {}
    encryption: EncryptionStatus | None = None
    drain: DrainStatus = DrainStatus()
    gateways: tuple[GatewayGroup, ...] = ()
    problems: tuple[ProblemStatus, ...] = ()  # truncated
    problem_count: int = 0
    resources: dict[str, int] = {}
    informers: tuple[InformerStatus, ...] = ()
    backends: tuple[BackendStatus, ...] = ()
    passes: int = 0
    drift_corrections: int = 0
    last_pass: PassStatus | None = None
    last_change: PassStatus | None = None

    @property
    def gateways_by_tunnel(self) -> Mapping[str, GatewayStatus]:
        """The gateways with a tunnel, by the tunnel's name."""
        return {gateway.tunnel: gateway for gateway in self._gateways() if gateway.tunnel}

    def _gateways(self) -> Iterator[GatewayStatus]:
        for group in self.gateways:
            yield from group.gateways
