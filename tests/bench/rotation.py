"""Loss while a gateway that is alone changes its key: `python -m tests.bench.rotation [--rounds 20]`.

Two Nodes with a WireGuard backend each, in namespaces of this machine (or of a test kernel), ping each other all
the time while one, then the other, changes its key. Prints how long echoes were missing. (Where a cluster has two
gateways, the one that changes is drained before: see tests/lab/test_encryption.py.)
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from devtools.nodes import netns
from mcagent.dataplane.wireguard.watch import WireGuardWatch
from mcagent.model.dataplane.wireguard import WireGuardImplementation
from tests.contract.wireguard_nodes import WireGuardNode, meet, missing, two_nodes

SECONDS = 2.0  # of pings around each change
LONGEST = 300.0  # milliseconds without packets that fail the run


def _round(pair: Sequence[WireGuardNode], side: int, interval: float) -> tuple[int, int]:
    """Change a key once, without draining; return the echoes that were lost of each side's requests."""
    node, other = pair[side], pair[1 - side]
    count = int(SECONDS / interval)
    pings = [
        attempt.start_ping(to, count=count, interval=interval) for attempt, to in ((node, other), (other, node))
    ]
    node.store.prepare_next()
    other.make(node.peer_for(other))
    time.sleep(0.3)
    node.store.promote_next()
    node.make(other.peer_for(node))
    time.sleep(0.8)
    other.make(node.peer_for(other))  # published
    return pings[0].lost(), pings[1].lost()


def measure(implementation: WireGuardImplementation, rounds: int, interval: float) -> float:
    """Print what an implementation costs; return the longest time without packets, in milliseconds."""
    longest = 0.0
    with tempfile.TemporaryDirectory() as directory, two_nodes(Path(directory), implementation) as pair:
        meet(*pair)
        watches = [WireGuardWatch(node.wireguard, lambda: None) for node in pair]
        for node, watch in zip(pair, watches, strict=True):
            netns.call(node.namespace, watch.start)
        for side in (0, 1):
            gaps = sorted(max(_round(pair, side, interval)) * interval * 1000 for _ in range(rounds))
            middle, most = gaps[len(gaps) // 2], gaps[-1]
            print(f"{implementation} Node {side + 1}: {middle:.0f} ms median, {most:.0f} ms at most", flush=True)
            longest = max(longest, most)
        for watch in watches:
            watch.stop()
    return longest


def main() -> int:
    """Measure what this machine has."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=20, help="changes of each kind [%(default)s]")
    parser.add_argument("--interval", type=float, default=0.002, help="seconds between pings [%(default)s]")
    parser.add_argument(
        "--only",
        choices=[str(kind) for kind in WireGuardImplementation],
        help="one implementation",
    )
    args = parser.parse_args()
    longest = 0.0
    for implementation in WireGuardImplementation:
        reason = missing(implementation)
        if args.only in (None, str(implementation)) and reason:
            print(f"{implementation}: {reason}")
        elif args.only in (None, str(implementation)):
            longest = max(longest, measure(implementation, args.rounds, args.interval))
    return 1 if longest > LONGEST else 0


if __name__ == "__main__":
    sys.exit(main())
