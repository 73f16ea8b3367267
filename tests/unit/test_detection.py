"""BFD's detection time adapted to the path: what raises it, what lowers it, and its bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.core.failover import detection
from mcagent.core.failover.detection import (
    LONGEST,
    MULTIPLIER_MAX,
    QUIET_ALARM,
    QUIET_LONGEST,
    QUIET_LOSS,
    QUIET_ROUND_TRIP,
    UP_AGAIN,
    Detection,
    PathTiming,
    detection_time,
    next_timing,
    possible_factors,
    remembered,
)
from mcagent.core.tunnel_probes import EXAMINED, EXAMINED_EVERY, MEASURED, Examination, ProbeState
from mcagent.model.dataplane.resources import Bfd, PeerKind, TunnelPort
from tests.worlds.core_inputs import tunnel_port

DEFAULT = Bfd(min_tx=100, min_rx=100, mult=3)
UP = {"state": "up", "diagnostic": "No Diagnostic", "remote_diagnostic": "No Diagnostic"}
EXPIRED, SIGNALED = "Control Detection Time Expired", "Neighbor Signaled Session Down"
UP_AFTER_ALARM = {"state": "up", "diagnostic": EXPIRED, "remote_diagnostic": SIGNALED}


def examination(began: float, outage: float, *, lost: int = 0) -> Examination:
    """Return an examination of a path that is out for some seconds more and then loses so many probes."""
    times = [number * EXAMINED_EVERY for number in range(EXAMINED)]
    answered = [at >= outage for at in times]
    for number in range(EXAMINED - lost, EXAMINED):
        answered[number] = False
    return Examination(began=began, results=tuple(zip(times, answered, strict=True)))


def probed(round_trip: float = 0.001, examined: Examination | None = None) -> ProbeState:
    """Return the probes of a path with this round trip."""
    return ProbeState(answers=True, recent=(round_trip,) * MEASURED, examined=examined)


class Path:
    """A tunnel's timing over time."""

    def __init__(self, configured: Bfd = DEFAULT) -> None:
        self.configured = configured
        self.now = 0.0
        self.round_trip = 0.001
        self.timing = PathTiming()
        self.examined: Examination | None = None
        self.changes: list[tuple[float, int]] = []

    def step(self, status: Mapping[str, str] = UP, after: float = 1.0) -> PathTiming:
        """Let time pass; return the timing."""
        self.now += after
        before = self.timing.factor
        state = probed(self.round_trip, self.examined)
        self.timing, reason = next_timing(self.timing, self.configured, state, status, self.now)
        assert bool(reason) == (self.timing.factor != before)
        if reason:
            self.changes.append((self.now, self.timing.factor))
        return self.timing

    def alarm(self, outage: float = 0.0, *, lost: int = 0, status: Mapping[str, str] = UP_AFTER_ALARM) -> int:
        """Let BFD lose the path, which is out for some seconds more; return the factor after that."""
        self.examined = examination(self.now, outage, lost=lost)
        return self.step(status, after=4.0).factor

    def quiet(self, seconds: float) -> int:
        """Let time pass, with a pass every minute; return the factor."""
        end = self.now + seconds
        while self.now < end:
            self.step(UP_AFTER_ALARM, after=min(60.0, end - self.now))
        return self.timing.factor


def test_a_false_alarm_doubles_the_time_up_to_its_bound() -> None:
    """At once, and each alarm once."""
    path = Path()
    assert [path.alarm() for _ in range(5)] == [2, 4, 8, 8, 8]
    assert path.quiet(60.0) == 8
    assert detection_time(DEFAULT, 8) == pytest.approx(2.4)


