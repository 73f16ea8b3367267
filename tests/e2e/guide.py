"""Commands of README.md, docs/deploy.md, upgrade.md and uninstall.md: all are run as they stand there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from devtools.k8s.demo import MCAGENT, kubeconfig_of_all
from devtools.k8s.lab import ROOT, K8sLab
from devtools.k8s.machine import Machine
from devtools.k8s.programs import require
from devtools.lab.topology import Cluster
from devtools.nodes import netns

PAGES = tuple(ROOT / f"docs/{name}.md" for name in ("deploy", "upgrade", "uninstall"))
_YAML_FENCE = re.compile(r"^```yaml\n.*?^```\n", flags=re.MULTILINE | re.DOTALL)
_CONTINUED = re.compile(r"\s*\\\n\s*")
_COMMENT = re.compile(r"\s+#.*")
_CONTEXT = {"--context", "--kube-context"}

CHART = "mcagent deploy/helm/mcagent -n kube-system"
INSTALL = (  # in the cluster that leads, and in the other one
    f"helm install {CHART} --set agent.config.clusterID=east --set leader.enabled=true",
    f"helm install {CHART} --set agent.config.clusterID=west",
)
UPGRADE = f"helm upgrade {CHART} --reset-then-reuse-values"


def commands(page: str) -> tuple[str, ...]:
    """Return the commands of a page: the lines of its blocks, indented or fenced, without comments."""
    commands: list[str] = []
    fenced = False
    for line in _CONTINUED.sub(" ", _YAML_FENCE.sub("", page)).splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            commands.append(_COMMENT.sub("", line).strip())
    return tuple(filter(None, commands))


def every_command() -> tuple[str, ...]:
    """Return the commands of all pages."""
    return tuple(command for page in PAGES for command in commands(page.read_text(encoding="utf-8")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """Runs commands of the pages beside the API server of a cluster, and keeps which were run."""

    lab: K8sLab
    helm: Path
    known: tuple[str, ...] = field(default_factory=every_command)
    directory: Path = ROOT  # where commands run
    ran: set[str] = field(default_factory=set)

    def run(self, cluster: Cluster, command: str, *more: str, timeout: float = 180.0) -> str:
        """Run a command, with further arguments of this test, and return what it says. Raises LabError."""
        assert command in self.known, f"no page has the command {command!r}"
        program, *arguments = shlex.split(command)
        programs: Mapping[str, Path] = {"mcagent": MCAGENT, "helm": self.helm, "kubectl": require()["kubectl"]}
        contexts = not _CONTEXT.isdisjoint(arguments)
        kubeconfig = kubeconfig_of_all(self.lab) if contexts else self.lab.kubeconfig(cluster)
        argv = [*self.lab.beside(cluster), "env", f"--chdir={self.directory}", f"KUBECONFIG={kubeconfig}"]
        done = netns.run([*argv, str(programs[program]), *arguments, *more], timeout=timeout)
        self.ran.add(command)
        return done.stdout + done.stderr

    def run_on_node(self, machine: Machine, command: str) -> str:
        """Run a command of mcagent on a Node and return what it says. Raises LabError."""
        assert command in self.known, f"no page has the command {command!r}"
        _, *arguments = shlex.split(command)
        self.ran.add(command)
        return machine.run([MCAGENT, *arguments])

    def find(self, beginning: str) -> str:
        """Return the one command of the pages that begins so."""
        (found,) = [command for command in self.known if command.startswith(beginning)]
        return found

    @property
    def left(self) -> Sequence[str]:
        """The commands that were not run yet."""
        return [command for command in self.known if command not in self.ran]
