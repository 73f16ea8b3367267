"""`mcagent trace`: the path of a packet and of its answer over the Nodes of both clusters."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import secrets
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcagent.cli.common import exit_codes
from mcagent.cli.common.agents import (
    Agents,
    Answer,
    ClusterAgents,
    add_agent_flags,
    ask_all,
    ask_node,
    ask_nodes,
    read_statuses,
)
from mcagent.cli.common.cluster_flags import add_cluster_flags, usual_kubeconfig
from mcagent.cli.common.place import open_reached
from mcagent.cli.common.setting_flags import read_flags
from mcagent.cli.common.shared_flags import add_output_flag
from mcagent.model.config import Config
from mcagent.model.errors import InputError, McagentError, SourceError

if TYPE_CHECKING:
    from mcagent.api.status import Status
    from mcagent.kube.client import Client
    from mcagent.trace.path import PathTracer
    from mcagent.trace.probe import Probe
    from mcagent.trace.simulated_tracer import ClusterObjects
    from mcagent.trace.targets import TraceTarget

_EPILOG = """\
examples:
  mcagent trace --from shop/web-1 --to 10.2.3.2:8080
  mcagent trace --from shop/web-1 --to shop/cart:80 --remote-context west
  mcagent trace --from shop/web-1 --to cart.shop.svc.clusterset.local:80 --remote-context west --live
  mcagent trace --from 10.1.3.2 --node node-3 --to 10.102.0.80:80 --agents agents.yaml
  mcagent trace --from shop/web-1 --to 10.2.3.2 --proto icmp -o json

Each hop is asked of that Node's own switch (ofproto/trace), for the first packet of a new connection and its
answer. Nodes of the other cluster are asked with --remote-context, or if --agents lists them; a Node that cannot
be asked is simulated (docs/troubleshooting.md). Nothing is sent, but with --live.

The exit code is 0 if the packet reaches the kernel of its Node and the answer comes back, or if the Service's
endpoint is of this cluster, else 1.
"""
_TARGET = re.compile(r"(?P<host>[^:]+?)(?::(?P<port>\d{1,5}))?")
_PORT = 40000
_UNUSED_PORTS = range(20000, 32768)  # below those that Linux chooses by itself (net.ipv4.ip_local_port_range)
MOST_PROBES = 5
_DEFAULTS = "the default configuration, without enablePodToPodConnectivity and encryption"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the packet, and how Nodes are asked."""
    parser.description = "Trace a packet and its answer between clusters, hop by hop, and show why it ends."
    parser.usage = "%(prog)s --from POD|IP --to TARGET [flags]"
    parser.epilog = _EPILOG
    parser.add_argument(
        "--from", dest="source", required=True, metavar="POD|IP", help="NAMESPACE/POD, or an address"
    )
    target = "ADDRESS[:PORT], NAMESPACE/SERVICE[:PORT], or NAME.NAMESPACE.svc.clusterset.local[:PORT]"
    parser.add_argument("--to", dest="target", required=True, metavar="TARGET", help=target)
    parser.add_argument("--proto", choices=["tcp", "udp", "sctp", "icmp"], default="tcp", help="[%(default)s]")
    port = f"[{_PORT}; with --live one of {_UNUSED_PORTS[0]} to {_UNUSED_PORTS[-1]}]"
    parser.add_argument("--source-port", type=int, default=0, metavar="PORT", help=port)
    parser.add_argument("--node", default="", metavar="NAME", help="where it begins [the Node of the Pod]")
    live = f"send N real probes (default 3, at most {MOST_PROBES}) and show where they were last seen"
    parser.add_argument("--live", type=int, nargs="?", const=3, default=0, metavar="N", help=live)
    add_output_flag(parser)
    parser.add_argument(
        "--remote-context", default="", metavar="NAME", help="the other cluster, of the kubeconfig"
    )
    parser.add_argument("--remote-kubeconfig", default="", metavar="FILE", help="[that of --kubeconfig]")
    parser.add_argument(
        "--remote-config", default="", metavar="FILE", help="the agents' configuration there [their ConfigMap]"
    )
    add_cluster_flags(parser)
    add_agent_flags(parser)
    file = "$MCAGENT_CONFIG, else /etc/mcagent/agent.yaml, else their ConfigMap"
    parser.add_argument("--config", metavar="FILE", help=f"the agents' configuration here [{file}]")


def run(args: argparse.Namespace) -> int:
    """Ask hop by hop, and print."""
    from mcagent.trace.path import PathTracer
    from mcagent.trace.probe import Probe
    from mcagent.trace.probing import send
    from mcagent.trace.report import PathReport
    from mcagent.trace.simulated_tracer import Clusters
    from mcagent.trace.targets import NamedObjects

    _check(args)
    match = _TARGET.fullmatch(args.target)
    if match is None or not 0 < int(match["port"] or 80) < 65536:
        raise InputError("trace", "--to", f'must be ADDRESS:PORT or NAMESPACE/SERVICE:PORT, is "{args.target}"')
    agents = _AgentDirectory(args)
    objects = NamedObjects(args.kubeconfig or usual_kubeconfig(), args.context)
    source, node = objects.source(args.source)
    target = objects.target(match["host"], int(match["port"] or 0), args.proto)
    start = agents.start(args.node or node, args.source)
    port = args.source_port or (secrets.choice(_UNUSED_PORTS) if args.live else _PORT)
    probe = Probe(
        in_port=1,
        source=source,
        destination=target.address,
        protocol=args.proto,
        source_port=port,
        port=target.port,
    )
    own_id = agents.statuses[start].cluster_id if start in agents.statuses else ""
    tracer = PathTracer(
        statuses=agents.statuses,
        ask=agents.ask,
        errors=agents.errors,
        simulate=Clusters(*agents.objects, own_id=own_id).simulate,
    )
    tracer.require(start)
    target, probe = _with_endpoint(tracer, start, target, probe)
    hops = list(tracer.forward(start, probe))
    back = list(tracer.reverse(hops))
    live = None
    if args.live and hops[0].asked:
        live = send(hops, args.live, agents.ask_many, agents.ask)
    elif args.live:
        print(f"mcagent trace: no probe is sent: {hops[0].unasked or hops[0].why}", file=sys.stderr)
    report = PathReport(target=target, status=tracer.status(start), hops=hops, back=back, live=live)
    print(json.dumps(report.as_json()) if args.output == "json" else report.as_text())
    good = live.answered if live is not None else (report.answered or report.local) and not args.live
    return exit_codes.OK if good else exit_codes.FAILED


