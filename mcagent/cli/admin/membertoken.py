"""`mcagent membertoken`: the tokens by which member clusters reach the leader."""

from __future__ import annotations

import argparse
from pathlib import Path

from mcagent.cli.common import exit_codes
from mcagent.cli.common.cluster_flags import add_cluster_flags, open_cluster
from mcagent.cli.common.confirming import add_yes_flag, confirm
from mcagent.cli.common.shared_flags import add_list_flag, add_namespace_flag, add_output_flag
from mcagent.cli.common.signals import terminable

_EPILOG = """\
examples:
  mcagent membertoken create east -n antrea-multicluster --cluster-id east -o east.yaml
  mcagent membertoken create west -n antrea-multicluster --cluster-id west -o west.yaml \\
      --allow-cidr 10.97.0.0/16 --allow-cidr 10.20.0.0/14 --allow-gateway 192.0.2.0/28 \\
      --allow-namespace shop --max-exports 50 --expires 30d
  mcagent membertoken get -n antrea-multicluster
  mcagent membertoken get east -n antrea-multicluster --secret-file east.yaml
  mcagent membertoken rotate east -n antrea-multicluster -o new-east.yaml
  mcagent membertoken delete east -n antrea-multicluster

All on the leader. The member's controller renews a token after two thirds of its life; `--expires never` creates
one that does not expire, which members of Antrea need. `rotate` revokes earlier tokens at once; in the member,
`mcagent clusterset join --token-secret-file new-east.yaml` takes the new one.

A token stands for one cluster: what its ServiceAccount is annotated with decides which objects it may write.
--allow-cidr, --allow-gateway, --allow-namespace and --max-exports become the annotations
mcagent.io/allowed-cidrs, mcagent.io/allowed-gateways, mcagent.io/allowed-namespaces and mcagent.io/max-exports,
which kubectl annotate changes at any time. A namespace that is named for a member is reserved: members for
which it is not named cannot export Services of it. Files with a token are readable by their owner only, and
never written over.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions."""
    parser.description = "Create, show, replace or delete the token of a member cluster."
    parser.epilog = _EPILOG
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser(
        "create", help="create ServiceAccount, RoleBinding and Secret for a member cluster"
    )
    create.add_argument("name", metavar="NAME", help="of all three")
    create.add_argument("--cluster-id", required=True, metavar="ID", help="of the member cluster")
    create.add_argument(
        "-o", "--output-file", type=Path, metavar="FILE", help="write the Secret for the member here"
    )
    add_list_flag(
        create,
        "--allow-cidr",
        "CIDR",
        "its CIDRs and endpoints must lie in one of these [the list of `clusterset init --allow-cidr`]",
    )
    add_list_flag(
        create,
        "--allow-gateway",
        "CIDR",
        "its gateways' addresses must lie in one of these [what members.allowedGateways says]",
    )
    add_list_flag(
        create,
        "--allow-namespace",
        "NAMESPACE",
        "it may export Services of these only [what members.allowedNamespaces says]",
    )
    create.add_argument(
        "--max-exports", type=int, metavar="N", help="Services it may export [what members.maxExports says]"
    )
    _expires(create)
    get = actions.add_parser("get", help="show tokens")
    get.add_argument("name", nargs="?", default="", metavar="NAME", help="[all]")
    add_output_flag(get, ("table", "json", "yaml"))
    get.add_argument(
        "--secret-file", type=Path, metavar="FILE", help="write the Secret for the member here, once more"
    )
    rotate = actions.add_parser("rotate", help="replace a token: write a new one, and revoke all earlier ones")
    rotate.add_argument("name", metavar="NAME", help="of the ServiceAccount")
    rotate.add_argument(
        "-o",
        "--output-file",
        type=Path,
        required=True,
        metavar="FILE",
        help="write the Secret for the member here",
    )
    _expires(rotate)
    delete = actions.add_parser("delete", help="delete what `create` made: the cluster has no access any more")
    delete.add_argument("name", metavar="NAME", help="of all three")
    add_yes_flag(delete)
    for action in (create, get, rotate, delete):
        add_namespace_flag(action, "the Common Area", None)
        add_cluster_flags(action)


def _expires(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--expires",
        metavar="TIME",
        help="life of the token, from 1h to 366d, or never; mcagent's members renew it [90d where the leader has "
        "the admission policy of these tokens, else never]",
    )


@terminable()
def run(args: argparse.Namespace) -> int:
    """Do it."""
    from mcagent.cli.admin.get import show
    from mcagent.controller.admin import expiring_tokens, listing, losses, tokens

    creating = args.action == "create"
    bounds: dict[str, str] = {}
    if creating:
        bounds = tokens.bounds(args.allow_cidr, args.allow_namespace, args.max_exports, args.allow_gateway)
    expires = getattr(args, "expires", None)
    lifetime = expiring_tokens.lifetime(expires) if expires is not None else None
    cluster = open_cluster(args)
    if expires is None and (creating or args.action == "rotate"):
        lifetime = expiring_tokens.default_lifetime(cluster)
    if creating:
        file = args.output_file
        tokens.create(cluster, args.namespace, args.name, args.cluster_id, file, bounds=bounds, lifetime=lifetime)
    elif args.action == "rotate":
        tokens.rotate(cluster, args.namespace, args.name, args.output_file, lifetime=lifetime)
    elif args.action == "delete":
        if not args.yes:
            confirm(losses.of_token(cluster, args.namespace, args.name), "Delete it?")
        tokens.delete(cluster, args.namespace, args.name)
    elif args.secret_file:
        tokens.save(cluster, args.namespace, args.name, args.secret_file)
    else:
        accounts = listing.objects(
            cluster, listing.MEMBER_TOKEN, namespace=args.namespace, object_names=[args.name] if args.name else []
        )
        show(listing.MEMBER_TOKEN, accounts, args.output, one=bool(args.name))
    return exit_codes.OK
