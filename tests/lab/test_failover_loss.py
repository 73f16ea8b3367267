"""A gateway whose link loses much is left sooner or later, and tried again no more often than damping allows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from devtools.lab import faults
from devtools.lab.faults import Settled
from devtools.lab.lab import Lab
from devtools.lab.topology import Topology
from devtools.traffic.load import Load
from devtools.waiting import wait_until
from tests.worlds import failover
from tests.worlds.failover import INTERVALS, Volume, words

pytestmark = [pytest.mark.failover, pytest.mark.datapath]

INITIAL, LONGEST = 1.0, 60.0  # seconds: the defaults of damping
SPELL = 30.0  # seconds that the link loses some
SHARE = 0.3
VOLUME = Volume(datagrams=100, connections=12, interval=0.05)


@pytest.mark.timing
def test_a_gateway_whose_link_loses_much_is_left_for_long(make_lab: Callable[[Topology], Lab]) -> None:
    """No connection breaks, each tunnel to it is used again a few times at most, and in the end hardly any is."""
    plain = failover.topology(INTERVALS["100x3"], gateways=2, workers=1)
    damping = {"damping": {"initial": f"{INITIAL:g}s", "max": f"{LONGEST:g}s"}}
    clusters = tuple(replace(tunnel, config={**tunnel.config, **damping}) for tunnel in plain.clusters)
    with make_lab(replace(plain, clusters=clusters)) as lab:
        settled = Settled(lab)
        bad = lab.topology.clusters[0].gateways[0]
        with Load(failover.streams(lab, VOLUME)) as load:
            failover.pause(1.0)
            fault = faults.lossy(lab, bad.name, SHARE)
            begin = time.monotonic()
            fault.inject()
            try:
                wait_until(lambda: not used(lab, bad.name), "all to leave", timeout=90)
                failover.pause(SPELL)
                bad_tunnels = tunnels(lab, bad.name)
                spent = time.monotonic() - begin
            finally:
                fault.heal()
            report = load.report(load.began)
            assert failover.broken(report) == 0, words(report)
            # A hold doubles with each loss; the first return may be that of the lab's beginning.
            tries = math.ceil(math.log2(spent / INITIAL + 1)) + 1
            for tunnel in bad_tunnels:
                assert sum(transition["live"] for transition in tunnel["transitions"]) <= tries, tunnel
            settled.wait(2 * LONGEST)


def used(lab: Lab, name: str) -> int:
    """Return how many tunnels to this gateway are in use."""
    return sum(bool(tunnel["live"]) for tunnel in tunnels(lab, name))


def tunnels(lab: Lab, name: str) -> list[dict[str, Any]]:
    """Return what everybody who has a tunnel to this gateway tells of it."""
    address = str(lab.topology.node(name)[1].address)
    tunnels = []
    for _, node in lab.topology.nodes():
        if node.name != name:
            clusters: Any = lab.status(node.name)["gateways"]
            tunnels += [
                tunnel for cluster in clusters for tunnel in cluster["gateways"] if tunnel["address"] == address
            ]
    return tunnels
