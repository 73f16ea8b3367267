"""CNIs of clusters of real Kubernetes: provided ones, and those of a directory of the user."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from devtools.errors import LabError
from devtools.k8s import addons, external, images
from devtools.k8s.lab import K8sLab, Plan, cni_of
from devtools.k8s.machine import OWN, Machine
from devtools.k8s.node import OPT_CNI, K8sCni, ProxyMode, RealNode
from devtools.lab.progress import Progress
from devtools.lab.topology import generate

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = generate(clusters=2, pods=0).clusters[1]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Give a directory with one CNI, and with a directory that is none."""
    files = {
        "net/manifests/2-agent.yaml": "cidr: ${POD_CIDR}\nservices: ${SERVICE_CIDR}\n",
        "net/manifests/1-crds.yaml": "server: ${API_SERVER}, ${UPLINK}, ${OTHER} $(NODE)\n",
        "net/images/agent.tar": "",
        "net/images/notes.txt": "",
        "net/plugins/net-cni": "a program",
        "net/directories": "/var/lib/net\n\nrun/net/\n",
        "empty/notes.txt": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_an_external_cni_is_what_its_directory_has(directory: Path) -> None:
    """Manifests in order, with the cluster's values; archives, plugins, and directories that Nodes own."""
    environment = {external.VARIABLE: str(directory)}
    assert external.names(environment) == ("net",)
    net = external.find("net", environment)
    assert list(net.manifests(CLUSTER, "eth0")) == [
        "server: 192.168.2.11, eth0, ${OTHER} $(NODE)\n",
        "cidr: 10.2.0.0/16\nservices: 10.102.0.0/16\n",
    ]
    assert [path.name for path in net.archives()] == ["agent.tar"]
    assert [path.name for path in net.plugins()] == ["net-cni"]
    assert net.own_directories() == ("var/lib/net", "run/net")


def test_a_cni_that_is_not_there_is_named(directory: Path) -> None:
    """With the variable and without it, the error says where others come from."""
    assert external.names({}) == ()
    with pytest.raises(LabError, match="no CNI cilium: MCAGENT_CNI_DIRECTORY names no directory"):
        external.find("cilium", {})
    with pytest.raises(LabError, match=r"no CNI empty: .* has net"):
        external.find("empty", {external.VARIABLE: str(directory)})


def real_node(name: str, directory: Path) -> RealNode:
    """Return a Node with a CNI."""
    return RealNode(
        machine=Machine("n", "n", directory),
        node=CLUSTER.nodes[0],
        cluster=CLUSTER,
        uplink="eth0",
        cni=cni_of(name),
        proxy_mode=ProxyMode.IPTABLES,
    )


def test_nodes_have_what_their_external_cni_needs(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds its plugins and writes its configuration itself; only its Nodes own its directories."""
    monkeypatch.setenv(external.VARIABLE, str(directory))
    lab = K8sLab(Plan(cnis=(K8sCni.FLANNEL, "net")), Progress())
    assert [type(lab.cni(cluster)) for cluster in lab.topology.clusters] == [K8sCni, external.ExternalCni]
    own_directories = [lab.machine(cluster.nodes[0]).own for cluster in lab.topology.clusters]
    assert own_directories == [OWN, (*OWN, "var/lib/net", "run/net")]
    real_node("net", directory / "machine").configure_cni()
    root = directory / "machine/root"
    assert (root / OPT_CNI.relative_to("/") / "net-cni").read_text() == "a program"
    assert not (root / "etc/cni/net.d").exists()


def test_kube_router_has_the_bridge_that_it_expects(tmp_path: Path) -> None:
    """The CNI's configuration names kube-bridge and the Node's Pod CIDR; the DaemonSet leaves Services alone."""
    real_node("kube-router", tmp_path).configure_cni()
    bridge, _ = json.loads((tmp_path / "root/etc/cni/net.d/10-pods.conflist").read_text())["plugins"]
    assert bridge["bridge"] == "kube-bridge"
    assert bridge["ipam"]["ranges"] == [[{"subnet": str(CLUSTER.nodes[0].pod_cidr)}]]
    daemon_set = addons.kube_router()[-1]
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    assert container["image"] == images.KUBE_ROUTER
    assert "--run-service-proxy=false" in container["args"]


@pytest.mark.parametrize(
    ("argument", "status", "output"), [("--help", 0, "--conformance"), ("--halp", 2, "--halp")]
)
def test_setup_installs_nothing_for_help_or_a_wrong_option(argument: str, status: int, output: str) -> None:
    """`mck8s setup` would install packages and compile for minutes."""
    environment = {"PATH": "/bin:/usr/bin", "MCAGENT_K8S_PROGRAMS": "/nonexistent"}
    completed = subprocess.run(
        [ROOT / "devtools/mck8s", "setup", argument],
        env=environment,
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    assert completed.returncode == status
    assert output in completed.stdout + completed.stderr
