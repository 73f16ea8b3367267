"""`mcagent openvswitch`."""

from __future__ import annotations

import argparse
from pathlib import Path

from mcagent.cli.common import exit_codes

_EPILOG = """\
examples:
  mcagent openvswitch
  mcagent openvswitch --policy always --data-directory /var/lib/mcagent/openvswitch

The image mcagent-openvswitch does this on Nodes without an Open vSwitch. One that runs already is used, and never
a second started beside it. When this ends, the kernel's datapath goes on with what it has; the next one takes the
flows over. To have Open vSwitch off a Node: `mcagent cleanup` first, then this.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare flags."""
    parser.description = "Run Open vSwitch on this Node, where it has none, until SIGTERM."
    parser.epilog = _EPILOG
    parser.add_argument(
        "--policy",
        choices=("auto", "always"),
        default="auto",
        help="where there is one already: use it (auto), or end with an error (always)",
    )
    parser.add_argument(
        "--run-directory", type=Path, default=Path("/run/openvswitch"), metavar="DIR", help="of the sockets"
    )
    parser.add_argument(
        "--data-directory",
        type=Path,
        default=Path("/var/lib/mcagent/openvswitch"),
        metavar="DIR",
        help="of the database, which must outlive the container",
    )
    parser.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="of log lines [%(default)s]"
    )


def run(args: argparse.Namespace) -> int:
    """Run until stopped."""
    from mcagent.observe import logs
    from mcagent.vswitch.supervise import DeployPolicy, Supervisor
    from mcagent.vswitch.tools import Tools

    logs.set_up("info", args.log_format)
    Supervisor(Tools(run=args.run_directory, data=args.data_directory), DeployPolicy(args.policy)).run()
    return exit_codes.OK
