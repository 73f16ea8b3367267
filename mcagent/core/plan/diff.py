"""The difference of the actual and the desired state, as steps in an order that respects dependencies.

Pure and deterministic; empty if the states are equal. Must not know how a step is applied. Make before break: new
resources exist before flows and routes refer to them, and the resources that these referred to are deleted last.

No peer sends to a Node before its flows exist: until then its tunnels signal "path down" (BFD). ovs-vswitchd
answers BFD as soon as it runs, from the settings in the database, and has no flows at that time. Without path
down, peers would send to a Node from its return until its agent has programmed it, and those packets would be
lost. So a new tunnel starts with `cpath_down` (RFC 5880, 6.8.17), and all tunnels get it if the bridge has no
flows; a stage after flows and routes removes it. The database keeps it over a restart of ovs-vswitchd. A bridge
without tunnels and flows does not need it: its tunnels are created after flows and routes (Open vSwitch accepts
flows and groups with ports that do not exist). No packet reaches the bridge before, so flows and devices are set
up in parallel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.resources import (
    Link,
    LinkAddress,
    Neighbour,
    Resource,
    ResourceKey,
    Route,
    RouteType,
    TunnelPort,
)
from mcagent.model.plan import ORDER, Actual, Desired, Op, Plan, Stage, StageKind, Step

_DEVICE = (Link, LinkAddress, Neighbour)


def _before_flows(resource: Resource | None) -> bool:
    """Tell whether a netlink resource precedes flows: devices, and routes to tunnel endpoints, do."""
    if isinstance(resource, Route):
        return resource.via is None and resource.type is not RouteType.THROW
    return isinstance(resource, _DEVICE)


def diff(actual: Actual, desired: Desired) -> Plan:
    """Return the steps that make `actual` equal to `desired`."""
    desired_by_key = _by_key((fragment.owner, fragment.resources) for fragment in desired.fragments.values())
    steps: list[Step] = []
    matched = 0
    for backend, resources in actual.items():
        for key, old in resources.items():
            owner, new = desired_by_key.get((backend, key), _NOTHING)
            matched += new is not None
            if new != old:
                steps.append(Step(old=old, new=new, owner=owner))
    if matched < len(desired_by_key):
        steps.extend(
            Step(new=new, owner=owner)
            for (backend, key), (owner, new) in desired_by_key.items()
            if key not in actual.get(backend, ())
        )
    return _plan(steps)


def diff_desired(before: Desired, after: Desired) -> Plan:
    """Return the steps from one desired state to another: those of `diff` if the actual state equals `before`.

    Fragments that are the same object in both are skipped without comparing their resources.
    """
    changed_owners = [
        name for name, fragment in after.fragments.items() if before.fragments.get(name) is not fragment
    ]
    removed_owners = [name for name in before.fragments if name not in after.fragments]
    if not changed_owners and not removed_owners:
        return Plan()
    new = _by_key(_resources_only_in(after, before, changed_owners))
    old = _by_key(_resources_only_in(before, after, (*changed_owners, *removed_owners)))
    steps: list[Step] = []
    for key, (_, resource) in old.items():
        owner, target = new.get(key, _NOTHING)
        if target != resource:
            steps.append(Step(old=resource, new=target, owner=owner))
    steps.extend(Step(new=target, owner=owner) for key, (owner, target) in new.items() if key not in old)
    return _plan(steps)


def _resources_only_in(
    state: Desired, reference: Desired, names: Iterable[str]
) -> Iterator[tuple[str, Iterable[Resource]]]:
    """Yield, per fragment, the resources of `state` that are not the same objects in `reference`."""
    for name in names:
        fragment, counterpart = state.fragments.get(name), reference.fragments.get(name)
        if fragment is not None:
            reference_ids = {id(resource) for resource in counterpart.resources} if counterpart is not None else ()
            yield name, [resource for resource in fragment.resources if id(resource) not in reference_ids]


_NOTHING = ("", None)  # no owner, no resource


def _by_key(
    fragments: Iterable[tuple[str, Iterable[Resource]]],
) -> Mapping[tuple[Backend, ResourceKey], tuple[str, Resource]]:
    return {(r.backend, r.key): (name, r) for name, resources in fragments for r in resources}


def _plan(steps: list[Step]) -> Plan:
    """Sort the steps into stages.

    A tunnel whose endpoint a new tunnel needs is deleted first, in a transaction of its own: Open vSwitch 3.1
    fails to add the new one in the same transaction.
    """
    needed_endpoints = {_remote_endpoint(step.new) for step in steps} - {None}
    stages: dict[StageKind, list[Step]] = {}
    for step in steps:
        stages.setdefault(_kind_of(step, needed_endpoints), []).append(step)
    return plan_of(stages)


def _kind_of(step: Step, needed_endpoints: set[tuple[object, ...] | None]) -> StageKind:
    deletes = step.op is Op.DELETE
    match step.backend:
        case Backend.WIREGUARD:
            return StageKind.OLD_ENCRYPTION if deletes else StageKind.ENCRYPTION
        case Backend.OVSDB if deletes:
            return (
                StageKind.ROOM_FOR_TUNNELS
                if _remote_endpoint(step.old) in needed_endpoints
                else StageKind.OLD_TUNNELS
            )
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
    """Build a plan with the stages in order, without empty stages.

    Steps are sorted by key (groups before flows, sets before chains). Deletes come last, in reverse order.
    """
    return Plan(stages=tuple(Stage(kind=kind, steps=_sorted(stages[kind])) for kind in ORDER if stages.get(kind)))


def _sorted(steps: Iterable[Step]) -> tuple[Step, ...]:
    puts = [step for step in steps if step.op is not Op.DELETE]
    deletes = [step for step in steps if step.op is Op.DELETE]
    puts.sort(key=_sort_key)
    deletes.sort(key=_sort_key, reverse=True)
    return (*puts, *deletes)


def _remote_endpoint(resource: Resource | None) -> tuple[object, ...] | None:
    """Return the remote endpoint, which Open vSwitch allows only one tunnel (ofproto/tunnel.c, tnl_port_add)."""
    if not isinstance(resource, TunnelPort):
        return None
    return (resource.type, resource.remote_ip, resource.dst_port)


def _sort_key(step: Step) -> tuple[str, ...]:
    return step.key  # type: ignore[return-value]  # keys of one backend have one shape


# Routes are not applied in parallel with flows: ovs-vswitchd reads them, too, so both would be slower.
_PARALLEL_TO_FLOWS = (StageKind.DEVICES, StageKind.NFT)


def path_down(port: TunnelPort) -> TunnelPort:
    """Return the port with BFD signalling path down; the same object if it does already or has no BFD."""
    if port.bfd is None or port.bfd.cpath_down:
        return port
    return replace(port, bfd=replace(port.bfd, cpath_down=True))


def takes_into_use(step: Step) -> bool:
    """Tell whether a step only ends "path down"."""
    old, new = step.old, step.new
    return isinstance(old, TunnelPort) and isinstance(new, TunnelPort) and old != new and old == path_down(new)


def flows_first(plan: Plan, ports: Iterable[Resource], *, blank: bool) -> Plan:
    """Change the plan so that no tunnel is used before the flows exist.

    `blank`: the bridge has no flows, or ovs-vswitchd does not run; then `ports` are the ports in OVSDB.
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


Lane = tuple[Stage, ...]  # stages that are applied one after another


def turns(plan: Plan) -> Iterator[tuple[Lane, ...]]:
    """Yield the turns of a plan: turns are applied one after another, the lanes of a turn in parallel."""
    empty_bridge = any(stage.kind is StageKind.FIRST_TUNNELS for stage in plan.stages)
    parallel = tuple(stage for stage in plan.stages if empty_bridge and stage.kind in _PARALLEL_TO_FLOWS)
    for stage in plan.stages:
        if stage.kind is StageKind.FLOWS and parallel:
            yield (stage,), parallel
        elif stage not in parallel:
            yield ((stage,),)


def _is_down(port: TunnelPort) -> bool:
    return port.bfd is not None and port.bfd.cpath_down
