"""The flags by which commands reach an API server, and the client they make of them."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mcagent.cli.common.tables import safe

if TYPE_CHECKING:
    from mcagent.controller.admin.cluster import Cluster

_PATIENCE = 2.0  # seconds that a shell waits for the API server


def add_cluster_flags(parser: argparse.ArgumentParser, *, several: bool = False, contexts: bool = True) -> None:
    """Declare which cluster a command works on.

    `several`: --context may be repeated, and its value is a list; without `contexts` the command has other flags
    for them.
    """
    group = parser.add_argument_group("the cluster")
    group.add_argument(
        "--kubeconfig", metavar="FILE", default="", help="[$KUBECONFIG, else ~/.kube/config, else that of the Pod]"
    )
    if contexts:
        _add_context_flag(group, several=several)


def _add_context_flag(parser: argparse._ActionsContainer, *, several: bool) -> None:
    if several:
        flag = parser.add_argument(
            "--context",
            action="append",
            default=[],
            metavar="NAME",
            help="of the kubeconfig; again for another cluster",
        )
    else:
        flag = parser.add_argument(
            "--context", default="", metavar="NAME", help="of the kubeconfig [its current one]"
        )
    flag.completer = complete_contexts  # type: ignore[attr-defined]  # argcomplete


def complete_contexts(parsed_args: argparse.Namespace, **_arguments: object) -> list[str]:
    """Return the contexts of the kubeconfig that the command line names, for a shell."""
    import yaml

    try:
        files = map(Path, (parsed_args.kubeconfig or usual_kubeconfig()).split(os.pathsep))
        documents = [yaml.safe_load(file.read_text()) for file in files if file.is_file()]
        return [str(item["name"]) for document in documents for item in document["contexts"]]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return []


def complete_nodes(parsed_args: argparse.Namespace, **_arguments: object) -> list[str]:
    """Return the Nodes of the cluster that the command line names, for a shell: none if it does not answer."""
    from mcagent.kube.client import Client
    from mcagent.model.errors import McagentError

    try:
        client = Client(parsed_args.kubeconfig or usual_kubeconfig(), parsed_args.context)
        nodes = client.request("GET", "/api/v1/nodes", {"limit": "500"}, timeout=_PATIENCE).get("items") or ()
    except McagentError:
        return []
    return [node["metadata"]["name"] for node in nodes]


def usual_kubeconfig() -> str:
    """Return the file, or files, that kubectl would use, or "" for the credentials of the Pod."""
    named = os.environ.get("KUBECONFIG", "").strip(os.pathsep)
    usual = Path.home() / ".kube" / "config"
    return named or (str(usual) if usual.is_file() else "")


def open_cluster(args: argparse.Namespace) -> Cluster:
    """Return the cluster that the flags name; its progress goes to stderr. Raises SourceError."""
    from mcagent.controller.admin.cluster import Cluster
    from mcagent.kube.client import Client

    client = Client(args.kubeconfig or usual_kubeconfig(), args.context)
    return Cluster(client, lambda line: print(safe(line), file=sys.stderr, flush=True))
