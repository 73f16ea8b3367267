"""`mcagent plan`: a dry run of one pass."""

from __future__ import annotations

import argparse
import json

from mcagent.cli.common import exit_codes
from mcagent.cli.common.setting_flags import add_setting_flags, load_settings

_EPILOG = """\
examples:
  mcagent plan --config /etc/mcagent/agent.yaml --node-name node-1
  mcagent plan --node-name node-1 --source dir:/etc/mcagent/manifests -o json
  mcagent plan --node-name node-1 --source dir:/tmp/manifests --offline      # needs no Node, no root
  mcagent plan --node-name node-1 --exit-code && echo "the dataplane is as it should be"

Reads the objects and the Node, and prints the steps that the agent would take now. Changes nothing; it may run
beside the agent. With --offline the Node is not read: the plan is for one that has nothing yet.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare flags."""
    parser.description = "Show what the agent would change now, and change nothing."
    parser.epilog = _EPILOG
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text", help="form of the plan")
    parser.add_argument("--offline", action="store_true", help="do not read the Node: plan for an empty one")
    parser.add_argument("--desired", action="store_true", help="print the whole desired state instead of steps")
    parser.add_argument("--exit-code", action="store_true", help="end with 1 when there is something to change")
    parser.add_argument("--timeout", type=float, default=30.0, metavar="SECONDS", help="for listing objects [30]")
    add_setting_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Compute and print."""
    from mcagent.agent.dry_run import dry_run
    from mcagent.core.plan import render

    settings = load_settings(args)
    desired, plan = dry_run(settings, offline=args.offline, timeout=args.timeout)
    if args.output == "json":
        found = render.desired_json(desired) if args.desired else render.plan_json(plan)
        found["problems"] = [render.problem_json(problem) for problem in desired.problems]
        print(json.dumps(found, indent=1))
    elif args.desired:
        print(render.desired_text(desired), end="")
    else:
        for problem in desired.problems:
            print(f"{problem.severity}: {problem} [{problem.reason}]")
        print(render.plan_text(plan), end="")
    return exit_codes.FAILED if args.exit_code and plan.stages else exit_codes.OK
