"""`mcagent uninstall`: mcagent is taken away from a cluster."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from mcagent.cli.admin.deploy import add_place_flags
from mcagent.cli.common import exit_codes
from mcagent.cli.common.cluster_flags import add_cluster_flags, open_cluster
from mcagent.cli.common.confirming import add_yes_flag, confirm
from mcagent.cli.common.shared_flags import add_seconds_flag

_EPILOG = """\
examples:
  mcagent uninstall --dry-run                 what would go, of a member
  mcagent uninstall                           a member: leaves, Nodes are cleaned, controller and agents go
  mcagent uninstall --role leader             a cluster that leads no member any more
  mcagent uninstall --role all --crds         everything, also the CRDs and what is stored under them

In this order: the ClusterSet is left or destroyed while its controllers run, so that no finalizer stays; a Pod on
each Node waits for the agent to end and runs mcagent cleanup there; then webhooks, controllers, Open vSwitch,
rights; names under clusterset.local are taken out of CoreDNS, as `mcagent dns remove` does (run that yourself
where the ConfigMap is not kube-system/coredns); the CRDs last. It refuses while other clusters are members of the
leader that is to go, keeps what the other role of this cluster needs, and can be repeated. Where agents run,
Services are shared, or with --crds, it says what is lost, and asks; without a terminal it needs --yes.
After `helm install` it does what Helm does not: run `helm uninstall` then.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what goes."""
    parser.description = "Remove mcagent from a cluster, in the right order."
    parser.epilog = _EPILOG
    add_place_flags(parser)
    parser.add_argument("--crds", action="store_true", help="the CRDs too, and all that is stored under them")
    parser.add_argument(
        "--skip-nodes", action="store_true", help="leave Nodes as they are: those that are thrown away"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would go, and remove nothing")
    add_yes_flag(parser)
    add_seconds_flag(parser, "--timeout", 120.0, "wait so long for each step")
    add_cluster_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Remove it."""
    from mcagent.controller.admin.manifests import InstalledRole, Site
    from mcagent.controller.admin.removal import Removal, uninstall

    site = Site(namespace=args.namespace, leader_namespace=args.leader_namespace)
    removal = Removal(role=InstalledRole(args.role), site=site, crds=args.crds, nodes=not args.skip_nodes)

    def consent(losses: Sequence[str]) -> None:
        confirm([] if args.yes else losses, "Uninstall?")

    uninstall(open_cluster(args), removal, dry_run=args.dry_run, consent=consent, timeout=args.timeout)
    return exit_codes.OK
