"""`mcagent migrate`: what a change from Antrea's multi-cluster controller to ours asks for."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from mcagent.cli.common import exit_codes
from mcagent.cli.common.cluster_flags import add_cluster_flags, open_cluster
from mcagent.cli.common.shared_flags import add_namespace_flag, add_output_flag
from mcagent.cli.common.tables import safe

_EPILOG = """\
examples:
  mcagent migrate check leader               in the cluster where Antrea's leader runs
  mcagent migrate check member               in a member cluster
  mcagent migrate check leader --namespace antrea-multicluster -o json

It reads and changes nothing. Lines that begin with "must" are to be done, in this order, with their commands; the
exit code is 1 while there are some. docs/antrea.md has all steps, and the way back.
"""
_NAMESPACES = {"leader": "antrea-multicluster", "member": "kube-system"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the action and its flags."""
    parser.description = (
        "Check what a migration from Antrea's multi-cluster controller needs, and what it changes."
    )
    parser.epilog = _EPILOG
    parser.add_argument("action", choices=["check"], help="what to do")
    parser.add_argument("role", choices=[*_NAMESPACES], help="what the cluster is")
    add_namespace_flag(parser, "of Antrea's controller [antrea-multicluster, kube-system]")
    add_output_flag(parser)
    add_cluster_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Check, and print the findings."""
    from mcagent.controller.admin.cluster import check_name
    from mcagent.controller.admin.migration import Level, check, read
    from mcagent.controller.config import ControllerRole

    namespace = check_name(args.namespace or _NAMESPACES[args.role], "--namespace")
    findings = check(ControllerRole(args.role), read(open_cluster(args), namespace))
    if args.output == "json":
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            print(safe(f"{finding.level:<8} {finding.about}: {finding.text}"))
            if finding.command:
                print(safe(f"         {finding.command}"))
    return exit_codes.FAILED if any(finding.level is Level.MUST for finding in findings) else exit_codes.OK
