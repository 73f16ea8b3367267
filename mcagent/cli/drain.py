"""`mcagent drain` and, in `mcagent.cli.undrain`, its opposite: planned hand-over of a gateway."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from mcagent.agent.config import Settings
from mcagent.api.codec import from_json
from mcagent.api.status import DrainStatus, Status
from mcagent.cli.common import exit_codes
from mcagent.cli.common.asking import ask, ask_agent
from mcagent.cli.common.cluster_flags import usual_kubeconfig
from mcagent.cli.common.setting_flags import KUBECONFIG, add_config_flag, load_settings
from mcagent.core.failover.draining import NO_GATEWAY, Phase
from mcagent.model.errors import McagentError
from mcagent.model.parsing.kubernetes import DRAIN_ANNOTATION

if TYPE_CHECKING:
    from mcagent.kube.client import Client

LOOK = 0.5  # seconds between looks at how far it is
ASK_TIMEOUT = 2.0

_EPILOG = f"""\
examples:
  mcagent drain node-3                          by the API: sets the annotation {DRAIN_ANNOTATION} on the Node
  mcagent drain node-3 --no-wait
  mcagent drain --local                         on the Node itself, without any API

First the gateways of other clusters move away, then the Nodes of this cluster. Connections stay open, except those
that this gateway translates (source NAT): they end with it, and `mcagent plan --what-if 'node NAME drained'` shows
their share. The agent of the Node drains, until `mcagent undrain`. It refuses if no other gateway of the cluster
is live.

The progress is read from the agent itself where it can be reached, else from the Events of the Node.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which Node, and how to reach it."""
    parser.description = (
        "Move the traffic of a Node to other gateways without packet loss, and wait until it has moved."
    )
    parser.epilog = _EPILOG
    add_target(parser)
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS", help="wait so long [%(default)g]"
    )
    parser.add_argument("--no-wait", action="store_true", help="ask for it, and do not wait")


def add_target(parser: argparse.ArgumentParser) -> None:
    """Declare which Node is meant."""
    parser.add_argument("node", nargs="?", metavar="NODE", help="the Node's name")
    parser.add_argument("--local", action="store_true", help="this very Node, through its Open vSwitch database")
    parser.add_argument("--context", default="", metavar="NAME", help="of the kubeconfig [its current one]")
    add_config_flag(parser, {"kubeconfig": KUBECONFIG})


def run(args: argparse.Namespace) -> int:
    """Ask for it and wait."""
    settings = load_settings(args, node_needed=False)
    target = target_of(args, settings)
    asked_at = datetime.now(UTC).replace(microsecond=0)
    target.set(True)
    print(f"{target.name}: asked to hand over")
    if args.no_wait:
        return exit_codes.OK
    try:
        return wait_drained(target.progress(asked_at), target.name, args.timeout)
    except RefusedError:
        target.set(False)  # it must not go by surprise, when another one is back some day
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A Node that can be asked to hand over. `progress` yields how far it is; None while that is not known."""

    name: str
    set: Callable[[bool], None]
    progress: Callable[[datetime], Iterator[DrainStatus | None]]


def target_of(args: argparse.Namespace, settings: Settings) -> Target:
    """Return the Node that the command line means. Raises McagentError."""
    if args.local:
        if args.node:
            raise UsageError("NODE and --local exclude each other: --local means the Node it runs on")
        return local_target(settings)
    if not args.node:
        raise UsageError("which Node? Give its name, or --local on the Node itself")
    return _by_api(args.node, settings, args.context)


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

    return Target(name="this Node", set=put, progress=progress)


def _by_api(node: str, settings: Settings, context: str) -> Target:
    from mcagent.kube.client import Client

    client = Client(settings.kubeconfig or usual_kubeconfig(), context)
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

    return Target(name=f"Node {node}", set=put, progress=progress)


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


def wait_drained(progress: Iterator[DrainStatus | None], name: str, timeout: float) -> int:
    """Wait until the Node has handed over. Raises RefusedError, McagentError when it takes too long."""
    deadline = time.monotonic() + timeout
    last = ""
    refusals = 0
    while True:
        drain = next(progress) or DrainStatus()
        if drain.phase not in ("", last, Phase.SERVING, Phase.DRAINED):
            print(f"{name}: {drain.phase}", flush=True)
        last = drain.phase or last
        if drain.phase == Phase.DRAINED:
            how = "no packet comes any more" if drain.clean else "packets still arrived at the end"
            print(f"{name}: drained; {how}")
            return exit_codes.OK
        if drain.refused == NO_GATEWAY:
            print(f"{name}: {NO_GATEWAY}")
            return exit_codes.OK
        refusals = refusals + 1 if drain.refused else 0
        if refusals >= 2:  # the first may be from before it was asked
            raise RefusedError(f"{name} is not drained; request withdrawn: {drain.refused}")
        if time.monotonic() >= deadline:
            reason = f"still {last}" if last else "its agent is silent"
            raise McagentError(f"{name} is not drained after {timeout:g} s: {reason}")
        time.sleep(LOOK)
