"""The first gateway of a cluster dies, and clusters that run Antrea use the next one within seconds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from devtools.lab.lab import Lab
from tests.worlds import antrea_failover as failover

pytestmark = pytest.mark.datapath

LIMIT = 6.0  # seconds; tests.bench.antrea measures. Kubernetes reports a dead Node after 40 s


@pytest.mark.timing
def test_a_dead_first_gateway_is_replaced_by_bfd(make_lab: Callable[..., Lab]) -> None:
    """All Nodes stay Ready. The gateway that returns stays second, and is first again when the other one dies."""
    with make_lab(failover.shape()) as lab, failover.rounds(lab) as agents:
        names = [gateway.name for gateway in lab.topology.cluster("east").gateways]
        results = [failover.lose_first_gateway(lab, agents) for _ in range(2)]
        assert [result.gateway for result in results] == names
        assert max(max(result.to_antrea, result.from_antrea) for result in results) < LIMIT
        assert set(failover.new_connections(lab)) == {str(agents.first)}
