"""BFD's detection time of tunnels to other clusters, adapted to the path. Pure.

The configured time (interval x multiplier) is the shortest. A path gets 2, 4 or 8 times as much, up to `LONGEST`:

- The interval times the factor is no shorter than the round trip that nine of ten probes stay below. So a peer is
  not given up in less than `multiplier` round trips. A path that needs that and loses single probes gets twice as
  much, since it loses packets in bursts.
- A false alarm doubles it. An alarm is false if the next longer time would not have noticed the outage: probes
  after the alarm are answered again within the present detection time, at most `PROBES_LOST` of the later ones
  are lost, no more of the usual probes in a row than such an outage takes, and BFD is up again soon, with
  diagnostics that show that neither end was restarted.

After a quiet time it is what round trips need or, once there was a false alarm, half of what it was. A false alarm
after that doubles the quiet time.

The factor multiplies the multiplier of the BFD packets sent, which the peer applies (RFC 5880, 6.8.4). The peer
sees the same round trips and alarms, so both ends adapt. A change needs no poll sequence and no other packet rate
(6.8.3), and takes effect with the next packet (`tests/contract/test_bfd.py`). The multiplier in the database is
the memory across restarts. Must not know clocks or databases.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from statistics import quantiles

from mcagent.core.tunnel_probes import MEASURED, Examination, ProbeState
from mcagent.model.dataplane.resources import Bfd, PeerKind, TunnelPort

FACTORS = (1, 2, 4, 8)
LONGEST = 3.0  # seconds of the longest adapted detection time
MULTIPLIER_MAX = 255  # ovs-vswitchd.conf.db(5), bfd:mult
PROBES_LOST = 1  # of those sent after an alarm, after the first answer: of more, the path loses too much
UP_AGAIN = 10.0  # seconds from an alarm until the session is up again, at most, if the alarm is to be false
LOOKED_BACK = 12  # the last of the usual probes, which are sent once a second or more rarely
QUIET_ROUND_TRIP = 120.0  # seconds for which round trips need less before they get less ...
QUIET_LOSS = 600.0  # ... and for which no single probe is lost on a long path ...
QUIET_ALARM = 3600.0  # ... and without a false alarm before the time is halved, once there was one ...
QUIET_LONGEST = 86400.0  # ... at most

# Diagnostics of sessions that went down while both ends ran: a new session has none (lib/bfd.c, bfd_configure).
ALARM_DIAGNOSTICS = frozenset({"Control Detection Time Expired", "Neighbor Signaled Session Down"})


TimingInput = tuple[Bfd, ProbeState | None, Mapping[str, str]]  # see `next_timing`


@dataclass(frozen=True, slots=True, kw_only=True)
class PathTiming:
    """The factor of one tunnel. `since`: when it was last raised, lowered or needed; `quiet`: seconds from then
    until it is lowered; `lowered`: it was, after the last false alarm; `judged`: the last alarm that was judged.
    """

    factor: int = 1
    since: float = -math.inf
    quiet: float = QUIET_ROUND_TRIP
    lowered: bool = False
    judged: float = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingChange:
    """A change of a tunnel's detection time, in seconds, and why."""

    port: TunnelPort
    before: float
    after: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """The timing of all tunnels to other clusters. `factors`: those above 1; the same object while equal.

    `inputs`: those of the last `next_timing` of each tunnel. With a factor of 1 the timing changes only with
    these, so a pass of the control loop does not compute a thousand tunnels again.
    """

    timings: Mapping[str, PathTiming] = field(default_factory=dict)
    inputs: Mapping[str, TimingInput] = field(default_factory=dict)
    factors: Mapping[str, int] = field(default_factory=dict)
    changes: tuple[TimingChange, ...] = ()

    def update(
        self,
        tunnels: Iterable[tuple[TunnelPort, Mapping[str, str]]],
        probed: Mapping[str, ProbeState],
        configured: Bfd | None,
        now: float,
    ) -> Detection:
        """Return the next state. `tunnels`: with their column bfd_status (ovs-vswitchd.conf.db(5)).

        `configured`: the settings without adaptation; None: nothing is adapted.
        """
        timings, inputs, changes = {}, {}, []
        for port, status in tunnels:
            if port.peer_kind is not PeerKind.REMOTE or configured is None:
                continue
            inputs[port.name] = timing_input = (configured, probed.get(port.name), status)
            before = self.timings.get(port.name) or remembered(port.bfd, configured, now)
            if before.factor == 1 and self.inputs.get(port.name) == timing_input:
                timings[port.name] = before
                continue
            after, reason = next_timing(before, *timing_input, now)
            timings[port.name] = after
            if after.factor != before.factor:
                times = (detection_time(configured, timing.factor) for timing in (before, after))
                changes.append(TimingChange(port=port, before=next(times), after=next(times), reason=reason))
        factors = {name: timing.factor for name, timing in timings.items() if timing.factor > 1}
        return Detection(
            timings=timings,
            inputs=inputs,
            factors=self.factors if factors == self.factors else factors,
            changes=tuple(changes),
        )


def detection_time(bfd: Bfd, factor: int = 1) -> float:
    """Return the detection time in seconds (RFC 5880, 6.8.4) between two ends with these settings.

    `_at_once` of `mcagent.core.fragments.path_state` changes `min_tx` for a moment, which does not count.
    """
    return bfd.mult * factor * bfd.min_rx / 1000


