"""The steps from what is to what should be, in an order in which nothing stands on what is not there yet.

Pure and deterministic; empty when both are equal. Knows nothing of how a step is applied. Make before break:
everything new stands before flows and routes point to it, and what they pointed to goes last.

Nothing is sent to a Node before its flows are there: its tunnels say "path down" (BFD) until then. ovs-vswitchd
answers BFD as soon as it runs, with what the database says, and has no flow then: without this, peers would send
into nothing from the return of a Node until its agent has programmed it. So a new tunnel begins with `cpath_down`
(RFC 5880, 6.8.17), and where no flow is left all tunnels get it; a stage after flows and routes takes it away. The
database keeps it over a restart of ovs-vswitchd. A bridge without tunnels and flows needs none of that: its
tunnels are made when flows and routes are there (Open vSwitch takes flows and groups over ports that do not exist
yet). No packet meets anything of it before that, so flows and the Node's own side are set up side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from mcagent.model.plan import ORDER, Actual, Desired, Op, Plan, Stage, StageKind, Step
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

_DEVICE = (Link, LinkAddress, Neighbour)


def _before_flows(resource: Resource | None) -> bool:
    """Tell whether flows need this netlink resource: devices, and routes to tunnel endpoints."""
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
            owner, new = wanted.get((backend, key), _NOTHING)
            seen += new is not None
            if new != old:
                steps.append(Step(old=old, new=new, owner=owner))
    if seen < len(wanted):
        steps.extend(
            Step(new=new, owner=owner)
            for (backend, key), (owner, new) in wanted.items()
            if key not in actual.get(backend, ())
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
        owner, wanted = new.get(place, _NOTHING)
        if wanted != resource:
            steps.append(Step(old=resource, new=wanted, owner=owner))
    steps.extend(Step(new=wanted, owner=owner) for place, (owner, wanted) in new.items() if place not in old)
    return _plan(steps)


def _apart(one: Desired, other: Desired, names: Iterable[str]) -> Iterator[tuple[str, Iterable[Resource]]]:
    """Return what only one has in these fragments, or has as another object than the other."""
    for name in names:
        fragment, twin = one.fragments.get(name), other.fragments.get(name)
        if fragment is not None:
            there = {id(resource) for resource in twin.resources} if twin is not None else ()
            yield name, [resource for resource in fragment.resources if id(resource) not in there]


_NOTHING = ("", None)  # no owner, no resource


def _by_key(
    fragments: Iterable[tuple[str, Iterable[Resource]]],
) -> Mapping[tuple[Backend, ResourceKey], tuple[str, Resource]]:
    return {(r.backend, r.key): (name, r) for name, resources in fragments for r in resources}


def _plan(steps: list[Step]) -> Plan:
    """Sort the steps into stages.

    A tunnel whose place another one takes is deleted first, in a transaction of its own: in one transaction Open
    vSwitch 3.1 fails to add the other.
    """
    taken = {_tunnel_place(step.new) for step in steps} - {None}
    stages: dict[StageKind, list[Step]] = {}
    for step in steps:
        stages.setdefault(_kind_of(step, taken), []).append(step)
    return plan_of(stages)


def _kind_of(step: Step, taken: set[tuple[object, ...] | None]) -> StageKind:
    deletes = step.op is Op.DELETE
    match step.backend:
        case Backend.WIREGUARD:
            return StageKind.OLD_ENCRYPTION if deletes else StageKind.ENCRYPTION
        case Backend.OVSDB if deletes:
            return StageKind.ROOM_FOR_TUNNELS if _tunnel_place(step.old) in taken else StageKind.OLD_TUNNELS
        case Backend.OVSDB:
            return StageKind.TUNNELS
        case Backend.NETLINK if deletes:
            return StageKind.OLD_ROUTES
        case Backend.NETLINK:
            return StageKind.DEVICES if _before_flows(step.new) else StageKind.ROUTES
        case Backend.NFT:
            return StageKind.NFT
        case Backend.OPENFLOW:
            return StageKind.FLOWS


def plan_of(stages: Mapping[StageKind, Iterable[Step]]) -> Plan:
    """Return the plan of these stages, in order; stages without steps are left out.

    Steps are sorted by key (groups before flows, sets before chains), deletes come last and in reverse.
    """
    return Plan(stages=tuple(Stage(kind=kind, steps=_sorted(stages[kind])) for kind in ORDER if stages.get(kind)))


def _sorted(steps: Iterable[Step]) -> tuple[Step, ...]:
    puts = [step for step in steps if step.op is not Op.DELETE]
    deletes = [step for step in steps if step.op is Op.DELETE]
    puts.sort(key=_sort_key)
    deletes.sort(key=_sort_key, reverse=True)
    return (*puts, *deletes)


def _tunnel_place(resource: Resource | None) -> tuple[object, ...] | None:
    """Return what Open vSwitch lets only one tunnel have (ofproto/tunnel.c, tnl_port_add): the peer's end."""
    if not isinstance(resource, TunnelPort):
        return None
    return (resource.type, resource.remote_ip, resource.dst_port)


