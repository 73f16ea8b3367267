"""Liveness of the tunnels' peers: which are live, the cause of each verdict, and which are damped for flapping.

A pure state machine: (state, observations of all ports, time) -> next state. The dataplane does not depend on it,
since groups watch BFD themselves. The agent adds three functions: it remembers which peers have ever answered BFD,
it damps flapping (`HoldDown` of a port, `_choose` within its group), and it reports transitions.

Damping: a damped port is on standby. A lost port is damped until it has been up for its hold-down time (`hold`).
The first loss sets that to `Damping.initial`; each further loss within `Damping.longest` of the last one doubles
it, up to that maximum; each such period without a loss halves it.

Exceptions:
- A port that is up is not damped while no other port of its group is usable. While none is up, the ports that were
  lost last are not damped: after a false alarm (a busy Node that answers BFD late) they still carry packets.
- Damping begins `DAMPED_AFTER` the loss. Groups stop using a lost port by themselves. A change of the groups would
  make every Node revalidate its flows while it is busy with the loss and with BFD.
- A new gateway is announced before it is ready. So its port is damped until it answers BFD, or for `GRACE`.

A peer that has never answered BFD may be one without BFD, and is used. A session that stays half up for `GRACE`,
or ends so, is of a peer that has BFD, and whose packets arrive while ours are lost: it is not used.

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

    @property
    def answering(self) -> bool:
        """Whether BFD forwards."""
        return self.bfd and self.state == "up" and self.forwarding

    @property
    def leaving(self) -> bool:
        """Whether the peer asks not to be used, which is not a flap."""
        return self.bfd and self.state == "up" and not self.forwarding and self.remote_diagnostic in _PATH_DOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A change of a peer's liveness at the time `at`."""

    at: float
    live: bool
    cause: LivenessCause
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldDown:
    """The damping of one port. `until`: None unless the port is damped; inf while it is down."""

    seconds: float = 0.0  # the hold-down time after the last loss; 0.0: the port is new
    lost_at: float = -math.inf
    until: float | None = None
    begins: float = -math.inf  # valid if `until` is set

    def step(self, observation: Observation, losses: int, now: float, damping: Damping) -> HoldDown:
        """Return the next state. After losses damping begins soon, unless it is off."""
        seconds, lost_at, until, begins = self.seconds, self.lost_at, self.until, self.begins
        for _ in range(min(losses, 64)):
            seconds, lost_at = hold_after_loss(seconds, now - lost_at, damping), now
        if losses:
            begins = now + DAMPED_AFTER if until is None else begins
            until = math.inf if seconds else None
        if until is None or not observation.bfd or (observation.answering and not seconds):
            until = None
        elif seconds and observation.answering and until == math.inf:
            until = now + seconds
        elif until <= now:
            until = None
        elif seconds and not (observation.answering or observation.leaving):
            until = math.inf
        return HoldDown(seconds=seconds, lost_at=lost_at, until=until, begins=begins)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLiveness:
    """The state of one port."""

    port: str
    group: str
    live: bool
    cause: LivenessCause
    text: str
    since: float
    seen: bool = False
    bfd_since: float = -math.inf  # when BFD was started, if the agent observed the start
    half_up_since: float = math.inf  # the first observation of a session that is half up
    flaps: int = 0  # losses since the first observation of the port
    hold_down: HoldDown = HoldDown()
    gone: bool = False  # removed from the desired state
    last: Observation | None = None
    transitions: tuple[Transition, ...] = ()

    @property
    def answering(self) -> bool:
        """Whether BFD forwarded at the last observation."""
        return self.last is not None and self.last.answering and not self.gone

    @property
    def unheard(self) -> bool:
        """Whether no packet has ever come from it, although its cluster runs no Antrea, which may be silent."""
        return self.last is not None and self.last.silent and not (self.seen or self.last.antrea)


