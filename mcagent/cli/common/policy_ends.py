"""Sender and target of a connection: from the text of a user to the requests that policies decide on.

Knows the objects of one cluster, or of the two at both ends. Reads nothing itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address

from mcagent.cli.common.policy_view import Decision, InForce, Request, decide, in_force
from mcagent.core.policies.pipeline_input import backends
from mcagent.model.config import Config, PolicyFailureMode
from mcagent.model.errors import InputError
from mcagent.model.net import Address
from mcagent.model.objects import LabelIdentity, Pod, Snapshot
from mcagent.model.parsing import labels
from mcagent.model.parsing.labels import UNKNOWN
from mcagent.model.parsing.policies import IMPORTED
from mcagent.model.policies import PROTOCOLS, Direction

ICMP = 1
ECHO = (8, 0)
_LABELS = re.compile(r"([a-z0-9]([-a-z0-9]*[a-z0-9])?):(.*)")


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


@dataclass(slots=True)
class ClusterPolicies:
    """One cluster, and what each of its Nodes enforces."""

    name: str  # of the context, "" of the only one
    snapshot: Snapshot
    mode: PolicyFailureMode
    _nodes: dict[str, InForce] = field(default_factory=dict)

    def on(self, node: str) -> InForce:
        """Return what a Node enforces."""
        if node not in self._nodes:
            self._nodes[node] = in_force(self.snapshot, Config(node_name=node, policy_failure_mode=self.mode))
        return self._nodes[node]

    def labels_of(self, pod: Pod) -> str:
        """Return the label identity of a Pod as text."""
        namespace = self.snapshot.namespaces.get(pod.meta.namespace)
        part = namespace.labels if namespace else labels.namespace_part(pod.meta.namespace, {})
        return labels.identity(part, pod.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStep:
    """One decision: on the Node of a Pod, about a request. `labels`: the sender's, "" where they are not known."""

    side: str
    node: str
    pod: str
    request: Request
    port: Port
    labels: str = ""
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Who may have sent something to a Pod, as its cluster knows the sender."""

    address: Address | None = None
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
    own, other = _pod(here, source), _pod(far, target)
    if own is not None and other is not None and target_side is None:
        reason = "is a Pod of the same cluster: policies between clusters do not apply (--to-context?)"
        raise InputError("explain", "--to", f"{target} {reason}")
    if own is not None:
        for address, to in _ends(target, port, here, other):
            yield from _outwards(here, source, own, address, to)
    if other is not None:
        senders = _known(here, far, own, cluster) if own is not None else _senders(source, far, cluster)
        for sender in senders:
            yield from _inwards(far, target, other, sender, port)
    elif own is None:
        raise InputError("explain", "--from", f"there is no Pod {source} here, nor a Pod {target} for --to")


def _pod(side: ClusterPolicies, name: str) -> Pod | None:
    """Return a Pod with addresses of its own: policies do not apply to the others."""
    pod = side.snapshot.pods.get(name)
    return pod if pod is not None and pod.ips else None


def _outwards(side: ClusterPolicies, name: str, pod: Pod, peer: Address, port: Port) -> Iterator[PolicyStep]:
    for address in pod.ips:
        if address.version == peer.version:
            request = _request(Direction.EGRESS, address, port, Sender(address=peer))
            decision = decide(side.on(pod.node_name), request)
            yield PolicyStep(
                side=side.name, node=pod.node_name, pod=name, request=request, port=port, decision=decision
            )


def _inwards(side: ClusterPolicies, name: str, pod: Pod, sender: Sender, port: Port) -> Iterator[PolicyStep]:
    for address in pod.ips:
        if sender.address is None or sender.address.version == address.version:
            request = _request(Direction.INGRESS, address, port, sender)
            decision = decide(side.on(pod.node_name), request)
            yield PolicyStep(
                side=side.name,
                node=pod.node_name,
                pod=name,
                request=request,
                port=port,
                labels=sender.labels,
                decision=decision,
            )


def _request(direction: Direction, pod: Address, port: Port, other: Sender) -> Request:
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


def _ends(target: str, port: Port, side: ClusterPolicies, other: Pod | None) -> list[tuple[Address, Port]]:
    """Return what a Pod's packets to a target are addressed to. Raises InputError."""
    if other is not None:
        return [(address, port) for address in other.ips]
    address = _address(target)
    if address is not None:
        return [(address, port)]
    namespace, _, name = target.partition("/")
    services = [(namespace, IMPORTED + name.removeprefix(IMPORTED)), (namespace, name)]
    endpoints = backends(side.snapshot.endpoint_slices, frozenset(services))
    ends = next((endpoints[service] for service in services if service in endpoints), ())
    if not ends:
        raise InputError(
            "explain", "--to", f"{target} is not an address, Pod (--to-context?) or Service with endpoints"
        )
    ends_of_service = [(endpoint, Port(protocol, number)) for endpoint, protocol, number in ends]
    chosen = [(endpoint, to) for endpoint, to in ends_of_service if port.number is None or to == port]
    if not chosen:
        ports = ", ".join(sorted({str(to) for _, to in ends_of_service}))
        raise InputError("explain", "--port", f"the endpoints of {target} have no port {port}, only {ports}")
    return chosen


def _known(here: ClusterPolicies, far: ClusterPolicies, pod: Pod, cluster: str) -> Iterator[Sender]:
    """Yield a Pod of another cluster, as those that its packets may come from know it."""
    text = here.labels_of(pod)
    identities = {identity.label: identity for identity in far.snapshot.label_identities.values()}
    for address in pod.ips:
        if text not in identities:
            yield Sender(address=address, cluster=cluster, labels=text)
        else:
            yield from _from_clusters(identities[text], cluster, address)


def _senders(source: str, far: ClusterPolicies, cluster: str) -> Iterator[Sender]:
    """Yield the senders of a text: an address, the text of an identity, or Namespace and labels of Pods."""
    address = _address(source)
    if address is not None:
        yield Sender(address=address, cluster=cluster)
        return
    identities = [identity for identity in far.snapshot.label_identities.values() if _is_meant(source, identity)]
    for identity in sorted(identities, key=lambda identity: identity.label):
        yield from _from_clusters(identity, cluster)
    if not identities:
        if labels.parsed(source) is None and not _LABELS.fullmatch(source):
            reason = "is not a Pod of this cluster, an address, or labels as shop:app=web or ns:...&pod:..."
            raise InputError("explain", "--from", f'"{source}" {reason}')
        yield Sender(cluster=cluster, labels=source)


def _from_clusters(identity: LabelIdentity, cluster: str, address: Address | None = None) -> Iterator[Sender]:
    """Yield it once for each cluster that has such Pods; what another sends counts as unknown."""
    owners = (cluster,) if cluster or identity.clusters is None else sorted(identity.clusters)
    for owner in owners or ("",):
        believed = identity.clusters is None or owner in identity.clusters
        number = identity.id if believed else UNKNOWN
        yield Sender(address=address, cluster=owner, labels=identity.label, identity=number)


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


def _address(text: str) -> Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
