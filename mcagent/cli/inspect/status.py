"""`mcagent status`: shows the status of this Node's agent, or of a whole cluster."""

from __future__ import annotations

import argparse
import json
import time
import zlib
from collections.abc import Callable, Mapping

from mcagent.api.codec import from_json
from mcagent.api.status import ExportStatus, GatewayStatus, Status, TunnelStatus
from mcagent.cli.common import exit_codes
from mcagent.cli.common.antrea import antrea_lines
from mcagent.cli.common.asking import ask_agent
from mcagent.cli.common.cluster_flags import add_cluster_flags
from mcagent.cli.common.live import every, interval_of, show
from mcagent.cli.common.place import is_node, kubeconfig_of
from mcagent.cli.common.setting_flags import add_config_flag, load_settings
from mcagent.cli.common.shared_flags import add_output_flag
from mcagent.cli.common.tables import size, table
from mcagent.core.causes import remedy
from mcagent.model.errors import McagentError

_EPILOG = """\
examples:
  mcagent status
  mcagent status --config /etc/mcagent/agent.yaml
  mcagent status -o json | jq .tunnels
  mcagent status --watch --interval 5      # again and again; Ctrl-C ends it
  mcagent status --context east            # a whole cluster, from objects of its API: problems first

Without --kubeconfig and --context it is the status of this Node's agent; on a machine without an agent, that of
the cluster of $KUBECONFIG or ~/.kube/config. The exit code is 0 when the agent is ready and reaches every other
cluster, or the cluster has no problem (warnings do not count), else 1.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the form of the answer, and the configuration that says where the agent listens."""
    parser.description = "Show the status of this Node's agent, or of a whole cluster."
    parser.epilog = _EPILOG
    add_output_flag(parser)
    parser.add_argument("-w", "--watch", action="store_true", help="show it again and again")
    parser.add_argument("--interval", default="2", metavar="SECONDS", help="of --watch [%(default)s]")
    add_cluster_flags(parser)
    add_config_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Ask and print."""
    settings = load_settings(args, node_needed=False)
    as_json = args.output == "json"

    def of_agent() -> tuple[bool, str]:
        page = ask_agent(settings)
        status = from_json(Status, page, "the agent")
        healthy = status.ready and not any(problem.error for problem in status.health)
        return healthy, json.dumps(page, indent=2) if as_json else text(status)

    def of_cluster() -> tuple[bool, str]:
        return _cluster(kubeconfig_of(args, "mcagent status", settings), args.context, as_json=as_json)

    picture = of_agent if is_node(args, settings) and not (args.kubeconfig or args.context) else of_cluster

    if args.watch:
        show(_tried(picture) for _ in every(interval_of(args.interval)))
    ready, shown = picture()
    print(shown)
    return exit_codes.OK if ready else exit_codes.FAILED


def _cluster(kubeconfig: str, context: str, *, as_json: bool) -> tuple[bool, str]:
    """Return whether a cluster has no problem, and its state as text or JSON. Raises SourceError."""
    from mcagent.api.codec import to_json
    from mcagent.cli.common import overview_text
    from mcagent.controller.admin import overview
    from mcagent.controller.admin.cluster import Cluster
    from mcagent.kube.client import Client

    client = Client(kubeconfig, context)
    try:
        cluster = Cluster(client, lambda _: None)
        state = overview.overview(overview.read(cluster), cluster.server)
    finally:
        client.close()
    shown = json.dumps(to_json(state), indent=2) if as_json else overview_text.text(state, time.time())
    return not any(problem.error for problem in state.problems), shown


def _tried(picture: Callable[[], tuple[bool, str]]) -> str:
    """Return what an agent says, or that it does not: one that is restarted ends no watch."""
    try:
        return picture()[1]
    except McagentError as error:
        return f"{error}"


def text(status: Status) -> str:
    """Return the status for people."""
    summary = status.summary
    because = f" ({summary.why})" if summary.why else ""
    lines = [
        f"Node {status.node}: {_state(status)}",
        *(f"  {'✗' if problem.error else '⚠'} {problem.reason}: {problem.message}" for problem in status.health),
        f"  version   {status.version}, running since {status.started_at}",
        f"  role      {summary.role or 'unknown'}{because}",
        f"  cluster   {status.cluster_id or '(no ID)'}, objects from {status.source}",
        *(f"  pods      {a} are {b} in other clusters" for a, b in summary.virtual_pod_cidrs.items()),
        *(f"  antrea    {line}" for line in antrea_lines(summary)),
        *_exports(status.exports),
        f"  passes    {status.passes}, {status.drift_corrections} corrections of drift",
        *(f"  not ready: {check.name}: {check.text}" for check in status.checks if not check.good),
        "",
        *table(
            ("FACILITY", "STATE", "FAILURES"),
            [(b.name, "synced" if b.synced else "NOT SYNCED", str(b.failures)) for b in status.backends],
        ),
        "",
        *table(
            ("OBJECTS", "LISTED", "CONNECTED", "COUNT", "ERROR"),
            [(i.kind, _yes(i.synced), _yes(i.connected), str(i.objects), i.error) for i in status.informers],
        ),
        "",
        *table(
            ("TUNNEL", "TO", "ADDRESS", "STATE", "RECEIVED", "SENT", "DROPS", "ERRORS"),
            [_tunnel(tunnel, status.gateways_by_tunnel.get(tunnel.name)) for tunnel in status.tunnels],
        ),
    ]
    if status.encryption is not None and status.encryption.mode != "none":
        from mcagent.cli.wireguard import text as encryption_text

        lines += ["", encryption_text(status.encryption, not_used=False)]  # they are among the problems below
    dropped = {reason: count for reason, count in status.nft_drops.items() if count}
    if dropped:
        lines += ["", "packets dropped by nft (docs/operations.md explains each reason):"]
        lines += [f"  {reason:<15} {count}" for reason, count in sorted(dropped.items())]
    if status.problem_count:
        lines += ["", f"{status.problem_count} problems:"]
        for problem in status.problems:
            lines.append(f"  {problem.severity}: {problem.subject} {problem.path}: {problem.message}")
            lines += [f"    what to do: {advice}"] if (advice := remedy(problem.reason)) else []
    return "\n".join(line.rstrip() for line in lines)


def _tunnel(tunnel: TunnelStatus, gateway: GatewayStatus | None) -> tuple[str, ...]:
    """Return a row. `gateway`: the peer, if it is one; the port of a tunnel is up whether it answers or not."""
    counters = tunnel.statistics
    state = "missing" if not tunnel.exists else {True: "up", False: "down", None: "unknown"}[tunnel.up]
    if state in ("up", "unknown") and gateway is not None and not gateway.live:
        state = "NOT LIVE"
    return (
        tunnel.name,
        f"{tunnel.peer_kind} {tunnel.peer}",
        tunnel.remote_ip,
        state,
        size(counters.get("rx_bytes", 0)),
        size(counters.get("tx_bytes", 0)),
        str(counters.get("rx_dropped", 0) + counters.get("tx_dropped", 0)),
        str(counters.get("rx_errors", 0) + counters.get("tx_errors", 0)),
    )


def _exports(exports: Mapping[str, ExportStatus]) -> list[str]:
    """Return a line to be compared with other gateways'; none while nothing is exported."""
    if not exports:
        return []
    endpoints = sum(export.endpoints for export in exports.values())
    whole = zlib.crc32(b"".join(export.hash.to_bytes(4) for export in exports.values()))
    text = f"Services: {len(exports)}, endpoints: {endpoints}, hash: {whole:08x}"
    return [f"  exports   {text} (the same on gateways that know the same)"]


def _state(status: Status) -> str:
    """Return whether the agent is ready, and other clusters are reached."""
    errors = sum(problem.error for problem in status.health)
    return f"{'ready' if status.ready else 'NOT READY'}{f', NOT HEALTHY: {errors} problems' if errors else ''}"


def _yes(value: object) -> str:
    return "yes" if value else "NO"
