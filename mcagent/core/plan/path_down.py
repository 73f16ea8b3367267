"""Nothing is sent to a Node before its flows are there: its tunnels say "path down" (BFD) until then.

ovs-vswitchd answers BFD as soon as it runs, with what the database says, and has no flow then: without this,
peers would send into nothing from the return of a Node until its agent has programmed it. So a new tunnel begins
with `cpath_down` (RFC 5880, 6.8.17), and where no flow is left all tunnels get it; a stage after flows and routes
takes it away. The database keeps it over a restart of ovs-vswitchd.

A bridge without tunnels and flows needs none of that: its tunnels are made when flows and routes are there (Open
vSwitch takes flows and groups over ports that do not exist yet). No packet meets anything of it before that, so
flows and the Node's own side are set up side by side. Pure; works on plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from mcagent.core.plan.diff import plan_of
from mcagent.model.plan import Op, Plan, Stage, StageKind, Step
from mcagent.model.resources import Backend, Resource, TunnelPort

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
        late.append(replace(step, op=Op.REPLACE, old=down))
    if blank:
        planned = {step.key for stage in plan.stages if stage.backend is Backend.OVSDB for step in stage.steps}
        for port in present:
            if port.key not in planned and path_down(port) != port:
                step = Step(op=Op.REPLACE, backend=Backend.OVSDB, key=port.key, old=port, new=path_down(port))
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
