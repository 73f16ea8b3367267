"""What a real API server refuses or drops: names, metadata, and what the schemas of our CRDs do not allow."""

from __future__ import annotations

from typing import Any

import pytest

from mcagent.kube.errors import ApiRefusalError
from tests.worlds.apiservers import Cluster

pytestmark = pytest.mark.real_only  # the embedded server checks no objects

MULTICLUSTER = "multicluster.crd.antrea.io"


def clustersets(cluster: Cluster, version: str, name: str = "") -> str:
    """Return the path of the namespace's ClusterSets in a version."""
    return cluster.path("clustersets", name, group=MULTICLUSTER, version=version)


def clusterset(version: str, name: str = "set", **fields: Any) -> dict[str, Any]:
    """Return a ClusterSet."""
    return {
        "apiVersion": f"{MULTICLUSTER}/{version}",
        "kind": "ClusterSet",
        "metadata": {"name": name},
        **fields,
    }


@pytest.mark.parametrize(
    ("plural", "name", "message"),
    [
        ("configmaps", "x" * 254, "metadata.name: Inval"),
        ("configmaps", "-a", "RFC 1123 subdomain"),
        ("configmaps", "a..b", "RFC 1123 subdomain"),
        ("gateways", "A", "RFC 1123 subdomain"),
        ("services", "a.b", "DNS-1035 label"),
        ("services", "0a", "DNS-1035 label"),
        ("services", "x" * 64, "must be no more than 63 characters"),
    ],
)
def test_names_that_cannot_be(cluster: Cluster, plural: str, name: str, message: str) -> None:
    """A name must be a DNS subdomain, that of a Service a label."""
    path = cluster.gateways if plural == "gateways" else cluster.path(plural)
    with pytest.raises(ApiRefusalError, match=message) as caught:
        cluster.create(path, name, **({"spec": {"ports": [{"port": 80}]}} if plural == "services" else {}))
    assert (caught.value.code, caught.value.reason) == (422, "Invalid")


def test_names_at_the_limit(cluster: Cluster) -> None:
    """A custom resource may have a name of 253 characters, a Service one of 63."""
    long = ".".join(["x" * 63] * 3) + "." + "x" * 61
    assert len(long) == 253
    assert cluster.create(cluster.gateways, long)["metadata"]["name"] == long
    cluster.create(cluster.path("services"), "x" * 63, spec={"ports": [{"port": 80}]})


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"labels": {"a b": "x"}}, "metadata.labels"),
        ({"labels": {"a": "x" * 64}}, "metadata.labels"),
        ({"labels": {"a": "x/y"}}, "metadata.labels"),
        ({"labels": {"a/b/c": "x"}}, "metadata.labels"),
        ({"annotations": {"a b": "x"}}, "metadata.annotations"),
        ({"annotations": {"a": "x" * 262_144}}, "metadata.annotations"),
        ({"finalizers": ["no/good/name"]}, "metadata.finalizers"),
        (
            {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x"}]},
            "metadata.ownerReferences",
        ),
    ],
)
def test_metadata_that_cannot_be(cluster: Cluster, metadata: dict[str, Any], field: str) -> None:
    """Labels, annotations, finalizers and owner references have a form, and the refusal names the field."""
    with pytest.raises(ApiRefusalError, match=field) as caught:
        cluster.create(cluster.gateways, "a", metadata=metadata)
    assert caught.value.code == 422


def test_a_bare_finalizer_is_for_custom_resources(cluster: Cluster) -> None:
    """A finalizer without a domain is refused on built-in kinds only."""
    with pytest.raises(ApiRefusalError, match="neither a standard finalizer name nor is it fully qualified"):
        cluster.create(cluster.configmaps, "a", metadata={"finalizers": ["bare"]})
    cluster.create(cluster.gateways, "a", metadata={"finalizers": ["bare"]})
    cluster.patch(f"{cluster.gateways}/a", {"metadata": {"finalizers": None}})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"leaders": [{"clusterID": "a"}]}, "spec.clusterID: Required value"),
        ({"clusterID": "a", "leaders": []}, "spec.leaders in body should have at least 1 items"),
        ({"clusterID": "a", "leaders": [{}, {}]}, "spec.leaders: Too many: 2: must have at most 1 item"),
        ({"clusterID": 7, "leaders": [{}]}, 'spec.clusterID in body must be of type string: "integer"'),
        (
            {"clusterID": "a", "leaders": [{"server": {}}]},
            r"spec.leaders\[0\].server in body must be of type string",
        ),
        ({"clusterID": None, "leaders": [{}]}, "spec.clusterID: Required value|must be of type string"),
    ],
)
def test_a_schema_refuses(cluster: Cluster, spec: dict[str, Any], message: str) -> None:
    """What the CRD's schema does not allow is refused with 422 and the path of the field."""
    with pytest.raises(ApiRefusalError, match=message) as caught:
        cluster.client.request("POST", clustersets(cluster, "v1alpha2"), body=clusterset("v1alpha2", spec=spec))
    assert (caught.value.code, caught.value.reason) == (422, "Invalid")
    assert 'ClusterSet.multicluster.crd.antrea.io "set" is invalid' in str(caught.value)


