"""Liveness of the tunnels' peers: which are live, the cause of each verdict, and which are damped for flapping.

A pure state machine: (state, observations of all ports, time) -> next state. The dataplane does not depend on it,
since groups watch BFD themselves. The agent adds three functions: it remembers which peers have ever answered BFD,
it damps flapping, and it reports transitions.

Damping: a damped port is on standby. A lost port is damped until it has been up for its hold-down time (`hold`).
The first loss sets that to `Damping.initial`; each further loss within `Damping.longest` of the last one doubles
it, up to that maximum; each such period without a loss halves it.

Exceptions:
- A port that is up is not damped while no other port of its group is usable. While none is up, the ports that were
  lost last are not damped: after a false alarm (a busy Node that answers BFD late) they still carry packets.
- Damping begins `DAMPED_AFTER` the loss. Groups stop using a lost port by themselves. A change of the groups would
  make every Node revalidate its flows while it is busy with the loss and with BFD.
- A new gateway is announced before it is ready. So its port is damped until it answers BFD, or for `GRACE`.

Times are seconds of one monotonic clock. Must not know threads, clocks or databases.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

HISTORY = 10  # transitions stored per port
DAMPED_AFTER = 0.4  # seconds from the loss of a port to its damping: before a session can be up again for long
GRACE = 3.0  # seconds that a new port has to answer BFD for the first time before it is used without BFD
PATIENCE = 10.0  # seconds without an answer after which a peer is assumed not to speak BFD
FORGET_AFTER = 600.0  # seconds for which a removed port is still reported ...
FORGOTTEN_BEYOND = 256  # ... and the maximal number of removed ports

# Diagnostics of a peer that leaves on purpose (bfd:cpath_down, and in transit); lib/bfd.c, bfd_diag_str.
_PATH_DOWN = frozenset({"Path Down", "Concatenated Path Down", "Reverse Concatenated Path Down"})


class LivenessCause(StrEnum):
    """The source of a verdict on a peer."""

    BFD = "BFD"
    NODE = "Node readiness"
    API = "API"
    DRAIN = "drain"
    DAMPING = "damping"


Verdict = tuple[bool, LivenessCause, str]  # (the port is usable, cause, explanation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Damping:
    """The initial and the longest hold-down time in seconds. With `initial` 0 nothing is damped."""

    initial: float = 1.0
    longest: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The observed state of a tunnel port. `group`: the ports that can replace each other ("cluster/east").

    `state`, `forwarding`, `remote_diagnostic` and `flap_count` are column bfd_status of ovs-vswitchd.conf.db(5).
    `bfd`: BFD is on. `seen`: the peer has answered BFD before. `silent`: no packet has ever arrived from the peer,
    although packets were sent to it. `antrea`: its cluster runs Antrea. `unready`: why the control plane does not
    select this gateway, or "".
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
    antrea: bool = False
    unready: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A change of a peer's liveness at the time `at`."""

    at: float
    live: bool
    cause: LivenessCause
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLiveness:
    """The state of one port. `damped_until`: None unless the port is damped; inf while it is down."""

    port: str
    group: str
    live: bool
    cause: LivenessCause
    text: str
    since: float
    seen: bool = False
    bfd_since: float = -math.inf  # when BFD was started, if the agent observed the start
    answering: bool = False  # BFD forwards, at the last observation
    flap_count: int = 0  # the counter of Open vSwitch, which starts at 0 with the port
    flaps: int = 0  # losses since the first observation of the port
    hold: float = 0.0
    lost_at: float = -math.inf
    damped_until: float | None = None
    damped_from: float = -math.inf  # valid if `damped_until` is set
    gone: bool = False  # removed from the desired state
    last: Observation | None = None
    transitions: tuple[Transition, ...] = ()

    @property
    def unheard(self) -> bool:
        """Whether no packet has ever come from it, although its cluster runs no Antrea, which may be silent."""
        return self.last is not None and self.last.silent and not (self.seen or self.last.antrea)


Peers = Mapping[str, PeerLiveness]  # the state of all ports, by port name


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """The next state and its results. `wake`: time of the next step without any new observation; may be inf.

    `seen`: ports whose peer has ever answered BFD. `unanswered`: ports whose peer has not within `PATIENCE`.
    """

    peers: Peers
    damped: frozenset[str]
    seen: frozenset[str]
    unanswered: frozenset[str]
    changed: tuple[PeerLiveness, ...]  # those with a new transition
    wake: float


