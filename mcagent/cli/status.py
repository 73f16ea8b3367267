"""`mcagent status`: asks the agent of this Node."""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from mcagent.cli.common import exit_codes
from mcagent.cli.common.antrea import antrea_lines
from mcagent.cli.common.asking import ask_agent
from mcagent.cli.common.live import every, interval_of, show
from mcagent.cli.common.setting_flags import add_setting_flags, load_settings
from mcagent.cli.common.tables import size, table
from mcagent.core.doctor.catalogue import remedy
from mcagent.model.errors import McagentError

_EPILOG = """\
examples:
  mcagent status
  mcagent status --listen 127.0.0.1:10351
  mcagent status -o json | jq .tunnels
  mcagent status --watch --interval 5      # again and again; Ctrl-C ends it

The exit code is 0 when the agent is ready, 1 when it is not or does not answer.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the form of the answer, and the configuration that says where the agent listens."""
    parser.description = "Show how the agent of this Node is doing."
    parser.epilog = _EPILOG
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text", help="form of the answer")
    parser.add_argument("-w", "--watch", action="store_true", help="show it again and again")
    parser.add_argument("--interval", default="2", metavar="SECONDS", help="of --watch [%(default)s]")
    add_setting_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Ask and print."""
    settings = load_settings(args, node_needed=False)

    def picture() -> tuple[bool, str]:
        status = ask_agent(settings)
        as_json = args.output == "json"
        return bool(status.get("ready")), json.dumps(status, indent=2) if as_json else text(status)

    if args.watch:
        show(_tried(picture) for _ in every(interval_of(args.interval)))
    ready, told = picture()
    print(told)
    return exit_codes.OK if ready else exit_codes.FAILED


def _tried(picture: Callable[[], tuple[bool, str]]) -> str:
    """Return what an agent says, or that it does not: one that is restarted ends no watch."""
    try:
        return picture()[1]
    except McagentError as error:
        return f"{error}"


def text(status: Mapping[str, Any]) -> str:
    """Return the status for people."""
    summary = status["summary"]
    lines = [
        f"Node {status['node']}: {'ready' if status['ready'] else 'NOT READY'}",
        f"  version   {status['version']}, running since {status['startedAt']}",
        f"  role      {summary.get('role', 'unknown')}{_because(summary)}",
        f"  cluster   {status['clusterID'] or '(no ID)'}, objects from {status['source']}",
        *_unreachable(summary),
        *(f"  antrea    {line}" for line in antrea_lines(summary)),
        *_exports(status.get("exports", {})),
        f"  passes    {status['passes']}, {status['driftCorrections']} corrections of drift",
        *(f"  not ready: {check['name']}: {check['text']}" for check in status["checks"] if not check["good"]),
        "",
        *table(
            ("FACILITY", "STATE", "FAILURES"),
            [
                (b["name"], "synced" if b["synced"] else "NOT SYNCED", str(b["failures"]))
                for b in status["backends"]
            ],
        ),
        "",
        *table(
            ("OBJECTS", "LISTED", "CONNECTED", "COUNT", "ERROR"),
            [
                (i["kind"], _yes(i["synced"]), _yes(i["connected"]), str(i["objects"]), i["error"])
                for i in status["informers"]
            ],
        ),
        "",
        *table(
            ("TUNNEL", "TO", "ADDRESS", "STATE", "RECEIVED", "SENT", "DROPS", "ERRORS"),
            [_tunnel(tunnel) for tunnel in status["tunnels"]],
        ),
    ]
    encryption = status.get("encryption", {"mode": "none"})
    if encryption["mode"] != "none":
        from mcagent.cli.wireguard import text as encryption_text

        lines += ["", encryption_text(encryption, not_used=False)]  # they are among the problems below
    dropped = {reason: count for reason, count in status.get("nftDrops", {}).items() if count}
    if dropped:
        lines += ["", "packets dropped by nft (docs/operations.md explains each reason):"]
        lines += [f"  {reason:<15} {count}" for reason, count in sorted(dropped.items())]
    if status["problemCount"]:
        lines += ["", f"{status['problemCount']} problems:"]
        for p in status["problems"]:
            lines.append(f"  {p['severity']}: {p['subject']} {p['path']}: {p['message']}")
            lines += [f"    what to do: {what}"] if (what := remedy(p.get("reason", ""))) else []
    return "\n".join(line.rstrip() for line in lines)


def _tunnel(tunnel: Mapping[str, Any]) -> tuple[str, ...]:
    counters = tunnel["statistics"]
    state = "missing" if not tunnel["exists"] else "down" if tunnel["up"] is False else "up"
    return (
        tunnel["name"],
        f"{tunnel['peerKind']} {tunnel['peer']}",
        tunnel["remoteIP"],
        state,
        size(counters.get("rx_bytes", 0)),
        size(counters.get("tx_bytes", 0)),
        str(counters.get("rx_dropped", 0) + counters.get("tx_dropped", 0)),
        str(counters.get("rx_errors", 0) + counters.get("tx_errors", 0)),
    )


def _exports(exports: Mapping[str, Any]) -> list[str]:
    """Return a line to be compared with other gateways'; none while nothing is exported."""
    if not exports:
        return []
    endpoints = sum(one["endpoints"] for one in exports.values())
    whole = zlib.crc32(b"".join(one["hash"].to_bytes(4) for one in exports.values()))
    what = f"Services: {len(exports)}, endpoints: {endpoints}, hash: {whole:08x}"
    return [f"  exports   {what} (the same on gateways that know the same)"]


def _unreachable(summary: Mapping[str, Any]) -> list[str]:
    """Return the clusters that new connections to imported Services leave; none while all are reached."""
    found = summary.get("unreachable", [])
    if not found:
        return []
    why = "no gateway of this cluster reaches them: new connections to imported Services go elsewhere"
    return [f"  unreached {', '.join(found)} ({why})"]


def _because(summary: Mapping[str, Any]) -> str:
    return f" ({summary['why']})" if summary.get("why") else ""


def _yes(value: object) -> str:
    return "yes" if value else "NO"
