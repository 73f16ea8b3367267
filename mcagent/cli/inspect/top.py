"""`mcagent top`: what goes through the tunnels now, from two readings of the agents' /status."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mcagent.api.codec import to_json
from mcagent.api.status import Status
from mcagent.api.traffic import ServiceRow, ServicesReport, TrafficReport, TrafficRow
from mcagent.cli.common import exit_codes
from mcagent.cli.common.agents import Agents, ask_nodes, read_statuses
from mcagent.cli.common.live import every, interval_of, show
from mcagent.cli.common.place import PLACE, add_reach_flags, nodes_of, open_place
from mcagent.cli.common.shared_flags import add_output_flag
from mcagent.cli.common.tables import size, table
from mcagent.model.errors import McagentError

_EPILOG = f"""\
examples:
  mcagent top                              # on a Node: this Node; Ctrl-C ends it
  mcagent top --all --by cluster --interval 5
  mcagent top --once -o json | jq '.rows[] | select(.dropsPerSecond > 0)'
  mcagent top --agents agents.yaml --by node
  mcagent top --all --by service           # connections to exported Services, as gateways give them an endpoint

{PLACE}

Traffic of tunnels with other clusters' gateways, and (--local) with Nodes of this cluster, in both directions. IN
is what came from there. DROP are packets that Open vSwitch could neither send nor take. A counter that begins
anew with its tunnel counts from nothing. Without a terminal one table follows the other.
Rates of tunnels are averages of 10 seconds, because Open vSwitch updates their counters every 5 seconds. On the
userspace datapath Open vSwitch 3.1 counts each sent packet twice (docs/operations.md).
By service: connections that other clusters, all together, open to exported Services, gateway by gateway. Bytes are
counted by tunnel alone: one flow carries what belongs to the connections of all Services.
The exit code is 1 when no agent answers.
"""
# Seconds: the least time between the two readings of a rate. Open vSwitch updates the counters of tunnels every
# 5 s (ovs-vswitchd.conf.db(5), stats-update-interval), so a shorter time contains no update, or too many.
LEAST_SPAN = 10.0
_COUNTERS = {
    "inBytes": ("rx_bytes",),
    "outBytes": ("tx_bytes",),
    "inPackets": ("rx_packets",),
    "outPackets": ("tx_packets",),
    "drops": ("rx_dropped", "tx_dropped", "rx_errors", "tx_errors"),
}
_BY = {"tunnel": ("node", "cluster", "gateway"), "cluster": ("cluster",), "node": ("node",)}
SERVICE = "service"
LEAST_NAME = 6  # characters that a name of a Node or cluster keeps
_HEADS = ("IN/s", "OUT/s", "PKT IN/s", "PKT OUT/s", "DROP/s", "UP")

Key = tuple[str, str, str]  # Node, cluster ("": this one), the gateway's or Node's address


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The counters of one tunnel, and whether its peer is used."""

    counters: Mapping[str, int]
    live: bool


Readings = Mapping[Key, Reading]
Exported = Mapping[tuple[str, str], int]  # connections begun, by Service and gateway


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is shown and how often, and how agents are reached."""
    parser.description = "Show the traffic between clusters as it flows: bytes, packets and drops a second."
    parser.epilog = _EPILOG
    parser.add_argument(
        "--by", choices=[*_BY, SERVICE], default="tunnel", help="what a line is about [%(default)s]"
    )
    parser.add_argument("--local", action="store_true", help="tunnels to Nodes of this cluster, too")
    parser.add_argument("--interval", default="2", metavar="SECONDS", help="between two tables [%(default)s]")
    parser.add_argument("--once", action="store_true", help="one table")
    add_output_flag(parser, more="; json: a line each time")
    add_reach_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Read and show until it is interrupted."""
    seconds = interval_of(args.interval)
    show(_pictures(args, open_place(args, "mcagent top"), seconds), whole=args.output == "text")
    return exit_codes.OK


