"""Clusters of real Kubernetes on one machine: made, used and removed again.

Owns the order of things, and the directory with all state. The underlay and Open vSwitch are the lab's own
(`devtools.nodes`); the first Node of each cluster has the control plane, so that API servers reach Services.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from devtools.errors import LabError
from devtools.k8s import addons, external, images
from devtools.k8s.external import ExternalCni
from devtools.k8s.machine import Machine
from devtools.k8s.node import K8sCni, ProxyMode, RealNode
from devtools.k8s.programs import Programs, require
from devtools.lab import state
from devtools.lab.progress import Progress
from devtools.lab.topology import Cluster, Node, Topology, generate
from devtools.nodes import netns, node, underlay
from devtools.nodes.ovs import OvsInstance
from devtools.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
STATE = Path("/var/tmp/mck8s")  # noqa: S108  (root's own; containerd's snapshots want a real file system)
OWNER = STATE / "owner.json"  # the process that the clusters were made for; without it they stay
PREFIX = "k8s-"
API_PORT = 6443
READY = 120.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be made. The n-th cluster has the n-th of `cnis` and `proxy_modes`, or the last."""

    clusters: int = 2
    workers: int = 1
    cnis: tuple[str, ...] = (K8sCni.FLANNEL,)  # K8sCni, or names of external ones
    proxy_modes: tuple[ProxyMode, ...] = (ProxyMode.IPTABLES,)
    archives: tuple[str, ...] = ()  # of images for every Node, beside the tool's own
    same_cidrs: bool = False  # all clusters have the CIDRs that kubeadm's documentation uses, and publish Pods


def cni_of(name: str) -> K8sCni | ExternalCni:
    """Return the CNI with this name: a provided one, or an external one. Raises LabError."""
    return K8sCni(name) if name in set(K8sCni) else external.find(name)


