"""Asks the agents of many Nodes for a page, each within a deadline: a silent agent does not stop the others.

Owns the ways to an agent: its Unix socket or an address (`--agents`), a command in its Pod by the API server
(`pods/exec`), HTTPS with the kubeconfig's token. Knows nothing of what pages say.
"""

from __future__ import annotations

import argparse
import queue
import ssl
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mcagent.api.codec import from_json
from mcagent.api.status import Status
from mcagent.cli.common.asking import MAX_ANSWER, STATUS, TIMEOUT, ask, ask_agent, ask_socket, ask_tls, document
from mcagent.model.errors import InputError, McagentError
from mcagent.model.objects import Kind
from mcagent.supervised import attempt

if TYPE_CHECKING:
    from mcagent.agent.config import Settings
    from mcagent.kube.client import Client
    from mcagent.kube.execute import Executed

AT_ONCE = 16  # agents that are asked at the same time
PORT = 10351
_PATIENCE = 2.0  # seconds without a word to the user
SELECTOR = "app.kubernetes.io/name=mcagent,app.kubernetes.io/component=agent"  # Pods and ConfigMap of agents
_CONTAINER = "agent"
_COMMAND = ("mcagent", "page")
_NO_POD = "there is no running Pod of an agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a Node's agent said. `page` is None where it did not answer; `error` says why."""

    node: str
    page: Mapping[str, Any] | None = None
    error: str = ""


class Agents(Protocol):
    """Agents that can be asked."""

    def nodes(self) -> tuple[str, ...]:
        """Return the Nodes whose agents there are, by name. Raises McagentError."""

    def ask(self, node: str, page: str, timeout: float) -> Mapping[str, Any]:
        """Return a page ("/status") of a Node's agent. May take longer. Raises McagentError. From any thread."""


def ask_all(
    agents: Agents,
    pages: Mapping[str, str],
    *,
    timeout: float = 10.0,
    told: Callable[[int, int], None] | None = None,
) -> Iterator[Answer]:
    """Yield the answer of each Node to its page, as they come; a Node without one after `timeout` seconds is late.

    `told` is called with how many have answered, of how many, where it takes longer than two seconds.
    """
    waiting = deque(sorted(pages))
    began, until, done = time.monotonic(), dict[str, float](), 0
    answers = queue.SimpleQueue[Answer]()
    while waiting or until:
        while waiting and len(until) < AT_ONCE:
            node = waiting.popleft()
            until[node] = time.monotonic() + timeout
            work = partial(_answer, agents, node, pages[node], timeout, answers)
            threading.Thread(target=work, name=f"ask-{node}", daemon=True).start()
        try:
            answer = answers.get(timeout=max(0.0, min(until.values()) - time.monotonic()))
        except queue.Empty:
            late = min(until, key=lambda node: until[node])
            answer = Answer(node=late, error=f"it did not answer within {timeout:g} s")
        if until.pop(answer.node, None) is None:
            continue  # it came after its time
        done += 1
        yield answer
        if told is not None and time.monotonic() - began > _PATIENCE:
            told(done, len(pages))


def ask_nodes(
    agents: Agents, page: str = STATUS, nodes: Iterable[str] | None = None, *, timeout: float = 10.0
) -> dict[str, Answer]:
    """Return every Node's answer to one page, in the order of their names; progress goes to stderr."""
    names = agents.nodes() if nodes is None else tuple(nodes)
    answers = ask_all(agents, dict.fromkeys(names, page), timeout=timeout, told=_tell)
    return dict(sorted((answer.node, answer) for answer in answers))


def read_statuses(answers: Mapping[str, Answer]) -> tuple[dict[str, Status], dict[str, str]]:
    """Return the pages /status by Node, and why there is none of the others."""
    statuses, errors = {}, {}
    for node, answer in answers.items():
        try:
            if answer.page is None:
                raise McagentError(answer.error)
            statuses[node] = from_json(Status, answer.page, f"the agent of {node}")
        except McagentError as error:
            errors[node] = str(error)
    return statuses, errors


