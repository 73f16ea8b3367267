"""Where a command works: on a Node with its agent, elsewhere with the cluster of the kubeconfig; never a laptop.

Owns how a Node is told from another machine, and the form of answers of one or many agents.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Collection

from mcagent.agent.config import SCHEMA, Settings
from mcagent.api.codec import from_json
from mcagent.api.status import Status
from mcagent.cli.common import exit_codes
from mcagent.cli.common.agents import (
    Agents,
    LocalAgent,
    add_agent_flags,
    agents_of,
    ask_nodes,
    read_list,
    read_statuses,
)
from mcagent.cli.common.asking import ask_agent
from mcagent.cli.common.cluster_flags import add_cluster_flags, complete_nodes, usual_kubeconfig
from mcagent.cli.common.setting_flags import add_config_flag, load_settings, read_flags
from mcagent.cli.common.shared_flags import add_all_flag
from mcagent.model.errors import McagentError

PLACE = """\
On a Node it is this Node's agent, elsewhere those of the kubeconfig's cluster; on a Node, too, with --all."""


class NotHereError(McagentError):
    """The command needs a Node or a cluster, and this machine has neither."""

    exit_code = exit_codes.USAGE


def add_place_flags(parser: argparse.ArgumentParser) -> None:
    """Declare which agents are asked, and how they are reached."""
    nodes = parser.add_argument("nodes", nargs="*", default=[], metavar="NODE", help="of the cluster [all]")
    nodes.completer = complete_nodes  # type: ignore[attr-defined]  # argcomplete
    add_reach_flags(parser)


def add_reach_flags(parser: argparse.ArgumentParser) -> None:
    """Declare how agents are reached: this Node's, or all of a cluster."""
    add_all_flag(parser)
    add_cluster_flags(parser)
    add_agent_flags(parser)
    add_config_flag(parser)


def is_node(args: argparse.Namespace, settings: Settings) -> bool:
    """Tell whether this machine is a Node: it has an agent's configuration or directory."""
    file, _ = read_flags(args, SCHEMA)
    return file is not None or "MCAGENT_NODE_NAME" in os.environ or settings.status_socket.parent.exists()


def kubeconfig_of(args: argparse.Namespace, command: str, settings: Settings) -> str:
    """Return the kubeconfig of a command that is not on a Node; "": the Pod's account. Raises NotHereError."""
    kubeconfig = args.kubeconfig or settings.kubeconfig or usual_kubeconfig()
    if not kubeconfig and "KUBERNETES_SERVICE_HOST" not in os.environ:
        raise NotHereError(
            "this machine is no Node with an agent, and has no kubeconfig: give one (--kubeconfig, KUBECONFIG or "
            f"~/.kube/config), or run it on a Node: {in_a_pod(command)}"
        )
    return str(kubeconfig)


def in_a_pod(command: str) -> str:
    """Return the command line that runs a command in the Pod of an agent."""
    return f"kubectl -n kube-system exec ds/mcagent-agent -- {command}"


def require_node(args: argparse.Namespace, settings: Settings, command: str) -> None:
    """Raise NotHereError, with the command line to use, if this machine is no Node."""
    if not is_node(args, settings):
        raise NotHereError(f"it is for a Node, and this machine is none: {in_a_pod(command)}")


def open_place(args: argparse.Namespace, command: str) -> Agents:
    """Return the agents that a command means. Raises McagentError, OSError."""
    if args.agents is not None:
        return read_list(args.agents)
    settings = load_settings(args, node_needed=False)
    named = args.all or args.context or args.kubeconfig or getattr(args, "nodes", None)
    if not named and is_node(args, settings):
        return LocalAgent(settings)
    return _agents_of_cluster(args, command, settings)


def open_reached(args: argparse.Namespace, command: str) -> Agents:
    """Return as many agents as there are: the cluster's with a kubeconfig, else this Node's. Raises likewise."""
    if args.agents is not None:
        return read_list(args.agents)
    settings = load_settings(args, node_needed=False)
    if not (args.kubeconfig or usual_kubeconfig()) and is_node(args, settings):
        return LocalAgent(settings)
    return _agents_of_cluster(args, command, settings)


def _agents_of_cluster(args: argparse.Namespace, command: str, settings: Settings) -> Agents:
    from mcagent.kube.client import Client

    client = Client(kubeconfig_of(args, command, settings), args.context)
    return agents_of(client, authority=args.agents_ca, port=args.agents_port)


def show_statuses(
    args: argparse.Namespace,
    command: str,
    text: Callable[[Status], str],
    members: Callable[[Status], object],
    good: Callable[[Status], bool],
) -> int:
    """Print a part of the status of each agent that the flags name; return the exit code.

    It is 1 if an agent is not `good`, or does not answer. As JSON one agent is `members`, many are a list of them.
    """
    agents = open_place(args, command)
    if isinstance(agents, LocalAgent):
        status = from_json(Status, ask_agent(agents.settings), "the agent")
        print(json.dumps(members(status), indent=2) if args.output == "json" else text(status))
        return exit_codes.OK if good(status) else exit_codes.FAILED
    names = nodes_of(agents)
    for node in args.nodes:
        require_known(node, names)
    statuses, errors = read_statuses(ask_nodes(agents, nodes=args.nodes or names))
    if args.output == "json":
        print(json.dumps([members(status) for status in statuses.values()], indent=2))
    else:
        print(
            "\n\n".join(_titled(node, text(status)) for node, status in statuses.items()),
            end="\n" * bool(statuses),
        )
    for node, error in errors.items():
        print(f"{command}: Node {node}: {error}", file=sys.stderr)
    return exit_codes.FAILED if errors or not all(map(good, statuses.values())) else exit_codes.OK


def nodes_of(agents: Agents) -> tuple[str, ...]:
    """Return the Nodes whose agents there are. Raises McagentError, also if there is none."""
    names = agents.nodes()
    if not names:
        raise McagentError("the cluster has no Nodes")
    return names


def _titled(node: str, text: str) -> str:
    return text if text.startswith(f"Node {node}") else f"Node {node}\n{text}"


def require_known(node: str, names: Collection[str]) -> None:
    """Raise NotHereError, with a valid name, if no Node has this one."""
    from mcagent.model.keys.values import did_you_mean

    if node not in names:
        hint = did_you_mean(node, names) or f"; the Nodes are {', '.join(sorted(names)[:20]) or 'none'}"
        raise NotHereError(f'there is no Node "{node}"{hint}')
