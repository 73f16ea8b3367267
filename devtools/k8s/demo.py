"""mcagent on clusters that are up, installed as its documentation says; a Service of one used from the others.

Owns the steps of docs/deploy.md and docs/multicluster.md, with the commands that stand there, and what they show.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from devtools.k8s import mcs_suite, workloads
from devtools.k8s.lab import ROOT, STATE, K8sLab
from devtools.k8s.traffic import clients
from devtools.lab.progress import Progress
from devtools.lab.topology import Cluster, Node
from devtools.nodes import netns
from devtools.waiting import wait_until
from flows.pipeline.prefixes import address_in_bridge
from mcagent.model.net import PodPrefix
from mcagent.model.parsing.prefixes import PREFIXES_ANNOTATION, read_prefixes

COMMON_AREA = "antrea-multicluster"
CLUSTERSET = "blue"
IMPORTED = "antrea-mc-web"
URL = f"http://{IMPORTED}.default.svc.cluster.local"
MCAGENT = ROOT / ".venv/bin/mcagent"
JOINED = 120.0  # seconds
ASKED = 60
HELD = 50  # connections
HOLD = 8.0  # seconds after the loss


def kubeconfig_of_all(lab: K8sLab) -> Path:
    """Write a kubeconfig with a context for each cluster, named like it, and return its path."""
    path = STATE / "all.kubeconfig"
    configs = {cluster.name: json.loads(lab.kubeconfig(cluster).read_text()) for cluster in lab.topology.clusters}
    path.write_text(json.dumps(mcs_suite.kubeconfig(configs)))
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One thing that was shown."""

    text: str
    ok: bool