class K8sLab:
    """Clusters that may be running; `up` makes them."""

    def __init__(self, plan: Plan, say: Progress) -> None:
        self.plan, self._say = plan, say
        self.topology: Topology = generate(
            name="k8s",
            clusters=plan.clusters,
            gateways=1,
            workers=plan.workers,
            pods=0,
            same_cidrs=plan.same_cidrs,
        )
        self.under = f"{PREFIX}underlay"

    @classmethod
    def load(cls, say: Progress) -> K8sLab:
        """Return what is up. Raises LabError when nothing is."""
        try:
            plan = json.loads((STATE / "plan.json").read_text())
        except FileNotFoundError:
            raise LabError("no clusters are up: devtools/mck8s up") from None
        cnis = tuple(plan.pop("cnis"))
        modes = tuple(map(ProxyMode, plan.pop("proxy_modes")))
        return cls(Plan(cnis=cnis, proxy_modes=modes, **{**plan, "archives": tuple(plan["archives"])}), say)

    # --- names and places

    def machine(self, one: Node) -> Machine:
        """Return a Node's namespaces."""
        cni = self.cni(self.topology.node(one.name)[0])
        own = cni.own_directories() if isinstance(cni, ExternalCni) else ()
        return Machine(one.name, f"{PREFIX}{one.name}", STATE / one.name, own)

    def cni(self, cluster: Cluster) -> K8sCni | ExternalCni:
        """Return the CNI of a cluster. Raises LabError."""
        number = self.topology.clusters.index(cluster)
        return cni_of(self.plan.cnis[min(number, len(self.plan.cnis) - 1)])

    def node(self, cluster: Cluster, one: Node) -> RealNode:
        """Return a Node of a cluster."""
        number = self.topology.clusters.index(cluster)
        return RealNode(
            machine=self.machine(one),
            node=one,
            cluster=cluster,
            uplink=node.uplink(userspace=True),
            cni=self.cni(cluster),
            proxy_mode=self.plan.proxy_modes[min(number, len(self.plan.proxy_modes) - 1)],
        )

    def nodes(self) -> list[RealNode]:
        """Return all Nodes."""
        return [self.node(cluster, node) for cluster, node in self.topology.nodes()]

    def ovs(self, one: Node) -> OvsInstance:
        """Return a Node's Open vSwitch."""
        return OvsInstance(self.machine(one).namespace, self.machine(one).directory / "root/run/openvswitch")

    def kubeconfig(self, cluster: Cluster) -> Path:
        """Return the administrator's kubeconfig of a cluster."""
        return STATE / f"{cluster.name}.kubeconfig"

    def kubectl(
        self, cluster: Cluster, *arguments: str, objects: Iterable[Any] | None = None, timeout: float = 60.0
    ) -> str:
        """Run kubectl(1) beside a cluster's API server and return what it prints. Raises LabError."""
        stdin = (
            None if objects is None else json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        )
        return netns.run(self.kubectl_command(cluster, *arguments), stdin=stdin, timeout=timeout).stdout

    def beside(self, cluster: Cluster) -> list[str]:
        """Return what runs a command beside a cluster's API server."""
        return ["nsenter", f"--net={netns.NETNS_DIRECTORY / self.machine(cluster.nodes[0]).namespace}"]

    def kubectl_command(self, cluster: Cluster, *arguments: str) -> list[str]:
        """Return the command that runs kubectl(1) beside a cluster's API server."""
        return [
            *self.beside(cluster),
            str(require()["kubectl"]),
            f"--kubeconfig={self.kubeconfig(cluster)}",
            *arguments,
        ]

    # --- up

    def up(self) -> None:
        """Make everything and return when all Nodes are Ready and names resolve. Raises LabError."""
        programs = require()
        for name in self.plan.cnis:
            cni_of(name)
        self.require_free()
        STATE.mkdir(mode=0o700)
        state.write(OWNER, asdict(state.owner()))
        (STATE / "plan.json").write_text(json.dumps(asdict(self.plan)))
        nodes = self.nodes()
        with self._say.step(f"{len(nodes)} Nodes: namespaces, underlay, Open vSwitch"):
            self._build_nodes(programs)
        with self._say.step("control planes: etcd, kube-apiserver, kube-controller-manager, kube-scheduler"):
            _each(lambda cluster: self._start_control_plane(cluster, programs), self.topology.clusters)
        with self._say.step("containerd and images"):
            archives = self._archives(programs)
            _each(lambda node: node.start_containerd(archives), nodes)
        with self._say.step("kubelets and kube-proxies"):
            for node in nodes:
                self._start_node(node, programs)
        with self._say.step("CNI and CoreDNS"):
            _each(self._install, self.topology.clusters)

    def require_free(self) -> None:
        """Raise LabError if clusters are up, or were not taken down whole: they belong to another call."""
        if STATE.exists():
            raise LabError(
                f"{STATE} is there: clusters are up, or were not taken down whole (devtools/mck8s down)"
            )

    def _build_nodes(self, programs: Programs) -> None:
        apis = {cluster.name: f"{PREFIX}{cluster.name}-api" for cluster in self.topology.clusters}
        underlay.build(self.under, self.topology, apis, userspace=True)
        for number, cluster in enumerate(self.topology.clusters, start=1):
            for cluster_node in cluster.nodes:
                self._build_node(number, cluster, cluster_node, programs)

    def _build_node(self, number: int, cluster: Cluster, one: Node, programs: Programs) -> None:
        machine, directory = self.machine(one), self.ovs(one).directory
        node.build(machine.namespace, self.under, directory, cluster, one, cluster_number=number, userspace=True)
        machine.start(programs["pause"])

    def _start_node(self, one: RealNode, programs: Programs) -> None:
        one.configure_cni()
        self._start_kubelet(one, programs)
        one.start_kube_proxy(programs, self.kubeconfig(one.cluster))

    def _start_kubelet(self, one: RealNode, programs: Programs) -> None:
        one.start_kubelet(programs, self.kubeconfig(one.cluster), one.cluster.service_cidr[addons.DNS_PLACE])

    def _archives(self, programs: Programs) -> list[Path]:
        """Return the archives of all images."""
        archives = [Path(path) for path in self.plan.archives]
        sources: list[tuple[str, str, dict[str, Path]]] = [
            (images.PAUSE, "pause", {}),
            (images.WEB, "web", {}),
            (images.COREDNS, "coredns", {}),
        ]
        if K8sCni.FLANNEL in self.plan.cnis:
            sources.append((images.FLANNEL, "flanneld", images.iptables()))
        if K8sCni.KUBE_ROUTER in self.plan.cnis:
            files = {**images.iptables(), **images.tools("ip", "ipset")}
            sources.append((images.KUBE_ROUTER, "kube-router", files))
        for cluster in self.topology.clusters:
            if isinstance(cni := self.cni(cluster), ExternalCni):
                archives += cni.archives()
        for name, program, files in sources:
            archives.append(STATE / f"{program}.tar")
            images.write_archive(archives[-1], name, {f"/{program}": programs[program], **files}, [f"/{program}"])
        return archives

    def stop_control_plane(self, cluster: Cluster) -> None:
        """End a cluster's etcd, API server, controllers and scheduler; what they store is kept."""
        self.machine(cluster.nodes[0]).end("devtools.realapi")

    def start_control_plane(self, cluster: Cluster) -> None:
        """Start them, again or for the first time, and return when they answer. Raises LabError."""
        self._start_control_plane(cluster, require())

    def _start_control_plane(self, cluster: Cluster, programs: Programs) -> None:
        first = cluster.nodes[0]
        machine = self.machine(first)
        argv: list[str | Path] = [sys.executable, "-m", "devtools.realapi"]
        argv += [
            "--listen",
            f"{first.address}:{API_PORT}",
            "--data",
            machine.directory / "control-plane",
            "--kubeconfig",
            self.kubeconfig(cluster),
        ]
        argv += ["--service-cidr", str(cluster.service_cidr), "--scheduler", programs["kube-scheduler"]]
        machine.spawn("control-plane", ["env", f"PYTHONPATH={ROOT}", *argv])
        wait_until(
            lambda: self._answers(cluster), f"the API server of {cluster.name}", timeout=READY, interval=0.2
        )
        self.kubectl(cluster, "apply", "-f", "-", objects=map(addons.node, cluster.nodes))

    def _answers(self, cluster: Cluster) -> bool:
        with contextlib.suppress(LabError):
            return self.kubeconfig(cluster).exists() and "ok" in self.kubectl(cluster, "get", "--raw", "/readyz")
        return False

    def _install(self, cluster: Cluster) -> None:
        node = self.node(cluster, cluster.nodes[0])
        objects = addons.coredns(cluster)
        if node.cni is K8sCni.FLANNEL:
            objects += addons.flannel(cluster, node.uplink)
        elif node.cni is K8sCni.KUBE_ROUTER:
            objects += addons.kube_router()
        self.kubectl(cluster, "apply", "-f", "-", objects=objects)
        if isinstance(node.cni, ExternalCni):
            apply = self.kubectl_command(cluster, "apply", "--server-side", "-f", "-")
            for manifest in node.cni.manifests(cluster, node.uplink):
                netns.run(apply, stdin=manifest)
        timeout = f"--timeout={READY:g}s"
        self.kubectl(cluster, "wait", "--for=condition=Ready", "node", "--all", timeout, timeout=READY + 10)
        if node.cni is K8sCni.FLANNEL:
            self.rolled_out(cluster, "kube-flannel", "daemonset/kube-flannel-ds")
        elif node.cni is K8sCni.KUBE_ROUTER:
            self.rolled_out(cluster, "kube-system", "daemonset/kube-router")
        self.rolled_out(cluster, "kube-system", "deployment/coredns")

    def rolled_out(self, cluster: Cluster, namespace: str, what: str, timeout: float = READY) -> None:
        """Return when a workload's Pods are ready. Raises LabError."""
        self.kubectl(
            cluster, "-n", namespace, "rollout", "status", what, f"--timeout={timeout:g}s", timeout=timeout + 10
        )

    def power_off(self, name: str) -> None:
        """Pull a Node's cable, and end all of its programs: it is as a Node that loses its power."""
        cluster, node = self.topology.node(name)
        number = self.topology.clusters.index(cluster) + 1
        # Not only the namespace: connections that stay open keep that for a while.
        netns.ip(self.under, "link", "delete", underlay.port(number, cluster.nodes.index(node) + 1))
        machine = self.machine(node)
        machine.kill()
        self.ovs(node).stop()
        netns.delete(machine.namespace)
        machine.forget()

    def power_on(self, name: str) -> None:
        """Start a Node that has lost its power; it comes up with what was on its disk."""
        programs = require()
        cluster, node = self.topology.node(name)
        self._build_node(self.topology.clusters.index(cluster) + 1, cluster, node, programs)
        machine_node = self.node(cluster, node)
        machine_node.start_containerd([])
        self._start_node(machine_node, programs)

    def restart(self, name: str, program: str) -> None:
        """End containerd, kubelet or kube-proxy of a Node, and start it again."""
        programs = require()
        node = self.node(*self.topology.node(name))
        node.machine.end(program)
        if program == "containerd":
            node.start_containerd([])
        elif program == "kubelet":
            self._start_kubelet(node, programs)
        else:
            node.start_kube_proxy(programs, self.kubeconfig(node.cluster))

    # --- down

    @staticmethod
    def keep() -> None:
        """Let the clusters outlive their maker."""
        OWNER.unlink(missing_ok=True)

    @classmethod
    def remove_abandoned(cls, say: Progress) -> bool:
        """Take everything away if the process that it was made for is gone; tell whether it was taken away."""
        try:
            owner = state.Process(**json.loads(OWNER.read_text()))
        except FileNotFoundError:
            return False
        if owner.alive:
            return False
        if (STATE / "plan.json").exists():
            cls.load(say).down()
        else:  # killed before anything else was made
            shutil.rmtree(STATE)
        return True

    def down(self) -> None:
        """End everything, and leave nothing. May be called again after an error."""
        nodes = self.nodes()
        with self._say.step(f"{len(nodes)} Nodes end"):
            for node in nodes:
                self.ovs(node.node).stop()
            _each(lambda node: node.machine.stop(), nodes)
        with self._say.step("namespaces"):
            apis = [f"{PREFIX}{cluster.name}-api" for cluster in self.topology.clusters]
            for name in (*(node.machine.namespace for node in nodes), *apis, self.under):
                netns.delete(name)
        shutil.rmtree(STATE, ignore_errors=True)


def _each(work: Any, things: Sequence[Any]) -> None:
    """Do the same with all things, side by side; the first error is raised."""
    with ThreadPoolExecutor(max_workers=max(1, len(things))) as pool:
        for done in [pool.submit(work, thing) for thing in things]:
            done.result()
