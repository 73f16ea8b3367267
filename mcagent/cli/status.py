"""`mcagent status`: asks the agent of this Node."""

from __future__ import annotations

import argparse
import http.client
import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mcagent.agent.config_keys import Settings
from mcagent.cli import exit_codes
from mcagent.cli.settings import add_setting_flags, load_settings
from mcagent.model.errors import McagentError

TIMEOUT = 10.0  # seconds
MAX_ANSWER = 64 * 1024 * 1024  # bytes
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

_EPILOG = f"""\
examples:
  mcagent status
  mcagent status --listen 127.0.0.1:10351
  mcagent status -o json | jq .tunnels

The exit code is 0 when the agent is ready, 1 when it is not or does not answer.

{exit_codes.EXPLAINED}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the form of the answer, and the configuration that says where the agent listens."""
    parser.description = "Tell how the agent of this Node is doing."
    parser.epilog = _EPILOG
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text", help="form of the answer")
    add_setting_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Ask and print."""
    status = ask_agent(load_settings(args, node_needed=False))
    print(json.dumps(status, indent=2) if args.output == "json" else text(status))
    return exit_codes.OK if status.get("ready") else exit_codes.FAILED


def ask_agent(settings: Settings, timeout: float = TIMEOUT) -> Mapping[str, Any]:
    """Return /status of this Node's agent. Raises McagentError when none answers.

    Where the pages ask others for a token, the agent's own Node has a Unix socket, which is root's.
    """
    if settings.status_socket is None:
        return ask(*settings.listen_address, timeout)
    return _ask(_UnixConnection(settings.status_socket, timeout), str(settings.status_socket))


def ask(host: str, port: int, timeout: float = TIMEOUT) -> Mapping[str, Any]:
    """Return /status of the agent that listens there in clear text. Raises McagentError when none answers."""
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return _ask(http.client.HTTPConnection(host, port, timeout=timeout), f"{host}:{port}")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _ask(connection: http.client.HTTPConnection, where: str) -> Mapping[str, Any]:
    try:
        connection.request("GET", "/status")
        text = connection.getresponse().read(MAX_ANSWER + 1)
        if len(text) > MAX_ANSWER:
            raise ValueError(f"more than {MAX_ANSWER} bytes")
        answer = json.loads(text)
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        raise McagentError(f"no agent answers at {where}: {error}") from None
    finally:
        connection.close()
    if not isinstance(answer, dict):
        raise McagentError(f"what answers at {where} is no agent")
    return answer


def text(status: Mapping[str, Any]) -> str:
    """Return the status for people."""
    summary = status["summary"]
    lines = [
        f"Node {status['node']}: {'ready' if status['ready'] else 'NOT READY'}",
        f"  version   {status['version']}, running since {status['startedAt']}",
        f"  role      {summary.get('role', 'unknown')}{_because(summary)}",
        f"  cluster   {status['clusterID'] or '(no ID)'}, objects from {status['source']}",
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

        lines += ["", encryption_text(encryption, not_used=False)]  # the problems below tell it
    dropped = {reason: count for reason, count in status.get("nftDrops", {}).items() if count}
    if dropped:
        lines += ["", "packets that nft dropped (docs/operations.md says what each reason means):"]
        lines += [f"  {reason:<15} {count}" for reason, count in sorted(dropped.items())]
    if status["problemCount"]:
        lines += ["", f"{status['problemCount']} problems:"]
        lines += [f"  {p['severity']}: {p['subject']} {p['path']}: {p['message']}" for p in status["problems"]]
    return "\n".join(line.rstrip() for line in lines)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return aligned lines."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)
    ]


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


def size(count: int) -> str:
    """Return bytes with a unit: "512 B", "1.5 MiB"."""
    value = float(count)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def _because(summary: Mapping[str, Any]) -> str:
    return f" ({summary['why']})" if summary.get("why") else ""


def _yes(value: object) -> str:
    return "yes" if value else "NO"
