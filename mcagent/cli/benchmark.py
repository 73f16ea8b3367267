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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcagent.api.codec import from_json
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
        rows = _measure(args, *pods)
    bounds = {"seconds": args.seconds, "limitBitsPerSecond": limit or None}
    report = {"from": args.source, "to": args.target, **bounds, "ways": rows}
    print(json.dumps(report, indent=2) if args.output == "json" else text(report))
    return exit_codes.FAILED if any(row["error"] for row in rows) else exit_codes.OK


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
        ends.serve(args.address, args.port, token, args.seconds + _SPARE)
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


def _measure(args: argparse.Namespace, source: Pods, target: Pods) -> list[dict[str, Any]]:
    for pods in (source, target):
        pods.remove_earlier()
    _say("starting the server")
    arguments = ["serve", "$(POD_IP)", "--port", str(args.port), "--seconds", str(args.seconds)]
    server = target.wait_running(target.start("server", arguments, node=args.to_node))
    rows = [_way(source, target.in_other_clusters(server), args, "pod", args.from_node)]
    rows[0]["encrypted"] = _encryption(source, rows[0]["fromNode"])
    if not args.no_underlay:
        rows.append(_underlay((source, target), arguments, args, rows[0]["fromNode"], server.node))
    return rows


def _underlay(
    both: Sequence[Pods], arguments: Sequence[str], args: argparse.Namespace, here: str, there: str
) -> dict[str, Any]:
    """Measure between the same two Nodes, without tunnels."""
    source, target = both
    if not here:
        return _row("node", "", there, error="not measured: client Pod not scheduled")
    try:
        server = target.wait_running(target.start("node-server", arguments, node=there, host=True))
    except McagentError as error:
        return _row("node", here, there, error=str(error))
    return _way(source, server, args, "node", here)


def _way(source: Pods, server: Running, args: argparse.Namespace, way: str, node: str) -> dict[str, Any]:
    """Measure one way; what goes wrong is told in its row."""
    _say(f"{way} to {way}, {args.seconds} s")
    bounds = ["--port", str(args.port), "--seconds", str(args.seconds), "--limit", args.limit]
    name = "client" if way == "pod" else "node-client"
    try:
        client = source.start(name, ["send", server.address, *bounds], node=node, host=way == "node")
        client_node, measured = source.wait_result(client, args.seconds)
    except McagentError as error:
        return _row(way, node, server.node, error=str(error))
    return _row(way, client_node, server.node, measured)


def _row(
    way: str, here: str, there: str, found: Mapping[str, Any] | None = None, error: str = ""
) -> dict[str, Any]:
    numbers = ("bits_per_second", "bytes", "seconds", "round_trip_p50", "round_trip_p99")
    values = {name: (found or {}).get(name) for name in numbers}
    if found is not None and not all(isinstance(value, int | float) for value in values.values()):
        error, values = "the Pod's answer is malformed", dict.fromkeys(numbers)
    return {
        "way": way,
        "fromNode": here,
        "toNode": there,
        "encrypted": None,
        "bitsPerSecond": values["bits_per_second"],
        "bytes": values["bytes"],
        "seconds": values["seconds"],
        "roundTripP50Seconds": values["round_trip_p50"],
        "roundTripP99Seconds": values["round_trip_p99"],
        "error": error,
    }


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


def text(found: Mapping[str, Any]) -> str:
    """Return it for people."""
    head = ("WAY", "FROM", "TO", "ENCRYPTED", "THROUGHPUT", "SENT", "RTT P50", "RTT P99")
    lines = table(head, [_cells(row) for row in found["ways"]])
    lines += ["", *(f"{row['way']}: {row['error']}" for row in found["ways"] if row["error"])]
    rates = {row["way"]: row["bitsPerSecond"] for row in found["ways"]}
    if rates.get("pod") and rates.get("node"):
        lines.append(
            f"the tunnel carries {100 * rates['pod'] / rates['node']:.0f} % of what the Nodes' network does"
        )
    limit = found["limitBitsPerSecond"]
    if limit and max((rate or 0 for rate in rates.values()), default=0) > 0.9 * limit:
        lines.append(f"--limit caps it: no more than {_rate(limit)} was sent")
    return "\n".join(line.rstrip() for line in lines).rstrip()


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    encrypted = "-" if row["way"] == "node" else row["encrypted"] or "not known"
    if row["error"]:
        return (row["way"], row["fromNode"] or "-", row["toNode"] or "-", encrypted, *["-"] * 4)
    trips = (f"{1000 * row[name]:.2f} ms" for name in ("roundTripP50Seconds", "roundTripP99Seconds"))
    return (
        *(row["way"], row["fromNode"], row["toNode"], encrypted, _rate(row["bitsPerSecond"]), size(row["bytes"])),
        *trips,
    )


def _rate(bits: float) -> str:
    for unit, name in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits >= unit:
            return f"{bits / unit:.2f} {name}"
    return f"{bits:.0f} bit/s"
