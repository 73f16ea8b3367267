"""Controllers of both projects as processes, in a cluster, with what their manifests install and allow."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import yaml

from devtools.ports import free_port
from devtools.waiting import wait_until
from mcagent.controller.admin import cluster as admin
from mcagent.controller.admin.manifests import Part, Site, objects
from mcagent.controller.admin.migration import Finding, check, read
from mcagent.controller.config import ControllerRole
from mcagent.kube.client import Client
from mcagent.model.objects import Kind
from tests.antrea.clusters import AREA, CRD, NAMESPACE, OURS, Cluster, Json
from tests.antrea.programs import manifests
from tests.worlds.antrea_crds import definition
from tests.worlds.controllers import Controller, controller

_FIRST = ("Namespace", CRD)
_NOT_APPLIED = ("ConfigMap", "Deployment", "PodDisruptionBudget")
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_HOOKS = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")
_POLICIES = ("validatingadmissionpolicybindings", "validatingadmissionpolicies")
# Antrea's own kinds: its members' controllers clean up nothing where they are missing.
_ANTREA = (Kind.CLUSTER_NETWORK_POLICY, Kind.TIER)
_CONSENT: Json = {"replicatedPolicies": {"clusterPolicies": "isolate"}}  # Antrea's members accept all policies
RESYNC = 2  # seconds, of our members: what is written again and again shows soon


class Controllers:
    """The controllers that run in one cluster, by role. `program` unpacks a version of Antrea's, if one is run.

    `settings` are keys that Antrea's configuration has, too, for all of them; `only_ours` of those that are ours.
    """

    def __init__(
        self, cluster: Cluster, program: Callable[[str], Path] | None = None, settings: Json | None = None
    ) -> None:
        self.cluster, self._program = cluster, program
        self._settings: Json = settings or {}
        self.only_ours: Json = {}
        self._running: dict[str, ExitStack] = {}
        self._ports: dict[tuple[str, str], int] = {}  # of webhooks, by whose and role
        self.ours: dict[str, Controller] = {}  # those of ours that have run last, by role

    def install(self, account: str, role: str, *, crds: bool = True, must_answer: bool = True) -> None:
        """Apply what a project ships for a role; its webhooks are asked on a port of this machine.

        Without `must_answer` what they would judge passes while nobody answers (failurePolicy Ignore).
        """
        cluster, port = self.cluster, self._ports.setdefault((account, role), free_port())
        if role == "leader":
            cluster.put(Kind.NAMESPACE, AREA)  # Antrea's guide makes it by hand
        if account == OURS:
            parts = {Part(role), Part.CRDS, Part.ADMISSION_POLICIES}
            shipped = objects(parts, Site(config={Part(role): self._settings | _CONSENT}))
        else:
            shipped = manifests(account, role)
        shipped += [definition(kind) for kind in _ANTREA if role == "member"]
        for manifest in sorted(shipped, key=lambda manifest: manifest["kind"] not in _FIRST):
            if manifest["kind"] in _NOT_APPLIED or (manifest["kind"] == CRD and not crds):
                continue
            if manifest["kind"] == "Service":  # leads to this machine
                manifest["spec"] = {"type": "ExternalName", "externalName": "127.0.0.1"}
            for hook in manifest.get("webhooks") or ():
                hook["clientConfig"] = {"service": {**hook["clientConfig"]["service"], "port": port}}
                if not must_answer:
                    hook["failurePolicy"] = "Ignore"
            manifest.pop("status", None)
            cluster.apply(manifest)

    def remove_hooks(self, *, policies: bool = True) -> None:
        """Remove what would refuse objects without a controller: all webhooks, and policies."""
        for kind in (*_HOOKS, *(_POLICIES if policies else ())):
            base = f"{_ADMISSION}/{kind}"
            for found in self.cluster.client.request("GET", base)["items"]:
                self.cluster.client.request("DELETE", f"{base}/{found['metadata']['name']}")

    def trusted(self) -> bool:
        """Tell whether every webhook has the authority of who answers it."""
        ask = self.cluster.client.request
        hooks = (
            hook
            for kind in _HOOKS
            for item in ask("GET", f"{_ADMISSION}/{kind}")["items"]
            for hook in item.get("webhooks") or ()
        )
        return all(hook["clientConfig"].get("caBundle") for hook in hooks)

    def run(self, who: str, role: str) -> None:
        """Run a controller that is installed, and return when it is ready."""
        cluster, namespace = self.cluster, NAMESPACE[role]
        config = cluster.api.kubeconfig()
        config["users"][0]["user"] = {"token": cluster.token(account(who), namespace)}
        kubeconfig = cluster.directory / f"kubeconfig-{who}-{role}"
        kubeconfig.write_text(json.dumps(config))
        kubeconfig.chmod(0o600)
        settings: Json = ({"podCIDRs": [cluster.pod_cidr]} if role == "member" else {}) | self._settings
        settings |= {"webhook": {"host": "127.0.0.1", "port": self._ports[who, role]}}
        with ExitStack() as stack:
            if who == OURS:
                settings |= {
                    "podNamespace": namespace,
                    "logLevel": "info",
                    "resyncPeriod": RESYNC,
                    **_CONSENT,
                } | self.only_ours
                run = controller(role, kubeconfig, namespace, cluster.directory, **settings)
                self.ours[role] = stack.enter_context(run)
            else:
                settings |= {"serviceCIDR": cluster.service_cidr} if role == "member" else {}
                self._run_theirs(stack, who, role, kubeconfig, settings)
            self._running[role] = stack.pop_all()

    def _run_theirs(self, stack: ExitStack, account: str, role: str, kubeconfig: Path, settings: Json) -> None:
        assert self._program is not None
        health, directory = f"127.0.0.1:{free_port()}", self.cluster.directory
        config = {
            "apiVersion": "multicluster.crd.antrea.io/v1alpha1",
            "kind": "MultiClusterConfig",
            "health": {"healthProbeBindAddress": health},
            "metrics": {"bindAddress": "0"},
            **({"leaderElection": {"leaderElect": False}} if account.startswith("v1.") else {}),
            **settings,
        }
        file, log = directory / f"antrea-{role}.yaml", directory / f"antrea-{role}.log"
        file.write_text(yaml.safe_dump(config))
        # The directory of its certificates is fixed: each has a /run of its own.
        script = 'mount -t tmpfs tmpfs /run && mkdir /run/antrea && exec "$@"'
        argv = ["setpriv", "--pdeathsig", "KILL", "--", "unshare", "-m", "sh", "-c", script, "sh"]
        environ = {"KUBECONFIG": str(kubeconfig), "POD_NAMESPACE": NAMESPACE[role], "POD_NAME": f"mc-{role}"}
        with log.open("ab") as out:
            process = subprocess.Popen(
                [*argv, str(self._program(account)), role, f"--config={file}"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environ},
            )
        stack.callback(_end, process)

        def ready() -> bool:
            assert process.poll() is None, log.read_text()[-3000:]
            try:
                with urllib.request.urlopen(f"http://{health}/readyz", timeout=5) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        wait_until(ready, f"Antrea's {role} to be ready", timeout=60, interval=0.1)

    def end(self, role: str) -> None:
        """End the controller of a role."""
        self._running.pop(role).close()

    def end_all(self) -> None:
        """End all that run."""
        for role in list(self._running):
            self.end(role)


def account(account: str) -> str:
    """Return the ServiceAccount that a project's controllers have."""
    return "mcagent-controller" if account == OURS else "antrea-mc-controller"


def checked(cluster: Cluster, role: str) -> list[Finding]:
    """Return what `mcagent migrate check` says."""
    with closing(Client(str(cluster.kubeconfig), user_agent="tests")) as client:
        return check(ControllerRole(role), read(admin.Cluster(client, print), NAMESPACE[role]))


def _end(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)
