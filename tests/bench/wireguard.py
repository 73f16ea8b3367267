"""WireGuard: how long a thousand peers take, and what a rotation under load loses.

    python -m tests.bench.wireguard [--peers N] [--implementation kernel|userspace]

Needs root. The kernel's WireGuard where there is one: elsewhere `tests/kernel/run-in-kernel` starts one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from devtools.nodes import netns
from mcagent.model.dataplane.resources import Resource
from mcagent.model.dataplane.wireguard import WireGuardImplementation, WireGuardPeer
from mcagent.model.net import parse_address, parse_network
from tests.contract.inside import adds, steps_to
from tests.contract.wireguard_nodes import PORT, WireGuardNode, meet, missing, random_key, two_nodes

T = TypeVar("T")
RATES = (1, 10, 50, 200)  # Mbit/s of UDP in packets of 1,000 bytes


def timed(title: str, work: Callable[[], T]) -> T:
    """Do it, and print how long it took."""
    began = time.perf_counter()
    result = work()
    print(f"  {title}: {(time.perf_counter() - began) * 1000:.1f} ms", flush=True)
    return result


def many_peers(node: WireGuardNode, count: int) -> None:
    """Print what peers cost to add, observe, change and remove."""
    peers = [
        WireGuardPeer(
            device=node.device,
            public_key=random_key(),
            endpoint=(parse_address(f"198.51.{100 + n // 250}.{n % 250 + 1}"), PORT),
            allowed_ips=(parse_network(f"10.{n // 250}.{n % 250}.0/32")[0],),
            keepalive=0,
        )
        for n in range(count)
    ]
    node.backend.apply(adds(node.value()))
    all_resources: list[Resource] = [node.value(), *peers]

    def bring(resources: list[Resource]) -> None:
        result = node.backend.apply(steps_to(node.backend.observe(), resources))
        assert not result.failed, result.failed[0][1]

    timed(f"add {count} peers", lambda: node.backend.apply(adds(*peers)))
    observed = timed("observe them", node.backend.observe)
    assert observed == {resource.key: resource for resource in all_resources}
    timed("compare them (every 5 s)", lambda: netns.call(node.namespace, node.wireguard.differs))
    timed("one more peer gone", lambda: bring(all_resources[:-1]))
    timed("remove all", lambda: bring([node.value()]))


def rotation(one: WireGuardNode, two: WireGuardNode, rate: int) -> str:
    """Rotate the second Node's key in the middle of UDP traffic from it; return what iperf3 says of it."""
    server = subprocess.Popen(
        netns.command(one.namespace, ["iperf3", "-s", "-1", "-J"]), stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 5
    while ":5201" not in netns.execute(one.namespace, ["ss", "-ltn"]).stdout:
        assert time.monotonic() < deadline, "iperf3 does not listen"
        time.sleep(0.02)
    client = ["iperf3", "-c", str(one.inner), "-u", "-b", f"{rate}M", "-l", "1000", "-t", "3", "-J"]
    sender = subprocess.Popen(netns.command(two.namespace, client), stdout=subprocess.PIPE, text=True)
    two.store.prepare_next()
    one.make(two.peer_for(one))
    time.sleep(1.2)
    two.store.promote_next()
    two.make(one.peer_for(two))
    sender.communicate(timeout=30)
    report, _ = server.communicate(timeout=30)
    one.make(two.peer_for(one))
    total = json.loads(report)["end"]["sum"]
    return f"{total['packets']} sent, {total['lost_packets']} lost"


def main() -> None:
    """Run; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=1000)
    parser.add_argument("--implementation", type=WireGuardImplementation, action="append")
    options = parser.parse_args()
    for implementation in options.implementation or list(WireGuardImplementation):
        print(f"{implementation}:", flush=True)
        reason = missing(implementation)
        if reason:
            print(f"  not here: {reason}")
            continue
        with tempfile.TemporaryDirectory() as base, two_nodes(Path(base), implementation) as (one, two):
            many_peers(one, options.peers)
            meet(one, two)
            for rate in RATES:
                print(f"  rotation under {rate} Mbit/s of UDP: {rotation(one, two, rate)}", flush=True)


if __name__ == "__main__":
    main()
