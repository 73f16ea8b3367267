"""Which tunnels' peers are live, who says so, and which are damped because they flap.

A pure state machine: (state, what Open vSwitch says of every port, time) -> the next state. The dataplane does
not wait for it: groups watch BFD by themselves. The agent adds three things: it remembers whose peer has ever
answered BFD, it damps flapping, and it reports transitions.

Damping: a damped port is on standby. A port that was lost is damped until it has been up for its hold-down time
(`hold`). The first loss makes that `Damping.initial`; each further loss within `Damping.longest` of the last one
doubles it, up to that; each such time without a loss halves it.

Exceptions:
- A port that is up is not damped while no other port of its group can be used. While none is up, those that were
  lost last are not: after a false alarm (a busy Node that answers BFD late) packets still get through by them.
- Damping begins `DAMPED_AFTER` the loss. Groups leave a lost port by themselves; a change of them at that moment
  would make every Node look through its flows again, while all are busy with the loss and with BFD.
- A new gateway is announced before it is ready. So its port is damped until it answers BFD, or for `GRACE`.

Times are seconds of one monotonic clock. Knows no thread, clock or database.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

HISTORY = 10  # transitions remembered of a port
DAMPED_AFTER = 0.4  # seconds after its loss from which a port is damped: before a session can be up again for long
GRACE = 3.0  # seconds that a new port has to answer BFD for the first time before it is used without
PATIENCE = 10.0  # seconds after which one that has not answered BFD is taken for one that speaks none
FORGET_AFTER = 600.0  # seconds that a port which is no longer wanted is still reported ...
FORGOTTEN_BEYOND = 256  # ... and how many of them at most

# lib/bfd.c, bfd_diag_str: what a peer says that goes away by its own will (bfd:cpath_down, and in transit).
_PATH_DOWN = frozenset({"Path Down", "Concatenated Path Down", "Reverse Concatenated Path Down"})


class Cause(StrEnum):
    """Who decided whether a gateway is used."""

    BFD = "BFD"
    NODE = "Node readiness"
    API = "API"
    DRAIN = "drain"
    DAMPING = "damping"


Verdict = tuple[bool, Cause, str]  # whether a port can be used, who says so, and why


@dataclass(frozen=True, slots=True, kw_only=True)
class Damping:
    """How flapping is damped, in seconds. With `initial` 0 nothing is damped."""

    initial: float = 1.0
    longest: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One tunnel port now. `group` names the ports that can stand in for each other ("cluster east").

    `state`, `forwarding`, `remote_diagnostic` and `flap_count` are column bfd_status of ovs-vswitchd.conf.db(5);
    `bfd` says whether BFD is on. `seen`: the peer is known to have answered BFD before. `unready` says why the
    control plane does not choose this gateway ("" when it does). `silent`: nothing ever came from the peer, though
    packets were sent to it.
    """

    port: str
    group: str
    bfd: bool = False
    state: str = ""
    forwarding: bool = False
    remote_diagnostic: str = ""
    flap_count: int = 0
    seen: bool = False
    silent: bool = False
    unready: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """From `at` on it was live, or not, because of `cause`."""

    at: float
    live: bool
    cause: Cause
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """What is remembered of one port. `damped_until` is None unless damping keeps it out; inf while it is down."""

    port: str
    group: str
    live: bool
    cause: Cause
    text: str
    since: float
    seen: bool = False
    asked: float = -math.inf  # since when BFD asks it, where the agent saw that begin
    answering: bool = False  # BFD forwards, at the last look
    flap_count: int = 0  # Open vSwitch' own, which begins anew with the port
    flaps: int = 0  # losses since the agent knows the port
    hold: float = 0.0
    lost_at: float = -math.inf
    damped_until: float | None = None
    damped_from: float = -math.inf  # counts where `damped_until` does
    gone: bool = False  # no longer wanted
    last: Observation | None = None
    transitions: tuple[Transition, ...] = ()


