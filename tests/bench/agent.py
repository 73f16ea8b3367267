"""A gateway among 1,000 remote clusters: how long the agent takes for all of it, and for one change. Run as root.

A real agent process, a real Open vSwitch (userspace datapath) and the embedded API server, in a network namespace
of their own. Prints a table and, with --json, the numbers; it judges nothing.

- cold: from the start of the process, and from the end of its imports, to the whole dataplane being programmed
- restart: the same for an agent that finds everything as it should be
- change: from the request to the API server until ovs-vswitchd has the flow (its own flow monitor says when)
- processor: time that the agent itself spent, which another load of the machine does not lengthen much
- idle: what part of a processor it takes while nothing changes
- memory: resident, after the cold start and after the changes
- own: Open vSwitch's own share, by ovs-vsctl with all tunnels and ovs-ofctl with all flows and groups; and the
  cold start after the imports as its multiple
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from devtools.errors import FatalError, LabError
from devtools.lab.api import ApiClient
from devtools.lab.running import environment
from devtools.nodes import netns
from devtools.nodes.ovs import OvsInstance
from devtools.waiting import wait_until
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind

NODE = "gw1"
API = "127.0.0.1"
IDLE = 30.0  # seconds
PER_SERVICE = 100  # endpoints
READY = "the dataplane is as it should be"
_CRD = "multicluster.crd.antrea.io/v1alpha1"
Json = dict[str, Any]


def cluster(number: int, version: int = 0) -> Json:
    """Return a ClusterInfoImport with three CIDRs; one of them changes with `version`."""
    high, low = number // 250, number % 250
    return {
        "apiVersion": _CRD,
        "kind": "ClusterInfoImport",
        "metadata": {"name": f"c{number}", "namespace": "kube-system"},
        "spec": {
            "clusterID": f"c{number}",
            "serviceCIDR": f"100.{64 + high}.{low}.0/24",
            "podCIDRs": [f"20.{high}.{low}.0/24", f"30.{number // 64}.{number % 64 * 4 + version % 4}.0/24"],
            "gatewayInfos": [{"gatewayIP": f"198.{18 + high}.0.{low + 1}"}],
        },
    }


def node_name(number: int) -> str:
    """Return the name of a Node of this cluster; number 0 is the gateway."""
    return f"worker{number}" if number else NODE


def node_address(number: int) -> str:
    """Return the InternalIP of a Node of this cluster."""
    return f"172.18.{number // 250}.{number % 250 + 1}"


def local_objects(workers: int, endpoints: int) -> list[Json]:
    """Return this cluster: a gateway, workers, and exported Services with 100 endpoints each."""
    nodes: list[Json] = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": node_name(number)},
            "spec": {"podCIDRs": [f"10.{10 + number // 250}.{number % 250 + 1}.0/24"]},
            "status": {"addresses": [{"type": "InternalIP", "address": node_address(number)}]},
        }
        for number in range(workers + 1)
    ]
    gateway = {"gatewayIP": "172.18.0.1", "internalIP": "172.18.0.1", "serviceCIDR": "10.96.0.0/16"}
    metadata = {"name": NODE, "namespace": "kube-system"}
    objects = [*nodes, {"apiVersion": _CRD, "kind": "Gateway", "metadata": metadata, **gateway}]
    if endpoints:
        objects.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
    for first in range(0, endpoints, PER_SERVICE):
        objects += exported_service(first // PER_SERVICE, range(first, first + PER_SERVICE), len(nodes))
    return objects


def exported_service(number: int, endpoints: Iterable[int], nodes: int) -> list[Json]:
    """Return a Service with its EndpointSlice and ServiceExport; endpoints are numbered in the whole cluster."""
    name = f"s{number}"
    metadata = {"name": name, "namespace": "shop"}
    places = [(endpoint % nodes, endpoint // nodes + 1) for endpoint in endpoints]
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {
                "clusterIP": (address := f"10.96.{number // 250}.{number % 250 + 1}"),
                "clusterIPs": [address],
                "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}],
            },
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**metadata, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "endpoints": [
                {
                    "addresses": [f"10.{10 + node // 250}.{node % 250 + 1}.{host}"],
                    "conditions": {"ready": True, "serving": True},
                    "nodeName": node_name(node),
                    "targetRef": {"kind": "Pod", "namespace": "shop", "name": f"{name}-{node}-{host}"},
                }
                for node, host in places
            ],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        },
        {"apiVersion": KINDS[Kind.SERVICE_EXPORT].api_version, "kind": "ServiceExport", "metadata": metadata},
    ]


class World:
    """The namespace with everything but the agent."""

    def __init__(self, namespace: str, directory: Path) -> None:
        self.namespace, self.directory = namespace, directory
        netns.ip("", "netns", "add", namespace)
        netns.ip(namespace, "link", "set", "lo", "up")
        netns.ip(namespace, "link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
        for device in ("eth0", "eth1"):
            netns.ip(namespace, "link", "set", device, "up")
        netns.add_address(namespace, "eth0", "172.18.0.1/16")
        self.ovs = OvsInstance.start(namespace, directory / "ovs")
        argv = [sys.executable, "-m", "devtools.apiserver", "--listen", f"{API}:6443"]
        argv += ["--kubeconfig", str(directory / "kubeconfig")]
        self.server = subprocess.Popen(netns.command(namespace, argv), stdout=subprocess.PIPE, text=True)
        assert self.server.stdout is not None
        self.server.stdout.readline()
        self.api = ApiClient(namespace, API, directory / "kubeconfig")
        config = {
            "nodeName": NODE,
            "clusterID": "west",
            "enablePodToPodConnectivity": True,
            "podCIDRs": ["10.10.0.0/15"],
            "allowedRemoteCIDRs": ["100.64.0.0/10", "20.0.0.0/8", "30.0.0.0/8"],
            "resolvConf": "",  # this machine's resolvers are none of the benchmark's
            "datapath": "netdev",
            "kubeconfig": str(directory / "kubeconfig"),
            "ovsdb": self.ovs.socket,
            "runDirectory": str(directory / "run"),
            "logFormat": "json",
        }
        (directory / "agent.yaml").write_text(yaml.safe_dump(config))

    def put(self, obj: Json) -> None:
        """Create an object, or give it another spec."""
        kind, name = obj["kind"], obj["metadata"]["name"]
        base = object_path(Kind(kind), obj["metadata"].get("namespace", ""))
        status, answer = self.api.request("POST", base, obj)
        if status == 409:
            body = {"spec": obj["spec"]}
            content_type = "application/merge-patch+json"
            status, answer = self.api.request("PATCH", f"{base}/{name}", body, content_type=content_type)
        if status >= 300:
            raise SystemExit(f"{kind} {name}: {answer}")
        if kind == "Node":
            body = {"status": obj["status"]}
            self.api.request("PATCH", f"{base}/{name}/status", body, content_type="application/merge-patch+json")

    def change(self, obj: Json) -> None:
        """Give an object another spec, in one request."""
        path = f"/apis/{_CRD}/namespaces/kube-system/clusterinfoimports/{obj['metadata']['name']}"
        body = {"spec": obj["spec"]}
        status, answer = self.api.request("PATCH", path, body, content_type="application/merge-patch+json")
        if status != 200:
            raise SystemExit(f"{path}: {answer}")

    def status(self) -> Json:
        """Return the agent's /status."""
        argv = ["curl", "-s", "--max-time", "20", f"http://{API}:10351/status"]
        return json.loads(netns.execute(self.namespace, argv).stdout)  # type: ignore[no-any-return]

    def close(self) -> None:
        """End what was started."""
        self.server.terminate()
        self.server.wait(10)
        self.ovs.stop()
        netns.ip("", "netns", "del", self.namespace)


