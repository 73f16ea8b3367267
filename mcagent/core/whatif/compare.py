"""What differs between two views of reachability: what is lost, which connections break, which move. Pure.

What a move costs follows from docs/failover.md, "What ends a connection": one whose source address a gateway
translates ends when it leaves by another gateway; all others only take another way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import TypeVar

from mcagent.core.plan.diff import diff_desired
from mcagent.core.whatif.ways import View, Way, Ways
from mcagent.model.net import network_key
from mcagent.model.plan import Plan
from mcagent.model.problem import Problem

K = TypeVar("K")
NOTHING = Fraction(0)
Shares = Mapping[str, Fraction]


class Effect(StrEnum):
    """What becomes of something, the worst first."""

    LOST = "lost"  # nothing gets there any more
    BROKEN = "broken"  # open connections end; new ones work
    MOVED = "moved"  # connections go on, another way
    GAINED = "gained"
    NOTED = "noted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that would be different. `share`: of the connections that it is about, where not of all.

    `nodes` are those whose connections it is about, none where it is not about certain ones; `clusters` likewise.
    `before` and `after`: by which gateway.
    """

    effect: Effect
    text: str
    share: Fraction | None = None
    nodes: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    before: Shares = field(default_factory=dict)
    after: Shares = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What would be different: for the whole cluster, and as steps on this Node."""

    findings: tuple[Finding, ...]
    plan: Plan

    @property
    def nothing(self) -> bool:
        """Whether nothing at all would be."""
        return not self.findings and not self.plan.stages


def compare(before: View, after: View) -> Answer:
    """Return what is different in `after`."""
    found = [
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
    return Answer(
        findings=tuple(sorted(found, key=lambda one: order.index(one.effect))),
        plan=diff_desired(before.desired, after.desired),
    )


def _nodes(before: View, after: View) -> Iterator[Finding]:
    for name in sorted(after.silent - before.silent):
        if name in before.places:
            text = f"Node {name} and all that runs on it: its Pods reach nothing, and are not reached"
            yield Finding(effect=Effect.LOST, text=text, nodes=(name,))
    for name in sorted(after.refused - before.refused):
        text = f"{name} would not drain: no other gateway of this cluster could take over"
        yield Finding(effect=Effect.NOTED, text=text, nodes=(name,))
    for name in sorted(before.gateways.keys() - after.gateways.keys()):
        yield Finding(effect=Effect.NOTED, text=f"{name}: no longer a gateway", nodes=(name,))
    for name in sorted(after.gateways.keys() - before.gateways.keys()):
        yield Finding(effect=Effect.NOTED, text=f"{name} becomes a gateway", nodes=(name,))
    for name in sorted(before.gateways.keys() & after.gateways.keys()):
        was, now = before.gateways[name].standby, after.gateways[name].standby
        if was != now and name not in after.silent:
            text = f"{name} is on standby: {now}" if now else f"{name} is no longer on standby (was: {was})"
            yield Finding(effect=Effect.NOTED, text=text, nodes=(name,))


def _clusters(before: View, after: View) -> Iterator[Finding]:
    """What other clusters are, wherever one looks from."""
    for name in sorted(before.clusters.keys() | after.clusters.keys()):
        was, now, of = before.clusters.get(name), after.clusters.get(name), (name,)
        if was is None or now is None:
            effect, text = (Effect.GAINED, "can be reached") if was is None else (Effect.LOST, _CLUSTER_GONE)
            yield Finding(effect=effect, text=text, clusters=of)
            continue
        gone, new = set(was.cidrs) - set(now.cidrs), set(now.cidrs) - set(was.cidrs)
        for effect, cidrs in ((Effect.LOST, gone), (Effect.GAINED, new)):
            if cidrs:
                named = ", ".join(map(str, sorted(cidrs, key=network_key)))
                yield Finding(effect=effect, text=f"its addresses {named}", clusters=of)
        changed = _translates_pods(before, name) is not _translates_pods(after, name)
        if changed:
            way = "start using" if _translates_pods(after, name) else "stop using"
            text = f"Pods {way} their gateway's address there: their open connections end"
            yield Finding(effect=Effect.BROKEN, text=text, clusters=of)


_CLUSTER_GONE = "it is no longer reached, and reaches nothing here: all connections end"


def _translates_pods(view: View, cluster: str) -> bool:
    """Tell whether Pods of this cluster have a gateway's address there."""
    return view.clusters[cluster].snat or not view.published


