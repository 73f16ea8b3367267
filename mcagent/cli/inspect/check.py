"""`mcagent check --pre`: what is missing for an installation, of this Node or of clusters."""

from __future__ import annotations

import argparse
import json
import socket
from typing import TYPE_CHECKING

from mcagent.cli.common import exit_codes
from mcagent.cli.common.cluster_flags import add_cluster_flags, usual_kubeconfig
from mcagent.cli.common.place import is_node
from mcagent.cli.common.setting_flags import add_config_flag, load_settings
from mcagent.cli.common.shared_flags import add_output_flag
from mcagent.model.errors import McagentError

if TYPE_CHECKING:
    from mcagent.agent.config import Settings
    from mcagent.api.doctor import ClusterReport, NodeReport

_EPILOG = """\
examples:
  mcagent check --pre                                  with a kubeconfig: Kubernetes, Nodes, permissions, CIDRs
  mcagent check --pre --node                           on a Node, as root: kernel, Open vSwitch, ports, MTU
  mcagent check --pre --context east --context west    two clusters, and their CIDRs with each other
  mcagent check --pre --config agent.yaml -o json      with the ports and the MTU of a configuration

Without a kubeconfig it is the Node, too. Nothing is changed. A line for each check: ✓ fine, ⚠ works but look at
it, ✗ wrong, - could not be looked at (docs/doctor.md). The exit code is 0 when nothing is wrong (there may be ⚠),
1 when there is a ✗, or a check of a cluster could not read what it examines. After the installation, use `mcagent
doctor`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is checked, and the form of the answer."""
    parser.description = "Check what an installation needs: of this Node, or of clusters."
    parser.epilog = _EPILOG
    parser.add_argument("--pre", action="store_true", required=True, help="before the installation")
    add_output_flag(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="only what is wrong")
    parser.add_argument("--node", action="store_true", help="this machine, also if it has a kubeconfig")
    add_cluster_flags(parser, several=True)
    add_config_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Check and print."""
    from msgspec import structs

    from mcagent.api.codec import to_json
    from mcagent.api.doctor import DoctorReport
    from mcagent.doctor.check import ends_well, worst
    from mcagent.doctor.report import text

    settings = load_settings(args, node_needed=False)
    elsewhere = not args.node and not is_node(args, settings) and usual_kubeconfig()
    if args.context or settings.kubeconfig or elsewhere:
        clusters, nodes = _clusters(args.context or [""], settings), []
    else:
        clusters, nodes = [], [_this_node(settings)]
    report = DoctorReport(clusters=tuple(clusters), nodes=tuple(nodes))
    report = structs.replace(report, worst=worst(report.findings))
    print(json.dumps(to_json(report), indent=2) if args.output == "json" else text(report, quiet=args.quiet))
    return exit_codes.OK if ends_well(report) else exit_codes.FAILED


def _this_node(settings: Settings) -> NodeReport:
    from mcagent.api.doctor import NodeReport
    from mcagent.api.status import Status
    from mcagent.doctor.catalogue import Scope, examine
    from mcagent.doctor.examined import ExaminedNode

    node = ExaminedNode(settings, Status())
    return NodeReport(node=socket.gethostname(), findings=examine(Scope.BEFORE_NODE, node))


def _clusters(contexts: list[str], settings: Settings) -> list[ClusterReport]:
    """Check each cluster, and compare its CIDRs with those of the other contexts. Raises SourceError."""
    from mcagent.api.doctor import ClusterReport
    from mcagent.doctor.catalogue import Scope, examine
    from mcagent.doctor.checks.before_cluster.cidrs import PlannedCluster, own_cidrs
    from mcagent.kube.client import Client

    kubeconfig = settings.kubeconfig or usual_kubeconfig()
    clients = {context: Client(kubeconfig, context, user_agent="mcagent-check") for context in contexts}
    cidrs = {}
    try:
        for context, client in clients.items():
            try:
                cidrs[context] = own_cidrs(PlannedCluster(client, settings.core, {}))
            except McagentError:
                continue  # reported by the check of that cluster
        reports = []
        for context, client in clients.items():
            compared = {f"context {name}": value for name, value in cidrs.items() if name != context}
            findings = examine(Scope.BEFORE_CLUSTER, PlannedCluster(client, settings.core, compared))
            name = context or client.server
            reports.append(ClusterReport(cluster=name, server=client.server, findings=findings))
        return reports
    finally:
        for client in clients.values():
            client.close()
