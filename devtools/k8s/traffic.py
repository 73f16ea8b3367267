"""What clients in Pods ask of Services: single answers, and connections and datagrams while something happens.

Owns the conversation with program `web` of the test image, through `kubectl exec`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from devtools.errors import LabError
from devtools.k8s.lab import K8sLab
from devtools.lab.topology import Cluster

TIMEOUT = 60.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What a client counted; `longest`: seconds without an answer to something asked."""

    answers: Mapping[str, int] = field(default_factory=dict)  # by Pod
    sources: Mapping[str, int] = field(default_factory=dict)  # the client's address, as the Pod saw it
    errors: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0
    sent: int = 0  # datagrams
    returned: int = 0
    longest: float = 0.0

    @property
    def answered(self) -> int:
        """How many answers there were."""
        return sum(self.answers.values())

    @property
    def broken(self) -> int:
        """How many connections, or single questions, ended in an error."""
        return sum(self.errors.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A Pod that asks."""

    lab: K8sLab
    cluster: Cluster
    pod: str
    node: str

    def ask(self, count: int, url: str) -> Counted:
        """Ask so many times, each by a connection of its own. Raises LabError when the Pod cannot be used."""
        return self._run("ask", str(count), url)

    def fetch(self, url: str) -> Counted:
        """Fetch one answer. Raises LabError when the Pod cannot be used."""
        return self._run("fetch", url)

    @contextmanager
    def holding(self, count: int, url: str) -> Iterator[Flow]:
        """Keep so many connections busy for as long as the block runs."""
        with self._flow("hold", str(count), url) as flow:
            yield flow

    @contextmanager
    def sending(self, rate: int, address: str) -> Iterator[Flow]:
        """Send so many datagrams a second for as long as the block runs."""
        with self._flow("send", str(rate), address) as flow:
            yield flow

    def _run(self, *arguments: str) -> Counted:
        output = self.lab.kubectl(self.cluster, "exec", self.pod, "--", "/web", *arguments, timeout=TIMEOUT)
        return Counted(**json.loads(output))

    @contextmanager
    def _flow(self, *arguments: str) -> Iterator[Flow]:
        command = self.lab.kubectl_command(self.cluster, "exec", "-i", self.pod, "--", "/web", *arguments)
        pipe: Any = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise LabError(f"{' '.join(arguments)} in {self.pod}: {process.communicate(timeout=TIMEOUT)[1]}")
            flow = Flow()
            yield flow
            output, errors = process.communicate(timeout=TIMEOUT)  # ends its standard input
            try:
                flow.counted = Counted(**json.loads(output))
            except ValueError:
                raise LabError(f"{' '.join(arguments)} in {self.pod} ended: {errors or output}") from None


class Flow:
    """What runs while a block does; `counted` is known after it."""

    counted = Counted()


def clients(lab: K8sLab, cluster: Cluster, app: str = "client") -> list[Client]:
    """Return the Pods of a name in a cluster, by Node."""
    items = json.loads(lab.kubectl(cluster, "get", "pods", "-l", f"app={app}", "-o", "json"))["items"]
    pods = [
        Client(lab=lab, cluster=cluster, pod=pod["metadata"]["name"], node=pod["spec"]["nodeName"])
        for pod in items
        if "deletionTimestamp" not in pod["metadata"]
    ]
    return sorted(pods, key=lambda one: one.node)
