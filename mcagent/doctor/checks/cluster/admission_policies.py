"""Check `admission-policies`: the ValidatingAdmissionPolicies of this mcagent are in force."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mcagent.api.doctor import CheckFinding
from mcagent.controller.admin import manifests
from mcagent.controller.admin.fields import items_at, name_of, text_at, texts_at
from mcagent.controller.admin.manifests import Part, Site
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.checks.cluster.webhooks import webhooks
from mcagent.doctor.examined import ExaminedCluster
from mcagent.kube.source import RawObject

_DO = "kubectl apply -f deploy/admission-policies.yaml; with Helm, helm upgrade"
CHECK = DoctorCheck(
    name="admission-policies",
    order=225,
    summary="the ValidatingAdmissionPolicies of this mcagent are in force",
    causes={
        "PolicyMissing": failed(
            "the webhook leaves its rules to it: names, labels and payloads of exports, IDs of clusters and "
            "the writers of Gateways are not checked",
            _DO,
        ),
        "PolicyNotEnforced": failed("the API server does not refuse what breaks its rules", _DO),
        "PolicyDiffers": warning("its rules are not those of this version, to which the webhook leaves them", _DO),
        "AgentsWithoutNode": warning(
            "the token of one Node's agent can write the WireGuard keys of all gateways",
            "kubectl apply -f deploy/admission-policies.yaml, if the tokens of all agents name their Node "
            "(docs/members.md)",
        ),
    },
)
_BASE = "/apis/admissionregistration.k8s.io/v1"
_OPTIONAL = "gateways-of-agents.mcagent.io"
"""Left out where agents have tokens without a Node (admissionPolicies.agentsWithoutNode of the chart)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledPolicies:
    """The cluster's policies and bindings, by name; those of other projects too."""

    policies: Mapping[str, RawObject]
    bindings: Mapping[str, RawObject]


def installed_policies(cluster: ExaminedCluster) -> InstalledPolicies:
    """Return the policies and bindings of the cluster. Raises SourceError."""
    policies = cluster.items(f"{_BASE}/validatingadmissionpolicies")
    bindings = cluster.items(f"{_BASE}/validatingadmissionpolicybindings")
    return InstalledPolicies(
        policies={name_of(policy): policy for policy in policies},
        bindings={name_of(binding): binding for binding in bindings},
    )


def shipped_policies() -> list[RawObject]:
    """Return the policies of this version."""
    objects = manifests.objects([Part.ADMISSION_POLICIES], Site())
    return [obj for obj in objects if obj["kind"] == "ValidatingAdmissionPolicy"]


def examine(cluster: ExaminedCluster) -> Iterator[CheckFinding]:
    """Compare the cluster's policies with those of this version, if webhooks leave rules to them."""
    if not cluster.read(webhooks):
        yield CHECK.passed("no webhook needs them")
        return
    installed, shipped = cluster.read(installed_policies), shipped_policies()
    findings = [finding for policy in shipped for finding in _judge(policy, installed)]
    yield from findings or [CHECK.passed(f"{len(shipped)} of this version")]


def _judge(shipped: RawObject, installed: InstalledPolicies) -> Iterator[CheckFinding]:
    name = name_of(shipped)
    policy, binding = installed.policies.get(name), installed.bindings.get(name)
    if name == _OPTIONAL and (policy is None or binding is None):
        yield CHECK.finding("AgentsWithoutNode", "it is not in force", subject=name)
    elif policy is None or binding is None:
        absent = "it is missing" if policy is None else "its binding is missing"
        yield CHECK.finding("PolicyMissing", absent, subject=name)
    elif text_at(policy, "spec", "failurePolicy") != "Fail":
        yield CHECK.finding("PolicyNotEnforced", "its failurePolicy is not Fail", subject=name)
    elif "Deny" not in texts_at(binding, "spec", "validationActions"):
        yield CHECK.finding("PolicyNotEnforced", "validationActions of its binding lack Deny", subject=name)
    elif missing := _rules(shipped) - _rules(policy):
        yield CHECK.finding("PolicyDiffers", f"it lacks {len(missing)} of its rules", subject=name)


def _rules(policy: RawObject) -> set[str]:
    """Return the expressions of a policy's rules; none contains the name of an account."""
    return {text_at(rule, "expression") for rule in items_at(policy, "spec", "validations")}
