"""`mcagent cleanup`."""

from __future__ import annotations

import argparse
import sys
import time

from mcagent.cli.common import exit_codes
from mcagent.cli.common.setting_flags import add_key_flags, load_settings
from mcagent.cli.common.shared_flags import add_seconds_flag

_LOOK = 0.2  # seconds between two looks at an agent that runs
_EPILOG = """\
examples:
  mcagent cleanup --dry-run
  mcagent cleanup --config /etc/mcagent/agent.yaml

Finds what is ours by the names and tags of the configuration (bridge, routeTable, routeProtocol, nftTable, ...),
needs no API server, and removes only that: first the routes, so that no packet comes any more, last the bridge.
Refuses while an agent runs on this Node, which would put everything back; --wait waits for the agent's end.
`mcagent uninstall` does this on every Node of a cluster.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare flags."""
    parser.description = "Remove all resources of mcagent from this Node, and nothing else."
    parser.epilog = _EPILOG
    parser.add_argument("--dry-run", action="store_true", help="print what would be removed, and remove nothing")
    add_seconds_flag(parser, "--wait", 0.0, "wait so long for an agent to end")
    add_key_flags(parser)  # `mcagent uninstall` runs it with the arguments of the agent's container


def run(args: argparse.Namespace) -> int:
    """Remove, and print what was removed."""
    from mcagent.agent.cleanup import clean_up
    from mcagent.agent.lock import BusyError
    from mcagent.agent.reports.reporter import step_text

    settings, end = load_settings(args, node_needed=False), time.monotonic() + args.wait
    while True:
        try:
            outcome = clean_up(settings, dry_run=args.dry_run)
            break
        except BusyError:
            if time.monotonic() >= end:
                raise
            time.sleep(_LOOK)
    for step in outcome.done:
        print(step_text(step))
    for error in outcome.errors:
        print(f"mcagent cleanup: {error}", file=sys.stderr)
    count = len(outcome.done)
    print(f"{count} {'would be removed' if args.dry_run else 'removed'}" if count else "nothing of ours is here")
    return exit_codes.FAILED if outcome.errors else exit_codes.OK
