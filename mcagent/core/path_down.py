"""Nothing is sent to a Node before its flows are there: its tunnels say "path down" (BFD) until then.

ovs-vswitchd answers BFD as soon as it runs, with what the database says, and has no flow then: without this,
peers would send into nothing from the return of a Node until its agent has programmed it. So a new tunnel begins
with `cpath_down` (RFC 5880, 6.8.17), and where no flow is left all tunnels get it; a stage after flows and routes
takes it away. The database keeps it over a restart of ovs-vswitchd.

A bridge that is made in the same plan needs none of that: its tunnels are made when its flows are there (Open
vSwitch takes flows and groups over ports that do not exist yet), and what stands on neither of them is set up
meanwhile. Pure; works on plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from mcagent.core.diff import STAGES
from mcagent.model.plan import Op, Plan, Stage, Step
from mcagent.model.resources import Backend, Bridge, Resource, TunnelPort

_CREATE, _FLOWS, _NEW, _USE = (
    next(kind for kind in STAGES if kind.title == title)
    for title in (
        "create bridge and tunnels",
        "program flows",
        "create tunnels of a new bridge",
        "take tunnels into use",
    )
)


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
    if _FLOWS.title in stages and any(_makes_bridge(step) for step in stages.get(_CREATE.title, ())):
        create = stages[_CREATE.title]
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


def turns(plan: Plan) -> Iterator[tuple[Stage, ...]]:
    """Return the stages in order; those together that may be applied side by side.

    That is what comes between a new bridge and its tunnels: no packet meets any of it yet.
    """
    stages = list(plan.stages)
    titles = [stage.title for stage in stages]
    first = last = 0
    if _NEW.title in titles and _CREATE.title in titles:
        first, last = titles.index(_CREATE.title) + 1, titles.index(_NEW.title)
    for place, stage in enumerate(stages):
        if first <= place < last:
            if place == first:
                # flows first: they take longest
                yield tuple(sorted(stages[first:last], key=lambda one: one.title != _FLOWS.title))
        else:
            yield (stage,)


def _ordered(stages: Mapping[str, tuple[Step, ...]]) -> Plan:
    return Plan(
        stages=tuple(
            Stage(backend=kind.backend, title=kind.title, steps=stages[kind.title])
            for kind in STAGES
            if stages.get(kind.title)
        )
    )


def _makes_bridge(step: Step) -> bool:
    return step.op is Op.ADD and isinstance(step.new, Bridge)


def _is_down(port: TunnelPort) -> bool:
    return port.bfd is not None and port.bfd.cpath_down


def _sorted(steps: list[Step]) -> tuple[Step, ...]:
    return tuple(sorted(steps, key=lambda step: step.key))
