"""`devtools/mclab`: many Nodes and clusters on this machine, in network namespaces."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from devtools.errors import LabError
from devtools.lab import control, hands_on, picture, state, story, topology_file
from devtools.lab.api import ApiKind
from devtools.lab.lab import Lab
from devtools.lab.progress import Progress
from devtools.lab.topology import WITH_OUR_AGENTS, Cni, Topology, Underlay, generate
from devtools.nodes import netns
from devtools.traffic import matrix
from mcagent.cli.common import exit_codes
from mcagent.cli.common.signals import terminable
from mcagent.cli.main import run_command
from mcagent.model.config import DatapathChoice, TrafficEncryption
from mcagent.model.dataplane.resources import TunnelType

_EPILOG = f"""\
examples:
  devtools/mclab demo                              two clusters, all of it, in a minute
  devtools/mclab demo --all-cnis --tunnel vxlan
  devtools/mclab up --clusters 3 --workers 2 --cni aws-vpc --name big
  devtools/mclab up --control-plane --gateways 2   with controllers: a ClusterSet to play with
  devtools/mclab status --name big
  devtools/mclab exec east-w1-p1 -- ping -c 3 10.2.1.2
  devtools/mclab exec east-gw1 -- ovs-ofctl -O OpenFlow15 dump-flows br-mc
  devtools/mclab ask east-w1-p1 antrea-mc-web      a Pod asks a Service
  devtools/mclab fault port-blocked east-gw1 west-gw1
  devtools/mclab down --name big

MCLAB_NAME in the environment is the name of the lab where --name is not given.


Everything is in network namespaces whose names begin with mcl-NAME-, and in {state.ROOT}/NAME.

{exit_codes.EXPLAINED}
"""

DEFAULT_NAME = os.environ.get("MCLAB_NAME", "lab")
_API_HELP = "what serves the API: one Python process each, or kube-apiserver and etcd [%(default)s]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions with their flags."""
    parser.description = "Many Nodes and clusters on this machine: real Open vSwitch, real agents, real packets."
    parser.epilog = _EPILOG
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    up = actions.add_parser("up", help="make a lab and leave it running")
    _add_shape(up, DEFAULT_NAME, gateways=1)
    up.add_argument("--file", type=Path, metavar="YAML", help="topology from a file, instead of the flags above")
    up.add_argument("--control-plane", action="store_true", help="with controllers, joined to a ClusterSet")
    up.add_argument("--policies", action="store_true", help="agents enforce policies between clusters")
    up.add_argument("--no-agents", action="store_true", help="everything but the agents")
    demo = actions.add_parser("demo", help="make a lab, show that it works, take it down again")
    _add_shape(demo, os.environ.get("MCLAB_NAME", "demo"), gateways=2)
    demo.add_argument(
        "--no-control-plane",
        action="store_false",
        dest="control_plane",
        help="no controllers: the lab writes Gateways, ClusterInfoImports and imported Services itself",
    )
    demo.add_argument("--all-cnis", action="store_true", help="one lab after the other, for every CNI profile")
    demo.add_argument("--keep", action="store_true", help="leave the lab running")
    status = actions.add_parser("status", help="tell how labs are doing")
    status.add_argument("--name", default=os.environ.get("MCLAB_NAME"), help="of the lab [all there are]")
    status.add_argument("-o", "--output", choices=["text", "json"], default="text")
    execute = actions.add_parser("exec", help="run a command in a Node, a Pod, or beside a cluster's API server")
    execute.add_argument("where", help="a Node, a Pod, a cluster, or underlay")
    execute.add_argument("command", nargs=argparse.REMAINDER, help="[a shell]")
    ask = actions.add_parser("ask", help="ask a Service, a Pod or an address from a Pod, and tell who answers")
    hands_on.add_ask(ask)
    fault = actions.add_parser("fault", help="break something, or heal it")
    hands_on.add_fault(fault)
    for subparser in (execute, ask, fault):
        subparser.add_argument(
            "--name", default=DEFAULT_NAME, help="of the lab [%(default)s, or the only one there is]"
        )
    down = actions.add_parser("down", help="take a lab down, whatever is there of it")
    down.add_argument("--name", default=DEFAULT_NAME, help="of the lab [%(default)s]")
    down.add_argument("--all", action="store_true", help="every lab there is")