# --- connections that are opened here


@dataclass(frozen=True, slots=True)
class _Change:
    """One thing that becomes of a place's connections to a cluster; the shares by gateway where they tell more."""

    effect: Effect
    share: Fraction
    text: str
    before: tuple[tuple[str, Fraction], ...] = ()
    after: tuple[tuple[str, Fraction], ...] = ()


def _connections(before: View, after: View) -> Iterator[Finding]:
    """Put together what is alike: the same change of several clusters, for several Nodes."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for name in sorted(before.places.keys() & after.places.keys()):
        nodes.setdefault((before.places[name], after.places[name]), []).append(name)
    alike: dict[_Change, dict[str, list[str]]] = {}
    for cluster in sorted(before.clusters.keys() & after.clusters.keys()):
        for (was, now), names in nodes.items():
            ways = before.ways.get(was, {}).get(cluster, {}), after.ways.get(now, {}).get(cluster, {})
            for change in _changes(*ways, all_translated=_translates_pods(after, cluster)):
                alike.setdefault(change, {}).setdefault(cluster, []).extend(names)
    for change, of in alike.items():
        together: dict[tuple[str, ...], list[str]] = {}
        for cluster, names in of.items():
            together.setdefault(tuple(sorted(names)), []).append(cluster)
        for group, clusters in together.items():
            yield Finding(
                effect=change.effect,
                text=change.text,
                share=change.share,
                nodes=group,
                clusters=tuple(clusters),
                before=dict(change.before),
                after=dict(change.after),
            )


def _changes(before: Ways, after: Ways, *, all_translated: bool) -> Iterator[_Change]:
    lost = sum(before.values(), NOTHING) - sum(after.values(), NOTHING)
    newly = max(lost, NOTHING)
    if lost > 0:
        yield _Change(Effect.LOST, lost, "connections there, and answers from here, reach no gateway")
    elif lost < 0:
        yield _Change(Effect.GAINED, -lost, "connections there find a gateway")
    if (moved := _less(before, after) - newly) > 0:
        shown = [_by(ways, lambda way: way.leaves_by) for ways in (before, after)]
        if shown[0] == shown[1]:
            shown = [_by(ways, lambda way: way.far) for ways in (before, after)]
        sides = [tuple(sorted(one.items())) for one in shown]
        yield _Change(Effect.MOVED, moved, "connections go another way and stay open", *sides)
    translated = [_by(ways, lambda way: f"{way.leaves_by} {way.source}") for ways in (before, after)]
    if (broken := _less(*translated) - newly) > 0:
        whose = "all of these are" if all_translated else "those of processes on the host's network are"
        text = f"connections that the gateway translates end with it ({whose}): their clients get a reset"
        yield _Change(Effect.BROKEN, broken, text)


def _by(ways: Ways, key: Callable[[Way], str]) -> dict[str, Fraction]:
    found: dict[str, Fraction] = {}
    for way, part in ways.items():
        found[key(way)] = found.get(key(way), NOTHING) + part
    return found


def _less(before: Mapping[K, Fraction], after: Mapping[K, Fraction]) -> Fraction:
    """Return which part is elsewhere now: whoever has less than before has lost that to others.

    Exact where numbers are scored by a hash: a connection moves only from one that goes, or to one that comes.
    """
    return sum((max(part - after.get(key, NOTHING), NOTHING) for key, part in before.items()), NOTHING)


# --- what others open, and Services


def _arriving(before: View, after: View) -> Iterator[Finding]:
    if before.arriving == after.arriving or not before.arriving:
        return
    if not after.arriving:
        yield Finding(effect=Effect.LOST, text="no other cluster can connect here: no gateway is left")
        return
    yield Finding(
        effect=Effect.MOVED,
        text="connections that other clusters open here come in another way and stay open",
        share=_less(before.arriving, after.arriving),
        before=before.arriving,
        after=after.arriving,
    )


def _exports(before: View, after: View) -> Iterator[Finding]:
    for name in sorted(before.exports.keys() | after.exports.keys()):
        was, now = before.exports.get(name, frozenset()), after.exports.get(name, frozenset())
        what = f"exported Service {name}"
        if gone := was - now:
            left = f"{len(now)} of its {len(was)} endpoints are left: connections to the others end"
            effect, text = (Effect.BROKEN, left) if now else (Effect.LOST, "no endpoint is left")
            yield Finding(effect=effect, text=f"{what}: {text}", share=Fraction(len(gone), len(was)))
        elif now - was:
            effect = Effect.NOTED if was else Effect.GAINED
            yield Finding(effect=effect, text=f"{what}: {len(now)} endpoints in place of {len(was)}")
        elif (name in before.exports) is not (name in after.exports):
            word = "is exported, without an endpoint" if name in after.exports else "is withdrawn"
            yield Finding(effect=Effect.NOTED, text=f"{what} {word}")


def _imports(before: View, after: View) -> Iterator[Finding]:
    """A cluster that nobody here reaches has no endpoints for anybody here."""
    for name in sorted(before.imports.keys() | after.imports.keys()):
        was, now = _reached(before, name), _reached(after, name)
        gone = {cluster: count for cluster, count in was.items() if cluster not in now}
        new = tuple(cluster for cluster in now if cluster not in was)
        what = f"imported Service {name}"
        if gone and not now:
            where = ", ".join(gone)
            yield Finding(effect=Effect.LOST, text=f"{what}: its endpoints were all in {where}", clusters=(*gone,))
        elif gone:
            share = Fraction(sum(gone.values()), sum(was.values()))
            text = f"{what}: its endpoints there; new connections get one in {', '.join(now)}"
            yield Finding(effect=Effect.BROKEN, text=text, share=share, clusters=(*gone,))
        if new:
            yield Finding(effect=Effect.GAINED, text=f"{what}: endpoints there", clusters=new)


def _reached(view: View, name: str) -> dict[str, int]:
    there = {cluster for ways in view.ways.values() for cluster, found in ways.items() if found}
    found = view.imports.get(name, {}).items()
    return {cluster: count for cluster, count in found if cluster == view.cluster_id or cluster in there}


def _policies(before: View, after: View) -> Iterator[Finding]:
    was, now = (set(view.desired.state.policy_rules.values()) for view in (before, after))
    for rules, effect, word in (
        (now - was, Effect.NOTED, "applies on this Node; one that forbids also ends open connections"),
        (was - now, Effect.NOTED, "is gone from this Node"),
    ):
        for rule in sorted(rules):
            text = f"rule {rule.rule or '(unnamed)'} of {rule.policy} ({rule.direction}, {rule.verdict}) {word}"
            yield Finding(effect=effect, text=text)


def _problems(before: View, after: View) -> Iterator[Finding]:
    was, now = set(before.desired.problems), set(after.desired.problems)
    for problem in sorted(now - was, key=_order):
        yield Finding(effect=Effect.NOTED, text=f"new {problem.severity}: {problem} [{problem.reason}]")
    for problem in sorted(was - now, key=_order):
        yield Finding(effect=Effect.NOTED, text=f"no longer a problem: {problem} [{problem.reason}]")


def _order(problem: Problem) -> str:
    return str(problem)