class Agent:
    """A running agent. `spent` and `after_imports`: seconds until the whole dataplane was programmed."""

    def __init__(self, world: World) -> None:
        self._log = world.directory / "agent.log"
        argv = [sys.executable, "-m", "mcagent.cli.main", "agent", "--config", str(world.directory / "agent.yaml")]
        self._world = world
        started = time.time()
        with self._log.open("w") as log:
            self.process = subprocess.Popen(netns.command(world.namespace, argv), stderr=log, env=environment())
        try:
            wait_until(self._ready, "the agent to be ready", timeout=300, interval=0.01)
        except LabError as error:
            self.process.kill()
            raise SystemExit(f"{error}; the end of its log:\n{self._log.read_text()[-4000:]}") from None
        ready, imported = self._at(READY), self._at(" on Node ")
        assert ready is not None
        assert imported is not None
        self.spent, self.after_imports = ready - started, ready - imported
        self.status = world.status()

    def _ready(self) -> bool:
        """Tell whether the whole dataplane is programmed. Raises FatalError if the process has ended."""
        if (status := self.process.poll()) is not None:
            raise FatalError(f"the agent ended with status {status}")
        return self._at(READY) is not None

    def _at(self, text: str) -> float | None:
        """Return when a log line with that text was written."""
        for line in self._log.read_text().splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if text in entry["message"]:
                    return datetime.fromisoformat(entry["time"]).timestamp()
        return None

    def memory(self, name: str = "VmRSS") -> float:
        """Return resident memory in MiB (proc(5), status)."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) / 1024
        raise AssertionError(name)

    def processor(self) -> float:
        """Return the processor time spent so far, in seconds (proc(5), stat: utime and stime)."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End it; the dataplane stays."""
        self.process.terminate()
        self.process.wait(30)


