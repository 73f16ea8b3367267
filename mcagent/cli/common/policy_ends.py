"""OtherEnd and target of a connection: from the text of a user to the requests that policies decide on.

Knows the objects of one cluster, or of the two at both ends. Reads nothing itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from flows.pipeline.prefixes import address_in_bridge, address_in_kernel
from mcagent.cli.common.policy_view import Decision, InForce, Request, decide, decide_within, in_force
from mcagent.core.local_cluster.nodes import seniority
from mcagent.core.local_cluster.prefixes import prefixes_by_objects
from mcagent.core.policies.label_matching import cluster_ids
from mcagent.core.policies.pipeline_input import backends
from mcagent.model.config import Config, PolicyFailureMode
from mcagent.model.errors import InputError
from mcagent.model.net import Address, PodPrefix, address_or_none
from mcagent.model.objects import LabelIdentity, Pod, Snapshot
from mcagent.model.parsing import labels
from mcagent.model.parsing.labels import UNKNOWN
from mcagent.model.parsing.policies import IMPORTED
from mcagent.model.policies import PROTOCOLS, Direction, Verdict

# Within a cluster, agents enforce only rules about Services of the ClusterSet.
_OF_THE_CNI = Decision(
    verdict=Verdict.ALLOW,
    why="this endpoint is in the same cluster, and no rule names its Service: only the CNI decides",
)
ICMP = 1
ECHO = (8, 0)
_LABELS = re.compile(r"([a-z0-9]([-a-z0-9]*[a-z0-9])?):((?:[\w./-]+=[\w.-]*(?:,(?!$)|$))*)")


@dataclass(frozen=True, slots=True)
class Port:
    """What a connection is to; `number` None: no port that a rule names."""

    protocol: int = 6
    number: int | None = None

    @property
    def icmp(self) -> tuple[int, int] | None:
        """Type and code of what asks for an answer."""
        return ECHO if self.protocol == ICMP else None

    def __str__(self) -> str:
        name = next(
            protocol for protocol, number in (*PROTOCOLS.items(), ("ICMP", ICMP)) if number == self.protocol
        )
        return name if self.number is None else f"{self.number}/{name}"


def read_port(text: str) -> Port:
    """Return the port that is meant by `80`, `53/UDP`, `ICMP`. Raises InputError."""
    number, _, protocol = text.rpartition("/") if "/" in text or not text.isdecimal() else (text, "", "TCP")
    if protocol.upper() == "ICMP" and not number:
        return Port(ICMP)
    if protocol.upper() not in PROTOCOLS or (number and not (number.isdecimal() and 0 < int(number) < 65536)):
        raise InputError("explain", "--port", f'must be as 80, 53/UDP or ICMP, is "{text}"')
    return Port(PROTOCOLS[protocol.upper()], int(number) if number else None)


@dataclass
class ClusterPolicies:
    """One cluster, and what each of its Nodes enforces."""

    name: str  # of the context, "" of the only one
    snapshot: Snapshot
    mode: PolicyFailureMode
    cluster_id: str = ""  # "": not known
    _nodes: dict[str, InForce] = field(default_factory=dict)

    @cached_property
    def _prefixes(self) -> tuple[PodPrefix, ...]:
        return prefixes_by_objects(self.snapshot.gateways.values())

    def virtual(self, address: Address) -> Address:
        """Return the address of a Pod of this cluster as other clusters, and the policies there, know it."""
        return address_in_bridge(address, self._prefixes)

    def peer(self, address: Address) -> OtherEnd:
        """Return the Pod of this cluster with a real or virtual address, as other clusters know it."""
        return OtherEnd(address=self.virtual(address), real=address_in_kernel(address, self._prefixes))

    def pod_at(self, text: str) -> Pod | None:
        """Return the newest Pod with a real or virtual address; None: there is none, or the text is no address."""
        address = address_or_none(text)
        pods = (pod for pod in self.snapshot.pods.values() if {*pod.ips, *map(self.virtual, pod.ips)} & {address})
        return max(pods, key=lambda pod: seniority(pod.meta), default=None)

    def on(self, node: str) -> InForce:
        """Return what a Node enforces."""
        if node not in self._nodes:
            config = Config(node_name=node, cluster_id=self.cluster_id, policy_failure_mode=self.mode)
            self._nodes[node] = in_force(self.snapshot, config)
        return self._nodes[node]

    def labels_of(self, pod: Pod) -> str:
        """Return the label identity of a Pod as text."""
        namespace = self.snapshot.namespaces.get(pod.meta.namespace)
        part = namespace.labels if namespace else labels.namespace_part(pod.meta.namespace, {})
        return labels.identity(part, pod.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStep:
    """One decision: on the Node of a Pod, about a request. `labels`: the sender's, "" where they are not known.

    `virtual`: the Pod's address in other clusters. `real_peer`: the peer's address in its own cluster, if known.
    """

    side: str
    node: str
    pod: str
    request: Request
    port: Port
    virtual: Address
    real_peer: Address | None = None
    labels: str = ""
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEnd:
    """The other end of a Pod's connection, as the Pod's cluster knows it; `real` is its address in its own."""

    address: Address | None = None
    real: Address | None = None
    cluster: str = ""
    labels: str = ""
    identity: int = UNKNOWN


def steps(
    source: str,
    target: str,
    port: Port,
    here: ClusterPolicies,
    target_side: ClusterPolicies | None = None,
    *,
    cluster: str = "",
) -> Iterator[PolicyStep]:
    """Yield what is decided between two ends, in the order in which a packet meets it. Raises InputError.

    Without `target_side` only `here` is known. `cluster`: the sender's ID, "" if not known.
    """
    far = target_side or here
    own, other = _pod(here, source, "--from"), _pod(far, target, "--to")
    if own is None and other is None:  # as `mcagent trace` recommends the command
        own, other = here.pod_at(source), far.pod_at(target)
        source, target = (
            own.meta.key if own is not None else source,
            other.meta.key if other is not None else target,
        )
    if own is not None and other is not None and target_side is None:
        reason = "is a Pod of the same cluster: policies between clusters do not apply (--to-context?)"
        raise InputError("explain", "--to", f"{target} {reason}")
    if own is not None:
        own_addresses = frozenset(address for pod in here.snapshot.pods.values() for address in pod.ips)
        ends = _ends(target, port, here, target_side) if other is None else _peers(other, port, far)
        for peer, to in ends:
            local = other is None and peer.address in own_addresses
            yield from _outwards(here, source, own, peer, to, local=local)
    if other is not None:
        senders = (
            _known(here, far, own, cluster)
            if own is not None
            else _senders(source, far, cluster, here if target_side is not None else None)
        )
        for sender in senders:
            yield from _inwards(far, target, other, sender, port)
    elif own is None:
        reason = f'neither "{source}" nor "{target}" (--to) is a Pod of this cluster: give NAMESPACE/POD for one'
        raise InputError("explain", "--from", reason)


def _pod(side: ClusterPolicies, name: str, flag: str) -> Pod | None:
    """Return the Pod of a name; None: there is none. Raises InputError for one without an address of its own."""
    pod = side.snapshot.pods.get(name)
    if pod is None or pod.ips:
        return pod
    addresses = ", ".join(map(str, pod.host_ips))
    reason = (
        f"is in the host network of Node {pod.node_name} ({addresses}): policies do not select it, and it has no "
        "label identity; as the other end, give the address"
    )
    raise InputError("explain", flag, f"{name} {reason}")


def _forwarded(pod: Pod) -> list[Address]:
    """Return the addresses of a Pod that other clusters can reach."""
    return [address for address in pod.ips if address.version == 4]


def _outwards(
    side: ClusterPolicies, name: str, pod: Pod, peer: OtherEnd, port: Port, *, local: bool
) -> Iterator[PolicyStep]:
    """Yield the decisions about packets of a Pod. `local`: the peer is a Pod of the same cluster."""
    for address in _forwarded(pod):
        if peer.address is not None and address.version == peer.address.version:
            request = _request(Direction.EGRESS, address, port, peer)
            in_node = side.on(pod.node_name)
            decision = (decide_within(in_node, request) or _OF_THE_CNI) if local else decide(in_node, request)
            yield _step(side, name, pod, peer, port=port, request=request, decision=decision)


def _inwards(side: ClusterPolicies, name: str, pod: Pod, sender: OtherEnd, port: Port) -> Iterator[PolicyStep]:
    for address in _forwarded(pod):
        if sender.address is None or sender.address.version == address.version:
            request = _request(Direction.INGRESS, address, port, sender)
            decision = decide(side.on(pod.node_name), request)
            yield _step(side, name, pod, sender, port=port, request=request, decision=decision)


def _step(
    side: ClusterPolicies, name: str, pod: Pod, peer: OtherEnd, *, port: Port, request: Request, decision: Decision
) -> PolicyStep:
    return PolicyStep(
        side=side.name,
        node=pod.node_name,
        pod=name,
        request=request,
        port=port,
        virtual=side.virtual(request.pod),
        real_peer=peer.real,
        labels=peer.labels,
        decision=decision,
    )


def _request(direction: Direction, pod: Address, port: Port, other: OtherEnd) -> Request:
    return Request(
        direction=direction,
        pod=pod,
        peer=other.address,
        cluster=other.cluster,
        identity=other.identity,
        protocol=port.protocol,
        port=port.number,
        icmp=port.icmp,
    )


def _peers(pod: Pod, port: Port, side: ClusterPolicies) -> Iterator[tuple[OtherEnd, Port]]:
    """Yield what packets from another cluster to a Pod are addressed to."""
    for address in pod.ips:
        yield side.peer(address), port


def _ends(
    target: str, port: Port, side: ClusterPolicies, target_side: ClusterPolicies | None
) -> list[tuple[OtherEnd, Port]]:
    """Return what a Pod's packets to an address or a Service are addressed to. Raises InputError."""
    address = address_or_none(target)
    if address is not None:
        return [(_peer(address, target_side), port)]
    namespace, _, name = target.partition("/")
    services = [(namespace, IMPORTED + name.removeprefix(IMPORTED)), (namespace, name)]
    endpoints = backends(side.snapshot.endpoint_slices, frozenset(services))
    ends = next((endpoints[service] for service in services if service in endpoints), ())
    if not ends:
        raise InputError(
            "explain", "--to", f"{target} is not an address, Pod (--to-context?) or Service with endpoints"
        )
    ends_of_service = [(endpoint, Port(protocol, number)) for endpoint, protocol, number in ends]
    # Endpoints in this cluster are Pods, whose own port may differ from that of the Service.
    own_addresses = {address for pod in side.snapshot.pods.values() for address in pod.ips}
    chosen = [
        (OtherEnd(address=endpoint), to)
        for endpoint, to in ends_of_service
        if port.number is None or to == port or (endpoint in own_addresses and to.protocol == port.protocol)
    ]
    if not chosen:
        ports = ", ".join(sorted({str(to) for _, to in ends_of_service}))
        raise InputError("explain", "--port", f"the endpoints of {target} have no port {port}, only {ports}")
    return chosen


