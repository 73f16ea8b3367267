"""The matrix: from Pods on gateway Nodes and on workers to Pods and exported Services of the other clusters.

Owns which pairs are tried, what is right for each, and the trying: TCP and UDP round trips, the source address
that the server saw, and the copies of every packet counted by capture in the destination Pod.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Address
from types import MappingProxyType

from devtools.errors import LabError
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Cluster, Node, Pod, Topology
from devtools.traffic import traffic
from devtools.traffic.capture import Capture
from flows.pipeline.prefixes import address_in_bridge
from mcagent.core.addresses.underlay import mapped_addresses, source_of
from mcagent.model.config import TrafficEncryption
from mcagent.model.net import PodPrefix

PACKETS = 5  # UDP round trips for the time and the copies
TRIES = 20
LOST = 5  # connections whose first datagram is lost: no busy machine does that
CLOSED_TIMEOUT = 0.7  # seconds without an answer that count as closed


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One pair and what is right for it."""

    source: Pod
    source_role: str  # "gateway", "worker"
    target: str  # for people
    address: IPv4Address
    port: int
    pods: tuple[Pod, ...]  # which may answer; none: no Pod must
    sources: frozenset[IPv4Address]  # what the server must see
    virtual: bool = False  # the address of the source is another one in other clusters

    @property
    def closed(self) -> bool:
        """Whether there must be no answer."""
        return not self.pods


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of a case. `problem` is empty when everything was right."""

    case: Case
    pod: str = ""
    source: str = ""
    rtt: float = 0.0  # seconds, median
    copies: tuple[int, ...] = ()  # of each packet
    problem: str = ""

    @property
    def ok(self) -> bool:
        """Whether it was as it should be."""
        return not self.problem


Prefixes = Mapping[str, tuple[PodPrefix, ...]]  # virtual Pod CIDRs by cluster


def remote_address(cluster: Cluster, pod: Pod, prefixes: Prefixes) -> IPv4Address:
    """Return the address by which other clusters reach a Pod."""
    return IPv4Address(address_in_bridge(pod.address, prefixes.get(cluster.name, ())))


def expected_sources(
    source: Cluster,
    target: Cluster,
    pod: Pod,
    encryption: TrafficEncryption = TrafficEncryption.NONE,
    prefixes: Prefixes = MappingProxyType({}),
) -> frozenset[IPv4Address]:
    """Return what a server of `target` must see: the Pod's address, or a gateway's where that cannot be kept.

    Antrea's gateways translate always, and answer only the first gateway of another cluster, which they know by
    its cluster's Service CIDR where traffic is encrypted. Beside our agents it is a mapped address.
    """
    if (source.antrea or target.antrea) and encryption is TrafficEncryption.WIREGUARD:
        sources = [source.service_cidr.network_address]
    elif source.antrea or target.antrea:
        sources = [source_of(source.gateways[0].tunnel_address)]
    elif (
        source.publish_pods
        and target.publish_pods
        and (source.name in prefixes or not source.pod_cidr.overlaps(target.pod_cidr))
    ):
        return frozenset({remote_address(source, pod, prefixes)})
    else:
        return frozenset(map(seen_as, source.gateways))
    return frozenset(sources) if target.antrea else frozenset(next(mapped_addresses(s)) for s in sources)


def seen_as(gateway: Node) -> IPv4Address:
    """Return the source that servers of other clusters see of connections that this gateway translates."""
    source = source_of(gateway.tunnel_address)
    return next(mapped_addresses(source)) if gateway.address6 is None else source


Addresses = Mapping[tuple[str, str], IPv4Address]  # of imported Services: by cluster and name


def cases(
    topology: Topology,
    imported: Addresses | None = None,
    exported: Addresses | None = None,
    prefixes: Prefixes = MappingProxyType({}),
) -> Iterator[Case]:
    """Yield every case of every ordered pair of clusters.

    `imported`: where a control plane imports Services, their addresses; what the own cluster exports is among
    their endpoints then, too, as always in Antrea's clusters. `exported`: where clusters have export ranges, the
    addresses of exported Services; the address after one is of no Service. `prefixes`: virtual Pod CIDRs; the real
    address of a Pod, in a CIDR that the client's own cluster has, leads nowhere else.
    """
    for source in topology.clusters:
        for target in topology.clusters:
            if source.name != target.name:
                yield from _pair(topology, (source, target), imported, exported or {}, prefixes)


def _pair(
    topology: Topology,
    clusters: tuple[Cluster, Cluster],
    addresses: Addresses | None,
    exported: Addresses,
    prefixes: Prefixes,
) -> Iterator[Case]:
    source, target = clusters
    for role, client in _senders(source):
        right = expected_sources(source, target, client, topology.encryption, prefixes)
        virtual = remote_address(source, client, prefixes) != client.address
        common = {"source": client, "source_role": role, "sources": right, "virtual": virtual}
        if source.publish_pods and target.publish_pods:
            for other_role, pod in _senders(target):
                yield Case(
                    **common,  # type: ignore[arg-type]
                    target=f"Pod on {other_role} {pod.name}",
                    address=remote_address(target, pod, prefixes),
                    port=POD_PORT,
                    pods=(pod,),
                )
        for service in target.services:
            if target.antrea and not service.exported:
                continue  # AntreaProxy serves every ClusterIP of its cluster
            behind = tuple(topology.pod(name)[2] for name in service.pods) if service.exported else ()
            kind = "exported Service" if service.exported else "Service not exported"
            address = exported.get((target.name, service.name), service.cluster_ip)
            if not service.exported and exported:
                kind = "no Service, instead of"
                address = next(a for (cluster, _), a in exported.items() if cluster == target.name) + 1
            yield Case(
                **common,  # type: ignore[arg-type]
                target=f"{kind} {service.name}",
                address=address,
                port=service.port,
                pods=behind,
            )
        for imported in topology.imports(source):
            if imported.backends == tuple(
                s.cluster_ip for s in target.services if s.name == imported.service.name
            ):
                service, address = imported.service, imported.cluster_ip
                names = list(service.pods)
                if addresses is not None:
                    address = addresses[source.name, service.name]
                if nested := addresses is not None or source.antrea:
                    names += [n for s in source.services if s.exported and s.name == service.name for n in s.pods]
                yield Case(
                    **common | {"sources": right | ({client.address} if nested else set())},  # type: ignore[arg-type]
                    target=f"by kube-proxy {imported.name}",
                    address=address,
                    port=service.port,
                    pods=tuple(topology.pod(name)[2] for name in names),
                )


def _senders(cluster: Cluster) -> Iterator[tuple[str, Pod]]:
    """Yield the first Pod of the first gateway and of the first worker."""
    for role, nodes in (("gateway", cluster.gateways), ("worker", cluster.workers)):
        with contextlib.suppress(StopIteration):
            yield role, next(pod for node in nodes for pod in node.pods)


def run(lab: Lab, case: Case) -> Result:
    """Try one case."""
    namespace = lab.namespace(case.source)
    if case.closed:
        return _run_closed(namespace, case)
    try:
        with contextlib.ExitStack() as stack:
            other_pods = [pod for pod in case.pods if pod != case.source]
            captures = [stack.enter_context(Capture(lab.namespace(pod))) for pod in other_pods]
            tcp = _elsewhere(case, lambda: traffic.tcp(namespace, case.address, case.port))
            elsewhere = stack.enter_context(_udp_elsewhere(namespace, case))
            tokens = [os.urandom(16) for _ in range(PACKETS)]
            replies = [traffic.exchange(elsewhere, token) for token in tokens]
            # A copy that came after its original has come before the last answer did: one more round trip.
            traffic.exchange(elsewhere, b"the end")
            copies = tuple(sum(capture.count(token) for capture in captures) for token in tokens)
    except LabError as error:
        return Result(case=case, problem=str(error))
    rtt = statistics.median(reply.rtt for reply in replies)
    result = Result(case=case, pod=tcp.pod, source=tcp.source, rtt=rtt, copies=copies)
    problem = _problem(case, tcp, replies, copies)
    return Result(case=case, pod=result.pod, source=result.source, rtt=rtt, copies=copies, problem=problem)


def _elsewhere(case: Case, ask: Callable[[], traffic.Reply]) -> traffic.Reply:
    """Ask until another Pod than the sender answers: one that reaches itself by kube-proxy says nothing here.

    Each time by another connection. Raises LabError also if the first datagrams of LOST connections are lost.
    """
    resent = 0
    for _ in range(TRIES):
        reply = ask()
        if reply.pod != case.source.name and reply.sent == 1:
            return reply
        resent += reply.sent > 1
        if resent == LOST:
            raise LabError(f"the first datagrams of {LOST} connections were lost")
    raise LabError(f"only {case.source.name} itself answered, {TRIES} times")


@contextlib.contextmanager
def _udp_elsewhere(namespace: str, case: Case) -> Iterator[socket.socket]:
    """Give a socket whose connection another Pod than the sender answers."""
    with contextlib.ExitStack() as stack:
        sockets: list[socket.socket] = []

        def ask() -> traffic.Reply:
            sockets.append(stack.enter_context(traffic.udp_socket(namespace, case.address, case.port)))
            return traffic.exchange(sockets[-1], b"warm up")

        _elsewhere(case, ask)
        yield sockets[-1]


def _problem(case: Case, tcp: traffic.Reply, replies: list[traffic.Reply], copies: tuple[int, ...]) -> str:
    for reply in (tcp, *replies):
        if reply.pod not in {pod.name for pod in case.pods}:
            return f"{reply.pod} answered"
        if IPv4Address(reply.source) not in case.sources:
            right = " or ".join(sorted(map(str, case.sources)))
            return f"the server saw {reply.source}, not {right}"
    if not all(1 <= number <= reply.sent for number, reply in zip(copies, replies, strict=True)):
        return f"copies per packet: {', '.join(map(str, copies))}"
    return ""


def _run_closed(namespace: str, case: Case) -> Result:
    with ThreadPoolExecutor(2) as pool:  # both wait for an answer that must not come
        attempts = {
            "UDP": pool.submit(traffic.udp, namespace, case.address, case.port, b"closed", timeout=CLOSED_TIMEOUT),
            "TCP": pool.submit(traffic.tcp, namespace, case.address, case.port, timeout=CLOSED_TIMEOUT),
        }
    for protocol, answer in attempts.items():
        with contextlib.suppress(LabError):
            reply = answer.result()
            problem = f"{reply.pod} answered by {protocol}"
            return Result(case=case, pod=reply.pod, source=reply.source, problem=problem)
    return Result(case=case)
