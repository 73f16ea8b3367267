"""`mcagent version`: of this program, and of the components of a cluster."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from mcagent.cli.common import exit_codes
from mcagent.cli.common.cluster_flags import add_cluster_flags, usual_kubeconfig
from mcagent.cli.common.shared_flags import add_all_flag, add_output_flag, add_seconds_flag
from mcagent.cli.common.tables import table
from mcagent.observe.version import version

if TYPE_CHECKING:
    from mcagent.api.versions import VersionReport

_EPILOG = """\
examples:
  mcagent version                    of this program
  mcagent version --all              of agents, controllers and Open vSwitch Pods of the cluster, too
  mcagent version --all -o json      for programs (docs/api.md)

--all runs `mcagent version` in each Pod (pods/exec). Where that is not allowed, the image's name is shown.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what to print."""
    parser.description = "Print the version of mcagent."
    parser.epilog = _EPILOG
    add_all_flag(parser)
    add_output_flag(parser)
    add_seconds_flag(parser, "--timeout", 10.0, "wait so long for a Pod")
    add_cluster_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Print it; the exit code is 1 where the version of a Pod is unknown."""
    if not args.all and args.output == "text":
        print(f"mcagent {version()}")
        return exit_codes.OK
    from mcagent.api.codec import to_json
    from mcagent.api.versions import VersionReport

    if args.all:
        from mcagent.cli.common.components import Components, versions
        from mcagent.kube.client import Client

        components = versions(
            Components(Client(args.kubeconfig or usual_kubeconfig(), args.context)), args.timeout
        )
    else:
        components = ()
    report = VersionReport(version=version(), components=components)
    if args.output == "json":
        print(json.dumps(to_json(report), indent=2))
    else:
        print("\n".join(shown(report)))
        for component in report.components:
            if component.error:
                print(f"{component.namespace}/{component.pod}: {component.error}", file=sys.stderr)
    return exit_codes.FAILED if any(component.error for component in report.components) else exit_codes.OK


def shown(report: VersionReport) -> list[str]:
    """Return the text: this program, then a line for each component and version, with the number of its Pods."""
    from collections import Counter

    lines = [f"mcagent {report.version}"]
    if not report.components:
        return lines
    counted = Counter(
        (pod.namespace, pod.component, pod.version or "unknown", pod.image) for pod in report.components
    )
    rows = [
        (namespace, component, number, str(pods), image)
        for (namespace, component, number, image), pods in sorted(counted.items())
    ]
    lines += ["", *table(("NAMESPACE", "COMPONENT", "VERSION", "PODS", "IMAGE"), rows)]
    different = sorted({pod.version for pod in report.components if pod.version} - {report.version})
    if different:
        lines += ["", f"Other versions than this program's: {', '.join(different)}."]
    return [line.rstrip() for line in lines]
