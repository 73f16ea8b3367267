"""ResourceImports as a member reads them, for tests of members."""

from __future__ import annotations

from mcagent.kube.source import RawObject
from tests.worlds.member_world import AREA


def own_export(*addresses: str, name: str = "web") -> RawObject:
    """Return this cluster's Endpoints export."""
    return {
        "kind": "ResourceExport",
        "metadata": {"name": f"east-shop-{name}-endpoints", "namespace": AREA},
        "spec": {
            "clusterID": "east",
            "namespace": "shop",
            "name": name,
            "kind": "Endpoints",
            "endpoints": {"subsets": [{"addresses": [{"ip": text} for text in addresses]}]},
        },
    }
