"""`mcagent deploy` without a cluster: what is printed, what is refused; the commands of the pages."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcagent.cli.main import COMMANDS, main
from mcagent.controller.admin.manifests import Part
from mcagent.core.policies.rules import TIERS
from mcagent.kube.sources.manifests import FastLoader
from tests.e2e.guide import INSTALL, UPGRADE, commands, every_command

ROOT = Path(__file__).parents[2]


def objects(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, Any]]:
    """Return what is printed, by kind and name."""
    assert main(["deploy", "-o", "json", *arguments]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    return {f"{obj['kind']} {obj['metadata']['name']}": obj for obj in items}


def test_the_manifests_are_in_the_wheel() -> None:
    """Every part but the CRDs is a file of deploy/, and each of them goes to where the installed command looks."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    parts = set(Part) - {Part.CRDS}
    assert wheel["force-include"] == {f"deploy/{part}.yaml": f"mcagent/manifests/{part}.yaml" for part in parts}
    assert all((ROOT / file).is_file() for file in wheel["force-include"])


def test_a_role_has_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    """A member's and a leader's parts, CRDs first; both at once have each CRD once; parts can be left out."""
    member, leader = objects(capsys), objects(capsys, "--role", "leader")
    assert {
        "DaemonSet mcagent-agent",
        "DaemonSet mcagent-openvswitch",
        "Deployment mcagent-member",
    } <= member.keys()
    assert {"Namespace antrea-multicluster", "Deployment mcagent-leader"} <= leader.keys()
    assert objects(capsys, "--role", "all").keys() == member.keys() | leader.keys()
    kinds = [name.split()[0] for name in leader]
    assert kinds[:2] == ["Namespace", "CustomResourceDefinition"]
    assert "CustomResourceDefinition" not in kinds[kinds.index("ClusterRole") :]
    fewer = objects(capsys, "--without", "crds", "--without", "member", "--openvswitch", "never")
    assert "DaemonSet mcagent-agent" in fewer
    assert not {"DaemonSet mcagent-openvswitch", "Deployment mcagent-member"} & fewer.keys()


def test_kinds_of_policies_are_installed_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """CRDs before the Tiers; no role has them by default, and no other part brings CRDs."""
    named, flagged = objects(capsys, "--with", "policies"), objects(capsys, "--with-policies")
    assert named == flagged
    added = list(flagged.keys() - objects(capsys).keys())
    assert sorted(name.split()[0] for name in added) == [*["CustomResourceDefinition"] * 3, *["Tier"] * len(TIERS)]
    names = list(flagged)
    assert names.index("CustomResourceDefinition tiers.crd.antrea.io") < names.index("Tier baseline")
    everything = objects(capsys, "--role", "all")
    assert not any("crd.antrea.io" in name and "multicluster" not in name for name in everything)


def test_rights_on_policies_come_with_consent(capsys: pytest.CaptureFixture[str]) -> None:
    """A member that accepts policies of the leader gets the ClusterRole, with the rules of what it accepts."""
    role = "ClusterRole mcagent-member-policies"
    key = "member.config.replicatedPolicies.networkPolicies"
    assert role not in objects(capsys)
    assert role not in objects(capsys, "--role", "all")
    assert role not in objects(capsys, "--set", f"{key}=none")
    (rule,) = objects(capsys, "--set", f"{key}=isolate")[role]["rules"]
    assert rule["resources"] == ["networkpolicies"]
    assert len(objects(capsys, "--with", "member-policies")[role]["rules"]) == 4


