"""A Node that loses its conntrack, while its Pods serve clients that only receive."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from devtools.lab import faults
from devtools.lab.faults import Settled
from devtools.lab.lab import Lab
from tests.worlds import failover
from tests.worlds.downloads import downloading, with_download
from tests.worlds.failover import INTERVALS

pytestmark = pytest.mark.datapath

GONE = 0.2  # seconds without ovs-vswitchd
# What the server sends is lost meanwhile, and then waits for the client's answer: TCP tries after 0.2, 0.6, 1.4
# and 3.0 s (RFC 6298), and the client is asked again until 2 s after the Node is back.
SILENCE = 8.0


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Lab]) -> Lab:
    """Two clusters of one gateway and one worker, each with a Service of downloads."""
    return make_lab(with_download(failover.topology(INTERVALS["200x3"], gateways=1, workers=1)))


@pytest.mark.timing
@pytest.mark.parametrize("straight", [False, True], ids=["service", "pod"])
def test_downloads_go_on(lab: Lab, settled: Settled, *, straight: bool) -> None:
    """By a Service as from a Pod's own address: nothing ends, nothing is wrong, and data comes again soon."""
    settled.wait()
    with downloading(lab, straight=straight) as downloads:
        failover.pause(0.5)
        fault = faults.vswitchd_killed(lab, lab.topology.clusters[1].workers[0].name)
        begin = time.monotonic()
        fault.inject()
        failover.pause(GONE)
        fault.heal()
        settled.wait()
        failover.pause(3.0)
        assert not downloads.ended
        assert not downloads.wrong
        end = time.monotonic()
        assert max(end - moments[-1] for moments in downloads.arrivals) < 1.0
        assert downloads.silence(begin, end) < SILENCE
