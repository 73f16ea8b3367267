"""`mcagent plan`: a dry run of one pass, of what is, or of what would be if something were different."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from mcagent.api.codec import to_json
from mcagent.cli.common import exit_codes
from mcagent.cli.common.cluster_flags import add_cluster_flags
from mcagent.cli.common.manifest_files import add_manifests_flag, read_files
from mcagent.cli.common.place import NotHereError, is_node, kubeconfig_of, require_known
from mcagent.cli.common.setting_flags import add_config_flag, load_settings, value_of_flag
from mcagent.cli.common.shared_flags import add_list_flag, add_output_flag, add_seconds_flag

if TYPE_CHECKING:
    from mcagent.agent.config import Settings

_EPILOG = """\
examples:
  mcagent plan --config /etc/mcagent/agent.yaml --node-name node-1
  mcagent plan --node-name node-1 --source dir:/etc/mcagent/manifests --offline -o json   # needs no Node, no root
  mcagent plan --node-name node-1 --exit-code && echo "the dataplane is as it should be"
  mcagent plan --node-name node-1 --what-if 'gateway node-2 down'
  mcagent plan --node-name node-1 --what-if 'node node-2 drained' --what-if 'cluster east removed' -o json
  mcagent plan --node-name node-1 -f new-gateway.yaml --connections

On a machine that is no Node, it runs in the Pod of the agent of --node-name (pods/exec); with --offline, it takes
the objects of the kubeconfig's cluster and the configuration of its agents.

Reads the objects and the Node, and prints the steps that the agent would take now. Changes nothing; it may run
beside the agent. With --offline the Node is not read: the plan is for one that has nothing yet.

--what-if and -f tell instead who would lose what, which connections end and which only move, if that happened now,
for all Nodes of this cluster, and how much the agent of this Node would change. What can be assumed:
  gateway NAME down     a gateway of this cluster, or of another one by its gatewayIP, no longer answers
  node NAME down        the same of any Node of this cluster
  node NAME drained     the Node hands over to other gateways
  cluster ID removed    the cluster leaves the ClusterSet
Several happen together, after the manifests of -f were applied. Shares are of many connections: a hash decides
which single ones these are. With --exit-code the end is 1 when anything would change.
"""

_MARGIN = 10.0  # seconds for the start of the command in a Pod


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare flags."""
    parser.description = "Show what the agent would change now, or after an event (--what-if). Change nothing."
    parser.epilog = _EPILOG
    parser.usage = "%(prog)s [flags]"
    add_output_flag(parser)
    parser.add_argument("--offline", action="store_true", help="do not read the Node: plan for an empty one")
    parser.add_argument("--desired", action="store_true", help="print the whole desired state instead of steps")
    parser.add_argument("--exit-code", action="store_true", help="end with 1 when there is something to change")
    add_seconds_flag(parser, "--timeout", 30.0, "for listing objects")
    add_list_flag(parser, "--what-if", "TEXT", "what is assumed to happen, see below; may be repeated")
    add_manifests_flag(parser, "manifests that are assumed to be applied")
    parser.add_argument(
        "--connections",
        action="store_true",
        help="with these, count this Node's open connections (needs root)",
    )
    add_cluster_flags(parser)
    add_config_flag(
        parser,
        {
            "nodeName": ("NAME", "the Node [nodeName of the configuration]"),
            "source": ("SOURCE", "kube, or dir:/PATH: a directory of manifests [source of the configuration]"),
        },
    )


