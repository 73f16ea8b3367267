"""Changes of objects, and gateways of a member, for tests of members."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from mcagent.kube.source import RawObject
from tests.worlds.member_world import (
    HOME,
)


def gateway(name: str = "n1", namespace: str = HOME, **fields: Any) -> RawObject:
    """Return a Gateway."""
    meta = {"name": name, "namespace": namespace}
    return {"kind": "Gateway", "metadata": meta, "gatewayIP": "10.0.0.1", "internalIP": "10.0.0.1", **fields}


def changed(raw: RawObject, **fields: Any) -> RawObject:
    """Return an object with other fields; those of `metadata` are added to its own."""
    new: RawObject = deepcopy(raw)
    for name, value in fields.items():
        new[name] = {**new.get(name, {}), **value} if isinstance(value, dict) else value
    return new


LINK = {"clusterID": "west", "live": 1, "tunnels": 2, "why": "BFD is down"}


def linked(**values: Any) -> RawObject:
    """Return a Gateway with a link to cluster west."""
    return gateway(status={"links": [{**LINK, **values}]})
