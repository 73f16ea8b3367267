"""What the reconcilers of this cluster's export range and of its virtual Pod CIDRs have in common.

Each owns an annotation of the ClusterSet, which the other reconcilers read, also while the leader is away. A range
takes effect once the agents of all gateways are able to serve it; from then on it stays until the leader or the
configuration gives another one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from msgspec.structs import replace

from mcagent.controller.contract import names
from mcagent.controller.contract.export_ranges import ALWAYS, UsedRange, as_text
from mcagent.controller.contract.pod_ranges import UsedPodCidrs
from mcagent.controller.contract.ranges import address_of, networks_of, range_of
from mcagent.controller.machinery.reconciler import Access, DesiredObjects, Leader, ObjectChange, Ref, View, Wanted
from mcagent.controller.member.membership import cluster_set_of, concerns_membership, joined_leader
from mcagent.controller.member.published import ASSIGNED, CONFIGURED, NO_POOL
from mcagent.controller.settings import MemberSettings
from mcagent.model.api.kubernetes import ApiNode
from mcagent.model.api.multicluster import ApiGateway, ClusterSet, ResourceImport
from mcagent.model.api.patches import annotated
from mcagent.model.event import Event
from mcagent.model.objects import Kind
from mcagent.model.parsing.granted import CLAIMS_ANNOTATION

_SHOWN = 3  # gateways that a message names
Used = TypeVar("Used", UsedRange, UsedPodCidrs)


class RangeReconciler(ABC, Generic[Used]):
    """Decides on a range of this cluster. The only key is the reconciler's name."""

    name: str
    annotation: str  # of the ClusterSet: the decision
    needs_leader = True
    reads = Access(local={Kind.CLUSTER_SET, Kind.GATEWAY, Kind.NODE}, leader={Kind.RESOURCE_IMPORT})
    writes = Access(local={Kind.CLUSTER_SET})
    indexes = ()

    def __init__(self, settings: MemberSettings) -> None:
        self._settings = settings

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the key if a change may alter the decision."""
        return [self.name] if _touches(change, view, self.is_able) else []

    def all_keys(self, view: View) -> Iterable[str]:  # noqa: ARG002
        """Return the key."""
        return [self.name]

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:  # noqa: ARG002
        """Return the annotation of the ClusterSet; nothing while the leader has not answered."""
        leader, cluster_set = joined_leader(view), cluster_set_of(view)
        if leader is None or cluster_set is None:
            return DesiredObjects()
        chosen = self.chosen(view, leader, cluster_set)
        return _stored(cluster_set, self.annotation, chosen) if chosen is not None else DesiredObjects()

    @abstractmethod
    def chosen(self, view: View, leader: Leader, cluster_set: ClusterSet) -> Used | None:
        """Return the range to use; None while that is not decided."""

    @staticmethod
    @abstractmethod
    def is_able(gateway: ApiGateway) -> bool:
        """Tell whether the agent of a gateway is able to serve a range."""


def without_answer(own_import: ResourceImport, present: Used, mode: str, remedy: str) -> Used | None:
    """Return what to use while the leader has given no answer; None: wait for it."""
    if mode == ALWAYS:
        why = f"the leader is Antrea's, or of an earlier version, and assigns {remedy}"
        return replace(present, reason=NO_POOL, why=why)
    return None if own_import.annotation(CLAIMS_ANNOTATION) is not None else type(present)()


def _touches(change: ObjectChange, view: View, is_able: Callable[[ApiGateway], bool]) -> bool:
    """Tell whether a change may alter the decision on a range."""
    match change.object:
        case ResourceImport(name=name):
            leader = view.leader
            return leader is not None and name == names.cluster_info(leader.cluster_id)
        case ApiGateway():
            old, new = (obj is not None and is_able(obj) for obj in change.of(ApiGateway))
            return change.came_or_went or old != new
        case ApiNode():
            old_node, new_node = change.of(ApiNode)
            return _networks_of_node(old_node) != _networks_of_node(new_node)
        case _:
            return concerns_membership(change)


def _stored(cluster_set: ClusterSet, annotation: str, chosen: UsedRange | UsedPodCidrs) -> DesiredObjects:
    """Return the annotation of the ClusterSet, and an Event unless the range is used."""
    body = annotated(ClusterSet, {annotation: as_text(chosen)})
    events = []
    if chosen.reason not in ("", ASSIGNED, CONFIGURED):
        events.append(Event(subject=cluster_set.subject, reason=chosen.reason, message=chosen.why))
    return DesiredObjects(steps=[Wanted(ref=Ref.of(cluster_set), body=body, create=False)], events=events)


def occupant(view: View, settings: MemberSettings, cidr: str, also: Iterable[str] = ()) -> str:
    """Return what of this cluster has addresses in a CIDR that others are to use; "" if nothing has.

    `also`: CIDRs in addition to those of its Services, Pods and Nodes.
    """
    bounds = range_of(cidr)
    if bounds is None:
        return "it is no CIDR that can be routed"
    configured = filter(None, (settings.service_cidr, *settings.pod_cidrs, *also))
    if next(networks_of(configured).overlapping(*bounds), None) is not None:
        return "it overlaps the Service CIDR or a Pod CIDR of this cluster"
    for node in view.list(ApiNode):
        addresses, cidrs = _networks_of_node(node)
        numbers = [number for text in addresses if (number := address_of(text)) is not None]
        if any(bounds[0] <= number <= bounds[1] for number in numbers):
            return f"Node {node.name} has an address in it"
        if next(networks_of(cidrs).overlapping(*bounds), None) is not None:
            return f"it overlaps the Pod CIDR of Node {node.name}"
    return ""


def _networks_of_node(node: ApiNode | None) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the addresses and Pod CIDRs of a Node."""
    if node is None:
        return frozenset(), ()
    return frozenset(item.address for item in node.status.addresses), node.spec.pod_cidrs


def old_agents(view: View, is_able: Callable[[ApiGateway], bool]) -> str:
    """Return the gateways whose agents cannot serve a range, as text; "" if there are gateways and all can."""
    gateways = view.list(ApiGateway, namespace=view.namespace)
    old = sorted(gateway.name for gateway in gateways if not is_able(gateway))
    shown = ", ".join(old[:_SHOWN]) + (", ..." if len(old) > _SHOWN else "")
    return shown if gateways else "(there is none yet)"
