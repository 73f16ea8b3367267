"""The CRDs of the chart, read once in each process, for API servers of tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from mcagent.kube.client import Client
from mcagent.kube.sources.manifests import FastLoader
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind

_FILES = Path(__file__).parents[2] / "deploy/helm/mcagent/files/crds"


@cache
def crds() -> tuple[dict[str, Any], ...]:
    """Return the CRDs. They must not be changed."""
    return tuple(yaml.load(file.read_text(), FastLoader) for file in sorted(_FILES.glob("*.yaml")))


def create_crds(client: Client) -> None:
    """Create the CRDs."""
    for crd in crds():
        client.request("POST", object_path(Kind.CUSTOM_RESOURCE_DEFINITION, ""), body=crd)