def _add_shape(parser: argparse.ArgumentParser, name: str, *, gateways: int) -> None:
    parser.add_argument("--name", default=name, help="of the lab: several may run side by side [%(default)s]")
    parser.add_argument("--clusters", type=int, default=2, metavar="N", help="[%(default)s]")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="of each cluster [%(default)s]")
    parser.add_argument(
        "--gateways", type=int, default=gateways, metavar="N", help="of each cluster [%(default)s]"
    )
    parser.add_argument("--pods", type=int, default=1, metavar="N", help="of each Node [%(default)s]")
    _add_choice(parser, "--tunnel", TunnelType, TunnelType.GENEVE, "encapsulation")
    _add_choice(parser, "--encryption", TrafficEncryption, TrafficEncryption.NONE, "between clusters")
    _add_choice(parser, "--underlay", Underlay, Underlay.IPV4, "of the Nodes' addresses")
    _add_choice(parser, "--cni", Cni, Cni.FLANNEL, "how Pods get addresses and get out")
    parser.add_argument(
        "--same-cidrs",
        action="store_true",
        help="all clusters have kubeadm's Service and Pod CIDRs; with controllers only",
    )
    parser.add_argument("--api", choices=list(ApiKind), default="embedded", help=_API_HELP)
    _add_choice(parser, "--datapath", DatapathChoice, DatapathChoice.AUTO, "of Open vSwitch; netdev is userspace")


def _add_choice(
    parser: argparse.ArgumentParser,
    flag: str,
    kind: type[TunnelType | TrafficEncryption | Cni | DatapathChoice | Underlay],
    default: str,
    meaning: str,
) -> None:
    choices = [str(item) for item in kind]
    parser.add_argument(flag, choices=choices, default=str(default), help=f"{meaning} [%(default)s]")


def run(args: argparse.Namespace) -> int:
    """Do what was asked for."""
    if args.action in ("ask", "fault"):
        return (hands_on.ask if args.action == "ask" else hands_on.fault)(_lab(args), args)
    actions = {"up": _up, "demo": _demo, "status": _status, "exec": _exec, "down": _down}
    return actions[args.action](args)


def _shape(args: argparse.Namespace) -> Topology:
    return generate(
        name=args.name,
        clusters=args.clusters,
        workers=args.workers,
        gateways=args.gateways,
        pods=args.pods,
        tunnel=TunnelType(args.tunnel),
        cni=Cni(args.cni),
        datapath=DatapathChoice(args.datapath),
        encryption=TrafficEncryption(args.encryption),
        underlay=Underlay(args.underlay),
        same_cidrs=args.same_cidrs,
    )


def _up(args: argparse.Namespace) -> int:
    topology = replace(topology_file.load(args.file), name=args.name) if args.file else _shape(args)
    if topology.same_cidrs and not args.control_plane:
        raise LabError("--same-cidrs needs --control-plane")
    if args.policies:
        config = {control.POLICIES: True}
        topology = replace(
            topology, clusters=tuple(replace(cluster, config=config) for cluster in topology.clusters)
        )
    say = Progress()
    with terminable():
        lab = Lab.up(
            topology,
            progress=say,
            agents=not args.no_agents,
            api=ApiKind(args.api),
            control_plane=args.control_plane,
        )
        lab.state.keep()
    _draw(say, topology)
    name = "" if args.name == DEFAULT_NAME else f" --name {args.name}"
    first = next((pod.name for _, _, pod in topology.pods()), topology.clusters[0].nodes[0].name)
    say.line(f"Look around with `devtools/mclab status{name}` and `devtools/mclab exec{name} {first}`;")
    say.line(f"`devtools/mclab down{name}` takes it down.")
    return exit_codes.OK


def _draw(say: Progress, wanted: Topology) -> None:
    say.line()
    for line in picture.topology(wanted):
        say.line(line)
    say.line()


def _demo(args: argparse.Namespace) -> int:
    if args.same_cidrs and not (args.control_plane and Cni(args.cni) is Cni.FLANNEL and not args.all_cnis):
        raise LabError("--same-cidrs is for controllers and the CNI flannel")
    say = Progress()
    kinds = list(WITH_OUR_AGENTS) if args.all_cnis else [Cni(args.cni)]
    wrong = shown = 0
    say.line("Clusters on this machine, joined by mcagent. All of it is in network namespaces of its own.")
    with terminable(), state.exclusive(args.name):
        for kind in kinds:
            args.cni = str(kind)
            args.control_plane = args.control_plane and kind is not Cni.ANTREA
            bad, tried = _demo_one(_shape(args), say, args)
            wrong, shown = wrong + bad, shown + tried
    if wrong:
        say.line(say.paint(f"{wrong} of {shown} are not as they should be ({say.elapsed:.0f} s).", "31;1"))
        return exit_codes.FAILED
    say.line(say.paint(f"All {shown} are as they should be ({say.elapsed:.0f} s).", "32;1"))
    return exit_codes.OK


