"""Everybody takes the last gateways for dead, which they are not: what gets through by them still does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from devtools.lab import faults
from devtools.lab.faults import Settled
from devtools.lab.lab import Lab
from devtools.traffic.load import Load
from devtools.waiting import wait_until
from tests.worlds import failover
from tests.worlds.failover import INTERVALS, Volume, words

pytestmark = pytest.mark.datapath

VOLUME = Volume(datagrams=100, connections=10, interval=0.05)


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Lab]) -> Lab:
    """Two clusters of two gateways and one worker."""
    return make_lab(failover.topology(INTERVALS["200x3"], gateways=2, workers=1))


@pytest.mark.timing
def test_a_false_alarm_loses_nothing(lab: Lab, settled: Settled) -> None:
    """One gateway of each cluster is gone; then BFD reports all other tunnels to be down, too."""
    gone = [cluster.gateways[-1].name for cluster in lab.topology.clusters]
    names = [node.name for _, node in lab.topology.nodes() if node.name not in gone]
    settled.wait()
    cut = faults.link_cut(lab, *gone)
    with Load(failover.streams(lab, VOLUME)) as load:
        cut.inject()
        wait_until(
            lambda: all(faults.has_standby(faults.groups(lab, name)) for name in names),
            "the lost gateways on standby",
        )
        failover.pause(1.0)
        before = failover.calm(load)
        for name in names:
            lab.ovs(name).appctl("bfd/set-forwarding", "false")
        during = failover.calm(load)
        none_live = [session for name in names for session in faults.sessions(lab, name) if session.forwarding]
        for name in names:
            lab.ovs(name).appctl("bfd/set-forwarding", "normal")
        cut.heal()
    assert failover.datagrams_lost(before) == 0, words(before)
    assert not none_live
    assert failover.datagrams_lost(during) == failover.broken(during) == 0, words(during)
