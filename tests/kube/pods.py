"""Pods of a cluster without kubelets: what a scheduler and a kubelet would say of them is written by the test.

Owns the Pods' Nodes and status, and their end. No container runs: a Pod is what its status says.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from datetime import UTC, datetime
from ipaddress import IPv4Network
from typing import Any

from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError, ApiUnreachableError
from mcagent.kube.stream import Stream

_CONDITIONS = ("PodScheduled", "Initialized", "ContainersReady", "Ready")


class Pods:
    """Lets every Pod of a cluster run on one Node, ready at once, with an address of `cidr`."""

    def __init__(self, client: Client, node: str, host: str, cidr: IPv4Network) -> None:
        """`host`: the Node's address."""
        self._client, self._node, self._host = client, node, host
        self._addresses = cidr.hosts()
        self._stream: Stream | None = None
        self._thread = threading.Thread(target=self._run, name=f"pods of {node}")

    def __enter__(self) -> Pods:
        # Without a resourceVersion a watch begins with all that are there.
        query = {"watch": "true", "timeoutSeconds": "3600"}
        self._stream = self._client.watch("/api/v1/pods", query, inactivity=3600.0)
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        assert self._stream is not None
        self._stream.abort()
        self._thread.join(10)

    def _run(self) -> None:
        assert self._stream is not None
        with suppress(ApiUnreachableError), self._stream as stream:  # how an aborted one ends
            for line in stream.lines():
                event = json.loads(line)
                if event["type"] in ("ADDED", "MODIFIED"):
                    self._follow(event["object"])

    def _follow(self, pod: Any) -> None:
        """Do what is next for a Pod; its answer comes as another event."""
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        try:
            if meta.get("deletionTimestamp"):
                self._client.request("DELETE", path, body={"gracePeriodSeconds": 0})
            elif not pod["spec"].get("nodeName"):
                target = {"apiVersion": "v1", "kind": "Node", "name": self._node}
                body = {
                    "apiVersion": "v1",
                    "kind": "Binding",
                    "metadata": {"name": meta["name"]},
                    "target": target,
                }
                self._client.request("POST", f"{path}/binding", body=body)
            elif pod["status"].get("phase") != "Running":
                kind = "application/merge-patch+json"
                body = {"status": self._running()}
                self._client.request("PATCH", f"{path}/status", body=body, content_type=kind)
        except ApiRefusalError as err:
            if err.code not in (404, 409):  # it is gone, or somebody was faster: the next event says which
                raise

    def _running(self) -> dict[str, Any]:
        now, address = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), str(next(self._addresses))
        return {
            "phase": "Running",
            "startTime": now,
            "hostIP": self._host,
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": name, "status": "True", "lastTransitionTime": now} for name in _CONDITIONS],
        }
