"""The answer to `mcagent plan --what-if` and `-f`: for people, and as values for JSON. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from mcagent.core.plan.render import plan_json
from mcagent.core.whatif.compare import Answer, Effect, Finding, Shares
from mcagent.model.plan import Op

_NAMED = 4  # Nodes and clusters of a line
_HEADS = {
    Effect.LOST: "LOST",
    Effect.BROKEN: "BROKEN (open connections end, new ones work)",
    Effect.MOVED: "MOVED",
    Effect.GAINED: "GAINED",
    Effect.NOTED: "ALSO",
}

Counts = Mapping[str, Mapping[str, int]]  # of open connections, by cluster


def answer_text(
    asked: Sequence[str], answer: Answer, *, node: str, silent: Iterable[str], counts: Counts | None
) -> str:
    """Return the answer for people. `silent`: who does not answer already; `counts`: this Node's connections."""
    lines = [f"What if: {'; '.join(asked)}", *(f"(already not answering: {name})" for name in sorted(silent))]
    if answer.nothing:
        return "\n".join([*lines, "", "nothing changes"])
    if not answer.findings:
        lines += ["", "nothing changes for any connection"]
    for effect in Effect:
        found = [one for one in answer.findings if one.effect is effect]
        if found:
            lines += ["", _HEADS[effect], *(line for one in found for line in _lines(one))]
    if counts is not None:
        lines += ["", f"open TCP connections that Node {node} tracks:", *_count_lines(answer, counts, node)]
    steps = answer.plan.steps
    words = {Op.ADD: "added", Op.REPLACE: "changed", Op.DELETE: "removed"}
    told = (f"{sum(step.op is op for step in steps)} {word}" for op, word in words.items())
    lines += ["", f"on Node {node} its agent would have flows, groups, tunnels and routes {', '.join(told)}"]
    return "\n".join(lines)


def _lines(one: Finding) -> Iterator[str]:
    about = []
    if one.clusters:
        about.append(f"cluster {_some(one.clusters)}")
    if one.nodes and one.share is not None:
        about.append(f"from {_some(one.nodes)}")
    share = "" if one.share is None else f"{_percent(one.share)}: "
    yield f"  {', '.join(about)}{': ' if about else ''}{share}{one.text}"
    if one.before or one.after:
        yield f"      {_by_gateway(one.before, one.after)}"


def _by_gateway(before: Shares, after: Shares) -> str:
    names = sorted({*before, *after})
    return ", ".join(
        f"{name} {_percent(before.get(name, Fraction(0)))} -> {_percent(after.get(name, Fraction(0)))}"
        for name in names
    )


def _count_lines(answer: Answer, counts: Counts, node: str) -> Iterator[str]:
    """Say how many that is about: which of them is decided by a hash that is Open vSwitch's own."""
    for cluster, found in sorted(counts.items()):
        line = f"  cluster {cluster}: {found['opened']} opened here, {found['arrived']} from there"
        moved = _part(answer, Effect.MOVED, cluster, node) * found["opened"]
        lost = _part(answer, Effect.LOST, cluster, node) * found["opened"]
        broken = _part(answer, Effect.BROKEN, cluster, node) * found["translated"]
        told = ((moved, "move"), (broken, "translated ones end"), (lost, "are lost"))
        yield line + "".join(f", about {round(number)} {word}" for number, word in told if number)


def _part(answer: Answer, effect: Effect, cluster: str, node: str) -> Fraction:
    """Return which part of a Node's own connections to a cluster the findings of this effect are about."""
    found = (one for one in answer.findings if one.effect is effect and cluster in one.clusters)
    return max((one.share or Fraction(0) for one in found if node in one.nodes), default=Fraction(0))


def answer_json(
    asked: Sequence[str], answer: Answer, *, node: str, silent: Iterable[str], counts: Counts | None
) -> dict[str, Any]:
    """Return the answer as plain values; shares are numbers from 0 to 1."""
    return {
        "whatIf": [*asked],
        "nothingChanges": answer.nothing,
        "alreadySilent": sorted(silent),
        "findings": [
            {
                "effect": str(one.effect),
                "text": one.text,
                "share": None if one.share is None else float(one.share),
                "nodes": [*one.nodes],
                "clusters": [*one.clusters],
                "before": {name: float(part) for name, part in one.before.items()},
                "after": {name: float(part) for name, part in one.after.items()},
            }
            for one in answer.findings
        ],
        "connections": counts,
        "node": node,
        "plan": plan_json(answer.plan),
    }


def _percent(share: Fraction) -> str:
    return f"{float(100 * share):.0f} %" if not share or share >= Fraction(1, 100) else "under 1 %"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
