"""What members of Antrea write on their leader, by version (tests/data/antrea)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from mcagent.kube.sources.manifests import FastLoader

_DATA = Path(__file__).parents[1] / "data/antrea"
VERSIONS = ("v1.11", "v1.14.3", "v2.4.0", "v2.7.0")


def written_by(
    version: str, area: str = "antrea-multicluster", cluster_set: str = "blue"
) -> dict[str, dict[str, Any]]:
    """Return the objects of a member "south", by name, in a namespace and of a ClusterSet."""
    objects = {}
    for item in yaml.load_all((_DATA / f"{version}.yaml").read_text(), FastLoader):
        item["metadata"]["namespace"] = area
        if "clusterSetID" in item:
            item["clusterSetID"] = cluster_set
        objects[item["metadata"]["name"]] = item
    return objects
