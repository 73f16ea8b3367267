"""Ratios, the table, and the targets of benchmarks of packets. Pure: values of rounds in, text out."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.bench.packets.measuring import MEASURES, Measure, Numbers
from tests.bench.packets.paths import BASE


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A path's numbers over the rounds, and its ratios to the base path of the same round."""

    path: str
    median: Numbers
    ratio: Numbers
    rounds: list[Numbers]


def summary(rounds: list[dict[str, Numbers]]) -> list[Result]:
    """Return medians and ratios; more is better in every ratio."""
    results = []
    measured = [item for item in MEASURES if item.name in next(iter(rounds[0].values()))]
    for path in rounds[0]:
        own = [numbers[path] for numbers in rounds]
        base = [numbers[BASE] for numbers in rounds if BASE in numbers]
        ratios: Numbers = {}
        for item in measured:
            if base and item.name not in ("cpu", "upcalls"):
                ratios[item.name] = statistics.median(quotients(own, base, item))
        median = {item.name: statistics.median(numbers[item.name] for numbers in own) for item in measured}
        results.append(Result(path=path, median=median, ratio=ratios, rounds=own))
    return results


def quotients(own: Sequence[Numbers], base: Sequence[Numbers], item: Measure) -> list[float]:
    """Return how many times better a path is than another one, in each round."""
    pairs = [(numbers[item.name], base_value[item.name]) for numbers, base_value in zip(own, base, strict=True)]
    return [value / other if item.more else other / value for value, other in pairs]


def table(results: list[Result]) -> Iterator[str]:
    """Yield the table: each cell a median and, after it, the ratio to the base path."""
    measured = [item for item in MEASURES if item.name in results[0].median]
    head = ["", *(f"{item.name}, {item.unit}" for item in measured)]
    rows = [head]
    for result in results:
        cells = [result.path]
        for item in measured:
            value = result.median[item.name] / item.scale
            digits = 2 if value < 10 else 1 if value < 100 else 0
            ratio = f" ({result.ratio[item.name]:.0%})" if item.name in result.ratio else ""
            cells.append(f"{value:.{digits}f}{ratio}")
        rows.append(cells)
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        yield "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        if row is head:
            yield "|" + "|".join("-" * (width + 2) for width in widths) + "|"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The least ratio of a path to another one; 0 for a ratio without target."""

    path: str
    base: str
    measure: str
    least: float = 0.0


def targets_of(tunnel: str, paths: Sequence[str]) -> Iterator[Target]:
    """Yield the targets that apply to these paths, in a lab with such tunnels."""
    yield Target(path=BASE, base=f"kernel-{tunnel}", measure="tcp1", least=1.0)
    yield Target(path=f"{BASE}+wireguard", base="kernel-wireguard", measure="tcp1")
    yield Target(path="worker-worker", base=BASE, measure="tcp1", least=0.85)
    if tunnel == "geneve":  # what the hops of workers cost without mcagent, and with it
        yield Target(path="kernel-geneve-relay", base="kernel-geneve", measure="tcp1")
        yield Target(path="worker-worker", base="kernel-geneve-relay", measure="tcp1")
    for path in paths:
        if "@" in path:  # with more gateways
            yield Target(path=path, base=path.partition("@")[0], measure="connect", least=0.9)


def targets(results: Sequence[Result], tunnel: str) -> Iterator[str]:
    """Yield a line for each ratio that has a target, with the quartiles of the rounds."""
    by_path = {result.path: result.rounds for result in results}
    for target in targets_of(tunnel, list(by_path)):
        own, base = (by_path.get(name, [{}]) for name in (target.path, target.base))
        if target.measure in own[0] and target.measure in base[0]:
            (item,) = (item for item in MEASURES if item.name == target.measure)
            ratios = quotients(own, base, item)
            median = statistics.median(ratios)
            low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (median, median, median)
            spread = f"{median:.2f} ({low:.2f} to {high:.2f})"
            verdict = f", target {target.least:.2f}: {'met' if median >= target.least else 'not met'}"
            yield f"{item.name}, {target.path} / {target.base}: {spread}{verdict if target.least else ''}"