@pytest.mark.parametrize(
    ("outage", "lost_probes", "status"),
    [
        (0.3, 0, UP_AFTER_ALARM),  # the next longer time would have noticed it, too
        (99.0, 0, UP_AFTER_ALARM),  # no probe is answered
        (0.0, detection.PROBES_LOST + 1, UP_AFTER_ALARM),  # a link that loses 30 %
        (0.0, 0, UP_AFTER_ALARM | {"remote_diagnostic": "No Diagnostic"}),  # the peer's vswitchd was restarted
        (0.0, 0, UP_AFTER_ALARM | {"diagnostic": "No Diagnostic"}),  # this Node's
        (0.0, 0, UP_AFTER_ALARM | {"remote_diagnostic": "Concatenated Path Down"}),  # it drains
        (0.0, 0, UP_AFTER_ALARM | {"state": "init"}),
        (0.0, 0, {}),
    ],
)
def test_a_real_failure_is_no_false_alarm(outage: float, lost_probes: int, status: Mapping[str, str]) -> None:
    """However often it repeats: detection on a LAN stays as fast as before."""
    path = Path()
    assert {path.alarm(outage, lost=lost_probes, status=status) for _ in range(30)} == {1}


def test_a_session_that_comes_back_late_was_lost() -> None:
    """A kernel's datapath answers probes while ovs-vswitchd is down."""
    path = Path()
    path.examined = examination(path.now, 0.0)
    path.step({"state": "down", "diagnostic": EXPIRED}, after=4.0)
    assert path.step(UP_AFTER_ALARM, after=UP_AGAIN).factor == 1
    assert path.quiet(60.0) == 1


@pytest.mark.parametrize(("factor", "in_row", "after"), [(1, 1, 2), (1, 2, 1), (4, 3, 8), (4, 4, 4)])
def test_an_agent_that_examines_a_tunnel_late_takes_no_real_failure_for_a_false_alarm(
    factor: int, in_row: int, after: int
) -> None:
    """The usual probes were lost in a row meanwhile. Those lost before, one by one, do not count."""
    recent = (*((0.001, 0.001, None) * 10), *((0.001,) * 4), *((None,) * in_row), *((0.001,) * 6))
    state = replace(probed(examined=examination(0.0, 0.0)), recent=recent)
    timing = PathTiming(factor=factor, quiet=QUIET_ALARM, since=0.0)
    assert next_timing(timing, DEFAULT, state, UP_AFTER_ALARM, 4.0)[0].factor == after


@pytest.mark.parametrize(("round_trip", "factor"), [(0.09, 1), (0.11, 2), (0.25, 4), (0.6, 8), (5.0, 8)])
def test_a_long_round_trip_raises_the_time(round_trip: float, factor: int) -> None:
    """To three round trips, as far as the bound allows; before enough answers nothing changes."""
    path = Path()
    path.round_trip = round_trip
    assert path.step().factor == factor
    few = replace(probed(round_trip), recent=(round_trip,) * (MEASURED - 1))
    assert next_timing(PathTiming(), DEFAULT, few, UP, 1.0)[0].factor == 1
    assert next_timing(PathTiming(), DEFAULT, None, UP, 1.0)[0].factor == 1


@pytest.mark.parametrize(
    ("round_trip", "lost_probes", "factor"),
    [(0.15, 0, 2), (0.15, 1, 4), (0.15, 2, 2), (0.15, 9, 2), (0.09, 1, 1), (5.0, 1, 8)],
)
def test_a_long_path_that_loses_single_probes_gets_twice_as_much(
    round_trip: float, lost_probes: int, factor: int
) -> None:
    """Short paths do not, and an outage that takes probes in a row changes nothing."""
    recent = (*((round_trip,) * MEASURED), *((None,) * lost_probes), *((round_trip,) * 2))
    timing, reason = next_timing(PathTiming(), DEFAULT, ProbeState(answers=True, recent=recent), UP, 1.0)
    assert timing.factor == factor
    assert ("1 single probes lost" in reason) == (lost_probes == 1 and factor > 1)
    assert (timing.quiet == QUIET_LOSS) == (lost_probes == 1 and factor > 1)


def test_a_few_late_answers_and_lost_probes_do_not_raise_it() -> None:
    """Of ten, nine count."""
    recent = ((0.001,) * 18 + (0.9, None)) * 3
    timing, _ = next_timing(PathTiming(), DEFAULT, ProbeState(answers=True, recent=recent), UP, 1.0)
    assert timing.factor == 1


def test_round_trips_that_are_short_again_lower_it_soon() -> None:
    """A busy Node answers late for a while: after some minutes nothing of it is left."""
    path = Path()
    path.round_trip = 0.6
    assert path.quiet(600.0) == 8
    path.round_trip = 0.15
    assert path.quiet(QUIET_ROUND_TRIP - 1.0) == 8
    assert path.quiet(2.0) == 2
    path.round_trip = 0.001
    assert path.quiet(QUIET_ROUND_TRIP + 1.0) == 1


