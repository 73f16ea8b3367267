"""What several clusters say that one Service is, made one: KEP-1645's rules of conflict.

Pure: values in, values out. Ports are the union; where two differ under one name or number, and for all else, the
oldest export decides. Every export that takes part is told of a conflict. Who is older is the caller's to know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mcagent.controller.contract.services import MAX_PORTS, PayloadPort, ServiceSpec
from mcagent.controller.leader.exports.status import Conflict
from mcagent.model.objects import IpProtocol
from mcagent.model.parsing.field import printable
from mcagent.model.traffic import TRAFFIC_ANNOTATION

_SHOWN = 3  # clusters that differ and are named in a message
_LONGEST = 200  # characters of what each of them says


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What is imported; by cluster the names of its ports that serve; the conflict that all are told, if any."""

    spec: ServiceSpec
    ports: Mapping[str, frozenset[str]] = field(default_factory=dict)
    conflict: Conflict | None = None


Said = tuple[str, ServiceSpec]  # a cluster, and what it says


def define(said: Sequence[Said]) -> Definition:
    """Merge what clusters say, the oldest first; at least one does."""
    ports, serving = _union(said)
    conflicts = [found for found in (_conflict(said, *rule) for rule in _RULES) if found is not None]
    conflict = None
    if conflicts:
        message = "; ".join(found.message for found in conflicts)
        conflict = Conflict(reason=conflicts[0].reason, message=message)
    return Definition(spec=replace(said[0][1], ports=ports), ports=serving, conflict=conflict)


def differs(mine: ServiceSpec, theirs: ServiceSpec) -> str:
    """Return the first of type and ports in which two definitions differ, "" if none does."""
    if mine.headless != theirs.headless:
        return f"it is {_type(mine)} here and {_type(theirs)} there"
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


def _union(said: Iterable[Said]) -> tuple[tuple[PayloadPort, ...], dict[str, frozenset[str]]]:
    """Return all ports, and by cluster the names of its own among them.

    The older of two that exclude each other stays. A port without a name excludes all others: a Service with
    several ports names each.
    """
    kept: dict[str, PayloadPort] = {}
    numbers: set[tuple[int, IpProtocol]] = set()
    serving: dict[str, frozenset[str]] = {}
    for cluster, spec in said:
        own = set()
        for port in spec.ports:
            number = (port.port, port.protocol)
            there = kept.get(port.name)
            if there is not None:
                if number == (there.port, there.protocol):
                    own.add(port.name)
                continue
            unnamed = bool(kept) and (not port.name or "" in kept)
            if unnamed or number in numbers or len(kept) == MAX_PORTS:
                continue
            kept[port.name] = port
            numbers.add(number)
            own.add(port.name)
        serving[cluster] = frozenset(own)
    return tuple(kept.values()), serving


# --- conflicts ----------------------------------------------------------------------------------------------


def _conflict(
    said: Sequence[Said], reason: str, what: str, shown: Callable[[ServiceSpec], str | None]
) -> Conflict | None:
    """Return that not all say the same of something: what the oldest says, and who says otherwise."""
    values = [(cluster, value) for cluster, value in ((c, shown(spec)) for c, spec in said) if value is not None]
    if len({value for _, value in values}) < 2:
        return None
    oldest, first = values[0]
    others = [f"{_short(value)} in cluster {cluster}" for cluster, value in values[1:] if value != first]
    named = ", ".join(others[:_SHOWN]) + (f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else "")
    return Conflict(
        reason=reason, message=f"{what}: {_short(first)} in cluster {oldest}, which was first, but {named}"
    )


def _short(value: str) -> str:
    return printable(value, _LONGEST)


def _type(spec: ServiceSpec) -> str:
    return "headless" if spec.headless else "a Service with a ClusterIP"


def _number(port: PayloadPort) -> str:
    return f"{port.port}/{port.protocol}"


def _ports(spec: ServiceSpec) -> str:
    """Return the ports as text. Their order says nothing."""
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


_RULES: tuple[tuple[str, str, Callable[[ServiceSpec], str | None]], ...] = (  # None: it does not say
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
