"""The objects of an installation: the plain manifests of this version, with the values of a site.

Pure, except reading the files of deploy/, which are generated from the Helm chart, so the same values give the
same objects. Knows no cluster. Values are set in objects, never in text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import yaml

import mcagent
from mcagent.kube.source import RawObject
from mcagent.kube.sources.manifests import FastLoader
from mcagent.model.errors import InputError

MEMBER_NAMESPACE = "kube-system"
LEADER_NAMESPACE = "antrea-multicluster"
CRD, NAMESPACE, TIER = "CustomResourceDefinition", "Namespace", "Tier"
ANTREA_POLICIES = "crd.antrea.io"  # the API group of the part POLICIES
OURS = {"app.kubernetes.io/name": "mcagent"}
_CLUSTER_SCOPED = re.compile(
    rf"Cluster.*|{NAMESPACE}|{CRD}|.*WebhookConfiguration|ValidatingAdmissionPolicy.*|{TIER}"
)
_ACCOUNT = re.compile(r"(system:serviceaccount):([-a-z0-9]+):(?=mcagent-)")
WORKLOADS = ("Deployment", "DaemonSet")
_DIGEST = "checksum/config"
GIVEN_CONFIG = "mcagent.io/given-config"  # annotation of a ConfigMap: the keys that differ from defaults, as JSON
_POLICY_KEYS = {  # of `replicatedPolicies`, by the API group of rules in the part member-policies
    "networking.k8s.io": "networkPolicies",
    "crd.antrea.io": "clusterPolicies",
    "policy.networking.k8s.io": "clusterPolicies",
}
_NONE = "none"  # the value without rights, and the default
_PLACES = frozenset({MEMBER_NAMESPACE, LEADER_NAMESPACE})


class InstalledRole(StrEnum):
    """The roles of a cluster that are installed."""

    MEMBER = "member"
    LEADER = "leader"
    ALL = "all"  # leader and member at once


class Part(StrEnum):
    """A part that can be installed alone, in the order of installation. All but CRDS are files of deploy/."""

    CRDS = "crds"
    POLICIES = "policies"  # CRDs and Tiers of Antrea's policies, for clusters without Antrea
    ADMISSION_POLICIES = "admission-policies"  # before the webhooks, which leave these rules to them
    METRICS_READER = "metrics-reader"
    LEADER = "leader"
    LEADER_ALL_NAMESPACES = "leader-all-namespaces"
    MEMBER = "member"
    MEMBER_POLICIES = "member-policies"  # rights on policies, of a member that accepts policies of the leader
    OPENVSWITCH = "openvswitch"
    AGENT = "agent"


_EVERYWHERE = frozenset({Part.CRDS, Part.ADMISSION_POLICIES, Part.METRICS_READER})
PARTS: Mapping[InstalledRole, frozenset[Part]] = {
    InstalledRole.MEMBER: _EVERYWHERE | {Part.MEMBER, Part.OPENVSWITCH, Part.AGENT},
    InstalledRole.LEADER: _EVERYWHERE | {Part.LEADER},
    InstalledRole.ALL: frozenset(Part) - {Part.LEADER_ALL_NAMESPACES, Part.MEMBER_POLICIES, Part.POLICIES},
}
_LEADERS = frozenset({Part.LEADER, Part.LEADER_ALL_NAMESPACES})
CONFIGURED = {Part.AGENT: "agent.yaml", Part.MEMBER: "controller.yaml", Part.LEADER: "controller.yaml"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The values of one cluster.

    `config` has keys of docs/configuration.md, nested by their dots; an image "" is that of the manifests, in the
    registry.
    """

    namespace: str = MEMBER_NAMESPACE
    leader_namespace: str = LEADER_NAMESPACE
    registry: str = ""  # with a path, if there is one
    image: str = ""
    openvswitch_image: str = ""
    openvswitch: str = "auto"  # the container's --policy on a Node with Open vSwitch
    config: Mapping[Part, Mapping[str, object]] = field(default_factory=dict)

    def home(self, part: Part) -> str:
        """Return the namespace of a part."""
        return self.leader_namespace if part in _LEADERS else self.namespace


