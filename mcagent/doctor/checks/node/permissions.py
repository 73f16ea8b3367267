"""Check `permissions` on a Node: of the agent's account (SelfSubjectAccessReview, requested by `api`)."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.doctor.check import DoctorCheck, failed
from mcagent.doctor.checks.node.api import api_server
from mcagent.doctor.examined import ExaminedNode

CHECK = DoctorCheck(
    name="permissions",
    order=50,
    summary="accounts have the permissions that they need (SelfSubjectAccessReview, SubjectAccessReview)",
    causes={
        "NotAllowed403": failed(
            "the agent lacks a permission that its role on this Node needs",
            "kubectl auth can-i {verb} {resource} --as=system:serviceaccount:kube-system:mcagent-agent; then "
            "apply the manifests of this version again, as they were installed (docs/upgrade.md)",
        ),
    },
)


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Report missing permissions."""
    api = node.read(api_server)
    if not api.used:
        return
    if api.error or api.review_error:
        yield CHECK.skipped(api.error or api.review_error)
        return
    for verb, resource in api.forbidden:
        yield CHECK.finding("NotAllowed403", f"may not {verb} {resource}", verb=verb, resource=resource)
    if not api.forbidden:
        yield CHECK.passed(f"all {api.checked} that the agent needs")