def _pictures(args: argparse.Namespace, agents: Agents, seconds: float) -> Iterator[str]:
    earlier: deque[tuple[float, Readings, Exported]] = deque()  # the first one is what the next is compared with
    span = 0.0 if args.by == SERVICE else LEAST_SPAN
    report: TrafficReport | ServicesReport
    names = nodes_of(agents)
    for _ in every(seconds):
        statuses, late = read_statuses(ask_nodes(agents, nodes=names))
        if not statuses:
            raise McagentError("; ".join(f"Node {node}: {error}" for node, error in late.items()))
        now = time.monotonic(), readings(statuses, local=args.local), exported(statuses)
        while len(earlier) > 1 and earlier[1][0] <= now[0] - span:
            earlier.popleft()
        if earlier and now[0] - earlier[0][0] >= span:
            before, spent = earlier[0], now[0] - earlier[0][0]
            if args.by == SERVICE:
                report = ServicesReport(rows=connections(before[2], now[2], spent), late=late)
            else:
                report = TrafficReport(rows=rates(before[1], now[1], spent, by=_BY[args.by]), late=late)
            if args.output == "json":
                yield json.dumps(to_json(report))
            else:
                yield services_text(report) if isinstance(report, ServicesReport) else text(report, args.by)
            if args.once:
                return
        earlier.append(now)


def readings(statuses: Mapping[str, Status], *, local: bool) -> dict[Key, Reading]:
    """Return the counters of the tunnels that these Nodes could read; `local`: those inside a cluster, too."""
    readings_by_key = {}
    for node, status in statuses.items():
        gateways = status.gateways_by_tunnel
        for tunnel in status.tunnels:
            if (not tunnel.remote and not local) or (tunnel.exists and tunnel.up is None):  # not read this time
                continue
            gateway = gateways.get(tunnel.name)
            live = tunnel.exists and tunnel.up is not False if gateway is None else gateway.live
            counters = {
                name: sum(tunnel.statistics.get(statistic, 0) for statistic in statistics)
                for name, statistics in _COUNTERS.items()
            }
            key = (tunnel.peer, tunnel.remote_ip) if tunnel.remote else ("", tunnel.peer)
            readings_by_key[node, *key] = Reading(counters=counters, live=live)
    return readings_by_key


def rates(
    before: Readings, after: Readings, seconds: float, *, by: tuple[str, ...] = _BY["tunnel"]
) -> tuple[TrafficRow, ...]:
    """Return a row for each value of the keys `by`, the busiest first.

    A tunnel that was not there, or not read, has no rate yet. A counter that is less than before began anew.
    """
    places = [("node", "cluster", "gateway").index(name) for name in by]
    groups: dict[tuple[str, ...], list[Key]] = {}
    for key in sorted(after):
        groups.setdefault(tuple(key[place] for place in places), []).append(key)

    def rate(keys: list[Key], counter: str) -> float:
        pairs = ((before.get(key, after[key]), after[key]) for key in keys)
        return sum(_increase(old.counters[counter], new.counters[counter]) for old, new in pairs) / seconds

    rows = (
        TrafficRow(
            **dict(zip(by, group, strict=True)),
            tunnels=len(keys),
            live=sum(after[key].live for key in keys),
            in_bytes_per_second=rate(keys, "inBytes"),
            out_bytes_per_second=rate(keys, "outBytes"),
            in_packets_per_second=rate(keys, "inPackets"),
            out_packets_per_second=rate(keys, "outPackets"),
            drops_per_second=rate(keys, "drops"),
        )
        for group, keys in sorted(groups.items())
    )
    return tuple(sorted(rows, key=_bytes, reverse=True))


def _increase(before: int, after: int) -> int:
    """Return the increase of a counter; one that is less than before began anew."""
    return after - before if after >= before else after