def _sort_key(step: Step) -> tuple[str, ...]:
    return step.key  # type: ignore[return-value]  # keys of one backend have one shape


# Not routes: ovs-vswitchd reads them, too, and both get slower.
_BESIDE_FLOWS = (StageKind.DEVICES, StageKind.NFT)


def path_down(port: TunnelPort) -> TunnelPort:
    """Return the port with BFD that asks the peer to send nothing; the same where it does, or has no BFD."""
    if port.bfd is None or port.bfd.cpath_down:
        return port
    return replace(port, bfd=replace(port.bfd, cpath_down=True))


def takes_into_use(step: Step) -> bool:
    """Tell whether a step does nothing but end "path down"."""
    old, new = step.old, step.new
    return isinstance(old, TunnelPort) and isinstance(new, TunnelPort) and old != new and old == path_down(new)


def flows_first(plan: Plan, ports: Iterable[Resource], *, blank: bool) -> Plan:
    """Return the plan in which no tunnel is used before the flows are there.

    `blank` says that the bridge has no flow now, or that ovs-vswitchd is gone; `ports` is what OVSDB holds then.
    """
    stages = {stage.kind: stage.steps for stage in plan.stages}
    create = stages.get(StageKind.TUNNELS, ())
    present = [port for port in ports if isinstance(port, TunnelPort)]
    if blank and not present and StageKind.FLOWS in stages:
        first = tuple(step for step in create if isinstance(step.new, TunnelPort))
        bare = tuple(step for step in create if not isinstance(step.new, TunnelPort))
        return plan_of({**stages, StageKind.TUNNELS: bare, StageKind.FIRST_TUNNELS: first})
    early: list[Step] = []
    late: list[Step] = []
    for step in create:
        new = step.new
        in_use = isinstance(step.old, TunnelPort) and not _is_down(step.old) and not blank
        if not isinstance(new, TunnelPort) or path_down(new) == new or in_use:
            early.append(step)
            continue
        down = path_down(new)
        if step.old != down:
            early.append(replace(step, new=down))
        late.append(replace(step, old=down))
    if blank:
        planned = {step.key for stage in plan.stages if stage.backend is Backend.OVSDB for step in stage.steps}
        for port in present:
            if port.key not in planned and path_down(port) != port:
                step = Step(old=port, new=path_down(port))
                early.append(step)
                late.append(replace(step, old=step.new, new=port))
    if not late:
        return plan
    return plan_of({**stages, StageKind.TUNNELS: early, StageKind.TUNNELS_IN_USE: late})


Lane = tuple[Stage, ...]  # stages that are applied one after the other


def turns(plan: Plan) -> Iterator[tuple[Lane, ...]]:
    """Return the stages in order: turns one after the other, lanes of one turn side by side."""
    empty_bridge = any(stage.kind is StageKind.FIRST_TUNNELS for stage in plan.stages)
    beside = tuple(stage for stage in plan.stages if empty_bridge and stage.kind in _BESIDE_FLOWS)
    for stage in plan.stages:
        if stage.kind is StageKind.FLOWS and beside:
            yield (stage,), beside
        elif stage not in beside:
            yield ((stage,),)


def _is_down(port: TunnelPort) -> bool:
    return port.bfd is not None and port.bfd.cpath_down