def test_after_a_false_alarm_it_is_lowered_after_an_hour_and_then_more_rarely() -> None:
    """A path with an alarm every other hour has few of them in the end."""
    path = Path()
    path.alarm()
    assert path.quiet(QUIET_ALARM - 60.0) == 2
    assert path.quiet(120.0) == 1
    assert path.alarm() == 2
    assert path.quiet(2 * QUIET_ALARM - 60.0) == 2
    assert path.quiet(120.0) == 1
    for _ in range(10):
        path.alarm()
        path.quiet(2 * QUIET_LONGEST)
    assert path.timing.quiet == QUIET_LONGEST


def test_a_restarted_agent_goes_on_with_what_the_database_says() -> None:
    """Also after another configuration; it then lowers it only after the long quiet time."""
    assert remembered(replace(DEFAULT, mult=12), DEFAULT, 5.0) == PathTiming(
        factor=4, since=5.0, quiet=QUIET_ALARM
    )
    assert remembered(DEFAULT, DEFAULT, 5.0).quiet == QUIET_ROUND_TRIP
    assert remembered(None, DEFAULT, 5.0).factor == 1
    assert remembered(replace(DEFAULT, mult=200), DEFAULT, 5.0).factor == 8
    assert remembered(replace(DEFAULT, mult=2), DEFAULT, 5.0).factor == 1


def test_only_tunnels_to_other_clusters_are_adapted() -> None:
    """Those within the cluster keep the configured time, and so do all without adaptation."""
    kinds = (PeerKind.REMOTE, PeerKind.GATEWAY, PeerKind.NODE)
    ports = [tunnel_port(number, f"peer-{number}", kind) for number, kind in enumerate(kinds, 1)]
    slow = {port.name: probed(0.25) for port in ports}
    tunnels: list[tuple[TunnelPort, Mapping[str, str]]] = [(port, UP) for port in ports]
    adapted = Detection().update(tunnels, slow, DEFAULT, 1.0)
    assert adapted.factors == {"mc-1": 4}
    assert [(change.port.name, change.before, change.after) for change in adapted.changes] == [("mc-1", 0.3, 1.2)]
    again = adapted.update(tunnels, slow, DEFAULT, 2.0)
    assert again.factors is adapted.factors
    assert not again.changes
    assert not adapted.update(tunnels, slow, None, 3.0).factors


# --- properties -------------------------------------------------------------------------------------------

