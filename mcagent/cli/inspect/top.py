"""`mcagent top`: what goes through the tunnels now, from two readings of the agents' /status."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mcagent.api.status import Status
from mcagent.cli.common import exit_codes
from mcagent.cli.common.agents import Agents, ask_nodes, read_statuses
from mcagent.cli.common.live import every, interval_of, show
from mcagent.cli.common.place import PLACE, add_reach_flags, open_place
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
    rows: list[dict[str, Any]]
    shown: Callable[[list[dict[str, Any]], Mapping[str, str]], str]
    names = agents.nodes()
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
                rows = connections(before[2], now[2], spent)
                shown = services_text
            else:
                rows = rates(before[1], now[1], spent, by=_BY[args.by])
                shown = partial(text, by=args.by)
            yield json.dumps({"rows": rows, "late": late}) if args.output == "json" else shown(rows, late)
            if args.once:
                return
        earlier.append(now)


def readings(statuses: Mapping[str, Status], *, local: bool) -> dict[Key, Reading]:
    """Return the counters of all tunnels of these Nodes; `local`: those inside a cluster, too."""
    readings_by_key = {}
    for node, status in statuses.items():
        gateways = status.gateways_by_tunnel
        for tunnel in status.tunnels:
            if not tunnel.remote and not local:
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
) -> list[dict[str, Any]]:
    """Return a row for each value of the keys `by`, the busiest first.

    A tunnel that was not there before has no rate yet. A counter that is less than before began anew.
    """
    places = [("node", "cluster", "gateway").index(name) for name in by]
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for key, reading in after.items():
        group = tuple(key[place] for place in places)
        row = rows.setdefault(group, {**dict(zip(by, group, strict=True)), "tunnels": 0, "live": 0})
        row["tunnels"] += 1
        row["live"] += reading.live
        last = before.get(key)
        for name, count in reading.counters.items():
            was = count if last is None else last.counters[name]
            gone = count - was if count >= was else count
            row[f"{name}PerSecond"] = row.get(f"{name}PerSecond", 0.0) + gone / seconds
    order = sorted(rows.items(), key=lambda item: (-_bytes(item[1]), item[0]))
    return [row for _, row in order]


def exported(statuses: Mapping[str, Status]) -> dict[tuple[str, str], int]:
    """Return the connections to exported Services that gateways have counted; an older version's count none."""
    return {
        (service, node): export.connections
        for node, status in statuses.items()
        for service, export in status.exports.items()
    }


def connections(before: Exported, after: Exported, seconds: float) -> list[dict[str, Any]]:
    """Return a row for each Service, the busiest first. A count that is less than before began anew."""
    rows: dict[str, dict[str, Any]] = {}
    for (service, node), count in after.items():
        row = rows.setdefault(
            service, {"service": service, "connectionsPerSecond": 0.0, "connections": 0, "byGateway": {}}
        )
        was = before.get((service, node), count)
        rate = (count - was if count >= was else count) / seconds
        row["connectionsPerSecond"] += rate
        row["connections"] += count
        row["byGateway"][node] = rate
    return sorted(rows.values(), key=lambda row: (-row["connectionsPerSecond"], row["service"]))


def services_text(rows: list[dict[str, Any]], late: Mapping[str, str]) -> str:
    """Return a table of Services for people."""
    cells = [
        (
            row["service"],
            f"{row['connectionsPerSecond']:.1f}",
            str(row["connections"]),
            ", ".join(f"{node} {rate:.1f}" for node, rate in sorted(row["byGateway"].items())),
        )
        for row in rows
    ]
    head = ("SERVICE", "CONN/s", "SO FAR", "BY GATEWAY")
    lines = table(head, cells) if rows else ["nothing is exported here (only gateways count connections)"]
    total = sum(row["connectionsPerSecond"] for row in rows)
    lines += ["", *_foot(f"{len(rows)} Services, {total:.1f} connections/s in all", late)]
    return "\n".join(line.rstrip() for line in lines)


def _foot(total: str, late: Mapping[str, str]) -> list[str]:
    missing = [f"Node {node} does not answer: {error}" for node, error in sorted(late.items())]
    return [f"{total}, {time.strftime('%H:%M:%S')}", *missing]


def _bytes(row: Mapping[str, Any]) -> float:
    return float(row["inBytesPerSecond"] + row["outBytesPerSecond"])


def text(rows: list[dict[str, Any]], late: Mapping[str, str], by: str, width: int = 0) -> str:
    """Return a table for people. In a terminal, or with `width`, long names of Nodes and clusters are cut."""
    names = _BY[by]
    cells = [[*(str(row[name]) or "(own)" for name in names), *_numbers(row)] for row in rows]
    head = [*(name.upper() for name in names), *_HEADS]
    if not width and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    if width:
        cells = _cut_names(cells, [n for n, name in enumerate(names) if name != "gateway"], head, width)
    lines = (
        table(head, cells) if rows else ["no tunnel to another cluster: workers have none (--local shows others)"]
    )
    total = sum(map(_bytes, rows))
    lines += ["", *_foot(f"{len(rows)} lines, {size(round(total))}/s in all", late)]
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


def _numbers(row: Mapping[str, Any]) -> list[str]:
    return [
        size(round(row["inBytesPerSecond"])),
        size(round(row["outBytesPerSecond"])),
        f"{row['inPacketsPerSecond']:.0f}",
        f"{row['outPacketsPerSecond']:.0f}",
        f"{row['dropsPerSecond']:.0f}",
        f"{row['live']}/{row['tunnels']}",
    ]
