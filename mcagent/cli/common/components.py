"""The Pods of mcagent in a cluster, and the versions that they report.

A Pod is asked by `mcagent version` in its container (`pods/exec`), because an image's tag is a name, and not the
version that runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcagent.api.versions import ComponentVersion
from mcagent.cli.common.agents import ask_all
from mcagent.model.errors import McagentError

if TYPE_CHECKING:
    from mcagent.kube.client import Client

_SELECTOR = "app.kubernetes.io/name=mcagent"
_LABEL = "app.kubernetes.io/component"
_CONTAINERS = {"agent": "agent", "openvswitch": "openvswitch", "leader": "controller", "member": "controller"}
_MOST = 4096  # characters of an answer


@dataclass(slots=True)
class Components:
    """The running Pods of agents, controllers and Open vSwitch; a Pod's name here is NAMESPACE/NAME."""

    client: Client
    pods: dict[str, ComponentVersion] = field(default_factory=dict)

    def nodes(self) -> tuple[str, ...]:
        """Return the names of the Pods. Raises SourceError."""
        self.pods = {}
        answer = self.client.request("GET", "/api/v1/pods", {"labelSelector": _SELECTOR, "limit": "20000"})
        for pod in answer.get("items") or ():
            meta, spec = pod["metadata"], pod.get("spec", {})
            component = (meta.get("labels") or {}).get(_LABEL, "")
            images = {item["name"]: item["image"] for item in spec.get("containers") or ()}
            image = images.get(_CONTAINERS.get(component, ""))
            if image is not None and pod.get("status", {}).get("phase") == "Running":
                self.pods[f"{meta['namespace']}/{meta['name']}"] = ComponentVersion(
                    component=component,
                    namespace=meta["namespace"],
                    pod=meta["name"],
                    node=spec.get("nodeName", ""),
                    image=image,
                )
        return tuple(self.pods)

    def ask(self, node: str, page: str, timeout: float) -> Mapping[str, Any]:  # noqa: ARG002  (there is one page)
        """Return the version that a Pod reports."""
        from mcagent.kube.execute import execute

        pod = self.pods[node]
        done = execute(
            self.client,
            namespace=pod.namespace,
            pod=pod.pod,
            container=_CONTAINERS[pod.component],
            command=["mcagent", "version"],
            timeout=timeout,
            most=_MOST,
        )
        name, _, number = done.out.strip().partition(" ")
        if done.code or name != "mcagent" or not number:
            raise McagentError(f"no version: {(done.err or done.out).strip() or f'exit code {done.code}'}")
        return {"version": number}


def versions(components: Components, timeout: float) -> tuple[ComponentVersion, ...]:
    """Return the Pods with their versions, or why these are unknown. Raises SourceError."""
    from msgspec.structs import replace

    names = components.nodes()
    answers = {answer.node: answer for answer in ask_all(components, dict.fromkeys(names, ""), timeout=timeout)}
    return tuple(
        replace(
            components.pods[name], version=(answers[name].page or {}).get("version", ""), error=answers[name].error
        )
        for name in sorted(names)
    )
