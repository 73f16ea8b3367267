"""Loss while WireGuard keys change: `python -m tests.bench.rotation [--rounds 20] [--interval 0.005]`.

Two Nodes with a WireGuard backend each, in namespaces of this machine (or of a test kernel), ping each other all
the time while one, the other, or both at once change their key. Prints the packets that were lost, round by round.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from devtools.nodes import netns
from mcagent.model.wireguard import WireGuardImplementation, WireGuardPeer
from tests.contract.wireguard_nodes import WireGuardNode, meet, missing, two_nodes

SIDES = {"one": (0,), "other": (1,), "both": (0, 1)}
SECONDS = 2.0  # of pings around each change
PATIENCE = 20.0  # seconds for a change to come to its end


def _switch(node: WireGuardNode, known: WireGuardPeer) -> None:
    """Use the next key when it is this Node's turn, as the agent does."""
    promoted = node.store.promote_next().current.public
    deadline = time.monotonic() + PATIENCE
    while netns.call(node.namespace, node.wireguard.public_keys) != (promoted, ""):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{node.device} never had its turn")
        time.sleep(0.01)
    node.make(known)


def _round(pair: Sequence[WireGuardNode], sides: tuple[int, ...], interval: float) -> tuple[int, int, int]:
    """Change keys once; return the packets sent each way, and those lost each way."""
    count = int(SECONDS / interval)
    pings = [node.start_ping(pair[1 - place], count=count, interval=interval) for place, node in enumerate(pair)]
    for place in sides:
        pair[place].store.prepare_next()
    for place in (0, 1):
        pair[1 - place].make(pair[place].peer_for(pair[1 - place]))
    time.sleep(0.3)
    known = {place: pair[1 - place].peer_for(pair[place]) for place in sides}
    threads = [threading.Thread(target=_switch, args=(pair[place], known[place])) for place in sides]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(0.8)
    for place in (0, 1):  # published
        pair[1 - place].make(pair[place].peer_for(pair[1 - place]))
    first, second = (ping.lost() for ping in pings)
    return count, first, second


def measure(implementation: WireGuardImplementation, rounds: int, interval: float) -> int:
    """Print all rounds of an implementation; return how many packets were lost."""
    total = 0
    with tempfile.TemporaryDirectory() as directory, two_nodes(Path(directory), implementation) as pair:
        meet(*pair)
        for name, sides in SIDES.items():
            found = [_round(pair, sides, interval) for _ in range(rounds)]
            lost = [first + second for _, first, second in found]
            sent = sum(2 * count for count, _, _ in found)
            print(f"{implementation} {name}: {sum(lost)} of {sent} lost, by round {lost}", flush=True)
            total += sum(lost)
    return total


def main() -> int:
    """Measure what this machine has."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=20, help="changes of each kind [%(default)s]")
    parser.add_argument("--interval", type=float, default=0.005, help="seconds between pings [%(default)s]")
    parser.add_argument("--only", choices=[str(one) for one in WireGuardImplementation], help="one implementation")
    args = parser.parse_args()
    lost = 0
    for implementation in WireGuardImplementation:
        reason = missing(implementation)
        if args.only in (None, str(implementation)) and reason:
            print(f"{implementation}: {reason}")
        elif args.only in (None, str(implementation)):
            lost += measure(implementation, args.rounds, args.interval)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
