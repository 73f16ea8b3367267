"""Antrea's own kinds, as far as an API server has to know them: any object is taken."""

from __future__ import annotations

from typing import Any

from mcagent.model.kinds import KINDS
from mcagent.model.objects import Kind

ANTREA = (Kind.CLUSTER_NETWORK_POLICY, Kind.ANTREA_NETWORK_POLICY, Kind.TIER)


def definition(kind: Kind) -> dict[str, Any]:
    """Return the CustomResourceDefinition of a kind."""
    info = KINDS[kind]
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    names = {
        "kind": info.name,
        "plural": info.plural,
        "singular": info.name.lower(),
        "listKind": f"{info.name}List",
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{info.plural}.{info.group}"},
        "spec": {
            "group": info.group,
            "scope": "Namespaced" if info.namespaced else "Cluster",
            "names": names,
            "versions": [{"name": info.version, "served": True, "storage": True, "schema": schema}],
        },
    }
