"""Nodes that cannot be asked, simulated from the objects of their cluster's API server.

Owns the choice of cluster and configuration, and the assumptions about what is not observed. Reads a cluster once,
and only when one of its Nodes is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

from msgspec import structs

from mcagent.api.status import GatewayGroup, GatewayStatus, Status
from mcagent.api.trace import NodeTrace
from mcagent.core.compile import compile_desired
from mcagent.core.failover.liveness import LivenessCause, PeerLiveness
from mcagent.core.failover.observations import group_of
from mcagent.core.plan.render import node_summary
from mcagent.kube.client import Client
from mcagent.kube.sources.once import read_once, relist
from mcagent.model.api.multicluster import ApiGateway
from mcagent.model.config import Config, DatapathChoice, GatewayMode, UnverifiedLabels
from mcagent.model.errors import McagentError
from mcagent.model.node_state import LocalGateway, NodeRole
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.parsing import links
from mcagent.observe.gateways import LiveReport, gateways_of
from mcagent.observe.pages import tunnel_status
from mcagent.observe.wireguard import ends_of, summary_of
from mcagent.trace.path import HopTracer
from mcagent.trace.probe import Probe
from mcagent.trace.simulator import SimulatedNode, simulate, with_assumed_wireguard
from mcagent.trace.topology import Statuses, lost_tunnels
from mcagent.trace.whatif.assumptions import facts_unseen


class ClusterObjects:
    """The objects of one API server. `read_config` returns the agents' configuration and its origin."""

    def __init__(self, client: Client, read_config: Callable[[], tuple[Config, str]]) -> None:
        self._client, self._read_config = client, read_config
        self._snapshot = Snapshot()

    @cached_property
    def _config(self) -> tuple[Config, str]:
        return self._read_config()

    @property
    def cluster_id(self) -> str:
        """The cluster's ID in its configuration, or ""."""
        return self._config[0].cluster_id

    def simulate(self, cluster: str, peer: str, statuses: Statuses) -> HopTracer:
        """Simulate a Node; `peer`: its name, or its address as a gateway. Raises McagentError."""
        config, origin = self._config
        config = replace(config, cluster_id=cluster)
        config = replace(config, node_name=self._node_of(config, peer))
        self._read(config)
        return make_tracer(self._snapshot, config, statuses, self._dead_links(config), origin)

    def _read(self, config: Config) -> None:
        self._snapshot = read_once(self._client, config, facts_unseen(config), self._snapshot)

    def _node_of(self, config: Config, peer: str) -> str:
        self._read(config)
        if peer in self._snapshot.nodes:
            return peer
        gateways = compile_desired(self._snapshot, facts_unseen(config), config).state.gateways
        node = next((gateway.node for gateway in gateways if peer in _addresses(gateway)), None)
        if node is None:
            raise McagentError(f"the API server of cluster {config.cluster_id} has no Node or Gateway {peer}")
        return node

    def _dead_links(self, config: Config) -> dict[str, str]:
        """Return the clusters without a live tunnel in the status of the Node's Gateway, with reasons."""
        gateways = relist(self._client, Kind.GATEWAY, config.namespace).items
        return {
            link.cluster: f"its Gateway says: {link.why or 'no tunnel is live'}"
            for gateway in gateways
            if isinstance(gateway, ApiGateway) and gateway.name == config.node_name
            for link in links.read(gateway.status.links)
            if link.tunnels and not link.live
        }


class Clusters:
    """The clusters of the first Node and of the remote context; None: its API server cannot be read."""

    def __init__(self, own: ClusterObjects | None, other: ClusterObjects | None, own_id: str = "") -> None:
        self._own, self._other, self._own_id = own, other, own_id

    def simulate(self, cluster: str, peer: str, statuses: Statuses) -> HopTracer | None:
        """Simulate a Node of a cluster ("": the first Node's); None: it cannot be read. Raises McagentError."""
        own_id = self._own_id or (self._own.cluster_id if self._own is not None else "")
        if cluster in ("", own_id):
            if self._own is None:
                return None
            if not own_id:
                raise McagentError(
                    "the ID of its cluster is not known: give --agents, --config, or the right to ConfigMaps"
                )
            return self._own.simulate(own_id, peer, statuses)
        if self._other is None:
            return None
        if self._other.cluster_id not in ("", cluster):
            raise McagentError(f"the remote context leads to cluster {self._other.cluster_id}, not to {cluster}")
        return self._other.simulate(cluster, peer, statuses)


