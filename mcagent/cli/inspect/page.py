"""`mcagent page`: prints a page of this Node's agent, or a token for the page in a browser."""

from __future__ import annotations

import argparse
import json

from mcagent.cli.common import exit_codes
from mcagent.cli.common.asking import ask_agent
from mcagent.cli.common.cluster_flags import add_cluster_flags, open_cluster
from mcagent.cli.common.place import require_node
from mcagent.cli.common.setting_flags import add_config_flag, load_settings
from mcagent.cli.common.shared_flags import add_namespace_flag
from mcagent.model.errors import InputError

_EPILOG = """\
examples:
  mcagent page /status
  kubectl -n kube-system exec ds/mcagent-agent -- mcagent page /status
  mcagent page --account viewer     # a token for the page in a browser, with an account of that name

Pages in JSON only (/metrics and health are for curl). --account creates a ServiceAccount that may only read pages,
if there is none of this name, and prints a token for eight hours. The exit code is 1 when no agent answers, or it
refuses.
"""
_MAX = 2048  # characters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the page, and the configuration that says where the agent listens."""
    parser.description = "Print a page of this Node's agent, as JSON, or a token for the page in a browser."
    parser.epilog = _EPILOG
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("page", metavar="PATH", nargs="?", help="as /status")
    choice.add_argument(
        "--account", metavar="NAME", help="print a token of this ServiceAccount, and create it if needed"
    )
    add_namespace_flag(parser, "of the ServiceAccount", "kube-system")
    add_cluster_flags(parser)
    add_config_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Ask and print."""
    if args.account:
        print(_token(args))
        return exit_codes.OK
    printable = args.page.isascii() and args.page.isprintable() and " " not in args.page
    if not args.page.startswith("/") or not printable or len(args.page) > _MAX:
        raise InputError("page", "", f"must be a path of at most {_MAX} characters, as /status")
    settings = load_settings(args, node_needed=False)
    require_node(args, settings, f"mcagent page {args.page}")
    print(json.dumps(ask_agent(settings, args.page)))
    return exit_codes.OK


def _token(args: argparse.Namespace) -> str:
    from mcagent.controller.admin.page_account import token

    return token(open_cluster(args), args.namespace, args.account)