def advance(
    state: Peers, observations: Iterable[Observation], now: float, damping: Damping, *, first: bool = False
) -> Advance:
    """Return the next state. Ports without an observation are removed from the desired state.

    `first`: the first step after the start of the agent, so the ports may have existed for long.
    """
    observed: dict[str, tuple[PeerLiveness, Verdict]] = {}
    for observation in sorted(observations, key=lambda observation: observation.port):
        observed[observation.port] = _observe(
            state.get(observation.port), observation, now, damping, new=bool(state)
        )
    usable = {
        peer.group for peer, (usable_now, _, _) in observed.values() if usable_now and peer.damped_until is None
    }
    peers: dict[str, PeerLiveness] = {}
    for name, (peer, verdict) in observed.items():
        peer = _with_bfd_start(peer, state.get(name), -math.inf if first else now)  # noqa: PLW2901
        if verdict[0] and peer.damped_until is not None:
            if peer.group in usable:
                text = f"it flaps: on standby until it has been up for {peer.hold:g} s"
                if not peer.hold:
                    text = f"it is new: on standby until BFD is up, or for {GRACE:g} s"
                verdict = (False, LivenessCause.DAMPING, text)  # noqa: PLW2901
            else:  # The last port of its group is released for good, so that damping itself causes no flapping.
                peer = replace(peer, damped_until=None)  # noqa: PLW2901
        peers[name] = _with_verdict(peer, state.get(name), verdict, now)
    for name in sorted(state.keys() - observed.keys()):
        removed = replace(state[name], gone=True, answering=False, damped_until=None)
        peers[name] = _with_verdict(removed, state[name], (False, LivenessCause.API, "no longer announced"), now)
    changed = tuple(
        peer for name, peer in peers.items() if name in state and peer.transitions is not state[name].transitions
    )
    peers = _forget(peers, now)
    damped = _damped(peers.values())
    damped_now = frozenset(name for name in damped if peers[name].damped_from <= now)
    unanswered_peers = (p for p in peers.values() if not (p.seen or p.gone) and p.last is not None and p.last.bfd)
    patience_ends = {peer.port: peer.bfd_since + PATIENCE for peer in unanswered_peers}
    waking = (until for until in patience_ends.values() if until > now)
    wake_times = (*damped.values(), *(peers[name].damped_from for name in damped.keys() - damped_now), *waking)
    return Advance(
        peers=peers,
        damped=damped_now,
        seen=frozenset(peer.port for peer in peers.values() if peer.seen and not peer.gone),
        unanswered=frozenset(name for name, until in patience_ends.items() if until <= now),
        changed=changed,
        wake=min(wake_times, default=math.inf),
    )


def _with_bfd_start(peer: PeerLiveness, before: PeerLiveness | None, now: float) -> PeerLiveness:
    """Record the time `now` if BFD was started since the last step."""
    return replace(peer, bfd_since=now) if _bfd_is_on(peer) and not _bfd_is_on(before) else peer


def _bfd_is_on(peer: PeerLiveness | None) -> bool:
    return peer is not None and not peer.gone and peer.last is not None and peer.last.bfd


def _damped(peers: Collection[PeerLiveness]) -> dict[str, float]:
    """Return the ports that are damped, or will be soon, with the end of damping."""
    usable = {peer.group for peer in peers if peer.live}
    damped_peers = [(peer, peer.damped_until) for peer in peers if peer.damped_until is not None]
    latest: dict[str, float] = {}
    for peer, _ in damped_peers:
        latest[peer.group] = max(peer.damped_from, latest.get(peer.group, -math.inf))
    return {
        peer.port: until
        for peer, until in damped_peers
        if peer.group in usable or peer.damped_from < latest[peer.group] - DAMPED_AFTER
    }


def hold_after_loss(hold: float, quiet: float, damping: Damping) -> float:
    """Return the hold-down time after one more loss, `quiet` seconds after the previous loss."""
    if damping.longest <= 0:
        return 0.0
    if quiet < damping.longest:
        return min(max(2 * hold, damping.initial), damping.longest)
    periods = min(quiet / damping.longest, 64.0)
    return min(max(hold / 2.0 ** math.floor(periods), damping.initial), damping.longest)


