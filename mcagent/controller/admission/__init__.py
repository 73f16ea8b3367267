"""The webhook's admission rules, as pure functions of a request and its look-ups.

Owns the rules that depend on other objects or on the controller's configuration: which account may write what,
quotas, and claims of CIDRs. Rules that depend on the request alone are ValidatingAdmissionPolicies
(`deploy/admission-policies.yaml`), which the API server evaluates first. Identity rules and HTTP codes are those
of Antrea's webhooks, with mcagent's ServiceAccounts beside Antrea's; accounts without a cluster ID, which Antrea's
webhooks let pass, are refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from mcagent.controller.admission.accounts import Accounts, accounts_of
from mcagent.controller.admission.announce import review_announce
from mcagent.controller.admission.cluster_set import review_cluster_set
from mcagent.controller.admission.decision import ALLOWED, AdmissionDecision, Lookup, denied, read_request
from mcagent.controller.admission.resource_export import complete_resource_export, review_resource_export

__all__ = ["Accounts", "AdmissionDecision", "Lookup", "accounts_of", "mutate", "review"]


def review(raw_request: Mapping[str, object], lookup: Lookup, accounts: Accounts) -> AdmissionDecision:
    """Decide on an AdmissionRequest (admission.k8s.io/v1: the `request` of an AdmissionReview)."""
    request = read_request(raw_request)
    if request is None:
        return ALLOWED
    if not request.subject:
        return denied(f"the request has no object to {request.operation}", code=400)
    match request.kind:
        case "ClusterSet":
            return review_cluster_set(request, lookup)
        case "MemberClusterAnnounce":
            return review_announce(request, lookup, accounts)
        case "ResourceExport":
            return review_resource_export(request, lookup, accounts)
    return ALLOWED


def mutate(raw_request: Mapping[str, object]) -> AdmissionDecision:
    """Complete the object of an AdmissionRequest: the decision has the JSON patch, if anything is missing."""
    request = read_request(raw_request)
    if request is None or request.kind != "ResourceExport":
        return ALLOWED
    return complete_resource_export(request)