def possible_factors(configured: Bfd) -> tuple[int, ...]:
    """Return the factors that keep the detection time and the multiplier within their bounds; 1 always does."""
    return tuple(
        factor
        for factor in FACTORS
        if factor == 1
        or (detection_time(configured, factor) <= LONGEST and configured.mult * factor <= MULTIPLIER_MAX)
    )


def remembered(written: Bfd | None, configured: Bfd, now: float) -> PathTiming:
    """Return the timing of a tunnel from its settings in the database, as after a restart of the agent."""
    multiplier = written.mult if written is not None else configured.mult
    factor = max(f for f in possible_factors(configured) if f == 1 or configured.mult * f <= multiplier)
    return PathTiming(factor=factor, since=now, quiet=QUIET_ALARM if factor > 1 else QUIET_ROUND_TRIP)


def next_timing(
    before: PathTiming, configured: Bfd, probed: ProbeState | None, status: Mapping[str, str], now: float
) -> tuple[PathTiming, str]:
    """Return the next timing of a tunnel, and why its factor changed ("": it did not)."""
    factors = possible_factors(configured)
    current = max(factor for factor in factors if factor <= before.factor)
    timing = replace(before, factor=current)
    if (examined := _concluded(timing, probed, status)) is not None:
        timing = replace(timing, judged=examined.began)
        lost_in_row = _lost_in_row(probed)
        detection = detection_time(configured, current)
        if now - examined.began <= UP_AGAIN and _is_false(examined, lost_in_row, detection):
            factor = next((factor for factor in factors if factor > current), current)
            quiet = min(max(QUIET_ALARM, 2 * timing.quiet if timing.lowered else timing.quiet), QUIET_LONGEST)
            timing = replace(timing, factor=factor, since=now, quiet=quiet, lowered=False)
            return timing, "a false alarm" if factor > current else ""
    round_trip, single = slow_round_trip(probed), single_losses(probed)
    needed = needed_factor(factors, configured, round_trip, single)
    if single and needed > 1 and timing.quiet < QUIET_LOSS:
        timing = replace(timing, quiet=QUIET_LOSS)
    if needed > current:
        losses = f", and {single} single probes lost" if single else ""
        return replace(timing, factor=needed, since=now), f"a round trip of {1000 * round_trip:.0f} ms{losses}"
    if needed == current:
        return replace(timing, since=now) if current > 1 else timing, ""
    if now - timing.since < timing.quiet:
        return timing, ""
    reason = f"{timing.quiet:.0f} s without need"
    if timing.quiet < QUIET_ALARM:
        return replace(timing, factor=needed, since=now, quiet=QUIET_ROUND_TRIP), reason
    lower = max(factor for factor in factors if factor < current)
    return replace(timing, factor=lower, since=now, lowered=True), reason


def needed_factor(factors: tuple[int, ...], configured: Bfd, round_trip: float, single: int) -> int:
    """Return the factor for a path with this slow round trip in seconds and these losses of single probes."""
    enough = (factor for factor in factors if factor * detection_time(configured) >= configured.mult * round_trip)
    needed = next(enough, factors[-1])
    if needed > 1 and single:
        return next((factor for factor in factors if factor > needed), needed)
    return needed


def single_losses(probed: ProbeState | None) -> int:
    """Return the number of recent probes that were lost while those before and after were answered.

    An outage, of which BFD is to tell, takes several in a row.
    """
    if probed is None or None not in probed.recent:
        return 0
    around = (0.0, *probed.recent, 0.0)
    triples = zip(around, around[1:], around[2:], strict=False)
    return sum(answer is None and before is not None and after is not None for before, answer, after in triples)


def slow_round_trip(probed: ProbeState | None) -> float:
    """Return the round trip in seconds that nine of ten recent probes stay below; 0 with too few answers."""
    round_trips = [seconds for seconds in probed.recent if seconds is not None] if probed is not None else []
    return quantiles(round_trips, n=10)[-1] if len(round_trips) >= MEASURED else 0.0


def _concluded(timing: PathTiming, probed: ProbeState | None, status: Mapping[str, str]) -> Examination | None:
    """Return the examination of an alarm to judge: it is complete, and the session that survived is up again."""
    examined = probed.examined if probed is not None else None
    if examined is None or not examined.complete or examined.began <= timing.judged:
        return None
    diagnostics = {status.get("diagnostic", ""), status.get("remote_diagnostic", "")}
    return examined if status.get("state") == "up" and diagnostics <= ALARM_DIAGNOSTICS else None


def _is_false(examined: Examination, lost_in_row: int, detection: float) -> bool:
    """Tell whether an alarm was false; `detection`: the detection time in seconds.

    `lost_in_row`: of the usual probes. An agent that is busy examines a tunnel late, when an outage may be over.
    """
    answered = [at for at, is_answered in examined.results if is_answered]
    if not answered or answered[0] >= detection or lost_in_row > 1 + 2 * detection:
        return False
    later = [is_answered for at, is_answered in examined.results if at > answered[0]]
    return later.count(False) <= PROBES_LOST


def _lost_in_row(probed: ProbeState | None) -> int:
    recent = probed.recent[-LOOKED_BACK:] if probed is not None else ()
    return max(
        (len(list(run)) for is_lost, run in groupby(recent, lambda seconds: seconds is None) if is_lost), default=0
    )
