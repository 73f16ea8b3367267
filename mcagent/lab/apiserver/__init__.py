"""An embedded Kubernetes API server, in memory: real HTTP, real watches, optimistic locking, for lab and tests.

    with ApiServer() as api:
        client = ...(api.url)

It does what clients rely on: resourceVersion, uid, generation, conflicts, finalizers, watches with bookmarks,
timeouts and 410, selectors, pagination, the status subresource, the four patch formats, discovery. It does not
validate objects against schemas, authorise, admit, allocate ClusterIPs, collect garbage by owner, or serve
Pods' logs and the like.
"""

from __future__ import annotations

from mcagent.lab.apiserver.faults import GARBAGE, Fault, FaultKind
from mcagent.lab.apiserver.server import ApiServer

__all__ = ["GARBAGE", "ApiServer", "Fault", "FaultKind"]
