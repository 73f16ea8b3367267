"""`mcagent trace`: the way of a packet over the Nodes of both clusters, as their switches say it now."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any

from mcagent.cli.common import exit_codes
from mcagent.cli.common.agents import Agents, OfCluster, add_agent_flags, ask_node, ask_nodes, open_agents
from mcagent.cli.common.cluster_flags import add_cluster_flags, usual_kubeconfig
from mcagent.cli.common.setting_flags import load_settings
from mcagent.model.errors import InputError, McagentError

if TYPE_CHECKING:
    from mcagent.agent.config import Settings
    from mcagent.cli.common.trace_way import Hop

_EPILOG = """\
examples:
  mcagent trace --from shop/web-1 --to 10.2.3.2:8080
  mcagent trace --from shop/web-1 --to shop/cart:80 --remote-context west
  mcagent trace --from 10.1.3.2 --node node-3 --to cart.shop.svc.clusterset.local:80 --agents agents.yaml
  mcagent trace --from shop/web-1 --to 10.2.3.2 --proto icmp -o json

Each hop is asked of that Node's own switch (ofproto/trace), for the first packet of a new connection; no packet is
sent. What kernels do before and after (CNI, kube-proxy, nft) is not asked, nor is the way of the reply. Nodes of
the other cluster are asked with --remote-context, or if --agents lists them. The exit code is 0 if the packet
reaches the kernel of its Node, 1 if not or if that cannot be known.
"""
_TARGET = re.compile(r"(?P<host>[^:]+?)(?::(?P<port>\d{1,5}))?")
_SERVICE = re.compile(r"([a-z0-9-]{1,63})\.([a-z0-9-]{1,63})\.svc\.clusterset\.local\.?")
_NAMED = re.compile(r"([a-z0-9-]{1,63})/([a-z0-9.-]{1,253})")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the packet, and how Nodes are asked."""
    parser.description = "Show the way of a packet between clusters, hop by hop, and where and why it ends."
    parser.epilog = _EPILOG
    parser.add_argument("--from", dest="source", required=True, metavar="WHO", help="NAMESPACE/POD, or an address")
    target = "ADDRESS[:PORT], NAMESPACE/SERVICE[:PORT], or NAME.NAMESPACE.svc.clusterset.local[:PORT]"
    parser.add_argument("--to", dest="target", required=True, metavar="WHERE", help=target)
    parser.add_argument("--proto", choices=["tcp", "udp", "sctp", "icmp"], default="tcp", help="[%(default)s]")
    parser.add_argument("--source-port", type=int, default=40000, metavar="PORT", help="[%(default)s]")
    parser.add_argument("--node", default="", metavar="NAME", help="where it begins [the Node of the Pod]")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text", help="[%(default)s]")
    parser.add_argument(
        "--remote-context", default="", metavar="NAME", help="the other cluster, of the kubeconfig"
    )
    parser.add_argument("--remote-kubeconfig", default="", metavar="FILE", help="[that of --kubeconfig]")
    add_cluster_flags(parser)
    add_agent_flags(parser)
    parser.add_argument("--config", metavar="FILE", help="the agent's configuration, of this Node's agent")


