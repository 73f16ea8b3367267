"""What the leader knows of the life of members' tokens, for `mcagent membertoken get`. Reads no token.

The leader stores no token that expires, only the anchor: a Secret with the life in its name, as old as the first
token. A member that renews in time does so after each two thirds of the life; its own times are in the condition
LeaderToken of its ClusterSet. So times after the first renewal are estimates, and whether a member that is not
connected has renewed its token is unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum

from mcagent.controller.admin.cluster import Cluster, made_by_command
from mcagent.controller.admin.fields import name_of, namespace_of, text_at
from mcagent.controller.admission.identity import bound_cluster
from mcagent.controller.contract.conditions import span_text, time_of, time_text
from mcagent.controller.contract.member_tokens import RENEWED_AFTER, longest_life
from mcagent.kube.source import RawObject
from mcagent.model.api.base import condition_of
from mcagent.model.api.kubernetes import ServiceAccount
from mcagent.model.api.multicluster import ClusterSet
from mcagent.model.errors import McagentError
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_as

KEY = "token"  # of the answer in an account, beside the fields of the API
_ACCOUNT = "kubernetes.io/service-account.name"  # annotation of a Secret that Kubernetes fills


class TokenState(StrEnum):
    """What is known of an account's token."""

    VALID = "Valid"  # it has not expired, or the member is connected
    UNCERTAIN = "MayBeExpired"  # the first token has expired, and the member is not connected
    NEVER = "NeverExpires"
    NONE = "NoToken"  # it has no Secret here
    UNKNOWN = "Unknown"  # Secrets cannot be read


def with_life(cluster: Cluster, accounts: Sequence[RawObject], now: float) -> list[RawObject]:
    """Return the accounts of members, each with what is known of its token. Raises SourceError."""
    shown = []
    for namespace in sorted({namespace_of(account) for account in accounts}):
        connected = connected_clusters(cluster.typed(ClusterSet, namespace))
        try:
            stored = cluster.objects(Kind.SECRET, namespace)
        except McagentError:
            stored = None
        for account in accounts:
            if namespace_of(account) == namespace:
                is_connected = bound_cluster(read_as(ServiceAccount, account)) in connected
                life: Mapping[str, object] = {"state": str(TokenState.UNKNOWN)}
                if stored is not None:
                    life = life_of(name_of(account), stored, connected=is_connected, now=now)
                shown.append({**account, KEY: life})
    return shown


def connected_clusters(cluster_sets: Iterable[ClusterSet]) -> Collection[str]:
    """Return the members that the leader sees."""
    return {
        status.cluster_id
        for cluster_set in cluster_sets
        if cluster_set.is_leaders
        for status in cluster_set.status.cluster_statuses
        if condition_of(status.conditions, "Ready").is_true
    }


def life_of(account: str, secrets: Iterable[RawObject], *, connected: bool, now: float) -> dict[str, object]:
    """Return state, age and times of an account's token, as JSON. `connected`: the leader sees its cluster."""
    anchors: list[tuple[float, int]] = []
    state = TokenState.NONE
    for secret in secrets:
        seconds, created = (
            longest_life(account, name_of(secret)),
            time_of(text_at(secret, "metadata", "creationTimestamp")),
        )
        if seconds and created is not None and made_by_command(secret):
            anchors.append((created, seconds))
        elif (secret["metadata"].get("annotations") or {}).get(_ACCOUNT) == account:
            state = TokenState.NEVER
    if not anchors:
        return {"state": str(state)}
    created, seconds = max(anchors)
    first_end, period = created + seconds, seconds * RENEWED_AFTER
    uncertain = now >= first_end and not connected
    renewals = 0 if uncertain else int((now - created) // period)
    begun = created + renewals * period
    return {
        "state": str(TokenState.UNCERTAIN if uncertain else TokenState.VALID),
        "created": time_text(created),
        "lifeSeconds": seconds,
        "renewal": time_text(begun + period),
        "expires": time_text(begun + seconds),
        "estimated": renewals > 0,
    }


def cells(account: RawObject, now: float) -> tuple[str, str, str, str]:
    """Return the cells of an account's token: state, age, renewal and end. "~" marks an estimate."""
    life = account.get(KEY) or {"state": str(TokenState.UNKNOWN)}
    sign = "~" if life.get("estimated") else ""
    times = (time_of(life.get(key)) for key in ("created", "renewal", "expires"))
    age, renewal, end = ("-" if at is None else _distance(at - now) for at in times)
    renewal, end = (text if text == "-" else f"{sign}{text}" for text in (renewal, end))
    return str(life["state"]), age.removesuffix(" ago"), renewal, end


def _distance(seconds: float) -> str:
    """Return a time from now: "in 55d", or "5d ago"."""
    return f"in {span_text(seconds)}" if seconds > 0 else f"{span_text(-seconds)} ago"
