"""How long 10,000 routes take through the netlink backend, beside ip(8): run it as root.

Prints seconds and the ratio to `ip`; it judges nothing.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from ipaddress import ip_address, ip_network

from devtools.nodes import netns
from mcagent.dataplane.netlink.backend import NetlinkBackend
from mcagent.model.dataplane.resources import Route
from mcagent.model.plan import Step

DEVICES = ("mc-gw0", "mc-gw1")
NEXT_HOP = ip_address("169.254.77.2")


def measure(title: str, function: Callable[[], object], reference: float = 0.0) -> float:
    """Run, print and return the seconds that `function` takes."""
    start = time.perf_counter()
    function()
    took = time.perf_counter() - start
    ratio = f"   {took / reference:.2f} x ip" if reference else ""
    print(f"{title:<28} {took:7.3f} s{ratio}", flush=True)
    return took


def routes(count: int, device: str) -> list[Route]:
    """Return as many routes as asked for."""
    return [
        Route(table=28003, destination=ip_network(f"10.{n >> 8}.{n & 255}.0/24"), device=device, via=NEXT_HOP)
        for n in range(count)
    ]


def bench(count: int) -> None:
    """Measure in the calling thread's namespace."""
    backend = NetlinkBackend(route_tables=(28003, 28004), route_protocol=111, devices=DEVICES)
    first, second = routes(count, DEVICES[0]), routes(count, DEVICES[1])
    work = {
        "add": (first, [Step(new=new) for new in first]),
        "replace": (
            second,
            [Step(old=old, new=new) for old, new in zip(first, second, strict=True)],
        ),
        "delete": (second, [Step(old=old) for old in second]),
    }
    for verb, (written_text, steps) in work.items():
        if verb == "delete":
            reference = measure(
                "ip -json route show", lambda: netns.ip("", "-json", "route", "show", "table", "900")
            )
            measure("backend observe", backend.observe, reference)
        lines = [
            f"route {verb} {route.destination} via {NEXT_HOP} dev {route.device} onlink table 900"
            for route in written_text
        ]

        def with_ip(lines: list[str] = lines) -> None:
            netns.ip_batch("", lines)

        def with_backend(steps: list[Step] = steps) -> None:
            assert not backend.apply(steps).failed

        reference = measure(f"ip -batch {verb}", with_ip)
        measure(f"backend {verb}", with_backend, reference)
    measure("backend observe, empty", backend.observe)
    backend.close()


def main() -> None:
    """Make a namespace, measure in it, take it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--routes", type=int, default=10_000, help="how many (default 10,000; at most 65,536)")
    count = parser.parse_args().routes
    namespace = f"mcbench{os.getpid()}"
    netns.create(namespace)
    try:
        for device in DEVICES:
            netns.ip(namespace, "link", "add", device, "type", "veth", "peer", "name", f"{device}p")
            netns.ip(namespace, "link", "set", device, "up")
        netns.call(namespace, lambda: bench(count), timeout=120)
    finally:
        netns.delete(namespace)


if __name__ == "__main__":
    main()
