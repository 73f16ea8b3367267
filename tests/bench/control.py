"""The control plane: how long an export takes, what a leader of 250 clusters needs, what one change costs.

Real `mcagent controller` processes, on the embedded API server (a process) and on real kube-apiserver and etcd.
Prints tables and, with --json, the numbers; it judges nothing.

- export: from the ServiceExport to the EndpointSlice of the imported Service in another cluster, one at a time
- change: the same for one endpoint that comes, and how many objects each controller writes for that
- settle: a leader starts before all that so many clusters export; members are objects, not processes. Its
  writes per second are compared with those of eight connections that create objects of the same size and write
  their status twice, as the leader does, with and without a watch of these objects, before the leader starts and
  as soon as it has ended: what a write costs the API server depends on how many objects it has
- restart: the same for a leader that finds everything as it should be; idle: with every member's heartbeats
- join: so many members announce themselves at once
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from devtools.realapi import find
from devtools.waiting import wait_until
from mcagent.controller.contract import names
from mcagent.kube.client import Client
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from tests.worlds.controllers import Api, Controller, Json, api_server, controller, processor
from tests.worlds.leader_world import announce, cluster_info, endpoints, service
from tests.worlds.memory_objects import timestamp

AREA, HOME, SHOP = "kube-system", "member", "default"
SETTLING = 7200.0  # seconds


def quantile(values: list[float], share: float) -> float:
    """Return the value that this share of all does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def make_area(api: Api) -> None:
    """Make the leader's ClusterSet."""
    api.put(Kind.CLUSTER_SET, "set", AREA, spec={"clusterID": "north", "leaders": [{"clusterID": "north"}]})


# --- an export, and a change, through three controllers -----------------------------------------------------


def serve(api: Api, number: int) -> None:
    """Make a Service with one endpoint."""
    name = f"s{number}"
    api.put(Kind.SERVICE, name, SHOP, spec={"ports": [{"name": "http", "port": 80, "targetPort": 8080}]})
    api.put(
        Kind.ENDPOINT_SLICE,
        name,
        SHOP,
        metadata={"labels": {"kubernetes.io/service-name": name}},
        addressType="IPv4",
        endpoints=[{"addresses": [f"10.10.{number // 250}.{number % 250 + 1}"], "conditions": {"ready": True}}],
        ports=[{"name": "http", "port": 8080, "protocol": "TCP"}],
    )


class Slices:
    """Follows the EndpointSlices of imported Services in another cluster."""

    def __init__(self, api: Api) -> None:
        path = object_path(Kind.ENDPOINT_SLICE, SHOP)
        version = api.client.request("GET", path)["metadata"]["resourceVersion"]
        query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "3600"}
        self._stream = api.client.watch(path, query, inactivity=600.0)
        self._lines = self._stream.lines()

    def wait(self, name: str, address: str = "") -> None:
        """Return when an imported Service has endpoints, or that one."""
        for line in self._lines:
            event = json.loads(line)
            owner = event["object"]["metadata"].get("labels", {}).get("kubernetes.io/service-name")
            if owner == f"antrea-mc-{name}" and address in json.dumps(event["object"].get("endpoints")):
                return
        raise SystemExit("the watch has ended")


