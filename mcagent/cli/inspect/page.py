"""`mcagent page`: prints a page of this Node's agent. What other commands run in the agent's Pod."""

from __future__ import annotations

import argparse
import json

from mcagent.cli.common import exit_codes
from mcagent.cli.common.asking import ask_agent
from mcagent.cli.common.setting_flags import add_config_flag, load_settings
from mcagent.model.errors import InputError

_EPILOG = """\
examples:
  mcagent page /status
  kubectl -n kube-system exec ds/mcagent-agent -- mcagent page /status

Pages in JSON only (/metrics and health are for curl). The exit code is 1 when no agent answers, or it refuses.
"""
_MAX = 2048  # characters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the page, and the configuration that says where the agent listens."""
    parser.description = "Print a page of this Node's agent, as JSON."
    parser.epilog = _EPILOG
    parser.add_argument("page", metavar="PATH", help="as /status")
    add_config_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Ask and print."""
    printable = args.page.isascii() and args.page.isprintable() and " " not in args.page
    if not args.page.startswith("/") or not printable or len(args.page) > _MAX:
        raise InputError("page", "", f"must be a path of at most {_MAX} characters, as /status")
    print(json.dumps(ask_agent(load_settings(args, node_needed=False), args.page)))
    return exit_codes.OK
