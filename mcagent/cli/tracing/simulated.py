"""Nodes that cannot be asked, as their cluster's API server has them: compiled, and walked by the simulator.

Owns which cluster's objects are read, with which configuration, and what is assumed where nobody looks. Pages are
those of an agent (/status, /trace). Reads a cluster once, and only when one of its Nodes is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from mcagent.agent.config import load
from mcagent.agent.dry_run import read_once, relist
from mcagent.cli.common.agent_config import ANY_NODE, read_config_map
from mcagent.cli.common.antrea import antrea_clusters
from mcagent.cli.tracing.peers import Page, lost_tunnels
from mcagent.core.compile import compile_desired
from mcagent.core.failover.liveness import LivenessCause, PeerLiveness
from mcagent.core.failover.observations import group_of
from mcagent.core.plan.render import state_json
from mcagent.core.simulated_trace import SimulatedNode, simulate
from mcagent.core.trace import Probe
from mcagent.core.trace_names import page_of
from mcagent.core.whatif.assumptions import facts_unseen
from mcagent.kube.client import Client
from mcagent.model import links
from mcagent.model.config import Config, DatapathChoice, GatewayMode
from mcagent.model.errors import McagentError, SourceError
from mcagent.model.node_state import LocalGateway, Role
from mcagent.model.objects import Kind, Snapshot
from mcagent.observe.gateways import LiveReport, gateways_of
from mcagent.observe.pages import tunnel_json
from mcagent.observe.wireguard import ends_of, summary_of

_DEFAULTS = "the default configuration, without enablePodToPodConnectivity and encryption"


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """A Node that cannot be asked. `status` is as its page /status, as far as it can be computed."""

    node: str
    status: Page
    assumed: tuple[str, ...]
    made: SimulatedNode
    config: Config
    lost: Mapping[str, Page]

    def page(self, probe: Probe) -> Page:
        """Return what its page /trace should say of a packet."""
        walk = self.made.trace(probe, self.lost)
        page = page_of(walk, probe, self.made.desired, self.config)
        return page if self.config.mtu else {**page, "mtu": 0}  # what the uplink allows is not known


class ClusterObjects:
    """What one API server says. `config`: the file with the agents' configuration, "" for their ConfigMap."""

    def __init__(self, client: Client, config: str = "") -> None:
        self._client, self._file = client, config
        self._snapshot = Snapshot()

    @cached_property
    def _config(self) -> tuple[Config, str]:
        """The agents' configuration, and what there is to say of it."""
        if self._file:
            return load(Path(self._file), ANY_NODE, {}).core, f"the configuration in {self._file}"
        try:
            found, why = read_config_map(self._client), "there is no ConfigMap of its agents"
        except SourceError as error:
            found, why = None, f"the ConfigMap of its agents cannot be read: {error}"
        if found is None:
            return Config(node_name="any"), f"{_DEFAULTS} ({why}; --config and --remote-config name a file)"
        return found[0].core, f"the configuration in {found[1]}"

    @property
    def cluster_id(self) -> str:
        """The cluster's ID, "" if its configuration does not say it."""
        return self._config[0].cluster_id

    def stand_in(self, cluster: str, who: str, asked: Mapping[str, Page]) -> StandIn:
        """Return a Node, by its name or an address that it has as a gateway. Raises McagentError."""
        config, said = self._config
        config = replace(config, cluster_id=cluster)
        config = replace(config, node_name=self._named(config, who))
        self._snapshot = read_once(self._client, config, facts_unseen(config), self._snapshot)
        return make_stand_in(self._snapshot, config, asked, self._dead_links(config), said)

    def _named(self, config: Config, who: str) -> str:
        facts = facts_unseen(config)
        self._snapshot = read_once(self._client, config, facts, self._snapshot)
        if who in self._snapshot.nodes:
            return who
        gateways = compile_desired(self._snapshot, facts, config).state.gateways
        found = next((one.node for one in gateways if who in _addresses(one)), None)
        if found is None:
            raise McagentError(f"the API server of cluster {config.cluster_id} has no Node or Gateway {who}")
        return found

    def _dead_links(self, config: Config) -> dict[str, str]:
        """Return the clusters that the Node, by its Gateway's status, reaches by none of its tunnels, and why."""
        found = (
            one for one in relist(self._client, Kind.GATEWAY, config.namespace).items if isinstance(one, dict)
        )
        told = [one.get("status") for one in found if one["metadata"]["name"] == config.node_name]
        read = (link for status in told if isinstance(status, dict) for link in links.read(status.get("links")))
        return {
            one.cluster: f"its Gateway says: {one.why or 'no tunnel is live'}"
            for one in read
            if one.tunnels and not one.live
        }


