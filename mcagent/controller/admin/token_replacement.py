"""Replaces the token of the leader in a member: `mcagent clusterset join` for its present ClusterSet.

The ClusterSet stays; its Secret gets the new token. All or nothing. No message has a token.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict

from mcagent.controller.admin.cluster import Cluster
from mcagent.controller.admin.fields import value_at
from mcagent.controller.admin.join_config import JoinConfig
from mcagent.controller.contract.commands import TOKEN_ROLE, TOKEN_VERBS
from mcagent.controller.contract.conditions import time_text
from mcagent.controller.contract.member_tokens import claims_of
from mcagent.controller.member.leader_token import LEADER_TOKEN
from mcagent.model.api.base import condition_of
from mcagent.model.api.multicluster import ClusterSet
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind

_SHOWN = 15.0  # seconds for the ClusterSet to show the end of the new token
_SETTLE = 5.0  # seconds for a token without an end, whose use no condition shows
_NOT_COMPARED = ("secret_name", "secret_file")


def membership_of(cluster: Cluster, namespace: str) -> JoinConfig | None:
    """Return the join config of the member's present ClusterSet, None if there is none. Raises SourceError."""
    joined = [item for item in cluster.typed(ClusterSet, namespace) if item.leader_server and not item.is_deleting]
    if len(joined) != 1:
        return None
    (cluster_set,) = joined
    (leader,) = cluster_set.spec.leaders
    return JoinConfig(
        cluster_set=cluster_set.name,
        cluster_id=cluster_set.spec.cluster_id,
        namespace=namespace,
        leader_id=leader.cluster_id,
        leader_namespace=cluster_set.spec.namespace,
        leader_server=leader.server,
        secret_name=leader.secret,
    )


def agrees(config: JoinConfig, present: JoinConfig) -> bool:
    """Tell whether a join config is of the present ClusterSet: what it leaves out is the same."""
    values = asdict(present)
    return all(
        not value or value == values[key] for key, value in asdict(config).items() if key not in _NOT_COMPARED
    )


def write_token(cluster: Cluster, present: JoinConfig, data: Mapping[str, str]) -> None:
    """Write a token into the Secret of the ClusterSet, and let the controller renew it. Raises McagentError."""
    namespace, name = present.namespace, present.secret_name
    secret = cluster.get(Kind.SECRET, namespace, name)
    if secret is None:
        cluster.create(Kind.SECRET, namespace, name, {"type": "Opaque", "data": dict(data)})
    else:
        cluster.set_data(namespace, name, data)
    role = cluster.get(Kind.ROLE, namespace, TOKEN_ROLE)
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [name], "verbs": list(TOKEN_VERBS)}
    if role is not None and value_at(role, "rules") != [rule]:
        cluster.merge(object_path(Kind.ROLE, namespace, TOKEN_ROLE), {"rules": [rule]})
        cluster.report(f"Role {namespace}/{TOKEN_ROLE}: the controller may renew the token")


def wait_in_use(cluster: Cluster, present: JoinConfig, data: Mapping[str, str], timeout: float) -> None:
    """Wait until the controller uses the token, as far as the ClusterSet shows it. Raises SourceError."""
    claims = claims_of(base64.b64decode(data["token"]).decode("ascii", "replace").strip())
    cluster.report("waiting for the controller to use the new token")

    def in_use() -> bool:
        cluster_set = cluster.read(ClusterSet, present.namespace, present.cluster_set) or ClusterSet()
        message = condition_of(cluster_set.status.conditions, LEADER_TOKEN).message
        return claims is not None and time_text(claims.expires) in message

    cluster.wait(in_use, min(timeout, _SETTLE if claims is None else _SHOWN))
