"""What a reader of the tutorials does by hand in a lab: asks a Service from a Pod, makes a fault and heals it.

Owns the actions `ask` and `fault` of `devtools/mclab`. Knows neither how traffic is made nor how faults are.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

from devtools.errors import LabError
from devtools.lab import faults
from devtools.lab.control import POD_EXPORT_CIDR, ControlPlane
from devtools.lab.faults import Fault
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, SERVICE_PORT, Cluster
from devtools.traffic import traffic
from devtools.traffic.load import Kind, Load, Stream
from devtools.traffic.traffic import TcpClient
from devtools.waiting import wait_until
from mcagent.cli.common import exit_codes

CONNECTIONS = 20


def _pod_cidr(lab: Lab, name: str, cidr: str) -> Fault:
    cluster, plane = lab.topology.cluster(name), ControlPlane(lab)
    neighbours = [other for other in lab.topology.clusters if other.name != name]

    def publish(*clusters: Cluster) -> None:
        for published in clusters:
            plane.stop_controller(published, "member")
            plane.start_controller(published, "member")
            plane.wait_controller(published, "member")

    def with_real_pods(other: Cluster) -> Cluster:
        return replace(other, config={**other.config, POD_EXPORT_CIDR: "never"})

    wrong = with_real_pods(replace(cluster, pod_cidr=IPv4Network(cidr)))
    return Fault(
        name="another Pod CIDR",
        inject=lambda: publish(*map(with_real_pods, neighbours), wrong),
        heal=lambda: publish(cluster, *neighbours),
    )


# By name: how many Nodes (or clusters) it is about, what it is, how it is made.
FAULTS: dict[str, tuple[str, str, Callable[..., Fault]]] = {
    "port-blocked": ("NODE NODE", "UDP 6081 is lost between two Nodes", faults.port_blocked),
    "port-blocked-one-way": (
        "FROM TO",
        "UDP 6081 is lost from one Node to another",
        lambda lab, one, other: faults.port_blocked(lab, one, other, one_way=True),
    ),
    "wireguard-blocked": (
        "NODE NODE",
        "UDP 51821 is lost between two Nodes",
        lambda lab, one, other: faults.port_blocked(lab, one, other, 51821),
    ),
    "small-mtu": (
        "NODE NODE",
        "packets of more than 1400 bytes vanish between two Nodes",
        lambda lab, one, other: faults.small_mtu(lab, one, other, 1400),
    ),
    "node-gone": ("NODE", "a Node loses its power", faults.node_gone),
    "vswitchd-killed": ("NODE", "ovs-vswitchd of a Node is killed", faults.vswitchd_killed),
    "agent-killed": ("NODE", "the agent of a Node is killed", faults.agent_killed),
    "pod-cidr": (
        "CLUSTER CIDR",
        "the controller of a cluster publishes another Pod CIDR, and none has virtual ones",
        _pod_cidr,
    ),
    "api-gone": (
        "CLUSTER",
        "the API server of a cluster is stopped",
        lambda lab, cluster: faults.api_gone(lab, lab.topology.cluster(cluster)),
    ),
}


def add_ask(parser: argparse.ArgumentParser) -> None:
    """Declare `ask`."""
    parser.add_argument("pod", help="that asks")
    parser.add_argument("target", help="SERVICE, NAMESPACE/SERVICE, POD or ADDRESS; :PORT, if another")
    parser.add_argument("--count", type=int, default=1, metavar="N", help="connections, one after the other [1]")
    parser.add_argument("--size", type=int, default=64, metavar="BYTES", help="of the message [%(default)s]")
    parser.add_argument(
        "--seconds", type=float, metavar="S", help=f"keep {CONNECTIONS} connections busy for so long instead"
    )


def add_fault(parser: argparse.ArgumentParser) -> None:
    """Declare `fault`."""
    kinds = "\n".join(f"  {name} {target:<10} {effect}" for name, (target, effect, _) in FAULTS.items())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"faults:\n{kinds}\n\nexample:\n  devtools/mclab fault port-blocked east-gw1 west-gw1"
    parser.add_argument("kind", choices=list(FAULTS), metavar="FAULT", help="see below")
    parser.add_argument("targets", nargs="+", metavar="NAME", help="a Node, two Nodes, or a cluster")
    parser.add_argument("--heal", action="store_true", help="end it")


def fault(lab: Lab, args: argparse.Namespace) -> int:
    """Make a fault, or end it."""
    target, effect, make = FAULTS[args.kind]
    if len(args.targets) != len(target.split()):
        raise LabError(f"{args.kind} needs {target}")
    injected = make(lab, *args.targets)
    (injected.heal if args.heal else injected.inject)()
    print(f"{'ended' if args.heal else 'made'}: {effect} ({', '.join(args.targets)})")
    return exit_codes.OK


def ask(lab: Lab, args: argparse.Namespace) -> int:
    """Ask from a Pod, and tell who answered and which address it saw."""
    address, port = _target(lab, args.pod, args.target)
    namespace = lab.namespace(args.pod)
    if args.seconds:
        return _keep_busy(namespace, address, port, args)
    answers: Counter[str] = Counter()
    failed = 0
    for _ in range(args.count):
        try:
            with TcpClient(namespace, address, port, timeout=traffic.TIMEOUT) as client:
                client.exchange(b"x" * args.size)
                answers[f"{client.hello.pod} answers, and sees {client.hello.source}"] += 1
        except LabError as error:
            failed, problem = failed + 1, error
    for text, number in sorted(answers.items()):
        print(f"{number:4} times: {text}" if args.count > 1 else text)
    if failed:
        print(f"{failed:4} times: no answer: {problem}" if args.count > 1 else f"no answer: {problem}")
    return exit_codes.FAILED if failed else exit_codes.OK


def _target(lab: Lab, pod: str, text: str) -> tuple[str, int]:
    """Return address and port of what a Pod asks. Raises LabError."""
    name, _, port = text.partition(":")
    pods = {pod_object.name: pod_object for _, _, pod_object in lab.topology.pods()}
    if pod not in pods:
        raise LabError(f"lab {lab.name} has no Pod {pod}; it has {', '.join(pods)}")
    if name in pods:
        return str(pods[name].address), int(port or POD_PORT)
    try:
        return str(IPv4Address(name)), int(port or SERVICE_PORT)
    except ValueError:
        pass
    namespace, _, service = name.rpartition("/")
    cluster = next(cluster for cluster, _, pod_object in lab.topology.pods() if pod_object.name == pod)
    service_object = lab.api(cluster.name).get("Service", service, namespace or "default")
    if service_object is None:
        raise LabError(f"cluster {cluster.name} has no Service {namespace or 'default'}/{service}")
    spec = service_object["spec"]
    assert isinstance(spec, dict)
    return spec["clusterIP"], int(port or SERVICE_PORT)


def _keep_busy(namespace: str, address: str, port: int, args: argparse.Namespace) -> int:
    stream = Stream(
        kind=Kind.TCP, name=args.target, namespace=namespace, address=address, port=port, count=CONNECTIONS
    )
    with closing(Load([stream])) as load:
        begin = time.monotonic()
        wait_until(lambda: time.monotonic() >= begin + args.seconds, "the end", timeout=args.seconds + 10)
        outcome = load.report(begin).streams[args.target]
    print(
        f"{CONNECTIONS} connections, {outcome.sent} messages: {outcome.broken} connections broke; "
        f"the longest silence was {outcome.longest:.2f} s"
    )
    return exit_codes.FAILED if outcome.broken else exit_codes.OK