class Demo:
    """The first cluster leads, all are members, and all Nodes gateways; the last cluster serves."""

    def __init__(self, lab: K8sLab, say: Progress) -> None:
        self._lab, self._say = lab, say
        self._clusters = lab.topology.clusters
        self._leader, self._server = self._clusters[0], self._clusters[-1]

    def tell(self) -> Iterator[Claim]:
        """Install, join and share, and show what comes of it. Raises LabError when a step cannot be done."""
        self.install()
        self.join()
        self.share()
        yield from self.ask()
        if self._lab.plan.same_cidrs:
            yield from self.ask_pods()
        yield self.gateway_loses_power()

    def mcagent(self, cluster: Cluster, *arguments: str | Path, timeout: float = JOINED) -> str:
        """Run an admin command beside a cluster's API server and return what it prints. Raises LabError."""
        command = [*self._lab.beside(cluster), str(MCAGENT), *map(str, arguments)]
        return netns.run([*command, "--kubeconfig", str(self._lab.kubeconfig(cluster))], timeout=timeout).stdout

    def install(self) -> None:
        """Install leader, members and agents from deploy/, and return when they are ready."""
        kubectl, apply = self._lab.kubectl, ("apply", "-f")
        with self._say.step("mcagent: leader, members and agents from deploy/"):
            kubectl(self._leader, *apply, str(ROOT / "deploy/leader.yaml"))
            for cluster in self._clusters:
                copy = self._configured(cluster)
                kubectl(cluster, *apply, str(copy / "member.yaml"))
                kubectl(cluster, "apply", "-k", str(copy))
            self.installed()

    def installed(self) -> None:
        """Return when the controllers are ready."""
        self._lab.rolled_out(self._leader, COMMON_AREA, "deployment/mcagent-leader")
        for cluster in self._clusters:
            self._lab.rolled_out(cluster, "kube-system", "deployment/mcagent-member")

    def _configured(self, cluster: Cluster) -> Path:
        """Return a copy of deploy/ with this cluster's values in the ConfigMaps of agent and member."""
        copy = STATE / f"deploy-{cluster.name}"
        shutil.copytree(ROOT / "deploy", copy, dirs_exist_ok=True)
        gateways = f"maxActiveGateways: {len(cluster.nodes)}"
        values = [
            ("agent.yaml", 'clusterID: ""', f"clusterID: {cluster.name}"),
            ("member.yaml", "maxActiveGateways: 1", gateways),
        ]
        if self._lab.plan.same_cidrs:
            pods = ("podCIDRs: []", f"podCIDRs: [{cluster.pod_cidr}]")
            values += [("agent.yaml", *pods), ("member.yaml", *pods)]
            values += [("agent.yaml", "enablePodToPodConnectivity: false", "enablePodToPodConnectivity: true")]
        for name, old, new in values:
            (copy / name).write_text((copy / name).read_text().replace(old, new))
        return copy

    def join(self) -> None:
        """Make the ClusterSet, join all clusters, and make every Node a gateway."""
        names = ", ".join(cluster.name for cluster in self._clusters)
        with self._say.step(f"ClusterSet {CLUSTERSET}, led by {self._leader.name}: {names} join"):
            info, where = STATE / "join.yaml", ("-n", COMMON_AREA)
            leader = ("--clusterset", CLUSTERSET, "--clusterid", self._leader.name)
            cidrs = {str(cidr) for cluster in self._clusters for cidr in (cluster.service_cidr, cluster.pod_cidr)}
            allowed = [word for cidr in sorted(cidrs) for word in ("--allow-cidr", cidr)]
            self.mcagent(self._leader, "clusterset", "init", *where, *leader, "-j", info, *allowed)
            for cluster in self._clusters:
                token, name = STATE / f"{cluster.name}-token.yaml", f"member-{cluster.name}"
                member = ("--cluster-id", cluster.name, "-o", token)
                self.mcagent(self._leader, "membertoken", "create", name, *where, *member)
                joining = ("--clusterid", cluster.name, "--token-secret-file", token)
                self.mcagent(cluster, "clusterset", "join", "-f", info, *joining)
        with self._say.step("all Nodes are gateways, and all agents ready"):
            for cluster in self._clusters:
                self._lab.kubectl(cluster, "annotate", "node", "--all", "multicluster.antrea.io/gateway=true")
                wait_until(
                    lambda c=cluster: self._count(c, "gateways") == len(c.nodes),  # type: ignore[misc]
                    f"the gateways of {cluster.name}",
                    timeout=JOINED,
                    interval=0.5,
                )
                self._lab.rolled_out(cluster, "kube-system", "daemonset/mcagent-agent")

    def share(self) -> None:
        """Export a Service of the last cluster, and run a client on every Node of the others."""
        apply = ("apply", "-f", "-")
        names = [node.name for node in self._server.nodes if node is not self.victim]
        with self._say.step(f"{self._server.name} exports Service web, whose Pods run on {', '.join(names)}"):
            self._lab.kubectl(self._server, *apply, objects=workloads.web(replicas=2, nodes=names))
            self._lab.rolled_out(self._server, "default", "deployment/web")
            for cluster in self.others:
                self._lab.kubectl(cluster, *apply, objects=[workloads.pods("DaemonSet", "client")])
                self._lab.rolled_out(cluster, "default", "daemonset/client")
                wait_until(
                    lambda c=cluster: self._count(
                        c, "endpointslices", "-l", f"kubernetes.io/service-name={IMPORTED}"
                    ),  # type: ignore[misc]
                    f"the Service in {cluster.name}",
                    timeout=JOINED,
                    interval=0.2,
                )

    def ask(self) -> Iterator[Claim]:
        """Have a Pod on every Node of the other clusters ask the Service by its name."""
        for cluster in self.others:
            for client in clients(self._lab, cluster):
                with self._say.step(f"a Pod on {client.node} asks {URL} {ASKED} times"):
                    answer = client.ask(ASKED, URL)
                errors = "".join(f"; {count} times {text}" for text, count in answer.errors.items())
                pods = len(answer.answers)
                text = f"{answer.answered} of {ASKED} answered on {client.node}, by {pods} Pods{errors}"
                yield Claim(text=text, ok=answer.answered == ASKED)

    def ask_pods(self) -> Iterator[Claim]:
        """Have a Pod on every Node of the other clusters ask each Pod of the Service at its virtual address."""
        with self._say.step("all clusters have virtual Pod CIDRs"):
            for cluster in self._clusters:
                wait_until(
                    lambda c=cluster: self._prefixes(c),  # type: ignore[misc]
                    f"the virtual Pod CIDR of {cluster.name}",
                    timeout=JOINED,
                    interval=0.5,
                )
        for cluster in self.others:
            for client in clients(self._lab, cluster):
                source = self._virtual(cluster, self._pods(cluster)[client.pod])
                for pod, address in self._pods(self._server, "-l", "app=web").items():
                    virtual = self._virtual(self._server, address)
                    with self._say.step(
                        f"a Pod on {client.node} asks {pod} at {virtual}, which is {address} there"
                    ):
                        answer = client.ask(ASKED, f"http://{virtual}:{workloads.PORT}")
                    text = f"{answer.answered} of {ASKED} answered, to {', '.join(answer.sources)}"
                    yield Claim(text=text, ok=(answer.answered, [*answer.sources]) == (ASKED, [source]))

    def _pods(self, cluster: Cluster, *selection: str) -> dict[str, str]:
        """Return the addresses of Pods in the default namespace, by name."""
        pods = json.loads(self._lab.kubectl(cluster, "get", "pods", *selection, "-o", "json"))["items"]
        return {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in pods}

    def _virtual(self, cluster: Cluster, address: str) -> str:
        """Return the address of a Pod in other clusters."""
        return str(address_in_bridge(ip_address(address), self._prefixes(cluster)))

    def _prefixes(self, cluster: Cluster) -> tuple[PodPrefix, ...]:
        """Return the virtual Pod CIDRs of a cluster, from its Gateways."""
        gateways = json.loads(self._lab.kubectl(cluster, "get", "gateways", "-A", "-o", "json"))["items"]
        return read_prefixes(gateways[0]["metadata"].get("annotations", {}).get(PREFIXES_ANNOTATION, ""))

    def gateway_loses_power(self) -> Claim:
        """Take a gateway Node of the serving cluster from under connections that go through it."""
        client = clients(self._lab, self.others[0])[0]
        title = f"{HELD} connections from {client.node}; gateway Node {self.victim.name} loses its power"
        with self._say.step(title), client.holding(HELD, URL) as flow:
            self._lab.power_off(self.victim.name)
            moment = time.monotonic() + HOLD
            wait_until(lambda: time.monotonic() >= moment, "a moment", timeout=HOLD + 5)
        counted = flow.counted
        longest = f"the longest wait for an answer was {counted.longest:.2f} s"
        text = f"{counted.broken} of {HELD} connections broke; {longest}"
        return Claim(text=text, ok=counted.broken == 0)

    @property
    def others(self) -> tuple[Cluster, ...]:
        """The clusters that ask."""
        return self._clusters[:-1]

    @property
    def victim(self) -> Node:
        """The gateway that is lost: it has no control plane and no Pod of the Service."""
        return self._server.nodes[-1]

    def _count(self, cluster: Cluster, *what: str) -> int:
        return len(self._lab.kubectl(cluster, "get", "-A", "-o", "name", *what).split())
