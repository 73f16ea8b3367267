"""`mcagent get`: the objects of a ClusterSet, as tables that show what is wrong."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mcagent.cli.common import exit_codes
from mcagent.cli.common.cluster_flags import add_cluster_flags, open_cluster
from mcagent.cli.common.shared_flags import add_namespace_flag, add_output_flag
from mcagent.cli.common.tables import table
from mcagent.model.errors import InputError, McagentError

if TYPE_CHECKING:
    from mcagent.controller.admin.cluster import Cluster

_EPILOG = """\
examples:
  mcagent get clusterset
  mcagent get resourceexport -n antrea-multicluster --clusterid east
  mcagent get serviceexport -o yaml
  mcagent get serviceimport web -n shop
  mcagent get gateway/east-gw1 -o wide
  mcagent get serviceexport,serviceimport
  mcagent get gateway -n kube-system --context east
  mcagent get joinconfig -n antrea-multicluster > join.yaml

kinds (also in the plural, with upper case or with their API group):
  clusterset, serviceexport (svcex), serviceimport (svcim), resourceexport (re), resourceimport (ri), gateway,
  clusterinfoimport, membertoken (the ServiceAccounts that stand for member clusters; never a token), joinconfig
"""
JOIN_CONFIG = "joinconfig"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what to show, and how."""
    parser.description = "Show the objects of a ClusterSet in a leader or a member cluster."
    parser.epilog = _EPILOG
    kinds = parser.add_argument("what", metavar="KIND[,KIND][/NAME]", help="what to show: see below")
    kinds.completer = _complete_kinds  # type: ignore[attr-defined]  # argcomplete
    parser.add_argument("names", nargs="*", default=[], metavar="NAME", help="[all]")
    add_namespace_flag(parser, "[all]")
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="the same as no --namespace")
    parser.add_argument("--clusterid", default="", metavar="ID", help="only exports of this cluster")
    forms = ("table", "wide", "name", "json", "yaml")
    add_output_flag(parser, forms, "; wide: the table without cuts; name: KIND/NAME lines")
    add_cluster_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Show."""
    from mcagent.controller.admin import listing

    namespace = "" if args.all_namespaces else args.namespace
    word, _, name = args.what.partition("/")
    names = [*([name] if name else []), *args.names]
    if word.lower().removesuffix("s") == JOIN_CONFIG:
        return _join_config(args, namespace, names)
    kinds = [_kind(word) for word in word.split(",")]
    if len(kinds) > 1 and (names or args.output in ("json", "yaml")):
        raise InputError("KIND", "", "several kinds can be shown without names, and not as json or yaml")
    cluster = open_cluster(args)
    for number, kind in enumerate(kinds):
        if number and args.output != "name":
            print()
        objects = listing.objects(
            cluster, kind, namespace=namespace, object_names=names, cluster_id=args.clusterid
        )
        show(kind, objects, args.output, one=len(names) == len(objects) == 1)
        if kind in ("clusterset", "gateway") and args.output in ("table", "wide"):
            _print_remarks(kind, cluster, objects, wide=args.output == "wide")
    return exit_codes.OK


def _kind(word: str) -> str:
    """Return the kind of `listing.LISTINGS` that a word means. Raises InputError."""
    from mcagent.controller.admin import listing
    from mcagent.model.keys.values import did_you_mean

    kind = listing.listing_named(word)
    if kind is None:
        kinds = [*listing.LISTINGS, JOIN_CONFIG]
        known_kinds = f"{did_you_mean(word, kinds)}; known are {', '.join(kinds)}"
        raise InputError("KIND", "", f'there is no kind "{word}"{known_kinds}')
    return kind


def _print_remarks(kind: str, cluster: Cluster, shown: list[dict[str, Any]], *, wide: bool) -> None:
    """Print what other objects say about those shown, or why it is unknown: a user may read these only."""
    from mcagent.controller.admin.remarks import configured_ranges, unreachable, waiting_gateways

    remarks: list[tuple[Callable[[Cluster, list[dict[str, Any]]], list[str]], str]]
    remarks = [(unreachable, "which clusters are unreachable is unknown")]
    if kind == "gateway":
        remarks = [(waiting_gateways, "whether annotated Nodes wait is unknown")]
    elif wide:
        remarks.append((configured_ranges, "virtual Pod CIDRs that members configure are unknown"))
    for lines_of, unknown in remarks:
        try:
            lines = lines_of(cluster, shown)
        except McagentError as error:
            lines = [f"WARNING: {unknown}: {error}"]
        print("".join(f"{line}\n" for line in lines), end="")


def _complete_kinds(**_arguments: object) -> list[str]:
    from mcagent.controller.admin import listing

    return [*listing.LISTINGS, JOIN_CONFIG]


def _join_config(args: argparse.Namespace, namespace: str, names: Sequence[str]) -> int:
    from mcagent.controller.admin import cluster_sets, join_config
    from mcagent.controller.admin.cluster import AdminError
    from mcagent.model.api.multicluster import ClusterSet

    cluster = open_cluster(args)
    cluster_sets_here = cluster.typed(ClusterSet, namespace)
    leader_sets = [item for item in cluster_sets_here if item.is_leaders and (not names or item.name in names)]
    if len(leader_sets) != 1:
        raise AdminError(f"{len(leader_sets)} ClusterSets of a leader match; give a NAME or a --namespace")
    print(join_config.text(cluster_sets.config_of(leader_sets[0], cluster.server)), end="")
    return exit_codes.OK


def show(what: str, found: Sequence[dict[str, Any]], form: str, *, one: bool) -> None:
    """Print objects as a table, JSON or YAML; `one`: the object itself instead of a list."""
    from mcagent.controller.admin import listing
    from mcagent.model.parsing.field import printable

    if form == "name":
        for obj in found:
            print(f"{what}/{printable(obj['metadata']['name'])}")
        return
    if form in ("table", "wide"):
        rows = listing.rows(what, found, time.time(), wide=form == "wide")
        lines = [line.rstrip() for line in table(listing.LISTINGS[what].head, rows)]
        print("\n".join(lines) if rows else "no resources found")
        return
    shown: Any = found[0] if one else {"apiVersion": "v1", "kind": "List", "items": list(found)}
    if form == "json":
        print(json.dumps(shown, indent=2))
    else:
        import yaml

        print(yaml.safe_dump(shown, sort_keys=False), end="")