def objects(parts: Iterable[Part], site: Site) -> list[RawObject]:
    """Return the objects of these parts, in the order in which they are applied. Raises InputError.

    A member that accepts policies of the leader gets the rights for that.
    """
    parts = set(parts)
    if Part.MEMBER in parts and accepted_policies(site):
        parts.add(Part.MEMBER_POLICIES)
    if parts >= {Part.LEADER, Part.MEMBER} and site.namespace == site.leader_namespace:
        raise InputError("--leader-namespace", "", f'must not be that of the member, "{site.namespace}"')
    own_config: dict[Part, RawObject] = {Part.AGENT: {"namespace": site.namespace}}
    if parts >= {Part.AGENT, Part.MEMBER}:
        own_config[Part.MEMBER] = {"podRouting": site.config.get(Part.AGENT, {}).get("podRouting", "auto")}
    objects_by_label: dict[str, RawObject] = {}  # a CRD of both roles is one
    if Part.CRDS in parts:
        objects_by_label = {_label(obj): obj for obj in _crds(parts)}
    for part in (part for part in Part if part in parts - {Part.CRDS}):
        home = site.home(part)
        own_values = own_config.get(part, {})
        part_objects = _with_digest([_with_values(obj, part, site, own_values) for obj in _own(part)])
        if (
            part is not Part.LEADER
            and home != MEMBER_NAMESPACE
            and any("namespace" in o["metadata"] for o in part_objects)
        ):
            part_objects.insert(0, _namespace(home))
        objects_by_label |= {_label(obj): obj for obj in part_objects if _label(obj) not in objects_by_label}
    return sorted(objects_by_label.values(), key=lambda obj: obj["kind"] != NAMESPACE)


def _crds(parts: set[Part]) -> list[RawObject]:
    """Return the CRDs of the roles that are installed; the agent reads those of a member."""
    roles = {Part.LEADER: parts & _LEADERS, Part.MEMBER: parts - _LEADERS - _EVERYWHERE - {Part.POLICIES}}
    files = [part for part, installed in roles.items() if installed] or list(roles)
    return [obj for part in files for obj in _read(part) if obj["kind"] == CRD]


def _own(part: Part) -> list[RawObject]:
    """Return the objects of a part's file; without CRDs, which are the part CRDS, but for those of policies."""
    return [obj for obj in _read(part) if obj["kind"] != CRD or part is Part.POLICIES]


def _namespace(name: str) -> RawObject:
    return {"apiVersion": "v1", "kind": NAMESPACE, "metadata": {"name": name, "labels": dict(OURS)}}


def _label(obj: RawObject) -> str:
    return f"{obj['kind']} {obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


def _read(part: Part) -> list[RawObject]:
    package = Path(mcagent.__file__).parent
    directory = package / "manifests"  # of an installed package: pyproject.toml puts deploy/*.yaml there
    if not directory.is_dir():
        directory = package.parent / "deploy"
    return list(yaml.load_all((directory / f"{part}.yaml").read_text(encoding="utf-8"), FastLoader))


def _with_values(obj: RawObject, part: Part, site: Site, own_config: RawObject) -> RawObject:
    """Return an object with the values of the site. `own_config`: defaults that depend on the site."""
    places = {MEMBER_NAMESPACE: site.namespace, LEADER_NAMESPACE: site.leader_namespace}
    moved: RawObject = {key: _moved(value, places) for key, value in obj.items()}
    if not _CLUSTER_SCOPED.fullmatch(moved["kind"]):
        moved["metadata"] = {"namespace": site.home(part)} | moved["metadata"]
    if moved["kind"] in _SETTERS:
        _SETTERS[moved["kind"]](moved, part, site, own_config)
    return moved