def through(kind: str, directory: Path, counts: list[int], changes: int) -> Json:
    """Export Services until there are as many as `counts` say; change endpoints at each of these numbers."""
    result: Json = {"exports": 0, "changes": []}
    spent: list[float] = []
    with ExitStack() as stack:
        north = stack.enter_context(api_server(kind, directory / "north"))
        west = stack.enter_context(api_server(kind, directory / "west", "10.97.0.0/16"))
        make_area(north)
        for api, cluster, cidr in ((north, "north", "10.10.0.0/16"), (west, "west", "10.20.0.0/16")):
            api.put(Kind.NAMESPACE, HOME)
            address = f"192.168.{len(cluster)}.1"
            api.put(Kind.NODE, "n1", metadata={"annotations": {"multicluster.antrea.io/gateway": "true"}})
            status = {
                "addresses": [{"type": "InternalIP", "address": address}],
                "conditions": [{"type": "Ready", "status": "True"}],
            }
            api.patch(Kind.NODE, "n1", "", {"status": status}, part="/status")
            api.join(north, cluster, area=AREA, home=HOME)
            service_cidr = "10.96.0.0/16" if api is north else "10.97.0.0/16"
            settings = {"serviceCIDR": service_cidr, "podCIDRs": [cidr], "endpointIPType": "PodIP"}
            member = controller("member", api.kubeconfig, HOME, directory / cluster, **settings)
            result[cluster] = stack.enter_context(member)
        everybody: dict[str, Controller] = {
            "leader": stack.enter_context(controller("leader", north.kubeconfig, AREA, directory / "leader")),
            "exporting member": result.pop("north"),
            "importing member": result.pop("west"),
        }
        for cluster in ("north", "west"):
            wait_until(
                partial(north.get, Kind.RESOURCE_IMPORT, f"{cluster}-clusterinfo", AREA),
                f"the cluster information of {cluster}",
                timeout=60,
            )
        slices = Slices(west)
        for count in counts:
            for number in range(len(spent), count):
                serve(north, number)
                time.sleep(0.1)  # exports come singly here
                begun = time.perf_counter()
                north.put(Kind.SERVICE_EXPORT, f"s{number}", SHOP)
                slices.wait(f"s{number}")
                spent.append(time.perf_counter() - begun)
            result["changes"].append({"services": count, **change(north, slices, everybody, changes)})
        result |= {
            "exports": len(spent),
            "export_p50_ms": 1000 * quantile(spent, 0.5),
            "export_p99_ms": 1000 * quantile(spent, 0.99),
            "resident_mib": {name: each.memory() for name, each in everybody.items()},
        }
    return result


def settled_writes(everybody: dict[str, Controller]) -> Counter[str]:
    """Return what each has written of each kind, heartbeats left out, when nothing is to be done."""
    wait_until(lambda: all(cluster.idle() for cluster in everybody.values()), "all to come to rest", timeout=60)
    return Counter(
        {
            f"{name}: {kind}": count
            for name, cluster in everybody.items()
            for kind, count in cluster.writes_by_kind().items()
            if kind != "MemberClusterAnnounce"
        }
    )


def change(north: Api, slices: Slices, everybody: dict[str, Controller], count: int) -> Json:
    """Give one Service another endpoint, again and again."""
    before = settled_writes(everybody)
    spent: list[float] = []
    for number in range(count):
        address = f"10.10.{100 + number // 250}.{number % 250 + 1}"
        body: Json = {"endpoints": [{"addresses": [address], "conditions": {"ready": True}}]}
        time.sleep(0.1)
        begun = time.perf_counter()
        north.patch(Kind.ENDPOINT_SLICE, "s1", SHOP, body)
        slices.wait("s1", address)
        spent.append(time.perf_counter() - begun)
    after = settled_writes(everybody)
    return {
        "p50_ms": 1000 * quantile(spent, 0.5),
        "p99_ms": 1000 * quantile(spent, 0.99),
        "written_per_change": {name: value / count for name, value in sorted((after - before).items())},
    }


# --- a leader of many ---------------------------------------------------------------------------------------


def in_parallel(api: Api, work: Iterable[Callable[[Client], Any]], threads: int = 8) -> None:
    """Do requests on several connections."""
    clients = [Client(str(api.kubeconfig), user_agent="members") for _ in range(threads)]
    items = list(work)

    def some(first: int) -> None:
        for number in items[first::threads]:
            number(clients[first])

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(some, first) for first in range(threads)]:
            done.result()
    for client in clients:
        client.close()


