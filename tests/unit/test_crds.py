"""The CRDs: structural, complete by the contract, and right about good and bad objects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml

from devtools.apiserver.objects.registry import parse_crd
from devtools.apiserver.objects.resources import BUILT_IN
from mcagent.kube.sources.manifests import FastLoader
from mcagent.model.kinds import KINDS
from tests.worlds.crd_schemas import CRDS, ROOT, schema_of

OBJECTS = list(yaml.load_all((ROOT / "tests/data/objects.yaml").read_text(), FastLoader))

# What may stand in a schema here (apiextensions.k8s.io/v1 JSONSchemaProps, the part that is used).
KEYWORDS = {"type", "description", "properties", "additionalProperties", "items", "required", "enum", "format"}
KEPT = "x-kubernetes-preserve-unknown-fields"
KEYWORDS |= {"minItems", "maxItems", "minimum", "minLength", "maxLength"}
KEYWORDS |= {f"x-kubernetes-{word}" for word in ("preserve-unknown-fields", "list-type", "list-map-keys")}

# Columns of the contract (reference: Antrea's CRDs), without Age, which all have.
COLUMNS = {
    "gateways": ["Gateway IP", "Internal IP", "Ready", "Unreached"],
    "clusterinfoimports": ["Cluster ID", "Service CIDR"],
    "clustersets": [
        "Leader Cluster Namespace",
        "Total Clusters",
        "Ready Clusters",
        "Cluster ID",
        "Ready",
        "Reason",
    ],
    "memberclusterannounces": ["Cluster ID", "ClusterSet ID"],
    "resourceexports": ["Cluster ID", "Kind", "Namespace", "Name"],
    "resourceimports": ["Kind", "Namespace", "Name"],
    "labelidentities": ["Label", "ID"],
    "clusterclaims": ["Value"],
    "serviceexports": ["Valid", "Reason", "Conflict"],
    "serviceimports": ["Type", "IP"],
}


def walk(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a schema and all schemas in it, with their paths."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from walk(inner, f"{path}.{name}")
    for word, shown in (("items", "[]"), ("additionalProperties", ".*")):
        if word in schema:
            yield from walk(schema[word], f"{path}{shown}")


def pruned(value: Any, schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the paths that the API server would drop from an object (and so lose)."""
    if schema.get(KEPT) or path == ".metadata":
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            nested = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            if nested is not None:
                yield from pruned(inner, nested, f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(value, list):
        for inner in value:
            yield from pruned(inner, schema["items"], f"{path}[]")


@pytest.mark.parametrize("name", CRDS)
def test_every_definition_is_structural(name: str) -> None:
    """Names fit each other, one version is stored, every schema has a type and only known keywords."""
    crd = CRDS[name]
    assert (crd["apiVersion"], crd["kind"]) == ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    spec = crd["spec"]
    names = spec["names"]
    assert names["plural"] == name
    assert crd["metadata"]["name"] == f"{name}.{spec['group']}"
    assert names["listKind"] == f"{names['kind']}List"
    assert names["singular"] == names["kind"].lower()
    assert sum(version["storage"] for version in spec["versions"]) == 1
    for version in spec["versions"]:
        root = version["schema"]["openAPIV3Schema"]
        assert root["type"] == "object"
        assert ("status" in root["properties"]) == ("subresources" in version)
        for path, schema in walk(root):
            assert schema["type"] in ("object", "array", "string", "integer", "boolean"), path
            assert schema.keys() <= KEYWORDS, path
            assert ("items" in schema) == (schema["type"] == "array"), path
            assert set(schema.get("required", ())) <= schema.get("properties", {}).keys(), path
            has_fields = schema.keys() & {"properties", "additionalProperties", KEPT}
            assert schema["type"] != "object" or has_fields or path == ".metadata", path


@pytest.mark.parametrize("name", CRDS)
def test_printer_columns_are_those_of_the_contract(name: str) -> None:
    """Antrea's columns come first; each path, without filter, leads to a field of the schema or of metadata."""
    for version in CRDS[name]["spec"]["versions"]:
        columns = version["additionalPrinterColumns"]
        older = {"Cluster ID"} if version["name"] == "v1alpha1" and name == "clustersets" else set()
        assert [column["name"] for column in columns] == [*(c for c in COLUMNS[name] if c not in older), "Age"]
        paths = {path for path, _ in walk(version["schema"]["openAPIV3Schema"])}
        for column in columns:
            path = re.sub(r"\[\?\(@\.(type==\"[A-Z][a-z]+\"|live==0)\)\]", "[]", column["jsonPath"])
            assert path in paths | {".metadata.creationTimestamp"}


@pytest.mark.parametrize("obj", OBJECTS, ids=lambda obj: f"{obj['kind']}-{obj['metadata']['name']}")
def test_good_objects_are_valid_and_lose_nothing(obj: dict[str, Any]) -> None:
    """One object of every kind passes its schema, and no field of it would be pruned."""
    schema = schema_of(obj["apiVersion"], obj["kind"])
    jsonschema.validate(obj, schema)
    assert list(pruned(obj, schema)) == []


@pytest.mark.parametrize("name", ["serviceexports", "serviceimports"])
def test_both_versions_of_the_multi_cluster_services_api_are_one(name: str) -> None:
    """What is read by one version is what was written by the other: v1beta1 is stored, nothing is converted."""
    spec = CRDS[name]["spec"]
    old, new = spec["versions"]
    assert [(v["name"], v["served"], v["storage"]) for v in (old, new)] == [
        ("v1alpha1", True, False),
        ("v1beta1", True, True),
    ]
    assert spec["conversion"] == {"strategy": "None"}
    assert {**old, "name": "", "storage": None} == {**new, "name": "", "storage": None}


def test_every_definition_has_an_example() -> None:
    """No CRD goes untested for want of an object."""
    assert {obj["kind"] for obj in OBJECTS} == {crd["spec"]["names"]["kind"] for crd in CRDS.values()}


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("Gateway", {"gatewayIP": 7}),
        ("Gateway", {"wireGuard": "key"}),
        ("ClusterInfoImport", {"spec": {"podCIDRs": "10.0.0.0/8"}}),
        ("ClusterInfoImport", {"spec": {"gatewayInfos": ["10.0.0.1"]}}),
        ("ClusterSet", {"spec": {"clusterID": "a", "leaders": []}}),
        ("ServiceImport", {"spec": {"type": "Other", "ports": []}}),
        ("ServiceExport", {"status": {"conditions": [{"type": "Valid"}]}}),
        ("LabelIdentity", {"spec": {"id": "7"}}),
    ],
)
def test_bad_objects_are_refused(kind: str, change: dict[str, Any]) -> None:
    """Wrong types, missing required fields and unknown enum values fail validation."""
    obj = next(obj for obj in OBJECTS if obj["kind"] == kind)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(obj | change, schema_of(obj["apiVersion"], kind))


def test_the_definitions_are_what_the_rest_of_the_product_thinks() -> None:
    """Kinds that the agent reads, and those built into the lab's API server, agree with the CRDs."""
    defined = {rt.store_key: rt for rt in (parse_crd(crd) for crd in CRDS.values())}
    for info in KINDS.values():
        if info.group.startswith("multicluster"):
            rt = defined[info.group, info.plural]
            assert (rt.kind, rt.namespaced) == (str(info.kind), info.namespaced)
            assert info.version in rt.versions
    for rt in BUILT_IN:
        if rt.store_key in defined:
            assert rt == defined[rt.store_key]
