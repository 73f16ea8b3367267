"""`mcagent dns`: names of shared Services in the cluster's own CoreDNS."""

from __future__ import annotations

import argparse
import sys

from mcagent.cli.common import exit_codes
from mcagent.cli.common.cluster_flags import add_cluster_flags, open_cluster

_EPILOG = """\
examples:
  mcagent dns show                 the Corefile as it would be, and nothing is changed
  mcagent dns apply                names under clusterset.local are answered
  mcagent dns remove               and are not any more; what else was changed meanwhile stays

The plugin `kubernetes` of CoreDNS answers SERVICE.NAMESPACE.svc.clusterset.local of the ServiceImports that the
cluster has. `apply` puts the zone and the line `multicluster clusterset.local` into the Corefile, and `remove`
takes out just these. CoreDNS must be 1.12.2 or newer, and needs rights to read ServiceImports: the chart and
deploy/member.yaml have them. Both can be repeated.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the three actions."""
    parser.description = "Configure the cluster's CoreDNS for names of shared Services, or undo that."
    parser.epilog = _EPILOG
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in (
        ("show", "print the Corefile with the change"),
        ("apply", "change the Corefile"),
        ("remove", "undo the change"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument(
            "--coredns-namespace", default="kube-system", metavar="NAMESPACE", help="[%(default)s]"
        )
        action.add_argument("--configmap", default="coredns", metavar="NAME", help="[%(default)s]")
        action.add_argument("--deployment", default="coredns", metavar="NAME", help="[%(default)s]")
        action.add_argument(
            "--coredns-version", default="", metavar="VERSION", help="[what the image of the Deployment says]"
        )
        add_cluster_flags(action)


def run(args: argparse.Namespace) -> int:
    """Do it."""
    from mcagent.controller.admin import dns
    from mcagent.controller.admin.cluster import check_name

    coredns = dns.CoreDns(
        namespace=check_name(args.coredns_namespace, "--coredns-namespace"),
        config_map=check_name(args.configmap, "--configmap"),
        deployment=check_name(args.deployment, "--deployment"),
        version=args.coredns_version,
    )
    cluster = open_cluster(args)
    if args.action == "show":
        sys.stdout.write(dns.wanted(cluster, coredns))
    elif args.action == "apply":
        dns.apply(cluster, coredns)
    else:
        dns.remove(cluster, coredns)
    return exit_codes.OK
