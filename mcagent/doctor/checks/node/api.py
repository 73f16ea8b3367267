"""Check `api`: the Node reaches its API server, whose clock agrees. Also reads the account's permissions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from mcagent.agent.config import Settings
from mcagent.api.doctor import CheckFinding
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.checks.clock import clock_finding
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.reviews import allowed
from mcagent.doctor.readings.switch import switch
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.source import RawObject
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.errors import SourceError
from mcagent.model.kinds import AGENT_KINDS, KINDS
from mcagent.model.objects import Kind

CHECK = DoctorCheck(
    name="api",
    order=40,
    summary="the Node reaches its API server, whose clock agrees",
    causes={
        "ApiAway": failed(
            "forwarding and failover continue, but changes of the API are not received",
            "curl -k {server}/readyz on this Node; the agent catches up when it answers",
        ),
        "ClockOff": warning(
            "the validity of certificates and tokens depends on the clock, WireGuard refuses handshakes of a "
            "clock that was set back, and times of different Nodes cannot be compared",
            "chronyc tracking, or timedatectl: is the time synchronised?",
        ),
    },
)
_TIMEOUT = 3.0  # seconds for one request
_REVIEWS_TIMEOUT = 4.0  # seconds for all questions about permissions
_POLICY_KINDS = frozenset(
    {
        Kind.NAMESPACE,
        Kind.LABEL_IDENTITY,
        Kind.NETWORK_POLICY,
        Kind.ANTREA_NETWORK_POLICY,
        Kind.CLUSTER_NETWORK_POLICY,
        Kind.TIER,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServer:
    """This Node's API server. `clock`: how far it is ahead of this Node, in seconds; None: unknown.

    `forbidden`: of `checked` permissions, those that the agent's account lacks, as (verb, resource).
    """

    used: bool = True  # False: objects come from a directory
    server: str = ""
    error: str = ""
    clock: float | None = None
    forbidden: tuple[tuple[str, str], ...] = ()
    checked: int = 0
    review_error: str = ""


def begin(node: ExaminedNode) -> Future[ApiServer]:
    """Start the requests to the API server: an unreachable one answers late."""
    pool = ThreadPoolExecutor(1, "doctor")
    try:
        return pool.submit(_ask, node.settings)
    finally:
        pool.shutdown(wait=False)


def api_server(node: ExaminedNode) -> ApiServer:
    """Wait for the API server's answers. Raises no error: failures are in the result."""
    node.progress("the API server")
    return node.read(begin).result()


def _ask(settings: Settings) -> ApiServer:
    if settings.source != "kube":
        return ApiServer(used=False)
    return ask(settings.kubeconfig, policies=settings.core.stretched_network_policy)


def ask(kubeconfig: str | RawObject, *, policies: bool) -> ApiServer:
    """Query the API server that a Node's agent uses, with the agent's account. Raises no error."""
    try:
        client = Client(kubeconfig, user_agent="mcagent-doctor")
    except SourceError as error:
        return ApiServer(error=str(error))
    try:
        ahead = client.clock(timeout=_TIMEOUT)
    except ApiRefusalError:
        ahead = None  # it answers; the requests below report what it refuses
    except SourceError as error:
        return ApiServer(server=client.server, error=str(error))
    permissions = list(needs(policies=policies))
    try:
        forbidden = tuple(_forbidden(client, permissions))
        return ApiServer(server=client.server, clock=ahead, forbidden=forbidden, checked=len(permissions))
    except SourceError as error:
        return ApiServer(server=client.server, clock=ahead, review_error=str(error))
    finally:
        client.close()


def needs(*, policies: bool) -> Iterator[tuple[str, str, str]]:
    """Yield the permissions of an agent: verb, group, resource. `policies`: enableStretchedNetworkPolicy."""
    for kind in sorted(AGENT_KINDS):
        if policies or kind not in _POLICY_KINDS:
            yield from ((verb, KINDS[kind].group, KINDS[kind].plural) for verb in ("list", "watch"))
    yield "patch", KINDS[Kind.GATEWAY].group, KINDS[Kind.GATEWAY].plural
    yield "create", "", "events"


def _forbidden(client: Client, permissions: list[tuple[str, str, str]]) -> Iterator[tuple[str, str]]:
    end = time.monotonic() + _REVIEWS_TIMEOUT
    for verb, group, resource in permissions:
        if time.monotonic() > end:
            raise SourceError(f"not all permissions could be checked within {_REVIEWS_TIMEOUT:g} s")
        attributes = {"verb": verb, "group": group, "resource": resource}
        if not allowed(client, "SelfSubjectAccessReview", {"resourceAttributes": attributes}, _TIMEOUT):
            yield verb, f"{resource}.{group}" if group else resource


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Evaluate the connections of this Node and of the agent's watches."""
    api, open_vswitch = node.read(api_server), node.read(switch)
    if not api.used:
        yield CHECK.passed("not used: objects come from a directory")
        return
    broken_watches = [
        f"{informer.kind}: {informer.error or 'not connected'}"
        for informer in node.status.informers
        if informer.synced and not informer.connected
    ]
    if api.error and open_vswitch.vswitchd_error and open_vswitch.datapath is DatapathType.NETDEV:
        why = "the uplink of a userspace datapath is on Open vSwitch, which does not run"
        yield CHECK.skipped(f"{api.error}; {why}")
    elif api.error:
        yield CHECK.finding("ApiAway", api.error, server=api.server or "https://API-SERVER")
    elif broken_watches:
        yield CHECK.finding("ApiAway", f"the agent's watches: {'; '.join(broken_watches[:3])}", server=api.server)
    else:
        yield CHECK.passed(f"{api.server} answers")
    yield from clock_finding(CHECK, "ClockOff", api.clock, "the API server")
