"""The data of the browser page: clusters, links between them, changes and problems; and a Node's view of them.

`mcagent.controller.leader.topology` makes the leader's view. All lists are bounded, because a browser draws them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from mcagent.api.codec import to_json
from mcagent.api.topology import Change, ShownCluster, ShownLink, ShownProblem, Topology, TopologyPage
from mcagent.core.failover.liveness import PeerLiveness
from mcagent.core.health import HealthFinding, judge_link
from mcagent.core.local_cluster.prefixes import pods_in_bridge
from mcagent.core.tunnel_probes import ProbeState
from mcagent.model.dataplane.resources import PeerKind, PortStatistics
from mcagent.model.node_state import NodeRole, NodeState
from mcagent.model.parsing.field import printable
from mcagent.model.parsing.links import ClusterLink
from mcagent.model.problem import Problem, Severity
from mcagent.observe.cluster_links import bytes_by_cluster, links_of, round_trips_of
from mcagent.observe.gateways import LiveReport
from mcagent.observe.standard import rfc3339

MAX_CHANGES = 50
MAX_PROBLEMS = 100


def page_of(scope: str, name: str, version: str, at: float, sets: tuple[Topology, ...]) -> dict[str, object]:
    """Make the JSON value of /topology. `scope`: "node" or "clusterset"; `name`: of the Node or replica."""
    return to_json(TopologyPage(scope=scope, name=name, version=version, at=rfc3339(at, digits=3), sets=sets))


def shown_network(network: object, real: object) -> str:
    """Return a network of a cluster as text. `real`: the CIDR that it stands for inside that cluster, if any."""
    return str(network) if real is None else f"{network} ({real} in the cluster)"


def shown_link(source: str, link: ClusterLink, carried: int | None = None) -> ShownLink:
    """Convert a link of cluster `source`. `carried`: bytes so far; None: unknown, the rate is used."""
    micros, finding = link.round_trip_micros, judge_link(source, link)
    return ShownLink(
        source=source,
        target=link.cluster,
        live=link.live,
        tunnels=link.tunnels,
        since=link.since,
        why=link.why,
        bytes_per_second=link.bytes_per_second if carried is None else None,
        bytes=carried,
        round_trip_seconds=micros / 1e6 if micros else None,
        lost=finding is not None and finding.error,
    )


def node_topology(
    own: str,
    state: NodeState | None,
    live: LiveReport,
    ports: Mapping[str, PortStatistics],
    problems: tuple[Problem, ...],
    *,
    probed: Mapping[str, ProbeState],
    findings: Iterable[HealthFinding] = (),
) -> Topology:
    """Make a Node's view: on a gateway the links to clusters, on a worker those to its gateways.

    `findings`: on the ways to other clusters (`mcagent.observe.health`).
    """
    carried = bytes_by_cluster(live, {name: port.counters for name, port in ports.items()})
    ways = tuple(
        _with_probes(shown_link(own, link, carried.get(link.cluster, 0)), live, probed)
        for link in links_of(live, {})
    )
    shown = [*shown_findings("this Node", findings), *map(_problem, problems)]
    return Topology(
        name="",
        clusters=_clusters(own, state, live),
        links=ways,
        changes=_changes(own, live),
        problems=tuple(shown[:MAX_PROBLEMS]),
        problem_count=len(shown),
        policies=len({rule.policy for rule in state.policy_rules.values()}) if state is not None else None,
    )


def shown_findings(subject: str, findings: Iterable[HealthFinding]) -> Iterator[ShownProblem]:
    """Yield the findings about `subject`."""
    for finding in findings:
        yield ShownProblem(subject=subject, reason=finding.reason, message=finding.message, error=finding.error)


def _with_probes(link: ShownLink, live: LiveReport, probed: Mapping[str, ProbeState]) -> ShownLink:
    ports = [port for port in live.ports.values() if (port.peer_kind, port.peer) == (PeerKind.REMOTE, link.target)]
    results = [probed[port.name] for port in ports if port.name in probed]
    return replace(
        link,
        round_trip_seconds=round_trips_of(live, probed).get(link.target),
        loss_ratio=max((result.loss for result in results if result.loss is not None), default=None),
    )


def _clusters(own: str, state: NodeState | None, live: LiveReport) -> tuple[ShownCluster, ...]:
    if state is None:
        return (ShownCluster(id=own, own=True),)
    gateways = tuple(f"{gateway.node} ({gateway.gateway_ip})" for gateway in state.gateways)
    real = {prefix.virtual: prefix.real for prefix in state.prefixes}
    published = pods_in_bridge(state.published_pods, state.prefixes)
    own_cluster = ShownCluster(
        id=own,
        own=True,
        ready=None if state.role is NodeRole.GATEWAY and live.isolated else True,
        gateways=gateways,
        networks=tuple(shown_network(network, real.get(network)) for network in published),
        services=len(state.services) if state.role is NodeRole.GATEWAY else None,
    )
    remote_clusters = (
        ShownCluster(
            id=name,
            gateways=tuple(str(address) for address in cluster.gateways),
            networks=tuple(str(network) for network in cluster.cidrs),
        )
        for name, cluster in sorted(state.clusters.items())
    )
    return (own_cluster, *remote_clusters)


def _changes(own: str, live: LiveReport) -> tuple[Change, ...]:
    changes = [
        Change(
            at=rfc3339(transition.at + live.epoch, digits=3),
            source=own,
            target=_target(live, peer),
            good=transition.live,
            text=transition.text,
        )
        for peer in live.peers.values()
        if _target(live, peer)
        for transition in peer.transitions
    ]
    return tuple(sorted(changes, key=lambda change: change.at, reverse=True)[:MAX_CHANGES])


def _target(live: LiveReport, peer: PeerLiveness) -> str:
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
