"""Exports of one Service by several clusters become the Service that all members import. Pure.

KEP-1645 has the rules. Ports are the union. The oldest export (by creation time, then cluster ID) decides
between two ports with one name or number, and all other fields; the status of each export names the conflict.
Where the leader refuses conflicts, an export that differs from the oldest one is refused with its endpoints. The
endpoints of all other clusters are imported: by cluster, without duplicates, in an order that follows from the
values alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mcagent.controller.contract.services import (
    MAX_PORTS,
    MAX_SUBSETS,
    Group,
    Groups,
    Hostnames,
    PayloadPort,
    Ports,
    ServiceSpec,
    endpoint_ports,
)
from mcagent.controller.leader.exports.header import Header
from mcagent.controller.leader.exports.payloads import Backends
from mcagent.controller.leader.exports.status import CONFLICT, Conflict
from mcagent.model.api.base import as_json
from mcagent.model.net import Address
from mcagent.model.objects import IpProtocol
from mcagent.model.parsing.field import listed, printable
from mcagent.model.traffic import TRAFFIC_ANNOTATION

_SHOWN = 3  # clusters, or endpoints, that a message names
_LONGEST = 200  # characters of the value of each


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The Service that is imported."""

    spec: ServiceSpec
    ports: Mapping[str, frozenset[str]] = field(
        default_factory=dict
    )  # by cluster, the names of its ports in `spec`
    conflict: Conflict | None = None  # goes into the status of all exports


Exported = tuple[str, ServiceSpec]  # a cluster ID, and its export of the Service


def define(exported: Sequence[Exported]) -> Definition:
    """Return the definition from one or more exports, the oldest first."""
    ports, ports_of_clusters = _union_of_ports(exported)
    conflicts = [*filter(None, (_conflict(exported, *rule) for rule in _RULES))]
    conflict = None
    if conflicts:
        message = "; ".join(entry.message for entry in conflicts)
        conflict = Conflict(reason=conflicts[0].reason, message=message)
    return Definition(spec=replace(exported[0][1], ports=ports), ports=ports_of_clusters, conflict=conflict)


def difference(own_spec: ServiceSpec, other_spec: ServiceSpec) -> str:
    """Return the first difference of two Services in type or ports, as text; "" if there is none."""
    if own_spec.headless != other_spec.headless:
        return f"it is {_type(own_spec)} here and {_type(other_spec)} there"
    own, other = ({port.name: port for port in spec.ports} for spec in (own_spec, other_spec))
    for name in sorted(own.keys() | other.keys()):
        shown = f'port "{name}"'
        if name not in other:
            return f"{shown} is not in the other definition"
        if name not in own:
            return f"{shown} of the other definition is missing"
        if _number(own[name]) != _number(other[name]):
            return f"{shown} is {_number(own[name])} here and {_number(other[name])} there"
    return ""


def _union_of_ports(exported: Iterable[Exported]) -> tuple[tuple[PayloadPort, ...], dict[str, frozenset[str]]]:
    """Return all ports, and by cluster the names of its own among them.

    The older of two that exclude each other stays. A port without a name excludes all others, because each port of
    a Service with several ports has a name.
    """
    ports: dict[str, PayloadPort] = {}
    numbers: set[tuple[int, IpProtocol]] = set()
    ports_of_clusters: dict[str, frozenset[str]] = {}
    for cluster, spec in exported:
        own = set()
        for port in spec.ports:
            number = (port.port, port.protocol)
            if (older := ports.get(port.name)) is not None:
                if number == (older.port, older.protocol):
                    own.add(port.name)
                continue
            unnamed = bool(ports) and (not port.name or "" in ports)
            if unnamed or number in numbers or len(ports) == MAX_PORTS:
                continue
            ports[port.name] = port
            numbers.add(number)
            own.add(port.name)
        ports_of_clusters[cluster] = frozenset(own)
    return tuple(ports.values()), ports_of_clusters


# --- conflicts ----------------------------------------------------------------------------------------------


def _conflict(
    exported: Sequence[Exported], reason: str, what: str, value_of: Callable[[ServiceSpec], str | None]
) -> Conflict | None:
    """Return the conflict of a field if its values differ; the message names clusters and values."""
    values = [(cluster, value) for cluster, spec in exported if (value := value_of(spec)) is not None]
    if len({value for _, value in values}) < 2:
        return None
    oldest, first = values[0]
    differing = [f"{_short(value)} in cluster {cluster}" for cluster, value in values[1:] if value != first]
    differences = listed(differing, _SHOWN)
    message = f"{what}: {_short(first)} in cluster {oldest}, which was first, but {differences}"
    return Conflict(reason=reason, message=message)


