"""The Pods of a measurement: what they are, how one becomes ready, what it says at its end, that none is left.

A Pod ends by itself when its time is over (`activeDeadlineSeconds`), whatever becomes of who made it, and has no
token of the API. It leaves what it measured as its termination message, so that no user needs `pods/exec`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any

from flows.pipeline.prefixes import address_in_bridge
from mcagent.cli.benchmarking.ends import preferred
from mcagent.cli.common.agents import SELECTOR
from mcagent.core.local_cluster.prefixes import prefixes_by_objects
from mcagent.core.snapshot import apply_changes
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.sources.once import relist
from mcagent.model.errors import McagentError, SourceError
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.parsing.field import printable

LABEL = "app.kubernetes.io/name=mcagent-benchmark"
READY = 60.0  # seconds until a Pod runs
_LOOK = 0.3
_UNPRIVILEGED = 65534
_SHOWN = 300  # characters of what a Pod says
_GONE = 404
_NO_GATEWAYS = (403, 404)  # no right to list them, or no such kind: then the Pod's own address is used
_MESSAGE_FILE = "/dev/termination-log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A Pod that runs: its name, its Node and its address."""

    name: str
    node: str
    address: str


@dataclass(slots=True, kw_only=True)
class Pods:
    """The Pods of one measurement in one cluster. `image` "": the agent's."""

    client: Client
    cluster: str
    namespace: str
    token: str
    run: str  # in the names of its Pods
    life: int  # seconds
    image: str = ""
    made: list[str] = field(default_factory=list)
    earlier: Sequence[str] = ()
    secrets: Sequence[Mapping[str, str]] = ()

    def prepare(self) -> None:
        """Find out the image, and the Pods of an earlier measurement; change nothing. Raises McagentError."""
        earlier_pods = self._list(LABEL)
        if any((pod.get("status") or {}).get("phase") in {"Pending", "Running"} for pod in earlier_pods):
            raise McagentError(
                f"{self.cluster}: a benchmark already runs in namespace {self.namespace}: "
                f"wait for it, or kubectl delete pod -n {self.namespace} -l {LABEL}"
            )
        self.earlier = [pod["metadata"]["name"] for pod in earlier_pods]
        if self.image:
            return
        for pod in self._list(SELECTOR):
            spec = pod["spec"]
            self.image = next((c["image"] for c in spec["containers"] if c["name"] == "agent"), "")
            self.secrets = spec.get("imagePullSecrets") or ()
            if self.image:
                return
        raise McagentError(
            f"{self.cluster}: no agent Pod in {self.namespace}: give its --namespace, or an --image"
        )

    def remove_earlier(self) -> None:
        """Delete the Pods of an earlier measurement. Raises SourceError."""
        for name in self.earlier:
            self._delete(name)

    def start(self, what: str, arguments: Sequence[str], *, node: str = "", host: bool = False) -> str:
        """Create a Pod that runs `mcagent benchmark` with these arguments; return its name. Raises SourceError."""
        body = self._pod(what, arguments, node, host)
        name = str(body["metadata"]["name"])
        self.made.append(name)  # before: who is interrupted meanwhile does not know whether it is there
        self.client.request("POST", object_path(Kind.POD, self.namespace), body=body)
        return name

    def wait_running(self, name: str) -> Running:
        """Return a Pod once it runs and has an address. Raises McagentError with what keeps it."""
        end = time.monotonic() + READY
        while True:
            pod = self._get(name)
            status = pod.get("status") or {}
            if status.get("phase") in {"Failed", "Succeeded"}:
                raise McagentError(f"{self.cluster}: Pod {name} has ended: {_last_words(pod)}")
            node = (pod.get("spec") or {}).get("nodeName")
            addresses = [item["ip"] for item in status.get("podIPs") or ()]
            if status.get("phase") == "Running" and node and addresses:
                return Running(name=name, node=node, address=preferred(addresses))
            if time.monotonic() >= end:
                raise McagentError(f"{self.cluster}: Pod {name} not running after {READY:g} s: {_obstacle(pod)}")
            time.sleep(_LOOK)

    def in_other_clusters(self, pod: Running) -> Running:
        """Return a Pod with the address by which other clusters reach it. Raises SourceError."""
        try:
            snapshot = apply_changes(Snapshot(), [relist(self.client, Kind.GATEWAY, "")])
        except ApiRefusalError as error:
            if error.code not in _NO_GATEWAYS:
                raise
            return pod
        prefixes = prefixes_by_objects(snapshot.gateways.values())
        return replace(pod, address=str(address_in_bridge(ip_address(pod.address), prefixes)))

    def wait_result(self, name: str, seconds: float) -> tuple[str, Mapping[str, Any]]:
        """Return a Pod's Node, and what it measured, once it has ended. Raises McagentError."""
        end = time.monotonic() + READY + seconds
        while True:
            pod = self._get(name)
            phase = (pod.get("status") or {}).get("phase")
            words = _last_words(pod)
            if phase == "Succeeded":
                with suppress(ValueError):
                    result = json.loads(words)
                    if isinstance(result, dict):
                        return str(pod["spec"].get("nodeName", "")), result
            if phase in {"Failed", "Succeeded"}:
                raise McagentError(printable(words, _SHOWN) or "the Pod ended without output")
            if time.monotonic() >= end:
                raise McagentError(f"{self.cluster}: Pod {name} did not end in time: {_obstacle(pod)}")
            time.sleep(_LOOK)

    def remove(self) -> list[str]:
        """Delete all Pods that were made; return what could not be, and why."""
        errors = []
        for name in self.made:
            try:
                self._delete(name)
            except SourceError as error:
                errors.append(f"{self.cluster}: Pod {self.namespace}/{name}: {error}")
        self.made.clear()
        return errors

    def _list(self, selector: str) -> list[dict[str, Any]]:
        path = object_path(Kind.POD, self.namespace)
        return self.client.request("GET", path, {"labelSelector": selector, "limit": "500"}).get("items") or []

    def _get(self, name: str) -> dict[str, Any]:
        pod: dict[str, Any] = self.client.request("GET", object_path(Kind.POD, self.namespace, name))
        return pod

    def _delete(self, name: str) -> None:
        try:
            self.client.request("DELETE", object_path(Kind.POD, self.namespace, name), {"gracePeriodSeconds": "0"})
        except ApiRefusalError as error:
            if error.code != _GONE:
                raise

    def _pod(self, what: str, arguments: Sequence[str], node: str, host: bool) -> dict[str, Any]:
        key, value = LABEL.split("=")
        addresses = {"name": "POD_IPS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIPs"}}}
        container = {
            "name": "benchmark",
            "image": self.image,
            "args": ["benchmark", *arguments],
            "env": [addresses, {"name": "MCAGENT_BENCHMARK_TOKEN", "value": self.token}],
            "terminationMessagePath": _MESSAGE_FILE,
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        }
        spec: dict[str, Any] = {
            "containers": [container],
            "restartPolicy": "Never",
            "activeDeadlineSeconds": self.life,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "hostNetwork": host,
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _UNPRIVILEGED,
                "runAsGroup": _UNPRIVILEGED,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }
        if node:
            spec["nodeName"] = node
        if self.secrets:
            spec["imagePullSecrets"] = list(self.secrets)
        metadata = {"name": f"mcagent-benchmark-{what}-{self.run}", "labels": {key: value}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _last_words(pod: Mapping[str, Any]) -> str:
    """Return what a Pod's container left at its end, else why the Pod failed."""
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("message"):
            return str(ended["message"])
    return " ".join(str(status[key]) for key in ("reason", "message") if status.get(key))


def _obstacle(pod: Mapping[str, Any]) -> str:
    """Return what keeps a Pod from running."""
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            return printable(f"{waiting['reason']} {waiting.get('message', '')}".strip(), _SHOWN)
    for condition in status.get("conditions") or ():
        if condition.get("status") == "False" and condition.get("message"):
            return printable(str(condition["message"]), _SHOWN)
    return str(status.get("phase", "no kubelet started it"))
