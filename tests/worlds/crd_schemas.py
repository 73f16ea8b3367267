"""The schemas of the CRDs of deploy/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from mcagent.kube.sources.manifests import FastLoader

ROOT = Path(__file__).parents[2]
FILES = ROOT / "deploy/helm/mcagent/files/crds"
CRDS = {path.stem: yaml.load(path.read_text(), FastLoader) for path in sorted(FILES.glob("*.yaml"))}


def schema_of(api_version: str, kind: str) -> dict[str, Any]:
    """Return the schema that an object is validated against."""
    group, _, version = api_version.rpartition("/")
    for crd in CRDS.values():
        spec = crd["spec"]
        if spec["group"] == group and spec["names"]["kind"] == kind:
            (crd_version,) = [v for v in spec["versions"] if v["name"] == version]
            schema: dict[str, Any] = crd_version["schema"]["openAPIV3Schema"]
            return schema
    raise AssertionError(f"no CRD for {api_version} {kind}")
