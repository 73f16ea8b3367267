"""The difference between two forecasts: lost destinations, broken connections, moved connections. Pure.

By docs/failover.md, "What ends a connection", a connection whose source address a gateway translates ends when it
leaves by another gateway; all others continue by the other gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import TypeVar

from mcagent.api.plan import ForecastChange
from mcagent.core.plan.diff import diff_desired
from mcagent.model.net import network_key
from mcagent.model.plan import Plan
from mcagent.model.problem import Problem
from mcagent.trace.whatif.forecast import EgressPath, EgressPaths, Forecast

K = TypeVar("K")
NOTHING = Fraction(0)


class Effect(StrEnum):
    """The effects of a change, the worst first."""

    LOST = "lost"  # no longer reachable
    BROKEN = "broken"  # open connections end; new ones work
    MOVED = "moved"  # connections continue by another gateway
    GAINED = "gained"
    NOTED = "noted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The changes for the whole cluster, and the steps on this Node."""

    findings: tuple[ForecastChange, ...]
    plan: Plan

    @property
    def nothing(self) -> bool:
        """Whether there is no change at all."""
        return not self.findings and not self.plan.stages


def compare(before: Forecast, after: Forecast) -> Comparison:
    """Return the changes from `before` to `after`."""
    changes = [
        *_nodes(before, after),
        *_clusters(before, after),
        *_connections(before, after),
        *_arriving(before, after),
        *_exports(before, after),
        *_imports(before, after),
        *_policies(before, after),
        *_problems(before, after),
    ]
    order = list(Effect)
    return Comparison(
        findings=tuple(sorted(changes, key=lambda change: order.index(Effect(change.effect)))),
        plan=diff_desired(before.desired, after.desired),
    )


def _nodes(before: Forecast, after: Forecast) -> Iterator[ForecastChange]:
    for name in sorted(after.silent - before.silent):
        if name in before.places:
            text = f"Node {name} and all that runs on it: its Pods reach nothing, and are not reached"
            yield ForecastChange(effect=Effect.LOST, text=text, nodes=(name,))
    for name in sorted(after.refused - before.refused):
        text = f"{name} would not drain: no other gateway of this cluster could take over"
        yield ForecastChange(effect=Effect.NOTED, text=text, nodes=(name,))
    for name in sorted(before.gateways.keys() - after.gateways.keys()):
        yield ForecastChange(effect=Effect.NOTED, text=f"{name}: no longer a gateway", nodes=(name,))
    for name in sorted(after.gateways.keys() - before.gateways.keys()):
        yield ForecastChange(effect=Effect.NOTED, text=f"{name} becomes a gateway", nodes=(name,))
    for name in sorted(before.gateways.keys() & after.gateways.keys()):
        was, now = before.gateways[name].standby, after.gateways[name].standby
        if was != now and name not in after.silent:
            text = f"{name} is on standby: {now}" if now else f"{name} is no longer on standby (was: {was})"
            yield ForecastChange(effect=Effect.NOTED, text=text, nodes=(name,))


def _clusters(before: Forecast, after: Forecast) -> Iterator[ForecastChange]:
    """Yield the changes of other clusters themselves."""
    for name in sorted(before.clusters.keys() | after.clusters.keys()):
        was, now, of = before.clusters.get(name), after.clusters.get(name), (name,)
        if was is None or now is None:
            effect, text = (Effect.GAINED, "can be reached") if was is None else (Effect.LOST, _CLUSTER_GONE)
            yield ForecastChange(effect=effect, text=text, clusters=of)
            continue
        gone, new = set(was.cidrs) - set(now.cidrs), set(now.cidrs) - set(was.cidrs)
        for effect, cidrs in ((Effect.LOST, gone), (Effect.GAINED, new)):
            if cidrs:
                named = ", ".join(map(str, sorted(cidrs, key=network_key)))
                yield ForecastChange(effect=effect, text=f"its addresses {named}", clusters=of)
        changed = _translates_pods(before, name) is not _translates_pods(after, name)
        if changed:
            way = "start using" if _translates_pods(after, name) else "stop using"
            text = f"Pods {way} their gateway's address there: their open connections end"
            yield ForecastChange(effect=Effect.BROKEN, text=text, clusters=of)


