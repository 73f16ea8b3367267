"""Admission rules of a ClusterSet as pure functions of a request and what it may look up.

The rules and HTTP codes are those of Antrea's webhooks; our own ServiceAccounts count beside Antrea's. A
ServiceAccount that Antrea's let pass because they cannot place it is refused here. What CEL can express is shipped
as ValidatingAdmissionPolicies too (`deploy/admission-policies.yaml`), which hold without the controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcagent.controller.admission.accounts import Accounts, accounts_of
from mcagent.controller.admission.announce import review_announce
from mcagent.controller.admission.cluster_set import review_cluster_set
from mcagent.controller.admission.decision import ALLOWED, Decision, Lookup, denied, read_request
from mcagent.controller.admission.gateway import review_gateway
from mcagent.controller.admission.resource_export import complete_resource_export, review_resource_export

__all__ = ["Accounts", "Decision", "Lookup", "accounts_of", "mutate", "review"]


def review(request: Mapping[str, Any], lookup: Lookup, accounts: Accounts) -> Decision:
    """Decide on an AdmissionRequest (admission.k8s.io/v1: the `request` of an AdmissionReview)."""
    found = read_request(request)
    if found is None:
        return ALLOWED
    if not found.subject:
        return denied(f"the request has no object to {found.operation}", code=400)
    match found.kind:
        case "ClusterSet":
            return review_cluster_set(found, lookup)
        case "Gateway":
            return review_gateway(found, accounts)
        case "MemberClusterAnnounce":
            return review_announce(found, lookup, accounts)
        case "ResourceExport":
            return review_resource_export(found, lookup, accounts)
    return ALLOWED


def mutate(request: Mapping[str, Any]) -> Decision:
    """Complete the object of an AdmissionRequest: the decision has the JSON patch, if anything is missing."""
    found = read_request(request)
    if found is None or found.kind != "ResourceExport":
        return ALLOWED
    return complete_resource_export(found)
