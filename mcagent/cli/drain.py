"""`mcagent drain` and, in `mcagent.cli.undrain`, its opposite: planned hand-over of a gateway."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from msgspec import structs

from mcagent.agent.config import Settings
from mcagent.api.codec import from_json, to_json
from mcagent.api.status import DrainReport, DrainStatus, Status, TranslatedConnections
from mcagent.cli.common import exit_codes
from mcagent.cli.common.agents import Agents, add_agent_flags, agents_of, ask_node
from mcagent.cli.common.asking import CONNECTIONS, ask, ask_agent
from mcagent.cli.common.cluster_flags import add_cluster_flags, complete_nodes, usual_kubeconfig
from mcagent.cli.common.place import require_known
from mcagent.cli.common.setting_flags import add_config_flag, load_settings
from mcagent.cli.common.shared_flags import add_output_flag, add_seconds_flag
from mcagent.core.failover.draining import NO_GATEWAY, Phase
from mcagent.model.errors import McagentError
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from mcagent.model.parsing.kubernetes import DRAIN_ANNOTATION, GATEWAY_ANNOTATION

if TYPE_CHECKING:
    from mcagent.kube.client import Client

LOOK = 0.5  # seconds between looks at how far it is
GRACE = 30.0  # seconds: as terminationGracePeriodSeconds of Pods
ASK_TIMEOUT = 2.0

_EPILOG = f"""\
examples:
  mcagent drain node-3                          by the API: sets the annotation {DRAIN_ANNOTATION} on the Node
  mcagent drain node-3 --grace 300              wait up to five minutes for translated connections
  mcagent drain node-3 --grace 0 --no-wait
  mcagent drain --local                         on the Node itself, without any API

First the gateways of other clusters move away, then the Nodes of this cluster. Connections stay open, except those
that this gateway translates (source NAT): they end with it. The command counts the open TCP connections of this
kind and waits until there is none, at most --grace seconds; new ones may begin meanwhile. `mcagent plan --what-if
'node NAME drained'` shows which connections are translated. The agent of the Node drains, until `mcagent undrain`.
It refuses if no other gateway of the cluster is live. A cordon or the annotation itself drains without this wait.

Connections are counted by the agent (--agents, or a command in its Pod). The progress is read from the agent
itself where it can be reached, else from the Events of the Node.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which Node, and how to reach it."""
    parser.description = (
        "Move the traffic of a Node to other gateways without packet loss, and wait until it has moved."
    )
    parser.epilog = _EPILOG
    add_target(parser)
    add_grace(parser)
    add_seconds_flag(parser, "--timeout", 60.0, "wait so long for the drain")
    parser.add_argument("--no-wait", action="store_true", help="ask for the drain, and do not wait for its end")
    add_output_flag(parser)
    add_agent_flags(parser)


def add_grace(parser: argparse.ArgumentParser) -> None:
    """Declare how long translated connections are waited for."""
    add_seconds_flag(
        parser, "--grace", GRACE, "wait so long for the connections that the gateway translates; 0: do not wait"
    )


def add_target(parser: argparse.ArgumentParser) -> None:
    """Declare which Node is meant."""
    node = parser.add_argument("node", nargs="?", metavar="NODE", help="the Node's name")
    node.completer = complete_nodes  # type: ignore[attr-defined]  # argcomplete
    parser.add_argument("--local", action="store_true", help="this very Node, through its Open vSwitch database")
    add_cluster_flags(parser)
    add_config_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Ask for it and wait."""
    settings = load_settings(args, node_needed=False)
    agents = partial(agents_of, listed=args.agents, authority=args.agents_ca, port=args.agents_port)
    target = target_of(args, settings, agents)
    stream = sys.stderr if args.output == "json" else sys.stdout

    def say(text: str) -> None:
        print(text, file=stream, flush=True)

    if not target.is_gateway():
        say(f"{target.name}: {NO_GATEWAY}")
        if args.output == "json":
            print(json.dumps(to_json(DrainReport(node=target.node, error=NO_GATEWAY)), indent=2))
        return exit_codes.OK
    report = wait_translated(target, args.grace, say)
    asked_at = datetime.now(UTC).replace(microsecond=0)
    target.set(True)
    say(f"{target.name}: asked to hand over")
    if not args.no_wait:
        try:
            end = wait_drained(target.progress(asked_at), target.name, args.timeout, say)
        except RefusedError:
            target.set(False)  # it must not go by surprise, when another one is back some day
            raise
        if end.phase == Phase.DRAINED:
            report = structs.replace(report, drained=True, clean=end.clean)
        else:
            report = structs.replace(report, error=end.refused)
    if args.output == "json":
        print(json.dumps(to_json(report), indent=2))
    return exit_codes.OK


