"""Generates attacks for a time: `python -m tests.attacks.generated [--budget 5m] [--seed N] [--class A6]...`.

Prints a line for each class when its share of the time is used up, and a violation with its smallest example. As
root a third of the time is for packets through a lab.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import replace

from devtools.lab.lab import Lab
from devtools.lab.topology import generate
from devtools.mutants import seconds
from tests.attacks.generated.classes import CLASSES
from tests.attacks.generated.lab_packets import NAME, PacketRange, packet_classes
from tests.attacks.generated.search import AttackClass, SearchResult, search

EXAMPLES = 100  # of a search; the first ones are the simplest


def search_for(attacks: AttackClass, budget: float, seed: int) -> SearchResult:
    """Search with one seed after the other until the time is used up, or there is a violation."""
    begin, examples = time.monotonic(), 0
    while True:
        result = search(attacks, examples=EXAMPLES, seed=seed, minimal=True, budget=budget)
        examples, seed, spent = examples + result.examples, seed + 1, time.monotonic() - begin
        if result.violation or spent >= budget:
            return replace(result, examples=examples, seconds=spent)


def search_all(classes: Iterable[AttackClass], budget: float, seed: int) -> int:
    """Search in classes, print a line for each, and return the number of violations."""
    waiting, violations, end = list(classes), 0, time.monotonic() + budget
    while waiting:
        share = max(0.0, end - time.monotonic()) / len(waiting)
        attacks = waiting.pop(0)
        result = search_for(attacks, share, seed)
        is_violated = result.violation != ""
        violations += is_violated
        _print_row(
            attacks.name, str(result.examples), str(int(is_violated)), f"{result.seconds:.1f}", attacks.property
        )
        if is_violated:
            print(f"\nVIOLATION in {attacks.name}, {attacks.title}:\n{result.violation}\n", flush=True)
    return violations


def _print_row(name: str, examples: str, violations: str, time_spent: str, text: str) -> None:
    print(f"{name:8} {examples:>8} {violations:>10} {time_spent:>8}  {text}", flush=True)


def main() -> int:
    """Search in all classes; return the exit code, 1 after a violation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=seconds, default="1m", help="how long to go on: 90s, 5m, 1h [1m]")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="of the first examples")
    parser.add_argument("--class", dest="names", action="append", metavar="NAME", help="one class; again for more")
    options = parser.parse_args()
    names = options.names or [*(attacks.name for attacks in CLASSES), NAME]
    chosen = [attacks for attacks in CLASSES if attacks.name in names]
    end = time.monotonic() + options.budget
    print(f"seed {options.seed}, {options.budget:.0f} s\n")
    _print_row("class", "examples", "violations", "seconds", "what must hold")
    with_packets = NAME in names and os.geteuid() == 0
    violations = search_all(chosen, options.budget * (2 / 3 if with_packets and chosen else 1), options.seed)
    if with_packets:
        with Lab.up(replace(generate(clusters=3), name=f"attacks-{os.getpid()}")) as lab:
            violations += search_all(packet_classes(PacketRange(lab)), end - time.monotonic(), options.seed)
    elif NAME in names:
        _print_row(NAME, "-", "-", "-", "not sent: a lab needs root")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
