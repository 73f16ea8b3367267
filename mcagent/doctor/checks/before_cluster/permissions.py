"""Check `pre-permissions`: the user of the kubeconfig may create the objects of the installation."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.controller.admin import manifests
from mcagent.controller.admin.manifests import PARTS, InstalledRole, Site
from mcagent.doctor.check import DoctorCheck, failed
from mcagent.doctor.examined import TIMEOUT, ExaminedCluster
from mcagent.doctor.readings.reviews import allowed

CHECK = DoctorCheck(
    name="pre-permissions",
    order=360,
    summary="before the installation: this user may create the objects of a member (SelfSubjectAccessReview)",
    causes={
        "InstallForbidden": failed(
            "the installation creates this object",
            "kubectl auth can-i create {resource}; install as a user with the ClusterRole cluster-admin",
        ),
    },
)
Right = tuple[str, str, str]  # API group, resource, namespace


def rights() -> tuple[Right, ...]:
    """Return what is created by `mcagent deploy` in a member."""
    needed = set()
    for obj in manifests.objects(PARTS[InstalledRole.MEMBER], Site()):
        group = obj["apiVersion"].rpartition("/")[0]
        plural = f"{obj['kind'].lower()}s".removesuffix("ys")
        plural = f"{plural}ies" if obj["kind"].endswith("y") else plural
        needed.add((group, plural, obj["metadata"].get("namespace", "")))
    return tuple(sorted(needed))


def forbidden(cluster: ExaminedCluster) -> tuple[Right, ...]:
    """Return what this user may not create. Raises SourceError."""
    cluster.progress("what this user may create")
    missing = []
    for group, resource, namespace in rights():
        attributes = {"group": group, "resource": resource, "verb": "create", "namespace": namespace}
        spec = {"resourceAttributes": attributes}
        if not allowed(cluster.client, "SelfSubjectAccessReview", spec, TIMEOUT):
            missing.append((group, resource, namespace))
    return tuple(missing)


def examine(cluster: ExaminedCluster) -> Iterator[CheckFinding]:
    """Report what is forbidden."""
    missing = cluster.read(forbidden)
    for group, resource, namespace in missing:
        name = f"{resource}.{group}".rstrip(".") + (f" -n {namespace}" if namespace else "")
        yield CHECK.finding("InstallForbidden", f"may not create {name}", resource=name)
    if not missing:
        yield CHECK.passed(f"may create all {len(rights())} kinds of objects")