def test_an_enumeration_refuses(cluster: Cluster) -> None:
    """A value outside an enumeration is refused, and those that are right are told."""
    group = "multicluster.x-k8s.io"
    body = {"apiVersion": f"{group}/v1alpha1", "kind": "ServiceImport", "metadata": {"name": "a"}}
    error = cluster.refused(
        "POST",
        cluster.path("serviceimports", group=group, version="v1alpha1"),
        body | {"spec": {"type": "Other", "ports": []}},
    )
    assert 'spec.type: Unsupported value: "Other": supported values: "ClusterSetIP", "Headless"' in str(error)


def test_unknown_fields_are_dropped_or_refused(cluster: Cluster) -> None:
    """A field that the schema does not have is not stored; with fieldValidation=Strict it is an error."""
    created = cluster.create(cluster.gateways, "a", gatewayIP="10.0.0.1", other={"x": 1})
    assert "other" not in created
    body = {"apiVersion": f"{MULTICLUSTER}/v1alpha1", "kind": "Gateway", "metadata": {"name": "b"}, "other": 1}
    error = cluster.refused("POST", cluster.gateways, body, fieldValidation="Strict")
    assert error.code == 400
    assert 'strict decoding error: unknown field "other"' in str(error)
    patched = cluster.patch(f"{cluster.gateways}/a", {"more": 1, "gatewayIP": "10.0.0.2"})
    assert ("more" in patched, patched["gatewayIP"]) == (False, "10.0.0.2")


def test_a_status_is_held_to_the_schema(cluster: Cluster) -> None:
    """A status that the schema does not allow is refused at the subresource."""
    body = clusterset("v1alpha2", spec={"clusterID": "a", "leaders": [{}]})
    cluster.client.request("POST", clustersets(cluster, "v1alpha2"), body=body)
    path = clustersets(cluster, "v1alpha2", "set") + "/status"
    assert cluster.refused("PATCH", path, {"status": {"totalClusters": "two"}}).code in (415, 422)
    with pytest.raises(ApiRefusalError, match="totalClusters in body must be of type integer"):
        cluster.patch(path, {"status": {"totalClusters": "two"}})
    assert cluster.patch(path, {"status": {"totalClusters": 2}})["status"] == {"totalClusters": 2}


def test_versions_share_an_object(cluster: Cluster) -> None:
    """A ClusterSet of v1alpha1 is read as v1alpha2 without conversion; fields of the old form only are lost."""
    old = clusterset("v1alpha1", spec={"leaders": [{"clusterID": "l"}], "members": [{"clusterID": "m"}]})
    created = cluster.client.request("POST", clustersets(cluster, "v1alpha1"), body=old)
    assert created["spec"] == {"leaders": [{"clusterID": "l"}]}
    for version in ("v1alpha1", "v1alpha2"):
        read = cluster.client.request("GET", clustersets(cluster, version, "set"))
        assert read["apiVersion"] == f"{MULTICLUSTER}/{version}"
        assert read["spec"] == created["spec"]
        assert read["metadata"]["uid"] == created["metadata"]["uid"]


def test_what_was_wrong_before_may_stay_so(cluster: Cluster) -> None:
    """An update need not mend a field that it does not touch, but may not break another (ratcheting)."""
    old = clusterset("v1alpha1", spec={"leaders": [{"clusterID": "l"}]})  # v1alpha2 wants a clusterID
    cluster.client.request("POST", clustersets(cluster, "v1alpha1"), body=old)
    path = clustersets(cluster, "v1alpha2", "set")
    assert cluster.patch(path, {"metadata": {"labels": {"a": "b"}}})["metadata"]["labels"] == {"a": "b"}
    with pytest.raises(ApiRefusalError, match=r"spec\.clusterID: Required value"):
        cluster.patch(path, {"spec": {"namespace": "n"}})