AgentsOf = Callable[["Client"], Agents]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A Node that can be asked to hand over. `progress` yields how far it is; None while that is not known.

    `translated` returns the number of open TCP connections that it translates. Raises McagentError.
    `is_gateway`: it is a gateway, may become one, or that is not known; `is_asked`: it is asked to drain, or that
    is not known.
    """

    name: str
    node: str
    set: Callable[[bool], None]
    progress: Callable[[datetime], Iterator[DrainStatus | None]]
    translated: Callable[[], int]
    is_gateway: Callable[[], bool] = lambda: True
    is_asked: Callable[[], bool] = lambda: True


def target_of(args: argparse.Namespace, settings: Settings, agents: AgentsOf = agents_of) -> Target:
    """Return the Node that the command line means; `agents` returns those of its cluster. Raises McagentError."""
    if args.local:
        if args.node:
            raise UsageError("NODE and --local exclude each other: --local means the Node it runs on")
        return local_target(settings)
    if not args.node:
        raise UsageError("which Node? Give its name, or --local on the Node itself")
    return _by_api(args.node, settings, args.context, agents)


class RefusedError(McagentError):
    """The agent of the Node does not do it, and says why."""


class UsageError(McagentError):
    """The command line is wrong."""

    exit_code = exit_codes.USAGE


def local_target(settings: Settings) -> Target:
    """Return this very Node, which is asked through its Open vSwitch database."""
    from mcagent.dataplane.ovsdb.backend import OvsdbBackend

    def put(wanted: bool) -> None:
        backend = OvsdbBackend(settings.ovsdb, settings.core.bridge)
        try:
            backend.set_drain(wanted)
        finally:
            backend.close()

    def progress(_since: datetime) -> Iterator[DrainStatus | None]:
        while True:
            yield _drain(lambda: ask_agent(settings, timeout=ASK_TIMEOUT))

    return Target(
        name="this Node",
        node=settings.core.node_name,
        set=put,
        progress=progress,
        translated=lambda: _translated(ask_agent(settings, CONNECTIONS)),
    )


def _by_api(node: str, settings: Settings, context: str, agents: AgentsOf) -> Target:
    from mcagent.kube.client import Client
    from mcagent.kube.errors import ApiRefusalError

    client = Client(settings.kubeconfig or usual_kubeconfig(), context)
    reached = agents(client)
    path = f"/api/v1/nodes/{quote(node, safe='')}"

    def put(wanted: bool) -> None:
        change = {"metadata": {"annotations": {DRAIN_ANNOTATION: "true" if wanted else None}}}
        client.request("PATCH", path, body=change, content_type="application/merge-patch+json")

    def progress(since: datetime) -> Iterator[DrainStatus | None]:
        addresses = client.request("GET", path).get("status", {}).get("addresses", [])
        host = next((a["address"] for a in addresses if a.get("type") == "InternalIP"), "")
        while True:
            direct = _drain(lambda: ask(host, settings.listen_address[1], timeout=ASK_TIMEOUT)) if host else None
            yield direct or _by_events(client, node, since)

    def metadata() -> Mapping[str, Any]:
        try:
            return client.request("GET", path).get("metadata") or {}
        except ApiRefusalError as error:
            if error.code == 404:
                nodes = client.request("GET", "/api/v1/nodes", {"limit": "20000"}).get("items") or ()
                require_known(node, [item["metadata"]["name"] for item in nodes])
            raise

    def is_gateway() -> bool:
        meta = metadata()
        gateways = client.request("GET", object_path(Kind.GATEWAY, "")).get("items", [])
        return GATEWAY_ANNOTATION in (meta.get("annotations") or {}) or any(
            gateway["metadata"]["name"] == node for gateway in gateways
        )

    return Target(
        name=f"Node {node}",
        node=node,
        set=put,
        progress=progress,
        is_gateway=is_gateway,
        is_asked=lambda: DRAIN_ANNOTATION in (metadata().get("annotations") or {}),
        translated=lambda: _translated(ask_node(reached, node, CONNECTIONS)),
    )


def _translated(page: Mapping[str, Any]) -> int:
    return from_json(TranslatedConnections, page, "the agent").translated


def _drain(page: Callable[[], Mapping[str, Any]]) -> DrainStatus | None:
    try:
        return from_json(Status, page(), "the agent").drain
    except McagentError:
        return None


def _by_events(client: Client, node: str, since: datetime) -> DrainStatus | None:
    """Return how far it is by the Events that the Node's agent made since then."""
    query = {"fieldSelector": f"involvedObject.kind=Node,involvedObject.name={node}"}
    items = client.request("GET", "/api/v1/namespaces/default/events", query).get("items", [])
    drain = None
    first = f"{since:%Y-%m-%dT%H:%M:%SZ}"
    for event in sorted(items, key=lambda item: str(item.get("lastTimestamp"))):
        about = event.get("involvedObject", {}).get("name")
        if about != node or str(event.get("lastTimestamp")) < first:
            continue
        if event.get("reason") == "GatewayDrained":
            drain = DrainStatus(phase=Phase.DRAINED)
        elif event.get("reason") == "DrainRefused":
            drain = DrainStatus(phase=Phase.SERVING, refused=event.get("message", "refused"))
    return drain