def _short(value: str) -> str:
    return printable(value, _LONGEST)


def _type(spec: ServiceSpec) -> str:
    return "headless" if spec.headless else "a Service with a ClusterIP"


def _number(port: PayloadPort) -> str:
    return f"{port.port}/{port.protocol}"


def _ports(spec: ServiceSpec) -> str:
    """Return the ports as text, sorted: their order has no meaning."""
    shown = (
        f"{p.name or '(unnamed)'} {_number(p)}" + (f" {p.app_protocol}" if p.app_protocol else "")
        for p in spec.ports
    )
    return f"[{', '.join(sorted(shown))}]"


def _affinity(spec: ServiceSpec) -> str:
    return "None" if spec.affinity_seconds is None else "ClientIP"


def _affinity_time(spec: ServiceSpec) -> str | None:
    return None if spec.affinity_seconds is None else f"{spec.affinity_seconds} s"


def _pairs(texts: Iterable[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in texts) + "}"


_RULES: tuple[tuple[str, str, Callable[[ServiceSpec], str | None]], ...] = (  # None: the export has no value
    ("TypeConflict", "type", _type),
    ("PortConflict", "ports", _ports),
    ("SessionAffinityConflict", "sessionAffinity", _affinity),
    ("SessionAffinityConfigConflict", "sessionAffinityConfig", _affinity_time),
    ("InternalTrafficPolicyConflict", "internalTrafficPolicy", lambda spec: spec.traffic_policy or "Cluster"),
    ("TrafficDistributionConflict", "trafficDistribution", lambda spec: spec.distribution or "none"),
    ("IPFamilyConflict", "ipFamilies", lambda spec: ", ".join(spec.families) or None),
    ("TrafficConflict", f"annotation {TRAFFIC_ANNOTATION}", lambda spec: spec.traffic or "none"),
    ("LabelsConflict", "exportedLabels", lambda spec: _pairs(spec.labels)),
    ("AnnotationsConflict", "exportedAnnotations", lambda spec: _pairs(spec.annotations)),
)


MAX_SUBSETS_SIZE = 1_000_000  # bytes of JSON; etcd takes 1.5 MiB for an object with all its metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """The result of the merge for one export."""

    merged: bool
    note: str = ""  # what is left out, or why the export is not merged
    reason: str = CONFLICT  # of the condition, if it is not merged
    conflict: Conflict | None = None  # of a merged export with those of other clusters


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One cluster's exports of a Service. A text in place of a value is the reason why it cannot be used."""

    header: Header
    definition: ServiceSpec | str
    backends: Backends | str | None = None  # None: no Endpoints export
    remark: str = ""  # what is ignored of the definition


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The Service that is imported, and by cluster ID the results for the two exports of each cluster."""

    definition: ServiceSpec | None = None
    subsets: Groups | None = None
    hostnames: Hostnames = field(default_factory=dict)
    ready: Mapping[str, int] = field(default_factory=dict)  # endpoints behind the ClusterIPs of clusters
    services: Mapping[str, MergeResult] = field(default_factory=dict)
    endpoints: Mapping[str, MergeResult] = field(default_factory=dict)


def merge(offers: Iterable[Offer], *, refuse_conflicts: bool = False, traffic: str = "") -> Merged:
    """Merge the offers of different clusters for one Service; `traffic` is used if the oldest export has none."""
    ordered = sorted(offers, key=lambda o: o.header.order)
    services, exported = _accepted(ordered, refuse_conflicts=refuse_conflicts)
    definition = define(exported) if exported else None
    spec = replace(definition.spec, traffic=definition.spec.traffic or traffic) if definition else None
    if definition is not None and definition.conflict is not None:
        services |= {cluster: replace(services[cluster], conflict=definition.conflict) for cluster, _ in exported}
    endpoints: dict[str, MergeResult] = {}
    merged: list[tuple[str, Backends]] = []
    for offer in ordered:
        cluster = offer.header.cluster_id
        if isinstance(offer.backends, str):
            endpoints[cluster] = MergeResult(merged=False, note=offer.backends)
        elif offer.backends is not None and not services[cluster].merged:
            note = f"its Service export is refused: {services[cluster].note}"
            endpoints[cluster] = MergeResult(merged=False, note=note)
        elif offer.backends is not None and definition is not None:
            merged.append((cluster, _serving(offer.backends, definition, cluster)))
    groups, results = union(merged)
    hostnames = {str(a): name for _, backends in reversed(merged) for a, name in backends.hostnames.items()}
    imported = {text for addresses in groups.values() for text in addresses}
    return Merged(
        definition=spec,
        subsets=groups if merged else None,
        hostnames={text: name for text, name in hostnames.items() if text in imported},
        ready={cluster: backends.ready for cluster, backends in merged if backends.ready and backends.count},
        services=services,
        endpoints=endpoints | results,
    )


def _accepted(
    ordered: Iterable[Offer], *, refuse_conflicts: bool
) -> tuple[dict[str, MergeResult], list[Exported]]:
    """Return the result for each Service export, and the exports that are merged, the oldest first."""
    results: dict[str, MergeResult] = {}
    exported: list[Exported] = []
    for offer in ordered:
        cluster, definition = offer.header.cluster_id, offer.definition
        if isinstance(definition, str):
            results[cluster] = MergeResult(merged=False, note=definition)
            continue
        if refuse_conflicts and exported and (conflict := difference(definition, exported[0][1])):
            why = f"conflict with cluster {exported[0][0]}, which exported it first: {conflict}"
            results[cluster] = MergeResult(merged=False, note=why)
            continue
        results[cluster] = MergeResult(merged=True, note=offer.remark)
        exported.append((cluster, definition))
    return results, exported


def _serving(backends: Backends, definition: Definition, cluster: str) -> Backends:
    """Return a cluster's endpoints without the ports that older exports define otherwise."""
    own = definition.ports[cluster]
    subsets: dict[Ports, frozenset[Address]] = {}
    portless = 0
    for all_ports, addresses in backends.subsets.items():
        if ports := tuple(port for port in all_ports if port[0] in own):
            subsets[ports] = subsets.get(ports, frozenset()) | addresses
        else:
            portless += len(addresses)
    note = f"{portless} endpoints are left out: older exports define their ports otherwise" if portless else ""
    return replace(backends, subsets=subsets, remark=", ".join(filter(None, (backends.remark, note))))


def union(offers: Sequence[tuple[str, Backends]]) -> tuple[Groups, dict[str, MergeResult]]:
    """Return the endpoints of all clusters, and the result for each cluster.

    An address of two clusters belongs to the older export. If the ResourceImport would be too large, the last
    addresses of the youngest exports are left out.
    """
    groups: dict[Group, tuple[str, ...]] = {}
    addresses_by_ports: dict[Ports, set[Address]] = {}
    results: dict[str, MergeResult] = {}
    size = 0
    for cluster, backends in offers:
        dropped = shared = 0
        for ports in sorted(backends.subsets):
            older = addresses_by_ports.setdefault(ports, set())
            addresses = sorted(backends.subsets[ports] - older, key=_address_key)
            shared += len(backends.subsets[ports]) - len(addresses)
            head = len(json.dumps(as_json(endpoint_ports(ports)))) + 32 + len(cluster)
            if len(groups) == MAX_SUBSETS:
                dropped += len(addresses)
                continue
            count = 0
            for address in addresses:
                cost = len(str(address)) + 12 + head
                if address in backends.hostnames:
                    cost += len(backends.hostnames[address]) + 16
                if size + cost > MAX_SUBSETS_SIZE:
                    break
                size, head, count = size + cost, 0, count + 1
            dropped += len(addresses) - count
            older.update(addresses[:count])
            if count:
                groups[cluster, ports] = tuple(map(str, addresses[:count]))
        results[cluster] = _union_result(backends, dropped, shared)
    return groups, results


def _union_result(backends: Backends, dropped: int, shared: int) -> MergeResult:
    notes = []  # short ones first: the member repeats only the beginning
    if backends.over:
        notes.append(
            f"{backends.over} endpoints are left out: the leader takes {backends.count} of one Service "
            "(members.maxEndpoints)"
        )
    if shared:
        notes.append(f"{shared} endpoints are left out: an older export has their addresses")
    if dropped:
        notes.append(f"{dropped} endpoints are left out: the ResourceImport would be larger than an object may be")
    if backends.remark:
        notes.append(backends.remark)
    if backends.left_out:
        shown = "; ".join(backends.left_out[:_SHOWN]) + ("; ..." if len(backends.left_out) > _SHOWN else "")
        notes.append(f"{len(backends.left_out)} endpoints are left out: {shown}")
    return MergeResult(merged=not backends.left_out or backends.count > 0, note=", ".join(notes))


def _address_key(address: Address) -> tuple[int, int]:
    return (address.version, int(address))