def run(args: argparse.Namespace) -> int:
    """Compute and print."""
    from mcagent.agent.dry_run import dry_run
    from mcagent.core.plan import render

    settings = load_settings(args, node_needed=False)
    if settings.source == "kube" and not is_node(args, settings):
        if not args.offline:
            return _in_pod(args, settings)
        settings = _settings_of_cluster(args, settings)
    else:
        settings = load_settings(args)
    settings = replace(settings, context=args.context)
    if args.what_if or args.filename:
        return _what_if(args, settings)
    desired, plan = dry_run(settings, offline=args.offline, timeout=args.timeout)
    if args.output == "json":
        shown = render.api_desired(desired) if args.desired else render.api_plan(plan, desired.problems)
        print(json.dumps(to_json(shown), indent=1))
    elif args.desired:
        print(render.desired_text(desired), end="")
    else:
        for problem in desired.problems:
            print(f"{problem.severity}: {problem} [{problem.reason}]")
        print(render.plan_text(plan), end="")
    return exit_codes.FAILED if args.exit_code and plan.stages else exit_codes.OK


def _in_pod(args: argparse.Namespace, settings: Settings) -> int:
    """Make the plan where its Node can be read: in the Pod of the Node's agent."""
    from mcagent.cli.common.agents import ClusterAgents
    from mcagent.kube.client import Client

    if args.filename:
        raise NotHereError("-f: the files are on this machine, which is no Node: add --offline")
    agents = ClusterAgents(client=Client(kubeconfig_of(args, "mcagent plan", settings), args.context))
    node = value_of_flag(args, "nodeName")
    names = agents.nodes()
    if not node:
        raise NotHereError(f"which Node? Give --node-name NAME; the Nodes are {', '.join(names[:20]) or 'none'}")
    require_known(node, names)
    words = ["mcagent", "plan", "--output", args.output, "--timeout", str(args.timeout)]
    words += [flag for flag in ("--desired", "--exit-code", "--connections") if getattr(args, _name(flag))]
    words += [word for text in args.what_if for word in ("--what-if", text)]
    done = agents.run(node, words, args.timeout + _MARGIN)
    print(done.out, end="")
    print(done.err, end="", file=sys.stderr)
    return done.code


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _settings_of_cluster(args: argparse.Namespace, settings: Settings) -> Settings:
    """Return the configuration of a cluster's agents, for a plan that reads no Node. Raises McagentError."""
    from mcagent.cli.common.agent_config import read_config_map
    from mcagent.kube.client import Client

    kubeconfig = kubeconfig_of(args, "mcagent plan", settings)
    client = Client(kubeconfig, args.context)
    try:
        configured = read_config_map(client)
        nodes = client.request("GET", "/api/v1/nodes", {"limit": "20000"}).get("items") or ()
    finally:
        client.close()
    node = value_of_flag(args, "nodeName")
    require_known(node, [obj["metadata"]["name"] for obj in nodes])
    core = (configured[0] if configured else settings).core
    return replace(settings, core=replace(core, node_name=node), kubeconfig=kubeconfig)


def _what_if(args: argparse.Namespace, settings: Settings) -> int:
    """Compare the present forecast with the one after the assumptions."""
    from mcagent.agent.dry_run import current_world, tracked_connections
    from mcagent.core.snapshot import apply_changes
    from mcagent.trace.whatif.assumptions import assume, read_assumption
    from mcagent.trace.whatif.compare import compare
    from mcagent.trace.whatif.forecast import forecast
    from mcagent.trace.whatif.report import answer_text, api_forecast

    changes = [*read_files(args.filename, settings.core.namespace or "default")]
    now = current_world(settings, offline=args.offline, timeout=args.timeout)
    then = replace(now, snapshot=apply_changes(now.snapshot, changes))
    for text in args.what_if:
        then = assume(then, read_assumption(text, then.snapshot, settings.core))
    before = forecast(now, settings.core)
    answer = compare(before, forecast(then, settings.core))
    counts = tracked_connections(settings, before.desired.state) if args.connections else None
    assumptions = [*(f"{path} applied" for path in args.filename), *args.what_if]
    node = settings.core.node_name
    if args.output == "json":
        members = to_json(api_forecast(assumptions, answer, node=node, silent=now.silent, counts=counts))
        print(json.dumps(members, indent=1))
    else:
        print(answer_text(assumptions, answer, node=node, silent=now.silent, counts=counts))
    return exit_codes.FAILED if args.exit_code and not answer.nothing else exit_codes.OK