_CLUSTER_GONE = "it is no longer reached, and reaches nothing here: all connections end"


def _translates_pods(view: Forecast, cluster: str) -> bool:
    """Tell whether gateways translate the addresses of this cluster's Pods to that cluster."""
    return view.clusters[cluster].snat or not view.published


# --- connections that are opened here


@dataclass(frozen=True, slots=True)
class _Shift:
    """A change of a place's connections to a cluster, with the shares by gateway if they differ."""

    effect: Effect
    share: Fraction
    text: str
    before: tuple[tuple[str, Fraction], ...] = ()
    after: tuple[tuple[str, Fraction], ...] = ()


def _connections(before: Forecast, after: Forecast) -> Iterator[ForecastChange]:
    """Yield the changes of connections from here, equal ones of several clusters and Nodes as one."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for name in sorted(before.places.keys() & after.places.keys()):
        nodes.setdefault((before.places[name], after.places[name]), []).append(name)
    alike: dict[_Shift, dict[str, list[str]]] = {}
    for cluster in sorted(before.clusters.keys() & after.clusters.keys()):
        for (was, now), names in nodes.items():
            paths = before.paths.get(was, {}).get(cluster, {}), after.paths.get(now, {}).get(cluster, {})
            for change in _changes(*paths, all_translated=_translates_pods(after, cluster)):
                alike.setdefault(change, {}).setdefault(cluster, []).extend(names)
    for change, of in alike.items():
        together: dict[tuple[str, ...], list[str]] = {}
        for cluster, names in of.items():
            together.setdefault(tuple(sorted(names)), []).append(cluster)
        for group, clusters in together.items():
            yield ForecastChange(
                effect=change.effect,
                text=change.text,
                share=float(change.share),
                nodes=group,
                clusters=tuple(clusters),
                before=_floats(dict(change.before)),
                after=_floats(dict(change.after)),
            )


def _floats(shares: Mapping[str, Fraction]) -> dict[str, float]:
    return {name: float(share) for name, share in shares.items()}


def _changes(before: EgressPaths, after: EgressPaths, *, all_translated: bool) -> Iterator[_Shift]:
    decrease = sum(before.values(), NOTHING) - sum(after.values(), NOTHING)
    lost_share = max(decrease, NOTHING)
    if decrease > 0:
        yield _Shift(Effect.LOST, decrease, "connections there, and answers from here, reach no gateway")
    elif decrease < 0:
        yield _Shift(Effect.GAINED, -decrease, "connections there find a gateway")
    translated = [_by(paths, lambda path: f"{path.leaves_by} {path.source}") for paths in (before, after)]
    broken = _less(*translated) - lost_share
    moved = _less(before, after) - lost_share
    if all_translated:  # only connections that still leave by the same gateway stay open
        moved -= max(broken, NOTHING)
    if moved > 0:
        shown = [_by(paths, lambda path: path.leaves_by) for paths in (before, after)]
        if all_translated or shown[0] == shown[1]:
            shown = [_by(paths, lambda path: path.far) for paths in (before, after)]
        sides = [tuple(sorted(shares.items())) for shares in shown]
        yield _Shift(Effect.MOVED, moved, "connections go another way and stay open", *sides)
    if broken > 0:
        whose = "all of these are" if all_translated else "those of processes on the host's network are"
        text = f"connections that the gateway translates end with it ({whose}): their clients get a reset"
        yield _Shift(Effect.BROKEN, broken, text)


def _by(paths: EgressPaths, key: Callable[[EgressPath], str]) -> dict[str, Fraction]:
    parts: dict[str, Fraction] = {}
    for path, part in paths.items():
        parts[key(path)] = parts.get(key(path), NOTHING) + part
    return parts


def _less(before: Mapping[K, Fraction], after: Mapping[K, Fraction]) -> Fraction:
    """Return the share that has moved: the sum of all decreases.

    Exact for choices by a hash: a connection moves only from a path that goes, or to one that comes.
    """
    return sum((max(part - after.get(key, NOTHING), NOTHING) for key, part in before.items()), NOTHING)


# --- connections that other clusters open, and Services


def _arriving(before: Forecast, after: Forecast) -> Iterator[ForecastChange]:
    if before.arriving == after.arriving or not before.arriving:
        return
    if not after.arriving:
        yield ForecastChange(effect=Effect.LOST, text="no other cluster can connect here: no gateway is left")
        return
    yield ForecastChange(
        effect=Effect.MOVED,
        text="connections that other clusters open here come in another way and stay open",
        share=float(_less(before.arriving, after.arriving)),
        before=_floats(before.arriving),
        after=_floats(after.arriving),
    )


def _exports(before: Forecast, after: Forecast) -> Iterator[ForecastChange]:
    for name in sorted(before.exports.keys() | after.exports.keys()):
        was, now = before.exports.get(name, frozenset()), after.exports.get(name, frozenset())
        subject = f"exported Service {name}"
        if gone := was - now:
            remaining = f"{len(now)} of its {len(was)} endpoints are left: connections to the others end"
            effect, text = (Effect.BROKEN, remaining) if now else (Effect.LOST, "no endpoint is left")
            yield ForecastChange(effect=effect, text=f"{subject}: {text}", share=len(gone) / len(was))
        elif now - was:
            effect = Effect.NOTED if was else Effect.GAINED
            yield ForecastChange(effect=effect, text=f"{subject}: {len(now)} endpoints in place of {len(was)}")
        elif (name in before.exports) is not (name in after.exports):
            word = "is exported, without an endpoint" if name in after.exports else "is withdrawn"
            yield ForecastChange(effect=Effect.NOTED, text=f"{subject} {word}")


def _imports(before: Forecast, after: Forecast) -> Iterator[ForecastChange]:
    """Yield the changes of imported Services; endpoints of a cluster that no gateway reaches do not count."""
    for name in sorted(before.imports.keys() | after.imports.keys()):
        was, now = _reached(before, name), _reached(after, name)
        gone = {cluster: count for cluster, count in was.items() if cluster not in now}
        new = tuple(cluster for cluster in now if cluster not in was)
        subject = f"imported Service {name}"
        if gone and not now:
            where = ", ".join(gone)
            yield ForecastChange(
                effect=Effect.LOST, text=f"{subject}: its endpoints were all in {where}", clusters=(*gone,)
            )
        elif gone:
            share = sum(gone.values()) / sum(was.values())
            text = f"{subject}: its endpoints there; new connections get one in {', '.join(now)}"
            yield ForecastChange(effect=Effect.BROKEN, text=text, share=share, clusters=(*gone,))
        if new:
            yield ForecastChange(effect=Effect.GAINED, text=f"{subject}: endpoints there", clusters=new)


def _reached(view: Forecast, name: str) -> dict[str, int]:
    reachable = {cluster for paths in view.paths.values() for cluster, parts in paths.items() if parts}
    endpoints = view.imports.get(name, {}).items()
    return {cluster: count for cluster, count in endpoints if cluster == view.cluster_id or cluster in reachable}


def _policies(before: Forecast, after: Forecast) -> Iterator[ForecastChange]:
    was, now = (set(view.desired.state.policy_rules.values()) for view in (before, after))
    for rules, word in (
        (now - was, "applies on this Node; one that forbids also ends open connections"),
        (was - now, "is gone from this Node"),
    ):
        for rule in sorted(rules):
            text = f"rule {rule.rule or '(unnamed)'} of {rule.policy} ({rule.direction}, {rule.verdict}) {word}"
            yield ForecastChange(effect=Effect.NOTED, text=text)


def _problems(before: Forecast, after: Forecast) -> Iterator[ForecastChange]:
    was, now = set(before.desired.problems), set(after.desired.problems)
    for problem in sorted(now - was, key=_order):
        yield ForecastChange(effect=Effect.NOTED, text=f"new {problem.severity}: {problem} [{problem.reason}]")
    for problem in sorted(was - now, key=_order):
        yield ForecastChange(effect=Effect.NOTED, text=f"no longer a problem: {problem} [{problem.reason}]")


def _order(problem: Problem) -> str:
    return str(problem)
