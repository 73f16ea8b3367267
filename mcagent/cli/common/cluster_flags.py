"""The flags by which commands reach an API server, and the client they make of them."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcagent.controller.admin.cluster import Cluster


def add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    """Declare which cluster a command works on."""
    group = parser.add_argument_group("the cluster")
    group.add_argument(
        "--kubeconfig", metavar="FILE", default="", help="[$KUBECONFIG, else ~/.kube/config, else that of the Pod]"
    )
    group.add_argument("--context", default="", metavar="NAME", help="of the kubeconfig [its current one]")


def usual_kubeconfig() -> str:
    """Return the file that kubectl would use, or "" for the credentials of the Pod."""
    named = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    usual = Path.home() / ".kube" / "config"
    return named or (str(usual) if usual.is_file() else "")


def open_cluster(args: argparse.Namespace) -> Cluster:
    """Return the cluster that the flags name; its progress goes to stderr. Raises SourceError."""
    from mcagent.controller.admin.cluster import Cluster
    from mcagent.kube.client import Client

    client = Client(args.kubeconfig or usual_kubeconfig(), args.context)
    return Cluster(client, lambda line: print(line, file=sys.stderr, flush=True))
