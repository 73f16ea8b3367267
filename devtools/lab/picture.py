"""A topology, a matrix and a status as text for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from devtools.lab.topology import OUTSIDE, Cluster, Node, Topology
from devtools.traffic.matrix import Result

COLUMN = 34  # characters of a cluster's column
GAP = 10  # between two columns: room for a tunnel
_INNER = COLUMN - 4
MOST_PODS = 4  # shown of a Node
BRIDGE = "br-mc"


def topology(value: Topology) -> list[str]:
    """Return a picture of the clusters, two side by side, 80 columns wide."""
    lines: list[str] = []
    for at in range(0, len(value.clusters), 2):
        pair = value.clusters[at : at + 2]
        heads = [_head(cluster) for cluster in pair]
        workers = [_boxes(cluster.workers, last=True) for cluster in pair]
        gateways = [_boxes(cluster.gateways, last=False) for cluster in pair]
        lines += [*_beside(heads), "", *_beside(_bottom(workers))]
        if any(workers):
            lines += _beside([[_middle("║ " + str(value.tunnel))] if column else [] for column in workers])
        tunnel = f"{value.tunnel}".center(GAP, "═")
        lines += _beside(gateways, tunnel=tunnel if all(gateways) and len(pair) > 1 else "")
        lines.append(_routers(pair))
        lines.append("")
    if len(value.clusters) > 2:
        lines += ["Every gateway has a tunnel to every gateway of every other cluster.", ""]
    lines.append(
        f"Every box is a network namespace with an Open vSwitch and an agent of its own. Outside: {OUTSIDE}"
    )
    return lines


def _head(cluster: Cluster) -> list[str]:
    return [
        f"cluster {cluster.name} ({cluster.cni})",
        f"Pods     {cluster.pod_cidr}{'' if cluster.publish_pods else ' (not published)'}",
        f"Services {cluster.service_cidr}",
        f"API      {cluster.api_address}:6443",
    ]


def _boxes(nodes: Sequence[Node], *, last: bool) -> list[str]:
    lines: list[str] = []
    for node in nodes:
        rule = "─" * (COLUMN - len(node.name) - len(str(node.tunnel_address)) - 6)
        lines.append(f"┌ {node.name} {rule} {node.tunnel_address} ┐")
        for pod in node.pods[:MOST_PODS]:
            name = f"Pod {pod.name}".ljust(_INNER - len(str(pod.address)))
            lines.append(f"│ {name}{pod.address} │")
        if len(node.pods) > MOST_PODS:
            lines.append(f"│ {f'and {len(node.pods) - MOST_PODS} more Pods':<{_INNER}} │")
        bridge = f"─ {BRIDGE}, gateway " if node.gateway else f"─ {BRIDGE} "
        if last and node is nodes[-1]:
            half = COLUMN // 2 - 1
            lines.append(f"└{bridge.ljust(half, '─')}╥{'─' * (COLUMN - half - 3)}┘")
        else:
            lines.append(f"└{bridge.ljust(COLUMN - 2, '─')}┘")
    return lines


def _middle(text: str) -> str:
    return " " * (COLUMN // 2) + text


def _bottom(columns: list[list[str]]) -> list[list[str]]:
    height = max(map(len, columns))
    return [[""] * (height - len(column)) + column for column in columns]


def _beside(columns: list[list[str]], *, tunnel: str = "") -> list[str]:
    lines = []
    for parts in zip_longest(*columns, fillvalue=""):
        gap = " " * GAP
        if tunnel and all(f"{BRIDGE}, gateway" in part for part in parts):
            gap, tunnel = tunnel, ""  # between the first two gateways
        lines.append(f"  {gap.join(part.ljust(COLUMN) for part in parts)}".rstrip())
    return lines


def _routers(pair: Sequence[Cluster]) -> str:
    ends = [f"└── {cluster.router} ".rjust(10) for cluster in pair]
    if len(pair) == 1:
        return f"  {ends[0]}── router"
    west_end = ends[0].ljust(COLUMN // 2, "─")
    right = f" {pair[1].router} ──┘".rjust(COLUMN // 2, "─")
    return "  " + west_end + " the underlay's router ".center(COLUMN * 2 + GAP - COLUMN, "─") + right


MATRIX_HEAD = ("to", "reached", "rtt", "source seen", "copies")
MATRIX_MEANING = (
    "rtt: UDP round trip. source seen: by the server; kept means the Pod's own address.",
    "copies: of each packet, counted by capture in the server's Pod.",
)


def matrix(results: Sequence[Result]) -> list[tuple[str, bool]]:
    """Return the lines of a matrix, grouped by sender, each with whether it is as it should be."""
    senders = list(dict.fromkeys(result.case.source.name for result in results))
    results = sorted(results, key=lambda result: senders.index(result.case.source.name))
    head, *rows = table(MATRIX_HEAD, [_matrix_row(result) for result in results])
    lines: list[tuple[str, bool]] = []
    sender = ""
    for row, result in zip(rows, results, strict=True):
        pod, role = result.case.source, result.case.source_role
        if pod.name != sender:
            sender = pod.name
            start = f"from Pod {pod.name}, {pod.address}, on a {role} Node"
            lines += [("", True)] * bool(lines) + [(start, True), (f"  {head}", True)]
        lines.append((f"  {row}", result.ok))
    return lines


def _matrix_row(result: Result) -> tuple[str, ...]:
    case = result.case
    target = f"{case.target} {case.address}:{case.port}"
    if result.problem:
        return (target, "WRONG", "", result.problem, "")
    if case.closed:
        return (target, "closed", "", "as it should be", "0")
    translated = "virtual" if case.virtual else "gatewayIP"
    source = "kept" if case.source.address in case.sources else translated
    copies = "/".join(str(n) for n in sorted(set(result.copies)))
    return (target, "yes", f"{result.rtt * 1000:.2f} ms", f"{result.source} ({source})", copies)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as aligned lines below their headings."""
    all_rows = [tuple(head), *rows]
    widths = [max(len(row[column]) for row in all_rows) for column in range(len(head))]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in all_rows)
    return ["  ".join(cells).rstrip() for cells in padded]
