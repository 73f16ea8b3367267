"""API servers and controllers as processes of their own, for benchmarks and tests of the control plane.

Owns the processes and the files in one directory. What is done with them is the caller's matter.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from devtools.ports import free_port
from devtools.realapi import RealApiServer
from devtools.waiting import wait_until
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from tests.worlds.crds import crds
from tests.worlds.objects import Objects

REPOSITORY = Path(__file__).parents[2]
Json = dict[str, Any]
_SAMPLE = re.compile(r"^([a-z_]+)(?:\{(.*)\})? (\S+)$")


class Api(Objects):
    """A running API server with the CRDs in it. `client` is the administrator's, `pids` are its programs'."""

    def __init__(self, kubeconfig: Path, pids: Mapping[str, int]) -> None:
        self.kubeconfig, self.pids = kubeconfig, pids
        self.client = Client(str(kubeconfig), user_agent="bench")
        config = yaml.safe_load(kubeconfig.read_text())
        self.url = str(config["clusters"][0]["cluster"]["server"])
        self.ca = Path(config["clusters"][0]["cluster"]["certificate-authority"]).read_bytes()
        self.token = str(config["users"][0]["user"]["token"])
        base = object_path(Kind.CUSTOM_RESOURCE_DEFINITION, "")
        for crd in crds():
            self.client.request("POST", base, body=crd)
            group, version = crd["spec"]["group"], crd["spec"]["versions"][-1]["name"]
            path = f"/apis/{group}/{version}/{crd['spec']['names']['plural']}"
            wait_until(partial(self._serves, path), f"{path} to be served", timeout=60)

    def _serves(self, path: str) -> bool:
        try:
            self.client.request("GET", path)
        except ApiRefusalError:
            return False
        return True

    def join(self, leader: Api, cluster: str, *, area: str, home: str = "kube-system", token: str = "") -> None:
        """Make Secret and ClusterSet of a member. Without `token` it uses that of the leader's administrator."""
        values = {"ca.crt": leader.ca, "token": (token or leader.token).encode()}
        data = {name: base64.b64encode(value).decode() for name, value in values.items()}
        self.put(Kind.SECRET, "leader-token", home, data=data)
        leaders = [{"clusterID": "north", "server": leader.url, "secret": "leader-token"}]
        self.put(Kind.CLUSTER_SET, "set", home, spec={"clusterID": cluster, "namespace": area, "leaders": leaders})


@contextmanager
def api_server(kind: str, directory: Path, service_cidr: str = "10.96.0.0/16") -> Iterator[Api]:
    """Run an API server, "embedded" or "real", over TLS with an administrator's token."""
    directory.mkdir(parents=True, exist_ok=True)
    kubeconfig = directory / "kubeconfig"
    with ExitStack() as stack:
        if kind == "real":
            real = stack.enter_context(RealApiServer(directory / "real", service_cidr=service_cidr))
            real.write_kubeconfig(kubeconfig)
            pids = real.pids()
        else:
            argv = ["-m", "devtools.apiserver", "--kubeconfig", str(kubeconfig), "--service-cidr", service_cidr]
            argv += ["--tls", str(directory / "pki"), "--token-file", str(directory / "token")]
            argv += ["--history", "100000"]
            process = stack.enter_context(_process(argv, directory / "apiserver.log", out=subprocess.PIPE))
            assert process.stdout is not None
            process.stdout.readline()
            pids = {"apiserver": process.pid}
        api = Api(kubeconfig, pids)
        stack.callback(api.client.close)
        yield api


@contextmanager
def _process(argv: list[str], log: Path, out: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python program of this repository; end it afterwards."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, *argv],
            stdout=file if out is None else out,
            stderr=file,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait(10)
            if process.stdout is not None:
                process.stdout.close()


class Controller:
    """A running `mcagent controller`."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.port, self.log = process, port, log

    def page(self, path: str) -> str:
        """Return a page, "" while nobody answers or the answer is an error."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def ready(self) -> bool:
        """Tell what /readyz tells. Raises AssertionError when the process has ended."""
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        return "ready" in self.page("/readyz").splitlines()

    def metric(self, name: str, text: str = "", page: str = "") -> float:
        """Return the sum over the samples of a metric whose labels contain `text`."""
        value = 0.0
        for line in (page or self.page("/metrics")).splitlines():
            sample = _SAMPLE.match(line)
            if sample and sample[1] == name and text in (sample[2] or ""):
                value += float(sample[3])
        return value

    def writes(self) -> float:
        """Return how many objects it has written."""
        return self.metric("mcagent_controller_writes_total")

    def writes_by_kind(self) -> dict[str, int]:
        """Return how many objects of each kind it has written."""
        counts: Counter[str] = Counter()
        for line in self.page("/metrics").splitlines():
            sample = _SAMPLE.match(line)
            if sample and sample[1] == "mcagent_controller_writes_total":
                counts[sample[2].partition('kind="')[2].partition('"')[0]] += int(float(sample[3]))
        return dict(counts)

    def idle(self, page: str = "") -> bool:
        """Tell whether no key waits for a worker or is worked on."""
        page = page or self.page("/metrics")
        names = ("mcagent_controller_queue_depth", "mcagent_controller_queue_active")
        return bool(page) and not any(self.metric(name, page=page) for name in names)

    def memory(self, name: str = "VmRSS") -> float:
        """Return resident memory in MiB."""
        return memory(self.process.pid, name)

    def processor(self) -> float:
        """Return the processor time spent so far, in seconds."""
        return processor(self.process.pid)


def memory(pid: int, name: str = "VmRSS") -> float:
    """Return a process's resident memory in MiB, at its largest with VmHWM (proc(5), status)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(name)


def processor(pid: int) -> float:
    """Return the processor time that a process has spent so far, in seconds (proc(5), stat: utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def controller(
    role: str, kubeconfig: Path, namespace: str, directory: Path, **settings: Any
) -> Iterator[Controller]:
    """Run `mcagent controller ROLE` and wait until it is ready. `settings` are keys of its configuration."""
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    config = {
        "kubeconfig": str(kubeconfig),
        "namespace": namespace,
        "podNamespace": "kube-system",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{port}"},
        "webhook": {"port": 0},
        "leaderElection": {"leaderElect": False},
        "logLevel": "warning",
        **settings,
    }
    file, log = directory / f"{role}-{port}.yaml", directory / f"{role}-{port}.log"
    file.write_text(yaml.safe_dump(config))
    argv = ["-m", "mcagent.cli.main", "controller", role, "--config", str(file)]
    with _process(argv, log) as process:
        controller = Controller(process, port, log)
        wait_until(controller.ready, f"the {role}'s controller to be ready", timeout=120, interval=0.05)
        yield controller
