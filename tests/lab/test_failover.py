"""Gateways fail under traffic: a shortened version of every row of the failover table, with generous bounds.

How long each takes is measured by tests/bench/failover.py. Here the machine may be busy with other things: a
silence may be several times as long as there, and longer by as much as the sending process itself was late.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from devtools.lab.faults import Settled
from devtools.lab.lab import Lab
from devtools.traffic.load import Load
from tests.worlds import failover
from tests.worlds.failover import INTERVALS, ROWS, Counted, Volume, words

pytestmark = [pytest.mark.failover, pytest.mark.datapath]

SPELL = 3.0  # seconds that a fault lasts
SILENCE = 2.0  # seconds; without BFD nothing would end a silence before the fault ends
PAIRS = 3  # of faults at once
SEED = 1  # of these pairs
VOLUME = Volume(datagrams=100, connections=10, interval=0.05)
FAULTS = [name for name, row in ROWS.items() if not row.lossless and row.counted is Counted.SILENCE]
LOSSLESS = [name for name, row in ROWS.items() if row.lossless]
RETURNS = [name for name, row in ROWS.items() if row.counted in (Counted.HEAL, Counted.WAY)]


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Lab]) -> Lab:
    """Two clusters of two gateways and a worker; BFD every 100 ms everywhere."""
    return make_lab(failover.topology(INTERVALS["100x3"], gateways=2, workers=1))


@pytest.fixture(scope="module")
def load(lab: Lab, settled: Settled) -> Iterator[Load]:
    """Traffic that goes on through all tests."""
    with Load(failover.streams(lab, VOLUME)) as load:
        yield load


def number(name: str) -> int:
    """Return a number by which rows take turns between the clusters."""
    return list(ROWS).index(name)


@pytest.mark.timing
@pytest.mark.parametrize("name", FAULTS)
def test_traffic_leaves_a_gateway_that_fails(lab: Lab, load: Load, settled: Settled, name: str) -> None:
    """No connection breaks, and packets pass by the other gateway long before the fault ends."""
    row = ROWS[name]
    result = failover.play(lab, load, settled, replace(row, spell=SPELL), number(name))
    assert failover.broken(result.during) == failover.broken(result.after) == 0, words(result.during)
    if not row.must:  # a link that loses some is left by chance sooner or later
        assert max(failover.tcp_silences(result.during)) < SILENCE + result.during.stall, words(result.during)


@pytest.mark.timing
@pytest.mark.parametrize("name", LOSSLESS)
def test_what_is_planned_or_only_the_agent_s_loses_nothing(
    lab: Lab, load: Load, settled: Settled, name: str
) -> None:
    """Drain and return, a killed agent, another version of it: not a datagram, not a connection."""
    result = failover.play(lab, load, settled, ROWS[name], number(name))
    for report in (result.during, result.after):
        assert failover.broken(report) == 0, words(report)
        assert failover.datagrams_lost(report) == 0, words(report)


@pytest.mark.timing
@pytest.mark.parametrize("name", RETURNS)
def test_packets_pass_again_soon_after_the_end_of_what_stopped_them(
    lab: Lab, load: Load, settled: Settled, name: str
) -> None:
    """A worker's vswitchd, or the only way there is: back within seconds, and connections outlive it."""
    result = failover.play(lab, load, settled, ROWS[name], number(name))
    assert failover.broken(result.during) == failover.broken(result.after) == 0, words(result.after)
    assert result.healed < 10.0 + result.after.stall, words(result.after)


@pytest.mark.timing
def test_two_faults_at_once_settle(lab: Lab, load: Load, settled: Settled) -> None:
    """Whatever two gateways suffer together: traffic finds its way, and when it ends all is as before."""
    seed = int(os.environ.get("MCAGENT_TEST_SEED") or SEED)
    print(f"MCAGENT_TEST_SEED={seed}")
    for number in range(PAIRS):
        result = failover.play(lab, load, settled, ROWS["two faults at once"], number, seed=seed)
        print(f"{result.node}: answered after {result.healed:.2f} s")
        assert failover.broken(result.during) == failover.broken(result.after) == 0, words(result.during)
        assert result.healed < 10.0 + result.during.stall, words(result.during)
