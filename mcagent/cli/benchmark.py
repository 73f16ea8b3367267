"""`mcagent benchmark`: throughput and round trips between two clusters, beside those of the network below them.

Owns the flags, the question beforehand and what is shown. The ends that measure and the Pods that they run in are
`mcagent.cli.benchmarking`'s; `mcagent benchmark serve` and `send` are what these Pods run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import ValidationError, structs

from mcagent.api.benchmark import BenchmarkReport, BenchmarkWay
from mcagent.api.codec import convert, from_json, to_json
from mcagent.api.status import Status
from mcagent.cli.common import exit_codes
from mcagent.cli.common.cluster_flags import add_cluster_flags, usual_kubeconfig
from mcagent.cli.common.confirming import add_yes_flag
from mcagent.cli.common.shared_flags import add_namespace_flag, add_output_flag
from mcagent.cli.common.signals import terminable
from mcagent.cli.common.tables import size, table
from mcagent.model.errors import InputError, McagentError

if TYPE_CHECKING:
    from mcagent.cli.benchmarking.pods import Pods, Running

_EPILOG = """\
examples:
  mcagent benchmark --from east --to west                     contexts of the kubeconfig; asks first
  mcagent benchmark --from east --to west --yes --seconds 5 --limit 10Gbit -o json
  mcagent benchmark --from east --to west --from-node gw-1 --to-node worker-7

Starts four Pods with the agent's image (--image), two in each cluster: a server and a client in the Pods' network,
and the same on their Nodes' network. One TCP connection at a time sends for --seconds, never faster than --limit;
then messages of 64 bytes go to and fro. POD is the way through the tunnels, NODE what the network below them gives
on the same two Nodes; ENCRYPTED is what the agent says of the tunnels. What is not configured is not measured: to
compare encryption, measure with and without it.

