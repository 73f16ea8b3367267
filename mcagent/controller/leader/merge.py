"""Exports of one Service by several clusters to what all members import: who defines it, who joins in.

Pure: values in, values out. The oldest export defines the Service (by creation time, then cluster ID); one that
differs is refused with its endpoints, and takes over when the older ones have gone. The endpoints are the union of
those of all clusters that are not refused, without duplicates, in one order whatever order they came in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mcagent.controller.contract.services import (
    MAX_SUBSETS,
    Ports,
    ServicePort,
    ServiceSpec,
    Subsets,
    endpoint_ports,
)
from mcagent.controller.leader.export_status import CONFLICT
from mcagent.controller.leader.exports import Header
from mcagent.controller.leader.payloads import Backends
from mcagent.model.net import Address

MAX_SUBSETS_SIZE = 1_000_000  # bytes of JSON; etcd takes 1.5 MiB for an object with all its metadata
_SHOWN = 3  # endpoints that were left out and are named in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """What became of an export. `note` says what is left out of one that is taken, or why it is not taken."""

    taken: bool
    note: str = ""
    reason: str = CONFLICT  # of the condition, if it is not taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One cluster's exports of a Service. A text instead of a value: why there is none that can be used."""

    header: Header
    definition: ServiceSpec | str
    backends: Backends | str | None = None  # None: no Endpoints export


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What is imported, and the result on each cluster's two exports, by cluster ID."""

    definition: ServiceSpec | None = None
    subsets: Subsets | None = None
    services: Mapping[str, MergeResult] = field(default_factory=dict)
    endpoints: Mapping[str, MergeResult] = field(default_factory=dict)


def merge(offers: Iterable[Offer]) -> Merged:
    """Merge the offers of different clusters for one Service."""
    services: dict[str, MergeResult] = {}
    endpoints: dict[str, MergeResult] = {}
    taken: list[tuple[str, Backends]] = []
    first: tuple[Header, ServiceSpec] | None = None
    for offer in sorted(offers, key=lambda o: o.header.order):
        cluster = offer.header.cluster_id
        result = _judge(offer, first)
        services[cluster] = result
        if result.taken and first is None and isinstance(offer.definition, ServiceSpec):
            first = (offer.header, offer.definition)
        if isinstance(offer.backends, Backends) and result.taken:
            taken.append((cluster, offer.backends))
        elif isinstance(offer.backends, Backends):
            endpoints[cluster] = MergeResult(taken=False, note=f"its Service export is refused: {result.note}")
        elif offer.backends is not None:
            endpoints[cluster] = MergeResult(taken=False, note=offer.backends)
    subsets, results = union(taken)
    return Merged(
        definition=first[1] if first else None,
        subsets=subsets if taken else None,
        services=services,
        endpoints=endpoints | results,
    )


def _judge(offer: Offer, first: tuple[Header, ServiceSpec] | None) -> MergeResult:
    if isinstance(offer.definition, str):
        return MergeResult(taken=False, note=offer.definition)
    if first is None:
        return MergeResult(taken=True)
    header, definition = first
    difference = differs(offer.definition, definition)
    if not difference:
        return MergeResult(taken=True)
    return MergeResult(
        taken=False, note=f"conflict with cluster {header.cluster_id}, which exported it first: {difference}"
    )


def differs(mine: ServiceSpec, theirs: ServiceSpec) -> str:
    """Return the first field in which two definitions differ, "" if in none. The order of ports says nothing."""
    own, other = ({p.name: p for p in d.ports} for d in (mine, theirs))
    for name in sorted(own.keys() | other.keys()):
        shown = f'port "{name}"'
        if name not in other:
            return f"{shown} is not in the other definition"
        if name not in own:
            return f"{shown} of the other definition is missing"
        if _number(own[name]) != _number(other[name]):
            return f"{shown} is {_number(own[name])} here and {_number(other[name])} there"
    return ""


def _number(port: ServicePort) -> str:
    return f"{port.port}/{port.protocol}"


def union(offers: Sequence[tuple[str, Backends]]) -> tuple[Subsets, dict[str, MergeResult]]:
    """Return the subsets of all clusters together, and the result on each.

    What would make the ResourceImport too large is left out, the youngest export's last addresses first.
    """
    found: dict[Ports, set[Address]] = {}
    results: dict[str, MergeResult] = {}
    size = 0
    for cluster, backends in offers:
        dropped = 0
        for ports in sorted(backends.subsets):
            fresh = sorted(backends.subsets[ports] - found.get(ports, set()), key=_address_key)
            head = 0 if ports in found else len(json.dumps(endpoint_ports(ports))) + 32
            if ports not in found and len(found) == MAX_SUBSETS:
                dropped += len(fresh)
                continue
            for index, address in enumerate(fresh):
                cost = len(str(address)) + 12 + head
                if size + cost > MAX_SUBSETS_SIZE:
                    dropped += len(fresh) - index
                    break
                size, head = size + cost, 0
                found.setdefault(ports, set()).add(address)
        results[cluster] = _union_result(backends, dropped)
    subsets = {ports: tuple(map(str, sorted(some, key=_address_key))) for ports, some in found.items()}
    return subsets, results


def _union_result(backends: Backends, dropped: int) -> MergeResult:
    notes = []
    if backends.left_out:
        some = "; ".join(backends.left_out[:_SHOWN]) + ("; ..." if len(backends.left_out) > _SHOWN else "")
        notes.append(f"{len(backends.left_out)} endpoints are left out: {some}")
    if backends.over:
        notes.append(
            f"{backends.over} endpoints are left out: the leader takes {backends.count} of one Service "
            "(members.maxEndpoints)"
        )
    if dropped:
        notes.append(f"{dropped} endpoints are left out: the ResourceImport would be larger than an object may be")
    return MergeResult(taken=not backends.left_out or backends.count > 0, note=", ".join(notes))


def _address_key(address: Address) -> tuple[int, int]:
    return (address.version, int(address))
