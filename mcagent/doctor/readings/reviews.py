"""Access reviews of the API server."""

from __future__ import annotations

from collections.abc import Mapping

from mcagent.kube.client import Client
from mcagent.model.errors import SourceError

_GROUP = "authorization.k8s.io/v1"


def allowed(client: Client, kind: str, spec: Mapping[str, object], timeout: float) -> bool:
    """Tell whether a SelfSubjectAccessReview or SubjectAccessReview is allowed. Raises SourceError."""
    body = {"apiVersion": _GROUP, "kind": kind, "spec": spec}
    answer = client.request("POST", f"/apis/{_GROUP}/{kind.lower()}s", body=body, timeout=timeout)
    status = answer.get("status") if isinstance(answer, dict) else None
    if not isinstance(status, dict):
        raise SourceError(f"{kind}: the answer has no status")
    return status.get("allowed") is True
