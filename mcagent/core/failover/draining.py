"""Drain: the phases in which a gateway hands its traffic over to other gateways.

First the gateways of other clusters receive "path down" (BFD, concatenated) and move their traffic, then the Nodes
of this cluster. So the next gateway learns a translated connection from a request before replies take that way. A
phase ends when no packet has arrived for `QUIET` seconds, or after a timeout: packets that still arrive then have
no other gateway.

Pure: counts and times are arguments. Must not know ports, clocks or the API.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from mcagent.model.dataplane.facts import Drain
from mcagent.model.objects import Snapshot

SETTLE = 1.0  # minimal duration of a phase in seconds: peers learn of it with their next BFD packet
QUIET = 1.0  # seconds without a packet after which traffic has moved (counters lag by about half a second)
POLL_INTERVAL = 0.25  # seconds between readings of the counters
NO_GATEWAY = "this Node is not a gateway"


class Phase(StrEnum):
    """The phase of a drain."""

    SERVING = "serving"
    REMOTE = "moving the other clusters"
    LOCAL = "moving the Nodes of this cluster"
    DRAINED = "drained"


_SIGNALS = {
    Phase.SERVING: Drain.NONE,
    Phase.REMOTE: Drain.REMOTE,
    Phase.LOCAL: Drain.ALL,
    Phase.DRAINED: Drain.ALL,
}
_NEXT = {Phase.REMOTE: Phase.LOCAL, Phase.LOCAL: Phase.DRAINED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packets:
    """Packets received from gateways of other clusters, and from Nodes of this cluster, since a fixed time."""

    remote: int = 0
    local: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Draining:
    """The state of a drain. `why`: the reason of the request; `refused`: why it is not carried out.

    `clean` is False after a phase that ended by its timeout. `quiet_since`: time of the last counted packet.
    """

    phase: Phase = Phase.SERVING
    since: float = 0.0
    why: str = ""
    refused: str = ""
    clean: bool = True
    count: int = -1  # packets at the last reading of the counters; -1: unknown
    quiet_since: float = 0.0
    wake: float = math.inf

    @property
    def signal(self) -> Drain:
        """The drain state to signal to the peers."""
        return _SIGNALS[self.phase]


def drain_reason(own: str, snapshot: Snapshot, *, flag: bool, gateway: bool) -> str:
    """Return why Node `own` is to drain, or "". `flag`: requested on the Node itself; `gateway`: it is one."""
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
    """Return the next state at `now`; `timeout` of a phase in seconds. `why`: see `drain_reason`.

    `packets` is None if they cannot be counted. `state` is None after the start of the agent. Then a Node that is
    to drain signals all peers at once: it may have done so before the restart, and must not attract traffic again.
    """
    if not why or refused:
        if state is not None and state.phase is Phase.SERVING:
            return replace(state, why=why, refused=refused)
        return Draining(since=now, why=why, refused=refused)
    if state is None:
        return Draining(phase=Phase.LOCAL, since=now, why=why, quiet_since=now, wake=now + POLL_INTERVAL)
    if state.phase is Phase.SERVING:
        return Draining(phase=Phase.REMOTE, since=now, why=why, quiet_since=now, wake=now + POLL_INTERVAL)
    if state.phase is Phase.DRAINED:
        return replace(state, why=why, refused="")
    state = replace(state, why=why, refused="", wake=now + POLL_INTERVAL)
    count = None if packets is None else packets.remote + (packets.local if state.phase is Phase.LOCAL else 0)
    if count is None or count != state.count:
        state = replace(state, count=-1 if count is None else count, quiet_since=now)
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
        wake=math.inf if phase is Phase.DRAINED else now + POLL_INTERVAL,
    )
