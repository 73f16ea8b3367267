"""What was asked of an API server, by its audit log: who wrote what, and how often."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  verbs: [get, list, watch]
- level: Metadata
  resources:
  - group: ""
    resources: [services, endpoints]
  - group: discovery.k8s.io
  - group: multicluster.crd.antrea.io
  - group: multicluster.x-k8s.io
"""


@dataclass(frozen=True, slots=True)
class Write:
    """One write that was carried out. `resource` is the plural, with "/status" if it was that."""

    user: str  # "namespace/name" of a ServiceAccount
    verb: str
    resource: str
    name: str


class AuditLog:
    """The audit log of one API server, in a directory."""

    def __init__(self, directory: Path) -> None:
        self._policy, self._log = directory / "audit-policy.yaml", directory / "audit.log"
        self._policy.write_text(_POLICY)

    @property
    def flags(self) -> tuple[str, ...]:
        """Return what kube-apiserver needs to write it, each line before the answer is sent."""
        return (
            f"--audit-policy-file={self._policy}",
            f"--audit-log-path={self._log}",
            "--audit-log-mode=blocking",
        )

    def mark(self) -> int:
        """Return where the log ends now."""
        return self._log.stat().st_size if self._log.exists() else 0

    def writes(self, since: int = 0) -> list[Write]:
        """Return the writes after a mark."""
        return [_write(event) for event in self._events(since) if event["responseStatus"]["code"] < 300]

    def heard(self, resource: str, since: int = 0) -> list[tuple[str, int]]:
        """Return who tried to write objects of a kind, and how it was answered."""
        return [
            (_write(event).user, int(event["responseStatus"]["code"]))
            for event in self._events(since)
            if event["objectRef"]["resource"] == resource
        ]

    def _events(self, since: int) -> list[Any]:
        with self._log.open("rb") as file:
            file.seek(since)
            return [json.loads(line) for line in file]

    def counted(self, user: str, since: int = 0) -> dict[str, int]:
        """Return how many writes of one account there were after a mark, by verb and resource."""
        writes = (write for write in self.writes(since) if write.user == user)
        return dict(sorted(Counter(f"{write.verb} {write.resource}" for write in writes).items()))


def _write(event: Any) -> Write:
    about = event["objectRef"]
    part = f"/{about['subresource']}" if about.get("subresource") else ""
    user = event["user"].get("username", "").removeprefix("system:serviceaccount:").replace(":", "/")
    return Write(user, event["verb"], about["resource"] + part, about.get("name", ""))