def _known(here: ClusterPolicies, far: ClusterPolicies, pod: Pod, cluster: str) -> Iterator[OtherEnd]:
    """Yield a Pod of another cluster, as those that its packets may come from know it."""
    text = here.labels_of(pod)
    identities = {identity.label: identity for identity in far.snapshot.label_identities.values()}
    for address in pod.ips:
        sender = replace(here.peer(address), cluster=cluster, labels=text)
        if text not in identities:
            yield sender
        else:
            yield from _from_clusters(identities[text], cluster, far, sender)


def _senders(
    source: str, far: ClusterPolicies, cluster: str, source_side: ClusterPolicies | None
) -> Iterator[OtherEnd]:
    """Yield the senders of a text: an address, the text of an identity, or Namespace and labels of Pods."""
    address = address_or_none(source)
    if address is not None:
        yield replace(_peer(address, source_side), cluster=cluster)
        return
    if labels.parsed(source) is None and not _LABELS.fullmatch(source):
        reason = (
            "is not a Pod of this cluster, an address, or labels as shop:app=web or ns:...&pod:...; "
            "a Pod of another cluster is given by its labels, or by name with its --context and --to-context"
        )
        raise InputError("explain", "--from", f'"{source}" {reason}')
    own = far.cluster_id
    identities = [identity for identity in far.snapshot.label_identities.values() if _is_meant(source, identity)]
    senders = [
        sender
        for identity in sorted(identities, key=lambda identity: identity.label)
        for sender in _from_clusters(identity, cluster, far)
    ]
    remote_senders = [sender for sender in senders if not own or sender.cluster != own]
    if (senders and not remote_senders) or (own and cluster == own):
        reason = f"is of Pods of {own} itself only: policies between clusters do not apply, its CNI decides"
        raise InputError("explain", "--from", f'"{source}" {reason}')
    yield from remote_senders or [OtherEnd(cluster=cluster, labels=source)]


