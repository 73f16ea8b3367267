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

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from mcagent.core.plan.diff import STAGES
from mcagent.model.plan import Op, Plan, Stage, Step
from mcagent.model.resources import Backend, Resource, TunnelPort

_CREATE, _FLOWS, _NEW, _USE = (
    next(kind for kind in STAGES if kind.title == title)
    for title in (
        "create bridge and tunnels",
        "program flows",
        "create tunnels of an empty bridge",
        "take tunnels into use",
    )
)
# Not routes: ovs-vswitchd reads them, too, and both get slower.
_BESIDE = ("set up devices", "set packet marks and NAT rules", _FLOWS.title)


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

    `ports` is what OVSDB holds now; `blank` says that the bridge has no flow now, or that ovs-vswitchd is gone.
    """
    stages = {stage.title: stage.steps for stage in plan.stages}
    if blank and _FLOWS.title in stages and not any(isinstance(port, TunnelPort) for port in ports):
        create = stages.get(_CREATE.title, ())
        stages[_CREATE.title] = tuple(step for step in create if not isinstance(step.new, TunnelPort))
        stages[_NEW.title] = tuple(step for step in create if isinstance(step.new, TunnelPort))
        return _ordered(stages)
    early: list[Step] = []
    late: list[Step] = []
    for step in stages.get(_CREATE.title, ()):
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
        for port in ports:
            if isinstance(port, TunnelPort) and port.key not in planned and path_down(port) != port:
                step = Step(op=Op.REPLACE, backend=Backend.OVSDB, key=port.key, old=port, new=path_down(port))
                early.append(step)
                late.append(replace(step, old=step.new, new=port))
    if not late:
        return plan
    stages[_CREATE.title], stages[_USE.title] = _sorted(early), _sorted(late)
    return _ordered(stages)


def needs_flows(stage: Stage) -> bool:
    """Tell whether a stage must not be applied unless all flows went in."""
    return stage.title == _NEW.title


Lane = tuple[Stage, ...]  # stages that are applied one after the other


def turns(plan: Plan) -> Iterator[tuple[Lane, ...]]:
    """Return the stages in order: turns one after the other, lanes of one turn side by side."""
    titles = [stage.title for stage in plan.stages]
    new = titles.index(_NEW.title) if _NEW.title in titles else 0
    beside = [stage for stage in plan.stages[:new] if stage.title in _BESIDE]
    for stage in plan.stages:
        if stage not in beside:
            yield ((stage,),)
        elif stage is beside[0]:
            lanes = [tuple(s for s in beside if (s.title == _FLOWS.title) is flows) for flows in (True, False)]
            yield tuple(lane for lane in lanes if lane)


def _ordered(stages: Mapping[str, tuple[Step, ...]]) -> Plan:
    return Plan(
        stages=tuple(
            Stage(backend=kind.backend, title=kind.title, steps=stages[kind.title])
            for kind in STAGES
            if stages.get(kind.title)
        )
    )


def _is_down(port: TunnelPort) -> bool:
    return port.bfd is not None and port.bfd.cpath_down


def _sorted(steps: list[Step]) -> tuple[Step, ...]:
    return tuple(sorted(steps, key=lambda step: step.key))
