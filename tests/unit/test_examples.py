"""The example manifests: right by the CRDs, by admission, and by what the commands make."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from mcagent.cli.admin import clusterset, get, membertoken
from mcagent.controller.admin.tokens import ACCOUNT_ANNOTATION, MEMBER_ROLE, TOKEN_TYPE
from mcagent.controller.contract import names
from mcagent.controller.contract.commands import CONTROLLER, TOKEN_ROLE
from mcagent.controller.leader.exports.bounds import annotation_errors
from mcagent.kube.sources.manifests import FastLoader
from mcagent.model.api.multicluster import ClusterSet
from mcagent.model.parsing.decode import read_as
from tests.worlds.crd_schemas import schema_of

ROOT = Path(__file__).parents[2]
EXAMPLES = {
    path.name: list(yaml.load_all(path.read_text(), FastLoader))
    for path in (ROOT / "deploy/examples").glob("*.yaml")
}
OBJECTS = [obj for _, found in sorted(EXAMPLES.items()) for obj in found]
GUIDE = (ROOT / "docs/multicluster.md").read_text()


@pytest.mark.parametrize("obj", OBJECTS, ids=lambda obj: f"{obj['kind']} {obj['metadata']['name']}")
def test_examples_are_well_formed(obj: dict[str, Any]) -> None:
    """Every example has a name and a namespace, and custom resources are right by their schema."""
    assert obj["metadata"]["namespace"]
    if "antrea.io" in obj["apiVersion"] or "x-k8s.io" in obj["apiVersion"]:
        schema = schema_of(obj["apiVersion"], obj["kind"])
        jsonschema.validate(obj, schema)
        assert obj.keys() - {"metadata"} <= schema["properties"].keys()
        assert (obj.get("spec") or {}).keys() <= schema["properties"].get("spec", {}).get("properties", {}).keys()


def test_leader_and_member_name_each_other() -> None:
    """The member's ClusterSet has the leader's name, ID and namespace, and the Secret that gives access."""
    (leader,) = EXAMPLES["leader-clusterset.yaml"]
    member, token_role, token_binding = EXAMPLES["member-east-clusterset.yaml"]
    account, binding, secret = EXAMPLES["leader-access-for-east.yaml"]
    assert read_as(ClusterSet, leader).is_leaders
    assert not read_as(ClusterSet, member).is_leaders
    assert leader["metadata"]["name"] == member["metadata"]["name"]
    assert member["spec"]["namespace"] == leader["metadata"]["namespace"] == secret["metadata"]["namespace"]
    (way,) = member["spec"]["leaders"]
    assert way["clusterID"] == leader["spec"]["clusterID"]
    assert way["secret"] == secret["metadata"]["name"]
    annotations = account["metadata"]["annotations"]
    assert annotations[names.CLUSTER_ID_ANNOTATION] == member["spec"]["clusterID"]
    key = names.ALLOWED_CIDRS_ANNOTATION
    lists = [notes[key] for notes in (annotations, leader["metadata"]["annotations"])]
    assert [annotation_errors({key: cidrs}) for cidrs in lists] == ["", ""]
    assert binding["roleRef"]["name"] == MEMBER_ROLE
    (rule,) = token_role["rules"]
    assert (rule["resources"], rule["resourceNames"]) == (["secrets"], [way["secret"]])
    assert token_role["metadata"]["name"] == token_binding["roleRef"]["name"] == TOKEN_ROLE
    (reader,) = token_binding["subjects"]
    assert (reader["name"], reader["namespace"]) == (CONTROLLER, member["metadata"]["namespace"])
    assert secret["type"] == TOKEN_TYPE
    assert secret["metadata"]["annotations"] == {ACCOUNT_ANNOTATION: account["metadata"]["name"]}


def test_the_guide_names_files_and_commands_that_exist() -> None:
    """Every manifest in the guide is there, but for those that another page describes, and every action too."""
    missing = {path for path in re.findall(r"deploy/[\w./-]+\.yaml", GUIDE) if not (ROOT / path).is_file()}
    assert missing <= {"deploy/leader.yaml", "deploy/member.yaml"}  # made with the controller
    for module, command in ((clusterset, "clusterset"), (membertoken, "membertoken"), (get, "get")):
        assert f"mcagent {command}" in GUIDE
        assert f"mcagent {command}" in module._EPILOG
    for action in ("init", "join", "leave", "destroy"):
        assert f"mcagent clusterset {action}" in GUIDE


def test_the_guide_is_short() -> None:
    """It is read from the beginning to the end; tables of decisions are on pages of their own."""
    assert len(GUIDE.splitlines()) <= 300