def test_yaml_says_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """For people and GitOps; configuration is readable in it."""
    as_json = objects(capsys, "--clusterid", "east")
    assert main(["deploy", "--clusterid", "east"]) == 0
    text = capsys.readouterr().out
    assert list(yaml.load_all(text, FastLoader)) == list(as_json.values())
    assert "\n    clusterID: east\n" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "agent.config.podCidrs=[]"), 'agent.config: podCidrs: unknown key (did you mean "podCIDRs"?)'),
        (("--set", "member.config.maxActiveGateways=0"), "member.config: maxActiveGateways: must be"),
        (("--set", "agent.image=x"), "--set: agent.image=x: must be agent.config.KEY=VALUE"),
        (("--set", "agent.config.listen=:1"), "agent.config.listen: is also in the DaemonSet's ports"),
        (("--set", "agent.config.healthListen=0"), "agent.config.healthListen: is also in the DaemonSet's ports"),
        (("--set", "member.config.webhook={port: 1}"), "member.config.webhook.port: is also in the Deployment's"),
        (
            ("--set", "member.config.health.healthProbeBindAddress=:1"),
            "member.config.health.healthProbeBindAddress: is also in the Deployment's ports",
        ),
        (
            ("--set", "member.config.health.healthProbeBindAddress=127.0.0.1:8080"),
            "member.config.health.healthProbeBindAddress: is not reached by the Deployment's probes at 127.0.0.1",
        ),
        (("--set", "agent.config.healthListen='[::1]:10361'"), "is not reached by the DaemonSet's probes"),
        (("--set", "agent.config.podCIDRs=["), 'agent.config.podCIDRs: "[" is not YAML'),
        (("--set", "agent.config.clusterID=2026-13-45"), 'agent.config.clusterID: "2026-13-45" is not YAML'),
        (
            ("--set", "agent.config.wireGuard=1", "--set", "agent.config.wireGuard.port=1"),
            "agent.config.wireGuard.port: another --set gives wireGuard a value that is no mapping",
        ),
        (("--with", "policy"), '--with: "policy" is no part; parts are crds, '),
        (("--image", "mcagent@sha256:0"), "--openvswitch-image: is needed where --image names a digest"),
        (("--role", "all", "-n", "mc", "--leader-namespace", "mc"), "--leader-namespace: must not be that of"),
    ],
)
def test_what_is_wrong_is_said(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flag or key, and what would be right; nothing is printed."""
    assert main(["deploy", *arguments]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""


@pytest.mark.parametrize(
    ("image", "openvswitch"),
    [
        ("reg:5000/a/mcagent:7", "reg:5000/a/mcagent-openvswitch:7"),
        ("reg:5000/a/mcagent", "reg:5000/a/mcagent-openvswitch"),
    ],
)
def test_images_go_together(image: str, openvswitch: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Open vSwitch's image is beside the agent's."""
    manifests = objects(capsys, "--role", "all", "--image", image)
    images = {
        name: obj["spec"]["template"]["spec"]["containers"][0]["image"]
        for name, obj in manifests.items()
        if obj["kind"] in ("Deployment", "DaemonSet")
    }
    assert images.pop("DaemonSet mcagent-openvswitch") == openvswitch
    assert set(images.values()) == {image}


def test_a_registry_is_that_of_both_images(capsys: pytest.CaptureFixture[str]) -> None:
    """Names and tags are those of the manifests; an image that is named itself stays as it is."""

    def images(*arguments: str) -> set[str]:
        return {
            obj["spec"]["template"]["spec"]["containers"][0]["image"].rpartition(":")[0]
            for obj in objects(capsys, *arguments).values()
            if obj["kind"] in ("Deployment", "DaemonSet")
        }

    registry = ("--registry", "registry.example.com/net/")
    both = {"registry.example.com/net/mcagent", "registry.example.com/net/mcagent-openvswitch"}
    assert images(*registry) == both
    other = images(*registry, "--image", "other/mcagent:7", "--openvswitch-image", "other/ovs:7")
    assert other == {"other/mcagent", "other/ovs"}


def test_commands_of_the_pages_are_found() -> None:
    """Indented and fenced lines, without comments or YAML; those of the pages are of programs that e2e has."""
    page = "text\n\n    mcagent status   # this Node\n\n```sh\nhelm list\n```\n\n```yaml\nkind: Gateway\n```\n"
    assert commands(page) == ("mcagent status", "helm list")
    found = every_command()
    assert {*INSTALL, UPGRADE} <= set(found)
    for words in map(shlex.split, found):
        assert words[0] in ("helm", "kubectl", "mcagent"), words
        assert words[0] != "mcagent" or words[1] in COMMANDS
