"""Exports of one Service by several clusters to what all members import: who defines it, who joins in.

Pure: values in, values out. What the Service is, all say together (`definition`); or, where the leader refuses
conflicts, the oldest export (by creation time, then cluster ID) says it, and one that differs is refused with its
endpoints until the older ones have gone. The endpoints are those of all clusters that are not refused, each
cluster's for itself, without duplicates, in one order whatever order they came in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mcagent.controller.contract.services import (
    MAX_SUBSETS,
    Group,
    Groups,
    Hostnames,
    Ports,
    ServiceSpec,
    endpoint_ports,
)
from mcagent.controller.leader.exports.header import Header
from mcagent.controller.leader.exports.payloads import Backends
from mcagent.controller.leader.exports.status import CONFLICT, Conflict
from mcagent.controller.leader.services.definition import Definition, Said, define, differs
from mcagent.model.net import Address

MAX_SUBSETS_SIZE = 1_000_000  # bytes of JSON; etcd takes 1.5 MiB for an object with all its metadata
_SHOWN = 3  # endpoints that were left out and are named in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """What became of an export. `note` says what is left out of one that is taken, or why it is not taken."""

    taken: bool
    note: str = ""
    reason: str = CONFLICT  # of the condition, if it is not taken
    conflict: Conflict | None = None  # of one that is taken, with those of other clusters


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One cluster's exports of a Service. A text instead of a value: why there is none that can be used."""

    header: Header
    definition: ServiceSpec | str
    backends: Backends | str | None = None  # None: no Endpoints export
    remark: str = ""  # what does not count of the definition


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What is imported, and the result on each cluster's two exports, by cluster ID."""

    definition: ServiceSpec | None = None
    subsets: Groups | None = None
    hostnames: Hostnames = field(default_factory=dict)
    ready: Mapping[str, int] = field(default_factory=dict)  # endpoints behind the ClusterIPs of clusters
    services: Mapping[str, MergeResult] = field(default_factory=dict)
    endpoints: Mapping[str, MergeResult] = field(default_factory=dict)


def merge(offers: Iterable[Offer], *, refuse_conflicts: bool = False, traffic: str = "") -> Merged:
    """Merge the offers of different clusters for one Service; `traffic` counts where the oldest says nothing."""
    ordered = sorted(offers, key=lambda o: o.header.order)
    services, said = _judge(ordered, refuse_conflicts=refuse_conflicts)
    definition = define(said) if said else None
    spec = replace(definition.spec, traffic=definition.spec.traffic or traffic) if definition else None
    if definition is not None and definition.conflict is not None:
        services |= {cluster: replace(services[cluster], conflict=definition.conflict) for cluster, _ in said}
    endpoints: dict[str, MergeResult] = {}
    taken: list[tuple[str, Backends]] = []
    for offer in ordered:
        cluster = offer.header.cluster_id
        if isinstance(offer.backends, str):
            endpoints[cluster] = MergeResult(taken=False, note=offer.backends)
        elif offer.backends is not None and not services[cluster].taken:
            note = f"its Service export is refused: {services[cluster].note}"
            endpoints[cluster] = MergeResult(taken=False, note=note)
        elif offer.backends is not None and definition is not None:
            taken.append((cluster, _serving(offer.backends, definition, cluster)))
    groups, results = union(taken)
    hostnames = {str(a): name for _, backends in reversed(taken) for a, name in backends.hostnames.items()}
    there = {text for addresses in groups.values() for text in addresses}
    return Merged(
        definition=spec,
        subsets=groups if taken else None,
        hostnames={text: name for text, name in hostnames.items() if text in there},
        ready={cluster: backends.ready for cluster, backends in taken if backends.ready and backends.count},
        services=services,
        endpoints=endpoints | results,
    )


def _judge(ordered: Iterable[Offer], *, refuse_conflicts: bool) -> tuple[dict[str, MergeResult], list[Said]]:
    """Return the result on each Service export, and what those say that take part, the oldest first."""
    results: dict[str, MergeResult] = {}
    said: list[Said] = []
    for offer in ordered:
        cluster, definition = offer.header.cluster_id, offer.definition
        if isinstance(definition, str):
            results[cluster] = MergeResult(taken=False, note=definition)
            continue
        difference = differs(definition, said[0][1]) if refuse_conflicts and said else ""
        if difference:
            why = f"conflict with cluster {said[0][0]}, which exported it first: {difference}"
            results[cluster] = MergeResult(taken=False, note=why)
            continue
        results[cluster] = MergeResult(taken=True, note=offer.remark)
        said.append((cluster, definition))
    return results, said


def _serving(backends: Backends, definition: Definition, cluster: str) -> Backends:
    """Return a cluster's endpoints without the ports that older exports have given to others."""
    own = definition.ports[cluster]
    found: dict[Ports, frozenset[Address]] = {}
    for ports, addresses in backends.subsets.items():
        if kept := tuple(port for port in ports if port[0] in own):
            found[kept] = found.get(kept, frozenset()) | addresses
    return replace(backends, subsets=found)


def union(offers: Sequence[tuple[str, Backends]]) -> tuple[Groups, dict[str, MergeResult]]:
    """Return the endpoints of all clusters, and the result on each.

    An address that two clusters have is the older export's. What would make the ResourceImport too large is left
    out, the youngest export's last addresses first.
    """
    found: dict[Group, tuple[str, ...]] = {}
    seen: dict[Ports, set[Address]] = {}
    results: dict[str, MergeResult] = {}
    size = 0
    for cluster, backends in offers:
        dropped = 0
        for ports in sorted(backends.subsets):
            there = seen.setdefault(ports, set())
            fresh = sorted(backends.subsets[ports] - there, key=_address_key)
            head = len(json.dumps(endpoint_ports(ports))) + 32 + len(cluster)
            if len(found) == MAX_SUBSETS:
                dropped += len(fresh)
                continue
            kept = 0
            for address in fresh:
                cost = len(str(address)) + 12 + head
                if address in backends.hostnames:
                    cost += len(backends.hostnames[address]) + 16
                if size + cost > MAX_SUBSETS_SIZE:
                    break
                size, head, kept = size + cost, 0, kept + 1
            dropped += len(fresh) - kept
            there.update(fresh[:kept])
            if kept:
                found[cluster, ports] = tuple(map(str, fresh[:kept]))
        results[cluster] = _union_result(backends, dropped)
    return found, results


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
    if backends.remark:
        notes.append(backends.remark)
    if dropped:
        notes.append(f"{dropped} endpoints are left out: the ResourceImport would be larger than an object may be")
    return MergeResult(taken=not backends.left_out or backends.count > 0, note=", ".join(notes))


def _address_key(address: Address) -> tuple[int, int]:
    return (address.version, int(address))
