"""When a controller's engine has nothing left to do, and has seen everything that its API servers have.

`Engine.idle` tells only whether the queues are empty: it does not know of an event that is still on its way to an
informer. Tests that compare objects before and after wait for this instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcagent.controller.contract.names import LABEL_SOURCE_CLUSTER_ID
from mcagent.controller.machinery.engine import Engine
from mcagent.controller.machinery.informers import IN_NAMESPACE
from mcagent.controller.machinery.reconciler import Side
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import TYPES

ListObjects = Callable[[Kind, str], list[dict[str, Any]]]  # a kind and a namespace ("": all): its objects


def settled(engine: Engine, namespace: str, local: ListObjects, leader: ListObjects | None = None) -> bool:
    """Tell whether an engine is idle and its cache has the version of each object that the API servers have.

    `namespace` is that of the engine's ClusterSet. `leader` lists the objects of a member's leader.
    """
    if not engine.idle() or not _has_all(engine, Side.LOCAL, local, namespace):
        return False
    membership = engine.view.leader
    if leader is not None and membership is not None:
        area, cluster_id = membership.namespace, membership.cluster_id
        return _has_all(engine, Side.LEADER, leader, area, cluster_id) and engine.idle()
    return engine.idle()


def _has_all(engine: Engine, side: Side, listed: ListObjects, namespace: str, cluster_id: str = "") -> bool:
    """Compare the versions in the cache with those at the API server. A member reads its own exports only."""
    for kind in engine.cache.kinds(side):
        in_namespace = side is Side.LEADER or kind in IN_NAMESPACE
        versions = {}
        for raw in listed(kind, namespace if in_namespace else ""):
            meta = raw["metadata"]
            is_read = side is Side.LOCAL or kind is not Kind.RESOURCE_EXPORT
            if not is_read and meta.get("labels", {}).get(LABEL_SOURCE_CLUSTER_ID) != cluster_id:
                continue
            versions[meta.get("namespace", ""), meta["name"]] = meta["resourceVersion"]
        cached = {
            (obj.metadata.namespace, obj.metadata.name): obj.metadata.resource_version
            for obj in engine.cache.list(TYPES[kind], side)
        }
        if cached != versions:
            return False
    return True