def creation(obj: Json) -> Callable[[Client], Any]:
    """Return a request that creates an object of the Common Area, with the labels that members write."""
    kind = Kind(obj["kind"])
    meta = {key: value for key, value in obj["metadata"].items() if key != "namespace"}
    spec = obj.get("spec", {})
    if kind is Kind.RESOURCE_EXPORT:
        labels = {names.LABEL_SOURCE_KIND: spec["kind"], names.LABEL_SOURCE_CLUSTER_ID: spec["clusterID"]}
        if spec["kind"] != "ClusterInfo":
            labels |= {names.LABEL_SOURCE_NAMESPACE: spec["namespace"], names.LABEL_SOURCE_NAME: spec["name"]}
        meta["labels"] = labels
    body = {**obj, "apiVersion": KINDS[kind].api_version, "metadata": meta}
    return lambda client: client.request("POST", object_path(kind, AREA), body=body)


def beat(cluster: str, at: float) -> Callable[[Client], Any]:
    """Return the request of a heartbeat; `at` counts in whole seconds."""
    path = object_path(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA, names.announce(cluster))
    body = {"metadata": {"annotations": {names.HEARTBEAT_ANNOTATION: timestamp(at)}}}
    return lambda c: c.request("PATCH", path, body=body, content_type="application/merge-patch+json")


def members(count: int) -> list[str]:
    """Return cluster IDs."""
    return [f"c{number:04}" for number in range(count)]


def exports(cluster: str, number: int, services: int) -> list[Json]:
    """Return all that a cluster tells the leader: ClusterInfo, and Services of its own with one endpoint each."""
    high, low = number // 250, number % 250
    exports = [cluster_info(cluster, f"100.{64 + high}.{low}.0/24")]
    for each in range(services):
        target = f"shop/{cluster}-s{each}"
        exports += [
            service(cluster, target),
            endpoints(cluster, [f"100.{64 + high}.{low}.{each % 250 + 1}"], target),
        ]
    return exports


def api_processor(api: Api) -> float:
    """Return the processor time that an API server and etcd have spent so far, in seconds."""
    return sum(map(processor, api.pids.values()))


def part_cpus(api: Api) -> None:
    """Give the first half of the CPUs to the programs of an API server, the other half to this process."""
    cpus = sorted(os.sched_getaffinity(0))
    half = len(cpus) // 2
    for pid in api.pids.values():
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cpus[:half])
    os.sched_setaffinity(0, cpus[half:])  # what it starts inherits that


def settle(kind: str, directory: Path, *, clusters: int, services: int, beats: int, apart: bool) -> Json:
    """Start a leader before everything that `clusters` members export."""
    expected = clusters * (1 + 2 * services)
    everybody = members(clusters)
    with api_server(kind, directory / "api") as api:
        if apart:
            part_cpus(api)
        make_area(api)
        in_parallel(api, [creation(announce(cluster, time.time(), AREA, "set")) for cluster in everybody])
        begun = time.monotonic()
        in_parallel(
            api, [creation(obj) for n, cluster in enumerate(everybody) for obj in exports(cluster, n, services)]
        )
        result: Json = {
            "clusters": clusters,
            "services": services,
            "load_per_second": expected / (time.monotonic() - begun),
            "write_rates": {"before": write_rates(api, "before")},
        }
        for name in ("settle", "restart"):
            begun, time_before = time.monotonic(), api_processor(api)
            with controller("leader", api.kubeconfig, AREA, directory / name, heartbeatTimeout="1h") as leader:
                wait_until(lambda: _settled(leader, expected), name, timeout=SETTLING, interval=2.0)
                seconds = time.monotonic() - begun
                requests = leader.metric("mcagent_controller_api_requests_total")
                result[name] = {
                    "seconds": seconds,
                    "written": leader.writes(),
                    "keys_looked_at": leader.metric("mcagent_controller_reconciles_total"),
                    "requests_per_second": requests / seconds,
                    "processor_seconds": leader.processor(),
                    "api_processor_seconds": api_processor(api) - time_before,
                    "resident_mib": leader.memory(),
                    "peak_resident_mib": leader.memory("VmHWM"),
                }
                if name == "restart":
                    result["idle"] = idle(api, leader, everybody, beats)
            if name == "settle":
                result["write_rates"]["after"] = write_rates(api, "after")
                for rates in result["write_rates"].values():
                    for measured in rates.values():
                        measured["ratio"] = result[name]["written"] / seconds / measured["writes_per_second"]
    return result


