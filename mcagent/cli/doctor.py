"""`mcagent doctor`: what is wrong, why it matters, what to type next; of this Node, or of whole clusters."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcagent.cli.common import exit_codes
from mcagent.cli.common.setting_flags import add_setting_flags, load_settings
from mcagent.core.doctor.finding import Finding, Level, of_plain, worst

if TYPE_CHECKING:
    from mcagent.agent.config import Settings

_EPILOG = """\
examples:
  mcagent doctor                                    on a Node: that Node, also when its agent is dead
  mcagent doctor --all                              with a kubeconfig: the cluster's API and all of its Nodes
  mcagent doctor --all --context east --context west
  mcagent doctor -o json | jq '.nodes[].findings[] | select(.level == "failed")'
  mcagent doctor --bundle report.tgz                what a bug report needs, without secrets

A line for each check: ✓ fine, ⚠ works but look at it, ✗ wrong, - could not be looked at (docs/doctor.md).
The exit code is 0 when nothing is wrong (there may be ⚠), 1 when there is a ✗.
"""
_PATIENCE = 2.0  # seconds without a word to the user


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is looked at, the form of the answer, the bundle."""
    from mcagent.cli.common.agents import add_agent_flags

    parser.description = (
        "Say what is wrong on this Node or in whole clusters, why it matters, and what to type next."
    )
    parser.epilog = _EPILOG
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text", help="form of the answer")
    parser.add_argument("-q", "--quiet", action="store_true", help="only what is wrong")
    parser.add_argument(
        "--all", action="store_true", help="the cluster of the kubeconfig: its API and all of its Nodes"
    )
    parser.add_argument(
        "--context",
        action="append",
        default=[],
        metavar="NAME",
        help="of the kubeconfig; again for another cluster",
    )
    parser.add_argument(
        "--bundle", type=Path, metavar="FILE.tgz", help="write everything for a bug report there, without secrets"
    )
    add_agent_flags(parser)
    add_setting_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Look and print."""
    settings = _settings(args)
    if args.bundle is not None and args.bundle.exists():
        print(f"mcagent doctor: {args.bundle} exists: it is not overwritten", file=sys.stderr)
        return exit_codes.USAGE
    progress = _Progress()
    if _wants_clusters(args, settings):
        from mcagent.cli.common.doctor_clusters import look_at_clusters

        found = look_at_clusters(args, settings, progress)
    else:
        found = {"clusters": [], "nodes": [this_node(settings, progress)]}
    findings = _findings(found)
    told = {**found, "worst": str(worst(findings))}
    print(json.dumps(told, indent=2) if args.output == "json" else _text(found, quiet=args.quiet))
    if args.bundle is not None:
        from mcagent.cli.common.bundle import write_bundle

        size = write_bundle(
            args.bundle, told, settings, context=args.context, agents=args.agents, progress=progress
        )
        print(f"{args.bundle}: {size} bytes; review it before you share it", file=sys.stderr)
    return exit_codes.FAILED if worst(findings) is Level.FAILED else exit_codes.OK


def _settings(args: argparse.Namespace) -> Settings:
    """Return the configuration, where it names no Node with the machine's name. Raises ConfigError."""
    from mcagent.config.reader import ConfigError

    try:
        return load_settings(args)
    except ConfigError:  # perhaps only for want of the Node's name
        settings = load_settings(args, node_needed=False)
        return replace(settings, core=replace(settings.core, node_name=socket.gethostname().lower()))


def this_node(settings: Settings, progress: Callable[[str], None]) -> dict[str, Any]:
    """Return what is found on this Node."""
    from mcagent.agent.doctor import diagnose
    from mcagent.cli.common.asking import ask_agent
    from mcagent.model.errors import McagentError

    status: Mapping[str, Any] | None = None
    error = ""
    try:
        status = ask_agent(settings, timeout=5.0)
    except McagentError as failure:
        error = str(failure)
    found = diagnose(settings, status, error, progress)
    return {**found, "node": str((status or {}).get("node") or found["node"])}


def _wants_clusters(args: argparse.Namespace, settings: Settings) -> bool:
    """Tell whether clusters are meant: they are named, or this machine is no Node and has a kubeconfig."""
    if args.all or args.context or args.agents:
        return True
    from mcagent.cli.common.cluster_flags import usual_kubeconfig

    node = (settings.status_socket, Path(settings.ovsdb.removeprefix("unix:")))
    is_node = any(path.exists() for path in node) or args.config or os.environ.get("MCAGENT_NODE_NAME")
    return not is_node and bool(usual_kubeconfig())


class _Progress:
    """Says what is being looked at, once it has taken longer than two seconds."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, what: str) -> None:
        if time.monotonic() - self._began > _PATIENCE:
            print(f"looking at {what}", file=sys.stderr, flush=True)


def _findings(found: Mapping[str, Any]) -> list[Finding]:
    read = (of_plain(raw) for part in (*found["clusters"], *found["nodes"]) for raw in part["findings"])
    return [one for one in read if one is not None]


def _text(found: Mapping[str, Any], *, quiet: bool) -> str:
    from mcagent.cli.common import findings_view

    parts = []
    for part in (*found["clusters"], *found["nodes"]):
        title = f"Node {part['node']}" if "node" in part else f"Cluster {part['cluster']}"
        shown = [one for raw in part["findings"] if (one := of_plain(raw)) is not None]
        parts.append(findings_view.text(title, shown, quiet=quiet))
    return "\n\n".join([*parts, findings_view.summary(_findings(found))])