def _observe(
    before: PeerLiveness | None, observation: Observation, now: float, damping: Damping, *, new: bool
) -> tuple[PeerLiveness, Verdict]:
    """Apply one observation: return the peer with its damping updated, and the verdict.

    `new`: a port without previous state was created just now (at the first step it may have existed for long).
    """
    if before is not None and before.last == observation and before.damped_until is None and not before.gone:
        return before, (before.live, before.cause, before.text)
    peer = before or PeerLiveness(
        port=observation.port, group=observation.group, live=False, cause=LivenessCause.API, text="", since=now
    )
    session_up = observation.bfd and observation.state == "up"
    peer = replace(peer, group=observation.group, gone=False, seen=peer.seen or observation.seen or session_up)
    verdict = _verdict(observation, peer.seen)
    answering = session_up and observation.forwarding
    leaving = session_up and verdict[1] is LivenessCause.DRAIN  # on purpose: not a flap
    losses = 0
    if peer.answering and not answering and not leaving and observation.bfd:
        losses = 1
    elif peer.answering and answering:
        losses = max(0, observation.flap_count - peer.flap_count) // 2  # down and up between two observations
    if losses:
        peer = _with_losses(peer, losses, now, damping)
    if before is None and new and observation.bfd and not peer.seen and damping.initial > 0:
        peer = replace(peer, damped_until=now + GRACE)
    peer = replace(
        peer,
        answering=answering,
        flap_count=observation.flap_count,
        flaps=peer.flaps + losses,
        damped_until=_damped_until(peer, observation, now, answering=answering, leaving=leaving),
        last=observation,
    )
    return peer, verdict


def _with_losses(peer: PeerLiveness, losses: int, now: float, damping: Damping) -> PeerLiveness:
    """Apply a number of losses: damping begins soon, unless it is off."""
    damped_from = now + DAMPED_AFTER if peer.damped_until is None else peer.damped_from
    hold, lost_at = peer.hold, peer.lost_at
    for _ in range(min(losses, 64)):
        hold, lost_at = hold_after_loss(hold, now - lost_at, damping), now
    return replace(
        peer, hold=hold, lost_at=lost_at, damped_from=damped_from, damped_until=math.inf if hold else None
    )


def _damped_until(
    peer: PeerLiveness, observation: Observation, now: float, *, answering: bool, leaving: bool
) -> float | None:
    """Return the new end of the peer's damping; None if it is not damped."""
    until = peer.damped_until
    if until is None or not observation.bfd:
        return None
    if not peer.hold:  # a new port
        return None if answering or until <= now else until
    if answering and until == math.inf:
        return now + peer.hold
    if until <= now:
        return None
    return until if answering or leaving else math.inf


def _verdict(observation: Observation, ever_answered: bool) -> Verdict:
    """Return the verdict on a port. Measurements (BFD) precede statements of the API."""
    if observation.bfd and ever_answered:
        if observation.state != "up":
            return False, LivenessCause.BFD, f"BFD is {observation.state or 'not running'}"
        if not observation.forwarding and observation.remote_diagnostic in _PATH_DOWN:
            return (
                False,
                LivenessCause.DRAIN,
                f'the peer signals "{observation.remote_diagnostic}": it asks not to be used',
            )
        if not observation.forwarding:
            return False, LivenessCause.BFD, f"BFD is up but does not forward ({observation.remote_diagnostic})"
    if observation.unready:
        return False, LivenessCause.NODE, observation.unready
    if not observation.bfd:
        return True, LivenessCause.API, "used without BFD, which is off here"
    if not ever_answered and observation.antrea:
        return True, LivenessCause.API, "used without BFD, which Antrea does not have"
    if not ever_answered and observation.silent:
        return (
            True,
            LivenessCause.API,
            "used only as a last resort: nothing ever came from it (blocked, or an idle gateway of Antrea)",
        )
    if not ever_answered:
        return True, LivenessCause.API, "used without BFD, which it never answered"
    return True, LivenessCause.BFD, "BFD is up"


def _with_verdict(peer: PeerLiveness, before: PeerLiveness | None, verdict: Verdict, now: float) -> PeerLiveness:
    """Apply a verdict, and record the transition if the verdict changed. The first verdict is no transition."""
    live, cause, text = verdict
    if before is not None and (before.live, before.cause) == (live, cause):
        return peer if peer.text == text else replace(peer, text=text)
    changed = replace(peer, live=live, cause=cause, text=text, since=now)
    if before is None:
        return changed
    transition = Transition(at=now, live=live, cause=cause, text=text)
    return replace(changed, transitions=(*peer.transitions, transition)[-HISTORY:])


def _forget(peers: Peers, now: float) -> dict[str, PeerLiveness]:
    gone = sorted((p for p in peers.values() if p.gone), key=lambda p: (-p.since, p.port))
    dropped = {p.port for i, p in enumerate(gone) if i >= FORGOTTEN_BEYOND or now - p.since > FORGET_AFTER}
    return {name: peer for name, peer in peers.items() if name not in dropped}