CONFIGURED = st.builds(
    lambda interval, mult: Bfd(min_tx=interval, min_rx=interval, mult=mult),
    st.integers(10, 10_000),
    st.integers(1, 255),
)
STATUS = st.fixed_dictionaries(
    {
        "state": st.sampled_from(["up", "init", "down"]),
        "diagnostic": st.sampled_from([EXPIRED, SIGNALED, "No Diagnostic"]),
        "remote_diagnostic": st.sampled_from([EXPIRED, SIGNALED, "No Diagnostic"]),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What a pass observes: seconds after the last one, a round trip, and perhaps an alarm."""

    after: float
    round_trip: float
    status: Mapping[str, str]
    alarm: bool
    outage: float
    lost: int


EVENTS = st.lists(
    st.builds(
        Event,
        after=st.floats(0.01, 5000.0),
        round_trip=st.floats(0.0, 2.0),
        status=STATUS | st.just(UP_AFTER_ALARM),
        alarm=st.booleans(),
        outage=st.floats(0.0, 3.0),
        lost=st.integers(0, 5),
    ),
    max_size=60,
)


def play(configured: Bfd, events: Sequence[Event]) -> Path:
    """Let a path observe the events; return it."""
    path = Path(configured)
    for event in events:
        path.round_trip = event.round_trip
        if event.alarm:
            path.examined = examination(path.now, event.outage, lost=event.lost)
        path.step(event.status, after=event.after)
        assert path.timing.factor in possible_factors(configured)
    return path


@given(CONFIGURED, EVENTS)
def test_the_time_is_never_below_the_configured_one_and_never_above_its_bound(
    configured: Bfd, events: Sequence[Event]
) -> None:
    """Whatever a hostile peer makes this Node observe."""
    factor = play(configured, events).timing.factor
    shortest = detection_time(configured)
    assert shortest <= detection_time(configured, factor) <= max(shortest, LONGEST)
    assert configured.mult * factor <= MULTIPLIER_MAX


@given(CONFIGURED, EVENTS)
def test_it_does_not_oscillate(configured: Bfd, events: Sequence[Event]) -> None:
    """It is lowered at most once in each quiet time, and raised at most three times for each of these."""
    path = play(configured, events)
    factors = [1, *(factor for _, factor in path.changes)]
    times = [at for at, _ in path.changes]
    lowered = [at for at, before, after in zip(times, factors, factors[1:], strict=False) if after < before]
    assert len(lowered) <= path.now / QUIET_ROUND_TRIP
    assert len(path.changes) - len(lowered) <= (len(detection.FACTORS) - 1) * (len(lowered) + 1)


@given(st.floats(0.0, 2.0), st.floats(0.0, 2.0), CONFIGURED)
def test_a_longer_round_trip_never_gives_a_shorter_time(one: float, other: float, configured: Bfd) -> None:
    """And the interval is no shorter than it, where the bound allows that."""
    short, long = sorted((one, other))
    first, second = Path(configured), Path(configured)
    first.round_trip, second.round_trip = short, long
    factors = first.step().factor, second.step().factor
    assert factors[0] <= factors[1]
    interval = configured.min_tx / 1000
    assert factors[1] == possible_factors(configured)[-1] or factors[1] * interval >= long * 0.999


@given(CONFIGURED, EVENTS, st.integers(0, 60))
def test_a_restart_loses_nothing(configured: Bfd, events: Sequence[Event], moment: int) -> None:
    """The multiplier in the database is enough to go on with."""
    factor = play(configured, events[:moment]).timing.factor
    written = replace(configured, mult=configured.mult * factor)
    assert remembered(written, configured, 0.0).factor == factor


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from([None, probed(), probed(0.15), probed(0.001, examination(5.0, 0.0))]),
            st.sampled_from([UP, dict(UP), UP_AFTER_ALARM, {"state": "down"}]),
            st.sampled_from([DEFAULT, Bfd(min_tx=200, min_rx=200, mult=3)]),
            st.sampled_from([0.0, 1.0, 130.0, 4000.0]),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_a_pass_decides_as_if_all_tunnels_were_computed(
    steps: list[tuple[ProbeState | None, Mapping[str, str], Bfd, float]],
) -> None:
    """Also where it keeps the timing of a tunnel whose inputs are the same."""
    port = tunnel_port(1, "west", PeerKind.REMOTE)
    state, now = Detection(), 0.0
    timing: PathTiming | None = None
    for probe_state, status, configured, seconds in steps:
        now += seconds
        timing = timing or remembered(port.bfd, configured, now)
        timing, _ = next_timing(timing, configured, probe_state, status, now)
        results = {} if probe_state is None else {port.name: probe_state}
        state = state.update([(port, status)], results, configured, now)
        assert state.timings == {port.name: timing}


def test_tunnels_with_the_same_inputs_cost_no_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass follows each change of the API; of a thousand tunnels, those with new results are computed."""
    computed: list[ProbeState | None] = []

    def counted(*given: Any) -> tuple[PathTiming, str]:
        computed.append(given[2])
        return next_timing(*given)

    monkeypatch.setattr(detection, "next_timing", counted)
    tunnels = [(tunnel_port(number, f"c{number}", PeerKind.REMOTE), dict(UP)) for number in range(1, 101)]
    results = {port.name: probed() for port, _ in tunnels}
    state = Detection().update(tunnels, results, DEFAULT, 1.0)
    assert len(computed) == 100
    computed.clear()
    results = {**results, "mc-7": probed(0.15)}
    state = state.update([(port, dict(status)) for port, status in tunnels], results, DEFAULT, 2.0)
    assert computed == [results["mc-7"]]
    assert state.factors == {"mc-7": 2}
    computed.clear()
    state.update(tunnels, results, DEFAULT, 3.0)
    assert computed == [results["mc-7"]], "a longer time ends with time, too"