def run(args: argparse.Namespace) -> int:
    """Ask hop by hop, and print."""
    from mcagent.cli.common.trace_way import delivered, follow, plain, text
    from mcagent.core.trace import Probe

    target = _TARGET.fullmatch(args.target)
    if target is None or not 0 < int(target["port"] or 80) < 65536 or not 0 < args.source_port < 65536:
        raise InputError("trace", "--to", f'must be ADDRESS:PORT or NAMESPACE/SERVICE:PORT, is "{args.target}"')

    def settings() -> Settings:
        return load_settings(args, node_needed=False)

    agents = open_agents(args, settings)
    objects = _Objects(args)
    source, node = objects.source(args.source)
    ends = objects.targets(target["host"])
    statuses = ask_nodes(agents)
    known = {name: one.page for name, one in statuses.items() if one.page is not None}
    ways: dict[str, Agents] = dict.fromkeys(statuses, agents)
    if args.remote_context or args.remote_kubeconfig:
        there = _remote(args)
        for name, one in ask_nodes(there).items():
            ways.setdefault(name, there)
            if one.page is not None:
                known.setdefault(name, one.page)
    start = args.node or node or (next(iter(statuses)) if len(statuses) == 1 else "")
    if start not in statuses:
        raise InputError("trace", "--node", f"give the Node of {args.source}; known are {', '.join(statuses)}")
    if start not in known:
        raise McagentError(f"Node {start}: {statuses[start].error}")

    def ask(at: str, page: str) -> Mapping[str, Any]:
        return ask_node(ways[at], at, page)

    probe = Probe(
        in_port=1,
        source=source,
        destination=ends[0],
        protocol=args.proto,
        source_port=args.source_port,
        port=int(target["port"] or 80),
    )
    hops: list[Hop] = list(follow(start, probe, known, ask))
    if args.output == "json":
        print(json.dumps({"delivered": delivered(hops), "backends": list(map(str, ends)), "hops": plain(hops)}))
    else:
        chosen = f", the first of {len(ends)} that kube-proxy chooses among: " + ", ".join(map(str, ends))
        print(f"{args.proto} from {source} to {ends[0]}{chosen if len(ends) > 1 else ''}\n\n{text(hops)}")
    return exit_codes.OK if delivered(hops) else exit_codes.FAILED


def _remote(args: argparse.Namespace) -> Agents:
    from mcagent.kube.client import Client

    file = args.remote_kubeconfig or args.kubeconfig or usual_kubeconfig()
    return OfCluster(client=Client(file, args.remote_context), port=args.agents_port)


class _Objects:
    """What the API server knows of names; without a kubeconfig there are addresses only."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._file, self._context = args.kubeconfig or usual_kubeconfig(), args.context

    def source(self, who: str) -> tuple[IPv4Address, str]:
        """Return the address that is meant, and its Node ("" if not known). Raises InputError, SourceError."""
        named = _NAMED.fullmatch(who)
        if named is None:
            return _address("--from", who), self._node_of(who)
        pod = self._get("--from", f"/api/v1/namespaces/{named[1]}/pods/{named[2]}")
        return _address("--from", pod.get("status", {}).get("podIP", "")), pod.get("spec", {}).get("nodeName", "")

    def targets(self, where: str) -> list[IPv4Address]:
        """Return the addresses that packets to it may go to after kube-proxy. Raises InputError, SourceError."""
        service = _SERVICE.fullmatch(where)
        named = _NAMED.fullmatch(where)
        if service is not None:
            namespace, name = service[2], f"antrea-mc-{service[1]}"
        elif named is not None:
            namespace, name = named[1], named[2]
        else:
            return [_address("--to", where)]
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        slices = (
            self._get("--to", path, {"labelSelector": f"kubernetes.io/service-name={name}"}).get("items") or []
        )
        found = {
            address
            for one in slices
            for endpoint in one.get("endpoints") or ()
            if (endpoint.get("conditions") or {}).get("ready") is not False
            for address in endpoint.get("addresses") or ()
        }
        if not found:
            raise InputError("trace", "--to", f"Service {namespace}/{name} has no ready endpoint here")
        return sorted(_address("--to", address) for address in found)

    def _node_of(self, address: str) -> str:
        if not self._file:
            return ""
        query = {"fieldSelector": f"status.podIP={_address('--from', address)}"}
        pods = self._get("--from", "/api/v1/pods", query).get("items") or []
        return next((one["spec"].get("nodeName", "") for one in pods), "")

    def _get(self, flag: str, path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        from mcagent.kube.client import Client
        from mcagent.kube.errors import ApiRefusalError

        if not self._file:
            raise InputError("trace", flag, "a name needs a kubeconfig; give an address")
        client = Client(self._file, self._context)
        try:
            found: Mapping[str, Any] = client.request("GET", path, query)
        except ApiRefusalError as error:
            if error.code == 404:
                raise InputError("trace", flag, f"there is no such object: {path}") from None
            raise
        finally:
            client.close()
        return found


def _address(flag: str, text: str) -> IPv4Address:
    try:
        return IPv4Address(text)
    except ValueError:
        raise InputError("trace", flag, f'"{text}" is no IPv4 address') from None
