"""`mcagent config check` and `mcagent config show`."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import yaml

from mcagent.agent.config import KEYS, SCHEMA, Settings
from mcagent.cli.common import exit_codes
from mcagent.cli.common.setting_flags import add_key_flags, load_settings
from mcagent.cli.common.shared_flags import add_output_flag

_EPILOG = """\
examples:
  mcagent config check /etc/mcagent/agent.yaml
  mcagent config show --config /etc/mcagent/agent.yaml --node-name node-1
  mcagent config show -o json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the two actions."""
    parser.description = (
        "Check a configuration of the agent, or print the effective one of file, environment and flags."
    )
    parser.epilog = _EPILOG
    parser.add_argument("action", choices=["check", "show"], help="report errors, or print the effective values")
    parser.add_argument("file", nargs="?", metavar="FILE", help="the same as --config FILE")
    add_output_flag(parser, more=" of `show`")
    add_key_flags(parser)


def in_force(settings: Settings) -> dict[str, str]:
    """Return every key with its value as it is written in YAML."""
    return {key.path: key.value.show(key.value_in(settings)) for key in KEYS}


def run(args: argparse.Namespace) -> int:
    """Check or show."""
    args.config = args.config or args.file
    settings = load_settings(args, node_needed=args.action != "check", strict=True)
    if args.action == "check":
        for remark in settings.remarks:
            print(f"warning: {remark}")
        file = (
            SCHEMA.default_file
            if Path(SCHEMA.default_file).exists()
            else "no file, only defaults and the environment"
        )
        print(f"{args.config or os.environ.get(SCHEMA.file_variable) or file}: no errors")
        return exit_codes.OK
    values = in_force(settings)
    if args.output == "json":
        print(json.dumps({path: yaml.safe_load(text) for path, text in values.items()}, indent=2))
    else:
        width = max(map(len, values))
        for path, text in values.items():
            print(f"{path + ':':<{width + 1}} {text}")
    return exit_codes.OK
