"""Handing over, step by step."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from mcagent.core.failover.draining import SETTLE, Draining, Packets, Phase, advance
from mcagent.model.dataplane.facts import Drain


def run(
    state: Draining | None, until: float, packets: list[tuple[float, Packets]], start: float = 0.0
) -> list[tuple[float, Phase]]:
    """Advance whenever the state asks for it; return when which phase began."""
    now, phases = start, []
    while now <= until:
        counted = [count for at, count in packets if at <= now]
        before = state.phase if state else None
        state = advance(state, why="asked", refused="", packets=counted[-1], now=now, timeout=10.0)
        if state.phase is not before:
            phases.append((now, state.phase))
        if state.wake == math.inf:
            break
        assert state.wake > now
        now = state.wake
    return phases


def test_other_clusters_move_first_then_the_nodes() -> None:
    """With nothing to carry each step takes just its least time."""
    phases = run(Draining(), 60.0, [(0.0, Packets())])
    assert [phase for _, phase in phases] == [Phase.REMOTE, Phase.LOCAL, Phase.DRAINED]
    assert phases[-1][0] <= 2 * SETTLE + 1.0


def test_a_step_waits_until_no_packet_comes() -> None:
    """Packets that still come hold it up; those of the other direction do not."""
    packets = [(i / 4, Packets(remote=min(i, 12), local=i)) for i in range(30)]
    times = {phase: at for at, phase in run(Draining(), 60.0, packets)}
    assert 4.0 <= times[Phase.LOCAL] <= 4.75  # the last came at 3.0
    assert times[Phase.DRAINED] >= 8.25


def test_what_never_stops_ends_by_the_time_out_and_is_told() -> None:
    """Each step has its time-out; the result says that it was not clean."""
    state: Draining | None = Draining()
    now = 0.0
    while state is None or state.phase is not Phase.DRAINED:
        packets = Packets(remote=int(now * 100))
        state = advance(state, why="asked", refused="", packets=packets, now=now, timeout=3.0)
        now += 0.25
        assert now < 7.0
    assert not state.clean


def test_nobody_asks_any_more() -> None:
    """Undrained from any phase: at once."""
    for phase in Phase:
        state = advance(Draining(phase=phase), why="", refused="", packets=None, now=1.0, timeout=9.0)
        assert (state.phase, state.signal) == (Phase.SERVING, Drain.NONE)


def test_a_refusal_is_kept_and_told() -> None:
    """The last gateway does not go; it says why."""
    state = advance(Draining(), why="asked", refused="no other gateway", packets=None, now=1.0, timeout=9.0)
    assert (state.signal, state.refused) == (Drain.NONE, "no other gateway")


def test_an_agent_that_starts_calls_nobody_back() -> None:
    """A Node that is to be drained says so to everybody from the first pass on."""
    state = advance(None, why="asked", refused="", packets=None, now=1.0, timeout=9.0)
    assert state.signal is Drain.ALL
    assert advance(None, why="", refused="", packets=None, now=1.0, timeout=9.0).signal is Drain.NONE


@given(
    st.lists(
        st.tuples(st.floats(0.01, 5.0), st.booleans(), st.booleans(), st.none() | st.integers(0, 3)), max_size=60
    )
)
def test_the_order_never_changes(steps: list[tuple[float, bool, bool, int | None]]) -> None:
    """While it is wanted it only goes forward, one step at a time, and every step ends."""
    order = list(Phase)
    state: Draining | None = None
    now = 0.0
    for wait, wanted, refused, packets in steps:
        now += wait
        before = state
        state = advance(
            state,
            why="asked" if wanted else "",
            refused="no" if refused else "",
            packets=None if packets is None else Packets(remote=packets),
            now=now,
            timeout=3.0,
        )
        if not wanted or refused:
            assert state.phase is Phase.SERVING
        elif before is not None:
            assert order.index(state.phase) - order.index(before.phase) in (0, 1)
            if before.phase in (Phase.REMOTE, Phase.LOCAL) and now - before.since > 3.0:
                assert state.phase is not before.phase