def write_rates(api: Api, when: str) -> Json:
    """Return how many writes per second the API server takes, of objects without and with a watch.

    Each is the median of three rounds that alternate, "api_processor_ms" the processor time of a write. `when` is
    part of the names of the objects' namespaces.
    """
    rounds: dict[str, list[tuple[float, float]]] = {"unwatched": [], "watched": []}
    for number in range(3):
        for name, measured in rounds.items():
            measured.append(write_rate(api, f"{when}-{name}-{number}", watched=name == "watched"))
    return {
        name: {
            "writes_per_second": quantile([rate for rate, _ in measured], 0.5),
            "api_processor_ms": 1000 * quantile([seconds for _, seconds in measured], 0.5),
        }
        for name, measured in rounds.items()
    }


def write_rate(api: Api, namespace: str, *, watched: bool, count: int = 1000) -> tuple[float, float]:
    """Write to objects of a namespace on eight connections; return writes per second, and processor time of each.

    If `watched`, another connection watches these objects, as a leader watches what it writes.
    """
    api.put(Kind.NAMESPACE, namespace)
    path = object_path(Kind.RESOURCE_EXPORT, namespace)
    condition = {"type": "Succeeded", "status": "True", "lastTransitionTime": timestamp(time.time())}

    def write(number: int, client: Client) -> None:
        spec = endpoints("elsewhere", ["100.64.0.1"], f"shop/s{number}")["spec"]
        body = {"apiVersion": KINDS[Kind.RESOURCE_EXPORT].api_version, "kind": "ResourceExport", "spec": spec}
        client.request("POST", path, body={**body, "metadata": {"name": f"s{number}"}})
        for reason in ("First", "Second"):
            status = {"status": {"conditions": [{**condition, "reason": reason}]}}
            client.request(
                "PATCH", f"{path}/s{number}/status", body=status, content_type="application/merge-patch+json"
            )

    with ExitStack() as stack:
        if watched:
            version = api.client.request("GET", path)["metadata"]["resourceVersion"]
            query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "3600"}
            stream = api.client.watch(path, query, inactivity=600.0)
            reader = stack.enter_context(ThreadPoolExecutor(1))
            read = reader.submit(lambda: next(n for n, _ in enumerate(stream.lines(), 1) if n == 3 * count))
            stack.callback(read.result)
        begun, processor_before = time.monotonic(), api_processor(api)
        in_parallel(api, [partial(write, number) for number in range(count)])
    seconds = time.monotonic() - begun
    return 3 * count / seconds, (api_processor(api) - processor_before) / (3 * count)


def _settled(leader: Controller, expected: int) -> bool:
    """Tell whether all imports are there and nothing is to be done."""
    page = leader.page("/metrics")
    imports = leader.metric("mcagent_controller_objects", 'kind="ResourceImport"', page)
    return imports == expected and leader.idle(page)


def idle(api: Api, leader: Controller, everybody: list[str], beats: int) -> Json:
    """Send `beats` heartbeats of every member, as fast as they are taken."""
    events = leader.metric("mcagent_controller_informer_events_total", "MemberClusterAnnounce")
    before, written = leader.processor(), leader.writes()
    for number in range(beats):
        in_parallel(api, [beat(cluster, time.time() + 10 * (number + 1)) for cluster in everybody])
    goal = events + beats * len(everybody)

    def seen() -> bool:
        page = leader.page("/metrics")
        got = leader.metric("mcagent_controller_informer_events_total", "MemberClusterAnnounce", page)
        return got >= goal and leader.idle(page)

    wait_until(seen, "the heartbeats to be seen", timeout=600, interval=1.0)  # asking costs, too
    spent = (leader.processor() - before) / beats
    return {"processor_seconds_for_a_beat_of_all": spent, "written": leader.writes() - written}


