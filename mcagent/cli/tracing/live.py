"""Real probes: sent by the first Node's agent, looked for on all Nodes of the way, and what that means.

Asks through the functions that it is given. Where a probe was seen: `mcagent.core.live_trace`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mcagent.cli.tracing.peers import Page
from mcagent.cli.tracing.way import Hop, query
from mcagent.core.trace import CAUSES, Outcome

Ask = Callable[
    [Mapping[str, str]], Mapping[str, Page | str]
]  # pages by Node; for each the page, or why there is none
DOCTOR = "mcagent doctor --all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What a Node of the way has seen of the probes. `seen` is None where it was not asked; `why` says why."""

    node: str
    seen: bool | None
    dropped: bool = False
    tracked: bool = False  # conntrack has their connection
    answered: bool = False  # and an answer to it
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What became of real probes. `verdict` is a sentence, `command` what to look at next ("": nothing)."""

    sent: int
    answered: bool
    sights: tuple[Sight, ...]
    verdict: str
    command: str = ""

    @property
    def last_seen(self) -> str:
        """The last Node that has seen probes; "" if none has."""
        return next((one.node for one in reversed(self.sights) if one.seen), "")


def send(hops: Sequence[Hop], count: int, ask: Ask, send_one: Callable[[str, str], Page]) -> Live:
    """Send probes by the first Node's agent and look for them on all. Raises McagentError if none is sent."""
    asked = [hop for hop in hops if hop.asked]
    pages = {hop.node: f"/trace/seen?{query(hop.probe)}" for hop in asked if hop.probe is not None}
    assert hops[0].probe is not None
    before, began = ask(pages), time.monotonic()
    done = send_one(hops[0].node, f"/trace/live?{query(hops[0].probe)}&count={count}")
    after = ask(pages)
    since = time.monotonic() - began
    sights = [_sight(hop, before.get(hop.node, ""), after.get(hop.node, ""), since) for hop in hops]
    # The first Node's flows do not count what its agent gives them: that they have taken it is known.
    sights[0] = replace(sights[0], seen=True)
    return judged(hops, tuple(sights), sent=done["sent"], answered=done["answered"])


def judged(hops: Sequence[Hop], sights: tuple[Sight, ...], *, sent: int, answered: bool) -> Live:
    """Return what the sights mean."""
    verdict, command = next(_meaning(hops, sights, answered=answered))
    return Live(sent=sent, answered=answered, sights=sights, verdict=verdict, command=command)


def _sight(hop: Hop, before: Page | str, after: Page | str, since: float) -> Sight:
    if not hop.asked or isinstance(before, str) or isinstance(after, str):
        why = next((one for one in (before, after) if isinstance(one, str) and one), hop.unasked or hop.why)
        return Sight(node=hop.node, seen=None, why=why.removeprefix("not asked: "))
    # A flow that was made anew may have counted as many as the one before; one that was there tells by its count,
    # whatever a virtual machine's clocks make of its age.
    known = {one["match"]: one["packets"] for one in before["flows"]}
    fresh = [
        one
        for one in after["flows"]
        if known.get(one["match"]) != one["packets"] or (one["age"] is not None and one["age"] < since)
    ]
    return Sight(
        node=hop.node,
        seen=bool(fresh),
        dropped=bool(fresh) and all(one["dropped"] for one in fresh),
        tracked=bool(after["tracked"]),
        answered=any(one["answered"] for one in after["tracked"]),
    )


def _meaning(hops: Sequence[Hop], sights: Sequence[Sight], *, answered: bool) -> Iterator[tuple[str, str]]:
    """Yield sentences and next commands, of which the first is the one that counts."""
    if answered:
        yield "an answer came back to the Pod's Node", ""
    last = max(place for place, one in enumerate(sights) if one.seen)
    hop, sight = hops[last], sights[last]
    walk: Mapping[str, Any] = hop.walk or {}
    after = hops[last + 1] if last + 1 < len(hops) else None
    if sight.dropped or walk["outcome"] in (Outcome.DROPPED, Outcome.REJECTED):
        cause, command = CAUSES.get(walk["reason"], ("by a flow that the trace did not hit", "mcagent status"))
        yield f"last seen on {hop.node}, which drops them: {walk['reason'] or 'unknown'} ({cause})", command
    if walk.get("committed") and not sight.tracked:
        text = f"last seen on {hop.node}, whose conntrack did not take them: newConnections, or a full table"
        yield text, f"mcagent status, and on Node {hop.node}: conntrack -S"
    if walk["outcome"] == Outcome.HOST and sight.answered:
        yield f"the Pod's answer reached {hop.node}, but did not come back: see the way of the answer", DOCTOR
    if walk["outcome"] == Outcome.HOST:
        text = (
            f"handed to the kernel of {hop.node}, and no answer came: the Pod does not listen, or its CNI drops it"
        )
        yield text, f"on Node {hop.node}: ip route get {walk['destination']}; kubectl get networkpolicies -A"
    if after is not None and sights[last + 1].seen is None:
        yield f"last seen on {hop.node}, which sent them to {after.node}; that one was not asked", ""
    where = f"{after.node} by tunnel {hop.tunnel['name']}" if after and hop.tunnel else "the next Node"
    text = f"last seen on {hop.node}, which sent them to {where}: they never arrived"
    port = 4789 if hop.tunnel is not None and hop.tunnel.get("type") == "vxlan" else 6081
    blocked = "51821 (WireGuard)" if hop.encrypted else str(port)
    yield f"{text}. Is UDP {blocked} open between the two?", DOCTOR
