"""The control plane when many clusters export the same Services: what leader, member and agent need for it.

Real `mcagent controller` processes: a leader, and a member that imports. The exporting clusters are objects in
the leader's API server, as their controllers would write them. Each has its own ClusterIP for each Service, so
that the member has an EndpointSlice for each cluster and Service. Prints numbers, with --json for a program.

- leader: starts before all that the clusters export, until all is merged
- member: starts before the merged imports, until all is made; again: a restart, which has nothing to write
- change: one cluster's endpoint of one Service becomes another, until the member's EndpointSlice has it
- newcomer: one more cluster exports all the Services
- agent: a process that reads as agents do for importedTraffic, before there is an import and in the end
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path

from devtools.realapi import find
from devtools.waiting import wait_until
from mcagent.agent.snapshot_store import SnapshotStore
from mcagent.controller.contract import names
from mcagent.controller.leader.exports.header import read_header
from mcagent.controller.leader.exports.payloads import read_backends, read_definition
from mcagent.controller.leader.services.merge import Offer, merge
from mcagent.controller.leader.services.service_imports import service_imports
from mcagent.controller.machinery.apply import Verb, plan
from mcagent.controller.machinery.reconciler import Wanted
from mcagent.core.engine import IncrementalEngine
from mcagent.core.imported_services import NEEDS, steering
from mcagent.kube.client import Client
from mcagent.kube.sources.apiserver import ApiServerSource
from mcagent.model.config import Config
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind, Snapshot
from tests.bench.control import (
    AREA,
    HOME,
    SETTLING,
    SHOP,
    Slices,
    creation,
    in_parallel,
    make_area,
    members,
    quantile,
    show,
)
from tests.worlds.control_view import MemoryView
from tests.worlds.controllers import Api, Controller, Json, api_server, controller, memory, processor
from tests.worlds.leader_world import announce, cluster_info, endpoints, service
from tests.worlds.memory_objects import Clock, MemoryObjects, timestamp, typed
from tests.worlds.mirrors import has_synced

MOST = 255  # clusters, each with a network 10.N.0.0/16
OWN_SERVICES, OWN_PODS = "172.16.0.0/16", "172.17.0.0/16"  # of the importing cluster


def address(cluster: int, number: int) -> str:
    """Return an address of a cluster's network."""
    return f"10.{cluster}.0.{number}"


def shared(cluster: str, number: int, each: int) -> tuple[Json, Json]:
    """Return a cluster's two exports of one of the Services that all clusters have."""
    target = f"{SHOP}/s{each}"
    return service(cluster, target), endpoints(cluster, [address(number, each % 200 + 1)], target)


def exports(cluster: str, number: int, services: int) -> list[Json]:
    """Return all that a cluster tells the leader: its networks, and the Services."""
    objects = [cluster_info(cluster, f"{address(number, 0)}/16")]
    for each in range(services):
        objects += shared(cluster, number, each)
    return objects


class World:
    """Two API servers, the controllers that run, and what the processes have spent."""

    def __init__(self, stack: ExitStack, kind: str, directory: Path) -> None:
        self.north = stack.enter_context(api_server(kind, directory / "north"))
        self.west = stack.enter_context(api_server(kind, directory / "west", OWN_SERVICES))
        self.controllers: dict[str, Controller] = {}

    def settle(
        self, name: str, begin: AbstractContextManager[Controller], kind: Kind, count: int, stack: ExitStack
    ) -> Json:
        """Start a controller, and return what is spent until it has settled with so many objects of a kind."""
        phase = Phase(self)
        self.controllers[name] = stack.enter_context(begin)
        stack.callback(self.controllers.pop, name)
        self.wait(name, kind, count)
        return phase.end() | self.resident()

    def wait(self, name: str, kind: Kind, count: int) -> None:
        """Wait until a controller knows so many objects of a kind and has nothing to do."""
        controller = self.controllers[name]

        def settled() -> bool:
            page = controller.page("/metrics")
            return controller.metric(
                "mcagent_controller_objects", f'kind="{kind}"', page
            ) >= count and controller.idle(page)

        wait_until(settled, f"{count} {kind}s", timeout=SETTLING, interval=0.25)

    def spent(self) -> dict[str, float]:
        """Return what was spent until now: processor time, and objects written, heartbeats left out."""
        cpu_seconds: dict[str, float] = {}
        for name, one in self.controllers.items():
            for kind, count in one.writes_by_kind().items():
                if kind != Kind.MEMBER_CLUSTER_ANNOUNCE:
                    cpu_seconds[f"{name}.written.{kind}"] = count
            cpu_seconds[f"{name}.processor_seconds"] = one.processor()
        for name, pid in self._programs().items():
            cpu_seconds[f"{name}.processor_seconds"] = processor(pid)
        return cpu_seconds

    def resident(self) -> dict[str, float]:
        """Return the memory of all processes, in MiB."""
        memories = {f"{name}.resident_mib": memory(pid) for name, pid in self._programs().items()}
        for name, one in self.controllers.items():
            memories |= {f"{name}.resident_mib": one.memory(), f"{name}.peak_mib": one.memory("VmHWM")}
        return memories

    def _programs(self) -> dict[str, int]:
        return {
            f"{where} {program}": pid
            for where, api in (("leader's", self.north), ("member's", self.west))
            for program, pid in api.pids.items()
        }


