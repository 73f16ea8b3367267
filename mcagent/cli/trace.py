"""`mcagent trace`: the way of a packet and of its answer over the Nodes of both clusters, as switches say it."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mcagent.cli.common import exit_codes
from mcagent.cli.common.agents import (
    Agents,
    Answer,
    OfCluster,
    add_agent_flags,
    ask_all,
    ask_node,
    ask_nodes,
    open_agents,
)
from mcagent.cli.common.cluster_flags import add_cluster_flags, usual_kubeconfig
from mcagent.cli.common.setting_flags import given, load_settings
from mcagent.model.errors import InputError, McagentError

if TYPE_CHECKING:
    from mcagent.agent.config import Settings
    from mcagent.cli.tracing.ends import Target
    from mcagent.cli.tracing.peers import Page
    from mcagent.cli.tracing.simulated import ClusterObjects
    from mcagent.cli.tracing.way import Way
    from mcagent.core.trace import Probe

_EPILOG = """\
examples:
  mcagent trace --from shop/web-1 --to 10.2.3.2:8080
  mcagent trace --from shop/web-1 --to shop/cart:80 --remote-context west
  mcagent trace --from shop/web-1 --to cart.shop.svc.clusterset.local:80 --remote-context west --live
  mcagent trace --from 10.1.3.2 --node node-3 --to 10.102.0.80:80 --agents agents.yaml
  mcagent trace --from shop/web-1 --to 10.2.3.2 --proto icmp -o json

Each hop is asked of that Node's own switch (ofproto/trace), for the first packet of a new connection and for the
answer to it. What kernels do before and after (CNI, kube-proxy, nft) is not asked. Nodes of the other cluster are
asked with --remote-context, or if --agents lists them.

A Node that cannot be asked is simulated, if the API server of its cluster can be read: what its flows should be is
computed from the objects and the agents' configuration (their ConfigMap, or --config and --remote-config), and the
packet is walked through them. Such hops say so, and what is assumed.

Nothing is sent, but with --live: a few real packets in the Pod's name, from a port that it does not use. TCP: SYNs
and, at the end, a reset; UDP: datagrams with the text "mcagent trace --live"; ICMP: echo requests.

The exit code is 0 if the packet reaches the kernel of its Node and the answer comes back (--live: a real one did),
1 if not or if that cannot be known.
"""
_TARGET = re.compile(r"(?P<host>[^:]+?)(?::(?P<port>\d{1,5}))?")
_PORT = 40000
_UNUSED_PORTS = range(20000, 32768)  # below those that Linux chooses by itself (net.ipv4.ip_local_port_range)
MOST_PROBES = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the packet, and how Nodes are asked."""
    parser.description = (
        "Show the way of a packet between clusters and of its answer, hop by hop, and why it ends."
    )
    parser.epilog = _EPILOG
    parser.add_argument("--from", dest="source", required=True, metavar="WHO", help="NAMESPACE/POD, or an address")
    target = "ADDRESS[:PORT], NAMESPACE/SERVICE[:PORT], or NAME.NAMESPACE.svc.clusterset.local[:PORT]"
    parser.add_argument("--to", dest="target", required=True, metavar="WHERE", help=target)
    parser.add_argument("--proto", choices=["tcp", "udp", "sctp", "icmp"], default="tcp", help="[%(default)s]")
    port = f"[{_PORT}; with --live one of {_UNUSED_PORTS[0]} to {_UNUSED_PORTS[-1]}]"
    parser.add_argument("--source-port", type=int, default=0, metavar="PORT", help=port)
    parser.add_argument("--node", default="", metavar="NAME", help="where it begins [the Node of the Pod]")
    live = f"send N real probes (at most {MOST_PROBES}, 3 if not said) and show where they were last seen"
    parser.add_argument("--live", type=int, nargs="?", const=3, default=0, metavar="N", help=live)
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text", help="[%(default)s]")
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
    from mcagent.cli.tracing.ends import Objects
    from mcagent.cli.tracing.live import send
    from mcagent.cli.tracing.simulated import Clusters
    from mcagent.cli.tracing.text import Traced
    from mcagent.cli.tracing.way import Way
    from mcagent.core.trace import Probe

    _check(args)
    said = _TARGET.fullmatch(args.target)
    if said is None or not 0 < int(said["port"] or 80) < 65536:
        raise InputError("trace", "--to", f'must be ADDRESS:PORT or NAMESPACE/SERVICE:PORT, is "{args.target}"')
    agents = _Everybody(args)
    objects = Objects(args)
    source, node = objects.source(args.source)
    target = objects.target(said["host"], int(said["port"] or 80), args.proto)
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
    own_id = str(agents.known.get(start, {}).get("clusterID", ""))
    simulate = Clusters(*agents.objects, own_id=own_id).stand_in
    way = Way(statuses=agents.known, ask=agents.ask, errors=agents.errors, simulate=simulate)
    way.begin(start)
    target, probe = _chosen(way, start, target, probe)
    hops = list(way.forth(start, probe))
    back = list(way.back(hops))
    live = None
    if args.live and hops[0].asked:
        live = send(hops, args.live, agents.ask_many, agents.ask)
    traced = Traced(target=target, status=way.status(start), hops=hops, back=back, live=live)
    print(json.dumps(traced.as_json()) if args.output == "json" else traced.as_text())
    good = live.answered if live is not None else traced.answered and not args.live
    return exit_codes.OK if good else exit_codes.FAILED