def make_tracer(
    snapshot: Snapshot, config: Config, statuses: Statuses, dead_links: Mapping[str, str], origin: str
) -> HopTracer:
    """Simulate the Node `config.node_name`; `origin`: of its configuration.

    If its agent has answered with /status but not with a trace, that status is used.
    """
    node, facts = config.node_name, facts_unseen(config)
    own = statuses.get(node)
    if own is not None and own.cluster_id != config.cluster_id:
        own = None  # a Node of that name in the other cluster
    if own is not None:
        numbers = {tunnel.name: tunnel.ofport for tunnel in own.tunnels}
        facts = replace(facts, ofports=numbers, bfd_seen=frozenset(numbers))
    same_cluster = [status for status in statuses.values() if status.cluster_id == config.cluster_id]
    facts = replace(facts, bfd_unanswered=frozenset(_to_antrea(same_cluster)))
    simulated = simulate(snapshot, with_assumed_wireguard(snapshot, facts, config), config)
    lost_gateways = lost_tunnels(node, own or _status(simulated, {}), statuses, dead_links)

    def trace(probe: Probe) -> NodeTrace:
        hop = simulated.trace(probe, lost_gateways)
        return hop if config.mtu else structs.replace(hop, mtu=0)  # the uplink's MTU is not known

    return HopTracer(
        node=node,
        status=own or _status(simulated, lost_gateways),
        trace=trace,
        assumed=(origin, *_assumptions(config, status_known=own is not None)),
    )


def _to_antrea(statuses: Iterable[Status]) -> Iterator[str]:
    """Yield the tunnels to gateways that run Antrea; they have the same names on all gateways of a cluster."""
    for status in statuses:
        clusters = status.summary.antrea_clusters
        yield from (tunnel.name for tunnel in status.tunnels if tunnel.peer in clusters)


def _addresses(gateway: LocalGateway) -> set[str]:
    return {str(gateway.gateway_ip), str(gateway.source)}


def _status(simulated: SimulatedNode, lost: Mapping[str, GatewayStatus]) -> Status:
    """Return the parts of /status that a path needs."""
    state, config = simulated.desired.state, simulated.config
    peers = {
        name: PeerLiveness(
            port=name,
            group=group_of(port),
            live=name not in lost,
            cause=LivenessCause.BFD,
            text=lost[name].why if name in lost else "assumed to be up",
            since=0.0,
        )
        for name, port in simulated.tunnels.items()
    }
    groups = gateways_of(
        LiveReport(peers=peers, ports=simulated.tunnels),
        {},
        own_gateway=config.node_name if state.role is NodeRole.GATEWAY else "",
        ends=ends_of(summary_of(simulated.desired)),
    )
    return Status(
        node=config.node_name,
        cluster_id=config.cluster_id,
        summary=node_summary(state),
        tunnels=tuple(tunnel_status(port, None) for port in simulated.tunnels.values()),
        gateways=tuple(_with_known_times(group, lost) for group in groups),
    )


def _with_known_times(group: GatewayGroup, lost: Mapping[str, GatewayStatus]) -> GatewayGroup:
    """Return the gateways with the times of other Nodes' reports: this Node was not observed."""
    gateways = (
        structs.replace(gateway, since=lost[gateway.tunnel].since if gateway.tunnel in lost else "")
        for gateway in group.gateways
    )
    return structs.replace(group, gateways=tuple(gateways))


def _assumptions(config: Config, *, status_known: bool) -> Iterator[str]:
    """Yield the assumptions about a Node that was not asked."""
    if not status_known:
        yield "tunnels that are up, unless its Gateway or an agent that was asked says otherwise"
        yield "the port numbers that follow from the tunnels' names"
    if config.datapath is DatapathChoice.AUTO:
        yield "Open vSwitch in the kernel"
    if config.encrypts:
        yield "a WireGuard that works, with the key that its Gateway has"
    if config.stretched_network_policy and config.unverified_labels is UnverifiedLabels.WITHHOLD:
        yield "verified sources of Pods, so that it sends their label identities (unverifiedLabels: withhold)"
    if config.gateways is GatewayMode.ACTIVE_STANDBY and not config.failback:
        yield "the API's order of gateways"
    yield "a conntrack that knows the connection when its answer comes, and not before"
    if config.datapath is DatapathChoice.NETDEV:
        yield "one of many ports for a translated source"
