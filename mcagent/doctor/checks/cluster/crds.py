"""Check `crds`: CRDs exist and are established, with the versions and fields of this mcagent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from mcagent.api.doctor import CheckFinding
from mcagent.controller.admin import manifests
from mcagent.controller.admin.fields import condition_at, items_at, mapping_at, name_of, text_at
from mcagent.controller.admin.manifests import CRD, InstalledRole, Part
from mcagent.controller.contract.conditions import TRUE
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.checks.cluster.agents import component_of
from mcagent.doctor.checks.cluster.controller import deployments
from mcagent.doctor.examined import ExaminedCluster
from mcagent.kube.source import RawObject
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind

_APPLY = (
    "upgrade to this version again (docs/upgrade.md): helm upgrade, or mcagent deploy --role {role} --image IMAGE "
    "--apply"
)
CHECK = DoctorCheck(
    name="crds",
    order=210,
    summary="CRDs exist and are established, with the versions and fields of this mcagent",
    causes={
        "CrdMissing": failed("the API server lacks a kind that mcagent reads and writes", _APPLY),
        "CrdVersion": failed("that version is not served: requests for it fail", _APPLY),
        "CrdFields": warning(
            "the API server drops fields that this version writes (another version's CRD was applied)",
            f"{_APPLY}; then find the program that applies the other one",
        ),
    },
)


def crds(cluster: ExaminedCluster) -> dict[str, RawObject]:
    """Return all CustomResourceDefinitions by name. Raises SourceError."""
    items = cluster.items(object_path(Kind.CUSTOM_RESOURCE_DEFINITION, ""))
    return {name_of(crd): crd for crd in items}


@cache
def expected_crds(role: InstalledRole) -> Sequence[RawObject]:
    """Return the CRDs of this version for a role."""
    parts = {Part.CRDS, *manifests.PARTS[role]}
    return [obj for obj in manifests.objects(parts, manifests.Site()) if obj["kind"] == CRD]


def examine(cluster: ExaminedCluster) -> Iterator[CheckFinding]:
    """Evaluate the CRDs that the installed roles need."""
    roles = {component_of(deployment) for deployment in cluster.read(deployments)}
    role = (
        InstalledRole.ALL
        if roles >= {"leader", "member"}
        else InstalledRole.LEADER
        if "leader" in roles
        else InstalledRole.MEMBER
    )
    installed, expected = cluster.read(crds), expected_crds(role)
    findings = [finding for crd in expected for finding in _judge(crd, installed.get(name_of(crd)), role)]
    yield from findings or [CHECK.passed(f"{len(expected)} CRDs of this version")]


def _judge(crd: RawObject, installed: RawObject | None, role: InstalledRole) -> Iterator[CheckFinding]:
    name = name_of(crd)
    if installed is None:
        yield CHECK.finding("CrdMissing", "it is missing", subject=name, role=role)
        return
    expected, served = _served(crd), _served(installed)
    missing = [version for version in expected if version not in served]
    established = condition_at(installed, "Established").get("status") == TRUE
    if missing or not established:
        text = f"{', '.join(missing)} is not served" if missing else "it is not established"
        yield CHECK.finding("CrdVersion", text, subject=name, role=role)
        return
    pruned = sorted(
        f"{version}: {path}" for version in expected for path in _pruned(expected[version], served[version], "")
    )
    if pruned:
        yield CHECK.finding("CrdFields", f"it lacks {', '.join(pruned[:8])}", subject=name, role=role)


def _served(crd: RawObject) -> dict[str, RawObject]:
    """Return the schemas of a CRD's versions that are served, by the version's name."""
    versions = [version for version in items_at(crd, "spec", "versions") if version.get("served")]
    return {text_at(version, "name"): mapping_at(version, "schema", "openAPIV3Schema") for version in versions}


def _pruned(ours: RawObject, theirs: RawObject, path: str) -> Iterator[str]:
    """Yield the fields of our schema that theirs would prune."""
    if theirs.get("x-kubernetes-preserve-unknown-fields"):
        return
    their_fields = theirs.get("properties") or {}
    for name, schema in (ours.get("properties") or {}).items():
        if name in their_fields:
            yield from _pruned(schema, their_fields[name], f"{path}.{name}")
        elif name not in {"apiVersion", "kind", "metadata"}:
            yield f"{path}.{name}".removeprefix(".")
    if isinstance(ours.get("items"), dict) and isinstance(theirs.get("items"), dict):
        yield from _pruned(ours["items"], theirs["items"], f"{path}[]")
