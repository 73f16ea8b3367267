"""`mcagent controller member` and `mcagent controller leader`."""

from __future__ import annotations

import argparse
import logging
import os

from mcagent.cli.common import exit_codes
from mcagent.cli.common.setting_flags import add_key_flags, read_flags
from mcagent.controller.config import SCHEMA, ControllerRole, load

log = logging.getLogger(__name__)

_EPILOG = """\
examples:
  mcagent controller member --config /etc/mcagent/controller.yaml
  mcagent controller leader --namespace antrea-multicluster --kubeconfig /etc/mcagent/kubeconfig

Several replicas may run; the one that holds a Lease writes. SIGTERM or SIGINT ends it: what is being written is
finished, and the Lease is given up so that another replica goes on at once.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the role and the configuration flags."""
    parser.description = (
        "Run the control plane of a cluster: as a member of a ClusterSet, or as the leader of one."
    )
    parser.epilog = _EPILOG
    parser.add_argument("role", choices=[str(role) for role in ControllerRole], help="what this cluster is")
    add_key_flags(parser, SCHEMA)


def run(args: argparse.Namespace) -> int:
    """Run until stopped."""
    from mcagent.controller.run import run_controller
    from mcagent.observe import logs

    role = ControllerRole(args.role)
    file, flags = read_flags(args, SCHEMA)
    settings = load(role, file, dict(os.environ), flags)
    logs.set_up(settings.log_level, settings.log_format)
    for remark in settings.remarks:
        log.warning("%s", remark)
    run_controller(role, settings)
    return exit_codes.OK
