"""Server-side apply, as `mcagent deploy` uses it, and conditions in our CRDs, on a real API server."""

from __future__ import annotations

from typing import Any

import pytest

from mcagent.kube.errors import ApiRefusalError
from tests.worlds.apiservers import Cluster

pytestmark = pytest.mark.real_only  # in the embedded server fields have no owners

GATEWAY = {"apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "Gateway"}


def apply(cluster: Cluster, name: str, manager: str, body: dict[str, Any], part: str = "", **query: str) -> Any:
    """Apply fields of a Gateway. `part`: a subresource."""
    metadata = {"name": name, **body.pop("metadata", {})}
    return cluster.patch(
        f"{cluster.gateways}/{name}{part}",
        {**GATEWAY, "metadata": metadata, **body},
        "apply",
        fieldManager=manager,
        **query,
    )


def test_server_side_apply(cluster: Cluster) -> None:
    """Apply creates, merges, prunes what its manager gave before, and conflicts with other managers."""

    def apply(manager: str, data: dict[str, str], **query: str) -> Any:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}
        return cluster.patch(f"{cluster.configmaps}/a", body, "apply", fieldManager=manager, **query)

    apply("one", {"x": "1", "y": "1"})
    assert apply("two", {"z": "1"})["data"] == {"x": "1", "y": "1", "z": "1"}
    assert apply("one", {"x": "2"})["data"] == {"x": "2", "z": "1"}
    with pytest.raises(Exception, match="conflict"):
        apply("one", {"x": "2", "z": "9"})
    assert apply("one", {"x": "2", "z": "9"}, force="true")["data"] == {"x": "2", "z": "9"}


def test_an_apply_of_the_same_makes_no_version(cluster: Cluster) -> None:
    """Applying what is there keeps the version, so that watches stay quiet."""
    first = apply(cluster, "a", "one", {"gatewayIP": "10.0.0.1", "metadata": {"labels": {"a": "1"}}})
    same = apply(cluster, "a", "one", {"gatewayIP": "10.0.0.1", "metadata": {"labels": {"a": "1"}}})
    assert same["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_conditions_without_a_list_type_are_one_value(cluster: Cluster) -> None:
    """Antrea's CRDs do not say that conditions are a map: a second manager's conflict with the first one's."""
    apply(cluster, "a", "one", {"gatewayIP": "10.0.0.1"})
    status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    apply(cluster, "a", "one", dict(status), part="/status")
    other = {"status": {"conditions": [{"type": "Other", "status": "True"}]}}
    with pytest.raises(ApiRefusalError, match=r'conflict with "one" with subresource "status": \.status'):
        apply(cluster, "a", "two", dict(other), part="/status")
    forced = apply(cluster, "a", "two", dict(other), part="/status", force="true")
    assert [condition["type"] for condition in forced["status"]["conditions"]] == ["Other"]


def test_conditions_that_are_a_map_are_merged(cluster: Cluster) -> None:
    """ServiceExport says that conditions are a map by type: each manager has its own."""
    group = "multicluster.x-k8s.io"
    path = cluster.path("serviceexports", "web", group=group, version="v1alpha1")
    head = {"apiVersion": f"{group}/v1alpha1", "kind": "ServiceExport", "metadata": {"name": "web"}}
    cluster.patch(path, head, "apply", fieldManager="user")

    def tell(kind: str, manager: str, *kinds: str) -> list[str]:
        conditions = [
            {"type": each, "status": "True", "reason": "r", "message": manager}
            | {"lastTransitionTime": "2026-01-01T00:00:00Z"}
            for each in (kind, *kinds)
        ]
        body = head | {"status": {"conditions": conditions}}
        answer = cluster.patch(f"{path}/status", body, "apply", fieldManager=manager)
        return sorted(condition["type"] for condition in answer["status"]["conditions"])

    assert tell("Valid", "one", "Exported") == ["Exported", "Valid"]
    assert tell("Conflict", "two") == ["Conflict", "Exported", "Valid"]
    assert tell("Valid", "one") == ["Conflict", "Valid"]
