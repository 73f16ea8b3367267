"""`mcagent undrain`: the opposite of `mcagent drain`."""

from __future__ import annotations

import argparse

from mcagent.cli.common import exit_codes
from mcagent.cli.common.setting_flags import load_settings
from mcagent.cli.drain import add_target, target_of

_EPILOG = """\
examples:
  mcagent undrain node-3
  mcagent undrain --local                       what `mcagent drain --local` asked for

Takes back what `mcagent drain` asked for; a Node that is cordoned stays drained.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which Node."""
    parser.description = "Return a drained Node to service as a gateway."
    parser.epilog = _EPILOG
    add_target(parser)


def run(args: argparse.Namespace) -> int:
    """Take it back."""
    target = target_of(args, load_settings(args, node_needed=False))
    if not target.is_asked():
        print(
            f"{target.name}: nothing asked it to drain (a Node that is cordoned stays drained: kubectl uncordon)"
        )
        return exit_codes.OK
    target.set(False)
    print(f"{target.name}: asked to be a gateway again")
    return exit_codes.OK
