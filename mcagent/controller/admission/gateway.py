"""Admission of Gateways: the controller makes them, the agent of a gateway Node publishes its key. Pure.

A Gateway says where all traffic between clusters goes. So an agent changes one field of one object: `wireGuard` of
the Gateway that bears the name of its own Node, which its token says (contract sections 1.2 and 3).
"""

from __future__ import annotations

from mcagent.controller.admission.accounts import NODE_CLAIM, Accounts, is_garbage_collector
from mcagent.controller.admission.decision import (
    ALLOWED,
    HOUSEKEEPING,
    Decision,
    Operation,
    Request,
    changed_parts,
    denied,
    no_account,
)
from mcagent.model.api.multicluster import ApiGateway

AGENTS_FIELD = "wireGuard"


def review_gateway(request: Request, accounts: Accounts) -> Decision:
    """Decide on a Gateway."""
    updating = request.operation is Operation.UPDATE
    collecting = updating and is_garbage_collector(request.user)
    if collecting and changed_parts(request.old, request.object) <= HOUSEKEEPING:
        return ALLOWED
    if request.caller is None:
        return no_account(request)
    if request.caller in accounts.controllers:
        return ALLOWED
    if request.caller in accounts.agents:
        return _agent(request, accounts)
    return denied(f"{request.caller} may not write Gateways: the ClusterSet's own accounts do", code=412)


def _agent(request: Request, accounts: Accounts) -> Decision:
    name = request.of(ApiGateway)[1].name
    if request.operation is not Operation.UPDATE:
        return denied(f"{request.caller} is an agent's: only the controller creates Gateways")
    foreign = changed_parts(request.old, request.object) - {AGENTS_FIELD}
    if foreign:
        return denied(
            f"{request.caller} is an agent's: it may change only {AGENTS_FIELD}, not {', '.join(sorted(foreign))}"
        )
    if not request.node and not accounts.agents_without_node:
        return denied(
            f"the token of {request.caller} names no Node ({NODE_CLAIM}): it must be that of a Pod, of Kubernetes "
            "1.30 or newer, or bound to the Node; else see admission.agentsWithoutNode in docs/multicluster.md"
        )
    if request.node and request.node != name:
        return denied(f"the agent of Node {request.node} may change only its Gateway, not {name}")
    return ALLOWED
