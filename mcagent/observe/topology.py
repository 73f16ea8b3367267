"""What the page draws, as values: clusters, the links between them, what changed, what is wrong. And a Node's own.

The leader's is `mcagent.controller.leader.topology`. Everything is bounded, since a browser has to draw it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from mcagent.core.failover.liveness import Peer
from mcagent.core.tunnel_probes import Probed
from mcagent.model.field import printable
from mcagent.model.links import Link
from mcagent.model.node_state import NodeState, Role
from mcagent.model.problem import Problem, Severity
from mcagent.model.resources import PeerKind, PortStatistics
from mcagent.observe.cluster_links import bytes_by_cluster, links_of
from mcagent.observe.gateways import LiveReport
from mcagent.observe.standard import rfc3339

MAX_CHANGES = 50
MAX_PROBLEMS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster. `ready` None: nobody here knows. `services` None: the same."""

    id: str
    own: bool = False
    ready: bool | None = None
    since: str = ""
    why: str = ""
    gateways: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    services: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLink:
    """A link from one cluster to another as the first one sees it.

    Traffic of both directions: a rate, or (`bytes`) how many have passed, from which who asks again makes a rate.
    """

    source: str
    target: str
    live: int
    tunnels: int
    since: str = ""
    why: str = ""
    bytes_per_second: int | None = None
    bytes: int | None = None
    round_trip_seconds: float | None = None  # by probes, of the slowest tunnel; only the Node's own page has it
    loss_ratio: float | None = None  # of the worst one


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something went up or down."""

    at: str
    source: str
    target: str
    good: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownProblem:
    """Something that somebody should look at."""

    subject: str
    reason: str
    message: str
    error: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A ClusterSet, as far as somebody knows it. Lists are cut; counts are not."""

    name: str
    clusters: tuple[Cluster, ...] = ()
    links: tuple[ShownLink, ...] = ()
    changes: tuple[Change, ...] = ()  # the last one first
    problems: tuple[ShownProblem, ...] = ()
    problem_count: int = 0
    policies: int | None = None  # None: not known here


def page_of(scope: str, name: str, version: str, at: float, sets: tuple[Topology, ...]) -> dict[str, object]:
    """Return what /topology says. `scope`: "node" or "clusterset"; `name`: of the Node, or of the replica."""
    return {
        "scope": scope,
        "name": name,
        "version": version,
        "at": rfc3339(at, digits=3),
        "sets": [asdict(one) for one in sets],
    }


def shown(source: str, link: Link, carried: int | None = None) -> ShownLink:
    """Return a link of a cluster as the page has it. `carried`: bytes so far, where they are known."""
    return ShownLink(
        source=source,
        target=link.cluster,
        live=link.live,
        tunnels=link.tunnels,
        since=link.since,
        why=link.why,
        bytes_per_second=link.bytes_per_second if carried is None else None,
        bytes=carried,
    )


def node_topology(
    own: str,
    state: NodeState | None,
    live: LiveReport,
    ports: Mapping[str, PortStatistics],
    problems: tuple[Problem, ...],
    *,
    probed: Mapping[str, Probed],
) -> Topology:
    """Return the clusters as one Node sees them: on a gateway their links, on a worker that to its gateways."""
    carried = bytes_by_cluster(live, {name: port.counters for name, port in ports.items()})
    return Topology(
        name="",
        clusters=_clusters(own, state, live),
        links=tuple(
            _with_probes(shown(own, link, carried.get(link.cluster, 0)), live, probed)
            for link in links_of(live, {})
        ),
        changes=_changes(own, live),
        problems=tuple(_problem(problem) for problem in problems[:MAX_PROBLEMS]),
        problem_count=len(problems),
        policies=len({rule.policy for rule in state.policy_rules.values()}) if state is not None else None,
    )


def _with_probes(link: ShownLink, live: LiveReport, probed: Mapping[str, Probed]) -> ShownLink:
    ports = [port for port in live.ports.values() if (port.peer_kind, port.peer) == (PeerKind.REMOTE, link.target)]
    found = [probed[port.name] for port in ports if port.name in probed]
    return replace(
        link,
        round_trip_seconds=max((one.round_trip for one in found if one.round_trip is not None), default=None),
        loss_ratio=max((one.loss for one in found if one.loss is not None), default=None),
    )


def _clusters(own: str, state: NodeState | None, live: LiveReport) -> tuple[Cluster, ...]:
    if state is None:
        return (Cluster(id=own, own=True),)
    gateways = tuple(f"{one.node} ({one.gateway_ip})" for one in state.gateways)
    here = Cluster(
        id=own,
        own=True,
        ready=None if state.role is Role.GATEWAY and live.isolated else True,
        gateways=gateways,
        services=len(state.services) if state.role is Role.GATEWAY else None,
    )
    others = (
        Cluster(
            id=name,
            gateways=tuple(str(address) for address in found.gateways),
            networks=tuple(str(network) for network in found.cidrs),
        )
        for name, found in sorted(state.clusters.items())
    )
    return (here, *others)


def _changes(own: str, live: LiveReport) -> tuple[Change, ...]:
    found = [
        Change(
            at=rfc3339(one.at + live.epoch, digits=3),
            source=own,
            target=_target(live, peer),
            good=one.live,
            text=one.text,
        )
        for peer in live.peers.values()
        if _target(live, peer)
        for one in peer.transitions
    ]
    return tuple(sorted(found, key=lambda change: change.at, reverse=True)[:MAX_CHANGES])


def _target(live: LiveReport, peer: Peer) -> str:
    port = live.ports.get(peer.port)
    if port is None or port.peer_kind is PeerKind.NODE:
        return ""
    return port.peer if port.peer_kind is PeerKind.REMOTE else f"gateway {port.peer}"


def _problem(problem: Problem) -> ShownProblem:
    return ShownProblem(
        subject=problem.subject,
        reason=problem.reason,
        message=printable(problem.message, 512),
        error=problem.severity is Severity.ERROR,
    )