Peers = Mapping[str, Peer]  # the state: all ports by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """The next state and what follows. `wake`: when to look again though nothing is reported; may be inf.

    `seen` are ports whose peer has ever answered BFD, `unanswered` those whose peer had the time to and never did.
    """

    peers: Peers
    damped: frozenset[str]
    seen: frozenset[str]
    unanswered: frozenset[str]
    changed: tuple[Peer, ...]  # those with a new transition
    wake: float


def advance(
    state: Peers, observations: Iterable[Observation], now: float, damping: Damping, *, first: bool = False
) -> Advance:
    """Return the next state. Ports that are not among the observations are no longer wanted.

    `first`: nobody has looked before, so ports may have been there for long.
    """
    looked: dict[str, tuple[Peer, Verdict]] = {}
    for seen_now in sorted(observations, key=lambda one: one.port):
        looked[seen_now.port] = _look(state.get(seen_now.port), seen_now, now, damping, new=bool(state))
    usable = {peer.group for peer, (up, _, _) in looked.values() if up and peer.damped_until is None}
    peers: dict[str, Peer] = {}
    for name, (peer, verdict) in looked.items():
        peer = _asked(peer, state.get(name), -math.inf if first else now)  # noqa: PLW2901
        if verdict[0] and peer.damped_until is not None:
            if peer.group in usable:
                text = f"it flaps: on standby until it has been up for {peer.hold:g} s"
                if not peer.hold:
                    text = f"it is new: on standby until BFD is up, or for {GRACE:g} s"
                verdict = (False, Cause.DAMPING, text)  # noqa: PLW2901
            else:  # the last one of its group is released for good: it is not to come and go by our doing
                peer = replace(peer, damped_until=None)  # noqa: PLW2901
        peers[name] = _settle(peer, state.get(name), verdict, now)
    for name in sorted(state.keys() - looked.keys()):
        old = replace(state[name], gone=True, answering=False, damped_until=None)
        peers[name] = _settle(old, state[name], (False, Cause.API, "no longer announced"), now)
    changed = tuple(
        peer for name, peer in peers.items() if name in state and peer.transitions is not state[name].transitions
    )
    peers = _forget(peers, now)
    damped = _damped(peers.values())
    begun = frozenset(name for name in damped if peers[name].damped_from <= now)
    asked = (p for p in peers.values() if not (p.seen or p.gone) and p.last is not None and p.last.bfd)
    waited = {peer.port: peer.asked + PATIENCE for peer in asked}
    waking = (until for until in waited.values() if until > now)
    moments = (*damped.values(), *(peers[name].damped_from for name in damped.keys() - begun), *waking)
    return Advance(
        peers=peers,
        damped=begun,
        seen=frozenset(peer.port for peer in peers.values() if peer.seen and not peer.gone),
        unanswered=frozenset(name for name, until in waited.items() if until <= now),
        changed=changed,
        wake=min(moments, default=math.inf),
    )


def _asked(peer: Peer, before: Peer | None, now: float) -> Peer:
    """Return the peer with the time since when BFD asks it."""
    asks, did = (bool(one and not one.gone and one.last and one.last.bfd) for one in (peer, before))
    return replace(peer, asked=now) if asks and not did else peer


def _damped(peers: Collection[Peer]) -> dict[str, float]:
    """Return the ports that are damped, or soon will be, with when that ends."""
    usable = {peer.group for peer in peers if peer.live}
    found = [(peer, peer.damped_until) for peer in peers if peer.damped_until is not None]
    latest: dict[str, float] = {}
    for peer, _ in found:
        latest[peer.group] = max(peer.damped_from, latest.get(peer.group, -math.inf))
    return {
        peer.port: until
        for peer, until in found
        if peer.group in usable or peer.damped_from < latest[peer.group] - DAMPED_AFTER
    }


def hold_after_loss(hold: float, quiet: float, damping: Damping) -> float:
    """Return how long a port must stay up after one more loss, `quiet` seconds after the one before."""
    if damping.longest <= 0:
        return 0.0
    if quiet < damping.longest:
        return min(max(2 * hold, damping.initial), damping.longest)
    periods = min(quiet / damping.longest, 64.0)
    return min(max(hold / 2.0 ** math.floor(periods), damping.initial), damping.longest)


def _look(
    before: Peer | None, seen_now: Observation, now: float, damping: Damping, *, new: bool
) -> tuple[Peer, Verdict]:
    """Take in one observation: return the peer with its damping brought up to date, and what is said of it.

    `new`: a port that is not known was made just now (at the first look of an agent they may have been there).
    """
    if before is not None and before.last == seen_now and before.damped_until is None and not before.gone:
        return before, (before.live, before.cause, before.text)
    peer = before or Peer(
        port=seen_now.port, group=seen_now.group, live=False, cause=Cause.API, text="", since=now
    )
    answers = seen_now.bfd and seen_now.state == "up"
    peer = replace(peer, group=seen_now.group, gone=False, seen=peer.seen or seen_now.seen or answers)
    verdict = _verdict(seen_now, peer.seen)
    answering = answers and seen_now.forwarding
    leaving = answers and verdict[1] is Cause.DRAIN  # by its own will: no flap
    losses = 0
    if peer.answering and not answering and not leaving and seen_now.bfd:
        losses = 1
    elif peer.answering and answering:
        losses = max(0, seen_now.flap_count - peer.flap_count) // 2  # down and up again between two looks
    if losses:
        peer = _lost(peer, losses, now, damping)
    if before is None and new and seen_now.bfd and not peer.seen and damping.initial > 0:
        peer = replace(peer, damped_until=now + GRACE)
    peer = replace(
        peer,
        answering=answering,
        flap_count=seen_now.flap_count,
        flaps=peer.flaps + losses,
        damped_until=_damped_until(peer, seen_now, now, answering=answering, leaving=leaving),
        last=seen_now,
    )
    return peer, verdict


def _lost(peer: Peer, losses: int, now: float, damping: Damping) -> Peer:
    """Return the peer after so many losses: damped soon, unless nothing is."""
    damped_from = now + DAMPED_AFTER if peer.damped_until is None else peer.damped_from
    hold, lost_at = peer.hold, peer.lost_at
    for _ in range(min(losses, 64)):
        hold, lost_at = hold_after_loss(hold, now - lost_at, damping), now
    return replace(
        peer, hold=hold, lost_at=lost_at, damped_from=damped_from, damped_until=math.inf if hold else None
    )


def _damped_until(
    peer: Peer, seen_now: Observation, now: float, *, answering: bool, leaving: bool
) -> float | None:
    """Return until when the peer is damped now."""
    until = peer.damped_until
    if until is None or not seen_now.bfd:
        return None
    if not peer.hold:  # it is new
        return None if answering or until <= now else until
    if answering and until == math.inf:
        return now + peer.hold
    if until <= now:
        return None
    return until if answering or leaving else math.inf


def _verdict(seen_now: Observation, ever_answered: bool) -> Verdict:
    """Return whether a port can be used, who says so and why. What can be measured comes before what is said."""
    if seen_now.bfd and ever_answered:
        if seen_now.state != "up":
            return False, Cause.BFD, f"BFD is {seen_now.state or 'not running'}"
        if not seen_now.forwarding and seen_now.remote_diagnostic in _PATH_DOWN:
            return False, Cause.DRAIN, f'the peer signals "{seen_now.remote_diagnostic}": it asks not to be used'
        if not seen_now.forwarding:
            return False, Cause.BFD, f"BFD is up but does not forward ({seen_now.remote_diagnostic})"
    if seen_now.unready:
        return False, Cause.NODE, seen_now.unready
    if not seen_now.bfd:
        return True, Cause.API, "used without BFD, which is off here"
    if not ever_answered and seen_now.silent:
        return (
            True,
            Cause.API,
            "used only as a last resort: nothing ever came from it (see the problems of this Node)",
        )
    if not ever_answered:
        return True, Cause.API, "used without BFD, which it never answered"
    return True, Cause.BFD, "BFD is up"


def _settle(peer: Peer, before: Peer | None, verdict: Verdict, now: float) -> Peer:
    """Return the peer with its verdict, and with the transition if it is one. The first verdict is none."""
    live, cause, text = verdict
    if before is not None and (before.live, before.cause) == (live, cause):
        return peer if peer.text == text else replace(peer, text=text)
    settled = replace(peer, live=live, cause=cause, text=text, since=now)
    if before is None:
        return settled
    transition = Transition(at=now, live=live, cause=cause, text=text)
    return replace(settled, transitions=(*peer.transitions, transition)[-HISTORY:])


def _forget(peers: Peers, now: float) -> dict[str, Peer]:
    gone = sorted((p for p in peers.values() if p.gone), key=lambda p: (-p.since, p.port))
    dropped = {p.port for i, p in enumerate(gone) if i >= FORGOTTEN_BEYOND or now - p.since > FORGET_AFTER}
    return {name: peer for name, peer in peers.items() if name not in dropped}