def ask_node(agents: Agents, node: str, page: str = STATUS, *, timeout: float = 10.0) -> Mapping[str, Any]:
    """Return a page of one Node's agent. Raises McagentError."""
    (answer,) = ask_all(agents, {node: page}, timeout=timeout)
    if answer.page is None:
        raise McagentError(f"Node {node}: {answer.error}")
    return answer.page


def _answer(agents: Agents, node: str, page: str, timeout: float, answers: queue.SimpleQueue[Answer]) -> None:
    def work() -> Answer:
        try:
            return Answer(node=node, page=agents.ask(node, page, timeout))
        except McagentError as error:
            return Answer(node=node, error=str(error))

    answer, bug = attempt(work)
    answers.put(answer or Answer(node=node, error=f"bug while asking: {bug!r}"))


def _tell(done: int, of: int) -> None:
    print(f"{done} of {of} agents have answered", file=sys.stderr, flush=True)


# --- the ways ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LocalAgent:
    """The agent of this Node alone."""

    settings: Settings

    def nodes(self, timeout: float = TIMEOUT) -> tuple[str, ...]:
        """Return this Node's name."""
        status = from_json(Status, ask_agent(self.settings, timeout=timeout), "the agent")
        if not status.node:
            raise McagentError("what answers as the agent of this Node does not name a Node")
        return (status.node,)

    def ask(self, node: str, page: str, timeout: float) -> Mapping[str, Any]:
        """Return a page."""
        if (node,) != self.nodes(timeout):
            raise McagentError("ask it through the API server: give a kubeconfig (--kubeconfig)")
        return ask_agent(self.settings, page, timeout)


@dataclass(frozen=True, slots=True)
class StaticAgents:
    """Agents at addresses: `unix:/PATH` of a socket, or `HOST:PORT` in clear text."""

    addresses: Mapping[str, str]

    def nodes(self) -> tuple[str, ...]:
        """Return the Nodes of the list."""
        return tuple(sorted(self.addresses))

    def ask(self, node: str, page: str, timeout: float) -> Mapping[str, Any]:
        """Return a page."""
        address = self.addresses.get(node)
        if address is None:
            raise McagentError("it is not in the list of agents")
        if address.startswith("unix:"):
            return ask_socket(Path(address.removeprefix("unix:")), page, timeout)
        host, _, port = address.rpartition(":")
        return ask(host.strip("[]"), int(port), page, timeout)


def read_list(file: Path) -> StaticAgents:
    """Return the agents that a YAML file lists, Node by Node. Raises InputError, OSError."""
    import yaml

    try:
        addresses = yaml.safe_load(file.read_text())
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(str(file), "", f"cannot be read: {error}") from None
    if not isinstance(addresses, dict) or not addresses:
        raise InputError(str(file), "", "must have a line NODE: ADDRESS for each agent")
    for node, address in addresses.items():
        valid = isinstance(address, str) and (
            address.startswith("unix:/") or address.rpartition(":")[2].isdecimal()
        )
        if not isinstance(node, str) or not valid:
            raise InputError(str(file), str(node), "must be unix:/PATH/status.sock or HOST:PORT")
    return StaticAgents(addresses)