def join(kind: str, directory: Path, count: int) -> Json:
    """Let so many members announce themselves and tell their ClusterInfo at once."""
    everybody = members(count)
    with api_server(kind, directory / "api") as api:
        make_area(api)
        with controller("leader", api.kubeconfig, AREA, directory / "leader") as leader:
            before, processor = leader.writes(), leader.processor()
            begun = time.perf_counter()
            work = [announce(cluster, time.time(), AREA, "set") for cluster in everybody]
            work += [cluster_info(cluster, f"100.64.{number}.0/24") for number, cluster in enumerate(everybody)]
            in_parallel(api, map(creation, work), threads=16)
            join_seconds = time.perf_counter() - begun

            def joined() -> bool:
                return bool(api.get(Kind.CLUSTER_SET, "set", AREA).get("status", {}).get("readyClusters") == count)

            wait_until(joined, "all to be Ready", timeout=120, interval=0.05)
            wait_until(lambda: _settled(leader, count), "all to be imported", timeout=120, interval=0.05)
            seconds = time.perf_counter() - begun
            page = leader.page("/metrics")
            status = leader.metric("mcagent_controller_writes_total", 'kind="ClusterSet"', page)
            return {
                "members": count,
                "requests_seconds": join_seconds,
                "seconds": seconds,
                "written": leader.writes() - before,
                "cluster_set_written": status,
                "processor_seconds": leader.processor() - processor,
            }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--api", choices=["embedded", "real"], help="[both, where both are there]")
    parser.add_argument("--only", choices=["through", "settle", "join"], help="[all]")
    parser.add_argument("--clusters", type=int, default=250)
    parser.add_argument("--services", type=int, default=100, help="that each cluster exports")
    parser.add_argument("--exports", type=int, default=100, help="exports that are timed one by one")
    parser.add_argument("--changes", type=int, default=50)
    parser.add_argument("--members", type=int, default=50, help="that join at once")
    apart = "settle: API server and etcd on half of the CPUs, the leader and other clients on the other half"
    parser.add_argument("--apart", action="store_true", help=apart)
    parser.add_argument("--json", action="store_true", help="print the numbers for a program")
    args = parser.parse_args()
    kinds = [args.api] if args.api else ["embedded", *(["real"] if find() else [])]
    if "real" not in kinds and not args.api:
        sys.stderr.write("no kube-apiserver and etcd on this machine: only the embedded API server is measured\n")
    results: Json = {"load_average": list(os.getloadavg())}
    counts = sorted({min(10, args.exports), args.exports})
    for kind in kinds:
        directory = Path(tempfile.mkdtemp(prefix="mcb"))
        results[kind] = {}
        if args.only in (None, "through"):
            results[kind]["through"] = through(kind, directory / "through", counts, args.changes)
        if args.only in (None, "join"):
            results[kind]["join"] = join(kind, directory / "join", args.members)
        if args.only in (None, "settle"):
            sizes = {"clusters": args.clusters, "services": args.services}
            results[kind]["settle"] = settle(kind, directory / "settle", **sizes, beats=3, apart=args.apart)
        shutil.rmtree(directory)
    results["load_average_after"] = list(os.getloadavg())
    if args.json:
        print(json.dumps(results, indent=1))
        return
    show(results)


def show(value: Any, name: str = "") -> None:
    """Print one line for each number."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            show(inner, f"{name}.{key}".lstrip("."))
    else:
        print(f"{name:<66} {value:.2f}" if isinstance(value, float) else f"{name:<66} {value}")


if __name__ == "__main__":
    main()
