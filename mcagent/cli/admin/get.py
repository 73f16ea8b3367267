"""`mcagent get`: the objects of a ClusterSet, as tables that show what is wrong."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

from mcagent.cli.common import exit_codes
from mcagent.cli.common.cluster_flags import add_cluster_flags, open_cluster

_EPILOG = """\
examples:
  mcagent get clusterset
  mcagent get resourceexport -n mcagent --clusterid east
  mcagent get serviceexport -o yaml
  mcagent get gateway -n kube-system --context east
  mcagent get joinconfig -n mcagent > join.yaml

kinds:
  clusterset, serviceexport (svcex), resourceexport (re), resourceimport (ri), gateway, clusterinfoimport,
  membertoken (the ServiceAccounts that stand for member clusters; never a token), joinconfig
"""
JOIN_CONFIG = "joinconfig"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what to show, and how."""
    parser.description = "Show the objects of a ClusterSet in a leader or a member cluster."
    parser.epilog = _EPILOG
    parser.add_argument("what", metavar="KIND", help="what to show: see below")
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="[all]")
    parser.add_argument("-n", "--namespace", default="", help="[all]")
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="the same as no --namespace")
    parser.add_argument("--clusterid", default="", metavar="ID", help="only exports of this cluster")
    parser.add_argument("-o", "--output", choices=["table", "json", "yaml"], default="table", help="[%(default)s]")
    add_cluster_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Show."""
    from mcagent.controller.admin import listing
    from mcagent.model.errors import InputError

    kinds = {word: kind for kind, item in listing.LISTINGS.items() for word in (kind, *item.aliases)}
    namespace = "" if args.all_namespaces else args.namespace
    if args.what == JOIN_CONFIG:
        return _join_config(args, namespace)
    if args.what not in kinds:
        names = ", ".join([*listing.LISTINGS, JOIN_CONFIG])
        raise InputError("get", "KIND", f'no kind "{args.what}"; known are {names}')
    kind = kinds[args.what]
    objects = listing.objects(
        open_cluster(args), kind, namespace=namespace, name=args.name, cluster_id=args.clusterid
    )
    show(kind, objects, args.output, one=bool(args.name) and len(objects) == 1)
    return exit_codes.OK


def _join_config(args: argparse.Namespace, namespace: str) -> int:
    from mcagent.controller.admin import cluster_sets, join_config
    from mcagent.controller.admin.cluster import AdminError
    from mcagent.controller.leader.cluster_set import is_leader_set
    from mcagent.model.api.multicluster import ClusterSet
    from mcagent.model.objects import Kind
    from mcagent.model.parsing.decode import read_as

    cluster = open_cluster(args)
    leader_sets = [
        obj
        for obj in cluster.objects(Kind.CLUSTER_SET, namespace)
        if is_leader_set(read_as(ClusterSet, obj)) and args.name in ("", obj["metadata"]["name"])
    ]
    if len(leader_sets) != 1:
        raise AdminError(f"{len(leader_sets)} ClusterSets of a leader match; give a NAME or a --namespace")
    print(join_config.text(cluster_sets.config_of(leader_sets[0], cluster.server)), end="")
    return exit_codes.OK


def show(what: str, found: Sequence[dict[str, Any]], form: str, *, one: bool) -> None:
    """Print objects as a table, JSON or YAML; `one`: the object itself instead of a list."""
    from mcagent.cli.common.tables import table
    from mcagent.controller.admin import listing

    if form == "table":
        rows = listing.rows(what, found, time.time())
        print(
            "\n".join(line.rstrip() for line in table(listing.LISTINGS[what].head, rows)) if rows else "none found"
        )
        return
    shown: Any = found[0] if one else {"apiVersion": "v1", "kind": "List", "items": list(found)}
    if form == "json":
        print(json.dumps(shown, indent=2))
    else:
        import yaml

        print(yaml.safe_dump(shown, sort_keys=False), end="")
