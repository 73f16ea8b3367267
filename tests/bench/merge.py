"""What a changed endpoint of a Service that many clusters export costs the leader: its decision, without requests.

    python -m tests.bench.merge [--clusters 250] [--endpoints 4] [--json]

The leader's own cache, reconciler and comparison, in one process, without an API server. A change replaces one
endpoint of one cluster. Prints the processor time of the decision (`desired`), and of the comparison with all
objects that it concerns (`plan`), and how many of these it would write.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable

from devtools.apiserver.storage.merge import merge_patch
from mcagent.controller.contract import names
from mcagent.controller.leader import leader_reconcilers
from mcagent.controller.leader.services.reconciler import ServiceMerge
from mcagent.controller.machinery.apply import plan
from mcagent.controller.machinery.cache import Cache
from mcagent.controller.machinery.current_events import CurrentEvents
from mcagent.controller.machinery.reconciler import DesiredObjects, Ref, Side, Wanted
from mcagent.controller.machinery.view import EngineView
from mcagent.controller.machinery.written import WrittenObjects
from mcagent.controller.settings import LeaderSettings
from mcagent.kube.source import RawObject
from mcagent.model.api.base import ApiObject, as_json
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_object
from tests.worlds.leader_world import AREA, FLAT, account, announce, cluster_info, cluster_set, endpoints, service
from tests.worlds.memory_objects import START

KEY = f"{AREA}/default/nginx"
CHANGES = 20


class Leader:
    """The leader's cache, and its reconciler of exported Services."""

    def __init__(self) -> None:
        settings = LeaderSettings(namespace="", allowed_endpoint_cidrs=FLAT)
        reconcilers = leader_reconcilers(settings)
        kinds = frozenset[Kind]().union(*(reconciler.reads.on(Side.LOCAL) for reconciler in reconcilers))
        indexes = [index for reconciler in reconcilers for index in reconciler.indexes]
        self._cache = Cache({Side.LOCAL: kinds, Side.LEADER: ()}, indexes)
        self._view = EngineView(self._cache, AREA, None, WrittenObjects(self._cache), CurrentEvents())
        self._merge = ServiceMerge(settings)
        self._version = 0
        for kind in kinds:
            self._cache.replace(Side.LOCAL, kind, [])

    def put(self, *objects: RawObject) -> None:
        """Have objects of the area in the cache, as the API server would send them."""
        for raw in objects:
            self._version += 1
            kind, name = Kind(raw["kind"]), raw["metadata"]["name"]
            added = {
                "namespace": AREA,
                "uid": f"{kind}/{name}",
                "resourceVersion": str(self._version),
                "creationTimestamp": "2026-01-01T00:00:00Z",
            }
            obj = read_object(kind, {**raw, "metadata": {**raw["metadata"], **added}})
            self._cache.wrote(Ref(kind=kind, namespace=AREA, name=name), obj)

    def decide(self) -> DesiredObjects:
        """Return the decision on the Service."""
        return self._merge.desired(KEY, self._view, START)

    def compare(self, desired: DesiredObjects, *, write: bool) -> int:
        """Return how many objects differ from the decision. `write`: have them in the cache as decided."""
        differing = 0
        for step in desired.steps:
            ref = step.ref if isinstance(step, Wanted) else step
            change = plan(step, raw := self._present(ref))
            differing += change is not None
            while write and change is not None and isinstance(step, Wanted):
                self.put({**merge_patch(raw or {}, change.body), "kind": str(ref.kind)})
                change = plan(step, raw := self._present(ref))
        return differing

    def _present(self, ref: Ref) -> RawObject | None:
        present = self._view.get(ref, ApiObject)
        return None if present is None else dict(as_json(present))


def exporters(count: int, addresses: int) -> Iterable[RawObject]:
    """Yield the objects of clusters that export one Service, with so many endpoints each."""
    yield cluster_set()
    for number in range(count):
        cluster = f"c{number:04}"
        info = cluster_info(cluster, f"10.{128 + number // 256}.{number % 256}.0/24", [f"{_block(number)}.0/22"])
        yield from (announce(cluster, START), account(cluster), info)
        yield {**info, "kind": "ResourceImport", "metadata": {"name": names.cluster_info(cluster)}}
        yield from (service(cluster), exported(number, range(addresses)))


def exported(number: int, addresses: Iterable[int]) -> RawObject:
    """Return the Endpoints export of a cluster."""
    return endpoints(
        f"c{number:04}", [f"{_block(number, address // 250)}.{1 + address % 250}" for address in addresses]
    )


def _block(number: int, more: int = 0) -> str:
    return f"10.{number // 64}.{number % 64 * 4 + more}"


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, default=250, help="[%(default)s]")
    parser.add_argument("--endpoints", type=int, default=4, help="of each cluster, at most 1000 [%(default)s]")
    parser.add_argument("--json", action="store_true", help="print the numbers for a program")
    args = parser.parse_args(argv)
    leader = Leader()
    leader.put(*exporters(args.clusters, args.endpoints))
    leader.compare(leader.decide(), write=True)
    decisions, comparisons, writes = [], [], 0
    for change in range(CHANGES):
        number = change * args.clusters // CHANGES
        leader.put(exported(number, range(1, args.endpoints + 1)))
        began = time.process_time()
        desired = leader.decide()
        decided = time.process_time()
        writes = leader.compare(desired, write=False)
        compared = time.process_time()
        decisions.append(1000 * (decided - began))
        comparisons.append(1000 * (compared - decided))
        leader.compare(desired, write=True)
    numbers = {
        "decision_ms": round(statistics.median(decisions), 1),
        "comparison_ms": round(statistics.median(comparisons), 1),
        "objects": len(leader.decide().steps),
        "writes": writes,
    }
    print(json.dumps(numbers) if args.json else "\n".join(f"{name:15} {value}" for name, value in numbers.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
