"""README.md alone leads from two clusters of real Kubernetes to a Service of one that answers in the other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.errors import LabError
from devtools.k8s import chart, workloads
from devtools.k8s.demo import Demo
from devtools.k8s.lab import ROOT, STATE, K8sLab, Plan
from devtools.k8s.node import NAMESPACE, SOCKET
from devtools.k8s.programs import mcagent_images, require
from devtools.lab.progress import Progress
from tests.e2e.guide import Guide, commands
from tests.e2e.world import World, dataplane_of, until

REGISTRY = "registry.example.com/net"
ELSEWHERE = (  # what begins so needs a registry, a package index or a terminal
    "make image", "podman push",  # Nodes have the images under these names (devtools/k8s/find-image builds them)
    "python3 -m venv", "~/mcagent/bin/pip", "export PATH=",  # tests/release installs the wheel
    "kubectl --context east run client",  # Pods of the test ask for the same name
)  # fmt: skip
NAME = "antrea-mc-nginx"


@pytest.fixture(scope="module")
def world(helm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Give two clusters without mcagent whose Nodes have its images, and a directory like a clone."""
    if os.geteuid():
        pytest.skip("needs root: it makes namespaces, mounts and cgroups")
    try:
        require()
        archives = mcagent_images()
    except LabError as error:
        pytest.skip(str(error))
    say = Progress()
    lab = K8sLab(Plan(archives=tuple(archives)), say)
    lab.require_free()
    clone = tmp_path_factory.mktemp("clone")
    (clone / "deploy").symlink_to(ROOT / "deploy")
    east, west = (cluster.nodes[0].name for cluster in lab.topology.clusters)
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("EAST-NODE", east).replace("WEST-NODE", west)
    _, _, install = readme.partition("\n## Install\n")
    guide = Guide(lab=lab, helm=helm, known=commands(install.partition("\n## ")[0]), directory=clone)
    try:
        lab.up()
        bare = {node.node.name: dataplane_of(node.machine) for node in lab.nodes()}
        for node in lab.nodes():
            for image in (f"mcagent:{chart.version()}", f"mcagent-openvswitch:{chart.version()}"):
                names = (f"docker.io/library/{image}", f"{REGISTRY}/{image}")
                node.machine.run(["ctr", "--address", SOCKET, "--namespace", NAMESPACE, "images", "tag", *names])
        yield World(lab=lab, demo=Demo(lab, say), guide=guide, bare=bare)
    finally:
        if STATE.exists():
            lab.down()


def test_two_clusters_are_joined_by_the_readme_alone(world: World) -> None:
    """Its commands in their order, each once, but `mcagent status`, which is repeated until all is well."""
    guide, lab = world.guide, world.lab
    for command in guide.known:
        if command.startswith("mcagent status"):
            until(lambda c=command: guide.run(world.asking, c), "two clusters that are healthy")  # type: ignore[misc]
        elif not command.startswith(ELSEWHERE):
            guide.run(world.asking, command, timeout=330.0)
    assert [command for command in guide.left if not command.startswith(ELSEWHERE)] == []
    # The Nodes cannot pull nginx: Pods and Service get the web server that they have.
    service, _ = workloads.service("nginx", "nginx", ports=workloads.PORTS[:1])
    web = [workloads.pods("Deployment", "nginx", replicas=2), service]
    lab.kubectl(world.serving, "apply", "-f", "-", objects=web)
    lab.rolled_out(world.serving, "default", "deployment/nginx")
    lab.kubectl(world.asking, "apply", "-f", "-", objects=[workloads.pods("DaemonSet", "client")])
    lab.rolled_out(world.asking, "default", "daemonset/client")
    until(lambda: world.imported(NAME), f"Service {NAME} in {world.asking.name}")
    for client in world.clients():
        until(lambda c=client: not c.ask(5, f"http://{NAME}").broken, f"answers on {client.node}")  # type: ignore[misc]
        assert len(client.ask(40, f"http://{NAME}").answers) == 2
