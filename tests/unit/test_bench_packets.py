"""Reports of the benchmarks of packets: ratios by round, targets, and differences between paths."""

from __future__ import annotations

import pytest

from tests.bench.packet_cost import differences
from tests.bench.packets.measuring import MEASURES, Numbers
from tests.bench.packets.report import summary, targets


def numbers(value: float, **changed: float) -> Numbers:
    """Return a path's numbers in a round: one value for each measure, or another one."""
    return {item.name: value for item in MEASURES} | changed


def test_a_ratio_is_the_median_of_the_rounds_and_more_is_better() -> None:
    """A round on a slower machine changes both paths; latency counts the other way round than throughput."""
    rounds = [
        {"gateway-gateway": numbers(speed), "worker-worker": numbers(speed, tcp1=0.8 * speed, p50=2 * speed)}
        for speed in (1.0, 10.0, 4.0)
    ]
    _, worker = summary(rounds)
    assert worker.ratio["tcp1"] == pytest.approx(0.8)
    assert worker.ratio["p50"] == pytest.approx(0.5)
    assert worker.median["tcp1"] == pytest.approx(3.2)


def test_targets_compare_with_the_kernel_with_the_base_and_with_fewer_gateways() -> None:
    """Ratios of paths that were not measured are left out; one without target is not judged."""
    results = summary(
        [
            {
                "kernel-geneve": numbers(10),
                "gateway-gateway": numbers(10, tcp1=11),
                "worker-worker": numbers(10, tcp1=8.8),
                "worker-worker@3": numbers(10, connect=9.5),
                "kernel-wireguard": numbers(10),
                "gateway-gateway+wireguard": numbers(5),
            }
        ]
    )
    assert list(targets(results, "geneve")) == [
        "tcp1, gateway-gateway / kernel-geneve: 1.10 (1.10 to 1.10), target 1.00: met",
        "tcp1, gateway-gateway+wireguard / kernel-wireguard: 0.50 (0.50 to 0.50)",
        "tcp1, worker-worker / gateway-gateway: 0.80 (0.80 to 0.80), target 0.85: not met",
        "connect, worker-worker@3 / worker-worker: 0.95 (0.95 to 0.95), target 0.90: met",
    ]


def test_a_difference_is_taken_within_a_round() -> None:
    """What two gateways between cost does not depend on how slow a round was altogether."""
    rounds = [{"gateway-gateway.us": base, "worker-worker.us": base + 3} for base in (10.0, 50.0)]
    assert differences(rounds) == {"two gateways between, and two more tunnels: us": pytest.approx(3)}