def _check(args: argparse.Namespace) -> None:
    if not 0 <= args.source_port < 65536:
        raise InputError("trace", "--source-port", f"must be a port, is {args.source_port}")
    if not 0 <= args.live <= MOST_PROBES:
        raise InputError("trace", "--live", f"at most {MOST_PROBES} probes, not {args.live}")
    if args.live and args.proto == "sctp":
        raise InputError("trace", "--live", "sends tcp, udp and icmp only")


def _chosen(way: Way, start: str, target: Target, probe: Probe) -> tuple[Target, Probe]:
    """Return the target with who chooses its endpoints, and the packet to the one that is traced."""
    from dataclasses import replace

    from mcagent.cli.tracing.ends import chosen
    from mcagent.cli.tracing.peers import is_remote

    status = way.status(start)
    if not is_remote(status, probe.destination):
        with contextlib.suppress(McagentError):  # the way begins with such a question, and says why
            target = chosen(target, way.walked(start, probe)[0], start)
    if not target.choices:
        return target, probe
    by_share = sorted(target.choices, key=lambda one: -one.share)
    there = [one for one in by_share if is_remote(status, one.address)]
    taken = (there or by_share)[0]
    return target, replace(probe, destination=taken.address, port=taken.port)


class _Everybody:
    """The agents of this cluster and, if it is named, of the other one; `objects`: what their API servers say."""

    def __init__(self, args: argparse.Namespace) -> None:
        from mcagent.agent.config import SCHEMA
        from mcagent.cli.tracing.simulated import ClusterObjects
        from mcagent.kube.client import Client

        def settings() -> Settings:
            return load_settings(args, node_needed=False)

        self._ways: dict[str, Agents] = {}
        self.known: dict[str, Page] = {}
        self.errors: dict[str, str] = {}
        self._ask_for_status(open_agents(args, settings))
        self._own = tuple(self._ways)
        own, other = args.kubeconfig or usual_kubeconfig(), None
        if args.remote_context or args.remote_kubeconfig:
            client = Client(args.remote_kubeconfig or own, args.remote_context)
            other = ClusterObjects(client, args.remote_config)
            self._ask_for_status(OfCluster(client=client, port=args.agents_port))
        config = given(args, SCHEMA)[0]
        here = ClusterObjects(Client(own, args.context), str(config or "")) if own else None
        self.objects: tuple[ClusterObjects | None, ClusterObjects | None] = here, other

    def _ask_for_status(self, agents: Agents) -> None:
        for name, one in ask_nodes(agents).items():
            if name in self._ways:
                continue
            self._ways[name] = agents
            if one.page is None:
                self.errors[name] = one.error
            else:
                self.known[name] = one.page

    def start(self, named: str, source: str) -> str:
        """Return the Node where the packet begins. Raises InputError."""
        start = named or (self._own[0] if len(self._own) == 1 else "")
        if start not in self._own and not (start and self.objects[0]):
            names = ", ".join(self._own)
            raise InputError("trace", "--node", f"give the Node of {source}; known are {names}")
        return start

    def ask(self, node: str, page: str) -> Page:
        """Return a page of a Node's agent. Raises McagentError."""
        return ask_node(self._ways[node], node, page)

    def ask_many(self, pages: Mapping[str, str]) -> dict[str, Page | str]:
        """Return pages by Node, or why there is none; of each cluster all at once."""
        found: dict[str, Answer] = {}
        for agents in dict.fromkeys(map(id, self._ways.values())):
            these = {node: page for node, page in pages.items() if id(self._ways[node]) == agents}
            if these:
                found |= {one.node: one for one in ask_all(self._ways[next(iter(these))], these)}
        return {node: one.page if one.page is not None else one.error for node, one in found.items()}
