"""What compiling costs: 1,000 remote clusters with 3 CIDRs each on a gateway, cold and after one change.

Prints counts, ratios, seconds and memory; run it with `python -m tests.bench.compile [clusters]`. The ratio is
what is promised (one change costs less than 1/50 of a cold compile and diff); seconds depend on the machine.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
import tracemalloc
from collections import Counter
from dataclasses import replace
from ipaddress import ip_address

from mcagent.core.compile import Compiled, Compiler
from mcagent.core.plan.diff import diff, diff_desired
from mcagent.model.config import Config
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import TunnelPort
from mcagent.model.objects import ApiObject, ClusterInfoImport, Snapshot
from mcagent.model.plan import Plan
from tests.worlds.core_inputs import HOME, cluster, config, snapshot


def remote(number: int) -> ClusterInfoImport:
    """Return a cluster with a Service CIDR, two Pod CIDRs and one gateway."""
    high, low = divmod(number, 250)
    return cluster(
        f"cluster-{number:05}",
        f"10.{100 + high}.{low}.0/24",
        f"10.{150 + high}.{low}.0/24",
        f"10.{200 + high}.{low}.0/24",
        gateways=(f"20.{high}.{low}.1",),
    )


class Timed:
    """A compiler whose calls are timed, each with the diff to the one before."""

    def __init__(self, facts: Facts, settings: Config) -> None:
        self._compiler, self._settings = Compiler(), settings
        self.facts = facts
        self.last: Compiled | None = None

    def __call__(self, source: Snapshot) -> tuple[Plan, float]:
        """Return the plan, and CPU seconds of compile and diff."""
        start = time.thread_time()
        compiled = self._compiler.compile(source, self.facts, self._settings)
        plan = diff_desired(self.last.desired, compiled.desired) if self.last else diff({}, compiled.desired)
        seconds = time.thread_time() - start
        self.last = compiled
        return plan, seconds


def changed(source: Snapshot, number: int) -> Snapshot:
    """Return the snapshot with another gateway address in one cluster."""
    info = remote(number)
    high, low = divmod(number, 250)
    infos = dict(source.cluster_infos)
    infos[info.meta.key] = replace(info, gateway_ips=(ip_address(f"20.{high}.{low}.77"),))
    return replace(source, cluster_infos=infos)


def measure(name: str, clusters: int, home: tuple[ApiObject, ...]) -> bool:
    """Print one scenario; tell whether one change is cheap enough."""
    source = snapshot(*home, *map(remote, range(clusters)))
    settings = config("g1", enable_pod_to_pod=True)
    cold = []
    for _ in range(3):
        gc.collect()
        compile_ = Timed(Facts(), settings)
        plan, seconds = compile_(source)
        cold.append(seconds)
    kinds = Counter(type(step.new).__name__ for step in plan.steps)
    ports = {step.new.name: step.new.ofport for step in plan.steps if isinstance(step.new, TunnelPort)}
    compile_.facts = facts = Facts(ofports=ports)
    compile_(source)
    warm, steps = [], 0
    for number in range(0, clusters, max(clusters // 50, 1)):
        plan, seconds = compile_(changed(source, number))
        warm.append(seconds)
        steps = max(steps, len(plan))
        compile_(source)
    _, nothing = compile_(source)
    tracemalloc.start()
    compiler = Compiler()  # what it remembers counts, too
    compilation = compiler.compile(source, facts, settings)
    memory, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    ratio = statistics.median(cold) / statistics.median(warm)
    print(f"{name}: {clusters} clusters, {len(compilation.desired.fragments)} fragments")
    print("  resources       " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    print(f"  cold            {statistics.median(cold):8.3f} s (compile and diff)")
    print(f"  one change      {statistics.median(warm) * 1000:8.3f} ms median, {max(warm) * 1000:.3f} ms worst")
    print(f"                  {steps:8} steps at most")
    print(f"  no change       {nothing * 1000:8.3f} ms")
    print(f"  cold/one change {ratio:8.1f} (promised: more than 50)")
    print(f"  memory          {memory / 1e6:8.1f} MB kept, {peak / 1e6:.1f} MB at the peak")
    return ratio > 50


def main() -> int:
    """Run both scenarios; end non-zero when the ratio is not reached."""
    clusters = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    alone = tuple(o for o in HOME if o.meta.name in ("g1", "w1"))
    results = [measure("one gateway", clusters, alone), measure("two gateways", clusters, HOME)]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