Peers = Mapping[str, PeerLiveness]  # the state of all ports, by port name


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """The next state and its results. `wake`: time of the next step without any new observation; may be inf.

    `seen`: ports whose peer has ever answered BFD, or has sent it in vain. `unanswered`: ports whose peer has not
    within `PATIENCE`.
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
        peer.group for peer, (is_usable, _, _) in observed.values() if is_usable and peer.hold_down.until is None
    }
    peers: dict[str, PeerLiveness] = {}
    for name, peer_and_verdict in observed.items():
        peer, verdict = _choose(*peer_and_verdict, usable)
        if _bfd_is_on(peer) and not _bfd_is_on(state.get(name)):
            peer = replace(peer, bfd_since=-math.inf if first else now)
        peers[name] = _with_verdict(peer, state.get(name), verdict, now)
    for name in sorted(state.keys() - observed.keys()):
        removed = replace(state[name], gone=True, hold_down=replace(state[name].hold_down, until=None))
        peers[name] = _with_verdict(removed, state[name], (False, LivenessCause.API, "no longer announced"), now)
    changed = tuple(
        peer for name, peer in peers.items() if name in state and peer.transitions is not state[name].transitions
    )
    peers = _forget(peers, now)
    damped = _damped(peers.values())
    damped_now = frozenset(name for name in damped if peers[name].hold_down.begins <= now)
    unseen = [peer for peer in peers.values() if _bfd_is_on(peer) and not peer.seen]
    patience_ends = {peer.port: peer.bfd_since + PATIENCE for peer in unseen}
    half_up_ends = (peer.half_up_since + GRACE for peer in unseen)
    waking = [until for until in (*patience_ends.values(), *half_up_ends) if until > now]
    begins = (peers[name].hold_down.begins for name in damped.keys() - damped_now)
    return Advance(
        peers=peers,
        damped=damped_now,
        seen=frozenset(peer.port for peer in peers.values() if peer.seen and not peer.gone),
        unanswered=frozenset(name for name, until in patience_ends.items() if until <= now),
        changed=changed,
        wake=min((*damped.values(), *begins, *waking), default=math.inf),
    )


def _is_half_up(observation: Observation | None) -> bool:
    """Return whether packets of the peer arrive, and it receives none of ours, or not yet (RFC 5880, 6.8.6)."""
    return observation is not None and observation.bfd and observation.state == "init"


def _bfd_is_on(peer: PeerLiveness | None) -> bool:
    return peer is not None and not peer.gone and peer.last is not None and peer.last.bfd


def _damped(peers: Collection[PeerLiveness]) -> dict[str, float]:
    """Return the ports that are damped, or will be soon, with the end of damping."""
    usable = {peer.group for peer in peers if peer.live}
    damped_peers = [(peer, peer.hold_down.until) for peer in peers if peer.hold_down.until is not None]
    latest: dict[str, float] = {}
    for peer, _ in damped_peers:
        latest[peer.group] = max(peer.hold_down.begins, latest.get(peer.group, -math.inf))
    return {
        peer.port: until
        for peer, until in damped_peers
        if peer.group in usable or peer.hold_down.begins < latest[peer.group] - DAMPED_AFTER
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
    if (
        before is not None
        and before.last == observation
        and before.hold_down.until is None
        and not before.gone
        and (before.seen or not _is_half_up(observation))
    ):
        return before, (before.live, before.cause, before.text)
    peer = before or PeerLiveness(
        port=observation.port, group=observation.group, live=False, cause=LivenessCause.API, text="", since=now
    )
    half_up_since = math.inf
    if _is_half_up(observation):
        half_up_since = peer.half_up_since if _is_half_up(peer.last) and not peer.gone else now
    has_answered = peer.seen or observation.seen or _speaks_bfd(peer, observation, half_up_since, now)
    losses, hold_down = _losses(peer, observation), peer.hold_down
    if before is None and new and observation.bfd and not has_answered and damping.initial > 0:
        hold_down = HoldDown(until=now + GRACE)
    peer = replace(
        peer,
        group=observation.group,
        gone=False,
        seen=has_answered,
        half_up_since=half_up_since,
        flaps=peer.flaps + losses,
        hold_down=hold_down.step(observation, losses, now, damping),
        last=observation,
    )
    return peer, _verdict(observation, has_answered)


def _speaks_bfd(peer: PeerLiveness, observation: Observation, half_up_since: float, now: float) -> bool:
    """Return whether a peer has answered BFD, or sends it although ours does not arrive there."""
    if not observation.bfd or observation.state == "up":
        return observation.bfd
    ended_half_up = observation.state == "down" and _is_half_up(peer.last) and not peer.gone
    return ended_half_up or half_up_since + GRACE <= now


def _losses(peer: PeerLiveness, observation: Observation) -> int:
    """Return how often the BFD session was lost since the last observation of the peer."""
    if not peer.answering or peer.last is None:
        return 0
    if observation.answering:  # down and up between two observations
        return max(0, observation.flap_count - peer.last.flap_count) // 2
    return 1 if observation.bfd and not observation.leaving else 0


def _choose(peer: PeerLiveness, verdict: Verdict, usable: Collection[str]) -> tuple[PeerLiveness, Verdict]:
    """Keep a damped port that is up on standby while another of its group is usable (`usable`: groups).

    The last port of its group is released for good, so that damping itself causes no flapping.
    """
    hold_down = peer.hold_down
    if not verdict[0] or hold_down.until is None:
        return peer, verdict
    if peer.group not in usable:
        return replace(peer, hold_down=replace(hold_down, until=None)), verdict
    text = f"it flaps: on standby until it has been up for {hold_down.seconds:g} s"
    if not hold_down.seconds:
        text = f"it is new: on standby until BFD is up, or for {GRACE:g} s"
    return peer, (False, LivenessCause.DAMPING, text)


def _verdict(observation: Observation, has_answered: bool) -> Verdict:
    """Return the verdict on a port. Measurements (BFD) precede statements of the API."""
    if observation.bfd and has_answered:
        if observation.state != "up":
            return False, LivenessCause.BFD, f"BFD is {observation.state or 'not running'}"
        if observation.leaving:
            text = f'the peer signals "{observation.remote_diagnostic}": it asks not to be used'
            return False, LivenessCause.DRAIN, text
        if not observation.forwarding:
            return False, LivenessCause.BFD, f"BFD is up but does not forward ({observation.remote_diagnostic})"
    if observation.unready:
        return False, LivenessCause.NODE, observation.unready
    if not observation.bfd:
        return True, LivenessCause.API, "used without BFD, which is off here"
    if not has_answered and observation.antrea:
        return True, LivenessCause.API, "used without BFD, which Antrea does not have"
    if not has_answered and observation.silent:
        text = "used only as a last resort: nothing ever came from it (blocked, or an idle gateway of Antrea)"
        return True, LivenessCause.API, text
    if not has_answered:
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