def exported(statuses: Mapping[str, Status]) -> dict[tuple[str, str], int]:
    """Return the connections to exported Services that gateways have counted; an older version's count none."""
    return {
        (service, node): export.connections
        for node, status in statuses.items()
        for service, export in status.exports.items()
    }


def connections(before: Exported, after: Exported, seconds: float) -> tuple[ServiceRow, ...]:
    """Return a row for each Service, the busiest first."""
    by_service: dict[str, dict[str, int]] = {}
    for (service, node), count in after.items():
        by_service.setdefault(service, {})[node] = count
    rows = []
    for service, counts in by_service.items():
        by_gateway = {
            node: _increase(before.get((service, node), count), count) / seconds for node, count in counts.items()
        }
        rows.append(
            ServiceRow(
                service=service,
                connections_per_second=sum(by_gateway.values()),
                connections=sum(counts.values()),
                by_gateway=by_gateway,
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.connections_per_second, row.service)))


def services_text(report: ServicesReport) -> str:
    """Return a table of Services for people."""
    cells = [
        (
            row.service,
            f"{row.connections_per_second:.1f}",
            str(row.connections),
            ", ".join(f"{node} {rate:.1f}" for node, rate in sorted(row.by_gateway.items())),
        )
        for row in report.rows
    ]
    head = ("SERVICE", "CONN/s", "SO FAR", "BY GATEWAY")
    lines = table(head, cells) if cells else ["nothing is exported here (only gateways count connections)"]
    total = sum(row.connections_per_second for row in report.rows)
    lines += ["", *_foot(f"{len(cells)} Services, {total:.1f} connections/s in all", report.late)]
    return "\n".join(line.rstrip() for line in lines)


def _foot(total: str, late: Mapping[str, str]) -> list[str]:
    missing = [f"Node {node} does not answer: {error}" for node, error in sorted(late.items())]
    return [f"{total}, {time.strftime('%H:%M:%S')}", *missing]


def _bytes(row: TrafficRow) -> float:
    return row.in_bytes_per_second + row.out_bytes_per_second


def text(report: TrafficReport, by: str, width: int = 0) -> str:
    """Return a table for people. In a terminal, or with `width`, long names of Nodes and clusters are cut."""
    names = _BY[by]
    cells = [[*(getattr(row, name) or "(own)" for name in names), *_numbers(row)] for row in report.rows]
    head = [*(name.upper() for name in names), *_HEADS]
    if not width and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    if width:
        cells = _cut_names(cells, [n for n, name in enumerate(names) if name != "gateway"], head, width)
    lines = (
        table(head, cells) if cells else ["no tunnel to another cluster: workers have none (--local shows others)"]
    )
    total = sum(map(_bytes, report.rows))
    lines += ["", *_foot(f"{len(cells)} lines, {size(round(total))}/s in all", report.late)]
    return "\n".join(line.rstrip() for line in lines)


def _cut_names(cells: list[list[str]], columns: list[int], head: list[str], width: int) -> list[list[str]]:
    """Cut the longest of these columns until a line has `width` characters, or they have LEAST_NAME."""
    widths = [max(len(line[n]) for line in (head, *cells)) for n in range(len(head))]
    while sum(widths) + 2 * (len(widths) - 1) > width:
        longest = max(columns, key=lambda n: widths[n])
        if widths[longest] <= LEAST_NAME:
            break
        widths[longest] -= 1
    return [[_cut(cell, widths[n]) if n in columns else cell for n, cell in enumerate(line)] for line in cells]


def _cut(name: str, room: int) -> str:
    return name if len(name) <= room else f"{name[: room - 1]}~"


def _numbers(row: TrafficRow) -> list[str]:
    return [
        size(round(row.in_bytes_per_second)),
        size(round(row.out_bytes_per_second)),
        f"{row.in_packets_per_second:.0f}",
        f"{row.out_packets_per_second:.0f}",
        f"{row.drops_per_second:.0f}",
        f"{row.live}/{row.tunnels}",
    ]
