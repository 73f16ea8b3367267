"""The parts of a running lab: names, places, processes, and what tests ask of them.

Everything is found again from the lab's directory, so any process may use a running lab. What makes a lab and
takes it down is `devtools.lab.lab`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import yaml

from devtools.errors import FatalError, LabError
from devtools.lab import objects
from devtools.lab.api import PORT, ApiClient, ApiKind
from devtools.lab.state import Process, State
from devtools.lab.topology import Cluster, Topology
from devtools.nodes import antrea, antrea_wireguard, netns, node
from devtools.nodes.ovs import OvsInstance
from devtools.waiting import wait_until
from mcagent.cli.common.asking import UnixConnection
from mcagent.model.config import TrafficEncryption

READY_TIMEOUT = 180.0  # seconds for all agents to have programmed their Nodes, on a busy machine
ANSWER_TIMEOUT = 15.0  # seconds for an agent to answer, on a busy machine


class RunningLab:
    """A lab by its name."""

    def __init__(self, name: str, root: Path | None = None) -> None:
        self.state = State(name, root)
        self._topology: Topology | None = None
        self._apis: dict[str, ApiClient] = {}

    # --- names and places ---------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The lab's name."""
        return self.state.name

    @property
    def topology(self) -> Topology:
        """What it consists of. Raises LabError when there is no such lab."""
        if self._topology is None:
            self._topology = self.state.topology()
        return self._topology

    @property
    def underlay(self) -> str:
        """Namespace of the underlay."""
        return self.prefix + "underlay"

    @property
    def prefix(self) -> str:
        """What every namespace of this lab begins with."""
        return f"mcl-{self.name}-"

    def namespace(self, thing: str | object) -> str:
        """Namespace of a Node or Pod, given or by name."""
        return self.prefix + (thing if isinstance(thing, str) else str(thing.name))  # type: ignore[attr-defined]

    def api_namespace(self, cluster: Cluster) -> str:
        """Namespace of a cluster's API server."""
        return f"{self.prefix}{cluster.name}-api"

    def directory(self, node_name: str) -> Path:
        """Directory of a Node's files: agent.yaml, agent.log, ovs/."""
        return self.state.directory / "nodes" / node_name

    @property
    def userspace(self) -> bool:
        """Whether Nodes use Open vSwitch's userspace datapath."""
        return bool(self.state.noted("userspace"))

    # --- the parts ----------------------------------------------------------------------------------------

    def ovs(self, node_name: str) -> OvsInstance:
        """A Node's Open vSwitch."""
        return OvsInstance(self.namespace(node_name), self.directory(node_name) / "ovs")

    def restart_vswitchd(self, node_name: str, *, kill: bool) -> None:
        """End a Node's ovs-vswitchd, in an orderly way or with SIGKILL, and start it again."""
        ovs = self.ovs(node_name)
        if kill:
            ovs.kill_vswitchd()
        else:
            ovs.stop_vswitchd()
        ovs.start_vswitchd()
        if self.userspace:
            cluster, _ = self.topology.node(node_name)
            number = self.topology.clusters.index(cluster) + 1
            node.prime_neighbours(ovs, cluster, cluster_number=number)

    def api(self, cluster_name: str) -> ApiClient:
        """A client of a cluster's API server."""
        if cluster_name not in self._apis:
            cluster = self.topology.cluster(cluster_name)
            namespace, address = self.api_namespace(cluster), str(cluster.api_address)
            self._apis[cluster_name] = ApiClient(namespace, address, self.kubeconfig(cluster_name))
        return self._apis[cluster_name]

    @property
    def api_kind(self) -> ApiKind:
        """What serves the API of this lab's clusters."""
        return ApiKind(str(self.state.noted("api") or ApiKind.EMBEDDED))

    def kubeconfig(self, cluster_name: str) -> Path:
        """Return the administrator's kubeconfig of a cluster."""
        return self.state.directory / "api" / cluster_name / "kubeconfig"

    def start_api(self, cluster: Cluster) -> None:
        """Start a cluster's API server, with the objects it had if it ran before; return when it answers."""
        directory = self.state.directory / "api" / cluster.name
        directory.mkdir(parents=True, exist_ok=True)
        real = self.api_kind is ApiKind.REAL
        module = "devtools.realapi" if real else "devtools.apiserver"
        argv = [sys.executable, "-m", module, "--listen", f"{cluster.api_address}:{PORT}"]
        argv += ["--kubeconfig", str(self.kubeconfig(cluster.name)), "--service-cidr", str(cluster.service_cidr)]
        if real:
            argv += ["--data", str(directory / "data")]
        else:
            argv += ["--data", str(directory / "objects.json"), "--tls", str(directory / "pki")]
            argv += ["--token-file", str(directory / "pki" / "token")]
        key = f"api-{cluster.name}"
        self.state.spawn(key, self.api_namespace(cluster), argv, log=directory / "api.log", env=environment())
        name, timeout = f"API server of {cluster.name}", 120 if real else 20
        self.wait_process(self.api(cluster.name).ready, key, directory / "api.log", name, timeout)

    def stop_api(self, cluster_name: str) -> None:
        """End a cluster's API server; its objects stay for the next start."""
        self.api(cluster_name).close()
        self.state.stop(f"api-{cluster_name}")

    def start_servers(self) -> None:
        """Start the process that answers in every Pod, and on the address outside; return when it does."""
        spec = self.state.directory / "servers.json"
        ready = self.state.directory / "servers.ready"
        ready.unlink(missing_ok=True)
        where = {pod.name: self.namespace(pod) for _, _, pod in self.topology.pods()}
        spec.write_text(json.dumps({**where, "outside": self.underlay}))
        argv = [sys.executable, "-m", "devtools.traffic.traffic_server", str(spec), str(ready)]
        log = self.state.directory / "servers.log"
        self.state.spawn("servers", "", argv, log=log, env=environment())
        self.wait_process(ready.exists, "servers", log, "servers in the Pods", 20)

    def program_antrea(self, settings: antrea.Settings | None = None) -> None:
        """Let Antrea's agents program their Nodes, of all clusters that are Antrea's."""
        settings = settings or antrea.Settings()
        for cluster, antrea_node in self.topology.nodes():
            if cluster.antrea:
                antrea.program(self.ovs(antrea_node.name), self.topology, cluster, antrea_node, settings)
                if antrea_node.gateway and self.topology.encryption is not TrafficEncryption.NONE:
                    self._encrypt_antrea(cluster, self.namespace(antrea_node), settings)

    def antrea_knows_keys(self) -> bool:
        """Whether Antrea's clusters know a WireGuard key of each other cluster."""
        clusters = self.topology.clusters
        pairs = [
            (cluster, other)
            for cluster in clusters
            if cluster.antrea
            for other in clusters
            if other.name != cluster.name
        ]
        return all(self._antrea_key(cluster, other) for cluster, other in pairs)

    def _antrea_key(self, cluster: Cluster, remote: Cluster) -> str:
        name = f"{remote.name}-clusterinfo"
        imported = self.api(cluster.name).get("ClusterInfoImport", name, objects.NAMESPACE) or {}
        spec = imported.get("spec")
        key = (spec.get("wireGuard") or {}).get("publicKey") if isinstance(spec, dict) else None
        return str(key or "")

    def _encrypt_antrea(self, cluster: Cluster, namespace: str, settings: antrea.Settings) -> None:
        """Make the clusters whose keys are known in `cluster` peers of its gateway."""
        for remote in self.topology.clusters:
            if remote.name != cluster.name and (key := self._antrea_key(cluster, remote)):
                antrea_wireguard.add_peer(namespace, remote, key, settings.gateway_ip(remote))

    def start_exchange(self) -> None:
        """Start the process that carries WireGuard keys between the clusters."""
        argv = [sys.executable, "-m", "devtools.traffic.exchange", self.name, str(self.state.root)]
        log = self.state.directory / "exchange.log"
        self.state.spawn("exchange", "", argv, log=log, env=environment())

    def start_kube_proxy(self) -> None:
        """Start the process that programs kube-proxy's rules as the API servers say."""
        argv = [sys.executable, "-m", "devtools.nodes.kubeproxy_process", self.name, str(self.state.root)]
        log = self.state.directory / "kube-proxy.log"
        self.state.spawn("kube-proxy", "", argv, log=log, env=environment())

    def agent_command(self, *command: str) -> list[str]:
        """Return the argument list of an mcagent command with this very Python."""
        return [sys.executable, "-m", "mcagent.cli.main", *command]

    def agent_flags(self, node_name: str) -> list[str]:
        """Return the flags that tell a command about a Node: its configuration file."""
        return ["--config", str(self.directory(node_name) / "agent.yaml")]

    def start_agent(self, node_name: str, changes: Mapping[str, object] | None = None) -> Process:
        """Start a Node's agent with its configuration file; it need not be ready when this returns.

        `changes`: keys that differ from the lab's.
        """
        cluster, lab_node = self.topology.node(node_name)
        directory = self.directory(node_name)
        config = objects.agent_config(
            *(self.topology, cluster, lab_node),
            ovsdb=self.ovs(node_name).socket,
            kubeconfig=str(self.kubeconfig(cluster.name)),
            run_directory=str(directory / "run"),
            key_directory=str(directory / "wireguard"),
        )
        (directory / "agent.yaml").write_text(yaml.safe_dump(config | dict(changes or {}), sort_keys=False))
        argv = self.agent_command("agent", *self.agent_flags(node_name))
        log = directory / "agent.log"
        return self.state.spawn(f"agent-{node_name}", self.namespace(lab_node), argv, log=log, env=environment())

    def stop_agent(self, node_name: str, *, kill: bool = False) -> None:
        """End a Node's agent: in an orderly way, or with SIGKILL."""
        key = f"agent-{node_name}"
        process = self.state.process(key)
        if kill and process is not None and process.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        self.state.stop(key)

    def agent_alive(self, node_name: str) -> bool:
        """Whether a Node's agent runs."""
        process = self.state.process(f"agent-{node_name}")
        return process is not None and process.alive

    def mcagent(self, node_name: str, *command: str, check: bool = True) -> str:
        """Run an mcagent command on a Node with the configuration of its agent; return its output."""
        argv = self.agent_command(command[0], *self.agent_flags(node_name), *command[1:])
        return netns.execute(self.namespace(node_name), argv, check=check, env=environment()).stdout

    def agents_file(self) -> Path:
        """Write and return a list of all agents' sockets, for commands that ask several (`--agents`)."""
        file = self.state.directory / "agents.yaml"
        names = [lab_node.name for lab_node in self.topology.with_agents()]
        sockets = {name: self.directory(name) / "run" / "status.sock" for name in names}
        file.write_text(yaml.safe_dump({name: f"unix:{path}" for name, path in sockets.items()}))
        return file

    def http(self, node_name: str, path: str) -> tuple[int, str]:
        """GET a path of a Node's agent; (0, reason) when nothing answers."""
        return netns.call(self.namespace(node_name), lambda: get(10351, path))

    def post(self, node_name: str, path: str) -> tuple[int, str]:
        """POST to the socket of a Node's agent; (0, reason) when nothing answers."""
        socket_path = self.directory(node_name) / "run" / "status.sock"
        return _request(UnixConnection(socket_path, timeout=30), "POST", path)

    def status(self, node_name: str) -> dict[str, object]:
        """Return the agent's own status. Raises LabError when it does not answer."""
        code, text = self.http(node_name, "/status")
        if code != 200:
            raise LabError(f"agent of {node_name}: /status: {code} {text[:200]}")
        document = json.loads(text)
        assert isinstance(document, dict)
        return document

    def ready(self, node_name: str) -> bool:
        """Whether a Node's agent says that the dataplane equals the desired state."""
        return self.http(node_name, "/readyz")[0] == 200

    def wait_ready(self, *node_names: str, timeout: float = READY_TIMEOUT) -> None:
        """Return when the agents of these Nodes (default: all) are ready. Raises LabError naming who is not."""
        for name in node_names or tuple(n.name for n in self.topology.with_agents()):
            log = self.directory(name) / "agent.log"
            self.wait_process(partial(self.ready, name), f"agent-{name}", log, f"agent of {name}", timeout)

    def wait_process(self, ready: Callable[[], object], key: str, log: Path, what: str, timeout: float) -> None:
        """Return when a process is ready. Raises LabError, with the end of its log, when it ends or is late."""

        def is_ready() -> bool:
            process = self.state.process(key)
            if ready():
                return True
            if process is None or not process.alive:
                raise FatalError(f"{what} has ended")
            return False

        try:
            wait_until(is_ready, f"{what} to be ready", timeout=timeout, interval=0.1)
        except LabError as error:
            raise LabError(f"{error}\nthe end of {log}:\n{_tail(log)}") from None


def environment() -> dict[str, str]:
    """Return the environment of the lab's processes."""
    # The lab's own Python and source, wherever the process starts; no configuration of the caller's agent.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MCAGENT_")}
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**inherited, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "MALLOC_ARENA_MAX": "1"}  # as the image


def _tail(path: Path, lines: int = 15) -> str:
    with contextlib.suppress(OSError):
        return "\n".join("  " + line for line in path.read_text(errors="replace").splitlines()[-lines:])
    return "  (no log)"


def get(port: int, path: str) -> tuple[int, str]:
    """GET a path from a port of the loopback address; (0, reason) when nothing answers."""
    return _request(http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT), "GET", path)


def _request(connection: http.client.HTTPConnection, method: str, path: str) -> tuple[int, str]:
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return 0, repr(error)
    finally:
        connection.close()
