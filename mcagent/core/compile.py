"""Desired state of one Node's dataplane from what the API, the Node and the configuration say.

Pure, total, deterministic. Puts together what the other modules of `core` decide, and hands each what it may reuse
of the last call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flows import pipeline
from mcagent.core.addresses.underlay import source_of
from mcagent.core.fragments.build import Fragments, Shared, build_fragments
from mcagent.core.fragments.path_state import PathState
from mcagent.core.fragments.tunnels import Tunnels, names_of, tunnels_of
from mcagent.core.ids import SPANS, assign_ids, assign_ofports
from mcagent.core.local_cluster.topology import SERVICE_NEEDS
from mcagent.core.topology import Topology, build_topology, serves
from mcagent.core.wireguard.resources import also_known_by, encryption_state
from mcagent.model.config import Config
from mcagent.model.facts import DatapathType, Facts
from mcagent.model.node_state import EncryptionState, NodeState, Role
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.plan import Desired


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The desired state, and what the next call reuses of it.

    `needs` are the kinds that this Node's state follows from: before all of them are in `Snapshot.synced`,
    something may be missing from `desired`.
    """

    desired: Desired
    needs: frozenset[Kind]
    topology: Topology = field(repr=False)
    tunnels: Tunnels = field(repr=False)
    ofports: Mapping[str, int] = field(repr=False)
    in_use: Mapping[str, int] = field(repr=False)
    fragments: Fragments = field(repr=False)

    @property
    def state(self) -> NodeState:
        """What this Node is."""
        return self.desired.state


class Compiler:
    """Compiles again and again; what did not change since the last call is not computed again.

    The result is that of `compile_desired`, always. What raises leaves nothing behind: the next call starts from
    scratch. One thread.
    """

    def __init__(self) -> None:
        self._last: Compiled | None = None

    def compile(self, snapshot: Snapshot, facts: Facts, config: Config) -> Compiled:
        """Return what should be on this Node. Unchanged fragments are the last call's very objects."""
        last, self._last = self._last, None
        self._last = _compile(snapshot, facts, config, last)
        return self._last


def compile_desired(snapshot: Snapshot, facts: Facts, config: Config) -> Compiled:
    """Return what should be on this Node, from scratch."""
    return Compiler().compile(snapshot, facts, config)


def _compile(snapshot: Snapshot, facts: Facts, config: Config, previous: Compiled | None) -> Compiled:
    """Return what should be on this Node. `previous` is any earlier result: it saves work, never changes it."""
    if previous is not None and previous.fragments.shared.config != config:
        previous = None
    topology = build_topology(snapshot, facts, config, previous.topology if previous else None)
    tunnels = tunnels_of(topology, config, previous.tunnels if previous else {})
    ofports = _ofports(tunnels, facts, previous)
    shared = Shared(
        config=config,
        env=_environment(topology, tunnels, ofports, facts, config),
        source=topology.source,
    )
    numbers = _numbers(topology, previous.fragments.numbers if previous is not None else {})
    fragments = build_fragments(
        topology=topology,
        facts=facts,
        shared=shared,
        tunnels=tunnels,
        paths=PathState.of(topology.local, facts, config, ofports),
        numbers=numbers,
        previous=previous.fragments if previous is not None else None,
    )
    return Compiled(
        desired=Desired(
            fragments=fragments.by_name,
            problems=topology.problems,
            state=_state(topology, tunnels, numbers, encryption_state(snapshot, topology, facts, config)),
        ),
        needs=topology.local.needs | (SERVICE_NEEDS if serves(topology.local, facts) else frozenset()),
        topology=topology,
        tunnels=tunnels,
        ofports=ofports,
        in_use=facts.ofports,
        fragments=fragments,
    )


def _ofports(tunnels: Tunnels, facts: Facts, previous: Compiled | None) -> Mapping[str, int]:
    if previous is not None and (previous.in_use is facts.ofports or previous.in_use == facts.ofports):
        if previous.tunnels is tunnels:
            return previous.ofports
        names = names_of(tunnels)
        if previous.ofports.keys() == set(names):
            return previous.ofports
        return assign_ofports(names, facts.ofports)
    return assign_ofports(names_of(tunnels), facts.ofports)


def _numbers(topology: Topology, known: Mapping[str, Mapping[str, int]]) -> Mapping[str, Mapping[str, int]]:
    wanted = {
        "cluster": topology.remotes.clusters.keys(),
        "meter": topology.remotes.clusters.keys(),
        "node": {peer.name for peer in (*topology.local.peers, topology.local.own) if peer is not None},
        "service": topology.services.ports.keys(),
    }
    return {
        kind: known[kind] if kind in known and known[kind].keys() == names else assign_ids(names, SPANS[kind])
        for kind, names in wanted.items()
    }


def _environment(
    topology: Topology,
    tunnels: Tunnels,
    ofports: Mapping[str, int],
    facts: Facts,
    config: Config,
) -> pipeline.Env | None:
    local = topology.local
    if not local.role:
        return None
    gateways = (f"node/{peer.name}" for peer in local.peers if peer.gateway)
    base, own = config.ct_zone_base, local.own_gateway_ip
    return pipeline.Env(
        gateway=local.role == "gateway",
        zones=pipeline.Zones(arrival=base, service=base + 1, snat=base + 2),
        local_gateways=tuple(
            sorted(ofports[tunnel.name] for owner in gateways if owner in tunnels for tunnel in tunnels[owner][1])
        ),
        own_gateway_ips=() if own is None else (source_of(own), *also_known_by(topology)),
        service_cidrs=local.service_cidrs,
        published_pods=local.published_pods,
        client_ports_move=facts.datapath is DatapathType.NETDEV,
    )


def _state(
    topology: Topology, tunnels: Tunnels, ids: Mapping[str, Mapping[str, int]], encryption: EncryptionState
) -> NodeState:
    local = topology.local
    return NodeState(
        role=Role(local.role or Role.NONE),
        why=local.why,
        gateways=local.gateways,
        tunnels=sum(len(found) for _, found in tunnels.values()),
        clusters=topology.remotes.clusters,
        cluster_ids=ids["cluster"],
        services=topology.services.ports,
        service_ids=ids["service"],
        published_pods=local.published_pods,
        encryption=encryption,
    )
