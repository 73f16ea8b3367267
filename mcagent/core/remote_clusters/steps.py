"""The steps of the walk (`mcagent.core.walk`) from the clusters that are accepted to how their gateways are used.

Decides nothing: each step is a function of another module, and a cell of the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mcagent.core import wireguard
from mcagent.core.addresses.rules import Taken
from mcagent.core.addresses.underlay import endpoint_of
from mcagent.core.engine import Engine, joined
from mcagent.core.fragments import path_state
from mcagent.core.fragments.path_state import PathState, Tunnel
from mcagent.core.local_cluster.nodes import CheckedNode
from mcagent.core.local_cluster.topology import LocalCluster
from mcagent.core.remote_clusters.implementation import first_gateway, judged
from mcagent.core.remote_clusters.settle import CheckedCluster, RemoteClusters
from mcagent.model.config import Config
from mcagent.model.facts import Facts
from mcagent.model.node_state import AcceptedCluster, LocalGateway
from mcagent.model.problem import Problem, all_problems

Both = Mapping[str, tuple[AcceptedCluster, CheckedCluster]]


def encryption(
    engine: Engine,
    clusters: RemoteClusters,
    both: Both,
    local: LocalCluster,
    own: LocalGateway | None,
    *,
    facts: Facts,
    config: Config,
) -> wireguard.Encryption:
    """Return which gateways are encrypted to. `own`: this Node, where it encrypts.

    `facts`: those of `wireguard.facts_of`.
    """
    if own is None:
        return wireguard.Encryption()
    end = endpoint_of(own.gateway_ip)
    ours = (own.gateway_ip, own.service_cidr)
    wants = engine.each("wanted keys and ends", wireguard.wants_of, both, *ours, config)
    keys = (facts.wireguard_public_key, facts.wireguard_next_key, end)
    lost = engine.cell("lost keys and ends", wireguard.lost_claims, wants, clusters.accepted, keys)
    taken = engine.cell("taken of ends", Taken, local.taken)
    known = engine.cell("clusters and what they want", joined, clusters.checked, wants, lost)
    found = engine.each("ends of gateways", wireguard.ends_of, known, taken, facts, config)
    return engine.cell("encryption", wireguard.encryption, found, end, facts, config)


def used(
    engine: Engine, clusters: RemoteClusters, tunnels: Mapping[str, tuple[Tunnel, ...]], unanswered: frozenset[str]
) -> Mapping[str, AcceptedCluster]:
    """Return the clusters as they are used, by what runs on their gateways."""
    known = engine.cell("clusters and tunnels", joined, clusters.accepted, clusters.checked, tunnels)
    return engine.each("judged clusters", judged, known, unanswered)


def to_first(gateways: Iterable[LocalGateway], paths: Mapping[str, tuple[PathState, ...]]) -> int | None:
    """Return the port of the tunnel to this cluster's first gateway; None where that is this Node."""
    return next((path.ofport for path in paths.get(first_gateway(gateways), ())), None)


def speaking(
    tunnels: Mapping[str, tuple[Tunnel, ...]], clusters: Mapping[str, AcceptedCluster], to_first: int | None
) -> Mapping[str, tuple[Tunnel, ...]]:
    """Return the tunnels by which something must come: Antrea's gateways send to the first gateway only."""
    return {name: found for name, found in tunnels.items() if to_first is None or not clusters[name].antrea}


def unreached(
    engine: Engine,
    peers: Mapping[str, Mapping[str, tuple[tuple[Tunnel, ...], CheckedNode | CheckedCluster]]],
    facts: Facts,
    config: Config,
) -> tuple[Problem, ...]:
    """Return the problems of peers, by what they are ("Nodes"), from which too little comes."""
    found: tuple[Problem, ...] = ()
    said = (facts.silent, facts.narrow, facts.datapath, config)
    for kind, those in peers.items():
        each = engine.each(f"unreached {kind}", path_state.problems, those, *said)
        found += engine.cell(f"problems of unreached {kind}", all_problems, each)
    return found