def _check(args: argparse.Namespace) -> None:
    if not 0 <= args.source_port < 65536:
        raise InputError("trace", "--source-port", f"must be a port, is {args.source_port}")
    if not 0 <= args.live <= MOST_PROBES:
        raise InputError("trace", "--live", f"at most {MOST_PROBES} probes, not {args.live}")
    if args.live and args.proto == "sctp":
        raise InputError("trace", "--live", "sends tcp, udp and icmp only")


def _with_endpoint(tracer: PathTracer, start: str, target: TraceTarget, probe: Probe) -> tuple[TraceTarget, Probe]:
    """Return the target with who chooses its endpoints, and the packet to the one that is traced."""
    from mcagent.trace.targets import with_shares
    from mcagent.trace.topology import is_remote

    status = tracer.status(start)
    if not is_remote(status, probe.destination):
        with contextlib.suppress(McagentError):  # the path begins with such a question, and says why
            target = with_shares(target, tracer.trace_at(start, probe)[0], start)
    if not target.choices:
        return target, probe
    by_share = sorted(target.choices, key=lambda choice: -choice.share)
    remote = [choice for choice in by_share if is_remote(status, choice.address)]
    chosen = (remote or by_share)[0]
    return target, replace(probe, destination=chosen.address, port=chosen.port)


class _AgentDirectory:
    """The agents of this cluster and, if it is named, of the other one; `objects`: what their API servers have."""

    def __init__(self, args: argparse.Namespace) -> None:
        from mcagent.agent.config import SCHEMA
        from mcagent.kube.client import Client
        from mcagent.trace.simulated_tracer import ClusterObjects

        self._clusters: list[Agents] = []
        self._agents: dict[str, Agents] = {}  # by Node
        self.statuses: dict[str, Status] = {}
        self.errors: dict[str, str] = {}
        self._ask_for_status(open_reached(args, "mcagent trace"))
        self._own = tuple(self._agents)
        own, other = args.kubeconfig or usual_kubeconfig(), None
        if args.remote_context or args.remote_kubeconfig:
            client = Client(args.remote_kubeconfig or own, args.remote_context)
            other = ClusterObjects(client, partial(_read_config, client, args.remote_config))
            self._ask_for_status(ClusterAgents(client=client, port=args.agents_port))
        own_objects = None
        if own:
            client = Client(own, args.context)
            file, _ = read_flags(args, SCHEMA)
            own_objects = ClusterObjects(client, partial(_read_config, client, str(file or "")))
        self.objects: tuple[ClusterObjects | None, ClusterObjects | None] = own_objects, other

    def _ask_for_status(self, agents: Agents) -> None:
        answers = {node: answer for node, answer in ask_nodes(agents).items() if node not in self._agents}
        self._clusters.append(agents)
        self._agents |= dict.fromkeys(answers, agents)
        statuses, errors = read_statuses(answers)
        self.statuses |= statuses
        self.errors |= errors

    def start(self, named: str, source: str) -> str:
        """Return the Node where the packet begins. Raises InputError."""
        start = named or (self._own[0] if len(self._own) == 1 else "")
        if start not in self._own and not (start and self.objects[0]):
            names = ", ".join(self._own)
            raise InputError("trace", "--node", f"give the Node of {source}; known are {names}")
        return start

    def ask(self, node: str, page: str) -> Mapping[str, Any]:
        """Return a page of a Node's agent. Raises McagentError."""
        return ask_node(self._agents[node], node, page)

    def ask_many(self, pages: Mapping[str, str]) -> dict[str, Mapping[str, Any] | str]:
        """Return pages by Node, or why there is none; of each cluster all at once."""
        answers: dict[str, Answer] = {}
        for agents in self._clusters:
            of_cluster = {node: page for node, page in pages.items() if self._agents[node] is agents}
            answers |= {answer.node: answer for answer in ask_all(agents, of_cluster)}
        return {node: answer.page if answer.page is not None else answer.error for node, answer in answers.items()}


def _read_config(client: Client, file: str) -> tuple[Config, str]:
    """Return the agents' configuration, of a file or ("") of their ConfigMap, and where it is from."""
    from mcagent.agent.config import load
    from mcagent.cli.common.agent_config import ANY_NODE, read_config_map

    if file:
        return load(Path(file), ANY_NODE, {}).core, f"the configuration in {file}"
    try:
        configuration, why = read_config_map(client), "there is no ConfigMap of its agents"
    except SourceError as error:
        configuration, why = None, f"the ConfigMap of its agents cannot be read: {error}"
    if configuration is None:
        return Config(node_name="any"), f"{_DEFAULTS} ({why}; --config and --remote-config name a file)"
    return configuration[0].core, f"the configuration in {configuration[1]}"
