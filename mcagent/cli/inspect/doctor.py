"""`mcagent doctor`: what is wrong, why it matters, what to type next; of this Node, or of whole clusters."""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from mcagent.api.codec import to_json
from mcagent.api.doctor import ClusterReport, DoctorReport, NodeReport
from mcagent.cli.common import exit_codes
from mcagent.cli.common.cluster_flags import add_cluster_flags, usual_kubeconfig
from mcagent.cli.common.place import is_node, kubeconfig_of
from mcagent.cli.common.setting_flags import add_config_flag, load_settings
from mcagent.cli.common.shared_flags import add_all_flag, add_output_flag
from mcagent.cli.common.tables import safe
from mcagent.model.errors import McagentError

if TYPE_CHECKING:
    from mcagent.agent.config import Settings
    from mcagent.kube.client import Client

_EPILOG = """\
examples:
  mcagent doctor                                    on a Node: that Node, also when its agent is dead
  mcagent doctor --all                              with a kubeconfig: the cluster's API and all of its Nodes
  mcagent doctor --all --context east --context west
  mcagent doctor -o json | jq '.nodes[].findings[] | select(.level == "failed")'
  mcagent doctor --probe /proc/4711/ns/net          also packets of the Pod of process 4711, in both directions
  mcagent doctor --bundle report.tgz                what a bug report needs, without secrets

A line for each check: ✓ fine, ⚠ works but look at it, ✗ wrong, - could not be looked at (docs/doctor.md).
The exit code is 0 when nothing is wrong (there may be ⚠), 1 when there is a ✗, or when a check of a cluster could
not read what it examines (no right, no answer).
"""
_PATIENCE = 2.0  # seconds without a word to the user
_ASK = 20.0  # seconds for the doctor of another Node


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is looked at, the form of the answer, the bundle."""
    from mcagent.cli.common.agents import add_agent_flags

    parser.description = (
        "Diagnose this Node or whole clusters: what is wrong, why it matters, and what to type next."
    )
    parser.epilog = _EPILOG
    add_output_flag(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="only what is wrong")
    add_all_flag(parser)
    add_cluster_flags(parser, several=True)
    parser.add_argument(
        "--bundle", type=Path, metavar="FILE.tgz", help="write everything for a bug report there, without secrets"
    )
    parser.add_argument(
        "--probe",
        type=Path,
        metavar="NAMESPACE",
        help="also send a few datagrams from the network namespace of a Pod of this Node, named by its file "
        "(/var/run/netns/…, /proc/PID/ns/net), and back: shows what other programs do with its packets; needs "
        "CAP_SYS_ADMIN and CAP_NET_RAW",
    )
    add_agent_flags(parser)
    add_config_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Examine and print."""
    from mcagent.doctor.check import ends_well, worst
    from mcagent.doctor.report import text

    settings = _settings(args)
    if args.bundle is not None and args.bundle.exists():
        print(f"mcagent doctor: {args.bundle} exists: it is not overwritten", file=sys.stderr)
        return exit_codes.USAGE
    if args.probe is not None and (args.all or args.context or args.agents):
        print("mcagent doctor: --probe is for this Node alone", file=sys.stderr)
        return exit_codes.USAGE
    progress: Callable[[str], None] = (lambda _: None) if args.quiet else _Progress()
    if args.probe is None and _wants_clusters(args, settings):
        clusters, nodes = _clusters(args, settings, progress)
    else:
        clusters, nodes = [], [this_node(settings, progress, str(args.probe or ""))]
    report = DoctorReport(clusters=tuple(clusters), nodes=tuple(nodes))
    report = structs.replace(report, worst=worst(report.findings))
    print(json.dumps(to_json(report), indent=2) if args.output == "json" else text(report, quiet=args.quiet))
    if args.bundle is not None:
        from mcagent.cli.common.bundle import write_bundle

        size = write_bundle(
            args.bundle, report, settings, context=args.context, agents=args.agents, progress=progress
        )
        print(f"{args.bundle}: {size} bytes; review it before you share it", file=sys.stderr)
    return exit_codes.OK if ends_well(report) else exit_codes.FAILED


