"""The election of gateways among the annotated, Ready Nodes with a usable address. Pure. Needs no leader.

The rules, in order:
- A fit gateway stays, the longest-serving first. Candidates fill free places in the order of their names.
- A Node that is cordoned or draining becomes a gateway only without another candidate, and is replaced by one.
- A gateway whose Node has temporarily no usable address keeps the addresses of its Gateway.
- A gateway whose Node is not Ready is replaced. Without another candidate it stays: its dataplane may still work,
  and BFD detects whether it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from mcagent.controller.contract import names
from mcagent.controller.settings import IpPrecedence
from mcagent.core.addresses.underlay import preferred_address, refuse_underlay
from mcagent.model.api.base import ApiObject, condition_of
from mcagent.model.api.kubernetes import ApiNode
from mcagent.model.api.multicluster import ApiGateway
from mcagent.model.net import Address, address_or_none
from mcagent.model.parsing.field import printable
from mcagent.model.parsing.kubernetes import DRAIN_ANNOTATION

_GATEWAY_IP_REASON = "InvalidGatewayIP"


class Standing(IntEnum):
    """The fitness of a candidate, the best first."""

    FIT = 0
    CORDONED = 1
    DRAINING = 2
    UNFIT = 3  # not Ready, or with an invalid annotation


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayCandidate:
    """An annotated Node."""

    name: str
    standing: Standing
    internal_ip: Address | None
    gateway_ip: Address | None
    reason: str = ""  # of its Event, CamelCase; "": nothing to report
    why: str = ""  # the message: why it is no gateway, or not with the configured address


def relevant(node: ApiObject | None) -> object:
    """Return the fields of a Node that the election reads; None if it is no candidate."""
    if not isinstance(node, ApiNode) or node.annotation(names.GATEWAY_ANNOTATION) is None:
        return None
    return (
        node.annotation(names.GATEWAY_IP_ANNOTATION),
        node.annotation(DRAIN_ANNOTATION),
        node.is_deleting,
        node.spec.unschedulable,
        node_ready(node),
        node.status.addresses,
    )


def candidate(node: ApiNode, precedence: IpPrecedence, present: ApiGateway | None) -> GatewayCandidate | None:
    """Return a Node as a candidate; None if it is not annotated, or being deleted.

    An address of its present Gateway stays while the Node lists it: a virtual address that is listed first later
    takes nothing from one that works.
    """
    if node.annotation(names.GATEWAY_ANNOTATION) is None or node.is_deleting:
        return None
    internal = _address(node, "InternalIP", present.internal_ip if present is not None else "")
    gateway, reason, why = internal, "", ""
    annotated_ip = node.annotation(names.GATEWAY_IP_ANNOTATION)
    if internal is None:
        reason, why = "NoUsableAddress", "has no InternalIP that other Nodes can reach"
    elif annotated_ip:
        gateway = _usable(annotated_ip)
        if gateway is None:
            reason = _GATEWAY_IP_REASON
            why = (
                f'annotation {names.GATEWAY_IP_ANNOTATION} must be a unicast address: "{printable(annotated_ip)}"'
            )
    elif precedence is IpPrecedence.EXTERNAL:
        gateway = _address(node, "ExternalIP", present.gateway_ip if present is not None else "")
        if gateway is None:
            reason = "NoExternalIP"
            why = "has no ExternalIP, which gatewayIPPrecedence: external asks for"
    return GatewayCandidate(
        name=node.name,
        standing=Standing.UNFIT if reason == _GATEWAY_IP_REASON or not node_ready(node) else _standing(node),
        internal_ip=internal,
        gateway_ip=gateway,
        reason=reason,
        why=why,
    )


def elect(candidates: Iterable[GatewayCandidate], gateways: Sequence[str], most: int) -> tuple[str, ...]:
    """Return the elected Nodes, at most `most`. `gateways`: the present ones, the longest-serving first."""
    by_name = {node.name: node for node in candidates}
    serving = [name for name in gateways if name in by_name]
    waiting = sorted(name for name in by_name.keys() - set(serving) if addresses(by_name[name]))

    def of(pool: Iterable[str], standing: Standing) -> list[str]:
        return [name for name in pool if by_name[name].standing is standing]

    chosen = of(serving, Standing.FIT)[:most]
    for pool in (
        of(waiting, Standing.FIT),
        of(serving, Standing.CORDONED),
        of(serving, Standing.DRAINING),
    ):
        chosen += pool[: max(0, most - len(chosen))]
    if not chosen:
        chosen = (of(waiting, Standing.CORDONED) or of(serving, Standing.UNFIT))[:most]
    return tuple(sorted(chosen, key=lambda name: (serving.index(name) if name in serving else len(serving), name)))


def by_age(gateways: Iterable[ApiGateway]) -> list[ApiGateway]:
    """Return the Gateway objects that are not being deleted, the longest-serving first."""
    return sorted((gateway for gateway in gateways if not gateway.is_deleting), key=lambda gateway: gateway.age)


def addresses(gateway: GatewayCandidate) -> tuple[str, str] | None:
    """Return the gateway IP and the internal IP of a candidate's Gateway; None while one of them is unknown."""
    if gateway.gateway_ip is None or gateway.internal_ip is None:
        return None
    return str(gateway.gateway_ip), str(gateway.internal_ip)


def node_ready(node: ApiNode) -> bool:
    """Tell whether a Node is Ready."""
    return condition_of(node.status.conditions, "Ready").is_true


def _standing(node: ApiNode) -> Standing:
    if node.annotation(DRAIN_ANNOTATION) == "true":
        return Standing.DRAINING
    return Standing.CORDONED if node.spec.unschedulable else Standing.FIT


def _address(node: ApiNode, kind: str, present: str) -> Address | None:
    """Return the present address, if it is still one of a type, else the first usable of this type.

    Of a dual-stack Node that is the IPv4 address.
    """
    texts = (item.address for item in node.status.addresses if item.type == kind)
    listed = [address for address in map(_usable, texts) if address is not None]
    present_address = address_or_none(present)
    return present_address if present_address in listed else preferred_address(listed)


def _usable(text: str) -> Address | None:
    address = address_or_none(text)
    return address if address is not None and refuse_underlay(address) is None else None
