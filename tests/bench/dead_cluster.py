"""How long new connections to an imported Service go to a cluster after the loss of all its gateways. Run as root.

    python -m tests.bench.dead_cluster [--trials N] [--interval S] [--json FILE]

Two clusters with real agents, configured by default, but that flaps are not damped. The other cluster has two
gateways and half of the imported Service's connections, and its objects stay what they are. A client on a worker
opens a connection every few milliseconds while the cables of both gateways are pulled, and until the cluster
answers again. Prints for each trial, and over all:

- left: from the moment before the first cable is pulled to the last new connection that went there (got no answer)
- lost: connections that got none
- back: from the moment after the last cable is in again to the first new connection that went there
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from devtools.lab import faults
from devtools.lab.lab import Lab
from devtools.lab.topology import generate
from devtools.waiting import wait_until
from tests.worlds.imported import Connection, Opening, answered, import_service

CALM = 0.5  # seconds before each loss in which both clusters answer
SEEN = 2.5  # seconds after it in which connections are opened still


@dataclass(frozen=True, slots=True)
class Trial:
    """Times in seconds."""

    left: float
    lost: int
    back: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--interval", type=float, default=0.005, help="seconds between two connections")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    shape = generate(name="dead", pods=1, gateways=2)
    calm = {"damping": {"max": "0s"}}  # else each trial would wait a minute for the next
    with Lab.up(replace(shape, clusters=tuple(replace(result, config=calm) for result in shape.clusters))) as lab:
        import_service(lab)
        lab.wait_ready()
        settled = faults.Settled(lab)
        trials: list[Trial] = []
        for number in range(1, args.trials + 1):
            settled.wait()
            trials.append(trial(lab, number, args.interval))
    print(f"{'':6}{'p50':>8}{'p99':>8}{'longest':>9}")
    for name in ("left", "back"):
        times = sorted(getattr(result, name) for result in trials)
        print(f"{name:6}{statistics.median(times):8.2f}{quantile(times, 0.99):8.2f}{times[-1]:9.2f} s")
    if args.json:
        args.json.write_text(json.dumps([asdict(result) for result in trials], indent=1) + "\n")


def quantile(times: list[float], part: float) -> float:
    """Return the smallest time that so many are not above."""
    return times[min(len(times) - 1, int(part * len(times)))]


def trial(lab: Lab, number: int, interval: float) -> Trial:
    """Lose the other cluster once, and have it back."""
    east, west = lab.topology.clusters
    client = lab.namespace(east.workers[0].pods[0])
    wait_until(lambda: set(answered(lab, client, 20)) == {"east", "west"}, "both clusters", timeout=60)
    cut = faults.link_cut(lab, *(one.name for one in west.gateways))
    opening = Opening(lab, client, interval)
    opening.start()
    time.sleep(CALM)
    lost_at = time.monotonic()
    cut.inject()
    time.sleep(max(0.0, lost_at + SEEN - time.monotonic()))
    cut.heal()
    healed_at = time.monotonic()
    wait_until(lambda: any(one.cluster == "west" for one in after(opening, healed_at)), "its return", timeout=60)
    openings = opening.stop()
    unanswered = [one.began for one in openings if lost_at <= one.began < healed_at and not one.cluster]
    back = min(one.began for one in openings if one.began > healed_at and one.cluster == "west")
    result = Trial(left=max(unanswered) - lost_at, lost=len(unanswered), back=back - healed_at)
    print(
        f"{number:3}  left after {result.left:.2f} s ({result.lost} lost), back after {result.back:.2f} s",
        flush=True,
    )
    return result


def after(opening: Opening, moment: float) -> list[Connection]:
    """Return the connections until now that began after a moment."""
    return [one for one in opening.found() if one.began > moment]


if __name__ == "__main__":
    main()
