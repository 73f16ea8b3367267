"""The MCS API's conformance suite, unmodified, against mcagent on clusters of real Kubernetes.

Owns the order of things: clusters with the suite's images, mcagent installed with its chart and joined, the suite,
its reports. What is known of the suite itself is `devtools.k8s.mcs_suite`'s.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from devtools.errors import LabError
from devtools.k8s import chart, mcs_suite
from devtools.k8s.demo import Demo
from devtools.k8s.lab import ROOT, STATE, K8sLab, Plan
from devtools.k8s.programs import mcagent_images, require
from devtools.lab.progress import Progress
from devtools.lab.topology import Cluster
from devtools.nodes import netns

REPORTS = ROOT / ".cache/conformance"
PROJECT = "mcagent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be run, and where its reports go. `suite`: arguments for the suite itself."""

    program: Path
    reports: Path = REPORTS
    suite: tuple[str, ...] = ()
    keep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Conformance:
    """A run: `up`, then `run`. The first cluster leads; the suite's contexts c1, c2 are the clusters in order."""

    lab: K8sLab
    helm: Path
    say: Progress

    def up(self) -> None:
        """Make the clusters, install mcagent and join them. Raises LabError."""
        self.lab.up()
        demo = Demo(self.lab, self.say)
        with self.say.step("mcagent: leader, members and agents, with Helm"):
            for cluster in self.lab.topology.clusters:
                self._install(cluster, leads=cluster is self.lab.topology.clusters[0])
            demo.installed()
        with self.say.step("CoreDNS takes up clusterset.local"):
            for cluster in self.lab.topology.clusters:  # which it does by itself, too, but within two minutes
                self.lab.kubectl(cluster, "-n", "kube-system", "rollout", "restart", "deployment/coredns")
                self.lab.rolled_out(cluster, "kube-system", "deployment/coredns")
        demo.join()

    def _install(self, cluster: Cluster, *, leads: bool) -> None:
        command = ["install", "mcagent", "deploy/helm/mcagent", "-n", "kube-system", *chart.values(cluster)]
        values = {"agent.config.clusterID": cluster.name, "leader.enabled": str(leads).lower()}
        values |= {"dns.configureCoreDNS": "true", "dns.coreDNS.version": chart.coredns_version()}
        command += [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
        environment = ["env", f"--chdir={ROOT}", f"KUBECONFIG={self.lab.kubeconfig(cluster)}"]
        netns.run([*self.lab.beside(cluster), *environment, str(self.helm), *command], timeout=180.0)

    def run(self, wanted: Wanted) -> tuple[mcs_suite.Result, ...]:
        """Run the suite, telling of each test as it ends, and return what came of all. Raises LabError."""
        wanted.reports.mkdir(parents=True, exist_ok=True)
        clusters = self.lab.topology.clusters
        configs = {
            f"c{number}": json.loads(self.lab.kubeconfig(cluster).read_text())
            for number, cluster in enumerate(clusters, start=1)
        }
        kubeconfig, results = STATE / "conformance.kubeconfig", STATE / "conformance.json"
        kubeconfig.write_text(json.dumps(mcs_suite.kubeconfig(configs)))
        program = mcs_suite.unpack(wanted.program, STATE)
        command = [*self.lab.beside(clusters[0]), "env", f"--chdir={wanted.reports}", str(program)]
        command += ["--ginkgo.v", "--ginkgo.no-color", f"--ginkgo.json-report={results}", *wanted.suite]
        command += [f"--kubeconfig={kubeconfig}", f"--contexts={','.join(configs)}", f"--project={PROJECT}"]
        command += [f"--version={chart.version()}"]
        results.unlink(missing_ok=True)
        self.say.line(f"the suite runs; what it prints goes to {wanted.reports / 'suite.log'}")
        with (wanted.reports / "suite.log").open("w", encoding="utf-8") as log:
            for outcome in mcs_suite.ended(_lines(command, log)):
                mark = self.say.paint("passed", "32") if outcome.passed else self.say.paint("FAILED", "31")
                self.say.line(
                    f"{outcome.number:3d} of {outcome.count}  {mark}  {outcome.name} ({outcome.seconds:.0f} s)"
                )
        if not results.exists():
            raise LabError(f"the suite ended without results: {wanted.reports / 'suite.log'} says why")
        return mcs_suite.results(results.read_text(encoding="utf-8"))


def check() -> None:
    """Raises LabError when something is missing that a run needs."""
    if os.geteuid():
        raise LabError("it needs root: it makes namespaces, mounts and cgroups")
    require()
    chart.helm()
    mcagent_images()
    mcs_suite.tools()


def run(plan: Plan, wanted: Wanted, say: Progress) -> int:
    """Make clusters, run the suite, and take all away. Returns the exit code; raises LabError."""
    with tempfile.TemporaryDirectory(prefix=f"mcagent-suite.{os.getpid()}.", dir=STATE.parent) as place:
        with say.step(f"images {mcs_suite.HELLO} and {mcs_suite.REQUEST}"):
            image_files = mcs_suite.write_images(Path(place), mcs_suite.tools())
        archives = (*mcagent_images(), *map(str, image_files), *plan.archives)
        conformance = Conformance(lab=K8sLab(replace(plan, archives=archives), say), helm=chart.helm(), say=say)
        conformance.lab.require_free()  # before the block that takes down what this call made
        try:
            conformance.up()
            outcomes = conformance.run(wanted)
        finally:
            if wanted.keep:
                conformance.lab.keep()
            elif STATE.exists():
                conformance.lab.down()
    return told(outcomes, wanted.reports, say)


def again(wanted: Wanted, say: Progress) -> int:
    """Run the suite on the clusters that a run with `keep` left up. Returns the exit code; raises LabError."""
    conformance = Conformance(lab=K8sLab.load(say), helm=chart.helm(), say=say)
    return told(conformance.run(wanted), wanted.reports, say)


def told(found: Sequence[mcs_suite.Result], reports: Path, say: Progress) -> int:
    """Print and write what came of all tests; return the exit code."""
    lines = tuple(mcs_suite.summary(found))
    (reports / "summary.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for line in lines:
        say.line(line)
    say.line(f"reports: {reports}/report.yaml, report.html, suite.log")
    return 0 if found and all(outcome.passed or outcome.state == "skipped" for outcome in found) else 1


def _lines(command: Sequence[str], log: IO[str]) -> Iterator[str]:
    """Run a command, and yield its lines while they are also written to a log."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                log.write(line)
                log.flush()
                yield line
        finally:
            child.terminate()
