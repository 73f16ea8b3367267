"""`mcagent agent`."""

from __future__ import annotations

import argparse

from mcagent.cli.common import exit_codes
from mcagent.cli.common.setting_flags import add_key_flags, load_settings

_EPILOG = """\
examples:
  mcagent agent --config /etc/mcagent/agent.yaml --node-name node-1
  mcagent agent --node-name node-1 --cluster-id west --kubeconfig /etc/mcagent/kubeconfig
  mcagent agent --node-name node-1 --source dir:/etc/mcagent/manifests --ovsdb unix:/run/openvswitch/db.sock

The agent runs until SIGTERM or SIGINT, and leaves the dataplane as it is; `mcagent cleanup` removes it. SIGHUP
makes it read its configuration again.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the configuration flags."""
    parser.description = (
        "Run the agent of this Node: keep its dataplane equal to what Gateway and ClusterInfoImport objects say."
    )
    parser.epilog = _EPILOG
    add_key_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Run until stopped."""
    from mcagent.agent.run import run_agent
    from mcagent.doctor.diagnose import diagnose
    from mcagent.observe import logs

    settings = load_settings(args, strict=True)
    logs.set_up(settings.log_level, settings.log_format)
    run_agent(settings, reload=lambda: load_settings(args, strict=True), diagnose=diagnose)
    return exit_codes.OK