def wait_translated(target: Target, grace: float, say: Callable[[str], None]) -> DrainReport:
    """Wait until the Node translates no open connection, at most `grace` seconds; return the counts."""
    report = DrainReport(node=target.node)
    deadline = time.monotonic() + grace
    while True:
        try:
            count = target.translated()
        except McagentError as error:
            if report.translated is None:
                say(f"{target.name}: the connections that it translates are not counted: {error}")
                return structs.replace(report, error=str(error))
            # otherwise the last count stands: the agent may be busy or restart
        if report.translated is None:
            report = structs.replace(report, translated=count)
            say(f"{target.name}: open TCP connections that it translates, which end with the drain: {count}")
            if count and grace > 0:
                say(f"{target.name}: waiting at most {grace:g} s for their end")
        elif not count:
            say(f"{target.name}: they have ended")
        if not count or time.monotonic() >= deadline:
            if count and grace > 0:
                say(f"{target.name}: still open: {count}; they end now")
            return structs.replace(report, ended=count)
        time.sleep(LOOK)


def wait_drained(
    progress: Iterator[DrainStatus | None], name: str, timeout: float, say: Callable[[str], None]
) -> DrainStatus:
    """Wait until the Node has handed over, or is no gateway; return the last state.

    Raises RefusedError, McagentError when it takes too long.
    """
    deadline = time.monotonic() + timeout
    last = ""
    refusals = 0
    while True:
        drain = next(progress) or DrainStatus()
        if drain.phase not in ("", last, Phase.SERVING, Phase.DRAINED):
            say(f"{name}: {drain.phase}")
        last = drain.phase or last
        if drain.phase == Phase.DRAINED:
            how = "no packet comes any more" if drain.clean else "packets still arrived at the end"
            say(f"{name}: drained; {how}")
            return drain
        if drain.refused == NO_GATEWAY:
            say(f"{name}: {NO_GATEWAY}")
            return drain
        refusals = refusals + 1 if drain.refused else 0
        if refusals >= 2:  # the first may be from before it was asked
            raise RefusedError(f"{name} is not drained; request withdrawn: {drain.refused}")
        if time.monotonic() >= deadline:
            reason = f"still {last}" if last else "its agent is silent"
            withdraw = "the request stays until mcagent undrain"
            raise McagentError(f"{name} is not drained after {timeout:g} s: {reason}; {withdraw}")
        time.sleep(LOOK)