class Phase:
    """What is spent from the beginning of a phase to its end."""

    def __init__(self, world: World) -> None:
        self._world, self._before, self._begun = world, world.spent(), time.monotonic()

    def end(self, times: int = 1) -> Json:
        """Return what was spent; of each of so many times, if it was done several times."""
        seconds, after = time.monotonic() - self._begun, self._world.spent()
        spent = {name: (value - self._before.get(name, 0.0)) / times for name, value in after.items()}
        return {"seconds": seconds / times, **{name: value for name, value in sorted(spent.items()) if value}}


def measure(kind: str, directory: Path, clusters: int, services: int, changes: int, *, led: bool) -> Json:
    """Measure with so many exporting clusters. `led`: by a leader, and one more cluster comes in the end."""
    everybody = members(clusters + 1)
    obj: Json = {"clusters": clusters, "services": services}
    with ExitStack() as stack:
        world = World(stack, kind, directory)
        north, west = world.north, world.west
        make_area(north)
        west.put(Kind.NAMESPACE, HOME)
        west.join(north, "west", area=AREA, home=HOME)
        work = [announce(cluster, time.time(), AREA, "set") for cluster in everybody]
        for number, cluster in enumerate(everybody[:clusters]):
            work += exports(cluster, number, services if led else 0)
        in_parallel(north, map(creation, work))
        obj["agent_before"] = agent(west)

        with ExitStack() as leading:
            leads = controller("leader", north.kubeconfig, AREA, directory, heartbeatTimeout="1h")
            imports = clusters + (2 * services if led else 0)
            obj["leader"] = world.settle("leader", leads, Kind.RESOURCE_IMPORT, imports, leading)
            if led:
                stack.push(leading.pop_all())
        if not led:
            in_parallel(north, [partial(write, one) for one in merged(everybody[:clusters], services)])
        own = {"serviceCIDR": OWN_SERVICES, "podCIDRs": [OWN_PODS]}
        member = partial(controller, "member", west.kubeconfig, HOME, directory, **own)
        with ExitStack() as first:
            obj["member"] = world.settle("member", member(), Kind.ENDPOINT_SLICE, clusters * services, first)
        obj["member_again"] = world.settle("member", member(), Kind.ENDPOINT_SLICE, clusters * services, stack)
        obj["change"] = change(world, changes, exported if led else imported)
        if led:
            phase = Phase(world)
            in_parallel(north, map(creation, exports(everybody[clusters], clusters, services)))
            world.wait("member", Kind.ENDPOINT_SLICE, (clusters + 1) * services)
            wait_until(world.controllers["leader"].idle, "the leader to come to rest", timeout=SETTLING)
            obj["newcomer"] = phase.end()
        obj["agent_after"] = agent(west)
    return obj


def merged(everybody: Sequence[str], services: int) -> Iterator[Wanted]:
    """Yield the ResourceImports of all Services as a leader makes them."""
    view = MemoryView(MemoryObjects(Clock()), namespace=AREA)
    metadata = {"creationTimestamp": timestamp(0)}
    for each in range(services):
        offers = []
        for number, cluster in enumerate(everybody):
            pair = shared(cluster, number, each)
            raw, backends = (
                typed({**shared_service, "metadata": {**shared_service["metadata"], **metadata}})
                for shared_service in pair
            )
            offer = Offer(
                header=read_header(raw),
                definition=read_definition(raw),
                backends=read_backends(backends, lambda _address: "", 1),
            )
            offers.append(offer)
        own = {"namespace": SHOP, "name": f"s{each}"}
        for step in service_imports(view, AREA, own, merge(offers), 0.0):
            if isinstance(step, Wanted):
                yield step


def write(written: Wanted, client: Client) -> None:
    """Write an object and its status, as controllers do."""
    present = None
    while (next_write := plan(written, present)) is not None:
        ref, creates = next_write.ref, next_write.verb is Verb.CREATE
        path = object_path(ref.kind, ref.namespace, "" if creates else ref.name)
        path += "/status" if next_write.verb is Verb.STATUS else ""
        method, form = ("POST", "json") if creates else ("PATCH", "merge-patch+json")
        present = client.request(method, path, body=next_write.body, content_type=f"application/{form}")