def _demo_one(wanted: Topology, say: Progress, args: argparse.Namespace) -> tuple[int, int]:
    """Make a lab, show the matrix, take it down; return how many cases were wrong, and how many there were."""
    _draw(say, wanted)
    lab = Lab(wanted.name)
    try:
        lab = Lab.up(wanted, progress=say, api=ApiKind(args.api), control_plane=args.control_plane)
        imported = story.imported_addresses(lab) if args.control_plane else None
        exported = story.export_addresses(lab) if args.control_plane else None
        prefixes = story.pod_prefixes(lab) if args.control_plane else {}
        cases = list(matrix.cases(wanted, imported, exported, prefixes))
        results = []
        with say.step(f"packets: {len(cases)} ways between clusters, TCP and UDP, copies counted by capture"):
            results += [matrix.run(lab, case) for case in cases]
        say.line()
        for line, good in picture.matrix(results):
            say.line(line if good else say.paint(line, "31"))
        say.line()
        for line in picture.MATRIX_MEANING:
            say.line(line)
        say.line()
        wrong = sum(not result.ok for result in results)
        if not cases:
            raise LabError("nothing to show: two clusters with Pods are needed")
        claims = list(_told(lab, say)) if args.control_plane else []
        say.line()
        return wrong + sum(not claim.ok for claim in claims), len(cases) + len(claims)
    finally:
        if not args.keep:
            lab.down(say)
        elif lab.state.exists:
            lab.state.keep()


def _told(lab: Lab, say: Progress) -> Iterator[story.Claim]:
    """Show the ClusterSet at work, a line for each step."""
    for claim in story.tell(lab):
        say.line(claim.text if claim.ok else say.paint(f"WRONG: {claim.text}", "31"))
        yield claim


def _status(args: argparse.Namespace) -> int:
    labs = [Lab(name) for name in ([args.name] if args.name else state.labs())]
    nodes = {lab.name: _nodes_of(lab) for lab in labs}
    if args.output == "json":
        print(json.dumps({lab.name: {**_about(lab), "nodes": nodes[lab.name]} for lab in labs}, indent=2))
    elif not labs:
        print("no lab is running")
    else:
        for lab in labs:
            print(f"lab {lab.name}: " + ", ".join(f"{key} {text}" for key, text in _about(lab).items()))
            for line in picture.table(_NODE_COLUMNS, [tuple(row.values()) for row in nodes[lab.name]]):
                print(f"  {line}")
    ready = all(row["ready"] == "yes" for rows in nodes.values() for row in rows)
    return exit_codes.OK if ready else exit_codes.FAILED


_NODE_COLUMNS = ("node", "role", "address", "pods", "agent", "ready")


def _about(lab: Lab) -> dict[str, str]:
    return {
        "tunnel": str(lab.topology.tunnel),
        "datapath": "userspace" if lab.userspace else "kernel",
        "api": str(lab.api_kind),
        "directory": str(lab.state.directory),
    }


def _nodes_of(lab: Lab) -> list[dict[str, str]]:
    rows = []
    for _, node in lab.topology.nodes():
        alive = lab.agent_alive(node.name)
        role = "gateway" if node.gateway else "worker"
        pods = ", ".join(f"{pod.name} {pod.address}" for pod in node.pods)
        agent = "running" if alive else "not running"
        ready = "yes" if alive and lab.ready(node.name) else "no"
        rows.append(
            dict(zip(_NODE_COLUMNS, (node.name, role, str(node.tunnel_address), pods, agent, ready), strict=True))
        )
    return rows


def _lab(args: argparse.Namespace) -> Lab:
    names = state.labs()
    alone = args.name not in names and args.name == DEFAULT_NAME and len(names) == 1
    return Lab(names[0] if alone else args.name)


def _exec(args: argparse.Namespace) -> int:
    lab = _lab(args)
    namespaces = {"underlay": lab.underlay}
    environment = dict(os.environ)
    for cluster in lab.topology.clusters:
        namespaces[cluster.name] = lab.api_namespace(cluster)
        for node in cluster.nodes:
            namespaces[node.name] = lab.namespace(node)
            namespaces.update({pod.name: lab.namespace(pod) for pod in node.pods})
            if args.where == node.name:
                environment |= lab.ovs(node.name).environment
                environment["MCAGENT_CONFIG"] = str(lab.directory(node.name) / "agent.yaml")
        if args.where in {cluster.name, *(node.name for node in cluster.nodes)}:
            environment["KUBECONFIG"] = str(lab.kubeconfig(cluster.name))
            environment["LAB_AGENTS"] = str(lab.agents_file())  # for --agents of commands that ask all Nodes
    if args.where not in namespaces:
        raise LabError(f"lab {lab.name} has no {args.where}; it has {', '.join(namespaces)}")
    # `mcagent` is this checkout's, whether or not its virtual environment is active.
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment.get('PATH', os.defpath)}"
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    argv = netns.command(namespaces[args.where], command or [os.environ.get("SHELL", "/bin/sh")])
    os.execvpe(argv[0], argv, environment)  # noqa: S606  # no shell by design: this process becomes the command


def _down(args: argparse.Namespace) -> int:
    names = state.labs() if args.all else [args.name]
    say = Progress()
    for name in names:
        lab = Lab(name)
        if not lab.state.directory.exists():
            say.line(f"there is no lab {name}")
        lab.down(say)
    return exit_codes.OK


if __name__ == "__main__":
    sys.exit(run_command(sys.modules[__name__], "devtools/mclab", sys.argv[1:]))
