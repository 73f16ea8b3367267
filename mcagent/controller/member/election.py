"""Which Nodes of this cluster are gateways: annotated, Ready, with a usable address. Pure. Needs no leader.

The rules, in order:
- A gateway that works stays, the longest-serving first. Free places go to candidates by name.
- A Node that is cordoned or draining is not newly chosen while another candidate is there, and is replaced by one.
- A gateway whose Node is not Ready is replaced. With nobody to replace it, it stays: its dataplane may well be
  working, and other clusters lose nothing by trying. BFD finds out who can serve.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from mcagent.controller.contract import names
from mcagent.controller.contract.raw import (
    age,
    annotation,
    is_deleting,
    items_at,
    name_of,
    namespace_of,
    text_at,
    value_at,
)
from mcagent.controller.settings import IpPrecedence
from mcagent.core.addresses.underlay import preferred_address, refuse_underlay
from mcagent.kube.source import RawObject
from mcagent.model.field import printable
from mcagent.model.net import Address, parse_address
from mcagent.model.parsing.kubernetes import DRAIN_ANNOTATION


class Standing(IntEnum):
    """How fit a candidate is."""

    FIT = 0
    CORDONED = 1
    DRAINING = 2
    UNFIT = 3  # not Ready, or without a usable address


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayCandidate:
    """An annotated Node. `why` says in words what keeps it from being a gateway, or from being as asked for."""

    name: str
    standing: Standing
    internal_ip: Address | None
    gateway_ip: Address | None
    reason: str = ""  # stable, CamelCase; "" if there is nothing to report
    why: str = ""


def relevant(node: RawObject | None) -> object:
    """Return all of a Node that the election looks at; None for one that is no candidate."""
    if node is None or annotation(node, names.GATEWAY_ANNOTATION) is None:
        return None
    return (
        annotation(node, names.GATEWAY_IP_ANNOTATION),
        annotation(node, DRAIN_ANNOTATION),
        is_deleting(node),
        value_at(node, "spec", "unschedulable"),
        _ready(node),
        value_at(node, "status", "addresses"),
    )


def candidate(node: RawObject, precedence: IpPrecedence) -> GatewayCandidate | None:
    """Return what is thought of a Node; None when it is not annotated, or on its way out."""
    if annotation(node, names.GATEWAY_ANNOTATION) is None or is_deleting(node):
        return None
    internal = _address(node, "InternalIP")
    gateway, reason, why = internal, "", ""
    given = annotation(node, names.GATEWAY_IP_ANNOTATION)
    if internal is None:
        reason, why = "NoUsableAddress", "has no InternalIP that other Nodes can reach"
    elif given:
        gateway = _usable(given)
        if gateway is None:
            reason = "InvalidGatewayIP"
            why = f'annotation {names.GATEWAY_IP_ANNOTATION} must be a unicast address: "{printable(given)}"'
    elif precedence is IpPrecedence.EXTERNAL:
        gateway = _address(node, "ExternalIP")
        if gateway is None:
            reason = "NoUsableAddress"
            why = "has no ExternalIP, which gatewayIPPrecedence: external asks for"
    return GatewayCandidate(
        name=name_of(node),
        standing=Standing.UNFIT if reason or not _ready(node) else _standing(node),
        internal_ip=internal,
        gateway_ip=gateway,
        reason=reason,
        why=why,
    )


def elect(candidates: Iterable[GatewayCandidate], gateways: Sequence[str], most: int) -> tuple[str, ...]:
    """Return the gateways, at most `most`. `gateways` are those there are, the longest-serving first."""
    by_name = {found.name: found for found in candidates}
    serving = [name for name in gateways if name in by_name]
    others = sorted(by_name.keys() - set(serving))

    def of(pool: Iterable[str], standing: Standing) -> list[str]:
        return [name for name in pool if by_name[name].standing is standing]

    chosen = of(serving, Standing.FIT)[:most]
    for pool in (
        of(others, Standing.FIT),
        of(serving, Standing.CORDONED),
        of(serving, Standing.DRAINING),
    ):
        chosen += pool[: max(0, most - len(chosen))]
    if not chosen:
        chosen = (of(others, Standing.CORDONED) or of(serving, Standing.UNFIT))[:most]
    return tuple(sorted(chosen, key=lambda name: (serving.index(name) if name in serving else len(serving), name)))


def by_age(gateways: Iterable[RawObject], namespace: str) -> list[RawObject]:
    """Return the Gateway objects of a namespace, the longest-serving first."""
    found = [raw for raw in gateways if namespace_of(raw) == namespace and not is_deleting(raw)]
    return sorted(found, key=age)


def addresses(found: GatewayCandidate) -> Mapping[str, str]:
    """Return the fields of a Gateway object that say where the Node is reached; none while that is unknown."""
    if found.gateway_ip is None or found.internal_ip is None:
        return {}
    return {"gatewayIP": str(found.gateway_ip), "internalIP": str(found.internal_ip)}


def _ready(node: RawObject) -> bool:
    return any(
        text_at(item, "type") == "Ready" and text_at(item, "status") == "True"
        for item in items_at(node, "status", "conditions")
    )


def _standing(node: RawObject) -> Standing:
    if annotation(node, DRAIN_ANNOTATION) == "true":
        return Standing.DRAINING
    return Standing.CORDONED if value_at(node, "spec", "unschedulable") is True else Standing.FIT


def _address(node: RawObject, kind: str) -> Address | None:
    """Return the first usable address of a kind: on a dual-stack Node the IPv4 one, whichever stands first."""
    texts = (text_at(i, "address") for i in items_at(node, "status", "addresses") if text_at(i, "type") == kind)
    return preferred_address(address for address in map(_usable, texts) if address is not None)


def _usable(text: str) -> Address | None:
    try:
        address = parse_address(text)
    except ValueError:
        return None
    return address if refuse_underlay(address) is None else None