def exported(world: World, now: str) -> None:
    """Let the first cluster export another endpoint."""
    name = names.endpoints_export(members(1)[0], SHOP, "s1")
    body = {"spec": {"endpoints": endpoints("", [now])["spec"]["endpoints"]}}
    world.north.patch(Kind.RESOURCE_EXPORT, name, AREA, body)


def imported(world: World, now: str) -> None:
    """Write the first cluster's endpoint into the merged import, as a leader does."""
    name = names.endpoints_import(SHOP, "s1")
    spec = world.north.get(Kind.RESOURCE_IMPORT, name, AREA)["spec"]
    spec["endpoints"]["subsets"][0]["addresses"] = [{"ip": now}]
    world.north.patch(Kind.RESOURCE_IMPORT, name, AREA, {"spec": spec})


def change(world: World, count: int, how: Callable[[World, str], None]) -> Json:
    """Give the first cluster's Service another endpoint, again and again."""
    slices, spent = Slices(world.west), list[float]()
    phase = Phase(world)
    for number in range(count):
        now = address(0, 201 + number % 50)
        begun = time.perf_counter()
        how(world, now)
        slices.wait("s1", now)
        spent.append(time.perf_counter() - begun)
    for process in world.controllers.values():
        wait_until(process.idle, "a controller to come to rest", timeout=60)
    numbers = phase.end(count)
    return {"p50_ms": 1000 * quantile(spent, 0.5), "p99_ms": 1000 * quantile(spent, 0.99), "of_each": numbers}


# --- an agent -----------------------------------------------------------------------------------------------


def agent(api: Api) -> Json:
    """Return what a process needs that reads imported Services as agents do."""
    argv = [sys.executable, "-m", "tests.bench.services", "--agent", str(api.kubeconfig)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=True, timeout=600)
    result: Json = json.loads(done.stdout)
    return result


def be_agent(kubeconfig: str) -> Json:
    """Read imported Services, decide, take a change, decide again."""
    changed, began, spent = threading.Event(), time.monotonic(), time.process_time()
    store, client = SnapshotStore(changed.set), Client(kubeconfig)
    source = ApiServerSource(client, store)
    empty = memory(os.getpid())
    source.start(sorted(NEEDS))
    wait_until(lambda: has_synced(source), "the objects to be listed", timeout=300)
    listed = store.take()
    result = {
        "slices": len(listed.endpoint_slices),
        "listed_seconds": time.monotonic() - began,
        "listed_processor_seconds": time.process_time() - spent,
        "resident_more_mib": memory(os.getpid()) - empty,
        "peak_more_mib": memory(os.getpid(), "VmHWM") - empty,
    }
    engine, config = IncrementalEngine(), Config(node_name="n1", cluster_id="west", imported_traffic="local > *")
    for name, snapshot in (("first", listed), ("change", _one_changed(listed))):
        spent = time.process_time()
        with engine.one_pass():
            steering(engine, snapshot, frozenset(), (), config)
        result[f"{name}_decision_processor_ms"] = 1000 * (time.process_time() - spent)
    source.stop()
    client.close()
    return result


def _one_changed(snapshot: Snapshot) -> Snapshot:
    for key, endpoint_slice in snapshot.endpoint_slices.items():
        if endpoint_slice.source_cluster and endpoint_slice.endpoints:
            changed = replace(endpoint_slice.endpoints[0], addresses=(IPv4Address("10.0.0.250"),))
            return replace(
                snapshot,
                endpoint_slices={**snapshot.endpoint_slices, key: replace(endpoint_slice, endpoints=(changed,))},
            )
    return snapshot


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--api", choices=["embedded", "real"], help="[real, where it is there]")
    parser.add_argument("--clusters", type=int, default=250)
    parser.add_argument("--services", type=int, default=100, help="that every cluster exports")
    parser.add_argument("--changes", type=int, default=50)
    parser.add_argument(
        "--without-leader", action="store_true", help="its imports are written: the half that is quick"
    )
    parser.add_argument("--json", action="store_true", help="print the numbers for a program")
    parser.add_argument("--agent", metavar="KUBECONFIG", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.agent:
        print(json.dumps(be_agent(args.agent)))
        return
    if not 1 <= args.clusters < MOST:
        parser.error(f"--clusters: from 1 to {MOST - 1}")
    kind = args.api or ("real" if find() else "embedded")
    directory = Path(tempfile.mkdtemp(prefix="mcb"))
    result = {"api": kind, "load_average": list(os.getloadavg())}
    result |= measure(kind, directory, args.clusters, args.services, args.changes, led=not args.without_leader)
    result["load_average_after"] = list(os.getloadavg())
    shutil.rmtree(directory)
    if args.json:
        print(json.dumps(result, indent=1))
        return
    show(result)


if __name__ == "__main__":
    main()
