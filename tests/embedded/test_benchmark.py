"""`mcagent benchmark` against the API servers of two clusters, whose kubelets are this test's."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from devtools.apiserver import ApiServer
from devtools.ports import free_port
from devtools.waiting import wait_until
from mcagent.cli.benchmarking import ends
from mcagent.cli.main import main
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.model.errors import McagentError
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from mcagent.model.parsing.prefixes import PREFIXES_ANNOTATION

SPACE = "kube-system"
PODS = object_path(Kind.POD, SPACE)
MINE = "mcagent-benchmark"
AGENT = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "agent-1",
        "namespace": SPACE,
        "labels": {"app.kubernetes.io/name": "mcagent", "app.kubernetes.io/component": "agent"},
    },
    "spec": {
        "containers": [{"name": "agent", "image": "registry.example/mcagent:1"}],
        "imagePullSecrets": [{"name": "pull"}],
    },
}


class Kubelet:
    """Runs the Pods of a cluster as processes of this machine; deleted ones end. Keeps what was created."""

    def __init__(self, client: Client, cluster: str) -> None:
        self.client, self.cluster = client, cluster
        self.seen: dict[str, dict[str, Any]] = {}
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.broken = ""  # what the clients fail with
        self.pod_ip = "127.0.0.1"  # what it reports of Pods
        self.reached_by: dict[str, str] = {}  # addresses in place of others that Pods here call
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """End it, with all Pods."""
        self._closed.set()
        self._thread.join()
        for process in self.running.values():
            process.kill()
            process.communicate()
        self.client.close()

    def pods(self) -> dict[str, dict[str, Any]]:
        """Return the Pods of benchmarks that there are."""
        items = self.client.request("GET", PODS)["items"]
        return {item["metadata"]["name"]: item for item in items if item["metadata"]["name"].startswith(MINE)}

    def _run(self) -> None:
        while not self._closed.wait(0.05):
            pods = self.pods()
            for name in self.running.keys() - pods.keys():
                process = self.running.pop(name)
                process.kill()
                process.communicate()
            for name, pod in pods.items():
                if name not in self.seen:
                    self.seen[name] = pod
                    self._begin(name, pod)
                elif name in self.running and self.running[name].poll() is not None:
                    self._end(name)

    def _begin(self, name: str, pod: dict[str, Any]) -> None:
        (container,), address = (
            pod["spec"]["containers"],
            "127.0.0.2" if pod["spec"]["hostNetwork"] else "127.0.0.1",
        )
        node = pod["spec"].get("nodeName", f"{self.cluster}-n1")
        self._patch(name, {"spec": {"nodeName": node}})
        if self.broken and "client" in name:
            self._patch(name, _terminated("Failed", self.broken), "/status")
            return
        env = {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}
        ips = f"fd00::1,{address}"  # IPv6 is the first family
        words = [self.reached_by.get(word, word.replace("$(POD_IPS)", ips)) for word in container["args"]]
        argv = [sys.executable, "-m", "mcagent.cli.main", *words]  # the image's entry point
        self.running[name] = subprocess.Popen(argv, env=os.environ | env, stdout=subprocess.PIPE, text=True)
        pod_ip = address if pod["spec"]["hostNetwork"] else self.pod_ip
        status = {"phase": "Running", "podIP": "fd00::1", "podIPs": [{"ip": "fd00::1"}, {"ip": pod_ip}]}
        self._patch(name, {"status": status}, "/status")

    def _end(self, name: str) -> None:
        process = self.running.pop(name)
        words = process.communicate()[0].strip()
        self._patch(name, _terminated("Failed" if process.returncode else "Succeeded", words), "/status")

    def _patch(self, name: str, change: dict[str, Any], part: str = "") -> None:
        kind = "application/merge-patch+json"
        with suppress(ApiRefusalError):  # it was deleted meanwhile
            self.client.request("PATCH", f"{PODS}/{name}{part}", body=change, content_type=kind)


def _terminated(phase: str, words: str) -> dict[str, Any]:
    container = {"name": "benchmark", "state": {"terminated": {"message": words}}}
    return {"status": {"phase": phase, "containerStatuses": [container]}}


class World:
    """Two clusters: their kubelets, and the kubeconfig with a context for each."""

    def __init__(self, east: Kubelet, west: Kubelet, kubeconfig: Path) -> None:
        self.east, self.west, self.kubeconfig = east, west, kubeconfig
        self.port = free_port()

    def arguments(self, *arguments: str) -> list[str]:
        """Return the command line."""
        clusters = ("--from", "east", "--to", "west", "--kubeconfig", str(self.kubeconfig))
        return ["benchmark", *clusters, "--seconds", "1", "--port", str(self.port), *arguments]

    def left(self) -> list[str]:
        """Return the Pods that are left."""
        return [*self.east.pods(), *self.west.pods()]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Two clusters with a Pod of an agent each."""
    whole: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "clusters": [], "contexts": [], "users": []}
    with ExitStack() as stack:
        kubelets: list[Kubelet] = []
        for cluster in ("east", "west"):
            server = stack.enter_context(ApiServer())
            file = tmp_path / cluster
            server.write_kubeconfig(file)
            client = Client(str(file))
            client.request("POST", PODS, body=AGENT)
            kubelets.append(Kubelet(client, cluster))
            stack.callback(kubelets[-1].close)
            own = json.loads(file.read_text())
            for part, holder in (("clusters", "cluster"), ("users", "user")):
                whole[part] += [{"name": cluster, holder: obj[holder]} for obj in own[part]]
            whole["contexts"].append({"name": cluster, "context": {"cluster": cluster, "user": cluster}})
        (tmp_path / "both").write_text(json.dumps(whole))
        yield World(kubelets[0], kubelets[1], tmp_path / "both")


