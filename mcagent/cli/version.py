"""`mcagent version`."""

from __future__ import annotations

import argparse

from mcagent.cli.common import exit_codes
from mcagent.observe.version import version


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare nothing."""
    parser.description = "Print the version of mcagent."


def run(args: argparse.Namespace) -> int:  # noqa: ARG001
    """Print it."""
    print(f"mcagent {version()}")
    return exit_codes.OK