def _set_configuration(config_map: RawObject, part: Part, site: Site, own_config: RawObject) -> None:
    (file,) = config_map["data"]
    config = site.config.get(part, {})
    config_map["metadata"].setdefault("annotations", {})[GIVEN_CONFIG] = json.dumps(config, sort_keys=True)
    content = merged(yaml.safe_load(config_map["data"][file]) | own_config, config)
    config_map["data"] = {file: yaml.safe_dump(content, sort_keys=False)}


def _set_rules(role: RawObject, _part: Part, site: Site, _own_config: RawObject) -> None:
    match role["metadata"]["name"]:
        case "mcagent-member" if site.config.get(Part.MEMBER, {}).get("enableStretchedNetworkPolicy"):
            role["rules"].append({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]})
        case "mcagent-agent" if "nodeTrafficEncryption" in site.config.get(Part.AGENT, {}):
            # Agents publish keys of Nodes or, with the value none, have to remove them.
            role["rules"].append({"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]})
        case "mcagent-member-policies" if accepted := accepted_policies(site):
            role["rules"] = [rule for rule in role["rules"] if _POLICY_KEYS[rule["apiGroups"][0]] in accepted]


def _set_image(workload: RawObject, part: Part, site: Site, _own_config: RawObject) -> None:
    spec = workload["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    image = site.openvswitch_image if part is Part.OPENVSWITCH else site.image
    container["image"] = image or "/".join(filter(None, (site.registry, container["image"])))
    if part is Part.OPENVSWITCH:
        container["args"] = ["openvswitch", "--policy", site.openvswitch]
    elif part is Part.AGENT and site.openvswitch == "never":  # what brings it makes the directory, too
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        volumes["openvswitch"]["hostPath"]["type"] = "Directory"


_SETTERS: Mapping[str, Callable[[RawObject, Part, Site, RawObject], None]] = {
    "ConfigMap": _set_configuration,
    "ClusterRole": _set_rules,
    **dict.fromkeys(WORKLOADS, _set_image),
}
"""How objects of a kind get the values of the site; the other kinds have none but namespaces."""


def _with_digest(part_objects: list[RawObject]) -> list[RawObject]:
    """Annotate the Pods of a part with a digest of its configuration, so that a change replaces the Pods."""
    configuration = [
        yaml.safe_load(text) for obj in part_objects if obj["kind"] == "ConfigMap" for text in obj["data"].values()
    ]
    digest = hashlib.sha256(json.dumps(configuration, sort_keys=True).encode()).hexdigest()
    for obj in part_objects:
        if obj["kind"] in WORKLOADS and configuration:
            obj["spec"]["template"]["metadata"]["annotations"][_DIGEST] = digest
    return part_objects


def accepted_policies(site: Site) -> frozenset[str]:
    """Return the keys of `replicatedPolicies` by which a member's controller needs rights on policies."""
    replicated = site.config.get(Part.MEMBER, {}).get("replicatedPolicies")
    values = replicated if isinstance(replicated, Mapping) else {}
    return frozenset(key for key in _POLICY_KEYS.values() if str(values.get(key, _NONE)).lower() != _NONE)


def _moved(value: object, places: Mapping[str, str]) -> object:
    """Return a value with other namespaces: in texts that are a namespace, and in names of mcagent's accounts."""
    match value:
        case dict():
            return {key: _moved(item, places) for key, item in value.items()}
        case list():
            return [_moved(item, places) for item in value]
        case str() if value in _PLACES:
            return places[value]
        case str():
            return _ACCOUNT.sub(lambda match: f"{match[1]}:{places.get(match[2], match[2])}:", value)
    return value


def merged(content: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    """Return a mapping with the values of another, section by section."""
    result = dict(content)
    for key, value in over.items():
        before = result.get(key)
        result[key] = merged(before, value) if isinstance(before, dict) and isinstance(value, Mapping) else value
    return result
