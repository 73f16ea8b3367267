"""`mcagent clusterset`: make, join, leave and destroy a ClusterSet."""

from __future__ import annotations

import argparse
from pathlib import Path

from mcagent.cli.common import exit_codes
from mcagent.cli.common.cluster_flags import add_cluster_flags, open_cluster
from mcagent.cli.common.confirming import add_yes_flag, confirm
from mcagent.cli.common.shared_flags import add_list_flag, add_namespace_flag, add_seconds_flag
from mcagent.cli.common.signals import terminable

_EPILOG = """\
examples:
  mcagent clusterset init -n antrea-multicluster --clusterset blue --clusterid north -j join.yaml \\
      --allow-cidr 10.96.0.0/12 --allow-cidr 10.16.0.0/12                                on the leader
  mcagent clusterset join -f join.yaml --clusterid east --token-secret-file east.yaml    on a member
  mcagent clusterset join --token-secret-file new-east.yaml               on a member, to replace its token
  mcagent clusterset leave -n kube-system --clusterset blue                              on a member
  mcagent clusterset destroy -n antrea-multicluster --clusterset blue                                on the leader

`leave` and `destroy` say which Services are lost, and ask; without a terminal they need --yes.
Whatever fails takes back what it made. `mcagent membertoken create` makes the Secret that a member joins with.
Antrea's controllers and files are understood: `antctl mc` and these commands can be mixed.
"""
_RAW = argparse.RawDescriptionHelpFormatter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the four actions."""
    parser.description = "Create, join, leave or destroy a ClusterSet."
    parser.epilog = _EPILOG
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    init = actions.add_parser("init", help="create a ClusterSet on the leader", formatter_class=_RAW)
    _common(init, "where the leader's controller runs: the Common Area", None)
    init.add_argument(
        "--clusterset", required=True, metavar="ID", help="of the ClusterSet: its name in all clusters"
    )
    init.add_argument("--clusterid", required=True, metavar="ID", help="of the leader cluster")
    init.add_argument(
        "-j", "--join-config-file", type=Path, metavar="FILE", help="write the file for members here"
    )
    add_list_flag(
        init,
        "--allow-cidr",
        "CIDR",
        'members may claim CIDRs in this, unless their token says otherwise; "*": any private network '
        "[the private ranges in which this cluster's CIDRs lie]",
    )
    _join(actions.add_parser("join", help="let this cluster join", formatter_class=_RAW))
    leave = actions.add_parser("leave", help="let this member leave", formatter_class=_RAW)
    destroy = actions.add_parser("destroy", help="delete the leader's ClusterSet", formatter_class=_RAW)
    for action, default in ((leave, "kube-system"), (destroy, None)):
        _common(action, "of the ClusterSet", default)
        action.add_argument("--clusterset", required=True, metavar="ID", help="the ClusterSet's name")
        add_seconds_flag(action, "--timeout", 60.0, "wait so long")
        add_yes_flag(action)


def _common(parser: argparse.ArgumentParser, meaning: str, default: str | None) -> None:
    add_namespace_flag(parser, meaning, default)
    add_cluster_flags(parser)


def _join(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Let this cluster join. What the file says comes before the flags. Of the token, a Secret's name is taken "
        "before a file, and a file before a Secret in the join config. In a cluster that is in the ClusterSet "
        "already, --token-secret-file alone replaces the token; nothing is restarted."
    )
    parser.add_argument("-f", "--config-file", type=Path, metavar="FILE", help="join config (from `init -j`)")
    parser.add_argument("--clusterset", default="", metavar="ID", help="the ClusterSet's name on the leader")
    parser.add_argument("--clusterid", default="", metavar="ID", help="of this cluster")
    add_namespace_flag(parser, "where the member's controller runs [kube-system]")
    parser.add_argument("--leader-clusterid", default="", metavar="ID", help="of the leader cluster")
    parser.add_argument("--leader-namespace", default="", metavar="NAMESPACE", help="the Common Area")
    parser.add_argument("--leader-apiserver", default="", metavar="URL", help="of the leader's API server")
    parser.add_argument("--token-secret-name", default="", metavar="NAME", help="a Secret that is there already")
    parser.add_argument(
        "--token-secret-file", default="", metavar="FILE", help="the manifest of a Secret to create"
    )
    add_seconds_flag(parser, "--timeout", 60.0, "wait so long to be a member")
    parser.add_argument("--no-wait", action="store_true", help="do not wait; nothing is taken back then")
    add_cluster_flags(parser)


@terminable()
def run(args: argparse.Namespace) -> int:
    """Do it."""
    from mcagent.controller.admin import cluster_sets, losses
    from mcagent.model.objects import Kind

    if args.action == "join":
        return _run_join(args)
    cluster = open_cluster(args)
    if args.action == "init":
        cluster_sets.init(
            cluster,
            args.namespace,
            args.clusterset,
            args.clusterid,
            args.join_config_file,
            allowed_cidrs=args.allow_cidr,
        )
    else:
        if not args.yes and args.action == "destroy":
            instead = "Let them leave first (there: mcagent clusterset leave)"
            confirm(losses.of_destroying(cluster, args.namespace, args.clusterset), "Destroy it?", instead=instead)
        elif not args.yes and cluster.get(Kind.CLUSTER_SET, args.namespace, args.clusterset) is not None:
            confirm(losses.of_leaving(cluster), f"Leave ClusterSet {args.clusterset}?")
        cluster_sets.leave(cluster, args.namespace, args.clusterset, timeout=args.timeout)
    return exit_codes.OK


def _run_join(args: argparse.Namespace) -> int:
    from mcagent.controller.admin import cluster_sets, join_config

    flags = join_config.JoinConfig(
        cluster_set=args.clusterset,
        cluster_id=args.clusterid,
        namespace=args.namespace,
        leader_id=args.leader_clusterid,
        leader_namespace=args.leader_namespace,
        leader_server=args.leader_apiserver,
        secret_name=args.token_secret_name,
        secret_file=args.token_secret_file,
    )
    config, secret = join_config.read(args.config_file) if args.config_file else (flags, None)
    timeout = 0.0 if args.no_wait else args.timeout
    cluster_sets.join(open_cluster(args), config.over(flags), secret, timeout=timeout)
    return exit_codes.OK
