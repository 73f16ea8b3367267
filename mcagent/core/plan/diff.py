"""The steps from what is to what should be, in an order in which nothing stands on what is not there yet.

Pure and deterministic; empty when both are equal. Knows nothing of how a step is applied. Make before
break: everything new stands before flows and routes point to it, and what they pointed to goes last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mcagent.model.plan import Actual, Desired, Op, Plan, Stage, Step
from mcagent.model.resources import (
    Backend,
    Link,
    LinkAddress,
    Neighbour,
    Resource,
    ResourceKey,
    Route,
    RouteType,
    TunnelPort,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageKind:
    """One stage of every plan: what it holds, and what people call it."""

    backend: Backend
    title: str


# In the order in which they are applied. OpenFlow is one bundle: its adds, changes and deletes are seen at once.
STAGES = (
    StageKind(backend=Backend.WIREGUARD, title="set up encryption"),
    StageKind(backend=Backend.OVSDB, title="make room for tunnels"),
    StageKind(backend=Backend.OVSDB, title="create bridge and tunnels"),
    StageKind(backend=Backend.NETLINK, title="set up devices"),
    StageKind(backend=Backend.NFT, title="set packet marks and NAT rules"),
    StageKind(backend=Backend.OPENFLOW, title="program flows"),
    StageKind(backend=Backend.NETLINK, title="add routes"),
    StageKind(
        backend=Backend.OVSDB, title="create tunnels of an empty bridge"
    ),  # see `mcagent.core.plan.path_down`
    StageKind(backend=Backend.OVSDB, title="take tunnels into use"),  # see `mcagent.core.plan.path_down`
    StageKind(backend=Backend.NETLINK, title="remove routes"),
    StageKind(backend=Backend.OVSDB, title="remove tunnels"),
    StageKind(backend=Backend.WIREGUARD, title="remove encryption"),
)
_ROOM, _TUNNELS, _NO_TUNNELS = 1, 2, 10  # places in STAGES
_DEVICE = (Link, LinkAddress, Neighbour)


def _is_early(resource: Resource | None) -> bool:
    """Tell whether a thing of netlink has to be there before flows use it: so have ways to tunnel endpoints."""
    if isinstance(resource, Route):
        return resource.via is None and resource.type is not RouteType.THROW
    return isinstance(resource, _DEVICE)


def diff(actual: Actual, desired: Desired) -> Plan:
    """Return the steps that make `actual` equal to `desired`."""
    wanted = _by_key((fragment.owner, fragment.resources) for fragment in desired.fragments.values())
    steps: list[Step] = []
    seen = 0
    for backend, resources in actual.items():
        for key, old in resources.items():
            found = wanted.get((backend, key))
            if found is None:
                steps.append(_delete(old))
                continue
            seen += 1
            if found[1] != old:
                steps.append(_replace(old, found))
    if seen < len(wanted):
        steps.extend(
            _add(place, found) for place, found in wanted.items() if place[1] not in actual.get(place[0], ())
        )
    return _plan(steps)


def diff_desired(before: Desired, after: Desired) -> Plan:
    """Return the steps from one desired state to another: equal to `diff` when what is equals `before`.

    Fragments that are the very same in both are passed over without a look inside.
    """
    changed = [name for name, fragment in after.fragments.items() if before.fragments.get(name) is not fragment]
    gone = [name for name in before.fragments if name not in after.fragments]
    if not changed and not gone:
        return Plan()
    new, old = _by_key(_apart(after, before, changed)), _by_key(_apart(before, after, (*changed, *gone)))
    steps: list[Step] = []
    for place, (_, resource) in old.items():
        found = new.get(place)
        if found is None:
            steps.append(_delete(resource))
        elif found[1] != resource:
            steps.append(_replace(resource, found))
    steps.extend(_add(place, found) for place, found in new.items() if place not in old)
    return _plan(steps)


def _apart(one: Desired, other: Desired, names: Iterable[str]) -> Iterator[tuple[str, Iterable[Resource]]]:
    """Return what only one has in these fragments, or has as another object than the other."""
    for name in names:
        fragment, twin = one.fragments.get(name), other.fragments.get(name)
        if fragment is not None:
            there = {id(resource) for resource in twin.resources} if twin is not None else ()
            yield name, [resource for resource in fragment.resources if id(resource) not in there]


_Found = tuple[str, Resource]  # the owner, and the resource


def _by_key(fragments: Iterable[tuple[str, Iterable[Resource]]]) -> Mapping[tuple[Backend, ResourceKey], _Found]:
    return {(r.backend, r.key): (name, r) for name, resources in fragments for r in resources}


def _add(place: tuple[Backend, ResourceKey], found: _Found) -> Step:
    owner, new = found
    return Step(op=Op.ADD, backend=place[0], key=place[1], old=None, new=new, owner=owner)


def _replace(old: Resource, found: _Found) -> Step:
    owner, new = found
    return Step(op=Op.REPLACE, backend=new.backend, key=new.key, old=old, new=new, owner=owner)


def _delete(old: Resource) -> Step:
    # no owner: after a restart nobody knows whose an old resource was
    return Step(op=Op.DELETE, backend=old.backend, key=old.key, old=old, new=None)


def _stage_of(step: Step) -> int:
    """Return the index in STAGES."""
    deletes = step.op is Op.DELETE
    match step.backend:
        case Backend.WIREGUARD:
            return 11 if deletes else 0
        case Backend.OVSDB:
            return _NO_TUNNELS if deletes else _TUNNELS
        case Backend.NETLINK:
            if deletes:
                return 9
            return 3 if _is_early(step.new) else 6
        case Backend.NFT:
            return 4
        case Backend.OPENFLOW:
            return 5


def _plan(steps: list[Step]) -> Plan:
    """Sort the steps into stages.

    By key on adding (groups before flows, sets before chains), in reverse on deleting. A tunnel whose place
    another one takes goes first, in a transaction of its own: in one, Open vSwitch 3.1 fails to add the other.
    """
    rows: list[tuple[list[Step], list[Step]]] = [([], []) for _ in STAGES]
    for step in steps:
        rows[_stage_of(step)][step.op is Op.DELETE].append(step)
    coming = {_tunnel_place(step.new) for step in rows[_TUNNELS][0]} - {None}
    if coming:
        last = rows[_NO_TUNNELS][1]
        rows[_ROOM][1].extend(step for step in last if _tunnel_place(step.old) in coming)
        last[:] = [step for step in last if _tunnel_place(step.old) not in coming]
    stages = []
    for kind, (puts, deletes) in zip(STAGES, rows, strict=True):
        # keys of one backend have one shape, so they sort
        puts.sort(key=_sort_key)
        deletes.sort(key=_sort_key, reverse=True)
        if puts or deletes:
            stages.append(Stage(backend=kind.backend, title=kind.title, steps=(*puts, *deletes)))
    return Plan(stages=tuple(stages))


def _tunnel_place(resource: Resource | None) -> tuple[object, ...] | None:
    """Return what Open vSwitch lets only one tunnel have (ofproto/tunnel.c, tnl_port_add): the peer's end."""
    if not isinstance(resource, TunnelPort):
        return None
    return (resource.type, resource.remote_ip, resource.dst_port)


def _sort_key(step: Step) -> tuple[str, ...]:
    return step.key  # type: ignore[return-value]