@dataclass(slots=True, kw_only=True)
class ClusterAgents:
    """The agents of a cluster: by a command in the agent's Pod; where that cannot be, by HTTPS.

    `context`: how the certificates of agents are verified; None: HTTPS is not used.
    """

    client: Client
    context: ssl.SSLContext | None = None
    port: int = PORT
    _pods: dict[str, tuple[str, str]] = field(default_factory=dict)  # namespace and name by Node
    _addresses: dict[str, str] = field(default_factory=dict)  # by Node

    def nodes(self) -> tuple[str, ...]:
        """Return all Nodes of the cluster, with an agent's Pod or without. Raises SourceError."""
        from mcagent.kube.sources.lister import Lister
        from mcagent.model.api.kubernetes import ApiNode, ApiPod
        from mcagent.model.parsing.decode import read_as

        selectors = {"labelSelector": SELECTOR}
        pods, _ = Lister(self.client, Kind.POD, "/api/v1/pods", selectors, keep=partial(read_as, ApiPod)).read()
        nodes, _ = Lister(self.client, Kind.NODE, "/api/v1/nodes", keep=partial(read_as, ApiNode)).read()
        self._pods = {
            pod.spec.node_name: (pod.namespace, pod.name)
            for pod in pods
            if pod.spec.node_name and pod.status.phase == "Running" and not pod.is_deleting
        }
        self._addresses = {
            node.name: next((item.address for item in node.status.addresses if item.type == "InternalIP"), "")
            for node in nodes
        }
        return tuple(sorted({*self._pods, *self._addresses}))

    def ask(self, node: str, page: str, timeout: float) -> Mapping[str, Any]:
        """Return a page."""
        if not self._addresses:
            self.nodes()
        if node not in self._pods:
            return self._by_https(node, page, timeout, _NO_POD)
        try:
            return self._by_exec(node, page, timeout)
        except McagentError as error:
            if getattr(error, "code", 0) != 403:
                raise
            return self._by_https(node, page, timeout, str(error))

    def run(self, node: str, command: Sequence[str], timeout: float) -> Executed:
        """Run a command in the Pod of a Node's agent. Raises McagentError."""
        from mcagent.kube.execute import execute

        if node not in self._pods:
            raise McagentError(f"Node {node}: {_NO_POD}")
        namespace, pod = self._pods[node]
        return execute(
            self.client,
            namespace=namespace,
            pod=pod,
            container=_CONTAINER,
            command=command,
            timeout=timeout,
            most=MAX_ANSWER,
        )

    def _by_exec(self, node: str, page: str, timeout: float) -> Mapping[str, Any]:
        namespace, pod = self._pods[node]
        done = self.run(node, [*_COMMAND, page], timeout)
        if done.code:
            raise McagentError(f"in Pod {namespace}/{pod}: {done.err.strip() or f'exit code {done.code}'}")
        try:
            return document(done.out, f"Pod {namespace}/{pod}")
        except (ValueError, RecursionError) as error:
            raise McagentError(f"in Pod {namespace}/{pod}: no page: {error}") from None

    def _by_https(self, node: str, page: str, timeout: float, why: str) -> Mapping[str, Any]:
        token = self.client.credentials.token()
        if self.context is None:
            raise McagentError(f"{why}; for HTTPS give --agents-ca, which verifies its certificate")
        if not token:
            raise McagentError(f"{why}; HTTPS needs a bearer token, and the kubeconfig has none")
        if not self._addresses.get(node):
            raise McagentError(f"{why}; and the Node has no InternalIP")
        address = self._addresses[node]
        return ask_tls(address, self.port, page, token=token, context=self.context, timeout=timeout)


# --- flags ------------------------------------------------------------------------------------------------


def add_agent_flags(parser: argparse.ArgumentParser) -> None:
    """Declare how agents of other Nodes are reached. The cluster's own flags are `add_cluster_flags`'."""
    group = parser.add_argument_group(
        "the agents",
        "With a kubeconfig agents are asked by a command in their Pods (pods/exec). Where there is no such Pod, "
        "or that is not allowed: HTTPS to the Node's InternalIP with the kubeconfig's token, if --agents-ca is "
        "given. Without a kubeconfig: the agent of this Node.",
    )
    group.add_argument(
        "--agents", type=Path, metavar="FILE", help="YAML: for each Node unix:/PATH/status.sock or HOST:PORT"
    )
    group.add_argument(
        "--agents-ca",
        metavar="FILE",
        help="CA of the agents' certificates (tlsCertDirectory); `insecure`: do not verify them",
    )
    group.add_argument("--agents-port", type=int, default=PORT, metavar="PORT", help="for HTTPS [%(default)s]")


def agents_of(
    client: Client, *, listed: Path | None = None, authority: str | None = None, port: int = PORT
) -> Agents:
    """Return the agents in a file, or a cluster's. `authority`: of --agents-ca. Raises InputError, OSError."""
    if listed is not None:
        return read_list(listed)
    return ClusterAgents(client=client, context=_context(authority) if authority else None, port=port)


def _context(authority: str) -> ssl.SSLContext:
    if authority == "insecure":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    return ssl.create_default_context(cafile=authority)