def test_both_ways_are_measured_within_the_limit(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Pods with the agent's image and no rights, two of them on the Nodes of the others; none is left."""
    assert main(world.arguments("--yes", "--limit", "80Mbit", "-o", "json")) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["way"] for row in report["ways"]] == ["pod", "node"]
    for row in report["ways"]:
        assert (row["fromNode"], row["toNode"], row["error"]) == ("east-n1", "west-n1", "")
        assert 0 < row["bytes"] <= 1.2 * 80e6 / 8
        assert 0 < row["bitsPerSecond"] <= 1.2 * 80e6
        assert 0 < row["roundTripP50Seconds"] <= row["roundTripP99Seconds"]
    assert report["ways"][0]["encrypted"] is None  # the agents here cannot be asked
    assert world.left() == []
    for kubelet in (world.east, world.west):
        specs = [pod["spec"] for pod in kubelet.seen.values()]
        assert sorted(spec["hostNetwork"] for spec in specs) == [False, True]
        for spec in specs:
            assert spec["containers"][0]["image"] == "registry.example/mcagent:1"
            assert spec["imagePullSecrets"] == [{"name": "pull"}]
            assert spec["activeDeadlineSeconds"] < 300
            assert not spec["automountServiceAccountToken"]
            assert spec["securityContext"]["runAsNonRoot"]


def test_the_client_calls_the_virtual_address_of_the_server(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a cluster with a virtual Pod CIDR; the server's Node has its own address."""
    gateway = {
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1",
        "kind": "Gateway",
        "metadata": {
            "name": "west-n1",
            "namespace": SPACE,
            "annotations": {PREFIXES_ANNOTATION: "10.244.0.0/16=100.73.0.0/16"},
        },
        "gatewayIP": "192.0.2.1",
        "internalIP": "192.0.2.1",
    }
    world.west.client.request("POST", object_path(Kind.GATEWAY, SPACE), body=gateway)
    world.west.pod_ip = "10.244.7.9"
    world.east.reached_by = {"100.73.7.9": "127.0.0.1"}
    assert main(world.arguments("--yes", "--limit", "80Mbit", "-o", "json")) == 0
    assert [row["error"] for row in json.loads(capsys.readouterr().out)["ways"]] == ["", ""]
    servers = {pod["spec"]["containers"][0]["args"][2] for pod in world.east.seen.values()}
    assert servers == {"100.73.7.9", "127.0.0.2"}


def test_a_client_that_fails_is_told_of(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Its words are in the table, the other way is measured all the same, and nothing is left."""
    world.east.broken = "192.0.2.1:25301: timed out"
    assert main(world.arguments("--yes")) == 1
    output = capsys.readouterr().out
    assert "pod: 192.0.2.1:25301: timed out" in output
    assert "node: " in output
    assert world.left() == []


def test_nothing_is_started_without_a_yes(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody can be asked here; and what is out of bounds is refused before anybody is."""
    assert main(world.arguments()) == 2
    for wrong in (["--seconds", "61"], ["--limit", "fast"], ["--limit", "7"], ["--port", "80"]):
        assert main([*world.arguments("--yes"), *wrong]) == 2
    assert main(["benchmark", "--yes"]) == 2
    assert "confirm with --yes" in capsys.readouterr().err
    own_end, peer_end = pty.openpty()
    argv = [sys.executable, "-m", "mcagent.cli.main", *world.arguments()]
    with subprocess.Popen(argv, stdin=peer_end, stderr=subprocess.PIPE, text=True) as process:
        os.write(own_end, b"n\n")
        assert "nothing was started" in process.communicate(timeout=30)[1]
    os.close(own_end)
    os.close(peer_end)
    assert process.returncode == 1
    assert not world.east.seen
    assert not world.west.seen


def test_nobody_is_asked_about_a_context_that_does_not_exist(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither is about a cluster without agents; the error names what is wrong."""
    assert main([*world.arguments(), "--to", "nord"]) != 0
    output = capsys.readouterr().err
    assert "nord" in output
    assert "east, west" in output
    assert "Other traffic may notice" not in output
    assert "confirm with --yes" not in output
    assert main([*world.arguments(), "--namespace", "elsewhere"]) == 1
    output = capsys.readouterr().err
    assert "no agent Pod in elsewhere" in output
    assert "Other traffic may notice" not in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_whoever_interrupts_it_leaves_no_pod(world: World, number: signal.Signals) -> None:
    """Ctrl-C, or the end of a session, in the middle of a measurement."""
    argv = [sys.executable, "-m", "mcagent.cli.main", *world.arguments("--yes", "--seconds", "60")]
    # What a shell starts in the background ignores SIGINT, and so would this.
    process = subprocess.Popen(["env", "--default-signal=INT", *argv], stderr=subprocess.DEVNULL)
    wait_until(lambda: any("client" in name for name in world.east.running), "a client", timeout=30)
    process.send_signal(number)
    assert process.wait(30) == 130
    assert world.left() == []


def test_who_does_not_know_the_token_gets_nothing() -> None:
    """The server ends by itself, and swallows or echoes for nobody else."""
    port = free_port()
    thread = threading.Thread(target=ends.serve, args=(["fd00::1", "127.0.0.3"], port, "secret", 3.0))
    thread.start()
    bounds: dict[str, Any] = {"seconds": 0.2, "limit": 10**7, "exchanges": 10}
    with pytest.raises(McagentError):
        ends.measure("127.0.0.3", port, "guess", **bounds)
    assert ends.measure("127.0.0.3", port, "secret", **bounds).bytes > 0
    thread.join(10)
    assert not thread.is_alive()
    with pytest.raises(McagentError, match="refused"):
        ends.measure("127.0.0.3", port, "secret", **bounds, patience=0.0)
