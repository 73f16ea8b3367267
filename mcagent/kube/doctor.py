"""An API server as the doctor sees it from a Node: whether it answers, its clock, what the agent's account may."""

from __future__ import annotations

import time
from collections.abc import Iterator

from mcagent.core.doctor.observed import ApiSeen
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.source import RawObject
from mcagent.model.errors import SourceError
from mcagent.model.kinds import AGENT_KINDS, KINDS
from mcagent.model.objects import Kind

TIMEOUT = 3.0  # seconds for one request
REVIEWS = 4.0  # seconds for all questions about permissions
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def needs(*, policies: bool) -> Iterator[tuple[str, str, str]]:
    """Yield what the agent does at the API: verb, group, resource. `policies`: enableStretchedNetworkPolicy."""
    for kind in sorted(AGENT_KINDS):
        if policies or kind not in _OF_POLICIES:
            yield from ((verb, KINDS[kind].group, KINDS[kind].plural) for verb in ("list", "watch"))
    yield "patch", KINDS[Kind.GATEWAY].group, KINDS[Kind.GATEWAY].plural
    yield "create", "", "events"


_OF_POLICIES = frozenset(
    {
        Kind.NAMESPACE,
        Kind.LABEL_IDENTITY,
        Kind.NETWORK_POLICY,
        Kind.ANTREA_NETWORK_POLICY,
        Kind.CLUSTER_NETWORK_POLICY,
        Kind.TIER,
    }
)


def see_api(kubeconfig: str | RawObject, *, policies: bool) -> ApiSeen:
    """Look at the API server that a Node's agent uses, as that agent. Raises nothing."""
    try:
        client = Client(kubeconfig, user_agent="mcagent-doctor")
    except SourceError as error:
        return ApiSeen(error=str(error))
    try:
        ahead = client.clock(timeout=TIMEOUT)
    except ApiRefusalError:
        ahead = None  # it answers; what it refuses is told below
    except SourceError as error:
        return ApiSeen(server=client.server, error=str(error))
    asked = list(needs(policies=policies))
    try:
        forbidden = tuple(_forbidden(client, asked))
        return ApiSeen(server=client.server, clock=ahead, forbidden=forbidden, asked=len(asked))
    except SourceError as error:
        return ApiSeen(server=client.server, clock=ahead, review_error=str(error))
    finally:
        client.close()


def _forbidden(client: Client, asked: list[tuple[str, str, str]]) -> Iterator[tuple[str, str]]:
    end = time.monotonic() + REVIEWS
    for verb, group, resource in asked:
        if time.monotonic() > end:
            raise SourceError(f"not all permissions could be checked within {REVIEWS:g} s")
        attributes = {"verb": verb, "group": group, "resource": resource}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = client.request("POST", _REVIEWS, body=body, timeout=TIMEOUT)
        status = answer.get("status") if isinstance(answer, dict) else None
        if not isinstance(status, dict):
            raise SourceError("SelfSubjectAccessReview: the answer has no status")
        if status.get("allowed") is not True:
            yield verb, f"{resource}.{group}" if group else resource