The Pods are removed at the end, also after Ctrl-C; what survives even that ends by itself, and goes with the next
measurement. Needs, in both clusters' --namespace: create, get, list and delete of pods; on its Pod Security level
hostNetwork has to be allowed (or --no-underlay). If the server's cluster has a virtual Pod CIDR, list of gateways
there. To tell whether tunnels are encrypted it asks the agent, which takes list of pods and nodes and create of
pods/exec; without them ENCRYPTED is "not known".
The exit code is 1 when one of the ways could not be measured.
"""
_UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_PORT = 15301
_EXCHANGES = 1000
_SPARE = 180  # seconds that Pods live longer than they measure: images may have to be pulled
TOKEN = "MCAGENT_BENCHMARK_TOKEN"  # noqa: S105  # the name of a variable
_MESSAGE = Path("/dev/termination-log")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the clusters and the bounds."""
    parser.description = "Measure throughput and round trips from one cluster to another, within bounds."
    parser.epilog = _EPILOG
    parser.add_argument("part", nargs="?", choices=["serve", "send"], help=argparse.SUPPRESS)
    parser.add_argument("address", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--from", dest="source", metavar="CONTEXT", help="the client's cluster")
    parser.add_argument("--to", dest="target", metavar="CONTEXT", help="the server's cluster")
    parser.add_argument(
        "--from-node", default="", metavar="NODE", help="the client's Node [the scheduler's choice]"
    )
    parser.add_argument("--to-node", default="", metavar="NODE", help="the server's Node [the scheduler's choice]")
    parser.add_argument("--seconds", type=int, default=10, metavar="N", help="of sending, 1 to 60 [%(default)s]")
    parser.add_argument("--limit", default="1Gbit", metavar="RATE", help="as 500Mbit; 0: none [%(default)s]")
    parser.add_argument("--port", type=int, default=_PORT, metavar="PORT", help="of the servers [%(default)s]")
    parser.add_argument("--no-underlay", action="store_true", help="no Pods on the Nodes' network")
    add_namespace_flag(parser, "of the Pods", "kube-system")
    parser.add_argument("--image", default="", metavar="IMAGE", help="of the Pods [that of the agents]")
    add_yes_flag(parser)
    add_output_flag(parser)
    add_cluster_flags(parser, contexts=False)


def run(args: argparse.Namespace) -> int:
    """Measure and print; or be one of the ends. Raises InputError, McagentError."""
    limit = rate_of(args.limit)
    if not 1 <= args.seconds <= 60:
        raise InputError("--seconds", "", f"must be from 1 to 60, is {args.seconds}")
    if not 1024 <= args.port <= 65535:
        raise InputError("--port", "", f"must be from 1024 to 65535, is {args.port}")
    if args.part:
        return _end(args, limit)
    if not args.source or not args.target:
        raise InputError("benchmark", "", "--from and --to are needed: contexts of the kubeconfig")
    with terminable(), _prepared(args) as pods:
        _agreed(args, limit)
        ways = tuple(_measure(args, *pods))
    report = BenchmarkReport(
        source=args.source,
        target=args.target,
        seconds=args.seconds,
        limit_bits_per_second=limit or None,
        ways=ways,
    )
    print(json.dumps(to_json(report), indent=2) if args.output == "json" else text(report))
    return exit_codes.FAILED if any(way.error for way in ways) else exit_codes.OK


def rate_of(words: str) -> int:
    """Return bits a second; 0: no limit. Raises InputError."""
    match = re.fullmatch(r"(\d{1,6})(?:\s*([kmg]?bit))?", words.strip().lower())
    if match is None or (match[2] is None and int(match[1])):
        raise InputError("--limit", "", f'must be as 500Mbit or 10Gbit, or 0 for none, is "{words[:40]}"')
    return int(match[1]) * _UNITS[match[2] or "bit"]


def _end(args: argparse.Namespace, limit: int) -> int:
    """Be the server or the client of a measurement: what the Pods run."""
    from mcagent.cli.benchmarking import ends

    token = os.environ.get(TOKEN, "")
    if not token or not args.address:
        raise InputError("benchmark", "", f"{args.part} needs an address, and a token in {TOKEN}")
    if args.part == "serve":
        ends.serve(args.address.split(","), args.port, token, args.seconds + _SPARE)
        return exit_codes.OK
    try:
        bounds = {"seconds": args.seconds, "limit": limit, "exchanges": _EXCHANGES}
        words, code = json.dumps(asdict(ends.measure(args.address, args.port, token, **bounds))), exit_codes.OK
    except McagentError as error:
        words, code = str(error), exit_codes.FAILED
    print(words)
    with suppress(OSError):
        if _MESSAGE.exists():
            _MESSAGE.write_text(words)
    return code


def _agreed(args: argparse.Namespace, limit: int) -> None:
    """Say what is going to happen and ask. Raises McagentError without a yes."""
    ways = 1 if args.no_underlay else 2
    most = f" and at most {size(limit // 8 * args.seconds)}" if limit else ", WITHOUT LIMIT,"
    print(
        f"{2 * ways} Pods in namespace {args.namespace} of {args.source} and {args.target} send{most} for "
        f"{args.seconds} s {'twice, by Pod and by Node' if ways > 1 else 'once'}. Other traffic may notice.",
        file=sys.stderr,
    )
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise InputError("benchmark", "", "stdin is not a terminal: confirm with --yes")
    print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise McagentError("nothing was started")


@contextmanager
def _prepared(args: argparse.Namespace) -> Iterator[tuple[Pods, Pods]]:
    """Yield the client's and the server's cluster, examined; remove what was created. Raises McagentError."""
    from mcagent.cli.benchmarking.pods import Pods
    from mcagent.kube.client import Client

    kubeconfig = args.kubeconfig or usual_kubeconfig()
    shared = {"namespace": args.namespace, "token": secrets.token_hex(16), "run": secrets.token_hex(4)}
    source, target = (
        Pods(
            client=Client(kubeconfig, context, user_agent="mcagent-benchmark"),
            cluster=context,
            image=args.image,
            life=2 * args.seconds + _SPARE,
            **shared,
        )
        for context in (args.source, args.target)
    )
    try:
        for pods in (source, target):
            pods.prepare()
        yield source, target
    finally:
        for line in [*source.remove(), *target.remove()]:
            print(f"mcagent benchmark: left behind: {line}", file=sys.stderr)
        for pods in (source, target):
            pods.client.close()


def _measure(args: argparse.Namespace, source: Pods, target: Pods) -> Iterator[BenchmarkWay]:
    for pods in (source, target):
        pods.remove_earlier()
    _say("starting the server")
    arguments = ["serve", "$(POD_IPS)", "--port", str(args.port), "--seconds", str(args.seconds)]
    server = target.wait_running(target.start("server", arguments, node=args.to_node))
    way = _way(source, target.in_other_clusters(server), args, "pod", args.from_node)
    yield structs.replace(way, encrypted=_encryption(source, way.from_node))
    if not args.no_underlay:
        yield _underlay((source, target), arguments, args, way.from_node, server.node)


def _underlay(
    both: Sequence[Pods], arguments: Sequence[str], args: argparse.Namespace, here: str, there: str
) -> BenchmarkWay:
    """Measure between the same two Nodes, without tunnels."""
    source, target = both
    way = BenchmarkWay(way="node", from_node=here, to_node=there)
    if not here:
        return structs.replace(way, error="not measured: client Pod not scheduled")
    try:
        server = target.wait_running(target.start("node-server", arguments, node=there, host=True))
    except McagentError as error:
        return structs.replace(way, error=str(error))
    return _way(source, server, args, "node", here)


def _way(source: Pods, server: Running, args: argparse.Namespace, name: str, node: str) -> BenchmarkWay:
    """Measure one way; `error` says what fails."""
    from mcagent.cli.benchmarking.ends import Measured

    _say(f"{name} to {name}, {args.seconds} s")
    bounds = ["--port", str(args.port), "--seconds", str(args.seconds), "--limit", args.limit]
    pod = "client" if name == "pod" else "node-client"
    way = BenchmarkWay(way=name, from_node=node, to_node=server.node)
    try:
        client = source.start(pod, ["send", server.address, *bounds], node=node, host=name == "node")
        client_node, answer = source.wait_result(client, args.seconds)
        way = structs.replace(way, from_node=client_node)
        measured = convert(Measured, answer)
    except McagentError as error:
        return structs.replace(way, error=str(error))
    except ValidationError:
        return structs.replace(way, error="the Pod's answer is malformed")
    return structs.replace(
        way,
        bits_per_second=measured.bits_per_second,
        bytes=measured.bytes,
        seconds=measured.seconds,
        round_trip_p50_seconds=measured.round_trip_p50,
        round_trip_p99_seconds=measured.round_trip_p99,
    )


def _encryption(source: Pods, node: str) -> str | None:
    """Return the mode of encryption that the client's Node says; None: it could not be asked."""
    from mcagent.cli.common.agents import ClusterAgents, ask_node

    try:
        page = ask_node(ClusterAgents(client=source.client), node) if node else {}
        encryption = from_json(Status, page, f"the agent of {node}").encryption
    except McagentError:
        return None
    return encryption.mode if encryption is not None else None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def text(report: BenchmarkReport) -> str:
    """Return it for people."""
    head = ("WAY", "FROM", "TO", "ENCRYPTED", "THROUGHPUT", "SENT", "RTT P50", "RTT P99")
    lines = table(head, [_cells(way) for way in report.ways])
    lines += ["", *(f"{way.way}: {way.error}" for way in report.ways if way.error)]
    rates = {way.way: way.bits_per_second or 0 for way in report.ways}
    pod, node = (rates.get(name, 0) for name in ("pod", "node"))
    if pod and node:
        lines.append(f"the tunnel carries {100 * pod / node:.0f} % of what the Nodes' network does")
    limit = report.limit_bits_per_second
    if limit and max(rates.values(), default=0) > 0.9 * limit:
        lines.append(f"--limit caps it: no more than {_rate(limit)} was sent")
    return "\n".join(line.rstrip() for line in lines).rstrip()


def _cells(way: BenchmarkWay) -> tuple[str, ...]:
    encrypted = "-" if way.way == "node" else way.encrypted or "not known"
    place = (way.way, way.from_node or "-", way.to_node or "-", encrypted)
    if way.error:
        return (*place, *["-"] * 4)
    trips = (way.round_trip_p50_seconds or 0, way.round_trip_p99_seconds or 0)
    return (
        *(*place, _rate(way.bits_per_second or 0), size(way.bytes or 0)),
        *(f"{1000 * seconds:.2f} ms" for seconds in trips),
    )


def _rate(bits: float) -> str:
    for unit, name in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits >= unit:
            return f"{bits / unit:.2f} {name}"
    return f"{bits:.0f} bit/s"
