"""The version of an API server, and the oldest that mcagent supports."""

from __future__ import annotations

import re

from mcagent.kube.client import Client
from mcagent.kube.errors import ApiGarbageError

OLDEST = (1, 30)
"""Of 1.30: ValidatingAdmissionPolicies, and tokens that name the Node of their Pod (KEP-4193)."""

_VERSION = re.compile(r"v?(\d+)\.(\d+)")


def server_version(client: Client, timeout: float = 10.0) -> str:
    """Return the `gitVersion` of an API server, such as "v1.30.2". Raises SourceError."""
    answer = client.request("GET", "/version", timeout=timeout)
    version = answer.get("gitVersion") if isinstance(answer, dict) else None
    if not isinstance(version, str) or _VERSION.match(version) is None:
        raise ApiGarbageError(f"{client.server}: /version has no gitVersion such as v1.30.2")
    return version


def is_supported(version: str) -> bool:
    """Return whether mcagent supports API servers of this `gitVersion`."""
    match = _VERSION.match(version)
    return match is not None and (int(match[1]), int(match[2])) >= OLDEST
