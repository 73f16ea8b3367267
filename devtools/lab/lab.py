"""A lab is made and taken down: `Lab.up`, `down`.

Owns the order in which things are made and removed, and nothing else: what each of them is, is the other
modules' business; what a running lab offers is `devtools.lab.running`'s.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from devtools.errors import LabError
from devtools.lab import control, objects, state
from devtools.lab.api import ApiKind
from devtools.lab.progress import Progress
from devtools.lab.running import RunningLab
from devtools.lab.topology import Cluster, Node, Pod, Topology
from devtools.nodes import antrea, antrea_wireguard, cni, kubeproxy, netns, node, underlay
from devtools.nodes.ovs import OvsInstance
from devtools.realapi import binaries
from devtools.waiting import wait_until
from mcagent.dataplane.facts import kernel_datapath_exists
from mcagent.model.config import DatapathChoice, TrafficEncryption

T = TypeVar("T")
TOOLS = ("ip", "nft", "iptables", "ovs-vsctl", "ovs-vswitchd", "ovsdb-server", "ovs-ofctl", "ping", "openssl")
PARALLEL = 4


class Lab(RunningLab):
    """A lab by its name. `Lab.up` makes one; `Lab(name)` finds one that runs."""

    @classmethod
    def up(
        cls,
        topology: Topology,
        *,
        root: Path | None = None,
        progress: Progress | None = None,
        agents: bool = True,
        api: ApiKind = ApiKind.EMBEDDED,
        control_plane: bool = False,
    ) -> Lab:
        """Make the whole lab and return when every agent is ready. With `agents` False no agent is started.

        With `control_plane` controllers run and the clusters join a ClusterSet; else the lab itself writes the
        objects that controllers would.

        One that runs already and is the same is left as it is; anything else of that name is removed first.
        Raises LabError; what was made until then is taken down again (unless MCAGENT_LAB_KEEP is set).
        """
        lab = cls(topology.name, root)
        say = progress or Progress(quiet=True)
        _check_machine()
        if api is ApiKind.REAL:
            binaries.require()
        if control_plane and any(cluster.antrea for cluster in topology.clusters):
            raise LabError("clusters of Antrea have no control plane here: the lab writes the objects itself")
        with lab.state.lock():
            if lab._runs(topology, agents=agents, api=api, control_plane=control_plane):
                say.line(f"lab {topology.name} runs already")
                return lab
            if lab.state.directory.exists():
                with say.step(f"removing what was left of lab {topology.name}"):
                    lab._remove()
            try:
                lab._build(topology, say, agents=agents, api=api, control_plane=control_plane)
            except BaseException:
                if not os.environ.get("MCAGENT_LAB_KEEP"):
                    lab._remove()
                elif lab.state.exists:
                    lab.state.keep()
                raise
        return lab

    def _runs(self, topology: Topology, *, agents: bool, api: ApiKind, control_plane: bool) -> bool:
        """Whether just this lab is there, complete and with all its processes."""
        if not self.state.exists or not self.state.noted("complete") or self.state.topology() != topology:
            return False
        if self.api_kind is not api or bool(self.state.noted("control_plane")) != control_plane:
            return False
        processes = self.state.processes()
        alive = all(process.alive for process in processes.values())
        complete = len(self.ovs_processes()) == 2 * len(list(topology.nodes()))
        return alive and complete and agents == any(key.startswith("agent-") for key in processes)

    def ovs_processes(self) -> list[int]:
        """Pids of the daemons of every Node's Open vSwitch."""
        return [pid for _, node in self.topology.nodes() for pid in self.ovs(node.name).pids.values()]

    def _build(
        self, topology: Topology, say: Progress, *, agents: bool, api: ApiKind, control_plane: bool
    ) -> None:
        self._topology = topology
        userspace = _userspace(topology)
        spaces = [self.underlay, *(self.api_namespace(c) for c in topology.clusters)]
        spaces += [self.namespace(n) for _, n in topology.nodes()]
        spaces += [self.namespace(p) for _, _, p in topology.pods()]
        self.state.create(topology, spaces)
        self.state.note("userspace", userspace)
        self.state.note("api", str(api))
        self.state.note("control_plane", control_plane)
        number_of = {cluster.name: n for n, cluster in enumerate(topology.clusters, start=1)}
        with say.step(f"underlay: a router, {_count(len(topology.clusters), 'subnet')}"):
            apis = {cluster.name: self.api_namespace(cluster) for cluster in topology.clusters}
            underlay.build(self.underlay, topology, apis, userspace=userspace)
        servers = "kube-apiserver, etcd" if api is ApiKind.REAL else "embedded"
        with say.step(f"API servers ({servers}): {_count(len(topology.clusters), 'cluster')}"):
            self._each(self.start_api, topology.clusters)
            self._each(lambda cluster: self.api(cluster.name).apply_crds(), topology.clusters)
        kind = "userspace" if userspace else "kernel"
        total = len(list(topology.nodes()))
        with say.step(f"Nodes: {_count(total, 'namespace')} with an Open vSwitch each ({kind} datapath)"):

            def make(pair: tuple[Cluster, Node]) -> None:
                cluster, lab_node = pair
                name = number_of[cluster.name]
                directory = self.directory(lab_node.name) / "ovs"
                directory.parent.mkdir(parents=True)
                namespace = self.namespace(lab_node)
                node.build(
                    *(namespace, self.underlay, directory, cluster, lab_node),
                    cluster_number=name,
                    userspace=userspace,
                )
                if cluster.antrea:
                    tunnel = str(topology.tunnel)
                    antrea.install(
                        namespace, self.ovs(lab_node.name), lab_node, userspace=userspace, tunnel=tunnel
                    )
                else:
                    cni.install(namespace, cluster, lab_node, node.uplink(userspace=userspace))
                    kubeproxy.install(namespace, topology, cluster)
                node.wait_for_router(namespace, cluster)

            self._each(make, topology.nodes())
        names = sorted({str(cluster.cni) for cluster in topology.clusters})
        pods = list(topology.pods())
        with say.step(f"{_count(len(pods), 'Pod')} behind the CNI {', '.join(names)}"):
            self._each(self._add_pod, pods)
            self.start_servers()
            self.program_antrea()
        if control_plane:
            self._form_cluster_set(say, agents=agents and topology.same_cidrs)
        else:
            with say.step("objects: Nodes, Pods, Services, ServiceExports, Gateways, ClusterInfoImports"):
                for cluster in topology.clusters:
                    self.api(cluster.name).create_all(objects.of_cluster(topology, cluster))
        if topology.encryption is not TrafficEncryption.NONE and not control_plane:
            self._publish_antrea_keys()
            self.start_exchange()
        if agents:
            agent_nodes = [lab_node.name for lab_node in topology.with_agents()]
            with say.step(f"{_count(len(agent_nodes), 'agent')}: started, and every dataplane programmed"):
                for name in agent_nodes:
                    if not self.agent_alive(name):
                        self.start_agent(name)
                self.wait_ready()
            if topology.encryption is not TrafficEncryption.NONE:
                wait_until(self.antrea_knows_keys, "WireGuard keys in Antrea's clusters", timeout=60)
                self.program_antrea()
        self.state.note("complete", True)

    def _publish_antrea_keys(self) -> None:
        for cluster in self.topology.clusters:
            if cluster.antrea:
                (gateway,) = cluster.gateways
                key = antrea_wireguard.make(self.namespace(gateway), cluster, node.UPLINK_MTU)
                change: objects.Json = {"wireGuard": {"publicKey": key}}
                self.api(cluster.name).patch("Gateway", gateway.name, change, objects.NAMESPACE)

    def _add_pod(self, place: tuple[Cluster, Node, Pod]) -> None:
        cluster, lab_node, pod = place
        spaces = self.namespace(lab_node), self.namespace(pod)
        if cluster.antrea:
            mtu = antrea.pod_mtu(node.UPLINK_MTU, self.topology.encryption)
            antrea.add_pod(*spaces, self.ovs(lab_node.name), lab_node, pod, mtu=mtu)
        else:
            node.add_pod(*spaces, lab_node, pod)
            if kubeproxy.at_sockets(cluster):
                kubeproxy.install(spaces[1], self.topology, cluster)
            cni.attach_pod(spaces[0], cluster, lab_node, pod, userspace=_userspace(self.topology))

    def _form_cluster_set(self, say: Progress, *, agents: bool) -> None:
        """Let controllers do what else the lab does itself: from Nodes and ServiceExports to everything.

        `agents`: start these first, because only where they run a cluster gets an export range.
        """
        plane = control.ControlPlane(self)
        clusters = self.topology.clusters
        with say.step("objects: Nodes (gateways annotated), Pods, Services, ServiceExports"):
            for cluster in clusters:
                self.api(cluster.name).create_all(list(control.cluster_objects(self, cluster)))
        with say.step(f"controllers: a leader, {_count(len(clusters), 'member')}"):
            plane.start()
        with say.step("ClusterSet: made on the leader, joined by every cluster"):
            for lab_node in self.topology.with_agents() if agents else ():
                self.start_agent(lab_node.name)
            plane.init()
            for cluster in clusters:
                plane.join(cluster)
        with say.step("Gateways elected, clusters and Services imported everywhere"):
            plane.wait_joined()
            self.start_kube_proxy()

    @staticmethod
    def _each(function: Callable[[T], object], items: Iterable[T]) -> None:
        with ThreadPoolExecutor(PARALLEL) as pool:
            for future in [pool.submit(function, item) for item in items]:
                future.result()

    def down(self, progress: Progress | None = None) -> None:
        """Remove everything of the lab, complete or not; nothing happens when there is none."""
        say = progress or Progress(quiet=True)
        if not self.state.directory.exists():
            return
        with self.state.lock(), say.step(f"lab {self.name} taken down"):
            self._remove()

    def remove_abandoned(self) -> bool:
        """Remove the lab if the process that it was made for is gone; tell whether it was removed."""
        if not self.state.abandoned:
            return False
        with self.state.lock():  # which its maker holds as long as it is at it
            if self.state.abandoned:
                self._remove()
                return True
        return False

    def _remove(self) -> None:
        for client in self._apis.values():
            client.close()
        self._apis.clear()
        with contextlib.suppress(LabError):  # what still runs then is a monitor, not a command that builds
            wait_until(lambda: not state.making(self.prefix), f"ip commands on {self.prefix}… to end")
        state.end([*self.state.processes().values(), *state.marked(self.state.directory)])
        for directory in (self.state.directory / "nodes").glob("*/ovs"):
            OvsInstance(self.namespace(directory.parent.name), directory).stop()
        if self.state.exists:
            names = self.state.namespaces()
            state.end(state.in_namespaces(names))
            for name in names:
                netns.delete(name)
        # A maker killed in the midst of starting a process: that one bears our mark only once it runs.
        state.end(state.marked(self.state.directory))
        self.state.remove()

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.down()


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _check_machine() -> None:
    if os.geteuid() != 0:
        raise LabError("the lab needs root: it makes network namespaces")
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise LabError(f"missing: {', '.join(missing)} (`make setup` installs what the lab needs)")


def _userspace(topology: Topology) -> bool:
    if topology.datapath is DatapathChoice.AUTO:
        return not kernel_datapath_exists()
    return topology.datapath is DatapathChoice.NETDEV