def _settings(args: argparse.Namespace) -> Settings:
    """Return the configuration, where it names no Node with the machine's name. Raises ConfigError."""
    from mcagent.config.reader import ConfigError

    try:
        return load_settings(args)
    except ConfigError:  # perhaps only for want of the Node's name
        settings = load_settings(args, node_needed=False)
        return replace(settings, core=replace(settings.core, node_name=socket.gethostname().lower()))


def this_node(settings: Settings, progress: Callable[[str], None], probed_pod: str = "") -> NodeReport:
    """Examine this Node. `probed_pod`: see `ExaminedNode`."""
    from mcagent.api.codec import from_json
    from mcagent.api.status import Status
    from mcagent.cli.common.asking import ask_agent
    from mcagent.doctor.diagnose import diagnose

    def ask() -> NodeReport:
        return from_json(NodeReport, ask_agent(settings, "/doctor", timeout=_ASK), "the agent's report")

    status, error = None, ""
    try:
        status = from_json(Status, ask_agent(settings, timeout=5.0), "the agent's status")
    except McagentError as failure:
        error = str(failure)
    return diagnose(settings, status, error, progress, probed_pod=probed_pod, ask=ask)


def _clusters(
    args: argparse.Namespace, settings: Settings, progress: Callable[[str], None]
) -> tuple[list[ClusterReport], list[NodeReport]]:
    """Examine each cluster that the flags name, and ask its agents. Raises InputError, OSError."""
    from mcagent.kube.client import Client

    clusters: list[ClusterReport] = []
    nodes: list[NodeReport] = []
    kubeconfig = settings.kubeconfig or usual_kubeconfig()
    for context in args.context or [""]:
        client = Client(kubeconfig, context, user_agent="mcagent-doctor")
        try:
            cluster, of_nodes = _cluster(client, context, args.agents, settings, progress)
        finally:
            client.close()
        clusters.append(cluster)
        nodes += of_nodes
    return clusters, nodes


def _cluster(
    client: Client, context: str, agents_file: Path | None, settings: Settings, progress: Callable[[str], None]
) -> tuple[ClusterReport, list[NodeReport]]:
    from mcagent.cli.common.agent_config import read_config_map
    from mcagent.cli.common.agents import Answer, ClusterAgents, ask_nodes, read_list
    from mcagent.doctor.diagnose import diagnose_cluster, node_report, was_asked

    agents = read_list(agents_file) if agents_file else ClusterAgents(client=client)
    progress("the Nodes")
    try:
        answers = ask_nodes(agents, "/doctor", timeout=_ASK)
    except McagentError as error:
        answers = {"": Answer(node="(all)", error=str(error))}
    reports = [node_report(answer.node, answer.page, answer.error) for answer in answers.values()]
    try:
        configured = read_config_map(client)
    except McagentError:
        configured = None
    config = settings.core if configured is None else configured[0].core
    answered = [report.node for report in reports if was_asked(report)]
    report = diagnose_cluster(client, context, config, answered, progress)
    away = any(finding.reason == "ClusterAway" for finding in report.findings)  # which says enough of its Nodes
    return report, [] if away else reports


def _wants_clusters(args: argparse.Namespace, settings: Settings) -> bool:
    """Tell whether clusters are meant: they are named, or this machine is no Node. Raises NotHereError."""
    if not (args.all or args.context or args.agents):
        if is_node(args, settings) or Path(settings.ovsdb.removeprefix("unix:")).exists():
            return False
        kubeconfig_of(args, "mcagent doctor", settings)
    return True


class _Progress:
    """Says what is being read, once it has taken longer than two seconds."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, what: str) -> None:
        if time.monotonic() - self._began > _PATIENCE:
            print(f"looking at {safe(what)}", file=sys.stderr, flush=True)
