"""An embedded Kubernetes API server, in memory: real HTTP, real watches, optimistic locking, for lab and tests.

    with ApiServer() as api:
        client = ...(api.url)

It has what mcagent's controllers, agents and tests of their faults need: lists, watches with bookmarks, timeouts
and 410, selectors, pages, JSON merge patches, resourceVersion, uid, generation, conflicts, finalizers, namespaces,
the status subresource, discovery, validating webhooks, ClusterIPs, tokens of ServiceAccounts, faults on demand.
`tests/kube` holds it against a real server. Everything else is left to that one (`devtools.realapi`): rights
(every user may do everything here), TokenReview, schemas and other checks of objects, field ownership (an apply
merges, or creates), other patch formats, CEL, mutating webhooks, garbage collection.
"""

from __future__ import annotations

from devtools.apiserver.faults import GARBAGE, Fault, FaultKind
from devtools.apiserver.server import ApiServer

__all__ = ["GARBAGE", "ApiServer", "Fault", "FaultKind"]
