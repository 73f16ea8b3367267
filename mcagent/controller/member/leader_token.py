"""The condition LeaderToken of a member's ClusterSet: when the token ends, and whether it is renewed. Pure.

A token that does not say when it expires has no condition. `machinery.connection.renewal` renews it; here is what
an administrator reads, long before the end.
"""

from __future__ import annotations

from mcagent.controller.contract.commands import replace_token
from mcagent.controller.contract.conditions import FALSE, TRUE, condition, time_text
from mcagent.controller.machinery.reconciler import Leader
from mcagent.model.api.base import Condition
from mcagent.model.api.multicluster import ClusterSet

LEADER_TOKEN = "LeaderToken"  # noqa: S105 (the type of a condition)
VALID, NOT_RENEWED, EXPIRED = "TokenValid", "TokenNotRenewed", "TokenExpired"


def token_state(leader: Leader, namespace: str, now: float) -> tuple[str, str, str] | None:
    """Return status, reason and message of the condition; None: the token has no end.

    `namespace`: of the ClusterSet; `now`: seconds since the epoch.
    """
    claims = leader.token
    if claims is None:
        return None
    end, then = time_text(claims.expires), replace_token(claims.namespace, claims.account, namespace)
    if now >= claims.expires:
        return FALSE, EXPIRED, f"the token of the leader expired at {end}. {then}"
    is_late = now >= claims.late
    if not claims.anchor:
        why = "it is bound to no Secret of mcagent membertoken" if is_late else ""
    elif leader.token_error:
        why = leader.token_error
    else:
        why = "the leader was away, or no replica could write" if is_late else ""
    if why:
        return FALSE, NOT_RENEWED, f"the token of the leader expires at {end}, and is not renewed: {why}. {then}"
    renewed = f"is renewed from {time_text(claims.renewal)} on" if claims.anchor else "is not renewed"
    return TRUE, VALID, f"expires at {end}, and {renewed}"


def token_conditions(cluster_set: ClusterSet, state: tuple[str, str, str] | None, now: float) -> list[Condition]:
    """Return the condition of a state, [] if there is none."""
    if state is None:
        return []
    status, reason, message = state
    before = cluster_set.status.conditions
    return [condition(before, LEADER_TOKEN, status, reason=reason, message=message, now=now)]
