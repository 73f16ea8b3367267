"""An embedded Kubernetes API server, in memory: real HTTP, real watches, optimistic locking, for lab and tests.

    with ApiServer() as api:
        client = ...(api.url)

It does what clients rely on: resourceVersion, uid, generation, conflicts, finalizers, watches with bookmarks,
timeouts and 410, selectors, pagination, the status subresource, the four patch formats, discovery, schemas of
CustomResourceDefinitions; and if asked, tokens of ServiceAccounts, RBAC, validating webhooks, ClusterIPs.
`tests/kube` holds it against a real server. It does not collect garbage by owner, evaluate CEL (schema rules,
admission policies), call mutating webhooks, check who grants which rights, or serve Pods' logs and the like.
"""

from __future__ import annotations

from devtools.apiserver.faults import GARBAGE, Fault, FaultKind
from devtools.apiserver.server import ApiServer

__all__ = ["GARBAGE", "ApiServer", "Fault", "FaultKind"]
