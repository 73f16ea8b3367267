"""The reconciler of Gateway objects: one for each elected Node (`election`). Works without the leader.

It owns all Gateways of its namespace, except `wireGuard` and `status`, which the agent of the Node writes. New
gateways are created before old ones are deleted, so that there is always one. An annotation has their order
(`demotion`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mcagent.controller.machinery.reconciler import Access, DesiredObjects, ObjectChange, Ref, View, Wanted
from mcagent.controller.member.membership import (
    cluster_set_of,
    concerns_membership,
    is_joined,
    managed_labels,
    refused_writes,
)
from mcagent.controller.member.networks.demotion import dead_gateways, demotions, in_order
from mcagent.controller.member.networks.election import (
    GatewayCandidate,
    Standing,
    addresses,
    by_age,
    candidate,
    elect,
    relevant,
)
from mcagent.controller.member.published import pod_prefixes, published_cidr
from mcagent.controller.settings import MemberSettings
from mcagent.model.api.kubernetes import ApiNode
from mcagent.model.api.multicluster import ApiGateway
from mcagent.model.api.patches import ABSENT, UNSET, metadata_patch, patch
from mcagent.model.event import Event
from mcagent.model.objects import Kind
from mcagent.model.parsing.clusters import DEMOTIONS_ANNOTATION, SERVICE_CIDR_ANNOTATION
from mcagent.model.parsing.prefixes import PREFIXES_ANNOTATION, prefixes_text

KEY = "gateways"
_SHOWN = 5  # gateways that are named in a message


class GatewayElection:
    """Writes the Gateway objects of the elected Nodes."""

    name = "gateway-election"
    needs_leader = False
    reads = Access(local={Kind.NODE, Kind.GATEWAY, Kind.CLUSTER_SET})
    writes = Access(local={Kind.GATEWAY})
    indexes = ()

    def __init__(self, settings: MemberSettings) -> None:
        self._settings = settings

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return KEY if a change may alter the election, or touches a Gateway."""
        match change.kind:
            case Kind.NODE:
                return [KEY] if relevant(change.old) != relevant(change.new) else []
            case Kind.GATEWAY:
                return [KEY] if change.object.namespace == view.namespace else []
            case _:
                return [KEY] if concerns_membership(change) else []

    def all_keys(self, view: View) -> Iterable[str]:  # noqa: ARG002
        """Return KEY."""
        return [KEY]

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:  # noqa: ARG002
        """Return the Gateway objects of the elected Nodes, and the deletion of others."""
        cluster_set = cluster_set_of(view)
        if cluster_set is None or not is_joined(view):
            return DesiredObjects()  # leaving cleans up
        election = _election(view, self._settings)
        candidates, present, chosen = election.candidates, election.present, election.chosen
        events = [
            Event(
                subject=str(Ref(kind=Kind.NODE, name=c.name)),
                reason=c.reason,
                message=f"{c.why}: {'its Gateway keeps its addresses' if c.name in chosen else 'no gateway'}",
            )
            for c in candidates.values()
            if c.reason
        ]
        events += _waiting(candidates.values(), chosen, self._settings.max_active_gateways)
        if candidates and not chosen:
            message = f"no gateway: none of {len(candidates)} annotated Nodes is Ready with a usable address"
            events.append(Event(subject=cluster_set.subject, reason="NoGateway", message=message))
        numbers = demotions(election.ordered, chosen, election.dead)
        for name, reporters in election.dead.items():
            if numbers.get(name):
                message = (
                    f"it stopped answering BFD of {', '.join(reporters[:_SHOWN])}: it comes last in the order of "
                    "gateways, of which Antrea's clusters use the first"
                )
                subject = str(self._ref(name, view))
                events.append(Event(subject=subject, reason="GatewayDemoted", message=message))
        updates: list[Wanted] = []
        real, published = self._settings.service_cidr, published_cidr(view, self._settings)
        moved = published != (real or "")
        for name in chosen:
            if (ips := addresses(candidates[name])) is None:
                continue  # the Gateway keeps its addresses
            annotations = {
                SERVICE_CIDR_ANNOTATION: real if moved else None,
                PREFIXES_ANNOTATION: prefixes_text(pod_prefixes(view, self._settings)),
                DEMOTIONS_ANNOTATION: str(number) if (number := numbers[name]) else None,
            }
            body = patch(
                ApiGateway,
                metadata=metadata_patch(labels=managed_labels(), annotations=annotations),
                gateway_ip=ips[0],
                internal_ip=ips[1],
                service_cidr=(published or ABSENT) if real else UNSET,
            )
            updates.append(Wanted(ref=self._ref(name, view), body=body))
        updates.sort(key=lambda step: bool(view.failure(step.ref)))  # a refused one holds up no other gateway
        steps: list[Wanted | Ref] = [*updates, *(self._ref(name, view) for name in present if name not in chosen)]
        events += refused_writes(steps, view, cluster_set.subject, "GatewayNotWritten")
        return DesiredObjects(steps=steps, events=events)

    def _ref(self, name: str, view: View) -> Ref:
        return Ref(kind=Kind.GATEWAY, namespace=view.namespace, name=name)


def _waiting(candidates: Iterable[GatewayCandidate], chosen: Sequence[str], most: int) -> Iterator[Event]:
    """Yield an Event for each Node that could be a gateway, and is none since there are enough."""
    for node in candidates:
        if chosen and node.name not in chosen and node.standing is Standing.FIT and addresses(node):
            message = (
                f"annotated, and waits: maxActiveGateways is {most}, and there are {', '.join(chosen[:_SHOWN])}; "
                "it takes over when one of these fails"
            )
            subject = str(Ref(kind=Kind.NODE, name=node.name))
            yield Event(subject=subject, reason="GatewayWaiting", message=message, warning=False)


def serving(view: View, settings: MemberSettings) -> list[str]:
    """Return the names of the Gateway objects that other clusters should use, in their order.

    Until a new Gateway exists, its predecessor is returned: the result is empty only if there is no Gateway.
    """
    election = _election(view, settings)
    names = [gateway.name for gateway in election.ordered]
    return [name for name in names if name in election.chosen] or names


@dataclass(frozen=True, slots=True, kw_only=True)
class _Election:
    candidates: Mapping[str, GatewayCandidate]  # by the name of their Node
    present: list[str]  # the names of the Gateways, the longest-serving first
    chosen: Sequence[str]  # the names of the elected Nodes
    ordered: list[ApiGateway]  # the Gateways in the order that other clusters see
    dead: Mapping[str, Sequence[str]]  # the gateways that others report as dead, with their names


def _election(view: View, settings: MemberSettings) -> _Election:
    gateways = view.list(ApiGateway, namespace=view.namespace)
    by_name = {gateway.name: gateway for gateway in gateways}
    offered = (
        candidate(node, settings.gateway_ip_precedence, by_name.get(node.name)) for node in view.list(ApiNode)
    )
    candidates = {node.name: node for node in offered if node is not None}
    present = [gateway.name for gateway in by_age(gateways)]
    chosen = elect(candidates.values(), present, settings.max_active_gateways)
    ready = {c.name for c in candidates.values() if c.standing is not Standing.UNFIT}
    ordered = in_order(gateways)
    dead = dead_gateways(ordered, ready)
    return _Election(candidates=candidates, present=present, chosen=chosen, ordered=ordered, dead=dead)
