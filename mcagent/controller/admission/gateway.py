"""Admission of Gateways: only the controllers and agents of a ClusterSet write them. Pure."""

from __future__ import annotations

from mcagent.controller.admission.decision import ALLOWED, Accounts, Decision, Request, denied, no_account


def review_gateway(request: Request, accounts: Accounts) -> Decision:
    """Decide on a Gateway (contract section 1.2). The account's name counts, in whatever namespace."""
    if request.caller is None:
        return no_account(request)
    if request.caller.name not in accounts.controllers | accounts.agents:
        return denied(f"{request.caller} may not write Gateways: the ClusterSet's own accounts do", code=412)
    return ALLOWED
