"""The reconciler of Gateway objects: one for each elected Node (`election`). Works without the leader.

It owns all Gateways of its namespace, except `wireGuard`, which the agent of the Node writes. New gateways are
created before old ones are deleted, so that there is always one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mcagent.controller.machinery.reconciler import Access, DesiredObjects, ObjectChange, Ref, View, Wanted
from mcagent.controller.member.membership import cluster_set_of, concerns_membership, is_joined, managed_labels
from mcagent.controller.member.networks.election import (
    GatewayCandidate,
    addresses,
    by_age,
    candidate,
    elect,
    relevant,
)
from mcagent.controller.settings import MemberSettings
from mcagent.model.api.kubernetes import ApiNode
from mcagent.model.api.multicluster import ApiGateway
from mcagent.model.event import Event
from mcagent.model.objects import Kind

KEY = "gateways"


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
        if candidates and not chosen:
            message = f"no gateway: none of {len(candidates)} annotated Nodes is Ready with a usable address"
            events.append(Event(subject=cluster_set.subject, reason="NoGateway", message=message))
        steps: list[Wanted | Ref] = []
        for name in chosen:
            fields = addresses(candidates[name])
            if not fields:
                continue  # the Gateway keeps its addresses
            cidr = {"serviceCIDR": self._settings.service_cidr} if self._settings.service_cidr else {}
            steps.append(
                Wanted(
                    ref=self._ref(name, view), body={"metadata": {"labels": managed_labels()}, **fields, **cidr}
                )
            )
        steps += [self._ref(name, view) for name in present if name not in chosen]
        return DesiredObjects(steps=steps, events=events)

    def _ref(self, name: str, view: View) -> Ref:
        return Ref(kind=Kind.GATEWAY, namespace=view.namespace, name=name)


def serving(view: View, settings: MemberSettings) -> list[str]:
    """Return the names of the Gateway objects that other clusters should use, the longest-serving first.

    Until a new Gateway exists, its predecessor is returned: the result is empty only if there is no Gateway.
    """
    election = _election(view, settings)
    return [name for name in election.present if name in election.chosen] or election.present


@dataclass(frozen=True, slots=True, kw_only=True)
class _Election:
    candidates: Mapping[str, GatewayCandidate]  # by the name of their Node
    present: list[str]  # the names of the Gateways, the longest-serving first
    chosen: Sequence[str]  # the names of the elected Nodes


def _election(view: View, settings: MemberSettings) -> _Election:
    nodes = view.list(ApiNode)
    candidates = {c.name: c for node in nodes if (c := candidate(node, settings.gateway_ip_precedence))}
    present = [gateway.name for gateway in by_age(view.list(ApiGateway, namespace=view.namespace))]
    chosen = elect(candidates.values(), present, settings.max_active_gateways)
    return _Election(candidates=candidates, present=present, chosen=chosen)
