"""Ratios between benchmarks of two revisions, and the numbers that are read from what the benchmarks print."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from devtools import bench_compare
from devtools.bench_compare import compare, cost_ratio

COMPILED = """\
one gateway: 1000 clusters, 1002 fragments
  resources       12 FlowEntry
  cold               0.900 s (compile and diff)
  one change         3.500 ms median, 9.000 ms worst
two gateways: 1000 clusters, 1002 fragments
  cold               1.200 s (compile and diff)
  one change         4.500 ms median, 9.000 ms worst
"""


def pairs(
    *values: tuple[float, float], name: str = "change_ms"
) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Return rounds of one number: (old, new)."""
    return [({name: old}, {name: new}) for old, new in values]


def test_ratio_is_the_median_of_the_rounds_with_its_spread() -> None:
    """Each round is compared with itself: a round on a slower machine changes both of its numbers."""
    (result,) = compare(pairs((10, 11), (100, 120), (10, 9)))
    assert result.ratio == pytest.approx(1.1)
    assert [result.least, result.greatest] == pytest.approx([0.9, 1.2])
    assert (result.old, result.new) == (10, 11)
    assert not result.worse


def test_reproducible_ratio_above_the_limit_is_worse() -> None:
    """Three of four rounds are enough; two of four, or the machine's noise in one, are not."""
    assert compare(pairs((1, 1.6), (1, 1.7), (1, 1.4), (1, 2)))[0].worse
    assert not compare(pairs((1, 1.6), (1, 1.7), (1, 1.4), (1, 1.4)))[0].worse
    assert not compare(pairs((1, 1.0), (1, 9.0), (1, 1.1)))[0].worse
    assert compare(pairs((1, 1.1), (1, 1.2)), limit=1.05)[0].worse


def test_less_throughput_is_a_higher_cost() -> None:
    """A ratio above 1 is worse for every number: half the throughput, or twice the time."""
    assert cost_ratio("worker-worker.tcp1", old=4, new=2) == 2
    assert cost_ratio("worker-worker.p50", old=4, new=2) == 0.5
    assert cost_ratio("worker-worker.connect", old=10, new=0) == math.inf
    assert cost_ratio("link cut.broken", old=0, new=0) == 1
    assert cost_ratio("link cut.broken", old=0, new=3) == math.inf


def test_numbers_that_a_revision_does_not_have_are_left_out() -> None:
    """An older revision may measure less."""
    rounds = [({"a": 1.0}, {"a": 2.0, "b": 5.0}), ({"a": 1.0}, {"a": 2.0})]
    assert [result.name for result in compare(rounds)] == ["a"]


def test_numbers_are_read_from_what_benchmarks_print() -> None:
    """Of compile from text, of the others from JSON."""
    assert bench_compare.compile_numbers(COMPILED) == {
        "one gateway.cold_s": 0.9,
        "one gateway.change_ms": 3.5,
        "two gateways.cold_s": 1.2,
        "two gateways.change_ms": 4.5,
    }
    control = {"embedded": {"through": {"changes": [{"p50_ms": 7}, {"p50_ms": 8}]}}}
    read = bench_compare.selected_numbers("embedded.through.changes.-1.p50_ms")
    assert read(json.dumps(control)) == {"embedded.through.changes.-1.p50_ms": 8}
    median = {"tcp1": 1e9, "tcp8": 2e9, "udp": 3e3, "rr": 100, "p50": 0.1, "connect": 50, "upcalls": 0, "cpu": 1}
    throughput = {"results": {"geneve": {"worker-worker": {"median": median}}}}
    numbers = bench_compare.throughput_numbers(json.dumps(throughput))
    assert numbers["worker-worker.tcp1"] == 1e9
    assert "worker-worker.cpu" not in numbers


def test_numbers_of_failover_are_of_all_rounds_of_a_fault() -> None:
    """Silences of every connection, the median gap of datagrams, and broken connections also after the fault."""
    played = [
        {"tcp": {"pods": [0.1, 0.2], "service": [0.3]}, "udp": udp, "broken": 1, "after broken": 2}
        for udp in (0.1, 0.3)
    ]
    numbers = bench_compare.failover_numbers(json.dumps({"results": [{"rounds": {"link cut": played}}]}))
    assert numbers == {
        "link cut.tcp_p50": pytest.approx(0.2),
        "link cut.tcp_p99": pytest.approx(0.3),
        "link cut.udp_gap": pytest.approx(0.2),
        "link cut.broken": 6,
    }


def test_table_marks_what_is_worse() -> None:
    """One line for each number, with the spread of its ratio."""
    *_, line = bench_compare.table({"agent": compare(pairs((1, 2), (1, 4)))})
    assert line == "| agent | change_ms | 1 | 3 | 3.00 (2.00 to 4.00) **worse** |"


def test_a_benchmark_without_numbers_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not run again, and the others have all rounds; the revision that runs first alternates."""
    trees = tmp_path / "old", tmp_path / "new"
    for number, tree in enumerate(trees, start=1):
        folder = tree / "tests/bench"
        folder.mkdir(parents=True)
        (folder / "works.py").write_text(f"print('{{\"cost\": {number}}}')")
        (folder / "fails.py").write_text("raise SystemExit(1)")
    benchmarks = {
        name: bench_compare.Benchmark(module=name, arguments=(), numbers=bench_compare.all_numbers)
        for name in ("fails", "works")
    }
    monkeypatch.setattr(bench_compare, "BENCHMARKS", benchmarks)
    results: dict[str, list[tuple[bench_compare.Numbers, bench_compare.Numbers]]] = {"fails": [], "works": []}
    failed = bench_compare.alternate(results, trees, 2, tmp_path / "output")
    assert failed == {"fails"}
    assert results == {"fails": [], "works": [({"cost": 1.0}, {"cost": 2.0})] * 2}