def _from_clusters(
    identity: LabelIdentity, cluster: str, far: ClusterPolicies, sender: OtherEnd | None = None
) -> Iterator[OtherEnd]:
    """Yield it once for each cluster that may have such Pods; what another sends counts as unknown."""
    exporters = cluster_ids(far.snapshot.cluster_infos) if identity.clusters is None else identity.clusters
    for owner in (cluster,) if cluster else sorted(exporters) or ("",):
        believed = identity.clusters is None or owner in identity.clusters
        number = identity.id if believed else UNKNOWN
        yield replace(sender or OtherEnd(), cluster=owner, labels=identity.label, identity=number)


def _peer(address: Address, side: ClusterPolicies | None) -> OtherEnd:
    """Return the end with an address. Its cluster translates a real one; if that is unknown, packets have it."""
    return OtherEnd(address=address) if side is None else side.peer(address)


def _is_meant(text: str, identity: LabelIdentity) -> bool:
    if text == identity.label:
        return True
    shape = _LABELS.fullmatch(text)
    if shape is None or "&" in text:
        return False
    pod_labels = labels.split(identity.label)
    required = dict(item.partition("=")[::2] for item in shape[3].split(",") if item)
    return (
        pod_labels.namespace.get(labels.NAMESPACE_NAME) == shape[1] and required.items() <= pod_labels.pod.items()
    )