@contextlib.contextmanager
def flow_monitor(world: World) -> Iterator[subprocess.Popen[str]]:
    """Follow flow changes as ovs-vswitchd makes them (ovs-ofctl(8), monitor)."""
    argv = ["ovs-ofctl", "-O", "OpenFlow15", "monitor", world.ovs.mgmt("br-mc"), "watch:!initial,table=40"]
    environment = world.ovs.environment  # it makes a control socket
    monitor = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        yield monitor
    finally:
        monitor.terminate()
        monitor.wait(10)


def changes(world: World, clusters: int, count: int, pause: float) -> list[float]:
    """Change one CIDR of one cluster again and again; return seconds until its flow is there."""
    spent = []
    order = random.Random(1)
    versions: dict[int, int] = {}
    with flow_monitor(world) as monitor:
        assert monitor.stdout is not None
        for _ in range(count):
            number = order.randrange(clusters)
            versions[number] = versions.get(number, 0) + 1
            obj = cluster(number, versions[number])
            match_text = f"nw_dst={obj['spec']['podCIDRs'][1]}"
            time.sleep(order.uniform(pause, 2 * pause))  # changes come singly here; bursts are gathered on purpose
            begun = time.perf_counter()
            world.change(obj)
            for line in monitor.stdout:
                if match_text in line and "event=ADDED" in line:
                    break
            else:
                raise SystemExit("ovs-ofctl monitor ended")
            spent.append(time.perf_counter() - begun)
    return spent


