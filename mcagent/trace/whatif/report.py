"""The answer to `mcagent plan --what-if` and `-f` as text, and as values of the API. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from mcagent.api.plan import ForecastChange, ForecastReport
from mcagent.core.plan.render import api_plan
from mcagent.model.parsing.field import listed
from mcagent.model.plan import Op
from mcagent.trace.whatif.compare import Comparison, Effect

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
    assumptions: Sequence[str], answer: Comparison, *, node: str, silent: Iterable[str], counts: Counts | None
) -> str:
    """Format the answer. `silent`: gateways that do not answer already; `counts`: this Node's connections."""
    lines = [f"What if: {'; '.join(assumptions)}"]
    lines += [f"(already not answering: {name})" for name in sorted(silent)]
    if answer.nothing:
        return "\n".join([*lines, "", "nothing changes"])
    if not answer.findings:
        lines += ["", "nothing changes for any connection"]
    for effect in Effect:
        changes = [change for change in answer.findings if change.effect == effect]
        if changes:
            lines += ["", _HEADS[effect], *(line for change in changes for line in _lines(change))]
    if counts is not None:
        lines += ["", f"open TCP connections that Node {node} tracks:", *_count_lines(answer, counts, node)]
    steps = answer.plan.steps
    words = {Op.ADD: "added", Op.REPLACE: "changed", Op.DELETE: "removed"}
    totals = (f"{sum(step.op is op for step in steps)} {word}" for op, word in words.items())
    lines += ["", f"on Node {node} its agent would have flows, groups, tunnels and routes {', '.join(totals)}"]
    return "\n".join(lines)


def _lines(change: ForecastChange) -> Iterator[str]:
    subjects = []
    if change.clusters:
        subjects.append(f"cluster {listed(change.clusters, _NAMED)}")
    if change.nodes and change.share is not None:
        subjects.append(f"from {listed(change.nodes, _NAMED)}")
    share = "" if change.share is None else f"{_percent(change.share)}: "
    yield f"  {', '.join(subjects)}{': ' if subjects else ''}{share}{change.text}"
    gateways = sorted({*change.before, *change.after})
    shares = (
        f"{name} {_percent(change.before.get(name, 0))} -> {_percent(change.after.get(name, 0))}"
        for name in gateways
    )
    if gateways:
        yield f"      {', '.join(shares)}"


def _count_lines(answer: Comparison, counts: Counts, node: str) -> Iterator[str]:
    """Yield the number of affected connections; a hash of Open vSwitch chooses which ones."""
    for cluster, count in sorted(counts.items()):
        line = f"  cluster {cluster}: {count['opened']} opened here, {count['arrived']} from there"
        affected = (
            (_part(answer, Effect.MOVED, cluster, node) * count["opened"], "move"),
            (_part(answer, Effect.BROKEN, cluster, node) * count["translated"], "translated ones end"),
            (_part(answer, Effect.LOST, cluster, node) * count["opened"], "are lost"),
        )
        yield line + "".join(f", about {round(number)} {word}" for number, word in affected if number)


def _part(answer: Comparison, effect: Effect, cluster: str, node: str) -> float:
    """Return the share of a Node's own connections to a cluster that have this effect."""
    changes = (change for change in answer.findings if change.effect == effect and cluster in change.clusters)
    return max((change.share or 0 for change in changes if node in change.nodes), default=0)


def api_forecast(
    assumptions: Sequence[str], answer: Comparison, *, node: str, silent: Iterable[str], counts: Counts | None
) -> ForecastReport:
    """Return the answer as a value of the API."""
    return ForecastReport(
        what_if=tuple(assumptions),
        nothing_changes=answer.nothing,
        already_silent=tuple(sorted(silent)),
        findings=answer.findings,
        connections=None if counts is None else {cluster: dict(count) for cluster, count in counts.items()},
        node=node,
        plan=api_plan(answer.plan),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if not share or share >= 0.01 else "under 1 %"
