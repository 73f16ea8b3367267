"""Which tunnels' peers are alive, who says so, and which are kept out for a while because they come and go.

A pure state machine: (state, what Open vSwitch says of every port, time) -> the next state. The dataplane does
not wait for it: groups watch BFD by themselves. What is decided here is what the agent adds to that: it remembers
whose peer has ever answered BFD, damps flapping, and tells.

Damping: a port that was lost is used again only after it stayed up for its hold. The hold of a first loss is
`Damping.initial`; it doubles with each further loss within `Damping.longest` of the last one, up to that, and
halves for each such time without a loss. Never is everything held: a port that is up is not while no other one of
its group can be used. While none is up, those that were lost last are not: if anything still gets through, it is
by them (a false alarm: a busy Node that answers BFD late).

A port that has just been lost is put into standby a moment later: groups leave it by themselves, and to change
them just then would make every Node look through its flows once more, while all are busy with that and with BFD.

A gateway that is new is heard of before it is ready. So it is held, too, until it answers BFD; one that has none
is used after a grace.

Times are seconds of one monotonic clock. Knows no thread, clock or database.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

HISTORY = 10  # transitions remembered of a port
DAMPED_AFTER = 0.4  # seconds after its loss from which a port is held: before a session can be up again for long
GRACE = 3.0  # seconds that a new port has to answer BFD for the first time before it is used without
FORGET_AFTER = 600.0  # seconds that a port which is no longer wanted is still told of ...
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Damping:
    """How flapping is damped, in seconds. With `initial` 0 nothing is held."""

    initial: float = 1.0
    longest: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One tunnel port now. `group` names the ports that can stand in for each other ("cluster east").

    `state`, `forwarding`, `remote_diagnostic` and `flap_count` are column bfd_status of ovs-vswitchd.conf.db(5);
    `bfd` says whether BFD is on. `seen`: the peer is known to have answered BFD before. `unready` says why the
    control plane does not choose this gateway ("" when it does).
    """

    port: str
    group: str
    bfd: bool = False
    state: str = ""
    forwarding: bool = False
    remote_diagnostic: str = ""
    flap_count: int = 0
    seen: bool = False
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """All ports by name."""

    peers: Mapping[str, Peer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """The next state and what follows from it. `wake`: when to look again though nothing is told; may be inf."""

    liveness: Liveness
    damped: frozenset[str]
    seen: frozenset[str]
    transitions: tuple[tuple[Peer, Transition], ...]  # new ones, with the peer as it is now
    wake: float


def advance(state: Liveness, observations: Iterable[Observation], now: float, damping: Damping) -> Advance:
    """Return the next state. Ports that are not among the observations are no longer wanted."""
    looked: dict[str, Peer] = {}
    raw: dict[str, tuple[bool, Cause, str]] = {}
    for observation in sorted(observations, key=lambda one: one.port):
        peer, verdict = _look(state.peers.get(observation.port), observation, now, damping, new=bool(state.peers))
        looked[peer.port], raw[peer.port] = peer, verdict
    # Groups that can do without those that are held.
    usable = {peer.group for name, peer in looked.items() if raw[name][0] and peer.damped_until is None}
    peers: dict[str, Peer] = {}
    told: list[tuple[Peer, Transition]] = []
    for name, looked_at in looked.items():
        up, cause, text = raw[name]
        peer = looked_at
        if up and (peer.damped_until is None or peer.group not in usable):
            # What is the last one in its group is released for good: it is not to come and go by our doing.
            peer = peer if peer.damped_until is None else replace(peer, damped_until=None)
        elif up:
            up, cause = False, Cause.DAMPING
            text = f"it flaps: kept out until it stayed up for {peer.hold:g} s"
            if not peer.hold:
                text = f"it is new: kept out until it answers BFD, or for {GRACE:g} s"
        peers[name] = _settle(peer, state.peers.get(name), (up, cause, text), now, told)
    for name in sorted(state.peers.keys() - looked.keys()):
        old = replace(state.peers[name], gone=True, answering=False, damped_until=None)
        peers[name] = _settle(old, state.peers[name], (False, Cause.API, "no longer announced"), now, told)
    peers = _forget(peers, now)
    damped = _damped(peers.values())
    standby = frozenset(name for name in damped if peers[name].damped_from <= now)
    return Advance(
        liveness=Liveness(peers=peers),
        damped=standby,
        seen=frozenset(peer.port for peer in peers.values() if peer.seen and not peer.gone),
        transitions=tuple(told),
        wake=min(
            (*damped.values(), *(peers[name].damped_from for name in damped.keys() - standby)), default=math.inf
        ),
    )


def _damped(peers: Collection[Peer]) -> dict[str, float]:
    """Return the ports that are, or soon will be, on standby, with the end of their holds."""
    usable = {peer.group for peer in peers if peer.live}
    held = [(peer, peer.damped_until) for peer in peers if peer.damped_until is not None]
    latest: dict[str, float] = {}
    for peer, _ in held:
        latest[peer.group] = max(peer.damped_from, latest.get(peer.group, -math.inf))
    return {
        peer.port: until
        for peer, until in held
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
) -> tuple[Peer, tuple[bool, Cause, str]]:
    """Take in one observation: return the peer with its hold brought up to date, and what is said of it.

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
    hold, lost_at, damped_until, damped_from = peer.hold, peer.lost_at, peer.damped_until, peer.damped_from
    if losses and damped_until is None:
        damped_from = now + DAMPED_AFTER
    for _ in range(min(losses, 64)):
        hold, lost_at = hold_after_loss(hold, now - lost_at, damping), now
        damped_until = math.inf if hold else None
    if before is None and new and seen_now.bfd and not peer.seen and damping.initial > 0:
        damped_until = now + GRACE
    if damped_until is not None and not hold:
        if answering or damped_until <= now or not seen_now.bfd:
            damped_until = None
    elif answering and damped_until == math.inf:
        damped_until = now + hold
    elif not seen_now.bfd or (damped_until is not None and damped_until <= now):
        damped_until = None
    elif damped_until is not None and not answering and not leaving:
        damped_until = math.inf
    peer = replace(
        peer,
        answering=answering,
        flap_count=seen_now.flap_count,
        flaps=peer.flaps + losses,
        hold=hold,
        lost_at=lost_at,
        damped_until=damped_until,
        damped_from=damped_from,
        last=seen_now,
    )
    return peer, verdict


def _verdict(seen_now: Observation, ever_answered: bool) -> tuple[bool, Cause, str]:
    """Return whether a port can be used, who says so and why. What can be measured comes before what is said."""
    if seen_now.bfd and ever_answered:
        if seen_now.state != "up":
            return False, Cause.BFD, f"BFD is {seen_now.state or 'not running'}"
        if not seen_now.forwarding and seen_now.remote_diagnostic in _PATH_DOWN:
            return False, Cause.DRAIN, f'the peer says "{seen_now.remote_diagnostic}": it asks to be left'
        if not seen_now.forwarding:
            return False, Cause.BFD, f"BFD is up but does not forward ({seen_now.remote_diagnostic})"
    if seen_now.unready:
        return False, Cause.NODE, seen_now.unready
    if not seen_now.bfd:
        return True, Cause.API, "used without BFD, which is off here"
    if not ever_answered:
        return True, Cause.API, "used without BFD, which it never answered"
    return True, Cause.BFD, "BFD is up"


def _settle(
    peer: Peer,
    before: Peer | None,
    verdict: tuple[bool, Cause, str],
    now: float,
    told: list[tuple[Peer, Transition]],
) -> Peer:
    """Return the peer with its verdict; note the transition if it is one. The first verdict is none."""
    live, cause, text = verdict
    if before is None:
        return replace(peer, live=live, cause=cause, text=text, since=now)
    if (before.live, before.cause) == (live, cause):
        return peer if peer.text == text else replace(peer, text=text)
    transition = Transition(at=now, live=live, cause=cause, text=text)
    history = (*peer.transitions, transition)[-HISTORY:]
    settled = replace(peer, live=live, cause=cause, text=text, since=now, transitions=history)
    told.append((settled, transition))
    return settled


def _forget(peers: Mapping[str, Peer], now: float) -> dict[str, Peer]:
    gone = sorted((p for p in peers.values() if p.gone), key=lambda p: (-p.since, p.port))
    dropped = {p.port for i, p in enumerate(gone) if i >= FORGOTTEN_BEYOND or now - p.since > FORGET_AFTER}
    return {name: peer for name, peer in peers.items() if name not in dropped}
