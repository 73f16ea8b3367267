"""Server-side apply, as reconcilers use it: one field manager each, for the object and for its status."""

from __future__ import annotations

from typing import Any

import pytest

from mcagent.kube.errors import ApiRefusalError
from tests.apiservers import Cluster

pytestmark = pytest.mark.apiserver

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


def entries(obj: Any) -> set[tuple[str, str, str]]:
    """Return who is told to own fields: manager, operation, subresource."""
    return {
        (entry["manager"], entry["operation"], entry.get("subresource", ""))
        for entry in obj["metadata"]["managedFields"]
    }


def test_a_conflict_names_manager_and_field(cluster: Cluster) -> None:
    """Another manager's field with another value is 409; with the same value both own it."""
    apply(cluster, "a", "one", {"gatewayIP": "10.0.0.1"})
    words = r'Apply failed with 1 conflict: conflict with "one": \.gatewayIP'
    with pytest.raises(ApiRefusalError, match=words) as told:
        apply(cluster, "a", "two", {"gatewayIP": "10.0.0.2"})
    assert (told.value.code, told.value.reason) == (409, "Conflict")
    shared = apply(cluster, "a", "two", {"gatewayIP": "10.0.0.1"})
    assert entries(shared) == {("one", "Apply", ""), ("two", "Apply", "")}
    left = apply(cluster, "a", "one", {})
    assert left["gatewayIP"] == "10.0.0.1"  # the other one still wants it
    assert "gatewayIP" not in apply(cluster, "a", "two", {})


def test_an_update_takes_fields_over(cluster: Cluster) -> None:
    """A patch owns what it changes, as an Update of its manager: a later apply conflicts, or forces."""
    apply(cluster, "a", "one", {"gatewayIP": "10.0.0.1", "internalIP": "10.0.0.1"})
    changed = cluster.patch(f"{cluster.gateways}/a", {"gatewayIP": "10.0.0.2"}, fieldManager="hand")
    assert entries(changed) == {("one", "Apply", ""), ("hand", "Update", "")}
    with pytest.raises(ApiRefusalError, match='conflict with "hand"'):
        apply(cluster, "a", "one", {"gatewayIP": "10.0.0.1", "internalIP": "10.0.0.1"})
    forced = apply(cluster, "a", "one", {"gatewayIP": "10.0.0.1", "internalIP": "10.0.0.1"}, force="true")
    assert forced["gatewayIP"] == "10.0.0.1"
    assert entries(forced) == {("one", "Apply", "")}


def test_status_has_owners_of_its_own(cluster: Cluster) -> None:
    """Applies to object and status by one manager do not undo each other."""
    ready = [{"type": "Ready", "status": "True"}]
    apply(cluster, "a", "one", {"gatewayIP": "10.0.0.1", "status": {"conditions": []}})
    told = apply(cluster, "a", "one", {"status": {"conditions": ready}}, part="/status")
    assert (told["gatewayIP"], told["status"]) == ("10.0.0.1", {"conditions": ready})
    assert entries(told) == {("one", "Apply", ""), ("one", "Apply", "status")}
    again = apply(cluster, "a", "one", {"gatewayIP": "10.0.0.2"})
    assert (again["gatewayIP"], again["status"]) == ("10.0.0.2", {"conditions": ready})


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
        told = cluster.patch(f"{path}/status", body, "apply", fieldManager=manager)
        return sorted(condition["type"] for condition in told["status"]["conditions"])

    assert tell("Valid", "one", "Exported") == ["Exported", "Valid"]
    assert tell("Conflict", "two") == ["Conflict", "Exported", "Valid"]
    assert tell("Valid", "one") == ["Conflict", "Valid"]


def test_finalizers_are_a_set(cluster: Cluster) -> None:
    """Each manager has its own finalizers, and takes away only those."""
    apply(cluster, "a", "one", {"metadata": {"finalizers": ["example.org/one"]}})
    both = apply(cluster, "a", "two", {"metadata": {"finalizers": ["example.org/two"]}})
    assert sorted(both["metadata"]["finalizers"]) == ["example.org/one", "example.org/two"]
    left = apply(cluster, "a", "one", {})
    assert left["metadata"]["finalizers"] == ["example.org/two"]
    apply(cluster, "a", "two", {})


def test_labels_are_owned_one_by_one(cluster: Cluster) -> None:
    """Labels and annotations of others stay when a manager drops its own."""
    apply(cluster, "a", "one", {"metadata": {"labels": {"a": "1", "b": "1"}, "annotations": {"x": "1"}}})
    cluster.patch(f"{cluster.gateways}/a", {"metadata": {"labels": {"c": "1"}}})
    left = apply(cluster, "a", "one", {"metadata": {"labels": {"b": "2"}}})
    assert left["metadata"]["labels"] == {"b": "2", "c": "1"}
    assert "annotations" not in left["metadata"]


def test_ports_of_a_service_are_merged(cluster: Cluster) -> None:
    """Ports are a map by number and protocol; what the server allocated stays."""
    path = cluster.path("services", "web")
    head = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}

    def put(manager: str, *ports: dict[str, Any]) -> Any:
        return cluster.patch(path, head | {"spec": {"ports": list(ports)}}, "apply", fieldManager=manager)

    first = put("one", {"port": 80, "name": "http", "protocol": "TCP"})
    both = put("two", {"port": 443, "name": "https", "protocol": "TCP"})
    assert sorted(port["port"] for port in both["spec"]["ports"]) == [80, 443]
    moved = put("one", {"port": 81, "name": "http", "protocol": "TCP"})
    assert sorted(port["port"] for port in moved["spec"]["ports"]) == [81, 443]
    assert moved["spec"]["clusterIP"] == first["spec"]["clusterIP"]


def test_an_apply_of_the_same_makes_no_version(cluster: Cluster) -> None:
    """Applying what is there keeps the version, so that watches stay quiet."""
    first = apply(cluster, "a", "one", {"gatewayIP": "10.0.0.1", "metadata": {"labels": {"a": "1"}}})
    same = apply(cluster, "a", "one", {"gatewayIP": "10.0.0.1", "metadata": {"labels": {"a": "1"}}})
    assert same["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_an_apply_may_name_a_version(cluster: Cluster) -> None:
    """With a resourceVersion an apply is bound to it."""
    made = apply(cluster, "a", "one", {"gatewayIP": "10.0.0.1"})
    version = {"resourceVersion": made["metadata"]["resourceVersion"]}
    apply(cluster, "a", "one", {"gatewayIP": "10.0.0.2", "metadata": dict(version)})
    with pytest.raises(ApiRefusalError, match="the object has been modified") as told:
        apply(cluster, "a", "one", {"gatewayIP": "10.0.0.3", "metadata": dict(version)})
    assert told.value.code == 409


def test_an_apply_needs_a_manager(cluster: Cluster) -> None:
    """Without fieldManager an apply is refused."""
    with pytest.raises(ApiRefusalError, match="fieldManager: Required value: is required for apply patch") as told:
        cluster.patch(f"{cluster.gateways}/a", {**GATEWAY, "metadata": {"name": "a"}}, "apply")
    assert told.value.code == 422
