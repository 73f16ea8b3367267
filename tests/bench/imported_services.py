"""What imported Services cost the agent of a worker among 1,000 clusters: memory and processor time. Run as root.

    python -m tests.bench.imported_services [--clusters N] [--services N] [--exporters N] [--unrelated N]
                                            [--changes N]

A real agent process, Open vSwitch and nft, and the embedded API server, in a network namespace of their own.
Prints a line for each of: nothing read of imported Services (`importedTraffic: ""`), the default without any, and
with `--services` of them, each exported by `--exporters` clusters. Then the same of `mcagent plan --offline`,
which reads what an agent on the kernel datapath does, also with `--unrelated` other Services and their slices (on
the userspace datapath workers read all Services, as gateways do). It judges nothing.

- memory: resident, after the start
- start: processor time of the agent until its dataplane is programmed
- change: processor time for one changed endpoint, and seconds until the last of many is in nft
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from devtools.nodes import netns
from devtools.waiting import wait_until
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from mcagent.model.traffic import READY_ANNOTATION
from tests.bench.agent import Agent, Json, World, cluster, local_objects

WORKER, ADDRESS = "worker1", "172.18.0.2"
SPACE = "default"
PORTS = [{"name": "http", "port": 80, "protocol": "TCP"}]


def put(
    world: World, kind: Kind, name: str, labels: Json, annotations: Json | None = None, **fields: object
) -> None:
    """Create an object of a namespace."""
    meta = {"name": name, "namespace": SPACE, "labels": labels, "annotations": annotations or {}}
    body = {"apiVersion": KINDS[kind].api_version, "kind": KINDS[kind].name, "metadata": meta, **fields}
    status, answer = world.api.request("POST", object_path(kind, SPACE), body)
    if status >= 300:
        raise SystemExit(f"{kind} {name}: {answer}")


def import_service(world: World, number: int, exporters: int) -> None:
    """Write what a member's controller makes of a Service that so many clusters export."""
    name, address = f"s{number}", f"10.96.{100 + number // 250}.{number % 250 + 1}"
    ours = {"app.kubernetes.io/managed-by": "mcagent"}
    put(world, Kind.SERVICE, f"antrea-mc-{name}", ours, spec={"clusterIP": address, "ports": PORTS})
    spec = {"type": "ClusterSetIP", "ips": [address], "ports": PORTS}
    put(world, Kind.SERVICE_IMPORT, name, ours, spec=spec)
    for cluster_number in range(exporters):
        labels = {
            "kubernetes.io/service-name": f"antrea-mc-{name}",
            "multicluster.kubernetes.io/service-name": name,
            "multicluster.kubernetes.io/source-cluster": f"c{cluster_number}",
        }
        put(
            world,
            Kind.ENDPOINT_SLICE,
            f"{name}-c{cluster_number}",
            labels,
            # Equal shares are left to kube-proxy, so that nothing would be programmed.
            {READY_ANNOTATION: str(cluster_number + 1)},
            addressType="IPv4",
            endpoints=[endpoint(number, cluster_number)],
            ports=PORTS,
        )


def endpoint(number: int, cluster_number: int) -> Json:
    """Return the endpoint of a cluster for a Service: a ClusterIP."""
    return ready_endpoint(f"100.64.{cluster_number}.{number % 250 + 1}")


def ready_endpoint(address: str) -> Json:
    """Return an endpoint of an EndpointSlice."""
    return {"addresses": [address], "conditions": {"ready": True}}


def unrelated(world: World, number: int) -> None:
    """Write a Service of this cluster with two endpoints."""
    name = f"other{number}"
    put(world, Kind.SERVICE, name, {}, spec={"clusterIP": "None", "ports": PORTS})
    endpoints = [{"addresses": [f"10.10.{number // 250}.{number % 250 + 1}"]}] * 2
    labels = {"kubernetes.io/service-name": name}
    put(world, Kind.ENDPOINT_SLICE, name, labels, addressType="IPv4", endpoints=endpoints, ports=PORTS)


def measure(world: World, title: str, traffic: str, services: int, changes: int) -> None:
    """Start an agent on what is there, change endpoints, and print a line."""
    file = world.directory / "agent.yaml"
    settings = yaml.safe_load(file.read_text()) | {"nodeName": WORKER, "importedTraffic": traffic}
    file.write_text(yaml.safe_dump(settings))
    agent = Agent(world)
    try:
        memory, start = agent.memory(), agent.processor()
        line = f"{title:<44} {memory:7.1f} MiB {start:7.2f} s"
        if services and changes:
            begun, address = time.monotonic(), ""
            for number in range(changes):
                address = f"20.0.0.{1 + number % 250}"  # a Pod of c0: agents refuse addresses outside its CIDRs
                path = object_path(Kind.ENDPOINT_SLICE, SPACE, f"s{number % services}-c0")
                body = {"endpoints": [ready_endpoint(address)]}
                world.api.request("PATCH", path, body, content_type="application/merge-patch+json")
                time.sleep(0.2)
            sent = time.monotonic()
            wait_until(lambda: address in listed(world), "the last change", timeout=60)
            spent = 1000 * (agent.processor() - start) / changes
            line += f" {spent:8.1f} ms {time.monotonic() - sent:6.2f} s of {sent - begun:.0f} s"
        print(line, flush=True)
    finally:
        agent.stop()


def plan(world: World, title: str, traffic: str) -> None:
    """Let a plan be made, and print a line: its memory at most, and its processor time."""
    argv = [sys.executable, "-m", "mcagent.cli.main", "plan", "--offline", "-o", "json", "--timeout", "120"]
    argv += ["--config", str(world.directory / "agent.yaml")]
    environ = {**os.environ, "MCAGENT_DATAPATH": "system", "MCAGENT_IMPORTED_TRAFFIC": traffic}
    with subprocess.Popen(netns.command(world.namespace, argv), stdout=subprocess.DEVNULL, env=environ) as process:
        _, code, usage = os.wait4(process.pid, 0)
        process.returncode = code
    if code:
        raise SystemExit(f"{' '.join(argv)} ended with {code}")
    spent = usage.ru_utime + usage.ru_stime
    print(f"{'plan: ' + title:<44} {usage.ru_maxrss / 1024:7.1f} MiB {spent:7.2f} s", flush=True)


def listed(world: World) -> str:
    """Return the Node's nft table."""
    return netns.execute(world.namespace, ["nft", "-s", "list", "table", "ip", "mcagent"]).stdout


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, default=1000)
    parser.add_argument("--services", type=int, default=500)
    parser.add_argument("--exporters", type=int, default=4)
    parser.add_argument("--unrelated", type=int, default=10_000)
    parser.add_argument("--changes", type=int, default=50)
    args = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="mcb"))
    world = World(f"mcbench-imports-{os.getpid()}", directory)
    try:
        netns.add_address(world.namespace, "eth0", f"{ADDRESS}/16")
        for obj in (*local_objects(workers=1, endpoints=0), *(cluster(number) for number in range(args.clusters))):
            world.put(obj)
        print(f"{'':<44} {'memory':>11} {'start':>9} {'change':>11}")
        measure(world, "nothing read", "", 0, 0)
        measure(world, "default, none imported", "*", 0, 0)
        for number in range(args.services):
            import_service(world, number, args.exporters)
        title = f"{args.services} imported from {args.exporters} clusters"
        measure(world, title, "*", args.services, args.changes)
        plan(world, "nothing read", "")
        plan(world, title, "*")
        for number in range(args.unrelated):
            unrelated(world, number)
        plan(world, f"and {args.unrelated} others", "*")
    finally:
        world.close()
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