def own_share(world: World) -> dict[str, float]:
    """Remove tunnels, flows and groups from the bridge, and return the seconds to add them without an agent.

    Meters stay, since no command adds several.
    """
    columns = ("name", "type", "options", "bfd", "ofport_request")
    listed = json.loads(world.ovs.vsctl("-f", "json", f"--columns={','.join(columns)}", "list", "Interface"))
    tunnels = [row for row in listed["data"] if row[1] in ("geneve", "vxlan")]
    bridge = world.ovs.mgmt("br-mc")
    flows = world.ovs.ofctl("dump-flows", "--no-stats", "--no-names", bridge).splitlines()
    groups = world.ovs.ofctl("dump-groups", bridge).splitlines()
    bundle = [f"group add {line.strip()}" for line in groups if "group_id=" in line]
    bundle += [f"flow add {line.strip()}" for line in flows if "actions=" in line]
    removals = [word for name, *_ in tunnels for word in ("--", "del-port", name)]
    world.ovs.vsctl(*removals[1:])
    world.ovs.ofctl("del-flows", bridge)
    world.ovs.ofctl("del-groups", bridge)
    additions: list[str] = []
    for name, kind, (_, options), (_, bfd), ofport in tunnels:
        pairs = [("options", *pair) for pair in options] + [("bfd", *pair) for pair in bfd]
        additions += ["--", "add-port", "br-mc", name, "--", "set", "Interface", name, f"type={kind}"]
        additions += [f"ofport_request={ofport}", *(f'{column}:{key}="{value}"' for column, key, value in pairs)]
    begun = time.monotonic()
    world.ovs.ofctl("bundle", bridge, "-", stdin="\n".join(bundle))
    bundled = time.monotonic()
    world.ovs.vsctl(*additions[1:])
    return {"own_bundle_seconds": bundled - begun, "own_tunnels_seconds": time.monotonic() - bundled}


def quantile(values: list[float], share: float) -> float:
    """Return the value that this share of all does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure(clusters: int, workers: int, endpoints: int, count: int, pause: float) -> Json:
    """Return all numbers."""
    directory = Path(tempfile.mkdtemp(prefix="mcb"))
    world = World(f"mcbench-agent-{os.getpid()}", directory)
    try:
        for obj in (*local_objects(workers, endpoints), *(cluster(number) for number in range(clusters))):
            world.put(obj)
        cold = Agent(world)
        found: Json = {
            "clusters": clusters,
            "resources": cold.status["resources"],
            "cold_seconds": cold.spent,
            "cold_after_imports_seconds": cold.after_imports,
            "cold_processor_seconds": cold.processor(),
            "cold_phases_seconds": cold.status["lastChange"]["phases"],
            "resident_mib": cold.memory(),
            "peak_resident_mib": cold.memory("VmHWM"),
        }
        before, begun = cold.processor(), time.monotonic()
        time.sleep(IDLE)
        found["idle_processor_ratio"] = (cold.processor() - before) / (time.monotonic() - begun)
        before = cold.processor()
        spent = changes(world, clusters, count, pause)
        last = world.status()["lastChange"]["phases"]
        found |= {
            "change_p50_ms": 1000 * quantile(spent, 0.5),
            "change_p99_ms": 1000 * quantile(spent, 0.99),
            "change_max_ms": 1000 * max(spent),
            "change_processor_ms": 1000 * (cold.processor() - before) / count,
            "change_phases_ms": {name: 1000 * seconds for name, seconds in last.items()},
            "resident_after_changes_mib": cold.memory(),
        }
        cold.stop()
        again = Agent(world)
        found |= {
            "restart_after_imports_seconds": again.after_imports,
            "restart_changes": sum((again.status["lastChange"] or {"changes": {}})["changes"].values()),
            "restart_resident_mib": again.memory(),
        }
        again.stop()
        own = own_share(world)
        return found | own | {"cold_to_own_ratio": found["cold_after_imports_seconds"] / sum(own.values())}
    finally:
        world.close()
        shutil.rmtree(directory)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=1, help="of the agent's own cluster [%(default)s]")
    parser.add_argument("--endpoints", type=int, default=0, help="that its Services export [%(default)s]")
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--pause", type=float, default=0.05, help="least seconds between two changes")
    parser.add_argument("--json", action="store_true", help="print the numbers for a program")
    args = parser.parse_args()
    report = measure(args.clusters, args.workers, args.endpoints, args.changes, args.pause)
    if args.json:
        print(json.dumps(report, indent=1))
        return
    for name, value in report.items():
        shown = (
            json.dumps(value) if isinstance(value, dict) else f"{value:.3f}" if isinstance(value, float) else value
        )
        print(f"{name:<32} {shown}")


if __name__ == "__main__":
    main()
