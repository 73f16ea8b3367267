"""Real probes: sent by the first Node's agent, searched for on all Nodes of the path, and the conclusion.

Asks agents by the functions that it is given. `mcagent.trace.datapath` finds probes on a Node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mcagent.api.codec import from_json
from mcagent.api.trace import NodeTrace, SeenProbes, SentProbes, TraceOutcome
from mcagent.trace.drops import CAUSES
from mcagent.trace.path import Hop

Answer = Mapping[str, Any] | str  # a page, or why there is none
AskMany = Callable[[Mapping[str, str]], Mapping[str, Answer]]  # takes a page for each Node

DOCTOR = "mcagent doctor --all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """Traces of the probes on a Node of the path. `seen` is None if it was not asked; `why` is the reason."""

    node: str
    seen: bool | None
    dropped: bool = False
    tracked: bool = False  # conntrack has their connection
    answered: bool = False  # and an answer to it
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """The result of real probes. `verdict` is a sentence, `command` the next one to type ("": none)."""

    sent: int
    answered: bool
    sights: tuple[Sighting, ...]
    verdict: str
    command: str = ""

    @property
    def last_seen(self) -> str:
        """The last Node that has seen probes; "" if none has."""
        return next((sight.node for sight in reversed(self.sights) if sight.seen), "")


def send(
    hops: Sequence[Hop], count: int, ask_many: AskMany, ask: Callable[[str, str], Mapping[str, Any]]
) -> ProbeReport:
    """Send probes by the first Node's agent and search for them on all. Raises McagentError if none is sent."""
    pages = {hop.node: f"/trace/seen?{hop.probe.query()}" for hop in hops if hop.asked and hop.probe is not None}
    first = hops[0]
    assert first.probe is not None
    before, began = ask_many(pages), time.monotonic()
    page = ask(first.node, f"/trace/live?{first.probe.query()}&count={count}")
    sent = from_json(SentProbes, page, f"the agent of {first.node}")
    after = ask_many(pages)
    since = time.monotonic() - began
    sights = [_sighting(hop, before.get(hop.node, ""), after.get(hop.node, ""), since) for hop in hops]
    # The first Node's flows do not count packets that its agent injects.
    sights[0] = replace(sights[0], seen=True)
    return report(hops, tuple(sights), sent=sent.sent, answered=sent.answered)


def report(hops: Sequence[Hop], sights: tuple[Sighting, ...], *, sent: int, answered: bool) -> ProbeReport:
    """Conclude from the sightings where probes were lost."""
    verdict, command = next(_verdicts(hops, sights, answered=answered))
    return ProbeReport(sent=sent, answered=answered, sights=sights, verdict=verdict, command=command)


def _sighting(hop: Hop, page_before: Answer, page_after: Answer, since: float) -> Sighting:
    if not hop.asked or isinstance(page_before, str) or isinstance(page_after, str):
        errors = (page for page in (page_before, page_after) if isinstance(page, str) and page)
        return Sighting(
            node=hop.node, seen=None, why=next(errors, hop.unasked or hop.why).removeprefix("not asked: ")
        )
    before, after = (from_json(SeenProbes, page, f"the agent of {hop.node}") for page in (page_before, page_after))
    # A recreated flow may have the count of the one before. An existing one is compared by its count, because its
    # age depends on a virtual machine's clocks.
    counted = {flow.match: flow.packets for flow in before.flows}
    fresh_flows = [
        flow
        for flow in after.flows
        if counted.get(flow.match) != flow.packets or (flow.age is not None and flow.age < since)
    ]
    return Sighting(
        node=hop.node,
        seen=bool(fresh_flows),
        dropped=bool(fresh_flows) and all(flow.dropped for flow in fresh_flows),
        tracked=bool(after.tracked),
        answered=any(entry.answered for entry in after.tracked),
    )


def _verdicts(hops: Sequence[Hop], sights: Sequence[Sighting], *, answered: bool) -> Iterator[tuple[str, str]]:
    """Yield pairs of a sentence and the next command; only the first pair counts."""
    if answered:
        yield "an answer came back to the Pod's Node", ""
    last = max(place for place, sighting in enumerate(sights) if sighting.seen)
    hop, sight = hops[last], sights[last]
    trace = hop.trace or NodeTrace()
    after = hops[last + 1] if last + 1 < len(hops) else None
    if sight.dropped or trace.outcome in (TraceOutcome.DROPPED, TraceOutcome.REJECTED):
        cause, command = CAUSES.get(trace.reason, ("by a flow that the trace did not hit", "mcagent status"))
        yield f"last seen on {hop.node}, which drops them: {trace.reason or 'unknown'} ({cause})", command
    if trace.committed and not sight.tracked:
        text = f"last seen on {hop.node}, whose conntrack did not take them: newConnections, or a full table"
        yield text, f"mcagent status, and on Node {hop.node}: conntrack -S"
    if trace.outcome == TraceOutcome.HOST and sight.answered:
        text = f"the Pod's answer reached {hop.node}, but did not come back: see the path of the answer"
        yield text, DOCTOR
    if trace.outcome == TraceOutcome.HOST:
        text = (
            f"handed to the kernel of {hop.node}, and no answer came: the Pod does not listen, or its CNI drops it"
        )
        yield text, f"on Node {hop.node}: ip route get {trace.destination}; kubectl get networkpolicies -A"
    if after is not None and sights[last + 1].seen is None:
        yield f"last seen on {hop.node}, which sent them to {after.node}; that one was not asked", ""
    where = f"{after.node} by tunnel {hop.tunnel.name}" if after and hop.tunnel else "the next Node"
    text = f"last seen on {hop.node}, which sent them to {where}: they never arrived"
    port = 4789 if hop.tunnel is not None and hop.tunnel.type == "vxlan" else 6081
    blocked = "51821 (WireGuard)" if hop.encrypted else str(port)
    yield f"{text}. Is UDP {blocked} open between the two?", DOCTOR