class Clusters:
    """The clusters whose API servers can be read: that of the first Node, and the other one. None: cannot be."""

    def __init__(self, own: ClusterObjects | None, other: ClusterObjects | None, own_id: str = "") -> None:
        self._own, self._other, self._own_id = own, other, own_id

    def stand_in(self, cluster: str, who: str, asked: Mapping[str, Page]) -> StandIn | None:
        """Return a Node of a cluster ("": that of the first Node), None where nothing of this can be read.

        Raises McagentError.
        """
        own_id = self._own_id or (self._own.cluster_id if self._own is not None else "")
        if cluster in ("", own_id):
            if self._own is None:
                return None
            if not own_id:
                raise McagentError("the ID of its cluster is not known: give --config, or the right to ConfigMaps")
            return self._own.stand_in(own_id, who, asked)
        if self._other is None:
            return None
        if self._other.cluster_id not in ("", cluster):
            raise McagentError(f"the remote context leads to cluster {self._other.cluster_id}, not to {cluster}")
        return self._other.stand_in(cluster, who, asked)


def make_stand_in(
    snapshot: Snapshot, config: Config, asked: Mapping[str, Page], dead_links: Mapping[str, str], said: str
) -> StandIn:
    """Return the Node `config.node_name`; `said`: where its configuration is from.

    Of a Node that has told its status, but not what it does with a packet, the status counts.
    """
    node, facts = config.node_name, facts_unseen(config)
    own = asked.get(node)
    if own is not None and own["clusterID"] != config.cluster_id:
        own = None  # a Node of that name in the other cluster
    if own is not None:
        numbers = {one["name"]: one["ofport"] for one in own["tunnels"]}
        facts = replace(facts, ofports=numbers, bfd_seen=frozenset(numbers))
    here = [page for page in asked.values() if page["clusterID"] == config.cluster_id]
    facts = replace(facts, bfd_unanswered=frozenset(_to_antrea(here)))
    made = simulate(snapshot, facts, config)
    lost = lost_tunnels(node, own or _status(made, config, {}), asked, dead_links)
    return StandIn(
        node=node,
        status=own or _status(made, config, lost),
        assumed=(said, *_assumed(config, asked_before=own is not None)),
        made=made,
        config=config,
        lost=lost,
    )


def _to_antrea(asked: Iterable[Page]) -> Iterator[str]:
    """Yield the tunnels to gateways that run Antrea; they have the same names on all gateways of a cluster."""
    for page in asked:
        names = antrea_clusters(page["summary"])
        yield from (one["name"] for one in page["tunnels"] if one["peer"] in names)


def _addresses(gateway: LocalGateway) -> set[str]:
    return {str(gateway.gateway_ip), str(gateway.source)}


def _status(made: SimulatedNode, config: Config, lost: Mapping[str, Page]) -> Page:
    """Return the parts of /status that a way needs."""
    state, ports = made.desired.state, {port.name: port for port in made.tunnels}
    peers = {
        name: PeerLiveness(
            port=name,
            group=group_of(port),
            live=name not in lost,
            cause=LivenessCause.BFD,
            text=lost[name]["why"] if name in lost else "assumed to be up",
            since=0.0,
        )
        for name, port in ports.items()
    }
    gateways = gateways_of(
        LiveReport(peers=peers, ports=ports),
        {},
        own_gateway=config.node_name if state.role is Role.GATEWAY else "",
        ends=ends_of(summary_of(made.desired)),
    )
    return {
        "node": config.node_name,
        "clusterID": config.cluster_id,
        "summary": state_json(state),
        "tunnels": [tunnel_json(port) for port in ports.values()],
        "gateways": [{**group, "gateways": [*_since(group["gateways"], lost)]} for group in gateways],
    }


def _since(gateways: object, lost: Mapping[str, Page]) -> Iterator[Page]:
    """Yield the gateways with the time that others say, for nobody has looked here."""
    assert isinstance(gateways, list)
    for one in gateways:
        yield {**one, "since": lost[one["tunnel"]]["since"] if one["tunnel"] in lost else ""}


def _assumed(config: Config, *, asked_before: bool) -> Iterator[str]:
    """Yield what nobody knows of a Node that was not asked."""
    if not asked_before:
        yield "tunnels that are up, unless its Gateway or somebody who was asked says otherwise"
        yield "the port numbers that follow from the tunnels' names"
    if config.datapath is DatapathChoice.AUTO:
        yield "Open vSwitch in the kernel"
    if config.encrypts:
        yield "a WireGuard that works, with the key that its Gateway has"
    if config.gateways is GatewayMode.ACTIVE_STANDBY and not config.failback:
        yield "the API's order of gateways"
    yield "a conntrack that knows the connection when its answer comes, and not before"
    if config.datapath is DatapathChoice.NETDEV:
        yield "one of many ports for a translated source"
