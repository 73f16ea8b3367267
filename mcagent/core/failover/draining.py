"""How a Node hands its traffic over to other gateways, step by step.

First the gateways of other clusters get "path down" (BFD, concatenated) and move; then the Nodes of this cluster.
So a connection that a gateway translates is known to the next gateway before replies have to go there. A step ends
when no packet came for a while, or after a time-out: what still comes then cannot go by another gateway.

Pure: counts and times come in as arguments. Knows no port, clock or API.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from mcagent.model.facts import Drain
from mcagent.model.objects import Snapshot

SETTLE = 1.0  # seconds that a step takes at least: the peers hear of it with their next BFD packet
QUIET = 1.0  # seconds without a packet after which nothing comes any more (counters lag by about half a second)
LOOK = 0.25  # seconds between looks at the counters
NO_GATEWAY = "this Node is not a gateway"


class Phase(StrEnum):
    """How far it is."""

    SERVING = "serving"
    REMOTE = "moving the other clusters"
    LOCAL = "moving the Nodes of this cluster"
    DRAINED = "drained"


_TELLS = {Phase.SERVING: Drain.NONE, Phase.REMOTE: Drain.REMOTE, Phase.LOCAL: Drain.ALL, Phase.DRAINED: Drain.ALL}
_NEXT = {Phase.REMOTE: Phase.LOCAL, Phase.LOCAL: Phase.DRAINED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packets:
    """Packets that came from other clusters' gateways, and from Nodes of this cluster, since any time."""

    remote: int = 0
    local: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Draining:
    """The state. `why` says who asked; `refused` why it is not done though it was asked for.

    `clean` is False when a step ended by its time-out. `quiet_since` is when the last packet was seen to come.
    """

    phase: Phase = Phase.SERVING
    since: float = 0.0
    why: str = ""
    refused: str = ""
    clean: bool = True
    seen: int = -1  # packets at the last look; -1: none yet
    quiet_since: float = 0.0
    wake: float = math.inf

    @property
    def tells(self) -> Drain:
        """What is signalled to the peers."""
        return _TELLS[self.phase]


def asked(own: str, snapshot: Snapshot, *, flag: bool, gateway: bool) -> str:
    """Return who asks this Node (`own`) to drain, or "". `flag`: it was asked for on the Node itself."""
    node = snapshot.nodes.get(own)
    if flag:
        return "requested on the Node: mcagent drain --local"
    if node is not None and node.drain:
        return "the Node has the annotation mcagent.io/drain"
    if any(leaving.meta.name == own for leaving in snapshot.leaving):
        return "its Gateway object is gone"
    if node is not None and node.unschedulable and gateway:
        return "the Node is cordoned"
    return ""


def advance(
    state: Draining | None, *, why: str, refused: str, packets: Packets | None, now: float, timeout: float
) -> Draining:
    """Return the next state. `why` is "" while nobody wants it; `packets` is None where they cannot be counted.

    Without a state before (the agent has just started) a Node that is to be drained tells all peers at once: it
    may have done so before, and must not call them back meanwhile.
    """
    if not why or refused:
        if state is not None and state.phase is Phase.SERVING:
            return replace(state, why=why, refused=refused)
        return Draining(since=now, why=why, refused=refused)
    if state is None:
        return Draining(phase=Phase.LOCAL, since=now, why=why, quiet_since=now, wake=now + LOOK)
    if state.phase is Phase.SERVING:
        return Draining(phase=Phase.REMOTE, since=now, why=why, quiet_since=now, wake=now + LOOK)
    if state.phase is Phase.DRAINED:
        return replace(state, why=why, refused="")
    state = replace(state, why=why, refused="", wake=now + LOOK)
    count = None if packets is None else packets.remote + (packets.local if state.phase is Phase.LOCAL else 0)
    if count is None or count != state.seen:
        state = replace(state, seen=-1 if count is None else count, quiet_since=now)
    settled = now - state.since >= SETTLE and now - state.quiet_since >= QUIET
    late = now - state.since >= max(timeout, SETTLE)
    if not settled and not late:
        return state
    phase = _NEXT[state.phase]
    return Draining(
        phase=phase,
        since=now,
        why=why,
        clean=state.clean and settled,
        quiet_since=now,
        wake=math.inf if phase is Phase.DRAINED else now + LOOK,
    )
