"""What runs on a real Node: containerd, kubelet, kube-proxy, and the CNI's configuration.

Owns these programs' configuration files. Objects of the cluster are `devtools.k8s.addons`'s.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from devtools.k8s.external import ExternalCni
from devtools.k8s.images import PAUSE
from devtools.k8s.machine import Machine
from devtools.k8s.programs import CNI_PLUGINS, Programs
from devtools.lab.topology import Cluster, Node
from devtools.nodes import netns
from devtools.waiting import wait_until

NAMESPACE = "k8s.io"  # containerd's, of the kubelet
SOCKET = "/run/containerd/containerd.sock"
OPT_CNI = Path("/opt/cni/bin")  # of the Node itself; where external CNIs install their plugins
VXLAN = 50  # bytes that VXLAN adds to a packet (RFC 7348) with its outer headers


class K8sCni(StrEnum):
    """Who carries packets between Pods of a cluster."""

    BRIDGE = "bridge"  # bridge and host-local, with a static route to each other Node's Pod CIDR
    FLANNEL = "flannel"  # flanneld, as a DaemonSet; backend vxlan
    KUBE_ROUTER = "kube-router"  # its router and its firewall, as a DaemonSet; routes by BGP between Nodes


class ProxyMode(StrEnum):
    """Modes of kube-proxy."""

    IPTABLES = "iptables"
    NFTABLES = "nftables"


@dataclass(frozen=True, slots=True, kw_only=True)
class RealNode:
    """A Node and the cluster that it belongs to."""

    machine: Machine
    node: Node
    cluster: Cluster
    uplink: str
    cni: K8sCni | ExternalCni
    proxy_mode: ProxyMode

    def start_containerd(self, archives: list[Path]) -> None:
        """Start containerd and give it these images."""
        plugins = OPT_CNI if isinstance(self.cni, ExternalCni) else CNI_PLUGINS
        config = self._write("containerd.toml", _CONTAINERD.format(socket=SOCKET, pause=PAUSE, plugins=plugins))
        self.machine.spawn("containerd", ["containerd", "--config", config])
        ctr = ["ctr", "--address", SOCKET, "--namespace", NAMESPACE]

        def answers() -> bool:
            return netns.run(self.machine.command([*ctr, "version"]), check=False).returncode == 0

        wait_until(answers, f"containerd of {self.node.name}", timeout=30.0, interval=0.2)
        for archive in archives:
            self.machine.run([*ctr, "images", "import", archive], timeout=180.0)

    def configure_cni(self) -> None:
        """Write the CNI's configuration and, where no agent of it does, the routes between Nodes.

        An external CNI writes its configuration itself. It finds the usual plugins beside its own.
        """
        if isinstance(self.cni, ExternalCni):
            place = self.machine.directory / "root" / OPT_CNI.relative_to("/")
            place.mkdir(parents=True, exist_ok=True)
            for program in (*CNI_PLUGINS.glob("*"), *self.cni.plugins()):
                shutil.copy2(program, place)
            return
        mtu = 1500 - (VXLAN if self.cni is K8sCni.FLANNEL else 0)
        conflist = {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                _bridge("kube-bridge" if self.cni is K8sCni.KUBE_ROUTER else "cni0", str(self.node.pod_cidr), mtu),
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }
        place = self.machine.directory / "root/etc/cni/net.d/10-pods.conflist"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(conflist, indent=2))
        if self.cni is K8sCni.BRIDGE:
            other_nodes = (other for other in self.cluster.nodes if other is not self.node)
            netns.ip_batch(
                self.machine.namespace,
                [f"route add {other.pod_cidr} via {other.address} dev {self.uplink}" for other in other_nodes],
            )
            self.machine.run(["nft", "-f", "-"], stdin=_MASQUERADE.format(pods=self.cluster.pod_cidr))

    def start_kubelet(self, programs: Programs, kubeconfig: Path, dns: IPv4Address) -> None:
        """Start the kubelet; the Node object is there already."""
        resolver = self._write("resolv.conf", "# none: what is not the cluster's own does not resolve\n")
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": str(self.node.address),
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.machine.cgroup}",
            "clusterDNS": [str(dns)],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            "enforceNodeAllocatable": ["pods"],
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "failCgroupV1": False,
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,
            "localStorageCapacityIsolation": False,
            "resolvConf": str(resolver),
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        }
        self.machine.spawn(
            "kubelet",
            [
                programs["kubelet"],
                f"--config={self._write('kubelet.json', json.dumps(config, indent=2))}",
                f"--kubeconfig={kubeconfig}",
                f"--hostname-override={self.node.name}",
                f"--node-ip={self.node.address}",
                f"--cert-dir={self.machine.directory / 'kubelet-pki'}",
            ],
        )

    def start_kube_proxy(self, programs: Programs, kubeconfig: Path) -> None:
        """Start kube-proxy. It leaves the machine's conntrack limits alone: they are no Node's own."""
        self.machine.spawn(
            "kube-proxy",
            [
                programs["kube-proxy"],
                f"--kubeconfig={kubeconfig}",
                f"--proxy-mode={self.proxy_mode}",
                f"--cluster-cidr={self.cluster.pod_cidr}",
                f"--hostname-override={self.node.name}",
                "--conntrack-max-per-core=0",
                "--conntrack-tcp-timeout-established=0",
                "--conntrack-tcp-timeout-close-wait=0",
            ],
        )

    def _write(self, name: str, text: str) -> Path:
        path = self.machine.directory / name
        path.write_text(text)
        return path


def _bridge(name: str, pod_cidr: str, mtu: int) -> dict[str, Any]:
    return {
        "type": "bridge",
        "bridge": name,
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "mtu": mtu,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": pod_cidr}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }


# What leaves the cluster has its Node's address, as kindnet's and flannel's own rules see to.
_MASQUERADE = """\
table ip pods {{
    chain postrouting {{
        type nat hook postrouting priority srcnat
        ip saddr {pods} ip daddr != {pods} masquerade
    }}
}}
"""
# restrict_oom_score_adj: without CAP_SYS_RESOURCE a process may not protect a Pod more than itself.
_CONTAINERD = """\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "/etc/cni/net.d"
"""
